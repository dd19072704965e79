"""scatter: combining windows of updates into operands at computed positions.

`gather.Placement` makes rows of the operand and pieces of rows of the windows. What remains is `table[key] =
f(table[key], piece)` for a list of keys and pieces, in order: with whole-array operations if the combiner is a common
one, otherwise in rounds, each of which applies the next update of every row.
Source: XLA, "Operation semantics", Scatter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from math import prod
from typing import ClassVar

import numpy as np

from hloexec.core.dtypes import ElementType, Kind, element_type_of
from hloexec.core.ir import ArrayShape, ArrayShapes, Instruction, Module, Shape, TupleShape, parts_of
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Arrays, Dimensions
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.common import (
    array_shape,
    as_integers,
    flags,
    in_type,
    narrow,
    operand_shapes,
    require,
    require_distinct_dimensions,
    row_major,
    same_type_ignoring_float_width,
    shape_of,
    stable_argsort,
    widen,
)
from hloexec.ops.elementwise.selection import total_order_key
from hloexec.ops.indexing.gather import (
    Placement,
    WindowAttributes,
    WindowNames,
)
from hloexec.ops.intervals import Demand, Demanded, Use
from hloexec.ops.movement.dynamic_shapes import common_extent, completed, part
from hloexec.ops.policies.exact.sums import add_by_key
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy
from hloexec.ops.reduction.reducers import KNOWN_REDUCERS, UFUNCS, recognise, recognise_components, takes_any_order
from hloexec.ops.registry import ANY, Callee, Callees, Programs, ProgramShape, opcode
from hloexec.ops.relations import Relating, relate_window_of
from hloexec.ops.resources import in_blocks
from hloexec.ops.signatures import called
from hloexec.ops.traits import REDUCER, Additions, Probe, Rounding, Summation, Sums

Combining = Callable[[Sequence[Array], Array, Sequence[Array]], None]
"""`targets[keys] = combiner(targets[keys], pieces)`, one piece after the other, in place."""


def combining(combiner: Callee, *, is_exact: bool) -> Combining:
    """How pieces are combined with rows by a computation.

    Where it `is_exact`, sums are rounded once, and products of complex numbers, which NumPy does not round alike on all
    processors, are the combiner's own.
    """
    names = recognise_components(combiner.computation)
    if names is None:
        return partial(_combine_by_rounds, combiner)
    return partial(_combine_exactly, combiner, names) if is_exact else partial(_combine_components, names)


def _combine_exactly(
    combiner: Callee, names: Sequence[str], targets: Sequence[Array], keys: Array, pieces: Sequence[Array]
) -> None:
    if "multiply" in names and any(target.dtype.kind == "c" for target in targets):
        _combine_by_rounds(combiner, targets, keys, pieces)
        return
    for name, target, piece in zip(names, targets, pieces, strict=True):
        element_type = element_type_of(target.dtype)
        if name == "add" and not element_type.is_integral and element_type.kind is not Kind.PRED:
            add_by_key(target, keys, piece, element_type)
        else:
            _combine_recognised(name, target, keys, piece)


def _combine_components(names: Sequence[str], targets: Sequence[Array], keys: Array, pieces: Sequence[Array]) -> None:
    for name, target, piece in zip(names, targets, pieces, strict=True):
        _combine_recognised(name, target, keys, piece)


def places_of_unlike(target: Array, keys: Array, pieces: Array) -> None:
    """Sets the elements of a target of preds into which unlike elements of several pieces go."""
    order, begins = _by_key(keys)
    ordered = pieces[order]
    first = ordered[np.repeat(begins, np.diff(begins, append=len(order)))]
    target[keys[order[begins]]] |= np.logical_or.reduceat(ordered != first, begins, axis=0)


# By measurement: rows so long are worth a call of NumPy's each, and rounds of so many keys are worth one.
_LONG_ROW = 16
_FEWEST_KEYS = 16
_BLOCK_ELEMENTS = 1 << 15
_LONG_FOLD_ELEMENTS = 1 << 17
"""With fewer for each key, threads would wait for each other more than they compute."""


def _combine_recognised(name: str, target: Array, keys: Array, pieces: Array) -> None:
    """`Combining` for one operand and an operation that `recognise` knows."""
    element_type = element_type_of(target.dtype)
    row = prod(pieces.shape[1:])
    if name == "first":
        return
    if name == "second":
        # NumPy assigns in order, so the last of several pieces for a row stays.
        as_integers(target)[keys] = as_integers(pieces)
    elif row >= _LONG_ROW:
        _combine_rows(KNOWN_REDUCERS[name].combine, target, keys, pieces, element_type)
    elif element_type.is_narrow and element_type.is_floating and name in ("add", "multiply"):
        _combine_narrow_floats(name, target, keys, pieces, element_type)
    elif len(keys) * 4 < len(target):
        # What needs another form of the target shall need it of the rows that change only.
        rows, places = np.unique(keys, return_inverse=True)
        part = target[rows]
        _combine_elements(name, part, places, pieces, element_type)
        target[rows] = part
    else:
        _combine_elements(name, target, keys, pieces, element_type)


def _combine_elements(name: str, target: Array, keys: Array, pieces: Array, element_type: ElementType) -> None:
    """`Combining` for rows of few elements, of all types that need no rounding."""
    ufunc = UFUNCS[name]
    if element_type.is_floating and name in ("minimum", "maximum"):
        ordered = _ordered_integers(target, name)
        _at(ufunc, ordered, keys, _ordered_integers(pieces, name))
        target[...] = _from_ordered_integers(ordered, element_type)
    elif element_type.is_narrow:
        # Integers: wrapping once at the end is wrapping at each step.
        wide = widen(target)
        _at(ufunc, wide, keys, widen(pieces))
        target[...] = narrow(wide, element_type)
    else:
        _at(ufunc, target, keys, pieces)


def _at(ufunc: np.ufunc, target: Array, keys: Array, pieces: Array) -> None:
    """`ufunc.at(target, keys, pieces)`, element by element where that is possible, which NumPy is faster at."""
    row = prod(pieces.shape[1:])
    if target.flags.c_contiguous:
        target = target.reshape(-1)
        keys = keys if row == 1 else (keys[:, None] * row + np.arange(row)).reshape(-1)
        pieces = pieces.reshape(-1)
    ufunc.at(target, keys, pieces)


def _combine_narrow_floats(name: str, target: Array, keys: Array, pieces: Array, element_type: ElementType) -> None:
    """`Combining` for rows of few elements: by rounds, as long as these are of many keys."""
    ufunc, wide = UFUNCS[name], widen(pieces)
    order, ends = _rounds(*_by_key(keys))
    begin = 0
    for end in ends:
        if end - begin < _FEWEST_KEYS and element_type.bits == 16:
            # These types' own sums and products, of one element at a time, are those of f32, rounded.
            rest = order[begin:]
            ufunc.at(target, keys[rest], pieces[rest])
            return
        chosen = order[begin:end]
        rows = keys[chosen]
        target[rows] = narrow(ufunc(widen(target[rows]), wide[chosen]), element_type)
        begin = end


def _combine_rows(
    step: Callable[[Array, Array], Array], target: Array, keys: Array, pieces: Array, element_type: ElementType
) -> None:
    """`Combining` for long rows: rounds, as long as these are of many keys; then key by key, piece by piece."""
    can_be_folded = isinstance(step, np.ufunc) and element_type.is_floating and not element_type.is_narrow
    by_key, begins = _by_key(keys)
    if can_be_folded and len(begins) < np.diff(begins, append=len(keys)).max(initial=0):
        assert isinstance(step, np.ufunc)
        _fold_rows(step, target, keys, pieces, by_key, begins)
        return
    order, ends = _rounds(by_key, begins)
    block = max(1, _BLOCK_ELEMENTS // prod(pieces.shape[1:]))
    begin = 0
    for number, end in enumerate(ends):
        if end - begin < _FEWEST_KEYS < len(ends) or (can_be_folded and end - begin < len(ends) - number):
            break
        chosen = order[begin:end]

        def update(start: int, stop: int, chosen: Array = chosen) -> None:
            numbers = chosen[start:stop]
            rows = keys[numbers]
            targets, additions = _rows(target, rows), _rows(pieces, numbers)
            if can_be_folded and isinstance(step, np.ufunc):
                target[rows] = step(targets, additions, out=targets)
            else:
                target[rows] = narrow(step(widen(targets), widen(additions)), element_type)

        in_blocks(update, len(chosen), block)
        begin = end
    rest = order[begin:]
    if can_be_folded:
        assert isinstance(step, np.ufunc)
        by_key, begins = _by_key(keys[rest])
        _fold_rows(step, target, keys, pieces, rest[by_key], begins)
        return
    for key in np.unique(keys[rest]):
        total = widen(target[key])
        for piece in widen(pieces[rest[keys[rest] == key]]):
            total = step(total, piece)
            if element_type.is_narrow:
                total = widen(narrow(total, element_type))
        target[key] = narrow(total, element_type)


def _fold_rows(step: np.ufunc, target: Array, keys: Array, pieces: Array, ordered: Array, begins: Array) -> None:
    """`Combining` of the pieces of these numbers, which are in the order of their keys, each of which `begins`
    somewhere; with sums or products of f32 or f64.

    Along the first of two dimensions, NumPy combines one row after the other, each with all those before.
    """
    ends = [*begins[1:].tolist(), len(ordered)]
    # What changes nothing: to begin with +0 would lose −0.
    initial = -0.0 if step is np.add else 1

    def fold(number: int, _: int) -> None:
        numbers = ordered[begins[number] : ends[number]]
        key = keys[numbers[0]]
        rows = np.empty((1 + len(numbers), *pieces.shape[1:]), target.dtype)
        rows[0] = target[key]
        if pieces.flags.c_contiguous:
            np.take(pieces, numbers, axis=0, mode="clip", out=rows[1:])
        else:
            # NumPy would copy all pieces first.
            rows[1:] = pieces[numbers]
        target[key] = step.reduce(rows.reshape(len(rows), -1), axis=0, initial=initial).reshape(rows.shape[1:])

    is_long = len(ordered) * prod(pieces.shape[1:]) >= _LONG_FOLD_ELEMENTS * len(begins)
    in_blocks(fold, len(begins), 1, threads=None if is_long else 1)


def _rows(array: Array, numbers: Array) -> Array:
    """Some rows of an array, by numbers that are known to be in bounds: not to look saves half the time."""
    return np.take(array, numbers, axis=0, mode="clip") if array.flags.c_contiguous else array[numbers]


def _combine_by_rounds(combiner: Callee, targets: Sequence[Array], keys: Array, pieces: Sequence[Array]) -> None:
    """`Combining` for any computation: round k applies the k-th piece of every row at once."""
    parameters = [array_shape(shape, "a parameter").element_type for shape in combiner.computation.parameter_shapes]
    order, ends = _rounds(*_by_key(keys))
    for begin, end in pairwise((0, *ends)):
        chosen = order[begin:end]
        rows = keys[chosen]
        arguments = [target[rows] for target in targets] + [piece[chosen] for piece in pieces]
        results = called(combiner, *(in_type(*pair) for pair in zip(arguments, parameters, strict=True)))
        for target, result in zip(targets, results, strict=True):
            target[rows] = in_type(result, element_type_of(target.dtype))


def _by_key(keys: Array) -> tuple[Array, Array]:
    """The positions of keys in the order of the keys, and where in it each key begins."""
    order = stable_argsort(keys)
    ordered = keys[order]
    is_first = np.ones(len(keys), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return order, np.flatnonzero(is_first)


def _rounds(order: Array, begins: Array) -> tuple[Array, list[int]]:
    """The positions of each key's first occurrence, then of each key's second, and so on, and where each round ends.

    They are given in the order of their keys, and where in it each key begins.
    """
    if len(begins) == len(order):
        return order, [len(order)]
    occurrence = np.arange(len(order))
    occurrence -= np.repeat(begins, np.diff(begins, append=len(order)))
    ends: list[int] = np.cumsum(np.bincount(occurrence)).tolist()
    return order[stable_argsort(occurrence)], ends


def _ordered_integers(values: Array, name: str) -> Array:
    """Floats as integers in the same order, with -0 below +0, and NaN where `name` (minimum or maximum) takes it."""
    wide = widen(values)
    ordered = total_order_key(wide)
    limits = np.iinfo(ordered.dtype)
    ordered[np.isnan(wide)] = limits.max if name == "maximum" else limits.min
    return ordered


def _from_ordered_integers(ordered: Array, element_type: ElementType) -> Array:
    """The inverse of `_ordered_integers`."""
    limits = np.iinfo(ordered.dtype)
    wide = total_order_key(ordered).view(element_type.compute)
    wide[(ordered == limits.max) | (ordered == limits.min)] = np.nan
    return narrow(wide, element_type)


@frozen
class ScatterAttributes(WindowAttributes):
    """Which dimensions of operands, scatter indices and updates correspond."""

    names: ClassVar = WindowNames(
        opcode="scatter",
        indices="indices",
        index_map="scatter_dims_to_operand_dims",
        operand_batching="input_batching_dims",
        indices_batching="scatter_indices_batching_dims",
        left_out="inserted_window_dims",
        windows="update_window_dims",
    )

    update_window_dims: Dimensions = attribute()
    inserted_window_dims: Dimensions = attribute()
    scatter_dims_to_operand_dims: Dimensions = attribute()
    input_batching_dims: Dimensions = attribute(default=())
    scatter_indices_batching_dims: Dimensions = attribute(default=())
    index_vector_dim: int = attribute()
    indices_are_sorted: bool = attribute(default=False)
    unique_indices: bool = attribute(default=False)
    to_apply: str = attribute(Grammar.COMPUTATION)


@opcode(
    "scatter",
    operands=(3, ANY),
    attributes=ScatterAttributes,
    any_order=True,
    overwrites=0,
    rounding=Rounding.SUM,
    in_place=True,
    fast_in="hloexec.ops.indexing.fast.indexing",
)
class Scatter:
    """out = operand; for each batch in order: out[start[batch] + window] = f(out[…], updates[batch, window])

    `start[batch]` is the index vector at `batch`, its component k counting in operand dimension
    `scatter_dims_to_operand_dims[k]`; an input batching dimension starts at the position of its batch dimension, any
    other dimension at 0. Updates dimensions `update_window_dims` are the operand's dimensions in order, without the
    inserted and the batching ones (of window size 1); the others are the batch dimensions in order. A window that does
    not fit into the operand whole is skipped. The operands are N operands, the indices and N updates; f takes N current
    and N update elements and returns N. It works step by step in the declared element types; under the `exact` policy,
    sums are rounded once. (XLA: Scatter)
    """

    layout_of = (0,)
    sums = Sums.SCATTERED
    probe = Probe(
        "T[3] scatter(a0, a1, a2), update_window_dims={}, inserted_window_dims={0}, "
        "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=c",
        ("T[3]", "s32[2,1]", "T[2]"),
        REDUCER,
    )

    @staticmethod
    def demands(use: Use) -> Demanded:
        attributes, count = use.attributes, len(use.shapes) // 2
        operand, updates = use.shapes[0], use.shapes[count + 1]
        window = window_sizes(attributes, operand.rank, updates.dimensions)
        room = [operand.dimensions[d] - window[d] for d in attributes.scatter_dims_to_operand_dims]
        yield count, attributes.vectors_demand(use.shapes[count], room)

    @staticmethod
    def demands_for(use: Use, demand: Demand) -> Demanded:
        return [(0, demand), (len(use.shapes) - 1, demand)]

    @staticmethod
    def relate(use: Relating) -> None:
        attributes, count = use.attributes, len(use.operands) // 2
        operands = [value.axes for value in use.operands]
        use.same(*operands[:count], *use.result.leaves.values())
        updates = operands[count + 1]
        use.same(*operands[count + 1 :])
        kept = attributes.window_dimensions(len(operands[0]))
        for dimension, window in zip(kept, attributes.update_window_dims, strict=True):
            relate_window_of(use, operands[0][dimension], updates[window])
        batch = [updates[number] for number in _batch_axes(attributes, len(updates))]
        attributes.relate_starts(use, operands[0], count, batch)
        use.sums_over(batch)
        for number, result in enumerate(use.result.parts):
            use.same_units((use.operands[number], use.operands[count + 1 + number], result))

    @staticmethod
    def additions(instruction: Instruction, module: Module, operands: Sequence[ArrayShape]) -> Additions | None:
        """A sum of what is there with as many updates as there are at most in one place, or one of these alone."""
        name = recognise(module.by_name[instruction.attributes.to_apply]) if len(operands) == 3 else None
        if name == "second":
            return Additions(base=(0, 2))
        batch = _batch_axes(instruction.attributes, operands[-1].rank)
        terms = prod(operands[-1].dimensions[number] for number in batch)
        return Additions(base=(0,), added=(2,), terms=terms) if name == "add" else None

    @staticmethod
    def unspecified(instruction: Instruction, module: Module) -> str | None:
        is_free = takes_any_order(module.by_name[instruction.attributes.to_apply])
        return None if is_free else "writes to places that its indices repeat in an order that HLO leaves open"

    @staticmethod
    def open_elements(instruction: Instruction, operands: Sequence[Array]) -> Array | None:
        """The places to which unlike updates go."""
        attributes, count = instruction.attributes, len(operands) // 2
        bound, (indices, *updates) = operands[0].shape, operands[count:]
        placement = _placement(attributes, bound, indices.shape, updates[0].shape)
        keys = placement.keys(indices)
        table = placement.table(np.zeros(bound, np.bool_))
        for update in updates if keys is not None else ():
            assert keys is not None
            places_of_unlike(placement.target(table), keys.keys, placement.pieces(update, keys))
        return placement.restored(table)

    @staticmethod
    def infer(*operands: Shape, attributes: ScatterAttributes, computations: Programs) -> Shape:
        count = len(operands) // 2
        require(
            len(operands) == 2 * count + 1,
            "scatter takes N operands, the indices and N updates, so an odd number of operands, but has "
            f"{len(operands)}",
        )
        arrays = operand_shapes(operands, "scatter")
        sources, indices, updates = arrays[:count], arrays[count], arrays[count + 1 :]
        for source, update in zip(sources, updates, strict=True):
            _require_dimensions(source, indices, update, attributes)
            require(
                source.dimensions == sources[0].dimensions and update.dimensions == updates[0].dimensions,
                "the operands of scatter must have the same dimensions, and so must the updates, but there are "
                f"{sources[0]} with {updates[0]} and {source} with {update}",
            )
        _require_combiner(computations[0], sources, updates)
        results = tuple(shape_of(source.element_type, source.dimensions, flags(source)) for source in sources)
        return results[0] if count == 1 else TupleShape(results)

    @staticmethod
    def evaluate(
        *operands: Array,
        attributes: ScatterAttributes,
        shape: Shape,
        operand_shapes: ArrayShapes,
        computations: Callees,
        numerics: NumericsPolicy = REFERENCE,
        out: Array | None = None,
    ) -> Array | Arrays:
        count = len(operands) // 2
        extents, bound = operands[0].shape, operand_shapes[0].dimensions
        declared = parts_of(shape)
        types = [array_shape(leaf, "the result of scatter").element_type for leaf in declared]
        sources = [completed(in_type(*pair), bound) for pair in zip(operands[:count], types, strict=True)]
        indices, *updates = _of_one_batch(operands[count:], operand_shapes[count:], attributes)
        updates = [in_type(*pair) for pair in zip(updates, types, strict=True)]
        kernel = Scattering.of(attributes, bound, indices.shape, updates[0].shape, computations[0], numerics.is_exact)
        kernel_result = kernel(*sources, indices, *updates, out=out)
        results = kernel_result if isinstance(kernel_result, tuple) else (kernel_result,)
        if extents != bound:
            results = tuple(part(result, map(slice, extents)) for result in results)
        return results if isinstance(shape, TupleShape) else results[0]

    @staticmethod
    def summed(*, operand_shapes: ArrayShapes, computations: Callees) -> Summation | None:
        """Four times as many terms as a place has on average, since places are not met equally often."""
        names = recognise_components(computations[0].computation) or ()
        terms = 4 * max(1.0, operand_shapes[-1].element_count / max(1, operand_shapes[0].element_count))
        is_product = "multiply" in names
        is_summed = is_product or "add" in names
        return Summation(terms, is_stepwise=True, is_product=is_product) if is_summed else None


@frozen
class Scattering:
    """Combines windows with what is there, one after the other: what scatter does to operands of declared sizes."""

    placement: Placement
    combine: Combining

    @classmethod
    def of(
        cls,
        attributes: ScatterAttributes,
        operand: Dimensions,
        indices: Dimensions,
        updates: Dimensions,
        combiner: Callee,
        is_exact: bool = False,
    ) -> Scattering:
        """For operands, indices and updates of these sizes."""
        return cls(_placement(attributes, operand, indices, updates), combining(combiner, is_exact=is_exact))

    def __call__(self, *operands: Array, out: Array | None = None) -> Array | Arrays:
        count, placement = len(operands) // 2, self.placement
        keys = placement.keys(operands[count])
        if keys is None:
            return operands[0] if count == 1 else operands[:count]
        results, targets, pieces = [], [], []
        for source, updates in zip(operands[:count], operands[count + 1 :], strict=True):
            if placement.has_leading_rows:
                result = source if source is out and source.flags.c_contiguous else row_major(source)
                table = placement.rows(result)
            else:
                table = placement.table(source)
                result = placement.restored(table)
            results.append(result)
            targets.append(placement.target(table))
            pieces.append(placement.pieces(updates, keys))
        self.combine(targets, keys.keys, pieces)
        return results[0] if count == 1 else tuple(results)


def _placement(
    attributes: ScatterAttributes, operand: Dimensions, indices: Dimensions, updates: Dimensions
) -> Placement:
    window = window_sizes(attributes, len(operand), updates)
    axes = (*_batch_axes(attributes, len(updates)), *attributes.update_window_dims)
    return Placement.of(attributes.vectors(indices), operand, window, axes)


def _require_dimensions(
    source: ArrayShape, indices: ArrayShape, update: ArrayShape, attributes: ScatterAttributes
) -> None:
    """Raise ShapeError unless the dimensions of one operand, the indices and its updates correspond."""
    attributes.require_windows(source, indices)
    window_dims = attributes.update_window_dims
    kept = attributes.window_dimensions(source.rank)
    require(
        len(window_dims) == len(kept),
        f"scatter's update_window_dims must name an updates dimension for each of the {len(kept)} operand dimensions "
        f"that are neither inserted nor batching, but name {len(window_dims)}",
    )
    batch, _ = attributes.batch_sizes(indices)
    require(
        update.rank == len(batch) + len(kept),
        f"the updates of scatter must have rank {len(batch) + len(kept)}, one dimension for each of the {len(batch)} "
        f"batch dimensions of the indices {indices} and the {len(kept)} window dimensions, but are {update}",
    )
    require_distinct_dimensions(window_dims, update.rank, "scatter's update_window_dims")
    for ours, theirs in zip(window_dims, kept, strict=True):
        require(
            update.dimensions[ours] <= source.dimensions[theirs],
            f"scatter's windows must not exceed the operand, but updates dimension {ours} in {update} is larger than "
            f"operand dimension {theirs} in {source}",
        )
    update_batch = tuple(update.dimensions[axis] for axis in _batch_axes(attributes, update.rank))
    require(
        update_batch == batch,
        f"the batch dimensions of scatter's updates {update} have sizes {list(update_batch)}, but those of the indices "
        f"{indices} have {list(batch)}",
    )


def _require_combiner(combiner: ProgramShape, sources: list[ArrayShape], updates: list[ArrayShape]) -> None:
    """Raise ShapeError unless the computation combines N current and N update elements into N elements."""
    count = len(sources)
    require(
        len(combiner.parameters) == 2 * count,
        f"scatter's computation must take {2 * count} parameters, but takes {len(combiner.parameters)}",
    )
    result = combiner.result
    results = parts_of(result)
    require(
        len(results) == count and (count == 1 or isinstance(result, TupleShape)),
        f"scatter's computation must return {count} scalars, but returns {result}",
    )
    pairs = zip((*results, *combiner.parameters), (*sources, *sources, *updates), strict=True)
    for scalar, array in pairs:
        element = array_shape(scalar, "a parameter or result of scatter's computation")
        require(
            element.rank == 0,
            f"the parameters and results of scatter's computation must be scalars, but one is {element}",
        )
        same_type_ignoring_float_width(
            element, ArrayShape(array.element_type), "the elements that scatter combines and its computation"
        )


def window_sizes(attributes: ScatterAttributes, rank: int, update_sizes: Dimensions) -> Dimensions:
    """The sizes of windows by operand dimension: 1 in those that the updates lack."""
    sizes = [1] * rank
    kept = attributes.window_dimensions(rank)
    for dimension, window in zip(kept, attributes.update_window_dims, strict=True):
        sizes[dimension] = update_sizes[window]
    return tuple(sizes)


def _batch_axes(attributes: ScatterAttributes, rank: int) -> list[int]:
    """The dimensions of updates of that rank that are not of windows."""
    return [axis for axis in range(rank) if axis not in attributes.update_window_dims]


def _of_one_batch(
    arrays: Sequence[Array], shapes: Sequence[ArrayShape], attributes: ScatterAttributes
) -> Sequence[Array]:
    """The indices and the updates with one extent in each batch dimension: that of the dynamic ones among them."""
    if not any(shape.dynamic_dimensions for shape in shapes):
        return arrays
    of_indices = [axis for axis in range(shapes[0].rank) if axis != attributes.index_vector_dim]
    of_updates = _batch_axes(attributes, shapes[1].rank)
    slices = [[slice(None)] * shape.rank for shape in shapes]
    for axes in zip(of_indices, *[of_updates] * (len(shapes) - 1), strict=True):
        places = list(zip(axes, arrays, shapes, slices, strict=True))
        extent = common_extent(axes[1], [(array.shape[axis], flags(shape)[axis]) for axis, array, shape, _ in places])
        for axis, _, _, cut in places:
            cut[axis] = slice(extent)
    return [part(array, cut) for array, cut in zip(arrays, slices, strict=True)]
