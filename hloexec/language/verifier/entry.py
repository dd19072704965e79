"""Checks of a module's header against its entry computation: layouts, aliases, donated buffers."""

from __future__ import annotations

from collections.abc import Iterable

from hloexec.core.ir import Shape, TupleShape, part_at
from hloexec.core.values import Ints
from hloexec.core.wording import braced
from hloexec.language.verifier.shapes import agree
from hloexec.language.verifier.structure import Report
from hloexec.ops.registry import ProgramShape


def check_entry(report: Report, program: ProgramShape | None) -> None:
    """What the header says of the entry computation's parameters and result."""
    if program is None:
        return
    layout = report.module.entry_computation_layout
    if layout is not None:
        declared = (*layout.parameters, layout.result)
        actual = (*program.parameters, program.result)
        names = (*(f"parameter {number}" for number in range(len(program.parameters))), "the result")
        if len(declared) != len(actual):
            report.error(
                f"entry_computation_layout has {len(layout.parameters)} parameters, but the entry computation takes "
                f"{len(program.parameters)}"
            )
        else:
            for name, ours, theirs in zip(names, declared, actual, strict=True):
                if not agree(ours, theirs):
                    report.error(f"entry_computation_layout gives {name} the shape {ours}, but its shape is {theirs}")
    _check_aliases(report, program)


def _check_aliases(report: Report, program: ProgramShape) -> None:
    outputs: set[Ints] = set()
    inputs: set[tuple[int, Ints]] = set()
    for alias in report.module.input_output_alias:
        where = f"input_output_alias of output {braced(alias.output_index)}"
        result = part_at(program.result, alias.output_index)
        parameter = _parameter_part(program, alias.parameter_number, alias.parameter_index)
        key = (alias.parameter_number, alias.parameter_index)
        named = f"parameter {alias.parameter_number} at {braced(alias.parameter_index)}"
        if alias.output_index in outputs or key in inputs:
            report.error(f"{where} and {named}: a part of the result and a part of a parameter are paired once")
        elif result is None:
            report.error(f"{where}: there is no such output; the result is {program.result}")
        elif parameter is None:
            report.error(f"{where} names {named}, which is not there")
        elif isinstance(result, TupleShape) or isinstance(parameter, TupleShape):
            report.error(f"{where} and {named}: arrays can share a buffer, tuples cannot")
        elif result.byte_size != parameter.byte_size:
            report.error(f"{where} and {named}: {result} and {parameter} differ in size")
        outputs.add(alias.output_index)
        inputs.add(key)
    for number, index in report.module.buffer_donor:
        named = f"buffer_donor names parameter {number} at {braced(index)}"
        if _parameter_part(program, number, index) is None:
            report.error(f"{named}, which is not there")
        elif (number, index) in inputs:
            report.error(f"{named}, which input_output_alias gives to an output already")


def _parameter_part(program: ProgramShape, number: int, index: Iterable[int]) -> Shape | None:
    return part_at(program.parameters[number], index) if 0 <= number < len(program.parameters) else None
