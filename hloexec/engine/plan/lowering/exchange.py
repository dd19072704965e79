"""Lowering of communication with other devices or the host: collectives, transfers, boundaries of manual regions.

Asynchronous pairs are executed at their start; the done instruction returns a part of the start's result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hloexec.core.ir import Instruction, TupleShape, map_shape, parts_of
from hloexec.engine.devices.transfers import FromDevice, FromHost, ToHost, Transfer, transfer_of
from hloexec.engine.plan.kernels import SlotTree, float_types
from hloexec.engine.plan.lowering.flow import continuation
from hloexec.engine.plan.steps import Communication, DeviceNumber, Exchange, Step
from hloexec.errors import VerificationError
from hloexec.ops.registry import OPCODES, Entry, Role, Site, find_opcode, role_of

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
    found: list[SlotTree] = []
    for operand, crossing in zip(lowering.operands(instruction), arrays, strict=True):
        tree = operand
        if not crossing.is_identity:
            operand = lowering.converted(instruction, operand, float_types(crossing.shape), is_silent=True)
            tree = lowering.new_slot(crossing.shape)
            flow = Exchange(crossing.exchange, groups=crossing.groups)
            _communicating(lowering, instruction, (operand,), tree, flow, is_silent=True)
        found.append(tree)
    return lowering.renamed(instruction, tuple(found) if isinstance(instruction.shape, TupleShape) else found[0])


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
    given = Site(entry, instruction, shapes, lowering.context.callee, numerics).given(entry.exchange)
    flow = Exchange(entry.exchange.bound(given), given.get("computations", ()))
    parts = dict(enumerate(zip(operands, parts_of(shape), strict=False)))
    kept = {
        number: operand
        for number, (operand, _) in parts.items()
        if isinstance(operand, int) and is_handed_on(number, lowering.slot_shapes[operand], instruction.attributes)
    }
    if kept:
        found = {
            number: map_shape(part, lowering.new_slot) for number, (_, part) in parts.items() if number not in kept
        }
        exchanged, results = tuple(parts[number][0] for number in found), tuple(found.values())
        given_tree = results[0] if len(results) == 1 else results
        _communicating(lowering, instruction, exchanged, given_tree, flow, is_silent=True)
        tree: SlotTree = tuple((found | kept)[number] for number in parts)
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
