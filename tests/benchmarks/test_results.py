"""The JSON of a measurement: its comparison with another, its page, its plot."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from benchmarks import goals, results
from benchmarks.__main__ import main
from benchmarks.page import markdown_table, page

_SIDE = {"resident_bytes": 3_000_000, "assigned_bytes": 2_000_000}
_MINE = {
    "cold": [1.0, 1.0, 1.0],
    "warm": [0.5, 0.75, 1.0],
    "stages": dict.fromkeys(("import", "parse", "plan", "first run"), 0.1),
}
_IN_JAX = {
    "cold": [1.5, 1.5, 1.5],
    "cold_alone": [1.2, 1.2, 1.2],
    "cold_beyond_jax": [0.5, 0.5, 0.5],
    "warm": [2.0, 2.0, 2.0],
    "stages": {},
}
_ITS = {
    "cold": [2.0, 2.0, 4.0],
    "cold_beyond_jax": [1.0, 1.0, 2.0],
    "warm": [0.25, 0.25, 0.25],
    "warm_beside_api": [0.5, 0.5, 0.5],
    "stages": dict.fromkeys(("jax", "compile", "first run"), 0.1),
}
MODULE = {
    "scale": 1.0,
    "hloexec": _MINE | _SIDE,
    "api": _IN_JAX | _SIDE | {"resident_bytes": 6_000_000},
    "xla": _ITS | _SIDE,
    "work": {"bytes": 10_000_000, "plan_bytes": 30_000_000, "flops": 2_000_000_000},
    "agreement": {"error": 1e-7, "bound": 1e-5, "holds": True},
}
MACHINE = {
    "cpu": "a processor",
    "processors": 2,
    "memory_bytes": 1 << 34,
    "system": "Linux",
    "python": "3.11",
    "packages": {"numpy": "2"},
    "commit": "abc",
}


def measurement(**modules: Any) -> dict[str, Any]:
    return {"schema": results.SCHEMA, "machine": MACHINE, "modules": modules, "failures": {}}


def with_warm(*seconds: float) -> dict[str, Any]:
    module = copy.deepcopy(MODULE)
    module["hloexec"]["warm"] = list(seconds)  # type: ignore[index]
    return module


def test_a_ratio_is_the_median_of_the_turns_with_its_extremes() -> None:
    assert results.warm_ratio(MODULE) == results.Spread(3.0, 2.0, 4.0)
    assert results.cold_ratio(MODULE) == results.Spread(0.5, 0.25, 0.5)
    assert results.warm_ratio(MODULE, results.API) == results.Spread(4.0, 4.0, 4.0)
    assert results.cold_ratio(MODULE, results.API) == results.Spread(0.6, 0.3, 0.6)
    assert results.cold_behind_jax_ratio(MODULE) == results.Spread(0.75, 0.375, 0.75)
    assert results.cold_beyond_jax_ratio(MODULE) == results.Spread(0.5, 0.25, 0.5)


def test_the_geometric_mean_of_a_ratio_and_its_inverse_is_one() -> None:
    assert results.geometric_mean([4.0, 0.25]) == pytest.approx(1.0, rel=1e-15)


@pytest.mark.parametrize(
    ("seconds", "change", "verdict"),
    [((0.25,) * 3, "-67 %", "faster"), ((1.5,) * 3, "+100 %", "slower"), ((0.25, 0.75, 1.5), "+0 %", "within")],
)
def test_a_comparison_says_whether_the_spreads_are_apart(seconds: tuple[float, ...], change: str, verdict: str) -> None:
    row, beside = results.compared(measurement(a=MODULE), measurement(a=with_warm(*seconds)))
    assert (row["way"], beside["way"], beside["warm change"]) == ("command line", "API", "+0 % within the spread")
    assert row["warm change"].startswith(change) and verdict in row["warm change"]
    assert row["cold change"] == "+0 % within the spread"


def test_a_comparison_leaves_out_what_only_one_has_or_has_at_another_scale() -> None:
    old = measurement(a=MODULE, b=MODULE, c=MODULE)
    new = measurement(b=MODULE | {"scale": 0.1}, c=MODULE, d=MODULE)
    assert {row["module"] for row in results.compared(old, new)} == {"c"}
    assert list(results.not_compared(old, new)) == [
        "only the old measurement has a",
        "only the new measurement has d",
        "the scale is not the same for b",
    ]


def test_a_measurement_of_schema_1_is_compared_as_far_as_it_goes(tmp_path: Path) -> None:
    before = {key: value for key, value in MODULE.items() if key not in ("api", "work")}
    (tmp_path / "old").write_text(json.dumps(measurement(newton=before) | {"schema": 1}))
    (tmp_path / "new").write_text(json.dumps(measurement(newton=MODULE)))
    done = CliRunner().invoke(main, ["compare", str(tmp_path / "old"), str(tmp_path / "new")])
    assert done.exit_code == 0, done.output
    assert "| newton | command line | 3.00 | 3.00 |" in done.output and "| newton | API" not in done.output
    assert "- the old measurement has no figures of the API for any module" in done.output


def test_the_command_compares_two_files(tmp_path: Path) -> None:
    for name, module in (("old", MODULE), ("new", with_warm(0.25, 0.25, 0.25))):
        (tmp_path / name).write_text(json.dumps(measurement(newton=module)))
    done = CliRunner().invoke(main, ["compare", str(tmp_path / "old"), str(tmp_path / "new")])
    assert done.exit_code == 0, done.output
    assert "| newton | command line | 3.00 | 1.00 | -67 % faster |" in done.output
    assert "Not compared" not in done.output


def test_the_page_shows_ratios_means_memory_refusals_and_failures() -> None:
    content = measurement(newton=MODULE) | {
        "interpreter": {
            "newton": {"scale": 0.1, "hloexec": [0.1], "stablehlo": [20.0]},
            "fft": {"scale": 0.1, "refused": "no complex numbers"},
        },
        "rates": {"bytes_per_second": 1e9, "flops_per_second": 1e10},
        "tables": {"Start-up": [{"program": "python", "seconds": "0.1"}]},
        "failures": {"dump-001": "xla ended"},
    }
    text = page(content)
    assert "warm 3.00" in text and "first output 0.50" in text
    assert "| newton | 500 | 250 | 3.00 (2.00 to 4.00) | 1.00 | 2.00 |" in text
    first_outputs = "0.60 (0.30 to 0.60) | 0.75 (0.38 to 0.75) | 0.50 (0.25 to 0.50)"
    assert f"| newton | 2000 | 500 | 4.00 (4.00 to 4.00) | 1.20 | 2.00 | {first_outputs} |" in text
    # 2 GFLOP at 10 GFLOP/s take 200 ms, 10 MB at 1 GB/s 10 ms.
    assert "| newton | 10.0 | 30.0 | 2.000 | 200.000 | peak | 40.0% | 10.0% | 80.0% |" in text
    assert "**200 times**" in text
    for line in ("- fft: no complex numbers", "- dump-001: xla ended", "| python | 0.1 |"):
        assert line in text


def test_a_measured_disagreement_stands_out() -> None:
    module = MODULE | {"agreement": {"error": 1.0, "bound": 1e-5, "holds": False}}
    assert "**beyond**" in page(measurement(newton=module))


def test_goals_are_judged_for_both_ways_with_the_modules_that_miss_them() -> None:
    found = list(goals.rows(measurement(newton=MODULE, lstm=with_warm(0.1, 0.1, 0.1))))
    warm_mean, warm, _, cold, memory = found[:5]
    assert {row["way"] for row in found[:5]} == {"command line"} and {row["way"] for row in found[5:]} == {"API"}
    # The geometric mean of 3 and 0.4 is 1.095.
    assert (warm_mean["measured"], warm_mean["verdict"]) == ("1.10", "**missed**")
    assert (warm["measured"], warm["verdict"], warm["beyond it"]) == ("3.00", "**missed**", "newton 3.00")
    assert (cold["measured"], cold["verdict"], cold["beyond it"]) == ("0.50", "met", "")
    assert (memory["measured"], memory["verdict"]) == ("1.00", "met")
    assert found[9]["beyond it"] == "newton 2.00, lstm 2.00"


def test_a_goal_is_open_where_a_module_was_not_measured() -> None:
    rows = list(goals.rows(measurement(newton=MODULE) | {"failures": {"fft": "xla ended"}}))
    assert rows[3]["verdict"] == "open: fft not measured"
    assert rows[1]["verdict"] == "**missed**"
    unknown = copy.deepcopy(MODULE)
    unknown["xla"]["resident_bytes"] = None  # type: ignore[index]
    assert list(goals.rows(measurement(sort=unknown)))[4]["verdict"] == "open: sort not measured"


def test_next_to_no_memory_is_within_the_goal() -> None:
    small = copy.deepcopy(MODULE)
    small["hloexec"]["resident_bytes"], small["xla"]["resident_bytes"] = 1 << 20, 4096  # type: ignore[index]
    assert list(goals.rows(measurement(newton=small)))[4]["verdict"] == "met"
    small["hloexec"]["resident_bytes"] += 1  # type: ignore[index]
    assert list(goals.rows(measurement(newton=small)))[4]["verdict"] == "**missed**"


def test_a_bar_in_a_cell_does_not_end_it() -> None:
    assert markdown_table([{"a": "x|y"}]).splitlines()[-1].count("|") == 2


@pytest.mark.slow
def test_the_plot_is_written(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from benchmarks.plot import draw

    draw(measurement(newton=MODULE, lstm=with_warm(0.3, 0.3, 0.3)), tmp_path / "plot.svg")
    assert "newton" in (tmp_path / "plot.svg").read_text()
