"""Library calls: one file per library, one entry per target. Importing this package fills the registry."""

from hloexec.custom_calls import annotations, cublas, host_callbacks, lapack, lapack_spectral, rewrites

__all__ = ["annotations", "cublas", "host_callbacks", "lapack", "lapack_spectral", "rewrites"]
