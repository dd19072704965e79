"""Collectives that have a root: collective-reduce, and collective-broadcast whose root is known only when it runs."""

from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.errors import HloError
from tests.families import of_each_family

_ADD = """add {
  lhs = f32[] parameter(0)
  rhs = f32[] parameter(1)
  ROOT sum = f32[] add(lhs, rhs)
}
"""


def _module(instruction: str, parameters: str = "input = f32[2] parameter(0)") -> hloexec.Module:
    return hloexec.parse(
        f"HloModule m, replica_count=4\n\n{_ADD}\nENTRY e {{\n{parameters}\nROOT r = {instruction}\n}}"
    )


def _results(module: hloexec.Module, *extra: Any) -> list[Any]:
    inputs = [(np.float32([d + 1, 10 * d]), *(array[d] for array in extra)) for d in range(4)]
    return [result.tolist() for result in hloexec.run_devices(module, inputs)]


_ROOTED = "input = f32[2] parameter(0)\nroot = s32[1] parameter(1)"
_GROUPS = "replica_groups={{0,1},{3,2}}"


def test_the_first_device_of_a_group_gets_the_sum_and_others_zeros() -> None:
    module = _module(f"f32[2] collective-reduce(input), {_GROUPS}, has_dynamic_root=false, to_apply=add")
    assert _results(module) == [[3, 10], [0, 0], [0, 0], [7, 50]]
    assert hloexec.parse(hloexec.format(module)) == module


_WITH_0_AND_1 = [name for name, entry in ELEMENT_TYPES.items() if entry.is_array and name not in ("s1", "f8e8m0fnu")]


@pytest.mark.parametrize("name", of_each_family(_WITH_0_AND_1))
def test_values_of_every_type_are_reduced(name: str) -> None:
    element_type = ELEMENT_TYPES[name]
    text = f"""HloModule m, replica_count=4

fold {{
  lhs = {name}[] parameter(0)
  rhs = {name}[] parameter(1)
  ROOT r = {name}[] {"add" if element_type.is_complex else "maximum"}(lhs, rhs)
}}

ENTRY e {{
  input = {name}[3] parameter(0)
  ROOT r = {name}[3] collective-reduce(input), {_GROUPS}, has_dynamic_root=false, to_apply=fold
}}
"""
    inputs = [(np.array(each).astype(element_type.storage),) for each in ([0, 1, 0], [0, 0, 1], [1, 0, 0], [0, 0, 0])]
    found = [result.astype(np.complex128).tolist() for result in hloexec.run_devices(hloexec.parse(text), inputs)]
    assert found == [[0, 1, 1], [0, 0, 0], [0, 0, 0], [1, 0, 0]]


@pytest.mark.parametrize("root", [0, 1])
def test_an_operand_may_say_which_device_of_the_group_is_the_root(root: int) -> None:
    roots = [np.int32([root])] * 4
    reduce = _module(f"f32[2] collective-reduce(input, root), {_GROUPS}, has_dynamic_root=true, to_apply=add", _ROOTED)
    first, second = [[3, 10], [0, 0]], [[0, 0], [7, 50]]
    assert _results(reduce, roots) == (first + second if root == 0 else first[::-1] + second[::-1])
    broadcast = _module(f"f32[2] collective-broadcast(input, root), {_GROUPS}, has_dynamic_root=true", _ROOTED)
    ours = [[1, 0], [4, 30]] if root == 0 else [[2, 10], [3, 20]]
    assert _results(broadcast, roots) == [ours[0], ours[0], ours[1], ours[1]]


def test_each_operand_has_a_root_of_its_own() -> None:
    module = _module(
        f"(f32[2], f32[2]) collective-broadcast(input, twice, root), {_GROUPS}, has_dynamic_root=true",
        "input = f32[2] parameter(0)\nroot = s32[2] parameter(1)\ntwice = f32[2] add(input, input)",
    )
    found = hloexec.run_devices(module, [(np.float32([d, d]), np.int32([1, 0])) for d in range(4)])
    assert [[leaf[0] for leaf in result] for result in found] == [[1, 0], [1, 0], [2, 6], [2, 6]]


@pytest.mark.parametrize(
    ("roots", "message"),
    [([2, 2, 2, 2], "root 2 of collective-reduce is none of the 2 devices"), ([0, 1, 0, 0], "name different roots")],
)
def test_roots_that_there_are_not_end_the_run(roots: list[int], message: str) -> None:
    module = _module(f"f32[2] collective-reduce(input, root), {_GROUPS}, has_dynamic_root=true, to_apply=add", _ROOTED)
    with pytest.raises(HloError, match=message):
        _results(module, [np.int32([root]) for root in roots])


def test_devices_in_no_group_get_zeros_whatever_root_they_name() -> None:
    broadcast = _module(
        "f32[2] collective-broadcast(input, root), replica_groups={{0,1}}, has_dynamic_root=true", _ROOTED
    )
    assert _results(broadcast, [np.int32([1])] * 4) == [[2, 10], [2, 10], [0, 0], [0, 0]]


@pytest.mark.parametrize("shape", "f32[1] s32[] s32[2] s64[1]".split())
def test_roots_are_one_s32_for_each_operand(shape: str) -> None:
    parameters = f"input = f32[2] parameter(0)\nroot = {shape} parameter(1)"
    module = _module("f32[2] collective-broadcast(input, root), has_dynamic_root=true", parameters)
    with pytest.raises(HloError, match="must be s32"):
        hloexec.run_devices(module, [hloexec.random_inputs(module)] * 4)


def test_the_shadow_of_a_sum_is_on_its_root() -> None:
    module = _module(f"f32[2] collective-reduce(input), {_GROUPS}, has_dynamic_root=false, to_apply=add")
    inputs = [(np.float32([1, 2.0**-30]),), (np.float32([2.0**-30, 1]),), *([(np.zeros(2, np.float32),)] * 2)]
    found = hloexec.shadow(module, inputs)
    assert found.culprit is not None and found.culprit.instruction == "r"
