"""Searches and resizing against XLA:CPU, JAX and independent formulas."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from conformance import xla
from hloexec.core.dtypes import element_type_of
from hloexec.errors import EvaluationError, HloError, UnsupportedError

jax = pytest.importorskip("jax")

GREATER = """greater {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = pred[] compare(a, b), direction=GT, type=TOTALORDER
}
"""
GREATER_OF_PAIRS = """greater {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  i = s32[] parameter(2)
  j = s32[] parameter(3)
  ROOT r = pred[] compare(a, b), direction=GT
}
"""
# Lexicographic in the fractional and then the whole part: no order of keys that hloexec recognises.
ODD = """greater {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  p = f32[] multiply(a, b)
  z = f32[] constant(0)
  same = pred[] compare(p, z), direction=GE
  both = pred[] compare(a, b), direction=GT
  sign = pred[] compare(a, z), direction=GT
  ROOT r = pred[] select(same, both, sign)
}
"""

BY_VALUE_THEN_INDEX = """greater {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  i = s32[] parameter(2)
  j = s32[] parameter(3)
  more = pred[] compare(a, b), direction=GT
  same = pred[] compare(a, b), direction=EQ
  before = pred[] compare(i, j), direction=LT
  tie = pred[] and(same, before)
  ROOT r = pred[] or(more, tie)
}
"""


def run(computations: str, body: str, *arguments: Any) -> Any:
    lines = "\n".join(f"  {line.strip()}" for line in body.strip().splitlines())
    return hloexec.run(hloexec.parse(f"HloModule m\n\n{computations}\nENTRY e {{\n{lines}\n}}\n"), *arguments)


def values(*shape: int, seed: int = 0) -> Any:
    array = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
    array.reshape(-1)[::3] = array.reshape(-1)[1::3][: array.reshape(-1)[::3].size].mean()
    return array


@pytest.mark.parametrize("comparator", [GREATER, GREATER_OF_PAIRS, ODD])
def test_topk_finds_the_first_by_its_comparator_the_lower_index_first_among_equals(comparator):
    x = values(3, 50)
    found, index = run(
        comparator,
        """x = f32[3,50] parameter(0)
        ROOT r = (f32[3,7], s32[3,7]) custom-call(x), custom_call_target="TopK", called_computations={greater}""",
        x,
    )
    expected = np.argsort(-x, axis=-1, kind="stable")[:, :7]
    assert_array_equal(index, expected)
    assert_array_equal(found, np.take_along_axis(x, expected, -1))


def test_what_xla_makes_of_top_k_runs():
    x = values(16, 300)
    compiled = jax.jit(lambda x: jax.lax.top_k(x, 5)).lower(x).compile()
    assert "TopK" in compiled.as_text()
    for ours, theirs in zip(hloexec.run(hloexec.from_jax(compiled), x), compiled(x), strict=True):
        assert_array_equal(ours, theirs)


def test_topk_without_a_comparator_is_that_of_xla():
    x = values(3, 50)
    x[0, 3], x[1, 2], x[1, 7] = np.nan, -0.0, 0.0
    text = """HloModule m
ENTRY e {
  x = f32[3,50] parameter(0)
  c = (f32[3,7]{1,0}, s32[3,7]{1,0}) custom-call(x), custom_call_target="TopK"
  a = f32[3,7]{1,0} get-tuple-element(c), index=0
  b = s32[3,7]{1,0} get-tuple-element(c), index=1
  ROOT t = (f32[3,7]{1,0}, s32[3,7]{1,0}) tuple(a, b)
}
"""
    for ours, theirs in zip(hloexec.run(hloexec.parse(text), x), xla.run_hlo(text, x), strict=True):
        assert_array_equal(ours, theirs)


@pytest.mark.parametrize("comparator", [GREATER_OF_PAIRS, BY_VALUE_THEN_INDEX])
@pytest.mark.parametrize("k", [3, 0])
@pytest.mark.parametrize("dimension", [0, 1])
def test_approximate_search_is_exact(comparator, k, dimension):
    x = values(12, 9)
    size = [12, 9]
    size[dimension] = k
    shape = f"[{size[0]},{size[1]}]"
    config = f"{{aggregate_to_topk = true, recall_target = 9.500000e-01 : f32, reduction_dim = {dimension} : i64, reduction_input_size_override = -1 : i64, top_k = {k} : i64}}"
    found, index = run(
        comparator,
        f"""x = f32[12,9] parameter(0)
        i = s32[12,9] iota(), iota_dimension={dimension}
        v = f32[] constant(-inf)
        n = s32[] constant(-1)
        ROOT r = (f32{shape}, s32{shape}) custom-call(x, i, v, n), custom_call_target="ApproxTopK", called_computations={{greater}}, backend_config={config}""",
        x,
    )
    expected = np.take(np.argsort(-x, axis=dimension, kind="stable"), range(k), dimension)
    assert_array_equal(index, expected)
    assert_array_equal(found, np.take_along_axis(x, expected, dimension))


def test_partial_reduce_keeps_the_first_ones():
    x = values(64)
    found, index = run(
        GREATER_OF_PAIRS,
        """x = f32[64] parameter(0)
        i = s32[64] iota(), iota_dimension=0
        v = f32[] constant(-inf)
        n = s32[] constant(-1)
        ROOT r = (f32[16], s32[16]) custom-call(x, i, v, n), custom_call_target="PartialReduce", called_computations={greater}, backend_config="{\\"log2_reduction\\": 2, \\"reduction_dim\\": 0, \\"to_apply_type\\": \\"comparator\\", \\"top_k\\": 3, \\"recall_target\\": 0.95}\"""",
        x,
    )
    assert set(np.sort(x)[-3:]) <= set(found)
    assert_array_equal(x[index], found)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{top_k = 3 : i64}", "reduction_dim of its backend_config must be a whole number"),
        ("{reduction_dim = 0 : i64, colour = 1 : i64}", "attribute colour"),
        ('"[]"', "must be a dictionary"),
        ('"{\\"reduction_dim\\": 0, \\"to_apply_type\\": \\"reducer\\"}"', "to_apply_type is 'reducer'"),
    ],
)
def test_configs_that_are_not_understood_are_refused(config, message):
    with pytest.raises(UnsupportedError, match=message):
        run(
            GREATER_OF_PAIRS,
            f"""x = f32[4] parameter(0)
            i = s32[4] iota(), iota_dimension=0
            v = f32[] constant(0)
            n = s32[] constant(0)
            ROOT r = (f32[2], s32[2]) custom-call(x, i, v, n), custom_call_target="ApproxTopK", called_computations={{greater}}, backend_config={config}""",
            values(4),
        )


@pytest.mark.parametrize(
    ("result", "suffix", "error"),
    [
        ("(f32[9], s32[9])", ", called_computations={greater}", EvaluationError),
        ("(f32[2], s32[2])", ", called_computations={greater,greater}", UnsupportedError),
        ("f32[2]", ", called_computations={greater}", UnsupportedError),
    ],
)
def test_searches_that_cannot_be_are_refused(result, suffix, error):
    with pytest.raises(error):
        line = f'x = f32[4] parameter(0)\nROOT r = {result} custom-call(x), custom_call_target="TopK"{suffix}'
        run(GREATER, line, values(4))


# Resizing


def resize(target: str, x: Any, height: int, width: int, config: str) -> Any:
    name, (b, h, w, c) = element_type_of(x.dtype).name, x.shape
    line = f"""x = {name}[{b},{h},{w},{c}] parameter(0)
    ROOT r = {name}[{b},{height},{width},{c}] custom-call(x), custom_call_target="{target}", backend_config="\\"{config}\\"\""""
    return run("", line, x)


@pytest.mark.slow_cases("7-3", "10-12", "1-1", "2-11")
@pytest.mark.parametrize(("height", "width"), [(7, 3), (10, 12), (5, 6), (1, 1), (2, 11)])
def test_bilinear_resizing_with_half_pixel_centers_is_jax_images(height, width):
    x = values(2, 5, 6, 3)
    expected = jax.image.resize(x, (2, height, width, 3), "bilinear", antialias=False)
    # Both sides' weights come from coordinates up to 12 that are rounded to f32 a few times, 4 · 12 · 2⁻²⁴ each, along
    # two axes; an element changes by at most the range of x from one pixel to the next.
    bound = 2 * 2 * 4 * 12 * 2.0**-24 * float(np.ptp(x))
    assert np.abs(resize("ResizeBilinear", x, height, width, "01") - expected).max() <= bound


@pytest.mark.parametrize(("height", "width"), [(7, 3), (10, 12), (5, 6), (2, 11)])
@pytest.mark.parametrize("aligned", [False, True])
def test_bilinear_resizing_is_linear_interpolation(height, width, aligned):
    x = values(1, 5, 6, 1)
    scale = [(size - aligned) / max(result - aligned, 1) for size, result in zip((5, 6), (height, width), strict=True)]
    rows, columns = (np.arange(n) * s for n, s in zip((height, width), scale, strict=True))
    once = np.stack([np.interp(columns, np.arange(6), row) for row in x[0, :, :, 0]])
    expected = np.stack([np.interp(rows, np.arange(5), column) for column in once.T]).T
    found = resize("ResizeBilinear", x, height, width, f"{int(aligned)}0")
    # Coordinates up to 6 are rounded to f32 twice, the ratio and the product: 2 · 6 · 2⁻²⁴, along two axes; an element
    # changes by at most the range of x from one pixel to the next. Weights, products and sums round six times more.
    assert np.abs(found[0, :, :, 0] - expected).max() <= (2 * 2 * 6 + 6) * 2.0**-24 * np.ptp(x)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, ml_dtypes.bfloat16])
def test_nearest_resizing_takes_elements(dtype):
    x = np.arange(30).reshape(1, 5, 6, 1).astype(dtype)
    found = resize("ResizeNearest", x, 10, 3, "01")
    assert found.dtype == x.dtype
    assert_array_equal(found[0, :, :, 0], x[0, :, :, 0][np.arange(10) // 2][:, [1, 3, 5]])
    aligned = resize("ResizeNearest", x, 3, 2, "10")
    assert_array_equal(aligned[0, :, :, 0], x[0, ::2, ::5, 0])


@pytest.mark.parametrize("config", ["00", "01", "10"])
@pytest.mark.parametrize("kind", ["Bilinear", "Nearest"])
def test_gradients_are_the_transpose_of_resizing(kind, config):
    """⟨resize(x), y⟩ = ⟨x, gradient(y)⟩, to the roundings of sums of some 100 products."""
    x, y = values(2, 5, 6, 3), values(2, 8, 4, 3, seed=1)
    forward = np.vdot(resize(f"Resize{kind}", x, 8, 4, config).astype(np.float64), y)
    backward = np.vdot(resize(f"Resize{kind}Grad", y, 5, 6, config).astype(np.float64), x)
    assert abs(forward - backward) <= 200 * 2.0**-24 * (np.abs(x).sum() + np.abs(y).sum())


def test_resizing_without_its_config_or_to_integers_is_refused():
    with pytest.raises(UnsupportedError, match="two digits"):
        resize("ResizeBilinear", values(1, 2, 2, 1), 3, 3, "2")
    with pytest.raises(UnsupportedError, match="floating-point"):
        resize("ResizeBilinear", np.zeros((1, 2, 2, 1), np.int32), 3, 3, "00")
    with pytest.raises(HloError):
        resize("ResizeBilinear", np.zeros((1, 0, 2, 1), np.float32), 3, 3, "00")


def test_results_that_are_not_as_declared_are_refused():
    x = values(3, 50)
    with pytest.raises(hloexec.EvaluationError, match=r"TopK gives float32\[3, 7\], int32\[3, 7\] for these operands"):
        run(
            GREATER,
            """x = f32[3,50] parameter(0)
            ROOT r = (f64[3,7], s32[3,7]) custom-call(x), custom_call_target="TopK", called_computations={greater}""",
            x,
        )
