"""Files to read, which are regular ones; files and folders to write: they take their names only when they are whole,
folders must be empty, and what is written must fit on the disk."""

from __future__ import annotations

import errno
import glob
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TypeAlias

from hloexec.core.wording import byte_text
from hloexec.errors import InputError, ResourceError, os_errors_named

FilePath: TypeAlias = str | os.PathLike[str]
"""What names a file or a folder."""

_ABANDONED_SECONDS = 3600
"""What another machine writes to the same disk is younger."""
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
"""Arguments of Linux's renameat2."""

_HANDED_BY_SHELL = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
"""Where standard input and what `<(…)` prints are found."""
_KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
_RESERVE = 64 << 20
"""Bytes of a disk that are left to others."""


def irregularity(path: FilePath) -> str | None:
    """Why a path cannot be read as a file, as a clause: what waits for ever, never ends, or leads nowhere."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return "it is a link to a file that does not exist" if os.path.islink(path) else None
    except OSError as error:
        return error.strerror or str(error)
    return next((f"it is {kind}, not a file" for is_kind, kind in _KINDS if is_kind(mode)), None)


def opened(path: FilePath, *, from_shell: bool = False) -> BinaryIO:
    """A file, opened for reading; OSError where it is no regular one. `from_shell` allows standard input and `<(…)`,
    which can be read once and in order."""
    is_handed = from_shell and os.fspath(path).startswith(_HANDED_BY_SHELL)
    reason = None if is_handed else irregularity(path)
    if reason is not None:
        raise OSError(errno.EINVAL, reason, os.fspath(path))
    return open(path, "rb")


@contextmanager
def open_atomically(path: FilePath) -> Iterator[BinaryIO]:
    """A binary file to write that takes its name only when the block ends well.

    It has no name while it is written, where the system can do that, so that nothing stays of a process that is killed;
    else a temporary name in the same folder, and is removed on any exception. What was there before stays until then.
    A path that exists but is no regular file (`/dev/stdout`, a pipe) is written directly. Raises OSError, nothing else
    of its own.
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


def require_writable(path: FilePath) -> None:
    """Raise InputError if `open_atomically` could not write a file, before a long run instead of after it."""
    name = os.fspath(path)
    if not name:
        raise InputError("the name of the file to write is empty")
    folder = os.path.dirname(os.path.realpath(name) if os.path.islink(name) else name) or os.curdir
    if os.path.isdir(name) or name.endswith(("/", os.sep)):
        raise InputError(f"cannot write {name!r}: it is a folder; name a file in it")
    if not os.path.isdir(folder):
        raise InputError(f"cannot write {name!r}: there is no folder {folder!r}")
    if not os.access(folder, os.W_OK) and not (os.path.exists(name) and not os.path.isfile(name)):
        raise InputError(f"cannot write {name!r}: {folder!r} cannot be written to")


_OTHER_FORMATS = frozenset(
    "bc csv dot gif gz hlo htm html jpeg jpg json jsonl md mlir mlirbc npy npz onnx pb pdf pickle pkl png ps py svg "
    "tar tex txt xml xz yaml zip zst".split()
)
"""The endings of files' names that say what is in them."""


def require_ending(path: FilePath, subject: str, endings: tuple[str, ...]) -> None:
    """Raise InputError where the name of a file ends like those of another format than what is written to it."""
    name = os.fspath(path)
    ending = os.path.splitext(name)[1].removeprefix(".").lower()
    if ending in _OTHER_FORMATS and ending not in endings:
        instead = f"{os.path.splitext(name)[0]}.{endings[0]}"
        raise InputError(f"{name!r} ends like a file of another format: {subject} is written, so name it {instead!r}")


def require_new_folder(path: FilePath) -> None:
    """Raise InputError if `new_folder` could not make the folder, before a long run instead of after it."""
    folder = Path(path)
    if not os.fspath(path):
        raise InputError("the name of the folder to write is empty")
    with os_errors_named(f"write {os.fspath(path)!r}"):
        # In this order, as another process may make the folder meanwhile.
        if not os.path.lexists(folder):
            parent = _existing_parent(folder)
        elif not folder.is_dir():
            raise InputError(f"{os.fspath(path)!r} is a file, not a folder")
        elif any(folder.iterdir()):
            raise InputError(f"{os.fspath(path)!r} is not empty; name a new folder, or remove what is in it")
        else:
            parent = folder
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise InputError(f"cannot write {os.fspath(path)!r}: {os.fspath(parent)!r} cannot be written to")


def new_folder(path: FilePath) -> Path:
    """Make a folder, with those above it; InputError where it cannot be, or has something in it."""
    require_new_folder(path)
    with os_errors_named(f"make the folder {os.fspath(path)!r}"):
        os.makedirs(path, exist_ok=True)
    return Path(path)


@contextmanager
def whole_folder(path: FilePath, *, replace: bool = False) -> Iterator[Path]:
    """A folder to fill, which takes its name only when the block ends well.

    On any exception nothing stays of it. Of several processes the first wins and the others get InputError, unless they
    `replace` what is there: then the last one does. Raises InputError where the disk takes no more.
    """
    try:
        target = Path(os.path.realpath(path))
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(target)
        # What is replaced looks empty, too, while another process that has replaced it removes it.
        is_inside = not replace and target.is_dir() and not any(target.iterdir())
        temporary = (
            target if is_inside else target.parent
        ) / f".{target.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp"
        try:
            temporary.mkdir()
            yield temporary
            if is_inside:
                _move_up(temporary)
            elif replace and target.exists():
                _exchange(temporary, target)
            else:
                temporary.rename(target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except InputError as error:
        raise type(error)(error.message.replace(os.fspath(temporary), os.fspath(path))) from error
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        reason = error.strerror if isinstance(error, OSError) else error
        if isinstance(error, OSError) and error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            reason = "another process has written it meanwhile, and it is kept"
        raise InputError(f"cannot write {os.fspath(path)!r}: {reason}") from error


def link_or_copy(source: FilePath, target: FilePath) -> None:
    """Another name for a file, or a copy of it where the disk cannot give it one; OSError where neither can be."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _move_up(folder: Path) -> None:
    """Move what is in a folder to the one that it is in, which has nothing else."""
    if any(other != folder for other in folder.parent.iterdir()):
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))
    for file in folder.iterdir():
        file.rename(folder.parent / file.name)


def _exchange(folder: Path, target: Path) -> None:
    """Let two folders change names: at once where the system can do that, so that there is no moment without one."""
    import ctypes

    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None) if os.name == "posix" else None
    names = os.fsencode(folder), os.fsencode(target)
    if renameat2 is None or renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE):
        old = folder.with_suffix(".old")
        target.rename(old)
        try:
            folder.rename(target)
        except BaseException:
            old.rename(target)
            raise
        old.rename(folder)


def _remove_abandoned(target: Path) -> None:
    """Remove what processes have left that were killed while they wrote `target`."""
    for left in target.parent.glob(f".{glob.escape(target.name)}.*-*.tmp"):
        number = left.name.removeprefix(f".{target.name}.").partition("-")[0]
        try:
            is_old = time.time() - left.stat().st_mtime > _ABANDONED_SECONDS
        except FileNotFoundError:
            continue  # Another process has just finished.
        if number.isdecimal() and is_old and not Path(f"/proc/{number}").exists() and Path("/proc/self").exists():
            shutil.rmtree(left, ignore_errors=True)


def free_bytes(path: FilePath) -> int:
    """What may still be written to a folder that is there or is to be made, a reserve left aside."""
    return max(0, shutil.disk_usage(_existing_parent(Path(path))).free - _RESERVE)


def require_room(path: FilePath, needed: int, limit: int | None, subject: str, advice: str) -> None:
    """Raise ResourceError where `needed` bytes are more than `limit`, or than the folder's disk has free."""
    free = free_bytes(path)
    is_limited = limit is not None and limit < free
    allowed = limit if limit is not None and is_limited else free
    if needed > allowed:
        but = (
            f"more than {byte_text(allowed)}, the limit that was given"
            if is_limited
            else (f"but only {byte_text(allowed)} are free there")
        )
        raise ResourceError(f"{subject} take about {byte_text(needed)} in {os.fspath(path)!r}, {but}; {advice}")


def _existing_parent(folder: Path) -> Path:
    for parent in (folder, *folder.absolute().parents):
        if parent.exists():
            return parent
    return Path("/")
