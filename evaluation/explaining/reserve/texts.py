"""Programs of the reserve in HLO text, whose truths NumPy computes: collectives, narrow types, f64, functions.

A truth is a function of the inputs of all devices, of the policy, and of a fault; it returns the leaves of each device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import ml_dtypes
import numpy as np

from evaluation.programs.program import normal, positive

Leaves = list[Any]


@attrs.frozen(eq=False)
class Text:
    """A module, what each device gets, which policies are varied, and what is right.

    NumPy adds up in f64 here: where a program has little else, that is `exact`.
    """

    text: str
    inputs: Sequence[Sequence[Any]]
    truth: Callable[[Sequence[Any], str, str], Leaves]
    """From the inputs of all devices, a policy and a fault."""
    policies: dict[str, str]
    """Names of policies, by what the truth calls them."""
    faults: tuple[str, ...]


TEXTS: dict[str, Text] = {}
_ADD = "add { p = f32[] parameter(0)\n q = f32[] parameter(1)\n ROOT s = f32[] add(p, q) }\n"


def _rounded(array: Any, bits: int) -> Any:
    """f32 to so many bits of the significand, to nearest, ties to even."""
    words, shift = array.astype(np.float32).view(np.uint32), 23 - bits
    words = words + np.uint32((1 << (shift - 1)) - 1) + ((words >> np.uint32(shift)) & np.uint32(1))
    return (words & ~np.uint32((1 << shift) - 1)).view(np.float32)


def _product(lhs: Any, rhs: Any, policy: str = "") -> Any:
    """A product of matrices, added up in f64 and rounded once."""
    if policy:
        bits = 10 if policy.startswith("tf32") else 7
        lhs, rhs = _rounded(lhs, bits), _rounded(rhs, bits)
    return (lhs.astype(np.float64) @ rhs.astype(np.float64)).astype(np.float32)


def _columns_in_parallel(rows: Sequence[Any], policy: str, fault: str) -> Leaves:
    first = "" if policy == "second tf32" else policy
    second = policy.removeprefix("second ")
    partial = [_product(x, w, first) for x, w, _ in rows]
    total = np.float32(0) + partial[0]
    for each in partial[1 : 3 if fault == "one_left_out" else 4]:
        total = total + each
    if fault == "mean":
        total = total / np.float32(4)
    hidden = np.tanh(total.astype(np.float64)).astype(np.float32)
    return [[_product(hidden, v, second)] for _, _, v in rows]


TEXTS["columns_in_parallel"] = Text(
    "HloModule columns_in_parallel, num_partitions=4\n"
    + _ADD
    + """ENTRY e { x = f32[12,10] parameter(0)
        w = f32[10,16] parameter(1)
        v = f32[16,6] parameter(2)
        d1 = f32[12,16] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        r = f32[12,16] all-reduce(d1), channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=add
        t = f32[12,16] tanh(r)
        ROOT d2 = f32[12,6] dot(t, v), lhs_contracting_dims={1}, rhs_contracting_dims={0} }""",
    [[normal(seed, 12, 10), normal(seed + 10, 10, 16), normal(seed + 20, 16, 6)] for seed in range(4)],
    _columns_in_parallel,
    {"": "reference", "tf32": "tf32", "bf16": "bf16", "second tf32": "reference,d2=tf32"},
    ("one_left_out", "mean"),
)


def _gathered_and_scattered(rows: Sequence[Any], policy: str, fault: str) -> Leaves:
    order = (1, 0) if fault == "order" else (0, 1)
    whole = np.concatenate([rows[number][0] for number in order])
    partial = [_product(whole, w, policy) for _, w in rows]
    total = (partial[0] - partial[1]) if fault == "sign" else (partial[0] + partial[1])
    return [
        [total[8 * number : 8 * number + 8], total.sum(0, dtype=np.float64).astype(np.float32)] for number in (0, 1)
    ]


TEXTS["gathered_and_scattered"] = Text(
    "HloModule gathered_and_scattered, num_partitions=2\n"
    + _ADD
    + """ENTRY e { x = f32[8,20] parameter(0)
        w = f32[20,14] parameter(1)
        zero = f32[] constant(0)
        g = f32[16,20] all-gather(x), channel_id=1, replica_groups={{0,1}}, dimensions={0}, use_global_device_ids=true
        d = f32[16,14] dot(g, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        s = f32[8,14] reduce-scatter(d), channel_id=2, replica_groups={{0,1}}, dimensions={0}, use_global_device_ids=true, to_apply=add
        a = f32[16,14] all-reduce(d), channel_id=3, replica_groups={{0,1}}, use_global_device_ids=true, to_apply=add
        c = f32[14] reduce(a, zero), dimensions={0}, to_apply=add
        ROOT t = (f32[8,14], f32[14]) tuple(s, c) }""",
    [[normal(seed, 8, 20) * 3, normal(seed + 10, 20, 14)] for seed in range(2)],
    _gathered_and_scattered,
    {"": "exact", "tf32": "tf32", "bf16": "bf16"},
    ("order", "sign"),
)


def _half_blend(rows: Sequence[Any], policy: str, fault: str) -> Leaves:
    ((x, y, z),) = rows
    kind = np.float32 if policy else np.float16
    x, y, z = (each.astype(np.float32) for each in (x, y, z))

    def cut(value: Any) -> Any:
        return value.astype(np.float32).astype(kind).astype(np.float32)

    product = cut(x * (z if fault == "operand" else y))
    total = cut(product + z) if fault != "sign" else cut(product - z)
    squared = cut(total * total)
    most = np.maximum(squared, y) if fault != "bound" else np.minimum(squared, y)
    return [[(most - x).astype(np.float16)]]


TEXTS["half_blend"] = Text(
    """HloModule half_blend
    ENTRY e { x = f16[50,30] parameter(0)
        y = f16[50,30] parameter(1)
        z = f16[50,30] parameter(2)
        m = f16[50,30] multiply(x, y)
        a = f16[50,30] add(m, z)
        q = f16[50,30] multiply(a, a)
        b = f16[50,30] maximum(q, y)
        ROOT s = f16[50,30] subtract(b, x) }""",
    [[normal(seed, 50, 30).astype(np.float16) * np.float16(5) for seed in (1, 2, 3)]],
    _half_blend,
    {"": "reference", "excess": "excess"},
    ("operand", "sign", "bound"),
)


def _narrow_dense(rows: Sequence[Any], policy: str, fault: str) -> Leaves:
    ((x, w, b),) = rows
    narrow = ml_dtypes.bfloat16
    x, w, b = (each.astype(np.float32) for each in (x, w, b))

    def cut(value: Any) -> Any:
        value = value.astype(np.float32)
        return value if policy else value.astype(narrow).astype(np.float32)

    d = cut(_product(x, w))
    r = np.maximum(cut(d + b) if fault != "no_bias" else d, 0)
    g = cut(r * d)
    return [[(g + b * (2 if fault == "twice" else 1)).astype(np.float32).astype(narrow)]]


TEXTS["narrow_dense"] = Text(
    """HloModule narrow_dense
    ENTRY e { x = bf16[24,40] parameter(0)
        w = bf16[40,36] parameter(1)
        b = bf16[24,36] parameter(2)
        zero = bf16[] constant(0)
        zeros = bf16[24,36] broadcast(zero), dimensions={}
        d = bf16[24,36] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        a = bf16[24,36] add(d, b)
        r = bf16[24,36] maximum(a, zeros)
        g = bf16[24,36] multiply(r, d)
        ROOT s = bf16[24,36] add(g, b) }""",
    [
        [
            normal(seed, *shape).astype(ml_dtypes.bfloat16)
            for seed, shape in ((1, (24, 40)), (2, (40, 36)), (3, (24, 36)))
        ]
    ],
    _narrow_dense,
    {"": "reference", "excess": "excess"},
    ("no_bias", "twice"),
)


def _kernel_values(rows: Sequence[Any], policy: str, fault: str) -> Leaves:
    ((x, y),) = rows
    f32, wide = np.float32, np.float64
    squared = (x * x if fault != "not_squared" else np.abs(x)) + f32(1.5)
    if policy:
        power = np.exp2((-squared * f32(1.4426950408889634)).astype(f32).astype(wide)).astype(f32)
        quotient = power * (f32(1) / y)
        logarithm = np.log2(squared.astype(wide)).astype(f32) * f32(0.6931471805599453)
    else:
        power = np.exp(-squared.astype(wide)).astype(f32)
        quotient, logarithm = power / y, np.log(squared.astype(wide)).astype(f32)
    if fault == "logarithm":
        logarithm = (logarithm * f32(1.0001)).astype(f32)
    return [[quotient, logarithm * y]]


TEXTS["kernel_values"] = Text(
    """HloModule kernel_values
    ENTRY e { x = f32[40,32] parameter(0)
        y = f32[40,32] parameter(1)
        c = f32[] constant(1.5)
        cs = f32[40,32] broadcast(c), dimensions={}
        q = f32[40,32] multiply(x, x)
        a = f32[40,32] add(q, cs)
        n = f32[40,32] negate(a)
        p = f32[40,32] exponential(n)
        d = f32[40,32] divide(p, y)
        l = f32[40,32] log(a)
        m = f32[40,32] multiply(l, y)
        ROOT t = (f32[40,32], f32[40,32]) tuple(d, m) }""",
    [[normal(1, 40, 32) * 8, positive(2, 40, 32) + np.float32(0.3)]],
    _kernel_values,
    {"": "exact", "fast": "fast-functions"},
    ("not_squared", "logarithm"),
)


def _decaying_products(rows: Sequence[Any], policy: str, fault: str) -> Leaves:
    ((x, y),) = rows
    tiny = np.float32(2.0**-126)

    def flushed(value: Any) -> Any:
        return np.where(np.abs(value) < tiny, np.float32(0), value) if policy else value

    value = x
    for _ in range(5 if fault == "fewer" else 6):
        value = flushed(value * y * np.float32(1) if fault != "off" else value * y * np.float32(1.001))
    scale = np.float32(1e37)
    return [[flushed(value * scale)]]


TEXTS["decaying_products"] = Text(
    """HloModule decaying_products
    body { s = (s32[], f32[30,16], f32[30,16]) parameter(0)
        i = s32[] get-tuple-element(s), index=0
        v = f32[30,16] get-tuple-element(s), index=1
        y = f32[30,16] get-tuple-element(s), index=2
        one = s32[] constant(1)
        j = s32[] add(i, one)
        w = f32[30,16] multiply(v, y)
        ROOT t = (s32[], f32[30,16], f32[30,16]) tuple(j, w, y) }
    condition { s = (s32[], f32[30,16], f32[30,16]) parameter(0)
        i = s32[] get-tuple-element(s), index=0
        n = s32[] constant(6)
        ROOT c = pred[] compare(i, n), direction=LT }
    ENTRY e { x = f32[30,16] parameter(0)
        y = f32[30,16] parameter(1)
        zero = s32[] constant(0)
        s = (s32[], f32[30,16], f32[30,16]) tuple(zero, x, y)
        l = (s32[], f32[30,16], f32[30,16]) while(s), body=body, condition=condition
        v = f32[30,16] get-tuple-element(l), index=1
        k = f32[] constant(1e37)
        ks = f32[30,16] broadcast(k), dimensions={}
        ROOT r = f32[30,16] multiply(v, ks) }""",
    [[positive(1, 30, 16) * np.float32(1e-3), positive(2, 30, 16) * np.float32(1e-6)]],
    _decaying_products,
    {"": "reference", "flushed": "ftz"},
    ("off", "fewer"),
)


def _double_filter(rows: Sequence[Any], policy: str, fault: str) -> Leaves:
    ((a, b, h),) = rows
    measured = _product(h, b.astype(np.float32), policy).astype(np.float64)
    predicted = a @ (b if fault != "transposed" else b.T)
    gain = 1 / (1 + np.square(predicted).sum(1, keepdims=True) * (1.0001 if fault == "slightly_off" else 1))
    return [[predicted + gain * measured]]


TEXTS["double_filter"] = Text(
    """HloModule double_filter
    sum { p = f64[] parameter(0)
        q = f64[] parameter(1)
        ROOT s = f64[] add(p, q) }
    ENTRY e { a = f64[18,18] parameter(0)
        b = f64[18,18] parameter(1)
        h = f32[18,18] parameter(2)
        one = f64[] constant(1)
        zero = f64[] constant(0)
        ones = f64[18] broadcast(one), dimensions={}
        n = f32[18,18] convert(b)
        m = f32[18,18] dot(h, n), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        f = f64[18,18] convert(m)
        p = f64[18,18] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        q = f64[18,18] multiply(p, p)
        t = f64[18] reduce(q, zero), dimensions={1}, to_apply=sum
        u = f64[18] add(ones, t)
        g = f64[18] divide(ones, u)
        gs = f64[18,18] broadcast(g), dimensions={0}
        c = f64[18,18] multiply(gs, f)
        ROOT r = f64[18,18] add(p, c) }""",
    [[normal(1, 18, 18).astype(np.float64), normal(2, 18, 18).astype(np.float64) * 2, normal(3, 18, 18)]],
    _double_filter,
    {"": "reference", "tf32": "tf32", "bf16": "bf16"},
    ("transposed", "slightly_off"),
)


def _ring_of_products(rows: Sequence[Any], policy: str, fault: str) -> Leaves:
    blocks, totals = [row[0] for row in rows], [np.zeros((9, 8), np.float32) for _ in rows]
    for hop in range(3):
        for number, (_, w) in enumerate(rows):
            own = "" if policy == "first hop bf16" and hop else policy.removeprefix("first hop ")
            totals[number] = totals[number] + _product(blocks[number], w, own)
        if fault == "stays" and hop == 1:
            continue
        blocks = [blocks[(number - 1) % 3] for number in range(3)]
    return [[total if fault != "scaled" else total * np.float32(1.002)] for total in totals]


TEXTS["ring_of_products"] = Text(
    """HloModule ring_of_products, num_partitions=3
    ENTRY e { x = f32[9,15] parameter(0)
        w = f32[15,8] parameter(1)
        d1 = f32[9,8] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        x2 = f32[9,15] collective-permute(x), channel_id=1, source_target_pairs={{0,1},{1,2},{2,0}}
        d2 = f32[9,8] dot(x2, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        s12 = f32[9,8] add(d1, d2)
        x3 = f32[9,15] collective-permute(x2), channel_id=2, source_target_pairs={{0,1},{1,2},{2,0}}
        d3 = f32[9,8] dot(x3, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
        ROOT s123 = f32[9,8] add(s12, d3) }""",
    [[normal(seed, 9, 15) * 3, normal(seed + 10, 15, 8)] for seed in range(3)],
    _ring_of_products,
    {"": "exact", "tf32": "tf32", "first hop bf16": "reference,d1=bf16"},
    ("stays", "scaled"),
)
