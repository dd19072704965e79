"""Small values that several fusions compute alike are computed once; no bit changes."""

import numpy as np
import pytest

import hloexec
from hloexec.engine.exec.running import plan_of
from hloexec.engine.plan.regions.region import RegionKernel
from tests.plan.ways import bits, require_same_bits

EXPONENTIALS = """HloModule m, is_scheduled=true

{computations}

ENTRY e {{
  x = f32[256,256] parameter(0)
  y = f32[256,256] parameter(1)
  w = f32[256,256] parameter(2)
{instructions}
}}
"""
FUSED = """
f {
  x = f32[256,256] parameter(0)
  y = f32[256,256] parameter(1)
  less = f32[256,256] subtract(x, y)
  e = f32[256,256] exponential(less)
  ROOT a = f32[256,256] add(e, x)
}
g {
  y = f32[256,256] parameter(0)
  x = f32[256,256] parameter(1)
  less = f32[256,256] subtract(x, y)
  e = f32[256,256] exponential(less)
  ROOT m = f32[256,256] multiply(e, x)
}
h {
  x = f32[256,256] parameter(0)
  s = f32[256,256] sine(x)
  c = f32[256,256] cosine(x)
  ROOT t = (f32[256,256], f32[256,256]) tuple(s, c)
}"""


def module_text(instructions: str, computations: str = FUSED) -> str:
    return EXPONENTIALS.format(computations=computations, instructions=instructions)


def module_of(instructions: str, computations: str = FUSED) -> hloexec.Module:
    return hloexec.parse(module_text(instructions, computations))


def opcodes(module: hloexec.Module) -> list[str]:
    """The opcodes of the instructions that a module's plan computes."""
    found = []
    for step in plan_of(module).steps:
        if isinstance(step.kernel, RegionKernel):
            found += [part.step.instruction.opcode for part in step.kernel.region.parts]
        else:
            found.append(step.instruction.opcode)
    return found


def same_bits(module: hloexec.Module) -> None:
    require_same_bits(module, *hloexec.random_inputs(module, seed=1))


@pytest.mark.parametrize("size", [64, 256])
def test_small_values_that_two_fusions_compute_alike_are_computed_once(size: int) -> None:
    """Large ones would live on through what is between the fusions."""
    text = module_text(
        """  a = f32[256,256] fusion(x, y), kind=kLoop, calls=f
  p = f32[256,256] dot(a, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  b = f32[256,256] fusion(y, x), kind=kLoop, calls=g
  ROOT r = f32[256,256] add(p, b)"""
    )
    module = hloexec.parse(text.replace("256", str(size)))
    assert opcodes(module).count("exponential") == (1 if size == 64 else 2)
    same_bits(module)


def test_observers_see_each_copy() -> None:
    module = module_of(
        """  a = f32[256,256] fusion(x, y), kind=kLoop, calls=f
  b = f32[256,256] fusion(y, x), kind=kLoop, calls=g
  ROOT r = f32[256,256] add(a, b)"""
    )
    seen: dict[str, object] = {}

    class Watch:
        def on_instruction(self, event: hloexec.Event) -> None:
            seen[event.name] = bits(event.value)

    inputs = hloexec.random_inputs(module, seed=1)
    found = hloexec.run(module, *inputs, observers=[Watch()])
    assert seen["a/e"] == seen["b/e"]
    assert bits(found) == bits(hloexec.run(module, *inputs))


def test_what_is_computed_again_outside_of_fusions_is_meant_to_save_memory() -> None:
    module = module_of(
        """  e1 = f32[256,256] exponential(x)
  p = f32[256,256] dot(e1, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  q = f32[256,256] dot(p, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  e2 = f32[256,256] exponential(x)
  ROOT r = f32[256,256] dot(e2, q), lhs_contracting_dims={1}, rhs_contracting_dims={0}""",
        "",
    )
    assert opcodes(module).count("exponential") == 2


def test_results_of_fusions_that_nothing_needs_are_not_computed() -> None:
    module = module_of(
        """  both = (f32[256,256], f32[256,256]) fusion(x), kind=kLoop, calls=h
  ROOT c = f32[256,256] get-tuple-element(both), index=1"""
    )
    assert opcodes(module) == ["cosine"]
    x = np.linspace(0, 1, 1 << 16, dtype=np.float32).reshape(256, 256)
    require_same_bits(module, x, x, x)


def test_a_region_computes_nothing_twice_even_at_the_peak() -> None:
    """A softmax as XLA divides it: the fusion of the sum and that of the quotients both compute the weights."""
    module = hloexec.parse("""HloModule m, is_scheduled=true
sum { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b) }
total_of {
  x = f32[512,256] parameter(0)
  most = f32[512] parameter(1)
  zero = f32[] constant(0)
  each = f32[512,256] broadcast(most), dimensions={0}
  below = f32[512,256] subtract(x, each)
  weights = f32[512,256] exponential(below)
  ROOT total = f32[512] reduce(weights, zero), dimensions={1}, to_apply=sum }
shares {
  x = f32[512,256] parameter(0)
  most = f32[512] parameter(1)
  total = f32[512] parameter(2)
  each = f32[512,256] broadcast(most), dimensions={0}
  below = f32[512,256] subtract(x, each)
  weights = f32[512,256] exponential(below)
  totals = f32[512,256] broadcast(total), dimensions={0}
  ROOT share = f32[512,256] divide(weights, totals) }
ENTRY e {
  x = f32[512,256] parameter(0)
  most = f32[512] parameter(1)
  total = f32[512] fusion(x, most), kind=kInput, calls=total_of
  ROOT share = f32[512,256] fusion(x, most, total), kind=kLoop, calls=shares }
""")
    assert opcodes(module).count("exponential") == 1
    same_bits(module)
