"""bitcast against the definition of layouts and tiles, and bitcast-convert against XLA."""

from itertools import product
from math import prod
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.core.ir import ArrayShape, Layout
from hloexec.errors import ShapeError, UnsupportedError
from hloexec.language.text.shapes import parse_shape
from hloexec.ops.movement.bitcast import Bitcast, BitcastConvert
from hloexec.ops.movement.fast.movement import FastBitcast
from tests.drawing import examples
from tests.ops.against_xla import Case, assert_same_as_xla, random_array, restrided
from tests.ops.evaluation import assert_refused

S32, F32 = ELEMENT_TYPES["s32"], ELEMENT_TYPES["f32"]


def _shape(dimensions: Any, minor_to_major: Any = None, tiles: Any = (), element_type: Any = S32) -> ArrayShape:
    order = tuple(reversed(range(len(dimensions)))) if minor_to_major is None else tuple(minor_to_major)
    return ArrayShape(element_type, tuple(dimensions), Layout(order, tiles=tuple(map(tuple, tiles))))


def _bitcast(operand: Any, source: str | ArrayShape, result: str | ArrayShape) -> Any:
    source, result = (parse_shape(each) if isinstance(each, str) else each for each in (source, result))
    inferred = Bitcast.infer(source, shape=result)
    assert inferred.compatible(result)
    value = Bitcast.evaluate(operand, shape=result, operand_shapes=(source,))
    assert value.shape == result.dimensions
    assert value.dtype == result.element_type.storage
    bound = FastBitcast.bind(shape=result, operand_shapes=(source,))
    if bound is not None:
        assert_array_equal(bound(operand), value, strict=True)
    return value


def _physical_position(index: Any, shape: ArrayShape, *, tiled: bool) -> int:
    """The place of one element in memory, by XLA's definition: index and bounds are carried through each tile in turn."""
    order = tuple(reversed(shape.layout.minor_to_major))
    index, bounds = [index[axis] for axis in order], [shape.dimensions[axis] for axis in order]
    for tile in shape.layout.tiles if tiled else ():
        missing = len(tile) - len(bounds)
        index, bounds = [0] * missing + index, [1] * missing + bounds
        split = len(bounds) - len(tile)
        minor_index, minor_bounds, sizes = index[split:], bounds[split:], list(tile)
        while -1 in sizes:
            at = sizes.index(-1)
            minor_index[at : at + 2] = [minor_index[at] * minor_bounds[at + 1] + minor_index[at + 1]]
            minor_bounds[at : at + 2] = [minor_bounds[at] * minor_bounds[at + 1]]
            del sizes[at]
        outer = [i // size for i, size in zip(minor_index, sizes, strict=True)]
        inner = [i % size for i, size in zip(minor_index, sizes, strict=True)]
        counts = [-(-bound // size) for bound, size in zip(minor_bounds, sizes, strict=True)]
        index, bounds = index[:split] + outer + inner, bounds[:split] + counts + sizes
    position = 0
    for i, bound in zip(index, bounds, strict=True):
        position = position * bound + i
    return position


def _storage_size(shape: ArrayShape, *, tiled: bool) -> int:
    if not prod(shape.dimensions):
        return 0
    last = tuple(size - 1 for size in shape.dimensions)
    sizes = [shape.dimensions[axis] for axis in reversed(shape.layout.minor_to_major)]
    for tile in shape.layout.tiles if tiled else ():
        sizes = [1] * (len(tile) - len(sizes)) + sizes
        minor, extents = sizes[len(sizes) - len(tile) :], list(tile)
        sizes = sizes[: len(sizes) - len(tile)]
        while -1 in extents:
            at = extents.index(-1)
            minor[at : at + 2] = [minor[at] * minor[at + 1]]
            del extents[at]
        sizes = [*sizes, *(-(-m // t) for m, t in zip(minor, extents, strict=True)), *extents]
    assert _physical_position(last, shape, tiled=tiled) < prod(sizes)
    return prod(sizes)


def _expected(operand: Any, source: ArrayShape, result: ArrayShape) -> Any:
    """Writes the operand into memory element by element, and reads the result from there."""
    tiled = _storage_size(source, tiled=True) == _storage_size(result, tiled=True)
    memory = np.zeros(_storage_size(source, tiled=tiled), operand.dtype)
    for index in product(*map(range, source.dimensions)):
        memory[_physical_position(index, source, tiled=tiled)] = operand[index]
    value = np.zeros(result.dimensions, operand.dtype)
    for index in product(*map(range, result.dimensions)):
        value[index] = memory[_physical_position(index, result, tiled=tiled)]
    return value


sizes = st.sampled_from([1, 2, 3, 4, 5, 8])


@st.composite
def _tiles(draw: Any, rank: int) -> Any:
    first = draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=max(rank, 1)))
    if len(first) > 1 and draw(st.booleans()):
        first[0] = -1
    tiles = [first]
    if draw(st.booleans()):
        tiles.append(draw(st.lists(st.sampled_from([1, 2]), min_size=1, max_size=2)))
    return tiles


@st.composite
def _bitcasts(draw: Any) -> tuple[ArrayShape, ArrayShape]:
    dimensions = draw(st.lists(sizes, max_size=4).filter(lambda dimensions: prod(dimensions) <= 512))
    # The result cuts the same elements differently: neighbours joined, ones inserted, the order of dimensions changed.
    result = list(dimensions)
    if len(result) > 1 and draw(st.booleans()):
        at = draw(st.integers(0, len(result) - 2))
        result[at : at + 2] = [result[at] * result[at + 1]]
    if draw(st.booleans()):
        result.insert(draw(st.integers(0, len(result))), 1)
    result = draw(st.permutations(result))
    tiled, result_tiled = draw(st.booleans()), draw(st.booleans())
    source_shape = _shape(
        dimensions, draw(st.permutations(range(len(dimensions)))), draw(_tiles(len(dimensions))) if tiled else ()
    )
    result_shape = _shape(
        result, draw(st.permutations(range(len(result)))), draw(_tiles(len(result))) if result_tiled else ()
    )
    return source_shape, result_shape


@settings(max_examples=examples(300), deadline=None)
@given(_bitcasts(), st.integers(0, 3))
def test_bitcast_keeps_the_physical_position_of_every_element(
    shapes: tuple[ArrayShape, ArrayShape], manner: int
) -> None:
    source, result = shapes
    operand = restrided(np.arange(1, source.element_count + 1, dtype=np.int32).reshape(source.dimensions), manner)
    assert_array_equal(_bitcast(operand, source, result), _expected(operand, source, result))


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(sizes, min_size=2, max_size=3),
    st.sampled_from([((8, 4),), ((2, 2),), ((4, 4), (2, 1)), ((-1, 4),), ((4,),)]),
)
def test_bitcast_between_equal_tiles_moves_leading_dimensions_only(dimensions: list[int], tiles: Any) -> None:
    source, result = _shape(dimensions, tiles=tiles), _shape([1, *dimensions], tiles=tiles)
    operand = np.arange(source.element_count, dtype=np.int32).reshape(dimensions)
    value = _bitcast(operand, source, result)
    assert_array_equal(value, operand[None])
    if not any(-1 in tile for tile in tiles):
        assert np.shares_memory(value, operand)


def test_bitcast_of_a_transposed_layout_is_a_view_of_an_array_that_lies_so() -> None:
    operand = np.arange(12, dtype=np.int32).reshape(4, 3).T
    value = _bitcast(operand, "s32[3,4]{0,1}", "s32[4,3]{1,0}")
    assert np.shares_memory(value, operand)
    assert value.tolist() == np.arange(12).reshape(4, 3).tolist()


def test_bitcast_to_a_smaller_result_is_the_front_of_the_operand() -> None:
    operand = np.arange(12, dtype=np.int32).reshape(3, 4)
    assert _bitcast(operand, "s32[3,4]{1,0}", "s32[2,4]{1,0}").tolist() == operand[:2].tolist()
    assert _bitcast(operand, "s32[3,4]{0,1}", "s32[3]{0}").tolist() == [0, 4, 8]


def test_bitcast_reinterprets_an_element_type_of_the_same_width() -> None:
    operand = np.array([[1.0, -2.0]], np.float32)
    value = _bitcast(operand, "f32[1,2]{1,0}", "s32[2]{0}")
    assert value.tolist() == [0x3F800000, -0x40000000]


def test_bitcast_reinterprets_an_element_type_of_another_width_where_the_bits_agree() -> None:
    value = _bitcast(np.array([0x01020304], np.int32), "s32[1]{0}", "u8[4]{0}")
    assert value.tolist() == [4, 3, 2, 1]


def test_bitcast_without_layouts_is_row_major() -> None:
    operand = np.arange(6, dtype=np.int32).reshape(2, 3)
    value = Bitcast.evaluate(operand, shape=ArrayShape(S32, (3, 2)), operand_shapes=(ArrayShape(S32, (2, 3)),))
    assert value.tolist() == operand.reshape(3, 2).tolist()


def test_bitcast_of_runtime_extents_is_a_reshape() -> None:
    source = ArrayShape(S32, (6, 2), dynamic_dimensions=(True, False))
    result = ArrayShape(S32, (12,), dynamic_dimensions=(True,))
    operand = np.arange(6, dtype=np.int32).reshape(3, 2)
    assert Bitcast.evaluate(operand, shape=result, operand_shapes=(source,)).tolist() == [0, 1, 2, 3, 4, 5]
    turned = attrs.evolve(source, layout=Layout((0, 1)))
    with pytest.raises(UnsupportedError, match="row-major"):
        Bitcast.evaluate(operand, shape=result, operand_shapes=(turned,))


@pytest.mark.parametrize(
    ("source", "result", "message"),
    [
        ("s32[2,3]", "s32[7]", "must not need more bits"),
        ("token[]", "s32[6]", "must be an array"),
    ],
)
def test_bitcast_says_what_is_wrong(source: str, result: str, message: str) -> None:
    assert_refused(f"{result} bitcast(a)", message, a=source)


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (Layout((0, 0)), "must order its 2 dimensions"),
        (Layout((0,)), "must order its 2 dimensions"),
        (Layout((1, 0), tiles=((0, 2),)), "needs positive sizes"),
        (Layout((1, 0), tiles=((2, -1),)), "needs positive sizes"),
    ],
)
def test_layouts_that_no_text_has_are_refused(layout: Layout, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        Bitcast.infer(ArrayShape(S32, (2, 3), layout), shape=ArrayShape(S32, (6,)))


# XLA:CPU takes no arrays of one-bit integers; its importer counts pred as one bit here, HLO's own rule as eight.
REAL_TYPES = [
    name for name, entry in ELEMENT_TYPES.items() if entry.is_array and not entry.is_complex and entry.bits > 1
]


def _conversions(names: list[str]) -> list[Case]:
    cases = []
    for seed, (name, other) in enumerate(product(names, names)):
        source, result = ELEMENT_TYPES[name], ELEMENT_TYPES[other]
        ratio = max(source.bits, result.bits) // min(source.bits, result.bits)
        dimensions = (2, 3) if source.bits >= result.bits else (2, 3, ratio)
        text = "2,3" if source.bits <= result.bits else f"2,3,{ratio}"
        cases.append(Case("bitcast-convert", [random_array(seed, dimensions, source.storage)], f"{other}[{text}]"))
    return cases


@pytest.mark.slow
def test_bitcast_convert_of_any_real_types_is_that_of_xla() -> None:
    assert_same_as_xla(_conversions([name for name in REAL_TYPES if name != "pred"]))


def test_bitcast_convert_of_complex_types_is_that_of_xla() -> None:
    assert_same_as_xla(_conversions(["c64"]))


@pytest.mark.parametrize(
    ("source", "result", "message"),
    [
        (ArrayShape(ELEMENT_TYPES["c64"], (2,)), ArrayShape(ELEMENT_TYPES["s64"], (2,)), "real and complex"),
        (ArrayShape(S32, (2, 3)), ArrayShape(ELEMENT_TYPES["s64"], (2,)), "last dimension of size 2"),
        (ArrayShape(ELEMENT_TYPES["s8"]), ArrayShape(ELEMENT_TYPES["s16"]), "last dimension of size 2"),
    ],
)
def test_bitcast_convert_says_what_is_wrong(source: ArrayShape, result: ArrayShape, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        BitcastConvert.infer(source, shape=result)
