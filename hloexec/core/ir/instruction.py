"""Instructions, computations and modules, and the windows that instructions carry.

Geometry that attributes carry: windows, padding, slices, convolution dimension numbers. Names follow XLA's text: the
input of a windowed operation is `lhs` (base), the window is `rhs`.

References are names, as in the text: an instruction names its operands (in its own computation) and, in its attributes,
the computations it calls. All of it is immutable and compares by value; source spans do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from importlib import import_module
from typing import Any, NamedTuple

import attrs

from hloexec.core.ir.metadata import Metadata, OriginalValue, StackFrames, Statistics
from hloexec.core.ir.shape import Shape
from hloexec.core.ir.sharding import Sharding
from hloexec.core.structs import frozen
from hloexec.core.values import Described, Ints, Pairs
from hloexec.core.wording import counted
from hloexec.errors import VerificationError


@frozen
class WindowDimension:
    """One dimension of a window.

    The input is dilated by `base_dilation` (`lhs_dilate`), then padded (negative padding crops), then visited every
    `stride` elements by a window of `size` taps that lie `window_dilation` (`rhs_dilate`) apart, in reversed order
    where `window_reversal`.
    """

    size: int
    stride: int = 1
    padding_low: int = 0
    padding_high: int = 0
    base_dilation: int = 1
    window_dilation: int = 1
    window_reversal: bool = False


@frozen
class Window:
    """A window, one entry per dimension; empty for an operation without window."""

    dimensions: tuple[WindowDimension, ...] = ()


@frozen
class PaddingDimension:
    """Padding of one dimension: `low_high_interior`; low and high may be negative (they crop)."""

    edge_padding_low: int
    edge_padding_high: int
    interior_padding: int = 0


@frozen
class SliceDimension:
    """The half-open range `[start:limit:stride]` of one dimension."""

    start: int
    limit: int
    stride: int = 1


@frozen
class ConvolutionDimensionNumbers:
    """Which dimension plays which role, e.g. `b01f_01io->b01f`.

    A dimension labelled `?` has no role (custom calls use it); the rank of each side is kept because of it.
    """

    input_batch_dimension: int
    input_feature_dimension: int
    input_spatial_dimensions: Ints
    kernel_input_feature_dimension: int
    kernel_output_feature_dimension: int
    kernel_spatial_dimensions: Ints
    output_batch_dimension: int
    output_feature_dimension: int
    output_spatial_dimensions: Ints
    input_rank: int
    kernel_rank: int
    output_rank: int


class Span(NamedTuple):
    """A half-open range of character offsets in the text a module was read from."""

    start: int
    end: int


@frozen(kw_only=True)
class Instruction(Described):
    """`name = shape opcode(operands), attributes…`.

    `attributes` is an instance of the class that the opcode's registry entry names (None if the opcode has no
    attributes of its own); attributes that any instruction may have are separate fields. `backend_config` is kept
    verbatim: as the decoded string if it was quoted, as the text with its braces if it was a dictionary. For an opcode
    that this version does not know, `unknown_operands` has the text of the operand list if it is not a list of names,
    and `unknown_attributes` has all attributes.
    """

    name: str
    shape: Shape
    opcode: str
    operands: tuple[str, ...] = ()
    attributes: Any = None
    metadata: Metadata | None = None
    backend_config: str | None = None
    sharding: Sharding | None = None
    frontend_attributes: Pairs | None = None
    control_predecessors: tuple[str, ...] = ()
    parameter_replication: tuple[bool, ...] | None = None
    statistics: Statistics | None = None
    original_value: OriginalValue | None = None
    unknown_operands: str | None = None
    unknown_attributes: Pairs = ()
    span: Span | None = attrs.field(default=None, eq=False)

    @property
    def op_name(self) -> str | None:
        """The name that a framework gave it."""
        return self.metadata.op_name if self.metadata is not None else None

    def __str__(self) -> str:
        return f"%{self.name} = {self.shape} {self.opcode}({', '.join(f'%{name}' for name in self.operands)})"


@frozen(kw_only=True, slots=False)
class Computation(Described):
    """A list of instructions, one of which is the root."""

    name: str
    instructions: tuple[Instruction, ...]
    root_name: str
    execution_thread: str = "main"
    span: Span | None = attrs.field(default=None, eq=False)

    @cached_property
    def by_name(self) -> dict[str, Instruction]:
        """The instructions by name."""
        return {instruction.name: instruction for instruction in self.instructions}

    @property
    def root(self) -> Instruction:
        """The instruction whose value is the result."""
        instruction = self.by_name.get(self.root_name)
        if instruction is None:
            raise VerificationError(f"computation '{self.name}': the root '{self.root_name}' does not exist")
        return instruction

    @cached_property
    def parameters(self) -> tuple[Instruction, ...]:
        """The parameter instructions in the order of their numbers."""
        parameters = [instruction for instruction in self.instructions if instruction.opcode == "parameter"]
        try:
            return tuple(sorted(parameters, key=lambda instruction: instruction.attributes.number))
        except AttributeError as error:
            raise VerificationError(f"computation '{self.name}': a parameter lacks its attributes") from error

    @cached_property
    def parameter_shapes(self) -> tuple[Shape, ...]:
        return tuple(parameter.shape for parameter in self.parameters)

    @property
    def result_shape(self) -> Shape:
        """The shape of the root."""
        return self.root.shape

    @cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """The instructions that have an instruction as an operand, by its name."""
        users: dict[str, list[Instruction]] = {instruction.name: [] for instruction in self}
        for instruction in self:
            for name in dict.fromkeys(instruction.operands):
                users[name].append(instruction)
        return users

    def operands_of(self, instruction: Instruction) -> tuple[Instruction, ...]:
        """The instructions that `instruction` names as its operands."""
        by_name = self.by_name
        return tuple(by_name[name] for name in instruction.operands)

    def __str__(self) -> str:
        parameters = ", ".join(map(str, self.parameter_shapes))
        return f"{self.name}: ({parameters}) -> {self.result_shape}, {counted(len(self), 'instruction')}"

    def __iter__(self) -> Iterator[Instruction]:
        return iter(self.instructions)

    def __len__(self) -> int:
        return len(self.instructions)


@frozen
class EntryLayout:
    """`entry_computation_layout={(parameters)->result}`."""

    parameters: tuple[Shape, ...]
    result: Shape


@frozen
class Alias:
    """One entry of `input_output_alias`: the output leaf that shares a parameter leaf's buffer."""

    output_index: Ints
    parameter_number: int
    parameter_index: Ints
    kind: str = "may-alias"


@frozen(kw_only=True, slots=False)
class Module(Described):
    """A whole HLO module.

    `computations` are in the order of the text, including the entry computation. `source` is the text that the module
    was read from, if any.
    """

    name: str
    computations: tuple[Computation, ...]
    entry_name: str
    is_scheduled: bool = False
    replica_count: int = 1
    num_partitions: int = 1
    input_output_alias: tuple[Alias, ...] = ()
    buffer_donor: tuple[tuple[int, Ints], ...] = ()
    alias_passthrough_params: bool = False
    entry_computation_layout: EntryLayout | None = None
    frontend_attributes: Pairs | None = None
    allow_spmd_sharding_propagation_to_parameters: tuple[bool, ...] = ()
    allow_spmd_sharding_propagation_to_output: tuple[bool, ...] = ()
    origin_recovery_table: str | None = None
    """Verbatim text of the table, braces included."""
    stack_frames: StackFrames | None = None
    unknown_attributes: Pairs = ()
    source: str | None = attrs.field(default=None, eq=False)
    filename: str = attrs.field(default="<string>", eq=False)

    @cached_property
    def by_name(self) -> dict[str, Computation]:
        """The computations by name."""
        return {computation.name: computation for computation in self.computations}

    @property
    def entry(self) -> Computation:
        """The computation that a run begins with."""
        computation = self.by_name.get(self.entry_name)
        if computation is None:
            raise VerificationError(f"module '{self.name}': the entry computation '{self.entry_name}' does not exist")
        return computation

    @property
    def instruction_count(self) -> int:
        """How many instructions all computations have."""
        return sum(map(len, self.computations))

    def to_jax(self) -> Callable[..., Any]:
        """The module as a function of JAX (`hloexec.jax.to_jax`), which stands above it and is imported by name."""
        return import_module("hloexec.jax.reverse").to_jax(self)  # type: ignore[no-any-return]

    def __str__(self) -> str:
        instructions = counted(self.instruction_count, "instruction")
        return f"{self.name}: {instructions} in {counted(len(self.computations), 'computation')}"

    def __iter__(self) -> Iterator[Computation]:
        return iter(self.computations)
