"""Comparing two modules on the same inputs, to find the instruction that makes their results differ.

Both modules run, and every value is recorded with the values that it was computed from (`graph`), and every loop and
conditional with what decided how it ran (`control`). Values of one module are matched with equal values of the other
(`digests`, `agreement`, `matching`), and the second module is replayed on the first's values (`replay`). If results
differ, `localization` goes back from them to the instruction whose operands are right but whose result is not,
`searching` makes findings and notes of what it finds, and `extracting` two small modules that show it.
"""

from hloexec.tools.diffing.dumps import Stage
from hloexec.tools.diffing.extracting.pair import ExtractedPair
from hloexec.tools.diffing.findings import Diff, Finding, InstructionRun, InstructionText, Pair, RegionStep
from hloexec.tools.diffing.folders import FolderDiff, ModuleDiff, StageDiff, diff_folders
from hloexec.tools.diffing.running import diff

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
