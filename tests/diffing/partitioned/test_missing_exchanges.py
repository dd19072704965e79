"""Exchanges that are missing are told by what all results come right with; where one is there, none is told."""

from __future__ import annotations

import numpy as np
import pytest

import hloexec

_WHOLE = """HloModule whole, num_partitions=4
ENTRY main {
  x = f32[8,12] parameter(0), sharding={devices=[2,2]<=[4]}
  last = f32[1,12] slice(x), slice={[7:8], [0:12]}
  rows = f32[7,12] slice(x), slice={[0:7], [0:12]}
  down = f32[8,12] concatenate(last, rows), dimensions={0}
  left = f32[8,11] slice(x), slice={[0:8], [1:12]}
  first = f32[8,1] slice(x), slice={[0:8], [0:1]}
  moved = f32[8,12] concatenate(left, first), dimensions={1}
  sum = f32[8,12] add(down, moved)
  sine = f32[8,12] sine(sum)
  ROOT r = f32[8,12] add(sine, x), sharding={devices=[2,2]<=[4]}
}
"""
_DOWN = "collective-permute(last), channel_id=1, source_target_pairs={{0,2},{1,3},{2,0},{3,1}}"
_LEFT = "collective-permute(first), channel_id=2, source_target_pairs={{0,1},{1,0},{2,3},{3,2}}"
_PARTS = f"""HloModule parts_spmd, num_partitions=4
ENTRY main_spmd {{
  x = f32[4,6] parameter(0)
  last = f32[1,6] slice(x), slice={{[3:4], [0:6]}}
  rows = f32[3,6] slice(x), slice={{[0:3], [0:6]}}
  p = f32[1,6] {_DOWN}
  down = f32[4,6] concatenate(p, rows), dimensions={{0}}
  left = f32[4,5] slice(x), slice={{[0:4], [1:6]}}
  first = f32[4,1] slice(x), slice={{[0:4], [0:1]}}
  q = f32[4,1] {_LEFT}
  moved = f32[4,6] concatenate(left, q), dimensions={{1}}
  sum = f32[4,6] add(down, moved)
  sine = f32[4,6] sine(sum)
  ROOT r = f32[4,6] add(sine, x)
}}
"""


def _inputs(*shape: int) -> list[list[hloexec.Value]]:
    random = np.random.default_rng(0)
    return [[random.normal(size=shape).astype(np.float32)] for _ in range(4)]


def _first(before: str, after: str, inputs: list[list[hloexec.Value]]) -> hloexec.Finding:
    assert hloexec.diff(hloexec.parse(before), hloexec.parse(after), inputs).verdict == "differ"
    return hloexec.diff(hloexec.parse(before), hloexec.parse(after), inputs).findings[0]


@pytest.mark.parametrize("is_partitioned", [False, True], ids=["whole", "partitioned"])
@pytest.mark.parametrize(("how", "near"), [(_DOWN, ("last", "p", "down")), (_LEFT, ("first", "q", "moved"))])
def test_a_missing_permute_is_told_with_its_route(how: str, near: tuple[str, ...], is_partitioned: bool) -> None:
    source = how.partition("(")[2].partition(")")[0]
    inputs = _inputs(4, 6)
    if not is_partitioned:
        rows = [np.concatenate([inputs[row][0], inputs[row + 1][0]], 1) for row in (0, 2)]
        inputs = [[np.concatenate(rows)]]
    first = _first(_PARTS if is_partitioned else _WHOLE, _PARTS.replace(how, f"copy({source})"), inputs)
    assert first.after.instruction in near
    assert how.partition(", ")[2].partition(", ")[2] in first.reason
    assert not first.is_certain


def test_sums_of_several_results_that_are_missing_together_are_told() -> None:
    head = """HloModule sums, num_partitions=4
sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT total = f32[] add(a, b)
}
ENTRY main {
  x = f32[6,5] parameter(0)
  y = f32[6,5] sine(x)
  zero = f32[] constant(0)
"""
    how = "channel_id=1, replica_groups={{0,1},{2,3}}, use_global_device_ids=true, to_apply=sum"
    before = f"""{head}  t = f32[6,5] all-reduce(y), {how}
  s = f32[] reduce(x, zero), dimensions={{0,1}}, to_apply=sum
  u = f32[] all-reduce(s), {how.replace("channel_id=1", "channel_id=2")}
  ROOT both = (f32[6,5], f32[]) tuple(t, u)
}}
"""
    after = f"""{head}  s = f32[] reduce(x, zero), dimensions={{0,1}}, to_apply=sum
  all = (f32[6,5], f32[]) all-reduce(y, s), {how}
  t = f32[6,5] get-tuple-element(all), index=0
  u = f32[] get-tuple-element(all), index=1
  ROOT both = (f32[6,5], f32[]) tuple(t, u)
}}
"""
    assert hloexec.diff(hloexec.parse(before), hloexec.parse(after), _inputs(6, 5)).agrees
    first = _first(before, after.replace(f"all-reduce(y, s), {how}", "tuple(y, s)"), _inputs(6, 5))
    assert first.after.instruction in ("y", "s")
    assert first.reason == "devices 0, 1 have parts of a sum that nothing adds up: an all-reduce over them is missing"


def test_what_another_step_gives_wrong_is_no_missing_exchange() -> None:
    for wrong in (
        _PARTS.replace("sine(sum)", "cosine(sum)"),
        _PARTS.replace("add(down, moved)", "subtract(down, moved)"),
    ):
        assert wrong != _PARTS
        assert "once" not in _first(_PARTS, wrong, _inputs(4, 6)).reason
