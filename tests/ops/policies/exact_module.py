"""A module with every function, a contraction of each type, a convolution and reductions; prints a digest of its results.

`python -m tests.ops.policies.exact_module` is run by the tests in surroundings that make NumPy and BLAS choose other code.
"""

import hashlib
from typing import Any

import numpy as np

import hloexec
from hloexec.core.dtypes import element_type
from hloexec.ops.common import narrow

_UNARY = (
    "acos acosh asin asinh atanh cosine cosh exponential exponential-minus-one log log-plus-one logistic rsqrt sine "
    "sinh sqrt tan tanh"
).split()
_BINARY = "add atan2 divide multiply power".split()
_COUNT = 1003
_ELEMENTWISE = {
    "f32": (*_UNARY, "cbrt", "erf"),
    "f64": (*_UNARY, "cbrt", "erf"),
    "bf16": ("exponential", "log", "tanh", "erf"),
    "f16": ("exponential", "log", "tanh", "erf"),
    "f8e4m3fn": ("exponential", "logistic"),
    "c64": (*_UNARY, "abs", "sign"),
    "c128": (*_UNARY, "abs", "sign"),
}
_DOT_TYPES = "f32 f64 bf16 f16 f8e4m3fn f8e5m2 c64 c128".split()


def _random(generator: np.random.Generator, dtype_name: str, shape: tuple[int, ...]) -> Any:
    """Numbers of every size up to about 100. Only multiplications, which are the same everywhere, make them."""
    entry = element_type(dtype_name)
    scales = np.array([1e-30, 1e-5, 0.01, 1.0, 1.0, 10.0, 100.0])

    def real() -> Any:
        return (generator.random(shape) - 0.5) * scales[generator.integers(0, len(scales), shape)]

    if entry.is_complex:
        result = np.empty(shape, np.complex128)
        result.real, result.imag = real(), real()
        return result.astype(entry.storage)
    return narrow(real(), entry)


def _run(body: list[str], root: str, arguments: list[Any]) -> Any:
    text = "HloModule m\n\n" + "\n".join(body[:-1]) + "\nENTRY e {\n" + body[-1] + f"\n  ROOT r = {root}\n}}\n"
    return hloexec.run(hloexec.parse(text), *arguments, numerics="exact")


def _digest(value: Any) -> str:
    array = np.array(value)
    # Of NaN, only that it is one.
    array[np.isnan(array.astype(np.complex128))] = 0
    return hashlib.sha256(array.tobytes()).hexdigest()[:16]


def _digest_call(shapes: list[str], root: str, arguments: list[Any], before: str = "") -> str:
    """Of a root on the parameters p0, p1, …"""
    body = "\n".join(f"  p{number} = {shape} parameter({number})" for number, shape in enumerate(shapes))
    value = _run([before, body], root, arguments)
    return "-".join(_digest(part) for part in (value if isinstance(value, tuple) else (value,)))


def _transforms(generator: np.random.Generator) -> dict[str, str]:
    found = {}
    for length in (64, 60, 101):
        for name, real in (("c64", "f32"), ("c128", "f64")):
            z, x = (_random(generator, kind, (5, length)) for kind in (name, real))
            for kind, operand, result, value in (
                ("FFT", f"{name}[5,{length}]", f"{name}[5,{length}]", z),
                ("IFFT", f"{name}[5,{length}]", f"{name}[5,{length}]", z),
                ("RFFT", f"{real}[5,{length}]", f"{name}[5,{length // 2 + 1}]", x),
                ("IRFFT", f"{name}[5,{length // 2 + 1}]", f"{real}[5,{length}]", z[:, : length // 2 + 1].copy()),
            ):
                root = f"{result} fft(p0), fft_type={kind}, fft_length={{{length}}}"
                found[f"{kind} {name} {length}"] = _digest_call([operand], root, [value])
    return found


def _systems(generator: np.random.Generator) -> dict[str, str]:
    found = {}
    for name in "f32 bf16 f64 c64 c128".split():
        a, b = _random(generator, name, (3, 37, 37)), _random(generator, name, (3, 37, 5))
        # Large on the diagonal: positive definite, whatever the rest.
        a[:, np.arange(37), np.arange(37)] = element_type(name).storage.type(4096)
        shape = f"{name}[3,37,37]"
        found[f"cholesky {name}"] = _digest_call([shape], f"{shape} cholesky(p0), lower=true", [a])
        root = f"{name}[3,37,5] triangular-solve(p0, p1), left_side=true, lower=true, transpose_a=ADJOINT"
        found[f"triangular-solve {name}"] = _digest_call([shape, f"{name}[3,37,5]"], root, [a, b])
    return found


def _normalizations(generator: np.random.Generator) -> dict[str, str]:
    found = {}
    for name in ("f32", "bf16", "f64"):
        array, vector = f"{name}[9,31,6]", f"{name}[6]"
        x, g = (_random(generator, name, (9, 31, 6)) for _ in range(2))
        scale, offset, variance = (_random(generator, name, (6,)) for _ in range(3))
        variance = np.abs(variance)
        ends = ", epsilon=0.001, feature_index=2"
        triple = f"({array}, {vector}, {vector})"
        found[f"batch-norm-training {name}"] = _digest_call(
            [array, vector, vector], f"{triple} batch-norm-training(p0, p1, p2){ends}", [x, scale, offset]
        )
        found[f"batch-norm-grad {name}"] = _digest_call(
            [array, vector, vector, vector, array],
            f"{triple} batch-norm-grad(p0, p1, p2, p3, p4){ends}",
            [x, scale, offset, variance, g],
        )
    return found


def _others(generator: np.random.Generator) -> dict[str, str]:
    """Random numbers, epilogues of gemms, resizing, and products of complex numbers."""
    zero, one = np.float32(0), np.float32(1)
    found = {
        "rng_normal": _digest_call(
            ["f32[]", "f32[]"], f"f32[{_COUNT}] rng(p0, p1), distribution=rng_normal", [zero, one]
        )
    }
    dimensions = '"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}'
    for epilogue in ("GELU", "SILU", "DEFAULT"):
        for name in ("bf16", "f32") + ("c64",) * (epilogue == "DEFAULT"):
            values = [_random(generator, name, shape) for shape in ((19, 700), (700, 11), (19, 11))]
            shapes = [f"{name}[19,700]", f"{name}[700,11]", f"{name}[19,11]"]
            numbers = '"alpha_real":0.3,"beta":0.7' + (',"alpha_imag":0.1' if name == "c64" else "")
            config = f'{{{numbers},"epilogue":"{epilogue}",{dimensions}}}'
            call = f'{shapes[2]} custom-call(p0, p1, p2), custom_call_target="__cublas$gemm", backend_config={config}'
            found[f"gemm {epilogue} {name}"] = _digest_call(shapes, call, values)
    image = _random(generator, "f32", (2, 9, 7, 5))
    root = 'f32[2,20,13,5] custom-call(p0), custom_call_target="ResizeBilinear", backend_config="01"'
    found["ResizeBilinear"] = _digest_call(["f32[2,9,7,5]"], root, [image])
    factors, unit = _random(generator, "c64", (31, 9)), np.complex64(1)
    before = "f {\n  a = c64[] parameter(0)\n  b = c64[] parameter(1)\n  ROOT c = c64[] multiply(a, b)\n}\n"
    root = "c64[31] reduce(p0, p1), dimensions={1}, to_apply=f"
    found["products c64"] = _digest_call(["c64[31,9]", "c64[]"], root, [factors, unit], before)
    return found


def digests() -> dict[str, str]:
    """Digests of results by what was computed."""
    generator = np.random.Generator(np.random.PCG64(7))
    found: dict[str, str] = {}
    for name, unary in _ELEMENTWISE.items():
        x, y = _random(generator, name, (_COUNT,)), _random(generator, name, (_COUNT,))
        shape = f"{name}[{_COUNT}]"
        body, results = [f"  p = {shape} parameter(0)\n  q = {shape} parameter(1)"], []
        for number, opcode in enumerate((*unary, *_BINARY)):
            results.append(shape.replace("c64", "f32").replace("c128", "f64") if opcode == "abs" else shape)
            body.append(f"  r{number} = {results[-1]} {opcode}({'p' if opcode in unary else 'p, q'})")
        root = f"({', '.join(results)}) tuple({', '.join(f'r{number}' for number in range(len(results)))})"
        for opcode, value in zip((*unary, *_BINARY), _run(["\n".join(body)], root, [x, y]), strict=True):
            found[f"{opcode} {name}"] = _digest(value)
    for name in _DOT_TYPES:
        a, b = _random(generator, name, (67, 700)), _random(generator, name, (700, 45))
        body = f"  p = {name}[67,700] parameter(0)\n  q = {name}[700,45] parameter(1)"
        root = f"{name}[67,45] dot(p, q), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
        found[f"dot {name}"] = _digest(_run([body], root, [a, b]))
    image, kernel = _random(generator, "f32", (2, 9, 9, 16)), _random(generator, "f32", (3, 3, 16, 8))
    body = "  p = f32[2,9,9,16] parameter(0)\n  q = f32[3,3,16,8] parameter(1)"
    root = "f32[2,9,9,8] convolution(p, q), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f"
    found["convolution"] = _digest(_run([body], root, [image, kernel]))
    for name in "f32 bf16 f64 c64".split():
        x, zero = _random(generator, name, (31, 2049)), np.zeros((), element_type(name).storage)
        combiner = (
            f"f {{\n  a = {name}[] parameter(0)\n  b = {name}[] parameter(1)\n  ROOT c = {name}[] add(a, b)\n}}\n"
        )
        body = f"  p = {name}[31,2049] parameter(0)\n  q = {name}[] parameter(1)"
        for kept, dimensions in (("31", "1"), ("2049", "0"), ("", "0,1")):
            root = f"{name}[{kept}] reduce(p, q), dimensions={{{dimensions}}}, to_apply=f"
            found[f"reduce {name} {dimensions}"] = _digest(_run([combiner, body], root, [x, zero]))
        root = f"{name}[31,513] reduce-window(p, q), window={{size=1x513 pad=0_0x512_0}}, to_apply=f"
        body = body.replace("2049", "513")
        found[f"reduce-window {name}"] = _digest(_run([combiner, body], root, [x[:, :513].copy(), zero]))
    found |= _transforms(generator) | _systems(generator) | _normalizations(generator) | _others(generator)
    return found


def main() -> None:
    """Print the digests."""
    for what, digest in digests().items():
        print(digest, what)


if __name__ == "__main__":
    main()
