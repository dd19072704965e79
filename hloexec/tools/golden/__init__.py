"""Golden outputs: a module, its inputs and its expected result, in a folder of plain files.

`record_golden` creates such a folder; `check_golden` runs the module again. `golden.recording` documents the
files.
"""

from hloexec.tools.golden.checking import GoldenCheck, Outcome, check_golden, update_golden
from hloexec.tools.golden.recording import Golden, find_goldens, read_golden, record_golden

__all__ = [
    "Golden",
    "GoldenCheck",
    "Outcome",
    "check_golden",
    "find_goldens",
    "read_golden",
    "record_golden",
    "update_golden",
]
