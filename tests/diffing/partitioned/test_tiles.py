"""Tiles of whole values, and parts of sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.tools.diffing.partitioned.correspondence import Partitioning
from hloexec.tools.diffing.partitioned.layouts import tile_of
from hloexec.tools.diffing.partitioned.tiles import Tiles

BEFORE = """HloModule layer, num_partitions=4

ENTRY main {
  x = f32[8,6] parameter(0), sharding={devices=[2,1,2]<=[4] last_tile_dim_replicate}
  up = f32[6,12] parameter(1), sharding={devices=[1,2,2]<=[2,2]T(1,0) last_tile_dim_replicate}
  down = f32[12,4] parameter(2), sharding={devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}
  device = u32[] partition-id()
  number = f32[] convert(device)
  numbers = f32[8,12] broadcast(number), dimensions={}
  hidden = f32[8,12] dot(x, up), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  active = f32[8,12] add(hidden, numbers)
  ROOT out = f32[8,4] dot(active, down), lhs_contracting_dims={1}, rhs_contracting_dims={0}, sharding={devices=[2,1,2]<=[4] last_tile_dim_replicate}
}
"""

AFTER = """HloModule layer_spmd, num_partitions=4

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT total = f32[] add(a, b)
}

ENTRY main_spmd {
  x = f32[4,6] parameter(0)
  up = f32[6,6] parameter(1)
  down = f32[6,4] parameter(2)
  device = u32[] partition-id()
  number = f32[] convert(device)
  numbers = f32[4,6] broadcast(number), dimensions={}
  hidden = f32[4,6] dot(x, up), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  active = f32[4,6] add(hidden, numbers)
  part = f32[4,4] dot(active, down), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT out = f32[4,4] all-reduce(part), channel_id=1, replica_groups={{0,1},{2,3}}, use_global_device_ids=true, to_apply=sum
}
"""


def _tiles(monkeypatch: pytest.MonkeyPatch) -> Tiles:
    """Those that `diff` makes of BEFORE."""
    found: list[Tiles] = []
    tiled = Partitioning.tiled

    def keep(self: Partitioning, *arguments: Any) -> Tiles:
        found.append(tiled(self, *arguments))
        return found[-1]

    monkeypatch.setattr(Partitioning, "tiled", keep)
    hloexec.diff(hloexec.parse(BEFORE), hloexec.parse(AFTER), seed=1)
    return found[0]


def test_tiles_are_parts_of_the_whole_value_on_their_device(monkeypatch: pytest.MonkeyPatch) -> None:
    tiles = _tiles(monkeypatch)
    found = 0
    for number, (whole, (layout, sums)) in tiles.wholes.items():
        node = tiles.parts[whole.number][layout, sums]
        assert node.number == number
        if not sums:
            np.testing.assert_array_equal(node.value, whole.value[tile_of(whole.shape, layout, whole.device)])
            found += 1
    assert found > 8


def test_parts_of_sums_add_up_to_the_whole_value_of_their_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part is one device's share of a sum of numbers that all are its own: devices differ in these numbers."""
    tiles = _tiles(monkeypatch)
    found = 0
    for whole, (layout, sums) in tiles.wholes.values():
        if whole.instance.name != "out" or len(sums) != 1:
            continue
        ((_, _, division),) = sums
        part = tiles.part(whole, (layout, sums), whole.device)
        assert part is not None
        # Exact in f64: the operands have 24 bits, and there are 12 products.
        active, down = (node.value.astype(np.float64) for node in whole.instance.inputs)
        count = down.shape[0] // division.parts
        own = slice(division.places[whole.device] * count, (division.places[whole.device] + 1) * count)
        place = tile_of(whole.shape, layout, whole.device)
        expected = (active[:, own] @ down[own])[place]
        sizes = (np.abs(active[:, own]) @ np.abs(down[own]))[place]
        # Each of `count` products is rounded once, and so is each sum.
        assert (np.abs(part.value - expected) <= (count + 1) * 2.0**-24 * sizes).all()
        found += 1
    assert found >= 4
