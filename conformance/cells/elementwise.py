"""Elementwise operations: exact ones bit for bit, mathematical functions against their exact values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from conformance.cell import EXACT, Array, Check, Correct, Example, shape_of
from conformance.cells.generator import Generator
from conformance.references import COMPLEX_BINARY, COMPLEX_UNARY, INTEGER, REAL_BINARY, REAL_UNARY, reference
from conformance.values import crossed, numbers, random_shape, special
from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.ops.common import narrow

_PARTS = {"c64": "f32", "c128": "f64"}
_WITH_PARTS = {"f32": "c64", "f64": "c128"}
_DIRECTIONS = ("EQ", "NE", "GE", "GT", "LE", "LT")
_FEW = 400
"""Elements of an example whose exact values come from mpmath."""
_PRECISIONS = ((5, 2), (8, 7), (5, 10), (2, 0), (3, 1), (1, 3), (11, 3))


def _like(shape: str, element_type: str) -> str:
    return element_type + shape[shape.index("[") :]


def _example(
    opcode: str,
    element_type: str,
    operands: tuple[Array, ...],
    *,
    result: str = "",
    attributes: str = "",
    check: Check = EXACT,
) -> Example:
    shape = shape_of(max(operands, key=np.ndim))
    names = ", ".join(f"${number}" for number in range(len(operands)))
    rest = f", {attributes}" if attributes else ""
    text = _like(shape, result or element_type)
    return Example(opcode, element_type, text, f"{opcode}({names}){rest}", operands, check=check)


def _operand_sets(name: str, count: int, generator: np.random.Generator, arity: int) -> Iterator[tuple[Array, ...]]:
    """Special values in every combination, then arrays of random shapes."""
    values = special(name, generator)
    if arity == 3:
        values = values[:: max(1, len(values) // 9)]
    yield crossed(*[values] * arity)
    for _ in range(count - 1):
        shape = random_shape(generator)
        yield tuple(numbers(name, generator, shape) for _ in range(arity))


def _exact(arity: int) -> Generator:
    def generate(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
        for operands in _operand_sets(name, count, generator, arity):
            yield _example(opcode, name, operands, check=_integer_check(opcode, name))

    return generate


def _integer_check(opcode: str, name: str) -> Check:
    """Python's integers decide where the operands are integers."""
    bits, formula = ELEMENT_TYPES[name].bits, INTEGER.get(opcode)
    if not ELEMENT_TYPES[name].is_integral or formula is None:
        return EXACT
    return Correct(lambda *operands: np.frompyfunc(lambda *values: formula(*values, bits), len(operands), 1)(*operands))


def _arithmetic(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    """multiply and divide round parts of complex numbers more than once."""
    if not ELEMENT_TYPES[name].is_complex:
        yield from _exact(2)(opcode, name, generator, count)
        return
    for _ in range(count):
        operands = (_complex(name, generator, _FEW), _complex(name, generator, _FEW))
        yield _example(opcode, name, operands, check=Correct(COMPLEX_BINARY[opcode]))


def _complex(name: str, generator: np.random.Generator, count: int) -> Array:
    """Finite numbers of all directions, whose moduli lie between 1e-8 and 5."""
    scale = 10.0 ** generator.uniform(-8, 0.7, count)
    return np.asarray(scale * np.exp(1j * generator.uniform(-np.pi, np.pi, count))).astype(ELEMENT_TYPES[name].storage)


def _function(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    entry = ELEMENT_TYPES[name]
    if entry.is_complex:
        if opcode not in COMPLEX_UNARY:
            yield _example(opcode, name, (_complex(name, generator, 4),))
            return
        for _ in range(count):
            yield _example(opcode, name, (_complex(name, generator, _FEW // 2),), check=Correct(COMPLEX_UNARY[opcode]))
        return
    in_double, exact, low, high = REAL_UNARY[opcode]
    check = Correct(reference(in_double, exact if name == "f64" else None)) if entry.is_floating else EXACT
    for turn in range(count):
        values = special(name, generator)
        if entry.is_floating:
            drawn = np.concatenate(
                [generator.uniform(low, high, _FEW), generator.uniform(max(low, -1), min(high, 1.5), _FEW)]
            )
            values = np.concatenate([values, narrow(drawn, entry)])
            values = values[~(np.abs(values.astype(np.float64)) < 1.2e-38) | (values == 0)]
        values = values if turn == 0 else values[generator.integers(0, len(values), random_shape(generator))]
        yield _example(opcode, name, (values,), check=check)


def _binary_function(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    entry = ELEMENT_TYPES[name]
    if entry.is_complex:
        steps = {"c64": None, "c128": 400.0}[name] if opcode == "power" else None  # b log a is up to 60
        for _ in range(count):
            operands = (_complex(name, generator, _FEW // 2), _complex(name, generator, _FEW // 2))
            yield _example(opcode, name, operands, check=Correct(COMPLEX_BINARY[opcode], steps))
        return
    if not entry.is_floating:
        yield from _exact(2)(opcode, name, generator, count)
        return
    in_double, exact = REAL_BINARY[opcode]
    check = Correct(reference(in_double, exact if name == "f64" else None))
    yield _example(opcode, name, crossed(*[special(name, generator)] * 2), check=check)
    for _ in range(count - 1):
        drawn = [generator.uniform(0, 20, _FEW), generator.uniform(-20, 20, _FEW)]
        yield _example(opcode, name, tuple(narrow(values, entry) for values in drawn), check=check)


def _sign(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    if ELEMENT_TYPES[name].is_complex:
        yield from _function(opcode, name, generator, count)
    else:
        yield from _exact(1)(opcode, name, generator, count)


def _abs(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    if not ELEMENT_TYPES[name].is_complex:
        yield from _exact(1)(opcode, name, generator, count)
        return
    for _ in range(count):
        values = _complex(name, generator, _FEW)
        check = Correct(lambda z: np.hypot(*(z.astype(np.clongdouble).view(np.longdouble).reshape(-1, 2).T)))
        yield _example(opcode, name, (values,), result=_PARTS[name], check=check)


def _part(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    for operands in _operand_sets(name, count, generator, 1):
        yield _example(opcode, name, operands, result=_PARTS.get(name, name))


def _complex_of_parts(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    for operands in _operand_sets(name, count, generator, 2):
        yield _example(opcode, name, operands, result=_WITH_PARTS.get(name, "c64"))


def _compare(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    values = crossed(*[special(name, generator)] * 2)
    kinds = ("", ", type=TOTALORDER") if ELEMENT_TYPES[name].is_floating else ("",)
    for direction in _DIRECTIONS:
        for kind in kinds if direction in ("EQ", "LT") else ("",):
            yield _example(opcode, name, values, result="pred", attributes=f"direction={direction}{kind}")
    for _ in range(count - 1):
        shape = random_shape(generator)
        operands = (numbers(name, generator, shape), numbers(name, generator, shape))
        direction = generator.choice(_DIRECTIONS)
        yield _example(opcode, name, operands, result="pred", attributes=f"direction={direction}")


def _is_finite(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    for operands in _operand_sets(name, count, generator, 1):
        yield _example(opcode, name, operands, result="pred")


def _clamp(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    for low, middle, high in _operand_sets(name, count, generator, 3):
        yield _example(opcode, name, (low, middle, high))
        if low.size:
            yield _example(opcode, name, (low.reshape(-1)[0].reshape(()), middle, high.reshape(-1)[-1].reshape(())))


def _select(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    for on_true, on_false in _operand_sets(name, count, generator, 2):
        chosen = generator.integers(0, 2, on_true.shape).astype(np.bool_)
        yield _example(opcode, name, (chosen, on_true, on_false))
        yield _example(opcode, name, (np.array(True), on_true, on_false))


def _reduce_precision(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    values = special(name, generator, random=100)
    for exponent, mantissa in _PRECISIONS[: max(count, 3)]:
        yield _example(opcode, name, (values,), attributes=f"exponent_bits={exponent}, mantissa_bits={mantissa}")


def _table(names: str, generator: Generator) -> dict[str, Generator]:
    return dict.fromkeys(names.split(), generator)


GENERATORS: dict[str, Any] = {
    **_table("add subtract maximum minimum remainder and or xor", _exact(2)),
    **_table("shift-left shift-right-arithmetic shift-right-logical mulhi", _exact(2)),
    **_table("not negate popcnt count-leading-zeros ceil floor round-nearest-afz round-nearest-even", _exact(1)),
    **_table("multiply divide", _arithmetic),
    **dict.fromkeys(REAL_UNARY, _function),
    **_table("power atan2", _binary_function),
    **_table("real imag", _part),
    "sign": _sign,
    "abs": _abs,
    "complex": _complex_of_parts,
    "compare": _compare,
    "is-finite": _is_finite,
    "clamp": _clamp,
    "select": _select,
    "reduce-precision": _reduce_precision,
}
