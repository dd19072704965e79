"""Layouts with tiles: their rows become shorter where what is as long as they are has to."""

import numpy as np
import pytest

import hloexec
from tests.shrinking.smallest import assert_valid, sizes_of

HEADS = """HloModule m, entry_computation_layout={(f32[400,1024]{1,0:T(8,128)})->f32[50,8,8,128]{3,1,2,0:T(8,128)}}
ENTRY main {
  a = f32[400,1024]{1,0:T(8,128)} parameter(0)
  ROOT r = f32[50,8,8,128]{3,1,2,0:T(8,128)} bitcast(a)
}
"""
"""Rows of 8 heads with 128 features each, as eight rows by eight heads."""


def by_heads(a: np.ndarray, heads: int) -> np.ndarray:
    rows, width = a.shape
    return a.reshape(rows // 8, 8, heads, width // heads)


@pytest.mark.parametrize(
    ("dims", "width", "lanes"),
    [({400: 16}, 1024, 128), ({1024: 256}, 256, 128), ({1024: 8}, 8, 4), ({1024: 32, 128: 16}, 32, 16)],
)
def test_rows_of_tiles_stay_where_they_can_and_else_become_shorter(
    dims: dict[int, int], width: int, lanes: int
) -> None:
    small = hloexec.shrink(hloexec.parse(HEADS), dims=dims).module
    assert_valid(small)
    result = small.entry.root.shape
    assert result.layout.tiles == ((8, lanes),)
    assert small.entry_computation_layout.parameters[0].layout.tiles == ((8, lanes),)
    assert sizes_of(small)["a"] == [(dims.get(400, 400), width)]
    (a,) = hloexec.random_inputs(small)
    np.testing.assert_array_equal(hloexec.run(small, a), by_heads(a, width // lanes))


def test_a_share_of_a_row_of_tiles_holds_the_rest_in_proportion() -> None:
    """A device has half a head of 128 features, so that 64 of them are its part of 1024."""
    module = hloexec.parse("""HloModule m
ENTRY main {
  a = f32[64,1024]{1,0:T(8,128)} parameter(0)
  start = s32[] parameter(1)
  zero = s32[] constant(0)
  heads = f32[8,8,8,128]{3,1,2,0:T(8,128)} bitcast(a)
  half = f32[8,8,1,64]{3,2,1,0} dynamic-slice(heads, zero, zero, zero, start), dynamic_slice_sizes={8,8,1,64}
  ROOT r = f32[8,8,64] reshape(half)
}
""")
    small = hloexec.shrink(module, max_bytes=20_000).module
    assert_valid(small)
    a, start = hloexec.random_inputs(small)
    length = small.entry.root.shape.dimensions[-1]
    ((_, width),) = sizes_of(small)["a"]
    tiles = small.entry.by_name["heads"].shape.layout.tiles
    assert tiles == ((8, 2 * length),) and length < 64
    first = min(int(start), length)
    expected = by_heads(a, width // (2 * length))[..., 0, first : first + length]
    np.testing.assert_array_equal(hloexec.run(small, a, start), expected)


def test_rows_that_are_padded_to_whole_tiles_stay_so() -> None:
    """799 rows take a hundred tiles, and one row of the last one is padding."""
    module = hloexec.parse("""HloModule m
ENTRY main {
  a = f32[799,256]{1,0:T(8,128)} parameter(0)
  ROOT r = f32[100,8,2,128]{3,1,2,0:T(8,128)} bitcast(a)
}
""")
    small = hloexec.shrink(module, dims={799: 31}).module
    assert_valid(small)
    (a,) = hloexec.random_inputs(small)
    result = np.asarray(hloexec.run(small, a))
    assert a.shape == (31, 256) and result.shape == (4, 8, 2, 128)
    np.testing.assert_array_equal(result.reshape(32, 256)[:31], a)


@pytest.mark.parametrize(("before", "after", "least"), [(17, 16, 17), (1024, 1000, 25), (256, 255, 2), (200, 199, 128)])
def test_no_more_than_padding_is_left_out_of_shorter_rows(before: int, after: int, least: int) -> None:
    module = hloexec.parse(f"""HloModule m
ENTRY main {{
  a = f32[8,{before}]{{1,0:T(8,128)}} parameter(0)
  b = f32[400,4096]{{1,0:T(8,128)}} parameter(1)
  heads = f32[50,8,32,128]{{3,1,2,0:T(8,128)}} bitcast(b)
  ROOT r = f32[8,{after}]{{1,0:T(8,128)}} bitcast(a)
}}
""")
    try:
        small = hloexec.shrink(module, max_bytes=600).module
    except hloexec.ResourceError as error:
        small = error.smallest.module
    assert_valid(small)
    ((_, lanes),) = small.entry.by_name["heads"].shape.layout.tiles
    assert least <= lanes < 2 * least
    a, b = hloexec.random_inputs(small)
    np.testing.assert_array_equal(hloexec.run(small, a, b), a[:, : a.shape[1] - (before - after)])


def test_bytes_with_padding_are_as_many_as_the_tiles_that_they_lie_in() -> None:
    """Tiles of two rows, of which one is padding, as bytes: six times two times 128 of them."""
    module = hloexec.parse("""HloModule m
ENTRY main {
  a = bf16[2,1,1024,6,128]{2,1,4,0,3:T(2,128)(2,1)} parameter(0)
  bytes = s8[6291456]{0:T(1024)(128)(4,1)} bitcast(a)
  ROOT r = bf16[2,1,1024,6,128]{2,1,4,0,3:T(2,128)(2,1)} bitcast(bytes)
}
""")
    small = hloexec.shrink(module, max_bytes=200_000).module
    assert_valid(small)
    (a,) = hloexec.random_inputs(small)
    assert a.nbytes < 100_000
    assert small.entry.by_name["bytes"].shape.dimensions == (2 * a.nbytes,)
    np.testing.assert_array_equal(hloexec.run(small, a), a)


def test_rows_that_are_padded_lie_alike_in_tiles_of_other_heights() -> None:
    module = hloexec.parse("""HloModule m
ENTRY main {
  a = f32[32768,1,3]{2,1,0:T(1,128)} parameter(0)
  ROOT r = f32[32768,3]{1,0:T(8,128)} bitcast(a)
}
""")
    small = hloexec.shrink(module, dims={32768: 64}).module
    assert_valid(small)
    (a,) = hloexec.random_inputs(small)
    assert sizes_of(small)["a"] == [(64, 1, 3)]
    np.testing.assert_array_equal(hloexec.run(small, a), a.reshape(64, 3))


@pytest.mark.parametrize(
    ("line", "before", "dims", "after"),
    [
        ("f32[8,31]{1,0:T(8,128)} bitcast(a)", "f32[8,32]{1,0:T(8,128)}", {32: 4}, (8, 4)),
        ("f32[8,2,32]{2,0,1:T(8,128)} bitcast(a)", "f32[8,2,33]{2,0,1:T(8,128)}", {33: 5}, (8, 2, 5)),
        ("s8[16384]{0:T(1024)(128)(4,1)} bitcast(a)", "f8e4m3fn[32,512]{1,0:T(32,128)(4,1)}", {32: 4, 512: 4}, (4, 4)),
    ],
)
def test_a_bitcast_that_leaves_out_padding_or_flattens_tiles_shrinks(
    line: str, before: str, dims: dict[int, int], after: tuple[int, ...]
) -> None:
    module = hloexec.parse(f"HloModule m\nENTRY main {{\n  a = {before} parameter(0)\n  ROOT r = {line}\n}}\n")
    small = hloexec.shrink(module, dims=dims).module
    assert_valid(small)
    assert sizes_of(small)["a"] == [after]
    (a,) = hloexec.random_inputs(small)
    result = hloexec.run(small, a)
    expected = a[tuple(map(slice, result.shape))] if result.ndim == a.ndim else a.reshape(-1).view(np.int8)
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize(
    ("line", "before", "dims", "after"),
    [
        ("s8[65536]{0:T(1024)(128)(4,1)} bitcast(a)", "bf16[2,30,512]{2,1,0:T(8,128)(2,1)}", {30: 6}, (2, 6, 512)),
        ("s8[49152]{0:T(1024)(128)(4,1)} bitcast(a)", "f32[4,24,8]{2,1,0:T(8,128)}", {4: 2, 24: 8}, (2, 8, 8)),
        ("f32[2,40,4]{2,1,0:T(8,128)} bitcast(a)", "f32[1,2,96,40]{2,3,1,0:T(8,128)}", {96: 8}, (1, 2, 8, 40)),
        ("f32[16,63]{1,0:T(8,128)} bitcast(a)", "f32[16,1,64]{2,1,0:T(1,128)}", {16: 8, 64: 5}, (8, 1, 5)),
        ("bf16[1,3072]{1,0:T(2,128)(2,1)} bitcast(a)", "bf16[1,24,128]{2,0,1:T(2,128)(2,1)}", {24: 3}, (1, 3, 128)),
    ],
)
def test_a_bitcast_keeps_elements_beside_the_padding_of_tiles(
    line: str, before: str, dims: dict[int, int], after: tuple[int, ...]
) -> None:
    module = hloexec.parse(f"HloModule m\nENTRY main {{\n  a = {before} parameter(0)\n  ROOT r = {line}\n}}\n")
    small = hloexec.shrink(module, dims=dims).module
    assert_valid(small)
    assert sizes_of(small)["a"] == [after]
    (a,) = hloexec.random_inputs(small)
    result = hloexec.run(small, a)
    if result.dtype == np.int8:
        # Whatever order they lie in, the bytes are those of the elements, and zeros.
        padding = result.size - a.nbytes
        assert padding > 0
        bits = np.concatenate([a.reshape(-1).view(np.int8), np.zeros(padding, np.int8)])
        np.testing.assert_array_equal(np.sort(result), np.sort(bits))
    else:
        rows = a[0].transpose(0, 2, 1)[..., :4] if a.ndim == 4 else a.reshape(len(result), -1)[:, : result.shape[1]]
        np.testing.assert_array_equal(result, rows)
