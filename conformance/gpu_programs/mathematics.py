"""Fourier transforms and linear algebra: what cuFFT and cuSOLVER are called for."""

from __future__ import annotations

import jax.numpy as jnp
from jax import lax

from conformance.gpu_programs.program import definite, normal, program

# Fourier transforms


@program(normal(6, 64), normal(6, 64))
def fourier(real, imaginary):
    """cuFFT: complex, forward and inverse."""
    values = lax.complex(real, imaginary)
    return jnp.fft.fft(values), jnp.fft.ifft(values)


@program(normal(4, 60))
def fourier_real(x):
    """Real to complex and back, of a length that is no power of two."""
    spectrum = jnp.fft.rfft(x)
    return spectrum, jnp.fft.irfft(spectrum, 60)


@program(normal(2, 16, 24))
def fourier_2d(x):
    """Two dimensions."""
    return jnp.fft.fft2(x)


# Linear algebra


@program(definite(24), rule="cholesky", precision="highest")
def cholesky(a):
    """cuSOLVER's potrf."""
    return jnp.linalg.cholesky(a)


@program(normal(32, 20), rule="qr", precision="highest")
def qr(a):
    """cuSOLVER's geqrf and orgqr."""
    return tuple(jnp.linalg.qr(a))


@program(definite(20), rule="eigh", precision="highest")
def eigh(a):
    """cuSOLVER's syevd."""
    return tuple(jnp.linalg.eigh(a))


@program(normal(24, 16), rule="svd", precision="highest")
def svd(a):
    """cuSOLVER's singular values."""
    return tuple(jnp.linalg.svd(a, full_matrices=False))


@program(normal(20, 20), rule="lu", precision="highest")
def lu(a):
    """cuSOLVER's getrf: the factors in one matrix, and the permutation."""
    factors, _, order = lax.linalg.lu(a)
    return factors, order


@program(definite(24), normal(24, 6), rule="triangular_solve", precision="highest")
def triangular_solve(a, b):
    """cuBLAS's trsm."""
    return lax.linalg.triangular_solve(a, b, left_side=True, lower=True)


@program(definite(24), normal(24, 3), rule="solve", precision="highest")
def solve(a, b):
    """A factorization and two triangular solves."""
    return jnp.linalg.solve(a, b)
