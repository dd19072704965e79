"""What observers see, and that seeing changes nothing."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import hloexec
from hloexec.core.tree import flat
from hloexec.engine.exec import observers as observing
from hloexec.engine.exec import plan_of, run, watching
from hloexec.engine.plan.regions.region import RegionKernel
from hloexec.errors import EvaluationError, InputError
from tests.exec.programs import COUNTING_LOOP, parsed
from tests.plan.loops import loop
from tests.plan.random_programs import random_program

X = np.arange(4, dtype=np.float32)

FUSED = """HloModule m
fused { a = f32[4] parameter(0)
  c = f32[] constant(2)
  b = f32[4] broadcast(c), dimensions={}
  m = f32[4] multiply(a, b)
  ROOT t = (f32[4], f32[4]) tuple(m, a) }
ENTRY e { x = f32[4] parameter(0)
  y = (f32[4], f32[4]) fusion(x), kind=kLoop, calls=fused
  p = f32[4] get-tuple-element(y), index=0
  q = f32[4] get-tuple-element(y), index=1
  ROOT r = f32[4] add(p, q) }
"""


class Recorder:
    def __init__(self):
        self.events = []

    def on_instruction(self, event):
        self.events.append(event)


class Reporter:
    def __init__(self):
        self.reports = []

    def on_progress(self, progress):
        self.reports.append(progress)


def test_every_instruction_is_seen_with_its_value_and_path():
    recorder = Recorder()
    run(parsed(FUSED), X, observers=[recorder])
    seen = {event.name: event for event in recorder.events}
    assert list(seen) == "x y/a y/c y/b y/m y/t y p q r".split()
    assert_array_equal(seen["y/m"].value, 2 * X)
    assert_array_equal(seen["y"].value[0], 2 * X)
    assert_array_equal(seen["y"].value[1], X)
    assert_array_equal(seen["y/m"].operands[1], np.full(4, 2, np.float32))
    assert seen["y/m"].computation.name == "fused"
    assert [entry.instruction.name for entry in seen["y/m"].path] == ["y"]
    assert seen["y/m"].iteration is None


def test_iterations_of_a_loop_are_told_apart():
    recorder = Recorder()
    run(parsed(COUNTING_LOOP), X, observers=[recorder])
    names = [event.name for event in recorder.events]
    assert len(set(names)) == len(names)
    doubled = [event for event in recorder.events if event.instruction.name == "doubled"]
    assert [event.iteration for event in doubled] == [0, 1, 2, 3, 4]
    assert doubled[2].name == "loop[2]:body/doubled"
    assert_array_equal(doubled[2].value, 8 * X)
    checks = [event for event in recorder.events if event.instruction.name == "again"]
    assert [bool(event.value) for event in checks] == [True] * 5 + [False]
    assert recorder.events[-1].name == "loop"
    assert recorder.events[-1].value[0] == 5


def test_a_shared_computation_is_seen_once_per_call():
    big = "\n".join(f"  v{k} = f32[4] add(v{k - 1}, v{k - 1})" for k in range(1, 1500))
    calls = "\n".join(f"  c{k} = f32[4] call(x), to_apply=big" for k in range(4))
    text = f"HloModule m\nbig {{\n  v0 = f32[4] parameter(0)\n{big}\n  ROOT r = f32[4] add(v3, v1499)\n}}\n"
    text += f"ENTRY e {{\n  x = f32[4] parameter(0)\n{calls}\n  ROOT t = (f32[4], f32[4], f32[4], f32[4]) tuple(c0, c1, c2, c3)\n}}\n"
    recorder = Recorder()
    run(parsed(text), np.zeros(4, np.float32), observers=[recorder])
    names = [event.name for event in recorder.events]
    assert "c2/v7" in names
    assert len(set(names)) == len(names)
    assert sum(event.instruction.name == "v7" for event in recorder.events) == 4


def test_observers_change_no_result_and_may_keep_what_they_see():
    recorder = Recorder()
    watched = flat(run(parsed(COUNTING_LOOP), X, observers=[recorder]))
    for ours, theirs in zip(watched, flat(run(parsed(COUNTING_LOOP), X)), strict=True):
        assert_array_equal(ours, theirs)
    for value in flat(recorder.events[-1].value):
        assert not value.flags.writeable
        assert not any(np.shares_memory(value, leaf) for leaf in watched)


def test_observers_see_everything_whoever_ran_the_module_before():
    module = parsed(FUSED)
    names = []
    for _ in range(3):
        run(module, X)
        recorder = Recorder()
        run(module, X, observers=[recorder])
        names.append([event.name for event in recorder.events])
    assert names == ["x y/a y/c y/b y/m y/t y p q r".split()] * 3


@pytest.mark.parametrize("line", ["sine(x)", "reverse(x), dimensions={0}"])
def test_what_waits_to_be_shown_is_not_overwritten(line):
    """`a` is computed with `m`, behind the update; `s` is shown behind `a`."""
    text = f"""HloModule m
ENTRY e {{ x = f32[300,300] parameter(0)
  y = f32[2,2] parameter(1)
  z = s32[] constant(0)
  a = f32[300,300] add(x, x)
  s = f32[300,300] {line}
  d = f32[300,300] dynamic-update-slice(s, y, z, z)
  ROOT m = f32[300,300] multiply(a, d) }}"""
    x = np.random.default_rng(0).standard_normal((300, 300), dtype=np.float32)
    y = np.full((2, 2), 7, np.float32)
    recorder = Recorder()
    run(parsed(text), x, y, observers=[recorder])
    seen = {event.name: event.value for event in recorder.events}
    expected = np.sin(x, dtype=np.float64) if line.startswith("sine") else x[::-1]
    assert_allclose(seen["s"], expected, rtol=2.0**-22)
    assert_array_equal(seen["d"][:2, :2], y)


def test_an_error_of_an_observer_ends_the_run():
    """Nothing is run, and shown, a second time."""

    class Stopping(Recorder):
        def on_instruction(self, event):
            super().on_instruction(event)
            if event.name == "y/m":
                raise ValueError("enough")

    stopping = Stopping()
    with pytest.raises(EvaluationError, match="enough"):
        run(parsed(FUSED), X, observers=[stopping])
    assert [event.name for event in stopping.events] == "x y/a y/c y/b y/m".split()


def test_progress_ends_with_everything_done():
    reporter = Reporter()
    run(parsed(COUNTING_LOOP), X, observers=[reporter])
    assert reporter.reports[0].index == 1
    last = reporter.reports[-1]
    assert last.index == last.total
    assert last.instruction.name == "loop"


def test_progress_is_reported_in_every_run(monkeypatch):
    """However often the module has run before, so that it would be run as Python."""
    monkeypatch.setattr(observing, "_PROGRESS_SECONDS", 0.0)
    module = parsed(
        "HloModule m\nENTRY e { x = f32[4] parameter(0)\n  a = f32[4] sine(x)\n  ROOT b = f32[4] cosine(a) }"
    )
    found = []
    for _ in range(40):
        reporter = Reporter()
        run(module, X, observers=[reporter])
        run(module, X)
        found.append([(report.index, report.total) for report in reporter.reports])
    assert found[0]
    assert found == [found[0]] * 40


def test_progress_goes_on_through_a_long_loop(monkeypatch):
    monkeypatch.setattr(observing, "_PROGRESS_SECONDS", 0.0)
    monkeypatch.setattr(watching, "_LONG_SECONDS", 0.0)
    reporter = Reporter()
    text = loop({"a": "f32[4]"}, "  b = f32[4] sine(a)", "b", trips=1000)
    run(parsed(text), X, observers=[reporter])
    iterations = [report.iteration for report in reporter.reports if report.iteration is not None]
    assert iterations == sorted(iterations)
    assert np.diff([0, *iterations, 1000]).max() <= 100


def test_something_that_observes_nothing_is_refused():
    with pytest.raises(InputError, match="object has neither"):
        run(parsed(COUNTING_LOOP), X, observers=[object()])


@pytest.mark.parametrize("devices", [1, 2])
def test_a_run_lets_go_of_its_observers_when_it_ends(devices: int) -> None:
    class Observer:
        def on_instruction(self, event: object) -> None:
            pass

    program = random_program(7, devices=devices)
    module, observer = hloexec.parse(program.text), Observer()
    seen = weakref.ref(observer)
    gc.disable()
    try:
        if devices == 1:
            hloexec.run(module, *program.inputs[0], observers=[observer])
        else:
            hloexec.run_devices(module, program.inputs, observers=[observer])
        del observer
        assert seen() is None
    finally:
        gc.enable()


def test_large_regions_are_shown_one_value_after_the_other_with_the_same_bits(monkeypatch):
    """Their intermediate values are then not there all at once."""
    text = """HloModule m
    add { a = f32[] parameter(0)
      b = f32[] parameter(1)
      ROOT r = f32[] add(a, b) }
    ENTRY e { x = f32[512,1024] parameter(0)
      zero = f32[] constant(0)
      total = f32[512] reduce(x, zero), dimensions={1}, to_apply=add
      totals = f32[512,1024] broadcast(total), dimensions={0}
      centred = f32[512,1024] subtract(x, totals)
      power = f32[512,1024] exponential(centred)
      sum = f32[512] reduce(power, zero), dimensions={1}, to_apply=add
      sums = f32[512,1024] broadcast(sum), dimensions={0}
      ROOT r = f32[512,1024] divide(power, sums) }
    """
    x = np.random.default_rng(0).standard_normal((512, 1024), np.float32) / 96
    found = []
    for most in (watching._MOST_BYTES, -1):
        monkeypatch.setattr(watching, "_MOST_BYTES", most)
        recorder, module = Recorder(), parsed(text)
        run(module, x, observers=[recorder])
        assert any(isinstance(step.kernel, RegionKernel) for step in plan_of(module).steps)
        found.append([(event.name, np.asarray(event.value).tobytes()) for event in recorder.events])
    assert found[0] == found[1]
    assert len(found[0]) == 9


def test_events_name_the_iteration_of_the_loop_around_however_deep_they_stand():
    """In a branch of a branch of a loop's body."""
    branch = "{name} {{ x = f32[3] parameter(0)\n  {lines}\n}}\n"
    deepest = branch.format(name="deepest", lines="ROOT y = f32[3] sine(x)")
    other = branch.format(name="other", lines="ROOT y = f32[3] cosine(x)")
    inner = branch.format(
        name="inner",
        lines="k = s32[] constant(0)\n  ROOT y = f32[3] conditional(k, x, x), branch_computations={deepest, other}",
    )
    state = "(s32[], f32[3])"
    text = (
        f"HloModule m\n{deepest}{other}{inner}body {{ t = {state} parameter(0)\n"
        "  i = s32[] get-tuple-element(t), index=0\n  x = f32[3] get-tuple-element(t), index=1\n"
        "  one = s32[] constant(1)\n  j = s32[] add(i, one)\n  k = s32[] constant(1)\n"
        "  y = f32[3] conditional(k, x, x), branch_computations={other, inner}\n"
        f"  ROOT o = {state} tuple(j, y) }}\ncondition {{ t = {state} parameter(0)\n"
        "  i = s32[] get-tuple-element(t), index=0\n  n = s32[] constant(3)\n"
        "  ROOT m = pred[] compare(i, n), direction=LT }\n"
        "ENTRY e { x = f32[3] parameter(0)\n  z = s32[] constant(0)\n"
        f"  t = {state} tuple(z, x)\n  w = {state} while(t), condition=condition, body=body\n"
        "  ROOT r = f32[3] get-tuple-element(w), index=1 }\n"
    )
    found = []

    class Sines:
        def on_instruction(self, event):
            if event.instruction.opcode == "sine":
                found.append((event.iteration, event.name))

    hloexec.run(hloexec.parse(text), np.ones(3, np.float32), observers=[Sines()])
    assert found == [(turn, f"w[{turn}]:body/y:inner/y:deepest/y") for turn in range(3)]


def test_iterations_of_loops_that_are_written_out_keep_their_numbers():
    """Each within one of the other's."""

    def counting(name: str, lines: str, trips: int) -> str:
        return (
            f"{name} {{ s = (s32[], f32[300,300]) parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n"
            "  x = f32[300,300] get-tuple-element(s), index=1\n  one = s32[] constant(1)\n  n = s32[] add(i, one)\n"
            f"{lines}  ROOT t = (s32[], f32[300,300]) tuple(n, y) }}\n"
            f"{name}_goes_on {{ s = (s32[], f32[300,300]) parameter(0)\n  i = s32[] get-tuple-element(s), index=0\n"
            f"  end = s32[] constant({trips})\n  ROOT c = pred[] compare(i, end), direction=LT }}\n"
        )

    def looped(name: str) -> str:
        return (
            "  z = s32[] constant(0)\n  b = (s32[], f32[300,300]) tuple(z, x)\n"
            f"  w = (s32[], f32[300,300]) while(b), condition={name}_goes_on, body={name}\n"
        )

    text = (
        "HloModule m\n"
        + counting("inner", "  a = f32[300,300] sine(x)\n  y = f32[300,300] add(a, x)\n", 2)
        + counting("outer", looped("inner") + "  y = f32[300,300] get-tuple-element(w), index=1\n", 3)
        + "ENTRY e { x = f32[300,300] parameter(0)\n"
        + looped("outer")
        + "  ROOT r = f32[300,300] get-tuple-element(w), index=1 }\n"
    )
    module = parsed(text)
    assert not any(step.flow for step in plan_of(module).steps)
    recorder = Recorder()
    run(module, np.ones((300, 300), np.float32), observers=[recorder])
    sines = [event for event in recorder.events if event.instruction.opcode == "sine"]
    assert [event.name for event in sines] == [
        f"w[{outer}]:outer/w[{inner}]:inner/a" for outer in range(3) for inner in range(2)
    ]
    assert [event.iteration for event in sines] == [0, 1] * 3


def test_the_end_is_reported_however_recent_the_last_report_is():
    text = (
        "HloModule m\nless { a = f32[] parameter(0)\n  b = f32[] parameter(1)\n"
        "  ROOT r = pred[] compare(a, b), direction=LT }\n"
        "ENTRY e { x = f32[3] parameter(0)\n  a = f32[3] sine(x)\n"
        "  b = f32[3] sort(a), dimensions={0}, to_apply=less\n  ROOT c = f32[3] cosine(b) }"
    )
    for _ in range(3):
        reporter = Reporter()
        hloexec.run(hloexec.parse(text), np.ones(3, np.float32), observers=[reporter])
        assert reporter.reports[-1].index == reporter.reports[-1].total
        assert reporter.reports[-1].instruction.name == "c"


def test_an_asynchronous_call_is_seen_once_at_its_start_and_once_at_its_end():
    text = """HloModule m
called { a = f32[4] parameter(0)
  ROOT n = f32[4] negate(a) }
ENTRY e { x = f32[4] parameter(0)
  s = ((f32[4]), f32[4], u32[]) async-start(x), calls=called
  u = ((f32[4]), f32[4], u32[]) async-update(s)
  ROOT d = f32[4] async-done(u) }
"""
    recorder = Recorder()
    run(parsed(text), X, observers=[recorder])
    assert [event.name for event in recorder.events] == "x s/a s/n s u d".split()
    (operand,), result, _ = recorder.events[3].value
    assert_array_equal(operand, X)
    assert_array_equal(result, -X)
