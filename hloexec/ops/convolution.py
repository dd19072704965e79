"""Convolution."""

from __future__ import annotations

import attrs

from hloexec.ir import ConvolutionDimensionNumbers, Window
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.registry import opcode

__all__ = ["ConvolutionAttributes"]


@attrs.frozen
class ConvolutionAttributes:
    """`convolution_kind` names what a convolution stands for in training; it changes no value."""

    window: Window = attribute(Grammar.WINDOW, default=Window())
    dim_labels: ConvolutionDimensionNumbers = attribute(Grammar.CONVOLUTION_DIMENSIONS)
    feature_group_count: int = attribute(Grammar.INT, default=1)
    batch_group_count: int = attribute(Grammar.INT, default=1)
    convolution_kind: str = attribute(Grammar.ENUM, default="unset", choices=("unset", "fprop", "dgrad", "wgrad"))
    sparsity_config: str | None = attribute(Grammar.VERBATIM, default=None)
    operand_precision: tuple[str, ...] = attribute(
        Grammar.ENUM_LIST, default=(), choices=("default", "high", "highest", "packed_nibble")
    )


@opcode("convolution", operands=2, attributes=ConvolutionAttributes)
class Convolution:
    """out[b, o, x...] = sum over i, k... of lhs[b, i, x*stride + k*dilation - padding...] * rhs[k..., i, o]
    (XLA: Conv).
    """
