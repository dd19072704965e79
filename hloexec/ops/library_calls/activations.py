"""What several libraries have for neural networks: activations and attention.

Softmax attention of one sequence, forward and backward, as used by the libraries' fused attention calls.

Query head h attends to the keys and values of group h // (heads / groups). Scores are computed for a tile of queries at
a time and never rounded: everything up to the results is computed in the accumulation type and, under the exact policy,
in f64 in a fixed order. Source: Dao et al., "FlashAttention" (2022), algorithms 1 and 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import pi, sqrt

import numpy as np

from hloexec.core.dtypes import DType, Kind, element_type, element_type_of
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.common import widen
from hloexec.ops.contraction.dot import DotAttributes, contract, dot_of
from hloexec.ops.elementwise.arithmetic import maximum
from hloexec.ops.elementwise.declaration import exact_formula
from hloexec.ops.policies.exact.sums import reduce_exactly
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy


def relu(x: Array) -> Array:
    """max(x, 0), NaN where x is."""
    return maximum(x, np.zeros_like(x))


def gelu(x: Array) -> Array:
    """x / 2 · (1 + tanh(√(2/π) · (x + 0.044715 x³))), the approximation that cuBLASLt and oneDNN have."""
    half, cubic, scale = x.dtype.type(0.5), x.dtype.type(0.044715), x.dtype.type(sqrt(2 / pi))
    result: Array = half * x * (1 + np.tanh(scale * (x + cubic * x * x * x)))
    return result


def _exact_gelu(x: Array) -> Array:
    """As (1 + tanh y) / 2 = logistic(2y), where nothing cancels."""
    return _exact_silu(x, 2 * sqrt(2 / pi) * (x + 0.044715 * x * x * x))


def _exact_silu(x: Array, y: Array | None = None) -> Array:
    """x · logistic(y), with y = x where it is not given."""
    logistic = exact_formula("logistic", Kind.FLOAT)
    assert logistic is not None
    result: Array = x * logistic(x if y is None else y)
    return np.where(np.isneginf(x), 0.0, result)


@frozen
class Activation:
    """A function of an array of floats, elementwise."""

    name: str
    usual: Callable[[Array], Array]
    exact: Callable[[Array], Array]
    """In f64, with the same bits on every processor."""


ACTIVATIONS = {
    "RELU": Activation("RELU", relu, relu),
    "GELU": Activation("GELU", gelu, _exact_gelu),
    "SILU": Activation("SILU", lambda x: x / (1 + np.exp(-x)), _exact_silu),
}
"""By the names of cuBLASLt."""


_MOST_SCORES = 1 << 23
"""How many scores a tile may hold."""

_QUERIES_BY_KEYS = dot_of("ghqd,kgd->ghqk")
_WEIGHTS_BY_VALUES = dot_of("ghqk,kgd->ghqd")
_WEIGHTS_BY_QUERIES = dot_of("ghqk,ghqd->gkd")


@frozen
class Band:
    """Which keys a query sees: query i the keys from i + shift - left to i + shift + right, None being no bound.

    The shift aligns the last query with the last key where the band is at the bottom right, and is 0 otherwise.
    """

    left: int | None = None
    right: int | None = None
    is_bottom_right: bool = False

    def hidden(self, rows: slice, queries: int, keys: int) -> Array | None:
        """For the given rows [r, keys] whether the query does not see the key; None where all are seen."""
        if self.left is None and self.right is None:
            return None
        shift = keys - queries if self.is_bottom_right else 0
        distance = np.arange(keys) - (np.arange(rows.start, rows.stop)[:, None] + shift)
        hidden = np.zeros(distance.shape, np.bool_)
        if self.left is not None:
            hidden |= distance < -self.left
        if self.right is not None:
            hidden |= distance > self.right
        return hidden


@frozen
class Sequence:
    """Queries [s, heads, d], keys [t, groups, d], values [t, groups, e], and how scores are made from them.

    A score is scale · (q · k) + bias, or scale · (q · k + bias) where the bias comes before the scale; `bias`
    broadcasts to [heads, s, t]. `sink` [heads] is the score of one more key, of value 0.
    """

    queries: Array
    keys: Array
    values: Array
    scale: float
    band: Band = Band()
    bias: Array | None = None
    bias_before_scale: bool = False
    sink: Array | None = None
    numerics: NumericsPolicy = REFERENCE

    @property
    def heads(self) -> int:
        return int(self.queries.shape[1])

    @property
    def dtype(self) -> DType:
        """What everything is computed in."""
        return working_type(self.queries, self.numerics)

    def by_group(self, array: Array) -> Array:
        """[s, heads, ...] as [groups, heads of a group, s, ...], a view."""
        groups = self.keys.shape[1]
        split = array.reshape(array.shape[0], groups, self.heads // max(groups, 1), *array.shape[2:])
        return np.asarray(np.moveaxis(split, 0, 2))

    def tiles(self) -> Iterator[slice]:
        queries, keys = len(self.queries), len(self.keys)
        step = max(1, _MOST_SCORES // max(1, self.heads * keys))
        for start in range(0, queries, step):
            yield slice(start, min(start + step, queries))

    def product(self, lhs: Array, rhs: Array, numbers: DotAttributes) -> Array:
        return contract(lhs, rhs, numbers, element_type_of(self.dtype), numerics=self.numerics)

    def exponential(self, x: Array) -> Array:
        return self._function("exponential", np.exp)(x)

    def logarithm(self, x: Array) -> Array:
        return self._function("log", np.log)(x)

    def _function(self, name: str, usual: Callable[[Array], Array]) -> Callable[[Array], Array]:
        return (self.numerics.is_exact and exact_formula(name, Kind.FLOAT)) or usual

    def total(self, x: Array) -> Array:
        """The sums along the last dimension."""
        if self.numerics.is_exact:
            return reduce_exactly("add", x, (x.ndim - 1,), np.zeros((), x.dtype), element_type("f64"))
        return np.asarray(x.sum(-1))

    def scores(self, rows: slice) -> Array:
        """[groups, heads of a group, r, t]; −∞ where a query does not see a key."""
        scale = self.dtype.type(self.scale)
        scores: Array = self.product(self.by_group(self.queries)[:, :, rows], self.keys, _QUERIES_BY_KEYS)
        shape = (self.heads, len(self.queries), len(self.keys))
        bias = None if self.bias is None else np.broadcast_to(widen(self.bias), shape)[:, rows].reshape(scores.shape)
        if bias is not None and self.bias_before_scale:
            scores = scores + bias
        scores = scores * scale
        if bias is not None and not self.bias_before_scale:
            scores = scores + bias
        hidden = self.band.hidden(rows, *shape[1:])
        if hidden is not None:
            scores[..., hidden] = -np.inf
        return scores

    def sink_by_group(self) -> Array | None:
        """[groups, heads of a group, 1]."""
        return None if self.sink is None else widen(self.sink).reshape(self.keys.shape[1], -1, 1)


def working_type(array: Array, numerics: NumericsPolicy) -> DType:
    """What attention on an array's element type is computed in."""
    return np.dtype(np.float64) if numerics.is_exact else element_type_of(array.dtype).accumulate


@frozen
class Weights:
    """What attention leaves for its gradient."""

    log_sum_exp: Array
    """[heads, s], in the accumulation type: of the scores a query sees, the sink's included; −∞ where it sees none."""
    probabilities: Array | None
    """[heads, s, t], where asked for."""


def attention(sequence: Sequence, *, with_probabilities: bool = False) -> tuple[Array, Weights]:
    """softmax(scores) · values, [s, heads, e] in the accumulation type, and what the gradient needs.

    A query that sees no key gives 0.
    """
    heads, queries, keys = sequence.heads, len(sequence.queries), len(sequence.keys)
    output = np.zeros((queries, heads, sequence.values.shape[2]), sequence.dtype)
    sums = np.full((heads, queries), -np.inf, sequence.dtype)
    probabilities = np.zeros((heads, queries, keys), sequence.dtype) if with_probabilities else None
    sink = sequence.sink_by_group()
    for rows in sequence.tiles():
        scores = sequence.scores(rows)
        largest = scores.max(-1, initial=-np.inf)
        if sink is not None:
            largest = np.maximum(largest, sink)
        largest[largest == -np.inf] = 0
        weights = sequence.exponential(scores - largest[..., None])
        total = sequence.total(weights)
        if sink is not None:
            total += sequence.exponential(sink - largest)
        sums[:, rows] = (largest + sequence.logarithm(total)).reshape(heads, -1)
        weights /= np.where(total == 0, total.dtype.type(1), total)[..., None]
        if probabilities is not None:
            probabilities[:, rows] = weights.reshape(heads, -1, keys)
        product = sequence.product(weights, sequence.values, _WEIGHTS_BY_VALUES)
        output[rows] = np.moveaxis(product, 2, 0).reshape(-1, *output.shape[1:])
    return output, Weights(sums, probabilities)


@frozen
class Gradients:
    """With respect to what a sequence holds, in the accumulation type."""

    queries: Array
    keys: Array
    values: Array
    bias: Array | None
    """[heads, s, t], not yet summed over the dimensions along which the bias was broadcast."""
    sink: Array | None


def attention_gradients(sequence: Sequence, weights: Weights, output: Array, output_gradient: Array) -> Gradients:
    """The gradients of attention, given what it left, its output and the output's gradient [s, heads, e].

    P = exp(scores − log-sum-exp), or the probabilities as given; dP = dO · Vᵀ; dS = P ∘ (dP − Σ_e dO ∘ O), and from it
    dQ = scale · dS · K, dK = scale · dSᵀ · Q; dV = Pᵀ · dO. With given probabilities Σ P ∘ dP stands for Σ dO ∘ O.
    """
    groups, dtype = sequence.keys.shape[1], sequence.dtype
    scale = dtype.type(sequence.scale)
    heads, queries, keys = sequence.heads, len(sequence.queries), len(sequence.keys)
    query_gradient = np.zeros(sequence.queries.shape, dtype)
    key_gradient = np.zeros((groups, keys, sequence.keys.shape[2]), dtype)
    value_gradient = np.zeros((groups, keys, sequence.values.shape[2]), dtype)
    bias_gradient = None if sequence.bias is None else np.zeros((heads, queries, keys), dtype)
    sink = sequence.sink_by_group()
    sink_gradient = None if sink is None else np.zeros(heads, dtype)
    all_queries = sequence.by_group(sequence.queries)
    outer = sequence.by_group(output_gradient)
    products = sequence.total(sequence.by_group(np.multiply(widen(output_gradient), widen(output), dtype=dtype)))
    sums = weights.log_sum_exp.reshape(groups, -1, queries)
    for rows in sequence.tiles():
        if weights.probabilities is not None:
            chosen = widen(weights.probabilities[:, rows]).reshape(groups, -1, rows.stop - rows.start, keys)
        else:
            scores = sequence.scores(rows)
            chosen = sequence.exponential(scores - sums[:, :, rows, None])
            chosen[scores == -np.inf] = 0
        delta = sequence.product(outer[:, :, rows], sequence.values, _QUERIES_BY_KEYS)
        mean = products[:, :, rows] if weights.probabilities is None else sequence.total(chosen * delta)
        delta = chosen * (delta - mean[..., None])
        if bias_gradient is not None:
            factor = scale if sequence.bias_before_scale else dtype.type(1)
            bias_gradient[:, rows] = (factor * delta).reshape(heads, -1, keys)
        if sink is not None and sink_gradient is not None:
            sink_gradient -= sequence.total(sequence.exponential(sink - sums[:, :, rows]) * mean).reshape(heads)
        product = scale * sequence.product(delta, sequence.keys, _WEIGHTS_BY_VALUES)
        query_gradient[rows] = np.moveaxis(product, 2, 0).reshape(-1, *query_gradient.shape[1:])
        key_gradient += scale * sequence.product(delta, all_queries[:, :, rows], _WEIGHTS_BY_QUERIES)
        value_gradient += sequence.product(chosen, outer[:, :, rows], _WEIGHTS_BY_QUERIES)
    by_key = key_gradient.swapaxes(0, 1), value_gradient.swapaxes(0, 1)
    return Gradients(query_gradient, *by_key, bias_gradient, sink_gradient)


def add_summed(total: Array, gradient: Array) -> None:
    """Add a gradient [heads, s, t] to that of the bias, summed over the dimensions along which it was broadcast.

    Where sequences are shorter than the bias, so is the gradient.
    """
    summed = tuple(axis for axis, size in enumerate(total.shape) if size == 1 and gradient.shape[axis] != 1)
    part = gradient.sum(summed, keepdims=True)
    total[tuple(slice(size) for size in part.shape)] += part
