"""The fast variant of gather: its kernel, made before the run."""

from __future__ import annotations

from collections.abc import Callable

from hloexec.core.ir import ArrayShape
from hloexec.core.values import Array
from hloexec.ops.indexing.gather import GatherAttributes, gathering_of
from hloexec.ops.registry import fast


@fast("gather")
class FastGather:
    """For start indices and an operand of known sizes."""

    @staticmethod
    def bind(*, attributes: GatherAttributes, operand_shapes: tuple[ArrayShape, ...]) -> Callable[..., Array]:
        operand, indices = operand_shapes
        return gathering_of(attributes, operand.dimensions, attributes.slice_sizes, indices.dimensions)
