"""`hloexec.shrink`: sizes, bounds, what stays and why, constants, and errors."""

import sys

import numpy as np
import pytest

import hloexec
from tests.shrinking.smallest import assert_valid
from tests.text.building import ADD, module
from tests.text.seeds import seed_path

PERCEPTRON = module(
    """
    x = f32[512,1024] parameter(0)
    w = f32[1024,4096] parameter(1)
    v = f32[4096,1024] parameter(2)
    h = f32[512,4096] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    t = f32[512,4096] tanh(h)
    y = f32[512,1024] dot(t, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
    zero = f32[] constant(0)
    s = f32[512] reduce(y, zero), dimensions={1}, to_apply=add_f32
    n = f32[] constant(0.0009765625)
    ns = f32[512] broadcast(n), dimensions={}
    ROOT m = f32[512] multiply(s, ns)""",
    ADD,
)
LOOP = """HloModule m

body {
  p = (s32[], f32[1000,64], f32[64]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  xs = f32[1000,64] get-tuple-element(p), index=1
  sum = f32[64] get-tuple-element(p), index=2
  zero = s32[] constant(0)
  row = f32[1,64] dynamic-slice(xs, i, zero), dynamic_slice_sizes={1,64}
  flat = f32[64] reshape(row)
  next = f32[64] add(sum, flat)
  one = s32[] constant(1)
  j = s32[] add(i, one)
  ROOT t = (s32[], f32[1000,64], f32[64]) tuple(j, xs, next)
}

condition {
  p = (s32[], f32[1000,64], f32[64]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(1000)
  ROOT r = pred[] compare(i, n), direction=LT
}

ENTRY main {
  xs = f32[1000,64] parameter(0)
  x = f32[64] parameter(1)
  i = s32[] constant(0)
  t = (s32[], f32[1000,64], f32[64]) tuple(i, xs, x)
  w = (s32[], f32[1000,64], f32[64]) while(t), condition=condition, body=body, backend_config={"known_trip_count":{"n":"1000"}}
  ROOT r = f32[64] get-tuple-element(w), index=2
}
"""


def shrink(text: str, **options: object) -> hloexec.Shrinkage:
    found = hloexec.shrink(hloexec.parse(text), **options)  # type: ignore[arg-type]
    assert_valid(found.module)
    return found


def parameters(found: hloexec.Shrinkage) -> list[tuple[int, ...]]:
    return [shape.dimensions for shape in found.module.entry.parameter_shapes]


def test_a_module_that_fits_stays() -> None:
    found = shrink(PERCEPTRON)
    assert found.changes == () and found.module == hloexec.parse(PERCEPTRON)


@pytest.mark.parametrize("limit", [1_000_000, 100_000, 10_000])
def test_a_run_takes_no_more_than_is_asked_for(limit: int) -> None:
    found = shrink(PERCEPTRON, max_bytes=limit)
    assert found.total_bytes is not None and found.total_bytes <= limit
    inputs = hloexec.random_inputs(found.module)
    hloexec.run(found.module, *inputs, memory_limit=limit - found.argument_bytes)
    assert sum(np.asarray(value).nbytes for value in inputs) == found.argument_bytes


def test_sizes_become_what_is_asked_for_and_the_mean_follows() -> None:
    found = shrink(PERCEPTRON, dims={1024: 16, 4096: 32}, keep=[512])
    assert parameters(found) == [(512, 16), (16, 32), (32, 16)]
    (constant,) = found.constants
    assert (constant.before, constant.after, constant.size, constant.is_certain) == (1 / 1024, 1 / 16, 1024, True)


def test_a_constant_whose_size_stays_is_no_change() -> None:
    assert not shrink(PERCEPTRON, dims={4096: 32}).constants


def test_large_sizes_shrink_before_small_ones() -> None:
    found = shrink(PERCEPTRON, max_bytes=1_000_000)
    rows, columns = parameters(found)[1]
    assert 4096 / columns >= 1024 / rows > 1


def test_a_loop_runs_over_the_rows_that_are_left() -> None:
    found = shrink(LOOP, dims={1000: 7})
    text = hloexec.format(found.module)
    assert "constant(7)" in text and '"n":"7"' in text
    assert [(each.before, each.after, each.is_certain) for each in found.constants] == [(1000, 7, True)]


def test_one_constant_that_is_used_for_two_things_ties_nothing() -> None:
    text = LOOP.replace("f32[64]", "f32[1000]").replace("64]", "1000]").replace("1,64}", "1,1000}")
    assert parameters(shrink(text, dims={1000: 8})) == [(8, 8), (8,)]
    found = hloexec.shrink(hloexec.parse(text), max_bytes=40_000)
    assert parameters(found)[0][0] != parameters(found)[0][1] or found.changes


def test_an_array_that_a_constant_lists_stays() -> None:
    text = module("""
    x = f32[64,3] parameter(0)
    c = f32[3] constant({1, 2, 4})
    cs = f32[64,3] broadcast(c), dimensions={1}
    ROOT y = f32[64,3] multiply(x, cs)""")
    found = shrink(text, dims={64: 2})
    assert parameters(found) == [(2, 3)]
    (kept,) = found.kept
    assert (kept.size, kept.reason, kept.instruction) == (3, "a constant lists its elements", "c")
    with pytest.raises(
        hloexec.InputError, match=r"size 3 cannot become 2: a constant lists its elements \(%c in main\)"
    ):
        shrink(text, dims={3: 2})


def test_sizes_that_depend_on_others_are_named() -> None:
    text = module("""
    x = f32[96] parameter(0)
    ROOT y = f32[4,24] reshape(x)""")
    assert parameters(shrink(text, dims={96: 8})) == [(8,)]
    with pytest.raises(
        hloexec.InputError, match=r"size 96 cannot become 7, as other sizes depend on it; the nearest are 8, 6, 12, 4"
    ):
        shrink(text, dims={96: 7})
    merged = module("""
    x = f32[4,24] parameter(0)
    y = f32[96] reshape(x)
    ROOT z = f32[4,24] reshape(y)""")
    with pytest.raises(hloexec.InputError, match="size 96 cannot become 8: it is the product of 4 and 24, and follows"):
        shrink(merged, dims={96: 8})
    with pytest.raises(hloexec.InputError, match="the module has no dimension of that size; there are 96, 24, 4"):
        shrink(text, dims={5: 3})


def test_a_module_that_cannot_shrink_says_why() -> None:
    text = module("""
    x = f32[4096,4096] parameter(0)
    ROOT y = f32[4096,4096] custom-call(x), custom_call_target="nobody"
    """)
    with pytest.raises(hloexec.ResourceError, match="4096: how the dimensions of the library call nobody depend"):
        shrink(text, max_bytes=1000)


def test_sizes_larger_than_they_were_are_refused() -> None:
    with pytest.raises(hloexec.InputError, match=r"dims=\{64: 128\} makes a size larger"):
        shrink(LOOP, dims={64: 128})


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        pytest.param("001_83a80cec1e7cc5e6.txt", 20_000_000, marks=pytest.mark.slow),
        ("002_2b3b731b0feb0bfe.txt", 20_000_000),
        ("004_915eaf8d7a870eb5.txt", 20_000_000),
    ],
)
@pytest.mark.filterwarnings("ignore::hloexec.HloWarning")
def test_a_real_dump_shrinks_to_a_valid_module_within_the_limit(name: str, limit: int) -> None:
    """`test_dumps` runs them."""
    path = seed_path(name)
    if path is None:
        pytest.skip("the real dumps are not here; HLOEXEC_SEEDS names the folder that holds them")
    found = hloexec.shrink(hloexec.load(path), max_bytes=limit)
    assert_valid(found.module)
    assert found.total_bytes is not None and found.total_bytes <= limit


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::hloexec.HloWarning")
def test_a_training_step_for_sixteen_devices_shrinks() -> None:
    """And its bitcasts lose no elements."""
    path = seed_path("000_c00fd3afea504246.txt")
    if path is None:
        pytest.skip("the real dumps are not here; HLOEXEC_SEEDS names the folder that holds them")
    found = hloexec.shrink(hloexec.load(path), max_bytes="2G")
    assert_valid(found.module)
    assert found.total_bytes is not None and found.total_bytes <= 2 << 30
    assert found.module.instruction_count == 9917
    assert found.argument_bytes_before > 100e9
    for computation in found.module:
        for bitcast in (i for i in computation if i.opcode == "bitcast"):
            assert bitcast.shape.byte_size == computation.operands_of(bitcast)[0].shape.byte_size, bitcast.name


def test_what_is_missing_without_scipy_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)
    with pytest.raises(
        hloexec.UnsupportedError, match=r"needs SciPy: install it, .* \(pip install 'hloexec\[shrink\]'\)"
    ):
        hloexec.shrink(hloexec.parse(PERCEPTRON), max_bytes=1_000_000)


def test_a_search_that_ends_at_its_limit_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import scipy.optimize

    solve = scipy.optimize.milp

    def cut_off(*arguments: object, **options: object) -> object:
        found = solve(*arguments, **options)
        found.status = 1  # that of a limit which was reached
        return found

    assert shrink(PERCEPTRON, max_bytes=1_000_000).is_proven
    monkeypatch.setattr(scipy.optimize, "milp", cut_off)
    assert not shrink(PERCEPTRON, max_bytes=1_000_000).is_proven


def test_shrinking_twice_gives_the_same_module() -> None:
    assert shrink(PERCEPTRON, max_bytes=100_000) == shrink(PERCEPTRON, max_bytes=100_000)


def test_a_size_cannot_become_smaller_than_a_piece_of_it() -> None:
    text = module("""
    x = f32[64] parameter(0)
    ROOT y = f32[6] slice(x), slice={[4:10]}""")
    assert parameters(shrink(text, dims={64: 10})) == [(10,)]
    with pytest.raises(hloexec.InputError, match=r"size 64 cannot become 9, .* the nearest are 10, 11, 12"):
        shrink(text, dims={64: 9})


def test_what_only_looks_like_a_size_is_listed() -> None:
    text = module("""
    x = f32[64] parameter(0)
    c = f32[] constant(64)
    cs = f32[64] broadcast(c), dimensions={}
    d = s32[] constant(63)
    e = f32[] convert(d)
    es = f32[64] broadcast(e), dimensions={}
    y = f32[64] power(x, cs)
    ROOT z = f32[64] power(y, es)""")
    found = shrink(text, dims={64: 4})
    assert {(each.instruction, each.after, each.is_certain) for each in found.constants} == {
        ("c", 64, False),
        ("d", 63, False),
    }


@pytest.mark.parametrize(
    ("before", "after", "dims", "small", "axes"),
    [
        (
            "[2,16,256,4096]{3,2,1,0:T(8,128)(2,1)}",
            "[2,4096,4096]{2,1,0:T(8,128)(2,1)}",
            {256: 16, 4096: 3},
            (2, 256, 3),
            None,
        ),
        (
            "[2,16,256,4096]{3,2,1,0:T(8,128)(2,1)}",
            "[2,4096,4096]{2,1,0:T(8,128)(2,1)}",
            {16: 4},
            (2, 1024, 4096),
            None,
        ),
        ("[16,4,128]{2,1,0:T(4,128)}", "[2,8,4,128]{3,2,1,0:T(4,128)}", {16: 4, 128: 16}, (2, 2, 4, 16), None),
        ("[64,40,256]{2,1,0:T(8,128)}", "[2560,256]{1,0:T(8,128)}", {64: 4, 256: 16}, (160, 16), None),
        ("[2048]{0:T(1024)}", "[16,128]{1,0:T(8,128)}", {2048: 1024}, (8, 128), None),
        ("[8,1,4096]{2,1,0:T(1,128)}", "[32768]{0:T(1024)}", {4096: 1024}, (8192,), None),
        ("[4,8,128]{2,1,0:T(8,128)}", "[4096]{0:T(1024)}", {8: 2}, (1024,), None),
        ("[1,2048]{1,0:T(1,128)}", "[2048]{0:T(1024)}", {2048: 32}, (32,), None),
        ("[8,16,8,128]{3,2,1,0:T(8,128)}", "[64,2048]{1,0:T(8,128)}", {16: 2}, (64, 256), (0, 2, 1, 3)),
    ],
)
def test_bitcasts_of_whole_tiles_stay_what_they_are(
    before: str, after: str, dims: dict[int, int], small: tuple[int, ...], axes: tuple[int, ...] | None
) -> None:
    """Reshapes, but for the last one, which puts tiles in rows and columns."""
    found = shrink(
        f"HloModule m\nENTRY e {{\n  x = f32{before} parameter(0)\n  ROOT y = f32{after} bitcast(x)\n}}", dims=dims
    )
    (x,) = hloexec.random_inputs(found.module)
    array = np.asarray(x)
    expected = array.transpose(axes or range(array.ndim)).reshape(small)
    np.testing.assert_array_equal(hloexec.run(found.module, x), expected)


def test_operands_that_come_late_are_those_of_the_computation_that_was_started() -> None:
    large = hloexec.parse(
        """HloModule m

added {
  a = f32[64,32] parameter(0)
  b = f32[32] parameter(1)
  bs = f32[64,32] broadcast(b), dimensions={1}
  ROOT c = f32[64,32] add(a, bs)
}

ENTRY main {
  a = f32[64,32] parameter(0)
  b = f32[32] parameter(1)
  s = ((), (), s32[7]) async-start(), calls=added
  u = ((f32[64,32], f32[32]), f32[64,32], s32[9]) async-update(s, a, b)
  ROOT d = f32[64,32] async-done(u)
}
"""
    )
    small = hloexec.shrink(large, dims={64: 8, 32: 4}).module
    a, b = hloexec.random_inputs(small)
    np.testing.assert_array_equal(hloexec.run(small, a, b), np.asarray(a) + np.asarray(b))
    assert np.shape(a) == (8, 4)


@pytest.mark.parametrize(
    "window", ["size=32 stride=31 lhs_dilate=32", "size=32 stride=32 pad=31_31 lhs_dilate=31 rhs_reversal=1"]
)
def test_products_of_a_batch_that_are_convolutions_stay_so(window: str) -> None:
    found = shrink(
        f"""HloModule m

ENTRY e {{
  x = f32[32,8,16] parameter(0)
  w = f32[32,16,4] parameter(1)
  ROOT y = f32[32,8,4] convolution(x, w), window={{{window}}}, dim_labels=0bf_0io->0bf
}}
""",
        dims={32: 4},
    )
    x, w = (np.rint(8 * np.asarray(array)) for array in hloexec.random_inputs(found.module))  # sums of them are exact
    assert x.shape == (4, 8, 16)
    np.testing.assert_array_equal(hloexec.run(found.module, x, w), x @ w)


def test_slices_that_make_up_a_dimension_are_shares_of_it() -> None:
    """The last one would be a piece of fixed size, and the others nothing plain, if they were alone."""
    text = """HloModule m

ENTRY e {
  x = f32[1000] parameter(0)
  a = f32[256] slice(x), slice={[0:256]}
  b = f32[512] slice(x), slice={[256:768]}
  c = f32[232] slice(x), slice={[768:1000]}
  ROOT y = f32[1000] concatenate(a, b, c), dimensions={0}
}
"""
    found = shrink(text, dims={1000: 125})
    (x,) = hloexec.random_inputs(found.module)
    np.testing.assert_array_equal(hloexec.run(found.module, x), x)
    assert np.shape(x) == (125,)
