"""Lowering of control flow: calls, asynchronous or not, loops, and conditionals.

Each becomes a step that runs plans of other computations, after checking that their operands and results match.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloexec.errors import VerificationError
from hloexec.ir import Instruction, TupleShape, map_shape
from hloexec.ops.attributes import computation_names
from hloexec.plan.float_widths import float_types
from hloexec.plan.program import called_computation, starts
from hloexec.plan.steps import Branch, Conditional, Invocation, Plan, Step, While
from hloexec.plan.trees import SlotTree, leaves

if TYPE_CHECKING:
    from hloexec.plan.lowering.computation import Lowering

__all__ = ["conditional", "invocation", "while_loop"]


def invocation(lowering: Lowering, instruction: Instruction) -> SlotTree:
    """The value of a call; of an asynchronous start, operands, result, and a state that means nothing here."""
    operands = lowering.operands(instruction)
    is_start = starts(instruction)
    shape = instruction.shape
    if is_start and isinstance(shape, TupleShape) and len(shape.elements) > 1:
        shape = shape.elements[1]
    name = called_computation(instruction)
    assert name is not None
    callee = lowering.context.called_plan(name, lowering.types(operands), float_types(shape))
    if len(callee.computation.parameters) != len(operands):
        raise VerificationError(
            f"computation {name} takes {len(callee.computation.parameters)} parameters, but is called with "
            f"{len(operands)}"
        )
    tree = map_shape(callee.computation.result_shape, lowering.new_slot)
    for slot, result, order in zip(leaves(tree), callee.results, callee.result_orders, strict=True):
        lowering.slot_shapes[slot] = callee.slot_shapes[result]
        if order is not None:
            lowering.orders[slot] = order
    step = lowering.add(instruction, operands, tree, None, Invocation(callee), is_silent=is_start)
    _check_arguments(step, callee, len(step.operands))
    if is_start:
        return lowering.renamed(instruction, (operands, tree, *lowering.state(instruction)))
    return tree


def while_loop(lowering: Lowering, instruction: Instruction) -> SlotTree:
    """The value of a loop."""
    types = float_types(instruction.shape)
    (start,) = lowering.operands(instruction)
    operand = lowering.converted(instruction, start, types, is_silent=True)
    condition = lowering.context.plan_as(instruction.attributes.condition, types, (None,))
    body = lowering.context.plan_as(instruction.attributes.body, types, types)
    tree = map_shape(instruction.shape, lowering.new_slot)
    step = lowering.add(instruction, (operand,), tree, None, While(condition, body))
    for plan in (condition, body):
        _check_arguments(step, plan, len(step.operands))
    if len(body.results) != len(step.operands) or len(condition.results) != 1:
        raise VerificationError(f"body and condition of %{instruction.name} do not fit its {len(step.operands)} leaves")
    return tree


def conditional(lowering: Lowering, instruction: Instruction) -> SlotTree:
    """The value of the branch that is taken."""
    names = list(computation_names(instruction.attributes))
    operands = lowering.operands(instruction)
    if len(operands) != len(names) + 1:
        raise VerificationError(f"%{instruction.name} must have one operand per branch after the first")
    branches, start = [], 1
    for name, tree in zip(names, operands[1:], strict=True):
        stop = start + len(leaves(tree))
        plan = lowering.context.plan_as(name, lowering.types((tree,)), float_types(instruction.shape))
        branches.append(Branch(plan, start, stop))
        start = stop
    result = map_shape(instruction.shape, lowering.new_slot)
    step = lowering.add(instruction, operands, result, None, Conditional(tuple(branches)))
    for branch in branches:
        _check_arguments(step, branch.plan, branch.stop - branch.start)
    return result


def _check_arguments(step: Step, plan: Plan, count: int) -> None:
    if len(plan.parameters) != count:
        raise VerificationError(
            f"computation {plan.computation.name} takes {len(plan.parameters)} arrays, but "
            f"%{step.instruction.name} gives it {count}"
        )
