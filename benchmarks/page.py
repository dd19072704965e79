"""The page that shows a measurement, in Markdown, made from its JSON and from nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from benchmarks.results import cold_ratio, geometric_mean, interpreter_ratio, warm_ratio

__all__ = ["markdown_table", "page"]

_INTRODUCTION = """# Benchmarks

hloexec beside XLA:CPU (jaxlib) and the StableHLO reference interpreter, made by `python -m benchmarks`. The modules are
JAX programs before optimization (`benchmarks/programs/`), and dumps where `HLOEXEC_SEEDS` names their folder; inputs
are hloexec's random ones, the same files for all. Each contestant has a process of its own, and they take turns.
hloexec runs as its command line does, which chooses BLAS kernels that suit the processor and keeps the memory that
arrays have freed.

- **Warm**: a run of a module that is parsed and planned, or compiled; inputs in place, results not copied. A figure is
  the least of the turns; a ratio is the median of the turn-by-turn ratios, with the lowest and the highest.
- **First output**: from the start of the process to the first result: Python, imports, inputs from a file, parsing and
  planning, or for XLA:CPU JAX and compiling the StableHLO text; median. hloexec imports what it needs when it needs it,
  so parsing and planning include the import of the parser, the opcodes and the planner.
- **Memory**: beyond the inputs. *Arrays* are the bytes of live arrays at the peak for hloexec, and what XLA's buffer
  assignment states for XLA:CPU (temporary and output buffers); *resident* is by how much the process grew in its
  first run.
- **Agreement**: the relative root mean square of the difference, of the leaf that is nearest to its bound, and that
  bound: κ · (√instructions · u + √elements · 2⁻²⁴), where κ is the condition, measured by stirring XLA:CPU's inputs, u
  the unit roundoff of the narrowest float type (`benchmarks/agreement.py` derives it). Integers are equal. XLA:CPU may
  keep excess precision.
"""


def page(results: Mapping[str, Any]) -> str:
    """The whole page."""
    modules: Mapping[str, Any] = results["modules"]
    machine = results["machine"]
    about = (
        f"Measured on {machine['cpu']} ({machine['processors']} processors, {machine['memory_bytes'] / 2**30:.0f} GiB, "
        f"{machine['system']}), Python {machine['python']}, "
        + ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
        + f", hloexec at {machine['commit']}."
    )
    parts = [_INTRODUCTION, about, "\n![ratios of warm runs and first outputs to XLA:CPU](benchmarks.svg)"]
    if modules:
        warm = geometric_mean(warm_ratio(module).median for module in modules.values())
        cold = geometric_mean(cold_ratio(module).median for module in modules.values())
        parts += [
            "\n## Modules\n",
            f"Geometric means of the ratios hloexec / XLA:CPU: **warm {warm:.2f}**, **first output {cold:.2f}**.\n",
            markdown_table([_times(name, module) for name, module in modules.items()]),
            "\n## Where the first output's time goes, and memory\n",
            markdown_table([_stages(name, module) for name, module in modules.items()]),
        ]
    if results.get("interpreter"):
        parts += ["\n## Beside the StableHLO interpreter, every size cut to a tenth\n", *_interpreter(results)]
    for title, rows in results.get("tables", {}).items():
        parts += [f"\n## {title}\n", markdown_table(rows)]
    if results.get("failures"):
        parts += ["\n## Not measured\n", *(f"- {name}: {why}" for name, why in results["failures"].items())]
    return "\n".join(parts) + "\n"


def markdown_table(rows: Sequence[Mapping[str, object]]) -> str:
    """A table whose columns are the keys of the first row; all but the first column are aligned to the right."""
    if not rows:
        return ""
    names = list(rows[0])
    lines = [_line(names), _line(["---", *["---:"] * (len(names) - 1)])]
    return "\n".join(lines + [_line(str(row.get(name, "")) for name in names) for row in rows])


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '∣') for cell in cells)} |"


def _times(name: str, module: Mapping[str, Any]) -> dict[str, str]:
    agreed = module["agreement"]
    return {
        "module": name,
        "warm, hloexec ms": _milliseconds(min(module["hloexec"]["warm"])),
        "XLA:CPU ms": _milliseconds(min(module["xla"]["warm"])),
        "ratio": str(warm_ratio(module)),
        "first output, hloexec s": f"{_median(module['hloexec']['cold']):.2f}",
        "XLA:CPU s": f"{_median(module['xla']['cold']):.2f}",
        "ratio of first outputs": str(cold_ratio(module)),
        "agreement": f"{agreed['error']:.1e} of {agreed['bound']:.1e}" + ("" if agreed["holds"] else " **beyond**"),
    }


def _stages(name: str, module: Mapping[str, Any]) -> dict[str, str]:
    ours, theirs = module["hloexec"], module["xla"]
    row = {"module": name}
    for stage in ("import", "parse", "plan", "first run"):
        row[f"{stage} ms"] = _milliseconds(ours["stages"][stage])
    for stage in ("import", "compile", "first run"):
        row[f"XLA:CPU {stage} ms"] = _milliseconds(theirs["stages"][stage])
    for what in ("assigned", "resident"):
        label = "arrays" if what == "assigned" else what
        row[f"{label} MB"] = _megabytes(ours[f"{what}_bytes"])
        row[f"XLA:CPU {label} MB"] = _megabytes(theirs[f"{what}_bytes"])
    return row


def _interpreter(results: Mapping[str, Any]) -> list[str]:
    entries = results["interpreter"]
    ran = {name: entry for name, entry in entries.items() if "refused" not in entry}
    rows = [
        {
            "module": name,
            "hloexec ms": _milliseconds(min(entry["hloexec"])),
            "interpreter ms": _milliseconds(min(entry["stablehlo"])),
            "times as long": str(interpreter_ratio(entry)),
        }
        for name, entry in ran.items()
    ]
    mean = geometric_mean(interpreter_ratio(entry).median for entry in ran.values())
    refused = [f"- {name}: {entry['refused']}" for name, entry in entries.items() if "refused" in entry]
    return [f"It takes **{mean:.0f} times** as long in geometric mean.\n", markdown_table(rows), "", *refused]


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]


def _milliseconds(seconds: float) -> str:
    value = seconds * 1e3
    return f"{value:.3f}" if value < 1 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def _megabytes(size: int | None) -> str:
    return "" if size is None else f"{size / 1e6:.1f}"
