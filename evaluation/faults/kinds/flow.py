"""Faults in control flow, and in what devices exchange."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from evaluation.faults.editing import Draft
from evaluation.faults.kinds.kind import Kind, array_of, is_float, named, of, same, where
from evaluation.faults.planting import Fault, becomes, dropped, roots_become, shifted_index, with_attributes
from hloexec.core.ir import Instruction, ReplicaGroups
from hloexec.ops.attributes import computation_names

_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")


def _loops(draft: Draft) -> list[Instruction]:
    return [each for each in draft.instructions() if each.opcode == "while"]


def _conditions(draft: Draft) -> Iterator[Instruction]:
    """What the conditions of loops are computed by."""
    pending = [loop.attributes.condition for loop in _loops(draft)]
    for home in pending:
        for instruction in draft.computations[home].values():
            yield instruction
            if instruction.opcode in ("call", "fusion", "reduce"):
                pending += [name for name in computation_names(instruction.attributes) if name not in pending]


def _bounds(draft: Draft) -> list[Instruction]:
    """Comparisons of integers in conditions."""

    def counts(instruction: Instruction) -> bool:
        shape = array_of(draft.operand(instruction))
        return shape is not None and shape.element_type.name in ("s32", "s64", "u32") and not shape.dimensions

    return [each for each in _conditions(draft) if each.opcode == "compare" and counts(each)]


def _bound(draft: Draft, site: Instruction, random: Random) -> Fault:
    return shifted_index("compare", 1, random.choice([1, -1]), where=named(site.name))


def _limits(draft: Draft) -> list[Instruction]:
    """Comparisons of floats in conditions."""
    return [each for each in _conditions(draft) if each.opcode == "compare" and is_float(draft.operand(each))]


def _limit(draft: Draft, site: Instruction, random: Random) -> Fault:
    """The loop stops sooner or later: what is compared is larger by a factor."""

    def fault(draft: Draft) -> None:
        operand = draft.operand(site, 0)
        factor = draft.filled(site.name, random.choice([10.0, 0.1]), operand.shape)
        larger = draft.add(site.name, "multiply", [operand.name, factor], operand.shape)
        draft.change(site.name, operands=(larger, *site.operands[1:]))

    return fault


def _connectives(draft: Draft) -> list[Instruction]:
    return [each for each in _conditions(draft) if each.opcode in ("and", "or")]


def _connective(draft: Draft, site: Instruction, random: Random) -> Fault:
    return becomes(site.opcode, {"and": "or", "or": "and"}[site.opcode], where=named(site.name))


def _starts(draft: Draft) -> list[Instruction]:
    """Tuples that loops start with, in which there is a constant number."""
    found = [draft.operand(loop) for loop in _loops(draft)]
    return [each for each in found if each.opcode == "tuple" and _numbers(draft, each)]


def _numbers(draft: Draft, state: Instruction) -> list[int]:
    def is_number(name: str) -> bool:
        shape = array_of(draft[name])
        return shape is not None and shape.element_type.name not in ("pred",) and draft.scalar(name) is not None

    return [number for number, name in enumerate(state.operands) if is_number(name)]


def _start(draft: Draft, site: Instruction, random: Random) -> Fault:
    def fault(draft: Draft) -> None:
        number = random.choice(_numbers(draft, site))
        old = draft.operand(site, number)
        value = draft.scalar(old.name)
        assert value is not None
        operands = [*site.operands]
        operands[number] = draft.filled(site.name, value + 1, old.shape)
        draft.change(site.name, operands=tuple(operands))

    return fault


def _ends(draft: Draft) -> list[Instruction]:
    """What bodies of loops hand on."""
    roots = [draft[draft.roots[loop.attributes.body]] for loop in _loops(draft)]
    return [root for root in roots if root.opcode == "tuple"]


def _stale(draft: Draft, site: Instruction, random: Random) -> Fault:
    """A value is handed on as it was given."""
    given = [
        number
        for number, name in enumerate(site.operands)
        if draft[name].opcode != "get-tuple-element" and array_of(draft[name]) is not None
    ]
    if not given:
        raise LookupError(f"{site.name} hands nothing new on")
    number = random.choice(given)
    return roots_become("tuple", number, number, where=named(site.name))


def _exchanged(draft: Draft, site: Instruction, random: Random) -> Fault:
    """Two values are handed on in each other's place."""

    def fault(draft: Draft) -> None:
        operands = [*site.operands]
        pairs = [
            (one, other)
            for one in range(len(operands))
            for other in range(one)
            if same(draft[operands[one]], draft[operands[other]])
        ]
        if not pairs:
            raise LookupError(f"{site.name} has no two values of one shape")
        one, other = random.choice(pairs)
        operands[one], operands[other] = operands[other], operands[one]
        draft.change(site.name, operands=tuple(operands))

    return fault


def _conditionals(draft: Draft) -> list[Instruction]:
    return [each for each in draft.instructions() if each.opcode == "conditional"]


def _branches(draft: Draft, site: Instruction, random: Random) -> Fault:
    """The branches stand in another order, and so do their operands."""

    def fault(draft: Draft) -> None:
        attributes = site.attributes
        predicate, *operands = site.operands
        operands = operands[1:] + operands[:1]
        if attributes.true_computation is not None:
            names = {
                "true_computation": attributes.false_computation,
                "false_computation": attributes.true_computation,
            }
        else:
            old = attributes.branch_computations
            names = {"branch_computations": (*old[1:], old[0])}
        draft.change(site.name, operands=(predicate, *operands), attributes=names)

    return fault


def _groups(draft: Draft, site: Instruction, random: Random) -> Fault:
    """Other members, or members in another order."""
    groups = [list(group) for group in site.attributes.replica_groups.expand()] or [list(range(8))]
    size = len(groups[0])
    if site.opcode == "all-reduce" and size > 2 and random.random() < 0.5:
        groups = [part for group in groups for part in (group[: size // 2], group[size // 2 :])]
    elif len(groups) > 1 and random.random() < 0.5:
        groups[0][-1], groups[1][-1] = groups[1][-1], groups[0][-1]
    elif site.opcode != "all-reduce":
        groups = [[*group[1:], group[0]] for group in groups]
    else:
        raise LookupError(f"the groups of {site.name} may not be others")
    new = ReplicaGroups(groups=tuple(map(tuple, groups)))
    return with_attributes(site.opcode, 0, named(site.name), replica_groups=new)


def _routes(draft: Draft, site: Instruction, random: Random) -> Fault:
    pairs = site.attributes.source_target_pairs
    ways = [tuple((target, source) for source, target in pairs), pairs[1:]]
    targets = [target for _, target in pairs]
    ways.append(tuple(zip((source for source, _ in pairs), (*targets[1:], targets[0]), strict=True)))
    return with_attributes(site.opcode, 0, named(site.name), source_target_pairs=random.choice(ways))


def _another_device(draft: Draft, site: Instruction, random: Random) -> Fault:
    def fault(draft: Draft) -> None:
        one = draft.filled(site.name, 1, site.shape)
        draft.insert_after(site.name, draft.add(site.name, "xor", [site.name, one], site.shape))

    return fault


def _not_exchanged(draft: Draft, site: Instruction, random: Random) -> Fault:
    return dropped(site.opcode, where=named(site.name))


def _may_be_left_out(draft: Draft, instruction: Instruction) -> bool:
    is_exchange = instruction.opcode in ("all-reduce", "collective-permute", "all-to-all")
    return is_exchange and same(instruction, draft.operand(instruction))


KINDS = (
    Kind("bound of a loop", _bounds, _bound),
    Kind("limit of a loop", _limits, _limit),
    Kind("connective of a condition", _connectives, _connective),
    Kind("start of a loop", _starts, _start),
    Kind("stale value of a loop", _ends, _stale),
    Kind("values of a loop exchanged", _ends, _exchanged),
    Kind("branches exchanged", _conditionals, _branches),
    Kind("other groups", of(*_COLLECTIVES), _groups),
    Kind("other routes", of("collective-permute"), _routes),
    Kind("another device", of("partition-id", "replica-id"), _another_device),
    Kind("not exchanged", where(_may_be_left_out), _not_exchanged),
)
