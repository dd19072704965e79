"""Some mutants through everything; `python -m evaluation mutants 0 200000` tries many more."""

import random
from collections import Counter
from pathlib import Path

import pytest

from evaluation.fuzzing.corpus import corpus
from evaluation.fuzzing.measuring import mutant_of
from evaluation.fuzzing.modules import modules
from evaluation.fuzzing.stages import outcome

_SEED = 20_261_124


@pytest.mark.slow
def test_mutants_give_results_or_hlo_errors(tmp_path: Path) -> None:
    texts = corpus()
    counts: Counter[str] = Counter()
    for seed in range(_SEED, _SEED + 2000):
        counts[outcome(mutant_of(seed, texts), tmp_path)] += 1
    assert {*counts} >= {"unread", "invalid", "run"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("text", list(modules()))
def test_each_module_runs(text: str, tmp_path: Path) -> None:
    assert outcome(text, tmp_path) == "run"


@pytest.mark.slow
def test_what_mutants_are_made_of_goes_through(tmp_path: Path) -> None:
    texts = corpus()
    ends = {outcome(text, tmp_path) for text in random.Random(0).sample(texts, 60)}
    assert "run" in ends
