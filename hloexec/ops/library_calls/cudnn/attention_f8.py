"""cuDNN's fused attention in 8-bit floats, forward and backward.

Every 8-bit array represents its values times its descale factor. Values that the call itself converts to 8 bits,
including probabilities, are multiplied by a scale factor, saturated and rounded. Source: JAX,
fused_attention_stablehlo.py (…fp8…); cuDNN frontend, Attention (SDPA FP8).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import ArrayShape, Shape
from hloexec.core.values import Array
from hloexec.errors import EvaluationError
from hloexec.ops.common import require, widen
from hloexec.ops.library_calls.cudnn import attention_arrays as arrays
from hloexec.ops.library_calls.cudnn.attention_config import KINDS, AttentionConfig, attention_config
from hloexec.ops.library_calls.cudnn.attention_unfused import product, shared_heads, summed_heads
from hloexec.ops.library_calls.shapes import CallResult, saturating
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.ops.registry import custom_call

_FORWARD = "queries keys values descale_q descale_k descale_v descale_s scale_s scale_o".split()
_BACKWARD = [
    *("queries", "keys", "values", "output", "output gradient", "statistics"),
    *"descale_q descale_k descale_v descale_o descale_dO descale_s descale_dP".split(),
    *"scale_s scale_dQ scale_dK scale_dV scale_dP".split(),
]


def _shapes(operands: Sequence[Shape], names: Sequence[str]) -> dict[str, ArrayShape]:
    shapes = arrays.named_shapes(operands, names, "8-bit attention")
    for name, shape in shapes.items():
        require(
            "scale" not in name or shape.element_count == 1,
            f"{name} of 8-bit attention must be one number, not {shape}",
        )
    return shapes


def _factors(given: Mapping[str, Array]) -> dict[str, Array]:
    """Scales and descales by name, as f32 scalars."""
    return {name: widen(array).reshape(())[()] for name, array in given.items() if "scale" in name}


def _scores(queries: Array, keys: Array, factor: Array, config: AttentionConfig, numerics: NumericsPolicy) -> Array:
    """`[batch, heads, queries, keys]` in f32; −∞ where a query does not see a key."""
    scores = product(queries, shared_heads(keys, queries.shape[1]), "tk,sk->ts", numerics) * factor
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
        arrays.check_heads(queries, keys, values)
        expected = [(*queries[:3], values[3]), (1, 1, 1, 1), (1, 1, 1, 1), queries[:3]]
        return arrays.results_of(shape, expected[: max(3, arrays.result_count(shape))], "8-bit attention")

    @staticmethod
    def evaluate(*operands: Array, config: AttentionConfig, shape: Shape, numerics: NumericsPolicy) -> CallResult:
        given = arrays.named(operands, _FORWARD, "8-bit attention", EvaluationError)
        factor = _factors(given)
        queries, keys, values = config.canonical(given)
        with np.errstate(all="ignore"):
            scale = np.float32(config.scale) * factor["descale_q"] * factor["descale_k"]
            scores = _scores(queries, keys, scale, config, numerics)
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
        return arrays.rounded_results(results, shape, saturating)


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
        arrays.check_heads(queries, keys, values)
        arrays.check_outputs(shapes, config, (*queries[:3], values[3]), "8-bit attention")
        require(
            shapes["statistics"].element_count == prod(queries[:3]),
            f"the log-sum-exps must be {list(queries[:3])}, but are {shapes['statistics']}",
        )
        return arrays.results_of(shape, [queries, keys, values, *[(1, 1, 1, 1)] * 4], "the gradient of 8-bit attention")

    @staticmethod
    def evaluate(*operands: Array, config: AttentionConfig, shape: Shape, numerics: NumericsPolicy) -> CallResult:
        given = arrays.named(operands, _BACKWARD, "8-bit attention", EvaluationError)
        factor = _factors(given)
        queries, keys, values, output, gradient = config.canonical(
            given, "queries", "keys", "values", "output", "output gradient"
        )
        heads, groups = queries.shape[1], keys.shape[1]
        statistics = widen(given["statistics"]).reshape(*queries.shape[:3], 1)
        with np.errstate(all="ignore"):
            scale = np.float32(config.scale) * factor["descale_q"] * factor["descale_k"]
            scores = _scores(queries, keys, scale, config, numerics)
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
        return arrays.rounded_results(results, shape, saturating)
