"""The result of minifying: a small module, its inputs, and how to see the failure.

A small module as StableHLO text, through jaxlib in a process of its own: what it cannot express may crash XLA.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from hloexec.core.arguments import require_path
from hloexec.core.files import require_new_folder, whole_folder
from hloexec.core.ir import Module, flat_shapes
from hloexec.core.structs import frozen, told
from hloexec.core.values import Described, Value
from hloexec.engine.devices.topology import topology_of
from hloexec.errors import HloError, UnsupportedError
from hloexec.language import literals
from hloexec.language.text import format as format_module

_SECONDS = 60
_CONVERT = """
import sys
from jaxlib import _hlo, _jax
proto = _hlo.hlo_module_from_text(sys.stdin.read()).as_serialized_hlo_module_proto()
print(_jax.mlir.xla_computation_to_mlir_module(_hlo.XlaComputation(proto)))
"""


def stablehlo_text(module: Module) -> str:
    """The module as StableHLO; UnsupportedError without jaxlib, or where XLA does not convert it."""
    if find_spec("jaxlib") is None:
        raise UnsupportedError("jaxlib is not installed; install hloexec[jax]")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "TF_CPP_MIN_LOG_LEVEL": "3"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", _CONVERT],
            input=format_module(module),
            capture_output=True,
            text=True,
            encoding="utf-8",
            env=environment,
            check=False,
            timeout=_SECONDS,
        )
    except (subprocess.TimeoutExpired, UnicodeError) as error:
        raise UnsupportedError(f"XLA does not convert {module.name} to StableHLO: {error}") from error
    if done.returncode or "module" not in done.stdout:
        raise UnsupportedError(f"XLA does not convert {module.name} to StableHLO: {done.stderr.strip()[-200:]}")
    return done.stdout


@frozen(eq=False)
class Minified(Described):
    """A small module that shows what the given one showed."""

    module: Module
    inputs: list[list[Value]] | None
    """A list with a value per parameter for each device; None where the module cannot be run here."""
    other: Module | None
    """The small module that it differs from, on the same inputs."""
    expected: Value | None
    """What the result should be or, where nothing says so, what it is; of several devices a tuple of theirs."""
    failure: str
    """What the module shows, in words."""
    instruction_count: int
    """Instructions beside parameters, constants and what packs and unpacks tuples; in called computations, too."""
    instruction_count_before: int
    """The same of the given module."""
    trial_count: int
    """How many modules were judged."""
    step_count: int
    """How many of them became the smallest so far."""
    seconds: float
    """How long all of it took."""
    is_complete: bool
    """Whether nothing was found that could still go; else the search was ended."""
    is_confirmed: bool
    """Whether the module shows the failure once more, read from its text."""
    outcomes: dict[str, int]
    """How often a check passed, failed, crashed or hung."""
    notes: tuple[str, ...]
    """What is not known of whether the failure is the one that was given."""
    command: tuple[str, ...]
    """The command that shows the failure, in the folder that `save` writes."""

    def __str__(self) -> str:
        return f"{self.instruction_count} of {self.instruction_count_before} instructions: {self.failure}"

    @property
    @told
    def devices(self) -> int:
        """How many devices the small module runs on."""
        return topology_of(self.module).count

    @property
    @told
    def hlo_text(self) -> str:
        """The small module."""
        return format_module(self.module)

    @property
    @told
    def largest_dimension(self) -> int:
        """The largest size of a dimension in the module."""
        sizes = [
            size
            for computation in self.module
            for instruction in computation
            for leaf in flat_shapes(instruction.shape)
            for size in leaf.array_shape.dimensions
        ]
        return max(sizes, default=1)

    @property
    def input_files(self) -> tuple[str, ...]:
        """The names of the files of inputs, one for all devices or one for each."""
        return literals.input_files(len(self.inputs or ()))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write `module.hlo`, `README.md` and, where there are such, `other.hlo`, `inputs.npz`, `expected.npz` and
        `module.mlir` to a new folder.

        Inputs of several devices are in a file each: `inputs.0.npz`, … The last of the files is the module as
        StableHLO, which needs jaxlib and an XLA that can express it so. Raises InputError where the folder has
        something in it or cannot be written.
        """
        require_path("folder", folder)
        require_new_folder(folder)
        stablehlo = _stablehlo(self.module)
        with whole_folder(folder) as path:
            (path / "module.hlo").write_bytes(format_module(self.module).encode())
            if self.other is not None:
                (path / "other.hlo").write_bytes(format_module(self.other).encode())
            for name, row in zip(self.input_files, self.inputs or (), strict=True):
                literals.save(path / name, tuple(row))
            if self.expected is not None:
                literals.save(path / "expected.npz", self.expected)
            if stablehlo is not None:
                (path / "module.mlir").write_text(stablehlo, encoding="utf-8")
            self._write_readme(path)

    def command_in(self, folder: str | os.PathLike[str]) -> tuple[str, ...]:
        """The command as it is given in a folder: files that it names beside the module are found from there."""
        own = {name for name, _ in _FILES}
        return tuple(
            os.path.relpath(word, folder)
            if word not in own and not os.path.isabs(word) and os.path.isfile(word)
            else word
            for word in self.command
        )

    def _write_readme(self, path: Path) -> None:
        present = {file.name for file in path.iterdir()}
        rows = [f"- `{name}`: {description}" for name, description in _FILES if name in present]
        if len(self.input_files) > 1:
            rows.insert(1, "- `inputs.0.npz`, …: the inputs of each device")
        state = "" if self.is_complete else " The search was ended before it was complete."
        text = (
            f"# {self.module.name}\n\n"
            f"{self.failure[:1].upper()}{self.failure[1:]}.\n\n"
            + "".join(f"{note[:1].upper()}{note[1:]}.\n\n" for note in self.notes)
            + "In this folder, this command shows it:\n\n"
            f"```sh\n{shlex.join(self.command_in(path))}\n```\n\n"
            f"{self.instruction_count} of {self.instruction_count_before} instructions are left, parameters and "
            f"constants not counted.{state}\n\n"
            + "\n".join(rows)
            + f"\n\n```\n{_shortened(format_module(self.module))}```\n"
        )
        (path / "README.md").write_text(text, encoding="utf-8")


_FILES = (
    ("module.hlo", "the module"),
    ("other.hlo", "the module that it should agree with"),
    ("inputs.npz", "the inputs"),
    ("expected.npz", "what the result should be or, where nothing says so, what it is on hloexec"),
    ("module.mlir", "the module as StableHLO"),
)
_MOST_LINES = 60


def _shortened(text: str) -> str:
    lines = text.splitlines(keepends=True)
    return text if len(lines) <= _MOST_LINES else "".join(lines[:_MOST_LINES]) + "…\n"


def _stablehlo(module: Module) -> str | None:
    """The module as StableHLO; None without jaxlib, or where it cannot be expressed so."""
    try:
        return stablehlo_text(module)
    except HloError:
        return None
