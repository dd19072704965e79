"""Asynchronous pairs, and transfers between device, device and host.

An operation that is split in two is executed at its start and returns its result at its done; in between, its value is
a tuple that holds operands, results and other state of the backend.
"""

from __future__ import annotations

from collections.abc import Mapping

from hloexec.core.ir import ArrayShape, Instruction, Shape, TupleShape
from hloexec.core.structs import frozen
from hloexec.errors import ShapeError
from hloexec.ops.attributes import Grammar, OperandAlias, attribute
from hloexec.ops.common import require
from hloexec.ops.registry import ANY, Programs, ProgramShape, Role, opcode
from hloexec.ops.relations import Relating
from hloexec.ops.signatures import (
    TOKEN_SHAPE,
    U32_SHAPE,
    element_of_operand,
    require_parameters,
    require_same_shape,
    require_token,
    require_tuple,
)


@frozen
class AsyncStartAttributes:
    async_execution_thread: str = attribute(Grammar.STRING, default="main")
    output_to_operand_aliasing: tuple[OperandAlias, ...] = attribute(Grammar.ALIASING, default=())
    calls: str = attribute(Grammar.COMPUTATION)


@frozen
class AsyncDoneAttributes:
    """Older dumps repeat the start's thread and computation; the start's count."""

    async_execution_thread: str | None = attribute(Grammar.STRING, default=None)
    calls: str | None = attribute(Grammar.COMPUTATION, default=None)


@frozen
class AsyncUpdateAttributes(AsyncDoneAttributes):
    output_to_operand_aliasing: tuple[OperandAlias, ...] = attribute(Grammar.ALIASING, default=())


@frozen
class CopyStartAttributes:
    cross_program_prefetch_index: int | None = attribute(Grammar.INT32, default=None)


@frozen
class TransferAttributes:
    """Of send, recv and their dones."""

    channel_id: int | None = attribute(default=None)
    is_host_transfer: bool = attribute(default=False)


@frozen
class InfeedAttributes:
    infeed_config: str = attribute(Grammar.STRING, default="")


@frozen
class OutfeedAttributes:
    outfeed_shape: Shape | None = attribute(Grammar.SHAPE, default=None)
    outfeed_config: str = attribute(Grammar.STRING, default="")


@opcode(
    "async-start",
    operands=(0, ANY),
    attributes=AsyncStartAttributes,
    role=Role.ASYNC_START,
    begins=True,
    opens=True,
    owns_tuple=True,
)
class AsyncStart:
    """Starts calls(operands...); the value is ((operands...), results, state...).

    Where there are fewer operands than parameters, an async-update gives the others, and the computation runs then."""

    @staticmethod
    def well_formed(*operands: Shape, shape: Shape) -> None:
        parts = require_tuple(shape, 2, "what is started")
        require(
            isinstance(parts[0], TupleShape), f"element 0 of what is started, its operands, is no tuple but {parts[0]}"
        )

    @staticmethod
    def infer(*operands: Shape, shape: Shape, computations: Programs) -> Shape:
        parts = require_tuple(shape, 2, "async-start")
        require_same_shape(parts[0], TupleShape(operands), "element 0 of async-start, its operands,")
        program = computations[0]
        if len(operands) < len(program.parameters):
            program = ProgramShape(program.parameters[: len(operands)], parts[1])
        require_parameters(program, operands, "the computation of async-start")
        require_same_shape(parts[1], program.result, "element 1 of async-start, its result,")
        return shape


@opcode(
    "async-update",
    operands=(1, ANY),
    attributes=AsyncUpdateAttributes,
    role=Role.PART,
    aliases=(((), ()),),
    opens=True,
    owns_tuple=True,
)
class AsyncUpdate:
    """The operand, a started operation, some steps later; the others are further operands of what it calls.

    Further operands may come with another state, and with the shape of a result that was () before."""

    well_formed = AsyncStart.well_formed

    @staticmethod
    def infer(operand: Shape, *further: Shape, shape: Shape) -> Shape:
        before, *_ = require_tuple(operand, 2, "the operand of async-update")
        if not further:
            return operand
        _, *others = require_tuple(shape, 2, "async-update")
        return TupleShape((TupleShape((*require_tuple(before, 0, "its element 0"), *further)), *others))


@opcode(
    "async-done", operands=1, attributes=AsyncDoneAttributes, role=Role.PART, aliases=(((), (1,)),), owns_tuple=True
)
class AsyncDone:
    """The results of a started operation, which may come through tuples, loops, branches and calls."""

    infer = element_of_operand("async-done", 1)


@opcode(
    "copy-start", operands=1, attributes=CopyStartAttributes, role=Role.COPY_START, aliases=(((1,), ()),), opens=True
)
class CopyStart:
    """Starts a copy; the value is (destination, source, context)."""

    @staticmethod
    def infer(operand: Shape, *, shape: Shape) -> Shape:
        destination, source, *_ = require_tuple(shape, 2, "copy-start")
        require_same_shape(destination, operand, "element 0 of copy-start, its destination,")
        require_same_shape(source, operand, "element 1 of copy-start, its source,")
        return shape


@opcode("copy-done", operands=1, role=Role.PART, aliases=(((), (0,)),))
class CopyDone:
    """The destination of a started copy."""

    infer = element_of_operand("copy-done", 0)


@opcode("send", operands=2, attributes=TransferAttributes, role=Role.MACHINE, aliases=(((0,), ()),), opens=True)
class Send:
    """Sends the first operand on a channel, after the token; the value is (data, context, token) (XLA: Send)."""

    @staticmethod
    def relate(use: Relating) -> None:
        use.same_values(use.operands[0], use.result.part(0))
        use.channel(use.attributes.channel_id, use.operands[0])

    @staticmethod
    def infer(data: Shape, token: Shape) -> Shape:
        require_token(token, "operand 1 of send")
        return TupleShape((data, U32_SHAPE, TOKEN_SHAPE))


@opcode("send-done", operands=1, attributes=TransferAttributes, role=Role.MACHINE)
class SendDone:
    """A token, once the data has left."""

    @staticmethod
    def relate(use: Relating) -> None:
        """A token has no dimensions."""

    @staticmethod
    def infer(operand: Shape) -> Shape:
        require_token(_handle(operand, "send-done")[2], "element 2 of the operand of send-done")
        return TOKEN_SHAPE


@opcode("recv", operands=1, attributes=TransferAttributes, role=Role.MACHINE, opens=True)
class Recv:
    """Requests data on a channel, after the token; the value is (data, context, token) (XLA: Recv)."""

    @staticmethod
    def relate(use: Relating) -> None:
        use.channel(use.attributes.channel_id, use.result.part(0))

    @staticmethod
    def infer(token: Shape, *, shape: Shape) -> Shape:
        require_token(token, "operand 0 of recv")
        data, context, done = _handle(shape, "recv")
        require_token(done, "element 2 of recv")
        return TupleShape((data, context, TOKEN_SHAPE))


@opcode("recv-done", operands=1, attributes=TransferAttributes, role=Role.MACHINE, aliases=(((0,), (0,)),))
class RecvDone:
    """(data, token), once the data has arrived."""

    @staticmethod
    def relate(use: Relating) -> None:
        use.same_values(use.operands[0].part(0), use.result.part(0))

    @staticmethod
    def infer(operand: Shape) -> Shape:
        return TupleShape((_handle(operand, "recv-done")[0], TOKEN_SHAPE))


@opcode("infeed", operands=1, attributes=InfeedAttributes, role=Role.MACHINE)
class Infeed:
    """(data, token): the next value that the host sends (XLA: Infeed)."""

    @staticmethod
    def well_formed(*operands: Shape, shape: Shape) -> None:
        require_tuple(shape, 1, "infeed")

    @staticmethod
    def relate(use: Relating) -> None:
        use.keep_all("it is exchanged with the host")

    @staticmethod
    def infer(token: Shape, *, shape: Shape) -> Shape:
        require_token(token, "operand 0 of infeed")
        data, *rest = require_tuple(shape, 2, "infeed")
        require(len(rest) == 1, f"infeed must have the shape (data, token[]), not {shape}")
        return TupleShape((data, TOKEN_SHAPE))


@opcode("outfeed", operands=2, attributes=OutfeedAttributes, role=Role.MACHINE)
class Outfeed:
    """Sends the first operand to the host, after the token (XLA: Outfeed)."""

    @staticmethod
    def relate(use: Relating) -> None:
        use.keep_all("it is exchanged with the host")

    @staticmethod
    def infer(data: Shape, token: Shape, *, attributes: OutfeedAttributes) -> Shape:
        require_token(token, "operand 1 of outfeed")
        if attributes.outfeed_shape is not None:
            require_same_shape(data, attributes.outfeed_shape, "operand 0 of outfeed")
        return TOKEN_SHAPE


def start_of(instruction: Instruction, by_name: Mapping[str, Instruction]) -> Instruction | None:
    """The async-start that an async-update or async-done goes on from, where it is one of this computation that the
    value has not left since; else None."""
    origin = _origin(instruction, by_name)
    return origin if origin is not None and origin.opcode == "async-start" else None


def is_over(instruction: Instruction, by_name: Mapping[str, Instruction]) -> bool:
    """Whether an async-update or async-done goes on from what is done already, or from itself."""
    origin = _origin(instruction, by_name)
    return origin is None or origin.opcode == "async-done"


def late_operands_fault(update: Instruction, program: ProgramShape | None) -> str | None:
    """Why the operands that an async-update brings do not fit the computation that was started, or its result."""
    shape = update.shape
    if program is None or not isinstance(shape, TupleShape) or len(shape.elements) < 2:
        return None
    operand_shape, result, *_ = shape.elements
    operands = operand_shape.elements if isinstance(operand_shape, TupleShape) else ()
    try:
        require(
            len(operands) <= len(program.parameters),
            f"what was started takes {len(program.parameters)} operands, but has {len(operands)} after async-update",
        )
        signature = ProgramShape(program.parameters[: len(operands)], program.result)
        require_parameters(signature, operands, "the computation that async-update goes on with")
        if len(operands) == len(program.parameters):
            require_same_shape(result, program.result, "element 1 of async-update, its result,")
    except ShapeError as error:
        return error.message
    return None


def _origin(instruction: Instruction, by_name: Mapping[str, Instruction]) -> Instruction | None:
    """What gives the value that an async-update or async-done goes on with, updates aside; None where these go round in
    a cycle, or the operand is not known."""
    seen = set()
    while instruction.opcode in ("async-update", "async-done") and instruction.name not in seen:
        seen.add(instruction.name)
        before = by_name.get(next(iter(instruction.operands), ""))
        if before is None or before.opcode == "async-done":
            return before
        instruction = before
    return None if instruction.name in seen else instruction


def _handle(shape: Shape, opcode_name: str) -> tuple[Shape, Shape, Shape]:
    """The parts (data, context, token) of a transfer's handle."""
    data, context, token = (*require_tuple(shape, 3, f"the handle of {opcode_name}"),)[:3]
    is_context = isinstance(context, ArrayShape) and context.element_type is U32_SHAPE.element_type
    require(is_context, f"element 1 of the handle of {opcode_name} must be u32[], but has shape {context}")
    return data, context, token
