"""Block-scaled products against the HLO that XLA expands them to, run by XLA:CPU."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hloexec
from conformance.cell import shape_of
from hloexec.errors import UnsupportedError, VerificationError
from tests.library_calls.cudnn.modules import call, module, whole

xla = pytest.importorskip("conformance.xla")

FORMATS = {
    "mxfp8": (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu, 32),
    "nvfp4": (ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e4m3fn, 16),
}


def scaled(rows: int, depth: int, kind: str, seed: int, batch: tuple[int, ...] = (2,)) -> tuple[Any, Any]:
    """Whole numbers and scales that are powers of two between 1/4 and 4."""
    element, scale, block = FORMATS[kind]
    values = whole(*batch, rows, depth, seed=seed, dtype=np.float32, largest=4).astype(element)
    exponents = whole(*batch, rows, depth // block, seed=seed + 10, largest=2)
    return values, np.exp2(exponents).astype(scale)


def dequantized(values: Any, scale: Any) -> Any:
    block = values.shape[-1] // scale.shape[-1]
    return values.astype(np.float32) * np.repeat(scale.astype(np.float32), block, -1)


def product(lhs: Any, rhs: Any, result: str) -> Any:
    """dot of f32 operands by XLA:CPU, rounded to the result's type; sums of such numbers are exact."""
    rank = lhs.ndim
    batch = "lhs_batch_dims={0}, rhs_batch_dims={0}, " * (rank == 3)
    wide = result.replace(result[: result.index("[")], "f32")
    text = f"""HloModule m

ENTRY e {{
  a = {shape_of(lhs)} parameter(0)
  b = {shape_of(rhs)} parameter(1)
  d = {wide} dot(a, b), {batch}lhs_contracting_dims={{{rank - 1}}}, rhs_contracting_dims={{{rank - 1}}}
  ROOT r = {result} convert(d)
}}
"""
    return xla.run_hlo(text, lhs, rhs)[0]


def config(**changes: Any) -> dict[str, Any]:
    fields = {"lhs_batch_dimensions": [0], "rhs_batch_dimensions": [0], "dequantize_type": "F32"}
    return {"scaled_dot_backend_config": fields | changes}


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("result", ["f32", "bf16"])
def test_a_block_scaled_product_is_the_product_of_the_scaled_operands(kind, result):
    lhs, lhs_scale = scaled(5, 64, kind, 1)
    rhs, rhs_scale = scaled(7, 64, kind, 2)
    value = call(
        "__op$block_scaled_dot", lhs, rhs, lhs_scale, rhs_scale, result=f"{result}[2,5,7]",
        config=config(dequantize_type=result.upper()),
    )  # fmt: skip
    expected = product(dequantized(lhs, lhs_scale), dequantized(rhs, rhs_scale), f"{result}[2,5,7]")
    assert value.dtype == expected.dtype
    assert (value == expected).all()


def test_the_second_scale_and_the_batch_may_be_missing():
    lhs, scale = scaled(5, 64, "mxfp8", 1, ())
    rhs = whole(7, 64, seed=2, dtype=np.float16)
    value = call("__op$block_scaled_dot", lhs, rhs, scale, result="f32[5,7]")
    assert (value == product(dequantized(lhs, scale), rhs.astype(np.float32), "f32[5,7]")).all()


def swizzled(scale: Any) -> Any:
    """Padded and shuffled by the HLO that XLA writes: [b, n, 4, 32, c, 4] to [b, n, c, 32, 4, 4]."""
    batch, rows, columns = scale.shape
    n, c = -(-rows // 128), -(-columns // 4)
    element = shape_of(scale).split("[")[0]
    text = f"""HloModule m

ENTRY e {{
  s = {shape_of(scale)} parameter(0)
  one = {element}[] constant(1)
  padded = {element}[{batch},{n * 128},{c * 4}] pad(s, one), padding=0_0x0_{n * 128 - rows}x0_{c * 4 - columns}
  split = {element}[{batch},{n},4,32,{c},4] reshape(padded)
  moved = {element}[{batch},{n},{c},32,4,4] transpose(split), dimensions={{0,1,4,3,2,5}}
  ROOT r = {element}[{batch},{n * 128},{c * 4}] reshape(moved)
}}
"""
    return xla.run_hlo(text, scale)[0]


@pytest.mark.parametrize("kind", FORMATS)
def test_cudnns_scales_are_padded_and_shuffled_tiles(kind):
    """130 rows take two tiles, the second one padded, and 6 or 12 blocks two or three."""
    lhs, lhs_scale = scaled(130, 192, kind, 1)
    rhs, rhs_scale = scaled(9, 192, kind, 2)
    value, scratch = call(
        "__cudnn$blockScaledDot", lhs, rhs, swizzled(lhs_scale), swizzled(rhs_scale), result="(f32[2,130,9], u8[16])"
    )
    assert (value == product(dequantized(lhs, lhs_scale), dequantized(rhs, rhs_scale), "f32[2,130,9]")).all()
    assert scratch.shape == (16,)


LHS, LHS_SCALE = scaled(5, 64, "mxfp8", 1)
RHS, RHS_SCALE = scaled(7, 64, "mxfp8", 2)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (config(lhs_batch_dimensions=[1]), "lhs_batch_dimensions are"),
        (config(rhs_batch_dimensions=3), "list of whole numbers"),
        (config(dequantize_type="BF16"), "dequantize_type is BF16"),
        (config(global_scale=2), "the field global_scale"),
        ({"scaled_dot_backend_config": 3}, "must be an object"),
    ],
)
def test_what_cannot_be_done_is_said_in_words(fields, reason):
    text = module("__op$block_scaled_dot", LHS, RHS, LHS_SCALE, RHS_SCALE, result="f32[2,5,7]", config=fields)
    with pytest.raises(UnsupportedError, match=reason):
        hloexec.run(hloexec.parse(text), LHS, RHS, LHS_SCALE, RHS_SCALE)


@pytest.mark.parametrize(
    ("target", "operands", "result", "message"),
    [
        ("__op$block_scaled_dot", [LHS, RHS], "f32[2,5,7]", "3 or 4 operands"),
        ("__op$block_scaled_dot", [LHS, RHS, LHS_SCALE, LHS_SCALE], "f32[2,5,7]", "but for the last one"),
        ("__op$block_scaled_dot", [LHS, RHS, LHS_SCALE[..., :1], RHS_SCALE], "f32[2,7,5]", r"f32\[2,5,7\]"),
        ("__op$block_scaled_dot", [LHS[0, 0], RHS[0, 0], LHS_SCALE[0, 0], RHS_SCALE[0, 0]], "f32[]", "two or three"),
        ("__cudnn$blockScaledDot", [LHS, RHS, LHS_SCALE], "(f32[2,5,7], u8[1])", "must have 4 operands"),
        ("__cudnn$blockScaledDot", [LHS, RHS, LHS_SCALE, RHS_SCALE], "(f32[2,5,7], u8[1])", "padded to"),
        (
            "__cudnn$blockScaledDot",
            [LHS, RHS, LHS_SCALE.astype(np.float32), RHS_SCALE],
            "(f32[2,5,7], u8[1])",
            "f8e8m0fnu or f8e4m3fn",
        ),
    ],
)
def test_shapes_that_do_not_fit_are_refused(target, operands, result, message):
    text = module(target, *map(np.ascontiguousarray, operands), result=result)
    with pytest.raises(VerificationError, match=message):
        hloexec.verify(hloexec.parse(text))
