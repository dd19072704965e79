"""Every opcode at a million elements: hloexec beside XLA:CPU in the same process, turn by turn.

A row says nanoseconds per element of the largest array, and for contractions the rate of their multiplications and
additions. What is timed is a run of a module of one instruction, after planning and compiling.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np

from benchmarks.timing import side_by_side

__all__ = ["PROGRAMS", "Program", "rows"]

_SUM = "c {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT r = f32[] add(a, b)\n}\n"
_LESS = "c {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT r = pred[] compare(a, b), direction=LT\n}\n"
_GREATER = _LESS.replace("c {", "s {", 1).replace("LT", "GE")
_COPY = "c {\n  a = f32[1024,1024] parameter(0)\n  ROOT r = f32[1024,1024] negate(a)\n}\n"
_STEP = (
    "c {\n  a = f32[1024] parameter(0)\n  b = f32[1024] parameter(1)\n  s = f32[1024] add(a, b)\n"
    "  ROOT r = (f32[1024], f32[1024]) tuple(s, s)\n}\n"
)
_M = "f32[1024,1024]"


@attrs.frozen
class Program:
    """One instruction on parameters a0, a1, …; `flops` where it is a contraction."""

    instruction: str
    operands: tuple[str, ...] = (_M,)
    computations: str = ""
    flops: int = 0
    elements: int = 1 << 20

    @property
    def text(self) -> str:
        lines = [f"  a{number} = {shape} parameter({number})" for number, shape in enumerate(self.operands)]
        return "\n".join(
            ["HloModule m", "", self.computations, "ENTRY e {", *lines, f"  ROOT r = {self.instruction}", "}"]
        )


def _unary(names: str, element: str = "f32", result: str = "") -> dict[str, Program]:
    operand = f"{element}[1024,1024]"
    return {name: Program(f"{result or element}[1024,1024] {name}(a0)", (operand,)) for name in names.split()}


def _binary(names: str, element: str = "f32") -> dict[str, Program]:
    operand = f"{element}[1024,1024]"
    return {name: Program(f"{operand} {name}(a0, a1)", (operand, operand)) for name in names.split()}


PROGRAMS: dict[str, Program] = {
    **_unary("abs acos acosh asin asinh atanh cbrt ceil cosine cosh erf exponential exponential-minus-one floor log"),
    **_unary(
        "log-plus-one logistic negate round-nearest-afz round-nearest-even rsqrt sign sine sinh sqrt tan tanh copy"
    ),
    **_unary("not popcnt count-leading-zeros", "s32"),
    **_unary("is-finite", result="pred"),
    **_unary("real imag", "c64", "f32"),
    **_binary("add subtract multiply divide remainder power atan2 maximum minimum"),
    **_binary("and or xor shift-left shift-right-arithmetic shift-right-logical mulhi", "s32"),
    "complex": Program("c64[1024,1024] complex(a0, a1)", (_M, _M)),
    "compare": Program("pred[1024,1024] compare(a0, a1), direction=LT", (_M, _M)),
    "select": Program(f"{_M} select(a0, a1, a2)", ("pred[1024,1024]", _M, _M)),
    "clamp": Program(f"{_M} clamp(a0, a1, a2)", (_M, _M, _M)),
    "convert": Program("bf16[1024,1024] convert(a0)"),
    "reduce-precision": Program(f"{_M} reduce-precision(a0), exponent_bits=5, mantissa_bits=10"),
    "stochastic-convert": Program("s8[1024,1024] stochastic-convert(a0, a1)", (_M, "u32[1024,1024]")),
    "bitcast-convert": Program("s32[1024,1024] bitcast-convert(a0)"),
    "bitcast": Program("f32[1048576]{0} bitcast(a0)", (_M + "{1,0}",)),
    "broadcast": Program(f"{_M} broadcast(a0), dimensions={{1}}", ("f32[1024]",)),
    "reshape": Program("f32[512,2048] reshape(a0)"),
    "transpose": Program(f"{_M} transpose(a0), dimensions={{1,0}}"),
    "slice": Program("f32[1024,1000] slice(a0), slice={[0:1024], [12:1012]}"),
    "concatenate": Program(f"{_M} concatenate(a0, a1), dimensions={{0}}", ("f32[512,1024]", "f32[512,1024]")),
    "pad": Program("f32[1026,1026] pad(a0, a1), padding=1_1x1_1", (_M, "f32[]")),
    "reverse": Program(f"{_M} reverse(a0), dimensions={{0,1}}"),
    "iota": Program(f"{_M} iota(), iota_dimension=1", ()),
    "dynamic-slice": Program(
        "f32[1000,1000] dynamic-slice(a0, a1, a1), dynamic_slice_sizes={1000,1000}", (_M, "s32[]")
    ),
    "dynamic-update-slice": Program(f"{_M} dynamic-update-slice(a0, a1, a2, a2)", (_M, "f32[1000,1000]", "s32[]")),
    "gather": Program(
        f"{_M} gather(a0, a1), offset_dims={{1}}, collapsed_slice_dims={{0}}, start_index_map={{0}}, "
        "index_vector_dim=1, slice_sizes={1,1024}",
        (_M, "s32[1024,1]"),
    ),
    "scatter": Program(
        f"{_M} scatter(a0, a1, a2), update_window_dims={{1}}, inserted_window_dims={{0}}, "
        "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=c",
        (_M, "s32[1024,1]", _M),
        _SUM,
    ),
    "scatter of scalars": Program(
        "f32[1048576] scatter(a0, a1, a2), update_window_dims={}, inserted_window_dims={0}, "
        "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=c",
        ("f32[1048576]", "s32[1048576,1]", "f32[1048576]"),
        _SUM,
    ),
    "reduce": Program("f32[1024] reduce(a0, a1), dimensions={1}, to_apply=c", (_M, "f32[]"), _SUM),
    "reduce of columns": Program("f32[1024] reduce(a0, a1), dimensions={0}, to_apply=c", (_M, "f32[]"), _SUM),
    "reduce-window": Program(
        f"{_M} reduce-window(a0, a1), window={{size=3x3 pad=1_1x1_1}}, to_apply=c", (_M, "f32[]"), _SUM
    ),
    "map": Program(f"{_M} map(a0, a1), dimensions={{0,1}}, to_apply=c", (_M, _M), _SUM),
    "scan": Program(
        f"({_M}, f32[1024]) scan(a0, a1), dimensions={{0}}, num_carries=1, to_apply=c", (_M, "f32[1024]"), _STEP
    ),
    "select-and-scatter": Program(
        f"{_M} select-and-scatter(a0, a1, a2), window={{size=2x2 stride=2x2}}, select=s, scatter=c",
        (_M, "f32[512,512]", "f32[]"),
        _GREATER + _SUM,
    ),
    "sort": Program("f32[1024,1024] sort(a0), dimensions={1}, is_stable=true, to_apply=c", (_M,), _LESS),
    "topk": Program("(f32[1024,8], s32[1024,8]) topk(a0), k=8, largest=true"),
    "dot": Program(
        f"{_M} dot(a0, a1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}", (_M, _M), flops=2 * 1024**3
    ),
    "dot of bf16": Program(
        "bf16[1024,1024] dot(a0, a1), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        ("bf16[1024,1024]", "bf16[1024,1024]"),
        flops=2 * 1024**3,
    ),
    "dot of s8": Program(
        "s32[1024,1024] dot(a0, a1), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        ("s8[1024,1024]", "s8[1024,1024]"),
        flops=2 * 1024**3,
    ),
    "ragged-dot": Program(
        "f32[1024,256] ragged-dot(a0, a1, a2), lhs_contracting_dims={1}, rhs_contracting_dims={1}, "
        "lhs_ragged_dims={0}, rhs_group_dims={0}",
        (_M, "f32[4,1024,256]", "s32[4]"),
        flops=2 * 1024 * 1024 * 256,
    ),
    "convolution": Program(
        "f32[4,64,64,64] convolution(a0, a1), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f",
        ("f32[4,64,64,64]", "f32[3,3,64,64]"),
        flops=2 * 4 * 64 * 64 * 64 * 9 * 64,
    ),
    "cholesky": Program("f32[16,256,256] cholesky(a0), lower=true", ("f32[16,256,256]",)),
    "triangular-solve": Program(
        "f32[16,256,256] triangular-solve(a0, a1), left_side=true, lower=true, transpose_a=NO_TRANSPOSE",
        ("f32[16,256,256]", "f32[16,256,256]"),
    ),
    "fft": Program("c64[1024,1024] fft(a0), fft_type=FFT, fft_length={1024}", ("c64[1024,1024]",)),
    "batch-norm-training": Program(
        "(f32[1024,1024], f32[1024], f32[1024]) batch-norm-training(a0, a1, a2), epsilon=0.001, feature_index=1",
        (_M, "f32[1024]", "f32[1024]"),
    ),
    "batch-norm-inference": Program(
        f"{_M} batch-norm-inference(a0, a1, a2, a3, a4), epsilon=0.001, feature_index=1", (_M, *["f32[1024]"] * 4)
    ),
    "batch-norm-grad": Program(
        "(f32[1024,1024], f32[1024], f32[1024]) batch-norm-grad(a0, a1, a2, a3, a4), epsilon=0.001, feature_index=1",
        (_M, *["f32[1024]"] * 3, _M),
    ),
    "rng": Program(f"{_M} rng(a0, a1), distribution=rng_uniform", ("f32[]", "f32[]")),
    "rng-bit-generator": Program(
        "(u64[2], u32[1024,1024]) rng-bit-generator(a0), algorithm=rng_three_fry", ("u64[2]",)
    ),
    "call": Program(f"{_M} call(a0), to_apply=c", (_M,), _COPY),
    "fusion": Program(f"{_M} fusion(a0), kind=kLoop, calls=c", (_M,), _COPY),
    "conditional": Program(
        f"{_M} conditional(a1, a0, a0), true_computation=c, false_computation=c", (_M, "pred[]"), _COPY
    ),
}


def rows(names: list[str] | None = None) -> Iterator[dict[str, object]]:
    """One row per program, slowest beside XLA:CPU last; XLA's columns are empty where it cannot run the opcode."""
    measured = [_measured(name, program) for name, program in PROGRAMS.items() if not names or name in names]
    for _, row in sorted(measured, key=lambda pair: pair[0]):
        yield row


def _measured(name: str, program: Program) -> tuple[float, dict[str, object]]:
    import hloexec
    from conformance import xla

    module = hloexec.parse(program.text)
    inputs = _inputs(name, program)
    contestants: dict[str, Any] = {"hloexec": lambda: hloexec.run(module, *inputs, verify=False)}
    try:
        compiled = xla.compile_hlo(program.text)
        placed = compiled.place([inputs])
        contestants["XLA:CPU"] = lambda: compiled.fetch(compiled.execute(placed))
    except xla.XlaError:
        pass
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        timings = side_by_side(contestants, turns=5, warm_up=1)
    mine, its = timings["hloexec"], timings.get("XLA:CPU")
    ratio, low, high = mine.ratio(its) if its else (0.0, 0.0, 0.0)
    return ratio, {
        "opcode": name,
        "hloexec ns/element": f"{mine.median * 1e9 / program.elements:.2f}",
        "XLA:CPU ns/element": f"{its.median * 1e9 / program.elements:.2f}" if its else "",
        "hloexec GFLOP/s": f"{program.flops / mine.median / 1e9:.1f}" if program.flops else "",
        "XLA:CPU GFLOP/s": f"{program.flops / its.median / 1e9:.1f}" if program.flops and its else "",
        "ratio": f"{ratio:.2f}" if its else "",
        "spread": f"{low:.2f} to {high:.2f}" if its else "",
    }


def _inputs(name: str, program: Program) -> list[np.ndarray[Any, Any]]:
    """Numbers between 0.1 and 0.9, in the domain of every function; indices within range; matrices well-conditioned."""
    import hloexec

    generator = np.random.default_rng(0)
    inputs = []
    for parameter in hloexec.parse(program.text).entry.parameter_shapes:
        entry, shape = parameter.element_type, parameter.dimensions
        if entry.is_floating or entry.is_complex:
            values = np.asarray(generator.uniform(0.1, 0.9, shape))
            if name in ("cholesky", "triangular-solve"):
                values = values @ values.swapaxes(-1, -2) + shape[-1] * np.eye(shape[-1])
            if name == "acosh":
                values += 1
        elif name == "ragged-dot":
            values = np.full(shape, 256)
        elif entry.name == "pred":
            values = generator.integers(0, 2, shape)
        else:
            values = generator.integers(0, 24 if not shape or name.startswith("shift") else 1000, shape)
        inputs.append(np.asarray(values).astype(entry.storage))
    return inputs
