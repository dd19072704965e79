"""`extract`: an instruction and everything it depends on, as a separate module with recorded inputs.

A slice has an interior, which the new module computes, and a boundary, whose values become its parameters. Names,
layouts and metadata are kept.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Unpack

import attrs
import numpy as np

from hloexec.analysis.calls import CallKind, applied_computations, calls_of
from hloexec.analysis.numerics.comparing import compare
from hloexec.analysis.numerics.comparison import LeafComparison
from hloexec.core.arguments import listed, require_integer, require_module, require_path, require_text, texts
from hloexec.core.dtypes import element_type_of
from hloexec.core.files import require_new_folder, whole_folder
from hloexec.core.ir import ArrayShape, Computation, Instruction, Module, Shape, TupleShape
from hloexec.core.ir.editing import change_computations, change_entry, map_instructions
from hloexec.core.places import split_path
from hloexec.core.structs import frozen
from hloexec.core.values import Described, Inputs, Value, arrays_of
from hloexec.core.wording import argument, listing, on_devices, quoted, suggestion
from hloexec.engine.devices.topology import device_counts, topology_of
from hloexec.engine.exec.observers import Event, Observer, path_of
from hloexec.engine.exec.running import RunOptions, plan_of, resolve_options, run_devices, run_with
from hloexec.engine.plan.schedule import callees_first
from hloexec.errors import InputError
from hloexec.language import literals
from hloexec.language.verifier import explained
from hloexec.ops.attributes import computation_names
from hloexec.ops.control.flow import make_parameter
from hloexec.ops.registry import Role, exchanges, find_opcode, role_of, traits_of


@frozen
class Slice:
    """The instructions of a computation that one of them needs."""

    computation: Computation
    target: str
    inside: tuple[str, ...]
    """What is computed, in the order of the text; tokens that the slice begins with are among them."""
    boundary: tuple[str, ...]
    """What is given, in the order of the text."""


def slice_of(
    computation: Computation,
    target: str,
    *,
    depth: int | None = None,
    cuts: Iterable[str] = (),
    keep_devices: bool = True,
) -> Slice:
    """The instructions of `computation` that `target` needs, back to its parameters.

    With `depth`, at most this many levels of operands: 1 is the instruction alone. `cuts` are inputs, too, and so is
    whatever would be another value in another run: random numbers from a state, and what comes from a host. Without
    `keep_devices`, what exchanges values with other devices is given as well, unless it is the target. Constants are
    always inside, unless the text elides their values. Of tuples, only the elements in use are given.

    Raises InputError where an instruction is not there, a cut would go through an asynchronous pair, or the target
    gives no value that a module could.
    """
    by_name = computation.by_name
    cut_names = {name.removeprefix("%") for name in cuts}
    _require_target(computation, target, cut_names, depth)

    def is_cut(instruction: Instruction, steps: int) -> bool:
        role, opens = role_of(instruction), traits_of(instruction).opens
        if role is Role.CONSTANT:
            return bool(instruction.attributes.literal.is_elided)
        if role is Role.PARAMETER or instruction.name in cut_names or is_unrepeatable(instruction):
            return True
        if not keep_devices and _needs_devices(instruction):
            return not opens
        # A start without its done, and the other way round, are no program.
        return depth is not None and steps >= depth and not opens

    inside: set[str] = set()
    boundary: set[str] = set()
    steps = {target: 0}
    pending = deque([target])
    while pending:
        name = pending.popleft()
        instruction = by_name[name]
        if name != target and is_cut(instruction, steps[name]):
            boundary.add(name)
            continue
        inside.add(name)
        for operand in instruction.operands:
            if operand not in by_name:
                raise InputError(f"%{name} in computation {computation.name} names %{operand}, which is not there")
            if operand not in steps:
                steps[operand] = steps[name] + 1
                pending.append(operand)
    _open_tuples(computation, target, inside, boundary)
    tokens = {name for name in boundary if _is_token(by_name[name].shape)}
    names = [instruction.name for instruction in computation]
    return Slice(
        computation,
        target,
        tuple(name for name in names if name in inside or name in tokens),
        tuple(name for name in names if name in boundary and name not in tokens),
    )


def _require_target(computation: Computation, target: str, given: Collection[str], depth: int | None) -> None:
    """Raise InputError unless `target` can be the result of a slice."""
    by_name = computation.by_name
    for name in (target, *given):
        if name not in by_name:
            raise InputError(f"computation {computation.name} has no instruction {quoted(name)}")
    if depth is not None and depth < 1:
        raise InputError(f"{argument('depth')} must be at least 1, but is {depth}")
    root = by_name[target]
    if role_of(root) is Role.PARAMETER:
        raise InputError(f"%{target} is a parameter of {computation.name}: nothing computes it there")
    if target in given:
        raise InputError(f"%{target} is the instruction to extract, and cannot be given at once")
    if traits_of(root).opens or is_unrepeatable(root):
        raise InputError(f"%{target} is a {root.opcode}, which cannot be the result of a module; extract what uses it")


def slice_module(module: Module, slice_: Slice, shapes: Mapping[str, Shape] | None = None) -> Module:
    """The module that computes a slice: its boundary are the parameters, in order, and its target is the result.

    `shapes` are those of boundary values that are not as declared (where float widths are mixed). Called computations
    come along. Tokens at the boundary are created by the new module.
    """
    shapes = shapes or {}
    number = {name: position for position, name in enumerate(slice_.boundary)}
    inside = set(slice_.inside)
    instructions = []
    for instruction in slice_.computation:
        name = instruction.name
        if name in number:
            shape, metadata = shapes.get(name, instruction.shape), instruction.metadata
            instructions.append(
                make_parameter(name, shape, number[name], metadata=metadata, sharding=instruction.sharding)
            )
        elif name in inside:
            is_made_here = instruction.operands and inside.issuperset(instruction.operands)
            if role_of(instruction) is not Role.TOKEN and _is_token(instruction.shape) and not is_made_here:
                # A token out of nothing stands for one that came from outside.
                shape, metadata = instruction.shape, instruction.metadata
                instruction = Instruction(name=name, shape=shape, opcode="after-all", metadata=metadata)
            predecessors = tuple(other for other in instruction.control_predecessors if other in inside)
            instructions.append(attrs.evolve(instruction, control_predecessors=predecessors, span=None))
    # Where the text has an instruction before its operands, a parameter still may stand first.
    instructions.sort(key=lambda entry: role_of(entry) is not Role.PARAMETER)
    entry = Computation(name=slice_.computation.name, instructions=tuple(instructions), root_name=slice_.target)
    called = {name for instruction in instructions for name in computation_names(instruction.attributes)}
    needed = {
        computation.name
        for name in called & module.by_name.keys()
        for computation in callees_first(module, module.by_name[name])
    }
    kept = [computation for computation in module if computation.name in needed] if needed else []
    if entry.name in needed:
        raise InputError(f"computation {entry.name} calls itself")
    name = f"{module.name}_{slice_.target}".replace("-", "_")
    return change_entry(change_computations(module, (*kept, entry)), entry.name, name=name, filename="<string>")


def needs_devices(slice_: Slice, module: Module) -> bool:
    """Whether a slice, or what it calls, exchanges values with other devices or asks which one it is."""
    pending = [slice_.computation.by_name[name] for name in slice_.inside]
    seen: set[str] = set()
    while pending:
        instruction = pending.pop()
        if _needs_devices(instruction):
            return True
        for name in computation_names(instruction.attributes):
            if name not in seen:
                seen.add(name)
                pending.extend(module.by_name[name])
    return False


def _needs_devices(instruction: Instruction) -> bool:
    role = role_of(instruction)
    is_open = role is Role.MACHINE and traits_of(instruction).opens
    return is_open or role in (Role.PARTITION_ID, Role.REPLICA_ID) or exchanges(instruction)


def is_unrepeatable(instruction: Instruction) -> bool:
    """Whether it gives other values in another run, or does something besides: it is cut."""
    entry = find_opcode(instruction.opcode)
    if entry is None or entry.role is not Role.MACHINE:
        return entry is not None and not entry.is_pure
    return entry.exchange is None and not entry.traits.opens


def _open_tuples(computation: Computation, target: str, inside: set[str], boundary: set[str]) -> None:
    """Give elements in place of tuples of which only elements are used."""
    by_name = computation.by_name
    users: dict[str, list[str]] = defaultdict(list)
    for name in inside:
        for operand in by_name[name].operands:
            users[operand].append(name)
    pending = list(boundary)
    while pending:
        name = pending.pop()
        if not isinstance(by_name[name].shape, TupleShape):
            continue
        its_users = users[name]
        if target in its_users or any(role_of(by_name[user]) is not Role.GET_TUPLE_ELEMENT for user in its_users):
            continue
        boundary.discard(name)
        inside.difference_update(its_users)
        boundary.update(its_users)
        pending.extend(its_users)


def _is_token(shape: Shape) -> bool:
    return not isinstance(shape, TupleShape) and getattr(shape, "is_token", False)


def run_path(instruction: str) -> str | None:
    """The path of a run, such as `loop[2]:body/fusion/add.3`; None where it is a mere name."""
    return instruction if "/" in instruction or re.search(r"\[\d+\]", instruction) else None


def instruction_name(instruction: str) -> str:
    """The name of the instruction, of which a path may have been given."""
    return split_path(instruction)[1]


def holding_computation(
    module: Module, instruction: str, in_computation: str | None = None, entry_name: str | None = None
) -> Computation:
    """The computation that has the instruction; InputError where there is none, or where there are several."""
    path, name = run_path(instruction), instruction_name(instruction)
    if in_computation is not None:
        found = module.by_name.get(in_computation.removeprefix("%"))
        if found is None:
            raise InputError(f"module {module.name} has no computation {in_computation!r}")
        if name not in found.by_name:
            raise InputError(f"computation {found.name} has no instruction {quoted(name)}")
        return found
    holders = [computation for computation in module if name in computation.by_name]
    if path is not None and len(holders) > 1:
        wanted, _ = called_computation(module, path, entry_name)
        holders = [computation for computation in holders if computation.name == wanted] or holders
    if not holders:
        known = [instruction.name for computation in module for instruction in computation]
        raise InputError(f"module {module.name} has no instruction {quoted(name)}{suggestion(name, known, 3)}")
    if len(holders) > 1:
        names = listing((computation.name for computation in holders), 8)
        raise InputError(f"{len(holders)} computations have an instruction {name!r}: {names}; say which one")
    return holders[0]


def called_computation(module: Module, path: str, entry_name: str | None = None) -> tuple[str | None, int]:
    """The computation at the end of a path of calls, if there is one, and how many loops it is in. Where the path does
    not say which computation a loop calls, its body is meant."""
    current, loops = module.by_name.get(entry_name or module.entry_name), 0
    for caller, chosen in split_path(path)[0]:
        if current is None or caller not in current.by_name:
            return None, loops
        calls = calls_of(current.by_name[caller])
        loops += any(call.kind is CallKind.BODY for call in calls)
        names = [call.computation for call in calls if call.kind is not CallKind.CONDITION]
        current = module.by_name.get(chosen or (names[0] if names else ""))
    return None if current is None else current.name, loops


class Enough(BaseException):
    """Ends a run: everything is recorded. No error, so nothing on the way may take it for one."""


@frozen
class Occurrence:
    """Which run of an instruction is meant; None where any will do, and then the first is."""

    instruction: str
    computation: str
    path: str | None = None
    """As `Event.name` gives it."""
    iteration: int | None = None
    """Of the innermost loop around it."""

    def is_met(self, event: Event) -> bool:
        is_named = event.instruction.name == self.instruction and event.computation.name == self.computation
        is_iteration = self.iteration is None or event.iteration == self.iteration
        return is_named and is_iteration and (self.path is None or event.name == self.path)


class Recorder:
    """Keeps what the boundary of a slice held when the instruction ran, for each of some devices."""

    def __init__(self, occurrence: Occurrence, boundary: Collection[str], devices: Collection[int]) -> None:
        self._occurrence = occurrence
        self._boundary = frozenset(boundary)
        self.missing = set(devices)
        """The devices on which the instruction has not run."""
        self._held: dict[tuple[str, str], dict[int, Value]] = {}
        self.values: dict[int, dict[str, Value]] = {}
        """What each device held at the boundary."""
        self.results: dict[int, Value] = {}
        self.path: str | None = None
        self.iteration: int | None = None
        self.iterations_seen: set[int] = set()
        self.ran_outside_loops = False

    def on_instruction(self, event: Event) -> None:
        """Called by the run."""
        if event.computation.name != self._occurrence.computation:
            return
        name = event.instruction.name
        if name in self._boundary:
            # Each iteration overwrites what the one before has left.
            held = self._held.setdefault((path_of(event).loops, name), {})
            held.update(dict.fromkeys(event.devices, event.value))
        if name != self._occurrence.instruction:
            return
        if event.iteration is not None:
            self.iterations_seen.add(event.iteration)
        else:
            self.ran_outside_loops = True
        if not self._occurrence.is_met(event) or (self.path is not None and event.name != self.path):
            return
        self.path, self.iteration = event.name, event.iteration
        scope = path_of(event).loops
        for device in self.missing.intersection(event.devices):
            self.values[device] = {part: self._held[scope, part][device] for part in self._boundary}
            self.results[device] = event.value
        self.missing.difference_update(event.devices)
        if not self.missing:
            raise Enough


@frozen
class Rerun:
    """How the result of an extracted module compares with the recorded one."""

    has_same_bits: bool
    """Whether the extracted module gives the same bits."""
    differences: tuple[LeafComparison, ...]
    """Leaves whose elements are not equal; there may be none where only bits of NaN or signs of zeros differ."""


@frozen(eq=False)
class Extraction(Described):
    """A part of a module, with its input values in one run, and their result."""

    module: Module
    inputs: list[list[Value]]
    """One list with a value per parameter for each device of the new module."""
    expected: list[Value]
    """What the instruction gave there, on each device."""
    path: str
    """Which run of the instruction it is, e.g. `loop[2]:body/fusion.1/add.3`."""
    iteration: int | None
    """The iteration of the innermost loop, from 0."""
    options: dict[str, Any]
    """The options of the run that matter to the new module."""

    def __str__(self) -> str:
        return f"of {self.path}: {self.module}"

    def check(self) -> Rerun:
        """Run the new module, and compare its result with what the instruction gave.

        Bits may differ where a reduction adds in the order of memory, and its operand, which is stored row by row here,
        lay otherwise in the whole run.
        """
        outputs = run_devices(self.module, self.inputs, **self.options)
        pairs = list(zip(outputs, self.expected, strict=True))
        if all(_bytes(ours) == _bytes(theirs) for ours, theirs in pairs):
            return Rerun(True, ())
        return Rerun(False, tuple(leaf for ours, theirs in pairs for leaf in compare(ours, theirs, atol=0).different))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write `module.hlo`, `inputs.npz`, `expected.npz` and `origin.json` to a new folder.

        Those of several devices stand under 0, 1, … in front of the usual keys, as `hloexec run --save` has them, but
        inputs in a file per device: `inputs.0.npz`, … Raises InputError where the folder has something in it or cannot
        be written.
        """
        from hloexec.language.text import format as format_module

        require_path("folder", folder)
        require_new_folder(folder)
        origin = {"path": self.path, "iteration": self.iteration, "devices": len(self.inputs)}
        with whole_folder(folder) as path:
            for name, value in self.files():
                literals.save(path / name, value)
            (path / "module.hlo").write_bytes(format_module(self.module).encode())
            (path / "origin.json").write_text(json.dumps(origin, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    def files(self) -> list[tuple[str, Value]]:
        """The files of values, by their names."""
        inputs = zip(literals.input_files(len(self.inputs)), map(tuple, self.inputs), strict=True)
        return [*inputs, ("expected.npz", self.expected[0] if len(self.inputs) == 1 else tuple(self.expected))]


def extract(
    module: Module,
    inputs: Inputs | None,
    instruction: str,
    *,
    in_computation: str | None = None,
    iteration: int | None = None,
    depth: int | None = None,
    cuts: Iterable[str] = (),
    device: int | None = None,
    observers: Sequence[Observer] = (),
    **options: Unpack[RunOptions],
) -> Extraction:
    """Extract the part of a module that computes an instruction as a separate module, with the input values of one run.

    `instruction` is a name, or the path of one run of it, as traces and `find_nan` state it
    (`loop[2]:body/fusion/add.3`). The slice goes back to the parameters of the instruction's own computation (the
    fusion, the loop body, the branch), or only `depth` steps (1: the instruction alone), or to the instructions `cuts`.
    The module runs as with `run_devices` (`inputs`, `observers`, `options`: `hloexec.Inputs`, `hloexec.RunOptions`), up
    to the instruction's first run, or to its run in the given `iteration` of the innermost enclosing loop. The values
    that enter the slice in that run are the inputs of the new module. `in_computation` selects the computation if
    several have an instruction of that name.

    If the slice involves several devices, the new module is for the same number of devices, with the values of each;
    otherwise it is for one, with the values of `device` (by default 0). If `device` is given, the slice ends at
    collectives and at the boundaries of manual regions, whose results become inputs.

    Raises InputError if the instruction does not exist, does not run (in that iteration, on that device), or runs where
    it cannot be observed (in the computation of a reduction); and whatever `run_devices` raises.
    """
    require_module(module)
    resolved = resolve_options("extract", options)
    require_text("instruction", instruction, "the name or the path of an instruction")
    _require_places(in_computation, iteration, depth, device)
    cuts, watchers = texts("cuts", cuts), listed("observers", observers, "observers")
    path, name = run_path(instruction), instruction_name(instruction)
    if path and iteration is not None:
        raise InputError(f"the path says in which iteration; {argument('iteration')} must not be given, too")
    computation = holding_computation(module, instruction, in_computation, resolved.computation)
    topology = topology_of(module, resolved.replicas, resolved.partitions)
    if device is not None and not 0 <= device < topology.count:
        runs_on = f"{topology.count}, numbered from 0" if topology.count > 1 else "one, device 0"
        raise InputError(f"{module.name} has no device {device}: it runs on {runs_on}")
    with explained(module):
        cut = slice_of(computation, name, depth=depth, cuts=cuts, keep_devices=device is None)
        is_shared = topology.count > 1 and (
            needs_devices(cut, module) or (device is None and _names_devices(module, cut))
        )
    devices = list(range(topology.count)) if is_shared else [device or 0]
    plan_of(module, resolved, is_observed=True)
    occurrence = Occurrence(name, computation.name, path, iteration)
    recorder = Recorder(occurrence, cut.boundary, devices)
    with suppress(Enough):
        run_with(module, inputs, resolved, [recorder, *watchers])
    if recorder.missing:
        raise InputError(_not_met(module, occurrence, recorder))
    assert recorder.path is not None
    shapes = {part: _shape(computation.by_name[part], recorder.values[devices[0]][part]) for part in cut.boundary}
    made = slice_module(module, cut, shapes)
    counts = (topology.replicas, topology.partitions) if is_shared else (1, 1)
    if topology.count > 1 and not is_shared:
        made = _without_shardings(made)
    made = attrs.evolve(made, replica_count=counts[0], num_partitions=counts[1])
    return Extraction(
        made,
        [[recorder.values[entry][part] for part in cut.boundary] for entry in devices],
        [recorder.results[entry] for entry in devices],
        recorder.path,
        recorder.iteration,
        {**resolved.of_parts},
    )


def _names_devices(module: Module, cut: Slice) -> bool:
    """Whether a slice would be a module for several devices whatever its header says, by its meshes or shardings."""
    made = slice_module(module, cut, {part: cut.computation.by_name[part].shape for part in cut.boundary})
    return max(device_counts(attrs.evolve(made, replica_count=1, num_partitions=1))) > 1


def _without_shardings(module: Module) -> Module:
    """A module that says nothing of several devices: no meshes, and no shardings."""
    return map_instructions(module, lambda _, each: attrs.evolve(each, sharding=None), frontend_attributes=None)


def _require_places(in_computation: object, iteration: object, depth: object, device: object) -> None:
    """InputError for what says no place in a module or a run; None says nothing."""
    if in_computation is not None:
        require_text("in_computation", in_computation, "the name of a computation")
    for name, value, least in (("iteration", iteration, 0), ("depth", depth, 1), ("device", device, 0)):
        if value is not None:
            require_integer(name, value, least)


def _bytes(value: Value) -> list[bytes]:
    return [leaf.tobytes() for leaf in arrays_of(value)]


def _shape(instruction: Instruction, value: Value) -> Shape:
    """The declared shape with the elements that the value has."""
    shape = instruction.shape
    if isinstance(shape, ArrayShape) and isinstance(value, np.ndarray):
        return shape.with_element_type(element_type_of(value.dtype))
    return shape


def _not_met(module: Module, occurrence: Occurrence, recorder: Recorder) -> str:
    """Why an instruction did not run, as a sentence."""
    name, path, iteration = occurrence.instruction, occurrence.path, occurrence.iteration
    for instruction in (instruction for caller in module for instruction in caller):
        if occurrence.computation in applied_computations(instruction):
            return (
                f"%{name} runs within %{instruction.name}, on many elements at a time, where nothing "
                f"can be recorded; extract %{instruction.name} instead"
            )
    seen = recorder.iterations_seen
    if seen and (iteration is not None or path is not None):
        wanted = f"in iteration {iteration}" if iteration is not None else f"as {path}"
        return f"%{name} did not run {wanted}, but in the iterations {min(seen)} to {max(seen)}"
    if recorder.path is not None:
        return f"{recorder.path} did not run{on_devices(sorted(recorder.missing))}"
    if path is not None:
        return f"nothing ran as {path}; `hloexec trace` lists the paths there are"
    if iteration is not None and recorder.ran_outside_loops:
        return f"%{name} ran outside of loops, and so in no iteration {iteration}"
    return f"%{name} in computation {occurrence.computation} did not run: nothing needs it, or no branch came there"
