"""Conversions that operations share."""

import ml_dtypes
import numpy as np
from numpy.testing import assert_array_equal

from hloexec.ops.common import wide


def test_wide_bf16_has_the_numbers_of_all_patterns() -> None:
    patterns = np.arange(1 << 16, dtype=np.uint32)
    with np.errstate(invalid="ignore"):
        found = wide(patterns.astype(np.uint16).view(ml_dtypes.bfloat16))
        # A bf16 number is the f32 number whose lower half is zero.
        expected = (patterns << 16).view(np.float32).astype(np.float64)
    assert found.dtype == np.float64
    assert_array_equal(found, expected)
    assert_array_equal(np.signbit(found), np.signbit(expected))
