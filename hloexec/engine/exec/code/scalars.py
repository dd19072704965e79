"""Arithmetic of arrays without dimensions, in generated Python: as operators on NumPy's scalars.

A scalar operator takes a tenth of the time of the NumPy function that it stands for, and gives the same bits: IEEE 754
says what a sum is, and integers of NumPy's types wrap. It does not say which of two NaNs a sum is, so an operator is
used only if it turns out to choose as the function does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import product
from typing import Any

import numpy as np

from hloexec.core.dtypes import DType
from hloexec.core.ir import ArrayShape
from hloexec.engine.plan.kernels import Leaf
from hloexec.engine.plan.steps import Step
from hloexec.ops.elementwise.fast.formulas import OfScalars, ufunc_of_scalars
from hloexec.ops.elementwise.formula import choose

_OPERATORS: dict[np.ufunc, tuple[str, ...]] = {
    # The first operand that a processor is given may be the second in a program.
    np.add: ("{0} + {1}", "{1} + {0}"),
    np.subtract: ("{0} - {1}",),
    np.multiply: ("{0} * {1}", "{1} * {0}"),
    np.divide: ("{0} / {1}",),
    np.negative: ("-{0}",),
    np.equal: ("{0} == {1}",),
    np.not_equal: ("{0} != {1}",),
    np.less: ("{0} < {1}",),
    np.less_equal: ("{0} <= {1}",),
    np.greater: ("{0} > {1}",),
    np.greater_equal: ("{0} >= {1}",),
    np.bitwise_and: ("{0} & {1}",),
    np.bitwise_or: ("{0} | {1}",),
    np.bitwise_xor: ("{0} ^ {1}",),
    np.invert: ("~{0}",),
    np.left_shift: ("{0} << {1}",),
    np.right_shift: ("{0} >> {1}",),
}
"""NumPy's functions as expressions of operators on its scalars, of which the first is taken that gives the same."""

_TYPES = frozenset("?bhilqBHILQfd")
"""The types, by NumPy's characters, whose scalars compute as arrays do."""


def is_scalar(shape: Leaf) -> bool:
    """Whether values of a shape can be NumPy's scalars."""
    return (
        isinstance(shape, ArrayShape)
        and not shape.dimensions
        and shape.is_array
        and shape.element_type.storage.char in _TYPES
        and shape.element_type.storage == shape.element_type.compute
    )


def operation_of(step: Step, shapes: list[Leaf]) -> str | Callable[..., Any] | None:
    """What a step computes as an expression of its operands, all of them scalars, or as a function of them; None where
    it is nothing of the kind.

    `shapes` are those of the slots of its plan.
    """
    function = step.function
    ufunc = None if function is None else ufunc_of_scalars(function)
    is_choice = function is choose
    if ufunc is None and not is_choice and not isinstance(function, OfScalars):
        return None
    if not all(is_scalar(shapes[slot]) for slot in (*step.operands, step.result)):
        return None
    if isinstance(function, OfScalars):
        return function.of_scalars
    if ufunc is None:
        return "{1} if {0} else {2}"
    shape = shapes[step.operands[0]]
    assert isinstance(shape, ArrayShape)
    return _expression(ufunc, shape.element_type.storage) or ufunc


def index_text(index: tuple[Any, ...]) -> str:
    """An index of an array as Python, without an ellipsis."""

    def part(entry: Any) -> str:
        if not isinstance(entry, slice):
            return str(entry)
        start, stop, step = ("" if end is None else str(end) for end in (entry.start, entry.stop, entry.step))
        return f"{start}:{stop}" if step in ("", "1") else f"{start}:{stop}:{step}"

    return ", ".join(part(entry) for entry in index if entry is not ...) or "()"


@cache
def _expression(ufunc: np.ufunc, dtype: DType) -> str | None:
    """The operators that give the bits, and the type, that a function gives on arrays of a type."""
    return next((text for text in _OPERATORS.get(ufunc, ()) if _agrees(ufunc, text, dtype)), None)


def _agrees(ufunc: np.ufunc, text: str, dtype: DType) -> bool:
    """Whether operators give what a function gives, of zeros, NaNs of two kinds, infinities and what overflows."""
    if dtype.kind == "f":
        bits = np.array([0, 1 << 31, 0x7FC00001, 0xFFC00002, 0x7F800000, 0xFF800000, 1, 0x3F800000], np.uint32)
        values = bits.view(np.float32).astype(dtype)
    elif dtype.kind == "b":
        values = np.array([False, True])
    else:
        limits = np.iinfo(dtype)
        values = np.array([limits.min, limits.max, 0, 1, limits.max // 3], dtype)
    try:
        with np.errstate(all="ignore"):
            for arguments in product(values, repeat=ufunc.nin):
                scalar = eval(text.format("arguments[0]", "arguments[1]"))
                array = ufunc(*map(np.asarray, arguments), out=...)
                if scalar.dtype != array.dtype or scalar.tobytes() != array.tobytes():
                    return False
    except (TypeError, AttributeError):
        # Some types lack some functions.
        return False
    return True
