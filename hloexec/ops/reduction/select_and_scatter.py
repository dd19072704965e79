"""select-and-scatter: the gradient of a windowed selection such as max pooling."""

from __future__ import annotations

from math import prod

import attrs
import numpy as np

from hloexec.core.ir import ArrayShape, Computation, Shape, Window
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.common import array_shape, narrow, require, widen
from hloexec.ops.elementwise.selection import CompareAttributes
from hloexec.ops.indexing.combining import combining
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy
from hloexec.ops.probes import REDUCER, SELECT, Probe
from hloexec.ops.reduction.pooling_gradient import PREFERENCES, Preference, add_at_extrema
from hloexec.ops.reduction.reducers import recognise
from hloexec.ops.registry import Callee, ProgramShape, opcode
from hloexec.ops.relations import Relating, Resizing, relate_window, resized_windows
from hloexec.ops.rounding import Rounding, Summation, Sums
from hloexec.ops.signatures import require_reducer, require_scalar_comparison, same_type
from hloexec.ops.windows import output_size, require_window, taps


@frozen
class SelectAndScatterAttributes:
    window: Window = attribute(Grammar.WINDOW, default=Window())
    select: str = attribute(Grammar.COMPUTATION)
    scatter: str = attribute(Grammar.COMPUTATION)


@opcode(
    "select-and-scatter",
    operands=3,
    attributes=SelectAndScatterAttributes,
    rounding=Rounding.SUM,
    only_compared=(0,),
)
class SelectAndScatter:
    """Scatters each source element to the place in its window of the operand that `select` prefers.

    In row-major order of the window, an element replaces the one held so far where not select(held, element); padding
    is ignored. The result starts as init_value, and in row-major order of the source becomes scatter(result, source)
    at the places found, each step rounded to the result's type; under `exact` a sum is rounded once. Source: XLA,
    SelectAndScatter.
    """

    layout_of = (0,)
    sums = Sums.SCATTERED
    probe = Probe(
        "T[2] select-and-scatter(a0, a1, a2), window={size=1}, select=s, scatter=c",
        ("T[2]", "T[2]", "T[]"),
        f"{SELECT}\n{REDUCER}",
    )

    @staticmethod
    def relate(use: Relating) -> None:
        operand, source = (value.axes for value in use.operands[:2])
        use.same(operand, use.result.axes)
        for entry, whole, windows in zip(use.attributes.window.dimensions, operand, source, strict=True):
            relate_window(use, entry, whole, windows)

    @staticmethod
    def resize(change: Resizing) -> object:
        window = resized_windows(change.attributes.window, change.sizes(0), change.sizes(1))
        return attrs.evolve(change.attributes, window=window)

    @staticmethod
    def infer(
        operand: Shape,
        source: Shape,
        init_value: Shape,
        *,
        attributes: SelectAndScatterAttributes,
        computations: tuple[ProgramShape, ...],
    ) -> Shape:
        array = array_shape(operand, "the operand of select-and-scatter")
        updates = array_shape(source, "the source of select-and-scatter")
        initial = array_shape(init_value, "init_value of select-and-scatter")
        dimensions = attributes.window.dimensions
        require(
            len(dimensions) == array.rank,
            f"the window of select-and-scatter has {len(dimensions)} dimensions, its operand has shape {array}",
        )
        require_window(attributes.window, "select-and-scatter")
        expected = tuple(map(output_size, array.dimensions, dimensions))
        require(
            updates.dimensions == expected,
            f"the source of select-and-scatter must have shape {list(expected)}, but is {updates}",
        )
        require(
            initial.rank == 0 and same_type(initial.element_type, updates.element_type),
            f"init_value of select-and-scatter must be a scalar of type {updates.element_type}, but is {initial}",
        )
        require(
            same_type(array.element_type, updates.element_type),
            f"operand and source of select-and-scatter must have one element type, but are {array} and {updates}",
        )
        select, scatter = computations
        require_scalar_comparison(select, (array,), "select of select-and-scatter")
        require_reducer(scatter, (updates,), "scatter of select-and-scatter")
        return ArrayShape(array.element_type, array.dimensions, dynamic_dimensions=array.dynamic_dimensions)

    @staticmethod
    def evaluate(
        operand: Array,
        source: Array,
        init_value: Array,
        *,
        attributes: SelectAndScatterAttributes,
        shape: ArrayShape,
        computations: tuple[Callee, ...],
        numerics: NumericsPolicy = REFERENCE,
    ) -> Array:
        select, scatter = computations
        element_type = shape.element_type
        is_sum = recognise(scatter.computation) == "add" and (element_type.is_floating or element_type.is_complex)
        preference = _preference(select.computation)
        is_dilated = any(dimension.base_dilation > 1 for dimension in attributes.window.dimensions)
        if is_sum and preference is not None and element_type.is_floating and not (numerics.is_exact or is_dilated):
            return add_at_extrema(operand, source, init_value, attributes.window, preference, element_type)
        targets = _selected(operand, source.shape, attributes.window, select).reshape(-1)
        found = np.flatnonzero(targets >= 0)
        result = narrow(widen(np.full(operand.size, init_value)), shape.element_type)
        with np.errstate(all="ignore"):
            combining(scatter, is_exact=numerics.is_exact)([result], targets[found], [source.reshape(-1)[found]])
        return result.reshape(operand.shape)

    @staticmethod
    def summed(*, attributes: SelectAndScatterAttributes, computations: tuple[Callee, ...]) -> Summation | None:
        """As many terms as windows overlap at a place, at most."""
        name = recognise(computations[1].computation)
        terms = prod(-(-entry.size // entry.stride) for entry in attributes.window.dimensions)
        is_product = name == "multiply"
        return Summation(terms, is_stepwise=True, is_product=is_product) if is_product or name == "add" else None


def _preference(computation: Computation) -> Preference | None:
    """Which of two numbers `select` keeps, where it is the usual comparison of the one held with the candidate."""
    root = computation.root
    if root.opcode != "compare" or computation.operands_of(root) != computation.parameters:
        return None
    attributes = root.attributes
    is_usual = isinstance(attributes, CompareAttributes) and attributes.type != "TOTALORDER"
    return PREFERENCES.get(attributes.direction) if is_usual else None


def _selected(operand: Array, windows: tuple[int, ...], window: Window, select: Callee) -> Array:
    """For each window the row-major index of the element it selects; -1 for a window with nothing but padding."""
    held = np.empty(windows, operand.dtype)
    index = np.full(windows, -1, np.int64)
    positions = np.arange(operand.size).reshape(operand.shape)
    for _, outputs, read in taps(operand.shape, windows, window.dimensions):
        candidate, current = operand[read], held[outputs]
        is_first = index[outputs] < 0
        # A window that holds nothing yet compares the candidate with itself, and takes it whatever the answer.
        keeps = np.asarray(select(np.where(is_first, candidate, current), candidate)).reshape(candidate.shape)
        takes = is_first | ~keeps
        np.copyto(current, candidate, where=takes)
        np.copyto(index[outputs], positions[read], where=takes)
    return index
