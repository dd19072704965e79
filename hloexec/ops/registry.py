"""The registry: one entry per opcode.

An entry holds everything about an opcode: its attributes, its number of operands, its shape rule (`infer`), its kernel
(`evaluate`) and traits. The parser, printer, verifier, planner and coverage table read it; they never name an opcode
themselves.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Iterator, MutableMapping
from importlib import import_module
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import attrs

from hloexec.core.ir import Computation, Instruction, Shape
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops import MODULES
from hloexec.ops.attributes import attribute_fields
from hloexec.ops.relations import RelateRule, ResizeRule, pointwise
from hloexec.ops.rounding import Rounding, Summation
from hloexec.ops.rows import RowForm
from hloexec.ops.traits import NO_TRAITS, TRAITS, Traits, traits_with_rules

ANY: None = None
"""The upper bound of an opcode that takes any number of operands."""

R = TypeVar("R")

MemoryOrder: TypeAlias = tuple[int, ...]
"""The dimensions of an array as they lie in memory, from major to minor."""


class Role(enum.Enum):
    """How a planner treats an opcode."""

    KERNEL = enum.auto()
    """`evaluate` computes the result from the operands."""
    PARAMETER = enum.auto()
    CONSTANT = enum.auto()
    TUPLE = enum.auto()
    GET_TUPLE_ELEMENT = enum.auto()
    FORWARD = enum.auto()
    """The result is the first operand, whatever its shape (opt-barrier, domain, add-dependency)."""
    TOKEN = enum.auto()
    """The result is a token (after-all)."""
    CALL = enum.auto()
    """The result is that of the called computation on the operands (call, fusion)."""
    WHILE = enum.auto()
    CONDITIONAL = enum.auto()
    CUSTOM_CALL = enum.auto()
    ASYNC_START = enum.auto()
    """Begins the called computation: the result is ((operands...), its results, state...)."""
    COPY_START = enum.auto()
    """Begins a copy: the result is (destination, source, state...)."""
    PART = enum.auto()
    """The result is the part of the first operand that the trait `aliases` names, as what ends an asynchronous
    operation gives it."""
    PARTITION_ID = enum.auto()
    REPLICA_ID = enum.auto()
    MACHINE = enum.auto()
    """Exchanges values with other devices or with the host: collectives, send and recv, infeed and outfeed."""


_STATED = frozenset(
    {*(Role.PARAMETER, Role.CONSTANT, Role.CUSTOM_CALL), *(Role.ASYNC_START, Role.COPY_START, Role.PART, Role.MACHINE)}
)
"""Roles of which texts always state the shape of the result."""


class Callee(Protocol):
    """A called computation as a kernel sees it.

    Calling it evaluates it on whole arrays, elementwise in the leading dimensions: scalar parameters may be given
    arrays of one common shape, and the results have that shape. The result is an array, or a tuple of arrays where the
    root is a tuple. `computation` is there so that kernels can recognise usual forms by structure.
    """

    @property
    def computation(self) -> Computation: ...

    def __call__(self, *arguments: Any) -> Any: ...


@frozen
class ProgramShape:
    """The signature of a called computation, as a shape rule sees it."""

    parameters: tuple[Shape, ...]
    result: Shape


class Rule(Generic[R]):
    """A rule of an entry: it is called with all that is known of an instruction, and takes what it declares."""

    def __init__(self, function: Callable[..., R]) -> None:
        self.function = function
        self.needs = keyword_parameters(function)
        """The keyword-only arguments that it declares."""

    def __call__(self, *operands: Any, **known: Any) -> R:
        return self.function(*operands, **{name: known[name] for name in self.needs})


def _keywords_of(rule: str) -> Any:
    """A field: the keyword-only parameters of a rule, by which it says what else it needs."""
    of_rule = attrs.Factory(lambda entry: keyword_parameters(getattr(entry, rule)) - {"out"}, takes_self=True)
    return attrs.field(init=False, default=of_rule)


@frozen(kw_only=True)
class Opcode:
    """What hloexec knows of one opcode.

    `infer(*operand_shapes, …)` returns the result shape or raises ShapeError; `evaluate(*operands, …)` the result.
    These and all other rules take, as keyword-only arguments and only where they declare them: `attributes`; `shape`
    (the declared result shape); `operand_shapes`; `computations` (ProgramShapes for infer, Callees for others, in the
    order of the attributes that name them); `numerics` (the policy; evaluate only). None where hloexec has no rule or
    kernel yet.
    """

    name: str
    documentation: str = ""
    operands: int | tuple[int, int | None]
    """How many it takes: a number, or the least and the most."""
    attributes: type | None = None
    role: Role = Role.KERNEL
    traits: Traits = NO_TRAITS
    """What analyses know of it (`ops.traits`)."""
    is_elementwise: bool = False
    may_be_view: bool = False
    """Whether the result usually shares the memory of the first operand; only estimates of memory rely on it."""
    any_order: bool = False
    """Whether the bits of the result do not depend on how operands lie in memory, which goes without saying of
    elementwise kernels and views."""
    is_pure: bool = True
    """Whether it computes the same whenever its operands are the same; else the order in which it is asked matters."""
    overwrites: int | None = None
    """The operand whose array may be given as `out`, where `evaluate` and what `bind` gives take that: the kernel may
    write the result there, and return it."""
    numbers_from: int | None = None
    """The operand from which on Python's integers do where integers without dimensions are declared."""
    gives_same: bool = False
    """Collectives only: whether all members of a group get one result."""
    rounding: Rounding = attrs.field()
    """What the result owes to rounding. Unless an entry says otherwise, elementwise operations round once; views,
    kernels of `any_order` and what is no kernel not at all; others in ways unknown."""
    infer: Rule[Shape] | None = None
    unstated: Rule[Shape | None] | None = None
    """From the operands' shapes (and `attributes`) the shape of a result whose text leaves it out, where XLA's parser
    has a rule for that beside the one of `infer`; ShapeError where it has none, None where it is that."""
    well_formed: Rule[None] | None = None
    """What XLA's parser demands of an instruction beyond its grammar: raises ShapeError, from the operands' shapes (and
    `attributes` and `shape`). Asked where `strict`; `infer` tolerates what dumps of other versions have."""
    evaluate: Callable[..., Any] | None = None
    evaluate_needs: frozenset[str] = _keywords_of("evaluate")
    exchange: Callable[..., Any] | None = None
    """Collectives only: the kernel, from what the members of a group hold to what they get; see `collective.groups`."""
    exchange_needs: frozenset[str] = _keywords_of("exchange")
    bind: Rule[Callable[..., Any] | None] | None = None
    """Gives a function of the operands (and `out`) alone that does what `evaluate` does under `reference`, or None. It
    relies on NumPy's warnings being off."""
    fill: Rule[Callable[..., None] | None] | None = None
    """Of elementwise opcodes whose function makes arrays: a function of the operands, and of an array apart from them
    that it fills with what `bind`'s function gives; None for some element types."""
    memory_order: Rule[MemoryOrder] | None = None
    """Of views, from the order in which the first operand lies, the order in which the result does; None where that is
    row-major, whatever the operand's."""
    by_rows: Rule[RowForm | None] | None = None
    """How an instruction is computed by rows (`ops.rows`), with the same bits; of operands that lie in
    row-major order where that matters."""
    summed: Rule[Summation | None] | None = None
    """Of opcodes whose rounding is SUM: what is added up; None where the reducer adds nothing, or is
    called step by step and rounds by itself."""
    relate: RelateRule | None = None
    """How the dimensions of operands and result depend on one another; None where that is a matter of its role."""
    resize: ResizeRule | None = None
    """The attributes for other sizes; None where none of them depends on sizes."""
    order: Rule[tuple[int, Array]] | None = None
    """Of what sorts operands along a dimension: from the operands' arrays (and `attributes` and `computations`) that
    dimension, and from which place along it each element of the result comes. Leaf k of the result is made of operand
    k; a leaf beyond holds the places."""
    reason_against: Callable[[Instruction], str | None] | None = None
    """Why an instruction is one that hloexec does not run though it has a kernel, as a clause; None where it runs."""
    slices: Rule[tuple[int, int] | None] | None = None
    """From `attributes` and `operand_shapes` a dimension of the first operand of which each slice, with the other
    operands, gives a slice of the result by itself, and the result's dimension; None where there is none."""
    window: Callable[..., tuple[slice, ...]] | None = None
    """Of what copies operand 1 into a window of operand 0, and changes nothing else: from the sizes of both, and from
    the other operands' arrays, that window."""

    def __attrs_post_init__(self) -> None:
        if self.relate is None and self.is_elementwise:
            object.__setattr__(self, "relate", pointwise)

    @rounding.default
    def _usual_rounding(self) -> Rounding:
        moves = self.may_be_view or self.any_order or self.role is not Role.KERNEL
        return Rounding.ONCE if self.is_elementwise else Rounding.NONE if moves else Rounding.UNKNOWN

    @property
    def minimum_operands(self) -> int:
        return self.operands if isinstance(self.operands, int) else self.operands[0]

    @property
    def maximum_operands(self) -> int | None:
        return self.operands if isinstance(self.operands, int) else self.operands[1]

    @property
    def is_order_sensitive(self) -> bool:
        """Whether the bits of the result may depend on the order in which operands lie in memory, as those of sums."""
        return not (self.is_elementwise or self.may_be_view or self.any_order)

    @property
    def states_shape(self) -> bool:
        """Whether texts always state the result's shape, even where a rule would tell it: XLA's parser demands it."""
        return self.role in _STATED or self.traits.states_shape

    @property
    def is_supported(self) -> bool:
        """Whether modules with this opcode run."""
        return self.role is not Role.KERNEL or self.evaluate is not None


_HOMES = {name: module for module, names in MODULES.items() for name in names.split()}
_imported: dict[str, Opcode] = {}


class _Opcodes(MutableMapping[str, Opcode]):
    """The entries by opcode. A module that holds some is imported when one of them is asked for, and all are by what
    goes through the entries, in the order of `MODULES`."""

    def __getitem__(self, name: str) -> Opcode:
        if name not in _imported and name in _HOMES:
            import_module(f"hloexec.ops.{_HOMES[name]}")
        return _imported[name]

    def __setitem__(self, name: str, entry: Opcode) -> None:
        _imported[name] = entry

    def __delitem__(self, name: str) -> None:
        del _imported[name]

    def __iter__(self) -> Iterator[str]:
        for module in MODULES:
            import_module(f"hloexec.ops.{module}")
        return iter([name for name in dict.fromkeys((*_HOMES, *_imported)) if name in _imported])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in _imported or name in _HOMES


OPCODES = _Opcodes()
"""Every opcode by its name in the text."""

_Entry = TypeVar("_Entry", bound=type)


_FUNCTIONS = "evaluate exchange relate resize reason_against window".split()
_RULES = "infer unstated well_formed bind fill memory_order by_rows summed order slices".split()
"""Static methods of an entry's class, the second as `Rule`."""


def opcode(name: str, *, operands: int | tuple[int, int | None], **fields: Any) -> Callable[[_Entry], _Entry]:
    """Register the decorated class as the entry of opcode `name`; `fields` are others of `Opcode`, and of `Traits`.

    The class's docstring gives the rule and its source; its static methods `infer`, `unstated`, `well_formed`,
    `evaluate`, `bind`, `fill`, `memory_order`, `by_rows`, `summed`, `relate`, `resize`, `reason_against`, `order`,
    `slices`, `window` and (collectives) `exchange` are what they are called, and so are those that are rules of its
    `traits`: `bounds`, `demands`, `demands_for`.
    """

    traits = Traits(**{trait: fields.pop(trait) for trait in TRAITS & fields.keys()})

    def decorate(cls: _Entry) -> _Entry:
        rules: dict[str, Any] = {name: getattr(cls, name) for name in _FUNCTIONS if hasattr(cls, name)}
        rules |= {name: Rule(getattr(cls, name)) for name in _RULES if hasattr(cls, name)}
        documentation = inspect.cleandoc(cls.__doc__ or "")
        known = traits_with_rules(traits, cls)
        register(Opcode(name=name, documentation=documentation, operands=operands, traits=known, **rules, **fields))
        return cls

    return decorate


def register(entry: Opcode) -> None:
    """Make an entry known; for tables of opcodes that are one formula each."""
    if entry.name in _imported:
        raise ValueError(f"opcode {entry.name} has two entries")
    attribute_fields(entry.attributes)
    OPCODES[entry.name] = entry


def find_opcode(name: str) -> Opcode | None:
    """The entry of an opcode, or None for one that this version does not know."""
    # Most are there, and an attempt at the dictionary takes a third of the time.
    return _imported.get(name) or OPCODES.get(name)


def role_of(instruction: Instruction) -> Role | None:
    """The role of an instruction's opcode, or None where this version does not know it."""
    entry = find_opcode(instruction.opcode)
    return None if entry is None else entry.role


def keyword_parameters(function: Callable[..., Any] | None) -> frozenset[str]:
    """The names of a function's keyword-only parameters."""
    if function is None:
        return frozenset()
    code = function.__code__
    start = code.co_argcount
    return frozenset(code.co_varnames[start : start + code.co_kwonlyargcount])
