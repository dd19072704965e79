"""What `jax.export` writes: a FlatBuffer, one field of which is a module as StableHLO bytecode.

A table of a FlatBuffer is reached through offsets, and begins with the way to its *vtable*, which says where each field
lies (flatbuffers.dev, "Internals"). The fields of `Exported` are those of jax/_src/export/serialization.fbs.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import attrs

from hloexec.core.ir import Alias, EntryLayout, Instruction, Module
from hloexec.core.ir.editing import replace_computation
from hloexec.core.structs import frozen
from hloexec.errors import InputError, warn
from hloexec.language.text import format as format_module
from hloexec.language.text import parse
from hloexec.ops.registry import Role, role_of

_PLATFORMS, _MODULE, _LAST_OF_FIRST_VERSION = 9, 13, 17


@frozen
class Export:
    """What a run needs of an exported function."""

    bytecode: bytes
    platforms: tuple[str, ...]
    """Where it may run; a function for several takes the number of one as its first parameter."""


def is_export(data: bytes) -> bool:
    """Whether bytes begin as an exported function does: with a table that has a place for each of its fields."""
    try:
        (root,) = struct.unpack_from("<I", data)
        (back,) = struct.unpack_from("<i", data, root)
        size, table_size = struct.unpack_from("<HH", data, root - back) if 4 <= root - back < root else (0, 0)
        offsets = struct.unpack_from(f"<{size // 2 - 2}H", data, root - back + 4) if size >= 4 else ()
    except struct.error:
        return False
    return _LAST_OF_FIRST_VERSION < len(offsets) < 100 and all(0 <= offset < table_size for offset in offsets)


def read_export(data: bytes, filename: str) -> Export:
    """The parts of an exported function; raises InputError where the file is damaged or cut off."""
    try:
        root = _at(data, 0)
        platforms = [_bytes(data, _follow(data, place)).decode() for place in _vector(data, root, _PLATFORMS)]
        module = _field(data, root, _MODULE)
        return Export(_bytes(data, _follow(data, module)) if module else b"", tuple(platforms))
    except (struct.error, UnicodeDecodeError) as error:
        raise InputError(
            f"{filename} begins like a function that jax.export has serialized, but is damaged or cut off"
        ) from error


def _at(data: bytes, place: int) -> int:
    found: int
    (found,) = struct.unpack_from("<I", data, place)
    return found


def _follow(data: bytes, place: int) -> int:
    """What an offset leads to: they count from where they stand."""
    return place + _at(data, place)


def _field(data: bytes, table: int, number: int) -> int:
    """Where a field of a table lies, 0 where it has none."""
    (back,) = struct.unpack_from("<i", data, table)
    (offset,) = struct.unpack_from("<H", data, table - back + 4 + 2 * number)
    return table + offset if offset else 0


def _vector(data: bytes, table: int, number: int) -> Sequence[int]:
    """Where the elements of a vector of offsets lie."""
    field = _field(data, table, number)
    if not field:
        return ()
    start = _follow(data, field)
    return range(start + 4, start + 4 + 4 * min(_at(data, start), len(data)), 4)


def _bytes(data: bytes, start: int) -> bytes:
    """A vector of bytes or a string: its length and its elements."""
    length = _at(data, start)
    return bytes(struct.unpack_from(f"<{length}s", data, start + 4)[0])


def module_of_export(text: str, platforms: Sequence[str], filename: str, *, strict: bool = False) -> Module:
    """The module that an exported function is; where it is for several platforms, as it is on one of them."""
    module = parse(text, filename=f"{filename} as HLO text", strict=strict)
    if len(platforms) < 2:
        return module
    chosen = chosen_platform(platforms)
    warn(f"{filename} is exported for {', '.join(platforms)}; it is read as it runs on {chosen}")
    return _on_platform(module, platforms.index(chosen))


def chosen_platform(platforms: Sequence[str]) -> str:
    """The one on which an exported function is run: the CPU where it may be."""
    return "cpu" if "cpu" in platforms else platforms[0]


def _on_platform(module: Module, number: int) -> Module:
    """A module whose first parameter is the number of a platform, with this number in its place."""
    layout, propagation = module.entry_computation_layout, module.allow_spmd_sharding_propagation_to_parameters
    entry = attrs.evolve(
        module.entry, instructions=tuple(_with_platform(instruction, number) for instruction in module.entry)
    )
    edited = replace_computation(
        module,
        entry,
        entry_computation_layout=layout and EntryLayout(layout.parameters[1:], layout.result),
        allow_spmd_sharding_propagation_to_parameters=propagation[1:] if len(propagation) > 1 else propagation,
        input_output_alias=tuple(map(_alias, module.input_output_alias)),
        buffer_donor=tuple((parameter - 1, index) for parameter, index in module.buffer_donor),
    )
    return parse(format_module(edited), filename=module.filename)


def _alias(alias: Alias) -> Alias:
    return attrs.evolve(alias, parameter_number=alias.parameter_number - 1)


def _with_platform(instruction: Instruction, number: int) -> Instruction:
    """The first parameter as the number of the platform, the others one earlier."""
    if role_of(instruction) is not Role.PARAMETER:
        return instruction
    if instruction.attributes.number == 0:
        return parse(f"{instruction.name} = {instruction.shape} constant({number})").entry.root
    attributes = attrs.evolve(instruction.attributes, number=instruction.attributes.number - 1)
    return attrs.evolve(instruction, attributes=attributes)
