"""Whether the arrays of a result are finite, where NumPy can read them without a copy: exactly, in one pass each.

With x infinite or NaN, Σ|x|² is not finite, and BLAS computes it; where it overflows, the elements decide.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from hloexec.core.dtypes import element_type_of
from hloexec.ops.common import wide

_Test: TypeAlias = Callable[[Any], bool]


def are_finite_in_host_memory(leaves: Sequence[Any]) -> bool:
    """Whether arrays of JAX, which one function returned, are all in the memory of the processor, and finite; waits for
    them."""
    return not leaves or (_is_in_host_memory(leaves[0].sharding) and all(_test_of(leaf.dtype)(leaf) for leaf in leaves))


@functools.cache
def _test_of(dtype: Any) -> _Test:
    """How to test arrays of a type in the memory of the processor."""
    import jax

    if jax.dtypes.issubdtype(dtype, jax.dtypes.extended) or dtype == jax.dtypes.float0:
        return _has_no_floats
    element_type = element_type_of(dtype)
    if not element_type.is_inexact:
        return _has_no_floats
    if dtype.char in "fdFD":
        return _is_sum_of_squares_finite
    if element_type.name in ("f16", "bf16"):
        infinity = int(np.asarray(np.inf, dtype).view(np.uint16)) << 1
        return functools.partial(_are_patterns_below, infinity)
    return _are_elements_finite


def _has_no_floats(_: Any) -> bool:
    return True


def _is_sum_of_squares_finite(leaf: Any) -> bool:
    array = np.asarray(leaf)
    return math.isfinite(np.vdot(array, array).real) or _are_elements_finite(array)


def _are_patterns_below(infinity: int, leaf: Any) -> bool:
    """Whether all patterns of 16 bits are below that of infinity, the sign of each shifted out."""
    patterns = np.asarray(leaf).view(np.uint16)
    return not patterns.size or bool((patterns << np.uint16(1)).max() < infinity)


def _are_elements_finite(leaf: Any) -> bool:
    return bool(np.isfinite(wide(np.asarray(leaf))).all())


@functools.cache
def _is_in_host_memory(sharding: Any) -> bool:
    """Whether NumPy can read arrays of a sharding where they are."""
    devices = sharding.device_set
    return len(devices) == 1 and all(device.platform == "cpu" for device in devices)
