"""What graphs are coloured by: errors of a shadow run or a diff, times of a run, bytes of values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Unpack

import attrs

from hloexec.analysis.buffers import memory_usage
from hloexec.core.arguments import listed, require_integer, require_module, wrong
from hloexec.core.ir import Module
from hloexec.core.values import Inputs
from hloexec.core.wording import byte_text
from hloexec.engine.exec.observers import Event, Observer
from hloexec.engine.exec.options import RunOptions, resolve_options
from hloexec.engine.exec.running import run_with
from hloexec.tools.diffing import Diff
from hloexec.tools.graphing.colours import VERDICTS, Colours, quantity
from hloexec.tools.graphing.flow import Place
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
    found = size_colours(
        ((value.computation, value.instruction), value.byte_size) for value in usage.values if not value.is_phi
    )
    alive = frozenset((value.computation, value.instruction) for value in usage.alive_at(usage.peak.time))
    return attrs.evolve(found, marked=alive, meaning="alive when most is alive")


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
        for each in (place, *callers):
            self.seconds[each] = self.seconds.get(each, 0.0) + event.seconds


def _seconds_text(seconds: float) -> str:
    factor, unit = (1.0, "s") if seconds >= 1 else (1e3, "ms") if seconds >= 1e-3 else (1e6, "µs")
    return f"{seconds * factor:.3g} {unit}"
