"""How many examples Hypothesis draws."""

from __future__ import annotations

import hypothesis


def examples(count: int) -> int:
    """`count` in a run of all tests, and a fifth of it, the first ones, where slow tests are left out.

    `tests/conftest.py` has the profile whose examples, of 100, say which part of them it is.
    """
    return -(-count * hypothesis.settings.default.max_examples // 100)
