"""What `Diff.extract` gives: the part of either module that shows a difference, on one set of inputs."""

from __future__ import annotations

import json
import os

from hloexec.core.arguments import require_path
from hloexec.core.files import require_new_folder, whole_folder
from hloexec.core.ir import Module
from hloexec.core.structs import frozen
from hloexec.core.values import Described, Value
from hloexec.language import literals
from hloexec.ops.policies.policy import NumericsPolicy


@frozen(eq=False)
class ExtractedPair(Described):
    """Two small modules of the same parameters, whose results differ; `hloexec.diff` compares them."""

    before: Module | None
    """What gives the right value; None where nothing corresponds, or it cannot stand alone."""
    after: Module
    """What is to blame or, if that is not one instruction, its region."""
    inputs: list[list[Value]]
    """One list with a value per parameter for each device of the modules. Where both modules have a value up to
    rounding, it is that of `before`."""
    before_path: str | None
    """Which run of an instruction gives the result of `before`, e.g. `loop[2]:body/fusion.1/add.3`."""
    after_path: str
    """Which run of an instruction gives the result of `after`."""
    device: int
    """The device of the whole modules that the inputs are from, where the new ones are for one."""
    numerics: tuple[NumericsPolicy, NumericsPolicy]
    """The policies of `before` and `after`."""
    notes: tuple[str, ...] = ()
    """What could not be extracted, and why."""
    is_comparable: bool = True
    """Whether the results have the same dimensions and types, so that `hloexec.diff` takes them."""

    def __str__(self) -> str:
        before = "nothing" if self.before_path is None else self.before_path
        return f"{self.after_path} of after, {before} of before"

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write `before.hlo` (if there is one), `after.hlo`, `inputs.npz` and `origin.json` to a new folder.

        Inputs of several devices are in a file each: `inputs.0.npz`, … Raises InputError where the folder has something
        in it or cannot be written.
        """
        from hloexec.language.text import format as format_module

        require_path("folder", folder)
        require_new_folder(folder)
        with whole_folder(folder) as path:
            for name, values in zip(self.input_files, self.inputs, strict=True):
                literals.save(path / name, tuple(values))
            for name, module in (("before", self.before), ("after", self.after)):
                if module is not None:
                    (path / f"{name}.hlo").write_bytes(format_module(module).encode())
            text = json.dumps(self._origin(), indent=2, ensure_ascii=False)
            (path / "origin.json").write_text(f"{text}\n", encoding="utf-8")

    @property
    def input_files(self) -> tuple[str, ...]:
        """The names of the files of inputs."""
        if len(self.inputs) == 1:
            return ("inputs.npz",)
        return tuple(f"inputs.{device}.npz" for device in range(len(self.inputs)))

    def _origin(self) -> dict[str, object]:
        return {
            "before_path": self.before_path,
            "after_path": self.after_path,
            "device": self.device if len(self.inputs) == 1 else None,
            "devices": len(self.inputs),
            "numerics_before": self.numerics[0].name,
            "numerics_after": self.numerics[1].name,
            "notes": list(self.notes),
        }
