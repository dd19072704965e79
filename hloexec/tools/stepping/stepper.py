"""`step`: a run that stands still where it is told to, whose values can be looked at and replaced there.

Names of instructions as people type them, and those that come near a wrong one.

Replacing values of a run: which instruction's value can be replaced where the run stands still, and by what.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Unpack

import attrs
import numpy as np

from hloexec.core.arguments import (
    byte_count,
    listed,
    require_integer,
    require_module,
    require_text,
    texts,
)
from hloexec.core.ir import ArrayShape, Computation, Instruction, Module
from hloexec.core.places import split_name
from hloexec.core.tree import flat
from hloexec.core.values import Described, Inputs, Value
from hloexec.core.wording import argument, suggestion
from hloexec.engine.devices.topology import topology_of
from hloexec.engine.exec.arguments import value_leaves
from hloexec.engine.exec.observers import UNREPLACEABLE, Event, Observer
from hloexec.engine.exec.running import RunOptions, plan_of, resolve_options, run_with
from hloexec.engine.inputs import value_of
from hloexec.engine.options import Options
from hloexec.errors import HloError, InputError
from hloexec.tools.stepping.breakpoints import Breakpoint, Targets, made
from hloexec.tools.stepping.controlling import Going, Kept, Level, RunController, Stop, Worker


def near_name(name: str, names: Iterable[str]) -> str:
    """The end of a sentence that asks for a name which comes near; nothing where none does."""
    return suggestion(name, dict.fromkeys(names), text="%{}".format)


def found_instruction(computation: Computation, name: str, others: Iterable[Computation]) -> Instruction:
    """The instruction of a computation; InputError where there is none, which says which of the others has it."""
    own = name.removeprefix("%")
    instruction = computation.by_name.get(own)
    if instruction is None:
        elsewhere = next((other.name for other in others if own in other.by_name), None)
        hint = near_name(own, computation.by_name) if elsewhere is None else f"; {elsewhere} has one"
        raise InputError(f"{computation.name} has no instruction %{own}{hint}")
    return instruction


def replaceable(name: str, targets: Targets, stop: Stop | None, kept: Kept) -> Instruction:
    """The instruction of a name: the one that the run stands still after, or one that is to run.

    InputError where there is none, it has run or failed, or several of the name are to run.
    """
    here = None if stop is None else stop.instruction
    if stop is None or here is None or name not in (here.name, f"{stop.place.computation.name}/{here.name}"):
        return _to_come(name, targets, stop, kept)
    if stop.error is not None:
        raise InputError(f"%{here.name} has failed; restart, and set one of its operands before it runs")
    return here


def _to_come(name: str, targets: Targets, stop: Stop | None, kept: Kept) -> Instruction:
    computation, own = split_name(name)
    matches = [
        (home, candidate)
        for home, candidate in targets.instructions
        if candidate.name == own and computation in ("", home.name)
    ]
    if not matches:
        names = [candidate.name for _, candidate in targets.instructions]
        raise InputError(f"{targets.module.name} has no instruction %{name} that runs{near_name(own, names)}")
    if len(matches) > 1:
        homes = ", ".join(f"{home.name}/{own}" for home, _ in matches)
        raise InputError(f"there are several instructions %{own}; say which of {homes}")
    ((home, instruction),) = matches
    if stop is not None and any(
        level.computation is home and kept.of(level.activation, own, stop.devices[0]) is not None
        for level in stop.levels
    ):
        raise InputError(
            f"%{own} has run, and others may have used its value; restart, break at {own} and set it there"
        )
    return instruction


def value_for(instruction: Instruction, value: object) -> Value:
    """A value of an instruction's shape, a copy; a Python number becomes an array full of it.

    InputError where the value is of another shape or element type.
    """
    label = f"the value for %{instruction.name}"
    shape = instruction.shape
    if isinstance(value, (bool, int, float, complex)) and isinstance(shape, ArrayShape) and shape.rank:
        (scalar,) = value_leaves(value, ArrayShape(shape.element_type, ()), label)
        value = np.broadcast_to(scalar, shape.dimensions)
    leaves = [leaf.copy() if isinstance(leaf, np.ndarray) else leaf for leaf in value_leaves(value, shape, label)]
    return value_of(shape, lambda number, _: leaves[number])


def require_same_arrays(instruction: Instruction, before: Value, after: Value) -> None:
    """InputError where an array has another size or type than the one that it replaces: extents may be dynamic."""
    for ours, theirs in zip(flat(before), flat(after), strict=True):
        if isinstance(ours, np.ndarray) and (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
            raise InputError(
                f"%{instruction.name} is {ours.dtype}{list(ours.shape)} in this run, but {theirs.dtype}"
                f"{list(theirs.shape)} was given"
            )


_KEPT = "1G"


def step(
    module: Module,
    inputs: Inputs | None,
    *,
    breakpoints: Sequence[str] = (),
    keep: int | str = _KEPT,
    observers: Sequence[Observer] = (),
    **options: Unpack[RunOptions],
) -> Stepper:
    """A run of a module that stands still at breakpoints, or after each instruction; it begins when told to go on.

    `breakpoints` are instructions' names, opcodes or op_names, with `*` and `?`, or FILE:LINE, each as
    `Stepper.break_at` takes it. Values of the computations that are under way are kept to be looked at, up to `keep`
    bytes; the oldest go first. `inputs`, `observers` and `options` are those of `run_devices` (`hloexec.Inputs`,
    `hloexec.RunOptions`). The module runs unoptimized, on any number of devices, and gives the same bits as
    `hloexec.run`.

        with hloexec.step(module, inputs, breakpoints=["dot*"]) as run:
            for stop in run:
                print(stop.name, stop.value)

    Raises InputError for invalid arguments, and what `run_devices` raises before a run starts.
    """
    require_module(module)
    resolved = attrs.evolve(resolve_options("step", options), planner=False)
    breakpoint_texts = texts("breakpoints", breakpoints)
    limit = byte_count("keep", keep)
    watchers = listed("observers", observers, "observers")
    # What keeps the module from running, and what is warned of, is the caller's, not that of a thread.
    plan_of(module, resolved, is_observed=True, is_controlled=resolved.numerics.rounds_every_value)
    stepper = Stepper(module, inputs, limit, watchers, resolved)
    for where in breakpoint_texts:
        stepper.break_at(where)
    return stepper


class Stepper(Described):
    """A run that goes on when it is told to; `step` makes one.

    What goes on returns the `Stop` at which the run stands still again, or None when it has ended. An instruction that
    fails is a stop, too; the error itself is raised when the run is told to go on from there. As an iterator, it gives
    the stops of `continue_`. Close it when it is no longer needed, or use it in a `with` statement.
    """

    def __init__(
        self, module: Module, inputs: Inputs | None, keep: int, observers: Sequence[Any], options: Options
    ) -> None:
        self.module = module
        self._inputs = inputs
        self._keep = keep
        self._observers = observers
        self._options = options
        topology = topology_of(module, options.replicas, options.partitions)
        name = options.computation
        entry = module.entry if name is None else module.by_name[name.removeprefix("%")]
        self._targets = Targets(module, entry, topology.count)
        self._breakpoints: list[Breakpoint] = []
        self._numbers = 0
        self._begin()

    def _begin(self) -> None:
        self._worker = Worker(self.module.name)
        self._controller = RunController(self._breakpoints, self._keep, self._worker)
        self._failed: Stop | None = None
        """Where the run was when it ended with an error that no instruction is to blame for."""
        self._worker.go(
            partial(run_with, self.module, self._inputs, self._options, [self._controller, *self._observers])
        )
        if self._worker.error is not None:
            raise self._worker.error

    @property
    def device_count(self) -> int:
        """How many devices the module runs on."""
        return self._targets.device_count

    # Breakpoints

    @property
    def breakpoints(self) -> tuple[Breakpoint, ...]:
        """Breakpoints and watches, in the order in which they were made."""
        return tuple(self._breakpoints)

    def break_at(
        self,
        where: str | None = None,
        *,
        iteration: int | None = None,
        device: int | None = None,
        condition: str | None = None,
    ) -> Breakpoint:
        """Stop after each run of some instructions.

        `where` is a pattern for names, opcodes, op_names or paths (`hloexec.tracing.Selection`), or FILE:LINE; None for
        any instruction. `iteration` is that of the innermost loop, counted from 0; without `where` and `condition`, the
        run stops where that iteration begins. `device` is one that must hold the value, and `condition` what must hold
        of the value (`stepping.condition`).

        InputError where nothing can ever meet it.
        """
        return self._add(where, iteration, device, condition)

    def watch(self, where: str) -> Breakpoint:
        """Stop where an instruction gives another value than when it ran before on the same device."""
        require_text("where", where, "an instruction's name")
        return self._add(where, None, None, None, is_watch=True)

    def _add(
        self, where: str | None, iteration: int | None, device: int | None, condition: str | None, **more: bool
    ) -> Breakpoint:
        for name, text in (("where", where), ("condition", condition)):
            if text is not None:
                require_text(name, text, "a text")
        for name, number in (("iteration", iteration), ("device", device)):
            if number is not None:
                require_integer(name, number, 0)
        new_breakpoint = made(self._targets, self._numbers + 1, where, iteration, device, condition, **more)
        self._numbers += 1
        self._breakpoints.append(new_breakpoint)
        return new_breakpoint

    def delete(self, number: int | None = None) -> None:
        """Delete a breakpoint or watch; all of them without a number."""
        kept = [entry for entry in self._breakpoints if number is not None and entry.number != number]
        if number is not None and len(kept) == len(self._breakpoints):
            numbers = ", ".join(str(entry.number) for entry in self._breakpoints)
            raise InputError(f"there is no breakpoint {number}" + (f"; there are {numbers}" if numbers else ""))
        self._breakpoints[:] = kept

    # Going on

    def continue_(self) -> Stop | None:
        """Go on to the next breakpoint, failure or the end."""
        return self._go(Going())

    def step(self, count: int = 1) -> Stop | None:
        """Go on for so many instructions, into calls, fusions, loops and branches."""
        require_integer("count", count, 1)
        return self._go(Going(count))

    def next(self, count: int = 1) -> Stop | None:
        """Go on for so many instructions of this computation or of its callers, over those that it calls."""
        require_integer("count", count, 1)
        stop = self.stop
        return self._go(Going(count, 0 if stop is None else len(stop.place.path), self._device(stop)))

    def out(self) -> Stop | None:
        """Go on until the computation has ended, and its caller with it; a loop ends after its last iteration."""
        stop = self.stop
        if stop is None or not stop.place.path:
            return self._go(Going())
        return self._go(Going(1, len(stop.place.path) - 1, self._device(stop)))

    def restart(self) -> None:
        """Begin again, with the same breakpoints; inputs that an infeed has taken do not come again."""
        self.close()
        for entry in self._breakpoints:
            entry.forget()
        self._begin()

    def interrupt(self) -> None:
        """Stop after the next instruction; for other threads and signals."""
        self._controller.is_interrupted = True

    def _device(self, stop: Stop | None) -> int | None:
        return None if stop is None else stop.devices[0]

    def _go(self, going: Going) -> Stop | None:
        worker = self._worker
        if worker.is_closed or worker.results is not None:
            state = "is closed" if worker.is_closed else "has ended"
            raise InputError(f"the run {state}; restart begins it again")
        if worker.error is not None:
            raise worker.error
        self._controller.going = going
        try:
            worker.go()
        except BaseException:
            worker.close()
            raise
        if worker.error is None:
            return worker.stop
        last = self._controller.last
        if isinstance(worker.error, HloError) and isinstance(last, Event):
            # Nothing that can be blamed on one instruction, such as a deadlock.
            self._failed = Stop("failed", last.failed(worker.error))
            return self._failed
        raise worker.error

    # Where it is

    @property
    def stop(self) -> Stop | None:
        """Where the run stands still; None before it begins, and when it has ended."""
        return self._worker.stop or self._failed

    @property
    def has_ended(self) -> bool:
        """Whether the run has come to its end, or has failed."""
        return self._worker.has_ended

    @property
    def has_failed(self) -> bool:
        """Whether the run has ended with an error, or stands still where it will."""
        return self._worker.error is not None or (self.stop is not None and self.stop.error is not None)

    @property
    def results(self) -> list[Value] | None:
        """The result on each device, when the run has ended."""
        return self._worker.results

    @property
    def levels(self) -> tuple[Level, ...]:
        """The computations that the run is in, the innermost first; after its end, the entry."""
        stop = self.stop
        last = self._controller.last
        if stop is None and self.has_ended and last is not None:
            stop = Stop("end", last)
        return () if stop is None else stop.levels

    # Values

    def value(self, name: str, *, level: int = 0, device: int | None = None) -> Value:
        """What an instruction has given, in one of the computations that the run is in (0: the innermost).

        `device` is one of those that hold it; by default the first of those that the run stands still for, or of all.
        InputError where it has not run, has no such instruction, or the value is no longer kept.
        """
        require_text("name", name, "an instruction's name")
        levels = self.levels
        if not levels:
            raise InputError("nothing has run yet")
        if not 0 <= level < len(levels):
            raise InputError(f"there is no level {level}; the run is in {len(levels)}, numbered from 0")
        self._targets.require_device(device)
        here = levels[level]
        instruction = found_instruction(here.computation, name, [entry.computation for entry in levels])
        stop = self.stop
        chosen = device if device is not None else 0 if stop is None else stop.devices[0]
        value = self._controller.kept.of(here.activation, instruction.name, chosen)
        if value is None:
            raise InputError(self._why_missing(here, instruction, chosen))
        return value

    def _why_missing(self, level: Level, instruction: Instruction, device: int) -> str:
        name, computation = instruction.name, level.computation
        if not self._controller.kept.is_under_way(level.activation, device):
            return f"device {device} is not in this run of {computation.name}; choose another"
        on = f" on device {device}" if self._targets.device_count > 1 else ""
        order = [entry.name for entry in self._targets.program.schedule(computation)]
        if name not in order:
            return f"%{name} in {computation.name} does not run: nothing needs it"
        if level.instruction.name in order and order.index(name) >= order.index(level.instruction.name):
            return f"%{name} in {computation.name} has not run yet{on}"
        return f"the value of %{name} is not kept any more{on}; keep more than {self._keep} bytes ({argument('keep')})"

    def set(self, name: str, value: object) -> None:
        """Replace the value of the instruction that the run stands still after, for all that use it.

        Where `name` is another instruction, the value takes the place of what that gives when it runs next. The value
        is an array of the instruction's shape, or nested tuples of them; a Python number fills an array. Only those of
        the devices that the run stands still for get it, or those that reach the other instruction first.
        """
        instruction = self.target(name)
        new = value_for(instruction, value)
        stop = self.stop
        if stop is None or instruction is not stop.instruction:
            self._controller.to_come[id(instruction)] = instruction, new
            return
        assert isinstance(stop.place, Event) and stop.value is not None
        require_same_arrays(instruction, stop.value, new)
        self._controller.replacement = new
        self._controller.kept.replace(stop.place, new)

    def target(self, name: str) -> Instruction:
        """The instruction whose value `set` replaces: the one that the run stands still after, or one that is to run.

        InputError where there is none of the name (`dot.3`, or `body/dot.3` where several are called so), it has run,
        or the numerics policy lets no value be replaced.
        """
        require_text("name", name, "an instruction's name")
        if not self._options.numerics.rounds_every_value:
            raise InputError(UNREPLACEABLE)
        if self.has_ended:
            raise InputError("the run has ended; a value can be set when it has been restarted")
        return replaceable(name.removeprefix("%"), self._targets, self.stop, self._controller.kept)

    # The end

    def close(self) -> None:
        """End the run; values that it holds are let go."""
        self._worker.close()

    def __enter__(self) -> Stepper:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_worker"):
            self.close()

    def __iter__(self) -> Iterator[Stop]:
        """The stops up to the end of the run."""
        while (stop := self.continue_()) is not None:
            yield stop

    def __str__(self) -> str:
        if self.stop is not None:
            return f"{self.module.name}, {self.stop}"
        state = "closed" if self._worker.is_closed else "ended" if self.has_ended else "not begun"
        return f"{self.module.name}, {state}"
