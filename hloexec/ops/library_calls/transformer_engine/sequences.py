"""Options and sequences of Transformer Engine's fused attention.

A call has a batch of sequences of one length (BSHD), of which a padding mask uses a prefix, or rows into which
sequences of several lengths are packed (THD), each with an offset. Either way, each sequence is a range of the
flattened queries and a range of the flattened keys, a `Sequence`. Source: TransformerEngine,
jax/csrc/extensions/attention.cpp, jax/cpp_extensions/attention.py, common/include/transformer_engine/fused_attn.h.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from math import prod

import numpy as np

from hloexec.core.ir import ArrayShape
from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.errors import EvaluationError, ShapeError, UnsupportedError
from hloexec.ops.library_calls import attention as softmax
from hloexec.ops.library_calls.ffi import Attributes
from hloexec.ops.policies.policy import NumericsPolicy

_LAYOUTS = {5: "BS3HD", 7: "BSHD_BS2HD", 9: "BSHD_BSHD_BSHD", 10: "T3HD", 12: "THD_T2HD", 14: "THD_THD_THD"}
_MASKS = {
    0: "no mask",
    1: "padding",
    2: "causal",
    3: "padding and causal",
    4: "causal from the bottom right",
    5: "padding and causal from the bottom right",
}
_BIASES = {0: "none", 1: "before the scale", 2: "after the scale"}
_SOFTMAXES = {0: "vanilla", 1: "off by one", 2: "learnable"}


@frozen
class AttentionConfig:
    """What the attributes say about values; sizes are the operands'."""

    layout: str
    has_padding: bool
    band: softmax.Band
    bias: str
    softmax: str
    scale: float
    segments: int
    """Maximum number of sequences packed into a row."""
    has_softmax_offset: bool
    """Whether the offset is an operand (and its gradient a result): newer versions."""
    has_largest: bool
    """Whether there is a result for the largest score of each row: newer versions."""

    @property
    def is_ragged(self) -> bool:
        """Whether several sequences are packed into a row."""
        return self.layout.startswith("T")

    @property
    def packed(self) -> int:
        """How many of queries, keys and values lie in one array: 3 (all), 2 (keys and values) or 1."""
        return 3 if "3" in self.layout else 2 if "2" in self.layout else 1

    @property
    def has_plain_sequences(self) -> bool:
        """Whether queries, keys and values are arrays of their own, a sequence to a row, without a bias."""
        return self.packed == 1 and not self.is_ragged and self.bias == "none"


def attention_config(backend_config: str | None) -> AttentionConfig:
    with Attributes(backend_config) as attributes:
        has_softmax_offset = "softmax_type" in attributes
        has_largest = "return_max_logit" in attributes
        if attributes.truth("return_max_logit", False):
            raise UnsupportedError("it asks for the largest score (return_max_logit)")
        dropout = attributes.number("dropout_probability")
        if dropout > 0:
            raise UnsupportedError(
                f"its attribute dropout_probability is {dropout}, and which elements cuDNN drops is not public"
            )
        mask = attributes.choice("mask_type", _MASKS)
        left = attributes.integer("window_size_left", -1)
        right = 0 if "causal" in mask else attributes.integer("window_size_right", -1)
        is_bottom_right = attributes.truth("bottom_right_diagonal", False) or "bottom right" in mask
        config = AttentionConfig(
            layout=attributes.choice("qkv_layout", _LAYOUTS),
            has_padding="padding" in mask,
            band=softmax.Band(None if left < 0 else left, None if right < 0 else right, is_bottom_right),
            bias=attributes.choice("bias_type", _BIASES),
            softmax=attributes.choice("softmax_type", _SOFTMAXES, 0),
            scale=attributes.number("scaling_factor"),
            segments=attributes.integer("max_segments_per_seq", 1),
            has_softmax_offset=has_softmax_offset,
            has_largest=has_largest,
        )
        if config.is_ragged and config.bias != "none":
            raise UnsupportedError(f"it has a bias (bias_type) and packed sequences ({config.layout})")
        # The operands' shapes say the same; training decides whether the sums of exponentials are written, and
        # determinism the order in which partial gradients are added.
        attributes.ignore("input_batch", "q_max_seqlen", "kv_max_seqlen", "attn_heads", "num_gqa_groups", "bias_batch")
        attributes.ignore("bias_heads", "head_dim", "qk_head_dim", "v_head_dim", "is_training", "deterministic")
        attributes.ignore("window_size_right")
    return config


@frozen
class Sizes:
    """The sizes of a call: batch dimensions, queries, keys, heads, groups, and lengths of query and value vectors."""

    batch: tuple[int, ...]
    queries: int
    keys: int
    heads: int
    groups: int
    depth: int
    value_depth: int

    @property
    def output(self) -> tuple[int, ...]:
        return (*self.batch, self.queries, self.heads, self.value_depth)


def attention_sizes(shapes: Sequence[tuple[int, ...]], config: AttentionConfig) -> Sizes:
    """The sizes that the dimensions of the operands q, k and v say; ShapeError where they do not fit the layout."""
    split = list(shapes[:3])
    if config.packed > 1:
        index = 3 - config.packed
        if len(split[index]) < 4 or split[index][-3] != config.packed:
            raise ShapeError(
                f"layout {config.layout} holds {config.packed} arrays in the third dimension from the end, but operand "
                f"{index} of the attention has dimensions {list(split[index])}"
            )
        split[index:] = [(*split[index][:-3], *split[index][-2:])] * (3 - index)
    q, k, v = split
    fits = (
        min(map(len, split)) >= 3
        and q[:-3] == k[:-3] == v[:-3]
        and k[:-1] == v[:-1]
        and q[-1] == k[-1]
        and min(*q[-2:], *k[-2:], v[-1]) > 0
        and q[-2] % k[-2] == 0
    )
    if not fits:
        raise ShapeError(
            "queries must be [batch..., s, heads, d], keys [batch..., t, groups, d], values [batch..., t, groups, e], "
            f"with heads a multiple of groups, but have dimensions {list(q)}, {list(k)} and {list(v)}"
        )
    return Sizes(q[:-3], q[-3], k[-3], q[-2], k[-2], q[-1], v[-1])


def _is_packed_by_tokens(dimensions: tuple[int, ...], sizes: Sizes, config: AttentionConfig) -> bool:
    """Whether log-sum-exps of packed sequences are [batch..., s, heads, 1], as newer cuDNN has them."""
    return config.is_ragged and dimensions[-3:] == (sizes.queries, sizes.heads, 1)


def check_auxiliary(shape: ArrayShape, sizes: Sizes, config: AttentionConfig) -> None:
    """The softmax's auxiliary array holds log-sum-exps, or where a key has an element each, the probabilities."""
    dimensions = shape.dimensions
    last = {config.segments if config.is_ragged else 1, sizes.keys}
    by_head = (*sizes.batch, sizes.heads, sizes.queries)
    if not (_is_packed_by_tokens(dimensions, sizes, config) and dimensions[:-3] == sizes.batch) and not (
        dimensions[:-1] == by_head and dimensions[-1] in last
    ):
        raise ShapeError(
            f"the softmax's auxiliary array must be [batch..., heads, s, 1] (log-sum-exps) or [batch..., heads, s, t] "
            f"(probabilities), here {[*by_head, 1]} or {[*by_head, sizes.keys]}, but is {shape}"
        )


def holds_probabilities(shape: tuple[int, ...], sizes: Sizes, config: AttentionConfig, is_f32: bool) -> bool:
    """The backend for at most 512 keys leaves probabilities in the operands' type, the other log-sum-exps in f32."""
    return not config.is_ragged and shape[-1] == sizes.keys and not (is_f32 and sizes.keys == 1)


class Batch:
    """The sequences of a call: which stretch of the flattened queries and keys each takes."""

    def __init__(self, operands: Sequence[Array], lengths: Sequence[Array], config: AttentionConfig) -> None:
        """`operands`: q, k, v and the bias; `lengths`: the running sums of query and key lengths, and their offsets."""
        self.config = config
        self.sizes = sizes = attention_sizes([operand.shape for operand in operands[:3]], config)
        rows = prod(sizes.batch)
        self.count = rows * (max(config.segments, 1) if config.is_ragged else 1)
        alone = 3 - config.packed
        q, k, v = operands[:3] if config.packed == 1 else (*operands[:alone], *np.moveaxis(operands[alone], -3, 0))
        self.queries = q.reshape(rows * sizes.queries, sizes.heads, sizes.depth)
        self.keys = k.reshape(rows * sizes.keys, sizes.groups, sizes.depth)
        self.values = v.reshape(rows * sizes.keys, sizes.groups, sizes.value_depth)
        bias = operands[3]
        self.bias = bias.reshape(prod(bias.shape[:-3]), *bias.shape[-3:]) if config.bias != "none" else None
        self.query_stretches = self._stretches(sizes.queries, rows, lengths[0], lengths[2])
        self.key_stretches = self._stretches(sizes.keys, rows, lengths[1], lengths[3])

    def _stretches(self, size: int, rows: int, sums: Array, offsets: Array) -> list[slice]:
        """Where each sequence lies: its row, as far as its length says where a mask or the packing asks for it."""
        is_ragged = self.config.is_ragged
        if not (is_ragged or self.config.has_padding):
            return [slice(row * size, (row + 1) * size) for row in range(rows)]
        if sums.size < self.count + 1 or (is_ragged and offsets.size < self.count):
            raise EvaluationError(
                f"the attention must have {self.count + 1} running sums of lengths, and as many offsets less one where "
                f"sequences are packed, but has {sums.size} and {offsets.size}"
            )
        lengths = np.diff(sums.reshape(-1)[: self.count + 1].astype(np.int64))
        starts = offsets.reshape(-1)[: self.count] if is_ragged else np.arange(rows) * size
        found = []
        for number, (start, length) in enumerate(zip(map(int, starts), map(int, lengths), strict=True)):
            stop = start + max(0, length)
            if length > size or (length > 0 and not 0 <= start <= stop <= rows * size):
                raise EvaluationError(
                    f"sequence {number} of the attention takes elements {start} to {stop}, but there are {rows} rows "
                    f"of {size}"
                )
            found.append(slice(start, stop))
        return found

    def sequences(self, sink: Array | None, numerics: NumericsPolicy) -> Iterator[tuple[int, softmax.Sequence]]:
        """Each sequence with its number; those without queries or keys, which give nothing, are left out."""
        bias = self._biases()
        sequence = partial(
            softmax.Sequence,
            scale=self.config.scale,
            band=self.config.band,
            bias_before_scale=self.config.bias == "before the scale",
            sink=sink,
            numerics=numerics,
        )
        for number, (here, there) in enumerate(zip(self.query_stretches, self.key_stretches, strict=True)):
            if here.start == here.stop or there.start == there.stop:
                continue
            part = None if bias is None else bias[number, :, : here.stop - here.start, : there.stop - there.start]
            yield number, sequence(self.queries[here], self.keys[there], self.values[there], bias=part)

    def _biases(self) -> Array | None:
        """[batch, heads, s, t], a view."""
        if self.bias is None:
            return None
        expected = (self.count, self.sizes.heads, self.sizes.queries, self.sizes.keys)
        try:
            return np.broadcast_to(self.bias, expected)
        except ValueError:
            raise EvaluationError(
                f"the bias of the attention must broadcast to {list(expected)}, but has dimensions "
                f"{list(self.bias.shape)}"
            ) from None

    def sums_by_sequence(self, auxiliary: Array) -> list[Array]:
        """Of log-sum-exps or probabilities in the form that the call has them: views [heads, s, ...] per sequence."""
        sizes = self.sizes
        if _is_packed_by_tokens(auxiliary.shape, sizes, self.config):
            flat = auxiliary.reshape(-1, sizes.heads)
            return [flat[stretch].T for stretch in self.query_stretches]
        # Older cuDNN takes each packed sequence for a row of its own, so [batch, heads, s, segments] holds those.
        last = 1 if self.config.is_ragged else auxiliary.shape[-1]
        by_head = auxiliary.reshape(self.count, sizes.heads, sizes.queries, last)
        return [
            by_head[number, :, : stretch.stop - stretch.start] for number, stretch in enumerate(self.query_stretches)
        ]
