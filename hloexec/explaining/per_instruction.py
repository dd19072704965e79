"""Explaining the values of instructions one by one, where those of the other side are known.

Each is computed from the operands that it had on the other side, so that only its own numerics show: by what rounding
leaves of it, as results of modules are. Where the other side does not say what an operand was, that is computed, too,
from what it says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hloexec.dtypes import element_type_of
from hloexec.errors import HloError, InputError
from hloexec.exec.running import run_devices
from hloexec.explaining.findings import Explained, InstructionExplanation
from hloexec.explaining.searching import search
from hloexec.explaining.trying import Trials
from hloexec.extraction.slicing import slice_module, slice_of
from hloexec.ir import ArrayShape, Computation, Instruction, Module
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.registry import Role, role_of
from hloexec.origins import hlo_line, source_lines
from hloexec.tracing.reading import Trace
from hloexec.values import Array, Value

__all__ = ["explained_instructions", "of_trace"]

_MOST_RUNS = 150
"""Of the search for one instruction."""


def of_trace(trace: Trace) -> dict[str, Array]:
    """The values of a trace by the names of instructions: those outside of loops, of the first device."""
    found: dict[str, Array] = {}
    for event in trace:
        if event.iteration is None and len(event.arrays) == 1 and not event.arrays[0].index and 0 in event.devices:
            found.setdefault(event.instruction, trace.array(event.arrays[0]))
    return found


def explained_instructions(
    module: Module,
    inputs: Sequence[Value],
    values: Mapping[str, Array],
    policies: Sequence[NumericsPolicy],
    trials: Trials,
    options: Mapping[str, Any],
) -> tuple[int, list[InstructionExplanation]]:
    """How many instructions were looked at, and those that rounding alone does not explain, in data-flow order.

    `inputs` are those of one device; `values` are arrays by the names of instructions of the entry computation, or of
    others whose names are the only ones of their kind.
    """
    given = {name.removeprefix("%"): array for name, array in values.items()}
    places = _places(module, given)
    parameters = {parameter.name: value for parameter, value in zip(module.entry.parameters, inputs, strict=True)}
    known = {name: np.asarray(value) for name, value in parameters.items() if isinstance(value, np.ndarray)} | given
    count, found = 0, []
    for computation, instruction in places:
        if role_of(instruction) is Role.PARAMETER or not trials.has_time():
            continue
        explanation = _explained(module, computation, instruction, known, policies, options)
        if explanation is not None:
            count += 1
            if explanation.verdict in (Explained.POLICY, Explained.NONE):
                found.append(explanation)
    return count, found


def _places(module: Module, given: Mapping[str, Array]) -> list[tuple[Computation, Instruction]]:
    """The instructions that values are given for, in the order of the text; InputError where one is not there, or its
    value does not fit."""
    homes: dict[str, list[Computation]] = {}
    for computation in (module.entry, *(other for other in module if other is not module.entry)):
        for instruction in computation:
            homes.setdefault(instruction.name, []).append(computation)
    unknown = [name for name in given if name not in homes]
    if unknown:
        raise InputError(
            f"values are given for {', '.join(unknown[:4])}{', …' if len(unknown) > 4 else ''}, but {module.name} has "
            "no such instruction"
        )
    found = []
    for computation in module:
        for instruction in computation:
            if instruction.name in given and homes[instruction.name][0] is computation:
                shape, array = instruction.shape, given[instruction.name]
                if not isinstance(shape, ArrayShape) or shape.dimensions != array.shape:
                    raise InputError(
                        f"the value given for %{instruction.name} has dimensions {list(array.shape)}, but it is {shape}"
                    )
                if element_type_of(array.dtype) is not shape.element_type:
                    raise InputError(
                        f"the value given for %{instruction.name} is {element_type_of(array.dtype)}, but it is {shape}"
                    )
                found.append((computation, instruction))
    return found


def _explained(
    module: Module,
    computation: Computation,
    instruction: Instruction,
    known: Mapping[str, Array],
    policies: Sequence[NumericsPolicy],
    options: Mapping[str, Any],
) -> InstructionExplanation | None:
    """What explains a value; None where the values that it is made of are not known."""
    cuts = [each.name for each in computation if each.name in known and each.name != instruction.name]
    try:
        part = slice_of(computation, instruction.name, cuts=cuts)
    except InputError:
        return None
    if any(name not in known for name in part.boundary):
        return None
    alone = slice_module(module, part)
    inputs = [known[name] for name in part.boundary]

    def run(policy: NumericsPolicy) -> Sequence[Value]:
        return run_devices(alone, [inputs], numerics=policy, **options)

    trials = Trials(run, {}, _MOST_RUNS)
    try:
        (label,) = trials.reference
        trials.expected = {label: known[instruction.name]}
        found = search(alone, trials, policies)
    except (HloError, ValueError):
        # A part may lack what it needs of other devices, or of the host.
        return None
    return InstructionExplanation(
        name=instruction.name,
        opcode=instruction.opcode,
        hlo=hlo_line(instruction),
        verdict=found.verdict,
        best=found.best,
        alike=found.alike,
        source=tuple(map(str, source_lines(module, instruction))),
    )
