"""The registry: one entry per opcode, and one per target of library calls.

An entry holds everything about an operation: its attributes, its number of operands, its shape rule (`infer`), its
definition (`evaluate`) and traits. The parser, printer, verifier, planner and coverage table read it; they never name
an operation themselves. Users can register entries of library calls of their own, which override the built-in ones.

Binding: the entry of an instruction becomes a kernel, for attributes, shapes and a numerics policy.

A kernel is a function from one array (or token) per operand to an array, or a (nested) tuple of them. Nothing of what
it was made of is looked at again when it runs, with NumPy's warnings off. It is the entry's definition (`evaluate`), or
a fast variant of that with the same bits (`bind`), which is chosen here.

Names and traits of instructions, whether opcodes or library calls.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Generic, Protocol, TypeAlias, TypeVar

import attrs

from hloexec.core.ir import ArrayShape, Computation, Instruction, Shape, flat_shapes, parts_of
from hloexec.core.structs import define, frozen
from hloexec.core.values import Array, Dimensions
from hloexec.core.wording import argument, counted
from hloexec.errors import ShapeError, UnsupportedError
from hloexec.ops import LIBRARIES, MODULES
from hloexec.ops.attributes import attribute_fields, computation_names
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy
from hloexec.ops.relations import RelateRule, Requirement, ResizeRule, pointwise
from hloexec.ops.traits import NO_TRAITS, TRAITS, Rounding, RowForm, Summation, Traits, traits_with_rules

ANY: None = None
"""The upper bound of an opcode that takes any number of operands."""

R = TypeVar("R")
_Class = TypeVar("_Class", bound=type)

MemoryOrder: TypeAlias = Dimensions
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
    LIBRARY = enum.auto()
    """The target of a custom call: `evaluate`, `forwards` or `invokes` says what the result is."""
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


Callees: TypeAlias = tuple[Callee, ...]
Programs: TypeAlias = tuple[ProgramShape, ...]


class Rule(Generic[R]):
    """A rule of an entry: it is called with all that is known of an instruction, and takes what it declares."""

    def __init__(self, function: Callable[..., R], needs: frozenset[str] | None = None) -> None:
        self.function = function
        self.needs = parameters_of(function)[2] - {"out"} if needs is None else needs
        """The keyword-only arguments that it declares, but for the array that it may write to."""

    def __call__(self, *operands: Any, **known: Any) -> R:
        return self.function(*operands, **{name: known[name] for name in self.needs if name in known})

    def bound(self, options: Mapping[str, object]) -> Callable[..., R]:
        """The function with what it needs."""
        return partial(self.function, **options) if options else self.function


def parameters_of(function: Callable[..., Any]) -> tuple[int, int | None, frozenset[str]]:
    """The least and the largest number of operands that a function takes (None: any), and what it takes by keyword."""
    bound_count = 0
    while isinstance(function, partial):
        bound_count, function = bound_count + len(function.args), function.func
    code, defaults = function.__code__, function.__defaults__ or ()
    most, end = (
        code.co_argcount - bound_count - hasattr(function, "__self__"),
        code.co_argcount + code.co_kwonlyargcount,
    )
    keywords = frozenset(code.co_varnames[code.co_argcount : end])
    return most - len(defaults), None if code.co_flags & inspect.CO_VARARGS else most, keywords


@frozen(kw_only=True)
class Fast:
    """Variants of what `evaluate` of an entry does under `reference`, which take less time and give the same bits."""

    bind: Rule[Callable[..., Any] | None] | None = None
    """Gives a function of the operands (and `out`) alone, or None. It relies on NumPy's warnings being off."""
    fill: Rule[Callable[..., None] | None] | None = None
    """Of elementwise opcodes whose function makes arrays: a function of the operands, and of an array apart from them
    that it fills with what `bind`'s function gives; None for some element types."""
    by_rows: Rule[RowForm | None] | None = None
    """How an instruction is computed by rows (`ops.traits`); of operands that lie in row-major order where that
    matters."""


_NONE = Fast()
FAST: dict[str, Fast] = {}
"""The fast variants by the names of their entries, as far as they have been imported."""


def fast(*names: str) -> Callable[[_Class], _Class]:
    """Register the static methods `bind`, `fill` and `by_rows` of the decorated class as entries' fast variants."""

    def decorate(cls: _Class) -> _Class:
        rules = {name: Rule(getattr(cls, name)) for name in ("bind", "fill", "by_rows") if hasattr(cls, name)}
        FAST.update(dict.fromkeys(names, Fast(**rules)))
        return cls

    return decorate


@frozen(kw_only=True)
class Entry:
    """What hloexec knows of an opcode, or of the target of library calls.

    `infer(*operand_shapes, …)` returns the result shape or raises ShapeError; `evaluate(*operands, …)` the result: an
    array or a (nested) tuple of them. These and all other rules take, as keyword-only arguments and only where they
    declare them: `attributes`; `shape` (the declared result shape); `operand_shapes`; `computations` (ProgramShapes for
    infer, Callees for others, in the order of the attributes that name them); `numerics` (the policy; evaluate only);
    `backend_config` (verbatim, or None) and `config` (what the entry's own `config` reads). None where hloexec has no
    rule or kernel.
    """

    name: str
    documentation: str = ""
    """The formula and its source."""
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
    evaluate: Rule[Any] | None = None
    operands: int | tuple[int, int | None] = attrs.field()
    """How many it takes: a number, or the least and the most; as a rule those of `evaluate` or `infer`."""
    exchange: Rule[Any] | None = None
    """Collectives only: the kernel, from what the members of a group hold to what they get; see `collective.groups`."""
    meets: Callable[[Instruction], bool] | None = None
    """Of library calls that have `exchange`: whether all devices meet in a call, which has no `evaluate` then."""
    memory_order: Rule[MemoryOrder] | None = None
    """Of views, from the order in which the first operand lies, the order in which the result does; None where that is
    row-major, whatever the operand's."""
    summed: Rule[Summation | None] | None = None
    """Of opcodes whose rounding is SUM: what is added up; None where the reducer adds nothing, or is
    called step by step and rounds by itself."""
    relate: RelateRule | None = None
    """How the dimensions of operands and result depend on one another; None where that is a matter of its role."""
    resize: ResizeRule | None = None
    """The attributes for other sizes, or the `backend_config` of a library call; None where neither depends on them."""
    requires: Rule[Iterable[Requirement]] | None = None
    """From `attributes`, `operand_shapes`, `shape` and `config`, what integers in operands have to be, as far as sizes
    bound them."""
    clamps: bool = False
    """Whether integers that are not as `requires` says are taken for the nearest that are."""
    order: Rule[tuple[int, Array]] | None = None
    """Of what sorts operands along a dimension, or chooses of them: from the operands' arrays (and `attributes` and
    `computations`) that dimension, and from which place along it each element of the result comes. Leaf k of the result
    is made of operand k; a leaf beyond holds the places."""
    supports: Callable[[Instruction], str | None] | None = None
    """Why an instruction is one that hloexec does not run though it has a kernel, as a clause, or UnsupportedError with
    it; None where it runs."""
    slices: Rule[tuple[int, int] | None] | None = None
    """From `attributes` and `operand_shapes` a dimension of the first operand of which each slice, with the other
    operands, gives a slice of the result by itself, and the result's dimension; None where there is none."""
    window: Callable[..., tuple[slice, ...]] | None = None
    """Of what copies operand 1 into a window of operand 0, and changes nothing else: from the sizes of both, and from
    the other operands' arrays, that window."""
    config: Callable[[Instruction], Any] | None = None
    """Reads what the config and the attributes of a call say; UnsupportedError or ShapeError for what cannot be run."""
    forwards: Callable[[Computation, Instruction], tuple[str, ...]] | None = None
    """Of library calls that only hand values over: the names of the instructions whose values the result begins with;
    whatever else it holds is state that means nothing."""
    invokes: Callable[[Instruction], str] | None = None
    """Of library calls that run a computation on their operands: its name."""
    wider: str | None = None
    """The target of the same routine for floats of 64 bits, where that is another one."""
    is_reproducible: bool = attrs.field()
    """Whether results under the `exact` policy are the same bits on every machine. Unless an entry says otherwise,
    they are where an opcode rounds at most once, or its kernel is given the policy."""
    fast_in: str | None = None
    """The module that holds the fast variants of `evaluate`, where it has some; it is imported when they are needed."""

    def __attrs_post_init__(self) -> None:
        if self.relate is None and self.is_elementwise:
            object.__setattr__(self, "relate", pointwise)

    @operands.default
    def _operands_taken(self) -> tuple[int, int | None]:
        rule = self.evaluate or self.infer
        return (0, ANY) if rule is None else parameters_of(rule.function)[:2]

    @rounding.default
    def _usual_rounding(self) -> Rounding:
        moves = self.may_be_view or self.any_order or self.role not in (Role.KERNEL, Role.LIBRARY)
        return Rounding.ONCE if self.is_elementwise else Rounding.NONE if moves else Rounding.UNKNOWN

    @is_reproducible.default
    def _usually_reproducible(self) -> bool:
        rounds_alike = self.rounding in (Rounding.NONE, Rounding.ONCE, Rounding.FORMAT)
        return (
            rounds_alike or self.role is not Role.KERNEL or self.evaluate is None or "numerics" in self.evaluate.needs
        )

    @property
    def fast(self) -> Fast:
        """Its fast variants; a user's entry has none, whatever its name."""
        if self.fast_in is None:
            return _NONE
        if self.name not in FAST:
            import_module(self.fast_in)
        return FAST[self.name]

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

    def result_shape(self, instruction: Instruction, operands: Sequence[Shape]) -> Shape | None:
        """The result shape of a library call; None where there is no rule, or the call cannot be run in any case.

        Raises ShapeError where the call is ill-formed.
        """
        if self.reason_against(instruction) is not None:
            return None
        least, most = self.minimum_operands, self.maximum_operands
        if len(operands) < least or (most is not None and len(operands) > most):
            taken = f"{'' if most == least else 'at least '}{counted(least, 'operand')}"
            raise ShapeError(f"it takes {taken}, but has {len(operands)}")
        if self.infer is None:
            return None
        return self.infer(
            *operands,
            attributes=instruction.attributes,
            backend_config=instruction.backend_config,
            shape=instruction.shape,
            operand_shapes=tuple(operands),
            config=None if self.config is None else self.config(instruction),
        )

    def reason_against(self, instruction: Instruction, numerics: NumericsPolicy = REFERENCE) -> str | None:
        """Why an instruction cannot be run under a policy, as a clause, or None where it can."""
        try:
            if self.config is not None:
                self.config(instruction)
        except (UnsupportedError, ShapeError) as error:
            return error.message
        try:
            reason = None if self.supports is None else self.supports(instruction)
        except UnsupportedError as error:
            return error.message
        depends = self.evaluate is not None and not self.is_reproducible
        return _processor_reason() if reason is None and numerics.is_exact and depends else reason


def _processor_reason() -> str:
    return (
        f"{argument('numerics', 'exact')} asks for the same bits on every processor, but hloexec computes it with code "
        "(BLAS, LAPACK or functions of NumPy's) that rounds as the processor's instructions have it"
    )


class Registry(MutableMapping[str, Entry]):
    """Entries by name. A module that holds some is imported when one of them is asked for, and all are by what goes
    through the entries, in the order of `modules`; `rest` holds those whose names are not listed there."""

    def __init__(self, subject: str, modules: Mapping[str, str], rest: str | None = None) -> None:
        self.what = subject
        self.imported: dict[str, Entry] = {}
        self._modules = [*modules, *([] if rest is None else [rest])]
        self._homes = {name: module for module, names in modules.items() for name in names.split()}
        self._rest = rest

    def add(self, entry: Entry) -> None:
        if entry.name in self.imported:
            raise ValueError(f"{self.what} {entry.name} has two entries")
        attribute_fields(entry.attributes)
        self.imported[entry.name] = entry

    def __getitem__(self, name: str) -> Entry:
        home = self._homes.get(name, self._rest)
        if name not in self.imported and home is not None:
            import_module(f"hloexec.ops.{home}")
        return self.imported[name]

    def __setitem__(self, name: str, entry: Entry) -> None:
        self.imported[name] = entry

    def __delitem__(self, name: str) -> None:
        del self.imported[name]

    def __iter__(self) -> Iterator[str]:
        for module in self._modules:
            import_module(f"hloexec.ops.{module}")
        return iter([name for name in dict.fromkeys((*self._homes, *self.imported)) if name in self.imported])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in self._homes or super().__contains__(name)


OPCODES = Registry("opcode", MODULES)
"""Every opcode by its name in the text."""
CUSTOM_CALLS = Registry("custom-call target", {}, LIBRARIES)
"""The built-in entries of library calls by target."""
USER_CALLS: dict[str, Entry] = {}
"""Those of users (`library_calls.user_calls`)."""

_FUNCTIONS = "relate resize supports window config forwards invokes meets".split()
_RULES = "infer unstated well_formed evaluate exchange memory_order summed requires order slices".split()
"""Static methods of an entry's class, the second as `Rule`."""


def opcode(name: str, **fields: Any) -> Callable[[_Class], _Class]:
    """Register the decorated class as the entry of opcode `name`; `fields` are others of `Entry`, and of `Traits`.

    The class's docstring gives the formula and its source; its static methods `infer`, `unstated`, `well_formed`,
    `evaluate`, `memory_order`, `summed`, `relate`, `resize`, `supports`, `order`, `slices`, `window`, (collectives)
    `exchange` and (library calls) `config`, `forwards`, `invokes` and `meets` are what they are called, and so are
    those that are rules of its `traits`: `bounds`, `demands`, `demands_for`.
    """
    return _entering(OPCODES, (name,), fields)


def custom_call(*targets: str, is_reproducible: bool = False, **fields: Any) -> Callable[[_Class], _Class]:
    """Register the decorated class as the entry of library calls of these targets, as `opcode` does."""
    return _entering(CUSTOM_CALLS, targets, {"is_reproducible": is_reproducible, "role": Role.LIBRARY, **fields})


def _entering(registry: Registry, names: Sequence[str], fields: Mapping[str, Any]) -> Callable[[_Class], _Class]:
    traits = Traits(**{trait: fields[trait] for trait in TRAITS & fields.keys()})
    others = {name: fields[name] for name in fields.keys() - TRAITS}

    def decorate(cls: _Class) -> _Class:
        members: dict[str, Any] = {name: getattr(cls, name) for name in _FUNCTIONS if hasattr(cls, name)}
        members |= {name: Rule(getattr(cls, name)) for name in _RULES if hasattr(cls, name)}
        members |= {
            "documentation": inspect.cleandoc(cls.__doc__ or ""),
            "traits": traits_with_rules(traits, cls),
            **others,
        }
        for name in names:
            registry.add(Entry(name=name, **members))
        return cls

    return decorate


def add_custom_call(target: str, evaluate: Callable[..., Any] | None, **fields: Any) -> None:
    """Add one built-in entry, for families whose entries are rows of a table; `fields` are others of `Entry`."""
    rules: dict[str, Any] = {name: Rule(fields.pop(name)) for name in _RULES if fields.get(name) is not None}
    rules |= {} if evaluate is None else {"evaluate": Rule(evaluate)}
    CUSTOM_CALLS.add(Entry(name=target, role=Role.LIBRARY, is_reproducible=False, **rules, **fields))


def refuse_custom_calls(*targets: str, reason: str, documentation: str) -> None:
    """Add built-in entries of calls that cannot be run, for a reason that is a clause."""
    for target in targets:
        add_custom_call(
            target, None, supports=lambda instruction: reason, documentation=inspect.cleandoc(documentation)
        )


def find_opcode(name: str) -> Entry | None:
    """The entry of an opcode, or None for one that this version does not know."""
    # Most are there, and an attempt at the dictionary takes a third of the time.
    return OPCODES.imported.get(name) or OPCODES.get(name)


def find_custom_call(target: str) -> Entry | None:
    """The entry of a target, the user's before the built-in one; None where there is none."""
    return USER_CALLS.get(target) or CUSTOM_CALLS.get(target)


def entry_of(instruction: Instruction) -> Entry | None:
    """The entry of an instruction's opcode, or of the library call that it is, where its target is known."""
    entry = find_opcode(instruction.opcode)
    if entry is None or entry.role is not Role.CUSTOM_CALL:
        return entry
    return find_custom_call(instruction.attributes.custom_call_target) or entry


def role_of(instruction: Instruction) -> Role | None:
    """The role of an instruction's opcode, or None where this version does not know it."""
    entry = find_opcode(instruction.opcode)
    return None if entry is None else entry.role


Kernel = Callable[..., Any]
"""It may have more than `__call__`: `quick`, a function with the same bits that does less before it computes;
`overwrites`, the operand whose array may be given as `out`, to be written to; `first`, the kernel of the first result
alone; `of_scalars` (`elementwise.fast.formulas`) and `of_each` (`policies.random_rounding`)."""


@define(eq=False)
class Site:
    """An instruction of which a kernel is made, and what is known of it before it runs."""

    entry: Entry
    instruction: Instruction
    operand_shapes: tuple[Shape, ...]
    """Those that are declared."""
    callee: Callable[[str], Callee] | None = None
    """A called computation as kernels see it, by its name."""
    numerics: NumericsPolicy = REFERENCE

    def given(self, rule: Rule[Any]) -> dict[str, Any]:
        """What a rule asks for besides operands."""
        return {name: self._known(name) for name in rule.needs}

    def _known(self, name: str) -> Any:
        if name in ("operand_shapes", "numerics"):
            return getattr(self, name)
        if name == "computations":
            assert self.callee is not None
            return tuple(map(self.callee, computation_names(self.instruction.attributes)))
        if name == "config" and self.entry.config is not None:
            return self.entry.config(self.instruction)
        return getattr(self.instruction, name)

    def bound(self, rule: Rule[Any]) -> Kernel:
        """A rule with all that it asks for."""
        return rule.bound(self.given(rule))

    def kernel(self, operands: Sequence[Shape] | None = None) -> Kernel | None:
        """The fast variant, where there is one, or the definition; `operands` are the shapes of what is met where they
        are not those that are declared. None where there is no kernel."""
        return self.fast(operands) or (None if self.entry.evaluate is None else self.bound(self.entry.evaluate))

    def fast(self, operands: Sequence[Shape] | None = None) -> Kernel | None:
        """The fast variant, where there is one."""
        bind = self.entry.fast.bind
        if bind is None or not self._is_decided(self.operand_shapes if operands is None else operands):
            return None
        return bind(**self.given(bind))

    def _is_decided(self, operands: Sequence[Shape]) -> bool:
        """Whether element types, shapes and policy decide how a value is computed.

        They do not where extents are dynamic, where an operand is not of the type that it is declared to have, and
        under policies that have formulas of their own.
        """
        numerics, shape = self.numerics, self.instruction.shape
        if numerics.replaces_formulas:
            return False
        if not self.entry.is_elementwise and numerics.contraction_operand_mantissa_bits is not None:
            return False
        results = flat_shapes(shape)[:1] if self.entry.role is Role.LIBRARY else parts_of(shape)
        for declared, met in zip((*self.operand_shapes, *results), (*operands, *results), strict=True):
            if (
                not isinstance(declared, ArrayShape)
                or not isinstance(met, ArrayShape)
                or declared.element_type is not met.element_type
                or declared.dynamic_dimensions
                or met.dynamic_dimensions
            ):
                return False
        return True


def operation_name(instruction: Instruction) -> str:
    """The opcode, or the target of a library call."""
    entry = find_opcode(instruction.opcode)
    is_call = entry is not None and entry.role is Role.CUSTOM_CALL
    return str(instruction.attributes.custom_call_target) if is_call else instruction.opcode


def exchanges(instruction: Instruction) -> bool:
    """Whether devices see one another's operands: in a collective, and at the boundary of a manual region."""
    entry = entry_of(instruction)
    return entry is not None and (entry.traits.crosses_devices or exchange_of(entry, instruction) is not None)


def exchange_of(entry: Entry, instruction: Instruction) -> Rule[Any] | None:
    """What makes of all members' operands what each gets, where devices meet in an instruction of this entry."""
    return entry.exchange if entry.meets is None or entry.meets(instruction) else None


def is_elementwise(instruction: Instruction) -> bool:
    """Whether each element of the result is computed from those of the operands in its place."""
    entry = find_opcode(instruction.opcode)
    return entry is not None and entry.is_elementwise


def traits_of(instruction: Instruction) -> Traits:
    """The traits of an instruction's opcode, or of the library call that it is; none of those that are not known."""
    entry = entry_of(instruction)
    return NO_TRAITS if entry is None else entry.traits


def forwarded_names(computation: Computation, instruction: Instruction) -> tuple[str, ...]:
    """The instructions whose values the result of a library call begins with, where it hands values over."""
    entry = entry_of(instruction)
    if entry is None or entry.forwards is None or entry.reason_against(instruction) is not None:
        return ()
    return entry.forwards(computation, instruction)
