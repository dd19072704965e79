"""Calls that compilers insert and that compute nothing (annotations, hints, rewrites), and calls that are refused.

Calls that compute nothing: shardings, layouts, memory placement, buffers, promises, assertions, ordering of effects.

They return their operands, or values whose contents are unspecified, here zeros.

Calls of computations that the text holds, which XLA has marked for another unit or another compiler.

Calls that XLA's own passes insert: halves of 64-bit numbers, dynamic shapes, and sliced transfers.

Calls whose code is not in the dump, refused by name: callbacks, kernels of other compilers, unrefined shapes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.core.ir import (
    ArrayShape,
    ArrayShapes,
    BufferShape,
    Computation,
    Instruction,
    Module,
    Shape,
    TupleShape,
    flat_shapes,
    map_shape,
)
from hloexec.core.values import TOKEN, Array, Token
from hloexec.errors import EvaluationError, ShapeError, UnsupportedError
from hloexec.ops.common import array_shape, operand_shapes, require
from hloexec.ops.library_calls.configs import checked_attributes
from hloexec.ops.movement.bitcast import Bitcast, have_equal_sizes
from hloexec.ops.reduction.reducers import ANNOTATIONS
from hloexec.ops.registry import custom_call, refuse_custom_calls
from hloexec.ops.relations import Relating, Value, pointwise, relate_concatenation
from hloexec.ops.signatures import TOKEN_SHAPE, one_or_tuple
from hloexec.ops.traits import ALL_OPERANDS


def _contents(shape: Shape) -> Shape:
    """The shape as if buffers were arrays."""
    return shape.element if isinstance(shape, BufferShape) else shape


@custom_call(*ANNOTATIONS, is_reproducible=True, moves=(0,), keeps_all=True, keeps_order=True)
class Annotation:
    """out = operand: how it is partitioned, laid out, which memory holds it, or how large it gets (SetBound).

    Source: XLA, sharding_propagation.cc, layout_assignment.cc, host_memory_offload_annotations.h; Shardy, round trip
    through HLO; AWS Neuron, torch_neuronx (weights that stay in memory).
    """

    relate = staticmethod(pointwise)

    infer = evaluate = staticmethod(lambda operand: operand)


@custom_call("Pin", "Unpin", is_reproducible=True)
class Pin:
    """out = operand, an array that became a buffer, which may be written in place (Pin), or the reverse (Unpin).

    Source: XLA, hlo_instruction_utils and buffer types (`b(f32[8])`).
    """

    relate = staticmethod(pointwise)

    evaluate = staticmethod(Annotation.evaluate)

    @staticmethod
    def infer(operand: Shape, *, shape: Shape) -> Shape:
        before, after = _contents(operand), _contents(shape)
        require(before.compatible(after), f"a buffer of {before} cannot be one of {after}")
        return shape


@custom_call(
    "SPMDFullToShardShape",
    "SPMDShardToFullShape",
    "xla.sdy.GlobalToLocalShape",
    "xla.sdy.LocalToGlobalShape",
    is_reproducible=True,
    moves=ALL_OPERANDS,
    crosses_devices=True,
)
class ShardBoundary:
    """The operands, where a region in which devices see their own shards begins or ends.

    If every device's shard is the whole array, nothing changes; otherwise devices take their shards of it, or
    reassemble it (`devices.manual_regions`). Source: XLA, SPMD partitioner; Shardy, round trip through HLO.
    """

    @staticmethod
    def forwards(computation: Computation, instruction: Instruction) -> tuple[str, ...]:
        return instruction.operands


@custom_call("AllocateBuffer", "CreateBuffer", "NopReturnToken", "xla.sdy.ShardingGroup", is_reproducible=True)
class Nothing:
    """Zeros of the declared shape, tokens where it has tokens: memory that was allocated but not written.

    XLA replaces collectives and transfers by AllocateBuffer and NopReturnToken when it flattens control flow for
    measurements; ShardingGroup gives an empty tuple. Source: XLA, collective_ops_utils; Shardy.
    """

    @staticmethod
    def relate(use: Relating) -> None:
        """Any amount of memory can be allocated."""

    @staticmethod
    def unspecified(instruction: Instruction, module: Module) -> str | None:
        has_memory = any(isinstance(leaf, ArrayShape) and leaf.is_array for leaf in flat_shapes(instruction.shape))
        return "is memory that nothing has written" if has_memory else None

    @staticmethod
    def evaluate(*operands: object, shape: Shape) -> Any:
        return map_shape(shape, _zeros)


@custom_call("AssumeGatherIndicesInBound", "AssumeScatterIndicesInBound", "GatherScatterIndicesBitpacked")
class IndicesInBound:
    """out = operand, indices of a gather or a scatter that are promised to be in range, or that come from one number.

    Source: XLA, despecializer, which turns the call into a copy; modules optimized for TPUs, which take the indices of
    several dimensions out of the bits of one number (…IndicesBitpacked).
    """

    infer = staticmethod(Annotation.infer)
    forwards = staticmethod(ShardBoundary.forwards)


@custom_call(
    *(f"AwsNeuronModuleMarker{side}-{way}" for side in ("Start", "End") for way in ("Forward", "Backward")),
    *("NeuronBoundaryMarker-Start", "NeuronBoundaryMarker-End"),
    is_reproducible=True,
)
class LayerMarker:
    """The operands, with which a layer begins or ends; a tuple of them where there are several.

    Source: AWS Neuron, neuronx_distributed (layer boundary markers).
    """

    infer = staticmethod(lambda *operands: one_or_tuple(operands))
    forwards = staticmethod(ShardBoundary.forwards)


@custom_call("stablehlo.shape_refinement_operand_wrapper", is_reproducible=True)
class ShapeRefinementOperand:
    """The first operand; the second one gives its shape. Shape refinement inserts and removes these calls.

    Source: StableHLO, stablehlo/transforms/StablehloRefineArguments.cpp.
    """

    infer = evaluate = staticmethod(lambda operand, dimensions: operand)


@custom_call("control_dep", "dce_sink")
class Order:
    """An empty tuple: the first operand comes before the second (control_dep), or the operand stays (dce_sink).

    Source: JAX, jax.experimental.control_deps and jax.lax.dce_sink.
    """

    infer = staticmethod(lambda *operands: TupleShape(()))
    evaluate = staticmethod(lambda *operands: ())


def _message(instruction: Instruction) -> str:
    """The message: an attribute, or in older calls the whole config."""
    text = instruction.backend_config or ""
    if text.startswith("{"):
        return str(checked_attributes(text, {"error_msg": lambda value: isinstance(value, str)})["error_msg"])
    return text


@custom_call("__xla_gpu_assert", config=_message)
class Assertion:
    """A token, or EvaluationError with the config's message where the operand, a pred[], is false.

    Source: XLA, gpu/runtime_intrinsics; DynamicPadder's checks of sizes at run time.
    """

    @staticmethod
    def infer(condition: Shape) -> Shape:
        array = array_shape(condition, "what is asserted")
        require(
            array.rank == 0 and array.element_type.name == "pred", f"what is asserted must be pred[], but is {array}"
        )
        return TOKEN_SHAPE

    @staticmethod
    def evaluate(condition: Array, *, config: str) -> Token:
        if not np.all(condition):
            raise EvaluationError(f"the module asserts something that does not hold: {config}")
        return TOKEN


@custom_call("shape_assertion", is_reproducible=True)
class ShapeAssertion:
    """An empty tuple, or EvaluationError where the first operand is false.

    JAX checks so what an exported function assumes of dimensions that were unknown; the other operands are the numbers
    of its message. Source: JAX, shape polymorphism.
    """

    @staticmethod
    def evaluate(*operands: Array, shape: Shape) -> Any:
        if operands and not np.all(operands[0]):
            values = ", ".join(str(operand) for operand in operands[1:])
            raise EvaluationError(f"the module asserts something of its shapes that does not hold ({values})")
        return map_shape(shape, _zeros)


def _zeros(shape: ArrayShape | BufferShape) -> Array | Token:
    contents = shape.array_shape
    return np.zeros(contents.dimensions, contents.element_type.storage) if contents.is_array else TOKEN


def _called(instruction: Instruction) -> tuple[str, ...]:
    attributes = instruction.attributes
    return (*attributes.called_computations, *(() if attributes.to_apply is None else (attributes.to_apply,)))


class _Call:
    """What the one computation that it calls gives for the operands."""

    @staticmethod
    def invokes(instruction: Instruction) -> str:
        (name,) = _called(instruction)
        return name


@custom_call("HostExecute")
class HostExecute(_Call):
    """What the computation that it calls gives for the operands: XLA runs it on the host, beside the device.

    Refused where the text names none, as in modules whose host program was compiled apart. Source: XLA, host offloading
    (host_offloading_prepare makes it of a call on the thread `host`).
    """

    @staticmethod
    def supports(instruction: Instruction) -> str | None:
        count = len(_called(instruction))
        reason = "it runs a program on the host that the text does not hold"
        return None if count == 1 else reason if not count else f"it calls {count} computations"


@custom_call("__triton", "__triton_gemm", "__triton_softmax")
class TritonCall(_Call):
    """What the computation that it calls gives for the operands: XLA:GPU makes a Triton kernel of it.

    Modules of 2023 have these calls in place of fusions of kind kCustom. Refused where the text names no computation.
    Source: XLA, gemm_rewriter_triton.
    """

    @staticmethod
    def supports(instruction: Instruction) -> str | None:
        count = len(_called(instruction))
        return None if count == 1 else f"it calls {count or 'no'} computations, but its kernel is made of one"


_HALF_TYPES = {"s32": ("s64", "u64"), "u32": ("s64", "u64"), "f32": ("f64", "c64"), "f64": ("c128",)}
"""Of halves, the types of what they may be halves of; and the other way round."""
_WHOLE_TYPES = {"s64": ("s32", "u32"), "u64": ("s32", "u32"), "f64": ("f32",), "c64": ("f32",), "c128": ("f64",)}
_SPLITS = ("X64SplitLow", "X128SplitLow", "X64SplitHigh", "X128SplitHigh")
_WORD_BITS = np.uint64(32)


def _of_type(shape: Shape, names: Collection[str], subject: str) -> ArrayShape:
    array = array_shape(shape, subject)
    require(array.element_type.name in names, f"{subject} must be {' or '.join(names)}, but has shape {array}")
    return array


def _require_known(names: Collection[str], instruction: Instruction) -> None:
    shape = instruction.shape
    if not isinstance(shape, ArrayShape) or shape.element_type.name not in names:
        raise UnsupportedError(f"its result is {shape}, but must be {' or '.join(names)}")


@custom_call(*_SPLITS, config=partial(_require_known, _HALF_TYPES), is_reproducible=True)
class X64Split:
    """Halves of numbers of 64 and 128 bits, for processors without such numbers.

    Of integers, the lower or the higher 32 bits; of f64, the nearest f32 (low) or the f32 nearest to what that leaves,
    0 where it is not finite (high); of complex numbers, the real (low) or the imaginary parts (high).
    Source: XLA, X64 rewriting; for floats, XLA, SplitF64ToF32, and modules optimized for TPUs.
    """

    @staticmethod
    def infer(operand: Shape, *, shape: Shape) -> Shape:
        result = _of_type(shape, _HALF_TYPES, "the result of a split")
        array = _of_type(operand, _HALF_TYPES[result.element_type.name], "the operand of a split")
        return ArrayShape(result.element_type, array.dimensions, dynamic_dimensions=array.dynamic_dimensions)

    @staticmethod
    def evaluate(operand: Array, *, shape: ArrayShape, attributes: object) -> Array:
        is_high = getattr(attributes, "custom_call_target", "") in _SPLITS[2:]
        if operand.dtype.kind == "c":
            return np.ascontiguousarray(operand.imag if is_high else operand.real)
        if operand.dtype.kind == "f":
            nearest = operand.astype(np.float32)
            return np.where(np.isfinite(nearest), operand - nearest, 0).astype(np.float32) if is_high else nearest
        words = operand.view(np.uint64)
        if is_high:
            words = words >> _WORD_BITS
        return words.astype(np.uint32).view(shape.element_type.storage)


@custom_call("X64Combine", "X128Combine", config=partial(_require_known, _WHOLE_TYPES), is_reproducible=True)
class X64Combine:
    """The 64-bit integer of its lower and its higher 32 bits, in this order; the f64 that is the sum of two f32; the
    complex number of its real and its imaginary part.

    Source: XLA, X64 rewriting; for floats, modules optimized for TPUs.
    """

    @staticmethod
    def infer(low: Shape, high: Shape, *, shape: Shape) -> Shape:
        result = _of_type(shape, _WHOLE_TYPES, "the result of a combination")
        halves = [_of_type(half, _WHOLE_TYPES[result.element_type.name], "a half") for half in (low, high)]
        require(
            halves[0].dimensions == halves[1].dimensions,
            f"halves must have the same dimensions, but have shapes {halves[0]} and {halves[1]}",
        )
        return ArrayShape(result.element_type, halves[0].dimensions, dynamic_dimensions=halves[0].dynamic_dimensions)

    @staticmethod
    def evaluate(low: Array, high: Array, *, shape: ArrayShape) -> Array:
        storage = shape.element_type.storage
        if storage.kind == "c":
            return np.ascontiguousarray(np.stack([low, high], -1)).view(storage)[..., 0]
        if storage.kind == "f":
            return low.astype(storage) + high
        words = low.view(np.uint32).astype(np.uint64) | high.view(np.uint32).astype(np.uint64) << _WORD_BITS
        return words.view(storage)


@custom_call("PadToStatic", is_reproducible=True)
class PadToStatic:
    """(the array at its bound's size, the extent of each dimension …): elements beyond the extents are zero.

    Source: XLA, dynamic padder.
    """

    @staticmethod
    def infer(operand: Shape) -> Shape:
        array = array_shape(operand, "the operand of PadToStatic")
        extent = ArrayShape(ELEMENT_TYPES["s32"])
        return TupleShape((array.plain, *(extent,) * array.rank))

    @staticmethod
    def evaluate(operand: Array, *, shape: TupleShape) -> tuple[Array, ...]:
        padded = array_shape(shape.elements[0], "the result of PadToStatic")
        result = np.zeros(padded.dimensions, operand.dtype)
        result[tuple(map(slice, operand.shape))] = operand
        return result, *(np.asarray(extent, np.int32) for extent in operand.shape)


@custom_call("SliceToDynamic", is_reproducible=True)
class SliceToDynamic:
    """The array cut to the extents that the other operands, one s32 per dimension, give.

    Source: XLA, dynamic padder.
    """

    @staticmethod
    def infer(operand: Shape, *extents: Shape, shape: Shape) -> Shape:
        array = array_shape(operand, "the operand of SliceToDynamic")
        result = array_shape(shape, "the result of SliceToDynamic")
        require(
            len(extents) == array.rank,
            f"SliceToDynamic of {array} must be given {array.rank} extents, but is given {len(extents)}",
        )
        for extent in extents:
            scalar = array_shape(extent, "an extent of SliceToDynamic")
            require(
                scalar.rank == 0 and scalar.element_type.name == "s32",
                f"an extent of SliceToDynamic must be s32[], but is {scalar}",
            )
        is_dynamic = result.dynamic_dimensions if result.rank == array.rank else ()
        return ArrayShape(array.element_type, array.dimensions, dynamic_dimensions=is_dynamic)

    @staticmethod
    def evaluate(operand: Array, *extents: Array) -> Array:
        sizes = [int(extent) for extent in extents]
        if any(not 0 <= size <= bound for size, bound in zip(sizes, operand.shape, strict=True)):
            raise EvaluationError(f"SliceToDynamic is given extents {sizes} of an array of {list(operand.shape)}")
        return operand[tuple(map(slice, sizes))]


@custom_call("ConcatBitcast", is_reproducible=True, moves=ALL_OPERANDS)
class ConcatBitcast:
    """The operands, which are neighbouring slices of one array in one dimension, as that array, or its bits.

    TPU compilers fetch large arrays in slices, some as bytes in physical order: of several arrays of one dimension,
    the result is a bitcast. They name the slices in the order in which these begin to be fetched; `slices_in_place`
    brings them into that in which they lie in the array. Source: XLA, memory space assignment.
    """

    @staticmethod
    def relate(use: Relating) -> None:
        parts = [operand.array for operand in use.operands]
        dimension, whole = put_together(parts, use.result.array)
        if dimension is not None:
            relate_concatenation(use, dimension)
            return
        bits = Value.of(whole, use.relations)
        relate_concatenation(attrs.evolve(use, result=bits), 0)
        Bitcast.relate(attrs.evolve(use, operands=(bits,)))

    @staticmethod
    def infer(*operands: Shape, shape: Shape) -> Shape:
        result = array_shape(shape, "the result of ConcatBitcast")
        parts = operand_shapes(operands, "ConcatBitcast")
        require(len(parts) > 0, "ConcatBitcast must have at least one operand")
        for part in parts:
            require(
                part.element_type is parts[0].element_type,
                f"ConcatBitcast takes arrays of one element type, but takes {parts[0]} and {part}",
            )
        put_together(parts, result)
        return result.plain

    @staticmethod
    def evaluate(*operands: Array, shape: ArrayShape, operand_shapes: ArrayShapes) -> Array:
        dimension, whole = put_together(operand_shapes, shape)
        array = np.concatenate(operands, dimension or 0)
        return array if dimension is not None else Bitcast.evaluate(array, shape=shape, operand_shapes=(whole,))


def slices_in_place(computations: Sequence[Computation]) -> tuple[Computation, ...]:
    """Computations in which a ConcatBitcast has its operands in the order in which they lie in the array that they are
    slices of; where they are not all slices of one array, they stay as they are."""
    by_name = {computation.name: computation for computation in computations}

    def place_of(computation: Computation, name: str) -> tuple[str, tuple[int, ...]] | None:
        """The array that an operand is a slice of, and where it begins in it."""
        slicing = computation.by_name.get(name)
        if slicing is not None and slicing.opcode == "async-done" and slicing.operands:
            slicing = computation.by_name.get(slicing.operands[0])
        if slicing is None or not slicing.operands:
            return None
        source = slicing.operands[0]
        if slicing.opcode == "async-start" and slicing.attributes.calls in by_name:
            called = by_name[slicing.attributes.calls]
            slicing = called.by_name.get(called.root_name, slicing)
        if slicing.opcode != "slice":
            return None
        return source, tuple(part.start for part in slicing.attributes.slice)

    def in_place(computation: Computation, instruction: Instruction) -> Instruction:
        if instruction.opcode != "custom-call" or instruction.attributes.custom_call_target != "ConcatBitcast":
            return instruction
        places = {name: place_of(computation, name) or ("", ()) for name in instruction.operands}
        sources = {source for source, _ in places.values()}
        if len(sources) > 1 or "" in sources:
            return instruction
        return attrs.evolve(instruction, operands=tuple(sorted(instruction.operands, key=places.__getitem__)))

    def instructions_of(computation: Computation) -> tuple[Instruction, ...]:
        return tuple(in_place(computation, instruction) for instruction in computation.instructions)

    return tuple(attrs.evolve(computation, instructions=instructions_of(computation)) for computation in computations)


def put_together(parts: Sequence[ArrayShape], result: ArrayShape) -> tuple[int | None, ArrayShape]:
    """The dimension in which parts make up a result, or None where they do as bits; and what they are together."""
    for dimension, size in enumerate(result.dimensions):
        others = (*result.dimensions[:dimension], *result.dimensions[dimension + 1 :])
        if (
            parts[0].element_type is result.element_type
            and all(part.rank == result.rank for part in parts)
            and sum(part.dimensions[dimension] for part in parts) == size
            and all((*part.dimensions[:dimension], *part.dimensions[dimension + 1 :]) == others for part in parts)
        ):
            return dimension, result
    whole = attrs.evolve(parts[0], dimensions=(sum(part.element_count for part in parts),))
    if any(part.rank != 1 for part in parts) or not have_equal_sizes(whole, result):
        slices = ", ".join(map(str, parts))
        raise ShapeError(f"slices {slices} do not make up {result} in one dimension, nor its bits")
    return None, whole


refuse_custom_calls(
    "xla_python_cpu_callback",
    "xla_python_gpu_callback",
    "xla_ffi_python_cpu_callback",
    "xla_ffi_partitioned_python_cpu_callback",
    "xla_ffi_python_gpu_callback",
    "xla_ffi_partitioned_python_gpu_callback",
    "xla_buffer_python_cpu_callback",
    "xla_buffer_python_gpu_callback",
    reason="it calls back a Python function of the program that made the module, which the text does not hold",
    documentation="""
    The result of a Python function: `jax.pure_callback`, `jax.experimental.io_callback`, `jax.debug.print`.

    The backend_config is the address or the number of the function in the process that compiled the module. Source:
    jaxlib, callback custom calls.
    """,
)
refuse_custom_calls(
    "tf.call_tf_function",
    reason="it runs a program on the host that the text does not hold",
    documentation="""
    The result of another program that runs on the host, a TensorFlow function.

    Source: JAX, jax2tf.call_tf.
    """,
)
refuse_custom_calls(
    "CustomSPMDPartitioning",
    reason="a Python function of the program that made the module says how it is partitioned; take the module after "
    "XLA's SPMD partitioner, which puts the computation in its place",
    documentation="""
    A computation that Python functions partition (`jax.experimental.custom_partitioning`).

    Its body is in the backend_config of the process that made the module; XLA's partitioner inlines it. Source:
    JAX, custom_partitioning; XLA, custom_call_sharding_helper.
    """,
)
# StableHLO's shape refinement replaces these by the plain operations; XLA has no implementation either.
refuse_custom_calls(
    "stablehlo.dynamic_reduce_window",
    "stablehlo.dynamic_rng_bit_generator",
    "stablehlo.dynamic_top_k",
    "stablehlo.dynamic_approx_top_k",
    "dynamic_ducc_fft",
    reason="it represents an operation whose sizes are values, which is replaced once they are known: export the "
    "function at shapes that are, or refine the shapes of the module before XLA reads it, as jax.export's call does",
    documentation="""
    The operation of that name, with sizes as operands. Refused.

    Source: StableHLO, stablehlo/transforms/StablehloRefineShapes.cpp; JAX, jax2tf shape polymorphism.
    """,
)

_COMPILERS = {
    "Mosaic for GPUs (Pallas)": ("mosaic_gpu", "mosaic_gpu_v2"),
    "Triton, compiled to PTX": ("triton_kernel_call", "triton_kernel_call_ffi"),
    "CUDA (PTX)": ("__gpu$xla.gpu.ptx",),
    "CUTLASS (CuTe DSL)": (
        "CuteDSLRT_NvJaxCutlassCall",
        "__xla_gpu_cutedsl_call_v3",
        "__xla_gpu_cutedsl_collective_v3",
    ),
}
"""Who compiles what stands behind a target."""

_UNDERSTOOD = "it is a kernel that {compiler} compiles, and only that compiler understands the code in the text"
_INTERPRETED = (
    "; a pallas_call is lowered to HLO with interpret=True, and what XLA made a kernel of is HLO in the module before "
    "optimization"
)

for _compiler, _targets in _COMPILERS.items():
    refuse_custom_calls(
        *_targets,
        reason=_UNDERSTOOD.format(compiler=_compiler) + (_INTERPRETED if "Pallas" in _compiler else ""),
        documentation=f"What a kernel computes that its author wrote for {_compiler}.\n\nSource: JAX, Pallas; XLA:GPU.",
    )
