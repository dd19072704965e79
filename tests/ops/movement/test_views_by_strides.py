"""Views by strides: those of NumPy's as_strided, of all arrays and element types, and never writable."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

from hloexec.ops.common import strided

WHOLE = np.arange(48, dtype=np.int32).reshape(6, 8)


@pytest.mark.parametrize(
    ("array", "dimensions", "strides"),
    [
        (WHOLE, (5, 7, 2, 2), (32, 4, 32, 4)),
        (WHOLE, (3,), (0,)),
        (WHOLE, (), ()),
        (WHOLE, (0, 3), (32, 4)),
        (WHOLE[:0], (0,), (4,)),
        (WHOLE[0, 0], (1,), (0,)),
        (np.asfortranarray(WHOLE), (2, 6, 3), (24, 4, 24)),
        (WHOLE[1:, ::2], (2, 3), (32, 8)),
        (WHOLE[::-1, ::-1], (6, 8), (-32, -4)),
        (WHOLE[:1][::-1], (1, 4), (-32, 4)),
    ],
    ids=["windows", "repeated", "one", "no windows", "empty", "scalar", "turned", "cut", "reversed", "reversed row"],
)
def test_views_show_what_numpys_do(array: Any, dimensions: tuple[int, ...], strides: tuple[int, ...]) -> None:
    array = np.asarray(array)
    found, expected = strided(array, dimensions, strides), as_strided(array, dimensions, strides)
    assert found.strides == expected.strides
    assert np.array_equal(found, expected)
    assert not found.flags.writeable
    assert not array.size or np.shares_memory(found, array) or not found.size


@pytest.mark.parametrize("dtype", [np.bool_, np.complex64, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2, ml_dtypes.int4])
def test_views_keep_the_element_type(dtype: Any) -> None:
    array = np.array([0, 1, 1, 0, 1, 0]).astype(dtype)
    found = strided(array, (4, 3), (array.itemsize, array.itemsize))
    assert found.dtype == array.dtype
    assert found.tobytes() == np.stack([array[k : k + 3] for k in range(4)]).tobytes()
