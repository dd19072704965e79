"""Running an instruction again, by itself, on other operands than it had."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import attrs
import numpy as np

from hloexec.devices.topology import Topology
from hloexec.diffing.graph import Instance, Node
from hloexec.dtypes import element_type_of
from hloexec.errors import HloError
from hloexec.exec.running import run_devices
from hloexec.extraction.slicing import Slice, slice_module
from hloexec.ir import ArrayShape, Module, Shape, TupleShape
from hloexec.ops.registry import find_opcode
from hloexec.values import TOKEN, Array, Value, flat

__all__ = ["Evaluator", "Values"]


class Values(Protocol):
    """Arrays by the numbers of their nodes."""

    def __getitem__(self, number: int, /) -> Array: ...


class Evaluator:
    """Runs instances of a graph again; but for random numbers from a state, what comes from a host, and halves of
    asynchronous pairs."""

    def __init__(self, module: Module, topology: Topology, options: dict[str, Any]) -> None:
        self._module = module
        self._topology = topology
        self._options = options
        self._modules: dict[tuple[tuple[str, str], tuple[Any, ...]], Module | None] = {}
        self.runs = 0

    def results(self, instance: Instance, values: Values) -> list[Array] | None:
        """What an instance gives where node n has the value values[n]; None where it cannot be run again."""
        if instance.is_source:
            return None
        if instance.others:
            devices = range(self._topology.count)
            if any(device not in instance.others for device in devices):
                return None
            operands = [instance.others[device] for device in devices]
        else:
            operands = [instance.operands]
        types = tuple(str(values[node.number].dtype) for part in operands[0] for node in part)
        key = (instance.static, types)
        if key not in self._modules:
            self._modules[key] = self._alone(instance, operands[0], values)
        module = self._modules[key]
        if module is None:
            return None
        self.runs += 1
        try:
            outputs = run_devices(
                module,
                [_arguments(instance, given, values) for given in operands],
                replicas=self._topology.replicas if instance.others else 1,
                partitions=self._topology.partitions if instance.others else 1,
                **self._options,
            )
        except HloError:
            # A slice that cannot stand alone; what it gave in the whole run is all there is.
            self._modules[key] = None
            return None
        output = outputs[instance.device if instance.others else 0]
        return [leaf for leaf in flat(output) if isinstance(leaf, np.ndarray)]

    def _alone(self, instance: Instance, operands: Sequence[Sequence[Node]], values: Values) -> Module | None:
        """The module that has this instruction only."""
        entry = find_opcode(instance.opcode)
        if entry is None or instance.opcode.endswith(("-start", "-done", "-update")):
            return None
        computation, names = instance.computation, instance.instruction.operands
        boundary = tuple(dict.fromkeys(names))
        shapes = {}
        for name, nodes in zip(names, operands, strict=True):
            declared = computation.by_name[name].shape
            if len(nodes) != _array_count(declared):
                return None
            if isinstance(declared, ArrayShape) and nodes:
                shapes[name] = declared.with_element_type(element_type_of(values[nodes[0].number].dtype))
        inside = (instance.instruction.name,)
        try:
            module = slice_module(self._module, Slice(computation, inside[0], inside, boundary), shapes)
        except HloError:
            return None
        counts = (self._topology.replicas, self._topology.partitions) if instance.others else (1, 1)
        return attrs.evolve(module, replica_count=counts[0], num_partitions=counts[1])


def _array_count(shape: Shape) -> int:
    if isinstance(shape, TupleShape):
        return sum(map(_array_count, shape.elements))
    return int(shape.is_array)


def _arguments(instance: Instance, operands: Sequence[Sequence[Node]], values: Values) -> list[Value]:
    """One value per parameter of the module of an instruction alone."""
    found: dict[str, Value] = {}
    for name, nodes in zip(instance.instruction.operands, operands, strict=True):
        arrays = iter([values[node.number] for node in nodes])
        found[name] = _shaped(instance.computation.by_name[name].shape, arrays)
    return list(found.values())


def _shaped(shape: Shape, arrays: Any) -> Value:
    if isinstance(shape, TupleShape):
        return tuple(_shaped(element, arrays) for element in shape.elements)
    return next(arrays) if shape.is_array else TOKEN
