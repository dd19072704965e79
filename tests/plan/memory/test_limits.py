"""Limits of memory: what is refused before it runs, and how."""

from __future__ import annotations

import re

import numpy as np
import pytest

from hloexec.core import system_memory
from hloexec.engine.exec import plan_of, run, run_devices
from hloexec.errors import InputError, ParseError, ResourceError
from tests.exec.programs import parsed, run_text
from tests.plan.memory.programs import CHAIN, COPIES, MB

X = np.arange(4, dtype=np.float32)


def test_the_limit_is_checked_before_anything_runs():
    with pytest.raises(ResourceError) as caught:
        run_text(COPIES, np.zeros(250000, np.float32), memory_limit=int(1.5 * MB))
    message = str(caught.value)
    assert "about 2.0 MB" in message
    assert "1.5 MB, the limit that was given" in message
    assert "f32[250000] of %a in e" in message
    assert "raise the memory limit" in message


def test_a_module_far_larger_than_the_machine_is_refused_by_default():
    text = """HloModule m
ENTRY e { i = f32[1000000,1000000] iota(), iota_dimension=0
  ROOT s = f32[1000000,1000000] add(i, i) }
"""
    with pytest.raises(ResourceError, match=r"8\.0 TB"):
        run_text(text)


def test_only_runs_that_take_something_ask_what_is_free(monkeypatch):
    monkeypatch.setattr(system_memory, "available_bytes", lambda: 0)
    run_text("HloModule m\nENTRY e { x = f32[4] parameter(0)\n ROOT y = f32[4] negate(x) }", np.zeros(4, np.float32))
    with pytest.raises(ResourceError, match="of what this machine has free"):
        run_text(CHAIN, np.zeros(250000, np.float32))


def test_literals_may_not_be_larger_than_an_array_can_be() -> None:
    with pytest.raises(ParseError, match="larger than an array can be"):
        run_text("HloModule m\nENTRY e { ROOT c = f32[0,9223372036854775807] constant({}) }")


@pytest.mark.parametrize(
    "call", ['custom-call(x), custom_call_target="TopK", called_computations={greater}', "topk(x), k=3, largest=true"]
)
def test_the_best_of_more_elements_than_memory_holds_are_refused(call: str) -> None:
    text = f"""HloModule m
greater {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  i = s32[] parameter(2)
  j = s32[] parameter(3)
  ROOT g = pred[] compare(a, b), direction=GT
}}
ENTRY e {{
  x = f32[9223372036854775807] iota(), iota_dimension=0
  ROOT r = (f32[3], s32[3]) {call}
}}
"""
    plan_of(parsed(text))
    with pytest.raises(ResourceError, match=r"would take about 36\.9 EB"):
        run(parsed(text))


def test_results_in_place_of_unknown_calls_may_not_be_larger_than_an_array_can_be() -> None:
    text = 'HloModule m\nENTRY e { ROOT c = f64[4611686018427387904,0] custom-call(), custom_call_target="odd" }'
    with pytest.raises(ResourceError, match="larger than an array can be"):
        run_text(text, unknown="zeros")


def test_groups_of_far_more_devices_than_there_are_are_refused_before_they_are_listed() -> None:
    text = """HloModule m, replica_count=2
ENTRY e { p = f32[4] parameter(0)
  ROOT r = f32[4] all-to-all(p), dimensions={0}, replica_groups=GROUPS }
"""
    for groups in ("[1099511627776,4]<=[4398046511104]", "mesh['x'=1099511627776,'y'=4] {'y'}"):
        with pytest.raises(InputError, match="names 4398046511104 replicas, but there are 2"):
            run_devices(parsed(text.replace("GROUPS", groups)), [[X], [X]])


def test_a_limit_that_is_given_holds_for_small_runs_too():
    x = np.zeros(4, np.float32)
    text = "HloModule m\nENTRY e { x = f32[4] parameter(0)\n ROOT y = f32[4] negate(x) }"
    assert run_text(text, x, memory_limit=16).size == 4
    with pytest.raises(ResourceError, match="about 16 B beyond its inputs"):
        run_text(text, x, memory_limit=15)


def test_a_refusal_lists_what_is_alive_at_the_peak():
    text = """HloModule m
add { p = f32[] parameter(0)
  q = f32[] parameter(1)
  ROOT s = f32[] add(p, q) }
ENTRY e { x = f32[] parameter(0)
  zero = f32[] constant(0)
  wide = f32[750000] broadcast(x), dimensions={}
  early = f32[750000] concatenate(wide), dimensions={0}
  sum = f32[] reduce(early, zero), dimensions={0}, to_apply=add
  next = f32[500000] broadcast(sum), dimensions={}
  late = f32[500000] concatenate(next), dimensions={0}
  ROOT last = f32[500000] concatenate(late), dimensions={0} }"""
    with pytest.raises(ResourceError) as refused:
        run(parsed(text), np.float32(1), memory_limit=4 * MB - 1)
    assert "at %last" in str(refused.value)
    assert re.findall(r"f32\[\d+\] of %(\w+)", str(refused.value)) == ["last", "late"]
