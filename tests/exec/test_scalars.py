"""Scalars in generated Python: operators on NumPy's scalars give the bits of NumPy's functions on arrays."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from hloexec.engine.exec.code import scalars
from hloexec.engine.exec.code.compiling import code_of, loop_code_of, sources
from hloexec.engine.exec.running import plan_of
from tests.plan.loops import loop
from tests.plan.ways import RUNS, bits, same_in_all_runs

ARITHMETIC = """HloModule m
ENTRY e {{
  x = {type}[] parameter(0)
  y = {type}[] parameter(1)
  a = {type}[] add(x, y)
  b = {type}[] subtract(x, y)
  c = {type}[] multiply(x, y)
  d = {type}[] negate(x)
  f = pred[] compare(x, y), direction=LT
  g = pred[] compare(x, y), direction=EQ
  h = pred[] or(f, g)
  i = {type}[] select(h, a, c)
  j = {type}[] {last}(x, y)
  k = {type}[] multiply(i, j)
  ROOT t = ({type}[], {type}[], {type}[], {type}[], pred[], {type}[], {type}[], {type}[]) tuple(a, b, c, d, h, i, j, k)
}}
"""
WORDS = [0, 1 << 31, 0x7FC00001, 0xFFC00002, 0x7F800000, 0xFF800000, 1, 0x807FFFFF, 0x7F7FFFFF, 0x3FC00000]


@pytest.mark.parametrize("name", ["f32", "f64"])
def test_operators_on_floats_have_the_bits_of_functions(name: str) -> None:
    module = hloexec.parse(ARITHMETIC.format(type=name, last="divide"))
    values = np.array(WORDS, np.uint32).view(np.float32).astype(f"f{int(name[1:]) // 8}")
    for _ in range(RUNS):
        hloexec.run(module, values[0], values[1])
    assert "asarray" in "".join(sources(code_of(plan_of(module))))
    for x, y in itertools.product(values, repeat=2):
        assert bits(hloexec.run(module, x, y)) == bits(hloexec.run(module, x, y, planner=False))


@pytest.mark.parametrize("name", "s8 u8 s16 s32 u32 s64 u64".split())
def test_integers_wrap(name: str) -> None:
    width = int(name[1:])
    module = hloexec.parse(ARITHMETIC.format(type=name, last="xor"))
    dtype = np.dtype(f"{'i' if name[0] == 's' else 'u'}{width // 8}")
    limits = np.iinfo(dtype)
    values = np.array([limits.min, limits.max, 0, 1, 3, limits.max // 3], dtype)
    for x, y in itertools.product(values, repeat=2):
        found = [hloexec.run(module, x, y) for _ in range(2)][-1]
        exact = [int(x) + int(y), int(x) - int(y), int(x) * int(y), -int(x)]
        for result, value in zip(found[:4], exact, strict=True):
            assert int(result) == (value - int(limits.min)) % (1 << width) + int(limits.min)


SINGLE = """HloModule m
ENTRY e {{
  x = {type}[] parameter(0)
  y = {type}[] parameter(1)
  z = {type}[] parameter(2)
{lines}
  ROOT t = ({shapes}) tuple({names})
}}
"""
PAIRS = "maximum minimum divide remainder power and shift-left".split()
PAIRS += ["shift-right-logical", "shift-right-arithmetic", "compare"]


def single(name: str) -> str:
    """A module of what gives single numbers of three of a type."""
    is_float = name in ("f32", "f64")
    opcodes = PAIRS[:5] if is_float else PAIRS[:3] + PAIRS[5:6] if name == "pred" else PAIRS
    found = [(name, f"{opcode}(x, y)") for opcode in opcodes if (name, opcode) != ("pred", "divide")]
    found = [(shape, f"{text}, direction=GE" if "compare" in text else text) for shape, text in found]
    found = [("pred" if "compare" in text else shape, text) for shape, text in found]
    found += [(name, "clamp(x, y, z)"), (name, "select(p, x, y)")]
    found += [(name, f"{opcode}(x)") for opcode in (("sqrt", "exponential", "floor") if is_float else ("not",))]
    found += [(name, f"{opcode}(x)") for opcode in ("sign", "abs") if name[0] in "sf"]
    found += [(other, "convert(x)") for other in "pred s8 u8 s32 u32 s64 u64 f32 f64".split()]
    same_width = {"f32": ("s32", "u32"), "s32": ("u32", "f32"), "u64": ("s64", "f64"), "f64": ("s64",)}
    found += [(other, "bitcast-convert(x)") for other in same_width.get(name, ())]
    lines = ["  p = pred[] compare(x, y), direction=NE"]
    lines += [f"  r{number} = {shape}[] {text}" for number, (shape, text) in enumerate(found)]
    return SINGLE.format(
        type=name,
        lines="\n".join(lines),
        shapes=", ".join(f"{shape}[]" for shape, _ in found),
        names=", ".join(f"r{number}" for number in range(len(found))),
    )


@pytest.mark.slow_cases("u8", "s32", "u32", "u64")
@pytest.mark.parametrize("name", "pred s8 u8 s32 u32 s64 u64 f32 f64".split())
def test_scalars_have_the_bits_of_arrays(name: str) -> None:
    module = hloexec.parse(single(name))
    if name == "pred":
        values = np.array([False, True])
    elif name[0] == "f":
        values = np.array(WORDS, np.uint32).view(np.float32).astype(f"f{int(name[1:]) // 8}")
    else:
        dtype = np.dtype(f"{'i' if name[0] == 's' else 'u'}{int(name[1:]) // 8}")
        limits = np.iinfo(dtype)
        values = np.unique(np.array([limits.min, limits.min // 3, limits.max, 0, 1, 2, 7, limits.max // 3], dtype))
        values = np.unique(np.append(values, np.array([-1, -2]).astype(dtype)))
    for _ in range(RUNS):
        hloexec.run(module, *values[[0, 1, 1]])
    code = "".join(sources(code_of(plan_of(module))))
    assert "= maximum(x_2, y_2)" in code and re.search(r"= convert\w*\(x_2\)", code), code
    triples = [(x, y, z) for x, y in itertools.product(values, repeat=2) for z in (values[0], y, values[-1])]
    arrays = hloexec.parse(single(name).replace("[]", f"[{len(triples)}]"))
    expected = hloexec.run(arrays, *map(np.array, zip(*triples, strict=True)), planner=False)
    for number, triple in enumerate(triples):
        assert bits(hloexec.run(module, *triple)) == bits([array[number, ...] for array in expected]), triple


def test_an_operator_that_gives_other_bits_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(scalars._OPERATORS, np.subtract, ("{1} - {0}",))
    scalars._expression.cache_clear()
    try:
        assert scalars._expression(np.subtract, np.dtype(np.float32)) is None
        same_in_all_runs(ARITHMETIC.format(type="f32", last="divide"), np.float32(3), np.float32(2))
    finally:
        scalars._expression.cache_clear()


def test_loops_carry_scalars() -> None:
    body = """  half = f32[] constant(0.5)
  part = f32[] multiply(mean, half)
  all = f32[4] broadcast(part), dimensions={}
  new_x = f32[4] add(x, all)
  zero = f32[] constant(0)
  total = f32[] reduce(new_x, zero), dimensions={0}, to_apply=sum
  less = pred[] compare(total, mean), direction=LT
  new_mean = f32[] select(less, total, part)
  one = s32[] constant(-3)
  new_n = s32[] multiply(n, one)"""
    text = loop({"x": "f32[4]", "mean": "f32[]", "n": "s32[]"}, body, "new_x, new_mean, new_n", trips=37)
    found = same_in_all_runs(text, np.ones(4, np.float32), np.float32(3), np.int32(7))
    assert int(found[2]) == (7 * (-3) ** 37 + (1 << 31)) % (1 << 32) - (1 << 31)


def test_scalars_change_places() -> None:
    text = loop({"a": "f32[]", "b": "f32[]"}, "  c = f32[] add(a, b)", "b, c", trips=35)
    a, b = 0, 1
    for _ in range(35):
        a, b = b, a + b
    found = same_in_all_runs(text, np.float32(0), np.float32(1))
    assert (float(found[0]), float(found[1])) == (a, b)


@pytest.mark.parametrize("first", [-5, 0, 3])
@pytest.mark.parametrize("extent", [1, 2])
def test_windows_that_leave_an_array_move_back(first: int, extent: int) -> None:
    body = f"""  zero = s32[] constant(0)
  row = f32[{extent},3] dynamic-slice(x, i, zero), dynamic_slice_sizes={{{extent},3}}
  twice = f32[{extent},3] add(row, row)
  new_y = f32[6,3] dynamic-update-slice(y, twice, i, zero)
  column = f32[6,1] dynamic-slice(x, zero, i), dynamic_slice_sizes={{6,1}}
  new_x = f32[6,3] dynamic-update-slice(x, column, zero, zero)"""
    text = loop({"x": "f32[6,3]", "y": "f32[6,3]"}, body, "new_x, new_y", first=first, trips=25)
    x, y = np.arange(18, dtype=np.float32).reshape(6, 3), np.zeros((6, 3), np.float32)
    found = same_in_all_runs(text, x, y)
    x, y = x.copy(), y.copy()
    for i in range(first, 25):
        row, column = min(max(i, 0), 6 - extent), min(max(i, 0), 2)
        y[row : row + extent] = 2 * x[row : row + extent]
        x[:, :1] = x[:, column : column + 1].copy()
    assert_array_equal(found[0], x)
    assert_array_equal(found[1], y)


def test_rows_and_elements_are_read_and_written_by_their_index() -> None:
    """As a scan has them: rows and elements move as bits, signalling NaNs and ends of the array included."""
    body = """  zero = s32[] constant(0)
  row = f32[1,3] dynamic-slice(x, i, zero), dynamic_slice_sizes={1,3}
  flat_row = f32[3] reshape(row)
  back = f32[1,3] reshape(flat_row)
  new_y = f32[6,3] dynamic-update-slice(y, back, i, zero)
  column = f32[6,1] dynamic-slice(x, zero, i), dynamic_slice_sizes={6,1}
  flat_column = f32[6] reshape(column)
  part = f32[1] dynamic-slice(flat_column, i), dynamic_slice_sizes={1}
  number = f32[] reshape(part)
  again = f32[1] reshape(number)
  new_z = f32[6] dynamic-update-slice(z, again, i)
  first = f32[1] slice(flat_row), slice={[0:1]}
  word = f32[] reshape(first)
  second = f32[1] slice(flat_row), slice={[0:1]}
  same_word = f32[] reshape(second)
  total = f32[] add(word, same_word)"""
    text = loop(
        {"x": "f32[6,3]", "y": "f32[6,3]", "z": "f32[6]", "t": "f32[]"},
        body,
        "x, new_y, new_z, total",
        first=-2,
        trips=25,
    )
    x = (np.arange(18, dtype=np.uint32) + 0x7F800001).view(np.float32).reshape(6, 3)
    x[0, 0] = x[5, 0] = 2
    found = same_in_all_runs(text, x, np.zeros_like(x), np.zeros(6, np.float32), np.float32(0))
    assert bits(found[1]) == bits(x)
    assert bits(found[2]) == bits(np.stack([x[i, min(i, 2)] for i in range(6)]))
    assert float(found[3]) == 4
    plan = plan_of(hloexec.parse(text))
    step = next(step for step in plan.steps if step.flow is not None)
    code = loop_code_of(step).source
    assert code.count("[0]") == 1 and ":place" not in code, code


SELECTS = {
    "what is kept": ("new_x = f32[8] select(p, x2, x)", "new_x"),
    "what is taken": ("new_x = f32[8] select(p, x, x2)", "new_x"),
    "neither": ("s = f32[8] select(p, x2, x2)\n  new_x = f32[8] subtract(s, x)", "new_x"),
    "pred itself": (
        "q = pred[8] compare(x2, x), direction=GT\n  r = pred[8] select(p, q, p)\n  new_x = f32[8] select(r, x2, x)",
        "new_x",
    ),
}


@pytest.mark.parametrize("name", SELECTS)
def test_selects_write_to_buffers(name: str) -> None:
    select, following = SELECTS[name]
    body = f"""  three = f32[] constant(3)
  threes = f32[8] broadcast(three), dimensions={{}}
  p = pred[8] compare(x, threes), direction=LT
  x2 = f32[8] multiply(x, x)
  {select}"""
    same_in_all_runs(loop({"x": "f32[8]"}, body, following), np.linspace(-2, 4, 8, dtype=np.float32))


def test_a_loop_over_a_batch_asks_once_which_items_go_on() -> None:
    text = """HloModule m
any {
  a = pred[] parameter(0)
  b = pred[] parameter(1)
  ROOT r = pred[] or(a, b)
}
body {
  s = (s32[8], s32[8]) parameter(0)
  n = s32[8] get-tuple-element(s), index=0
  k = s32[8] get-tuple-element(s), index=1
  end = s32[] constant(100)
  ends = s32[8] broadcast(end), dimensions={}
  on = pred[8] compare(n, ends), direction=LT
  m = s32[8] multiply(n, n)
  new_n = s32[8] select(on, m, n)
  one = s32[] constant(1)
  ones = s32[8] broadcast(one), dimensions={}
  next = s32[8] add(k, ones)
  new_k = s32[8] select(on, next, k)
  ROOT t = (s32[8], s32[8]) tuple(new_n, new_k)
}
condition {
  s = (s32[8], s32[8]) parameter(0)
  n = s32[8] get-tuple-element(s), index=0
  end = s32[] constant(100)
  ends = s32[8] broadcast(end), dimensions={}
  on = pred[8] compare(n, ends), direction=LT
  no = pred[] constant(false)
  ROOT more = pred[] reduce(on, no), dimensions={0}, to_apply=any
}
ENTRY e {
  n = s32[8] parameter(0)
  zero = s32[] constant(0)
  k = s32[8] broadcast(zero), dimensions={}
  s = (s32[8], s32[8]) tuple(n, k)
  ROOT w = (s32[8], s32[8]) while(s), condition=condition, body=body
}
"""
    n = np.array([2, 3, 5, 7, 99, 100, 101, 12], np.int32)
    found = same_in_all_runs(text, n)
    for start, value, count in zip(n.tolist(), *map(np.ndarray.tolist, found), strict=True):
        times = 0
        while start < 100:
            start, times = start * start, times + 1
        assert (value, count) == (start, times)
    plan = plan_of(module := hloexec.parse(text))
    for _ in range(RUNS):
        hloexec.run(module, n)
    assert "".join(sources(code_of(plan))).count("less(") <= 1
