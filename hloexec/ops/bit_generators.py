"""The counter-based generators Threefry2x32 and Philox4x32, on whole arrays of counters.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

__all__ = ["PHILOX_WORDS", "philox_4x32", "threefry_2x32", "threefry_2x32_words"]

Words: TypeAlias = np.ndarray[Any, np.dtype[np.uint32]]

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
    for start in range(0, count, _BLOCK):
        counters = _counters(first + start, min(_BLOCK, count - start))
        halves = counters.astype(np.uint32), (counters >> np.uint64(32)).astype(np.uint32)
        for word, block in zip(words, threefry_2x32_words(keys[0], keys[1], *halves), strict=True):
            word[start : start + _BLOCK] = block
    return words


def threefry_2x32_words(key0: Words, key1: Words, x0: Words, x1: Words) -> tuple[Words, Words]:
    """Both output words of counters (x0, x1) under keys (key0, key1), 20 rounds, element by element."""
    keys = (key0, key1, key0 ^ key1 ^ np.uint32(_THREEFRY_PARITY))
    x0, x1 = x0 + key0, x1 + key1
    for group in range(_THREEFRY_GROUPS):
        for rotation in _THREEFRY_ROTATIONS[group % 2]:
            x0 += x1
            x1 = (x1 << np.uint32(rotation)) | (x1 >> np.uint32(32 - rotation))
            x1 ^= x0
        x0 += keys[(group + 1) % 3]
        x1 += keys[(group + 2) % 3] + np.uint32(group + 1)
    return x0, x1


def philox_4x32(key: int, first: int, count: int) -> Words:
    """`[count, 4]` output words of the counters first, first + 1, … (128-bit, wrapping), 10 rounds, a 64-bit key."""
    words = np.empty((count, PHILOX_WORDS), np.uint32)
    for start in range(0, count, _BLOCK):
        size = min(_BLOCK, count - start)
        low = _counters(first + start, size)
        high = np.full(size, (first + start) >> 64 & (1 << 64) - 1, np.uint64)
        high += low < low[0]
        state = [low & np.uint64(_MASK), low >> np.uint64(32), high & np.uint64(_MASK), high >> np.uint64(32)]
        key0, key1 = key & _MASK, key >> 32 & _MASK
        for _ in range(_PHILOX_ROUNDS):
            product0, product1 = state[0] * _PHILOX_MULTIPLIERS[0], state[2] * _PHILOX_MULTIPLIERS[1]
            state = [
                (product1 >> np.uint64(32)) ^ state[1] ^ np.uint64(key0),
                product1 & np.uint64(_MASK),
                (product0 >> np.uint64(32)) ^ state[3] ^ np.uint64(key1),
                product0 & np.uint64(_MASK),
            ]
            key0, key1 = (key0 + _PHILOX_KEY_STEPS[0]) & _MASK, (key1 + _PHILOX_KEY_STEPS[1]) & _MASK
        for word, value in enumerate(state):
            words[start : start + size, word] = value
    return words


def _counters(first: int, count: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The low 64 bits of count consecutive counters."""
    return np.arange(count, dtype=np.uint64) + np.uint64(first & (1 << 64) - 1)
