"""The library call `tpu_custom_call`: a kernel that Mosaic compiles for TPUs, as Pallas makes it.

Operands are dynamic grid bounds, prefetched scalars, and inputs, in this order; results are the outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import attrs
import numpy as np

from hloexec.core.ir import ArrayShape, Instruction, Shape, TupleShape, parts_of
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.core.wording import counted
from hloexec.errors import EvaluationError, ShapeError, UnsupportedError
from hloexec.ops.common import array_shape
from hloexec.ops.library_calls.mosaic.devices import Devices
from hloexec.ops.library_calls.mosaic.findings import reaching, shared_memory, tell
from hloexec.ops.library_calls.mosaic.grid import (
    Geometry,
    Operands,
    as_memory,
    check_end,
    geometry_of,
    prepared,
)
from hloexec.ops.library_calls.mosaic.ir import DYNAMIC, Kernel, Operation
from hloexec.ops.library_calls.mosaic.machine import Finding, Machine
from hloexec.ops.library_calls.mosaic.memory import undefined_value, whole
from hloexec.ops.library_calls.mosaic.operations.transfers import reaches_others
from hloexec.ops.library_calls.mosaic.ordering import Knowledge
from hloexec.ops.library_calls.mosaic.programs import Program, bound_program, malformed_named, reason_against
from hloexec.ops.library_calls.mosaic.reading import read_call
from hloexec.ops.library_calls.mosaic.turns import Turns
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy
from hloexec.ops.registry import custom_call


@frozen(eq=False)
class Config:
    """What a call says besides its operands: its kernel, and how that sees them."""

    kernel: Kernel
    geometry: Geometry
    aliases: tuple[tuple[int, int], ...]
    """Outputs with the operands of the call whose memory they share."""


def _config(instruction: Instruction) -> Config:
    call = read_call(instruction.backend_config or "")
    reason = reason_against(call.kernel)
    if reason is not None:
        raise UnsupportedError(reason)
    bound_program(call.kernel, REFERENCE)
    with malformed_named(call.kernel.describe()):
        return Config(call.kernel, geometry_of(call.kernel), shared_memory(instruction))


@custom_call("tpu_custom_call", config=_config)
class MosaicCall:
    """What a kernel computes that Mosaic compiles for TPUs (Pallas), on NumPy.

    The kernel is MLIR bytecode in the backend_config, which jaxlib reads (`hloexec[jax]`). Its body runs once per grid
    point, in order, on blocks of the operands; each operation of arith, math, vector, memref, scf and tpu rounds to the
    type of its result, as instructions of HLO do. One that sends to other devices runs on all of them at once. Kernels
    that run on SparseCores, or that have operations without a public definition (random bits of the hardware) are
    refused by name. A warning tells what hardware hides: results that depend on memory that nothing wrote, accesses
    beyond a buffer, memory that is used while a transfer is under way or that another device uses at any time,
    semaphores that do not end at zero, and blocks that several points of parallel grid dimensions write. Source: JAX,
    Pallas for TPUs and the tpu dialect; MLIR, its dialects.
    """

    @staticmethod
    def infer(*operands: Shape, config: Config, shape: Shape) -> Shape:
        geometry, results = config.geometry, parts_of(shape)
        arrays = [array_shape(operand, "an operand of a kernel") for operand in operands]
        inputs = len(geometry.operands) - len(results)
        taken = geometry.dynamic_count + len(geometry.prefetched) + inputs
        if inputs < 0 or len(arrays) != taken:
            raise ShapeError(
                f"{config.kernel.describe()} takes {counted(max(taken, 0), 'operand')} and gives "
                f"{counted(len(results), 'result')}, but has {len(arrays)}"
            )
        views = (*arrays[geometry.dynamic_count + len(geometry.prefetched) :], *results)
        for number, (view, window) in enumerate(zip(views, geometry.windows, strict=True)):
            array, value_type = array_shape(view, "a result of a kernel"), geometry.operands[number]
            if "transform_indices" not in window and array.dimensions != value_type.dimensions:
                subject = f"operand {number} of {config.kernel.describe()}"
                raise ShapeError(f"{subject} is {array}, but the kernel takes {value_type.text}")
        for output, operand in config.aliases:
            one, two = (item[place : place + 1] for item, place in ((results, output), (arrays, operand)))
            if not one or not two or one[0].dimensions != two[0].dimensions:  # type: ignore[union-attr]
                raise ShapeError(f"output {output} cannot share the memory of operand {operand}")
        return shape

    @staticmethod
    def evaluate(
        *operands: Array,
        config: Config,
        shape: Shape,
        numerics: NumericsPolicy = REFERENCE,
    ) -> Any:
        if has_communication(config.kernel):
            raise UnsupportedError(
                f"{config.kernel.describe()} has to do with other devices, and can only be run on all of them at once"
            )
        return _results_of(config, {0: operands}, shape, numerics, are_several=False)[0]

    @staticmethod
    def meets(instruction: Instruction) -> bool:
        try:
            return has_communication(read_call(instruction.backend_config or "").kernel)
        except UnsupportedError:
            return False

    @staticmethod
    def exchange(
        members: Mapping[int, Sequence[Array]],
        *,
        config: Config,
        shape: Shape,
        numerics: NumericsPolicy = REFERENCE,
    ) -> dict[int, Any]:
        return _results_of(config, members, shape, numerics, are_several=True)


@lru_cache(maxsize=256)
def has_communication(kernel: Kernel) -> bool:
    """Whether a kernel has to do with other devices, or with which one it runs on."""
    return any(map(reaches_others, kernel.operations()))


def _results_of(
    config: Config,
    members: Mapping[int, Sequence[Array]],
    shape: Shape,
    numerics: NumericsPolicy,
    *,
    are_several: bool,
) -> dict[int, Any]:
    """What each device gets; what is found is warned about."""
    shapes = tuple(array_shape(part, "a result") for part in parts_of(shape))
    # Reshapes of memrefs need memory that lies in one piece.
    operands = {device: tuple(np.asarray(array, order="C") for array in arrays) for device, arrays in members.items()}
    run = _Run(config, bound_program(config.kernel, numerics), operands, shapes, are_several)
    results, machines = run.once()
    findings = [(machine.device, finding) for machine in machines for finding in machine.findings.values()]
    _tell(config.kernel, [*findings, *run.reaching(results, machines)], are_several=are_several)
    return {device: parts if isinstance(shape, TupleShape) else parts[0] for device, parts in results.items()}


def _tell(kernel: Kernel, findings: Sequence[tuple[int, Finding]], *, are_several: bool) -> None:
    merged: dict[tuple[str, str], Finding] = {}
    for device, finding in findings:
        key = finding.place, finding.clause
        before = merged.setdefault(key, finding)
        if are_several:
            merged[key] = attrs.evolve(before, devices=(*before.devices, device))
    tell(kernel, [*merged.values()])


_Results = Mapping[int, tuple[Array, ...]]
"""By device."""


@frozen(eq=False)
class _Run:
    """A kernel with its operands; it can run again, with other values where memory is undefined."""

    config: Config
    program: Program
    operands: Mapping[int, tuple[Array, ...]]
    """By device."""
    shapes: tuple[ArrayShape, ...]
    are_several: bool
    """Whether devices reach one another."""

    def once(self, others: Sequence[Operation] = (), *, is_reversed: bool = False) -> tuple[_Results, list[Machine]]:
        """The results, and the machines, done; `others` are operations that read other undefined values, and parallel
        dimensions of the grid are gone through from the end if `is_reversed`."""
        kernel, count = self.config.kernel, len(self.operands)
        undefined = dict.fromkeys(others, True)
        machines = [
            Machine([None] * kernel.value_count, others=undefined, device=device, is_reversed=is_reversed)
            for device in self.operands
        ]
        for machine in machines if self.are_several else ():
            machine.knowledge = Knowledge(machine.device, [int(other == machine.device) for other in range(count)])
        with np.errstate(all="ignore"):
            views = [self._views(operands) for operands in self.operands.values()]
            try:
                bodies = [
                    prepared(self.program, self.config.geometry, view, machine)
                    for view, machine in zip(views, machines, strict=True)
                ]
                self._run_all(machines, bodies)
            except EvaluationError as error:
                raise EvaluationError(f"{kernel.describe()}: {error.message}") from None
        results = {}
        for machine, view in zip(machines, views, strict=True):
            check_end(kernel, machine)
            results[machine.device] = self._outputs(view, machine)
        return results, machines

    def _run_all(self, machines: Sequence[Machine], bodies: Sequence[Callable[[], None]]) -> None:
        if not self.are_several:
            bodies[0]()
            return
        devices = Devices({machine.device: machine for machine in machines}, Turns(bodies))
        for machine in machines:
            machine.devices = devices
        devices.run()

    def _outputs(self, views: Operands, machine: Machine) -> tuple[Array, ...]:
        """What is in the outputs of a device; it is noticed what nothing has written."""
        outputs = views.views[views.input_count :]
        for number, ref in enumerate(outputs):
            if not ref.defined.all():
                element = self.config.geometry.operands[views.input_count + number].element_type
                ref.array[np.logical_not(ref.defined)] = undefined_value(element)
                machine.operation = self.config.kernel.main
                machine.report(f"leaves elements of {ref.name} that nothing has written")
        return tuple(
            ref.array.view(shape.element_type.storage) for ref, shape in zip(outputs, self.shapes, strict=True)
        )

    def reaching(self, results: _Results, machines: Sequence[Machine]) -> list[tuple[int, Finding]]:
        """What results depend on: reads of undefined elements, where they change with what stands for them, and the
        order of parallel dimensions, where they change with that."""
        ordered = [(machine.device, finding) for machine in machines for finding in machine.ordered.values()]
        if ordered and not self._changes(results, is_reversed=True):
            ordered = []
        return [*ordered, *self._undefined(results, machines)]

    def _undefined(self, results: _Results, machines: Sequence[Machine]) -> list[tuple[int, Finding]]:
        operations = [*dict.fromkeys(operation for machine in machines for operation in machine.undefined_reads)]
        reached = reaching(operations, lambda others: self._changes(results, others))
        return [
            (machine.device, finding)
            for machine in machines
            for operation, finding in machine.undefined_reads.items()
            if operation in reached
        ]

    def _changes(self, results: _Results, others: Sequence[Operation] = (), *, is_reversed: bool = False) -> bool:
        """Whether results are others if some operations read other undefined values, or in another order."""
        again, _ = self.once(others, is_reversed=is_reversed)
        return any(
            one.tobytes() != two.tobytes()
            for device, parts in results.items()
            for one, two in zip(parts, again[device], strict=True)
        )

    def _views(self, arguments: Sequence[Array]) -> Operands:
        """What the kernel is given: inputs as they are, outputs undefined, or what the operand is that they share."""
        geometry, operands = self.config.geometry, list(arguments)
        dynamic = iter(operands[: geometry.dynamic_count])
        bounds = tuple(int(next(dynamic)) if size == DYNAMIC else size for size in geometry.bounds)
        arrays = operands[geometry.dynamic_count :]
        count = len(geometry.prefetched)
        types = (*geometry.prefetched, *geometry.operands)
        shared = {operand - geometry.dynamic_count: output for output, operand in self.config.aliases}
        inputs = []
        for number, array in enumerate(arrays):
            subject = f"prefetched operand {number}" if number < count else f"input {number - count}"
            memory = as_memory(array, types[number], subject)
            # What is in near memory when the kernel starts is a copy, which kernels may use as they like.
            is_moved = number >= count and "transform_indices" in geometry.windows[number - count]
            is_near = types[number].memory_space in ("smem", "vmem") and not is_moved
            is_own = number in shared or is_near
            memory = memory.copy() if is_own else memory.view()
            memory.flags.writeable = is_own
            inputs.append(whole(memory, subject))
        outputs = []
        by_output = {output: operand for operand, output in shared.items()}
        for number, shape in enumerate(self.shapes):
            value_type = types[len(arrays) + number]
            if number in by_output:
                outputs.append(inputs[by_output[number]])
                continue
            array = np.full(shape.dimensions, undefined_value(value_type.element_type), value_type.element_type.storage)
            outputs.append(whole(array, f"output {number}", is_defined=False))
        return Operands(bounds, tuple(inputs[:count]), (*inputs[count:], *outputs), len(arrays) - count)
