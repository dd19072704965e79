"""Random numbers, linear algebra, Fourier transforms and batch normalization."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from conformance.cell import Array, Example, Normwise, Within, text_of
from conformance.cells.generator import Generator
from conformance.values import whole_numbers
from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.ops.common import narrow

_COMPLEX = {"f32": "c64", "f64": "c128"}


def _normal(name: str, generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    entry = ELEMENT_TYPES[name]
    if entry.is_floating:
        return narrow(np.asarray(generator.normal(size=shape)), entry)
    if entry.is_complex:
        return (generator.normal(size=shape) + 1j * generator.normal(size=shape)).astype(entry.storage)
    return whole_numbers(name, generator, shape)


def _cast(values: Array, name: str) -> Array:
    entry = ELEMENT_TYPES[name]
    if entry.is_floating:
        return narrow(np.asarray(values, np.float64), entry)
    return (
        np.asarray(values).real.astype(entry.compute).astype(entry.storage)
        if not entry.is_complex
        else values.astype(entry.storage)
    )


def _rng_bit_generator(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    for turn in range(max(count, 3)):
        algorithm, words = (("rng_three_fry", 2), ("rng_philox", 3), ("rng_default", 2))[turn % 3]
        shape = tuple(int(n) for n in generator.integers(0, 6, generator.integers(0, 4)))
        state = generator.integers(0, 2**64, words, dtype=np.uint64)
        result = f"(u64[{words}], {text_of(name, shape)})"
        yield Example(opcode, name, result, f"rng-bit-generator($0), algorithm={algorithm}", (state,))


def _rng(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    if ELEMENT_TYPES[name].bits == 1:
        return  # one bit holds no interval
    for _ in range(count):
        bounds = (_cast(np.array(0.0), name), _cast(np.array(1.0), name))
        check = Within(0, 1)
        yield Example(
            opcode,
            name,
            f"{name}[20]",
            "rng($0, $1), distribution=rng_uniform",
            bounds,
            check=check,
            runs=_is_signed(name),
        )
    instruction = "rng($0, $1), distribution=rng_normal"
    yield Example(opcode, name, f"{name}[20]", instruction, bounds, check=Within(-40, 40), runs=_is_signed(name))


def _is_signed(name: str) -> bool:
    """f8e8m0fnu has neither zero nor negative numbers, and NaN in their place: there is nothing to compare."""
    return name != "f8e8m0fnu"


def _rng_state(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    yield Example(opcode, name, f"{name}[2]", "rng-get-and-update-state(), delta=3", check=Within(-np.inf, np.inf))


def _positive_definite(name: str, generator: np.random.Generator, batch: tuple[int, ...], size: int) -> Array:
    """Hermitian, with a condition below 4: n·I plus a factor's square of norm about 2n."""
    factor = _normal(name, generator, (*batch, size, size)).astype(np.complex128)
    matrix = factor @ factor.conj().swapaxes(-1, -2) / max(size, 1) + 2 * np.eye(size)
    return _cast(matrix if ELEMENT_TYPES[name].is_complex else matrix.real, name)


def _cholesky(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    """‖Δl‖ ≤ κ·n·(n + 1)·u·‖l‖ / √2 to first order (Higham, Theorem 10.8), κ below 8 here."""
    for turn in range(count):
        size = int(generator.integers(1, 7))
        matrix = _positive_definite(name, generator, (2,), size)
        instruction = f"cholesky($0), lower={'true' if turn % 2 == 0 else 'false'}"
        check = Normwise(8.0 * size * (size + 1))
        yield Example(
            opcode, name, text_of(name, matrix.shape), instruction, (matrix,), check=check, runs=_is_signed(name)
        )


def _triangular_solve(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    """‖Δx‖ ≤ cond·γ(n)·‖x‖ (Higham, Theorem 8.5), cond below 10 for these diagonally dominant matrices."""
    for turn in range(max(count, 4)):
        size, columns = (int(n) for n in generator.integers(1, 6, 2))
        left, lower = bool(turn & 1), bool(turn & 2)
        matrix = _normal(name, generator, (2, size, size)).astype(np.complex128) / (2 * size) + 2 * np.eye(size)
        matrix = _cast(matrix if ELEMENT_TYPES[name].is_complex else matrix.real, name)
        shape = (2, size, columns) if left else (2, columns, size)
        transpose = ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT")[turn % 3]
        instruction = (
            f"triangular-solve($0, $1), left_side={str(left).lower()}, lower={str(lower).lower()}, "
            f"transpose_a={transpose}"
        )
        check = Normwise(40.0 * size)
        yield Example(
            opcode,
            name,
            text_of(name, shape),
            instruction,
            (matrix, _normal(name, generator, shape)),
            check=check,
            runs=_is_signed(name),
        )


def _fft(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    """‖error‖ ≤ 7·log₂N·u·‖y‖ for powers of two (Higham, Theorem 24.2), three times that for other lengths."""
    for _ in range(max(count, 2)):
        rank = int(generator.integers(1, 4))
        lengths = tuple(int(n) for n in generator.integers(1, 9, rank))
        batch = tuple(int(n) for n in generator.integers(1, 3, generator.integers(0, 2)))
        check = Normwise(3 * 7 * (np.log2(np.prod(lengths)) + 2))
        whole, half = (*batch, *lengths), (*batch, *lengths[:-1], lengths[-1] // 2 + 1)
        text = ",".join(map(str, lengths))
        kinds = [("FFT", whole, whole, name), ("IFFT", whole, whole, name)]
        if name in _COMPLEX:
            kinds = [("RFFT", whole, half, _COMPLEX[name])]
        elif name in _COMPLEX.values():
            kinds.append(("IRFFT", half, whole, {"c64": "f32", "c128": "f64"}[name]))
        for kind, source, result, result_type in kinds:
            operand = _normal(name, generator, source)
            if kind == "IRFFT":
                # The spectrum of a real signal: what else the operand holds XLA and hloexec drop differently.
                real = generator.normal(size=whole)
                operand = np.fft.rfftn(real, axes=tuple(range(-rank, 0))).astype(operand.dtype)
            instruction = f"fft($0), fft_type={kind}, fft_length={{{text}}}"
            yield Example(
                opcode, name, text_of(result_type, result), instruction, (operand,), check=check, runs=_is_signed(name)
            )


def _batch_norm(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    """Sums of 24 terms and a dozen more operations, on numbers of size 1 (Higham, section 3.1)."""
    array, vector = f"{name}[4,5,6]", f"{name}[5]"
    for _ in range(count):
        operand = _cast(generator.normal(size=(4, 5, 6)) + 1, name)
        vectors = [_cast(generator.random(5) + 0.5, name) for _ in range(4)]
        operands = {
            "batch-norm-training": (operand, *vectors[:2]),
            "batch-norm-inference": (operand, *vectors),
            "batch-norm-grad": (operand, *vectors[:3], _cast(generator.normal(size=(4, 5, 6)), name)),
        }[opcode]
        names = ", ".join(f"${number}" for number in range(len(operands)))
        result = array if opcode == "batch-norm-inference" else f"({array}, {vector}, {vector})"
        instruction = f"{opcode}({names}), epsilon=0.001, feature_index=1"
        yield Example(opcode, name, result, instruction, operands, check=Normwise(24 * 12), runs=_is_signed(name))


GENERATORS: dict[str, Generator] = {
    "rng-bit-generator": _rng_bit_generator,
    "rng": _rng,
    "rng-get-and-update-state": _rng_state,
    "cholesky": _cholesky,
    "triangular-solve": _triangular_solve,
    "fft": _fft,
    "batch-norm-training": _batch_norm,
    "batch-norm-inference": _batch_norm,
    "batch-norm-grad": _batch_norm,
}
