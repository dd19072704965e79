"""oneDNN's calls against the HLO that they stand for, run by XLA:CPU; DUCC's transforms against NumPy's."""

import functools
import json
import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_allclose

import hloexec
from hloexec.core.dtypes import element_type_of
from hloexec.errors import EvaluationError, UnsupportedError
from tests.library_calls.calls import by_jax


def bits(value: float) -> int:
    return int(np.float32(value).view(np.int32))


def call(target: str, *operands: Any, result: str, config: dict[str, Any] | None = None) -> Any:
    parameters = "\n".join(
        f"  p{n} = {element_type_of(x.dtype).name}[{','.join(map(str, x.shape))}] parameter({n})"
        for n, x in enumerate(operands)
    )
    names = ", ".join(f"p{n}" for n in range(len(operands)))
    suffix = "" if config is None else ", backend_config=" + json.dumps({"outer_dimension_partitions": []} | config)
    text = f'HloModule m\n\nENTRY e {{\n{parameters}\n  ROOT r = {result} custom-call({names}), custom_call_target="{target}"{suffix}\n}}\n'
    return hloexec.run(hloexec.parse(text), *operands)


def matmul(*operands: Any, result: str = "f32[2,5,4]", **config: Any) -> Any:
    return call("__onednn$matmul", *operands, result=result, config={"onednn_matmul_config": config})


def whole(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


LHS, RHS, BIAS, ADDEND = whole(2, 5, 3), whole(2, 3, 4, seed=1), whole(4, seed=2), whole(2, 5, 4, seed=3)


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_products_follow_the_transpositions(transpose_a, transpose_b):
    lhs = LHS.swapaxes(1, 2).copy() if transpose_a else LHS
    rhs = RHS.swapaxes(1, 2).copy() if transpose_b else RHS
    assert (matmul(lhs, rhs, transpose_a=transpose_a, transpose_b=transpose_b) == LHS @ RHS).all()


def test_addends_come_in_the_order_of_the_operations():
    fused = {"ops": "LINEAR BIAS RELU BINARY_ADD".split(), "alpha_typecast": bits(0.5)}
    expected = np.maximum(0.5 * (LHS @ RHS) + BIAS, 0) + ADDEND
    assert (matmul(LHS, RHS, BIAS, ADDEND, fusions=fused) == expected).all()
    assert (matmul(LHS, RHS, BIAS, fused_ops=["BIAS"], bias_broadcast=True) == LHS @ RHS + BIAS).all()


@pytest.mark.parametrize("name", "TANH SIGMOID RELU6 RELU GELU_TANH GELU_ERF".split())
def test_activations_are_jaxs(name):
    """A few operations of 4 ULPs at most each."""
    jax = pytest.importorskip("jax")
    functions = {
        "TANH": jax.numpy.tanh,
        "SIGMOID": jax.nn.sigmoid,
        "RELU6": jax.nn.relu6,
        "RELU": jax.nn.relu,
        "GELU_TANH": jax.nn.gelu,
        "GELU_ERF": lambda x: jax.nn.gelu(x, approximate=False),
    }
    expected = by_jax(functions[name], LHS @ RHS)
    found = matmul(LHS, RHS, fusions={"ops": [name]})
    assert (np.abs(found - expected) <= 16 * 2.0**-24 * np.maximum(np.abs(LHS @ RHS), 1)).all()


def test_bf16_products_are_rounded_once_after_the_addends():
    lhs, rhs = np.array([[2048, 1, 1]]).astype(ml_dtypes.bfloat16), np.ones((3, 1), ml_dtypes.bfloat16)
    bias = np.array([-2048]).astype(ml_dtypes.bfloat16)
    value, scratchpad = matmul(
        lhs, rhs, bias, result="(bf16[1,1], u8[16])", fusions={"ops": ["BIAS"]}, user_scratchpad=True
    )
    assert float(value[0, 0]) == 2
    assert not scratchpad.any()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"weights_prepacked": True}, "weights_prepacked"),
        ({"optimization_config": {"weights_prepacked": True}}, "weights_prepacked"),
        ({"fusions": {"ops": ["ELU"]}}, "'ELU'"),
        ({"fusions": {"ops": "RELU"}}, "must be a list"),
        ({"fusions": 3}, "must be an object"),
        ({"fusions": {"ops": ["LINEAR"], "alpha_typecast": "x"}}, "alpha_typecast"),
        ({"depth": 3}, "field depth"),
    ],
)
def test_configs_of_products_that_are_not_understood_are_refused(config, message):
    with pytest.raises(UnsupportedError, match=message):
        matmul(LHS, RHS, **config)


def test_operands_that_do_not_fit_a_product_are_refused():
    with pytest.raises(EvaluationError, match="must have 3 operands"):
        matmul(LHS, RHS, fusions={"ops": ["BIAS"]})
    with pytest.raises(EvaluationError, match="does not fit"):
        matmul(LHS, RHS, whole(7), fusions={"ops": ["BIAS"]})


@pytest.mark.slow_cases("0", "1", "2")
@pytest.mark.parametrize("axis", [0, 1, 2, None])
def test_softmax_is_jaxs(axis):
    jax = pytest.importorskip("jax")
    x = whole(3, 4, 5) * 7
    config = None if axis is None else {"onednn_softmax_config": {"softmax_axis": axis}}
    found = call("__onednn$softmax", x, result="f32[3,4,5]", config=config)
    expected = by_jax(functools.partial(jax.nn.softmax, axis=-1 if axis is None else axis), x)
    assert_allclose(found, expected, rtol=16 * 2.0**-24)


@pytest.mark.parametrize(("rescale", "count"), [("UNDEFINED", 0), ("SCALE", 1), ("SHIFT", 1), ("SCALE_AND_SHIFT", 2)])
def test_layer_normalization_is_its_formula(rescale, count):
    """Sums of 8 terms, a root and a quotient; x has deviations of the size of 1."""
    x, parameters = whole(6, 8), [whole(8, seed=5), whole(8, seed=6)][:count]
    config = {"onednn_layer_norm_config": {"rescale": rescale, "epsilon_typecast": bits(1e-3)}}
    found = call("__onednn$layernorm", x, *parameters, result="f32[6,8]", config=config)
    wide = x.astype(np.float64)
    expected = (wide - wide.mean(-1, keepdims=True)) / np.sqrt(wide.var(-1, keepdims=True) + np.float32(1e-3))
    if rescale.startswith("SCALE"):
        expected = expected * parameters[0]
    if rescale.endswith("SHIFT"):
        expected = expected + parameters[-1]
    assert_allclose(found, expected, rtol=32 * 2.0**-24, atol=32 * 2.0**-24)


@pytest.mark.parametrize(
    ("target", "config", "message"),
    [
        ("__onednn$softmax", {"onednn_softmax_config": {"softmax_axis": "x"}}, "softmax_axis"),
        ("__onednn$layernorm", {"onednn_layer_norm_config": {"rescale": "BOTH"}}, "'BOTH'"),
        ("__onednn$layernorm", {"onednn_layer_norm_config": {"fusions": {"ops": ["RELU"]}}}, "fused"),
        ("__onednn$convolution", {}, "window"),
        ("__onednn$matmul_reorder", {}, "depends on the processor"),
    ],
)
def test_other_calls_of_onednn_are_refused_in_words(target, config, message):
    with pytest.raises(UnsupportedError, match=message):
        call(target, whole(3, 4), result="f32[3,4]", config=config)


# DUCC

# What jaxlib wrote for an FFT of the second dimension of c64[3,4] (JAX's tests of backward compatibility, 2023).
PUBLISHED = bytes.fromhex(
    "18000000140024000000000008000C001000140007001800140000000000000154000000380000001C00000010000000000000000000F03F"
    "0000000001000000010000000200000004000000000000000100000000000000000000000200000004000000000000000100000000000000"
    "000000000200000003000000000000000400000000000000"
)


def descriptor(kind: int, axes: list[int], forward: bool, scale: float) -> Any:
    """A FlatBuffer of the schema, laid out plainly: root, list of fields, table, axes."""
    fields = struct.pack("<10H", 20, 32, 0, 4, 0, 0, 0, 8, 5, 16)
    table_at = 4 + len(fields)
    table = struct.pack("<iBBxxIxxxxdxxxxxxxx", table_at - 4, kind, forward, 32 - 8, scale)
    vector = struct.pack(f"<I{len(axes)}I", len(axes), *axes)
    return np.frombuffer(struct.pack("<I", table_at) + fields + table + vector, np.uint8)


def test_a_published_descriptor_is_read():
    x = np.arange(12, dtype=np.complex64).reshape(3, 4)
    found = call("ducc_fft", np.frombuffer(PUBLISHED, np.uint8), x, result="c64[3,4]")
    assert_allclose(found, [[6, -2 + 2j, -2, -2 - 2j], [22, -2 + 2j, -2, -2 - 2j], [38, -2 + 2j, -2, -2 - 2j]])


@pytest.mark.parametrize("axes", [[1], [2], [1, 2], [0, 1, 2]])
def test_transforms_are_numpys(axes):
    """O(log n) roundings of elements of the size of 60."""
    x = (whole(2, 5, 6) + 1j * whole(2, 5, 6, seed=1)).astype(np.complex128)
    points = np.prod([x.shape[axis] for axis in axes])
    half = [size if axis != axes[-1] else size // 2 + 1 for axis, size in enumerate(x.shape)]
    real = f"c128[{','.join(map(str, half))}]"
    cases = [
        ((0, True, 1.0), x, "c128[2,5,6]", np.fft.fftn(x, axes=axes)),
        ((0, False, 1 / points), x, "c128[2,5,6]", np.fft.ifftn(x, axes=axes)),
        ((2, True, 1.0), x.real.copy(), real, np.fft.rfftn(x.real, axes=axes)),
        ((1, False, 1 / points), np.fft.rfftn(x.real, axes=axes), "f64[2,5,6]", x.real),
    ]
    for (kind, forward, scale), operand, result, expected in cases:
        found = call("ducc_fft", descriptor(kind, axes, forward, scale), operand, result=result)
        assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize(
    "broken", [np.zeros(0, np.uint8), np.full(40, 255, np.uint8), descriptor(7, [0], True, 1), descriptor(0, [9], True, 1), descriptor(0, [0, 0], True, 1), descriptor(0, [], True, 1), np.frombuffer(PUBLISHED[:60], np.uint8)]
)  # fmt: skip
def test_descriptors_that_cannot_be_read_are_errors_in_words(broken):
    with pytest.raises(EvaluationError, match="ducc_fft"):
        call("ducc_fft", broken, np.zeros((3, 4), np.complex64), result="c64[3,4]")
