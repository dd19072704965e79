"""Numbers in blocks that share a scale, against the HLO that XLA expands these calls to, run by XLA:CPU."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from conformance.cell import shape_of
from conformance.xla import run_hlo
from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.errors import HloError

EXACT = {"xla_allow_excess_precision": False}
# Numbers' type, scales' type, block: MXFP8 in both forms, NVFP4, and MXFP4.
FORMATS = [
    ("f8e4m3fn", "f8e8m0fnu", 32),
    ("f8e5m2", "f8e8m0fnu", 32),
    ("f4e2m1fn", "f8e4m3fn", 16),
    ("f4e2m1fn", "f8e8m0fnu", 32),
]


def module(operands: Any, result: str, body: str) -> str:
    lines = [f"  p{n} = {shape_of(operand)} parameter({n})" for n, operand in enumerate(operands)]
    return (
        "HloModule m\n\nmx {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT m = f32[] maximum(a, b)\n}\n\nENTRY e {\n"
        + "\n".join(lines)
        + f"\n{body}\n}}\n"
    )


def call(target: str, *operands: Any, result: str, config: str = "") -> Any:
    names = ", ".join(f"p{n}" for n in range(len(operands)))
    suffix = f", backend_config={config}" if config else ""
    body = f'  ROOT r = {result} custom-call({names}), custom_call_target="{target}"{suffix}'
    return hloexec.run(hloexec.parse(module(operands, result, body)), *operands)


def numbers(name: str, *shape: int, seed: int = 0) -> Any:
    """Finite numbers of a narrow type, by their bits."""
    storage = ELEMENT_TYPES[name].storage
    patterns = np.arange(16 if name.startswith("f4") else 256, dtype=np.uint8).view(storage)
    finite = patterns[np.isfinite(patterns.astype(np.float32))]
    return finite[np.random.default_rng(seed).integers(0, len(finite), shape)]


def scales(name: str, *shape: int, seed: int = 1) -> Any:
    """Powers of two around 1, which every type holds."""
    exponents = np.random.default_rng(seed).integers(-3, 4, shape)
    return np.ldexp(1.0, exponents).astype(np.float32).astype(ELEMENT_TYPES[name].storage)


def bits(array: Any) -> Any:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("name", "scale", "block"), FORMATS)
@pytest.mark.parametrize("result", ["f32", "bf16"])
def test_dequantizing_multiplies_each_block_by_its_scale(name, scale, block, result):
    operands = numbers(name, 3, 2 * block), scales(scale, 3, 2)
    body = f"""  n = {result}[3,{2 * block}] convert(p0)
  s = {result}[3,2] convert(p1)
  b = {result}[3,2,{block}] broadcast(s), dimensions={{0,1}}
  f = {result}[3,{2 * block}] reshape(b)
  ROOT r = {result}[3,{2 * block}] multiply(n, f)"""
    (expected,) = run_hlo(module(operands, result, body), *operands, xla_flags=EXACT)
    found = call("__op$dequantize", *operands, result=f"{result}[3,{2 * block}]")
    assert_array_equal(bits(found), bits(expected))


@pytest.mark.slow_cases("f8e4m3fn-f8e8m0fnu-32", "f8e5m2-f8e8m0fnu-32", "f4e2m1fn-f8e4m3fn-16")
@pytest.mark.parametrize(("name", "scale", "block"), FORMATS)
def test_quantizing_divides_each_block_by_the_rounded_scale(name, scale, block):
    x = np.random.default_rng(2).normal(size=(4, 2 * block)).astype(np.float32) * np.ldexp(1, np.arange(4))[:, None]
    x = x.astype(np.float32)
    largest = {"f8e4m3fn": 256, "f8e5m2": 32768, "f4e2m1fn": 4}[name]
    shape = f"[4,{2 * block}]"
    body = f"""  x = f32[4,2,{block}] reshape(p0)
  a = f32[4,2,{block}] abs(x)
  z = f32[] constant(0)
  m = f32[4,2] reduce(a, z), dimensions={{2}}, to_apply=mx
  c = f32[] constant({largest})
  cb = f32[4,2] broadcast(c), dimensions={{}}
  q = f32[4,2] divide(m, cb)
  s = {scale}[4,2] convert(q)
  w = f32[4,2] convert(s)
  b = f32[4,2,{block}] broadcast(w), dimensions={{0,1}}
  d = f32[4,2,{block}] divide(x, b)
  f = f32{shape} reshape(d)
  n = {name}{shape} convert(f)
  ROOT r = ({name}{shape}, {scale}[4,2]) tuple(n, s)"""
    expected = run_hlo(module([x], "", body), x, xla_flags=EXACT)
    found = call("__op$quantize", x, result=f"({name}{shape}, {scale}[4,2])")
    for ours, theirs in zip(found, expected, strict=True):
        assert_array_equal(bits(ours), bits(theirs))


Q, S = numbers("f8e4m3fn", 3, 64), scales("f8e8m0fnu", 3, 2)


@pytest.mark.parametrize(
    ("target", "operands", "result", "message"),
    [
        ("__op$dequantize", [Q, S[:2]], "f32[3,64]", "cannot belong to blocks"),
        ("__op$dequantize", [Q, S], "s32[3,64]", "floating-point"),
        ("__op$dequantize", [Q[:, :63], S], "f32[3,63]", "cannot belong to blocks"),
        ("__op$quantize", [np.zeros((3, 64), np.float32)], "f8e4m3fn[3,64]", "numbers and scales"),
        ("__op$quantize", [np.zeros((3, 64), np.float32)], "(f32[3,64], f8e8m0fnu[3,2])", "at most 16 bits"),
    ],
)
def test_operands_and_results_that_do_not_fit_are_refused(target, operands, result, message):
    with pytest.raises(HloError, match=message):
        call(target, *map(np.asarray, operands), result=result)
