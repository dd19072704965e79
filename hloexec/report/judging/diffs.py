"""Reports of `hloexec diff`: the verdict, the instructions to blame, what is extracted, and the next command."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence

import attrs
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from hloexec.core.ir import Computation, Instruction, Module
from hloexec.core.structs import UNTOLD, frozen, told
from hloexec.core.wording import count_text, number_text, plural
from hloexec.language.origins import hlo_line
from hloexec.ops.attributes import computation_names
from hloexec.ops.registry import Role, role_of
from hloexec.report.judging.comparison import comparison_view, furthest_line
from hloexec.report.layout import Command, Parts, next_steps, plain_table
from hloexec.report.tables import extract_command
from hloexec.tools.diffing import Diff, ExtractedPair, Finding, RegionStep
from hloexec.tools.diffing.findings import Verdict
from hloexec.tools.summary import ParameterSummary, parameters_of


@frozen(eq=False)
class SavedPair:
    """What shows the first finding of a diff, in a folder."""

    pair: ExtractedPair
    """What was extracted."""
    folder: str
    again: Diff | None = attrs.field(default=None, metadata=UNTOLD)
    """What diff says of the two modules; None where they were not compared."""

    @property
    @told
    def device_count(self) -> int:
        """How many devices they run on."""
        return len(self.pair.inputs)

    @property
    @told
    def instructions_before(self) -> int | None:
        """How many instructions before.hlo has, parameters not counted; None where there is none."""
        return None if self.pair.before is None else _count(self.pair.before)

    @property
    @told
    def instructions_after(self) -> int:
        """How many instructions after.hlo has, parameters not counted."""
        return _count(self.pair.after)

    @property
    @told
    def parameters(self) -> tuple[ParameterSummary, ...]:
        """The parameters of both modules."""
        return parameters_of(self.pair.after)

    @property
    @told
    def verdict(self) -> Verdict | None:
        """Of these modules; None where they were not compared."""
        return None if self.again is None else self.again.verdict

    @property
    @told
    def command(self) -> str:
        """The command that compares them or, if they cannot be compared, runs the one after."""
        files = [os.path.join(self.folder, f"{name}.hlo") for name in ("before", "after")]
        words = ["hloexec", "diff", *files] if self._is_pair else ["hloexec", "run", files[1]]
        for name in self.pair.input_files:
            words += ["--inputs", os.path.join(self.folder, name)]
        return shlex.join([*words, *self._policies()])

    @property
    def _is_pair(self) -> bool:
        return self.pair.before is not None and self.pair.is_comparable

    def _policies(self) -> Iterator[str]:
        before, after = (policy.name for policy in self.pair.numerics)
        if before == after or not self._is_pair:
            named = [("--numerics", after)]
        else:
            named = [("--numerics-before", before), ("--numerics-after", after)]
        for option, policy in named:
            if policy != "reference":
                yield from (option, policy)


def pair_view(saved: SavedPair) -> RenderableType:
    """What was written, and whether it shows the difference."""
    pair = saved.pair
    sides = [
        f"{name}.hlo with {plural(_count(module), 'instruction')}"
        for name, module in (("before", pair.before), ("after", pair.after))
        if module is not None
    ]
    line = Text.assemble(("extracted ", "bold"), " and ".join(sides))
    line.append(f" on {plural(len(pair.after.entry.parameters), 'input')}, in {saved.folder}")
    if saved.again is not None:
        line.append("; ")
        line.append(*_OUTCOMES[saved.again.agrees])
    return Group(line, *(Text(note, style="yellow") for note in pair.notes))


_OUTCOMES = {False: ("their results differ as well", "bold green"), True: ("their results do not differ", "bold red")}
"""Of what was extracted, by whether it agrees."""


def _count(module: Module) -> int:
    return len(module.entry) - len(module.entry.parameters)


@frozen
class Pair:
    """What a diff was asked to write."""

    extraction: SavedPair | None
    """What --extract has written of the first finding."""


_MOST_STEPS = 5
"""A called computation of more is not shown."""
_STYLES = {"agree": "bold green", "rounding only": "bold cyan", "not decided": "bold yellow", "differ": "bold red"}


def diff_view(result: Diff, top: int, command: Command | None, saved: SavedPair | None = None) -> RenderableType:
    """Everything `hloexec diff` says, and what of it was extracted; `command` writes another command on the same inputs
    of `after`, if that is in a file."""
    parts: Parts = [diff_line(result), *results_lines(result)]
    if result.findings:
        first = result.findings[0]
        parts += ["", *_details(first, result)]
        parts += ["", _table(result, result.findings[:top])]
    else:
        furthest = result.outputs.furthest
        if furthest is not None:
            parts += ["", f"  {furthest}"]
    parts += ["", Text(result.picture, overflow="fold"), Text(_legend(result), style="dim")]
    parts += [Text(note, style="yellow") for note in result.notes]
    if saved is not None:
        parts += ["", pair_view(saved), next_steps(saved.command)]
    elif result.findings and command is not None:
        place = result.findings[0].after
        more = ("--in", place.computation)
        parts.append(next_steps(extract_command(command, place.path, place.instruction, place.device, *more)))
    return Group(*parts)


_WITHOUT_COUNTERPART = "nothing that it takes was found to differ; before has no value in its place"
_NOT_CORRECTED = "nothing that it takes was found to differ; its value alone was not found to correct the results"
"""What is said of an instruction whose value could not be compared with the one that it should be."""


def diff_line(result: Diff) -> Text:
    """The verdict, or the first instruction to blame, in one line."""
    if not result.findings:
        equal = sum(not leaf.unequal for leaf in result.outputs.leaves)
        rest = f"{equal} of {plural(len(result.outputs.leaves), 'result')} bit for bit"
        return Text.assemble((result.verdict, _STYLES[result.verdict]), f": {rest}, {_share(result)}")
    first = result.findings[0]
    text = Text.assemble(
        (f"%{first.after.instruction}", "bold red"), " is to blame" if first.is_certain else " is where it begins"
    )
    text.append(f": {_summary(first)}")
    if len(result.findings) > 1:
        text.append(f", and {plural(len(result.findings) - 1, 'other')} after it")
    return text


def results_lines(result: Diff) -> list[Text]:
    """By how much the results differ; nothing where they do not."""
    devices = result.after.replica_count * result.after.num_partitions
    line = furthest_line(result.outputs, devices)
    return [Text(line)] if line else []


def _share(result: Diff) -> str:
    return f"{count_text(result.matched_values)} of {plural(result.values, 'value')} found in {result.before.name}"


def _summary(finding: Finding) -> str:
    if finding.comparison is None:
        return finding.reason or (_WITHOUT_COUNTERPART if finding.before is None else _NOT_CORRECTED)
    (leaf,) = finding.comparison.leaves
    many = f"{count_text(leaf.mismatches or leaf.unequal)} of {plural(leaf.count, 'element')} off"
    operands = "its operands are right" if finding.has_right_operands else "its operands may be wrong, too"
    return f"{many}; {finding.reason or operands}"


def _details(finding: Finding, result: Diff) -> Parts:
    lines: Parts = []
    sides = [("after", finding.after, result.after), ("before", finding.before, result.before)]
    called = [[] if place is None else _called(place.of(module), module) for _, place, module in sides]
    is_called_alike = [*map(_shape_of, called[0])] == [*map(_shape_of, called[1])]
    for (name, place, module), computations in zip(sides, called, strict=True):
        if place is None:
            continue
        devices = module.replica_count * module.num_partitions
        where = f"{place.path} on device {place.device}" if devices > 1 or place.device else place.path
        lines.append(Text.assemble((f"{name:7}", "dim"), place.line(module)))
        lines += (
            [] if is_called_alike else [line for computation in computations for line in _called_lines(computation)]
        )
        lines.append(Text(f"       at {where}", style="dim"))
        if place.op_name(module):
            lines.append(Text(f"       op_name {place.op_name(module)}", style="dim"))
        lines += [Text(f"       from {line}", style="cyan") for line in place.source(module)[:1]]
    if finding.graph:
        lines += [Text(""), Text("It is one of these, which compute what is wrong from values that are right:")]
        lines += [line for step in finding.graph for line in _step_lines(step, result)]
    if finding.comparison is not None:
        lines += [Text(""), comparison_view(finding.comparison)]
    return lines


def _called(instruction: Instruction, module: Module) -> list[Computation]:
    return [module.by_name[name] for name in computation_names(instruction.attributes)]


def _shape_of(computation: Computation) -> list[object]:
    """What a computation does, whatever its instructions are called."""
    places = {instruction.name: place for place, instruction in enumerate(computation)}
    return [
        (
            step.opcode,
            step.attributes,
            [places[operand] for operand in step.operands],
            step.name == computation.root_name,
        )
        for step in computation
    ]


def _called_lines(computation: Computation) -> list[Text]:
    """What a small computation computes, as a reducer does."""
    steps = [instruction for instruction in computation if role_of(instruction) is not Role.PARAMETER]
    if len(steps) > _MOST_STEPS:
        return []
    return [Text(f"       where %{computation.name} computes {hlo_line(instruction)}") for instruction in steps]


_ROLES = {"input": ("right", "green"), "step": ("", ""), "output": ("wrong", "bold red")}
"""What is said of a step of a region, and how."""


def _step_lines(step: RegionStep, result: Diff) -> Iterator[Text]:
    """The HLO of a step, and what it takes, if the names of its operands do not say it."""
    word, style = _ROLES[step.role]
    yield Text.assemble("  ", (f"{word:6}", style), step.run.line(result.after))
    if step.before is not None:
        yield Text(f"          as %{step.before.instruction} in before, at {step.before.path}", style="dim")
    names = [entry.instruction for entry in step.operands]
    if names and names != list(step.run.of(result.after).operands):
        yield Text(f"          takes {', '.join(f'%{name}' for name in names)}", style="dim")


def _table(result: Diff, findings: Sequence[Finding]) -> Table:
    sources = [
        next(iter(finding.after.source(result.after)), finding.after.op_name(result.after) or "")
        for finding in findings
    ]
    folded = ["to blame", "instead of", *(["source"] if any(sources) else [])]
    table = plain_table(*folded, figures=("off", "max ULP", "max abs", "allowed"))
    for finding, source in zip(findings, sources, strict=True):
        before = "–" if finding.before is None else finding.before.path
        names = [Text(finding.after.path), Text(before), Text(source)]
        table.add_row(*names[: len(folded)], *_figures(finding))
    return table


def _figures(finding: Finding) -> list[str]:
    leaf = None if finding.comparison is None else finding.comparison.leaves[0]
    if leaf is None or leaf.measured is None:
        return ["–"] * 4
    ulps = leaf.measured.ulp_percentiles.get(100)
    allowed = leaf.allowed_at_worst
    return [
        count_text(leaf.mismatches or leaf.unequal),
        "–" if ulps is None else f"{ulps:.3g}",
        number_text(leaf.measured.max_absolute_error, 3),
        "–" if allowed is None else f"{allowed:.3g}",
    ]


def _legend(result: Diff) -> str:
    blamed = ", ? wrong, × to blame" if result.findings else ""
    return f"{_share(result)}: █ the same numbers, ▓ but for rounding, · computed otherwise{blamed}"
