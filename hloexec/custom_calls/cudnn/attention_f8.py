"""cuDNN's fused attention in 8-bit floats, forward and backward.

Every 8-bit array stands for itself times its descale factor; what the call itself makes 8-bit, probabilities included,
is multiplied by a scale factor, saturated and rounded. Source: JAX, fused_attention_stablehlo.py (…fp8…); cuDNN
frontend, Attention (SDPA FP8).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hloexec.custom_calls.cudnn.attention import check_heads
from hloexec.custom_calls.cudnn.attention_config import KINDS, AttentionConfig, attention_config
from hloexec.custom_calls.cudnn.attention_results import result_count, results_of, rounded_results
from hloexec.custom_calls.cudnn.attention_unfused import product, shared_heads, summed_heads
from hloexec.custom_calls.cudnn.fields import refused_by, require_floating, require_named, saturating
from hloexec.custom_calls.registry import custom_call
from hloexec.dtypes import element_type_of
from hloexec.errors import EvaluationError, ShapeError
from hloexec.ir import ArrayShape, Instruction, Shape
from hloexec.ops.common import array_shape, require, widen
from hloexec.ops.control.flow import CustomCallAttributes
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy
from hloexec.values import Array

__all__: list[str] = []

_FORWARD = "queries keys values descale_q descale_k descale_v descale_s scale_s scale_o".split()
_BACKWARD = (
    "queries keys values output gradient statistics descale_q descale_k descale_v descale_o descale_dO descale_s "
    "descale_dP scale_s scale_dQ scale_dK scale_dV scale_dP"
).split()


def _check(instruction: Instruction) -> None:
    attention_config(instruction.attributes.custom_call_target, instruction.backend_config)


def _shapes(operands: Sequence[Shape], names: Sequence[str]) -> dict[str, ArrayShape]:
    require_named(operands, names, "8-bit attention", ShapeError)
    shapes = {name: array_shape(shape, name) for name, shape in zip(names, operands, strict=True)}
    require_floating(shapes.values(), "8-bit attention")
    for name, shape in shapes.items():
        require(
            "scale" not in name or shape.element_count == 1,
            f"{name} of 8-bit attention must be one number, not {shape}",
        )
    return shapes


def _named(operands: Sequence[Array], names: Sequence[str]) -> tuple[dict[str, Array], dict[str, Array]]:
    """Arrays and factors by name, the latter as f32 scalars."""
    require_named(operands, names, "8-bit attention", EvaluationError)
    named = dict(zip(names, operands, strict=True))
    factors = {name: widen(array).reshape(())[()] for name, array in named.items() if "scale" in name}
    return {name: array for name, array in named.items() if name not in factors}, factors


def _sizes(shapes: dict[str, ArrayShape], config: AttentionConfig) -> tuple[tuple[int, int, int, int], int, int, int]:
    """Batch, heads, queries, keys; heads of keys; depths of keys and of values."""
    queries, keys, values = (
        config.placements[role].shape(shapes[role], role) for role in ("queries", "keys", "values")
    )
    return check_heads(queries, keys, values), keys[1], keys[3], values[3]


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


def _in_8_bits(array: Array, like: Array) -> Array:
    return saturating(array, element_type_of(like.dtype))


@custom_call(*(target for target, kind in KINDS.items() if kind.is_8_bit and not kind.is_backward))
class Attention8:
    """P = softmax(fmha_scale · descale_q · descale_k · q · kᵀ), O = descale_s · descale_v · P₈ · v, o = scale_o · O

    P₈ is scale_s · P in the type of q. Operands: q, k, v, descale_q, descale_k, descale_v, descale_s, scale_s, scale_o.
    Results: o [batch, heads, queries, depth of v], the largest magnitudes of P and of O, in training the log-sum-exp of
    every query's scores (f32), scratch memory (u8, zeros). Masks are causal or none. Source: cuDNN frontend, SDPA FP8
    Forward.
    """

    @staticmethod
    def infer(*operands: Shape, attributes: CustomCallAttributes, backend_config: str | None, shape: Shape) -> Shape:
        config = attention_config(attributes.custom_call_target, backend_config)
        (batch, heads, rows, _), _, _, depth = _sizes(_shapes(operands, _FORWARD), config)
        expected: list[tuple[int, ...]] = [
            (batch, heads, rows, depth),
            (1, 1, 1, 1),
            (1, 1, 1, 1),
            (batch, heads, rows),
        ]
        return results_of(shape, expected[: max(3, result_count(shape))], "8-bit attention")

    supports = refused_by(_check)

    @staticmethod
    def evaluate(
        *operands: Array,
        attributes: CustomCallAttributes,
        backend_config: str | None,
        shape: Shape,
        numerics: NumericsPolicy = REFERENCE,
    ) -> Array | tuple[Array, ...]:
        config = attention_config(attributes.custom_call_target, backend_config)
        named, factor = _named(operands, _FORWARD)
        queries, keys, values = (
            config.placements[role].canonical(named[role]) for role in ("queries", "keys", "values")
        )
        with np.errstate(all="ignore"):
            scale = np.float32(config.scale) * factor["descale_q"] * factor["descale_k"]
            scores = _scores(queries, keys, scale, config, numerics)
            largest = scores.max(-1, keepdims=True, initial=-np.inf)
            largest[largest == -np.inf] = 0
            weights = np.exp(scores - largest)
            total = weights.sum(-1, keepdims=True)
            statistics = (largest + np.log(total))[..., 0]
            weights = weights / np.where(total == 0, np.float32(1), total)
            narrow_weights = _in_8_bits(weights * factor["scale_s"], queries)
            output = product(narrow_weights, shared_heads(values, queries.shape[1]), "ts,sk->tk", numerics)
            output = output * (factor["descale_s"] * factor["descale_v"])
            results = [output * factor["scale_o"], _largest(weights), _largest(output), statistics]
        return rounded_results(results, shape, saturating)


@custom_call(*(target for target, kind in KINDS.items() if kind.is_8_bit and kind.is_backward))
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
    def infer(*operands: Shape, attributes: CustomCallAttributes, backend_config: str | None, shape: Shape) -> Shape:
        config = attention_config(attributes.custom_call_target, backend_config)
        shapes = _shapes(operands, _BACKWARD)
        (batch, heads, rows, columns), groups, depth, value_depth = _sizes(shapes, config)
        for name in ("output", "gradient"):
            found = config.placements["output"].shape(shapes[name], f"the {name} of 8-bit attention")
            require(
                found == (batch, heads, rows, value_depth),
                f"the {name} of 8-bit attention must be {[batch, heads, rows, value_depth]}, but is {shapes[name]}",
            )
        require(
            shapes["statistics"].element_count == batch * heads * rows,
            f"the log-sum-exps must be {[batch, heads, rows]}, but are {shapes['statistics']}",
        )
        expected: list[tuple[int, ...]] = [
            (batch, heads, rows, depth),
            (batch, groups, columns, depth),
            (batch, groups, columns, value_depth),
            *[(1, 1, 1, 1)] * 4,
        ]
        return results_of(shape, expected, "the gradient of 8-bit attention")

    supports = refused_by(_check)

    @staticmethod
    def evaluate(
        *operands: Array,
        attributes: CustomCallAttributes,
        backend_config: str | None,
        shape: Shape,
        numerics: NumericsPolicy = REFERENCE,
    ) -> Array | tuple[Array, ...]:
        config = attention_config(attributes.custom_call_target, backend_config)
        named, factor = _named(operands, _BACKWARD)
        queries, keys, values = (
            config.placements[role].canonical(named[role]) for role in ("queries", "keys", "values")
        )
        output, gradient = (config.placements["output"].canonical(named[name]) for name in ("output", "gradient"))
        heads, groups = queries.shape[1], keys.shape[1]
        statistics = widen(named["statistics"]).reshape(*queries.shape[:3], 1)
        with np.errstate(all="ignore"):
            scale = np.float32(config.scale) * factor["descale_q"] * factor["descale_k"]
            scores = _scores(queries, keys, scale, config, numerics)
            weights = np.where(scores == -np.inf, np.float32(0), np.exp(scores - statistics))
            narrow_weights = _in_8_bits(weights * factor["scale_s"], queries)
            value_gradient = summed_heads(product(narrow_weights, gradient, "ts,tk->sk", numerics), groups)
            value_gradient = value_gradient * (factor["descale_s"] * factor["descale_dO"])
            delta = product(gradient, shared_heads(values, heads), "tk,sk->ts", numerics)
            delta = delta * (factor["descale_dO"] * factor["descale_v"])
            mean = (widen(gradient) * widen(output)).sum(-1, keepdims=True)
            delta = delta - mean * (factor["descale_dO"] * factor["descale_o"])
            delta = np.float32(config.scale) * weights * delta
            narrow_delta = _in_8_bits(delta * factor["scale_dP"], gradient)
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
