"""Which results depend on decisions about floats: roundings to whole numbers, comparisons, conversions to integers,
sorts. Beside a tie, a rounding error as small as any changes what is decided."""

from __future__ import annotations

from hloexec.dataflow.open_values import depending_leaves
from hloexec.ir import Computation, Instruction, Module, Shape, leaf_shapes
from hloexec.operations import traits_of
from hloexec.ops.registry import Role, find_opcode, role_of

__all__ = ["decided_leaves", "decides"]


def decided_leaves(module: Module) -> frozenset[tuple[int, ...]]:
    """The leaves of the entry's result that depend on a decision about floats."""
    places = {
        (computation.name, instruction.name)
        for computation in module
        for instruction in computation
        if decides(computation, instruction)
    }
    return depending_leaves(module, places) if places else frozenset()


def decides(computation: Computation, instruction: Instruction) -> bool:
    """Whether an instruction decides something about floats."""
    if role_of(instruction) not in (Role.KERNEL, Role.CUSTOM_CALL):
        return False
    entry, traits = find_opcode(instruction.opcode), traits_of(instruction)
    is_sorting = traits.only_compared or (entry is not None and entry.order is not None)
    if not traits.jumps and not is_sorting and _is_all_inexact(instruction.shape):
        return False
    return any(_has_inexact(operand.shape) for operand in computation.operands_of(instruction))


def _is_all_inexact(shape: Shape) -> bool:
    return all(leaf.element_type.is_inexact for _, leaf in leaf_shapes(shape) if leaf.is_array)


def _has_inexact(shape: Shape) -> bool:
    return any(leaf.element_type.is_inexact for _, leaf in leaf_shapes(shape) if leaf.is_array)
