"""The operations: one entry per opcode, one file per family. Importing this package fills the registry."""

from hloexec.ops import (
    asynchronous,
    bitcast,
    collectives,
    control,
    convolution,
    data_movement,
    dynamic,
    indexing,
    linear_algebra,
    normalization,
    random,
    scan,
    scatter,
    select_and_scatter,
    sorting,
)

__all__ = [
    "asynchronous",
    "bitcast",
    "collectives",
    "control",
    "convolution",
    "data_movement",
    "dynamic",
    "indexing",
    "linear_algebra",
    "normalization",
    "random",
    "scan",
    "scatter",
    "select_and_scatter",
    "sorting",
]
