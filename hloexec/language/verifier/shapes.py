"""Comparing declared shapes with inferred ones, and the header of a module with its entry."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial

from hloexec.core.ir import (
    UNBOUNDED,
    ArrayShape,
    Computation,
    Instruction,
    Shape,
    TupleShape,
    agree_in_arrays,
    flat_shapes,
    part_at,
)
from hloexec.core.values import Ints
from hloexec.core.wording import braced, counted
from hloexec.errors import ShapeError
from hloexec.language.verifier.structure import Mixed, Report, has_attributes
from hloexec.ops.attributes import attribute_fields, computation_names, unknown_words, without_computations
from hloexec.ops.registry import Entry, ProgramShape, Role, find_custom_call, find_opcode

_CONTINUATIONS = ("-done", "-update")
"""How the names of opcodes end that go on with what another instruction has begun."""


def check_shapes(report: Report, programs: Mapping[str, ProgramShape | None]) -> None:
    """Report instructions that are not declared of the shape that their operands give; `programs` are by name."""
    context = _Known(programs)
    for computation in report.module.computations:
        _check_computation(report, computation, programs, context)


class _Known:
    """What has been found without fault; shapes count by identity, as those of one text are mostly shared."""

    def __init__(self, programs: Mapping[str, ProgramShape | None]) -> None:
        self.shapes: set[int] = set()
        self._instructions: set[Hashable] = set()
        self._signatures = {
            name: None if program is None else (id(program.result), *map(id, program.parameters))
            for name, program in programs.items()
        }

    def is_sound(self, key: Hashable) -> bool:
        """Whether an instruction with this key has been found without fault."""
        try:
            return key in self._instructions
        except TypeError:
            return False  # attributes of modules that a program has made may hold lists

    def add(self, key: Hashable) -> None:
        if key is not None:
            with suppress(TypeError):
                self._instructions.add(key)

    def key(self, instruction: Instruction, entry: Entry, operands: Sequence[Instruction]) -> Hashable:
        """All that the checks of an instruction depend on, literals by identity; None where they look at more."""
        opcode, attributes = instruction.opcode, instruction.attributes
        if entry.role is Role.CONSTANT:
            return opcode, type(attributes), id(getattr(attributes, "literal", None)), id(instruction.shape)
        if entry.role is Role.CUSTOM_CALL or opcode.endswith(_CONTINUATIONS):
            return None
        shapes = [id(operand.shape) for operand in operands]
        names = computation_names(attributes)
        if not names:
            return (opcode, attributes, id(instruction.shape), *shapes)
        signatures = tuple([self._signatures.get(name) for name in names])
        if None in signatures:
            return None
        kind: type = type(attributes)
        return (opcode, without_computations(kind)(attributes), signatures, id(instruction.shape), *shapes)


def _check_computation(
    report: Report, computation: Computation, programs: Mapping[str, ProgramShape | None], context: _Known
) -> None:
    """Check the instructions of a computation that are not equal, but for names, to one without fault."""
    by_name = computation.by_name
    for instruction in computation.instructions:
        if id(instruction.shape) not in context.shapes:
            fault = _shape_fault(instruction.shape)
            if fault is not None:
                report.error(fault, computation, instruction)
                continue
            context.shapes.add(id(instruction.shape))
        replication = instruction.parameter_replication
        if replication is not None and len(replication) != (leaves := len(flat_shapes(instruction.shape))):
            report.error(
                f"parameter_replication has {len(replication)} flags, but the shape has {leaves} leaves",
                computation,
                instruction,
            )
        entry = find_opcode(instruction.opcode)
        if entry is None or instruction.unknown_operands is not None:
            continue
        key = None
        operands = [by_name[name] for name in instruction.operands if name in by_name]
        if len(operands) == len(instruction.operands):
            key = context.key(instruction, entry, operands)
            if context.is_sound(key):
                continue
        count = len(instruction.operands)
        if count < entry.minimum_operands or (entry.maximum_operands is not None and count > entry.maximum_operands):
            report.error(
                f"{instruction.opcode} takes {_operand_range(entry)}, but has {count}", computation, instruction
            )
            continue
        fault = _attributes_fault(entry, instruction, strict=report.strict)
        if fault is not None:
            report.error(fault, computation, instruction)
            continue
        if len(operands) < count or any(unknown_words(instruction.attributes)):
            continue  # reported already, or of another XLA
        faults = list(_faults(report, computation, instruction, entry, operands, programs))
        report.errors(faults, computation, instruction)
        if not faults:
            context.add(key)


def _attributes_fault(entry: Entry, instruction: Instruction, *, strict: bool) -> str | None:
    """What is wrong with attributes by themselves, such as words that no text can have, or no XLA where strict."""
    if not has_attributes(entry, instruction):
        return f"{instruction.opcode} lacks its attributes"
    for declared in attribute_fields(entry.attributes).values():
        value = getattr(instruction.attributes, declared.field)
        if declared.choices is not None and value != declared.default:
            words = value if isinstance(value, tuple) else (value,)
            others = {*words} - {*declared.choices}
            if others and (strict or not all(isinstance(word, str) and _is_word(word) for word in others)):
                listed = ", ".join(declared.choices)
                return f"{declared.name} of {instruction.opcode} must be one of {listed}, but is {value!r}"
    return None


def _is_word(value: str) -> bool:
    """Whether a text can have it as a word."""
    return value.isascii() and value.replace("-", "_").replace(".", "_").isidentifier()


def _faults(
    report: Report,
    computation: Computation,
    instruction: Instruction,
    entry: Entry,
    operands: Sequence[Instruction],
    programs: Mapping[str, ProgramShape | None],
) -> Iterator[str]:
    """What is wrong with an instruction, whose declared shape is compared with the inferred one."""
    shapes = [operand.shape for operand in operands]
    called = [programs.get(name) for name in computation_names(instruction.attributes)]
    yield from _partner_faults(computation, instruction, operands, programs, strict=report.strict)
    if entry.infer is None or entry.role is Role.PARAMETER or None in called:
        # A parameter's shape is the one that is declared.
        return
    known = {
        "attributes": instruction.attributes,
        "shape": instruction.shape,
        "operand_shapes": tuple(shapes),
        "computations": tuple(called),
    }
    try:
        if report.strict and entry.well_formed is not None:
            entry.well_formed(*shapes, **known)
        inferred = entry.infer(*shapes, **known)
    except ShapeError as error:
        yield error.message
        return
    declared = instruction.shape
    if declared != inferred and not agree(declared, inferred):
        message = f"{instruction.opcode} is declared {declared}, but its operands give {inferred}"
        yield Mixed(message) if agree(declared, inferred, any_width=True) else message
    elif entry.is_elementwise and len(types := {s.element_type for s in shapes if isinstance(s, ArrayShape)}) > 1:
        widths = {element_type.name for element_type in types if element_type.is_floating}
        if len(widths) > 1:
            yield Mixed(f"the operands of {instruction.opcode} mix {' and '.join(sorted(widths))}")
    if entry.role is Role.CUSTOM_CALL:
        yield from _library_call_faults(instruction, shapes)
    if called and called[0] is not None and entry.role is Role.CALL:
        # Opcodes' rules tolerate other widths of floats between operands and parameters.
        for number, (operand, parameter) in enumerate(zip(shapes, called[0].parameters, strict=True)):
            if not agree(operand, parameter):
                what = f"operand {number} of {instruction.opcode} is {operand}"
                yield Mixed(f"{what}, but the called computation takes {parameter}")


def _library_call_faults(instruction: Instruction, operands: Sequence[Shape]) -> Iterator[str]:
    """Compare a library call's declared shape with the one that its own rule infers; users' calls have none."""
    target, declared = instruction.attributes.custom_call_target, instruction.shape
    library_call = find_custom_call(target)
    if library_call is None:
        return
    subject = f'custom call "{target}" is declared {declared}'
    try:
        inferred = library_call.result_shape(instruction, operands)
    except ShapeError as error:
        yield f"{subject}, but {error.message}"
        return
    if inferred is not None and not agree(declared, inferred):
        yield f"{subject}, but its operands give {inferred}"


def _partner_faults(
    computation: Computation,
    instruction: Instruction,
    operands: Sequence[Instruction],
    programs: Mapping[str, ProgramShape | None],
    *,
    strict: bool,
) -> Iterator[str]:
    """An asynchronous operation goes on from its own start, on the same channel."""
    if not instruction.opcode.endswith(_CONTINUATIONS):
        return
    base = instruction.opcode.rpartition("-")[0]
    before: Instruction | None = operands[0]
    if base == "async":
        from hloexec.ops.control.asynchronous import is_over, late_operands_fault, start_of

        before = start_of(instruction, computation.by_name)
        if is_over(instruction, computation.by_name):
            yield (
                f"the operand of {instruction.opcode} must come from an async-start or async-update, but "
                f"'{operands[0].name}' is a {operands[0].opcode}"
            )
        if before is not None and len(operands) > 1:
            fault = late_operands_fault(instruction, programs.get(before.attributes.calls))
            if fault is not None:
                yield fault
    if before is not None and before.opcode in (base, f"{base}-start", f"{base}-update"):
        for name in ("channel_id", "async_execution_thread", "calls"):
            ours, theirs = (getattr(item.attributes, name, None) for item in (instruction, before))
            # Older dumps leave the channel of a send or recv out.
            is_stated = theirs is not None or (strict and hasattr(before.attributes, name))
            if ours is not None and ours != theirs and is_stated:
                yield f"{name} is {ours}, but that of its start '{before.name}' is {theirs}"


def _operand_range(entry: Entry) -> str:
    low, high = entry.minimum_operands, entry.maximum_operands
    if low == high:
        return counted(low, "operand")
    return f"at least {low} operands" if high is None else f"{low} to {high} operands"


def _shape_fault(shape: Shape) -> str | None:
    """What is wrong with a shape by itself."""
    if isinstance(shape, ArrayShape):
        return _array_fault(shape)
    return next(filter(None, (_array_fault(leaf.array_shape) for leaf in flat_shapes(shape))), None)


@cache
def _array_fault(shape: ArrayShape) -> str | None:
    dynamic = shape.dynamic_dimensions
    if dynamic and len(dynamic) != shape.rank:
        return f"{shape.element_type} has {shape.rank} dimensions, but {len(dynamic)} dynamic flags"
    for axis, size in enumerate(shape.dimensions):
        if size < 0 and not (size == UNBOUNDED and dynamic and dynamic[axis]):
            return f"dimension {axis} of {shape.element_type} has the negative size {size}"
    if shape.layout is not None and sorted(shape.layout.minor_to_major) != list(range(shape.rank)):
        order = ",".join(map(str, shape.layout.minor_to_major))
        return f"the layout {{{order}}} of {shape} is not a permutation of its {shape.rank} dimensions"
    return None


def agree(first: Shape, second: Shape, any_width: bool = False) -> bool:
    """Whether two shapes agree but for layouts and dynamic flags and, where `any_width`, the width of floats."""
    return agree_in_arrays(first, second, partial(_same_array, any_width=any_width))


def _same_array(first: ArrayShape, second: ArrayShape, any_width: bool) -> bool:
    ours, theirs = first.element_type, second.element_type
    if ours is not theirs and not (any_width and ours.is_floating and theirs.is_floating):
        return False
    return first.dimensions == second.dimensions or (
        first.rank == second.rank
        and all(
            size == other or UNBOUNDED in (size, other)
            for size, other in zip(first.dimensions, second.dimensions, strict=True)
        )
    )


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


def share_a_buffer(first: Shape, second: Shape) -> bool:
    """Whether an output can have the buffer of a parameter: with as many bytes, perhaps with the padding of tiles."""
    if not isinstance(first, ArrayShape) or not isinstance(second, ArrayShape):
        return first.byte_size == second.byte_size
    from hloexec.ops.movement.bitcast import have_equal_sizes

    return have_equal_sizes(first, second)


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
        elif not share_a_buffer(result, parameter):
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
