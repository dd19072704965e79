"""One instruction each, for every opcode, on arrays of any size."""

from __future__ import annotations

import attrs

_SUM = "c {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT r = f32[] add(a, b)\n}\n"
_LESS = "c {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT r = pred[] compare(a, b), direction=LT\n}\n"
_GREATER = _LESS.replace("c {", "s {", 1).replace("LT", "GE")


@attrs.frozen
class Program:
    """One instruction on parameters a0, a1, …; `flops` where it is a contraction."""

    instruction: str
    operands: tuple[str, ...]
    computations: str = ""
    flops: int = 0

    @property
    def text(self) -> str:
        lines = [f"  a{number} = {shape} parameter({number})" for number, shape in enumerate(self.operands)]
        return "\n".join(
            ["HloModule m", "", self.computations, "ENTRY e {", *lines, f"  ROOT r = {self.instruction}", "}"]
        )


def _unary(n: int, names: str, element: str = "f32", result: str = "") -> dict[str, Program]:
    operand = f"{element}[{n},{n}]"
    return {name: Program(f"{result or element}[{n},{n}] {name}(a0)", (operand,)) for name in names.split()}


def _binary(n: int, names: str, element: str = "f32") -> dict[str, Program]:
    operand = f"{element}[{n},{n}]"
    return {name: Program(f"{operand} {name}(a0, a1)", (operand, operand)) for name in names.split()}


def programs(side: int = 1024) -> dict[str, Program]:
    """Every opcode on `side` × `side` elements; `side` is a multiple of 16, of which contractions take parts."""
    n, matrix = side, f"f32[{side},{side}]"
    copy = f"c {{\n  a = {matrix} parameter(0)\n  ROOT r = {matrix} negate(a)\n}}\n"
    step = (
        f"c {{\n  a = f32[{n}] parameter(0)\n  b = f32[{n}] parameter(1)\n  s = f32[{n}] add(a, b)\n"
        f"  ROOT r = (f32[{n}], f32[{n}]) tuple(s, s)\n}}\n"
    )
    return {
        **_unary(
            n, "abs acos acosh asin asinh atanh cbrt ceil cosine cosh erf exponential exponential-minus-one floor log"
        ),
        **_unary(
            n,
            "log-plus-one logistic negate round-nearest-afz round-nearest-even rsqrt sign sine sinh sqrt tan tanh copy",
        ),
        **_unary(n, "not popcnt count-leading-zeros", "s32"),
        **_unary(n, "is-finite", result="pred"),
        **_unary(n, "real imag", "c64", "f32"),
        **_binary(n, "add subtract multiply divide remainder power atan2 maximum minimum"),
        **_binary(n, "and or xor shift-left shift-right-arithmetic shift-right-logical mulhi", "s32"),
        "complex": Program(f"c64[{n},{n}] complex(a0, a1)", (matrix, matrix)),
        "compare": Program(f"pred[{n},{n}] compare(a0, a1), direction=LT", (matrix, matrix)),
        "select": Program(f"{matrix} select(a0, a1, a2)", (f"pred[{n},{n}]", matrix, matrix)),
        "clamp": Program(f"{matrix} clamp(a0, a1, a2)", (matrix, matrix, matrix)),
        "convert": Program(f"bf16[{n},{n}] convert(a0)", (matrix,)),
        "reduce-precision": Program(f"{matrix} reduce-precision(a0), exponent_bits=5, mantissa_bits=10", (matrix,)),
        "stochastic-convert": Program(f"s8[{n},{n}] stochastic-convert(a0, a1)", (matrix, f"u32[{n},{n}]")),
        "bitcast-convert": Program(f"s32[{n},{n}] bitcast-convert(a0)", (matrix,)),
        "bitcast": Program(f"f32[{n * n}]{{0}} bitcast(a0)", (matrix + "{1,0}",)),
        "broadcast": Program(f"{matrix} broadcast(a0), dimensions={{1}}", (f"f32[{n}]",)),
        "reshape": Program(f"f32[{n // 2},{2 * n}] reshape(a0)", (matrix,)),
        "transpose": Program(f"{matrix} transpose(a0), dimensions={{1,0}}", (matrix,)),
        "slice": Program(f"f32[{n},{n - 24}] slice(a0), slice={{[0:{n}], [12:{n - 12}]}}", (matrix,)),
        "concatenate": Program(
            f"{matrix} concatenate(a0, a1), dimensions={{0}}", (f"f32[{n // 2},{n}]", f"f32[{n // 2},{n}]")
        ),
        "pad": Program(f"f32[{n + 2},{n + 2}] pad(a0, a1), padding=1_1x1_1", (matrix, "f32[]")),
        "reverse": Program(f"{matrix} reverse(a0), dimensions={{0,1}}", (matrix,)),
        "iota": Program(f"{matrix} iota(), iota_dimension=1", ()),
        "dynamic-slice": Program(
            f"f32[{n - 24},{n - 24}] dynamic-slice(a0, a1, a1), dynamic_slice_sizes={{{n - 24},{n - 24}}}",
            (matrix, "s32[]"),
        ),
        "dynamic-update-slice": Program(
            f"{matrix} dynamic-update-slice(a0, a1, a2, a2)", (matrix, f"f32[{n - 24},{n - 24}]", "s32[]")
        ),
        "gather": Program(
            f"{matrix} gather(a0, a1), offset_dims={{1}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, "
            f"index_vector_dim=1, slice_sizes={{1,{n}}}",
            (matrix, f"s32[{n},1]"),
        ),
        "scatter": Program(
            f"{matrix} scatter(a0, a1, a2), update_window_dims={{1}}, inserted_window_dims={{0}}, "
            "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=c",
            (matrix, f"s32[{n},1]", matrix),
            _SUM,
        ),
        "scatter of scalars": Program(
            f"f32[{n * n}] scatter(a0, a1, a2), update_window_dims={{}}, inserted_window_dims={{0}}, "
            "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=c",
            (f"f32[{n * n}]", f"s32[{n * n},1]", f"f32[{n * n}]"),
            _SUM,
        ),
        "reduce": Program(f"f32[{n}] reduce(a0, a1), dimensions={{1}}, to_apply=c", (matrix, "f32[]"), _SUM),
        "reduce of columns": Program(f"f32[{n}] reduce(a0, a1), dimensions={{0}}, to_apply=c", (matrix, "f32[]"), _SUM),
        "reduce-window": Program(
            f"{matrix} reduce-window(a0, a1), window={{size=3x3 pad=1_1x1_1}}, to_apply=c", (matrix, "f32[]"), _SUM
        ),
        "map": Program(f"{matrix} map(a0, a1), dimensions={{0,1}}, to_apply=c", (matrix, matrix), _SUM),
        "scan": Program(
            f"({matrix}, f32[{n}]) scan(a0, a1), dimensions={{0}}, num_carries=1, to_apply=c",
            (matrix, f"f32[{n}]"),
            step,
        ),
        "select-and-scatter": Program(
            f"{matrix} select-and-scatter(a0, a1, a2), window={{size=2x2 stride=2x2}}, select=s, scatter=c",
            (matrix, f"f32[{n // 2},{n // 2}]", "f32[]"),
            _GREATER + _SUM,
        ),
        "sort": Program(f"f32[{n},{n}] sort(a0), dimensions={{1}}, is_stable=true, to_apply=c", (matrix,), _LESS),
        "topk": Program(f"(f32[{n},8], s32[{n},8]) topk(a0), k=8, largest=true", (matrix,)),
        "dot": Program(
            f"{matrix} dot(a0, a1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}",
            (matrix, matrix),
            flops=2 * n**3,
        ),
        "dot of bf16": Program(
            f"bf16[{n},{n}] dot(a0, a1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}",
            (f"bf16[{n},{n}]", f"bf16[{n},{n}]"),
            flops=2 * n**3,
        ),
        "dot of s8": Program(
            f"s32[{n},{n}] dot(a0, a1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}",
            (f"s8[{n},{n}]", f"s8[{n},{n}]"),
            flops=2 * n**3,
        ),
        "ragged-dot": Program(
            f"f32[{n},{n // 4}] ragged-dot(a0, a1, a2), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}, "
            "lhs_ragged_dims={0}, rhs_group_dims={0}",
            (matrix, f"f32[4,{n},{n // 4}]", "s32[4]"),
            flops=2 * n * n * (n // 4),
        ),
        "convolution": Program(
            f"f32[4,{n // 16},{n // 16},64] convolution(a0, a1), window={{size=3x3 pad=1_1x1_1}}, "
            "dim_labels=b01f_01io->b01f",
            (f"f32[4,{n // 16},{n // 16},64]", "f32[3,3,64,64]"),
            flops=2 * 4 * (n // 16) ** 2 * 64 * 9 * 64,
        ),
        "cholesky": Program(f"f32[16,{n // 4},{n // 4}] cholesky(a0), lower=true", (f"f32[16,{n // 4},{n // 4}]",)),
        "triangular-solve": Program(
            f"f32[16,{n // 4},{n // 4}] triangular-solve(a0, a1), left_side=true, lower=true, transpose_a=NO_TRANSPOSE",
            (f"f32[16,{n // 4},{n // 4}]", f"f32[16,{n // 4},{n // 4}]"),
        ),
        "fft": Program(f"c64[{n},{n}] fft(a0), fft_type=FFT, fft_length={{{n}}}", (f"c64[{n},{n}]",)),
        "batch-norm-training": Program(
            f"(f32[{n},{n}], f32[{n}], f32[{n}]) batch-norm-training(a0, a1, a2), epsilon=0.001, feature_index=1",
            (matrix, f"f32[{n}]", f"f32[{n}]"),
        ),
        "batch-norm-inference": Program(
            f"{matrix} batch-norm-inference(a0, a1, a2, a3, a4), epsilon=0.001, feature_index=1",
            (matrix, *[f"f32[{n}]"] * 4),
        ),
        "batch-norm-grad": Program(
            f"(f32[{n},{n}], f32[{n}], f32[{n}]) batch-norm-grad(a0, a1, a2, a3, a4), epsilon=0.001, feature_index=1",
            (matrix, *[f"f32[{n}]"] * 3, matrix),
        ),
        "rng": Program(f"{matrix} rng(a0, a1), distribution=rng_uniform", ("f32[]", "f32[]")),
        "rng-bit-generator": Program(
            f"(u64[2], u32[{n},{n}]) rng-bit-generator(a0), algorithm=rng_three_fry", ("u64[2]",)
        ),
        "call": Program(f"{matrix} call(a0), to_apply=c", (matrix,), copy),
        "fusion": Program(f"{matrix} fusion(a0), kind=kLoop, calls=c", (matrix,), copy),
        "conditional": Program(
            f"{matrix} conditional(a1, a0, a0), true_computation=c, false_computation=c", (matrix, "pred[]"), copy
        ),
    }
