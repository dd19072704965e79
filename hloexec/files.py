"""Writing files so that nobody ever sees half of one."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

__all__ = ["open_atomically"]


@contextmanager
def open_atomically(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """A binary file to write that takes its name only when the block ends well.

    It is written under a temporary name in the same folder and renamed; on any exception the temporary file is removed
    and what was there before stays. A path that exists but is no regular file (`/dev/stdout`, a pipe) is written
    directly. Raises OSError, nothing else of its own.
    """
    target = os.path.realpath(path)
    try:
        is_regular = stat.S_ISREG(os.stat(target).st_mode)
    except FileNotFoundError:
        is_regular = True
    if not is_regular:
        with open(target, "wb") as file:
            yield file
        return
    folder, name = os.path.split(target)
    temporary = os.path.join(folder, f".{name[:100]}.{secrets.token_hex(6)}.tmp")
    try:
        with open(temporary, "xb") as file:
            yield file
        os.replace(temporary, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
