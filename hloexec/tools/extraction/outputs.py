"""`extract --outputs`: a module with chosen values as further outputs, and what runs it elsewhere to fetch them.

What calls a computation with chosen values gives these beside its own result; a loop stacks those of its iterations.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import attrs
import numpy as np

from hloexec.analysis.calls import CallKind, calls_of, entered_computations
from hloexec.analysis.numerics.comparing import compare
from hloexec.analysis.trip_counts import loop_trips
from hloexec.core.arguments import byte_count, require_module, require_path, texts
from hloexec.core.dtypes import element_type
from hloexec.core.files import require_new_folder, whole_folder
from hloexec.core.ir import ArrayShape, Computation, Instruction, Module, Shape, TupleShape, leaf_shapes, parts_of
from hloexec.core.ir.editing import change_computations, take_name
from hloexec.core.places import CallPath, PathEntry, spell_name, split_name
from hloexec.core.structs import frozen, told
from hloexec.core.values import Described, Inputs, arrays_of, label_of
from hloexec.core.wording import argument, byte_text, counted, listing
from hloexec.engine.devices.equivalents import compiled_by_xla
from hloexec.engine.exec.arguments import inputs_by_device
from hloexec.engine.exec.running import RunOptions, resolve_options, run_with
from hloexec.engine.plan.schedule import callees_first
from hloexec.errors import InputError, UnsupportedError
from hloexec.language import literals
from hloexec.language.literals.npz import encode
from hloexec.language.text import format as format_module
from hloexec.ops.attributes import rename_computations
from hloexec.ops.control.flow import make_element, make_parameter
from hloexec.ops.equivalents.modules import is_optimized
from hloexec.ops.equivalents.writing import Writer, plain_shape, untranslated
from hloexec.ops.registry import Role, exchanges, role_of, traits_of
from hloexec.tools.extraction.running import Rerun, holding_computation, instruction_name

_MOST_BYTES = 1 << 30
_WORKER = Path(__file__).parents[1] / "counterparts" / "worker.py"
"""The script that runs modules by XLA."""
_PASSING = (Role.PARAMETER, Role.CONSTANT, Role.TUPLE, Role.GET_TUPLE_ELEMENT, Role.FORWARD, Role.TOKEN)
"""What gives a value that has another name already."""


@frozen
class ValueOutput:
    """A value that is a further output of a module."""

    key: str
    """The calls that lead to its instruction, and the name of that: `fusion.1/add.3`; `loop:body/add.3` are the values
    of all iterations of a loop, stacked."""
    computation: str
    instruction: str
    shape: str
    """As HLO text."""
    byte_size: int
    """The bytes of its elements."""


@frozen
class RefusedOutput:
    """A value that is none."""

    key: str
    """The calls that lead to its instruction, and the name of that."""
    reason: str
    """Why it is none, as a clause."""


@frozen(eq=False)
class ValueOutputs(Described):
    """A module with values as further outputs, behind its own."""

    module: Module
    source: Module
    """The module that it was made of."""
    own_labels: tuple[str, ...]
    """The labels of the arrays of the result that the module itself has, in the order of the outputs."""
    outputs: tuple[ValueOutput, ...]
    """The values, in the order of the outputs."""
    refused: tuple[RefusedOutput, ...]
    """The values that were chosen, but are no outputs."""

    @property
    @told
    def byte_size(self) -> int:
        """The bytes of all values."""
        return sum(output.byte_size for output in self.outputs)

    def __str__(self) -> str:
        rest = f", {len(self.refused)} refused" if self.refused else ""
        return f"{counted(len(self.outputs), 'value')} as further outputs of {self.module.name}{rest}"

    def save(self, folder: str | os.PathLike[str], inputs: Inputs, **options: Unpack[RunOptions]) -> Rerun:
        """Write `module.hlo`, its inputs, the values as hloexec computes them (`expected.npz`), and `run.py` with what
        that reads to a new folder; how the module's own results are then, compared with what they were before.

        `run.py` runs the module by XLA; it needs jaxlib and NumPy alone, and JAX for other platforms than the CPU. It
        writes the module's own results to `result.npz` and the values to `values.npz` (`result.0.npz`, … of several
        devices), and says how many results have the bits of the unchanged module.
        """
        require_path("folder", folder)
        require_new_folder(folder)
        resolved = resolve_options("save", options)
        module, rows = self.module, inputs_by_device(self.module.entry, inputs)
        count = len(self.own_labels)
        made = [arrays_of(value) for value in run_with(module, rows, resolved)]
        before = [arrays_of(value) for value in run_with(self.source, rows, resolved)]
        pairs = [pair for ours, theirs in zip(made, before, strict=True) for pair in zip(ours, theirs, strict=False)]
        keys = [output.key for output in self.outputs]
        expected = [dict(zip(keys, arrays[count:], strict=True)) for arrays in made]
        compiled, unchanged = compiled_by_xla(module), compiled_by_xla(self.source)
        kept = [leaf.is_array for _, leaf in leaf_shapes(module.entry.result_shape)]
        leaves = [pair for number, shape in enumerate(module.entry.parameter_shapes) for pair in _leaves(shape, number)]
        labels = [*self.own_labels, *(output.key for output in self.outputs)]
        results = [shape for _, shape in _leaves(module.entry.result_shape)]
        plan = {
            "replicas": compiled.replica_count,
            "partitions": compiled.num_partitions,
            "inputs": literals.input_files(len(rows)),
            "leaves": [_stored(label, shape) for label, shape in leaves],
            "outputs": [_stored(label, shape) for label, shape in zip(labels, results, strict=True)],
            "kept": kept,
            "own_kept": kept[: len(kept) - len(self.outputs)],
        }
        with whole_folder(folder) as path:
            for name, row in zip(literals.input_files(len(rows)), rows, strict=True):
                literals.save(path / name, tuple(row))
            for name, values in zip(_numbered("expected", len(made)), expected, strict=True):
                literals.save_entries(path / name, (encode(*pair) for pair in values.items()))
            (path / "module.hlo").write_bytes(format_module(module).encode())
            (path / "xla.hlo").write_bytes(format_module(compiled, metadata=False).encode())
            (path / "unchanged.hlo").write_bytes(format_module(unchanged, metadata=False).encode())
            (path / "outputs.json").write_text(json.dumps(plan, indent=2) + "\n", encoding="utf-8")
            shutil.copyfile(_WORKER, path / "run.py")
        differences = compare(tuple(one for one, _ in pairs), tuple(other for _, other in pairs), atol=0).different
        return Rerun(all(one.tobytes() == other.tobytes() for one, other in pairs), differences)


def _numbered(stem: str, count: int) -> list[str]:
    """The names of the files of each of so many devices."""
    return [f"{stem}.npz"] if count == 1 else [f"{stem}.{device}.npz" for device in range(count)]


def _leaves(shape: Shape, *place: int) -> list[tuple[str, ArrayShape]]:
    """The arrays of a shape, with their labels behind a place."""
    leaves = ((label_of((*place, *index)), leaf) for index, leaf in leaf_shapes(shape))
    return [(label, leaf.array_shape) for label, leaf in leaves if leaf.is_array]


def _stored(label: str, shape: ArrayShape) -> tuple[str, str, str]:
    """The key of an array in a file, the NumPy type of its elements there, and that in memory."""
    empty = np.empty(0, shape.element_type.storage)
    key, stored = encode(label, empty)
    return key, stored.dtype.name, empty.dtype.name


def add_outputs(
    module: Module, names: str | Sequence[str] = "fusions", *, max_bytes: int | str = _MOST_BYTES
) -> ValueOutputs:
    """A module with chosen intermediate values as further outputs, behind its own.

    `names` are names of instructions (`add.3`, or `body/add.3` where several computations have one); or `"fusions"`,
    the results of all fusions; or `"all"`, those of all instructions but in fusions. Values in called computations and
    fusions are given by what calls them. Those in the bodies of loops are stacked, one iteration after the other, where
    it shows in the text how often a loop runs. Values beyond `max_bytes` in all are left out, as are those in branches,
    in conditions, and in what is applied to elements; `refused` says why.

    The module computes the same results as before. A compiler may still round them otherwise, since other values are
    kept.

    Raises InputError for a name that no instruction has, or that several computations have, and where no value can be
    an output; UnsupportedError for a module that a partitioner has yet to divide.
    """
    require_module(module)
    most = byte_count("max_bytes", max_bytes)
    chosen = _chosen(module, names)
    instructions = [instruction for computation in module for instruction in computation]
    is_divided = is_optimized(module) or any(
        exchanges(entry) or role_of(entry) is Role.PARTITION_ID for entry in instructions
    )
    if module.num_partitions > 1 and any(entry.sharding for entry in instructions) and not is_divided:
        raise UnsupportedError(f"{module.name} has yet to be divided among devices; add outputs to what is made of it")
    adding = _Adding(module, chosen, most)
    changed, outputs = adding.entry()
    if not outputs:
        reasons = listing((f"{entry.key}: {entry.reason}" for entry in adding.refused), 3)
        raise InputError(f"no value of {module.name} can be an output: {reasons or 'none was chosen'}")
    own = tuple(label for label, _ in _leaves(module.entry.result_shape))
    return ValueOutputs(changed, module, own, outputs, tuple(adding.refused))


def _chosen(module: Module, names: str | Sequence[str]) -> set[tuple[str, str]]:
    """The computations and the names of the instructions that are chosen."""
    if isinstance(names, str) and names in ("all", "fusions"):
        fused = {
            call.computation
            for computation in module
            for instruction in computation
            for call in calls_of(instruction)
            if call.kind is CallKind.FUSED
        }
        places = [
            (computation.name, instruction.name)
            for computation in entered_computations(module)
            for instruction in computation
            if computation.name not in fused
            and (traits_of(instruction).fuses if names == "fusions" else role_of(instruction) not in _PASSING)
        ]
        if not places:
            raise InputError(
                f"{module.name} has no fusions; {argument('names')} may be 'all', or names of instructions"
            )
        return {part for place in places for part in _arrays(module, *place)}
    places = []
    for name in texts("names", names):
        home = split_name(name)[0]
        computation = holding_computation(module, name, home if home in module.by_name else None)
        instruction = computation.by_name[instruction_name(name)]
        if computation is module.entry and role_of(instruction) is Role.PARAMETER:
            raise InputError(f"%{instruction.name} is an input of {module.name}, whose value is known")
        places.append((computation.name, instruction.name))
    return {part for place in places for part in _arrays(module, *place)}


def _arrays(module: Module, computation: str, name: str) -> Iterable[tuple[str, str]]:
    """What has the elements of a tuple, if it is one that others take apart; else itself."""
    instructions = module.by_name[computation]
    users = [user for user in instructions if user.operands == (name,) and role_of(user) is Role.GET_TUPLE_ELEMENT]
    if isinstance(instructions.by_name[name].shape, TupleShape) and users:
        return [(computation, user.name) for user in users if not isinstance(user.shape, TupleShape)]
    return [(computation, name)]


@frozen(eq=False)
class _Value:
    """A value that a computation gives beside its root."""

    key: str
    home: tuple[str, str]
    """Its computation and its instruction."""
    made: Instruction
    """What has it in the computation that gives it."""


class _Adding:
    """Writes computations that give chosen values beside their roots."""

    def __init__(self, module: Module, chosen: set[tuple[str, str]], most: int) -> None:
        self._module, self._chosen, self._left, self._most = module, chosen, most, most
        self._names = {computation.name for computation in module}
        self._computations: dict[str, Computation] = {}
        self._homes: set[tuple[str, str]] = set()
        """Where the chosen values are that have been come across."""
        self.refused: list[RefusedOutput] = []

    def entry(self) -> tuple[Module, tuple[ValueOutput, ...]]:
        """The module whose entry gives all of them, and which these are."""
        source = self._module.entry
        write, values = self._written(source, CallPath(), 1)
        for computation, name in sorted(self._chosen - self._homes):
            key = spell_name(computation, name)
            self.refused.append(RefusedOutput(key, "it is applied to elements, or nothing that runs calls it"))
        root = write.values[source.root_name]
        write.prefix = "outputs"
        count = len(parts_of(root.shape)) if isinstance(root.shape, TupleShape) else 0
        results = [write.element(root, number) for number in range(count)] if count else [root]
        whole = write.join(*results, *(value.made for value in values))
        entry = Computation(name=source.name, instructions=tuple(write.made), root_name=whole.name)
        others = (part for part in self._module if part is not source)
        changes: dict[str, Any] = {"input_output_alias": (), "buffer_donor": ()}
        module = change_computations(self._module, (*self._computations.values(), *others, entry), **changes)
        module = change_computations(module, callees_first(module, entry))
        outputs = [
            ValueOutput(value.key, *value.home, str(plain_shape(value.made.shape)), value.made.shape.byte_size)
            for value in values
        ]
        return module, tuple(outputs)

    def _written(self, source: Computation, path: CallPath, runs: int) -> tuple[Writer, list[_Value]]:
        """The instructions of a computation that runs so often, and the values that they give."""
        names = {instruction.name for instruction in source}
        write = Writer(self._module, source, self._computations, untranslated, taken=names)
        values: list[_Value] = []
        for instruction in source:
            made, inner = self._called(write, instruction, path, runs)
            write.values[instruction.name] = made
            values += inner
            home = source.name, instruction.name
            if home in self._chosen:
                self._homes.add(home)
                key = path.name_of(instruction.name)
                reason = self._reason(made.shape, runs)
                if reason:
                    self.refused.append(RefusedOutput(key, reason))
                else:
                    values.append(_Value(key, home, made))
        return write, values

    def _reason(self, shape: Shape, runs: int) -> str:
        """Why a value is no output, as a clause; empty where it is one, whose bytes are then taken."""
        if not isinstance(shape, ArrayShape) or shape.is_dynamic or not shape.is_array:
            return "it is a tuple" if isinstance(shape, TupleShape) else "it is no array of a known size"
        taken = runs * shape.byte_size
        if taken > self._left:
            return f"it takes {byte_text(taken)}, more than what is left of {byte_text(self._most)}"
        self._left -= taken
        return ""

    def _called(
        self, write: Writer, instruction: Instruction, path: CallPath, runs: int
    ) -> tuple[Instruction, list[_Value]]:
        """What stands for an instruction, and the values of what it calls."""
        skipped = {
            CallKind.CONDITION: "it is in the condition of a loop",
            CallKind.BRANCH: "it is in a branch, which need not run",
            CallKind.STARTED: "it runs while others do",
        }
        for call in calls_of(instruction):
            if call.kind in skipped:
                callee = self._module.by_name[call.computation]
                self._skip(callee, path.to(PathEntry(instruction, callee.name)), skipped[call.kind])
        calls = {call.kind: call.computation for call in calls_of(instruction)}
        for kind in (CallKind.FUSED, CallKind.CALLED, CallKind.BODY):
            if kind not in calls:
                continue
            callee = self._module.by_name[calls[kind]]
            inner_path = path.to(PathEntry(instruction, callee.name))
            trips = loop_trips(self._module, write.source, instruction) if kind is CallKind.BODY else 1
            if not trips:
                self._skip(callee, inner_path, "the text does not say how often the loop runs")
                continue
            inner, values = self._written(callee, inner_path, runs * trips)
            if values:
                make = self._looping if kind is CallKind.BODY else self._calling
                return make(write, instruction, inner, values, trips)
        return write.add(instruction), []

    def _skip(self, callee: Computation, path: CallPath, reason: str) -> None:
        """Leave out what is chosen in a computation, and in those that it calls."""
        for computation in entered_computations(self._module, callee):
            for home in sorted(self._chosen):
                if home[0] == computation.name:
                    self._homes.add(home)
                    self.refused.append(RefusedOutput(path.name_of(home[1]), reason))

    def _calling(
        self, write: Writer, instruction: Instruction, inner: Writer, values: list[_Value], _: int
    ) -> tuple[Instruction, list[_Value]]:
        """A call or a fusion whose result is a tuple of its own and the values."""
        root, inner.prefix = inner.values[inner.source.root_name], "outputs"
        name = self._add(inner, inner.join(root, *(value.made for value in values)), inner.made)
        return self._opened(write, instruction, {inner.source.name: name}, instruction.operands, values, 1)

    def _looping(
        self, write: Writer, instruction: Instruction, inner: Writer, values: list[_Value], trips: int
    ) -> tuple[Instruction, list[_Value]]:
        """A loop whose state is a tuple of its own, a counter, and an array for each value."""
        body, (condition,) = (
            inner.source,
            [
                self._module.by_name[call.computation]
                for call in calls_of(instruction)
                if call.kind is CallKind.CONDITION
            ],
        )
        write.prefix = instruction.name
        counter = write.constant(0, element_type("s32"))
        stacks = [write.zeros(_stacked(value.made.shape, trips)) for value in values]
        state = write.join(write.values[instruction.operands[0]], counter, *stacks)
        inner.prefix = "outputs"
        parameter = make_parameter(take_name("state", inner.taken), state.shape)
        number = inner.element(parameter, 1)
        kept = [inner.put(inner.element(parameter, place), value.made, number) for place, value in enumerate(values, 2)]
        root = inner.values[body.root_name]
        whole = inner.join(root, inner.successor(number), *kept)
        names = {
            body.name: self._add(inner, whole, _of_state(body, parameter, inner.made)),
            condition.name: self._add(
                Writer(self._module, condition, self._computations, untranslated),
                condition.root,
                _of_state(condition, parameter, condition),
            ),
        }
        return self._opened(write, instruction, names, (state.name,), values, 2)

    def _add(self, write: Writer, root: Instruction, instructions: Iterable[Instruction]) -> str:
        """Add what stands for a computation to the module; its name."""
        name = take_name(f"{write.source.name}.outputs", self._names)
        made = Computation(name=name, instructions=tuple(instructions), root_name=root.name)
        self._computations[name] = made
        return name

    def _opened(
        self,
        write: Writer,
        instruction: Instruction,
        names: Mapping[str, str],
        operands: Sequence[str],
        values: Sequence[_Value],
        first: int,
    ) -> tuple[Instruction, list[_Value]]:
        """The caller of computations of other names, taken apart: its own result, and the values from an element on."""
        callee = self._computations[next(iter(names.values()))]
        whole = attrs.evolve(
            instruction,
            name=take_name(f"{instruction.name}.outputs", write.taken),
            shape=plain_shape(callee.root.shape),
            operands=tuple(operands),
            attributes=rename_computations(instruction.attributes, names),
            # What it says of results says it of those that were.
            backend_config=None,
            sharding=None,
            span=None,
        )
        write.add(whole)
        write.prefix = instruction.name
        own = write.add(make_element(instruction.name, callee.root.shape, whole.name, 0))
        opened = [write.element(whole, place) for place, _ in enumerate(values, first)]
        return own, [attrs.evolve(value, made=made) for value, made in zip(values, opened, strict=True)]


def _stacked(shape: Shape, trips: int) -> ArrayShape:
    assert isinstance(shape, ArrayShape)
    return ArrayShape(shape.element_type, (trips, *shape.dimensions))


def _of_state(source: Computation, state: Instruction, made: Iterable[Instruction]) -> list[Instruction]:
    """Instructions of a computation of a loop, whose parameter is now the first element of the loop's state."""
    own = source.parameters[0]
    others = (instruction for instruction in made if instruction.name != own.name)
    return [state, make_element(own.name, state.shape, state.name, 0), *others]
