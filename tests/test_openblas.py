"""What NumPy's OpenBLAS says of itself."""

from pathlib import Path

from hloexec.core.process import openblas_kernels


def test_the_kernels_of_numpy_are_known_by_name() -> None:
    maps = Path("/proc/self/maps")
    name = openblas_kernels()
    loaded = maps.read_text().splitlines() if maps.exists() else []
    assert bool(name) == any("openblas" in line.rpartition("/")[2] for line in loaded)
