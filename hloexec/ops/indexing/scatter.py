"""scatter: combining windows of updates into operands at computed positions.

`Placement` makes rows of the operand and pieces of rows of the windows. What remains is `table[key] =
f(table[key], piece)` for a list of keys and pieces, in order (`combining`).
Source: XLA, "Operation semantics", Scatter.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from hloexec.core.ir import ArrayShape, Instruction, Module, Shape, TupleShape, parts_of
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.common import (
    array_shape,
    flags,
    in_type,
    require,
    require_distinct_dimensions,
    same_type_ignoring_float_width,
    shape_of,
)
from hloexec.ops.indexing.combining import Combining, combining, places_of_unlike
from hloexec.ops.indexing.index_vectors import (
    IndexVectors,
    WindowNames,
    batch_sizes,
    index_vectors,
    lie_within,
    relate_starts,
    require_windows,
    vectors_demand,
    window_dimensions,
)
from hloexec.ops.intervals import Demand, Demanded, Use
from hloexec.ops.movement.copying import row_major
from hloexec.ops.movement.extents import common_extent, completed, part
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy
from hloexec.ops.probes import REDUCER, Probe
from hloexec.ops.reduction.reducers import recognise_components, takes_any_order
from hloexec.ops.registry import ANY, Callee, ProgramShape, opcode
from hloexec.ops.relations import Relating, relate_window_of
from hloexec.ops.rounding import Rounding, Summation, Sums


@frozen
class Keys:
    """Where pieces go."""

    keys: Array
    """The row of each piece."""
    fitting: Array | None
    """The numbers of the windows that fit, where some do not."""


@frozen
class Placement:
    """Where updates go: the operand as a table of rows, each window as one piece per row that it touches."""

    vectors: IndexVectors
    sizes: tuple[int, ...]
    """Of the operand."""
    window: tuple[int, ...]
    """Window sizes by operand dimension."""
    moving: tuple[int, ...]
    """The operand dimensions in which windows start at different places: together they number the rows."""
    resting: tuple[int, ...]
    """The other operand dimensions: those of a row."""
    update_axes: tuple[int, ...]
    """The updates' dimensions, batch dimensions first."""
    offsets: Array
    """The rows of a window, counted from its first."""

    @classmethod
    def of(
        cls, vectors: IndexVectors, sizes: tuple[int, ...], window: tuple[int, ...], update_axes: tuple[int, ...]
    ) -> Placement:
        """The placement of windows in an operand of `sizes`; `update_axes` are the updates' dimensions, batch first."""
        starting = (*vectors.dimensions, *vectors.numbers)
        moving = tuple(sorted(axis for axis in starting if window[axis] < sizes[axis]))
        offsets: Array = np.zeros(1, np.int64)
        for axis in moving:
            offsets = np.add.outer(offsets * sizes[axis], np.arange(window[axis])).reshape(-1)
        resting = tuple(axis for axis in range(len(sizes)) if axis not in moving)
        return cls(vectors, sizes, window, moving, resting, update_axes, offsets)

    def keys(self, indices: Array) -> Keys | None:
        """Where the pieces of updates go, or None where no window fits."""
        batch = self.vectors.batch
        if not prod(batch) or not prod(self.window):
            return None
        starts = self.vectors.starts(indices)
        fitting = self._fitting(starts)
        if fitting is not None and not fitting.size:
            return None
        first: Array = np.zeros((), np.int64)
        for number, axis in enumerate(self.moving):
            first = first * self.sizes[axis] + starts[axis] if number else starts[axis]
        first = (first if first.shape == batch else np.broadcast_to(first, batch)).reshape(-1)
        first = first if fitting is None else first[fitting]
        return Keys(first if len(self.offsets) == 1 else np.add.outer(first, self.offsets).reshape(-1), fitting)

    def _fitting(self, starts: dict[int, Array]) -> Array | None:
        """The numbers of the windows that lie within the operand; None where all do."""
        limits = {axis: self.sizes[axis] - self.window[axis] for axis in self.vectors.dimensions}
        outside = [axis for axis, limit in limits.items() if not lie_within(starts[axis], limit)]
        if not outside:
            return None
        fits = np.ones(self.vectors.batch, np.bool_)
        for axis in outside:
            fits &= (starts[axis] >= 0) & (starts[axis] <= limits[axis])
        return np.flatnonzero(fits)

    @property
    def has_leading_rows(self) -> bool:
        """Whether a row-major operand is a table of rows as it lies."""
        return self.moving == tuple(range(len(self.moving)))

    def table(self, operand: Array) -> Array:
        """A copy of the operand as `[rows, resting dimensions...]`."""
        return self.rows(row_major(operand.transpose(*self.moving, *self.resting)))

    def rows(self, transposed: Array) -> Array:
        """`[moving dimensions..., resting dimensions...]` as `[rows, resting dimensions...]`; a view if row-major."""
        return transposed.reshape(prod(transposed.shape[: len(self.moving)]), *transposed.shape[len(self.moving) :])

    def target(self, table: Array) -> Array:
        """The part of a table that windows reach."""
        return table[(slice(None), *(slice(self.window[axis]) for axis in self.resting))]

    def pieces(self, updates: Array, keys: Keys) -> Array:
        """Updates as `[keys, resting dimensions...]`."""
        windows = updates.transpose(self.update_axes).reshape(-1, *self.window)
        if keys.fitting is not None:
            windows = windows[keys.fitting]
        windows = windows.transpose(0, *(axis + 1 for axis in (*self.moving, *self.resting)))
        return windows.reshape(len(keys.keys), *windows.shape[1 + len(self.moving) :])

    def restored(self, table: Array) -> Array:
        """A table as an array of the operand's shape."""
        axes = (*self.moving, *self.resting)
        return table.reshape([self.sizes[axis] for axis in axes]).transpose(np.argsort(axes))


@frozen
class ScatterAttributes:
    """Which dimensions of operands, scatter indices and updates correspond."""

    update_window_dims: tuple[int, ...] = attribute(Grammar.INT_LIST)
    inserted_window_dims: tuple[int, ...] = attribute(Grammar.INT_LIST)
    scatter_dims_to_operand_dims: tuple[int, ...] = attribute(Grammar.INT_LIST)
    input_batching_dims: tuple[int, ...] = attribute(Grammar.INT_LIST, default=())
    scatter_indices_batching_dims: tuple[int, ...] = attribute(Grammar.INT_LIST, default=())
    index_vector_dim: int = attribute(Grammar.INT)
    indices_are_sorted: bool = attribute(Grammar.BOOL, default=False)
    unique_indices: bool = attribute(Grammar.BOOL, default=False)
    to_apply: str = attribute(Grammar.COMPUTATION)


_NAMES = WindowNames(
    opcode="scatter",
    indices="indices",
    index_map="scatter_dims_to_operand_dims",
    operand_batching="input_batching_dims",
    indices_batching="scatter_indices_batching_dims",
    left_out="inserted_window_dims",
    windows="update_window_dims",
)


@opcode(
    "scatter",
    operands=(3, ANY),
    attributes=ScatterAttributes,
    any_order=True,
    overwrites=0,
    rounding=Rounding.SUM,
    in_place=True,
    fast_in="hloexec.ops.indexing.fast.scatter",
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
        yield count, vectors_demand(attributes, use.shapes[count], room)

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
        kept = window_dimensions(_NAMES, attributes, len(operands[0]))
        for dimension, window in zip(kept, attributes.update_window_dims, strict=True):
            relate_window_of(use, operands[0][dimension], updates[window])
        batch = [updates[number] for number in _batch_axes(attributes, len(updates))]
        relate_starts(_NAMES, use, operands[0], count, batch)
        use.sums_over(batch)

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
    def infer(*operands: Shape, attributes: ScatterAttributes, computations: tuple[ProgramShape, ...]) -> Shape:
        count = len(operands) // 2
        require(
            len(operands) == 2 * count + 1,
            "scatter takes N operands, the indices and N updates, so an odd number of operands, but has "
            f"{len(operands)}",
        )
        arrays = [array_shape(operand, f"operand {i} of scatter") for i, operand in enumerate(operands)]
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
        operand_shapes: tuple[ArrayShape, ...],
        computations: tuple[Callee, ...],
        numerics: NumericsPolicy = REFERENCE,
        out: Array | None = None,
    ) -> Array | tuple[Array, ...]:
        count = len(operands) // 2
        extents, bound = operands[0].shape, operand_shapes[0].dimensions
        declared = parts_of(shape)
        types = [array_shape(each, "the result of scatter").element_type for each in declared]
        sources = [completed(in_type(*pair), bound) for pair in zip(operands[:count], types, strict=True)]
        indices, *updates = _of_one_batch(operands[count:], operand_shapes[count:], attributes)
        updates = [in_type(*pair) for pair in zip(updates, types, strict=True)]
        kernel = Scattering.of(attributes, bound, indices.shape, updates[0].shape, computations[0], numerics.is_exact)
        with np.errstate(all="ignore"):
            found = kernel(*sources, indices, *updates, out=out)
        results = found if isinstance(found, tuple) else (found,)
        if extents != bound:
            results = tuple(part(result, map(slice, extents)) for result in results)
        return results if isinstance(shape, TupleShape) else results[0]

    @staticmethod
    def summed(*, operand_shapes: tuple[ArrayShape, ...], computations: tuple[Callee, ...]) -> Summation | None:
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
        operand: tuple[int, ...],
        indices: tuple[int, ...],
        updates: tuple[int, ...],
        combiner: Callee,
        is_exact: bool = False,
    ) -> Scattering:
        """For operands, indices and updates of these sizes."""
        return cls(_placement(attributes, operand, indices, updates), combining(combiner, is_exact=is_exact))

    def __call__(self, *operands: Array, out: Array | None = None) -> Array | tuple[Array, ...]:
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
    attributes: ScatterAttributes, operand: tuple[int, ...], indices: tuple[int, ...], updates: tuple[int, ...]
) -> Placement:
    window = window_sizes(attributes, len(operand), updates)
    axes = (*_batch_axes(attributes, len(updates)), *attributes.update_window_dims)
    return Placement.of(index_vectors(_NAMES, attributes, indices), operand, window, axes)


def _require_dimensions(
    source: ArrayShape, indices: ArrayShape, update: ArrayShape, attributes: ScatterAttributes
) -> None:
    """Raise ShapeError unless the dimensions of one operand, the indices and its updates correspond."""
    require_windows(_NAMES, attributes, source, indices)
    window_dims = attributes.update_window_dims
    kept = window_dimensions(_NAMES, attributes, source.rank)
    require(
        len(window_dims) == len(kept),
        f"scatter's update_window_dims must name an updates dimension for each of the {len(kept)} operand dimensions "
        f"that are neither inserted nor batching, but name {len(window_dims)}",
    )
    batch, _ = batch_sizes(indices, attributes.index_vector_dim)
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
    found = tuple(update.dimensions[axis] for axis in _batch_axes(attributes, update.rank))
    require(
        found == batch,
        f"the batch dimensions of scatter's updates {update} have sizes {list(found)}, but those of the indices "
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


def window_sizes(attributes: ScatterAttributes, rank: int, update_sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The sizes of windows by operand dimension: 1 in those that the updates lack."""
    sizes = [1] * rank
    kept = window_dimensions(_NAMES, attributes, rank)
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
