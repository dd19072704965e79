"""Names and traits of instructions, whether opcodes or library calls."""

from __future__ import annotations

from hloexec.core.ir import Computation, Instruction
from hloexec.ops.registry import Role, entry_of, find_opcode
from hloexec.ops.traits import NO_TRAITS, Traits


def operation_name(instruction: Instruction) -> str:
    """The opcode, or the target of a library call."""
    entry = find_opcode(instruction.opcode)
    is_call = entry is not None and entry.role is Role.CUSTOM_CALL
    return str(instruction.attributes.custom_call_target) if is_call else instruction.opcode


def exchanges(instruction: Instruction) -> bool:
    """Whether devices see one another's operands: in a collective, and at the boundary of a manual region."""
    entry = find_opcode(instruction.opcode)
    return (entry is not None and entry.exchange is not None) or traits_of(instruction).crosses_devices


def is_elementwise(instruction: Instruction) -> bool:
    """Whether each element of the result is computed from those of the operands in its place."""
    entry = find_opcode(instruction.opcode)
    return entry is not None and entry.is_elementwise


def traits_of(instruction: Instruction) -> Traits:
    """The traits of an instruction's opcode, or of the library call that it is; none of those that are not known."""
    entry = entry_of(instruction)
    return NO_TRAITS if entry is None else entry.traits


def forwarded_names(computation: Computation, instruction: Instruction) -> tuple[str, ...]:
    """The instructions whose values the result of a library call begins with, where it hands values over."""
    entry = entry_of(instruction)
    if entry is None or entry.forwards is None or entry.reason_against(instruction) is not None:
        return ()
    return entry.forwards(computation, instruction)
