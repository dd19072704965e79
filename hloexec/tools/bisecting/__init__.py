"""Bisecting: which of several compilers, or which pass of one, first gives another result.

`judging` says what a counterpart's result is; `versions` goes through counterparts in their order, `passes` through the
passes of one.
"""

from hloexec.tools.bisecting.findings import PassBisection, VersionBisection, VersionChange, VersionTrial
from hloexec.tools.bisecting.passes import bisect_passes
from hloexec.tools.bisecting.versions import bisect_versions

__all__ = ["PassBisection", "VersionBisection", "VersionChange", "VersionTrial", "bisect_passes", "bisect_versions"]
