"""What a program is: a function that `jax.jit` and `hx.jit` take, and a call of it.

JAX traces it once for both, as some of what it traces is numbered.
"""

from collections.abc import Callable
from typing import Any

import attrs

from evaluation.programs.program import integers, normal, positive

__all__ = ["PROGRAMS", "Call", "call", "integers", "normal", "positive", "program"]

Make = Callable[[list[Any]], "Call"]
PROGRAMS: dict[str, Make] = {}
"""All programs, by name, in the order of their files."""


@attrs.frozen(eq=False)
class Call:
    """A function, what it is called with, and how its results are compared."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    options: dict[str, Any]
    """Those of `jax.jit`."""
    is_exact: bool
    """Whether floats must have XLA's bits: data movement, and arithmetic without rounding."""
    is_ordered: bool
    """Whether effects have an order."""
    is_wide: bool
    """Whether JAX has types of 64 bits."""


def call(
    function: Callable[..., Any],
    *arguments: Any,
    options: Any = (),
    exact: bool = False,
    ordered: bool = True,
    x64: bool = False,
    **keywords: Any,
) -> Call:
    """A call of a function with arguments and keywords; `options` are those of `jax.jit`."""
    return Call(function, arguments, keywords, dict(options), exact, ordered, x64)


def program(make: Make) -> Make:
    """Add a program to the table. It is given a list to which its callbacks append what they see."""
    assert make.__name__ not in PROGRAMS, f"two programs are called {make.__name__}"
    PROGRAMS[make.__name__] = make
    return make
