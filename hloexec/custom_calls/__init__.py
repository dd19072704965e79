"""Library calls: one file per library, one entry per target. Importing this package fills the registry."""

from hloexec.custom_calls import (
    annotations,
    cublas,
    decompositions,
    ducc,
    host_callbacks,
    lapack,
    lapack_spectral,
    onednn,
    random_bits,
    resize,
    rewrites,
    search,
    sparse,
)

__all__ = [
    "annotations",
    "cublas",
    "decompositions",
    "ducc",
    "host_callbacks",
    "lapack",
    "lapack_spectral",
    "onednn",
    "random_bits",
    "resize",
    "rewrites",
    "search",
    "sparse",
]
