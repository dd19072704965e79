"""The options of a run, and how they are said again."""

from __future__ import annotations

import click
import pytest

from hloexec.cli.run_options import _OPTIONS, Given, resolve_given, run_options
from hloexec.engine.options import DEFAULTS

SAID = [
    {},
    {"seed": 3, "distribution": "iota", "different_inputs": True},
    {"inputs": ("a.npz", "b.npz"), "overrides": (("0", "x.npy"), ("w", "y=z.npy"))},
    {"custom_calls": (("scale", "json:loads"),), "ranges": (("x", "-1:2.5"),)},
    {"replicas": 2, "partitions": 4, "numerics": "exact", "elided": "random", "unknown": "zeros"},
]


def read(words: list[str]) -> Given:
    """What a command is given for these words."""
    found: list[Given] = []

    @click.command()
    @run_options
    def command(given: Given) -> None:
        found.append(given)

    command.main(words, standalone_mode=False)
    return found[0]


@pytest.mark.parametrize("said", SAID)
def test_the_words_for_options_are_read_as_these_options(said: dict[str, object]) -> None:
    options = resolve_given(**said)
    assert read(options.words()) == options


def test_every_option_is_said_where_it_matters() -> None:
    given = {name for said in SAID for name in said}
    assert {*_OPTIONS} - given == {"memory_limit", "max_iterations", "timeout"}
    assert resolve_given(memory_limit=5, max_iterations=7, timeout=1.5).words() == []


def test_the_defaults_of_the_command_line_are_those_of_the_options() -> None:
    assert resolve_given().options == DEFAULTS
    assert read([]) == resolve_given()
