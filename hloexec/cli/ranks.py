"""Commands under mpiexec: all ranks carry out the same one together, and rank 0 speaks for them.

The others' output is kept back. Where a rank fails alone, it waits for a moment whether rank 0 has something to say,
says itself what has happened if not, and ends all of them.
"""

from __future__ import annotations

import io
import os
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import attrs
import click
import numpy as np

from hloexec.analysis.numerics.leaves import LeafStatistics, statistics
from hloexec.cli.problems import show_problem
from hloexec.cli.process import ending_all_ranks
from hloexec.cli.running import Here, execute, labelled_leaves
from hloexec.core.dtypes import element_type
from hloexec.core.tree import leaves
from hloexec.core.values import Array, Value
from hloexec.core.wording import on_devices
from hloexec.engine.devices.ranks import devices_of_rank
from hloexec.engine.exec.lockstep.gathering import gathered
from hloexec.engine.exec.lockstep.parcels import Parcel, Post
from hloexec.language import literals
from hloexec.ops.resources import core_count

if TYPE_CHECKING:
    from hloexec.cli.running import Execution
    from hloexec.core.ir import Module
    from hloexec.engine.options import Options

_COMMANDS = (("run",), ("golden", "check"))
_PATIENCE_SECONDS = 2.0
"""How long a rank that fails waits for the others; twice as long for one before it that fails, too, to speak."""
_EXIT_SECONDS = 3.0
"""How long MPI may take to end after a failure."""
_LOOK_SECONDS = 1e-3


_here: list[Ranks] = []
"""The ranks of the command that runs, once there are any."""


def place_of_run(count: int, *, is_plain: bool, sends: bool) -> Here:
    """Where a run on so many devices takes place."""
    if not _here:
        return Here()
    if sends:
        raise click.UsageError("--outfeed and --send write what one process is sent; leave out mpiexec")
    comm = _here[0].comm
    return Spread(comm, count) if is_plain and count > 1 else Together(comm)


class Together(Here):
    """All ranks have all values, and do the same; rank 0 writes files."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self.speaks = not comm.rank


class Spread(Together):
    """The devices of a run are spread over ranks, of which each keeps the values of its own."""

    def __init__(self, comm: Any, count: int) -> None:
        super().__init__(comm)
        self.count = count
        self.devices: Sequence[int] = devices_of_rank(comm.rank, comm.size, count)

    def rows(
        self, values: Sequence[Value], labels: Callable[[tuple[int, ...]], str], *, are_for_all: bool = False
    ) -> list[tuple[str, LeafStatistics]]:
        if are_for_all:
            return labelled_leaves(values, labels)
        rows_by_leaf: dict[int, Any] = {}
        own = []
        for device, value in zip(self.devices, values, strict=True):
            for index, leaf in leaves(value):
                if id(leaf) not in rows_by_leaf:
                    (described,) = statistics(leaf)
                    rows_by_leaf[id(leaf)] = attrs.asdict(described) | {"element_type": described.element_type.name}
                own.append([list(index), device, rows_by_leaf[id(leaf)]])
        classes: dict[Any, tuple[list[int], Any]] = {}
        for index, device, described in (row for rows in gathered(self.comm, own) for row in rows):
            key = (tuple(index), described["hash"], described["element_type"], tuple(described["dimensions"]))
            classes.setdefault(key, ([], described))[0].append(device)
        counts = Counter(index for index, *_ in classes)
        rows = []
        for (index, *_), (devices, described) in sorted(classes.items(), key=lambda entry: (entry[0][0], entry[1][0])):
            label = labels(index) + (on_devices(devices) if counts[index] > 1 else "")
            types = {"element_type": element_type(described["element_type"]), "index": index}
            rows.append((label, LeafStatistics(**described | types | {"dimensions": tuple(described["dimensions"])})))
        return rows

    def execute(
        self, module: Module, values: list[list[Value]], options: Options, iterations: int, names: Sequence[str]
    ) -> Execution:
        ran = execute(module, values, options, iterations, names, self.comm)
        ran.statistics.add_up(gathered(self.comm, ran.statistics.totals))
        return attrs.evolve(ran, devices=self.count)

    def save(self, path: str, values: Sequence[Value]) -> None:
        """Rank 0 is handed the arrays one by one."""
        post = Post(self.comm)
        if self.comm.rank:
            for device, value in zip(self.devices, values, strict=True):
                for key, array in literals.stored_leaves(value, device):
                    self._hand_over(post, key, array)
            self._hand_over(post, "", np.zeros(0, np.uint8))
        else:
            literals.save_entries(path, self._entries(post, values))

    @staticmethod
    def _hand_over(post: Post, key: str, array: Array) -> None:
        parcel = Parcel()
        post.send(0, {"key": key, "row": parcel.row([array])}, parcel)
        while not post.flush():
            time.sleep(_LOOK_SECONDS)

    def _entries(self, post: Post, values: Sequence[Value]) -> Iterator[tuple[str, Array]]:
        for device, value in zip(self.devices, values, strict=True):
            yield from literals.stored_leaves(value, device)
        for rank in range(1, self.comm.size):
            while True:
                arriving = post.take(rank)
                if arriving is None:
                    time.sleep(_LOOK_SECONDS)
                    continue
                arriving.ask()
                while not arriving.test():
                    time.sleep(0)
                if not arriving.content["key"]:
                    break
                yield arriving.content["key"], arriving.arrays[0]


class Ranks:
    """The ranks that carry out a command."""

    def __init__(self) -> None:
        os.environ.setdefault("MPIR_CVAR_SUPPRESS_ABORT_MESSAGE", "1")
        from mpi4py import MPI

        self.comm: Any = MPI.COMM_WORLD.Dup()
        self._ends: Any = MPI.COMM_WORLD.Dup()
        self._are_over: Any = MPI.Request.Testall
        self._errors = sys.stderr
        machine = self.comm.Split_type(MPI.COMM_TYPE_SHARED)
        os.environ.setdefault("OMP_NUM_THREADS", str(max(1, core_count() // machine.size)))
        core_count.cache_clear()
        machine.Free()
        if self.comm.rank:
            sys.stdout, sys.stderr = io.StringIO(), io.StringIO()

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

    def _end_all(self, code: int) -> NoReturn:
        self._speak()
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


def carried_out(words: Sequence[str], command: Callable[[], int]) -> int:
    """The exit code of a command line that all ranks have been started with."""
    from hloexec.engine.exec.running import together

    with ending_all_ranks():
        ranks = Ranks()
        _here.append(ranks)
    code = 1
    try:
        names = tuple(word for word in words if not word.startswith("-"))
        if any(names[: len(command_names)] == command_names for command_names in _COMMANDS):
            with together(ranks.comm):
                code = command()
        else:
            others = ", ".join(" ".join(command_names) for command_names in _COMMANDS)
            own = " ".join(["hloexec", *names[:1]])
            show_problem("error", f"{own} works in one process; under mpiexec there are hloexec {others}", "red")
            code = 2
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
        show_problem("error", "a rank was ended by a signal", "red")
    except BaseException:
        traceback.print_exc()
    return ranks.leave(code)
