"""The corpus holds what it is meant to hold; reading it is the parser's tests' business."""

import pytest

from conformance import xla
from tests.text.corpus import modules

pytestmark = pytest.mark.skipif(not xla.available(), reason="jaxlib is not installed")


def test_xla_reads_every_text():
    for name, text in modules():
        assert xla.parse_hlo(text) is not None, name


@pytest.mark.parametrize(
    "feature",
    [
        "FileNames",
        "StackFrames",
        "input_output_alias",
        "num_partitions=8",
        "is_scheduled=true",
        "sharding={",
        "channel_id=",
        "use_global_device_ids=true",
        "dim_labels=",
        "feature_group_count=4",
        "lhs_dilate=",
        "known_trip_count",
        "branch_computations={",
        "custom_call_target=",
        "api_version=",
        "algorithm=dot_bf16_bf16_f32_x3",
        "operand_precision={highest,highest}",
        "kind=kLoop",
        "fft_type=",
        "is_stable=",
        "indices_are_sorted=true",
        "f8e4m3fn[",
        "s4[4]{0:E(4)}",
        "c128[",
        "<=8",
        "-inf",
        "nan",
    ],
)
def test_the_corpus_shows(feature):
    assert any(feature in text for _, text in modules())
