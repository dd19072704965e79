"""What graphs are coloured by: errors, times or bytes of a run, or what a command printed."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Unpack

import attrs

from hloexec.analysis.buffers import memory_usage
from hloexec.core.arguments import listed, require_integer, require_module, require_path, wrong
from hloexec.core.files import opened
from hloexec.core.ir import Module
from hloexec.core.places import split_name
from hloexec.core.values import Inputs
from hloexec.core.wording import byte_text, quoted
from hloexec.engine.exec.observers import Event, Observer
from hloexec.engine.exec.running import RunOptions, resolve_options, run_with
from hloexec.errors import HloError, InputError, os_errors_named, warn
from hloexec.tools.diffing import Diff
from hloexec.tools.extraction.running import holding_computation
from hloexec.tools.graphing.flow import VERDICTS, Colours, Place, quantity
from hloexec.tools.shadowing import ShadowRun

_LARGE_SHARE = 0.1
"""Of the error of the outputs, or of the time: such instructions are marked."""
_ERROR_SPAN = 1e4
"""What the scale of errors spans at least, so that mere rounding looks the same everywhere, and pale."""


def error_colours(found: ShadowRun | Diff) -> Colours:
    """Colours by error.

    Of a `hloexec.shadow`: the error of each result that was computed, root mean square relative to the exact result,
    in its worst run. Instructions without a colour only move values, or are exact. Marked is what makes a tenth or more
    of the error of the outputs. Of a `hloexec.diff`, for its module `after`: what is as before, wrong and to blame.
    """
    if isinstance(found, ShadowRun):
        return loss_colours(
            found.errors,
            {
                (loss.computation, loss.instruction): (max(loss.share, loss.lost_share), loss.kind)
                for loss in found.losses
            },
        )
    if not isinstance(found, Diff):
        raise wrong("found", "the result of hloexec.shadow or hloexec.diff", found)
    return blame_colours(
        right=((pair.after.computation, pair.after.instruction) for pair in found.matches),
        wrong=(
            (step.run.computation, step.run.instruction)
            for finding in found.findings
            for step in finding.graph
            if step.role == "output"
        ),
        blamed=((finding.after.computation, finding.after.instruction) for finding in found.findings),
    )


def loss_colours(errors: Mapping[Place, tuple[float, float]], losses: Mapping[Place, tuple[float, str]]) -> Colours:
    """Colours by errors: what each instruction inherits and adds, and of losses the share of the error of the outputs
    and the kind."""
    values, texts, notes, marked = {}, {}, {}, []
    for place, (inherited, added) in errors.items():
        values[place] = error = math.hypot(inherited, added)
        share, kind = losses.get(place, (0.0, ""))
        texts[place] = f"{error:.1e}" + (f", {share:.0%} of all" if share >= 0.005 else "")
        notes[place] = f"inherits {inherited:.2g}, adds {added:.2g}"
        if kind:
            notes[place] = f"{kind}: {notes[place]}; {share:.2%} of the error of the outputs"
        if share >= _LARGE_SHARE:
            marked.append(place)
    title = "error of the result, relative to the exact one"
    return quantity(
        title,
        values,
        lambda value: f"{value:.1e}",
        texts=texts,
        marked=marked,
        meaning=f"at least {_LARGE_SHARE:.0%} of the error of the outputs comes from it",
        notes=notes,
        span=_ERROR_SPAN,
    )


def blame_colours(right: Iterable[Place], wrong: Iterable[Place], blamed: Iterable[Place]) -> Colours:
    """Colours by the verdicts of a diff, of which later ones count."""
    values: dict[Place, float] = {}
    for number, places in enumerate((right, wrong, blamed)):
        values |= dict.fromkeys(places, float(number))
    texts = {place: VERDICTS[int(value)].label for place, value in values.items() if value}
    marked = frozenset(place for place, value in values.items() if value == 2)
    return Colours("values, compared with the module before", values, VERDICTS, texts, marked, "to blame")


def byte_colours(module: Module) -> Colours:
    """Colours by the bytes of the values that an instruction defines, as `hloexec.memory_usage` counts them.

    What only passes values on, or is computed within a fusion, defines none. Marked is what is alive at the peak.
    """
    usage = memory_usage(module)
    colours = size_colours(
        ((value.computation, value.instruction), value.byte_size) for value in usage.values if not value.is_phi
    )
    alive = frozenset((value.computation, value.instruction) for value in usage.alive_at(usage.peak.time))
    return attrs.evolve(colours, marked=alive, meaning="alive when most is alive")


def size_colours(sizes: Iterable[tuple[Place, int]]) -> Colours:
    """Colours by bytes; those of an instruction that is named several times are added up."""
    values: dict[Place, float] = {}
    for place, size in sizes:
        values[place] = values.get(place, 0) + size
    return quantity("bytes of the values that it defines", values, lambda value: byte_text(int(value)))


def time_colours(
    module: Module,
    inputs: Inputs | None,
    *,
    runs: int = 3,
    observers: Sequence[Observer] = (),
    **options: Unpack[RunOptions],
) -> Colours:
    """Colours by the time that each instruction takes in a run, all of its iterations and all devices together.

    The least time of several `runs` counts. Instructions that hloexec computes in one step, block by block, share the
    time of the step equally; calls, fusions and loops count with all that they call. `inputs`, `observers` and
    `options` are those of `run_devices` (`hloexec.Inputs`, `hloexec.RunOptions`). Raises whatever `run_devices` raises.
    """
    require_module(module)
    require_integer("runs", runs, 1)
    resolved = resolve_options("time_colours", options)
    watchers = listed("observers", observers, "observers")
    least: dict[Place, float] = {}
    entry = resolved.computation or module.entry_name
    for _ in range(runs):
        clock = _Clock(entry.removeprefix("%"))
        run_with(module, inputs, resolved, [clock, *watchers])
        for place, seconds in clock.seconds.items():
            least[place] = min(seconds, least.get(place, math.inf))
    total = sum(clock.own.values()) or 1.0
    marked = [place for place in clock.own if clock.own[place] >= _LARGE_SHARE * total]
    meaning = f"at least {_LARGE_SHARE:.0%} of the time"
    return quantity("time in all runs of it", least, _seconds_text, marked=marked, meaning=meaning)


class _Clock:
    """An observer that adds up times, also those of what an instruction calls."""

    def __init__(self, entry: str) -> None:
        self._entry = entry
        self.seconds: dict[Place, float] = {}
        self.own: dict[Place, float] = {}

    def on_instruction(self, event: Event) -> None:
        """Called by the run."""
        place = event.computation.name, event.instruction.name
        self.own[place] = self.own.get(place, 0.0) + event.seconds
        path = event.path
        around = [self._entry, *(entry.computation for entry in path)]
        callers = ((name, entry.instruction.name) for name, entry in zip(around, path, strict=False))
        for timed_place in (place, *callers):
            self.seconds[timed_place] = self.seconds.get(timed_place, 0.0) + event.seconds


def _seconds_text(seconds: float) -> str:
    factor, unit = (1.0, "s") if seconds >= 1 else (1e3, "ms") if seconds >= 1e-3 else (1e6, "µs")
    return f"{seconds * factor:.3g} {unit}"


def read_colours(path: str | os.PathLike[str], module: Module) -> Colours:
    """Colours of a module's instructions, from a file of JSON.

    It is what `hloexec shadow`, `diff` (of the module AFTER), `nan` or `memory` printed with --json, or an object that
    has a number for each of some instructions, by name, or as `computation/name` where several have the name.

    Raises InputError where the file is neither, or names no instruction of the module; what it names besides is warned
    of.
    """
    require_path("path", path)
    require_module(module)
    named = repr(os.fspath(path))
    with os_errors_named(f"read {named}"), opened(path, from_shell=True) as file:
        text = file.read()
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{named} is not JSON: {error}") from error
    if not isinstance(record, dict) or not record:
        raise InputError(f"{named} must be a JSON object: what a command printed with --json, or numbers by name")
    schema = record.get("schema")
    if schema is None:
        return _numbers(record, module, named)
    reader = _READERS.get(str(schema).removeprefix("hloexec."))
    if reader is None:
        schemas = ", ".join(f"hloexec.{name}" for name in _READERS)
        raise InputError(f"{named} is {quoted(schema)}, which has no colours; it must be one of {schemas}")
    try:
        colours = reader(record)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{named} does not have what its schema {schema} says") from error
    _require_places(colours, module, named)
    return colours


def _numbers(record: Mapping[str, Any], module: Module, named: str) -> Colours:
    values: dict[Place, float] = {}
    unknown = []
    for key, value in record.items():
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not value >= 0:
            raise InputError(
                f"{named} must have a number from 0 on for each instruction, but has {quoted(value)} for {key!r}"
            )
        try:
            values[_place(key, module)] = float(value)
        except HloError as error:
            unknown.append(error)
        except OverflowError:
            values[_place(key, module)] = math.inf
    if not values:
        raise unknown[0]
    if unknown:
        warn(f"{len(unknown)} of the instructions that {named} names have no colour, such as: {unknown[0].message}")
    title = f"values of {named}"
    return quantity(title, values, lambda value: f"{value:.3g}")


def _place(key: str, module: Module) -> Place:
    computation, name = split_name(key)
    found = module.by_name.get(computation)
    if found is not None and name in found.by_name:
        return found.name, name
    return holding_computation(module, key).name, name


def _require_places(colours: Colours, module: Module, named: str) -> None:
    missing = [
        place
        for place in colours.values
        if place[0] not in module.by_name or place[1] not in module.by_name[place[0]].by_name
    ]
    if not missing:
        return
    example = f"%{missing[0][1]} in {missing[0][0]}"
    if len(missing) == len(colours.values):
        raise InputError(f"{named} is of another module: {module.name} has none of its instructions, such as {example}")
    warn(f"{module.name} does not have {len(missing)} of the instructions that {named} names, such as {example}")


def _shadow(record: Mapping[str, Any]) -> Colours:
    return loss_colours(
        {_at(entry): (float(entry["inherited"]), float(entry["added"])) for entry in record["instruction_errors"]},
        {
            _at(loss): (max(float(loss["share"]), float(loss["lost_share"])), str(loss["kind"]))
            for loss in record["losses"]
        },
    )


def _diff(record: Mapping[str, Any]) -> Colours:
    findings = record["findings"]
    return blame_colours(
        right=(_at(match["after"]) for match in record["matches"]),
        wrong=(_at(step["run"]) for finding in findings for step in finding["graph"] if step["role"] == "output"),
        blamed=(_at(finding["after"]) for finding in findings),
    )


def _nan(record: Mapping[str, Any]) -> Colours:
    finding = record["finding"]
    return blame_colours(
        right=(),
        wrong=(_at(event) for event in (*record["later"], *record["discarded"])),
        blamed=() if finding is None else (_at(finding),),
    )


def _memory(record: Mapping[str, Any]) -> Colours:
    return size_colours((_at(value), int(value["byte_size"])) for value in record["values"] if not value["is_phi"])


def _at(record: Mapping[str, Any]) -> Place:
    return str(record["computation"]), str(record["instruction"])


_READERS: dict[str, Callable[[Mapping[str, Any]], Colours]] = {
    "shadow": _shadow,
    "diff": _diff,
    "nan": _nan,
    "memory": _memory,
}
