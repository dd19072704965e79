"""What is read off a module: chains of roundings, and how often loops go round."""

from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.analysis.numerics.tolerances import leaf_chains
from hloexec.analysis.trip_counts import loop_trips
from tests.text.building import ADD, op

jax = pytest.importorskip("jax")
lax, jnp = jax.lax, jax.numpy


def _loop_trips(function: Any, *arguments: Any) -> int | None:
    module = hloexec.from_jax(function, *arguments)
    found = [(c, i) for c in module for i in c if i.opcode == "while"]
    assert len(found) == 1
    return loop_trips(module, *found[0])


def test_counted_loops_as_jax_lowers_them() -> None:
    x = np.ones(3, np.float32)
    assert _loop_trips(lambda x: lax.fori_loop(0, 7, lambda _, y: y * 2, x), x) == 7
    assert _loop_trips(lambda x: lax.scan(lambda c, _: (c * 2, c), x, None, length=11)[1], x) == 11
    assert _loop_trips(lambda x: lax.while_loop(lambda y: y[0] < 9, lambda y: y * 2, x), x) is None
    assert _loop_trips(lambda x, n: lax.fori_loop(0, n, lambda _, y: y * 2, x), x, np.int32(5)) is None


def test_counted_loops_as_compilers_fuse_them() -> None:
    text = """HloModule m

compared {
  a = s32[] parameter(0)
  b = s32[] parameter(1)
  ROOT c = pred[] compare(a, b), direction=LT
}
added {
  a = s32[] parameter(0)
  b = s32[] parameter(1)
  ROOT c = s32[] add(b, a)
}
condition {
  p = (s32[], f32[]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(6)
  ROOT c = pred[] fusion(i, n), kind=kLoop, calls=compared
}
body {
  p = (s32[], f32[]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  two = s32[] constant(2)
  more = s32[] fusion(i, two), kind=kLoop, calls=added
  x = f32[] get-tuple-element(p), index=1
  ROOT t = (s32[], f32[]) tuple(more, x)
}
ENTRY main {
  zero = s32[] constant(0)
  first = s32[] copy(zero)
  x = f32[] parameter(0)
  t = (s32[], f32[]) tuple(first, x)
  ROOT loop = (s32[], f32[]) while(t), condition=condition, body=body
}
"""
    module = hloexec.parse(text)
    assert loop_trips(module, module.entry, module.entry.root) == 3
    module = hloexec.parse(text.replace("compare(a, b)", "compare(b, a)"))
    assert loop_trips(module, module.entry, module.entry.root) is None


def test_chains_add_up_along_the_worst_path() -> None:
    text = op("f32[4] add(p, x)", x="f32[4]").replace(
        "  ROOT", "  n = f32[4] negate(x)\n  m = f32[4] multiply(n, n)\n  p = f32[4] multiply(m, x)\n  ROOT"
    )
    (chain,) = leaf_chains(hloexec.parse(text)).values()
    assert (chain.roundings, chain.linear) == (3, 3 * 2.0**-24)


def test_sums_count_their_terms_in_the_type_they_add_in() -> None:
    for name, unit in (("f32", 2.0**-24), ("bf16", 2.0**-24), ("f64", 2.0**-53)):
        reduced = f"{name}[] reduce(x, z), dimensions={{0}}, to_apply=add_f32"
        text = op(reduced, ADD.replace("f32[]", f"{name}[]"), x=f"{name}[100]", z=f"{name}[]")
        (chain,) = leaf_chains(hloexec.parse(text)).values()
        assert (chain.longest_sum, chain.sum_squares) == (100, 100 * unit**2)


def test_leaves_have_chains_of_their_own() -> None:
    text = op("(f32[4], (f32[4], s32[])) tuple(x, u)", x="f32[4]", n="s32[]").replace(
        "  ROOT", "  y = f32[4] add(x, x)\n  u = (f32[4], s32[]) tuple(y, n)\n  ROOT"
    )
    chains = leaf_chains(hloexec.parse(text))
    assert {index: chain.roundings for index, chain in chains.items()} == {(0,): 0, (1, 0): 1, (1, 1): 0}


@pytest.mark.parametrize(
    ("ways", "unit"),
    [
        (["convert(p)", "multiply(a, x)", "negate(b)"], 2.0**-8),
        (["convert(p)", "add(a, x)", "negate(b)"], 2.0**-24),
        (["convert(p)", "sqrt(a)", "exponential(b)"], 2.0**-24),
    ],
)
def test_the_last_rounding_is_that_which_products_and_moves_of_data_lie_behind(ways: list[str], unit: float) -> None:
    """They keep an error as large, relative to the number, as it was; sums and exponentials do not."""
    lines = "".join(f"  {name} = f32[4] {way}\n" for name, way in zip("abc", ways, strict=True))
    text = op("f32[4] copy(c)", x="f32[4]", n="bf16[4]").replace(
        "  ROOT", f"  p = bf16[4] multiply(n, n)\n{lines}  ROOT"
    )
    (chain,) = leaf_chains(hloexec.parse(text)).values()
    assert chain.last == unit
