"""Comparing two modules on the same inputs, to find the instruction that makes their results differ.

Both modules run (`running`), and every value is recorded with the values that it was computed from (`graph`), and every
loop and conditional with what decided how it ran (`control`). Values of one module are matched with equal values of the
other (`correspondence`). If not all are equal to the bit, `judging` goes on: values are matched up to rounding
(`matching`), and the second module is replayed on the first's values (`replaying`). If results differ, `localization`
goes back from them to the instruction whose operands are right but whose result is not, and `extracting` makes two
small modules that show it.
"""

from typing import TYPE_CHECKING, Any

from hloexec.tools.diffing.findings import (
    Diff,
    ExtractedPair,
    Finding,
    InstructionRun,
    InstructionText,
    Pair,
    RegionStep,
)
from hloexec.tools.diffing.running import diff

if TYPE_CHECKING:
    from hloexec.tools.diffing.folders import FolderDiff, ModuleDiff, Stage, StageDiff, diff_folders

__all__ = [
    "Diff",
    "ExtractedPair",
    "Finding",
    "FolderDiff",
    "InstructionRun",
    "InstructionText",
    "ModuleDiff",
    "Pair",
    "RegionStep",
    "Stage",
    "StageDiff",
    "diff",
    "diff_folders",
]


def __getattr__(name: str) -> Any:
    """What compares folders, imported on first use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from hloexec.tools.diffing import folders

    return getattr(folders, name)
