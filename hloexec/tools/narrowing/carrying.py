"""Which outputs of a training step are inputs of the next one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import attrs

from hloexec.core.arguments import described
from hloexec.core.ir import ArrayShape, BufferShape, Computation, Module, Shape, leaf_shapes
from hloexec.core.structs import frozen
from hloexec.core.values import Value, label_of, leaves, mapped
from hloexec.core.wording import argument, listing
from hloexec.errors import InputError

Leaves: TypeAlias = Sequence[tuple[str, ArrayShape | BufferShape]]
"""The labels and shapes of the arrays in a value."""


class Handed(NamedTuple):
    """An output that is a parameter of the next step, by their labels."""

    output: str
    """The place of the output."""
    parameter: str
    """The number of the parameter, and the place within it if it is a tuple."""


def _handed(pairs: Iterable[tuple[str, str]]) -> tuple[Handed, ...]:
    return tuple(Handed(*pair) for pair in pairs)


@frozen
class Carried:
    """What a step hands on: the labels of outputs, and of the parameters that they become."""

    pairs: tuple[Handed, ...] = attrs.field(converter=_handed)
    """The outputs that are parameters of the next step."""
    reason: str
    """How that is known, in words."""


def output_labels(computation: Computation) -> Leaves:
    """The arrays of the result, by label."""
    return _labelled([((), computation.result_shape)])


def carried_by(module: Module, computation: Computation, given: Mapping[Any, Any] | None) -> Carried:
    """What a step hands on to the next: as `given`, else as the module's input_output_alias says, else what has equal
    shapes in the longest row of outputs and parameters, as the steps that JAX lowers have. InputError if nothing is."""
    outputs, parameters = output_labels(computation), _parameter_leaves(computation)
    if given is not None:
        numbers = {parameter.name: str(number) for number, parameter in enumerate(computation.parameters)}
        return Carried(_as_given(given, dict(outputs), dict(parameters), numbers), "as given")
    if module.input_output_alias and computation.name == module.entry_name:
        pairs = [
            (label_of(alias.output_index), label_of((alias.parameter_number, *alias.parameter_index)))
            for alias in module.input_output_alias
        ]
        return Carried(pairs, "input_output_alias of the module")
    pairs = _equal_row(outputs, parameters)
    if not pairs:
        raise InputError(
            f"no output of {computation.name} has the shape of a parameter, so that there is nothing to carry from one "
            f"step to the next; {argument('carry')} says which output becomes which parameter"
        )
    return Carried(pairs, "equal shapes in order")


def with_leaves(values: Sequence[Value], changes: Mapping[str, Value]) -> list[Value]:
    """Values of parameters with other arrays at some labels."""
    return [_with_leaves(value, number, changes) for number, value in enumerate(values)]


def _with_leaves(value: Value, number: int, changes: Mapping[str, Value]) -> Value:
    labels = iter([label_of((number, *index)) for index, _ in leaves(value)])
    found: Value = mapped(value, lambda leaf: changes.get(next(labels), leaf))
    return found


def _parameter_leaves(computation: Computation) -> Leaves:
    return _labelled([((number,), shape) for number, shape in enumerate(computation.parameter_shapes)])


def _labelled(shapes: Iterable[tuple[tuple[int, ...], Shape]]) -> Leaves:
    return [
        (label_of((*place, *index)), leaf)
        for place, shape in shapes
        for index, leaf in leaf_shapes(shape)
        if leaf.is_array
    ]


def _as_given(
    given: Mapping[Any, Any], outputs: Mapping[str, Shape], parameters: Mapping[str, Shape], numbers: Mapping[str, str]
) -> tuple[tuple[str, str], ...]:
    """The pairs, checked."""
    if not isinstance(given, Mapping):
        raise InputError(
            f"{argument('carry')} must be a mapping from outputs to parameters, but {described(given)} was given"
        )
    pairs = []
    for output, parameter in given.items():
        ends = str(output), numbers.get(str(parameter).removeprefix("%"), str(parameter))
        for end, known, what in zip(ends, (outputs, parameters), ("output", "parameter"), strict=True):
            if end not in known:
                raise InputError(f"{argument('carry')} names {what} {end!r}, but there are {listing(known, 20)}")
        if not outputs[ends[0]].compatible(parameters[ends[1]]):
            raise InputError(
                f"{argument('carry')} hands output {ends[0]} on as parameter {ends[1]}, but the one is "
                f"{outputs[ends[0]]} and the other {parameters[ends[1]]}"
            )
        pairs.append(ends)
    if len({parameter for _, parameter in pairs}) < len(pairs):
        raise InputError(f"{argument('carry')} hands two outputs on as the same parameter")
    if not pairs:
        raise InputError(f"{argument('carry')} must name at least one output")
    return tuple(pairs)


def _equal_row(outputs: Leaves, parameters: Leaves) -> list[tuple[str, str]]:
    """The longest run of consecutive outputs that have the shapes of consecutive parameters, of several the first
    ones."""
    best, ends = 0, (0, 0)
    previous = [0] * (len(parameters) + 1)
    for row, (_, ours) in enumerate(outputs, 1):
        current = [0] * (len(parameters) + 1)
        for column, (_, theirs) in enumerate(parameters, 1):
            if ours.compatible(theirs):
                current[column] = previous[column - 1] + 1
                if current[column] > best:
                    best, ends = current[column], (row, column)
        previous = current
    return [(outputs[ends[0] - back][0], parameters[ends[1] - back][0]) for back in range(best, 0, -1)]
