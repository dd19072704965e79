"""What diff calls certain: an instruction that is wrong on right operands, and the only one that can be meant."""

from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.report.judging.diffs import diff_line
from tests.diffing.partitioned.test_pairs import AFTER, BEFORE
from tests.diffing.texts import diff_texts

_RANDOM = np.random.default_rng(0)


def _found(before: str, after: str, *inputs: Any) -> hloexec.Diff:
    return diff_texts(before, after, list(inputs))


def _floats(*dimensions: int) -> np.ndarray:
    return _RANDOM.normal(size=dimensions).astype(np.float32)


_DIAGONAL = """HloModule m
ENTRY main {
  x = f32[6,6] parameter(0)
  count = s32[6] iota(), iota_dimension=0
  rows = s32[6,6] broadcast(count), dimensions={0}
  columns = s32[6,6] broadcast(count), dimensions={1}
  here = pred[6,6] compare(rows, columns), direction=EQ
  zero = f32[] constant(0)
  zeros = f32[6,6] broadcast(zero), dimensions={}
  ROOT r = f32[6,6] select(here, x, zeros)
}
"""


def test_of_two_equal_values_of_which_either_may_be_meant_neither_is_certain() -> None:
    """Rows in the place of columns, where the comparison has its operands exchanged."""
    after = _DIAGONAL.replace("broadcast(count), dimensions={0}", "broadcast(count), dimensions={1}")
    after = after.replace("compare(rows, columns)", "compare(columns, rows)")
    first = _found(_DIAGONAL, after, _floats(6, 6)).findings[0]
    assert not first.is_certain
    assert {run.instruction for run in first.region} == {"rows", "columns"}


_TAKEN = """HloModule m
ENTRY main {
  x = s32[3,4,64] parameter(0)
  places = s32[64,1] constant(PLACES)
  RESULT
  size = s32[3,4,64] abs(g)
  total = s32[] constant(0)
  ROOT r = s32[3,4] reduce(size, total), dimensions={2}, to_apply=sum
}
"""


def test_what_gives_the_right_numbers_in_other_dimensions_is_not_to_blame() -> None:
    """To blame is the reshape, where it should be a transpose."""
    places = "{" + ", ".join(f"{{{number}}}" for number in _RANDOM.integers(0, 64, 64)) + "}"
    text = _TAKEN.replace("PLACES", places).replace(
        "ENTRY", "sum {\n  a = s32[] parameter(0)\n  b = s32[] parameter(1)\n  ROOT s = s32[] add(a, b)\n}\nENTRY"
    )
    before = text.replace(
        "RESULT",
        "g = s32[3,4,64] gather(x, places), offset_dims={0,1}, collapsed_slice_dims={2}, start_index_map={2}, "
        "index_vector_dim=1, slice_sizes={3,4,1}",
    )
    after = text.replace(
        "RESULT",
        "taken = s32[64,3,4,1] gather(x, places), offset_dims={1,2,3}, collapsed_slice_dims={}, start_index_map={2}, "
        "index_vector_dim=1, slice_sizes={3,4,1}\n  flat = s32[64,3,4] reshape(taken)\n  g = s32[3,4,64] reshape(flat)",
    )
    first = _found(before, after, _RANDOM.integers(-99, 99, (3, 4, 64), dtype=np.int32)).findings[0]
    assert first.after.instruction == "g"


_SUM = """HloModule m
ENTRY main {
  x = f32[6,8] parameter(0)
  y = f32[6,8] parameter(1)
  s = f32[8] parameter(2)
  first = f32[6,8] sine(x)
  second = f32[6,8] cosine(y)
  opposite = f32[8] negate(s)
  scaled = f32[8] SCALED
  third = f32[6,8] broadcast(scaled), dimensions={1}
  fourth = f32[6,8] multiply(x, y)
  ADDED
  ROOT r = f32[6,8] multiply(sum, y)
}
"""


def test_what_is_found_once_something_is_assumed_to_be_right_is_not_certain() -> None:
    """A term is wrong, and the sum is taken in another order: each of its steps would be right if another one were."""
    before = _SUM.replace("SCALED", "multiply(opposite, s)").replace(
        "ADDED",
        "a = f32[6,8] add(first, third)\n  b = f32[6,8] add(second, a)\n  sum = f32[6,8] add(b, fourth)",
    )
    after = _SUM.replace("SCALED", "copy(opposite)").replace(
        "ADDED",
        "a = f32[6,8] add(third, fourth)\n  b = f32[6,8] add(second, first)\n  sum = f32[6,8] add(a, b)",
    )
    found = _found(before, after, _floats(6, 8), _floats(6, 8), _floats(8))
    assert all(not finding.is_certain for finding in found.findings if finding.after.instruction in ("a", "b", "sum"))


def test_what_takes_elements_from_a_place_of_which_nothing_is_known_is_not_certain() -> None:
    """A wrong table of the shards' places, which `before` does not have."""
    right, wrong = "place = s32[4] constant({0, 0, 1, 1})", "place = s32[4] constant({0, 1, 0, 1})"
    assert right in AFTER
    found = hloexec.diff(hloexec.parse(BEFORE), hloexec.parse(AFTER.replace(right, wrong))).findings[0]
    assert found.after.instruction == "cut"
    assert not found.is_certain


_PICTURE = """HloModule m
ENTRY main {
  x = f32[4,4,8,8] parameter(0)
  y = f32[4,4,8,8] sine(x)
  moved = f32[4,8,4,8] transpose(y), dimensions={0,2,1,3}
  picture = f32[32,32] reshape(moved)
  least = f32[] constant(-0.5)
  lows = f32[32,32] broadcast(least), dimensions={}
  most = f32[] constant(0.5)
  highs = f32[32,32] broadcast(most), dimensions={}
  above = f32[32,32] maximum(picture, lows)
  ROOT r = f32[32,32] minimum(above, highs)
}
"""
_BLOCKS = """HloModule m
ENTRY main {
  x = f32[4,4,8,8] parameter(0)
  y = f32[4,4,8,8] sine(x)
  rows = f32[128,8] reshape(y)
  least = f32[] constant(-0.5)
  lows = f32[128,8] broadcast(least), dimensions={}
  most = f32[] constant(0.5)
  highs = f32[128,8] broadcast(most), dimensions={}
  clamped = f32[128,8] clamp(lows, rows, highs)
  blocks = f32[4,4,8,8] reshape(clamped)
  moved = f32[4,8,4,8] transpose(blocks), dimensions={ORDER}
  ROOT r = f32[32,32] reshape(MOVED)
}
"""


def test_what_computes_element_by_element_before_its_elements_are_moved_is_not_to_blame() -> None:
    """`after` clamps blocks, and then leaves out to lay them side by side, or does so in another way."""
    left_out = _BLOCKS.replace("MOVED", "blocks").replace("ORDER", "0,2,1,3")
    first = _found(_PICTURE, left_out, _floats(4, 4, 8, 8)).findings[0]
    assert (first.after.instruction, first.is_certain) == ("r", False)
    assert {run.instruction for run in first.region} == {"blocks", "r"}
    other_order = _BLOCKS.replace("MOVED", "moved").replace("ORDER", "0,3,1,2")
    first = _found(_PICTURE, other_order, _floats(4, 4, 8, 8)).findings[0]
    assert (first.after.instruction, first.is_certain) == ("moved", True)


_TURNED = """HloModule m
ENTRY main {
  x = f32[4,6] parameter(0)
  y = f32[6,5] parameter(1)
  p = f32[4,5] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  STEPS
}
"""


def test_a_copy_of_what_lies_in_disorder_is_not_to_blame() -> None:
    """To blame is the reshape in the place of a transpose before it, though the product is the one of `before`."""
    before = _TURNED.replace(
        "STEPS", "turned = f32[5,4] transpose(p), dimensions={1,0}\n  ROOT r = f64[5,4] convert(turned)"
    )
    after = _TURNED.replace(
        "STEPS",
        "wide = f64[4,5] convert(p)\n  turned = f64[5,4] reshape(wide)\n  ROOT r = f64[5,4] copy(turned)",
    )
    first = _found(before, after, _floats(4, 6), _floats(6, 5)).findings[0]
    assert (first.after.instruction, first.is_certain) == ("turned", True)


_SCORES = """HloModule m
ENTRY main {
  x = f32[2,4,8] parameter(0)
  c = f32[2,16,2,8] parameter(1)
  y = f32[2,4,8] sine(x)
  rounded = bf16[2,4,8] convert(y)
  kept = bf16[2,16,2,8] convert(c)
  queries = bf16[2,2,2,8] reshape(rounded)
  MOVED
  ROOT s = f32[2,2,2,16] dot(queries, KEYS), lhs_batch_dims={0,1}, lhs_contracting_dims={3}, DIMENSIONS
}
"""


def test_an_operand_of_a_narrower_type_than_the_result_is_not_one_that_lost_digits() -> None:
    """The keys are transposed otherwise than their product takes them; the queries are right."""
    before = _SCORES.replace("MOVED", "").replace("KEYS", "kept")
    before = before.replace("DIMENSIONS", "rhs_batch_dims={0,2}, rhs_contracting_dims={3}")
    after = _SCORES.replace("MOVED", "moved = bf16[2,2,8,16] transpose(kept), dimensions={2,0,3,1}")
    after = after.replace("KEYS", "moved").replace("DIMENSIONS", "rhs_batch_dims={0,1}, rhs_contracting_dims={2}")
    assert _found(before, after, _floats(2, 4, 8), _floats(2, 16, 2, 8)).findings[0].after.instruction == "moved"


_PRODUCT = """HloModule m
ENTRY main {
  a = f32[8,64] parameter(0)
  b = f32[64,16] parameter(1)
  x = f32[8,64] tanh(a)
  d = f32[8,16] dot(x, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT r = f32[8,16] exponential(d)
}
"""
_AS_CONVOLUTION = """HloModule m
ENTRY main {
  a = f32[8,64] parameter(0)
  b = f32[64,16] parameter(1)
  x = f32[8,64] tanh(a)
  CONVERTED
  c = f32[8,16] convolution(OPERANDS), dim_labels=LABELS
  ROOT r = f32[8,16] exponential(c)
}
"""


@pytest.mark.parametrize("operands, labels", [("n, b", "bf_io->bf"), ("b, n", "fb_oi->fb")])
def test_an_operand_of_a_product_is_to_blame_that_a_tpu_rounds_before_its_convolution(operands, labels):
    after = _AS_CONVOLUTION.replace("OPERANDS", operands).replace("LABELS", labels)
    inputs = _floats(8, 64), _floats(64, 16)
    right = _found(_PRODUCT, after.replace("CONVERTED", "n = f32[8,64] copy(x)"), *inputs)
    assert right.verdict in ("agree", "rounding only")
    found = _found(_PRODUCT, after.replace("CONVERTED", "n = bf16[8,64] convert(x)"), *inputs)
    assert found.verdict == "differ"
    assert [finding.after.instruction for finding in found.findings] == ["n"]
    assert found.findings[0].is_certain


def test_of_two_operands_that_are_rounded_neither_is_certain() -> None:
    before = _PRODUCT.replace("dot(x, b)", "dot(x, y)").replace("  d =", "  y = f32[64,16] tanh(b)\n  d =")
    rounded = "y = f32[64,16] tanh(b)\n  n = bf16[8,64] convert(x)\n  m = bf16[64,16] convert(y)"
    after = _AS_CONVOLUTION.replace("CONVERTED", rounded).replace("OPERANDS", "n, m").replace("LABELS", "bf_io->bf")
    (finding,) = _found(before, after, _floats(8, 64), _floats(64, 16)).findings
    assert not finding.is_certain
    assert {run.instruction for run in finding.region} == {"n", "m"}


_PART = """HloModule m
ENTRY main {
  a = f32[24,64] parameter(0)
  b = f32[64,16] parameter(1)
  x = f32[24,64] tanh(a)
  CONVERTED
  s = TYPE[8,64] slice(n), slice={[8:16], [0:64]}
  t = TYPE[64,8] transpose(s), dimensions={1,0}
  d = f32[8,16] dot(t, b), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  ROOT r = f32[8,16] exponential(d)
}
"""


@pytest.mark.parametrize("opcode", ["convert", "copy"])
def test_to_blame_is_what_rounds_and_not_what_takes_a_part_of_that(opcode):
    """TPUs' copies may convert."""
    before, after = (
        _PART.replace("CONVERTED", text).replace("TYPE", kind)
        for text, kind in (("n = f32[24,64] copy(x)", "f32"), (f"n = bf16[24,64] {opcode}(x)", "bf16"))
    )
    (finding,) = _found(before, after, _floats(24, 64), _floats(64, 16)).findings
    assert (finding.after.instruction, finding.reason) == ("n", "after rounds it to bf16, and before does not")


_SQUARES = """HloModule m
ENTRY main {
  a = f32[16,20] parameter(0)
  b = f32[16,20] parameter(1)
  SUMS
}
"""


def test_what_would_be_the_same_but_for_roundings_is_no_repair() -> None:
    """The real part of a complex product, in other steps, whose terms cancel."""
    dot = "f32[16,16] dot({}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}"
    before = _SQUARES.replace(
        "SUMS",
        f"first = {dot.format('a, a')}\n  second = {dot.format('b, b')}\n  ROOT r = f32[16,16] add(first, second)",
    )
    after = _SQUARES.replace(
        "SUMS",
        "less = f32[16,20] subtract(a, b)\n  more = f32[16,20] add(a, b)\n"
        f"first = {dot.format('a, more')}\n  second = {dot.format('less, b')}\n"
        "  ROOT r = f32[16,16] subtract(first, second)",
    )
    random = np.random.default_rng(15)
    inputs = [random.normal(size=(16, 20)).astype(np.float32) for _ in range(2)]
    assert not any(finding.is_certain for finding in _found(before, after, *inputs).findings)


_DOT = """HloModule m
ENTRY main {
  x = f32[16,32] parameter(0)
  w = f32[32,16] parameter(1)
  v = f32[32,16] tanh(w)
  ROUNDED
  ROOT d = f32[16,16] dot(OPERANDS), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
_X_ROUNDED = "n = bf16[16,32] convert(x)\n  nf = f32[16,32] convert(n)"
_V_ROUNDED = "m = bf16[32,16] convert(v)\n  mf = f32[32,16] convert(m)"


@pytest.mark.parametrize(
    ("before", "after", "named", "is_certain"),
    [
        (("", "x, v"), (f"{_X_ROUNDED}\n  {_V_ROUNDED}", "nf, mf"), "n m", False),
        (("", "x, v"), (f"{_X_ROUNDED}\n  {_V_ROUNDED}", "n, m"), "n m", False),
        ((_X_ROUNDED, "nf, v"), (f"{_X_ROUNDED}\n  {_V_ROUNDED}", "nf, mf"), "m", True),
        ((_V_ROUNDED, "x, mf"), (f"{_X_ROUNDED}\n  {_V_ROUNDED}", "nf, mf"), "n", True),
    ],
    ids=["both", "both, narrow", "one beside a rounded parameter", "a parameter beside a rounded one"],
)
def test_operands_that_are_rounded_and_widened_again_are_named_as_such(before, after, named, is_certain):
    modules = [_DOT.replace("ROUNDED", steps).replace("OPERANDS", operands) for steps, operands in (before, after)]
    (finding,) = _found(*modules, _floats(16, 32), _floats(32, 16)).findings
    assert (finding.reason, finding.is_certain) == ("after rounds it to bf16, and before does not", is_certain)
    assert sorted({finding.after.instruction, *(run.instruction for run in finding.region)}) == sorted(named.split())


_CHOSEN = """HloModule m
ENTRY main {
  x = f32[6] parameter(0)
  y = f32[6] parameter(1)
  i = s32[] parameter(2)
  j = s32[] parameter(3)
  zero = s32[] constant(0)
  REST
  ROOT r = f32[6] select(chosen, x, y)
}
"""


def test_one_number_that_is_computed_otherwise_is_no_right_operand() -> None:
    """17 mod 8 is 1, and so is 9 − 8; what compares the one need not be what should compare the other."""
    before, after = (
        f"eight = s32[] constant({number})\n  rest = s32[] {opcode}({operand}, eight)\n  {chosen}"
        for opcode, operand, number, chosen in (
            ("remainder", "i", 8, "chosen = pred[] compare(rest, zero), direction=NE"),
            ("add", "j", -8, "chosen = pred[] compare(rest, zero), direction=LT"),
        )
    )
    texts = (_CHOSEN.replace("REST", text) for text in (before, after))
    first = _found(*texts, _floats(6), _floats(6), np.int32(17), np.int32(9)).findings[0]
    assert (first.after.instruction, first.is_certain) == ("chosen", False)


_DEVIATION = """HloModule m
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}
ENTRY main {
  x = f32[10,12] parameter(0)
  zero = f32[] constant(0)
  twelve = f32[] constant(12)
  n = f32[10] broadcast(twelve), dimensions={}
  sum = f32[10] reduce(x, zero), dimensions={1}, to_apply=add
  mean = f32[10] divide(sum, n)
  means = f32[10,12] broadcast(mean), dimensions={0}
  off = f32[10,12] subtract(x, means)
  SQUARE
  total = f32[10] reduce(square, zero), dimensions={1}, to_apply=add
  variance = f32[10] divide(total, n)
  ROOT r = f32[10] sqrt(variance)
}
"""


def test_what_is_another_value_by_an_identity_is_not_taken_for_it_for_certain() -> None:
    """The mean of x − m (x − m) is that of x, but nothing takes the mean in the place of the variance."""
    before = _DEVIATION.replace("SQUARE", "square = f32[10,12] multiply(off, off)")
    after = _DEVIATION.replace(
        "SQUARE", "scaled = f32[10,12] multiply(means, off)\n  square = f32[10,12] subtract(x, scaled)"
    )
    after = after.replace("constant(12)", "constant(0.0833333358)").replace("divide", "multiply")
    first = _found(before, after, np.abs(_floats(10, 12)) + 3).findings[0]
    assert first.after.instruction in ("scaled", "square") or not first.is_certain


def test_a_quotient_as_a_product_with_a_narrow_reciprocal_is_rounding() -> None:
    """A softmax in f16 as XLA:CPU has it: 1 / n is nowhere in `before`, and what is assumed in its place proves nothing."""
    text = """HloModule softmax
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
ENTRY e {
  x = f16[8,16] parameter(0)
  e = f16[8,16] exponential(x)
  w = f32[8,16] convert(e)
  z = f32[] constant(0)
  s = f32[8] reduce(w, z), dimensions={1}, to_apply=add
  %s
}"""
    before = (
        text
        % """t = f32[8,1] reshape(s)
  n = f16[8,1] convert(t)
  m = f16[8] reshape(n)
  b = f16[8,16] broadcast(m), dimensions={0}
  ROOT d = f16[8,16] divide(e, b)"""
    )
    after = (
        text
        % """o = f16[] constant(1)
  os = f16[8] broadcast(o), dimensions={}
  n = f16[8] convert(s)
  r = f16[8] divide(os, n)
  b = f16[8,16] broadcast(r), dimensions={0}
  ROOT d = f16[8,16] multiply(e, b)"""
    )
    found = diff_texts(before, after)
    assert (found.verdict, found.findings) == ("rounding only", ())


@pytest.mark.parametrize(
    ("steps", "are_right"),
    [
        ("s = f32[6] sine(x)\n  p = f32[6] divide(s, y)", True),
        ("s = f32[6] cosine(x)\n  e = f32[6] negate(s)\n  p = f32[6] divide(y, e)", False),
        ("s = f32[6] cosine(y)\n  e = f32[6] log(x)\n  p = f32[6] divide(s, e)", False),
        ("s = f32[6] cosine(y)\n  e = f32[6] log(x)\n  q = f32[6] add(s, e)\n  p = f32[6] abs(q)", False),
    ],
)
def test_operands_are_said_to_be_right_only_where_they_are(steps: str, are_right: bool) -> None:
    text = """HloModule m
ENTRY main {
  x = f32[6] parameter(0)
  y = f32[6] parameter(1)
  STEPS
  ROOT r = f32[6] tanh(p)
}"""
    wave = "s = f32[6] sine(x)\n  "
    before = text.replace(
        "STEPS", wave + ("" if are_right else "e = f32[6] exponential(s)\n  ") + "p = f32[6] multiply(LEFT, y)"
    )
    before = before.replace("LEFT", "s" if are_right else "e")
    inputs = [np.linspace(0.5, 2, 6, dtype=np.float32), np.linspace(2, 0.7, 6, dtype=np.float32)]
    found = hloexec.diff(hloexec.parse(before), hloexec.parse(text.replace("STEPS", steps)), inputs)
    finding = found.findings[0]
    said = diff_line(found).plain
    assert finding.is_certain == finding.has_right_operands == ("its operands are right" in said) == are_right
