"""sort and topk against XLA:CPU, bit for bit."""

import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from conformance import xla
from hloexec.errors import ShapeError
from hloexec.ops import common, sorting
from tests.ops.against_xla import Case, evaluated, module_text, needs_xla
from tests.ops.evaluation import evaluate

DTYPES: dict[str, Any] = {
    "f32": np.float32,
    "f64": np.float64,
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "f8e4m3fn": ml_dtypes.float8_e4m3fn,
    "s4": ml_dtypes.int4,
    "s8": np.int8,
    "s32": np.int32,
    "s64": np.int64,
    "u8": np.uint8,
    "u64": np.uint64,
    "pred": np.bool_,
}


def is_float(element_type: str) -> bool:
    return element_type.startswith(("f", "bf"))


def random_array(element_type: str, shape: tuple[int, ...], seed: int, specials: bool = True) -> np.ndarray:
    """Many equal elements; among floats NaNs, infinities and zeros of both signs."""
    generator = np.random.default_rng(seed)
    if not is_float(element_type):
        values = generator.integers(-8, 8, shape)
        if element_type == "pred":
            values = values > 0
        elif element_type in ("s64", "u64"):
            values = np.where(generator.random(shape) < 0.5, values, values << 60)
        return values.astype(np.int64).astype(DTYPES[element_type])
    values = np.round(generator.standard_normal(shape) * 2).astype(np.float32)
    if specials:
        special = generator.choice(np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0], np.float32), shape)
        values = np.where(generator.random(shape) < 0.4, special, values)
    return values.astype(DTYPES[element_type])


def parameters(types: tuple[str, ...]) -> list[str]:
    return [
        line
        for number, element_type in enumerate(types)
        for line in (
            f"a{number} = {element_type}[] parameter({2 * number})",
            f"b{number} = {element_type}[] parameter({2 * number + 1})",
        )
    ]


def jax_comparator(types: tuple[str, ...], keys: int) -> list[str]:
    """Lexicographic in total order, NaNs and zeros made alike first, as JAX's lax.sort writes it."""
    lines = parameters(types)
    answer = ""
    for k in reversed(range(keys)):
        left, right, total = f"a{k}", f"b{k}", ""
        if is_float(types[k]):
            lines += [f"nan{k} = {types[k]}[] constant(nan)", f"zero{k} = {types[k]}[] constant(0)"]
            for side in (left, right):
                lines += [
                    f"n{side} = pred[] compare({side}, {side}), direction=NE",
                    f"e{side} = pred[] compare({side}, zero{k}), direction=EQ",
                    f"z{side} = {types[k]}[] select(e{side}, zero{k}, {side})",
                    f"c{side} = {types[k]}[] select(n{side}, nan{k}, z{side})",
                ]
            left, right, total = f"c{left}", f"c{right}", ", type=TOTALORDER"
        lines.append(f"lt{k} = pred[] compare({left}, {right}), direction=LT{total}")
        if answer:
            lines += [
                f"eq{k} = pred[] compare({left}, {right}), direction=EQ{total}",
                f"and{k} = pred[] and(eq{k}, {answer})",
                f"or{k} = pred[] or(lt{k}, and{k})",
            ]
        answer = f"or{k}" if answer else f"lt{k}"
    return lines


def expanded_comparator(direction: str) -> list[str]:
    """What XLA makes of a total order on floats, and of stability: bits made sortable, then the index."""
    lines = [*parameters(("f32", "s32")), "zero = s32[] constant(0)", "most = s32[] constant(2147483647)"]
    for side in ("a", "b"):
        lines += [
            f"bits{side} = s32[] bitcast-convert({side}0)",
            f"negative{side} = pred[] compare(bits{side}, zero), direction=LT",
            f"flipped{side} = s32[] xor(most, bits{side})",
            f"key{side} = s32[] select(negative{side}, flipped{side}, bits{side})",
        ]
    return [
        *lines,
        f"one = pred[] compare(keya, keyb), direction={direction}",
        f"other = pred[] compare(keyb, keya), direction={direction}",
        "equal = pred[] compare(one, other), direction=EQ",
        "index = pred[] compare(a1, b1), direction=LT",
        "r = pred[] select(equal, index, one)",
    ]


REMAINDER = [
    *parameters(("s32",)),
    "seven = s32[] constant(7)",
    "left = s32[] remainder(a0, seven)",
    "right = s32[] remainder(b0, seven)",
    "difference = s32[] subtract(left, right)",
    "zero = s32[] constant(0)",
    "r = pred[] compare(difference, zero), direction=LT",
]
"""A comparator that is no comparison of two keys, as written."""


def module(comparator: list[str], types: tuple[str, ...], shape: tuple[int, ...], dimension: int) -> str:
    sizes = ",".join(map(str, shape))
    results = ", ".join(f"{element_type}[{sizes}]" for element_type in types)
    body = [f"p{number} = {element_type}[{sizes}] parameter({number})" for number, element_type in enumerate(types)]
    names = ", ".join(f"p{number}" for number in range(len(types)))
    result = f"({results})" if len(types) > 1 else results
    body.append(f"s = {result} sort({names}), dimensions={{{dimension}}}, is_stable=true, to_apply=order")
    return "\n".join(
        [
            "HloModule m",
            "order {",
            *comparator[:-1],
            f"ROOT {comparator[-1]}",
            "}",
            "ENTRY e {",
            *body[:-1],
            f"ROOT {body[-1]}",
            "}",
        ]
    )


def compare(
    comparator: list[str], types: tuple[str, ...], shape: tuple[int, ...], dimension: int, specials: bool = True
) -> None:
    text = module(comparator, types, shape, dimension)
    assert_same_bytes(text, *(random_array(name, shape, seed, specials) for seed, name in enumerate(types)))


def assert_same_bytes(text: str, *inputs: Any) -> None:
    for ours, theirs in zip(evaluated(text, inputs), xla.run_hlo(text, *inputs), strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.tobytes() == theirs.tobytes()


def compare_rows(comparators: dict[str, list[str]], element_type: str) -> None:
    """Sorts of rows, in one module."""
    rows = random_array(element_type, (3, 70), 0)
    ending = "dimensions={1}, is_stable=true, to_apply="
    cases = [Case("sort", [rows], f"{element_type}[3,70]", f"{ending}{name}") for name in comparators]
    computations = [
        "\n".join([f"{name} {{", *lines[:-1], f"ROOT {lines[-1]}", "}"]) for name, lines in comparators.items()
    ]
    assert_same_bytes(module_text(cases, "\n".join(computations)), *([rows] * len(cases)))


@pytest.fixture
def only_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """The general merge sort may not be used."""

    def refuse(*_: object) -> None:
        raise AssertionError("the comparator was not recognised")

    monkeypatch.setattr(sorting, "_merge_sorted", refuse)


@needs_xla
@pytest.mark.usefixtures("only_keys")
@pytest.mark.parametrize("element_type", DTYPES)
def test_sorts_of_one_operand_agree_with_xla(element_type: str) -> None:
    """In either direction, and as JAX writes them."""
    total = ", type=TOTALORDER" if is_float(element_type) else ""
    comparators = {
        direction: [*parameters((element_type,)), f"r = pred[] compare(a0, b0), direction={direction}{total}"]
        for direction in ("LT", "GT")
    }
    compare_rows({**comparators, "jax": jax_comparator((element_type,), 1)}, element_type)


@pytest.mark.parametrize("element_type", ["f32", "bf16", "s32"])
def test_a_sort_of_one_operand_needs_no_indices(element_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorting, "stable_order", lambda *_: pytest.fail("the elements were told apart"))
    values = random_array(element_type, (3, 70), 0, specials=False) + DTYPES[element_type](100)
    ascending = np.sort(values.astype(np.float64), axis=1)
    total = ", type=TOTALORDER" if is_float(element_type) else ""
    descending = [*parameters((element_type,)), f"r = pred[] compare(a0, b0), direction=GT{total}"]
    for lines, expected in ((jax_comparator((element_type,), 1), ascending), (descending, ascending[:, ::-1])):
        result = evaluate(module(lines, (element_type,), (3, 70), 1), values)
        assert_array_equal(result.astype(np.float64), expected)


def test_orders_of_long_rows_take_little_more_than_their_keys_with_indices() -> None:
    keys = np.random.default_rng(0).integers(-(1 << 31), 1 << 31, 1 << 18, np.int32)
    tracemalloc.start()
    try:
        common.stable_argsort(keys)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.2 * 8 * keys.size


@needs_xla
@pytest.mark.usefixtures("only_keys")
@pytest.mark.parametrize(
    ("types", "keys", "dimension"),
    [(("f32", "s32"), 1, 0), (("s32", "f32", "f16"), 2, 1), (("bf16", "f64", "u8"), 3, 1)],
)
def test_lexicographic_sorts_agree_with_xla(types: tuple[str, ...], keys: int, dimension: int) -> None:
    compare(jax_comparator(types, keys), types, (33, 20), dimension)


@needs_xla
@pytest.mark.usefixtures("only_keys")
@pytest.mark.parametrize("direction", ["LT", "GT"])
@pytest.mark.parametrize("total", ["", ", type=TOTALORDER"])
def test_simple_comparators_are_recognised(direction: str, total: str) -> None:
    comparator = [*parameters(("f32", "s32")), f"r = pred[] compare(a0, b0), direction={direction}{total}"]
    compare(comparator, ("f32", "s32"), (4, 50), 1, specials=bool(total))
    swapped = [*parameters(("s32", "f32")), f"r = pred[] compare(b0, a0), direction={direction}"]
    compare(swapped, ("s32", "f32"), (50,), 0)


@needs_xla
@pytest.mark.usefixtures("only_keys")
@pytest.mark.parametrize("direction", ["LT", "GT"])
def test_an_expanded_total_order_is_recognised(direction: str) -> None:
    compare(expanded_comparator(direction), ("f32", "s32"), (4, 50), 1)


@needs_xla
@pytest.mark.parametrize("shape", [(77,), (5, 64), (1000,), (2,)])
def test_any_other_comparator_agrees_with_xla(shape: tuple[int, ...]) -> None:
    compare(REMAINDER, ("s32",), shape, len(shape) - 1)


@pytest.mark.usefixtures("only_keys")
def test_shared_parts_of_a_comparator_are_looked_at_once() -> None:
    """Written out, the quantity has 2^60 parts, and so has the answer."""
    lines = parameters(("s32",))
    for side in ("a", "b"):
        lines += [f"{side}{n + 1} = s32[] or({side}{n}, {side}{n})" for n in range(60)]
    lines += ["c0 = pred[] compare(a60, b60), direction=GT"]
    lines += [f"c{n + 1} = pred[] and(c{n}, c{n})" for n in range(60)]
    values = np.array([3, 1, 2], np.int32)
    assert evaluate(module(lines, ("s32",), (3,), 0), values).tolist() == [3, 2, 1]


def test_zeros_of_both_signs_keep_their_order_under_a_plain_comparison() -> None:
    comparator = [*parameters(("f32", "s32")), "r = pred[] compare(a0, b0), direction=LT"]
    zeros = np.array([0.0, -0.0, 0.0, -0.0], np.float32)
    values, indices = evaluate(module(comparator, ("f32", "s32"), (4,), 0), zeros, np.arange(4, dtype=np.int32))
    assert indices.tolist() == [0, 1, 2, 3]
    assert np.signbit(values).tolist() == [False, True, False, True]


def test_an_inconsistent_comparator_loses_no_element() -> None:
    comparator = [*parameters(("f32",)), "r = pred[] compare(a0, b0), direction=LT"]
    values = random_array("f32", (3, 301), 0)
    result = evaluate(module(comparator, ("f32",), (3, 301), 1), values)
    bits = np.sort(values.view(np.uint32), axis=1)
    assert_array_equal(np.sort(result.view(np.uint32), axis=1), bits)


def test_large_keys_sort_stably_without_packing() -> None:
    comparator = [*parameters(("s64", "s32")), "r = pred[] compare(a0, b0), direction=LT"]
    keys = np.array([2**62, -(2**62), 2**63 - 1, -(2**63), 2**62, -(2**63)], np.int64)
    values, indices = evaluate(module(comparator, ("s64", "s32"), (6,), 0), keys, np.arange(6, dtype=np.int32))
    assert values.tolist() == sorted(keys.tolist())
    assert indices.tolist() == [3, 5, 1, 0, 4, 2]


def test_empty_and_single_rows_are_returned_as_they_are() -> None:
    comparator = [*parameters(("f32",)), "r = pred[] compare(a0, b0), direction=LT"]
    for shape in [(0,), (3, 1), (0, 4), (4, 0)]:
        assert evaluate(module(comparator, ("f32",), shape, len(shape) - 1), np.zeros(shape, np.float32)).shape == shape


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("dimensions={1}", "dimensions={2}", "sort dimension 2 is out of range"),
        ("p1 = s32[3,4]", "p1 = s32[3,5]", "must have the same dimensions"),
        ("a1 = s32[]", "a1 = s64[]", "parameter 2 of to_apply of sort has shape s64"),
        ("r = pred[] compare(a0, b0), direction=LT", "r = f32[] add(a0, b0)", "must return pred"),
    ],
)
def test_wrong_sorts_are_refused(old: str, new: str, message: str) -> None:
    comparator = [*parameters(("f32", "s32")), "r = pred[] compare(a0, b0), direction=LT"]
    text = module(comparator, ("f32", "s32"), (3, 4), 1)
    assert old in text
    with pytest.raises(ShapeError, match=message):
        evaluate(text.replace(old, new))


def topk(element_type: str, shape: tuple[int, ...], k: int, largest: bool) -> str:
    rows = ",".join(map(str, (*shape[:-1], k)))
    return f"""HloModule m
ENTRY e {{
  a = {element_type}[{",".join(map(str, shape))}] parameter(0)
  ROOT r = ({element_type}[{rows}], s32[{rows}]) topk(a), k={k}, largest={str(largest).lower()}
}}"""


@needs_xla
@pytest.mark.parametrize("element_type", "f32 bf16 f16 f64 s32 s8 s64".split())
def test_topk_agrees_with_xla(element_type: str) -> None:
    cases = [
        Case(
            "topk",
            [random_array(element_type, (3, length), k)],
            f"({element_type}[3,{k}], s32[3,{k}])",
            f"k={k}, largest={largest}",
        )
        for length, k in ((37, 5), (500, 7), (10, 10))
        for largest in ("true", "false")
    ]
    assert_same_bytes(module_text(cases), *(case.operands[0] for case in cases))


def test_topk_refuses_a_k_beyond_the_dimension() -> None:
    with pytest.raises(ShapeError, match="between 0 and the last dimension's size, 4, but is 5"):
        evaluate(topk("f32", (3, 4), 5, True))


@pytest.mark.parametrize("dtype", "int8 uint8 int16 int32 int64 uint64".split())
@pytest.mark.parametrize("spread", [1, 300, 65535, 65536, None])
@pytest.mark.parametrize("count", [None, 5])
def test_orders_of_integers_are_stable_whatever_their_spread(dtype: str, spread: int | None, count: int | None) -> None:
    limits = np.iinfo(dtype)
    random = np.random.default_rng(9)
    for low in (limits.min, limits.max - min(spread or limits.max, limits.max - 1)):
        high = limits.max if spread is None else min(limits.max, int(low) + spread)
        key = random.integers(low, high, (3, 1000), dtype=dtype, endpoint=True)
        expected = np.argsort(key, axis=-1, kind="stable")[:, :count]
        assert (common.stable_argsort(key, count) == expected).all()
