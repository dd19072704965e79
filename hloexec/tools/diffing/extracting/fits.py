"""How a value of one module becomes the one that the other has: dimensions permuted, reshaped, in another type."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations

import attrs
import numpy as np

from hloexec.core.dtypes import ElementType, element_type_of
from hloexec.core.ir import ArrayShape, Instruction, TupleShape
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.language.text import format_shape, parse
from hloexec.tools.diffing.agreement import is_same
from hloexec.tools.diffing.limits import LIMITS


@frozen
class Fit:
    """Steps from a value to another."""

    order: tuple[int, ...] = ()
    """How its dimensions that are not 1 are permuted; empty where they are not."""
    dimensions: tuple[int, ...] | None = None
    """Its new dimensions; None where they stay."""
    element_type: ElementType | None = None
    """Its new type; None where it stays."""

    def of(self, value: Array) -> Array:
        if self.order:
            value = value.reshape(_squeezed(value.shape)).transpose(self.order)
        if self.dimensions is not None:
            value = value.reshape(self.dimensions)
        return value if self.element_type is None else value.astype(self.element_type.storage)

    def steps(self, shape: ArrayShape) -> Iterator[tuple[ArrayShape, str]]:
        """The instructions that do this to an array of a shape: what each gives, and its text behind that, with `%` for
        the operand."""
        kind, dimensions = shape.element_type, shape.dimensions
        if self.order:
            squeezed = _squeezed(dimensions)
            if squeezed != dimensions:
                yield ArrayShape(kind, squeezed), "reshape(%)"
            dimensions = tuple(squeezed[axis] for axis in self.order)
            yield ArrayShape(kind, dimensions), f"transpose(%), dimensions={{{','.join(map(str, self.order))}}}"
        if self.dimensions is not None and self.dimensions != dimensions:
            dimensions = self.dimensions
            yield ArrayShape(kind, dimensions), "reshape(%)"
        if self.element_type is not None:
            yield ArrayShape(self.element_type, dimensions), "convert(%)"


def fit_of(value: Array, wanted: Array) -> Fit | None:
    """How a value becomes exactly the one that is wanted; None where it does not."""
    if value.size != wanted.size:
        return None
    kind = None if value.dtype == wanted.dtype else element_type_of(wanted.dtype)
    dimensions = None if value.shape == wanted.shape else wanted.shape
    squeezed = _squeezed(value.shape)
    orders = permutations(range(len(squeezed))) if len(squeezed) <= LIMITS.permuted_dimensions else iter([()])
    for number, order in enumerate(orders):
        found = Fit(order, wanted.shape, kind) if number else Fit((), dimensions, kind)
        with np.errstate(all="ignore"):
            if is_same(found.of(value), wanted):
                return found
    return None


def step(name: str, shape: ArrayShape, text: str, operand: str, given: ArrayShape | TupleShape) -> Instruction:
    """An instruction that takes one operand, from its text with `%` for that."""
    lines = [
        "HloModule m",
        "ENTRY e {",
        f"operand = {format_shape(given)} parameter(0)",
        f"ROOT it = {format_shape(shape)} {text.replace('%', 'operand')}",
        "}",
    ]
    return attrs.evolve(parse("\n".join(lines)).entry.root, name=name, operands=(operand,), span=None)


def _squeezed(dimensions: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in dimensions if size != 1)
