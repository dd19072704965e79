"""The older form of cuDNN's attention, which holds all probabilities: scores · mask, then softmax.

Everything is `[batch, heads, rows, columns]` and computed in f32. Source: XLA, cuda_dnn.cc of 2023
(GetCudnnFusedMHAOperationGraph, GetCudnnFusedMHABackwardOperationGraph).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hloexec.core.dtypes import element_type_of
from hloexec.core.values import Array
from hloexec.ops.common import widen
from hloexec.ops.contraction.dot import DotAttributes, contract
from hloexec.ops.library_calls.cudnn.attention_config import AttentionConfig
from hloexec.ops.library_calls.cudnn.attention_sequences import four_dimensions
from hloexec.ops.policies.policy import NumericsPolicy


def product(lhs: Array, rhs: Array, letters: str, numerics: NumericsPolicy) -> Array:
    """The product of two stacks of matrices in the accumulation type; `letters` are as einsum's, e.g. `tk,sk->ts`."""
    left, right = letters.partition("->")[0].split(",")
    shared = next(letter for letter in left if letter in right)
    numbers = DotAttributes(
        lhs_batch_dims=(0, 1),
        lhs_contracting_dims=(2 + left.index(shared),),
        rhs_batch_dims=(0, 1),
        rhs_contracting_dims=(2 + right.index(shared),),
    )
    return contract(lhs, rhs, numbers, element_type_of(element_type_of(lhs.dtype).accumulate), numerics=numerics)


def shared_heads(array: Array, heads: int) -> Array:
    """Keys or values with every head repeated for the query heads that share it."""
    return array if array.shape[1] == heads else np.repeat(array, heads // array.shape[1], 1)


def summed_heads(gradient: Array, heads: int) -> Array:
    """The gradient of `shared_heads`."""
    if gradient.shape[1] == heads:
        return gradient
    batch, shared, rows, depth = gradient.shape
    return np.asarray(gradient.reshape(batch, heads, shared // heads, rows, depth).sum(2))


def forward(given: Mapping[str, Array], config: AttentionConfig, numerics: NumericsPolicy) -> list[Array]:
    """The output and the probabilities (without a softmax, the scores), from operands by name."""
    queries, keys, values = config.canonical(given)
    heads = queries.shape[1]
    scores = product(queries, shared_heads(keys, heads), "tk,sk->ts", numerics)
    bias, mask = (four_dimensions(given.get(name)) for name in ("bias", "mask"))
    with np.errstate(all="ignore"):
        scores = scores * scores.dtype.type(config.scale)
        if bias is not None:
            scores = scores + widen(bias)
        if mask is not None:
            scores = scores * widen(mask)
        if config.kind.has_softmax:
            scores = np.exp(scores - scores.max(-1, keepdims=True, initial=-np.inf))
            scores = scores / scores.sum(-1, keepdims=True)
    return [product(scores, shared_heads(values, heads), "ts,sk->tk", numerics), scores]


def backward(given: Mapping[str, Array], config: AttentionConfig, numerics: NumericsPolicy) -> list[Array]:
    """Gradients of queries, keys, values and unscaled scores, and of a bias that is the same for the whole batch."""
    queries, keys, values = config.canonical(given)
    probabilities, gradient = config.canonical(given, "statistics", "output gradient")
    heads, groups = queries.shape[1], keys.shape[1]
    chosen, mask = widen(probabilities), four_dimensions(given.get("mask"))
    scores = product(gradient, shared_heads(values, heads), "tk,sk->ts", numerics)
    with np.errstate(all="ignore"):
        if config.kind.has_softmax:
            scores = chosen * (scores - (chosen * scores).sum(-1, keepdims=True))
        if mask is not None:
            scores = scores * widen(mask)
        bias = scores.sum(0, keepdims=True)
        scores = scores * scores.dtype.type(config.scale)
    return [
        product(scores, shared_heads(keys, heads), "ts,sk->tk", numerics),
        summed_heads(product(scores, queries, "ts,tk->sk", numerics), groups),
        summed_heads(product(chosen, widen(gradient), "ts,tk->sk", numerics), groups),
        scores,
        bias,
    ]
