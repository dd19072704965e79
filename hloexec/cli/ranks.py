"""Commands under mpiexec: rank 0 speaks for all ranks.

All of them carry out `run` together, and each keeps the values of its devices; what others print is kept back. Any
other command rank 0 carries out alone, and has the others take part in its runs. Where a rank fails alone, it waits for
a moment whether rank 0 has something to say, says itself what has happened if not, and ends all of them.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn

import attrs
import click
import numpy as np

from hloexec.analysis.numerics.leaves import LeafStatistics, statistics
from hloexec.cli.problems import show_problem
from hloexec.cli.running import Here, execute, labelled_leaves
from hloexec.core.dtypes import element_type
from hloexec.core.tree import leaves
from hloexec.core.values import Value
from hloexec.core.wording import on_devices
from hloexec.engine.devices.ranks import devices_of_rank
from hloexec.engine.exec.lockstep.gathering import gathered, ranks_of_machine
from hloexec.engine.exec.lockstep.parcels import handed
from hloexec.engine.exec.lockstep.serving import Driver, serve
from hloexec.engine.exec.running import driven
from hloexec.language import literals
from hloexec.ops.resources import core_count
from hloexec.tools.registration import TOOLS

if TYPE_CHECKING:
    from hloexec.cli.running import Execution
    from hloexec.core.ir import Module
    from hloexec.engine.options import Options

_COMMANDS = "run, golden, trace, nan, compare, diff"
_PATIENCE_SECONDS = 2.0
"""How long a rank that fails waits for the others; twice as long for one before it that fails, too, to speak."""
_EXIT_SECONDS = 3.0
"""How long MPI may take to end after a failure."""
_LOOK_SECONDS = 1e-3
_SPOKEN = 1
"""The tag of messages from a rank that has said why all are ended."""

_here: list[Ranks] = []
"""The ranks of the command that runs, once there are any."""


class _ServingError(BaseException):
    """This rank does what rank 0 asks it for, from now on."""


def place_of_run(count: int, *, is_plain: bool, sends: bool) -> Here:
    """Where a run on so many devices takes place."""
    if not _here:
        return Here()
    if sends:
        raise click.UsageError("--outfeed and --send write what one process is sent; leave out mpiexec")
    if is_plain and count > 1:
        return Spread(_here[0].comm, count)
    _here[0].drive()
    return Here()


class Spread(Here):
    """The devices of a run are spread over ranks, of which each keeps the values of its own; rank 0 writes files."""

    def __init__(self, comm: Any, count: int) -> None:
        self.comm = comm
        self.speaks = not comm.rank
        self.count = count
        self.devices: Sequence[int] = devices_of_rank(comm.rank, comm.size, count)

    def rows(
        self, values: Sequence[Value], labels: Callable[[tuple[int, ...]], str], *, are_for_all: bool = False
    ) -> list[tuple[str, LeafStatistics]]:
        if are_for_all:
            return labelled_leaves(values, labels)
        by_leaf: dict[int, LeafStatistics] = {}
        own = []
        for device, value in zip(self.devices, values, strict=True):
            for index, leaf in leaves(value):
                if id(leaf) not in by_leaf:
                    (by_leaf[id(leaf)],) = statistics(leaf)
                described = attrs.asdict(by_leaf[id(leaf)], recurse=False)
                own.append([device, described | {"index": index, "element_type": described["element_type"].name}])
        classes: dict[Any, tuple[LeafStatistics, list[int]]] = {}
        for device, record in chain.from_iterable(gathered(self.comm, own)):
            index, dimensions = tuple(record["index"]), tuple(record["dimensions"])
            types = {"index": index, "dimensions": dimensions, "element_type": element_type(record["element_type"])}
            leaf = LeafStatistics(**record | types)
            classes.setdefault((index, leaf.hash, leaf.shape), (leaf, []))[1].append(device)
        counts = Counter(index for index, *_ in classes)
        return [
            (labels(leaf.index) + (on_devices(devices) if counts[leaf.index] > 1 else ""), leaf)
            for leaf, devices in sorted(classes.values(), key=lambda entry: (entry[0].index, entry[1]))
        ]

    def execute(
        self, module: Module, values: list[list[Value]], options: Options, iterations: int, names: Sequence[str]
    ) -> Execution:
        ran = execute(module, values, options, iterations, names, self.comm)
        ran.statistics.add_up(gathered(self.comm, ran.statistics.totals))
        return attrs.evolve(ran, devices=self.count)

    def save(self, path: str, values: Sequence[Value]) -> None:
        """Rank 0 is handed the arrays one by one."""
        rows = zip(self.devices, values, strict=True)
        entries = handed(
            self.comm, (entry for device, value in rows for entry in literals.stored_leaves(value, device))
        )
        literals.save_entries(path, entries) if self.speaks else next(entries, None)


class Ranks:
    """The ranks that carry out a command."""

    def __init__(self) -> None:
        from mpi4py import MPI

        self.comm: Any = MPI.COMM_WORLD.Dup()
        self._ends: Any = MPI.COMM_WORLD.Dup()
        self._are_over: Any = MPI.Request.Testall
        self._errors = sys.stderr
        os.environ.setdefault(
            "OMP_NUM_THREADS", str(max(1, core_count() // ranks_of_machine(partial(gathered, self.comm))))
        )
        core_count.cache_clear()
        self._driving = ExitStack()
        if self.comm.rank:
            sys.stdout, sys.stderr = io.StringIO(), io.StringIO()

    def drive(self) -> None:
        """Rank 0 goes on alone, and the others serve it."""
        if self.comm.rank:
            raise _ServingError
        driver = Driver(self.comm)
        self._driving.callback(driver.close)
        self._driving.enter_context(driven(driver))

    def carry_out(self, command: Callable[[], int], *, is_alike: bool) -> int:
        """The exit code of a command line, which all ranks begin alike or rank 0 carries out alone."""
        try:
            with self._driving:
                if not is_alike:
                    self.drive()
                return command()
        except _ServingError:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
            serve(self.comm)
            return 0

    def leave(self, code: int) -> int:
        """The exit code of all ranks, once all of them are here; where this one failed and others do not come, all are
        ended."""
        rank, codes = self.comm.rank, np.zeros((self.comm.size, 1), np.int64)
        codes[rank] = code
        others = [other for other in range(self.comm.size) if other != rank]
        requests = [self._ends.Isend(codes[rank], other) for other in others]
        requests += [self._ends.Irecv(codes[other], other) for other in others]
        end = time.monotonic() + _PATIENCE_SECONDS
        while not self._are_over(requests):
            if code and time.monotonic() > (end + _PATIENCE_SECONDS if codes[:rank].any() else end):
                self._end_all(code)
            time.sleep(_LOOK_SECONDS)
        failed = np.flatnonzero(codes)
        if not failed.size:
            return 0
        if failed[0] == rank:
            self._speak()
        code = int(codes[failed[0], 0])
        self._exit_soon(code)
        return code

    def _speak(self) -> None:
        """Say what has been kept back of errors."""
        if isinstance(sys.stderr, io.StringIO) and self.comm.rank:
            self._errors.write(sys.stderr.getvalue())
        self._errors.flush()

    def has_spoken(self) -> bool:
        """Whether a rank has said why all are ended, by signals, too."""
        return bool(self._ends.Iprobe(tag=_SPOKEN))

    def _end_all(self, code: int) -> NoReturn:
        self._speak()
        for other in range(self.comm.size):
            if other != self.comm.rank:
                self._ends.Isend(np.zeros(1, np.int64), other, _SPOKEN)
        self._exit_soon(code)
        self.comm.Abort(code)
        raise SystemExit(code)

    def _exit_soon(self, code: int) -> None:
        """Nothing is left to say, and messages that were under way may keep MPI from ending."""
        if not self.comm.rank:
            sys.stdout.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        timer = threading.Timer(_EXIT_SECONDS, os._exit, (code,))
        timer.daemon = True
        timer.start()


def carried_out(ranks: Ranks, words: Sequence[str], command: Callable[[], int]) -> int:
    """The exit code of a command line that all ranks have been started with."""
    _here.append(ranks)
    code = 1
    try:
        name = next((word for word in words if not word.startswith("-")), "")
        if name in _COMMANDS.split(", ") or name not in TOOLS:
            code = ranks.carry_out(command, is_alike=name == "run" or name not in TOOLS)
        else:
            own = f"hloexec {name}"
            show_problem("error", f"{own} works in one process; under mpiexec there are hloexec {_COMMANDS}", "red")
            code = 2
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
        if not ranks.has_spoken():
            show_problem("error", "a rank was ended by a signal", "red")
    except BaseException:
        traceback.print_exc()
    return ranks.leave(code)
