"""Reading a buffer assignment from the files that XLA dumps."""

from __future__ import annotations

import os

from hloexec.core.arguments import require_path
from hloexec.core.ir.buffer_assignment import BufferAssignment
from hloexec.errors import InputError
from hloexec.language.interop.content import decoded, unpacked
from hloexec.language.loading import file_contents
from hloexec.language.text.dumps.buffer_assignment import merge_buffer_assignments, parse_buffer_assignment


def load_buffer_assignment(*paths: str | os.PathLike[str]) -> BufferAssignment:
    """Read a buffer assignment from one file that contains all of it, or from the several files that newer XLA writes.

    These are `…-buffer-assignment.txt`, `…-buffer-assignment-values.txt`, `…-live-range.txt` and
    `…-memory-usage-report.txt`; any subset will do. Files may be gzipped; `-` reads standard input. Raises InputError
    if a file cannot be read or the files do not belong together, and ParseError if one is not a buffer assignment.
    """
    if not paths:
        raise InputError("load_buffer_assignment needs the path of a file, but none was given")
    for path in paths:
        require_path("path", path)
    return merge_buffer_assignments([_read(path) for path in paths])


def _read(path: str | os.PathLike[str]) -> BufferAssignment:
    packed, filename = file_contents(path, "hloexec.parse_buffer_assignment")
    data = unpacked(packed, filename)
    if not data.strip():
        raise InputError(f"{filename} is empty; expected a buffer assignment")
    return parse_buffer_assignment(decoded(data, filename), filename=filename)
