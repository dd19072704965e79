"""Extracting the part of a module that computes one instruction, with the values that it had.

`slicing` cuts: a function of text, which runs nothing and serves whoever makes modules smaller. `recording` runs the
module up to the instruction and keeps the values at the cut. `running.extract` does both.
"""

from hloexec.extraction.running import Extraction, Rerun, extract
from hloexec.extraction.slicing import Slice, slice_module, slice_of

__all__ = ["Extraction", "Rerun", "Slice", "extract", "slice_module", "slice_of"]
