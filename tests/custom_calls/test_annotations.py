"""Annotations leave their operand as it is, as in XLA."""

from __future__ import annotations

import numpy as np
import pytest

import hloexec
from hloexec.custom_calls.annotations import Annotation
from hloexec.errors import ShapeError
from hloexec.ir import ArrayShape


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
        "annotate_device_placement",
        "SetBound",
        "xla.sdy.FuncResultSharding",
        "xla.sdy.PropagationBarrier",
    ],
)
def test_an_annotation_leaves_its_operand_as_it_is(target: str) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(hloexec.run(hloexec.parse(_module(target)), x), x)


def test_a_sharding_annotation_is_the_identity_on_xla() -> None:
    xla = pytest.importorskip("conformance.xla")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    sharded = _module("Sharding").replace('"Sharding"', '"Sharding", sharding={replicated}')
    np.testing.assert_array_equal(xla.compile_hlo(sharded, 1, spmd=True).run(x)[0], x)


def test_an_annotation_has_one_operand() -> None:
    shape = ArrayShape(hloexec.dtypes.ELEMENT_TYPES["f32"], (2,))
    with pytest.raises(ShapeError, match="one operand"):
        Annotation.infer(shape, shape)
