"""Reports of `hloexec extract`: the verdict, the inputs and the result, and how to run what was extracted."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from hloexec.analysis.numerics.leaves import LeafStatistics, statistics
from hloexec.core.structs import frozen
from hloexec.core.wording import byte_text, plural
from hloexec.language.origins import hlo_line, source_lines
from hloexec.report.json.printed import Leaf, leaves_of
from hloexec.report.layout import Parts, next_steps, plain_table, with_rest
from hloexec.report.tables import leaf_label, values_table
from hloexec.tools.extraction import Extraction, Rerun, ValueOutputs
from hloexec.tools.summary import ParameterSummary, parameters_of

_MOST_ROWS = 20


def extraction_view(extraction: Extraction, folder: str, rerun: Rerun, command: str) -> RenderableType:
    """The verdict, the inputs and the result, and how to run it."""
    entry = extraction.module.entry
    kept = len(entry) - len(entry.parameters)
    verdict = Text.assemble(("extracted ", "bold"), f"{extraction.path}: {plural(kept, 'instruction')}, ")
    verdict.append(f"{plural(len(entry.parameters), 'input')}, in {folder}; ")
    if rerun.has_same_bits:
        verdict.append("it gives the same bits", "bold green")
    elif rerun.differences:
        verdict.append("its result is not that of the whole run", "bold red")
    else:
        verdict.append("its result differs from that of the whole run in signs of zeros or bits of NaN", "bold red")
    parts: Parts = [verdict, f"\n  {hlo_line(entry.root)}"]
    parts += [Text(f"  from {line}", style="cyan") for line in source_lines(extraction.module, entry.root)[:1]]
    rows = [*_input_rows(extraction), *_result_rows(extraction)]
    parts.append(values_table("inputs and result", rows[:_MOST_ROWS] + rows[-1:] if len(rows) > _MOST_ROWS else rows))
    parts += [f"  {difference}" for difference in rerun.differences]
    parts.append(next_steps(command))
    return Group(*parts)


_CHANGED = (
    "a compiler may round the module's own results otherwise, as other values are kept: run.py says whether it does"
)


def outputs_view(result: ValueOutputs, folder: str, rerun: Rerun, commands: Sequence[str]) -> RenderableType:
    """The values that are outputs, those that are not, and how to fetch them."""
    line = Text.assemble((f"{plural(len(result.outputs), 'value')}", "bold"), " as further outputs, ")
    line.append(f"{byte_text(result.byte_size)}, in {folder}; ")
    line.append(
        *(("its own results have the same bits", "green"), ("its own results differ", "bold red"))[
            not rerun.has_same_bits
        ]
    )
    table = plain_table("shape", names=("value",))
    for output in result.outputs[:_MOST_ROWS]:
        table.add_row(output.key, output.shape)
    parts: Parts = [line, with_rest(table, len(result.outputs), _MOST_ROWS, "outputs.json has all")]
    parts += [Text(f"without {entry.key}: {entry.reason}", "yellow") for entry in result.refused[:_MOST_ROWS]]
    return Group(*parts, Text(_CHANGED, "dim"), next_steps(*commands))


def _input_rows(extraction: Extraction) -> list[tuple[str, LeafStatistics]]:
    """Of the first device."""
    inputs = zip(extraction.module.entry.parameters, extraction.inputs[0], strict=True)
    return [(leaf_label(parameter.name, leaf.index), leaf) for parameter, value in inputs for leaf in statistics(value)]


def _result_rows(extraction: Extraction) -> list[tuple[str, LeafStatistics]]:
    """Of the first device."""
    return [("result", leaf) for leaf in statistics(extraction.expected[0])]


@frozen
class Extracted:
    """What an extracted module is."""

    folder: str
    instruction_count: int
    """How many instructions it has, parameters not counted."""
    parameters: tuple[ParameterSummary, ...]
    """Its parameters."""
    hlo: str
    source: tuple[str, ...]
    inputs: tuple[Leaf, ...]
    """The arrays of the inputs."""
    result: tuple[Leaf, ...]
    """The arrays of the result."""

    @classmethod
    def of(cls, extraction: Extraction, folder: str) -> Extracted:
        """What there is to say of an extraction."""
        entry = extraction.module.entry
        count, parameters = len(entry) - len(entry.parameters), parameters_of(extraction.module)
        source = tuple(map(str, source_lines(extraction.module, entry.root)))
        rows = leaves_of(_input_rows(extraction)), leaves_of(_result_rows(extraction))
        return cls(folder, count, parameters, hlo_line(entry.root), source, *rows)
