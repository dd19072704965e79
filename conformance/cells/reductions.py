"""Reductions, windows, maps, scans and sorts: operations that call a computation for their elements.

Integers are compared bit for bit. Floats are reduced twice: whole numbers, whose sums are exact in any order, and
random numbers, within the bound of a sum of that length.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from conformance.cell import EXACT, Accumulated, Array, Example, text_of
from conformance.cells.data_movement import braces
from conformance.cells.generator import Generator
from conformance.values import numbers, random_shape, whole_numbers
from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.ops.common import narrow

_OPERATIONS = ("add", "multiply", "minimum", "maximum", "and", "or", "xor")


def binary(operation: str, name: str, label: str = "@c") -> str:
    """The computation of one operation on two scalars."""
    return (
        f"{label} {{\n  a = {name}[] parameter(0)\n  b = {name}[] parameter(1)\n"
        f"  ROOT r = {name}[] {operation}(a, b)\n}}\n"
    )


def identity(operation: str, name: str) -> Array:
    """What changes nothing: XLA:CPU splits some reductions and then combines the initial value more than once."""
    entry = ELEMENT_TYPES[name]
    if entry.name == "pred":
        return np.array(operation in ("and", "multiply", "minimum"))
    if operation in ("minimum", "maximum") and entry.is_integral:
        low, high = entry.integer_range
        return np.array(high if operation == "minimum" else low).astype(entry.compute).astype(entry.storage)
    if operation in ("minimum", "maximum"):
        import ml_dtypes

        storage = entry.storage if not entry.is_complex else np.dtype(np.float32)
        bounds = ml_dtypes.finfo(storage)
        largest = np.inf if entry.has_inf else float(bounds.max)
        smallest = -np.inf if entry.has_inf else float(bounds.min)
        return narrow_or_cast(largest if operation == "minimum" else smallest, name)
    if operation == "and":
        return np.array(-1).astype(entry.compute).astype(entry.storage)
    return narrow_or_cast(float(operation == "multiply"), name)


def narrow_or_cast(value: float, name: str) -> Array:
    entry = ELEMENT_TYPES[name]
    if entry.is_floating:
        return narrow(np.array(value), entry).reshape(())
    return np.array(value).astype(entry.compute).astype(entry.storage)


def _operations(name: str) -> list[str]:
    entry = ELEMENT_TYPES[name]
    if entry.is_complex:
        return ["add", "multiply"]
    return [op for op in _OPERATIONS if op not in ("and", "or", "xor") or not entry.is_floating]


def _drawn(name: str, generator: np.random.Generator, shape: tuple[int, ...], operation: str, length: int, rough: bool):
    """Operands and how their reduction is checked."""
    entry = ELEMENT_TYPES[name]
    if not entry.is_floating and not entry.is_complex:
        return numbers(name, generator, shape), EXACT
    if operation in ("minimum", "maximum"):
        return numbers(name, generator, shape), EXACT
    if rough and operation == "add" and entry.mantissa_bits + entry.is_complex:
        values = generator.normal(size=shape)
        values = values + (1j * generator.normal(size=shape) if entry.is_complex else 0)
        array = np.asarray(values).astype(entry.storage) if entry.is_complex else narrow(np.asarray(values), entry)
        return array, Accumulated(max(length, 1))
    most = 1 if operation == "multiply" or entry.bits < 16 else 3
    return whole_numbers(name, generator, shape, most), EXACT


def _reduce(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    for turn in range(max(count, 3)):
        shape = random_shape(generator, 1) if turn else (40, 50)
        axes = (
            [axis for axis in range(len(shape)) if generator.random() < 0.6]
            if turn
            else [int(generator.integers(0, 2))]
        )
        operations = _operations(name)
        operation = operations[turn % len(operations)] if turn else "add"
        length = int(np.prod([shape[axis] for axis in axes]))
        operand, check = _drawn(name, generator, shape, operation, length, rough=turn == 0)
        kept = [size for axis, size in enumerate(shape) if axis not in axes]
        yield Example(
            opcode, name, text_of(name, kept), f"reduce($0, $1), dimensions={braces(axes)}, to_apply=@c",
            (operand, identity(operation, name)), computations=binary(operation, name), check=check,
        )  # fmt: skip
    if ELEMENT_TYPES[name].is_complex:
        return
    operand = numbers(name, generator, (6, 7))
    yield Example(
        opcode, name, f"({name}[6], s32[6])", "reduce($0, @i, $1, @z), dimensions={1}, to_apply=@c",
        (operand, identity("maximum", name)),
        before=("@i = s32[6,7] iota(), iota_dimension=1", "@z = s32[] constant(0)"),
        computations=_ARGMAX.replace("T[", f"{name}["),
    )  # fmt: skip


_ARGMAX = """@c {
  x = T[] parameter(0)
  i = s32[] parameter(1)
  y = T[] parameter(2)
  j = s32[] parameter(3)
  greater = pred[] compare(x, y), direction=GT
  unordered = pred[] compare(x, x), direction=NE
  pick = pred[] or(greater, unordered)
  equal = pred[] compare(x, y), direction=EQ
  earlier = pred[] compare(i, j), direction=LT
  tie = pred[] and(equal, earlier)
  first = pred[] or(pick, tie)
  v = T[] select(pick, x, y)
  k = s32[] select(first, i, j)
  ROOT t = (T[], s32[]) tuple(v, k)
}
"""


def _window(generator: np.random.Generator, shape: tuple[int, ...]) -> tuple[str, list[int], int]:
    """A window's text, the sizes of its result, and its elements."""
    fields: dict[str, list[str]] = {key: [] for key in ("size", "stride", "pad", "lhs_dilate", "rhs_dilate")}
    result, length = [], 1
    for extent in shape:
        size, stride, dilation = (int(n) for n in generator.integers(1, 4, 3))
        base = int(generator.integers(1, 3))
        low, high = (int(n) for n in generator.integers(0, size + 1, 2))
        padded = max(extent - 1, 0) * base + (extent > 0) + low + high
        reach = (size - 1) * dilation + 1
        result.append((padded - reach) // stride + 1 if padded >= reach else 0)
        for key, value in zip(fields, (size, stride, f"{low}_{high}", base, dilation), strict=True):
            fields[key].append(str(value))
        length *= size
    return " ".join(f"{key}={'x'.join(values)}" for key, values in fields.items()), result, length


def _reduce_window(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    for turn in range(max(count, 3)):
        shape = random_shape(generator, 1, 3, empty=False)
        window, result, length = _window(generator, shape)
        operations = _operations(name)
        operation = operations[turn % len(operations)]
        operand, check = _drawn(name, generator, shape, operation, length, rough=turn == 0)
        yield Example(
            opcode, name, text_of(name, result), f"reduce-window($0, $1), window={{{window}}}, to_apply=@c",
            (operand, identity(operation, name)), computations=binary(operation, name), check=check,
        )  # fmt: skip


def _map(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    for turn in range(count):
        shape = random_shape(generator)
        operation = _operations(name)[turn % len(_operations(name))]
        operands = (whole_numbers(name, generator, shape), whole_numbers(name, generator, shape))
        instruction = f"map($0, $1), dimensions={braces(range(len(shape)))}, to_apply=@c"
        yield Example(opcode, name, text_of(name, shape), instruction, operands, computations=binary(operation, name))


def _scan(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    for turn in range(count):
        steps, size = (int(n) for n in generator.integers(1, 5, 2))
        operands = (whole_numbers(name, generator, (steps, size)), whole_numbers(name, generator, (size,)))
        reverse = ", is_reverse=true" if turn % 2 else ""
        computation = (
            f"@c {{\n  x = {name}[{size}] parameter(0)\n  c = {name}[{size}] parameter(1)\n"
            f"  s = {name}[{size}] add(x, c)\n  ROOT t = ({name}[{size}], {name}[{size}]) tuple(s, s)\n}}\n"
        )
        yield Example(
            opcode, name, f"({name}[{steps},{size}], {name}[{size}])",
            f"scan($0, $1), dimensions={{0}}, num_carries=1{reverse}, to_apply=@c", operands, computations=computation,
        )  # fmt: skip


def _select_and_scatter(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    """Operands without equal elements: which of equals XLA:CPU takes depends on how it lays the window out."""
    entry = ELEMENT_TYPES[name]
    for _ in range(count):
        extent = int(generator.integers(3, 7 if entry.bits > 2 else 4))
        size, stride = (int(n) for n in generator.integers(1, 4, 2))
        result = (extent - size) // stride + 1
        operand = generator.permutation(extent).astype(np.float32 if not entry.is_integral else np.int64)
        array = (
            narrow(operand.astype(np.float64), entry)
            if entry.is_floating
            else operand.astype(entry.compute).astype(entry.storage)
        )
        operands = (array, whole_numbers(name, generator, (result,), 1), whole_numbers(name, generator, (), 1))
        select = (
            f"@s {{\n  a = {name}[] parameter(0)\n  b = {name}[] parameter(1)\n"
            "  ROOT r = pred[] compare(a, b), direction=GE\n}\n"
        )
        operation = "or" if name == "pred" else "add"
        yield Example(
            opcode, name, f"{name}[{extent}]",
            f"select-and-scatter($0, $1, $2), window={{size={size} stride={stride}}}, select=@s, scatter=@c", operands,
            computations=select + binary(operation, name),
        )  # fmt: skip


def _sort(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    for turn in range(count):
        shape = random_shape(generator, 1, 3) if turn else (5, 60)
        axis = int(generator.integers(0, len(shape)))
        total = ", type=TOTALORDER" if ELEMENT_TYPES[name].is_floating else ""
        direction = "GT" if turn % 2 else "LT"
        comparator = (
            f"@c {{\n  a = {name}[] parameter(0)\n  b = {name}[] parameter(1)\n  i = s32[] parameter(2)\n"
            f"  j = s32[] parameter(3)\n  ROOT r = pred[] compare(a, b), direction={direction}{total}\n}}\n"
        )
        shape_text = text_of(name, shape)
        index = text_of("s32", shape)
        yield Example(
            opcode, name, f"({shape_text}, {index})",
            f"sort($0, @i), dimensions={{{axis}}}, is_stable=true, to_apply=@c",
            (numbers(name, generator, shape),), before=(f"@i = {index} iota(), iota_dimension={axis}",),
            computations=comparator,
        )  # fmt: skip


def _topk(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    for turn in range(count):
        rows, length = (int(n) for n in generator.integers(1, 9, 2))
        k = int(generator.integers(1, length + 1))
        result = f"({name}[{rows},{k}], s32[{rows},{k}])"
        instruction = f"topk($0), k={k}, largest={'false' if turn % 2 else 'true'}"
        yield Example(opcode, name, result, instruction, (numbers(name, generator, (rows, length)),))


GENERATORS: dict[str, Generator] = {
    "reduce": _reduce,
    "reduce-window": _reduce_window,
    "map": _map,
    "scan": _scan,
    "select-and-scatter": _select_and_scatter,
    "sort": _sort,
    "topk": _topk,
}
