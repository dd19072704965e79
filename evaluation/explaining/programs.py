"""The programs whose numerics are varied: those of `evaluation.programs` for one device, in the same halves, and small
ones for narrow and tiny numbers, of which every other is of the held half."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import attrs
import numpy as np

import hloexec
from evaluation.explaining.integers import choices, numbers
from evaluation.faults.planting import without_calls
from evaluation.programs import HELD, LATER, PROGRAMS
from hloexec.core.ir import Module
from hloexec.core.values import Value

_SUM = "sum {{ p = {0}[] parameter(0)\n q = {0}[] parameter(1)\n ROOT s = {0}[] add(p, q) }}\n"

SMALL = {
    "products": """ENTRY e { a = f32[48,64] parameter(0)
        b = f32[64,40] parameter(1)
        ROOT d = f32[48,40] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0} }""",
    "batched_products": """ENTRY e { a = f32[4,24,32] parameter(0)
        b = f32[4,20,32] parameter(1)
        d = f32[4,24,20] dot(a, b), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={2}
        t = f32[4,24,20] tanh(d)
        ROOT g = f32[4,24,32] dot(t, b), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_contracting_dims={1} }""",
    "three_layers": """ENTRY e { x = f32[32,24] parameter(0)
        u = f32[24,48] parameter(1)
        v = f32[48,48] parameter(2)
        w = f32[48,8] parameter(3)
        zero = f32[] constant(0)
        zeros = f32[32,48] broadcast(zero), dimensions={}
        d1 = f32[32,48] dot(x, u), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        r1 = f32[32,48] maximum(d1, zeros)
        d2 = f32[32,48] dot(r1, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        r2 = f32[32,48] maximum(d2, zeros)
        ROOT d3 = f32[32,8] dot(r2, w), lhs_contracting_dims={1}, rhs_contracting_dims={0} }""",
    "two_layers_and_a_sum": _SUM.format("f32")
    + """ENTRY e { x = f32[40,32] parameter(0)
        u = f32[32,32] parameter(1)
        v = f32[32,16] parameter(2)
        zero = f32[] constant(0)
        d1 = f32[40,32] dot(x, u), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        l = f32[40,32] logistic(d1)
        d2 = f32[40,16] dot(l, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        ROOT s = f32[40] reduce(d2, zero), dimensions={1}, to_apply=sum }""",
    "chain_in_bf16": """ENTRY e { x = bf16[64,32] parameter(0)
        y = bf16[64,32] parameter(1)
        m = bf16[64,32] multiply(x, y)
        a = bf16[64,32] add(m, x)
        t = bf16[64,32] tanh(a)
        n = bf16[64,32] multiply(t, y)
        ROOT s = bf16[64,32] subtract(n, x) }""",
    "gate_in_bf16": """ENTRY e { x = bf16[48,40] parameter(0)
        y = bf16[48,40] parameter(1)
        g = bf16[48,40] logistic(x)
        s = bf16[48,40] multiply(g, x)
        p = bf16[48,40] multiply(s, y)
        q = f32[48,40] convert(p)
        e = f32[48,40] exponential(q)
        ROOT r = f32[48,40] multiply(e, q) }""",
    "mean_in_bf16": _SUM.format("bf16")
    + """ENTRY e { x = bf16[64,160] parameter(0)
        zero = bf16[] constant(0)
        sq = bf16[64,160] multiply(x, x)
        s = bf16[64] reduce(sq, zero), dimensions={1}, to_apply=sum
        b = bf16[64,160] broadcast(s), dimensions={0}
        ROOT d = bf16[64,160] divide(x, b) }""",
    "columns_in_bf16": _SUM.format("bf16")
    + """ENTRY e { x = bf16[90,64] parameter(0)
        y = bf16[64] parameter(1)
        zero = bf16[] constant(0)
        s = bf16[64] reduce(x, zero), dimensions={0}, to_apply=sum
        ROOT r = bf16[64] add(s, y) }""",
    "dense_in_bf16": """ENTRY e { x = bf16[32,48] parameter(0)
        w = bf16[48,40] parameter(1)
        b = bf16[32,40] parameter(2)
        d = bf16[32,40] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        a = bf16[32,40] add(d, b)
        m = bf16[32,40] multiply(a, a)
        ROOT s = bf16[32,40] subtract(m, d) }""",
    "residual_in_bf16": """ENTRY e { x = bf16[32,48] parameter(0)
        w = bf16[48,48] parameter(1)
        d = bf16[32,48] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        t = bf16[32,48] tanh(d)
        r = bf16[32,48] add(t, x)
        f = f32[32,48] convert(r)
        ROOT n = f32[32,48] multiply(f, f) }""",
    "tiny_products": """ENTRY e { x = f32[64,16] parameter(0)
        y = f32[64,16] parameter(1)
        c = f32[] constant(1e-20)
        s = f32[64,16] broadcast(c), dimensions={}
        a = f32[64,16] multiply(x, s)
        b = f32[64,16] multiply(y, s)
        p = f32[64,16] multiply(a, b)
        k = f32[] constant(1e38)
        t = f32[64,16] broadcast(k), dimensions={}
        ROOT r = f32[64,16] multiply(p, t) }""",
    "tiny_powers": """ENTRY e { x = f32[64,16] parameter(0)
        y = f32[64,16] parameter(1)
        c = f32[] constant(-90)
        s = f32[64,16] broadcast(c), dimensions={}
        a = f32[64,16] add(x, s)
        p = f32[64,16] exponential(a)
        q = f32[64,16] multiply(p, y)
        k = f32[] constant(1e38)
        t = f32[64,16] broadcast(k), dimensions={}
        ROOT r = f32[64,16] multiply(q, t) }""",
    "small_powers": """ENTRY e { x = f32[64,32] parameter(0)
        y = f32[64,32] parameter(1)
        c = f32[] constant(0.001)
        s = f32[64,32] broadcast(c), dimensions={}
        a = f32[64,32] multiply(x, s)
        m = f32[64,32] exponential-minus-one(a)
        ROOT r = f32[64,32] multiply(m, y) }""",
    "small_logarithms": """ENTRY e { x = f32[64,32] parameter(0)
        y = f32[64,32] parameter(1)
        c = f32[] constant(0.002)
        s = f32[64,32] broadcast(c), dimensions={}
        a = f32[64,32] multiply(x, s)
        l = f32[64,32] log-plus-one(a)
        t = f32[64,32] tanh(a)
        ROOT r = f32[64,32] add(l, t) }""",
}
"""Small programs, by name: of each two neighbours, the second is held back."""

NAMES = (*(name for name, each in PROGRAMS.items() if each.devices == 1 and name not in LATER), *SMALL)

INTEGERS = {**choices.PROGRAMS, **numbers.PROGRAMS}
"""Programs whose results are integers and preds alone: of each two neighbours, the second is held back."""


def half_of(name: str) -> str:
    """`seen` or `held`."""
    for pairs in (SMALL, INTEGERS):
        if name in pairs:
            return ("seen", "held")[list(pairs).index(name) % 2]
    return "held" if name in HELD else "seen"


@attrs.frozen(eq=False)
class Program:
    """A module without calls, whose instructions have names of their own, and what it is run on."""

    module: Module
    inputs: Sequence[Value]


@cache
def program(name: str) -> Program:
    """One of the programs; raises ImportError without JAX."""
    if name in SMALL:
        module = without_calls(hloexec.parse(f"HloModule {name}\n{SMALL[name]}\n"))
        return Program(module, [np.asarray(value) for value in hloexec.random_inputs(module, seed=11)])
    if name in INTEGERS:
        module, inputs = INTEGERS[name].module()
        return Program(without_calls(module), inputs)
    from evaluation.programs.lowering import lowered

    found = lowered(name)
    return Program(without_calls(found.before), found.leaves)
