"""Steps of `after` that move values, or add them up across devices, from parts of values of `before`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property

import numpy as np

from hloexec.core.dtypes import ElementType, element_type_of
from hloexec.core.precision import unit_roundoff
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.common import wide
from hloexec.ops.registry import traits_of
from hloexec.tools.diffing.digests import digest_of
from hloexec.tools.diffing.graph import Instance, Node
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.replaying.evaluation import Evaluator, Overlay, Values


@frozen(eq=False)
class Steps:
    """Instructions that only move values, or add them up across devices."""

    result: Node
    ends: tuple[Node, ...]
    """The values from which they begin."""
    instances: tuple[Instance, ...]

    @property
    def is_alike(self) -> bool:
        """Whether they begin from what one instruction gave."""
        return len({(node.instance.static, node.digest.count) for node in self.ends}) == 1

    @property
    def given(self) -> set[int]:
        """The numbers of the values that they use besides."""
        inner = {node.number for instance in self.instances for node in instance.results}
        used = {node.number for instance in self.instances for node in instance.inputs}
        return used - inner - {node.number for node in self.ends}

    def given_digests(self, values: Values) -> tuple[int, ...]:
        """Those of the values that they use besides, which tell whether they are the same again."""
        return tuple(digest_of(values[number]).in_order for number in sorted(self.given))

    def run(self, evaluator: Evaluator, values: Values, changes: Mapping[int, Array]) -> Array | None:
        """What they give with some values replaced; None where one of them cannot be run again."""
        found = dict(changes)
        for instance in self.instances:
            arrays = evaluator.results(instance, Overlay(values, found))
            if arrays is None:
                return None
            found |= {node.number: array for node, array in zip(instance.results, arrays, strict=True)}
        return found[self.result.number]


def steps_from(node: Node, is_end: Callable[[Node], bool], passed: Collection[tuple[str, str]]) -> Steps | None:
    """How a value is moved or added up, between devices too, from values that may be parts; None where it is not.

    Instructions in `passed` do not give parts.
    """
    ends: dict[int, Node] = {}
    found = {node.instance.number: node.instance}
    pending = _sources_of(node, is_last=True)
    for current in pending:
        if current.instance.static not in passed and is_end(current):
            ends[current.number] = current
        elif current.instance.number not in found:
            sources = _sources_of(current)
            if len(found) > LIMITS.shard_steps or not (sources or _is_given(current)):
                return None
            if sources:
                found[current.instance.number] = current.instance
                pending += sources
    return Steps(node, tuple(ends.values()), tuple(found[number] for number in sorted(found))) if ends else None


def _sources_of(node: Node, is_last: bool = False) -> list[Node]:
    """The nodes whose elements a node consists of, or whose sum it is across devices; none where it is computed,
    or its first operand if it is the last."""
    instance = node.instance
    traits = traits_of(instance.instruction)
    devices = [instance.others[device] for device in sorted(instance.others)] or [instance.operands]
    places: Sequence[int]
    if instance.others:
        places = (node.leaf,) if traits.is_leafwise and len(instance.operands) > 1 else range(len(instance.operands))
    elif traits.moves is None:
        return list(instance.operands[0][:1]) if is_last and instance.operands else []
    else:
        places = traits.moved_operands(len(instance.operands))
    return [entry for operands in devices for place in places for entry in operands[place]]


def _is_given(node: Node) -> bool:
    """Whether a value is a constant, perhaps repeated."""
    while traits_of(node.instance.instruction).moves == (0,) and node.instance.inputs:
        node = node.instance.inputs[0]
    return node.instance.is_source


@frozen(eq=False, slots=False)
class Contents:
    """The numbers of an array, to be compared with those of others."""

    element_type: ElementType
    in_order: Array
    """In one dimension, in f64 or another type that holds them exactly."""

    @cached_property
    def sorted(self) -> Array:
        return np.sort(self.in_order)

    @cached_property
    def mean_size(self) -> float:
        """The root mean square of the finite ones."""
        finite = np.abs(self.in_order[np.isfinite(self.in_order)])
        return float(np.sqrt(np.mean(np.square(finite)))) if finite.size else 0.0

    def are_in(self, actual: Contents, *, in_order: bool = False) -> bool:
        """Whether another array holds about these numbers, in whatever order unless `in_order`."""
        if actual.in_order.size != self.in_order.size or not self.in_order.size:
            return False
        first, second = (actual.in_order, self.in_order) if in_order else (actual.sorted, self.sorted)
        if not (actual.element_type.is_inexact and self.element_type.is_inexact):
            return bool(np.array_equal(first, second))
        with np.errstate(all="ignore"):
            part = np.sqrt(max(unit_roundoff(actual.element_type), unit_roundoff(self.element_type)))
            near = np.abs(first - second) <= part * (np.abs(second) + self.mean_size)
            if near.all():
                return True
            near |= (first == second) | (np.isnan(first) & np.isnan(second))
        return bool(near.size - np.count_nonzero(near) <= LIMITS.share_off * near.size)


def contents_of(array: Array) -> Contents:
    """The numbers of an array of any element type."""
    return Contents(element_type_of(array.dtype), wide(array).reshape(-1))


def holds_same(actual: Array, expected: Array, in_order: bool = False) -> bool:
    """Whether two arrays hold about the same numbers, in whatever order unless row by row: so that different parts are
    told apart."""
    return actual is expected or contents_of(expected).are_in(contents_of(actual), in_order=in_order)
