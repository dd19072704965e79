"""Evaluating a single instruction again, with other operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

import attrs
import numpy as np

from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import ArrayShape, Module, change_arrays, flat_arrays
from hloexec.core.ir.editing import replace_computation, replace_instruction
from hloexec.core.structs import frozen
from hloexec.core.tree import flat
from hloexec.core.values import Array, Inputs, Value, arrays_of
from hloexec.engine.devices.topology import Topology
from hloexec.engine.exec.running import plan_of, repeated_run
from hloexec.engine.options import Options
from hloexec.engine.plan.kernels import InstructionKernel
from hloexec.engine.plan.lowering.kernels import kernel_alone
from hloexec.engine.plan.steps import inner_plans
from hloexec.errors import HloError
from hloexec.ops.common import narrow, row_major, wide
from hloexec.ops.registry import find_opcode, traits_of
from hloexec.ops.resources import single_threaded_blas
from hloexec.tools.diffing.correspondence import nested
from hloexec.tools.diffing.graph import Instance, Node
from hloexec.tools.diffing.limits import LIMITS, Work, cost_of
from hloexec.tools.diffing.recording.arrays import Window
from hloexec.tools.diffing.recording.held import Holding
from hloexec.tools.extraction.running import Slice, slice_module

_Run = Callable[[Inputs], list[Value]]
_Operands = list[tuple[tuple[Node, ...], ...]]
"""Of each device, the arrays of each operand."""


class Values(Protocol):
    """Arrays by the numbers of their nodes."""

    def __getitem__(self, number: int, /) -> Array: ...


@frozen(eq=False)
class Overlay:
    """The values of a run, some of them replaced."""

    values: Values
    changes: Mapping[int, Array]

    def __getitem__(self, number: int, /) -> Array:
        changed = self.changes.get(number)
        return self.values[number] if changed is None else changed


class Evaluator:
    """Runs instances of a graph again; but for random numbers from a state, what comes from a host, and halves of
    asynchronous pairs that start no collective."""

    def __init__(self, module: Module, topology: Topology, options: Options, work: Work | None = None) -> None:
        self._module = module
        self._topology = topology
        self._options = options
        self.work = Work() if work is None else work
        self._costs: dict[tuple[str, str], float] = {}
        self._runs: dict[tuple[tuple[str, str], tuple[Any, ...], bool], _Run | None] = {}

    def results(self, instance: Instance, values: Values, *, rounds: bool = True) -> list[Array] | None:
        """What an instance gives where node n has the value values[n]; None where it cannot be run again. Without
        `rounds`, what moves elements does not round them."""
        if rounds and (results := self._by_kernel(instance, values)) is not None:
            return results
        operands = self._operands(instance)
        topology = self._topology_of(instance)
        values = _of_one_type(instance, {node.number: values[node.number] for node in instance.inputs})
        if instance.is_source or len(operands) < topology.count:
            return None
        types = tuple(str(values[node.number].dtype) for part in operands[0] for node in part)
        key = (instance.static, types, rounds)
        if key not in self._runs:
            module = self._alone(instance, operands[0], values, rounds=rounds)
            self._runs[key] = None if module is None else self._run_of(module, topology, self._options)
        run = self._runs[key]
        if run is None:
            return None
        outputs = self._outputs(run, instance, operands, values)
        if outputs is None:
            # A slice that cannot stand alone; what it gave in the whole run is all there is.
            self._runs[key] = None
        if outputs is None or type(instance) is Instance:
            return outputs
        if instance.cut is not None:
            outputs = [np.asarray(outputs[0][instance.cut])]
        return outputs if outputs[0].shape == instance.results[0].shape else None

    def _by_kernel(self, instance: Instance, values: Values) -> list[Array] | None:
        """What an instance gives by the kernel that it has in the whole run; None where it has none of its own, or on
        values of other types or dimensions."""
        kernel, types = self._kernels.get(id(instance.instruction), (None, ()))
        if kernel is None or type(instance) is not Instance or instance.others or instance.is_source:
            return None
        arguments = [values[node.number] for part in instance.operands for node in part]
        if [(array.dtype, array.shape) for array in arguments] != types:
            return None
        self.work.add(self._cost_of(instance))
        return _given_by(kernel, arguments)

    def _by_own_kernel(self, module: Module, instance: Instance, values: Values) -> list[Array] | None:
        """What the only instruction of a module gives without a plan; None where it takes one, or fails."""
        parameters, policy = module.entry.parameters, self._options.numerics
        nodes = dict(zip(instance.instruction.operands, instance.operands, strict=True))
        is_alone = len(parameters) + 1 == len(module.entry.instructions) and all(map(_is_one, nodes.values()))
        kernel = kernel_alone(module, policy) if is_alone and not instance.others else None
        if kernel is None:
            return None
        arrays = {one.name: values[node.number] for one, (node,) in zip(parameters, nodes.values(), strict=True)}
        for parameter in parameters:
            shape, array = parameter.shape, arrays[parameter.name]
            wanted = (shape.element_type.storage, shape.dimensions) if isinstance(shape, ArrayShape) else None
            if (array.dtype, array.shape) != wanted:
                return None
        return _given_by(kernel, [arrays[name] for name in module.entry.root.operands])

    @cached_property
    def _kernels(self) -> dict[int, tuple[Callable[..., Any], list[Any]]]:
        """The kernels of the whole run by the identities of their instructions, with what their operands have to be."""
        if self._options.numerics.rounding_seed is not None:
            return {}
        kernels: dict[int, tuple[Callable[..., Any], list[Any]]] = {}
        plans = [plan_of(self._module, self._options, is_observed=True)]
        for plan in plans:
            for step in plan.program:
                plans += [inner for inner in inner_plans(step.flow) if inner not in plans]
                kernel, shapes = step.kernel, [plan.slot_shapes[slot] for slot in (*step.operands, *step.results)]
                if not isinstance(kernel, InstructionKernel) or kernel.opcode is None:
                    continue
                if kernel.is_pure and all(isinstance(shape, ArrayShape) and not shape.is_dynamic for shape in shapes):
                    arrays = [shape.array_shape for shape in shapes[: len(step.operands)]]
                    types = [(array.element_type.storage, array.dimensions) for array in arrays]
                    kernels.setdefault(id(step.instruction), (kernel.function, types))
        return kernels

    def alone(self, instance: Instance, values: Values) -> Module | None:
        """The module whose entry computes an instance and nothing else; None where it cannot stand alone."""
        return self._alone(instance, self._operands(instance)[0], values)

    def results_of(self, module: Module, instance: Instance, values: Values) -> list[Array] | None:
        """What a module, that of an instance alone or one like it, gives in its place; None where it cannot run."""
        known = self._by_own_kernel(module, instance, values)
        if known is not None:
            self.work.add(LIMITS.cost_of_module + self._cost_of(instance))
            return known
        # It runs once: optimizing it takes longer than what that saves, unless arrays are large.
        options = self._options
        if self._cost_of(instance) < LIMITS.cost_of_module:
            options = attrs.evolve(options, planner=False)
        run = self._run_of(module, self._topology_of(instance), options)
        return self._outputs(run, instance, self._operands(instance), values)

    def _run_of(self, module: Module, topology: Topology, options: Options) -> _Run:
        self.work.add(LIMITS.cost_of_module)
        return repeated_run(module, options.on(topology))

    def _outputs(self, run: _Run, instance: Instance, operands: _Operands, values: Values) -> list[Array] | None:
        self.work.add(len(operands) * self._cost_of(instance))
        try:
            outputs = run([_arguments(instance, operand_nodes, values) for operand_nodes in operands])
        except HloError:
            return None
        return arrays_of(outputs[instance.device if instance.others else 0])

    def _cost_of(self, instance: Instance) -> float:
        """What a run of an instance costs."""
        if instance.static not in self._costs:
            self._costs[instance.static] = cost_of(instance.instruction, instance.computation)
        return self._costs[instance.static]

    def _operands(self, instance: Instance) -> _Operands:
        """Of what exchanges values, those of every device."""
        if not instance.others:
            return [instance.operands]
        return [instance.others[device] for device in range(self._topology.count) if device in instance.others]

    def _topology_of(self, instance: Instance) -> Topology:
        """The devices that run an instance: all where it exchanges values, else one."""
        return self._topology if instance.others else Topology(1, 1)

    def _alone(
        self, instance: Instance, operands: Sequence[Sequence[Node]], values: Values, *, rounds: bool = True
    ) -> Module | None:
        """The module that has this instruction only."""
        entry = find_opcode(instance.opcode)
        is_half = instance.opcode.endswith(("-start", "-done", "-update"))
        if entry is None or (is_half and entry.exchange is None):
            return None
        computation, names = instance.computation, instance.instruction.operands
        boundary = tuple(dict.fromkeys(names))
        shapes = {}
        for name, nodes in zip(names, operands, strict=True):
            declared = computation.by_name[name].shape
            if len(nodes) != len(flat_arrays(declared)):
                return None
            if isinstance(declared, ArrayShape) and nodes:
                shapes[name] = declared.with_element_type(element_type_of(values[nodes[0].number].dtype))
        inside = (instance.instruction.name,)
        try:
            module = slice_module(self._module, Slice(computation, inside[0], inside, boundary), shapes)
        except HloError:
            return None
        topology = self._topology_of(instance)
        moved = [(node, values[node.number].dtype) for place in moved_operands(instance) for node in operands[place]]
        module = _moving(module, [dtype for node, dtype in moved if not rounds or dtype != node.dtype])
        return attrs.evolve(module, replica_count=topology.replicas, num_partitions=topology.partitions)


def _is_one(nodes: Sequence[Node]) -> bool:
    return len(nodes) == 1


def _given_by(kernel: Callable[..., Any], given: Sequence[Array]) -> list[Array] | None:
    """What a kernel gives; None where it fails: why, a run of the instruction alone says."""
    try:
        with np.errstate(all="ignore"), single_threaded_blas():
            found = kernel(*given)
    except Exception:
        return None
    arrays = list(map(np.asarray, flat(found)))
    return [row_major(one) if any(np.may_share_memory(one, each) for each in given) else one for one in arrays]


def moved_operands(instance: Instance) -> list[int]:
    """The operands whose elements an instance only moves; what starts a collective without a sum moves all."""
    traits = traits_of(instance.instruction)
    moves = range(len(instance.operands)) if traits.begins and instance.others else traits.moves or ()
    return [place for place in moves if place < len(instance.operands)]


def _of_one_type(instance: Instance, values: dict[int, Array]) -> dict[int, Array]:
    """The values that devices exchange; where some have another type than was recorded, all in the widest."""
    is_other = bool(instance.others) and any(values[node.number].dtype != node.dtype for node in instance.inputs)
    types = {element_type_of(value.dtype) for value in values.values()} if is_other else set()
    if len(types) < 2 or not all(entry.is_floating for entry in types):
        return values
    widest = max(types, key=lambda entry: entry.bits)
    return {number: narrow(wide(value), widest) for number, value in values.items()}


def _moving(module: Module, types: Sequence[Any]) -> Module:
    """A module of what moves elements of these types, among others: its result has the widest of them."""
    root = module.entry.root
    if not types:
        return module
    widest = max(map(element_type_of, types), key=lambda entry: entry.bits)

    def widened(leaf: ArrayShape) -> ArrayShape:
        if not (leaf.element_type.is_floating and widest.is_floating):
            return leaf
        return leaf.with_element_type(max(leaf.element_type, widest, key=lambda entry: entry.bits))

    shape = change_arrays(root.shape, widened)
    if shape == root.shape:
        return module
    changed = replace_instruction(module.entry, attrs.evolve(root, shape=shape))
    return replace_computation(module, changed)


def window_of(instance: Instance, values: Holding) -> Window | None:
    """The window of its first operand that an instance replaces by its second one; None if it does anything else."""
    entry = find_opcode(instance.opcode)
    if entry is None or entry.window is None or not all(len(part) == 1 for part in instance.operands):
        return None
    operand, update, *starts = (part[0].number for part in instance.operands)
    sizes, part = values.of(operand).shape, values.of(update).shape
    if instance.results[0].shape != sizes:
        return None
    window: Window = entry.window(sizes, part, *(values[start] for start in starts))
    return window


def _arguments(instance: Instance, operands: Sequence[Sequence[Node]], values: Values) -> list[Value]:
    """One value per parameter of the module of an instruction alone."""
    arguments: dict[str, Value] = {}
    for name, nodes in zip(instance.instruction.operands, operands, strict=True):
        arrays = iter([values[node.number] for node in nodes])
        arguments[name] = nested(instance.computation.by_name[name].shape, arrays)
    return list(arguments.values())
