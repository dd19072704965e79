"""One core that runs a kernel: the values that operations have given, the grid point, transfers, and what is noticed.

What hardware hides is noticed here: reads of elements that nothing has written, accesses beyond a buffer, memory that
is touched while a transfer to it or from it is under way, and semaphores that do not come back to zero.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from hloexec.core.dtypes import ElementType, element_type_of
from hloexec.core.structs import define, frozen
from hloexec.core.values import Array
from hloexec.core.wording import on_devices
from hloexec.errors import EvaluationError
from hloexec.ops import interruption
from hloexec.ops.library_calls.mosaic.ir import Operation
from hloexec.ops.library_calls.mosaic.memory import Index, Ref, other_value, undefined_value
from hloexec.ops.library_calls.mosaic.ordering import Knowledge, Shared

if TYPE_CHECKING:
    from hloexec.ops.library_calls.mosaic.devices import Devices


@frozen
class Finding:
    """Something that hardware does not report."""

    clause: str
    """What happened, as a clause without a subject, `reads elements of … that nothing has written`."""
    place: str
    """The operation and where its source is."""
    point: tuple[int, ...]
    """The grid point at which it happened first."""
    detail: str = ""
    """With which other devices it happened first."""
    devices: tuple[int, ...] = ()
    """The devices of several that did it."""

    def __str__(self) -> str:
        first = [self.detail] * bool(self.detail) + [f"at grid point {self.point}"] * bool(self.point)
        where = f", first {' '.join(first)}" if first else ""
        return f"{self.place}{on_devices(self.devices)} {self.clause}{where}".strip()


@define(eq=False)
class Transfer:
    """A copy that has been started, and not been waited for."""

    source: Ref | None
    """None where that is another device's."""
    target: Ref | None
    semaphore: Ref
    bytes: int
    place: str
    """Where it has been started."""
    sender: int | None = None
    """The device that has started it, if another one."""

    @property
    def started(self) -> str:
        return self.place if self.sender is None else f"{self.place} of another device"

    @property
    def detail(self) -> str:
        return "" if self.sender is None else f"from device {self.sender}"


@define(eq=False)
class Machine:
    """One core; the kernel's values have their numbers as places in `frame`."""

    frame: list[Any]
    bounds: tuple[int, ...] = ()
    """Of the grid."""
    point: tuple[int, ...] = ()
    """The grid point that is run."""
    operation: Operation | None = None
    """What is run: of operations that take the machine."""
    findings: dict[tuple[str, str], Finding] = attrs.Factory(dict)
    undefined_reads: dict[Operation, Finding] = attrs.Factory(dict)
    """By operation, the first read of undefined elements; whether they reach a result is another question."""
    others: Mapping[Operation, bool] = attrs.Factory(dict)
    """The operations that read another value where elements are undefined."""
    transfers: list[Transfer] = attrs.Factory(list)
    semaphores: list[Ref] = attrs.Factory(list)
    barrier: Ref | None = None
    ordered: dict[tuple[str, str], Finding] = attrs.Factory(dict)
    """What may depend on the order of parallel grid dimensions."""
    outputs: tuple[Array, ...] = ()
    """The buffers of outputs that are written where they lie; of a grid with several places of parallel dimensions."""
    is_reversed: bool = False
    """Whether it goes through parallel grid dimensions from the end."""
    has_aged: bool = False
    """Whether it has come to a second place of them."""
    device: int = 0
    devices: Devices | None = None
    """Those that run the kernel with this one."""
    knowledge: Knowledge | None = None
    """What it knows of them."""

    def tick(self) -> None:
        """Called once per grid point, or program instances that run at once, and iteration: ends what has to end."""
        interruption.require_going()
        if self.devices is not None:
            self.devices.turns.require_going()

    def share(self, key: Hashable, ref: Ref) -> None:
        """Let other devices reach a buffer, by what is the same on all of them."""
        if self.knowledge is not None:
            self.knowledge.shared[key] = Shared(ref)

    def note(self, part: Ref | None, *, is_write: bool, place: str | None = None) -> None:
        """Remember an access, of the operation that is run if not another, for what other devices do there."""
        if self.knowledge is not None and part is not None:
            self.knowledge.note(part, self.place if place is None else place, is_write=is_write)

    def report(self, clause: str, detail: str = "") -> None:
        """Note what the operation that is run does; the first time counts."""
        place = self.place
        self.findings.setdefault((place, clause), Finding(clause, place, self.point, detail))

    @property
    def place(self) -> str:
        """The operation that is run, and its source; empty where that is the whole kernel."""
        is_whole = self.operation is None or self.operation.name.endswith(".func")
        return "" if self.operation is None or is_whole else self.operation.place

    def fault(self, clause: str) -> EvaluationError:
        """An error of the operation that is run: `clause` is one without a subject."""
        where = f" at grid point {self.point}" if self.point else ""
        where += "" if self.devices is None else on_devices([self.device])
        return EvaluationError(f"{self.place}{where} {clause}")

    def load(self, ref: Ref, index: Index) -> Array:
        """Elements of a view, which lie inside of it, as an array of their own."""
        ref = ref.refreshed()
        if self.transfers or self.knowledge is not None:
            self._check_transfers(ref, index, is_write=False)
        self.check_order(ref, index, is_write=False)
        values, defined = ref.array[index], np.asarray(ref.defined[index])
        return self._with_undefined(np.array(values), defined, ref.name)

    def _with_undefined(self, values: Array, defined: Array, name: str) -> Array:
        if defined.all():
            return values
        assert self.operation is not None
        clause = f"reads elements of {name} that nothing has written"
        self.undefined_reads.setdefault(self.operation, Finding(clause, self.operation.place, self.point))
        values[np.logical_not(defined)] = self.undefined(element_type_of(values.dtype))
        return values

    def undefined(self, element: ElementType) -> Any:
        """The value that stands for what the operation that is run reads where nothing has been written."""
        return other_value(element) if self.operation in self.others else undefined_value(element)

    def store(self, ref: Ref, index: Index, values: Any, mask: Array | None = None) -> None:
        """Write to elements of a view, which lie inside of it."""
        if self.transfers or self.knowledge is not None:
            self._check_transfers(ref, index, is_write=True)
        if not ref.buffer.flags.writeable:
            raise self.fault(f"writes to {ref.name}, which is an input that no output shares memory with")
        self.check_order(ref, index, is_write=True)
        ref.store(index, values, mask)

    def window(self, ref: Ref, starts: Sequence[int], sizes: Sequence[int], strides: Sequence[int]) -> Window:
        """The part of a view that begins at `starts`; it is noticed where some of it lies beyond the view."""
        ends = [start + (size - 1) * stride + 1 for start, size, stride in zip(starts, sizes, strides, strict=True)]
        if all(start >= 0 and end <= size for start, end, size in zip(starts, ends, ref.array.shape, strict=True)):
            return Window(tuple(map(slice, starts, ends, strides)), None, tuple(sizes))
        kept, places = [], []
        for start, size, stride, extent in zip(starts, sizes, strides, ref.array.shape, strict=True):
            first = 0 if start >= 0 else -(start // stride)
            last = min(size, -((start - extent) // stride))
            kept.append(slice(first, max(first, last)))
            begin = max(start + first * stride, 0)
            places.append(slice(begin, begin + max(0, last - first) * stride, stride))
        self.report(
            f"accesses {list(sizes)} elements at {list(starts)}, which do not all lie within "
            f"the {list(ref.array.shape)} of {ref.name}"
        )
        return Window(tuple(places), tuple(kept), tuple(sizes))

    def check_order(self, ref: Ref, index: Index, *, is_write: bool) -> None:
        """Note what has been written at other places of the parallel dimensions: what is read of it, and what is
        written once more."""
        is_met = self.has_aged and ref.packed is None and ref.has_aged(index)
        if is_met and (not is_write or any(ref.buffer is buffer for buffer in self.outputs)):
            verb = "writes" if is_write else "reads"
            self.note_order(
                f"{verb} elements of {ref.name} that another point of its parallel grid dimensions has written"
            )

    def note_order(self, clause: str) -> None:
        """Note what the operation that is run does, if results turn out to depend on the order of grid points."""
        self.ordered.setdefault((self.place, clause), Finding(clause, self.place, self.point))

    def _check_transfers(self, ref: Ref, index: Index, *, is_write: bool) -> None:
        part = ref.view(index) if ref.packed is None else ref
        self.note(part, is_write=is_write)
        for transfer in self.transfers:
            if transfer.target is not None and transfer.target.overlaps(part):
                verb = "writes to" if is_write else "reads"
                clause = f"{verb} {ref.name} while the transfer to it that {transfer.started} starts is under way"
                self.report(clause, transfer.detail)
            elif is_write and transfer.source is not None and transfer.source.overlaps(part):
                self.report(f"writes to {ref.name} while the transfer that {transfer.started} starts reads it")


@frozen(eq=False)
class Window:
    """Where the elements of an access lie in a view, and which of them these are if some lie beyond it."""

    index: Index
    kept: Index | None
    """None where all of them lie inside."""
    sizes: tuple[int, ...]
