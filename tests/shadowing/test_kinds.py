"""How losses are named, counted and ranked: on modules written by hand."""

import ml_dtypes
import numpy as np
import pytest

import hloexec
from tests.shadowing.test_truth import ADD, numbers, parsed


def _loop(body: str, count: int, kind: str, start: str = "0", computations: str = "") -> hloexec.Module:
    """A loop that carries a counter and a number; `body` computes %next from %total and %i."""
    computations += f"""body {{
      s = (s32[], T[]) parameter(0)
      i = s32[] get-tuple-element(s), index=0
      total = T[] get-tuple-element(s), index=1
      one = s32[] constant(1)
      j = s32[] add(i, one)
      {body}
      ROOT t = (s32[], T[]) tuple(j, next)
    }}
    cond {{
      s = (s32[], T[]) parameter(0)
      i = s32[] get-tuple-element(s), index=0
      n = s32[] constant({count})
      ROOT c = pred[] compare(i, n), direction=LT
    }}
    """
    main = f"""zero = s32[] constant(0)
    start = T[] constant({start})
    s = (s32[], T[]) tuple(zero, start)
    w = (s32[], T[]) while(s), condition=cond, body=body
    ROOT r = T[] get-tuple-element(w), index=1"""
    return parsed(main, kind, computations=computations)


def test_updates_that_do_not_move_an_accumulator_are_lost_updates() -> None:
    module = _loop("one_more = T[] constant(1)\n next = T[] add(total, one_more)", 300, "bf16")
    found = hloexec.shadow(module, [])
    first = found.culprit
    assert first is not None
    assert (first.kind, first.instruction, first.affected) == ("lost updates", "next", 300 - 256)
    # The error grows with each iteration; the last one is the worst.
    assert first.iteration == 299
    assert first.name == "w[299]:body/next"
    assert found.outputs[0].relative_error == pytest.approx(44 / 300)
    assert (found.outputs[0].worst_value, found.outputs[0].worst_exact) == (256, 300)


_SCATTER = "scatter(x, i, u), update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}"


def test_a_scatter_that_stops_adding_ones_loses_updates() -> None:
    """256 + 1 is 256 in bf16, for each of those that follow."""
    module = parsed(
        f"""x = T[4] parameter(0)
        i = s32[600,1] parameter(1)
        u = T[600] parameter(2)
        ROOT r = T[4] {_SCATTER}, index_vector_dim=1, to_apply=add""",
        "bf16",
        computations=ADD,
    )
    inputs = [np.zeros(4, ml_dtypes.bfloat16), np.zeros((600, 1), np.int32), np.ones(600, ml_dtypes.bfloat16)]
    found = hloexec.shadow(module, inputs)
    assert found.culprit is not None
    assert (found.culprit.kind, found.culprit.instruction, found.culprit.affected) == ("lost updates", "r", 344)
    assert (found.outputs[0].worst_value, found.outputs[0].worst_exact) == (256, 600)


def test_a_scatter_that_rounds_some_sums_loses_none() -> None:
    module = parsed(
        f"""x = T[4] parameter(0)
        i = s32[12,1] parameter(1)
        u = T[12] parameter(2)
        ROOT r = T[4] {_SCATTER}, index_vector_dim=1, to_apply=add""",
        "bf16",
        computations=ADD,
    )
    found = hloexec.shadow(
        module, [numbers("bf16", 4), np.arange(12, dtype=np.int32)[:, None] % 4, numbers("bf16", 12)]
    )
    assert found.culprit is not None
    assert (found.culprit.kind, found.culprit.affected) == ("rounding", 0)


@pytest.mark.parametrize("observers", [(), (object(),)])
def test_a_scatter_in_a_loop_that_stops_adding_ones_loses_updates(observers: tuple[object, ...]) -> None:
    """Beside another observer, iterations are looked at one by one."""
    start = "x = T[1] broadcast(total), dimensions={}\n i = s32[1] constant({0})\n u = T[] constant(1)"
    module = _loop(
        f"{start.replace(' i =', ' place =')}\n"
        f"y = T[1] {_SCATTER.replace('(x, i,', '(x, place,')}, index_vector_dim=0, to_apply=add\n"
        "next = T[] reshape(y)",
        300,
        "bf16",
        computations=ADD,
    )
    first = hloexec.shadow(module, [], observers=[_Watch() for _ in observers]).culprit
    assert first is not None
    assert (first.kind, first.instruction, first.affected) == ("lost updates", "y", 300 - 256)


class _Watch:
    def on_instruction(self, event: hloexec.Event) -> None:
        """Looks at nothing."""


@pytest.mark.parametrize(
    ("operation", "lost"),
    [
        ("T[] reduce(x, zero), dimensions={0}", 344),
        ("T[1] reduce-window(x, zero), window={size=600}", 344),
        # The sum of the n-th loses n - 256.
        ("T[600] reduce-window(x, zero), window={size=600 pad=599_0}", 344 * 345 // 2),
    ],
)
def test_a_reducer_that_rounds_each_sum_loses_updates(operation: str, lost: int) -> None:
    reducer = """coarse { a = T[] parameter(0)
        b = T[] parameter(1)
        s = T[] add(a, b)
        ROOT r = T[] reduce-precision(s), exponent_bits=8, mantissa_bits=7 }
        """
    body = f"x = T[600] parameter(0)\n zero = T[] constant(0)\n ROOT r = {operation}, to_apply=coarse"
    first = hloexec.shadow(parsed(body, "f32", computations=reducer), [np.ones(600, np.float32)]).culprit
    assert first is not None
    assert (first.kind, first.affected) == ("lost updates", lost)


def test_a_sum_that_rounds_is_no_lost_update() -> None:
    module = _loop("x = T[] constant(0.1)\n next = T[] add(total, x)", 20, "f32")
    first = hloexec.shadow(module, []).culprit
    assert first is not None
    assert (first.kind, first.affected) == ("rounding", 0)


def test_error_that_reaches_no_output_ranks_nowhere() -> None:
    module = parsed(
        """x = T[8] parameter(0)
        big = T[8] constant({1e8,1e8,1e8,1e8,1e8,1e8,1e8,1e8})
        lost = T[8] add(x, big)
        back = T[8] subtract(lost, big)
        p = pred[8] compare(back, x), direction=LT
        y = T[8] multiply(x, x)
        no = pred[8] broadcast(f), dimensions={}
        f = pred[] constant(false)
        s = T[8] select(no, back, y)
        ROOT t = (T[8], pred[8]) tuple(s, p)""",
        "f32",
    )
    found = hloexec.shadow(module, [numbers("f32", 8)])
    assert [loss.instruction for loss in found.losses] == ["y"]
    # What the comparison would have said is told apart: exactly, back is x.
    assert [(entry.instruction, entry.total) for entry in found.decisions] == [("p", 8)]


def test_error_that_is_multiplied_by_zero_ranks_nowhere() -> None:
    module = parsed(
        """x = T[8] parameter(0)
        big = T[8] constant({1e8,1e8,1e8,1e8,1e8,1e8,1e8,1e8})
        lost = T[8] add(x, big)
        zero = T[8] constant({0,0,0,0,0,0,0,0})
        gone = T[8] multiply(lost, zero)
        y = T[8] multiply(x, x)
        ROOT s = T[8] add(gone, y)""",
        "f32",
    )
    assert [loss.instruction for loss in hloexec.shadow(module, [numbers("f32", 8)]).losses] == ["y"]


def test_a_subtraction_of_exact_numbers_that_cancel_is_not_blamed() -> None:
    """Sterbenz: the difference is exact, and so are the operands."""
    module = parsed(
        """x = T[64] parameter(0)
        y = T[64] parameter(1)
        d = T[64] subtract(x, y)
        ROOT r = T[64] multiply(d, d)""",
        "f32",
    )
    x = 1000 + numbers("f32", 64)
    y = np.nextafter(x, np.float32(0), dtype=np.float32)
    assert not hloexec.shadow(module, [x, y]).losses
    losses = hloexec.shadow(module, [x, numbers("f32", 64)]).losses
    assert all(loss.kind == "rounding" for loss in losses)


def test_a_softmax_with_its_maximum_subtracted_is_not_blamed_for_cancellation() -> None:
    module = parsed(
        """x = T[4,16] parameter(0)
        z = T[] constant(-inf)
        zero = T[] constant(0)
        m = T[4] reduce(x, z), dimensions={1}, to_apply=max
        b = T[4,16] broadcast(m), dimensions={0}
        d = T[4,16] subtract(x, b)
        e = T[4,16] exponential(d)
        s = T[4] reduce(e, zero), dimensions={1}, to_apply=add
        c = T[4,16] broadcast(s), dimensions={0}
        ROOT r = T[4,16] divide(e, c)""",
        "f32",
        computations=ADD + "max { a = T[] parameter(0)\n b = T[] parameter(1)\n ROOT r = T[] maximum(a, b) }\n",
    )
    found = hloexec.shadow(module, [10 * numbers("f32", 4, 16)])
    assert found.outputs[0].worst_digits is not None and found.outputs[0].worst_digits > 5
    assert not any(loss.kind == "cancellation" for loss in found.losses)


def test_overflow_in_one_place_leaves_the_rest_ranked() -> None:
    module = parsed(
        """x = T[8] parameter(0)
        e = T[8] exponential(x)
        y = T[8] multiply(x, x)
        w = T[8] add(y, x)
        ROOT t = (T[8], T[8]) tuple(e, w)""",
        "f32",
    )
    x = numbers("f32", 8)
    x[3] = 100
    found = hloexec.shadow(module, [x])
    assert [output.lost for output in found.outputs] == [1, 0]
    first, *others = found.losses
    assert (first.instruction, first.kind, first.lost_share, first.affected) == ("e", "overflow", 1.0, 1)
    assert {"y", "w"} <= {loss.instruction for loss in others}


def test_errors_are_relative_to_the_numbers_that_are_not_lost() -> None:
    module = parsed(
        """x = T[4] parameter(0)
        e = T[4] exponential(x)
        one = T[4] constant({1,1,1,1})
        ROOT r = T[4] add(e, one)""",
        "f32",
    )
    found = hloexec.shadow(module, [np.array([0.5, 300, -1, 1], np.float32)])
    value = hloexec.run(module, np.array([0.5, 300, -1, 1], np.float32))
    exact = np.exp(np.array([0.5, -1, 1])) + 1
    errors = np.delete(value, 1).astype(np.float64) - exact
    assert found.outputs[0].lost == 1
    expected = np.sqrt(np.sum(errors**2) / np.sum(exact**2))
    assert expected > 1e-9
    assert found.outputs[0].relative_error == pytest.approx(expected, rel=1e-6)
    assert np.hypot(*found.errors["e", "r"]) == pytest.approx(expected, rel=0.5)


def test_a_logarithm_of_what_has_underflowed_blames_the_underflow() -> None:
    module = parsed("x = T[4] parameter(0)\n e = T[4] exponential(x)\n ROOT r = T[4] log(e)", "f32")
    found = hloexec.shadow(module, [np.array([-1, -2, -200, -3], np.float32)])
    assert found.outputs[0].lost == 1
    assert found.culprit is not None
    assert (found.culprit.instruction, found.culprit.kind, found.culprit.lost_share) == ("e", "underflow", 1.0)


def test_a_function_beyond_f64_is_still_seen_to_overflow() -> None:
    module = parsed("x = T[2] parameter(0)\n e = T[2] exponential(x)\n ROOT r = T[2] log(e)", "f32")
    found = hloexec.shadow(module, [np.array([1000, -1000], np.float32)])
    assert found.outputs[0].lost == 2
    assert found.culprit is not None and found.culprit.instruction == "e"


def test_infinities_that_are_meant_are_no_loss() -> None:
    module = parsed(
        """x = T[4] parameter(0)
        z = T[4] constant({0,0,0,0})
        ROOT r = T[4] divide(x, z)""",
        "f32",
    )
    found = hloexec.shadow(module, [np.array([1, -1, np.inf, np.nan], np.float32)])
    assert not found.losses
    assert found.outputs[0].lost == 0


def test_what_is_absorbed_stays_to_blame_where_its_operands_cancel() -> None:
    module = parsed(
        """x = T[8] parameter(0)
        one = T[8] constant({1,1,1,1,1,1,1,1})
        s = T[8] add(x, one)
        ROOT r = T[8] subtract(s, one)""",
        "f32",
    )
    first = hloexec.shadow(module, [1e-9 * numbers("f32", 8)]).culprit
    assert first is not None
    assert (first.instruction, first.kind, first.affected) == ("s", "absorption", 8)


def test_a_convert_absorbs_what_the_sum_in_front_of_it_has_added() -> None:
    module = parsed(
        """x = bf16[8] parameter(0)
        u = f32[8] parameter(1)
        w = f32[8] convert(x)
        s = f32[8] add(w, u)
        ROOT r = bf16[8] convert(s)""",
        "f32",
    )
    x = np.ones(8, ml_dtypes.bfloat16)
    first = hloexec.shadow(module, [x, np.full(8, 1e-4, np.float32)]).culprit
    assert first is not None
    assert (first.instruction, first.kind) == ("r", "absorption")


def test_a_comparison_that_rounding_decides_is_told() -> None:
    module = parsed(
        """x = T[4] parameter(0)
        y = T[4] multiply(x, x)
        two = T[4] constant({2,2,2,2})
        p = pred[4] compare(y, two), direction=LT
        q = s32[4] convert(y)
        ROOT t = (pred[4], s32[4]) tuple(p, q)""",
        "bf16",
    )
    root = np.array([1.4140625, 1, 1, 1]).astype(ml_dtypes.bfloat16)
    # 1.4140625² = 1.99957…, which bf16 rounds to 2.
    found = hloexec.shadow(module, [root])
    assert {entry.instruction: (entry.count, entry.total) for entry in found.decisions} == {"p": (1, 4), "q": (1, 4)}


def test_an_index_that_rounding_decides_is_told() -> None:
    module = parsed(
        """x = T[2] parameter(0)
        y = T[2] multiply(x, x)
        i = s32[2] iota(), iota_dimension=0
        z = T[] constant(-inf)
        k = s32[] constant(0)
        r = (T[], s32[]) reduce(y, i, z, k), dimensions={0}, to_apply=argmax
        ROOT n = s32[] get-tuple-element(r), index=1""",
        "bf16",
        computations="""argmax {
          a = T[] parameter(0)
          i = s32[] parameter(1)
          b = T[] parameter(2)
          j = s32[] parameter(3)
          p = pred[] compare(a, b), direction=GE
          v = T[] select(p, a, b)
          k = s32[] select(p, i, j)
          ROOT t = (T[], s32[]) tuple(v, k)
        }
        """,
    )
    x = np.array([1.5, 1.5078125]).astype(ml_dtypes.bfloat16)
    x = np.array([1.0078125, 1.0]).astype(ml_dtypes.bfloat16)
    x[1] = 1.0078125 + 2.0**-7
    assert not hloexec.shadow(module, [x]).decisions
    # 1.5078125² and 1.515625² are 2.2735… and 2.2971…, which lie between the same neighbours of bf16.
    x = np.array([1.5078125, 1.515625]).astype(ml_dtypes.bfloat16)
    rounded = (x.astype(np.float32) ** 2).astype(ml_dtypes.bfloat16)
    found = hloexec.shadow(module, [x])
    assert bool(found.decisions) == bool(rounded[0] == rounded[1])


def test_errors_in_few_elements_of_a_large_array_are_found() -> None:
    """One element in 2¹⁷ cancels, which no sample is likely to hold."""
    module = parsed(
        """x = T[131072] parameter(0)
        y = T[131072] parameter(1)
        s = T[131072] multiply(x, x)
        d = T[131072] subtract(s, y)
        w = T[131072] multiply(d, x)
        ROOT r = T[131072] divide(w, d)""",
        "f32",
    )
    x, y = numbers("f32", 131072), np.full(131072, 9, np.float32)
    x[70001] = 1.2345679
    y[70001] = np.float32(x[70001]) ** 2 * np.float32(1 + 2.0**-22)
    found = hloexec.shadow(module, [x, y])
    assert found.outputs[0].worst_digits is not None and found.outputs[0].worst_digits > 6
    without_quotient = parsed(
        """x = T[131072] parameter(0)
        y = T[131072] parameter(1)
        s = T[131072] multiply(x, x)
        t = T[131072] multiply(s, x)
        u = T[131072] divide(t, x)
        big = T[131072] multiply(u, m)
        m = T[131072] parameter(2)
        ROOT r = T[131072] add(big, y)""",
        "f32",
    )
    m = np.zeros(131072, np.float32)
    m[70001] = 1e6
    rest = np.zeros(131072, np.float32)
    rest[70001] = -1e6 * np.float32(x[70001]) ** 2
    first = hloexec.shadow(without_quotient, [x, rest, m]).culprit
    assert first is not None
    assert (first.instruction, first.kind) == ("r", "cancellation")
