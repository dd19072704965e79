"""IR to HLO text.

`format` writes what `parse` reads back to an equal module, and what XLA reads as the same module. Like the parser it
knows grammars, not opcodes: one function per grammar turns an attribute's value into text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs

from hloexec.core.arguments import require_flags, require_module
from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.core.ir import (
    Computation,
    Instruction,
    Module,
    Shape,
    StackFrames,
)
from hloexec.core.structs import frozen
from hloexec.core.wording import braced, quoted
from hloexec.errors import VerificationError
from hloexec.language.text.attributes import printing as write
from hloexec.language.text.lexer import RESERVED, STACK_FRAME_TABLES, escape
from hloexec.language.text.shape_text import literal_text, literal_with_shape_text, shape_text, shapes_text
from hloexec.ops.attributes import Grammar, attribute_fields
from hloexec.ops.registry import Role, find_opcode

_UNWRITABLE = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError)
"""What the writers raise for values that are not of their grammar's Python type."""


@frozen
class _Options:
    metadata: bool = True
    layouts: bool = True
    backend_config: bool = True


def format(module: Module, *, metadata: bool = True, layouts: bool = True, backend_config: bool = True) -> str:
    """A module as HLO text.

    `parse(format(module)) == module`. Leaving out metadata (and the tables it points to), layouts or backend configs
    gives text that is easier to read and to compare.
    """
    require_module(module)
    require_flags(metadata=metadata, layouts=layouts, backend_config=backend_config)
    return "".join(_module(module, _Options(metadata, layouts, backend_config)))


def format_instruction(instruction: Instruction, *, metadata: bool = True, is_root: bool = False) -> str:
    """One instruction as a line of HLO text, without indentation."""
    _require_attributes(instruction)
    return _instruction(instruction, _Options(metadata=metadata), is_root=is_root)


def format_shape(shape: Shape, *, layouts: bool = True) -> str:
    """A shape as HLO text, e.g. `(f32[2,3]{1,0}, token[])`."""
    return shape_text(shape, layouts)


# Modules


def _module(module: Module, options: _Options) -> Iterator[str]:
    percent = "%" if module.name in RESERVED or module.name in ELEMENT_TYPES else ""
    yield f"HloModule {percent}{module.name}{''.join(_header(module, options))}\n"
    if module.stack_frames is not None and options.metadata:
        yield _stack_frames(module.stack_frames)
    for computation in module.computations:
        yield "\n"
        yield from _computation(computation, computation.name == module.entry_name, options)


def _header(module: Module, options: _Options) -> Iterator[str]:
    if module.is_scheduled:
        yield ", is_scheduled=true"
    yield from _aliases(module)
    if module.alias_passthrough_params:
        yield ", alias_passthrough_params=true"
    if module.entry_computation_layout is not None and options.layouts:
        layout = module.entry_computation_layout
        parameters = shapes_text(layout.parameters, options.layouts)
        yield f", entry_computation_layout={{({parameters})->{shape_text(layout.result, options.layouts)}}}"
    for name in ("allow_spmd_sharding_propagation_to_parameters", "allow_spmd_sharding_propagation_to_output"):
        if flags := getattr(module, name):
            yield f", {name}={{{','.join(map(write.boolean, flags))}}}"
    for name in ("replica_count", "num_partitions"):
        if (count := getattr(module, name)) != 1:
            yield f", {name}={count}"
    if module.frontend_attributes is not None:
        yield f", frontend_attributes={write.frontend_attributes(module.frontend_attributes)}"
    if module.origin_recovery_table is not None:
        yield f", origin_recovery_table={module.origin_recovery_table}"
    for name, value in module.unknown_attributes:
        yield f", {name}={value}"


def _aliases(module: Module) -> Iterator[str]:
    aliases = (
        f"{braced(alias.output_index)}: ({alias.parameter_number}, {braced(alias.parameter_index)}, {alias.kind})"
        for alias in module.input_output_alias
    )
    donors = (f"({number}, {braced(index)})" for number, index in module.buffer_donor)
    for name, entries in (("input_output_alias", aliases), ("buffer_donor", donors)):
        if text := ", ".join(entries):
            yield f", {name}={{ {text} }}"


def _stack_frames(frames: StackFrames) -> str:
    lines: list[str] = []
    for word, rows in zip(STACK_FRAME_TABLES, attrs.astuple(frames, recurse=False), strict=True):
        lines.append(f"\n{word}")
        lines += (f"{i} {write.quoted(row) if isinstance(row, str) else _record(row)}" for i, row in enumerate(rows, 1))
    return "\n".join(lines) + "\n\n"


def _record(row: Any) -> str:
    return "{" + " ".join(f"{name}={value}" for name, value in attrs.asdict(row).items()) + "}"


def _computation(computation: Computation, is_entry: bool, options: _Options) -> Iterator[str]:
    if computation.root_name not in computation.by_name:
        raise VerificationError(
            f"computation {computation.name} has no instruction {computation.root_name} as its root"
        )
    for instruction in computation.instructions:
        _require_attributes(instruction)
    parameters = ", ".join(f"{p.name}: {shape_text(p.shape, False)}" for p in computation.parameters)
    prefix = "ENTRY " if is_entry else ""
    yield f"{prefix}%{computation.name} ({parameters}) -> {shape_text(computation.result_shape, False)} {{\n"
    for instruction in computation.instructions:
        yield f"  {_instruction(instruction, options, is_root=instruction.name == computation.root_name)}\n"
    thread = computation.execution_thread
    yield "}\n" if thread == "main" else f'}}, execution_thread="{escape(thread)}"\n'


# Instructions


def _instruction(instruction: Instruction, options: _Options, *, is_root: bool) -> str:
    pieces = [
        "ROOT %" if is_root else "%",
        instruction.name,
        " = ",
        shape_text(instruction.shape, options.layouts),
        " ",
    ]
    pieces += (instruction.opcode, "(", _operands(instruction), ")")
    pieces += _attributes(instruction, options)
    return "".join(pieces)


def _require_attributes(instruction: Instruction) -> None:
    """Modules are not verified before they are printed, so that people can look at a wrong one."""
    entry = find_opcode(instruction.opcode)
    if entry is not None and entry.attributes and not isinstance(instruction.attributes, entry.attributes):
        raise VerificationError(f"%{instruction.name} lacks the attributes of {instruction.opcode}")


def _operands(instruction: Instruction) -> str:
    if instruction.unknown_operands is not None:
        return instruction.unknown_operands
    entry = find_opcode(instruction.opcode)
    if entry is not None and entry.role is Role.PARAMETER:
        return str(instruction.attributes.number)
    if entry is not None and entry.role is Role.CONSTANT:
        return literal_text(instruction.attributes.literal)
    return ", ".join(f"%{name}" for name in instruction.operands)


def _declared_attributes(instruction: Instruction) -> Iterator[str]:
    """Those that the opcode declares."""
    for declared in attribute_fields(type(instruction.attributes)).values():
        value = getattr(instruction.attributes, declared.field)
        if declared.is_required or declared.always_printed or value != declared.default:
            try:
                text = _WRITERS[declared.grammar](value)
            except _UNWRITABLE as error:
                raise VerificationError(
                    f"{declared.name} of %{instruction.name} cannot be written as text; its value is "
                    f"{quoted(value, 200)}"
                ) from error
            yield f", {declared.name}={text}"


def _attributes(instruction: Instruction, options: _Options) -> Iterator[str]:
    if instruction.attributes is not None:
        yield from _declared_attributes(instruction)
    if instruction.sharding is not None:
        yield f", sharding={write.sharding(instruction.sharding)}"
    if instruction.parameter_replication is not None:
        yield f", parameter_replication={{{','.join(map(write.boolean, instruction.parameter_replication))}}}"
    if instruction.control_predecessors:
        yield f", control-predecessors={{{', '.join('%' + name for name in instruction.control_predecessors)}}}"
    if instruction.frontend_attributes is not None:
        yield f", frontend_attributes={write.frontend_attributes(instruction.frontend_attributes)}"
    if instruction.statistics is not None:
        yield f", statistics={write.statistics(instruction.statistics)}"
    if instruction.original_value is not None:
        yield f", origin={instruction.original_value.text}"
    for name, value in instruction.unknown_attributes:
        yield f", {name}={value}"
    if instruction.metadata is not None and options.metadata:
        yield f", metadata={write.metadata(instruction.metadata)}"
    if instruction.backend_config is not None and options.backend_config:
        yield f", backend_config={write.string_or_dictionary(instruction.backend_config)}"


_WRITERS: dict[Grammar, Callable[[Any], str]] = {
    Grammar.BOOL: write.boolean,
    Grammar.INT: str,
    Grammar.INT32: str,
    Grammar.FLOAT: write.number,
    Grammar.STRING: write.quoted,
    Grammar.ENUM: str,
    Grammar.INT_LIST: braced,
    Grammar.INT_IN_LIST: lambda value: f"{{{value}}}",
    Grammar.INT_LIST_LIST: write.nested,
    Grammar.INT_PAIRS: write.nested,
    Grammar.ENUM_LIST: braced,
    Grammar.COMPUTATION: lambda name: f"%{name}",
    Grammar.COMPUTATION_LIST: lambda names: f"{{{', '.join('%' + name for name in names)}}}",
    Grammar.WINDOW: write.window,
    Grammar.CONVOLUTION_DIMENSIONS: write.convolution_dimensions,
    Grammar.PADDING: write.padding,
    Grammar.SLICE: write.slice_ranges,
    Grammar.SHAPE: lambda shape: shape_text(shape),
    Grammar.SHAPE_LIST: lambda shapes: f"{{{shapes_text(shapes)}}}",
    Grammar.LITERAL: literal_with_shape_text,
    Grammar.ALIASING: write.aliasing,
    Grammar.REPLICA_GROUPS: write.replica_groups,
    Grammar.SHARDING: write.sharding,
    Grammar.DOMAIN: write.domain,
    Grammar.RESULT_ACCURACY: write.result_accuracy,
    Grammar.VERBATIM: str,
}
