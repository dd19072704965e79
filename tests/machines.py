"""Runs tests as on other machines: processors with fewer instructions, and other libraries that make use of them.

    python -m tests.machines --list
    python -m tests.machines haswell -n 2 -m 'not slow' tests/numerics
    python -m tests.machines 2 -n 2 -m 'not slow' tests/numerics

NumPy, OpenBLAS, oneDNN, XLA and the C library each choose their code by the processor, and add in another order or round
otherwise on another one. Environment variables make them choose as on an older processor; a processor that is newer than
this one cannot be had. What follows the name, or
the number of machines, goes to pytest.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import attrs
import numpy as np

_CPU: Mapping[str, bool] = np._core._multiarray_umath.__cpu_features__  # type: ignore[attr-defined]
_DISPATCHED: Sequence[str] = np._core._multiarray_umath.__cpu_dispatch__  # type: ignore[attr-defined]

_AVX = ("AVX",)
_AVX2 = (*_AVX, "F16C", "FMA3", "AVX2", "X86_V3")
_AVX512 = (*_AVX2, "AVX512F", "AVX512CD", "AVX512_SKX", "X86_V4")
_OLD = ("SSSE3", "SSE41", "POPCNT", "SSE42")
"""What NumPy may be told to leave out, but processors of this century have."""


@attrs.frozen
class Machine:
    """A processor that this one can stand for."""

    needs: str
    """The feature that this processor must have, by NumPy's name."""
    features: tuple[str, ...]
    """What NumPy may use besides the oldest instructions."""
    core: str
    """OpenBLAS's name of it."""
    isa: str
    """XLA's name of its instructions."""
    onednn_isa: str
    glibc: tuple[str, ...]
    """What the C library may not use."""
    threads: int | None = None
    """Of OpenBLAS."""

    def reason(self) -> str:
        """Why this processor cannot stand for it; empty where it can."""
        if not _CPU.get(self.needs):
            return f"this processor lacks {self.needs}"
        return "" if _multiplies(self.core) else f"OpenBLAS crashes in what it has for {self.core}"

    def environment(self) -> dict[str, str]:
        """The variables that make the libraries choose as on this machine."""
        kept = {*_OLD, *self.features}
        disabled = [name for name in _DISPATCHED if name not in kept and _CPU.get(name)]
        flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if "xla_cpu_max_isa" not in flag]
        found = {
            "NPY_DISABLE_CPU_FEATURES": " ".join(disabled),
            "OPENBLAS_CORETYPE": self.core,
            "ONEDNN_MAX_CPU_ISA": self.onednn_isa,
            "XLA_FLAGS": " ".join([*flags, f"--xla_cpu_max_isa={self.isa}"]),
            "GLIBC_TUNABLES": "glibc.cpu.hwcaps=" + ",".join(f"-{name},-{name}_Usable" for name in self.glibc),
        }
        return found if self.threads is None else {**found, "OPENBLAS_NUM_THREADS": str(self.threads)}


@cache
def _multiplies(core: str) -> bool:
    """Whether OpenBLAS multiplies matrices as on a processor: 0.3.34 ends the process on some that it is not made for."""
    program = "import numpy as np; [np.zeros((64, 1024), t) @ np.zeros((1024, 64), t) for t in 'fdFD']"
    environment = {**os.environ, "OPENBLAS_CORETYPE": core, "OPENBLAS_NUM_THREADS": "1"}
    return not subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True).returncode


_BEYOND_SSE = ("AVX", "AVX2", "FMA", "AVX512F")
MACHINES = {
    "prescott": Machine("SSE42", (), "Prescott", "SSE4_2", "SSE41", _BEYOND_SSE),
    "nehalem": Machine("SSE42", (), "Nehalem", "SSE4_2", "SSE41", _BEYOND_SSE, threads=1),
    "sandybridge": Machine("AVX", _AVX, "Sandybridge", "AVX", "AVX", _BEYOND_SSE[1:]),
    "haswell": Machine("AVX2", _AVX2, "Haswell", "AVX2", "AVX2", _BEYOND_SSE[3:]),
    "zen": Machine("AVX2", _AVX2, "Zen", "AVX2", "AVX2", _BEYOND_SSE[3:], threads=1),
    "skylakex": Machine("AVX512_SKX", _AVX512, "SkylakeX", "AVX512", "AVX512_CORE", ()),
    "cooperlake": Machine("AVX512BF16", tuple(_DISPATCHED), "Cooperlake", "AVX512", "AVX512_CORE_BF16", (), threads=8),
}
"""By name; several have the same instructions, and other kernels or numbers of threads of OpenBLAS."""


def main(arguments: Sequence[str]) -> int:
    """Run pytest as on a machine, or on some of those that can be had here, one after the other."""
    parser = argparse.ArgumentParser(prog="python -m tests.machines", description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true", help="list the machines, and which of them can be had here")
    parser.add_argument("machine", nargs="?", help="its name, or how many: others at the next commit")
    parser.add_argument("pytest", nargs=argparse.REMAINDER, help="arguments of pytest")
    given = parser.parse_args(arguments)
    if given.list or given.machine is None:
        for name, machine in MACHINES.items():
            print(f"{name:12} {machine.isa:8} {machine.reason()}".rstrip())
        return 0
    names = _in_turn(int(given.machine)) if given.machine.isdecimal() else [given.machine]
    if names[0] not in MACHINES:
        parser.error(f"there is no machine {given.machine!r}; there are {', '.join(MACHINES)}")
    return max(_run(name, given.pytest) for name in names)


def _in_turn(count: int) -> list[str]:
    """So many of the machines that can be had here: others than at the commit before, and the first one with Python 3.11
    is none that comes first with a later one, where packages may leave fewer."""
    counted = subprocess.run("git rev-list --count HEAD".split(), capture_output=True, text=True, check=False)
    turn = int(counted.stdout or 0)
    first = (turn + (sys.version_info >= (3, 12))) % 2
    found = []
    for part in ([*MACHINES][first::2], [*MACHINES][1 - first :: 2]):
        here = [name for name in part if not MACHINES[name].reason()]
        start = turn // 2 % max(1, len(here))
        found += here[start:] + here[:start]
    return found[:count]


def _run(name: str, arguments: Sequence[str]) -> int:
    machine = MACHINES[name]
    if reason := machine.reason():
        print(f"{name} cannot be had here: {reason}", file=sys.stderr)
        return 2
    print(f"as {name}: {' '.join(f'{key}={value!r}' for key, value in machine.environment().items())}", flush=True)
    environment = {**os.environ, **machine.environment()}
    root = Path(__file__).resolve().parents[1]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *arguments], cwd=root, env=environment, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
