"""What a program is whose operations have numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs


@attrs.frozen(eq=False)
class Program:
    """What is computed, of which arrays, and which faults it can have."""

    function: Callable[..., Any]
    """Of an `Arithmetic` object and of arrays."""
    arguments: Sequence[Any]
    faults: tuple[str, ...]
    is_tiny: bool = False
    """Whether its numbers become denormal."""
    is_covered: bool = False
    """Whether all its sums and functions are known to the object that computes them."""


def registering(programs: dict[str, Program]) -> Callable[..., Callable[[Any], Any]]:
    """A decorator that adds a function as a program to a table."""

    def register(arguments: Sequence[Any], faults: str, **traits: bool) -> Callable[[Any], Any]:
        def add(function: Any) -> Any:
            programs[function.__name__] = Program(function, arguments, tuple(faults.split()), **traits)
            return function

        return add

    return register
