"""Steps that compute element by element."""

from __future__ import annotations

from collections.abc import Sequence

from hloexec.core.dtypes import ElementType
from hloexec.core.ir import ArrayShape
from hloexec.ops.registry import OPCODES
from hloexec.testing.bodies import PRED, Body, Step, Value


def elementwise_step(name: str) -> Step | None:
    """The step of an opcode whose operands are of one shape and whose rule tells that of the result."""
    entry = OPCODES[name]
    infer = entry.infer
    if not entry.is_elementwise or infer is None or entry.traits.probe is not None:
        return None

    def write(body: Body, kinds: tuple[ElementType, ...]) -> None:
        first = body.operand(kinds)
        operands = [first, *(same(body, first) for _ in range(entry.minimum_operands - 1))]
        shape = infer(*(value.shape for value in operands))
        assert isinstance(shape, ArrayShape)
        body.emit(shape, f"{name}({', '.join(value.name for value in operands)})")

    return Step(write)


def same(body: Body, value: Value) -> Value:
    """Another operand of a value's shape."""
    return body.operand_of(value.element_type, value.dimensions)


def orders(kind: ElementType) -> Sequence[str]:
    """The directions in which numbers of a type compare."""
    return ("EQ", "NE") if kind.is_complex else ("LT", "EQ", "NE", "GE", "GT", "LE")


def compare(body: Body, kinds: tuple[ElementType, ...]) -> None:
    lhs = body.operand(kinds)
    rhs = same(body, lhs)
    direction = body.one_of(orders(lhs.element_type))
    body.emit(lhs.shape.with_element_type(PRED), f"compare({lhs.name}, {rhs.name}), direction={direction}")


def select(body: Body, kinds: tuple[ElementType, ...]) -> None:
    on_true = body.operand(kinds)
    on_false = same(body, on_true)
    chosen = body.operand_of(PRED, on_true.dimensions)
    body.emit(on_true.shape, f"select({chosen.name}, {on_true.name}, {on_false.name})")


def convert(body: Body, kinds: tuple[ElementType, ...]) -> None:
    operand = body.operand(kinds)
    body.emit(_retyped(body, operand, kinds), f"convert({operand.name})")


def bitcast_convert(body: Body, kinds: tuple[ElementType, ...]) -> None:
    operand = body.operand(kinds)
    source = operand.element_type
    alike = [kind for kind in kinds if (kind.bits, kind.is_complex) == (source.bits, source.is_complex)]
    body.emit(_retyped(body, operand, alike), f"bitcast-convert({operand.name})")


def _retyped(body: Body, operand: Value, kinds: Sequence[ElementType]) -> ArrayShape:
    """The operand's shape with another of some element types, or its own."""
    return operand.shape.with_element_type(body.one_of(kinds))


def reduce_precision(body: Body, kinds: tuple[ElementType, ...]) -> None:
    operand = body.operand(kinds)
    exponent, mantissa = body.integer(1, 8), body.integer(0, 23)
    body.emit(operand.shape, f"reduce-precision({operand.name}), exponent_bits={exponent}, mantissa_bits={mantissa}")


def copy(body: Body, kinds: tuple[ElementType, ...]) -> None:
    operand = body.operand(kinds)
    body.emit(operand.shape, f"copy({operand.name})")
