"""Values that are only sliced are computed where slices show them; no bit changes."""

from __future__ import annotations

import numpy as np
import pytest

import hloexec
from hloexec.core.ir import ArrayShape
from hloexec.engine.exec.plans import plan_of
from tests.plan.ways import bits

FUSION = """HloModule m

fused {
  x = f32[8,96,128] parameter(0)
  y = f32[8,96,128] parameter(1)
  n = f32[] parameter(2)
  v = f32[128] parameter(3)
  ns = f32[8,96,128] broadcast(n), dimensions={}
  vs = f32[8,96,128] broadcast(v), dimensions={2}
  a = f32[8,96,128] subtract(x, y)
  b = f32[8,96,128] multiply(a, ns)
  c = f32[8,96,128] add(b, vs)
  less = pred[8,96,128] compare(c, x), direction=LT
  d = f32[8,96,128] select(less, b, c)
  e = bf16[8,96,128] convert(d)
  s = bf16[1,96,100] slice(e), slice={[5:6], [0:96], [28:128]}
  r = bf16[2,31,20] slice(e), slice={[5:7], [3:96:3], [0:60:3]}
  t = f32[1,1,128] slice(b), slice={[6:7], [95:96], [0:128]}
  ROOT all = (bf16[1,96,100], bf16[2,31,20], f32[1,1,128]) tuple(s, r, t)
}

ENTRY e {
  x = f32[8,96,128] parameter(0)
  y = f32[8,96,128] parameter(1)
  n = f32[] parameter(2)
  v = f32[128] parameter(3)
  ROOT f = (bf16[1,96,100], bf16[2,31,20], f32[1,1,128]) fusion(x, y, n, v), kind=kLoop, calls=fused
}
"""


def _inputs(module: hloexec.Module) -> list[np.ndarray]:
    return list(hloexec.random_inputs(module, seed=5))


def _largest(module: hloexec.Module) -> int:
    """Number of elements of the largest value that a step of a module's plan computes."""
    plan = plan_of(module)
    shapes = [plan.slot_shapes[slot] for step in plan.steps for slot in step.results if not step.kernel.is_view]
    return max(shape.element_count for shape in shapes if isinstance(shape, ArrayShape))


def test_a_fusion_computes_what_its_slices_show() -> None:
    module = hloexec.parse(FUSION)
    x, y, n, v = _inputs(module)
    found = hloexec.run(module, x, y, n, v)
    assert bits(found) == bits(hloexec.run(module, x, y, n, v, planner=False))
    b = (x - y) * n
    np.testing.assert_array_equal(found[2], b[6:7, 95:96])
    c = b + v
    d = np.where(c < x, b, c)
    np.testing.assert_array_equal(found[0], d[5:6, :, 28:].astype(found[0].dtype))
    np.testing.assert_array_equal(found[1], d[5:7, 3:96:3, 0:60:3].astype(found[0].dtype))
    assert _largest(module) == 2 * 96 * 128


def test_observers_see_whole_values() -> None:
    seen: dict[str, np.ndarray] = {}

    class Watch:
        def on_instruction(self, event: hloexec.Event) -> None:
            seen[event.name] = np.asarray(event.value) if isinstance(event.value, np.ndarray) else event.value

    module = hloexec.parse(FUSION)
    x, y, n, v = _inputs(module)
    found = hloexec.run(module, x, y, n, v, observers=[Watch()])
    np.testing.assert_array_equal(seen["f/b"], (x - y) * n)
    assert bits(found) == bits(hloexec.run(module, x, y, n, v))


KEPT = {
    "a function that is approximated": ("e = f32[64,64,8] exponential(x)", "e"),
    "what is computed by rows with it": ("e = f32[64,64,8] exponential(x)\n  z = f32[64,64,8] add(e, x)", "z"),
    "most of it": ("z = f32[64,64,8] add(x, x)\n  w = f32[64,40,8] slice(z), slice={[0:64], [24:64], [0:8]}", "z"),
}


@pytest.mark.parametrize("name", KEPT)
def test_steps_that_are_not_cropped(name: str) -> None:
    instructions, sliced = KEPT[name]
    other = ", f32[64,40,8]" if "w =" in instructions else ""
    text = f"""HloModule m
ENTRY e {{
  x = f32[64,64,8] parameter(0)
  {instructions}
  s = f32[64,8,8] slice({sliced}), slice={{[0:64], [0:8], [0:8]}}
  ROOT t = (f32[64,8,8]{other}) tuple(s{", w" if other else ""})
}}
"""
    module = hloexec.parse(text)
    (x,) = _inputs(module)
    assert bits(hloexec.run(module, x)) == bits(hloexec.run(module, x, planner=False))
    assert _largest(module) == 64 * 64 * 8 or any(step.instruction.opcode == "fusion" for step in plan_of(module).steps)
