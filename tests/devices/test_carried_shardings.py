"""Boundaries of manual regions behind instructions that carry no sharding, as passes leave them."""

import numpy as np
import pytest

import hloexec
from hloexec.errors import UnsupportedError

WHOLE = np.arange(8, dtype=np.int32).reshape(4, 2)
ROWS = "{devices=[2,1]<=[2]}"

CARRIERS = {
    "nothing": "b = s32[4,2] copy(a), sharding=ROWS",
    "copy": "b = s32[4,2] copy(s)",
    "copies": "c = s32[4,2]{0,1} copy(s)\n  b = s32[4,2] copy(c)",
    "tuple": "t = (s32[2], s32[4,2]) tuple(z, s)\n  b = s32[4,2] get-tuple-element(t), index=1",
    "nested tuple": "t = (s32[2], s32[4,2]) tuple(z, s)\n  u = ((s32[2], s32[4,2]), s32[2]) tuple(t, z)\n"
    "  v = (s32[2], s32[4,2]) get-tuple-element(u), index=0\n  b = s32[4,2] get-tuple-element(v), index=1",
    "barrier": "t = (s32[4,2], s32[2]) tuple(s, z)\n  u = (s32[4,2], s32[2]) opt-barrier(t)\n"
    "  b = s32[4,2] get-tuple-element(u), index=0",
    "reshape": "b = s32[4,2] reshape(s)",
    "bitcast": "b = s32[4,2] bitcast(s)",
}


def begins(carrier: str) -> hloexec.Module:
    """A region that begins: device d takes rows 2d and 2d + 1."""
    return hloexec.parse(
        f"""HloModule m, num_partitions=2
ENTRY e {{
  a = s32[4,2] parameter(0)
  z = s32[2] constant({{1, 2}})
  s = s32[4,2] custom-call(a), custom_call_target="Sharding", sharding={ROWS}
  {carrier.replace("ROWS", ROWS)}
  ROOT r = s32[2,2] custom-call(b), custom_call_target="SPMDFullToShardShape", sharding={{manual}}
}}"""
    )


@pytest.mark.parametrize("carrier", CARRIERS)
def test_the_sharding_is_that_of_what_is_carried(carrier: str) -> None:
    for device, block in enumerate(hloexec.run_devices(begins(CARRIERS[carrier]), [[WHOLE]])):
        assert np.array_equal(block, WHOLE[2 * device : 2 * device + 2])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("operand", "attribute"),
    [
        ("c = s32[2,2] copy(s)", ""),
        ("t = (s32[2,2]) tuple(s)\n  c = s32[2,2] get-tuple-element(t), index=0", ""),
        ("c = s32[2,2] add(a, a)", "no sharding at all"),
    ],
)
def test_what_ends_a_region_is_manual(operand: str, attribute: str) -> None:
    """Inside a region, a value is manual, whether or not its text says so: its device has its own tile."""
    text = f"""HloModule m, num_partitions=2
ENTRY e {{
  a = s32[2,2] parameter(0)
  s = s32[2,2] custom-call(a), custom_call_target="Sharding", sharding={{manual}}
  {operand}
  ROOT r = s32[4,2] custom-call(c), custom_call_target="SPMDShardToFullShape", sharding={ROWS}
}}"""
    blocks = [WHOLE[:2], WHOLE[2:]]
    expected = WHOLE * 2 if attribute else WHOLE
    for whole in hloexec.run_devices(hloexec.parse(text), [[block] for block in blocks]):
        assert np.array_equal(whole, expected)  # type: ignore[arg-type]


def test_what_begins_a_region_is_manual_behind_it() -> None:
    text = f"""HloModule m, num_partitions=2
ENTRY e {{
  a = s32[4,2] parameter(0), sharding={ROWS}
  ROOT r = s32[2,2] custom-call(a), custom_call_target="SPMDFullToShardShape"
}}"""
    for device, block in enumerate(hloexec.run_devices(hloexec.parse(text), [[WHOLE]])):
        assert np.array_equal(block, WHOLE[2 * device : 2 * device + 2])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "carrier",
    [
        "b = s32[4,2] reverse(s), dimensions={0}",
        "d = s32[2,4] reshape(s)\n  b = s32[4,2] reshape(d)",
        "c = s32[4,2]{0,1} bitcast(s)\n  b = s32[4,2] copy(c)",
        "b = s32[4,2] copy(a)",
    ],
)
def test_what_moves_elements_carries_no_sharding(carrier: str) -> None:
    module = begins(carrier)
    with pytest.raises(UnsupportedError, match="no sharding says how"):
        hloexec.run_devices(module, [[WHOLE]])


@pytest.mark.parametrize(
    ("result", "sharding"), [("s32[6,2]", "{devices=[2,1]<=[2]}"), ("s32[2,4]", ROWS), ("s32[4,2]", "{replicated}")]
)
def test_shapes_that_tiles_do_not_explain_are_refused(result: str, sharding: str) -> None:
    text = f"""HloModule m, num_partitions=2
ENTRY e {{
  a = s32[2,2] parameter(0)
  ROOT r = {result} custom-call(a), custom_call_target="SPMDShardToFullShape", sharding={sharding}
}}"""
    with pytest.raises(UnsupportedError, match=r"cannot become|no sharding says how"):
        hloexec.run_devices(hloexec.parse(text), [[WHOLE[:2]], [WHOLE[2:]]])
