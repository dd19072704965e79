"""Lowering of control flow: calls, asynchronous or not, loops, and conditionals.

Each becomes a step that runs plans of other computations, after checking that their operands and results match.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hloexec.core.ir import Instruction, TupleShape, map_shape
from hloexec.core.wording import counted
from hloexec.engine.plan.kernels import SlotTree, float_types, leaves
from hloexec.engine.plan.program import called_computation, starts
from hloexec.engine.plan.steps import Branch, Conditional, Invocation, Plan, Step, While
from hloexec.errors import UnsupportedError, VerificationError
from hloexec.ops.attributes import computation_names
from hloexec.ops.registry import Role, role_of, traits_of

if TYPE_CHECKING:
    from hloexec.engine.plan.lowering.computation import Lowering


def invocation(lowering: Lowering, instruction: Instruction) -> SlotTree:
    """The value of a call; of an asynchronous start, operands, result, and a state that means nothing here."""
    name = called_computation(instruction)
    assert name is not None
    run = _begun if starts(instruction) else called
    return run(lowering, instruction, name, lowering.operands(instruction))


def continuation(lowering: Lowering, instruction: Instruction) -> SlotTree:
    """The value of an asynchronous operation that is given further operands."""
    from hloexec.ops.control.asynchronous import start_of

    begun = start_of(instruction, lowering.computation.by_name)
    if begun is None:
        raise UnsupportedError(
            f"%{instruction.name} in computation {lowering.computation.name} gives operands to an operation that was "
            f"not started in this computation"
        )
    name = called_computation(begun)
    assert name is not None
    before, further = lowering.element(instruction, (0,)), lowering.operands(instruction)[1:]
    return _begun(lowering, instruction, name, (*(before if isinstance(before, tuple) else (before,)), *further))


def _begun(lowering: Lowering, instruction: Instruction, name: str, operands: tuple[SlotTree, ...]) -> SlotTree:
    """(operands, result, state...) of what runs once all of its operands are there."""
    missing = len(lowering.context.program.module.by_name[name].parameters) - len(operands)
    if missing > 0:
        _check_unfinished(lowering, instruction, f"{counted(missing, 'operand')} of {name}")
        return lowering.renamed(instruction, (operands, *lowering.state(instruction, 1)))
    result = called(lowering, instruction, name, operands)
    return lowering.renamed(instruction, (operands, result, *lowering.state(instruction)))


def _check_unfinished(lowering: Lowering, instruction: Instruction, what: str) -> None:
    """Refuse to run where something but a continuation of it uses what has not been given all of its operands."""
    name = instruction.name
    where = f"in computation {lowering.computation.name}"
    for user in lowering.computation.instructions:
        first, *others = (*user.operands, "")
        continues = role_of(user) is Role.PART and traits_of(user).opens
        if name in others or (first == name and not continues):
            raise UnsupportedError(f"%{user.name} {where} uses %{name}, which lacks {what}")
    if lowering.computation.root_name == name:
        raise UnsupportedError(f"%{name}, the root {where}, lacks {what}")


def called(lowering: Lowering, instruction: Instruction, name: str, operands: tuple[SlotTree, ...]) -> SlotTree:
    """What a computation gives for these operands."""
    shape, is_silent = instruction.shape, role_of(instruction) in (Role.ASYNC_START, Role.PART)
    if is_silent and isinstance(shape, TupleShape) and len(shape.elements) > 1:
        shape = shape.elements[1]
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
    step = lowering.add(instruction, operands, tree, None, Invocation(callee), is_silent=is_silent)
    _check_arguments(step, callee, len(step.operands))
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
