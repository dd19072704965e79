"""The sequences of cuDNN's flash attention: padded to one length, packed several to a row, or with keys in pages.

Whatever its form, the input is taken as tokens [tokens, heads, depth], row after row, and a sequence is a stretch of
query tokens with a stretch of key tokens. Source: JAX, fused_attention_stablehlo.py; cuDNN frontend, Attention.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from hloexec.custom_calls import attention as softmax
from hloexec.custom_calls.cudnn.attention_config import AttentionConfig
from hloexec.ops.policies.policy import NumericsPolicy
from hloexec.values import Array

__all__ = ["Batch", "Stretch", "four_dimensions", "heads_first", "paged", "tokens"]


def tokens(array: Array) -> Array:
    """`[batch, heads, rows, depth]` as `[batch × rows, heads, depth]`."""
    batch, heads, rows, depth = array.shape
    return array.swapaxes(1, 2).reshape(batch * rows, heads, depth)


def heads_first(flat: Array, batch: int) -> Array:
    """The inverse of `tokens`."""
    return flat.reshape(batch, -1, *flat.shape[1:]).swapaxes(1, 2)


def four_dimensions(array: Array | None) -> Array | None:
    """A bias or mask with a dimension of heads."""
    return array if array is None or array.ndim == 4 else array[:, None]


@attrs.frozen
class Stretch:
    """One sequence."""

    row: int
    """Of the softmax statistics, and of a bias."""
    queries: slice
    keys: slice

    @property
    def length(self) -> int:
        return int(self.queries.stop - self.queries.start)


@attrs.frozen
class Batch:
    """All sequences of a call; queries, keys and values are `[batch, heads, rows, depth]`."""

    queries: Array
    keys: Array
    values: Array
    bias: Array | None
    """Broadcasts to `[batch, heads, queries, keys]`."""
    lengths: Sequence[Array]
    """Of queries and keys, then (packed) where each sequence starts, in elements."""
    config: AttentionConfig
    numerics: NumericsPolicy

    def stretches(self) -> Iterator[Stretch]:
        batch, _, queries, _ = self.queries.shape
        keys = self.keys.shape[2]
        if self.config.is_packed:
            yield from self._packed()
            return
        for row in range(batch):
            query_length, key_length = queries, keys
            if self.config.has_lengths:
                query_length, key_length = (
                    min(max(0, int(lengths.reshape(-1)[row])), most)
                    for lengths, most in zip(self.lengths[:2], (queries, keys), strict=True)
                )
            yield Stretch(
                row, slice(row * queries, row * queries + query_length), slice(row * keys, row * keys + key_length)
            )

    def _packed(self) -> Iterator[Stretch]:
        """Sequences of length 0, and starts behind the last token, fill what there is room for."""
        query_lengths, key_lengths = (lengths.reshape(-1) for lengths in self.lengths[:2])
        starts = [
            offsets.reshape(-1) // (array.shape[1] * array.shape[3])
            for offsets, array in zip(self.lengths[2:4], (self.queries, self.keys), strict=True)
        ]
        ends = [array.shape[0] * array.shape[2] for array in (self.queries, self.keys)]
        for row, (query_length, key_length) in enumerate(zip(query_lengths, key_lengths, strict=True)):
            here, there = (min(max(0, int(start[row])), end) for start, end in zip(starts, ends, strict=True))
            query_end = min(here + max(0, int(query_length)), ends[0], here + self.queries.shape[2])
            yield Stretch(row, slice(here, query_end), slice(there, min(there + max(0, int(key_length)), ends[1])))

    def sequences(self) -> Iterator[tuple[Stretch, softmax.Sequence]]:
        """Those that have queries and keys: what others give is 0, and −∞ as their statistics."""
        queries, keys, values = tokens(self.queries), tokens(self.keys), tokens(self.values)
        for stretch in self.stretches():
            here, there = stretch.queries, stretch.keys
            if here.start >= here.stop or there.start >= there.stop:
                continue
            bias = None
            if self.bias is not None:
                bias = self.bias[stretch.row if len(self.bias) > 1 else 0]
                bias = _cut(bias, stretch.length, there.stop - there.start)
            yield (
                stretch,
                softmax.Sequence(
                    queries=queries[here],
                    keys=keys[there],
                    values=values[there],
                    scale=self.config.scale,
                    band=self.config.band,
                    bias=bias,
                    numerics=self.numerics,
                ),
            )


def _cut(bias: Array, queries: int, keys: int) -> Array:
    """The part of a bias `[heads, queries, keys]` that a shorter sequence sees; dimensions of size 1 stay."""
    return bias[:, : queries if bias.shape[1] > 1 else 1, : keys if bias.shape[2] > 1 else 1]


def paged(container: Array, table: Array) -> Array:
    """Keys or values `[blocks, heads, rows of a block, depth]`, gathered by `[batch, 1, blocks of a row, 1]`."""
    numbers = np.clip(table.reshape(table.shape[0], -1), 0, len(container) - 1)
    gathered = np.moveaxis(container[numbers], 2, 1)
    batch, heads, blocks, rows, depth = gathered.shape
    return np.asarray(gathered.reshape(batch, heads, blocks * rows, depth))
