"""The operations: one entry per opcode, one file per family. Importing this package fills the registry."""

from hloexec.ops import (
    asynchronous,
    collectives,
    control,
    convolution,
    linear_algebra,
    normalization,
    random,
    scan,
    select_and_scatter,
    sorting,
)

__all__ = [
    "asynchronous",
    "collectives",
    "control",
    "convolution",
    "linear_algebra",
    "normalization",
    "random",
    "scan",
    "select_and_scatter",
    "sorting",
]
