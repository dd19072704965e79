"""How far two computations of one module may lie apart, relative to the size of its results, read off the module.

Each instruction rounds its result, and contributes an error of some relative size:

- u, the unit roundoff of its result's element type; functions of f32 (each side has its own) four times that.
- A sum of n terms in a type of unit roundoff v: λ √n v with λ = 5, the probabilistic bound that replaces n v where the
  roundings are independent (Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis, 2019).
- A prefix sum may be a tree: its narrow results are rounded at each of log₂ n levels.
- Under `tf32`, each of a product's two f32 operands: 2⁻¹¹ where it is rounded, 2⁻¹⁰ where the hardware cuts it off.
- Products of eight-bit floats: v is 2⁻¹³, since tensor cores may keep 14 bits of what they add up.

Along a path the errors of n instructions, being independent, add up in squares. Products and sums of random numbers
keep the relative error of a whole array as it is, so that an array's error is that of the worst path to it; what a
program magnifies beyond that, by cancellation or steep functions, it declares as its `condition`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from conformance.bounds import unit_roundoff
from hloexec.costs import contraction_of, trip_count_of
from hloexec.dtypes import ElementType
from hloexec.ir import ArrayShape, Computation, Instruction, Module, Shape, leaf_shapes
from hloexec.ops.attributes import computation_names

__all__ = ["error_budget"]

_SQUARED_LAMBDA = 25.0
_F32 = 2.0**-24
_F8_SUMS = 2.0**-13
_TF32_OPERANDS = 2 * (2.0**-11 + 2.0**-10) ** 2
_UNKNOWN_TRIPS = 32
_LIBRARY_ROUNDINGS = 8
"""Of a library call that is no plain product: attention rounds its scores, its weights, their sums and its result."""
_EXACT = frozenset(
    "parameter constant tuple get-tuple-element bitcast bitcast-convert reshape transpose copy broadcast slice "
    "dynamic-slice dynamic-update-slice concatenate pad gather reverse select negate abs maximum minimum clamp compare "
    "sort iota copy-start copy-done opt-barrier domain while call fusion conditional async-start async-update "
    "async-done topk get-dimension-size set-dimension-size rng-bit-generator rng-get-and-update-state".split()
)
"""What rounds nothing of its own."""
_FUNCTIONS = frozenset(
    "acos acosh asin asinh atan2 atanh cbrt cosine cosh erf exponential exponential-minus-one log log-plus-one "
    "logistic power rsqrt sine sinh sqrt tan tanh divide".split()
)
_SUMS = frozenset("reduce reduce-window scatter select-and-scatter fft scan map all-reduce reduce-scatter".split())


def error_budget(module: Module, policy: str) -> list[float]:
    """The relative error of each leaf of the result, in the order of the leaves."""
    squares: dict[str, dict[str, float]] = {}
    for computation in module.computations:
        squares[computation.name] = _along_paths(computation, squares, policy == "tf32")
    entry = next(c for c in module.computations if c.name == module.entry_name)
    found = squares[entry.name]
    leaves: list[float] = []
    stack = [entry.root]
    while stack:
        instruction = stack.pop()
        if instruction.opcode == "tuple":
            stack.extend(reversed(entry.operands_of(instruction)))
        else:
            leaves += [math.sqrt(found[instruction.name])] * len(list(leaf_shapes(instruction.shape)))
    return leaves


def _along_paths(computation: Computation, squares: dict[str, dict[str, float]], tf32: bool) -> dict[str, float]:
    """The sum of squares on the worst path to each instruction."""
    found: dict[str, float] = {}
    for instruction in computation:
        operands = computation.operands_of(instruction)
        before = max((found[operand.name] for operand in operands), default=0.0)
        inside = sum(max(squares[name].values(), default=0.0) for name in computation_names(instruction.attributes))
        if instruction.opcode == "while":
            trips = trip_count_of(instruction)
            inside *= _UNKNOWN_TRIPS if trips is None else trips
        own = 0.0 if instruction.opcode in _EXACT else _own(instruction, [o.shape for o in operands], tf32)
        found[instruction.name] = before + inside + own
    return found


def _own(instruction: Instruction, operands: Sequence[Shape], tf32: bool) -> float:
    """The square of the error that an instruction adds."""
    result = _widest_unit(instruction.shape)
    if result is None:
        return 0.0
    inputs = [leaf for operand in operands for _, leaf in leaf_shapes(operand) if isinstance(leaf, ArrayShape)]
    if instruction.opcode in _FUNCTIONS:
        return result**2 + (4 * _F32) ** 2
    if instruction.opcode in _SUMS:
        # Scatter and select-and-scatter round to the declared type after every addition.
        stepwise = instruction.opcode in ("scatter", "select-and-scatter")
        terms = _terms(instruction, inputs)
        levels = max(1.0, math.log2(terms)) if instruction.opcode in ("reduce-window", "scan") else 1.0
        return levels * result**2 + _SQUARED_LAMBDA * terms * (result if stepwise else _F32) ** 2
    if instruction.opcode in ("dot", "ragged-dot", "convolution", "custom-call", "triangular-solve", "cholesky"):
        return _product(instruction, operands, inputs, result, tf32)
    return result**2


def _terms(instruction: Instruction, inputs: Sequence[ArrayShape]) -> float:
    """How many terms an element of a sum has; four times the average where places are random."""
    first = next(leaf for _, leaf in leaf_shapes(instruction.shape) if isinstance(leaf, ArrayShape))
    most = max((leaf.element_count for leaf in inputs), default=1)
    if instruction.opcode in ("scatter", "select-and-scatter"):
        return 4 * max(1.0, inputs[-1].element_count / max(1, first.element_count))
    if instruction.opcode in ("fft", "scan", "reduce-window"):
        return float(max((max(leaf.dimensions, default=1) for leaf in inputs), default=1))
    return max(1.0, most / max(1, first.element_count))


def _product(
    instruction: Instruction, operands: Sequence[Shape], inputs: Sequence[ArrayShape], result: float, tf32: bool
) -> float:
    floats = [leaf.element_type for leaf in inputs if _has_fraction(leaf.element_type)]
    contraction = contraction_of(instruction, operands)
    length = contraction.contracted_size if contraction else max((_inner(leaf) for leaf in inputs), default=1)
    summing = _F8_SUMS if floats and min(entry.bits for entry in floats[:2]) == 8 else _F32
    cut = _TF32_OPERANDS if tf32 and any(entry.name in ("f32", "c64") for entry in floats) else 0.0
    roundings = 1 if contraction else _LIBRARY_ROUNDINGS
    return roundings * result**2 + cut + _SQUARED_LAMBDA * length * summing**2


def _inner(leaf: ArrayShape) -> int:
    """The most elements over which a library call can be summing, for one element of its result."""
    sizes = sorted(leaf.dimensions)
    return math.prod(sizes[1:]) if len(sizes) > 1 else math.prod(sizes)


def _widest_unit(shape: Shape) -> float | None:
    """The coarsest unit roundoff among the leaves that have fractions."""
    leaves = [leaf for _, leaf in leaf_shapes(shape) if isinstance(leaf, ArrayShape) and leaf.is_array]
    return max((unit_roundoff(leaf.element_type) for leaf in leaves if _has_fraction(leaf.element_type)), default=None)


def _has_fraction(entry: ElementType) -> bool:
    return entry.is_floating or entry.is_complex
