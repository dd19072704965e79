"""Two modules, of which one is the other with a fault: the fault is found; what only rounds otherwise is none."""

from __future__ import annotations

from pathlib import Path

import pytest

import hloexec

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def _planted(file: str, right: str, wrong: str) -> tuple[hloexec.Diff, str]:
    text = (EXAMPLES / file).read_text()
    assert right in text
    before, after = hloexec.parse(text), hloexec.parse(text.replace(right, wrong, 1))
    found = hloexec.diff(before, after)
    assert found.verdict == "differ"
    return found, found.findings[0].after.instruction


@pytest.mark.parametrize(
    ("file", "right", "wrong", "instruction"),
    [
        ("attention.hlo", "iota.11), direction=GE", "iota.11), direction=GT", "ge.1"),
        ("attention.hlo", "dot(w_qkv.1, mul.61)", "dot(w_qkv.1, mul.57)", "dot_general.4"),
        ("rnn_scan.hlo", "slice={[0:4], [32:48]}", "slice={[0:4], [31:47]}", "split.6"),
        ("rnn_scan.hlo", "tanh(add.16)", "negate(add.16)", "tanh.3"),
        ("rnn_scan.hlo", "{1,0} add(mul.3, mul.4)", "{1,0} subtract(mul.3, mul.4)", "add.16"),
        ("mlp_train_step.hlo", "subtract(sub.12, sub.15)", "add(sub.12, sub.15)", "sub.16"),
    ],
)
def test_diff_names_the_planted_instruction(file: str, right: str, wrong: str, instruction: str) -> None:
    assert _planted(file, right, wrong)[1] == instruction


@pytest.mark.parametrize("file", ["attention", "rnn_scan", "data_parallel_step", "mlp_train_step"])
def test_diff_of_a_module_and_itself_agrees_in_every_value(file: str) -> None:
    module = hloexec.load(EXAMPLES / f"{file}.hlo")
    found = hloexec.diff(module, hloexec.load(EXAMPLES / f"{file}.hlo"))
    assert (found.verdict, found.findings, found.matched_share) == ("agree", (), 1.0)


@pytest.mark.parametrize("names", [("attention", "attention.optimized"), ("attention.optimized", "attention")])
def test_diff_finds_only_rounding_between_a_module_and_what_xla_made_of_it(names: tuple[str, str]) -> None:
    before, after = (hloexec.load(EXAMPLES / f"{name}.hlo") for name in names)
    found = hloexec.diff(before, after)
    assert found.verdict == "rounding only"
    assert found.matched_share >= 0.8
