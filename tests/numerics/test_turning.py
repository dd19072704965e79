"""Decisions that rounding may turn are turned: what follows from them is *not decided*, and a fault beside is seen."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hloexec
from hloexec.analysis.numerics.comparison import Comparison, Verdict
from hloexec.tools.golden.checking import Outcome
from tests.text.building import module

ARGMAX = module(
    """x = f32[64,12] parameter(0)
    w = f32[64,12] parameter(1)
    table = f32[12,500] parameter(2)
    s = f32[64,12] multiply(x, w)
    i = s32[64,12] iota(), iota_dimension=1
    low = f32[] constant(-inf)
    none = s32[] constant(0)
    r = (f32[64], s32[64]) reduce(s, i, low, none), dimensions={1}, to_apply=larger
    chosen = s32[64] get-tuple-element(r), index=1
    rows = f32[64,500] gather(table, chosen), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0},
      index_vector_dim=1, slice_sizes={1,500}
    ROOT y = f32[64,500] tanh(rows)""",
    """larger { a = f32[] parameter(0)
    i = s32[] parameter(1)
    b = f32[] parameter(2)
    j = s32[] parameter(3)
    more = pred[] compare(a, b), direction=GT
    same = pred[] compare(a, b), direction=EQ
    before = pred[] compare(i, j), direction=LT
    first = pred[] and(same, before)
    is = pred[] or(more, first)
    value = f32[] select(is, a, b)
    place = s32[] select(is, i, j)
    ROOT t = (f32[], s32[]) tuple(value, place) }""",
)
"""Rows of a table, each that of the largest of twelve products."""


def draw(distance: float) -> list[Any]:
    """Arguments of ARGMAX. In row 7, the second largest product is some last places less than the largest."""
    random = np.random.default_rng(1)
    x, w = random.uniform(0.1, 0.5, (64, 12)).astype(np.float32), np.ones((64, 12), np.float32)
    w[7] = 0.97
    x[7, 3] = 0.9
    x[7, 8] = x[7, 3] - np.float32(distance * 2.0**-24)
    return [x, w, random.standard_normal((12, 500)).astype(np.float32)]


def compared(
    text: str, arguments: Sequence[Any], change: Callable[[np.ndarray[Any, Any]], None], **options: Any
) -> Comparison:
    parsed = hloexec.parse(text)
    ours = np.array(hloexec.run(parsed, *arguments))
    theirs = ours.copy()
    change(theirs)
    return hloexec.compare(ours, theirs, module=parsed, inputs=[*arguments], **options)


def turned(arguments: Sequence[Any]) -> np.ndarray[Any, Any]:
    """What row 7 is if the other product is the largest."""
    return np.tanh(arguments[2][8].astype(np.float64)).astype(np.float32)


@pytest.mark.parametrize(
    ("distance", "fault", "expected"),
    [
        (1, "", Verdict.NOT_DECIDED),
        (40, "", Verdict.DIFFERENT),
        (1, "an element beside it", Verdict.DIFFERENT),
        (1, "a row that no decision gives", Verdict.DIFFERENT),
    ],
)
def test_what_a_close_choice_decides_is_not_decided(distance: float, fault: str, expected: Verdict) -> None:
    arguments = draw(distance)

    def change(theirs: np.ndarray[Any, Any]) -> None:
        theirs[7] = np.tanh(arguments[2][5]) if "row" in fault else turned(arguments)
        if "element" in fault:
            theirs[7, 4] *= 1.001

    assert compared(ARGMAX, arguments, change).verdict is expected


LOOP = module(
    """x = f32[300] parameter(0)
    zero = s32[] constant(0)
    start = (f32[300], s32[]) tuple(x, zero)
    ROOT end = (f32[300], s32[]) while(start), condition=goes_on, body=step""",
    """goes_on { p = (f32[300], s32[]) parameter(0)
    x = f32[300] get-tuple-element(p), index=0
    first = f32[1] slice(x), slice={[0:1]}
    one = f32[] reshape(first)
    least = f32[] constant(LEAST)
    ROOT c = pred[] compare(one, least), direction=GT }
step { p = (f32[300], s32[]) parameter(0)
    x = f32[300] get-tuple-element(p), index=0
    n = s32[] get-tuple-element(p), index=1
    one = s32[] constant(1)
    share = f32[] constant(0.7)
    shares = f32[300] broadcast(share), dimensions={}
    y = f32[300] multiply(x, shares)
    m = s32[] add(n, one)
    ROOT t = (f32[300], s32[]) tuple(y, m) }""",
)
"""Numbers become smaller until the first is small."""


@pytest.mark.parametrize(
    ("ulps", "fault", "expected"),
    [(1, 0.0, Verdict.NOT_DECIDED), (40, 0.0, Verdict.DIFFERENT), (1, 1e-4, Verdict.DIFFERENT)],
)
def test_a_loop_may_end_later(ulps: int, fault: float, expected: Verdict) -> None:
    x = np.random.default_rng(0).uniform(1, 2, 300).astype(np.float32)
    after = [x]
    for _ in range(5):
        after.append(after[-1] * np.float32(0.7))
    # The loop ends after three iterations, for as many last places.
    least = float(after[3][0]) + ulps * float(np.spacing(after[3][0]))
    parsed = hloexec.parse(LOOP.replace("LEAST", f"{least:.10g}"))
    ours = hloexec.run(parsed, x)
    assert ours[1] == 3
    theirs = (after[4] * np.where(np.arange(300) == 9, np.float32(1 + fault), np.float32(1)), np.int32(4))
    assert hloexec.compare(ours, theirs, module=parsed, inputs=[x]).verdict is expected


def test_of_equal_numbers_either_may_be_the_larger() -> None:
    """As many products are in bf16, where exact ones are not."""
    text = ARGMAX.replace("f32[64,12]", "bf16[64,12]").replace("f32[64])", "f32[64])")
    text = text.replace("(f32[64], s32[64])", "(bf16[64], s32[64])").replace("low = f32[]", "low = bf16[]")
    head, _, tail = text.partition("ROOT t = (f32[], s32[])")
    head = head.replace("f32[] parameter(0)", "bf16[] parameter(0)").replace(
        "f32[] parameter(2)", "bf16[] parameter(2)"
    )
    text = head.replace("value = f32[]", "value = bf16[]") + "ROOT t = (bf16[], s32[])" + tail
    x, w, table = draw(0)
    x[7, 3], w[7, 3], x[7, 8], w[7, 8] = 0.8984375, 0.96875, 0.90234375, 0.96484375
    arguments = [x.astype(ml_dtypes.bfloat16), w.astype(ml_dtypes.bfloat16), table]

    def change(theirs: np.ndarray[Any, Any]) -> None:
        theirs[7] = turned(arguments)

    found = compared(text, arguments, change)
    assert found.verdict is Verdict.NOT_DECIDED
    assert "a decision of %r may go either way (0.0 spreads" in str(found)


def test_a_golden_leaves_it_open(tmp_path: Path) -> None:
    arguments = draw(1)
    parsed = hloexec.parse(ARGMAX)
    folder = hloexec.record_golden(parsed, arguments, tmp_path / "m.golden").folder
    theirs = np.array(hloexec.run(parsed, *arguments))
    theirs[7] = turned(arguments)
    assert hloexec.check_golden(folder, actual=theirs).outcome is Outcome.NOT_DECIDED
    theirs[7, 4] *= 1.001
    assert hloexec.check_golden(folder, actual=theirs).outcome is Outcome.FAILED


@pytest.mark.parametrize("devices", ["", ", replica_count=2"])
@pytest.mark.parametrize(("fault", "expected"), [(0.0, Verdict.NOT_DECIDED), (50.0, Verdict.DIFFERENT)])
def test_decisions_are_turned_on_several_devices(devices: str, fault: float, expected: Verdict) -> None:
    """Of 64 products on either of two devices, one is as near to a whole number as rounding moves it."""
    text = module(
        """x = f32[64] parameter(0)
    w = f32[64] parameter(1)
    y = f32[64] parameter(2)
    p = f32[64] multiply(x, w)
    q = f32[64] multiply(p, w)
    f = f32[64] floor(q)
    g = f32[64] collective-permute(f), source_target_pairs={{0,0},{1,1}}
    ROOT s = f32[64] multiply(g, y)"""
    ).replace("HloModule m", "HloModule m" + devices, 1)
    parsed = hloexec.parse(text)
    random = np.random.default_rng(0)
    w, y = (random.uniform(1, 2, 64).astype(np.float32) for _ in range(2))
    x = ((random.integers(1, 9, 64) + 0.5) / w.astype(np.float64) ** 2).astype(np.float32)
    x[3], w[3] = 25 / 1.21, 1.1
    results = hloexec.run_devices(parsed, [[x, w, y], [x, w, y]])
    theirs = [np.array(result) for result in results]
    here = theirs[1][3] / y[3]
    theirs[1][3] = (24 if here == 25 else 25) * y[3]
    theirs[0][9] += np.float32(fault)
    found = hloexec.compare(tuple(results), tuple(theirs), module=parsed, inputs=[[x, w, y], [x, w, y]])
    assert found.verdict is expected
