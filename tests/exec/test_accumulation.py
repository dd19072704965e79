"""Matrices to which a loop adds products: several products at a time, and the same sums."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

import hloexec
from hloexec.exec.accumulation import accumulations_of
from hloexec.exec.code import sources
from hloexec.exec.compiling import code_of
from hloexec.exec.plan import While
from hloexec.exec.running import plan_of
from hloexec.ops.product_sums import ProductForm, ProductSum

TRIPS = 43
"""Neither a multiple of what is computed at a time, nor so few that the loop is walked."""

LOOP = """HloModule m
body {{ s = (s32[], f32[256,192], f32[43,{lhs}], f32[43,{rhs}]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  one = s32[] constant(1)
  zero = s32[] constant(0)
  n = s32[] add(i, one)
  sum = f32[256,192] get-tuple-element(s), index=1
  ls = f32[43,{lhs}] get-tuple-element(s), index=2
  rs = f32[43,{rhs}] get-tuple-element(s), index=3
  l1 = f32[1,{lhs}] dynamic-slice(ls, i, zero, zero), dynamic_slice_sizes={{1,{lhs}}}
  r1 = f32[1,{rhs}] dynamic-slice(rs, i, zero, zero), dynamic_slice_sizes={{1,{rhs}}}
  l = f32[{lhs}] reshape(l1)
  r = f32[{rhs}] reshape(r1)
  {step}
  ROOT t = (s32[], f32[256,192], f32[43,{lhs}], f32[43,{rhs}]) tuple(n, next, ls, rs) }}
condition {{ s = (s32[], f32[256,192], f32[43,{lhs}], f32[43,{rhs}]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  end = s32[] constant(43)
  ROOT less = pred[] compare(i, end), direction=LT }}
ENTRY e {{ start = f32[256,192] parameter(0)
  ls = f32[43,{lhs}] parameter(1)
  rs = f32[43,{rhs}] parameter(2)
  z = s32[] constant(0)
  s = (s32[], f32[256,192], f32[43,{lhs}], f32[43,{rhs}]) tuple(z, start, ls, rs)
  w = (s32[], f32[256,192], f32[43,{lhs}], f32[43,{rhs}]) while(s), condition=condition, body=body
  ROOT r = f32[256,192] get-tuple-element(w), index=1 }}
"""

GEMM = """next = f32[256,192] custom-call(l, r, sum), custom_call_target="__cublas$gemm", backend_config={"alpha_real":1,\
"alpha_imag":0,"beta":BETA,"epilogue":"DEFAULT","dot_dimension_numbers":{"lhs_contracting_dimensions":["0"],\
"rhs_contracting_dimensions":["0"],"lhs_batch_dimensions":[],"rhs_batch_dimensions":[]}}"""

ADDING = {
    "terms first": (
        "4,256",
        "4,192",
        "p = f32[256,192] dot(l, r), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n"
        "next = f32[256,192] add(sum, p)",
    ),
    "terms last": (
        "256,4",
        "192,4",
        "p = f32[256,192] dot(l, r), lhs_contracting_dims={1}, rhs_contracting_dims={1}\n"
        "next = f32[256,192] add(p, sum)",
    ),
    "of the product's transpose": (
        "4,192",
        "256,4",
        "p = f32[192,256] dot(l, r), lhs_contracting_dims={0}, rhs_contracting_dims={1}\n"
        "q = f32[256,192] transpose(p), dimensions={1,0}\nnext = f32[256,192] add(sum, q)",
    ),
    "gemm": ("4,256", "4,192", GEMM.replace("BETA", "1")),
}

OTHERS = {
    "a product that is read twice": (
        "p = f32[256,192] dot(l, r), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n"
        "q = f32[256,192] tanh(p)\nd = f32[256,192] add(sum, p)\nnext = f32[256,192] multiply(d, q)"
    ),
    "a sum that the loop reads": (
        "p = f32[256,192] dot(l, r), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n"
        "q = f32[256,192] tanh(sum)\nd = f32[256,192] add(q, p)\nnext = f32[256,192] add(sum, d)"
    ),
    "a difference": (
        "p = f32[256,192] dot(l, r), lhs_contracting_dims={0}, rhs_contracting_dims={0}\n"
        "next = f32[256,192] subtract(sum, p)"
    ),
    "a sum twice itself": "p = f32[256,192] add(sum, sum)\nnext = f32[256,192] negate(p)",
    "a gemm that scales": GEMM.replace("BETA", "2"),
}


def loop_of(module: hloexec.Module, numerics: str = "reference") -> While:
    plan = plan_of(module, numerics=numerics)
    return next(step.flow for step in plan.steps if isinstance(step.flow, While))


def whole_numbers(lhs: str, rhs: str) -> list[np.ndarray]:
    """Numbers whose sums no order rounds."""
    rng = np.random.default_rng(5)
    shapes = [(256, 192), *((TRIPS, *map(int, side.split(","))) for side in (lhs, rhs))]
    return [rng.integers(-8, 9, shape).astype(np.float32) for shape in shapes]


@pytest.mark.parametrize("name", ADDING)
def test_products_are_added_several_at_a_time(name: str) -> None:
    lhs, rhs, step = ADDING[name]
    module = hloexec.parse(LOOP.format(lhs=lhs, rhs=rhs, step=step))
    inputs = whole_numbers(lhs, rhs)
    start = inputs[0].copy()
    (found,) = accumulations_of(loop_of(module)).values()
    assert (found.form.rows, found.form.columns, found.form.terms) == (256, 192, 4) and found.form.group > 1
    assert "products at a time" in "".join(sources(code_of(plan_of(module))))
    result = hloexec.run(module, *inputs)
    np.testing.assert_array_equal(result, hloexec.run(module, *inputs, planner=False))
    left, right = (
        value.astype(np.int64).swapaxes(1, 2) if int(side.split(",")[0]) > 4 else value.astype(np.int64)
        for value, side in zip(inputs[1:], (lhs, rhs), strict=True)
    )
    total = np.einsum("tkm,tkn->mn" if name != "of the product's transpose" else "tkn,tkm->mn", left, right)
    np.testing.assert_array_equal(result, start + total)
    np.testing.assert_array_equal(inputs[0], start)


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_such_sum_is_computed_step_by_step(name: str) -> None:
    module = hloexec.parse(LOOP.format(lhs="4,256", rhs="4,192", step=OTHERS[name]))
    assert not accumulations_of(loop_of(module))
    inputs = [value / 64 for value in whole_numbers("4,256", "4,192")]
    np.testing.assert_array_equal(hloexec.run(module, *inputs), hloexec.run(module, *inputs, planner=False))


@pytest.mark.parametrize("numerics", ["exact", "tf32", "bf16"])
@pytest.mark.parametrize("name", ["terms first", "gemm"])
def test_policies_that_round_products_have_each_by_itself(numerics: str, name: str) -> None:
    lhs, rhs, step = ADDING[name]
    assert not accumulations_of(loop_of(hloexec.parse(LOOP.format(lhs=lhs, rhs=rhs, step=step)), numerics))


@pytest.mark.parametrize("name", ["terms first", "gemm"])
def test_products_of_narrower_operands_have_each_by_itself(name: str) -> None:
    """Products of bf16 that are added to f32: whole numbers, whose sums no order rounds."""
    lhs, rhs, step = ADDING[name]
    text = LOOP.format(lhs=lhs, rhs=rhs, step=step)
    for side in (lhs, rhs):
        for shape in (f"43,{side}", f"1,{side}", side):
            text = text.replace(f"f32[{shape}]", f"bf16[{shape}]")
    module = hloexec.parse(text)
    assert not accumulations_of(loop_of(module))
    start, *factors = whole_numbers(lhs, rhs)
    inputs = [start, *(factor.astype(ml_dtypes.bfloat16) for factor in factors)]
    result = hloexec.run(module, *inputs)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, start + np.einsum("tkm,tkn->mn", *factors))


def test_a_loop_that_never_goes_round_gives_what_it_is_given() -> None:
    lhs, rhs, step = ADDING["terms first"]
    text = LOOP.format(lhs=lhs, rhs=rhs, step=step).replace("end = s32[] constant(43)", "end = s32[] constant(0)")
    inputs = whole_numbers(lhs, rhs)
    np.testing.assert_array_equal(hloexec.run(hloexec.parse(text), *inputs), inputs[0])


def test_any_number_of_products_is_added_up() -> None:
    """43 sums of 3 products each, every element within the bound of any order of 130 summands: 129 · 2⁻²⁴ · Σ|x|."""
    rng = np.random.default_rng(3)
    form = ProductForm(5, 4, 3, turns_lhs=True, turns_rhs=False, dtype=np.dtype(np.float32))
    start = rng.standard_normal((5, 4), np.float32)
    pairs = [(rng.standard_normal((5, 3), np.float32), rng.standard_normal((3, 4), np.float32)) for _ in range(TRIPS)]
    for count in (0, 1, form.group - 1, form.group, TRIPS):
        products = ProductSum(form, start)
        for lhs, rhs in pairs[:count]:
            products.add(lhs, rhs)
        total = products.total()
        for row in range(5):
            for column in range(4):
                terms = [Fraction(float(start[row, column]))]
                for lhs, rhs in pairs[:count]:
                    terms += [
                        Fraction(float(a)) * Fraction(float(b)) for a, b in zip(lhs[row], rhs[:, column], strict=True)
                    ]
                error = abs(Fraction(float(total[row, column])) - sum(terms))
                assert error <= (len(terms) - 1 + 1) * Fraction(1, 1 << 24) * sum(map(abs, terms))
