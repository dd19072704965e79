"""Golden outputs: a module with its inputs and what it should give, in a folder of plain files.

`record_golden` makes such a folder, `check_golden` runs it again. What lies in it: see `hloexec.golden.folder`.
"""

from hloexec.golden.checking import GoldenCheck, Outcome, check_golden, update_golden
from hloexec.golden.folder import Golden, find_goldens, read_golden
from hloexec.golden.recording import record_golden

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
