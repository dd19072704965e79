"""What a program is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np


@attrs.frozen(eq=False)
class Program:
    """A function of JAX's and its arguments."""

    name: str
    make: Callable[[Any], tuple[Callable[..., Any], tuple[Any, ...]]]
    """Gives, from the jax module, a function to lower and its arguments."""
    keeps: frozenset[int] = frozenset()
    """Leaves of the arguments that must not hold outliers: without them, the program has no meaning."""
    devices: int = 1
    specs: tuple[tuple[Any, ...], ...] = ()
    """How the leaves of the arguments are sharded over the mesh `d` × `m` of 2 × 4 devices; axes' names or None."""

    @property
    def is_bf16(self) -> bool:
        return self.name.endswith("_bf16")


def registering(programs: list[Program]) -> Callable[..., Any]:
    """A decorator that adds a function as a program to a list."""

    def register(make: Any = None, *, keeps: Sequence[int] = (), specs: Sequence[tuple[Any, ...]] | None = None) -> Any:
        def add(make: Any) -> Any:
            devices = 1 if specs is None else 8
            programs.append(Program(make.__name__.strip("_"), make, frozenset(keeps), devices, tuple(specs or ())))
            return make

        return add if make is None else add(make)

    return register


def normal(seed: int, *shape: int) -> Any:
    """Numbers that keep the size of what they are multiplied with."""
    scale = np.sqrt(shape[-2]) if len(shape) > 1 else 1
    return (np.random.default_rng(seed).normal(size=shape) / scale).astype(np.float32)


def positive(seed: int, *shape: int) -> Any:
    """Numbers between a tenth and one."""
    return np.random.default_rng(seed).uniform(0.1, 1, shape).astype(np.float32)


def integers(seed: int, below: int, *shape: int) -> Any:
    return np.random.default_rng(seed).integers(0, below, shape).astype(np.int32)
