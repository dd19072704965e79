"""Random bits against XLA:CPU, and the generators against their authors' known answers."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from conformance import xla
from conformance.cell import text_of
from hloexec.errors import ShapeError, UnsupportedError
from hloexec.ops.random import philox_4x32, seeded, threefry_2x32
from tests.ops.against_xla import needs_xla
from tests.ops.evaluation import evaluate

DTYPES: dict[str, Any] = {"u8": np.uint8, "s16": np.int16, "u32": np.uint32, "s32": np.int32, "u64": np.uint64}
DIMENSIONS = [(), (5,), (7, 7), (3, 4, 5), (0,), (1001,)]
STATE = np.array([0x123456789ABCDEF0, 2**64 - 2, 2**64 - 1], np.uint64)
"""Counters about to carry."""


def generator(algorithm: str, state: str, *bits: str) -> str:
    """A module of one generator, or of several side by side."""
    body = "".join(
        f"  r{number} = ({state}, {shape}) rng-bit-generator(s), algorithm={algorithm}\n"
        for number, shape in enumerate(bits)
    )
    whole = ", ".join(f"({state}, {shape})" for shape in bits)
    names = ", ".join(f"r{number}" for number in range(len(bits)))
    root = f"  ROOT t = ({whole}) tuple({names})\n" if len(bits) > 1 else ""
    text = f"HloModule m\nENTRY e {{\n  s = {state} parameter(0)\n{body}{root}}}"
    return text if root else text.replace("  r0 =", "  ROOT r0 =")


def test_threefry_gives_the_published_answers() -> None:
    """The known answers that come with Random123 for 20 rounds."""
    low, high = threefry_2x32(0, 0, 1)
    assert (low[0], high[0]) == (0x6B200159, 0x99BA4EFE)
    low, high = threefry_2x32(2**64 - 1, 2**64 - 1, 1)
    assert (low[0], high[0]) == (0x1CB996FC, 0xBB002BE7)


def test_philox_gives_the_published_answers() -> None:
    """The known answers that come with Random123 for 10 rounds."""
    assert philox_4x32(0, 0, 1).tolist() == [[0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]]
    assert philox_4x32(2**64 - 1, 2**128 - 1, 1).tolist() == [[0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]]


def test_counters_carry_into_the_high_half() -> None:
    words = philox_4x32(7, 2**64 - 2, 4)
    for offset in range(4):
        assert_array_equal(words[offset], philox_4x32(7, 2**64 - 2 + offset, 1)[0])


@pytest.mark.sampled(3)
@needs_xla
@pytest.mark.parametrize(
    ("algorithm", "words", "element_type"),
    [
        *(("rng_three_fry", 2, element_type) for element_type in DTYPES),
        *(("rng_philox", 3, element_type) for element_type in ("s16", "s32", "u64")),
        ("rng_philox", 2, "u8"),
        ("rng_default", 2, "u32"),
    ],
)
def test_bits_agree_with_xla(algorithm: str, words: int, element_type: str) -> None:
    shapes = [text_of(element_type, dimensions) for dimensions in DIMENSIONS]
    text = generator(algorithm, f"u64[{words}]", *shapes)
    expected = xla.run_hlo(text, STATE[:words])
    for number, (state, bits) in enumerate(evaluate(text, STATE[:words])):
        assert_array_equal(state, expected[2 * number])
        assert bits.dtype == DTYPES[element_type]
        # XLA:CPU hands signed integers out as unsigned ones.
        theirs = expected[2 * number + 1]
        assert_array_equal(bits.view(theirs.dtype), theirs)


@needs_xla
def test_narrow_bits_agree_with_xla() -> None:
    """Compared in the low bits of u8 and s8: jaxlib 0.12 cannot return an s2, nor does XLA:CPU extend its sign."""
    shapes = {"u2[9]": "u8[9]", "u4[7,7]": "u8[7,7]", "s2[9]": "s8[9]", "s4[7,7]": "s8[7,7]"}
    body = "".join(
        f"  r{n} = (u64[2], {narrow}) rng-bit-generator(s), algorithm=rng_three_fry\n"
        f"  b{n} = {narrow} get-tuple-element(r{n}), index=1\n"
        f"  c{n} = {wide} convert(b{n})\n"
        for n, (narrow, wide) in enumerate(shapes.items())
    )
    root = f"({', '.join(shapes.values())}) tuple(c0, c1, c2, c3)"
    text = f"HloModule m\nENTRY e {{\n  s = u64[2] parameter(0)\n{body}  ROOT t = {root}\n}}"
    for ours, theirs in zip(evaluate(text, STATE[:2]), xla.run_hlo(text, STATE[:2]), strict=True):
        mask = 3 if ours.ndim == 1 else 15
        assert_array_equal(ours & mask, theirs & mask)


@pytest.mark.parametrize("algorithm", ["rng_three_fry", "rng_philox"])
def test_bits_are_the_same_without_the_new_state(algorithm: str) -> None:
    with_state = generator(algorithm, "u64[2]", "u32[7]")
    _, bits = evaluate(with_state, STATE[:2])
    alone = with_state.replace("(u64[2], u32[7]) rng-bit", "u32[7] rng-bit")
    assert_array_equal(evaluate(alone, STATE[:2]), bits)
    with pytest.raises(ShapeError, match="the result of rng-bit-generator must hold integers or floats"):
        evaluate(alone.replace("u32[7]", "pred[7]"), STATE[:2])


def test_a_state_of_32_bit_words_is_the_same_state() -> None:
    wide = evaluate(generator("rng_default", "u64[2]", "u32[9]"), STATE[:2])
    narrow = evaluate(generator("rng_default", "u32[4]", "u32[9]"), STATE[:2].view(np.uint32))
    assert_array_equal(narrow[0].view(np.uint64), wide[0])
    assert_array_equal(narrow[1], wide[1])


@pytest.mark.parametrize(("floats", "integers"), [("f32", "u32"), ("bf16", "u16"), ("f8e5m2", "u8"), ("f64", "u64")])
def test_floats_have_the_bits_of_integers(floats: str, integers: str) -> None:
    _, values = evaluate(generator("rng_three_fry", "u64[2]", f"{floats}[9]"), STATE[:2])
    _, bits = evaluate(generator("rng_three_fry", "u64[2]", f"{integers}[9]"), STATE[:2])
    assert_array_equal(values.view(bits.dtype), bits)


@pytest.mark.parametrize(
    ("state", "bits", "message"),
    [
        ("u64[3]", "u32[4]", r"must be u64\[2\]"),
        ("s64[2]", "u32[4]", r"must be u64\[2\]"),
        ("u64[2,1]", "u32[4]", r"must be u64\[2\]"),
        ("u64[2]", "c64[4]", "must hold integers or floats"),
        ("u64[2]", "pred[4]", "must hold integers or floats"),
    ],
)
def test_wrong_generators_are_refused(state: str, bits: str, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        evaluate(generator("rng_three_fry", state, bits))


def draw(distribution: str, shape: str, a: str, b: str) -> str:
    scalar = shape.partition("[")[0] + "[]"
    return f"""HloModule m
ENTRY e {{
  a = {scalar} constant({a})
  b = {scalar} constant({b})
  ROOT r = {shape} rng(a, b), distribution={distribution}
}}"""


@pytest.mark.parametrize("element_type", "f64 f32 bf16 f16".split())
def test_uniform_samples_fill_their_interval(element_type: str) -> None:
    with seeded(1):
        samples = evaluate(draw("rng_uniform", f"{element_type}[100,100]", "-1", "3")).astype(np.float64)
    assert samples.min() >= -1
    assert samples.max() <= 3
    # The mean of n samples has standard deviation (b - a) / sqrt(12 n), 0.0115 here; six of them.
    assert abs(samples.mean() - 1) < 0.07


def test_normal_samples_have_mean_and_deviation() -> None:
    with seeded(1):
        samples = evaluate(draw("rng_normal", "f32[200,200]", "5", "2")).astype(np.float64)
    # Standard deviations of the two estimates: 2 / sqrt(n) and 2 / sqrt(2 n), n = 40000; six of them.
    assert abs(samples.mean() - 5) < 0.06
    assert abs(samples.std() - 2) < 0.043


def test_uniform_integers_take_every_value_below_the_limit() -> None:
    with seeded(1):
        samples = evaluate(draw("rng_uniform", "s8[1000]", "-3", "4"))
    assert set(samples.tolist()) == set(range(-3, 4))


def test_a_seed_repeats_the_samples_and_draws_differ() -> None:
    text = draw("rng_uniform", "f32[8]", "0", "1")
    with seeded(3):
        first, second = evaluate(text), evaluate(text)
    with seeded(3):
        again = evaluate(text)
    with seeded(4):
        other = evaluate(text)
    assert_array_equal(first, again)
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_integers_from_an_empty_range_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="the range is empty"):
        evaluate(draw("rng_uniform", "s32[8]", "4", "4"))


def test_normal_integers_are_refused() -> None:
    with pytest.raises(ShapeError, match="cannot generate numbers of type s32 with rng_normal"):
        evaluate(draw("rng_normal", "s32[8]", "0", "4"))


def test_the_state_of_the_run_advances_by_delta() -> None:
    text = """HloModule m
ENTRY e {
  a = u64[2] rng-get-and-update-state(), delta=5
  b = u64[2] rng-get-and-update-state(), delta=7
  ROOT r = (u64[2], u64[2]) tuple(a, b)
}"""
    with seeded(0):
        first, second = evaluate(text)
        third, _ = evaluate(text)
    assert [first.tolist(), second.tolist(), third.tolist()] == [[0, 0], [5, 0], [12, 0]]
