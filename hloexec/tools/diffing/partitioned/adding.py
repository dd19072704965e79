"""A module in which devices exchange a value that they keep in another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import attrs

from hloexec.core.ir import ArrayShape, Computation, Instruction, Module
from hloexec.core.ir.editing import rename_operands, replace_computation, take_name
from hloexec.language.text.parser import parse
from hloexec.language.verifier import is_well_formed
from hloexec.ops.attributes import computation_names
from hloexec.tools.diffing.graph import Node

_TEMPLATE = """HloModule exchange, replica_count={replicas}, num_partitions={partitions}
{adder} {{
  a = {number} parameter(0)
  b = {number} parameter(1)
  ROOT sum = {number} add(a, b)
}}
ENTRY main {{
  value = {shape} parameter(0)
  ROOT {name} = {shape} {what}, channel_id={channel}
}}
"""


def over(groups: Sequence[Sequence[int]]) -> str:
    """Groups of devices, as an attribute."""
    listed = ",".join("{" + ",".join(map(str, group)) + "}" for group in groups)
    return f"replica_groups={{{listed}}}"


Place: TypeAlias = tuple[Computation, Instruction]


def with_exchange(module: Module, place: Place | None, what: str, *, adds: bool = False) -> Module | None:
    """The module with a collective on what an instruction gives, which all that uses it takes instead; None where there
    can be none. `what` is it, on `value`, but for the computation of one that `adds` up."""
    if place is None:
        return None
    computation, source = place
    names = {name for each in module for name in (each.name, *each.by_name)}
    shape = source.shape
    if not isinstance(shape, ArrayShape):
        return None
    channel = 1 + max(_channels(module), default=0)
    adder = take_name("adder", names)
    made = parse(
        _TEMPLATE.format(
            replicas=module.replica_count,
            partitions=module.num_partitions,
            adder=adder,
            name=take_name("exchanged", names),
            number=ArrayShape(shape.element_type, ()),
            shape=ArrayShape(shape.element_type, shape.dimensions),
            channel=channel,
            what=f"{what}, use_global_device_ids=true, to_apply={adder}" if adds else what,
        )
    )
    added = attrs.evolve(made.entry.root, shape=shape, operands=(source.name,))
    instructions: list[Instruction] = []
    for each in computation:
        instructions.append(rename_operands(each, {source.name: added.name}))
        if each is source:
            instructions.append(added)
    root = added.name if computation.root_name == source.name else computation.root_name
    changed = attrs.evolve(computation, instructions=tuple(instructions), root_name=root)
    sums = [each for each in made if each is not made.entry and adds]
    edited = attrs.evolve(module, computations=(*sums, *replace_computation(module, changed)))
    return edited if is_well_formed(edited) else None


def place_of(module: Module, node: Node) -> Place | None:
    """The instruction that gives a value to others than those of its own fusion."""
    computation = module.by_name[node.instance.computation.name]
    source = computation.by_name[node.instance.instruction.name]
    fusions = [
        (outer, each)
        for outer in module
        for each in outer
        if hasattr(each.attributes, "kind") and computation.name in computation_names(each.attributes)
    ]
    if not fusions:
        return computation, source
    is_only_one = len(fusions) == 1 and computation.root_name == source.name
    return fusions[0] if is_only_one else None


def _channels(module: Module) -> list[int]:
    found = (getattr(each.attributes, "channel_id", None) for computation in module for each in computation)
    return [channel for channel in found if channel is not None]
