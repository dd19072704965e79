"""What is being minified: a module on its inputs and, where two modules are compared, the other one.

`assembled` makes all new cases. It is given the instructions that stay; what these take and is no longer computed
becomes a parameter that holds the recorded value, or is left open where the module cannot be run here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from hloexec.core.ir import ArrayShape, Computation, Instruction, Module, Shape, TupleShape, flat_shapes
from hloexec.core.ir.editing import change_computations, change_entry, replace_computation, take_name
from hloexec.core.structs import frozen
from hloexec.core.values import Value
from hloexec.engine.devices.topology import topology_of
from hloexec.engine.exec.observers import Event
from hloexec.engine.exec.running import run_with
from hloexec.engine.options import Options
from hloexec.engine.plan.schedule import after_dependencies, callees_first
from hloexec.errors import InputError
from hloexec.ops.control.flow import make_parameter, make_tuple
from hloexec.ops.registry import Role, find_opcode, role_of

Recorded = Mapping[str, "list[Value]"]
"""What instructions of the entry computation gave, one value per device."""

_NO_WORK = frozenset({Role.PARAMETER, Role.CONSTANT, Role.TUPLE, Role.GET_TUPLE_ELEMENT})


@frozen(eq=False)
class Case:
    """A module on inputs."""

    module: Module
    inputs: list[list[Value]] | None
    """A list with a value per parameter for each device, or for all; None where nothing here makes any."""
    other: Module | None = None
    """What the module is compared with, on the same inputs."""

    @property
    def devices(self) -> int:
        """As many as a run has: a part of a module may name more of them than its header."""
        return topology_of(self.module).count

    def row(self, device: int) -> list[Value]:
        """The inputs of a device."""
        assert self.inputs is not None
        return self.inputs[device if len(self.inputs) > 1 else 0]


def counted(module: Module) -> int:
    """The instructions that compute something: all but parameters, constants and what packs or unpacks tuples."""
    return sum(role_of(instruction) not in _NO_WORK for computation in module for instruction in computation)


def is_glue(instruction: Instruction) -> bool:
    """Whether it is a parameter or a constant, or packs or unpacks a tuple."""
    return role_of(instruction) in _NO_WORK


def outputs_of(module: Module) -> list[str]:
    """The instructions that are the results: the root, or what the root is a tuple of."""
    root = module.entry.root
    return list(dict.fromkeys(root.operands)) if role_of(root) is Role.TUPLE and root.operands else [root.name]


class _Recorder:
    """Keeps what the instructions of the entry computation give, up to a limit of bytes."""

    def __init__(self, devices: int, limit: int) -> None:
        self.values: dict[str, list[Any]] = {}
        self._devices = devices
        self._left = limit

    def on_instruction(self, event: Event) -> None:
        """Called by the run."""
        if event.path:
            return
        self._left -= event.instruction.shape.byte_size
        if self._left >= 0:
            row = self.values.setdefault(event.instruction.name, [None] * self._devices)
            for device in event.devices:
                row[device] = event.value


_MOST_BYTES = 4 << 30


def recorded(case: Case, options: Options) -> dict[str, list[Value]]:
    """What each instruction of the entry computation gives; those that do not run, or beyond 4 GiB, are left out."""
    recorder = _Recorder(case.devices, _MOST_BYTES)
    run_with(case.module, case.inputs, options, [recorder])
    return {name: row for name, row in recorder.values.items() if all(value is not None for value in row)}


def assembled(
    case: Case,
    instructions: Iterable[Instruction],
    outputs: Sequence[str],
    values: Recorded | None,
    shapes: Mapping[str, Shape],
) -> Case:
    """The case whose entry computation has these instructions and results.

    Instructions that no result needs are left out, unless they have an effect. Operands that are not among the
    instructions become parameters: they keep their inputs where they are parameters now, else have the values that are
    recorded. Raises InputError where a value is needed that was not.
    """
    part = part_of(instructions, outputs, is_paired=case.other is not None)
    parameters = case.module.entry.parameters
    before = {parameter.name: number for number, parameter in enumerate(parameters)}
    needed = dict.fromkeys(part.needed)
    if case.other is not None:
        needed |= dict.fromkeys(before)
    names = sorted(needed, key=lambda name: (before.get(name, len(before)), name))
    module = module_of(case.module, part, [(name, shapes[name]) for name in names])
    return attrs.evolve(case, module=module, inputs=_inputs(case, names, before, values))


@frozen(eq=False)
class Part:
    """Some instructions of a computation."""

    live: list[Instruction]
    results: list[str]

    @property
    def needed(self) -> list[str]:
        """What they take, or give, that is not among them."""
        defined = {instruction.name for instruction in self.live}
        names = [name for instruction in self.live for name in instruction.operands] + self.results
        return list(dict.fromkeys(name for name in names if name not in defined))


def part_of(instructions: Iterable[Instruction], outputs: Sequence[str], *, is_paired: bool) -> Part:
    """What results need of some instructions, elements of tuples taken from where the tuples have them from.

    A result that is there twice is there once, unless those of another module are paired with them.
    """
    defined = {
        instruction.name: instruction for instruction in instructions if role_of(instruction) is not Role.PARAMETER
    }
    resolved = _Unpacking(defined)
    results = [resolved.name_of(name) for name in outputs]
    results = results if is_paired else list(dict.fromkeys(results))
    if not results:
        raise InputError("no result is left")
    return Part(_live({name: resolved.applied(instruction) for name, instruction in defined.items()}, results), results)


def module_of(module: Module, part: Part, parameters: Sequence[tuple[str, Shape]]) -> Module:
    """The module whose entry computation has these parameters, and computes a part."""
    instructions = [make_parameter(name, shape, number) for number, (name, shape) in enumerate(parameters)]
    entry = Computation(name=module.entry_name, instructions=(*instructions, *part.live), root_name=part.results[0])
    if len(part.results) != 1:
        entry = _with_root_tuple(entry, part.results)
    entry = attrs.evolve(entry, instructions=tuple(after_dependencies(entry, list(entry.instructions))))
    changed = change_entry(replace_computation(module, entry), entry.name, is_scheduled=False)
    return without_uncalled(changed)


def take_the_same(module: Module, other: Module) -> bool:
    """Whether two modules have parameters of the same types and dimensions; layouts are their own."""
    sides = module.entry.parameter_shapes, other.entry.parameter_shapes
    return len(sides[0]) == len(sides[1]) and all(ours.compatible(theirs) for ours, theirs in zip(*sides, strict=True))


def _inputs(
    case: Case, names: Sequence[str], before: Mapping[str, int], values: Recorded | None
) -> list[list[Value]] | None:
    if case.inputs is None:
        return None
    missing = [name for name in names if name not in before and name not in (values or {})]
    if missing:
        raise InputError(f"nothing was recorded of %{missing[0]}")
    return [
        [case.row(device)[before[name]] if name in before else (values or {})[name][device] for name in names]
        for device in range(case.devices)
    ]


class _Unpacking:
    """Which values are meant by elements of tuples that are packed in the same computation."""

    def __init__(self, defined: Mapping[str, Instruction]) -> None:
        self._defined = defined

    def name_of(self, name: str) -> str:
        """The instruction that an element of a tuple is packed of, through as many tuples as there are."""
        while (instruction := self._defined.get(name)) is not None and role_of(instruction) is Role.GET_TUPLE_ELEMENT:
            source = self._defined.get(self.name_of(instruction.operands[0]))
            if source is None or role_of(source) is not Role.TUPLE:
                break
            name = source.operands[instruction.attributes.index]
        return name

    def applied(self, instruction: Instruction) -> Instruction:
        operands = tuple(map(self.name_of, instruction.operands))
        return instruction if operands == instruction.operands else attrs.evolve(instruction, operands=operands)


def _live(defined: Mapping[str, Instruction], results: Sequence[str]) -> list[Instruction]:
    """What the results need, and what has an effect, without a dependence on what is left out."""
    needed = set(results) & defined.keys()
    needed |= {name for name, instruction in defined.items() if _has_effect(instruction)}
    pending = list(needed)
    while pending:
        for operand in defined[pending.pop()].operands:
            if operand in defined and operand not in needed:
                needed.add(operand)
                pending.append(operand)
    return [
        attrs.evolve(
            instruction,
            control_predecessors=tuple(name for name in instruction.control_predecessors if name in needed),
            span=None,
        )
        for name, instruction in defined.items()
        if name in needed
    ]


def _has_effect(instruction: Instruction) -> bool:
    entry = find_opcode(instruction.opcode)
    if entry is None or entry.role is not Role.MACHINE:
        return False
    return any(isinstance(leaf, ArrayShape) and leaf.is_token for leaf in flat_shapes(instruction.shape))


def _with_root_tuple(entry: Computation, results: Sequence[str]) -> Computation:
    by_name = entry.by_name
    name = take_name("results", {*by_name})
    shape = TupleShape(tuple(by_name[result].shape for result in results))
    root = make_tuple(name, shape, results)
    return attrs.evolve(entry, instructions=(*entry.instructions, root), root_name=name)


def without_uncalled(module: Module) -> Module:
    """The module without computations that its entry does not come to."""
    kept = {computation.name for computation in callees_first(module, module.entry)}
    return change_computations(module, (computation for computation in module if computation.name in kept))


def element_total(case: Case) -> int:
    """Elements of the arrays of both modules' entries."""
    modules = [case.module] if case.other is None else [case.module, case.other]
    return sum(
        _elements(instruction.shape) for module in modules for computation in module for instruction in computation
    )


def _elements(shape: Shape) -> int:
    leaves: Iterator[ArrayShape] = (leaf.array_shape for leaf in flat_shapes(shape))
    return sum(int(np.prod([max(1, size) for size in leaf.dimensions], dtype=object)) for leaf in leaves)
