"""What people read of a matrix: a table in the terminal, and docs/conformance.md."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.cell import TYPES, Correct
from conformance.corpus import FileReport, causes
from conformance.known import KNOWN
from conformance.matrix import Cell, Status
from conformance.xla import jaxlib_version
from hloexec.core.dtypes import ELEMENT_TYPES

_COLOURS = {
    Status.PASS: "green",
    Status.KNOWN: "yellow",
    Status.XLA_CANNOT: "cyan",
    Status.TEXT: "blue",
    Status.REFUSED: "dim",
    Status.FAIL: "bold red",
}
_WORDS = {
    Status.PASS: "agree",
    Status.KNOWN: "differ for a known reason",
    Status.XLA_CANNOT: "cannot run on XLA:CPU, or not completely; hloexec runs them",
    Status.TEXT: "are read, verified and printed identically, but not run",
    Status.REFUSED: "are not valid programs (both verifiers reject them)",
    Status.FAIL: "fail",
}


def show(console: Console, cells: Sequence[Cell], seconds: float) -> None:
    """One row per opcode, one symbol per element type; then the failures and the known differences."""
    columns = [entry.name for entry in TYPES if any(cell.element_type == entry.name for cell in cells)]
    wide = console.width > 22 + 2 * len(columns)
    table = Table(box=None, padding=(0, 1 if wide else 0, 0, 0))
    table.add_column("opcode", no_wrap=True)
    for name in columns:
        table.add_column("\n".join(name), justify="center", vertical="bottom")
    for opcode, row in _rows(cells).items():
        symbols = [row.get(name) for name in columns]
        table.add_row(opcode, *(Text(s.value, _COLOURS[s]) if s else "" for s in symbols))
    console.print(table)
    for cell in cells:
        if cell.status is Status.FAIL:
            finding = cell.first(Status.FAIL)
            console.print(Text(f"✗ {cell.opcode} {cell.element_type}: {finding.message}", "red"))
            console.print(Text(f"    {finding.example}"[:400], "dim"))
    counts = Counter(cell.status for cell in cells)
    parts = [f"{counts[status]} {_WORDS[status]}" for status in reversed(Status) if counts[status]]
    console.print(f"{len(cells)} cells in {seconds:.0f} s: {', '.join(parts)}")


def show_corpus(console: Console, reports: Sequence[FileReport], folder: Path) -> None:
    """One row per file: whether it agrees, and how far; then the failures by cause."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("file", "", "leaves", "unequal", "beyond", "worst ULP", "worst / allowed"):
        table.add_column(name, justify="left" if name in ("file", "") else "right", no_wrap=True)
    for report in reports:
        name = str(report.path.relative_to(folder))
        if report.failures:
            table.add_row(name, Text("fails: " + ", ".join(report.failures), "red"))
            continue
        verdict = Text("agrees", "green") if report.agrees else Text("differs", "bold red")
        table.add_row(
            name, verdict, str(report.leaves), str(report.unequal), str(report.beyond),
            f"{report.worst_steps:.3g}", f"{report.worst:.2g}",
        )  # fmt: skip
    console.print(table)
    for (what, message), count in causes(reports).most_common():
        console.print(Text(f"{count} × {what}: {message}", "red"))
    agreed = sum(report.agrees for report in reports)
    failed = sum(bool(report.failures) for report in reports)
    console.print(f"{len(reports)} files: {agreed} agree, {len(reports) - agreed - failed} differ, {failed} fail")


def _rows(cells: Sequence[Cell]) -> dict[str, dict[str, Status]]:
    rows: dict[str, dict[str, Status]] = defaultdict(dict)
    for cell in cells:
        rows[cell.opcode][cell.element_type] = cell.status
    return rows


_EQUIVALENTS = """## Modules optimized for other machines

XLA:CPU refuses what is left of a module that was optimized for a GPU or a TPU. `hloexec.ops.equivalents` makes one of
it that XLA:CPU runs: fusions become calls, asynchronous pairs plain operations, bitcasts transposes and reshapes, calls
of cuBLAS and cuDNN the products and convolutions that they stand for, fused attention, forwards and backwards,
products, a softmax and their gradients (without padding, packed sequences or 8-bit numbers). It refuses any other call.
`python -m conformance corpus FOLDER` compares hloexec with XLA:CPU on the equivalent, and so do the tests of shrunken
modules. `--executor` runs that on any workers.
"""
_RECORDINGS = """## What GPUs compute

`conformance/gpu_programs` holds some 80 small JAX functions (127 programs over their element types): products with
epilogues, in eight bits and by blocks, convolutions, attention, norms, sorts, scatters, Fourier transforms, linear
algebra, random bits, scans, training steps. On a machine with JAX on CUDA and this repository, nothing else,

    python -m conformance.record_gpu -o conformance/gpu

records each: the module before and after optimization, inputs, outputs, versions, device, settings, and the policy that
they call for (`tf32` where products of f32 have JAX's default precision on Ampere and later, otherwise `reference`).
Programs run in a process of their own; what fails is listed in `recording.json` with its reason, and the rest goes on.
All files together keep to 15 MB. `--only 'matmul*'` records some, `--missing` what an interrupted recording lacks,
`--list` shows all.

`tests/conformance/test_recorded_gpu.py` then runs each optimized module, and the one before optimization, on hloexec:
integers, random bits and moved data have to be equal, decompositions to give back their matrix, and each element of
everything else to lie within what rounding does to it, as runs on the recorded inputs show (`conformance/recorded.py`).

No GPU could be had so far: `conformance/gpu` is empty, and those tests are skipped. The recorder was tried on the CPU:
116 of the 127 programs were recorded (3.4 MB), and hloexec agrees with all of them, optimized by XLA:CPU or not. The
other 11 need a GPU: cuDNN's attention and block-scaled products.
"""


def markdown(cells: Sequence[Cell], examples: int, seed: int, beside: str = "") -> str:
    """The same for docs/conformance.md, with the accuracy of functions and the reasons of all differences.

    `beside` is such a page of another jaxlib; what was otherwise there is listed.
    """
    columns = [entry.name for entry in TYPES if any(cell.element_type == entry.name for cell in cells)]
    counts = Counter(cell.status for cell in cells)
    lines = ["# Conformance", "", *_introduction(cells, counts, examples, seed), ""]
    lines += [f"| opcode | {' | '.join(columns)} |", "| --- |" + " :-: |" * len(columns)]
    for opcode, row in _rows(cells).items():
        symbols = [row[name].value if name in row else "" for name in columns]
        lines.append(f"| {opcode} | {' | '.join(symbols)} |")
    lines += ["", "## Differences", ""]
    found: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        for name in {finding.message for finding in cell.findings if finding.status is Status.KNOWN}:
            found[name].append(cell)
    for known in KNOWN:
        if known.name in found:
            lines += [f"**{known.name[0].upper()}{known.name[1:]}.** {known.reason} ({_where(found[known.name])})", ""]
    lines += [*(_otherwise(cells, beside) if beside else ()), *_accuracy(cells), _EQUIVALENTS, _RECORDINGS]
    return "\n".join(lines)


def _introduction(cells: Sequence[Cell], counts: Counter[Status], examples: int, seed: int) -> list[str]:
    return [
        f"{len(cells)} cells, {sum(len(cell.findings) for cell in cells)} programs, jaxlib {_jaxlib()}, generated by "
        f"`python -m conformance --examples {examples} --seed {seed} --output docs/conformance.md`.",
        "",
        "| | cells | |",
        "| :-: | --: | --- |",
        *(f"| {status.value} | {counts[status]} | {_WORDS[status]} |" for status in reversed(Status)),
        "",
        "Integers, pred, comparisons and data movement are compared bit for bit; elementwise functions with the",
        "correctly rounded value (4 ULP in f32 and f64, 1 in narrower types); sums and contractions within the bound",
        "of their length (`conformance/bounds.py`). What XLA:CPU cannot run is compared with its formula, if any.",
    ]


def _where(cells: Sequence[Cell]) -> str:
    by_opcode: dict[str, list[str]] = defaultdict(list)
    for cell in cells:
        by_opcode[cell.opcode].append(cell.element_type)
    return "; ".join(f"{opcode}: {', '.join(names)}" for opcode, names in by_opcode.items())


def _otherwise(cells: Sequence[Cell], page: str) -> list[str]:
    """The cells that are other ones in the table of another jaxlib's page."""
    version = re.search(r"jaxlib ([\d.]+\d)", page)
    name = f"jaxlib {version[1]}" if version else "the other jaxlib"
    table = page[page.index("| opcode |") :].partition("\n\n")[0].splitlines()
    head, _, *rows = ([part.strip() for part in line.strip("|").split("|")] for line in table)
    symbols = {row[0]: dict(zip(head, row, strict=True)) for row in rows}
    found: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for cell in cells:
        before = symbols.get(cell.opcode, {}).get(cell.element_type, cell.status.value)
        if before != cell.status.value:
            found[cell.opcode, before, cell.status.value].append(cell.element_type)
    unknown = ", ".join(sorted({cell.opcode for cell in cells} - symbols.keys()))
    return [
        f"## Beside {name}",
        "",
        f"With {name}, these cells are other ones, and all others are the same.",
        f"Opcodes that it does not know: {unknown or 'none'}.",
        "",
        f"To make this page again, run the command above with {name} and `--output beside.md`, and then with",
        f"jaxlib {_jaxlib()} and `--beside beside.md`, each in an environment of its own.",
        "",
        f"| opcode | {name} | jaxlib {_jaxlib()} | element types |",
        "| --- | :-: | :-: | --- |",
        *(f"| {opcode} | {one} | {other} | {', '.join(types)} |" for (opcode, one, other), types in found.items()),
        "",
    ]


def _jaxlib() -> str:
    return ".".join(map(str, jaxlib_version()))


def _accuracy(cells: Sequence[Cell]) -> list[str]:
    """The worst distance from the correctly rounded value, in representable values."""
    lines = [
        "## Accuracy of functions",
        "",
        "The worst distance from the correctly rounded value among the examples, in representable values (complex: in",
        "units of ε·|result|): hloexec's / XLA:CPU's.",
        "",
    ]
    rows: dict[str, dict[str, str]] = defaultdict(dict)
    for cell in cells:
        entry = ELEMENT_TYPES[cell.element_type]
        measured = [f for f in cell.findings if isinstance(f.example.check, Correct) and f.status is not Status.REFUSED]
        if measured and (entry.is_floating or entry.is_complex):
            ours, theirs = max(f.worst for f in measured), max(f.xla_worst for f in measured)
            ran = cell.status is not Status.XLA_CANNOT
            rows[cell.opcode][cell.element_type] = f"{ours:.3g} / {theirs:.3g}" if ran else f"{ours:.3g} / –"
    columns = [entry.name for entry in TYPES if any(entry.name in row for row in rows.values())]
    lines += [f"| opcode | {' | '.join(columns)} |", "| --- |" + " --: |" * len(columns)]
    lines += [f"| {opcode} | {' | '.join(row.get(name, '') for name in columns)} |" for opcode, row in rows.items()]
    return [*lines, ""]
