"""Large values that invite a region to take them for something simpler: they have the bits of their plain evaluation."""

import numpy as np
import pytest

import hloexec
from hloexec.core.ir import ArrayShape
from tests.plan.random_programs import RandomProgram
from tests.plan.ways import differences, regions_of

_REDUCERS = """sum { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b) }
least { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] minimum(a, b) }
most { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] maximum(a, b) }
most8 { a = f8e5m2[] parameter(0)
  b = f8e5m2[] parameter(1)
  ROOT s = f8e5m2[] maximum(a, b) }
turned { x = f32[400,300] parameter(0)
  s = f32[400,300] sine(x)
  ROOT t = f32[300,400] transpose(s), dimensions={1,0} }
straight { x = f32[400,300] parameter(0)
  ROOT t = f32[300,400] reshape(x) }
doubled { x = f32[300,400] parameter(0)
  e = f32[300,400] cosine(x)
  ROOT r = f32[300,400] add(e, x) }
again { x = f32[300,400] parameter(0)
  zero = f32[] constant(0)
  corner = f32[1,1] slice(x), slice={[0:1], [0:1]}
  e = f32[] reshape(corner)
  limit = f32[] constant(1)
  ROOT more = pred[] compare(e, limit), direction=LT }
"""

_SHORT_ROWS = (
    "a = T[6000,8,3] broadcast(p0), dimensions={0,2}\n  b = T[6000,8,3] broadcast(p1), dimensions={1,2}\n"
    "  c = T[6000,8,3] subtract(a, b)\n  d = T[6000,8,3] multiply(c, a)\n  l = T[6000,8,3] log(b)\n"
    "  g = T[6000,8,3] maximum(l, c)\n  h = T[6000,8,3] multiply(g, b)\n"
    "  m = pred[6000,8,3] compare(c, b), direction=LT\n  s = T[6000,8,3] select(m, h, d)\n"
)
"""Functions of rows of three elements, most of which read one that is repeated; some give NaN."""

# Each is the entry's instructions; p0, p1, … are parameters of the shapes in brackets, the last one is the root.
PROGRAMS = {
    "a sum over the transpose, within a region": (
        ["f32[400,300]"],
        "t = f32[300,400] transpose(p0), dimensions={1,0}\n  s = f32[300,400] sine(t)\n"
        "  zero = f32[] constant(0)\n  a = f32[300] reduce(t, zero), dimensions={1}, to_apply=sum\n"
        "  b = f32[300] reduce(s, zero), dimensions={1}, to_apply=sum\n"
        "  wide = f32[300,400] broadcast(a), dimensions={0}\n  c = f32[300,400] multiply(s, wide)\n"
        "  d = f32[300] reduce(c, zero), dimensions={1}, to_apply=sum\n  e = f32[300] subtract(d, b)",
    ),
    "a sum over what a branch has transposed": (
        ["f32[400,300]", "pred[]"],
        "c = f32[300,400] conditional(p1, p0, p0), true_computation=turned, false_computation=straight\n"
        "  zero = f32[] constant(0)\n  a = f32[300] reduce(c, zero), dimensions={1}, to_apply=sum\n"
        "  b = f32[400] reduce(c, zero), dimensions={0}, to_apply=sum\n"
        "  r = (f32[300], f32[400]) tuple(a, b)",
    ),
    "a loop that begins with what is transposed in memory": (
        ["f32[400,300]"],
        "t = f32[300,400] transpose(p0), dimensions={1,0}\n  s = f32[300,400] sine(t)\n"
        "  w = f32[300,400] while(s), condition=again, body=doubled\n  zero = f32[] constant(0)\n"
        "  r = f32[300] reduce(w, zero), dimensions={1}, to_apply=sum",
    ),
    "parts of complex numbers": (
        ["c64[60000]"],
        "re = f32[60000] real(p0)\n  im = f32[60000] imag(p0)\n  m = f32[60000] multiply(re, im)\n"
        "  a = f32[60000] add(m, re)\n  s = f32[60000] sine(im)\n  z = c64[60000] complex(a, s)\n"
        "  zz = c64[60000] multiply(z, p0)\n  re2 = f32[60000] real(zz)\n  r = f32[60000] subtract(re2, im)",
    ),
    "parts of complex numbers that are read after others were computed": (
        ["c64[65536]", "c64[65536]"],
        "z = c64[65536] add(p0, p1)\n  a = f32[65536] real(z)\n  y = c64[65536] multiply(p0, p1)\n"
        "  b = f32[65536] abs(y)\n  x = c64[65536] subtract(y, p0)\n  c = f32[65536] imag(x)\n"
        "  w = c64[65536] sine(p1)\n  d = f32[65536] abs(w)\n  e = f32[65536] add(a, b)\n  f = f32[65536] add(e, c)\n"
        "  r = f32[65536] add(f, d)",
    ),
    "parts of complex numbers alone": (
        ["c64[300000]"],
        "re = f32[300000] real(p0)\n  im = f32[300000] imag(p0)\n  r = (f32[300000], f32[300000]) tuple(re, im)",
    ),
    "wide numbers that become bf16": (
        ["f64[60000]", "s32[60000]"],
        "a = bf16[60000] convert(p0)\n  b = bf16[60000] convert(p1)\n  c = bf16[60000] add(a, b)\n"
        "  n = bf16[60000] negate(a)\n  w = f32[60000] convert(n)\n  d = f64[60000] convert(c)\n"
        "  r = (bf16[60000], bf16[60000], f32[60000], f64[60000]) tuple(a, b, w, d)",
    ),
    "numbers of one size and two types": (
        ["s32[60000]", "f32[60000]"],
        "a = s32[60000] add(p0, p0)\n  b = f32[60000] convert(a)\n  c = f32[60000] multiply(b, p1)\n"
        "  d = s32[60000] bitcast-convert(c)\n  e = s32[60000] add(d, a)\n  f = f32[60000] bitcast-convert(e)\n"
        "  r = (f32[60000], s32[60000]) tuple(f, e)",
    ),
    "choices between values that are read again": (
        ["f32[60000]", "f32[60000]"],
        "m = pred[60000] compare(p0, p1), direction=LT\n  a = f32[60000] sine(p0)\n  b = f32[60000] cosine(p1)\n"
        "  c = f32[60000] select(m, a, b)\n  d = f32[60000] select(m, b, a)\n  e = f32[60000] add(c, a)\n"
        "  f = f32[60000] multiply(d, b)\n  g = f32[60000] select(m, e, f)\n  r = f32[60000] add(g, c)",
    ),
    "rows of a slice, whose ends have gaps between them": (
        ["f32[40,50,60]"],
        "s = f32[40,30,60] slice(p0), slice={[0:40], [10:40], [0:60]}\n  a = f32[40,30,60] sine(s)\n"
        "  b = f32[40,30,60] add(a, s)\n  m = f32[1200,60] reshape(b)\n  c = f32[1200,60] tanh(m)\n"
        "  r = f32[1200,60] subtract(c, m)",
    ),
    "short rows along which operands are repeated": (
        ["f32[6000,3]", "f32[6000]", "f32[8,3]"],
        "a = f32[6000,8,3] broadcast(p0), dimensions={0,2}\n  b = f32[6000,8,3] broadcast(p2), dimensions={1,2}\n"
        "  c = f32[6000,8,3] subtract(a, b)\n  d = f32[6000,8,3] multiply(c, c)\n  zero = f32[] constant(0)\n"
        "  e = f32[6000,8] reduce(d, zero), dimensions={2}, to_apply=sum\n"
        "  f = f32[6000,8] broadcast(p1), dimensions={0}\n  g = f32[6000,8] divide(e, f)\n"
        "  h = f32[6000,3] broadcast(p1), dimensions={0}\n  i = f32[6000,3] multiply(h, p0)\n"
        "  r = (f32[6000,8], f32[6000,3]) tuple(g, i)",
    ),
    "short rows, column by column": (
        ["f32[6000,3]", "f32[8,3]", "f32[6000]"],
        _SHORT_ROWS.replace("T[", "f32[") + "  zero = f32[] constant(0)\n  low = f32[] constant(-inf)\n"
        "  e = f32[6000,8] reduce(d, zero), dimensions={2}, to_apply=sum\n"
        "  t = f32[6000,8] reduce(s, low), dimensions={2}, to_apply=most\n  f = f32[6000,24] reshape(s)\n"
        "  u = f32[6000] reduce(f, zero), dimensions={1}, to_apply=sum\n"
        "  v = f32[6000] reduce(f, low), dimensions={1}, to_apply=most\n  x = f32[6000,8] tanh(e)\n"
        "  y = f32[6000,8] broadcast(p2), dimensions={0}\n  z = f32[6000,8] power(x, y)\n"
        "  r = (f32[6000,8,3], f32[6000,8], f32[6000,8], f32[6000], f32[6000]) tuple(s, t, z, u, v)",
    ),
    "a number for each of many long rows, and a row for all": (
        ["f32[300,640]", "f32[300]", "f32[640]"],
        "l = f32[300] log(p1)\n  a = f32[300,640] broadcast(l), dimensions={0}\n"
        "  b = f32[300,640] broadcast(p2), dimensions={1}\n  n = f32[300,640] negate(p0)\n"
        "  k = f32[300,640] log(n)\n  c = f32[300,640] subtract(p0, a)\n  d = f32[300,640] add(a, k)\n"
        "  e = f32[300,640] multiply(k, b)\n  f = f32[300,640] divide(b, n)\n  g = f32[300,640] multiply(c, a)\n"
        "  h = f32[300,640] add(f, g)\n  i = f32[300,640] subtract(b, h)\n  j = f32[300,640] add(a, b)\n"
        "  r = (f32[300,640], f32[300,640], f32[300,640], f32[300,640]) tuple(d, e, i, j)",
    ),
    "short rows of bf16, column by column": (
        ["bf16[6000,3]", "bf16[8,3]"],
        _SHORT_ROWS.replace("T[", "bf16[") + "  r = bf16[6000,8,3] add(s, c)",
    ),
    "a number of a type whose name NumPy does not know, repeated": (
        ["f32[200,190]"],
        "x = bf16[200,190] convert(p0)\n  a = f8e5m2[200,190] convert(x)\n  three = f8e5m2[] constant(3)\n"
        "  threes = f8e5m2[200,190] broadcast(three), dimensions={}\n  b = f8e5m2[200,190] multiply(a, threes)\n"
        "  c = f8e5m2[200,190] subtract(b, a)\n  zero = f8e5m2[] constant(0)\n"
        "  r = f8e5m2[200] reduce(c, zero), dimensions={1}, to_apply=most8",
    ),
    "the largest and the smallest of few neighbours": (
        ["f32[6000,9]"],
        "one = f32[] constant(1)\n  ones = f32[6000,9] broadcast(one), dimensions={}\n"
        "  a = f32[6000,9] clamp(one, p0, one)\n  half = f32[] constant(0.5)\n"
        "  halves = f32[6000,9] broadcast(half), dimensions={}\n  i = f32[6000,9] multiply(p0, halves)\n"
        "  w = f32[6000,9] round-nearest-even(i)\n  b = f32[6000,9] divide(ones, w)\n"
        "  c = f32[6000,9] multiply(b, w)\n  top = f32[] constant(inf)\n  low = f32[] constant(-inf)\n"
        "  least = f32[6000] reduce(w, top), dimensions={1}, to_apply=least\n"
        "  most = f32[6000] reduce(w, low), dimensions={1}, to_apply=most\n"
        "  nans = f32[6000] reduce(c, low), dimensions={1}, to_apply=most\n"
        "  r = (f32[6000], f32[6000], f32[6000], f32[6000,9]) tuple(least, most, nans, a)",
    ),
    "what formulas of several steps write": (
        ["f32[60000]", "f32[60000]"],
        "a = f32[60000] logistic(p0)\n  hundred = f32[] constant(-95)\n"
        "  hundreds = f32[60000] broadcast(hundred), dimensions={}\n  far = f32[60000] multiply(p1, hundreds)\n"
        "  b = f32[60000] logistic(far)\n  c = f32[60000] maximum(p0, p1)\n  d = f32[60000] minimum(c, a)\n"
        "  zero = f32[] constant(0)\n  zeros = f32[60000] broadcast(zero), dimensions={}\n"
        "  e = f32[60000] maximum(d, zeros)\n  n = f32[60000] negate(e)\n  f = f32[60000] maximum(zeros, n)\n"
        "  g = f32[60000] minimum(n, zeros)\n  h = s32[60000] convert(g)\n  k = f32[60000] convert(h)\n"
        "  l = f32[60000] clamp(a, p1, b)\n"
        "  r = (f32[60000], f32[60000], f32[60000], f32[60000], f32[60000]) tuple(b, f, g, k, l)",
    ),
    "paddings and neighbours, one of them large": (
        ["f32[300,2,400]", "bf16[300,5,40]"],
        "zero = f32[] constant(0)\n  a = f32[300,5,400] pad(p0, zero), padding=0_0x1_1_1x0_0\n"
        "  b = f32[300,4,400] pad(p0, zero), padding=0_0x-1_2_1x0_0\n  s = f32[300,5,400] sine(a)\n"
        "  c = f32[300,9,400] concatenate(s, b), dimensions={1}\n  d = f32[300,18,400] concatenate(c, c), dimensions={1}\n"
        "  e = bf16[300,10,40] concatenate(p1, p1), dimensions={1}\n  f = bf16[300,10,40] multiply(e, e)\n"
        "  r = (f32[300,18,400], f32[300,9,400], bf16[300,10,40]) tuple(d, c, f)",
    ),
    "several outputs, the first of which has an input's shape": (
        ["f32[60000]"],
        "a = f32[60000] sine(p0)\n  x = f32[60000] concatenate(a), dimensions={0}\n  b = f32[60000] negate(x)\n"
        "  c = f32[60000] add(b, x)\n  d = f32[60000] multiply(c, x)\n  e = f32[60000] tanh(d)\n"
        "  r = (f32[60000], f32[60000], f32[60000]) tuple(b, c, e)",
    ),
}


def _text(name: str) -> str:
    shapes, instructions = PROGRAMS[name]
    given = "".join(f"  p{number} = {shape} parameter({number})\n" for number, shape in enumerate(shapes))
    before, _, last = instructions.rpartition("\n  ")
    return f"HloModule m\n{_REDUCERS}ENTRY main {{\n{given}  {before}\n  ROOT {last}\n}}\n"


def _inputs(text: str) -> list[np.ndarray]:
    random = np.random.default_rng(2)
    values = []
    for parameter in hloexec.parse(text).entry.parameters:
        assert isinstance(parameter.shape, ArrayShape)
        sizes, dtype = parameter.shape.dimensions, parameter.shape.element_type.storage
        value = random.standard_normal(sizes)
        if dtype == np.float64:
            # Next to halfway between two numbers of bf16, by less than f32 has digits for.
            value = np.ldexp(1 + (2 * random.integers(0, 64, sizes) + 1) / 256 + value * 2.0**-34, 3)
        if dtype == np.int32:
            # The same for integers.
            value = (random.integers(128, 256, sizes) * 2 + 1) * (1 << 20) + random.integers(-2, 3, sizes)
        if dtype == np.complex64:
            value = value + 1j * random.standard_normal(sizes)
        values.append(np.asarray(value).astype(dtype) if sizes else np.array(True))
    return values


@pytest.mark.sampled(2)
@pytest.mark.slow_cases(
    "parts of complex numbers that are read after others were computed",
    "short rows, column by column",
    "a number for each of many long rows, and a row for all",
    "what formulas of several steps write",
    "paddings and neighbours, one of them large",
)
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_bits_are_those_of_the_plain_evaluation(name: str) -> None:
    text = _text(name)
    assert differences(RandomProgram(text, [_inputs(text)]), runs=3) == []


@pytest.mark.parametrize("name", [name for name in PROGRAMS if "column by column" in name])
def test_many_functions_of_repeated_elements_make_short_rows_lie_in_columns(name: str) -> None:
    assert any(region.is_by_columns for region in regions_of(hloexec.parse(_text(name))))
