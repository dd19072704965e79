"""`extract`: an instruction and everything it depends on, as a separate module."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any, Unpack

import attrs
import numpy as np

from hloexec.analysis.calls import applied_computations
from hloexec.analysis.numerics.comparing import compare
from hloexec.analysis.numerics.comparison import LeafComparison
from hloexec.core.arguments import listed, require_integer, require_module, require_path, require_text, texts
from hloexec.core.dtypes import element_type_of
from hloexec.core.files import require_new_folder, whole_folder
from hloexec.core.ir import ArrayShape, Instruction, Module, Shape
from hloexec.core.ir.editing import map_instructions
from hloexec.core.structs import frozen
from hloexec.core.values import Described, Inputs, Value, arrays_of
from hloexec.core.wording import argument, on_devices
from hloexec.engine.devices.topology import device_counts, topology_of
from hloexec.engine.exec.observers import Observer
from hloexec.engine.exec.options import RunOptions, resolve_options
from hloexec.engine.exec.plans import plan_of
from hloexec.engine.exec.running import run_devices, run_with
from hloexec.errors import InputError
from hloexec.language import literals
from hloexec.language.verifier import explained
from hloexec.tools.extraction.naming import holding_computation, instruction_name, run_path
from hloexec.tools.extraction.recording import Enough, Occurrence, Recorder
from hloexec.tools.extraction.slicing import Slice, needs_devices, slice_module, slice_of


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
