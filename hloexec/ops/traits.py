"""Traits: what analyses of modules know about an opcode, or a library call, without knowing its name.

Every trait has a default with which analyses are correct for any opcode, if less precise: no bounds, no demands.

An entry has one as `probe` if its rule needs attributes or operands of several shapes. `T` is replaced by the element
type that is tried, `U` by the unsigned integer of its width (u64 if there is none), and `C` by the complex type whose
parts have it.

Kernels by rows: how an opcode is computed a block of rows at a time.

A value of dimensions [d0, d1, …] is viewed as R rows, where R is the product of its first dimensions, the *prefix*. An
instruction can be computed by rows if rows i to j of its result need only rows i to j of its operands, except for
scalar operands. Blocks of rows are arrays [rows, dimensions behind the prefix...]. Values have the same bits whether
they are computed by rows or as a whole.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate
from operator import mul
from typing import Any, TypeAlias

import attrs
import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES, DType, ElementType, element_type
from hloexec.core.ir import ArrayShape, Instruction, Module, Shape
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.intervals import BackwardRule, BoundsRule, ColumnsRule, DemandRule, MovedRule


class Rounding(enum.Enum):
    """What lies between the exact result for given operands and what an implementation gives."""

    NONE = enum.auto()
    """Nothing: elements are moved, chosen, compared or counted, or called computations do what rounding there is."""
    ONCE = enum.auto()
    """The exact result is rounded to the declared type."""
    FORMAT = enum.auto()
    """The operand is rounded to a narrower format, and kept in its own."""
    FUNCTION = enum.auto()
    """The result is approximated within a few ULPs, by every library in its own way, and rounded."""
    SUM = enum.auto()
    """Terms are added up, in an order that is the implementation's, each partial sum being rounded."""
    UNKNOWN = enum.auto()
    """Rounds in an unspecified way: treated as a sum over the largest dimension of its operands."""


class Sums(enum.Enum):
    """What is added up for one element of a result, as far as shapes tell it."""

    PRODUCTS = enum.auto()
    """Products, along what is contracted."""
    FOLDED = enum.auto()
    """As many elements as the operand has for each element of the result."""
    LINES = enum.auto()
    """Elements along one dimension."""
    PREFIXES = enum.auto()
    """Elements along one dimension, perhaps as a tree whose results are rounded at each level."""
    SCATTERED = enum.auto()
    """What meets at random places, rounded to the declared type after each addition."""


class Route(enum.Enum):
    """Where what the members of a collective's group hold goes."""

    EVERYWHERE = enum.auto()
    """All of it to all members."""
    FOLDED = enum.auto()
    """Into a fold, of which all members get all."""
    PARTED = enum.auto()
    """Part k of it, or of a fold, to member k."""
    PAIRED = enum.auto()
    """From sources to targets."""
    FROM_ROOT = enum.auto()
    """What one member holds to the others."""
    TO_ROOT = enum.auto()
    """Into a fold that one member gets."""
    COMPUTED = enum.auto()
    """Where operands say."""


@frozen
class Summation:
    """What an instruction adds up for one element of its result."""

    terms: float
    """How many terms, at most."""
    along: tuple[tuple[int, ...], ...] = ()
    """Where the terms are elements of the operands, or products of them: each operand's dimensions over which the sum
    goes. Empty where they are not, or windows overlap."""
    is_stepwise: bool = False
    """Whether each partial sum is rounded to the declared type, not to the type that sums are accumulated in."""
    narrow_steps: float = 0.0
    """Where set, sums of a narrow type may be rounded to it at each step, as of so many terms one after the other."""
    is_product: bool = False
    """Whether the terms are multiplied with one another, not added."""
    transformed: tuple[float, ...] = ()
    """Of sums of elements times irrational factors, of either sign or complex, that are taken along each of the last
    dimensions in turn: how many terms each adds up one after the other."""


REDUCER = "c { x = T[] parameter(0) y = T[] parameter(1) ROOT r = T[] copy(y) }"
SELECT = "s { x = T[] parameter(0) y = T[] parameter(1) ROOT r = pred[] compare(x, y), direction=GE }"
COMPARATOR = SELECT.replace("s {", "c {", 1)


@frozen
class Probe:
    """An instruction on operands a0, a1, … of the given shapes, and the computations that it calls."""

    instruction: str
    operands: tuple[str, ...] = ()
    computations: str = ""
    otherwise: Probe | None = None
    """Tried with the element types that the rule does not take here."""

    def text(self, element_type: ElementType) -> str:
        """The program for an element type."""
        lines = [f"a{number} = {shape} parameter({number})" for number, shape in enumerate(self.operands)]
        body = " ".join([*lines, f"ROOT r = {self.instruction}"])
        unsigned = f"u{element_type.bits}"
        names = {
            "T": element_type.name,
            "U": unsigned if unsigned in ELEMENT_TYPES else "u64",
            "C": _COMPLEX.get(element_type.name, element_type.name),
        }
        program = f"HloModule m\n{self.computations}\nENTRY e {{ {body} }}\n"
        for letter, name in names.items():
            program = program.replace(f"{letter}[", f"{name}[")
        return program


_COMPLEX = {"f32": "c64", "f64": "c128"}


Index: TypeAlias = tuple[int, ...]
"""Where in a nested tuple."""

ALL_OPERANDS: tuple[int, ...] = ()


@frozen(eq=False)
class Pole:
    """Where a function is infinite."""

    operand: int
    is_at: Callable[[Array], Array]
    """From the operand's elements, which of them lie there."""
    reason: str
    """A noun phrase: what it is called."""


def finite_and_not_zero(*operands: Array) -> Array:
    """Where every operand is a number other than zero: a `nonzero` rule of products."""
    mask = np.isfinite(operands[0]) & (operands[0] != 0)
    for operand in operands[1:]:
        mask &= np.isfinite(operand) & (operand != 0)
    return np.asarray(mask)


@frozen
class ContractionSize:
    """How much a contraction multiplies."""

    contracted: int
    """The number of products that each element of the result adds up."""
    products: int
    """Those of all elements, without the ones that fall into padding."""


MembersRule: TypeAlias = Callable[[Sequence[Shape], Shape, Any], int | None]
"""From the shapes of a collective's operands and result and its attributes, how many devices a group of it has; None
where they do not say."""

UnspecifiedRule: TypeAlias = Callable[[Instruction, Module], str | None]
"""From an instruction and its module, why its result depends on more than its operands, as what is said of it; None
where it does not."""


@frozen
class Additions:
    """An element of the result is one of the operands `base`, and at most `terms` of the operands `added` added to
    it; what other operands hold decides which."""

    base: tuple[int, ...]
    added: tuple[int, ...] = ()
    terms: int = 0


AdditionsRule: TypeAlias = Callable[[Instruction, Module, Sequence[ArrayShape]], Additions | None]
"""From an instruction, its module and the shapes of its operands, what its result is a sum of."""

OpenElementsRule: TypeAlias = Callable[[Instruction, Sequence[Array]], Array | None]
"""From an instruction and its operands, which elements of an array of its result do; None where all may."""

ContractionRule: TypeAlias = Callable[[Instruction, ArrayShape, ArrayShape, ArrayShape], ContractionSize | None]
"""From an instruction and the shapes of lhs, rhs and (first) result; None where it does not say enough."""


@frozen(eq=False, kw_only=True)
class Traits:
    """What is known of what an instruction does."""

    moves: tuple[int, ...] | None = None
    """The operands whose elements the result consists of, unchanged; `ALL_OPERANDS`, or None where
    elements are computed."""
    repeats: bool = False
    """Whether an element of what it moves may show at several places."""
    keeps_all: bool = False
    """Whether every element of what it moves shows in the result."""
    keeps_order: bool = False
    """Whether the result holds the elements of the first operand in the same, row-major order, if perhaps converted."""
    crosses_devices: bool = False
    """Whether it moves elements of the same operands on other devices."""
    fills: bool = False
    """Whether some elements of its result may be zeros that are not in its operands."""
    is_leafwise: bool = False
    """Whether leaf k of the result is made of operand k, and is of its kind and size."""
    aliases: tuple[tuple[Index, Index], ...] = ()
    """At which indices of the result which parts of the first operand show: as they are, in the same memory."""
    begins: bool = False
    """Whether the result is (what is given, what comes of it, state...) of an operation that goes on."""
    opens: bool = False
    """Whether another instruction has to end what it begins."""
    owns_tuple: bool = False
    """Whether what it starts or returns is in a separate tuple (a table of pointers)."""
    in_place: bool = False
    """Whether the result takes over the memory of operand 0, or its leaf k that of operand k."""
    fuses: bool = False
    """Whether the called computation is a part of the instruction, and its values have no place of their own."""
    bounds: BoundsRule | None = None
    """Between which bounds the elements of an array lie that is computed, not moved."""
    integer_bounds: BoundsRule | None = None
    """As `bounds`, where integers tell more; inputs are not chosen by it."""
    demands: DemandRule | None = None
    """In which bounds elements of operands must lie, and how large they should be."""
    demands_for: BackwardRule | None = None
    """In which bounds they must lie so that the result lies in those that are demanded of it."""
    demand_on: MovedRule | None = None
    """What is demanded of the columns of an operand that is moved; the bounds that suit all columns without it."""
    columns: ColumnsRule | None = None
    """Which columns a result has that is moved."""

    route: Route = Route.EVERYWHERE
    """Where a collective takes what devices hold; other than everywhere it may take less."""
    group_members: MembersRule | None = None
    contraction: ContractionRule | None = None
    sums: Sums | None = None
    """What it adds up for one element of its result."""
    additions: AdditionsRule | None = None
    """Of which elements of operands integers of its result are sums."""
    keeps_relative_errors: bool = False
    """Whether relative errors of operands are amplified by at most a constant factor in the result."""
    only_compared: tuple[int, ...] = ()
    """The operands whose elements decide where others go, and are not in the result."""
    flushes_denormals: bool = False
    """Whether denormal operands and results are zeros under `ftz`; `ops.policies.backends` says why."""
    unspecified: UnspecifiedRule | None = None
    """Why HLO leaves its result open."""
    open_elements: OpenElementsRule | None = None
    """Which elements that are; all of them without this."""
    jumps: bool = False
    """Whether numbers near operands may have a result far from theirs: beside a tie, or where it wraps around. All do
    whose results are integers or preds."""
    reads_bits: bool = False
    """Whether the result depends on the operand's bits, so that it says nothing of a number near the operand."""
    commutes: bool = False
    """Whether the result is the same when the two operands change places."""
    converts: bool = False
    """Whether the result is the first operand in another format, as near as that has it."""
    is_involution: bool = False
    """Whether, applied twice, it gives its operand."""
    is_injective: bool = False
    """Whether different operands, of those that have a number as their result, have different ones, but for rounding:
    results do not overflow, underflow or saturate."""
    cancels: bool = False
    """Whether the result is the sum or the difference of the operands, which may be far smaller than they are."""
    same_unit: bool = False
    """Whether operands and result count the same, where they are numbers of the same type."""
    keeps_unit: bool = False
    """Whether the result counts what operands count, although it is not as they are: modulo one, or with its sign."""
    is_product: bool = False
    """Whether the result is the product of the operands."""
    is_quotient: bool = False
    """Whether the result is the quotient of the operands, of integers rounded towards zero."""
    is_shift: bool = False
    """Whether the result is the first operand times or divided by two to the power of the second."""
    pole: Pole | None = None
    invalid: str | None = None
    """A noun phrase: why a result is NaN though every operand is finite."""
    nonzero: Callable[..., Array] | None = None
    """From the operands' elements, where the exact result is a number other than zero."""

    layout_of: tuple[int, ...] = ()
    """The operand whose layout the result has, or its first element, where a text leaves the shape of the result out;
    of several the first that is no scalar. Row-major where there is none, but for elementwise operations, where it is
    the first operand then."""
    states_shape: bool = False
    """Whether texts state the shape of the result though a rule would tell it, beyond roles of which all do."""
    probe: Probe | None = None
    """What shows which element types it takes, where it does not take operands of one shape and no attributes."""

    @property
    def part(self) -> Index:
        """Of what gives a part of its operand, which one."""
        return self.aliases[0][1]

    @property
    def rearranges(self) -> bool:
        """Whether the result consists of elements of the first operand, none of them twice."""
        return self.moves == (0,) and not (self.repeats or self.fills or self.crosses_devices)

    def moved_operands(self, count: int) -> tuple[int, ...]:
        """The numbers of the operands, of `count`, whose elements the result consists of."""
        if self.moves is None:
            return ()
        return tuple(number for number in self.moves or range(count) if number < count)


NO_TRAITS = Traits()
TRAITS = frozenset(field.name for field in attrs.fields(Traits))
"""The names of all."""


def traits_with_rules(traits: Traits, entry: type) -> Traits:
    """The traits with the rules that the class of an entry has as static methods, and what else it says."""
    return attrs.evolve(traits, **{name: getattr(entry, name) for name in TRAITS if hasattr(entry, name)})


RowFunction: TypeAlias = "Callable[..., Any]"
_F32 = element_type("f32")


@frozen(eq=False)
class RowForm:
    """How one instruction is computed by rows."""

    rows: frozenset[int]
    """The numbers of rows for which it can be."""
    bind: Callable[[int], RowFunction]
    """For one of them, the function from blocks (and whole scalars) to a block."""
    is_view: bool = False
    """Whether the result shares the operand's memory where the instruction runs by itself."""
    is_reduction: bool = False
    wide: ArrayShape | None = None
    """Where set, `bind` gives a function of f32 blocks in place of bf16 ones, whose f32 result is yet to be rounded."""
    is_exact: bool = False
    """Whether that result is a bf16 number, its bits included, without rounding."""
    is_elementwise: bool = False
    """Whether an operand that is one number everywhere may be given as an array of one element."""
    mask: DType | None = None
    """Where set, `bind` gives a function of a mask of such integers in place of a pred."""
    numbers_rows: bool = False
    """Whether `bind` gives a function of the number of the first row and of that behind the last, of no operands."""
    fills: bool = False
    """Whether `bind` gives a function that takes, as its last argument, an array to fill, which shares no memory with
    the others but may be one of `overwrites`."""
    overwrites: tuple[int, ...] = ()
    """The numbers of such operands."""


@lru_cache(maxsize=4096)
def prefixes(dimensions: tuple[int, ...]) -> frozenset[int]:
    """The numbers of rows that an array can be seen as."""
    return frozenset(accumulate(dimensions, mul)) - {0, 1}


def prefix_length(dimensions: Sequence[int], rows: int) -> int:
    """How many of the first dimensions make up so many rows; the fewest where several do."""
    return list(accumulate(dimensions, mul)).index(rows) + 1


def behind_prefix(dimensions: Sequence[int], rows: int) -> tuple[int, ...]:
    """The dimensions of a row."""
    return tuple(dimensions[prefix_length(dimensions, rows) :])


def same(block: Array) -> Array:
    """The block itself."""
    return block


def widened_from_bf16(shape: ArrayShape) -> ArrayShape:
    """The shape in f32 where it is in bf16, as `RowForm.wide` has it."""
    return shape.with_element_type(_F32) if shape.element_type.name == "bf16" else shape
