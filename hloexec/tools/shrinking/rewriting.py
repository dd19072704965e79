"""A module with other sizes: its shapes, attributes, constants and the configs of its library calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from hloexec.core.ir import Computation, EntryLayout, Instruction, Literal, Module, Shape, TupleShape
from hloexec.core.structs import frozen
from hloexec.ops.attributes import Grammar, attribute_fields
from hloexec.ops.registry import Role, entry_of, find_opcode
from hloexec.ops.relations import Place, Resizing, Value
from hloexec.tools.shrinking.dimensions import Dimensions
from hloexec.tools.shrinking.estimating import resized_shape
from hloexec.tools.shrinking.literals import resized_literal


@frozen(eq=False)
class _Rewriting:
    module: Module
    dimensions: Dimensions
    sizes: Mapping[int, int]
    literals: Mapping[Place, Literal]

    def shape(self, value: Value) -> Shape:
        return resized_shape(value, self.dimensions, self.sizes)

    def computation(self, computation: Computation) -> Computation:
        values = self.dimensions.values[computation.name]
        shapes = {name: self.shape(value) for name, value in values.items()}
        found = tuple(self.instruction(computation, instruction, shapes) for instruction in computation.instructions)
        return attrs.evolve(computation, instructions=found)

    def instruction(
        self, computation: Computation, instruction: Instruction, shapes: Mapping[str, Shape]
    ) -> Instruction:
        operands = [name for name in instruction.operands if name in shapes]
        change = Resizing(
            attributes=instruction.attributes,
            operands=tuple(computation.by_name[name].shape for name in operands),
            result=instruction.shape,
            new_operands=tuple(shapes[name] for name in operands),
            new_result=shapes[instruction.name],
            backend_config=instruction.backend_config,
        )
        given = self.literals.get((computation.name, instruction.name))
        attributes = _attributes(instruction, change, given)
        return attrs.evolve(
            instruction,
            shape=change.new_result,
            attributes=attributes,
            backend_config=_config(instruction, change),
            original_value=None,
            statistics=None,
        )


def _attributes(instruction: Instruction, change: Resizing, given: Literal | None) -> Any:
    entry = find_opcode(instruction.opcode)
    attributes = instruction.attributes
    if entry is None or attributes is None:
        return attributes
    if entry.role is Role.CONSTANT:
        literal = attributes.literal if given is None else given
        return attrs.evolve(attributes, literal=resized_literal(literal, change.new_result))
    if entry.resize is not None:
        is_resized = (change.operands, change.result) != (change.new_operands, change.new_result)
        return entry.resize(change) if is_resized else attributes
    changes: dict[str, Any] = {}
    for field in attribute_fields(type(attributes)).values():
        if field.grammar is Grammar.SHAPE_LIST and getattr(attributes, field.field):
            stated = getattr(attributes, field.field)
            changes[field.field] = tuple(map(_in_layout_of, stated, change.new_operands))
    return attrs.evolve(attributes, **changes) if changes else attributes


def _in_layout_of(stated: Shape, shape: Shape) -> Shape:
    """A stated shape with the sizes of another."""
    if isinstance(stated, TupleShape) and isinstance(shape, TupleShape):
        return TupleShape(tuple(map(_in_layout_of, stated.elements, shape.elements)))
    if isinstance(stated, TupleShape) or isinstance(shape, TupleShape):
        return stated
    if hasattr(stated, "element") or hasattr(shape, "element"):
        return shape
    return attrs.evolve(stated, dimensions=shape.dimensions)


def _config(instruction: Instruction, change: Resizing) -> str | None:
    entry = entry_of(instruction)
    if entry is None or entry.role is not Role.LIBRARY or entry.resize is None:
        return instruction.backend_config
    found: str | None = entry.resize(change)
    return found


def rewritten(
    module: Module, dimensions: Dimensions, sizes: Mapping[int, int], literals: Mapping[Place, Literal]
) -> Module:
    """The module with new sizes of roots, and other constants where `literals` gives some."""
    rewriting = _Rewriting(module, dimensions, sizes, literals)
    computations = tuple(map(rewriting.computation, module.computations))
    found = attrs.evolve(module, computations=computations, origin_recovery_table=None, source=None)
    layout = module.entry_computation_layout
    if layout is None:
        return found
    entry = found.entry
    parameters = tuple(map(_in_layout_of, layout.parameters, entry.parameter_shapes))
    return attrs.evolve(
        found, entry_computation_layout=EntryLayout(parameters, _in_layout_of(layout.result, entry.result_shape))
    )
