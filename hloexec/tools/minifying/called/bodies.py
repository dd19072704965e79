"""Less in called computations: bodies and conditions of loops, branches, calls and fusions.

Their parameters and the shapes of their roots stay, so that what calls them stays valid. An instruction that goes is
replaced by an operand, a parameter or zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import attrs
import numpy as np

from hloexec.analysis.calls import CallKind, calls_of
from hloexec.core.ir import ArrayShape, Computation, Instruction, Literal, Module, Shape, TupleShape
from hloexec.core.ir.editing import rename_operands, replace_computation, take_name
from hloexec.engine.plan.schedule import after_dependencies, callees_first
from hloexec.errors import HloError
from hloexec.ops.control.flow import make_constant, make_element, make_tuple
from hloexec.ops.registry import Role, role_of
from hloexec.tools.minifying.case import Case, assembled, is_glue, outputs_of, part_of, without_uncalled
from hloexec.tools.minifying.opening import copied, renamed
from hloexec.tools.minifying.searching import Search, reduced

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
        units = [each.name for each in computation if not is_glue(each)]
        # A root that packs values may be replaced, too.
        units += [computation.root_name] if role_of(computation.root) is Role.TUPLE else []

        def with_units(kept: Sequence[str], case: Case = case, name: str = name) -> Case | None:
            return _with_some(case, name, set(kept))

        with search.only_what_ends():
            if units and not search.any([partial(with_units, [])]):
                reduced(search, units, with_units, least=1)


def _called(module: Module) -> list[str]:
    """The computations that something calls once for whole values, callees after callers."""
    found: dict[str, None] = {}
    for computation in reversed(callees_first(module, module.entry)):
        if computation.name != module.entry_name and computation.name not in found:
            continue
        for each in computation:
            found |= dict.fromkeys(call.computation for call in calls_of(each))
    return list(found)


def _with_some(case: Case, name: str, kept: set[str]) -> Case | None:
    """The case in which others than these instructions of a computation are replaced."""
    computation = case.module.by_name[name]
    taken = set(computation.by_name)
    made: list[Instruction] = []
    values: dict[str, str] = {}
    for each in computation:
        is_kept = is_glue(each) and (each.name != computation.root_name or role_of(each) is not Role.TUPLE)
        if is_kept or each.name in kept:
            made.append(rename_operands(each, values))
            continue
        found = _substitute(computation, each)
        if found is not None:
            values[each.name] = values.get(found, found)
            continue
        made += _parameter_or_zeros(computation, each, taken, values)
    return with_instructions(case, computation, made, values.get(computation.root_name, computation.root_name))


def _substitute(computation: Computation, instruction: Instruction) -> str | None:
    """A value of the same shape that is there: an operand, or a parameter."""
    if role_of(instruction) is Role.TUPLE or not instruction.operands:
        names = [each.name for each in computation.parameters]
    else:
        names = [*instruction.operands, *(each.name for each in computation.parameters)]
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
    module = attrs.evolve(case.module, computations=(*others, *case.module.computations), source=None)
    if computation.name == module.entry_name:
        shapes = {each.name: each.shape for each in kept}
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
    shapes = {each.name: each.shape for each in (*parameters, *part.live)}
    live, root = [*parameters, *part.live], part.results[0]
    if packed is not None:
        live.append(make_tuple(packed, TupleShape(tuple(shapes[name] for name in part.results)), part.results))
        root = packed
    found = attrs.evolve(computation, instructions=tuple(live), root_name=root, span=None)
    ordered = [*parameters, *(each for each in after_dependencies(found, live) if role_of(each) is not Role.PARAMETER)]
    return attrs.evolve(found, instructions=tuple(ordered))


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
        for each in computation:
            if role_of(each) is Role.WHILE:
                yield partial(_opened, case, computation, each, None, each.operands)
            for call in calls_of(each):
                if call.kind not in (CallKind.STARTED, CallKind.CONDITION):
                    yield partial(_opened, case, computation, each, call.computation, call.operands)


def _opened(
    case: Case, computation: Computation, instruction: Instruction, callee: str | None, operands: Sequence[str]
) -> Case:
    made: list[Instruction] = []
    root = operands[0]
    if callee is not None:
        root = copied(case.module.by_name[callee], operands, set(computation.by_name), made)
    kept = [*made, *(renamed(each, instruction.name, root) for each in computation if each.name != instruction.name)]
    end = root if computation.root_name == instruction.name else computation.root_name
    return with_instructions(case, computation, kept, end)
