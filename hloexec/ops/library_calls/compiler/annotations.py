"""Calls that compute nothing: shardings, layouts, memory placement, buffers, promises, assertions, ordering of effects.

They return their operands, or values whose contents are unspecified, here zeros.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hloexec.core.ir import ArrayShape, BufferShape, Computation, Instruction, Module, Shape, TupleShape, flat_shapes
from hloexec.core.values import TOKEN, Array, Token
from hloexec.errors import EvaluationError, ShapeError
from hloexec.ops.common import array_shape, require
from hloexec.ops.library_calls.ffi import checked_attributes
from hloexec.ops.reduction.reducers import ANNOTATIONS
from hloexec.ops.registry import custom_call
from hloexec.ops.relations import Relating, pointwise
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
        return _zeros(shape)


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
        return _zeros(shape)


def _zeros(shape: Shape) -> Array | Token | tuple[Any, ...]:
    if isinstance(shape, TupleShape):
        return tuple(_zeros(element) for element in shape.elements)
    contents = _contents(shape)
    if not isinstance(contents, ArrayShape):
        raise ShapeError(f"a buffer cannot hold {shape}")
    return np.zeros(contents.dimensions, contents.element_type.storage) if contents.is_array else TOKEN
