"""Runs that rank 0 asks the other ranks for: it alone carries out a command, and they serve it.

A run that nothing watches is spread over all ranks, and rank 0 gets its results. One that is watched is spread over the
others. Rank 0 goes through it for all devices, as one process does, and shows each value; but what long steps give, the
others hand it. What they have not handed when they end, as they have failed, it computes itself. So whatever it reports
is what one process reports.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES, element_type_of
from hloexec.core.ir import Module
from hloexec.core.values import TOKEN, Value
from hloexec.engine.devices.ranks import devices_of_rank
from hloexec.engine.devices.topology import topology_of
from hloexec.engine.devices.varying import of_position
from hloexec.engine.exec.arguments import device_arguments
from hloexec.engine.exec.lockstep.gathering import at_first, gathered
from hloexec.engine.exec.lockstep.handing import Blind, FedMachine, Feed, HandingMachine, StoppedError
from hloexec.engine.exec.lockstep.parcels import Arriving, Comm, Parcel, Post, wait_until
from hloexec.engine.exec.running import Run, plan_of
from hloexec.engine.exec.statistics import Statistics
from hloexec.engine.inputs import value_of
from hloexec.engine.options import Options
from hloexec.engine.plan.memory import draws_alike
from hloexec.errors import HloError
from hloexec.language.text import format as format_module
from hloexec.language.text import parse
from hloexec.ops.registry import USER_CALLS
from hloexec.ops.resources import owner_of

_SENT = ("computation", "seed", "elided", "unknown", "memory_limit", "max_iterations", "timeout", "verify", "planner")
"""The options that are sent as they are."""


def _connected(comm: Comm) -> tuple[Post, Comm]:
    """The post between rank 0 and the others, and a communicator of the others."""
    others = comm.Split(min(comm.rank, 1), comm.rank)
    return Post(comm.Dup()), others


class Driver:
    """Rank 0 while it carries out a command."""

    def __init__(self, comm: Comm) -> None:
        self._comm = comm
        self._post, _ = _connected(comm)
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
            feed = Feed(self._post, self._number, run.topology.count)
            run.machine = partial(FedMachine, feed)
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
        text = run.module.source if run.module.source is not None else format_module(run.module)
        key = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
        options = {name: run.options[name] for name in _SENT} | {"numerics": run.options.numerics.name}
        options |= {"replicas": run.topology.replicas, "partitions": run.topology.partitions}
        content: dict[str, Any] = {
            "kind": "run",
            "module": key,
            "text": None if key in self._sent else text,
            "options": options,
        }
        content |= {"is_watched": run.attached.see_instructions, "is_counted": run.options.statistics is not None}
        self._sent.add(key)
        self._number += 1
        first = int(run.attached.see_instructions)
        for rank in range(1, self._comm.size):
            parcel = Parcel()
            devices = devices_of_rank(rank - first, self._comm.size - first, run.topology.count)
            rows = [[_sent_leaf(parcel, of_position(leaf, device)) for leaf in leaves] for device in devices]
            self._post.send(rank, {**content, "run": self._number, "rows": rows}, parcel)


def _sent_leaf(parcel: Parcel, leaf: Any) -> Any:
    """A leaf's number in a parcel, or where it lies in a file that it is mapped from."""
    owner = owner_of(leaf) if isinstance(leaf, np.ndarray) else None
    if not isinstance(owner, np.memmap) or not leaf.flags.c_contiguous:
        return parcel.row([leaf])[0]
    start = leaf.ctypes.data - owner.ctypes.data
    return [str(owner.filename), owner.offset + start, element_type_of(leaf.dtype).name, leaf.shape]


# The others


def serve(comm: Comm) -> None:
    """Take part in the runs that rank 0 asks for, until it lets this rank go."""
    post, others = _connected(comm)
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
    rows = [_values(shapes, [_leaf(arriving, entry) for entry in row]) for row in content["rows"]]
    if content["is_watched"]:
        run = Run(module, topology, [Blind()], options, others)
        run.machine = partial(HandingMachine, post, content["run"])
        # Where this fails, rank 0 computes the rest, and says what is wrong.
        with suppress(Exception, KeyboardInterrupt, StoppedError):
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


def _values(shapes: Sequence[Any], leaves: Iterable[Any]) -> list[Value]:
    """Values of these shapes, with these leaves."""
    remaining = iter(leaves)
    return [value_of(shape, lambda *_: next(remaining)) for shape in shapes]
