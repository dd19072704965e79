"""Modules of JAX: functions that JAX lowers, what `jax.export` writes, and formats that only XLA reads.

What `jax.export` writes: a FlatBuffer, one field of which is a module as StableHLO bytecode. A table of a FlatBuffer is
reached through offsets, and begins with the way to its *vtable*, which says where each field lies (flatbuffers.dev,
"Internals"). The fields of `Exported` are those of jax/_src/export/serialization.fbs.

The text includes everything that affects a run: whole constants (with NaN payloads and negative zeros), layouts,
metadata and configurations.
"""

from __future__ import annotations

import importlib
import os
import re
import struct
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import attrs

from hloexec.core.arguments import described, wrong
from hloexec.core.ir import Alias, EntryLayout, Instruction, Module
from hloexec.core.ir.editing import replace_computation
from hloexec.core.structs import frozen
from hloexec.errors import InputError, UnsupportedError, warn
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
    offset: int
    (offset,) = struct.unpack_from("<I", data, place)
    return offset


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


_WHOLE = {
    "print_large_constants": True,
    "print_metadata": True,
    "print_backend_config": True,
    "print_control_dependencies": True,
    "print_extra_attributes": True,
    "include_layout_in_shapes": True,
}
_UNKNOWN_SIZE = re.compile(r"\w\[(?:[<=\d]+,)*\?")

_READ_BYTECODE = """
import sys
from hloexec.language.interop.through_jaxlib import computation_of, text_of_module
sys.stdout.buffer.write(text_of_module(computation_of(sys.stdin.buffer.read()).get_hlo_module()).encode())
"""


def text_of_mlir(mlir: str | bytes, subject: str) -> str:
    """The HLO text of a StableHLO or MHLO module in MLIR text, or in bytecode that is known to be whole."""
    _require_jaxlib(subject)
    try:
        return text_of_module(computation_of(mlir if isinstance(mlir, bytes) else mlir.encode()).get_hlo_module())
    except Exception as error:
        raise _refusal(subject, error) from error


def text_of_bytecode(bytecode: bytes, subject: str) -> str:
    """The HLO text of a StableHLO or MHLO module in MLIR bytecode, portable artifacts included.

    A process of its own reads it: damaged bytecode can corrupt the memory of the process that does.
    """
    _require_jaxlib(subject)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, "-c", _READ_BYTECODE]
    done = subprocess.run(command, input=bytecode, capture_output=True, env=environment, check=False)
    if done.returncode != 0:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        reason = lines[-1] if done.returncode > 0 and lines else "its reader crashed"
        raise InputError(f"XLA cannot read {subject}: {reason}")
    return done.stdout.decode()


def computation_of(mlir: bytes) -> Any:
    """XLA's computation of a StableHLO or MHLO module, text or bytecode.

    In one that calls an exported function of symbolic sizes, they become what its parameters say, as when JAX compiles
    it; the sizes of the function itself stay unknown, for a run to say.
    """
    library, options = of_jaxlib("mlir"), {"use_tuple_args": False, "return_tuple": False}
    computation = library.mlir_module_to_xla_computation(mlir, **options)
    if has_unknown_sizes(computation.as_hlo_text()):
        with suppress(Exception):
            mlir = library.refine_polymorphic_shapes(
                mlir, enable_shape_assertions=True, validate_static_shapes=True, enable_shardy=True
            )
            return library.mlir_module_to_xla_computation(mlir, **options)
    return computation


def has_unknown_sizes(text: str) -> bool:
    """Whether a shape in HLO text has a dimension without a bound."""
    return _UNKNOWN_SIZE.search(text) is not None


def text_of_module(module: Any) -> str:
    """The whole HLO text of jaxlib's `HloModule`."""
    options = of_jaxlib("HloPrintOptions")()
    for name, value in _WHOLE.items():
        setattr(options, name, value)
    return str(module.to_string(options))


def _refusal(subject: str, error: Exception) -> InputError:
    """XLA's complaint without the stack trace that may follow it."""
    complaint = str(error).partition("*** Begin stack trace")[0].strip()
    return InputError(f"XLA cannot read {subject}: {complaint or type(error).__name__}")


def of_jaxlib(name: str) -> Any:
    """A class, function or module of jaxlib, wherever its version has it."""
    for home in ("_hlo", "_jax", "xla_extension"):
        with suppress(ImportError, AttributeError):
            return getattr(importlib.import_module(f"jaxlib.{home}"), name)
    raise ImportError(f"jaxlib has no {name}")


def _require_jaxlib(subject: str) -> None:
    try:
        of_jaxlib("mlir")
    except ImportError as error:
        raise UnsupportedError(
            f"reading {subject} needs jaxlib ({error}): install hloexec[jax], or give the module as HLO text"
        ) from error


_NAME = "<jax>"


def from_jax(function: Any, *arguments: object, **keywords: object) -> Module:
    """The module of a JAX function for the given arguments, before optimization.

    `function` is any callable that `jax.jit` accepts, or the result of `jax.jit`; arguments are arrays, pytrees of
    arrays, or `jax.ShapeDtypeStruct`. It may also be the result of `.trace(…)`, `.lower(…)` or `.compile()` of a jitted
    function (for the last, the module *after* optimization), of `.compiler_ir(…)`, or of `jax.make_jaxpr`; these take
    no arguments. A `jax.export.Exported` takes none, or those that its symbolic sizes are to fit.

    The module's parameters are the leaves of the arguments in the order of `jax.tree.leaves`; its result is the tuple
    of the result's leaves, or the only leaf. A function that the caller has jitted drops unused arguments, as `jax.jit`
    does by default. A typed PRNG key is an array of its words.

    Raises UnsupportedError without JAX, InputError for something that has no single module, and whatever the function
    itself raises during tracing.
    """
    try:
        import jax
        from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
        from jax.stages import Compiled, Lowered, Traced
    except ImportError as error:
        raise UnsupportedError("from_jax needs JAX: install hloexec[jax]") from error
    has_arguments = bool(arguments or keywords)
    if hasattr(function, "mlir_module_serialized"):  # of jax.export, which needs packages that JAX may come without
        if not has_arguments:
            text = text_of_mlir(function.mlir_module_serialized, "what is exported")
            return module_of_export(text, function.platforms, _NAME)
        traced = jax.jit(function.call).trace(*arguments, **keywords)
        staged = traced.lower(lowering_platforms=(chosen_platform(function.platforms),))
    elif isinstance(function, (ClosedJaxpr, Compiled, Lowered, Traced)) or _is_ir(function):
        if has_arguments:
            raise InputError(f"{described(function)} has its arguments already; from_jax takes no more")
        staged = function.lower() if isinstance(function, Traced) else function
        if isinstance(function, ClosedJaxpr):
            staged = jax.jit(jaxpr_as_fun(function), keep_unused=True).lower(*function.in_avals)
    elif callable(function) and hasattr(function, "lower"):
        staged = function.lower(*arguments, **keywords)
    elif callable(function):
        staged = jax.jit(function, keep_unused=True).lower(*arguments, **keywords)
    else:
        expected = "a function of JAX, or what .trace(), .lower(), .compile(), jax.make_jaxpr or jax.export gave"
        raise wrong("function", expected, function)
    return parse(_text(staged), filename=_NAME)


def _is_ir(staged: object) -> bool:
    """Whether it is what `.compiler_ir()` gives: a module of MLIR, or with "hlo" a computation of XLA."""
    return hasattr(staged, "get_hlo_module") or (hasattr(staged, "operation") and hasattr(staged, "body"))


def _text(staged: Any) -> str:
    """The HLO text of a stage, or of what `.compiler_ir()` of one gives."""
    if hasattr(staged, "runtime_executable"):
        return text_of_module(_compiled_module(staged))
    if hasattr(staged, "get_hlo_module"):
        return text_of_module(staged.get_hlo_module())
    if hasattr(staged, "operation"):
        return text_of_mlir(staged.operation.get_asm(enable_debug_info=True), _NAME)
    text = text_of_module(_lowered_module(staged))
    return _text(staged.compiler_ir()) if has_unknown_sizes(text) else text


def _lowered_module(lowered: Any) -> Any:
    try:
        return lowered.compiler_ir("hlo").get_hlo_module()
    except Exception as error:
        raise InputError(f"XLA cannot turn what JAX lowered into HLO: {error}") from error


def _compiled_module(compiled: Any) -> Any:
    executable = compiled.runtime_executable()
    modules = [] if executable is None else executable.hlo_modules()
    if len(modules) != 1:
        raise InputError(f"the compiled function has {len(modules)} modules; from_jax takes one")
    return modules[0]
