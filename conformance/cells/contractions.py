"""dot, ragged-dot, scaled-dot and convolution: bit for bit on whole numbers, within the bound of a sum on others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from conformance.cell import EXACT, Accumulated, Array, Check, Correct, Example, text_of
from conformance.cells.data_movement import braces
from conformance.cells.generator import Generator
from conformance.values import numbers, whole_numbers
from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.ops.common import narrow

_ALGORITHMS = ("dot_bf16_bf16_f32", "dot_tf32_tf32_f32", "dot_f32_f32_f32", "dot_bf16_bf16_f32_x3")


def _operands(
    name: str, generator: np.random.Generator, shapes: list[tuple[int, ...]], rough: bool, length: int
) -> tuple[tuple[Array, ...], Check]:
    entry = ELEMENT_TYPES[name]
    if not entry.is_floating and not entry.is_complex:
        return tuple(numbers(name, generator, shape) for shape in shapes), EXACT
    if not rough or entry.bits <= 8:
        most = 1 if entry.bits <= 8 else 3
        return tuple(whole_numbers(name, generator, shape, most) for shape in shapes), EXACT
    drawn = []
    for shape in shapes:
        values = np.asarray(
            generator.normal(size=shape) + (1j * generator.normal(size=shape) if entry.is_complex else 0)
        )
        drawn.append(values.astype(entry.storage) if entry.is_complex else narrow(values, entry))
    return tuple(drawn), Accumulated(max(length, 1))


def _dot(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    for turn in range(max(count, 3)):
        batch = [int(n) for n in generator.integers(0 if turn else 1, 4, generator.integers(0, 3))]
        contracted = [int(n) for n in generator.integers(1, 6, generator.integers(0, 3))]
        left = [int(n) for n in generator.integers(1, 5, generator.integers(0, 2))]
        right = [int(n) for n in generator.integers(1, 5, generator.integers(0, 2))]
        if turn == 0:
            batch, contracted, left, right = [], [70], [9], [11]
        sides = []
        for free in (left, right):
            sizes = [*((s, f"b{i}") for i, s in enumerate(batch)), *((s, f"c{i}") for i, s in enumerate(contracted))]
            sizes += [(s, "") for s in free]
            sides.append([sizes[position] for position in generator.permutation(len(sizes))])
        lists = {}
        for side, sizes in zip(("lhs", "rhs"), sides, strict=True):
            labels = [label for _, label in sizes]
            lists[f"{side}_batch_dims"] = [labels.index(f"b{i}") for i in range(len(batch))]
            lists[f"{side}_contracting_dims"] = [labels.index(f"c{i}") for i in range(len(contracted))]
        shapes = [tuple(size for size, _ in sizes) for sizes in sides]
        result = [*batch, *(s for s, label in sides[0] if not label), *(s for s, label in sides[1] if not label)]
        length = int(np.prod(contracted))
        operands, check = _operands(name, generator, shapes, rough=turn != 1, length=length)
        numbers_text = ", ".join(f"{key}={braces(value)}" for key, value in lists.items() if value)
        instruction = f"dot($0, $1), {numbers_text}" if numbers_text else "dot($0, $1)"
        yield Example(opcode, name, text_of(name, result), instruction, operands, check=check)
    if name in ("s8", "u8", "s4", "bf16", "f16", "f8e4m3fn", "f8e5m2"):
        wide = "s32" if ELEMENT_TYPES[name].is_integral else "f32"
        operands, check = _operands(name, generator, [(4, 30), (30, 5)], rough=False, length=30)
        instruction = "dot($0, $1), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
        yield Example(opcode, name, f"{wide}[4,5]", instruction, operands, check=check)
    if name == "f32":
        # Whole numbers are the same in every format that an algorithm rounds them to.
        operands = tuple(whole_numbers(name, generator, shape) for shape in ((4, 6), (6, 5)))
        for algorithm in _ALGORITHMS:
            instruction = f"dot($0, $1), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, algorithm={algorithm}"
            yield Example(opcode, name, "f32[4,5]", instruction, operands)


def _ragged_dot(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    for _ in range(count):
        operands = (
            whole_numbers(name, generator, (8, 4), 1), whole_numbers(name, generator, (3, 4, 5), 1),
            np.array(generator.multinomial(8, [0.3, 0.3, 0.4]), np.int32),
        )  # fmt: skip
        instruction = (
            "ragged-dot($0, $1, $2), lhs_contracting_dims={1}, rhs_contracting_dims={1}, lhs_ragged_dims={0}, "
            "rhs_group_dims={0}"
        )
        yield Example(opcode, name, f"{name}[8,5]", instruction, operands, check=Correct(_ragged_product))


def _ragged_product(lhs: Array, rhs: Array, group_sizes: Array) -> Array:
    """Rows of lhs, group by group, times the group's matrix; XLA:CPU cannot run the opcode."""
    ends = np.cumsum([int(size) for size in group_sizes])
    groups = np.searchsorted(ends, np.arange(len(lhs)), side="right")
    return np.array([np.dot(row, rhs[group]) for row, group in zip(lhs, groups, strict=True)])


def _scaled_product(lhs: Array, rhs: Array, lhs_scale: Array, rhs_scale: Array) -> Array:
    """Each scale belongs to a block of 32 elements along the contracted dimension; XLA:CPU cannot run the opcode."""
    return np.asarray((lhs * np.repeat(lhs_scale, 32, 1)) @ (rhs * np.repeat(rhs_scale, 32, 0)))


def _scaled_dot(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    scale = ELEMENT_TYPES["f8e8m0fnu"].storage
    for _ in range(count):
        scales = [np.array(2.0 ** generator.integers(-1, 2, shape)).astype(scale) for shape in ((4, 2), (2, 5))]
        operands = (whole_numbers(name, generator, (4, 64), 1), whole_numbers(name, generator, (64, 5), 1), *scales)
        instruction = "scaled-dot($0, $1, $2, $3), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
        yield Example(opcode, name, "f32[4,5]", instruction, operands, check=Correct(_scaled_product))


def _convolution(opcode: str, name: str, generator: np.random.Generator, count: int) -> Iterator[Example]:
    for turn in range(max(count, 2)):
        spatial = int(generator.integers(0, 3))
        groups = int(generator.integers(1, 3))
        batch, depth, features = (int(n) for n in generator.integers(1, 4, 3))
        batch_groups = 2 if groups == 1 and generator.random() < 0.3 else 1
        fields: dict[str, list[str]] = {
            key: [] for key in ("size", "stride", "pad", "lhs_dilate", "rhs_dilate", "rhs_reversal")
        }
        lhs, rhs, out = [], [], []
        for _ in range(spatial):
            extent, size = int(generator.integers(1, 6)), int(generator.integers(1, 4))
            stride, base, dilation = (int(n) for n in generator.integers(1, 3, 3))
            low, high = (int(n) for n in generator.integers(-1 if extent > 2 else 0, 3, 2))
            padded, reach = (extent - 1) * base + 1 + low + high, (size - 1) * dilation + 1
            lhs.append(extent)
            rhs.append(size)
            out.append((padded - reach) // stride + 1 if padded >= reach else 0)
            values = (size, stride, f"{low}_{high}", base, dilation, int(generator.integers(0, 2)))
            for key, value in zip(fields, values, strict=True):
                fields[key].append(str(value))
        digits = [str(axis) for axis in range(spatial)]
        sizes = [
            {"b": batch * batch_groups, "f": depth * groups} | dict(zip(digits, lhs, strict=True)),
            {"i": depth, "o": features * groups * batch_groups} | dict(zip(digits, rhs, strict=True)),
            {"b": batch, "f": features * groups * batch_groups} | dict(zip(digits, out, strict=True)),
        ]
        orders = [[str(label) for label in generator.permutation(list(each))] for each in sizes]
        labels = "{}_{}->{}".format(*("".join(order) for order in orders))
        shapes = [tuple(each[label] for label in order) for each, order in zip(sizes, orders, strict=True)]
        window = " ".join(f"{key}={'x'.join(values)}" for key, values in fields.items()) if spatial else ""
        window = f"window={{{window}}}, " if window else ""
        more = f", feature_group_count={groups}" if groups > 1 else ""
        more += f", batch_group_count={batch_groups}" if batch_groups > 1 else ""
        length = depth * int(np.prod(rhs))
        operands, check = _operands(name, generator, shapes[:2], rough=turn != 1, length=length)
        instruction = f"convolution($0, $1), {window}dim_labels={labels}{more}"
        yield Example(opcode, name, text_of(name, shapes[2]), instruction, operands, check=check)


GENERATORS: dict[str, Generator] = {
    "dot": _dot,
    "ragged-dot": _ragged_dot,
    "scaled-dot": _scaled_dot,
    "convolution": _convolution,
}
