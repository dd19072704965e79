"""Two modules on the same inputs: which instruction makes their results differ.

Both are run, and everything that either computes is recorded with what it was made of (`graph`). Values of one module
are found in the other by what they hold (`digests`, `agreement`, `matching`), the second run is gone through once more
on the first's values (`replay`), and where results differ, wrong values are put right until they do not
(`localization`).
"""

from hloexec.diffing.dumps import Stage
from hloexec.diffing.findings import Diff, Finding, InstructionRun, Pair
from hloexec.diffing.folders import FolderDiff, ModuleDiff, StageDiff, diff_folders
from hloexec.diffing.running import diff

__all__ = [
    "Diff",
    "Finding",
    "FolderDiff",
    "InstructionRun",
    "ModuleDiff",
    "Pair",
    "Stage",
    "StageDiff",
    "diff",
    "diff_folders",
]
