"""What is measured, as files for the contestants: the JAX programs, and dumps where a folder of them is named."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import Any

import attrs
import ml_dtypes
import numpy as np

from benchmarks.agreement import stirred
from benchmarks.arrays import write_arrays

_ROOT = Path(__file__).resolve().parent.parent

DUMPS = {
    "dump-001": ("001_83a80cec1e7cc5e6.txt", 1),
    "dump-002": ("002_2b3b731b0feb0bfe.txt", 1),
    "dump-004": ("004_915eaf8d7a870eb5.txt", 4),
}
"""Name → file, and the devices it runs on: of 001, which is for eight replicas, one."""

_FLOATS = {"f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16}


@attrs.frozen
class Subject:
    """A module's files: HLO for hloexec, StableHLO for its peers (or HLO that XLA:CPU takes), inputs for both."""

    name: str
    hlo: Path
    peer: Path
    inputs: Path
    stirred_inputs: Path
    unit: float
    """The unit roundoff of the narrowest float type in the module."""
    elements: int
    """Of the largest array in the module: no sum has more terms."""
    devices: int = 1


def examples() -> list[Path]:
    """The example modules of this repository."""
    return sorted(_ROOT.glob("examples/*.hlo"))


def dumps() -> list[Path]:
    """HLO dumps in the folder that HLOEXEC_SEEDS names, or in `shared/seeds` beside or above the repository."""
    named = os.environ.get("HLOEXEC_SEEDS")
    folders = [Path(named)] if named else [parent / "shared" / "seeds" for parent in (_ROOT, *_ROOT.parents)]
    for folder in folders:
        if folder.is_dir():
            return sorted(path for path in folder.glob("*.txt") if path.read_bytes().startswith(b"HloModule"))
    return []


def subject_names() -> tuple[list[str], list[str]]:
    """What is measured without being named, and what only when it is (004 takes minutes a run)."""
    from benchmarks.programs import PROGRAMS

    present = {path.name for path in dumps()}
    found = [name for name, (file, _) in DUMPS.items() if file in present]
    return [*PROGRAMS, *(name for name in found if name != "dump-004")], [name for name in found if name == "dump-004"]


def subject(name: str, folder: Path, scale: float = 1.0) -> Subject:
    """Write a subject's files to `folder`; `scale` is for programs, a dump has its own size."""
    if name in DUMPS:
        hlo, peer, suffix = *_dump(name), "hlo"
    else:
        from benchmarks.programs import hlo_text, stablehlo_text

        hlo, peer, suffix = hlo_text(name, scale), stablehlo_text(name, scale), "mlir"
    devices = DUMPS[name][1] if name in DUMPS else 1
    stem = f"{name}-{scale:g}"
    made = Subject(
        name,
        folder / f"{stem}.hlo",
        folder / f"{stem}.peer.{suffix}",
        folder / f"{stem}.inputs",
        folder / f"{stem}.stirred",
        _unit(hlo),
        _largest_array(hlo),
        devices,
    )
    made.hlo.write_text(hlo, encoding="utf-8")
    made.peer.write_text(peer, encoding="utf-8")
    inputs = _inputs(hlo, devices)
    write_arrays(made.inputs, inputs)
    write_arrays(made.stirred_inputs, stirred(inputs, made.unit))
    return made


def _inputs(text: str, devices: int) -> list[np.ndarray[Any, Any]]:
    """Random inputs, device after device, each with a seed of its own."""
    import hloexec

    module = hloexec.parse(text)
    arrays: list[np.ndarray[Any, Any]] = []
    for device in range(devices):
        for value in hloexec.random_inputs(module, seed=device):
            if not isinstance(value, np.ndarray):
                raise ValueError("a contestant's inputs are arrays, not tuples")
            arrays.append(value)
    return arrays


def _dump(name: str) -> tuple[str, str]:
    """The text for hloexec, and the equivalent that XLA:CPU takes."""
    from conformance import xla

    file, devices = DUMPS[name]
    text = next(path for path in dumps() if path.name == file).read_text(encoding="utf-8")
    if devices == 1:
        text = re.sub(r"replica_groups=\{\{[0-9,{}]*\}\}", "replica_groups={{0}}", text)
        text = re.sub(r"\breplica_count=\d+", "replica_count=1", text, count=1)
    return text, xla.equivalent_module(text)


def _unit(text: str) -> float:
    present = [name for name in _FLOATS if re.search(rf"\b{name}\[", text)] or ["f32"]
    return max(float(ml_dtypes.finfo(_FLOATS[name]).eps) for name in present) / 2


def _largest_array(text: str) -> int:
    return max((math.prod(map(int, sizes.split(","))) for sizes in re.findall(r"\w\[([\d,]+)\]", text)), default=1)
