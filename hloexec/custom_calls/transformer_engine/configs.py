"""Transformer Engine: what its calls have in common, and those whose configs do not say what to compute.

Its calls say what to compute in typed attributes whose names, and the operands that go with them, change between
versions; an attribute that hloexec does not know refuses the call, since it may change values. Source: NVIDIA
TransformerEngine, transformer_engine/jax.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeVar

import numpy as np

from hloexec.custom_calls.ffi import AttributeValue, ffi_attributes
from hloexec.dtypes import element_type_of
from hloexec.errors import ShapeError, UnsupportedError
from hloexec.ir import ArrayShape, Instruction, Shape, TupleShape
from hloexec.ops.common import array_shape
from hloexec.values import Array

__all__ = ["Attributes", "checked", "leaves", "reason", "zeros"]

_T = TypeVar("_T")


class Attributes:
    """The attributes of a call, each asked for once by name; `done` refuses those that nobody asked for."""

    def __init__(self, backend_config: str | None) -> None:
        self._found = dict(ffi_attributes(backend_config))

    def __contains__(self, name: str) -> bool:
        return name in self._found

    def integer(self, name: str, default: int | None = None) -> int:
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise UnsupportedError(f"its attribute {name} must be a whole number, but is {value!r}")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        value = self._take(name, default)
        if isinstance(value, (bool, str)):
            raise UnsupportedError(f"its attribute {name} must be a number, but is {value!r}")
        return float(value)

    def truth(self, name: str, default: bool | None = None) -> bool:
        value = self._take(name, default)
        if value not in (True, False) or isinstance(value, float):
            raise UnsupportedError(f"its attribute {name} must be true or false, but is {value!r}")
        return bool(value)

    def choice(self, name: str, choices: Mapping[int, _T], default: int | None = None) -> _T:
        """What an enumeration's number stands for."""
        value = self.integer(name, default)
        if value not in choices:
            known = ", ".join(f"{number} ({meaning})" for number, meaning in choices.items())
            raise UnsupportedError(f"its attribute {name} is {value}, and hloexec has {known}")
        return choices[value]

    def ignore(self, *names: str) -> None:
        """Pass over attributes that cannot change values, or repeat what the operands' shapes say."""
        for name in names:
            self._found.pop(name, None)

    def done(self) -> None:
        for name in self._found:
            raise UnsupportedError(f"its backend_config has the attribute {name}, which hloexec does not know")

    def _take(self, name: str, default: AttributeValue | None) -> AttributeValue:
        value = self._found.pop(name, default)
        if value is None:
            raise UnsupportedError(f"its backend_config lacks the attribute {name}")
        return value


def reason(read: Callable[[str | None], Any]) -> Callable[[Instruction], str | None]:
    """`supports` of an entry whose config `read` reads or refuses."""

    @wraps(read)
    def supports(instruction: Instruction) -> str | None:
        try:
            read(instruction.backend_config)
        except UnsupportedError as error:
            return error.message
        return None

    return supports


def leaves(shape: Shape, count: int, what: str) -> list[ArrayShape]:
    """The arrays of a result that must be a tuple of at least `count`; ShapeError otherwise."""
    elements = shape.elements if isinstance(shape, TupleShape) else (shape,)
    if len(elements) < count:
        raise ShapeError(f"{what} must have {count} results, but has shape {shape}")
    return [array_shape(element, f"a result of {what}") for element in elements]


def checked(
    infer: Callable[..., Shape], operands: Sequence[Array], backend_config: str | None, shape: Shape
) -> list[ArrayShape]:
    """The arrays of the declared shape, after the entry's rule has agreed to it; ShapeError otherwise."""
    given = (ArrayShape(element_type_of(operand.dtype), operand.shape) for operand in operands)
    inferred = leaves(infer(*given, backend_config=backend_config, shape=shape), 0, "the call")
    declared = leaves(shape, 0, "the call")
    for ours, theirs in zip(declared, inferred, strict=True):
        if ours.dimensions != theirs.dimensions:
            raise ShapeError(f"a result of the call is {ours}, but must be {theirs}")
    return declared


def zeros(shapes: Sequence[ArrayShape]) -> list[Array]:
    """What workspaces hold."""
    return [np.zeros(shape.dimensions, shape.element_type.storage) for shape in shapes]
