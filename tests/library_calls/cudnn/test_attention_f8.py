"""cuDNN's 8-bit attention as JAX lowers it for CUDA, against plain attention of what the 8-bit arrays stand for."""

import functools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hloexec
from conformance.cell import shape_of
from hloexec.errors import UnsupportedError, VerificationError
from tests.drawing import normal
from tests.library_calls.calls import by_jax
from tests.library_calls.cudnn.modules import call, module, whole

jax = pytest.importorskip("jax")
library = pytest.importorskip("jax._src.cudnn.fused_attention_stablehlo")

F8 = ml_dtypes.float8_e4m3fn
SCALE = 0.25


def factor(value: float) -> Any:
    return np.full((1, 1, 1, 1), value, np.float32)


FORWARD = {
    "descale_q": factor(0.5),
    "descale_k": factor(2),
    "descale_v": factor(0.25),
    "descale_s": factor(2.0**-8),
    "scale_s": factor(2.0**8),
    "scale_o": factor(4),
}
BACKWARD = FORWARD | {
    "descale_o": factor(0.25),
    "descale_dO": factor(0.5),
    "descale_dP": factor(2.0**-6),
    "scale_dQ": factor(8),
    "scale_dK": factor(4),
    "scale_dV": factor(16),
    "scale_dP": factor(2.0**6),
}


@pytest.fixture
def on_cuda(monkeypatch):
    """JAX asks for the library's version and the GPU's, and gets recent ones."""
    monkeypatch.setattr(library, "check_cudnn_version", lambda: 91200)
    monkeypatch.setattr(library, "check_compute_capability", lambda capability: True)
    monkeypatch.setattr(library, "check_is_flash_attention_fp8", lambda *arguments, **options: None)


def run(function: Any, *arguments: Any) -> Any:
    shapes = (jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arguments)
    trace = jax.jit(function, keep_unused=True).trace(*shapes)
    parsed = hloexec.parse(str(trace.lower(lowering_platforms=("cuda",)).compiler_ir("hlo").as_hlo_text()))
    hloexec.verify(parsed)
    return hloexec.run(parsed, *arguments)


def fused(causal: bool) -> Any:
    names = list(BACKWARD)

    def attend(q: Any, k: Any, v: Any, gradient: Any, *factors: Any) -> Any:
        params = dict(zip(names, factors, strict=True)) | {
            name: jax.numpy.zeros((1, 1, 1, 1), np.float32) for name in "amax_dQ amax_dK amax_dV amax_dP".split()
        }

        def forward(q: Any, k: Any, v: Any, params: Any) -> Any:
            return library.dot_product_attention(
                q, k, v, fp8_params=params, scale=SCALE, use_fp8=True,
                mask_type=library.MaskType.CAUSAL if causal else library.MaskType.NO_MASK,
            )  # fmt: skip

        results, pull = jax.vjp(forward, q, k, v, params)
        zero = jax.numpy.zeros((1, 1, 1, 1), np.float32)
        return *results, *pull((gradient, zero, zero))

    return attend


def plain(q: Any, k: Any, v: Any, causal: bool) -> tuple[Any, Any]:
    """Output and probabilities of what the 8-bit arrays stand for; [batch, rows, heads, depth]."""
    scores = SCALE * jax.numpy.einsum("btnh,bsnh->bnts", q * 0.5, k * 2)
    if causal:
        seen = np.arange(k.shape[1]) <= np.arange(q.shape[1])[:, None]
        scores = jax.numpy.where(seen, scores, -np.inf)
    weights = jax.nn.softmax(scores, -1)
    return jax.numpy.einsum("bnts,bsne->btne", weights, v * 0.25), weights


@pytest.mark.parametrize("causal", [False, True])
def test_8_bit_attention_and_its_gradients_are_near_those_of_plain_attention(on_cuda, causal):
    """Rounding to f8e4m3fn errs by 2⁻⁴ relatively, or 2⁻¹⁰ below 2⁻⁶. P₈/2⁸ errs by P·2⁻⁴ + 2⁻¹⁸, D₈/2⁶ by D·2⁻⁴ + 2⁻¹⁶,
    beside what o, rounded by the forward call at scale 4, adds to D; each sum by as much in all, then its own rounding."""
    q, k, v, gradient = (whole(2, 8, 3, 16, seed=n).astype(F8) for n in range(4))
    value = run(fused(causal), q, k, v, gradient, *BACKWARD.values())
    output, largest_weight, largest_output, dq, dk, dv = value[:6]
    exact = [array.astype(np.float64) for array in (q, k, v, gradient)]
    expected, weights = by_jax(functools.partial(plain, causal=causal), *exact[:3])
    off_weights = weights * 2.0**-4 + 2.0**-18
    bound = np.einsum("bnts,bsne->btne", off_weights, np.abs(exact[2]) * 0.25)
    assert output.dtype == F8
    assert (
        np.abs(output.astype(np.float64) / 4 - expected) <= bound + (np.abs(expected) + bound) * 2.0**-4 + 2.0**-12
    ).all()
    assert abs(float(largest_weight.reshape(())) - weights.max()) <= 2.0**-16
    assert abs(float(largest_output.reshape(())) - np.abs(expected).max()) <= bound.max()
    half = exact[3] * 0.5
    delta = np.einsum("btne,bsne->bnts", half, exact[2] * 0.25)
    mean = (half * expected).sum(-1)
    scores = SCALE * weights * (delta - np.moveaxis(mean, 1, 2)[..., None])
    stored = np.abs(output.astype(np.float64) * 0.25 - expected)
    off_mean = np.moveaxis((np.abs(half) * stored).sum(-1), 1, 2)[..., None]
    off_scores = SCALE * weights * off_mean
    off_scores = off_scores + (np.abs(scores) + off_scores) * 2.0**-4 + 2.0**-16
    for ours, theirs, off, scale in (
        (dq, np.einsum("bnts,bsnh->btnh", scores, exact[1] * 2),
         np.einsum("bnts,bsnh->btnh", off_scores, np.abs(exact[1]) * 2), 8),
        (dk, np.einsum("bnts,btnh->bsnh", scores, exact[0] * 0.5),
         np.einsum("bnts,btnh->bsnh", off_scores, np.abs(exact[0]) * 0.5), 4),
        (dv, np.einsum("bnts,btne->bsne", weights, half),
         np.einsum("bnts,btne->bsne", off_weights, np.abs(half)), 16),
    ):  # fmt: skip
        assert ours.dtype == F8
        assert (
            np.abs(ours.astype(np.float64) / scale - theirs)
            <= off + (np.abs(theirs) + off) * 2.0**-4 + 2.0**-10 / scale
        ).all()


PRODUCTS = {
    name: {
        "lhs_contracting_dimensions": [str(lhs)], "rhs_contracting_dimensions": [str(rhs)],
        "lhs_batch_dimensions": ["0", "1"], "rhs_batch_dimensions": ["0", "1"],
    }
    for name, (lhs, rhs) in {
        "bmm1_dot_dimension_numbers": (3, 3), "bmm2_dot_dimension_numbers": (3, 2),
        "bmm1_grad_gemm1_dot_dimension_numbers": (2, 2), "bmm1_grad_gemm2_dot_dimension_numbers": (3, 2),
        "bmm2_grad_gemm1_dot_dimension_numbers": (2, 2), "bmm2_grad_gemm2_dot_dimension_numbers": (3, 3),
    }.items()
}  # fmt: skip


def config(**changes: Any) -> dict[str, Any]:
    fields = {"fmha_scale": SCALE, "is_flash_attention": True, "mask_type": "NO_MASK", **PRODUCTS} | changes
    return {"cudnn_fmha_backend_config": fields}


Q, K, V = np.zeros((1, 2, 4, 16), F8), whole(1, 1, 8, 16).astype(F8), (8 * whole(1, 1, 8, 16, seed=1)).astype(F8)
RESULTS = "f8e4m3fn[1,2,4,16], f32[1,1,1,1], f32[1,1,1,1]"


def test_uniform_weights_show_every_factor_exactly():
    """Queries of 0 weigh eight keys by 1/8: P₈ = 32, exact, and the mean of eight multiples of 8 is whole."""
    output, largest_weight, largest_output, statistics, scratch = call(
        "__cudnn$fmhaSoftmaxF8", Q, K, V, *FORWARD.values(), config=config(), result=f"({RESULTS}, f32[1,2,4], u8[0])"
    )
    mean = V.astype(np.float64).mean(2, keepdims=True) * 0.25
    assert (output.astype(np.float64) == np.broadcast_to(4 * mean, (1, 2, 4, 16)).astype(F8).astype(np.float64)).all()
    assert largest_weight == 0.125
    assert largest_output == np.abs(mean).max()
    assert (np.abs(statistics - np.log(8)) <= 2.0**-21).all()
    assert scratch.shape == (0,)


def test_gradients_of_uniform_weights_show_every_factor_exactly():
    """With P = 1/8 and o = 0, D = SCALE/8 · descale_dO · descale_v · dO · vᵀ: dO = e₀ and v = 16 give D = ¹⁄₁₆."""
    gradient, v = np.zeros((1, 2, 4, 16), F8), np.full((1, 1, 8, 16), 16, F8)
    gradient[..., 0] = 1
    output, statistics = np.zeros((1, 2, 4, 16), F8), np.full((1, 2, 4), np.log(8), np.float32)
    names = "descale_q descale_k descale_v descale_o descale_dO descale_s descale_dP scale_s scale_dQ scale_dK scale_dV scale_dP"
    value = call(
        "__cudnn$fmhaSoftmaxBackwardF8", Q, K, v, output, gradient, statistics, *(BACKWARD[name] for name in names.split()),
        config=config(),
        result=f"({shape_of(Q)}, {shape_of(K)}, {shape_of(v)}, {', '.join(['f32[1,1,1,1]'] * 4)}, u8[0])",
    )  # fmt: skip
    dq, dk, dv, largest_q, largest_k, largest_v, largest_scores, _ = (array.astype(np.float64) for array in value)
    # exp(0 − log 8) is 1/8 up to two roundings.
    assert abs(largest_scores.reshape(()) - 1 / 16) <= 2.0**-24
    query_gradient = K.astype(np.float64).sum(2, keepdims=True) * 2 / 16
    assert (dq == np.broadcast_to(8 * query_gradient, dq.shape).astype(F8).astype(np.float64)).all()
    assert largest_q == np.abs(query_gradient).max()
    assert not dk.any()
    assert largest_k == 0
    # Two heads of four queries, each with weight 1/8 and dO = descale_dO · e₀.
    assert (dv[..., 0] == 16 * 8 / 8 * 0.5).all()
    assert not dv[..., 1:].any()
    assert largest_v == 0.5


def test_what_overflows_saturates():
    large = FORWARD | {"scale_o": factor(1e6), "scale_s": factor(1e9)}
    output = call(
        "__cudnn$fmhaSoftmaxF8", Q, K, np.abs(V.astype(np.float32)).astype(F8), *large.values(), config=config(),
        result=f"({RESULTS}, u8[0])",
    )[0].astype(np.float64)  # fmt: skip
    assert np.isfinite(output).all()
    assert output.max() == 448


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mask_type": "PADDING"}, "8-bit attention has a causal mask or none"),
        ({"sliding_window_length": 4}, "8-bit attention has a causal mask or none"),
        ({"dropout_rate": 0.5}, "dropout_rate is 0.5"),
    ],
)
def test_what_cannot_be_done_is_said_in_words(changes, reason):
    text = module(
        "__cudnn$fmhaSoftmaxF8", Q, K, V, *FORWARD.values(), config=config(**changes), result=f"({RESULTS}, u8[0])"
    )
    with pytest.raises((UnsupportedError, VerificationError), match=reason):
        hloexec.run(hloexec.parse(text), Q, K, V, *FORWARD.values())


@pytest.mark.parametrize(
    ("operands", "result", "message"),
    [
        ([Q, K, V], RESULTS, "must have the operands queries, keys"),
        ([Q, K, V, *list(FORWARD.values())[:-1], normal(2)], RESULTS, "scale_o of 8-bit attention must be one number"),
        ([Q, K, V, *FORWARD.values()], "f8e4m3fn[1,2,4,16], f32[1,1,1,1]", "3 results and scratch memory"),
        ([Q, K[:, :, :4], V, *FORWARD.values()], RESULTS, "do not fit each other"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(operands, result, message):
    text = module("__cudnn$fmhaSoftmaxF8", *operands, config=config(), result=f"({result}, u8[0])")
    with pytest.raises(VerificationError, match=message):
        hloexec.verify(hloexec.parse(text))
