"""The library call `tpu_custom_call`: a kernel that Mosaic compiles for TPUs, as Pallas makes it.

Operands are dynamic grid bounds, prefetched scalars, and inputs, in this order; results are the outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from hloexec.core.ir import ArrayShape, Instruction, Shape, TupleShape, parts_of
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.core.wording import counted
from hloexec.errors import EvaluationError, ShapeError, UnsupportedError
from hloexec.ops.common import array_shape
from hloexec.ops.library_calls.mosaic.findings import reaching, shared_memory, tell
from hloexec.ops.library_calls.mosaic.grid import Geometry, Operands, as_memory, geometry_of, run_kernel
from hloexec.ops.library_calls.mosaic.ir import DYNAMIC, Kernel, Operation
from hloexec.ops.library_calls.mosaic.machine import Machine
from hloexec.ops.library_calls.mosaic.memory import undefined_value, whole
from hloexec.ops.library_calls.mosaic.programs import Program, bound_program, malformed_named, reason_against
from hloexec.ops.library_calls.mosaic.reading import read_call
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
    type of its result, as instructions of HLO do. Kernels that send to other devices, that run on SparseCores, or that
    have operations without a public definition (random bits of the hardware) are refused by name. A warning tells what
    hardware hides: results that depend on memory that nothing wrote, accesses beyond a buffer, memory that is used
    while a transfer is under way, semaphores that do not end at zero, and blocks that several points of parallel grid
    dimensions write. Source: JAX, Pallas for TPUs and the tpu dialect; MLIR, its dialects.
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
        shapes = tuple(array_shape(part, "a result") for part in parts_of(shape))
        run = _Run(config, bound_program(config.kernel, numerics), operands, shapes)
        results, machine = run.once()
        tell(config.kernel, [*machine.findings.values(), *reaching(run.once, results, machine)])
        return results if isinstance(shape, TupleShape) else results[0]


@frozen(eq=False)
class _Run:
    """A kernel with its operands; it can run again, with other values where memory is undefined."""

    config: Config
    program: Program
    operands: tuple[Array, ...]
    shapes: tuple[ArrayShape, ...]

    def once(self, others: Sequence[Operation] = ()) -> tuple[tuple[Array, ...], Machine]:
        """The results, and the machine when it is done; `others` are operations that read other undefined values."""
        machine = Machine([None] * self.config.kernel.value_count, others=dict.fromkeys(others, True))
        with np.errstate(all="ignore"):
            views = self._views()
            try:
                run_kernel(self.program, self.config.geometry, views, machine)
            except EvaluationError as error:
                raise EvaluationError(f"{self.config.kernel.describe()}: {error.message}") from None
        outputs = views.views[views.input_count :]
        for number, ref in enumerate(outputs):
            if not ref.defined.all():
                element = self.config.geometry.operands[views.input_count + number].element_type
                ref.array[np.logical_not(ref.defined)] = undefined_value(element)
                machine.operation = self.config.kernel.main
                machine.report(f"leaves elements of {ref.name} that nothing has written")
        results = tuple(
            ref.array.view(shape.element_type.storage) for ref, shape in zip(outputs, self.shapes, strict=True)
        )
        return results, machine

    def _views(self) -> Operands:
        """What the kernel is given: inputs as they are, outputs undefined, or what the operand is that they share."""
        geometry, operands = self.config.geometry, list(self.operands)
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
