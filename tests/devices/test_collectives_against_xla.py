"""The model and XLA:CPU agree about the collectives that XLA:CPU has, in each of the four group modes.

Instructions carry `sharding={manual}`, so that XLA's partitioner takes the module as it is and partitions are real
partitions: who acts together is then XLA's own reading of groups and channels.
"""

from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from conformance import xla
from tests.devices import collectives_model as model
from tests.devices import drawing
from tests.devices.comparing import assert_same
from tests.drawing import examples

pytestmark = [pytest.mark.skipif(not xla.available(), reason="needs jaxlib"), pytest.mark.timeout(120)]

STEPS = "all-gather all-reduce reduce-scatter all-to-all collective-permute local ids".split()
# What XLA:CPU has, and what the import through StableHLO keeps (it forgets the device_ids of a mesh).
POSSIBLE: dict[str, Any] = {
    "for_xla": True,
    "forms": ("sync",),
    "sizes": (1, 2, 3, 4, 6, 8, 12, 16),
    "group_texts": ("explicit", "iota", "empty"),
    "elements": ("pred", "u8", "s16", "s32", "u32", "s64", "u64", "f16", "bf16", "f32", "f64", "c64"),
    "reducers": ("add", "multiply", "minimum", "maximum"),
}
# The partitioner takes no manual instruction with several results.
partitioned = drawing.programs(
    device_counts=st.sampled_from([(1, 2), (2, 2), (4, 2), (2, 4), (1, 8), (8, 1), (2, 3)]),
    steps=STEPS,
    variadic=False,
    manual=True,
    **POSSIBLE,
)
replicated = drawing.programs(
    device_counts=st.sampled_from([(1, 1), (2, 1), (3, 1), (4, 1), (8, 1)]),
    steps=[*STEPS, "all-to-all of a tuple"],
    modes=(model.CROSS_REPLICA,),
    **POSSIBLE,
)
settings = hypothesis.settings(
    max_examples=examples(40), deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
)


@pytest.mark.slow
@settings
@hypothesis.given(partitioned)
def test_model_agrees_with_xla_in_every_group_mode(program: drawing.Program) -> None:
    compiled = xla.compile_hlo(program.text, spmd=True, xla_flags=xla.COMPILED_SOONEST)
    assert_same(compiled.run_devices(program.inputs_per_device), program.expected, program.text)


@settings
@hypothesis.given(replicated)
def test_model_agrees_with_xla_across_replicas(program: drawing.Program) -> None:
    compiled = xla.compile_hlo(program.text, xla_flags=xla.COMPILED_SOONEST)
    assert_same(compiled.run_devices(program.inputs_per_device), program.expected, program.text)
