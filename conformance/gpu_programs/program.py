"""What a program is, and the table of them.

A program draws its arguments from a seed that is its name. Floating-point arguments are drawn in f32 and rounded to the
program's element type, unless they name a type of their own. `rule` says how results are compared
(`conformance.recorded`): "rounded" within the error budget of the optimized module, "bits" bit for bit, and the name of
a decomposition by what it has to reconstruct.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import ml_dtypes
import numpy as np

_TYPES: dict[str, Any] = {
    "f32": np.float32,
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "f8e4m3fn": ml_dtypes.float8_e4m3fn,
    "f8e5m2": ml_dtypes.float8_e5m2,
}

GEMM = {"xla_gpu_enable_triton_gemm": False, "xla_gpu_gemm_rewrite_size_threshold": 0}
"""Matrix products as calls of cuBLAS, not as kernels of Triton, however small."""
NORM = {"xla_gpu_enable_cudnn_layer_norm": True}


@dataclass(frozen=True)
class _Draw:
    """An argument before its program has a name and an element type."""

    values: Callable[[np.random.Generator], Any]
    type_name: str | None = None

    def drawn(self, generator: np.random.Generator, type_name: str) -> Any:
        values = np.asarray(self.values(generator))
        return values.astype(_TYPES[self.type_name or type_name]) if values.dtype == np.float32 else values


def normal(*shape: int, scale: float = 1.0, of: str | None = None) -> _Draw:
    """Normal numbers of a standard deviation."""
    return _Draw(lambda generator: (scale * generator.normal(size=shape)).astype(np.float32), of)


def weight(*shape: int, fan_in: int | None = None, of: str | None = None) -> _Draw:
    """Normal numbers that keep the size of what they are multiplied with."""
    return normal(*shape, scale=float(fan_in or shape[-2]) ** -0.5, of=of)


def uniform(low: float, high: float, *shape: int, of: str | None = None) -> _Draw:
    """Numbers between two bounds."""
    return _Draw(lambda generator: generator.uniform(low, high, shape).astype(np.float32), of)


def integers(low: int, high: int, *shape: int, dtype: Any = np.int32) -> _Draw:
    """Integers from `low` to below `high`."""
    return _Draw(lambda generator: generator.integers(low, high, shape).astype(dtype))


def permutation(count: int) -> _Draw:
    """The numbers below `count` in any order."""
    return _Draw(lambda generator: generator.permutation(count).astype(np.int32))


def exactly(values: Any) -> _Draw:
    """These values."""
    return _Draw(lambda generator: np.asarray(values))


def definite(size: int) -> _Draw:
    """A symmetric matrix whose eigenvalues lie between 1 and about 5."""

    def values(generator: np.random.Generator) -> Any:
        root = generator.normal(size=(size, size)) / np.sqrt(size)
        return (root @ root.T + np.eye(size)).astype(np.float32)

    return _Draw(values)


@dataclass(frozen=True)
class Program:
    """A JAX function with everything that its recording needs."""

    name: str
    function: Callable[..., Any]
    draws: Any
    type_name: str
    rule: str = "rounded"
    precision: str | None = None
    """What `jax.default_matmul_precision` is set to; None leaves JAX's default (TF32 for f32 on GPUs that have it)."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Compiler options (fields of XLA's DebugOptions)."""

    @property
    def about(self) -> str:
        return (self.function.__doc__ or "").strip()

    def arguments(self, draw: int | None = None) -> tuple[Any, ...]:
        """The arguments, the same on every machine; or others, by the number of their draw."""
        seed = zlib.crc32(self.name.encode())
        generator = np.random.default_rng(seed if draw is None else [seed, draw])
        drawn: tuple[Any, ...] = jax.tree.map(lambda draw: draw.drawn(generator, self.type_name), self.draws)
        return drawn


PROGRAMS: dict[str, Program] = {}


def program(*draws: Any, types: str = "f32", **settings: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds a function to PROGRAMS once per element type, as `name.type`."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        for type_name in types.split():
            name = f"{function.__name__}.{type_name}"
            PROGRAMS[name] = Program(name, function, draws, type_name, **settings)
        return function

    return add
