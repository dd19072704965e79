"""Transfers between a device and its host: which instructions make them, in which direction, through which channel.

An infeed takes the host's next value, an outfeed hands one over. A send or recv with `is_host_transfer` does the same
on a channel; the data of a send leave at the send, those of a recv arrive at the recv-done. A recv's handle holds
nothing meanwhile, so it may travel through tuples and loops. Source: XLA, Infeed, Outfeed, Send, Recv.
"""

from __future__ import annotations

from hloexec.exec.plan import FromHost, ToHost
from hloexec.ir import Computation, Instruction

__all__ = ["TRANSFERS", "channel_of", "reason_against"]

TRANSFERS: dict[str, type[FromHost] | type[ToHost] | None] = {
    "infeed": FromHost,
    "outfeed": ToHost,
    "recv": None,
    "recv-done": FromHost,
    "send": ToHost,
    "send-done": None,
}
"""The opcodes of transfers, and the direction in which data move there, if they do."""

_FEEDS = ("infeed", "outfeed")


def channel_of(computation: Computation, instruction: Instruction) -> int | None:
    """The channel of a send, recv or one of their dones; None for feeds."""
    found = _said(computation, instruction, "channel_id")
    return found if isinstance(found, int) else None


def reason_against(computation: Computation, instruction: Instruction) -> str | None:
    """Why one device cannot make a transfer, as a clause; None where it can."""
    if instruction.opcode in _FEEDS:
        return None
    if not _said(computation, instruction, "is_host_transfer"):
        return (
            "it exchanges data with another device, and a single one has no partner (a transfer with the host says "
            "is_host_transfer=true)"
        )
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
    its: bool | int | None = getattr(before.attributes, name, None)
    return its
