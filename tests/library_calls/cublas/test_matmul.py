"""cuBLAS gemms against the HLO that they stand for, run by XLA:CPU, and against f64."""

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hloexec
from hloexec.core.dtypes import ELEMENT_TYPES, element_type_of
from hloexec.core.ir import ArrayShape, Instruction, TupleShape
from hloexec.engine.exec.statistics import Statistics
from hloexec.errors import EvaluationError, ShapeError, UnsupportedError
from hloexec.ops.library_calls.cublas.matmul import Gemm, gemm_config
from hloexec.ops.policies.policy import POLICIES, REFERENCE
from hloexec.ops.registry import CUSTOM_CALLS

NUMBERS = {
    "lhs_contracting_dimensions": ["1"],
    "rhs_contracting_dimensions": ["0"],
    "lhs_batch_dimensions": [],
    "rhs_batch_dimensions": [],
}
# As XLA:GPU printed it in 2022, a quoted string, and as it prints it today.
OLDER = {
    "alpha_real": 1,
    "alpha_imag": 0,
    "beta": 0,
    "dot_dimension_numbers": NUMBERS,
    "batch_size": "1",
    "selected_algorithm": "-1",
}
TODAY = {
    "alpha_real": 1, "alpha_imag": 0, "beta": 0, "dot_dimension_numbers": NUMBERS,
    "precision_config": {"operand_precision": ["DEFAULT", "DEFAULT"], "algorithm": "ALG_UNSET"}, "epilogue": "DEFAULT",
    "damax_output": False, "lhs_stride": "12", "rhs_stride": "20", "grad_x": False, "grad_y": False,
    "selected_algorithm": "3", "autotune_workspace_size": "67108864", "reification_cost": [], "scale_mode": 0,
}  # fmt: skip


def today(**changes: Any) -> str:
    config = {"operation_queue_id": "0", "wait_on_operation_queues": [], "gemm_backend_config": TODAY | changes}
    return json.dumps(config | {"force_earliest_schedule": False})


def shape_of(array: Any) -> ArrayShape:
    return ArrayShape(element_type_of(array.dtype), array.shape)


def gemm(
    *operands: Any, config: str, result: str = "f32", workspace: bool = False, auxiliary: bool = False, **options: Any
) -> Any:
    """The kernel's result by its shape rule, dtypes checked."""
    element = ELEMENT_TYPES[result]
    leaves = (ArrayShape(element),) * (1 + auxiliary) + (ArrayShape(ELEMENT_TYPES["s8"], (64,)),) * workspace
    declared = TupleShape(leaves) if workspace or auxiliary else leaves[0]
    shape = Gemm.infer(*map(shape_of, operands), config=gemm_config(config), shape=declared)
    assert reason_against(config, shape) is None
    before = [operand.tobytes() for operand in operands]
    value = Gemm.evaluate(*operands, config=gemm_config(config), shape=shape, **{"numerics": REFERENCE, **options})
    assert before == [operand.tobytes() for operand in operands]
    values = value if isinstance(shape, TupleShape) else (value,)
    for ours, theirs in zip(values, shape.elements if isinstance(shape, TupleShape) else (shape,), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.element_type.storage, theirs.dimensions)
    return value


def reason_against(config: str | None, shape: Any = ArrayShape(ELEMENT_TYPES["f32"], (2, 2))) -> str | None:  # noqa: B008
    instruction = Instruction(name="g", shape=shape, opcode="custom-call", backend_config=config)
    return CUSTOM_CALLS["__cublas$gemm"].reason_against(instruction)


def whole(seed: int, *shape: int) -> Any:
    """Small whole numbers, with which every sum is exact in f32."""
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def test_both_spellings_of_the_config_say_the_same():
    lhs, rhs = whole(1, 3, 4), whole(2, 4, 5)
    assert gemm_config(json.dumps(OLDER)) == gemm_config(today())
    assert (gemm(lhs, rhs, config=json.dumps(OLDER)) == lhs @ rhs).all()


def test_the_workspace_is_a_second_result_of_zeros():
    lhs, rhs = whole(1, 3, 4), whole(2, 4, 5)
    value, workspace = gemm(lhs, rhs, config=today(), workspace=True)
    assert (value == lhs @ rhs).all()
    assert not workspace.any()


def test_batch_and_transposed_operands_follow_the_dimension_numbers():
    numbers = {
        "lhs_contracting_dimensions": ["1"],
        "rhs_contracting_dimensions": ["2"],
        "lhs_batch_dimensions": ["0"],
        "rhs_batch_dimensions": ["0"],
    }
    lhs, rhs = whole(1, 6, 4, 3), whole(2, 6, 5, 4)
    value = gemm(np.asfortranarray(lhs), rhs, config=today(dot_dimension_numbers=numbers))
    assert (value == np.einsum("bkm,bnk->bmn", lhs, rhs)).all()


def test_the_addend_is_scaled_by_beta_and_the_product_by_alpha():
    lhs, rhs, addend = whole(1, 3, 4), whole(2, 4, 5), whole(3, 3, 5)
    assert (gemm(lhs, rhs, addend, config=today(alpha_real=0.5, beta=2)) == 0.5 * (lhs @ rhs) + 2 * addend).all()
    assert (gemm(lhs, rhs, addend, config=json.dumps(OLDER | {"beta": 1})) == lhs @ rhs + addend).all()


@pytest.mark.parametrize("name", ["bf16", "f16"])
def test_product_addend_and_bias_are_added_in_f32_and_rounded_once(name):
    """2¹¹ + 1 − 2¹¹ is 1 in f32 and 0 where the product is rounded to 8 or 11 bits first."""
    storage = ELEMENT_TYPES[name].storage
    lhs = np.array([[2048, 1, 1]]).astype(storage)
    rhs = np.array([[1], [1], [0]]).astype(storage)
    addend, bias = np.array([[-2048]]).astype(storage), np.array([3]).astype(storage)
    value = gemm(lhs, rhs, addend, bias, config=today(beta=1, epilogue="BIAS"), result=name)
    assert float(value[0, 0]) == 4


ACTIVATIONS = {
    "": lambda x: x,
    "RELU": lambda x: np.maximum(x, 0),
    "GELU": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "SILU": lambda x: x / (1 + np.exp(-x)),
}


@pytest.mark.parametrize(
    ("activation", "with_auxiliary"), [("RELU", False), ("GELU", False), ("GELU", True), ("SILU", False)]
)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("result", ["f32", "bf16", "f64"])
def test_an_epilogue_is_its_formula(activation, with_bias, with_auxiliary, result):
    """Whole numbers times 1/8 are exact; the functions and the few operations around them cost some ULPs, of x for
    x·(1 + tanh …), where the factor may cancel: 16 u·|x| is allowed, then half an ULP of the result."""
    entry = ELEMENT_TYPES[result]
    lhs, rhs, bias = (array.astype(entry.storage) for array in (whole(1, 30, 8), whole(2, 8, 40), whole(3, 40)))
    epilogue = f"{'BIAS_' * with_bias}{activation}{'_AUX' * with_auxiliary}"
    operands = (lhs, rhs, bias)[: 2 + with_bias]
    config = today(alpha_real=0.125, epilogue=epilogue)
    value = gemm(*operands, config=config, result=result, auxiliary=with_auxiliary, workspace=True)
    x = 0.125 * (lhs.astype(np.float64) @ rhs.astype(np.float64)) + with_bias * bias.astype(np.float64)
    expected = ACTIVATIONS[activation](x)
    unit = np.finfo(entry.accumulate).eps / 2
    bound = 16 * unit * np.abs(x) + np.abs(expected) * 2.0 ** -(entry.mantissa_bits + 1)
    assert (np.abs(value[0].astype(np.float64) - expected) <= bound).all()
    if with_auxiliary:
        assert (value[1] == x.astype(entry.storage)).all()


def test_relu_passes_nan_on():
    lhs = np.array([[np.nan], [-1]], np.float32)
    value = gemm(lhs, np.ones((1, 1), np.float32), config=today(epilogue="RELU"))
    assert np.isnan(value[0, 0])
    assert value[1, 0] == 0


def test_gemm_and_what_surrounds_it_agree_with_the_hlo_it_stands_for():
    """Same formula, same order of roundings; sums of 64 products differ by 64·2⁻²⁴·Σ|a||b| each, and the result is
    rounded to bf16 after that, which may land one ULP apart."""
    xla = pytest.importorskip("conformance.xla")
    generator = np.random.default_rng(4)
    lhs, rhs = (generator.normal(size=shape).astype(ml_dtypes.bfloat16) for shape in ((16, 64), (64, 24)))
    addend, bias = (generator.normal(size=shape).astype(ml_dtypes.bfloat16) for shape in ((16, 24), (24,)))
    text = """HloModule m

ENTRY e {
  a = bf16[16,64] parameter(0)
  b = bf16[64,24] parameter(1)
  c = bf16[16,24] parameter(2)
  d = bf16[24] parameter(3)
  product = f32[16,24] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  addend = f32[16,24] convert(c)
  sum = f32[16,24] add(product, addend)
  wide = f32[24] convert(d)
  bias = f32[16,24] broadcast(wide), dimensions={1}
  biased = f32[16,24] add(sum, bias)
  zero = f32[] constant(0)
  zeros = f32[16,24] broadcast(zero), dimensions={}
  relu = f32[16,24] maximum(biased, zeros)
  ROOT r = bf16[16,24] convert(relu)
}
"""
    expected = xla.run_hlo(text, lhs, rhs, addend, bias)[0].astype(np.float64)
    value = gemm(lhs, rhs, addend, bias, config=today(beta=1, epilogue="BIAS_RELU"), result="bf16").astype(np.float64)
    error = 2 * 64 * 2.0**-24 * (np.abs(lhs.astype(np.float64)) @ np.abs(rhs.astype(np.float64)))
    assert (np.abs(value - expected) <= error + 2.0**-7 * np.abs(expected)).all()


def test_integer_gemms_wrap_and_add_integers():
    lhs, rhs = np.full((3, 2000), 127, np.int8), np.full((2000, 4), -128, np.int8)
    addend = np.full((3, 4), 7, np.int32)
    value = gemm(lhs, rhs, addend, config=today(beta=1), result="s32")
    assert (value == -127 * 128 * 2000 + 7).all()


def test_a_complex_factor_scales_a_complex_product():
    lhs, rhs = whole(1, 3, 4) + 1j * whole(2, 3, 4), whole(3, 4, 5) + 0j
    value = gemm(
        lhs.astype(np.complex64), rhs.astype(np.complex64), config=today(alpha_real=0, alpha_imag=2), result="c64"
    )
    assert (value == 2j * (lhs @ rhs)).all()


def test_algorithm_precision_and_policy_reach_the_product():
    lhs, rhs = np.full((1, 1), 1 + 2.0**-9, np.float32), np.ones((1, 1), np.float32)
    bf16 = {"operand_precision": ["DEFAULT", "DEFAULT"], "algorithm": "ALG_DOT_BF16_BF16_F32"}
    highest = {"operand_precision": ["HIGHEST", "HIGHEST"], "algorithm": "ALG_UNSET"}
    assert gemm(lhs, rhs, config=today(precision_config=bf16))[0, 0] == 1
    assert gemm(lhs, rhs, config=today(), numerics=POLICIES["bf16"])[0, 0] == 1
    assert gemm(lhs, rhs, config=today(precision_config=highest), numerics=POLICIES["bf16"])[0, 0] == lhs[0, 0]


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (None, "no backend_config"),
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("3", "must be a JSON object"),
        ('{"gemm_backend_config": 3}', "must be a JSON object"),
        ("{}", "lacks alpha_real"),
        ('{"alpha_real": 1}', "lacks dot_dimension_numbers"),
        (today(alpha_real="one"), "alpha_real of its backend_config must be a number"),
        (today(beta=[]), "beta of its backend_config must be a number"),
        (today(dot_dimension_numbers=3), "must be objects"),
        (today(dot_dimension_numbers=NUMBERS | {"lhs_contracting_dimensions": ["x"]}), "list of whole numbers"),
        (today(dot_dimension_numbers=NUMBERS | {"lhs_contracting_dimensions": 3}), "list of whole numbers"),
        (today(epilogue="SWISH"), "epilogue 'SWISH'; known are DEFAULT"),
        (today(epilogue=["RELU"]), "epilogue"),
        (today(precision_config={"algorithm": "ALG_DOT_F1"}), "algorithm dot_f1"),
        (today(precision_config={"operand_precision": 3}), "operand_precision"),
        (today(damax_output=True), "damax_output"),
        (today(scale_mode=1), "scale_mode"),
        (today(scale_mode="BLOCKS"), "scale_mode of its backend_config is 'BLOCKS'"),
        (today(epilogue="RELU_AUX"), "epilogue 'RELU_AUX'"),
        (today(softcap=3), "the field softcap"),
        (today(alpha_imag=1), "complex number"),
    ],
)
def test_what_cannot_be_done_is_said_in_words(config, reason):
    found = reason_against(config)
    assert found is not None
    assert reason in found


@pytest.mark.parametrize("config", [today(alpha_real=0.5), today(epilogue="GELU")])
def test_integers_are_not_scaled_by_fractions(config):
    found = reason_against(config, ArrayShape(ELEMENT_TYPES["s32"], (2, 2)))
    assert found is not None
    assert "not whole" in found


@pytest.mark.parametrize(
    ("operands", "config", "message"),
    [
        ([(3, 4), (4, 5), (3, 5)], today(), "must have 2 operands"),
        ([(3, 4), (4, 5)], today(beta=1), "must have 3 operands"),
        ([(3, 4), (5, 5)], today(), "same size"),
        ([(3, 4), (4, 5), (5, 3)], today(beta=1), "addend"),
        ([(3, 4), (4, 5), (3,)], today(epilogue="BIAS"), "bias"),
        ([(3, 4), (4, 5), (2, 3, 5)], today(epilogue="BIAS"), "bias"),
    ],
)
def test_operands_that_do_not_fit_are_refused(operands, config, message):
    shapes = [ArrayShape(ELEMENT_TYPES["f32"], dimensions) for dimensions in operands]
    with pytest.raises(ShapeError, match=message):
        Gemm.infer(*shapes, config=gemm_config(config), shape=ArrayShape(ELEMENT_TYPES["f32"], (3, 5)))


def test_results_that_do_not_fit_are_refused():
    shapes = [ArrayShape(ELEMENT_TYPES["f32"], (2, 2))] * 2
    with pytest.raises(ShapeError, match="do not fit into"):
        Gemm.infer(*shapes, config=gemm_config(today(epilogue="GELU_AUX")), shape=shapes[0])
    with pytest.raises(ShapeError, match="do not fit into"):
        Gemm.infer(*shapes, config=gemm_config(today()), shape=TupleShape(()))


def test_a_missing_operand_is_an_error_and_not_a_crash():
    lhs = np.ones((2, 2), np.float32)
    with pytest.raises(EvaluationError, match="must have 3 operands"):
        Gemm.evaluate(lhs, lhs, config=gemm_config(today(beta=1)), shape=shape_of(lhs), numerics=REFERENCE)


def test_reading_an_unsupported_config_says_why():
    with pytest.raises(UnsupportedError, match="lacks alpha_real"):
        gemm_config("{}")


@pytest.mark.parametrize("contracted", ["0", "1"])
def test_a_large_matrix_grows_where_it_lies(contracted: str) -> None:
    """C += lhs · rhs overwrites C where nobody else holds it, with the bits that it has where somebody does.

    Each product of 16 terms is within 16 · 2⁻²⁴ of the sum of magnitudes, and two roundings follow.
    """
    lhs_sizes = (16, 1536) if contracted == "0" else (1536, 16)
    numbers = NUMBERS | {"lhs_contracting_dimensions": [contracted]}
    config = today(beta=1, dot_dimension_numbers=numbers)
    lhs_shape = f"f32[{lhs_sizes[0]},{lhs_sizes[1]}]"
    module = hloexec.parse(
        f"""HloModule m
ENTRY e {{ x = {lhs_shape} parameter(0)
  y = f32[16,1024] parameter(1)
  p = f32[1536,1024] parameter(2)
  c = f32[1536,1024] negate(p)
  g = (f32[1536,1024], s8[64]) custom-call(x, y, c), custom_call_target="__cublas$gemm", backend_config={config}
  ROOT r = f32[1536,1024] get-tuple-element(g), index=0 }}
"""
    )
    rng = np.random.default_rng(5)
    x, y, p = (rng.standard_normal(sizes, np.float32) for sizes in (lhs_sizes, (16, 1024), (1536, 1024)))
    statistics, kept = Statistics(), Statistics()
    grown = hloexec.run(module, x, y, p, statistics=statistics)
    apart = hloexec.run(module, x, y, p, statistics=kept, planner=False)
    np.testing.assert_array_equal(grown, apart)
    assert statistics.peak_bytes < p.nbytes + 4096 < kept.peak_bytes
    wide = x.astype(np.float64).T if contracted == "0" else x.astype(np.float64)
    magnitude = np.abs(wide) @ np.abs(y.astype(np.float64)) + np.abs(p)
    assert (np.abs(grown - (wide @ y - p)) <= 18 * 2.0**-24 * magnitude).all()
