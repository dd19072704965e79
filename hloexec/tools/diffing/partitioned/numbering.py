"""How devices count: which number among its neighbours a device takes for its own, and what it computes from that."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice, product

import attrs

from hloexec.core.ir import ArrayShape, Computation, Instruction, Module
from hloexec.core.ir.editing import inline, map_instructions, replace_computation
from hloexec.language.text.parser import parse
from hloexec.language.verifier import is_well_formed
from hloexec.ops.registry import Role, role_of
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.localization.edits import other_opcodes
from hloexec.tools.diffing.partitioned.constants import Use, by_source

_TEMPLATE = """HloModule number
ENTRY main {{
  own = u32[] partition-id()
  step = u32[] constant({step})
  count = u32[] constant({count})
  along = u32[] divide(own, step)
  number = u32[] remainder(along, count)
  ROOT other = {shape} convert(number)
}}
"""


def counted_otherwise(module: Module, is_right: Callable[[Module], bool]) -> tuple[Use, str] | None:
    """What a device computes from its number, of which a change alone makes a module right, and the change: the number
    along other devices, or another opcode, for all instructions of one source line that do the same."""
    for use, text, edited in islice(_edits(module), LIMITS.other_exchanges):
        if is_right(edited):
            return use, text
    return None


def _edits(module: Module) -> Iterator[tuple[Use, str, Module]]:
    numbers = {use: instruction for computation in module for use, instruction in _numbers(computation)}
    groups: list[dict[Use, Instruction]] = []
    for line in by_source(module, numbers):
        alike: dict[tuple[str, ...], dict[Use, Instruction]] = {}
        for use, instruction in line:
            derived = (name for name in instruction.operands if (use[0], name, 0) in numbers)
            alike.setdefault((instruction.opcode, *derived), {})[use] = instruction
        groups += alike.values()
    # What each step of a loop that is unrolled does comes first.
    for group in sorted(groups, key=len, reverse=True):
        first = next(iter(group))
        for text, changed in (*_along_others(module, group), *_by_other_opcodes(module, group)):
            yield first, text, changed


def _numbers(computation: Computation) -> Iterator[tuple[Use, Instruction]]:
    """The integers that follow from the number of a device alone."""
    derived: set[str] = set()
    for instruction in computation:
        role, shape = role_of(instruction), instruction.shape
        if role is Role.PARTITION_ID:
            derived.add(instruction.name)
        if role is not Role.KERNEL or not isinstance(shape, ArrayShape) or shape.rank or shape.element_type.is_inexact:
            continue
        operands = computation.operands_of(instruction)
        is_free = all(part.name in derived or role_of(part) is Role.CONSTANT for part in operands)
        if is_free and not derived.isdisjoint(instruction.operands):
            derived.add(instruction.name)
            yield (computation.name, instruction.name, 0), instruction


def _along_others(module: Module, alike: Mapping[Use, Instruction]) -> Iterator[tuple[str, Module]]:
    devices, shape = module.num_partitions, next(iter(alike.values())).shape
    if not isinstance(shape, ArrayShape) or not shape.element_type.is_integral:
        return
    for step, count in product(range(1, devices), range(2, devices + 1)):
        if devices % (step * count) == 0:
            changed = module
            for (name, _, _), instruction in alike.items():
                changed = _with_number(changed, changed.by_name[name], instruction, step, count)
            yield f"the number of the device along {count} that are {step} apart", changed


def _with_number(module: Module, computation: Computation, own: Instruction, step: int, count: int) -> Module:
    shape = attrs.evolve(own.shape, layout=None) if isinstance(own.shape, ArrayShape) else own.shape
    made = parse(_TEMPLATE.format(step=step, count=count, shape=shape)).entry
    instructions, root = inline(made, made, (), {*computation.by_name} - {own.name})
    renamed = [attrs.evolve(entry, name=own.name) if entry.name == root else entry for entry in instructions]
    changed = [new for entry in computation for new in (renamed if entry.name == own.name else (entry,))]
    return replace_computation(module, attrs.evolve(computation, instructions=tuple(changed)))


def _by_other_opcodes(module: Module, alike: Mapping[Use, Instruction]) -> Iterator[tuple[str, Module]]:
    (name, first, _), own = next(iter(alike.items()))
    for other in other_opcodes(attrs.evolve(module.by_name[name], root_name=first)):
        changed = map_instructions(module, partial(_with_opcode, alike, other))
        if is_well_formed(changed):
            yield f"{other.opcode} in place of {own.opcode}", changed


def _with_opcode(
    alike: Mapping[Use, Instruction], like: Instruction, computation: Computation, instruction: Instruction
) -> Instruction:
    if (computation.name, instruction.name, 0) not in alike:
        return instruction
    return attrs.evolve(instruction, opcode=like.opcode, attributes=like.attributes)
