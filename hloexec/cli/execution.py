"""Running a module for `hloexec run`: once with progress, then once per timed iteration, and the values to print."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from hloexec.core.structs import frozen
from hloexec.core.wording import on_devices, quoted, suggestion
from hloexec.errors import InputError

if TYPE_CHECKING:
    from hloexec.core.ir import Module
    from hloexec.core.values import Value
    from hloexec.engine.exec.observers import Event
    from hloexec.engine.exec.statistics import Statistics
    from hloexec.engine.options import Options

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

    def printed(self, names: Sequence[str]) -> Iterator[tuple[str, str]]:
        """The printed values, as pairs of label and HLO literal."""
        from hloexec.cli.devices import labelled_values

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
) -> Execution:
    """Run a module on the inputs of each device, then `iterations` more times without progress, or until Ctrl-C."""
    from hloexec.cli.progress import ProgressBar
    from hloexec.engine.exec.running import run_with
    from hloexec.engine.exec.statistics import Statistics

    wanted = [name.removeprefix("%") for name in names if name != RESULT]

    def run(given: Options, observers: Sequence[Any] = ()) -> tuple[list[Value], float]:
        start = time.perf_counter()
        results = run_with(module, values, given, observers)
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
    known = {instruction.name for computation in module for instruction in computation} if wanted else set()
    for name in sorted(wanted - known):
        near = suggestion(name, sorted(known), 3)
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
    from hloexec.language.text.shape_text import literal_with_shape_text

    for label, _, value in labelled:
        if isinstance(value, np.ndarray):
            shape = ArrayShape(element_type_of(value.dtype), value.shape)
            yield label, literal_with_shape_text(Literal(shape, value))
        else:
            yield label, "token[]"
