"""One core that runs a kernel: the values that operations have given, the grid point, transfers, and what is noticed.

What hardware hides is noticed here: reads of elements that nothing has written, accesses beyond a buffer, memory that
is touched while a transfer to it or from it is under way, and semaphores that do not come back to zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from hloexec.core.dtypes import ElementType, element_type_of
from hloexec.core.structs import define, frozen
from hloexec.core.values import Array
from hloexec.errors import EvaluationError
from hloexec.ops.library_calls.mosaic.ir import Operation
from hloexec.ops.library_calls.mosaic.memory import Index, Ref, other_value, undefined_value


@frozen
class Finding:
    """Something that hardware does not report."""

    clause: str
    """What happened, as a clause without a subject, `reads elements of … that nothing has written`."""
    place: str
    """The operation and where its source is."""
    point: tuple[int, ...]
    """The grid point at which it happened first."""

    def __str__(self) -> str:
        where = f", first at grid point {self.point}" if self.point else ""
        return f"{self.place} {self.clause}{where}".strip()


@define(eq=False)
class Transfer:
    """A copy that has been started, and not been waited for."""

    source: Ref
    target: Ref
    semaphore: Ref
    bytes: int
    started: str
    """Where."""


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
    has_met_parallel_writes: bool = False

    def report(self, clause: str) -> None:
        """Note what the operation that is run does; the first time counts."""
        place = self._place()
        self.findings.setdefault((place, clause), Finding(clause, place, self.point))

    def _place(self) -> str:
        """The operation that is run, and its source; empty where that is the whole kernel."""
        is_whole = self.operation is None or self.operation.name.endswith(".func")
        return "" if self.operation is None or is_whole else self.operation.place

    def fault(self, clause: str) -> EvaluationError:
        """An error of the operation that is run: `clause` is one without a subject."""
        where = f" at grid point {self.point}" if self.point else ""
        return EvaluationError(f"{self._place()}{where} {clause}")

    def load(self, ref: Ref, index: Index) -> Array:
        """Elements of a view, which lie inside of it, as an array of their own."""
        ref = ref.refreshed()
        if self.transfers:
            self._check_transfers(ref, index, is_write=False)
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
        if self.transfers:
            self._check_transfers(ref, index, is_write=True)
        if not ref.buffer.flags.writeable:
            raise self.fault(f"writes to {ref.name}, which is an input that no output shares memory with")
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

    def _check_transfers(self, ref: Ref, index: Index, *, is_write: bool) -> None:
        part = ref.view(index) if ref.packed is None else ref
        for transfer in self.transfers:
            if transfer.target.overlaps(part):
                verb = "writes to" if is_write else "reads"
                self.report(f"{verb} {ref.name} while the transfer to it that {transfer.started} starts is under way")
            elif is_write and transfer.source.overlaps(part):
                self.report(f"writes to {ref.name} while the transfer that {transfer.started} starts reads it")


@frozen(eq=False)
class Window:
    """Where the elements of an access lie in a view, and which of them these are if some lie beyond it."""

    index: Index
    kept: Index | None
    """None where all of them lie inside."""
    sizes: tuple[int, ...]
