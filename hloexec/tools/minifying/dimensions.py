"""Smaller dimensions and fewer devices, by the relations between dimensions that `hloexec.shrink` knows."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np

from hloexec.core.ir import ArrayShape, BufferShape, Module, flat_shapes
from hloexec.core.values import Array, Value, mapped
from hloexec.engine.devices.topology import topology_of
from hloexec.engine.inputs import random_inputs
from hloexec.errors import HloError, HloWarning
from hloexec.ops.common import wide
from hloexec.tools.minifying.case import Case
from hloexec.tools.minifying.opening import with_parameters_of
from hloexec.tools.minifying.searching import Candidate, Search

_SIZES = (1, 2, 3, 4, 6, 8, 12, 16)
"""What sizes are tried, the smallest first; then halves of what there is."""
_PARTS = ("first", "last", "largest", "lowest", "highest", "random")
"""Which part of the inputs is kept: the first rows, the last, those around an element, or other numbers."""

_EXTREMES: Mapping[str, Callable[[Array], Any]] = {
    "largest": lambda numbers: np.argmax(np.abs(numbers)),
    "lowest": lambda numbers: np.argmin(numbers.real),
    "highest": lambda numbers: np.argmax(numbers.real),
}


def smaller_dimensions(search: Search) -> bool:
    """Make sizes smaller, the largest first; whether any became so."""
    search.begin("dimensions")
    is_changed = False
    for size in sorted(_sizes(search.best), reverse=True):
        case = search.best
        if size > 1 and size in _sizes(case):
            targets = [each for each in _SIZES if each < size] + _halves(size)
            is_changed |= search.any(_resized_cases(case, size, targets))
    return is_changed


def _halves(size: int) -> list[int]:
    found = []
    while (size := size // 2) > _SIZES[-1]:
        found.append(size)
    return found[::-1]


def _sizes(case: Case) -> set[int]:
    found: set[int] = set()
    for module in (case.module, case.other):
        for instruction in () if module is None else module.entry:
            for leaf in flat_shapes(instruction.shape):
                found.update(leaf.array_shape.dimensions)
    return found


def _resized_cases(case: Case, size: int, targets: Sequence[int]) -> Iterator[Candidate]:
    for target in targets:
        resized = _resized(case, size, target)
        if resized is None:
            continue
        if case.inputs is None:
            yield resized
            continue
        for part in _PARTS:
            yield partial(_with_part, case, resized, part)


def _resized(case: Case, size: int, target: int) -> Case | None:
    try:
        module = _shrunken(case.module, {size: target})
        other = None
        if case.other is not None:
            known = {each for each in _sizes(Case(case.other, None)) if each == size}
            other = with_parameters_of(_shrunken(case.other, {size: target}) if known else case.other, module)
    except HloError:
        return None
    return Case(module, None, other)


def _shrunken(module: Module, dims: Mapping[int, int], devices: int | None = None) -> Module:
    from hloexec.tools.shrinking import shrink

    with warnings.catch_warnings(action="ignore", category=HloWarning):
        return shrink(module, dims=dims, devices=devices).module


def _with_part(case: Case, resized: Case, part: str) -> Case:
    """The smaller case on a part of the inputs."""
    module = resized.module
    assert case.inputs is not None
    if part == "random":
        return attrs.evolve(resized, inputs=[random_inputs(module, number) for number in range(len(case.inputs))])
    rows = [
        [
            _cut(value, flat_shapes(parameter.shape), part)
            for value, parameter in zip(row, module.entry.parameters, strict=True)
        ]
        for row in case.inputs
    ]
    return attrs.evolve(resized, inputs=rows)


def _cut(value: Value, leaves: Sequence[ArrayShape | BufferShape], part: str) -> Value:
    shapes = iter(leaves)

    def cut(leaf: Any) -> Any:
        shape = next(shapes)
        if not isinstance(leaf, np.ndarray):
            return leaf
        return _part_of(leaf, shape.array_shape.dimensions, part)

    found: Value = mapped(value, cut)
    return found


def _part_of(array: Array, sizes: Sequence[int], part: str) -> Array:
    if array.shape == tuple(sizes):
        return array
    if any(size > before for size, before in zip(sizes, array.shape, strict=True)):
        raise HloError("a size became larger")
    starts = [0] * array.ndim
    if part == "last":
        starts = [before - size for size, before in zip(sizes, array.shape, strict=True)]
    elif part in _EXTREMES and array.size:
        place = np.unravel_index(int(_EXTREMES[part](np.nan_to_num(wide(array)))), array.shape)
        starts = [min(int(at), before - size) for at, size, before in zip(place, sizes, array.shape, strict=True)]
    return np.ascontiguousarray(
        array[tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))]
    ).reshape(sizes)


def fewer_devices(search: Search) -> bool:
    """Run on one device, where nothing is exchanged any more, or on as few as the module can be shrunken to."""
    case = search.best
    if case.devices == 1:
        return False
    search.begin("devices")

    def candidates() -> Iterator[Candidate]:
        for device in range(case.devices if case.inputs is not None and len(case.inputs) > 1 else 1):
            yield partial(_alone, case, device)
        for count in range(2, case.devices):
            yield partial(_on_fewer, case, count)

    return search.any(candidates())


def _alone(case: Case, device: int) -> Case:
    def alone(module: Module) -> Module:
        found = attrs.evolve(module, replica_count=1, num_partitions=1, source=None)
        if topology_of(found, None, None).count > 1:
            raise HloError("a collective names several devices")
        return found

    rows = None if case.inputs is None else [case.row(device)]
    return Case(alone(case.module), rows, None if case.other is None else alone(case.other))


def _on_fewer(case: Case, count: int) -> Case:
    module = _shrunken(case.module, {}, count)
    other = None if case.other is None else with_parameters_of(_shrunken(case.other, {}, count), module)
    resized = Case(module, None, other)
    if case.inputs is None:
        return resized
    return _with_part(attrs.evolve(case, inputs=case.inputs[:count]), resized, "first")
