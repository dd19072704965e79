"""What random programs are written with: values, the instructions of a computation, what a program has so far."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from math import prod
from typing import Any

import attrs
import ml_dtypes
import numpy as np

Dims = tuple[int, ...]

STORAGE: dict[str, Any] = {
    "f32": np.float32,
    "f64": np.float64,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f8e4m3fn": ml_dtypes.float8_e4m3fn,
    "f8e5m2": ml_dtypes.float8_e5m2,
    "c64": np.complex64,
    "s32": np.int32,
    "s8": np.int8,
    "s4": ml_dtypes.int4,
    "s64": np.int64,
    "u4": ml_dtypes.uint4,
    "u8": np.uint8,
    "u32": np.uint32,
    "pred": np.bool_,
}
FLOATS = "f32 f64 f16 bf16 f8e4m3fn f8e5m2".split()
UNSIGNED = ("u4", "u8", "u32")
INTEGERS = ("s32", "s8", "s4", "s64", *UNSIGNED)
NUMBERS = " ".join((*FLOATS, *INTEGERS))
ANY = " ".join(STORAGE)

ARRAYS, LARGER, MATRICES = range(1, 9), range(2, 9), (2,)
"""Numbers of dimensions."""

SHAPES: tuple[Dims, ...] = (
    (), (1,), (4,), (7,), (33,), (300,), (3, 5), (8, 8), (16, 1), (24, 40), (40, 24), (1, 64), (2, 3, 4), (5, 16, 12),
    (100, 100), (136, 130), (60, 300), (6, 40, 72), (2, 2, 90, 50), (200, 190),
    (64, 64),
)  # fmt: skip


class NothingFitsError(Exception):
    """A step has nothing to choose from."""


@attrs.frozen
class Value:
    """A value that instructions can take: its name, element type, dimensions and layout."""

    name: str
    kind: str
    dims: Dims
    layout: str = ""

    @property
    def shape(self) -> str:
        return shape_text(self.kind, self.dims) + self.layout


@attrs.frozen
class RandomProgram:
    """A module's text and its inputs, one list per device."""

    text: str
    inputs: list[list[np.ndarray[Any, Any]]]

    @property
    def devices(self) -> int:
        return len(self.inputs)


def shape_text(kind: str, dims: Dims) -> str:
    return f"{kind}[{','.join(map(str, dims))}]"


class Body:
    """The instructions of one computation, so far."""

    def __init__(self, program: Writer, name: str) -> None:
        self.program = program
        self.name = name
        self.lines: list[str] = []
        self.values: list[Value] = []
        self.calls: dict[str, str] = {}
        """By the name of a value, the instruction that makes it, from its opcode on."""
        self.constants: dict[tuple[str, str], Value] = {}

    def emit(self, kind: str, dims: Dims, call: str, *, layout: str | None = None, keep: bool = True) -> Value:
        """The next instruction; its layout is any, unless it is given."""
        layout = self.program.layout(dims) if layout is None else layout
        value = Value(self.program.fresh(), kind, dims, layout)
        self.lines.append(f"  {value.name} = {value.shape} {call}")
        self.calls[value.name] = call
        if keep:
            self.values.append(value)
        return value

    def like(self, value: Value, call: str, **how: Any) -> Value:
        """The next instruction, of the type and in the dimensions of a value."""
        return self.emit(value.kind, value.dims, call, **how)

    def aside(self, kind: str, dims: Dims, call: str) -> Value:
        """The next instruction, whose result only this step takes."""
        return self.emit(kind, dims, call, keep=False)

    def of_kinds(self, kinds: str) -> list[Value]:
        return [value for value in self.values if value.kind in kinds.split()]

    def fitting(
        self, kinds: str, ranks: Collection[int] = range(9), sizes: Collection[int] = range(1 << 30)
    ) -> list[Value]:
        """The values of these types that have so many dimensions, and so many elements."""
        return [v for v in self.of_kinds(kinds) if len(v.dims) in ranks and prod(v.dims) in sizes]

    def laid_out(self, value: Value, layout: str) -> Value:
        """The value in this layout, copied where it has another."""
        if value.layout == layout:
            return value
        return self.like(value, f"copy({value.name})", layout=layout, keep=False)

    def elements(self, name: str, shapes: Sequence[Value]) -> list[Value]:
        """The elements of a tuple, which are like these values."""
        return [
            self.like(like, f"get-tuple-element({name}), index={number}", layout=like.layout)
            for number, like in enumerate(shapes)
        ]

    def line(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def scalar(self, kind: str, text: str) -> Value:
        if (kind, text) not in self.constants:
            self.constants[kind, text] = self.aside(kind, (), f"constant({text})")
        return self.constants[kind, text]

    def scalar_list(self, numbers: Sequence[int]) -> Value:
        """A constant column of whole numbers."""
        text = ", ".join(f"{{{number}}}" for number in numbers)
        return self.aside("s32", (len(numbers), 1), f"constant({{{text}}})")

    def finish(self, root: str, shape: str) -> str:
        self.lines.append(f"  ROOT {self.program.fresh()} = {shape} {root}")
        header = "ENTRY " if self.name == "main" else ""
        return f"{header}{self.name} {{\n" + "\n".join(self.lines) + "\n}\n"


class Writer:
    """What is known of one program while it is written."""

    def __init__(self, seed: int, devices: int, makers: Callable[[Writer], list[Maker]]) -> None:
        self.random = np.random.default_rng(seed)
        self.devices = devices
        self.makers = makers
        self.count = 0
        self.channel = 0
        self.computations: list[str] = []
        self.reducers: dict[tuple[str, str], str] = {}
        self.depth = 0
        self.is_in_step = True
        """Whether all devices come by here equally often, so that they may meet."""
        self.trips: Value | None = None
        """A whole number of the entry's that only a run knows."""
        self.is_optimized = self.chance(0.5)
        """Whether it looks like a dump from after optimization: layouts, fusions, asynchronous pairs, narrow types."""
        self.kinds = ["f32"] * 4 + ["f32 f32 bf16 f64 f16 c64 s32".split()[self.random.integers(7)]]
        if self.is_optimized:
            self.kinds[1:3] = [self.pick(["f32", *STORAGE]), self.pick(["s32", "s32", *INTEGERS])]

    def fresh(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def number(self, *bounds: int) -> int:
        """A whole number below a bound, or between two."""
        return int(self.random.integers(*bounds))

    def pick(self, among: Sequence[Any]) -> Any:
        """One of them; where there is none, the step ends."""
        if not among:
            raise NothingFitsError
        return among[self.number(len(among))]

    def chance(self, share: float) -> bool:
        return bool(self.random.random() < share)

    def layout(self, dims: Dims) -> str:
        """Any layout for an array of these dimensions, as text; none for the default one."""
        if len(dims) < 2 or not self.is_optimized or self.chance(0.4):
            return ""
        return f"{{{','.join(str(axis) for axis in self.random.permutation(len(dims)))}}}"

    def reducer(self, opcode: str, kind: str) -> str:
        key = opcode, kind
        if key not in self.reducers:
            name = self.reducers[key] = f"{opcode}_{kind}"
            self.computations.append(
                f"{name} {{\n  a = {kind}[] parameter(0)\n  b = {kind}[] parameter(1)\n"
                f"  ROOT c = {kind}[] {opcode}(a, b)\n}}\n"
            )
        return self.reducers[key]

    def fill(self, body: Body, count: int) -> None:
        """Write so many random steps, of one or more instructions each."""
        makers = self.makers(self)
        for _ in range(count):
            self.step(self.pick(makers), body)

    def step(self, maker: Maker, body: Body) -> None:
        with suppress(NothingFitsError):
            maker(self, body)


Maker = Callable[[Writer, Body], None]
"""Writes a step."""


def spread_scalar(writer: Writer, body: Body, like: Value) -> Value:
    """One number in the shape of another value."""
    numbers = "0.5 1 2 -0.75 0".split()
    if like.kind not in FLOATS:
        numbers = {"pred": ["true", "false"], "c64": ["(0.5, -1)", "(1, 0)"]}.get(like.kind, ["3"])
    scalar = body.scalar(like.kind, writer.pick(numbers))
    return scalar if not like.dims else body.like(like, f"broadcast({scalar.name}), dimensions={{}}")


def cut(body: Body, value: Value, dims: Dims) -> Value:
    """The first elements of a value, which has enough of them, in these dimensions."""
    count, size = prod(value.dims), prod(dims)
    flat = body.aside(value.kind, (count,), f"reshape({value.name})")
    first = body.aside(value.kind, (size,), f"slice({flat.name}), slice={{[0:{size}]}}")
    return body.aside(value.kind, dims, f"reshape({first.name})")
