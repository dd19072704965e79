"""The memory that many devices take together, estimated and counted."""

import numpy as np
import pytest

from hloexec.engine.exec import run_devices
from hloexec.engine.exec.statistics import Statistics
from hloexec.errors import ResourceError
from tests.exec.programs import parsed
from tests.plan.memory.programs import MB
from tests.plan.random_programs import random_program
from tests.plan.ways import thread_count

DIFFERING = """HloModule m, num_partitions=4
ENTRY e { x = f32[250000] parameter(0)
  p = u32[] partition-id()
  f = f32[] convert(p)
  b = f32[250000] broadcast(f), dimensions={}
  y = f32[250000] concatenate(b), dimensions={0}
  z = f32[250000] concatenate(y), dimensions={0}
  ROOT r = f32[250000] concatenate(z), dimensions={0} }
"""


def test_what_devices_hold_each_is_freed_device_by_device() -> None:
    """Four values of 1 MB each, and one more while a kernel has made a device's new value and its old one is there."""
    statistics = Statistics()
    run_devices(parsed(DIFFERING), [[np.zeros(250000, np.float32)]], statistics=statistics)
    assert 5 * MB <= statistics.peak_bytes < 5 * MB + 100
    assert 2 * MB <= statistics.device_peak_bytes < 2 * MB + 100


def test_of_what_devices_compute_by_rows_they_hold_the_result_alone() -> None:
    text = DIFFERING
    for opcode in ("exponential", "negate", "exponential"):
        text = text.replace("concatenate", opcode, 1).replace(", dimensions={0}", "", 1)
    statistics = Statistics()
    run_devices(parsed(text), [[np.zeros(250000, np.float32)]], statistics=statistics)
    assert 4 * MB <= statistics.peak_bytes < 4 * MB + 100
    assert 1 * MB <= statistics.device_peak_bytes < 1 * MB + 100


def test_runs_that_all_devices_together_have_no_room_for_are_refused() -> None:
    module, x = parsed(DIFFERING), np.zeros(250000, np.float32)
    with pytest.raises(ResourceError, match=r"would take about 5\.\d MB on all devices \(2\.0 MB on one\)"):
        run_devices(module, [[x]], memory_limit=4 * MB)
    run_devices(module, [[x]], memory_limit=6 * MB)


def test_what_devices_receive_is_each_ones_own() -> None:
    pairs = "frontend_attributes={_xla_send_recv_source_target_pairs={{0,1},{1,2},{2,3},{3,0}}}"
    text = f"""HloModule m, num_partitions=4
ENTRY e {{
  x = f32[] parameter(0)
  t = token[] after-all()
  r = (f32[], u32[], token[]) recv(t), channel_id=1, {pairs}
  s = (f32[], u32[], token[]) send(x, t), channel_id=1, {pairs}
  rd = (f32[], token[]) recv-done(r), channel_id=1
  sd = token[] send-done(s), channel_id=1
  f = f32[] get-tuple-element(rd), index=0
  b = f32[250000] broadcast(f), dimensions={{}}
  y = f32[250000] concatenate(b), dimensions={{0}}
  z = f32[250000] concatenate(y), dimensions={{0}}
  ROOT c = f32[250000] concatenate(z), dimensions={{0}} }}
"""
    inputs = [[np.float32(device)] for device in range(4)]
    statistics = Statistics()
    run_devices(parsed(text), inputs, statistics=statistics)
    assert 5 * MB <= statistics.peak_bytes < 5 * MB + 200
    with pytest.raises(ResourceError, match=r"would take about 5\.\d MB on all devices \(2\.0 MB on one\)"):
        run_devices(parsed(text), inputs, memory_limit=4 * MB)


PER_DEVICE = """HloModule m, num_partitions=2, is_scheduled=true
body { t = (s32[], f32[250000]) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  x = f32[250000] get-tuple-element(t), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  a = f32[250000] concatenate(x), dimensions={0}
  b = f32[250000] concatenate(a), dimensions={0}
  y = f32[250000] subtract(b, x)
  ROOT o = (s32[], f32[250000]) tuple(j, y) }
condition { t = (s32[], f32[250000]) parameter(0)
  i = s32[] get-tuple-element(t), index=0
  n = s32[] constant(3)
  ROOT m = pred[] compare(i, n), direction=LT }
ENTRY e { x = f32[250000] parameter(0)
  z = s32[] constant(0)
  t = (s32[], f32[250000]) tuple(z, x)
  w = (s32[], f32[250000]) while(t), condition=condition, body=body
  ROOT r = f32[250000] get-tuple-element(w), index=1 }
"""


def test_what_one_device_has_done_counts_while_another_goes_on():
    """x, a and b of one, its counter, and the result of the other."""
    statistics = Statistics()
    with thread_count(1):
        run_devices(
            parsed(PER_DEVICE), [[np.zeros(250000, np.float32)], [np.ones(250000, np.float32)]], statistics=statistics
        )
    assert statistics.peak_bytes == 4 * MB + 4
    assert statistics.device_peak_bytes == 3 * MB + 4


@pytest.mark.slow_cases("600647")
@pytest.mark.parametrize("seed", [600066, 600297, 600647, 610043, 610745, 610759, 610926, 611071, 611104])
def test_nothing_is_counted_as_held_once_a_run_is_over(seed):
    """Among these programs' loops are some that hand constants of their bodies on, which count as nobody's."""
    program = random_program(seed)
    for is_planned in (True, False):
        statistics = Statistics()
        with np.errstate(all="ignore"):
            run_devices(parsed(program.text), program.inputs, statistics=statistics, planner=is_planned)
        assert statistics.live_bytes == 0


CHOOSING = {
    "branches": "c = f32[250000] conditional(n, x, x, x, x), branch_computations={copied, copied, copied, copied}\n"
    "  h = f32[1] slice(c), slice={[0:1]}\n  ROOT r = (f32[250000], f32[1]) tuple(c, h)",
    "branches at the end": "ROOT r = f32[250000] conditional(n, x, x, x, x), branch_computations={copied, copied, "
    "copied, copied}",
    "loops": "s = (s32[], f32[250000]) tuple(z, x)\n  w = (s32[], f32[250000]) while(s), condition=less, body=next\n"
    "  ROOT r = f32[250000] get-tuple-element(w), index=1",
}


@pytest.mark.parametrize("what", CHOOSING)
def test_what_devices_make_on_ways_of_their_own_is_estimated_for_each(what: str) -> None:
    """From values on which they agree: what differs is the way alone."""
    module = parsed(f"""HloModule m, num_partitions=4
copied {{ x = f32[250000] parameter(0)
  ROOT y = f32[250000] concatenate(x), dimensions={{0}} }}
next {{ s = (s32[], f32[250000]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[250000] get-tuple-element(s), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  y = f32[250000] concatenate(x), dimensions={{0}}
  ROOT t = (s32[], f32[250000]) tuple(j, y) }}
less {{ s = (s32[], f32[250000]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  p = u32[] partition-id()
  n = s32[] convert(p)
  ROOT on = pred[] compare(i, n), direction=LE }}
ENTRY e {{ x = f32[250000] parameter(0)
  p = u32[] partition-id()
  n = s32[] convert(p)
  z = s32[] constant(0)
  {CHOOSING[what]} }}
""")
    x, statistics = np.ones(250000, np.float32), Statistics()
    run_devices(module, [[x]], statistics=statistics)
    assert statistics.peak_bytes >= 4 * MB
    with pytest.raises(ResourceError, match="on all devices"):
        run_devices(module, [[x]], memory_limit=4 * MB - 1)


def test_what_a_loop_allocates_counts_for_each_device():
    """They go round together, each with a megabyte of its own until it has been added up."""
    text = """HloModule m, num_partitions=8
add { p = f32[] parameter(0)
  q = f32[] parameter(1)
  ROOT s = f32[] add(p, q) }
body { s = (s32[], f32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[] get-tuple-element(s), index=1
  one = s32[] constant(1)
  n = s32[] add(i, one)
  zero = f32[] constant(0)
  wide = f32[250000] broadcast(x), dimensions={}
  copy = f32[250000] concatenate(wide), dimensions={0}
  sum = f32[] reduce(copy, zero), dimensions={0}, to_apply=add
  all = f32[] all-reduce(sum), channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}, use_global_device_ids=true, to_apply=add
  y = f32[] divide(x, all)
  ROOT t = (s32[], f32[]) tuple(n, y) }
going { s = (s32[], f32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  end = s32[] constant(20)
  ROOT c = pred[] compare(i, end), direction=LT }
ENTRY e { x = f32[] parameter(0)
  z = s32[] constant(0)
  s = (s32[], f32[]) tuple(z, x)
  w = (s32[], f32[]) while(s), condition=going, body=body
  ROOT r = f32[] get-tuple-element(w), index=1 }"""
    inputs = [[np.float32(device + 1)] for device in range(8)]
    statistics = Statistics()
    run_devices(parsed(text), inputs, statistics=statistics)
    assert 8 * MB <= statistics.peak_bytes < 8.01 * MB
    run_devices(parsed(text), inputs, memory_limit=int(8.01 * MB))
    with pytest.raises(ResourceError, match="on all devices"):
        run_devices(parsed(text), inputs, memory_limit=8 * MB - 1)
    run_devices(parsed(text), [inputs[0]] * 8, memory_limit=int(1.01 * MB))
