"""Plans as data: steps over numbered slots.

Only leaves (arrays and tokens) are stored in slots; tuples exist as trees of slots (`plan.kernels`) and cost
nothing when a plan runs. A step states the slots that it reads, the slots that it fills, what it computes, and the
slots whose values die with it. Plans hold no values except constants, so one plan serves any number of runs and
devices.

A plan has two lists of steps. Its *program* is the computation as written, with calls inlined: a step for each
instruction, including those that only forward values if an observer needs them. Its *steps* are what runs: the program
after all passes. Both use the same slots, so that observers can be shown the program.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import attrs

from hloexec.core.ir import Computation, Instruction
from hloexec.core.places import CallPath
from hloexec.core.structs import define, frozen
from hloexec.engine.devices.topology import (
    FromDevice,
    FromHost,
    Group,
    HostTransfer,
    ToDevice,
    ToHost,
    Topology,
    groups_of,
)
from hloexec.engine.plan.kernels import NO_SLOT, Kernel, Leaf, SlotTree, leaves
from hloexec.ops.registry import traits_of
from hloexec.ops.resources import Arenas


@frozen(eq=False)
class Scope:
    """The computation that a step was written in, and the instruction that called it within the same plan."""

    computation: Computation
    caller: Instruction | None = None
    parent: Scope | None = None
    iteration: int | None = None
    """Of a loop whose iterations are steps of the plan."""

    @property
    def fusion(self) -> Scope | None:
        """The scope of the outermost fusion around the computation, within the plan."""
        found: Scope | None = None
        current: Scope | None = self
        while current is not None:
            if current.caller is not None and traits_of(current.caller).fuses:
                found = current
            current = current.parent
        return found


def placed_in(scope: Scope, outer: Scope, scopes: dict[int, Scope]) -> Scope:
    """A scope whose outermost one has become `outer`; `scopes` are those that were asked for before, by identity."""
    chain = [scope]
    while id(chain[-1]) not in scopes and chain[-1].parent is not None:
        chain.append(chain[-1].parent)
    scope_placed = scopes.setdefault(id(chain[-1]), outer)
    for inner in reversed(chain[:-1]):
        scope_placed = scopes[id(inner)] = attrs.evolve(inner, parent=scope_placed)
    return scope_placed


@frozen(eq=False)
class Invocation:
    """The step runs another plan on its operands."""

    plan: Plan


@frozen
class Limit:
    """A loop continues while one of its counters is less than a constant, and does not wrap around before."""

    leaf: int
    increment: int
    end: int


@frozen
class Counter:
    """A carried integer that each iteration increases by a constant, and that nothing else changes."""

    increment: int
    is_read: bool
    """Whether anything in the loop's body but the increase needs its value."""


@frozen(eq=False)
class Buffers:
    """Arrays of a loop that its body writes to again in each iteration."""

    shapes: tuple[Leaf, ...]
    carried: Mapping[int, int]
    """The carried leaves whose values are in buffers, and the buffer of each at the start of an iteration."""
    written: Mapping[int, int]
    """The slots of the body whose values do, and in which."""
    following: tuple[int, ...]
    """Which buffer takes the place of each as the next iteration begins."""


@frozen(eq=False)
class While:
    """The step runs `body` on its operands, the loop-carried leaves, for as long as `condition` gives true.

    The fields below `body` are what passes have found out about the loop. They serve to write it as Python, and say
    nothing of what it computes that its plans don't.
    """

    condition: Plan
    body: Plan
    counters: Mapping[int, Counter] = attrs.field(factory=dict)
    """The carried leaves that a loop may count as Python's numbers."""
    limit: Limit | None = None
    """What the condition asks, where that is all it does."""
    compared: tuple[int, ...] = ()
    """The carried leaves that decide all that follows, where the loop is worth looking at for values that come back."""
    buffers: Buffers | None = None
    sums: Mapping[int, int] = attrs.field(factory=dict)
    """The carried leaves that products are added to and that nothing else reads, and what those may take that wait."""
    code: list[Any] = attrs.field(init=False, factory=list)
    """What `exec.code` has made of it, once it has."""


@frozen(eq=False)
class Branch:
    """One branch of a conditional, and which of the step's operands are its arguments."""

    plan: Plan
    start: int
    stop: int


@frozen(eq=False)
class Conditional:
    """The step runs one of `branches`, which its first operand selects."""

    branches: tuple[Branch, ...]

    def select(self, selector: Any) -> Branch:
        """True selects the first branch and false the second; an index out of range the last."""
        if selector.dtype.kind == "b":
            return self.branches[0 if selector else 1]
        index = int(selector)
        return self.branches[index if 0 <= index < len(self.branches) else -1]


class Mark(enum.Enum):
    """The step does nothing: its instruction renames values, and observers want to see it."""

    MARK = enum.auto()


@frozen(eq=False)
class Exchange:
    """The step is a collective: groups of devices exchange values."""

    function: Callable[..., Any]
    """The bound kernel, from the operands of a group's members to their results (`ops.collective.groups`)."""
    callees: tuple[Any, ...] = ()
    """The computations that it calls, as kernels see them."""
    groups: Callable[[Topology], list[Group]] | None = None
    """The groups of a topology's devices, where the instruction's attributes don't list them. Members of one number
    are alike then: in groups of the same numbers and operands they get the same.
    """


@frozen
class DeviceNumber:
    """The step's value is the number of the device's replica or partition."""

    is_replica: bool


Communication: TypeAlias = HostTransfer | Exchange | FromDevice | ToDevice | DeviceNumber
"""What a device does that has to do with others, or with its host."""
COMMUNICATION = (FromHost, ToHost, Exchange, FromDevice, ToDevice, DeviceNumber)

Flow: TypeAlias = Invocation | While | Conditional | Mark | Communication


def inner_plans(flow: Flow | None) -> tuple[Plan, ...]:
    """The plans that a step of this flow runs."""
    if isinstance(flow, Invocation):
        return (flow.plan,)
    if isinstance(flow, While):
        return (flow.condition, flow.body)
    if isinstance(flow, Conditional):
        return tuple(branch.plan for branch in flow.branches)
    return ()


def groups_at(step: Step, topology: Topology) -> list[Group]:
    """The groups in which devices take part in a step that is an exchange; every device is in exactly one.

    InputError says which devices are missing or left out.
    """
    assert isinstance(step.flow, Exchange)
    groups = _groups.setdefault(step, {})
    if topology not in groups:
        rule = step.flow.groups
        groups[topology] = groups_of(step.instruction, topology) if rule is None else rule(topology)
    return groups[topology]


_groups: WeakKeyDictionary[Step, dict[Topology, list[Group]]] = WeakKeyDictionary()
"""Those of steps that have been asked for."""


@define(eq=False)
class Step:
    """One step of a plan: a kernel, or else a flow."""

    instruction: Instruction
    scope: Scope
    operand_trees: tuple[SlotTree, ...]
    """One tree per operand of the instruction (none for a mark)."""
    tree: SlotTree
    """The instruction's value."""
    kernel: Kernel | None
    flow: Flow | None = None
    extra_bytes: int = 0
    """Estimated bytes that exist only while the step runs."""
    is_silent: bool = False
    """Whether the step only prepares a value for another, so that observers need not see it."""
    is_shown_only: bool = False
    """Whether the step is there for observers: its value is known without it, or nothing needs it."""
    operands: tuple[int, ...] = attrs.field(init=False)
    results: tuple[int, ...] = attrs.field(init=False)
    result: int = attrs.field(init=False)
    """The only slot that is filled, or NO_SLOT where there are none or several."""
    function: Callable[..., Any] | None = attrs.field(init=False)
    """The kernel's; None where `flow` says what to do."""
    fetch: Callable[[list[Any]], Any] = attrs.field(init=False)
    """The operand values, given all slots."""
    dead: tuple[int, ...] = attrs.field(default=(), init=False)
    """The slots whose values nothing needs after this step."""
    reused: int = attrs.field(default=NO_SLOT, init=False)
    """The slot of an operand that dies here, whose array the kernel may overwrite if it has no other references."""
    is_large: bool = attrs.field(default=False, init=False)
    """Whether the result takes so much memory that operands are worth freeing as early as can be."""

    @property
    def is_pure(self) -> bool:
        """Whether the step computes the same whenever its operands are the same, and does nothing else."""
        return self.kernel is not None and self.kernel.is_pure

    def __attrs_post_init__(self) -> None:
        self.operands = leaves(self.operand_trees)
        self.results = leaves(self.tree)
        self.result = self.tree if isinstance(self.tree, int) else NO_SLOT
        self.function = None if self.kernel is None else self.kernel.function
        # An item getter of one key gives the bare item, so it gets a slice instead; both beat a comprehension.
        if len(self.operands) > 1:
            self.fetch = itemgetter(*self.operands)
        else:
            start = self.operands[0] if self.operands else 0
            self.fetch = itemgetter(slice(start, start + len(self.operands)))

    def copied(self) -> Step:
        """A step of its own that is the same."""
        new = Step.__new__(Step)
        for name in _FIELDS:
            setattr(new, name, getattr(self, name))
        return new


@define(eq=False)
class Context:
    """A run of a plan: the step that called it in its caller's plan, and the iteration."""

    step: Step
    plan: Plan
    iteration: int | None = None
    parent: Context | None = None
    path: CallPath | None = attrs.field(default=None, init=False)
    """The calls that lead there, once they have been asked for."""


_FIELDS = tuple(field.name for field in attrs.fields(Step))


class PartError(Exception):
    """One of the instructions that a step is made of has failed; the error itself is the cause."""

    def __init__(self, step: Step) -> None:
        super().__init__(step.instruction.name)
        self.step = step


@define(eq=False)
class Plan:
    """A computation, ready to be worked on by passes and, once its lifetimes are known, to run."""

    computation: Computation
    steps: list[Step]
    """What runs."""
    program: list[Step]
    """What is written; see the head of this file."""
    parameters: tuple[int, ...]
    """The slots of the parameters' leaves, and of what a loop around it gives it besides."""
    constants: dict[int, Any]
    """The slots that always hold the same, and what."""
    result_tree: SlotTree
    slot_shapes: list[Leaf]
    result_orders: tuple[Any, ...] = ()
    """The memory order of each leaf of the result; None: row-major."""

    results: tuple[int, ...] = attrs.field(init=False)
    """The slots of the root's leaves; a slot may occur several times."""
    initial: list[Any] = attrs.field(init=False, factory=list)
    """The slots as a run starts: constants in place, None elsewhere."""
    dead_on_entry: tuple[int, ...] = attrs.field(init=False, default=())
    """Parameter slots that nothing reads."""
    is_plain: bool = attrs.field(init=False, default=False)
    """Whether it is as it is written, but for calls and multiply-adds; so are all plans that it runs, then."""
    is_finished: bool = attrs.field(init=False, default=False)
    """Whether its lifetimes are known, so that it can run."""
    depth: int | None = attrs.field(init=False, default=None)
    """How deep the plans that it runs nest, 1 for none; None where the machine has to walk all of the steps."""
    body_peak_bytes: int | None = attrs.field(init=False, default=None)
    """Estimated peak of an iteration, the arguments that it replaces included; None where no loop runs the plan."""
    peak_step: Step | None = attrs.field(init=False, default=None)
    peaks_by_ownership: dict[tuple[bool, ...], int] = attrs.field(init=False, factory=dict)
    """Estimated peaks by which of the parameter leaves may die within the plan."""
    entry_peak_bytes: int | None = attrs.field(init=False, default=None)
    """The same if the arguments belong to the caller and do not count; None until first used."""
    library_calls: dict[str, Any] = attrs.field(init=False, factory=dict)
    """The registry's entries, by target, that the plan of a whole program was built on."""
    host_transfers: dict[HostTransfer, Step] = attrs.field(init=False, factory=dict)
    """What the plan of a whole program exchanges with its host, each with the first step that does so."""
    communication: list[Step] = attrs.field(init=False, factory=list)
    """The steps of a whole program at which devices exchange values."""
    has_draws: bool = attrs.field(init=False, default=False)
    """Whether a whole program generates random numbers."""
    rounds_at_random: bool = attrs.field(init=False, default=False)
    """Whether a whole program rounds at random, with a seed that each run gives."""
    runs: int = attrs.field(init=False, default=0)
    """How often the plan has run."""
    code: Any = attrs.field(init=False, default=None)
    """What `exec.code` has made of it."""
    arenas: Arenas | None = attrs.field(init=False, default=None)
    """The memory of runs of a whole program that has large arrays, once it has run."""

    def __attrs_post_init__(self) -> None:
        self.results = leaves(self.result_tree)

    def is_invariant(self, leaf: int) -> bool:
        """Whether result leaf `leaf` is parameter leaf `leaf` itself."""
        return self.results[leaf] == self.parameters[leaf]

    def with_loops(self, found: Callable[[While], Mapping[str, Any]]) -> Plan:
        """The plan, whose loops know what is found out about them: values of fields, by name."""
        steps = [
            attrs.evolve(step, flow=attrs.evolve(step.flow, **changed))
            if isinstance(step.flow, While) and (changed := found(step.flow))
            else step
            for step in self.steps
        ]
        return attrs.evolve(self, steps=steps)

    def new_slot(self, shape: Leaf) -> int:
        """A slot for values of this shape."""
        self.slot_shapes.append(shape)
        return len(self.slot_shapes) - 1
