"""Loops: their iterations, run many at a time, are accounted for as if each instruction had been looked at."""

from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hloexec
from hloexec import Module, ResourceError, ShadowRun
from hloexec.engine.devices.topology import topology_of
from hloexec.tools.shadowing import Loss
from hloexec.tools.shadowing.observer import ShadowObserver
from tests.drawing import normal
from tests.shadowing.running import exact_numbers, shadows_of
from tests.shadowing.test_truth import require_near


def _loop(carried: str, body: str, *, state: str, root: str, entry: str, times: int = 40, more: str = "") -> Module:
    """A module whose loop counts to `times`; `i` is the counter and `p` the state of the body, `carried` the types of
    what it carries besides."""
    condition = f"""
      p = (s32[], {carried}) parameter(0)
      i = s32[] get-tuple-element(p), index=0
      n = s32[] constant({times})
      ROOT again = pred[] compare(i, n), direction=LT"""
    return hloexec.parse(f"""HloModule m
{more}
add {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}}
condition {{ {condition}
}}
body {{
  p = (s32[], {carried}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  one = s32[] constant(1)
  next = s32[] add(i, one)
  {body}
  ROOT out = (s32[], {carried}) tuple(next, {root})
}}
ENTRY main {{
  {entry}
  zero = s32[] constant(0)
  start = (s32[], {carried}) tuple(zero, {state})
  loop = (s32[], {carried}) while(start), condition=condition, body=body
  ROOT result = {carried.split(", ")[0]} get-tuple-element(loop), index=1
}}
""")


def _sum(times: int = 40) -> Module:
    return _loop(
        f"bf16[], bf16[{times}]",
        f"""s = bf16[] get-tuple-element(p), index=1
        xs = bf16[{times}] get-tuple-element(p), index=2
        slice = bf16[1] dynamic-slice(xs, i), dynamic_slice_sizes={{1}}
        x = bf16[] reshape(slice)
        t = bf16[] add(s, x)""",
        state="begin, xs",
        root="t, xs",
        entry=f"begin = bf16[] constant(1)\n  xs = bf16[{times}] parameter(0)",
        times=times,
    )


def _recurrence() -> Module:
    """h = tanh(h w + x), of which all are kept; with a norm, which has a reduction, and a choice."""
    return _loop(
        "f32[40,4,3], f32[4,3], f32[3,3]",
        """hs = f32[40,4,3] get-tuple-element(p), index=1
        h = f32[4,3] get-tuple-element(p), index=2
        w = f32[3,3] get-tuple-element(p), index=3
        hw = f32[4,3] dot(h, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        sum = f32[4,3] add(hw, h)
        new = f32[4,3] tanh(sum)
        squares = f32[4,3] multiply(new, new)
        zero = f32[] constant(0)
        norm = f32[4] reduce(squares, zero), dimensions={1}, to_apply=add
        norms = f32[4,3] broadcast(norm), dimensions={0}
        scaled = f32[4,3] divide(new, norms)
        is_small = pred[4,3] compare(norms, squares), direction=GT
        chosen = f32[4,3] select(is_small, scaled, hw)
        row = f32[1,4,3] reshape(chosen)
        no = s32[] constant(0)
        kept = f32[40,4,3] dynamic-update-slice(hs, row, i, no, no)""",
        state="none, h, v",
        root="kept, chosen, w",
        entry="""nothing = f32[] constant(0)
        none = f32[40,4,3] broadcast(nothing), dimensions={}
        h = f32[4,3] parameter(0)
        w = f32[3,3] parameter(1)
        v = f32[3,3] multiply(w, w)""",
    )


def _counting() -> Module:
    """What is converted to integers, compared, and added up in bf16 of products in f32, where it absorbs them."""
    return _loop(
        "bf16[5], f32[5], s32[5]",
        """m = bf16[5] get-tuple-element(p), index=1
        x = f32[5] get-tuple-element(p), index=2
        k = s32[5] get-tuple-element(p), index=3
        wide = f32[5] convert(m)
        y = f32[5] multiply(x, x)
        sum = f32[5] add(wide, y)
        narrow = bf16[5] convert(sum)
        whole = s32[5] convert(sum)
        l = s32[5] add(k, whole)
        distance = f32[5] subtract(sum, wide)
        largest = f32[5] maximum(distance, x)
        nothing = f32[] constant(0)
        total = f32[] reduce(wide, nothing), dimensions={0}, to_apply=add
        small = f32[] constant(1e-4)
        part = f32[] multiply(total, small)
        parts = f32[5] broadcast(part), dimensions={}
        z = f32[5] add(largest, parts)""",
        state="m, x, k",
        root="narrow, z, l",
        entry="""m = bf16[5] parameter(0)
        x = f32[5] parameter(1)
        none = s32[] constant(0)
        k = s32[5] broadcast(none), dimensions={}""",
    )


MODULES = {
    "sum": (_sum(), [np.abs(normal(40) / 8).astype(ml_dtypes.bfloat16)]),
    "recurrence": (_recurrence(), [normal(4, 3), normal(3, 3, seed=1)]),
    "counting": (_counting(), [normal(5).astype(ml_dtypes.bfloat16), np.abs(normal(5, seed=1)) / 4]),
}


class _Watching:
    """Sees every instruction, so that no iterations are run together."""

    def __init__(self) -> None:
        self.count = 0

    def on_instruction(self, event: hloexec.Event) -> None:
        self.count += 1


class _Counting(ShadowObserver):
    """Counts the instructions that are looked at one by one."""

    seen = 0

    def on_instruction(self, event: hloexec.Event) -> None:
        self.seen += 1
        super().on_instruction(event)


def _by_place(found: ShadowRun) -> dict[tuple[str, str], Loss]:
    return {(loss.computation, loss.instruction): loss for loss in found.losses}


def require_alike(found: ShadowRun, expected: ShadowRun) -> None:
    """Two runs say the same. Looked at alone, an error is kept in f32, and shares below 1e-5 are forgotten each time."""
    assert (found.events, found.decisions, found.untold) == (expected.events, expected.decisions, expected.untold)
    for ours, theirs in zip(found.outputs, expected.outputs, strict=True):
        assert ours.relative_error == pytest.approx(theirs.relative_error, rel=1e-5)
        assert (ours.worst_index, ours.lost, ours.unit) == (theirs.worst_index, theirs.lost, theirs.unit)
        assert ours.digits == pytest.approx(theirs.digits, abs=1e-5)
    places, others = _by_place(found), _by_place(expected)
    for place in places.keys() | others.keys():
        if place not in places or place not in others:
            assert (places.get(place) or others[place]).share < 1e-3
            continue
        one, other = places[place], others[place]
        assert (one.kind, one.runs, one.affected) == (other.kind, other.runs, other.affected)
        assert (one.name, one.iteration) == (other.name, other.iteration)
        assert one.share == pytest.approx(other.share, abs=1e-3)
        assert one.lost_share == pytest.approx(other.lost_share, abs=1e-3)
        assert one.added == pytest.approx(other.added, rel=1e-3, abs=1e-12)
        assert one.inherited == pytest.approx(other.inherited, rel=1e-3, abs=1e-12)


@pytest.mark.parametrize("name", MODULES)
def test_iterations_together_say_what_they_say_one_by_one(name: str) -> None:
    module, inputs = MODULES[name]
    watching = _Watching()
    alone = hloexec.shadow(module, inputs, observers=[watching])
    together = hloexec.shadow(module, inputs)
    assert watching.count == alone.events
    assert together.losses
    require_alike(together, alone)


@pytest.mark.parametrize("name", MODULES)
def test_most_iterations_run_together(name: str) -> None:
    module, inputs = MODULES[name]
    observer = _Counting(module, None, topology_of(module))
    expected = hloexec.run(module, *inputs)
    (found,) = hloexec.run_devices(module, inputs, observers=[observer])
    assert np.asarray(found).tobytes() == np.asarray(expected).tobytes()
    assert observer.seen < observer.events / 10


def _step(size: int) -> Module:
    """v ← v + (x − v)/10 in bf16, w ← 8w/(1 + w²) + v and a sum, of large arrays; of w all are kept.

    Nothing here is a function that other processors round otherwise."""
    return _loop(
        f"f32[40,{size}], bf16[{size}], f32[{size}], f32[{size}]",
        f"""ws = f32[40,{size}] get-tuple-element(p), index=1
        v = bf16[{size}] get-tuple-element(p), index=2
        w = f32[{size}] get-tuple-element(p), index=3
        x = f32[{size}] get-tuple-element(p), index=4
        wide = f32[{size}] convert(v)
        distance = f32[{size}] subtract(x, wide)
        tenth = f32[] constant(0.1)
        tenths = f32[{size}] broadcast(tenth), dimensions={{}}
        part = f32[{size}] multiply(distance, tenths)
        small = bf16[{size}] convert(part)
        next_v = bf16[{size}] add(v, small)
        unit = f32[] constant(1)
        ones = f32[{size}] broadcast(unit), dimensions={{}}
        square = f32[{size}] multiply(w, w)
        below = f32[{size}] add(ones, square)
        eight = f32[] constant(8)
        eights = f32[{size}] broadcast(eight), dimensions={{}}
        scaled = f32[{size}] multiply(w, eights)
        product = f32[{size}] divide(scaled, below)
        next_wide = f32[{size}] convert(next_v)
        is_less = pred[{size}] compare(w, x), direction=LT
        either = f32[{size}] select(is_less, next_wide, x)
        nothing = f32[] constant(0)
        total = f32[] reduce(either, nothing), dimensions={{0}}, to_apply=add
        count = f32[] constant({size})
        mean = f32[] divide(total, count)
        means = f32[{size}] broadcast(mean), dimensions={{}}
        sum = f32[{size}] add(product, either)
        next_w = f32[{size}] add(sum, means)
        row = f32[1,{size}] reshape(next_w)
        no = s32[] constant(0)
        kept = f32[40,{size}] dynamic-update-slice(ws, row, i, no)""",
        state="none, v, w, x",
        root="kept, next_v, next_w, x",
        entry=f"""nothing = f32[] constant(0)
        none = f32[40,{size}] broadcast(nothing), dimensions={{}}
        v = bf16[{size}] parameter(0)
        w = f32[{size}] parameter(1)
        x = f32[{size}] parameter(2)""",
    )


def _runs_of(module: Module, inputs: list[Any]) -> tuple[ShadowRun, ShadowRun, int]:
    """What iterations say together, and one by one; and how many instructions were looked at in the former."""
    counting = _Counting(module, None, topology_of(module))
    hloexec.run_devices(module, inputs, observers=[counting])
    alone = hloexec.shadow(module, inputs, observers=[_Watching()])
    return hloexec.shadow(module, inputs), alone, counting.seen


def test_some_elements_of_large_arrays_stand_for_all() -> None:
    size = 3000
    module = _step(size)
    inputs = [normal(size).astype(ml_dtypes.bfloat16), normal(size, seed=1), normal(size, seed=2)]
    together, alone, seen = _runs_of(module, inputs)
    assert seen < together.events / 10
    assert (together.events, together.decisions) == (alone.events, alone.decisions)
    (ours,), (theirs,) = together.outputs, alone.outputs
    assert ours.relative_error == pytest.approx(theirs.relative_error, rel=1e-5)
    assert (ours.worst_index, ours.lost, ours.unit) == (theirs.worst_index, theirs.lost, theirs.unit)
    places, others = _by_place(together), _by_place(alone)
    # The sum of the squares of 256 numbers is within 20 % of 256 times their mean, mostly, and that of 2048 within 7 %.
    for place in places.keys() | others.keys():
        if place not in places or place not in others:
            assert (places.get(place) or others[place]).share < 1e-3
            continue
        one, other = places[place], others[place]
        assert one.runs == other.runs
        assert one.share == pytest.approx(other.share, abs=0.02)
        if other.share > 0.02:
            assert one.kind == other.kind
            assert one.added == pytest.approx(other.added, rel=0.3)
            assert one.inherited == pytest.approx(other.inherited, rel=0.2)


def test_an_infinity_in_a_large_array_is_not_missed() -> None:
    """Of 20 000 numbers one overflows in one iteration, in what the loop does not carry."""
    size = 20000
    module = _loop(
        f"f32[{size}]",
        f"""w = f32[{size}] get-tuple-element(p), index=1
        factor = f32[] constant(1.04)
        factors = f32[{size}] broadcast(factor), dimensions={{}}
        grown = f32[{size}] multiply(w, factors)
        e = f32[{size}] exponential(grown)
        small = f32[{size}] divide(grown, e)
        sum = f32[{size}] add(grown, small)
        limit = f32[] constant(88.8)
        limits = f32[{size}] broadcast(limit), dimensions={{}}
        is_large = pred[{size}] compare(grown, limits), direction=GT
        half = f32[] constant(0.5)
        halves = f32[{size}] broadcast(half), dimensions={{}}
        next_w = f32[{size}] select(is_large, halves, sum)""",
        state="w",
        root="next_w",
        entry=f"w = f32[{size}] parameter(0)",
    )
    w = 1 + np.random.default_rng(0).random(size, np.float32)
    w[12345] = 40
    together, alone, seen = _runs_of(module, [w])
    assert seen > together.events / 3
    assert [loss.kind for loss in alone.losses].count("overflow") == 1
    assert together.culprit is not None and alone.culprit is not None
    assert (together.culprit.instruction, together.culprit.kind) == (alone.culprit.instruction, alone.culprit.kind)
    assert _by_place(together)["body", "e"].affected == _by_place(alone)["body", "e"].affected


@pytest.mark.slow
def test_errors_in_few_elements_of_large_arrays_are_not_missed() -> None:
    """All numbers but one stay what they are."""
    size = 4000
    v, w, x = np.zeros(size, ml_dtypes.bfloat16), np.zeros(size, np.float32), np.zeros(size, np.float32)
    w[1234] = 0.7
    module = _step(size)
    text = hloexec.format(module).replace("add(%sum, %means)", "add(%sum, %product)")
    module = hloexec.parse(text)
    together, alone, seen = _runs_of(module, [v, w, x])
    assert seen == together.events
    require_alike(together, alone)


@pytest.mark.parametrize("begin", ["0", "-inf", "nan"])
def test_what_a_stack_holds_at_first_hides_no_error(begin: str) -> None:
    module = _loop(
        "f32[60,3], f32[3]",
        """ys = f32[60,3] get-tuple-element(p), index=1
        x = f32[3] get-tuple-element(p), index=2
        y = f32[3] cosine(x)
        row = f32[1,3] reshape(y)
        no = s32[] constant(0)
        new = f32[60,3] dynamic-update-slice(ys, row, i, no)""",
        state="ys, x",
        root="new, y",
        entry=f"""first = f32[] constant({begin})
        ys = f32[60,3] broadcast(first), dimensions={{}}
        x = f32[3] parameter(0)""",
    )
    together, alone, seen = _runs_of(module, [normal(3)])
    assert seen < together.events / 10
    assert together.losses
    require_alike(together, alone)


@pytest.mark.parametrize(("length", "slow"), [(1, 4), (3, 3)])
def test_what_is_not_written_over_is_to_blame_for_its_part(length: int, slow: int) -> None:
    """Of an array of numbers that are wrong before, in which windows are written over and over."""
    module = _loop(
        "f32[20], f32[3]",
        f"""ys = f32[20] get-tuple-element(p), index=1
        x = f32[3] get-tuple-element(p), index=2
        y = f32[3] multiply(x, x)
        z = f32[{length}] slice(y), slice={{[0:{length}]}}
        slow = s32[] constant({slow})
        at = s32[] divide(i, slow)
        new = f32[20] dynamic-update-slice(ys, z, at)
        more = f32[3] add(y, x)
        third = f32[] constant(0.34)
        thirds = f32[3] broadcast(third), dimensions={{}}
        next_x = f32[3] multiply(more, thirds)""",
        state="wrong, x",
        root="new, next_x",
        entry="""ys = f32[20] parameter(0)
        wrong = f32[20] multiply(ys, ys)
        x = f32[3] parameter(1)""",
    )
    inputs = [normal(20), np.abs(normal(3))]
    together, alone, seen = _runs_of(module, inputs)
    assert seen < together.events / 2
    assert together.outputs[0].relative_error == pytest.approx(alone.outputs[0].relative_error, rel=1e-5)
    observer = ShadowObserver(module, None, topology_of(module))
    (found,) = hloexec.run_devices(module, inputs, observers=[observer])
    values = exact_numbers(found)
    assert values == exact_numbers(hloexec.run(module, *inputs))
    exact = shadows_of(module, inputs)[0, 0]
    errors = [float(number - value) ** 2 for number, value in zip(exact, values, strict=True)]
    untouched = sum(errors[39 // slow + length :])
    # What is handed on of an array are its shares as a whole, of which a part has been overwritten.
    assert _by_place(together)["main", "wrong"].share == pytest.approx(untouched / sum(errors), abs=0.01)


def test_what_a_loop_carries_has_the_exact_sum_beside_it() -> None:
    times = 1200
    module = _sum(times)
    x = np.abs(normal(times)).astype(ml_dtypes.bfloat16)
    expected = [Fraction(1) + sum(exact_numbers(x))]
    require_near(shadows_of(module, [x])[0, 0], expected, hloexec.run(module, x), 2.0**-20)
    found = hloexec.shadow(module, [x])
    assert found.culprit is not None
    assert (found.culprit.instruction, found.culprit.kind) == ("t", "lost updates")
    # The first sums may be exact.
    assert times - 10 < found.culprit.runs <= times


def _products(kind: str, start: str, factor: str, times: int, after: str) -> Module:
    """x times a factor again and again, and then something of it."""
    module = _loop(
        f"{kind}[]",
        f"""x = {kind}[] get-tuple-element(p), index=1
        f = {kind}[] constant({factor})
        y = {kind}[] multiply(x, f)""",
        state="x",
        root="y",
        entry=f"x = {kind}[] constant({start})",
        times=times,
    )
    text = hloexec.format(module).replace("ROOT %result", "%last").replace("ROOT result", "last")
    end = text.rindex("}")
    return hloexec.parse(f"{text[:end]}  ROOT %after = {kind}[] {after}(%last)\n}}\n")


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        (_products("f16", "1.5", "2.5", 30, "negate"), "overflow"),
        (_products("f16", "1.5", "0.125", 30, "log"), "underflow"),
    ],
    ids=["overflows", "vanishes"],
)
def test_a_number_that_a_loop_loses_is_told(module: Module, kind: str) -> None:
    found = hloexec.shadow(module, [])
    assert found.outputs[0].lost == 1
    assert found.culprit is not None
    assert (found.culprit.instruction, found.culprit.kind) == ("y", kind)
    assert found.culprit.lost_share == pytest.approx(1)
    require_alike(found, hloexec.shadow(module, [], observers=[_Watching()]))


def test_a_loop_in_a_loop_is_accounted_for() -> None:
    module, inputs = MODULES["sum"]
    text = hloexec.format(module)
    outer = text.replace("ENTRY ", "").replace("%main", "%inner").replace("main", "inner")
    calls = """
outer_body {
  q = (s32[], bf16[40]) parameter(0)
  j = s32[] get-tuple-element(q), index=0
  ys = bf16[40] get-tuple-element(q), index=1
  s = bf16[] call(ys), to_apply=inner
  eighth = bf16[] constant(0.0078125)
  t = bf16[] multiply(s, eighth)
  ts = bf16[40] broadcast(t), dimensions={}
  mixed = bf16[40] multiply(ts, ys)
  step = s32[] constant(1)
  k = s32[] add(j, step)
  ROOT r = (s32[], bf16[40]) tuple(k, mixed)
}
outer_condition {
  q = (s32[], bf16[40]) parameter(0)
  j = s32[] get-tuple-element(q), index=0
  n = s32[] constant(12)
  ROOT again = pred[] compare(j, n), direction=LT
}
ENTRY main {
  x = bf16[40] parameter(0)
  zero = s32[] constant(0)
  start = (s32[], bf16[40]) tuple(zero, x)
  loop = (s32[], bf16[40]) while(start), condition=outer_condition, body=outer_body
  ROOT y = bf16[40] get-tuple-element(loop), index=1
}
"""
    nested = hloexec.parse(outer + calls)
    require_alike(hloexec.shadow(nested, inputs), hloexec.shadow(nested, inputs, observers=[_Watching()]))


def test_a_condition_on_floats_decides_and_is_told() -> None:
    module = hloexec.parse("""HloModule m
condition {
  p = (bf16[], bf16[]) parameter(0)
  x = bf16[] get-tuple-element(p), index=0
  limit = bf16[] constant(30)
  twice = bf16[] add(x, x)
  ROOT again = pred[] compare(twice, limit), direction=LT
}
body {
  p = (bf16[], bf16[]) parameter(0)
  x = bf16[] get-tuple-element(p), index=0
  h = bf16[] get-tuple-element(p), index=1
  y = bf16[] add(x, h)
  ROOT r = (bf16[], bf16[]) tuple(y, h)
}
ENTRY main {
  x = bf16[] constant(1)
  h = bf16[] constant(0.3)
  start = (bf16[], bf16[]) tuple(x, h)
  loop = (bf16[], bf16[]) while(start), condition=condition, body=body
  ROOT y = bf16[] get-tuple-element(loop), index=0
}
""")
    found = hloexec.shadow(module, [])
    assert found.decisions
    require_alike(found, hloexec.shadow(module, [], observers=[_Watching()]))


def test_a_limit_of_iterations_holds() -> None:
    module, inputs = MODULES["sum"]
    with pytest.raises(ResourceError, match="max_iterations=20"):
        hloexec.shadow(module, inputs, max_iterations=20)
