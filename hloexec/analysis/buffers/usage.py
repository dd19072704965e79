"""The sizes of values, and the memory that they need while a module runs as scheduled, or as hloexec runs it.

The number of bytes of a value on the machine that a module was compiled for, from its shape and layout alone. An array
takes its elements as the layout stores them: tiles padded to whole ones, `E(bits)` packed, `L(n)` padded to a multiple
of n elements, `M(bytes)` as a prefix. An inner node of a tuple is a table of pointers. Source: XLA, "Tiled layout";
pointer widths as in XLA's dumps.

Every value has a size, a memory space and a live range; values that share a buffer count once. Buffers get no
addresses, so a compiler that packs them needs at least as much, unless it lets a result reuse the buffer of an operand
that dies with it, which the live ranges count as live at the same time.

The memory that a run of hloexec needs, as opposed to that of a compiled program. hloexec stores the result of every
instruction, including those inside fusions, but no padding; it frees values after their last use, and passes values
that a caller keeps without copying them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from math import prod

from hloexec.analysis.buffers.dataflow import analyse, flatten
from hloexec.analysis.buffers.live_ranges import lifetimes
from hloexec.core.arguments import require_module
from hloexec.core.ir import (
    UNBOUNDED,
    ArrayShape,
    BufferShape,
    FirstElement,
    Layout,
    Module,
    Shape,
    TupleShape,
    subshapes,
)
from hloexec.core.structs import frozen, told
from hloexec.core.values import Described, Ints, Pairs
from hloexec.engine.exec.running import plan_of
from hloexec.engine.plan.memory import entry_peak_bytes
from hloexec.errors import ResourceError, UnsupportedError, unwarned
from hloexec.language.text.dumps.lines import index_text
from hloexec.language.verifier import verify
from hloexec.ops.registry import Role, role_of

_COMBINED = -1
_EXTENT_BYTES = 4
"""A dynamic array is followed by the size of each dimension."""


@frozen
class Target:
    """How a backend stores tuples: bytes of a pointer, and what the table is padded to a multiple of."""

    name: str
    pointer_bytes: int
    """The size of a pointer."""
    table_alignment: int
    """What the sizes of tables of pointers are multiples of."""


PLAIN = Target("cpu or gpu", 8, 1)
TPU = Target("tpu", 4, 32)


def target_of(module: Module) -> Target:
    """Which kind of machine a module was compiled for: arrays in two-dimensional tiles mean a TPU."""
    for instruction in module.entry:
        for _, shape in subshapes(instruction.shape):
            if isinstance(shape, ArrayShape) and shape.layout and any(len(tile) > 1 for tile in shape.layout.tiles):
                return TPU
    return PLAIN


def byte_size(shape: Shape, target: Target) -> int:
    """Bytes of the value itself: of a tuple, the table of pointers without what they point to.

    A dimension without a bound counts as one element; tokens take nothing.
    """
    if isinstance(shape, TupleShape):
        return _rounded_up(target.pointer_bytes * len(shape.elements), target.table_alignment)
    shape = shape.array_shape
    if not shape.is_array:
        return 0 if shape.is_token else target.pointer_bytes
    layout = shape.layout or Layout()
    sizes = tuple(1 if size == UNBOUNDED else size for size in shape.dimensions)
    if len(layout.minor_to_major) == len(sizes):
        sizes = tuple(sizes[dimension] for dimension in reversed(layout.minor_to_major))
    for tile in layout.tiles:
        sizes = _tiled(sizes, tile)
    count = _rounded_up(prod(sizes), max(1, layout.tail_padding_alignment_in_elements))
    bits = layout.element_size_in_bits or max(8, shape.element_type.bits)
    prefix = layout.dynamic_shape_metadata_prefix_bytes
    extents = _EXTENT_BYTES * shape.rank if shape.is_dynamic and not prefix else 0
    return prefix + -(-count * bits // 8) + extents


def _tiled(sizes: Ints, tile: Ints) -> Ints:
    """Dimensions from major to minor after one tile: `[m, n]` with `(t, u)` is `[⌈m/t⌉, ⌈n/u⌉, t, u]`.

    A tile dimension `*` joins the dimension to the next more minor one.
    """
    sizes = (1,) * (len(tile) - len(sizes)) + sizes
    major = sizes[: len(sizes) - len(tile)]
    counts: list[int] = []
    extents: list[int] = []
    carried = 1
    for size, extent in zip(sizes[len(major) :], tile, strict=True):
        carried *= size
        if extent != _COMBINED:
            counts.append(-(-carried // max(1, extent)))
            extents.append(max(1, extent))
            carried = 1
    return (*major, *counts, *extents)


def _rounded_up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple


def memory_space(shape: Shape) -> int:
    """The memory space of a value's layout, which is its color in a buffer assignment; 0 for tables of pointers."""
    if isinstance(shape, BufferShape):
        shape = shape.element
    return shape.layout.memory_space if isinstance(shape, ArrayShape) and shape.layout is not None else 0


@frozen
class LiveValue:
    """A value: what an instruction defines at an index of its shape, and when it is needed.

    `byte_size` is in bytes as the target's layout stores it, a tuple's being that of its table of pointers; `color` is
    its memory space; `start` and `end` are positions in the schedule, both included; values of one `buffer` share
    memory. A phi represents one of several values where control flow joins.
    """

    computation: str
    instruction: str
    index: Ints
    shape: Shape
    instruction_shape: Shape
    """The shape of the whole result of the instruction, as HLO text."""
    byte_size: int
    """How many bytes it takes as the target lays it out; of a tuple, its table of pointers."""
    color: int
    """The memory space."""
    start: int
    """The first position in the schedule at which it is needed."""
    end: int
    """The last one."""
    buffer: int
    """Values of the same buffer share memory."""
    is_phi: bool
    """Whether it stands for one of several values where control flow joins."""

    @property
    def key(self) -> tuple[str, Ints]:
        return self.instruction, self.index

    @property
    def label(self) -> str:
        """`instruction` or, where it makes a tuple, `instruction{index}`."""
        if self.instruction_shape is self.shape and not self.index and self.instruction_shape.is_array:
            return self.instruction
        return f"{self.instruction}{index_text(self.index)}"


@frozen
class Peak:
    """The most bytes at once, and the first position in the schedule where that is so."""

    bytes: int
    """How many bytes."""
    time: int
    """The position in the schedule."""


@frozen(slots=False)
class MemoryUsage(Described):
    """The result of `memory_usage`. Bytes are those of one device."""

    module_name: str
    """The module's name."""
    is_scheduled: bool
    """Whether the order of instructions is that of execution."""
    target: Target
    """What the module is compiled for."""
    sequence: Pairs
    """The instructions in order, as names of computation and instruction; computations that control flow calls stand
    before the instruction that calls them."""
    values: tuple[LiveValue, ...]
    """All values, with when they live."""
    parameter_bytes: int
    """The size of all parameters."""
    output_bytes: int
    """The size of the outputs."""

    def __str__(self) -> str:
        peak = self.peak
        return f"{self.module_name}: at most {peak.bytes} bytes alive at once, at %{self.instruction_at(peak.time)}"

    @cached_property
    @told
    def peak(self) -> Peak:
        """Where most is alive, all memory spaces together."""
        return highest(self.values, len(self.sequence))

    @property
    @told
    def peak_instruction(self) -> str | None:
        """The instruction at which that is."""
        return self.instruction_at(self.peak.time) if self.peak.bytes else None

    @cached_property
    @told
    def peak_by_color(self) -> dict[int, Peak]:
        """Where most is alive in each memory space."""
        by_color: dict[int, list[LiveValue]] = {}
        for value in sorted(self.values, key=lambda value: value.color):
            by_color.setdefault(value.color, []).append(value)
        return {color: highest(values, len(self.sequence)) for color, values in by_color.items()}

    def alive_at(self, time: int) -> list[LiveValue]:
        """The buffers alive at a position, each by its largest value there, largest first."""
        largest_by_buffer: dict[int, LiveValue] = {}
        for value in self.values:
            if value.start <= time <= value.end:
                largest_value = largest_by_buffer.get(value.buffer)
                if largest_value is None or value.byte_size > largest_value.byte_size:
                    largest_by_buffer[value.buffer] = value
        return sorted(largest_by_buffer.values(), key=lambda value: (-value.byte_size, value.instruction, value.index))

    def bytes_at(self, time: int) -> int:
        """The bytes that are alive at a position in the schedule."""
        return sum(value.byte_size for value in self.alive_at(time))

    def instruction_at(self, time: int) -> str:
        """The name of the instruction at a position; the end of the program is where its last one is."""
        return self.sequence[min(time, len(self.sequence) - 1)][1] if self.sequence else ""


def memory_usage(module: Module) -> MemoryUsage:
    """Compute the live ranges of all values of a module, and the memory that they need.

    The order of instructions is that of the text if the module is scheduled, otherwise the order in which hloexec runs
    them. Raises VerificationError if the module is not well-formed.
    """
    require_module(module)
    verify(module)
    flat = flatten(module)
    dataflow = analyse(module, flat)
    lives = lifetimes(module, flat, dataflow)
    target = target_of(module)
    buffer_of = {number: buffer for buffer, group in enumerate(lives.groups) for number in group}
    values = tuple(
        LiveValue(
            computation=value.place.computation,
            instruction=value.place.instruction,
            index=value.place.index,
            shape=value.shape,
            instruction_shape=value.instruction.shape,
            byte_size=byte_size(value.shape, target),
            color=memory_space(value.shape),
            start=lives.spans[value.number][0],
            end=lives.spans[value.number][1],
            buffer=buffer_of[value.number],
            is_phi=value.is_phi,
        )
        for value in dataflow.values
    )
    entry = module.entry
    parameters = {parameter.name for parameter in entry.parameters}
    shown = dataflow.at[entry.name, entry.root_name].values()
    outputs = {buffer_of[value.number] for group in shown for value in group}
    return MemoryUsage(
        module_name=module.name,
        is_scheduled=module.is_scheduled,
        target=target,
        sequence=tuple((computation.name, instruction.name) for computation, instruction in flat.sequence),
        values=values,
        parameter_bytes=sum(
            value.byte_size for value in values if value.computation == entry.name and value.instruction in parameters
        ),
        output_bytes=sum(max(values[number].byte_size for number in lives.groups[buffer]) for buffer in outputs),
    )


def highest(values: Sequence[LiveValue], end: int) -> Peak:
    """The most bytes that the buffers of some values take at once, in a schedule of `end` instructions.

    A buffer takes at any time what its largest value takes that is alive.
    """
    changes = [0] * (end + 2)
    by_buffer: dict[int, list[LiveValue]] = {}
    for value in values:
        by_buffer.setdefault(value.buffer, []).append(value)
    for members in by_buffer.values():
        before = 0
        for time in sorted({value.start for value in members} | {value.end + 1 for value in members}):
            alive = max((value.byte_size for value in members if value.start <= time <= value.end), default=0)
            changes[time] += alive - before
            before = alive
    peak, live = Peak(0, 0), 0
    for time in range(end + 1):
        live += changes[time]
        if live > peak.bytes:
            peak = Peak(live, time)
    return peak


@frozen
class RunEstimate:
    """The most bytes that a run allocates beyond its inputs, on one device, and the instruction where it does."""

    bytes: int
    """How many bytes."""
    instruction: str | None


def run_estimate(module: Module, *, verify: bool = True) -> RunEstimate | None:
    """What `hloexec.run` is estimated to allocate; None where the module needs what hloexec does not have.

    Raises VerificationError where the module is not well-formed; with `verify=False` it has been verified.
    """
    # The substitutes for unknown constants do not affect the memory of a run.
    with unwarned():
        try:
            plan = plan_of(module, verify=verify)
        except UnsupportedError:
            return None
        except ResourceError:
            sizes = {name: sum(sizes) for name, sizes in _constants_to_make(module)}
            largest = max(sizes, key=lambda name: sizes[name], default=None)
            return RunEstimate(sum(sizes.values()), largest)
        peak = entry_peak_bytes(plan)
    return RunEstimate(peak, None if plan.peak_step is None else plan.peak_step.instruction.name)


def _constants_to_make(module: Module) -> Iterator[tuple[str, list[int]]]:
    """The constants that take memory only in a run, which is too large for a plan, with the bytes of their leaves."""
    for computation in module:
        for instruction in computation:
            if role_of(instruction) is Role.CONSTANT:
                leaves = instruction.attributes.literal.leaves()
                yield instruction.name, [leaf.shape.byte_size for leaf in leaves if isinstance(leaf.held, FirstElement)]
