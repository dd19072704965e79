"""Registration of a matrix routine under its custom-call targets on GPUs.

jaxlib's GPU calls exist in two forms. The typed one, `cusolver_getrf_ffi`, has parameters as attributes. The older one,
`cusolver_getrf`, has them in a C structure, the bytes of the backend_config, and returns workspaces among its results.
One target serves all element types. AMD's (`hipsolver_…`) and Intel's (`oneapisolver_…`) libraries have the same calls
under other names, with their own numbers for the same enumerations.
"""

from __future__ import annotations

import inspect
import struct
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import attrs

from hloexec.core.ir import ArrayShape, Instruction, Shape, parts_of
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.errors import UnsupportedError
from hloexec.ops.common import array_shape, require
from hloexec.ops.library_calls.ffi import bytes_of_config, checked_attributes
from hloexec.ops.library_calls.linalg.matrix_routines import (
    PRECISIONS,
    MatrixRoutine,
    fields_of,
    reason_without_scipy,
    register,
)
from hloexec.ops.library_calls.shapes import shapes_of

Options = Mapping[str, Any]

VENDORS = ("cu", "hip", "oneapi")
"""What targets begin with: NVIDIA's, AMD's and Intel's."""

FLAGS = (True, False)

_LETTERS = {element: letter for letter, element in PRECISIONS.items()}
_TYPES = tuple(_LETTERS)


@frozen
class Descriptor:
    """The C structure of an older call: `struct` codes, and its members' names in order.

    Members that repeat what the shapes say (type, batch, m, n, k) must agree with them. The sizes of workspaces and
    leading dimensions change no value.
    """

    layout: str
    members: str
    shorter: tuple[str, ...] = ()
    """Layouts of versions that lack the last members."""

    def read(self, data: bytes) -> dict[str, object]:
        """The members; UnsupportedError for a structure of another size."""
        for layout in (self.layout, *self.shorter):
            # C pads a structure to a multiple of its largest member.
            if len(data) in (struct.calcsize(f"@{layout}"), struct.calcsize(f"@{layout}0q")):
                return dict(zip(self.members.split(), struct.unpack_from(f"@{layout}", data), strict=False))
        raise UnsupportedError(
            f"its backend_config must be a structure of {struct.calcsize('@' + self.layout)} bytes ({self.members}), "
            f"but has {len(data)}"
        )


def enumeration(values: Mapping[int, Any]) -> Callable[[Options, str], Any]:
    """Reads a member that is one of an enumeration's numbers; vendors number from other bases, so none is ambiguous."""

    def read(members: Options, name: str) -> Any:
        if members[name] not in values:
            raise UnsupportedError(f"{name} of its backend_config is {members[name]}, which hloexec does not know")
        return values[members[name]]

    return read


@frozen
class Spelling:
    """One way to write a call.

    `read` gives LAPACK's options from the attributes or members; `results` may depend on these options.
    """

    name: str
    """What follows the vendor: `solver_getrf_ffi`."""
    results: str | Callable[[Options], str]
    attributes: Mapping[str, Any] | Descriptor = attrs.field(factory=dict)
    read: Callable[[Options], Options] = lambda found: {}

    def members(self, backend_config: str | None) -> Options:
        if isinstance(self.attributes, Descriptor):
            return self.attributes.read(bytes_of_config(backend_config))
        return checked_attributes(backend_config, self.attributes)


@frozen(eq=False)
class _Target:
    target: str
    spelling: Spelling
    names: Mapping[str, str]
    """SciPy's names of the routine, for `real` and `complex`; one may be missing."""
    operands: str
    compute: Callable[..., Mapping[str, Any]]

    def config(self, instruction: Instruction) -> tuple[Options, Options]:
        """The attributes or members, and LAPACK's options that they stand for."""
        members = self.spelling.members(instruction.backend_config)
        return members, self.spelling.read(members)

    def supports(self, instruction: Instruction) -> str | None:
        by_columns = not self.config(instruction)[1].get("is_transposed", False)
        return reason_against_layouts(instruction, by_columns) or reason_without_scipy()

    def infer(self, *operands: Shape, config: tuple[Options, Options], shape: Shape) -> Shape:
        members, options = config
        self._routine(operands, options).check(operands, shape)
        if isinstance(self.spelling.attributes, Descriptor):
            self._check_members(operands, members)
        return shape

    def evaluate(self, *operands: Array, config: tuple[Options, Options], shape: Shape) -> Any:
        shapes = shapes_of(operands)
        self.infer(*shapes, config=config, shape=shape)
        return self._routine(shapes, config[1]).run(operands, config[1], shape)

    def _routine(self, operands: Sequence[Shape], options: Options) -> MatrixRoutine:
        require(bool(operands), f"{self.target} must have operands")
        scalar = array_shape(operands[0], f"an operand of {self.target}").element_type.name
        kind = "complex" if scalar in ("c64", "c128") else "real"
        taken = [name for name in _TYPES if ("complex" if name.startswith("c") else "real") in self.names]
        require(scalar in taken, f"{self.target} must be given one of {', '.join(taken)}, but its type is {scalar}")
        results = self.spelling.results
        return MatrixRoutine(
            target=self.target,
            scipy_name=f"{_LETTERS[scalar]}{self.names[kind]}",
            scalar=scalar,
            operands=fields_of(self.operands),
            results=fields_of(results if isinstance(results, str) else results(options)),
            compute=self.compute,
            allows_workspaces=isinstance(self.spelling.attributes, Descriptor),
        )

    def _check_members(self, operands: Sequence[Shape], members: Mapping[str, object]) -> None:
        arrays = [array_shape(operand, f"an operand of {self.target}") for operand in operands]
        fields = fields_of(self.operands)
        known = {"type": _TYPES.index(arrays[0].element_type.name)}
        known["batch"] = prod(arrays[0].dimensions[: arrays[0].rank - len(fields[0].dims)])
        for field, array in zip(fields, arrays, strict=True):
            own = array.dimensions[array.rank - len(field.dims) :]
            known = dict(zip(field.dims, own, strict=True)) | known
        for name in ("type", "batch", "m", "n", "k"):
            require(
                name not in members or name not in known or members[name] == known[name],
                f"the backend_config of {self.target} has {name} = {members.get(name)}, but its operands have "
                f"{name} = {known.get(name)}",
            )


def reason_against_layouts(instruction: Instruction, by_columns: bool) -> str | None:
    """Why matrices that lie in memory as declared are others to the library, which knows only columns, or rows.

    Matrices are the arrays of most dimensions; those without a layout, or of one row or column, are as they ought.
    """
    operands = instruction.attributes.operand_layout_constraints or ()
    arrays = [array for array in (*operands, *parts_of(instruction.shape)) if isinstance(array, ArrayShape)]
    rank = max((array.rank for array in arrays), default=0)
    for array in arrays:
        if array.rank < max(rank, 2) or array.layout is None or 1 in array.dimensions[-2:]:
            continue
        if array.layout.minor_to_major[:1] not in ((), (rank - 1 - by_columns,)):
            order = "columns" if by_columns else "rows"
            return f"its library expects {order}, but {array} is stored in another order"
    return None


def register_solver(
    names: Mapping[str, str] | str,
    operands: str,
    *spellings: Spelling,
    compute: Callable[..., Mapping[str, Any]],
    source: str = "LAPACK Users' Guide; jaxlib, gpu/solver_kernels_ffi; NVIDIA, cuSOLVER.",
) -> None:
    """Register a routine of one matrix under all vendors' names for its spellings.

    `names` are SciPy's, by `real` and `complex` where they differ; `operands` and results are written as `fields_of`
    reads them. `compute` is given a `Call` and the matrices. Its docstring is the entries'.
    """
    by_kind = {"real": names, "complex": names} if isinstance(names, str) else names
    documentation = f"{inspect.getdoc(compute) or ''}\n\nSource: {source}"
    for spelling in spellings:
        for vendor in VENDORS:
            target = f"{vendor}{spelling.name}"
            register(target, _Target(target, spelling, by_kind, operands, compute), documentation)
