"""A summary of a module: computations, opcodes, parameters, contractions, and what cannot run.

This is the data that `hloexec info` shows; nothing runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from hloexec.analysis.trip_counts import loop_trips
from hloexec.core.ir import ArrayShape, Computation, Instruction, Literal, Module, Shape, flat_shapes
from hloexec.core.structs import frozen, told
from hloexec.engine.devices.topology import device_counts
from hloexec.engine.plan.program import Requirement, remedy_for, unsupported
from hloexec.language.verifier import Note, verify
from hloexec.ops.attributes import computation_names
from hloexec.ops.costs import Contraction, contraction_of
from hloexec.ops.registry import Role, role_of


@frozen
class ParameterSummary:
    """One parameter of the entry computation."""

    number: int
    name: str
    shape: Shape
    byte_size: int


@frozen
class ContractionSummary:
    """All contractions of one kind: how many instructions, how often they run, and what that costs."""

    kind: str
    instructions: int
    """How many instructions there are."""
    runs: int
    """How often they run, as far as that is known of loops."""
    flops: int
    """Operations in all their runs."""
    byte_count: int
    """What they read and write."""


@frozen
class Summary:
    """What `summarize` finds.

    Histograms map names to numbers of instructions, largest first. FLOPs count each contraction as often as it runs on
    one device, with the trip counts that while loops state or that follow from constants; `loops_without_trip_count`
    of them have none that is known, and count as one iteration.
    """

    name: str
    filename: str
    """The file that it was read from."""
    computations: int
    """How many computations there are."""
    instructions: int
    """How many instructions there are."""
    replica_count: int
    """How many replicas there are."""
    num_partitions: int
    """How many partitions there are."""
    is_scheduled: bool
    """Whether the order of instructions is that of execution."""
    entry_name: str
    """The name of the entry computation."""
    parameters: tuple[ParameterSummary, ...]
    """The parameters of the entry computation."""
    result_shape: Shape
    """The shape of the result, as HLO text."""
    opcodes: dict[str, int]
    """How many instructions have each opcode."""
    custom_calls: dict[str, int]
    """How many instructions call each target."""
    element_types: dict[str, int]
    """How many instructions give each element type."""
    contractions: tuple[ContractionSummary, ...]
    """What contractions cost, by their kinds."""
    loops: int
    """How many loops there are."""
    loops_without_trip_count: int
    """Of how many loops it is not known how often they run."""
    constants: int
    """How many constants there are."""
    elided_constants: int
    """How many constants the text leaves out."""
    unsupported: tuple[Requirement, ...]
    """What the module needs and hloexec does not have."""
    notes: tuple[Note, ...]
    remedy: str | None = None
    """What can be done about custom calls that are not supported, if there are some."""

    @property
    @told
    def devices(self) -> int:
        """How many devices the module runs on."""
        return self.replica_count * self.num_partitions

    @property
    @told
    def parameter_bytes(self) -> int:
        """The size of all parameters."""
        return sum(parameter.byte_size for parameter in self.parameters)

    @property
    @told
    def flops(self) -> int:
        """Operations of contractions on one device, in all their runs."""
        return sum(entry.flops for entry in self.contractions)


@frozen
class ComputationSummary:
    """One computation, and what calls it first.

    `runs` counts as `Summary` counts loops; `flops` is what the contractions of its own instructions take in all its
    runs on one device.
    """

    name: str
    calling_computation: str | None
    """The computation that calls it first; None for the entry, and for what the entry does not reach."""
    calling_instruction: str | None
    """The instruction that calls it first."""
    calling_opcode: str | None
    """The opcode of that instruction."""
    instructions: int
    """How many instructions there are."""
    runs: int
    """How often it runs, as far as that is known of loops."""
    flops: int
    """Operations of contractions on one device, in all their runs."""
    parameter_bytes: int
    """The size of all parameters."""
    result_shape: Shape
    """The shape of the result, as HLO text."""


def parameters_of(module: Module) -> tuple[ParameterSummary, ...]:
    """The parameters of the entry computation."""
    return tuple(
        ParameterSummary(number, parameter.name, parameter.shape, parameter.shape.byte_size)
        for number, parameter in enumerate(module.entry.parameters)
    )


def summarize(module: Module) -> Summary:
    """Look a module over. Raises VerificationError where it is not well-formed."""
    notes = verify(module)
    instructions = [instruction for computation in module for instruction in computation]
    literals = [instruction.attributes.literal for instruction in instructions if role_of(instruction) is Role.CONSTANT]
    loops = [
        (computation, instruction)
        for computation in module
        for instruction in computation
        if role_of(instruction) is Role.WHILE
    ]
    replica_count, num_partitions = device_counts(module)
    missing = tuple(unsupported(module))
    return Summary(
        name=module.name,
        filename=module.filename,
        computations=len(module.computations),
        instructions=len(instructions),
        replica_count=replica_count,
        num_partitions=num_partitions,
        is_scheduled=module.is_scheduled,
        entry_name=module.entry_name,
        parameters=parameters_of(module),
        result_shape=module.entry.result_shape,
        opcodes=_histogram(Counter(instruction.opcode for instruction in instructions)),
        custom_calls=_histogram(Counter(_targets(instructions))),
        element_types=_histogram(Counter(_element_types(instructions))),
        contractions=_contractions(module),
        loops=len(loops),
        loops_without_trip_count=sum(loop_trips(module, computation, loop) is None for computation, loop in loops),
        constants=len(literals),
        elided_constants=sum(literal.is_elided for literal in literals if isinstance(literal, Literal)),
        unsupported=missing,
        remedy=remedy_for(missing),
        notes=tuple(notes),
    )


def _histogram(counter: Counter[str]) -> dict[str, int]:
    return dict(sorted(counter.items(), key=lambda entry: (-entry[1], entry[0])))


def _targets(instructions: Iterable[Instruction]) -> Iterator[str]:
    for instruction in instructions:
        if role_of(instruction) is Role.CUSTOM_CALL:
            yield instruction.attributes.custom_call_target


def _element_types(instructions: Iterable[Instruction]) -> Iterator[str]:
    """The element types of the instructions' results, once each per instruction."""
    for instruction in instructions:
        leaves = flat_shapes(instruction.shape)
        yield from {str(leaf.element_type) for leaf in leaves if isinstance(leaf, ArrayShape)}


def _contractions(module: Module) -> tuple[ContractionSummary, ...]:
    runs = run_counts(module)
    summaries: dict[str, ContractionSummary] = {}
    for computation in module:
        times = runs.get(computation.name, 0)
        for cost in _costs(computation):
            before = summaries.get(cost.kind, ContractionSummary(cost.kind, 0, 0, 0, 0))
            summaries[cost.kind] = ContractionSummary(
                cost.kind,
                before.instructions + 1,
                before.runs + times,
                before.flops + times * cost.flops,
                before.byte_count + times * cost.byte_count,
            )
    return tuple(sorted(summaries.values(), key=lambda entry: -entry.flops))


def _costs(computation: Computation) -> Iterator[Contraction]:
    """What the contractions among a computation's instructions cost."""
    for instruction in computation:
        cost = contraction_of(instruction, [operand.shape for operand in computation.operands_of(instruction)])
        if cost is not None:
            yield cost


def summarize_computations(module: Module) -> list[ComputationSummary]:
    """The computations, each behind the one that calls it first; what the entry does not reach comes last.

    Raises VerificationError where the module is not well-formed.
    """
    verify(module)
    runs = run_counts(module)
    callers: dict[str, tuple[str | None, Instruction | None]] = {}
    stack: list[tuple[str, str | None, Instruction | None]] = [(module.entry_name, None, None)]
    while stack:
        name, calling_computation, calling_instruction = stack.pop()
        if name not in callers:
            callers[name] = (calling_computation, calling_instruction)
            called = [(call, callee) for call in module.by_name[name] for callee in computation_names(call.attributes)]
            stack.extend((callee, name, call) for call, callee in reversed(called))
    for name in module.by_name:
        callers.setdefault(name, (None, None))
    return [
        ComputationSummary(
            name=name,
            calling_computation=calling_computation,
            calling_instruction=None if call is None else call.name,
            calling_opcode=None if call is None else call.opcode,
            instructions=len(module.by_name[name].instructions),
            runs=runs.get(name, 0),
            flops=runs.get(name, 0) * sum(cost.flops for cost in _costs(module.by_name[name])),
            parameter_bytes=sum(parameter.shape.byte_size for parameter in module.by_name[name].parameters),
            result_shape=module.by_name[name].result_shape,
        )
        for name, (calling_computation, call) in callers.items()
    ]


def run_counts(module: Module, entry: str | None = None) -> dict[str, int]:
    """How often each computation that the entry (or another) reaches runs, all branches of conditionals taken."""
    first = entry or module.entry_name
    order: list[str] = []
    state: dict[str, bool] = {}
    stack = [(first, False)]
    while stack:
        name, is_done = stack.pop()
        if is_done:
            order.append(name)
        elif name not in state:
            state[name] = True
            stack.append((name, True))
            stack.extend((callee, False) for callee, _ in _calls(module, name))
    runs = dict.fromkeys(order, 0)
    runs[first] = 1
    for name in reversed(order):
        for callee, times in _calls(module, name):
            runs[callee] += runs[name] * times
    return runs


def _calls(module: Module, name: str) -> Iterator[tuple[str, int]]:
    """The computations that a computation calls, and how often per run of it."""
    computation = module.by_name[name]
    for instruction in computation:
        trips = loop_trips(module, computation, instruction) if role_of(instruction) is Role.WHILE else 1
        for callee in computation_names(instruction.attributes):
            yield callee, 1 if trips is None else trips
