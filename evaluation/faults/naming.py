"""Names in a module, given anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from hloexec.core.ir import Module
from hloexec.ops.attributes import Grammar, attribute_fields, computation_names


def uniquely_named(module: Module) -> Module:
    """The module with names of instructions that no two computations share."""
    taken: set[str] = set()
    names: dict[str, dict[str, str]] = {}
    for computation in module:
        ours = names[computation.name] = {}
        for instruction in computation:
            name, number = instruction.name, 0
            while name in taken:
                number += 1
                name = f"{instruction.name}.u{number}"
            taken.add(name)
            ours[instruction.name] = name
    return renamed(module, names, {})


def renamed(module: Module, instructions: Mapping[str, Mapping[str, str]], computations: Mapping[str, str]) -> Module:
    """The module with other names: of instructions by computation, and of computations; the rest keep theirs."""
    found = []
    for computation in module:
        names = instructions[computation.name]
        found.append(
            attrs.evolve(
                computation,
                name=computations.get(computation.name, computation.name),
                root_name=names[computation.root_name],
                instructions=tuple(
                    attrs.evolve(
                        each,
                        name=names[each.name],
                        operands=tuple(names[name] for name in each.operands),
                        control_predecessors=tuple(names[name] for name in each.control_predecessors),
                        attributes=_calling(each.attributes, computations),
                        original_value=None,
                        span=None,
                    )
                    for each in computation
                ),
                span=None,
            )
        )
    return attrs.evolve(
        module,
        computations=tuple(found),
        entry_name=computations.get(module.entry_name, module.entry_name),
        source=None,
        origin_recovery_table=None,
    )


def _calling(attributes: Any, computations: Mapping[str, str]) -> Any:
    """The attributes with other names of called computations."""
    if attributes is None or not any(name in computations for name in computation_names(attributes)):
        return attributes
    changes: dict[str, Any] = {}
    for entry in attribute_fields(type(attributes)).values():
        value = getattr(attributes, entry.field)
        if value is None:
            continue
        if entry.grammar is Grammar.COMPUTATION:
            changes[entry.field] = computations.get(value, value)
        elif entry.grammar is Grammar.COMPUTATION_LIST:
            changes[entry.field] = tuple(computations.get(name, name) for name in value)
    return attrs.evolve(attributes, **changes)
