"""The cost of contractions, and of sums: length of the sums, number of operations, bytes accessed.

Contractions are dot, ragged-dot, convolution, and library calls that compute a matrix product. Everything is derived
from shapes and attributes; nothing runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hloexec.core.ir import ArrayShape, Computation, Instruction, Shape, flat_shapes
from hloexec.core.structs import frozen
from hloexec.core.wording import counted
from hloexec.errors import UnsupportedError, warn
from hloexec.ops.library_calls.configs import json_object
from hloexec.ops.registry import operation_name, traits_of
from hloexec.ops.traits import Sums


@frozen
class Contraction:
    """One contraction, run once.

    `contracted_size` is the number of products that each element of the result sums up; `flops` counts a multiplication
    and an addition per product, without those of a convolution that fall into padding; `byte_count` adds up operands
    and result, as hloexec holds them.
    """

    kind: str
    contracted_size: int
    flops: int
    byte_count: int


def contraction_of(instruction: Instruction, operand_shapes: Sequence[Shape]) -> Contraction | None:
    """What an instruction costs as a contraction; None where it is not one, or does not say enough."""
    if len(operand_shapes) < 2:
        return None
    result = next(iter(flat_shapes(instruction.shape)), None)
    lhs, rhs = operand_shapes[:2]
    if not (isinstance(result, ArrayShape) and isinstance(lhs, ArrayShape) and isinstance(rhs, ArrayShape)):
        return None
    rule = traits_of(instruction).contraction
    size = None if rule is None else rule(instruction, lhs, rhs, result)
    if size is None:
        return None
    bytes_touched = lhs.byte_size + rhs.byte_size + result.byte_size
    return Contraction(operation_name(instruction), size.contracted, 2 * size.products, bytes_touched)


def flops_of(computation: Computation, instruction: Instruction) -> int:
    """Those of an instruction that is a contraction, and the terms of one that sums up floats; of others 0."""
    operands = [operand.shape for operand in computation.operands_of(instruction)]
    cost = contraction_of(instruction, operands)
    if cost is not None:
        return cost.flops
    if traits_of(instruction).sums is Sums.FOLDED:
        floats = (shape for shape in operands if isinstance(shape, ArrayShape) and shape.element_type.is_floating)
        return sum(shape.element_count for shape in floats)
    return 0


def trip_count_of(instruction: Instruction) -> int | None:
    """How often a while loop runs, where its backend_config says so (`known_trip_count`)."""
    count = _nested(instruction.backend_config, "known_trip_count", "n")
    try:
        return max(0, int(count))
    except (TypeError, ValueError):
        return None


def note_trip_count(loop: Instruction, times: int) -> None:
    """Warn where a loop has run otherwise than its backend_config says; compilers rely on that."""
    stated = trip_count_of(loop)
    if stated is not None and stated != times:
        warn(f"the loop %{loop.name} says that it runs {counted(stated, 'time')} (known_trip_count), but runs {times}")


def _nested(text: str | None, *keys: str) -> Any:
    """What a JSON text holds under nested keys, or None."""
    if text is None or '"' not in text:
        return None
    try:
        current: Any = json_object(text)
    except UnsupportedError:
        return None
    for key in keys:
        if not isinstance(current, dict):
            return None
        current = current.get(key)
    return current
