"""The sizes of a program: those of the benchmark, or every one of them cut by the same factor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Program = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function, and the shapes of its arguments (pytrees of jax.ShapeDtypeStruct)."""


def sized(scale: float, least: int = 1) -> Callable[[int], int]:
    """What cuts a size to `scale` of itself, but not below `least`."""
    return lambda size: min(size, max(least, round(size * scale)))


def array(*dimensions: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    """The shape of an argument."""
    return jax.ShapeDtypeStruct(dimensions, dtype)
