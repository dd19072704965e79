"""Transformer Engine's norms, rounding to eight bits and softmax against JAX in f64 and numbers that are exact.

Bounds, with u = 2⁻²⁴ and n elements in a row: a mean is off by n u of the mean magnitude, so that (x − μ) / σ is off by
(2 n + 8) u (max |x| / σ) at most, of the row's largest x, and what is linear in it follows.
"""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from conformance.cell import shape_of
from hloexec.core.dtypes import ELEMENT_TYPES
from tests.library_calls.calls import U32, numbers, refusal, run_call, wide, with_gradients_by_jax, within

jax = pytest.importorskip("jax", reason="JAX computes the expected values")
jnp = pytest.importorskip("jax.numpy")

EPSILON = 1e-5


def normalized(kind: str, x: Any, gamma: Any, beta: Any) -> tuple[Any, Any, Any]:
    mean = x.mean(-1, keepdims=True) if kind == "layer" else 0 * x[..., :1]
    factor = 1 / jnp.sqrt(jnp.square(x - mean).mean(-1, keepdims=True) + EPSILON)
    return (x - mean) * factor * gamma + beta, mean[..., 0], factor[..., 0]


def expected(kind: str, x: Any, gamma: Any, beta: Any, dz: Any) -> tuple[Any, Any, Any, Any]:
    def split(*arrays: Any) -> tuple[Any, Any]:
        output, *others = normalized(kind, *arrays)
        return output, others

    output, gradients, (mean, factor) = with_gradients_by_jax(
        split, *map(wide, (x, gamma, beta)), cotangent=wide(dz), has_aux=True
    )
    return output, mean, factor, gradients


def error_of_normal(x: Any, factor: Any) -> Any:
    """Of each row, with a dimension of one for its elements."""
    return (2 * x.shape[-1] + 8) * U32 * (np.abs(wide(x)).max(-1, keepdims=True) * factor[..., None] + 1)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["f32", "bf16"])
@pytest.mark.parametrize("adds_one", [False, True])
@pytest.mark.parametrize("kind", ["layer", "rms"])
@pytest.mark.parametrize("is_older", [False, True])
def test_norms_and_their_gradients(kind, adds_one, name, is_older):
    x, dz = numbers(1, (3, 4, 16), name), numbers(2, (3, 4, 16), name)
    gamma, beta = numbers(3, (16,), name), numbers(4, (16,), name)
    is_layer = kind == "layer"
    wanted, mean, factor, (dx, dgamma, dbeta) = expected(kind, x, wide(gamma) + adds_one, wide(beta) * is_layer, dz)
    full, rows, row = f"{name}[3,4,16]", "f32[3,4]", f"{name}[16]"
    one = np.zeros(1, np.float32)
    common = {"zero_centered_gamma": adds_one, "sm_margin": 0}
    if is_older:
        prefix = f"te_{'layernorm' if is_layer else 'rmsnorm'}"
        operands = [x, gamma, *[beta] * is_layer]
        results = [full, *[rows] * is_layer, rows, "u8[0]", "u8[0]"]
        found = run_call(f"{prefix}_forward_ffi", operands, results, common | {"eps": EPSILON})
        output, left = found[0], found[1:-2]
        operands = [dz, x, *left, gamma]
        results = [full, row, *[row] * is_layer, "u8[0]", "u8[0]", "f32[1,16]"]
        gradients = run_call(f"{prefix}_backward_ffi", operands, results, common | {"eps": EPSILON})
    else:
        both = common | {"norm_type": 0 if is_layer else 1}
        forward = both | {"epsilon": EPSILON, "scaling_mode": 0, "is_2x": False}
        mu = rows if is_layer else "f32[1]"
        results = [full, f"{name}[1]", "f32[1]", "f32[1]", "f32[1]", mu, rows, "u8[8]"]
        found = run_call("te_norm_forward_ffi", [x, one, gamma, beta if is_layer else beta[:1]], results, forward)
        output, left = found[0], [found[5], found[6]]
        results = [full, row, row if is_layer else f"{name}[1]", "u8[8]"]
        gradients = run_call("te_norm_backward_ffi", [dz, x, *left, gamma], results, both)
        left = left[0 if is_layer else 1 :]
    error = error_of_normal(x, factor)
    weight = np.abs(wide(gamma) + adds_one)
    normal = np.abs((wide(x) - mean[..., None]) * factor[..., None])
    within(output, wanted, name, (error + 4 * U32 * (normal + 1)) * weight + U32 * (8 + np.abs(wide(beta)) * is_layer))
    within(left[-1], factor, "f32", (16 + 8) * 4 * U32 * factor)
    if is_layer:
        within(left[0], mean, "f32", 16 * U32 * np.abs(wide(x)).mean(-1))
    g = np.abs(wide(dz))
    # g is exact but for one rounding; each of the two means of n terms adds n u, and the normal's error comes in twice.
    most, largest = ((factor * (g * weight).max(-1))[..., None], normal.max(-1, keepdims=True))
    within(gradients[0], dx, name, most * (4 * largest * error + (4 * 16 + 16) * U32 * (1 + largest**2)))
    within(gradients[1], dgamma, name, (g * (error + 14 * U32 * normal)).sum((0, 1)))
    if is_layer:
        within(gradients[2], dbeta, name, 12 * U32 * g.sum((0, 1)))


def test_a_norm_may_round_to_eight_bits():
    """x = ±1 gives the normal ±1 / √(1 + ε), so that the output is γ ± 1 ULP before the scale: far from a tie."""
    x = np.array([[1, -1, 1, -1]] * 2, np.float32)
    gamma, beta = np.array([1, 2, 3, 300], np.float32), np.zeros(4, np.float32)
    scale = np.array([2], np.float32)
    attributes = {"norm_type": 0, "zero_centered_gamma": False, "epsilon": EPSILON, "sm_margin": 0,
                  "scaling_mode": 1, "is_2x": False}  # fmt: skip
    results = "f8e4m3fn[2,4] f8e4m3fn[1] f32[1] f32[1] f32[1] f32[2] f32[2] u8[0]".split()
    found = run_call("te_norm_forward_ffi", [x, scale, gamma, beta], results, attributes)
    assert wide(found[0]).tolist() == [[2, -4, 6, -448]] * 2
    assert found[2].tolist() == [0.5]
    assert abs(found[4][0] - 300 / np.sqrt(1 + EPSILON)) <= 300 * 8 * U32
    older = run_call(
        "te_layernorm_forward_fp8_ffi", [x, gamma, beta, np.array([999], np.float32), scale, scale],
        "f8e4m3fn[2,4] f32[2] f32[2] f32[1] u8[0] u8[0]".split(),
        {"zero_centered_gamma": False, "eps": EPSILON, "sm_margin": 0},
    )  # fmt: skip
    assert (wide(older[0]) == wide(found[0])).all() and older[3].tolist() == [999]
    rms = run_call(
        "te_rmsnorm_forward_fp8_ffi", [x, gamma, np.zeros(1, np.float32), scale, scale],
        "f8e4m3fn[2,4] f32[2] f32[1] u8[0] u8[0]".split(),
        {"zero_centered_gamma": False, "eps": EPSILON, "sm_margin": 0},
    )  # fmt: skip
    assert (wide(rms[0]) == wide(found[0])).all()


def test_newer_versions_hand_the_largest_magnitude_on():
    """It is an operand, too, and what a call finds adds to it; without a scale it stays, unless asked for."""
    x = np.array([[1, -1, 1, -1]] * 2, np.float32)
    gamma, beta, scale = np.array([1, 2, 3, 300], np.float32), np.zeros(4, np.float32), np.ones(1, np.float32)
    attributes = {"norm_type": 0, "zero_centered_gamma": False, "epsilon": 0.0, "sm_margin": 0, "quantize_layout": 0}
    results = "f32[2,4] f32[1] f32[1] f32[1] f32[1] f32[2] f32[2] u8[0]".split()
    for before, asks, scaling, after in ((7, False, 0, 7), (7, True, 0, 300), (900, True, 1, 900), (7, False, 1, 300)):
        found = run_call(
            "te_norm_forward_ffi", [x, scale, np.array([before], np.float32), gamma, beta], results,
            attributes | {"scaling_mode": scaling, "output_amax_when_no_scaling": asks},
        )  # fmt: skip
        assert found[4].tolist() == [after]
        assert found[0].tolist() == [[1, -2, 3, -300]] * 2
    unused = np.zeros(1, np.float32)
    found = run_call(
        "te_dbias_quantize_ffi", [x, scale, np.array([5], np.float32), unused, unused, unused],
        "f8e4m3fn[2,4] f8e4m3fn[1] f32[1] f32[1] f32[1] f32[1] f32[1]".split(),
        {"scaling_mode": 1, "quantize_layout": 0, "flatten_axis": 1, "is_dbias": False,
         "stochastic_rounding": False, "use_rht": False},
    )  # fmt: skip
    assert (wide(found[0]) == x).all() and found[4].tolist() == [5]


QUANTIZE = {"scaling_mode": 1, "q_layout": 2, "flatten_axis": -1, "is_dbias": True}


@pytest.mark.parametrize("scaling", [1, 3])
@pytest.mark.parametrize("name", ["f32", "bf16"])
def test_one_scale_for_a_whole_array(name, scaling):
    x = np.random.default_rng(1).integers(-8, 9, (2, 3, 4)).astype(ELEMENT_TYPES[name].storage)
    x[0, 0, 0] = 2000
    found = run_call(
        "te_dbias_quantize_ffi", [x, np.array([0.5], np.float32)],
        ["f8e4m3fn[2,3,4]", "f8e4m3fn[4,2,3]", "f32[1]", "f32[1]", "f32[1]", f"{name}[4]", "f32[1]"],
        QUANTIZE | {"scaling_mode": scaling},
    )  # fmt: skip
    rounded = np.clip(wide(x) * 0.5, -448, 448)
    assert (wide(found[0]) == rounded).all()
    assert (wide(found[1]) == np.moveaxis(rounded, 2, 0)).all()
    assert [float(found[number][0]) for number in (2, 3, 4)] == [2, 2, wide(x).max()]
    total = wide(x).sum((0, 1)).astype(np.float32).astype(ELEMENT_TYPES[name].storage)
    assert (found[5] == total).all()


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("result", ["f8e4m3fn", "f8e5m2"])
def test_blocks_have_the_smallest_power_of_two_that_fits(result, padded):
    most = {"f8e4m3fn": 448.0, "f8e5m2": 57344.0}[result]
    x = numbers(1, (64, 96)) * np.exp2(np.arange(96) // 32 * 5 - 3).astype(np.float32)
    x[:, :32] = 0
    x[0, 32:64] = most
    x[1, 32:64] = np.nextafter(np.float32(most), np.float32(1e6))
    rows, columns = ((128, 4), (4, 128)) if padded else ((64, 3), (2, 96))
    found = run_call(
        "te_dbias_quantize_ffi", [x, np.zeros(1, np.float32)],
        [f"{result}[64,96]", f"{result}[64,96]", f"f8e8m0fnu[{rows[0]},{rows[1]}]",
         f"f8e8m0fnu[{columns[0]},{columns[1]}]", "f32[1]", "f32[1]", "f32[1]"],
        QUANTIZE | {"scaling_mode": 2, "is_dbias": False},
    )  # fmt: skip
    storage = ELEMENT_TYPES[result].storage
    for values, scales, axis in ((found[0], found[2][:64, :3], 1), (found[1], found[3][:2, :96], 0)):
        factor = np.repeat(wide(scales), 32, axis)
        # An exact quotient by a power of two, rounded by a conversion that XLA and ml_dtypes agree on.
        assert (wide(values) == wide((x / factor).astype(np.float32).astype(storage))).all()
        blocks = np.abs(np.moveaxis(x, axis, -1)).reshape(x.shape[1 - axis], -1, 32).max(-1)
        blocks = blocks if axis == 1 else blocks.T
        assert (blocks <= most * wide(scales)).all()
        assert (blocks[blocks > 0] > most * wide(scales)[blocks > 0] / 2 * (1 - 2.0**-23)).all()
        assert (wide(scales)[blocks == 0] == 2.0**-127).all()


def test_older_casts_round_transpose_and_sum():
    x = np.random.default_rng(1).integers(-8, 9, (2, 3, 4)).astype(ml_dtypes.bfloat16)
    amax, scale, inverse = (np.array([value], np.float32) for value in (3, 2, 9))
    operands = [x, amax, scale, inverse]
    turned = np.moveaxis(2 * wide(x), 2, 0)
    quantized, largest = run_call("te_quantize_ffi", operands, ["f8e5m2[2,3,4]", "f32[1]"], {})
    assert (wide(quantized) == 2 * wide(x)).all() and largest[0] == max(3, np.abs(wide(x)).max())
    found = run_call(
        "te_cast_transpose_ffi", operands, ["f8e4m3fn[2,3,4]", "f8e4m3fn[4,2,3]", "f32[1]"], {"transpose_axis": -1}
    )
    assert (wide(found[0]) == 2 * wide(x)).all() and (wide(found[1]) == turned).all()
    found = run_call(
        "te_dbias_cast_transpose_ffi", operands,
        "f8e4m3fn[2,3,4] f8e4m3fn[4,2,3] bf16[4] f32[1] u8[3]".split(), {"transpose_axis": 2},
    )  # fmt: skip
    assert (wide(found[1]) == turned).all() and (wide(found[2]) == wide(x).sum((0, 1))).all()
    back = run_call("te_dequantize_ffi", [found[0], amax, scale, inverse], "bf16[2,3,4]", {})
    assert (wide(back) == wide((18 * wide(x)).astype(ml_dtypes.bfloat16))).all()
    assert (run_call("te_transpose_ffi", [x], "bf16[3,4,2]", {"transpose_axis": 1}) == x.transpose(1, 2, 0)).all()


SCALE = 0.5


@pytest.mark.parametrize("name", ["f32", "bf16"])
@pytest.mark.parametrize("kind", ["scaled", "scaled_masked", "scaled_upper_triang_masked"])
def test_softmaxes_and_their_gradients(kind, name):
    """A weight depends on the scores through a sum of t exponentials: relatively off by (t + 8 + 2 max |x|) u, of
    its row's x; a gradient is the difference of a product and of the weight's share in a sum of t of them."""
    x, dy = numbers(1, (2, 3, 5, 5), name), numbers(2, (2, 3, 5, 5), name)
    mask = np.random.default_rng(3).integers(0, 2, (2, 1, 5, 5)).astype(np.uint8)
    mask[1, 0, 2] = 1
    hidden = {"scaled": np.zeros((5, 5), bool), "scaled_masked": mask == 1}.get(kind, ~np.tri(5, dtype=bool))
    scores = np.where(hidden, -np.inf, SCALE * wide(x))
    weights = np.exp(scores - np.where(hidden.all(-1, keepdims=True), 0, scores.max(-1, keepdims=True)))
    weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-300)
    operands = [x, *[mask] * (kind == "scaled_masked")]
    attributes = {"scale_factor": SCALE}
    value = run_call(f"te_{kind}_softmax_forward_ffi", operands, shape_of(x), attributes)
    within(value, weights, name, weights * (5 + 8 + 2 * np.abs(wide(x)).max(-1, keepdims=True)) * U32)
    gradient = run_call(f"te_{kind}_softmax_backward_ffi", [dy, value], shape_of(x), attributes)
    y = wide(value)
    wanted = SCALE * (wide(dy) * y - y * (wide(dy) * y).sum(-1, keepdims=True))
    terms = np.abs(wide(dy)) * y
    within(gradient, wanted, name, SCALE * (5 + 4) * U32 * (terms + y * terms.sum(-1, keepdims=True)))


NORM = {
    "norm_type": 0,
    "zero_centered_gamma": False,
    "epsilon": 1e-5,
    "sm_margin": 0,
    "scaling_mode": 0,
    "is_2x": False,
}
X, ONE, GAMMA = np.ones((2, 4), np.float32), np.ones(1, np.float32), np.ones(4, np.float32)
NORM_RESULTS = "f32[2,4] f32[1] f32[1] f32[1] f32[1] f32[2] f32[2] u8[0]".split()
QUANTIZE_RESULTS = "f8e4m3fn[4,2] f32[1] f32[1] f32[1] f32[4] u8[0]".split()


@pytest.mark.parametrize(
    ("operands", "changes", "words"),
    [
        ([X, ONE, GAMMA, GAMMA], {"scaling_mode": 2}, "scaling_mode is 2"),
        ([X, ONE, GAMMA, GAMMA], {"is_2x": True}, "is_2x"),
        ([X, ONE, GAMMA, GAMMA], {"norm_type": 2}, "norm_type is 2"),
        ([X, ONE, GAMMA, GAMMA], {"gated": True}, "the attribute gated"),
        ([X, ONE, GAMMA[:2], GAMMA], {}, "normalizes the last dimension"),
        ([X, ONE, GAMMA, GAMMA[:2]], {}, "beta of te_norm_forward_ffi must"),
        ([X, ONE], {}, "takes x, scale, gamma, beta"),
    ],
)
def test_a_norm_that_does_not_fit_is_refused_by_name(operands, changes, words):
    assert words in refusal("te_norm_forward_ffi", operands, NORM_RESULTS, NORM | changes)


@pytest.mark.parametrize(
    ("first", "changes", "words"),
    [
        ("f8e4m3fn[2,4]", {"scaling_mode": 4}, "scaling_mode is 4"),
        ("f8e4m3fn[2,4]", {"flatten_axis": 0}, "flatten_axis is 0"),
        ("f8e4m3fn[2,4]", {"use_rht": True}, "use_rht is true"),
        ("f8e4m3fn[2,4]", {"scaling_mode": 2}, "blocks of 32"),
        ("f32[2,4]", {}, "eight-bit floats"),
    ],
)
def test_a_quantization_that_does_not_fit_is_refused_by_name(first, changes, words):
    assert words in refusal("te_dbias_quantize_ffi", [X, ONE], [first, *QUANTIZE_RESULTS], QUANTIZE | changes)


@pytest.mark.parametrize(
    ("target", "result", "attributes", "words"),
    [
        ("te_transpose_ffi", "f32[4,2]", {"transpose_axis": 5}, "transpose_axis is 5"),
        ("te_scaled_softmax_forward_ffi", "f32[2,4]", {"scale_factor": 1.0}, "[batch..., heads, s, t]"),
        ("te_scaled_softmax_forward_ffi", "f32[2,4]", {}, "lacks the attribute scale_factor"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(target, result, attributes, words):
    assert words in refusal(target, [X], result, attributes)
