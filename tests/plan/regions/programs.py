"""Random programs of instructions that can be taken by rows, and of some that cannot."""

from math import prod
from random import Random
from typing import Any

import numpy as np
from hypothesis import strategies as st

from conformance.cell import text_of
from hloexec.core.dtypes import element_type

_FLOATS = ("f32", "bf16", "f16")
_ARITHMETIC = "add subtract multiply divide maximum minimum".split()
_FUNCTIONS = "negate exponential tanh abs logistic sqrt rsqrt erf floor sign".split()
_REDUCERS = ("add", "maximum", "minimum", "multiply")


class _Writer:
    """Writes a random program of instructions that can be taken by rows, and of some that cannot."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.lines: list[str] = []
        self.values: list[tuple[str, str, tuple[int, ...]]] = []
        self.parameters: list[tuple[str, tuple[int, ...]]] = []
        self.constants = 0

    def _toss(self) -> bool:
        return self.random.random() < 0.5

    def new(self, kind: str, sizes: tuple[int, ...], text: str) -> tuple[str, str, tuple[int, ...]]:
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {text_of(kind, sizes)} {text}")
        value = (name, kind, sizes)
        self.values.append(value)
        return value

    def parameter(self) -> None:
        sizes = tuple(self.random.choices([1, 2, 3, 4, 6], k=self.random.choice([1, 2, 3, 3, 4])))
        kind = self.random.choice("f32 f32 bf16 s32 pred f16".split())
        self.new(kind, sizes, f"parameter({len(self.parameters)})")
        self.parameters.append((kind, sizes))

    def scalar(self, kind: str, number: int | None = None) -> str:
        value = self.random.choice([-1, 0, 1, 2]) if number is None else number
        text = ("true" if value else "false") if kind == "pred" else str(value)
        self.constants += 1
        name = f"c{self.constants}"
        self.lines.append(f"{name} = {kind}[] constant({text})")
        return name

    def like(self, kind: str, sizes: tuple[int, ...]) -> str:
        """A value of a type and shape: one that is there, or one that is made."""
        found = [name for name, theirs, dimensions in self.values if theirs == kind and dimensions == sizes]
        if found and self._toss():
            return self.random.choice(found)
        parts = [
            (name, dimensions)
            for name, theirs, dimensions in self.values
            if theirs == kind and _places(dimensions, sizes) is not None
        ]
        if parts and self._toss():
            name, dimensions = self.random.choice(parts)
            places = ",".join(map(str, _places(dimensions, sizes) or ()))
            return self.new(kind, sizes, f"broadcast({name}), dimensions={{{places}}}")[0]
        if sizes and kind in ("f32", "s32") and self._toss():
            return self.new(kind, sizes, f"iota(), iota_dimension={self.random.randrange(len(sizes))}")[0]
        return self.new(kind, sizes, f"broadcast({self.scalar(kind)}), dimensions={{}}")[0]

    def step(self) -> None:
        choose = self.random.choice
        name, kind, sizes = choose(self.values[-3:] if self.random.random() < 0.8 else self.values)
        choice = choose(_STEPS)
        if choice == "function" and kind in _FLOATS:
            self.new(kind, sizes, f"{choose(_FUNCTIONS)}({name})")
        elif choice == "arithmetic":
            opcode = choose(_ARITHMETIC if kind != "pred" else ("add", "maximum"))
            operands = [name, self.like(kind, sizes)]
            first, second = self.random.sample(operands, 2)
            self.new(kind, sizes, f"{opcode}({first}, {second})")
        elif choice == "select":
            pred = self.like("pred", sizes)
            if self._toss():
                pred = self.new("pred", sizes, f"compare({name}, {self.like(kind, sizes)}), direction=LT")[0]
            self.new(kind, sizes, f"select({pred}, {name}, {self.like(kind, sizes)})")
        elif choice == "clamp" and kind != "pred":
            self.new(kind, sizes, f"clamp({self.scalar(kind, -1)}, {name}, {self.scalar(kind, 1)})")
        elif choice == "convert":
            self.new(choose("f32 bf16 s32 pred f16".split()), sizes, f"convert({name})")
        elif choice == "bits" and kind in ("f32", "s32"):
            self.new("s32" if kind == "f32" else "f32", sizes, f"bitcast-convert({name})")
        elif choice == "reduce" and sizes and kind != "pred":
            dimensions = sorted(self.random.sample(range(len(sizes)), self.random.randint(1, len(sizes))))
            if self._toss():
                dimensions = [len(sizes) - 1]
            kept = tuple(size for place, size in enumerate(sizes) if place not in dimensions)
            init = self.scalar(kind)
            reducer = f"{choose(_REDUCERS)}_{kind}"
            places = ",".join(map(str, dimensions))
            total, *_ = self.new(kind, kept, f"reduce({name}, {init}), dimensions={{{places}}}, to_apply={reducer}")
            if self._toss():
                places = ",".join(str(place) for place in range(len(sizes)) if place not in dimensions)
                self.new(kind, sizes, f"broadcast({total}), dimensions={{{places}}}")
        elif choice == "repeat" and len(sizes) < 5:
            place = self.random.randint(min(1, len(sizes)), len(sizes))
            grown = (*sizes[:place], choose([2, 3, 5]), *sizes[place:])
            places = ",".join(str(other) for other in range(len(grown)) if other != place)
            repeated, *_ = self.new(kind, grown, f"broadcast({name}), dimensions={{{places}}}")
            if self._toss():
                self.new(kind, choose(_reshapes(grown)), f"reshape({repeated})")
        elif choice == "reshape":
            self.new(kind, choose(_reshapes(sizes)), f"reshape({name})")
        elif choice == "transpose" and sizes:
            order = self.random.sample(range(len(sizes)), len(sizes))
            places = ",".join(map(str, order))
            self.new(kind, tuple(sizes[place] for place in order), f"transpose({name}), dimensions={{{places}}}")
        elif choice == "slice" and sizes:
            ranges = [self.range(size) for size in sizes]
            text = ", ".join(f"[{start}:{limit}:{stride}]" for start, limit, stride in ranges)
            kept = tuple(len(range(*entry)) for entry in ranges)
            self.new(kind, kept, f"slice({name}), slice={{{text}}}")
        elif choice == "pad" and sizes:
            padding = [choose([(0, 0, 0), (0, 0, 0), (1, 0, 0), (0, 2, 1), (-1, 1, 0)]) for _ in sizes]
            grown = tuple(
                size + low + high + (size - 1) * inner for size, (low, high, inner) in zip(sizes, padding, strict=True)
            )
            if min(grown) > 0:
                text = "x".join(f"{low}_{high}_{inner}" for low, high, inner in padding)
                self.new(kind, grown, f"pad({name}, {self.scalar(kind)}), padding={text}")
        elif choice == "concatenate" and sizes:
            place = self.random.randrange(len(sizes))
            grown = (*sizes[:place], 2 * sizes[place], *sizes[place + 1 :])
            self.new(kind, grown, f"concatenate({name}, {self.like(kind, sizes)}), dimensions={{{place}}}")

    def range(self, size: int) -> tuple[int, int, int]:
        if self._toss():
            return 0, size, 1
        start = self.random.randrange(size)
        return start, self.random.randint(start + 1, size), self.random.choice([1, 2])

    def text(self) -> str:
        outputs = self.random.choices(self.values[-6:], k=self.random.randint(1, 4))
        shapes = ", ".join(text_of(kind, sizes) for _, kind, sizes in (*outputs, self.values[-1]))
        names = ", ".join(name for name, _, _ in (*outputs, self.values[-1]))
        lines = [*self.lines, f"ROOT result = ({shapes}) tuple({names})"]
        reducers = "\n".join(
            f"{opcode}_{kind} {{\n  a = {kind}[] parameter(0)\n  b = {kind}[] parameter(1)\n"
            f"  ROOT r = {kind}[] {opcode}(a, b)\n}}"
            for opcode in _REDUCERS
            for kind in "f32 bf16 s32 f16".split()
        )
        return f"HloModule m\n\n{reducers}\n\nENTRY e {{\n  " + "\n  ".join(lines) + "\n}\n"


_STEPS = (
    "function arithmetic arithmetic select clamp convert bits reduce reduce repeat reshape transpose slice pad "
    "concatenate"
).split()


def _places(sizes: tuple[int, ...], among: tuple[int, ...]) -> tuple[int, ...] | None:
    """Where some dimensions stand, in order, among others; None where they don't."""
    found: list[int] = []
    for size in sizes:
        start = found[-1] + 1 if found else 0
        if size not in among[start:]:
            return None
        found.append(among.index(size, start))
    return tuple(found) if len(found) < len(among) else None


def _reshapes(sizes: tuple[int, ...]) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [(prod(sizes),), (*sizes, 1), (1, *sizes)]
    for place in range(len(sizes) - 1):
        found.append((*sizes[:place], sizes[place] * sizes[place + 1], *sizes[place + 2 :]))
    for place, size in enumerate(sizes):
        for factor in (2, 3):
            if size % factor == 0:
                found.append((*sizes[:place], factor, size // factor, *sizes[place + 1 :]))
    return found


@st.composite
def row_programs(draw: st.DrawFn) -> tuple[str, list[Any]]:
    random = Random(draw(st.integers(0, (1 << 64) - 1)))
    writer = _Writer(random)
    for _ in range(random.randint(1, 3)):
        writer.parameter()
    for _ in range(draw(st.integers(4, 24))):
        writer.step()
    generator = np.random.default_rng(random.getrandbits(32))
    inputs = []
    for kind, sizes in writer.parameters:
        numbers = generator.normal(size=sizes) * 3
        with np.errstate(all="ignore"):
            numbers = np.where(generator.random(sizes) < 0.1, generator.choice([np.nan, np.inf, -0.0, 0.0]), numbers)
            storage = element_type(kind).storage
            whole = kind in ("s32", "pred")
            inputs.append((np.nan_to_num(numbers, posinf=9) if whole else numbers).astype(storage))
    return writer.text(), inputs
