"""Values, the arguments and results of functions, the labels of their leaves, and one-line descriptions of objects.

A value is a NumPy array, a (nested) tuple of values, or a token.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, TypeAlias

import numpy as np

from hloexec.core.tree import flat, leaves

WHOLE = "value"
"""The label of a value that is no tuple."""
_LABEL = re.compile(r"\d{1,9}(\.\d{1,9})*", re.ASCII)

Ints: TypeAlias = tuple[int, ...]
"""Sizes, axes, or the index of a leaf."""

Pairs: TypeAlias = tuple[tuple[str, str], ...]
"""Names, each with a text."""

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
"""A NumPy array of any element type and shape; element types that NumPy lacks are those of ml_dtypes."""
Arrays: TypeAlias = tuple[Array, ...]
Dimensions: TypeAlias = tuple[int, ...]
"""The sizes of dimensions of an array, or the numbers of some of them."""


class Described:
    """A base of what functions return: `str` is a line that `repr` shows, too; notebooks show what commands show."""

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        if cls.__str__ is object.__str__:
            raise TypeError(f"{cls.__name__} is Described, and needs __str__, which says in a line what it is")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What Hypothesis asks for, which would show every field."""
        printer.text(repr(self))

    def _repr_html_(self) -> str | None:
        """What IPython asks for. Views stand above all that they show, so they are imported by name."""
        html: str | None = import_module("hloexec.report.notebook").html(self)
        return html


class Token:
    """The value of shape `token[]`; it orders side effects, and has no content."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "token"


TOKEN = Token()
"""The only token."""

Value: TypeAlias = Array | Token | tuple["Value", ...]
"""What a run takes and gives: an array, a token, or a (nested) tuple of values."""

Inputs: TypeAlias = Sequence[Any] | Mapping[Any, Any]
"""What a module is run on, in any of the forms in which functions take it as `inputs`:

- a list or tuple with one value per parameter, in the order of the parameters;
- a mapping from the parameters' names (or numbers) to their values;
- the arguments of a function of JAX: containers (pytrees) whose leaves, in JAX's order, are the parameters, or a dict
  of them by the names of the arguments. What jit has dropped may be there: paths and shapes of leaves say which;
- for several devices, a list with one of these for each of them.

Arrays are NumPy's or another library's that have `__array__` or `__dlpack__`, as those of JAX and PyTorch have.
"""


def arrays_of(value: object) -> list[Array]:
    """The leaves of a value that are arrays, depth first."""
    return [leaf for leaf in flat(value) if isinstance(leaf, np.ndarray)]


def labelled_arrays(value: Value) -> dict[str, Array]:
    """The arrays of a value by their labels, tokens left out."""
    return {label_of(index): leaf for index, leaf in leaves(value) if isinstance(leaf, np.ndarray)}


def join_values(values: Sequence[Value]) -> Value:
    """A value that is alone, such as the result of the only device, as it is; several as a tuple."""
    return tuple(values) if len(values) > 1 else values[0]


def label_of(index: Sequence[int]) -> str:
    """The label of a part of a value, such as `1.0`: its tuple index, joined by dots; `value` of all of it."""
    return ".".join(map(str, index)) or WHOLE


def part_label(name: str, index: Sequence[int]) -> str:
    """The label of a part of a value that has a name: `tuple.3` of `tuple`, `value.1.0` of `value`."""
    return ".".join((name, *map(str, index)))


def index_of(label: str) -> tuple[int, ...] | None:
    """The tuple index that a label spells; None for a text that is no label."""
    if label == WHOLE:
        return ()
    return tuple(map(int, label.split("."))) if _LABEL.fullmatch(label) else None
