"""Extracting the part of a module that computes one instruction, with the values of one run.

`slicing` selects the instructions; it runs nothing, so that other code that reduces modules can use it. `recording`
runs the module up to the instruction, and records the values that enter the slice. `running.extract` does both.
`outputs` makes values further outputs of a module, for others to fetch them.
"""

from hloexec.tools.extraction.outputs import RefusedOutput, ValueOutput, ValueOutputs, add_outputs
from hloexec.tools.extraction.running import Extraction, Rerun, Slice, extract, slice_module, slice_of

__all__ = [
    "Extraction",
    "RefusedOutput",
    "Rerun",
    "Slice",
    "ValueOutput",
    "ValueOutputs",
    "add_outputs",
    "extract",
    "slice_module",
    "slice_of",
]
