"""Running a module for `hloexec run`: with progress, timed, and what to try where memory is short."""

from __future__ import annotations

import shlex
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import click

from hloexec.core.structs import frozen
from hloexec.core.wording import on_devices, quoted, suggestion
from hloexec.errors import HloError, InputError, ResourceError

if TYPE_CHECKING:
    from hloexec.analysis.numerics.leaves import LeafStatistics
    from hloexec.cli.run_options import Given
    from hloexec.core.ir import Module
    from hloexec.core.values import Value
    from hloexec.engine.devices.topology import Topology
    from hloexec.engine.exec.observers import Event
    from hloexec.engine.exec.statistics import Statistics
    from hloexec.engine.options import Options


_MOST_PLANNED = 30


@contextmanager
def memory_advice(file: str, module: Module, given: Given, options: Options) -> Iterator[None]:
    """Add commands that fit into memory to the error about a module that does not.

    `options` are those that the plan is made with.
    """
    try:
        yield
    except ResourceError as error:
        steps = [["info", file, "--computations"], ["memory", file]]
        words = attrs.evolve(given, inputs=(), overrides=(), different_inputs=False).words()
        name = _fitting_computation(module, options)
        if name is not None:
            limit = [] if options.memory_limit is None else ["--memory-limit", str(options.memory_limit)]
            steps.insert(0, ["run", file, "--computation", name, *words, *limit])
        if options.memory_limit is None and options.computation is None:
            steps.insert(0, ["run", file, "--shrink", _shrunken_size(), *words])
        commands = "\n".join("  " + shlex.join(["hloexec", *step]) for step in steps)
        raise ResourceError(f"{error}\n\nnext:\n{commands}") from error


def _shrunken_size() -> str:
    """What a smaller module may take: half of what there is, and no more than runs in minutes."""
    from hloexec.core.process import memory_limit_bytes

    allowed = memory_limit_bytes(None)
    return "2G" if allowed is None or allowed > 4 << 30 else f"{max(1, allowed >> 21)}M"


def _fitting_computation(module: Module, options: Options) -> str | None:
    """The computation with the most instructions, among those that the entry reaches, that fits into memory alone."""
    from hloexec.core.process import memory_limit_bytes
    from hloexec.engine.exec.running import plan_of
    from hloexec.engine.plan.memory import require_memory
    from hloexec.tools.summary import run_counts

    allowed = memory_limit_bytes(options.memory_limit)
    computations = [module.by_name[name] for name in run_counts(module)]
    computations.sort(key=lambda computation: -len(computation.instructions))
    planned = 0
    for computation in computations:
        inputs = sum(shape.byte_size for shape in computation.parameter_shapes)
        kept = inputs + computation.result_shape.byte_size
        if computation is module.entry or (allowed is not None and kept > allowed):
            continue
        if planned == _MOST_PLANNED:
            break
        planned += 1
        try:
            with warnings.catch_warnings(action="ignore"):
                plan = plan_of(module, options, computation=computation.name)
            require_memory(plan, None if allowed is None else max(0, allowed - inputs))
        except HloError:
            continue
        return computation.name
    return None


def inputs_per_device(
    topology: Topology,
    files: Sequence[str],
    different: bool,
    seed: int,
    make: Callable[[str | None, int], list[Value]],
    own: Sequence[int] | None = None,
) -> list[list[Value]]:
    """One list of inputs for all devices, or one per device, or per `own` device: from one file each, or from different
    seeds.

    `make` returns the inputs of one device for a file (or None) and a seed.
    """
    if len(files) not in (0, 1, topology.count):
        raise click.UsageError(
            f"--inputs must be given once for all devices, or once for each of the {topology.count}; there are "
            f"{len(files)}"
        )
    devices = range(topology.count) if own is None else own
    if len(files) > 1:
        return [make(files[device], seed) for device in devices]
    file = files[0] if files else None
    return [make(file, seed + device) for device in (devices if different else range(1))]


class Here:
    """Where a command runs: all devices are of this process."""

    devices: Sequence[int] | None = None
    """Those of this process, where it keeps the values of some alone."""
    speaks = True
    """Whether this process prints, and writes files."""

    def rows(
        self, values: Sequence[Value], labels: Callable[[tuple[int, ...]], str], *, are_for_all: bool = False
    ) -> list[tuple[str, LeafStatistics]]:
        """`labelled_leaves` of one value for each device of this process, or of one for all devices."""
        return labelled_leaves(values, labels)

    def execute(
        self, module: Module, values: list[list[Value]], options: Options, iterations: int, names: Sequence[str]
    ) -> Execution:
        """Run a module on the inputs of this process's devices, as `execute` does."""
        return execute(module, values, options, iterations, names)

    def save(self, path: str, values: Sequence[Value]) -> None:
        """Write the values of all devices to a file."""
        from hloexec.language import literals

        if self.speaks:
            literals.save(path, tuple(values) if len(values) > 1 else values[0])


def place_of_run(count: int, *, is_plain: bool, sends: bool) -> Here:
    """Where a run on so many devices takes place; each process may keep its devices' values where it `is_plain`. It may
    be one that `sends` values to its host."""
    ranks = sys.modules.get("hloexec.cli.ranks")
    return Here() if ranks is None else ranks.place_of_run(count, is_plain=is_plain, sends=sends)


def labelled_leaves(
    values: Sequence[Value], labels: Callable[[tuple[int, ...]], str]
) -> list[tuple[str, LeafStatistics]]:
    """One row per leaf and class of devices that hold the same array, given one value per device.

    The label names the devices if there are several classes.
    """
    from hloexec.analysis.numerics.leaves import statistics

    rows = []
    for label, index, value in labelled_values(values, labels):
        (leaf,) = statistics(value)
        rows.append((label, attrs.evolve(leaf, index=index)))
    return rows


def labelled_values(
    values: Sequence[Value], labels: Callable[[tuple[int, ...]], str]
) -> Iterator[tuple[str, tuple[int, ...], Value]]:
    """The label, tuple index and value of each leaf, for each class of devices that hold the same array."""
    from hloexec.core.tree import leaves

    leaves_by_device = [dict(leaves(value)) for value in values]
    for index, holders in _classes(leaves_by_device):
        for devices in holders:
            label = labels(index)
            if len(holders) > 1:
                label += on_devices(devices)
            yield label, index, leaves_by_device[devices[0]][index]


def _classes(
    leaves_by_device: Sequence[dict[tuple[int, ...], Any]],
) -> Iterator[tuple[tuple[int, ...], list[list[int]]]]:
    """For each leaf, the devices grouped by the array that they hold."""
    for index in leaves_by_device[0]:
        classes: dict[int, list[int]] = {}
        for device, its_leaves in enumerate(leaves_by_device):
            classes.setdefault(id(its_leaves[index]), []).append(device)
        yield index, list(classes.values())


RESULT = "result"
"""The name of the result in `--print`."""


@frozen(eq=False)
class Execution:
    """The results and the cost of a run."""

    results: list[Value]
    """One for each device."""
    statistics: Statistics
    seconds: float
    """Of the first run."""
    warm_seconds: tuple[float, ...] = ()
    """Of each further run."""
    events: tuple[Event, ...] = ()
    """The first run of each printed instruction, once per distinct value on the devices."""
    is_interrupted: bool = False
    """Whether Ctrl-C ended the further runs."""
    devices: int = 0
    """How many devices there are, where these are the results of some."""

    @property
    def device_count(self) -> int:
        return self.devices or len(self.results)

    def printed(self, names: Sequence[str]) -> Iterator[tuple[str, str]]:
        """The printed values, as pairs of label and HLO literal."""

        for name in names:
            if name == RESULT:
                yield from _literals(labelled_values(self.results, partial(_label, RESULT)))
            for event in self.events:
                if event.instruction.name == name.removeprefix("%"):
                    label = f"%{event.instruction.name}"
                    if len(self.results) > len(event.devices):
                        label += on_devices(event.devices)
                    yield from _literals(labelled_values([event.value], partial(_label, label)))


def execute(
    module: Module,
    values: list[list[Value]],
    options: Options,
    iterations: int = 0,
    names: Sequence[str] = (),
    comm: Any = None,
) -> Execution:
    """Run a module on the inputs of each device, then `iterations` more times without progress, or until Ctrl-C; with
    `comm`, on the devices of this rank."""
    from hloexec.cli.reports import ProgressBar
    from hloexec.engine.exec.running import run_with
    from hloexec.engine.exec.statistics import Statistics

    wanted = [name.removeprefix("%") for name in names if name != RESULT]

    def run(given: Options, observers: Sequence[Any] = ()) -> tuple[list[Value], float]:
        start = time.perf_counter()
        results = run_with(module, values, given, observers, comm)
        return results, time.perf_counter() - start

    taken, recorder = Statistics(), _Recorder(wanted)
    with ProgressBar() as progress:
        observers = [progress, recorder] if wanted else [progress]
        results, seconds = run(attrs.evolve(options, statistics=taken), observers)
    warm = list[float]()
    with suppress(KeyboardInterrupt):
        for _ in range(iterations):
            warm.append(run(options)[1])
    return Execution(results, taken, seconds, tuple(warm), tuple(recorder.events), len(warm) < iterations)


def require_instructions(module: Module, names: Sequence[str]) -> None:
    """Raise InputError if the module lacks an instruction named in `--print`."""
    wanted = {name.removeprefix("%") for name in names} - {RESULT}
    present = {instruction.name for computation in module for instruction in computation} if wanted else set()
    for name in sorted(wanted - present):
        near = suggestion(name, sorted(present), 3)
        raise InputError(f"--print: module {module.name} has no instruction {quoted(name)}{near}")


class _Recorder:
    """Records the first run of the given instructions on every device."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = frozenset(names)
        self._seen: set[tuple[str, str, int]] = set()
        self.events: list[Event] = []

    def on_instruction(self, event: Event) -> None:
        if event.instruction.name in self._names:
            runs = {(event.computation.name, event.instruction.name, device) for device in event.devices}
            if not runs & self._seen:
                self.events.append(event)
            self._seen |= runs


def _label(name: str, index: tuple[int, ...]) -> str:
    return name + "".join(f".{part}" for part in index)


def _literals(labelled: Iterator[tuple[str, tuple[int, ...], Value]]) -> Iterator[tuple[str, str]]:
    import numpy as np

    from hloexec.core.dtypes import element_type_of
    from hloexec.core.ir import ArrayShape, Literal
    from hloexec.language.text.shapes import literal_with_shape_text

    for label, _, value in labelled:
        if isinstance(value, np.ndarray):
            shape = ArrayShape(element_type_of(value.dtype), value.shape)
            yield label, literal_with_shape_text(Literal(shape, value))
        else:
            yield label, "token[]"
