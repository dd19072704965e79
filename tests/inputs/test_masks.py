"""Integers that a module uses as masks and as segments, recognized by use; those that are not, left as they are."""

from typing import Any

import numpy as np
import pytest

from hloexec.engine.inputs import random_inputs
from hloexec.language.text.parser import parse
from tests.text.building import module, op


def values(body: str, **options: Any) -> list[Any]:
    return random_inputs(parse(module(body)), **options)


def constant(number: str, type_: str = "f32", name: str = "c") -> str:
    return f"{name}0 = {type_}[] constant({number})\n{name} = {type_}[4,8] broadcast({name}0), dimensions={{}}"


MASKS = {
    "taken from 1": f"m = s64[4,8] parameter(0)\nf = f32[4,8] convert(m)\n{constant('1')}\nROOT d = f32[4,8] subtract(c, f)",
    "taken from 1 as an integer": f"m = s32[4,8] parameter(0)\n{constant('1', 's32')}\nROOT d = s32[4,8] subtract(c, m)",
    "less 1": f"m = u8[4,8] parameter(0)\nf = bf16[4,8] convert(m)\n{constant('1', 'bf16')}\nROOT d = bf16[4,8] subtract(f, c)",
    "times a penalty": f"m = s32[4,8] parameter(0)\nf = f32[4,8] convert(m)\n{constant('-1e9')}\nROOT d = f32[4,8] multiply(f, c)",
    "broadcast": (
        "m = s32[4] parameter(0)\nf = f32[4] convert(m)\nb = f32[4,8] broadcast(f), dimensions={0}\n"
        f"{constant('1')}\nROOT d = f32[4,8] subtract(c, b)"
    ),
    "compared with 0": f"m = s32[4,8] parameter(0)\n{constant('0', 's32')}\nROOT d = pred[4,8] compare(m, c), direction=NE",
    "compared with 1": f"m = s32[4,8] parameter(0)\n{constant('1', 's32')}\nROOT d = pred[4,8] compare(m, c), direction=EQ",
    "above 0": f"m = s32[4,8] parameter(0)\n{constant('0', 's32')}\nROOT d = pred[4,8] compare(m, c), direction=GT",
    "0 below it": f"m = s32[4,8] parameter(0)\n{constant('0', 's32')}\nROOT d = pred[4,8] compare(c, m), direction=LT",
    "above a half": f"m = s32[4,8] parameter(0)\nf = f32[4,8] convert(m)\n{constant('0.5')}\nROOT d = pred[4,8] compare(f, c), direction=GT",
    "to pred": "m = s32[4,8] parameter(0)\nROOT d = pred[4,8] convert(m)",
    "and another": "m = s32[4,8] parameter(0)\nk = s32[4,8] parameter(1)\na = s32[4,8] and(m, k)\nROOT d = pred[4,8] convert(a)",
    "less 1 as an integer": (
        f"m = s32[4,8] parameter(0)\n{constant('1', 's32')}\nd = s32[4,8] subtract(m, c)\nf = f32[4,8] convert(d)\n"
        f"{constant('1e4', name='k')}\nROOT p = f32[4,8] multiply(f, k)"
    ),
    "negated, and 1 added": (
        f"m = s32[4,8] parameter(0)\nf = f32[4,8] convert(m)\nn = f32[4,8] negate(f)\n{constant('1')}\n"
        f"a = f32[4,8] add(n, c)\n{constant('-1e4', name='k')}\nROOT p = f32[4,8] multiply(k, a)"
    ),
    "times another": "m = s32[4,8] parameter(0)\nk = s32[4,8] parameter(1)\na = s32[4,8] multiply(m, k)\nROOT d = pred[4,8] convert(a)",
    "selects": (
        f"m = s32[4,8] parameter(0)\nx = f32[4,8] parameter(1)\n{constant('0', 's32')}\n{constant('-1e30', name='k')}\n"
        "p = pred[4,8] compare(m, c), direction=NE\nROOT d = f32[4,8] select(p, x, k)"
    ),
    "times activations": (
        "m = s32[4] parameter(0)\nx = f32[4,8] parameter(1)\nf = f32[4] convert(m)\n"
        "b = f32[4,8] broadcast(f), dimensions={0}\nROOT d = f32[4,8] multiply(x, b)"
    ),
}  # fmt: skip


@pytest.mark.parametrize("use", MASKS)
@pytest.mark.parametrize("distribution", "normal uniform iota special large edges".split())
def test_a_mask_is_0_and_1(use: str, distribution: str) -> None:
    found = set(values(MASKS[use], distribution=distribution)[0].reshape(-1).tolist())
    assert found <= {0, 1} and (len(found) == 2 or distribution == "large")


def test_a_penalty_in_f16_leaves_a_softmax_finite() -> None:
    """−10000 times (1 − 99) is infinite in f16, and every output NaN."""
    mask = values(MASKS["taken from 1"].replace("f32", "f16"))[0]
    with np.errstate(over="raise"):
        assert np.isfinite((np.float16(1) - mask.astype(np.float16)) * np.float16(-10000)).all()


def test_kinds_of_tokens_and_segments_are_few() -> None:
    kind = "k = s32[4,8] parameter(0)\n" + constant("2", "s32") + "\nROOT d = pred[4,8] compare(k, c), direction=EQ"
    assert set(values(kind)[0].reshape(-1).tolist()) == {0, 1, 2}
    same = op("pred[64,64] compare(q, k), direction=EQ", q="s32[64,64]", k="s32[64,64]")
    one, other = random_inputs(parse(same))
    assert set(np.unique(one)) == set(np.unique(other)) == {0, 1, 2, 3}


OTHERS = {
    "positions times frequencies": (
        "m = s32[4] parameter(0)\nw = f32[8] parameter(1)\nf = f32[4] convert(m)\n"
        "b = f32[4,8] broadcast(f), dimensions={0}\nv = f32[4,8] broadcast(w), dimensions={1}\n"
        "ROOT d = f32[4,8] multiply(b, v)"
    ),
    "weights times a scale": (
        "m = s8[4,8] parameter(0)\ns = f32[4] parameter(1)\nf = f32[4,8] convert(m)\n"
        "b = f32[4,8] broadcast(s), dimensions={0}\nROOT d = f32[4,8] multiply(f, b)"
    ),
    "pixels": f"m = u8[4,8] parameter(0)\nf = f32[4,8] convert(m)\n{constant('0.00392')}\nROOT d = f32[4,8] multiply(f, c)",
    "squared": "m = s32[4,8] parameter(0)\nf = f32[4,8] convert(m)\nROOT d = f32[4,8] multiply(f, f)",
    "the one before": f"m = s32[4,8] parameter(0)\n{constant('1', 's32')}\nROOT d = s32[4,8] subtract(m, c)",
    "negative?": f"m = s32[4,8] parameter(0)\n{constant('0', 's32')}\nROOT d = pred[4,8] compare(m, c), direction=LT",
    "below a limit": f"m = s32[4,8] parameter(0)\n{constant('50', 's32')}\nROOT d = pred[4,8] compare(m, c), direction=LT",
}  # fmt: skip


@pytest.mark.parametrize("use", OTHERS)
def test_other_integers_are_no_mask(use: str) -> None:
    assert np.abs(values(OTHERS[use])[0].astype(np.int64)).max() > 3


def test_tokens_that_are_compared_with_padding_stay_all_tokens() -> None:
    body = """table = f32[17,8] parameter(0)
    ids = s32[64] parameter(1)
    zero = s32[] constant(0)
    zeros = s32[64] broadcast(zero), dimensions={}
    kept = pred[64] compare(ids, zeros), direction=NE
    g = f32[64,8] gather(table, ids), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,8}
    ROOT t = (f32[64,8], pred[64]) tuple(g, kept)"""
    ids = values(body)[1]
    assert ids.min() >= 0 and ids.max() <= 16 and len(np.unique(ids)) > 10


def test_floats_that_are_taken_from_1_are_as_before() -> None:
    body = f"x = f32[4,8] parameter(0)\n{constant('1')}\nROOT d = f32[4,8] subtract(c, x)"
    plain = "x = f32[4,8] parameter(0)\nROOT d = f32[4,8] negate(x)"
    np.testing.assert_array_equal(values(body)[0], values(plain)[0])


def test_steps_of_a_loop_stay_few_with_edges() -> None:
    text = """HloModule m
    body { s = (s32[], s32[]) parameter(0)
      i = s32[] get-tuple-element(s), index=0
      n = s32[] get-tuple-element(s), index=1
      one = s32[] constant(1)
      j = s32[] add(i, one)
      ROOT t = (s32[], s32[]) tuple(j, n) }
    condition { s = (s32[], s32[]) parameter(0)
      i = s32[] get-tuple-element(s), index=0
      n = s32[] get-tuple-element(s), index=1
      ROOT c = pred[] compare(i, n), direction=LT }
    ENTRY main { n = s32[] parameter(0)
      zero = s32[] constant(0)
      s = (s32[], s32[]) tuple(zero, n)
      ROOT w = (s32[], s32[]) while(s), condition=condition, body=body }"""
    for seed in range(30):
        (n,) = random_inputs(parse(text), seed, "edges")
        assert n <= 100  # type: ignore[operator]


def test_starts_of_slices_go_beyond_their_bounds_with_edges() -> None:
    text = op("f32[2] dynamic-slice(x, i), dynamic_slice_sizes={2}", x="f32[10]", i="s32[]")
    found = {int(random_inputs(parse(text), seed, "edges")[1]) for seed in range(100)}  # type: ignore[call-overload]
    assert {-(2**31), -1, 0, 8, 9, 2**31 - 1} <= found
    corrected = """x = f32[17,8] parameter(0)
    p = s32[64] parameter(1)
    zero = s32[] constant(0)
    zeros = s32[64] broadcast(zero), dimensions={}
    size = s32[] constant(17)
    sizes = s32[64] broadcast(size), dimensions={}
    less = pred[64] compare(p, zeros), direction=LT
    sum = s32[64] add(p, sizes)
    ids = s32[64] select(less, sum, p)
    ROOT g = f32[64,8] gather(x, ids), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,8}"""
    ids = values(corrected, distribution="edges")[1]
    assert {-1, 0, 16, 17} <= set(ids.tolist()) and len(set(ids.tolist())) < ids.size
