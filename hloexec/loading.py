"""Reading a module from a file: what the file is shows in its content, not in its name."""

from __future__ import annotations

import gzip
import io
import os
import re
import sys
import zlib
from typing import BinaryIO

from hloexec.errors import InputError, ResourceError, UnsupportedError
from hloexec.ir import Module
from hloexec.text import parse

__all__ = ["load"]

_GZIP_MAGIC = b"\x1f\x8b"
_MLIR_BYTECODE_MAGIC = b"ML\xefR"
_MLIR_TEXT = re.compile(
    r"\s*(//[^\n]*\s+)*"
    r"(#[\w.]+ = |module @|module attributes|module \{\s*\w+\.|\"?builtin\.module|func\.func|\"func\.func|"
    r"stablehlo\.|vhlo\.)"
)
_MAXIMUM_BYTES = 4 << 30


def load(path: str | os.PathLike[str], *, strict: bool = False) -> Module:
    """Read a module from a file of HLO text, plain or gzipped; `-` reads standard input.

    `strict` rejects what the XLA of today would reject. Raises InputError where the file cannot be read or is not text,
    UnsupportedError where it holds a protocol buffer or MLIR, and ParseError where it is not HLO.
    """
    name = os.fspath(path)
    filename = "<stdin>" if name == "-" else name
    data = _read(name, filename)
    if not data.strip():
        raise InputError(f"{filename} is empty; expected a file of HLO text")
    if data.startswith(_MLIR_BYTECODE_MAGIC):
        raise UnsupportedError(f"{filename} is MLIR bytecode, which hloexec does not read yet; give it HLO text")
    text = _decoded(data, filename)
    if _MLIR_TEXT.match(text):
        raise UnsupportedError(f"{filename} is MLIR (StableHLO), which hloexec does not read yet; give it HLO text")
    return parse(text, filename=filename, strict=strict)


def _read(name: str, filename: str) -> bytes:
    """The bytes of a file, unpacked where they are gzipped."""
    try:
        if name == "-":
            data = _read_limited(sys.stdin.buffer, filename)
        else:
            with open(name, "rb") as file:
                data = _read_limited(file, filename)
    except OSError as error:
        raise InputError(f"cannot read {filename}: {error.strerror or error}") from error
    if not data.startswith(_GZIP_MAGIC):
        return data
    try:
        return _read_limited(gzip.GzipFile(fileobj=io.BytesIO(data)), filename)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot unpack {filename}, which starts like a gzip file: {error}") from error


def _read_limited(file: BinaryIO | gzip.GzipFile, filename: str) -> bytes:
    parts: list[bytes] = []
    size = 0
    while part := file.read(1 << 22):
        parts.append(part)
        size += len(part)
        if size > _MAXIMUM_BYTES:
            raise ResourceError(f"{filename} holds more than {_MAXIMUM_BYTES >> 30} GiB, the most that a module may")
    return b"".join(parts)


def _decoded(data: bytes, filename: str) -> str:
    """The text that bytes hold, in UTF-8."""
    try:
        if b"\0" not in data:
            return data.decode("utf-8-sig")
        where, what = data.index(b"\0"), "a zero byte"
    except UnicodeDecodeError as error:
        where, what = error.start, f"the byte 0x{data[error.start]:02x}, which is not UTF-8,"
    suffixes = filename.lower().removesuffix(".gz").rsplit(".", 1)
    if suffixes[-1] in ("pb", "hlo_proto", "hlo") or data[:1] == b"\n":
        raise UnsupportedError(
            f"{filename} looks like a serialized protocol buffer (HloModuleProto), which hloexec does not read yet; "
            f"give it HLO text"
        )
    raise InputError(f"{filename} is not text ({what} at offset {where}); expected a file of HLO text")
