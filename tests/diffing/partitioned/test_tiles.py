"""Which part of operands a part of a result needs; tiles of whole values, and parts of sums."""

from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.core.ir import Sharding
from hloexec.engine.devices.topology import Topology
from hloexec.engine.options import Options
from hloexec.language.text.attributes.shardings import parse_sharding
from hloexec.tools.diffing.graph import Graph
from hloexec.tools.diffing.partitioned.layouts import (
    Dependence,
    Division,
    divisions_of,
    layout_of,
    layouts,
    tile_of,
    tile_shape,
)
from hloexec.tools.diffing.partitioned.tiles import Partitioning, Tiles
from hloexec.tools.diffing.replaying.evaluation import Evaluator
from hloexec.tools.diffing.running import GraphRecorder
from tests.diffing.texts import diff_texts

_ROWS, _COLUMNS = Division(2, (0, 0, 1, 1)), Division(2, (0, 1, 0, 1))
_FOUR = Topology(1, 4)

_MODULE = """HloModule m, num_partitions=4

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT total = f32[] add(a, b)
}

ENTRY e {
  x = f32[4,6] parameter(0), sharding={devices=[2,2]<=[4]}
  y = f32[6,8] parameter(1)
  product = f32[4,8] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  flat = f32[32] reshape(product)
  zero = f32[] constant(0)
  totals = f32[4] reduce(product, zero), dimensions={1}, to_apply=sum
  ROOT result = (f32[4], f32[32]) tuple(totals, flat)
}
"""


def test_a_sharding_is_a_division_of_each_dimension() -> None:
    sharding = parse_sharding("{devices=[2,1,2]<=[4] last_tile_dim_replicate}")
    assert isinstance(sharding, Sharding)
    layout = layout_of(sharding, 2, _FOUR)
    assert layout == (_ROWS, None)
    assert tile_shape((8, 3), (_ROWS, None)) == (4, 3)
    assert tile_shape((7, 3), (_ROWS, None)) is None
    assert [tile_of((8, 6), (_ROWS, _COLUMNS), device)[1] for device in range(2)] == [slice(0, 3), slice(3, 6)]


def test_tiles_are_cut_along_independent_divisions_alone() -> None:
    found = layouts((4, 4), [_ROWS, _COLUMNS], {4})
    assert set(found) == {(_ROWS, _COLUMNS), (_COLUMNS, _ROWS)}
    assert (_ROWS, None) in layouts((4, 4), [_ROWS, _COLUMNS], {8})


def test_divisions_are_those_of_shardings_and_two_of_them_at_once() -> None:
    module = hloexec.parse(_MODULE)
    found = divisions_of(module, module, _FOUR)
    assert set(found) == {_ROWS, _COLUMNS, Division(4, (0, 1, 2, 3)), Division(4, (0, 2, 1, 3))}


def _recorded() -> tuple[Graph, Evaluator]:
    module = hloexec.parse(_MODULE)
    random = np.random.default_rng(0)
    inputs = [[random.standard_normal(shape).astype(np.float32) for shape in ((4, 6), (6, 8))]]
    recorder = GraphRecorder(module)
    outputs = hloexec.run_devices(module, inputs, observers=[recorder], partitions=1)
    return recorder.finish(outputs), Evaluator(module, Topology(1, 1), Options(verify=False))


def _dependence(name: str) -> Dependence:
    graph, evaluator = _recorded()
    (instance,) = (entry for entry in graph.instances if entry.instruction.name == name)
    return Dependence(instance, evaluator)


def test_what_a_tile_of_a_product_needs_is_found_by_trial() -> None:
    product = _dependence("product")
    assert product.suffices(0, 0, 0, 2) and product.suffices(1, 1, 1, 4)
    assert not product.suffices(0, 1, 0, 2) and not product.suffices(1, 0, 1, 2)
    assert product.sum_over(0, 1, 2) is not None and product.partner(0, 1, 2) == [(1, 0)]


def test_parts_of_a_reshape_and_of_a_reduction_are_found_by_trial() -> None:
    flat, totals = _dependence("flat"), _dependence("totals")
    assert flat.suffices(0, 0, 0, 4) and not flat.suffices(0, 1, 0, 2)
    assert totals.suffices(0, 0, 0, 2) and totals.sum_over(0, 1, 8) is not None


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
    diff_texts(BEFORE, AFTER, seed=1)
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
