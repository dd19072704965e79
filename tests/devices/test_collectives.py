"""Collectives on many devices give, bit for bit, what the model of them gives, device by device."""

from typing import Any

import hypothesis
import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from tests.devices import drawing
from tests.devices.comparing import assert_same
from tests.drawing import examples

pytestmark = pytest.mark.timeout(60)
settings = hypothesis.settings(
    max_examples=examples(60), deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
)


@pytest.mark.parametrize("step", drawing.STEPS)
@hypothesis.settings(settings, max_examples=examples(15))
@hypothesis.given(hypothesis.strategies.data())
def test_collective_agrees_with_model(step: str, data: hypothesis.strategies.DataObject) -> None:
    program = data.draw(drawing.programs(steps=[step]))
    assert_agrees(program)


@settings
@hypothesis.given(drawing.programs())
def test_chain_of_collectives_agrees_with_model(program: drawing.Program) -> None:
    assert_agrees(program)


def assert_agrees(program: drawing.Program) -> None:
    module = hloexec.parse(program.text)
    hloexec.verify(module)
    inputs = program.inputs_per_device
    before = [[value.tobytes() for value in values] for values in inputs]
    assert_same(hloexec.run_devices(module, inputs), program.expected, program.text)
    assert [[value.tobytes() for value in values] for values in inputs] == before, "inputs were written to"


def test_a_transpose_and_another_array_are_gathered_by_rows() -> None:
    """XLA:CPU makes both column-major, and puts whole shards one after the other."""
    module = hloexec.parse("""HloModule gather, replica_count=2
ENTRY main {
  x = bf16[12,2] parameter(0)
  y = bf16[2,12] parameter(1)
  t = bf16[2,12] transpose(x), dimensions={1,0}
  ROOT g = (bf16[4,12], bf16[4,12]) all-gather(t, y), replica_groups={{0,1}}, dimensions={0}
}
""")
    x, y = (np.arange(24).reshape(shape).astype(ml_dtypes.bfloat16) for shape in ((12, 2), (2, 12)))
    for found in hloexec.run_devices(module, [[x, y], [-x, -y]]):
        assert isinstance(found, tuple)
        for gathered, shard in zip(found, (x.T, y), strict=True):
            assert_array_equal(gathered, np.concatenate([shard, -shard]))


@pytest.mark.parametrize("attributes", ["", ", channel_id=3", ", channel_id=3, use_global_device_ids=true"])
def test_a_collective_runs_on_the_devices_that_its_groups_name(attributes: str) -> None:
    """Its module does not say how many there are; groups name replicas, or devices (XLA: CollectiveOpGroupMode)."""
    module = hloexec.parse(f"""HloModule gather
ENTRY main {{
  x = s32[1] parameter(0)
  ROOT g = s32[3] all-gather(x), replica_groups={{{{2,0,1}}}}, dimensions={{0}}{attributes}
}}
""")
    for found in hloexec.run_devices(module, [[np.array([number], np.int32)] for number in range(3)]):
        assert_array_equal(found, [2, 0, 1])


@hypothesis.settings(settings, max_examples=examples(30))
@hypothesis.given(drawing.programs())
def test_fresh_buffers_change_nothing(program: drawing.Program) -> None:
    outputs = hloexec.run_devices(hloexec.parse(program.text), program.inputs_per_device, planner=False)
    assert_same(outputs, program.expected, program.text)


@hypothesis.settings(settings, max_examples=examples(30))
@hypothesis.given(drawing.programs())
def test_observers_see_every_value_once_on_every_device(program: drawing.Program) -> None:
    recorder = Recorder()
    outputs = hloexec.run_devices(hloexec.parse(program.text), program.inputs_per_device, observers=[recorder])
    assert_same(outputs, program.expected, program.text)
    for value in program.values:
        seen = recorder.seen[value.name]
        assert sorted(device for devices, _ in seen for device in devices) == list(range(program.devices))
        for devices, array in seen:
            for device in devices:
                assert array.tobytes() == value.arrays[device].tobytes(), f"{value.name} on {device}\n{program.text}"


class Recorder:
    def __init__(self) -> None:
        self.seen: dict[str, list[tuple[tuple[int, ...], Any]]] = {}

    def on_instruction(self, event: Any) -> None:
        self.seen.setdefault(event.name, []).append((event.devices, event.value))


def test_slices_of_several_arrays_are_permuted_in_place_at_once() -> None:
    """Tuples of arrays, of starts and of slice sizes: slice number n belongs to array number n."""
    text = """HloModule m, replica_count=2
ENTRY main {
  x = s32[4] parameter(0)
  y = s32[2,3] parameter(1)
  one = s32[] constant(1)
  zero = s32[] constant(0)
  given = (s32[4], s32[2,3]) tuple(x, y)
  nines = s32[] constant(9)
  o = s32[4] broadcast(nines), dimensions={}
  p = s32[2,3] broadcast(nines), dimensions={}
  updated = (s32[4], s32[2,3]) tuple(o, p)
  first = (s32[]) tuple(one)
  second = (s32[], s32[]) tuple(one, zero)
  third = (s32[], s32[]) tuple(zero, one)
  from = ((s32[]), (s32[], s32[])) tuple(first, second)
  to = ((s32[]), (s32[], s32[])) tuple(first, third)
  ROOT z = (s32[4], s32[2,3]) collective-permute(given, updated, from, to), source_target_pairs={{0,1}}, slice_sizes={{3},{1,2}}
}
"""
    inputs = [np.arange(4, dtype=np.int32), np.arange(6, dtype=np.int32).reshape(2, 3)]
    (kept_x, kept_y), (x, y) = hloexec.run_devices(hloexec.parse(text), [inputs])
    assert (kept_x.tolist(), kept_y.tolist()) == ([9] * 4, [[9] * 3] * 2)
    assert (x.tolist(), y.tolist()) == ([9, 1, 2, 3], [[9, 3, 4], [9, 9, 9]])


def test_the_state_of_a_started_collective_holds_all_of_its_operands() -> None:
    text = """HloModule m, replica_count=2
ENTRY e { x = f32[2] parameter(0)
  y = f32[2] negate(x)
  s = ((f32[2], f32[2]), (f32[4], f32[4])) all-gather-start(x, y), replica_groups={{0,1}}, dimensions={0}
  before = (f32[2], f32[2]) get-tuple-element(s), index=0
  b = f32[2] get-tuple-element(before), index=1
  d = (f32[4], f32[4]) all-gather-done(s)
  c = f32[4] get-tuple-element(d), index=1
  ROOT r = (f32[2], f32[4]) tuple(b, c) }
"""
    x = np.arange(4, dtype=np.float32).reshape(2, 2)
    for row, (before, after) in zip(x, hloexec.run_devices(hloexec.parse(text), [[row] for row in x]), strict=True):
        assert_array_equal(before, -row)
        assert_array_equal(after, -x.reshape(-1))
