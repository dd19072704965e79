"""Cholesky, triangular systems and Fourier transforms."""
