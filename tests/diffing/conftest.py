"""What these tests are about: the search by values, which modules that differ in one place of their texts do not need."""

from collections.abc import Sequence

import pytest

from hloexec.core.ir import Module
from hloexec.tools.diffing.texts import TextChange


@pytest.fixture(autouse=True)
def by_values(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts are not compared, but in the tests of that."""

    def nothing(before: Module, after: Module) -> Sequence[TextChange]:
        return []

    if request.path.stem != "test_texts":
        monkeypatch.setattr("hloexec.tools.diffing.running.text_changes", nothing)
