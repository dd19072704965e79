"""Kernels of steps, and the slots that they read and write.

Plans hold only arrays and tokens: a tuple is a tree of the slots of its leaves. Nothing recurses into one, because
tuples may be nested deeply. Optimized modules mix float widths: a value of one width is converted where another is
declared.

A kernel is a function from operand arrays to the result, together with the facts from which it was made, so that passes
and called computations can derive others from it. Most are those of an opcode or a library call
(`plan.lowering.kernels`). Fused regions (`plan.regions`) are kernels, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import attrs
import numpy as np

from hloexec.core.dtypes import ElementType
from hloexec.core.ir import ArrayShape, BufferShape, Shape, flat_shapes
from hloexec.core.structs import frozen
from hloexec.core.tree import Nested, flat, mapped
from hloexec.core.values import TOKEN
from hloexec.ops.common import narrow, widen
from hloexec.ops.movement.strided import Spreading
from hloexec.ops.registry import Callee, Entry, MemoryOrder, Role
from hloexec.ops.traits import Sums

if TYPE_CHECKING:
    from hloexec.ops.contraction.fast.dot import MatrixProduct
    from hloexec.ops.policies.random_rounding import RandomRounding


T = TypeVar("T")

SlotTree: TypeAlias = Nested[int]
"""A value as a tree of slots: a slot, or a tuple of trees."""

Leaf: TypeAlias = "ArrayShape | BufferShape"
"""The shape of what a slot holds."""

NO_SLOT = -1


def leaves(tree: SlotTree) -> tuple[int, ...]:
    """The slots of a tree, depth first."""
    if isinstance(tree, int):
        return (tree,)
    slots = tuple([branch for branch in tree if isinstance(branch, int)])
    return slots if len(slots) == len(tree) else tuple(flat(tree))


def map_tree(tree: SlotTree, leaf: Callable[[int], T]) -> Nested[T]:
    """The tree with `leaf` of each slot in its place."""
    if isinstance(tree, int):
        return leaf(tree)
    return mapped(tree, leaf)


def unflatten(tree: SlotTree, slots: Sequence[Any] | Mapping[int, Any]) -> Any:
    """The value of a tree, given all slots."""
    if isinstance(tree, int):
        return slots[tree]
    if tuple not in map(type, tree):
        return tuple([slots[slot] for slot in tree])  # type: ignore[index]
    return mapped(tree, slots.__getitem__)


def store(results: Sequence[int], value: Any, slots: list[Any]) -> None:
    """Put the leaves of a tuple that a kernel returned into their slots."""
    if any(isinstance(element, tuple) for element in value):
        value = flat(value)
    for slot, leaf in zip(results, value, strict=True):
        slots[slot] = leaf


def fits(value: Any, shape: Leaf) -> bool:
    """Whether a leaf is of a shape; a dynamic dimension is of any size up to its bound."""
    array_shape = shape.array_shape
    if not array_shape.is_array:
        return not isinstance(value, np.ndarray) or value is TOKEN
    if not isinstance(value, np.ndarray) or value.dtype != array_shape.element_type.storage:
        return False
    return array_shape.has_room_for(value.shape)


def with_type(shape: Leaf, element_type: ElementType) -> Leaf:
    """The shape with another element type."""
    if isinstance(shape, BufferShape):
        return BufferShape(shape.element.with_element_type(element_type))
    return shape.with_element_type(element_type)


def float_types(shape: Shape) -> tuple[ElementType | None, ...]:
    """The element types of a shape's leaves; None for those that are no floats."""
    if isinstance(shape, ArrayShape):
        return (shape.element_type if shape.element_type.is_floating else None,)
    types = (leaf.array_shape.element_type for leaf in flat_shapes(shape))
    return tuple(entry if entry.is_floating else None for entry in types)


def needs_conversion(shapes: Sequence[Leaf], types: Sequence[ElementType | None]) -> bool:
    """Whether leaves of `shapes` correspond to `types`, and one of them is a float of another width."""
    return len(shapes) == len(types) and any(
        wanted is not None and wanted is not ours and ours.is_floating
        for ours, wanted in zip((shape.array_shape.element_type for shape in shapes), types, strict=True)
    )


def converted(value: object, wanted: ElementType | None) -> Any:
    """A leaf in a float type, rounded once; the leaf itself where it is of that type, or `wanted` is None."""
    if wanted is None or not isinstance(value, (np.ndarray, np.generic)) or value.dtype == wanted.storage:
        return value
    return narrow(widen(np.asarray(value)), wanted)


@frozen(eq=False)
class Kernel:
    """What a step computes."""

    function: Callable[..., Any]
    """From the arrays of the step's operands to an array, or a (nested) tuple of them."""
    overwrites: int | None = None
    """The operand whose array the function may be given as `out`, to write the result to."""

    @property
    def is_pure(self) -> bool:
        """Whether the result depends on the operands alone, and nothing else happens."""
        return True

    @property
    def is_view(self) -> bool:
        """Whether the result usually shares the memory of the first operand."""
        return False

    @property
    def may_multiply(self) -> bool:
        """Whether it may be a sum of products, alone or with more."""
        return False

    @property
    def numbers_from(self) -> float:
        """The operand from which on Python's integers do where arrays without dimensions are declared."""
        return math.inf

    @property
    def ufunc(self) -> np.ufunc | None:
        """The function where it is NumPy's own, which writes to any array it is given as `out`."""
        return self.function if isinstance(self.function, np.ufunc) else None


@frozen(eq=False)
class Conversion(Kernel):
    """Converts the leaves of a value, given one by one; one that is not to change stays the array it is."""

    types: tuple[ElementType | None, ...] = ()
    """By leaf; None for leaves that are no floats."""

    @classmethod
    def to(cls, types: Sequence[ElementType | None], is_tuple: bool = False) -> Conversion:
        """To these types; `is_tuple` where the value is a tuple though it has a single leaf."""
        is_array = len(types) == 1 and not is_tuple
        return cls(partial(_converted_leaves, tuple(types), is_array), types=tuple(types))


def _converted_leaves(types: tuple[ElementType | None, ...], is_array: bool, *leaves: object) -> Any:
    leaves_converted = tuple(map(converted, leaves, types))
    return leaves_converted[0] if is_array else leaves_converted


@frozen(eq=False)
class Forward(Kernel):
    """Hands on an array as it is, to a slot of its own."""

    function: Callable[..., Any] = attrs.field(default=lambda value: value, init=False)

    @property
    def is_view(self) -> bool:
        return True


@frozen(eq=False)
class View(Kernel):
    """A view of an array that several instructions together make; `function` is an Indexing, or the WindowReader of a
    window without the dimension along which it moves."""

    @property
    def is_view(self) -> bool:
        return True

    @property
    def numbers_from(self) -> float:
        return 1


@frozen(eq=False)
class InstructionKernel(Kernel):
    """What an opcode or a library call computes."""

    entry: Entry | None = None
    given: Mapping[str, Any] = attrs.field(factory=dict)
    """What `entry.evaluate` asks for besides operands."""
    bound: Callable[..., Any] = attrs.field(default=None)
    """The entry's own function, bound, to which `function` may add conversions of operands and results."""
    orders: tuple[MemoryOrder | None, ...] | None = None
    """In which order of dimensions the function reads each operand (None: row-major); None where none matters."""
    result_types: tuple[ElementType | None, ...] | None = None
    """Where set, the float types that the result is converted to, leaf by leaf."""
    is_flushed: bool = False
    """Whether denormal operands and results are flushed to zero."""
    random: RandomRounding | None = None
    """What `bound` is where an opcode's results are rounded at random."""

    @property
    def is_pure(self) -> bool:
        return self.entry is not None and self.entry.is_pure

    @property
    def opcode(self) -> Entry | None:
        """The entry, where it is that of an opcode."""
        return None if self.entry is None or self.entry.role is Role.LIBRARY else self.entry

    @property
    def is_view(self) -> bool:
        if isinstance(self.bound, Spreading) and self.bound.is_copied:
            return False
        return self.entry is not None and self.entry.may_be_view and self.result_types is None

    @property
    def is_bare(self) -> bool:
        """Whether nothing but the order of operands comes between them and the entry's own function."""
        return self.result_types is None and not self.is_flushed

    @property
    def may_multiply(self) -> bool:
        return self.opcode is None or self.opcode.traits.sums is Sums.PRODUCTS

    @property
    def numbers_from(self) -> float:
        first = None if self.entry is None else self.entry.numbers_from
        return math.inf if first is None or not self.is_bare else first

    @property
    def product(self) -> MatrixProduct | None:
        """The matrix product that the kernel computes, if BLAS can compute it directly."""
        if not self.is_bare or not self.may_multiply:
            return None
        # Imported late: most programs without contractions never need it.
        from hloexec.ops.contraction.fast.dot import MatrixProduct

        return self.bound if isinstance(self.bound, MatrixProduct) else None

    def keeps_repeated(self, shape: Leaf) -> bool:
        """Whether an operand of such a shape that a broadcast has made is taken as it is, whatever its order."""
        is_one_of_many = self.opcode is not None and len(self.orders or ()) != 2
        return is_one_of_many and isinstance(shape, ArrayShape) and shape.element_type.storage.kind in "biu"

    @property
    def callees(self) -> tuple[Callee, ...]:
        return tuple(self.given.get("computations", ()))

    def with_given(self, **changed: object) -> Callable[..., Any]:
        """The entry's own function with other attributes or shapes."""
        assert self.entry is not None and self.entry.evaluate is not None
        return self.entry.evaluate.bound({**self.given, **changed})
