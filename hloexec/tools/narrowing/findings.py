"""What a search for narrower types found, with the outputs that are inputs of the next step."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import attrs

from hloexec.core.arguments import described
from hloexec.core.ir import ArrayShape, BufferShape, Computation, Module, Shape, leaf_shapes
from hloexec.core.structs import frozen
from hloexec.core.tree import leaves, mapped
from hloexec.core.values import Described, Value, label_of
from hloexec.core.wording import argument, listing
from hloexec.errors import InputError
from hloexec.ops.traits import Index

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
    result: Value = mapped(value, lambda leaf: changes.get(next(labels), leaf))
    return result


def _parameter_leaves(computation: Computation) -> Leaves:
    return _labelled([((number,), shape) for number, shape in enumerate(computation.parameter_shapes)])


def _labelled(shapes: Iterable[tuple[Index, Shape]]) -> Leaves:
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
        for end, choices, kind in zip(ends, (outputs, parameters), ("output", "parameter"), strict=True):
            if end not in choices:
                raise InputError(f"{argument('carry')} names {kind} {end!r}, but there are {listing(choices, 20)}")
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


class Standing(enum.Enum):
    """What a search says of an instruction."""

    NARROWED = "narrowed"
    """It is narrower in the module that was found."""
    ALONE = "not even alone"
    """With this instruction narrowed and no other, an output leaves its tolerance."""
    TOGETHER = "not with the others"
    """It may be narrower by itself, but the outputs' tolerance is used up by what is narrowed already."""
    RANGE = "out of range"
    """Its operands or its result do not lie within the finite numbers of the narrow type."""
    SMALL = "too little work"
    """It does less than a hundred-thousandth of the work: to narrow it saves nothing, and might cost accuracy."""
    UNTRIED = "not tried"
    """No trials were left for it, or the run never reached it."""


@frozen
class Deviation:
    """The worst element of some runs: where an output of the narrowed module lies farthest from the original's, in
    units of its tolerance."""

    output: str
    """The place of the output."""
    index: Index
    inputs: int
    """The number of the inputs, from 0."""
    step: int
    """The step, from 0."""
    device: int
    original: float | int | complex | bool
    """The element in the original module."""
    changed: float | int | complex | bool
    """The element in the narrowed module."""
    error: float
    """Relative, as `narrowing.search` defines it."""
    tolerance: float
    """The relative error that an element may have."""

    @property
    def severity(self) -> float:
        """The error in units of the tolerance."""
        return self.error / self.tolerance


@frozen
class InstructionVerdict:
    """An instruction that could be narrowed, and whether it may."""

    computation: str
    instruction: str
    opcode: str
    kind: str
    """`contraction` or `elementwise`."""
    element_type: str
    narrow_type: str | None
    """The type that it has in the narrowed module; None where it keeps its own."""
    standing: Standing
    """Whether it may be narrower, or why not."""
    reason: str
    alone: Deviation | None
    """The worst element with it alone narrowed, where that was measured."""
    runs: int
    """How often it ran on the first inputs."""
    flops: int
    """In all these runs."""
    hlo: str
    op_name: str | None
    source: str | None


@frozen
class OutputDeviation:
    """An output that was held to a tolerance."""

    output: str
    """The place of the output."""
    tolerance: float
    """The relative error that an element may have."""
    worst: Deviation
    """Over the inputs of the search."""
    held_back: Deviation | None
    """Over inputs that the search had not seen; None where there were none."""


@frozen
class Narrowing(Described):
    """A narrowed module, and what was found out about each of its instructions.

    FLOPs and bytes are those of the first inputs' run: two FLOPs per product of a contraction, one per element of an
    elementwise operation and per term of a reduction; bytes are what contractions and elementwise operations on floats
    read and write.
    """

    module: Module
    instructions: tuple[InstructionVerdict, ...]
    """Those that could be narrowed, in the order of the text."""
    outputs: tuple[OutputDeviation, ...]
    """The outputs that were held to a tolerance."""
    carried: Carried | None
    """The outputs that are parameters of the next step."""
    steps: int
    """How often the module runs, what it carries becoming parameters again."""
    flops: int
    """Operations of contractions, elementwise instructions and reductions."""
    flops_by_type: dict[str, int]
    """Of the FLOPs, those in each narrow type."""
    contraction_flops: int
    """Operations of contractions that could be narrowed."""
    contraction_flops_by_type: dict[str, int]
    """Of these, those in each narrow type."""
    byte_count: int
    """Bytes that contractions and elementwise instructions on floats read and write."""
    bytes_by_type: dict[str, int]
    """Of the bytes, those in each narrow type, counted as they were in the wide one."""
    margin: float
    """The share of the tolerances that the search may use."""
    input_count: int
    """How many inputs the search ran on."""
    held_back_count: int
    """How many other inputs the final module was run on."""
    rejections: int
    """How often inputs that were held back went beyond the tolerance, so that the search went back."""
    trials: int
    """How many modules were run."""
    seconds: float

    @property
    def narrowed_share(self) -> float:
        """The share of the FLOPs that is narrowed."""
        return sum(self.flops_by_type.values()) / self.flops if self.flops else 0.0

    @property
    def byte_share(self) -> float:
        """The share of the bytes that is narrowed."""
        return sum(self.bytes_by_type.values()) / self.byte_count if self.byte_count else 0.0

    def __str__(self) -> str:
        count = sum(instruction.narrow_type is not None for instruction in self.instructions)
        return (
            f"{self.module.name}: {count} of {len(self.instructions)} instructions narrowed, "
            f"{100 * self.narrowed_share:.0f} % of the FLOPs"
        )
