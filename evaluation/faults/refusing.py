"""The same program in other computations: calls and fusions dissolved, others made, loops unrolled, work repeated.

Instructions keep their names when they move; a copy of `v7` is called `v7.` and something, so that both can be told to
come from it. What is only there for the program's form is called `w.` and something.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from random import Random

import attrs

from evaluation.faults.editing import Draft
from hloexec.analysis.trip_counts import loop_trips
from hloexec.core.ir import Computation, Instruction, TupleShape
from hloexec.ops.control.flow import CallAttributes, FusionAttributes, GetTupleElementAttributes, ParameterAttributes
from hloexec.ops.registry import OPCODES, Role

FORM = "w"
"""What instructions are called that stand for no other."""
_MOST_TRIPS = 16
_CHEAP = frozenset("constant broadcast iota reshape convert compare".split())
_STATEFUL = frozenset("rng rng-bit-generator rng-get-and-update-state".split())


def base(name: str) -> str:
    """Which instruction one comes from."""
    return name.partition(".")[0]


def code(draft: Draft) -> Iterator[str]:
    """The computations that run as they stand, not as part of a reduction, a sort and the like."""
    seen = [draft.entry_name]
    for home in seen:
        yield home
        for instruction in draft.computations[home].values():
            if OPCODES[instruction.opcode].role in (Role.CALL, Role.WHILE, Role.CONDITIONAL):
                seen += [name for name in _called(instruction) if name not in seen]


def _called(instruction: Instruction) -> tuple[str, ...]:
    attributes = instruction.attributes
    if instruction.opcode == "call":
        return (attributes.to_apply,)
    if instruction.opcode == "fusion":
        return (attributes.calls,)
    if instruction.opcode == "while":
        return (attributes.condition, attributes.body)
    return tuple(attributes.branches)


def _copied(draft: Draft, callee: str, near: str, operands: Iterable[str]) -> str:
    """Put the instructions of a computation beside `near`, with operands for parameters; returns the root's name."""
    arguments = tuple(operands)
    names: dict[str, str] = {}
    body = draft.computations[callee]
    for instruction in _in_order(body):
        if instruction.opcode == "parameter":
            names[instruction.name] = arguments[instruction.attributes.number]
            continue
        names[instruction.name] = draft.put(
            draft.home(near),
            attrs.evolve(
                instruction,
                name=draft.fresh(base(instruction.name)),
                operands=tuple(names[name] for name in instruction.operands),
                control_predecessors=tuple(names[name] for name in instruction.control_predecessors if name in names),
            ),
        )
    return names[draft.roots[callee]]


def _in_order(instructions: Mapping[str, Instruction]) -> Iterator[Instruction]:
    """Operands before their users."""
    done: set[str] = set()
    for start in list(instructions):
        pending = [start]
        while pending:
            name = pending[-1]
            missing = [other for other in instructions[name].operands if other not in done]
            if missing:
                pending += missing
                continue
            pending.pop()
            if name not in done:
                done.add(name)
                yield instructions[name]


def inline_calls(draft: Draft, random: Random, share: float, opcodes: Iterable[str] = ("call", "fusion")) -> None:
    """Dissolve some calls and fusions, those within others first."""
    running = set(code(draft))
    for home in [home for home in draft.computations if home in running]:
        for instruction in list(draft.computations[home].values()):
            if instruction.opcode not in opcodes or instruction.control_predecessors:
                continue
            if random.random() < share and not _is_awaited(draft, instruction.name):
                (callee,) = _called(instruction)
                root = _copied(draft, callee, instruction.name, draft[instruction.name].operands)
                draft.rewire(instruction.name, root)
                draft.remove(instruction.name)


def _is_awaited(draft: Draft, name: str) -> bool:
    return any(name in each.control_predecessors for each in draft.computations[draft.home(name)].values())


def unroll(draft: Draft) -> None:
    """Write short loops of the entry computation out that say how often they go round."""
    module = draft.module()
    for instruction in list(draft.computations[draft.entry_name].values()):
        if instruction.opcode != "while":
            continue
        trips = loop_trips(module, module.entry, instruction)
        if trips is None or trips > _MOST_TRIPS or _is_awaited(draft, instruction.name):
            continue
        state = draft[instruction.name].operands[0]
        for _ in range(int(trips)):
            state = _copied(draft, instruction.attributes.body, instruction.name, [state])
        draft.rewire(instruction.name, state)
        draft.remove(instruction.name)
    draft.clean()


def forward_tuples(draft: Draft, random: Random, share: float) -> None:
    """Take elements of a tuple from where the tuple has them from."""
    for home in list(code(draft)):
        for instruction in list(draft.computations[home].values()):
            if instruction.opcode != "get-tuple-element" or random.random() >= share:
                continue
            source = draft.operand(draft[instruction.name])
            if source.opcode == "tuple" and not draft.is_root(instruction.name):
                draft.rewire(instruction.name, source.operands[instruction.attributes.index])
                draft.remove(instruction.name)
    draft.clean()


def repeat_cheap_work(draft: Draft, random: Random, share: float) -> None:
    """Let some users have constants, broadcasts and the like of their own."""
    for home in list(code(draft)):
        for instruction in list(draft.computations[home].values()):
            if instruction.opcode not in _CHEAP:
                continue
            for user in draft.users(instruction.name)[1:]:
                if random.random() < share:
                    own = draft.put(home, attrs.evolve(instruction, name=draft.fresh(base(instruction.name))))
                    draft.rewire(instruction.name, own, users=[user.name])


def outline(draft: Draft, random: Random, share: float, *, as_calls: bool) -> None:
    """Make fusions, or calls, of connected groups of instructions; about a share of all go into some."""
    for home in list(code(draft)):
        instructions = draft.computations[home]
        if any(home in _called(each) for each in draft.instructions() if each.opcode == "fusion"):
            continue
        wanted = share * len(instructions)
        for _ in range(4 * len(instructions)):
            if wanted < 1:
                break
            group = _group(draft, home, random, as_calls)
            if len(group) > 1:
                wanted -= len(group)
                _move(draft, home, group, random, as_calls)


def _fits(instruction: Instruction, as_calls: bool) -> bool:
    role = OPCODES[instruction.opcode].role
    if instruction.control_predecessors or instruction.opcode in _STATEFUL or not hasattr(instruction.shape, "rank"):
        return False
    return role in (Role.KERNEL, Role.CONSTANT) or (as_calls and role is Role.CALL)


def _group(draft: Draft, home: str, random: Random, as_calls: bool) -> set[str]:
    """A convex group that grows from an instruction to its operands."""
    instructions = draft.computations[home]
    candidates = [each.name for each in instructions.values() if _fits(each, as_calls) and each.opcode != "constant"]
    if not candidates:
        return set()
    group = {random.choice(candidates)}
    size = random.choice((2, 3, 4, 6, 8, 12))
    frontier = [name for each in group for name in instructions[each].operands]
    while frontier and len(group) < size:
        name = frontier.pop(random.randrange(len(frontier)))
        if name in group or not _fits(instructions[name], as_calls) or _is_awaited(draft, name):
            continue
        escapes = any(user.name not in group for user in draft.users(name)) or draft.is_root(name)
        if escapes and (random.random() < 0.7 or not _is_convex(draft, group | {name})):
            continue
        group.add(name)
        frontier += instructions[name].operands
    return group


def _is_convex(draft: Draft, group: set[str]) -> bool:
    """Whether no path leaves the group and comes back."""
    seen: set[str] = set()
    pending = [user.name for name in group for user in draft.users(name) if user.name not in group]
    while pending:
        name = pending.pop()
        if name in group:
            return False
        if name not in seen:
            seen.add(name)
            pending += [user.name for user in draft.users(name)]
    return True


def _move(draft: Draft, home: str, group: set[str], random: Random, as_calls: bool) -> None:
    instructions = draft.computations[home]
    inside = [each for each in _in_order(instructions) if each.name in group]
    outside = list(dict.fromkeys(name for each in inside for name in each.operands if name not in group))
    random.shuffle(outside)
    results = [
        each.name
        for each in inside
        if draft.is_root(each.name) or any(user.name not in group for user in draft.users(each.name))
    ]
    parameters = {}
    body = []
    for number, name in enumerate(outside):
        parameters[name] = draft.fresh(FORM)
        body.append(
            Instruction(
                name=parameters[name],
                shape=draft[name].shape,
                opcode="parameter",
                attributes=ParameterAttributes(number=number),
            )
        )
    body += [attrs.evolve(each, operands=tuple(parameters.get(n, n) for n in each.operands)) for each in inside]
    shape = draft[results[0]].shape
    root = results[0]
    if len(results) > 1:
        shape = TupleShape(tuple(draft[name].shape for name in results))
        root = draft.fresh(FORM)
        body.append(Instruction(name=root, shape=shape, opcode="tuple", operands=tuple(results)))
    callee = draft.fresh("computation")
    kind = random.choice(("kLoop", "kInput", "kOutput"))
    site = draft.put(
        home,
        Instruction(
            name=draft.fresh(FORM),
            shape=shape,
            opcode="call" if as_calls else "fusion",
            operands=tuple(outside),
            attributes=CallAttributes(to_apply=callee) if as_calls else FusionAttributes(kind=kind, calls=callee),
        ),
    )
    for index, name in enumerate(results):
        element = site
        if len(results) > 1:
            element = draft.put(
                home,
                Instruction(
                    name=draft.fresh(FORM),
                    shape=draft[name].shape,
                    opcode="get-tuple-element",
                    operands=(site,),
                    attributes=GetTupleElementAttributes(index=index),
                ),
            )
        draft.rewire(name, element, users=[user.name for user in draft.users(name) if user.name not in group])
        if draft.is_root(name):
            draft.roots[home] = element
    draft.take_out(each.name for each in inside)
    draft.add_computation(Computation(name=callee, instructions=tuple(body), root_name=root))
