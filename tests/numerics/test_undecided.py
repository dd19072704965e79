"""Verdicts where HLO, or the text, leaves results open: *not decided* for what depends on that, and for nothing else."""

from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.analysis.numerics.comparison import Comparison, Verdict
from tests.text.building import ADD, module, op

SECOND = "second {\n a = f32[] parameter(0)\n ROOT b = f32[] parameter(1)\n}\n"
SCATTER = "update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1"


def compared(text: str, inputs: list[Any] | None, change: Any, **options: Any) -> Comparison:
    """The result of a module, changed, compared with it as it is."""
    parsed = hloexec.parse(text)
    given = hloexec.random_inputs(parsed) if inputs is None else inputs
    expected = hloexec.run(parsed, *given)
    leaves = [np.array(leaf) for leaf in (expected if isinstance(expected, tuple) else (expected,))]
    change(*leaves)
    actual = tuple(leaves) if isinstance(expected, tuple) else leaves[0]
    return hloexec.compare(actual, expected, module=parsed, inputs=given, **options)


def verdicts(found: Comparison) -> list[str]:
    return [leaf.verdict.value for leaf in found.leaves]


def elements(found: Comparison, leaf: int = 0) -> tuple[int, tuple[tuple[int, ...], ...]]:
    undecided = found.leaves[leaf].undecided
    assert undecided is not None
    return undecided.element_count, undecided.first


def all_but(*values: Any) -> Any:
    """Adds 1 to everything."""

    def change(*leaves: Any) -> None:
        for leaf in leaves:
            leaf[...] = leaf + leaf.dtype.type(1)

    return change


ELIDED = module(
    """x = f32[4] parameter(0)
    c = f32[4] constant({...})
    y = f32[4] multiply(x, c)
    z = f32[4] add(x, x)
    ROOT t = (f32[4], f32[4]) tuple(y, z)"""
)


@pytest.mark.filterwarnings("ignore::hloexec.HloWarning")
def test_what_depends_on_an_elided_constant_is_not_decided() -> None:
    def fault(first: Any, second: Any) -> None:
        first[1] = 7

    found = compared(ELIDED, None, fault)
    assert verdicts(found) == ["not decided", "equal"] and found.verdict is Verdict.NOT_DECIDED and not found.agrees
    assert found.different == () and found.not_decided == (found.leaves[0],)
    undecided = found.leaves[0].undecided
    assert undecided is not None and undecided.instructions == ("main/c",) and undecided.element_count == 4
    assert "%c is elided in the text" in undecided.reason and "xla_dump_large_constants" in undecided.reason
    assert str(found).startswith("not decided: 1 of 2 leaves; 0: no element is decided, since %c is elided")


@pytest.mark.filterwarnings("ignore::hloexec.HloWarning")
def test_a_fault_in_what_does_not_depend_on_it_is_different() -> None:
    found = compared(ELIDED, None, all_but())
    assert verdicts(found) == ["not decided", "different"] and found.verdict is Verdict.DIFFERENT
    assert found.different == (found.leaves[1],)


@pytest.mark.filterwarnings("ignore::hloexec.HloWarning")
def test_a_constant_whose_value_is_given_leaves_nothing_open() -> None:
    for known in ({"c": np.zeros(4, np.float32)}, None):
        assert verdicts(compared(ELIDED, None, all_but(), elided=known)) == ["different", "different"]
    assert verdicts(compared(ELIDED, None, all_but(), same_choices=True)) == ["different", "different"]


@pytest.mark.filterwarnings("ignore::hloexec.HloWarning")
def test_equal_results_are_equal_whatever_is_left_open() -> None:
    assert compared(ELIDED, None, lambda *_: None).verdict is Verdict.EQUAL


@pytest.mark.filterwarnings("ignore::hloexec.HloWarning")
def test_without_inputs_the_text_tells_which_leaves_are_open() -> None:
    parsed = hloexec.parse(ELIDED)
    ones = np.ones(4, np.float32)
    found = hloexec.compare((ones, ones), (2 * ones, 2 * ones), module=parsed)
    assert verdicts(found) == ["not decided", "different"]


M13 = op(f"f32[6] scatter(x, i, u), {SCATTER}, to_apply=second", SECOND, x="f32[6]", i="s32[6,1]", u="f32[6]")
M13_INPUTS = [np.zeros(6, np.float32), np.array([[1], [3], [1], [4], [3], [1]], np.int32), np.arange(1, 7, dtype="f4")]


def test_places_that_a_scatter_writes_twice_may_hold_either() -> None:
    """As a GPU gave it: 1 for 6 at [1], 2 for 5 at [3]."""

    def other_order(result: Any) -> None:
        result[[1, 3]] = 1, 2

    found = compared(M13, M13_INPUTS, other_order)
    assert verdicts(found) == ["not decided"] and elements(found) == (2, ((1,), (3,)))
    assert "2 of 6 elements ([1], [3]), since %root writes to places that its indices repeat" in str(found)


@pytest.mark.parametrize("place", [0, 2, 4, 5])
def test_a_fault_beside_them_is_different(place: int) -> None:
    def fault(result: Any) -> None:
        result[1] = 1
        result[place] += 1

    found = compared(M13, M13_INPUTS, fault)
    assert verdicts(found) == ["different"] and elements(found)[0] == 2
    assert [element.index for element in found.leaves[0].first] == [(place,)]


def test_equal_updates_and_sums_leave_nothing_open() -> None:
    same = [*M13_INPUTS[:2], np.array([5, 2, 5, 1, 2, 5], np.float32)]
    assert verdicts(compared(M13, same, all_but())) == ["different"]
    for combiner in (
        "a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT s = f32[] add(b, a)",
        "a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT s = f32[] subtract(a, b)",
        "a = f32[] parameter(0)\n b = f32[] parameter(1)\n d = f32[] add(b, b)\n ROOT s = f32[] maximum(a, d)",
        "a = f32[] parameter(0)\n ROOT c = f32[] copy(a)\n b = f32[] parameter(1)",
    ):
        text = M13.replace(SECOND, f"second {{\n {combiner}\n}}\n")
        assert verdicts(compared(text, M13_INPUTS, all_but())) == ["different"]
    for combiner in (
        "a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT s = f32[] subtract(b, a)",
        "a = f32[] parameter(0)\n b = f32[] parameter(1)\n m = f32[] add(a, b)\n ROOT s = f32[] multiply(m, b)",
    ):
        text = M13.replace(SECOND, f"second {{\n {combiner}\n}}\n")

        def two(result: Any) -> None:
            result[[1, 3]] += 1

        assert verdicts(compared(text, M13_INPUTS, two)) == ["not decided"]


def test_windows_that_overlap_are_open_where_they_do() -> None:
    text = op(
        "f32[5,3] scatter(x, i, u), update_window_dims={1,2}, inserted_window_dims={}, "
        "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=second",
        SECOND,
        x="f32[5,3]",
        i="s32[2,1]",
        u="f32[2,2,3]",
    )
    inputs = [np.zeros((5, 3), np.float32), np.array([[1], [2]], np.int32), np.arange(12, dtype="f4").reshape(2, 2, 3)]

    def row(result: Any) -> None:
        result[2] = 40

    assert elements(compared(text, inputs, row)) == (3, ((2, 0), (2, 1), (2, 2)))
    far = [inputs[0], np.array([[1], [4]], np.int32), inputs[2]]
    assert verdicts(compared(text, far, row)) == ["different"]


WAYS = {
    "elementwise": ("f32[6] exponential(s)", (1, 3)),
    "reversed": ("f32[6] reverse(s), dimensions={0}", (2, 4)),
    "compared": ("pred[6] compare(s, u), direction=GT", (1, 3)),
    "gathered": ("f32[2] slice(s), slice={[1:3]}", (0,)),
    "overwritten": ("f32[6] dynamic-update-slice(s, two, one)", (3,)),
    "chosen": ("f32[6] select(p, s, u)", (1,)),
    "reshaped": ("f32[2,3] reshape(s)", ((0, 1), (1, 0))),
    "padded": ("f32[8] pad(s, zero), padding=1_1", (2, 4)),
}


@pytest.mark.parametrize("way", WAYS)
def test_open_elements_are_followed(way: str) -> None:
    last, open_ = WAYS[way]
    text = module(
        f"""x = f32[6] parameter(0)
        i = s32[6,1] parameter(1)
        u = f32[6] parameter(2)
        s = f32[6] scatter(x, i, u), {SCATTER}, to_apply=second
        p = pred[6] constant({{1,1,1,0,0,0}})
        zero = f32[] constant(0)
        two = f32[2] constant({{7,8}})
        one = s32[] constant(1)
        ROOT r = {last}""",
        SECOND,
    )
    places = [place if isinstance(place, tuple) else (place,) for place in open_]

    def there(result: Any) -> None:
        for place in places:
            result[place] = not result[place] if result.dtype == bool else result[place] + 1

    found = compared(text, M13_INPUTS, there)
    assert verdicts(found) == ["not decided"] and elements(found) == (len(places), tuple(places))


def test_a_sum_of_open_elements_is_open_and_a_sum_of_others_is_not() -> None:
    text = module(
        f"""x = f32[6] parameter(0)
        i = s32[6,1] parameter(1)
        u = f32[6] parameter(2)
        s = f32[6] scatter(x, i, u), {SCATTER}, to_apply=second
        r = f32[3,2] reshape(s)
        zero = f32[] constant(0)
        ROOT t = f32[3] reduce(r, zero), dimensions={{1}}, to_apply=add_f32""",
        SECOND + ADD,
    )

    def first(result: Any) -> None:
        result[0] += 1

    def last(result: Any) -> None:
        result[2] += 1

    assert elements(compared(text, M13_INPUTS, first)) == (2, ((0,), (1,)))
    assert verdicts(compared(text, M13_INPUTS, last)) == ["different"]


@pytest.mark.parametrize("compare", ["GT", "LT"])
def test_a_reducer_that_drops_nan_does_not_hide_an_open_element(compare: str) -> None:
    best = f"""best {{
      a = f32[] parameter(0)
      b = f32[] parameter(1)
      p = pred[] compare(a, b), direction={compare}
      ROOT c = f32[] select(p, a, b)
    }}
    """
    text = module(
        f"""x = f32[6] parameter(0)
        i = s32[6,1] parameter(1)
        u = f32[6] parameter(2)
        s = f32[6] scatter(x, i, u), {SCATTER}, to_apply=second
        zero = f32[] constant(0)
        ROOT t = f32[] reduce(s, zero), dimensions={{0}}, to_apply=best""",
        SECOND + best,
    )
    assert verdicts(compared(text, M13_INPUTS, all_but())) == ["not decided"]


def test_what_an_open_value_selects_is_open() -> None:
    """The index of a slice, the choice of a branch, the number of iterations."""
    drawn = (
        "zero = s32[] constant(0)\nthree = s32[] constant(3)\nn = s32[] rng(zero, three), distribution=rng_uniform\n"
    )
    sliced = module(
        f"x = f32[6] parameter(0)\n{drawn}a = f32[2] dynamic-slice(x, n), dynamic_slice_sizes={{2}}\n"
        "b = f32[6] add(x, x)\nROOT t = (f32[2], f32[6]) tuple(a, b)"
    )
    assert verdicts(compared(sliced, None, all_but())) == ["not decided", "different"]
    branches = (
        "left {\n ROOT a = f32[6] parameter(0)\n}\nright {\n a = f32[6] parameter(0)\n ROOT b = f32[6] negate(a)\n}\n"
    )
    chosen = module(
        f"x = f32[6] parameter(0)\n{drawn}a = f32[6] conditional(n, x, x), branch_computations={{left, right}}\n"
        "y = f32[6] multiply(x, x)\nROOT t = (f32[6], f32[6]) tuple(a, y)",
        branches,
    )
    assert verdicts(compared(chosen, None, all_but())) == ["not decided", "different"]
    loop = """body { s = (s32[], f32[6], s32[]) parameter(0)
      i = s32[] get-tuple-element(s), index=0
      x = f32[6] get-tuple-element(s), index=1
      n = s32[] get-tuple-element(s), index=2
      one = s32[] constant(1)
      j = s32[] add(i, one)
      y = f32[6] add(x, x)
      ROOT t = (s32[], f32[6], s32[]) tuple(j, y, n) }
    condition { s = (s32[], f32[6], s32[]) parameter(0)
      i = s32[] get-tuple-element(s), index=0
      n = s32[] get-tuple-element(s), index=2
      ROOT c = pred[] compare(i, n), direction=LT }
    """
    looped = module(
        f"x = f32[6] parameter(0)\n{drawn}z = f32[6] tanh(x)\ns = (s32[], f32[6], s32[]) tuple(zero, x, n)\n"
        "w = (s32[], f32[6], s32[]) while(s), condition=condition, body=body\n"
        "y = f32[6] get-tuple-element(w), index=1\nROOT t = (f32[6], f32[6]) tuple(y, z)",
        loop,
    )
    assert verdicts(compared(looped, None, all_but())) == ["not decided", "different"]


def test_memory_that_a_loop_fills_is_decided() -> None:
    """As scans stack their results: every row of the buffer is written before anything reads it."""
    loop = """body { s = (s32[], f32[3,2]) parameter(0)
      i = s32[] get-tuple-element(s), index=0
      m = f32[3,2] get-tuple-element(s), index=1
      one = s32[] constant(1)
      zero = s32[] constant(0)
      f = f32[] convert(i)
      row = f32[1,2] broadcast(f), dimensions={}
      n = f32[3,2] dynamic-update-slice(m, row, i, zero)
      j = s32[] add(i, one)
      ROOT t = (s32[], f32[3,2]) tuple(j, n) }
    condition { s = (s32[], f32[3,2]) parameter(0)
      i = s32[] get-tuple-element(s), index=0
      three = s32[] constant(3)
      ROOT c = pred[] compare(i, three), direction=LT }
    """
    body = """zero = s32[] constant(0)
        m = f32[3,2] custom-call(), custom_call_target="AllocateBuffer"
        s = (s32[], f32[3,2]) tuple(zero, m)
        w = (s32[], f32[3,2]) while(s), condition=condition, body=body
        ROOT y = f32[3,2] get-tuple-element(w), index=1"""
    assert verdicts(compared(module(body, loop), None, all_but())) == ["different"]
    shorter = module(body, loop.replace("constant(3)", "constant(2)"))

    def last_row(result: Any) -> None:
        result[2] = 9

    assert elements(compared(shorter, None, last_row)) == (2, ((2, 0), (2, 1)))
    assert verdicts(compared(shorter, None, all_but())) == ["different"]


GENERATORS = {
    "rng": "zero = f32[] constant(0)\none = f32[] constant(1)\nr = f32[6] rng(zero, one), distribution=rng_normal",
    "the default algorithm": (
        "k = u64[2] constant({1,2})\n"
        "g = (u64[2], f32[6]) rng-bit-generator(k), algorithm=rng_default\nr = f32[6] get-tuple-element(g), index=1"
    ),
    "the state": (
        "q = u64[2] rng-get-and-update-state(), delta=1\nh = f64[2] convert(q)\nf = f32[2] convert(h)\n"
        "r = f32[6] concatenate(f, f, f), dimensions={0}"
    ),
    "an unwritten buffer": 'r = f32[6] custom-call(), custom_call_target="AllocateBuffer"',
}


@pytest.mark.parametrize("generator", GENERATORS)
def test_random_numbers_and_unwritten_memory_are_not_decided(generator: str) -> None:
    text = module(
        f"x = f32[6] parameter(0)\n{GENERATORS[generator]}\ny = f32[6] add(x, x)\nROOT t = (f32[6], f32[6]) tuple(r, y)"
    )
    assert verdicts(compared(text, None, all_but())) == ["not decided", "different"]


def test_specified_generators_are_judged() -> None:
    text = module(
        "k = u64[2] parameter(0)\ng = (u64[2], u32[6]) rng-bit-generator(k), algorithm=rng_three_fry\n"
        "ROOT r = u32[6] get-tuple-element(g), index=1"
    )
    assert verdicts(compared(text, None, all_but())) == ["different"]


def test_devices_share_what_is_open_through_a_collective() -> None:
    text = module(
        f"""x = f32[6] parameter(0)
        i = s32[6,1] parameter(1)
        u = f32[6] parameter(2)
        s = f32[6] scatter(x, i, u), {SCATTER}, to_apply=second
        y = f32[6] add(x, u)
        r = f32[6] all-reduce(s), replica_groups={{{{0,1}}}}, to_apply=add_f32
        ROOT t = (f32[6], f32[6]) tuple(r, y)""",
        SECOND + ADD,
        ", replica_count=2",
    )
    parsed = hloexec.parse(text)
    expected = tuple(hloexec.run_devices(parsed, M13_INPUTS))
    actual = tuple(tuple(leaf + 1 for leaf in device) for device in expected)  # type: ignore[operator, union-attr]
    found = hloexec.compare(actual, expected, module=parsed, inputs=M13_INPUTS)
    assert verdicts(found) == ["not decided", "different"] * 2


def test_a_fault_in_a_computation_beside_an_open_one_is_found_in_calls_and_fusions() -> None:
    called = f"""inner {{
      x = f32[6] parameter(0)
      i = s32[6,1] parameter(1)
      u = f32[6] parameter(2)
      s = f32[6] scatter(x, i, u), {SCATTER}, to_apply=second
      d = f32[6] multiply(x, u)
      ROOT t = (f32[6], f32[6]) tuple(s, d)
    }}
    """
    text = module(
        """x = f32[6] parameter(0)
        i = s32[6,1] parameter(1)
        u = f32[6] parameter(2)
        ROOT f = (f32[6], f32[6]) fusion(x, i, u), kind=kLoop, calls=inner""",
        SECOND + called,
    )

    def places(first: Any, second: Any) -> None:
        first[[1, 3]] = 1, 2

    assert verdicts(compared(text, M13_INPUTS, places)) == ["not decided", "equal"]
    assert verdicts(compared(text, M13_INPUTS, all_but())) == ["different", "different"]


def test_open_elements_are_followed_through_annotations_and_asynchronous_copies() -> None:
    text = module(
        f"""x = f32[6] parameter(0)
        i = s32[6,1] parameter(1)
        u = f32[6] parameter(2)
        s = f32[6] scatter(x, i, u), {SCATTER}, to_apply=second
        a = f32[6] custom-call(s), custom_call_target="Sharding", sharding={{replicated}}
        b = (f32[6], f32[6], u32[]) copy-start(a)
        c = f32[6] copy-done(b)
        d = ((f32[6]), f32[6], u32[]) async-start(c), calls=negated
        e = f32[6] async-done(d)
        ROOT r = f32[6] copy(e)""",
        SECOND + "negated {\n a = f32[6] parameter(0)\n ROOT n = f32[6] negate(a)\n}\n",
    )

    def there(result: Any) -> None:
        result[[1, 3]] += 1

    assert elements(compared(text, M13_INPUTS, there)) == (2, ((1,), (3,)))
    assert verdicts(compared(text, M13_INPUTS, all_but())) == ["different"]


@pytest.mark.filterwarnings("ignore::hloexec.HloWarning")
def test_a_leaf_that_one_side_lacks_is_different_beside_one_that_is_not_decided() -> None:
    parsed = hloexec.parse(ELIDED)
    ones = np.ones(4, np.float32)
    for inputs in (None, [ones]):
        given: dict[str, Any] = {"module": parsed, "inputs": inputs}
        found = hloexec.compare((ones, 2 * ones), (3 * ones, 2 * ones, ones), **given)
        assert verdicts(found) == ["not decided", "equal", "different"]
        found = hloexec.compare((ones, 2 * ones), (3 * ones, 4 * ones, ones), **given)
        assert verdicts(found) == ["not decided", "different", "different"]


FOLLOWED = {
    "rows of a product": (
        "m = f32[3,2] reshape(s)\nw = f32[2,4] constant({{1,2,3,4},{5,6,7,8}})\n"
        "ROOT d = f32[3,4] dot(m, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        (0, 1),
        (2, 1),
    ),
    "windows of a sum": (
        "z = f32[] constant(0)\nROOT d = f32[5] reduce-window(s, z), window={size=2}, to_apply=add_f32",
        (2,),
        (4,),
    ),
    "rows of a transform": (
        "m = f32[2,3] reshape(s)\nc = c64[2,2] fft(m), fft_type=RFFT, fft_length={3}\nROOT d = f32[2,2] real(c)",
        (0, 1),
        None,
    ),
    "a narrower type": ("ROOT d = bf16[6] convert(s)", (1,), (4,)),
    "bounds": ("z = f32[] constant(0)\nh = f32[] constant(3)\nROOT d = f32[6] clamp(z, s, h)", (3,), (0,)),
    "what is written over": (
        "k = s32[] constant(0)\nw = f32[3] slice(u), slice={[0:3]}\nROOT d = f32[6] dynamic-update-slice(s, w, k)",
        (3,),
        (1,),
    ),
}


@pytest.mark.parametrize("what", FOLLOWED)
def test_an_open_element_is_told_from_one_beside_it(what: str) -> None:
    last, open_, decided = FOLLOWED[what]
    text = module(
        f"""x = f32[6] parameter(0)
        i = s32[6,1] parameter(1)
        u = f32[6] parameter(2)
        s = f32[6] scatter(x, i, u), {SCATTER}, to_apply=second
        {last}""",
        SECOND + ADD,
    )
    for place, verdict in ((open_, "not decided"), (decided, "different")):

        def there(result: Any, place: Any = place) -> None:
            result[place] += result.dtype.type(1)

        if place is not None:
            assert verdicts(compared(text, M13_INPUTS, there)) == [verdict]


def test_updates_that_do_not_fit_repeat_nothing() -> None:
    outside = [M13_INPUTS[0], np.array([[9], [9], [1], [-1], [-1], [2]], np.int32), M13_INPUTS[2]]
    assert verdicts(compared(M13, outside, all_but())) == ["different"]
