"""What constants count: dimensions that they encode.

Constants that encode a dimension: bounds of indices, numbers of iterations, lengths.

Numbers that are moved, added and compared with one another count the same: they have one *unit*. Where numbers of a
unit are positions along a dimension (iotas, start indices), a constant of that unit which is the size of the dimension,
or the last position, follows it, as does where a part of it begins or ends. Multiples of the size's share are rewritten
as well, which is a guess; any other number that is neither small nor negative is left as it is, and listed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import zip_longest
from math import gcd
from typing import TypeVar

import attrs
import numpy as np

from hloexec.core.ir import Literal, Module
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.registry import Role, role_of
from hloexec.ops.relations import Equation, Place, Position, Relations, resized_start
from hloexec.tools.shrinking.dimensions import Dimensions, is_counting
from hloexec.tools.shrinking.sums import Roots

_T = TypeVar("_T")
_FAR = 2
_FEW = 4
"""Halves of so many devices are steps and small offsets."""
_SMALL = 16
"""Numbers up to this one are steps and small offsets, whatever they count."""
_MOST_NUMBERS = 1000
"""Constants of more elements are no bounds."""
_SHARES = 16
"""A number is a share of a size if it is a multiple of this fraction of it."""


@frozen
class ConstantChange:
    """A constant that may encode a dimension, and what became of it."""

    computation: str
    instruction: str
    before: float
    """A number in a constant, as it was."""
    after: float
    """What it became."""
    size: int
    """The dimension that it counts along, or the number of elements that it is a factor of, as it was."""
    is_certain: bool
    """Whether it encodes the size for certain; else it was guessed, or left as it is."""


def tie_positions(relations: Relations) -> None:
    """Dimensions of one size along which the same numbers are positions are the same."""
    _tie_derived(relations)
    _spread_components(relations)
    for unit, dimensions in _dimensions_by_unit(relations).items():
        if not relations.units.is_constant(unit):
            _tie_alike(relations, dimensions)
    for unit, vectors in _vectors_by_unit(relations).items():
        if not relations.units.is_constant(unit):
            for component in zip_longest(*vectors):
                _tie_alike(relations, (dimension for dimension in component if dimension is not None))
    _tie_wrapped(relations)
    _relate_lengths(relations)


def _relate_lengths(relations: Relations) -> None:
    """How many of n elements there are is a position along n + 1."""
    dimensions_by_unit = _dimensions_by_unit(relations)
    for unit, dimension, where in relations.lengths:
        for other in dimensions_by_unit.get(relations.units.root(unit), ()):
            if relations.sizes[other] == relations.sizes[dimension] + 1:
                relations.equations.append(Equation(((other, 1), (dimension, -1)), 1, where))


def _tie_alike(relations: Relations, dimensions: Iterable[int]) -> None:
    """Dimensions of one size are the same."""
    by_size: dict[int, int] = {}
    for dimension in dimensions:
        relations.tie(by_size.setdefault(relations.sizes[dimension], dimension), dimension)


def _tie_wrapped(relations: Relations) -> None:
    """What counts along a dimension, and then modulo its size, counts along it still."""
    dimensions_by_unit, root = _dimensions_by_unit(relations), relations.units.root
    for remainder, dividend in relations.wrapped:
        for dimension in dimensions_by_unit.get(root(remainder), ()):
            for other in dimensions_by_unit.get(root(dividend), ()):
                if relations.sizes[dimension] == relations.sizes[other]:
                    relations.tie(dimension, other)


def _tie_derived(relations: Relations) -> None:
    """What is computed twice from the same numbers, such as halves of them, counts the same both times."""
    relations.units.tie_results([(key, (operand,), (result,)) for key, operand, result in relations.derived])


def _spread_components(relations: Relations) -> None:
    """Where vectors are positions, their components are."""
    units = relations.units
    vectors = {
        units.root(position.unit): position.dimensions
        for position in relations.positions
        if len(position.dimensions) > 1
    }
    for unit, components in relations.components:
        dimensions = vectors.get(units.root(unit), ())
        if len(dimensions) == len(components):
            relations.positions += [
                Position(component, (dimension,)) for component, dimension in zip(components, dimensions, strict=True)
            ]


def _dimensions_by_unit(relations: Relations) -> dict[int, dict[int, None]]:
    """Of units of positions along one dimension, the roots of these."""
    single: dict[int, dict[int, None]] = {}
    for position in relations.positions:
        if len(position.dimensions) == 1:
            single.setdefault(relations.units.root(position.unit), {})[relations.root(position.dimensions[0])] = None
    return single


def _add_strides(single: dict[int, dict[_T, None]], relations: Relations) -> None:
    """A factor of positions counts along the same dimension, unless it counts something itself."""
    root = relations.units.root
    additions = {
        root(factor): dict(single[root(product)])
        for product, factor in relations.strides
        if root(product) in single and root(factor) not in single
    }
    single.update(additions)


def _add_uses(counted: dict[int, dict[_T, None]], relations: Relations) -> None:
    """Constants count what they are used for."""
    root = relations.units.root
    for constant, use in relations.units.uses:
        if root(use) in counted and root(use) != root(constant):
            counted.setdefault(root(constant), {}).update(counted[root(use)])


def _rooms_by_unit(relations: Relations) -> dict[int, dict[tuple[int, int], None]]:
    """Of units of starts, in which dimension they are, and of what dimension windows are that start there."""
    rooms: dict[int, dict[tuple[int, int], None]] = {}
    for unit, whole, window in relations.rooms:
        rooms.setdefault(relations.units.root(unit), {})[relations.root(whole), relations.root(window)] = None
    _add_strides(rooms, relations)
    _add_uses(rooms, relations)
    return rooms


def _axes_by_unit(relations: Relations, single: Mapping[int, Iterable[int]]) -> dict[int, dict[int, None]]:
    """Of units, the axes of devices along which a factor of their numbers counts."""
    root, (axes, _) = relations.units.root, relations.device_roots()
    by_unit: dict[int, dict[int, None]] = {}
    for product, factor in relations.strides:
        counting = axes.intersection(single.get(root(factor), ()))
        by_unit.setdefault(root(product), {}).update(dict.fromkeys(counting))
    _add_uses(by_unit, relations)
    return by_unit


def _vectors_by_unit(relations: Relations) -> dict[int, dict[Roots, None]]:
    """Of units of positions along several dimensions, the roots of these."""
    vectors: dict[int, dict[Roots, None]] = {}
    for position in relations.positions:
        if len(position.dimensions) > 1:
            roots = tuple(map(relations.root, position.dimensions))
            vectors.setdefault(relations.units.root(position.unit), {})[roots] = None
    return vectors


@frozen(eq=False)
class _Lengths:
    """The sizes, before and after, of the dimensions along which numbers are positions."""

    relations: Relations
    sizes: Mapping[int, int]
    splits: Mapping[int, Collection[tuple[int, ...]]]
    """The factors of roots that are products, from major to minor."""
    axes: frozenset[int]
    """Of devices."""
    counts: frozenset[int]
    """Of devices: axes, and dimensions that stay."""
    edges: Mapping[int, Mapping[int, Collection[int]]]
    """By root, where its parts begin and end, and what becomes of that."""

    def of(self, dimensions: Iterable[int]) -> dict[int, int]:
        """New sizes by old ones, the larger first; those that became several are left out.

        Positions along a dimension that is a product count in strides, the products of the last factors.
        """
        new_sizes: dict[int, set[int]] = {}
        for root in {self.relations.root(dimension) for dimension in dimensions}:
            before, after = self._size(root)
            new_sizes.setdefault(before, set()).add(after)
            if before > _FEW and root in self.axes:  # where what goes round both ways begins
                new_sizes.setdefault(before // 2 + 1, set()).add(after // 2 + 1)
            for factors in self.splits.get(root, ()):
                strides = [self._size(factor) for factor in reversed(factors)]
                old, new = 1, 1
                for before, after in strides[:-1]:
                    old, new = old * before, new * after
                    new_sizes.setdefault(old, set()).add(new)
        return {old: next(iter(new_sizes[old])) for old in sorted(new_sizes, reverse=True) if len(new_sizes[old]) == 1}

    def of_devices(self, dimensions: Iterable[int], axes: Iterable[int]) -> dict[int, tuple[int, int]]:
        """What all devices along some axes, if known, have together of dimensions that each has a part of, and the last
        position in it: what becomes of these, and what they were."""
        new_wholes: dict[int, set[int]] = {}
        for root in {self.relations.root(dimension) for dimension in dimensions} - self.axes:
            for count in axes or self.counts:
                before, after = (
                    size * devices for size, devices in zip(self._size(root), self._size(count), strict=True)
                )
                new_wholes.setdefault(before, set()).add(after)
        wholes = {before: after for before, (after, *others) in new_wholes.items() if not others}
        return {before - less: (after - less, before) for before, after in wholes.items() for less in (0, 1)}

    def edges_of(self, dimensions: Iterable[int]) -> dict[int, tuple[int, int]]:
        """By where parts of dimensions begin and end, the new place, and the size of the dimension."""
        new_places: dict[int, set[tuple[int, int]]] = {}
        for root in {self.relations.root(dimension) for dimension in dimensions}:
            for old, places in self.edges.get(root, {}).items():
                new_places.setdefault(old, set()).update((place, self._size(root)[0]) for place in places)
        return {old: next(iter(places)) for old, places in new_places.items() if len(places) == 1}

    def last_starts(self, rooms: Iterable[tuple[int, int]]) -> dict[int, tuple[int, int]]:
        """By the starts of windows that divide a dimension, or are several of a few parts, the last start of
        others, and their size, the new ones, and the size of the dimension."""
        new_starts: dict[int, tuple[int, int]] = {}
        for whole, window in rooms:
            ours, theirs = self._size(self.relations.root(whole)), self._size(self.relations.root(window))
            new_starts[theirs[0]] = theirs[1], ours[0]
            new_starts[ours[0] - theirs[0]] = ours[1] - theirs[1], ours[0]
            old = gcd(ours[0], theirs[0])
            new = old * theirs[1] // theirs[0] if theirs[0] else 0
            parts = ours[0] // old if old == theirs[0] or _SHARES * old >= ours[0] > 0 else 0
            if parts <= _MOST_NUMBERS and ours[1] == parts * new and theirs[1] * old == theirs[0] * new:
                new_starts |= {part * old: (part * new, ours[0]) for part in range(1, parts)}
        return new_starts

    def _size(self, root: int) -> tuple[int, int]:
        """Before and after."""
        before = self.relations.sizes[root]
        return before, self.sizes.get(root, before)

    @classmethod
    def after(cls, relations: Relations, sizes: Mapping[int, int]) -> _Lengths:
        splits: dict[int, set[tuple[int, ...]]] = {}
        for product in relations.products:
            left, right = (tuple(map(relations.root, side)) for side in (product.left, product.right))
            for whole, factors in ((left, right), (right, left)):
                if len(whole) == 1 and len(factors) > 1:
                    splits.setdefault(whole[0], set()).add(factors)
        axes, members = relations.device_roots()
        edges: dict[int, dict[int, set[int]]] = {}
        for use, dimension, piece, start in relations.slices:
            root = relations.root(dimension)
            full, size = relations.sizes[dimension], relations.sizes[piece]
            new_full, new_size = sizes.get(root, full), sizes.get(relations.root(piece), size)
            if new_full == full or use.where in relations.starts:
                continue
            new_start = resized_start(full, start, size, new_full, new_size)
            for old, new in ((start, new_start), (start + size, new_start + new_size)):
                if 0 < old < full:
                    edges.setdefault(root, {}).setdefault(old, set()).add(new)
        return cls(relations, sizes, splits, axes, axes | members, edges)


def lengths_by_constant(
    dimensions: Dimensions, sizes: Mapping[int, int], places: Iterable[Place]
) -> dict[Place, dict[int, int]]:
    """Of constants, the new sizes, by old ones, of the dimensions along which their numbers are positions."""
    relations = dimensions.relations
    lengths, single = _Lengths.after(relations, sizes), _dimensions_by_unit(relations)
    _add_strides(single, relations)
    _add_uses(single, relations)
    units = {place: relations.units.root(dimensions.values[place[0]][place[1]].unit) for place in places}
    return {place: lengths.of(single.get(unit, ())) for place, unit in units.items()}


def constants_for(
    module: Module, dimensions: Dimensions, sizes: Mapping[int, int], settled: Collection[Place] = ()
) -> tuple[dict[Place, Literal], list[ConstantChange]]:
    """The constants that follow their dimensions, and all that may encode one, but for those that are settled."""
    relations = dimensions.relations
    lengths = _Lengths.after(relations, sizes)
    single, vectors = _dimensions_by_unit(relations), _vectors_by_unit(relations)
    _add_strides(single, relations)
    _add_uses(single, relations)
    _add_uses(vectors, relations)
    rooms, axes = _rooms_by_unit(relations), _axes_by_unit(relations, single)
    shifts = {relations.units.root(bits): single.get(relations.units.root(unit), ()) for unit, bits in relations.shifts}
    changed = {relations.sizes[root] for root, after in sizes.items() if relations.sizes[root] != after}
    literals: dict[Place, Literal] = {}
    changes: list[ConstantChange] = []
    for computation in module:
        for instruction in computation.instructions:
            if role_of(instruction) is not Role.CONSTANT or (computation.name, instruction.name) in settled:
                continue
            value = dimensions.values[computation.name][instruction.name]
            literal = instruction.attributes.literal
            if not isinstance(literal.held, np.ndarray) or literal.held.dtype.kind not in "iu":
                continue
            unit = relations.units.root(value.unit)
            columns = _columns(literal.held, unit, single, vectors, lengths)
            starts = (
                lengths.edges_of(single.get(unit, ()))
                | lengths.of_devices(single.get(unit, ()), axes.get(unit, ()))
                | lengths.last_starts(rooms.get(unit, ()))
            )
            array, literal_changes = _replaced(literal.held, columns, starts)
            array, bits = _shifts(array, shifts.get(unit), lengths, changed)
            literal_changes += bits
            literal_changes += _suspects(
                literal.held,
                changed
                - {
                    size
                    for literal_change in literal_changes
                    for size in (literal_change.before, literal_change.before + 1)
                },
            )
            place = computation.name, instruction.name
            changes += [attrs.evolve(change, computation=place[0], instruction=place[1]) for change in literal_changes]
            if array is not literal.held:
                literals[place] = attrs.evolve(literal, value=array)
    return literals, changes


def _columns(
    array: Array,
    unit: int,
    single: Mapping[int, Iterable[int]],
    vectors: Mapping[int, Iterable[Roots]],
    lengths: _Lengths,
) -> Iterator[tuple[tuple[int | slice, ...], Mapping[int, int]]]:
    """Parts of a constant whose elements count along the same dimension, and the sizes of that."""
    if any(is_counting(array, axis) for axis in range(array.ndim)):
        return
    if unit in single:
        yield (slice(None),) * array.ndim, lengths.of(single[unit])
        return
    count = len(next(iter(vectors.get(unit, ())), ()))
    if count and array.ndim and array.shape[-1] == count:
        others = [vector for vector in vectors[unit] if len(vector) == count]
        for number in range(count):
            before: tuple[int | slice, ...] = (slice(None),) * (array.ndim - 1)
            yield (*before, number), lengths.of(vector[number] for vector in others)


def _shifts(
    array: Array, dimensions: Iterable[int] | None, lengths: _Lengths, changed: Collection[int]
) -> tuple[Array, list[ConstantChange]]:
    """Numbers of bits by which positions along some dimensions are shifted: logarithms of sizes follow these."""
    if dimensions is None or array.size != 1:
        return array, []
    bits = int(array.reshape(-1)[0])
    size, sizes = 1 << max(0, min(bits, 62)), lengths.of(dimensions)
    after = sizes.get(size, size)
    if bits < 1 or (after == size and (size in sizes or size not in changed)):
        return array, []
    is_certain = after != size and after & (after - 1) == 0
    number = after.bit_length() - 1 if is_certain else bits
    return np.full_like(array, number), [ConstantChange("", "", bits, number, size, is_certain=is_certain)]


def _is_round(number: int) -> bool:
    """Whether a number, or the one after it, is a power of two."""
    return not (number & (number - 1) and number & (number + 1))


def _suspects(array: Array, changed: Collection[float]) -> list[ConstantChange]:
    """Numbers that are sizes which changed, or the last positions along them, though nothing says what they count."""
    numbers = np.unique(array).tolist() if array.size <= _MOST_NUMBERS else []
    return [
        ConstantChange("", "", number, number, size, is_certain=False)
        for number in numbers
        for size in (number, number + 1)
        if (number > _SMALL or (number > _FAR and not _is_round(number))) and size in changed
    ]


def _replaced(
    array: Array,
    columns: Iterator[tuple[tuple[int | slice, ...], Mapping[int, int]]],
    last_starts: Mapping[int, tuple[int, int]],
) -> tuple[Array, list[ConstantChange]]:
    result, changes = array, []
    for index, sizes in columns:
        if all(old == new for old, new in sizes.items()):
            continue
        for number in np.unique(array[index]).tolist():
            change = _listed(number, last_starts) if array.size > 1 else None
            change = change or _changed(number, sizes, last_starts)
            if change is None:
                continue
            changes.append(change)
            if change.after != number:
                result = result.copy() if result is array else result
                part = result[index]
                result[index] = np.where(array[index] == number, array.dtype.type(change.after), part)
    return result, changes


def _listed(number: int, starts: Mapping[int, tuple[int, int]]) -> ConstantChange | None:
    """What a number of a table becomes that is a start of a window."""
    if number not in starts:
        return None
    after, size = starts[number]
    return ConstantChange("", "", number, after, size, is_certain=True)


def _changed(
    number: int, sizes: Mapping[int, int], last_starts: Mapping[int, tuple[int, int]]
) -> ConstantChange | None:
    """What a number becomes that counts along one of some dimensions; None where it is no matter of sizes."""
    if any(abs(number) in (old, old - 1) for old, new in sizes.items() if old == new):
        return None
    for old, new in sizes.items():
        for offset in (0, -1):
            if abs(number) == old + offset and abs(number) >= _FAR and old != new:
                after = new + offset
                return ConstantChange("", "", number, after if number > 0 else -after, old, is_certain=True)
    if abs(number) <= _FAR:
        return None
    if number in last_starts:
        after, size = last_starts[number]
        return ConstantChange("", "", number, after, size, is_certain=True)
    for old, new in sizes.items():
        if 0 < number < old and _SHARES * number % old == 0 and number * new % old == 0:
            return ConstantChange("", "", number, number * new // old, old, is_certain=False)
    largest = max(sizes)
    is_suspect = _SMALL < number < 2 * largest
    return ConstantChange("", "", number, number, largest, is_certain=False) if is_suspect else None
