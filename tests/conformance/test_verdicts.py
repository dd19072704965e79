"""The measurement of how often verdicts are wrong runs, and says what it measured."""

import re

import pytest
from click.testing import CliRunner

pytest.importorskip("jax")

from conformance.__main__ import main
from conformance.verdicts import WAYS


def test_faults_and_pairs_are_counted_for_every_way_to_a_verdict():
    done = CliRunner().invoke(main, "verdicts sums.f32 --draws 1 --first 50 --faults 1".split())
    assert done.exit_code == 0, done.output
    assert f"| Missed faults by size | {' | '.join(WAYS)} |" in done.output
    (row,) = re.findall(r"(?m)^\| 100 \| (.*) \|$", done.output)
    assert row.split(" | ") == ["0 of 3 (0 %)"] * len(WAYS)
    (row,) = re.findall(r"(?m)^\| correct pairs \| (.*) \|$", done.output)
    assert sum(map(int, row.split(" | "))) == 5


def test_unknown_programs_are_named():
    done = CliRunner().invoke(main, ["verdicts", "no_such_program"])
    assert done.exit_code == 2
    assert "no_such_program: no program that is compared by its roundings" in done.output
