"""What cuDNN's calls share: reading their configs field by field, rounding as cuDNN rounds, and scratch memory.

Every field of a config is known or refused by name. Protocol buffers leave out what is zero, and write 64-bit integers
as strings and enumerations as words (as numbers, in older dumps).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs
import ml_dtypes
import numpy as np

from hloexec.custom_calls.backend_config import backend_config_field
from hloexec.dtypes import ElementType
from hloexec.errors import HloError, ShapeError, UnsupportedError
from hloexec.ir import ArrayShape, Instruction, Shape, TupleShape
from hloexec.ops.common import array_shape, narrow, require
from hloexec.values import Array

__all__ = [
    "Fields",
    "read_fields",
    "refused_by",
    "require_count",
    "require_floating",
    "require_named",
    "result_shapes",
    "saturating",
    "with_scratch",
]


@attrs.frozen
class Fields:
    """One object of a config; UnsupportedError where a field is not of the kind that is asked for."""

    values: Mapping[str, Any]

    def number(self, name: str, default: float = 0.0) -> float:
        value = self.values.get(name, default)
        try:
            return float(value)
        except (TypeError, ValueError, OverflowError):
            raise UnsupportedError(f"{name} of its backend_config must be a number, but is {value!r}") from None

    def whole(self, name: str, default: int = 0) -> int:
        value = self.number(name, default)
        if not value.is_integer():
            raise UnsupportedError(f"{name} of its backend_config must be a whole number, but is {value}")
        return int(value)

    def flag(self, name: str) -> bool:
        value = self.values.get(name, False)
        if not isinstance(value, bool):
            raise UnsupportedError(f"{name} of its backend_config must be true or false, but is {value!r}")
        return value

    def word(self, name: str, words: Sequence[str]) -> str:
        """A member of an enumeration, by its name or its number; the first one where the field is left out."""
        value = str(self.values.get(name, words[0]))
        if value.isdigit() and int(value) < len(words):
            return words[int(value)]
        if value not in words:
            raise UnsupportedError(f"{name} of its backend_config is {value!r}; there are {', '.join(words)}")
        return value

    def object(self, name: str) -> Fields | None:
        """An object inside this one, None where it is left out."""
        value = self.values.get(name)
        if value is not None and not isinstance(value, dict):
            raise UnsupportedError(f"{name} of its backend_config must be an object, but is {value!r}")
        return None if value is None else Fields(value)

    def whole_list(self, name: str) -> tuple[int, ...]:
        value = self.values.get(name, [])
        try:
            if isinstance(value, str):
                raise TypeError
            return tuple(int(item) for item in value)
        except (TypeError, ValueError, OverflowError):
            raise UnsupportedError(f"{name} of its backend_config must be a list of whole numbers") from None


def read_fields(backend_config: str | None, field: str, known: Sequence[str]) -> Fields:
    """The object `field` of a config; UnsupportedError names a field of it that is not among those `known`."""
    values = backend_config_field(backend_config, field)
    for name in values:
        if name not in known:
            raise UnsupportedError(f"its {field} has the field {name}, which hloexec does not know")
    return Fields(values)


def refused_by(read: Callable[[Instruction], Any]) -> staticmethod[[Instruction], str | None]:
    """The `supports` of an entry: why `read` refuses an instruction, as a clause; None where it does not."""

    def supports(instruction: Instruction) -> str | None:
        try:
            read(instruction)
        except (UnsupportedError, ShapeError) as error:
            return error.message
        return None

    return staticmethod(supports)


def require_count(operands: Sequence[object], counts: Collection[int], what: str, error: type[HloError]) -> None:
    """Raise `error` unless there are as many operands as one of `counts`."""
    if len(operands) not in counts:
        raise error(f"{what} must have {' or '.join(map(str, counts))} operands, but has {len(operands)}")


def require_named(operands: Sequence[object], names: Sequence[str], what: str, error: type[HloError]) -> None:
    """Raise `error` unless there is one operand for each of `names`."""
    if len(operands) != len(names):
        raise error(f"{what} must have the operands {', '.join(names)}, but has {len(operands)} operands")


def result_shapes(shape: Shape, what: str) -> tuple[ArrayShape, ...]:
    """The arrays that a call declares as its result, scratch memory included; ShapeError where there are none."""
    leaves = shape.elements if isinstance(shape, TupleShape) else (shape,)
    if not leaves:
        raise ShapeError(f"{what} has no room for its result in {shape}")
    return tuple(array_shape(leaf, f"a result of {what}") for leaf in leaves)


def require_floating(shapes: Iterable[ArrayShape], what: str) -> None:
    """ShapeError unless all of these arrays hold floating-point numbers."""
    for shape in shapes:
        require(shape.element_type.is_floating, f"the operands of {what} must be floating-point numbers, not {shape}")


def with_scratch(results: Sequence[Array], shape: Shape) -> Array | tuple[Array, ...]:
    """The results in the form of the declared shape, zeros for the scratch memory declared behind them."""
    if not isinstance(shape, TupleShape):
        return results[0]
    rest = (array_shape(leaf, "scratch memory") for leaf in shape.elements[len(results) :])
    return (*results, *(np.zeros(leaf.dimensions, leaf.element_type.storage) for leaf in rest))


def saturating(array: Array, element_type: ElementType) -> Array:
    """The array in `element_type` as cuDNN converts: integers and 8-bit floats saturate, integers round to nearest.

    HLO's convert truncates towards an integer, and lets 8-bit floats overflow.
    """
    with np.errstate(all="ignore"):
        if element_type.is_integral:
            limits = np.iinfo(element_type.compute)
            wide = np.nan_to_num(np.rint(array.astype(np.float64)), nan=0.0)
            return narrow(np.clip(wide, limits.min, limits.max).astype(np.int64), element_type)
        if element_type.is_floating and element_type.bits == 8:
            largest = array.dtype.type(float(ml_dtypes.finfo(element_type.storage).max))  # type: ignore[no-untyped-call]
            array = np.clip(array, -largest, largest)
        return narrow(array, element_type)
