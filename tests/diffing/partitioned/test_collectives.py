"""A fault of one collective: what is named as certain is that collective."""

import pytest

import hloexec

SUM_OF_ALL = """HloModule summed, num_partitions=4

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT total = f32[] add(a, b)
}

ENTRY main_spmd {
  x = f32[4,6] parameter(0)
  w = f32[6,6] parameter(1)
  s = f32[4,6] sine(x)
  t = f32[4,6] all-reduce(s), channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=sum
  y = f32[4,6] dot(t, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT r = f32[4,6] tanh(y)
}
"""

RING = """HloModule ring, num_partitions=4

ENTRY main_spmd {
  x = f32[4,6] parameter(0)
  w = f32[6,6] parameter(1)
  s = f32[4,6] sine(x)
  p1 = f32[4,6] collective-permute(s), channel_id=1, source_target_pairs={{0,1},{1,2},{2,3},{3,0}}
  a1 = f32[4,6] add(s, p1)
  p2 = f32[4,6] collective-permute(p1), channel_id=2, source_target_pairs={{0,1},{1,2},{2,3},{3,0}}
  a2 = f32[4,6] add(a1, p2)
  p3 = f32[4,6] collective-permute(p2), channel_id=3, source_target_pairs={{0,1},{1,2},{2,3},{3,0}}
  a3 = f32[4,6] add(a2, p3)
  y = f32[4,6] dot(a3, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT r = f32[4,6] tanh(y)
}
"""

ONE_ON = "{{0,1},{1,2},{2,3},{3,0}}"


def _diff(before: str, after: str) -> hloexec.Diff:
    modules = hloexec.parse(before), hloexec.parse(after)
    inputs = [hloexec.random_inputs(modules[0], seed) for seed in range(4)]
    for values in inputs[1:]:
        values[1] = inputs[0][1]
    return hloexec.diff(*modules, inputs)


@pytest.mark.parametrize("name", ["p1", "p2", "p3"])
@pytest.mark.parametrize(
    "pairs",
    [
        "{{1,2},{2,3},{3,0}}",
        "{{0,1},{1,2},{2,3}}",
        "{{0,2},{1,1},{2,3},{3,0}}",
        "{{1,0},{2,1},{3,2},{0,3}}",
        "{{0,2},{1,3},{2,0},{3,1}}",
    ],
    ids="first-missing last-missing exchanged the-other-way two-on".split(),
)
def test_wrong_pairs_of_a_permutation_are_named_and_nothing_else_is_certain(name: str, pairs: str) -> None:
    lines = [line.replace(ONE_ON, pairs) if f" {name} = " in line else line for line in RING.splitlines()]
    found = _diff(SUM_OF_ALL, "\n".join(lines))
    assert found.verdict == "differ"
    first = found.findings[0]
    assert name in {first.after.instruction, *(step.instruction for step in first.region)}
    assert not first.is_certain or first.after.instruction == name


@pytest.mark.parametrize(("name", "place"), [("p1", 0), ("p2", 2), ("p3", 3)])
def test_a_missing_pair_is_said(name: str, place: int) -> None:
    pairs = "{0,1} {1,2} {2,3} {3,0}".split()
    del pairs[place]
    wrong = f"{{{','.join(pairs)}}}"
    found = _diff(SUM_OF_ALL, RING.replace(f"{_line(name)}{ONE_ON}", f"{_line(name)}{wrong}"))
    first = found.findings[0]
    assert (first.after.instruction, first.is_certain) == (name, True)
    assert (
        first.reason
        == f"its value is right if it is {_line(name).split(' = ')[1].split('] ')[1].replace('(', '(%')}{ONE_ON}"
    )


def _line(name: str) -> str:
    """The text of a permutation up to its pairs."""
    (line,) = (line for line in RING.splitlines() if f" {name} = " in line)
    return line.removesuffix(ONE_ON)
