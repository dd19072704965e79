"""Contractions of sparse and scaled operands are refused before anything runs, with what keeps them from running."""

from __future__ import annotations

import pytest

import hloexec
from tests.text.building import module, op

_DOT = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
_SPARSE = "sparsity_config={rhs={sparsity=1x2 dimension=0 stride=1 idx=2}}"
_SCALED = "block_scaling_config={lhs={scale_idx=2 strides=1x2 steps=1x1}}"


@pytest.mark.parametrize(
    ("instruction", "reason"),
    [
        (f"f32[2,3] dot(a, b, i), {_DOT}, {_SPARSE}", "sparsity_config"),
        (f"f32[2,3] dot(a, b, i), {_DOT}, {_SCALED}", "block_scaling_config"),
        (f"f32[2,3] convolution(a, b, i), dim_labels=bf_io->bf, {_SCALED}", "block_scaling_config"),
        ("f32[2,3] convolution(a, b), dim_labels=bf_io->bf, " + _SPARSE.replace(" idx=2", ""), "sparsity_config"),
        (
            "f32[2,3] convolution(a, b), dim_labels=bf_io->bf, operand_precision={packed_nibble,default}",
            "packed_nibble",
        ),
        (f"f32[2,3] dot(a, b), {_DOT}, operand_precision={{default,packed_nibble}}", "packed_nibble"),
        (f"f32[2,3] dot(a, b, i), {_DOT}", "behind lhs and rhs"),
    ],
)
def test_contractions_of_compressed_operands_are_refused_with_a_reason(instruction: str, reason: str) -> None:
    text = op(instruction, a="f32[2,4]", b="f32[4,3]", i="s8[2,2]")
    found = hloexec.parse(text)
    hloexec.verify(found)
    inputs = hloexec.random_inputs(found, seed=0)
    for options in ({}, {"planner": False}):
        with pytest.raises(hloexec.UnsupportedError, match=f"first: %root .*where .*{reason}"):
            hloexec.run(found, *inputs, **options)


def test_a_sparse_dot_of_older_text_is_refused_with_a_reason() -> None:
    text = op(f"f32[2,3] dot(a, b, i), {_DOT}, sparsity=L.1@2:4", a="f32[2,8]", b="f32[16,3]", i="u16[2,1]")
    with pytest.warns(hloexec.HloWarning, match="'sparsity' of dot"):
        found = hloexec.parse(text)
    with pytest.raises(hloexec.UnsupportedError, match="behind lhs and rhs"):
        hloexec.run(found, *hloexec.random_inputs(found, seed=0))


def test_a_contraction_that_does_not_run_is_no_obstacle_where_it_is_not_needed() -> None:
    text = module(
        f"""a = f32[2,4] parameter(0)
        b = f32[4,3] parameter(1)
        unused = f32[2,3] dot(a, b), {_DOT}, operand_precision={{packed_nibble,default}}
        ROOT n = f32[2,4] negate(a)"""
    )
    found = hloexec.parse(text)
    a, b = hloexec.random_inputs(found, seed=0)
    assert (hloexec.run(found, a, b) == -a).all()
