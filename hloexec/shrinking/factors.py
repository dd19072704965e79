"""Floating-point constants that encode sizes: the 1/N of means, the 1/√d of attention, the n of evenly spaced numbers.

Each value knows over which dimensions it was summed, and along which its elements count. A constant that meets such a
value follows their sizes if it is N, 1/N, √N, 1/√N or a small multiple, N being their product, or N - 1. One that meets
none, but is a fraction like that of dimensions that the module sums over somewhere, is rewritten as a guess: so are the
constants of gradients, which scale before they sum. What only looks like a size that has changed is left, and listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import prod, sqrt
from typing import Any, TypeAlias

import attrs
import numpy as np

from hloexec.ir import Computation, Instruction, Literal, Module
from hloexec.operations import traits_of
from hloexec.ops.attributes import computation_names
from hloexec.ops.registry import Role, find_opcode, role_of
from hloexec.ops.relations import Place, Relations
from hloexec.shrinking.dimensions import Dimensions
from hloexec.shrinking.positions import ConstantChange
from hloexec.values import Array

__all__ = ["factors_for"]

Roots: TypeAlias = tuple[int, ...]
"""Of some dimensions, in order; a root occurs as often as there are dimensions that it stands for."""

_MOST_CANDIDATES = 24
_MOST_SOURCES = 4
_LEAST_GUESSED = 8
"""A fraction of a smaller number is little to guess from."""
_LEAST_LISTED = 3
_DIGITS = 2
_MORE_DIGITS = 3
"""Those of decimals that are chosen, and of numbers that are more likely chosen than means."""
_FEW = 32
"""Numbers of devices are small: of sums over fewer elements than these, constants take the mean, or are others."""


@attrs.frozen
class _Form:
    """A way in which a constant depends on a number of elements."""

    of: Callable[[float], float]
    is_fraction: bool = False
    """Whether a constant that is one hardly is anything else."""
    is_mean: bool = False
    """Whether it is what a mean takes."""
    is_multiple: bool = False
    """Whether it may as well be what a mean over more or fewer elements takes."""


_FORMS = (
    _Form(lambda n: 1 / n, is_fraction=True, is_mean=True),
    _Form(lambda n: n, is_mean=True),
    _Form(lambda n: -1 / n, is_fraction=True, is_mean=True),
    _Form(lambda n: -n),
    _Form(lambda n: 2 / n, is_fraction=True, is_multiple=True),
    _Form(lambda n: -2 / n, is_fraction=True, is_multiple=True),
    _Form(lambda n: 1 / sqrt(n), is_fraction=True),
    _Form(sqrt),
    _Form(lambda n: 2 * n, is_multiple=True),
    _Form(lambda n: 0.5 / n, is_fraction=True, is_multiple=True),
    _Form(lambda n: -0.5 / n, is_fraction=True, is_multiple=True),
    _Form(lambda n: n - 1),
    _Form(lambda n: 1 / (n - 1) if n > 1 else np.inf),
)
_MEANS = tuple(form for form in _FORMS if form.is_fraction and form.is_mean)
_SINGLES = tuple(form for form in _FORMS if not form.is_multiple)
_FRACTIONS = tuple(form for form in _FORMS if form.is_fraction and not form.is_mean)


@attrs.frozen
class _Fact:
    """What is known of a value."""

    sums: tuple[Roots, ...] = ()
    """Over which dimensions it was summed: the last sums first, and with those before."""
    sources: tuple[Place, ...] = ()
    """The constants that it consists of, or was computed from with numbers that are no sums."""
    parts: tuple[_Fact, ...] = ()
    """Of a tuple."""
    is_over_devices: bool = False
    """Whether it is a sum over devices, of which fewer are left."""


_NOTHING = _Fact()


@attrs.define(eq=False)
class _Facts:
    """What is known of a module's values, found by following them through fusions and calls."""

    module: Module
    dimensions: Dimensions
    shorter: frozenset[int]
    """Axes of devices that get shorter."""
    met: dict[Place, list[Roots]] = attrs.field(factory=dict)
    """By constant, the sums that it meets in an operation on elements."""
    spread: dict[Place, list[Roots]] = attrs.field(factory=dict)
    """By constant, the dimensions of arrays that it fills."""
    everywhere: dict[Roots, None] = attrs.field(factory=dict)
    scaling: set[Place] = attrs.field(factory=set)
    """Constants that meet sums over devices."""
    seen: set[str] = attrs.field(factory=set)

    @property
    def relations(self) -> Relations:
        return self.dimensions.relations

    def run(self, computation: Computation, arguments: Sequence[_Fact]) -> _Fact:
        self.seen.add(computation.name)
        facts: dict[str, _Fact] = {}
        for instruction in computation.instructions:
            operands = [facts.get(name, _NOTHING) for name in instruction.operands]
            facts[instruction.name] = self._of(computation, instruction, operands, arguments)
        return facts[computation.root_name]

    def _of(
        self, computation: Computation, instruction: Instruction, operands: list[_Fact], arguments: Sequence[_Fact]
    ) -> _Fact:
        role, place = role_of(instruction), (computation.name, instruction.name)
        if role is Role.PARAMETER:
            number = instruction.attributes.number
            return arguments[number] if number < len(arguments) else _NOTHING
        if role is Role.CONSTANT:
            return _Fact(sources=(place,))
        if role is Role.TUPLE:
            return _Fact(parts=tuple(operands))
        if role is Role.GET_TUPLE_ELEMENT:
            index, parts = instruction.attributes.index, operands[0].parts
            return parts[index] if index < len(parts) else _NOTHING
        if role is Role.FORWARD:
            return operands[0]
        if role in (Role.CALL, Role.ASYNC_START):
            (name, *_) = computation_names(instruction.attributes)
            found = self.run(self.module.by_name[name], operands)
            return found if role is Role.CALL else _Fact(parts=(_Fact(parts=tuple(operands)), found))
        if role is Role.PART:
            return self._part(instruction, operands[0])
        for name in computation_names(instruction.attributes):
            if role in (Role.WHILE, Role.CONDITIONAL) and name not in self.seen:
                self.run(self.module.by_name[name], ())
        return self._computed(instruction, operands, place)

    def _part(self, instruction: Instruction, fact: _Fact) -> _Fact:
        for _, operand in traits_of(instruction).aliases:
            for index in operand:
                fact = fact.parts[index] if index < len(fact.parts) else _NOTHING
        return fact

    def _computed(self, instruction: Instruction, operands: list[_Fact], place: Place) -> _Fact:
        root = self.relations.root
        entry, traits = find_opcode(instruction.opcode), traits_of(instruction)
        if place in self.relations.counted:
            return _Fact(sums=((root(self.relations.counted[place]),),))
        if place in self.relations.summed:
            over = tuple(sorted(map(root, self.relations.summed[place])))
            found = [self._summed(operand, over) for operand in operands]
            return attrs.evolve(found[0], parts=tuple(found))
        if entry is not None and entry.is_elementwise and len(operands) > 1:
            return self._met(operands)
        if len(operands) == 1 or traits.moves is not None:
            sources = operands[0].sources if operands else ()
            for source in sources:
                self._fill(source, place)
            sums = _few(each for operand in operands for each in operand.sums)
            return _Fact(sums=sums, sources=sources, is_over_devices=any(each.is_over_devices for each in operands))
        return _NOTHING

    def _summed(self, operand: _Fact, dimensions: Roots) -> _Fact:
        own, tiled = set(dimensions), self._tiled()
        whole = tuple(sorted(tiled.get(root, root) for root in dimensions))
        more = (tuple(sorted((*dimensions, *each))) for each in operand.sums if own.isdisjoint(each))
        sums = _few([dimensions, whole, *more])
        self.everywhere.update(dict.fromkeys(sums))
        return _Fact(sums=sums, is_over_devices=not own.isdisjoint(self.shorter))

    def _tiled(self) -> dict[int, int]:
        """Roots of what a sum over places of windows is a sum over in the end."""
        root = self.relations.root
        found = {root(places): root(whole) for places, whole in self.relations.tiled.items()}
        return {places: found.get(whole, whole) for places, whole in found.items()}

    def _met(self, operands: list[_Fact]) -> _Fact:
        sums = _few(each for operand in operands for each in operand.sums)
        for operand in operands:
            for source in operand.sources:
                self.met.setdefault(source, []).extend(sums)
                if any(each.is_over_devices for each in operands):
                    self.scaling.add(source)
        sources = dict.fromkeys(source for operand in operands for source in operand.sources)
        return _Fact(sums=sums, sources=() if sums else tuple(sources)[:_MOST_SOURCES])

    def _fill(self, source: Place, place: Place) -> None:
        roots = sorted(map(self.relations.root, self.dimensions.values[place[0]][place[1]].axes))
        self.spread.setdefault(source, []).extend([tuple(roots), *((root,) for root in roots)])


def _few(sums: Iterable[Roots]) -> tuple[Roots, ...]:
    return tuple(dict.fromkeys(sums))[:_MOST_CANDIDATES]


@attrs.frozen(eq=False)
class _Sizes:
    relations: Relations
    sizes: Mapping[int, int]

    def forms(self, roots: Roots, forms: Sequence[_Form], least: int) -> Iterator[_Form]:
        """Those that are likely for a sum over some dimensions, of at least so many elements."""
        before, _ = self.of(roots)
        is_over_few = before < _FEW and any(self.relations.root(each) in roots for each in self.relations.to_one)
        if before > 2 and not (is_over_few and least > 2):
            yield from (form for form in forms if form.is_mean or not is_over_few)

    def changed(self) -> list[Roots]:
        """Each dimension that has changed."""
        return [(root,) for root, after in self.sizes.items() if self.relations.sizes[root] != after]

    def devices(self) -> int:
        """As many as were along the longest axes."""
        return max((self.relations.sizes[dimension] for dimension in self.relations.to_one), default=1)

    def of(self, roots: Roots) -> tuple[int, int]:
        """The product of dimensions, before and after."""
        before = self.relations.sizes
        return prod(before[root] for root in roots), prod(self.sizes.get(root, before[root]) for root in roots)


def factors_for(
    module: Module, dimensions: Dimensions, sizes: Mapping[int, int]
) -> tuple[dict[Place, Literal], list[ConstantChange]]:
    """The floating-point constants that follow sizes, and what was guessed."""
    root, before = dimensions.relations.root, dimensions.relations.sizes
    axes = frozenset(map(root, dimensions.relations.to_one))
    facts = _Facts(
        module, dimensions, frozenset(axis for axis in axes if sizes.get(axis, before[axis]) != before[axis])
    )
    facts.run(module.entry, ())
    lengths = _Sizes(dimensions.relations, sizes)
    literals: dict[Place, Literal] = {}
    changes: list[ConstantChange] = []
    for place, literal in _floating_constants(module):
        assert isinstance(literal.value, np.ndarray)
        number = literal.value.reshape(-1)[0]
        found = _followed(number, place, facts, lengths)
        if found is None:
            continue
        after, size, is_certain = found
        changes.append(ConstantChange(*place, float(number), float(after), size, is_certain=is_certain))
        if after != number:
            literals[place] = attrs.evolve(literal, value=np.full_like(literal.value, after))
    return literals, changes


def _floating_constants(module: Module) -> Iterator[tuple[Place, Literal]]:
    """Those of one number."""
    for computation in module:
        for instruction in computation.instructions:
            if role_of(instruction) is not Role.CONSTANT:
                continue
            literal = instruction.attributes.literal
            if not isinstance(literal.value, np.ndarray) or not literal.value.size:
                continue
            array: Array = literal.value
            if literal.shape.element_type.is_floating and (array == array.reshape(-1)[0]).all():
                yield (computation.name, instruction.name), literal


def _followed(number: Any, place: Place, facts: _Facts, lengths: _Sizes) -> tuple[Any, int, bool] | None:
    """What a constant becomes, the number that it encodes, and whether that is certain."""
    if not np.isfinite(float(number)) or float(number) == 0:
        return None
    certain = _matches(number, facts.met.get(place, ()), lengths, _FORMS, 2)
    if certain:
        singles = _matches(number, facts.met.get(place, ()), lengths, _SINGLES, 2)
        filled = _matches(number, facts.spread.get(place, ()), lengths, _MEANS, _LEAST_GUESSED)
        found = singles or filled or certain
        return (*found[0], len({float(after) for after, _ in (*filled, *certain)}) == 1)
    for forms in (_MEANS, _FRACTIONS):
        for candidates in (facts.spread.get(place, ()), facts.everywhere):
            guesses = _matches(number, candidates, lengths, forms, _LEAST_GUESSED)
            if guesses and len({float(after) for after, _ in guesses}) == 1:
                return None if guesses[0][0] == number else (*guesses[0], False)
            if guesses and lengths.devices() > 1:
                return number, guesses[0][1], False
        candidates = [*facts.met.get(place, ()), *facts.spread.get(place, ())]
        if forms is _MEANS and (scaled := _scaled(number, candidates, lengths)):
            return (*scaled, False)
    if spaced := _spaced(number, facts.spread.get(place, ()), lengths):
        return (*spaced, False)
    if few := _of_few(number, place, facts, lengths):
        return few
    if place in facts.scaling and abs(number) < 1:
        return number, max(2, lengths.devices()), False
    suspects = _matches(number, lengths.changed(), lengths, [form for form in _FORMS if form.is_mean], _LEAST_GUESSED)
    return (number, suspects[0][1], False) if suspects else None


def _scaled(number: Any, candidates: Iterable[Roots], lengths: _Sizes) -> tuple[Any, int] | None:
    """The same for a mean that is multiplied with a decimal of two digits, such as a learning rate or a momentum."""
    if _is_chosen(number):
        return None
    for roots in dict.fromkeys(candidates):
        before, after = lengths.of(roots)
        decimal = _decimal(float(number) * before, _DIGITS, type(number)) if before >= _LEAST_LISTED else None
        if decimal is not None:
            return type(number)(decimal / after), before
    return None


def _spaced(number: Any, candidates: Iterable[Roots], lengths: _Sizes) -> tuple[Any, int] | None:
    """The same for the spacing of a grid's points, or its square, times a decimal; borders may have been cut off."""
    if _is_chosen(number):
        return None
    for roots in dict.fromkeys(candidates):
        before, after = lengths.of(roots)
        for more, power in product((-1, 0, 1), (1, 2, -2)) if len(roots) == 1 and before > _FEW else ():
            decimal = _decimal(float(number) * (before + more) ** power, _DIGITS, type(number))
            if decimal is not None:
                return type(number)(decimal / (after + more) ** power), before
    return None


def _is_chosen(number: Any) -> bool:
    """Whether it is a power of two, a decimal of few digits, or may be one."""
    kind = type(number)
    is_power_of_two = abs(np.frexp(float(number))[0]) == 0.5
    return is_power_of_two or np.dtype(kind).itemsize < 4 or _decimal(float(number), _MORE_DIGITS, kind) is not None


def _decimal(number: float, digits: int, kind: Any) -> float | None:
    """The decimal of so many digits that a number is, up to rounding."""
    decimal = float(f"{number:.{digits - 1}e}")
    return decimal if abs(number - decimal) <= float(np.finfo(kind).eps) * abs(decimal) else None


def _of_few(number: Any, place: Place, facts: _Facts, lengths: _Sizes) -> tuple[Any, int, bool] | None:
    """The same for a mean over few elements: a guess where it fills an array of so many, else it is left as it is."""
    filled = _matches(number, facts.spread.get(place, ()), lengths, _MEANS, _LEAST_LISTED)
    found = filled or _matches(number, facts.everywhere, lengths, _MEANS, _LEAST_LISTED)
    changed = [each for each in found if each[0] != number]
    if not changed:
        return None
    after, size = changed[0]
    return after if filled and len({float(each) for each, _ in filled}) == 1 else number, size, False


def _matches(
    number: Any, candidates: Iterable[Roots], lengths: _Sizes, forms: Sequence[_Form], least: int
) -> list[tuple[Any, int]]:
    """What the constant becomes if it encodes one of the candidates, and their number of elements, as it was."""
    found: list[tuple[Any, int]] = []
    kind = type(number)
    with np.errstate(all="ignore"):
        for roots in dict.fromkeys(candidates):
            before, after = lengths.of(roots)
            for form in lengths.forms(roots, forms, least) if before >= least else ():
                if kind(float(form.of(before))) == number:
                    found.append((kind(float(form.of(after))), before))
    return found
