"""How XLA compiles what calls are compared with."""

from collections.abc import Iterator

import pytest

from conformance.xla import COMPILED_SOONEST


@pytest.fixture(autouse=True, scope="package")
def compiled_soon() -> Iterator[None]:
    """As `by_jax` does: programs are compiled soon rather than well, since each runs once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("conformance.xla.COMPILATION_FLAGS", dict(COMPILED_SOONEST))
        yield
