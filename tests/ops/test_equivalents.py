"""Modules made for XLA compute the same as the modules that they are made of, on hloexec bit for bit, and XLA:CPU runs
them."""

import re
from itertools import chain
from pathlib import Path

import numpy as np
import pytest

import hloexec
from conformance import xla
from hloexec.core.ir import Module
from hloexec.core.values import arrays_of
from hloexec.errors import UnsupportedError
from hloexec.ops.equivalents.modules import for_xla
from hloexec.ops.registry import OPCODES, Role, role_of

ROOT = Path(__file__).resolve().parents[2]
DOUBLE = "d { p = f32[2,3] parameter(0)\n ROOT q = f32[2,3] add(p, p) }"
ADD = "add { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT c = f32[] add(a, b) }"


def module(body: str, computations: str = "", header: str = "") -> Module:
    return hloexec.parse(f"HloModule m{header}\n{computations}\nENTRY e {{\n{body}\n}}\n")


def gemm(target: str, operands: str, **config: object) -> str:
    numbers = '"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]'
    fields = {"alpha_real": 1, "beta": 0, **config}
    written = ",".join(f'"{name}":{value}' for name, value in fields.items())
    config_text = f'{{"gemm_backend_config":{{{written},"dot_dimension_numbers":{{{numbers}}}}}}}'
    return f'custom-call({operands}), custom_call_target="{target}", backend_config={config_text}'


def convolution(target: str, **config: object) -> str:
    fields = {"conv_result_scale": 1, **config}
    written = ",".join(f'"{name}":{value}' for name, value in fields.items())
    return (
        f'custom_call_target="__cudnn${target}", window={{size=3x2 stride=2x1 pad=1_1x0_1}}, dim_labels=bf01_oi01->bf01, '
        f'feature_group_count=2, backend_config={{"cudnn_conv_backend_config":{{{written}}}}}'
    )


X, W, Y = "f32[2,4,6,5]", "f32[6,2,3,2]", "f32[2,6,3,5]"
PARAMETERS = "x = bf16[4,6] parameter(0)\n y = bf16[6,2] parameter(1)\n"
CASES = {
    "fusion": module("p = f32[2,3] parameter(0)\n ROOT f = f32[2,3] fusion(p), kind=kLoop, calls=d", DOUBLE),
    "asynchronous": module(
        "p = f32[2,3] parameter(0)\n s = ((f32[2,3]), f32[2,3], u32[]) async-start(p), calls=d\n"
        "u = ((f32[2,3]), f32[2,3], u32[]) async-update(s)\n ROOT r = f32[2,3] async-done(u)",
        DOUBLE,
    ),
    "asynchronous copy": module(
        "p = f32[2]{0} parameter(0)\n s = (f32[2]{0:S(1)}, f32[2]{0}, u32[]) copy-start(p)\n"
        "ROOT r = f32[2]{0:S(1)} copy-done(s)"
    ),
    "bitcast": module("p = f32[2,3]{0,1} parameter(0)\n ROOT b = f32[6] bitcast(p)"),
    "bitcast of tiles": module("p = f32[3,5]{1,0:T(2,4)} parameter(0)\n ROOT b = f32[2,2,2,4]{3,2,1,0} bitcast(p)"),
    "bitcast of the first elements": module("p = f32[8]{0} parameter(0)\n ROOT b = f32[3,2]{0,1} bitcast(p)"),
    "bitcast to wider elements": module("p = u8[6]{0} parameter(0)\n ROOT b = u16[3] bitcast(p)"),
    "bitcast to narrower elements": module("p = s32[2,2]{0,1} parameter(0)\n ROOT b = u8[2,8] bitcast(p)"),
    "bitcast of preds": module("p = u8[2] parameter(0)\n ROOT b = pred[2] bitcast(p)"),
    "gemm": module(
        f"{PARAMETERS} c = bf16[4,2] parameter(2)\n b = bf16[2] parameter(3)\n ROOT g = (bf16[4,2], bf16[4,2], s8[8]) "
        + gemm("__cublas$lt$matmul", "x, y, c, b", alpha_real=0.125, beta=0.25, epilogue='"BIAS_GELU_AUX"')
    ),
    "gemm with silu": module(
        f"{PARAMETERS} ROOT g = bf16[4,2] " + gemm("__cublas$lt$matmul", "x, y", epilogue='"SILU"')
    ),
    "gemm of 8 bits": module(
        "x = f8e4m3fn[4,6] parameter(0)\n y = f8e4m3fn[6,2] parameter(1)\n s = f32[] parameter(2)\n t = f32[] parameter(3)\n"
        "ROOT g = (f8e4m3fn[4,2], f32[], s8[4]) "
        + gemm("__cublas$lt$matmul$f8", "x, y, s, t, s", damax_output="true", epilogue='"RELU"')
    ),
    "convolution": module(
        f"x = {X} parameter(0)\n w = {W} parameter(1)\n b = f32[6] parameter(2)\n s = {Y} parameter(3)\n"
        f"ROOT c = ({Y}, u8[16]) custom-call(x, w, b, s), "
        + convolution("convBiasActivationForward", side_input_scale=0.5, activation_mode='"kElu"')
    ),
    "gradient of a convolution's input": module(
        f"y = {Y} parameter(0)\n w = {W} parameter(1)\n"
        f"ROOT c = ({X}, u8[0]) custom-call(y, w), " + convolution("convBackwardInput")
    ),
    "gradient of a convolution's filter": module(
        f"x = {X} parameter(0)\n y = {Y} parameter(1)\n"
        f"ROOT c = ({W}, u8[0]) custom-call(x, y), " + convolution("convBackwardFilter")
    ),
    "floats of several types": module(
        "x = bf16[3] parameter(0)\n y = f32[3] parameter(1)\n z = f32[] constant(0.1)\n a = bf16[3] add(x, y)\n"
        "m = f32[3] multiply(a, y)\n p = bf16[4] pad(m, z), padding=0_1\n ROOT t = (bf16[4], f32[3]) tuple(p, m)"
    ),
    "products of several types": module(
        "x = bf16[3,4] parameter(0)\n y = f32[4,2] parameter(1)\n d = f32[3,2] dot(x, y), lhs_contracting_dims={1}, "
        "rhs_contracting_dims={0}\n v = f32[4,1,2] reshape(y)\n w = bf16[2,1,3] parameter(2)\n "
        "c = bf16[4,1,3] convolution(v, w), window={size=1}, dim_labels=b0f_i0o->b0f\n"
        "ROOT t = (f32[3,2], bf16[4,1,3]) tuple(d, c)"
    ),
    "copies and reductions to another type": module(
        "x = f32[3,4] parameter(0)\n c = bf16[3,4]{0,1:T(8,128)} copy(x)\n z = f32[] constant(0)\n"
        "r = bf16[3] reduce(x, z), dimensions={1}, to_apply=add\n i = s32[3,4] iota(), iota_dimension=1\n"
        "n = s32[] constant(0)\n q = (bf16[3], s32[3]) reduce(x, i, z, n), dimensions={1}, to_apply=first\n"
        "v = bf16[3] get-tuple-element(q), index=0\n w = s32[3] get-tuple-element(q), index=1\n"
        "ROOT p = (bf16[3], s32[3], bf16[3], bf16[3,4]) tuple(v, w, r, c)",
        f"{ADD}\nfirst {{ a = f32[] parameter(0)\n i = s32[] parameter(1)\n b = f32[] parameter(2)\n j = s32[] parameter(3)\n"
        "g = pred[] compare(a, b), direction=GE\n v = f32[] select(g, a, b)\n w = s32[] select(g, i, j)\n"
        "ROOT t = (f32[], s32[]) tuple(v, w) }",
    ),
    "tokens after arrays": module(
        "x = f32[3] parameter(0)\n t = token[] after-all(x)\n ROOT y = f32[3] add-dependency(x, t)"
    ),
    "values that are used before they are defined": module(
        "ROOT r = f32[2] add(f, p)\n f = f32[2] copy(p)\n p = f32[2]{0} parameter(0)"
    ),
    "halves of products": module(
        "a = s32[4] parameter(0)\n b = u16[4] parameter(1)\n c = s32[4] mulhi(a, a)\n d = u16[4] mulhi(b, b)\n"
        "ROOT t = (s32[4], u16[4]) tuple(c, d)"
    ),
    "random bits": module(
        "k = u32[3] parameter(0)\n x = u32[3] parameter(1)\n"
        'ROOT t = (u32[3], u32[3]) custom-call(k, x, x, k), custom_call_target="cu_threefry2x32_ffi"'
    ),
    "the largest": module(
        'x = f32[2,5] parameter(0)\n ROOT t = (f32[2,2], s32[2,2]) custom-call(x), custom_call_target="TopK", '
        "called_computations={g}",
        "g { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT c = pred[] compare(a, b), direction=GT }",
    ),
    "parts of an array": module(
        'a = f32[2,3]{1,0} parameter(0)\n ROOT c = f32[4,3]{1,0} custom-call(a, a), custom_call_target="ConcatBitcast"'
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_stands_for_instructions_computes_the_same(name: str) -> None:
    original = CASES[name]
    equivalent = for_xla(original)
    inputs = hloexec.random_inputs(original, seed=1)
    expected, value = hloexec.run(original, *inputs), hloexec.run(equivalent, *inputs)
    assert [array.tobytes() for array in arrays_of(value)] == [array.tobytes() for array in arrays_of(expected)]
    theirs = xla.run_hlo(hloexec.format(equivalent), *inputs, xla_flags=xla.COMPILED_SOONEST)
    assert hloexec.compare(tuple(theirs), arrays_of(expected), module=original, inputs=inputs).agrees


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.hlo")), ids=lambda path: path.stem)
def test_examples_compute_the_same_on_every_device(path: Path) -> None:
    original = hloexec.load(path)
    inputs = hloexec.random_inputs(original, seed=2)
    results = [hloexec.run_devices(made, inputs) for made in (original, for_xla(original))]
    before, after = ([array.tobytes() for array in chain(*map(arrays_of, devices))] for devices in results)
    assert before == after


IN_PAIRS = "replica_groups={{0,1},{2,3}}"
AMONG_ALL = "replica_groups={{0,1,2,3}}"
COLLECTIVES = f"""
  x = f32[4,2] parameter(0)
  p = u32[] partition-id()
  n = f32[] convert(p)
  y = f32[4,2] broadcast(n), dimensions={{}}
  z = f32[4,2] add(x, y)
  s = (f32[4,2], f32[8,2]) all-gather-start(z), channel_id=1, {IN_PAIRS}, dimensions={{0}}, use_global_device_ids=true
  g = f32[8,2] all-gather-done(s)
  b = (f32[4,2], f32[4,2], u32[], u32[]) collective-permute-start(z), channel_id=2, source_target_pairs={{{{0,1}},{{1,3}}}}
  c = f32[4,2] collective-permute-done(b)
  r = f32[4,2] all-reduce(z), channel_id=3, replica_groups=[2,2]<=[4], use_global_device_ids=true, to_apply=add
  d = f32[1,2] reduce-scatter(z), channel_id=4, {AMONG_ALL}, dimensions={{0}}, use_global_device_ids=true, to_apply=add
  a = f32[4,2] all-to-all(z), channel_id=5, {AMONG_ALL}, dimensions={{0}}
  h = (f32[4,2], f32[4,2]) all-to-all(z, x), channel_id=6, {IN_PAIRS}
  ROOT t = (f32[8,2], f32[4,2], f32[4,2], f32[1,2], f32[4,2], (f32[4,2], f32[4,2])) tuple(g, c, r, d, a, h)"""


def test_partitions_exchange_the_same() -> None:
    original = module(COLLECTIVES, ADD, ", num_partitions=4")
    equivalent = for_xla(original)
    inputs = [np.arange(8, dtype=np.float32).reshape(4, 2)]
    expected = [arrays_of(value) for value in hloexec.run_devices(original, inputs)]
    compiled = xla.compile_hlo(hloexec.format(equivalent), xla_flags=xla.COMPILED_SOONEST)
    for ours, theirs in zip(expected, compiled.run_devices([inputs] * 4), strict=True):
        assert [array.tolist() for array in ours] == [array.tolist() for array in theirs]


def test_all_that_has_no_equivalent_is_named() -> None:
    original = module(
        "x = f32[2] parameter(0)\n a = f32[2] acosh(x)\n b = f32[2] acosh(a)\n"
        'ROOT c = f32[2] custom-call(b), custom_call_target="mine"'
    )
    reasons = "%a and 1 other (acosh): XLA:CPU has no code for it; %c (mine): it is not public what it computes"
    with pytest.raises(UnsupportedError, match=re.escape(f"m has no equivalent that XLA:CPU compiles: {reasons}")):
        for_xla(original)


def test_what_depends_on_itself_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="%a depends on itself"):
        for_xla(module("a = f32[2] add(b, b)\n ROOT b = f32[2] negate(a)"))


def test_nothing_is_left_that_only_optimized_modules_have() -> None:
    for original in CASES.values():
        made = for_xla(original)
        opcodes = {instruction.opcode for computation in made for instruction in computation}
        roles = {role_of(instruction) for computation in made for instruction in computation}
        assert opcodes.isdisjoint({"fusion", "bitcast", "copy"}) and opcodes <= {*OPCODES}
        assert roles.isdisjoint({Role.ASYNC_START, Role.COPY_START, Role.PART, Role.CUSTOM_CALL})
