"""Simpler values and types, no annotations, smaller dimensions and fewer devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES, Kind, element_type_of
from hloexec.core.ir import (
    ArrayShape,
    BufferShape,
    Computation,
    Instruction,
    Literal,
    Module,
    change_arrays,
    flat_shapes,
)
from hloexec.core.ir.editing import map_instructions
from hloexec.core.ir.literal import map_literal
from hloexec.core.tree import mapped
from hloexec.core.values import Array, Value, arrays_of
from hloexec.engine.devices.topology import topology_of
from hloexec.engine.inputs import random_inputs
from hloexec.errors import HloError, unwarned
from hloexec.ops.common import wide
from hloexec.ops.elementwise.selection import convert
from hloexec.ops.registry import Role, role_of
from hloexec.tools.minifying.case import Case
from hloexec.tools.minifying.opening import with_parameters_of
from hloexec.tools.minifying.searching import Candidate, Search

_COMMON = {Kind.SIGNED: "s32", Kind.UNSIGNED: "u32", Kind.FLOAT: "f32", Kind.COMPLEX: "c64"}
"""The element type that stands for those of its kind."""


def _zeros(array: Array) -> Array:
    return np.zeros_like(array)


def _ones(array: Array) -> Array:
    return np.ones_like(array)


def _same(array: Array) -> Array:
    """The element of the largest magnitude, everywhere."""
    if not array.size or array.dtype.kind == "b":
        return array
    sizes = np.abs(convert(array, ELEMENT_TYPES["f32"])) if array.dtype.kind != "c" else np.abs(array)
    return np.full_like(array, array.reshape(-1)[int(np.argmax(np.nan_to_num(sizes)))])


def _short(array: Array) -> Array:
    """Of floats two significant digits in binary: -1.5, 0.75, 2 and the like."""
    entry = element_type_of(array.dtype)
    if not entry.is_floating:
        return array
    fractions, exponents = np.frexp(convert(array, ELEMENT_TYPES["f64"]))
    return convert(np.ldexp(np.round(fractions * 4) / 4, exponents), entry)


def _shorter(array: Array) -> Array:
    entry = element_type_of(array.dtype)
    if not entry.is_floating:
        return array
    return convert(np.round(convert(array, ELEMENT_TYPES["f64"])), entry)


_SIMPLER: tuple[Callable[[Array], Array], ...] = (_zeros, _ones, _same, _shorter, _short)
"""From the simplest on."""


def simple_inputs(search: Search) -> None:
    """Inputs of zeros, ones, one number or short numbers, as far as the failure allows."""
    if search.best.inputs is None:
        return
    search.begin("inputs")
    everything = range(len(search.best.module.entry.parameters))
    for numbers in (list(everything), *([number] for number in everything)):
        case = search.best
        search.any(_simpler_inputs(case, numbers))


def _simpler_inputs(case: Case, numbers: Sequence[int]) -> Iterator[Case]:
    """The case with simpler inputs, up to those that it has."""
    for how in _SIMPLER:
        made = _with_inputs(case, numbers, how)
        if all(map(_are_same, flat_rows(made), flat_rows(case))):
            return
        yield made


def flat_rows(case: Case) -> list[Array]:
    """The arrays of all inputs."""
    return arrays_of(tuple(map(tuple, case.inputs or ())))


def _are_same(ours: Array, theirs: Array) -> bool:
    return ours.tobytes() == theirs.tobytes()


def _with_inputs(case: Case, numbers: Sequence[int], how: Callable[[Array], Array]) -> Case:
    assert case.inputs is not None
    rows = [[_mapped(value, how) if i in numbers else value for i, value in enumerate(row)] for row in case.inputs]
    return attrs.evolve(case, inputs=rows)


def _mapped(value: Value, how: Callable[[Array], Array]) -> Value:
    result: Value = mapped(value, lambda leaf: how(leaf) if isinstance(leaf, np.ndarray) else leaf)
    return result


def simple_constants(search: Search) -> None:
    """The same of constants, one after the other."""
    search.begin("constants")
    places = [
        (computation.name, instruction.name)
        for computation in search.best.module
        for instruction in computation
        if role_of(instruction) is Role.CONSTANT
    ]
    for place in places:
        case = search.best
        if case.module.by_name.get(place[0]) is not None and place[1] in case.module.by_name[place[0]].by_name:
            with search.only_what_ends():
                search.any(_simpler_constants(case, place))


def _simpler_constants(case: Case, place: tuple[str, str]) -> Iterator[Case]:
    """The case with a simpler constant, up to the one that it has."""
    literal: Literal = case.module.by_name[place[0]].by_name[place[1]].attributes.literal
    if literal.is_elided or not isinstance(literal.value, np.ndarray) or not isinstance(literal.shape, ArrayShape):
        return
    for how in _SIMPLER:
        simpler = Literal.from_array(how(literal.value), literal.shape)
        if simpler == literal:
            return
        yield _with_constant(case, place, simpler)


def _with_constant(case: Case, place: tuple[str, str], simpler: Literal) -> Case:
    def changed(computation: Computation, instruction: Instruction) -> Instruction:
        is_it = (computation.name, instruction.name) == place
        return (
            attrs.evolve(instruction, attributes=attrs.evolve(instruction.attributes, literal=simpler))
            if is_it
            else instruction
        )

    return attrs.evolve(case, module=map_instructions(case.module, changed))


def common_types(search: Search) -> None:
    """The usual element type of each kind in place of wider and narrower ones, everywhere at once."""
    search.begin("element types")
    search.any([lambda: _with_types(search.best, dict(_types_of(search.best)))])
    for before, after in list(_types_of(search.best)):
        case = search.best
        search.any([partial(_with_types, case, {before: after})])


def _types_of(case: Case) -> Iterator[tuple[str, str]]:
    """The element types in the module, with the usual ones of their kinds where they are others."""
    types = {
        leaf.array_shape.element_type
        for module in (case.module, case.other)
        if module is not None
        for computation in module
        for instruction in computation
        for leaf in flat_shapes(instruction.shape)
    }
    for entry in sorted(types, key=lambda each: each.name):
        if (usual := _COMMON.get(entry.kind)) is not None and usual != entry.name:
            yield entry.name, usual


def _with_types(case: Case, types: dict[str, str]) -> Case | None:
    if not types:
        return None

    def usual_shape(leaf: ArrayShape) -> ArrayShape:
        usual = types.get(leaf.element_type.name)
        return leaf if usual is None else leaf.with_element_type(ELEMENT_TYPES[usual])

    def literal(before: Literal) -> Literal:
        after = change_arrays(before.shape, usual_shape)
        if before.array is None or after == before.shape or not isinstance(after, ArrayShape):
            return before if before.array is not None else Literal(after, None)
        return Literal.from_array(convert(before.array, after.element_type), after)

    def changed(_: Computation, instruction: Instruction) -> Instruction:
        attributes: Any = instruction.attributes
        if role_of(instruction) is Role.CONSTANT:
            attributes = attrs.evolve(attributes, literal=map_literal(attributes.literal, literal))
        shape = change_arrays(instruction.shape, usual_shape)
        return attrs.evolve(instruction, shape=shape, attributes=attributes, original_value=None, statistics=None)

    def array(before: Array) -> Array:
        usual = types.get(element_type_of(before.dtype).name)
        return before if usual is None else convert(before, ELEMENT_TYPES[usual])

    rows = None if case.inputs is None else [[_mapped(value, array) for value in row] for row in case.inputs]
    other = None if case.other is None else map_instructions(case.other, changed)
    module = map_instructions(case.module, changed)
    return attrs.evolve(case, module=module, inputs=rows, other=other)


def no_annotations(search: Search) -> None:
    """Leave out what changes no value: metadata, layouts, shardings, configs and the header's attributes."""
    search.begin("annotations")
    if search.any([lambda: _plain(search.best, _ANNOTATIONS)]):
        return
    for name in _ANNOTATIONS:
        case = search.best
        search.any([partial(_plain, case, (name,))])


_ANNOTATIONS = (
    "metadata sharding frontend_attributes original_value statistics parameter_replication backend_config layout"
).split()


def _plain(case: Case, names: Sequence[str]) -> Case:
    fields: dict[str, Any] = {name: None for name in names if name != "layout"}

    def changed(_: Computation, instruction: Instruction) -> Instruction:
        if role_of(instruction) is Role.CUSTOM_CALL:
            kept = {name: value for name, value in fields.items() if name != "backend_config"}
            return attrs.evolve(instruction, **kept)
        found = attrs.evolve(instruction, **fields)
        if "layout" not in names:
            return found
        return attrs.evolve(found, shape=change_arrays(instruction.shape, lambda leaf: attrs.evolve(leaf, layout=None)))

    def plain(module: Module) -> Module:
        header: dict[str, Any] = {}
        if "metadata" in names:
            header["stack_frames"] = None
        if "frontend_attributes" in names:
            header["frontend_attributes"] = None
        if "layout" in names:
            header["entry_computation_layout"] = None
        return map_instructions(module, changed, **header)

    return attrs.evolve(case, module=plain(case.module), other=None if case.other is None else plain(case.other))


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
            targets = [candidate for candidate in _SIZES if candidate < size] + _halves(size)
            is_changed |= search.any(_resized_cases(case, size, targets))
    return is_changed


def _halves(size: int) -> list[int]:
    halves = []
    while (size := size // 2) > _SIZES[-1]:
        halves.append(size)
    return halves[::-1]


def _sizes(case: Case) -> set[int]:
    sizes: set[int] = set()
    for module in (case.module, case.other):
        for instruction in () if module is None else module.entry:
            for leaf in flat_shapes(instruction.shape):
                sizes.update(leaf.array_shape.dimensions)
    return sizes


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
            shared_sizes = {other_size for other_size in _sizes(Case(case.other, None)) if other_size == size}
            other = with_parameters_of(_shrunken(case.other, {size: target}) if shared_sizes else case.other, module)
    except HloError:
        return None
    return Case(module, None, other)


def _shrunken(module: Module, dims: Mapping[int, int], devices: int | None = None) -> Module:
    from hloexec.tools.shrinking import shrink

    with unwarned():
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

    cut_value: Value = mapped(value, cut)
    return cut_value


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
        lone_module = attrs.evolve(module, replica_count=1, num_partitions=1, source=None)
        if topology_of(lone_module, None, None).count > 1:
            raise HloError("a collective names several devices")
        return lone_module

    rows = None if case.inputs is None else [case.row(device)]
    return Case(alone(case.module), rows, None if case.other is None else alone(case.other))


def _on_fewer(case: Case, count: int) -> Case:
    module = _shrunken(case.module, {}, count)
    other = None if case.other is None else with_parameters_of(_shrunken(case.other, {}, count), module)
    resized = Case(module, None, other)
    if case.inputs is None:
        return resized
    return _with_part(attrs.evolve(case, inputs=case.inputs[:count]), resized, "first")
