"""Called computations in the place of what calls them: fusions and calls opened, branches chosen, loops cut short."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import attrs

from hloexec.analysis.calls import CallKind, calls_of, passed_operands
from hloexec.analysis.trip_counts import loop_trips
from hloexec.core.ir import Computation, Instruction, Module
from hloexec.core.ir.editing import rename_operands, take_name
from hloexec.engine.options import Options
from hloexec.engine.plan.schedule import after_dependencies
from hloexec.errors import HloError
from hloexec.ops.registry import Role, role_of, traits_of
from hloexec.tools.minifying.case import Case, assembled, outputs_of, take_the_same
from hloexec.tools.minifying.searching import Candidate, Search
from hloexec.tools.minifying.subsets import shapes_of, values_of

_MOST_TRIPS = 8
_MOST_LEVELS = 100


def open_calls(search: Search, side: str = "module") -> bool:
    """Open the calls and fusions of an entry computation, all at once; they compute the same."""
    case = search.best

    search.begin("calls and fusions")
    return search.any([partial(without_calls, case, side)])


def without_calls(case: Case, side: str = "module") -> Case | None:
    """The case with the calls and fusions of an entry computation opened; None where there are none."""
    found = case
    for _ in range(_MOST_LEVELS):
        module: Module = getattr(found, side)
        names = [each.name for each in module.entry if role_of(each) is Role.CALL]
        if not names:
            break
        for name in names:
            (call,) = calls_of(getattr(found, side).entry.by_name[name])
            found = opened(found, name, [call.computation], side)
    return None if found is case else found


def open_all(search: Search, options: Options, side: str = "module") -> bool:
    """Open what else calls computations, one after the other; whether any was opened."""
    search.begin("loops and branches")
    any_opened = False
    while search.any(_choices(search.best, options, side, keeps_meaning=not search.oracle.may_change_values)):
        any_opened = True
        open_calls(search, side)
    return any_opened


def _choices(case: Case, options: Options, side: str, *, keeps_meaning: bool) -> Iterator[Candidate]:
    """The ways to open something; of those that compute the same only, where a result must stay as it is."""
    module: Module = getattr(case, side)
    chosen: dict[str, int] = {}
    if keeps_meaning or side == "other" or case.other is not None:
        keeps_meaning, chosen = True, _branches_taken(case, options, side)
    for instruction in module.entry:
        role, names = role_of(instruction), [call.computation for call in calls_of(instruction)]
        if role in (Role.CALL, Role.ASYNC_START):
            yield partial(opened, case, instruction.name, names, side)
        elif role is Role.CONDITIONAL:
            for number, name in enumerate(names):
                if not keeps_meaning or chosen.get(instruction.name) == number:
                    yield partial(opened, case, instruction.name, [name], side)
        elif role is Role.WHILE:
            condition, body = names
            trips = loop_trips(module, module.entry, instruction)
            if keeps_meaning:
                if trips is not None and trips <= _MOST_TRIPS:
                    called = [body] * int(trips)
                    yield partial(opened, case, instruction.name, called, side)
                continue
            for called in ([], [body], [condition], [body] * 2):
                yield partial(opened, case, instruction.name, called, side)


def _branches_taken(case: Case, options: Options, side: str) -> dict[str, int]:
    """The branch that each conditional takes, if it is the same on all devices."""
    module: Module = getattr(case, side)
    conditionals = [each for each in module.entry if role_of(each) is Role.CONDITIONAL]
    if not conditionals:
        return {}
    values = values_of(attrs.evolve(case, module=module), options) or {}
    found = {}
    for each in conditionals:
        selectors = {int(value) for value in values.get(each.operands[0], ())}  # type: ignore[arg-type]
        count = len(calls_of(each))
        if len(selectors) == 1:
            (selector,) = selectors
            if each.attributes.branch_computations is None:
                found[each.name] = 0 if selector else 1
            else:
                found[each.name] = selector if 0 <= selector < count else count - 1
    return found


def opened(case: Case, name: str, called: Sequence[str], side: str = "module") -> Case:
    """The case with computations, one after the other, in the place of an instruction that calls them.

    A condition gives another value than the loop that it belongs to: it becomes a result beside the others.
    """
    module: Module = getattr(case, side)
    entry = module.entry
    instruction = entry.by_name[name]
    target, operands = _end(entry, instruction), list(instruction.operands)
    if called:
        operands = list(passed_operands(instruction, called[0]))
    made: list[Instruction] = []
    taken = set(entry.by_name)
    for computation in called:
        root = copied(module.by_name[computation], operands, taken, made)
        operands = [root]
    (root,) = operands
    is_condition = called[:1] == [call.computation for call in calls_of(instruction) if call.kind is CallKind.CONDITION]
    outputs = outputs_of(module)
    if is_condition:
        instructions = [*entry.instructions, *made]
        outputs = [*(each for each in outputs if each != target), root]
        if target in {operand for each in entry for operand in each.operands}:
            raise HloError("a condition is no state of the loop")
    else:
        if root not in entry.by_name and root not in operands[1:]:
            made = [renamed(each, root, target) for each in made]
            root = target
        instructions = [renamed(each, target, root) for each in entry if each.name != target] + made
        outputs = [root if each == target else each for each in outputs]
    shapes = {each.name: each.shape for each in (*entry.instructions, *made)}
    changed = assembled(attrs.evolve(case, module=module), instructions, outputs, None, shapes)
    if side == "module":
        return changed
    return attrs.evolve(case, other=with_parameters_of(changed.module, case.module))


def with_parameters_of(changed: Module, module: Module) -> Module:
    """A module that takes the parameters of another one; HloError where it needs others."""
    if not take_the_same(changed, module):
        raise HloError("the two modules would take different parameters")
    return changed


def _end(entry: Computation, instruction: Instruction) -> str:
    """Which instruction has the value: that which ends it, for what only begins something."""
    name = instruction.name
    while traits_of(entry.by_name[name]).opens:
        users = entry.users[name]
        if len(users) != 1:
            raise HloError(f"%{name} is ended more than once")
        name = users[0].name
    return name


def renamed(instruction: Instruction, old: str, new: str) -> Instruction:
    predecessors = tuple(new if each == old else each for each in instruction.control_predecessors)
    name = new if instruction.name == old else instruction.name
    return rename_operands(instruction, {old: new}, name=name, control_predecessors=predecessors)


def copied(callee: Computation, operands: Sequence[str], taken: set[str], made: list[Instruction]) -> str:
    """Add a computation's instructions, with operands for parameters; returns what its root is called."""
    names: dict[str, str] = {}
    for instruction in after_dependencies(callee, list(callee.instructions)):
        if role_of(instruction) is Role.PARAMETER:
            names[instruction.name] = operands[instruction.attributes.number]
            continue
        name = names[instruction.name] = take_name(instruction.name, taken)
        predecessors = tuple(names[each] for each in instruction.control_predecessors if each in names)
        made.append(rename_operands(instruction, names, name=name, control_predecessors=predecessors, span=None))
    return names[callee.root_name]


def forwarded(search: Search) -> bool:
    """Let users take an operand of an instruction in its place, where it has the same shape."""
    case = search.best
    entry = case.module.entry
    search.begin("operands forwarded")

    def candidates() -> Iterator[Candidate]:
        for instruction in reversed(entry.instructions):
            for operand in dict.fromkeys(instruction.operands):
                if entry.by_name[operand].shape.compatible(instruction.shape):
                    yield partial(_forwarded, case, instruction.name, operand)

    return search.any(candidates())


def _forwarded(case: Case, name: str, operand: str) -> Case | None:
    entry = case.module.entry
    outputs = list(dict.fromkeys(operand if each == name else each for each in outputs_of(case.module)))
    if all(role_of(entry.by_name[each]) in (Role.PARAMETER, Role.CONSTANT) for each in outputs):
        return None
    instructions = [renamed(each, name, operand) for each in entry if each.name != name]
    return assembled(case, instructions, outputs, None, shapes_of(case))
