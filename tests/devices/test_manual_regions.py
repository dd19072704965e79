"""Boundaries of manual regions: against XLA:CPU on eight devices through JAX, and against slices written out."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import hloexec
from hloexec.engine.devices.topology import Topology, device_counts
from hloexec.engine.exec.running import plan_of
from hloexec.engine.plan.memory import spread_of
from tests.devices.programs import jax
from tests.drawing import examples

EIGHT = pytest.mark.skipif(len(jax.devices()) < 8, reason="JAX was started with fewer than eight devices")
MESH = '{mesh = #sdy.mesh<["x"=2, "y"=4]>}'
A = np.arange(8 * 16, dtype=np.int32).reshape(8, 16)


def quoted(text: str) -> str:
    return '"' + text.replace('"', '\\"') + '"'


def shardy(
    line: str, dimensions: str, *, axes: str = '"x", "y"', begins: bool = True, meshes: str = MESH, more: str = ""
) -> hloexec.ir.Module:
    """One boundary of a module, after `line`, on operand a; a sharding per operand."""
    key, target = ("in_shardings", "GlobalToLocalShape") if begins else ("out_shardings", "LocalToGlobalShape")
    attributes = [
        f"xla.sdy.{key}={quoted(f'#sdy.sharding_per_value<[{dimensions}]>')}",
        f"xla.sdy.manual_axes={quoted(f'#sdy<manual_axes{{{axes}}}>')}",
        *([more] if more else []),
    ]
    return hloexec.parse(
        f"HloModule m, frontend_attributes={{xla.sdy.meshes={meshes}}}\n\nENTRY e {{\n"
        f'  {line}, custom_call_target="xla.sdy.{target}", custom_call_has_side_effect=true, '
        f"frontend_attributes={{{','.join(attributes)}}}\n}}\n"
    )


def gspmd(operand: str, before: str, result: str, after: str, *, begins: bool = True) -> hloexec.ir.Module:
    target = "SPMDFullToShardShape" if begins else "SPMDShardToFullShape"
    return hloexec.parse(
        f"HloModule m\n\nENTRY e {{\n  a = {operand} parameter(0)\n"
        f'  s = {operand} custom-call(a), custom_call_target="Sharding", sharding={before}\n'
        f'  ROOT r = {result} custom-call(s), custom_call_target="{target}", sharding={after}, '
        'backend_config="unspecified_dims=[0,1]"\n}\n'
    )


def entry(operand: str, result: str) -> str:
    return f"a = {operand} parameter(0)\n  ROOT r = {result} custom-call(a)"


# Against XLA


@st.composite
def regions(draw: Any) -> dict[str, Any]:
    """A mesh over eight devices in some order, its manual axes, and which of them divide what."""
    sizes = draw(st.sampled_from([(8,), (2, 4), (4, 2), (2, 2, 2)]))
    names = "xyz"[: len(sizes)]
    manual = draw(st.permutations(names))[: draw(st.integers(1, len(names)))]
    rank = draw(st.integers(1, 3))

    def spec() -> list[tuple[str, ...]]:
        dimensions: list[list[str]] = [[] for _ in range(rank)]
        for name in draw(st.permutations(manual)):
            place = draw(st.integers(-1, rank - 1))
            if place >= 0:
                dimensions[place].append(name)
        return [tuple(names) for names in dimensions]

    return {
        "sizes": sizes,
        "devices": draw(st.permutations(range(8))),
        "manual": manual,
        "local": draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank)),
        "in_spec": spec(),
        "out_spec": spec(),
    }


@pytest.mark.sampled(2)
@EIGHT
@pytest.mark.timeout(180)
@pytest.mark.parametrize("partitioner", ["shardy", "gspmd"])
@settings(max_examples=examples(20), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(region=regions())
def test_every_device_cuts_and_puts_together_what_it_does_on_xla(partitioner: str, region: dict[str, Any]) -> None:
    """Copies differ on purpose: each device adds a number of its own."""
    spec = jax.sharding.PartitionSpec
    names = "xyz"[: len(region["sizes"])]
    mesh = jax.sharding.Mesh(np.array(jax.devices())[list(region["devices"])].reshape(region["sizes"]), tuple(names))
    sizes = dict(zip(names, region["sizes"], strict=True))
    counts = [int(np.prod([sizes[name] for name in axes])) for axes in region["in_spec"]]
    shape = [size * count for size, count in zip(region["local"], counts, strict=True)]
    a = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    numbers = 1000 * np.arange(np.prod([sizes[name] for name in region["manual"]]), dtype=np.int32)

    def body(block: Any, number: Any) -> Any:
        return block + number[0], number

    region_map = jax.shard_map(
        body,
        mesh=mesh,
        in_specs=(spec(*region["in_spec"]), spec(tuple(region["manual"]))),
        out_specs=(spec(*region["out_spec"]), spec()),
        axis_names=set(region["manual"]),
        check_vma=False,
    )
    previous = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", partitioner == "shardy")
    try:
        lowered = jax.jit(region_map).lower(a, numbers)
        results = lowered.compile()(a, numbers)
    finally:
        jax.config.update("jax_use_shardy_partitioner", previous)
    # JAX's text numbers devices by their place in the mesh.
    outputs = hloexec.run_devices(hloexec.from_jax(lowered), [[a, numbers]], check=True)
    assert len(outputs) == 8
    by_id = {device.id: place for place, device in enumerate(mesh.devices.flat)}
    for leaf, result in enumerate(results):
        for shard in result.addressable_shards:
            ours = outputs[by_id[shard.device.id]][leaf][shard.index]
            assert_array_equal(ours, np.asarray(shard.data), strict=True)


# Against slices


@pytest.mark.parametrize(
    ("dimensions", "axes", "cut"),
    [
        ('<@mesh, [{"x"}, {"y"}]>', '"x", "y"', lambda d: A[4 * (d // 4) :, 4 * (d % 4) :][:4, :4]),
        # The first axis of a dimension is the major one.
        ('<@mesh, [{"y", "x"}, {}]>', '"x", "y"', lambda d: A[2 * (d % 4) + d // 4][None]),
        # What is not manual divides nothing.
        *(
            (dimensions, '"x"', lambda d: A[4 * (d // 4) :][:4])
            for dimensions in (
                '<@mesh, [{"x", ?}, {?}]>',
                '<@mesh, [{"x"}p1, {}p2]>',
                '<@mesh, [{"x", "y"}, {}]>',
                '<@mesh, [{"x"}, {"y"}]>',
                '<@mesh, [{"x"}, {}], replicated={"y"}>',
                '<mesh<["x"=2, "y"=4]>, [{"x"}, {}]>',
            )
        ),
        # x of 8 devices is (4, 2): "x":(2)2 is the digit worth 2 of the coordinate.
        ('<mesh<["x"=8]>, [{"x":(2)2}, {}]>', '"x"', lambda d: A[4 * (d // 2 % 2) :][:4]),
        ("{devices=[2,4]<=[8]}", "", lambda d: A[4 * (d // 4) :, 4 * (d % 4) :][:4, :4]),
        ("{devices=[2,4]<=[4,2]T(1,0)}", "", lambda d: A[4 * (d % 2) :, 4 * (d // 2) :][:4, :4]),
        ("{devices=[2,4]7,6,5,4,3,2,1,0}", "", lambda d: A[4 * ((7 - d) // 4) :, 4 * ((7 - d) % 4) :][:4, :4]),
        ("{mesh['u'=2,'v'=4], [{'u'}, {'v'}]}", "", lambda d: A[4 * (d // 4) :, 4 * (d % 4) :][:4, :4]),
    ],
)
def test_dimensions_are_cut_by_the_coordinates_of_each_device(dimensions: str, axes: str, cut: Any) -> None:
    sizes = ",".join(map(str, cut(0).shape))
    if axes:
        module = shardy(entry("s32[8,16]", f"s32[{sizes}]"), dimensions, axes=axes)
    else:
        module = gspmd("s32[8,16]", dimensions, f"s32[{sizes}]", "{manual}")
    for device, block in enumerate(hloexec.run_devices(module, [[A]])):
        assert_array_equal(block, cut(device))


def test_a_mesh_has_an_order_of_devices() -> None:
    order = [3, 1, 0, 2, 7, 6, 5, 4]
    meshes = f'{{mesh = #sdy.mesh<["x"=8], device_ids={order}>}}'
    module = shardy(entry("s32[8,16]", "s32[1,16]"), '<@mesh, [{"x"}, {}]>', axes='"x"', meshes=meshes)
    outputs = hloexec.run_devices(module, [[A]])
    for place, device in enumerate(order):
        assert_array_equal(outputs[device], A[place][None])


def test_the_end_of_a_region_joins_devices_that_differ_in_the_axes_of_the_result_only() -> None:
    module = shardy(entry("s32[2]", "s32[8]"), '<@mesh, [{"y"}]>', begins=False)
    blocks = [np.array([2 * device, 2 * device + 1], np.int32) for device in range(8)]
    outputs = hloexec.run_devices(module, [[block] for block in blocks])
    for device, whole in enumerate(outputs):
        assert_array_equal(whole, np.arange(8) + 8 * (device // 4))
    assert outputs[0] is outputs[3] and outputs[4] is outputs[7]


def test_copies_keep_what_they_have_where_no_axis_is_used() -> None:
    module = shardy(entry("s32[2]", "s32[2]"), "<@mesh, [{}]>", begins=False)
    blocks = [np.array([device, 1], np.int32) for device in range(8)]
    for block, output in zip(blocks, hloexec.run_devices(module, [[block] for block in blocks]), strict=True):
        assert_array_equal(output, block)


def test_devices_that_cut_the_same_tile_share_it() -> None:
    module = shardy(entry("s32[8,16]", "s32[8,4]"), '<@mesh, [{}, {"y"}]>')
    outputs = hloexec.run_devices(module, [[A]])
    assert len({id(output) for output in outputs}) == 4
    assert outputs[1] is outputs[5]


def test_several_arrays_cross_at_once_each_its_own_way() -> None:
    line = (
        "a = s32[8,16] parameter(0)\n  b = s32[4] parameter(1)\n"
        "  ROOT r = (s32[4,16], s32[4], s32[1]) custom-call(a, b, b)"
    )
    module = shardy(line, '<@mesh, [{"x"}, {}]>, <@mesh, [{}]>, <@mesh, [{"y"}]>')
    b = np.arange(4, dtype=np.int32)
    seen: list[int] = []

    class Observer:
        def on_instruction(self, event: Any) -> None:
            if event.instruction.name == "r":
                seen.extend(event.devices)

    for device, (rows, same, one) in enumerate(hloexec.run_devices(module, [[A, b]], observers=[Observer()])):
        x, y = divmod(device, 4)
        assert_array_equal(rows, A[4 * x : 4 * x + 4])
        assert_array_equal(same, b)
        assert_array_equal(one, b[y : y + 1])
    assert sorted(seen) == list(range(8))


def test_replicas_have_boundaries_of_their_own() -> None:
    meshes = '{mesh = #sdy.mesh<["y"=4]>}'
    module = shardy(entry("s32[2]", "s32[8]"), '<@mesh, [{"y"}]>', axes='"y"', begins=False, meshes=meshes)
    blocks = [[np.full(2, device, np.int32)] for device in range(8)]
    outputs = hloexec.run_devices(module, blocks, replicas=2, partitions=4)
    for device, whole in enumerate(outputs):
        assert_array_equal(whole, np.repeat(np.arange(4) + 4 * (device // 4), 2))


def test_a_sharding_of_the_result_says_how_to_put_together() -> None:
    module = gspmd("s32[4,4]", "{manual}", "s32[8,4]", "{devices=[2,1,4]<=[8] last_tile_dim_replicate}", begins=False)
    outputs = hloexec.run_devices(module, [[np.full((4, 4), device, np.int32)] for device in range(8)])
    for device, whole in enumerate(outputs):
        assert_array_equal(whole, np.repeat([device % 4, device % 4 + 4], 4)[:, None] * np.ones((1, 4)))


@pytest.mark.parametrize(
    "after",
    [
        "{devices=[1,1,2,4]<=[8] last_tile_dims={manual, replicated}}",
        # The partitioner may divide what is left to it: every device still sees all of that.
        "{devices=[1,4,2]<=[2,4]T(1,0) last_tile_dims={manual}}",
    ],
)
def test_partly_manual_regions_see_all_of_what_is_left_to_the_partitioner(after: str) -> None:
    before = "{devices=[2,1,4]<=[8] last_tile_dim_replicate}" if "replicated" in after else "{devices=[2,4]<=[8]}"
    for device, block in enumerate(hloexec.run_devices(gspmd("s32[8,16]", before, "s32[4,16]", after), [[A]])):
        assert_array_equal(block, A[4 * (device // 4) :][:4])
    blocks = [[A[4 * (device // 4) :][:4]] for device in range(8)]
    back = gspmd("s32[4,16]", after, "s32[8,16]", before, begins=False)
    for whole in hloexec.run_devices(back, blocks):
        assert_array_equal(whole, A)


def test_arrays_without_elements_cross() -> None:
    for begins, line in ((True, entry("s32[0,8]", "s32[0,2]")), (False, entry("s32[0,2]", "s32[0,8]"))):
        module = shardy(line, '<@mesh, [{"x"}, {"y"}]>', begins=begins)
        given = np.zeros(module.entry.parameter_shapes[0].dimensions, np.int32)
        outputs = hloexec.run_devices(module, [[given]])
        assert [output.shape for output in outputs] == [module.entry.result_shape.dimensions] * 8


def test_floats_of_another_width_are_rounded_on_the_way() -> None:
    module = shardy(entry("f32[8]", "bf16[4]"), '<@mesh, [{"x"}]>')
    outputs = hloexec.run_devices(module, [[np.arange(8, dtype=np.float32) + np.float32(2**-10)]])
    assert outputs[7].dtype.name == "bfloat16" and list(outputs[7].astype(np.float32)) == [4, 5, 6, 7]


def test_estimates_know_how_many_tiles_there_are() -> None:
    """Of y's four tiles each is held once, however many devices have it; so is each whole that they make up."""
    topology = Topology(1, 8)
    cut = plan_of(shardy(entry("s32[8,16]", "s32[8,4]"), '<@mesh, [{}, {"y"}]>'))
    assert spread_of(cut, [None], topology).counts(cut)[cut.results[0]] == 4
    joined = plan_of(shardy(entry("s32[2]", "s32[8]"), '<@mesh, [{"y"}]>', begins=False))
    assert spread_of(joined, [tuple(range(8))], topology).counts(joined)[joined.results[0]] == 2


# One device


def test_one_device_needs_all_of_them_where_arrays_are_divided() -> None:
    module = shardy(entry("s32[8,16]", "s32[4,4]"), '<@mesh, [{"x"}, {"y"}]>')
    with pytest.raises(hloexec.UnsupportedError, match="run_devices"):
        hloexec.run(module, A)


def test_one_device_crosses_boundaries_where_nothing_is_divided() -> None:
    for module in (
        shardy(entry("s32[8,16]", "s32[8,16]"), "<@mesh, [{}, {}]>"),
        gspmd("s32[8,16]", "{replicated}", "s32[8,16]", "{manual}"),
    ):
        assert_array_equal(hloexec.run(module, A), A)


# How many devices


@pytest.mark.parametrize(
    ("module", "partitions"),
    [
        (shardy(entry("s32[8]", "s32[8]"), "<@mesh, [{}]>"), 8),
        (shardy(entry("s32[8]", "s32[8]"), "<@mesh, [{}]>", meshes='{mesh = #sdy.mesh<["x"=3, "y"=4]>}'), 12),
        (gspmd("s32[8]", "{devices=[4]<=[4]}", "s32[2]", "{manual}"), 4),
        (gspmd("s32[8]", "{mesh['a'=2,'b'=3], [{}]}", "s32[8]", "{manual}"), 6),
        (gspmd("s32[8]", "{maximal device=3}", "s32[8]", "{manual}"), 4),
        (gspmd("s32[8]", "{replicated}", "s32[8]", "{manual}"), 1),
    ],
)
def test_meshes_and_shardings_say_how_many_partitions_there_are(module: Any, partitions: int) -> None:
    assert device_counts(module) == (1, partitions)


# Wrong inputs

ROW = entry("s32[8,16]", "s32[4,16]")
HALF = '<@mesh, [{"x"}, {}]>'


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (shardy(entry("s32[9,16]", "s32[4,16]"), HALF), r"s32\[9,16\] does not divide evenly into 2 × 1 tiles"),
        (shardy(entry("s32[8,16]", "s32[8,16]"), HALF), r"s32\[8,16\] in 2 × 1 tiles .* cannot become"),
        (shardy(entry("s32[8,16]", "f32[4,16]"), HALF), r"turns s32\[8,16\] into f32\[4,16\]"),
        (shardy(ROW, '<@net, [{"x"}, {}]>'), "the module has no mesh 'net'"),
        (shardy(ROW, '<@mesh, [{"x"}, {}'), "cannot be read"),
        (shardy(ROW, '<@mesh, [{"z"}, {}]>', axes='"z"'), "the mesh has no such axis"),
        (shardy(ROW, '<@mesh, [{"x"}, {"x"}]>'), "axis 'x', or a part of it, is used twice"),
        (shardy(ROW, '<@mesh, [{"x"}]>'), "1 dimensions, but the array is"),
        (shardy(ROW, f"{HALF}, {HALF}"), "1 operands, but 2 shardings"),
        (shardy(ROW, '<@mesh, [{"x"}, {}], unreduced={"y"}>'), "unreduced"),
        (shardy(ROW, HALF, more='xla.sdy.has_unreduced_axes="true"'), "unreduced"),
        (shardy(ROW, HALF, meshes="{mesh = #sdy.mesh<[], device_ids=[3]>}"), "maximal"),
        (shardy(ROW, HALF, meshes='{mesh = #sdy.mesh<["x"=2, "y"=4], device_ids=[1,2]>}'), "each of them once"),
        (shardy(ROW, '<@mesh, [{"y":(3)2}, {}]>'), "do not divide"),
        (gspmd("s32[9]", "{devices=[4]<=[4]}", "s32[2]", "{manual}"), "does not divide evenly into 4 tiles"),
        (gspmd("s32[8]", "{maximal device=3}", "s32[2]", "{manual}"), "maximal"),
        (gspmd("s32[8]", "{devices=[2,2]<=[4]}", "s32[2]", "{manual}"), "tiles of 2 dimensions, but the array has 1"),
        (gspmd("s32[8]", "{devices=[4]0,1,2,2}", "s32[2]", "{manual}"), "must name each of 0 to 3 once"),
        (
            gspmd("s32[8]", "{devices=[2,2]<=[4] last_tile_dims={unreduced}}", "s32[4]", "{manual}"),
            "subgroups that are unreduced",
        ),
        (gspmd("s32[8]", "{replicated}", "s32[4]", "{manual}"), "cannot become"),
        (gspmd("s32[8]", "{{devices=[4]<=[4]}}", "s32[2]", "{manual}"), "a tuple's"),
    ],
)
def test_what_cannot_be_crossed_is_refused_by_name_before_it_runs(module: Any, message: str) -> None:
    inputs = [np.zeros(shape.dimensions, np.int32) for shape in module.entry.parameter_shapes]
    with pytest.raises(hloexec.UnsupportedError, match=message) as caught:
        hloexec.run_devices(module, [inputs], partitions=8)
    assert "first: %r in computation e" in str(caught.value)


def test_another_number_of_partitions_is_an_input_error() -> None:
    with pytest.raises(hloexec.InputError, match="among 8 partitions, but there are 4"):
        hloexec.run_devices(shardy(ROW, HALF), [[A]], partitions=4)


def test_a_function_of_the_user_replaces_a_boundary() -> None:
    module = gspmd("s32[8]", "{devices=[4]<=[4]}", "s32[2]", "{manual}")
    hloexec.register_custom_call("SPMDFullToShardShape", lambda operand: operand[:2])
    try:
        outputs = hloexec.run_devices(module, [[np.arange(8, dtype=np.int32)]])
    finally:
        hloexec.unregister_custom_call("SPMDFullToShardShape")
    assert [list(output) for output in outputs] == [[0, 1]] * 4
