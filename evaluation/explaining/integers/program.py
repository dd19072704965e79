"""What a program of integers is, and how it becomes a module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from zlib import crc32

import attrs
import numpy as np

import hloexec
from hloexec.core.ir import Module
from hloexec.core.values import Value


@attrs.frozen(eq=False)
class Program:
    """A function of JAX and of arrays, drawn from the normal distribution."""

    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    type: str = "float32"
    is_tiny: bool = False
    """Whether its numbers become denormal."""

    def module(self) -> tuple[Module, list[Value]]:
        """The module before optimization, and its inputs; raises ImportError without JAX."""
        import jax

        draw = np.random.default_rng(crc32(self.function.__name__.encode()))
        arrays = [jax.numpy.asarray(draw.standard_normal(shape), self.type) for shape in self.shapes]

        def function(*given: Any) -> Any:
            return self.function(jax, *given)

        function.__name__ = self.function.__name__
        lowered = jax.jit(function, keep_unused=True).lower(*arrays)
        return hloexec.from_jax(lowered), [np.asarray(each) for each in arrays]


def registering(programs: dict[str, Program]) -> Callable[..., Callable[[Any], Any]]:
    """A decorator that adds a function as a program to a table."""

    def register(*shapes: tuple[int, ...], **traits: Any) -> Callable[[Any], Any]:
        def add(function: Any) -> Any:
            programs[function.__name__] = Program(function, shapes, **traits)
            return function

        return add

    return register
