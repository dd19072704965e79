"""The library call `__gpu$xla.gpu.triton`: a kernel in Triton's dialect, as Pallas makes it for GPUs.

Its operands and results, in this order, are the pointers that the kernel takes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hloexec.core.ir import ArrayShape, Instruction, Shape, TupleShape, parts_of
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.core.wording import quoted
from hloexec.errors import EvaluationError, ShapeError, UnsupportedError
from hloexec.ops.common import array_shape
from hloexec.ops.library_calls.configs import Attributes, bytes_of_attribute
from hloexec.ops.library_calls.mosaic.findings import reaching, shared_memory, tell
from hloexec.ops.library_calls.mosaic.ir import Kernel, MlirType, Operation
from hloexec.ops.library_calls.mosaic.memory import undefined_value
from hloexec.ops.library_calls.mosaic.programs import bound_program, malformed_named, reason_against
from hloexec.ops.library_calls.mosaic.reading import read_kernel
from hloexec.ops.library_calls.triton.instances import for_instances, pointee
from hloexec.ops.library_calls.triton.machine import Dependent, Machine
from hloexec.ops.library_calls.triton.memory import Buffer, address_of, make_buffer
from hloexec.ops.library_calls.triton.operations.accesses import IN_ANY_ORDER
from hloexec.ops.library_calls.triton.registry import TRITON
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy
from hloexec.ops.registry import custom_call

_MOST_ELEMENTS = 1 << 16
"""Of a tensor, for all instances that run at once: as many as caches hold some of."""
_MOST_INSTANCES = 1 << 31
_SETTINGS = ("debug", "num_stages", "num_warps", "serialized_metadata")
_ATOMIC = ("tt.atomic_rmw", "tt.atomic_cas")


@frozen(eq=False)
class Config:
    """What a call says besides its operands: its kernel, and how often that runs."""

    kernel: Kernel
    grid: tuple[int, ...]
    at_once: int
    """How many instances run at once."""
    is_synchronised: bool
    aliases: tuple[tuple[int, int], ...]
    """Outputs with the operands of the call whose memory they share."""


def _config(instruction: Instruction) -> Config:
    with Attributes(instruction.backend_config) as attributes:
        attributes.ignore(*_SETTINGS)
        grid = tuple(attributes.integer(f"grid_{axis}") for axis in "xyz")
        name, bytecode = attributes.text("name"), bytes_of_attribute(attributes.text("ir"))
    try:
        kernel = read_kernel(bytecode)
    except UnsupportedError as error:
        raise UnsupportedError(f"it runs kernel {quoted(name)}, but {error}") from None
    reason = reason_against(kernel, TRITON)
    if reason is not None:
        raise UnsupportedError(reason)
    if min(grid) < 0 or math.prod(grid) > _MOST_INSTANCES:
        raise UnsupportedError(f"{kernel.describe()} runs in a grid of {list(grid)}")
    with malformed_named(kernel.describe()):
        bound_program(for_instances(kernel, 1), REFERENCE, TRITON)
        is_synchronised = any(_is_signal(kernel, item) for item in kernel.operations())
        is_ordered = is_synchronised or any(_is_ordered(item) for item in kernel.operations())
        at_once = 1 if is_ordered else max(1, min(math.prod(grid), _MOST_ELEMENTS // _largest(kernel)))
        return Config(kernel, grid, at_once, is_synchronised, shared_memory(instruction))


def bytecode_of(backend_config: str | None) -> bytes:
    """The kernel of a call, as bytecode; UnsupportedError where it has none."""
    with Attributes(backend_config) as attributes:
        attributes.ignore(*_SETTINGS, "name", "grid_x", "grid_y", "grid_z")
        return bytes_of_attribute(attributes.text("ir"))


def _is_signal(kernel: Kernel, operation: Operation) -> bool:
    """Whether an atomic operation can tell one instance what another one does: its result is used."""
    if operation.name not in _ATOMIC:
        return False
    return any(not set(operation.results).isdisjoint(other.operands) for other in kernel.operations())


def _is_ordered(operation: Operation) -> bool:
    """Whether an atomic operation leaves something else if instances come in another order: sums of floats do."""
    return operation.name in _ATOMIC and operation.attributes.get("atomic_rmw_op") not in IN_ANY_ORDER


def _largest(kernel: Kernel) -> int:
    """The number of elements of the largest tensor."""
    return max(
        (math.prod(item.dimensions) for operation in kernel.operations() for item in operation.result_types), default=1
    )


@custom_call("__gpu$xla.gpu.triton", config=_config)
class TritonKernelCall:
    """What a kernel computes that Triton compiles for GPUs (Pallas), on NumPy.

    The kernel is MLIR bytecode in the backend_config, which jaxlib reads (`hloexec[jax]`). Its program instances run
    many at once where the result does not depend on their order, else one after the other; the bits are the same.
    Operations of arith, math, scf and tt round to the type of their results; functions of libdevice are HLO's, and
    products round their operands as `inputPrecision` says. Kernels with instructions of a GPU in the text are refused
    by name. A warning tells what hardware hides: results that depend on memory that nothing wrote, accesses beyond a
    buffer, elements of a result that nothing wrote, and elements that one instance writes and another one reads, or
    writes with another value. Source: JAX, Pallas for GPUs; Triton, its dialect; XLA, the custom call's config.
    """

    @staticmethod
    def infer(*operands: Shape, config: Config, shape: Shape) -> Shape:
        arrays = [array_shape(item, "an operand or a result of a kernel") for item in (*operands, *parts_of(shape))]
        types = config.kernel.body.argument_types
        if len(arrays) != len(types):
            raise ShapeError(
                f"{config.kernel.describe()} takes {len(types)} pointers, but has {len(operands)} operands and "
                f"{len(arrays) - len(operands)} results"
            )
        for number, (array, value_type) in enumerate(zip(arrays, types, strict=True)):
            if not _fits(array, value_type):
                subject = f"operand {number}" if number < len(operands) else f"result {number - len(operands)}"
                raise ShapeError(f"{subject} of {config.kernel.describe()} is {array}, but it takes {value_type.text}")
        results = arrays[len(operands) :]
        for output, operand in config.aliases:
            is_there = output < len(results) and operand < len(operands)
            if not is_there or not results[output].compatible(arrays[operand]):
                raise ShapeError(f"output {output} cannot share the memory of operand {operand}")
        return shape

    @staticmethod
    def evaluate(*operands: Array, config: Config, shape: Shape, numerics: NumericsPolicy = REFERENCE) -> Any:
        shapes = tuple(array_shape(part, "a result") for part in parts_of(shape))
        run = _Run(config, numerics, operands, shapes)
        results, machine = run.once()

        def changes(others: Sequence[Operation]) -> bool:
            again, _ = run.once(others)
            return any(one.tobytes() != two.tobytes() for one, two in zip(results, again, strict=True))

        reads = [machine.undefined_reads[read] for read in reaching([*machine.undefined_reads], changes)]
        tell(config.kernel, [*machine.findings.values(), *reads])
        return results if isinstance(shape, TupleShape) else results[0]


def _fits(array: ArrayShape, value_type: MlirType) -> bool:
    """Whether a pointer can be to elements of an array: integers of MLIR have no sign."""
    element = pointee(value_type)
    if element is None:
        return False
    one, two = array.element_type, element.element_type
    return (one.storage.itemsize == two.storage.itemsize and one.bits >= 8) or one.name == two.name == "pred"


@frozen(eq=False)
class _Run:
    """A kernel with its operands; it can run again, with other values where memory is undefined."""

    config: Config
    numerics: NumericsPolicy
    operands: tuple[Array, ...]
    shapes: tuple[ArrayShape, ...]

    def once(self, others: Sequence[Operation] = ()) -> tuple[tuple[Array, ...], Machine]:
        """The results, and the machine when it is done; `others` are operations that read other undefined values."""
        chosen = dict.fromkeys((item.results for item in others), True)
        try:
            machine = self._run(self.config.at_once, chosen)
        except Dependent:
            machine = self._run(1, chosen)
        return tuple(self._result(machine, number) for number in range(len(self.shapes))), machine

    def _run(self, at_once: int, others: Mapping[Any, bool]) -> Machine:
        """All instances, some at a time; the last of these times, those that are too many are not active."""
        kernel, count = for_instances(self.config.kernel, at_once), math.prod(self.config.grid)
        body = bound_program(kernel, self.numerics, TRITON).function(kernel.name)
        buffers, numbers = self._memory()
        pointers = [np.full(at_once, address_of(number)) for number in numbers]
        machine = Machine(
            frame=[None] * kernel.value_count,
            bounds=self.config.grid,
            others=others,
            buffers=buffers,
            count=at_once,
            is_synchronised=self.config.is_synchronised,
        )
        with np.errstate(all="ignore"):
            for first in range(0, count, at_once):
                machine.tick()
                machine.first, left = first, count - first
                machine.active = None if left >= at_once else np.arange(at_once) < left
                try:
                    body(machine, *pointers)
                except EvaluationError as error:
                    raise EvaluationError(f"{kernel.describe()}: {error.message}") from None
        return machine

    def _memory(self) -> tuple[list[Buffer], list[int]]:
        """The buffers of operands, then of results; for each pointer the number of its buffer."""
        shared = {operand for _, operand in self.config.aliases}
        buffers = []
        for number, array in enumerate(self.operands):
            is_own = number in shared
            memory = np.array(array) if is_own else np.ascontiguousarray(array)
            buffers.append(make_buffer(f"input {number}", memory, is_defined=True, is_writable=is_own))
        outputs = dict(self.config.aliases)
        numbers = [outputs.get(output, len(buffers) + output) for output in range(len(self.shapes))]
        for output, shape in enumerate(self.shapes):
            storage = shape.element_type.storage
            memory = np.full(shape.dimensions, undefined_value(shape.element_type), storage)
            buffers.append(make_buffer(f"output {output}", memory, is_defined=False, is_writable=True))
        return buffers, [*range(len(self.operands)), *numbers]

    def _result(self, machine: Machine, output: int) -> Array:
        """A result; elements that nothing has written are told of."""
        shape, aliases = self.shapes[output], dict(self.config.aliases)
        buffer = machine.buffers[aliases.get(output, len(self.operands) + output)]
        missing = np.logical_not(buffer.defined)
        if missing.any():
            machine.point, machine.operation = (), None
            clause = f"leaves elements of {buffer.name} that nothing has written"
            machine.report(clause)
        return buffer.array.reshape(shape.dimensions)
