"""Arrays by number, in little memory, and their digests, by which values are matched.

A digest depends on numbers, not on bits: a bf16 array and the same numbers in f32 have the same digest, both zeros are
equal, and so are all NaNs. `in_order` depends on the row-major order of the elements, but not on dimensions;
`in_any_order` depends on neither.

Both are sums of the elements' words, mixed, modulo 2⁶⁴; `in_order` with a weight for each place. The weights are at
random: with weights in an arithmetic progression, all masks with as many true elements, at places with the same sum,
would have one digest, and so would all one-hot rows of a permutation.

Most arrays of a long run are small, and cost more as objects than as numbers: those are packed together. A window of a
large array that is overwritten in each of many iterations would take the square of their number: of the result, only
what was written is kept, and the whole is put together again when it is asked for.

Digests in columns: a digest as an object takes five times as much.
"""

from __future__ import annotations

import math
import weakref
from array import array as column
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from typing import Any

import attrs
import numpy as np

from hloexec.core.dtypes import Kind, element_type_of
from hloexec.core.process import memory_limit_bytes
from hloexec.core.structs import define, frozen
from hloexec.core.values import Array
from hloexec.ops.common import wide
from hloexec.ops.resources import owner_of

_BLOCK = 1 << 15
"""Number of elements processed at a time: the handful of 64-bit arrays made of them stay in the L2 cache."""
_FEW = 1 << 12
"""Arrays of more elements take as long together as one by one."""
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
"""The multipliers of SplitMix64's finalizer (Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators,
2014)."""
_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_SHIFTS = np.uint64(30), np.uint64(27), np.uint64(31)
_WORDS = 1 << 64
"""How many words of 64 bits there are; digests count modulo this."""


@frozen
class Digest:
    """The digest of an array."""

    count: int
    family: str
    """What it can be compared with: `float`, `complex`, `integer` or `pred`."""
    in_order: int
    in_any_order: int
    total: float = attrs.field(eq=False)
    """Σx over the finite elements; of complex numbers, over both parts. Like the other sums, it depends on the order of
    the additions."""
    magnitude: float = attrs.field(eq=False)
    """Σ|x|."""
    squares: float = attrs.field(eq=False)
    """Σx²."""
    nonfinite: tuple[int, int, int]
    """How many are NaN, +∞, −∞."""
    is_uniform: bool
    """Whether all elements are the same."""

    @property
    def root_mean_square(self) -> float:
        return float(np.sqrt(self.squares / self.count)) if self.count else 0.0


def family_of(dtype: np.dtype[Any]) -> str:
    """What the elements of an array may be compared with."""
    entry = element_type_of(dtype)
    if entry.is_floating:
        return "float"
    if entry.is_complex:
        return "complex"
    return "pred" if entry.kind is Kind.PRED else "integer"


def digest_of(array: Array) -> Digest:
    """The digest of an array of any element type."""
    family = family_of(array.dtype)
    flat = np.ravel(array)
    if flat.size == 1:
        return _digest_of_one(flat, family)
    sums = _Sums()
    is_uniform = True
    with np.errstate(all="ignore"):
        for start in range(0, flat.size, _BLOCK):
            values, words = _numbers(flat[start : start + _BLOCK], family)
            if not start:
                first = words[0]
            is_uniform = is_uniform and bool(np.logical_and.reduce(words == first))
            sums.add(values, words, _block_weights()[: words.size], _block_factor(start // _BLOCK))
    return sums.digest(flat.size, family, is_uniform)


def digests_of(arrays: Sequence[Array]) -> list[Digest]:
    """The digests of several arrays; those of small ones are found together, in less time."""
    digests: dict[int, Digest] = {}
    alike: dict[np.dtype[Any], list[int]] = defaultdict(list)
    for place, array in enumerate(arrays):
        if 0 < array.size <= _FEW and array.dtype.kind != "c":
            alike[array.dtype].append(place)
        else:
            digests[place] = digest_of(array)
    for places in alike.values():
        most = _BLOCK // (1 + max(arrays[place].size for place in places))
        for start in range(0, len(places), most):
            some = places[start : start + most]
            digests.update(zip(some, _digests_together([arrays[place] for place in some]), strict=True))
    return [digests[place] for place in range(len(arrays))]


def _digests_together(arrays: Sequence[Array]) -> Iterator[Digest]:
    """The digests of arrays of one type. A zero stands before each, since a sum over one alone begins with zero."""
    family, zero = family_of(arrays[0].dtype), np.zeros(1, arrays[0].dtype)
    sizes = np.array([array.size for array in arrays])
    starts = np.cumsum(sizes + 1) - (sizes + 1)
    with np.errstate(all="ignore"):
        values, words = _numbers(np.concatenate([part for array in arrays for part in (zero, array.ravel())]), family)
        mixed, is_first = _mixed(words), words == np.repeat(words[starts + 1], sizes + 1)
        # Types without a zero have another number there.
        mixed[starts], values[starts], is_first[starts] = 0, 0, True
        weights = _block_weights()[np.arange(len(words)) - np.repeat(starts + 1, sizes + 1)]
        summed = [np.add.reduceat(part, starts) for part in (mixed * weights, mixed, values, np.abs(values))]
        summed += [np.add.reduceat(np.square(values), starts), np.logical_and.reduceat(is_first, starts)]
    rows = zip(arrays, *(part.tolist() for part in summed), strict=True)
    for array, in_order, in_any_order, total, magnitude, squares, is_uniform in rows:
        if math.isfinite(total):
            bad = 0, 0, 0
            yield Digest(array.size, family, in_order, in_any_order, total, magnitude, squares, bad, is_uniform)
        else:
            yield digest_of(array)


def _digest_of_one(flat: Array, family: str) -> Digest:
    """The digest of a single element, by Python's numbers, which are faster there."""
    values, words = _numbers(flat, family)
    word = (int(words[0]) + int(_INCREMENT)) % _WORDS
    for shift, factor in zip(_SHIFTS, (_FIRST, _SECOND), strict=False):
        word = (word ^ word >> int(shift)) * int(factor) % _WORDS
    word ^= word >> int(_SHIFTS[-1])
    numbers: list[float] = values.tolist()
    finite = [number for number in numbers if math.isfinite(number)]
    bad = sum(map(math.isnan, numbers)), numbers.count(math.inf), numbers.count(-math.inf)
    total, magnitude, squares = sum(finite), sum(map(abs, finite)), sum(number * number for number in finite)
    return Digest(1, family, word, word, total, magnitude, squares, bad, True)


def digest_with(digest: Digest, shape: tuple[int, ...], window: tuple[slice, ...], old: Array, new: Array) -> Digest:
    """The digest of an array of which a window has been overwritten, from its own, and what the window held and holds.

    Both digests are sums over the elements. Those in floating point are only good for an array of which what is
    overwritten is a small part; see `is_good_base`.
    """
    size = int(np.prod(shape))
    strides = [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
    places = np.zeros((), np.uint64)
    for part, stride in zip(window, strides, strict=True):
        places = np.add.outer(places, np.arange(part.start, part.stop, dtype=np.uint64) * np.uint64(stride))
    weights = _weights(places.reshape(-1))
    removed, added = _Sums(), _Sums()
    word = None
    with np.errstate(all="ignore"):
        for sums, array in ((removed, old), (added, new)):
            flat = np.ravel(array)
            for start in range(0, flat.size, _BLOCK):
                values, words = _numbers(flat[start : start + _BLOCK], digest.family)
                sums.add(values, words, weights[start : start + _BLOCK])
                word = words[:1]
        in_order = digest.in_order + added.in_order - removed.in_order
        in_any_order = digest.in_any_order + added.in_any_order - removed.in_any_order
        mixed = 0 if word is None else int(_mixed(word)[0])
    of_equal = size * mixed, _sum_of_weights(size) * mixed
    is_uniform = (in_any_order - of_equal[0]) % _WORDS == 0 and (in_order - of_equal[1]) % _WORDS == 0
    floats = zip((digest.total, digest.magnitude, digest.squares), added.floats, removed.floats, strict=True)
    nonfinite = zip(digest.nonfinite, added.nonfinite, removed.nonfinite, strict=True)
    made = _Sums(in_order, in_any_order, [a + b - c for a, b, c in floats], [a + b - c for a, b, c in nonfinite])
    return made.digest(size, digest.family, is_uniform)


def is_good_base(base: Digest, made: Digest) -> bool:
    """Whether the sums of a digest that was made from another one are as good as that one's own: cancellation would
    leave the rounding errors of what has been overwritten."""
    return all(
        math.isfinite(before) and 2 * after >= before
        for before, after in ((base.magnitude, made.magnitude), (base.squares, made.squares))
    )


@define
class _Sums:
    """The sums that a digest consists of."""

    in_order: int = 0
    in_any_order: int = 0
    floats: list[float] = attrs.field(factory=lambda: [0.0, 0.0, 0.0])
    nonfinite: list[int] = attrs.field(factory=lambda: [0, 0, 0])

    def add(self, values: Array, words: Array, weights: Array, factor: int = 1) -> None:
        """Add elements with the weights of their places, all of which are multiplied by `factor`."""
        mixed = _mixed(words)
        # Methods of arrays take longer to reach the same sums.
        add = np.add.reduce
        self.in_any_order += int(add(mixed))
        self.in_order += int(add(mixed * weights)) * factor
        total = float(add(values))
        if not math.isfinite(total):
            counts = np.isnan(values).sum(), np.isposinf(values).sum(), np.isneginf(values).sum()
            self.nonfinite = [one + int(more) for one, more in zip(self.nonfinite, counts, strict=True)]
            values = values[np.isfinite(values)]
            total = float(add(values))
        sums = total, float(add(np.abs(values))), float(add(np.square(values)))
        self.floats = [one + more for one, more in zip(self.floats, sums, strict=True)]

    def digest(self, count: int, family: str, is_uniform: bool) -> Digest:
        nans, above, below = self.nonfinite
        total, magnitude, squares = self.floats
        ordered, unordered = self.in_order % _WORDS, self.in_any_order % _WORDS
        bad = nans, above, below
        return Digest(count, family, ordered, unordered, total, magnitude, squares, bad, is_uniform)


@cache
def _block_weights() -> Array:
    """The weights of the places of the first block; 1 for the first one, so that both digests of one element are the
    same."""
    weights = _mixed(np.arange(_BLOCK, dtype=np.uint64)) | np.uint64(1)
    weights[0] = 1
    return weights


def _block_factor(block: int) -> int:
    """By what the weights of a block are those of the first one."""
    return int(_mixed(np.full(1, _BLOCK + block, np.uint64))[0] | np.uint64(1)) if block else 1


def _weights(places: Array) -> Array:
    """The weights of row-major places."""
    blocks, within = np.divmod(places, np.uint64(_BLOCK))
    factors = _mixed(blocks + np.uint64(_BLOCK)) | np.uint64(1)
    factors[blocks == 0] = 1
    return np.asarray(factors * _block_weights()[within])


def _sum_of_weights(size: int) -> int:
    """The sum of the weights of the first places, modulo 2⁶⁴ or not."""
    weights = _block_weights()
    blocks, rest = divmod(size, _BLOCK)
    factors = sum(map(_block_factor, range(blocks)))
    return factors * int(weights.sum()) + _block_factor(blocks) * int(weights[:rest].sum())


def _numbers(block: Array, family: str) -> tuple[Array, Array]:
    """A block's numbers in f64 (complex: both parts, integers: as they count), and a word of 64 bits for each."""
    values = wide(block)
    if family == "complex":
        parts = np.ascontiguousarray(values).view(np.float64)
        words = _words(parts)
        # The parts of one number belong together.
        return parts, _mixed(words[0::2]) + _mixed(words[1::2]) * np.uint64(3)
    if family == "float":
        return values, _words(values)
    integers = values.astype(np.uint64 if values.dtype.kind == "u" else np.int64)
    return integers.astype(np.float64), integers.view(np.uint64)


def _words(values: Array) -> Array:
    """The bits of f64 numbers, zeros and NaNs being one each."""
    plain = values + 0.0
    bad = np.isnan(plain)
    if np.logical_or.reduce(bad):
        plain[bad] = np.nan
    return np.ascontiguousarray(plain).view(np.uint64)


def _mixed(words: Array) -> Array:
    """SplitMix64's finalizer, so that sums of words tell much about them."""
    mixed = words + _INCREMENT
    mixed ^= mixed >> _SHIFTS[0]
    mixed *= _FIRST
    mixed ^= mixed >> _SHIFTS[1]
    mixed *= _SECOND
    mixed ^= mixed >> _SHIFTS[2]
    return mixed


_FINITE = (0, 0, 0)


class DigestTable:
    """Digests by number; what follows from the arrays' shapes and types aside."""

    def __init__(self) -> None:
        self._in_order = column("Q")
        self._in_any_order = column("Q")
        self._sums = column("d")
        self._is_uniform = column("b")
        self._nonfinite: dict[int, tuple[int, int, int]] = {}

    def append(self) -> None:
        """Make room for one more."""
        self._in_order.append(0)
        self._in_any_order.append(0)
        self._sums.extend((0.0, 0.0, 0.0))
        self._is_uniform.append(0)

    def __setitem__(self, number: int, digest: Digest) -> None:
        if digest.nonfinite != _FINITE:
            self._nonfinite[number] = digest.nonfinite
        self._in_order[number], self._in_any_order[number] = digest.in_order, digest.in_any_order
        self._sums[3 * number : 3 * number + 3] = column("d", (digest.total, digest.magnitude, digest.squares))
        self._is_uniform[number] = digest.is_uniform

    def of(self, number: int, count: int, family: str) -> Digest:
        """The digest of that number, of an array of so many elements of a family."""
        total, magnitude, squares = self._sums[3 * number : 3 * number + 3]
        return Digest(
            count,
            family,
            self._in_order[number],
            self._in_any_order[number],
            total,
            magnitude,
            squares,
            self.nonfinite(number),
            bool(self._is_uniform[number]),
        )

    def in_any_order(self, number: int) -> int:
        return self._in_any_order[number]

    def in_order(self, number: int) -> int:
        return self._in_order[number]

    def nonfinite(self, number: int) -> tuple[int, int, int]:
        return self._nonfinite.get(number, _FINITE)

    def columns(self) -> tuple[Array, Array, Array]:
        """All `in_order`, all `in_any_order`, and rows of (total, magnitude, squares)."""
        return np.array(self._in_order), np.array(self._in_any_order), np.array(self._sums).reshape(-1, 3)


Window = tuple[slice, ...]

_CHUNK = 1 << 20
_SMALL = 1 << 16
"""Arrays of at most so many bytes are packed."""
_LEAST = 1 << 13
"""Of arrays of fewer bytes, no windows are kept; they are packed."""
_SHARE = 4
"""A window is kept alone if the array is so many times as large."""
_RECENT = 4096
_MOST_WHOLE = 2
"""How many arrays are kept whole that were put together of windows: a replay walks along two runs."""
_WHOLE, _OVERWRITTEN = -1, -2
"""In place of a place: where the array is kept as it is, and where a window of another is."""


@frozen
class _Layout:
    """How an array's elements lie."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    strides: tuple[int, ...]


@frozen(eq=False)
class _Overwriting:
    """An array that differs from another one in a window."""

    base: int
    window: Window
    value: int
    """What the window holds."""


class Arrays:
    """Arrays and their digests, by number."""

    def __init__(self, most_bytes: int | None = None) -> None:
        self.most_bytes = most_bytes
        """What they may take, where that is given."""
        self.byte_size = 0
        """What the arrays keep alive."""
        self._digests = DigestTable()
        self._to_come: list[int] = []
        """The arrays whose digests have yet to be made: those of many together take less time."""
        self._known_digests: dict[int, Digest] = {}
        self._layouts: list[_Layout] = []
        self._sizes: list[tuple[int, str]] = []
        self._layout_numbers: dict[_Layout, int] = {}
        self._layout = column("i")
        self._place = column("q")
        self._chunks: list[Array] = []
        self._used = _CHUNK
        self._recent: dict[tuple[int, int], int] = {}
        self._whole: dict[int, Array] = {}
        self._owners: set[int] = set()
        self._overwriting: dict[int, _Overwriting] = {}
        self._put_together: OrderedDict[int, Array] = OrderedDict()
        self._shown: tuple[int, weakref.ref[Array]] | None = None

    @cached_property
    def room(self) -> int | None:
        """What they may take, by what was free when this was asked first where it is not given; None if unknown."""
        return memory_limit_bytes(self.most_bytes)

    def __len__(self) -> int:
        return len(self._layout)

    def __getitem__(self, number: int) -> Array:
        place, layout = self._place[number], self._layouts[self._layout[number]]
        if place >= 0:
            array = np.ndarray(
                layout.shape, layout.dtype, self._chunks[place // _CHUNK], place % _CHUNK, layout.strides
            )
        elif place == _WHOLE:
            return self._whole[number]
        else:
            recent_array = self._shown[1]() if self._shown is not None and self._shown[0] == number else None
            if recent_array is not None:
                return recent_array
            array = self._together(number).copy(order="K")
            self._shown = (number, weakref.ref(array))
        array.flags.writeable = False
        return array

    def shape(self, number: int) -> tuple[int, ...]:
        return self._layouts[self._layout[number]].shape

    def dtype(self, number: int) -> np.dtype[Any]:
        return self._layouts[self._layout[number]].dtype

    def size(self, number: int) -> tuple[int, str]:
        """How many elements an array has, and of which family."""
        return self._sizes[self._layout[number]]

    def layouts(self, numbers: Array) -> Array:
        """In which of several ways the elements of arrays lie."""
        return np.array(self._layout)[numbers]

    def types(self, count: int, family: str) -> dict[int, np.dtype[Any]]:
        """The ways in which so many elements of a family lie, and their types."""
        return {
            place: layout.dtype
            for place, (layout, size) in enumerate(zip(self._layouts, self._sizes, strict=True))
            if size == (count, family)
        }

    @property
    def digests(self) -> DigestTable:
        """Those of all arrays."""
        if self._to_come:
            self._make_digests()
        return self._digests

    def _make_digests(self) -> None:
        for number, digest in zip(
            self._to_come, digests_of([self[array_number] for array_number in self._to_come]), strict=True
        ):
            self._digests[number] = digest
        self._to_come = []

    def digest(self, number: int) -> Digest:
        digest = self._known_digests.get(number)
        if digest is None:
            if len(self._known_digests) == _RECENT:
                self._known_digests.clear()
            digest = self._known_digests[number] = self.digests.of(number, *self.size(number))
        return digest

    def add(self, array: Array, digest: Digest | None = None) -> int:
        """The number of an array; of one that was added a short while ago, the one that it has already. Its digest is
        made when it is asked for, unless it is given."""
        kept = array
        if 0 in array.strides and array.size:
            # What a broadcast repeats is kept once.
            kept = array[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in array.strides)]
        if kept.nbytes > _SMALL:
            self._keep(array)
            self._whole[len(self)] = array
            return self._append(array.shape, array.dtype, array.strides, _WHOLE, digest)
        if not kept.flags.c_contiguous:
            kept = kept.copy(order="K")
        strides = tuple(0 if old == 0 else new for old, new in zip(array.strides, kept.strides, strict=True))
        content = kept.tobytes()
        key = (hash(content), kept.nbytes)
        recent_number = self._recent.get(key)
        if recent_number is not None and content == self._packed(recent_number, kept.nbytes):
            layout = self._layouts[self._layout[recent_number]]
            if (layout.shape, layout.dtype, layout.strides) == (array.shape, array.dtype, strides):
                return recent_number
            if kept.flags.c_contiguous:
                return self._append(array.shape, array.dtype, strides, self._place[recent_number], digest)
        if kept.flags.c_contiguous:
            self._recent[key] = len(self)
            if len(self._recent) > _RECENT:
                self._recent.clear()
        return self._append(array.shape, array.dtype, strides, self._pack(kept), digest)

    def add_overwritten(self, base: int, window: Window, old: Array, array: Array) -> int | None:
        """The number of an array that differs from another one in a window, which had `old` in it; None where it is
        better added whole."""
        value = np.ascontiguousarray(array[window])
        if not is_worth_it(array.nbytes, value.nbytes):
            return None
        before = self.digest(base)
        digest = digest_with(before, array.shape, window, old, value)
        if not is_good_base(before, digest):
            return None
        held = self.add(value)
        self._overwriting[len(self)] = _Overwriting(base, window, held)
        return self._append(array.shape, array.dtype, array.strides, _OVERWRITTEN, digest)

    def window(self, number: int, window: Window) -> Array:
        """A window of an array."""
        if self._place[number] == _OVERWRITTEN:
            return self._together(number)[window].copy()
        return self[number][window]

    def _together(self, number: int) -> Array:
        """An array that is made of windows. It is overwritten in turn when one that follows from it is asked for, so
        that walking along a run costs no more than the windows."""
        pending = []
        while number not in self._put_together and self._place[number] == _OVERWRITTEN:
            pending.append(number)
            number = self._overwriting[number].base
        whole = self._put_together.pop(number, None)
        if whole is None:
            base = self[number]
            whole = base.copy(order="K" if all(base.strides) else "C")
        for number in reversed(pending):
            entry = self._overwriting[number]
            whole[entry.window] = self[entry.value]
        self._put_together[number] = whole
        if len(self._put_together) > _MOST_WHOLE:
            self._put_together.popitem(last=False)
        return whole

    def _append(
        self, shape: tuple[int, ...], dtype: np.dtype[Any], strides: tuple[int, ...], place: int, digest: Digest | None
    ) -> int:
        layout = _Layout(shape, dtype, strides)
        layout_number = self._layout_numbers.setdefault(layout, len(self._layouts))
        if layout_number == len(self._layouts):
            self._layouts.append(layout)
            self._sizes.append((math.prod(shape), family_of(dtype)))
        self._layout.append(layout_number)
        self._place.append(place)
        number = len(self) - 1
        self._digests.append()
        if digest is None:
            self._to_come.append(number)
        else:
            self._digests[number] = digest
        if len(self._to_come) >= _RECENT:
            self._make_digests()
        return number

    def _pack(self, kept: Array) -> int:
        """The place of a copy of a small array."""
        alignment = 64 if kept.nbytes >= 64 else 8
        start = -(-self._used // alignment) * alignment
        if start + max(kept.nbytes, 1) > _CHUNK:
            self._chunks.append(np.empty(_CHUNK, np.uint8))
            start = 0
        self._used = start + kept.nbytes
        self.byte_size += kept.nbytes
        np.ndarray(kept.shape, kept.dtype, self._chunks[-1], start, kept.strides)[...] = kept
        return (len(self._chunks) - 1) * _CHUNK + start

    def _packed(self, number: int, size: int) -> bytes:
        place = self._place[number]
        return self._chunks[place // _CHUNK][place % _CHUNK : place % _CHUNK + size].tobytes()

    def _keep(self, array: Array) -> None:
        """Count the memory that an array keeps alive."""
        owner = owner_of(array)
        if id(owner) not in self._owners:
            self._owners.add(id(owner))
            self.byte_size += owner.nbytes


def is_worth_it(size: int, part: int) -> bool:
    """Whether of an array of so many bytes only a window of so many is worth keeping."""
    return size >= max(_LEAST, _SHARE * part)
