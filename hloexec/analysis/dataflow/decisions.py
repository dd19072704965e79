"""Which results depend on decisions about floats: roundings to whole numbers, comparisons, conversions to integers,
sorts. Beside a tie, a rounding error as small as any changes what is decided."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hloexec.analysis.dataflow.open_values import depending_leaves
from hloexec.core.ir import ArrayShape, Computation, Instruction, Module, Shape, flat_shapes
from hloexec.ops.registry import Role, find_opcode, is_elementwise, role_of, traits_of


def decided_leaves(module: Module) -> frozenset[tuple[int, ...]]:
    """The leaves of the entry's result that depend on a decision about floats."""
    return _leaves_of(module, decides)


def ordered_leaves(module: Module) -> frozenset[tuple[int, ...]]:
    """Those that depend on an order of floats: on an argmax, a sort, the largest ones."""
    return _leaves_of(module, lambda where, each: decides(where, each) and not is_elementwise(each))


def steep_leaves(module: Module) -> frozenset[tuple[int, ...]]:
    """Those that depend on a quotient or a pole: near zero, its values are far apart for numbers that are as near as
    rounding, but it has all values between."""
    return _leaves_of(module, lambda _, instruction: _is_steep(instruction))


def _leaves_of(module: Module, test: Callable[[Computation, Instruction], bool]) -> frozenset[tuple[int, ...]]:
    places = {
        (computation.name, each.name) for computation in module for each in computation if test(computation, each)
    }
    return depending_leaves(module, places) if places else frozenset()


def _is_steep(instruction: Instruction) -> bool:
    traits = traits_of(instruction)
    return (traits.is_quotient or traits.pole is not None) and _has_floats(instruction.shape)


def decides(computation: Computation, instruction: Instruction) -> bool:
    """Whether an instruction decides something about floats."""
    if role_of(instruction) not in (Role.KERNEL, Role.CUSTOM_CALL):
        return False
    entry, traits = find_opcode(instruction.opcode), traits_of(instruction)
    is_sorting = traits.only_compared or (entry is not None and entry.order is not None)
    if not traits.jumps and not is_sorting and _has_floats_alone(instruction.shape):
        return False
    return any(_has_floats(operand.shape) for operand in computation.operands_of(instruction))


def _has_floats_alone(shape: Shape) -> bool:
    return all(_are_floats(shape))


def _has_floats(shape: Shape) -> bool:
    return any(_are_floats(shape))


def _are_floats(shape: Shape) -> Iterator[bool]:
    """Of each array of a shape."""
    for leaf in flat_shapes(shape):
        if isinstance(leaf, ArrayShape) and leaf.is_array:
            yield leaf.element_type.is_inexact
