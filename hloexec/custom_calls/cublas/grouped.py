"""cuBLASLt: products of groups of rows, each with a matrix of its own.

Source: XLA, GroupedGemmBackendConfig; hipBLASLt, grouped matrix products.
"""

from __future__ import annotations

from functools import lru_cache

from hloexec.custom_calls.backend_config import Fields, backend_config_field, known_fields, refused_by
from hloexec.custom_calls.cublas.matmul import (
    GEMM_FIELDS,
    GemmConfig,
    accumulation_type,
    apply_epilogue,
    check_addends,
    read_gemm_config,
    require_real,
)
from hloexec.custom_calls.registry import custom_call
from hloexec.custom_calls.shapes import in_declared_form, operand_shapes, result_shapes, with_scratch
from hloexec.errors import UnsupportedError
from hloexec.ir import Instruction, Shape
from hloexec.ops.common import array_shape, narrow
from hloexec.ops.contraction.ragged_dot import RaggedDot, RaggedDotAttributes
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy
from hloexec.values import Array

__all__ = ["GroupedGemm"]


@lru_cache(maxsize=256)
def _grouped_config(backend_config: str | None) -> tuple[GemmConfig, RaggedDotAttributes]:
    parts = ("gemm_backend_config", "ragged_dot_dimension_numbers")
    whole = backend_config_field(backend_config, "grouped_gemm_backend_config")
    gemm, ragged = map(Fields(whole).object, parts)
    known_fields(whole, parts)
    # Both hold the dimension numbers; those of the ragged dot are the ones that it is made from.
    numbers = ragged.object("dot_dimension_numbers")
    config = read_gemm_config(known_fields({**gemm.values, "dot_dimension_numbers": numbers.values}, GEMM_FIELDS))
    if config.epilogue.has_bias or config.epilogue.has_auxiliary:
        raise UnsupportedError("it has a bias or an auxiliary result (epilogue), whose shape with groups is not public")
    if config.has_largest or config.scale_mode or config.dimension_numbers.algorithm != "unset":
        raise UnsupportedError("it has damax_output, scale_mode or an algorithm, which belong to plain products")
    dot = config.dimension_numbers
    return config, RaggedDotAttributes(
        lhs_batch_dims=dot.lhs_batch_dims,
        lhs_contracting_dims=dot.lhs_contracting_dims,
        rhs_batch_dims=dot.rhs_batch_dims,
        rhs_contracting_dims=dot.rhs_contracting_dims,
        lhs_ragged_dims=ragged.whole_list("lhs_ragged_dimensions"),
        rhs_group_dims=ragged.whole_list("rhs_group_dimensions"),
        operand_precision=dot.operand_precision,
    )


def _check(instruction: Instruction) -> None:
    require_real(_grouped_config(instruction.backend_config)[0], instruction.shape)


@custom_call("__cublas$lt$groupedMatmul", is_reproducible=True)
class GroupedGemm:
    """D = activation(alpha · ragged-dot(lhs, rhs, group_sizes) + beta · C), rounded once

    Operands: lhs, rhs, the group sizes, and C where beta is not 0. Results: D and a workspace. Rows after the last
    group give 0 before alpha. Source: XLA, GroupedGemmBackendConfig; the instruction ragged-dot.
    """

    @staticmethod
    def infer(*operands: Shape, backend_config: str | None, shape: Shape) -> Shape:
        config, attributes = _grouped_config(backend_config)
        arrays = operand_shapes(operands, "the grouped gemm of this backend_config", (3 + (config.beta != 0),))
        declared = result_shapes(shape, "the grouped gemm")[0]
        product = array_shape(RaggedDot.infer(*arrays[:3], attributes=attributes, shape=declared), "the product")
        check_addends(arrays[3:], product, config)
        return in_declared_form([product], shape)

    supports = refused_by(_check)

    @staticmethod
    def evaluate(
        *operands: Array, backend_config: str | None, shape: Shape, numerics: NumericsPolicy = REFERENCE
    ) -> Array | tuple[Array, ...]:
        config, attributes = _grouped_config(backend_config)
        declared = result_shapes(shape, "the grouped gemm")[0]
        result_type = declared.element_type
        wide = result_type if config.is_plain else accumulation_type(operands, result_type, numerics)
        product = RaggedDot.evaluate(
            *operands[:3], attributes=attributes, shape=declared.with_element_type(wide), numerics=numerics
        )
        if not config.is_plain:
            addend = operands[3] if config.beta else None
            product = narrow(apply_epilogue(product, config, addend, None, numerics)[0], result_type)
        return with_scratch([product], shape)
