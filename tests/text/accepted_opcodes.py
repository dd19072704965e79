"""Texts that XLA accepts: every opcode, with every attribute it may carry."""

from tests.text.building import ADD, ADD2, LESS, module, op

_UNARY = (
    "abs cbrt ceil cosine exponential exponential-minus-one floor log log-plus-one logistic negate round-nearest-afz \
round-nearest-even rsqrt sign sine sqrt tan tanh erf acos acosh asin asinh atanh cosh sinh copy".split()
)
_INTEGER_UNARY = "not count-leading-zeros popcnt".split()
_BINARY = "add atan2 divide maximum minimum multiply power remainder subtract".split()
_INTEGER_BINARY = "and or xor shift-left shift-right-arithmetic shift-right-logical mulhi".split()

_F2 = "f32[2]{0}"

_WHILE = """cond {
  c = (s32[], f32[2]) parameter(0)
  i = s32[] get-tuple-element(c), index=0
  n = s32[] constant(3)
  ROOT lt = pred[] compare(i, n), direction=LT
}
body {
  b = (s32[], f32[2]) parameter(0)
  i = s32[] get-tuple-element(b), index=0
  one = s32[] constant(1)
  next = s32[] add(i, one)
  v = f32[2] get-tuple-element(b), index=1
  ROOT out = (s32[], f32[2]) tuple(next, v)
}
"""
_BRANCHES = """yes {
  a = f32[2] parameter(0)
  ROOT r = f32[2] negate(a)
}
no {
  a = f32[2] parameter(0)
  ROOT r = f32[2] abs(a)
}
"""
_FUSED = """fused {
  p0 = f32[2] parameter(0)
  p1 = f32[2] parameter(1)
  ROOT r = f32[2] multiply(p0, p1)
}
"""
_SELECT = """ge {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT r = pred[] compare(x, y), direction=GE
}
"""

OPCODES: dict[str, str] = {}
"""Accepted texts by a name that says what they show."""

for _name in _UNARY:
    OPCODES[_name] = op(f"{_F2} {_name}(a)", a=_F2)
for _name in _INTEGER_UNARY:
    OPCODES[_name] = op(f"u8[2]{{0}} {_name}(a)", a="u8[2]{0}")
for _name in _BINARY:
    OPCODES[_name] = op(f"{_F2} {_name}(a, b)", a=_F2, b=_F2)
for _name in _INTEGER_BINARY:
    OPCODES[_name] = op(f"s32[2]{{0}} {_name}(a, b)", a="s32[2]{0}", b="s32[2]{0}")
for _name in "exponential log tanh erf rsqrt sine".split():
    OPCODES[f"{_name} with result accuracy mode"] = op(f"{_F2} {_name}(a), result_accuracy={{mode=highest}}", a=_F2)

OPCODES |= {
    "result accuracy default": op("f32[2] tan(a), result_accuracy={mode=default}", a=_F2),
    "result accuracy tolerance": op("f32[2] log(a), result_accuracy={tolerance={atol=0.5,rtol=0.25,ulps=2}}", a=_F2),
    "result accuracy tolerance in part": op("f32[2] log(a), result_accuracy={tolerance={ulps=4.0}}", a=_F2),
    "result accuracy tolerance in another order": op(
        "f32[2] log(a), result_accuracy={tolerance={ulps=4,atol=1e-05}}", a=_F2
    ),
    "real": op("f32[2] real(a)", a="c64[2]"),
    "imag": op("f64[2] imag(a)", a="c128[2]"),
    "is-finite": op("pred[2] is-finite(a)", a=_F2),
    "complex": op("c64[2] complex(a, b)", a=_F2, b=_F2),
    "convert": op("bf16[2] convert(a)", a=_F2),
    "bitcast": op("f32[4]{0} bitcast(a)", a="f32[2,2]{1,0}"),
    "bitcast-convert": op("s32[2] bitcast-convert(a)", a=_F2),
    "stochastic-convert": op("s8[2] stochastic-convert(a, b)", a=_F2, b="u32[2]"),
    "reduce-precision": op("f32[2] reduce-precision(a), exponent_bits=5, mantissa_bits=10", a=_F2),
    "clamp": op("f32[2] clamp(lo, a, hi)", lo="f32[]", a=_F2, hi="f32[]"),
    "select": op("f32[2] select(p, a, b)", p="pred[2]", a=_F2, b=_F2),
    "compare": op("pred[2] compare(a, b), direction=EQ", a=_F2, b=_F2),
    "compare NE": op("pred[2] compare(a, b), direction=NE", a=_F2, b=_F2),
    "compare GE": op("pred[2] compare(a, b), direction=GE", a=_F2, b=_F2),
    "compare GT": op("pred[2] compare(a, b), direction=GT", a=_F2, b=_F2),
    "compare LE": op("pred[2] compare(a, b), direction=LE", a=_F2, b=_F2),
    "compare in total order": op("pred[2] compare(a, b), direction=LT, type=TOTALORDER", a=_F2, b=_F2),
    "compare of the default type": op("pred[2] compare(a, b), direction=LT, type=FLOAT", a=_F2, b=_F2),
    "compare of signed integers": op("pred[2] compare(a, b), direction=LT, type=SIGNED", a="s8[2]", b="s8[2]"),
    "compare of unsigned integers": op("pred[2] compare(a, b), type=UNSIGNED, direction=LT", a="u8[2]", b="u8[2]"),
    "iota": op("s32[3,4] iota(), iota_dimension=1"),
    "broadcast": op("f32[2,3] broadcast(a), dimensions={0}", a=_F2),
    "broadcast of a scalar": op("f32[2,3] broadcast(a), dimensions={}", a="f32[]"),
    "broadcast of a scalar without dimensions": op("f32[2,3] broadcast(a)", a="f32[]"),
    "reshape": op("f32[4] reshape(a)", a="f32[2,2]"),
    "reshape with an inferred dimension": op("f32[<=4] reshape(a), inferred_dimension=0", a="f32[<=2,2]"),
    "dynamic-reshape": op("f32[<=4] dynamic-reshape(a, n)", a="f32[2,2]", n="s32[]"),
    "transpose": op("f32[3,2] transpose(a), dimensions={1,0}", a="f32[2,3]"),
    "reverse": op("f32[2,3] reverse(a), dimensions={0,1}", a="f32[2,3]"),
    "reverse of nothing": op("f32[2,3] reverse(a), dimensions={}", a="f32[2,3]"),
    "concatenate": op("f32[5] concatenate(a, b), dimensions={0}", a=_F2, b="f32[3]"),
    "slice": op("f32[2,1] slice(a), slice={[0:4:2], [1:2]}", a="f32[4,2]"),
    "slice without spaces": op("f32[2,1] slice(a), slice={[0:4:2],[1:2]}", a="f32[4,2]"),
    "slice of a scalar": op("f32[] slice(a), slice={}", a="f32[]"),
    "slice with an explicit unit stride": op("f32[2] slice(a), slice={[0:2:1]}", a="f32[4]"),
    "pad": op("f32[7] pad(a, z), padding=1_2_1", a="f32[3]", z="f32[]"),
    "pad without interior": op("f32[6] pad(a, z), padding=1_2", a="f32[3]", z="f32[]"),
    "pad in two dimensions": op("f32[3,8] pad(a, z), padding=0_0x3_3_1", a="f32[3,2]", z="f32[]"),
    "pad that crops": op("f32[1,2] pad(a, z), padding=-1_-1_0x0_0_0", a="f32[3,2]", z="f32[]"),
    "pad of a negative edge first": op("f32[2] pad(a, z), padding=-1_0", a="f32[3]", z="f32[]"),
    "dynamic-slice": op(
        "f32[1,2] dynamic-slice(a, i, j), dynamic_slice_sizes={1,2}", a="f32[4,2]", i="s32[]", j="s32[]"
    ),
    "dynamic-slice with a vector of starts": op(
        "f32[1,2] dynamic-slice(a, i), dynamic_slice_sizes={1,2}", a="f32[4,2]", i="s32[2]"
    ),
    "dynamic-update-slice": op("f32[4] dynamic-update-slice(a, u, i)", a="f32[4]", u="f32[1]", i="s32[]"),
    "dynamic-update-slice of a vector of starts": op(
        "f32[4,4] dynamic-update-slice(a, u, i)", a="f32[4,4]", u="f32[1,1]", i="s32[2]"
    ),
    "get-dimension-size": op("s32[] get-dimension-size(a), dimensions={1}", a="f32[4,2]"),
    "set-dimension-size": op("f32[4,<=2] set-dimension-size(a, n), dimensions={1}", a="f32[4,2]", n="s32[]"),
    "gather": op(
        "f32[5,3] gather(a, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, "
        "slice_sizes={1,3}",
        a="f32[4,3]",
        i="s32[5,1]",
    ),
    "gather of sorted indices": op(
        "f32[5,3] gather(a, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, "
        "slice_sizes={1,3}, indices_are_sorted=true",
        a="f32[4,3]",
        i="s32[5,1]",
    ),
    "gather in batches": op(
        "f32[4,3] gather(a, i), offset_dims={1}, collapsed_slice_dims={}, start_index_map={1}, "
        "operand_batching_dims={0}, start_indices_batching_dims={0}, index_vector_dim=1, slice_sizes={1,3}",
        a="f32[4,3]",
        i="s32[4,1]",
    ),
    "scatter": op(
        "f32[4,3] scatter(a, i, u), update_window_dims={1}, inserted_window_dims={0}, "
        "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add_f32",
        ADD,
        a="f32[4,3]",
        i="s32[5,1]",
        u="f32[5,3]",
    ),
    "scatter of unique sorted indices": op(
        "f32[4,3] scatter(a, i, u), update_window_dims={1}, inserted_window_dims={0}, "
        "scatter_dims_to_operand_dims={0}, index_vector_dim=1, indices_are_sorted=true, unique_indices=true, "
        "to_apply=add_f32",
        ADD,
        a="f32[4,3]",
        i="s32[5,1]",
        u="f32[5,3]",
    ),
    "scatter in batches": op(
        "f32[4,3] scatter(a, i, u), update_window_dims={1}, inserted_window_dims={}, "
        "scatter_dims_to_operand_dims={1}, input_batching_dims={0}, scatter_indices_batching_dims={0}, "
        "index_vector_dim=1, to_apply=add_f32",
        ADD,
        a="f32[4,3]",
        i="s32[4,1]",
        u="f32[4,3]",
    ),
    "scatter of several operands": op(
        "(f32[4], s32[4]) scatter(a, b, i, u, v), update_window_dims={}, inserted_window_dims={0}, "
        "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add_two",
        ADD2,
        a="f32[4]",
        b="s32[4]",
        i="s32[5,1]",
        u="f32[5]",
        v="s32[5]",
    ),
    "reduce": op("f32[2] reduce(a, z), dimensions={1}, to_apply=add_f32", ADD, a="f32[2,3]", z="f32[]"),
    "reduce of several operands": op(
        "(f32[2], s32[2]) reduce(a, b, y, z), dimensions={1}, to_apply=%add_two",
        ADD2,
        a="f32[2,3]",
        b="s32[2,3]",
        y="f32[]",
        z="s32[]",
    ),
    "reduce of no dimension": op(
        "f32[2,3] reduce(a, z), dimensions={}, to_apply=add_f32", ADD, a="f32[2,3]", z="f32[]"
    ),
    "reduce-window": op(
        "f32[2,3] reduce-window(a, z), window={size=2x1 stride=2x1}, to_apply=add_f32", ADD, a="f32[4,3]", z="f32[]"
    ),
    "reduce-window with all of a window": op(
        "f32[4,2] reduce-window(a, z), window={size=2x2 stride=2x1 pad=1_1x0_0 lhs_dilate=2x1 rhs_dilate=1x2}, "
        "to_apply=add_f32",
        ADD,
        a="f32[4,4]",
        z="f32[]",
    ),
    "reduce-window of one dimension": op(
        "f32[3] reduce-window(a, z), window={size=2}, to_apply=add_f32", ADD, a="f32[4]", z="f32[]"
    ),
    "reduce-window with cropping": op(
        "f32[2] reduce-window(a, z), window={size=2 pad=-1_0}, to_apply=add_f32", ADD, a="f32[4]", z="f32[]"
    ),
    "reduce-window of several operands": op(
        "(f32[2], s32[2]) reduce-window(a, b, y, z), window={size=2 stride=2}, to_apply=add_two",
        ADD2,
        a="f32[4]",
        b="s32[4]",
        y="f32[]",
        z="s32[]",
    ),
    "select-and-scatter": op(
        "f32[4] select-and-scatter(a, s, z), window={size=2 stride=2}, select=ge, scatter=add_f32",
        _SELECT + ADD,
        a="f32[4]",
        s="f32[2]",
        z="f32[]",
    ),
    "map": op("f32[2] map(a, b), dimensions={0}, to_apply=add_f32", ADD, a=_F2, b=_F2),
    "sort": op("f32[2] sort(a), dimensions={0}, to_apply=less", LESS, a=_F2),
    "sort that is stable": op("f32[2] sort(a), dimensions={0}, is_stable=true, to_apply=less", LESS, a=_F2),
    "topk": op("(f32[2,1], s32[2,1]) topk(a), k=1, largest=true", a="f32[2,3]"),
    "topk of the smallest": op("(f32[2,1], s32[2,1]) topk(a), k=1, largest=false", a="f32[2,3]"),
    "topk by default": op("(f32[2,1], s32[2,1]) topk(a), k=1", a="f32[2,3]"),
    "scan": op(
        "(f32[4], f32[]) scan(a, z), dimensions={0}, num_carries=1, is_reverse=true, is_associative=true, "
        "to_apply=both",
        "both {\n x = f32[] parameter(0)\n c = f32[] parameter(1)\n s = f32[] add(x, c)\n"
        " ROOT t = (f32[], f32[]) tuple(s, s)\n}\n",
        a="f32[4]",
        z="f32[]",
    ),
    "dot": op("f32[2,2] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}", a="f32[2,3]", b="f32[3,2]"),
    "dot in batches": op(
        "f32[5,2,2] dot(a, b), lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, "
        "rhs_contracting_dims={1}, operand_precision={highest,default}",
        a="f32[5,2,3]",
        b="f32[5,3,2]",
    ),
    "dot with precision": op(
        "f32[2,2] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}, operand_precision={high,highest}",
        a="f32[2,3]",
        b="f32[3,2]",
    ),
    "dot of vectors": op("f32[] dot(a, b), lhs_contracting_dims={0}, rhs_contracting_dims={0}", a=_F2, b=_F2),
    "dot as outer product": op("f32[2,3] dot(a, b)", a=_F2, b="f32[3]"),
    "ragged-dot": op(
        "f32[6,4] ragged-dot(a, b, g), lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0}, "
        "rhs_group_dims={0}",
        a="f32[6,3]",
        b="f32[2,3,4]",
        g="s64[2]",
    ),
    "scaled-dot": op(
        "f32[4,4] scaled-dot(a, s, b, t), lhs_contracting_dims={1}, rhs_contracting_dims={1}",
        a="f8e4m3fn[4,64]",
        s="f8e8m0fnu[4,2]",
        b="f8e4m3fn[4,64]",
        t="f8e8m0fnu[4,2]",
    ),
    "convolution": op(
        "f32[1,3,3,8] convolution(a, k), window={size=3x3 pad=1_1x1_1 stride=2x2}, dim_labels=b01f_01io->b01f",
        a="f32[1,6,6,4]",
        k="f32[3,3,4,8]",
    ),
    "convolution with everything": op(
        "f32[2,4,4,8] convolution(a, k), window={size=3x3 stride=1x1 pad=1_1x1_1 lhs_dilate=1x1 rhs_dilate=1x1 "
        "rhs_reversal=1x0}, dim_labels=b01f_01io->b01f, feature_group_count=2, operand_precision={highest,high}",
        a="f32[2,4,4,4]",
        k="f32[3,3,2,8]",
    ),
    "convolution in groups of the batch": op(
        "f32[2,4,4,8] convolution(a, k), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f, batch_group_count=2",
        a="f32[4,4,4,4]",
        k="f32[3,3,4,8]",
    ),
    "convolution without space": op("f32[2,8] convolution(a, k), dim_labels=bf_io->bf", a="f32[2,4]", k="f32[4,8]"),
    "convolution without space but with a window": op(
        "f32[2,8] convolution(a, k), window={}, dim_labels=bf_io->bf", a="f32[2,4]", k="f32[4,8]"
    ),
    "convolution in one dimension": op(
        "f32[1,4,8] convolution(a, k), window={size=3}, dim_labels=b0f_0io->b0f", a="f32[1,6,4]", k="f32[3,4,8]"
    ),
    "convolution with digits first": op(
        "f32[4,1,8] convolution(a, k), window={size=3}, dim_labels=0bf_0io->0bf", a="f32[6,1,4]", k="f32[3,4,8]"
    ),
    "convolution in three dimensions": op(
        "f32[1,8,2,2,2] convolution(a, k), window={size=3x3x3}, dim_labels=bf012_oi012->bf012",
        a="f32[1,4,4,4,4]",
        k="f32[8,4,3,3,3]",
    ),
    "convolution kind": op(
        "f32[2,8] convolution(a, k), dim_labels=bf_io->bf, convolution_kind=fprop", a="f32[2,4]", k="f32[4,8]"
    ),
    "convolution of every kind": module(
        """a = f32[2,4] parameter(0)
        k = f32[4,8] parameter(1)
        c = f32[2,8] convolution(a, k), dim_labels=bf_io->bf, convolution_kind=unset
        d = f32[2,8] convolution(a, k), dim_labels=bf_io->bf, convolution_kind=dgrad
        ROOT e = f32[2,8] convolution(a, k), dim_labels=bf_io->bf, convolution_kind=wgrad"""
    ),
    "convolution of a sparse operand": op(
        "f32[2,8] convolution(a, k), dim_labels=bf_io->bf, sparsity_config={lhs={sparsity=1x4 dimension=1 stride=1}}",
        a="f32[2,4]",
        k="f32[4,8]",
    ),
    "fft": op("c64[8] fft(a), fft_type=FFT, fft_length={8}", a="c64[8]"),
    "fft inverse": op("c64[2,8] fft(a), fft_type=IFFT, fft_length={2,8}", a="c64[2,8]"),
    "fft of reals": op("c64[5] fft(a), fft_type=RFFT, fft_length={8}", a="f32[8]"),
    "fft to reals": op("f32[8] fft(a), fft_type=IRFFT, fft_length={8}", a="c64[5]"),
    "cholesky": op("f32[3,3] cholesky(a), lower=true", a="f32[3,3]"),
    "cholesky of the upper half": op("f32[3,3] cholesky(a)", a="f32[3,3]"),
    "triangular-solve": op(
        "f32[3,2] triangular-solve(a, b), left_side=true, lower=true, unit_diagonal=true, transpose_a=NO_TRANSPOSE",
        a="f32[3,3]",
        b="f32[3,2]",
    ),
    "triangular-solve of the adjoint": op(
        "c64[2,3] triangular-solve(a, b), lower=true, transpose_a=ADJOINT", a="c64[3,3]", b="c64[2,3]"
    ),
    "triangular-solve of the transpose": op(
        "f32[2,3] triangular-solve(a, b), transpose_a=TRANSPOSE", a="f32[3,3]", b="f32[2,3]"
    ),
    "batch-norm-training": op(
        "(f32[2,3], f32[3], f32[3]) batch-norm-training(a, s, o), epsilon=0.001, feature_index=1",
        a="f32[2,3]",
        s="f32[3]",
        o="f32[3]",
    ),
    "batch-norm-inference": op(
        "f32[2,3] batch-norm-inference(a, s, o, m, v), epsilon=1e-05, feature_index=1",
        a="f32[2,3]",
        s="f32[3]",
        o="f32[3]",
        m="f32[3]",
        v="f32[3]",
    ),
    "batch-norm-grad": op(
        "(f32[2,3], f32[3], f32[3]) batch-norm-grad(a, s, m, v, g), epsilon=1, feature_index=1",
        a="f32[2,3]",
        s="f32[3]",
        m="f32[3]",
        v="f32[3]",
        g="f32[2,3]",
    ),
    "rng uniform": op("f32[8] rng(a, b), distribution=rng_uniform", a="f32[]", b="f32[]"),
    "rng normal": op("f32[8] rng(a, b), distribution=rng_normal", a="f32[]", b="f32[]"),
    "rng-bit-generator default": op("(u64[2], u32[8]) rng-bit-generator(a), algorithm=rng_default", a="u64[2]"),
    "rng-bit-generator philox": op("(u64[3], u32[8]) rng-bit-generator(a), algorithm=rng_philox", a="u64[3]"),
    "rng-bit-generator threefry": op("(u64[2], u32[8]) rng-bit-generator(a), algorithm=rng_three_fry", a="u64[2]"),
    "rng-get-and-update-state": op("u64[2] rng-get-and-update-state(), delta=4096"),
    "tuple": op("(f32[2], s32[]) tuple(a, b)", a=_F2, b="s32[]"),
    "tuple of nothing": op("() tuple()"),
    "get-tuple-element": op("s32[] get-tuple-element(a), index=1", a="(f32[2], s32[])"),
    "while": op("(s32[], f32[2]) while(a), condition=cond, body=body", _WHILE, a="(s32[], f32[2])"),
    "conditional on a predicate": op(
        "f32[2] conditional(p, a, a), true_computation=yes, false_computation=no", _BRANCHES, p="pred[]", a=_F2
    ),
    "conditional on an index": op(
        "f32[2] conditional(i, a, a), branch_computations={yes, %no}", _BRANCHES, i="s32[]", a=_F2
    ),
    "call": op("f32[] call(a, b), to_apply=add_f32", ADD, a="f32[]", b="f32[]"),
    "call of a composite": op(
        "f32[] call(a, b), to_apply=add_f32, is_composite=true, frontend_attributes={composite.attributes={n=1:i32},"
        'composite.name="my.add",composite.version="1"}',
        ADD,
        a="f32[]",
        b="f32[]",
    ),
    "fusion": op("f32[2] fusion(a, b), kind=kLoop, calls=fused", _FUSED, a=_F2, b=_F2),
    "fusion for input": op("f32[2] fusion(a, b), kind=kInput, calls=fused", _FUSED, a=_F2, b=_F2),
    "fusion for output": op("f32[2] fusion(a, b), calls=%fused, kind=kOutput", _FUSED, a=_F2, b=_F2),
    "fusion custom": op(
        'f32[2] fusion(a, b), kind=kCustom, calls=fused, backend_config={"fusion_backend_config":{"kind":"__triton"}}',
        _FUSED,
        a=_F2,
        b=_F2,
    ),
    "fusion with aliases": op(
        "f32[2] fusion(a, b), kind=kLoop, output_to_operand_aliasing={{}: (0, {})}, calls=fused", _FUSED, a=_F2, b=_F2
    ),
    "opt-barrier": op("(f32[2], s32[]) opt-barrier(a)", a="(f32[2], s32[])"),
    "after-all": op("token[] after-all(a, b)", a="token[]", b="token[]"),
    "after-all of nothing": op("token[] after-all()"),
    "add-dependency": op("f32[2] add-dependency(a, t)", a=_F2, t="token[]"),
    "domain": op(
        'f32[2] domain(a), domain={kind="sharding", entry={maximal device=0}, exit={maximal device=1}}', a=_F2
    ),
    "domain in another order": op(
        'f32[2] domain(a), domain={exit={devices=[2]0,1}, kind="sharding" entry={replicated}}', a=_F2
    ),
    "domain of a tuple": op(
        '(f32[2], s32[]) domain(a), domain={kind="sharding", entry={{maximal device=0}, {replicated}}, '
        "exit={{manual}, {maximal device=1}}}",
        a="(f32[2], s32[])",
    ),
    "copy-start and copy-done": module(
        """a = f32[2] parameter(0)
        s = (f32[2], f32[2], u32[]) copy-start(a)
        ROOT d = f32[2] copy-done(s)"""
    ),
    "copy-start of a prefetch": module(
        """a = f32[2] parameter(0)
        s = (f32[2]{0:S(1)}, f32[2]{0}, u32[]) copy-start(a), cross_program_prefetch_index=0
        ROOT d = f32[2]{0:S(1)} copy-done(s)"""
    ),
    "precisions and algorithm in other letters": op(
        "f32[2,2] dot(a, a), lhs_contracting_dims={1}, rhs_contracting_dims={0}, operand_precision={HIGH,hIghest}, "
        "algorithm=DOT_BF16_BF16_F32",
        a="f32[2,2]",
    ),
    "result accuracy in other letters": op("f32[2] exponential(a), result_accuracy={mode=HIGHEST}", a=_F2),
    "rng in other letters": op("f32[3] rng(a, a), distribution=RNG_Uniform", a="f32[]"),
    "rng-bit-generator in other letters": op("u32[3] rng-bit-generator(a), algorithm=RNG_Default", a="u64[2]"),
    "custom-call in other letters": op(
        'f32[2] custom-call(a), custom_call_target="f", schedule=schedule_latest, api_version=api_version_typed_ffi',
        a=_F2,
    ),
}
