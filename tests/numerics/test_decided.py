"""Verdicts where rounding decides between separate values: what jumps says nothing of what does not."""

import numpy as np
import pytest

import hloexec
from hloexec.analysis.dataflow.dependences import decided_leaves
from hloexec.analysis.numerics.comparison import Comparison, Verdict
from hloexec.analysis.numerics.sampling.spread import Membership, groups_of, membership
from tests.text.building import module

TIE = module(
    """x = f32[1024] parameter(0)
    y = f32[1024] parameter(1)
    s = f32[1024] add(x, y)
    ROOT f = f32[1024] floor(s)"""
)


def tie(change: float, place: int, ties: int = 1, share: float = 0.3) -> Comparison:
    """A sum that is so much of a unit below 1 in the first places, and 1.5 in the others; its floor, against one that
    is changed at one place."""
    x, y = np.full(1024, 1.0, np.float32), np.full(1024, 0.5, np.float32)
    y[:ties] = -(2.0**-24) * share
    parsed = hloexec.parse(TIE)
    ours = np.array(hloexec.run(parsed, x, y))
    theirs = ours.copy()
    theirs[place] += np.float32(change)
    return hloexec.compare(ours, theirs, module=parsed, inputs=[x, y])


@pytest.mark.parametrize("ties", [1, 9])
@pytest.mark.parametrize("change", [-1, 1])
def test_a_floor_at_a_tie_says_nothing_of_others(ties: int, change: float) -> None:
    found = tie(change, 500, ties)
    assert found.verdict is Verdict.DIFFERENT, str(found)
    assert [element.index for element in found.leaves[0].first] == [(500,)]


@pytest.mark.parametrize("ties", [1, 9])
def test_a_floor_at_a_tie_is_either_value(ties: int) -> None:
    assert not tie(-1, 0, ties).different


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ROOT r = f32[4] floor(x)", True),
        ("ROOT r = f32[4] negate(x)", False),
        ("ROOT r = s32[4] convert(x)", True),
        ("ROOT r = f32[4] convert(k)", False),
        ("p = pred[4] compare(x, x), direction=LT\n ROOT r = f32[4] select(p, x, x)", True),
        ("p = pred[4] compare(k, k), direction=LT\n ROOT r = f32[4] select(p, x, x)", False),
    ],
)
def test_decisions_are_about_floats(line: str, expected: bool) -> None:
    parsed = hloexec.parse(module(f"x = f32[4] parameter(0)\n k = s32[4] parameter(1)\n {line}"))
    assert decided_leaves(parsed) == (frozenset({()}) if expected else frozenset())


def test_only_leaves_behind_which_a_decision_is_are_decided() -> None:
    text = module(
        """x = f32[4] parameter(0)
        f = f32[4] floor(x)
        t = f32[4] tanh(x)
        ROOT r = (f32[4], f32[4]) tuple(t, f)"""
    )
    assert decided_leaves(hloexec.parse(text)) == frozenset({(1,)})


def rare(change: float, *, also: int | None = None) -> Comparison:
    """A floor that is below the tie in one run of twenty."""
    found = tie(0, 0)
    assert found.verdict is Verdict.EQUAL
    x, y = np.full(1024, 1.0, np.float32), np.full(1024, 0.5, np.float32)
    y[0] = -(2.0**-24) * 0.05
    text = TIE.replace("ROOT f = f32[1024] floor(s)", "ROOT f = s32[1024] convert(s)")
    parsed = hloexec.parse(text)
    ours = np.array(hloexec.run(parsed, x, y))
    theirs = ours.copy()
    theirs[0] += change
    if also is not None:
        theirs[also] += 1
    return hloexec.compare(ours, theirs, module=parsed, inputs=[x, y])


def test_an_integer_of_which_rounding_decides_is_not_decided() -> None:
    found = rare(-1)
    assert found.verdict is Verdict.NOT_DECIDED, str(found)
    (leaf,) = found.leaves
    assert leaf.undecided is not None
    assert (leaf.undecided.element_count, leaf.undecided.first) == (1, ((0,),))
    assert "1 in " in leaf.undecided.reason
    assert "0 in " in leaf.undecided.reason


def test_integers_that_no_run_shows_are_different() -> None:
    assert rare(1).verdict is Verdict.DIFFERENT
    both = rare(-1, also=500)
    assert both.verdict is Verdict.DIFFERENT
    (leaf,) = both.leaves
    assert leaf.undecided is not None
    assert leaf.undecided.first == ((0,),)
    assert leaf.mismatches == 1


def test_samples_are_groups_only_where_gaps_are_wide() -> None:
    draw = np.random.default_rng(0)
    assert not any(groups_of(draw.standard_normal(64), 0.0) for _ in range(1000))
    both = np.concatenate([draw.normal(-1, 1e-3, 60), draw.normal(1, 1e-3, 4)])
    assert [group.count for group in groups_of(both, 1e-3)] == [60, 4]
    assert groups_of(both, 3.0) == ()
    assert [group.count for group in groups_of(np.array([1.0, 2, 2, 3]), 0.0)] == [1, 2, 1]
    assert groups_of(np.array([1.0, np.nan, 2.0]), 0.0) == ()


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        (1.0, 1.001, Membership.SAME),
        (-1.001, 1.0, Membership.OTHER),
        (-1.0, 1.5, Membership.NONE),
        (1.01, 1.0, Membership.NONE),
        (0.5, 1.0, Membership.BETWEEN),
        (0.0, 1.0, Membership.BETWEEN),
        (0.98, 1.0, Membership.BETWEEN),
        (np.nan, 1.0, Membership.BETWEEN),
    ],
)
def test_numbers_are_held_to_the_group_that_they_are_nearest_to(x: float, y: float, expected: Membership) -> None:
    draw = np.random.default_rng(1)
    groups = groups_of(np.concatenate([draw.normal(-1, 1e-3, 30), draw.normal(1, 1e-3, 30)]), 1e-6)
    if np.isnan(x):
        assert membership(x, y, groups, 1e-6, 1e-4, is_steep=False) not in (Membership.SAME, Membership.OTHER)
    else:
        assert membership(x, y, groups, 1e-6, 1e-4, is_steep=False) is expected
        # Beside a pole, the group's tail is part of it, and 0 is between either sign.
        steep = membership(x, y, groups, 1e-6, 1e-4, is_steep=True)
        assert steep is (Membership.OTHER if x in (0.98, 0.0, 1.01) else expected)


def test_what_rounding_turns_once_in_hundreds_of_runs_is_not_decided() -> None:
    """Of runs that round as far as rounding does, one in two hundred is below the tie."""
    found = tie(-1, 0, share=0.005)
    assert found.verdict is Verdict.NOT_DECIDED, str(found)
    (leaf,) = found.leaves
    assert leaf.undecided is not None
    assert "20 of them 3 times as far" in leaf.undecided.reason
    assert tie(-1, 500, share=0.005).verdict is Verdict.DIFFERENT
    assert tie(-2, 0, share=0.005).verdict is Verdict.DIFFERENT


def test_farther_samples_count_for_what_rounding_makes_of_them() -> None:
    draw = np.random.default_rng(3)
    errors = draw.normal(0, 1e-3, 64)
    reaches = np.where(np.arange(64) % 3 == 0, 3.0, 1.0)
    signs = np.where(np.arange(64) % 2, 1.0, -1.0)
    groups = groups_of(signs + errors * reaches, 1e-6, reaches)
    assert [group.count for group in groups] == [32, 32]
    assert all(0.7e-3 < group.scale < 1.4e-3 for group in groups)
    assert all(group.scale > 1.4e-3 for group in groups_of(signs + errors * reaches, 1e-6))


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("given", [89.0, -np.inf, np.nan])
def test_a_number_in_place_of_an_infinity_of_all_runs_is_different(given: float) -> None:
    parsed = hloexec.parse(
        module("""x = f32[3] parameter(0)
        e = f32[3] exponential(x)
        ROOT l = f32[3] log(e)""")
    )
    x = np.array([1, 89, 3], np.float32)
    ours = np.array(hloexec.run(parsed, x))
    theirs = np.where(np.isinf(ours), np.float32(given), ours)
    for pair in ((ours, theirs), (theirs, ours)):
        assert hloexec.compare(*pair, module=parsed, inputs=[x]).verdict is Verdict.DIFFERENT
