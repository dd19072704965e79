"""Annotations leave their operand as it is, as in XLA."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from hloexec.errors import EvaluationError, HloError, UnsupportedError


def _module(target: str) -> str:
    return f"""HloModule m

ENTRY e {{
  x = f32[2,3] parameter(0)
  ROOT y = f32[2,3] custom-call(x), custom_call_target="{target}"
}}
"""


@pytest.mark.parametrize(
    "target",
    [
        "Sharding",
        "InspectSharding",
        "LayoutConstraint",
        "MoveToHost",
        "MoveToDevice",
        "PinToDevice",
        "PinToDeviceSram",
        "AssumeGatherIndicesInBound",
        "GatherScatterIndicesBitpacked",
        "annotate_device_placement",
        "SetBound",
        "xla.sdy.FuncResultSharding",
        "xla.sdy.PropagationBarrier",
        "AwsNeuronTransferWithStaticRing",
        "AwsNeuronLNCShardingConstraint",
        "AwsNeuronModuleMarkerStart-Forward",
        "NeuronBoundaryMarker-End",
    ],
)
def test_an_annotation_leaves_its_operand_as_it_is(target: str) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert_array_equal(hloexec.run(hloexec.parse(_module(target)), x), x)


def test_a_marker_of_layers_gives_all_its_operands() -> None:
    text = """HloModule m
ENTRY e { x = f32[2] parameter(0)
  y = s32[] parameter(1)
  b = (f32[2], s32[]) custom-call(x, y), custom_call_target="AwsNeuronModuleMarkerStart-Forward"
  z = f32[2] get-tuple-element(b), index=0
  n = f32[2] negate(z)
  i = s32[] get-tuple-element(b), index=1
  ROOT e = (f32[2], s32[]) custom-call(n, i), custom_call_target="AwsNeuronModuleMarkerEnd-Forward" }
"""
    negated, number = hloexec.run(hloexec.parse(text), np.float32([1, 2]), np.int32(3))
    assert negated.tolist() == [-1, -2] and number == 3
    wrong = text.replace("b = (f32[2], s32[])", "b = (f32[3], s32[])")
    with pytest.raises(hloexec.VerificationError, match="AwsNeuronModuleMarkerStart-Forward"):
        hloexec.verify(hloexec.parse(wrong))


def test_a_sharding_annotation_is_the_identity_on_xla() -> None:
    xla = pytest.importorskip("conformance.xla")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    sharded = _module("Sharding").replace('"Sharding"', '"Sharding", sharding={replicated}')
    assert_array_equal(xla.compile_hlo(sharded, 1, spmd=True).run(x)[0], x)


def test_an_annotation_has_one_operand() -> None:
    module = hloexec.parse(_module("Sharding").replace("custom-call(x)", "custom-call(x, x)"))
    with pytest.raises(hloexec.VerificationError, match="it takes 1 operand, but has 2"):
        hloexec.run(module, np.zeros((2, 3), np.float32))


@pytest.mark.parametrize(("target", "operands"), [("control_dep", "x, x"), ("dce_sink", "x")])
def test_orders_of_side_effects_give_nothing(target, operands):
    text = f"""HloModule m

ENTRY e {{
  x = f32[3] parameter(0)
  t = () custom-call({operands}), custom_call_target="{target}", custom_call_has_side_effect=true
  ROOT r = f32[3] copy(x)
}}
"""
    x = np.arange(3, dtype=np.float32)
    assert_array_equal(hloexec.run(hloexec.parse(text), x), x)
    assert hloexec.run(hloexec.parse(text.replace("ROOT ", "").replace("  t =", "  ROOT t =")), x) == ()


@pytest.mark.parametrize("config", ['"sizes differ"', '{error_msg = "sizes differ"}'])
def test_an_assertion_that_does_not_hold_ends_the_run_with_its_message(config):
    text = f"""HloModule m

ENTRY e {{
  x = pred[] parameter(0)
  ROOT t = token[] custom-call(x), custom_call_target="__xla_gpu_assert", custom_call_has_side_effect=true, backend_config={config}
}}
"""
    hloexec.run(hloexec.parse(text), np.array(True))
    with pytest.raises(EvaluationError, match="sizes differ"):
        hloexec.run(hloexec.parse(text), np.array(False))
    with pytest.raises(UnsupportedError, match="attribute depth"):
        hloexec.run(hloexec.parse(text.replace(config, "{depth = 1 : i32}")), np.array(True))
    with pytest.raises(HloError, match=r"must be pred\[\]"):
        hloexec.run(hloexec.parse(text.replace("pred[]", "f32[]")), np.float32(1))
