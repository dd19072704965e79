"""Control flow as steps of a plan: calls, asynchronous or not, loops, and conditionals.

Each adds a step to a draft that runs plans of other computations, and checks that they take and give what it does.
"""

from __future__ import annotations

from hloexec.errors import VerificationError
from hloexec.exec.drafts import Draft, Frame
from hloexec.exec.plan import Branch, Conditional, Invocation, Plan, SlotTree, Step, While, leaves, map_shape
from hloexec.exec.unrolling import iterations_to_write_out
from hloexec.exec.widths import float_types
from hloexec.ir import Instruction, TupleShape
from hloexec.ops.attributes import computation_names
from hloexec.ops.registry import Role, find_opcode

__all__ = ["conditional", "inlined_computation", "invocation", "iterations_to_inline", "returned", "while_loop"]


def inlined_computation(instruction: Instruction) -> str | None:
    """The computation that an instruction stands for, where it is a call or a fusion or starts one asynchronously."""
    entry = find_opcode(instruction.opcode)
    if entry is not None and (entry.role is Role.CALL or _starts(instruction)):
        return next(computation_names(instruction.attributes), None)
    return None


def invocation(draft: Draft, frame: Frame, instruction: Instruction) -> SlotTree:
    """The value of a call of a computation that has a plan of its own."""
    operands = frame.operands(instruction)
    shape = instruction.shape
    if _starts(instruction) and isinstance(shape, TupleShape) and len(shape.elements) > 1:
        shape = shape.elements[1]
    name = next(computation_names(instruction.attributes))
    callee = draft.around.plan_as(name, draft.types(operands), float_types(shape))
    tree = map_shape(callee.computation.result_shape, draft.new_slot)
    for slot, result in zip(leaves(tree), callee.results, strict=True):
        draft.slot_shapes[slot] = callee.slot_shapes[result]
    step = Step(instruction, frame.scope, operands, tree, None, Invocation(callee))
    _check_arguments(step, callee, len(step.operands))
    draft.steps.append(step)
    return tree if not _starts(instruction) else _started(draft, instruction, operands, tree)


def returned(draft: Draft, frame: Frame, caller: Instruction, tree: SlotTree) -> SlotTree:
    """The value of a call that was inlined, given its computation's."""
    if _starts(caller):
        tree = _started(draft, caller, frame.operands(caller), tree)
    return draft.marked(frame, caller, tree)


def _starts(instruction: Instruction) -> bool:
    return instruction.opcode == "async-start"


def _started(draft: Draft, instruction: Instruction, operands: tuple[SlotTree, ...], result: SlotTree) -> SlotTree:
    """The value of an asynchronous start: operands, result, and a state that means nothing here."""
    return (operands, result, *draft.state(instruction))


def iterations_to_inline(draft: Draft, frame: Frame, instruction: Instruction) -> int:
    """How often a loop goes round whose iterations are to be steps of the draft; 0 where they are not."""
    (start,) = frame.operands(instruction)
    if draft.around.options.is_observed or draft.types((start,)) != float_types(instruction.shape):
        return 0
    flow = _flow(draft, instruction)
    if draft.around.plans[flow.body.computation.name] is not flow.body:
        return 0
    return iterations_to_write_out(flow, [draft.constants.get(slot) for slot in leaves(start)])


def _flow(draft: Draft, instruction: Instruction) -> While:
    types = float_types(instruction.shape)
    condition = draft.around.plan_as(instruction.attributes.condition, types, (None,))
    return While(condition, draft.around.plan_as(instruction.attributes.body, types, types))


def while_loop(draft: Draft, frame: Frame, instruction: Instruction) -> SlotTree:
    """The value of a loop."""
    types = float_types(instruction.shape)
    (start,) = frame.operands(instruction)
    operands = (draft.fitted(frame.scope, instruction, start, types, is_silent=True),)
    flow = _flow(draft, instruction)
    tree = draft.step(frame, instruction, operands, None, flow)
    step = draft.steps[-1]
    for plan in (flow.condition, flow.body):
        _check_arguments(step, plan, len(step.operands))
    if len(flow.body.results) != len(step.operands) or len(flow.condition.results) != 1:
        raise VerificationError(f"body and condition of %{instruction.name} do not fit its {len(step.operands)} leaves")
    return tree


def conditional(draft: Draft, frame: Frame, instruction: Instruction) -> SlotTree:
    """The value of the branch that is taken."""
    names = list(computation_names(instruction.attributes))
    operands = frame.operands(instruction)
    if len(operands) != len(names) + 1:
        raise VerificationError(f"%{instruction.name} must have one operand per branch after the first")
    branches, start = [], 1
    for name, tree in zip(names, operands[1:], strict=True):
        stop = start + len(leaves(tree))
        plan = draft.around.plan_as(name, draft.types((tree,)), float_types(instruction.shape))
        branches.append(Branch(plan, start, stop))
        start = stop
    tree = draft.step(frame, instruction, operands, None, Conditional(tuple(branches)))
    for branch in branches:
        _check_arguments(draft.steps[-1], branch.plan, branch.stop - branch.start)
    return tree


def _check_arguments(step: Step, plan: Plan, count: int) -> None:
    if plan.parameter_count != count:
        raise VerificationError(
            f"computation {plan.computation.name} takes {plan.parameter_count} arrays, but "
            f"%{step.instruction.name} gives it {count}"
        )
