"""Pausing Python's cyclic garbage collector while a large structure is built.

Collections during construction only cost time: they traverse the whole structure repeatedly and find nothing to free.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


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
