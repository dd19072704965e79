"""Elementwise kernels for operands whose element types and shapes are known: all that can be decided is decided once.

What is left to do on each call is the formula and the conversions that it needs: for f32, f64 and most integers that is
the bare NumPy function. The caller has NumPy's warnings off. Results have the bits that `evaluate` gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import methodcaller
from typing import Any

import numpy as np

from hloexec.dtypes import DType, ElementType
from hloexec.ir import ArrayShape
from hloexec.ops.common import narrow_unchecked, rounds_directly, values_of_patterns, widen
from hloexec.values import Array

__all__ = ["around_formula", "keeping_arrays", "widening"]

Function = Callable[..., Any]


def around_formula(formula: Function, shape: ArrayShape, operand_shapes: Sequence[ArrayShape]) -> Function:
    """Widen the operands, apply a formula of compute types that takes nothing else, narrow the result to `shape`."""
    types = [operand.element_type for operand in operand_shapes]
    result = shape.element_type
    if isinstance(formula, np.ufunc):
        given = formula.resolve_dtypes((*(entry.compute for entry in types), None))[-1]
        function = keeping_arrays(formula) if shape.rank == 0 else formula
        narrowing = None if given == result.storage else _narrowing(given, result)
        return _chained(function, [widening(entry) for entry in types], narrowing)
    function = _chained(formula, [widening(entry) for entry in types], partial(_narrowed, result))
    if all(operand.rank for operand in operand_shapes):
        return function
    return partial(_on_vectors, function, shape.rank == 0)


def keeping_arrays(ufunc: np.ufunc) -> Function:
    """A NumPy function that gives arrays for arrays without dimensions, too, instead of scalars."""
    if np.lib.NumpyVersion(np.__version__) >= "2.3.0":
        return partial(ufunc, out=...)
    return lambda *operands: np.asarray(ufunc(*operands))


def widening(element_type: ElementType) -> Function | None:
    """What `widen` does to arrays of an element type; None where it does nothing."""
    if not element_type.is_narrow:
        return None
    if element_type.is_floating and element_type.name != "bf16":
        return partial(_value_of_pattern, values_of_patterns(element_type), f"u{element_type.byte_size}")
    return methodcaller("astype", element_type.compute)


def _value_of_pattern(values: Array, pattern: str, array: Array) -> Array:
    return np.asarray(values.take(array.view(pattern), mode="clip"))


def _narrowing(given: DType, element_type: ElementType) -> Function:
    """What `narrow` does to arrays of a NumPy type."""
    is_direct = rounds_directly(given, element_type)
    return methodcaller("astype", element_type.storage) if is_direct else partial(_narrowed, element_type)


def _narrowed(element_type: ElementType, array: Array) -> Array:
    return array if array.dtype == element_type.storage else narrow_unchecked(array, element_type)


def _chained(formula: Function, widenings: Sequence[Function | None], narrowing: Function | None) -> Function:
    """One function of as many operands as there are widenings."""
    narrowed = narrowing or _itself
    if not any(widenings):
        return formula if narrowing is None else lambda *operands: narrowed(formula(*operands))
    widen_lhs, *others = (entry or _itself for entry in widenings)
    if not others:
        return lambda operand: narrowed(formula(widen_lhs(operand)))
    if len(others) == 1:
        widen_rhs = others[0]
        return lambda lhs, rhs: narrowed(formula(widen_lhs(lhs), widen_rhs(rhs)))
    return lambda *operands: narrowed(formula(*map(widen, operands)))


def _itself(array: Array) -> Array:
    return array


def _on_vectors(function: Function, is_scalar: bool, *operands: Array) -> Array:
    """A function whose formula takes no arrays without dimensions, on operands that may be such."""
    given = [operand.reshape(1) if operand.ndim == 0 else operand for operand in operands]
    result: Array = function(*given)
    # A called computation is given operands with the dimensions of its batch in front.
    return result.reshape(()) if is_scalar and all(operand.ndim == 0 for operand in operands) else result
