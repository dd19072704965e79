"""cuDNN's fused attention, forward and backward, of types of 16 bits and more.

Source: XLA, cudnn_custom_call_compiler.cc; JAX, fused_attention_stablehlo.py; cuDNN frontend, Attention.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np

from hloexec.core.dtypes import DType, element_type_of
from hloexec.core.ir import ArrayShape, Instruction, Shape
from hloexec.core.values import Array
from hloexec.errors import EvaluationError, UnsupportedError
from hloexec.ops.common import narrow, require, widen
from hloexec.ops.library_calls import attention as softmax
from hloexec.ops.library_calls.cudnn import attention_arrays as arrays
from hloexec.ops.library_calls.cudnn import attention_unfused as unfused
from hloexec.ops.library_calls.cudnn.attention_config import KINDS, AttentionConfig, attention_config
from hloexec.ops.library_calls.cudnn.attention_sequences import Batch, heads_first, tokens
from hloexec.ops.library_calls.shapes import CallResult
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.registry import custom_call


def _config(instruction: Instruction) -> AttentionConfig:
    if instruction.attributes.called_computations or instruction.attributes.to_apply:
        raise UnsupportedError("it calls a computation, to modify its scores")
    return attention_config(instruction)


def _operand_names(config: AttentionConfig) -> list[str]:
    """The operands in order."""
    kind = config.kind
    names = ["queries", "keys", "values"]
    if kind.is_backward:
        names += ["statistics", "output gradient"]
    # The older form has the mask before the bias, of which the gradient has no need.
    names += ["mask"] * kind.has_mask
    names += ["bias"] * (kind.has_bias and (config.is_flash or not kind.is_backward))
    names += ["output"] * (kind.is_backward and config.is_flash)
    names += ["query lengths", "key lengths"] * config.has_lengths
    names += ["query offsets", "key offsets"] * config.is_packed
    names += ["key pages", "value pages"] * config.is_paged
    return names


def _sizes(shapes: dict[str, ArrayShape], config: AttentionConfig) -> tuple[tuple[int, int, int, int], ...]:
    """Batch, heads, rows and depth of queries, keys and values; ShapeError where operands do not fit them."""
    queries, keys, values = config.shapes(shapes)
    if config.is_paged:
        for name in ("key pages", "value pages"):
            table = shapes[name]
            require(
                table.element_type.is_integral
                and table.rank == 4
                and table.dimensions[0] == queries[0]
                and table.dimensions[1::2] == (1, 1),
                f"the {name} of the attention must be [{queries[0]}, 1, blocks, 1], but are {table}",
            )
        keys, values = (
            (queries[0], blocks[1], shapes[name].dimensions[2] * blocks[2], blocks[3])
            for blocks, name in ((keys, "key pages"), (values, "value pages"))
        )
    arrays.check_heads(queries, keys, values)
    batch, scores = queries[0], (*queries[:3], keys[2])
    for name in ("bias", "mask"):
        if name in shapes:
            found = shapes[name].dimensions
            found = (found[0], 1, *found[1:]) if len(found) == 3 else found
            require(
                len(found) == 4 and all(size in (1, most) for size, most in zip(found, scores, strict=True)),
                f"the {name} of the attention must broadcast to {list(scores)}, but is {shapes[name]}",
            )
    for name in ("query lengths", "key lengths"):
        if name in shapes:
            count = shapes[name].element_count
            require(
                shapes[name].element_type.is_integral and (count == batch or (config.is_packed and count % batch == 0)),
                f"the {name} of the attention must be {batch} integers (more where packed), but are {shapes[name]}",
            )
    for name in ("query offsets", "key offsets"):
        if name in shapes:
            require(
                shapes[name].element_type.is_integral
                and shapes[name].element_count >= shapes["query lengths"].element_count
                and shapes["query lengths"].element_count == shapes["key lengths"].element_count,
                f"the {name} of the attention must be as many as there are sequences, but are {shapes[name]}",
            )
    return queries, keys, values


def _results(
    older: Callable[..., Sequence[Array]],
    flash: Callable[..., Sequence[Array]],
    *operands: Array,
    config: AttentionConfig,
    shape: Shape,
    numerics: NumericsPolicy,
) -> CallResult:
    """What attention, or its gradient, is in the form that the config says, rounded."""
    given = arrays.named(operands, _operand_names(config), "the attention", EvaluationError)
    if config.is_flash:
        batch = Batch.of(given, config, numerics)
        found = flash(given, config, batch, element_type_of(batch.queries.dtype).accumulate)
    else:
        found = older(given, config, numerics)
    return arrays.rounded_results(found, shape, narrow)


def _forward(given: Mapping[str, Array], config: AttentionConfig, batch: Batch, dtype: DType) -> Sequence[Array]:
    count, heads, rows, _ = batch.queries.shape
    output = np.zeros((count * rows, heads, batch.values.shape[3]), dtype)
    sums = np.full((given["query lengths"].size if config.is_packed else count, heads, rows), -np.inf, dtype)
    for stretch, sequence in batch.sequences():
        value, weights = softmax.attention(sequence)
        output[stretch.queries] = value
        sums[stretch.row, :, : stretch.length] = weights.log_sum_exp
    return [heads_first(output, count), sums]


def _backward(given: Mapping[str, Array], config: AttentionConfig, batch: Batch, dtype: DType) -> Sequence[Array]:
    count, heads, rows, _ = batch.queries.shape
    sums = widen(given["statistics"]).astype(dtype, copy=False).reshape(-1, heads, rows)
    outer, output = map(tokens, config.canonical(given, "output gradient", "output"))
    gradients = [np.zeros(tokens(array).shape, dtype) for array in (batch.queries, batch.keys, batch.values)]
    bias_gradient = None if batch.bias is None else np.zeros(batch.bias.shape, dtype)
    for stretch, sequence in batch.sequences():
        here = stretch.queries
        weights = softmax.Weights(sums[stretch.row, :, : stretch.length], None)
        found = softmax.attention_gradients(sequence, weights, output[here], outer[here])
        gradients[0][here] = found.queries
        gradients[1][stretch.keys], gradients[2][stretch.keys] = found.keys, found.values
        if bias_gradient is not None and found.bias is not None:
            softmax.add_summed(bias_gradient[stretch.row if len(bias_gradient) > 1 else 0], found.bias)
    return [*(heads_first(flat, count) for flat in gradients), *([] if bias_gradient is None else [bias_gradient])]


@custom_call(*(target for target, kind in KINDS.items() if not kind.is_backward and not kind.is_8_bit), config=_config)
class Attention:
    """softmax(fmha_scale · q · kᵀ + bias, hidden keys left out) · v, computed in f32 and rounded once

    Operands: q, k, v, in the order of dimensions that the config's dimension numbers tell, heads of k and v being
    shared where they are fewer; the bias, broadcast to [batch, heads, queries, keys]; with padding, lengths of queries
    and keys [batch]; with max_seg_per_batch, such lengths and where each sequence starts, in elements; with
    is_paged_attention, lengths and tables [batch, 1, blocks, 1] of the blocks that k and v consist of. Query i sees the
    keys up to i where there is a causal mask, those from i − window + 1 where there is a window. Results: [batch,
    heads, queries, depth of v]; in training, the log-sum-exp of every query's scores (f32); scratch memory (u8, zeros).
    Outside of a sequence there are zeros, and −∞ as the log-sum-exp.

    The older form, without is_flash_attention: a mask multiplies the scores, after the bias; in training, the
    probabilities [batch, heads, queries, keys] are the second result; BmmBmm has no softmax at all. Source: XLA,
    cudnn_fused_mha_rewriter.cc, cuda_dnn.cc; cuDNN frontend, Attention.
    """

    @staticmethod
    def infer(*operands: Shape, config: AttentionConfig, shape: Shape) -> Shape:
        shapes = arrays.named_shapes(operands, _operand_names(config), "the attention")
        queries, keys, values = _sizes(shapes, config)
        expected: list[tuple[int, ...]] = [(*queries[:3], values[3])]
        if arrays.result_count(shape) > 1:
            count = shapes["query lengths"].element_count if config.is_packed else queries[0]
            expected.append((count, *queries[1:3]) if config.is_flash else (*queries[:3], keys[2]))
        return arrays.results_of(shape, expected, "the attention")

    evaluate = staticmethod(partial(_results, unfused.forward, _forward))


@custom_call(*(target for target, kind in KINDS.items() if kind.is_backward and not kind.is_8_bit), config=_config)
class AttentionBackward:
    """The gradients of attention with respect to q, k, v and the bias, computed in f32 and each rounded once

    Operands: q, k, v, the log-sum-exps that forward left, the output's gradient, the bias, the output, and lengths and
    offsets as forward's. The log-sum-exps and the output are used as given. Results: gradients of q, k and v, [batch,
    heads, rows, depth] whatever the order of dimensions of q, k and v; of the bias (where there is one and the call
    declares it), summed over the dimensions along which it was broadcast; scratch memory (u8, zeros). Outside of a
    sequence gradients are 0.

    The older form, without is_flash_attention, is given probabilities in place of log-sum-exps, the mask, and no bias
    or output. After the gradient of v it returns that of the scores before they were scaled [batch, heads, queries,
    keys], and that of a bias, summed over the batch, last. Source: XLA, cudnn_fused_mha_rewriter.cc, cuda_dnn.cc;
    FlashAttention-2, algorithm 2.
    """

    @staticmethod
    def infer(*operands: Shape, config: AttentionConfig, shape: Shape) -> Shape:
        shapes = arrays.named_shapes(operands, _operand_names(config), "the attention")
        queries, keys, values = _sizes(shapes, config)
        arrays.check_outputs(shapes, config, (*queries[:3], values[3]), "the attention")
        (batch, heads, rows, _), columns = queries, keys[2]
        left = shapes["statistics"]
        if config.is_flash:
            count = shapes["query lengths"].element_count if config.is_packed else batch
            fits = left.element_count == count * heads * rows
        else:
            fits = config.placements["statistics"].shape(left, "what forward left") == (batch, heads, rows, columns)
        require(fits, f"what forward left does not fit attention of {[batch, heads, rows, columns]}: it is {left}")
        expected: list[tuple[int, ...]] = [queries, keys, values]
        if not config.is_flash:
            expected.append((batch, heads, rows, columns))
        if config.kind.has_bias and arrays.result_count(shape) > len(expected):
            expected.append(shapes["bias"].dimensions if config.is_flash else (1, heads, rows, columns))
        return arrays.results_of(shape, expected, "the attention's gradient")

    evaluate = staticmethod(partial(_results, unfused.backward, _backward))
