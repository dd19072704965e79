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
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES, ElementType, element_type_of
from hloexec.core.ir import ArrayShape, Shape, change_arrays, parts_of
from hloexec.core.precision import part_type, unit_roundoff
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.common import narrow_unchecked, wide
from hloexec.ops.policies import chance
from hloexec.ops.policies.exact.doubled import two_sum
from hloexec.ops.policies.random_sums import RandomSums, accumulated_type, parted, stacked
from hloexec.ops.rounding import Rounding, Summation
from hloexec.ops.threads import in_blocks, in_pieces

if TYPE_CHECKING:
    from hloexec.ops.contraction.matrix_product import OperandSplit

_FUNCTION_ERROR = 4.0
"""Errors of functions, in units of roundoff of the type they are computed in; see `numerics.error_budget`."""


@frozen(eq=False)
class RandomRounding(RandomSums):
    """A kernel under the policy."""

    kept_bits: int = 0
    """Where the operand is rounded to a format: how many bits of its significand are kept."""
    split: OperandSplit | None = None
    """Where formats are kept: what is done to the operands of a contraction first."""

    def __call__(self, *operands: Any) -> Any:
        with np.errstate(all="ignore"):
            if self.rounding in (Rounding.ONCE, Rounding.FUNCTION):
                return self._rounded_elements(*operands)
            if self.rounding is Rounding.FORMAT:
                return self._formatted(*operands)
            if self.split is not None:
                return self._summed_passes(self.split, *operands)
            return self.rounded_sums([operands])[0]

    def of_each(self, given: Sequence[Sequence[Any]]) -> list[Any] | None:
        """The results of several lists of operands of the same types, with the bits that each has alone; None where
        they are too large, or too different, to be computed together in less time."""
        sizes = [np.shape(each) for each in given[0]]
        leaves = [part for part in parts_of(self.shape) if isinstance(part, ArrayShape)]
        made = [leaf.dimensions for leaf in leaves if leaf.element_type.is_inexact]
        count = chance.BLOCK // max(1, *map(math.prod, (*sizes, *made)))
        if chance.are_several():
            kinds = [element_type_of(each.dtype) for each in given[0] if isinstance(each, np.ndarray)]
            is_narrow = self.even_type is not None or any(kind.is_narrow for kind in kinds)
            if count < len(given) or (is_narrow and chance.are_mixed()) or any(kind.is_complex for kind in kinds):
                return None
        is_elementwise = self.rounding in (Rounding.ONCE, Rounding.FUNCTION)
        if count < 2 or self.rounding is Rounding.FORMAT or self.split is not None:
            return None
        if any([np.shape(each) for each in row] != sizes for row in given) or (is_elementwise and len(set(sizes)) > 1):
            return None
        found: list[Any] = []
        with np.errstate(all="ignore"):
            for start in range(0, len(given), count):
                some = given[start : start + count]
                if len(some) == 1:
                    found.append(self(*some[0]))
                elif is_elementwise:
                    found += parted(self._rounded_elements(*map(stacked, zip(*some, strict=True))), len(some))
                else:
                    found += self.rounded_sums(some)
        return found

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
        found = np.empty(math.prod(sizes), self.shape.element_type.storage)

        def work(start: int, stop: int) -> None:
            found[start:stop] = self._elements(*(each[start:stop] if each.ndim else each for each in flat))

        in_blocks(work, found.size, chance.BLOCK)
        return found.reshape(sizes)

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
    given: Mapping[str, Any],
    shape: Shape,
    operand_shapes: Sequence[Shape],
    summation: Summation | None,
    split: OperandSplit | None,
    widest: Shape | None,
) -> RandomRounding | None:
    """The kernel of an opcode or library call under the policy; None where nothing rounds.

    `evaluate` takes the keyword arguments `given`; `summation` is what is added up, None where nothing is. `split` is
    done to the operands of contractions before that. With odd seeds, results of opcodes may have a type as wide as that
    of `widest`.
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
            given = _with_types(given, _wide if summation.transformed else accumulated_type)
        if len(summation.along) == 2 and all(summation.along) and isinstance(shape, ArrayShape):
            # In f64: BLAS adds in an order that depends on the processor, and the operands have its errors already.
            given = {**given, "shape": shape.with_element_type(_wide(shape.element_type))}
    elif rounding is Rounding.UNKNOWN and summation is None:
        sizes = [max(leaf.dimensions, default=1) for leaf in operand_shapes if isinstance(leaf, ArrayShape)]
        summation = Summation(float(max(sizes, default=1)))
    kept_bits = given["attributes"].mantissa_bits if rounding is Rounding.FORMAT else 0
    summation = summation or Summation(1.0)
    kernel = partial(evaluate, **given)
    found = RandomRounding(kernel, rounding, shape, summation, name, kept_bits=kept_bits, split=split)
    if widest is None or widest is shape:
        return found
    return attrs.evolve(found, shape=widest, even_type=types[0])


def _wide(entry: ElementType) -> ElementType:
    return chance.F64 if entry.is_floating else ELEMENT_TYPES["c128"] if entry.is_complex else entry


def _with_types(given: Mapping[str, Any], change: Callable[[ElementType], ElementType]) -> dict[str, object]:
    """Keyword arguments of a kernel, with the element types that are declared changed."""

    def changed(shape: Shape) -> Shape:
        return change_arrays(shape, lambda leaf: leaf.with_element_type(change(leaf.element_type)))

    found = dict(given)
    if "shape" in given:
        found["shape"] = changed(given["shape"])
    if "operand_shapes" in given:
        found["operand_shapes"] = tuple(map(changed, given["operand_shapes"]))
    return found
