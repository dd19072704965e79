"""Asynchronous pairs, and transfers between device, device and host.

An operation split in two takes effect at its start and hands its result over at its done; in between its value is a
tuple that holds operands, results and whatever else the backend keeps.
"""

from __future__ import annotations

import attrs

from hloexec.ir import Shape
from hloexec.ops.attributes import Grammar, OperandAlias, attribute
from hloexec.ops.registry import ANY, Role, opcode

__all__ = [
    "AsyncDoneAttributes",
    "AsyncStartAttributes",
    "CopyStartAttributes",
    "InfeedAttributes",
    "OutfeedAttributes",
    "TransferAttributes",
]


@attrs.frozen
class AsyncStartAttributes:
    async_execution_thread: str = attribute(Grammar.STRING, default="main")
    output_to_operand_aliasing: tuple[OperandAlias, ...] = attribute(Grammar.ALIASING, default=())
    calls: str = attribute(Grammar.COMPUTATION)


@attrs.frozen
class AsyncDoneAttributes:
    """Older dumps repeat the start's thread and computation; the start's count."""

    async_execution_thread: str | None = attribute(Grammar.STRING, default=None)
    calls: str | None = attribute(Grammar.COMPUTATION, default=None)


@attrs.frozen
class CopyStartAttributes:
    cross_program_prefetch_index: int | None = attribute(Grammar.INT, default=None)


@attrs.frozen
class TransferAttributes:
    """Of send, recv and their dones."""

    channel_id: int | None = attribute(Grammar.INT, default=None)
    is_host_transfer: bool = attribute(Grammar.BOOL, default=False)


@attrs.frozen
class InfeedAttributes:
    infeed_config: str = attribute(Grammar.STRING, default="")


@attrs.frozen
class OutfeedAttributes:
    outfeed_shape: Shape | None = attribute(Grammar.SHAPE, default=None)
    outfeed_config: str = attribute(Grammar.STRING, default="")


@opcode("async-start", operands=(0, ANY), attributes=AsyncStartAttributes, role=Role.MACHINE)
class AsyncStart:
    """Starts calls(operands...); the value is ((operands...), results, state...)."""


@opcode("async-update", operands=1, attributes=AsyncDoneAttributes, role=Role.MACHINE)
class AsyncUpdate:
    """The operand, a started operation, some steps later."""


@opcode("async-done", operands=1, attributes=AsyncDoneAttributes, role=Role.MACHINE)
class AsyncDone:
    """The results of a started operation."""


@opcode("copy-start", operands=1, attributes=CopyStartAttributes, role=Role.MACHINE)
class CopyStart:
    """Starts a copy; the value is (destination, source, context)."""


@opcode("copy-done", operands=1, role=Role.MACHINE)
class CopyDone:
    """The destination of a started copy."""


@opcode("send", operands=2, attributes=TransferAttributes, role=Role.MACHINE)
class Send:
    """Sends the first operand through a channel, after the token; the value is (data, context, token) (XLA: Send)."""


@opcode("send-done", operands=1, attributes=TransferAttributes, role=Role.MACHINE)
class SendDone:
    """A token, once the data has left."""


@opcode("recv", operands=1, attributes=TransferAttributes, role=Role.MACHINE)
class Recv:
    """Asks for data from a channel, after the token; the value is (data, context, token) (XLA: Recv)."""


@opcode("recv-done", operands=1, attributes=TransferAttributes, role=Role.MACHINE)
class RecvDone:
    """(data, token), once the data has arrived."""


@opcode("infeed", operands=1, attributes=InfeedAttributes, role=Role.MACHINE)
class Infeed:
    """(data, token): the next value that the host feeds (XLA: Infeed)."""


@opcode("outfeed", operands=2, attributes=OutfeedAttributes, role=Role.MACHINE)
class Outfeed:
    """Hands the first operand to the host, after the token (XLA: Outfeed)."""
