"""Limits of memory: what is refused before it runs, and how."""

import gc
import re
import weakref

import numpy as np
import pytest

from hloexec.core import process
from hloexec.engine.exec import plan_of, run, run_devices
from hloexec.engine.exec.statistics import Statistics
from hloexec.engine.plan.memory import entry_peak_bytes
from hloexec.engine.plan.regions import region
from hloexec.errors import HloWarning, InputError, ParseError, ResourceError
from hloexec.ops.resources import owner_of
from tests.exec.programs import parsed, run_text
from tests.plan.memory.programs import CHAIN, COPIES, MB, counted
from tests.plan.random_programs import random_program

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
    monkeypatch.setattr(process, "available_bytes", lambda: 0)
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


def test_a_chain_keeps_two_buffers_at_a_time():
    x = np.zeros(250000, np.float32)
    assert entry_peak_bytes(plan_of(parsed(COPIES))) == 2 * MB
    statistics = counted(COPIES, x)
    assert statistics.peak_bytes == 2 * MB
    assert statistics.steps == 4


def test_a_chain_taken_by_rows_keeps_its_result_and_scratch():
    x = np.zeros(250000, np.float32)
    plan = plan_of(parsed(CHAIN))
    assert counted(CHAIN, x).peak_bytes == 1 * MB
    (step,) = plan.steps
    assert entry_peak_bytes(plan) == 1 * MB + step.extra_bytes
    assert 0 < step.extra_bytes < 2**20 * 2


VIEWS = """HloModule m, is_scheduled=true
ENTRY e { x = f32[250000] parameter(0)
  a = f32[250000] add(x, x)
  v = f32[500,500] reshape(a)
  t = f32[500,500] transpose(v), dimensions={1,0}
  w = f32[500,500] transpose(t), dimensions={1,0}
  b = f32[250000] reshape(w)
  ROOT c = f32[250000] add(a, b) }
"""


def test_views_take_nothing_but_keep_their_operand():
    assert counted(VIEWS, np.zeros(250000, np.float32)).peak_bytes == 2 * MB


@pytest.mark.parametrize(
    ("use", "copied"),
    [
        ("f32[8] reduce(b, z), dimensions={0,2}, to_apply=add", 4),  # rows of 500 kB, beyond what is computed by rows
        ("f32[8,8] dot(b, b), lhs_contracting_dims={0,2}, rhs_contracting_dims={0,2}", 8),
        ("f32[125,8,1000] negate(b)", 4),
    ],
)
def test_copies_of_broadcast_operands_count(use: str, copied: int) -> None:
    """Sums and products go by the order in which operands lie in memory, and a broadcast operand lies in none."""
    text = f"""HloModule m
add {{ a = f32[] parameter(0)
  c = f32[] parameter(1)
  ROOT s = f32[] add(a, c) }}
ENTRY e {{ x = f32[8] parameter(0)
  b = f32[125,8,1000] broadcast(x), dimensions={{1}}
  z = f32[] constant(0)
  ROOT r = {use} }}
"""
    assert copied * MB <= entry_peak_bytes(plan_of(parsed(text))) < copied * MB + 1000


@pytest.mark.parametrize("is_counted", [False, True])
@pytest.mark.parametrize("devices", [1, 2])
def test_results_are_freed_with_the_last_that_refers_to_them(devices, is_counted):
    """Without waiting until Python looks for cycles of references."""
    x = np.ones(250_000, np.float32)
    module = parsed(CHAIN)
    gc.disable()
    try:
        statistics = Statistics() if is_counted else None
        results = run_devices(
            module, [[x + device] for device in range(devices)], replicas=devices, statistics=statistics
        )
        watched = [weakref.ref(owner_of(result)) for result in results]
        del results
        assert [reference() for reference in watched] == [None] * devices
    finally:
        gc.enable()


def test_a_view_of_a_view_keeps_the_buffer_that_it_shows():
    text = COPIES.replace(
        "  ROOT d = f32[250000] concatenate(c), dimensions={0} }",
        "  v = f32[500,500] reshape(a)\n  w = f32[250,1000] reshape(v)\n  d = f32[250000] concatenate(c), dimensions={0}\n"
        "  e = f32[250000] reshape(w)\n  ROOT f = f32[500000] concatenate(d, e), dimensions={0} }",
    )
    # a, which is still shown; d; and the result of both.
    assert entry_peak_bytes(plan_of(parsed(text))) == 4 * MB
    assert counted(text, np.zeros(250000, np.float32)).peak_bytes == 4 * MB


def test_scratch_is_estimated_for_each_core_that_takes_rows(monkeypatch):
    scratch = []
    for count in (1, 2, 4):
        monkeypatch.setattr(region, "core_count", lambda count=count: count)
        (step,) = plan_of(parsed(CHAIN.replace("250000", "1500000"))).steps
        scratch.append(step.extra_bytes)
    assert scratch == [scratch[0], 2 * scratch[0], 4 * scratch[0]] != [0, 0, 0]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", [seed for seed in range(1000, 1080) if seed % 8 < 6])
def test_random_programs_take_no_more_than_is_estimated(seed):
    """But for bitcasts, which count as views, and are copies of values that are stored in another order."""
    program = random_program(seed)
    statistics = Statistics()
    module = parsed(program.text)
    with np.errstate(all="ignore"):
        run(module, *program.inputs[0], statistics=statistics)
    copied = sum(part.shape.byte_size for inner in module for part in inner if part.opcode == "bitcast")
    assert statistics.peak_bytes <= entry_peak_bytes(plan_of(module)) + copied


def test_results_that_the_caller_or_the_module_holds_are_copied():
    """A parameter, a view of it and a constant are copied for the caller; the sum is its own."""
    text = """HloModule m
ENTRY e { x = f32[250000] parameter(0)
  v = f32[500,500] reshape(x)
  c = f32[250000] constant({...})
  s = f32[250000] add(x, x)
  ROOT r = (f32[250000], f32[500,500], f32[250000], f32[250000]) tuple(x, v, c, s) }"""
    x = np.ones(250000, np.float32)
    module = parsed(text)
    with pytest.warns(HloWarning, match="elide"):
        results = run(module, x, memory_limit=4 * MB)
    assert sum(result.nbytes for result in results) == 4 * MB
    assert not any(np.shares_memory(result, x) for result in results)
    with pytest.raises(ResourceError):
        run(module, x, memory_limit=4 * MB - 1)
