"""Traits: what analyses of modules know about an opcode, or a library call, without knowing its name.

Every trait has a default with which analyses are correct for any opcode, if less precise: no bounds, no demands.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import attrs
import numpy as np

from hloexec.core.ir import ArrayShape, Instruction, Module, Shape
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.intervals import BackwardRule, BoundsRule, ColumnsRule, DemandRule, MovedRule
from hloexec.ops.probes import Probe
from hloexec.ops.rounding import Sums

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
    found = np.isfinite(operands[0]) & (operands[0] != 0)
    for operand in operands[1:]:
        found &= np.isfinite(operand) & (operand != 0)
    return np.asarray(found)


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
    demands: DemandRule | None = None
    """In which bounds elements of operands must lie, and how large they should be."""
    demands_for: BackwardRule | None = None
    """In which bounds they must lie so that the result lies in those that are demanded of it."""
    demand_on: MovedRule | None = None
    """What is demanded of the columns of an operand that is moved; the bounds that suit all columns without it."""
    columns: ColumnsRule | None = None
    """Which columns a result has that is moved."""

    group_members: MembersRule | None = None
    contraction: ContractionRule | None = None
    sums: Sums | None = None
    """What it adds up for one element of its result."""
    keeps_relative_errors: bool = False
    """Whether relative errors of operands are amplified by at most a constant factor in the result."""
    only_compared: tuple[int, ...] = ()
    """The operands whose elements decide where others go, and are not in the result."""
    flushes_denormals: bool = False
    """Whether denormal operands and results are zeros under `ftz`; `ops.policies.flushing` says why."""
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
