"""Bound elementwise kernels give what `evaluate` gives, bit for bit, for every opcode, element type and kind of shape."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from hloexec.core.dtypes import ELEMENT_TYPES, ElementType
from hloexec.core.ir import ArrayShape
from hloexec.errors import ShapeError, UnsupportedError
from hloexec.ops.elementwise.selection import CompareAttributes, ReducePrecisionAttributes
from hloexec.ops.registry import OPCODES, Entry

_TYPES = [entry for entry in ELEMENT_TYPES.values() if entry.is_array]
_SHAPES = ((), (0,), (7,), (3, 0, 2), (5, 4, 3))
_BOUND = [entry for entry in OPCODES.values() if entry.is_elementwise and entry.fast.bind is not None]


def _attributes(entry: Entry) -> list[Any]:
    if entry.name == "compare":
        orders = [CompareAttributes(direction=direction) for direction in "EQ NE GE GT LE LT".split()]
        return [*orders, CompareAttributes(direction="LT", type="TOTALORDER")]
    if entry.name == "reduce-precision":
        return [
            ReducePrecisionAttributes(exponent_bits=5, mantissa_bits=10),
            ReducePrecisionAttributes(exponent_bits=8, mantissa_bits=3),
        ]
    return [None if entry.attributes is None else entry.attributes()]


def _operand_types(entry: Entry, element_type: ElementType) -> tuple[ElementType, ...]:
    if entry.name == "select":
        return ELEMENT_TYPES["pred"], element_type, element_type
    if entry.name == "stochastic-convert":
        return element_type, ELEMENT_TYPES.get(f"u{element_type.bits}", element_type)
    return (element_type,) * entry.minimum_operands


def _operand_dimensions(entry: Entry, dimensions: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], ...]]:
    yield (dimensions,) * entry.minimum_operands
    if dimensions and entry.name == "clamp":
        yield (), dimensions, ()
        yield dimensions, dimensions, ()
    if dimensions and entry.name == "select":
        yield (), dimensions, dimensions


def _result_shapes(entry: Entry, attributes: Any, operands: tuple[ArrayShape, ...]) -> list[ArrayShape]:
    """The shapes that the result may be declared to have; none where the operands do not fit."""
    assert entry.infer is not None
    if "shape" not in entry.infer.needs:
        try:
            return [entry.infer(*operands, attributes=attributes)]
        except ShapeError:
            return []
    found = []
    for element_type in _TYPES:
        shape = ArrayShape(element_type, operands[0].dimensions)
        try:
            entry.infer(*operands, attributes=attributes, shape=shape)
        except ShapeError:
            continue
        found.append(shape)
    return found


def _values(generator: np.random.Generator, shape: ArrayShape) -> Any:
    """Any bits, and small numbers among them; every NaN, infinity, zero and denormal has a good chance."""
    element_type = shape.element_type
    size = shape.element_count
    if element_type.name == "pred":
        return generator.integers(0, 2, shape.dimensions).astype(np.bool_)
    if element_type.bits < 8:
        bits = generator.integers(0, 1 << element_type.bits, size).astype(np.uint8)
        patterns = bits.astype(element_type.compute) if element_type.is_integral else bits.view(element_type.storage)
        return patterns.astype(element_type.storage).reshape(shape.dimensions)
    whole = np.frombuffer(generator.bytes(size * element_type.byte_size), element_type.storage).copy()
    small = generator.integers(-3, 4, size).astype(np.float32).astype(element_type.storage)
    return np.where(generator.integers(0, 2, size) == 0, whole, small).reshape(shape.dimensions)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("entry", _BOUND, ids=lambda entry: entry.name)
def test_bound_kernels_have_the_bits_of_evaluate(entry: Entry) -> None:
    assert entry.evaluate is not None and entry.fast.bind is not None
    generator = np.random.default_rng(7)
    count = 0
    for element_type in _TYPES:
        types = _operand_types(entry, element_type)
        for dimensions in _SHAPES:
            for sizes in _operand_dimensions(entry, dimensions):
                shapes = tuple(map(ArrayShape, types, sizes))
                for attributes in _attributes(entry):
                    for shape in _result_shapes(entry, attributes, shapes):
                        with np.errstate(all="ignore"):
                            operands = [_values(generator, operand) for operand in shapes]
                        count += _agree(entry, attributes, shape, shapes, operands)
    assert count > 0


def _agree(
    entry: Entry, attributes: Any, shape: ArrayShape, shapes: tuple[ArrayShape, ...], operands: list[Any]
) -> bool:
    assert entry.evaluate is not None and entry.fast.bind is not None
    available = {"attributes": attributes, "shape": shape, "operand_shapes": shapes}
    given = {name: available[name] for name in entry.evaluate.needs if name in available}
    try:
        expected = entry.evaluate(*operands, **given)
    except UnsupportedError:
        return False
    function = entry.fast.bind(**available)
    with np.errstate(all="ignore"):
        actual = function(*operands)
    assert isinstance(actual, np.ndarray), (shape, shapes)
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape), (shape, shapes)
    assert actual.tobytes() == expected.tobytes(), (attributes, shape, shapes)
    return True


@pytest.mark.parametrize("name", "add erf maximum compare".split())
def test_bound_kernels_of_scalars_take_a_batch(name: str) -> None:
    """Called computations are run on many scalars at once."""
    entry = OPCODES[name]
    assert entry.fast.bind is not None
    scalar = ArrayShape(ELEMENT_TYPES["bf16"], ())
    result = scalar.with_element_type(ELEMENT_TYPES["pred"]) if name == "compare" else scalar
    operands = [
        np.arange(6, dtype=np.float32).astype(scalar.element_type.storage) for _ in range(entry.minimum_operands)
    ]
    attributes = _attributes(entry)[0]
    function = entry.fast.bind(attributes=attributes, shape=result, operand_shapes=(scalar,) * len(operands))
    together = function(*operands)
    assert together.shape == (6,)
    for number in range(6):
        assert function(*(operand[number : number + 1].reshape(()) for operand in operands)) == together[number]
