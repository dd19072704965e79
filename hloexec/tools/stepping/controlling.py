"""The controller of a run in a thread of its own: whether it stands still, where, and what it can show there."""

from __future__ import annotations

import contextvars
import threading
from collections import deque
from collections.abc import Callable

import attrs

from hloexec.analysis.numerics.leaves import LeafStatistics, statistics
from hloexec.core.ir import Computation, Instruction
from hloexec.core.places import PathEntry
from hloexec.core.structs import UNTOLD, define, frozen, told
from hloexec.core.values import Described, Value, arrays_of
from hloexec.engine.exec.observers import Activation, Event, Failure
from hloexec.errors import HloError
from hloexec.language.origins import hlo_line
from hloexec.tools.stepping.breakpoints import Breakpoint
from hloexec.tools.tracing.recording import is_renaming


@frozen(eq=False)
class Level(Described):
    """One of the computations that a run is in."""

    instruction: Instruction
    """Where in it the run is: the instruction that has just run or, further out, the one that is under way."""
    computation: Computation
    activation: Activation
    entered: PathEntry | None
    """The call of it; None for the entry."""

    def __str__(self) -> str:
        return f"%{self.instruction.name} in {self.computation.name}"


@frozen(eq=False)
class Stop(Described):
    """Where a run stands still: after an instruction, or at one that has failed."""

    reason: str
    """`breakpoint 1`, `watch 2`, `step`, `interrupted`, `failed` or `end`."""
    place: Event | Failure = attrs.field(metadata=UNTOLD)
    breakpoint: Breakpoint | None = attrs.field(default=None, metadata=UNTOLD)

    @property
    def instruction(self) -> Instruction:
        """The instruction that has run, or has failed."""
        return self.place.instruction

    @property
    @told
    def name(self) -> str:
        """Path and instruction, such as `while.3[5]:body/fusion.2/add.7`."""
        return self.place.name

    @property
    @told
    def iteration(self) -> int | None:
        """Of the innermost loop around it, counted from 0."""
        return self.place.iteration

    @property
    @told
    def devices(self) -> tuple[int, ...]:
        """The devices that hold the value."""
        return self.place.devices

    @property
    def value(self) -> Value | None:
        """What the instruction gave; None where it has failed."""
        return self.place.value if isinstance(self.place, Event) else None

    @property
    @told
    def error(self) -> HloError | None:
        """Why it has failed; None where it has not."""
        return self.place.error if isinstance(self.place, Failure) else None

    @property
    @told
    def hlo(self) -> str:
        """The instruction as HLO text."""
        return hlo_line(self.instruction)

    @property
    @told
    def leaves(self) -> tuple[LeafStatistics, ...]:
        """The arrays of what the instruction gave; none where it has failed."""
        return () if self.value is None else tuple(statistics(self.value))

    @property
    def levels(self) -> tuple[Level, ...]:
        """The computations that the run is in, the innermost first."""
        path = self.place.path
        instructions = [*(entry.instruction for entry in path), self.place.instruction]
        entered: list[PathEntry | None] = [None, *path]
        activations = self.place.activations()
        levels = [
            Level(*parts) for parts in zip(instructions, self.place.computations(), activations, entered, strict=True)
        ]
        return tuple(reversed(levels))

    def __str__(self) -> str:
        return f"{self.reason}: {self.name}"


class _Closed(BaseException):
    """Ends a run that nobody waits for any more. No error, so nothing on the way may take it for one."""


class Worker:
    """Runs a function that calls `wait` wherever it stands still."""

    def __init__(self, name: str) -> None:
        self._may_go = threading.Semaphore(0)
        self._stands = threading.Semaphore(0)
        self._is_closed = False
        self._thread: threading.Thread | None = None
        self._name = name
        self.stop: Stop | None = None
        """Where it stands still; None before it begins and when it has ended."""
        self.results: list[Value] | None = None
        self.error: BaseException | None = None

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def has_ended(self) -> bool:
        """Whether the run has come to its end, or to an error."""
        return self.results is not None or self.error is not None

    def go(self, function: Callable[[], list[Value]] | None = None) -> None:
        """Begin with a function, or go on; returns where it stands still again, or has ended."""
        if function is not None:
            context = contextvars.copy_context()
            self._thread = threading.Thread(
                target=context.run, args=(self._run, function), name=f"run of {self._name}", daemon=True
            )
            self._thread.start()
        else:
            self._may_go.release()
        self._stands.acquire()

    def wait(self, stop: Stop | None) -> None:
        """Called by the run where it stands still; returns when it is to go on."""
        if self._is_closed:
            raise _Closed
        self.stop = stop
        self._stands.release()
        self._may_go.acquire()
        self.stop = None
        if self._is_closed:
            raise _Closed

    def require_open(self) -> None:
        """Called by the run now and then: ends it where nobody waits for it."""
        if self._is_closed:
            raise _Closed

    def close(self) -> None:
        """End the run where it stands; one that is under way ends after the instruction that it is at."""
        if self._is_closed or self._thread is None:
            self._is_closed = True
            return
        self._is_closed = True
        self._may_go.release()
        if not self.has_ended and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self, function: Callable[[], list[Value]]) -> None:
        try:
            self.results = function()
        except _Closed as closed:
            self.error = closed
        except BaseException as error:
            # It is raised where the run was asked to go on.
            self.error = error
        finally:
            self.stop = None
            self._stands.release()


class Kept:
    """Values by the run of a computation, the instruction and the device; the oldest go where there are too many."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        """In bytes."""
        self._bytes = 0
        self._values: dict[Activation, dict[str, list[tuple[tuple[int, ...], Value]]]] = {}
        self._under_way: dict[int, tuple[Activation, ...]] = {}
        """The runs of computations that each device is in, outermost first."""
        self._last: tuple[object, ...] = ()
        """Where, and on which devices, the last value was made."""
        self._sizes: dict[Activation, int] = {}
        """The bytes of those values that are not others' as well."""
        self._order: deque[tuple[Activation, str, int]] = deque()
        """What takes room, the oldest first."""

    def add(self, event: Event) -> None:
        """Keep a value; those of computations that have ended go."""
        activation = event.activation
        here = (*activation, event.devices)
        if here != self._last:
            self._enter(event)
            self._last = here
        name = event.instruction.name
        self._values[activation].setdefault(name, []).append((event.devices, event.value))
        if not is_renaming(event.instruction):
            size = sum(leaf.nbytes for leaf in arrays_of(event.value))
            self._order.append((activation, name, size))
            self._sizes[activation] += size
            self._bytes += size
            while self._bytes > self._limit and len(self._order) > 1:
                self._forget()

    def replace(self, event: Event, value: Value) -> None:
        """Another value takes the place of the one that was kept last."""
        self._values[event.activation][event.instruction.name][-1] = (event.devices, value)

    def of(self, activation: Activation, name: str, device: int) -> Value | None:
        """What an instruction gave on a device; None where it has not run, or is not kept any more."""
        entries = self._values.get(activation, {}).get(name, ())
        return next((value for devices, value in entries if device in devices), None)

    def is_under_way(self, activation: Activation, device: int) -> bool:
        """Whether a device is in a run of a computation."""
        return activation in self._under_way.get(device, ())

    def _enter(self, event: Event) -> None:
        under_way = event.activations()
        for device in event.devices:
            self._under_way[device] = under_way
        alive = {activation for activations in self._under_way.values() for activation in activations}
        for ended in [activation for activation in self._values if activation not in alive]:
            del self._values[ended]
            self._bytes -= self._sizes.pop(ended)
        if len(self._order) > 4 * sum(map(len, self._values.values())) + 64:
            self._order = deque(entry for entry in self._order if entry[0] in self._values)
        for activation in under_way:
            self._values.setdefault(activation, {})
            self._sizes.setdefault(activation, 0)

    def _forget(self) -> None:
        activation, name, size = self._order.popleft()
        if activation in self._values:
            self._bytes -= size
            self._sizes[activation] -= size
            self._values[activation].pop(name, None)


@define
class Going:
    """How far a run goes on if no breakpoint comes first."""

    count: int = 0
    """After so many instructions; 0 for as far as there are any."""
    depth: int | None = None
    """Those count that are no further in than this; None: all."""
    device: int | None = None
    """Those count that run on this device; None: all."""

    def is_over(self, event: Event) -> bool:
        """Whether this instruction is the last; called for each."""
        if self.count <= 0:
            return False
        if self.device is not None and self.device not in event.devices:
            return False
        if self.depth is not None and len(event.path) > self.depth:
            return False
        self.count -= 1
        return self.count == 0


class RunController:
    """Watches one run (`exec.observers.Controller`), and lets its worker wait where it stands still."""

    def __init__(self, breakpoints: list[Breakpoint], limit: int, worker: Worker) -> None:
        self._breakpoints = breakpoints
        self._worker = worker
        self.kept = Kept(limit)
        self.going = Going()
        self._has_begun = False
        self.is_interrupted = False
        """Whether to stand still after the next instruction; another thread may ask for it."""
        self.last: Event | Failure | None = None
        """What has run last."""
        self.to_come: dict[int, tuple[Instruction, Value]] = {}
        """Values of instructions that have not run yet, by identity."""
        self.replacement: Value | None = None
        """The value that takes the place of the one that the run stands still after."""

    def on_value(self, event: Event) -> Value | None:
        """Called by the run after each instruction."""
        self._begin()
        self.last = event
        self.kept.add(event)
        self.replacement = None
        planned = self.to_come.pop(id(event.instruction), None) if self.to_come else None
        if planned is not None:
            self.replacement = planned[1]
            self.kept.replace(event, planned[1])
            event = attrs.evolve(event, value=planned[1])
        stop = self._stop(event)
        if stop is not None:
            self._worker.wait(stop)
        return self.replacement

    def on_failure(self, failure: Failure) -> None:
        """Called by the run where an instruction fails."""
        self._begin()
        self.last = failure
        self._worker.wait(Stop("failed", failure))

    def _begin(self) -> None:
        """The run waits to be told to begin when it has a first value, and nothing has been said of that."""
        self._worker.require_open()
        if not self._has_begun:
            self._has_begun = True
            self._worker.wait(None)

    def _stop(self, event: Event) -> Stop | None:
        hit: Breakpoint | None = None
        for entry in self._breakpoints:
            if entry.is_met(event) and hit is None:
                hit = entry
        is_over = self.going.is_over(event)
        if hit is not None:
            hit.hits += 1
            return Stop(f"{'watch' if hit.is_watch else 'breakpoint'} {hit.number}", event, hit)
        if is_over:
            return Stop("step", event)
        if self.is_interrupted:
            self.is_interrupted = False
            return Stop("interrupted", event)
        return None
