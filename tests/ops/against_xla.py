"""Single instructions, run by hloexec's kernels and by XLA:CPU, and compared bit for bit.

Cases are put into one module each time, since compiling a module costs XLA far more than one more instruction.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from conformance import xla
from conformance.cell import shape_of
from hloexec.core.dtypes import element_type_of
from tests.ops.evaluation import evaluate

needs_xla = pytest.mark.skipif(not xla.available(), reason="jaxlib is not installed")


@dataclass
class Case:
    """One instruction: its operands, its result's shape as text, and what follows its operand list."""

    opcode: str
    operands: Sequence[np.ndarray[Any, Any]]
    result: str
    attributes: str = ""
    layouts: Sequence[str] = field(default_factory=tuple)


def module_text(cases: Sequence[Case], computations: str = "") -> str:
    """A module with one parameter per operand whose root is the tuple of the cases' results."""
    lines, results, number = [], [], 0
    for index, case in enumerate(cases):
        names = []
        for position, operand in enumerate(case.operands):
            layout = case.layouts[position] if case.layouts else ""
            lines.append(f"  p{number} = {shape_of(operand)}{layout} parameter({number})")
            names.append(f"p{number}")
            number += 1
        attributes = f", {case.attributes}" if case.attributes else ""
        lines.append(f"  r{index} = {case.result} {case.opcode}({', '.join(names)}){attributes}")
        results.append(f"r{index}")
    lines.append(f"  ROOT all = ({', '.join(case.result for case in cases)}) tuple({', '.join(results)})")
    return "\n".join(["HloModule cases", "", computations, "ENTRY main {", *lines, "}", ""])


def evaluated(text: str, inputs: Sequence[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
    """The leaves of hloexec's result; the kernels must leave their operands alone."""
    before = [value.tobytes() for value in inputs]
    stack, leaves = [evaluate(text, *inputs)], []
    while stack:
        value = stack.pop()
        if isinstance(value, tuple):
            stack.extend(reversed(value))
        else:
            leaves.append(value)
    assert before == [value.tobytes() for value in inputs], "a kernel changed an operand"
    return leaves


def restrided(array: np.ndarray[Any, Any], manner: int) -> np.ndarray[Any, Any]:
    """The same values in other places of memory: as they are, Fortran order, backwards, or inside a larger array."""
    if manner % 4 == 0 or array.ndim == 0:
        return array
    if manner % 4 == 1:
        return np.asfortranarray(array)
    if manner % 4 == 2:
        return np.flip(np.flip(array).copy())
    larger = np.zeros([size + 1 for size in array.shape], array.dtype)
    window = larger[tuple(map(slice, array.shape))]
    window[...] = array
    return window


def assert_same_as_xla(cases: Sequence[Case], computations: str = "") -> None:
    """The kernels' results have the same bits as XLA's, NaNs aside, which need only be NaNs at the same places."""
    text = module_text(cases, computations)
    inputs = [operand for case in cases for operand in case.operands]
    expected = xla.run_hlo(text, *inputs)
    actual = evaluated(text, [restrided(value, position) for position, value in enumerate(inputs)])
    for index, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
        line = next(line for line in text.splitlines() if line.startswith(f"  r{min(index, len(cases) - 1)} "))
        assert ours.shape == theirs.shape, line
        assert ours.dtype == theirs.dtype, line
        same = _bits(ours) == _bits(theirs)
        if element_type_of(ours.dtype).has_nan:
            with np.errstate(all="ignore"):
                same |= np.isnan(ours) & np.isnan(theirs)
        assert same.all(), f"{line}\ninputs {inputs}\nhloexec {ours}\nXLA {theirs}"


def _bits(array: np.ndarray[Any, Any]) -> Any:
    """Bit patterns that NumPy can compare; sub-byte types count with their own bits only."""
    element_type = element_type_of(array.dtype)
    if element_type.is_complex:
        halves = np.ascontiguousarray(array).view(f"f{array.itemsize // 2}").reshape(*array.shape, 2)
        whole = halves.view(f"u{halves.itemsize}").astype(object)
        return whole[..., 0] + (whole[..., 1] << 64)
    bits = np.ascontiguousarray(array).reshape(array.shape).view(f"u{array.itemsize}")
    return bits & ((1 << element_type.bits) - 1) if element_type.bits < 8 else bits


def random_array(seed: int, shape: Sequence[int], dtype: Any) -> np.ndarray[Any, Any]:
    """Any bits at all, but denormals of no type: XLA:CPU flushes them where it converts."""
    generator = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    element_type = element_type_of(dtype)
    if dtype == np.bool_:
        return generator.integers(0, 2, shape).astype(np.bool_)
    if element_type.is_floating or element_type.is_complex:
        values = generator.normal(size=shape) * 4
        with np.errstate(all="ignore"):
            return np.asarray(values + (1j if element_type.is_complex else 0)).astype(dtype)
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    raw = np.frombuffer(generator.bytes(size), np.uint8)
    if element_type.bits < 8:
        raw = raw & ((1 << element_type.bits) - 1)
    return raw.view(dtype).reshape(shape)
