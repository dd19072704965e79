"""Calls that say something about a value and leave it as it is; the compiler acts on them and removes them."""

from __future__ import annotations

from typing import Any

from hloexec.custom_calls.registry import custom_call
from hloexec.errors import ShapeError
from hloexec.ir import Shape

__all__ = ["Annotation"]


@custom_call("Sharding", "LayoutConstraint", "MoveToHost", "MoveToDevice", "annotate_device_placement")
class Annotation:
    """out = operand: how it is partitioned, laid out, or which memory holds it (XLA: sharding_propagation.cc,
    layout_assignment.cc, host_memory_offload_annotations.h)."""

    @staticmethod
    def evaluate(operand: Any) -> Any:
        return operand

    @staticmethod
    def infer(*operands: Shape) -> Shape:
        if len(operands) != 1:
            raise ShapeError(f"an annotation is about one operand, this one has {len(operands)}")
        return operands[0]
