"""Modules for tests of execution, and the comparison with XLA:CPU."""

from typing import Any

import pytest
from numpy.testing import assert_array_equal

import hloexec
from hloexec.core.ir import Module
from hloexec.core.tree import flat
from hloexec.engine.exec import run

COUNTING_LOOP = """HloModule counting

body {
  state = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  x = f32[4] get-tuple-element(state), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  doubled = f32[4] add(x, x)
  ROOT result = (s32[], f32[4]) tuple(next, doubled)
}

condition {
  state = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  limit = s32[] constant(5)
  ROOT again = pred[] compare(i, limit), direction=LT
}

ENTRY main {
  x = f32[4] parameter(0)
  zero = s32[] constant(0)
  start = (s32[], f32[4]) tuple(zero, x)
  ROOT loop = (s32[], f32[4]) while(start), condition=condition, body=body
}
"""


def parsed(text: str) -> Module:
    return hloexec.parse(text)


def run_text(text: str, *inputs: Any, **options: Any) -> Any:
    """The result on one device, every intermediate result checked against its declared shape."""
    return run(parsed(text), *inputs, **{"check": True, **options})


def agree_with_xla(text: str, *inputs: Any) -> list[Any]:
    """Run a module here and on XLA:CPU, which compiles it soon rather than well, and require equal bits; the leaves."""
    xla = pytest.importorskip("conformance.xla")
    if not xla.available():
        pytest.skip("needs jaxlib")
    expected = xla.run_hlo(text, *inputs, xla_flags=xla.COMPILED_SOONEST)
    actual = flat(run_text(text, *inputs))
    assert len(actual) == len(expected)
    for ours, theirs in zip(actual, expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert ours.shape == theirs.shape
        assert_array_equal(ours, theirs)
    # The plain machine, without checks, must say the same.
    for ours, theirs in zip(flat(run(parsed(text), *inputs)), actual, strict=True):
        assert_array_equal(ours, theirs)
    return actual
