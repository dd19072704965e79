"""How many examples Hypothesis draws, and numbers that are drawn without it."""

from typing import Any

import hypothesis
import numpy as np


def examples(count: int) -> int:
    """`count` in a run of all tests, and a fifth of it, the first ones, where slow tests are left out.

    `tests/conftest.py` has the profile whose examples, of 100, say which part of them it is.
    """
    return -(-count * hypothesis.settings.default.max_examples // 100)


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Any:
    """Normal numbers, the same for a seed."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)
