"""Reports of `hloexec extract`, and of what `hloexec diff --extract` has written."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator

import attrs
from rich.console import Group, RenderableType
from rich.text import Text

from hloexec.diffing import Diff, ExtractedPair
from hloexec.extraction import Extraction, Rerun
from hloexec.ir import Module
from hloexec.numerics.statistics import LeafStatistics, statistics
from hloexec.origins import hlo_line, source_lines
from hloexec.report.comparison import leaf_comparison_record
from hloexec.report.layout import next_steps
from hloexec.report.records import leaf_records, parameter_records
from hloexec.report.tables import leaf_label, values_table
from hloexec.report.units import plural

__all__ = ["SavedPair", "extraction_record", "extraction_view", "pair_record", "pair_view"]

_MOST_ROWS = 20


def extraction_view(found: Extraction, folder: str, rerun: Rerun, command: str) -> RenderableType:
    """The verdict, the inputs and the result, and how to run it."""
    entry = found.module.entry
    kept = len(entry) - len(entry.parameters)
    verdict = Text.assemble(("extracted ", "bold"), f"{found.path}: {plural(kept, 'instruction')}, ")
    verdict.append(f"{plural(len(entry.parameters), 'input')}, in {folder}; ")
    if rerun.has_same_bits:
        verdict.append("it gives the same bits", "bold green")
    elif rerun.differences:
        verdict.append("its result is not that of the whole run", "bold red")
    else:
        verdict.append("its result differs from that of the whole run in signs of zeros or bits of NaN", "bold red")
    parts: list[RenderableType] = [verdict, Text(f"\n  {hlo_line(entry.root)}")]
    parts += [Text(f"  from {line}", style="cyan") for line in source_lines(found.module, entry.root)[:1]]
    rows = [*_input_rows(found), *_result_rows(found)]
    parts.append(values_table("inputs and result", rows[:_MOST_ROWS] + rows[-1:] if len(rows) > _MOST_ROWS else rows))
    parts += [Text(f"  {difference}") for difference in rerun.differences]
    parts.append(next_steps(command))
    return Group(*parts)


def _input_rows(found: Extraction) -> list[tuple[str, LeafStatistics]]:
    """Of the first device."""
    inputs = zip(found.module.entry.parameters, found.inputs[0], strict=True)
    return [(leaf_label(parameter.name, leaf.index), leaf) for parameter, value in inputs for leaf in statistics(value)]


def _result_rows(found: Extraction) -> list[tuple[str, LeafStatistics]]:
    """Of the first device."""
    return [("result", leaf) for leaf in statistics(found.expected[0])]


def extraction_record(found: Extraction, folder: str, rerun: Rerun) -> dict[str, object]:
    """The same as `extraction_view`."""
    entry = found.module.entry
    return {
        "folder": folder,
        "path": found.path,
        "iteration": found.iteration,
        "instruction_count": len(entry) - len(entry.parameters),
        "parameters": parameter_records((parameter.name, parameter.shape) for parameter in entry.parameters),
        "hlo": hlo_line(entry.root),
        "source": list(map(str, source_lines(found.module, entry.root))),
        "inputs": leaf_records(_input_rows(found)),
        "result": leaf_records(_result_rows(found)),
        "has_same_bits": rerun.has_same_bits,
        "differing": [leaf_comparison_record(difference) for difference in rerun.differences],
    }


@attrs.frozen(eq=False)
class SavedPair:
    """What shows the first finding of a diff, in a folder."""

    pair: ExtractedPair
    folder: str
    again: Diff | None = None
    """What diff says of the two modules; None where they were not compared."""

    @property
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


def pair_record(saved: SavedPair) -> dict[str, object]:
    """The same as `pair_view`."""
    pair = saved.pair
    return {
        "folder": saved.folder,
        "before_path": pair.before_path,
        "after_path": pair.after_path,
        "device_count": len(pair.inputs),
        "instruction_count_before": None if pair.before is None else _count(pair.before),
        "instruction_count_after": _count(pair.after),
        "parameters": parameter_records((parameter.name, parameter.shape) for parameter in pair.after.entry.parameters),
        "extracted_verdict": None if saved.again is None else saved.again.verdict,
        "notes": list(pair.notes),
    }


def _count(module: Module) -> int:
    return len(module.entry) - len(module.entry.parameters)
