"""Calls that compute nothing: promises about values to a compiler, assertions, and orders of side effects."""

from __future__ import annotations

from typing import Any

import numpy as np

from hloexec.custom_calls.ffi import checked_attributes
from hloexec.custom_calls.registry import custom_call
from hloexec.errors import EvaluationError
from hloexec.ir import Computation, Instruction, Shape, TupleShape
from hloexec.ops.common import array_shape, require
from hloexec.ops.signatures import TOKEN_SHAPE
from hloexec.values import TOKEN, Array, Token

__all__: list[str] = []


@custom_call("AssumeGatherIndicesInBound", "AssumeScatterIndicesInBound")
class IndicesInBound:
    """out = operand, indices of a gather or a scatter that are promised to be in range.

    Source: XLA, despecializer, which turns the call into a copy.
    """

    @staticmethod
    def infer(operand: Shape) -> Shape:
        return operand

    @staticmethod
    def forwards(computation: Computation, instruction: Instruction) -> tuple[str, ...]:
        return instruction.operands


@custom_call("stablehlo.shape_refinement_operand_wrapper", is_reproducible=True)
class ShapeRefinementOperand:
    """The first operand, whose shape the second one tells: a mark that refinement leaves and takes away.

    Source: StableHLO, stablehlo/transforms/StablehloRefineArguments.cpp.
    """

    @staticmethod
    def infer(operand: Shape, dimensions: Shape) -> Shape:
        return operand

    @staticmethod
    def evaluate(operand: object, dimensions: object) -> Any:
        return operand


@custom_call("control_dep", "dce_sink")
class Order:
    """An empty tuple: the first operand comes before the second (control_dep), or the operand stays (dce_sink).

    Source: JAX, jax.experimental.control_deps and jax.lax.dce_sink.
    """

    @staticmethod
    def infer(*operands: Shape) -> Shape:
        return TupleShape(())

    @staticmethod
    def evaluate(*operands: object) -> tuple[()]:
        return ()


@custom_call("__xla_gpu_assert")
class Assertion:
    """A token, or EvaluationError with the config's message where the operand, a pred[], is false.

    Source: XLA, gpu/runtime_intrinsics; DynamicPadder's checks of sizes at run time.
    """

    @staticmethod
    def supports(instruction: Instruction) -> None:
        _message(instruction.backend_config)

    @staticmethod
    def infer(condition: Shape) -> Shape:
        array = array_shape(condition, "what is asserted")
        require(
            array.rank == 0 and array.element_type.name == "pred", f"what is asserted must be pred[], but is {array}"
        )
        return TOKEN_SHAPE

    @staticmethod
    def evaluate(condition: Array, *, backend_config: str | None) -> Token:
        if not np.all(condition):
            raise EvaluationError(f"the module asserts something that does not hold: {_message(backend_config)}")
        return TOKEN


def _message(backend_config: str | None) -> str:
    """The message: an attribute, or in older calls the whole config."""
    text = backend_config or ""
    if text.startswith("{"):
        return str(checked_attributes(text, {"error_msg": lambda value: isinstance(value, str)})["error_msg"])
    return text
