"""Constants that encode sizes: which follow, and which are guesses."""

import numpy as np
import pytest

import hloexec
from tests.shrinking.test_shrink import shrink
from tests.text.building import ADD, module

MEAN = """
    x = f32[{rows},{columns}] parameter(0)
    zero = f32[] constant(0)
    s = f32[{columns}] reduce(x, zero), dimensions={{0}}, to_apply=add_f32
    n = f32[] constant({number})
    ns = f32[{columns}] broadcast(n), dimensions={{}}
    ROOT m = f32[{columns}] multiply(s, ns)"""
GRADIENT = """
    x = f32[{rows},64] parameter(0)
    zero = f32[] constant(0)
    n = f32[] constant({number})
    ns = f32[{rows}] broadcast(n), dimensions={{}}
    ones = f32[{rows},64] broadcast(ns), dimensions={{0}}
    y = f32[{rows},64] multiply(x, ones)
    ROOT s = f32[] reduce(y, zero), dimensions={{0,1}}, to_apply=add_f32"""


def constant(found: hloexec.Shrinkage) -> tuple[float, float, bool]:
    (change,) = found.constants
    return change.before, change.after, change.is_certain


def f32(number: float) -> float:
    return float(np.float32(number))


def test_a_mean_with_a_decimal_folded_into_it_follows_as_a_guess() -> None:
    text = module(MEAN.format(rows=392, columns=64, number=repr(0.1 / 392)), ADD)
    assert constant(shrink(text, dims={392: 16})) == (f32(0.1 / 392), f32(0.1 / 16), False)


@pytest.mark.parametrize("number", [0.1, 0.0125, 0.044715, 0.015625])
def test_a_number_that_someone_chose_stays(number: float) -> None:
    text = module(MEAN.format(rows=320, columns=64, number=number), ADD)
    assert shrink(text, dims={320: 16}).constants == ()


@pytest.mark.parametrize("number", [1 / 3, 2 / 3, 1 / 7, -4 / 9])
def test_a_fraction_of_two_small_numbers_is_no_share_of_a_size(number: float) -> None:
    text = module(MEAN.format(rows=320, columns=64, number=repr(number)), ADD)
    assert shrink(text, dims={64: 16}).constants == ()


@pytest.mark.parametrize("decimal", [0.1, 5])
def test_the_spacing_of_points_follows_as_a_guess(decimal: float) -> None:
    text = module(MEAN.format(rows=320, columns=64, number=repr(decimal / 63)), ADD)
    (_, after, is_certain) = constant(shrink(text, dims={64: 16}))
    assert (after, is_certain) == (pytest.approx(decimal / 15), False)


@pytest.mark.parametrize("share", [1, -1, 0.5, -0.5])
def test_the_fraction_that_a_gradient_is_scaled_by_follows_as_a_guess(share: float) -> None:
    text = module(GRADIENT.format(rows=96, number=repr(share / 96)), ADD)
    assert constant(shrink(text, dims={96: 8})) == (f32(share / 96), f32(share / 8), False)


@pytest.mark.parametrize("groups", ["{}", "[1,8]<=[8]", "mesh['a'=4,'b'=2] {'a','b'}"])
@pytest.mark.parametrize("result", ["f32[]", "(f32[], f32[64])"])
def test_a_mean_over_all_devices_follows_where_their_number_stays(groups: str, result: str) -> None:
    operands, total = ("s", "all") if result == "f32[]" else ("s, t", "f32[] get-tuple-element(all), index=0")
    lines = f"""
    x = f32[512,64] parameter(0)
    zero = f32[] constant(0)
    s = f32[] reduce(x, zero), dimensions={{0,1}}, to_apply=add_f32
    t = f32[64] reduce(x, zero), dimensions={{0}}, to_apply=add_f32
    all = {result} all-reduce({operands}), channel_id=1, replica_groups={groups}, use_global_device_ids=true, to_apply=add_f32
    total = {total if total != "all" else "f32[] copy(all)"}
    n = f32[] constant({1 / (512 * 64 * 8)!r})
    ROOT m = f32[] multiply(total, n)"""
    text = module(lines, ADD, header=", num_partitions=8")
    assert constant(shrink(text, dims={512: 16})) == (1 / (512 * 64 * 8), 1 / (16 * 64 * 8), True)


def test_the_fraction_of_a_batch_of_four_follows_where_it_fills_an_array_of_so_many() -> None:
    text = module(GRADIENT.format(rows=4, number=-0.25), ADD)
    assert constant(shrink(text, dims={4: 2})) == (-0.25, -0.5, False)


def test_the_fraction_of_a_few_elements_is_listed_where_it_may_be_something_else() -> None:
    text = module(
        """
    x = f32[5,64] parameter(0)
    zero = f32[] constant(0)
    s = f32[64] reduce(x, zero), dimensions={0}, to_apply=add_f32
    y = f32[64] parameter(1)
    n = f32[] constant(0.2)
    ns = f32[64] broadcast(n), dimensions={}
    z = f32[64] multiply(y, ns)
    ROOT t = (f32[64], f32[64]) tuple(s, z)""",
        ADD,
    )
    assert constant(shrink(text, dims={5: 3})) == (f32(0.2), f32(0.2), False)


def test_a_dimension_counts_twice_if_it_is_that_of_both_sides_of_an_image() -> None:
    text = module(
        """
    x = f32[48,48] parameter(0)
    y = f32[48,48] transpose(x), dimensions={1,0}
    z = f32[48,48] add(x, y)
    zero = f32[] constant(0)
    s = f32[] reduce(z, zero), dimensions={0,1}, to_apply=add_f32
    n = f32[] constant(2304)
    ROOT m = f32[] divide(s, n)""",
        ADD,
    )
    assert constant(shrink(text, dims={48: 6})) == (2304, 36, True)


def test_the_spacing_of_a_grid_follows_as_a_guess_where_its_border_is_cut_off() -> None:
    text = module(
        """
    x = f32[200] parameter(0)
    y = f32[198] slice(x), slice={[1:199]}
    n = f32[] constant(SPACING)
    ns = f32[198] broadcast(n), dimensions={}
    ROOT z = f32[198] multiply(y, ns)""".replace("SPACING", repr(0.2 / 199**2))
    )
    assert constant(shrink(text, dims={200: 50})) == (f32(0.2 / 199**2), f32(0.2 / 49**2), False)


def test_what_is_computed_twice_from_the_same_positions_counts_along_the_same_dimension() -> None:
    text = module(
        """
    x = f32[64,8] parameter(0)
    i = s32[128] iota(), iota_dimension=0
    two = s32[] constant(2)
    twos = s32[128] broadcast(two), dimensions={}
    half = s32[128] divide(i, twos)
    indices = s32[128,1] reshape(half)
    taken = f32[128,8] gather(x, indices), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,8}
    more = s32[] constant(2)
    mores = s32[128] broadcast(more), dimensions={}
    again = s32[128] divide(i, mores)
    places = s32[128,1] reshape(again)
    zero = f32[] constant(0)
    zeros = f32[64,8] broadcast(zero), dimensions={}
    ROOT y = f32[64,8] scatter(zeros, places, taken), update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add_f32""",
        ADD,
    )
    found = shrink(text, dims={64: 8, 128: 16})
    assert found.module.entry.result_shape.dimensions == (8, 8)  # type: ignore[union-attr]


def test_arrays_that_the_same_vectors_are_positions_in_have_the_same_dimensions() -> None:
    text = module(
        """
    x = f32[64,8] parameter(0)
    places = s32[32,2] parameter(1)
    taken = f32[32] gather(x, places), offset_dims={}, collapsed_slice_dims={0,1}, start_index_map={0,1}, index_vector_dim=1, slice_sizes={1,1}
    zero = f32[] constant(0)
    zeros = f32[64,8] broadcast(zero), dimensions={}
    added = f32[64,8] scatter(zeros, places, taken), update_window_dims={}, inserted_window_dims={0,1}, scatter_dims_to_operand_dims={0,1}, index_vector_dim=1, to_apply=add_f32
    last = s32[2] constant({63, 7})
    lasts = s32[32,2] broadcast(last), dimensions={1}
    within = pred[32,2] compare(places, lasts), direction=LE
    ROOT t = (f32[64,8], pred[32,2]) tuple(added, within)""",
        ADD,
    )
    entry = shrink(text, dims={64: 16}).module.entry
    assert entry.by_name["added"].shape.dimensions == (16, 8)  # type: ignore[union-attr]
    assert entry.by_name["last"].attributes.literal.held.tolist() == [15, 7]


def test_a_window_of_all_but_the_ends_stays_so() -> None:
    text = module("""
    x = f32[200] parameter(0)
    y = f32[198] slice(x), slice={[1:199]}
    one = s32[] constant(1)
    ROOT z = f32[200] dynamic-update-slice(x, y, one)""")
    found = shrink(text, dims={200: 50})
    assert found.module.entry.by_name["y"].shape.dimensions == (48,)  # type: ignore[union-attr]


def test_the_fraction_of_a_mean_of_means_follows_as_a_guess() -> None:
    text = module(
        """
    x = f32[96,56] parameter(0)
    c = f32[96] parameter(1)
    n = f32[] constant(NUMBER)
    ns = f32[96] broadcast(n), dimensions={}
    y = f32[96] multiply(c, ns)
    zero = f32[] constant(0)
    z = f32[96] reduce(x, zero), dimensions={1}, to_apply=add_f32
    ROOT t = (f32[96], f32[96]) tuple(y, z)""".replace("NUMBER", repr(2 / (96 * 56))),
        ADD,
    )
    assert constant(shrink(text, dims={96: 8, 56: 7})) == (f32(2 / 5376), f32(2 / 56), False)


def test_a_fraction_of_which_little_is_known_is_what_an_equal_one_is() -> None:
    """1/64 is a mean's; -1/64 meets no sum, and one over 64 elements stays as it is."""
    text = f"""
    x = f32[64] parameter(0)
    y = f32[8] parameter(1)
    zero = f32[] constant(0)
    sum = f32[] reduce(x, zero), dimensions={{0}}, to_apply=add_f32
    share = f32[] constant(0.015625)
    mean = f32[] multiply(sum, share)
    less = f32[] constant(-0.015625)
    lesses = f32[8] broadcast(less), dimensions={{}}
    part = f32[8] multiply(y, lesses)
    means = f32[8] broadcast(mean), dimensions={{}}
    table = f32[64] constant({{{", ".join(map(str, range(64)))}}})
    total = f32[] reduce(table, zero), dimensions={{0}}, to_apply=add_f32
    ROOT r = (f32[8], f32[8], f32[]) tuple(part, means, total)
    """
    found = hloexec.shrink(hloexec.parse(module(text, ADD)), dims={64: 16})
    by_name = {change.instruction: change for change in found.constants}
    assert (by_name["share"].after, by_name["share"].is_certain) == (1 / 16, True)
    assert (by_name["less"].after, by_name["less"].is_certain) == (-1 / 16, False)
    assert found.module.entry.by_name["less"].attributes.literal.value == -1 / 16


def test_a_decimal_that_is_a_fraction_of_a_size_too_stays_and_is_listed() -> None:
    text = module(
        """
    x = f32[100,64] parameter(0)
    y = f32[32] parameter(1)
    zero = f32[] constant(0)
    s = f32[64] reduce(x, zero), dimensions={0}, to_apply=add_f32
    decay = f32[] constant(0.01)
    decays = f32[32] broadcast(decay), dimensions={}
    m = f32[32] multiply(y, decays)
    ROOT t = (f32[64], f32[32]) tuple(s, m)""",
        ADD,
    )
    assert constant(shrink(text, dims={100: 20})) == (f32(0.01), f32(0.01), False)


def for_devices(body: str) -> str:
    return module(body, ADD).replace("HloModule m", "HloModule m, num_partitions=16")


def test_a_mean_over_the_rows_of_all_devices_is_none_over_features_of_which_there_are_as_many() -> None:
    text = for_devices(
        f"""
    x = f32[128,2048] parameter(0)
    w = f32[2048,48] parameter(1)
    logits = f32[128,48] dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
    n = f32[] constant({-1 / 2048})
    ns = f32[128,48] broadcast(n), dimensions={{}}
    scaled = f32[128,48] multiply(logits, ns)
    zero = f32[] constant(0)
    s = f32[48] reduce(scaled, zero), dimensions={{0}}, to_apply=add_f32
    ROOT r = f32[48] all-reduce(s), channel_id=1, replica_groups={{}}, use_global_device_ids=false, to_apply=add_f32"""
    )
    assert constant(shrink(text, dims={2048: 256, 128: 8})) == (-1 / 2048, -1 / 128, False)


def test_what_all_devices_have_together_follows_what_each_has() -> None:
    text = for_devices(
        """
    tokens = s32[24] parameter(0)
    table = f32[512,64] parameter(1)
    zero = s32[] constant(0)
    zeros = s32[24] broadcast(zero), dimensions={}
    last = s32[] constant(8191)
    lasts = s32[24] broadcast(last), dimensions={}
    within = s32[24] clamp(zeros, tokens, lasts)
    id = u32[] partition-id()
    number = s32[] convert(id)
    share = s32[] constant(512)
    first = s32[] multiply(number, share)
    firsts = s32[24] broadcast(first), dimensions={}
    rows = s32[24] subtract(within, firsts)
    ROOT g = f32[24,64] gather(table, rows), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, """
        """index_vector_dim=1, slice_sizes={1,64}
"""
    )
    text = text.replace("ROOT g", "g").replace(
        "slice_sizes={1,64}\n",
        "slice_sizes={1,64}\n    ROOT r = f32[24,64] all-reduce(g), channel_id=1, replica_groups={}, to_apply=add_f32",
    )
    changes = {(change.before, change.after) for change in shrink(text, dims={512: 32}).constants}
    assert changes == {(512, 32), (8191, 511)}


def test_two_for_a_mean_elsewhere_comes_before_one_for_a_contraction() -> None:
    text = module(
        f"""
    x = f32[640,96] parameter(0)
    w = f32[96,320] parameter(1)
    v = f32[320,48] parameter(2)
    y = f32[24] parameter(3)
    zero = f32[] constant(0)
    s = f32[96] reduce(x, zero), dimensions={{0}}, to_apply=add_f32
    p = f32[96,48] dot(w, v), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
    n = f32[] constant({2 / 640!r})
    ns = f32[24] broadcast(n), dimensions={{}}
    m = f32[24] multiply(y, ns)
    ROOT t = (f32[96], f32[96,48], f32[24]) tuple(s, p, m)""",
        ADD,
    )
    assert constant(shrink(text, dims={640: 80, 320: 160})) == (f32(2 / 640), f32(2 / 80), False)


def test_the_place_where_a_part_ends_follows_it() -> None:
    """Maxima with what is put after an array: one side has −∞ where the other has elements."""
    module = hloexec.parse("""HloModule m
ENTRY main {
  a = f32[40] parameter(0)
  b = f32[2] parameter(1)
  low = f32[] constant(-inf)
  zero = f32[] constant(0)
  front = f32[42] pad(a, low), padding=0_2
  back = f32[42] pad(b, zero), padding=40_0
  numbers = s32[42] iota(), iota_dimension=0
  end = s32[] constant(40)
  ends = s32[42] broadcast(end), dimensions={}
  is_back = pred[42] compare(numbers, ends), direction=GE
  lows = f32[42] broadcast(low), dimensions={}
  chosen = f32[42] select(is_back, back, lows)
  ROOT r = f32[42] maximum(front, chosen)
}
""")
    small = hloexec.shrink(module, dims={40: 10}).module
    a, b = hloexec.random_inputs(small)
    assert a.shape == (10,) and b.shape == (2,)
    np.testing.assert_array_equal(hloexec.run(small, a, b), np.concatenate([a, b]))


def test_a_mask_of_padding_stays_one() -> None:
    """Rows are padded, and laid out in blocks, in which what was padded becomes −1."""
    listed = ", ".join("{" + ",".join("1" * 17) + "}, {" + ",".join("1" * 13 + "0" * 4) + "}" for _ in range(2))
    module = hloexec.parse(f"""HloModule m
ENTRY main {{
  a = f32[2,30] parameter(0)
  zero = f32[] constant(0)
  padded = f32[2,34] pad(a, zero), padding=0_0x0_4
  blocks = f32[4,17] reshape(padded)
  mask = pred[4,17] constant({{ {listed} }})
  one = f32[] constant(-1)
  ones = f32[4,17] broadcast(one), dimensions={{}}
  ROOT r = f32[4,17] select(mask, blocks, ones)
}}
""")
    small = hloexec.shrink(module, dims={30: 14}).module
    (a,) = hloexec.random_inputs(small)
    assert a.shape == (2, 14)
    expected = np.concatenate([a, np.full((2, 4), -1, np.float32)], 1).reshape(4, 9)
    np.testing.assert_array_equal(hloexec.run(small, a), expected)
