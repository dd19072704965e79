"""Whole arrays in and out of partitioned modules: what XLA's partitioner does, and slices written out."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import hloexec
from tests.devices.programs import PROGRAMS, jax
from tests.drawing import examples

conformance = pytest.importorskip("conformance.xla")

EIGHT = pytest.mark.skipif(len(jax.devices()) < 8, reason="JAX was started with fewer than eight devices")
A = np.arange(8 * 16, dtype=np.float32).reshape(8, 16)


def identity(shape: str, sharding: str, header: str = "num_partitions=8", entry: str = "main_spmd") -> Any:
    """A module that returns its parameter, which has a sharding."""
    return hloexec.parse(
        f"HloModule m, {header}\n\nENTRY {entry} {{\n  a = {shape} parameter(0), sharding={sharding}\n"
        f"  ROOT r = {shape} copy(a)\n}}\n"
    )


# What XLA does


@pytest.mark.slow_cases("expert_parallel-gspmd", "data_parallel-shardy", "uneven-gspmd")
@pytest.mark.sampled(3)
@EIGHT
@pytest.mark.timeout(180)
@pytest.mark.parametrize("partitioner", ["shardy", "gspmd"])
@pytest.mark.parametrize("name", "tensor_parallel expert_parallel partly_manual data_parallel uneven".split())
def test_shards_are_those_of_jax_and_make_up_its_result(name: str, partitioner: str) -> None:
    function, arguments, shardings = PROGRAMS[name]()
    previous = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", partitioner == "shardy")
    try:
        lowered = jax.jit(function, in_shardings=shardings, keep_unused=True).lower(*arguments)
        compiled = lowered.compile()
    finally:
        jax.config.update("jax_use_shardy_partitioner", previous)
    before, after = hloexec.from_jax(lowered), hloexec.from_jax(compiled)
    placed = jax.device_put(arguments, shardings)
    results = jax.tree.leaves(compiled(*placed))

    shards = hloexec.shard_inputs(after, [np.asarray(leaf) for leaf in jax.tree.leaves(arguments)], before=before)
    for number, leaf in enumerate(jax.tree.leaves(placed)):
        for shard in leaf.addressable_shards:
            assert_array_equal(shards[shard.device.id][number], np.asarray(shard.data), strict=True)

    columns = [{shard.device.id: np.asarray(shard.data) for shard in leaf.addressable_shards} for leaf in results]
    rows = [tuple(column[device] for column in columns) for device in range(8)]
    # XLA chose how to divide the result, and JAX is the only one to know.
    texts = [str(leaf.sharding._to_xla_hlo_sharding(leaf.ndim)) for leaf in results]
    is_tuple = len(results) > 1
    whole = hloexec.unshard_outputs(
        after,
        rows if is_tuple else [row[0] for row in rows],
        sharding=f"{{{', '.join(texts)}}}" if is_tuple else texts[0],
        shape=before.entry.result_shape,
    )
    for got, wanted in zip(whole if is_tuple else [whole], results, strict=True):
        assert_array_equal(got, np.asarray(wanted), strict=True)


UNEVEN = """HloModule m, num_partitions=4

add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT s = f32[] add(x, y)
}

ENTRY main {
  a = f32[6,5] parameter(0), sharding={devices=[4,1]<=[4]}
  b = f32[3] parameter(1), sharding={devices=[2,2]<=[4] last_tile_dim_replicate}
  zero = f32[] constant(0)
  sums = f32[5] reduce(a, zero), dimensions={0}, to_apply=add
  twice = f32[6,5] add(a, a), sharding={devices=[1,4]<=[4]}
  c = f32[3] multiply(b, b), sharding={devices=[4]<=[4]}
  ROOT r = (f32[5], f32[6,5], f32[3]) tuple(sums, twice, c), sharding={{replicated}, {devices=[1,4]<=[4]}, {devices=[4]<=[4]}}
}
"""


def test_dimensions_that_do_not_divide_evenly_are_padded_as_xla_pads_them() -> None:
    """XLA partitions the module; it masks the padding itself, so that sums are right on any."""
    a = np.arange(1, 31, dtype=np.float32).reshape(6, 5)
    b = np.array([2, 3, 5], np.float32)
    compiled = conformance.compile_hlo(UNEVEN, 4, spmd=True)
    before, after = hloexec.parse(UNEVEN), hloexec.parse(compiled.optimized_text)
    assert [str(shape) for shape in after.entry.parameter_shapes] == ["f32[2,5]", "f32[2]"]
    shards = hloexec.shard_inputs(after, [a, b], before=before)
    outputs = hloexec.run_devices(after, shards)
    for ours, theirs in zip(outputs, compiled.run_devices(shards), strict=True):
        for got, wanted in zip(ours, theirs, strict=True):
            assert_array_equal(got, wanted, strict=True)
    sums, twice, c = hloexec.unshard_outputs(after, outputs, before=before)
    assert_array_equal(sums, a.sum(0), strict=True)
    assert_array_equal(twice, 2 * a, strict=True)
    assert_array_equal(c, b * b, strict=True)
    # Nothing but the module after partitioning: the padding shows.
    sharding = "{{replicated}, {devices=[1,4]<=[4]}, {devices=[4]<=[4]}}"
    assert [part.shape for part in hloexec.unshard_outputs(after, outputs, sharding=sharding)] == [(5,), (6, 8), (4,)]
    assert hloexec.unshard_outputs(after, outputs, sharding=sharding, shape=str(before.entry.result_shape))[
        1
    ].shape == (6, 5)


def test_the_module_before_partitioning_has_the_shardings_that_are_missing() -> None:
    after = "HloModule m, num_partitions=2\n\nENTRY e_spmd {{\n  p = f32[2,4] parameter(0){}\n  ROOT r = f32[2,4] negate(p)\n}}\n"
    before = (
        "HloModule m, num_partitions=2\n\nENTRY e {\n  p = f32[4,4] parameter(0), sharding={mesh['x'=2], [{'x'}, {}]}\n"
        "  ROOT r = f32[4,4] negate(p), sharding={mesh['x'=2], [{'x'}, {}]}\n}\n"
    )
    a = np.arange(16, dtype=np.float32).reshape(4, 4)
    bare, whole = hloexec.parse(after.format("")), hloexec.parse(before)
    for shards, wanted in zip(hloexec.shard_inputs(bare, [a], before=whole), (a[:2], a[2:]), strict=True):
        assert_array_equal(shards[0], wanted)
    # A sharding of the parameter's own comes first.
    own = hloexec.parse(after.format(", sharding={devices=[2,1]1,0}"))
    for shards, wanted in zip(hloexec.shard_inputs(own, [a], before=whole), (a[2:], a[:2]), strict=True):
        assert_array_equal(shards[0], wanted)
    # Where the parameter has none in either, it is that of the Sharding that takes it.
    asked = hloexec.parse(
        "HloModule m, num_partitions=2\n\nENTRY e {\n  p = f32[4,4] parameter(0)\n"
        '  s = f32[4,4] custom-call(p), custom_call_target="Sharding", sharding={devices=[2,1]1,0}\n'
        "  ROOT r = f32[4,4] negate(s)\n}\n"
    )
    for shards, wanted in zip(hloexec.shard_inputs(bare, [a], before=asked), (a[2:], a[:2]), strict=True):
        assert_array_equal(shards[0], wanted)
    with pytest.raises(hloexec.InputError, match=r"nothing says how the array \[4, 4\] that was given is divided"):
        hloexec.shard_inputs(bare, [a])
    with pytest.raises(hloexec.InputError, match="1 parameters, but 0 before"):
        hloexec.shard_inputs(
            bare, [a], before=hloexec.parse("HloModule m\n\nENTRY e {\n  ROOT c = f32[] constant(1)\n}\n")
        )


_CALLED = """HloModule m, num_partitions=4, allow_spmd_sharding_propagation_to_parameters={true,true}

ENTRY main {
  a = f32[8,5] parameter(0)
  b = f32[6] parameter(1)
  one = f32[8,5] custom-call(a), custom_call_target="Sharding", sharding={devices=[4,1]2,0,3,1}
  two = f32[8,5] custom-call(a), custom_call_target="Sharding", sharding={devices=[4,1]2,0,3,1}
  three = f32[6] custom-call(b), custom_call_target="Sharding", sharding={devices=[2,2]<=[4] last_tile_dim_replicate}
  c = f32[8,5] add(one, two)
  ROOT r = (f32[8,5], f32[6]) tuple(c, three), sharding={{devices=[4,1]2,0,3,1}, {replicated}}
}
"""


def test_parameters_are_divided_as_the_calls_of_sharding_on_them_say() -> None:
    """XLA takes these back to parameters that it may divide as it likes."""
    before, compiled = hloexec.parse(_CALLED), conformance.compile_hlo(_CALLED, 4, spmd=True)
    after = hloexec.parse(re.sub(r"(parameter\(\d\)), sharding=\{[^}]*\}", r"\1", compiled.optimized_text))
    assert [(str(p.shape), p.sharding) for p in after.entry.parameters] == [("f32[2,5]", None), ("f32[3]", None)]
    a, b = np.arange(40, dtype=np.float32).reshape(8, 5), np.arange(6, dtype=np.float32)
    shards = hloexec.shard_inputs(after, [a, b], before=before)
    whole = hloexec.unshard_outputs(after, compiled.run_devices(shards), before=before)
    assert_array_equal(whole[0], 2 * a, strict=True)
    assert_array_equal(whole[1], b, strict=True)
    # Where calls disagree, nothing says which of them XLA has taken.
    unclear = hloexec.parse(_CALLED.replace("[4,1]2,0,3,1", "[4,1]0,1,2,3", 1))
    with pytest.raises(hloexec.InputError, match=r"parameter 0 .* nothing says how .*\[8, 5\].* is divided"):
        hloexec.shard_inputs(after, [a, b], before=unclear)


# Slices


@st.composite
def tilings(draw: Any) -> tuple[str, tuple[int, ...], list[tuple[int, ...]]]:
    """A tile sharding over eight devices as text, its counts, and each device's tile."""
    counts = draw(st.sampled_from([(8,), (2, 4), (4, 2), (2, 2), (1, 8), (4, 1), (2, 2, 2), (1, 1), (2, 1, 2)]))
    copies = 8 // int(np.prod(counts))
    order = draw(st.permutations(range(8)))
    sizes = (*counts, copies) if copies > 1 else counts
    text = f"{{devices=[{','.join(map(str, sizes))}]{','.join(map(str, order))}"
    tiles: list[tuple[int, ...]] = [()] * 8
    for position, device in enumerate(order):
        tiles[device] = tuple(int(n) for n in np.unravel_index(position // copies, counts))
    return text + (" last_tile_dim_replicate}" if copies > 1 else "}"), counts, tiles


@settings(max_examples=examples(60), deadline=None)
@given(tiling=tilings(), data=st.data())
def test_each_device_has_its_tile_and_the_tiles_make_up_the_array(tiling: Any, data: Any) -> None:
    text, counts, tiles = tiling
    shape = data.draw(st.tuples(*(st.integers(2, 9) for _ in counts)))
    tile = [-(-size // count) for size, count in zip(shape, counts, strict=True)]
    whole = np.arange(1, np.prod(shape) + 1, dtype=np.int32).reshape(shape)
    padded = np.zeros([size * count for size, count in zip(tile, counts, strict=True)], np.int32)
    padded[tuple(map(slice, shape))] = whole
    module = identity(f"s32[{','.join(map(str, tile))}]", text)
    inputs = hloexec.shard_inputs(module, [whole])
    for (shard,), place in zip(inputs, tiles, strict=True):
        index = tuple(slice(n * size, (n + 1) * size) for n, size in zip(place, tile, strict=True))
        assert_array_equal(shard, padded[index], strict=True)
    outputs = hloexec.run_devices(module, inputs)
    for extents, expected in ((None, padded), (f"s32[{','.join(map(str, shape))}]", whole)):
        result = hloexec.unshard_outputs(module, outputs, sharding=text, shape=extents)
        assert_array_equal(result, expected, strict=True)


def test_devices_with_the_same_shard_get_the_same_array() -> None:
    inputs = hloexec.shard_inputs(identity("f32[4,16]", "{devices=[2,1,4]<=[8] last_tile_dim_replicate}"), [A])
    assert inputs[0][0] is inputs[3][0] and inputs[4][0] is inputs[7][0]
    assert_array_equal(inputs[4][0], A[4:])


def test_a_sharding_may_name_the_axes_of_a_mesh() -> None:
    module = identity("f32[4,4]", "{mesh['x'=2,'y'=4], [{'x'}, {'y'}]}")
    inputs = hloexec.shard_inputs(module, [A])
    assert_array_equal(inputs[6][0], A[4:, 8:12])
    outputs = [values[0] for values in inputs]
    whole = hloexec.unshard_outputs(module, outputs, sharding="{mesh['x'=2,'y'=4], [{'x'}, {'y'}]}")
    assert_array_equal(whole, A)


@pytest.mark.parametrize("sharding", ["{replicated}", "{maximal device=3}", "{devices=[2,4]<=[8]}", "{manual}"])
def test_what_has_the_parameters_shape_is_given_whole(sharding: str) -> None:
    inputs = hloexec.shard_inputs(identity("f32[8,16]", sharding), [A])
    assert len(inputs) == 8 and all(values[0] is A for values in inputs)


def test_replicas_get_the_same_shards() -> None:
    module = identity("f32[2,16]", "{devices=[4,1]<=[4]}", "replica_count=2, num_partitions=4")
    inputs = hloexec.shard_inputs(module, [A])
    assert len(inputs) == 8
    for device in range(8):
        assert inputs[device][0] is inputs[device % 4][0]
    assert_array_equal(inputs[7][0], A[6:])
    outputs = hloexec.run_devices(module, inputs)
    assert_array_equal(hloexec.unshard_outputs(module, outputs, sharding="{devices=[4,1]<=[4]}"), A)


def test_tuples_have_a_sharding_per_leaf() -> None:
    shape = "(f32[4,16], (f32[8,16], s32[]))"
    module = identity(shape, "{{devices=[2,1,4]<=[8] last_tile_dim_replicate}, {replicated}, {replicated}}")
    count = np.array(3, np.int32)
    inputs = hloexec.shard_inputs(module, [(A, (A, count))])
    rows, (same, number) = inputs[5][0]
    assert_array_equal(rows, A[4:])
    assert same is A and number is count
    outputs = [values[0] for values in inputs]
    sharding = module.entry.parameters[0].sharding
    first, (second, third) = hloexec.unshard_outputs(module, outputs, sharding=sharding)
    for got, wanted in ((first, A), (second, A), (third, count)):
        assert_array_equal(got, wanted, strict=True)


def test_a_maximal_result_is_that_of_its_device() -> None:
    module = identity("f32[2]", "{replicated}")
    outputs = [np.full(2, device, np.float32) for device in range(8)]
    assert list(hloexec.unshard_outputs(module, outputs, sharding="{maximal device=3}")) == [3, 3]


def test_modules_that_are_not_partitioned_yet_give_the_whole_everywhere() -> None:
    text = "HloModule m, num_partitions=8\n\nENTRY main {\n  a = f32[8,16] parameter(0)\n  ROOT r = f32[8,16] copy(a), "
    module = hloexec.parse(text + "sharding={devices=[2,4]<=[8]}\n}\n")
    outputs = hloexec.run_devices(module, hloexec.shard_inputs(module, [A]))
    assert_array_equal(hloexec.unshard_outputs(module, outputs), A)


def test_the_root_of_a_partitioned_module_may_say_how_its_result_is_divided() -> None:
    text = (
        "HloModule m, num_partitions=8\n\nENTRY main_spmd {\n  a = f32[4,4] parameter(0)\n  ROOT r = f32[4,4] copy(a), "
    )
    module = hloexec.parse(text + "sharding={devices=[2,4]<=[8]}\n}\n")
    shards = [A[4 * (device // 4) :][:4, 4 * (device % 4) :][:, :4] for device in range(8)]
    assert_array_equal(hloexec.unshard_outputs(module, shards), A)


def test_equal_results_need_no_sharding() -> None:
    module = identity("f32[2]", "{replicated}")
    outputs = [np.array([1, np.nan], np.float32) for _ in range(8)]
    assert_array_equal(hloexec.unshard_outputs(module, outputs), outputs[0])


# Wrong inputs


@pytest.mark.parametrize(
    ("shape", "sharding", "given", "message"),
    [
        ("f32[4,16]", "{devices=[2,4]<=[8]}", [A], r"shards of the array \[8, 16\] .* would be \[4, 4\]"),
        ("f32[4,16]", "{devices=[4,1]<=[4]}", [A], "divided among 4 partitions, but there are 8"),
        ("f32[4,16]", "{devices=[8]<=[8]}", [A], "tiles of 1 dimensions, but the array has 2"),
        ("f32[4,16]", "{maximal device=1}", [A], "maximal"),
        ("f32[4,16]", "{mesh['x'=2,'y'=4], [{'x'}, {}], unreduced={'y'}}", [A], "unreduced"),
        ("f32[4,16]", "{devices=[2,1,4]<=[8] last_tile_dim_replicate}", [], "takes 1 inputs"),
        ("(f32[4,16])", "{{devices=[2,1,4]<=[8] last_tile_dim_replicate}}", [A], "has no tuple of 1"),
        ("(f32[4,16], f32[])", "{{replicated}}", [(A, A)], "has 2 arrays, but 1 shardings"),
    ],
)
def test_inputs_that_cannot_be_cut_are_refused(shape: str, sharding: str, given: Any, message: str) -> None:
    with pytest.raises(hloexec.InputError, match=message):
        hloexec.shard_inputs(identity(shape, sharding), given)


SHARDY = """HloModule m, frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["d"=4, "t"=2]>}}
ENTRY main {
  x = f32[8,16] parameter(0)%s
  begin = (f32[2,16]) custom-call(x), custom_call_target="xla.sdy.GlobalToLocalShape", frontend_attributes={xla.sdy.in_shardings="#sdy.sharding_per_value<[<@mesh, [{\\"d\\"}, {}]>]>",xla.sdy.manual_axes="#sdy<manual_axes{\\"d\\", \\"t\\"}>"}
  inside = f32[2,16] get-tuple-element(begin), index=0
  end = (f32[8,16]) custom-call(inside), custom_call_target="xla.sdy.LocalToGlobalShape", frontend_attributes={xla.sdy.out_shardings="#sdy.sharding_per_value<[<@mesh, [{\\"d\\"}, {}]>]>",xla.sdy.manual_axes="#sdy<manual_axes{\\"d\\", \\"t\\"}>"}
  mapped = f32[8,16] get-tuple-element(end), index=0
  asked = f32[8,16] custom-call(x), custom_call_target="xla.sdy.FuncResultSharding", frontend_attributes={xla.sdy.sharding="#sdy.sharding_per_value<[<@mesh, [{}, {\\"t\\", \\"d\\"}]>]>"}
  ROOT r = (f32[8,16], f32[8,16]) tuple(mapped, asked)
}
"""
"""As JAX lowers a shard_map and out_shardings: shardings are in frontend attributes alone."""


@pytest.mark.parametrize(
    ("attribute", "columns"),
    [("", 1), (', frontend_attributes={xla.sdy.sharding="#sdy.sharding<@mesh, [{}, {\\"t\\"}]>"}', 2)],
)
def test_shardings_of_shardy_divide_inputs_and_put_results_together(attribute: str, columns: int) -> None:
    before = hloexec.parse(SHARDY % attribute)
    rows = 4 if columns == 1 else 1
    tile = f"f32[{8 // rows},{16 // columns}]"
    after = hloexec.parse(
        f"HloModule m, num_partitions=8\nENTRY main_spmd {{\n  p = {tile} parameter(0)\n"
        "  a = f32[2,16] constant({...})\n  b = f32[8,2] constant({...})\n"
        "  ROOT r = (f32[2,16], f32[8,2]) tuple(a, b)\n}\n"
    )
    for device, (shard,) in enumerate(hloexec.shard_inputs(after, [A], before=before)):
        d, t = divmod(device, 2)
        assert_array_equal(shard, A[d * 2 : d * 2 + 2] if columns == 1 else A[:, t * 8 : t * 8 + 8])
    outputs = []
    for d, t in np.ndindex(4, 2):
        place = 2 * (t * 4 + d)
        outputs.append((A[d * 2 : d * 2 + 2], A[:, place : place + 2]))
    for found in hloexec.unshard_outputs(after, outputs, before=before):
        assert_array_equal(found, A)


def test_a_sharding_of_shardy_that_cannot_be_read_is_named() -> None:
    before = hloexec.parse(SHARDY.replace("<@mesh, [{}", "<@grid, [{}") % "")
    after = hloexec.parse(
        "HloModule m, num_partitions=8\nENTRY main_spmd {\n  a = f32[8,16] parameter(0)\n"
        "  ROOT r = (f32[8,16], f32[8,16]) tuple(a, a)\n}\n"
    )
    with pytest.raises(
        hloexec.InputError, match=r"the sharding of %asked cannot be read: the module has no mesh 'grid'"
    ):
        hloexec.unshard_outputs(after, [(A, A)] * 8, before=before)


ROWS = [np.full((1, 16), device, np.float32) for device in range(8)]
BY_ROW = "{devices=[8,1]<=[8]}"


@pytest.mark.parametrize(
    ("outputs", "options", "message"),
    [
        (ROWS, {}, "nothing says how the result is divided .* devices 0 and 1 hold different values"),
        (ROWS[:7], {}, "one output per device, 8, but 7"),
        (ROWS, {"sharding": "{replicated}"}, r"shard \[0, 0\] of the result has copies, but devices 0 and 1"),
        (ROWS, {"sharding": BY_ROW, "shape": "f32[9,16]"}, r"do not make up \[9, 16\]"),
        (ROWS, {"sharding": BY_ROW, "shape": "f32[8]"}, r"should be f32\[8\] as a whole"),
        (ROWS, {"sharding": BY_ROW, "shape": "(f32[8,16], f32[])"}, "should be .* but on each device it is"),
        (ROWS, {"sharding": "{devices=[4,1]<=[4]}"}, "among 4 partitions"),
        (ROWS, {"sharding": "{maximal device=9}"}, "partition 9"),
        (ROWS, {"shape": "f32[8,16]"}, "nothing says how it is divided"),
        (ROWS, {"sharding": "{{replicated}, {replicated}}"}, "has 1 arrays, but 2 shardings"),
        ([A] * 8, {"sharding": BY_ROW}, r"is not f32\[1,16\]"),
        ([(row,) for row in ROWS], {"sharding": BY_ROW}, "an array there that is not"),
    ],
)
def test_outputs_that_make_up_no_result_are_refused(outputs: Any, options: Any, message: str) -> None:
    with pytest.raises(hloexec.InputError, match=message):
        hloexec.unshard_outputs(identity("f32[1,16]", BY_ROW), outputs, **options)


@pytest.mark.parametrize("options", [{"sharding": "{devices=[8,1]<=[8]"}, {"shape": "f32[8,16] x"}])
def test_text_that_is_no_sharding_or_shape_is_a_parse_error(options: Any) -> None:
    with pytest.raises(hloexec.ParseError):
        hloexec.unshard_outputs(identity("f32[1,16]", BY_ROW), ROWS, **options)
