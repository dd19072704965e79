"""Which instructions and edges a graph has."""

from __future__ import annotations

import random

import pytest

import hloexec
from hloexec.core.ir import Module
from tests.graphing.programs import LOOP, SHARED


def _edges(found: hloexec.Graph) -> set[tuple[str, str, str]]:
    return {("/".join(edge.source), "/".join(edge.target), edge.kind) for edge in found.edges}


def _names(found: hloexec.Graph) -> set[str]:
    return {"/".join(node.place) for node in found.nodes}


def test_a_fusion_that_is_opened_takes_and_gives_through_its_computation() -> None:
    edges = _edges(hloexec.graph(hloexec.parse(LOOP)))
    assert ("body/x", "fused/a", "data") in edges
    assert ("body/kept", "fused/b", "data") in edges
    assert ("fused/shifted", "body/end", "data") in edges
    assert not any("body/fusion" in edge for edge in edges)


def test_a_loop_takes_its_state_and_hands_it_on() -> None:
    edges = _edges(hloexec.graph(hloexec.parse(LOOP)))
    assert {edge for edge in edges if "main/loop" in edge or "body/state" in edge or "condition/given" in edge} == {
        ("main/start", "body/state", "data"),
        ("main/start", "condition/given", "data"),
        ("body/end", "body/state", "carried"),
        ("body/end", "condition/given", "carried"),
        ("body/end", "main/loop", "data"),
        ("condition/goes_on", "main/loop", "condition"),
        ("body/state", "body/count", "data"),
        ("body/state", "body/x", "data"),
        ("body/state", "body/kept", "data"),
        ("condition/given", "condition/number", "data"),
        ("main/loop", "main/found", "data"),
    }


def test_a_computation_that_several_call_is_there_once_and_its_callers_stay() -> None:
    found = hloexec.graph(hloexec.parse(SHARED))
    assert {("main/x", "half/given", "data"), ("main/first", "half/given", "data")} <= _edges(found)
    assert {("half/doubled", "main/first", "data"), ("half/doubled", "main/second", "data")} <= _edges(found)
    callers = {cluster.computation: cluster.caller for cluster in found.clusters}
    assert callers == {"main": None, "half": None, "yes": ("main", "chosen"), "no": ("main", "chosen")}


def test_a_conditional_takes_its_predicate_and_its_branches_take_the_operands() -> None:
    edges = _edges(hloexec.graph(hloexec.parse(SHARED)))
    assert {edge for edge in edges if edge[1] in ("main/chosen", "yes/taken", "no/left")} == {
        ("main/which", "main/chosen", "data"),
        ("yes/sine", "main/chosen", "data"),
        ("no/cosine", "main/chosen", "data"),
        ("main/first", "yes/taken", "data"),
        ("main/second", "no/left", "data"),
    }


def test_closed_graphs_have_the_edges_of_the_text_alone() -> None:
    module = hloexec.parse(LOOP)
    found = hloexec.graph(module, is_closed=True)
    assert _edges(found) == {
        (f"main/{operand}", f"main/{each.name}", "data") for each in module.entry for operand in each.operands
    }


def test_a_neighbourhood_has_what_is_computed_from_and_to_but_no_siblings() -> None:
    found = hloexec.graph(hloexec.parse(LOOP), around="%product", distance=1)
    assert _names(found) == {"fused/a", "fused/b", "fused/product", "fused/shifted"}
    assert {node.instruction.name for node in found.nodes if node.has_more} == {"a", "b", "shifted"}
    assert _names(hloexec.graph(hloexec.parse(LOOP), around="size", distance=0)) == {"main/size"}


def test_a_neighbourhood_follows_tuples_element_by_element() -> None:
    onward = _names(hloexec.graph(hloexec.parse(LOOP), around="size", distance=3))
    # size is element 1: of what the loop's body gets, only x is it.
    assert "body/x" in onward
    assert not onward & {"body/count", "body/kept", "condition/number"}
    back = _names(hloexec.graph(hloexec.parse(LOOP), around="kept", distance=3))
    assert "main/y" in back
    assert not back & {"main/size", "main/zero"}


def test_a_neighbourhood_of_a_fusion_is_that_of_all_it_computes() -> None:
    found = hloexec.graph(hloexec.parse(LOOP), around="loop[3]:body/fusion", distance=1)
    assert found.around == ("body", "fusion")
    assert {"fused/a", "fused/b", "fused/product", "fused/shifted", "body/x", "body/kept", "body/end"} == _names(found)


def test_a_reducer_is_drawn_by_itself() -> None:
    found = hloexec.graph(hloexec.parse(SHARED), around="total")
    assert found.computation == "sum"
    assert _names(found) == {"sum/l", "sum/r", "sum/total"}
    assert _names(hloexec.graph(hloexec.parse(SHARED), computation="%sum")) == {"sum/l", "sum/r", "sum/total"}


def _random_module(seed: int) -> Module:
    chance = random.Random(seed)
    lines = ["HloModule m", "ENTRY e {", "  v0 = f32[2] parameter(0)"]
    for number in range(1, 60):
        first, second = chance.randrange(number), chance.randrange(number)
        lines.append(f"  {'ROOT ' if number == 59 else ''}v{number} = f32[2] add(v{first}, v{second})")
    return hloexec.parse("\n".join([*lines, "}"]))


@pytest.mark.parametrize("seed", range(4))
def test_far_enough_a_neighbourhood_is_all_ancestors_and_descendants(seed: int) -> None:
    module = _random_module(seed)
    operands = {each.name: set(each.operands) for each in module.entry}
    ancestors: dict[str, set[str]] = {}
    for name, direct in operands.items():  # operands stand before what takes them
        ancestors[name] = direct.union(*(ancestors[each] for each in direct))
    descendants = {name for name in operands if "v20" in ancestors[name]}
    found = hloexec.graph(module, around="v20", distance=60)
    assert {node.instruction.name for node in found.nodes} == {"v20", *ancestors["v20"], *descendants}
