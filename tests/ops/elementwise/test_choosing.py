"""Choosing by bits gives what choosing element by element gives."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from hloexec.ops.elementwise.formula import choose, choose_by_mask, mask_into, mask_type

_TYPES = (
    np.bool_,
    np.int8,
    ml_dtypes.int4,
    ml_dtypes.bfloat16,
    np.float16,
    np.float32,
    np.int64,
    np.complex64,
    np.complex128,
)


@pytest.mark.parametrize("dtype", _TYPES)
@pytest.mark.parametrize("sizes", [(), (3,), (40, 50), (0, 7)])
def test_choose_agrees_with_where(dtype: type, sizes: tuple[int, ...]) -> None:
    generator = np.random.default_rng(3)
    pred = generator.integers(0, 2, sizes).astype(np.bool_)
    first, second = (generator.integers(-8, 8, sizes).astype(np.float32).astype(dtype) for _ in range(2))
    for on_true, on_false in ((first, second), (first, np.broadcast_to(second.reshape(-1)[:1].sum(), sizes))):
        on_false = np.asarray(on_false, dtype)
        chosen = choose(pred, on_true, on_false)
        expected = np.where(pred, on_true, on_false)
        assert chosen.dtype == expected.dtype
        assert chosen.shape == expected.shape
        assert chosen.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", _TYPES)
def test_choose_between_numbers_agrees_with_where(dtype: type) -> None:
    generator = np.random.default_rng(5)
    pred = generator.integers(0, 2, (40, 50)).astype(np.bool_)
    on_true, on_false = (np.array([number], np.float32).astype(dtype) for number in (-3, 5))
    chosen = choose(pred, on_true, on_false)
    expected = np.where(pred, on_true, on_false)
    assert chosen.dtype == expected.dtype
    assert chosen.shape == expected.shape
    assert chosen.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", [dtype for dtype in _TYPES if dtype is not np.complex128])
@pytest.mark.parametrize("numbers", [(), (0,), (1,), (0, 1)])
@pytest.mark.parametrize("is_zero", [False, True])
def test_choosing_by_a_mask_agrees_with_where(dtype: type, numbers: tuple[int, ...], is_zero: bool) -> None:
    """`numbers` are the operands that are one number everywhere; `is_zero` makes that number +0."""
    generator = np.random.default_rng(7)
    pred = generator.integers(0, 2, (40, 50)).astype(np.bool_)
    operands = [generator.integers(-8, 8, (40, 50)).astype(np.float32).astype(dtype) for _ in range(2)]
    for place in numbers:
        operands[place] = np.array([0 if is_zero else place - 3], np.float32).astype(dtype)
    width = mask_type(np.dtype(dtype))
    assert width is not None
    mask, chosen = np.empty((40, 50), width), np.empty((40, 50), dtype)
    mask_into(pred, mask)
    choose_by_mask(mask, *operands, chosen)
    assert chosen.tobytes() == np.where(pred, *operands).tobytes()


def test_choose_keeps_every_bit_of_a_nan() -> None:
    bits = np.random.default_rng(4).integers(0, 1 << 32, 4096, np.uint32) | np.uint32(0x7F800000)
    pred = np.arange(4096) % 3 == 0
    values = bits.view(np.float32)
    chosen = choose(pred, values, values[::-1])
    np.testing.assert_array_equal(chosen.view(np.uint32), np.where(pred, bits, bits[::-1]))


def test_choose_takes_operands_of_any_strides() -> None:
    generator = np.random.default_rng(5)
    first = generator.normal(size=(60, 50)).astype(np.float32).T
    second = generator.normal(size=(50, 120)).astype(np.float32)[:, ::-2]
    pred = first < second
    np.testing.assert_array_equal(choose(pred, first, second), np.minimum(first, second))
