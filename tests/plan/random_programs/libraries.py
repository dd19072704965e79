"""Steps that GPU and CPU dumps leave to libraries: products with epilogues, sorts, the largest elements, transforms,
factors of matrices, normalisation, scans; and calls that say where a value goes, and compute nothing."""

from __future__ import annotations

import json
from math import prod

from tests.plan.random_programs.writing import ARRAYS, FLOATS, LARGER, NUMBERS, Body, Dims, Value, Writer, cut


def gemm(writer: Writer, body: Body) -> None:
    """A product by cuBLAS: with a matrix added, a bias, an activation, a workspace."""
    value = writer.pick(body.fitting("f32 f64 bf16 f16", sizes=range(60, 30000)))
    m, k, n = (writer.number(1, 7) for _ in range(3))
    turned = [writer.chance(0.5) for _ in range(2)]
    lhs, rhs = cut(body, value, (k, m) if turned[0] else (m, k)), cut(body, value, (n, k) if turned[1] else (k, n))
    lt = writer.chance(0.6)
    beta = writer.pick([0, 0, 1, 0.5])
    epilogue = writer.pick("DEFAULT BIAS RELU BIAS_RELU GELU SILU".split()) if lt else "DEFAULT"
    config = {
        "alpha_real": writer.pick([1, 1, 0.5]), "alpha_imag": 0, "beta": beta,
        "dot_dimension_numbers": {
            "lhs_contracting_dimensions": [str(int(not turned[0]))],
            "rhs_contracting_dimensions": [str(int(turned[1]))],
            "lhs_batch_dimensions": [],
            "rhs_batch_dimensions": [],
        },
        "precision_config": {"operand_precision": ["DEFAULT", "DEFAULT"], "algorithm": "ALG_UNSET"},
        "epilogue": epilogue, "selected_algorithm": "0",
    }  # fmt: skip
    operands = [lhs, rhs]
    if beta:
        operands.append(cut(body, value, (m, n)))
    if "BIAS" in epilogue:
        operands.append(cut(body, value, (n,)))
    target = "__cublas$lt$matmul" if lt else "__cublas$gemm"
    whole = json.dumps({"gemm_backend_config": config})
    names = ", ".join(operand.name for operand in operands)
    layout = writer.layout((m, n))
    like = Value("", value.kind, (m, n), layout)
    both = writer.fresh()
    body.line(
        f'{both} = ({like.shape}, s8[64]) custom-call({names}), custom_call_target="{target}", backend_config={whole}'
    )
    body.elements(both, [like])


def largest(writer: Writer, body: Body) -> None:
    """The first elements of each row by a comparator, as XLA's rewriter of sorts makes it."""
    value = writer.pick(
        [v for v in body.of_kinds("f32 bf16 s32 u8") if v.dims and 0 < prod(v.dims) < (300 if writer.depth else 3000)]
    )
    if value.layout:
        value = body.like(value, f"copy({value.name})", layout="", keep=False)
    kind, name = value.kind, f"computation_{writer.fresh()}"
    order = ", type=TOTALORDER" if kind in FLOATS else ""
    pairs = "  i = s32[] parameter(2)\n  j = s32[] parameter(3)\n" if writer.chance(0.5) else ""
    writer.computations.append(
        f"{name} {{\n  a = {kind}[] parameter(0)\n  b = {kind}[] parameter(1)\n{pairs}"
        f"  ROOT c = pred[] compare(a, b), direction={writer.pick(['GT', 'LT'])}{order}\n}}\n"
    )
    dims = (*value.dims[:-1], writer.number(1, value.dims[-1] + 1))
    likes = [Value("", kind, dims), Value("", "s32", dims)]
    both = writer.fresh()
    body.line(
        f"{both} = ({likes[0].shape}, {likes[1].shape}) custom-call({value.name}), "
        f'custom_call_target="{writer.pick(["TopK", "__gpu$TopK"])}", called_computations={{{name}}}'
    )
    body.elements(both, likes)


def library_sort(writer: Writer, body: Body) -> None:
    """Keys, or keys with values, sorted along the last dimension by CUB."""
    value = writer.pick(body.fitting("f32 bf16 s32 u8 u32 f64 f16", ARRAYS, range(20000)))
    alike = [v for v in body.of_kinds("f32 s32 bf16 f64") if v.dims == value.dims]
    operands = [value, *([writer.pick(alike)] if alike and writer.chance(0.6) else [])]
    operands = [body.laid_out(operand, "") for operand in operands]
    shapes = ", ".join(operand.shape for operand in operands)
    names = ", ".join(operand.name for operand in operands)
    both = writer.fresh()
    body.line(
        f'{both} = ({shapes}, u8[7]) custom-call({names}), custom_call_target="__cub$DeviceRadixSort", '
        f'backend_config={{"descending":{writer.pick(["true", "false"])}}}'
    )
    body.elements(both, operands)


def annotation(writer: Writer, body: Body) -> None:
    value = writer.pick(body.values)
    target = writer.pick("Sharding LayoutConstraint MoveToHost MoveToDevice".split())
    sharding = ", sharding={replicated}" if target == "Sharding" else ""
    body.like(
        value,
        f'custom-call({value.name}), custom_call_target="{target}"{sharding}',
        layout=value.layout,
    )


def transform(writer: Writer, body: Body) -> None:
    """A Fourier transform and what its inverse makes of it."""
    value = writer.pick([v for v in body.of_kinds("f32 c64") if v.dims and prod(v.dims) < 20000 and min(v.dims) > 0])
    count = int(writer.random.integers(1, min(3, len(value.dims)) + 1))
    lengths = ",".join(map(str, value.dims[-count:]))
    if value.kind == "c64":
        there, back, dims = *writer.pick([("FFT", "IFFT"), ("IFFT", "FFT")]), value.dims
    else:
        there, back, dims = "RFFT", "IRFFT", (*value.dims[:-1], value.dims[-1] // 2 + 1)
    seen = body.emit("c64", dims, f"fft({value.name}), fft_type={there}, fft_length={{{lengths}}}")
    if writer.chance(0.5):
        body.like(value, f"fft({seen.name}), fft_type={back}, fft_length={{{lengths}}}")


def factors(writer: Writer, body: Body) -> None:
    """The factor of A Aᵀ plus a multiple of one, and what it solves."""
    value = writer.pick(body.fitting("f32 f64", sizes=range(18, 20000)))
    size = writer.number(1, 5)
    square: Dims = writer.pick([(size, size), (2, size, size)])
    if prod(square) > prod(value.dims):
        return
    batch = [0] if len(square) == 3 else []
    a = cut(body, value, square)
    a = body.aside(value.kind, square, f"tanh({a.name})")
    last = len(square) - 1
    batches = "lhs_batch_dims={0}, rhs_batch_dims={0}, " if batch else ""
    product = body.aside(
        value.kind,
        square,
        f"dot({a.name}, {a.name}), {batches}lhs_contracting_dims={{{last}}}, rhs_contracting_dims={{{last}}}",
    )
    rows, columns = (body.aside("s32", square, f"iota(), iota_dimension={k}") for k in (last - 1, last))
    same = body.aside("pred", square, f"compare({rows.name}, {columns.name}), direction=EQ")
    one = body.aside(value.kind, square, f"convert({same.name})")
    sum_ = body.aside(value.kind, square, f"add({product.name}, {one.name})")
    lower = writer.pick(["true", "false"])
    factor = body.emit(value.kind, square, f"cholesky({sum_.name}), lower={lower}")
    body.emit(
        value.kind,
        square,
        f"triangular-solve({factor.name}, {a.name}), left_side={writer.pick(['true', 'false'])}, lower={lower}, "
        f"unit_diagonal={writer.pick(['true', 'false'])}, transpose_a={writer.pick(['NO_TRANSPOSE', 'TRANSPOSE'])}",
    )


def normalise(writer: Writer, body: Body) -> None:
    """A batch normalisation and its gradient."""
    value = writer.pick(body.fitting("f32 f64", LARGER, range(1, 20000)))
    axis = writer.number(len(value.dims))
    vector = Value("", value.kind, (value.dims[axis],))
    scale = body.aside(value.kind, vector.dims, "iota(), iota_dimension=0")
    number = body.scalar(value.kind, "0.5")
    offset = body.aside(value.kind, vector.dims, f"broadcast({number.name}), dimensions={{}}")
    result, how = writer.fresh(), f"epsilon=0.01, feature_index={axis}"
    shapes = f"({value.shape}, {vector.shape}, {vector.shape})"
    body.line(f"{result} = {shapes} batch-norm-training({value.name}, {scale.name}, {offset.name}), {how}")
    whole, mean, variance = body.elements(result, [value, vector, vector])
    if writer.chance(0.5):
        gradient = writer.fresh()
        names = ", ".join(v.name for v in (value, scale, mean, variance, whole))
        body.line(f"{gradient} = {shapes} batch-norm-grad({names}), {how}")
        body.elements(gradient, [value, vector, vector])
    else:
        names = ", ".join(v.name for v in (value, scale, offset, mean, variance))
        body.like(value, f"batch-norm-inference({names}), {how}")


def scan(writer: Writer, body: Body) -> None:
    """A computation along a dimension that hands a value on, and keeps what it was at each step."""
    value = writer.pick(body.fitting(NUMBERS, ARRAYS, range(1, 4000)))
    axis = writer.number(len(value.dims))
    if value.dims[axis] > 70:
        return
    row = tuple(size for k, size in enumerate(value.dims) if k != axis)
    kind, name = value.kind, f"computation_{writer.fresh()}"
    like = Value("", kind, row)
    first, second = writer.pick(["add", "maximum", "multiply"]), writer.pick(["s", "c"])
    writer.computations.append(
        f"{name} {{\n  x = {like.shape} parameter(0)\n  c = {like.shape} parameter(1)\n  n = s32[] parameter(2)\n"
        f"  s = {like.shape} {first}(x, c)\n  one = s32[] constant(1)\n  m = s32[] add(n, one)\n"
        f"  ROOT t = ({like.shape}, {like.shape}, s32[]) tuple({second}, s, m)\n}}\n"
    )
    one, zero = body.scalar(kind, "1"), body.scalar("s32", "0")
    start = one if not row else body.emit(kind, row, f"broadcast({one.name}), dimensions={{}}", layout="", keep=False)
    plain = Value("", kind, value.dims)
    given = body.laid_out(value, "")
    result = writer.fresh()
    body.line(
        f"{result} = ({plain.shape}, {like.shape}, s32[]) scan({given.name}, {start.name}, {zero.name}), "
        f"dimensions={{{axis}}}, num_carries=2, is_reverse={writer.pick(['true', 'false'])}, to_apply={name}"
    )
    body.elements(result, [plain, like])
