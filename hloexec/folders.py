"""Folders that a command fills: never one with something in it, and never more than the disk takes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from hloexec.errors import InputError, ResourceError

__all__ = ["free_bytes", "new_folder", "require_new_folder", "require_room"]

_RESERVE = 64 << 20
"""Bytes of a disk that are left to others."""


def require_new_folder(path: str | os.PathLike[str]) -> None:
    """Raise InputError where `new_folder` could not make the folder, so that nobody finds out after an hour's run."""
    folder = Path(path)
    if not os.fspath(path):
        raise InputError("the name of the folder to write is empty")
    try:
        if folder.is_dir():
            if any(folder.iterdir()):
                raise InputError(f"{os.fspath(path)!r} is not empty; name a new folder, or remove what is in it")
            parent = folder
        elif folder.exists() or folder.is_symlink():
            raise InputError(f"{os.fspath(path)!r} is a file, not a folder")
        else:
            parent = _existing_parent(folder)
    except OSError as error:
        raise InputError(f"cannot write {os.fspath(path)!r}: {error.strerror or error}") from error
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"cannot write {os.fspath(path)!r}: {os.fspath(parent)!r} takes no new files")


def new_folder(path: str | os.PathLike[str]) -> Path:
    """Make a folder, with those above it; InputError where it cannot be, or has something in it."""
    require_new_folder(path)
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {os.fspath(path)!r}: {error.strerror or error}") from error
    return Path(path)


def free_bytes(path: str | os.PathLike[str]) -> int:
    """What may still be written to a folder that is there or is to be made, a reserve left aside."""
    return max(0, shutil.disk_usage(_existing_parent(Path(path))).free - _RESERVE)


def require_room(path: str | os.PathLike[str], needed: int, limit: int | None, what: str, advice: str) -> None:
    """Raise ResourceError where `needed` bytes are more than `limit`, or than the folder's disk has free."""
    from hloexec.system_memory import in_units

    free = free_bytes(path)
    is_limited = limit is not None and limit < free
    allowed = limit if limit is not None and is_limited else free
    if needed > allowed:
        but = (
            f"more than {in_units(allowed)}, the limit that was given"
            if is_limited
            else (f"but only {in_units(allowed)} are free there")
        )
        raise ResourceError(f"{what} take about {in_units(needed)} in {os.fspath(path)!r}, {but}; {advice}")


def _existing_parent(folder: Path) -> Path:
    for parent in (folder, *folder.absolute().parents):
        if parent.exists():
            return parent
    return Path("/")
