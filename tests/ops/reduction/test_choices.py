"""argmin and argmax, found out by trying the reducer: against XLA, and step by step where XLA leaves the choice open."""

from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.ops.common import widen
from hloexec.ops.reduction import reduce
from tests.ops.evaluation import evaluate

# The reducers that JAX writes: a NaN is chosen, the first if there are several; of equal values the last one, but the
# lowest place. `first` takes the first of both.
_JAX = """
  before = pred[] compare(x, y), direction={direction}
  is_nan = pred[] compare(x, x), direction=NE
  pick = pred[] or(before, is_nan)
  same = pred[] compare(x, y), direction=EQ
  lower = pred[] compare(i, j), direction=LT
  tie = pred[] and(same, lower)
  pick_place = pred[] or(pick, tie)"""
_FIRST = """
  before = pred[] compare(x, y), direction={direction[0]}E
  is_nan = pred[] compare(x, x), direction=NE
  pick = pred[] or(before, is_nan)
  pick_place = pred[] or(before, is_nan)"""
REDUCERS = {"jax": _JAX, "first": _FIRST}


def _text(element_type: str, sizes: tuple[int, int], direction: str, body: str, place_type: str = "s32") -> str:
    rows, length = sizes
    low = "true" if element_type == "pred" else "0"
    return f"""HloModule m

reducer {{
  x = {element_type}[] parameter(0)
  i = {place_type}[] parameter(1)
  y = {element_type}[] parameter(2)
  j = {place_type}[] parameter(3){body.format(direction=direction)}
  v = {element_type}[] select(pick, x, y)
  k = {place_type}[] select(pick_place, i, j)
  ROOT t = ({element_type}[], {place_type}[]) tuple(v, k)
}}

ENTRY e {{
  p = {element_type}[{rows},{length}] parameter(0)
  q = {place_type}[{rows},{length}] parameter(1)
  first = {element_type}[] constant({low})
  place = {place_type}[] constant(0)
  ROOT r = ({element_type}[{rows}], {place_type}[{rows}]) reduce(p, q, first, place), dimensions={{1}}, to_apply=reducer
}}
"""


def _values(element_type: str, sizes: tuple[int, int], kind: str) -> Any:
    """Few different values, so that there are ties, zeros of both signs, and two NaNs."""
    random = np.random.default_rng(3)
    storage = ELEMENT_TYPES[element_type].storage
    if not ELEMENT_TYPES[element_type].is_floating:
        return random.integers(-2, 3, sizes).astype(storage)
    pool = np.array([0.0, -0.0, -1, 1, np.inf, -np.inf, np.nan, np.nan], np.float32).astype(storage)
    bits = pool.view(f"u{pool.itemsize}")
    bits[-1] ^= 1
    return pool[random.integers(0, {"zeros": 2, "numbers": 6, "all": 8}[kind], sizes)]


def _one_by_one(values: Any, places: Any, direction: str, name: str) -> tuple[Any, Any]:
    """The reducer as it is written, on one element after the other, beginning with 0 at place 0."""
    chosen, chosen_places = [], []
    for row, row_places in zip(values, places, strict=True):
        x, i = row.dtype.type(0), row_places.dtype.type(0)
        for y, j in zip(row, row_places, strict=True):
            u, v = float(x), float(y)
            is_before = u < v if direction == "LT" else u > v
            is_first = is_before or u != u or (name == "first" and u == v)
            is_lower = name == "jax" and u == v and i < j
            x, i = x if is_first else y, i if is_first or is_lower else j
        chosen.append(x)
        chosen_places.append(i)
    return np.array(chosen, values.dtype), np.array(chosen_places, places.dtype)


@pytest.mark.parametrize("name", REDUCERS)
@pytest.mark.parametrize("direction", ["LT", "GT"])
@pytest.mark.parametrize(("element_type", "kind"), [("s32", "numbers"), ("f32", "numbers"), ("f32", "all")])
def test_a_single_short_row_is_chosen_from_after_the_initial_value(
    element_type: str, kind: str, direction: str, name: str
) -> None:
    module = hloexec.parse(_text(element_type, (1, 5), direction, REDUCERS[name]))
    places = np.arange(5, dtype=np.int32)[None]
    for row in _values(element_type, (40, 5), kind):
        found = hloexec.run(module, row[None], places)
        for ours, theirs in zip(found, _one_by_one(row[None], places, direction, name), strict=True):
            assert ours.tobytes() == theirs.tobytes(), row


@pytest.mark.parametrize("name", REDUCERS)
@pytest.mark.parametrize("direction", ["LT", "GT"])
@pytest.mark.parametrize(
    ("element_type", "kind"), [("s32", "numbers"), ("bf16", "all"), ("f32", "zeros"), ("f32", "all")]
)
def test_what_is_chosen_has_the_bits_of_one_step_after_the_other(
    element_type: str, kind: str, direction: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = 200, 33
    values = _values(element_type, sizes, kind)
    places = np.broadcast_to(np.arange(33, dtype=np.int32), sizes)
    used = []
    choose = reduce.Choice.chosen
    monkeypatch.setattr(reduce.Choice, "chosen", lambda *given: used.append(choose(*given)) or used[-1])
    found = evaluate(_text(element_type, sizes, direction, REDUCERS[name]), values, places)
    assert used[0] is not None
    for ours, theirs in zip(found, _one_by_one(values, places, direction, name), strict=True):
        assert ours.tobytes() == theirs.tobytes()


@pytest.mark.parametrize("name", REDUCERS)
def test_places_that_do_not_rise_are_compared(name: str) -> None:
    sizes = 100, 20
    values = _values("f32", sizes, "numbers")
    places = np.random.default_rng(4).permuted(np.broadcast_to(np.arange(20, dtype=np.int32), sizes), axis=1)
    found = evaluate(_text("f32", sizes, "LT", REDUCERS[name]), values, places)
    for ours, theirs in zip(found, _one_by_one(values, places, "LT", name), strict=True):
        assert ours.tobytes() == theirs.tobytes()


def test_argmin_of_many_rows_is_xlas() -> None:
    xla = pytest.importorskip("conformance.xla")
    sizes = 3000, 64
    values = np.random.default_rng(5).integers(-9, 9, sizes).astype(np.float32)
    values[np.random.default_rng(6).random(sizes) < 0.01] = np.nan
    places = np.broadcast_to(np.arange(64, dtype=np.int32), sizes)
    text = _text("f32", sizes, "LT", _JAX)
    for ours, theirs in zip(evaluate(text, values, places), xla.run_hlo(text, values, np.array(places)), strict=True):
        np.testing.assert_array_equal(widen(ours), widen(theirs))


@pytest.mark.parametrize(
    "body",
    [
        # No NaN wins: what is chosen depends on the grouping.
        "\n  pick = pred[] compare(x, y), direction=LT\n  pick_place = pred[] compare(x, y), direction=LT",
        # The place of the other one.
        _JAX.replace("pick_place = pred[] or(pick, tie)", "pick_place = pred[] not(pick)"),
    ],
)
def test_other_reducers_are_not_taken_for_it(body: str) -> None:
    sizes = 50, 40
    values = _values("f32", sizes, "numbers")
    places = np.broadcast_to(np.arange(40, dtype=np.int32), sizes)
    found = evaluate(_text("f32", sizes, "LT", body), values, places)
    is_other = "not(" in body
    for row, value, place in zip(values, *found, strict=True):
        x, i = np.float32(0), np.int32(0)
        for j, y in enumerate(row):
            is_first = x < y
            x, i = (x if is_first else y), (i if is_first != is_other else np.int32(j))
        assert (x.tobytes(), i) == (value.tobytes(), place)


def test_a_policy_that_flushes_denormals_takes_them_for_zeros() -> None:
    tiny = np.float32(1e-40)
    values = np.resize(np.array([tiny, 0, -tiny, 0, tiny], np.float32), (500, 21))
    places = np.broadcast_to(np.arange(21, dtype=np.int32), values.shape)
    module = hloexec.parse(_text("f32", (500, 21), "LT", _JAX))
    found: Any = [hloexec.run(module, values, places, numerics=numerics)[1] for numerics in ("reference", "ftz")]
    assert found[0].any()
    assert not found[1].any()
