"""Passes for small arrays: constants are folded, views composed, equal values computed once; no bit changes."""

import numpy as np
import pytest

import hloexec
from hloexec.engine.exec.running import plan_of
from tests.plan.loops import loop
from tests.plan.ways import same_in_all_runs


def opcodes(text: str, loop_body: bool = False) -> list[str]:
    """The opcodes of the steps of a module's plan, or of the body of its loop."""
    plan = plan_of(hloexec.parse(text))
    if loop_body:
        plan = next(step.flow.body for step in plan.steps if step.flow is not None)
    return [step.instruction.opcode for step in plan.steps]


def test_values_of_constants_are_computed_when_the_plan_is_made() -> None:
    text = """HloModule m
ENTRY e {
  x = f32[4] parameter(0)
  two = f32[] constant(2)
  three = f32[] constant(3)
  twos = f32[4] broadcast(two), dimensions={}
  threes = f32[4] broadcast(three), dimensions={}
  sixes = f32[4] multiply(twos, threes)
  ROOT y = f32[4] add(x, sixes)
}
"""
    assert opcodes(text) == ["add"]
    np.testing.assert_array_equal(same_in_all_runs(text, np.arange(4, dtype=np.float32)), [6, 7, 8, 9])


def test_results_are_never_the_constants_of_a_plan() -> None:
    module = hloexec.parse("HloModule m\nENTRY e {\n  c = f32[] constant(2)\n  ROOT b = f32[4] broadcast(c)\n}\n")
    first = hloexec.run(module)
    first[:] = 7
    np.testing.assert_array_equal(hloexec.run(module), [2, 2, 2, 2])


def test_observers_see_values_that_are_folded_otherwise() -> None:
    text = (
        "HloModule m\nENTRY e {\n  c = f32[] constant(2)\n  b = f32[4] broadcast(c)\n  ROOT n = f32[4] negate(b)\n}\n"
    )
    module, seen = hloexec.parse(text), []

    class Watch:
        def on_instruction(self, event: hloexec.Event) -> None:
            seen.append(event.name)

    hloexec.run(module)
    hloexec.run(module, observers=[Watch()])
    assert seen == ["c", "b", "n"]


VIEWS = {
    "a slice without its dimension": ("s = f32[1,4] slice(x), slice={[1:2],[0:4]}\n  ROOT y = f32[4] reshape(s)", 1),
    "a slice of a slice": (
        "s = f32[2,3] slice(x), slice={[1:3],[0:3]}\n  ROOT y = f32[1,2] slice(s), slice={[1:2],[0:3:2]}",
        1,
    ),
    "a slice of a reshape": (
        "r = f32[3,1,4] reshape(x)\n  ROOT y = f32[2,1,2] slice(r), slice={[0:2],[0:1],[1:4:2]}",
        1,
    ),
    "one element": ("s = f32[1,1] slice(x), slice={[2:3],[3:4]}\n  ROOT y = f32[] reshape(s)", 1),
    "one element that gets dimensions": (
        "s = f32[1,1] slice(x), slice={[2:3],[3:4]}\n  r = f32[] reshape(s)\n  ROOT y = f32[1,1,1] reshape(r)",
        1,
    ),
    "every other element of every other": (
        "s = f32[2,4] slice(x), slice={[0:3:2],[0:4]}\n  ROOT y = f32[1,2] slice(s), slice={[1:2],[1:4:2]}",
        1,
    ),
    "a reshape that is no index": ("s = f32[2,4] slice(x), slice={[1:3],[0:4]}\n  ROOT y = f32[8] reshape(s)", 2),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_of_views_become_one(name: str) -> None:
    instructions, count = VIEWS[name]
    text = f"HloModule m\nENTRY e {{\n  x = f32[3,4] parameter(0)\n  {instructions}\n}}\n"
    assert len(opcodes(text)) == count
    same_in_all_runs(text, np.arange(12, dtype=np.float32).reshape(3, 4))


BROADCASTS = {
    "a scalar": ("f32[]", "{}", ["multiply"]),
    "a row": ("f32[3]", "{1}", ["multiply"]),
    "a column": ("f32[2]", "{0}", ["broadcast", "multiply"]),
    "all": ("f32[2,3]", "{0,1}", ["multiply"]),
}


@pytest.mark.parametrize("name", BROADCASTS)
@pytest.mark.parametrize("order", ["x, b", "b, x"])
def test_functions_of_elements_broadcast_their_operands(name: str, order: str) -> None:
    shape, dimensions, expected = BROADCASTS[name]
    text = f"""HloModule m
ENTRY e {{
  x = f32[2,3] parameter(0)
  v = {shape} parameter(1)
  b = f32[2,3] broadcast(v), dimensions={dimensions}
  ROOT y = f32[2,3] multiply({order})
}}
"""
    assert opcodes(text) == expected
    sizes = tuple(int(size) for size in shape[4:-1].split(",") if size)
    v = np.arange(1, 1 + np.prod(sizes, dtype=int), dtype=np.float32).reshape(sizes)
    same_in_all_runs(text, np.arange(6, dtype=np.float32).reshape(2, 3), v)


def test_broadcasts_that_repeat_nothing_are_views() -> None:
    """What JAX makes of x[:, None] + y: a broadcast to the same sizes, a reshape, and one that repeats."""
    text = """HloModule m
ENTRY e {
  x = f32[3,1] parameter(0)
  y = f32[3,4] parameter(1)
  same = f32[3,1] broadcast(x), dimensions={0,1}
  flat = f32[3] reshape(same)
  all = f32[3,4] broadcast(flat), dimensions={0}
  ROOT z = f32[3,4] add(all, y)
}
"""
    # The view is what the function of elements reads: a column.
    assert opcodes(text) == ["broadcast", "add"]
    x, y = np.float32([[1], [2], [3]]), np.arange(12, dtype=np.float32).reshape(3, 4)
    np.testing.assert_array_equal(same_in_all_runs(text, x, y), x + y)


def test_two_broadcasts_keep_the_shape_of_the_result() -> None:
    text = """HloModule m
ENTRY e {
  v = f32[2] parameter(0)
  w = f32[3] parameter(1)
  a = f32[2,3] broadcast(v), dimensions={0}
  b = f32[2,3] broadcast(w), dimensions={1}
  c = f32[2,3] broadcast(v), dimensions={0}
  sum = f32[2,3] add(a, b)
  square = f32[2,3] multiply(a, c)
  ROOT y = (f32[2,3], f32[2,3]) tuple(sum, square)
}
"""
    v, w = np.array([1, 2], np.float32), np.array([10, 20, 30], np.float32)
    total, square = same_in_all_runs(text, v, w)
    np.testing.assert_array_equal(total, v[:, None] + w)
    np.testing.assert_array_equal(square, [[1, 1, 1], [4, 4, 4]])


def test_arrays_of_one_element_along_a_dimension_are_put_side_by_side() -> None:
    body = """  column = f32[4,1] slice(x), slice={[0:4],[1:2]}
  flat = f32[4] reshape(column)
  half = f32[4] add(flat, flat)
  again = f32[4,1] reshape(half)
  other = f32[4,1] slice(x), slice={[0:4],[0:1]}
  new_x = f32[4,2] concatenate(again, other), dimensions={1}
  element = f32[1,1] slice(x), slice={[0:1],[0:1]}
  scalar = f32[] reshape(element)
  negated = f32[] negate(scalar)
  one = f32[1] reshape(scalar)
  two = f32[1] reshape(negated)
  new_y = f32[2] concatenate(one, two), dimensions={0}"""
    text = loop({"x": "f32[4,2]", "y": "f32[2]"}, body, "new_x, new_y", trips=30)
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    found = same_in_all_runs(text, x, np.zeros(2, np.float32))
    for _ in range(30):
        y, x = np.array([x[0, 0], -x[0, 0]]), np.stack([x[:, 1] * 2, x[:, 0]], 1)
    np.testing.assert_array_equal(found[0], x)
    np.testing.assert_array_equal(found[1], y)


def test_equal_values_are_computed_once_unless_a_loop_carries_them() -> None:
    body = """  a = f32[8] multiply(x, x)
  b = f32[8] multiply(x, x)
  c = f32[8] multiply(y, y)
  s = f32[8] add(a, b)
  t = f32[8] add(b, a)
  new_x = f32[8] subtract(s, t)
  new_y = f32[8] subtract(s, t)"""
    text = loop({"x": "f32[8]", "y": "f32[8]"}, body, "new_x, new_y")
    found = opcodes(text, loop_body=True)
    # What is not needed is gone; a and b are one, and so are s and t; the counter adds, too.
    assert (found.count("multiply"), found.count("add"), found.count("subtract")) == (1, 2, 2)
    same_in_all_runs(text, np.arange(8, dtype=np.float32), np.full(8, np.nan, np.float32))


def test_bitcasts_of_one_value_to_two_layouts_are_two_values() -> None:
    text = """HloModule m
ENTRY e {
  x = f32[8,8]{1,0} parameter(0)
  a = f32[8,8]{1,0} bitcast(x)
  b = f32[8,8]{0,1} bitcast(x)
  na = f32[8,8]{1,0} negate(a)
  nb = f32[8,8]{1,0} negate(b)
  ROOT r = (f32[8,8]{1,0}, f32[8,8]{1,0}) tuple(na, nb)
}
"""
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    as_it_is, turned = same_in_all_runs(text, x)
    np.testing.assert_array_equal(as_it_is, -x)
    np.testing.assert_array_equal(turned, -x.T)


def test_zeros_of_both_signs_are_two_values() -> None:
    """0 and −0 compare equal."""
    text = """HloModule m
f { x = f32[8] parameter(0)
  zero = f32[] constant(0)
  minus = f32[] constant(-0)
  zeros = f32[8] broadcast(zero), dimensions={}
  minuses = f32[8] broadcast(minus), dimensions={}
  a = f32[8] divide(x, zeros)
  b = f32[8] divide(x, minuses)
  ROOT r = (f32[8], f32[8]) tuple(a, b) }
ENTRY e { x = f32[8] parameter(0)
  ROOT r = (f32[8], f32[8]) call(x), to_apply=f }
"""
    over_zero, over_minus = same_in_all_runs(text, np.arange(1, 9, dtype=np.float32))
    assert np.isposinf(over_zero).all()
    assert np.isneginf(over_minus).all()


@pytest.mark.parametrize("dims", ["4,3", "50,90,2,2"])
@pytest.mark.parametrize("operand", ["get-tuple-element(p), index=2", "constant(2)"])
def test_sums_of_two_broadcasts_have_all_dimensions(dims: str, operand: str) -> None:
    shape = f"f32[{dims}]"
    text = f"""HloModule m
body {{ p = (s32[], {shape}, f32[]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  one = s32[] constant(1)
  n = s32[] add(i, one)
  x = f32[] get-tuple-element(p), index=2
  y = f32[] {operand}
  a = {shape} broadcast(y), dimensions={{}}
  b = {shape} broadcast(y), dimensions={{}}
  c = {shape} add(a, b)
  ROOT r = (s32[], {shape}, f32[]) tuple(n, c, x) }}
condition {{ p = (s32[], {shape}, f32[]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  end = s32[] constant(3)
  ROOT less = pred[] compare(i, end), direction=LT }}
ENTRY e {{ v = {shape} parameter(0)
  x = f32[] parameter(1)
  zero = s32[] constant(0)
  t = (s32[], {shape}, f32[]) tuple(zero, v, x)
  ROOT w = (s32[], {shape}, f32[]) while(t), condition=condition, body=body }}
"""
    sizes = tuple(map(int, dims.split(",")))
    _, found, _ = same_in_all_runs(text, np.zeros(sizes, np.float32), np.float32(2))
    np.testing.assert_array_equal(found, np.full(sizes, 4, np.float32))
