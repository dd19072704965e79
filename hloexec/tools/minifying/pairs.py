"""Two modules that differ: both are cut at values that both have, so that only what differs is left of either.

A change to one of them alone would make another difference. So what changes a value changes it in both, and each is
rewritten by itself only in ways that keep its results.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np

from hloexec.core.ir import Instruction, Module
from hloexec.core.ir.editing import rename, rename_operands, replace_computation, take_name
from hloexec.engine.options import Options
from hloexec.errors import HloError
from hloexec.ops.registry import Role, role_of
from hloexec.tools.minifying.case import Case, is_glue, module_of, part_of, recorded, take_the_same
from hloexec.tools.minifying.oracles import DiffersFrom, output_names
from hloexec.tools.minifying.searching import Search, reduced

_MOST_FINDINGS = 8
Cut = tuple[str, str]
"""Instructions of both entry computations that have one value."""


def establish(search: Search) -> None:
    """Keep to blame what `diff` is certain of in the smallest pair so far."""
    search.begin("what diff blames")
    _oracle(search).establish(search.best)
    search.confirm(lambda _: True)


def confirm(search: Search, *, computes_the_same: bool = False) -> bool:
    """Whether `diff` blames the same as before in the smallest pair so far; else it is the last that it does so in."""
    search.begin("what diff blames")
    return search.confirm(partial(_oracle(search).keeps, computes_the_same=computes_the_same))


def _oracle(search: Search) -> DiffersFrom:
    assert isinstance(search.oracle, DiffersFrom)
    return search.oracle


def first_finding(search: Search, options: Options, *, may_be_entangled: bool = False) -> bool:
    """Keep only what `diff` blames and its counterpart, if these show the difference by themselves.

    A pair that is entangled must be one that `diff` is certain of: else the fault may be in front of what is kept.
    """
    search.begin("what diff blames")
    diff = _oracle(search).diff_of_last()
    if diff is None:
        return False
    try:
        pair = diff.extract()
    except HloError:
        return False
    if pair.before is None or not pair.is_comparable:
        return False
    whole = Case(pair.after, pair.inputs, pair.before)
    cases = []
    for candidate in dict.fromkeys((_without_given_constants(whole), whole)):
        cases += [made for made in (_on_given_values(candidate, options), candidate) if made is not None]
    may_be_entangled = may_be_entangled and diff.findings[0].is_certain
    if not search.any([case for case in cases if may_be_entangled or not is_entangled(case)]):
        return False
    blame = _oracle(search).blame
    if blame is not None and blame.opcode_before is None:
        # That is the end of what is to blame, of which `diff` may be able to say more now.
        establish(search)
    return True


def is_entangled(case: Case) -> bool:
    """Whether either module takes a parameter that the other does not.

    Then one may be given what the other computes, and they are held to be the same on the recorded inputs only: on
    others, they would differ without a fault. A module that only leaves out something takes no parameter of its own.
    """
    used = [
        {
            module.entry.by_name[name].attributes.number
            for name in [
                *(operand for instruction in module.entry for operand in instruction.operands),
                module.entry.root_name,
            ]
            if role_of(module.entry.by_name[name]) is Role.PARAMETER
        }
        for module in (case.module, _other(case))
    ]
    return bool(used[0] - used[1]) and bool(used[1] - used[0])


def _on_given_values(case: Case, options: Options) -> Case | None:
    """The pair in which `other` takes parameters in place of what it computes with the same bits."""
    try:
        values = recorded(attrs.evolve(case, module=_other(case)), options)
    except HloError:
        return None
    parameter_names = _parameters_by_value(case)
    cuts = [
        (parameter_names[key], instruction.name)
        for instruction in _other(case).entry
        if role_of(instruction) is not Role.PARAMETER and instruction.name in values
        if (key := _identity(values[instruction.name])) in parameter_names and key is not None
    ]
    return _cut(case, cuts, _paired_outputs(case), values) if cuts else None


def _without_given_constants(case: Case) -> Case:
    """The pair whose first module takes parameters in place of constants that have their values."""
    parameter_names, entry = _parameters_by_value(case), case.module.entry
    names = {
        instruction.name: parameter_names[key]
        for instruction in entry
        if role_of(instruction) is Role.CONSTANT
        if (key := _identity([instruction.attributes.literal.value] * case.devices)) in parameter_names
        and key is not None
        if instruction.shape.compatible(entry.by_name[parameter_names[key]].shape)
    }
    if not names or entry.root_name in names:
        return case
    kept = [
        rename_operands(instruction, names, control_predecessors=())
        for instruction in entry
        if instruction.name not in names
    ]
    changed = attrs.evolve(entry, instructions=tuple(kept))
    return attrs.evolve(case, module=replace_computation(case.module, changed))


def _parameters_by_value(case: Case) -> dict[tuple[Any, ...], str]:
    """The first parameter that is given each value, by what equal values have in common."""
    parameter_names: dict[tuple[Any, ...], str] = {}
    for number, parameter in enumerate(case.module.entry.parameters):
        if (key := _identity([case.row(device)[number] for device in range(case.devices)])) is not None:
            parameter_names.setdefault(key, parameter.name)
    return parameter_names


def _identity(row: Sequence[Any]) -> tuple[Any, ...] | None:
    """What equal values have in common; None for those that may be equal by chance."""
    if not all(isinstance(value, np.ndarray) for value in row):
        return None
    if all(value.size < 2 or bool((value == value.reshape(-1)[0]).all()) for value in row):
        return None
    return tuple((value.dtype.name, value.shape, value.tobytes()) for value in row)


def cut_at_common_values(search: Search, options: Options) -> bool:
    """Make parameters of values that both modules compute; results become what is blamed, where that is possible."""
    search.begin("values in common")
    case, diff = search.best, _oracle(search).diff_of_last()
    if diff is None:
        return False
    try:
        values = recorded(attrs.evolve(case, module=_other(case)), options)
    except HloError:
        return False
    ours, theirs = case.module.entry.by_name, _other(case).entry.by_name
    cuts = [
        (pair.after.path, pair.before.path)
        for pair in diff.matches
        if pair.is_in_order
        and _can_be_cut(ours.get(pair.after.path))
        and _is_given(theirs.get(pair.before.path), values)
        and ours[pair.after.path].shape.compatible(theirs[pair.before.path].shape)
    ]
    blamed = [
        (finding.after.path, finding.before.path)
        for finding in diff.findings[:_MOST_FINDINGS]
        if finding.before is not None and finding.after.path in ours and finding.before.path in theirs
    ]
    # A value of another type than it should be is seen once it is converted.
    blamed += [
        (user.name, name)
        for own, name in blamed
        if not ours[own].shape.compatible(theirs[name].shape)
        for user in case.module.entry.users[own]
        if user.shape.compatible(theirs[name].shape)
    ]
    outputs = _paired_outputs(case)
    before = search.accepted
    for results in [[blamed_cut] for blamed_cut in blamed] + ([outputs] if outputs else []):
        if search.any([partial(_cut, case, cuts, results, values)]):
            return True
    if outputs and len(cuts) > 1:
        _most_cuts(search, case, cuts, outputs, values)
    return search.accepted > before


def _most_cuts(search: Search, case: Case, cuts: list[Cut], outputs: list[Cut], values: Mapping[str, Any]) -> None:
    """Cut at as many values as the difference allows: what is left out of the cuts is what must not be cut."""

    def make(uncut: Sequence[Cut]) -> Case | None:
        kept = set(uncut)
        return _cut(case, [cut for cut in cuts if cut not in kept], outputs, values)

    reduced(search, cuts, make)


def _other(case: Case) -> Module:
    assert case.other is not None
    return case.other


def _can_be_cut(instruction: Instruction | None) -> bool:
    if instruction is None or not instruction.shape.is_array:
        return False
    role = role_of(instruction)
    return role not in (Role.PARAMETER, Role.CONSTANT)


def _is_given(instruction: Instruction | None, values: Mapping[str, Any]) -> bool:
    return (
        instruction is not None
        and instruction.name in values
        and not (is_glue(instruction) and role_of(instruction) is Role.TUPLE)
    )


def _paired_outputs(case: Case) -> list[Cut]:
    """The results of both, where there are as many."""
    ours, theirs = output_names(case.module), output_names(_other(case))
    return list(zip(ours, theirs, strict=True)) if len(ours) == len(theirs) else []


def fewer_paired_outputs(search: Search) -> None:
    """Leave out results that do not differ."""
    case = search.best
    outputs = _paired_outputs(case)
    if len(outputs) < 2:
        return
    search.begin("outputs")
    reduced(search, outputs, lambda kept: _cut(case, [], kept, {}) if kept else None, least=1)


def without_unused_parameters(search: Search) -> None:
    """Leave out parameters that neither module takes."""
    case = search.best
    search.any([lambda: _cut(case, [], _paired_outputs(case), {})])


def _cut(case: Case, cuts: Sequence[Cut], outputs: Sequence[Cut], values: Mapping[str, Any]) -> Case | None:
    """The pair with a parameter in the place of each cut that either module needs; values are those of `other`."""
    if not outputs or not take_the_same(case.module, _other(case)):
        return None
    blamed_ours, blamed_theirs = (set(names) for names in zip(*outputs, strict=True))
    inputs = {entry.name for entry in case.module.entry.parameters}
    cuts = [
        entry for entry in cuts if entry[0] in inputs or (entry[0] not in blamed_ours and entry[1] not in blamed_theirs)
    ]
    sources = dict(cuts)
    ours = part_of(_uncut(case.module, {name: name for name in sources}), [a for a, _ in outputs], is_paired=True)
    parameters = [entry.name for entry in case.module.entry.parameters]
    names: dict[str, str] = {}
    for name, source in cuts:
        names.setdefault(source, name)
    names |= {theirs.name: name for theirs, name in zip(_other(case).entry.parameters, parameters, strict=True)}
    theirs = part_of(_uncut(_other(case), names), [names.get(b, b) for _, b in outputs], is_paired=True)
    number = {name: position for position, name in enumerate(parameters)}
    needed = sorted({*ours.needed, *theirs.needed}, key=lambda name: (number.get(name, len(number)), name))
    # Layouts may differ, and bitcasts read them.
    own = {entry.name: entry.shape for entry in case.module.entry}
    other = {entry.name: entry.shape for entry in _other(case).entry}
    other_names = {name: entry.name for name, entry in zip(parameters, _other(case).entry.parameters, strict=True)}
    rows = [
        [case.row(device)[number[name]] if name in number else values[sources[name]][device] for name in needed]
        for device in range(case.devices)
    ]
    return Case(
        module_of(case.module, ours, [(name, own[name]) for name in needed]),
        rows,
        module_of(_other(case), theirs, [(name, other[other_names.get(name) or sources[name]]) for name in needed]),
    )


def _uncut(module: Module, names: Mapping[str, str]) -> list[Instruction]:
    """The instructions that are no cuts; cuts have the names of their parameters, and others of such names new ones."""
    kept = [
        instruction
        for instruction in module.entry
        if instruction.name not in names and role_of(instruction) is not Role.PARAMETER
    ]
    new, taken = dict(names), {*module.entry.by_name, *names.values()}
    for instruction in kept:
        if instruction.name in set(names.values()):
            new[instruction.name] = take_name(instruction.name, taken)
    return [rename(instruction, new, control_predecessors=()) for instruction in kept]
