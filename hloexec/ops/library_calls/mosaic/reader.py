"""The process that reads MLIR bytecode: started for the first kernel, and again after bytecode that made it crash.

A message is its length, as eight bytes, and what it says: to the process bytecode, behind a byte that says whether
text is wanted; from it JSON (`bytecode.py`).
"""

from __future__ import annotations

import atexit
import os
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

_PROGRAM = Path(__file__).with_name("bytecode.py")
_SECONDS = 60.0
"""What a kernel may take to be read; those of large models take one or two."""
_LENGTH = struct.Struct("<Q")


class Reader:
    """One process at most; it ends with this one, and one that a fork has inherited is left alone."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._lock = threading.Lock()

    def answer(self, bytecode: bytes, *, is_text: bool = False) -> bytes | None:
        """What `bytecode.py` answers, JSON; None where it crashed, or took too long."""
        with self._lock:
            process = self._started()
            assert process.stdin is not None and process.stdout is not None
            # Damaged bytecode can keep it busy forever, too.
            end = threading.Timer(_SECONDS, process.kill)
            end.start()
            try:
                process.stdin.write(_LENGTH.pack(len(bytecode)) + bytes([is_text]) + bytecode)
                process.stdin.flush()
                (length,) = _LENGTH.unpack(process.stdout.read(_LENGTH.size))
                return process.stdout.read(length)
            except (OSError, struct.error):
                self.close()
                return None
            finally:
                end.cancel()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._owner != os.getpid() or self._process.poll() is not None:
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TF_CPP_MIN_LOG_LEVEL": "3"}
            # -P, as this folder's files are no modules of the process.
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
            )
            self._owner = os.getpid()
        return self._process

    def close(self) -> None:
        """End the process, if there is one of this process."""
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()


READER = Reader()
atexit.register(READER.close)
