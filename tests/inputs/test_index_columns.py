"""Components of index vectors lie within the bounds of the dimension in which each of them counts.

What is right is read off the modules: component k counts from 0 to the size of its dimension less that of the window.
"""

from typing import Any

import numpy as np
import pytest

from hloexec.engine.inputs import random_inputs
from hloexec.language.text.parser import parse
from hloexec.testing import inputs as inputs_of
from tests.text.building import module

ROWS = "collapsed_slice_dims={0,1}, start_index_map={0,1}, slice_sizes={1,1,4}, offset_dims={1}, index_vector_dim=1"
TABLE = "table = f32[8,1572,4] parameter(0)"
COLUMN = "a = s32[500] parameter(1)\nb = s32[500] parameter(2)\ni = s32[500,1] reshape(a)\nj = s32[500,1] reshape(b)"
LAST = {0: 7, 1: 1571}


def found(body: str, computations: str = "", **options: Any) -> list[Any]:
    return random_inputs(parse(module(body, computations)), **options)


def require_range(values: Any, last: int, first: int = 0) -> None:
    """Within the bounds, and far apart, as several hundred random numbers are."""
    values = np.asarray(values, np.int64)
    assert values.min() >= first and values.max() <= last
    assert np.ptp(values) >= 0.8 * (last - first)


def gathered(indices: str, dimensions: str = ROWS) -> str:
    return f"{TABLE}\n{indices}\nROOT g = f32[500,4] gather(table, idx), {dimensions}"


TWO_PARAMETERS = {
    "side by side": f"{COLUMN}\nidx = s32[500,2] concatenate(i, j), dimensions={{1}}",
    "in rows, turned": (
        "a = s32[500] parameter(1)\nb = s32[500] parameter(2)\ni = s32[1,500] reshape(a)\nj = s32[1,500] reshape(b)\n"
        "p = s32[2,500] concatenate(i, j), dimensions={0}\nidx = s32[500,2] transpose(p), dimensions={1,0}"
    ),
    "reversed": f"{COLUMN}\np = s32[500,2] concatenate(j, i), dimensions={{1}}\nidx = s32[500,2] reverse(p), dimensions={{1}}",
    "by a broadcast": (
        "a = s32[500] parameter(1)\nb = s32[500] parameter(2)\ni = s32[500,1] broadcast(a), dimensions={0}\n"
        "j = s32[500,1] broadcast(b), dimensions={0}\nidx = s32[500,2] concatenate(i, j), dimensions={1}"
    ),
    "padded and added": (
        f"{COLUMN}\nz = s32[] constant(0)\nl = s32[500,2] pad(i, z), padding=0_0x0_1\n"
        "r = s32[500,2] pad(j, z), padding=0_0x1_0\nidx = s32[500,2] add(l, r)"
    ),
    "written into zeros": (
        f"{COLUMN}\nz = s32[] constant(0)\no = s32[] constant(1)\nzs = s32[500,2] broadcast(z), dimensions={{}}\n"
        "p = s32[500,2] dynamic-update-slice(zs, i, z, z)\nidx = s32[500,2] dynamic-update-slice(p, j, z, o)"
    ),
}


@pytest.mark.parametrize("way", TWO_PARAMETERS)
def test_parameters_that_become_columns_are_bounded_each_by_itself(way: str) -> None:
    _, rows, tokens = found(gathered(TWO_PARAMETERS[way]))
    require_range(rows, 7)
    require_range(tokens, 1571)


ONE_PARAMETER = {
    "as it is": ("s32[500,2]", "idx = s32[500,2] copy(p)", lambda p: p),
    "converted": ("f32[500,2]", "idx = s32[500,2] convert(p)", lambda p: p),
    "reshaped": ("s32[1000]", "idx = s32[500,2] reshape(p)", lambda p: p.reshape(500, 2)),
    "reshaped twice": (
        "s32[10,100]", "q = s32[50,10,2] reshape(p)\nidx = s32[500,2] reshape(q)", lambda p: p.reshape(500, 2)
    ),
    "turned": ("s32[2,500]", "idx = s32[500,2] transpose(p), dimensions={1,0}", lambda p: p.T),
    "turned in three dimensions": (
        "s32[5,2,100]",
        "q = s32[100,5,2] transpose(p), dimensions={2,0,1}\nidx = s32[500,2] reshape(q)",
        lambda p: p.transpose(2, 0, 1).reshape(500, 2),
    ),
    "reversed": ("s32[500,2]", "idx = s32[500,2] reverse(p), dimensions={1}", lambda p: p[:, ::-1]),
    "reversed the other way": ("s32[500,2]", "idx = s32[500,2] reverse(p), dimensions={0}", lambda p: p),
    "a part of its rows": ("s32[900,2]", "idx = s32[500,2] slice(p), slice={[200:700],[0:2]}", lambda p: p),
    "a part of its columns": ("s32[500,3]", "idx = s32[500,2] slice(p), slice={[0:500],[1:3]}", lambda p: p[:, 1:]),
    "every other column": ("s32[500,4]", "idx = s32[500,2] slice(p), slice={[0:500],[1:4:2]}", lambda p: p[:, 1::2]),
    "columns taken apart": (
        "s32[500,2]",
        "i = s32[500,1] slice(p), slice={[0:500],[1:2]}\nj = s32[500,1] slice(p), slice={[0:500],[0:1]}\n"
        "idx = s32[500,2] concatenate(i, j), dimensions={1}",
        lambda p: p[:, ::-1],
    ),
    "with an iota": (
        "s32[500,1]",
        "i = s32[500,1] iota(), iota_dimension=0\nidx = s32[500,2] concatenate(i, p), dimensions={1}",
        lambda p: np.concatenate([np.zeros_like(p) + np.arange(500)[:, None] % 8, p], 1),
    ),
    "padded": ("s32[500,1]", "z = s32[] constant(3)\nidx = s32[500,2] pad(p, z), padding=0_0x1_0",
        lambda p: np.concatenate([np.arange(500)[:, None] % 8, p], 1)),
    "cut by a pad": ("s32[500,3]", "z = s32[] constant(3)\nidx = s32[500,2] pad(p, z), padding=0_0x-1_0", lambda p: p[:, 1:]),
    "clamped": (
        "s32[500,2]",
        "z = s32[] constant(0)\nl = s32[2] constant({7, 1571})\nls = s32[500,2] broadcast(l), dimensions={1}\n"
        "zs = s32[500,2] broadcast(z), dimensions={}\nidx = s32[500,2] clamp(zs, p, ls)",
        lambda p: p,
    ),
    "compared with its ends": (
        "s32[500,2]",
        "l = s32[2] constant({7, 1571})\nls = s32[500,2] broadcast(l), dimensions={1}\n"
        "inside = pred[500,2] compare(p, ls), direction=LE\nidx = s32[500,2] copy(p)",
        lambda p: p,
    ),
    "taken from a table by rows": (
        "s32[500,2]",
        "o = s32[500] iota(), iota_dimension=0\nidx = s32[500,2] gather(p, o), offset_dims={1}, "
        "collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,2}",
        lambda p: p,
    ),
    "a window of rows": (
        "s32[900,2]",
        "o = s32[] constant(100)\nz = s32[] constant(0)\n"
        "idx = s32[500,2] dynamic-slice(p, o, z), dynamic_slice_sizes={500,2}",
        lambda p: p,
    ),
    "bitcast": ("s32[10,50,2]", "idx = s32[500,2] bitcast(p)", lambda p: p.reshape(500, 2)),
    "bitcast from another layout": (
        "s32[2,500]{0,1}", "idx = s32[500,2]{1,0} bitcast(p)", lambda p: p.T
    ),
    "bitcast from three dimensions": (
        "s32[5,2,100]{1,2,0}", "idx = s32[500,2]{1,0} bitcast(p)", lambda p: p.transpose(0, 2, 1).reshape(500, 2)
    ),
    "elements at known places": (
        "s32[40,3]",
        "n = s32[] constant(2)\no = s32[] constant(1)\nk = s32[] parameter(2)\n"
        "i1 = s32[1,1] dynamic-slice(p, k, n), dynamic_slice_sizes={1,1}\n"
        "j1 = s32[1,1] dynamic-slice(p, k, o), dynamic_slice_sizes={1,1}\n"
        "i2 = s32[] reshape(i1)\nj2 = s32[] reshape(j1)\n"
        "i = s32[500,1] broadcast(i2), dimensions={}\nj = s32[500,1] broadcast(j2), dimensions={}\n"
        "idx = s32[500,2] concatenate(i, j), dimensions={1}",
        lambda p: p[:, :0:-1],
    ),
    "moved by a constant for each": (
        "s32[500,2]",
        "c = s32[2] constant({2, 1000})\ncs = s32[500,2] broadcast(c), dimensions={1}\nidx = s32[500,2] subtract(p, cs)",
        lambda p: p - np.array([2, 1000]),
    ),
    "corrected where negative": (
        "s32[500,2]",
        "z = s32[] constant(0)\nzs = s32[500,2] broadcast(z), dimensions={}\nn = s32[2] constant({8, 1572})\n"
        "ns = s32[500,2] broadcast(n), dimensions={1}\nless = pred[500,2] compare(p, zs), direction=LT\n"
        "q = s32[500,2] add(p, ns)\nidx = s32[500,2] select(less, q, p)",
        lambda p: p,
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", ONE_PARAMETER)
def test_columns_of_one_parameter_are_bounded_each_by_itself(way: str) -> None:
    shape, body, indices = ONE_PARAMETER[way]
    value = found(gathered(f"p = {shape} parameter(1)\n{body}"))[1]
    columns = indices(value)
    require_range(columns[:, 0], 7)
    require_range(columns[:, 1], 1571)


WAYS_IN = {
    "call": ("callee { p = s32[500,2] parameter(0)\nROOT r = s32[500,2] copy(p) }", "idx = s32[500,2] call(p), to_apply=callee"),
    "fusion": (
        "callee { p = s32[500,2] parameter(0)\nROOT r = s32[500,2] reverse(p), dimensions={0} }",
        "idx = s32[500,2] fusion(p), kind=kLoop, calls=callee",
    ),
    "tuple": ("", "t = (s32[500,2]) tuple(p)\nidx = s32[500,2] get-tuple-element(t), index=0"),
    "while": (
        "body { s = (s32[], s32[500,2]) parameter(0)\ni = s32[] get-tuple-element(s), index=0\n"
        "p = s32[500,2] get-tuple-element(s), index=1\no = s32[] constant(1)\nn = s32[] add(i, o)\n"
        "ROOT t = (s32[], s32[500,2]) tuple(n, p) }\n"
        "cond { s = (s32[], s32[500,2]) parameter(0)\ni = s32[] get-tuple-element(s), index=0\nl = s32[] constant(3)\n"
        "ROOT c = pred[] compare(i, l), direction=LT }",
        "z = s32[] constant(0)\nt = (s32[], s32[500,2]) tuple(z, p)\n"
        "w = (s32[], s32[500,2]) while(t), condition=cond, body=body\nidx = s32[500,2] get-tuple-element(w), index=1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS_IN)
@pytest.mark.parametrize("distribution", "normal uniform large special iota".split())
def test_columns_pass_through_calls(way: str, distribution: str) -> None:
    computations, body = WAYS_IN[way]
    value = found(gathered(f"p = s32[500,2] parameter(1)\n{body}"), computations, distribution=distribution)[1]
    for column, last in LAST.items():
        assert value[:, column].min() >= 0 and value[:, column].max() <= last
    assert value[:, 1].max() > 400


def test_edges_of_each_column_are_those_of_its_dimension() -> None:
    value = found(gathered("idx = s32[500,2] parameter(1)"), distribution="edges")[1]
    assert {-(2**31), -1, 0, 1, 6, 7, 8, 2**31 - 1} <= set(value[:, 0].tolist()) and 1572 not in value[:, 0]
    assert {-(2**31), -1, 0, 1570, 1571, 1572, 2**31 - 1} <= set(value[:, 1].tolist()) and 8 not in value[:, 1]


def test_a_component_without_a_choice_is_0() -> None:
    rows = (
        "collapsed_slice_dims={}, start_index_map={1,0}, slice_sizes={8,1,4}, offset_dims={1,2,3}, index_vector_dim=1"
    )
    body = f"{TABLE}\nidx = s32[500,2] parameter(1)\nROOT g = f32[500,8,1,4] gather(table, idx), {rows}"
    value = found(body)[1]
    require_range(value[:, 0], 1571)
    assert not value[:, 1].any()


def test_scatter_indices_are_bounded_by_the_dimension_that_each_counts_in() -> None:
    body = """x = f32[8,1572] parameter(0)
    idx = s32[2,500] parameter(1)
    u = f32[500,3] parameter(2)
    ROOT s = f32[8,1572] scatter(x, idx, u), update_window_dims={1}, inserted_window_dims={0},
    scatter_dims_to_operand_dims={1,0}, index_vector_dim=0, to_apply=last""".replace(",\n    scatter", ", scatter")
    last = "last { a = f32[] parameter(0)\nROOT b = f32[] parameter(1) }"
    value = found(body, last)[1]
    require_range(value[0], 1569)
    require_range(value[1], 7)


@pytest.mark.parametrize("way", ["a vector", "elements of a vector"])
def test_starts_of_one_slice_are_told_apart(way: str) -> None:
    element = "{n}1 = s32[1] slice(p), slice={{[{k}:{e}]}}\n{n} = s32[] reshape({n}1)"
    taken = "\n".join(element.format(n=name, k=k, e=k + 1) for k, name in enumerate("ij"))
    if way == "a vector":
        body = "x = f32[8,1572] parameter(0)\np = s32[2] parameter(1)\nROOT s = f32[2,72] dynamic-slice(x, p), dynamic_slice_sizes={2,72}"
    else:
        body = f"x = f32[8,1572] parameter(0)\np = s32[2] parameter(1)\n{taken}\nROOT s = f32[2,72] dynamic-slice(x, i, j), dynamic_slice_sizes={{2,72}}"
    values = np.array([found(body, seed=seed)[1] for seed in range(200)])
    require_range(values[:, 0], 6)
    require_range(values[:, 1], 1500)


def test_an_element_that_is_in_all_columns_suits_all() -> None:
    value = found(gathered("p = s32[500] parameter(1)\nidx = s32[500,2] broadcast(p), dimensions={0}"))[1]
    require_range(value, 7)


def test_sorted_rows_are_bounded_by_all() -> None:
    """Which element comes into which column is not known."""
    less = "less { a = s32[] parameter(0)\nb = s32[] parameter(1)\nROOT c = pred[] compare(a, b), direction=LT }"
    body = gathered("p = s32[500,2] parameter(1)\nidx = s32[500,2] sort(p), dimensions={1}, to_apply=less")
    assert found(body, less)[1].max() == 7


def test_the_same_seed_gives_the_same_columns() -> None:
    body = gathered("idx = s32[500,2] parameter(1)")
    np.testing.assert_array_equal(found(body, seed=3)[1], found(body, seed=3)[1])
    assert (found(body, seed=3)[1] != found(body, seed=4)[1]).any()


def test_values_that_hypothesis_draws_are_bounded_by_column() -> None:
    strategies = pytest.importorskip("hypothesis")
    made = parse(module(gathered("idx = s32[500,2] parameter(1)").replace("500", "6")))
    seen = []

    @strategies.settings(max_examples=30, deadline=None, database=None)
    @strategies.given(inputs_of(made))
    def check(values: list[Any]) -> None:
        seen.append(values[1])

    check()
    drawn = np.concatenate(seen)
    assert drawn.min() == 0 and drawn[:, 0].max() <= 7 and 7 < drawn[:, 1].max() <= 1571


@pytest.mark.parametrize(
    "made",
    [
        "p = s32[2,0] parameter(1)\nidx = s32[2,0] copy(p)",
        "p = s32[0,2] parameter(1)\nidx = s32[2,0] reshape(p)",
        "p = s32[0,2] parameter(1)\nidx = s32[2,0] transpose(p), dimensions={1,0}",
        "p = s32[2] parameter(1)\nidx = s32[2,0] broadcast(p), dimensions={0}",
        "p = s32[3,0] parameter(1)\nidx = s32[2,0] slice(p), slice={[1:3], [0:0]}",
        "p = s32[1,0] parameter(1)\nidx = s32[2,0] concatenate(p, p), dimensions={0}",
        "p = s32[1,0] parameter(1)\nz = s32[] constant(0)\nidx = s32[2,0] pad(p, z), padding=0_1x0_0",
        "p = s32[2,0] parameter(1)\nidx = s32[2,0] reverse(p), dimensions={0}",
        "p = s32[1,0] parameter(1)\nc = s32[2] constant({3, 5})\nd = s32[2,0] broadcast(c), dimensions={0}\n"
        "z = s32[] constant(0)\nidx = s32[2,0] dynamic-update-slice(d, p, z, z)",
    ],
)
def test_indices_without_elements_have_no_columns(made: str) -> None:
    text = (
        f"table = f32[8,1572] parameter(0)\n{made}\n"
        "ROOT g = f32[0] gather(table, idx), collapsed_slice_dims={0,1}, start_index_map={0,1}, slice_sizes={1,1}, "
        "offset_dims={}, index_vector_dim=0"
    )
    shape = parse(module(text)).entry.parameter_shapes[1]
    assert np.asarray(found(text)[1]).shape == shape.dimensions
