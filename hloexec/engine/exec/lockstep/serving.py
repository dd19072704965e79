"""Runs that rank 0 asks the other ranks for: it alone carries out a command, and they serve it.

A run that nothing watches is spread over all ranks, and rank 0 gets its results. One that is watched is spread over the
others. Rank 0 goes through it for all devices, as one process does, and shows each value; but what long steps give, the
others hand it. What they have not handed when they end, as they have failed, it computes itself. So whatever it reports
is what one process reports.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES, element_type_of
from hloexec.core.ir import Module
from hloexec.core.values import TOKEN, Value
from hloexec.engine.devices.ranks import devices_of_rank, rank_of_device
from hloexec.engine.devices.topology import topology_of
from hloexec.engine.devices.varying import of_position
from hloexec.engine.exec.arguments import device_arguments
from hloexec.engine.exec.handing import Blind, FedMachine, HandingMachine
from hloexec.engine.exec.lockstep.gathering import at_first, gathered, ranks_of_machine
from hloexec.engine.exec.lockstep.parcels import Arriving, Comm, Parcel, Post, Row, wait_until
from hloexec.engine.exec.running import Run, plan_of
from hloexec.engine.exec.statistics import Statistics
from hloexec.engine.inputs import value_of
from hloexec.engine.options import Options
from hloexec.engine.plan.memory import draws_alike
from hloexec.engine.plan.optimization_errors import warn_of_failure
from hloexec.errors import HloError
from hloexec.language.literals.npz import mapped_place
from hloexec.language.text import parse
from hloexec.language.text.printer import text_of
from hloexec.ops.registry import USER_CALLS

_AHEAD_BYTES = 1 << 27
"""So much may be under way to rank 0 before others go on."""
_SENT = ("computation", "seed", "elided", "unknown", "memory_limit", "max_iterations", "timeout", "verify", "planner")
"""The options that are sent as they are."""


class _StoppedError(BaseException):
    """Rank 0 needs no more of a run."""


def _connected(comm: Comm) -> tuple[Post, Comm, bool]:
    """The post between rank 0 and the others, a communicator of the others, and whether all are on one machine."""
    others = comm.Split(min(comm.rank, 1), comm.rank)
    return Post(comm.Dup()), others, ranks_of_machine(partial(gathered, comm)) == comm.size


class Driver:
    """Rank 0 while it carries out a command."""

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self._post, _, self._is_one_machine = _connected(comm)
        self._sent: set[str] = set()
        """The modules that the others have."""
        self._number = 0

    def close(self) -> None:
        """Let the others go."""
        for rank in range(1, self._comm.size):
            self._post.send(rank, {"kind": "end"})
        self._post.flush()

    def outputs(self, run: Run, inputs: Any) -> list[Value]:
        """The results of a run for all devices, of this process alone where others cannot take part in it."""
        options, attached = run.options, run.attached
        plan = plan_of(run.module, options, is_observed=attached.see_instructions)
        is_own = (
            attached.controls or attached.iterating is not None or run.parties or USER_CALLS.keys() & plan.library_calls
        )
        if is_own or not isinstance(options.elided, str) or (plan.has_draws and not draws_alike(plan, run.topology)):
            return run.outputs(inputs)
        self._ask(run, device_arguments(plan.computation, inputs, run.topology.count))
        if attached.see_instructions:
            feed = _Feed(self._post, self._number, run.topology.count)
            run.machine = partial(FedMachine, feed.take)
            try:
                return run.outputs(inputs)
            finally:
                feed.close()
        run.comm = self._comm
        outputs = run.outputs(inputs)
        if options.statistics is not None:
            options.statistics.add_up(gathered(self._comm, options.statistics.totals))
        return at_first(self._comm, outputs)

    def _ask(self, run: Run, leaves: Sequence[Any]) -> None:
        """Send the others a module, options and inputs."""
        text = text_of(run.module)
        key = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
        options = {name: run.options[name] for name in _SENT} | {"numerics": run.options.numerics.name}
        options |= {"replicas": run.topology.replicas, "partitions": run.topology.partitions}
        is_watched = run.attached.see_instructions
        self._number += 1
        content = {"kind": "run", "run": self._number, "module": key, "text": None if key in self._sent else text}
        content |= {"options": options, "is_watched": is_watched, "is_counted": run.options.statistics is not None}
        self._sent.add(key)
        first = int(is_watched)
        for rank in range(1, self._comm.size):
            parcel = Parcel()
            devices = devices_of_rank(rank - first, self._comm.size - first, run.topology.count)
            sent = partial(_sent_leaf, parcel, has_files=self._is_one_machine)
            rows = [[sent(of_position(leaf, device)) for leaf in leaves] for device in devices]
            self._post.send(rank, {**content, "rows": rows}, parcel)


def _sent_leaf(parcel: Parcel, leaf: Any, *, has_files: bool = True) -> Any:
    """A leaf's number in a parcel, or where it lies in a file that it is mapped from, where the receiver has files."""
    place = mapped_place(leaf) if has_files and isinstance(leaf, np.ndarray) else None
    return parcel.row([leaf])[0] if place is None else [*place, element_type_of(leaf.dtype).name, leaf.shape]


_Handed: TypeAlias = "tuple[str, Arriving, Row | None]"
"""A step, the message with what it has given some devices, and what of it: None where it takes no time to compute."""


class _Feed:
    """What the others hand to rank 0 in a run."""

    def __init__(self, post: Post, number: int, count: int) -> None:
        self._post, self._number = post, number
        self._queues: list[deque[_Handed]] = [deque() for _ in range(count)]
        """What has come for each device and has not been taken."""
        self._due = [0] * count
        """How much of what comes for a device has been taken as another's."""
        self._coming: list[Arriving] = []
        self._running = set(range(1, post.comm.size))
        """The ranks that have not ended."""
        self._is_lost = False
        """Whether others have done something else."""

    def take(self, step: str, devices: Sequence[int]) -> tuple[Any, ...] | None:
        """What a step gives these devices, which hold the same; None where that is to be computed here."""
        first, queue = devices[0], self._queues[devices[0]]
        rank = 1 + rank_of_device(first, self._post.comm.size - 1, len(self._queues))
        wait_until(lambda: self._is_lost or self._has_come(first) or rank not in self._running)
        if self._is_lost or not queue:
            return None
        for device in devices:
            self._due[device] += 1
        handed_step, arriving, row = queue[0]
        if handed_step != step:
            self._is_lost = True
            warn_of_failure("handing over what ranks compute", AssertionError(f"{handed_step} in place of {step}"))
        if row is None or self._is_lost:
            return None
        wait_until(arriving.test)
        return arriving.leaves(row)

    def _has_come(self, device: int) -> bool:
        self._look()
        queue = self._queues[device]
        while queue and self._due[device]:
            queue.popleft()
            self._due[device] -= 1
        return bool(queue)

    def _look(self) -> None:
        """Take in what has come."""
        while (arriving := self._post.take()) is not None:
            content = arriving.content
            if content["kind"] == "ended":
                self._running.discard(arriving.source)
                continue
            arriving.ask()
            self._coming.append(arriving)
            for devices, row in content["classes"]:
                for device in devices:
                    self._queues[device].append((content["step"], arriving, row))
        self._coming = [arriving for arriving in self._coming if not arriving.test()]

    def close(self) -> None:
        """End the run, and take in what was under way."""
        for rank in self._running:
            self._post.send(rank, {"kind": "stop", "run": self._number})
        wait_until(self._is_over)

    def _is_over(self) -> bool:
        self._look()
        for queue in self._queues:
            queue.clear()
        return self._post.flush() and not self._running and not self._coming


# The others


def serve(comm: Comm) -> None:
    """Take part in the runs that rank 0 asks for, until it lets this rank go."""
    post, others, _ = _connected(comm)
    modules: dict[str, Module] = {}
    while True:
        arriving = wait_until(lambda: post.take(0))
        if arriving.content["kind"] == "end":
            return
        if arriving.content["kind"] == "run":
            arriving.ask()
            wait_until(arriving.test)
            key, text = arriving.content["module"], arriving.content["text"]
            if text is not None:
                modules[key] = parse(text)
            _take_part(modules[key], arriving, post, comm, others)


def _take_part(module: Module, arriving: Arriving, post: Post, comm: Comm, others: Comm) -> None:
    """Run a module on what rank 0 has sent."""
    content = arriving.content
    statistics = Statistics() if content["is_counted"] and not content["is_watched"] else None
    options = Options(statistics=statistics, **content["options"])
    topology = topology_of(module, options.replicas, options.partitions)
    shapes = plan_of(module, options, is_observed=content["is_watched"]).computation.parameter_shapes
    rows = [_values(shapes, map(partial(_leaf, arriving), row)) for row in content["rows"]]
    if content["is_watched"]:
        outlet = _Outlet(post, content["run"])
        run = Run(module, topology, [Blind()], options, others)
        run.machine = partial(HandingMachine, outlet.give, outlet.require_taker)
        # Where this fails, rank 0 computes the rest, and says what is wrong.
        with suppress(Exception, KeyboardInterrupt, _StoppedError):
            run.outputs(rows)
        post.send(0, {"kind": "ended"})
        wait_until(post.flush)
        return
    # An error is that of all ranks, and so is what interrupts one.
    with suppress(HloError, KeyboardInterrupt):
        outputs = Run(module, topology, (), options, comm).outputs(rows)
        if statistics is not None:
            gathered(comm, statistics.totals)
        at_first(comm, outputs)


def _leaf(arriving: Arriving, entry: Any) -> Any:
    if isinstance(entry, list):
        path, offset, name, sizes = entry
        return np.memmap(path, ELEMENT_TYPES[name].storage, "r", offset, tuple(sizes)).view(np.ndarray)
    return TOKEN if entry is None else arriving.arrays[entry]


def _values(shapes: Sequence[Any], leaves: Iterator[Any]) -> list[Value]:
    """Values of these shapes, with these leaves."""
    return [value_of(shape, lambda *_: next(leaves)) for shape in shapes]


class _Outlet:
    """Sends to rank 0 what steps give."""

    def __init__(self, post: Post, number: int) -> None:
        self._post, self._number = post, number

    def require_taker(self) -> None:
        arriving = self._post.take(0)
        if arriving is not None and arriving.content["kind"] == "stop" and arriving.content["run"] == self._number:
            raise _StoppedError

    def give(self, step: str, classes: Sequence[tuple[Sequence[int], Sequence[Any] | None]]) -> None:
        parcel = Parcel()
        entries = [[devices, None if leaves is None else parcel.row(leaves)] for devices, leaves in classes]
        self._post.send(0, {"kind": "step", "step": step, "classes": entries}, parcel)
        wait_until(self._may_go_on)

    def _may_go_on(self) -> bool:
        """Whether rank 0 keeps up."""
        self.require_taker()
        return self._post.flush() or self._post.bytes_under_way < _AHEAD_BYTES
