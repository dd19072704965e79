"""Detecting a file's format by its first bytes, not by its name: text, MLIR, protocol buffers, exports of
JAX, gzip."""

from __future__ import annotations

import enum
import io
import os
import re
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, BinaryIO

from hloexec.core.wording import byte_text
from hloexec.errors import InputError, LiteralError

if TYPE_CHECKING:
    from gzip import GzipFile

_GZIP_MAGIC = b"\x1f\x8b"
_OTHERS_PACKED = {b"\xfd7zXZ\0": "xz", b"BZh": "bzip2", b"\x28\xb5\x2f\xfd": "zstd"}
"""What files begin with that other programs have compressed."""
_ARRAYS_MAGIC = (b"PK\x03\x04", b"\x93NUMPY")
_BUFFER_ASSIGNMENT_START = re.compile(
    rb"BufferAssignment:|Used values:\s|HloLiveRange \(max |Memory Space: |Total bytes(?: used)?: \d"
)
_MLIR_BYTECODE_MAGIC = b"ML\xefR"
_UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")
_UTF_16_BE = re.compile(rb"(?:\0[\t\n\r -~]){8}")
"""How a text in UTF-16 begins that has no mark; no protocol buffer begins with a zero."""
_SPACE = re.compile(rb"(?:\s+|//[^\n]*|\xef\xbb\xbf)*")
_MLIR_START = re.compile(
    rb'module\b|"?builtin\.module"?|"?func\.func"?|"?(?:stablehlo|vhlo|mhlo)\.|#[\w.]+ ?=|![\w.]+ ?='
)
_MLIR_WORD = re.compile(
    rb"\b(?:func\.func|builtin\.module|(?:stablehlo|mhlo|vhlo|sdy|chlo)\.\w)|^\s*module\s+@", re.MULTILINE
)
_CONTROL = re.compile(rb"[\0-\x08\x0e-\x1a\x1c-\x1f]")
_MOST_BYTES = 4 << 30
_MOST_RATIO, _ALWAYS_UNPACKED = 50, 256 << 20
"""Modules are text or numbers, of which gzip leaves a tenth or more; small files may hold whatever zeros they like."""


class Format(enum.Enum):
    """The formats of modules, and of related files."""

    HLO_TEXT = "HLO text"
    MLIR_TEXT = "MLIR text"
    MLIR_BYTECODE = "MLIR bytecode"
    PROTO = "a protocol buffer"
    EXPORT = "a function that jax.export has serialized"
    ARRAYS = "arrays of NumPy"
    BUFFER_ASSIGNMENT = "a buffer assignment"


def detect(data: bytes) -> Format:
    """The format of unpacked bytes; what is none of the others counts as a protocol buffer."""
    if data.startswith(_ARRAYS_MAGIC):
        return Format.ARRAYS
    if data.startswith(_MLIR_BYTECODE_MAGIC):
        return Format.MLIR_BYTECODE
    start = _SPACE.match(data)
    first = start.end() if start is not None else 0
    if data.startswith(b"HloModule", first):
        return Format.HLO_TEXT
    if _BUFFER_ASSIGNMENT_START.match(data, first):
        return Format.BUFFER_ASSIGNMENT
    if _CONTROL.search(data, 0, 4096):
        from hloexec.language.interop.through_jaxlib import is_export

        return Format.EXPORT if is_export(data) else Format.PROTO
    # A computation of HLO may be called "module", so the first word alone decides nothing.
    if _MLIR_START.match(data, first) and _MLIR_WORD.search(data):
        return Format.MLIR_TEXT
    return Format.HLO_TEXT


def mentions_mlir(data: bytes) -> bool:
    """Whether a text that is no MLIR as a whole may have some in it, and no module of HLO."""
    return b"HloModule" not in data and _MLIR_WORD.search(data) is not None


def require_unpackable(filename: str, packed: int, size: int) -> None:
    """LiteralError where so many packed bytes are far more once unpacked than numbers are that say something."""
    most = max(_MOST_RATIO * packed, _ALWAYS_UNPACKED)
    if size > most:
        raise LiteralError(f"{filename} holds more than {byte_text(most)}, {_MOST_RATIO} times what it holds packed")


def require_unpacked(data: bytes, filename: str) -> None:
    """InputError, with the name of the program, where another than gzip has compressed what is no text."""
    for magic, program in _OTHERS_PACKED.items():
        if data.startswith(magic):
            raise InputError(f"{filename} is compressed with {program}: unpack it first")


def unpacked(data: bytes, filename: str) -> bytes:
    """The bytes under any layers of gzip; a text in UTF-16, as PowerShell writes the output of commands, in UTF-8."""
    most = min(_MOST_BYTES, max(_MOST_RATIO * len(data), _ALWAYS_UNPACKED))
    while data.startswith(_GZIP_MAGIC):
        from gzip import GzipFile

        try:
            data = read_limited(GzipFile(fileobj=io.BytesIO(data)), filename, most)
        except (OSError, EOFError, zlib.error) as error:
            raise InputError(f"cannot unpack {filename}, which starts like a gzip file: {error}") from error
    encoding = "utf-16-be" if _UTF_16_BE.match(data) else "utf-16" if data.startswith(_UTF_16_MARKS) else None
    if encoding is not None:
        with suppress(UnicodeDecodeError):
            return data.decode(encoding).encode()
    return data


def read_limited(file: BinaryIO | GzipFile, filename: str, most: int = _MOST_BYTES) -> bytes:
    """All bytes of a file; InputError where there are more, which shows of a regular file before it is read."""
    parts: list[bytes] = []
    size = os.fstat(file.fileno()).st_size if isinstance(file, io.BufferedReader) else 0
    if size <= most:
        size = 0
        while size <= most and (part := file.read(1 << 22)):
            parts.append(part)
            size += len(part)
    if size > most:
        much = "more than any module" if most == _MOST_BYTES else f"{_MOST_RATIO} times what it holds packed"
        raise InputError(f"{filename} holds more than {byte_text(most)}, {much}")
    return b"".join(parts)


def decoded(data: bytes, filename: str) -> str:
    """The text that bytes hold, in UTF-8; raises InputError with the place of a byte that is no text."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        byte, line = data[error.start], data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"{filename} is not text: the byte 0x{byte:02x} at offset {error.start}, on line {line}, is not UTF-8"
        ) from error
    if "\0" in text:
        raise InputError(f"{filename} is not text: there is a zero byte at offset {data.index(0)}")
    return text
