"""Triage: many modules, or pairs of them, run and compared, and those that differ grouped by what has the same cause.

`collecting` finds the cases in a folder. Each is judged in a process of its own (`working`), which runs, compares,
blames and explains (`judging`, `blaming`, `reference`). `grouping` says what has the same cause, `storing` keeps what
is known in a folder, from which a later call goes on, and `running` does it all. The results are in `findings`.
"""

from hloexec.analysis.numerics.comparison import OutputDifference
from hloexec.tools.triaging.findings import (
    Blamed,
    CauseGroup,
    MinifiedModule,
    PolicyFound,
    Triage,
    TriagedModule,
)
from hloexec.tools.triaging.running import merge_triages, triage

__all__ = [
    "Blamed",
    "CauseGroup",
    "MinifiedModule",
    "OutputDifference",
    "PolicyFound",
    "Triage",
    "TriagedModule",
    "merge_triages",
    "triage",
]
