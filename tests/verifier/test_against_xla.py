"""XLA as the authority on which programs are well-formed."""

import pytest

from hloexec.language.verifier import verify
from tests.text.building import ADD, LESS, module, op
from tests.verifier.broken import CALLED, fault, parsed

CALLERS = {
    "call": op("f32[2] call(a), to_apply=inner", CALLED, a="f32[3]"),
    "call with another count": op("f32[2] call(a, a), to_apply=inner", CALLED, a="f32[2]"),
    "call with another result": op("f32[3] call(a), to_apply=inner", CALLED, a="f32[2]"),
    "fusion": op("f32[2] fusion(a), kind=kLoop, calls=inner", CALLED, a="f32[3]"),
    "while with a condition of another result": op("f32[2] while(a), condition=inner, body=inner", CALLED, a="f32[2]"),
    "while with a body of another result": op(
        "f32[] while(a), condition=yes, body=body",
        "yes {\n x = f32[] parameter(0)\n ROOT t = pred[] constant(true)\n}\n"
        "body {\n x = f32[] parameter(0)\n ROOT y = f32[1] reshape(x)\n}\n",
        a="f32[]",
    ),
    "conditional": op(
        "f32[2] conditional(p, a, b), true_computation=inner, false_computation=inner",
        CALLED,
        p="pred[]",
        a="f32[2]",
        b="f32[3]",
    ),
    "async-start": op("((f32[3]), f32[2]) async-start(a), calls=inner", CALLED, a="f32[3]"),
    "reduce": op("f32[] reduce(a, z), dimensions={0}, to_apply=inner", CALLED, a="f32[2]", z="f32[]"),
    "sort": op("f32[2] sort(a), dimensions={0}, to_apply=add_f32", ADD, a="f32[2]"),
    "all-reduce": op("f32[2] all-reduce(a), to_apply=inner", CALLED, a="f32[2]"),
}


@pytest.mark.parametrize("text", CALLERS.values(), ids=CALLERS.keys())
def test_callers_fit_the_signatures_of_what_they_call(text: str) -> None:
    assert "instruction 'root'" in fault(text)


VALID = {
    "reduce": op("f32[2] reduce(a, z), dimensions={1}, to_apply=add_f32", ADD, a="f32[2,3]", z="f32[]"),
    "sort": op("f32[2] sort(a), dimensions={0}, to_apply=less", LESS, a="f32[2]"),
    "dot": op("f32[2,2] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}", a="f32[2,3]", b="f32[3,2]"),
    "dot with another result type": op(
        "f64[2,2] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}", a="f32[2,3]", b="f32[3,2]"
    ),
    "reshape": op("f32[6] reshape(a)", a="f32[2,3]"),
    "slice": op("f32[1,2] slice(a), slice={[1:2], [0:3:2]}", a="f32[2,3]"),
    "pad": op("f32[4] pad(a, z), padding=1_1", a="f32[2]", z="f32[]"),
    "pad that crops": op("f32[1] pad(a, z), padding=-1_0", a="f32[2]", z="f32[]"),
    "concatenate": op("f32[4] concatenate(a, a), dimensions={0}", a="f32[2]"),
    "transpose": op("f32[3,2] transpose(a), dimensions={1,0}", a="f32[2,3]"),
    "broadcast": op("f32[3,2] broadcast(a), dimensions={1}", a="f32[2]"),
    "select": op("f32[2] select(p, a, a)", p="pred[2]", a="f32[2]"),
    "clamp with scalars": op("f32[2] clamp(z, a, z)", z="f32[]", a="f32[2]"),
    "compare": op("pred[2] compare(a, a), direction=LT", a="f32[2]"),
    "convert": op("s32[2] convert(a)", a="f32[2]"),
    "iota": op("s32[2,3] iota(), iota_dimension=1"),
    "dynamic-slice": op("f32[1] dynamic-slice(a, i), dynamic_slice_sizes={1}", a="f32[4]", i="s32[]"),
    "dynamic-update-slice": op("f32[4] dynamic-update-slice(a, u, i)", a="f32[4]", u="f32[1]", i="s32[]"),
    "tuples": module("a = f32[2] parameter(0)\nt = (f32[2]) tuple(a)\nROOT g = f32[2] get-tuple-element(t), index=0"),
    "fft": op("c64[5] fft(a), fft_type=RFFT, fft_length={8}", a="f32[8]"),
    "rng-bit-generator": op("(u64[2], u32[8]) rng-bit-generator(a), algorithm=rng_three_fry", a="u64[2]"),
    "convolution": op(
        "f32[1,4,8] convolution(a, k), window={size=3}, dim_labels=b0f_0io->b0f", a="f32[1,6,4]", k="f32[3,4,8]"
    ),
    "reduce-window": op(
        "f32[2] reduce-window(a, z), window={size=2 stride=2}, to_apply=add_f32", ADD, a="f32[4]", z="f32[]"
    ),
    "batch-norm-inference": op(
        "f32[2,3] batch-norm-inference(a, s, s, s, s), epsilon=1, feature_index=1", a="f32[2,3]", s="f32[3]"
    ),
}
INVALID = {
    "add of other sizes": op("f32[2] add(a, b)", a="f32[2]", b="f32[3]"),
    "add of other types": op("f32[2] add(a, b)", a="f32[2]", b="s32[2]"),
    "add of a scalar": op("f32[2] add(a, b)", a="f32[2]", b="f32[]"),
    "add of predicates and floats": op("f32[2] add(a, b)", a="f32[2]", b="pred[2]"),
    "and of floats": op("f32[2] and(a, a)", a="f32[2]"),
    "exponential of integers": op("s32[2] exponential(a)", a="s32[2]"),
    "negate of predicates": op("pred[2] negate(a)", a="pred[2]"),
    "not of floats": op("f32[2] not(a)", a="f32[2]"),
    "is-finite of integers": op("pred[2] is-finite(a)", a="s32[2]"),
    "real of tuples": op("f32[2] real(a)", a="(f32[2])"),
    "complex of integers": op("c64[2] complex(a, a)", a="s32[2]"),
    "shift of floats": op("f32[2] shift-left(a, a)", a="f32[2]"),
    "compare gives predicates": op("f32[2] compare(a, a), direction=LT", a="f32[2]"),
    "compare of an unsigned type as signed": op("pred[2] compare(a, a), direction=LT, type=SIGNED", a="u32[2]"),
    "select by floats": op("f32[2] select(p, a, a)", p="f32[2]", a="f32[2]"),
    "select of other sizes": op("f32[2] select(p, a, b)", p="pred[2]", a="f32[2]", b="f32[3]"),
    "select by other sizes": op("f32[2] select(p, a, a)", p="pred[3]", a="f32[2]"),
    "clamp of other sizes": op("f32[2] clamp(z, a, z)", z="f32[3]", a="f32[2]"),
    "convert to other sizes": op("s32[3] convert(a)", a="f32[2]"),
    "bitcast-convert to another width": op("s16[2] bitcast-convert(a)", a="f32[2]"),
    "reshape to another count": op("f32[5] reshape(a)", a="f32[2,3]"),
    "reshape to another type": op("s32[6] reshape(a)", a="f32[2,3]"),
    "transpose of too few": op("f32[3,2] transpose(a), dimensions={1}", a="f32[2,3]"),
    "transpose twice": op("f32[3,3] transpose(a), dimensions={1,1}", a="f32[2,3]"),
    "transpose out of range": op("f32[3,2] transpose(a), dimensions={2,0}", a="f32[2,3]"),
    "broadcast of another size": op("f32[3,2] broadcast(a), dimensions={0}", a="f32[2]"),
    "broadcast out of range": op("f32[3,2] broadcast(a), dimensions={2}", a="f32[2]"),
    "broadcast of too many": op("f32[3,2] broadcast(a), dimensions={0,1}", a="f32[2]"),
    "slice out of range": op("f32[3] slice(a), slice={[0:3]}", a="f32[2]"),
    "slice backwards": op("f32[0] slice(a), slice={[2:1]}", a="f32[2]"),
    "slice without a stride": op("f32[2] slice(a), slice={[0:2:0]}", a="f32[2]"),
    "slice of too few dimensions": op("f32[2,3] slice(a), slice={[0:2]}", a="f32[2,3]"),
    "slice to another size": op("f32[3] slice(a), slice={[0:2]}", a="f32[4]"),
    "pad with another type": op("f32[4] pad(a, z), padding=1_1", a="f32[2]", z="s32[]"),
    "pad with a vector": op("f32[4] pad(a, z), padding=1_1", a="f32[2]", z="f32[1]"),
    "pad to another size": op("f32[5] pad(a, z), padding=1_1", a="f32[2]", z="f32[]"),
    "pad of another rank": op("f32[4] pad(a, z), padding=1_1x0_0", a="f32[2]", z="f32[]"),
    "concatenate of other ranks": op("f32[4] concatenate(a, b), dimensions={0}", a="f32[2]", b="f32[2,1]"),
    "concatenate of other sizes": op("f32[4,1] concatenate(a, b), dimensions={0}", a="f32[2,1]", b="f32[2,2]"),
    "concatenate out of range": op("f32[4] concatenate(a, a), dimensions={1}", a="f32[2]"),
    "concatenate of other types": op("f32[4] concatenate(a, b), dimensions={0}", a="f32[2]", b="s32[2]"),
    "reverse out of range": op("f32[2] reverse(a), dimensions={1}", a="f32[2]"),
    "reverse twice": op("f32[2] reverse(a), dimensions={0,0}", a="f32[2]"),
    "iota out of range": op("s32[2] iota(), iota_dimension=1"),
    "get-tuple-element out of range": op("f32[2] get-tuple-element(a), index=1", a="(f32[2])"),
    "get-tuple-element of an array": op("f32[2] get-tuple-element(a), index=0", a="f32[2]"),
    "tuple of other shapes": op("(f32[3]) tuple(a)", a="f32[2]"),
    "reduce out of range": op("f32[2,3] reduce(a, z), dimensions={2}, to_apply=add_f32", ADD, a="f32[2,3]", z="f32[]"),
    "reduce twice": op("f32[3] reduce(a, z), dimensions={0,0}, to_apply=add_f32", ADD, a="f32[2,3]", z="f32[]"),
    "reduce to another size": op("f32[3] reduce(a, z), dimensions={1}, to_apply=add_f32", ADD, a="f32[2,3]", z="f32[]"),
    "reduce from a vector": op("f32[2] reduce(a, z), dimensions={1}, to_apply=add_f32", ADD, a="f32[2,3]", z="f32[1]"),
    "reduce with a comparison": op("f32[2] reduce(a, z), dimensions={1}, to_apply=less", LESS, a="f32[2,3]", z="f32[]"),
    "sort with a sum": op("f32[2] sort(a), dimensions={0}, to_apply=add_f32", ADD, a="f32[2]"),
    "sort of other sizes": op("(f32[2], f32[3]) sort(a, b), dimensions={0}, to_apply=less", LESS, a="f32[2]", b="f32[3]"),
    "sort out of range": op("f32[2] sort(a), dimensions={1}, to_apply=less", LESS, a="f32[2]"),
    "dot of other sizes": op(
        "f32[2,2] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={1}", a="f32[2,3]", b="f32[3,2]"
    ),
    "dot out of range": op(
        "f32[2,2] dot(a, b), lhs_contracting_dims={2}, rhs_contracting_dims={0}", a="f32[2,3]", b="f32[3,2]"
    ),
    "dot along other counts": op(
        "f32[2,2] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={}", a="f32[2,3]", b="f32[3,2]"
    ),
    "dot to another size": op(
        "f32[2,3] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}", a="f32[2,3]", b="f32[3,2]"
    ),
    "dot with a dimension in two roles": op(
        "f32[2,2] dot(a, b), lhs_batch_dims={1}, lhs_contracting_dims={1}, rhs_batch_dims={0}, rhs_contracting_dims={0}",
        a="f32[2,3]",
        b="f32[3,2]",
    ),
    "dynamic-slice too large": op("f32[5] dynamic-slice(a, i), dynamic_slice_sizes={5}", a="f32[4]", i="s32[]"),
    "dynamic-slice by floats": op("f32[1] dynamic-slice(a, i), dynamic_slice_sizes={1}", a="f32[4]", i="f32[]"),
    "dynamic-update-slice too large": op("f32[4] dynamic-update-slice(a, u, i)", a="f32[4]", u="f32[5]", i="s32[]"),
    "dynamic-update-slice of another type": op(
        "f32[4] dynamic-update-slice(a, u, i)", a="f32[4]", u="s32[1]", i="s32[]"
    ),
    "fft of another length": op("c64[8] fft(a), fft_type=FFT, fft_length={4}", a="c64[8]"),
    "fft of reals": op("c64[8] fft(a), fft_type=FFT, fft_length={8}", a="f32[8]"),
    "convolution to another size": op(
        "f32[1,5,8] convolution(a, k), window={size=3}, dim_labels=b0f_0io->b0f", a="f32[1,6,4]", k="f32[3,4,8]"
    ),
    "convolution of other features": op(
        "f32[1,4,8] convolution(a, k), window={size=3}, dim_labels=b0f_0io->b0f", a="f32[1,6,4]", k="f32[3,5,8]"
    ),
    "convolution with another window": op(
        "f32[1,4,8] convolution(a, k), window={size=2}, dim_labels=b0f_0io->b0f", a="f32[1,6,4]", k="f32[3,4,8]"
    ),
    "reduce-window to another size": op(
        "f32[3] reduce-window(a, z), window={size=2 stride=2}, to_apply=add_f32", ADD, a="f32[4]", z="f32[]"
    ),
    "reduce-window of another rank": op(
        "f32[2] reduce-window(a, z), window={size=2x2}, to_apply=add_f32", ADD, a="f32[4]", z="f32[]"
    ),
    "gather of another size": op(
        "f32[5,3] gather(a, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, "
        "slice_sizes={1,2}",
        a="f32[4,3]",
        i="s32[5,1]",
    ),
    "gather by floats": op(
        "f32[5,3] gather(a, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, "
        "slice_sizes={1,3}",
        a="f32[4,3]",
        i="f32[5,1]",
    ),
    "scatter of another size": op(
        "f32[4,3] scatter(a, i, u), update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, "
        "index_vector_dim=1, to_apply=add_f32",
        ADD,
        a="f32[4,3]",
        i="s32[5,1]",
        u="f32[6,3]",
    ),
    "batch-norm-inference of another size": op(
        "f32[2,3] batch-norm-inference(a, s, s, s, s), epsilon=1, feature_index=1", a="f32[2,3]", s="f32[2]"
    ),
    "cholesky of what is not square": op("f32[2,3] cholesky(a)", a="f32[2,3]"),
    "triangular-solve of other sizes": op(
        "f32[4,2] triangular-solve(a, b), left_side=true, transpose_a=NO_TRANSPOSE", a="f32[3,3]", b="f32[4,2]"
    ),
    "rng-bit-generator of complex numbers": op("(u64[2], c64[8]) rng-bit-generator(a), algorithm=rng_default", a="u64[2]"),
    "reduce-precision without an exponent": op("f32[2] reduce-precision(a), exponent_bits=0, mantissa_bits=1", a="f32[2]"),
    "reduce-precision of integers": op("s32[2] reduce-precision(a), exponent_bits=5, mantissa_bits=1", a="s32[2]"),
    "get-dimension-size out of range": op("s32[] get-dimension-size(a), dimensions={1}", a="f32[2]"),
    "set-dimension-size by floats": op("f32[<=2] set-dimension-size(a, n), dimensions={0}", a="f32[2]", n="f32[]"),
    "all-gather to another size": op("f32[5] all-gather(a), replica_groups={{0,1}}, dimensions={0}", a="f32[2]"),
    "collective-permute of other shapes": op("f32[3] collective-permute(a), source_target_pairs={{0,1}}", a="f32[2]"),
    "map of other sizes": op("f32[2] map(a, b), dimensions={0}, to_apply=add_f32", ADD, a="f32[2]", b="f32[3]"),
    "topk to another size": op("(f32[2,2], s32[2,2]) topk(a), k=1, largest=true", a="f32[2,3]"),
} | CALLERS  # fmt: skip


@pytest.mark.slow_cases("rng-bit-generator")
@pytest.mark.parametrize("text", VALID.values(), ids=VALID.keys())
def test_what_xla_runs_is_accepted(text: str) -> None:
    xla = pytest.importorskip("conformance.xla")
    xla.compile_hlo(text, xla_flags=xla.COMPILED_SOONEST)
    assert verify(parsed(text)) == []


@pytest.mark.parametrize("text", INVALID.values(), ids=INVALID.keys())
def test_what_no_rule_allows_is_rejected(text: str) -> None:
    assert "instruction 'root'" in fault(text)


# XLA's own code ends the process on these.
_ABORTING = ("reshape to another count", "get-tuple-element out of range", "get-tuple-element of an array")
# The way to XLA:CPU goes through StableHLO, whose import drops what is wrong with these; XLA's verifier rejects them.
_LAX = (
    "compare of an unsigned type as signed",
    "fft of another length",
    "convolution with another window",
)


@pytest.mark.parametrize("name", [name for name in INVALID if name not in (*_ABORTING, *_LAX)])
def test_what_is_rejected_here_is_rejected_by_xla(name: str) -> None:
    xla = pytest.importorskip("conformance.xla")
    with pytest.raises(xla.XlaError):
        xla.compile_hlo(INVALID[name])
