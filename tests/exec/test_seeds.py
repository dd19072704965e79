"""Runs that round at random side by side have the bits that each has alone."""

import numpy as np
import pytest

import hloexec
from hloexec.analysis.numerics.sampling.runs import at_random
from hloexec.core.values import arrays_of
from hloexec.engine.exec.running import run_seeds
from hloexec.engine.options import Options

_SUM = "add { a = T[] parameter(0)\n b = T[] parameter(1)\n ROOT sum = T[] add(a, b) }\n"
_ODD = (
    "odd { a = T[] parameter(0)\n b = T[] parameter(1)\n c = T[] multiply(a, b)\n d = T[] sine(c)\n"
    " ROOT e = T[] add(d, b) }\n"
)
_LESS = "less { a = T[] parameter(0)\n b = T[] parameter(1)\n ROOT less = pred[] compare(a, b), direction=LT }\n"
_LOOP = """
going { s = (s32[], T[4,6]) parameter(0)
 n = s32[] get-tuple-element(s), index=0
 x = T[4,6] get-tuple-element(s), index=1
 zero = T[] constant(0)
 total = T[] reduce(x, zero), dimensions={0,1}, to_apply=add
 limit = T[] constant(1e3)
 small = pred[] compare(total, limit), direction=LT
 most = s32[] constant(20)
 few = pred[] compare(n, most), direction=LT
 ROOT both = pred[] and(small, few) }
body { s = (s32[], T[4,6]) parameter(0)
 n = s32[] get-tuple-element(s), index=0
 one = s32[] constant(1)
 m = s32[] add(n, one)
 x = T[4,6] get-tuple-element(s), index=1
 t = T[] constant(1.7)
 ts = T[4,6] broadcast(t), dimensions={}
 y = T[4,6] multiply(x, ts)
 ROOT r = (s32[], T[4,6]) tuple(m, y) }
"""
_STEPS = {
    "elementwise": "e = T[4,6] exponential(x)\n d = T[4,6] divide(e, x)\n ROOT r = T[4,6] multiply(d, d)",
    "product": "ROOT r = T[4,4] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={1}",
    "sum": "z = T[] constant(0)\n ROOT r = T[4] reduce(x, z), dimensions={1}, to_apply=add",
    "other reducer": "z = T[] constant(1)\n ROOT r = T[4] reduce(x, z), dimensions={1}, to_apply=odd",
    "constants": (
        "c = T[] constant(3.3)\n d = T[] sine(c)\n e = T[4,6] broadcast(d), dimensions={}\n ROOT r = T[4,6] add(x, e)"
    ),
    "order": "y = T[4,6] multiply(x, x)\n ROOT s = T[4,6] sort(y), dimensions={1}, to_apply=less",
    "loop": (
        "z = s32[] constant(0)\n y = T[4,6] multiply(x, x)\n i = (s32[], T[4,6]) tuple(z, y)\n"
        " ROOT w = (s32[], T[4,6]) while(i), condition=going, body=body"
    ),
}


@pytest.mark.parametrize("step", _STEPS)
@pytest.mark.parametrize("kind", ["f32", "f64", "bf16", "f16"])
def test_seeds_side_by_side(step: str, kind: str) -> None:
    text = f"HloModule m\n{_SUM}{_ODD}{_LESS}{_LOOP}ENTRY main {{ x = T[4,6] parameter(0)\n {_STEPS[step]} }}\n"
    module = hloexec.parse(text.replace("T[", f"{kind}["))
    inputs = [hloexec.random_inputs(module, 3)]
    seeds = range(1, 8)
    alone = [hloexec.run_devices(module, inputs, numerics=at_random("reference", seed))[0] for seed in seeds]
    together = run_seeds(module, inputs, seeds, Options(numerics=at_random("reference", 0)))
    assert len(together) == len(alone)
    for one, other in zip(alone, together, strict=True):
        for expected, found in zip(arrays_of(one), arrays_of(other), strict=True):
            assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
            assert found.tobytes() == expected.tobytes()
    first = [np.asarray(arrays_of(each)[-1]).tobytes() for each in alone]
    assert len(set(first)) > 1


def test_seeds_of_what_has_random_numbers() -> None:
    text = (
        "HloModule m\nENTRY main { a = f32[] constant(0)\n b = f32[] constant(1)\n"
        " r = f32[8] rng(a, b), distribution=rng_uniform\n ROOT s = f32[8] multiply(r, r) }\n"
    )
    assert not run_seeds(hloexec.parse(text), [[]], range(3), Options(numerics=at_random("reference", 0)))
