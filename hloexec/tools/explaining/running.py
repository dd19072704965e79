"""`explain`: which numerics policy gives what is expected of a module, or of its instructions one by one.

What instructions gave on the other side: by names, in a trace, or in a folder of literals.

A computation may run often, in loops and on several devices. What one of its runs gave on one device is a *frame*: the
operands of an instruction are looked up in the frame that its result is from.

Explaining the values of instructions one by one, where those of the other side are known.

Each is computed from the operands that it had on the other side, so that only its own numerics show: by what rounding
leaves of it, as results of modules are. Where the other side does not say what an operand was, that is computed, too,
from what it says. In loops and on several devices, an instruction is explained in several of its runs at once.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Unpack

import attrs
import numpy as np

from hloexec.analysis.numerics.leaves import labelled_like, leaves_of
from hloexec.analysis.numerics.measuring import are_comparable
from hloexec.analysis.numerics.undecided import UndecidedLeaves
from hloexec.core.arguments import listed, require_integer, require_module, require_number, wrong
from hloexec.core.dtypes import element_type_of
from hloexec.core.files import opened
from hloexec.core.ir import ArrayShape, Computation, Instruction, Module
from hloexec.core.places import split_name
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Inputs, Value
from hloexec.core.wording import listing
from hloexec.engine.devices.topology import topology_of
from hloexec.engine.exec.arguments import inputs_by_device
from hloexec.engine.exec.observers import Observer
from hloexec.engine.exec.running import RunOptions, require_policy_names, resolve_options, run_with
from hloexec.engine.inputs import random_inputs
from hloexec.engine.options import Options
from hloexec.errors import HloError, InputError, ResourceError, os_errors_named
from hloexec.language.interop.shape_protos import literal_value
from hloexec.language.literals import load_arrays
from hloexec.language.origins import hlo_line, source_lines
from hloexec.ops.attributes import computation_names
from hloexec.ops.common import narrow
from hloexec.ops.policies.policy import POLICIES, NumericsPolicy, numerics_policy
from hloexec.ops.registry import Role, role_of
from hloexec.tools.explaining.findings import Explained, Explanation, InstructionExplanation
from hloexec.tools.explaining.searching import Found, search
from hloexec.tools.explaining.trying import Leaves, OutOfTimeError, Trials, most_runs, timeout_until
from hloexec.tools.extraction.running import called_computation, needs_devices, slice_module, slice_of
from hloexec.tools.tracing.running import Trace


@frozen(eq=False)
class Frame:
    """The values of a computation in one of its runs, on one device."""

    computation: str
    run: str
    """The path of the run, `loop[2]:body`; empty for that of the entry computation."""
    device: int
    values: dict[str, Callable[[], Array]]
    """By the names of instructions; a trace is read only where they are asked for."""


def frames_of_names(module: Module, arrays: Mapping[str, Array], inputs: Sequence[Value]) -> list[Frame]:
    """One frame for each computation with instructions of these names; of several that have one of the same name, the
    entry computation is meant, else the first. Names that `extract --outputs` gives say the calls that lead there; what
    is in loops has all iterations, stacked. InputError where there is none, or a value does not fit."""
    named = {name.removeprefix("%"): array for name, array in arrays.items()}
    homes: dict[str, str] = {}
    for computation in (module.entry, *module):
        for instruction in computation:
            homes.setdefault(instruction.name, computation.name)
    unknown = [name for name in named if split_name(name)[1] not in homes]
    if unknown:
        raise InputError(f"values are given for {listing(unknown, 4)}, but {module.name} has no such instruction")
    frames = _with_inputs(module, [inputs], {})
    for name, array in named.items():
        run, last = split_name(name)
        home, loops = called_computation(module, name) if run else (homes[name], 0)
        if home is None or last not in module.by_name[home].by_name:
            raise InputError(f"values are given for {name}, but no calls of {module.name} lead there")
        for index in np.ndindex(array.shape[:loops]):
            _require_fit(module.by_name[home].by_name[last], array[index] if loops else array)
            key = f"{run}{list(index)}" if loops else run
            frame = frames.setdefault((key, home, 0), Frame(home, key, 0, {}))
            frame.values[last] = partial(_itself, np.asarray(array[index]) if loops else array)
    return list(frames.values())


def frames_of_trace(module: Module, trace: Trace, inputs: Sequence[Sequence[Value]]) -> list[Frame]:
    """The frames of all runs and devices in a trace, of computations and instructions that the module has, too."""
    frames = _with_inputs(module, inputs, {})
    for event in trace:
        computation = module.by_name.get(event.computation)
        instruction = None if computation is None else computation.by_name.get(event.instruction)
        if instruction is None or len(event.arrays) != 1 or event.arrays[0].index:
            continue
        record = event.arrays[0]
        shape = instruction.shape
        if not isinstance(shape, ArrayShape) or (shape.element_type, shape.dimensions) != (
            record.shape.element_type,
            record.shape.dimensions,
        ):
            raise InputError(f"the trace has {record.shape} for %{event.instruction}, but it is {shape}")
        run = split_name(event.name)[0]
        for device in event.devices:
            key = run, event.computation, device
            frame = frames.setdefault(key, Frame(event.computation, run, device, {}))
            frame.values[event.instruction] = partial(trace.array, record)
    return list(frames.values())


def _with_inputs(
    module: Module, inputs: Iterable[Sequence[Value]], frames: dict[tuple[str, str, int], Frame]
) -> dict[tuple[str, str, int], Frame]:
    """Frames of the entry computation that know the inputs of each device."""
    for device, row in enumerate(inputs):
        pairs = zip(module.entry.parameters, row, strict=True)
        known: dict[str, Callable[[], Array]] = {
            parameter.name: partial(_itself, value) for parameter, value in pairs if isinstance(value, np.ndarray)
        }
        frames["", module.entry.name, device] = Frame(module.entry.name, "", device, known)
    return frames


def _itself(array: Array) -> Array:
    return array


def _require_fit(instruction: Instruction, array: Array) -> None:
    shape = instruction.shape
    if not isinstance(shape, ArrayShape) or shape.dimensions != array.shape:
        raise InputError(
            f"the value given for %{instruction.name} has dimensions {list(array.shape)}, but it is {shape}"
        )
    if element_type_of(array.dtype) is not shape.element_type:
        raise InputError(
            f"the value given for %{instruction.name} is {element_type_of(array.dtype)}, but it is {shape}"
        )


def given_arrays(values: object) -> dict[str, Array]:
    """Arrays by names of instructions; InputError where it is something else."""
    if not isinstance(values, Mapping) or not all(isinstance(name, str) for name in values):
        raise wrong("values", "a mapping from names of instructions to arrays, or a Trace", values)
    arrays = {}
    for name, value in values.items():
        (pair,) = leaves_of({name: value}, "other side's") if not isinstance(value, (tuple, list, Mapping)) else (None,)
        if pair is None:
            raise wrong("values", f"arrays, but that of {name!r} is a tuple", value)
        arrays[name] = pair[1]
    return arrays


def read_literals(folder: str | os.PathLike[str]) -> dict[str, Array]:
    """The arrays of a folder with a file for each instruction, named as it is: `.pb`, a serialized LiteralProto as XLA
    writes it, or `.npy`. InputError where there is none, or one is damaged."""
    arrays: dict[str, Array] = {}
    for path in _files(Path(folder)):
        if path.stem in arrays:
            raise InputError(f"{os.fspath(folder)!r} has two files for %{path.stem}")
        if path.suffix == ".npy":
            (arrays[path.stem],) = load_arrays(path).values()
            continue
        with os_errors_named(f"read {os.fspath(path)!r}"), opened(path) as file:
            data = file.read()
        try:
            value = literal_value(data)
        except InputError as error:
            raise InputError(f"{os.fspath(path)!r} is not a LiteralProto: {error.message}") from error
        # Tuples are put together of what instructions give that have files of their own.
        if isinstance(value, np.ndarray):
            arrays[path.stem] = value
    if not arrays:
        raise InputError(
            f"{os.fspath(folder)!r} is not a trace, and has no files of instructions' values, NAME.pb or NAME.npy"
        )
    return arrays


def _files(folder: Path) -> Iterator[Path]:
    with os_errors_named(f"read {os.fspath(folder)!r}"):
        yield from sorted(path for path in folder.iterdir() if path.suffix in (".pb", ".npy"))


_MOST_RUNS = 150
"""Of the search for one instruction."""
_MOST_FRAMES = 12
"""Runs of an instruction that are looked at, evenly spread."""


def explained_instructions(
    module: Module,
    frames: Sequence[Frame],
    policies: Sequence[NumericsPolicy],
    trials: Trials,
    options: Options,
) -> tuple[int, list[InstructionExplanation]]:
    """How many instructions were looked at, and those that rounding alone does not explain, in data-flow order."""
    by_computation: dict[str, list[Frame]] = {}
    for frame in frames:
        by_computation.setdefault(frame.computation, []).append(frame)
    count, explanations = 0, []
    for computation in module:
        for instruction in computation:
            having = [
                candidate
                for candidate in by_computation.get(computation.name, ())
                if instruction.name in candidate.values
            ]
            if not having or role_of(instruction) is Role.PARAMETER or not trials.has_time():
                continue
            explanation = _explained(
                module, computation, instruction, having, by_computation, policies, trials.end, options
            )
            if explanation is not None:
                count += 1
                if explanation.verdict in (Explained.POLICY, Explained.NONE):
                    explanations.append(explanation)
    trials.is_over = trials.is_over or not trials.has_time()
    return count, explanations


@frozen(eq=False)
class _Part:
    """The instruction, and what it takes to compute it, as a module."""

    module: Module
    boundary: tuple[str, ...]
    runs: Sequence[Sequence[Frame]]
    """Of each, the frames of one device, or of all if they exchange something."""
    options: Options

    def __call__(self, policy: NumericsPolicy, end: float) -> list[Value]:
        results: list[Value] = []
        for devices in self.runs:
            rows = [[frame.values[name]() for name in self.boundary] for frame in devices]
            given = attrs.evolve(self.options, numerics=policy, timeout=timeout_until(end))
            results += run_with(self.module, rows, given)[: len(devices)]
        return results


def _part_of(
    module: Module,
    computation: Computation,
    target: str,
    frames: Sequence[Frame],
    names: Collection[str],
    options: Options,
) -> _Part | None:
    """The part that computes an instruction; None where that is none, where the values that it is made of are not
    known, or where it runs computations whose instructions are explained by themselves."""
    common = set(frames[0].values).intersection(*(frame.values for frame in frames[1:]))
    cuts = [entry.name for entry in computation if entry.name in common and entry.name != target]
    try:
        part = slice_of(computation, target, cuts=cuts)
    except InputError:
        return None
    runs_known = any(
        name in names and role_of(computation.by_name[inside]) is not Role.KERNEL
        for inside in part.inside
        for name in computation_names(computation.by_name[inside].attributes)
    )
    if runs_known or not common.issuperset(part.boundary):
        return None
    runs: list[list[Frame]] = [[frame] for frame in frames]
    if needs_devices(part, module):
        by_run: dict[str, list[Frame]] = {}
        for frame in frames:
            by_run.setdefault(frame.run, []).append(frame)
        whole = {frame.device for frame in frames}
        runs = [sorted(entry, key=lambda frame: frame.device) for entry in by_run.values() if len(entry) == len(whole)]
    else:
        options = attrs.evolve(options, replicas=None, partitions=None)
    step = -(-len(runs) // _MOST_FRAMES)
    return _Part(slice_module(module, part), part.boundary, runs[:: max(1, step)], options)


def _explained(
    module: Module,
    computation: Computation,
    instruction: Instruction,
    frames: Sequence[Frame],
    names: Collection[str],
    policies: Sequence[NumericsPolicy],
    end: float,
    options: Options,
) -> InstructionExplanation | None:
    """What explains the values of an instruction; None where it cannot be computed by itself."""
    part = _part_of(module, computation, instruction.name, frames, names, options)
    if part is None:
        return None
    trials = Trials(part, {}, _MOST_RUNS, end)
    expected_values = [frame.values[instruction.name]() for devices in part.runs for frame in devices]
    try:
        trials.expected = dict(zip(trials.reference, expected_values, strict=True))
        search_result = search(part.module, trials, policies)
    except (HloError, OutOfTimeError, ValueError):
        # A part may lack what it needs of the host, or of devices whose values are not known.
        return None
    return InstructionExplanation(
        name=instruction.name,
        opcode=instruction.opcode,
        hlo=hlo_line(instruction),
        verdict=search_result.verdict,
        best=search_result.best,
        alike=search_result.alike,
        source=tuple(map(str, source_lines(module, instruction))),
        runs=len(expected_values),
        is_complete=not trials.is_over,
    )


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
    outcome = search(module, trials, chosen)
    left_open: tuple[str, ...] = ()
    if outcome.verdict is Explained.NONE and options.computation is None and trials.has_time():
        trials, left_open = _without_open(module, inputs, trials, options)
        if left_open:
            outcome = search(module, trials, chosen)
            if outcome.verdict in (Explained.EQUAL, Explained.ROUNDING):
                outcome = attrs.evolve(outcome, verdict=Explained.NOT_DECIDED)
    return outcome, trials, left_open


def _without_open(module: Module, inputs: Inputs, trials: Trials, options: Options) -> tuple[Trials, tuple[str, ...]]:
    """Trials against what is expected where HLO and the text leave nothing open, and what they leave open, by leaf."""
    rows = inputs_by_device(module.entry, inputs)
    count = topology_of(module, options.replicas, options.partitions).count
    undecided = UndecidedLeaves(module, rows, "reference", options.elided, count == 1)
    expected, said = dict(trials.expected), []
    for label, array in trials.reference.items():
        undecided_elements, mask = undecided.found(label, array)
        if undecided_elements is not None and not np.array_equal(expected[label][mask], array[mask]):
            expected[label] = np.where(mask, array, expected[label])
            said.append(f"{label}: {undecided_elements.text(array.size)}")
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


def _policies(named: Sequence[str | NumericsPolicy]) -> list[NumericsPolicy]:
    """The policies to try; InputError where there are none, or some that nobody could have run with."""
    usable = (str, NumericsPolicy, Mapping)
    is_list = isinstance(named, Sequence) and not isinstance(named, (str, bytes))
    if not is_list or not all(isinstance(policy, usable) for policy in named):
        raise wrong("policies", "a list of numerics policies", named)
    policies = [numerics_policy(name) for name in named]
    if not policies:
        raise InputError("policies must name at least one policy to try")
    for policy in policies:
        if policy.rounding_seed is not None:
            raise InputError(f"policies has {policy.name}, which rounds at random: no backend does that")
    return policies


def _fitted(theirs: Leaves, ours: Leaves) -> Leaves:
    """What is expected, by the labels and in the types of the module's result; InputError where it does not fit."""
    theirs = labelled_like(theirs, ours)
    missing = [label for label in ours if label not in theirs]
    surplus = [label for label in theirs if label not in ours]
    if missing or surplus:
        problem = f"lacks {listing(missing, 6)}" if missing else f"has {listing(surplus, 6)} besides"
        raise InputError(
            f"the expected values do not fit the module's result: it has the leaves {listing(ours, 6)}, "
            f"and what is expected {problem}"
        )
    fitted = {}
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
        fitted[label] = other if other.dtype == array.dtype else narrow(other, entries[0])
    return fitted
