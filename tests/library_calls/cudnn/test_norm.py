"""cuDNN's layer normalization against JAX's layer normalization and its gradients, computed in f64."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hloexec
from conformance.cell import shape_of
from hloexec.errors import UnsupportedError, VerificationError
from tests.drawing import normal
from tests.library_calls.calls import by_jax, with_gradients_by_jax
from tests.library_calls.cudnn.modules import call, module

jax = pytest.importorskip("jax")

EPSILON = 1e-3
SIZES = [(6, 40, 1, 1), (3, 5, 8, 2), (1, 16, 1, 1)]


def config(kind: str | None, changes: Any = ()) -> dict[str, Any]:
    fields = {"epsilon": EPSILON, "algorithm": {"algo_id": "0", "is_cudnn_frontend": True}, "kind": kind}
    return {
        "cudnn_norm_backend_config": {
            name: value for name, value in (fields | dict(changes)).items() if value is not None
        }
    }


def layer_norm(x: Any, scale: Any, bias: Any) -> Any:
    axes = tuple(range(1, x.ndim))
    variance = jax.numpy.var(x, axes, keepdims=True)
    return (x - x.mean(axes, keepdims=True)) / jax.numpy.sqrt(variance + EPSILON) * scale + bias


def problem(sizes: tuple[int, ...], dtype: Any = np.float32) -> tuple[Any, ...]:
    """x, scale, bias, dy."""
    affine = (1, *sizes[1:])
    return tuple(
        (normal(*dims, seed=n) + offset).astype(dtype)
        for n, (dims, offset) in enumerate([(sizes, 2), (affine, 1), (affine, 0), (sizes, 0)])
    )


def wide(*arrays: Any) -> list[Any]:
    return [array.astype(np.float64) for array in arrays]


def forward(sizes: tuple[int, ...], kind: str | None, results: int, dtype: Any = np.float32, **options: Any) -> Any:
    x, scale, bias, _ = problem(sizes, dtype)
    parts = f"f32[{sizes[0]},1,1,1]"
    shape = f"({', '.join([shape_of(x), parts, parts][:results])}, u8[32])"
    return call("__cudnn$norm", x, scale, bias, result=shape, config=config(kind), **options)


@pytest.mark.parametrize("sizes", SIZES)
def test_inference_is_jaxs_layer_normalization(sizes):
    """Sums of k numbers below 6 in magnitude err by k·2⁻²⁴·6, divided by k, and so do the products that follow: with
    factors r ≤ 1/√ε and scales below 5, some 16·2⁻²⁴·6·(1 + r)·5 bounds all; deviations are of order 1, so r ≈ 1."""
    x, scale, bias, _ = problem(sizes)
    value, scratch = forward(sizes, "LAYER_FWD_INFER", 1)
    expected = by_jax(layer_norm, *wide(x, scale, bias))
    factor = 1 / np.sqrt(x.astype(np.float64).var(tuple(range(1, x.ndim)), keepdims=True) + EPSILON)
    assert (np.abs(value - expected) <= 16 * 2.0**-24 * 6 * (1 + factor) * 5).all()
    assert scratch.shape == (32,)
    assert not scratch.any()


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("kind", ["LAYER_FWD_TRAIN", "1", None])
def test_training_returns_expectation_and_norm_factor_too(sizes, kind):
    x = problem(sizes)[0].astype(np.float64)
    axes = tuple(range(1, x.ndim))
    value, expectation, factor, _ = forward(sizes, kind, 3)
    assert (value == forward(sizes, "LAYER_FWD_INFER", 1)[0]).all()
    means = [array.mean(axes, keepdims=True) for array in (x, np.abs(x))]
    assert (np.abs(expectation - means[0]) <= 40 * 2.0**-24 * means[1]).all()
    wanted = 1 / np.sqrt(x.var(axes, keepdims=True) + EPSILON)
    # The variance errs relatively by some 40 roundings and the deviations' share; its inverse root by half of that.
    assert (np.abs(factor / wanted - 1) <= 40 * 2.0**-24 * (1 + 6 * wanted)).all()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("name", ["f32", "bf16"])
def test_gradients_are_jaxs(sizes, name):
    """With the exact μ and r, an element of dx costs some 64 roundings of terms below r·(|g| + mean|g| + |z|·mean|g z|);
    sums over n parts n roundings of Σ|dy z|; then comes one rounding to the result's type."""
    dtype = {"f32": np.float32, "bf16": ml_dtypes.bfloat16}[name]
    x, scale, bias, dy = problem(sizes, dtype)
    exact = wide(x, scale, bias, dy)
    axes = tuple(range(1, x.ndim))
    expectation = exact[0].mean(axes, keepdims=True).astype(np.float32)
    factor = (1 / np.sqrt(exact[0].var(axes, keepdims=True) + EPSILON)).astype(np.float32)
    value = call(
        "__cudnn$norm", x, scale, dy, expectation, factor, config=config("LAYER_BWD"),
        result=f"({shape_of(x)}, {shape_of(scale)}, {shape_of(scale)}, u8[32])",
    )  # fmt: skip
    _, expected = with_gradients_by_jax(layer_norm, *exact[:3], cotangent=exact[3])
    normalized = (exact[0] - expectation) * factor
    scaled = np.abs(exact[3] * exact[1])
    size = scaled + scaled.mean(axes, keepdims=True)
    size += np.abs(normalized) * (scaled * np.abs(normalized)).mean(axes, keepdims=True)
    sizes_of = [factor * size, np.abs(exact[3] * normalized).sum(0), np.abs(exact[3]).sum(0)]
    half = 2.0**-8 if name == "bf16" else 0
    for ours, theirs, bound in zip(value, expected, sizes_of, strict=False):
        assert ours.dtype == dtype
        # μ and r are rounded to f32, which moves (x − μ)·r by as much as 8·r·2⁻²⁴ of terms of order 1.
        assert (
            np.abs(ours.astype(np.float64) - theirs)
            <= 64 * 2.0**-24 * (1 + 8 * factor.max()) * bound + half * np.abs(theirs)
        ).all()


def test_narrow_floats_are_rounded_once():
    """Against f64 the error is half an ULP of bf16, and the f32 error that a value at a tie needs to fall over."""
    x, scale, bias, _ = problem(SIZES[0], ml_dtypes.bfloat16)
    value, _ = forward(SIZES[0], "LAYER_FWD_INFER", 1, ml_dtypes.bfloat16)
    expected = by_jax(layer_norm, *wide(x, scale, bias))
    assert value.dtype == ml_dtypes.bfloat16
    assert (np.abs(value.astype(np.float64) - expected) <= 2.0**-8 * np.abs(expected) + 2.0**-15).all()


def test_the_exact_policy_rounds_the_f64_result():
    """A result whose f64 value is off by 2⁻⁴⁰ relatively rounds to the nearest f32 or lies as good as on a tie."""
    x, scale, bias, _ = problem(SIZES[1])
    value, _ = forward(SIZES[1], "LAYER_FWD_INFER", 1, numerics="exact")
    expected = by_jax(layer_norm, *wide(x, scale, bias))
    assert (np.abs(value - expected) <= np.spacing(np.abs(value)) * (0.5 + 2.0**-12)).all()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"kind": "BATCH_FWD"}, "'BATCH_FWD'; known are LAYER_FWD_INFER"),
        ({"epsilon": "small"}, "epsilon of its backend_config must be a number"),
        ({"momentum": 0.1}, "the field momentum"),
    ],
)
def test_what_cannot_be_done_is_said_in_words(changes, reason):
    x, scale, bias, _ = problem(SIZES[0])
    text = module(
        "__cudnn$norm", x, scale, bias, result=f"({shape_of(x)}, u8[3])", config=config("LAYER_FWD_INFER", changes)
    )
    with pytest.raises((UnsupportedError, VerificationError), match=reason):
        hloexec.run(hloexec.parse(text), x, scale, bias)


@pytest.mark.parametrize(
    ("kind", "sizes", "result", "message"),
    [
        ("LAYER_FWD_INFER", "6,4 1,4", "(f32[6,4], u8[1])", "must have 3 operands"),
        ("LAYER_BWD", "6,4 1,4 1,4", "(f32[6,4], f32[1,4], f32[1,4], u8[1])", "must have 5 operands"),
        ("LAYER_FWD_INFER", "6,4 4 1,4", "(f32[6,4], u8[1])", "scale of the normalization"),
        ("LAYER_FWD_INFER", "6,4 1,4 6,4", "(f32[6,4], u8[1])", "bias of the normalization"),
        ("LAYER_BWD", "6,4 1,4 6,4 1,1 6,1", "(f32[6,4], f32[1,4], f32[1,4], u8[1])", "expectation"),
        ("LAYER_BWD", "6,4 1,4 6,4 6,1 6,1", "(f32[6,4], f32[1,4])", "3 results"),
        ("LAYER_FWD_INFER", "6,4 1,4 1,4", "(f32[6,5], u8[1])", r"f32\[6,4\]"),
        ("LAYER_FWD_TRAIN", "6,4 1,4 1,4", "(f32[6,4], f32[6], f32[6], u8[1])", r"f32\[6,1\]"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(kind, sizes, result, message):
    operands = [normal(*map(int, size.split(","))) for size in sizes.split()]
    text = module("__cudnn$norm", *operands, result=result, config=config(kind))
    with pytest.raises(VerificationError, match=message):
        hloexec.verify(hloexec.parse(text))
