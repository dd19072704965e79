"""Arithmetic of arrays without dimensions, in generated Python: as operators on NumPy's scalars.

A scalar operator takes a tenth of the time of the NumPy function that it stands for, and gives the same bits: IEEE 754
says what a sum is, and integers of NumPy's types wrap. It does not say which of two NaNs a sum is, so an operator is
used only if it turns out to choose as the function does.
"""

from __future__ import annotations

import operator
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

_OPERATORS: dict[np.ufunc, tuple[str, Callable[..., Any]]] = {
    np.add: ("{} + {}", operator.add),
    np.subtract: ("{} - {}", operator.sub),
    np.multiply: ("{} * {}", operator.mul),
    np.divide: ("{} / {}", operator.truediv),
    np.negative: ("-{}", operator.neg),
    np.equal: ("{} == {}", operator.eq),
    np.not_equal: ("{} != {}", operator.ne),
    np.less: ("{} < {}", operator.lt),
    np.less_equal: ("{} <= {}", operator.le),
    np.greater: ("{} > {}", operator.gt),
    np.greater_equal: ("{} >= {}", operator.ge),
    np.bitwise_and: ("{} & {}", operator.and_),
    np.bitwise_or: ("{} | {}", operator.or_),
    np.bitwise_xor: ("{} ^ {}", operator.xor),
    np.invert: ("~{}", operator.invert),
    np.left_shift: ("{} << {}", operator.lshift),
    np.right_shift: ("{} >> {}", operator.rshift),
}
"""NumPy's functions as operators on its scalars."""
_COMMUTATIVE = {np.add: ("{1} + {0}", operator.add), np.multiply: ("{1} * {0}", operator.mul)}
"""The same with operands in the other order: the first that a processor is given may be the second in a program."""

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
    """The operator that gives the bits, and the type, that a function gives on arrays of a type."""
    if ufunc in _OPERATORS and _agrees(ufunc, _OPERATORS[ufunc][1], dtype):
        return _OPERATORS[ufunc][0]
    if ufunc in _COMMUTATIVE and _agrees(ufunc, lambda lhs, rhs: _COMMUTATIVE[ufunc][1](rhs, lhs), dtype):
        return _COMMUTATIVE[ufunc][0]
    return None


def _agrees(ufunc: np.ufunc, function: Callable[..., Any], dtype: DType) -> bool:
    """Whether an operator gives what a function gives, of zeros, NaNs of two kinds, infinities and what overflows."""
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
            for given in product(values, repeat=ufunc.nin):
                scalar, array = function(*given), ufunc(*map(np.asarray, given), out=...)
                if scalar.dtype != array.dtype or scalar.tobytes() != array.tobytes():
                    return False
    except (TypeError, AttributeError):
        # Some types lack some functions.
        return False
    return True
