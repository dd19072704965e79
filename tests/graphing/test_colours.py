"""What instructions are coloured by, in memory and from files, and the JSON for Model Explorer."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.cli import main
from hloexec.tools.graphing import error_colours, read_colours, time_colours
from hloexec.tools.graphing.files import graph_collection, node_data
from tests.graphing.programs import HOSTILE, LOOP, SHARED, hostile

CANCELLING = """HloModule cancelling
ENTRY main {
  x = f32[64] parameter(0)
  big = f32[] constant(4096)
  bigs = f32[64] broadcast(big), dimensions={}
  sum = f32[64] add(x, bigs)
  small = f32[64] subtract(sum, bigs)
  ROOT scaled = f32[64] multiply(small, x)
}
"""
X = np.linspace(0.1, 0.9, 64, dtype=np.float32)


def test_errors_of_a_shadow_are_those_of_exact_arithmetic() -> None:
    module = hloexec.parse(CANCELLING)
    found = error_colours(hloexec.shadow(module, [X]))
    # In f64, the sums and the differences of these numbers are exact.
    exact = X.astype(np.float64)
    wrong = (X + np.float32(4096)) - np.float32(4096)
    error = np.sqrt(np.mean((wrong - exact) ** 2) / np.mean(exact**2))
    # The observer's f64 sums over 64 elements round by less than 64 units of 2⁻⁵³, relatively.
    assert found.values["main", "small"] == pytest.approx(error, rel=64 * 2**-53 * 4)
    # What the sum rounds off matters by what cancels behind it.
    assert ("main", "small") in found.marked
    assert found.step(("main", "small")) is not None
    assert found.step(("main", "bigs")) is None


def test_mere_rounding_is_pale_and_cancellation_is_not() -> None:
    module = hloexec.parse(CANCELLING)
    found = error_colours(hloexec.shadow(module, [X]))
    small, total = found.step(("main", "small")), found.step(("main", "sum"))
    assert small is not None
    assert total is not None
    assert found.steps.index(total) == 0
    assert found.steps.index(small) >= 3


def test_bytes_are_those_of_the_values_that_are_defined() -> None:
    module = hloexec.parse(LOOP)
    found = hloexec.graphing.byte_colours(module)
    assert found.values["main", "size"] == 8 * 4
    assert found.values["body", "fusion"] == 8 * 4
    assert ("fused", "product") not in found.values  # has no buffer
    assert found.marked


def test_times_of_calls_and_loops_include_what_they_call() -> None:
    def slow(x: Any) -> Any:
        time.sleep(0.002)
        return x

    hloexec.register_custom_call("sleeps", slow)
    try:
        text = LOOP.replace("exponential(x)", 'custom-call(x), custom_call_target="sleeps"')
        text = text.replace("multiply(a, b)", 'custom-call(a), custom_call_target="sleeps"')
        values = time_colours(hloexec.parse(text), [X[:8], X[:8]], runs=1).values
    finally:
        hloexec.unregister_custom_call("sleeps")
    assert values["main", "size"] >= 0.002
    assert values["fused", "product"] >= 5 * 0.002  # in five iterations
    assert values["body", "fusion"] >= values["fused", "product"]
    assert values["main", "loop"] >= values["body", "fusion"]
    assert values["main", "loop"] < 60


def _printed(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    main([*words, "--json"])
    return capsys.readouterr().out


def test_what_commands_print_gives_the_colours_that_results_give(
    empty_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("m.hlo").write_text(CANCELLING)
    Path("other.hlo").write_text(CANCELLING.replace("multiply(small, x)", "divide(small, x)"))
    module, other = hloexec.load("m.hlo"), hloexec.load("other.hlo")
    inputs = hloexec.random_inputs(module)
    for words, expected, drawn in (
        (("shadow", "m.hlo"), error_colours(hloexec.shadow(module, inputs)), module),
        (("diff", "other.hlo", "m.hlo"), error_colours(hloexec.diff(other, module, inputs)), module),
        (("memory", "m.hlo"), hloexec.graphing.byte_colours(module), module),
    ):
        Path("found.json").write_text(_printed(capsys, *words), encoding="utf-8")
        read = read_colours("found.json", drawn)
        assert read.values == expected.values
        assert read.steps == expected.steps
        assert read.texts == expected.texts
    assert read_colours("found.json", module).values["main", "scaled"] == 256


def test_a_diff_says_what_is_as_before_and_what_is_to_blame() -> None:
    before = hloexec.parse(CANCELLING)
    after = hloexec.parse(CANCELLING.replace("multiply(small, x)", "divide(small, x)"))
    found = error_colours(hloexec.diff(before, after, [X]))
    assert found.values["main", "scaled"] == 2
    assert found.values["main", "sum"] == 0
    assert found.step(("main", "sum")) is found.steps[0]
    assert found.marked == {("main", "scaled")}


def test_the_instruction_that_makes_nan_is_to_blame(empty_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("m.hlo").write_text(
        CANCELLING.replace("multiply(small, x)", "divide(zeros, zeros)").replace(
            "  ROOT", "  zeros = f32[64] subtract(bigs, bigs)\n  ROOT"
        )
    )
    Path("nan.json").write_text(_printed(capsys, "nan", "m.hlo"), encoding="utf-8")
    assert read_colours("nan.json", hloexec.load("m.hlo")).marked == {("main", "scaled")}


def test_numbers_by_name_are_colours(tmp_path: Path) -> None:
    path = tmp_path / "n.json"
    path.write_text(json.dumps({"size": 3, "body/count": 5.5, "%found": 0, "nothing": 1}))
    with pytest.warns(hloexec.HloWarning, match=r"1 of the instructions .* such as: module loop has no instruction"):
        found = read_colours(path, hloexec.parse(LOOP))
    assert found.values == {("main", "size"): 3.0, ("body", "count"): 5.5, ("main", "found"): 0.0}


def test_infinite_errors_have_the_last_colour() -> None:
    found = hloexec.graphing.quantity("x", {("c", "a"): float("inf"), ("c", "b"): float("nan"), ("c", "d"): 1.0}, str)
    assert found.step(("c", "a")) is found.steps[-1]
    assert found.step(("c", "b")) is found.steps[-1]
    only = hloexec.graphing.quantity("x", {("c", "a"): float("inf")}, str)
    assert only.step(("c", "a")) is not None


def _checked(found: hloexec.Graph) -> dict[str, Any]:
    """The collection, of which everything refers to what is there."""
    text = json.dumps(graph_collection(found), allow_nan=False)
    collection: dict[str, Any] = json.loads(text)
    assert set(collection) == {"label", "graphs", "graphSorting"}
    names = [each["id"] for each in collection["graphs"]]
    assert len(set(names)) == len(names)
    for each in collection["graphs"]:
        identifiers = [node["id"] for node in each["nodes"]]
        assert len(set(identifiers)) == len(identifiers)
        for node in each["nodes"]:
            assert {edge["sourceNodeId"] for edge in node["incomingEdges"]} <= set(identifiers)
            assert set(node["subgraphIds"]) <= set(names)
            assert all(isinstance(entry["value"], str) for entry in node["attrs"])
        namespaces = {node["namespace"] for node in each["nodes"]}
        # Groups are named by their whole path.
        assert all(
            any(f"{name}/".startswith(f"{group}/") for name in namespaces) for group in each["groupNodeAttributes"]
        )
    return collection


def test_model_explorer_gets_nested_namespaces_and_subgraphs() -> None:
    nodes = {node["id"]: node for node in _checked(hloexec.graph(hloexec.parse(LOOP)))["graphs"][0]["nodes"]}
    assert nodes["fused/product"]["namespace"] == "loop/body/fusion"
    assert nodes["condition/goes_on"]["namespace"] == "loop/condition"
    assert nodes["main/root"]["namespace"] == ""
    shared = _checked(hloexec.graph(hloexec.parse(SHARED)))
    assert [each["id"] for each in shared["graphs"]] == ["main", "sum"]
    assert {node["id"]: node["subgraphIds"] for node in shared["graphs"][0]["nodes"]}["main/all"] == ["sum"]
    closed = _checked(hloexec.graph(hloexec.parse(SHARED), is_closed=True))
    assert {each["id"] for each in closed["graphs"]} == {"main", "half", "yes", "no", "sum"}


def test_scopes_of_frameworks_are_namespaces() -> None:
    module = hloexec.load("examples/attention.hlo")
    nodes = _checked(hloexec.graph(module))["graphs"][0]["nodes"]
    named = {node["id"]: node["namespace"] for node in nodes}
    checked = 0
    for each in module.entry:
        scopes = (each.op_name or "").split("/")[:-1]
        if (place := f"{module.entry_name}/{each.name}") in named:  # all but calls, which are opened
            assert named[place] == "/".join(scopes)
            checked += len(scopes) > 1
    assert checked > 10


def test_node_data_has_thresholds_that_rise_and_numbers_that_json_has() -> None:
    module = hloexec.parse(LOOP)
    values = {("main", "size"): float("inf"), ("main", "loop"): 1.0, ("body", "x"): 1e-9, ("no", "such"): 1.0}
    found = hloexec.graph(module, colours=hloexec.graphing.quantity("t", values, str))
    (data,) = json.loads(json.dumps(node_data(found), allow_nan=False)).values()
    assert set(data["results"]) == {"main/size", "main/loop", "body/x"}
    bounds = [step["value"] for step in data["thresholds"]]
    assert bounds == sorted(set(bounds))
    assert max(result["value"] for result in data["results"].values()) <= bounds[-1]
    assert node_data(hloexec.graph(module)) == {}


def test_hostile_names_stay_apart_in_json() -> None:
    found = hloexec.graph(hostile())
    nodes = _checked(found)["graphs"][0]["nodes"]
    assert len(nodes) == len(found.nodes)
    assert HOSTILE[1] in _checked(found)["label"]
    assert not any("//" in node["namespace"] for node in nodes)


def test_model_explorer_itself_takes_it() -> None:
    builder = pytest.importorskip("model_explorer.graph_builder", reason="ai-edge-model-explorer is not installed")
    dacite = pytest.importorskip("dacite")
    data_builder = pytest.importorskip("model_explorer.node_data_builder")
    module = hloexec.parse(LOOP)
    found = hloexec.graph(module, colours=hloexec.graphing.byte_colours(module))
    strict = dacite.Config(strict=True)
    assert dacite.from_dict(builder.GraphCollection, graph_collection(found), config=strict).graphs
    for data in node_data(found).values():
        assert dacite.from_dict(data_builder.GraphNodeData, data, config=strict).results
