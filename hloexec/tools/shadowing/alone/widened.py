"""A module in f64 whose steps can be told to round as those of the original do.

Its parameters and constants are those of the original, converted. What has no form in f64 (random numbers, what reads
bits, library calls without a routine in 64 bits) runs as it is, on operands converted to their types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from hloexec.core.ir import Computation, Instruction, Module, Shape, TupleShape, flat_shapes
from hloexec.core.ir.editing import take_name
from hloexec.engine.plan.schedule import after_dependencies, callees_first
from hloexec.ops.attributes import Grammar, attribute_fields, computation_names
from hloexec.ops.control.flow import make_conversion, make_element, make_tuple
from hloexec.ops.registry import Role, entry_of, find_opcode, traits_of
from hloexec.tools.shadowing.computing.widening import WIDE, retyped, widened_instruction

_SUFFIX = ".f64"


def widened_module(module: Module, entry: Computation) -> Module:
    """The module in f64. Instructions keep their names; those of computations get a suffix."""
    names, suffix = {computation.name for computation in module}, suffix_of(module)
    wide = [
        _Widening(computation, suffix, is_entry=computation is entry).widened()
        for computation in callees_first(module, entry)
    ]
    # Computations that something calls as they are.
    named = {name for computation in wide for each in computation for name in computation_names(each.attributes)}
    narrow = {each.name: each for name in named & names for each in callees_first(module, module.by_name[name])}
    return Module(
        name=module.name,
        computations=(*narrow.values(), *wide),
        entry_name=entry.name + suffix,
        replica_count=module.replica_count,
        num_partitions=module.num_partitions,
    )


def suffix_of(module: Module) -> str:
    """What is added to the names of computations in f64: usually `.f64`."""
    names, suffix = {computation.name for computation in module}, _SUFFIX
    while any(name + suffix in names for name in names):
        suffix += _SUFFIX
    return suffix


def has_no_wide_form(instruction: Instruction) -> bool:
    """Whether an instruction runs as it is."""
    entry = entry_of(instruction)
    if entry is None:
        return True
    if entry.role in (Role.CUSTOM_CALL, Role.LIBRARY):
        return entry.evaluate is None or not entry.is_pure
    is_random = entry.role is Role.KERNEL and not entry.is_pure
    return is_random or traits_of(instruction).reads_bits or entry.role is Role.COPY_START


class _Widening:
    """One computation, instruction by instruction."""

    def __init__(self, computation: Computation, suffix: str, *, is_entry: bool) -> None:
        self._computation = computation
        self._suffix = suffix
        self._is_entry = is_entry
        self._names = {instruction.name for instruction in computation}
        self._made: list[Instruction] = []
        self._wide: dict[str, str] = {}

    def widened(self) -> Computation:
        computation = self._computation
        for instruction in after_dependencies(computation, computation.instructions):
            self._wide[instruction.name] = self._widen(instruction)
        return attrs.evolve(
            computation,
            name=computation.name + self._suffix,
            instructions=tuple(self._made),
            root_name=self._wide[computation.root_name],
            span=None,
        )

    def _widen(self, instruction: Instruction) -> str:
        """The name of what holds an instruction's result in f64."""
        entry = find_opcode(instruction.opcode)
        plain = attrs.evolve(instruction, span=None, original_value=None, statistics=None)
        is_given = entry is not None and (
            entry.role is Role.CONSTANT or (entry.role is Role.PARAMETER and self._is_entry)
        )
        if is_given:
            self._made.append(plain)
            return self._converted(instruction.name, instruction.shape, retyped(instruction.shape, WIDE))
        operands = [self._wide[name] for name in instruction.operands]
        if has_no_wide_form(instruction):
            return self._as_it_is(plain, operands)
        self._made.append(attrs.evolve(self._wide_form(plain), operands=tuple(operands)))
        return instruction.name

    def _wide_form(self, instruction: Instruction) -> Instruction:
        wide = widened_instruction(instruction, WIDE)
        entry = entry_of(instruction)
        if entry is not None and entry.wider is not None:
            wide = attrs.evolve(wide, attributes=attrs.evolve(wide.attributes, custom_call_target=entry.wider))
        return attrs.evolve(wide, attributes=_renamed(wide.attributes, self._suffix))

    def _as_it_is(self, plain: Instruction, operands: list[str]) -> str:
        """The result in f64 of the instruction as it is, on operands in their types."""
        shapes = [operand.shape for operand in self._computation.operands_of(plain)]
        given = [
            self._converted(operand, retyped(shape, WIDE), shape)
            for operand, shape in zip(operands, shapes, strict=True)
        ]
        self._made.append(attrs.evolve(plain, operands=tuple(given)))
        return self._converted(plain.name, plain.shape, retyped(plain.shape, WIDE))

    def _converted(self, name: str, shape: Shape, wanted: Shape) -> str:
        """What has a shape, in the types of another one."""
        if shape == wanted:
            return name
        leaves = [
            leaf if before == after else self._make(leaf, make_conversion, after, leaf)
            for leaf, before, after in zip(
                self._leaves(name, shape), flat_shapes(shape), flat_shapes(wanted), strict=True
            )
        ]
        return self._tupled(name, leaves, wanted)

    def _leaves(self, name: str, shape: Shape) -> list[str]:
        """The leaves of a value, depth first, taken out of its tuples."""
        if not isinstance(shape, TupleShape):
            return [name]
        found = []
        for number, part in enumerate(shape.elements):
            its = self._make(name, make_element, shape, name, number)
            found += self._leaves(its, part)
        return found

    def _tupled(self, name: str, leaves: list[str], shape: Shape) -> str:
        """Leaves, depth first, in tuples again; those used are taken from the list."""
        if not isinstance(shape, TupleShape):
            return leaves.pop(0)
        return self._make(name, make_tuple, shape, [self._tupled(name, leaves, part) for part in shape.elements])

    def _make(self, source: str, make: Callable[..., Instruction], *arguments: Any) -> str:
        name = take_name(source.partition(_SUFFIX)[0] + _SUFFIX, self._names)
        self._made.append(make(name, *arguments))
        return name


def _renamed(attributes: Any, suffix: str) -> Any:
    """Attributes that name the computations in f64, and shapes in it."""
    changes: dict[str, Any] = {}
    for declared in attribute_fields(None if attributes is None else type(attributes)).values():
        value = getattr(attributes, declared.field)
        if value is None:
            continue
        if declared.grammar is Grammar.COMPUTATION:
            changes[declared.field] = value + suffix
        elif declared.grammar is Grammar.COMPUTATION_LIST:
            changes[declared.field] = tuple(name + suffix for name in value)
        elif declared.grammar is Grammar.SHAPE:
            changes[declared.field] = retyped(value, WIDE)
        elif declared.grammar is Grammar.SHAPE_LIST:
            changes[declared.field] = tuple(retyped(shape, WIDE) for shape in value)
    return attrs.evolve(attributes, **changes) if changes else attributes
