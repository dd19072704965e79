"""Work in blocks on all cores."""

import threading
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from hloexec.ops import resources
from hloexec.ops.resources import in_blocks, in_pieces


@pytest.fixture(params=[1, 2, 5])
def cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(resources, "core_count", lambda: request.param)
    resources._pool.cache_clear()
    yield request.param
    resources._pool().shutdown()
    resources._pool.cache_clear()


@pytest.mark.parametrize(("count", "block"), [(0, 3), (1, 3), (3, 3), (10, 3), (100, 1)])
def test_blocks_cover_a_range_once(cores: int, count: int, block: int) -> None:
    times = np.zeros(count, np.int64)
    sizes = []

    def work(start: int, stop: int) -> None:
        times[start:stop] += 1
        sizes.append(stop - start)

    in_blocks(work, count, block)
    assert (times == 1).all()
    assert max(sizes, default=0) <= block


def test_work_for_one_thread_stays_on_that_of_the_caller(cores: int) -> None:
    found: set[int] = set()
    in_blocks(lambda start, stop: found.add(threading.get_ident()), 40, 1, threads=1)
    assert found == {threading.get_ident()}


def test_blocks_within_blocks_finish(cores: int) -> None:
    times = np.zeros((20, 20), np.int64)

    def row(start: int, stop: int) -> None:
        for number in range(start, stop):
            in_blocks(lambda a, b, line=times[number]: line[a:b].__iadd__(1), 20, 3)

    in_blocks(row, 20, 1)
    assert (times == 1).all()


def test_an_error_reaches_the_caller_after_all_threads_have_stopped(cores: int) -> None:
    running = set()

    def work(start: int, stop: int) -> None:
        running.add(threading.get_ident())
        try:
            if start >= 7:
                raise ValueError(f"block {start}")
        finally:
            running.discard(threading.get_ident())

    with pytest.raises(ValueError, match="block"):
        in_blocks(work, 1000, 1)
    assert not running
    # And the pool still works.
    done = []
    in_blocks(lambda start, stop: done.append(start), 10, 1)
    assert sorted(done) == list(range(10))


def test_a_run_does_not_wait_for_threads_that_work_for_another(cores: int) -> None:
    may_end, has_begun = threading.Event(), threading.Event()

    def wait(start: int, stop: int) -> None:
        has_begun.set()
        assert may_end.wait(30)

    other = threading.Thread(target=in_blocks, args=(wait, max(2, 2 * cores), 1))
    other.start()
    try:
        assert has_begun.wait(30)
        done: list[int] = []
        in_blocks(lambda start, stop: done.append(start), 100, 1)
        assert sorted(done) == list(range(100))
        assert other.is_alive()
    finally:
        may_end.set()
        other.join()


def test_blocks_are_worked_through_where_no_thread_can_be_started(cores: int) -> None:
    in_blocks(lambda start, stop: None, 10, 1)
    resources._pool().shutdown()
    done: list[int] = []
    in_blocks(lambda start, stop: done.append(start), 100, 1)
    assert sorted(done) == list(range(100))
    assert not resources._callers


@pytest.mark.parametrize(
    ("variable", "quota", "expected"),
    [
        ("3", "max 100000", 3), (" 16,2", "100000 100000", 16), ("1", "", 1),
        ("0", "max 100000", 8), ("-1", "", 8), ("many", "250000 100000", 3), ("", "100 100000", 1), ("", "a b", 8),
        ("", "200000 0", 8), ("", "1600000 100000", 8),
    ],
)  # fmt: skip
def test_the_environment_the_affinity_and_the_quota_say_how_many_threads_there_are(
    variable: str, quota: str, expected: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    monkeypatch.setattr(resources.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(resources, "_CONTROL_GROUP", tmp_path / "cpu.max")
    (tmp_path / "cpu.max").write_text(quota)
    assert resources.core_count.__wrapped__() == expected


def test_threads_keep_the_callers_error_state(cores: int) -> None:
    zeros = np.zeros(64)
    result = np.empty(64)
    with np.errstate(divide="raise"), pytest.raises(FloatingPointError):
        in_blocks(lambda a, b: np.divide(1, zeros[a:b], out=result[a:b]), 64, 1)
    with np.errstate(divide="ignore"):
        in_blocks(lambda a, b: np.divide(1, zeros[a:b], out=result[a:b]), 64, 1)
    assert np.isinf(result).all()


@pytest.mark.parametrize("size", [0, 10, 1 << 15, (1 << 15) + 1, 100_003])
def test_pieces_make_the_whole(cores: int, size: int) -> None:
    lhs, rhs = np.arange(size, dtype=np.int64), np.arange(size, dtype=np.int64)[::-1].copy()
    result = in_pieces(lambda a, b: (a * b).astype(np.int32), np.int32, lhs, rhs)
    assert result.dtype == np.int32
    assert_array_equal(result, (lhs * rhs).astype(np.int32))
    turned = np.arange(90_000).reshape(300, 300).T
    assert_array_equal(in_pieces(np.negative, np.int64, turned), -turned)
