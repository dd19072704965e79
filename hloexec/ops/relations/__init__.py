"""How the dimensions of an instruction's operands and result depend on one another: the vocabulary of `relate` rules.

A module can be made smaller if every dimension that follows from others follows from them still. The rules of the
opcodes say so in five ways: dimensions are the same; a sum of multiples of dimensions is constant; the product of some
is the product of others; a dimension has at least a certain size, or divides certain numbers evenly; a dimension has to
stay as it is, for a reason. `resize` rules then fit attributes to the new sizes.
"""

from hloexec.ops.relations.contents import GroupSizes, Requirement, RunningSums, Starts, Within
from hloexec.ops.relations.parts import (
    relate_concatenation,
    relate_convolution,
    relate_part,
    relate_slice,
    relate_slices,
    relate_window,
    relate_window_of,
    resized_convolution,
    resized_start,
    resized_windows,
)
from hloexec.ops.relations.reshapes import relate_bytes, relate_reshape
from hloexec.ops.relations.rules import (
    LANES,
    Axes,
    Equation,
    Place,
    Position,
    Product,
    RelateRule,
    Relating,
    Relations,
    ResizeRule,
    Resizing,
    Value,
    leafwise,
    pointwise,
)

__all__ = [
    "LANES",
    "Axes",
    "Equation",
    "GroupSizes",
    "Place",
    "Position",
    "Product",
    "RelateRule",
    "Relating",
    "Relations",
    "Requirement",
    "ResizeRule",
    "Resizing",
    "RunningSums",
    "Starts",
    "Value",
    "Within",
    "leafwise",
    "pointwise",
    "relate_bytes",
    "relate_concatenation",
    "relate_convolution",
    "relate_part",
    "relate_reshape",
    "relate_slice",
    "relate_slices",
    "relate_window",
    "relate_window_of",
    "resized_convolution",
    "resized_start",
    "resized_windows",
]
