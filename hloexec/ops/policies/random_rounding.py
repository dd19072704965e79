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
leave it. Odd seeds do both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from hloexec.dtypes import ELEMENT_TYPES, ElementType, element_type_of
from hloexec.ir import ArrayShape, Shape, TupleShape, parts_of
from hloexec.ops.common import narrow_unchecked, wide, widen
from hloexec.ops.policies import chance
from hloexec.ops.policies.exact.doubled import two_sum
from hloexec.ops.policies.narrow_sums import added_stepwise
from hloexec.ops.rounding import Rounding, Summation
from hloexec.ops.threads import in_blocks, in_pieces
from hloexec.precision import part_type, unit_roundoff
from hloexec.values import Array

if TYPE_CHECKING:
    from hloexec.ops.contraction.matrix_product import OperandSplit

__all__ = ["RandomRounding", "cut_by_chance", "random_rounding"]

_FUNCTION_ERROR = 4.0
"""Errors of functions, in units of roundoff of the type they are computed in; see `hloexec.numerics.error_budget`."""
_EVEN = 4
"""If one operand of a product is this many times larger than the other, errors of sums are applied to the smaller."""
_LARGEST_WHOLE = 2.0**24
"""Whole numbers that are smaller are added without errors, in every type that sums are accumulated in."""


@attrs.frozen(eq=False)
class RandomRounding:
    """A kernel under the policy."""

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
    kept_bits: int = 0
    """Where the operand is rounded to a format: how many bits of its significand are kept."""
    split: OperandSplit | None = None
    """Where formats are kept: what is done to the operands of a contraction first."""

    @property
    def key(self) -> int:
        """What makes hashes those of this kernel, under the run's seed."""
        return chance.key_of(self.name) + 1024 * self.number

    @property
    def keeps_types(self) -> bool:
        """Whether the kernel is given operands as declared, and not in the types that they are added up in."""
        return self.rounding is not Rounding.SUM or self.summation.is_stepwise

    def __call__(self, *operands: Any) -> Any:
        with np.errstate(all="ignore"):
            if self.rounding in (Rounding.ONCE, Rounding.FUNCTION):
                return self._rounded_elements(*operands)
            if self.rounding is Rounding.FORMAT:
                return self._formatted(*operands)
            if self.split is not None:
                return self._summed_passes(self.split, *operands)
            return self._rounded_sums(*operands)

    def _summed_passes(self, split: OperandSplit, lhs: Array, rhs: Array) -> Any:
        """Products of operands that are rounded, or parted, before their sums make errors."""
        ours, theirs = (list(split.parts(operand)) for operand in (lhs, rhs))
        plain = attrs.evolve(self, split=None)
        total: Any = None
        for number, (i, j) in enumerate(split.pairs):
            product = attrs.evolve(plain, number=number)._rounded_sums(ours[i], theirs[j])
            total = product if total is None else total + product
        return total

    def _rounded_elements(self, *operands: Array) -> Array:
        """What an elementwise operation gives, block by block."""
        assert isinstance(self.shape, ArrayShape)
        sizes = np.broadcast_shapes(*(operand.shape for operand in operands))
        if math.prod(sizes) <= chance.BLOCK or any(operand.ndim and operand.shape != sizes for operand in operands):
            return self._elements(*operands).reshape(sizes)
        flat = [np.ascontiguousarray(operand).reshape(-1) if operand.ndim else operand for operand in operands]
        found = np.empty(math.prod(sizes), self.shape.element_type.storage)

        def work(start: int, stop: int) -> None:
            found[start:stop] = self._elements(*(each[start:stop] if each.ndim else each for each in flat))

        in_blocks(work, found.size, chance.BLOCK)
        return found.reshape(sizes)

    def _elements(self, *operands: Array) -> Array:
        """The results, in one dimension."""
        assert isinstance(self.shape, ArrayShape)
        entry = self.shape.element_type
        part = part_type(entry)
        exact = np.asarray(self.kernel(*map(wide, operands)))
        parts = chance.as_parts(exact)
        hashes = chance.hashes_of(parts, self.key)
        if self.rounding is Rounding.FUNCTION:
            errors = chance.steps_of(hashes) * (_FUNCTION_ERROR * unit_roundoff(element_type_of(entry.compute)))
            # What a type holds exactly, as exp 0 and the tanh of large numbers, libraries return as it is.
            errors *= (parts.view(np.uint64) & np.uint64((1 << chance.dropped_digits(part)) - 1)) != 0
            parts = parts * (1.0 + errors)
        elif part is chance.F64:
            return self._moved_doubles(exact, operands)
        if part is not chance.F64:
            parts = chance.of_hashes(parts, part, hashes)
        return parts.view(entry.storage)

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

    def _rounded_sums(self, *operands: Any) -> Any:
        sums = self.summation
        is_narrow = self._is_narrow(operands)
        if sums.along and not is_narrow:
            return self._results(self.kernel(*self._walked(operands)), self.shape, 0.0)
        may_be_exact = self.rounding is Rounding.SUM and not (sums.is_product or sums.transformed)
        is_exact = may_be_exact and self._adds_exactly(operands)
        terms = sums.narrow_steps if is_narrow else sums.terms
        amplitudes = (0.0, 0.0) if is_exact else (math.sqrt(terms / 6), math.sqrt(terms / 3))
        noisy = [
            self._noisy(operand, amplitudes[0], 16 + number) if isinstance(operand, np.ndarray) else operand
            for number, operand in enumerate(operands)
        ]
        total = self.kernel(*noisy)
        entry = element_type_of(operands[0].dtype)
        if (
            is_narrow
            and chance.has_odd_seed()
            and sums.along
            and len(operands) == 2
            and operands[0].size
            and entry.bits == 16
        ):
            stepwise = noisy[1] + added_stepwise(noisy[0], sums.along[0], entry)
            total = np.where(np.isfinite(stepwise), stepwise, total)
        return self._results(total, self.shape, amplitudes[1])

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

    def _noisy(self, operand: Array, amplitude: float, number: int) -> Array:
        """An operand with independent errors, in the type that it is added up in."""
        entry = element_type_of(operand.dtype)
        to = entry if self.keeps_types else _accumulated(entry)
        if self.summation.transformed:
            amplitudes = [math.sqrt(terms / 6) for terms in self.summation.transformed]
            unit = self._of_units(1.0, entry)
            return chance.with_errors_along(operand, [unit * each for each in amplitudes], self.key + number)
        if not entry.is_inexact or not amplitude:
            return operand if self.keeps_types else chance.accumulated(operand)
        return chance.with_errors(operand, self._of_units(amplitude, entry), to, self.key + number)

    def _of_units(self, amplitude: float, entry: ElementType) -> float:
        """So many units of roundoff of the type in which partial sums of numbers of a type are rounded."""
        is_stepwise = self.summation.is_stepwise or (self.summation.narrow_steps > 0 and entry.is_narrow)
        return amplitude * unit_roundoff(entry if is_stepwise else element_type_of(entry.accumulate))

    def _walked(self, operands: Sequence[Array]) -> Sequence[Array]:
        """The operands with the errors that adding them, or products of them, leaves in the sums.

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
            return [chance.accumulated(operand) for operand in operands]
        else:
            shares = _shares([operands[place] for place in terms], terms)
        return [
            chance.walked(operand, along[place], shares[place], self.key + 16 + place, exact)
            if place in shares
            else chance.accumulated(operand)
            for place, operand in enumerate(operands)
        ]

    def _results(self, value: Any, shape: Shape, amplitude: float) -> Any:
        """The leaves of a result, in their declared types, with independent errors of so many units."""
        if isinstance(shape, TupleShape):
            pairs = zip(value, shape.elements, strict=True)
            return tuple(self._results(part, inner, amplitude) for part, inner in pairs)
        if not isinstance(shape, ArrayShape) or not shape.element_type.is_inexact:
            return value
        entry = shape.element_type
        if not amplitude and element_type_of(value.dtype) is entry:
            return value
        return chance.with_errors(value, self._of_units(amplitude, entry), entry, self.key)


def _shares(operands: Sequence[Array], places: Sequence[int]) -> dict[int, float]:
    """Which share of the errors of sums of products either operand takes, by its place."""
    filled = [np.count_nonzero(operand) / max(1, operand.size) for operand in operands]
    sizes = [operand.size for operand in operands]
    if min(filled) < 0.5:
        return {places[int(np.argmin(filled))]: 1.0}
    if max(sizes) > _EVEN * min(sizes):
        return {places[int(np.argmin(sizes))]: 1.0}
    return dict.fromkeys(places, math.sqrt(0.5))


def _halves(values: Array) -> tuple[Array, Array]:
    """f64 numbers as sums of two of half the digits (Veltkamp)."""
    scaled = values * (2.0**27 + 1)
    high = scaled - (scaled - values)
    return high, values - high


def _largest_whole(array: Array) -> float:
    """The largest of whole numbers, 1 at least; infinite where some, mostly among the first few, are not whole."""
    for part in (array[(slice(2),) * array.ndim], array):
        values = widen(part)
        if not (values == np.rint(values)).all():
            return math.inf
    return float(np.abs(values).max(initial=1.0))


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
    given: Mapping[str, Any],
    shape: Shape,
    operand_shapes: Sequence[Shape],
    summation: Summation | None,
    split: OperandSplit | None = None,
) -> RandomRounding | None:
    """The kernel of an opcode or library call under the policy; None where nothing rounds.

    `evaluate` takes the keyword arguments `given`; `summation` is what is added up, None where nothing is. `split` is
    done to the operands of contractions before that.
    """
    leaves = parts_of(shape)
    types = [leaf.element_type for leaf in leaves if isinstance(leaf, ArrayShape) and leaf.is_array]
    if rounding is Rounding.NONE or not any(entry.is_inexact for entry in types):
        return None
    if rounding in (Rounding.ONCE, Rounding.FUNCTION):
        given = _with_types(given, _wide)
    elif rounding is Rounding.SUM:
        if summation is None:
            return None
        if not summation.is_stepwise:
            given = _with_types(given, _wide if summation.transformed else _accumulated)
        if len(summation.along) == 2 and all(summation.along) and isinstance(shape, ArrayShape):
            # In f64: BLAS adds in an order that depends on the processor, and the operands have its errors already.
            given = {**given, "shape": shape.with_element_type(_wide(shape.element_type))}
    elif rounding is Rounding.UNKNOWN and summation is None:
        sizes = [max(leaf.dimensions, default=1) for leaf in operand_shapes if isinstance(leaf, ArrayShape)]
        summation = Summation(float(max(sizes, default=1)))
    kept_bits = given["attributes"].mantissa_bits if rounding is Rounding.FORMAT else 0
    summation = summation or Summation(1.0)
    kernel = partial(evaluate, **given)
    return RandomRounding(kernel, rounding, shape, summation, name, kept_bits=kept_bits, split=split)


def _wide(entry: ElementType) -> ElementType:
    return chance.F64 if entry.is_floating else ELEMENT_TYPES["c128"] if entry.is_complex else entry


def _accumulated(entry: ElementType) -> ElementType:
    """The type that sums are accumulated in."""
    return element_type_of(entry.accumulate) if entry.is_floating else entry


def _with_types(given: Mapping[str, Any], change: Callable[[ElementType], ElementType]) -> dict[str, object]:
    """Keyword arguments of a kernel, with the element types that are declared changed."""

    def changed(shape: Shape) -> Shape:
        if isinstance(shape, TupleShape):
            return TupleShape(tuple(map(changed, shape.elements)))
        return shape.with_element_type(change(shape.element_type)) if isinstance(shape, ArrayShape) else shape

    found = dict(given)
    if "shape" in given:
        found["shape"] = changed(given["shape"])
    if "operand_shapes" in given:
        found["operand_shapes"] = tuple(map(changed, given["operand_shapes"]))
    return found
