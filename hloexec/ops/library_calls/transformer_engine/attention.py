"""Transformer Engine's fused attention, which runs on cuDNN: forward and backward.

Source: TransformerEngine, jax/csrc/extensions/attention.cpp, jax/cpp_extensions/attention.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import prod

import numpy as np

from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import ArrayShape, Instruction, Shape, TupleShape
from hloexec.core.values import Array
from hloexec.errors import EvaluationError, ShapeError, UnsupportedError
from hloexec.ops.common import narrow, widen
from hloexec.ops.library_calls import attention as softmax
from hloexec.ops.library_calls.shapes import (
    CallResult,
    in_declared_form,
    operand_shapes,
    result_shapes,
    with_scratch,
    zeros,
)
from hloexec.ops.library_calls.transformer_engine.sequences import (
    AttentionConfig,
    Batch,
    Sizes,
    attention_config,
    attention_sizes,
    check_auxiliary,
    holds_probabilities,
)
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.registry import custom_call
from hloexec.ops.relations import Axes, Relating, Resizing, Value


def _config(instruction: Instruction) -> AttentionConfig:
    config = attention_config(instruction.backend_config)
    shape = instruction.shape
    first = shape.elements[0] if isinstance(shape, TupleShape) and shape.elements else shape
    if isinstance(first, ArrayShape) and not (first.element_type.is_floating and first.element_type.bits >= 16):
        raise UnsupportedError(f"attention in {first.element_type} needs scales that the call does not have")
    return config


def _sink(config: AttentionConfig, offset: Array | None, heads: int) -> Array | None:
    """The score of the key that newer softmaxes add: 0, or learned."""
    if config.softmax == "vanilla":
        return None
    if config.softmax == "off by one" or offset is None:
        return np.zeros(heads, np.float32)
    if offset.size != heads:
        raise EvaluationError(f"the softmax's offset must have {heads} elements, but has {offset.size}")
    return offset.reshape(heads)


def _infer_sizes(operands: Sequence[Shape], config: AttentionConfig, count: int) -> tuple[list[ArrayShape], Sizes]:
    arrays = operand_shapes(operands, "the attention")
    if len(arrays) < count:
        raise ShapeError(f"the attention must have at least {count} operands by its attributes, but has {len(arrays)}")
    return arrays, attention_sizes([array.dimensions for array in arrays], config)


@custom_call("te_fused_attn_forward_ffi", config=_config, is_reproducible=True)
class FusedAttentionForward:
    """softmax(scale · q · kᵀ + bias, hidden keys left out) · v, computed in f32 and rounded once

    Operands: q, k, v by the layout, bias, softmax offset (where there is a `softmax_type`), seed, running sums of query
    and key lengths, offsets of queries and keys, and four that only say how the lengths came about. Results: the output
    [batch..., s, heads, e]; log-sum-exps [batch..., heads, s, 1] in f32 (or probabilities [batch..., heads, s, t] where
    declared so); where there is a `return_max_logit`, an empty array; the state of the random numbers, seed and offset
    0; a workspace. What lies outside of a sequence gives 0, and −∞ as its log-sum-exp. Source: TransformerEngine,
    jax/csrc/extensions/attention.cpp (FusedAttnForwardFFI).
    """

    @staticmethod
    def relate(use: Relating) -> None:
        _relate_sequences(use, use.operands[3:])
        _relate_lengths(use, 5 + use.config.has_softmax_offset)
        results, state = use.result.parts, 2 + use.config.has_largest
        _relate_output(use, results[0].axes)
        _relate_auxiliary(use, results[1].axes)
        use.keep(results[state].axes, _STATE)

    @staticmethod
    def resize(change: Resizing) -> str | None:
        """The config with the sizes that it repeats."""
        config = change.backend_config
        if config is None:
            return None
        for name, (operand, dimension) in _SIZES.items():
            before, after = change.sizes(operand)
            size = after[dimension] if name != "input_batch" else prod(after[:-3])
            old = before[dimension] if name != "input_batch" else prod(before[:-3])
            config = re.sub(rf"(\b{name} = ){old}\b", rf"\g<1>{size}", config)
        return config

    @staticmethod
    def infer(*operands: Shape, config: AttentionConfig, shape: Shape) -> Shape:
        arrays, sizes = _infer_sizes(operands, config, 9 + config.has_softmax_offset)
        check_auxiliary(result_shapes(shape, "the attention", 4 + config.has_largest)[1], sizes, config)
        return in_declared_form([ArrayShape(arrays[0].element_type, sizes.output)], shape)

    @staticmethod
    def evaluate(*operands: Array, config: AttentionConfig, shape: Shape, numerics: NumericsPolicy) -> CallResult:
        declared = result_shapes(shape, "the attention")
        rest = list(operands[4:])
        offset = rest.pop(0) if config.has_softmax_offset else None
        seed, *lengths = rest
        batch = Batch(operands, lengths[:4], config)
        sizes = batch.sizes
        output = np.zeros(
            (prod(sizes.batch) * sizes.queries, sizes.heads, sizes.value_depth), declared[0].element_type.storage
        )
        auxiliary_type = declared[1].element_type
        has_probabilities = holds_probabilities(declared[1].dimensions, sizes, config, auxiliary_type.name == "f32")
        auxiliary = np.full(declared[1].dimensions, 0 if has_probabilities else -np.inf, auxiliary_type.compute)
        places = batch.sums_by_sequence(auxiliary)
        for number, sequence in batch.sequences(_sink(config, offset, sizes.heads), numerics):
            value, weights = softmax.attention(sequence, with_probabilities=has_probabilities)
            output[batch.query_stretches[number]] = narrow(value, declared[0].element_type)
            place = places[number]
            if weights.probabilities is not None:
                place[..., : len(sequence.keys)] = weights.probabilities
            else:
                place[...] = weights.log_sum_exp.reshape(place.shape)
        results = zeros(declared)
        results[:2] = output.reshape(declared[0].dimensions), narrow(auxiliary, auxiliary_type)
        # The seed's 64 bits, and 0: how many random numbers the process used before, which matters with dropout alone.
        state = results[2 + config.has_largest].reshape(-1)
        count = min(2, seed.size, state.size)
        state[:count] = seed.reshape(-1)[:count]
        return tuple(results)


@custom_call("te_fused_attn_backward_ffi", config=_config, is_reproducible=True)
class FusedAttentionBackward:
    """The gradients of attention with respect to q, k, v, the bias and the softmax's offset

    Operands: q, k, v, bias, softmax offset (where there is a `softmax_type`), then what forward left (log-sum-exps or
    probabilities, state of the random numbers, output), the output's gradient, and lengths and offsets as in forward.
    The given log-sum-exps and output are used, not computed again. Results: gradients of the shapes of q, k, v, bias
    and (where it is an operand) the offset; a workspace. They are computed in f32 and rounded once; outside of
    sequences they are 0. Source: TransformerEngine, jax/csrc/extensions/attention.cpp (FusedAttnBackwardFFI).
    """

    @staticmethod
    def relate(use: Relating) -> None:
        count = 4 + use.config.has_softmax_offset
        auxiliary, state, output, gradient, *lengths = use.operands[count:]
        _relate_sequences(use, [*use.operands[3:count], *lengths])
        _relate_lengths(use, count + 4)
        _relate_auxiliary(use, auxiliary.axes)
        use.keep(state.axes, _STATE)
        for value in (output, gradient):
            _relate_output(use, value.axes)
        for operand, result in zip(use.operands[:count], use.result.parts, strict=False):
            use.same(operand.axes, result.axes)

    resize = staticmethod(FusedAttentionForward.resize)

    @staticmethod
    def infer(*operands: Shape, config: AttentionConfig, shape: Shape) -> Shape:
        count = 4 + config.has_softmax_offset
        arrays, sizes = _infer_sizes(operands, config, count + 8)
        check_auxiliary(arrays[count], sizes, config)
        for name, array in zip(("output", "output's gradient"), arrays[count + 2 : count + 4], strict=True):
            if array.dimensions != sizes.output:
                raise ShapeError(f"the attention's {name} must have dimensions {list(sizes.output)}, but is {array}")
        result_shapes(shape, "the attention's gradient", count + 1)
        return in_declared_form(arrays[:count], shape)

    @staticmethod
    def evaluate(*operands: Array, config: AttentionConfig, shape: Shape, numerics: NumericsPolicy) -> CallResult:
        count = 4 + config.has_softmax_offset
        declared = result_shapes(shape, "the attention's gradient")
        auxiliary, _, output, output_gradient, *lengths = operands[count:]
        batch = Batch(operands, lengths[:4], config)
        sizes = batch.sizes
        flat = [array.reshape(-1, sizes.heads, sizes.value_depth) for array in (output, output_gradient)]
        has_probabilities = holds_probabilities(
            auxiliary.shape, sizes, config, element_type_of(auxiliary.dtype).name == "f32"
        )
        dtype = softmax.working_type(operands[0], numerics)
        queries, keys, values = (np.zeros(array.shape, dtype) for array in (batch.queries, batch.keys, batch.values))
        bias = None if batch.bias is None else np.zeros(batch.bias.shape, dtype)
        sink = _sink(config, operands[4] if config.has_softmax_offset else None, sizes.heads)
        sink_gradient = np.zeros(sizes.heads, dtype)
        places = batch.sums_by_sequence(auxiliary)
        for number, sequence in batch.sequences(sink, numerics):
            here, there = batch.query_stretches[number], batch.key_stretches[number]
            left = widen(places[number])
            if has_probabilities:
                weights = softmax.Weights(np.zeros(left.shape[:2], dtype), left[..., : len(sequence.keys)])
            else:
                weights = softmax.Weights(left.reshape(left.shape[:2]).astype(dtype, copy=False), None)
            found = softmax.attention_gradients(sequence, weights, flat[0][here], flat[1][here])
            queries[here], keys[there], values[there] = found.queries, found.keys, found.values
            if bias is not None and found.bias is not None:
                softmax.add_summed(bias[number if len(bias) > 1 else 0], found.bias)
            if found.sink is not None:
                sink_gradient += found.sink
        results = _packed([queries, keys, values], operands, config.packed)
        # cuDNN has the gradient of a learned offset alone.
        results.append(np.zeros(operands[3].shape, dtype) if bias is None else bias)
        if config.has_softmax_offset:
            results.append(sink_gradient if config.softmax == "learnable" else np.zeros(operands[4].shape, dtype))
        gradients = [
            narrow(result, leaf.element_type).reshape(leaf.dimensions)
            for result, leaf in zip(results, declared[:count], strict=True)
        ]
        return with_scratch(gradients, shape)


def _packed(gradients: list[Array], operands: Sequence[Array], packed: int) -> list[Array]:
    """The gradients of q, k and v, the last `packed` of them in one array; operands that those stand for are 0."""
    if packed == 1:
        return gradients
    first = 3 - packed
    rest = [np.zeros(array.shape, gradients[0].dtype) for array in operands[first + 1 : 3]]
    return [*gradients[:first], np.stack(gradients[first:], 1), *rest]


_STATE = "it is the state of a random number generator"
_SIZES = {
    "input_batch": (0, 0),
    "q_max_seqlen": (0, -3),
    "attn_heads": (0, -2),
    "qk_head_dim": (0, -1),
    "head_dim": (0, -1),
    "kv_max_seqlen": (1, -3),
    "num_gqa_groups": (1, -2),
    "v_head_dim": (2, -1),
}
"""The operand and its dimension that each of these attributes repeats, where q, k and v are arrays of their own."""


def _relate_sequences(use: Relating, others: Sequence[Value]) -> None:
    """How q, k and v correspond. Biases, seeds and running sums of lengths stay."""
    if not use.config.has_plain_sequences:
        use.keep_all("how the dimensions of packed or biased attention depend on one another is not known")
        return
    query, key, value = (operand.axes for operand in use.operands[:3])
    use.same(query[:-3], key[:-3])
    use.same(key[:-1], value[:-1])
    use.same(query[-1:], key[-1:])
    use.multiple(query[-2], key[-2])
    for each in others:
        use.keep(each.axes, "the library call reads so many of them")


def _relate_lengths(use: Relating, first: int) -> None:
    """Running sums of lengths, the operand of this number for queries and the next for keys, count along sequences."""
    if use.config.has_plain_sequences:
        for number in range(2):
            use.positions(first + number, use.operands[number].axes[-3:-2])


def _relate_output(use: Relating, axes: Axes) -> None:
    """[batch..., s, heads, e]"""
    query, value = use.operands[0].axes, use.operands[2].axes
    if len(axes) == len(query) == len(value):
        use.same((*query[:-1], value[-1]), axes)
    else:
        use.keep_all("its output does not have the usual dimensions")


def _relate_auxiliary(use: Relating, axes: Axes) -> None:
    """[batch..., heads, s, 1], or [batch..., heads, s, t]."""
    query, key = use.operands[0].axes, use.operands[1].axes
    if len(axes) != len(query):
        use.keep_all("its log-sum-exps do not have the usual dimensions")
        return
    use.same(query[:-3], axes[:-3])
    use.same(query[-2:-1], axes[-3:-2])
    use.same(query[-3:-2], axes[-2:-1])
    if use.size(axes[-1]) > 1:
        use.same(key[-3:-2], axes[-1:])
