"""Takes what Windows and macOS lack from a Python process on Linux that finds this file when it starts.

The standard library keeps what it needs of it here: what starts processes, or is made for each system, is imported
first.
"""

import concurrent.futures.thread
import ctypes
import errno
import mmap
import multiprocessing.connection
import os
import platform
import random
import select
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from typing import Any

import click
import numpy as np
import rich.console
import rich.progress

_LOADED = (concurrent.futures.thread, multiprocessing.connection, random, tempfile, click, rich.console, rich.progress)
_MODULES = "_curses curses fcntl grp posix pty pwd readline resource spwd syslog termios tty".split()
_FUNCTIONS_OF_C = {"mallopt", "malloc_trim", "renameat2"}
_FOLDERS = ("/proc/", "/sys/")
_OF_OS = """
    DirEntry F_OK GenericAlias Mapping MutableMapping O_APPEND O_CREAT O_EXCL O_RDONLY O_RDWR O_TRUNC O_WRONLY P_NOWAIT
    P_WAIT PathLike R_OK SEEK_CUR SEEK_END SEEK_SET TMP_MAX W_OK X_OK abc abort access altsep chdir chmod close
    closerange cpu_count curdir defpath device_encoding devnull dup dup2 environ error execl execle execlp execlpe execv
    execve execvp execvpe extsep fdopen fsdecode fsencode fspath fstat fsync ftruncate get_exec_path get_inheritable
    get_terminal_size getcwd getcwdb getenv getlogin getpid getppid isatty kill linesep link listdir lseek lstat makedirs
    mkdir name open pardir path pathsep pipe popen process_cpu_count putenv read readlink remove removedirs rename
    renames replace rmdir scandir sep set_inheritable spawnl spawnle spawnv spawnve st stat stat_result strerror
    supports_bytes_environ supports_dir_fd supports_effective_ids supports_fd supports_follow_symlinks symlink sys system
    terminal_size times times_result truncate umask unlink unsetenv urandom utime waitpid waitstatus_to_exitcode walk
    write
"""
"""What `os` has on Windows, of what it has on Linux."""
_OF_SIGNAL = """
    Handlers NSIG SIGABRT SIGFPE SIGILL SIGINT SIGSEGV SIGTERM SIG_DFL SIG_IGN Signals default_int_handler getsignal
    raise_signal set_wakeup_fd signal strsignal valid_signals
"""
_OF_TIME = """
    altzone asctime ctime daylight get_clock_info gmtime localtime mktime monotonic monotonic_ns perf_counter
    perf_counter_ns process_time process_time_ns sleep strftime strptime struct_time thread_time thread_time_ns time
    time_ns timezone tzname
"""


def _keep(module: Any, names: str) -> None:
    kept = names.split()
    for name in [name for name in vars(module) if not name.startswith("_") and name not in kept]:
        delattr(module, name)


class _Library(ctypes.CDLL):
    """The C library of another system."""

    def __getattr__(self, name: str) -> Any:
        if name in _FUNCTIONS_OF_C:
            raise AttributeError(name)
        return super().__getattr__(name)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """What Python asks before it opens a file or a folder."""
    path = arguments[0] if event in ("open", "os.listdir", "os.scandir") else None
    if isinstance(path, (str, os.PathLike)) and f"{os.fspath(path)}/".startswith(_FOLDERS):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _asking(function: Any) -> Any:
    def asked(path: Any, **options: Any) -> Any:
        _refuse("open", (path,))
        return function(path, **options)

    return asked


def _disk_usage(path: Any, statvfs: Any = os.statvfs) -> Any:
    found = statvfs(path)
    return shutil._ntuple_diskusage(found.f_blocks * found.f_frsize, 0, found.f_bavail * found.f_frsize)


def _take_away() -> None:
    platform.uname(), sysconfig.get_config_vars()  # They are kept.
    for name in _MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    shutil._use_fd_functions = False  # type: ignore[attr-defined]
    shutil.disk_usage = _disk_usage
    subprocess._USE_POSIX_SPAWN = False  # type: ignore[misc]
    subprocess.Popen.kill = lambda self: self.send_signal(9)  # type: ignore[method-assign]
    _keep(os, f"{_OF_OS} WIFSTOPPED WNOHANG WSTOPSIG O_NONBLOCK")  # The last are for `subprocess` and `shutil`.
    os.supports_dir_fd, os.supports_fd = set(), set()
    os.stat, os.lstat = _asking(os.stat), _asking(os.lstat)
    _keep(signal, _OF_SIGNAL)
    _keep(mmap, "ACCESS_COPY ACCESS_DEFAULT ACCESS_READ ACCESS_WRITE ALLOCATIONGRANULARITY PAGESIZE error mmap")
    _keep(select, "error select")
    _keep(time, _OF_TIME)
    ctypes.CDLL = _Library  # type: ignore[misc]
    np.longdouble, np.clongdouble = np.float64, np.complex128  # type: ignore[assignment]
    sys.addaudithook(_refuse)
    sys.platform = "win32"


_take_away()
