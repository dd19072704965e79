"""The ways in which a program can be run, none of which may show in its bits."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.core.ir import Module
from hloexec.engine.exec.lockstep import per_class
from hloexec.engine.exec.running import plan_of
from hloexec.engine.exec.statistics import Statistics
from hloexec.engine.plan import planner
from hloexec.engine.plan.passes import fuse
from hloexec.engine.plan.regions import region
from hloexec.engine.plan.regions.region import Region, RegionKernel
from hloexec.ops import resources
from hloexec.ops.attributes import computation_names
from hloexec.ops.policies.policy import RANDOM_ROUNDING, numerics_policy
from tests.plan.audit import Audit
from tests.plan.random_programs import RandomProgram

RUNS = 20
"""More than plans are walked before they become Python."""


def bits(value: Any) -> tuple[Any, ...]:
    """What is compared: type, dimensions and bytes of each array."""
    if isinstance(value, (tuple, list)):
        return tuple(bits(part) for part in value)
    if not isinstance(value, np.ndarray):
        return (repr(value),)
    return value.dtype.name, value.shape, np.ascontiguousarray(value).tobytes()


def regions_of(module: Module, numerics: str = "reference") -> list[Region]:
    """The regions of a module's plan."""
    steps = plan_of(module, numerics=numerics).steps
    return [step.kernel.region for step in steps if isinstance(step.kernel, RegionKernel)]


def require_same_bits(module: Module, *inputs: Any, **options: Any) -> None:
    """The result has the bits that it has without the planner."""
    together = hloexec.run(module, *inputs, check=True, **options)
    assert bits(together) == bits(hloexec.run(module, *inputs, planner=False, **options))


def same_in_all_runs(text: str, *inputs: object) -> object:
    """The result, which has the same bits without the planner, in the first run and as Python."""
    module = hloexec.parse(text)
    expected = hloexec.run(module, *inputs, planner=False)
    for _ in range(RUNS):
        assert bits(hloexec.run(module, *inputs)) == bits(expected)
    return expected


@contextmanager
def thread_count(count: int) -> Iterator[None]:
    """Let hloexec believe in so many cores."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (resources, per_class, region):
            patch.setattr(module, "core_count", lambda: count)
        resources._pool.cache_clear()
        yield
    resources._pool.cache_clear()


@contextmanager
def small_regions(block_bytes: int = 400) -> Iterator[None]:
    """Let arrays of any size become regions, of blocks of so few bytes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fuse, "LEAST_BYTES", 1)
        patch.setattr(planner, "LEAST_BYTES", 1)
        patch.setattr(fuse, "_LEAST_BYTES_ALONE", 1)
        patch.setattr(region, "_BLOCK_BYTES", block_bytes)
        patch.setattr(region, "_SMALL_BLOCK_BYTES", 16)
        patch.setattr(region, "_LITTLE_WORK", 0)
        yield


class Values:
    """An observer that keeps the bits of every value, by the name of its event and its devices.

    Each event must come by a chain of calls that the module's text has, after its operands', and only once. Under a policy
    that keeps excess precision, an operand may be shown before it is rounded.
    """

    def __init__(self, module: Module, numerics: str = "reference") -> None:
        self._module = module
        self._keeps_excess = numerics_policy(numerics).keeps_excess
        self.seen: dict[tuple[str, int], Any] = {}
        self.values: dict[tuple[str, int], Any] = {}

    def on_instruction(self, event: Any) -> None:
        value = bits(event.value)
        self._require_path(event)
        before = event.name[: len(event.name) - len(event.instruction.name)]
        for device in event.devices:
            assert (event.name, device) not in self.seen, f"{event.name} is seen twice"
            for operand in event.instruction.operands:
                assert (before + operand, device) in self.seen, f"{event.name} is seen before {operand}"
            self.seen[event.name, device] = value
            self.values[event.name, device] = event.value
            for name, operand in zip(event.instruction.operands, event.operands, strict=bool(event.operands)):
                if self._keeps_excess and isinstance(operand, np.ndarray):
                    operand = operand.astype(self.values[before + name, device].dtype)
                assert bits(operand) == self.seen[before + name, device], f"{event.name} is shown another {name}"

    def _require_path(self, event: Any) -> None:
        computation = self._module.entry
        for entry in event.path:
            instruction = entry.instruction
            assert computation.by_name[instruction.name] is instruction, f"{event.name}: no {instruction.name}"
            assert entry.computation in computation_names(instruction.attributes), f"{event.name}: {entry} calls others"
            assert (entry.iteration is not None) == (instruction.opcode == "while"), f"{event.name}: {entry}"
            computation = self._module.by_name[entry.computation]
        counts = [entry.iteration for entry in event.path if entry.iteration is not None]
        assert event.iteration == (counts[-1] if counts else None), f"{event.name}: iteration {event.iteration}"
        assert computation is event.computation, f"{event.name} is in {event.computation.name}"
        assert computation.by_name[event.instruction.name] is event.instruction


def _run(module: Module, inputs: list[list[Any]], **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if len(inputs) == 1:
            return bits(hloexec.run(module, *inputs[0], **options))
        return bits(hloexec.run_devices(module, inputs, **options))


def _counts(module: Module, inputs: list[list[Any]], **options: Any) -> tuple[Any, int, int, int, int]:
    """A result, the steps that ran, the peaks of all and of one device, and the bytes that are held in the end."""
    counted = Statistics()
    result = _run(module, inputs, **options, statistics=counted)
    return result, counted.steps, counted.peak_bytes, counted.device_peak_bytes, counted.live_bytes


def _laid_out_otherwise(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same values, the other way round in memory."""
    turned = value.transpose()
    return turned[::-1].copy()[::-1].transpose() if value.ndim else value


def differences(program: RandomProgram, runs: int = RUNS, numerics: str = "reference") -> list[str]:
    """The ways of running a program whose bits are not those of its plain evaluation; empty where all agree."""
    module, inputs = hloexec.parse(program.text), program.inputs
    plain = Values(module, numerics)
    how: dict[str, Any] = {"numerics": numerics}
    expected = _run(module, inputs, **how, planner=False, observers=[plain])
    found = []

    def compare(way: str, actual: Any) -> None:
        if actual != expected:
            found.append(way)

    compare("plain, unwatched", _run(module, inputs, **how, planner=False))
    watched = Values(module, numerics)
    compare("watched", _run(module, inputs, **how, observers=[watched]))
    if watched.seen != plain.seen:
        names = [key for key in plain.seen if watched.seen.get(key) != plain.seen[key]]
        more = [key for key in watched.seen if key not in plain.seen]
        found.append(
            f"values that are seen: {len(names)} of {len(plain.seen)} differ, {names[:3]}, {len(more)} are new"
        )
    if not (numerics.startswith(RANDOM_ROUNDING) or numerics_policy(numerics).keeps_excess):
        # These show other values than they compute with.
        found += Audit(module, numerics, watched.values, program.devices).run(inputs)
    for number in range(1, runs + 1):
        compare(f"run {number}", _run(module, inputs, **how))
    compare("other strides", _run(module, [[*map(_laid_out_otherwise, row)] for row in inputs], **how))
    counts = [_counts(module, inputs, **how)]
    compare("checked", _run(module, inputs, **how, check=True))
    for count in (1, 2, 4):
        with thread_count(count):
            counts.append(_counts(module, inputs, **how))
            compare(f"{count} threads", _run(module, inputs, **how))
            compare(f"{count} threads, first run", _run(hloexec.parse(program.text), inputs, **how))
    for result, *_ in counts:
        compare("counted", result)
    # Where devices run side by side, how much is alive at once depends on which is faster.
    rows = [(steps, *peaks, alive) if program.devices == 1 else (steps, alive) for _, steps, *peaks, alive in counts]
    if len(set(rows)) > 1 or rows[0][-1]:
        found.append(f"counts of steps, peaks and what is alive in the end: {rows}")
    results: list[Any] = [None, None]

    def work(place: int) -> None:
        results[place] = _run(module, inputs, **how)

    others = [threading.Thread(target=work, args=(place,)) for place in range(2)]
    for other in others:
        other.start()
    for other in others:
        other.join()
    for result in results:
        compare("concurrent", result)
    return found
