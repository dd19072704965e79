"""Transformer Engine's activations, their gradients, and its matrix product, against JAX in f64.

Bounds, with u = 2⁻²⁴: the functions are a few operations and one tanh or exp, each of a few u, so that 40 u (1 + |x|)²
times what they are multiplied with holds; a sum of k products adds k u Σ|a b|.
"""

from typing import Any

import numpy as np
import pytest

from conformance.cell import shape_of
from hloexec.core.dtypes import ELEMENT_TYPES
from tests.library_calls.calls import (
    U32,
    attributes_text,
    by_jax,
    numbers,
    refusal,
    run_call,
    wide,
    with_gradients_by_jax,
    within,
)

jax = pytest.importorskip("jax", reason="JAX computes the expected values")
jnp = pytest.importorskip("jax.numpy")

FUNCTIONS = {
    "gelu": lambda x: jax.nn.gelu(x, approximate=True),
    "silu": jax.nn.silu,
    "relu": jax.nn.relu,
    "quick gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "squared relu": lambda x: jnp.square(jax.nn.relu(x)),
    "logistic": jax.nn.sigmoid,
}
# As versions before and after the one that inserted GLU count, for inputs of one and of two halves.
CASES = [
    ("gelu", 0, 1), ("gelu", 1, 2), ("silu", 2, 1), ("silu", 3, 2), ("relu", 4, 1), ("relu", 5, 2),
    ("quick gelu", 6, 1), ("quick gelu", 7, 2), ("squared relu", 8, 1), ("squared relu", 9, 2),
    ("logistic", 2, 2), ("silu", 3, 1), ("silu", 4, 2), ("relu", 5, 1), ("quick gelu", 8, 2), ("squared relu", 9, 1),
]  # fmt: skip


def activation(name: str, x: Any) -> Any:
    first = FUNCTIONS[name](x[..., 0, :])
    return first * x[..., 1, :] if x.shape[-2] == 2 else first


@pytest.mark.sampled(5)
@pytest.mark.parametrize("type_name", ["f32", "bf16"])
@pytest.mark.parametrize(("name", "number", "halves"), CASES)
def test_activations_and_their_gradients(name, number, halves, type_name):
    x, dz = numbers(1, (3, 2, halves, 8), type_name), numbers(2, (3, 2, 8), type_name)
    wanted, (gradient,) = with_gradients_by_jax(lambda x: activation(name, x), wide(x), cotangent=wide(dz))
    most = 1 + np.abs(wide(x)).max(-2)
    value = run_call("te_act_lu_ffi", [x], shape_of(dz), {"act_enum": number})
    within(value, wanted, type_name, 40 * U32 * most**3)
    found = run_call("te_dact_lu_ffi", [dz, x], shape_of(x), {"act_enum": number})
    bound = np.expand_dims(40 * U32 * most**3 * np.abs(wide(dz)), -2)
    within(found, gradient, type_name, bound)
    one = np.ones(1, np.float32)
    both = {"act_enum": number, "scaling_mode": 0, "is_2x": False}
    results = [shape_of(x), f"{type_name}[1]", "f32[1]", "f32[1]", "f32[1]", f"{type_name}[{halves},8]", "f32[1]"]
    newer = run_call("te_dact_dbias_quantize_ffi", [dz, x, one], results, both | {"is_dbias": True})
    assert (newer[0] == found).all()
    within(newer[5], gradient.sum((0, 1)), type_name, (bound + 6 * U32 * np.abs(gradient)).sum((0, 1)))
    newer = run_call("te_act_lu_ffi", [x, one], [shape_of(dz), *results[1:5]], both)
    assert (newer[0] == value).all()


@pytest.mark.parametrize("is_older", [False, True])
def test_activations_may_round_to_eight_bits(is_older):
    x = np.array([[[1, -2, 3, 500]], [[0, 5, -7, 8]]], np.float32)
    amax, scale = np.array([600], np.float32), np.array([4], np.float32)
    if is_older:
        output, largest = run_call(
            "te_act_lu_fp8_ffi", [x, amax, scale, scale], ["f8e4m3fn[2,4]", "f32[1]"], {"act_enum": 4}
        )
    else:
        text = attributes_text({"act_enum": 4, "scaling_mode": 1, "quantize_layout": 0})
        parameters = ", act_params = {clamped_swiglu = {alpha = 1.7 : f32, limit = 7.0 : f32}}}"
        results = "f8e4m3fn[2,4] f8e4m3fn[1] f32[1] f32[1] f32[1]".split()
        output, _, inverse, _, largest = run_call("te_act_lu_ffi", [x, scale, amax], results, text[:-1] + parameters)
        assert inverse[0] == 0.25
    assert wide(output).tolist() == [[4, 0, 12, 448], [0, 20, 0, 32]]
    assert largest[0] == 600


GEMM = {
    "scaling_mode": 0, "lhs_axis_boundary": 2, "rhs_axis_boundary": 1, "lhs_transposed": False,
    "rhs_transposed": False, "fuse_bias": False, "fuse_gelu": False, "grad": False, "use_split_accumulator": False,
    "collective_op": 0,
}  # fmt: skip
EMPTY = np.zeros(0, np.float32)


@pytest.mark.parametrize("name", ["f32", "bf16"])
@pytest.mark.parametrize("transposed", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("newer", [False, True])
def test_a_product_with_its_bias_and_gelu(name, transposed, newer):
    lhs, rhs, bias = numbers(1, (2, 3, 8), name), numbers(2, (8, 4, 5), name), numbers(3, (4, 5), name)
    given = (
        np.moveaxis(lhs, 2, 0).copy() if transposed[0] else lhs,
        np.moveaxis(rhs, 0, 2).copy() if transposed[1] else rhs,
    )
    attributes = GEMM | {
        "lhs_transposed": transposed[0], "rhs_transposed": transposed[1], "fuse_bias": True, "fuse_gelu": True,
        "lhs_axis_boundary": 1 if transposed[0] else 2, "rhs_axis_boundary": 2 if transposed[1] else 1,
    }  # fmt: skip
    factors = [np.array([0.5], np.float32), np.zeros(1, np.float32)] * newer
    full = f"{name}[2,3,4,5]"
    found = run_call(
        "te_gemm_ffi", [given[0], EMPTY, given[1], EMPTY, bias, EMPTY.astype(lhs.dtype), *factors],
        [full, f"{name}[0]", full, "u8[4]", "u8[4]", "u8[32]"], attributes,
    )  # fmt: skip
    before = (0.5 if newer else 1) * np.tensordot(wide(lhs), wide(rhs), 1) + wide(bias)
    error = 10 * U32 * (np.tensordot(np.abs(wide(lhs)), np.abs(wide(rhs)), 1) + np.abs(wide(bias)))
    within(found[2], before, name, error)
    wanted = by_jax(jax.nn.gelu, before)
    # The slope of gelu is less than 1.13.
    within(found[0], wanted, name, 1.13 * error + 40 * U32 * (1 + np.abs(before)) ** 2)
    plain = run_call(
        "te_gemm_ffi", [given[0], EMPTY, given[1], EMPTY, EMPTY, EMPTY, *factors],
        [full, "f32[0]", "f32[0]", "u8[32]"], attributes | {"fuse_bias": False, "fuse_gelu": False},
    )[0]  # fmt: skip
    within(plain, before - wide(bias), name, error)


def test_a_product_of_eight_bits_is_scaled_back():
    generator = np.random.default_rng(1)
    lhs = generator.integers(-3, 4, (6, 16)).astype(ELEMENT_TYPES["f8e4m3fn"].storage)
    rhs = generator.integers(-3, 4, (5, 16)).astype(ELEMENT_TYPES["f8e5m2"].storage)
    scales = [np.array([value], np.float32) for value in (0.5, 4)]
    value = run_call(
        "te_gemm_ffi", [lhs, scales[0], rhs, scales[1], EMPTY, EMPTY], "f32[6,5] f32[0] f32[0] u8[1]".split(),
        GEMM | {"scaling_mode": 1, "lhs_axis_boundary": 1, "rhs_transposed": True},
    )[0]  # fmt: skip
    assert (value == 2 * wide(lhs) @ wide(rhs).T).all()


X = np.ones((2, 3, 1, 4), np.float32)
ACT_RESULTS = "f32[2,3,4] f32[1] f32[1] f32[1] f32[1]".split()
PAIR = [np.ones((2, 3, 8), np.float32), EMPTY, np.ones((8, 5), np.float32), EMPTY, EMPTY, EMPTY]
PAIR_RESULTS = "f32[2,3,5] f32[0] f32[0] u8[1]".split()
ACT = {"act_enum": 0, "scaling_mode": 0, "is_2x": False}


@pytest.mark.parametrize(
    ("target", "operands", "results", "attributes", "words"),
    [
        ("te_act_lu_ffi", [X, EMPTY], ACT_RESULTS, ACT | {"act_enum": 11}, "act_enum is 11"),
        ("te_act_lu_ffi", [np.ones((2, 2, 4), np.float32)], "f32[2,4]", {"act_enum": 10}, "act_enum 10"),
        ("te_act_lu_ffi", [X, EMPTY], ACT_RESULTS, ACT | {"act_enum": 1}, "activation of 1 halves"),
        ("te_act_lu_ffi", [X, EMPTY], ACT_RESULTS, ACT | {"scaling_mode": 2}, "scaling_mode is 2"),
        ("te_act_lu_ffi", [X, EMPTY], ACT_RESULTS, ACT | {"is_2x": True}, "is_2x"),
        ("te_act_lu_ffi", [X, EMPTY], ACT_RESULTS, ACT | {"slope": 0.1}, "the attribute slope"),
        ("te_act_lu_ffi", [X, EMPTY], ["f32[2,3,5]", *ACT_RESULTS[1:]], ACT, "f32[2,3,4]"),
        ("te_dact_lu_ffi", [X, X], "f32[2,3,1,4]", {"act_enum": 0}, "dz must be"),
        ("te_gemm_ffi", PAIR, PAIR_RESULTS, GEMM | {"scaling_mode": 2}, "scaling_mode is 2"),
        ("te_gemm_ffi", PAIR, PAIR_RESULTS, GEMM | {"scaling_mode": 1}, "transposed depends on the device"),
        ("te_gemm_ffi", PAIR, PAIR_RESULTS, GEMM | {"grad": True, "fuse_bias": True}, "(grad)"),
        ("te_gemm_ffi", PAIR, PAIR_RESULTS, GEMM | {"collective_op": 1}, "collective_op"),
        ("te_gemm_ffi", PAIR, PAIR_RESULTS, GEMM | {"lhs_axis_boundary": 3}, "lhs_axis_boundary is 3"),
        ("te_gemm_ffi", PAIR, PAIR_RESULTS, GEMM | {"lhs_transposed": True}, "contracts dimensions"),
        ("te_gemm_ffi", PAIR, PAIR_RESULTS, GEMM | {"fuse_bias": True}, "the bias of te_gemm_ffi"),
        ("te_gemm_ffi", PAIR[:5], PAIR_RESULTS, GEMM, "takes 6 operands"),
        ("te_fused_attn_forward", PAIR, PAIR_RESULTS, {}, "packed structure"),
        ("te_layernorm_forward", PAIR, PAIR_RESULTS, {}, "packed structure"),
        ("te_grouped_gemm_ffi", PAIR, PAIR_RESULTS, {}, "changes from version to version"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_by_name(target, operands, results, attributes, words):
    assert words in refusal(target, operands, results, attributes)
