"""What random programs are written with: values, the instructions of a computation, what a program has so far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

__all__ = ["SHAPES", "Body", "Dims", "Maker", "RandomProgram", "Value", "Writer", "shape_text", "spread_scalar"]

Dims = tuple[int, ...]

SHAPES: tuple[Dims, ...] = (
    (), (1,), (4,), (7,), (33,), (300,), (3, 5), (8, 8), (16, 1), (24, 40), (40, 24), (1, 64), (2, 3, 4), (5, 16, 12),
    (100, 100), (136, 130), (60, 300), (6, 40, 72), (2, 2, 90, 50), (200, 190),
    (64, 64),
)  # fmt: skip


@attrs.frozen
class Value:
    """A value that instructions can take: its name, element type and dimensions."""

    name: str
    kind: str
    dims: Dims

    @property
    def shape(self) -> str:
        return shape_text(self.kind, self.dims)


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

    def emit(self, kind: str, dims: Dims, call: str, *, layout: str = "", keep: bool = True) -> Value:
        value = Value(self.program.fresh(), kind, dims)
        self.lines.append(f"  {value.name} = {value.shape}{layout} {call}")
        self.calls[value.name] = call
        if keep:
            self.values.append(value)
        return value

    def of_kinds(self, kinds: str) -> list[Value]:
        return [value for value in self.values if value.kind in kinds.split()]

    def line(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def scalar(self, kind: str, text: str) -> Value:
        if (kind, text) not in self.constants:
            self.constants[kind, text] = self.emit(kind, (), f"constant({text})", keep=False)
        return self.constants[kind, text]

    def scalar_list(self, numbers: Sequence[int]) -> Value:
        """A constant column of whole numbers."""
        text = ", ".join(f"{{{number}}}" for number in numbers)
        return self.emit("s32", (len(numbers), 1), f"constant({{{text}}})", keep=False)

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
        self.kinds = ["f32"] * 4 + [["f32", "f32", "bf16", "f64", "f16", "c64", "s32"][self.random.integers(7)]]

    def fresh(self) -> str:
        self.count += 1
        return f"v{self.count}"

    def pick(self, among: Sequence[Any]) -> Any:
        return among[int(self.random.integers(len(among)))]

    def chance(self, share: float) -> bool:
        return bool(self.random.random() < share)

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
            self.pick(makers)(self, body)


Maker = Callable[[Writer, Body], None]
"""Writes a step."""


def spread_scalar(writer: Writer, body: Body, like: Value) -> Value:
    """One number in the shape of another value."""
    numbers = {"s32": ["3"], "c64": ["(0.5, -1)", "(1, 0)"]}.get(like.kind, ["0.5", "1", "2", "-0.75", "0"])
    scalar = body.scalar(like.kind, writer.pick(numbers))
    return scalar if not like.dims else body.emit(like.kind, like.dims, f"broadcast({scalar.name}), dimensions={{}}")
