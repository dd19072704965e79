"""Which instructions of a computation run, and in which order.

Instructions that nothing uses and that have no side effect are omitted. Scheduled modules run in the order of their
text. The others run in that order, in a depth-first one from the root, or in the better of the two with some
instructions moved to an earlier place where they free more than they make, whichever is estimated to keep the fewest
bytes live.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from operator import is_, itemgetter
from typing import TypeVar

from hloexec.core.ir import Computation, Instruction, Module
from hloexec.errors import VerificationError
from hloexec.ops.attributes import computation_names
from hloexec.ops.registry import Role, find_opcode

_Node = TypeVar("_Node", Computation, Instruction)

_LARGE_BYTES = 1 << 20
"""Where less is live the order of the text is as good as any."""
_IMPROVEMENT = 0.95
"""By how much another order has to be better."""
_MOST_USERS = 32
"""Values with more users are left where they are: they live long in any order, and looking at all users takes long."""
_MOST_MOVED = 8
"""Views and scalars that an instruction brings along to an earlier place."""


def computation_named(module: Module, name: str, instruction: Instruction) -> Computation:
    """A computation that an instruction calls; VerificationError where it has none of that name."""
    computation = module.by_name.get(name)
    if computation is None:
        raise VerificationError(f"module {module.name} has no computation {name}, which %{instruction.name} calls")
    return computation


def callees_first(module: Module, entry: Computation) -> list[Computation]:
    """The computations that `entry` reaches, itself included, each after those it calls.

    Raises VerificationError where a computation calls itself, directly or through others.
    """
    try:
        return _after_needs([entry], partial(_callees, module))
    except _CycleError as cycle:
        raise VerificationError(
            f"a computation must not call itself, but {' → '.join((*cycle.names, cycle.names[0]))}"
        ) from None


def _callees(module: Module, computation: Computation) -> list[Computation]:
    """The computations that instructions of `computation` name, the last one first."""
    callees: dict[str, Computation] = {}
    for instruction in computation:
        for name in computation_names(instruction.attributes):
            callees[name] = computation_named(module, name, instruction)
    return list(reversed(callees.values()))


def effectful_computations(computations: Iterable[Computation]) -> frozenset[str]:
    """The names of those computations, given callees first, that do more than to return a value."""
    effectful: set[str] = set()
    for computation in computations:
        if any(_has_effect(instruction, effectful) for instruction in computation):
            effectful.add(computation.name)
    return frozenset(effectful)


def _has_effect(instruction: Instruction, effectful: Collection[str]) -> bool:
    """Whether an instruction must run even where nothing needs its value."""
    entry = find_opcode(instruction.opcode)
    if entry is None or entry.role is Role.MACHINE:
        return True
    if entry.role is Role.CUSTOM_CALL and instruction.attributes.custom_call_has_side_effect:
        return True
    return bool(effectful) and any(name in effectful for name in computation_names(instruction.attributes))


def schedule(computation: Computation, effectful: frozenset[str], *, is_scheduled: bool) -> list[Instruction]:
    """The instructions to run, in order, each after its operands and control predecessors.

    Raises VerificationError where an instruction names an operand that does not exist, or waits for itself.
    """
    if computation.root_name not in computation.by_name:
        raise VerificationError(
            f"computation {computation.name} has no instruction {computation.root_name} as its root"
        )
    roots = [computation.root]
    if computation.name in effectful:
        roots = [*(instruction for instruction in computation if _has_effect(instruction, effectful)), *roots]
    depth_first = after_dependencies(computation, roots)
    live = {instruction.name for instruction in depth_first}
    textual = after_dependencies(computation, [entry for entry in computation if entry.name in live])
    if is_scheduled:
        return textual
    orders = [textual] if all(map(is_, textual, depth_first)) else [textual, depth_first]
    order, peak = min(((order, _peak_bytes(order, computation)) for order in orders), key=itemgetter(1))
    if peak >= _LARGE_BYTES:
        earlier = _with_early_deaths(order, computation)
        if _peak_bytes(earlier, computation) <= _IMPROVEMENT * peak:
            return earlier
    return order


def _with_early_deaths(order: Sequence[Instruction], computation: Computation) -> list[Instruction]:
    """The order, but where all that is left of the users of a value make less than it takes, they follow at once.

    Masks for a backward pass are an example, where the text computes them long after what they are made of.
    """
    users: dict[str, dict[str, Instruction]] = {instruction.name: {} for instruction in order}
    needed = {entry.name: _distinct(_dependencies(computation, entry)) for entry in order}
    for instruction in order:
        for operand in needed[instruction.name]:
            users[operand.name][instruction.name] = instruction
    users.setdefault(computation.root_name, {})[""] = computation.root
    waiting = {name: len(using) for name, using in users.items()}
    made = {instruction.name: _new_bytes(instruction) for instruction in order}
    scheduled: dict[str, Instruction] = {}

    def take(*instructions: Instruction) -> None:
        for instruction in instructions:
            scheduled[instruction.name] = instruction
            for operand in needed[instruction.name]:
                waiting[operand.name] -= 1

    for instruction in order:
        if instruction.name in scheduled:
            continue
        take(instruction)
        pending = [instruction]
        while pending:
            done = pending.pop()
            for value in (done, *needed[done.name]):
                left = _left(users[value.name], scheduled) if value.name in scheduled and made[value.name] else {}
                uses = Counter(operand.name for user in left.values() for operand in needed[user.name])
                freed = sum(made[name] for name, count in uses.items() if name in scheduled and count == waiting[name])
                if sum(made[name] for name in left) >= freed:
                    continue
                group: dict[str, Instruction] = {}
                if all(_is_ready(user, computation, made, scheduled, group) for user in left.values()):
                    take(*group.values())
                    pending += group.values()
    return list(scheduled.values())


def _left(users: Mapping[str, Instruction], instructions: Mapping[str, Instruction]) -> dict[str, Instruction]:
    """The users of a value that have yet to run; none of a result's, nor if there are many."""
    if "" in users or len(users) > _MOST_USERS:
        return {}
    return {name: user for name, user in users.items() if name not in instructions}


def _distinct(instructions: Iterable[Instruction]) -> list[Instruction]:
    return list({instruction.name: instruction for instruction in instructions}.values())


def _is_ready(
    instruction: Instruction,
    computation: Computation,
    made: Mapping[str, int],
    instructions: Mapping[str, Instruction],
    group: dict[str, Instruction],
) -> bool:
    """Whether an instruction can run next, once others have that take no memory; adds them and it to the group."""
    entry = find_opcode(instruction.opcode)
    if entry is None or entry.role is not Role.KERNEL or not entry.is_pure:
        return False
    before: dict[str, Instruction] = {}
    pending = [instruction]
    while pending:
        current = pending.pop()
        if current.name in instructions or current.name in group:
            continue
        before.pop(current.name, None)
        before[current.name] = current
        for needed in _dependencies(computation, current):
            if needed.name in instructions or needed.name in group:
                continue
            entry = find_opcode(needed.opcode)
            is_nothing = entry is not None and entry.is_pure and not made[needed.name]
            if not is_nothing or len(before) > _MOST_MOVED:
                return False
            pending.append(needed)
    group.update(reversed(before.items()))
    return True


def _dependencies(computation: Computation, instruction: Instruction) -> list[Instruction]:
    """Operands and control predecessors, the last one first."""
    try:
        by_name = computation.by_name
        dependencies = [by_name[name] for name in instruction.control_predecessors]
        dependencies += [by_name[name] for name in instruction.operands]
    except KeyError as error:
        raise VerificationError(
            f"%{instruction.name} in computation {computation.name} names %{error.args[0]}, which is not there"
        ) from None
    dependencies.reverse()
    return dependencies


def after_dependencies(computation: Computation, roots: Sequence[Instruction]) -> list[Instruction]:
    """The roots in the order given, each with what it needs, depth first, before it."""
    try:
        return _after_needs(roots, partial(_dependencies, computation))
    except _CycleError as cycle:
        first, last = cycle.names[0], cycle.names[-1]
        raise VerificationError(
            f"%{first} in computation {computation.name} waits for itself through %{last}"
        ) from None


class _CycleError(Exception):
    """Something needs itself: the names on the way, each of which needs the next one, and the last one the first."""

    def __init__(self, names: list[str]) -> None:
        super().__init__(names)
        self.names = names


def _after_needs(roots: Sequence[_Node], needs: Callable[[_Node], list[_Node]]) -> list[_Node]:
    """The roots in the order given, each with all that it needs, depth first, before it.

    `needs` gives what a node needs, the last one first.
    """
    order: list[_Node] = []
    done: dict[str, bool] = {}
    for root in roots:
        if root.name in done:
            continue
        done[root.name] = False
        stack: list[tuple[_Node, list[_Node]]] = [(root, needs(root))]
        while stack:
            node, pending = stack[-1]
            while pending:
                needed = pending.pop()
                if needed.name not in done:
                    done[needed.name] = False
                    stack.append((needed, needs(needed)))
                    break
                if not done[needed.name]:
                    path: list[str] = [above.name for above, _ in stack]
                    raise _CycleError(path[path.index(needed.name) :])
            else:
                done[node.name] = True
                order.append(node)
                stack.pop()
    return order


def _peak_bytes(order: Sequence[Instruction], computation: Computation) -> int:
    """The most bytes of results that are alive at once, each from its instruction to its last user."""
    last: dict[str, int] = {}
    for position, instruction in enumerate(order):
        last[instruction.name] = position
        for name in instruction.operands:
            last[name] = position
    ends: list[int] = [0] * (len(order) + 1)
    live = peak = 0
    for position, instruction in enumerate(order):
        size = _new_bytes(instruction)
        live += size
        peak = max(peak, live)
        if instruction.name != computation.root_name:
            ends[last[instruction.name]] += size
        live -= ends[position]
    return peak


def _new_bytes(instruction: Instruction) -> int:
    """The bytes of a result where it is a buffer of its own."""
    entry = find_opcode(instruction.opcode)
    makes_buffer = entry is not None and (
        (entry.role is Role.KERNEL and not entry.may_be_view)
        or entry.role in (Role.CALL, Role.WHILE, Role.CONDITIONAL, Role.CUSTOM_CALL)
    )
    return instruction.shape.byte_size if makes_buffer else 0
