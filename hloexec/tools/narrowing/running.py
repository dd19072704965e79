"""`narrow`: which instructions may compute in a narrower type, with every output within a tolerance."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import numpy as np

from hloexec.analysis.calls import CallKind, calls_in
from hloexec.core.arguments import listed, require_flags
from hloexec.core.ir import ArrayShape, Instruction, Module
from hloexec.core.values import Array, Inputs
from hloexec.engine.exec.observers import Observer, Stages, attach
from hloexec.engine.exec.options import RunOptions
from hloexec.errors import warn
from hloexec.language.verifier import verify
from hloexec.ops.common import is_inexact, widen
from hloexec.tools.narrowing.accounts import verdicts, work_by_type
from hloexec.tools.narrowing.candidates import KINDS, Candidate, candidates_of
from hloexec.tools.narrowing.carrying import carried_by
from hloexec.tools.narrowing.findings import Narrowing, OutputDeviation
from hloexec.tools.narrowing.measuring import Measurer, Ranges, Reference
from hloexec.tools.narrowing.rewriting import rewritten
from hloexec.tools.narrowing.search import Search
from hloexec.tools.narrowing.settings import Settings, nothing_carried, require_candidates, tolerances_of
from hloexec.tools.narrowing.verification import Supply, Verification

_MARGIN = 0.25
_SLACK = 4
"""How many times the iterations of the original's longest loop a loop of a narrowed module may take, where numbers that
are rounded decide when it ends."""


def narrow(
    module: Module,
    inputs: Sequence[Inputs] | Callable[[int], Inputs] | None = None,
    *,
    tolerance: float,
    output_tolerances: Mapping[Any, float] | None = None,
    only_outputs: Sequence[Any] | None = None,
    types: Sequence[str] = ("bf16",),
    kinds: Sequence[str] = KINDS,
    steps: int = 1,
    carry: Mapping[Any, Any] | None = None,
    seeds: int = 5,
    held_back: int = 60,
    margin: float | None = None,
    max_trials: int = 200,
    portable: bool = False,
    observers: Sequence[Observer] = (),
    **options: Unpack[RunOptions],
) -> Narrowing:
    """Find instructions that may compute in a narrower type, with every output within a tolerance.

    An elementwise instruction takes and gives the narrow type; a contraction takes it, and adds up in f32. `types` are
    the types to try, such as bf16, f16, f8e4m3fn, f8e5m2 or (for f64) f32: the widest first, then narrower ones for
    what that allows. `kinds` restricts the search to `contraction` or `elementwise`.

    `tolerance` bounds the error of every element of every output, relative to the element or, for a small one, to the
    median magnitude in its array (`narrowing.measuring`); integers must stay the same. `output_tolerances` has
    others by the outputs' labels (`value`, `0`, `1.2`, as `hloexec.compare` has them), and `only_outputs` are the
    only ones that are held to any. No number within the range of the original's type may leave that of the narrow type.

    With `steps`, the module is a training step that runs so many times: `carry` maps labels of outputs to the
    parameters that they become (by default as input_output_alias says, or what has equal shapes in order), and what is
    compared at each step are the outputs that are not carried, such as the loss.

    `inputs` is a list of inputs, each as for `run_devices`, or a function from a seed to inputs; by default random
    inputs. The search runs on `seeds` of them (of a list, on the first two thirds), and accepts what stays within
    `margin` times the tolerances on all of these: a quarter by default, and all where none is held back. In the end,
    the module that was found runs on `held_back` inputs that the search has not seen (of a list, the last third), and
    has to stay within the root of `margin` times the tolerances there; of 20 and more, what they say of others
    (`narrowing.verification`) must be that 999 of 1000 are within the tolerances, with 95 % confidence, if the
    logarithms of their errors are normal. Else the search takes back what was accepted last. Whatever the distribution,
    a module that stays within them on n inputs leaves them on fewer than 3 of n, with 95 % confidence. `max_trials` is
    the number of modules that are tried before that.

    With `portable`, contractions of the module take narrow operands converted back to f32, with the same values:
    XLA:CPU does not multiply most narrow types.

    Of `observers`, those with a method `on_stage` are told how far the search is. The result is the same for the same
    arguments. Raises InputError for invalid arguments, and what `run_devices` raises for the original.
    """
    began = time.perf_counter()
    require_flags(portable=portable)
    settings = Settings(module, tolerance, types, kinds, steps, (seeds, held_back), margin, max_trials, options)
    verify(module)
    candidates = candidates_of(module, settings.kinds)
    require_candidates(module, candidates, settings.types)
    carried = carried_by(module, module.entry, carry) if steps > 1 else nothing_carried(carry)
    tolerances = tolerances_of(module, tolerance, output_tolerances, only_outputs, carried)
    measurer = Measurer(module, steps, carried, tolerances, settings.options)
    attach(observers)
    stages = Stages(listed("observers", observers, "observers"))
    supply = Supply(module, inputs, settings)
    if margin is None:
        margin = _MARGIN if supply.held_back_count else 1.0
    references, ranges = _originals(measurer, supply, candidates, stages)
    limits = _limits(module, ranges, settings.options.max_iterations)
    shares = margin, max_trials
    search = Search(module, candidates, measurer, references, ranges, shares, limits, stages)
    for narrow_type in settings.types:
        search.narrow_to(narrow_type)
    checked = Verification(search, measurer, supply, ranges, limits, stages).run()
    search.measure_alone(settings.types[0])
    return Narrowing(
        module=rewritten(module, search.accepted, is_portable=portable).module,
        instructions=tuple(verdicts(module, candidates, search, ranges[0], settings.types)),
        outputs=tuple(
            OutputDeviation(label, tolerances[label], checked.worst[label], checked.held_back.get(label))
            for label in tolerances
        ),
        carried=carried,
        steps=steps,
        **work_by_type(module, candidates, search, ranges[0]),
        margin=margin,
        input_count=len(search.references) + len(search.joined),
        held_back_count=checked.held_back_count,
        rejections=checked.rejections,
        trials=search.trials,
        seconds=time.perf_counter() - began,
    )


def _originals(
    measurer: Measurer, supply: Supply, candidates: Sequence[Candidate], stages: Stages
) -> tuple[list[Reference], list[Ranges]]:
    """What the original gives for the inputs of the search, and the magnitudes of its values."""
    references: list[Reference] = []
    ranges: list[Ranges] = []
    stages.begin("running the original", supply.count)
    for number, given in enumerate(supply.first()):
        ranges.append(Ranges({candidate.place for candidate in candidates}))
        references.append(measurer.reference(number, given, [ranges[-1]]))
        stages.tick()
    for label in measurer.tolerances:
        _warn_of_lost(label, [each[label].array for one in references for row in one.expected for each in row])
    return references, ranges


def _warn_of_lost(label: str, arrays: Sequence[Array]) -> None:
    """Warn of elements of an output that are no numbers: what makes them so may change, and nothing tells."""
    values = [widen(array) for array in arrays if is_inexact(array)]
    count = sum(value.size for value in values)
    lost = count - sum(int(np.count_nonzero(np.isfinite(value))) for value in values)
    if lost:
        many = "all elements" if lost == count else f"{lost} of {count} elements"
        warn(f"of output {label}, {many} are NaN or infinite on the inputs of the search, and only have to stay so")


def _limits(module: Module, ranges: Sequence[Ranges], given: int | None) -> dict[str, int]:
    """A limit of the iterations of loops, where rounding may keep one from ending."""
    conditions = [condition for *_, condition in calls_in(module, CallKind.CONDITION)]
    if not any(_is_float(each) for condition in conditions for each in condition):
        return {}
    most = _SLACK * max(each.longest_loop for each in ranges)
    return {"max_iterations": most if given is None else min(most, given)}


def _is_float(instruction: Instruction) -> bool:
    return isinstance(instruction.shape, ArrayShape) and instruction.shape.element_type.is_floating
