"""cuDNN's fused attention, forward and backward, in types of 8 bits and more.

Source: XLA, cudnn_custom_call_compiler.cc; JAX, fused_attention_stablehlo.py; cuDNN frontend, Attention.

Every 8-bit array represents its values times its descale factor. Values that the call itself converts to 8 bits,
including probabilities, are multiplied by a scale factor, saturated and rounded. Source: JAX,
fused_attention_stablehlo.py (…fp8…); cuDNN frontend, Attention (SDPA FP8).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import prod

import numpy as np

from hloexec.core.dtypes import DType, element_type_of
from hloexec.core.ir import ArrayShape, ArrayShapes, Instruction, Shape
from hloexec.core.values import Array, Dimensions
from hloexec.errors import EvaluationError, UnsupportedError
from hloexec.ops.common import narrow, require, widen
from hloexec.ops.library_calls import activations as softmax
from hloexec.ops.library_calls.configs import CallResult, saturating
from hloexec.ops.library_calls.cudnn.attention_parts import (
    KINDS,
    AttentionConfig,
    Batch,
    attention_config,
    backward,
    check_heads,
    check_outputs,
    forward,
    heads_first,
    named,
    named_shapes,
    product,
    result_count,
    results_of,
    rounded_results,
    shared_heads,
    summed_heads,
    tokens,
)
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.registry import custom_call
from hloexec.ops.relations import Requirement, Starts, Within


def _config(instruction: Instruction) -> AttentionConfig:
    if instruction.attributes.called_computations or instruction.attributes.to_apply:
        raise UnsupportedError("it calls a computation, to modify its scores")
    return attention_config(instruction)


def operand_names(config: AttentionConfig) -> list[str]:
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
    check_heads(queries, keys, values)
    batch, scores = queries[0], (*queries[:3], keys[2])
    for name in ("bias", "mask"):
        if name in shapes:
            dimensions = shapes[name].dimensions
            dimensions = (dimensions[0], 1, *dimensions[1:]) if len(dimensions) == 3 else dimensions
            require(
                len(dimensions) == 4 and all(size in (1, most) for size, most in zip(dimensions, scores, strict=True)),
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


def _required(*, operand_shapes: ArrayShapes, config: AttentionConfig) -> Iterator[Requirement]:
    """Lengths of at most a row, of which none or less is none; offsets within all rows, and blocks that there are."""
    names = operand_names(config)
    shapes = dict(zip(names, operand_shapes, strict=True))
    queries, keys, _ = _sizes(shapes, config)
    for side, (batch, heads, rows, depth) in (("query", queries), ("key", keys)):
        if config.has_lengths:
            lengths = names.index(f"{side} lengths")
            yield Within(lengths, -1, batch * rows if config.is_packed and side == "key" else rows)
        if config.is_packed:
            count, unit = operand_shapes[lengths].element_count, heads * depth
            starts = names.index(f"{side} offsets")
            yield Starts(starts, lengths, are_sums=False, count=count, room=batch * rows, unit=unit)
    if config.is_paged:
        for side, number in (("key", 1), ("value", 2)):
            blocks = operand_shapes[number].dimensions[config.placements[names[number]].batch[0]]
            yield Within(names.index(f"{side} pages"), 0, blocks - 1)


def _results(
    older: Callable[..., Sequence[Array]],
    flash: Callable[..., Sequence[Array]],
    *operands: Array,
    config: AttentionConfig,
    shape: Shape,
    numerics: NumericsPolicy,
) -> CallResult:
    """What attention, or its gradient, is in the form that the config says, rounded."""
    given = named(operands, operand_names(config), "the attention", EvaluationError)
    if config.is_flash:
        batch = Batch.of(given, config, numerics)
        results = flash(given, config, batch, element_type_of(batch.queries.dtype).accumulate)
    else:
        results = older(given, config, numerics)
    return rounded_results(results, shape, narrow)


def _forward(arrays: Mapping[str, Array], config: AttentionConfig, batch: Batch, dtype: DType) -> Sequence[Array]:
    count, heads, rows, _ = batch.queries.shape
    output = np.zeros((count * rows, heads, batch.values.shape[3]), dtype)
    sums = np.full((arrays["query lengths"].size if config.is_packed else count, heads, rows), -np.inf, dtype)
    for stretch, sequence in batch.sequences():
        value, weights = softmax.attention(sequence)
        output[stretch.queries] = value
        sums[stretch.row, :, : stretch.length] = weights.log_sum_exp
    return [heads_first(output, count), sums]


def _backward(arrays: Mapping[str, Array], config: AttentionConfig, batch: Batch, dtype: DType) -> Sequence[Array]:
    count, heads, rows, _ = batch.queries.shape
    sums = widen(arrays["statistics"]).astype(dtype, copy=False).reshape(-1, heads, rows)
    outer, output = map(tokens, config.canonical(arrays, "output gradient", "output"))
    gradients = [np.zeros(tokens(array).shape, dtype) for array in (batch.queries, batch.keys, batch.values)]
    bias_gradient = None if batch.bias is None else np.zeros(batch.bias.shape, dtype)
    for stretch, sequence in batch.sequences():
        here = stretch.queries
        weights = softmax.Weights(sums[stretch.row, :, : stretch.length], None)
        gradient = softmax.attention_gradients(sequence, weights, output[here], outer[here])
        gradients[0][here] = gradient.queries
        gradients[1][stretch.keys], gradients[2][stretch.keys] = gradient.keys, gradient.values
        if bias_gradient is not None and gradient.bias is not None:
            softmax.add_summed(bias_gradient[stretch.row if len(bias_gradient) > 1 else 0], gradient.bias)
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
        shapes = named_shapes(operands, operand_names(config), "the attention")
        queries, keys, values = _sizes(shapes, config)
        expected: list[Dimensions] = [(*queries[:3], values[3])]
        if result_count(shape) > 1:
            count = shapes["query lengths"].element_count if config.is_packed else queries[0]
            expected.append((count, *queries[1:3]) if config.is_flash else (*queries[:3], keys[2]))
        return results_of(shape, expected, "the attention")

    requires = staticmethod(_required)
    evaluate = staticmethod(partial(_results, forward, _forward))


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
        shapes = named_shapes(operands, operand_names(config), "the attention")
        queries, keys, values = _sizes(shapes, config)
        check_outputs(shapes, config, (*queries[:3], values[3]), "the attention")
        (batch, heads, rows, _), columns = queries, keys[2]
        left = shapes["statistics"]
        if config.is_flash:
            count = shapes["query lengths"].element_count if config.is_packed else batch
            fits = left.element_count == count * heads * rows
        else:
            fits = config.placements["statistics"].shape(left, "what forward left") == (batch, heads, rows, columns)
        require(fits, f"what forward left does not fit attention of {[batch, heads, rows, columns]}: it is {left}")
        expected: list[Dimensions] = [queries, keys, values]
        if not config.is_flash:
            expected.append((batch, heads, rows, columns))
        if config.kind.has_bias and result_count(shape) > len(expected):
            expected.append(shapes["bias"].dimensions if config.is_flash else (1, heads, rows, columns))
        return results_of(shape, expected, "the attention's gradient")

    requires = staticmethod(_required)
    evaluate = staticmethod(partial(_results, backward, _backward))


_FORWARD = "queries keys values descale_q descale_k descale_v descale_s scale_s scale_o".split()
_BACKWARD = [
    *("queries", "keys", "values", "output", "output gradient", "statistics"),
    *"descale_q descale_k descale_v descale_o descale_dO descale_s descale_dP".split(),
    *"scale_s scale_dQ scale_dK scale_dV scale_dP".split(),
]


def _shapes(operands: Sequence[Shape], names: Sequence[str]) -> dict[str, ArrayShape]:
    shapes = named_shapes(operands, names, "8-bit attention")
    for name, shape in shapes.items():
        require(
            "scale" not in name or shape.element_count == 1,
            f"{name} of 8-bit attention must be one number, not {shape}",
        )
    return shapes


def _factors(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Scales and descales by name, as f32 scalars."""
    return {name: widen(array).reshape(())[()] for name, array in arrays.items() if "scale" in name}


def _scores(
    queries: Array, keys: Array, factor: Mapping[str, Array], config: AttentionConfig, numerics: NumericsPolicy
) -> Array:
    """`[batch, heads, queries, keys]` in f32; −∞ where a query does not see a key."""
    scale = np.float32(config.scale) * factor["descale_q"] * factor["descale_k"]
    scores = product(queries, shared_heads(keys, queries.shape[1]), "tk,sk->ts", numerics) * scale
    rows, columns = scores.shape[2:]
    hidden = config.band.hidden(slice(0, rows), rows, columns)
    if hidden is not None:
        scores[..., hidden] = -np.inf
    return scores


def _largest(array: Array) -> Array:
    return np.asarray(np.abs(array).max(initial=0)).reshape(1, 1, 1, 1)


@custom_call(
    *(target for target, kind in KINDS.items() if kind.is_8_bit and not kind.is_backward), config=attention_config
)
class Attention8:
    """P = softmax(fmha_scale · descale_q · descale_k · q · kᵀ), O = descale_s · descale_v · P₈ · v, o = scale_o · O

    P₈ is scale_s · P in the type of q. Operands: q, k, v, descale_q, descale_k, descale_v, descale_s, scale_s, scale_o.
    Results: o [batch, heads, queries, depth of v], the largest magnitudes of P and of O, in training the log-sum-exp of
    every query's scores (f32), scratch memory (u8, zeros). Masks are causal or none. Source: cuDNN frontend, SDPA FP8
    Forward.
    """

    @staticmethod
    def infer(*operands: Shape, config: AttentionConfig, shape: Shape) -> Shape:
        queries, keys, values = config.shapes(_shapes(operands, _FORWARD))
        check_heads(queries, keys, values)
        expected = [(*queries[:3], values[3]), (1, 1, 1, 1), (1, 1, 1, 1), queries[:3]]
        return results_of(shape, expected[: max(3, result_count(shape))], "8-bit attention")

    @staticmethod
    def evaluate(*operands: Array, config: AttentionConfig, shape: Shape, numerics: NumericsPolicy) -> CallResult:
        given = named(operands, _FORWARD, "8-bit attention", EvaluationError)
        factor = _factors(given)
        queries, keys, values = config.canonical(given)
        scores = _scores(queries, keys, factor, config, numerics)
        largest = scores.max(-1, keepdims=True, initial=-np.inf)
        largest[largest == -np.inf] = 0
        weights = np.exp(scores - largest)
        total = weights.sum(-1, keepdims=True)
        statistics = (largest + np.log(total))[..., 0]
        weights = weights / np.where(total == 0, np.float32(1), total)
        narrow_weights = saturating(weights * factor["scale_s"], element_type_of(queries.dtype))
        output = product(narrow_weights, shared_heads(values, queries.shape[1]), "ts,sk->tk", numerics)
        output = output * (factor["descale_s"] * factor["descale_v"])
        results = [output * factor["scale_o"], _largest(weights), _largest(output), statistics]
        return rounded_results(results, shape, saturating)


@custom_call(*(target for target, kind in KINDS.items() if kind.is_8_bit and kind.is_backward), config=attention_config)
class AttentionBackward8:
    """The gradients of 8-bit attention with respect to q, k and v

    With q, k, v, o and dO descaled, and P from the scores and the given log-sum-exps: P₈ = scale_s · P, in the type of
    q; dV = descale_s · P₈ᵀ · dO; D = fmha_scale · P ∘ (dO · vᵀ − Σ dO ∘ o); D₈ = scale_dP · D, in the type of dO;
    dQ = descale_dP · D₈ · k; dK = descale_dP · D₈ᵀ · q. Operands: q, k, v, o, dO, the log-sum-exps, descale_q,
    descale_k, descale_v, descale_o, descale_dO, descale_s, descale_dP, scale_s, scale_dQ, scale_dK, scale_dV, scale_dP.
    Results: dQ, dK and dV, scaled, the largest magnitudes of dQ, dK, dV (unscaled) and D, scratch memory (u8, zeros).
    Source: cuDNN frontend, SDPA FP8 Backward.
    """

    @staticmethod
    def infer(*operands: Shape, config: AttentionConfig, shape: Shape) -> Shape:
        shapes = _shapes(operands, _BACKWARD)
        queries, keys, values = config.shapes(shapes)
        check_heads(queries, keys, values)
        check_outputs(shapes, config, (*queries[:3], values[3]), "8-bit attention")
        require(
            shapes["statistics"].element_count == prod(queries[:3]),
            f"the log-sum-exps must be {list(queries[:3])}, but are {shapes['statistics']}",
        )
        return results_of(shape, [queries, keys, values, *[(1, 1, 1, 1)] * 4], "the gradient of 8-bit attention")

    @staticmethod
    def evaluate(*operands: Array, config: AttentionConfig, shape: Shape, numerics: NumericsPolicy) -> CallResult:
        given = named(operands, _BACKWARD, "8-bit attention", EvaluationError)
        factor = _factors(given)
        queries, keys, values, output, gradient = config.canonical(
            given, "queries", "keys", "values", "output", "output gradient"
        )
        heads, groups = queries.shape[1], keys.shape[1]
        statistics = widen(given["statistics"]).reshape(*queries.shape[:3], 1)
        scores = _scores(queries, keys, factor, config, numerics)
        weights = np.where(scores == -np.inf, np.float32(0), np.exp(scores - statistics))
        narrow_weights = saturating(weights * factor["scale_s"], element_type_of(queries.dtype))
        value_gradient = summed_heads(product(narrow_weights, gradient, "ts,tk->sk", numerics), groups)
        value_gradient = value_gradient * (factor["descale_s"] * factor["descale_dO"])
        delta = product(gradient, shared_heads(values, heads), "tk,sk->ts", numerics)
        delta = delta * (factor["descale_dO"] * factor["descale_v"])
        mean = (widen(gradient) * widen(output)).sum(-1, keepdims=True)
        delta = delta - mean * (factor["descale_dO"] * factor["descale_o"])
        delta = np.float32(config.scale) * weights * delta
        narrow_delta = saturating(delta * factor["scale_dP"], element_type_of(gradient.dtype))
        query_gradient = product(narrow_delta, shared_heads(keys, heads), "ts,sk->tk", numerics)
        query_gradient = query_gradient * (factor["descale_dP"] * factor["descale_k"])
        key_gradient = summed_heads(product(narrow_delta, queries, "ts,tk->sk", numerics), groups)
        key_gradient = key_gradient * (factor["descale_dP"] * factor["descale_q"])
        results = [
            query_gradient * factor["scale_dQ"],
            key_gradient * factor["scale_dK"],
            value_gradient * factor["scale_dV"],
            *map(_largest, (query_gradient, key_gradient, value_gradient, delta)),
        ]
        return rounded_results(results, shape, saturating)
