"""What a program of the fresh half is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

__all__ = ["Program", "registering"]


@attrs.frozen(eq=False)
class Program:
    """What is computed, of which arrays, which faults it can have, and whether its numbers become denormal."""

    function: Callable[..., Any]
    """Of an `Arithmetic` object and of arrays."""
    arguments: Sequence[Any]
    faults: tuple[str, ...]
    is_tiny: bool = False


def registering(programs: dict[str, Program]) -> Callable[..., Callable[[Any], Any]]:
    """A decorator that adds a function as a program to a table."""

    def register(arguments: Sequence[Any], faults: str, is_tiny: bool = False) -> Callable[[Any], Any]:
        def add(function: Any) -> Any:
            programs[function.__name__] = Program(function, arguments, tuple(faults.split()), is_tiny)
            return function

        return add

    return register
