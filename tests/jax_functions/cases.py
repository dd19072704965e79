"""What a row of the tables is: a function of JAX's, arguments for it, and how close its results have to be."""

import zlib
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

LONG = 16
"""`roundings` of a formula of many steps: special functions, softmax and normalization, Fourier transforms, scans."""
CANCELLING = 96
"""`roundings` where parts much larger than the result cancel inside: log-gamma and what is built on it."""
POSITIONS = 256
"""`roundings` of interpolation: positions are fractions of a rounded coordinate, and weights differences of them."""


@attrs.frozen(eq=False)
class Case:
    """One function at one set of arguments.

    Floating-point arguments are drawn in f32 and rounded to each of `types`; the others stay as they are.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    types: tuple[str, ...] = ("f32", "bf16")
    gradient: bool = False
    """Whether the gradients with respect to all floating-point arguments are results, too."""
    exact: bool = False
    """Whether floating-point results must have XLA's bits: data movement, comparisons, exact arithmetic."""
    roundings: int = 4
    """How many roundings follow one another from an argument to a result; see `comparing`."""
    invariants: Callable[..., Any] | None = None
    """From the results and the arguments, in NumPy, to what is compared in their place: for results that are not unique."""


class _Generator:
    """A stand-in for an argument until its case has a name: then the values are drawn, the same whatever else there is."""

    def __init__(self, draw: Callable[[np.random.Generator], np.ndarray[Any, Any]]) -> None:
        self.draw = draw


def row(name: str, function: Callable[..., Any], *arguments: Any, **options: Any) -> Case:
    """A case; its arguments are drawn from a seed that is its name."""
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    drawn = tuple(argument.draw(generator) if isinstance(argument, _Generator) else argument for argument in arguments)
    return Case(name, function, drawn, **options)


def normal(*shape: int) -> Any:
    """Standard normal numbers."""
    return _Generator(lambda generator: generator.normal(size=shape).astype(np.float32))


def uniform(low: float, high: float, *shape: int) -> Any:
    """Numbers between two bounds."""
    return _Generator(lambda generator: generator.uniform(low, high, shape).astype(np.float32))


def positive(*shape: int) -> Any:
    """Numbers from 1/2 to 4, away from every pole and branch."""
    return uniform(0.5, 4.0, *shape)


def integers(low: int, high: int, *shape: int, dtype: Any = np.int32) -> Any:
    """Integers from `low` to `high`, both included."""
    return _Generator(lambda generator: generator.integers(low, high, shape, endpoint=True).astype(dtype))


def indices(size: int, *shape: int) -> Any:
    """Indices into a dimension of a size."""
    return integers(0, size - 1, *shape)


def booleans(*shape: int) -> Any:
    return _Generator(lambda generator: generator.integers(0, 2, shape).astype(np.bool_))


def complex_normal(*shape: int) -> Any:
    return _Generator(
        lambda generator: (generator.normal(size=shape) + 1j * generator.normal(size=shape)).astype(np.complex64)
    )
