"""Random modules shrink to valid modules."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hloexec
from hloexec import testing
from tests.drawing import examples
from tests.shrinking.smallest import assert_valid, shuffled, smallest


@pytest.mark.filterwarnings("ignore::hloexec.HloWarning")
@settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(st.data())
def test_random_modules_shrink_to_valid_modules(data: st.DataObject) -> None:
    module = data.draw(testing.modules())
    small = smallest(module)
    assert_valid(small)
    hloexec.run(small, *hloexec.random_inputs(small))
    assert_valid(shuffled(module, data.draw(st.integers(0, 1000))))
