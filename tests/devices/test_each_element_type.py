"""Each collective, transfer and asynchronous operation does with one element type of every family what it does with f32.

Values are zeros and ones, so that sums are exact in every type; expected values are NumPy's, device by device.
"""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from hloexec.core.dtypes import ELEMENT_TYPES

GROUP = "replica_groups={{0,1}}"
PAIR = "source_target_pairs={{0,1}}"
CHANNEL = f"channel_id=1, frontend_attributes={{_xla_send_recv_{PAIR}}}"
MODULE = f"""HloModule each, replica_count=2

add {{
  a = T[] parameter(0)
  b = T[] parameter(1)
  ROOT sum = T[] add(a, b)
}}

reversed {{
  p = T[4] parameter(0)
  ROOT r = T[4] reverse(p), dimensions={{0}}
}}

ENTRY main {{
  x = T[4] parameter(0)
  offsets = s32[2] parameter(1)
  places = s32[2] parameter(2)
  sizes = s32[2] parameter(3)
  gathered = T[8] all-gather(x), {GROUP}, dimensions={{0}}
  gathering = (T[4], T[8]) all-gather-start(x), {GROUP}, dimensions={{0}}
  gathered_later = T[8] all-gather-done(gathering)
  reduced = T[4] all-reduce(x), {GROUP}, to_apply=add
  reducing = T[4] all-reduce-start(x), {GROUP}, to_apply=add
  reduced_later = T[4] all-reduce-done(reducing)
  scattered = T[2] reduce-scatter(x), {GROUP}, dimensions={{0}}, to_apply=add
  exchanged = T[4] all-to-all(x), {GROUP}, dimensions={{0}}
  ragged = T[4] ragged-all-to-all(x, x, offsets, sizes, places, sizes), {GROUP}
  first = T[4] collective-broadcast(x), {GROUP}
  passed = T[4] collective-permute(x), {PAIR}
  passing = (T[4], T[4], u32[], u32[]) collective-permute-start(x), {PAIR}
  passed_later = T[4] collective-permute-done(passing)
  begun = ((T[4]), T[4], u32[]) async-start(x), calls=reversed
  awaited = ((T[4]), T[4], u32[]) async-update(begun)
  ended = T[4] async-done(awaited)
  copying = (T[4], T[4], u32[]) copy-start(x)
  copied = T[4] copy-done(copying)
  begin = token[] after-all()
  sent = (T[4], u32[], token[]) send(x, begin), {CHANNEL}
  asked = (T[4], u32[], token[]) recv(begin), {CHANNEL}
  received_with_token = (T[4], token[]) recv-done(asked), channel_id=1
  received = T[4] get-tuple-element(received_with_token), index=0
  gone = token[] send-done(sent), channel_id=1
  fed_with_token = (T[4], token[]) infeed(begin)
  fed = T[4] get-tuple-element(fed_with_token), index=0
  handed_over = token[] outfeed(x, begin), outfeed_shape=T[4]
  ROOT all = (T[8], T[8], T[4], T[4], T[2], T[4], T[4], T[4], T[4], T[4], T[4], T[4], T[4], T[4]) tuple(gathered,
    gathered_later, reduced, reduced_later, scattered, exchanged, ragged, first, passed, passed_later, ended, copied,
    received, fed)
}}
"""
ZEROS = [0, 0, 0, 0]
VALUES = ([1, 0, 0, 1], [0, 0, 1, 1])


def _expected(device: int) -> list[list[int]]:
    own, (one, other) = VALUES[device], VALUES
    gathered, total = one + other, [a + b for a, b in zip(one, other, strict=True)]
    scattered = (total[:2], total[2:])[device]
    exchanged = (one[:2] + other[:2], one[2:] + other[2:])[device]
    # Each device sends its element i to device i, which has them in the order of their senders.
    ragged = [one[device], other[device], *own[2:]]
    moved = (ZEROS, one)[device]
    return [
        gathered, gathered, total, total, scattered, exchanged, ragged, one, moved, moved, own[::-1], own, moved, own[::-1]
    ]  # fmt: skip


@pytest.mark.parametrize("name", "pred s4 s32 u4 u8 f8e4m3fn bf16 f32 f64 c64".split())
@pytest.mark.parametrize("planner", [True, False])
def test_collectives_transfers_and_asynchronous_operations_take_every_family_of_types(name: str, planner: bool) -> None:
    storage = ELEMENT_TYPES[name].storage
    values: list[Any] = [np.array(row).astype(storage) for row in VALUES]
    module = hloexec.parse(MODULE.replace("T[", f"{name}["))
    offsets, sizes = np.array([0, 1], np.int32), np.array([1, 1], np.int32)
    handed_over: list[list[Any]] = [[], []]
    outputs = hloexec.run_devices(
        module,
        [[value, offsets, np.full(2, device, np.int32), sizes] for device, value in enumerate(values)],
        infeed=[[value[::-1]] for value in values],
        outfeed=handed_over,
        planner=planner,
    )
    for device, output in enumerate(outputs):
        assert isinstance(output, tuple)
        for found, wanted in zip(output, _expected(device), strict=True):
            assert_array_equal(found, np.array(wanted).astype(storage), strict=True)
        assert_array_equal(handed_over[device][0], values[device], strict=True)
