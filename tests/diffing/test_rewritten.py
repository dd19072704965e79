"""Faults in modules whose steps were rewritten: other constants, other orders of elements, steps without counterparts."""

from typing import Any

import numpy as np
import pytest

import hloexec

_X = np.random.default_rng(5).normal(size=(4, 6)).astype(np.float32)
_W = np.random.default_rng(6).normal(size=(4, 3, 5)).astype(np.float32)


def _diff(before: str, after: str, *inputs: Any) -> hloexec.Diff:
    modules = [hloexec.parse(f"HloModule m\n\n{text}") for text in (before, after)]
    found = hloexec.diff(*modules, list(inputs))
    assert found.verdict == "differ"
    return found


def _first(before: str, after: str, *inputs: Any) -> str:
    return _diff(before, after, *inputs).findings[0].after.instruction


def test_another_constant_on_another_value_is_a_step_that_was_rewritten() -> None:
    before = """ENTRY main {
  x = f32[4,6] parameter(0)
  y = f32[4,6] sine(x)
  one = f32[] constant(1)
  ones = f32[4,6] broadcast(one), dimensions={}
  lower = f32[4,6] subtract(y, ones)
  three = f32[] constant(3)
  threes = f32[4,6] broadcast(three), dimensions={}
  higher = f32[4,6] add(lower, threes)
  ROOT r = f32[4,6] exponential(higher)
}"""
    after = """ENTRY main {
  x = f32[4,6] parameter(0)
  y = f32[4,6] cosine(x)
  two = f32[] constant(2)
  twos = f32[4,6] broadcast(two), dimensions={}
  higher = f32[4,6] add(y, twos)
  ROOT r = f32[4,6] exponential(higher)
}"""
    assert _first(before, after, _X) == "y"


def test_values_that_are_alike_by_accident_are_paired_by_how_they_are_computed() -> None:
    """All of one predicate and, wrongly, all of the other are true."""
    before = """ENTRY main {
  x = f32[4,6] parameter(0)
  low = f32[] constant(-100)
  lows = f32[4,6] broadcast(low), dimensions={}
  high = f32[] constant(0.5)
  highs = f32[4,6] broadcast(high), dimensions={}
  above = pred[4,6] compare(x, lows), direction=GT
  y = f32[4,6] sine(x)
  below = pred[4,6] compare(y, highs), direction=LT
  both = pred[4,6] and(above, below)
  ROOT r = f32[4,6] select(both, x, lows)
}"""
    assert _first(before, before.replace("sine(x)", "tanh(lows)"), _X) == "y"


def test_a_product_whose_operands_are_both_permuted_is_computed_with_one_in_other_orders() -> None:
    before = """ENTRY main {
  x = f32[2,4,3] parameter(0)
  w = f32[4,3,5] parameter(1)
  y = f32[2,4,3] sine(x)
  z = f32[4,3,5] cosine(w)
  ROOT r = f32[2,5] dot(y, z), lhs_contracting_dims={1,2}, rhs_contracting_dims={0,1}
}"""
    after = """ENTRY main {
  x = f32[2,4,3] parameter(0)
  w = f32[4,3,5] parameter(1)
  y = f32[2,4,3] sine(x)
  z = f32[4,3,5] cosine(w)
  turned = f32[2,3,4] transpose(y), dimensions={0,2,1}
  rows = f32[2,12] reshape(turned)
  moved = f32[3,4,5] transpose(z), dimensions={1,0,2}
  columns = f32[12,5] reshape(moved)
  ROOT r = f32[2,5] dot(rows, columns), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}"""
    inputs = _X.reshape(2, 4, 3), _W
    agree = hloexec.diff(
        hloexec.parse(f"HloModule m\n\n{before}"), hloexec.parse(f"HloModule m\n\n{after}"), list(inputs)
    )
    assert agree.verdict != "differ"
    # What lies in memory is read in other dimensions, not transposed.
    wrong = after.replace("transpose(z), dimensions={1,0,2}", "reshape(z)")
    found = _diff(before, wrong, *inputs).findings[0]
    assert "moved" in {found.after.instruction, *(run.instruction for run in found.region)}


def test_a_value_that_is_right_in_itself_is_not_blamed_for_its_use() -> None:
    """The quotient is right; what rounds it is not."""
    before = """ENTRY main {
  x = f32[4,6] parameter(0)
  tenth = f32[] constant(0.1)
  tenths = f32[4,6] broadcast(tenth), dimensions={}
  quotient = f32[4,6] divide(x, tenths)
  rounded = f32[4,6] round-nearest-even(quotient)
  low = f32[] constant(-7)
  lows = f32[4,6] broadcast(low), dimensions={}
  high = f32[] constant(7)
  highs = f32[4,6] broadcast(high), dimensions={}
  kept = f32[4,6] maximum(rounded, lows)
  ROOT r = f32[4,6] minimum(kept, highs)
}"""
    after = """ENTRY main {
  x = f32[4,6] parameter(0)
  tenth = f32[] constant(0.1)
  tenths = f32[4,6] broadcast(tenth), dimensions={}
  quotient = f32[4,6] divide(x, tenths)
  rounded = f32[4,6] floor(quotient)
  low = f32[] constant(-7)
  high = f32[] constant(7)
  ROOT r = f32[4,6] clamp(low, rounded, high)
}"""
    finding = _diff(before, after, _X).findings[0]
    assert finding.after.instruction == "rounded"
    assert "round-nearest" in finding.reason


def test_changes_that_do_the_same_are_all_listed() -> None:
    """Its negation left out, or the operands of the difference exchanged: nothing tells which was meant."""
    before = """ENTRY main {
  x = f32[4,6] parameter(0)
  y = f32[4,6] sine(x)
  z = f32[4,6] multiply(y, y)
  s = f32[4,6] subtract(x, z)
  ROOT r = f32[4,6] exponential(s)
}"""
    after = """ENTRY main {
  x = f32[4,6] parameter(0)
  y = f32[4,6] sine(x)
  z = f32[4,6] multiply(y, y)
  d = f32[4,6] subtract(z, x)
  one = f32[] constant(1)
  ones = f32[4,6] broadcast(one), dimensions={}
  m = f32[4,6] multiply(d, ones)
  ROOT r = f32[4,6] exponential(m)
}"""
    finding = _diff(before, after, _X).findings[0]
    assert "d" in {finding.after.instruction, *(run.instruction for run in finding.region)}


def test_the_user_of_a_value_that_lacks_a_step_is_to_blame_though_others_use_it_rightly() -> None:
    before = """ENTRY main {
  x = f32[4,6] parameter(0)
  table = f32[4,6] rsqrt(x)
  first = f32[2,6] slice(table), slice={[0:2], [0:6]}
  second = f32[2,6] slice(table), slice={[2:4], [0:6]}
  mask = f32[2,6] sine(first)
  kept = f32[2,6] multiply(first, mask)
  moved = f32[2,6] multiply(kept, second)
  least = f32[2,6] tanh(first)
  ROOT r = f32[2,6] add(moved, least)
}"""
    after = """ENTRY main {
  x = f32[4,6] parameter(0)
  table = f32[4,6] rsqrt(x)
  second = f32[2,6] slice(table), slice={[2:4], [0:6]}
  first = f32[2,6] slice(table), slice={[0:2], [0:6]}
  moved = f32[2,6] multiply(first, second)
  again = f32[2,6] slice(table), slice={[0:2], [0:6]}
  least = f32[2,6] tanh(again)
  ROOT r = f32[2,6] add(moved, least)
}"""
    assert _first(before, after, np.abs(_X)) == "moved"


def test_operands_of_a_comparison_pair_up_where_a_value_is_the_number_it_is_compared_with() -> None:
    before = """ENTRY main {
  n = s32[] parameter(0)
  seven = s32[] constant(7)
  rest = s32[] remainder(n, seven)
  zero = s32[] constant(0)
  is_whole = pred[] compare(rest, zero), direction=EQ
  ROOT r = s32[] select(is_whole, n, seven)
}"""
    after = """ENTRY main {
  n = s32[] parameter(0)
  six = s32[] constant(6)
  rest = s32[] remainder(n, six)
  zero = s32[] constant(0)
  is_whole = pred[] compare(zero, rest), direction=EQ
  seven = s32[] constant(7)
  ROOT r = s32[] select(is_whole, n, seven)
}"""
    assert _first(before, after, np.int32(21)) in ("rest", "six")


def test_a_step_that_does_nothing_may_be_what_another_opcode_needs() -> None:
    before = """ENTRY main {
  x = f32[4,6] parameter(0)
  n = f32[] parameter(1)
  ns = f32[4,6] broadcast(n), dimensions={}
  ROOT r = f32[4,6] divide(x, ns)
}"""
    after = """ENTRY main {
  x = f32[4,6] parameter(0)
  n = f32[] parameter(1)
  one = f32[] constant(1)
  inverse = f32[] divide(n, one)
  inverses = f32[4,6] broadcast(inverse), dimensions={}
  ROOT r = f32[4,6] multiply(x, inverses)
}"""
    finding = _diff(before, after, _X, np.float32(2.5)).findings[0]
    assert "inverse" in {finding.after.instruction, *(run.instruction for run in finding.region)}


_TWICE_ROUNDED = """HloModule m
ENTRY main {
  a = f32[4,16] parameter(0)
  b = f32[4,16] parameter(1)
  x = f32[4,16] multiply(a, b)
  size = f32[4,16] abs(x)
  root = f32[4,16] sqrt(size)
  square = f32[4,16] multiply(root, root)
  log = f32[4,16] log(size)
  power = f32[4,16] exponential(log)
  part = f32[4,8] slice(USED), slice={[0:4], [4:12]}
  ROOT r = f32[8,4] transpose(part), dimensions={1,0}
}
"""


def test_what_is_not_rounded_again_may_be_off_by_what_before_rounds() -> None:
    """XLA makes x of √x · √x; both have x, and neither is wrong."""
    inputs = [np.random.default_rng(seed).normal(size=(4, 16)).astype(np.float32) for seed in (0, 1)]
    modules = {name: hloexec.parse(_TWICE_ROUNDED.replace("USED", name)) for name in ("size", "square", "power")}
    for name in ("square", "power"):
        assert hloexec.diff(modules[name], modules["size"], inputs).verdict == "rounding only"
    # What changes more than roundings do is found.
    text = _TWICE_ROUNDED.replace("exponential(log)", "multiply(size, c)")
    constant = "  f = f32[] constant(1.000001)\n  c = f32[4,16] broadcast(f), dimensions={}\n  power ="
    scaled = hloexec.parse(text.replace("  power =", constant).replace("USED", "power"))
    assert hloexec.diff(scaled, modules["size"], inputs).verdict == "differ"


_RNG = np.random.default_rng(0)
_INPUTS = [_RNG.normal(size=shape).astype(np.float32) for shape in ((6, 8), (8, 8), (8, 8), (8, 8), (8,))]
_PROGRAM = """HloModule m
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
ENTRY main {
  x0 = f32[6,8] parameter(0)
  w = f32[8,8] parameter(1)
  v = f32[8,8] parameter(2)
  u = f32[8,8] parameter(3)
  gain = f32[8] parameter(4)
  zero = f32[] constant(0)
  c = f32[] constant(0.35)
  small = f32[] constant(0.01)
  gains = f32[6,8] broadcast(gain), dimensions={1}
  smalls = f32[6] broadcast(small), dimensions={}
  LAYERS
  ROOT r = (f32[6,8], f32[6,8]) tuple(y1, x2)
}
"""
_BY_ROWS = "lhs_contracting_dims={1}, rhs_contracting_dims={1}"
_BY_COLUMNS = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
_LAYER = f"""squares# = f32[6,8] multiply(x#, x#)
  sums# = f32[6] reduce(squares#, zero), dimensions={{1}}, to_apply=add
  var# = f32[6] add(sums#, smalls)
  NORM
  q# = f32[6,8] dot(scaled#, w), {_BY_COLUMNS}
  k# = f32[6,8] dot(KEY#, v), {_BY_COLUMNS}
  h# = f32[6,8] dot(VALUE#, u), {_BY_COLUMNS}
  SCORES
  e# = f32[6,6] exponential(scores#)
  all# = f32[6] reduce(e#, zero), dimensions={{1}}, to_apply=add
  alls# = f32[6,6] broadcast(all#), dimensions={{0}}
  parts# = f32[6,6] divide(e#, alls#)
  o# = f32[6,8] dot(parts#, h#), {_BY_COLUMNS}
  y# = f32[6,8] add(REST#, o#)
  x@ = f32[6,8] tanh(y#)
  """
_AS_WRITTEN = {
    "NORM": """root# = f32[6] rsqrt(var#)
  roots# = f32[6,8] broadcast(root#), dimensions={0}
  unit# = f32[6,8] multiply(x#, roots#)
  scaled# = f32[6,8] multiply(unit#, gains)""",
    "SCORES": f"""product# = f32[6,6] dot(q#, k#), {_BY_ROWS}
  factors# = f32[6,6] broadcast(c), dimensions={{}}
  scores# = f32[6,6] multiply(product#, factors#)""",
    "KEY": "scaled",
    "VALUE": "scaled",
    "REST": "x",
}
_CHANGES = {
    "a root divided by": {
        "NORM": """root# = f32[6] sqrt(var#)
  roots# = f32[6,8] broadcast(root#), dimensions={0}
  unit# = f32[6,8] divide(x#, roots#)
  scaled# = f32[6,8] multiply(unit#, gains)"""
    },
    "factors in another order": {
        "NORM": """root# = f32[6] rsqrt(var#)
  roots# = f32[6,8] broadcast(root#), dimensions={0}
  half# = f32[6,8] multiply(gains, roots#)
  scaled# = f32[6,8] multiply(half#, x#)"""
    },
    "a factor moved before a product": {
        "SCORES": f"""factors# = f32[6,8] broadcast(c), dimensions={{}}
  less# = f32[6,8] multiply(q#, factors#)
  scores# = f32[6,6] dot(less#, k#), {_BY_ROWS}"""
    },
    "operands negated twice": {
        "SCORES": f"""minus# = f32[6,8] negate(q#)
  other# = f32[6,8] negate(k#)
  product# = f32[6,6] dot(minus#, other#), {_BY_ROWS}
  factors# = f32[6,6] broadcast(c), dimensions={{}}
  scores# = f32[6,6] multiply(product#, factors#)"""
    },
}
_BUGS = {
    "keys of what is not scaled": ({"KEY": "unit"}, "k"),
    "values of what is not scaled": ({"VALUE": "unit"}, "h"),
    "added to what is scaled": ({"REST": "scaled"}, "y"),
}


def _found(*changes: dict[str, str]) -> hloexec.Diff:
    """What a diff says of the program with some parts of its layers changed."""
    texts = []
    for each in ((), changes):
        layer = _LAYER
        for parts in (*reversed(each), _AS_WRITTEN):
            for name, part in parts.items():
                layer = layer.replace(name, part)
        layers = [layer.replace("#", str(number)).replace("@", str(number + 1)) for number in range(2)]
        texts.append(_PROGRAM.replace("LAYERS", "".join(layers)))
    before, after = map(hloexec.parse, texts)
    return hloexec.diff(before, after, [*_INPUTS])


@pytest.mark.parametrize("change", _CHANGES)
def test_a_harmless_change_alone_is_none(change: str) -> None:
    assert _found(_CHANGES[change]).verdict in ("agree", "rounding only")


_BESIDE = [
    (bug, change)
    for bug, (part, _) in _BUGS.items()
    for change in (None, *_CHANGES)
    if change is None or "unit" not in part.values() or "unit# " in _CHANGES[change].get("NORM", "unit# ")
]


@pytest.mark.parametrize(("bug", "change"), _BESIDE)
def test_a_bug_beside_a_harmless_change_is_named(bug: str, change: str | None) -> None:
    part, name = _BUGS[bug]
    found = _found(part, *([_CHANGES[change]] if change else []))
    assert found.verdict == "differ"
    assert found.findings[0].after.instruction in (f"{name}0", f"{name}1")
