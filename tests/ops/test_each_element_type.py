"""Opcodes whose own tests have few element types take one of every family, planned and not.

Values are zeros and ones, so that sums are exact in every type (of pred, OR); each case states its result, worked out
by hand from the definition of the opcode.
"""

from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.core.dtypes import ELEMENT_TYPES

COMPUTATIONS = """
sum {
  a = T[] parameter(0)
  b = T[] parameter(1)
  ROOT r = T[] add(a, b)
}

before {
  a = T[] parameter(0)
  b = T[] parameter(1)
  ROOT r = pred[] compare(a, b), direction=LT
}

holds {
  a = T[] parameter(0)
  b = T[] parameter(1)
  ROOT r = pred[] compare(a, b), direction=GE
}

step {
  a = T[] parameter(0)
  b = T[] parameter(1)
  c = T[] add(a, b)
  ROOT r = (T[], T[]) tuple(c, c)
}

same {
  p = T[4] parameter(0)
  ROOT r = T[4] copy(p)
}

turned {
  p = T[4] parameter(0)
  ROOT r = T[4] reverse(p), dimensions={0}
}

again {
  p = (s32[], T[4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  three = s32[] constant(3)
  ROOT r = pred[] compare(i, three), direction=LT
}

turn {
  p = (s32[], T[4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = T[4] get-tuple-element(p), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  y = T[4] reverse(x), dimensions={0}
  ROOT r = (s32[], T[4]) tuple(next, y)
}
"""
SETUP = """
  x = T[4] parameter(0)
  m = T[2,2] parameter(1)
  zero = T[] parameter(2)
  one = s32[] parameter(3)
  two = s32[] parameter(4)
  mask = pred[4] parameter(5)
  yes = pred[] parameter(6)
  rows = s32[2,1] parameter(7)
  pair = T[2] slice(x), slice={[0:2]}
  back = T[4] reverse(x), dimensions={0}
  begin = token[] after-all()
  cut = T[<=4] set-dimension-size(x, two), dimensions={0}
  counted = (s32[], T[4]) tuple(two, x)
  scanned = (T[4], T[]) scan(x, zero), dimensions={0}, num_carries=1, to_apply=step
  image = T[1,1,4] reshape(x)
  kernel = T[2,1,1] reshape(pair)
  square = T[2,2] reshape(x)
  squares = T[2,2,2] broadcast(square), dimensions={1,2}
  single = s32[2] constant({1, 1})
"""
FLOAT_SETUP = """
  zeros = U[] constant(0)
  bits = U[4] broadcast(zeros), dimensions={}
  unit = T[] constant(1)
  half = T[] constant(0.5)
  quarter = T[] constant(0.25)
  zero1 = T[1] reshape(zero)
  unit1 = T[1] reshape(unit)
  half1 = T[1] reshape(half)
  quarter1 = T[1] reshape(quarter)
  lower = T[2,2] constant({{2, 99}, {1, 4}})
  positive = T[2,2] constant({{4, 99}, {2, 10}})
  right = T[2,1] constant({{4}, {14}})
  column = T[2,1] constant({{1}, {0}})
  trained = (T[2,1], T[1], T[1]) batch-norm-training(column, unit1, unit1), epsilon=0, feature_index=1
  slopes = (T[2,1], T[1], T[1]) batch-norm-grad(column, unit1, half1, quarter1, column), epsilon=0, feature_index=1
"""
X, BACK, M = [1, 1, 0, 1], [1, 0, 1, 1], [[0, 1], [0, 0]]
SQUARE = [[1, 1], [0, 1]]
GIVEN = (np.int32(1), np.int32(2), np.array([1, 0, 1, 0], np.bool_), np.bool_(True), np.array([[0], [1]], np.int32))

MOVED: dict[str, Any] = {
    "T[4] add-dependency(x, begin)": X,
    'T[4] domain(x), domain={kind="sharding", entry={replicated}, exit={maximal device=0}}': X,
    "T[4] opt-barrier(x)": X,
    "T[4] copy(x)": X,
    "T[4] get-tuple-element(counted), index=1": X,
    "T[2] constant({1, 0})": [1, 0],
    "T[2,2] bitcast(x)": SQUARE,
    "T[4] bitcast-convert(x)": X,
    "T[2,2] reshape(x)": SQUARE,
    "T[<=2,<=2] dynamic-reshape(x, two, two)": SQUARE,
    "T[2,4] broadcast(x), dimensions={1}": [X, X],
    "T[6] concatenate(x, pair), dimensions={0}": [*X, 1, 1],
    "T[7] pad(x, zero), padding=1_2": [0, *X, 0, 0],
    "T[4] reverse(x), dimensions={0}": BACK,
    "T[2] slice(x), slice={[0:4:2]}": [1, 0],
    "T[2,2] transpose(m), dimensions={1,0}": [[0, 0], [1, 0]],
    "T[2] dynamic-slice(x, one), dynamic_slice_sizes={2}": [1, 0],
    "T[4] dynamic-update-slice(x, pair, one)": [1, 1, 1, 1],
    "T[2,2] gather(m, rows), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,2}": M,
    "s32[] get-dimension-size(cut), dimensions={0}": 2,
    "T[4] select(mask, x, back)": [1, 0, 0, 1],
    "T[4] sort(x), dimensions={0}, to_apply=before": [0, 1, 1, 1],
}
DECIDED: dict[str, Any] = {
    "T[4] call(x), to_apply=turned": BACK,
    "T[4] fusion(x), kind=kLoop, calls=turned": BACK,
    "T[4] conditional(yes, x, x), true_computation=turned, false_computation=same": BACK,
    "(s32[], T[4]) while(counted), condition=again, body=turn": (3, BACK),
}
COMPUTED: dict[str, Any] = {
    "pred[4] compare(x, back), direction=EQ": [1, 0, 0, 1],
    "T[4] clamp(zero, x, zero)": [0, 0, 0, 0],
    "T[4] minimum(x, back)": [1, 0, 0, 1],
    "f32[4] convert(x)": X,
    "T[] reduce(cut, zero), dimensions={0}, to_apply=sum": 2,
    "T[4] map(x, x), dimensions={0}, to_apply=sum": [2, 2, 0, 2],
    "T[4] get-tuple-element(scanned), index=0": [1, 2, 2, 3],
    "T[4] select-and-scatter(x, pair, zero), window={size=2 stride=2}, select=holds, scatter=sum": [1, 0, 0, 1],
    "T[3] reduce-window(x, zero), window={size=2}, to_apply=sum": [2, 1, 1],
    "T[] dot(x, x), lhs_contracting_dims={0}, rhs_contracting_dims={0}": 3,
    "T[1,1,3] convolution(image, kernel), window={size=2}, dim_labels=bf0_0io->bf0": [[[2, 1, 1]]],
}
COUNTED = {"T[4] iota(), iota_dimension=0": [0, 1, 2, 3]}
ORDERED = {"(T[2], s32[2]) topk(x), k=2, largest=true": ([1, 1], [0, 1])}
GROUPS = "lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0}, rhs_group_dims={0}"
COMPUTED[f"T[2,2] ragged-dot(square, squares, single), {GROUPS}"] = [[1, 2], [0, 1]]
SOLVE = "left_side=true, lower=true, unit_diagonal=false, transpose_a=NO_TRANSPOSE"
OF_FLOATS: dict[str, Any] = {
    "s8[4] stochastic-convert(x, bits)": X,
    "f32[2,2] scaled-dot(square, square, square, square), lhs_contracting_dims={1}, rhs_contracting_dims={1}": [
        [2, 1],
        [1, 1],
    ],
    f"T[2,1] triangular-solve(lower, right), {SOLVE}": [[2], [3]],
    "T[2,2] cholesky(positive), lower=true": [[2, 0], [1, 3]],
    # The column has mean 1/2 and variance 1/4: normalized, it is 1 and −1.
    "T[2,1] batch-norm-inference(column, unit1, zero1, half1, quarter1), epsilon=0, feature_index=1": [[1], [-1]],
    "(T[2,1], T[1], T[1]) copy(trained)": ([[2], [0]], [0.5], [0.25]),
    # Two numbers are normalized to 1 and −1 whatever they are: their gradient is 0, that of the scale 1 · 1 − 0 · 1.
    "(T[2,1], T[1], T[1]) copy(slopes)": ([[0], [0]], [1], [1]),
}


@pytest.mark.parametrize("name", "pred s4 s32 u4 u8 f8e4m3fn bf16 f32 f64 c64".split())
@pytest.mark.parametrize("planner", [True, False])
def test_operations_take_every_family_of_types(name: str, planner: bool) -> None:
    element_type = ELEMENT_TYPES[name]
    storage, setup = element_type.storage, SETUP
    cases = {**MOVED, **DECIDED, **COMPUTED, **(COUNTED if name != "pred" else {})}
    if element_type.is_complex:
        cases["T[2] constant({(1, 0), (0, 0)})"] = cases.pop("T[2] constant({1, 0})")
    else:
        cases |= ORDERED
    if element_type.is_floating:
        cases |= OF_FLOATS
        setup += FLOAT_SETUP.replace("U[", f"u{element_type.bits}[")
    shapes = [text[: text.index(") ") + 1] if text.startswith("(") else text.split()[0] for text in cases]
    lines = [f"  r{number} = {text}\n" for number, text in enumerate(cases)]
    results = ", ".join(f"r{number}" for number in range(len(cases)))
    root = f"  ROOT all = ({', '.join(shapes)}) tuple({results})\n"
    text = f"HloModule m\n{COMPUTATIONS}\nENTRY main {{{setup}{''.join(lines)}{root}}}\n".replace("T[", f"{name}[")
    module = hloexec.parse(text)
    inputs = [np.array(value).astype(storage) for value in (X, M, 0)]
    outputs = hloexec.run(module, *inputs, *map(np.asarray, GIVEN), planner=planner)
    assert isinstance(outputs, tuple)
    for (line, expected), output in zip(cases.items(), outputs, strict=True):
        pairs = [(output, expected)] if not isinstance(output, tuple) else list(zip(output, expected, strict=True))
        for found, wanted in pairs:
            assert isinstance(found, np.ndarray)
            assert (found == np.array(wanted).astype(found.dtype)).all() and found.shape == np.shape(wanted), line


@pytest.mark.parametrize("name", "s4 s32 u4 u8 f8e4m3fn bf16 f32 f64".split())
def test_random_numbers_of_every_family_lie_in_their_interval(name: str) -> None:
    text = """ENTRY main {
      low = T[] constant(2)
      high = T[] constant(6)
      ROOT r = T[64] rng(low, high), distribution=rng_uniform
    }""".replace("T[", f"{name}[")
    drawn = hloexec.run(hloexec.parse(text), seed=3)
    assert isinstance(drawn, np.ndarray)
    values = drawn.astype(np.float64)
    assert ((values >= 2) & (values <= 6)).all()
    assert len({*values}) >= 4, "of 64 draws from four numbers or more, one of four is missed with one seed in 10⁷"
    if ELEMENT_TYPES[name].is_integral:
        assert {*values} == {2, 3, 4, 5}
