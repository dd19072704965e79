"""Faults in the middle of many blocks that follow one another: behind them, bounds grow until they allow anything."""

from __future__ import annotations

import pytest

import hloexec

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
def test_a_fault_whose_effect_rounding_behind_it_explains_is_not_told() -> None:
    """Rounding alone moves the results as far: its bound over 40 blocks is as large as the difference."""
    found = hloexec.diff(_module(100), _module(100, 60, _TRANSPOSED))
    assert found.verdict == "rounding only" and not found.findings
