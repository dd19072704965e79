"""Kernels as hloexec has them: MLIR operations with types, attributes, regions and where in the source they stand.

Values are numbered throughout a kernel, in the order in which they are defined. Nothing here is an object of jaxlib's.
Integers of MLIR have no sign; their arrays are of the signed type, and operations that are unsigned see them so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property, lru_cache
from typing import Any

from hloexec.core.dtypes import ELEMENT_TYPES, ElementType
from hloexec.core.ir import ArrayShape
from hloexec.core.structs import frozen
from hloexec.core.wording import quoted
from hloexec.errors import UnsupportedError

DYNAMIC = -(2**63)
"""The size of a dimension that is known when the kernel runs."""
_SHAPED = re.compile(r"(vector|memref|tensor)<((?:(?:\d+|\?)x)*)([^,>]+(?:<[^>]*>)?)(?:, (.*))?>")
_SPACE = re.compile(r"#tpu\.memory_space<(\w+)>")
_SEMAPHORES = ("!tpu.semaphore", "!tpu.dma_semaphore")


@frozen
class MlirType:
    """The type of a value: of a scalar, a vector, a tensor, or a memref, which is a view of memory."""

    text: str
    """As MLIR writes it."""
    kind: str
    """`scalar`, `vector`, `tensor`, `memref`; `other` for all else."""
    element: str
    """The element type as MLIR writes it."""
    dimensions: tuple[int, ...] = ()
    memory_space: str = ""
    """Of a memref: `vmem`, `smem`, `hbm`, `any`, `semaphore_mem`…; empty where it says none."""

    @property
    def is_scalar(self) -> bool:
        return self.kind == "scalar"

    @property
    def is_integer(self) -> bool:
        """Whether elements are integers, i1 and index included."""
        return self.element == "index" or bool(re.fullmatch(r"[su]?i\d+", self.element))

    @property
    def is_semaphore(self) -> bool:
        return self.element in _SEMAPHORES

    @property
    def bits(self) -> int:
        """Width of an element as the kernel counts it: 1 for i1."""
        return 1 if self.element == "i1" else self.element_type.bits

    @cached_property
    def element_type(self) -> ElementType:
        """Of the arrays that hold elements; UnsupportedError where hloexec has none."""
        name = {"index": "s64", "i1": "pred"}.get(self.element)
        if name is None:
            name = "s32" if self.is_semaphore else re.sub(r"^i(?=\d)", "s", self.element).lower()
            name = re.sub(r"^ui(?=\d)", "u", re.sub(r"^si(?=\d)", "s", name))
        if name not in ELEMENT_TYPES or not ELEMENT_TYPES[name].is_array:
            raise UnsupportedError(f"it has values of type {self.text}, which hloexec does not have")
        return ELEMENT_TYPES[name]

    @property
    def shape(self) -> ArrayShape:
        return ArrayShape(self.element_type, self.dimensions)


@lru_cache(maxsize=4096)
def parse_type(text: str) -> MlirType:
    """A type as MLIR writes it: `f32`, `index`, `vector<8x128xf32>`, `memref<8x?xi32, #tpu.memory_space<smem>>`."""
    match = _SHAPED.fullmatch(text)
    if match is None:
        is_scalar = re.fullmatch(r"index|[su]?i\d+|b?f\d\w*", text) is not None
        return MlirType(text, "scalar" if is_scalar else "other", text)
    kind, sizes, element, rest = match.groups()
    dimensions = tuple(DYNAMIC if size == "?" else int(size) for size in sizes.split("x")[:-1])
    space = _SPACE.search(rest or "")
    return MlirType(text, kind, element, dimensions, "" if space is None else space[1])


@frozen
class Elements:
    """The attribute of a constant vector: all elements in row-major order, or one that all are."""

    type: MlirType
    elements: tuple[Any, ...]


@frozen
class Text:
    """An attribute as MLIR writes it, `#tpu.contract_precision<fp32>`."""

    text: str

    @property
    def word(self) -> str:
        """What stands between the angle brackets, or all of it."""
        match = re.fullmatch(r"[^<]*<(.*)>", self.text, re.DOTALL)
        return self.text if match is None else match[1]


@frozen(eq=False)
class Operation:
    """One operation; `operands` and `results` are numbers of values."""

    name: str
    operands: tuple[int, ...]
    operand_types: tuple[MlirType, ...]
    results: tuple[int, ...]
    result_types: tuple[MlirType, ...]
    attributes: Mapping[str, Any]
    regions: tuple[Region, ...]
    source: str
    """`file:line:column` of the program's innermost frame; empty where it is not known."""

    @property
    def place(self) -> str:
        """The name and the source, for messages."""
        return f"{self.name} at {self.source}" if self.source else self.name

    @property
    def result_type(self) -> MlirType:
        return self.result_types[0]

    def word(self, attribute: str, default: str = "") -> str:
        """An enumerated attribute as a word."""
        value = self.attributes.get(attribute, default)
        return value.word if isinstance(value, Text) else str(value)

    def segments(self) -> list[tuple[int, ...]]:
        """The places of operands, by the groups that `operandSegmentSizes` says they belong to."""
        sizes = self.attributes["operandSegmentSizes"]
        ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
        return [tuple(range(end - size, end)) for end, size in zip(ends, sizes, strict=True)]


@frozen(eq=False)
class Region:
    """One block: its arguments, and its operations, the last of which ends it."""

    arguments: tuple[int, ...]
    argument_types: tuple[MlirType, ...]
    operations: tuple[Operation, ...]


@frozen(eq=False)
class Kernel:
    """A kernel: its functions by name, of which `main` has the body; the others say which blocks are moved."""

    name: str
    main: Operation
    functions: Mapping[str, Operation]
    value_count: int

    @property
    def body(self) -> Region:
        return self.main.regions[0]

    def operations(self) -> Iterator[Operation]:
        """All operations of all functions, those within regions behind the one that has them."""
        pending = [*self.functions.values()][::-1]
        while pending:
            operation = pending.pop()
            if not operation.name.endswith(".func"):
                yield operation
            inner = [item for region in operation.regions for item in region.operations]
            pending += reversed(inner)

    def describe(self) -> str:
        return f"kernel {quoted(self.name)}"
