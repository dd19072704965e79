"""Operations that move elements, or reinterpret their bits, and conversions between element types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from conformance.cell import TYPES, Example, text_of
from conformance.cells.generator import Generator
from conformance.values import numbers, random_shape, special
from hloexec.core.dtypes import ELEMENT_TYPES

_TARGETS = (
    "pred",
    "s4",
    "s8",
    "s32",
    "s64",
    "u8",
    "u32",
    "u64",
    "f16",
    "bf16",
    "f32",
    "f64",
    "f8e5m2",
    "f8e4m3fn",
    "c64",
)


def braces(values: Iterable[object]) -> str:
    return f"{{{','.join(map(str, values))}}}"


def _broadcast(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    for _ in range(count):
        result = random_shape(generator)
        kept = [axis for axis in range(len(result)) if generator.random() < 0.5]
        operand = numbers(name, generator, tuple(result[axis] for axis in kept))
        yield Example(opcode, name, text_of(name, result), f"broadcast($0), dimensions={braces(kept)}", (operand,))


def _reshape(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    for _ in range(count):
        source = random_shape(generator)
        result, remaining = [], int(np.prod(source))
        while remaining > 1 and len(result) < 4:
            factor = int(generator.choice([k for k in range(1, remaining + 1) if remaining % k == 0]))
            result.append(factor)
            remaining //= factor
        result.insert(int(generator.integers(0, len(result) + 1)), remaining)
        yield Example(opcode, name, text_of(name, result), "reshape($0)", (numbers(name, generator, source),))


def _transpose(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    for _ in range(count):
        source = random_shape(generator)
        order = [int(axis) for axis in generator.permutation(len(source))]
        result = text_of(name, [source[axis] for axis in order])
        # A layout says where elements lie, and changes no value.
        layout = braces(int(axis) for axis in generator.permutation(len(source))) if source else ""
        instruction = f"transpose($0), dimensions={braces(order)}"
        yield Example(opcode, name, result, instruction, (numbers(name, generator, source),), layouts=(layout,))


def _slice(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    for _ in range(count):
        source = random_shape(generator)
        ranges = []
        for size in source:
            start = int(generator.integers(0, size + 1))
            ranges.append(range(start, int(generator.integers(start, size + 1)), int(generator.integers(1, 4))))
        text = ", ".join(f"[{r.start}:{r.stop}:{r.step}]" for r in ranges)
        result = text_of(name, list(map(len, ranges)))
        yield Example(opcode, name, result, f"slice($0), slice={{{text}}}", (numbers(name, generator, source),))


def _concatenate(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    for _ in range(count):
        first = random_shape(generator, 1)
        axis = int(generator.integers(0, len(first)))
        along = [int(size) for size in generator.integers(0, 4, generator.integers(1, 5))]
        operands = tuple(numbers(name, generator, (*first[:axis], size, *first[axis + 1 :])) for size in along)
        result = text_of(name, (*first[:axis], sum(along), *first[axis + 1 :]))
        names = ", ".join(f"${number}" for number in range(len(along)))
        yield Example(opcode, name, result, f"concatenate({names}), dimensions={{{axis}}}", operands)


def _pad(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    for _ in range(count):
        source, padding, result = random_shape(generator, 1), [], []
        for size in source:
            interior = int(generator.integers(0, 3))
            whole = size + max(size - 1, 0) * interior
            low = int(generator.integers(-whole, 4))
            high = int(generator.integers(-(whole + low), 4))
            padding.append(f"{low}_{high}_{interior}")
            result.append(whole + low + high)
        operands = (numbers(name, generator, source), numbers(name, generator, ()))
        yield Example(opcode, name, text_of(name, result), f"pad($0, $1), padding={'x'.join(padding)}", operands)


def _reverse(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    for _ in range(count):
        source = random_shape(generator)
        turned = [axis for axis in range(len(source)) if generator.random() < 0.5]
        operand = numbers(name, generator, source)
        yield Example(opcode, name, text_of(name, source), f"reverse($0), dimensions={braces(turned)}", (operand,))


def _shuffle(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    for _ in range(count):
        source = random_shape(generator, 1)
        axis, shift = int(generator.integers(0, len(source))), int(generator.integers(-9, 10))
        text = f"shuffle($0), dimensions={{{axis}}}, mode=rotate, shifts={{{shift}}}"
        yield Example(opcode, name, text_of(name, source), text, (numbers(name, generator, source),))


def _iota(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    for turn in range(count):
        result = list(random_shape(generator, 1))
        axis = int(generator.integers(0, len(result)))
        if turn % 2 == 0:
            result[axis] = 300
        yield Example(opcode, name, text_of(name, result), f"iota(), iota_dimension={axis}")


def _copy(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    for _ in range(count):
        source = random_shape(generator)
        yield Example(opcode, name, text_of(name, source), "copy($0)", (numbers(name, generator, source),))


def _convert(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    values = special(name, generator, random=60)
    for target in _TARGETS:
        yield Example(opcode, name, text_of(target, values.shape), "convert($0)", (values,))
    for _ in range(count - 1):
        shape, target = random_shape(generator), TYPES[generator.integers(0, len(TYPES))].name
        yield Example(opcode, name, text_of(target, shape), "convert($0)", (numbers(name, generator, shape),))


def _stochastic_convert(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    bits = ELEMENT_TYPES[name].bits
    random_type = f"u{bits}" if f"u{bits}" in ELEMENT_TYPES else "u32"
    for target in ("s8", "s32", "s4"):
        values = special(name, generator)
        random = numbers(random_type, generator, values.shape)
        yield Example(opcode, name, text_of(target, values.shape), "stochastic-convert($0, $1)", (values, random))


def _bitcast_convert(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    source = ELEMENT_TYPES[name]
    for target in ("u8", "s32", "f16", "u64", "f32", "s4", "f8e4m3", "pred")[: max(4, count + 2)]:
        entry = ELEMENT_TYPES[target]
        ratio = max(source.bits, entry.bits) // min(source.bits, entry.bits)
        narrower = source.bits < entry.bits
        dimensions = (2, 3, ratio) if narrower else (2, 3)
        result = (2, 3) if narrower or ratio == 1 else (2, 3, ratio)
        yield Example(
            opcode, name, text_of(target, result), "bitcast-convert($0)", (numbers(name, generator, dimensions),)
        )


def _bitcast(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    """Row-major on both sides, the one form that XLA:CPU imports; between other layouts where it permits."""
    for _ in range(count):
        source = random_shape(generator, 1, 4)
        result = [*source, 1] if generator.random() < 0.5 else [int(np.prod(source))]
        layouts = [braces(reversed(range(len(shape)))) for shape in (source, result)]
        yield Example(
            opcode, name, text_of(name, result) + layouts[1], "bitcast($0)", (numbers(name, generator, source),),
            layouts=(layouts[0],),
        )  # fmt: skip


def _get_dimension_size(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    for _ in range(count):
        source = random_shape(generator, 1)
        axis = int(generator.integers(0, len(source)))
        operands = (numbers(name, generator, source),)
        yield Example(opcode, name, "s32[]", f"get-dimension-size($0), dimensions={{{axis}}}", operands)


def _set_dimension_size(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    for _ in range(count):
        source = random_shape(generator, 1, 3, empty=False)
        axis = int(generator.integers(0, len(source)))
        sizes = [f"<={size}" if position == axis else str(size) for position, size in enumerate(source)]
        size = np.array(generator.integers(0, source[axis] + 1), np.int32)
        instruction = f"set-dimension-size($0, $1), dimensions={{{axis}}}"
        # The size alone: batched, dynamic results of XLA come packed; single results are compared by the tests.
        yield Example(
            opcode, name, f"{name}[{','.join(sizes)}]", instruction, (numbers(name, generator, source), size),
            after=(f"@result = s32[] get-dimension-size(@r), dimensions={{{axis}}}",), final="s32[]",
        )  # fmt: skip


def _dynamic_reshape(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    for _ in range(count):
        rows, columns = (int(size) for size in generator.integers(1, 5, 2))
        operands = (
            numbers(name, generator, (rows * columns,)), np.array(rows, np.int32), np.array(columns, np.int32)
        )  # fmt: skip
        yield Example(opcode, name, text_of(name, (rows, columns)), "dynamic-reshape($0, $1, $2)", operands)


GENERATORS: dict[str, Generator] = {
    "broadcast": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "concatenate": _concatenate,
    "pad": _pad,
    "reverse": _reverse,
    "shuffle": _shuffle,
    "iota": _iota,
    "copy": _copy,
    "convert": _convert,
    "stochastic-convert": _stochastic_convert,
    "bitcast-convert": _bitcast_convert,
    "bitcast": _bitcast,
    "get-dimension-size": _get_dimension_size,
    "set-dimension-size": _set_dimension_size,
    "dynamic-reshape": _dynamic_reshape,
}
