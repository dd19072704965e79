"""Library calls: one file per library, one entry per target. Importing this package fills the registry."""

from hloexec.custom_calls import annotations, cublas, lapack, lapack_spectral

__all__ = ["annotations", "cublas", "lapack", "lapack_spectral"]
