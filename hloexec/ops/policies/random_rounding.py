"""The `random-rounding:SEED` policy: every rounded result goes up or down at random.

A result between two numbers of its type becomes one of them, with probabilities such that its expectation is the exact
result; a result that its type can represent is unchanged. The spread of a few such runs measures the rounding error of
each element (D. S. Parker, "Monte Carlo Arithmetic", 1997; Connolly, Higham and Mary, "Stochastic rounding and its
probabilistic backward error analysis", 2021).

The random choice is a hash of the seed, the opcode and the bits of the exact result; it does not depend on the order of
execution, on other elements, on other devices or on the number of the run. Equal results are therefore rounded equally
wherever they occur, as on any machine, and their errors add up as they do there. So do sums of equal rows of terms. The
errors of different rows are independent, because a row's own hash is part of the hash of each of its terms. (If the
operands of products contain only small integers, their sums have no errors.)

Choices that are up to the implementation are random as well. Functions get an additional error of up to
`_FUNCTION_ERROR` units. Sums are added in an unspecified order: the error of adding t₁ … tₙ one after the other, with
relative errors δⱼ of the partial sums, is Σ tₖ (δₖ + … + δₙ), so each term is multiplied by 1 plus a random walk that
begins at the end, with a step for each term that is not zero, and products of such terms are added in f64. If terms
are not products of elements along some dimensions (in windows, transforms, library calls), operands and result get
independent errors of the same size: with n terms, the sum of squares of partial sums in random order is
n S²/3 + n Σtₖ²/6. Transforms go along one dimension after the other, and treat equal lines alike. An operand's error
is therefore made of one for each of these dimensions, which depends on the element and on its place there. They are
added up in f64, where none is lost: elements that cancel consist of nothing else.

Narrow values may be rounded more often than the text says, or less often. Sums may be rounded at each step, and
rounding to nearest then has a bias: a term smaller than half a unit in the last place of the partial sum is lost, which
random errors would not show. And values passed between elementwise instructions may keep the precision in which they
were computed (XLA's excess precision), which differs from the nearest number where random rounding would almost never
leave it; so may what they take from contractions, and f32 products on their way to sums (multiply-adds). Odd seeds do
all this.

Seeds from 2³² on round three times as far: a few such runs show decisions that rounding turns once in a thousand runs.
(Of f64 sums and products, and of types of eight bits, errors stay as they are.)

Sums, and whatever else is not elementwise, under the `random-rounding:SEED` policy: see `policies.random_rounding`.

Results for the operands of several devices are found together: errors of many small arrays take less time in one call.
They have the bits that each has alone, as errors depend on the elements of one array and on their places in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES, ElementType, element_type_of, part_type, unit_roundoff
from hloexec.core.ir import ArrayShape, Shape, TupleShape, change_arrays, parts_of
from hloexec.core.ir.shape import elements_of
from hloexec.core.structs import frozen
from hloexec.core.tree import fold
from hloexec.core.values import Array
from hloexec.ops.common import narrow_unchecked, wide, widen
from hloexec.ops.policies import chance
from hloexec.ops.policies.backends import added_stepwise
from hloexec.ops.policies.exact.doubled import two_sum
from hloexec.ops.resources import in_blocks, in_pieces
from hloexec.ops.traits import Rounding, Summation

if TYPE_CHECKING:
    from hloexec.ops.contraction.matrix_product import OperandSplit


_EVEN = 4
"""If one operand of a product is this many times larger than the other, errors of sums are applied to the smaller."""
_LARGEST_WHOLE = 2.0**24
"""Whole numbers that are smaller are added without errors, in every type that sums are accumulated in."""


@frozen(eq=False)
class RandomSums:
    """A kernel that makes sums, or what is treated as such."""

    kernel: Callable[..., Any]
    """Elementwise, from operands in f64 (c128) to a result in that type; of sums along dimensions, in the types that
    they are accumulated in; as declared otherwise."""
    rounding: Rounding
    shape: Shape
    summation: Summation
    name: str
    """The opcode, or the library call."""
    number: int = 0
    """Of the product, where a contraction adds up several."""
    even_type: ElementType | None = None
    """What even seeds round elements to, where odd ones keep those of a wider type: see `backends.widest_shape`."""

    @property
    def key(self) -> Any:
        """What makes hashes those of this kernel, under the run's seed."""
        return chance.key_of(self.name) + 1024 * self.number

    @property
    def keeps_types(self) -> bool:
        """Whether the kernel is given operands as declared, and not in the types that they are added up in."""
        return self.rounding is not Rounding.SUM or self.summation.is_stepwise

    def rounded_type(self, shape: ArrayShape) -> ElementType:
        """The type that the elements of a result of this shape are rounded to."""
        return shape.element_type if self.even_type is None or chance.has_odd_seed() else self.even_type

    def rounded_sums(self, rows: Sequence[Sequence[Any]]) -> list[Any]:
        """The results of several lists of operands."""
        sums = self.summation
        is_narrow = self._is_narrow(rows[0])
        if sums.along and not is_narrow:
            return self._results([self.kernel(*operands) for operands in self._walked(rows)], self.shape, 0.0)
        may_be_exact = self.rounding is Rounding.SUM and not (sums.is_product or sums.transformed)
        exact = {may_be_exact and self._adds_exactly(operands) for operands in rows}
        if len(exact) > 1 or (sums.transformed and len(rows) > 1):
            return chance.one_by_one(lambda operands: self.rounded_sums([operands])[0], rows)
        terms = sums.narrow_steps if is_narrow else sums.terms
        amplitudes = (0.0, 0.0) if exact == {True} else (math.sqrt(terms / 6), math.sqrt(terms / 3))
        columns = [
            self._noisy(column, amplitudes[0], 16 + number) if isinstance(column[0], np.ndarray) else column
            for number, column in enumerate(zip(*rows, strict=True))
        ]
        entry = element_type_of(rows[0][0].dtype)
        may_lose = is_narrow and chance.has_odd_seed() and sums.along and len(columns) == 2 and entry.bits == 16
        totals = []
        for noisy in zip(*columns, strict=True):
            total = self.kernel(*noisy)
            if may_lose and noisy[0].size:
                stepwise = noisy[1] + added_stepwise(noisy[0], sums.along[0], entry)
                total = np.where(np.isfinite(stepwise), stepwise, total)
            totals.append(total)
        return self._results(totals, self.shape, amplitudes[1])

    def _is_narrow(self, operands: Sequence[object]) -> bool:
        """Whether partial sums may be rounded to a narrow type."""
        entries = [element_type_of(operand.dtype) for operand in operands if isinstance(operand, np.ndarray)]
        return self.summation.narrow_steps > 0 and any(entry.is_narrow and entry.is_floating for entry in entries)

    def _adds_exactly(self, operands: Sequence[object]) -> bool:
        """Whether all that is added is whole numbers, so few and small that no partial sum is rounded."""
        arrays = [operand for operand in operands if isinstance(operand, np.ndarray) and operand.size]
        if any(array.dtype.kind == "c" for array in arrays):
            return False
        largest = math.prod(map(_largest_whole, arrays))
        entries = [element_type_of(array.dtype) for array in arrays]
        kept = min((entry.mantissa_bits for entry in entries if entry.is_floating), default=0)
        is_stepwise = self.summation.is_stepwise or self._is_narrow(operands)
        limit = 2.0 ** (kept + 1) if is_stepwise else _LARGEST_WHOLE
        return largest * self.summation.terms < limit

    def _noisy(self, column: Sequence[Array], amplitude: float, number: int) -> Sequence[Array]:
        """Operands with independent errors, in the type that they are added up in."""
        entry = element_type_of(column[0].dtype)
        to = entry if self.keeps_types else accumulated_type(entry)
        to = _wide(entry) if adds_windows(self.summation) else to
        if self.summation.transformed:
            amplitudes = [math.sqrt(terms / 6) for terms in self.summation.transformed]
            unit = self._of_units(1.0, entry)
            return [
                chance.with_errors_along(
                    operand, [unit * term_amplitude for term_amplitude in amplitudes], self.key + number
                )
                for operand in column
            ]
        if not entry.is_inexact or not amplitude:
            return column if self.keeps_types else [chance.accumulated(operand) for operand in column]
        return self._with_errors(column, self._of_units(amplitude, entry), to, self.key + number)

    def _with_errors(self, column: Sequence[Array], amplitude: float, entry: ElementType, key: int) -> Sequence[Array]:
        """Arrays of one shape, each with the errors that it has alone."""
        together = stacked(column)
        is_one = together is column[0]
        noisy_array = chance.with_errors(together, amplitude, entry, key, count=1 if is_one else len(column))
        return [noisy_array] * len(column) if is_one else parted(noisy_array, len(column))

    def _of_units(self, amplitude: float, entry: ElementType) -> float:
        """So many units of roundoff of the type in which partial sums of numbers of a type are rounded."""
        is_stepwise = self.summation.is_stepwise or (self.summation.narrow_steps > 0 and entry.is_narrow)
        return amplitude * unit_roundoff(entry if is_stepwise else element_type_of(entry.accumulate))

    def _walked(self, rows: Sequence[Sequence[Array]]) -> list[Sequence[Array]]:
        """Lists of operands with the errors that adding them, or products of them, leaves in the sums."""
        shares, exact = self._error_shares(rows[0])
        if any(self._error_shares(operands) != (shares, exact) for operands in rows[1:]):
            return chance.one_by_one(lambda operands: self._walked([operands])[0], rows)
        columns = [
            self._walked_column(column, place, shares[place], exact)
            if place in shares
            else [chance.accumulated(operand) for operand in column]
            for place, column in enumerate(zip(*rows, strict=True))
        ]
        return list(zip(*columns, strict=True))

    def _walked_column(self, column: Sequence[Array], place: int, share: float, exact: float) -> Sequence[Array]:
        """Arrays of one shape, each with the random walks that it has alone."""
        along, key = self.summation.along[place], self.key + 16 + place
        together = stacked(column)
        if together is column[0] or not together.size:
            return [chance.walked(column[0], along, share, key, exact)] * len(column)
        walked = chance.walked(together, [dimension + 1 for dimension in along], share, key, exact)
        return parted(walked, len(column))

    def _error_shares(self, operands: Sequence[Array]) -> tuple[dict[int, float], float]:
        """Which share of the errors of sums each operand takes, by its place, and up to which number whole sums have
        none.

        Both operands of a product take half of the errors' squares each; but where one is much smaller, or mostly
        zeros, that one takes them all.
        """
        along = self.summation.along
        is_inexact = [element_type_of(operand.dtype).is_inexact for operand in operands]
        terms = [place for place, dimensions in enumerate(along) if dimensions and is_inexact[place]]
        shares, exact = dict.fromkeys(terms, 1.0), 0.0
        if len(terms) != 2 or isinstance(self.shape, TupleShape):
            initial = [operand for place, operand in enumerate(operands) if not along[place]]
            exact = _LARGEST_WHOLE / max(map(_largest_whole, initial), default=1.0)
        elif self._adds_exactly(operands):
            shares = {}
        else:
            shares = _shares([operands[place] for place in terms], terms)
        return shares, exact

    def _results(self, values: Sequence[Any], shape: Shape, amplitude: float) -> list[Any]:
        """The leaves of several results, in their declared types, with independent errors of so many units."""

        def parts(node: tuple[Sequence[Any], Shape]) -> list[tuple[Sequence[Any], Shape]] | None:
            elements = elements_of(node[1])
            return None if elements is None else list(zip(zip(*node[0], strict=True), elements, strict=True))

        return fold(
            (values, shape),
            parts,
            lambda node: self._leaves(node[0], node[1], amplitude),
            lambda _, columns: list(zip(*columns, strict=True)),
        )

    def _leaves(self, values: Sequence[Any], shape: Shape, amplitude: float) -> list[Any]:
        if not isinstance(shape, ArrayShape) or not shape.element_type.is_inexact:
            return list(values)
        entry, storage = self.rounded_type(shape), shape.element_type.storage
        if not amplitude and element_type_of(values[0].dtype) is entry:
            return [value.astype(storage, copy=False) for value in values]
        if len({value.shape for value in values}) > 1:
            return chance.one_by_one(lambda value: self._leaves([value], shape, amplitude)[0], values)
        rounded = self._with_errors(values, self._of_units(amplitude, entry), entry, self.key)
        return [value.astype(storage, copy=False) for value in rounded]


def stacked(column: Sequence[Array]) -> Array:
    """Arrays of one shape along a new first dimension; the array itself where they are all one, with one seed."""
    is_one = all(array is column[0] for array in column) and not chance.are_several()
    return column[0] if is_one else np.stack(column)


def parted(together: Array, count: int) -> list[Array]:
    """The arrays that lie along the first dimension."""
    return [together[number, ...] for number in range(count)]


def _shares(operands: Sequence[Array], places: Sequence[int]) -> dict[int, float]:
    """Which share of the errors of sums of products either operand takes, by its place."""
    filled = [np.count_nonzero(operand) / max(1, operand.size) for operand in operands]
    sizes = [operand.size for operand in operands]
    if min(filled) < 0.5:
        return {places[int(np.argmin(filled))]: 1.0}
    if max(sizes) > _EVEN * min(sizes):
        return {places[int(np.argmin(sizes))]: 1.0}
    return dict.fromkeys(places, math.sqrt(0.5))


def _largest_whole(array: Array) -> float:
    """The largest of whole numbers, 1 at least; infinite where some, mostly among the first few, are not whole."""
    for part in (array[(slice(2),) * array.ndim], array):
        values = widen(part)
        if not (values == np.rint(values)).all():
            return math.inf
    return float(np.abs(values).max(initial=1.0))


def adds_windows(summation: Summation) -> bool:
    """Whether sums are of windows. They are added up in f64: the operand's errors have those of partial sums, which
    would be lost where a partial sum of the terms, in whatever order, is rounded much farther than the sum."""
    return summation.narrow_steps > 0 and not summation.along


def accumulated_type(entry: ElementType) -> ElementType:
    """The type that sums are accumulated in."""
    return element_type_of(entry.accumulate) if entry.is_floating else entry


_FUNCTION_ERROR = 4.0
"""Errors of functions, in units of roundoff of the type they are computed in; see `numerics.tolerances`."""


@frozen(eq=False)
class RandomRounding(RandomSums):
    """A kernel under the policy."""

    kept_bits: int = 0
    """Where the operand is rounded to a format: how many bits of its significand are kept."""
    split: OperandSplit | None = None
    """Where formats are kept: what is done to the operands of a contraction first."""

    def __call__(self, *operands: Any) -> Any:
        if self.rounding in (Rounding.ONCE, Rounding.FUNCTION):
            return self._rounded_elements(*operands)
        if self.rounding is Rounding.FORMAT:
            return self._formatted(*operands)
        if self.split is not None:
            return self._summed_passes(self.split, *operands)
        return self.rounded_sums([operands])[0]

    def of_each(self, rows: Sequence[Sequence[Any]]) -> list[Any] | None:
        """The results of several lists of operands of the same types, with the bits that each has alone; None where
        they are too large, or too different, to be computed together in less time."""
        sizes = [np.shape(operand) for operand in rows[0]]
        leaves = [part for part in parts_of(self.shape) if isinstance(part, ArrayShape)]
        made = [leaf.dimensions for leaf in leaves if leaf.element_type.is_inexact]
        count = chance.BLOCK // max(1, *map(math.prod, (*sizes, *made)))
        if chance.are_several():
            kinds = [element_type_of(operand.dtype) for operand in rows[0] if isinstance(operand, np.ndarray)]
            is_narrow = self.even_type is not None or any(kind.is_narrow for kind in kinds)
            if count < len(rows) or (is_narrow and chance.are_mixed()) or any(kind.is_complex for kind in kinds):
                return None
        is_elementwise = self.rounding in (Rounding.ONCE, Rounding.FUNCTION)
        if count < 2 or self.rounding is Rounding.FORMAT or self.split is not None:
            return None
        if any([np.shape(operand) for operand in row] != sizes for row in rows) or (
            is_elementwise and len(set(sizes)) > 1
        ):
            return None
        results: list[Any] = []
        for start in range(0, len(rows), count):
            some = rows[start : start + count]
            if len(some) == 1:
                results.append(self(*some[0]))
            elif is_elementwise:
                results += parted(self._rounded_elements(*map(stacked, zip(*some, strict=True))), len(some))
            else:
                results += self.rounded_sums(some)
        return results

    def _summed_passes(self, split: OperandSplit, lhs: Array, rhs: Array) -> Any:
        """Products of operands that are rounded, or parted, before their sums make errors."""
        ours, theirs = (list(split.parts(operand)) for operand in (lhs, rhs))
        plain = attrs.evolve(self, split=None)
        total: Any = None
        for number, (i, j) in enumerate(split.pairs):
            product = attrs.evolve(plain, number=number).rounded_sums([(ours[i], theirs[j])])[0]
            total = product if total is None else total + product
        return total

    def _rounded_elements(self, *operands: Array) -> Array:
        """What an elementwise operation gives, block by block."""
        assert isinstance(self.shape, ArrayShape)
        sizes = operands[0].shape
        if any(operand.shape != sizes for operand in operands):
            sizes = np.broadcast_shapes(*(operand.shape for operand in operands))
        if math.prod(sizes) <= chance.BLOCK or any(operand.ndim and operand.shape != sizes for operand in operands):
            return self._elements(*operands).reshape(sizes)
        flat = [np.ascontiguousarray(operand).reshape(-1) if operand.ndim else operand for operand in operands]
        result = np.empty(math.prod(sizes), self.shape.element_type.storage)

        def work(start: int, stop: int) -> None:
            result[start:stop] = self._elements(*(array[start:stop] if array.ndim else array for array in flat))

        in_blocks(work, result.size, chance.BLOCK)
        return result.reshape(sizes)

    def _elements(self, *operands: Array) -> Array:
        """The results, in one dimension."""
        assert isinstance(self.shape, ArrayShape)
        entry = self.rounded_type(self.shape)
        part = part_type(entry)
        exact = np.asarray(self.kernel(*map(wide, operands)))
        parts = chance.as_parts(exact)
        hashes = chance.hashes_of(parts, self.key)
        if self.rounding is Rounding.FUNCTION:
            errors = chance.steps_of(hashes) * (
                _FUNCTION_ERROR * chance.reach() * unit_roundoff(element_type_of(entry.compute))
            )
            # What a type holds exactly, as exp 0 and the tanh of large numbers, libraries return as it is.
            errors *= (parts.view(np.uint64) & np.uint64((1 << chance.dropped_digits(part)) - 1)) != 0
            parts = parts * (1.0 + errors)
        elif part is chance.F64:
            return self._moved_doubles(exact, operands)
        if part is not chance.F64:
            parts = chance.of_hashes(parts, part, hashes)
        return parts.view(entry.storage).astype(self.shape.element_type.storage, copy=False)

    def _moved_doubles(self, nearest: Array, operands: Sequence[Array]) -> Array:
        """f64 results, in one dimension. Sums and products leave an error that is a number itself (Knuth; Dekker); of
        complex numbers it is drawn, as nothing wider is at hand."""
        if nearest.dtype.kind == "c":
            parts = chance.as_parts(nearest)
            errors = (chance.chances(parts, self.key + 1) - 0.5) * np.spacing(np.abs(parts))
            return chance.moved(parts, errors, self.key).view(nearest.dtype)
        if self.name not in ("add", "subtract", "multiply"):
            return nearest.reshape(-1)
        lhs, rhs = operands
        if self.name == "multiply":
            (high, low), (other_high, other_low) = _halves(lhs), _halves(rhs)
            errors = low * other_low - (((nearest - high * other_high) - low * other_high) - high * other_low)
        else:
            _, errors = two_sum(lhs, -rhs if self.name == "subtract" else rhs)
        return chance.moved(chance.as_parts(nearest), chance.as_parts(errors), self.key)

    def _formatted(self, operand: Array) -> Array:
        """A number rounded to the nearest of a format goes up or down in proportion once up to half of a last place of
        that format, either way, is added to it; one that the format holds stays as it is."""
        nearest = self.kernel(operand)
        exact, held = wide(operand), wide(nearest)
        place = np.where(exact == held, 0.0, np.exp2(np.frexp(exact)[1] - 1.0 - self.kept_bits))
        shifted = exact + place * (chance.chances(chance.as_parts(exact), self.key).reshape(exact.shape) - 0.5)
        entry = element_type_of(operand.dtype)
        return np.asarray(self.kernel(narrow_unchecked(shifted, entry) if entry is not chance.F64 else shifted))

    def by_rows(self, kernel: Callable[..., Any], prefix: int) -> RandomRounding:
        """This for blocks of rows, of which `kernel` makes sums; `prefix` dimensions have become one."""
        along = tuple(tuple(dimension - prefix + 1 for dimension in dimensions) for dimensions in self.summation.along)
        return attrs.evolve(self, kernel=kernel, summation=attrs.evolve(self.summation, along=along))


def _halves(values: Array) -> tuple[Array, Array]:
    """f64 numbers as sums of two of half the digits (Veltkamp)."""
    scaled = values * (2.0**27 + 1)
    high = scaled - (scaled - values)
    return high, values - high


def cut_by_chance(array: Array, bits: int) -> Array:
    """f32 numbers with only `bits` explicit bits of their significands kept, rounded up or down by chance."""
    parts = np.ascontiguousarray(array, np.float32).reshape(-1)
    key, dropped = chance.key_of("operand"), 23 - bits

    def cut(block: Array) -> Array:
        hashes = chance.hashes_of(block, key)
        hashes >>= np.uint64(64 - dropped)
        patterns = block.view(np.uint32)
        kept = (patterns + hashes.astype(np.uint32)) & np.uint32(-1 << dropped & 0xFFFFFFFF)
        return np.where(np.isfinite(block), kept, patterns).view(np.float32)

    return in_pieces(cut, np.float32, parts, piece=chance.BLOCK).reshape(array.shape)


def random_rounding(
    name: str,
    rounding: Rounding,
    evaluate: Callable[..., Any],
    settings: Mapping[str, Any],
    shape: Shape,
    operand_shapes: Sequence[Shape],
    summation: Summation | None,
    split: OperandSplit | None,
    widest: Shape | None,
) -> RandomRounding | None:
    """The kernel of an opcode or library call under the policy; None where nothing rounds.

    `evaluate` takes the keyword arguments `settings`; `summation` is what is added up, None where nothing is. `split`
    is done to the operands of contractions before that. With odd seeds, results of opcodes may have a type as wide as
    that of `widest`.
    """
    leaves = parts_of(shape)
    types = [leaf.element_type for leaf in leaves if isinstance(leaf, ArrayShape) and leaf.is_array]
    if rounding is Rounding.NONE or not any(entry.is_inexact for entry in types):
        return None
    if rounding in (Rounding.ONCE, Rounding.FUNCTION):
        settings = _with_types(settings, _wide)
    elif rounding is Rounding.SUM:
        if summation is None:
            return None
        if not summation.is_stepwise:
            is_wide = summation.transformed or adds_windows(summation)
            settings = _with_types(settings, _wide if is_wide else accumulated_type)
        if len(summation.along) == 2 and all(summation.along) and isinstance(shape, ArrayShape):
            # In f64: BLAS adds in an order that depends on the processor, and the operands have its errors already.
            settings = {**settings, "shape": shape.with_element_type(_wide(shape.element_type))}
    elif rounding is Rounding.UNKNOWN and summation is None:
        sizes = [max(leaf.dimensions, default=1) for leaf in operand_shapes if isinstance(leaf, ArrayShape)]
        summation = Summation(float(max(sizes, default=1)))
    kept_bits = settings["attributes"].mantissa_bits if rounding is Rounding.FORMAT else 0
    summation = summation or Summation(1.0)
    kernel = partial(evaluate, **settings)
    random_kernel = RandomRounding(kernel, rounding, shape, summation, name, kept_bits=kept_bits, split=split)
    if widest is None or widest is shape:
        return random_kernel
    return attrs.evolve(random_kernel, shape=widest, even_type=types[0])


def _wide(entry: ElementType) -> ElementType:
    return chance.F64 if entry.is_floating else ELEMENT_TYPES["c128"] if entry.is_complex else entry


def _with_types(settings: Mapping[str, Any], change: Callable[[ElementType], ElementType]) -> dict[str, object]:
    """Keyword arguments of a kernel, with the element types that are declared changed."""

    def changed(shape: Shape) -> Shape:
        return change_arrays(shape, lambda leaf: leaf.with_element_type(change(leaf.element_type)))

    keywords = dict(settings)
    if "shape" in settings:
        keywords["shape"] = changed(settings["shape"])
    if "operand_shapes" in settings:
        keywords["operand_shapes"] = tuple(map(changed, settings["operand_shapes"]))
    return keywords
