"""Library calls: one file per library, one entry per target. Importing this package fills the registry."""

from hloexec.custom_calls import (
    annotations,
    cublas,
    decompositions,
    host_callbacks,
    lapack,
    lapack_spectral,
    random_bits,
    resize,
    rewrites,
    search,
)

__all__ = [
    "annotations",
    "cublas",
    "decompositions",
    "host_callbacks",
    "lapack",
    "lapack_spectral",
    "random_bits",
    "resize",
    "rewrites",
    "search",
]
