"""Called computations: opened where they are called, or with less in them.

Their parameters and the shapes of their roots stay, so that what calls them stays valid. An instruction that goes is
replaced by an operand, a parameter or zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import attrs
import numpy as np

from hloexec.analysis.calls import CallKind, call_of, calls_of, passed_operands
from hloexec.analysis.trip_counts import loop_trips
from hloexec.core.ir import ArrayShape, Computation, Instruction, Literal, Module, Shape, TupleShape
from hloexec.core.ir.editing import (
    change_computations,
    inline,
    rename,
    rename_operands,
    replace_computation,
    replace_instruction,
    take_name,
)
from hloexec.engine.options import Options
from hloexec.engine.plan.schedule import after_dependencies, callees_first
from hloexec.errors import HloError
from hloexec.ops.control.flow import make_constant, make_element, make_parameter, make_tuple
from hloexec.ops.registry import Role, role_of, traits_of
from hloexec.tools.minifying.case import Case, assembled, is_glue, outputs_of, part_of, take_the_same, without_uncalled
from hloexec.tools.minifying.searching import Candidate, Search, reduced, shapes_of, values_of

_MOST_TRIPS = 8
_MOST_LEVELS = 100


def open_calls(search: Search, side: str = "module") -> bool:
    """Open the calls and fusions of an entry computation, all at once; they compute the same."""
    case = search.best

    search.begin("calls and fusions")
    return search.any([partial(without_calls, case, side)])


def without_calls(case: Case, side: str = "module") -> Case | None:
    """The case with the calls and fusions of an entry computation opened; None where there are none."""
    opened_case = case
    for _ in range(_MOST_LEVELS):
        module: Module = getattr(opened_case, side)
        names = [instruction.name for instruction in module.entry if role_of(instruction) is Role.CALL]
        if not names:
            break
        for name in names:
            (call,) = calls_of(getattr(opened_case, side).entry.by_name[name])
            opened_case = opened(opened_case, name, [call.computation], side)
    return None if opened_case is case else opened_case


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
    conditionals = [conditional for conditional in module.entry if role_of(conditional) is Role.CONDITIONAL]
    if not conditionals:
        return {}
    values = values_of(attrs.evolve(case, module=module), options) or {}
    branches = {}
    for conditional in conditionals:
        selectors = {int(value) for value in values.get(conditional.operands[0], ())}  # type: ignore[arg-type]
        count = len(calls_of(conditional))
        if len(selectors) == 1:
            (selector,) = selectors
            if conditional.attributes.branch_computations is None:
                branches[conditional.name] = 0 if selector else 1
            else:
                branches[conditional.name] = selector if 0 <= selector < count else count - 1
    return branches


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
        inlined, root = _inlined(module.by_name[computation], operands, taken)
        made += inlined
        operands = [root]
    (root,) = operands
    is_condition = called[:1] == [call.computation for call in calls_of(instruction) if call.kind is CallKind.CONDITION]
    outputs = outputs_of(module)
    if is_condition:
        instructions = [*entry.instructions, *made]
        outputs = [*(member for member in outputs if member != target), root]
        if target in {operand for member in entry for operand in member.operands}:
            raise HloError("a condition is no state of the loop")
    else:
        if root not in entry.by_name and root not in operands[1:]:
            made = [rename(member, {root: target}) for member in made]
            root = target
        instructions = [rename(member, {target: root}) for member in entry if member.name != target] + made
        outputs = [root if member == target else member for member in outputs]
    shapes = {member.name: member.shape for member in (*entry.instructions, *made)}
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


def _inlined(callee: Computation, operands: Sequence[str], taken: set[str]) -> tuple[list[Instruction], str]:
    return inline(callee, after_dependencies(callee, callee.instructions), operands, taken)


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
    outputs = list(dict.fromkeys(operand if member == name else member for member in outputs_of(case.module)))
    if all(role_of(entry.by_name[member]) in (Role.PARAMETER, Role.CONSTANT) for member in outputs):
        return None
    instructions = [rename(member, {name: operand}) for member in entry if member.name != name]
    return assembled(case, instructions, outputs, None, shapes_of(case))


_MOST_ZEROS = 64
"""Elements of a constant that stands for an instruction, at most."""


def fewer_in_bodies(search: Search) -> None:
    """Leave out what the failure does not need of each called computation."""
    search.begin("bodies and branches")
    for name in _called(search.best.module):
        if name not in search.best.module.by_name:
            continue
        case = search.best
        computation = case.module.by_name[name]
        units = [instruction.name for instruction in computation if not is_glue(instruction)]
        # A root that packs values may be replaced, too.
        units += [computation.root_name] if role_of(computation.root) is Role.TUPLE else []

        def with_units(kept: Sequence[str], case: Case = case, name: str = name) -> Case | None:
            return _with_some(case, name, set(kept))

        with search.only_what_ends():
            if units and not search.any([partial(with_units, [])]):
                reduced(search, units, with_units, least=1)


def _called(module: Module) -> list[str]:
    """The computations that something calls once for whole values, callees after callers."""
    names: dict[str, None] = {}
    for computation in reversed(callees_first(module, module.entry)):
        if computation.name != module.entry_name and computation.name not in names:
            continue
        for instruction in computation:
            names |= dict.fromkeys(call.computation for call in calls_of(instruction))
    return list(names)


def _with_some(case: Case, name: str, kept: set[str]) -> Case | None:
    """The case in which others than these instructions of a computation are replaced."""
    computation = case.module.by_name[name]
    taken = set(computation.by_name)
    made: list[Instruction] = []
    values: dict[str, str] = {}
    for instruction in computation:
        is_kept = is_glue(instruction) and (
            instruction.name != computation.root_name or role_of(instruction) is not Role.TUPLE
        )
        if is_kept or instruction.name in kept:
            made.append(rename_operands(instruction, values))
            continue
        substitute = _substitute(computation, instruction)
        if substitute is not None:
            values[instruction.name] = values.get(substitute, substitute)
            continue
        made += _parameter_or_zeros(computation, instruction, taken, values)
    return with_instructions(case, computation, made, values.get(computation.root_name, computation.root_name))


def _substitute(computation: Computation, instruction: Instruction) -> str | None:
    """A value of the same shape that is there: an operand, or a parameter."""
    if role_of(instruction) is Role.TUPLE or not instruction.operands:
        names = [parameter.name for parameter in computation.parameters]
    else:
        names = [*instruction.operands, *(parameter.name for parameter in computation.parameters)]
    by_name = computation.by_name
    return next((name for name in names if by_name[name].shape.compatible(instruction.shape)), None)


def _parameter_or_zeros(
    computation: Computation, instruction: Instruction, taken: set[str], values: dict[str, str]
) -> Iterator[Instruction]:
    """An element of a parameter, or zeros; a tuple of them where the instruction gives a tuple."""
    shape, name = instruction.shape, instruction.name
    for parameter in computation.parameters:
        elements = parameter.shape.elements if isinstance(parameter.shape, TupleShape) else ()
        for index, element in enumerate(elements):
            if element.compatible(shape):
                yield make_element(name, parameter.shape, parameter.name, index)
                return
    if isinstance(shape, TupleShape):
        parts = []
        for index, element in enumerate(shape.elements):
            parts.append(zeros(take_name(f"{name}.{index}", taken), element))
        yield from parts
        yield make_tuple(name, shape, [part.name for part in parts])
        return
    yield zeros(name, shape)


def zeros(name: str, shape: Shape) -> Instruction:
    """A constant of zeros; HloError where it would be large, or is none."""
    if not isinstance(shape, ArrayShape) or not shape.is_array or shape.element_count > _MOST_ZEROS:
        raise HloError("no constant stands for that")
    return make_constant(name, Literal.from_array(np.zeros(shape.dimensions, shape.element_type.storage), shape))


def with_instructions(
    case: Case,
    computation: Computation,
    instructions: Iterable[Instruction],
    root: str,
    others: Sequence[Computation] = (),
) -> Case:
    """The case with other instructions in a computation, of which its root stays alive, and with further computations.

    Of the entry computation, what were results stay results, and `root` is not read.
    """
    kept = list(instructions)
    module = change_computations(case.module, (*others, *case.module))
    if computation.name == module.entry_name:
        shapes = {instruction.name: instruction.shape for instruction in kept}
        return assembled(attrs.evolve(case, module=module), kept, outputs_of(case.module), None, shapes)
    changed = rebuilt(computation, computation.parameters, kept, [root])
    return attrs.evolve(case, module=without_uncalled(replace_computation(module, changed)))


def rebuilt(
    computation: Computation,
    parameters: Sequence[Instruction],
    instructions: Iterable[Instruction],
    results: Sequence[str],
    *,
    packed: str | None = None,
) -> Computation:
    """The computation with what its results need, which are packed as a tuple of that name."""
    part = part_of(instructions, results, is_paired=True)
    shapes = {instruction.name: instruction.shape for instruction in (*parameters, *part.live)}
    live, root = [*parameters, *part.live], part.results[0]
    if packed is not None:
        live.append(make_tuple(packed, TupleShape(tuple(shapes[name] for name in part.results)), part.results))
        root = packed
    draft = attrs.evolve(computation, instructions=tuple(live), root_name=root, span=None)
    ordered = [
        *parameters,
        *(instruction for instruction in after_dependencies(draft, live) if role_of(instruction) is not Role.PARAMETER),
    ]
    return attrs.evolve(draft, instructions=tuple(ordered))


def open_in_bodies(search: Search) -> None:
    """Put a called computation in the place of what calls it, within called computations."""
    search.begin("calls in bodies")
    with search.only_what_ends():
        while search.any(_openings(search.best)):
            pass


def _openings(case: Case) -> Iterator[Callable[[], Case | None]]:
    module = case.module
    for name in _called(module):
        computation = module.by_name[name]
        for instruction in computation:
            if role_of(instruction) is Role.WHILE:
                yield partial(_opened, case, computation, instruction, None, instruction.operands)
            for call in calls_of(instruction):
                if call.kind not in (CallKind.STARTED, CallKind.CONDITION):
                    yield partial(_opened, case, computation, instruction, call.computation, call.operands)


def _opened(
    case: Case, computation: Computation, instruction: Instruction, callee: str | None, operands: Sequence[str]
) -> Case:
    made: list[Instruction] = []
    root = operands[0]
    if callee is not None:
        made, root = _inlined(case.module.by_name[callee], operands, {*computation.by_name})
    names = {instruction.name: root}
    kept = [*made, *(rename(other, names) for other in computation if other.name != instruction.name)]
    end = root if computation.root_name == instruction.name else computation.root_name
    return with_instructions(case, computation, kept, end)


_MOST_STATES = 4
"""Elements of a state that are tried as all of it."""


def simplify_loops(search: Search) -> None:
    """Loops of one element that does not change, else of fewer elements; conditionals of fewer branches."""
    search.begin("states of loops")
    with search.only_what_ends():
        while search.any(_simpler(search.best)):
            pass


def _simpler(case: Case) -> Iterator[Callable[[], Case | None]]:
    for computation in reversed(callees_first(case.module, case.module.entry)):
        for instruction in computation:
            if role_of(instruction) is Role.WHILE:
                yield from _simpler_loops(case, computation, instruction)
            elif role_of(instruction) is Role.CONDITIONAL and (instruction.attributes.branch_computations or ())[1:]:
                for number in reversed(range(len(instruction.attributes.branch_computations))):
                    yield partial(_without_branch, case, computation, instruction, number)


def _simpler_loops(case: Case, computation: Computation, loop: Instruction) -> Iterator[Callable[[], Case | None]]:
    if not isinstance(loop.shape, TupleShape):
        return
    elements = loop.shape.elements
    arrays = [index for index, element in enumerate(elements) if isinstance(element, ArrayShape) and element.is_array]
    arrays.sort(key=lambda index: (elements[index].array_shape.element_count, index))  # type: ignore[union-attr]
    for index in arrays[:_MOST_STATES]:
        yield partial(_with_state, case, computation, loop, [index], is_alone=True, is_still=True)
    for index in reversed(range(len(elements))):
        if len(elements) > 1:
            yield partial(
                _with_state, case, computation, loop, [element for element in range(len(elements)) if element != index]
            )
    if len(elements) == 1:
        yield partial(_with_state, case, computation, loop, [0], is_alone=True)


def _with_state(
    case: Case,
    computation: Computation,
    loop: Instruction,
    kept: Sequence[int],
    *,
    is_alone: bool = False,
    is_still: bool = False,
) -> Case | None:
    """The case whose loop has these elements of its state, or this one alone, outside of any tuple.

    Elsewhere, the others have their values from before the loop; within it, they are zeros. A loop that is still does
    not go round.
    """
    shape = loop.shape
    assert isinstance(shape, TupleShape)
    state: Shape = shape.elements[kept[0]] if is_alone else TupleShape(tuple(shape.elements[index] for index in kept))
    taken = {entry.name for entry in case.module}
    callees = []
    for role, kind in (("body", CallKind.BODY), ("condition", CallKind.CONDITION)):
        name = call_of(loop, kind)
        callee, new = case.module.by_name[name], take_name(name, taken)
        changed = _still(callee, state, role) if is_still else _on_state(callee, state, shape, kept, role, is_alone)
        callees.append(attrs.evolve(changed, name=new))
    named = partial(take_name, taken={*computation.by_name})
    before = [make_element(named("given"), shape, loop.operands[0], index) for index in range(len(shape.elements))]
    start = before[kept[0]].name
    made: list[Instruction] = []
    if not is_alone:
        start = named("start")
        made.append(make_tuple(start, state, [before[index].name for index in kept]))
    attributes = attrs.evolve(loop.attributes, body=callees[0].name, condition=callees[1].name)
    is_result = computation.name == case.module.entry_name and computation.root_name == loop.name
    name = loop.name if is_result else named(loop.name)
    made.append(
        Instruction(
            name=name,
            shape=state,
            opcode=loop.opcode,
            operands=(start,),
            attributes=attributes,
            control_predecessors=loop.control_predecessors,
        )
    )
    if not is_result:
        after = {index: name if is_alone else named("left") for index in kept}
        if not is_alone:
            made += [make_element(after[index], state, name, place) for place, index in enumerate(kept)]
        operands = [after.get(index, before[index].name) for index in range(len(before))]
        made.append(make_tuple(loop.name, shape, operands))
    elif any(loop.name in entry.operands for entry in computation):
        raise HloError("the whole state is used")
    instructions = [*before, *made, *(entry for entry in computation if entry.name != loop.name)]
    return with_instructions(case, computation, instructions, computation.root_name, callees)


def _still(callee: Computation, state: Shape, role: str) -> Computation:
    """A body that changes nothing, or a condition that never holds."""
    parameter = make_parameter("state", state)
    if role == "body":
        return attrs.evolve(callee, instructions=(parameter,), root_name=parameter.name, span=None)
    root = zeros("goes_on", callee.root.shape)
    return attrs.evolve(callee, instructions=(parameter, root), root_name=root.name, span=None)


def _on_state(
    callee: Computation, state: Shape, whole: TupleShape, kept: Sequence[int], role: str, is_alone: bool
) -> Computation:
    """A body or a condition on some elements of a state, the others being zeros."""
    named = partial(take_name, taken={*callee.by_name})
    old = callee.parameters[0]
    parameter = make_parameter(named(old.name), state)
    elements: list[str] = []
    made: list[Instruction] = []
    for index, shape in enumerate(whole.elements):
        if index in kept and is_alone:
            elements.append(parameter.name)
            continue
        name = named(f"{old.name}.{index}")
        is_kept = index in kept
        made.append(make_element(name, state, parameter.name, kept.index(index)) if is_kept else zeros(name, shape))
        elements.append(name)
    made.append(make_tuple(old.name, whole, elements))
    rest = [instruction for instruction in callee if instruction.name != old.name]
    if role == "condition":
        return rebuilt(callee, [parameter], [*made, *rest], [callee.root_name])
    ends = [make_element(named("end"), whole, callee.root_name, index) for index in kept]
    packed = None if is_alone else named("results")
    return rebuilt(
        callee, [parameter], [*made, *rest, *ends], [instruction.name for instruction in ends], packed=packed
    )


def _without_branch(case: Case, computation: Computation, conditional: Instruction, number: int) -> Case:
    names = conditional.attributes.branch_computations
    attributes = attrs.evolve(conditional.attributes, branch_computations=names[:number] + names[number + 1 :])
    operands = tuple(operand for place, operand in enumerate(conditional.operands) if place != 1 + number)
    changed = attrs.evolve(conditional, attributes=attributes, operands=operands)
    return with_instructions(case, computation, replace_instruction(computation, changed), computation.root_name)
