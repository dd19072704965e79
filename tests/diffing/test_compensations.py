"""What differs from its counterpart by design, and which a later step makes up for, is not to blame."""

from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.tools.diffing.graph import Graph, Node
from hloexec.tools.diffing.localization import trials
from hloexec.tools.diffing.localization.compensations import Compensations
from hloexec.tools.diffing.localization.relations import NodePair, Relations
from hloexec.tools.diffing.replaying.replay import Replay

_RNG = np.random.default_rng(0)
_X, _Y = (_RNG.normal(size=(6, 4)).astype(np.float32) for _ in range(2))


def _node(graph: Graph, name: str) -> Node:
    return next(node for node in graph.nodes if node.instance.instruction.name == name)


def _is_made_up_for(
    monkeypatch: pytest.MonkeyPatch, steps: tuple[str, str], names: tuple[str, str], *, is_guessed: bool = False
) -> bool:
    """Whether a later step makes up for a value of the second program, which has another result besides that is
    wrong."""
    found: list[tuple[Replay, Compensations]] = []

    class Watched(Compensations):
        def __init__(self, replay: Replay, relations: Relations) -> None:
            super().__init__(replay, relations)
            found.append((replay, self))

    monkeypatch.setattr(trials, "Compensations", Watched)
    before, after = (
        hloexec.parse(_PROGRAM.replace("STEPS", each).replace("WRONG", wrong))
        for each, wrong in zip(steps, ("sine", "cosine"), strict=True)
    )
    inputs: list[Any] = [_X, _Y]
    assert hloexec.diff(before, after, inputs).verdict == "differ"
    replay, compensations = found[0]
    ours, theirs = _node(replay.graph, names[1]), _node(replay.index.graph, names[0])
    return compensations.has(NodePair(ours, theirs), is_guessed=is_guessed)


_PROGRAM = """HloModule m
add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
ENTRY main {
  x = f32[6,4] parameter(0)
  y = f32[6,4] parameter(1)
  zero = f32[] constant(0)
  c = f32[] constant(0.35)
  large = f32[] constant(1e9)
  zeros = f32[6,4] broadcast(zero), dimensions={}
  cs = f32[6,4] broadcast(c), dimensions={}
  all = f32[6,4] broadcast(large), dimensions={}
  squares = f32[6,4] multiply(x, x)
  sums = f32[6] reduce(squares, zero), dimensions={1}, to_apply=add
  STEPS
  wrong = f32[6,4] WRONG(y)
  ROOT r = (f32[6,4], f32[6,4], f32[6,4]) tuple(end, other, wrong)
}
"""
_BY_RSQRT = """factor = f32[6] rsqrt(sums)
  factors = f32[6,4] broadcast(factor), dimensions={0}
  end = f32[6,4] multiply(x, factors)
  other = f32[6,4] add(end, y)"""
_BY_SQRT = """root = f32[6] sqrt(sums)
  roots = f32[6,4] broadcast(root), dimensions={0}
  end = f32[6,4] divide(x, roots)
  other = f32[6,4] add(end, y)"""
_LATE = """product = f32[6,6] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  ds = f32[6,6] broadcast(c), dimensions={}
  scores = f32[6,6] multiply(product, ds)
  end = f32[6,4] dot(scores, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  other = f32[6,4] add(end, y)"""
_EARLY = """small = f32[6,4] multiply(x, cs)
  scores = f32[6,6] dot(small, y), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  end = f32[6,4] dot(scores, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  other = f32[6,4] add(end, y)"""


def test_a_root_that_is_divided_by_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _is_made_up_for(monkeypatch, (_BY_RSQRT, _BY_SQRT), ("factor", "root"))


def test_a_factor_that_is_multiplied_by_earlier_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _is_made_up_for(monkeypatch, (_LATE, _EARLY), ("end", "small"))


def _masked(first: str, then: str) -> str:
    """A product of which a step loses a part, used once more."""
    return f"""product = f32[6,4] {first}
  end = f32[6,4] {then}
  other = f32[6,4] multiply(product, cs)"""


@pytest.mark.parametrize(
    ("first", "then"),
    [
        pytest.param(("maximum(x, zeros)", "copy(x)"), "maximum(product, zeros)", id="zero where it is negative"),
        pytest.param(("abs(x)", "copy(x)"), "multiply(product, product)", id="its square"),
        pytest.param(("sine(x)", "cosine(x)"), "add(product, all)", id="lost beside a larger number"),
        pytest.param(("sine(x)", "cosine(x)"), "multiply(product, zeros)", id="times zero"),
    ],
)
def test_what_a_step_loses_is_not_right_because_what_follows_is(
    monkeypatch: pytest.MonkeyPatch, first: tuple[str, str], then: str
) -> None:
    steps = _masked(first[0], then), _masked(first[1], then)
    assert not _is_made_up_for(monkeypatch, steps, ("product", "product"), is_guessed=True)


def test_what_is_wrong_where_a_maximum_hides_it_is_not_right(monkeypatch: pytest.MonkeyPatch) -> None:
    before = """product = f32[6,4] tanh(x)
  end = f32[6,4] maximum(x, zeros)
  other = f32[6,4] multiply(product, cs)"""
    after = """twice = f32[6,4] add(x, x)
  product = f32[6,4] minimum(x, twice)
  end = f32[6,4] maximum(product, zeros)
  other = f32[6,4] multiply(product, cs)"""
    assert not _is_made_up_for(monkeypatch, (before, after), ("product", "product"))


def test_a_product_with_fewer_columns_than_it_adds_up_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = """few = f32[2,4] slice(y), slice={[0:2], [0:4]}
  small = f32[6,4] multiply(x, cs)
  scores = f32[6,2] dot(small, few), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  end = f32[6,4] dot(scores, few), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  other = f32[6,4] add(end, y)"""
    late = """few = f32[2,4] slice(y), slice={[0:2], [0:4]}
  product = f32[6,2] dot(x, few), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  ds = f32[6,2] broadcast(c), dimensions={}
  scores = f32[6,2] multiply(product, ds)
  end = f32[6,4] dot(scores, few), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  other = f32[6,4] add(end, y)"""
    assert not _is_made_up_for(monkeypatch, (late, narrow), ("end", "small"))


def test_what_gives_a_value_that_is_there_without_it_is_not_right_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    before = """product = f32[6,4] tanh(x)
  end = f32[6,4] sine(product)
  other = f32[6,4] multiply(x, cs)"""
    after = """product = f32[6,4] negate(x)
  end = f32[6,4] negate(product)
  other = f32[6,4] multiply(x, cs)"""
    assert not _is_made_up_for(monkeypatch, (before, after), ("product", "product"), is_guessed=True)


def test_what_a_step_makes_up_for_may_be_used_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    after = _BY_SQRT.replace("add(end, y)", "multiply(y, roots)")
    assert _is_made_up_for(monkeypatch, (_BY_RSQRT, after), ("factor", "root"))


def test_a_value_of_before_in_the_wrong_place_is_not_right_for_what_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    before = """first = f32[6,4] multiply(x, cs)
  second = f32[6,4] multiply(y, cs)
  end = f32[6,4] add(first, zeros)
  other = f32[6,4] negate(second)"""
    after = before.replace("negate(second)", "negate(first)")
    assert not _is_made_up_for(monkeypatch, (before, after), ("second", "first"))
