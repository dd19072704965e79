"""Reducers that only compare and choose, as argmin and argmax do: what they amount to, found out by trying them.

What such a reducer does depends on the order of its arguments alone. So a few values that stand for all numbers there
are, in every combination, tell all there is to know: trying them is a proof.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hloexec.core.dtypes import ElementType, Kind
from hloexec.core.lifetimes import remembered
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.common import array_shape, widen
from hloexec.ops.reduction.reducers import chooses_by_order
from hloexec.ops.registry import Callee
from hloexec.ops.signatures import called
from hloexec.ops.threads import in_blocks

_BLOCK_ELEMENTS = 1 << 17


@frozen
class Choice:
    """What is known of a reducer that chooses by order."""

    is_associative: bool
    """Whether choosing among three does not depend on the grouping."""
    place: Callable[..., Any] | None = None
    """`np.argmin` or `np.argmax` where the reducer takes values with places, and chooses the least or the greatest
    value, or the first NaN, with its place; of equal values the lowest place, or the first one's."""
    takes_last: bool = False
    """Whether, of equal values, the last one is taken: the bits of zeros differ."""

    def chosen(self, rows: Sequence[Array]) -> tuple[Array, Array] | None:
        """Of rows of values and of places, what is chosen in each row; None where places do not rise along rows."""
        if self.place is None:
            return None
        values, places = rows
        count, length = values.shape
        is_one_row = not places.strides[0]
        if is_one_row and not _rise(places[:1]):
            return None
        if values.size <= _BLOCK_ELEMENTS:
            return self._of_rows(values, places) if is_one_row or _rise(places) else None
        taken, taken_places = np.empty(count, values.dtype), np.empty(count, places.dtype)
        unsorted: list[int] = []

        def search(start: int, stop: int) -> None:
            if unsorted or not (is_one_row or _rise(places[start:stop])):
                unsorted.append(start)
                return
            taken[start:stop], taken_places[start:stop] = self._of_rows(values[start:stop], places[start:stop])

        in_blocks(search, count, max(1, _BLOCK_ELEMENTS // length))
        return None if unsorted else (taken, taken_places)

    def decides(self, init_value: Array, chosen: Array) -> bool:
        """Whether what is chosen in each row is also chosen after an initial value, which it is beyond."""
        first, second = (chosen, init_value) if self.place is np.argmax else (init_value, chosen)
        return bool((widen(first) > widen(second)).all())

    def _of_rows(self, values: Array, places: Array) -> tuple[Array, Array]:
        """The same, of rows along which places do rise."""
        assert self.place is not None
        wide = widen(values)
        every = np.arange(len(values))
        found = self.place(wide, axis=1)
        taken = values[every, found]
        if self.takes_last and values.dtype.kind not in "iub" and not widen(taken).all():
            zeros = np.flatnonzero(widen(taken) == 0)
            backwards = np.argmax(wide[zeros, ::-1] == 0, axis=1)
            taken[zeros] = values[zeros, values.shape[1] - 1 - backwards]
        return taken, places[every, found]


def _rise(rows: Array) -> bool:
    return bool((rows[:, 1:] > rows[:, :-1]).all())


_NONE = Choice(False)


@remembered
def choice_of(callee: Callee) -> Choice:
    """What a reducer is as one that chooses by order; that is also a matter of the policy that it runs under."""
    computation = callee.computation
    count = len(computation.parameters) // 2
    if count > 2 or not chooses_by_order(computation):
        return _NONE
    types = [array_shape(shape, "a parameter").element_type for shape in computation.parameter_shapes[:count]]
    values = [_representatives(entry) for entry in types]
    is_associative = _is_associative(callee, values)
    if count < 2 or not is_associative or types[0].is_complex or types[1].storage.kind not in "iu":
        return Choice(is_associative)
    pair = _told_apart(values[0], types[0]), np.arange(3).astype(types[1].storage)
    grids = [grid.reshape(-1) for grid in np.meshgrid(*pair, *pair, indexing="ij")]
    given = _bits(called(callee, *grids))
    for place in (np.argmin, np.argmax):
        for takes_last in (False, True):
            for takes_first_place in (False, True):
                expected = _chosen_of_two(
                    grids, is_greatest=place is np.argmax, takes_last=takes_last, takes_first_place=takes_first_place
                )
                if given == _bits(expected):
                    return Choice(True, place, takes_last)
    return Choice(True)


def _is_associative(callee: Callee, values: Sequence[Array]) -> bool:
    """Three values take part in regrouping, so three different numbers, both zeros and NaN stand for all numbers."""
    count = len(values)
    grids = np.meshgrid(*list(values) * 3, indexing="ij")
    a, b, c = ([grid.reshape(-1) for grid in grids[k * count : (k + 1) * count]] for k in range(3))
    left = called(callee, *called(callee, *a, *b), *c)
    right = called(callee, *a, *called(callee, *b, *c))
    return _bits(left) == _bits(right)


def _told_apart(values: Array, element_type: ElementType) -> Array:
    """The values, the smallest denormal number, which may be flushed, and a second NaN of other bits, if there is
    one."""
    if not element_type.is_floating:
        return values
    bits = values.view(f"u{values.itemsize}")
    denormal, other = np.ones(1, bits.dtype).view(values.dtype), (bits[:1] ^ 1).view(values.dtype)
    return np.concatenate([values, denormal, other] if np.isnan(widen(other))[0] else [values, denormal])


def _chosen_of_two(
    pairs: Sequence[Array], *, is_greatest: bool, takes_last: bool, takes_first_place: bool
) -> tuple[Array, Array]:
    """The definition of what `Choice` says of a reducer with a `place`, for pairs of values and places."""
    value, place, other, other_place = pairs
    x, y = widen(value), widen(other)
    is_first = (x > y if is_greatest else x < y) | (x != x)
    is_tie = x == y
    return (
        np.where(is_first | (is_tie & (not takes_last)), value, other),
        np.where(is_first | (is_tie & (takes_first_place | (place < other_place))), place, other_place),
    )


def _bits(results: Sequence[Array]) -> list[bytes]:
    return [np.ascontiguousarray(result).tobytes() for result in results]


def _representatives(element_type: ElementType) -> Array:
    if element_type.kind is Kind.PRED:
        return np.array([False, True])
    if element_type.is_floating:
        return np.array([np.nan, -1, -0.0, 0.0, 1], np.float32).astype(element_type.storage)
    return np.array([0, 1, 2], element_type.compute).astype(element_type.storage)
