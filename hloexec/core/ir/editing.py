"""Editing modules: names that nothing has, operands of other names, instructions and computations in the place of
those of their names or of what calls them, another entry. `changes` are further fields of what is made.

A module with other computations has no text that it was read from, and a layout of its entry only where that has the
shapes that it had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

from hloexec.core.ir.instruction import Computation, Instruction, Module


def take_name(name: str, taken: set[str], number: int = 2) -> str:
    """A name, or what nothing has of `name.2`, `name.3`, … (from a number on); it is taken from now on."""
    free_name = name
    while free_name in taken:
        free_name, number = f"{name}.{number}", number + 1
    taken.add(free_name)
    return free_name


def rename_operands(instruction: Instruction, names: Mapping[str, str], **changes: Any) -> Instruction:
    """The instruction on operands of other names, where `names` has some."""
    operands = tuple(names.get(name, name) for name in instruction.operands)
    return attrs.evolve(instruction, operands=operands, **changes)


def rename(instruction: Instruction, names: Mapping[str, str], **changes: Any) -> Instruction:
    """The instruction under another name, on operands and after predecessors of other names, where `names` has some."""
    predecessors = tuple(names.get(name, name) for name in instruction.control_predecessors)
    own_name = names.get(instruction.name, instruction.name)
    return rename_operands(instruction, names, **{"name": own_name, "control_predecessors": predecessors, **changes})


def inline(
    callee: Computation, ordered: Iterable[Instruction], operands: Sequence[str], taken: set[str]
) -> tuple[list[Instruction], str]:
    """A computation's instructions, given in an order in which they run, with operands for parameters and names that
    are not taken; and what its root is called."""
    made = []
    names = {parameter.name: operands[number] for number, parameter in enumerate(callee.parameters)}
    for instruction in ordered:
        if instruction.name not in names:
            predecessors = tuple(names[name] for name in instruction.control_predecessors if name in names)
            names[instruction.name] = take_name(instruction.name, taken)
            made.append(rename(instruction, names, control_predecessors=predecessors, span=None))
    return made, names[callee.root_name]


def replace_instruction(computation: Computation, instruction: Instruction) -> Computation:
    """The computation with an instruction in the place of that of its name."""
    instructions = tuple(instruction if original.name == instruction.name else original for original in computation)
    return attrs.evolve(computation, instructions=instructions)


def replace_computation(module: Module, computation: Computation, **changes: Any) -> Module:
    """The module with a computation in the place of that of its name."""
    computations = (computation if original.name == computation.name else original for original in module)
    return change_computations(module, computations, **changes)


def map_instructions(
    module: Module, change: Callable[[Computation, Instruction], Instruction], **changes: Any
) -> Module:
    """The module with what `change` makes of each instruction of each computation."""
    computations = (
        attrs.evolve(computation, instructions=tuple(change(computation, instruction) for instruction in computation))
        for computation in module
    )
    return change_computations(module, computations, **changes)


def change_computations(module: Module, computations: Iterable[Computation], **changes: Any) -> Module:
    """The module with other computations; its entry is that of its name."""
    changed = attrs.evolve(module, computations=tuple(computations), source=None, **changes)
    layout = changed.entry_computation_layout
    if layout is None or layout is not module.entry_computation_layout or _signature(changed) == _signature(module):
        return changed
    return attrs.evolve(changed, entry_computation_layout=None)


def _signature(module: Module) -> tuple[object, ...]:
    entry = module.by_name.get(module.entry_name)
    return () if entry is None else (*entry.parameter_shapes, entry.result_shape)


def change_entry(module: Module, entry_name: str, **changes: Any) -> Module:
    """The module with another entry computation, and a header that says nothing of the one before."""
    return attrs.evolve(module, entry_name=entry_name, **_OF_ANY_ENTRY, **changes)


_OF_ANY_ENTRY: Mapping[str, Any] = {
    "input_output_alias": (),
    "buffer_donor": (),
    "alias_passthrough_params": False,
    "entry_computation_layout": None,
    "allow_spmd_sharding_propagation_to_parameters": (),
    "allow_spmd_sharding_propagation_to_output": (),
    "origin_recovery_table": None,
}
