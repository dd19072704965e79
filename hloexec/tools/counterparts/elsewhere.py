"""Counterparts in processes of their own: XLA, in this environment or another, and functions of users.

jaxlib compiles only StableHLO. A module is therefore parsed by XLA, converted to StableHLO and compiled; in place of
what that cannot express (fusions, library calls, layouts within a module), XLA gets an equivalent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import attrs
import numpy as np

from hloexec.analysis.dataflow.dependences import elides_constants
from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.core.ir import Module, leaf_shapes
from hloexec.core.process import remembered
from hloexec.core.structs import frozen
from hloexec.core.values import TOKEN, Array, Inputs, Token, Value, arrays_of, join_values, label_of
from hloexec.core.wording import counted, on_devices
from hloexec.engine.devices.equivalents import compiled_by_xla
from hloexec.engine.devices.topology import Topology, topology_of
from hloexec.engine.exec.arguments import device_arguments, inputs_by_device
from hloexec.engine.exec.running import RunOptions, resolve_options
from hloexec.engine.inputs import value_of
from hloexec.engine.plan.synthesis import fill_constants
from hloexec.errors import HloError, UnsupportedError
from hloexec.language.text import format as format_module
from hloexec.tools.counterparts.answers import Answer, Outcome
from hloexec.tools.counterparts.worker import described
from hloexec.tools.counterparts.workers import NoAnswerError, Reply, worker_for

_SECONDS = 600.0
"""What a module may take where the options of a run have no limit."""
_NAMES = {entry.storage.name: entry.name for entry in ELEMENT_TYPES.values() if entry.is_array}


@frozen
class Compilation:
    """How XLA is to compile a module."""

    without: Sequence[str] = ()
    """The passes that it is not to run, by their names."""
    dump: str = ""
    """The folder in which it writes the module after each pass."""
    is_told: bool = False
    """Whether the answer has the text of what it makes of the module."""


USUAL = Compilation()


@frozen(eq=False)
class Elsewhere:
    """What runs modules in a process that stays for the next one."""

    name: str
    subject: str
    """How messages call it."""
    python: str | None = None
    """The program of another environment; None for this one."""
    platform: str | None = None
    """That of JAX; None for its default, or where a function runs modules."""
    count: int | None = None
    """How many devices there are; None for as many as a module is for."""
    function: str | None = None
    """`MODULE:FUNCTION`, in place of XLA."""

    def require(self, module: Module, *, is_divided: bool = False) -> None:
        """UnsupportedError for what it would run otherwise than it is meant."""
        leaves = [leaf for shape in module.entry.parameter_shapes for _, leaf in leaf_shapes(shape)]
        results = [leaf for _, leaf in leaf_shapes(module.entry.result_shape)]
        devices = module.replica_count * module.num_partitions
        reason = None
        if any(leaf.array_shape.is_token for leaf in leaves):
            reason = "it takes tokens"
        elif any(leaf.is_array and leaf.array_shape.is_dynamic for leaf in [*leaves, *results]):
            reason = "sizes of its arrays are known only at run time"
        elif self.count is not None and devices > self.count:
            reason = f"it is for {devices} devices"
        if reason is not None:
            raise UnsupportedError(f"{module.name} cannot be run on {self.subject}: {reason}")

    def run(self, module: Module, inputs: Inputs, **options: Unpack[RunOptions]) -> Answer:
        """The result, or what kept the process from giving it."""
        return self.begin(module, inputs, **options)()

    def begin(
        self, module: Module, inputs: Inputs, compilation: Compilation = USUAL, **options: Unpack[RunOptions]
    ) -> Callable[[], Answer]:
        """Ask the process, which may be busy with other modules; what is given waits for the result.

        Functions know nothing of how to compile.
        """
        resolved = resolve_options("run", options)
        try:
            topology = topology_of(module, resolved.replicas, resolved.partitions)
            counts: Any = {"replica_count": topology.replicas, "num_partitions": topology.partitions}
            if topology != Topology(module.replica_count, module.num_partitions):
                module = attrs.evolve(module, **counts)
            devices = topology.count
            self.require(module)
            rows = inputs_by_device(module.entry, inputs)
            device_arguments(module.entry, rows, devices)
            comparing = {"elided": None} if elides_constants(module) else {}
            module = fill_constants(module, resolved.elided) if comparing else module
            text = _text_for_xla(module) if self.function is None else format_module(module)
        except HloError as error:
            raised = Answer.raised(error)
            return lambda: raised
        leaves = [leaf.is_array for _, leaf in leaf_shapes(module.entry.result_shape)]
        arrays = [arrays_of(tuple(row)) for row in (rows if len(rows) == devices else rows * devices)]
        header = {
            "text": text,
            "kept": leaves,
            "memory": resolved.memory_limit,
            "arrays": [list(map(described, row)) for row in arrays],
            **attrs.asdict(compilation),
        }
        settings = {"function": self.function, "platform": self.platform, "count": self.count or devices}
        worker = worker_for(self.python, settings)
        seconds = _SECONDS if resolved.timeout is None else resolved.timeout
        wait = worker.begin(header, [array for row in arrays for array in row], seconds)
        return lambda: self._answer(module, devices, wait, comparing)

    def _answer(self, module: Module, devices: int, wait: Callable[[], Reply], comparing: Mapping[str, Any]) -> Answer:
        try:
            reply, data = wait()
        except NoAnswerError as error:
            return Answer.failed(error.outcome, f"{self.subject} {error.words(module.name)}")
        if mismatch := _mismatch(module, devices, reply["arrays"]):
            return Answer.failed(Outcome.MISMATCHED, f"{self.subject} gives {mismatch}")
        result = join_values([_value(module, row) for row in data])
        return Answer(Outcome.ANSWERED, result, comparing, compiled=tuple(reply.get("compiled", ())))


@remembered
def _text_for_xla(module: Module) -> str:
    """The text that XLA compiles for a module."""
    # Older XLAs do not read the tables of newer metadata, which change no value.
    return format_module(compiled_by_xla(module), metadata=False)


def _mismatch(module: Module, devices: int, rows: Sequence[Sequence[Mapping[str, Any]]]) -> str:
    """In what the outputs are not those of a module, which they are an object of; empty where they are."""
    leaves = [(label_of(index), leaf.array_shape) for index, leaf in leaf_shapes(module.entry.result_shape)]
    leaves = [(label, shape) for label, shape in leaves if shape.is_array]
    if len(rows) != devices:
        return f"outputs of {counted(len(rows), 'device')} for {module.name}, which is for {devices}"
    for device, row in enumerate(rows):
        where = on_devices([device]) if devices > 1 else ""
        if len(row) != len(leaves):
            return f"{counted(len(row), 'output')} of {module.name}{where}, which has {len(leaves)}"
        for (label, shape), leaf in zip(leaves, row, strict=True):
            sizes = ",".join(map(str, leaf["shape"]))
            own = f"{shape.element_type}[{','.join(map(str, shape.dimensions))}]"
            other = f"{_NAMES.get(leaf['type'], leaf['type'])}[{sizes}]"
            if other != own:
                return f"{other} as output {label} of {module.name}{where}, which is {own}"
    return ""


def _value(module: Module, row: Sequence[bytearray]) -> Value:
    """The result of a device, of which these are the bytes."""
    data = iter(row)

    def read(_: int, leaf: Any) -> Array | Token:
        if not leaf.is_array:
            return TOKEN
        shape = leaf.array_shape
        return np.frombuffer(next(data), shape.element_type.storage).reshape(shape.dimensions)

    return value_of(module.entry.result_shape, read)
