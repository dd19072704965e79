"""Collectives that fusions start and finish, as dumps of TPUs have them."""

import numpy as np
import pytest

import hloexec
from hloexec.errors import UnsupportedError
from hloexec.tools.extraction.running import slice_module, slice_of

TEXT = """HloModule m, num_partitions=2

begun {
  x = f32[1,3] parameter(0)
  all = f32[2,3] all-gather(x), channel_id=1, replica_groups={{0,1}}, dimensions={0}, use_global_device_ids=true
  ROOT start = (f32[1,3], f32[2,3], u32[]) custom-call(all), custom_call_target="AsyncCollectiveStart"
}

over {
  x = f32[1,3] parameter(0)
  y = f32[2,3] parameter(1)
  all = f32[2,3] all-gather(x), channel_id=1, replica_groups={{0,1}}, dimensions={0}, use_global_device_ids=true
  state = u32[] parameter(2)
  ROOT done = f32[2,3] custom-call(x, y, all, state), custom_call_target="AsyncCollectiveDone"
}

ENTRY main {
  given = f32[1,3] parameter(0)
  x = f32[1,3] OPCODE(given)
  started = (f32[1,3], f32[2,3], u32[]) fusion(x), kind=kCustom, calls=begun
  first = f32[1,3] get-tuple-element(started), index=0
  second = f32[2,3] get-tuple-element(started), index=1
  third = u32[] get-tuple-element(started), index=2
  ended = f32[2,3] fusion(first, second, third), kind=kCustom, calls=over
  ROOT r = f32[2,3] negate(ended)
}
"""
GIVEN = [[np.full((1, 3), number, np.float32) + np.arange(3, dtype=np.float32)] for number in (1, 5)]


def test_what_is_started_and_finished_is_the_collective() -> None:
    expected = -np.exp(np.concatenate([given for (given,) in GIVEN]))
    for result in hloexec.run_devices(hloexec.parse(TEXT.replace("OPCODE", "exponential")), GIVEN):
        np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_diff_computes_again_what_is_started_and_finished() -> None:
    before, after = (hloexec.parse(TEXT.replace("OPCODE", name)) for name in ("exponential", "cosine"))
    found = hloexec.diff(before, after, GIVEN).findings[0]
    assert (found.after.instruction, found.is_certain) == ("x", True)


def test_a_start_without_its_collective_is_refused() -> None:
    module = hloexec.parse(TEXT.replace("OPCODE", "exponential"))
    alone = slice_module(module, slice_of(module.by_name["begun"], "start", depth=1))
    with pytest.raises(UnsupportedError, match=r"%start in computation .* starts %all, which is no collective"):
        hloexec.run(alone, np.zeros((2, 3), np.float32))
