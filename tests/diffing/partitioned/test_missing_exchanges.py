"""Exchanges that are missing are told by what all results come right with; where one is there, none is told."""

from __future__ import annotations

import numpy as np
import pytest

import hloexec
from tests.diffing.texts import diff_texts

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
    assert diff_texts(before, after, inputs).verdict == "differ"
    return diff_texts(before, after, inputs).findings[0]


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
    assert diff_texts(before, after, _inputs(6, 5)).agrees
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


_PARTED = "\n".join(f"  q{number} = f32[1,4,4] fusion(turned), kind=kLoop, calls=part{number}" for number in range(4))
_FOUR = "(f32[1,4,4], f32[1,4,4], f32[1,4,4], f32[1,4,4])"
_GROUP = "replica_groups={{0,1,2,3}}"
_FUSED = "\n".join(
    f"""part{number} {{
  x{number} = f32[16,4] parameter(0)
  y{number} = f32[4,4,4] bitcast(x{number})
  ROOT z{number} = f32[1,4,4] slice(y{number}), slice={{[{number}:{number + 1}], [0:4], [0:4]}}
}}"""
    for number in range(4)
)
_IN_TUPLES = f"""HloModule tuples, num_partitions=4
{_FUSED}
joined {{
  j0 = f32[1,4,4] parameter(0)
  j1 = f32[1,4,4] parameter(1)
  j2 = f32[1,4,4] parameter(2)
  j3 = f32[1,4,4] parameter(3)
  stacked = f32[4,4,4] concatenate(j0, j1, j2, j3), dimensions={{0}}
  across = f32[4,4,4] transpose(stacked), dimensions={{1,0,2}}
  ROOT flat = f32[4,16] bitcast(across)
}}
ENTRY main {{
  x = f32[16,4] parameter(0)
  w = f32[16,16] parameter(1)
  turned = f32[16,4] dot(w, x), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
{_PARTED}
  all = {_FOUR} all-to-all(q0, q1, q2, q3), channel_id=1, {_GROUP}
  r0 = f32[1,4,4] get-tuple-element(all), index=0
  r1 = f32[1,4,4] get-tuple-element(all), index=1
  r2 = f32[1,4,4] get-tuple-element(all), index=2
  r3 = f32[1,4,4] get-tuple-element(all), index=3
  rows = f32[4,16] fusion(r0, r1, r2, r3), kind=kLoop, calls=joined
  ROOT r = f32[4,16] dot(rows, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
}}
"""
_AS_ONE = (
    _IN_TUPLES[: _IN_TUPLES.index("  q0")]
    + f"""  parts = f32[4,4,4] reshape(turned)
  given = f32[4,4,4] all-to-all(parts), channel_id=1, dimensions={{0}}, {_GROUP}
  crossed = f32[4,4,4] transpose(given), dimensions={{1,0,2}}
  rows = f32[4,16] reshape(crossed)
"""
    + _IN_TUPLES[_IN_TUPLES.index("  ROOT r =") :]
)


def _squares() -> list[list[hloexec.Value]]:
    random = np.random.default_rng(0)
    shared = random.normal(size=(16, 16)).astype(np.float32)
    return [[random.normal(size=(16, 4)).astype(np.float32), shared] for _ in range(4)]


def test_an_exchange_of_tuples_that_is_missing_is_told_where_its_parts_meet() -> None:
    assert diff_texts(_AS_ONE, _IN_TUPLES, _squares()).agrees
    after = _IN_TUPLES.replace(f"all-to-all(q0, q1, q2, q3), channel_id=1, {_GROUP}", "tuple(q0, q1, q2, q3)")
    first = _first(_AS_ONE, after, _squares())
    assert first.after.instruction in "z0 z1 z2 z3 stacked across flat".split()
    assert "all-to-all" in first.reason
    assert not first.is_certain


def test_an_exchange_of_tuples_that_is_there_twice_is_told() -> None:
    twice = [f"t{number} = f32[1,4,4] get-tuple-element(first), index={number}" for number in range(4)]
    after = _IN_TUPLES.replace(
        f"all = {_FOUR} all-to-all(q0, q1, q2, q3), channel_id=1",
        "\n  ".join(
            [
                f"first = {_FOUR} all-to-all(q0, q1, q2, q3), channel_id=2, {_GROUP}",
                *twice,
                f"all = {_FOUR} all-to-all(t0, t1, t2, t3), channel_id=1",
            ]
        ),
    )
    first = _first(_AS_ONE, after, _squares())
    assert first.after.instruction in ("first", "all")
    assert first.reason == "the results are right if it is left out"
    assert {each.instruction for each in first.region} == {"first", "all"}


def test_a_step_on_the_wrong_side_of_an_exchange_is_told() -> None:
    first, second = "{{0,1},{1,2}}", "{{0,2},{1,3}}"
    before = f"""HloModule steps, num_partitions=4
ENTRY main {{
  x = f32[4,6] parameter(0)
  ids = u32[4] constant({{0, 1, 1, 0}})
  id = u32[] partition-id()
  own = u32[1] dynamic-slice(ids, id), dynamic_slice_sizes={{1}}
  one = u32[1] constant({{1}})
  is = pred[1] compare(own, one), direction=EQ
  flat = pred[] reshape(is)
  mask = pred[4,6] broadcast(flat), dimensions={{}}
  sine = f32[4,6] sine(x)
  sent = f32[4,6] collective-permute(sine), channel_id=1, source_target_pairs={first}
  chosen = f32[4,6] select(mask, sent, sine)
  part = f32[2,6] slice(chosen), slice={{[1:3], [0:6]}}
  far = f32[2,6] collective-permute(part), channel_id=2, source_target_pairs={second}
  near = f32[2,6] collective-permute(part), channel_id=3, source_target_pairs={first}
  both = f32[4,6] concatenate(far, near), dimensions={{0}}
  ROOT r = f32[4,6] add(both, x)
}}
"""
    after = before.replace("sent = f32[4,6] collective-permute(sine)", "chosen = f32[4,6] collective-permute(early)")
    after = after.replace("  chosen = f32[4,6] select(mask, sent, sine)\n", "")
    after = after.replace("  chosen =", "  early = f32[4,6] select(mask, sine, sine)\n  chosen =")
    found = _first(before, after, _inputs(4, 6))
    assert found.after.instruction == "chosen"
    assert found.reason == "the results are right if it is before early"
    assert not found.is_certain


def _pipelined(steps: int, missing: int | None = None) -> tuple[str, str]:
    """A pipeline of four stages, each with weights of its own, on whole arrays and on four devices."""
    whole, parts = [], []
    for step in range(steps):
        whole.append(
            f"""  kept{step} = f32[3,2,6] slice(v{step}), slice={{[0:3], [0:2], [0:6]}}
  fed{step} = f32[4,2,6] concatenate(x, kept{step}), dimensions={{0}}
  d{step} = f32[4,2,6] dot(fed{step}, w), lhs_batch_dims={{0}}, lhs_contracting_dims={{2}}, rhs_batch_dims={{0}}, rhs_contracting_dims={{1}}
  v{step + 1} = f32[4,2,6] tanh(d{step})
"""
        )
        gather = f"all-gather(v{step}), channel_id={step + 1}, {_GROUP}, dimensions={{0}}, use_global_device_ids=true"
        own = f"concatenate({', '.join([f'v{step}'] * 4)}), dimensions={{0}}"
        parts.append(
            f"""  all{step} = f32[4,2,6] {own if step == missing else gather}
  kept{step} = f32[3,2,6] slice(all{step}), slice={{[0:3], [0:2], [0:6]}}
  fed{step} = f32[4,2,6] concatenate(x, kept{step}), dimensions={{0}}
  own{step} = f32[1,2,6] dynamic-slice(fed{step}, id, zero, zero), dynamic_slice_sizes={{1,2,6}}
  d{step} = f32[1,2,6] dot(own{step}, w), lhs_batch_dims={{0}}, lhs_contracting_dims={{2}}, rhs_batch_dims={{0}}, rhs_contracting_dims={{1}}
  v{step + 1} = f32[1,2,6] tanh(d{step})
"""
        )
    last = range(steps - 3, steps + 1)
    found = ", ".join(f"f{step}" for step in last)
    ends = [f"  f{step} = f32[1,2,6] slice(v{step}), slice={{[3:4], [0:2], [0:6]}}\n" for step in last]
    sums = [
        f"""  m{step} = f32[1,2,6] select(mask, v{step}, nothing)
  f{step} = f32[1,2,6] all-reduce(m{step}), channel_id={100 + step}, {_GROUP}, use_global_device_ids=true, to_apply=sum
"""
        for step in last
    ]
    before = f"""HloModule pipeline, num_partitions=4
ENTRY main {{
  x = f32[1,2,6] parameter(0), sharding={{replicated}}
  w = f32[4,6,6] parameter(1), sharding={{devices=[4,1,1]<=[4]}}
  zero = f32[] constant(0)
  v0 = f32[4,2,6] broadcast(zero), dimensions={{}}
{"".join(whole)}{"".join(ends)}  ROOT r = f32[4,2,6] concatenate({found}), dimensions={{0}}, sharding={{replicated}}
}}
"""
    after = f"""HloModule pipeline_spmd, num_partitions=4
sum {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT total = f32[] add(a, b)
}}
ENTRY main_spmd {{
  x = f32[1,2,6] parameter(0), sharding={{replicated}}
  w = f32[1,6,6] parameter(1), sharding={{devices=[4,1,1]<=[4]}}
  id = u32[] partition-id()
  zero = u32[] constant(0)
  three = u32[] constant(3)
  is = pred[] compare(id, three), direction=EQ
  mask = pred[1,2,6] broadcast(is), dimensions={{}}
  none = f32[] constant(0)
  nothing = f32[1,2,6] broadcast(none), dimensions={{}}
  v0 = f32[1,2,6] broadcast(none), dimensions={{}}
{"".join(parts)}{"".join(sums)}  ROOT r = f32[4,2,6] concatenate({found}), dimensions={{0}}
}}
"""
    return before, after


def test_an_exchange_that_is_missing_many_steps_before_the_results_is_told() -> None:
    random = np.random.default_rng(0)
    inputs = [[random.normal(size=shape).astype(np.float32) for shape in ((1, 2, 6), (4, 6, 6))]]
    assert hloexec.diff(*map(hloexec.parse, _pipelined(6)), inputs).verdict != "differ"
    first = _first(*_pipelined(6, missing=1), inputs)
    assert first.after.instruction in ("v1", "all1", "kept1")
    assert not first.is_certain
