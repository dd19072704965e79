"""Modules for mutants of what the other texts lack: library calls, devices, started operations, loops in loops."""

from __future__ import annotations

from collections.abc import Iterator

from tests.text.building import ADD, module, op

_GEMM = (
    '{"gemm_backend_config":{"alpha_real":2,"alpha_imag":0,"beta":1,"epilogue":"DEFAULT","dot_dimension_numbers":'
    '{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"],"lhs_batch_dimensions":[],'
    '"rhs_batch_dimensions":[]}}}'
)
_CONVOLUTION = '{"cudnn_conv_backend_config":{"conv_result_scale":1,"activation_mode":"kNone","side_input_scale":0}}'
_WINDOW = "window={size=3x3 pad=1_1x1_1}, dim_labels=bf01_oi01->bf01"
_CALLS = {
    "__cublas$gemm": ("f32[3,5]", ("f32[3,4]", "f32[4,5]", "f32[3,5]"), _GEMM),
    "__cublas$lt$matmul": ("(f32[3,5], s8[8])", ("f32[3,4]", "f32[4,5]", "f32[3,5]"), _GEMM),
    "__onednn$softmax": ("f32[3,4]", ("f32[3,4]",), '{"onednn_softmax_config":{"softmax_axis":1}}'),
    "lapack_sgetrf_ffi": ("(f32[3,3], s32[3], s32[])", ("f32[3,3]",), "{}"),
    "lapack_spotrf_ffi": ("(f32[3,3], s32[])", ("f32[3,3]",), "{uplo = 76 : ui8}"),
    "lapack_ssyevd_ffi": ("(f32[3,3], f32[3], s32[])", ("f32[3,3]",), "{mode = 86 : ui8, uplo = 76 : ui8}"),
    "lapack_sgesdd_ffi": (
        "(f32[4,3], f32[3], f32[4,4], f32[3,3], s32[])", ("f32[4,3]",), "{mode = 65 : ui8}"
    ),
    "cusolver_geqrf_ffi": ("(f32[4,3], f32[3])", ("f32[4,3]",), "{}"),
    "cu_lu_pivots_to_permutation": ("s32[3]", ("s32[3]",), "{}"),
    "cu_threefry2x32_ffi": ("(u32[4], u32[4])", ("u32[4]",) * 4, "{}"),
    "cusparse_gtsv2_ffi": ("f32[4,2]", ("f32[4]", "f32[4]", "f32[4]", "f32[4,2]"), "{}"),
    "xla.gpu.ext.cub_sort_keys": ("(f32[8], u8[1])", ("f32[8]",), "{batch_size = 1 : i64, descending = false}"),
    "PadToStatic": ("(f32[4,2], s32[], s32[])", ("f32[<=4,2]",), ""),
    "X64Combine": ("u64[3]", ("u32[3]", "u32[3]"), ""),
    "Sharding": ("f32[4]", ("f32[4]",), ""),
    "MoveToHost": ("f32[4]", ("f32[4]",), ""),
    "AllocateBuffer": ("f32[4]", (), ""),
    "ResizeBilinear": ("f32[1,4,4,2]", ("f32[1,2,2,2]",), "01"),
    "te_act_lu_ffi": ("(f32[3,4], f32[0], f32[0], f32[0], f32[0])", ("f32[3,1,4]", "f32[0]"), "{act_enum = 0 : i64}"),
    "te_scaled_softmax_forward_ffi": ("bf16[1,1,4,4]", ("bf16[1,1,4,4]",), "{scale_factor = 0.5 : f64}"),
}  # fmt: skip
"""Result, operands and config by target."""
_GREATER = """greater {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  i = s32[] parameter(2)
  j = s32[] parameter(3)
  ROOT g = pred[] compare(x, y), direction=GT
}
"""
_LOOPS = """less {
  s = (s32[], f32[4,3]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT l = pred[] compare(i, n), direction=LT
}
step {
  s = (s32[], f32[4,3]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[4,3] get-tuple-element(s), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  zero = s32[] constant(0)
  row = f32[1,3] dynamic-slice(x, i, zero), dynamic_slice_sizes={1,3}
  t = f32[1,3] tanh(row)
  y = f32[4,3] dynamic-update-slice(x, t, i, zero)
  ROOT r = (s32[], f32[4,3]) tuple(j, y)
}
outer {
  s = (s32[], f32[4,3]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[4,3] get-tuple-element(s), index=1
  zero = s32[] constant(0)
  start = (s32[], f32[4,3]) tuple(zero, x)
  w = (s32[], f32[4,3]) while(start), condition=less, body=step
  y = f32[4,3] get-tuple-element(w), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  ROOT r = (s32[], f32[4,3]) tuple(j, y)
}
"""
_BRANCHES = """double {
  p = (f32[4], s32[]) parameter(0)
  x = f32[4] get-tuple-element(p), index=0
  ROOT r = f32[4] add(x, x)
}
same {
  p = (f32[4], s32[]) parameter(0)
  ROOT x = f32[4] get-tuple-element(p), index=0
}
"""
_STARTED = """negated {
  x = f32[4] parameter(0)
  ROOT n = f32[4] negate(x)
}, execution_thread="side"
"""
_DIFFERENT_DEVICES = """ask {
  x = f32[4] parameter(0)
  ROOT r = f32[4] collective-permute(x), source_target_pairs={{0,1},{1,0}}
}
keep {
  ROOT x = f32[4] parameter(0)
}
"""


def modules() -> Iterator[str]:
    for target, (result, operands, config) in _CALLS.items():
        yield _call(target, result, operands, config)
    yield op(
        f'(f32[2,4,6,6], u8[8]) custom-call(x, w), {_WINDOW}, custom_call_target="__cudnn$convForward", '
        f"backend_config={_CONVOLUTION}",
        x="f32[2,3,6,6]", w="f32[4,3,3,3]",
    )  # fmt: skip
    yield op(
        '(f32[2,3], s32[2,3]) custom-call(x), custom_call_target="TopK", called_computations={greater}', _GREATER,
        x="f32[2,8]",
    )  # fmt: skip
    yield module(
        "x = f32[4,2] parameter(0)\nm = s32[] constant(3)\nn = s32[] constant(2)\n"
        'ROOT r = f32[<=4,2] custom-call(x, m, n), custom_call_target="SliceToDynamic"'
    )
    yield op("(s32[], f32[4,3]) while(s), condition=less, body=outer", _LOOPS, s="(s32[], f32[4,3])")
    yield op("f32[4] conditional(i, p, p, p), branch_computations={double, same, double}", _BRANCHES,
             i="s32[]", p="(f32[4], s32[])")  # fmt: skip
    yield _many_devices()
    yield module(
        "x = f32[4] parameter(0)\nid = u32[] replica-id()\none = u32[] constant(1)\n"
        "c = pred[] compare(id, one), direction=LE\n"
        "ROOT r = f32[4] conditional(c, x, x), true_computation=ask, false_computation=keep",
        _DIFFERENT_DEVICES, ", replica_count=3",
    )  # fmt: skip
    yield module(
        "x = f32[4] parameter(0)\n"
        's = ((f32[4]), f32[4], s32[]) async-start(x), calls=negated, async_execution_thread="side"\n'
        "u = ((f32[4]), f32[4], s32[]) async-update(s)\nd = f32[4] async-done(u)\n"
        "cs = (f32[4], f32[4], u32[]) copy-start(d)\ncd = f32[4] copy-done(cs)\nROOT r = f32[4] add(cd, x)",
        _STARTED,
    )
    yield module(
        "x = f32[<=6,2] parameter(0)\nn = s32[] get-dimension-size(x), dimensions={0}\nhalf = s32[] constant(2)\n"
        "m = s32[] divide(n, half)\ny = f32[<=6,2] set-dimension-size(x, m), dimensions={0}\nz = f32[] constant(0)\n"
        "s = f32[2] reduce(y, z), dimensions={0}, to_apply=add_f32\nflat = f32[<=12] reshape(y)\ne = () tuple()\n"
        "pair = (s32[], ()) tuple(n, e)\nROOT t = (f32[2], f32[<=12], (s32[], ())) tuple(s, flat, pair)",
        ADD,
    )
    yield module(
        "c = (f32[2,2], (s4[3], pred[2]), c64[1], u64[2]) constant(({ {1.5, -nan}, {inf, -0} }, ({-8, 7, 1}, {true, 0}), "
        "{(1, -2)}, {18446744073709551615, 1}))\na = f32[2,2] get-tuple-element(c), index=0\n"
        "b = f8e4m3fn[2,2] convert(a)\nd = f32[2,2] convert(b)\nROOT r = f32[2,2] multiply(a, d)"
    )


def _call(target: str, result: str, operands: tuple[str, ...], config: str) -> str:
    names = [f"x{number}" for number in range(len(operands))]
    if config.startswith("{") and not config.startswith('{"'):
        written = f", api_version=API_VERSION_TYPED_FFI, backend_config={config}"
    else:
        written = f", backend_config={config if config[:1] == '{' else chr(34) + config + chr(34)}" if config else ""
    text = f'{result} custom-call({", ".join(names)}), custom_call_target="{target}"{written}'
    return op(text, **dict(zip(names, operands, strict=True)))


def _many_devices() -> str:
    return module(
        "x = f32[8,2] parameter(0), sharding={devices=[4,1]<=[4]}\n"
        "sum = f32[8,2] all-reduce(x), replica_groups={{0,1},{2,3}}, channel_id=1, use_global_device_ids=true, "
        "to_apply=add_f32\n"
        "part = f32[4,2] reduce-scatter(sum), replica_groups=[2,2]<=[4], channel_id=2, use_global_device_ids=true, "
        "dimensions={0}, to_apply=add_f32\n"
        "gs = (f32[4,2], f32[8,2]) all-gather-start(part), replica_groups={{0,2},{1,3}}, channel_id=3, "
        "use_global_device_ids=true, dimensions={0}\n"
        "g = f32[8,2] all-gather-done(gs)\n"
        "a = f32[8,2] all-to-all(g), replica_groups={{0,1,2,3}}, channel_id=4, dimensions={0}\n"
        "id = u32[] partition-id()\nf = f32[] convert(id)\nb = f32[8,2] broadcast(f), dimensions={}\n"
        "ROOT r = f32[8,2] add(a, b)",
        ADD,
        ", num_partitions=4",
    )
