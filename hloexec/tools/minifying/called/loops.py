"""Simpler loops and conditionals that stay what they are: smaller states, fewer branches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import attrs

from hloexec.analysis.calls import CallKind, call_of
from hloexec.core.ir import ArrayShape, Computation, Instruction, Shape, TupleShape
from hloexec.core.ir.editing import replace_instruction, take_name
from hloexec.engine.plan.schedule import callees_first
from hloexec.errors import HloError
from hloexec.ops.control.flow import make_element, make_parameter, make_tuple
from hloexec.ops.registry import Role, role_of
from hloexec.tools.minifying.called.bodies import rebuilt, with_instructions, zeros
from hloexec.tools.minifying.case import Case
from hloexec.tools.minifying.searching import Search

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
        for each in computation:
            if role_of(each) is Role.WHILE:
                yield from _simpler_loops(case, computation, each)
            elif role_of(each) is Role.CONDITIONAL and (each.attributes.branch_computations or ())[1:]:
                for number in reversed(range(len(each.attributes.branch_computations))):
                    yield partial(_without_branch, case, computation, each, number)


def _simpler_loops(case: Case, computation: Computation, loop: Instruction) -> Iterator[Callable[[], Case | None]]:
    if not isinstance(loop.shape, TupleShape):
        return
    elements = loop.shape.elements
    arrays = [index for index, each in enumerate(elements) if isinstance(each, ArrayShape) and each.is_array]
    arrays.sort(key=lambda index: (elements[index].array_shape.element_count, index))  # type: ignore[union-attr]
    for index in arrays[:_MOST_STATES]:
        yield partial(_with_state, case, computation, loop, [index], is_alone=True, is_still=True)
    for index in reversed(range(len(elements))):
        if len(elements) > 1:
            yield partial(
                _with_state, case, computation, loop, [each for each in range(len(elements)) if each != index]
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
    taken = {each.name for each in case.module}
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
    elif any(loop.name in each.operands for each in computation):
        raise HloError("the whole state is used")
    instructions = [*before, *made, *(each for each in computation if each.name != loop.name)]
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
    rest = [each for each in callee if each.name != old.name]
    if role == "condition":
        return rebuilt(callee, [parameter], [*made, *rest], [callee.root_name])
    ends = [make_element(named("end"), whole, callee.root_name, index) for index in kept]
    packed = None if is_alone else named("results")
    return rebuilt(callee, [parameter], [*made, *rest, *ends], [each.name for each in ends], packed=packed)


def _without_branch(case: Case, computation: Computation, conditional: Instruction, number: int) -> Case:
    names = conditional.attributes.branch_computations
    attributes = attrs.evolve(conditional.attributes, branch_computations=names[:number] + names[number + 1 :])
    operands = tuple(each for place, each in enumerate(conditional.operands) if place != 1 + number)
    changed = attrs.evolve(conditional, attributes=attributes, operands=operands)
    return with_instructions(case, computation, replace_instruction(computation, changed), computation.root_name)
