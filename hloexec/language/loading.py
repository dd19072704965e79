"""Reading a module from a file, whose format is detected by its content, not by its name."""

from __future__ import annotations

import os
import re
import sys

from hloexec.core.arguments import require_flags, require_path
from hloexec.core.files import opened
from hloexec.core.ir import Module
from hloexec.errors import InputError, os_errors_named
from hloexec.language.interop import Snapshot, load_bytes, load_recorded
from hloexec.language.interop.content import read_limited, unpacked

_DUMPED_MODULE = re.compile(r"module_\d+\..*optimizations\.(?:txt|hlo\.pb)")


def load(path: str | os.PathLike[str], *, strict: bool = False) -> Module:
    """Read a module from a file; `-` reads standard input, and `FILE#NAME` one of the modules of a profile.

    The file may be HLO text, one of XLA's protocol buffers (HloModuleProto, HloProto, HloSnapshot) or, through jaxlib,
    StableHLO as MLIR text, as bytecode or in a file of `jax.export`; any of these may be gzipped. `strict` rejects what
    current XLA rejects.
    Raises InputError if the file cannot be read or has none of these formats, UnsupportedError if jaxlib is needed but
    missing, and ParseError if the text is not valid HLO.
    """
    require_flags(strict=strict)
    return load_bytes(*file_contents(path, "hloexec.parse"), strict=strict)


def load_with_values(path: str | os.PathLike[str], *, strict: bool = False) -> Snapshot:
    """`load`, with the inputs and the result of the execution where the file is a snapshot of one."""
    return load_recorded(*file_contents(path, "hloexec.parse"), strict=strict)


def file_contents(path: str | os.PathLike[str], reader: str) -> tuple[bytes, str]:
    """The bytes of a file, and what messages call it; `reader` names the function that takes the text itself."""
    require_path("path", path)
    name = os.fspath(path)
    if "\n" in name or "\0" in name:
        raise InputError(f"path must be that of a file, but a text was given; {reader}(text) reads it")
    filename = "<stdin>" if name == "-" else name
    chosen = ""
    if "#" in name and not os.path.lexists(name):
        name, _, chosen = name.rpartition("#")
    if os.path.isdir(name):
        raise InputError(f"{filename} is a folder{_reader_of(name)}")
    with os_errors_named(f"read {filename}"):
        if name == "-":
            data = read_limited(sys.stdin.buffer, filename)
        else:
            with opened(name, from_shell=True) as file:
                data = read_limited(file, filename)
    if chosen:
        from hloexec.language.interop.protos import chosen_module

        data = chosen_module(unpacked(data, filename), chosen, filename)
    return data, filename


def _reader_of(folder: str) -> str:
    """Which command reads a folder, as a part of a sentence."""
    try:
        names = sorted(os.listdir(folder))
    except OSError:
        return ""
    goldens = [name for name in names if name.endswith(".golden")]
    if "golden.json" in names or goldens:
        module = os.path.join(folder, *goldens[:1], "module.hlo")
        return f" of goldens, which `hloexec golden check` runs; a module in it is {module}"
    dumped = [name for name in names if _DUMPED_MODULE.search(name)]
    if dumped:
        example = os.path.join(folder, dumped[0])
        return f" that XLA dumped, which `hloexec diff` and `hloexec triage` read; a module in it is {example}"
    return "; name a file in it"
