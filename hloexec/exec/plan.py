"""Plans: what a computation becomes before it runs.

A plan is a flat list of steps over numbered slots. Only leaves (arrays and tokens) live in slots; tuples exist as
*trees* of slot numbers and are gone when the plan is finished. A step knows the slots it reads, the slots it fills, and
the slots whose values die with it. Fusions and calls are usually part of the plan of their caller; each step remembers
through its scope where it came from. Plans hold no values but constants, so one plan serves any number of runs and
devices.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeAlias

import attrs

from hloexec.ir import ArrayShape, BufferShape, Computation, Instruction, Shape, TupleShape

__all__ = [
    "NO_SLOT",
    "Branch",
    "Communication",
    "Conditional",
    "DeviceNumber",
    "Exchange",
    "Flow",
    "FromDevice",
    "FromHost",
    "HostTransfer",
    "Invocation",
    "Mark",
    "Options",
    "Plan",
    "Scope",
    "SlotTree",
    "Step",
    "ToDevice",
    "ToHost",
    "While",
    "leaves",
    "map_shape",
    "rebuilt",
    "unflatten",
]

SlotTree: TypeAlias = "int | tuple[SlotTree, ...]"
"""A value as a tree of slots: a slot, or a tuple of trees."""

NO_SLOT = -1


@attrs.frozen(eq=False)
class Options:
    """What of a run's options a plan depends on; the values are checked where a run begins."""

    numerics: Any
    """The numerics policy that kernels are bound to."""
    elided: Any = "zeros"
    """`zeros`, `random`, `error`, or a mapping from instruction names to arrays."""
    unknown: str = "error"
    """What library calls without an implementation give: `error`, `zeros` or `random`."""
    is_planned: bool = True
    """Whether steps may be reorganised: dead values overwritten, runs of steps taken block by block, plans compiled."""
    is_observed: bool = False
    """Whether the plan keeps a step for each instruction that only renames values, so that observers see them all."""


@attrs.frozen(eq=False)
class Scope:
    """The computation that a step was written in, and the instruction that called it within the same plan."""

    computation: Computation
    caller: Instruction | None = None
    parent: Scope | None = None
    iteration: int | None = None
    """Of a loop whose iterations are steps of the plan."""


@attrs.frozen(eq=False)
class Invocation:
    """The step runs another plan on its operands."""

    plan: Plan


@attrs.define(eq=False)
class While:
    """The step runs `body` on its operands, the loop-carried leaves, for as long as `condition` gives true."""

    condition: Plan
    body: Plan
    code: Any = None
    """What `hloexec.exec.code` has made of it."""


@attrs.frozen(eq=False)
class Branch:
    """One branch of a conditional, and which of the step's operands are its arguments."""

    plan: Plan
    start: int
    stop: int


@attrs.frozen(eq=False)
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


@attrs.frozen
class FromHost:
    """The step's value is (data, token), the data being what the host gives next."""

    channel: int | None
    """None for the infeed."""


@attrs.frozen
class ToHost:
    """The step hands its first operand to the host."""

    channel: int | None
    """None for the outfeed."""


HostTransfer: TypeAlias = FromHost | ToHost


@attrs.frozen(eq=False)
class Exchange:
    """The step is a collective: groups of devices exchange values."""

    function: Callable[..., Any]
    """The bound kernel, from the operands of a group's members to their results (`hloexec.ops.groups`)."""
    groups: Callable[[Any], list[dict[int, int]]] | None = None
    """The groups of a topology's devices, where the instruction's attributes don't list them. Members of one number
    are alike then: in groups of the same numbers and operands they get the same.
    """


@attrs.frozen
class FromDevice:
    """The step's value is (data, token), the data being what another device sent; zeros where none should."""

    channel: int | None
    pairs: tuple[tuple[int, int], ...] | None
    """Who sends to whom; where the text does not say, whoever sends on the channel to whoever receives from it."""


@attrs.frozen
class ToDevice:
    """The step sends its first operand to another device."""

    channel: int | None
    pairs: tuple[tuple[int, int], ...] | None


@attrs.frozen
class DeviceNumber:
    """The step's value is the number of the device's replica or partition."""

    is_replica: bool


Communication: TypeAlias = HostTransfer | Exchange | FromDevice | ToDevice | DeviceNumber
"""What a device does that has to do with others, or with its host."""

Flow: TypeAlias = Invocation | While | Conditional | Mark | Communication


@attrs.define(eq=False)
class Step:
    """One instruction of a plan."""

    instruction: Instruction
    scope: Scope
    operand_trees: tuple[SlotTree, ...]
    """One tree per operand of the instruction (none for a mark)."""
    tree: SlotTree
    """The instruction's value."""
    function: Callable[..., Any] | None
    """The bound kernel, from operand arrays to the result; None where `flow` says what to do."""
    flow: Flow | None = None
    extra_bytes: int = 0
    """Estimated bytes that exist only while the step runs."""
    is_silent: bool = False
    """Whether the step only prepares a value for another plan, so that observers need not see it."""
    operands: tuple[int, ...] = attrs.field(init=False)
    results: tuple[int, ...] = attrs.field(init=False)
    result: int = attrs.field(init=False)
    """The only slot that is filled, or NO_SLOT where there are none or several."""
    dead: tuple[int, ...] = ()
    """The slots whose values nothing needs after this step."""
    is_large: bool = False
    """Whether the result takes so much memory that operands are worth freeing as early as can be."""
    fetch: Callable[[list[Any]], Any] = attrs.field(init=False)
    """The operand values, given all slots."""

    def __attrs_post_init__(self) -> None:
        self.operands = tuple(slot for tree in self.operand_trees for slot in leaves(tree))
        self.results = leaves(self.tree)
        self.result = self.tree if isinstance(self.tree, int) else NO_SLOT
        # An item getter of one key gives the bare item, so it gets a slice instead; both beat a comprehension.
        if len(self.operands) > 1:
            self.fetch = itemgetter(*self.operands)
        else:
            start = self.operands[0] if self.operands else 0
            self.fetch = itemgetter(slice(start, start + len(self.operands)))


@attrs.define(eq=False)
class Plan:
    """A computation, ready to run."""

    computation: Computation
    steps: tuple[Step, ...]
    parameter_count: int
    """Number of parameter leaves; they lie in the slots from 0 up."""
    initial: list[Any]
    """The slots as a run starts: constants in place, None elsewhere."""
    results: tuple[int, ...]
    """The slots of the root's leaves; a slot may occur several times."""
    result_tree: SlotTree
    slot_shapes: list[ArrayShape | BufferShape]
    dead_on_entry: tuple[int, ...]
    """Parameter slots that nothing reads."""
    constant_slots: frozenset[int]
    peak_bytes: int = 0
    """Estimated peak of what a run allocates, its arguments included."""
    peak_step: Step | None = None
    peaks_by_ownership: dict[tuple[bool, ...], int] = attrs.field(factory=dict)
    """Estimated peaks by which of the parameter leaves may die within the plan."""
    library_calls: dict[str, Any] = attrs.field(factory=dict)
    """The registry's entries, by target, that the plan of a whole program was built on."""
    host_transfers: dict[HostTransfer, Step] = attrs.field(factory=dict)
    """What the plan of a whole program exchanges with its host, each with the first step that does so."""
    communication: list[Step] = attrs.field(factory=list)
    """The steps of a whole program at which devices exchange values."""
    plain_steps: tuple[Step, ...] = ()
    """Steps that do the same, none of them made of several: for called computations, which run on many elements."""
    entry_peak_bytes: int | None = None
    """The same where the arguments belong to the caller and do not count; None until somebody asks."""
    depth: int | None = None
    """How deep the plans that it runs nest, 1 for none; None where the machine has to walk all of the steps."""
    runs: int = 0
    """How often the plan has run."""
    code: Any = None
    """What `hloexec.exec.code` has made of it."""

    def is_invariant(self, leaf: int) -> bool:
        """Whether result leaf `leaf` is parameter leaf `leaf` itself."""
        return self.results[leaf] == leaf


def leaves(tree: SlotTree) -> tuple[int, ...]:
    """The slots of a tree, depth first."""
    if isinstance(tree, int):
        return (tree,)
    if all(type(branch) is int for branch in tree):
        return tree  # type: ignore[return-value]
    return tuple(_walk(tree))


def _walk(tree: SlotTree) -> Iterator[int]:
    stack = [tree]
    while stack:
        current = stack.pop()
        if isinstance(current, int):
            yield current
        else:
            stack.extend(reversed(current))


def map_shape(shape: Shape, leaf: Callable[[ArrayShape | BufferShape], int]) -> SlotTree:
    """The tree of a shape, with a slot made by `leaf` for each of its leaves, depth first."""
    if not isinstance(shape, TupleShape):
        return leaf(shape)
    return rebuilt(shape, lambda node: node.elements if isinstance(node, TupleShape) else None, leaf)  # type: ignore[no-any-return]


def unflatten(tree: SlotTree, slots: Sequence[Any] | Mapping[int, Any]) -> Any:
    """The value of a tree, given all slots."""
    if isinstance(tree, int):
        return slots[tree]
    return rebuilt(tree, lambda node: node if isinstance(node, tuple) else None, slots.__getitem__)


def rebuilt(root: Any, children: Callable[[Any], Sequence[Any] | None], leaf: Callable[[Any], Any]) -> Any:
    """Nested tuples with `leaf` applied where `children` gives None; without recursion, as tuples may nest deep."""
    parts = children(root)
    if parts is None:
        return leaf(root)
    frames: list[tuple[Iterator[Any], list[Any]]] = [(iter(parts), [])]
    while True:
        pending, done = frames[-1]
        for node in pending:
            parts = children(node)
            if parts is not None:
                frames.append((iter(parts), []))
                break
            done.append(leaf(node))
        else:
            frames.pop()
            if not frames:
                return tuple(done)
            frames[-1][1].append(tuple(done))
