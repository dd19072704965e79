"""Random programs that try to make a run depend on how it is carried out.

They hold what optimisations work on: transposes before sums and products, products added to carried values, loops of
known, unknown and data-dependent length, chains that become regions, nested calls, fusions and conditionals, tokens,
updates in place, narrow and complex types, several devices. A program is HLO text with inputs, made from a seed alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import attrs
import ml_dtypes
import numpy as np

__all__ = ["RandomProgram", "random_program"]

Dims = tuple[int, ...]

_STORAGE = {
    "f32": np.float32,
    "f64": np.float64,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "c64": np.complex64,
    "s32": np.int32,
    "u8": np.uint8,
    "pred": np.bool_,
}
_SHAPES: tuple[Dims, ...] = (
    (), (1,), (4,), (7,), (33,), (300,), (3, 5), (8, 8), (16, 1), (24, 40), (40, 24), (1, 64), (2, 3, 4), (5, 16, 12),
    (100, 100), (136, 130), (60, 300), (6, 40, 72), (2, 2, 90, 50), (200, 190),
    (64, 64),
)  # fmt: skip
_UNARY = ("negate", "abs", "exponential", "sine", "cosine", "tanh", "logistic", "sqrt", "floor", "sign", "log-plus-one")
_BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "atan2")
_INTEGER_BINARY = ("add", "subtract", "multiply", "maximum", "minimum", "and", "or", "xor", "shift-left", "divide")


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


class _Body:
    """The instructions of one computation, so far."""

    def __init__(self, program: _Writer, name: str) -> None:
        self.program = program
        self.name = name
        self.lines: list[str] = []
        self.values: list[Value] = []
        self.constants: dict[tuple[str, str], Value] = {}

    def emit(self, kind: str, dims: Dims, call: str, *, keep: bool = True) -> Value:
        value = Value(self.program.fresh(), kind, dims)
        self.lines.append(f"  {value.name} = {value.shape} {call}")
        if keep:
            self.values.append(value)
        return value

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


class _Writer:
    """Writes one program."""

    def __init__(self, seed: int, devices: int, length: int) -> None:
        self.random = np.random.default_rng(seed)
        self.devices = devices
        self.length = length
        self.count = 0
        self.channel = 0
        self.computations: list[str] = []
        self.reducers: dict[tuple[str, str], str] = {}
        self.depth = 0
        self.is_in_step = True
        """Whether all devices come by here equally often, so that they may meet."""
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

    def write(self) -> RandomProgram:
        main = _Body(self, "main")
        sizes = _SHAPES if self.chance(0.5) else [dims for dims in _SHAPES if prod(dims) > 2000]
        shapes = [(self.pick(self.kinds), self.pick(sizes)) for _ in range(int(self.random.integers(2, 5)))]
        inputs = []
        for number, (kind, dims) in enumerate(shapes):
            main.emit(kind, dims, f"parameter({number})")
            inputs.append(self.numbers(kind, dims))
        main.emit("s32", (), f"parameter({len(shapes)})", keep=False)
        trips = main.lines[-1].split()[0]
        self.trips = Value(trips, "s32", ())
        inputs.append(np.array(self.random.integers(0, 40), np.int32))
        self.fill(main, self.length)
        found = self.results(main)
        shape = f"({', '.join(value.shape for value in found)})"
        text = main.finish(f"tuple({', '.join(value.name for value in found)})", shape)
        partitions = f", num_partitions={self.devices}" if self.devices > 1 else ""
        module = f"HloModule random{partitions}\n\n" + "\n".join([*self.computations, text])
        rows = [list(inputs)]
        for _ in range(1, self.devices):
            same = self.chance(0.5)
            rows.append(
                [entry if same or not entry.ndim else self.numbers(kind, entry.shape) for entry, kind in
                 zip(inputs, [*(kind for kind, _ in shapes), "s32"], strict=True)]
            )  # fmt: skip
        return RandomProgram(module, rows)

    def results(self, body: _Body) -> list[Value]:
        """Some of a body's values, the last among them."""
        count = min(len(body.values), 10)
        chosen = {len(body.values) - 1, *map(int, self.random.integers(0, len(body.values), count))}
        return [body.values[number] for number in sorted(chosen)]

    def numbers(self, kind: str, dims: Dims) -> np.ndarray[Any, Any]:
        if kind == "s32":
            return self.random.integers(-9, 10, dims).astype(np.int32)
        values = self.random.standard_normal(dims)
        if kind == "c64":
            values = values + 1j * self.random.standard_normal(dims)
        found = np.asarray(values).astype(_STORAGE[kind])
        if self.chance(0.15) and found.size:
            found.reshape(-1)[int(self.random.integers(found.size))] = self.pick([0.0, -0.0, np.inf, 1e-40, 3e4])
        return found

    def fill(self, body: _Body, count: int) -> None:
        makers = self.makers(body)
        for _ in range(count):
            self.pick(makers)(body)

    def makers(self, body: _Body) -> list[Callable[[_Body], None]]:
        often = [self.elementwise] * 7 + [self.transpose] * 3 + [self.reduce] * 3 + [self.dot] * 3 + [self.move] * 3
        often += [self.turned_sum, self.turned_sum]
        rare = [self.update, self.select, self.convert, self.cumulate, self.by_rows, self.scatter, self.gather]
        rare += [self.sort, self.convolve, self.draw, self.mixed, self.element_by_element]
        if self.depth < 2:
            rare += [self.call, self.loop, self.conditional]
        if self.depth == 0:
            rare += [self.loop, self.loop]
        if self.devices > 1 and self.is_in_step:
            rare += [self.exchange, self.exchange, self.device_number]
        return [*often, *rare]

    # Single instructions

    def of_kinds(self, body: _Body, kinds: str) -> list[Value]:
        return [value for value in body.values if value.kind in kinds.split()]

    def elementwise(self, body: _Body) -> None:
        value = self.pick(body.values)
        if value.kind == "pred":
            body.emit("pred", value.dims, f"not({value.name})")
            return
        partners = [other for other in body.values if (other.kind, other.dims) == (value.kind, value.dims)]
        if value.kind == "s32":
            body.emit("s32", value.dims, f"{self.pick(_INTEGER_BINARY)}({value.name}, {self.pick(partners).name})")
        elif self.chance(0.4):
            names = ("negate", "exponential", "sine", "tanh", "sqrt") if value.kind == "c64" else _UNARY
            body.emit(value.kind, value.dims, f"{self.pick(names)}({value.name})")
        else:
            names = ("add", "subtract", "multiply", "divide") if value.kind == "c64" else _BINARY
            other = self.pick(partners) if self.chance(0.6) else self.spread_scalar(body, value)
            pair = [value.name, other.name]
            if self.chance(0.5):
                pair.reverse()
            body.emit(value.kind, value.dims, f"{self.pick(names)}({', '.join(pair)})")

    def spread_scalar(self, body: _Body, like: Value) -> Value:
        numbers = {"s32": ["3"], "c64": ["(0.5, -1)", "(1, 0)"]}.get(like.kind, ["0.5", "1", "2", "-0.75", "0"])
        scalar = body.scalar(like.kind, self.pick(numbers))
        return (
            scalar if not like.dims else body.emit(like.kind, like.dims, f"broadcast({scalar.name}), dimensions={{}}")
        )

    def transpose(self, body: _Body) -> None:
        found = [value for value in body.values if len(value.dims) > 1]
        if found:
            value = self.pick(found)
            order = [int(axis) for axis in self.random.permutation(len(value.dims))]
            dims = tuple(value.dims[axis] for axis in order)
            text = ",".join(map(str, order))
            turned = body.emit(value.kind, dims, f"transpose({value.name}), dimensions={{{text}}}")
            if self.chance(0.5) and turned.kind in ("f32", "f64"):
                partner = self.spread_scalar(body, turned)
                body.emit(turned.kind, dims, f"multiply({turned.name}, {partner.name})")

    def turned_sum(self, body: _Body) -> None:
        """A transposed matrix, something computed of it, and its sum along an axis: the order in memory is at stake."""
        found = [value for value in self.of_kinds(body, "f32 f64 bf16") if len(value.dims) > 1]
        if not found:
            return
        value = self.pick(found)
        order = list(range(len(value.dims)))[::-1]
        dims = value.dims[::-1]
        turned = body.emit(value.kind, dims, f"transpose({value.name}), dimensions={{{','.join(map(str, order))}}}")
        for opcode in [self.pick(["sine", "tanh", "negate"]) for _ in range(int(self.random.integers(0, 3)))]:
            turned = body.emit(value.kind, dims, f"{opcode}({turned.name})")
        if self.chance(0.3) and dims[0] == dims[-1] and len(dims) == 2 and value.kind != "bf16":
            body.emit(value.kind, dims, f"dot({turned.name}, {value.name}), lhs_contracting_dims={{1}}, "
                      "rhs_contracting_dims={0}")  # fmt: skip
        axis = int(self.random.integers(len(dims)))
        zero = body.scalar(value.kind, "0")
        kept = tuple(size for place, size in enumerate(dims) if place != axis)
        reducer = self.reducer("add", value.kind)
        body.emit(value.kind, kept, f"reduce({turned.name}, {zero.name}), dimensions={{{axis}}}, to_apply={reducer}")

    def reduce(self, body: _Body) -> None:
        found = [value for value in body.values if value.dims and value.kind not in ("pred", "c64")]
        if not found:
            return
        value = self.pick(found)
        rank = len(value.dims)
        axes = sorted(map(int, self.random.permutation(rank)[: self.random.integers(1, rank + 1)]))
        opcode = self.pick(["add", "add", "add", "maximum", "multiply"])
        start = body.scalar(value.kind, {"add": "0", "maximum": "-5", "multiply": "1"}[opcode])
        kept = tuple(size for axis, size in enumerate(value.dims) if axis not in axes)
        text = ",".join(map(str, axes))
        reducer = self.reducer(opcode, value.kind)
        total = body.emit(
            value.kind, kept, f"reduce({value.name}, {start.name}), dimensions={{{text}}}, to_apply={reducer}"
        )
        if self.chance(0.5):
            axes_kept = ",".join(str(axis) for axis in range(rank) if axis not in axes)
            whole = body.emit(value.kind, value.dims, f"broadcast({total.name}), dimensions={{{axes_kept}}}")
            body.emit(value.kind, value.dims, f"subtract({value.name}, {whole.name})")

    def dot(self, body: _Body) -> None:
        found = [value for value in self.of_kinds(body, "f32 f64 bf16 c64") if value.dims and prod(value.dims) < 30000]
        if not found:
            return
        lhs = self.pick(found)
        axis = int(self.random.integers(len(lhs.dims)))
        partners = [
            (other, place)
            for other in body.values
            if other.kind == lhs.kind
            for place, size in enumerate(other.dims)
            if size == lhs.dims[axis] and prod(other.dims) * prod(lhs.dims) // max(size, 1) ** 2 < 50000
        ]
        if not partners:
            return
        rhs, place = self.pick(partners)
        free = [size for k, size in enumerate(lhs.dims) if k != axis] + [
            size for k, size in enumerate(rhs.dims) if k != place
        ]
        body.emit(
            lhs.kind,
            tuple(free),
            f"dot({lhs.name}, {rhs.name}), lhs_contracting_dims={{{axis}}}, rhs_contracting_dims={{{place}}}",
        )

    def move(self, body: _Body) -> None:
        value = self.pick(body.values)
        if not value.dims:
            dims = self.pick([dims for dims in _SHAPES if dims])
            body.emit(value.kind, dims, f"broadcast({value.name}), dimensions={{}}")
            return
        axis = int(self.random.integers(len(value.dims)))
        size = value.dims[axis]
        choice = self.pick(["reshape", "reverse", "slice", "pad", "concatenate", "broadcast", "copy"])
        before, after = value.dims[:axis], value.dims[axis + 1 :]
        if choice == "reshape":
            merged = (prod(value.dims[: axis + 1]), *after) if axis else (*value.dims[:-1], 1, value.dims[-1])
            body.emit(value.kind, merged, f"reshape({value.name})")
        elif choice == "reverse":
            body.emit(value.kind, value.dims, f"reverse({value.name}), dimensions={{{axis}}}")
        elif choice == "slice":
            start = int(self.random.integers(0, size))
            stride = int(self.random.integers(1, 3))
            limit = int(self.random.integers(start + 1, size + 1))
            bounds = [f"[0:{length}]" for length in value.dims]
            bounds[axis] = f"[{start}:{limit}:{stride}]"
            dims = (*before, -(-(limit - start) // stride), *after)
            body.emit(value.kind, dims, f"slice({value.name}), slice={{{', '.join(bounds)}}}")
        elif choice == "pad":
            low, high = int(self.random.integers(-1, 3)), int(self.random.integers(0, 3))
            if size + low + high > 0 and value.kind not in ("pred", "c64"):
                padding = "x".join(f"{low}_{high}" if k == axis else "0_0" for k in range(len(value.dims)))
                filler = body.scalar(value.kind, "1")
                dims = (*before, size + low + high, *after)
                body.emit(value.kind, dims, f"pad({value.name}, {filler.name}), padding={padding}")
        elif choice == "concatenate" and prod(value.dims) < 20000:
            dims = (*before, 2 * size, *after)
            body.emit(value.kind, dims, f"concatenate({value.name}, {value.name}), dimensions={{{axis}}}")
        elif choice == "broadcast" and prod(value.dims) < 8000:
            places = ",".join(str(k + 1) for k in range(len(value.dims)))
            body.emit(value.kind, (3, *value.dims), f"broadcast({value.name}), dimensions={{{places}}}")
        else:
            body.emit(value.kind, value.dims, f"copy({value.name})")

    def update(self, body: _Body) -> None:
        """A window read at a computed place, changed, and written back."""
        found = [value for value in body.values if value.dims and value.kind != "pred"]
        if not found:
            return
        value = self.pick(found)
        starts = [body.scalar("s32", str(int(self.random.integers(-1, 4)))).name for _ in value.dims]
        sizes = tuple(int(self.random.integers(1, size + 1)) for size in value.dims)
        text = ",".join(map(str, sizes))
        window = body.emit(
            value.kind, sizes, f"dynamic-slice({value.name}, {', '.join(starts)}), dynamic_slice_sizes={{{text}}}"
        )
        doubled = body.emit(value.kind, sizes, f"add({window.name}, {window.name})")
        body.emit(value.kind, value.dims, f"dynamic-update-slice({value.name}, {doubled.name}, {', '.join(starts)})")

    def select(self, body: _Body) -> None:
        found = [value for value in body.values if value.kind != "pred"]
        if not found:
            return
        value = self.pick(found)
        partners = [other for other in body.values if (other.kind, other.dims) == (value.kind, value.dims)]
        direction = "EQ" if value.kind == "c64" else self.pick(["LT", "GE", "EQ", "NE"])
        against = self.spread_scalar(body, value) if self.chance(0.5) else self.pick(partners)
        chosen = body.emit("pred", value.dims, f"compare({value.name}, {against.name}), direction={direction}")
        other = self.spread_scalar(body, value) if self.chance(0.5) else self.pick(partners)
        pair = [value.name, other.name]
        if self.chance(0.5):
            pair.reverse()
        body.emit(value.kind, value.dims, f"select({chosen.name}, {', '.join(pair)})")

    def convert(self, body: _Body) -> None:
        value = self.pick(self.of_kinds(body, "f32 f64 f16 bf16 s32") or body.values)
        if value.kind in ("pred", "c64"):
            return
        kind = self.pick(["f32", "bf16", "f64", "f16"])
        body.emit(kind, value.dims, f"convert({value.name})")

    def cumulate(self, body: _Body) -> None:
        """Sums over windows: all that came before, along one dimension."""
        found = [value for value in self.of_kinds(body, "f32 bf16 s32") if value.dims and prod(value.dims) < 20000]
        if not found:
            return
        value = self.pick(found)
        axis = int(self.random.integers(len(value.dims)))
        size = value.dims[axis]
        ones = "x".join(str(size if k == axis else 1) for k in range(len(value.dims)))
        padding = "x".join(f"{size - 1}_0" if k == axis else "0_0" for k in range(len(value.dims)))
        zero = body.scalar(value.kind, "0")
        window = f"window={{size={ones} pad={padding}}}"
        reducer = self.reducer("add", value.kind)
        body.emit(value.kind, value.dims, f"reduce-window({value.name}, {zero.name}), {window}, to_apply={reducer}")

    def by_rows(self, body: _Body) -> None:
        """A softmax, which is one region where it is large."""
        found = [value for value in self.of_kinds(body, "f32 bf16") if len(value.dims) > 1]
        if not found:
            return
        value = self.pick(found)
        last = len(value.dims) - 1
        kept = ",".join(map(str, range(last)))
        low, zero = body.scalar(value.kind, "-inf"), body.scalar(value.kind, "0")
        dims = value.dims[:-1]
        most = body.emit(
            value.kind,
            dims,
            f"reduce({value.name}, {low.name}), dimensions={{{last}}}, to_apply={self.reducer('maximum', value.kind)}",
        )
        wide = body.emit(value.kind, value.dims, f"broadcast({most.name}), dimensions={{{kept}}}")
        below = body.emit(value.kind, value.dims, f"subtract({value.name}, {wide.name})")
        weights = body.emit(value.kind, value.dims, f"exponential({below.name})")
        total = body.emit(
            value.kind,
            dims,
            f"reduce({weights.name}, {zero.name}), dimensions={{{last}}}, to_apply={self.reducer('add', value.kind)}",
        )
        spread = body.emit(value.kind, value.dims, f"broadcast({total.name}), dimensions={{{kept}}}")
        body.emit(value.kind, value.dims, f"divide({weights.name}, {spread.name})")

    def scatter(self, body: _Body) -> None:
        """Rows added to others, some of them twice."""
        found = [value for value in self.of_kinds(body, "f32 f64 bf16 s32") if len(value.dims) == 2]
        if not found:
            return
        value = self.pick(found)
        rows = [int(row) for row in self.random.integers(0, value.dims[0], 3)]
        places = body.scalar_list(rows)
        sizes = (3, value.dims[1])
        text = f"[0:{min(3, value.dims[0])}]"
        if value.dims[0] < 3:
            return
        updates = body.emit(value.kind, sizes, f"slice({value.name}), slice={{{text}, [0:{value.dims[1]}]}}")
        reducer = self.reducer("add", value.kind)
        body.emit(
            value.kind,
            value.dims,
            f"scatter({value.name}, {places.name}, {updates.name}), update_window_dims={{1}}, "
            f"inserted_window_dims={{0}}, scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply={reducer}",
        )

    def gather(self, body: _Body) -> None:
        found = [value for value in body.values if len(value.dims) == 2]
        if found:
            value = self.pick(found)
            rows = [int(row) for row in self.random.integers(-1, value.dims[0] + 1, 4)]
            places = body.scalar_list(rows)
            body.emit(
                value.kind,
                (4, value.dims[1]),
                f"gather({value.name}, {places.name}), offset_dims={{1}}, collapsed_slice_dims={{0}}, "
                f"start_index_map={{0}}, index_vector_dim=1, slice_sizes={{1,{value.dims[1]}}}",
            )

    def sort(self, body: _Body) -> None:
        found = [value for value in self.of_kinds(body, "f32 f64 bf16 s32") if value.dims and prod(value.dims) < 20000]
        if found:
            value = self.pick(found)
            axis = int(self.random.integers(len(value.dims)))
            key = "less", value.kind
            if key not in self.reducers:
                name = self.reducers[key] = f"less_{value.kind}"
                self.computations.append(
                    f"{name} {{\n  a = {value.kind}[] parameter(0)\n  b = {value.kind}[] parameter(1)\n"
                    f"  ROOT c = pred[] compare(a, b), direction=LT\n}}\n"
                )
            body.emit(
                value.kind, value.dims, f"sort({value.name}), dimensions={{{axis}}}, to_apply={self.reducers[key]}"
            )

    def convolve(self, body: _Body) -> None:
        """A matrix seen as one image of one feature, under a window of 3 × 3 that comes from it."""
        found = [value for value in self.of_kinds(body, "f32 bf16") if len(value.dims) == 2 and min(value.dims) >= 3]
        if found:
            value = self.pick(found)
            rows, columns = value.dims
            image = body.emit(value.kind, (1, rows, columns, 1), f"reshape({value.name})", keep=False)
            corner = body.emit(value.kind, (3, 3), f"slice({value.name}), slice={{[0:3], [0:3]}}", keep=False)
            kernel = body.emit(value.kind, (3, 3, 1, 1), f"reshape({corner.name})", keep=False)
            seen = body.emit(
                value.kind,
                (1, rows, columns, 1),
                f"convolution({image.name}, {kernel.name}), window={{size=3x3 pad=1_1x1_1}}, dim_labels=b01f_01io->b01f",
                keep=False,
            )
            body.emit(value.kind, value.dims, f"reshape({seen.name})")

    def draw(self, body: _Body) -> None:
        if self.devices == 1:
            low, high = body.scalar("f32", "0"), body.scalar("f32", "1")
            dims = self.pick(_SHAPES)
            body.emit("f32", dims, f"rng({low.name}, {high.name}), distribution=rng_uniform")

    def mixed(self, body: _Body) -> None:
        """Floats of two widths that meet, as they do in optimized modules."""
        value = self.pick(self.of_kinds(body, "f32 f64 f16 bf16") or body.values)
        others = [kind for kind in ("f32", "bf16", "f16") if kind != value.kind]
        if value.kind in ("pred", "s32", "c64"):
            return
        kind = self.pick(others)
        name, shape, to = value.name, value.shape, shape_text(kind, value.dims)
        how = self.pick(["operand", "result", "move", "tuple", "call", "call"])
        if how == "operand":
            other = body.emit(kind, value.dims, f"convert({name})", keep=False)
            body.emit(self.pick([kind, value.kind]), value.dims, f"add({name}, {other.name})")
        elif how == "result":
            body.emit(kind, value.dims, f"negate({name})")
        elif how == "move":
            body.emit(kind, (1, *value.dims), f"reshape({name})")
        elif how == "tuple":
            both = self.fresh()
            body.line(f"{both} = ({to}, {shape}) tuple({name}, {name})")
            body.emit(value.kind, value.dims, f"get-tuple-element({both}), index=0")
        else:
            parameter, root = self.pick([(shape, to), (to, shape), (to, to)])
            called, result = self.fresh(), self.pick([kind, value.kind])
            self.computations.append(
                f"computation_{called} {{\n  a = {parameter} parameter(0)\n  ROOT b = {root} add(a, a)\n}}\n"
            )
            body.emit(result, value.dims, f"call({name}), to_apply=computation_{called}")

    def element_by_element(self, body: _Body) -> None:
        """A called computation that no vectorised kernel stands for, with a loop that some elements leave sooner."""
        found = [value for value in self.of_kinds(body, "f32 bf16 s32") if value.dims and prod(value.dims) <= 64]
        if not found:
            return
        value = self.pick(found)
        called = self.halving(value.kind)
        if self.chance(0.5):
            partners = [other for other in found if (other.kind, other.dims) == (value.kind, value.dims)]
            places = ",".join(map(str, range(len(value.dims))))
            operands = f"{value.name}, {self.pick(partners).name}"
            body.emit(value.kind, value.dims, f"map({operands}), dimensions={{{places}}}, to_apply={called}")
            return
        axis = int(self.random.integers(len(value.dims)))
        kept = tuple(size for place, size in enumerate(value.dims) if place != axis)
        first = body.scalar(value.kind, self.pick(["0", "3"]))
        body.emit(value.kind, kept, f"reduce({value.name}, {first.name}), dimensions={{{axis}}}, to_apply={called}")

    def halving(self, kind: str) -> str:
        """A computation that halves one number as long as it is above 1, and says how often, by another's sign."""
        name = f"computation_{self.fresh()}"
        state = f"({kind}[], s32[], {kind}[3])"
        few = self.pick(["2", "5"])
        self.computations.append(
            f"body_{name} {{\n  state = {state} parameter(0)\n  x = {kind}[] get-tuple-element(state), index=0\n"
            f"  n = s32[] get-tuple-element(state), index=1\n  all = {kind}[3] get-tuple-element(state), index=2\n"
            f"  two = {kind}[] constant(2)\n  y = {kind}[] divide(x, two)\n  one = s32[] constant(1)\n"
            f"  m = s32[] add(n, one)\n  wide = {kind}[3] broadcast(x), dimensions={{}}\n"
            f"  more = {kind}[3] subtract(all, wide)\n  ROOT t = {state} tuple(y, m, more)\n}}\n"
        )
        self.computations.append(
            f"condition_{name} {{\n  state = {state} parameter(0)\n  x = {kind}[] get-tuple-element(state), index=0\n"
            f"  n = s32[] get-tuple-element(state), index=1\n  one = {kind}[] constant(1)\n  size = {kind}[] abs(x)\n"
            f"  big = pred[] compare(size, one), direction=GT\n  few = s32[] constant({few})\n"
            f"  early = pred[] compare(n, few), direction=LT\n  ROOT c = pred[] and(big, early)\n}}\n"
        )
        self.computations.append(
            f"plus_{name} {{\n  q = {kind}[] parameter(0)\n  ROOT r = {kind}[] add(q, q)\n}}\n"
            f"\nsame_{name} {{\n  ROOT q = {kind}[] parameter(0)\n}}\n"
        )
        self.computations.append(
            f"{name} {{\n  a = {kind}[] parameter(0)\n  b = {kind}[] parameter(1)\n  zero = s32[] constant(0)\n"
            f"  none = {kind}[3] broadcast(b), dimensions={{}}\n  first = {state} tuple(a, zero, none)\n"
            f"  last = {state} while(first), condition=condition_{name}, body=body_{name}\n"
            f"  n = s32[] get-tuple-element(last), index=1\n  all = {kind}[3] get-tuple-element(last), index=2\n"
            f"  part = {kind}[1] slice(all), slice={{[1:2]}}\n  one = {kind}[] reshape(part)\n"
            f"  odd = {kind}[] convert(n)\n  less = pred[] compare(a, b), direction=LT\n"
            f"  some = {kind}[] conditional(less, one, odd), true_computation=plus_{name}, "
            f"false_computation=same_{name}\n  ROOT r = {kind}[] add(some, b)\n}}\n"
        )
        return name

    # Called computations

    def inner(self, given: Sequence[Value], length: int) -> tuple[str, Value]:
        """A computation of these parameters; its name, and the value that it returns."""
        name = f"computation_{self.fresh()}"
        body = _Body(self, name)
        for number, value in enumerate(given):
            body.emit(value.kind, value.dims, f"parameter({number})")
        self.depth += 1
        self.fill(body, length)
        self.depth -= 1
        root = body.values[-1]
        if len(root.dims) > 1 and self.chance(0.3):
            order = [int(axis) for axis in self.random.permutation(len(root.dims))]
            root = Value("", root.kind, tuple(root.dims[axis] for axis in order))
            last = f"transpose({body.values[-1].name}), dimensions={{{','.join(map(str, order))}}}"
        else:
            last = f"copy({root.name})"
        self.computations.append(body.finish(last, root.shape))
        return name, root

    def some(self, body: _Body) -> list[Value]:
        count = int(self.random.integers(1, 4))
        return [self.pick(body.values) for _ in range(count)]

    def call(self, body: _Body) -> None:
        given = self.some(body)
        name, root = self.inner(given, int(self.random.integers(2, 8)))
        operands = ", ".join(value.name for value in given)
        how = "call({}), to_apply={}" if self.chance(0.5) else "fusion({}), kind=kLoop, calls={}"
        for _ in range(int(self.random.integers(1, 3))):
            body.emit(root.kind, root.dims, how.format(operands, name))

    def conditional(self, body: _Body) -> None:
        given = self.pick(body.values)
        how = self.pick(["limit", "limit", "index", "device" if self.devices > 1 else "index"])
        was_in_step, self.is_in_step = self.is_in_step, self.is_in_step and how != "device"
        first, root = self.inner([given], int(self.random.integers(1, 5)))
        self.is_in_step = was_in_step
        second = _Body(self, f"computation_{self.fresh()}")
        second.emit(given.kind, given.dims, "parameter(0)")
        scalar = self.spread_scalar(second, Value("", root.kind, root.dims)) if root.kind != "pred" else None
        if scalar is None:
            body.emit(root.kind, root.dims, f"call({given.name}), to_apply={first}")
            return
        self.computations.append(second.finish(f"copy({scalar.name})", root.shape))
        if how == "limit":
            limit = body.scalar("s32", "20")
            choice = body.emit(
                "pred", (), f"compare({self.trip_count(body).name}, {limit.name}), direction=LT", keep=False
            )
            branches = f"true_computation={first}, false_computation={second.name}"
        else:
            # 2 and more are out of range: they take the last branch, as 1 does.
            choice = self.index_of_branch(body, how)
            branches = f"branch_computations={{{first}, {second.name}}}"
        operands = ", ".join([choice.name, given.name, given.name])
        body.emit(root.kind, root.dims, f"conditional({operands}), {branches}")

    def index_of_branch(self, body: _Body, how: str) -> Value:
        if how == "device":
            device = body.emit("u32", (), "partition-id()", keep=False)
            return body.emit("s32", (), f"convert({device.name})", keep=False)
        three = body.scalar("s32", "3")
        return body.emit("s32", (), f"remainder({self.trip_count(body).name}, {three.name})", keep=False)

    def trip_count(self, body: _Body) -> Value:
        """A number that only a run knows, where it is at hand."""
        return self.trips if body.name == "main" else body.scalar("s32", self.pick(["3", "19", "24"]))

    def loop(self, body: _Body) -> None:
        carried = self.some(body)
        how = self.pick(["known", "known", "short", "unknown", "data"])
        limit = {"known": self.pick(["17", "20", "33"]), "short": self.pick(["1", "3", "6"]), "data": "25"}.get(how)
        end = self.trip_count(body) if limit is None else body.scalar("s32", limit)
        pace = 1 if how == "data" else self.pick([1, 1, 1, 2, 3, -1])
        has_token = self.chance(0.15)
        kinds = ["s32[]", "s32[]", *(value.shape for value in carried), *(["token[]"] if has_token else [])]
        state = f"({', '.join(kinds)})"
        inside = _Body(self, f"body_{self.fresh()}")
        inside.line(f"state = {state} parameter(0)")
        counter = inside.emit("s32", (), "get-tuple-element(state), index=0", keep=self.chance(0.2))
        bound = inside.emit("s32", (), "get-tuple-element(state), index=1", keep=False)
        leaves = [
            inside.emit(value.kind, value.dims, f"get-tuple-element(state), index={number + 2}")
            for number, value in enumerate(carried)
        ]
        increment = inside.scalar("s32", str(pace))
        self.depth += 1
        if self.chance(0.5):
            self.turned_sum(inside)
        was_in_step, self.is_in_step = self.is_in_step, self.is_in_step and how != "data"
        self.fill(inside, int(self.random.integers(2, 9)))
        self.is_in_step = was_in_step
        if self.chance(0.4):
            self.accumulate(inside, leaves)
        if self.chance(0.5):
            self.calm(inside)
        self.depth -= 1
        following = inside.emit("s32", (), f"add({counter.name}, {increment.name})", keep=False)
        parts = [following.name, bound.name]
        for leaf in leaves:
            same = [value for value in inside.values if (value.kind, value.dims) == (leaf.kind, leaf.dims)]
            parts.append((same[-1] if self.chance(0.7) else self.pick(same)).name)
        if has_token:
            inside.line(f"old_token = token[] get-tuple-element(state), index={len(kinds) - 1}")
            inside.line("new_token = token[] after-all(old_token)")
            parts.append("new_token")
        self.computations.append(inside.finish(f"tuple({', '.join(parts)})", state))
        condition = self.condition(how, state, carried, pace)
        first = body.scalar("s32", "0") if pace > 0 else end if how == "unknown" else body.scalar("s32", "23")
        start = [first.name, end.name, *(value.name for value in carried)]
        if has_token:
            token = self.fresh()
            body.line(f"{token} = token[] after-all()")
            start.append(token)
        names = [self.fresh(), self.fresh()]
        body.line(f"{names[0]} = {state} tuple({', '.join(start)})")
        body.line(f"{names[1]} = {state} while({names[0]}), condition={condition}, body={inside.name}")
        for number, value in enumerate(carried):
            body.emit(value.kind, value.dims, f"get-tuple-element({names[1]}), index={number + 2}")
        if self.chance(0.3):
            body.emit("s32", (), f"get-tuple-element({names[1]}), index=0")

    def calm(self, body: _Body) -> None:
        """Keep a carried value small, so that loops may come to rest or go round in circles."""
        found = self.of_kinds(body, "f32 f64")
        if found:
            value = self.pick(found)
            half = body.emit(value.kind, value.dims, f"tanh({value.name})")
            body.emit(value.kind, value.dims, f"multiply({half.name}, {self.spread_scalar(body, half).name})")

    def accumulate(self, body: _Body, leaves: Sequence[Value]) -> None:
        """A product that is added to a carried matrix."""
        square = [leaf for leaf in leaves if len(leaf.dims) == 2 and leaf.kind in ("f32", "f64")]
        if square:
            total = self.pick(square)
            rows, columns = total.dims
            narrow = [value for value in body.values if value.kind == total.kind and value.dims == total.dims]
            operand = self.pick(narrow)
            other = body.emit(total.kind, (columns, columns), f"dot({operand.name}, {self.pick(narrow).name}), "
                              "lhs_contracting_dims={0}, rhs_contracting_dims={0}")  # fmt: skip
            product = body.emit(total.kind, (rows, columns), f"dot({operand.name}, {other.name}), "
                                "lhs_contracting_dims={1}, rhs_contracting_dims={0}")  # fmt: skip
            body.emit(total.kind, total.dims, f"add({total.name}, {product.name})")

    def condition(self, how: str, state: str, carried: Sequence[Value], pace: int) -> str:
        body = _Body(self, f"condition_{self.fresh()}")
        body.line(f"state = {state} parameter(0)")
        counter = body.emit("s32", (), "get-tuple-element(state), index=0", keep=False)
        bound = body.emit("s32", (), "get-tuple-element(state), index=1", keep=False)
        if how in ("known", "short"):
            # The bound is a constant within the condition, as loops of known length have it.
            bound = body.scalar("s32", str(int(self.random.integers(1, 7))) if how == "short" else "21")
        if how == "data" and carried[0].kind in ("f32", "f64") and carried[0].dims:
            value = body.emit(carried[0].kind, carried[0].dims, "get-tuple-element(state), index=2", keep=False)
            zero = body.scalar(value.kind, "0")
            axes = ",".join(map(str, range(len(value.dims))))
            reducer = self.reducer("add", value.kind)
            total = body.emit(
                value.kind, (), f"reduce({value.name}, {zero.name}), dimensions={{{axes}}}, to_apply={reducer}"
            )
            few = body.emit("pred", (), f"compare({total.name}, {body.scalar(value.kind, '30').name}), direction=LT")
            more = body.emit("pred", (), f"compare({counter.name}, {bound.name}), direction=LT")
            self.computations.append(body.finish(f"and({few.name}, {more.name})", "pred[]"))
        else:
            if pace < 0:
                bound = body.scalar("s32", self.pick(["0", "17", "20"]))
            self.computations.append(body.finish(self.comparison(counter, bound, pace), "pred[]"))
        return body.name

    def comparison(self, counter: Value, bound: Value, pace: int) -> str:
        """Whether a loop goes on; a loop that only asks for a number that it never meets would not end."""
        directions = ["LT", "LT", "LE"] if pace > 1 else ["LT", "LT", "LE", "NE"] if pace > 0 else ["GT", "GE"]
        direction = self.pick(directions)
        if self.chance(0.3):
            turned = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "NE": "NE"}[direction]
            return f"compare({bound.name}, {counter.name}), direction={turned}"
        return f"compare({counter.name}, {bound.name}), direction={direction}"

    # Devices

    def exchange(self, body: _Body) -> None:
        value = self.pick(self.of_kinds(body, "f32 f64 bf16 s32") or body.values)
        if value.kind in ("pred", "c64"):
            return
        self.channel += 1
        groups = ",".join(map(str, range(self.devices)))
        if self.chance(0.6):
            reducer = self.reducer("add", value.kind)
            body.emit(
                value.kind,
                value.dims,
                f"all-reduce({value.name}), channel_id={self.channel}, replica_groups={{{{{groups}}}}}, "
                f"use_global_device_ids=true, to_apply={reducer}",
            )
        else:
            pairs = ",".join(f"{{{k},{(k + 1) % self.devices}}}" for k in range(self.devices))
            if self.chance(0.5):
                start = self.fresh()
                body.line(
                    f"{start} = ({value.shape}, {value.shape}, u32[], u32[]) collective-permute-start({value.name}), "
                    f"channel_id={self.channel}, source_target_pairs={{{pairs}}}"
                )
                body.emit(value.kind, value.dims, f"collective-permute-done({start})")
                return
            body.emit(
                value.kind,
                value.dims,
                f"collective-permute({value.name}), channel_id={self.channel}, source_target_pairs={{{pairs}}}",
            )

    def device_number(self, body: _Body) -> None:
        number = body.emit("u32", (), "partition-id()", keep=False)
        kind = self.pick(["f32", "s32"])
        body.emit(kind, (), f"convert({number.name})")


def random_program(seed: int, *, length: int = 12, devices: int | None = None) -> RandomProgram:
    """The program of a seed: some `length` steps, for as many devices as asked (else mostly one, at times several)."""
    if devices is None:
        devices = (1, 1, 1, 1, 1, 1, 2, 4)[seed % 8]
    return _Writer(seed, devices, length).write()
