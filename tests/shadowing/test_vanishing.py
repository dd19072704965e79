"""Elements that become zero, and what makes infinities of them: who is to blame."""

import numpy as np
import pytest

import hloexec
from hloexec.tools.shadowing.computing.elements import spread
from tests.shadowing.test_truth import ADD, numbers, parsed

_MAX = "max { a = T[] parameter(0) b = T[] parameter(1) ROOT m = T[] maximum(a, b) }\n"


def _log_softmax(count: int, result: str) -> str:
    return f"""x = T[{count}] parameter(0)
    zero = T[] constant(0)
    least = T[] constant(-inf)
    largest = T[] reduce(x, least), dimensions={{0}}, to_apply=max
    all_largest = T[{count}] broadcast(largest), dimensions={{}}
    below = T[{count}] subtract(x, all_largest)
    e = T[{count}] exponential(below)
    total = T[] reduce(e, zero), dimensions={{0}}, to_apply=add
    totals = T[{count}] broadcast(total), dimensions={{}}
    p = T[{count}] divide(e, totals)
    l = T[{count}] log(p)
    {result}"""


@pytest.mark.parametrize("count", [64, 100_000])
@pytest.mark.parametrize("is_summed", [False, True])
def test_the_logarithm_of_what_has_underflowed_blames_the_exponential(count: int, is_summed: bool) -> None:
    place = count * 7 // 10 + 1
    one = f"part = T[1] slice(l), slice={{[{place}:{place + 1}]}}\n ROOT r = T[] reshape(part)"
    everything = "ROOT r = T[] reduce(l, zero), dimensions={0}, to_apply=add"
    text = _log_softmax(count, everything if is_summed else one)
    module = parsed(text, "f32", computations=ADD + _MAX)
    x = numbers("f32", count)
    x[place], x[3] = -150, 30
    found = hloexec.shadow(module, [x])
    first = found.culprit
    assert first is not None
    assert (first.instruction, first.kind, first.lost_share) == ("e", "underflow", 1.0)
    assert found.outputs[0].lost == 1


def test_the_reciprocal_of_what_has_cancelled_to_zero_blames_the_difference() -> None:
    text = """x = T[8] parameter(0)
    three = T[8] constant({3, 3, 3, 3, 3, 3, 3, 3})
    a = T[8] divide(x, three)
    square = T[8] multiply(a, a)
    b = T[8] sqrt(square)
    d = T[8] subtract(a, b)
    one = T[8] constant({1, 1, 1, 1, 1, 1, 1, 1})
    ROOT r = T[8] divide(one, d)"""
    x = np.linspace(1, 2, 8, dtype=np.float16)
    found = hloexec.shadow(parsed(text, "f16"), [x])
    first = found.culprit
    assert first is not None and found.outputs[0].lost > 0
    assert (first.instruction, first.kind, first.lost_share) == ("d", "cancellation", 1.0)


def test_the_root_of_a_variance_that_has_underflowed_blames_the_square() -> None:
    text = """x = T[4,16] parameter(0)
    square = T[4,16] multiply(x, x)
    zero = T[] constant(0)
    total = T[4] reduce(square, zero), dimensions={1}, to_apply=add
    share = T[] constant(0.0625)
    shares = T[4] broadcast(share), dimensions={}
    variance = T[4] multiply(total, shares)
    root = T[4] rsqrt(variance)
    roots = T[4,16] broadcast(root), dimensions={0}
    ROOT r = T[4,16] multiply(x, roots)"""
    x = (np.linspace(-1, 1, 64).reshape(4, 16) * 1e-5).astype(np.float16)
    first = hloexec.shadow(parsed(text, "f16", computations=ADD), [x]).culprit
    assert first is not None
    assert (first.instruction, first.kind, first.lost_share) == ("square", "underflow", 1.0)


@pytest.mark.parametrize("count", [8, 50_000])
def test_the_logarithm_of_one_minus_a_sigmoid_of_one_blames_the_difference(count: int) -> None:
    text = """x = T[N] parameter(0)
    below = T[N] negate(x)
    e = T[N] exponential(below)
    one = T[] constant(1)
    ones = T[N] broadcast(one), dimensions={}
    total = T[N] add(ones, e)
    sigmoid = T[N] divide(ones, total)
    rest = T[N] subtract(ones, sigmoid)
    ROOT r = T[N] log(rest)"""
    x = numbers("f32", count)
    x[[2, 5]] = 20, 25
    found = hloexec.shadow(parsed(text.replace("N", str(count)), "f32"), [x])
    first = found.culprit
    assert first is not None and found.outputs[0].lost == 2
    assert (first.instruction, first.kind, first.lost_share) == ("rest", "cancellation", 1.0)


def test_the_logarithm_of_what_a_sum_has_absorbed_blames_the_sum() -> None:
    text = """x = T[4] parameter(0)
    ones = T[4] constant({1, 1, 1, 1})
    square = T[4] multiply(x, x)
    total = T[4] add(ones, square)
    rest = T[4] subtract(total, ones)
    ROOT r = T[4] log(rest)"""
    found = hloexec.shadow(parsed(text, "f32"), [np.array([1e-6, 2, 1e-5, 0.5], np.float32)])
    first = found.culprit
    assert first is not None and found.outputs[0].lost == 2
    assert (first.instruction, first.kind, first.lost_share) == ("total", "absorption", 1.0)


def test_masks_that_underflow_and_are_summed_are_no_loss() -> None:
    text = """x = T[4,64] parameter(0)
    v = T[64,8] parameter(1)
    mask = T[4,64] parameter(2)
    zero = T[] constant(0)
    masked = T[4,64] add(x, mask)
    e = T[4,64] exponential(masked)
    total = T[4] reduce(e, zero), dimensions={1}, to_apply=add
    totals = T[4,64] broadcast(total), dimensions={0}
    p = T[4,64] divide(e, totals)
    o = T[4,8] dot(p, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    square = T[4,8] multiply(o, o)
    ROOT r = T[4,8] log(square)"""
    mask = np.where(np.arange(64) < 40, 0, -1e9).astype(np.float32) * np.ones((4, 1), np.float32)
    x, v = numbers("f32", 4, 64), numbers("f32", 64, 8)
    found = hloexec.shadow(parsed(text, "f32", computations=ADD), [x, v, mask])
    assert found.outputs[0].lost == 0
    assert all(loss.lost_share == 0 and loss.kind == "rounding" for loss in found.losses if loss.share > 0.001)
    assert found.outputs[0].relative_error < 1e-5


@pytest.mark.parametrize("count", [64, 100_000])
def test_one_element_that_cancels_to_zero_among_many_blames_the_sum(count: int) -> None:
    """tanh(−12) + 1 is zero in f32, and about 10⁻¹⁰ exactly; of the large array no sample has it."""
    text = f"""x = T[{count}] parameter(0)
    t = T[{count}] tanh(x)
    one = T[] constant(1)
    ones = T[{count}] broadcast(one), dimensions={{}}
    s = T[{count}] add(t, ones)
    half = T[] constant(0.5)
    halves = T[{count}] broadcast(half), dimensions={{}}
    h = T[{count}] multiply(s, halves)
    ROOT l = T[{count}] log(h)"""
    x = np.random.default_rng(1).uniform(0.1, 1, count).astype(np.float32)
    x[count // 2 + 1] = -12
    assert count < 1000 or count // 2 + 1 not in spread(count)
    found = hloexec.shadow(parsed(text, "f32"), [x])
    first = found.culprit
    assert first is not None and found.outputs[0].lost == 1
    assert (first.instruction, first.kind, first.lost_share) == ("s", "cancellation", 1.0)


@pytest.mark.parametrize("is_summed", [False, True])
def test_the_element_that_has_most_of_the_error_says_who_is_to_blame(is_summed: bool) -> None:
    """The rounding of a in eᵃ grows by a: of a ≈ 40 it is far more than that of the exponential, of the others less."""
    count = 1 << 18
    end = (
        "ROOT r = T[512] reduce(e, zero), dimensions={1}, to_apply=add"
        if is_summed
        else "ROOT r = T[512,512] negate(e)"
    )
    text = f"""x = T[512,512] parameter(0)
    zero = T[] constant(0)
    third = T[] constant(0.3333)
    thirds = T[512,512] broadcast(third), dimensions={{}}
    a = T[512,512] multiply(x, thirds)
    e = T[512,512] exponential(a)
    {end}"""
    x = np.random.default_rng(1).uniform(0.1, 0.3, count).astype(np.float32)
    place = count // 2 + 1
    x[place] = 120.7
    assert place not in spread(count)
    module = parsed(text, "f32", computations=ADD)
    first = hloexec.shadow(module, [x.reshape(512, 512)]).culprit
    assert first is not None
    assert first.instruction == "a" and first.share > 0.9


def test_what_absorbs_little_beside_what_it_inherits_is_not_to_blame() -> None:
    # A variance that rounding has made negative stays so, whatever it takes in of a small number.
    module = parsed(
        """x = T[32] parameter(0)
        zero = T[] constant(0)
        share = T[] constant(0.03125)
        total = T[] reduce(x, zero), dimensions={0}, to_apply=add
        mean = T[] multiply(total, share)
        squares = T[32] multiply(x, x)
        sum = T[] reduce(squares, zero), dimensions={0}, to_apply=add
        mean_square = T[] multiply(sum, share)
        squared_mean = T[] multiply(mean, mean)
        variance = T[] subtract(mean_square, squared_mean)
        small = T[] constant(1e-05)
        positive = T[] add(variance, small)
        ROOT r = T[] rsqrt(positive)""",
        "f32",
        computations=ADD,
    )
    inputs = (np.float32(4096) + numbers("f32", 32, seed=seed) / 8 for seed in range(200))
    x = next(each for each in inputs if np.isnan(hloexec.run(module, each)))
    found = hloexec.shadow(module, [x])
    assert found.outputs[0].lost == 1
    assert found.culprit is not None and found.culprit.instruction == "variance"
    assert (found.culprit.kind, found.culprit.lost_share) == ("cancellation", 1.0)
