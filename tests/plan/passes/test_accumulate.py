"""Products that are added to carried matrices: added where these lie, with the bits of the two steps."""

import re

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from hloexec.core.ir import ArrayShape, Instruction
from hloexec.engine.exec.running import plan_of
from hloexec.engine.plan.kernels import NO_SLOT
from hloexec.engine.plan.memory import entry_peak_bytes
from hloexec.engine.plan.steps import Plan, While
from tests.plan.ways import thread_count

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


def body_of(module: hloexec.Module, numerics: str = "reference") -> Plan:
    plan = plan_of(module, numerics=numerics)
    return next(step.flow.body for step in plan.steps if isinstance(step.flow, While))


def is_accumulated(module: hloexec.Module, numerics: str = "reference") -> bool:
    """Whether one step takes the product's operands and the carried matrix, and may write to that."""
    (step,) = (step for step in body_of(module, numerics).steps if step.instruction.name == "next")
    return len(step.operands) == 3 and step.reused != NO_SLOT


def whole_numbers(lhs: str, rhs: str) -> list[np.ndarray]:
    """Numbers whose sums no order rounds."""
    rng = np.random.default_rng(5)
    shapes = [(256, 192), *((TRIPS, *map(int, side.split(","))) for side in (lhs, rhs))]
    return [rng.integers(-8, 9, shape).astype(np.float32) for shape in shapes]


def fractions(lhs: str, rhs: str) -> list[np.ndarray]:
    """Numbers whose sums and products are rounded."""
    rng = np.random.default_rng(6)
    shapes = [(256, 192), *((TRIPS, *map(int, side.split(","))) for side in (lhs, rhs))]
    return [rng.standard_normal(shape, np.float32) for shape in shapes]


@pytest.mark.parametrize("name", ADDING)
def test_products_are_added_in_place_to_the_same_bits(name: str) -> None:
    lhs, rhs, step = ADDING[name]
    module = hloexec.parse(LOOP.format(lhs=lhs, rhs=rhs, step=step))
    assert is_accumulated(module)
    for inputs in (whole_numbers(lhs, rhs), fractions(lhs, rhs)):
        start = inputs[0].copy()
        expected = hloexec.run(module, *inputs, planner=False)
        for _ in range(2):
            assert hloexec.run(module, *inputs).tobytes() == expected.tobytes()
        assert_array_equal(inputs[0], start)


@pytest.mark.parametrize("name", ADDING)
def test_sums_of_products_are_exact(name: str) -> None:
    lhs, rhs, step = ADDING[name]
    inputs = whole_numbers(lhs, rhs)
    left, right = (
        value.astype(np.int64).swapaxes(1, 2) if int(side.split(",")[0]) > 4 else value.astype(np.int64)
        for value, side in zip(inputs[1:], (lhs, rhs), strict=True)
    )
    total = np.einsum("tkm,tkn->mn" if name != "of the product's transpose" else "tkn,tkm->mn", left, right)
    result = hloexec.run(hloexec.parse(LOOP.format(lhs=lhs, rhs=rhs, step=step)), *inputs)
    assert_array_equal(result, inputs[0] + total)


@pytest.mark.slow_cases("LT-of the product's transpose", "NE-of the product's transpose", "NE-gemm", "NE-terms first")
@pytest.mark.parametrize("name", ADDING)
@pytest.mark.parametrize("direction", ["LT", "NE"])
def test_products_that_wait_for_one_another_leave_the_same_bits(name: str, direction: str) -> None:
    """A sum that does not stay in the cache, of products of few terms; of NE-loops, the first iterations are walked."""
    sizes = {"256": "1024", "192": "513", "4": "16"}
    lhs, rhs, step = (re.sub(r"\b(256|192|4)\b", lambda found: sizes[found[0]], part) for part in ADDING[name])
    text = re.sub(r"\b(256|192)\b", lambda found: sizes[found[0]], LOOP).format(lhs=lhs, rhs=rhs, step=step)
    module = hloexec.parse(text.replace("direction=LT", f"direction={direction}"))
    (loop,) = (entry.flow for entry in plan_of(module).steps if isinstance(entry.flow, While))
    assert list(loop.sums) == [1]
    rng = np.random.default_rng(8)
    inputs = [rng.standard_normal(leaf_sizes(parameter), np.float32) for parameter in module.entry.parameters]
    start = inputs[0].copy()
    expected = hloexec.run(module, *inputs, planner=False).tobytes()
    assert hloexec.run(module, *inputs).tobytes() == expected
    assert_array_equal(inputs[0], start)


def leaf_sizes(instruction: Instruction) -> tuple[int, ...]:
    assert isinstance(instruction.shape, ArrayShape)
    return instruction.shape.dimensions


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_such_sum_stays_as_it_is(name: str) -> None:
    module = hloexec.parse(LOOP.format(lhs="4,256", rhs="4,192", step=OTHERS[name]))
    names = [step.instruction.name for step in body_of(module).steps]
    assert "next" in names and ("product" not in name or "p" in names)
    inputs = fractions("4,256", "4,192")
    assert hloexec.run(module, *inputs).tobytes() == hloexec.run(module, *inputs, planner=False).tobytes()


@pytest.mark.parametrize("numerics", ["exact", "tf32", "bf16"])
def test_policies_that_round_products_have_them_by_themselves(numerics: str) -> None:
    lhs, rhs, step = ADDING["terms first"]
    names = [
        inner.instruction.opcode
        for inner in body_of(hloexec.parse(LOOP.format(lhs=lhs, rhs=rhs, step=step)), numerics).steps
    ]
    assert "dot" in names


@pytest.mark.parametrize("name", ["terms first", "gemm"])
def test_products_of_narrower_operands_are_rounded_once(name: str) -> None:
    """Products of bf16 that are added to f32: whole numbers, whose sums no order rounds."""
    lhs, rhs, step = ADDING[name]
    text = LOOP.format(lhs=lhs, rhs=rhs, step=step)
    for side in (lhs, rhs):
        for shape in (f"43,{side}", f"1,{side}", side):
            text = text.replace(f"f32[{shape}]", f"bf16[{shape}]")
    start, *factors = whole_numbers(lhs, rhs)
    inputs = [start, *(factor.astype(ml_dtypes.bfloat16) for factor in factors)]
    result = hloexec.run(hloexec.parse(text), *inputs)
    assert result.dtype == np.float32
    assert_array_equal(result, start + np.einsum("tkm,tkn->mn", *factors))


def test_a_loop_that_never_goes_round_gives_what_it_is_given() -> None:
    lhs, rhs, step = ADDING["terms first"]
    text = LOOP.format(lhs=lhs, rhs=rhs, step=step).replace("end = s32[] constant(43)", "end = s32[] constant(0)")
    inputs = whole_numbers(lhs, rhs)
    assert_array_equal(hloexec.run(hloexec.parse(text), *inputs), inputs[0])


def test_a_library_product_keeps_the_other_results_that_something_reads() -> None:
    text = LOOP.format(lhs="4,256", rhs="4,192", step="STEP").split("body {")[0]
    text += f"""ENTRY e {{ sum = f32[256,192] parameter(0)
  l = f32[4,256] parameter(1)
  r = f32[4,192] parameter(2)
  both = (f32[256,192], s8[64]) {GEMM.split("f32[256,192] ")[1].replace("BETA", "1")}
  next = f32[256,192] get-tuple-element(both), index=0
  workspace = s8[64] get-tuple-element(both), index=1
  ROOT t = (f32[256,192], s8[64]) tuple(next, workspace) }}
"""
    rng = np.random.default_rng(4)
    inputs = [rng.standard_normal(sizes, np.float32) for sizes in ((256, 192), (4, 256), (4, 192))]
    module = hloexec.parse(text)
    total, workspace = hloexec.run(module, *inputs)
    expected, _ = hloexec.run(module, *inputs, planner=False)
    assert total.tobytes() == expected.tobytes()
    assert_array_equal(workspace, np.zeros(64, np.int8))


@pytest.mark.parametrize("operands", ["v, v, v", "c, v, v", "v, c, v"])
def test_a_matrix_that_is_a_factor_too_is_not_added_to_in_place(operands: str) -> None:
    """Block after block, as later blocks read what earlier ones would have overwritten; by hand and as Python."""
    gemm = GEMM.replace("BETA", "1").replace("256,192", "256,256").replace("(l, r, sum)", f"({operands})")
    module = hloexec.parse(f"""HloModule m
ENTRY e {{ x = f32[256,256] parameter(0)
  c = f32[256,256] parameter(1)
  v = f32[256,256] negate(x)
  {gemm}
  ROOT r = f32[256,256] negate(next) }}
""")
    random = np.random.default_rng(7)
    inputs = [random.integers(-4, 5, (256, 256)).astype(np.float32) for _ in range(2)]
    expected = hloexec.run(module, *inputs, planner=False)
    with thread_count(1):
        for _ in range(20):
            assert hloexec.run(module, *inputs).tobytes() == expected.tobytes()


def test_products_that_wait_are_estimated() -> None:
    """Sixteen pairs of operands lie beside the sum, which does not stay in the cache."""
    sizes = {"256": "1024", "192": "513", "4": "16"}
    lhs, rhs, step = (re.sub(r"\b(256|192|4)\b", lambda found: sizes[found[0]], part) for part in ADDING["terms first"])
    text = re.sub(r"\b(256|192)\b", lambda found: sizes[found[0]], LOOP).format(lhs=lhs, rhs=rhs, step=step)
    plan = plan_of(hloexec.parse(text))
    entry_peak_bytes(plan)
    (loop,) = (step for step in plan.steps if isinstance(step.flow, While))
    assert isinstance(loop.flow, While) and loop.flow.body.body_peak_bytes is not None
    assert loop.extra_bytes == loop.flow.body.body_peak_bytes + 16 * 4 * 16 * (1024 + 513)
