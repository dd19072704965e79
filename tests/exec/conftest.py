"""Garbage of single tests."""

import gc
from collections.abc import Callable, Iterator
from functools import partial

import pytest


@pytest.fixture
def garbage_of_this_test() -> Iterator[Callable[[], object]]:
    """Collects it: what is made while Python collects nothing stays among the young objects, which are searched alone."""
    gc.disable()
    yield partial(gc.collect, 1)
    gc.enable()
