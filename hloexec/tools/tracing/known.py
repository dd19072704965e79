"""Caching what has been computed for arrays that occur repeatedly.

The same array object passes through parameters, tuples, fusions and loops, each of which is an event of its own. In an
observed run, no array that an observer has seen is overwritten, so cached results stay valid.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

from hloexec.core.values import Array

_T = TypeVar("_T")


class KnownArrays(Generic[_T]):
    """The latest results of a function of arrays, by the array's identity; no array is kept alive."""

    def __init__(self, function: Callable[[Array], _T], most: int = 4096) -> None:
        self._function = function
        self._most = most
        self._results: OrderedDict[int, tuple[weakref.ref[Array], _T]] = OrderedDict()

    def __call__(self, array: Array) -> _T:
        known = self._results.get(id(array))
        if known is not None and known[0]() is array:
            self._results.move_to_end(id(array))
            return known[1]
        result = self._function(array)
        self._results[id(array)] = (weakref.ref(array), result)
        if len(self._results) > self._most:
            self._results.popitem(last=False)
        return result
