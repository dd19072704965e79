"""Random inputs of modules whose sizes are known at run time: modules run on them, and sizes are as unlike as can be."""

from collections.abc import Sequence

import numpy as np
import pytest

import hloexec
from tests.text.building import module

KINDS = "normal uniform ones zeros iota special large edges".split()
SETS = "x = f32[8] parameter(0)\nn = s32[] parameter(1)\na = f32[<=8] set-dimension-size(x, n), dimensions={0}\n"
BOTH = SETS + "k = s32[] parameter(2)\nb = f32[<=8] set-dimension-size(x, k), dimensions={0}\n"
FORCED = {
    "a static result": "x = f32[8] parameter(0)\nn = s32[] parameter(1)\nROOT a = f32[8] set-dimension-size(x, n), dimensions={0}",
    "a reshape by parameters": (
        "x = f32[8] parameter(0)\nn = s32[] parameter(1)\nk = s32[] parameter(2)\n"
        "ROOT a = f32[<=4,<=2] dynamic-reshape(x, n, k)"
    ),
    "a reshape of unknown size": SETS + "k = s32[] parameter(2)\nROOT b = f32[<=8] dynamic-reshape(a, k)",
    "a reshape after arithmetic": (
        SETS + "k = s32[] parameter(2)\nt = f32[<=8] tanh(a)\nc = f32[<=8] add(t, t)\nROOT b = f32[<=8] dynamic-reshape(c, k)"
    ),
    "sizes of a sum": BOTH + "ROOT r = f32[<=8] add(a, b)",
    "sizes of a select": BOTH + "c = pred[<=8] compare(a, a), direction=LT\nROOT r = f32[<=8] select(c, a, b)",
    "sizes after other operations": (
        BOTH + "ra = f32[<=8] reverse(a), dimensions={0}\ntb = f32[<=8] tanh(b)\nROOT r = f32[<=8] multiply(ra, tb)"
    ),
    "rows that a reshape fills": SETS + "ROOT r = f32[<=4,2] reshape(a)",
}  # fmt: skip
FREE = {
    "a dynamic root": SETS + "ROOT r = f32[<=8] tanh(a)",
    "one size of both": SETS + "b = f32[<=8] set-dimension-size(x, n), dimensions={0}\nROOT r = f32[<=8] add(a, b)",
    "one value twice": SETS + "t = f32[<=8] tanh(a)\nROOT r = f32[<=8] add(a, t)",
    "joined": BOTH + "ROOT r = f32[<=16] concatenate(a, b), dimensions={0}",
    "a size that is asked": (
        SETS + "k = s32[] get-dimension-size(a), dimensions={0}\nROOT r = f32[<=8] dynamic-reshape(a, k)"
    ),
    "a reshape that has all sizes": SETS + "ROOT r = f32[1,<=8] reshape(a)",
}


@pytest.mark.parametrize("body", [pytest.param(body, id=name) for name, body in {**FORCED, **FREE}.items()])
@pytest.mark.parametrize("distribution", KINDS)
def test_modules_run_on_sizes_that_are_drawn(body: str, distribution: str) -> None:
    made = hloexec.parse(module(body))
    for seed in range(10):
        hloexec.run(made, *hloexec.random_inputs(made, seed, distribution))


@pytest.mark.parametrize("body", [pytest.param(body, id=name) for name, body in FREE.items()])
def test_sizes_that_fit_each_other_stay_free(body: str) -> None:
    made = hloexec.parse(module(body))
    found = {int(hloexec.random_inputs(made, seed)[1]) for seed in range(200)}  # type: ignore[call-overload]
    assert found == set(range(9))


def ragged(rows: int, target: int, count: int, *, names: Sequence[str] = ("p", "q", "r", "s"), body: str = "") -> str:
    declared = [f"{name} = s32[{count}] parameter({number})" for number, name in enumerate("pqrs", 2)]
    return module(
        f"x = f32[{rows},4] parameter(0)\no = f32[{target},4] parameter(1)\n"
        + "\n".join(declared)
        + f"\n{body}\nROOT c = f32[{target},4] ragged-all-to-all(x, o, {', '.join(names)}), replica_groups={{{{0,1}}}}",
        header=", replica_count=2",
    )


RAGGED = {
    "equal": ragged(8, 8, 2),
    "unequal": ragged(64, 20, 2),
    "several parts for each": ragged(64, 80, 6),
    "few rows": ragged(2, 1, 4),
    "known sizes": ragged(16, 12, 2, names=("p", "z", "r", "s"), body="z = s32[2] constant({3, 7})"),
    "known offsets": ragged(16, 12, 2, names=("z", "q", "r", "s"), body="z = s32[2] constant({0, 14})"),
    "both offsets known": ragged(
        16, 12, 2, names=("z", "q", "y", "s"), body="z = s32[2] constant({0, 14})\ny = s32[2] constant({6, 3})"
    ),
    "all known but offsets of the input": ragged(
        16, 12, 2, names=("p", "y", "z", "s"), body="y = s32[2] constant({6, 3})\nz = s32[2] constant({0, 6})"
    ),
}


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in RAGGED.items()])
@pytest.mark.parametrize("distribution", KINDS)
def test_rows_that_are_sent_are_there(text: str, distribution: str) -> None:
    made = hloexec.parse(text)
    for seed in range(10):
        hloexec.run_devices(made, [hloexec.random_inputs(made, seed + k, distribution) for k in (0, 100)])


def test_rows_are_sent_from_and_to_all_places() -> None:
    made = hloexec.parse(RAGGED["unequal"])
    drawn = [hloexec.random_inputs(made, seed)[2:5] for seed in range(200)]
    starts, sizes, targets = (np.array([each[k] for each in drawn]) for k in range(3))
    assert starts.min() == 0 and starts.max() == 54
    assert sizes.min() == 0 and sizes.max() == 10
    assert targets.min() == 0 and targets.max() == 10
