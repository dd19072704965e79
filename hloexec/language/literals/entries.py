"""The entries of a file of values, in whichever format: `.npz`, `.npy`, or a literal as XLA writes it."""

from __future__ import annotations

import os
from collections.abc import Iterator

from hloexec.core.arguments import require_path
from hloexec.core.files import FilePath, opened
from hloexec.errors import LiteralError
from hloexec.language.literals.npz import Entry, npz_entries

_MAGIC = (b"PK", b"\x93N")
_SUFFIXES = (".npz", ".npy")


def holds_values(path: FilePath) -> bool:
    """Whether a file is one of values rather than one of a module, by its name or its content."""
    from hloexec.language.literals.xla import holds_literal

    filename = os.fspath(path)
    if filename.lower().endswith(_SUFFIXES):
        return True
    try:
        with opened(path) as file:
            return file.read(2) in _MAGIC or holds_literal(path)
    except OSError:
        return False  # which may be a module that a shell hands over


def entries(path: FilePath) -> Iterator[Entry]:
    """The entries of a file, with keys as `hloexec.literals` documents them; LiteralError where it holds no values."""
    from hloexec.language.literals.xla import holds_literal, literal_entries

    require_path("path", path)
    filename = os.fspath(path)
    try:
        with opened(path) as file:
            is_numpy = file.read(2) in _MAGIC
        if not is_numpy and holds_literal(path):
            yield from literal_entries(path)
            return
    except OSError as error:
        raise LiteralError(f"cannot read {filename!r}: {error.strerror or error}") from error
    if not is_numpy and not filename.lower().endswith(_SUFFIXES):
        raise LiteralError(
            f"{filename!r} holds no values: it is no .npz or .npy file, no serialized LiteralProto, and no text such "
            "as f32[2] {1, 2}; of numbers without type and shape, numpy.save makes a .npy file"
        )
    yield from npz_entries(path)
