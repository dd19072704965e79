"""Transfers between a device and its host or another device: their instructions and channels.

An infeed receives the host's next value, an outfeed sends one. A send or recv with `is_host_transfer` does the same on
a channel; any other exchanges data with another device. The data of a send leave at the send; those of a recv arrive at
the recv-done. Until then, a recv's handle holds nothing, so it may be part of tuples and loop states. Source: XLA,
Infeed, Outfeed, Send, Recv.
"""

from __future__ import annotations

from typing import TypeAlias

from hloexec.core.ir import Computation, Instruction
from hloexec.core.structs import frozen
from hloexec.engine.devices.topology import source_target_pairs


@frozen
class FromHost:
    """The value is (data, token), the data being what the host gives next."""

    channel: int | None
    """None for the infeed."""


@frozen
class ToHost:
    """The first operand is sent to the host."""

    channel: int | None
    """None for the outfeed."""


@frozen
class FromDevice:
    """The value is (data, token), the data being what another device sent; zeros where none should."""

    channel: int | None
    pairs: tuple[tuple[int, int], ...] | None
    """The sender and receiver; if the text does not say, the sender and the receiver on the channel."""


@frozen
class ToDevice:
    """The first operand is sent to another device."""

    channel: int | None
    pairs: tuple[tuple[int, int], ...] | None


HostTransfer: TypeAlias = FromHost | ToHost
Transfer: TypeAlias = HostTransfer | FromDevice | ToDevice

_INCOMING = ("infeed", "recv-done")
_OUTGOING = ("outfeed", "send")
_FEEDS = ("infeed", "outfeed")

TRANSFERS = frozenset({*_INCOMING, *_OUTGOING, "recv", "send-done"})
"""The opcodes of transfers."""


def transfer_of(computation: Computation, instruction: Instruction) -> Transfer | None:
    """What an instruction transfers; None where no data move."""
    opcode = instruction.opcode
    if opcode not in _INCOMING and opcode not in _OUTGOING:
        return None
    is_incoming = opcode in _INCOMING
    channel = channel_of(computation, instruction)
    if opcode in _FEEDS or _said(computation, instruction, "is_host_transfer"):
        return FromHost(channel) if is_incoming else ToHost(channel)
    pairs = source_target_pairs(computation, instruction)
    return FromDevice(channel, pairs) if is_incoming else ToDevice(channel, pairs)


def channel_of(computation: Computation, instruction: Instruction) -> int | None:
    """The channel of a send, recv or one of their dones; None for feeds."""
    found = _said(computation, instruction, "channel_id")
    return found if isinstance(found, int) else None


def reason_against(computation: Computation, instruction: Instruction) -> str | None:
    """Why a transfer cannot be made, as a clause; None where it can."""
    if instruction.opcode in _FEEDS or not _said(computation, instruction, "is_host_transfer"):
        return None
    if channel_of(computation, instruction) is None:
        return "it has no channel_id, so the host cannot tell which transfer it is"
    return None


def _said(computation: Computation, instruction: Instruction, name: str) -> bool | int | None:
    """An attribute of a transfer; a done that lacks it has that of its start, where that is its operand."""
    own: bool | int | None = getattr(instruction.attributes, name, None)
    start, _, suffix = instruction.opcode.rpartition("-")
    if suffix != "done" or (own is not None and own is not False) or not instruction.operands:
        return own
    before = computation.by_name.get(instruction.operands[0])
    if before is None or before.opcode != start:
        return own
    theirs: bool | int | None = getattr(before.attributes, name, None)
    return theirs
