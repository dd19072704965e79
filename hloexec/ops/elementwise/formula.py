"""What an elementwise opcode computes, and how it chooses and raises to powers.

NumPy's `where` branches at each element, which takes up to twenty times as long as selecting bits if the processor
cannot predict the branch: on_false ^ ((on_true ^ on_false) & mask).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from hloexec.core.dtypes import DType, ElementType
from hloexec.core.values import Array

Function = Callable[..., Any]
Formula = Callable[..., Any]
"""Compute-type arrays to a compute-type array."""
Chosen = Callable[[Any, ElementType], Formula | None]
"""From an instruction's attributes and the element type of its first operand, a formula that needs nothing else."""


class ByKind:
    """A formula for floats, others for integers and complex numbers where that is not theirs, too."""

    def __init__(self, floating: Formula, integral: Formula | None = None, complex_: Formula | None = None) -> None:
        integral, complex_ = integral or floating, complex_ or floating
        self.formulas = {"f": floating, "i": integral, "u": integral, "c": complex_}
        """By the kinds of NumPy's types."""

    def __call__(self, *operands: Array) -> Any:
        return self.formulas[operands[0].dtype.kind](*operands)


_FEW = 1 << 11
"""So few elements take less time than several calls of NumPy."""


def choose(pred: Array, on_true: Array, on_false: Array) -> Array:
    """on_true where pred, else on_false, of one type; either may be one element, for all of them."""
    mask_dtype = None if pred.size < _FEW else mask_type(on_true.dtype)
    if mask_dtype is None or on_true.dtype != on_false.dtype:
        return np.where(pred, on_true, on_false)
    if any(operand.size != 1 and operand.shape != pred.shape for operand in (on_true, on_false)):
        return np.where(pred, on_true, on_false)
    # Sums of what is chosen are taken in the order in which it lies in memory: that of an operand that does.
    laid_out = (branch for branch in (on_true, on_false) if branch.shape == pred.shape and any(branch.strides))
    chosen = np.empty_like(next(laid_out, pred), on_true.dtype)
    choose_by_mask(mask_of(pred, mask_dtype), on_true, on_false, chosen)
    return chosen


def mask_type(dtype: DType) -> DType | None:
    """The type of masks that choose among elements of a type; None for those that are wider than NumPy's integers."""
    return np.dtype(f"i{dtype.itemsize}") if dtype.itemsize <= 8 else None


def mask_of(pred: Array, dtype: DType) -> Array:
    """All bits where pred, none elsewhere, as integers of a type."""
    mask = np.empty_like(pred, dtype)
    mask_into(pred, mask)
    return mask


def mask_into(pred: Array, out: Array) -> None:
    """All bits where pred, none elsewhere, into an array of integers."""
    np.negative(pred.view(np.int8), out=out)


def choose_by_mask(mask: Array, on_true: Array, on_false: Array, out: Array) -> None:
    """The same by a mask of pred; `out` may be `on_true`, and must not share memory with the operands otherwise."""
    word = mask.dtype
    taken, kept, bits = on_true.view(word), on_false.view(word), out.view(word)
    if kept.size == 1 and not kept.item():
        np.bitwise_and(mask, taken, bits)
        return
    if taken.size == kept.size == 1:
        # Their bits differ by the same everywhere.
        np.bitwise_and(mask, taken ^ kept, bits)
    else:
        np.bitwise_xor(taken, kept, bits)
        np.bitwise_and(mask, bits, bits)
    np.bitwise_xor(bits, kept, bits)


def power(base: Array, exponent: Array) -> Array:
    """base to the power exponent, squares rounded once.

    NumPy has other formulas for an exponent that is a single number, or one repeated by strides of 0, which are right
    for squares alone (√x is not x to the power ½ at −0 and −∞), and round otherwise than its general one. Here each
    element uses its own.
    """
    if exponent.size == 1 or (exponent.size and not any(exponent.strides)):
        if exponent.item(0) == 2:
            return np.asarray(np.multiply(base, base))
        exponent = np.full(np.broadcast_shapes(base.shape, exponent.shape), exponent[(0,) * exponent.ndim])
        return np.asarray(np.power(base, exponent))
    result = np.asarray(np.power(base, exponent))
    squares = exponent == 2
    if squares.any():
        np.multiply(base, base, out=result, where=squares)
    return result
