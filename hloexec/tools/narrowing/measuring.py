"""Running a module, over several steps where outputs are carried to inputs, and comparing what two modules give.

How far the outputs of a narrowed module lie from those of the original, element by element.

The error of an element is |changed - original| / max(|original|, m), where m is the median of the magnitudes of the
array's elements that are finite and not zero. An element of at least the typical size is thus held to its own size, and
a smaller one to the typical: a relative error alone would never allow an element near zero to change, and a norm of the
array would let a small one change by any factor where a few are large. Of a scalar it is the relative error. An element
that is not finite has to stay what it is, and so have integers and booleans; where all elements are zero, all have to
stay zero.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from hloexec.core.dtypes import ElementType, element_type_of
from hloexec.core.ir import Module
from hloexec.core.structs import define, frozen
from hloexec.core.values import Array, Inputs, Value, labelled_arrays
from hloexec.engine.exec.arguments import inputs_by_device
from hloexec.engine.exec.observers import Event
from hloexec.engine.exec.running import run_with
from hloexec.engine.options import Options
from hloexec.ops.common import is_inexact, widen
from hloexec.ops.relations import Place
from hloexec.tools.narrowing.carrying import Carried, with_leaves
from hloexec.tools.narrowing.findings import Deviation


@frozen(eq=False)
class Expected:
    """An array of the original's outputs, and what the errors of its elements are relative to."""

    array: Array
    sizes: Array | None
    """None where elements have to stay as they are."""

    @classmethod
    def of(cls, array: Array) -> Expected:
        if not is_inexact(array):
            return cls(array, None)
        magnitudes = np.abs(_in_double(array))
        numbers = magnitudes[np.isfinite(magnitudes) & (magnitudes > 0)]
        typical = float(np.median(numbers)) if numbers.size else 0.0
        return cls(array, np.maximum(magnitudes, typical))


def worst_element(expected: Expected, changed: Array) -> tuple[float, tuple[int, ...]]:
    """The largest error of an element and where it is; infinity where an element changed that has to stay, or extents
    did."""
    if changed.shape != expected.array.shape:
        return math.inf, ()
    if not changed.size:
        return 0.0, ()
    with np.errstate(all="ignore"):
        if expected.sizes is None:
            errors = np.where(expected.array != changed, math.inf, 0.0)
        else:
            before, after = _in_double(expected.array), _in_double(changed)
            errors = np.abs(after - before) / expected.sizes
            same = (before == after) | (np.isnan(before) & np.isnan(after))
            errors = np.where(same, 0.0, np.where(np.isfinite(before) & np.isfinite(after), errors, math.inf))
    place = int(errors.argmax())
    index = tuple(int(number) for number in np.unravel_index(place, errors.shape))
    return float(errors.reshape(-1)[place]), index


def _in_double(array: Array) -> Array:
    """The array in f64, or in c128."""
    element_type: ElementType = element_type_of(array.dtype)
    return widen(array).astype(np.complex128 if element_type.is_complex else np.float64)


@define
class _Range:
    runs: float = 0.0
    largest: float = 0.0
    """The largest finite magnitude of its operands and its result."""
    infinities: int = 0
    """How many elements of operands and result are infinite."""
    not_finite: int = 0
    """How many elements of its result are infinite or NaN."""


class Ranges:
    """An observer of the magnitudes of values: of instructions in `closely`, of their operands, too."""

    def __init__(self, closely: Collection[Place] = ()) -> None:
        self._closely = frozenset(closely)
        self.found: dict[Place, _Range] = {}
        self.longest_loop = 0
        """The number of iterations of the longest loop."""

    def on_instruction(self, event: Event) -> None:
        """Called by the run."""
        place = (event.computation.name, event.instruction.name)
        found = self.found.setdefault(place, _Range())
        count = len(event.devices)
        found.runs += count
        self.longest_loop = max(self.longest_loop, (event.iteration or 0) + 1)
        if not isinstance(event.value, np.ndarray) or not _is_float(event.value):
            return
        largest, infinities, nans = _extent(event.value)
        found.not_finite += count * (infinities + nans)
        if place in self._closely:
            arrays = [operand for operand in event.operands if isinstance(operand, np.ndarray)]
            extents = [_extent(operand) for operand in arrays if _is_float(operand)]
            found.largest = max(found.largest, largest, *(extent[0] for extent in extents))
            found.infinities += infinities + sum(extent[1] for extent in extents)


@frozen(eq=False)
class Reference:
    """What the original gives for some inputs."""

    number: int
    """Of the inputs, from 0."""
    inputs: Sequence[Sequence[Value]]
    """A list for all devices, or one for each."""
    expected: Sequence[Sequence[Mapping[str, Expected]]]
    """By step and device, the outputs that are held to a tolerance."""


@frozen(eq=False)
class Measurer:
    """Runs modules that have the same parameters and results."""

    module: Module
    steps: int
    carried: Carried | None
    tolerances: Mapping[str, float]
    """Of the outputs that are compared."""
    options: Options
    """Of runs."""

    def reference(self, number: int, inputs: Inputs, observers: Sequence[Any] = ()) -> Reference:
        """Run the original."""
        given = inputs_by_device(self.module.entry, inputs)
        expected = [
            [{label: Expected.of(outputs[label]) for label in self.tolerances} for outputs in devices]
            for devices in self._outputs(self.module, given, self.options, observers)
        ]
        return Reference(number, given, expected)

    def deviations(
        self,
        module: Module,
        reference: Reference,
        *,
        stop_beyond: float = math.inf,
        observers: Sequence[Any] = (),
        **limits: Any,
    ) -> dict[str, Deviation]:
        """The worst element of each output of another module; the run ends where a severity is beyond a limit."""
        worst: dict[str, Deviation] = {}
        run = self._outputs(module, reference.inputs, attrs.evolve(self.options, **limits), observers)
        for step, (devices, expected) in enumerate(zip(run, reference.expected, strict=True)):
            for device, (outputs, wanted) in enumerate(zip(devices, expected, strict=True)):
                for label, tolerance in self.tolerances.items():
                    error, index = worst_element(wanted[label], outputs[label])
                    known = worst.get(label)
                    if known is None or error > known.error:
                        ends = _element(wanted[label].array, index), _element(outputs[label], index)
                        place = (label, index, reference.number, step, device)
                        worst[label] = Deviation(*place, *ends, error, tolerance)
                    if error > stop_beyond * tolerance:
                        return worst
        return worst

    def _outputs(
        self, module: Module, inputs: Sequence[Sequence[Value]], options: Options, observers: Sequence[Any]
    ) -> Iterator[list[dict[str, Array]]]:
        """The arrays of the result on each device, by label, step by step."""
        given = list(inputs)
        for step in range(self.steps):
            results = run_with(module, given, options, observers)
            found = list(map(labelled_arrays, results))
            yield found
            if self.carried is not None and step + 1 < self.steps:
                rows = given if len(given) == len(found) else given * len(found)
                given = [
                    with_leaves(row, {parameter: outputs[output] for output, parameter in self.carried.pairs})
                    for row, outputs in zip(rows, found, strict=True)
                ]


def worst_of(deviations: Mapping[str, Deviation]) -> Deviation:
    """The one of the greatest severity."""
    return max(deviations.values(), key=lambda each: each.severity)


def _is_float(array: Array) -> bool:
    return element_type_of(array.dtype).is_floating


def _extent(array: Array) -> tuple[float, int, int]:
    """The largest finite magnitude, and how many elements are infinite and NaN."""
    magnitudes = np.abs(widen(array))
    finite = np.isfinite(magnitudes)
    if finite.all():
        return float(magnitudes.max(initial=0)), 0, 0
    nans = int(np.count_nonzero(np.isnan(magnitudes)))
    infinities = int(magnitudes.size - np.count_nonzero(finite)) - nans
    return float(magnitudes.max(initial=0, where=finite)), infinities, nans


def _element(array: Array, index: tuple[int, ...]) -> Any:
    return widen(array)[index].item() if array.size and len(index) == array.ndim else 0
