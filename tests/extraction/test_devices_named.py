"""Parts of modules whose devices only meshes or shardings name."""

from __future__ import annotations

import numpy as np
import pytest

import hloexec

TEXT = """HloModule m, frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["d"=4]>}}

ENTRY main {
  x = f32[8,4] parameter(0)
  local = (f32[2,4]) custom-call(x), custom_call_target="xla.sdy.GlobalToLocalShape", custom_call_has_side_effect=true, frontend_attributes={xla.sdy.in_shardings="#sdy.sharding_per_value<[<@mesh, [{\\"d\\"}, {}]>]>",xla.sdy.manual_axes="#sdy<manual_axes{\\"d\\"}>"}
  shard = f32[2,4] get-tuple-element(local), index=0
  ROOT y = f32[2,4] negate(shard)
}
"""


@pytest.mark.parametrize(("name", "depth"), [("y", None), ("shard", None), ("y", 1)])
def test_a_part_is_for_as_many_devices_with_the_values_of_each(name: str, depth: int | None) -> None:
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    found = hloexec.extract(hloexec.parse(TEXT), [x], name, depth=depth)
    sign = -1 if name == "y" else 1
    np.testing.assert_array_equal(np.stack(found.expected), sign * x.reshape(4, 2, 4))
    assert found.check().has_same_bits


def test_a_part_for_one_of_them_begins_behind_what_devices_exchange() -> None:
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    found = hloexec.extract(hloexec.parse(TEXT), [x], "y", device=1)
    np.testing.assert_array_equal(found.expected, -x.reshape(4, 1, 2, 4)[1])
    assert found.check().has_same_bits and "mesh" not in hloexec.format(found.module)
