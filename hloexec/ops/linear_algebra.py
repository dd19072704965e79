"""Cholesky decomposition, triangular systems and Fourier transforms."""

from __future__ import annotations

import attrs

from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.registry import opcode

__all__ = ["CholeskyAttributes", "FftAttributes", "TriangularSolveAttributes"]


@attrs.frozen
class CholeskyAttributes:
    lower: bool = attribute(Grammar.BOOL, default=False)


@attrs.frozen
class TriangularSolveAttributes:
    left_side: bool = attribute(Grammar.BOOL, default=False)
    lower: bool = attribute(Grammar.BOOL, default=False)
    unit_diagonal: bool = attribute(Grammar.BOOL, default=False)
    transpose_a: str = attribute(
        Grammar.ENUM,
        default="TRANSPOSE_INVALID",
        choices=("TRANSPOSE_INVALID", "NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"),
    )


@attrs.frozen
class FftAttributes:
    fft_type: str = attribute(Grammar.ENUM, choices=("FFT", "IFFT", "RFFT", "IRFFT"))
    fft_length: tuple[int, ...] = attribute(Grammar.INT_LIST)


@opcode("cholesky", operands=1, attributes=CholeskyAttributes)
class Cholesky:
    """The triangular factor of a positive definite matrix: a = l lᴴ, or a = uᴴ u (XLA: Cholesky)."""


@opcode("triangular-solve", operands=2, attributes=TriangularSolveAttributes)
class TriangularSolve:
    """x with op(a) x = b (left side) or x op(a) = b (XLA: TriangularSolve)."""


@opcode("fft", operands=1, attributes=FftAttributes)
class Fft:
    """The discrete Fourier transform over the last dimensions (XLA: Fft)."""
