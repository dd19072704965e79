"""Every pair of the table is what it says it is, whatever `diff` makes of it; and where there is no fault, `diff` finds none."""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

import hloexec
from evaluation.faults.disguise import Disguised, disguise
from evaluation.faults.editing import Draft
from evaluation.faults.naming import uniquely_named
from evaluation.faults.planting import plant, swapped
from evaluation.pairs.models import MODELS, model
from evaluation.pairs.table import CLEAN, FAULTY, Case
from hloexec.core.ir import Module
from hloexec.core.values import Value

pytest.importorskip("jax")

_LOST_ROUNDINGS = ("stored in bf16 no more", "exponential of 002 in f32")
"""Faults by which results become more precise than the module says; `compare` takes what they change for rounding."""


def _require(name: str) -> None:
    try:
        model(name)
    except LookupError as reason:
        pytest.skip(str(reason))


def _run(module: Module, inputs_per_device: Sequence[Sequence[Any]]) -> list[Value]:
    return hloexec.run_devices(module, inputs_per_device)


@cache
def _expected(name: str) -> list[Value]:
    return _run(model(name).module, model(name).inputs_per_device)


@cache
def _reordered(name: str) -> list[Value]:
    """What a model gives when its sums are taken in another order."""
    return _run(disguise(model(name).module, 1, reorders=True).module, model(name).inputs_per_device)


def _verdicts(case: Case, results: list[Value]) -> set[str]:
    expected = _expected(case.model)
    inputs = case.inputs_per_device
    if len(results) == 1:
        return {hloexec.compare(results[0], expected[0], module=case.before, inputs=inputs[0]).verdict.value}
    return {hloexec.compare(tuple(results), tuple(expected), module=case.before, inputs=inputs).verdict.value}


def _leaves(value: Any) -> Iterator[np.ndarray[Any, Any]]:
    if isinstance(value, (tuple, list)):
        for part in value:
            yield from _leaves(part)
    else:
        yield value.astype(np.float64)


def _distance(results: list[Value], expected: list[Value]) -> float:
    """The largest root mean square of a leaf's differences, relative to the leaf's own."""
    pairs = zip(_leaves(results), _leaves(expected), strict=True)
    return max(float(np.sqrt(np.mean((ours - theirs) ** 2) / np.mean(theirs**2))) for ours, theirs in pairs)


def test_there_are_enough_pairs() -> None:
    assert len(FAULTY) >= 44
    assert len(CLEAN) >= 6
    assert len({case.name for case in FAULTY}) == len(FAULTY)


@pytest.mark.slow_cases(
    "subtraction the other way round (attention)",
    "heads off by one in a slice (attention.optimized)",
    "TF32 in attention (attention)",
    "loop starts at one (ring_attention)",
)
@pytest.mark.sampled(12)
@pytest.mark.parametrize("case", FAULTY, ids=str)
def test_fault_changes_results_beyond_rounding(case: Case) -> None:
    _require(case.model)
    after = case.after
    hloexec.verify(after.module)
    assert _held(after, case.blamed), "the disguise has lost the planted instruction"
    results = _run(after.module, case.inputs_per_device)
    if case.name in _LOST_ROUNDINGS:
        # A fault's change is no rounding of sums if it is far larger than what taking them in another order makes.
        assert _distance(results, _expected(case.model)) > 8 * _distance(_reordered(case.model), _expected(case.model))
    else:
        assert "different" in _verdicts(case, results)


@pytest.mark.slow_cases(
    "divided by a constant as multiplied by its inverse (attention)", "sums from the other end (markov_chain)"
)
@pytest.mark.sampled(5)
@pytest.mark.parametrize("case", CLEAN, ids=str)
def test_pair_without_a_fault_agrees_but_for_rounding(case: Case) -> None:
    _require(case.model)
    hloexec.verify(case.after.module)
    verdicts = _verdicts(case, _run(case.after.module, case.inputs_per_device))
    assert verdicts <= {"equal", "rounding only"}


@pytest.mark.slow
@pytest.mark.parametrize("case", CLEAN, ids=str)
def test_diff_finds_nothing_in_a_pair_without_a_fault(case: Case) -> None:
    _require(case.model)
    found = hloexec.diff(case.before, case.after.module, case.inputs_per_device)
    assert found.verdict in ("agree", "rounding only")
    assert not found.findings


@pytest.mark.slow_cases("attention", "rnn_scan", "power_iteration")
@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", MODELS)
def test_disguise_keeps_every_bit(name: str) -> None:
    _require(name)
    given = model(name)
    for seed in (1, 2):
        disguised = disguise(given.module, seed, unrolls=seed == 2).module
        hloexec.verify(disguised)
        assert hloexec.parse(hloexec.format(disguised)) == disguised
        results = _run(disguised, given.inputs_per_device)
        for ours, theirs in zip(results, _expected(name), strict=True):
            assert hloexec.compare(ours, theirs).verdict.value == "equal"


def test_disguise_leaves_no_name_in_its_place() -> None:
    given = model("attention").module
    disguised = disguise(given, 3)
    same = [name for name, origin in disguised.origins.items() if name == origin]
    assert len(same) < 0.02 * len(disguised.origins)
    assert disguised.module == disguise(given, 3).module
    assert disguised.module != disguise(given, 4).module


def test_fault_without_a_place_is_told() -> None:
    with pytest.raises(LookupError, match="0 such fft"):
        plant(model("attention").module, swapped("fft"))


def test_planted_names_are_what_is_new_or_altered() -> None:
    before = uniquely_named(model("layer_norm").module)
    planted = plant(before, swapped("subtract"))
    (name,) = planted.names
    assert Draft(planted.module)[name].operands[::-1] == Draft(before)[name].operands


def _held(after: Disguised, blamed: frozenset[str]) -> bool:
    return any(
        after.origins.get(instruction.name) in blamed for computation in after.module for instruction in computation
    )
