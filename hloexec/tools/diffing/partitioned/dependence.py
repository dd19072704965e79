"""Which part of its operands a part of a result needs, found by trial.

An instruction is evaluated on random numbers, once as they are and once with other numbers outside of a part of an
operand: what does not change in the result needs nothing but this part. A dimension of an operand of which no part
suffices is added up (or the largest is taken, and so on) if results for its parts combine to the whole result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hloexec.core.dtypes import element_type_of
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.common import wide
from hloexec.ops.registry import find_opcode, traits_of
from hloexec.tools.diffing.agreement import is_near
from hloexec.tools.diffing.graph import Instance
from hloexec.tools.diffing.replaying.evaluation import Evaluator, Overlay

_Operands = Sequence[Array]


@frozen(eq=False)
class Sum:
    """A way in which a dimension vanishes."""

    combine: Callable[..., Any]
    neutral: Callable[[np.dtype[Any]], object]
    """What changes nothing, of a type."""


def _largest(dtype: np.dtype[Any]) -> Any:
    entry = element_type_of(dtype)
    return np.inf if entry.is_floating else np.iinfo(dtype).max if entry.is_integral else True


def _least(dtype: np.dtype[Any]) -> Any:
    entry = element_type_of(dtype)
    return -np.inf if entry.is_floating else np.iinfo(dtype).min if entry.is_integral else False


_SUMS = (
    Sum(np.add, lambda dtype: 0),
    Sum(np.maximum, _least),
    Sum(np.minimum, _largest),
    Sum(np.multiply, lambda dtype: 1),
)


class Dependence:
    """The dependence of one instruction's first result on its operands."""

    def __init__(self, instance: Instance, evaluator: Evaluator) -> None:
        self._instance = instance
        self._evaluator = evaluator
        self._nodes = [part[0] if len(part) == 1 else None for part in instance.operands]
        entry = find_opcode(instance.opcode)
        self.shape = instance.results[0].shape
        is_passed = traits_of(instance.instruction).moves == (0,) and self._is_unchanged()
        self._is_elementwise = is_passed or (entry is not None and entry.is_elementwise)
        self._known: dict[tuple[int, int, int, int], bool] = {}
        self._sums: dict[tuple[int, int, int], Sum | None] = {}
        self._base: list[Array] | None = None
        self._result: Array | None = None
        self._is_run = False

    def _is_unchanged(self) -> bool:
        """Whether the result is the first operand, row by row in the same dimensions."""
        result, operand = self._instance.results[0], self._nodes[0] if self._nodes else None
        return operand is not None and operand.shape == result.shape and operand.digest == result.digest

    def shape_of(self, operand: int) -> tuple[int, ...] | None:
        node = self._nodes[operand]
        return None if node is None else node.shape

    def suffices(self, operand: int, axis: int, of: int, parts: int) -> bool:
        """Whether a part of an operand along an axis suffices for that part of the result along another one."""
        dimensions = self.shape_of(operand)
        if dimensions is None or dimensions[axis] % parts or self.shape[of] % parts:
            return False
        if self._is_elementwise:
            return axis == of and dimensions == self.shape
        key = (operand, axis, of, parts)
        if key not in self._known:
            self._known[key] = all(self._holds(operand, axis, of, parts, place) for place in (0, parts - 1))
        return self._known[key]

    def _holds(self, operand: int, axis: int, of: int, parts: int, place: int) -> bool:
        operands, result = self._random()
        if operands is None or result is None:
            return False
        changed = list(operands)
        part = _part(operands[operand].shape, axis, parts, place)
        other = _changed(operands[operand])
        other[part] = operands[operand][part]
        changed[operand] = other
        found = self.evaluate(changed)
        where = _part(result.shape, of, parts, place)
        return found is not None and found.shape == result.shape and is_near(found[where], result[where])

    def sum_over(self, operand: int, axis: int, parts: int) -> Sum | None:
        """How the results for parts of an operand along an axis combine to the whole result; None where they do not."""
        key = (operand, axis, parts)
        if key not in self._sums:
            self._sums[key] = self._sum_over(*key)
        return self._sums[key]

    def _sum_over(self, operand: int, axis: int, parts: int) -> Sum | None:
        dimensions = self.shape_of(operand)
        if self._is_elementwise or dimensions is None or dimensions[axis] % parts:
            return None
        operands, result = self._random()
        if operands is None or result is None:
            return None
        for way in _SUMS:
            total: Array | None = None
            for place in range(parts):
                given = list(operands)
                part = _part(dimensions, axis, parts, place)
                given[operand] = masked(operands[operand], part, way)
                found = self.evaluate(given)
                if found is None:
                    return None
                total = wide(found) if total is None else way.combine(total, wide(found))
            if total is not None and is_near(total.astype(result.dtype), result):
                return way
        return None

    def partner(self, operand: int, axis: int, parts: int) -> list[tuple[int, int]]:
        """The axes of other operands that are added up together with an axis of this one."""
        way = self.sum_over(operand, axis, parts)
        operands, _ = self._random()
        if way is None or operands is None:
            return []
        found = []
        given = list(operands)
        given[operand] = masked(operands[operand], _part(operands[operand].shape, axis, parts, 0), way)
        wanted = self.evaluate(given)
        for other, array in enumerate(operands):
            if other == operand or self._nodes[other] is None:
                continue
            for place, size in enumerate(array.shape):
                if size != operands[operand].shape[axis]:
                    continue
                both = list(operands)
                both[other] = masked(array, _part(array.shape, place, parts, 0), way)
                result = self.evaluate(both)
                if wanted is not None and result is not None and is_near(result, wanted):
                    found.append((other, place))
        return found

    def evaluate(self, operands: _Operands) -> Array | None:
        """The first result for other operands."""
        nodes = [node for part in self._instance.operands for node in part]
        changes = {node.number: array for node, array in zip(nodes, operands, strict=True)}
        with np.errstate(all="ignore"):
            arrays = self._evaluator.results(self._instance, Overlay({}, changes))
        return arrays[0] if arrays else None

    def _random(self) -> tuple[list[Array] | None, Array | None]:
        """Operands with random floats, and what they give."""
        if not self._is_run:
            self._is_run = True
            nodes = [node for part in self._instance.operands for node in part]
            if len({node.number for node in nodes}) == len(nodes) and None not in self._nodes:
                self._base = [_noise(node.value, node.number) if node.value.size > 1 else node.value for node in nodes]
                self._result = self.evaluate(self._base)
        return self._base, self._result


def masked(array: Array, part: tuple[slice, ...], way: Sum) -> Array:
    """An array with nothing outside of a part that would change a sum."""
    found = np.full_like(array, way.neutral(array.dtype))
    found[part] = array[part]
    return found


def _part(dimensions: Sequence[int], axis: int, parts: int, place: int) -> tuple[slice, ...]:
    size = dimensions[axis] // parts
    return tuple(
        slice(place * size, (place + 1) * size) if each == axis else slice(None) for each in range(len(dimensions))
    )


def _noise(array: Array, seed: int) -> Array:
    """Random numbers of the same type; integers, which may be indices, stay as they are."""
    if not element_type_of(array.dtype).is_inexact:
        return array
    return np.asarray(np.random.default_rng(seed).standard_normal(array.shape)).astype(array.dtype)


def _changed(array: Array) -> Array:
    """Other numbers in every place, integers between the least and the largest."""
    entry = element_type_of(array.dtype)
    if entry.is_inexact:
        return np.asarray(-array - array.dtype.type(3))
    if entry.is_integral:
        return np.asarray(array.min() + array.max() - array, array.dtype)
    return np.logical_not(array)
