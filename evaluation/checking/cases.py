"""Steps for `hx.check`: a function of JAX with the arguments of its calls; a plant has the line to blame marked."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from hloexec.core.structs import frozen

Step = Callable[..., Any]
_MARK = "# here"
CALLS = 5
"""How often a clean step is called."""


@frozen
class Case:
    """A step, and what it is called with."""

    function: Step
    calls: tuple[tuple[Any, ...], ...]
    """The arguments of each call. Of a plant, the last call gives NaN or infinities, and no call before it."""
    group: str
    """`seen`, or `reserve`: written after the others had been run."""

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def place(self) -> tuple[str, int]:
        """The file and the line that the mark stands in."""
        lines, start = inspect.getsourcelines(self.function)
        number = next(number for number, line in enumerate(lines) if line.rstrip().endswith(_MARK))
        return inspect.getsourcefile(self.function) or "", start + number


class Table(dict[str, Case]):
    """Cases by name."""

    def add(self, *calls: tuple[Any, ...], group: str = "seen") -> Callable[[Step], Step]:
        """A decorator: add a step; `calls` has the arguments of each call."""

        def added(function: Step) -> Step:
            if function.__name__ in self:
                raise ValueError(f"two cases are named {function.__name__}")
            self[function.__name__] = Case(function, calls, group)
            return function

        return added
