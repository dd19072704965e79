"""Wrong instructions that give, by chance, what the right program has elsewhere."""

import numpy as np
import pytest

import hloexec

_HEAD = """HloModule m

ENTRY main {
  x = f32[4,6] parameter(0)
  y = f32[6] parameter(1)
"""

_HEADS = """
  first = f32[1,6] slice(x), slice={[0:1], [0:6]}
  second = f32[1,6] slice(x), slice={[1:2], [0:6]}
  one = f32[6] reshape(first)
  two = f32[6] reshape(second)
  a = f32[6] multiply(one, y)
  b = f32[6] add(two, y)
  ROOT result = (f32[6], f32[6]) tuple(a, b)
}
"""

_ANGLES = """
  c = f32[6] cosine(y)
  s = f32[6] sine(y)
  cs = f32[4,6] broadcast(c), dimensions={1}
  ss = f32[4,6] broadcast(s), dimensions={1}
  a = f32[4,6] multiply(x, cs)
  b = f32[4,6] multiply(x, ss)
  ROOT result = (f32[4,6], f32[4,6]) tuple(a, b)
}
"""

_COUNTS = """
  rows = s32[4,4] iota(), iota_dimension=0
  columns = s32[4,4] iota(), iota_dimension=1
  below = pred[4,4] compare(rows, columns), direction=GE
  square = f32[4,4] slice(x), slice={[0:4], [0:4]}
  zero = f32[] constant(0)
  zeros = f32[4,4] broadcast(zero), dimensions={}
  masked = f32[4,4] select(below, square, zeros)
  late = s32[4,4] add(columns, columns)
  ROOT result = (f32[4,4], s32[4,4]) tuple(masked, late)
}
"""


@pytest.mark.parametrize(
    ("body", "right", "wrong", "blamed"),
    [
        (_HEADS, "[0:1], [0:6]", "[1:2], [0:6]", "first"),
        (_ANGLES, "cosine(y)", "sine(y)", "c"),
        (_COUNTS, "iota_dimension=0", "iota_dimension=1", "rows"),
        (_COUNTS, "direction=GE", "direction=GT", "below"),
    ],
)
def test_value_that_another_instruction_has_is_still_wrong(body: str, right: str, wrong: str, blamed: str) -> None:
    assert body.count(right) == 1
    generator = np.random.default_rng(0)
    inputs = [generator.normal(size=size).astype(np.float32) for size in ((4, 6), (6,))]
    found = hloexec.diff(hloexec.parse(_HEAD + body), hloexec.parse(_HEAD + body.replace(right, wrong)), inputs)
    assert found.verdict == "differ"
    assert found.findings[0].after.instruction == blamed


def test_values_of_other_iterations_are_not_taken_for_this_one_s() -> None:
    """A loop that converges: its last iterations give the same numbers but for rounding."""
    loop = """HloModule m

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT sum = f32[] add(a, b)
}

body {
  state = (s32[], f32[32,32], f32[32]) parameter(0)
  count = s32[] get-tuple-element(state), index=0
  one = s32[] constant(1)
  next = s32[] add(count, one)
  matrix = f32[32,32] get-tuple-element(state), index=1
  place = f32[32] get-tuple-element(state), index=2
  MOVED
  ROOT result = (s32[], f32[32,32], f32[32]) tuple(next, matrix, moved)
}

condition {
  state = (s32[], f32[32,32], f32[32]) parameter(0)
  count = s32[] get-tuple-element(state), index=0
  bound = s32[] constant(60)
  ROOT more = pred[] compare(count, bound), direction=LT
}

ENTRY main {
  matrix = f32[32,32] parameter(0)
  place = f32[32] parameter(1)
  zero = s32[] constant(0)
  state = (s32[], f32[32,32], f32[32]) tuple(zero, matrix, place)
  end = (s32[], f32[32,32], f32[32]) while(state), condition=condition, body=body
  ROOT result = f32[32] get-tuple-element(end), index=2
}
"""
    once = "moved = f32[32] dot(matrix, place), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    summed = """places = f32[32,32] broadcast(place), dimensions={1}
  parts = f32[32,32] multiply(matrix, places)
  turned = f32[32,32] reverse(parts), dimensions={1}
  nothing = f32[] constant(0)
  moved = f32[32] reduce(turned, nothing), dimensions={1}, to_apply=add"""
    weights = np.random.default_rng(0).uniform(0.5, 1, (32, 32)).astype(np.float32)
    matrix = weights / weights.sum(0)
    place = np.full(32, 1 / 32, np.float32)
    sides = [hloexec.parse(loop.replace("MOVED", moved)) for moved in (once, summed)]
    assert hloexec.diff(*sides, [matrix, place]).verdict == "rounding only"


_SUM = """HloModule deep

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT both = f32[] add(a, b)
}

"""
_BLOCK = """
  product.K = f32[8,8] dot(x.K, weights), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  bent.K = f32[8,8] tanh(product.K)
  added.K = f32[8,8] add(x.K, bent.K)
  square.K = f32[8,8] multiply(added.K, added.K)
  power.K = f32[8] reduce(square.K, zero), dimensions={1}, to_apply=sum
  safe.K = f32[8] add(power.K, small)
  scale.K = f32[8] rsqrt(safe.K)
  scales.K = f32[8,8] broadcast(scale.K), dimensions={0}
  x.NEXT = f32[8,8] multiply(added.K, scales.K)"""


def _module(blocks: int, faulty: int | None = None, fault: tuple[str, str] = ("", "")) -> hloexec.Module:
    lines = ["ENTRY main {", "  x.0 = f32[8,8] parameter(0)", "  weights = f32[8,8] parameter(1)"]
    lines += ["  zero = f32[] constant(0)", "  eps = f32[] constant(1e-05)"]
    lines += ["  small = f32[8] broadcast(eps), dimensions={}"]
    for number in range(blocks):
        block = _BLOCK.replace(*fault) if number == faulty else _BLOCK
        lines.append(block.replace("NEXT", str(number + 1)).replace("K", str(number)))
    return hloexec.parse(_SUM + "\n".join([*lines, f"  ROOT out = f32[8,8] copy(x.{blocks})", "}"]))


_TRANSPOSED = ("rhs_contracting_dims={0}", "rhs_contracting_dims={1}")
_DIVIDED = ("multiply(added.K, scales.K)", "divide(added.K, scales.K)")


@pytest.mark.slow
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("blocks", "faulty", "fault", "culprit"),
    [
        (60, 12, _TRANSPOSED, "product.12"),
        (100, 9, _DIVIDED, "x.10"),
    ],
)
def test_the_instruction_is_found_however_many_blocks_follow(
    blocks: int, faulty: int, fault: tuple[str, str], culprit: str
) -> None:
    found = hloexec.diff(_module(blocks), _module(blocks, faulty, fault))
    assert found.verdict == "differ"
    assert [finding.after.instruction for finding in found.findings] == [culprit]
    # For x / √y, x · √y may be meant, or x / (1/√y): the one or the other is wrong for certain.
    assert found.findings[0].is_certain == (fault is _TRANSPOSED)


def test_blocks_that_round_otherwise_are_no_fault() -> None:
    rounded = ("multiply(added.K, scales.K)", "multiply(scales.K, added.K)")
    summed = (
        "power.K = f32[8] reduce(square.K, zero), dimensions={1}",
        "power.K = f32[8] reduce(turned.K, zero), dimensions={0}",
    )
    turned = _BLOCK.replace(*rounded).replace(*summed)
    turned = turned.replace("  power.K", "  turned.K = f32[8,8] transpose(square.K), dimensions={1,0}\n  power.K")
    found = hloexec.diff(_module(60), _module(60, 30, (_BLOCK, turned)))
    assert found.verdict in ("agree", "rounding only")
    assert not found.findings


@pytest.mark.slow
def test_nothing_but_the_fault_is_blamed_where_rounding_behind_it_may_explain_its_effect() -> None:
    """Rounding over 40 blocks moves the results about as far as the fault; how far depends on the processor."""
    found = hloexec.diff(_module(100), _module(100, 60, _TRANSPOSED))
    outcome = found.verdict, [finding.after.instruction for finding in found.findings]
    assert outcome in (("rounding only", []), ("differ", ["product.60"]))
