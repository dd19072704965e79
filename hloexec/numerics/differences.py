"""How far two values of one shape are from each other, leaf by leaf."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np

from hloexec.dtypes import element_type_of
from hloexec.ops.common import widen
from hloexec.values import Array

__all__ = ["Difference", "result_differences"]


@attrs.frozen
class Difference:
    """What differs in one leaf."""

    index: str
    """The leaf's place: `0`, `1.0`, or `value` where there is but one."""
    expected_shape: str
    shape: str
    different: int
    """How many elements are not the same; NaNs are, whatever their bits. 0 where the shapes differ."""
    count: int
    largest: float
    """The largest magnitude of a difference; NaN where one side is."""

    def __str__(self) -> str:
        if self.shape != self.expected_shape:
            return f"{self.index}: {self.shape}, but the snapshot has {self.expected_shape}"
        return (
            f"{self.index}: {self.different} of {self.count} elements differ from the snapshot's, by at most "
            f"{self.largest:.3g}"
        )


def result_differences(actual: Any, expected: Any) -> list[Difference]:
    """What differs between a result and the one that is expected, with an entry for each leaf that does."""
    mine, its = dict(_leaves(actual, ())), dict(_leaves(expected, ()))
    found = []
    for index in sorted(mine.keys() | its.keys()):
        left, right = mine.get(index), its.get(index)
        shapes = _shape_text(left), _shape_text(right)
        name = ".".join(map(str, index)) or "value"
        if left is None or right is None or shapes[0] != shapes[1]:
            found.append(Difference(name, shapes[1], shapes[0], 0, 0, np.nan))
            continue
        x, y = (widen(np.asarray(leaf)) for leaf in (left, right))
        differs = ~((x == y) | ((x != x) & (y != y)))
        if differs.any():
            with np.errstate(all="ignore"):
                wide = [side[differs].astype(np.complex128 if x.dtype.kind == "c" else np.float64) for side in (x, y)]
                largest = float(np.abs(wide[0] - wide[1]).max())
            found.append(Difference(name, shapes[1], shapes[0], int(differs.sum()), differs.size, largest))
    return found


def _leaves(value: Any, index: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], Array]]:
    """The arrays of a value, tokens left out."""
    if isinstance(value, tuple):
        for number, part in enumerate(value):
            yield from _leaves(part, (*index, number))
    elif isinstance(value, (np.ndarray, np.generic)):
        yield index, np.asarray(value)


def _shape_text(array: Array | None) -> str:
    if array is None:
        return "nothing"
    return f"{element_type_of(array.dtype).name}[{','.join(map(str, array.shape))}]"
