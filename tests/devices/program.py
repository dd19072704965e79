"""A program under construction: text, inputs and values, together with what each value is on each device."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

Array = np.ndarray[Any, Any]
Draw = Callable[[Any], Any]

TYPES: dict[str, Any] = {
    "pred": np.bool_,
    "s4": ml_dtypes.int4,
    "u8": np.uint8,
    "s16": np.int16,
    "s32": np.int32,
    "u32": np.uint32,
    "s64": np.int64,
    "u64": np.uint64,
    "f8e4m3fn": ml_dtypes.float8_e4m3fn,
    "f8e5m2": ml_dtypes.float8_e5m2,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
    "f64": np.float64,
    "c64": np.complex64,
    "c128": np.complex128,
}
# The largest n such that all integers up to n are exact: sums below it do not depend on their order.
EXACT = {
    "f8e4m3fn": 2**4,
    "f8e5m2": 2**3,
    "f16": 2**11,
    "bf16": 2**8,
    "f32": 2**24,
    "f64": 2**53,
    "c64": 2**24,
    "c128": 2**53,
}
LARGEST = 600


@dataclass
class Value:
    """One value of the program: its name in the text, its type and what it is on each device."""

    name: str
    element: str
    arrays: list[Array]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.arrays[0].shape

    @property
    def text(self) -> str:
        return shape_text(self.element, self.shape)


def shape_text(element: str, shape: Sequence[int]) -> str:
    return f"{element}[{','.join(map(str, shape))}]"


def tuple_text(texts: Sequence[str]) -> str:
    return f"({', '.join(texts)})"


@dataclass
class Program:
    """Text under construction, its inputs and its values so far."""

    replicas: int
    partitions: int
    computations: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    inputs: list[list[Array]] = field(default_factory=list)
    manual: bool = False
    """Whether instructions carry sharding={manual}, as XLA's partitioner wants it."""

    @property
    def devices(self) -> int:
        return self.replicas * self.partitions

    def name(self, stem: str) -> str:
        return f"{stem}.{len(self.lines)}"

    def emit(self, line: str) -> None:
        self.lines.append(line)

    def parameter(self, element: str, arrays: Sequence[Array]) -> Value:
        value = Value(f"p{len(self.inputs)}", element, list(arrays))
        self.emit(f"{value.name} = {value.text} parameter({len(self.inputs)})")
        self.inputs.append(list(arrays))
        return value

    def keep(self, name: str, element: str, arrays: Sequence[Array]) -> None:
        self.values.append(Value(name, element, list(arrays)))

    @property
    def text(self) -> str:
        manual = ", sharding={manual}" if self.manual else ""
        root = f"ROOT out = {tuple_text([v.text for v in self.values])} tuple({', '.join(v.name for v in self.values)})"
        body = "".join(f"  {line}{manual}\n" for line in self.lines)
        if self.manual:
            manual = f", sharding={{{', '.join(['{manual}'] * len(self.values))}}}"
        body += f"  {root}{manual}\n"
        header = f"HloModule drawn, replica_count={self.replicas}, num_partitions={self.partitions}\n"
        return header + "".join(self.computations.values()) + f"ENTRY main {{\n{body}}}\n"

    @property
    def inputs_per_device(self) -> list[list[Array]]:
        return [[arrays[device] for arrays in self.inputs] for device in range(self.devices)]

    @property
    def expected(self) -> list[tuple[Array, ...]]:
        return [tuple(value.arrays[device] for value in self.values) for device in range(self.devices)]


def small_values(generator: np.random.Generator, element: str, shape: Sequence[int]) -> Array:
    """Numbers that stay exact in sums; all bits for pred."""
    if element == "pred":
        return generator.random(shape) < 0.5
    low, high = (-1, 1) if element in ("f8e4m3fn", "f8e5m2") else (-3, 3)
    numbers = generator.integers(0 if element.startswith("u") else low, high, shape, endpoint=True)
    if element.startswith("c"):
        return (numbers + 1j * generator.integers(low, high, shape, endpoint=True)).astype(TYPES[element])
    return numbers.astype(TYPES[element])


def any_bits(generator: np.random.Generator, element: str, shape: Sequence[int]) -> Array:
    """Any bit patterns, NaN payloads too: collectives that only move data must not touch them."""
    dtype = np.dtype(TYPES[element])
    if element in ("pred", "s4"):
        return small_values(generator, element, shape)
    count = prod(shape) * dtype.itemsize
    return np.frombuffer(generator.integers(0, 256, count, dtype=np.uint8).tobytes(), dtype).reshape(shape)


@dataclass
class Options:
    """How to draw: where from, and what may be drawn."""

    draw: Draw
    generator: np.random.Generator
    forms: Sequence[str]
    group_texts: Sequence[str]
    modes: Sequence[str]
    reducers: Sequence[str]
    most_operands: int
    for_xla: bool

    def pick(self, choices: Sequence[Any]) -> Any:
        assume(len(choices) > 0)
        return self.draw(st.sampled_from(list(choices)))
