"""The `random-rounding:SEED` policy: every result that is rounded goes up or down by chance, in proportion.

A result that lies between two numbers of its type becomes one of them, the nearer one the more likely, so that its
expectation is the exact result; a result that its type holds stays as it is. The spread of a few such runs is what
rounding does to each element, measured (D. S. Parker, "Monte Carlo Arithmetic", 1997; Connolly, Higham and Mary,
"Stochastic rounding and its probabilistic backward error analysis", 2021).

Chance is a hash of the seed, the opcode and the bits of the exact result: neither the order of execution nor other
elements, other devices or the number of the run have a part in it. So equal results are rounded alike wherever they
stand, as they are on any machine, and their errors add up as they do there; within sums, places count as well. (Where
operands hold nothing but small whole numbers, their sums have no errors; so much an element of a sum owes to others.)

What implementations are free to do is drawn as well. Functions get an error of up to `_FUNCTION_ERROR` units besides.
Sums are added in an order that nobody promises: the error of adding t₁ … tₙ one after the other, with relative errors
δⱼ of the partial sums, is Σ tₖ (δₖ + … + δₙ), so that each term is multiplied by 1 plus a random walk that begins at
the end, with a step for each term that is not zero. Where terms are no products of elements along some dimensions (in
windows, transforms, library calls), operands and result get independent errors of the same size: with n terms, the sum
of squares of partial sums in random order is n S²/3 + n Σtₖ²/6.

What is narrow may be rounded more often than the text says, or less. Sums may be rounded at each step, and rounding to
nearest then has a direction: what is less than half a last place of the sum so far is lost, term by term, which no
errors by chance would show. And what elementwise instructions hand to one another may stay as wide as it was computed
(XLA's excess precision), which differs from the nearest number where rounding by chance would hardly ever leave it.
Odd seeds do both.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np

from hloexec.dtypes import ELEMENT_TYPES, ElementType, element_type_of
from hloexec.ir import ArrayShape, Shape, TupleShape
from hloexec.ops.common import narrow_aloud, widen
from hloexec.ops.rounding import Rounding, Summation
from hloexec.ops.threads import in_blocks
from hloexec.precision import part_type, smallest_normal, unit_roundoff
from hloexec.values import Array

__all__ = ["RandomRounding", "cut_by_chance", "random_rounding", "rounded_by_chance", "sum_by_chance"]

_FUNCTION_ERROR = 4.0
"""Errors of functions, in units of roundoff of the type they are computed in; see `hloexec.numerics.error_budget`."""
_BLOCK = 1 << 13
"""Elements at a time: what is computed of them stays in the L2 cache."""
_WORD = (1 << 64) - 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_KEY_FACTOR = 0xD6E8FEB86659FD93
_PLACES = np.arange(2 * _BLOCK, dtype=np.uint64) * _GOLDEN
_STEPS = 32
"""So many terms XLA:CPU adds one after the other; more of them in blocks."""
_EVEN = 4
"""Where one operand of a product is so many times larger than the other, the errors of sums stand in the smaller."""
_F64 = ELEMENT_TYPES["f64"]


def rounded_by_chance(exact: Array, entry: ElementType, key: int) -> Array:
    """f64 or c128 numbers in a floating or complex type that is narrower, up or down by chance."""
    parts, part = _parts(exact), part_type(entry)
    found = np.empty(parts.size, part.storage)

    def work(start: int, stop: int) -> None:
        block = parts[start:stop]
        found[start:stop] = _rounded(block, part, _hashes(block, key))

    in_blocks(work, parts.size, _BLOCK)
    return found.view(entry.storage).reshape(exact.shape)


def _rounded(exact: Array, entry: ElementType, hashes: Array) -> Array:
    """f64 numbers in a narrower type, by hashes that are used up.

    The digits that the type has no room for are a fraction of a last place: once random digits in their places are
    added, to carry or not, they can be cut off.
    """
    if entry.bits < 16:
        return _between_neighbours(exact, entry, hashes * 2.0**-64)
    dropped = _dropped_digits(entry)
    hashes >>= np.uint64(64 - dropped)
    small = np.abs(exact) < smallest_normal(entry)
    places = np.flatnonzero(small & (exact != 0)) if small.any() else ()
    chances = hashes[places] * 2.0**-dropped if len(places) else None
    hashes += exact.view(np.uint64)
    hashes &= np.uint64(-1 << dropped & _WORD)
    found: Array = hashes.view(np.float64).astype(np.float32)
    if entry.mantissa_bits == 7:
        found = (found.view(np.uint32) >> np.uint32(16)).astype(np.uint16).view(entry.storage)
    elif entry.bits == 16:
        found = found.astype(entry.storage)
    if chances is not None:
        found[places] = _between_neighbours(exact[places], entry, chances)
    return found


def _between_neighbours(exact: Array, entry: ElementType, chances: Array) -> Array:
    """`_rounded` where a type's numbers are not as far apart as their digits say; `chances` are in [0, 1)."""
    near = narrow_aloud(exact, entry)
    held = widen(near).astype(np.float64)
    errors = exact - held
    if entry.bits < 8 or not errors.any():
        return near
    bits = near.view(f"i{near.itemsize}")
    away = (errors > 0) == (bits >= 0)
    zero = np.where(errors < 0, np.array(-1, bits.dtype) << (8 * bits.itemsize - 1) | 1, np.array(1, bits.dtype))
    other = np.where(held == 0, zero, bits + np.where(away, 1, -1).astype(bits.dtype)).view(near.dtype)
    gaps = np.abs(widen(other).astype(np.float64) - held)
    # Infinities and NaNs on either side compare as false.
    moved: Array = np.where(np.abs(errors) > chances * gaps, other, near)
    return moved


def _moved(nearest: Array, errors: Array, key: int) -> Array:
    """f64 numbers, each moved to the next one on the side of its error with a probability in proportion."""
    moves = np.abs(errors) > _chances(nearest, key) * np.spacing(np.abs(nearest))
    return np.where(moves, np.nextafter(nearest, np.where(errors > 0, np.inf, -np.inf)), nearest)


def _halves(values: Array) -> tuple[Array, Array]:
    """f64 numbers as sums of two of half the digits (Veltkamp)."""
    scaled = values * (2.0**27 + 1)
    high = scaled - (scaled - values)
    return high, values - high


def _jittered(values: Array, amplitude: float, key: int) -> Array:
    """f64 or c128 numbers with independent relative errors, uniform up to `amplitude`."""
    parts = _parts(values)
    found = np.empty_like(parts)

    def work(start: int, stop: int) -> None:
        block = parts[start:stop]
        np.multiply(block, 1 + _steps(_hashes(block, key, start)) * amplitude, out=found[start:stop])

    in_blocks(work, parts.size, _BLOCK)
    return found.view(values.dtype).reshape(values.shape)


def _hashes(values: Array, key: int, start: int | None = None) -> Array:
    """64 bits of chance for each of some f32 or f64 numbers in one dimension.

    They are a hash of the number's bits, the key and, where `start` is the place of the first of them, their places:
    these are multiplied by odd numbers and added up, the upper half is folded onto the lower one, and the result
    multiplied once more. Upper bits are the better ones.
    """
    hashes: Array = values.view(f"u{values.itemsize}").astype(np.uint64)
    offset = key * _KEY_FACTOR
    if start is not None:
        size = values.size
        hashes += _PLACES[:size] if size <= _PLACES.size else np.arange(size, dtype=np.uint64) * _GOLDEN
        offset += start * int(_GOLDEN)
    hashes += np.uint64(offset & _WORD)
    hashes *= np.uint64(0xBF58476D1CE4E5B9)
    hashes ^= hashes >> np.uint64(32)
    hashes *= np.uint64(0x94D049BB133111EB)
    return hashes


def _steps(hashes: Array) -> Array:
    """A number in [−1, 1) of the lower half of each hash."""
    return hashes.astype(np.uint32).view(np.int32) * 2.0**-31


def _chances(values: Array, key: int) -> Array:
    """A number in [0, 1) for each of some f32 or f64 numbers in one dimension."""
    return _hashes(values, key) * 2.0**-64


def _parts(values: Array) -> Array:
    """The elements in logical order in one dimension; of complex numbers, real and imaginary parts in turns."""
    flat = np.ascontiguousarray(values).reshape(-1)
    return flat.view(f"f{flat.itemsize // 2}") if flat.dtype.kind == "c" else flat


def _dropped_digits(entry: ElementType) -> int:
    """How many of f64's binary digits a floating type has no room for; of f64 itself, those of functions' errors."""
    return 52 - entry.mantissa_bits if entry is not _F64 else 26


def _has_fractions(entry: ElementType) -> bool:
    return entry.is_floating or entry.is_complex


@attrs.frozen(eq=False)
class RandomRounding:
    """A kernel under the policy."""

    kernel: Callable[..., Any]
    """Elementwise, from operands in f64 (c128) to a result in that type; of sums along dimensions, in the types that
    they are accumulated in; as declared otherwise."""
    rounding: Rounding
    shape: Shape
    summation: Summation
    opcode: str
    key: int
    keeps_types: bool = True
    """Whether it is given operands as declared, and not in the types that they are added up in."""
    is_odd: bool = False
    """Whether the seed is."""
    kept_bits: int = 0
    """Where the operand is rounded to a format: how many bits of its significand are kept."""

    def __call__(self, *operands: Any) -> Any:
        with np.errstate(all="ignore"):
            if self.rounding in (Rounding.ONCE, Rounding.FUNCTION):
                return self._rounded_elements(*operands)
            if self.rounding is Rounding.FORMAT:
                return self._formatted(*operands)
            return self._rounded_sums(*operands)

    def _rounded_elements(self, *operands: Array) -> Array:
        """What an elementwise operation gives, block by block."""
        assert isinstance(self.shape, ArrayShape)
        sizes = operands[0].shape
        if operands[0].size <= _BLOCK or any(operand.shape != sizes for operand in operands):
            return self._elements(*operands).reshape(np.broadcast_shapes(*(operand.shape for operand in operands)))
        flat = [np.ascontiguousarray(operand).reshape(-1) for operand in operands]
        found = np.empty(flat[0].size, self.shape.element_type.storage)

        def work(start: int, stop: int) -> None:
            found[start:stop] = self._elements(*(operand[start:stop] for operand in flat))

        in_blocks(work, found.size, _BLOCK)
        return found.reshape(sizes)

    def _elements(self, *operands: Array) -> Array:
        """The results, in one dimension."""
        assert isinstance(self.shape, ArrayShape)
        entry = self.shape.element_type
        part = part_type(entry)
        exact = np.asarray(self.kernel(*map(_doubled, operands)))
        parts = _parts(exact)
        hashes = _hashes(parts, self.key)
        if self.rounding is Rounding.FUNCTION:
            errors = _steps(hashes) * (_FUNCTION_ERROR * unit_roundoff(element_type_of(entry.compute)))
            # What a type holds exactly, as exp 0 and the tanh of large numbers, libraries return as it is.
            errors *= (parts.view(np.uint64) & np.uint64((1 << _dropped_digits(part)) - 1)) != 0
            parts = parts * (1.0 + errors)
        elif part is _F64:
            return self._moved_doubles(exact, operands)
        if part is not _F64:
            parts = _rounded(parts, part, hashes)
        return parts.view(entry.storage)

    def _moved_doubles(self, nearest: Array, operands: Sequence[Array]) -> Array:
        """f64 results, in one dimension. Sums and products leave an error that is a number itself (Knuth; Dekker); of
        complex numbers it is drawn, as nothing wider is at hand."""
        if nearest.dtype.kind == "c":
            parts = _parts(nearest)
            errors = (_chances(parts, self.key + 1) - 0.5) * np.spacing(np.abs(parts))
            return _moved(parts, errors, self.key).view(nearest.dtype)
        if self.opcode not in ("add", "subtract", "multiply"):
            return nearest.reshape(-1)
        lhs, rhs = operands
        if self.opcode == "multiply":
            (high, low), (other_high, other_low) = _halves(lhs), _halves(rhs)
            errors = low * other_low - (((nearest - high * other_high) - low * other_high) - high * other_low)
        else:
            rhs = -rhs if self.opcode == "subtract" else rhs
            back = nearest - lhs
            errors = (lhs - (nearest - back)) + (rhs - back)
        return _moved(_parts(nearest), _parts(errors), self.key)

    def _formatted(self, operand: Array) -> Array:
        """A number rounded to the nearest of a format goes up or down in proportion once up to half of a last place of
        that format, either way, is added to it; one that the format holds stays as it is."""
        nearest = self.kernel(operand)
        wide, held = _doubled(operand), _doubled(nearest)
        place = np.where(wide == held, 0.0, np.exp2(np.frexp(wide)[1] - 1.0 - self.kept_bits))
        shifted = wide + place * (_chances(_parts(wide), self.key).reshape(wide.shape) - 0.5)
        entry = element_type_of(operand.dtype)
        return np.asarray(self.kernel(narrow_aloud(shifted, entry) if entry is not _F64 else shifted))

    def _rounded_sums(self, *operands: Any) -> Any:
        sums = self.summation
        is_exact = self.rounding is Rounding.SUM and not sums.is_product and self._adds_exactly(operands)
        is_narrow = self._is_narrow(operands)
        if sums.along and not is_narrow:
            given = map(_accumulated_type, operands) if is_exact else self._walked(operands)
            return self._results(self.kernel(*given), self.shape, 0.0)
        terms = sums.narrow_steps if is_narrow else sums.terms
        amplitudes = (0.0, 0.0) if is_exact else (math.sqrt(terms / 6), math.sqrt(terms / 3))
        noisy = [
            self._noisy(operand, amplitudes[0], 16 + number) if isinstance(operand, np.ndarray) else operand
            for number, operand in enumerate(operands)
        ]
        total = self.kernel(*noisy)
        entry = element_type_of(operands[0].dtype)
        if is_narrow and self.is_odd and sums.along and len(operands) == 2 and operands[0].size and entry.bits == 16:
            stepwise = noisy[1] + _added_stepwise(noisy[0], sums.along[0], entry)
            total = np.where(np.isfinite(stepwise), stepwise, total)
        return self._results(total, self.shape, amplitudes[1])

    def _is_narrow(self, operands: Sequence[Any]) -> bool:
        """Whether partial sums may be rounded to a narrow type."""
        entries = [element_type_of(operand.dtype) for operand in operands if isinstance(operand, np.ndarray)]
        return self.summation.narrow_steps > 0 and any(entry.is_narrow and entry.is_floating for entry in entries)

    def _adds_exactly(self, operands: Sequence[Any]) -> bool:
        """Whether all that is added is whole numbers, so few and small that no partial sum is rounded."""
        arrays = [operand for operand in operands if isinstance(operand, np.ndarray) and operand.size]
        if any(array.dtype.kind == "c" or not _are_whole(array) for array in arrays):
            return False
        largest = math.prod(max(1.0, float(np.abs(widen(array)).max())) for array in arrays)
        entries = [element_type_of(array.dtype) for array in arrays]
        kept = min((entry.mantissa_bits for entry in entries if entry.is_floating), default=0)
        is_stepwise = self.summation.is_stepwise or self._is_narrow(operands)
        limit = 2.0 ** (kept + 1) if is_stepwise else 2.0**24
        return largest * self.summation.terms < limit

    def _noisy(self, operand: Array, amplitude: float, number: int) -> Array:
        """An operand with independent errors, in the type that it is added up in."""
        entry = element_type_of(operand.dtype)
        if not _has_fractions(entry) or not amplitude:
            return operand if self.keeps_types else _accumulated_type(operand)
        noisy = _jittered(_doubled(operand), self._of_units(amplitude, entry), self.key + number)
        if part_type(entry) is _F64:
            return noisy
        to = entry if self.keeps_types else element_type_of(entry.accumulate)
        return rounded_by_chance(noisy, to, self.key + number + 1)

    def _of_units(self, amplitude: float, entry: ElementType) -> float:
        """So many units of roundoff of the type in which partial sums of numbers of a type are rounded."""
        is_stepwise = self.summation.is_stepwise or (self.summation.narrow_steps > 0 and entry.is_narrow)
        return amplitude * unit_roundoff(entry if is_stepwise else element_type_of(entry.accumulate))

    def _walked(self, operands: Sequence[Array]) -> tuple[Array, ...]:
        """The operands with the errors that adding them, or products of them, leaves in the sums.

        Both operands of a product take half of the errors' squares each; but where one is much smaller, or mostly
        zeros, that one takes them all.
        """
        along = self.summation.along
        terms = [place for place, dimensions in enumerate(along) if dimensions]
        shares = dict.fromkeys(terms, 1 / math.sqrt(len(terms)))
        if len(terms) == 2:
            filled = [np.count_nonzero(operands[place]) / max(1, operands[place].size) for place in terms]
            sizes = [operands[place].size for place in terms]
            if min(filled) < 0.5:
                shares = {terms[int(np.argmin(filled))]: 1.0}
            elif max(sizes) > _EVEN * min(sizes):
                shares = {terms[int(np.argmin(sizes))]: 1.0}
        return tuple(
            _walk(operand, along[place], shares[place], self.key + 16 + place)
            if place in shares
            else _accumulated_type(operand)
            for place, operand in enumerate(operands)
        )

    def _results(self, value: Any, shape: Shape, amplitude: float) -> Any:
        """The leaves of a result, in their declared types, with independent errors of so many units."""
        if isinstance(shape, TupleShape):
            pairs = zip(value, shape.elements, strict=True)
            return tuple(self._results(part, inner, amplitude) for part, inner in pairs)
        if not isinstance(shape, ArrayShape) or not _has_fractions(shape.element_type):
            return value
        entry, found = shape.element_type, element_type_of(value.dtype)
        if not amplitude and found is entry:
            return value
        noisy = _doubled(value)
        if amplitude:
            noisy = _jittered(noisy, self._of_units(amplitude, entry), self.key + 1)
        return noisy if part_type(entry) is _F64 else rounded_by_chance(noisy, entry, self.key)


def _walk(operand: Array, dimensions: Sequence[int], share: float, key: int) -> Array:
    """An operand in its accumulation type, each element times 1 + a random walk along `dimensions` from the end.

    Steps are uniform within a unit of roundoff. They belong to partial sums: the first term that is not zero makes
    none. A term that is no power of two has an error of its own, that of its product.
    """
    values = _accumulated_type(operand)
    last = tuple(range(operand.ndim - len(dimensions), operand.ndim))
    turned = np.moveaxis(values, dimensions, last)
    length = math.prod(operand.shape[dimension] for dimension in dimensions)
    pieces = 2 if turned.dtype.kind == "c" else 1
    parts = _parts(turned).copy() if turned.flags.c_contiguous else _parts(turned)
    if not parts.size:
        return operand
    rows = parts.reshape(-1, length, pieces)
    step = max(1, _BLOCK // (length * pieces))
    for start in range(0, len(rows), step):
        block = rows[start : start + step]
        block[...] = _walked_rows(block, share, start * length * pieces, key)
    moved = parts.view(turned.dtype).reshape(turned.shape)
    return np.moveaxis(moved, last, dimensions)


def _walked_rows(block: Array, share: float, start: int, key: int) -> Array:
    """`_walk` of f32 or f64 numbers [row, term, part]."""
    flat = block.reshape(-1)
    mantissa = 23 if flat.itemsize == 4 else 52
    unsigned, signed, tiny = (f"u{flat.itemsize}", f"i{flat.itemsize}", 2.0 ** (-126 if mantissa == 23 else -1022))
    hashes = _hashes(flat, key, start)
    is_term = block != 0
    walks = (hashes.astype(np.uint32).view(np.int32) * np.float32(2.0**-31)).reshape(block.shape)
    walks *= is_term
    np.put_along_axis(walks, is_term.argmax(axis=1)[:, None], np.float32(0), axis=1)
    walks = walks[:, ::-1].cumsum(axis=1, dtype=np.float32)[:, ::-1].reshape(-1)
    fraction = flat.view(unsigned) & np.dtype(unsigned).type((1 << mantissa) - 1)
    # The upper half of a hash: 16 bits for the error of the term itself, 16 for which way it is rounded.
    hashes >>= np.uint64(32)
    upper = hashes.astype(np.uint32)
    walks += upper.view(np.int16)[::2] * np.float32(2.0**-15) * (fraction != 0)
    # A unit of roundoff is half a last place of 1, and (1 + fraction)/2 last places of the number.
    walks *= (fraction.astype(np.float32) * np.float32(2.0 ** -(mantissa + 1)) + np.float32(0.5)) * np.float32(share)
    moves = np.floor(walks + upper.view(np.uint16)[1::2] * np.float32(2.0**-16) * (walks != 0))
    sizes = np.abs(flat)
    moves *= (sizes >= tiny) & (sizes <= 1 / (4 * tiny))
    moved: Array = flat.view(signed) + moves.astype(signed)
    return moved.view(flat.dtype).reshape(block.shape)


def _added_stepwise(terms: Array, dimensions: Sequence[int], entry: ElementType) -> Array:
    """Floats added along dimensions in blocks of up to `_STEPS` and these again, each partial sum in a narrow type."""
    sums = np.moveaxis(terms, dimensions, range(len(dimensions)))
    sums = sums.reshape(-1, *sums.shape[len(dimensions) :])
    while len(sums) > 1:
        count = min(_STEPS, len(sums))
        padding = np.full((-len(sums) % count, *sums.shape[1:]), -0.0, sums.dtype)
        blocks = np.concatenate([sums, padding]).reshape(-1, count, *sums.shape[1:])
        sums = blocks[:, 0]
        for step in range(1, count):
            sums = widen(narrow_aloud(sums + blocks[:, step], entry))
    return np.asarray(sums[0])


def sum_by_chance(terms: Array, seed: int) -> Array:
    """The sum of floats along the first dimension, one after the other, in their own type."""
    entry = element_type_of(terms.dtype)
    with np.errstate(all="ignore"):
        total = _walk(terms, (0,), 1.0, zlib.crc32(f"{seed}:sum".encode())).sum(axis=0)
        return total if element_type_of(total.dtype) is entry else rounded_by_chance(_doubled(total), entry, seed)


def cut_by_chance(array: Array, bits: int, seed: int) -> Array:
    """f32 numbers with only `bits` explicit bits of their significands kept, rounded up or down by chance."""
    parts = np.ascontiguousarray(array, np.float32).reshape(-1)
    key, dropped = zlib.crc32(f"{seed}:operand".encode()), 23 - bits
    found = np.empty_like(parts)

    def work(start: int, stop: int) -> None:
        hashes = _hashes(parts[start:stop], key)
        hashes >>= np.uint64(64 - dropped)
        block = parts[start:stop].view(np.uint32)
        moved = (block + hashes.astype(np.uint32)) & np.uint32(-1 << dropped & 0xFFFFFFFF)
        found[start:stop] = np.where(np.isfinite(parts[start:stop]), moved, block).view(np.float32)

    in_blocks(work, parts.size, _BLOCK)
    return found.reshape(array.shape)


def _are_whole(array: Array) -> bool:
    """Whether all numbers are whole; the first few tell of most arrays."""
    for part in (array[(slice(2),) * array.ndim], array):
        values = widen(part)
        if not (values == np.rint(values)).all():
            return False
    return True


def _accumulated_type(operand: Array) -> Array:
    entry = element_type_of(operand.dtype)
    return operand.astype(entry.accumulate) if entry.is_narrow and entry.is_floating else operand


def _doubled(array: Array) -> Array:
    """An array of floats or complex numbers in f64 or c128; others as they are, in their compute type."""
    wide = widen(array)
    if wide.dtype.kind == "f":
        return wide.astype(np.float64, copy=False)
    return wide.astype(np.complex128, copy=False) if wide.dtype.kind == "c" else wide


def random_rounding(
    name: str,
    rounding: Rounding,
    evaluate: Callable[..., Any],
    given: Mapping[str, Any],
    shape: Shape,
    operand_shapes: Sequence[Shape],
    summation: Summation | None,
    seed: int,
) -> RandomRounding | None:
    """The kernel of an opcode or library call under the policy; None where nothing rounds.

    `evaluate` takes the keyword arguments `given`; `summation` is what is added up, None where nothing is.
    """
    leaves = shape.elements if isinstance(shape, TupleShape) else (shape,)
    types = [leaf.element_type for leaf in leaves if isinstance(leaf, ArrayShape) and leaf.is_array]
    if rounding is Rounding.NONE or not any(map(_has_fractions, types)):
        return None
    key = zlib.crc32(f"{seed}:{name}".encode())
    keeps_types = True
    if rounding in (Rounding.ONCE, Rounding.FUNCTION):
        given = _in_doubles(given)
    elif rounding is Rounding.SUM:
        if summation is None:
            return None
        keeps_types = summation.is_stepwise
        given = given if keeps_types else _accumulated(given)
    elif rounding is Rounding.UNKNOWN and summation is None:
        sizes = [max(leaf.dimensions, default=1) for leaf in operand_shapes if isinstance(leaf, ArrayShape)]
        summation = Summation(float(max(sizes, default=1)))
    kept_bits = given["attributes"].mantissa_bits if rounding is Rounding.FORMAT else 0
    kernel = partial(evaluate, **given)
    summation = summation or Summation(1.0)
    return RandomRounding(kernel, rounding, shape, summation, name, key, keeps_types, seed % 2 == 1, kept_bits)


def _in_doubles(given: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of a kernel, with floats declared as f64 and complex numbers as c128."""

    def doubled(entry: ElementType) -> ElementType:
        return _F64 if entry.is_floating else ELEMENT_TYPES["c128"] if entry.is_complex else entry

    return _with_types(given, doubled)


def _accumulated(given: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of a kernel, with all types declared as those that sums are accumulated in."""

    def accumulated(entry: ElementType) -> ElementType:
        return element_type_of(entry.accumulate) if entry.is_floating else entry

    return _with_types(given, accumulated)


def _with_types(given: Mapping[str, Any], change: Callable[[ElementType], ElementType]) -> dict[str, Any]:
    def changed(shape: Shape) -> Shape:
        if isinstance(shape, TupleShape):
            return TupleShape(tuple(map(changed, shape.elements)))
        return shape.with_element_type(change(shape.element_type)) if isinstance(shape, ArrayShape) else shape

    found = dict(given)
    if "shape" in found:
        found["shape"] = changed(found["shape"])
    if "operand_shapes" in found:
        found["operand_shapes"] = tuple(map(changed, found["operand_shapes"]))
    return found
