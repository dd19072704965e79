"""Writing files atomically."""

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

    It has no name while it is written, where the system can do that, so that nothing stays of a process that is killed;
    else a temporary name in the same folder, and is removed on any exception. What was there before stays until then.
    A path that exists but is no regular file (`/dev/stdout`, a pipe) is written
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
    descriptor = _nameless_file(folder)
    try:
        with open(temporary, "xb") if descriptor is None else open(descriptor, "wb") as file:
            yield file
            if descriptor is not None:
                file.flush()
                # With a folder's descriptor, which an absolute path ignores, Python asks the system to follow the link.
                os.link(f"/proc/self/fd/{descriptor}", temporary, src_dir_fd=descriptor)
        os.replace(temporary, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _nameless_file(folder: str) -> int | None:
    """The descriptor of a new file in a folder that has no name yet; None where the system has no such files."""
    if not hasattr(os, "O_TMPFILE") or not os.path.isdir("/proc/self/fd"):
        return None
    try:
        return os.open(folder, os.O_WRONLY | os.O_TMPFILE, 0o666)
    except OSError:
        return None
