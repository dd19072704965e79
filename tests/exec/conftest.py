"""Garbage of single tests."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest


@pytest.fixture
def garbage_of_this_test() -> Iterator[Callable[[], object]]:
    """Collects it, without a walk over all that other tests have left."""
    gc.freeze()
    yield gc.collect
    gc.unfreeze()
