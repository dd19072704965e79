"""What has to do with other devices or the host as steps of a plan: collectives, transfers, borders of manual regions.

Asynchronous pairs take effect where they start; what ends them hands over a part of what the start gave.
"""

from __future__ import annotations

from collections.abc import Sequence

from hloexec.errors import VerificationError
from hloexec.exec.binding import bound
from hloexec.exec.borders import Crossing
from hloexec.exec.drafts import Draft, Frame
from hloexec.exec.flow_steps import invocation
from hloexec.exec.plan import (
    Communication,
    DeviceNumber,
    Exchange,
    FromDevice,
    FromHost,
    HostTransfer,
    SlotTree,
    Step,
    ToDevice,
    ToHost,
    map_shape,
)
from hloexec.exec.transfers import transfer_of
from hloexec.exec.widths import float_types
from hloexec.ir import Instruction, TupleShape
from hloexec.ops.registry import Opcode, find_opcode

__all__ = ["FORWARDED", "border", "exchange"]

FORWARDED = {
    "all-gather-done": (1,),
    "all-reduce-done": (),
    "async-done": (1,),
    "async-update": (),
    "collective-permute-done": (1,),
    "copy-done": (0,),
}
"""Machine opcodes that give an element of their operand, at this index."""

_STARTED = frozenset({"all-gather-start", "collective-permute-start"})
"""Collectives whose value is (operands, results, state...)."""


def exchange(draft: Draft, frame: Frame, instruction: Instruction) -> SlotTree:
    """The value of an instruction of role MACHINE."""
    opcode = instruction.opcode
    if opcode in FORWARDED:
        return draft.marked(frame, instruction, frame.element(instruction, FORWARDED[opcode]))
    if opcode == "copy-start":
        operand = frame.values[instruction.operands[0]]
        return draft.marked(frame, instruction, (operand, operand, *draft.state(instruction)))
    if opcode == "async-start":
        return invocation(draft, frame, instruction)
    if opcode in ("partition-id", "replica-id"):
        return _communication(draft, frame, instruction, (), DeviceNumber(opcode == "replica-id"))
    entry = find_opcode(opcode)
    if entry is not None and entry.exchange is not None:
        return _collective(draft, frame, instruction, entry)
    transfer = transfer_of(frame.scope.computation, instruction)
    if transfer is not None:
        return _transfer(draft, frame, instruction, transfer)
    return draft.marked(frame, instruction, draft.zeros(instruction))


def _communication(
    draft: Draft, frame: Frame, instruction: Instruction, operands: tuple[SlotTree, ...], flow: Communication
) -> SlotTree:
    tree = draft.step(frame, instruction, operands, None, flow)
    draft.around.communication.append(draft.steps[-1])
    return tree


def _collective(draft: Draft, frame: Frame, instruction: Instruction, entry: Opcode) -> SlotTree:
    assert entry.exchange is not None
    operands = frame.operands(instruction)
    shape = instruction.shape
    has_state = instruction.opcode in _STARTED
    if has_state and isinstance(shape, TupleShape):
        shape = shape.elements[1]
    types = float_types(shape)
    if len(types) == len(operands):
        operands = tuple(
            draft.fitted(frame.scope, instruction, operand, types[number : number + 1], is_silent=True)
            for number, operand in enumerate(operands)
        )
    kernel = bound(draft.around, frame.scope.computation, instruction, entry.exchange, entry.exchange_needs)
    tree = map_shape(shape, draft.new_slot)
    step = Step(instruction, frame.scope, operands, tree, None, Exchange(kernel), is_silent=has_state)
    draft.steps.append(step)
    draft.around.communication.append(step)
    if not has_state:
        return tree
    given = operands[0] if len(operands) == 1 else operands
    return draft.marked(frame, instruction, (given, tree, *draft.state(instruction)))


def border(draft: Draft, frame: Frame, instruction: Instruction, arrays: Sequence[Crossing]) -> SlotTree:
    """The value where a manual region begins or ends: one exchange per array that changes."""
    found: list[SlotTree] = []
    for operand, crossing in zip(frame.operands(instruction), arrays, strict=True):
        tree = operand
        if not crossing.is_identity:
            types = float_types(crossing.shape)
            operand = draft.fitted(frame.scope, instruction, operand, types, is_silent=True)
            tree = draft.new_slot(crossing.shape)
            flow = Exchange(crossing.exchange, crossing.groups)
            step = Step(instruction, frame.scope, (operand,), tree, None, flow, is_silent=True)
            draft.steps.append(step)
            draft.around.communication.append(step)
        found.append(tree)
    return draft.marked(frame, instruction, tuple(found) if isinstance(instruction.shape, TupleShape) else found[0])


def _transfer(
    draft: Draft, frame: Frame, instruction: Instruction, transfer: HostTransfer | FromDevice | ToDevice
) -> SlotTree:
    """The value of a step at which data move between the device and its host or another device."""
    operands = frame.operands(instruction)
    if instruction.opcode == "send":
        sent = instruction.shape.elements[0] if isinstance(instruction.shape, TupleShape) else instruction.shape
        operands = (
            draft.fitted(frame.scope, instruction, operands[0], float_types(sent), is_silent=True),
            *operands[1:],
        )
    tree = _communication(draft, frame, instruction, operands, transfer)
    is_incoming = isinstance(transfer, (FromHost, FromDevice))
    if is_incoming and (isinstance(tree, int) or len(tree) != 2):
        raise VerificationError(f"%{instruction.name} must have the shape (data, token[]), not {instruction.shape}")
    if isinstance(transfer, (FromHost, ToHost)):
        draft.around.host_transfers.setdefault(transfer, draft.steps[-1])
    return tree
