"""Slices, gathers and scatters at indices that are known at run time only, out of range ones among them."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np

from conformance.cell import EXACT, Array, Check, Example, text_of
from conformance.cells.data_movement import braces
from conformance.cells.generator import Generator
from conformance.values import numbers, random_shape, whole_numbers
from hloexec.core.dtypes import ELEMENT_TYPES

_INDEX_TYPES = ("s8", "s16", "s32", "s64", "u8", "u16", "u32", "u64")


def _indices(generator: np.random.Generator, shape: tuple[int, ...], name: str | None = None) -> Array:
    """Near the range, and now and then as far from it as the type allows."""
    dtype = ELEMENT_TYPES[name or str(generator.choice(_INDEX_TYPES))].storage
    near = generator.integers(-1, 5, shape)
    far = generator.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, shape, dtype=dtype.type, endpoint=True)
    return np.asarray(np.where(generator.random(shape) < 0.85, np.asarray(near).astype(dtype), far), dtype)


def _dynamic_slice(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    for _ in range(count):
        source = random_shape(generator)
        window = [int(generator.integers(0, size + 1)) for size in source]
        index_type = str(generator.choice(_INDEX_TYPES))
        starts = tuple(_indices(generator, (), index_type) for _ in source)
        names = ", ".join(f"${number}" for number in range(len(starts) + 1))
        instruction = f"dynamic-slice({names}), dynamic_slice_sizes={braces(window)}"
        yield Example(opcode, name, text_of(name, window), instruction, (numbers(name, generator, source), *starts))


def _dynamic_update_slice(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    for _ in range(count):
        source = random_shape(generator)
        update = tuple(int(generator.integers(0, size + 1)) for size in source)
        index_type = str(generator.choice(_INDEX_TYPES))
        starts = tuple(_indices(generator, (), index_type) for _ in source)
        operands = (numbers(name, generator, source), numbers(name, generator, update), *starts)
        names = ", ".join(f"${number}" for number in range(len(operands)))
        yield Example(opcode, name, text_of(name, source), f"dynamic-update-slice({names})", operands)


@attrs.frozen
class _Dimensions:
    """How the dimensions of a gather, or of a scatter, belong together."""

    source: tuple[int, ...]
    window: tuple[int, ...]
    collapsed: tuple[int, ...]
    mapped: tuple[int, ...]
    batching: tuple[int, ...]
    index_batching: tuple[int, ...]
    index_vector_dim: int
    indices: tuple[int, ...]
    offsets: tuple[int, ...]
    result: tuple[int, ...]


def _dimensions(generator: np.random.Generator) -> _Dimensions:
    source = random_shape(generator, 1, 4, empty=False)
    axes = list(range(len(source)))
    batching = [axis for axis in axes if generator.random() < 0.2][: len(axes) - 1]
    free = [axis for axis in axes if axis not in batching]
    mapped = [int(axis) for axis in generator.permutation(free)[: generator.integers(1, len(free) + 1)]]
    window = [1 if axis in batching else int(generator.integers(1, source[axis] + 1)) for axis in axes]
    collapsed = [axis for axis in free if window[axis] == 1 and generator.random() < 0.5]
    batch: list[tuple[int, int | None]] = [(source[axis], axis) for axis in batching]
    batch += [
        (int(size), None)
        for size in generator.choice([0, 1, 2, 3, 7], generator.integers(0, 3), p=[0.04, 0.24, 0.24, 0.24, 0.24])
    ]
    batch = [batch[position] for position in generator.permutation(len(batch))]
    sizes = [size for size, _ in batch]
    index_vector_dim = int(generator.integers(0, len(batch) + 1))
    if len(mapped) == 1 and generator.random() < 0.5:
        index_vector_dim = len(batch)
    else:
        sizes.insert(index_vector_dim, len(mapped))
        batch.insert(index_vector_dim, (0, None))
    places = {axis: position for position, (_, axis) in enumerate(batch) if axis is not None}
    windows = [window[axis] for axis in free if axis not in collapsed]
    of_batch = [size for axis, size in enumerate(sizes) if axis != index_vector_dim]
    rank = len(of_batch) + len(windows)
    offsets = sorted(int(axis) for axis in generator.permutation(rank)[: len(windows)])
    window_sizes, batch_sizes = iter(windows), iter(of_batch)
    result = tuple(next(window_sizes) if axis in offsets else next(batch_sizes) for axis in range(rank))
    return _Dimensions(
        source, tuple(window), tuple(collapsed), tuple(mapped), tuple(batching),
        tuple(places[axis] for axis in batching), index_vector_dim, tuple(sizes), tuple(offsets), result,
    )  # fmt: skip


def _gather(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    for _ in range(count):
        d = _dimensions(generator)
        instruction = (
            f"gather($0, $1), offset_dims={braces(d.offsets)}, collapsed_slice_dims={braces(d.collapsed)}, "
            f"start_index_map={braces(d.mapped)}, operand_batching_dims={braces(d.batching)}, "
            f"start_indices_batching_dims={braces(d.index_batching)}, index_vector_dim={d.index_vector_dim}, "
            f"slice_sizes={braces(d.window)}"
        )
        operands = (numbers(name, generator, d.source), _indices(generator, d.indices))
        yield Example(opcode, name, text_of(name, d.result), instruction, operands)


_COMBINERS = ("add", "multiply", "minimum", "maximum", "second", "subtract")


def _combiner(body: str, name: str) -> str:
    last = "copy(b)" if body == "second" else f"{body}(a, b)"
    return f"@c {{\n  a = {name}[] parameter(0)\n  b = {name}[] parameter(1)\n  ROOT r = {name}[] {last}\n}}\n"


def _scatter(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    """Whole numbers: sums and products are exact, or are rounded step by step, in order, on both sides."""
    entry = ELEMENT_TYPES[name]
    ordered = not entry.is_complex
    for turn in range(max(count, 2)):
        d = _dimensions(generator)
        bodies = [body for body in _COMBINERS if ordered or body not in ("minimum", "maximum")]
        body = "second" if turn == 0 else str(generator.choice(bodies))
        if entry.name == "pred" and body == "subtract":
            body = "add"
        instruction = (
            f"scatter($0, $1, $2), update_window_dims={braces(d.offsets)}, inserted_window_dims={braces(d.collapsed)}, "
            f"scatter_dims_to_operand_dims={braces(d.mapped)}, input_batching_dims={braces(d.batching)}, "
            f"scatter_indices_batching_dims={braces(d.index_batching)}, index_vector_dim={d.index_vector_dim}, "
            "to_apply=@c"
        )
        draw = whole_numbers if body in ("add", "multiply", "subtract") and not entry.is_integral else numbers
        operands = (draw(name, generator, d.source), _indices(generator, d.indices), draw(name, generator, d.result))
        check: Check = EXACT
        yield Example(
            opcode,
            name,
            text_of(name, d.source),
            instruction,
            operands,
            computations=_combiner(body, name),
            check=check,
        )


GENERATORS: dict[str, Generator] = {
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "gather": _gather,
    "scatter": _scatter,
}
