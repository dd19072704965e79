"""Limits of runs: loops that never end, loops that are unrolled, nested or run by classes of devices, long runs."""

import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from hloexec.engine.exec.running import plan_of
from hloexec.engine.exec.statistics import Statistics
from tests.command_line import CommandLine

LOOP = """HloModule m
c {{
  s = (s32[], s32[], f32[100]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] get-tuple-element(s), index=1
  ROOT less = pred[] compare(i, n), direction={direction}
}}
b {{
  s = (s32[], s32[], f32[100]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] get-tuple-element(s), index=1
  x = f32[100] get-tuple-element(s), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  y = f32[100] negate(x)
  twice = f32[100] subtract(x, y)
  ROOT t = (s32[], s32[], f32[100]) tuple(next, n, twice)
}}
ENTRY e {{
  i = s32[] constant(0)
  n = s32[] parameter(0)
  x = f32[100] broadcast(f32[] constant(1)), dimensions={{}}
  s = (s32[], s32[], f32[100]) tuple(i, n, x)
  w = (s32[], s32[], f32[100]) while(s), condition=c, body=b
  ROOT r = f32[100] get-tuple-element(w), index=2
}}
"""
ENDLESS = hloexec.parse(LOOP.format(direction="NE"))
COUNTED = hloexec.parse(LOOP.format(direction="LT"))
NESTED = hloexec.parse(
    LOOP.format(direction="NE").split("ENTRY")[0]
    + """oc { p = s32[] parameter(0)
  seven = s32[] constant(7)
  ROOT less = pred[] compare(p, seven), direction=LT }
ob { p = s32[] parameter(0)
  zero = s32[] constant(0)
  minus = s32[] constant(-1)
  is_third = pred[] compare(p, s32[] constant(3)), direction=EQ
  n = s32[] select(is_third, minus, p)
  x = f32[100] broadcast(f32[] constant(1)), dimensions={}
  s = (s32[], s32[], f32[100]) tuple(zero, n, x)
  inner = (s32[], s32[], f32[100]) while(s), condition=c, body=b
  i = s32[] get-tuple-element(inner), index=0
  ROOT next = s32[] subtract(add(p, s32[] constant(1)), subtract(i, n)) }
ENTRY e { p = s32[] parameter(0)
  ROOT outer = s32[] while(p), condition=oc, body=ob }
"""
)
UNROLLED = hloexec.parse("""HloModule unrolled
c { s = (s32[], f32[100000]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(5)
  ROOT less = pred[] compare(i, n), direction=LT }
b { s = (s32[], f32[100000]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[100000] get-tuple-element(s), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  y = f32[100000] negate(x)
  twice = f32[100000] subtract(x, y)
  ROOT t = (s32[], f32[100000]) tuple(next, twice) }
ENTRY e { i = s32[] constant(0)
  x = f32[100000] broadcast(f32[] constant(1)), dimensions={}
  s = (s32[], f32[100000]) tuple(i, x)
  w = (s32[], f32[100000]) while(s), condition=c, body=b
  ROOT r = f32[100000] get-tuple-element(w), index=1 }
""")


@pytest.mark.parametrize("most", [1, 2, 15, 16, 17, 63, 64, 65, 1000])
@pytest.mark.parametrize("options", [{}, {"planner": False}, {"check": True}, {"statistics": Statistics()}])
def test_a_loop_ends_at_its_last_iteration(most: int, options: dict[str, object]) -> None:
    with pytest.raises(hloexec.ResourceError) as caught:
        hloexec.run(ENDLESS, -1, max_iterations=most, **options)  # type: ignore[arg-type]
    message = str(caught.value)
    assert f"%w in computation e failed: max_iterations={most} ends the loop, which has run {most} iteration" in message
    assert f"its condition c read i = {most}, n = -1" in message


@pytest.mark.parametrize("trips", [0, 1, 5, 16, 17, 64, 100])
def test_a_loop_of_as_many_iterations_runs_with_the_same_bits(trips: int) -> None:
    expected = hloexec.run(COUNTED, trips)
    assert_array_equal(hloexec.run(COUNTED, trips, max_iterations=max(trips, 1), timeout=600), expected)
    if trips > 1:
        with pytest.raises(hloexec.ResourceError, match=f"has run {trips - 1} iterations"):
            hloexec.run(COUNTED, trips, max_iterations=trips - 1)


def test_the_error_names_the_way_to_a_nested_loop() -> None:
    with pytest.raises(hloexec.ResourceError) as caught:
        hloexec.run(NESTED, 0, max_iterations=50)
    assert "%inner in computation ob, reached through outer[3]:ob failed: max_iterations=50 ends the loop" in str(
        caught.value
    )
    assert "its condition c read i = 50, n = -1" in str(caught.value)


def test_unrolled_loops_have_iterations() -> None:
    assert any(step.scope.iteration == 4 for step in plan_of(UNROLLED).program)
    assert_array_equal(hloexec.run(UNROLLED, max_iterations=5), np.full(100_000, 32, np.float32))
    with pytest.raises(hloexec.ResourceError, match="max_iterations=4 ends the loop %w, which has more"):
        hloexec.run(UNROLLED, max_iterations=4)


@pytest.mark.parametrize("options", [{}, {"planner": False}])
def test_a_run_ends_when_its_time_is_over(options: dict[str, object]) -> None:
    started = time.monotonic()
    with pytest.raises(hloexec.ResourceError) as caught:
        hloexec.run(ENDLESS, -1, timeout=0.1, **options)  # type: ignore[arg-type]
    assert time.monotonic() - started < 10
    message = str(caught.value)
    assert "timeout=0.1 ends the run" in message
    assert "%w" in message
    assert "its condition c read i = " in message
    assert "n = -1" in message


def test_loops_of_classes_of_devices_have_limits() -> None:
    inputs = [[np.int32(count)] for count in (3, 3, 40, 5)]
    results = hloexec.run_devices(COUNTED, inputs, replicas=4, max_iterations=40)
    assert [float(result[0]) for result in results if isinstance(result, np.ndarray)] == [8, 8, 2**40, 32]
    with pytest.raises(hloexec.ResourceError, match="has run 39 iterations"):
        hloexec.run_devices(COUNTED, inputs, replicas=4, max_iterations=39)


@pytest.mark.parametrize(
    "options",
    [{"max_iterations": 0}, {"max_iterations": 1.5}, {"max_iterations": "3"}, {"timeout": -1}, {"timeout": "1s"}],
)
def test_wrong_limits_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(hloexec.InputError, match=next(iter(options))):
        hloexec.run(COUNTED, 3, **options)  # type: ignore[arg-type]


def test_tools_and_commands_take_limits(tmp_path: Path, cli: CommandLine) -> None:
    with pytest.raises(hloexec.ResourceError, match="has run 9 iterations"):
        hloexec.find_nan(ENDLESS, [-1], max_iterations=9)
    path = tmp_path / "endless.hlo"
    path.write_text(hloexec.format(ENDLESS))
    np.savez(tmp_path / "inputs.npz", **{"0": np.int32(-1)})
    for command in ("run", "nan"):
        options = ["--inputs", str(tmp_path / "inputs.npz"), "--max-iterations", "20"]
        assert "which has run 20 iterations" in cli.complaint(
            command, path, *options, code=1 if command == "run" else 2
        )


DEEP = "(" * 3000 + "f32[]" + ")" * 3000
DEEP_TUPLE = f"HloModule m\nENTRY e {{\n  p = {DEEP} parameter(0)\n  ROOT r = ({DEEP}) tuple(p)\n}}\n"
DEEP_LOOP = f"""HloModule m
c {{
  s = {DEEP} parameter(0)
  ROOT no = pred[] constant(false)
}}
b {{
  ROOT s = {DEEP} parameter(0)
}}
ENTRY e {{
  p = {DEEP} parameter(0)
  ROOT r = {DEEP} while(p), condition=c, body=b
}}
"""


@pytest.mark.slow
@pytest.mark.parametrize("text", [DEEP_TUPLE, DEEP_LOOP], ids=["tuple", "loop"])
def test_tuples_nest_as_deep_as_they_like(text: str, tmp_path: Path) -> None:
    module = hloexec.parse(text)
    inputs = hloexec.random_inputs(module)
    result = hloexec.run(module, *inputs)
    leaf, depth = result, 0
    while isinstance(leaf, tuple):
        (leaf,) = leaf
        depth += 1
    assert depth == 3000 + (text is DEEP_TUPLE)
    assert hloexec.compare(result, result).agrees
    assert hloexec.diff(module, module, inputs).agrees
    assert hloexec.find_nan(module, inputs).finding is None
    assert hloexec.memory_usage(module).peak.bytes >= 4
    hloexec.record_golden(module, inputs, tmp_path / "m.golden")
    assert hloexec.check_golden(tmp_path / "m.golden").passed
    hloexec.trace(module, inputs, tmp_path / "trace")
    assert hloexec.extract(module, inputs, "r").check().has_same_bits


STATED = """HloModule stated

body {
  state = (s32[], f32[4096]) parameter(0)
  number = s32[] get-tuple-element(state), index=0
  x = f32[4096] get-tuple-element(state), index=1
  one = s32[] constant(1)
  next = s32[] add(number, one)
  root = f32[4096] sqrt(x)
  ROOT end = (s32[], f32[4096]) tuple(next, root)
}

condition {
  given = (s32[], f32[4096]) parameter(0)
  count = s32[] get-tuple-element(given), index=0
  most = s32[] constant(TIMES)
  ROOT goes_on = pred[] compare(count, most), direction=LT
}

ENTRY main {
  x = f32[4096] parameter(0)
  zero = s32[] constant(0)
  start = (s32[], f32[4096]) tuple(zero, x)
  loop = (s32[], f32[4096]) while(start), condition=condition, body=body, backend_config={"known_trip_count":{"n":"SAID"}}
  ROOT result = f32[4096] get-tuple-element(loop), index=1
}
"""


@pytest.mark.parametrize("times", [0, 1, 5, 40, 100_000])
@pytest.mark.parametrize("off", [0, 1, 2])
def test_a_trip_count_that_is_stated_wrongly_is_warned_of(times: int, off: int) -> None:
    """The loops are unrolled, or run as Python or step by step; where they repeat a state, iterations are skipped."""
    module = hloexec.parse(STATED.replace("TIMES", str(times)).replace("SAID", str(times + off)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hloexec.run(module, np.full(4096, 2, np.float32))
    said = f"says that it runs {times + off} time{'s' * (times + off != 1)} (known_trip_count), but runs {times}"
    assert [str(each.message) for each in caught] == [f"the loop %loop {said}"] * bool(off)
