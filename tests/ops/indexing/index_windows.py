"""What gathers and scatters have in common: windows of an array at places that an array of indices tells."""

from collections.abc import Iterable, Sequence
from typing import Any

import attrs
import numpy as np
from hypothesis import strategies as st

INDEX_TYPES = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]


@attrs.frozen
class Windows:
    """The dimensions of an array, of the indices, and of an array that holds all windows."""

    sizes: list[int]
    """A window's sizes along the array's dimensions."""
    left_out: list[int]
    """Dimensions of size 1 that windows are held without."""
    mapped: list[int]
    """The dimensions that index vectors are about, in their order."""
    batching: list[int]
    index_batching: list[int]
    """The dimensions of the indices that go with those of `batching`."""
    index_shape: list[int]
    index_vector_dim: int
    window_dims: list[int]
    """Which dimensions of the array that holds all windows are those of a window."""
    shape: list[int]
    """The sizes of the array that holds all windows."""


def draw_windows(
    draw: Any, source: Sequence[int], *, most_batching: int, least_mapped: int, batch_sizes: Sequence[int]
) -> Windows:
    """Windows of an array of dimensions `source`."""
    rank = len(source)
    batching = sorted(draw(st.sets(st.integers(0, rank - 1), max_size=most_batching))) if draw(st.booleans()) else []
    free = [axis for axis in range(rank) if axis not in batching]
    mapped = draw(st.permutations(free))[: draw(st.integers(least_mapped, len(free)))]
    sizes = [1 if axis in batching else draw(st.integers(1, source[axis])) for axis in range(rank)]
    left_out = [axis for axis in free if sizes[axis] == 1 and draw(st.booleans())]
    # Batch dimensions: those of the array's batching dimensions and others, in any order.
    batch: list[tuple[int, int | None]] = [(source[axis], axis) for axis in batching]
    batch += [(size, None) for size in draw(st.lists(st.sampled_from(batch_sizes), max_size=2))]
    batch = draw(st.permutations(batch))
    index_shape = [size for size, _ in batch]
    index_vector_dim = draw(st.integers(0, len(batch)))
    if len(mapped) == 1 and draw(st.booleans()):
        index_vector_dim = len(batch)
    else:
        index_shape.insert(index_vector_dim, len(mapped))
        batch.insert(index_vector_dim, (0, None))
    places = {axis: position for position, (_, axis) in enumerate(batch) if axis is not None}
    window = [sizes[axis] for axis in free if axis not in left_out]
    batch_shape = [size for axis, size in enumerate(index_shape) if axis != index_vector_dim]
    held = len(batch_shape) + len(window)
    window_dims = sorted(draw(st.permutations(range(held)))[: len(window)])
    windows, batches = iter(window), iter(batch_shape)
    return Windows(
        sizes=sizes,
        left_out=left_out,
        mapped=mapped,
        batching=batching,
        index_batching=[places[axis] for axis in batching],
        index_shape=index_shape,
        index_vector_dim=index_vector_dim,
        window_dims=window_dims,
        shape=[next(windows) if axis in window_dims else next(batches) for axis in range(held)],
    )


def draw_indices(draw: Any, shape: Sequence[int], *, near: tuple[int, int], share: float) -> Any:
    """Indices, a `share` of them from `near[0]` up to `near[1]`, the others anywhere in their type."""
    dtype = draw(st.sampled_from(INDEX_TYPES))
    generator = np.random.default_rng(draw(st.integers(0, 2**20)))
    close = generator.integers(*near, shape)
    far = generator.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype=dtype, endpoint=True)
    return np.where(generator.random(shape) < share, close.astype(dtype), far)


def braces(numbers: Iterable[int]) -> str:
    """`{0,1}`"""
    return f"{{{','.join(map(str, numbers))}}}"


def changed(attributes: str, changes: str) -> str:
    """The attributes of an instruction, some of them others, or more."""
    found = dict(each.split("=") for each in [*attributes.split(", "), *changes.split()])
    return ", ".join(f"{name}={value}" for name, value in found.items())
