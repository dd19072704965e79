"""cuBLASLt: products of groups of rows, each with a matrix of its own.

Source: XLA, GroupedGemmBackendConfig; hipBLASLt, grouped matrix products.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import attrs

from hloexec.custom_calls.backend_config import backend_config_field
from hloexec.custom_calls.cublas.matmul import (
    GemmConfig,
    accumulation_type,
    apply_epilogue,
    check_addends,
    read_gemm_config,
    result_type_of,
    workspaces,
)
from hloexec.custom_calls.registry import custom_call
from hloexec.dtypes import element_type_of
from hloexec.errors import ShapeError, UnsupportedError
from hloexec.ir import ArrayShape, Instruction, Shape, TupleShape
from hloexec.ops.common import array_shape, narrow
from hloexec.ops.contraction.ragged_dot import RaggedDot, RaggedDotAttributes
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy
from hloexec.values import Array

__all__ = ["GroupedGemm"]


@lru_cache(maxsize=256)
def _grouped_config(backend_config: str | None) -> tuple[GemmConfig, RaggedDotAttributes]:
    whole = backend_config_field(backend_config, "grouped_gemm_backend_config")
    gemm, ragged = (_object(whole, name) for name in ("gemm_backend_config", "ragged_dot_dimension_numbers"))
    for name in whole:
        if name not in ("gemm_backend_config", "ragged_dot_dimension_numbers"):
            raise UnsupportedError(f"its backend_config has the field {name}, which hloexec does not know")
    # Both hold the dimension numbers; those of the ragged dot are the ones that it is made from.
    numbers = _object(ragged, "dot_dimension_numbers")
    config = read_gemm_config(gemm | {"dot_dimension_numbers": numbers})
    if config.epilogue.has_bias or config.epilogue.has_auxiliary:
        raise UnsupportedError("it has a bias or an auxiliary result (epilogue), whose shape with groups is not public")
    if config.has_largest or config.scale_mode or config.dimension_numbers.algorithm != "unset":
        raise UnsupportedError("it has damax_output, scale_mode or an algorithm, which belong to plain products")
    return config, RaggedDotAttributes(
        lhs_batch_dims=config.dimension_numbers.lhs_batch_dims,
        lhs_contracting_dims=config.dimension_numbers.lhs_contracting_dims,
        rhs_batch_dims=config.dimension_numbers.rhs_batch_dims,
        rhs_contracting_dims=config.dimension_numbers.rhs_contracting_dims,
        lhs_ragged_dims=_dimensions(ragged, "lhs_ragged_dimensions"),
        rhs_group_dims=_dimensions(ragged, "rhs_group_dimensions"),
        operand_precision=config.dimension_numbers.operand_precision,
    )


def _object(config: Mapping[str, object], name: str) -> dict[str, object]:
    value = config.get(name)
    if not isinstance(value, dict):
        raise UnsupportedError(f"{name} of its backend_config must be an object, but is {value!r}")
    return value


def _dimensions(config: Mapping[str, Any], name: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in config.get(name, ()))
    except (TypeError, ValueError, OverflowError):
        raise UnsupportedError(f"{name} of its backend_config must be a list of whole numbers") from None


@custom_call("__cublas$lt$groupedMatmul", is_reproducible=True)
class GroupedGemm:
    """D = activation(alpha · ragged-dot(lhs, rhs, group_sizes) + beta · C), rounded once

    Operands: lhs, rhs, the group sizes, and C where beta is not 0. Results: D and a workspace. Rows after the last
    group give 0 before alpha. Source: XLA, GroupedGemmBackendConfig; the instruction ragged-dot.
    """

    @staticmethod
    def infer(*operands: Shape, backend_config: str | None, shape: Shape) -> Shape:
        config, attributes = _grouped_config(backend_config)
        expected = 3 + (config.beta != 0)
        outputs = shape.elements if isinstance(shape, TupleShape) else (shape,)
        if len(operands) != expected or not outputs:
            raise ShapeError(
                f"the grouped gemm must have {expected} operands by its backend_config and a result, but has "
                f"{len(operands)} and {shape}"
            )
        first = array_shape(outputs[0], "the result of the grouped gemm")
        result = array_shape(RaggedDot.infer(*operands[:3], attributes=attributes, shape=first), "the product")
        check_addends([array_shape(operand, "the addend") for operand in operands[3:]], result, config)
        return TupleShape((result, *outputs[1:])) if isinstance(shape, TupleShape) else result

    @staticmethod
    def supports(instruction: Instruction) -> str | None:
        try:
            config, _ = _grouped_config(instruction.backend_config)
            result = result_type_of(instruction.shape)
        except (UnsupportedError, ShapeError) as error:
            return error.message
        if config.alpha.imag or not result.is_floating:
            return f"it scales a result of {result} by {config.alpha}"
        return None

    @staticmethod
    def evaluate(
        *operands: Array, backend_config: str | None, shape: Shape, numerics: NumericsPolicy = REFERENCE
    ) -> Array | tuple[Array, ...]:
        config, attributes = _grouped_config(backend_config)
        given = [ArrayShape(element_type_of(operand.dtype), operand.shape) for operand in operands]
        GroupedGemm.infer(*given, backend_config=backend_config, shape=shape)
        result_type = result_type_of(shape)
        wide = result_type if config.is_plain else accumulation_type(operands, result_type, numerics)
        first = array_shape(shape.elements[0] if isinstance(shape, TupleShape) else shape, "the result")
        product = RaggedDot.evaluate(
            *operands[:3], attributes=attributes, shape=attrs.evolve(first, element_type=wide), numerics=numerics
        )
        if not config.is_plain:
            addend = operands[3] if config.beta else None
            product = narrow(apply_epilogue(product, config, addend, None, numerics)[0], result_type)
        return (product, *workspaces(shape, 1)) if isinstance(shape, TupleShape) else product
