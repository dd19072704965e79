"""The options of a run: what callers give, and the one object that it becomes."""

import inspect
from typing import Any

import attrs
import numpy as np
import pytest

import hloexec
from hloexec.engine.exec import running
from hloexec.engine.options import DEFAULTS, Options
from hloexec.ops.policies.policy import POLICIES

MODULE = hloexec.parse("HloModule m\nENTRY e { x = f32[4] parameter(0)\n ROOT y = f32[4] add(x, x) }\n")
X = np.ones(4, np.float32)
OF_PLANS = {"is_observed", "is_controlled", "last_pass"}
"""Options that no caller gives."""
GIVEN: dict[str, Any] = {
    "computation": "e",
    "numerics": "tf32",
    "seed": np.int64(3),
    "elided": "random",
    "unknown": "zeros",
    "memory_limit": "1G",
    "max_iterations": 7,
    "timeout": 2.5,
    "verify": False,
    "planner": False,
    "check": True,
    "statistics": hloexec.Statistics(),
    "infeed": [1],
    "outfeed": [],
    "host_transfers": {1: []},
}
RESOLVED = {
    **GIVEN,
    "numerics": POLICIES["tf32"],
    "seed": 3,
    "memory_limit": 1 << 30,
    **{name: [GIVEN[name]] for name in ("infeed", "outfeed", "host_transfers")},
}


def test_callers_may_give_what_a_run_depends_on() -> None:
    assert {*hloexec.RunOptions.__annotations__} == {field.name for field in attrs.fields(Options)} - OF_PLANS


@pytest.mark.parametrize("function", [hloexec.run, hloexec.diff, hloexec.record_golden, hloexec.triage])
def test_functions_that_list_options_have_their_defaults(function: Any) -> None:
    others = {"timeout"} if function is hloexec.triage else set()
    listed = inspect.signature(function).parameters.items()
    given = {name: each.default for name, each in listed if name in {*hloexec.RunOptions.__annotations__} - others}
    assert len(given) > 3
    assert Options(**given) == DEFAULTS


def test_run_passes_each_option_on_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Options] = []
    monkeypatch.setattr(running, "_outputs", lambda *given: found.append(given[-1]) or [None])
    hloexec.run(MODULE, X, **GIVEN)
    hloexec.run(MODULE, X)
    assert {**found[0]} == RESOLVED
    assert found[1] == DEFAULTS and {**found[1]} == {}


def test_what_holds_for_parts_of_a_module() -> None:
    parts = Options(**{**GIVEN, "elided": {"c": X}}).of_parts
    assert {**parts} == {name: RESOLVED[name] for name in ("numerics", "seed", "unknown", "memory_limit")}
    assert {**Options(elided="random").of_parts} == {"elided": "random"}


def test_options_that_are_resolved_are_taken_as_they_are() -> None:
    options = Options(numerics="tf32+ftz", memory_limit="2M", seed=5)
    assert Options(**options) == attrs.evolve(options) == options
    np.testing.assert_array_equal(hloexec.run_devices(MODULE, [X], **options)[0], X + X)
