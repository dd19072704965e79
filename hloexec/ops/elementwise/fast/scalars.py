"""Kernels of single numbers that have a form for NumPy's scalars beside the one for arrays.

A call of a NumPy function on an array without dimensions takes ten times as long as an operator on a scalar. A form for
scalars decides the usual cases by operators, and leaves the others to the kernel of arrays: both give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import numpy as np

from hloexec.core.structs import frozen

Function = Callable[..., Any]
_Formula = TypeVar("_Formula", bound=Function)

_FORMS: dict[Function, Function] = {}


@frozen
class OfScalars:
    """A kernel of arrays without dimensions, and the function that gives its result from NumPy's scalars, as one."""

    function: Function
    of_scalars: Function

    def __call__(self, *operands: Any) -> Any:
        return self.function(*operands)


def decided_by(form: Function, function: Function) -> OfScalars:
    """A kernel with a form that gives None where the kernel is to be asked."""

    def of_scalars(*operands: Any) -> Any:
        found = form(*operands)
        return function(*map(np.asarray, operands))[()] if found is None else found

    return OfScalars(function, of_scalars)


def on_scalars(form: Function) -> Callable[[_Formula], _Formula]:
    """Declare the form of a formula."""

    def declare(formula: _Formula) -> _Formula:
        _FORMS[formula] = form
        return formula

    return declare


def form_of(formula: Function) -> Function | None:
    """The declared form of a formula."""
    return _FORMS.get(formula.func if isinstance(formula, partial) else formula)


def _has_one_zero(number: Any) -> bool:
    return isinstance(number, (np.integer, np.bool_))


def larger_scalar(lhs: Any, rhs: Any) -> Any:
    """The larger of two numbers. Zeros of either sign, and NaN, are not decided."""
    if lhs > rhs:
        return lhs
    return rhs if lhs < rhs or (lhs == rhs and (rhs or _has_one_zero(rhs))) else None


def smaller_scalar(lhs: Any, rhs: Any) -> Any:
    """The smaller of two numbers. Zeros of either sign, and NaN, are not decided."""
    if lhs < rhs:
        return lhs
    return rhs if lhs > rhs or (lhs == rhs and (rhs or _has_one_zero(rhs))) else None


def clamp_scalars(low: Any, operand: Any, high: Any) -> Any:
    """The operand moved to lie between bounds that are in order. Zeros of either sign, and NaN, are not decided."""
    if not low <= high:
        return None
    found = low if operand < low else high if operand > high else operand
    return found if found == found and (found or _has_one_zero(found)) else None


def divide_scalars(lhs: Any, rhs: Any) -> Any:
    """The quotient by a positive integer: ⌈x / y⌉ = ⌊(x + y − 1) / y⌋, whose sum does not overflow for x < 0."""
    if rhs > 0:
        return lhs // rhs if lhs >= 0 else (lhs + (rhs - 1)) // rhs
    return None


def remainder_scalars(lhs: Any, rhs: Any) -> Any:
    """The remainder by a positive integer: Python's has the sign of the divisor."""
    if rhs > 0:
        rest = lhs % rhs
        return rest - rhs if lhs < 0 and rest else rest
    return None


def shift_scalar_left(lhs: Any, rhs: Any) -> Any:
    """lhs · 2^rhs; a negative amount is not decided."""
    return lhs << rhs if rhs >= 0 else None


def shift_scalar_right(lhs: Any, rhs: Any) -> Any:
    """⌊lhs / 2^rhs⌋ where the sign of neither counts."""
    return lhs >> rhs if lhs >= 0 and rhs >= 0 else None
