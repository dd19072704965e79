"""Shape rules of dot: XLA infers the same shapes, and refuses the same operands."""

from __future__ import annotations

import re
from typing import Any

import pytest

from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.core.ir import ArrayShape
from hloexec.errors import ShapeError
from hloexec.ops.contraction.dot import Dot, DotAttributes
from tests.ops.contraction.products import MATMUL_TEXT

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
