"""A program that XLA is to partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

Axes = Sequence[str | None]


@attrs.frozen(eq=False)
class Program:
    """A program, what it takes, and how that is sharded."""

    make: Callable[[Any, Any], Callable[..., Any]]
    """From JAX and what constrains a value to a sharding, the function."""
    shapes: Sequence[tuple[int, ...]]
    axes: Sequence[Axes]
    """Of each argument."""
    results: Any = None
    """Axes of the results, nested as they are; None leaves them to XLA."""
    labels: int = 0
    """So many of the last arguments are integers below this number of rows of the second."""
