"""Parts of a sum that nothing adds up are told as such, whatever takes them next; and nothing else is."""

import numpy as np
import pytest

import hloexec
from tests.diffing.texts import diff_texts

_HEAD = """HloModule {name}, num_partitions=4
sum {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT total = f32[] add(a, b)
}}
"""

_WHOLE = (
    _HEAD.format(name="whole")
    + """ENTRY main {
  x = f32[8,16] parameter(0), sharding={devices=[1,2,2]<=[2,2]T(1,0) last_tile_dim_replicate}
  w = f32[16,12] parameter(1), sharding={devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}
  v = f32[8,12] parameter(2), sharding={replicated}
  g = f32[8,12] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT r = f32[8,12] subtract(v, g), sharding={replicated}
}
"""
)

_DOT = "f32[8,12] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
_SUM = "all-reduce(d), channel_id=1, replica_groups={{0,1},{2,3}}, use_global_device_ids=true, to_apply=sum"
_PARAMETERS = """
  x = f32[8,8] parameter(0)
  w = f32[8,12] parameter(1)
  v = f32[8,12] parameter(2)"""
_ENTRY = f"""ENTRY main_spmd {{{_PARAMETERS}
  d = {_DOT}
  g = f32[8,12] {_SUM}
  ROOT r = f32[8,12] subtract(v, g)
}}
"""
_PARTS = _HEAD.format(name="parts_spmd") + _ENTRY

_LOOP = (
    _HEAD.format(name="loop_spmd")
    + f"""body {{
  state = (s32[], f32[8,12]) parameter(0)
  n = s32[] get-tuple-element(state), index=0
  one = s32[] constant(1)
  next = s32[] add(n, one)
  c = f32[8,12] get-tuple-element(state), index=1
  t = f32[8,12] tanh(c)
  m = f32[8,12] subtract(t, c)
  ROOT both = (s32[], f32[8,12]) tuple(next, m)
}}
condition {{
  state.1 = (s32[], f32[8,12]) parameter(0)
  n.1 = s32[] get-tuple-element(state.1), index=0
  last = s32[] constant(3)
  ROOT less = pred[] compare(n.1, last), direction=LT
}}
ENTRY main_spmd {{{_PARAMETERS}
  d = {_DOT}
  g = f32[8,12] {_SUM}
  zero = s32[] constant(0)
  start = (s32[], f32[8,12]) tuple(zero, g)
  end = (s32[], f32[8,12]) while(start), condition=condition, body=body
  e = f32[8,12] get-tuple-element(end), index=1
  ROOT r = f32[8,12] subtract(v, e)
}}
"""
)


def _missing(devices: str) -> str:
    return f"devices {devices} have parts of a sum that nothing adds up: an all-reduce over them is missing"


def _inputs() -> list[list[hloexec.Value]]:
    """Of each device its own, but for the last one."""
    random = np.random.default_rng(0)
    shared = random.normal(size=(8, 12)).astype(np.float32)
    sizes = ((8, 8), (8, 12))
    return [[*(random.normal(size=size).astype(np.float32) for size in sizes), shared] for _ in range(4)]


def _dropped(module: str) -> hloexec.Module:
    assert _SUM in module
    return hloexec.parse(module.replace(_SUM, "copy(d)"))


@pytest.mark.parametrize("as_it_is", [False, True], ids=["whole", "partitioned"])
def test_a_missing_sum_is_told_where_what_takes_it_passes_on_no_sum(as_it_is: bool) -> None:
    before = hloexec.parse(_PARTS if as_it_is else _WHOLE)
    found = hloexec.diff(before, _dropped(_PARTS), _inputs() if as_it_is else None)
    first = found.findings[0]
    assert first.after.instruction in ("d", "g")
    assert first.is_certain
    assert first.reason == _missing("0, 1")


def test_a_missing_sum_is_told_before_a_loop_that_takes_the_parts() -> None:
    found = hloexec.diff(hloexec.parse(_LOOP), _dropped(_LOOP), _inputs())
    first = found.findings[0]
    assert first.after.instruction in ("d", "g")
    assert first.reason == _missing("0, 1")


def test_a_missing_sum_in_a_loop_is_told() -> None:
    how = _SUM.replace("all-reduce(d), channel_id=1", "all-reduce(d.1), channel_id=2")
    inside = _LOOP.replace("t = f32[8,12] tanh(c)", f"d.1 = f32[8,12] tanh(c)\n  t = f32[8,12] {how}")
    inside = inside.replace("tuple(zero, g)", "tuple(zero, d)")
    after = inside.replace(how, "copy(d.1)")
    assert after != inside
    found = diff_texts(inside, after, _inputs())
    first = found.findings[0]
    assert first.after.instruction in ("d.1", "t")
    assert first.reason == _missing("0, 1")


def test_a_multiple_of_what_all_devices_have_is_no_sum() -> None:
    """Two times a value is the sum of two equal ones, but nothing was to be added up."""
    two = "two = f32[] constant(2)\n  twos = f32[8,12] broadcast(two), dimensions={}\n  "
    before = _PARTS.replace("ROOT r", f"{two}y = f32[8,12] sine(v)\n  m = f32[8,12] multiply(y, twos)\n  ROOT r")
    before = before.replace("subtract(v, g)", "subtract(m, g)")
    after = before.replace("multiply(y, twos)", "copy(y)")
    assert after != before
    found = diff_texts(before, after, _inputs())
    assert found.verdict == "differ"
    assert not any("parts of a sum" in finding.reason for finding in found.findings)


def test_zeros_beside_the_right_value_are_no_parts_of_a_sum() -> None:
    """A device that is sent nothing has zeros; another one that was sent the same as it should be has it all."""
    right = f"""{_HEAD.format(name="sent_spmd")}ENTRY main_spmd {{
  x = f32[4,6] parameter(0)
  s = f32[4,6] sine(x)
  p = f32[4,6] collective-permute(s), channel_id=1, source_target_pairs={{{{0,1}},{{2,3}}}}
  ROOT r = f32[4,6] subtract(s, p)
}}
"""
    wrong = right.replace("{{0,1},{2,3}}", "{{2,3}}")
    assert wrong != right
    random = np.random.default_rng(0)
    first, second = ([random.normal(size=(4, 6)).astype(np.float32)] for _ in range(2))
    found = diff_texts(right, wrong, [first, second, first, second])
    assert found.findings[0].after.instruction == "p"
    assert "parts of a sum" not in found.findings[0].reason


def test_another_fault_of_a_value_on_several_devices_is_no_missing_sum() -> None:
    after = _PARTS.replace("subtract(v, g)", "subtract(g, v)")
    found = diff_texts(_PARTS, after, _inputs())
    assert found.findings[0].after.instruction == "r"
    assert "parts of a sum" not in found.findings[0].reason


def test_a_collective_in_several_steps_is_named_if_it_exchanges_with_the_wrong_devices() -> None:
    """XLA makes one all-to-all of slices, and puts together what each device has sent."""
    head = "HloModule {name}, num_partitions=4\nENTRY main {{\n  x = f32[4,8] parameter(0)\n  s = f32[4,8] sine(x)\n"
    groups = "channel_id=1, replica_groups={{0,1},{2,3}}"
    end = "  t = f32[4,8] exponential(e)\n  ROOT r = f32[4,8] add(t, s)\n}\n"
    before = head.format(name="one") + f"  e = f32[4,8] all-to-all(s), {groups}, dimensions={{0}}\n" + end
    after = (
        head.format(name="several")
        + f"""  a = f32[2,8] slice(s), slice={{[0:2], [0:8]}}
  b = f32[2,8] slice(s), slice={{[2:4], [0:8]}}
  both = (f32[2,8], f32[2,8]) all-to-all(a, b), {groups}
  first = f32[2,8] get-tuple-element(both), index=0
  second = f32[2,8] get-tuple-element(both), index=1
  e = f32[4,8] concatenate(first, second), dimensions={{0}}
"""
        + end
    )
    random = np.random.default_rng(0)
    inputs = [[random.normal(size=(4, 8)).astype(np.float32)] for _ in range(4)]
    assert diff_texts(before, after, inputs).agrees
    wrong = after.replace(groups, "channel_id=1, replica_groups={{0,2},{1,3}}")
    found = diff_texts(before, wrong, inputs)
    assert found.findings[0].after.instruction == "both"
    assert "replica_groups={{0,1},{2,3}}" in found.findings[0].reason or found.findings[0].is_certain
