"""Modules with the buffer assignments that XLA made for them."""

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import attrs
import pytest

from conformance.xla import available
from hloexec.analysis.buffers import load_buffer_assignment
from hloexec.core.ir.buffer_assignment import BufferAssignment
from tests.text.seeds import seed_path

_ROOT = Path(__file__).resolve().parents[2]
_PARTS = ("buffer-assignment", "buffer-assignment-values", "live-range", "memory-usage-report")


@attrs.frozen
class Dump:
    """The files of one module."""

    module: Path
    parts: tuple[Path, ...]

    @property
    def name(self) -> str:
        return self.module.name.partition(".cpu")[0]

    def assignment(self) -> BufferAssignment:
        return load_buffer_assignment(*self.parts)


def seed_dump() -> Dump:
    """The module for four TPUs and its assignment; skips the test where they are not there."""
    module, assignment = seed_path("004_915eaf8d7a870eb5.txt"), seed_path("003_b0117d631587537a.txt")
    if module is None or assignment is None:
        pytest.skip("the real dumps are not here; HLOEXEC_SEEDS names the folder that holds them")
    return Dump(module, (assignment,))


def xla_dumps() -> list[Dump]:
    """What XLA:CPU dumps for `tests.buffers.programs`; skips the test where there is no jaxlib."""
    if not available():
        pytest.skip("jaxlib is not installed")
    pytest.importorskip(
        "scipy", reason="scipy is not installed: one of the programs calls LAPACK, for which jaxlib needs it"
    )
    return _xla_dumps()


@cache
def _xla_dumps() -> list[Dump]:
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    # LLVM's passes come after what is dumped.
    flags = f'--xla_dump_to="{folder}" --xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0'
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "tests.buffers.programs"]
    done = subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    dumps = []
    for module in sorted(folder.glob("*.cpu_after_optimizations.txt")):
        parts = (module.with_name(f"{module.stem}-{part}.txt") for part in _PARTS)
        dumps.append(Dump(module, tuple(part for part in parts if part.is_file())))
    return dumps
