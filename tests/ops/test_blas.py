"""Products on one thread of BLAS."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from hloexec.core.process import openblas_function, openblas_libraries
from hloexec.ops import resources
from hloexec.ops.resources import hold_blas, matmul, single_threaded_blas

Threads = tuple[Callable[[], int], Callable[[int], None]]


@pytest.fixture
def numpys_threads() -> Iterator[Threads]:
    """What tells and sets the number of threads of NumPy's BLAS, which has two within."""
    np.ones((2, 2)) @ np.ones((2, 2))
    libraries = [path for path in openblas_libraries() if "numpy" in path]
    if not libraries:
        pytest.skip("NumPy's BLAS is not OpenBLAS")
    get, put = (openblas_function(libraries[0], verb) for verb in ("get_num_threads", "set_num_threads"))
    assert get is not None and put is not None
    before = get()
    put(2)
    yield get, put
    put(before)


def test_the_limit_holds_until_its_last_user_leaves(numpys_threads: Threads) -> None:
    get, _ = numpys_threads
    inside, done = threading.Event(), threading.Event()

    def other() -> None:
        with single_threaded_blas():
            inside.set()
            done.wait()

    thread = threading.Thread(target=other)
    with single_threaded_blas():
        assert get() == 2
        matmul(np.ones((2, 3)), np.ones((3, 2)))
        assert get() == 1
        thread.start()
        inside.wait()
    assert get() == 1
    done.set()
    thread.join()
    assert get() == 2


def test_the_limit_ends_with_an_error(numpys_threads: Threads) -> None:
    with pytest.raises(ValueError, match="x"), single_threaded_blas():
        hold_blas()
        raise ValueError("x")
    assert numpys_threads[0]() == 2


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit that knows of no library yet."""
    monkeypatch.setattr(resources, "_limit", resources._SingleThreaded())


@pytest.mark.usefixtures("limit")
def test_libraries_are_looked_for_once_and_where_there_may_be_a_new_one(
    monkeypatch: pytest.MonkeyPatch, numpys_threads: Threads
) -> None:
    found = []
    monkeypatch.setattr(resources, "openblas_libraries", lambda: found.append(openblas_libraries()) or found[-1])
    for is_new, searches in ((False, 1), (False, 1), (True, 2), (False, 2)):
        with single_threaded_blas():
            hold_blas(is_new=is_new)
            assert numpys_threads[0]() == 1
        assert numpys_threads[0]() == 2
        assert len(found) == searches


@pytest.mark.usefixtures("limit")
def test_without_openblas_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "openblas_libraries", list)
    with single_threaded_blas():
        assert (matmul(np.ones((2, 3)), np.ones((3, 2))) == 3).all()


def test_products_of_equal_matrices_do_not_depend_on_sharing_memory() -> None:
    for matrix in (np.random.default_rng(1).standard_normal((70, 90), np.float32) for _ in range(3)):
        values: list[Any] = [matmul(matrix, other.T).tobytes() for other in (matrix, matrix.copy(), matrix[:])]
        assert len(set(values)) == 1
