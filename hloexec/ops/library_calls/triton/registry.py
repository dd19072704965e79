"""The registry of what Triton kernels are made of: the entries of `mosaic` for arith and math, and its own."""

from __future__ import annotations

from collections.abc import Mapping

from hloexec.ops.library_calls.mosaic.registry import MOSAIC, Entry, Registry

_SHARED = ("arith.", "math.", "ub.")


def _shared() -> Mapping[str, Entry]:
    return {name: entry for name, entry in MOSAIC.all.items() if name.startswith(_SHARED)}


TRITON = Registry(
    "hloexec.ops.library_calls.triton.operations", "functions tensors products combining accesses control", _shared
)
