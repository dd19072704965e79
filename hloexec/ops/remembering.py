"""What is found out about an object once and remembered for as long as the object lives."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

_Found = TypeVar("_Found")


def remembered(find: Callable[[Any], _Found]) -> Callable[[Any], _Found]:
    """A function of one object that is called once for each: objects are told apart by identity, not by value."""
    known: dict[int, tuple[weakref.ref[Any], _Found]] = {}

    @wraps(find)
    def found(about: Any) -> _Found:
        key = id(about)
        entry = known.get(key)
        if entry is None or entry[0]() is not about:
            entry = known[key] = weakref.ref(about, lambda _: known.pop(key, None)), find(about)
        return entry[1]

    return found
