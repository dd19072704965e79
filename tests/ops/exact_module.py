"""A module with every function, a contraction of each type, a convolution and reductions; prints a digest of its results.

`python -m tests.ops.exact_module` is run by the tests in surroundings that make NumPy and BLAS choose other code.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

import hloexec
from hloexec.dtypes import element_type
from hloexec.ops.common import narrow

__all__ = ["digests", "main"]

_UNARY = (
    "acos acosh asin asinh atanh cosine cosh exponential exponential-minus-one log log-plus-one logistic rsqrt sine "
    "sinh sqrt tan tanh"
).split()
_BINARY = ("add", "atan2", "divide", "multiply", "power")
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
_DOT_TYPES = ("f32", "f64", "bf16", "f16", "f8e4m3fn", "f8e5m2", "c64", "c128")


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


def digests() -> dict[str, str]:
    """Digests of results by what was computed."""
    generator = np.random.Generator(np.random.PCG64(7))
    found: dict[str, str] = {}
    for name, unary in _ELEMENTWISE.items():
        x, y = _random(generator, name, (_COUNT,)), _random(generator, name, (_COUNT,))
        shape = f"{name}[{_COUNT}]"
        for opcode in (*unary, *_BINARY):
            result = shape.replace("c64", "f32").replace("c128", "f64") if opcode == "abs" else shape
            operands = "(p)" if opcode in unary else "(p, q)"
            body = f"  p = {shape} parameter(0)\n  q = {shape} parameter(1)"
            found[f"{opcode} {name}"] = _digest(_run([body], f"{result} {opcode}{operands}", [x, y]))
    for name in _DOT_TYPES:
        a, b = _random(generator, name, (67, 1500)), _random(generator, name, (1500, 45))
        body = f"  p = {name}[67,1500] parameter(0)\n  q = {name}[1500,45] parameter(1)"
        root = f"{name}[67,45] dot(p, q), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
        found[f"dot {name}"] = _digest(_run([body], root, [a, b]))
    image, kernel = _random(generator, "f32", (2, 9, 9, 16)), _random(generator, "f32", (3, 3, 16, 8))
    body = "  p = f32[2,9,9,16] parameter(0)\n  q = f32[3,3,16,8] parameter(1)"
    root = "f32[2,9,9,8] convolution(p, q), window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_01io->b01f"
    found["convolution"] = _digest(_run([body], root, [image, kernel]))
    for name in ("f32", "bf16", "f64", "c64"):
        x, zero = _random(generator, name, (31, 2049)), np.zeros((), element_type(name).storage)
        combiner = (
            f"f {{\n  a = {name}[] parameter(0)\n  b = {name}[] parameter(1)\n  ROOT c = {name}[] add(a, b)\n}}\n"
        )
        body = f"  p = {name}[31,2049] parameter(0)\n  q = {name}[] parameter(1)"
        for kept, dimensions in (("31", "1"), ("2049", "0"), ("", "0,1")):
            root = f"{name}[{kept}] reduce(p, q), dimensions={{{dimensions}}}, to_apply=f"
            found[f"reduce {name} {dimensions}"] = _digest(_run([combiner, body], root, [x, zero]))
        root = f"{name}[31,2049] reduce-window(p, q), window={{size=1x2049 pad=0_0x2048_0}}, to_apply=f"
        found[f"reduce-window {name}"] = _digest(_run([combiner, body], root, [x, zero]))
    return found


def main() -> None:
    """Print the digests."""
    for what, digest in digests().items():
        print(digest, what)


if __name__ == "__main__":
    main()
