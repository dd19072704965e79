"""Runs take the memory of runs before them, and nothing that a caller or an observer holds ever changes for it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.engine.exec import machine, plan_of
from hloexec.engine.plan.steps import Plan
from hloexec.ops import resources
from hloexec.ops.resources import Placed, empty, is_own, owner_of
from tests.plan.random_programs import random_program
from tests.plan.test_random_graphs import INPUT_COUNT, random_graph
from tests.plan.ways import bits, differences

pytestmark = pytest.mark.skipif(not resources._IS_SUPPORTED, reason="needs counted references and MADV_DONTNEED")

MODEL = """HloModule model

ENTRY main {
  x = f32[512,256] parameter(0)
  w = f32[256,256] parameter(1)
  product = f32[512,256] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  turned = f32[256,512] transpose(product), dimensions={1,0}
  squares = f32[512,256] multiply(product, product)
  sum = f32[512,256] add(squares, x)
  ROOT results = (f32[512,256], f32[256,512], f32[512,256], f32[256,256]) tuple(sum, turned, x, w)
}
"""


def _model() -> Any:
    return hloexec.parse(MODEL)


def _inputs(seed: int, side: int = 256) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.standard_normal((2 * side, side), np.float32), random.standard_normal((side, side), np.float32)]


def _arena_of(plan: Plan) -> resources._Arena:
    (found,) = _arenas(plan)._idle
    return found


def _arenas(plan: Plan) -> resources.Arenas:
    assert plan.arenas is not None
    return plan.arenas


def test_results_stay_as_they_are_while_later_runs_go_on() -> None:
    module = _model()
    held = [hloexec.run(module, *_inputs(seed)) for seed in range(20)]
    for seed, results in enumerate(held):
        assert bits(results) == bits(hloexec.run(module, *_inputs(seed), planner=False))


def test_views_of_results_keep_what_they_show() -> None:
    module = _model()
    views = []
    for seed in range(6):
        total, turned, *_ = hloexec.run(module, *_inputs(seed))
        views.append((total[3:5, ::2], turned.T[7], memoryview(total[:2].reshape(-1))))
        del total, turned
    for seed, (rows, row, buffer) in enumerate(views):
        total, turned, *_ = hloexec.run(module, *_inputs(seed), planner=False)
        assert bits([rows, row]) == bits([total[3:5, ::2], turned.T[7]])
        assert buffer.tobytes() == total[:2].tobytes()


def test_results_that_are_arguments_share_nothing_with_them() -> None:
    module = _model()
    inputs = _inputs(1)
    *_, x, w = hloexec.run(module, *inputs)
    assert not any(np.shares_memory(one, other) for one in (x, w) for other in inputs)
    x[...] = 0
    assert bits(hloexec.run(module, *inputs)) == bits(hloexec.run(module, *inputs, planner=False))


def test_results_may_be_the_inputs_of_the_next_run() -> None:
    """As in training, where what a run takes lies in the memory of the run before."""
    module = _model()
    ours = theirs = _inputs(2)
    for _ in range(5):
        total, _, _, weights = hloexec.run(module, *ours)
        expected, _, _, same = hloexec.run(module, *theirs, planner=False)
        assert bits([total, weights]) == bits([expected, same])
        ours, theirs = [np.tanh(total), weights], [np.tanh(expected), same]
        total[...] = np.nan


def test_the_next_run_takes_the_same_memory() -> None:
    module, inputs = _model(), _inputs(3)
    addresses = set()
    for _ in range(4):
        total, *_ = hloexec.run(module, *inputs)
        addresses.add(total.ctypes.data)
        del total
    assert len(addresses) == 1
    assert not _arena_of(plan_of(module)).missed


def test_results_that_are_held_cost_a_new_arena_and_not_a_failure() -> None:
    module, inputs = _model(), _inputs(4)
    held = [hloexec.run(module, *inputs) for _ in range(30)]
    assert len({bits(results) for results in held}) == 1
    del held
    plan = plan_of(module)
    for _ in range(3):
        hloexec.run(module, *inputs)
    assert not _arena_of(plan).missed


class _Keeper:
    def __init__(self) -> None:
        self.values: list[tuple[str, Any, Any]] = []

    def on_instruction(self, event: hloexec.Event) -> None:
        self.values.append((event.name, event.value, bits(event.value)))


def test_observers_keep_what_they_were_shown() -> None:
    module, keeper = _model(), _Keeper()
    for seed in range(4):
        hloexec.run(module, *_inputs(seed), observers=[keeper])
        hloexec.run(module, *_inputs(seed + 10))
    assert len(keeper.values) > 20
    for name, value, before in keeper.values:
        assert bits(value) == before, name


def test_runs_on_several_threads_have_memory_of_their_own() -> None:
    module = _model()
    hloexec.run(module, *_inputs(0))
    barrier = threading.Barrier(4)

    def work(number: int) -> list[Any]:
        barrier.wait()
        return [hloexec.run(module, *_inputs(10 * number + turn)) for turn in range(5)]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(work, range(4)))
    for number, runs in enumerate(found):
        for turn, results in enumerate(runs):
            assert bits(results) == bits(hloexec.run(module, *_inputs(10 * number + turn), planner=False))
    assert len(_arenas(plan_of(module))._idle) <= 2


def test_a_run_within_a_run_has_an_arena_of_its_own() -> None:
    """As where an observer runs something."""
    module, inner = _model(), _model()
    found = []

    class Runs:
        def on_instruction(self, event: hloexec.Event) -> None:
            found.append(bits(hloexec.run(inner, *_inputs(5))))

    results = hloexec.run(module, *_inputs(6), observers=[Runs()])
    assert bits(results) == bits(hloexec.run(module, *_inputs(6), planner=False))
    assert set(found) == {bits(hloexec.run(inner, *_inputs(5), planner=False))}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", range(6))
def test_random_graphs_have_the_same_bits_in_every_run(seed: int) -> None:
    side = 192
    module = hloexec.parse(random_graph(seed, 120, side))
    results = []
    for turn in (0, 1, 0, 2):
        random = np.random.default_rng(turn)
        inputs = [random.standard_normal((side, side), dtype=np.float32) for _ in range(INPUT_COUNT)]
        results.append((hloexec.run(module, *inputs), bits(hloexec.run(module, *inputs, planner=False))))
    assert all(bits(found) == expected for found, expected in results)


@pytest.mark.slow_cases("0", "8", "12")
@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(16))
def test_programs_of_all_kinds_have_the_same_bits_with_every_array_in_an_arena(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "LEAST_BYTES", 1)
    program = random_program(seed)
    module = hloexec.parse(program.text)
    expected = bits(hloexec.run_devices(module, program.inputs, planner=False))
    held = [hloexec.run_devices(module, program.inputs) for _ in range(3)]
    assert [bits(results) for results in held] == [expected] * 3
    assert not differences(program, runs=18)


def test_memory_is_given_back_on_request_and_with_the_module(garbage_of_this_test: Callable[[], object]) -> None:
    module, inputs = _model(), _inputs(7)
    total, *_ = hloexec.run(module, *inputs)
    before = total.tobytes()
    lender = _arenas(plan_of(module))
    assert lender.kept_bytes >= total.nbytes
    hloexec.release_memory()
    assert lender.kept_bytes == 0
    assert total.tobytes() == before
    hloexec.run(module, *inputs)
    assert lender.kept_bytes > 0
    kept = _arena_of(plan_of(module))._map
    del module, lender
    garbage_of_this_test()
    assert total.tobytes() == before
    # Nothing but zeros is left behind the result: the pages are the system's again.
    assert np.count_nonzero(np.frombuffer(kept, np.uint8)) == 0


def test_all_modules_together_keep_no_more_than_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    hloexec.release_memory()
    monkeypatch.setattr(resources, "_KEPT_BYTES", 3 << 20)
    modules = [_model() for _ in range(4)]
    for module in modules:
        hloexec.run(module, *_inputs(8))
    kept = [_arenas(plan_of(module)).kept_bytes for module in modules]
    assert 0 < sum(kept) <= 3 << 20
    # Those that ran last keep theirs.
    assert kept == sorted(kept)


def test_gaps_are_taken_by_what_fits_them_best() -> None:
    lender = resources.Arenas()
    with lender.lent(1 << 20):
        found = [empty((size << 10,), np.uint8) for size in (256, 128, 192, 128)]
        places = [array.ctypes.data for array in found]
        del found[0], found[1]
        assert empty((180 << 10,), np.uint8).ctypes.data == places[2]
        first = empty((256 << 10,), np.uint8)
        assert first.ctypes.data == places[0]
        assert empty((4 << 20,), np.uint8).flags.owndata


def test_ownership_looks_through_arenas_and_lone_forms() -> None:
    with resources.Arenas().lent(1 << 20):
        array = empty((256, 256), np.float32)
        assert is_own(array)
        assert owner_of(array[3:]) is array
        assert not is_own(array[3:])
        form = array.reshape(-1)
        assert not is_own(form), "the array is there, too"
        del array
        assert is_own(form)
        read_only = form.view()
        read_only.flags.writeable = False
        assert not is_own(read_only)


def test_places_never_overlap_and_are_taken_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of many sizes that die in any order keep what was written to them."""
    monkeypatch.setattr(resources, "LEAST_BYTES", 1)
    random = np.random.default_rng(1)
    held: list[tuple[int, np.ndarray]] = []
    with resources.Arenas().lent(1 << 18):
        own = resources._here.arena
        for number in range(600):
            if len(held) > 20 or (held and random.random() < 0.4):
                del held[random.integers(len(held))]
            array = empty((int(random.integers(1, 3000)),), np.uint16)
            array[...] = number
            held.append((number, array))
            del array
            assert all((kept == written).all() for written, kept in held)
        assert own.missed == 0


SIDE = 512
BYTES = 4 * SIDE * SIDE
DOT = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
GAP = f"""HloModule gap

ENTRY main {{
  x = f32[{SIDE},{SIDE}] parameter(0)
  wide = f32[{SIDE},{4 * SIDE}] parameter(1)
  half = f32[{SIDE},{2 * SIDE}] parameter(2)
  first = f32[{SIDE},{SIDE}] dot(x, x), {DOT}
  second = f32[{SIDE},{2 * SIDE}] dot(first, half), {DOT}
  third = f32[{SIDE},{4 * SIDE}] dot(x, wide), {DOT}
  ROOT both = (f32[{SIDE},{2 * SIDE}], f32[{SIDE},{4 * SIDE}]) tuple(second, third)
}}
"""
CUT = f"""HloModule cut

ENTRY main {{
  x = f32[{SIDE},{SIDE}] parameter(0)
  wide = f32[{SIDE},{4 * SIDE}] parameter(1)
  zero = f32[] constant(0)
  first = f32[{SIDE},{SIDE}] dot(x, x), {DOT}
  cut = f32[{SIDE - 2},{SIDE}] pad(first, zero), padding=-1_-1x0_0
  second = f32[{SIDE - 2},{4 * SIDE}] dot(cut, wide), {DOT}
  third = f32[{SIDE},{4 * SIDE}] dot(x, wide), {DOT}
  fourth = f32[{SIDE - 2},{SIDE}] dot(cut, x), {DOT}
  ROOT all = (f32[{SIDE - 2},{4 * SIDE}], f32[{SIDE},{4 * SIDE}], f32[{SIDE - 2},{SIDE}]) tuple(second, third, fourth)
}}
"""


def _given(module: Any) -> list[np.ndarray]:
    return list(hloexec.random_inputs(module, seed=7))


def _used(plan: Plan) -> int:
    assert plan.arenas is not None
    (found,) = plan.arenas._idle
    assert not found.missed
    return found.used


def _is_placed(plan: Plan) -> bool:
    return any(isinstance(step.function, Placed) for step in plan.steps)


def _bits(results: Any) -> list[bytes]:
    return [leaf.tobytes() for leaf in results]


@pytest.mark.slow_cases("text1")
@pytest.mark.parametrize("text", [GAP, CUT])
def test_packed_arrays_hold_the_same_bits_as_results_of_earlier_runs_are_kept(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "RUNS_BEFORE_CODE", 4)
    module = hloexec.parse(text)
    inputs = _given(module)
    expected = _bits(hloexec.run(module, *inputs, planner=False))
    kept = []
    for _ in range(7):
        kept.append(hloexec.run(module, *inputs))
        assert _bits(kept[-1]) == expected
        del kept[:-3]
    assert all(_bits(results) == expected for results in kept)


def test_an_array_that_dies_early_leaves_no_gap_in_front_of_those_that_stay() -> None:
    module = hloexec.parse(GAP)
    inputs = _given(module)
    hloexec.run(module, *inputs)
    plan = plan_of(module)
    assert _is_placed(plan)
    # `first` is dead when `third` is made, which does not fit where it was.
    assert _used(plan) == 6 * BYTES


def test_an_array_lives_as_long_as_a_padding_that_only_cuts_it() -> None:
    module = hloexec.parse(CUT)
    inputs = _given(module)
    hloexec.run(module, *inputs)
    found = _used(plan_of(module))
    rows = 4 * (SIDE - 2) * SIDE
    assert found == BYTES + 4 * rows + 4 * BYTES + rows
