"""Faults in loops within loops over integers, where few numbers say which values are one."""

import numpy as np
import pytest

import hloexec
from tests.diffing.texts import diff_texts

_KEYS = np.random.default_rng(0).integers(1, 40000, 12).astype(np.uint32)

# Each key is put where a search from its hash, one place further each time, finds it or finds room.
_BEFORE = """HloModule m

search {
  state = (s32[], s32[], u32[16], u32[]) parameter(0)
  place = s32[] get-tuple-element(state), index=0
  count = s32[] get-tuple-element(state), index=1
  table = u32[16] get-tuple-element(state), index=2
  key = u32[] get-tuple-element(state), index=3
  one = s32[] constant(1)
  more = s32[] add(count, one)
  stepped = s32[] add(place, more)
  size = s32[] constant(16)
  next = s32[] remainder(stepped, size)
  ROOT handed = (s32[], s32[], u32[16], u32[]) tuple(next, more, table, key)
}

goes_on {
  state = (s32[], s32[], u32[16], u32[]) parameter(0)
  place = s32[] get-tuple-element(state), index=0
  count = s32[] get-tuple-element(state), index=1
  table = u32[16] get-tuple-element(state), index=2
  key = u32[] get-tuple-element(state), index=3
  slot = u32[1] dynamic-slice(table, place), dynamic_slice_sizes={1}
  held = u32[] reshape(slot)
  zero = u32[] constant(0)
  is_taken = pred[] compare(held, zero), direction=NE
  is_other = pred[] compare(held, key), direction=NE
  is_wrong = pred[] and(is_taken, is_other)
  most = s32[] constant(16)
  is_allowed = pred[] compare(count, most), direction=LT
  ROOT goes = pred[] and(is_wrong, is_allowed)
}

put {
  state = (s32[], u32[16], s32[12], u32[12]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  table = u32[16] get-tuple-element(state), index=1
  probes = s32[12] get-tuple-element(state), index=2
  keys = u32[12] get-tuple-element(state), index=3
  one = s32[] constant(1)
  next = s32[] add(i, one)
  part = u32[1] dynamic-slice(keys, i), dynamic_slice_sizes={1}
  key = u32[] reshape(part)
  factor = u32[] constant(2146121005)
  product = u32[] multiply(key, factor)
  bits = u32[] constant(15)
  shifted = u32[] shift-right-logical(product, bits)
  mixed = u32[] xor(product, shifted)
  size = u32[] constant(16)
  hash = u32[] remainder(mixed, size)
  start = s32[] convert(hash)
  none = s32[] constant(0)
  init = (s32[], s32[], u32[16], u32[]) tuple(start, none, table, key)
  found = (s32[], s32[], u32[16], u32[]) while(init), condition=goes_on, body=search
  place = s32[] get-tuple-element(found), index=0
  count = s32[] get-tuple-element(found), index=1
  filled = u32[16] dynamic-update-slice(table, part, place)
  counted = s32[1] reshape(count)
  noted = s32[12] dynamic-update-slice(probes, counted, i)
  ROOT handed = (s32[], u32[16], s32[12], u32[12]) tuple(next, filled, noted, keys)
}

has_more {
  state = (s32[], u32[16], s32[12], u32[12]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  count = s32[] constant(12)
  ROOT more = pred[] compare(i, count), direction=LT
}

ENTRY main {
  keys = u32[12] parameter(0)
  start = s32[] constant(0)
  zero = u32[] constant(0)
  empty = u32[16] broadcast(zero), dimensions={}
  zeros = s32[12] broadcast(start), dimensions={}
  init = (s32[], u32[16], s32[12], u32[12]) tuple(start, empty, zeros, keys)
  loop = (s32[], u32[16], s32[12], u32[12]) while(init), condition=has_more, body=put
  table = u32[16] get-tuple-element(loop), index=1
  probes = s32[12] get-tuple-element(loop), index=2
  ROOT r = (u32[16], s32[12]) tuple(table, probes)
}
"""
# What a compiler could make of it: other operand orders, a mask in the place of a remainder.
_AFTER = (
    _BEFORE.replace("remainder(mixed, size)", "and(mixed, mask)")
    .replace("  size = u32[] constant(16)\n", "  mask = u32[] constant(15)\n")
    .replace("compare(held, zero), direction=NE", "compare(zero, held), direction=NE")
    .replace("add(place, more)", "add(more, place)")
    .replace("compare(i, count), direction=LT", "compare(count, i), direction=GT")
)


def test_without_a_fault_they_agree() -> None:
    assert diff_texts(_BEFORE, _AFTER, [_KEYS]).verdict == "agree"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("right", "wrong", "names"),
    [
        ("bits = u32[] constant(15)", "bits = u32[] constant(16)", {"bits", "shifted"}),
        ("is_wrong = pred[] and(", "is_wrong = pred[] or(", {"is_wrong"}),
        ("compare(zero, held), direction=NE", "compare(zero, held), direction=EQ", {"is_taken"}),
        ("stepped = s32[] add(more, place)", "stepped = s32[] add(count, place)", {"stepped"}),
        ("most = s32[] constant(16)", "most = s32[] constant(3)", {"most", "is_allowed"}),
        ("and(mixed, mask)", "and(product, mask)", {"hash"}),
    ],
)
def test_the_step_that_makes_a_search_end_elsewhere_is_found(right: str, wrong: str, names: set[str]) -> None:
    assert _AFTER.count(right) == 1
    found = hloexec.diff(hloexec.parse(_BEFORE), hloexec.parse(_AFTER.replace(right, wrong)), [_KEYS])
    assert found.verdict == "differ"
    assert found.findings[0].after.instruction in names
