"""Operations of MLIR one by one, against their definitions: those that few kernels have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hloexec.errors import UnsupportedError
from hloexec.ops.library_calls.mosaic.ir import Operation, Text, parse_type
from hloexec.ops.library_calls.mosaic.machine import Machine
from hloexec.ops.library_calls.mosaic.memory import Ref, whole
from hloexec.ops.library_calls.mosaic.registry import operations
from hloexec.ops.policies.policy import REFERENCE

X = np.array([[1.5, -2.5, np.nan, 0.0], [np.inf, 3.0, -0.0, 7.25]], np.float32)
Y = np.array([[1.5, 4.0, 1.0, np.nan], [np.inf, -3.0, 0.0, 2.0]], np.float32)
I = np.array([[1, -7, 2**31 - 1, 0], [-(2**31), 5, -1, 12]], np.int32)  # noqa: E741
J = np.array([[3, 2, -1, 9], [2, -1, 4, 5]], np.int32)
V, W, M = "vector<2x4xf32>", "vector<2x4xi32>", "vector<2x4xi1>"


class Scope:
    """What binding asks for where there are no regions."""

    numerics = REFERENCE


def made(name: str, types: Sequence[str], result: str | None, **attributes: Any) -> Operation:
    results = () if result is None else (parse_type(result),)
    return Operation(
        name=name,
        operands=tuple(range(len(types))),
        operand_types=tuple(map(parse_type, types)),
        results=tuple(range(len(types), len(types) + len(results))),
        result_types=results,
        attributes=attributes,
        regions=(),
        source="a.py:3:4",
    )


def computed(name: str, types: Sequence[str], result: str | None, *operands: Any, **attributes: Any) -> Any:
    """What an operation gives."""
    operation = made(name, types, result, **attributes)
    entry = operations()[name]
    kernel = entry.bind(operation, Scope())  # type: ignore[arg-type]
    with np.errstate(all="ignore"):
        return kernel(Machine([], operation=operation), *operands) if entry.is_machine else kernel(*operands)


def same(actual: Any, expected: Any, dtype: Any) -> None:
    assert actual.dtype == dtype
    assert np.array_equal(actual, np.asarray(expected), equal_nan=actual.dtype.kind == "f")


UNORDERED = np.isnan(X) | np.isnan(Y)
RELATIONS = {
    1: (X == Y) & ~UNORDERED,
    2: X > Y,
    3: X >= Y,
    4: X < Y,
    5: X <= Y,
    6: (X < Y) | (X > Y),
    7: ~UNORDERED,
    8: (X == Y) | UNORDERED,
    9: (X > Y) | UNORDERED,
    10: (X >= Y) | UNORDERED,
    11: (X < Y) | UNORDERED,
    12: (X <= Y) | UNORDERED,
    13: (X != Y) | UNORDERED,
    14: UNORDERED,
}


@pytest.mark.parametrize("predicate", RELATIONS)
def test_floats_are_compared_by_each_predicate(predicate: int) -> None:
    """Source: MLIR, arith.cmpf."""
    same(computed("arith.cmpf", [V, V], M, X, Y, predicate=predicate), RELATIONS[predicate], np.bool_)
    for one, two, expected in zip(X.ravel(), Y.ravel(), RELATIONS[predicate].ravel(), strict=True):
        result = computed("arith.cmpf", ["f32", "f32"], "i1", np.asarray(one), np.asarray(two), predicate=predicate)
        assert result is bool(expected)


U, T = I.view(np.uint32), J.view(np.uint32)
INTEGERS = [I == J, I != J, I < J, I <= J, I > J, I >= J, U < T, U <= T, U > T, U >= T]


@pytest.mark.parametrize("predicate", range(10))
def test_integers_are_compared_by_each_predicate(predicate: int) -> None:
    same(computed("arith.cmpi", [W, W], M, I, J, predicate=predicate), INTEGERS[predicate], np.bool_)
    for one, two, expected in zip(I.ravel(), J.ravel(), INTEGERS[predicate].ravel(), strict=True):
        assert computed("arith.cmpi", ["i32", "i32"], "i1", int(one), int(two), predicate=predicate) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("arith.addi", (U + T).view(np.int32)),
        ("arith.muli", (U * T).view(np.int32)),
        ("arith.divui", (U // T).view(np.int32)),
        ("arith.remui", (U % T).view(np.int32)),
        ("arith.maxui", np.maximum(U, T).view(np.int32)),
        ("arith.minui", np.minimum(U, T).view(np.int32)),
        ("arith.divsi", np.array([[0, -3, -(2**31 - 1), 0], [-(2**30), -5, 0, 2]])),
        ("arith.remsi", np.array([[1, -1, 0, 0], [0, 0, -1, 2]])),
        ("arith.shrsi", np.array([[0, -2, 0, 0], [-(2**29), 0, -1, 0]])),
        ("arith.shrui", np.array([[0, (2**32 - 7) >> 2, 0, 0], [2**29, 0, 2**28 - 1, 0]])),
    ],
)
def test_integers_wrap_and_unsigned_ones_have_no_sign(name: str, expected: Any) -> None:
    """Vectors and scalars alike; shifts by the width or more are zeros or signs."""
    same(computed(name, [W, W], W, I, J), expected, np.int32)
    for one, two, number in zip(I.ravel(), J.ravel(), np.asarray(expected).ravel(), strict=True):
        assert computed(name, ["i32", "i32"], "i32", int(one), int(two)) == number


@pytest.mark.parametrize(
    ("name", "types", "result", "operand", "expected"),
    [
        ("arith.extsi", [M], W, X > 0, -(X > 0).astype(np.int32)),
        ("arith.extui", [M], W, X > 0, (X > 0).astype(np.int32)),
        ("arith.extui", ["vector<2xi8>"], "vector<2xi32>", np.array([-1, 5], np.int8), [255, 5]),
        ("arith.extsi", ["vector<2xi8>"], "vector<2xi32>", np.array([-1, 5], np.int8), [-1, 5]),
        ("arith.trunci", [W], "vector<2x4xi8>", I, I.astype(np.int8)),
        ("arith.trunci", [W], M, I, (I & 1) != 0),
        ("arith.uitofp", [W], V, I, U.astype(np.float32)),
        ("arith.fptoui", ["vector<3xf32>"], "vector<3xi32>", np.array([3e9, -1, 2.9], np.float32), [-1294967296, 0, 2]),
        ("arith.fptosi", [V], W, X, [[1, -2, 0, 0], [2**31 - 1, 3, 0, 7]]),
        ("arith.bitcast", [V], W, X, X.view(np.int32)),
        ("tpu.weird", [V], M, X, ~np.isfinite(X)),
        ("math.absi", [W], W, I, np.abs(I)),
        ("math.ctlz", [W], W, J, [[30, 30, 0, 28], [30, 0, 29, 29]]),
        ("math.ctpop", [W], W, J, [[2, 1, 32, 2], [1, 32, 1, 2]]),
        ("tpu.reciprocal", ["vector<2xf32>"], "vector<2xf32>", np.array([4, -0.5], np.float32), [0.25, -2]),
    ],
)
def test_conversions(name: str, types: list[str], result: str, operand: Any, expected: Any) -> None:
    same(computed(name, types, result, operand), expected, parse_type(result).element_type.storage)


@pytest.mark.parametrize(("mode", "expected"), [("0", [1, -2, 2, 3]), ("1", [2, -2, 2, 4])])
def test_floats_become_integers_as_the_rounding_mode_says(mode: str, expected: list[int]) -> None:
    values = np.array([1.5, -2.5, 2.5, 3.7], np.float32)
    word = Text(f"#tpu.rounding_mode<{('towards_zero', 'to_nearest_even')[int(mode)]}>")
    for said in (word, int(mode)):
        actual = computed("tpu.fptosi", ["vector<4xf32>"], "vector<4xi32>", values, rounding_mode=said)
        same(actual, expected, np.int32)


@pytest.mark.parametrize(("name", "numpy"), [("arith.maxnumf", np.fmax), ("arith.minnumf", np.fmin)])
def test_of_a_number_and_nan_the_number_is_taken(name: str, numpy: Any) -> None:
    same(computed(name, [V, V], V, X, Y), numpy(X, Y), np.float32)


def test_extrema_of_floats_are_nan_where_an_operand_is() -> None:
    same(computed("arith.maximumf", [V, V], V, X, Y), np.maximum(X, Y), np.float32)
    with np.errstate(invalid="ignore"):
        same(computed("arith.remf", [V, V], V, X, Y), np.fmod(X, Y), np.float32)


def test_parts_of_vectors_are_taken_and_put() -> None:
    a = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    cube = "vector<2x3x4xi32>"
    same(computed("vector.extract", [cube], "vector<4xi32>", a, static_position=(1, 2)), a[1, 2], np.int32)
    position = (-(2**63), 0)
    same(
        computed("vector.extract", [cube, "index"], "vector<4xi32>", a, 1, static_position=position), a[1, 0], np.int32
    )
    assert computed("vector.extract", [cube], "i32", a, static_position=(1, 2, 3)) == 23
    put = a.copy()
    put[1, 0] = 9
    row = np.full(4, 9, np.int32)
    same(computed("vector.insert", ["vector<4xi32>", cube], cube, row, a, static_position=(1, 0)), put, np.int32)
    part = a[:1, :2, :2] * 0
    put = a.copy()
    put[1:, 1:, ::2] = 0
    said: dict[str, Any] = {"offsets": (1, 1, 0), "strides": (1, 1, 2)}
    same(computed("vector.insert_strided_slice", ["vector<1x2x2xi32>", cube], cube, part, a, **said), put, np.int32)
    same(
        computed("vector.transpose", [cube], "vector<4x2x3xi32>", a, permutation=(2, 0, 1)),
        a.transpose(2, 0, 1),
        np.int32,
    )
    kind = Text("#vector.kind<add>")
    assert computed("vector.reduction", ["vector<4xi32>"], "i32", a[0, 1], kind=kind) == 22


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("mul", (U[0] * U[1]).view(np.int32)),
        ("maxui", np.maximum(*U).view(np.int32)),
        ("minsi", I.min(0)),
        ("xor", I[0] ^ I[1]),
    ],
)
def test_reductions_of_each_kind(kind: str, expected: Any) -> None:
    initial = np.full(4, {"mul": 1, "maxui": 0, "minsi": 2**31 - 1, "xor": 0}[kind], np.int32)
    said = {"kind": Text(f"#vector.kind<{kind}>"), "reduction_dims": (0,)}
    row = "vector<4xi32>"
    same(computed("vector.multi_reduction", [W, row], row, I, initial, **said), expected, np.int32)


def test_a_reduction_that_skips_nan_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"reduces by maxnumf in vector\.multi_reduction at a\.py:3:4"):
        computed(
            "vector.multi_reduction", [V], "vector<4xf32>", X, kind=Text("#vector.kind<maxnumf>"), reduction_dims=(0,)
        )


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("sum", [[3.0] * 3, [12.0] * 3]), ("max", [[2.0] * 3, [5.0] * 3]), ("arg_min", [[0] * 3, [0] * 3])],
)
def test_what_is_reduced_in_every_lane(kind: str, expected: Any) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    element = "i32" if kind.startswith("arg") else "f32"
    said = {"dim": 1, "kind": Text(f"#tpu.reduction_kind<{kind}>")}
    actual = computed("tpu.all_reduce", ["vector<2x3xf32>"], f"vector<2x3x{element}>", values, **said)
    same(actual, expected, parse_type(element).element_type.storage)


def test_lanes_are_moved() -> None:
    a = np.arange(8, dtype=np.int32).reshape(2, 4)
    same(computed("tpu.repeat", [W], "vector<2x8xi32>", a, dimension=1, times=2), np.tile(a, 2), np.int32)
    same(computed("tpu.gather", [W], "vector<2x3xi32>", a, indices=(3, 0, 3), dimension=1), a[:, [3, 0, 3]], np.int32)
    same(computed("tpu.rotate", [W], W, a, amount=1, dimension=1), np.roll(a, 1, 1), np.int32)
    same(computed("tpu.iota", [], "vector<4x3x2xi16>", dimensions=(2, 0))[1], [[1, 5]] * 3, np.int16)
    same(computed("tpu.create_mask", ["index"] * 4, M, 0, 1, 1, 3)[1], [False] * 4, np.bool_)
    same(computed("tpu.create_mask", ["index"] * 4, M, 0, 1, 1, 3)[0], [False, True, True, False], np.bool_)


def test_several_dimensions_are_gathered_as_one() -> None:
    a = np.arange(24, dtype=np.int32).reshape(2, 3, 4)
    indices = np.array([[[0, 5, 11, 12]] * 3] * 2, np.int32)
    actual = computed(
        "tpu.dynamic_gather", ["vector<2x3x4xi32>"] * 2, "vector<2x3x4xi32>", a, indices, dimensions=(1, 2)
    )
    expected = a.reshape(2, 12)[:, [0, 5, 11, 0]][:, None].repeat(3, 1)
    same(actual, expected, np.int32)


def test_words_hold_narrow_elements() -> None:
    sources = [
        np.array([1, -1], np.int32),
        np.array([127, 300], np.int32),
        np.array([0, 2], np.int32),
        np.array([3, -8], np.int32),
    ]
    types = ["vector<2xi32>"] * 4
    packed = computed("tpu.pack_elementwise", types, "vector<2xi32>", *sources, target_type=Text("i8"))
    same(packed, np.array([[1, 127, 0, 3], [-1, 300, 2, -8]]).astype(np.int8).view(np.int32).ravel(), np.int32)
    said = {"source_type": Text("i8"), "index": 3}
    same(computed("tpu.unpack_elementwise", types[:1], "vector<2xi32>", packed, **said), [3, -8], np.int32)


def test_halves_are_rows_of_words() -> None:
    values = np.arange(8, dtype=np.float32).astype(ml_dtypes.bfloat16).reshape(4, 2)
    words = computed("tpu.bitcast", ["vector<4x2xbf16>"], "vector<2x2xi32>", values)
    bits = values.view(np.uint16).astype(np.uint32)
    same(words, (bits[::2] | bits[1::2] << np.uint32(16)).view(np.int32), np.int32)
    same(computed("tpu.bitcast", ["vector<2x2xi32>"], "vector<4x2xbf16>", words), values, ml_dtypes.bfloat16)


def memory(array: Any) -> Ref:
    return whole(np.array(array), "the memory")


def test_masked_and_adding_stores() -> None:
    ref, where = memory(np.arange(8, dtype=np.int32).reshape(2, 4)), np.array([[True, False] * 2] * 2)
    types = [W, "memref<2x4xi32>", "index", "index"]
    computed("tpu.vector_store", [*types, M], None, I, ref, 0, 0, where, strides=(), add=False)
    same(ref.array, np.where(where, I, np.arange(8).reshape(2, 4)), np.int32)
    before = ref.array.copy()
    computed("tpu.vector_store", types, None, J, ref, 0, 0, strides=(), add=True)
    same(ref.array, before + J, np.int32)
    loaded = computed("tpu.vector_load", [*types[1:], M], W, ref, 0, 0, where, strides=())
    same(loaded, np.where(where, before + J, 0), np.int32)


def test_views_of_views_share_memory() -> None:
    ref = memory(np.arange(48, dtype=np.int32).reshape(2, 1, 24))
    flat = computed("tpu.memref_squeeze", ["memref<2x1x24xi32>"], "memref<2x24xi32>", ref)
    part = computed("tpu.memref_slice", ["memref<2x24xi32>", "i32", "i32"], "memref<1x8xi32>", flat, 1, 4)
    words = computed("tpu.memref_bitcast", ["memref<1x8xi32>"], "memref<2x8xi16>", part)
    computed(
        "vector.store",
        ["vector<2x8xi16>", "memref<2x8xi16>", "index", "index"],
        None,
        np.ones((2, 8), np.int16),
        words,
        0,
        0,
    )
    expected = np.arange(48).reshape(2, 1, 24)
    expected[1, 0, 4:12] = 0x10001
    same(ref.array, expected, np.int32)
    again = computed("vector.load", ["memref<1x8xi32>", "index", "index"], "vector<1x8xi32>", part, 0, 0)
    same(again, [[0x10001] * 8], np.int32)


@pytest.mark.parametrize(
    ("name", "types", "sizes"),
    [
        ("tpu.enqueue_dma", ["memref<4xf32>"] * 4 + ["i32"] * 2, (1, 1, 1, 1, 1, 1, 0)),
        ("tpu.enqueue_dma", ["memref<4xf32>"] * 3 + ["i32"], (1, 0, 1, 1, 0, 0, 1)),
        ("tpu.sem_signal", ["memref<!tpu.semaphore>", "i32", "i32"], (1, 1, 0, 1, 0)),
    ],
)
def test_what_reaches_other_cores_is_refused(name: str, types: list[str], sizes: tuple[int, ...]) -> None:
    refuses = operations()[name].refuses
    assert refuses is not None
    assert "another core" in str(refuses(made(name, types, None, operandSegmentSizes=sizes)))


def test_copies_and_waits_of_kernels_of_2024_are_told_by_their_number_of_operands() -> None:
    source, target = memory(np.arange(4, dtype=np.int32)), memory(np.zeros(4, np.int32))
    done = memory(np.zeros((), np.int32))
    machine = Machine([])
    copy = operations()["tpu.enqueue_dma"].bind(made("tpu.enqueue_dma", ["memref<4xi32>"] * 3, None), Scope())  # type: ignore[arg-type]
    wait = operations()["tpu.wait_dma"].bind(made("tpu.wait_dma", ["memref<4xi32>"] * 2, None), Scope())  # type: ignore[arg-type]
    copy(machine, source, target, done)
    assert int(done.array) == 16
    assert len(machine.transfers) == 1
    wait(machine, done, target)
    assert int(done.array) == 0
    assert machine.transfers == []
    same(target.array, np.arange(4), np.int32)


@pytest.mark.parametrize("letters", ["ik,kj->ij", "ki,jk->ji", "bik,bjk->bij", "ibk,bkj->jib"])
def test_contractions_are_those_of_their_maps(letters: str) -> None:
    sizes = {"i": 3, "j": 4, "k": 5, "b": 2}
    places = {letter: number for number, letter in enumerate(sizes)}
    generator = np.random.default_rng(0)
    parts = letters.replace("->", ",").split(",")
    values = [generator.integers(-9, 9, [sizes[letter] for letter in part]).astype(np.int32) for part in parts]
    maps = [
        Text(f"affine_map<(d0, d1, d2, d3) -> ({', '.join(f'd{places[letter]}' for letter in part)})>")
        for part in parts
    ]
    types = [f"vector<{'x'.join(map(str, value.shape))}xi32>" for value in values]
    said = {"indexing_maps": tuple(maps), "kind": Text("#vector.kind<add>")}
    same(
        computed("vector.contract", types, types[2], *values, **said),
        np.einsum(letters, *values[:2]) + values[2],
        np.int32,
    )


def test_a_map_that_is_no_projection_is_refused() -> None:
    maps = tuple(map(Text, ["affine_map<(d0, d1) -> (d0 + d1)>"] * 3))
    with pytest.raises(UnsupportedError, match="indexing map"):
        computed("vector.contract", [W, W, W], W, I, I, I, indexing_maps=maps)


@pytest.mark.parametrize(("transposed", "letters"), [((False, True), "ik,jk->ij"), ((True, False), "ki,kj->ij")])
def test_products_without_dimension_numbers_have_transposes(transposed: tuple[bool, bool], letters: str) -> None:
    sizes = {"i": 3, "j": 4, "k": 5}
    generator = np.random.default_rng(1)
    parts = letters.replace("->", ",").split(",")
    values = [generator.integers(-9, 9, [sizes[letter] for letter in part]).astype(np.int8) for part in parts]
    values[2] = values[2].astype(np.int32)
    types = ["vector<{}x{}xi8>".format(*value.shape) for value in values[:2]] + ["vector<3x4xi32>"]
    actual = computed("tpu.matmul", types, types[2], *values, transpose_lhs=transposed[0], transpose_rhs=transposed[1])
    same(actual, np.einsum(letters, *(value.astype(np.int32) for value in values[:2])) + values[2], np.int32)
