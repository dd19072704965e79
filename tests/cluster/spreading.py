"""A plugin of pytest's: tests run on all ranks of MPI alike, and what they run on several devices is spread over them.

Each rank compares the results of all devices, bit for bit, with those of a single process, and errors by their text.
Rank 0 compares what an observer is shown, too, of a run that the others take part in.
"""

import os
import re
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hloexec
from hloexec.core.tree import leaves
from hloexec.engine.exec import handing
from hloexec.engine.exec.lockstep import parcels, ranks, serving
from hloexec.engine.exec.running import driven

COMM = MPI.COMM_WORLD
WATCHED = "HLOEXEC_WATCH" in os.environ
OWN = ("observers", "statistics", "infeed", "outfeed", "host_transfers", "max_iterations", "timeout", "memory_limit")
"""Options with which only the own devices are seen, or that tell of one process."""
_run_devices = hloexec.run_devices
_counts = {"spread": 0, "errors": 0, "watched": 0}


def _outcome(*arguments: Any, **options: Any) -> Any:
    try:
        return _run_devices(*arguments, **options)
    except hloexec.HloError as error:
        return error


def _bits(value: Any) -> list[Any]:
    return [
        (index, str(leaf.dtype), leaf.shape, leaf.tobytes()) if isinstance(leaf, np.ndarray) else (index, str(leaf))
        for index, leaf in leaves(value)
    ]


def _without_devices(error: Exception) -> str:
    """What an error tells, without the devices and the iteration of a kernel that failed: a rank tells of its own."""
    text = str(error)
    return re.sub(r"(?<=\w)\[\d+\](?=:\w)| on devices? [\d–, ]+(?=: )", "", text) if " failed" in text else text


def run_devices(module: Any, inputs: Any, **options: Any) -> Any:
    if "HLOEXEC_NUMERICS" in os.environ and "numerics" not in options:
        # What the tests expect is what the usual policy gives.
        if not any(options.get(name) for name in OWN):
            _compare(module, inputs, options | {"numerics": os.environ["HLOEXEC_NUMERICS"]})
        return _run_devices(module, inputs, **options)
    expected = _compare(module, inputs, options)
    if isinstance(expected, Exception):
        raise expected
    return expected


class _Log:
    """What a run has shown: events, with which of the arrays that were there before their operands are."""

    def __init__(self) -> None:
        self.lines: list[Any] = []
        self._arrays: list[Any] = []
        self._numbers: dict[int, int] = {}

    def on_instruction(self, event: hloexec.Event) -> None:
        self.lines.append((event.name, event.devices, self._seen(event.value), self._seen(event.operands)))

    def _seen(self, value: Any) -> list[Any]:
        seen = []
        for _, leaf in leaves(value):
            self._arrays.append(leaf)
            number = self._numbers.setdefault(id(leaf), len(self._numbers))
            seen.append((number, leaf.shape, leaf.tobytes()) if isinstance(leaf, np.ndarray) else str(leaf))
        return seen


def _compare_watched(module: Any, inputs: Any, options: dict[str, Any]) -> None:
    """What an observer is shown where ranks take part in the run, and in a single process."""
    if COMM.rank:
        serving.serve(COMM)
        return
    own, expected = _Log(), _Log()
    options = {name: value for name, value in options.items() if name != "observers"}
    driver = serving.Driver(COMM)
    try:
        with driven(driver):
            outcomes = [_outcome(module, inputs, observers=[own], **options)]
    finally:
        driver.close()
    outcomes.append(_outcome(module, inputs, observers=[expected], **options))
    assert own.lines == expected.lines
    first, second = ([str(entry)] if isinstance(entry, Exception) else [*map(_bits, entry)] for entry in outcomes)
    assert first == second
    _counts["watched"] += 1


def _compare(module: Any, inputs: Any, options: dict[str, Any]) -> Any:
    """What a single process gives, which the ranks together give, too."""
    expected = _outcome(module, inputs, **options)
    if any(options.get(name) for name in OWN):
        return expected
    own = _outcome(module, inputs, comm=COMM, **options)
    _counts["spread"] += 1
    if WATCHED:
        _compare_watched(module, inputs, options)
    if isinstance(expected, Exception):
        _counts["errors"] += 1
        assert isinstance(own, Exception), (expected, own)
        assert type(own) is type(expected)
        assert _without_devices(own) == _without_devices(expected)
        return expected
    assert not isinstance(own, Exception), own
    values = [value for values in COMM.allgather([*map(_bits, own)]) for value in values]
    assert values == [*map(_bits, expected)]
    return expected


def pytest_configure(config: pytest.Config) -> None:
    if "HLOEXEC_SHARE_ALL" in os.environ:
        # What is shared between ranks where arrays are large is so where they are small.
        ranks._LARGE_BYTES, parcels._WITHIN_BYTES = 1, 4
        handing._LONG_BYTES = 1
        vars(ranks)["PIECE_ELEMENTS"] = 2
    hloexec.run_devices = run_devices


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    if COMM.rank == 0:
        print(
            f"\nspread over {COMM.size} ranks: {_counts['spread']} runs, {_counts['errors']} of them errors, {_counts['watched']} watched"
        )
