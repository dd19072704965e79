"""Lifetimes of objects: what is remembered as long as one lives, and how Python's cyclic garbage collector is paused.

Collections while a large structure is built only cost time: they traverse it repeatedly, and find nothing to free.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar


@contextmanager
def collection_paused() -> Iterator[None]:
    """No cyclic garbage is collected within, in any thread; reference counts free things as ever."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if gc.get_freeze_count() == 0:
                # Moves everything to the oldest generation without a walk; the next collection would walk all of it.
                gc.freeze()
                gc.unfreeze()
            gc.enable()


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
