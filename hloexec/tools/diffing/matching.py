"""Matching a value of one run with a value of another, in any order and up to rounding, independently of names.

The allowed rounding error is derived from the instructions that computed the value on either side, from values that
both sides have in common; the side that rounds *less* determines it. A module that rounds more than the other, or less,
computes something different: this is how a dropped rounding, products in TF32 or sums in bf16 are distinguished from
sums in another order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, islice, permutations
from operator import mul
from typing import Any

import numpy as np

from hloexec.analysis.numerics.measuring import agreement, narrower
from hloexec.analysis.numerics.tolerances import Chain, Tolerance
from hloexec.core.dtypes import ElementType, element_type_of, unit_roundoff
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.common import narrow as narrowed
from hloexec.ops.common import wide
from hloexec.tools.diffing.bounds import Bound, InstructionChains, PathBounds, path_chain, relative_bound, steps_from
from hloexec.tools.diffing.correspondence import EqualValues, Lookup
from hloexec.tools.diffing.graph import Graph, Node
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.recording.arrays import Digest
from hloexec.tools.diffing.recording.held import Held, Numbers, own
from hloexec.tools.diffing.replaying.evaluation import Values

LOCAL = Tolerance(
    factor=1.0, derivation="what rounding does to each element, for the operands that it was computed from"
)
"""Of values whose elements' bounds are known (`diffing.bounds`)."""


@frozen(eq=False)
class Allowance:
    """By how much the elements of two values may differ, as either side has them."""

    actual: Array
    expected: Array | None = None
    """In the dimensions of the expected value, besides."""

    def of(self, dimensions: tuple[int, ...]) -> Array:
        """Both, if the elements of both sides have the same row-major order."""
        return self.actual if self.expected is None else self.actual + self.expected.reshape(dimensions)


def could_agree(first: Digest, sums: Array, relative: Array) -> Array:
    """Which of several digests, given by rows (total, magnitude, squares), are worth a look: values of which most
    elements may be those of the first, with errors of a part (for each digest) of their own size or of the root mean
    square.

    With errors of at most t = r (|x| + s), Σx and Σ|x| are off by r (Σ|x| + n s), Σx² by 2 r (Σx² + s Σ|x|) +
    2 r² (Σx² + n s²). The sums themselves are off by n 2⁻⁵² Σ|x| at most.
    """
    n, size = first.count, first.root_mean_square
    linear = _linear(first, relative)
    relative = relative + 2.0**-52 * min(n, 1 << 16)
    square = 2 * relative * (first.squares + size * first.magnitude) + 2 * relative**2 * (first.squares + n * size**2)
    mask = np.abs(sums[:, 0] - first.total) <= linear * (1 + 1e-9)
    mask &= np.abs(sums[:, 1] - first.magnitude) <= linear * (1 + 1e-9)
    mask &= np.abs(sums[:, 2] - first.squares) <= square * (1 + 1e-9)
    return np.asarray(mask)


def magnitudes(first: Digest, relative: float) -> tuple[float, float]:
    """Between which Σ|x| those lie of all values that `could_agree` with a digest, with errors of at most that part."""
    reach = float(_linear(first, np.float64(relative))) * (1 + 1e-8)
    return (first.magnitude - reach, first.magnitude + reach) if math.isfinite(reach) else (-math.inf, math.inf)


def _linear(first: Digest, relative: Any) -> Any:
    """By how much Σx and Σ|x| may be off."""
    n = first.count
    return (relative + 2.0**-52 * min(n, 1 << 16)) * (first.magnitude + n * first.root_mean_square)


def agrees(actual: Array, expected: Array, allowed: Array | None) -> bool:
    """Whether two arrays of one shape agree in all elements, to within what is allowed of each; to the bit if None.

    What is of another type than the other is rounded to the narrower one first.
    """
    first, second = element_type_of(actual.dtype), element_type_of(expected.dtype)
    if first is not second:
        entry = narrower(first, second)
        if not (first.is_floating or first.is_complex):
            return bool(np.array_equal(wide(actual), wide(expected)))
        actual, expected = (_as(array, entry) for array in (actual, expected))
    else:
        entry = first
    tolerance = Tolerance() if allowed is None else LOCAL
    if allowed is not None and first is not second:
        with np.errstate(all="ignore"):
            allowed = allowed + unit_roundoff(entry) * np.nan_to_num(np.abs(wide(expected)))
    return bool(agreement(np.ascontiguousarray(actual), np.ascontiguousarray(expected), tolerance, allowed).all())


def says_much(allowed: Array, value: Array) -> bool:
    """Whether agreement to within what is allowed says anything of a value: most of its elements are larger.

    Behind many steps without a value that both sides have, bounds grow beyond what they are bounds of, and any value is
    within them.
    """
    with np.errstate(all="ignore"):
        sizes = np.abs(wide(value))
        if float(allowed.sum()) <= float(sizes.sum()):
            return True
        return is_mostly_less(allowed, sizes)


def is_mostly_less(limits: Array, sizes: Array) -> bool:
    """Whether most limits are no more than most sizes, zeros aside."""
    sizes, limits = sizes[sizes > 0], limits[limits > 0]
    return not sizes.size or not limits.size or bool(np.median(limits) <= np.median(sizes))


def rounds_alike(actual: Array, expected: Array, ours: Chain, counterpart: Chain) -> bool:
    """Whether two values, which agree, can have been rounded alike on the way.

    Where one side rounds to a narrow type (unit roundoff 2⁻¹² or more) more often than the other, about half of the
    elements differ. Where both round as often, what is rounded differs by f32's roundings at most, and
    elements differ only where these decide: about one in 2⁻⁹/2⁻²⁴ per term added up. So more than one in twenty are
    taken for a rounding that is missing, or one too many. What one side has yet to round is rounded first. Partial sums
    in a narrow type are rounded, too.
    """
    fewer, more = sorted(chain.rounding_squares + chain.sum_squares for chain in (ours, counterpart))
    if more < LIMITS.narrow_unit**2 or more < LIMITS.more_roundings * fewer:
        return True
    narrow = narrower(element_type_of(actual.dtype), element_type_of(expected.dtype))
    first, second = (wide(_as(array, narrow)) for array in (actual, expected))
    unequal = np.count_nonzero((first != second) & ~(np.isnan(first) & np.isnan(second)))
    return bool(unequal <= max(1, actual.size // 20))


def _as(array: Array, entry: ElementType) -> Array:
    return array if array.dtype == entry.storage else narrowed(wide(array), entry)


def aligned(value: Array, dimensions: tuple[int, ...]) -> Iterator[Array]:
    """The ways in which an array may lie in other dimensions: row by row first, then with its dimensions permuted, some
    of which may be one in the array or in the other dimensions."""
    if value.size != int(np.prod(dimensions, dtype=np.int64)):
        return
    yield value.reshape(dimensions)
    ours = tuple(size for size in value.shape if size != 1)
    wanted = tuple(size for size in dimensions if size != 1)
    yield from islice((array.reshape(dimensions) for array in _permutations(value, ours, wanted)), LIMITS.permutations)


def _permutations(value: Array, ours: tuple[int, ...], wanted: tuple[int, ...]) -> Iterator[Array]:
    if max(len(ours), len(wanted)) > LIMITS.permuted_dimensions:
        return
    for order in islice(permutations(range(len(ours))), 1, None):
        if _merges_to(tuple(ours[axis] for axis in order), wanted):
            yield value.reshape(ours).transpose(order)
    if len(wanted) > len(ours):
        for order in islice(permutations(range(len(wanted))), 1, None):
            split = tuple(wanted[axis] for axis in order)
            if _merges_to(split, ours):
                yield value.reshape(split).transpose(np.argsort(order))


def _merges_to(sizes: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether dimensions become others if some neighbours are made one."""
    return {*accumulate(wanted, mul)} <= {*accumulate(sizes, mul)}


def arranged(value: Array, like: Array) -> Iterator[Array]:
    """The ways in which an array may replace another, in its dimensions and its element type."""
    for candidate in aligned(value, like.shape):
        yield candidate if candidate.dtype == like.dtype else candidate.astype(like.dtype)


def permuted(value: Array, like: Array) -> Iterator[Array]:
    """An array with its dimensions permuted in any other way, in the dimensions and the element type of another."""
    squeezed = value.reshape([size for size in value.shape if size != 1])
    for order in islice(permutations(range(squeezed.ndim)), 1, LIMITS.permutations):
        candidate = squeezed.transpose(order).reshape(like.shape)
        yield candidate if candidate.dtype == like.dtype else candidate.astype(like.dtype)


def rearranged(actual: Array, expected: Array, allowed: Allowance | None) -> Array | None:
    """`expected` with its dimensions permuted so that `actual` agrees with it; None where none does.

    Where no permutation does, and both are many different floats that agree once they are sorted, `actual` itself.
    """
    limits = np.zeros(expected.shape) if allowed is None or allowed.expected is None else allowed.expected
    candidates = zip(aligned(expected, actual.shape), aligned(limits, actual.shape), strict=True)
    for candidate, limit in islice(candidates, 1, None):
        if agrees(actual, candidate, None if allowed is None else allowed.actual + limit):
            return candidate
    if not is_varied(actual):
        return None
    first, second = (wide(array).reshape(-1) for array in (actual, expected))
    if first.dtype.kind == "c":
        return None
    orders = np.argsort(first, kind="stable"), np.argsort(second, kind="stable")
    both = None if allowed is None else allowed.actual.reshape(-1)[orders[0]] + limits.reshape(-1)[orders[1]]
    return actual if agrees(first[orders[0]], second[orders[1]], both) else None


def is_varied(array: Array) -> bool:
    """Whether an array has so many different numbers, with fractions, that having them all is no coincidence."""
    if array.size < LIMITS.few_numbers or element_type_of(array.dtype).is_integral or array.dtype == np.bool_:
        return False
    part = np.ravel(array)[: LIMITS.sample] if array.flags.c_contiguous else array.flat[: LIMITS.sample]
    return len(np.unique(wide(part))) >= LIMITS.few_numbers


def is_near(actual: Array, expected: Array) -> bool:
    """Whether all but a few elements agree to within some roundings; of those that are not zero, where most are."""
    filled = int(np.count_nonzero(expected))
    few = int(filled >= LIMITS.few_numbers and element_type_of(expected.dtype).is_inexact)
    return _count_off(actual, expected) <= max(few, LIMITS.share_off * filled)


def comes_near(now: Array, before: Array, expected: Array, share: float = LIMITS.share_off) -> bool:
    """Whether a value that was off what is expected, in any arrangement of its dimensions, has come near it: few of the
    elements that were off still are, and at most a part of all."""
    if is_same(now, before):
        return False
    for candidate in aligned(expected, now.shape):
        off = _count_off(now, candidate)
        if off <= share * candidate.size and off <= LIMITS.share_left * _count_off(before, candidate):
            return True
    return False


def is_right(now: Array, expected: Array) -> bool:
    """Whether a value is what is expected, row by row, to within two roundings."""
    return any(
        _count_off(now, candidate, LIMITS.few_roundings) == 0 for candidate in islice(aligned(expected, now.shape), 1)
    )


def is_same(first: Array, second: Array) -> bool:
    """Whether two arrays hold the same numbers."""
    return bool(np.array_equal(wide(first), wide(second), equal_nan=True))


def _count_off(actual: Array, expected: Array, roundings: float | None = None) -> int:
    """How many elements do not agree to within some roundings."""
    first, second = element_type_of(actual.dtype), element_type_of(expected.dtype)
    x, y = wide(actual), wide(expected)
    if not first.is_inexact or not second.is_inexact:
        return int(np.count_nonzero(x != y))
    unit = max(unit_roundoff(first), unit_roundoff(second))
    part = unit * (roundings or (LIMITS.roundings if unit**2 < LIMITS.narrow_unit**2 else LIMITS.narrow_roundings))
    with np.errstate(all="ignore"):
        return int(np.count_nonzero(~((np.abs(x - y) <= part * np.abs(y)) | (x == y) | (np.isnan(x) & np.isnan(y)))))


@frozen(eq=False)
class Match:
    """A value of `after` that is one of `before`."""

    node: Node
    """Of `before`."""
    is_in_order: bool
    """Whether the elements have the same row-major order; otherwise dimensions are permuted."""
    is_exact: bool
    """Whether they are the same numbers; else rounding explains the difference."""
    held: Held
    """What `before` has, as `after` arranges it."""

    @property
    def value(self) -> Array:
        return self.held.array()


class Index(EqualValues):
    """The values of `before`, to be found by what they hold."""

    def __init__(self, graph: Graph, chains: InstructionChains, bounds: PathBounds) -> None:
        super().__init__(graph)
        self._path_bounds = bounds
        self.chains = chains
        """Of `before`'s instructions."""
        self.matched = Numbers()
        """The numbers of the nodes that `after` is known to have."""
        arrays = np.array(graph.columns.array)
        _, in_any_order, self._sums = (part[arrays] for part in graph.arrays.digests.columns())
        self._in_any_order = Lookup(in_any_order)
        self._layouts = graph.arrays.layouts(arrays)
        self._known_sizes: dict[tuple[int, str], _SameSize] = {}

    def equal_in_any_order(self, digest: Digest) -> Iterator[Node]:
        """The nodes with the same elements, in whatever order."""
        return self._of_kind(digest, self._in_any_order[digest.in_any_order])

    def note(self, node: Node) -> None:
        """`after` has this value, and with it all that are equal on its device."""
        if node.number not in self.matched:
            self._note_equal(node)

    def _note_equal(self, node: Node) -> None:
        self.matched.update(self._equal_on(node.device, node.digest))

    def operands(self, ours: Node, theirs: Node, values: Values) -> list[tuple[Node, Node]] | None:
        """Pairs of the operands of a value of `after`, which holds `values`, and what they should be; None where those
        of the instruction that computed `theirs` are."""
        return None

    def find(
        self,
        held: Held,
        chain: Chain,
        like: Node,
        made_of: frozenset[int] = frozenset(),
        bounds: Callable[[], Array] | None = None,
    ) -> Match | None:
        """The value that another one is, which `chain` rounded on the way from values that both sides have; `bounds`
        says how far off its elements may be for that.

        It is looked for on the device of `like`; of several, those are preferred that were computed
        from values with the digests `made_of`, and then one of its dimensions and names.
        """
        digest = held.digest
        if (node := self.likeliest_of(digest, like, made_of)) is not None:
            return Match(node, True, True, held)
        is_rounded = chain.linear and digest.family in ("float", "complex") and bounds is not None
        near = self._candidates(digest, chain, like, made_of) if is_rounded else []
        close = self._close(held, near, chain, like, bounds, in_order=True)
        if close is not None:
            return close
        if digest.is_uniform:
            return None
        for node in islice(self.equal_in_any_order(digest), LIMITS.candidates):
            if node.device != like.device:
                continue
            value = held.array()
            if is_varied(value) or rearranged(value, node.value, None) is not None:
                return Match(node, False, True, held)
        return self._close(held, near, chain, like, bounds, in_order=False)

    def _close(
        self,
        held: Held,
        candidates: Sequence[Node],
        chain: Chain,
        like: Node,
        bounds: Callable[[], Array] | None,
        in_order: bool,
    ) -> Match | None:
        for node in candidates:
            assert bounds is not None
            # Where `after` has this one, too, it may compute it a second time, in other steps.
            if node.device != like.device or steps_from(node, self.matched, LIMITS.steps_ahead) > LIMITS.steps_ahead:
                continue
            other = path_chain(node, self.matched, self.chains)
            if not other.linear:
                continue
            value, theirs = held.array(), node.value
            for allowed in self.allowances(chain, bounds(), other, node):
                limits = allowed.of(value.shape)
                if not says_much(limits, theirs):
                    break
                if in_order:
                    expected = theirs.reshape(value.shape)
                    matched = expected if agrees(value, expected, limits) else None
                else:
                    matched = rearranged(value, theirs, allowed)
                if matched is not None and rounds_alike(value, matched, chain, other):
                    is_as_recorded = in_order and theirs.shape == value.shape
                    same = node.held if is_as_recorded else held if matched is value else own(matched)
                    return Match(node, in_order, False, same)
        return None

    def allowances(self, chain: Chain, bounds: Array, other: Chain, node: Node) -> Iterator[Allowance]:
        """How far a value of `after`, with its chain and its bounds, may be off a node of `before`, with its `other`.

        First what its own bounds allow, twice, as if both were computed alike; then with those of the node, which
        take time. Either side's bounds count as far as the other rounds as coarsely.
        """
        least = min(relative_bound(chain), relative_bound(other))
        ours = bounds * min(1.0, least / relative_bound(chain))
        yield Allowance(2 * ours)
        yield Allowance(ours, self.own_bounds(node) * min(1.0, least / relative_bound(other)))

    def own_bounds(self, node: Node) -> Array:
        """How far a node may be off itself, since values that `after` has."""
        return self._path_bounds.of(node, self.matched)

    def bound(self, node: Node, inherited: Mapping[int, Bound]) -> Bound:
        """How far a node may be off, where those operands that are off themselves are `inherited`."""
        return self._path_bounds.behind(node, inherited)

    def first_equal(self, node: Node) -> int:
        """The number of the first node with the same elements on its device; its own if that may be an accident."""
        return node.number if node.digest.is_uniform else min(self._equal_on(node.device, node.digest))

    def _candidates(self, digest: Digest, chain: Chain, like: Node, made_of: frozenset[int]) -> list[Node]:
        """The nodes whose sums are near enough: first those computed from the same values, then those of the same
        iteration of a loop, then the nearest. In a loop that converges, many iterations are near enough.
        """
        sized = self._of_size(digest)
        relative = 2 * relative_bound(chain)
        near = sized.between(*magnitudes(digest, relative + sized.largest_unit))
        if not near.size:
            return []
        units, sums = sized.units[near], sized.sums[near]
        units = np.where(units > unit_roundoff(element_type_of(like.dtype)), units, 0)
        is_near = could_agree(digest, sums, relative + units)
        near, sums = near[is_near], sums[is_near]
        distances = np.abs(sums[:, 0] - digest.total) + np.abs(sums[:, 1] - digest.magnitude)
        near_numbers: list[int] = sized.numbers[near[np.argsort(distances, kind="stable")]].tolist()
        array, digests = self.graph.columns.array, self.graph.arrays.digests
        near_numbers = [node for node in near_numbers if digests.nonfinite(array[node]) == digest.nonfinite]
        rounds = like.instance.iterations
        near_numbers.sort(
            key=lambda node: (-self._common(node, made_of), self.graph.scope_of(node).iterations != rounds)
        )
        return list(map(self.graph.node, near_numbers[: LIMITS.candidates]))

    def _of_size(self, digest: Digest) -> _SameSize:
        """The nodes with as many elements of the same family."""
        key = (digest.count, digest.family)
        if key not in self._known_sizes:
            types = self.graph.arrays.types(*key)
            numbers = np.flatnonzero(np.isin(self._layouts, [*types]))
            units = np.zeros(max(types, default=0) + 1)
            for layout, dtype in types.items():
                units[layout] = unit_roundoff(element_type_of(dtype))
            self._known_sizes[key] = _SameSize(numbers, self._sums[numbers], units[self._layouts[numbers]])
        return self._known_sizes[key]


class _SameSize:
    """Nodes of one size: their numbers, in order, and by row their sums (of `Digest`) and unit roundoffs."""

    def __init__(self, numbers: Array, sums: Array, units: Array) -> None:
        self.numbers, self.sums, self.units = numbers, sums, units
        self.largest_unit = units.max(initial=0.0)
        self._order = np.argsort(sums[:, 1])
        self._magnitudes = sums[self._order, 1]

    def between(self, least: float, most: float) -> Array:
        """The rows with Σ|x| between two bounds, in order."""
        first, last = self._magnitudes.searchsorted(least), self._magnitudes.searchsorted(most, "right")
        return np.sort(self._order[first:last])
