"""Matrix products on one thread."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from hloexec.openblas import openblas_function
from hloexec.ops import blas
from hloexec.ops.blas import one_blas_thread

controls = openblas_function("get_num_threads"), openblas_function("set_num_threads")
needs_openblas = pytest.mark.skipif(None in controls, reason="NumPy's BLAS is not OpenBLAS")


@needs_openblas
def test_the_limit_holds_until_its_last_user_leaves() -> None:
    get, put = controls
    before = get()
    put(2)
    try:
        inside, done = threading.Event(), threading.Event()

        def other() -> None:
            with one_blas_thread():
                inside.set()
                done.wait()

        thread = threading.Thread(target=other)
        with one_blas_thread():
            assert get() == 1
            thread.start()
            inside.wait()
        assert get() == 1
        done.set()
        thread.join()
        assert get() == 2
    finally:
        put(before)


@needs_openblas
def test_the_limit_ends_with_an_error() -> None:
    before = controls[0]()
    with pytest.raises(ValueError, match="x"), one_blas_thread():
        raise ValueError("x")
    assert controls[0]() == before


def test_without_openblas_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blas, "openblas_function", lambda verb: None)
    with one_blas_thread():
        assert (np.ones((2, 3)) @ np.ones((3, 2)) == 3).all()
