"""`explain`: which numerics policy gives what is expected of a module."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Unpack

import attrs
import numpy as np

from hloexec.analysis.numerics.leaves import leaves_of, relabelled
from hloexec.analysis.numerics.ulps import are_comparable
from hloexec.analysis.numerics.undecided import UndecidedLeaves
from hloexec.core.arguments import listed, require_integer, require_module, require_number, wrong
from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import Module
from hloexec.core.values import Array, Inputs, Value
from hloexec.core.wording import listing
from hloexec.engine.devices.topology import topology_of
from hloexec.engine.exec.arguments import inputs_by_device
from hloexec.engine.exec.observers import Observer
from hloexec.engine.exec.options import RunOptions, resolve_options
from hloexec.engine.exec.plans import require_policy_names
from hloexec.engine.exec.running import run_with
from hloexec.engine.inputs import random_inputs
from hloexec.engine.options import Options
from hloexec.errors import InputError, ResourceError
from hloexec.ops.common import narrow
from hloexec.ops.policies.policy import POLICIES, NumericsPolicy, numerics_policy
from hloexec.tools.explaining.findings import Explained, Explanation, InstructionExplanation
from hloexec.tools.explaining.other_side import Frame, frames_of_names, frames_of_trace, given_arrays
from hloexec.tools.explaining.per_instruction import explained_instructions
from hloexec.tools.explaining.searching import Found, search
from hloexec.tools.explaining.trying import OutOfTimeError, Trials, timeout_until
from hloexec.tools.explaining.units import most_runs
from hloexec.tools.explaining.values import Leaves
from hloexec.tools.tracing.reading import Trace


def explain(
    module: Module,
    inputs: Inputs | None,
    expected: Value | Mapping[str, Array],
    *,
    policies: Sequence[str | NumericsPolicy] = tuple(POLICIES),
    values: Mapping[str, Array] | Trace | None = None,
    runs: int | None = None,
    budget: float | None = None,
    observers: Sequence[Observer] = (),
    **options: Unpack[RunOptions],
) -> Explanation:
    """Find the numerics policy under which a module gives what is expected.

    `expected` is the result of another backend on the same `inputs`: a value, or a mapping from the labels of leaves
    (`0`, `1.0`, `value`) to arrays. Each of `policies` is tried for the whole module; then for those instructions alone
    whose effects are found in what is expected, and several at once. A policy explains it if what remains is what
    rounding leaves: the module also runs with random rounding of sums and functions, but in the formats of the policy
    (docs/precision.md). Policies that the values cannot tell apart are all named, the simplest first, so that a verdict
    never says more than was measured; so are the instructions of which they cannot tell whether they have a policy.

    `runs` ends the search after so many runs of the module; by default as many as take some 10¹¹ operations (those of
    contractions, and 20 000 for each instruction that runs), but at least 60 and at most 1000. `budget` ends it after
    so many seconds, too: only then does the result depend on how fast the machine is.

    `values` are what instructions gave on the other side: by their names, on one device, or a trace
    (`hloexec.read_trace`), which has those in loops and on several devices, too. Each instruction is then explained by
    itself, from the operands that it had there.

    `inputs`, `observers` and `options` are those of `run_devices` (`hloexec.Inputs`, `hloexec.RunOptions`); `numerics`
    is none of them. Raises InputError for what does not fit the module, and whatever `run_devices` raises.
    """
    require_module(module)
    resolved = resolve_options("explain", options)
    if budget is not None:
        require_number("budget", budget)
    if runs is not None:
        require_integer("runs", runs, 1)
    if "numerics" in options:
        raise InputError(
            "explain takes no numerics: it tries policies one after the other; give those that it shall try as policies"
        )
    chosen = _policies(policies)
    for policy in chosen:
        require_policy_names(module, policy)
    end = math.inf if budget is None else time.monotonic() + budget
    watchers = listed("observers", observers, "observers")
    if inputs is None:
        inputs = [random_inputs(module, resolved.seed, computation=resolved.computation)]

    def run(policy: NumericsPolicy, end: float) -> Sequence[Value]:
        limits = [seconds for seconds in (resolved.timeout, timeout_until(end)) if seconds is not None]
        given = attrs.evolve(resolved, numerics=policy, timeout=min(limits, default=None))
        return run_with(module, inputs, given, watchers)

    trials = Trials(run, {}, most_runs(module) if runs is None else runs, end)
    try:
        trials.expected = _fitted(dict(leaves_of(expected, "expected")), trials.reference)
        found, trials, left_open = _searched(module, inputs, trials, chosen, resolved)
    except OutOfTimeError:
        raise ResourceError(
            f"budget={budget:g} ends the search before it is known what rounding does: give it the time of more runs"
        ) from None
    count, instructions = 0, list[InstructionExplanation]()
    if values is not None:
        frames = _frames(module, inputs, values, resolved)
        of_parts = attrs.evolve(
            resolved.of_parts, elided=resolved.elided, replicas=resolved.replicas, partitions=resolved.partitions
        )
        count, instructions = explained_instructions(module, frames, chosen, trials, of_parts)
    return Explanation(
        **attrs.asdict(found, recurse=False),
        reference=next(trial for trial in found.trials if trial.policy.name == "reference"),
        leaves=trials.leaves(found.best),
        runs=trials.runs,
        instructions=tuple(instructions),
        checked_instructions=count,
        is_complete=not trials.is_over,
        left_open=left_open,
    )


def _searched(
    module: Module, inputs: Inputs, trials: Trials, chosen: Sequence[NumericsPolicy], options: Options
) -> tuple[Found, Trials, tuple[str, ...]]:
    """What a search finds, without what the text leaves open if that explains more."""
    found = search(module, trials, chosen)
    left_open: tuple[str, ...] = ()
    if found.verdict is Explained.NONE and options.computation is None and trials.has_time():
        trials, left_open = _without_open(module, inputs, trials, options)
        if left_open:
            found = search(module, trials, chosen)
            if found.verdict in (Explained.EQUAL, Explained.ROUNDING):
                found = attrs.evolve(found, verdict=Explained.NOT_DECIDED)
    return found, trials, left_open


def _without_open(module: Module, inputs: Inputs, trials: Trials, options: Options) -> tuple[Trials, tuple[str, ...]]:
    """Trials against what is expected where HLO and the text leave nothing open, and what they leave open, by leaf."""
    rows = inputs_by_device(module.entry, inputs)
    count = topology_of(module, options.replicas, options.partitions).count
    undecided = UndecidedLeaves(module, rows, "reference", options.elided, count == 1)
    expected, said = dict(trials.expected), []
    for label, array in trials.reference.items():
        found, mask = undecided.found(label, array)
        if found is not None and not np.array_equal(expected[label][mask], array[mask]):
            expected[label] = np.where(mask, array, expected[label])
            said.append(f"{label}: {found.text(array.size)}")
    return (trials.against(expected), tuple(said)) if said else (trials, ())


def _frames(module: Module, inputs: Inputs, values: Mapping[str, Array] | Trace, options: Options) -> list[Frame]:
    """What instructions gave on the other side; InputError where it does not fit the module."""
    rows = inputs_by_device(module.entry, inputs)
    devices = topology_of(module, options.replicas, options.partitions).count
    if isinstance(values, Trace):
        return frames_of_trace(module, values, rows if len(rows) == devices else rows * devices)
    if devices > 1:
        raise InputError("values by names are those of one device, but the module runs on several: give a trace")
    return frames_of_names(module, given_arrays(values), rows[0])


def _policies(given: Sequence[str | NumericsPolicy]) -> list[NumericsPolicy]:
    """The policies to try; InputError where there are none, or some that nobody could have run with."""
    usable = (str, NumericsPolicy, Mapping)
    is_list = isinstance(given, Sequence) and not isinstance(given, (str, bytes))
    if not is_list or not all(isinstance(policy, usable) for policy in given):
        raise wrong("policies", "a list of numerics policies", given)
    found = [numerics_policy(name) for name in given]
    if not found:
        raise InputError("policies must name at least one policy to try")
    for policy in found:
        if policy.rounding_seed is not None:
            raise InputError(f"policies has {policy.name}, which rounds at random: no backend does that")
    return found


def _fitted(theirs: Leaves, ours: Leaves) -> Leaves:
    """What is expected, by the labels and in the types of the module's result; InputError where it does not fit."""
    if len(theirs) == len(ours) == 1:
        theirs = dict(zip(ours, theirs.values(), strict=True))
    theirs = relabelled(theirs, {label: array.shape for label, array in ours.items()})
    missing = [label for label in ours if label not in theirs]
    surplus = [label for label in theirs if label not in ours]
    if missing or surplus:
        what = f"lacks {listing(missing, 6)}" if missing else f"has {listing(surplus, 6)} besides"
        raise InputError(
            f"the expected values do not fit the module's result: it has the leaves {listing(ours, 6)}, "
            f"and what is expected {what}"
        )
    found = {}
    for label, array in ours.items():
        other = theirs[label]
        if other.shape != array.shape:
            raise InputError(
                f"leaf {label} of the expected values has dimensions {list(other.shape)}, but the module's result has "
                f"{list(array.shape)}"
            )
        entries = element_type_of(array.dtype), element_type_of(other.dtype)
        if not are_comparable(*entries):
            raise InputError(
                f"leaf {label} of the expected values is of {entries[1]}, but the module's of {entries[0]}"
            )
        found[label] = other if other.dtype == array.dtype else narrow(other, entries[0])
    return found
