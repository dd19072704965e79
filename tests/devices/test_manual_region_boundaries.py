"""Boundaries of manual regions: random meshes, axes and divisions, in frontend attributes, in shardings, and GSPMD's.

Every device holds an array of its own, so that it shows from whom each element comes. At the beginning of a region a
device keeps the block at its place along the manual axes that divide a dimension; at the end a device's whole array is
put together from the devices that have its coordinates along all axes that are not used.
"""

from itertools import product
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

import hloexec
from hloexec.engine.sharding import result_shardings
from tests.drawing import examples

pytestmark = pytest.mark.timeout(60)
settings = hypothesis.settings(
    max_examples=examples(60), deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
)
NAMES = "abcd"


class Layout:
    """A mesh, the axes that divide each dimension of an array (manual ones first), and which axes are manual."""

    def __init__(self, draw: Any) -> None:
        self.sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3).filter(lambda s: 2 <= np.prod(s) <= 12))
        self.count = int(np.prod(self.sizes))
        self.devices = draw(st.one_of(st.just(list(range(self.count))), st.permutations(range(self.count))))
        axes = range(len(self.sizes))
        self.manual = {axis for axis in axes if draw(st.booleans())} or {0}
        self.dimensions: list[list[int]] = [[] for _ in range(draw(st.integers(1, 3)))]
        for axis in draw(st.permutations(axes)):
            place = draw(st.integers(-1, len(self.dimensions) - 1))
            if place >= 0 and axis in self.manual:
                self.dimensions[place].append(axis)
        self.tile = [draw(st.integers(0, 3)) for _ in self.dimensions]

    def coordinates(self, device: int) -> list[int]:
        rest, found = self.devices.index(device), []
        for size in reversed(self.sizes):
            found.append(rest % size)
            rest //= size
        return found[::-1]

    def block(self, device: int) -> tuple[int, ...]:
        """The number of a device's block along each dimension."""
        coordinates, numbers = self.coordinates(device), []
        for axes in self.dimensions:
            number = 0
            for axis in axes:
                number = number * self.sizes[axis] + coordinates[axis]
            numbers.append(number)
        return tuple(numbers)

    @property
    def blocks(self) -> list[int]:
        return [int(np.prod([self.sizes[axis] for axis in axes])) for axes in self.dimensions]

    @property
    def whole(self) -> list[int]:
        return [size * count for size, count in zip(self.tile, self.blocks, strict=True)]

    def slices(self, device: int) -> tuple[slice, ...]:
        return tuple(slice(n * size, (n + 1) * size) for n, size in zip(self.block(device), self.tile, strict=True))

    def peers(self, device: int) -> list[int]:
        """Those whose tiles are put together for `device`."""
        used = {axis for axes in self.dimensions for axis in axes}
        ours = self.coordinates(device)
        return [
            other
            for other in range(self.count)
            if all(self.coordinates(other)[axis] == ours[axis] for axis in range(len(self.sizes)) if axis not in used)
        ]

    # Shardy

    def mesh(self) -> str:
        axes = ", ".join(f'"{name}"={size}' for name, size in zip(NAMES, self.sizes, strict=False))
        listed = "" if self.devices == sorted(self.devices) else f", device_ids={self.devices}"
        return f"<[{axes}]{listed}>"

    def shardy(self, key: str, mesh: str, draw: Any) -> str:
        open_ended = [draw(st.sampled_from(["", "?"])) for _ in self.dimensions]
        dimensions = []
        for axes, mark in zip(self.dimensions, open_ended, strict=True):
            dimensions.append(
                "{" + ", ".join([*(f'"{NAMES[axis]}"' for axis in axes), *([mark] if mark else [])]) + "}"
            )
        manual = ", ".join(f'"{NAMES[axis]}"' for axis in sorted(self.manual))
        sharding = f"#sdy.sharding_per_value<[<{mesh}, [{', '.join(dimensions)}]>]>"
        fields = {key: sharding, "xla.sdy.manual_axes": f"#sdy<manual_axes{{{manual}}}>"}
        written = ",".join(f'{name}="{value.replace(chr(34), chr(92) + chr(34))}"' for name, value in fields.items())
        return f"frontend_attributes={{{written}}}"

    # Named shardings

    def named(self, draw: Any) -> tuple[str, str]:
        """The sharding of the whole array, and that of what is seen in the region."""
        listed = "" if self.devices == sorted(self.devices) else f", device_ids=({','.join(map(str, self.devices))})"
        sizes = ",".join(f"'{name}'={size}" for name, size in zip(NAMES, self.sizes, strict=False))
        opened = [draw(st.sampled_from([[], ["?"]])) for _ in self.dimensions]
        whole = ", ".join(
            "{" + ", ".join([*(f"'{NAMES[axis]}'" for axis in axes), *mark]) + "}"
            for axes, mark in zip(self.dimensions, opened, strict=True)
        )
        region = ", ".join("{?}" if mark else "{}" for mark in opened)
        manual = ", ".join(f"'{NAMES[axis]}'" for axis in sorted(self.manual))
        mesh = f"mesh[{sizes}]{listed}"
        inside = "manual" if len(self.manual) == len(self.sizes) else f"[{region}], manual={{{manual}}}"
        return f"{{{mesh}, [{whole}]}}", f"{{{mesh}, {inside}}}"

    # GSPMD

    def gspmd(self) -> tuple[str, str]:
        """The sharding of the whole array, and that of what is seen in the region."""
        used = [axis for axes in self.dimensions for axis in axes]
        unused = [axis for axis in range(len(self.sizes)) if axis not in used]
        rest = int(np.prod([self.sizes[axis] for axis in unused]))
        outside = self._tiles([*self.blocks, rest], used + unused, "last_tile_dim_replicate")
        free = [axis for axis in range(len(self.sizes)) if axis not in self.manual]
        if not free:
            return outside, "{manual}"
        manual = sorted(self.manual)
        counts = [int(np.prod([self.sizes[axis] for axis in axes])) for axes in (manual, free)]
        return outside, self._tiles(
            [1] * len(self.dimensions) + counts, manual + free, "last_tile_dims={manual, replicated}"
        )

    def _tiles(self, shape: list[int], axes: list[int], last: str) -> str:
        at = {tuple(self.coordinates(device)): device for device in range(self.count)}
        listed = []
        for coordinates in product(*[range(self.sizes[axis]) for axis in axes]):
            place = [0] * len(self.sizes)
            for axis, coordinate in zip(axes, coordinates, strict=True):
                place[axis] = coordinate
            listed.append(str(at[tuple(place)]))
        return f"{{devices=[{','.join(map(str, shape))}]{','.join(listed)} {last}}}"


def _shape(dimensions: list[int]) -> str:
    return f"s32[{','.join(map(str, dimensions))}]"


def _text(layout: Layout, notation: str, begins: bool, draw: Any) -> str:
    given, result = (layout.whole, layout.tile) if begins else (layout.tile, layout.whole)
    given_text, result_text = _shape(given), _shape(result)
    if notation != "shardy":
        outside, inside = layout.gspmd() if notation == "gspmd" else layout.named(draw)
        before, after = (outside, inside) if begins else (inside, outside)
        target = "SPMDFullToShardShape" if begins else "SPMDShardToFullShape"
        if notation == "named":
            target = "xla.sdy.GlobalToLocalShape" if begins else "xla.sdy.LocalToGlobalShape"
        return f"""HloModule m, num_partitions={layout.count}
ENTRY main {{
  x = {given_text} parameter(0)
  y = {given_text} custom-call(x), custom_call_target="Sharding", sharding={before}
  ROOT z = {result_text} custom-call(y), custom_call_target="{target}", sharding={after}
}}
"""
    target = "xla.sdy.GlobalToLocalShape" if begins else "xla.sdy.LocalToGlobalShape"
    key = "xla.sdy.in_shardings" if begins else "xla.sdy.out_shardings"
    named = draw(st.booleans())
    meshes = f", frontend_attributes={{xla.sdy.meshes={{m = #sdy.mesh{layout.mesh()}}}}}" if named else ""
    attributes = layout.shardy(key, "@m" if named else f"mesh{layout.mesh()}", draw)
    return f"""HloModule m, num_partitions={layout.count}{meshes}
ENTRY main {{
  x = {given_text} parameter(0)
  ROOT z = {result_text} custom-call(x), custom_call_target="{target}", {attributes}
}}
"""


def _values(layout: Layout, dimensions: list[int]) -> list[Any]:
    """A different array on every device."""
    size = int(np.prod(dimensions))
    return [np.arange(size, dtype=np.int32).reshape(dimensions) + 10_000 * device for device in range(layout.count)]


@pytest.mark.slow_cases("named", "gspmd")
@pytest.mark.parametrize("notation", ["shardy", "named", "gspmd"])
@settings
@hypothesis.given(st.data())
def test_a_region_begins_with_each_devices_block(notation: str, data: st.DataObject) -> None:
    layout = Layout(data.draw)
    text = _text(layout, notation, True, data.draw)
    values = _values(layout, layout.whole)
    outputs = hloexec.run_devices(hloexec.parse(text), [[value] for value in values])
    for device, output in enumerate(outputs):
        assert_array_equal(output, values[device][layout.slices(device)], err_msg=f"device {device}\n{text}")


@pytest.mark.slow_cases("shardy", "named")
@pytest.mark.parametrize("notation", ["shardy", "named", "gspmd"])
@settings
@hypothesis.given(st.data())
def test_a_region_ends_with_the_blocks_of_a_devices_peers(notation: str, data: st.DataObject) -> None:
    layout = Layout(data.draw)
    text = _text(layout, notation, False, data.draw)
    values = _values(layout, layout.tile)
    outputs = hloexec.run_devices(hloexec.parse(text), [[value] for value in values])
    for device, output in enumerate(outputs):
        expected = np.zeros(layout.whole, np.int32)
        for peer in layout.peers(device):
            expected[layout.slices(peer)] = values[peer]
        assert_array_equal(output, expected, err_msg=f"device {device}\n{text}")


def test_elements_of_a_tuple_have_the_tuples_shardings() -> None:
    """The text in which XLA of jaxlib 0.12 dumps a `shard_map` of two arrays; only x is manual."""
    mesh = "mesh['x'=2,'y'=2]"
    inside = f"{{{{{mesh}, [{{?}}, {{?}}], manual={{'x'}}}}, {{{mesh}, [{{?}}], manual={{'x'}}}}}}"
    text = f"""HloModule m, num_partitions=4

body {{
  s = s32[2,4] parameter(0)
  t = s32[2] parameter(1)
  ROOT u = (s32[2], s32[2,4]) tuple(t, s)
}}

ENTRY main {{
  a = s32[4,4] parameter(0)
  b = s32[2] parameter(1)
  c = s32[4,4] custom-call(a), custom_call_target="Sharding", sharding={{{mesh}, [{{'x', ?}}, {{?}}]}}
  d = s32[2] custom-call(b), custom_call_target="Sharding", sharding={{{mesh}, [{{?}}]}}
  e = (s32[2,4], s32[2]) custom-call(c, d), custom_call_target="xla.sdy.GlobalToLocalShape", sharding={inside}
  i = u32[] partition-id()
  j = s32[] convert(i)
  k = s32[2,4] broadcast(j), dimensions={{}}
  f = s32[2,4] add(e#0, k)
  g = (s32[2], s32[2,4]) call(f, e#1), to_apply=body, sharding={{{{{mesh}, manual}}, {{{mesh}, manual}}}}
  h = (s32[4], s32[4,4]) custom-call(g#0, g#1), custom_call_target="xla.sdy.LocalToGlobalShape", sharding={{{{{mesh}, [{{'x'}}]}}, {{{mesh}, [{{'x'}}, {{}}]}}}}
  ROOT r = (s32[4,4], s32[4]) tuple(h#1, h#0)
}}
"""
    a, b = np.arange(16, dtype=np.int32).reshape(4, 4), np.arange(2, dtype=np.int32)
    module = hloexec.parse(text)
    for device, (rows, twice) in enumerate(hloexec.run_devices(module, [[a, b]])):
        y = device % 2
        assert_array_equal(rows, a + np.repeat([y, 2 + y], 2)[:, None])
        assert_array_equal(twice, [0, 1, 0, 1])
    kinds = [sharding.dimensions for sharding in result_shardings(module)]
    assert [[len(dimension.axes) for dimension in dimensions] for dimensions in kinds] == [[1, 0], [1]]


def test_part_of_an_axis_may_divide_a_dimension() -> None:
    """Eight devices on one axis; its minor half divides the rows, its major part the columns."""
    text = r"""HloModule m, num_partitions=8
ENTRY main {
  x = s32[2,8] parameter(0)
  ROOT z = s32[1,2] custom-call(x), custom_call_target="xla.sdy.GlobalToLocalShape", frontend_attributes={xla.sdy.in_shardings="#sdy.sharding_per_value<[<mesh<[\"a\"=8]>, [{\"a\":(4)2}, {\"a\":(1)4}]>]>",xla.sdy.manual_axes="#sdy<manual_axes{\"a\"}>"}
}
"""
    value = np.arange(16, dtype=np.int32).reshape(2, 8)
    for device, output in enumerate(hloexec.run_devices(hloexec.parse(text), [[value]])):
        major, minor = divmod(device, 2)
        assert_array_equal(output, value[minor : minor + 1, 2 * major : 2 * major + 2])


@pytest.mark.parametrize(
    ("sharding", "manual", "what"),
    [
        (r"#sdy.sharding_per_value<[<@other, [{\"a\"}]>]>", r"#sdy<manual_axes{\"a\"}>", "other"),
        (r"#sdy.sharding_per_value<[<@m, [{\"z\"}]>]>", r"#sdy<manual_axes{\"a\"}>", "z"),
        (r"#sdy.sharding_per_value<[<@m, [{\"a\"}]>]>", r"#sdy<manual_axes{\"z\"}>", "z"),
        (r"#sdy.sharding_per_value<[<@m, [{\"a\"}, {}]>]>", r"#sdy<manual_axes{\"a\"}>", "dimension"),
        (r"#sdy.sharding_per_value<[<@m, [{\"a\"}]>, <@m, [{}]>]>", r"#sdy<manual_axes{\"a\"}>", "2"),
        (r"#sdy.sharding_per_value<[<@m, [{}], unreduced={\"a\"}>]>", r"#sdy<manual_axes{\"a\"}>", "unreduced"),
        (r"#sdy.sharding_per_value<[<@m, [{]>]>", r"#sdy<manual_axes{\"a\"}>", "read"),
        (r"nonsense", r"#sdy<manual_axes{\"a\"}>", "read"),
        (r"#sdy.sharding_per_value<[<@m, [{}]>]>", r"#sdy<manual_axes{\"a\"}>", "s32[4]"),
    ],
)
def test_boundaries_that_make_no_sense_are_refused(sharding: str, manual: str, what: str) -> None:
    text = f"""HloModule m, num_partitions=2, frontend_attributes={{xla.sdy.meshes={{m = #sdy.mesh<["a"=2]>}}}}
ENTRY main {{
  x = s32[4] parameter(0)
  ROOT z = s32[2] custom-call(x), custom_call_target="xla.sdy.GlobalToLocalShape", frontend_attributes={{xla.sdy.in_shardings="{sharding}",xla.sdy.manual_axes="{manual}"}}
}}
"""
    with pytest.raises(hloexec.HloError) as caught:
        hloexec.run_devices(hloexec.parse(text), [[np.zeros(4, np.int32)]])
    assert what in str(caught.value) and "%z" in str(caught.value), str(caught.value)
