"""The sequences of cuDNN's flash attention: padded to one length, packed several to a row, or with keys in pages.

In each form, the input is treated as tokens [tokens, heads, depth], row by row, and a sequence is a range of query
tokens with a range of key tokens. Source: JAX, fused_attention_stablehlo.py; cuDNN frontend, Attention.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np

from hloexec.core.structs import frozen
from hloexec.core.values import Array
from hloexec.ops.library_calls import attention as softmax
from hloexec.ops.library_calls.cudnn.attention_config import AttentionConfig
from hloexec.ops.policies.policy import NumericsPolicy


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


@frozen
class Stretch:
    """One sequence."""

    row: int
    """Of the softmax statistics, and of a bias."""
    queries: slice
    keys: slice

    @property
    def length(self) -> int:
        return int(self.queries.stop - self.queries.start)


@frozen
class Batch:
    """All sequences of a call; queries, keys and values are `[batch, heads, rows, depth]`."""

    queries: Array
    keys: Array
    values: Array
    bias: Array | None
    """Broadcasts to `[batch, heads, queries, keys]`."""
    lengths: Mapping[str, Array]
    """`query lengths` and `key lengths`, and (packed) `query offsets` and `key offsets`, in elements."""
    config: AttentionConfig
    numerics: NumericsPolicy

    @classmethod
    def of(cls, given: Mapping[str, Array], config: AttentionConfig, numerics: NumericsPolicy) -> Batch:
        """The batch that a call's operands are, given by name."""
        queries, keys, values = config.canonical(given)
        if config.is_paged:
            keys, values = _paged(keys, given["key pages"]), _paged(values, given["value pages"])
        return cls(queries, keys, values, four_dimensions(given.get("bias")), given, config, numerics)

    def stretches(self) -> Iterator[Stretch]:
        """All sequences; those of length 0, and starts behind the last token, fill what there is room for."""
        sides = self._places("query", self.queries), self._places("key", self.keys)
        for row, (queries, keys) in enumerate(zip(*sides, strict=True)):
            yield Stretch(row, queries, keys)

    def _places(self, side: str, array: Array) -> Iterator[slice]:
        batch, heads, rows, depth = array.shape
        lengths, starts = [rows] * batch, [rows * row for row in range(batch)]
        if self.config.has_lengths:
            lengths = self.lengths[f"{side} lengths"].reshape(-1).tolist()
        if self.config.is_packed:
            starts = (self.lengths[f"{side} offsets"].reshape(-1) // (heads * depth)).tolist()
        # Of a packed sequence the keys may go on in the next row; queries have their statistics in one.
        most = batch * rows if self.config.is_packed and side == "key" else rows
        for start, length in zip(starts, lengths, strict=False):
            begin = min(max(0, start), batch * rows)
            yield slice(begin, min(begin + min(max(0, length), most), batch * rows))

    def sequences(self) -> Iterator[tuple[Stretch, softmax.Sequence]]:
        """Those that have queries and keys: what others give is 0, and −∞ as their statistics."""
        queries, keys, values = tokens(self.queries), tokens(self.keys), tokens(self.values)
        sequence = partial(softmax.Sequence, scale=self.config.scale, band=self.config.band, numerics=self.numerics)
        for stretch in self.stretches():
            here, there = stretch.queries, stretch.keys
            if here.start >= here.stop or there.start >= there.stop:
                continue
            bias = None
            if self.bias is not None:
                bias = self.bias[stretch.row if len(self.bias) > 1 else 0]
                bias = bias[:, : stretch.length, : there.stop - there.start]
            yield stretch, sequence(queries[here], keys[there], values[there], bias=bias)


def _paged(container: Array, table: Array) -> Array:
    """Keys or values `[blocks, heads, rows of a block, depth]`, gathered by `[batch, 1, blocks of a row, 1]`."""
    numbers = np.clip(table.reshape(table.shape[0], -1), 0, len(container) - 1)
    gathered = np.moveaxis(container[numbers], 2, 1)
    batch, heads, blocks, rows, depth = gathered.shape
    return np.asarray(gathered.reshape(batch, heads, blocks * rows, depth))
