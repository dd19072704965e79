"""Watched runs of random programs show what the text executes, value by value."""

from __future__ import annotations

import numpy as np
import pytest

import hloexec
from tests.plan.audit import Audit
from tests.plan.random_programs import random_program
from tests.plan.ways import Values

POLICIES = "reference reference xla-cpu ftz tf32 exact".split()


@pytest.mark.slow_cases("10100", "10120", "10140")
@pytest.mark.sampled(20)
@pytest.mark.parametrize("seed", range(10_000, 10_200))
def test_what_observers_see_is_what_the_text_says(seed):
    program = random_program(seed)
    module, numerics = hloexec.parse(program.text), POLICIES[seed % len(POLICIES)]
    for options in ({}, {"planner": False}):
        values = Values(module, numerics)
        with np.errstate(all="ignore"):
            hloexec.run_devices(module, program.inputs, observers=[values], numerics=numerics, **options)
            faults = Audit(module, numerics, values.values, program.devices).run(program.inputs)
        assert faults == []


def test_an_audit_finds_what_is_wrong():
    text = (
        "HloModule m\nf { a = f32[3] parameter(0)\n ROOT b = f32[3] negate(a) }\n"
        "ENTRY e { x = f32[3] parameter(0)\n y = f32[3] call(x), to_apply=f\n ROOT z = f32[3] add(y, x) }"
    )
    module, inputs = hloexec.parse(text), [np.arange(3, dtype=np.float32)]
    values = Values(module)
    hloexec.run(module, *inputs, observers=[values])
    assert Audit(module, "reference", values.values, 1).run([inputs]) == []
    for key in values.values:
        changed = {**values.values, key: values.values[key] + 1}
        assert Audit(module, "reference", changed, 1).run([inputs]) != []
        rest = {name: value for name, value in values.values.items() if name != key}
        assert Audit(module, "reference", rest, 1).run([inputs]) != []
    more = {**values.values, ("y/c", 0): inputs[0]}
    assert Audit(module, "reference", more, 1).run([inputs]) == ["y/c on 0 was seen, but is not executed"]
