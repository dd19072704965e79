"""What random inputs must respect, one module per kind of use; the values are checked, not the analysis."""

import math
from typing import Any

import numpy as np
import pytest

import hloexec.ops
from hloexec.engine.inputs import random_inputs
from hloexec.engine.inputs.bounds import frame_of
from hloexec.language.text.parser import parse
from hloexec.ops.intervals import UNBOUNDED
from tests.text.building import ADD, module, op


def inputs(text: str, **options: Any) -> list[Any]:
    return random_inputs(parse(text), **options)


def indices(text: str, number: int = 1) -> Any:
    return inputs(text)[number]


GATHER = "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,8}"
TABLE = "table = f32[17,8] parameter(0)"

THROUGH = {
    "directly": ["ids = s32[64] parameter(1)"],
    "convert": ["p = s64[64] parameter(1)", "ids = s32[64] convert(p)"],
    "convert from a float": ["p = f32[64] parameter(1)", "ids = s32[64] convert(p)"],
    "reshape": ["p = s32[8,8] parameter(1)", "ids = s32[64] reshape(p)"],
    "bitcast": ["p = s32[8,8] parameter(1)", "ids = s32[64] bitcast(p)"],
    "broadcast": ["p = s32[] parameter(1)", "ids = s32[64] broadcast(p), dimensions={}"],
    "slice": ["p = s32[100] parameter(1)", "ids = s32[64] slice(p), slice={[3:67]}"],
    "concatenate": ["p = s32[32] parameter(1)", "ids = s32[64] concatenate(p, p), dimensions={0}"],
    "transpose and copy": [
        "p = s32[64] parameter(1)",
        "t = s32[64] transpose(p), dimensions={0}",
        "ids = s32[64] copy(t)",
    ],
    "tuple": [
        "p = (f32[2], (s32[], s32[64])) parameter(1)",
        "q = (s32[], s32[64]) get-tuple-element(p), index=1",
        "ids = s32[64] get-tuple-element(q), index=1",
    ],
    "clamp": [
        "p = s32[64] parameter(1)",
        "zero = s32[] constant(0)",
        "last = s32[] constant(100)",
        "ids = s32[64] clamp(zero, p, last)",
    ],
    "negative index correction": [
        "p = s32[64] parameter(1)",
        "zero = s32[] constant(0)",
        "zeros = s32[64] broadcast(zero), dimensions={}",
        "size = s32[] constant(17)",
        "sizes = s32[64] broadcast(size), dimensions={}",
        "less = pred[64] compare(p, zeros), direction=LT",
        "sum = s32[64] add(p, sizes)",
        "ids = s32[64] select(less, sum, p)",
    ],
    "optimization barrier": ["p = s32[64] parameter(1)", "ids = s32[64] opt-barrier(p)"],
    "sort": ["p = s32[64] parameter(1)", "ids = s32[64] sort(p), dimensions={0}, to_apply=less_s32"],
}
LESS = (
    "less_s32 {\n x = s32[] parameter(0)\n y = s32[] parameter(1)\n ROOT lt = pred[] compare(x, y), direction=LT\n}\n"
)


@pytest.mark.parametrize("way", THROUGH)
def test_gather_indices_are_in_bounds_through(way: str) -> None:
    lines = [TABLE, *THROUGH[way], f"ROOT g = f32[64,8] gather(table, ids), {GATHER}"]
    values = inputs(module("\n".join(lines), LESS))[1]
    found = values[1][1] if isinstance(values, tuple) else values
    assert found.min() >= 0 and math.floor(found.max()) <= 16
    assert found.size < 2 or len(np.unique(np.floor(found.astype(np.float64)))) > 10


def test_indices_are_traced_into_fusions_and_calls_with_the_constants_they_are_given() -> None:
    computations = f"""inner {{
  table = f32[17,8] parameter(0)
  ids = s32[64] parameter(1)
  ROOT g = f32[64,8] gather(table, ids), {GATHER}
}}
outer {{
  offset = s32[] parameter(0)
  table = f32[17,8] parameter(1)
  p = s32[64] parameter(2)
  offsets = s32[64] broadcast(offset), dimensions={{}}
  ids = s32[64] add(p, offsets)
  ROOT f = f32[64,8] fusion(table, ids), kind=kLoop, calls=inner
}}
"""
    text = module(
        f"""{TABLE}
        p = s32[64] parameter(1)
        five = s32[] constant(5)
        ROOT c = f32[64,8] call(five, table, p), to_apply=outer""",
        computations,
    )
    found = indices(text)
    assert found.min() >= -5 and found.max() <= 11 and found.min() < 0


def test_multiplied_indices_are_in_bounds() -> None:
    text = module(
        f"""{TABLE}
        p = s32[64] parameter(1)
        four = s32[] constant(4)
        fours = s32[64] broadcast(four), dimensions={{}}
        ids = s32[64] multiply(p, fours)
        ROOT g = f32[64,8] gather(table, ids), {GATHER}"""
    )
    assert set(np.unique(indices(text))) == {0, 1, 2, 3, 4}


def test_index_vectors_joined_from_an_iota_stay_in_bounds() -> None:
    text = module(
        """table = f32[9,100] parameter(0)
        p = s32[9,1] parameter(1)
        i = s32[9,1] iota(), iota_dimension=0
        ids = s32[9,2] concatenate(i, p), dimensions={1}
        ROOT g = f32[9] gather(table, ids), offset_dims={}, collapsed_slice_dims={0,1}, start_index_map={0,1},
          index_vector_dim=1, slice_sizes={1,1}"""
    )
    found = indices(text)
    assert found.min() >= 0 and 8 < found.max() <= 99


def test_starts_of_dynamic_slices_and_updates_leave_room_for_the_slice() -> None:
    sliced = op("f32[3,4] dynamic-slice(x, i, j), dynamic_slice_sizes={3,4}", x="f32[5,4]", i="s32[]", j="s32[]")
    for seed in range(20):
        _, i, j = inputs(sliced, seed=seed)
        assert 0 <= i <= 2 and j == 0
    updated = op("f32[5,4] dynamic-update-slice(x, u, i, j)", x="f32[5,4]", u="f32[1,2]", i="s64[]", j="s64[]")
    found = np.array([inputs(updated, seed=seed)[2:] for seed in range(40)])
    assert found.min() == 0 and found[:, 0].max() == 4 and found[:, 1].max() == 2


def test_scatter_indices_leave_room_for_the_window() -> None:
    text = op(
        "f32[10,6] scatter(x, i, u), update_window_dims={1,2}, inserted_window_dims={}, "
        "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add_f32",
        ADD,
        x="f32[10,6]",
        i="s32[50,1]",
        u="f32[50,3,6]",
    )
    found = indices(text)
    assert found.min() == 0 and found.max() == 7


def test_the_rows_of_a_sparse_matrix_start_in_order() -> None:
    text = """HloModule m
ENTRY e { d = f32[38] parameter(0)
  o = s32[13] parameter(1)
  i = s32[38] parameter(2)
  x = f32[10] parameter(3)
  ROOT y = f32[12] custom-call(d, o, i, x), custom_call_target="cpu_csr_sparse_dense_ffi", api_version=API_VERSION_TYPED_FFI }
"""
    for seed in range(3):
        _, starts, columns, _ = given = inputs(text, seed=seed)
        assert starts[0] == 0 and (np.diff(starts) >= 0).all() and 0 < starts[-1] <= 38
        assert columns.min() >= 0 and columns.max() < 10
        assert np.isfinite(hloexec.run(hloexec.parse(text), *given)).all()


def test_a_branch_index_selects_an_existing_branch() -> None:
    branches = "".join(f"b{n} {{\n x{n} = f32[] parameter(0)\n ROOT n{n} = f32[] negate(x{n})\n}}\n" for n in range(3))
    text = op("f32[] conditional(i, x, x, x), branch_computations={b0, b1, b2}", branches, i="s32[]", x="f32[]")
    assert {int(inputs(text, seed=seed)[0]) for seed in range(30)} == {0, 1, 2}


LOOP = """body {
  c = (s32[], s32[], f32[]) parameter(0)
  i = s32[] get-tuple-element(c), index=0
  n = s32[] get-tuple-element(c), index=1
  x = f32[] get-tuple-element(c), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  root = f32[] sqrt(x)
  ROOT t = (s32[], s32[], f32[]) tuple(next, n, root)
}
condition {
  c2 = (s32[], s32[], f32[]) parameter(0)
  i2 = s32[] get-tuple-element(c2), index=0
  n2 = s32[] get-tuple-element(c2), index=1
  ROOT lt = pred[] compare(i2, n2), direction=LT
}
"""


def test_what_bounds_a_loop_is_small_and_what_the_loop_needs_is_kept() -> None:
    text = module(
        """n = s32[] parameter(0)
        x = f32[] parameter(1)
        zero = s32[] constant(0)
        c = (s32[], s32[], f32[]) tuple(zero, n, x)
        ROOT w = (s32[], s32[], f32[]) while(c), condition=condition, body=body""",
        LOOP,
    )
    for seed in range(20):
        n, x = inputs(text, seed=seed)
        assert 0 <= n <= 8 and x > 0
    assert 0 <= inputs(text, distribution="large")[0] <= 8


@pytest.mark.parametrize("start", ["LT", "GT"])
def test_a_loop_that_starts_at_a_parameter_is_short(start: str) -> None:
    text = module(
        """n = s32[] parameter(0)
        ROOT w = s32[] while(n), condition=condition, body=body""",
        f"""body {{
  i = s32[] parameter(0)
  one = s32[] constant({1 if start == "LT" else -1})
  ROOT next = s32[] add(i, one)
}}
condition {{
  j = s32[] parameter(0)
  end = s32[] constant(1000)
  ROOT go = pred[] compare(j, end), direction={start}
}}
""",
    )
    for seed in range(10):
        assert abs(inputs(text, seed=seed)[0] - 1000) <= 8


POSITIVE = {
    "sqrt": "f32[99] sqrt(x)",
    "rsqrt": "f32[99] rsqrt(x)",
    "log": "f32[99] log(x)",
    "divisor": "f32[99] divide(y, x)",
    "power": "f32[99] power(x, y)",
}


@pytest.mark.parametrize("use", POSITIVE)
def test_floats_are_positive_where_they_must_be(use: str) -> None:
    x, y = inputs(op(POSITIVE[use], x="f32[99]", y="f32[99]"))
    assert x.min() > 0.05 and y.min() < 0


def test_the_second_moment_of_an_optimizer_is_positive_and_its_gradient_is_not() -> None:
    text = module(
        """v = f32[50] parameter(0)
        g = f32[50] parameter(1)
        eps = f32[] parameter(2)
        b = f32[] constant(0.999)
        bs = f32[50] broadcast(b), dimensions={}
        a = f32[] constant(0.001)
        as = f32[50] broadcast(a), dimensions={}
        old = f32[50] multiply(bs, v)
        square = f32[50] multiply(g, g)
        new = f32[50] multiply(as, square)
        sum = f32[50] add(old, new)
        root = f32[50] sqrt(sum)
        e = f32[50] broadcast(eps), dimensions={}
        divisor = f32[50] add(root, e)
        step = f32[50] divide(g, divisor)
        ROOT t = (f32[50], f32[50]) tuple(step, sum)"""
    )
    v, g, eps = inputs(text)
    assert v.min() > 0 and g.min() < 0 and 1e-6 <= eps <= 1e-5


DECAYS = {
    "power": "decayed = f32[500] power(bs, t)",
    "exponential": """log = f32[] constant(-0.10536)
        logs = f32[500] broadcast(log), dimensions={}
        times = f32[500] multiply(t, logs)
        decayed = f32[500] exponential(times)""",
}


@pytest.mark.parametrize("way", DECAYS)
@pytest.mark.parametrize("first", [0, 1, 5])
def test_a_count_of_steps_never_makes_the_correction_of_a_decaying_mean_0(way: str, first: int) -> None:
    """1 − bᵗ with t = n + first is a divisor, and 0 where t is; below, it is negative."""
    text = module(
        f"""n = s32[500] parameter(0)
        first = s32[] constant({first})
        firsts = s32[500] broadcast(first), dimensions={{}}
        later = s32[500] add(n, firsts)
        t = f32[500] convert(later)
        b = f32[] constant(0.9)
        bs = f32[500] broadcast(b), dimensions={{}}
        {DECAYS[way]}
        one = f32[] constant(1)
        ones = f32[500] broadcast(one), dimensions={{}}
        correction = f32[500] subtract(ones, decayed)
        ROOT mean = f32[500] divide(ones, correction)"""
    )
    counts = inputs(text)[0]
    # Of 500 numbers among 100, each is missing with a probability of e⁻⁵.
    assert 1 <= counts.min() + first <= 4 and counts.max() > 50


def test_the_exponent_of_a_base_above_1_is_negative_where_the_power_is_below_1() -> None:
    text = module(
        """n = f32[500] parameter(0)
        b = f32[] constant(2)
        bs = f32[500] broadcast(b), dimensions={}
        p = f32[500] power(bs, n)
        one = f32[] constant(1)
        ones = f32[500] broadcast(one), dimensions={}
        rest = f32[500] subtract(ones, p)
        ROOT r = f32[500] log(rest)"""
    )
    assert inputs(text)[0].max() < 0


def test_the_base_of_a_negative_exponent_is_above_1_where_the_power_is_below_1() -> None:
    text = module(
        """count = s32[500] parameter(0)
        one = s32[] constant(1)
        ones = s32[500] broadcast(one), dimensions={}
        next = s32[500] add(count, ones)
        x = f32[500] convert(next)
        y = f32[] constant(-0.8)
        ys = f32[500] broadcast(y), dimensions={}
        p = f32[500] power(x, ys)
        unit = f32[] constant(1)
        units = f32[500] broadcast(unit), dimensions={}
        rest = f32[500] subtract(units, p)
        ROOT r = f32[500] sqrt(rest)"""
    )
    assert inputs(text)[0].min() >= 1


@pytest.mark.parametrize("use", ["log", "sqrt", "rsqrt"])
def test_an_integer_is_positive_where_the_float_that_it_becomes_must_be(use: str) -> None:
    text = module(
        f"""n = s32[500] parameter(0)
        x = f32[500] convert(n)
        ROOT y = f32[500] {use}(x)"""
    )
    assert inputs(text)[0].min() >= 1


def test_what_is_added_to_an_unknown_integer_is_not_at_the_end_of_its_type() -> None:
    text = module(
        "p = s32[40] parameter(0)\nd = u32[] partition-id()\na = u32[] and(d, d)\ne = s32[] convert(a)\n"
        "b = s32[40] broadcast(e), dimensions={}\ns = s32[40] add(b, p)\nf = f32[40] convert(s)\nROOT r = f32[40] sqrt(f)"
    )
    assert np.abs(inputs(text)[0]).max() <= 1000


def test_the_epsilon_of_a_normalization_is_small_and_its_operand_free() -> None:
    text = module(
        """x = f32[4,64] parameter(0)
        eps = f32[] parameter(1)
        zero = f32[] constant(0)
        square = f32[4,64] multiply(x, x)
        sum = f32[4] reduce(square, zero), dimensions={1}, to_apply=add_f32
        e = f32[4] broadcast(eps), dimensions={}
        biased = f32[4] add(sum, e)
        r = f32[4] rsqrt(biased)
        rs = f32[4,64] broadcast(r), dimensions={0}
        ROOT y = f32[4,64] multiply(x, rs)""",
        ADD,
    )
    x, eps = inputs(text)
    assert x.min() < 0 and 1e-6 <= eps <= 1e-5


def test_a_sum_of_squares_that_grows_starts_at_no_negative_one() -> None:
    text = module(
        """sum = f32[64] parameter(0)
        g = f32[64] parameter(1)
        eps = f32[] constant(1e-10)
        square = f32[64] multiply(g, g)
        grown = f32[64] add(sum, square)
        e = f32[64] broadcast(eps), dimensions={}
        biased = f32[64] add(grown, e)
        ROOT r = f32[64] rsqrt(biased)"""
    )
    total, gradient = inputs(text)
    assert total.min() >= -1e-10 and gradient.min() < 0


def _root_of(names: tuple[str, str], share: str) -> str:
    x, y = names
    return f"""v = f32[64] parameter(0)
        g = f32[64] parameter(1)
        h = f32[64] parameter(2)
        c = f32[] constant({share})
        cs = f32[64] broadcast(c), dimensions={{}}
        scaled = f32[64] multiply(cs, g)
        part = f32[64] multiply({x}, {y})
        decay = f32[] constant(0.9)
        ds = f32[64] broadcast(decay), dimensions={{}}
        old = f32[64] multiply(v, ds)
        new = f32[64] add(old, part)
        eps = f32[] constant(1e-3)
        e = f32[64] broadcast(eps), dimensions={{}}
        sum = f32[64] add(new, e)
        ROOT r = f32[64] rsqrt(sum)"""


@pytest.mark.parametrize("names", [("scaled", "g"), ("g", "scaled"), ("scaled", "scaled")])
def test_a_share_of_a_square_is_one_in_whatever_order_it_is_multiplied(names: tuple[str, str]) -> None:
    """0.1 * g * g is no less than 0, whatever g is: what is added to it has to be positive, and g need not be."""
    v, g, _ = inputs(module(_root_of(names, "0.1")))
    assert v.min() > -0.002 and g.min() < 0


@pytest.mark.parametrize(("names", "share"), [(("scaled", "h"), "0.1"), (("scaled", "g"), "-0.1")])
def test_what_is_no_square_is_not_taken_for_one(names: tuple[str, str], share: str) -> None:
    text = module(_root_of(names, share))
    (bounds,) = frame_of(parse(text), parse(text).entry, [(UNBOUNDED,)] * 3).bounds["part"]
    assert bounds.low < 0


def test_signs_are_those_of_one_computation() -> None:
    """A product of a parameter of a fusion with what is called like another one outside it is no square."""
    called = """called {
  g = f32[64] parameter(0)
  h = f32[64] parameter(1)
  ROOT r = f32[64] multiply(h, g)
}
"""
    text = module(
        """h = f32[64] parameter(0)
        g = f32[64] parameter(1)
        c = f32[] constant(0.1)
        cs = f32[64] broadcast(c), dimensions={}
        scaled = f32[64] multiply(cs, g)
        ROOT product = f32[64] fusion(h, scaled), kind=kLoop, calls=called""",
        called,
    )
    (bounds,) = frame_of(parse(text), parse(text).entry, [(UNBOUNDED,)] * 2).bounds["product"]
    assert bounds.low < 0


def test_softmax_makes_no_demand_on_its_operand() -> None:
    text = module(
        """x = f32[4,64] parameter(0)
        zero = f32[] constant(0)
        e = f32[4,64] exponential(x)
        sum = f32[4] reduce(e, zero), dimensions={1}, to_apply=add_f32
        s = f32[4,64] broadcast(sum), dimensions={0}
        ROOT y = f32[4,64] divide(e, s)""",
        ADD,
    )
    assert inputs(text)[0].min() < 0


@pytest.mark.parametrize("seed", [0, 1])
def test_products_of_matrices_keep_their_size(seed: int) -> None:
    text = module(
        """x = f32[64,1024] parameter(0)
        w = bf16[256,1024] parameter(1)
        t = f32[64,1024] tanh(x)
        wide = f32[256,1024] convert(w)
        turned = f32[1024,256] transpose(wide), dimensions={1,0}
        ROOT d = f32[64,256] dot(t, turned), lhs_contracting_dims={1}, rhs_contracting_dims={0}"""
    )
    x, w = inputs(text, seed=seed)
    # 2¹⁶ and 2¹⁸ samples: the deviation of a standard deviation is 1/√(2n), times four.
    assert x.std() == pytest.approx(1, rel=4 / math.sqrt(2 * x.size) + 1e-3)
    assert w.astype(np.float64).std() == pytest.approx(1 / 32, rel=4 / math.sqrt(2 * w.size) + 1e-2)


def test_two_parameters_that_meet_in_a_dot_share_the_scaling() -> None:
    x, y = inputs(
        op("f32[64,64] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}", x="f32[64,256]", y="f32[256,64]")
    )
    assert (x @ y).std() == pytest.approx(1, rel=0.1)
    assert x.std() == pytest.approx(y.std(), rel=0.05)


def test_integers_compared_with_an_iota_lie_in_its_range() -> None:
    text = module(
        """x = s32[500] parameter(0)
        i = s32[500,7] iota(), iota_dimension=1
        b = s32[500,7] broadcast(x), dimensions={0}
        ROOT hot = pred[500,7] compare(b, i), direction=EQ"""
    )
    assert set(np.unique(inputs(text)[0])) == set(range(7))


def test_contradicting_demands_keep_one_of_them() -> None:
    text = module(
        """x = f32[9] parameter(0)
        i = s32[] parameter(1)
        big = s32[] constant(100)
        far = s32[] subtract(i, big)
        a = f32[2] dynamic-slice(x, i), dynamic_slice_sizes={2}
        b = f32[2] dynamic-slice(x, far), dynamic_slice_sizes={2}
        ROOT t = (f32[2], f32[2]) tuple(a, b)"""
    )
    i = int(inputs(text)[1])
    assert 0 <= i <= 7 or 100 <= i <= 107


def test_floats_of_which_uses_ask_contradictory_signs_are_not_all_the_one_number_between() -> None:
    """Some uses are undefined whatever the values are; the others need not be."""
    text = module(
        """
        x = f32[64] parameter(0)
        n = f32[64] negate(x)
        low = f32[64] log(n)
        high = f32[64] log(x)
        ROOT r = (f32[64], f32[64]) tuple(low, high)
        """
    )
    (x,) = inputs(text)
    assert np.all(x > 0) or np.all(x < 0)
    assert len(np.unique(x)) > 32


def test_an_array_that_is_fetched_in_slices_is_one_array() -> None:
    text = module(
        """v = f32[96,64] parameter(0)
        first = f32[32,64] slice(v), slice={[0:32], [0:64]}
        second = f32[64,64] slice(v), slice={[32:96], [0:64]}
        whole = f32[96,64] custom-call(first, second), custom_call_target="ConcatBitcast"
        ROOT r = f32[96,64] sqrt(whole)"""
    )
    assert inputs(text)[0].min() >= 0
