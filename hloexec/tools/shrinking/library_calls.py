"""Library calls without a relation of their own: their shape rule is asked which sizes may change.

Dimensions of one size are taken for the same. They may change where the rule accepts other sizes for all of them, and
gives the result that the call then declares.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from hloexec.core.errors import HloError
from hloexec.core.ir import ArrayShape, Instruction, Shape, TupleShape
from hloexec.ops.library_calls.registry import CustomCall, find_custom_call
from hloexec.ops.operations import traits_of
from hloexec.ops.relations import Relating
from hloexec.tools.shrinking.primes import divisors

_SMALLEST = 2
_MOST_TRIED = 16


def relate_library_call(use: Relating, instruction: Instruction) -> None:
    """Relate the dimensions of a call by its entry's rule, or by what its shape rule accepts."""
    target = instruction.attributes.custom_call_target
    called = find_custom_call(target)
    try:
        config = None if called is None or called.config is None else called.config(instruction)
    except HloError:
        use.keep_all(f"the library call {target} is one that hloexec cannot run")
        return
    if called is not None and called.relate is not None:
        called.relate(attrs.evolve(use, config=config))
        return
    reason = f"how the dimensions of the library call {target} depend on one another is not known"
    if called is None or called.infer is None or traits_of(instruction).crosses_devices:
        use.keep_all(reason)
        return
    _relate_equal_sizes(use, instruction, called, reason)


def _relate_equal_sizes(use: Relating, instruction: Instruction, called: CustomCall, reason: str) -> None:
    by_size: dict[int, list[int]] = {}
    for value in (*use.operands, use.result):
        for axes in value.leaves.values():
            for axis in axes:
                by_size.setdefault(use.size(axis), []).append(axis)
    operands = [operand.shape for operand in use.operands]
    for size, alike in by_size.items():
        smaller = [other for other in divisors(size)[:_MOST_TRIED] if other >= _SMALLEST]
        if smaller and all(_accepts(instruction, called, operands, size, other) for other in smaller):
            use.same(alike[1:], alike[:1] * (len(alike) - 1))
        else:
            use.keep(alike, reason)


def _accepts(instruction: Instruction, called: CustomCall, operands: Sequence[Shape], size: int, other: int) -> bool:
    """Whether the call may have dimensions of another size for those of one."""
    changed = attrs.evolve(instruction, shape=_with_size(instruction.shape, size, other))
    try:
        found = called.result_shape(changed, [_with_size(operand, size, other) for operand in operands])
    except HloError:
        return False
    return found is not None and found.compatible(changed.shape)


def _with_size(shape: Shape, size: int, other: int) -> Shape:
    if isinstance(shape, TupleShape):
        return TupleShape(tuple(_with_size(element, size, other) for element in shape.elements))
    if not isinstance(shape, ArrayShape):
        return shape
    return attrs.evolve(shape, dimensions=tuple(other if each == size else each for each in shape.dimensions))
