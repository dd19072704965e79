"""Contractions: dot, its algorithms, and what the others of the family build on.

A contraction sorts the dimensions of its operands into batch, free and contracting ones, views both as stacks of
matrices, and multiplies those; `matrix_product` defines the numerics. The result's dimensions are the batch dimensions,
then the free ones of lhs, then those of rhs.

The `algorithm` of a dot: the type that its operands are rounded to, and the type in which products are accumulated.

A name is `dot_<lhs>_<rhs>_<accumulation>`. An operand with more precision than one rounding keeps is split: x3, x6 and
x9 are the numbers of products of parts (high, middle, low) that are added, the small ones first. Source: StableHLO,
dot_general, "algorithm"; XLA, PrecisionConfig.Algorithm.

Contractions of compressed operands: scaled by blocks, sparse, or with two numbers in each element.

Such an operand is given with others (its scales, zero points or indices) behind lhs and rhs, which `sparsity_config`
and `block_scaling_config` refer to by number. XLA reads and prints these; how they are computed only the compilers for
some accelerators know, so that hloexec does not run them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np

from hloexec.core.dtypes import ElementType, element_type
from hloexec.core.ir import ArrayShape, ArrayShapes, Instruction, Shape
from hloexec.core.structs import frozen
from hloexec.core.values import Array, Dimensions
from hloexec.ops.attributes import Grammar, attribute, operand_precision
from hloexec.ops.common import array_shape, flags, narrow, require, shape_of, widen
from hloexec.ops.contraction.matrix_product import (
    HIGH_AND_MIDDLE,
    WITHOUT_THE_SMALLEST,
    FloatMultiplier,
    Multiplier,
    OperandSplit,
    default_multiplier,
    exactly,
    matrix_product,
    operand_split,
    round_mantissa,
)
from hloexec.ops.policies.backends import is_narrow_sum, products_added_stepwise
from hloexec.ops.policies.exact.sums import ExactMultiplier
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy
from hloexec.ops.registry import ANY, opcode
from hloexec.ops.relations import Axes, Relating
from hloexec.ops.traits import ContractionSize, Probe, Rounding, Summation, Sums

_REASONS = {
    "sparsity_config": "it has a sparsity_config, and in which order the elements of a sparse operand are kept",
    "block_scaling_config": "it has a block_scaling_config, and which elements of an operand each scale belongs to",
}


def configuration() -> Any:
    """An attribute that says how operands are compressed; kept as it is written."""
    return attribute(Grammar.VERBATIM, default=None)


def reason_against_compression(instruction: Instruction) -> str | None:
    """Why a contraction is one that hloexec does not run, as a clause; None where it runs."""
    for name, reason in _REASONS.items():
        if getattr(instruction.attributes, name) is not None:
            return f"{reason} is not documented"
    if len(instruction.operands) > 2:
        return "it has operands behind lhs and rhs, and no attribute that hloexec knows refers to them"
    if "packed_nibble" in instruction.attributes.operand_precision:
        return (
            "an operand has the precision packed_nibble: each of its elements holds two numbers of four bits, and TPU "
            "compilers alone know how they are multiplied"
        )
    return None


def relates_compressed(use: Relating) -> bool:
    """Whether an operand is, or may be, compressed; such a contraction keeps its dimensions."""
    further = tuple(operand.shape for operand in use.operands[2:])
    is_compressed = compressed_shape(further, use.attributes, use.result.shape) is not None
    if is_compressed:
        use.keep_all("which elements of a compressed operand are kept is not documented")
    return is_compressed


def compressed_shape(further: tuple[Shape, ...], attributes: Any, declared: Shape) -> ArrayShape | None:
    """The declared shape of a contraction that has, or may have, a sparse operand; None for others."""
    is_scaled = attributes.block_scaling_config is not None
    is_sparse = attributes.sparsity_config is not None or (bool(further) and not is_scaled)
    return array_shape(declared, "the result") if is_sparse else None


def _round_trip(array: Array, entry: ElementType) -> Array:
    return widen(narrow(array, entry))


_BF16: Callable[[Array], Array] = partial(_round_trip, entry=element_type("bf16"))
_F16: Callable[[Array], Array] = partial(_round_trip, entry=element_type("f16"))
_TF32: Callable[[Array], Array] = partial(round_mantissa, bits=10)

_ALL_NINE = ((2, 2), (2, 1), (1, 2), *WITHOUT_THE_SMALLEST)

_PLAIN = FloatMultiplier(np.dtype(np.float32))


def _in_f32(split: OperandSplit, sum_type: str | None = None) -> FloatMultiplier:
    return FloatMultiplier(np.dtype(np.float32), split, None if sum_type is None else element_type(sum_type))


_MULTIPLIERS = {
    "dot_any_f8_any_f8_f32": _PLAIN,
    "dot_any_f8_any_f8_f32_fast_accum": _PLAIN,
    "dot_f16_f16_f16": _in_f32(OperandSplit(_F16), "f16"),
    "dot_f16_f16_f32": _in_f32(OperandSplit(_F16)),
    "dot_bf16_bf16_bf16": _in_f32(OperandSplit(_BF16), "bf16"),
    "dot_bf16_bf16_f32": _in_f32(OperandSplit(_BF16)),
    "dot_bf16_bf16_f32_x3": _in_f32(OperandSplit(_BF16, 2, HIGH_AND_MIDDLE)),
    "dot_bf16_bf16_f32_x6": _in_f32(OperandSplit(_BF16, 3, WITHOUT_THE_SMALLEST)),
    "dot_tf32_tf32_f32": _in_f32(OperandSplit(_TF32)),
    "dot_tf32_tf32_f32_x3": _in_f32(OperandSplit(_TF32, 2, HIGH_AND_MIDDLE)),
    "dot_f32_f32_f32": _PLAIN,
    "dot_f64_f64_f64": FloatMultiplier(np.dtype(np.float64)),
    "dot_bf16_bf16_f32_x9": _in_f32(OperandSplit(_BF16, 3, _ALL_NINE)),
}

DOT_ALGORITHMS = ("unset", *_MULTIPLIERS)
"""The words that `algorithm=` takes, in the order of their numbers in protocol buffers; `unset` is what types say."""


def algorithm_multiplier(algorithm: str) -> FloatMultiplier:
    """How a dot with this algorithm multiplies; KeyError for `unset` and words that are not in DOT_ALGORITHMS."""
    return _MULTIPLIERS[algorithm]


def contraction_split(
    settings: Mapping[str, Any], numerics: NumericsPolicy
) -> tuple[OperandSplit | None, Mapping[str, Any]]:
    """What a contraction's algorithm, precision and policy do to its operands, and the keyword arguments of its kernel
    without that; None, and all of them, where they do nothing, or round sums as well. What has no precision, as the
    solution of a triangular system, no policy is about."""
    attributes = settings["attributes"]
    algorithm = getattr(attributes, "algorithm", "unset")
    if algorithm != "unset" and not numerics.ignores_algorithms:
        multiplier = algorithm_multiplier(algorithm)
        if multiplier.sum_type is not None or multiplier.split is None:
            return None, settings
        return multiplier.split, {**settings, "attributes": attrs.evolve(attributes, algorithm="unset")}
    precision = getattr(attributes, "operand_precision", None)
    is_default = precision is not None and all(word == "default" for word in precision)
    split = operand_split(numerics) if is_default else None
    if split is None:
        return None, settings
    return split, {
        **settings,
        "numerics": numerics.changed(contraction_operand_mantissa_bits=None, contraction_passes=1),
    }


@frozen
class ContractionAttributes:
    """Which dimensions are contracted, and which are batch dimensions."""

    lhs_batch_dims: Dimensions = attribute(default=())
    lhs_contracting_dims: Dimensions = attribute(default=())
    rhs_batch_dims: Dimensions = attribute(default=())
    rhs_contracting_dims: Dimensions = attribute(default=())


@frozen
class DotAttributes(ContractionAttributes):
    """Which dimensions are contracted, which are batch dimensions, and how precisely."""

    operand_precision: tuple[str, ...] = operand_precision()
    algorithm: str = attribute(Grammar.ENUM, default="unset", choices=DOT_ALGORITHMS, any_case=True)
    sparsity_config: str | None = configuration()
    block_scaling_config: str | None = configuration()


def dot_of(letters: str) -> DotAttributes:
    """The attributes of a product that is written as for einsum, `bik,bkj->bij`.

    What both operands have is a batch dimension where the result has it, too, and contracted elsewhere.
    """
    lhs, rhs, result = letters.replace("->", ",").split(",")
    shared = [letter for letter in lhs if letter in rhs]
    batch = [letter for letter in shared if letter in result]
    contracted = [letter for letter in shared if letter not in result]
    dims = [tuple(map(operand.index, part)) for operand in (lhs, rhs) for part in (batch, contracted)]
    return DotAttributes(
        lhs_batch_dims=dims[0], lhs_contracting_dims=dims[1], rhs_batch_dims=dims[2], rhs_contracting_dims=dims[3]
    )


@opcode(
    "dot",
    operands=(2, ANY),
    attributes=DotAttributes,
    rounding=Rounding.SUM,
    flushes_denormals=True,
    fast_in="hloexec.ops.contraction.fast.dot",
)
class Dot:
    """out[b..., m..., n...] = sum over k... of lhs[b..., m..., k...] * rhs[b..., n..., k...]

    Types narrower than f32 accumulate in f32 and round once to the declared type; integers are exact modulo its width;
    an `algorithm` decides what the operands are rounded to and what their products add up in. XLA: DotGeneral.
    """

    sums = Sums.PRODUCTS
    probe = Probe("T[2,2] dot(a0, a1), lhs_contracting_dims={1}, rhs_contracting_dims={0}", ("T[2,3]", "T[3,2]"))

    @staticmethod
    def contraction(
        instruction: Instruction, lhs: ArrayShape, rhs: ArrayShape, result: ArrayShape
    ) -> ContractionSize | None:
        return product_size(lhs, instruction.attributes.lhs_contracting_dims, result)

    @staticmethod
    def relate(use: Relating) -> None:
        if not relates_compressed(use):
            relate_contraction(use, use.attributes, use.operands[0].axes, use.operands[1].axes, use.result.axes)

    @staticmethod
    def infer(lhs: Shape, rhs: Shape, *further: Shape, attributes: DotAttributes, shape: Shape) -> Shape:
        result = array_shape(shape, "the result of dot")
        sparse = compressed_shape(further, attributes, shape)
        if sparse is not None:
            return sparse
        operands = array_shape(lhs, "lhs of dot"), array_shape(rhs, "rhs of dot")
        return contraction_shape(*operands, attributes, result.element_type)

    supports = staticmethod(reason_against_compression)

    @staticmethod
    def evaluate(
        lhs: Array, rhs: Array, *, attributes: DotAttributes, shape: ArrayShape, numerics: NumericsPolicy = REFERENCE
    ) -> Array:
        return contract(lhs, rhs, attributes, shape.element_type, numerics=numerics)

    @staticmethod
    def summed(*, attributes: DotAttributes, operand_shapes: ArrayShapes) -> Summation:
        contracting = attributes.lhs_contracting_dims
        terms = math.prod(operand_shapes[0].dimensions[dimension] for dimension in contracting)
        # An algorithm rounds its operands first, and would round the errors away.
        along = (contracting, attributes.rhs_contracting_dims) if attributes.algorithm == "unset" else ()
        return Summation(terms, along)

    @staticmethod
    def slices(*, attributes: DotAttributes, operand_shapes: ArrayShapes) -> tuple[int, int] | None:
        """The largest free dimension of lhs."""
        lhs, batch = operand_shapes[0], attributes.lhs_batch_dims
        free = free_dimensions(lhs.rank, batch, attributes.lhs_contracting_dims)
        largest = max(free, key=lambda dimension: lhs.dimensions[dimension], default=None)
        return None if largest is None else (largest, len(batch) + free.index(largest))


def product_size(lhs: ArrayShape, dimensions: Sequence[int], result: ArrayShape) -> ContractionSize | None:
    """How much a product multiplies that contracts these dimensions of lhs."""
    if not all(0 <= dimension < lhs.rank for dimension in dimensions):
        return None
    contracted = math.prod(lhs.dimensions[dimension] for dimension in dimensions)
    return ContractionSize(contracted, contracted * result.element_count)


def relate_contraction(use: Relating, attributes: ContractionAttributes, lhs: Axes, rhs: Axes, result: Axes) -> None:
    """How the dimensions of a contraction correspond; the result may have more, behind them."""
    use.same([lhs[d] for d in attributes.lhs_contracting_dims], [rhs[d] for d in attributes.rhs_contracting_dims])
    use.sums_over([lhs[d] for d in attributes.lhs_contracting_dims])
    batch = [lhs[d] for d in attributes.lhs_batch_dims]
    use.same(batch, [rhs[d] for d in attributes.rhs_batch_dims])
    ours = [lhs[d] for d in free_dimensions(len(lhs), attributes.lhs_batch_dims, attributes.lhs_contracting_dims)]
    theirs = [rhs[d] for d in free_dimensions(len(rhs), attributes.rhs_batch_dims, attributes.rhs_contracting_dims)]
    use.same([*batch, *ours, *theirs], result)


def contraction_shape(
    lhs: ArrayShape, rhs: ArrayShape, numbers: ContractionAttributes, result: ElementType
) -> ArrayShape:
    """The shape of a contraction, or ShapeError where the dimension numbers do not fit the operands."""
    sides = (
        ("lhs", lhs, numbers.lhs_batch_dims, numbers.lhs_contracting_dims),
        ("rhs", rhs, numbers.rhs_batch_dims, numbers.rhs_contracting_dims),
    )
    for side, shape, batch, contracting in sides:
        dims = batch + contracting
        require(
            all(0 <= dim < shape.rank for dim in dims),
            f"{side} has shape {shape}, so its batch and contracting dimensions must lie in [0, {shape.rank}), "
            f"but are {list(batch)} and {list(contracting)}",
        )
        require(
            len(set(dims)) == len(dims),
            f"the batch dimensions {list(batch)} and contracting dimensions {list(contracting)} of {side} must differ",
        )
    for kind in ("batch", "contracting"):
        ours, theirs = getattr(numbers, f"lhs_{kind}_dims"), getattr(numbers, f"rhs_{kind}_dims")
        require(
            len(ours) == len(theirs),
            f"lhs and rhs must have equally many {kind} dimensions, but have {len(ours)} and {len(theirs)}",
        )
        for i, j in zip(ours, theirs, strict=True):
            require(
                lhs.dimensions[i] == rhs.dimensions[j] or -1 in (lhs.dimensions[i], rhs.dimensions[j]),
                f"{kind} dimension {i} of lhs and {j} of rhs must have the same size, "
                f"but the operands have shapes {lhs} and {rhs}",
            )
    kept = [(lhs, dim) for dim in numbers.lhs_batch_dims]
    for _, shape, batch, contracting in sides:
        kept += [(shape, dim) for dim in free_dimensions(shape.rank, batch, contracting)]
    dimensions = tuple(shape.dimensions[dim] for shape, dim in kept)
    return shape_of(result, dimensions, tuple(flags(shape)[dim] for shape, dim in kept))


def contract(
    lhs: Array, rhs: Array, attributes: DotAttributes, result_type: ElementType, *, numerics: NumericsPolicy = REFERENCE
) -> Array:
    """The contraction of two arrays, as `Dot` defines it."""
    lhs, rhs = _cut_to_common_extents(lhs, rhs, attributes)
    lhs_batch, rhs_batch = attributes.lhs_batch_dims, attributes.rhs_batch_dims
    lhs_contracting, rhs_contracting = _mergeable_order(lhs, rhs, attributes)
    lhs_free = free_dimensions(lhs.ndim, lhs_batch, lhs_contracting)
    rhs_free = free_dimensions(rhs.ndim, rhs_batch, rhs_contracting)
    result_dimensions = [lhs.shape[dim] for dim in (*lhs_batch, *lhs_free)] + [rhs.shape[dim] for dim in rhs_free]
    lhs_matrices = _matrices(lhs, lhs_batch, lhs_free, lhs_contracting)
    rhs_matrices = _matrices(rhs, rhs_batch, rhs_contracting, rhs_free)
    if numerics.narrows_sums and is_narrow_sum(result_type) and attributes.algorithm == "unset":
        product = products_added_stepwise(widen(lhs_matrices), widen(rhs_matrices), result_type)
        return narrow(product, result_type).reshape(result_dimensions)
    multiplier = _multiplier(lhs_matrices, rhs_matrices, result_type, attributes, numerics)
    return matrix_product(lhs_matrices, rhs_matrices, result_type, multiplier).reshape(result_dimensions)


def free_dimensions(rank: int, batch: Sequence[int], contracting: Sequence[int]) -> list[int]:
    """The dimensions that are neither batch nor contracting ones, in order."""
    return [dim for dim in range(rank) if dim not in batch and dim not in contracting]


def _matrices(array: Array, batch: Sequence[int], rows: Sequence[int], columns: Sequence[int]) -> Array:
    """The array as `[batch..., rows, columns]`, several dimensions merged into one; a view where strides allow."""
    sizes = [array.shape[dim] for dim in batch]
    merged = [math.prod(array.shape[dim] for dim in dims) for dims in (rows, columns)]
    matrices = array.transpose(*batch, *rows, *columns).reshape(sizes + merged)
    # BLAS wants neighbours in one of the two dimensions; without, older NumPy multiplies in a slow loop of its own.
    has_neighbours = array.itemsize in matrices.strides[-2:]
    return matrices if has_neighbours else np.ascontiguousarray(matrices)


def _mergeable_order(lhs: Array, rhs: Array, numbers: DotAttributes) -> tuple[Dimensions, Dimensions]:
    """The contracting dimensions in an order in which they merge without a copy of the larger operand, if there is one.

    A sum does not care in which order its terms are numbered.
    """
    pairs = list(zip(numbers.lhs_contracting_dims, numbers.rhs_contracting_dims, strict=True))
    if len(pairs) > 1:
        larger, side = (lhs, 0) if lhs.size >= rhs.size else (rhs, 1)
        pairs.sort(key=lambda pair: -abs(larger.strides[pair[side]]))
    return tuple(ours for ours, _ in pairs), tuple(theirs for _, theirs in pairs)


def _cut_to_common_extents(lhs: Array, rhs: Array, numbers: DotAttributes) -> tuple[Array, Array]:
    """Operands whose paired dimensions agree: where one is dynamic, what lies beyond its extent contributes nothing."""
    ours = numbers.lhs_batch_dims + numbers.lhs_contracting_dims
    theirs = numbers.rhs_batch_dims + numbers.rhs_contracting_dims
    for i, j in zip(ours, theirs, strict=True):
        if lhs.shape[i] != rhs.shape[j]:
            extent = min(lhs.shape[i], rhs.shape[j])
            lhs, rhs = _first(lhs, i, extent), _first(rhs, j, extent)
    return lhs, rhs


def _first(array: Array, dimension: int, extent: int) -> Array:
    return array[(slice(None),) * dimension + (slice(extent),)]


def _multiplier(
    lhs: Array, rhs: Array, result_type: ElementType, attributes: DotAttributes, numerics: NumericsPolicy
) -> Multiplier | ExactMultiplier:
    """How the instruction's algorithm and precision and the policy say that the operands are multiplied."""
    if attributes.algorithm != "unset" and not numerics.ignores_algorithms:
        chosen: Multiplier = algorithm_multiplier(attributes.algorithm)
    else:
        is_default = all(word == "default" for word in attributes.operand_precision)
        split = operand_split(numerics) if is_default else None
        chosen = default_multiplier(lhs, rhs, result_type, split)
    return exactly(chosen) if numerics.is_exact else chosen
