"""Lowering of control flow, and of communication.

Lowering of communication with other devices or the host: collectives, transfers, boundaries of manual regions.
Asynchronous pairs are executed at their start; the done instruction returns a part of the start's result.

Each becomes a step that runs plans of other computations, after checking that their operands and results match.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from hloexec.core.ir import Instruction, TupleShape, map_shape, parts_of
from hloexec.core.wording import counted
from hloexec.engine.devices.topology import (
    FromDevice,
    FromHost,
    ToHost,
    Transfer,
    all_devices,
    device_counts,
    transfer_of,
)
from hloexec.engine.plan.kernels import SlotTree, float_types, leaves
from hloexec.engine.plan.program import called_computation, starts
from hloexec.engine.plan.steps import (
    Branch,
    Communication,
    Conditional,
    DeviceNumber,
    Exchange,
    Invocation,
    Plan,
    Step,
    While,
)
from hloexec.errors import UnsupportedError, VerificationError
from hloexec.ops.attributes import computation_names
from hloexec.ops.registry import OPCODES, Entry, Role, Site, find_opcode, role_of, traits_of

if TYPE_CHECKING:
    from hloexec.engine.devices.manual_regions import Crossing
    from hloexec.engine.plan.lowering.computation import Lowering


def exchange(lowering: Lowering, instruction: Instruction) -> SlotTree:
    """The value of an instruction of role MACHINE."""
    entry = find_opcode(instruction.opcode)
    if entry is not None and entry.exchange is not None:
        return _collective(lowering, instruction, entry)
    transfer = transfer_of(lowering.computation, instruction)
    if transfer is not None:
        return _transfer(lowering, instruction, transfer)
    return lowering.renamed(instruction, lowering.zeros(instruction))


def part(lowering: Lowering, instruction: Instruction) -> SlotTree:
    """The value of an instruction of role PART."""
    if len(instruction.operands) > 1:
        return continuation(lowering, instruction)
    entry = OPCODES[instruction.opcode]
    return lowering.renamed(instruction, lowering.element(instruction, entry.traits.part))


def copy_start(lowering: Lowering, instruction: Instruction) -> SlotTree:
    """The value of an instruction of role COPY_START."""
    operand = lowering.values[instruction.operands[0]]
    return lowering.renamed(instruction, (operand, operand, *lowering.state(instruction)))


def device_number(lowering: Lowering, instruction: Instruction) -> SlotTree:
    """The value of an instruction of role PARTITION_ID or REPLICA_ID."""
    is_replica = role_of(instruction) is Role.REPLICA_ID
    return _communication(lowering, instruction, (), DeviceNumber(is_replica))


def boundary(lowering: Lowering, instruction: Instruction, arrays: Sequence[Crossing]) -> SlotTree:
    """The value where a manual region begins or ends: one exchange per array that changes."""
    trees: list[SlotTree] = []
    for operand, crossing in zip(lowering.operands(instruction), arrays, strict=True):
        tree = operand
        if not crossing.is_identity:
            operand = lowering.converted(instruction, operand, float_types(crossing.shape), is_silent=True)
            tree = lowering.new_slot(crossing.shape)
            flow = Exchange(crossing.exchange, groups=crossing.groups)
            _communicating(lowering, instruction, (operand,), tree, flow, is_silent=True)
        trees.append(tree)
    return lowering.renamed(instruction, tuple(trees) if isinstance(instruction.shape, TupleShape) else trees[0])


def meeting(lowering: Lowering, instruction: Instruction, entry: Entry) -> SlotTree:
    """The value of a library call in which all devices meet."""
    assert entry.exchange is not None
    shapes = tuple(operand.shape for operand in lowering.computation.operands_of(instruction))
    numerics = lowering.context.numerics.of(lowering.computation.name, instruction.name)
    function = Site(entry, instruction, shapes, lowering.context.callee, numerics).bound(entry.exchange)
    replicas, partitions = device_counts(lowering.context.program.module)
    flow = Exchange(function, groups=partial(all_devices, instruction, replicas * partitions))
    return _communication(lowering, instruction, lowering.operands(instruction), flow)


def _communicating(
    lowering: Lowering,
    instruction: Instruction,
    operands: tuple[SlotTree, ...],
    tree: SlotTree,
    flow: Communication,
    **how: object,
) -> Step:
    step = lowering.add(instruction, operands, tree, None, flow, **how)
    lowering.context.communication.append(step)
    return step


def _communication(
    lowering: Lowering, instruction: Instruction, operands: tuple[SlotTree, ...], flow: Communication
) -> SlotTree:
    tree = map_shape(instruction.shape, lowering.new_slot)
    _communicating(lowering, instruction, operands, tree, flow)
    return tree


def _collective(lowering: Lowering, instruction: Instruction, entry: Entry) -> SlotTree:
    assert entry.exchange is not None
    operands = lowering.operands(instruction)
    shape = instruction.shape
    has_state = entry.traits.begins
    if has_state and isinstance(shape, TupleShape):
        shape = shape.elements[1]
    types = float_types(shape)
    if len(types) == len(operands):
        operands = tuple(
            lowering.converted(instruction, operand, types[number : number + 1], is_silent=True)
            for number, operand in enumerate(operands)
        )
    # Imported late: most modules are for one device.
    from hloexec.ops.collective.groups import is_handed_on

    shapes = tuple(operand.shape for operand in lowering.computation.operands_of(instruction))
    numerics = lowering.context.numerics.of(lowering.computation.name, instruction.name)
    site_arguments = Site(entry, instruction, shapes, lowering.context.callee, numerics).given(entry.exchange)
    flow = Exchange(entry.exchange.bound(site_arguments), site_arguments.get("computations", ()))
    parts = dict(enumerate(zip(operands, parts_of(shape), strict=False)))
    kept = {
        number: operand
        for number, (operand, _) in parts.items()
        if isinstance(operand, int) and is_handed_on(number, lowering.slot_shapes[operand], instruction.attributes)
    }
    if kept:
        exchanged_trees = {
            number: map_shape(part, lowering.new_slot) for number, (_, part) in parts.items() if number not in kept
        }
        exchanged, results = tuple(parts[number][0] for number in exchanged_trees), tuple(exchanged_trees.values())
        given_tree = results[0] if len(results) == 1 else results
        _communicating(lowering, instruction, exchanged, given_tree, flow, is_silent=True)
        tree: SlotTree = tuple((exchanged_trees | kept)[number] for number in parts)
        if not has_state:
            return lowering.renamed(instruction, tree)
    else:
        tree = map_shape(shape, lowering.new_slot)
        _communicating(lowering, instruction, operands, tree, flow, is_silent=has_state)
        if not has_state:
            return tree
    before = operands[0] if len(operands) == 1 else operands
    return lowering.renamed(instruction, (before, tree, *lowering.state(instruction)))


def _transfer(lowering: Lowering, instruction: Instruction, transfer: Transfer) -> SlotTree:
    """The value of a step at which data move between the device and its host or another device."""
    operands = lowering.operands(instruction)
    if instruction.opcode == "send":
        sent = instruction.shape.elements[0] if isinstance(instruction.shape, TupleShape) else instruction.shape
        first = lowering.converted(instruction, operands[0], float_types(sent), is_silent=True)
        operands = (first, *operands[1:])
    tree = _communication(lowering, instruction, operands, transfer)
    is_incoming = isinstance(transfer, (FromHost, FromDevice))
    if is_incoming and (isinstance(tree, int) or len(tree) != 2):
        raise VerificationError(f"%{instruction.name} must have the shape (data, token[]), not {instruction.shape}")
    if isinstance(transfer, (FromHost, ToHost)):
        lowering.context.host_transfers.setdefault(transfer, lowering.steps[-1])
    return tree


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


def _check_unfinished(lowering: Lowering, instruction: Instruction, subject: str) -> None:
    """Refuse to run where something but a continuation of it uses what has not been given all of its operands."""
    name = instruction.name
    where = f"in computation {lowering.computation.name}"
    for user in lowering.computation.instructions:
        first, *others = (*user.operands, "")
        continues = role_of(user) is Role.PART and traits_of(user).opens
        if name in others or (first == name and not continues):
            raise UnsupportedError(f"%{user.name} {where} uses %{name}, which lacks {subject}")
    if lowering.computation.root_name == name:
        raise UnsupportedError(f"%{name}, the root {where}, lacks {subject}")


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
