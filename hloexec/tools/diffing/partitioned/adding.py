"""A module in which a value is added up over groups of devices."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from hloexec.core.ir import ArrayShape, Computation, Instruction, Module
from hloexec.core.ir.editing import rename_operands, replace_computation, take_name
from hloexec.language.text.parser import parse
from hloexec.language.verifier import is_well_formed
from hloexec.ops.attributes import computation_names
from hloexec.tools.diffing.graph import Node

_TEMPLATE = """HloModule sums, replica_count={replicas}, num_partitions={partitions}
{adder} {{
  a = {number} parameter(0)
  b = {number} parameter(1)
  ROOT sum = {number} add(a, b)
}}
ENTRY main {{
  value = {shape} parameter(0)
  ROOT {name} = {shape} all-reduce(value), {how}, use_global_device_ids=true, to_apply={adder}
}}
"""


def with_sum(module: Module, node: Node, groups: Sequence[Sequence[int]]) -> Module | None:
    """The module with an all-reduce over groups of devices of what an instruction gives, which all that uses it takes
    instead; None where there can be none."""
    place = _place(module, node)
    if place is None:
        return None
    computation, source = place
    names = {name for each in module for name in (each.name, *each.by_name)}
    shape = source.shape
    if not isinstance(shape, ArrayShape):
        return None
    channel = 1 + max(_channels(module), default=0)
    listed = ",".join("{" + ",".join(map(str, group)) + "}" for group in groups)
    made = parse(
        _TEMPLATE.format(
            replicas=module.replica_count,
            partitions=module.num_partitions,
            adder=take_name("adder", names),
            name=take_name("added", names),
            number=ArrayShape(shape.element_type, ()),
            shape=ArrayShape(shape.element_type, shape.dimensions),
            how=f"channel_id={channel}, replica_groups={{{listed}}}",
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
    adder = next(each for each in made if each is not made.entry)
    edited = attrs.evolve(module, computations=(adder, *replace_computation(module, changed)))
    return edited if is_well_formed(edited) else None


def _place(module: Module, node: Node) -> tuple[Computation, Instruction] | None:
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
