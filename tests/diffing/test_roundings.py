"""Modules that round to fewer bits in several places, as those for TPUs do, and what else is wrong with them."""

from typing import Any

import numpy as np
import pytest

import hloexec
from tests.diffing.texts import diff_texts

_TEXT = """HloModule m
ENTRY main {
  x = f32[16,32] parameter(0)
  w = f32[32,24] parameter(1)
  v = f32[24,16] parameter(2)
  CONVERTED
  d = TYPE[32,16] transpose(a), dimensions={1,0}
  e = TYPE[32,8] slice(d), slice={[0:32], [4:12]}
  zero = TYPE[] constant(0)
  f = TYPE[32,12] pad(e, zero), padding=0_0x4_0
  y = f32[12,24] dot(f, b), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  scale = f32[] constant(2)
  scales = f32[12,24] broadcast(scale), dimensions={}
  z = f32[12,24] multiply(y, scales)
  u = f32[12,24] tanh(z)
  r = f32[12,16] dot(u, c), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT s = f32[12,16] exponential(r)
}
"""
_WHOLE = _TEXT.replace(
    "CONVERTED", "a = f32[16,32] copy(x)\n  b = f32[32,24] copy(w)\n  c = f32[24,16] copy(v)"
).replace("TYPE", "f32")
_ROUNDED = _TEXT.replace(
    "CONVERTED", "a = bf16[16,32] convert(x)\n  b = bf16[32,24] copy(w)\n  c = bf16[24,16] convert(v)"
).replace("TYPE", "bf16")
_RANDOM = np.random.default_rng(0)
_INPUTS = [_RANDOM.normal(size=size).astype(np.float32) / 4 for size in ((16, 32), (32, 24), (24, 16))]


def _found(before: str, after: str, inputs: Any = _INPUTS) -> hloexec.Diff:
    return diff_texts(before, after, inputs)


def test_a_note_says_that_without_the_roundings_nothing_differs() -> None:
    found = _found(_WHOLE, _ROUNDED)
    assert found.verdict == "differ"
    assert found.notes[0] == "without 3 roundings to fewer bits, which before does not have, nothing else differs"
    assert found.notes[1:] == tuple(f"%{name}: after rounds it to bf16, and before does not" for name in "abc")
    assert found.findings[0].after.instruction in "abc"
    assert not any(finding.is_certain for finding in found.findings)


def test_a_fault_is_found_beside_roundings_and_named_before_them() -> None:
    found = _found(_WHOLE, _ROUNDED.replace("constant(2)", "constant(3)"))
    assert found.findings[0].after.instruction == "z"
    assert not any(finding.is_certain for finding in found.findings)
    assert found.notes[0] == "without 3 roundings to fewer bits, which before does not have, the results still differ"


_SENT = """HloModule m, num_partitions=2
ENTRY main {
  x = f32[8,16] parameter(0)
  w = f32[16,8] parameter(1)
  CONVERTED
  SENT
  y = f32[8,8] dot(c, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  OWN
  ROOT r = f32[8,8] OPCODE(y, o)
}
"""
_PAIRS = "channel_id=1, source_target_pairs={{0,1},{1,0}}"


def test_a_fault_is_found_behind_what_devices_exchange_in_fewer_bits() -> None:
    """One of the devices has zeros, in which nothing is rounded."""
    before = (
        _SENT.replace("CONVERTED", "a = f32[8,16] copy(x)\n  b = f32[16,8] copy(w)")
        .replace("SENT", f"c = f32[8,16] collective-permute(a), {_PAIRS}")
        .replace("OWN", "o = f32[8,8] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}")
        .replace("OPCODE", "add")
    )
    after = (
        _SENT.replace("CONVERTED", "a = bf16[8,16] convert(x)\n  b = bf16[16,8] convert(w)")
        .replace(
            "SENT",
            f"started = (bf16[8,16], bf16[8,16]) collective-permute-start(a), {_PAIRS}\n"
            "  c = bf16[8,16] collective-permute-done(started)",
        )
        .replace("OWN", "o = f32[8,8] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}")
        .replace("OPCODE", "subtract")
    )
    x, w = (_RANDOM.normal(size=size).astype(np.float32) for size in ((8, 16), (16, 8)))
    inputs = [[x, w], [np.zeros_like(x), w]]
    assert "nothing else differs" in " ".join(_found(before, after.replace("subtract", "add"), inputs).notes)
    assert _found(before, after, inputs).findings[0].after.instruction == "r"


_JOINED = """HloModule m
ENTRY main {
  x = f32[8,16] parameter(0)
  w = f32[16,8] parameter(1)
  low = f32[] constant(-inf)
  STEPS
  b = TYPE[16,8] OPCODE(w)
  y = f32[8,8] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  shift = f32[] constant(1)
  shifts = f32[8,8] broadcast(shift), dimensions={}
  ROOT r = f32[8,8] add(y, shifts)
}
"""


def test_roundings_of_values_that_before_does_not_have_are_taken_back_too() -> None:
    """By slices that round, and by a conversion behind steps that put the parts together again."""
    before = _JOINED.replace("STEPS", "a = f32[8,16] reverse(x), dimensions={0}")
    before = before.replace("TYPE", "f32").replace("OPCODE", "copy")
    after = _JOINED.replace("TYPE", "bf16").replace("OPCODE", "convert").replace(
        "STEPS",
        "first = bf16[3,16] slice(x), slice={[0:3], [0:16]}\n  second = f32[5,16] slice(x), slice={[3:8], [0:16]}\n"
        "  wide = f32[3,16] convert(first)\n  padded = f32[8,16] pad(wide, low), padding=0_5x0_0\n"
        "  other = f32[8,16] pad(second, low), padding=3_0x0_0\n  joined = f32[8,16] maximum(padded, other)\n"
        "  narrow = bf16[8,16] convert(joined)\n  a = bf16[8,16] reverse(narrow), dimensions={0}",
    )  # fmt: skip
    inputs = [_RANDOM.normal(size=size).astype(np.float32) for size in ((8, 16), (16, 8))]
    notes = _found(before, after, inputs).notes
    assert "without 3 roundings to fewer bits, which before does not have, nothing else differs" in notes
    found = _found(before, after.replace("shift = f32[] constant(1)", "shift = f32[] constant(2)"), inputs)
    assert found.findings[0].after.instruction == "r"


_SUMS = """HloModule before
add { a = bf16[] parameter(0) b = bf16[] parameter(1) ROOT c = bf16[] add(a, b) }
ENTRY e {
  x = bf16[24] parameter(0)
  z = bf16[] constant(0)
  ROOT r = bf16[24] reduce-window(x, z), window={size=24 pad=23_0}, to_apply=add
}"""
_SUMS_IN_TWO_LEVELS = """HloModule after
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  c = f32[] add(a, b)
  n = bf16[] convert(c)
  ROOT w = f32[] convert(n)
}
ENTRY e {
  x = bf16[24] parameter(0)
  z = f32[] constant(0)
  w = f32[24] convert(x)
  p = f32[32] pad(w, z), padding=0_8
  m = f32[2,16] reshape(p)
  c = f32[2,16] reduce-window(m, z), window={size=1x16 pad=0_0x15_0}, to_apply=add
  l = f32[2,1] slice(c), slice={[0:2], [15:16]}
  t = f32[3,1] reduce-window(l, z), window={size=2x1 pad=2_0x0_0}, to_apply=add
  s = f32[2,1] slice(t), slice={[0:2], [0:1]}
  v = f32[2] reshape(s)
  b = f32[2,16] broadcast(v), dimensions={0}
  u = f32[2,16] map(c, b), dimensions={0,1}, to_apply=add
  f = f32[32] reshape(u)
  g = f32[24] slice(f), slice={[0:24]}
  ROOT r = bf16[24] convert(g)
}"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", [0, 2, 10])
def test_a_change_that_makes_results_right_by_accident_shows_nothing(seed: int) -> None:
    """Cumulative sums in bf16, as XLA:CPU divides them: to round up the sum of a block gives the results of `before`."""
    found = diff_texts(_SUMS, _SUMS_IN_TWO_LEVELS, seed=seed)
    assert (found.verdict, found.findings) == ("rounding only", ())


_FACTOR = """HloModule m
ENTRY e {
  x = f32[64] parameter(0)
  y = f32[64] parameter(1)
  c = f32[64] parameter(2)
  s = f32[64] sine(c)
  o = f32[64] cosine(c)
  ss = f32[64] multiply(s, s)
  oo = f32[64] multiply(o, o)
  one = f32[64] add(ss, oo)
  r = f32[64] log(one)
  q = f32[64] exponential(r)
  xq = f32[64] multiply(x, q)
  d = f32[64] subtract(xq, y)
  z = f32[64] multiply(d, s)
  big = f32[64] multiply(y, y)
  ROOT out = f32[64] add(z, big)
}"""


def test_an_identity_may_be_further_off_than_the_roundings_on_the_way() -> None:
    """sin² + cos² is 1, but for what the module makes of it."""
    after = _FACTOR.replace("subtract(xq, y)", "subtract(x, y)")
    found = diff_texts(_FACTOR, after, seed=5)
    assert (found.verdict, found.findings) == ("rounding only", ())


def test_what_is_far_beyond_its_own_bound_is_to_blame_all_the_same() -> None:
    """A factor of 1.001 that a much larger term hides from the results, in which it is less than rounding may be."""
    text = """HloModule m
ENTRY e {
  x = f32[64] parameter(0)
  y = f32[64] parameter(1)
  k = f32[] constant(1.5)
  ks = f32[64] broadcast(k), dimensions={}
  d = f32[64] multiply(x, ks)
  t = f32[64] tanh(d)
  h = f32[] constant(3e4)
  hs = f32[64] broadcast(h), dimensions={}
  big = f32[64] multiply(y, hs)
  more = f32[64] add(big, hs)
  ROOT out = f32[64] add(t, more)
}"""
    found = hloexec.diff(hloexec.parse(text), hloexec.parse(text.replace("constant(1.5)", "constant(1.5005)")))
    assert found.outputs.agrees
    assert found.verdict == "differ"
    assert found.findings[0].is_certain
