"""Sizes of values from shape and layout: the examples of XLA's documentation, and what real dumps say."""

from __future__ import annotations

import pytest

import hloexec
from hloexec.analysis.buffers.sizes import PLAIN, TPU, byte_size, memory_space, target_of
from hloexec.core.ir import Shape


def shape_of(text: str) -> Shape:
    return hloexec.parse(f"HloModule m\nENTRY e {{ ROOT p = {text} parameter(0) }}").entry.root.shape


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("f32[3,5]{1,0}", 60),
        ("f32[3,5]", 60),
        ("pred[7]{0}", 7),
        ("c128[2]{0}", 32),
        ("f32[]", 4),
        ("f32[0,5]{1,0}", 0),
        ("token[]", 0),
        # "Tiled layout": f32[3,5] in tiles of (2,2) is padded to [4,6].
        ("f32[3,5]{1,0:T(2,2)}", 4 * 6 * 4),
        # The minor dimension comes first in the layout: f32[3,5]{0,1} is stored as [5,3], padded to [6,4].
        ("f32[3,5]{0,1:T(2,2)}", 6 * 4 * 4),
        ("f32[3,5]{0,1:T(3,2)}", 6 * 4 * 4),
        # The same page: [2,7,8,11,10] with (*,*,2,*,3) is [112,110] in tiles of (2,3), 56 by 37 of them.
        ("f32[2,7,8,11,10]{4,3,2,1,0:T(*,*,2,*,3)}", 56 * 37 * 6 * 4),
        # A scalar is padded to a whole tile too.
        ("f32[]{:T(128)}", 512),
        ("bf16[5,100]{1,0:T(8,128)(2,1)}", 8 * 128 * 2),
        ("bf16[3584,4096]{1,0:T(8,128)(2,1)S(1)}", 29_360_128),
        # Two elements of four bits per byte, or one where the layout does not pack them (XLA:CPU's dumps).
        ("s4[7,5]{1,0:E(4)}", 18),
        ("s4[7,5]{1,0}", 35),
        ("f32[5]{0:L(8)}", 32),
        ("f32[5]{0:M(64)}", 84),
        # A dynamic array is followed by four bytes per dimension.
        ("f32[<=64]{0}", 260),
    ],
)
def test_the_size_of_an_array_counts_padding_and_packing(text: str, size: int) -> None:
    assert byte_size(shape_of(text), PLAIN) == size


@pytest.mark.parametrize(("elements", "plain", "tpu"), [(1, 8, 32), (3, 24, 32), (15, 120, 64), (17, 136, 96)])
def test_a_tuple_takes_its_table_of_pointers(elements: int, plain: int, tpu: int) -> None:
    shape = shape_of(f"({', '.join(['f32[9]'] * elements)})")
    assert (byte_size(shape, PLAIN), byte_size(shape, TPU)) == (plain, tpu)


def test_the_color_of_a_value_is_its_memory_space() -> None:
    assert memory_space(shape_of("f32[8]{0:S(5)}")) == 5
    assert memory_space(shape_of("f32[8]")) == memory_space(shape_of("(f32[8]{0:S(5)})")) == 0


def test_tiles_of_two_dimensions_mean_a_tpu() -> None:
    module = "HloModule m\nENTRY e {{ ROOT p = f32[8,128]{{1,0{tile}}} parameter(0) }}"
    assert target_of(hloexec.parse(module.format(tile=":T(8,128)"))) is TPU
    assert target_of(hloexec.parse(module.format(tile=""))) is PLAIN
