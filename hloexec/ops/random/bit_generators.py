"""The counter-based generators Threefry2x32 and Philox4x32, on whole arrays of counters.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from hloexec.ops.threads import in_blocks

Words: TypeAlias = np.ndarray[Any, np.dtype[np.uint32]]
Counters: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]

PHILOX_WORDS = 4
"""How many 32-bit words one counter of Philox4x32 gives."""

_THREEFRY_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_THREEFRY_PARITY = 0x1BD11BDA
_THREEFRY_GROUPS = 5
_PHILOX_ROUNDS = 10
_PHILOX_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_PHILOX_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_MASK = (1 << 32) - 1
_BLOCK = 1 << 15
"""Counters per step, so that intermediate arrays stay in the cache."""


def threefry_2x32(key: int, first: int, count: int) -> tuple[Words, Words]:
    """Both output words of the counters first, first + 1, … (64-bit, wrapping), 20 rounds, under a 64-bit key."""
    words = (np.empty(count, np.uint32), np.empty(count, np.uint32))
    keys = [np.array([key >> shift & _MASK], np.uint32) for shift in (0, 32)]

    def generate(start: int, stop: int) -> None:
        counters = _counters(first + start, stop - start)
        x0, x1 = (word[start:stop] for word in words)
        x0[...] = counters
        counters >>= np.uint64(32)
        x1[...] = counters
        _threefry_in_place(keys[0], keys[1], x0, x1)

    in_blocks(generate, count, _BLOCK)
    return words


def threefry_2x32_words(key0: Words, key1: Words, x0: Words, x1: Words) -> tuple[Words, Words]:
    """Both output words of counters (x0, x1) under keys (key0, key1), 20 rounds, element by element."""
    sizes = np.broadcast_shapes(key0.shape, key1.shape, x0.shape, x1.shape)
    x0, x1 = (np.array(np.broadcast_to(word, sizes)) for word in (x0, x1))
    _threefry_in_place(key0, key1, x0, x1)
    return x0, x1


def _threefry_in_place(key0: Words, key1: Words, x0: Words, x1: Words) -> None:
    keys = (key0, key1, key0 ^ key1 ^ np.uint32(_THREEFRY_PARITY))
    x0 += key0
    x1 += key1
    upper = np.empty_like(x1)
    for group in range(_THREEFRY_GROUPS):
        for rotation in _THREEFRY_ROTATIONS[group % 2]:
            x0 += x1
            np.left_shift(x1, np.uint32(rotation), out=upper)
            np.right_shift(x1, np.uint32(32 - rotation), out=x1)
            x1 |= upper
            x1 ^= x0
        x0 += keys[(group + 1) % 3]
        x1 += keys[(group + 2) % 3] + np.uint32(group + 1)


def philox_4x32(key: int, first: int, count: int) -> Words:
    """`[count, 4]` output words of the counters first, first + 1, … (128-bit, wrapping), 10 rounds, a 64-bit key."""
    words = np.empty((count, PHILOX_WORDS), np.uint32)

    def generate(start: int, stop: int) -> None:
        low = _counters(first + start, stop - start)
        high = np.full(stop - start, (first + start) >> 64 & (1 << 64) - 1, np.uint64)
        high += low < low[0]
        for word, value in enumerate(_philox(key, low, high)):
            words[start:stop, word] = value

    in_blocks(generate, count, _BLOCK)
    return words


def _philox(key: int, low: Counters, high: Counters) -> tuple[Counters, ...]:
    """The four output words of 128-bit counters, each in the lower half of its element."""
    half, mask = np.uint64(32), np.uint64(_MASK)
    # Words 0 and 2 are multiplied, and have nothing but zeros in their upper halves; words 1 and 3 may have anything.
    word0, word1, word2, word3 = low & mask, low >> half, high & mask, high >> half
    key0, key1 = key & _MASK, key >> 32 & _MASK
    upper = np.empty_like(low)
    for _ in range(_PHILOX_ROUNDS):
        word0 *= _PHILOX_MULTIPLIERS[0]
        word2 *= _PHILOX_MULTIPLIERS[1]
        for ours, other, round_key in ((word1, word2, key0), (word3, word0, key1)):
            np.right_shift(other, half, out=upper)
            upper ^= np.uint64(round_key)
            ours ^= upper
            ours &= mask
        word0, word1, word2, word3 = word1, word2, word3, word0
        key0, key1 = (key0 + _PHILOX_KEY_STEPS[0]) & _MASK, (key1 + _PHILOX_KEY_STEPS[1]) & _MASK
    return word0, word1, word2, word3


def _counters(first: int, count: int) -> Counters:
    """The low 64 bits of count consecutive counters."""
    counters = np.arange(count, dtype=np.uint64)
    counters += np.uint64(first & (1 << 64) - 1)
    return counters
