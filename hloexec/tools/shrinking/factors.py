"""Constants that are factors of sizes: the 1/N of means, the 1/√d of attention, the n of evenly spaced numbers.

`sums` tells over which dimensions values were summed, and along which they count. A constant that meets such a value
follows their sizes if it is N, 1/N, √N, 1/√N or a small multiple, N being their product, or N - 1. One that meets none,
but is a fraction like that of dimensions that the module sums over somewhere, is rewritten as a guess: so are the
constants of gradients, which scale before they sum. What only looks like a size that has changed is left, and listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from itertools import product
from math import log, pi, prod, sqrt
from typing import Any

import attrs
import ml_dtypes
import numpy as np

from hloexec.core.ir import ArrayShape, Literal, Module
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.registry import Role, role_of
from hloexec.ops.relations import Place, Relations
from hloexec.tools.shrinking.positions import ConstantChange, lengths_by_constant
from hloexec.tools.shrinking.sums import Roots, Sums

_LEAST_GUESSED = 8
"""A fraction of a smaller number is little to guess from."""
_LEAST_LISTED = 3
_SMALL = 16
"""Whole numbers up to this one are steps and small offsets."""
_DIGITS = 2
_MORE_DIGITS = 3
"""Those of decimals that are chosen, and of numbers that are more likely chosen than means."""
_MOST_PARTS = 12
"""Thirds, sixths and the like up to this one are chosen."""
_FEW = 32
"""Numbers of devices are small: of sums over fewer elements than these, constants take the mean, or are others."""


@frozen(eq=False)
class _Form:
    """A way in which a constant depends on a number of elements."""

    of: Callable[[float], float]
    is_fraction: bool = False
    """Whether a constant that is one hardly is anything else."""
    is_mean: bool = False
    """Whether it is what a mean takes."""
    is_multiple: bool = False
    """Whether it may as well be what a mean over more or fewer elements takes."""
    is_count: bool = False
    """Whether an integer may be one."""
    is_likely: bool = True
    """Whether a constant that is one and meets a value that counts is hardly anything else."""


_FORMS = (
    _Form(lambda n: 1 / n, is_fraction=True, is_mean=True),
    _Form(lambda n: n, is_mean=True, is_count=True),
    _Form(lambda n: -1 / n, is_fraction=True, is_mean=True),
    _Form(lambda n: -n),
    _Form(lambda n: 2 / n, is_fraction=True, is_multiple=True),
    _Form(lambda n: -2 / n, is_fraction=True, is_multiple=True),
    _Form(lambda n: 2 * n, is_multiple=True),
    _Form(lambda n: 0.5 / n, is_fraction=True, is_multiple=True),
    _Form(lambda n: -0.5 / n, is_fraction=True, is_multiple=True),
    *(_ROOTS := (_Form(lambda n: 1 / sqrt(n), is_fraction=True), _Form(sqrt))),
    *(_LESS := (_Form(lambda n: n - 1, is_count=True), _Form(lambda n: 1 / (n - 1) if n > 1 else np.inf))),
)

_MEANS = tuple(form for form in _FORMS if form.is_fraction and form.is_mean)
_SINGLES = tuple(form for form in _FORMS if not form.is_multiple)
_MULTIPLES = tuple(form for form in _FORMS if form.is_fraction and form.is_multiple)
_FRACTIONS = tuple(form for form in _FORMS if form.is_fraction and not form.is_mean)


def _share(scale: float, less: int) -> _Form:
    return _Form(lambda n: scale / (n - less) if n > less else np.inf)


_COUNTING = (
    *_FORMS,
    _Form(lambda n: (n - 1) / 2),
    _Form(lambda n: n / 2, is_likely=False),
    *(
        _share(sign * scale, less)
        for sign in (1, -1)
        for scale in (pi, 2 * pi, log(1e4) / 2, log(1e4), 2 * log(1e4))
        for less in (0, 1)
    ),
)
"""Those of numbers that count: steps of angles around a circle, of windows, and of the frequencies of embeddings."""


@frozen(eq=False)
class _Sizes:
    relations: Relations
    sizes: Mapping[int, int]
    changed: Sequence[Roots]
    """Each dimension that has changed, one of each size and new size."""
    everywhere: Sequence[Roots]
    """Dimensions over which something is summed, the same."""
    reduced: Sequence[Roots]
    """Those over which not only contractions sum."""
    _products: dict[Roots, tuple[int, int]] = attrs.field(factory=dict)
    _over_few: dict[Roots, bool] = attrs.field(factory=dict)
    fitting: dict[object, dict[tuple[int, bool], list[_Form]]] = attrs.field(factory=dict)
    """The forms by which a number depends on a product of dimensions, for numbers and products met so far."""

    @classmethod
    def after(cls, facts: Sums, sizes: Mapping[int, int]) -> _Sizes:
        before = facts.relations.sizes
        new_sizes = cls(facts.relations, sizes, (), (), ())
        changed = [(root,) for root, after in sizes.items() if before[root] != after]
        reduced = [roots for roots, is_reduced in facts.everywhere.items() if is_reduced]
        return attrs.evolve(
            new_sizes,
            changed=new_sizes._distinct(changed),
            everywhere=new_sizes._distinct(facts.everywhere),
            reduced=new_sizes._distinct(reduced),
        )

    def _distinct(self, candidates: Iterable[Roots]) -> list[Roots]:
        axes = set(map(self.relations.root, self.relations.to_one))
        roots_by_key: dict[object, Roots] = {}
        for roots in candidates:
            roots_by_key.setdefault((self.of(roots), axes.isdisjoint(roots)), roots)
        return list(roots_by_key.values())

    def is_over_few(self, roots: Roots) -> bool:
        """Whether it is a sum over a few devices."""
        if roots not in self._over_few:
            axes = map(self.relations.root, self.relations.to_one)
            self._over_few[roots] = self.of(roots)[0] < _FEW and not set(roots).isdisjoint(axes)
        return self._over_few[roots]

    def of_devices(self, candidates: Iterable[Roots], counts: Iterable[int]) -> list[Roots]:
        """Dimensions together with one of some numbers of devices, each of which has its part of them."""
        return [tuple(sorted((*roots, count))) for roots in candidates for count in counts if count not in roots]

    def is_changed(self, roots: Iterable[int]) -> bool:
        return any(self.sizes.get(root, self.relations.sizes[root]) != self.relations.sizes[root] for root in roots)

    def ratios(self, number: float, candidates: Iterable[Roots]) -> Iterator[int]:
        """Sizes that were so many times larger than those of candidates, and are not any more."""
        for one in candidates:
            for other in self.changed if not number.is_integer() else ():
                (before, after), (whole, left) = self.of(one), self.of(other)
                if one != other and before * number == whole and after * number != left:
                    yield whole

    def devices(self) -> int:
        """As many as were along the longest axes."""
        return max((self.relations.sizes[dimension] for dimension in self.relations.to_one), default=1)

    def of(self, roots: Roots) -> tuple[int, int]:
        """The product of dimensions, before and after."""
        products = self._products.get(roots)
        if products is None:
            before = self.relations.sizes
            products = prod(before[root] for root in roots), prod(self.sizes.get(root, before[root]) for root in roots)
            self._products[roots] = products
        return products


def factors_for(
    module: Module, facts: Sums, sizes: Mapping[int, int]
) -> tuple[dict[Place, Literal], list[ConstantChange]]:
    """The constants that are factors of sizes, and what was guessed."""
    lengths = _Sizes.after(facts, sizes)
    literals: dict[Place, Literal] = {}
    changes: list[ConstantChange] = []
    constants = dict(_constants(module))
    along = lengths_by_constant(facts.dimensions, sizes, constants)
    for place, literal in constants.items():
        assert isinstance(literal.value, np.ndarray) and isinstance(literal.shape, ArrayShape)
        number = literal.value.reshape(-1)[0]
        is_floating = literal.shape.element_type.is_floating
        match = _followed(number, place, facts, lengths) if is_floating else _counted(number, place, facts, lengths)
        if match is None:
            continue
        after, size, is_certain = match
        is_certain &= is_floating or not along[place]  # positions along a dimension are seldom sums
        if is_certain and after == number:
            continue
        changes.append(ConstantChange(*place, float(number), float(after), size, is_certain=is_certain))
        if after != number:
            literals[place] = attrs.evolve(literal, value=np.full_like(literal.value, after))
    return literals, changes


def agreeing(
    module: Module, literals: Mapping[Place, Literal], changes: Sequence[ConstantChange]
) -> tuple[dict[Place, Literal], list[ConstantChange]]:
    """The same, where fractions of which too little is known become what equal ones certainly do, up to the sign."""
    certain: dict[float, set[float]] = {}
    for change in changes:
        if change.is_certain and 0 < abs(change.before) < 1:
            certain.setdefault(abs(change.before), set()).add(abs(change.after))
    agreed, literals = list(changes), dict(literals)
    for number, change in enumerate(changes):
        numbers = certain.get(abs(change.before), set())
        if not change.is_certain and len(numbers) == 1:
            (after,) = numbers
            agreed[number] = attrs.evolve(change, after=after if change.before > 0 else -after)
            before = module.by_name[change.computation].by_name[change.instruction].attributes.literal
            value = np.full_like(before.value, agreed[number].after)
            literals[change.computation, change.instruction] = attrs.evolve(before, value=value)
    return literals, agreed


def _constants(module: Module) -> Iterator[tuple[Place, Literal]]:
    """Those of one number."""
    for computation in module:
        for instruction in computation.instructions:
            if role_of(instruction) is not Role.CONSTANT:
                continue
            literal = instruction.attributes.literal
            if not isinstance(literal.held, np.ndarray) or not literal.held.size:
                continue
            array: Array = literal.held
            kind = literal.shape.element_type
            if (kind.is_floating or kind.is_integral) and (array == array.reshape(-1)[0]).all():
                yield (computation.name, instruction.name), literal


def _counted(number: Any, place: Place, facts: Sums, lengths: _Sizes) -> tuple[Any, int, bool] | None:
    """What an integer becomes that sums are divided by or compared with, the number that it is, and whether that is
    certain."""
    candidates = (*facts.met.get(place, ()), *facts.counted.get(place, ()))
    matches = _matches(number, candidates, lengths, [form for form in _FORMS if form.is_count], 2)
    return (
        (*matches[0], len({int(after) for after, _ in matches}) == 1) if matches and matches[0][0] != number else None
    )


def _followed(number: Any, place: Place, facts: Sums, lengths: _Sizes) -> tuple[Any, int, bool] | None:
    """What a constant becomes, the number that it encodes, and whether that is certain."""
    if not np.isfinite(float(number)) or float(number) == 0:
        return None
    met, spread, counted = (
        roots_by_place.get(place, {}) for roots_by_place in (facts.met, facts.spread, facts.counted)
    )
    shared = lengths.of_devices(spread, facts.axes | facts.members)
    if _matches(number, met, lengths, _FORMS, 2):
        return _of_sums(number, place, met, spread, shared, facts, lengths)
    if along := _along(number, counted, lengths):
        return along
    for forms, least in ((_MEANS, _LEAST_GUESSED), (_FRACTIONS, _LEAST_GUESSED**2)):
        if (guess := _guessed(number, spread, shared, lengths, forms, least)) is not None:
            return None if guess[2] else (*guess[:2], False)
        if forms is _MEANS and (scaled := _scaled(number, [*met, *spread], lengths)):
            return (*scaled, False)
    if folded := _spaced(number, spread, lengths) or _of_two(number, spread, lengths):
        return (*folded, False)
    if few := _of_few(number, spread, lengths):
        return few
    if abs(number) < 1 and lengths.is_changed(facts.scaling.get(place, ())):
        return number, max(2, lengths.devices()), False
    suspected = _suspected(number, counted, lengths)
    return (number, suspected[1], False) if suspected and place in facts.weights else suspected


def _guessed(
    number: Any, spread: Iterable[Roots], shared: Iterable[Roots], lengths: _Sizes, forms: Sequence[_Form], least: int
) -> tuple[Any, int, bool] | None:
    """The same for a fraction of what sums are over elsewhere, or that fills arrays of so many elements; last, whether
    these have not changed."""
    for candidates in (spread, shared, lengths.everywhere):
        guesses = _matches(number, candidates, lengths, forms, least)
        if candidates is shared and forms is not _MEANS:
            guesses = [guess for guess in guesses if guess[0] != number]
        if candidates is lengths.everywhere:
            guesses = _matches(number, lengths.reduced, lengths, [*forms, *_MULTIPLES], least) or guesses
        if guesses and len({float(after) for after, _ in guesses}) == 1:
            after, size = guesses[0]
            is_left = candidates is not spread and _is_decimal(number)
            return number if is_left else after, size, after == number and candidates is not shared
        if guesses and lengths.devices() > 1:
            return number, guesses[0][1], False
    return None


def _of_sums(
    number: Any,
    place: Place,
    met: Mapping[Roots, None],
    spread: Iterable[Roots],
    shared: Iterable[Roots],
    facts: Sums,
    lengths: _Sizes,
) -> tuple[Any, int, bool]:
    """The same for a constant that encodes a sum that it meets; contractions are divided by √N, and seldom by N."""
    certain = _matches(number, met, lengths, _FORMS, 2)
    reduced = [roots for roots in met if roots in facts.reduced[place]]
    single = [roots for roots in met if len(roots) == 1]
    singles = _matches(number, reduced, lengths, _SINGLES, 2) or _matches(number, single, lengths, _ROOTS, 2)
    filled = _matches(number, spread, lengths, _MEANS, _LEAST_GUESSED)
    if not singles:
        filled += _matches(number, shared, lengths, _MEANS, _LEAST_GUESSED)
    matches = singles or filled or _matches(number, met, lengths, _SINGLES, 2) or certain
    return (*matches[0], len({float(after) for after, _ in (*filled, *certain)}) == 1)


def _scaled(number: Any, candidates: Iterable[Roots], lengths: _Sizes) -> tuple[Any, int] | None:
    """The same for a mean that is multiplied with a decimal, such as 0.05 or 10: a learning rate, a weight."""
    if _is_chosen(number):
        return None
    for roots in dict.fromkeys(candidates):
        before, after = lengths.of(roots)
        decimal = _decimal(float(number) * before, _DIGITS, type(number)) if before >= _LEAST_LISTED else None
        if decimal is not None and (abs(decimal) < 1 or _decimal(decimal, 1, type(number)) is not None):
            return type(number)(decimal / after), before
    return None


def _spaced(number: Any, candidates: Iterable[Roots], lengths: _Sizes) -> tuple[Any, int] | None:
    """The same for the spacing of a grid's points, or its square, times a decimal; borders may have been cut off."""
    if _is_chosen(number) or _is_simple(number):
        return None
    for roots in dict.fromkeys(candidates):
        before, after = lengths.of(roots)
        for more, power in product((-1, 0, 1), (1, 2, -2)) if len(roots) == 1 and before > _FEW else ():
            decimal = _decimal(float(number) * (before + more) ** power, _DIGITS, type(number))
            if decimal is not None:
                return type(number)(decimal / (after + more) ** power), before
    return None


def _of_two(number: Any, spread: Iterable[Roots], lengths: _Sizes) -> tuple[Any, int] | None:
    """The same for a mean of means, of which one is over a dimension of an array that the constant fills."""
    if _is_chosen(number):
        return None
    matches = {}
    for scale in (1.0, 2.0):
        total = round(scale / abs(float(number)))
        if total < 1 or type(number)(scale / total) != abs(number):
            continue
        for one, other in product(spread, lengths.everywhere):
            (before, after), (rest, left) = lengths.of(one), lengths.of(other)
            if before > 2 and rest > 2 and before * rest == total and set(one).isdisjoint(other):
                matches[after * left] = type(number)(np.copysign(scale / (after * left), float(number))), total
    return next(iter(matches.values())) if len(matches) == 1 else None


def _of_few(number: Any, spread: Iterable[Roots], lengths: _Sizes) -> tuple[Any, int, bool] | None:
    """The same for a mean over few elements: a guess where it fills an array of so many, else it is left as it is."""
    filled = _matches(number, spread, lengths, _MEANS, _LEAST_LISTED)
    matches = filled or _matches(number, lengths.everywhere, lengths, _MEANS, _LEAST_LISTED)
    changed = [match for match in matches if match[0] != number]
    if not changed:
        return None
    after, size = changed[0]
    return after if filled and len({float(match) for match, _ in filled}) == 1 else number, size, False


def _along(number: Any, counted: Iterable[Roots], lengths: _Sizes) -> tuple[Any, int, bool] | None:
    """The same for a constant that numbers are scaled by or compared with that count along dimensions."""
    for is_likely in (True, False):
        forms = [form for form in _COUNTING if form.is_likely is is_likely]
        matches = _matches(number, counted, lengths, forms, 2)
        if matches:
            is_one = len({float(after) for after, _ in matches}) == 1
            return *matches[0], is_likely and is_one and matches[0][1] >= _LEAST_GUESSED
    return None


def _suspected(number: Any, counted: Iterable[Roots], lengths: _Sizes) -> tuple[Any, int, bool] | None:
    """The same for a constant of which nothing else is known, but that it looks like a size that has changed.

    It is taken for one if it is N or 1/N, and no power of two and no decimal: these occur for many reasons. What
    numbers are scaled by that count along dimensions may be anything that depends on their sizes.
    """
    matches = _matches(number, lengths.changed, lengths, [form for form in _FORMS if form.is_mean], _LEAST_GUESSED)
    is_chosen = _is_power_of_two(number) or _is_decimal(number)
    if matches and not is_chosen and len({float(after) for after, _ in matches}) == 1:
        return *matches[0], False
    for forms, least in ((_FORMS[:2], _LEAST_GUESSED), (_LESS, _LEAST_GUESSED), (_ROOTS, _LEAST_GUESSED**2)):
        matches = matches or _matches(number, lengths.changed, lengths, forms, least)
    if matches:
        return number, matches[0][1], False
    ratios = list(lengths.ratios(float(number), counted))
    sizes = [before for before, after in map(lengths.of, counted) if before != after]
    is_small = float(number).is_integer() and abs(number) <= _SMALL
    if ratios or (sizes and not (is_small or _is_chosen(number) or _is_chosen(float(number) / pi))):
        return number, max(ratios or sizes), False
    return None


def _is_power_of_two(number: Any) -> bool:
    return bool(abs(np.frexp(float(number))[0]) == 0.5)


def _is_chosen(number: Any) -> bool:
    """Whether it is a power of two, a decimal of few digits, or may be one."""
    kind = type(number)
    is_narrow = np.dtype(kind).itemsize < 4
    return is_narrow or _is_power_of_two(number) or _decimal(float(number), _MORE_DIGITS, kind) is not None


def _is_simple(number: Any) -> bool:
    """Whether it is a fraction of two small numbers, such as 2/3."""
    fraction = Fraction(float(number)).limit_denominator(_MOST_PARTS)
    is_near = abs(float(number) - float(fraction)) <= float(np.finfo(type(number)).eps) * abs(float(fraction))
    return is_near and abs(fraction.numerator) <= _MOST_PARTS


def _is_decimal(number: Any) -> bool:
    """Whether it is a decimal of few digits and no power of two, in a type that has more digits."""
    kind = type(number)
    return (
        np.dtype(kind).itemsize >= 4
        and not _is_power_of_two(number)
        and _decimal(float(number), _DIGITS, kind) is not None
    )


def _decimal(number: float, digits: int, kind: Any) -> float | None:
    """The decimal of so many digits that a number is, up to rounding."""
    decimal = float(f"{number:.{digits - 1}e}")
    return decimal if abs(number - decimal) <= float(np.finfo(kind).eps) * abs(decimal) else None


def _matches(
    number: Any, candidates: Iterable[Roots], lengths: _Sizes, forms: Sequence[_Form], least: int
) -> list[tuple[Any, int]]:
    """What the constant becomes if it encodes one of the candidates, and their number of elements, as it was."""
    matches = _matches_of(type(number), number, candidates, lengths, forms, least)
    if matches or not isinstance(number, np.float32) or _is_power_of_two(number):
        return matches
    if np.float32(ml_dtypes.bfloat16(number)) != number:
        return []
    fractions = [form for form in forms if form.is_fraction]
    return _matches_of(ml_dtypes.bfloat16, number, candidates, lengths, fractions, least)


def _matches_of(
    kind: Any, number: Any, candidates: Iterable[Roots], lengths: _Sizes, forms: Sequence[_Form], least: int
) -> list[tuple[Any, int]]:
    """The same for a number that was rounded to a type before it was converted to that which it has."""
    matches: list[tuple[Any, int]] = []
    is_floating = not np.issubdtype(kind, np.integer)
    is_wide = is_floating and np.dtype(kind).itemsize >= 4
    # The compiler may have computed a constant from others, with an error of a unit in the last place.
    with np.errstate(all="ignore"):
        error = abs(float(np.spacing(number))) if is_wide else 0.0

    def fits(form: _Form, size: int) -> bool:
        expected = float(form.of(size))
        return abs((float(kind(expected)) if is_floating else expected) - float(number)) <= error

    fitting = lengths.fitting.setdefault((kind, type(number), number, least, tuple(forms)), {})
    with np.errstate(all="ignore"):
        for roots in dict.fromkeys(candidates):
            before, after = lengths.of(roots)
            if before < max(least, 3):
                continue
            key = before, lengths.is_over_few(roots)
            if key not in fitting:
                fitting[key] = [form for form in _likely(forms, key[1], least) if fits(form, before)]
            for form in fitting[key]:
                matches.append((number if before == after else type(number)(kind(float(form.of(after)))), before))
    return matches


def _likely(forms: Sequence[_Form], is_over_few: bool, least: int) -> Sequence[_Form]:
    """The forms that constants are likely to have for a sum, of those of at least so many elements."""
    if not is_over_few:
        return forms
    return [form for form in forms if form.is_mean] if least <= 2 else ()
