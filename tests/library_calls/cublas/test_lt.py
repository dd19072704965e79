"""Products of eight-bit floats and of groups of rows against their formulas, in exact numbers.

The numbers are small enough that every product, sum and scale is exact in f32; what is left is the one rounding.
"""

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from hloexec.core.dtypes import ELEMENT_TYPES
from tests.library_calls.calls import refusal, run_call

F8 = "__cublas$lt$matmul$f8"
MX = "__cublas$lt$matmul$mx"
GROUPED = "__cublas$lt$groupedMatmul"
NUMBERS = {
    "lhs_contracting_dimensions": ["1"],
    "rhs_contracting_dimensions": ["1"],
    "lhs_batch_dimensions": [],
    "rhs_batch_dimensions": [],
}
GEMM = {
    "alpha_real": 1, "alpha_imag": 0, "beta": 0, "dot_dimension_numbers": NUMBERS,
    "precision_config": {"operand_precision": ["DEFAULT", "DEFAULT"], "algorithm": "ALG_UNSET"}, "epilogue": "DEFAULT",
    "lhs_stride": "512", "rhs_stride": "512", "grad_x": False, "grad_y": False, "damax_output": False,
}  # fmt: skip


def config(**changes: Any) -> str:
    return json.dumps({"operation_queue_id": "0", "gemm_backend_config": GEMM | changes})


def whole(seed: int, shape: tuple[int, ...], name: str = "f32", most: int = 3) -> Any:
    return np.random.default_rng(seed).integers(-most, most + 1, shape).astype(ELEMENT_TYPES[name].storage)


def wide(array: Any) -> Any:
    return array.astype(np.float64)


def scalar(value: float) -> Any:
    return np.array(value, np.float32)


@pytest.mark.parametrize("rhs_type", ["f8e4m3fn", "f8e5m2"])
@pytest.mark.parametrize("lhs_type", ["f8e4m3fn", "f8e5m2"])
@pytest.mark.parametrize("result", ["f32", "bf16", "f16"])
def test_a_product_is_scaled_by_both_factors(lhs_type, rhs_type, result):
    lhs, rhs = whole(1, (6, 16), lhs_type), whole(2, (5, 16), rhs_type)
    value, workspace = run_call(
        F8, [lhs, rhs, scalar(0.5), scalar(4)], [f"{result}[6,5]", "s8[64]"], config(scale_mode=1)
    )
    assert (wide(value) == 2 * wide(lhs) @ wide(rhs).T).all()
    assert not workspace.any()


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_scales_and_bias_are_found_in_older_and_newer_order(older, with_bias):
    lhs, rhs = whole(1, (6, 16), "f8e4m3fn", 1), whole(2, (5, 16), "f8e4m3fn", 1)
    addend, bias = whole(3, (6, 5), "bf16"), whole(4, (5,), "bf16")
    scales = [scalar(0.5), scalar(2), scalar(2), scalar(0.25)]
    tail = [*scales, *[bias] * with_bias] if older else [*scales[:2], *[bias] * with_bias, scales[3]]
    epilogue = "BIAS_RELU" if with_bias else "RELU"
    (value, _) = run_call(F8, [lhs, rhs, addend, *tail], ["f8e4m3fn[6,5]", "s8[8]"], config(beta=1, epilogue=epilogue))
    before = wide(lhs) @ wide(rhs).T + (2 if older else 1) * wide(addend) + with_bias * wide(bias)
    expected = (0.25 * np.maximum(before, 0)).astype(np.float32).astype(ml_dtypes.float8_e4m3fn)
    assert (wide(value) == wide(expected)).all()


def test_the_largest_magnitude_is_taken_before_the_scale_and_the_result_saturates():
    lhs, rhs = np.array([[448, -448], [1, 0]]), np.array([[448, 448], [-2, 0]])
    storage = ml_dtypes.float8_e4m3fn
    value, largest, _ = run_call(
        F8, [lhs.astype(storage), rhs.astype(storage), scalar(1), scalar(1), scalar(0.5)],
        ["f8e4m3fn[2,2]", "f32[]", "s8[8]"], config(damax_output=True),
    )  # fmt: skip
    # 0, -896; 448, -2, halved.
    assert wide(value).tolist() == [[0, -448], [224, -1]]
    assert float(largest) == 896


def test_nan_is_not_saturated():
    storage = ml_dtypes.float8_e5m2
    lhs, rhs = np.array([[np.nan]]).astype(storage), np.array([[1]]).astype(ml_dtypes.float8_e4m3fn)
    value, _ = run_call(F8, [lhs, rhs, *[scalar(1)] * 3], ["f8e5m2[1,1]", "s8[8]"], config())
    assert np.isnan(wide(value)).all()


@pytest.mark.parametrize(("lhs_type", "rhs_type"), [("f8e4m3fn", "f8e5m2"), ("f8e5m2", "f8e4m3fn"), ("f4e2m1fn",) * 2])
def test_blocks_of_thirty_two_have_a_scale_each(lhs_type, rhs_type):
    numbers = NUMBERS | {
        "lhs_contracting_dimensions": ["2"], "rhs_contracting_dimensions": ["2"],
        "lhs_batch_dimensions": ["0"], "rhs_batch_dimensions": ["0"],
    }  # fmt: skip
    lhs, rhs = whole(1, (2, 4, 64), lhs_type), whole(2, (2, 3, 64), rhs_type)
    scales = [
        np.exp2(whole(seed, shape)).astype(ml_dtypes.float8_e8m0fnu) for seed, shape in ((3, (2, 4, 2)), (4, (2, 3, 2)))
    ]
    value, _ = run_call(
        MX, [lhs, rhs, *scales], ["f32[2,4,3]", "s8[8]"],
        config(dot_dimension_numbers=numbers, scale_mode=2, alpha_real=2),
    )  # fmt: skip
    scaled = [wide(x) * np.repeat(wide(scale), 32, -1) for x, scale in zip((lhs, rhs), scales, strict=True)]
    assert (value == 2 * np.einsum("bmk,bnk->bmn", *scaled)).all()


def grouped_config(**changes: Any) -> str:
    numbers = NUMBERS | {"rhs_contracting_dimensions": ["1"]}
    ragged = {
        "dot_dimension_numbers": numbers,
        "lhs_ragged_dimensions": ["0"],
        "rhs_group_dimensions": ["0"],
    }
    gemm = GEMM | {"dot_dimension_numbers": numbers} | changes.pop("gemm", {})
    inner = {"gemm_backend_config": gemm, "ragged_dot_dimension_numbers": ragged | changes}
    return json.dumps({"operation_queue_id": "0", "grouped_gemm_backend_config": inner})


@pytest.mark.parametrize("name", ["f32", "f16", "bf16"])
def test_each_group_of_rows_has_a_matrix_of_its_own(name):
    lhs, rhs = whole(1, (10, 4), name), whole(2, (3, 4, 5), name)
    sizes = np.array([2, 0, 7], np.int32)
    value, workspace = run_call(GROUPED, [lhs, rhs, sizes], [f"{name}[10,5]", "s8[64]"], grouped_config())
    expected = np.zeros((10, 5))
    expected[:2] = wide(lhs)[:2] @ wide(rhs)[0]
    expected[2:9] = wide(lhs)[2:9] @ wide(rhs)[2]
    assert (wide(value) == expected).all()
    assert not workspace.any()


def test_a_grouped_product_is_scaled_and_added_to():
    lhs, rhs, addend = whole(1, (10, 4)), whole(2, (2, 4, 5)), whole(3, (10, 5))
    sizes = np.array([3, 7], np.int64)
    value, _ = run_call(
        GROUPED, [lhs, rhs, sizes, addend], ["f32[10,5]", "s8[8]"],
        grouped_config(gemm={"beta": 2, "alpha_real": 0.5, "epilogue": "RELU"}),
    )  # fmt: skip
    product = np.concatenate([wide(lhs)[:3] @ wide(rhs)[0], wide(lhs)[3:] @ wide(rhs)[1]])
    assert (value == np.maximum(0.5 * product + 2 * addend, 0)).all()


def eight_bit(*ranks: Any) -> list[Any]:
    matrix = np.ones((4, 4), ml_dtypes.float8_e4m3fn)
    return [matrix, matrix, *(np.ones((4,) * rank, np.float32) for rank in ranks)]


@pytest.mark.parametrize(
    ("target", "operands", "text", "words"),
    [
        (F8, eight_bit(0, 0), config(epilogue="GELU_AUX"), "auxiliary result"),
        (F8, eight_bit(0, 0), config(scale_mode=2), "its scale_mode is 2"),
        (F8, eight_bit(0, 0), config(alpha_imag=1), "scales a result"),
        (F8, eight_bit(0, 0), config(swizzled=True), "the field swizzled"),
        (F8, eight_bit(), config(), "two to four scales"),
        (F8, eight_bit(0, 0), config(epilogue="BIAS"), "a bias"),
        (F8, eight_bit(0, 0, 1), config(), "no bias"),
        (F8, eight_bit(0, 0), config(beta=1), "3 matrices"),
        (MX, eight_bit(2, 2), config(scale_mode=1), "its scale_mode is 1"),
        (MX, eight_bit(2, 2), config(beta=1), "it has beta"),
        (GROUPED, eight_bit(1), grouped_config(gemm={"epilogue": "BIAS"}), "whose shape with groups is not public"),
        (GROUPED, eight_bit(1), grouped_config(gemm={"damax_output": True}), "damax_output"),
        (GROUPED, eight_bit(1), grouped_config(lhs_ragged_dimensions=["x"]), "list of whole numbers"),
        (GROUPED, eight_bit(1), config(), "must be an object"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_name(target, operands, text, words):
    assert words in refusal(target, operands, ["f32[4,4]", "s8[8]"], text)


def test_block_scales_that_do_not_divide_are_refused():
    operands = [*eight_bit(), np.ones((4, 3), np.float32), np.ones((4, 1), np.float32)]
    assert "must divide" in refusal(MX, operands, ["f32[4,4]", "s8[8]"], config())
