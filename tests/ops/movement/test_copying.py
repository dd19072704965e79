"""Copies in row-major order, however the source lies."""

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided
from numpy.testing import assert_array_equal

from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.ops.common import reshaped, row_major

CASES = [
    ((1024, 1024), (1, 0)),
    ((2048, 517), (1, 0)),
    ((128, 128, 64), (2, 1, 0)),
    ((3, 512, 1024), (0, 2, 1)),
    ((1, 2048, 1, 512, 1), (3, 4, 0, 2, 1)),
    ((8, 16, 4, 32), (3, 1, 0, 2)),
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", "f32 bf16 s8 s4 f64 pred c64 c128".split())
@pytest.mark.parametrize(("shape", "order"), CASES)
def test_a_copy_has_the_elements_of_its_source(name: str, shape: tuple[int, ...], order: tuple[int, ...]) -> None:
    numbers = np.random.default_rng(0).integers(0, 8, shape)
    source = numbers.astype(ELEMENT_TYPES[name].storage).transpose(order)
    copied = row_major(source)
    assert copied.flags.c_contiguous
    assert copied.dtype == source.dtype
    assert not np.shares_memory(copied, source)
    assert_array_equal(copied, source)
    flat = reshaped(source, (source.size,))
    assert_array_equal(flat, source.reshape(-1))


@pytest.mark.parametrize(
    "source",
    [
        np.arange(1 << 20).reshape(1024, 1024)[::-1].T,
        np.broadcast_to(np.arange(1024)[:, None], (2048, 1024, 1)).T,
        np.arange(1 << 21).reshape(2048, 1024)[::2].T,
        as_strided(np.arange(3000), (1024, 1024), (8, 8)),
        np.zeros((0, 1024, 2048)).T,
        np.array(3.0),
    ],
    ids="reversed broadcast strided overlapping empty scalar".split(),
)
def test_any_strides_can_be_copied(source: np.ndarray) -> None:
    copied = row_major(source)
    assert copied.flags.c_contiguous
    assert_array_equal(copied, source)


def test_reshaping_copies_only_what_strides_cannot_express() -> None:
    source = np.arange(1 << 21).reshape(1024, 2048).T
    assert np.shares_memory(reshaped(source, (2, 1024, 32, 32)), source)
    across = reshaped(source, (1 << 21,))
    assert not np.shares_memory(across, source)
    assert_array_equal(across, source.reshape(-1))
