"""`hloexec.step`: where a run stops, what it shows there, and what comes of other values."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from hloexec.errors import DeadlockError, EvaluationError, InputError, ResourceError
from tests.plan.ways import bits
from tests.stepping.programs import DEVICES, LOOP, SOURCES

V0 = np.array([0.5, 0.25], np.float32)
ONES = np.ones(4, np.float32)


def stepper(text: str = LOOP, *inputs: Any, **options: Any) -> hloexec.Stepper:
    return hloexec.step(hloexec.parse(text), list(inputs or [V0]), **options)


def iterates(count: int, v: Any = V0) -> list[Any]:
    """v, v² + v, … in f32, each operation rounded once, as the text says."""
    found = [v]
    for _ in range(count):
        found.append((found[-1] * found[-1]) + found[-1])
    return found


@pytest.fixture(autouse=True)
def no_threads_stay() -> Iterator[None]:
    yield
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("run of")]


def test_a_run_stops_after_an_instruction_in_each_of_its_runs() -> None:
    with stepper(breakpoints=["c"]) as run:
        values = [(stop.name, stop.iteration, stop.value) for stop in run]
        assert run.has_ended and not run.has_failed
        assert run.results is not None
        assert_array_equal(run.results[0], iterates(4)[-1].sum())
    assert [(name, iteration) for name, iteration, _ in values] == [(f"w[{i}]:body/f/c", i) for i in range(4)]
    for (_, _, value), expected in zip(values, iterates(4)[1:], strict=True):
        assert_array_equal(value, expected)


def test_a_run_that_is_stepped_gives_the_same_bits() -> None:
    module = hloexec.parse(LOOP)
    count = 0
    with hloexec.step(module, [V0]) as run:
        while run.step() is not None:
            count += 1
        assert run.results is not None
        assert bits(run.results[0]) == bits(hloexec.run(module, V0))
    assert count > 60


def test_step_goes_into_what_next_goes_over_and_out_leaves_it() -> None:
    with stepper(breakpoints=["body/next", "next"][1:]) as run:
        assert str(run.continue_()) == "breakpoint 1: w[0]:body/next"
        run.delete()
        assert run.next().name == "w[0]:body/f"  # type: ignore[union-attr]
        assert run.next().name == "w[0]:body/t"  # type: ignore[union-attr]
        assert run.next().name == "w[1]:condition/u"  # type: ignore[union-attr]
        run.break_at("a", iteration=1)
        assert run.continue_().name == "w[1]:body/f/a"  # type: ignore[union-attr]
        assert run.step().name == "w[1]:body/f/b/p"  # type: ignore[union-attr]
        assert run.out().name == "w[1]:body/f/b"  # type: ignore[union-attr]
        assert run.out().name == "w[1]:body/f"  # type: ignore[union-attr]
        assert run.out().name == "w"  # type: ignore[union-attr]
        assert run.out() is None and run.has_ended


def test_levels_lead_from_an_instruction_to_the_entry_with_their_values() -> None:
    with stepper(breakpoints=["q"]) as run:
        run.break_at("q", iteration=2)
        run.delete(1)
        run.continue_()
        names = [(level.computation.name, level.instruction.name) for level in run.levels]
        assert names == [("square", "q"), ("inner", "b"), ("body", "f"), ("main", "w")]
        v = iterates(2)[2]
        assert_array_equal(run.value("q"), v * v)
        assert_array_equal(run.value("%a", level=1), v)
        assert_array_equal(run.value("i", level=2), 2)
        assert_array_equal(run.value("v0", level=3), V0)


def test_values_of_the_entry_can_be_looked_at_when_the_run_has_ended() -> None:
    with stepper() as run:
        assert run.continue_() is None
        assert_array_equal(run.value("last"), iterates(4)[-1])


def test_a_breakpoint_takes_an_iteration_a_device_and_a_condition() -> None:
    with stepper() as run:
        run.break_at("f", iteration=2)
        run.break_at(condition="max > 1.5")
        stops = [stop.name for stop in run]
    big = [i for i, v in enumerate(iterates(4)[1:]) if v.max() > 1.5]
    assert "w[2]:body/f" in stops and f"w[{big[0]}]:body/f/c" in stops
    with stepper(DEVICES, ONES) as run:
        run.break_at("own", device=2)
        stop = run.continue_()
        assert stop is not None and stop.devices == (2,)
        assert_array_equal(stop.value, 3 * ONES)
        assert run.continue_() is None


def test_an_iteration_alone_stops_where_it_begins() -> None:
    with stepper() as run:
        run.break_at(iteration=3)
        assert [stop.name for stop in run] == ["w[3]:condition/u", "w[3]:body/s"]


def test_a_watch_stops_where_a_value_differs_from_the_one_before() -> None:
    with stepper() as run:
        run.watch("end")
        watched = run.watch("i")
        assert [stop.iteration for stop in run] == [1, 2, 3]
        assert watched.hits == 3


def test_source_lines_select_instructions() -> None:
    with stepper(SOURCES) as run:
        run.break_at("net.py:30")
        run.break_at("model/net.py:12")
        run.break_at("op_name:*exp")
        assert [stop.reason for stop in run] == ["breakpoint 2", "breakpoint 1"]


def test_a_value_can_be_set_for_all_that_use_it() -> None:
    new = np.array([1, 2], np.float32)
    with stepper() as run:
        run.break_at("v", iteration=1)
        run.continue_()
        run.set("v", new)
        assert_array_equal(run.value("v"), new)
        assert run.continue_() is None and run.results is not None
        assert_array_equal(run.results[0], iterates(3, new)[-1].sum())
        run.restart()
        run.delete()
        run.set("last", 7)
        run.continue_()
        assert run.results == [14]


def test_setting_a_value_twice_leaves_the_last_and_stepping_on_keeps_it() -> None:
    with stepper() as run:
        run.break_at("last")
        run.continue_()
        run.set("last", 1)
        run.set("last", np.array([3, 4], np.float32))
        assert run.step().name == "none"  # type: ignore[union-attr]
        run.continue_()
        assert run.results == [7]


def test_devices_are_set_and_shown_apart() -> None:
    with stepper(DEVICES, ONES) as run:
        run.break_at("own", device=3)
        run.continue_()
        assert_array_equal(run.value("own", device=1), 2 * ONES)
        run.set("own", 0)
        run.continue_()
        assert run.results is not None
        # −1 − 2 + 2·3 + 2·0 = 3
        for result, other in zip(run.results, (2, 4, 6, 0), strict=True):
            assert_array_equal(result[0], 9 * ONES)  # type: ignore[index]
            assert_array_equal(result[1], other * ONES)  # type: ignore[index]


def test_branches_collectives_and_asynchronous_pairs_are_stepped_through() -> None:
    with stepper(DEVICES, ONES) as run:
        for where in "y n all started g2 done".split():
            run.break_at(where)
        stops = [(stop.name, stop.devices) for stop in run]
    assert stops[:4] == [
        ("chosen:low/y", (0,)),
        ("chosen:low/y", (1,)),
        ("chosen:high/n", (2,)),
        ("chosen:high/n", (3,)),
    ]
    everywhere = (0, 1, 2, 3)
    # What an asynchronous operation gives beside its result belongs to a device.
    assert {name for name, _ in stops[4:]} == {"started", "all", "begun/g2", "done"}
    assert [entry for entry in stops if entry[0] != "started"][4:] == [
        ("all", everywhere),
        ("begun/g2", everywhere),
        ("done", everywhere),
    ]


FAILING = LOOP.replace("ROOT c = f32[2] add(b, a)", 'ROOT c = f32[2] custom-call(b, a), custom_call_target="fails"')


@pytest.fixture
def failing() -> Iterator[None]:
    def fails(b: Any, a: Any) -> Any:
        if a[0] > 0.7:
            raise IndexError("index 5 is out of range")
        return b + a

    hloexec.register_custom_call("fails", fails)
    yield
    hloexec.unregister_custom_call("fails")


@pytest.mark.usefixtures("failing")
def test_a_run_stops_at_an_instruction_that_fails_with_its_operands_at_hand() -> None:
    with stepper(FAILING) as run:
        stop = run.continue_()
        assert stop is not None and stop.reason == "failed" and stop.value is None and run.has_failed
        assert stop.name == "w[1]:body/f/c" and "index 5 is out of range" in str(stop.error)
        v = iterates(1)[1]
        assert_array_equal(run.value("a"), v)
        assert_array_equal(run.value("b"), v * v)
        assert_array_equal(run.value("i", level=1), 1)
        for _ in range(2):
            with pytest.raises(EvaluationError, match="index 5 is out of range"):
                run.continue_()
        run.restart()
        run.set("v", 0.1)
        assert run.continue_() is None and not run.has_failed


def test_a_deadlock_and_a_limit_are_failures_where_the_run_was() -> None:
    deadlock = """HloModule m, replica_count=2
sum { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b) }
yes { p = f32[] parameter(0)
  ROOT all = f32[] all-reduce(p), replica_groups={{0,1}}, to_apply=sum }
no { q = f32[] parameter(0)
  ROOT n = f32[] negate(q) }
ENTRY main { x = f32[] parameter(0)
  id = u32[] replica-id()
  one = u32[] constant(1)
  is = pred[] compare(id, one), direction=LT
  ROOT r = f32[] conditional(is, x, x), true_computation=yes, false_computation=no }
"""
    with stepper(deadlock, np.float32(1)) as run:
        stop = run.continue_()
        assert stop is not None and isinstance(stop.error, DeadlockError)
        assert_array_equal(run.value("x", level=len(run.levels) - 1), 1)
        with pytest.raises(DeadlockError):
            run.continue_()
    with stepper(max_iterations=2) as run:
        stop = run.continue_()
        assert stop is not None and isinstance(stop.error, ResourceError) and stop.instruction.name == "w"


def test_a_run_can_be_interrupted_from_another_thread() -> None:
    endless = LOOP.replace("direction=LT", "direction=NE").replace("constant(4)", "constant(-1)")
    with stepper(endless, np.zeros(2, np.float32)) as run:
        threading.Timer(0.2, run.interrupt).start()
        stop = run.continue_()
        assert stop is not None and stop.reason == "interrupted" and not run.has_ended


def test_an_abandoned_run_ends() -> None:
    run = stepper(breakpoints=["c"])
    run.continue_()
    del run
    # The fixture looks for its thread.


def test_only_as_much_is_kept_as_was_asked_for() -> None:
    text = "HloModule m\nENTRY e {\n  x0 = f32[1000] parameter(0)\n" + "".join(
        f"  x{i + 1} = f32[1000] negate(x{i})\n" for i in range(20)
    )
    module = hloexec.parse(text.replace("  x20 =", "  ROOT x20 =") + "}\n")
    with hloexec.step(module, None, keep=20_000, breakpoints=["x20"]) as run:
        run.continue_()
        assert run.value("x19").shape == (1000,)  # type: ignore[union-attr]
        with pytest.raises(InputError, match="is not kept any more; keep more than 20000 bytes"):
            run.value("x3")


@pytest.mark.parametrize("policy", ["xla-cpu", "excess"])
def test_values_cannot_be_set_where_others_read_them_unrounded(policy: str) -> None:
    with stepper(numerics=policy, breakpoints=["last"]) as run:
        run.continue_()
        with pytest.raises(InputError, match="choose another, such as reference"):
            run.set("last", 0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda run: run.break_at("lst"), "did you mean 'last'"),
        (lambda run: run.break_at("sum"), "which %r in main applies to many elements at once.*break at r"),
        (lambda run: run.break_at("e"), "computation dead, which does not run"),
        (lambda run: run.break_at(), "a breakpoint says where"),
        (lambda run: run.break_at(device=0), "a breakpoint says where"),
        (lambda run: run.break_at("last", device=7), "there is no device 7; there is one device, 0"),
        (lambda run: run.break_at("last", iteration=-1), "iteration must not be negative"),
        (lambda run: run.break_at("last", condition="max"), "one of < <= > >= == != is expected"),
        (lambda run: run.break_at(5), "where must be a text"),
        (lambda run: run.break_at("net.py:5"), "the module has no source lines"),
        (lambda run: run.watch("nothing"), "selects no instruction"),
        (lambda run: run.delete(3), "there is no breakpoint 3"),
        (lambda run: run.step(0), "count must be at least 1"),
        (lambda run: run.value("last"), "%last in main has not run yet"),
        (lambda run: run.value("none"), "%none in main has not run yet"),
        (lambda run: run.value("lasst"), "main has no instruction %lasst; did you mean %last"),
        (lambda run: run.value("w", level=4), "there is no level 4"),
        (lambda run: run.value("w", device=1), "there is no device 1"),
        (lambda run: run.value("unused"), "does not run: nothing needs it"),
        (lambda run: run.set("start", 0), "the value for %start must be a tuple of 2 values"),
        (lambda run: run.set("start", (0, V0[:1])), "must be f32\\[2\\]"),
        (lambda run: run.set("v0", 0), "%v0 has run, and others may have used its value"),
        (lambda run: run.set("last", np.zeros(2)), "must be f32\\[2\\], a NumPy array of type float32"),
        (lambda run: run.set("last", "zeros"), "the value for %last must be"),
        (lambda run: run.set("lasst", 0), "no instruction %lasst that runs; did you mean %last"),
    ],
)
def test_wrong_uses_are_named(call: Any, message: str) -> None:
    with stepper(breakpoints=["start"]) as run:
        run.continue_()
        with pytest.raises(InputError, match=message):
            call(run)
        assert run.continue_() is None


def test_what_cannot_run_is_refused_at_once() -> None:
    with pytest.raises(InputError, match="parameter"):
        stepper(LOOP, V0[:1])
    with pytest.raises(InputError, match="selects no instruction"):
        stepper(breakpoints=["nothing"])
    with pytest.raises(TypeError, match="unexpected keyword argument 'numeric'"):
        stepper(numeric="exact")


def test_a_run_that_has_ended_says_so() -> None:
    run = stepper()
    run.continue_()
    for go in (run.continue_, run.step, run.next, run.out):
        with pytest.raises(InputError, match="the run has ended; restart begins it again"):
            go()
    with pytest.raises(InputError, match="when it has been restarted"):
        run.set("last", 0)
    run.restart()
    assert run.step().name == "v0"  # type: ignore[union-attr]
    run.close()
    with pytest.raises(InputError, match="the run is closed"):
        run.step()
    assert repr(run) == "<Stepper loop, closed>"
