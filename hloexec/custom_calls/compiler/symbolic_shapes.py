"""What exported modules with symbolic dimensions hold until their shapes are refined.

An operation whose sizes are values, as `jax.export` writes it for dimensions that are not known yet, has its sizes as
operands. StableHLO's shape refinement replaces it by the plain operation; XLA has no implementation either.
"""

from __future__ import annotations

from typing import Any

from hloexec.custom_calls.registry import custom_call
from hloexec.errors import UnsupportedError
from hloexec.ir import Instruction, Shape

__all__: list[str] = []

_REASON = (
    "it stands for an operation whose sizes are values, which is replaced once they are known: export the function at "
    "shapes that are, or refine the shapes of the module before XLA reads it, as jax.export's call does"
)


@custom_call(
    "stablehlo.dynamic_reduce_window",
    "stablehlo.dynamic_rng_bit_generator",
    "stablehlo.dynamic_top_k",
    "stablehlo.dynamic_approx_top_k",
    "dynamic_ducc_fft",
)
class SizesAsOperands:
    """The operation of that name, with sizes that are operands. Refused.

    Source: StableHLO, stablehlo/transforms/StablehloRefineShapes.cpp; JAX, jax2tf shape polymorphism.
    """

    @staticmethod
    def supports(instruction: Instruction) -> str | None:
        return _REASON

    @staticmethod
    def evaluate(*operands: object) -> Any:
        raise UnsupportedError(_REASON)


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
