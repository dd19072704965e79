"""How many examples Hypothesis draws in a run of all tests, and where slow ones are left out."""

from __future__ import annotations

import hypothesis
import pytest

from tests import conftest
from tests.drawing import examples


@pytest.mark.parametrize(
    ("selection", "profile", "counts"),
    [
        ("", None, [1, 12, 100, 300]),
        ("slow", None, [1, 12, 100, 300]),
        ("not slow", None, [1, 3, 20, 60]),
        ("not slow", "explore", [1, 12, 100, 300]),
    ],
)
def test_all_examples_are_drawn_unless_slow_tests_are_left_out(
    selection: str,
    profile: str | None,
    counts: list[int],
    monkeypatch: pytest.MonkeyPatch,
    pytestconfig: pytest.Config,
) -> None:
    monkeypatch.delenv("HYPOTHESIS_PROFILE", raising=False)
    before = hypothesis.settings.get_current_profile_name()
    if profile is not None:
        monkeypatch.setenv("HYPOTHESIS_PROFILE", profile)
    monkeypatch.setattr(pytestconfig.option, "markexpr", selection)
    try:
        conftest.pytest_configure(pytestconfig)
        assert [examples(count) for count in (1, 12, 100, 300)] == counts
    finally:
        hypothesis.settings.load_profile(before)
