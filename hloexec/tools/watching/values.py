"""Another run of a module, in which the values of its instructions are watched.

The first run has given the result, and nothing here can change it; where this one fails, there are no values, and it is
said why.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hloexec.core.ir import Module, TupleShape
from hloexec.core.values import Value
from hloexec.core.wording import number_text, plural
from hloexec.engine.exec.running import run_with
from hloexec.engine.options import Options
from hloexec.errors import HloError, HloWarning, InputError
from hloexec.tools.watching.findings import Column, Key, Ranked, Watched
from hloexec.tools.watching.recording import Measure, ValueRecorder

_LOST = "NaN or infinities that should not be, or errors where all should be zero"
RUNS = Column("runs", "how often it ran")
LARGEST = Column("max |x|", "the largest absolute value of its finite elements, in any run")
_INFINITE = Column("NaN, inf", "how many elements are NaN or infinite, in the run with most of them")
ERROR = Column("error", "the root of the mean squared error, relative to the size of the values, in the worst run")


def watched(watch: Callable[..., Watched], *given: Any, is_tried: bool = True) -> Watched:
    """What `watch` finds in another run, of the result, its module, inputs, options, the instructions that are wanted,
    and of how many others there may be plots.

    Raises InputError where inputs or options are wrong, unless it `is_tried` that they are right.
    """
    with warnings.catch_warnings(action="ignore", category=HloWarning):  # the first run has warned of it
        try:
            return watch(*given)
        except HloError as error:
            if isinstance(error, InputError) and not is_tried:
                raise
            return Watched(note=f"There are no plots of values: the run for them failed ({error.message}).")


def watch_values(
    result: object,
    module: Module,
    inputs: Sequence[Sequence[Value]],
    options: Sequence[Options],
    wanted: Sequence[Key],
    most: int,
) -> Watched:
    """The sizes of values; of a module by itself, with its results in the first place."""
    results = _results(module, options[0].computation)[:most] if isinstance(result, Module) else []
    recorder = ValueRecorder([*wanted, *results], most - len(results) if isinstance(result, Module) else 0)
    run_with(module, inputs, options[0], [recorder])
    figures = {key: (each.runs, each.largest, each.infinite) for key, each in recorder.measures.items()}
    is_search = not isinstance(result, Module)
    along = {key: (each.order, _size(each, is_search)) for key, each in recorder.measures.items()}
    others = sorted((seen.score, key) for key, seen in recorder.seen.items() if key not in results)
    ranking = [Ranked(key, "the result" if len(results) == 1 else "of the result") for key in results]
    ranking += [Ranked(key, _why(key, seen_score, recorder)) for seen_score, key in reversed(others)]
    return Watched(
        (RUNS, LARGEST, _INFINITE),
        figures,
        recorder.seen,
        "Sizes of values along the data flow",
        "largest |x|",
        along,
        ranking=tuple(ranking),
    )


def _size(measure: Measure, is_search: bool) -> float:
    """The largest absolute value; in a search for them, NaN and infinities are larger than all others."""
    is_lost = measure.infinite and (is_search or measure.largest is None)
    return math.inf if is_lost else measure.largest or 0.0


def _results(module: Module, computation: str | None) -> list[Key]:
    """The instructions that give the arrays of the result."""
    entry = module.entry if computation is None else module.by_name[computation.removeprefix("%")]
    names = (
        entry.root.operands if isinstance(entry.root.shape, TupleShape) and entry.root.operands else (entry.root_name,)
    )
    return [(entry.name, name) for name in dict.fromkeys(names)]


def _why(key: Key, score: float, recorder: ValueRecorder) -> str:
    measure = recorder.measures[key]
    if score >= 1e300:
        return f"{plural(measure.infinite, 'element')} NaN or infinite"
    return f"largest |x| {number_text(measure.largest, 3)}"


def of_errors(
    recorder: ValueRecorder, columns: tuple[Column, ...], figures: Mapping[Key, Sequence[Any]], note: str = ""
) -> Watched:
    """What is known of a run whose values were compared with what they should be."""
    along = {key: (each.order, each.error) for key, each in recorder.measures.items() if each.error is not None}
    title, label = "Error along the data flow", "relative error"
    return Watched(columns, figures, recorder.seen, title, label, along, _LOST, note)
