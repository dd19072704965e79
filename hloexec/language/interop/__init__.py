"""Modules in other formats: XLA's protocol buffers, StableHLO, JAX functions.

`language.text` reads HLO text. Protocol buffers are read here; jaxlib converts StableHLO and what JAX hands out to HLO
text, which is then read in the same way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from hloexec.core.ir import Module, TupleShape
from hloexec.core.structs import frozen
from hloexec.core.values import Value
from hloexec.errors import HloError, InputError, warn
from hloexec.language.interop.content import Format, decoded, detect, mentions_mlir, require_unpacked, unpacked
from hloexec.language.text import format as format_module
from hloexec.language.text import parse

if TYPE_CHECKING:
    from hloexec.language.interop.protos import ModuleFile

__all__ = ["Snapshot", "load_bytes", "load_recorded"]


_OTHERS = {
    Format.ARRAYS: "`hloexec info` shows and hloexec.literals.load reads",
    Format.BUFFER_ASSIGNMENT: "`hloexec memory MODULE --assignment` shows and hloexec.load_buffer_assignment reads",
}
"""Related files that are not modules, and what reads them."""


@frozen(eq=False)
class Snapshot:
    """A module with the values it was run on, as XLA dumps it."""

    module: Module
    inputs_per_device: tuple[tuple[Value, ...], ...]
    """The arguments of each device; one device for the snapshot of a single execution."""
    result: Value | None
    """What the execution gave; None where the snapshot was taken before it, or arguments were donated."""

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The arguments of the first device."""
        return self.inputs_per_device[0] if self.inputs_per_device else ()


def load_bytes(data: bytes, filename: str = "<bytes>", *, strict: bool = False) -> Module:
    """Read a module from the bytes of a file; what it is shows in them.

    HLO text; an HloModuleProto, HloProto, HloSnapshot or HloUnoptimizedSnapshot; through jaxlib StableHLO or MHLO as
    MLIR text or bytecode, or in a file of `jax.export`; gzip of any of these. `filename` serves messages, `strict`
    rejects what the XLA of today would reject. Raises InputError (damage, or more than 4 GiB once unpacked),
    ParseError, UnsupportedError (jaxlib is not installed).
    """
    data = unpacked(data, filename)
    if not data.strip():
        raise InputError(f"{filename} is empty; expected a module")
    form = detect(data)
    if form in _OTHERS:
        raise InputError(f"{filename} is not a module: it holds {form.value}, which {_OTHERS[form]}")
    if form is Format.PROTO:
        require_unpacked(data, filename)
        from hloexec.language.interop.protos import module_file

        return _module(module_file(data, filename), filename, strict)
    if form is Format.HLO_TEXT:
        hlo = decoded(data, filename)
        module = None if strict or not mentions_mlir(data) else _embedded(hlo, filename)
        return parse(hlo, filename=filename, strict=strict) if module is None else module
    from hloexec.language.interop.through_jaxlib import text_of_bytecode, text_of_mlir

    label = f"{filename} ({form.value})"
    if form is Format.EXPORT:
        from hloexec.language.interop.through_jaxlib import module_of_export, read_export

        export = read_export(data, filename)
        return module_of_export(text_of_bytecode(export.bytecode, label), export.platforms, filename, strict=strict)
    is_bytecode = form is Format.MLIR_BYTECODE
    try:
        text = text_of_bytecode(data, label) if is_bytecode else text_of_mlir(decoded(data, filename), label)
    except InputError:
        module = None if strict or is_bytecode else _embedded(decoded(data, filename), filename)
        if module is None:
            raise
        return module
    return parse(text, filename=f"{filename} as HLO text", strict=strict)


def _embedded(text: str, filename: str) -> Module | None:
    """The only module of MLIR in a text that holds more; None where there is none."""
    from hloexec.language.interop.embedded import embedded_mlir
    from hloexec.language.interop.through_jaxlib import text_of_mlir

    embedded = embedded_mlir(text, filename)
    if embedded is None:
        return None
    hlo = text_of_mlir(embedded[0], f"{filename} ({Format.MLIR_TEXT.value})")
    for removed in embedded[1]:
        warn(f"{filename}: {removed}")
    return parse(hlo, filename=f"{filename} as HLO text")


def load_recorded(data: bytes, filename: str = "<bytes>", *, strict: bool = False) -> Snapshot:
    """Read what `load_bytes` reads, with the inputs and the result that only snapshots hold.

    Snapshots are what XLA dumps under `--xla_dump_hlo_snapshots` (HloSnapshot: the optimized module, its inputs, its
    result) or `--xla_dump_hlo_unoptimized_snapshots` (HloUnoptimizedSnapshot: the module before optimization and each
    device's inputs). Raises what `load_bytes` raises.
    """
    data = unpacked(data, filename)
    if data.strip() and detect(data) is Format.PROTO:
        require_unpacked(data, filename)
        from hloexec.language.interop.protos import module_file

        file = module_file(data, filename, with_values=True)
        module, result = _module(file, filename, strict), file.result
        if isinstance(result, tuple) and not result and module.entry.result_shape != TupleShape(()):
            warn(f"{filename} holds no result: XLA stores none where arguments are donated")
            result = None
        return Snapshot(module, file.inputs_per_device, result)
    return Snapshot(load_bytes(data, filename, strict=strict), (), None)


def _module(file: ModuleFile, filename: str, strict: bool) -> Module:
    from hloexec.language.interop.protos import module_of

    try:
        # Its text is read once more, which checks what a text is checked for, and gives messages a place.
        text = format_module(module_of(file.proto))
    except HloError as error:
        raise InputError(f"{filename} is a damaged protocol buffer: {error.message}") from error
    module = parse(text, filename=f"{filename} as HLO text", strict=strict)
    # The device assignment is what a text dump shows in the header.
    return attrs.evolve(module, replica_count=file.replica_count, num_partitions=file.num_partitions)
