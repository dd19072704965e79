"""The result of a diff: the verdict, the instructions to blame, and the values that both modules have in common."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Literal, TypeAlias

import attrs

from hloexec.analysis.numerics.comparison import Comparison, OutputDifference
from hloexec.core.arguments import require_path
from hloexec.core.files import require_new_folder, whole_folder
from hloexec.core.ir import Computation, Instruction, Module
from hloexec.core.places import RunPlace
from hloexec.core.structs import frozen, told
from hloexec.core.values import Described, Value
from hloexec.errors import HloError, InputError
from hloexec.language.origins import hlo_line, source_lines
from hloexec.ops.policies.policy import NumericsPolicy

Verdict: TypeAlias = Literal["agree", "rounding only", "not decided", "differ"]

NOT_REPLAYED = "not every instruction was replayed; that rounding explains the results is all that is known"
"""Of results that agree."""


@frozen
class InstructionText:
    """What an instruction is, as people read it."""

    hlo: str
    op_name: str | None
    source: tuple[str, ...]


@frozen
class InstructionRun:
    """One run of an instruction in one of the modules."""

    computation: str
    instruction: str
    path: str
    """As traces have it, e.g. `while.7[3]:body/fusion.2/add.1`."""
    device: int = 0

    def text(self, module: Module) -> InstructionText:
        """What it is, in the module of its side."""
        return InstructionText(self.line(module), self.op_name(module), self.source(module))

    def of(self, module: Module) -> Instruction:
        """The instruction, in the module of its side."""
        return module.by_name[self.computation].by_name[self.instruction]

    def line(self, module: Module) -> str:
        """Its line of HLO."""
        return hlo_line(self.of(module))

    def source(self, module: Module) -> tuple[str, ...]:
        """Its source lines, the innermost call first."""
        return tuple(map(str, source_lines(module, self.of(module))))

    def op_name(self, module: Module) -> str | None:
        """The name that its framework gave it."""
        return self.of(module).op_name or None


def run_at(computation: Computation, place: RunPlace) -> InstructionRun:
    """What says of a run which it is."""
    return InstructionRun(computation.name, place.instruction, place.name, place.device)


@frozen
class RegionStep:
    """An instruction of a region, or what comes in."""

    run: InstructionRun
    """Which run of which instruction it is."""
    role: Literal["input", "step", "output"]
    """`input` is a value that the region starts from, `output` one that nothing else in the region takes."""
    hlo: str = ""
    operands: tuple[InstructionRun, ...] = ()
    """What it takes, through fusions, calls and loops; of an input, nothing is said."""
    before: InstructionRun | None = None
    """The value of `before` that an input is; None where `before` has none."""


@frozen(eq=False)
class Finding:
    """An instruction whose result is not as it was before, though its operands are or, if it is not certain, may be."""

    after: InstructionRun
    """The instruction of AFTER."""
    before: InstructionRun | None
    """What gave the right value; None where nothing in `before` corresponds."""
    comparison: Comparison | None
    """What the instruction gives on `before`'s operands, compared with what `before` gives; its tolerance is for what
    was computed since values that both have. None where there is no counterpart."""
    is_certain: bool
    """Whether this instruction gives a wrong value on right operands, the results are right once its value is replaced
    by its counterpart's, and nothing that was tried shows that another instruction may be meant."""
    reason: str = ""
    """What distinguishes it, in a few words."""
    region: tuple[InstructionRun, ...] = ()
    """What `after` computed since values that are right, where no single instruction can be told; else empty."""
    graph: tuple[RegionStep, ...] = ()
    """The region as a graph in data-flow order, with the values that it starts from; empty where there is no region."""
    has_right_operands: bool = False
    """Whether what it takes was compared, and is right."""
    modules: tuple[Module, Module] | None = None
    """The modules before and after."""

    @property
    @told
    def after_text(self) -> InstructionText | None:
        """What the instruction of AFTER is."""
        return None if self.modules is None else self.after.text(self.modules[1])

    @property
    @told
    def before_text(self) -> InstructionText | None:
        """What the instruction of BEFORE in its place is."""
        return None if self.modules is None or self.before is None else self.before.text(self.modules[0])


@frozen
class Pair:
    """A value that both modules have."""

    after: InstructionRun
    """Where AFTER has it."""
    before: InstructionRun
    """Where BEFORE has it."""
    is_exact: bool
    """Whether they are the same numbers; else rounding explains the difference."""
    is_in_order: bool
    """Whether the elements have the same order; otherwise dimensions are permuted."""


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
        from hloexec.language import literals
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


@frozen(eq=False, slots=False)
class Diff(Described):
    """Two modules on the same inputs."""

    before: Module
    after: Module
    verdict: Verdict
    """What it comes to."""
    findings: tuple[Finding, ...]
    """In data-flow order, the first being the instruction to blame; empty unless the verdict is `differ`."""
    outputs: Comparison
    """The results, `after`'s compared with `before`'s; what rounding explains is read off `before`."""
    matches: Sequence[Pair]
    """The values of `after` that `before` has, in the order in which `after` computed them."""
    values: int
    """How many values `after` computed that tell something: no constants, copies, or arrays of one number."""
    matched_values: int
    """How many of them `before` has."""
    picture: str
    """Where both agree: a character for each of those values (or the worst of several), in the order of `after`. `█`
    are the same numbers, `▓` but for rounding, `·` is not in `before` but harmless, `?` not in `before` and on the way
    to a result that differs, `×` to blame."""
    notes: tuple[str, ...] = ()
    """What else there is to say: tuples that were flattened, results in another order, roundings that `after` leaves
    out, a search that ended early."""
    _extracted: ExtractedPair | HloError | None = None

    def __attrs_post_init__(self) -> None:
        placed = tuple(attrs.evolve(finding, modules=(self.before, self.after)) for finding in self.findings)
        object.__setattr__(self, "findings", placed)

    def __str__(self) -> str:
        if not self.findings:
            return f"{self.verdict}: {self.matched_values} of {self.values} values found in {self.before.name}"
        first = self.findings[0]
        blame = "is to blame" if first.is_certain else "is where it begins"
        return f"{self.verdict}: %{first.after.instruction} in {first.after.computation} {blame}"

    def extract(self) -> ExtractedPair:
        """What shows the first finding, as two small modules with the same parameters, and their inputs.

        The module `after` is the instruction to blame or, if that is not one instruction, its region. The module
        `before` is what gives the right value instead, back to the values from which `after` starts, or to the next
        that both have. `notes` of the result say what could not be extracted.

        Raises InputError if nothing is to blame, and where the instructions make no module.
        """
        if self._extracted is None:
            raise InputError(f"nothing is to blame ({self.verdict}), so there is nothing to extract")
        if isinstance(self._extracted, HloError):
            raise self._extracted
        return self._extracted

    @property
    @told
    def before_module(self) -> str:
        """The name of the module BEFORE."""
        return self.before.name

    @property
    @told
    def after_module(self) -> str:
        """The name of the module AFTER."""
        return self.after.name

    @property
    @told
    def largest_difference(self) -> OutputDifference | None:
        """The array of the result that is furthest off; None where all have the same bits."""
        leaf = self.outputs.furthest
        return None if leaf is None else OutputDifference.of(leaf)

    @property
    def region(self) -> tuple[InstructionRun, ...]:
        """That of the first finding."""
        return self.findings[0].region if self.findings else ()

    @property
    @told
    def matched_share(self) -> float:
        """The part of `after`'s values that `before` has; 1 where there are none."""
        return self.matched_values / self.values if self.values else 1.0

    @property
    def agrees(self) -> bool:
        """Whether nothing but rounding differs."""
        return self.verdict in ("agree", "rounding only")
