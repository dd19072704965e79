"""What an all-reduce adds, in which order and precision, and what it does with numbers that are not ordinary.

A group's operands are folded in the group's order, without an init value. Types narrower than f32 add, multiply and
compare in f32 and round once, as reduce does; other reducers work step by step in the declared type.
"""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hloexec

pytestmark = pytest.mark.timeout(60)

TYPES: dict[str, Any] = {
    "f32": np.float32,
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "s8": np.int8,
    "s32": np.int32,
}


def reduced(
    element: str, reducer: str, values: list[float], groups: str = "{}", opcode: str = "all-reduce"
) -> list[Any]:
    """Each device's number, reduced; for reduce-scatter device d holds its number once for every device."""
    count = len(values)
    shape = f"{element}[1]" if opcode == "reduce-scatter" else f"{element}[]"
    operand = f"{element}[{count}]" if opcode == "reduce-scatter" else shape
    scatter = "dimensions={0}, " if opcode == "reduce-scatter" else ""
    text = f"""HloModule m, replica_count={count}
reducer {{
  x = {element}[] parameter(0)
  y = {element}[] parameter(1)
  {reducer}
}}
ENTRY main {{
  x = {operand} parameter(0)
  ROOT r = {shape} {opcode}(x), replica_groups={groups}, {scatter}to_apply=reducer
}}
"""
    dtype = TYPES[element]
    inputs = [np.full(count if opcode == "reduce-scatter" else (), value, dtype) for value in values]
    outputs = hloexec.run_devices(hloexec.parse(text), [[value] for value in inputs])
    assert all(output.dtype == dtype for output in outputs)
    return [output.item() for output in outputs]


def binary(opcode: str, element: str) -> str:
    return f"ROOT r = {element}[] {opcode}(x, y)"


@pytest.mark.parametrize("opcode", ["all-reduce", "reduce-scatter"])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2), (2, 0, 1, 3), (1, 3, 2, 0)])
def test_floats_add_in_the_order_of_their_group(order: tuple[int, ...], opcode: str) -> None:
    values = [2.0**25, 1.0, -(2.0**25), 3.0]
    total = np.float32(values[order[0]])
    for device in order[1:]:
        total = np.float32(total + np.float32(values[device]))
    groups = "{{" + ",".join(map(str, order)) + "}}"
    assert reduced("f32", binary("add", "f32"), values, groups, opcode) == [float(total)] * 4


def test_a_reducer_that_is_not_associative_folds_from_the_left() -> None:
    values = [100, 7, 3, 1]
    assert reduced("s32", binary("subtract", "s32"), values) == [100 - 7 - 3 - 1] * 4
    assert reduced("s32", binary("subtract", "s32"), values, "{{2,0},{1,3}}") == [3 - 100, 7 - 1, 3 - 100, 7 - 1]


@pytest.mark.parametrize("opcode", ["all-reduce", "reduce-scatter"])
def test_narrow_floats_accumulate_in_f32_and_round_once(opcode: str) -> None:
    """256 + 15 ones: in bf16, step by step, 256 stays; in f32 it is 271, a tie between 270 and 272."""
    assert reduced("bf16", binary("add", "bf16"), [256] + [1] * 15, opcode=opcode) == [272] * 16
    # f16 has 11 bits: 2048 + 15 = 2063, which lies between 2062 and 2064 (even).
    assert reduced("f16", binary("add", "f16"), [2048] + [1] * 15, opcode=opcode) == [2064] * 16


def test_a_reducer_with_an_annotation_accumulates_like_one_without() -> None:
    """JAX puts Sharding calls into reducers that stand in a partly manual region."""
    annotated = """sum = bf16[] add(x, y)
  ROOT r = bf16[] custom-call(sum), custom_call_target="Sharding", sharding={replicated}"""
    assert reduced("bf16", annotated, [256] + [1] * 15) == [272] * 16


def test_other_reducers_of_narrow_floats_round_at_every_step() -> None:
    """x + |y| in bf16: 256 + 1 rounds back to 256 each time."""
    steps = "z = bf16[] abs(y)\n  ROOT r = bf16[] add(x, z)"
    assert reduced("bf16", steps, [256] + [1] * 15) == [256] * 16


def test_integers_wrap() -> None:
    assert reduced("s8", binary("add", "s8"), [100, 100, 100]) == [300 - 256] * 3
    assert reduced("s8", binary("multiply", "s8"), [100, 3, 5]) == [(1500 + 128) % 256 - 128] * 3


@pytest.mark.parametrize("opcode", ["minimum", "maximum"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_not_a_number_wins_in_minimum_and_maximum(opcode: str, place: int) -> None:
    values = [1.0, 2.0, 3.0]
    values[place] = np.nan
    assert all(np.isnan(value) for value in reduced("f32", binary(opcode, "f32"), values))


def test_the_sign_of_zero_counts_in_minimum_and_maximum() -> None:
    for values in ([0.0, -0.0], [-0.0, 0.0]):
        assert [str(v) for v in reduced("f32", binary("minimum", "f32"), values)] == ["-0.0", "-0.0"]
        assert [str(v) for v in reduced("f32", binary("maximum", "f32"), values)] == ["0.0", "0.0"]


def test_the_sum_of_negative_zeros_is_negative() -> None:
    """There is no init value that could make it positive; nor does a group of one change its value."""
    assert [str(v) for v in reduced("f32", binary("add", "f32"), [-0.0, -0.0])] == ["-0.0", "-0.0"]
    assert [str(v) for v in reduced("bf16", binary("add", "bf16"), [-0.0, 1.0], "{{0},{1}}")] == ["-0.0", "1.0"]


def test_a_reducer_of_pairs_reduces_operands_together() -> None:
    """The largest value and the device that has it; of equal ones the first in the group."""
    text = """HloModule m, replica_count=4
larger {
  v = f32[] parameter(0)
  i = s32[] parameter(1)
  w = f32[] parameter(2)
  j = s32[] parameter(3)
  keep = pred[] compare(v, w), direction=GE
  value = f32[] select(keep, v, w)
  place = s32[] select(keep, i, j)
  ROOT both = (f32[], s32[]) tuple(value, place)
}
ENTRY main {
  v = f32[3] parameter(0)
  i = s32[3] parameter(1)
  ROOT r = (f32[3], s32[3]) all-reduce(v, i), replica_groups={{3,1},{0,2}}, to_apply=larger
}
"""
    values = np.array([[1, 5, 2], [7, 2, 2], [3, 4, 2], [7, 3, 1]], np.float32)
    inputs = [[row, np.full(3, device, np.int32)] for device, row in enumerate(values)]
    outputs = hloexec.run_devices(hloexec.parse(text), inputs)
    for device, (value, place) in enumerate(outputs):
        wanted = ([7, 3, 2], [3, 3, 1]) if device in (1, 3) else ([3, 5, 2], [2, 0, 0])
        assert (value.tolist(), place.tolist()) == wanted, device


def test_one_computation_called_twice_meets_twice() -> None:
    text = """HloModule m, replica_count=2
add {
  x = s32[] parameter(0)
  y = s32[] parameter(1)
  ROOT r = s32[] add(x, y)
}
both {
  x = s32[] parameter(0)
  ROOT r = s32[] all-reduce(x), replica_groups={}, to_apply=add
}
ENTRY main {
  x = s32[] parameter(0)
  once = s32[] call(x), to_apply=both
  negated = s32[] negate(x)
  twice = s32[] call(negated), to_apply=both
  ROOT out = (s32[], s32[]) tuple(once, twice)
}
"""
    outputs = hloexec.run_devices(hloexec.parse(text), [[np.int32(2)], [np.int32(5)]])
    assert [tuple(map(int, output)) for output in outputs] == [(7, -7), (7, -7)]


@pytest.mark.parametrize("numerics", "exact ftz xla-cpu tf32 bf16".split())
def test_sums_of_small_integers_do_not_depend_on_the_policy(numerics: str) -> None:
    text = """HloModule m, replica_count=3
add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT r = f32[] add(x, y)
}
ENTRY main {
  x = f32[2] parameter(0)
  ROOT r = f32[2] all-reduce(x), replica_groups={}, to_apply=add
}
"""
    inputs = [[np.array([device, 2.0], np.float32)] for device in range(3)]
    outputs = hloexec.run_devices(hloexec.parse(text), inputs, numerics=numerics)
    assert [output.tolist() for output in outputs] == [[3, 6]] * 3


def test_exact_sums_across_devices_are_rounded_once() -> None:
    """Under `exact` nothing is lost on the way: 2^25 + 1 − 2^25 + 3."""
    text = """HloModule m, replica_count=4
add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT r = f32[] add(x, y)
}
ENTRY main {
  x = f32[] parameter(0)
  ROOT r = f32[] all-reduce(x), replica_groups={}, to_apply=add
}
"""
    values = [2.0**25, 1.0, -(2.0**25), 3.0]
    outputs = hloexec.run_devices(hloexec.parse(text), [[np.float32(v)] for v in values], numerics="exact")
    assert [output.item() for output in outputs] == [4.0] * 4


@pytest.mark.parametrize("element", ["f32", "bf16", "s32"])
@pytest.mark.parametrize("opcode", ["all-reduce", "reduce-scatter"])
def test_large_arrays_add_like_small_ones(element: str, opcode: str) -> None:
    """They are added some elements at a time: one after the other in the wide type, and rounded once."""
    count, rows, columns = 4, 96, 1000
    text = f"""HloModule m, replica_count={count}
reducer {{
  x = {element}[] parameter(0)
  y = {element}[] parameter(1)
  {binary("add", element)}
}}
ENTRY main {{
  x = {element}[{rows},{columns}] parameter(0)
  ROOT r = {element}[{rows if opcode == "all-reduce" else rows // count},{columns}] {opcode}(x), replica_groups={{}},
    {"" if opcode == "all-reduce" else "dimensions={0}, "}to_apply=reducer
}}
"""
    rng = np.random.default_rng(3)
    given = [(rng.standard_normal((rows, columns)) * 1000).astype(TYPES[element]) for _ in range(count)]
    wide = np.int32 if element == "s32" else np.float32
    total = given[0].astype(wide)
    for array in given[1:]:
        total = total + array.astype(wide)
    expected = total.astype(TYPES[element])
    outputs = hloexec.run_devices(hloexec.parse(text), [[array] for array in given])
    parts = [expected] * count if opcode == "all-reduce" else np.split(expected, count)
    for output, part in zip(outputs, parts, strict=True):
        np.testing.assert_array_equal(output, part)
