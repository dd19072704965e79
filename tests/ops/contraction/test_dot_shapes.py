"""Shape rules of dot are XLA's; contractions of sparse and scaled operands are refused before anything runs."""

import re
from typing import Any

import pytest

import hloexec
from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.core.ir import ArrayShape
from hloexec.errors import ShapeError
from hloexec.ops.contraction.dot import Dot, DotAttributes
from tests.ops.contraction.products import MATMUL_TEXT
from tests.text.building import module, op

WRONG_DOTS = [
    ("f32[2,3]", "f32[4,4]", MATMUL_TEXT),
    ("f32[2,3]", "f32[3,4]", "lhs_contracting_dims={1}, rhs_contracting_dims={2}"),
    ("f32[2,3]", "f32[3,4]", "lhs_contracting_dims={-1}, rhs_contracting_dims={0}"),
    ("f32[2,3]", "f32[3,4]", "lhs_contracting_dims={1}, rhs_contracting_dims={}"),
    ("f32[2,3,3]", "f32[3,3,4]", "lhs_contracting_dims={1,1}, rhs_contracting_dims={0,1}"),
    (
        "f32[2,3]",
        "f32[2,3]",
        "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={0,1}, rhs_contracting_dims={0,1}",
    ),
    (
        "f32[2,3]",
        "f32[5,3]",
        "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={1}, rhs_contracting_dims={1}",
    ),
    ("f32[2,3]", "f32[2,3]", "lhs_batch_dims={0}, lhs_contracting_dims={1}, rhs_contracting_dims={1}"),
    ("f32[2,<=3]", "f32[<=4,4]", MATMUL_TEXT),
    ("(f32[],f32[])", "f32[3,4]", "lhs_contracting_dims={}, rhs_contracting_dims={}"),
]
RIGHT_DOTS = [
    ("f32[2,3]", "f32[3,4]", MATMUL_TEXT),
    ("f32[3,2,4]", "f32[2,5,3,4]", "lhs_batch_dims={1,0}, rhs_batch_dims={0,2}, lhs_contracting_dims={2}, rhs_contracting_dims={3}"),
    ("f32[<=2,3]", "f32[3,4]", MATMUL_TEXT),
    ("f32[2,<=3]", "f32[3,4]", MATMUL_TEXT),
    ("f32[2,3]", "f32[?,4]", MATMUL_TEXT),
    ("f32[?,3,4]", "f32[<=2,4,5]", "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}"),
    ("f32[2,3,4]", "f32[<=2,4,5]", "lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1}"),
    ("f32[]", "f32[3,4]", "lhs_contracting_dims={}, rhs_contracting_dims={}"),
]  # fmt: skip


def inferred_by_xla(lhs: str, rhs: str, attributes: str) -> str | None:
    """XLA infers the shape of an instruction that leaves it out; None where it refuses."""
    _hlo = pytest.importorskip("jaxlib._hlo")
    text = f"HloModule m\n\nENTRY e {{\n  a = {lhs} parameter(0)\n  b = {rhs} parameter(1)\n  ROOT r = dot(a, b), {attributes}\n}}\n"
    try:
        printed = _hlo.hlo_module_from_text(text).to_string()
    except Exception:
        return None
    return re.search(r"ROOT %r\S* = (\S+?)(\{\S*)? dot\(", printed)[1]


def shapes_of(lhs: str, rhs: str, attributes: str) -> tuple[Any, Any, DotAttributes]:
    from hloexec.language.text import parse

    text = f"HloModule m\n\nENTRY e {{\n  a = {lhs} parameter(0)\n  b = {rhs} parameter(1)\n  ROOT r = f32[] dot(a, b), {attributes}\n}}\n"
    entry = parse(text).entry
    return entry.by_name["a"].shape, entry.by_name["b"].shape, entry.root.attributes


@pytest.mark.parametrize(("lhs", "rhs", "attributes"), WRONG_DOTS)
def test_a_dot_that_xla_refuses_is_refused(lhs, rhs, attributes):
    assert inferred_by_xla(lhs, rhs, attributes) is None
    left, right, numbers = shapes_of(lhs, rhs, attributes)
    with pytest.raises(ShapeError):
        Dot.infer(left, right, attributes=numbers, shape=ArrayShape(ELEMENT_TYPES["f32"]))


@pytest.mark.parametrize(("lhs", "rhs", "attributes"), RIGHT_DOTS)
def test_the_shape_of_a_dot_is_the_one_that_xla_infers(lhs, rhs, attributes):
    left, right, numbers = shapes_of(lhs, rhs, attributes)
    inferred = Dot.infer(left, right, attributes=numbers, shape=ArrayShape(ELEMENT_TYPES["f32"]))
    assert str(inferred) == inferred_by_xla(lhs, rhs, attributes)


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
