"""`python -m benchmarks`: hloexec compared with XLA:CPU and the StableHLO interpreter.

python -m benchmarks [--into DIR]                everything: JSON, the page with its tables, the plot
python -m benchmarks modules [NAME…]             the modules alone, or some of them; a line each and way
python -m benchmarks apart NAME…                one after the other, for modules that do not fit into memory twice
python -m benchmarks limits [NAME…]              how close they come to what the machine can do
python -m benchmarks opcodes [NAME…]             every opcode, and how its cost grows
python -m benchmarks parsing|startup [FILE…]     parsing compared with XLA's own parser; start-up
python -m benchmarks policies [NAME…]            what `exact` and the other policies cost
python -m benchmarks compare OLD.json NEW.json   two commits
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from benchmarks import results as figures
from benchmarks.page import markdown_table, page
from benchmarks.subjects import DUMPS, dumps, examples, subject_names

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_FOLDER = click.Path(path_type=Path, file_okay=False)
_SCALE = click.FloatRange(0, 1, min_open=True)
_TURNS = click.IntRange(1)


@click.group(invoke_without_command=True)
@click.option(
    "--into", type=_FOLDER, default="docs", help="Where benchmarks.json, benchmarks.md and benchmarks.svg go."
)
@click.option("--turns", type=_TURNS, default=7, help="Warm runs, in turns.")
@click.option("--cold-turns", type=_TURNS, default=3, help="Fresh processes, in turns.")
@click.option("--patience", type=click.FloatRange(0, min_open=True), default=300.0, help="Seconds for the interpreter.")
@click.pass_context
def main(context: click.Context, into: Path, turns: int, cold_turns: int, patience: float) -> None:
    """Measure everything, and write it down; or what a command names."""
    warnings.simplefilter("ignore")
    if context.invoked_subcommand is None:
        _everything(into, turns, cold_turns, patience)


@main.command()
@click.argument("names", nargs=-1)
@click.option("--scale", type=_SCALE, default=1.0, help="Cut every size of a program to this part of itself.")
@click.option("--turns", type=_TURNS, default=7, help="Warm runs, in turns.")
@click.option("--cold-turns", type=_TURNS, default=1, help="Fresh processes, in turns.")
@click.option("--interpreter", is_flag=True, help="Compare with the StableHLO interpreter instead of XLA:CPU.")
@click.option("--json", "target", type=click.Path(path_type=Path, dir_okay=False), help="Write the figures here.")
@click.option("--write", "folder", type=_FOLDER, help="Write HLO text to this folder; run nothing.")
def modules(
    names: tuple[str, ...],
    scale: float,
    turns: int,
    cold_turns: int,
    interpreter: bool,
    target: Path | None,
    folder: Path | None,
) -> None:
    """Compare the named modules (by default all but dump-004) with XLA:CPU."""
    chosen = _known(names)
    if folder is not None:
        _write(chosen, folder, scale)
        return
    if interpreter:
        _beside_interpreter(chosen, scale=scale, turns=turns)
        return
    found, failures = _beside_xla(chosen, scale=scale, turns=turns, cold_turns=cold_turns)
    _echo_means(found)
    if target is not None:
        _save(target, {"modules": found, "failures": failures})
    if failures:
        sys.exit(1)


@main.command()
@click.argument("names", nargs=-1, required=True)
@click.option("--scale", type=_SCALE, default=1.0, help="Cut every size of a program to this part of itself.")
@click.option("--turns", type=_TURNS, default=1, help="Warm runs of each.")
def apart(names: tuple[str, ...], scale: float, turns: int) -> None:
    """Run hloexec and then XLA:CPU on the named modules, for those that do not fit into memory twice."""
    from benchmarks.driving import ContestantError
    from benchmarks.measuring import one_after_the_other

    for name in _known(names):
        try:
            found = one_after_the_other(name, scale=scale, turns=turns)
        except ContestantError as error:
            raise click.ClickException(f"{name}: {error}") from error
        ours, theirs = found["hloexec"], found["xla"]
        for what, key in (("first output", "cold"), ("warm", "warm")):
            ratio = min(ours[key]) / min(theirs[key])
            print(
                f"{name:>16}, {what:>12}  {min(ours[key]):.4g} / {min(theirs[key]):.4g} s, ratio {ratio:.2f}",
                flush=True,
            )
        sizes = " / ".join(
            "unknown" if (size := side["resident_bytes"]) is None else f"{size / 1e6:.4g}" for side in found.values()
        )
        print(f"{name:>16}, {'grown by':>12}  {sizes} MB", flush=True)


@main.command()
@click.argument("names", nargs=-1)
@click.option("--scale", type=_SCALE, default=1.0, help="Cut every size of a program to this part of itself.")
@click.option("--turns", type=_TURNS, default=5, help="Warm runs, in turns.")
def limits(names: tuple[str, ...], scale: float, turns: int) -> None:
    """How close warm runs of the named modules, or all, come to the machine's bandwidth and peak."""
    from benchmarks import limits as table

    chosen = _known(names)
    rates = table.measured_rates()
    found, failures = _beside_xla(chosen, scale=scale, turns=turns, cold_turns=1)
    print(f"{rates['bytes_per_second'] / 1e9:.1f} GB/s, {rates['flops_per_second'] / 1e9:.0f} GFLOP/s\n")
    print(markdown_table(list(table.rows(found, rates))))
    if failures:
        sys.exit(1)


@main.command()
@click.argument("names", nargs=-1)
@click.option("--turns", type=_TURNS, default=5)
def opcodes(names: tuple[str, ...], turns: int) -> None:
    """Nanoseconds per element and GFLOP/s of the named opcodes, or all, at 10⁴, 10⁶ and 10⁷ elements."""
    from benchmarks import opcodes as table

    unknown = [name for name in names if name not in table.programs()]
    if unknown:
        raise click.UsageError(f"there is no opcode {unknown[0]!r} here; there are {', '.join(table.programs())}")
    print(markdown_table(list(table.rows(names, turns=turns))))


@main.command()
@click.argument("files", nargs=-1, type=_FILE)
def parsing(files: tuple[Path, ...]) -> None:
    """Compare parsing of FILES (by default the examples and dumps) with XLA's own parser."""
    from benchmarks import parsing as table

    print(markdown_table(list(table.rows(list(files) or examples() + dumps()))))


@main.command()
def growth() -> None:
    """How parsing, verifying and planning grow up to 100 MB of text."""
    from benchmarks import growth as table

    print(markdown_table(list(table.rows())))


@main.command()
def shrinking() -> None:
    """How shrinking grows up to 16 MB of text."""
    from benchmarks import shrinking as table

    print(markdown_table(list(table.rows())))


@main.command()
def devices() -> None:
    """How a run's cost grows with devices that agree and that differ."""
    from benchmarks import devices as table

    print(markdown_table(list(table.rows())))


@main.command()
@click.argument("names", nargs=-1)
@click.option("--scale", type=_SCALE, default=0.1, help="Cut every size of a program to this part of itself.")
@click.option("--turns", type=_TURNS, default=3)
def policies(names: tuple[str, ...], scale: float, turns: int) -> None:
    """What the numerics policies cost, `exact` above all, on the named programs or all."""
    from benchmarks import policies as table
    from benchmarks.programs import PROGRAMS

    unknown = [name for name in names if name not in PROGRAMS]
    if unknown:
        raise click.UsageError(f"there is no program {unknown[0]!r}; there are {', '.join(PROGRAMS)}")
    print(markdown_table(list(table.rows(names, scale=scale, turns=turns))))


@main.command()
def startup() -> None:
    """What a fresh process costs."""
    from benchmarks import startup as table

    print(markdown_table(list(table.rows())))


@main.command()
@click.argument("old", type=_FILE)
@click.argument("new", type=_FILE)
def compare(old: Path, new: Path) -> None:
    """What changed between two measurements, as ratios to XLA:CPU."""
    try:
        before, after = figures.read_results(old), figures.read_results(new)
        rows = list(figures.compared(before, after))
    except figures.ResultsError as error:
        raise click.ClickException(str(error)) from None
    if not rows:
        raise click.ClickException("the two measurements have no module in common at the same scale")
    print(f"{before['machine']['commit']} → {after['machine']['commit']}, hloexec / XLA:CPU\n")
    print(markdown_table(rows))
    left_out = list(figures.not_compared(before, after))
    if left_out:
        print("\nNot compared:\n" + "\n".join(f"- {why}" for why in left_out))


def _everything(into: Path, turns: int, cold_turns: int, patience: float) -> None:
    from benchmarks import devices as device_table
    from benchmarks import growth as growth_table
    from benchmarks import limits as limit_table
    from benchmarks import opcodes as opcode_table
    from benchmarks import parsing as parsing_table
    from benchmarks import policies as policy_table
    from benchmarks import startup as startup_table
    from benchmarks.programs import PROGRAMS

    into.mkdir(parents=True, exist_ok=True)
    found, failures = _beside_xla(_known(()), scale=1.0, turns=turns, cold_turns=cold_turns)
    _echo_means(found)
    content: dict[str, Any] = {"modules": found, "failures": failures, "tables": {}}
    content["rates"] = limit_table.measured_rates()
    # Written down after every part: the whole takes long enough to be broken off.
    _write_down(content, into)
    # Ratios of hundreds need no repetition.
    content["interpreter"] = _beside_interpreter(list(PROGRAMS), scale=0.1, turns=1, timeout=patience)
    _write_down(content, into)
    for title, measure in (
        ("Parsing, compared with XLA's own parser", lambda: parsing_table.rows(examples() + dumps())),
        ("Growth with the text", growth_table.rows),
        ("Growth with devices", device_table.rows),
        ("Numerics policies, as multiples of `reference`, at a tenth of the size", policy_table.rows),
        ("Start-up", startup_table.rows),
        ("Opcodes, compared with XLA:CPU", opcode_table.rows),
    ):
        content["tables"][title] = list(measure())
        _write_down(content, into)


def _write_down(content: Mapping[str, Any], into: Path) -> None:
    complete = _save(into / "benchmarks.json", content)
    (into / "benchmarks.md").write_text(page(complete), encoding="utf-8")
    _draw(complete, into / "benchmarks.svg")


def _draw(results: Mapping[str, Any], path: Path) -> None:
    from benchmarks.plot import draw

    try:
        draw(results, path)
    except ImportError:
        print("no plot: matplotlib is not installed (pip install 'hloexec[bench]')", file=sys.stderr)


def _beside_xla(names: Iterable[str], **options: Any) -> tuple[dict[str, Any], dict[str, str]]:
    from benchmarks.driving import ContestantError
    from benchmarks.measuring import against_xla

    found: dict[str, Any] = {}
    failures: dict[str, str] = {}
    for name in names:
        try:
            module = found[name] = against_xla(name, **options)
        except ContestantError as error:
            failures[name] = str(error)
            print(f"{name:>16}  {error}", flush=True)
            continue
        for way in figures.WAYS:
            _echo(name, module, way)
    return found, failures


def _echo(name: str, module: Mapping[str, Any], way: figures.Way) -> None:
    ours, theirs = min(module[way.side]["warm"]) * 1e3, min(module["xla"][way.peer_warm]) * 1e3
    agreed = module["agreement"]
    print(
        f"{name:>16}, {way.name:>12}  warm {ours:9.2f} / {theirs:9.2f} ms, ratio {figures.warm_ratio(module, way)}; "
        f"first output {figures.cold_ratio(module, way)}; "
        f"{'agrees' if agreed['holds'] else 'DISAGREES'}, {agreed['error']:.1e} of {agreed['bound']:.1e}",
        flush=True,
    )


def _beside_interpreter(names: Iterable[str], **options: Any) -> dict[str, Any]:
    from benchmarks.measuring import against_interpreter

    found = {}
    for name in names:
        entry = found[name] = against_interpreter(name, **options)
        said = entry.get("refused") or f"takes {figures.interpreter_ratio(entry)} times as long"
        print(f"{name:>16}  the StableHLO interpreter: {said}", flush=True)
    return found


def _echo_means(found: Mapping[str, Any]) -> None:
    for way in figures.WAYS if found else ():
        warm = figures.geometric_mean(figures.warm_ratio(module, way).median for module in found.values())
        cold = figures.geometric_mean(figures.cold_ratio(module, way).median for module in found.values())
        print(f"geometric means of {len(found)}, {way.name}: warm {warm:.2f}, first output {cold:.2f}")


def _save(path: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    complete = {"schema": figures.SCHEMA, "machine": figures.machine(), **content}
    path.write_text(json.dumps(complete, indent=1) + "\n", encoding="utf-8")
    return complete


def _write(names: Iterable[str], folder: Path, scale: float) -> None:
    from benchmarks.programs import hlo_text

    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        if name not in DUMPS:
            path = folder / f"{name}.hlo"
            path.write_text(hlo_text(name, scale), encoding="utf-8")
            print(path)


def _known(names: Iterable[str]) -> list[str]:
    """The names, checked; all that are measured unasked where there are none."""
    try:
        usual, on_demand = subject_names()
    except ModuleNotFoundError as error:
        raise click.ClickException(f"{error.name} is not installed (pip install 'hloexec[bench]')") from error
    for name in names:
        if name in DUMPS and name not in (*usual, *on_demand):
            raise click.UsageError(f"{name} is a dump that is missing; HLOEXEC_SEEDS names the folder of dumps")
        if name not in (*usual, *on_demand):
            raise click.UsageError(f"there is no module {name!r}; there are {', '.join([*usual, *on_demand])}")
    return list(names) or usual


if __name__ == "__main__":
    main()
