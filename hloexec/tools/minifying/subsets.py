"""Fewer instructions: which of those of the entry computation are needed, the others' values being given.

An instruction that goes becomes a parameter with the value that it had, where what stays takes it. What stays and is
taken by nothing is a result. So every subset is a module, and those in which the failure shows are searched by halves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from hloexec.core.ir import ArrayShape, Instruction, Shape, TupleShape, flat_shapes
from hloexec.engine.options import Options
from hloexec.engine.plan.schedule import after_dependencies
from hloexec.errors import HloError
from hloexec.ops.registry import Role, role_of, traits_of
from hloexec.tools.minifying.case import Case, Recorded, assembled, is_glue, outputs_of, recorded
from hloexec.tools.minifying.searching import Search, reduced

_LARGEST_CONSTANT = 1
"""Elements of constants that stay what they are; larger ones become parameters, whose sizes can change."""


def values_of(case: Case, options: Options) -> Recorded | None:
    """What the instructions gave; None where the module cannot be run here."""
    if case.inputs is None:
        return None
    try:
        return recorded(case, options)
    except HloError:
        return None


def fewer_outputs(search: Search) -> None:
    """Leave out results, and what only they need."""
    case = search.best
    names = outputs_of(case.module)
    if len(names) < 2:
        return
    search.begin("outputs")
    shapes = shapes_of(case)

    def with_outputs(kept: Sequence[str]) -> Case | None:
        return assembled(case, case.module.entry.instructions, kept, None, shapes) if kept else None

    reduced(search, names, with_outputs, least=1)


def fewer_instructions(search: Search, options: Options) -> None:
    """Leave out what the failure does not need."""
    case = search.best
    values = values_of(case, options)
    if values is None and search.oracle.needs_values:
        return
    search.begin("instructions")
    units = list(_units(case))
    if values is None:
        case = Case(case.module, None, case.other)

    def with_units(kept: Sequence[tuple[str, ...]]) -> Case | None:
        return subset(case, {name for unit in kept for name in unit}, values)

    # All of them once: constants of many elements become parameters.
    search.any([lambda: with_units(units)])
    reduced(search, units, with_units, least=1)


def shapes_of(case: Case) -> dict[str, Shape]:
    """The shapes of the entry's instructions."""
    return {each.name: each.shape for each in case.module.entry}


def _units(case: Case) -> Iterator[tuple[str, ...]]:
    """What stays or goes together: an instruction, or those that begin and end something asynchronous."""
    entry = case.module.entry
    chains: dict[str, list[str]] = {}
    for instruction in after_dependencies(entry, list(entry.instructions)):
        if is_glue(instruction):
            continue
        begun = next((name for name in instruction.operands if name in chains), None)
        if begun is not None and traits_of(entry.by_name[begun]).opens:
            chains[instruction.name] = chains[begun]
            chains[begun].append(instruction.name)
        else:
            chains[instruction.name] = [instruction.name]
    seen: set[int] = set()
    for chain in chains.values():
        if id(chain) not in seen:
            seen.add(id(chain))
            yield tuple(chain)


def subset(case: Case, kept: Collection[str], values: Recorded | None) -> Case | None:
    """The case with these instructions of the entry computation; None where they give nothing."""
    entry = case.module.entry
    by_name = entry.by_name
    stays: dict[str, Instruction] = {}
    pending = list(kept)
    while pending:
        instruction = by_name[pending.pop()]
        if instruction.name in stays:
            continue
        stays[instruction.name] = instruction
        pending += [name for name in instruction.operands if _stays(by_name, name, kept, values)]
    used = {name for each in stays.values() for name in each.operands if not _is_lost_element(by_name, each, kept)}
    final = set(outputs_of(case.module))
    results = [
        each.name
        for each in entry
        if each.name in kept and (each.name not in used or each.name in final) and _has_arrays(each.shape)
    ]
    if not results:
        return None
    ordered = [each for each in entry if each.name in stays]
    return assembled(case, ordered, results, values, shapes_of(case))


def _stays(by_name: Mapping[str, Instruction], name: str, kept: Collection[str], values: Recorded | None) -> bool:
    """Whether an operand is computed in the module: it is to stay, or it is a constant, or it packs what is there."""
    instruction = by_name[name]
    role = role_of(instruction)
    if role is Role.GET_TUPLE_ELEMENT:
        return not _is_lost_element(by_name, instruction, kept)
    if role is Role.CONSTANT:
        is_known = values is not None and name in values
        return not is_known or _is_small(instruction)
    return name in kept or role in (Role.TUPLE, Role.TOKEN)


def _is_lost_element(by_name: Mapping[str, Instruction], instruction: Instruction, kept: Collection[str]) -> bool:
    """Whether it is an element of a tuple that is not computed any more; a parameter's is left as it is."""
    if role_of(instruction) is not Role.GET_TUPLE_ELEMENT:
        return False
    source = by_name[instruction.operands[0]]
    while role_of(source) is Role.GET_TUPLE_ELEMENT:
        source = by_name[source.operands[0]]
    return not is_glue(source) and source.name not in kept


def _is_small(instruction: Instruction) -> bool:
    shape = instruction.shape
    return isinstance(shape, ArrayShape) and shape.element_count <= _LARGEST_CONSTANT


def _has_arrays(shape: Shape) -> bool:
    """Whether there is something to see in a result."""
    if isinstance(shape, TupleShape):
        return all(leaf.is_array for leaf in flat_shapes(shape))
    return shape.is_array
