"""Calls of modules whose shapes are yet to be refined are refused with what to do, before anything runs."""

from __future__ import annotations

import numpy as np
import pytest

import hloexec
from tests.text.building import op


@pytest.mark.parametrize(
    "target",
    [
        "stablehlo.dynamic_reduce_window",
        "stablehlo.dynamic_rng_bit_generator",
        "stablehlo.dynamic_top_k",
        "stablehlo.dynamic_approx_top_k",
        "dynamic_ducc_fft",
    ],
)
def test_operations_whose_sizes_are_values_are_refused(target: str) -> None:
    module = hloexec.parse(op(f'f32[4] custom-call(x, n), custom_call_target="{target}"', x="f32[4]", n="s32[1]"))
    with pytest.raises(hloexec.UnsupportedError, match="refine the shapes of the module"):
        hloexec.run(module, np.zeros(4, np.float32), np.zeros(1, np.int32))


def test_what_refinement_marks_is_handed_on() -> None:
    """StableHLO's refinement itself replaces the call by its first operand."""
    text = 'f32[4] custom-call(x, n), custom_call_target="stablehlo.shape_refinement_operand_wrapper"'
    x = np.arange(4, dtype=np.float32)
    assert (hloexec.run(hloexec.parse(op(text, x="f32[4]", n="s64[1]")), x, np.array([4])) == x).all()


def test_packed_nibbles_are_refused_in_a_sentence() -> None:
    text = (
        "s32[2,3] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}, "
        "operand_precision={packed_nibble,packed_nibble}"
    )
    module = hloexec.parse(op(text, x="s8[2,4]", y="s8[4,3]"))
    with pytest.raises(hloexec.HloError, match="each of its elements holds two numbers of four bits"):
        hloexec.run(module, np.ones((2, 4), np.int8), np.ones((4, 3), np.int8))
