"""Random numbers, and the counter-based generators Threefry2x32 and Philox4x32.

Source: Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).

`rng-bit-generator` is a pure function of its state, bit for bit as XLA's. `rng` and `rng-get-and-update-state` use a
generator that belongs to the run: their results are reproducible for a seed, but differ from a backend's, because XLA
leaves them to each backend.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, TypeAlias

import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES, ElementType, Kind, element_type_of
from hloexec.core.ir import ArrayShape, Instruction, Module, Shape, TupleShape
from hloexec.core.structs import define, frozen
from hloexec.core.values import Array, Dimensions
from hloexec.errors import UnsupportedError
from hloexec.ops.attributes import Grammar, attribute
from hloexec.ops.common import array_shape, narrow, require, widen
from hloexec.ops.policies.policy import REFERENCE, NumericsPolicy
from hloexec.ops.registry import opcode
from hloexec.ops.relations import Relating
from hloexec.ops.resources import in_blocks
from hloexec.ops.signatures import require_same_shape, require_tuple, same_type
from hloexec.ops.traits import Probe

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


_MASK64 = (1 << 64) - 1


@frozen
class RngAttributes:
    distribution: str = attribute(Grammar.ENUM, choices=("rng_uniform", "rng_normal", "rng_invalid"), any_case=True)


@frozen
class RngBitGeneratorAttributes:
    algorithm: str = attribute(Grammar.ENUM, choices=("rng_default", "rng_three_fry", "rng_philox"), any_case=True)


@frozen
class RngGetAndUpdateStateAttributes:
    delta: int = attribute()


@define
class _RunGenerator:
    """The generator of a run: a key and a counter of 128 bits."""

    key: int
    counter: int = 0

    def advance(self, delta: int) -> int:
        """The counter as it was; it then grows by `delta`."""
        old = self.counter
        self.counter = (old + delta) % (1 << 128)
        return old

    def bits(self, count: int, width: int) -> Array:
        """Unsigned integers of 32 or 64 bits, all equally likely."""
        words, used = _philox_bits(self.key, self.counter, count, ELEMENT_TYPES[f"u{width}"])
        self.advance(used)
        return words


_generator: ContextVar[_RunGenerator] = ContextVar("generator", default=_RunGenerator(0))  # noqa: B039


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Within this context, `rng` and `rng-get-and-update-state` use a new generator with this seed.

    Two runs with one seed generate the same numbers, equal on all devices. Outside they share one generator, which goes
    on from run to run.
    """
    token = _generator.set(_RunGenerator(seed & _MASK64))
    try:
        yield
    finally:
        _generator.reset(token)


def _bits(shape: Shape, subject: str) -> ArrayShape:
    bits = array_shape(shape, subject)
    require(
        bits.element_type.is_integral or bits.element_type.is_floating,
        f"{subject} must hold integers or floats, but has shape {bits}",
    )
    return bits


@opcode("rng-bit-generator", operands=1, attributes=RngBitGeneratorAttributes, any_order=True)
class RngBitGenerator:
    """(new state, bits): uniformly distributed bits out of a state, as integers, or as the floats that have them.

    Dumps of TPUs declare the bits alone where nothing uses the new state.

    The state is u64[2], or u64[3] for Philox (or the same as pairs of u32, low word first). Threefry: key and 64-bit
    counter. Philox: key and 128-bit counter, low part first; of a state of two, the counter is (low, key).
    `rng_default` is Philox, as on XLA:CPU. Types narrower than 32 bits take the low bits of one word each. Source:
    XLA, RngBitGenerator.
    """

    states_shape = True
    probe = Probe("(u64[2], T[2]) rng-bit-generator(a0), algorithm=rng_default", ("u64[2]",))

    @staticmethod
    def unspecified(instruction: Instruction, module: Module) -> str | None:
        is_default = instruction.attributes.algorithm == "rng_default"
        return "has random bits of the default algorithm, which each backend chooses" if is_default else None

    @staticmethod
    def relate(use: Relating) -> None:
        use.keep(use.operands[0].axes, "it is the state of a random number generator")
        if isinstance(use.result.shape, TupleShape):
            use.keep(use.result.part(0).axes, "it is the state of a random number generator")

    @staticmethod
    def infer(state: Shape, *, attributes: RngBitGeneratorAttributes, shape: Shape) -> Shape:
        array = array_shape(state, "the state of rng-bit-generator")
        is_word = array.element_type.kind is Kind.UNSIGNED and array.element_type.bits in (32, 64)
        words = array.dimensions[0] * array.element_type.bits // 64 if array.rank == 1 else 0
        allowed = (2,) if attributes.algorithm == "rng_three_fry" else (2, 3)
        require(
            is_word and words in allowed and array.dimensions[0] * array.element_type.bits % 64 == 0,
            f"the state of rng-bit-generator with {attributes.algorithm} must be "
            f"{' or '.join(f'u64[{n}]' for n in allowed)}, but has shape {state}",
        )
        if not isinstance(shape, TupleShape):
            return _bits(shape, "the result of rng-bit-generator")
        parts = require_tuple(shape, 2, "rng-bit-generator")
        require(len(parts) == 2, f"rng-bit-generator must have the shape (state, bits), not {shape}")
        require_same_shape(parts[0], state, "element 0 of rng-bit-generator, its new state,")
        bits = _bits(parts[1], "element 1 of rng-bit-generator")
        return TupleShape((array, bits))

    @staticmethod
    def evaluate(state: Array, *, attributes: RngBitGeneratorAttributes, shape: Shape) -> Array | tuple[Array, Array]:
        bits = shape.elements[1] if isinstance(shape, TupleShape) else shape
        assert isinstance(bits, ArrayShape)
        pattern = ELEMENT_TYPES[f"u{bits.element_type.bits}"]
        words = [int(word) for word in np.ascontiguousarray(state).view(np.uint64)]
        if attributes.algorithm == "rng_three_fry":
            key, counter = words
            values, used = _threefry_bits(key, counter, bits.dimensions, pattern)
            words[1] = (counter + used) & _MASK64
        else:
            key, low = words[:2]
            counter = low | (words[2] if len(words) == 3 else key) << 64
            values, used = _philox_bits(key, counter, bits.element_count, pattern)
            counter += used
            words[1:] = [counter >> 64 * part & _MASK64 for part in range(len(words) - 1)]
        values = values.view(bits.element_type.storage).reshape(bits.dimensions)
        if not isinstance(shape, TupleShape):
            return values
        return np.array(words, np.uint64).view(state.dtype), values


def _of_run(instruction: Instruction, module: Module) -> str:
    """Why HLO leaves open what comes from the generator of a run."""
    return "has random numbers of a generator that each backend chooses"


@opcode(
    "rng-get-and-update-state", operands=0, attributes=RngGetAndUpdateStateAttributes, any_order=True, is_pure=False
)
class RngGetAndUpdateState:
    """The counter of the run's generator, low part first, which then advances by `delta`; see `seeded`."""

    states_shape = True
    probe = Probe("T[2] rng-get-and-update-state(), delta=1")
    unspecified = staticmethod(_of_run)

    @staticmethod
    def relate(use: Relating) -> None:
        use.keep(use.result.axes, "it is the state of a random number generator")

    @staticmethod
    def infer(*, shape: Shape) -> Shape:
        array = array_shape(shape, "rng-get-and-update-state")
        require(
            array.element_type.name == "u64" and array.dimensions in ((1,), (2,)),
            f"rng-get-and-update-state must have the shape u64[1] or u64[2], not {shape}",
        )
        return array

    @staticmethod
    def evaluate(*, attributes: RngGetAndUpdateStateAttributes, shape: ArrayShape) -> Array:
        old = _generator.get().advance(attributes.delta)
        return np.array([old >> 64 * part & _MASK64 for part in range(shape.dimensions[0])], np.uint64)


@opcode("rng", operands=2, attributes=RngAttributes, any_order=True, is_pure=False)
class Rng:
    """Samples of a uniform distribution over [a, b), or of a normal one with mean a and standard deviation b.

    a and b are scalars of the result's type: any float; for the uniform distribution also integers. `seeded` defines
    the generator. Source: XLA, RngUniform and RngNormal.
    """

    states_shape = True
    probe = Probe("T[2] rng(a0, a1), distribution=rng_uniform", ("T[]", "T[]"))
    unspecified = staticmethod(_of_run)

    @staticmethod
    def relate(use: Relating) -> None:
        """Any number of samples can be drawn."""

    @staticmethod
    def infer(a: Shape, b: Shape, *, attributes: RngAttributes, shape: Shape) -> Shape:
        result = array_shape(shape, "rng")
        for number, operand in enumerate((a, b)):
            scalar = array_shape(operand, f"operand {number} of rng")
            require(
                scalar.rank == 0 and same_type(scalar.element_type, result.element_type),
                f"operand {number} of rng must be a scalar of the result's type {result.element_type}, but is {scalar}",
            )
        require(attributes.distribution != "rng_invalid", "the distribution of rng must be rng_uniform or rng_normal")
        allows_integers = attributes.distribution == "rng_uniform"
        require(
            result.element_type.is_floating or (allows_integers and result.element_type.is_integral),
            f"rng cannot generate numbers of type {result.element_type} with {attributes.distribution}",
        )
        return result

    @staticmethod
    def evaluate(
        a: Array, b: Array, *, attributes: RngAttributes, shape: ArrayShape, numerics: NumericsPolicy = REFERENCE
    ) -> Array:
        element_type, generator = shape.element_type, _generator.get()
        if element_type.is_integral:
            return _uniform_integers(a, b, shape, generator)
        compute = element_type.compute
        low, high = (np.asarray(widen(np.asarray(bound)), compute) for bound in (a, b))
        count = shape.element_count
        if attributes.distribution == "rng_uniform":
            values = _unit_interval(count, compute, generator) * (high - low) + low
        else:
            values = low + high * _normal(count, compute, generator, is_exact=numerics.is_exact)
        return narrow(values.reshape(shape.dimensions), element_type)


def _threefry_bits(key: int, counter: int, dimensions: Dimensions, element_type: ElementType) -> tuple[Array, int]:
    """Integers from Threefry, and how far the counter advances.

    A 64-bit integer is one counter's two words. Narrower ones: the two words of a counter become neighbours in one
    dimension, the first of even size, else the first of the largest.
    """
    if element_type.bits == 64:
        count = math.prod(dimensions)
        return np.stack(threefry_2x32(key, counter, count), -1).reshape(-1).view(element_type.storage), count
    if not dimensions:
        return _low_bits(threefry_2x32(key, counter, 1)[0][:1], element_type), 1
    even = [number for number, size in enumerate(dimensions) if size % 2 == 0]
    split = even[0] if even else dimensions.index(max(dimensions))
    half = (*dimensions[:split], -(-dimensions[split] // 2), *dimensions[split + 1 :])
    count = math.prod(half)
    pair = np.stack([words.reshape(half) for words in threefry_2x32(key, counter, count)], split + 1)
    whole = pair.reshape(*dimensions[:split], 2 * half[split], *dimensions[split + 1 :])
    return _low_bits(whole[(slice(None),) * split + (slice(dimensions[split]),)], element_type), count


def _philox_bits(key: int, counter: int, count: int, element_type: ElementType) -> tuple[Array, int]:
    """Integers from Philox, in the order of its words, and how far the counter advances."""
    words_per_element = 2 if element_type.bits == 64 else 1
    counters = -(-count * words_per_element // PHILOX_WORDS)
    words = philox_4x32(key, counter, counters).reshape(-1)
    if words_per_element == 2:
        return words.view(element_type.storage)[:count], counters
    return _low_bits(words[:count], element_type), counters


def _low_bits(words: Array, element_type: ElementType) -> Array:
    """The low bits of 32-bit words as integers."""
    if element_type.bits == 32:
        return np.ascontiguousarray(words).view(element_type.storage)
    if element_type.bits >= 8:
        return words.astype(f"u{element_type.byte_size}").view(element_type.storage)
    return narrow(words.astype(element_type.compute), element_type)


def _unit_interval(count: int, dtype: np.dtype[np.floating], generator: _RunGenerator) -> Array:
    """Multiples of 2^-mantissa_bits in [0, 1), all equally likely."""
    element_type = element_type_of(dtype)
    bits = generator.bits(count, element_type.bits)
    whole: Array = (bits >> bits.dtype.type(element_type.bits - element_type.mantissa_bits)).astype(dtype)
    whole *= dtype.type(2.0**-element_type.mantissa_bits)
    return whole


def _normal(count: int, dtype: np.dtype[np.floating], generator: _RunGenerator, *, is_exact: bool) -> Array:
    """Standard normal numbers, by the transformation of Box and Muller.

    1 − u lies in (0, 1], where the logarithm is finite. Where it `is_exact`, they are f64 and do not depend on the
    processor.
    """
    radius, angle = (_unit_interval(count, dtype, generator) for _ in range(2))
    if is_exact:
        # Their tables take a while to compute, so that they wait until someone asks.
        from hloexec.ops.policies.exact.exponentials import log_plus_one
        from hloexec.ops.policies.exact.trigonometry import cos

        radius, angle = radius.astype(np.float64), angle.astype(np.float64)
        length: Array = np.sqrt(-2 * log_plus_one(-radius))
        return length * cos(2 * math.pi * angle)
    whole: Array = np.sqrt(-2 * np.log1p(-radius)) * np.cos(dtype.type(2 * math.pi) * angle)
    return whole


def _uniform_integers(a: Array, b: Array, shape: ArrayShape, generator: _RunGenerator) -> Array:
    """Integers in [a, b): random bits modulo the size of the range."""
    low, high = (int(np.asarray(widen(np.asarray(bound)))) for bound in (a, b))
    if low >= high:
        raise UnsupportedError(f"rng over the integers from {low} up to {high}: the range is empty")
    values = generator.bits(shape.element_count, 64) % np.uint64(high - low) + np.uint64(low & _MASK64)
    wide = values.astype(shape.element_type.compute).reshape(shape.dimensions)
    return narrow(wide, shape.element_type)
