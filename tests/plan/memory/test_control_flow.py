"""The memory of calls, loops and branches, estimated and counted."""

import re

import numpy as np
import pytest

from hloexec.engine.exec import plan_of, run
from hloexec.engine.exec.statistics import Statistics
from hloexec.engine.plan.memory import entry_peak_bytes
from tests.exec.programs import parsed
from tests.plan.memory.programs import MB, counted

LOOP = """HloModule m, is_scheduled=true
body { s = (s32[], f32[250000], f32[250000]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[250000] get-tuple-element(s), index=1
  w = f32[250000] get-tuple-element(s), index=2
  one = s32[] constant(1)
  j = s32[] add(i, one)
  h = f32[125000] slice(x), slice={[0:125000]}
  k = f32[125000] slice(w), slice={[0:125000]}
  y = f32[250000] concatenate(h, k), dimensions={0}
  ROOT t = (s32[], f32[250000], f32[250000]) tuple(j, y, w) }
condition { s = (s32[], f32[250000], f32[250000]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(10)
  ROOT p = pred[] compare(i, n), direction=LT }
ENTRY e { x = f32[250000] parameter(0)
  z = s32[] constant(0)
  a = f32[250000] add(x, x)
  w = f32[250000] add(x, x)
  t = (s32[], f32[250000], f32[250000]) tuple(z, a, w)
  l = (s32[], f32[250000], f32[250000]) while(t), condition=condition, body=body
  ROOT r = f32[250000] get-tuple-element(l), index=1 }
"""


def test_a_loop_frees_what_it_replaces():
    # a and w, and once round: x, y and the invariant w. Scalars take a few bytes.
    x = np.zeros(250000, np.float32)
    assert 3 * MB <= counted(LOOP, x).peak_bytes < 3 * MB + 100
    assert 3 * MB <= entry_peak_bytes(plan_of(parsed(LOOP))) < 3 * MB + 100


def test_unused_loop_state_is_freed_at_once():
    # Larger than what is moved out of a loop.
    text = LOOP.replace("slice(x)", "slice(w)").replace("250000", "500000").replace("125000", "250000")
    # The body does not read x, so only w and y live while it runs.
    assert counted(text, np.zeros(500000, np.float32)).peak_bytes < 6 * MB


TEMPORARIES = {
    "a convolution": (
        "f32[4,32,32,16], f32[3,3,16,8]",
        "r = f32[4,32,32,8] convolution(p0, p1), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f",
    ),
    "a product of bf16": (
        "bf16[300,400], bf16[400,500]",
        "r = bf16[300,500] dot(p0, p1), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    ),
    "a sum of integers of four bits": ("s4[30000], s4[30000]", "r = s4[30000] add(p0, p1)"),
    "a power of f16, under `ftz`": ("f16[30000], f16[30000]", "r = f16[30000] power(p0, p1)"),
}


@pytest.mark.parametrize("how", ["call({}), to_apply=inner", "fusion({}), kind=kLoop, calls=inner"])
@pytest.mark.parametrize("name", TEMPORARIES)
def test_what_a_called_computation_takes_is_estimated_as_if_it_stood_there(name, how):
    shapes, instruction = TEMPORARIES[name]
    given = "\n".join(f"  p{k} = {shape} parameter({k})" for k, shape in enumerate(re.split(r", (?=[a-z])", shapes)))
    inner = f"inner {{\n{given}\n  ROOT {instruction} }}"
    result = instruction.split()[2]
    direct = parsed(f"HloModule m\nENTRY e {{\n{given}\n  ROOT {instruction} }}\n")
    called = parsed(f"HloModule m\n{inner}\nENTRY e {{\n{given}\n  ROOT r = {result} {how.format('p0, p1')} }}\n")
    for policy in ("reference", "ftz"):
        plans = [plan_of(module, numerics=policy) for module in (called, direct)]
        assert entry_peak_bytes(plans[0]) == entry_peak_bytes(plans[1]) > 0


MANY = """  a = f32[250000] concatenate(x), dimensions={0}
  b = f32[250000] concatenate(a), dimensions={0}
  s = f32[1] slice(b), slice={[0:1]}
  r = f32[] reshape(s)
"""

FEW = "  s = f32[1] slice(x), slice={[0:1]}\n  r = f32[] reshape(s)\n"

STATE = "(s32[], f32[250000], f32[])"


def function_of_x(name, lines):
    return f"{name} {{ x = f32[250000] parameter(0)\n{lines}  ROOT o = f32[] negate(r) }}\n"


def loop_with(body, condition):
    """A loop of three times that carries x, with these lines in its body and in its condition."""
    state = (
        f"  t = {STATE} parameter(0)\n  i = s32[] get-tuple-element(t), index=0\n"
        "  x = f32[250000] get-tuple-element(t), index=1\n  q = f32[] get-tuple-element(t), index=2\n"
    )
    return (
        f"body {{\n{state}  one = s32[] constant(1)\n  j = s32[] add(i, one)\n{body}  u = f32[] add(q, r)\n"
        f"  ROOT o = {STATE} tuple(j, x, u) }}\n"
        f"condition {{\n{state}  n = s32[] constant(3)\n  m = pred[] compare(i, n), direction=LT\n{condition}"
        "  h = f32[] constant(1e9)\n  v = pred[] compare(r, h), direction=LT\n  ROOT o = pred[] and(m, v) }\n"
    )


LOOPED = (
    f"  z = s32[] constant(0)\n  q = f32[] constant(0)\n  t = {STATE} tuple(z, x, q)\n"
    f"  w = {STATE} while(t), condition=condition, body=body\n  r = f32[] get-tuple-element(w), index=2\n"
)

CHOSEN = "  k = s32[] constant({})\n  r = f32[] conditional(k, x, x), branch_computations={{many, few}}\n"

BRANCHES = function_of_x("many", MANY) + function_of_x("few", FEW)

GIVEN = "  g = f32[250000] concatenate(x), dimensions={0}\n"

PLACES = {
    "the entry": ("", MANY),
    "a call": (function_of_x("f", MANY), "  r = f32[] call(x), to_apply=f\n"),
    "a fusion": (function_of_x("f", MANY), "  r = f32[] fusion(x), kind=kLoop, calls=f\n"),
    "a branch that is taken": (BRANCHES, CHOSEN.format(0)),
    "a call that frees what it is given": (
        function_of_x("f", MANY),
        GIVEN + "  r = f32[] call(g), to_apply=f\n",
    ),
    "a branch that frees what it is given": (BRANCHES, GIVEN + CHOSEN.format(0).replace("x, x", "g, g")),
    "a loop's body": (loop_with(MANY, FEW), LOOPED),
    "a loop's condition": (loop_with(FEW, MANY), LOOPED),
}


@pytest.mark.parametrize("is_planned", [True, False])
@pytest.mark.parametrize("place", PLACES)
def test_two_large_values_are_estimated_and_counted_wherever_they_are(place, is_planned):
    computations, lines = PLACES[place]
    text = (
        f"HloModule m, is_scheduled=true\n{computations}ENTRY e {{ x = f32[250000] parameter(0)\n{lines}"
        "  ROOT out = f32[] negate(r) }\n"
    )
    statistics = Statistics()
    run(parsed(text), np.zeros(250000, np.float32), statistics=statistics, planner=is_planned)
    # Besides them there are a few scalars: counters, sums and what conditions say.
    assert 2 * MB <= statistics.peak_bytes <= 2 * MB + 32
    assert 2 * MB <= entry_peak_bytes(plan_of(parsed(text), planner=is_planned)) <= 2 * MB + 32


def test_a_branch_that_is_not_taken_is_estimated_too():
    text = (
        f"HloModule m, is_scheduled=true\n{BRANCHES}ENTRY e {{ x = f32[250000] parameter(0)\n{CHOSEN.format(1)}"
        "  ROOT out = f32[] negate(r) }\n"
    )
    assert counted(text, np.zeros(250000, np.float32)).peak_bytes < 100
    assert 2 * MB <= entry_peak_bytes(plan_of(parsed(text))) <= 2 * MB + 32


def test_what_a_loop_is_given_counts_as_what_it_is_a_view_of():
    """The state is a row repeated a hundred times, which takes a row, and what the loop makes of it, a hundred."""
    text = """HloModule m, is_scheduled=true
body { t = (s32[], f32[100,2500]) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  x = f32[100,2500] get-tuple-element(t), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  y = f32[100,2500] sine(x)
  ROOT o = (s32[], f32[100,2500]) tuple(j, y) }
condition { t = (s32[], f32[100,2500]) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  n = s32[] constant(30)
  ROOT m = pred[] compare(i, n), direction=LT }
ENTRY e { p = f32[2500] parameter(0)
  row = f32[2500] concatenate(p), dimensions={0}
  x = f32[100,2500] broadcast(row), dimensions={1}
  z = s32[] constant(0)
  t = (s32[], f32[100,2500]) tuple(z, x)
  w = (s32[], f32[100,2500]) while(t), condition=condition, body=body
  ROOT r = f32[100,2500] get-tuple-element(w), index=1 }
"""
    found = counted(text, np.ones(2500, np.float32)).peak_bytes
    assert MB < found <= entry_peak_bytes(plan_of(parsed(text))) <= 2.1 * MB


def test_a_loop_that_is_given_a_part_of_a_buffer_frees_no_more_than_that():
    """Until the first iteration has replaced the slice, all of what it shows is alive, beside what is made of it."""
    text = """HloModule m, is_scheduled=true
body { t = (s32[], f32[250000]) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  x = f32[250000] get-tuple-element(t), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  y = f32[250000] concatenate(x), dimensions={0}
  ROOT o = (s32[], f32[250000]) tuple(j, y) }
condition { t = (s32[], f32[250000]) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  n = s32[] constant(3)
  ROOT m = pred[] compare(i, n), direction=LT }
ENTRY e { p = f32[1000000] parameter(0)
  large = f32[1000000] concatenate(p), dimensions={0}
  x = f32[250000] slice(large), slice={[0:250000]}
  z = s32[] constant(0)
  t = (s32[], f32[250000]) tuple(z, x)
  w = (s32[], f32[250000]) while(t), condition=condition, body=body
  ROOT r = f32[250000] get-tuple-element(w), index=1 }
"""
    found = counted(text, np.ones(1000000, np.float32)).peak_bytes
    assert 5 * MB <= found <= entry_peak_bytes(plan_of(parsed(text))) <= 5.1 * MB
