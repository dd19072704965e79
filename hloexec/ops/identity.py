"""What must be equal in processes for their results to be comparable: versions, and how they round."""

from __future__ import annotations

import hashlib
from functools import cache

import ml_dtypes
import numpy as np

from hloexec.core.version import __version__
from hloexec.ops.resources import hold_blas, single_threaded_blas


def versions() -> dict[str, str]:
    """What has to be installed in the same version."""
    return {"hloexec": __version__, "NumPy": np.__version__, "ml_dtypes": ml_dtypes.__version__}


@cache
def rounding() -> str:
    """A digest of products and functions that processors and builds of NumPy and BLAS round in ways of their own."""
    digest = hashlib.sha256()
    numbers = ((np.arange(67 * 129) % 1013 - 500) / 257).reshape(67, 129)
    with single_threaded_blas():
        hold_blas()
        for values in (numbers, numbers.astype(np.float32)):
            results = [values @ values.T, values @ values[0], values.sum(1)]
            results += [function(values) for function in (np.exp, np.sin, np.tanh, np.arctan)]
            for result in results:
                digest.update(result.tobytes())
    return digest.hexdigest()[:16]
