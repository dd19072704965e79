"""Arrays by number, in little memory.

Most arrays of a long run are small, and cost more as objects than as numbers: those are packed together. A window of a
large array that is overwritten in each of many iterations would take the square of their number: of the result, only
what was written is kept, and the whole is put together again when it is asked for.

Digests in columns: a digest as an object takes five times as much.
"""

from __future__ import annotations

import math
import weakref
from array import array as column
from collections import OrderedDict
from typing import Any

import numpy as np

from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.resources import owner_of
from hloexec.tools.diffing.digests import Digest, digest_with, digests_of, family_of, is_good_base

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

    def __init__(self) -> None:
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

    def __len__(self) -> int:
        return len(self._layout)

    def __getitem__(self, number: int) -> Array:
        place, layout = self._place[number], self._layouts[self._layout[number]]
        if place >= 0:
            found = np.ndarray(
                layout.shape, layout.dtype, self._chunks[place // _CHUNK], place % _CHUNK, layout.strides
            )
        elif place == _WHOLE:
            return self._whole[number]
        else:
            known = self._shown[1]() if self._shown is not None and self._shown[0] == number else None
            if known is not None:
                return known
            found = self._together(number).copy(order="K")
            self._shown = (number, weakref.ref(found))
        found.flags.writeable = False
        return found

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
        for number, digest in zip(self._to_come, digests_of([self[each] for each in self._to_come]), strict=True):
            self._digests[number] = digest
        self._to_come = []

    def digest(self, number: int) -> Digest:
        found = self._known_digests.get(number)
        if found is None:
            if len(self._known_digests) == _RECENT:
                self._known_digests.clear()
            found = self._known_digests[number] = self.digests.of(number, *self.size(number))
        return found

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
        known = self._recent.get(key)
        if known is not None and content == self._packed(known, kept.nbytes):
            layout = self._layouts[self._layout[known]]
            if (layout.shape, layout.dtype, layout.strides) == (array.shape, array.dtype, strides):
                return known
            if kept.flags.c_contiguous:
                return self._append(array.shape, array.dtype, strides, self._place[known], digest)
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
        known = self._layout_numbers.setdefault(layout, len(self._layouts))
        if known == len(self._layouts):
            self._layouts.append(layout)
            self._sizes.append((math.prod(shape), family_of(dtype)))
        self._layout.append(known)
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
