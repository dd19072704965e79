"""Transformer Engine's matrix product, which runs on cuBLASLt, and the calls of it that are refused.

Source: TransformerEngine, jax/csrc/extensions/gemm.cpp, jax/cpp_extensions/gemm.py.
"""

from __future__ import annotations

from math import prod

import numpy as np

from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import ArrayShape, Instruction, Shape, TupleShape
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.errors import EvaluationError, ShapeError, UnsupportedError
from hloexec.ops.common import narrow, widen
from hloexec.ops.contraction.dot import DotAttributes, contract
from hloexec.ops.library_calls.activations import gelu
from hloexec.ops.library_calls.ffi import Attributes
from hloexec.ops.library_calls.shapes import operand_shapes, result_shapes, zeros
from hloexec.ops.library_calls.transformer_engine.quantization import SCALINGS, as_matrix
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.registry import custom_call, refuse_custom_calls


@frozen
class _Config:
    scaling: str
    boundaries: tuple[int, int]
    transposed: tuple[bool, bool]
    has_bias: bool
    has_gelu: bool


def _config(instruction: Instruction) -> _Config:
    with Attributes(instruction.backend_config) as attributes:
        config = _Config(
            attributes.choice("scaling_mode", {number: SCALINGS[number] for number in (0, 1, 3)}),
            (attributes.integer("lhs_axis_boundary"), attributes.integer("rhs_axis_boundary")),
            (attributes.truth("lhs_transposed"), attributes.truth("rhs_transposed")),
            attributes.truth("fuse_bias"),
            attributes.truth("fuse_gelu"),
        )
        if attributes.truth("grad", False) and (config.has_bias or config.has_gelu):
            raise UnsupportedError("it asks for gradients of a bias or of gelu in addition to the product (grad)")
        if config.scaling != "none" and config.transposed != (False, True):
            raise UnsupportedError(
                "its operands have eight bits (scaling_mode) and lhs_transposed, rhs_transposed other than false, "
                "true: which of them lie in memory transposed depends on the device"
            )
        if attributes.integer("collective_op", 0):
            raise UnsupportedError("it communicates with other devices (collective_op)")
        # Whether sums of eight-bit products are promoted to f32 every so often: here they are f32 from the start.
        attributes.ignore("use_split_accumulator")
    return config


def _sides(config: _Config, lhs: tuple[int, ...], rhs: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The free dimensions of lhs, the contracted ones of either, and the free ones of rhs."""
    parts = []
    for name, dimensions, boundary in zip(("lhs", "rhs"), (lhs, rhs), config.boundaries, strict=True):
        if not 0 < boundary < len(dimensions):
            raise ShapeError(f"{name}_axis_boundary is {boundary}, which does not part dimensions {list(dimensions)}")
        parts.append((dimensions[:boundary], dimensions[boundary:]))
    left, right = parts
    free, contracted = reversed(left) if config.transposed[0] else left
    other, last = reversed(right) if config.transposed[1] else right
    return free, contracted, other, last


@custom_call("te_gemm_ffi", config=_config)
class Gemm:
    """lhs · rhs + bias, or gelu of it, rounded once from f32

    The dimensions before and after an operand's axis_boundary are those of a matrix: lhs is [free, contracted], the
    other way round where lhs_transposed, and rhs [contracted, free]. Operands: lhs, its inverse scale (f32[1]), rhs,
    its inverse scale, bias, gelu's input (for gradients), and in newer versions alpha and beta, which must be 0.
    Results: the product, an unused gradient, what gelu was applied to, workspaces. Inverse scales apply where
    scaling_mode is not 0. Source: TransformerEngine, jax/csrc/extensions/gemm.cpp (GemmFFI).
    """

    @staticmethod
    def infer(*operands: Shape, config: _Config, shape: Shape) -> Shape:
        if len(operands) not in (6, 8):
            raise ShapeError(f"te_gemm_ffi takes 6 operands, or 8 with alpha and beta, but has {len(operands)}")
        lhs, lhs_scale, rhs, rhs_scale, bias, *_ = operand_shapes(operands, "te_gemm_ffi")
        free, contracted, other, last = _sides(config, lhs.dimensions, rhs.dimensions)
        if prod(contracted) != prod(other):
            raise ShapeError(f"te_gemm_ffi contracts dimensions {list(contracted)} with {list(other)}")
        if config.scaling != "none" and not (lhs_scale.element_count and rhs_scale.element_count):
            raise ShapeError("te_gemm_ffi must have an inverse scale for each operand of eight bits")
        if config.has_bias and bias.element_count != prod(last):
            raise ShapeError(f"the bias of te_gemm_ffi must have {prod(last)} elements, but is {bias}")
        declared = result_shapes(shape, "te_gemm_ffi", 3)
        declared[0] = ArrayShape(declared[0].element_type, (*free, *last))
        if config.has_gelu:
            declared[2] = ArrayShape(declared[2].element_type, (*free, *last))
        return TupleShape(tuple(declared))

    @staticmethod
    def evaluate(*operands: Array, config: _Config, shape: Shape, numerics: NumericsPolicy) -> tuple[Array, ...]:
        declared = result_shapes(shape, "te_gemm_ffi")
        lhs, lhs_scale, rhs, rhs_scale, bias, _, *factors = operands
        numbers = DotAttributes(
            lhs_contracting_dims=(0 if config.transposed[0] else 1,),
            rhs_contracting_dims=(1 if config.transposed[1] else 0,),
        )
        wide = element_type_of(np.result_type(*(element_type_of(operand.dtype).accumulate for operand in (lhs, rhs))))
        product = contract(
            as_matrix(lhs, config.boundaries[0]), as_matrix(rhs, config.boundaries[1]), numbers, wide, numerics=numerics
        )
        with np.errstate(all="ignore"):
            if config.scaling != "none":
                product = product * (widen(lhs_scale).reshape(-1)[0] * widen(rhs_scale).reshape(-1)[0])
            if factors:
                alpha, beta = factors
                if alpha.size != 1 or widen(beta).any():
                    raise EvaluationError(
                        "te_gemm_ffi must have one alpha and a beta of 0, since there is nothing to add to"
                    )
                product = product * widen(alpha).reshape(-1)[0].astype(product.dtype)
            if config.has_bias:
                product = product + widen(bias).reshape(-1)
            value = gelu(product) if config.has_gelu else product
        results = zeros(declared)
        results[0] = narrow(value, declared[0].element_type).reshape(declared[0].dimensions)
        if config.has_gelu:
            results[2] = narrow(product, declared[2].element_type).reshape(declared[2].dimensions)
        return tuple(results)


_OPAQUE = (
    "te_transpose te_cast_transpose te_dbias_cast_transpose te_quantize te_dequantize te_act_lu te_act_lu_fp8 "
    "te_dact_lu te_dact_lu_dbias_cast_transpose te_dgated_act_lu_cast_transpose te_gelu te_gelu_fp8 te_dgelu "
    "te_gated_gelu te_gated_gelu_fp8 te_dgated_gelu te_dgated_gelu_cast_transpose te_dgelu_dbias_cast_transpose "
    "te_gated_silu te_gated_silu_fp8 te_dgated_silu te_gemm te_layernorm_forward te_layernorm_forward_fp8 "
    "te_layernorm_backward te_rmsnorm_forward te_rmsnorm_forward_fp8 te_rmsnorm_backward te_scaled_softmax_forward "
    "te_scaled_softmax_backward te_scaled_masked_softmax_forward te_scaled_masked_softmax_backward "
    "te_scaled_upper_triang_masked_softmax_forward te_scaled_upper_triang_masked_softmax_backward "
    "te_fused_attn_forward te_fused_attn_backward te_self_fused_attn_forward te_self_fused_attn_backward "
    "te_cross_fused_attn_forward te_cross_fused_attn_backward"
).split()
_TYPED = (
    "te_grouped_gemm_ffi te_grouped_gemm_d2h_group_sizes_ffi te_grouped_quantize_ffi te_rht_amax_ffi "
    "te_collective_gemm_init_ffi te_dact_lu_dbias_cast_transpose_ffi te_dgated_act_lu_cast_transpose_ffi"
).split()


for _targets, _reason in (
    (
        _OPAQUE,
        "its backend_config is a packed structure whose layout changes from version to version; newer versions of "
        "Transformer Engine (those whose calls end in _ffi) say the same in words",
    ),
    (_TYPED, "what it does with its operands changes from version to version, and its attributes do not say which"),
):
    refuse_custom_calls(
        *_targets,
        reason=_reason,
        documentation="""
        Calls of Transformer Engine whose configs do not say what to compute: all refused.

        Source: TransformerEngine 0.x and 1.x, jax/csrc/extensions/packing.cpp.
        """,
    )
