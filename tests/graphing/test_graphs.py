"""Which instructions and edges a graph has."""

import random
import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import attrs
import pytest

import hloexec
from hloexec.core.ir import Module
from hloexec.errors import printable
from hloexec.tools.graphing.files import MOST_NODES
from hloexec.tools.graphing.flow import VERDICTS, ink, quantity
from tests.graphing.programs import LOOP, SHARED, hostile


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


needs_dot = pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
SVG = "{http://www.w3.org/2000/svg}"


def _groups(text: str) -> dict[str, ElementTree.Element]:
    """The groups of instructions in an image, by their names."""
    found = ElementTree.fromstring(text).iter(f"{SVG}g")
    return {group.attrib["data-instruction"]: group for group in found if "data-instruction" in group.attrib}


@needs_dot
def test_an_image_has_each_instruction_but_scalar_constants_with_its_shape_and_tooltip() -> None:
    module = hloexec.parse(LOOP)
    groups = _groups(hloexec.graph(module).svg())
    names = {each.name for computation in module for each in computation} - {"fusion"}
    assert set(groups) == names - {"one", "five", "zero"}
    said = " ".join(groups["next"].itertext())
    assert "add(·, 1)" in said
    assert "s32[]" in said
    title = groups["product"].findtext(f"{SVG}title")
    assert title == "%product = f32[8] multiply(%a, %b)\nin fused"


@needs_dot
def test_an_image_has_the_colours_a_legend_and_what_is_marked() -> None:
    module = hloexec.parse(LOOP)
    places = {("fused", "product"): 1e-3, ("fused", "shifted"): 1e-6}
    colours = quantity("error", places, "{:.0e}".format, marked=[("fused", "product")], meaning="worst")
    text = hloexec.graph(module, around="shifted", colours=colours).svg()
    groups = _groups(text)
    fills = {name: group.find(f".//{SVG}path").attrib["fill"] for name, group in groups.items()}
    assert fills["product"] == colours.steps[-1].colour
    assert fills["shifted"] == colours.steps[0].colour
    assert "marked" in groups["product"].attrib["class"]
    assert "around" in groups["shifted"].attrib["class"]
    said = " ".join(ElementTree.fromstring(text).itertext())
    assert all(step.label in said for step in colours.steps)
    assert "red: worst" in said


@needs_dot
def test_an_image_suits_dark_pages_and_refers_to_nothing() -> None:
    text = hloexec.graph(hloexec.parse(LOOP)).svg()
    assert "@media (prefers-color-scheme:dark)" in text
    assert not re.search(r"<script|href|url\(|@import|\bid=|<!DOCTYPE|<!ENTITY", text)
    # Text without a colour of its own takes that of the page; all others stand on a colour.
    assert 'fill="black"' not in text.partition("</style>")[2].replace('stroke="black"', "")
    style = text.partition("<style>")[2].partition("</style>")[0]
    rules = [rule for rule in re.findall(r"(?:^|\{)([^{}@]+)\{", style) if rule.strip()]
    assert rules
    assert all(".hlo-graph" in rule for rule in rules)


@needs_dot
def test_the_same_module_gives_the_same_image() -> None:
    assert hloexec.graph(hloexec.parse(SHARED)).svg() == hloexec.graph(hloexec.parse(SHARED)).svg()


@needs_dot
def test_hostile_names_and_texts_are_shown_as_they_are() -> None:
    module = hostile()
    found = hloexec.graph(module)
    groups = _groups(found.svg())
    for node in found.nodes:
        name = printable(node.instruction.name)
        group = groups.get(name)
        if group is None:
            assert node.instruction.opcode == "constant"
            continue
        assert (printable(node.instruction.op_name or "")).replace("\n", "\n") in (group.findtext(f"{SVG}title") or "")
        # Only what a group of an instruction consists of: no element comes from a name.
        assert {each.tag.removeprefix(SVG) for each in group.iter()} <= {"g", "title", "path", "text", "polygon"}
        shown = "".join(text.text or "" for text in group.iter(f"{SVG}text")).replace("\u00a0", " ")
        assert name[:10].replace("\n", " ").split()[0][:4] in shown


@needs_dot
def test_graphviz_reads_hostile_dot_as_so_many_nodes() -> None:
    found = hloexec.graph(hostile())
    ended = subprocess.run(["dot", "-Tplain"], input=found.dot().encode(), capture_output=True, check=True)
    assert not ended.stderr
    drawn = [line.split()[1] for line in ended.stdout.decode().splitlines() if re.match(r"node \w+ ", line)]
    assert len(drawn) == len(set(drawn)) == len(found.nodes) - 1  # the scalar constant is in its user
    assert all(re.fullmatch(r"n\d+", name) for name in drawn)


def test_a_string_of_dot_cannot_be_ended_by_what_is_in_it() -> None:
    for line in hloexec.graph(hostile()).dot().splitlines():
        tooltip = line.partition("tooltip=")[2]
        if tooltip:
            assert re.fullmatch(r'"(?:[^"\\]|\\.)*"(?:, .*)?\];', tooltip), line


@needs_dot
@pytest.mark.parametrize("name", "attention.optimized rnn_scan data_parallel_step mlp_train_step".split())
def test_examples_are_drawn(name: str) -> None:
    module = hloexec.load(Path("examples") / f"{name}.hlo")
    found = hloexec.graph(module, colours=hloexec.graphing.byte_colours(module))
    drawn = _groups(found.svg())
    assert len(found.nodes) > 10
    assert set(drawn) <= {node.instruction.name for node in found.nodes}
    assert len(found.nodes) - len(drawn) <= sum(node.instruction.opcode == "constant" for node in found.nodes) + len(
        found.nodes
    ) - len({node.instruction.name for node in found.nodes})


def test_text_stands_out_on_every_colour() -> None:
    many = quantity("x", {("c", str(number)): 10.0**number for number in range(8)}, str)
    assert len(many.steps) == 7

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    for step in (*many.steps, *VERDICTS):
        lighter, darker = sorted((luminance(step.colour), luminance(ink(step.colour))), reverse=True)
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, step  # WCAG 2, level AA
    # Colours go from light to dark.
    levels = [luminance(step.colour) for step in many.steps]
    assert levels == sorted(levels, reverse=True)


def test_a_graph_that_is_too_large_for_an_image_is_refused_with_a_remedy() -> None:
    lines = "\n".join(f"  v{number} = f32[] add(v{number - 1}, v{number - 1})" for number in range(1, MOST_NODES + 2))
    module = hloexec.parse(f"HloModule m\nENTRY e {{\n  v0 = f32[] parameter(0)\n{lines}\n}}")
    with pytest.raises(hloexec.ResourceError, match=rf"has {MOST_NODES + 2} instructions, .*\(around=NAME\)"):
        hloexec.graph(module).svg()
    with pytest.raises(hloexec.ResourceError, match="a smaller distance than 5000"):
        hloexec.graph(module, around="v1", distance=5000).svg()
    assert hloexec.graph(module).dot().count(" -> ") == MOST_NODES + 1


def test_without_graphviz_an_image_is_refused_and_the_others_are_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", "")
    found = hloexec.graph(hloexec.parse(LOOP))
    with pytest.raises(hloexec.UnsupportedError, match="install Graphviz"):
        found.save(tmp_path / "g.svg")
    assert list(tmp_path.iterdir()) == []
    assert found.save(tmp_path / "g.dot") == (str(tmp_path / "g.dot"),)
    assert found._repr_svg_() is None


@pytest.mark.parametrize("script", ["exit 3", "echo no >&2; exit 1", "exit 0"])
def test_a_graphviz_that_fails_is_an_error(script: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "dot").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "dot").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(hloexec.HloError, match="`dot` of Graphviz has failed"):
        hloexec.graph(hloexec.parse(LOOP)).svg()


def test_colours_do_not_change_what_is_drawn() -> None:
    module = hloexec.parse(LOOP)
    plain = hloexec.graph(module)
    coloured = attrs.evolve(plain, colours=hloexec.graphing.byte_colours(module))
    arrows = [line for line in coloured.dot().splitlines() if " -> " in line]
    assert arrows == [line for line in plain.dot().splitlines() if " -> " in line]
