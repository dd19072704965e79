"""What is added to a matrix product and applied to it before it is rounded: alpha, beta, a bias, an activation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hloexec.core.dtypes import ElementType, element_type_of
from hloexec.core.ir import ArrayShape
from hloexec.core.values import Array
from hloexec.ops.common import require, widen
from hloexec.ops.library_calls.cublas.config import GemmConfig
from hloexec.ops.policies.policy import NumericsPolicy


def check_addends(addends: Sequence[ArrayShape], result: ArrayShape, config: GemmConfig) -> None:
    """ShapeError where the addend or the bias, those of them that there are, do not fit the result."""
    if config.beta:
        addend, *addends = addends
        fits = addend.dimensions == result.dimensions
        require(fits, f"the addend of the gemm must have the result's shape {result}, but is {addend}")
    for bias in addends:
        fits = bias.dimensions == result.dimensions[result.rank - bias.rank :]
        require(fits, f"the bias of the gemm must have the last dimensions of {result}, but is {bias}")


def accumulation_type(operands: Sequence[Array], result_type: ElementType, numerics: NumericsPolicy) -> ElementType:
    """What everything before the rounding is done in: the widest that the result or a factor accumulates in.

    Under `exact` f64, or c128.
    """
    dtype = result_type.accumulate
    if numerics.is_exact and (result_type.is_floating or result_type.is_complex):
        dtype = np.result_type(dtype, np.float64)
    elif result_type.is_floating:
        dtype = np.result_type(dtype, *(element_type_of(operand.dtype).accumulate for operand in operands[:2]))
    return element_type_of(dtype)


def apply_epilogue(
    product: Array, config: GemmConfig, addend: Array | None, bias: Array | None, numerics: NumericsPolicy
) -> list[Array]:
    """activation(alpha · product + beta · addend + bias), and for an _AUX epilogue its argument, not yet rounded.

    The product's memory is used up.
    """
    dtype = product.dtype
    with np.errstate(all="ignore"):
        total = product
        if config.alpha != 1:
            total = _times(total, config.alpha)
        if addend is not None:
            wide = widen(addend).astype(dtype, copy=False)
            total = np.add(total, wide if config.beta == 1 else _times(wide, config.beta), out=total)
        if bias is not None:
            total = np.add(total, widen(bias).astype(dtype, copy=False), out=total)
        activation = config.epilogue.activation
        if activation is None:
            values = [total]
        else:
            values = [activation.exact(total) if numerics.is_exact else activation.usual(total)]
    return [*values, total] if config.epilogue.has_auxiliary else values


def _times(array: Array, factor: complex) -> Array:
    """Complex numbers in parts: how NumPy rounds their products depends on the processor."""
    if array.dtype.kind != "c":
        return np.asarray(array * array.dtype.type(factor.real))
    result = np.empty_like(array)
    real, imag = (array.real.dtype.type(part) for part in (factor.real, factor.imag))
    result.real = array.real * real - array.imag * imag if imag else array.real * real
    result.imag = array.real * imag + array.imag * real if imag else array.imag * real
    return result
