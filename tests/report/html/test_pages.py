"""Pages without a browser: what stands in them, that nothing of a module is markup, and values of every kind."""

import json
import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import attrs
import ml_dtypes
import numpy as np
import pytest

import hloexec
from hloexec.tools.watching.recording import difference_sample, error_sample, largest_of, value_sample
from tests.report.html.samples import ATTACK, EXAMPLES, hostile_module
from tests.report.needs import require_report_packages

require_report_packages()

VOID = {"meta", "link", "input", "br", "img", "hr", "image", "use", "path", "rect", "line", "circle"}


class _Reader(HTMLParser):
    """The elements of a page, its texts, and whether each is closed where it should be."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.data: dict[str, str] = {}
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        assert self.open and self.open[-1] == tag, (tag, self.open[-4:])
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("script", "style"):
            self.data[self.open[-1] + str(len(self.data))] = data
        else:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def _read(path: Path) -> _Reader:
    reader = _Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    reader.close()
    assert reader.open == []
    return reader


def _rows(reader: _Reader) -> list[list[Any]]:
    (data,) = [text for text in reader.data.values() if text.startswith("{")]
    found: list[list[Any]] = json.loads(data)["rows"]
    return found


@pytest.mark.parametrize("name", "run nan shadow diff memory compare explain triage".split())
def test_a_page_is_one_file_that_holds_all_it_needs(pages: dict[str, Path], name: str) -> None:
    reader = _read(pages[name])
    scripts = [found for tag, found in reader.elements if tag == "script"]
    assert all("src" not in found for found in scripts)
    assert [found for tag, found in reader.elements if tag in "img iframe object b".split()] == []
    for tag, found in reader.elements:
        for key, value in found.items():
            assert not key.startswith("on") and key != "style", (tag, key)
            if key in ("href", "src", "xlink:href"):
                assert value is not None and value.startswith(("#", "data:")), (tag, value)
    ids = [found["id"] for _, found in reader.elements if "id" in found]
    assert len(ids) == len(set(ids))
    (policy,) = [found["content"] for _, found in reader.elements if found.get("http-equiv")]
    assert policy is not None and policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy


@pytest.mark.parametrize("name", "shadow diff memory nan".split())
def test_links_lead_to_what_is_there(pages: dict[str, Path], name: str) -> None:
    reader = _read(pages[name])
    ids = {found["id"] for _, found in reader.elements if "id" in found}
    (data,) = [json.loads(text) for text in reader.data.values() if text.startswith("{")]
    known = {f"{data['anchors'][row[1]]}/{row[0]}" for row in data["rows"]}
    links = [found["href"] for tag, found in reader.elements if tag == "a"]
    assert [link for link in links if link is not None and link[1:] not in ids | known] == []
    assert any("/" in str(link) for link in links)


def test_a_page_says_what_the_terminal_says(pages: dict[str, Path]) -> None:
    attention = hloexec.load(EXAMPLES / "attention.hlo")
    inputs = hloexec.random_inputs(attention)
    found = hloexec.shadow(attention, inputs)
    text = _read(pages["shadow"]).text
    assert "nothing but rounding in the outputs of the module" in text
    assert found.culprit is not None and f"1 %{found.culprit.instruction} rounding" in text
    changed = hloexec.parse((EXAMPLES / "attention.hlo").read_text().replace("divide(", "multiply(", 1))
    diff = hloexec.diff(attention, changed, inputs)
    text = _read(pages["diff"]).text
    assert f"%{diff.findings[0].after.instruction} is to blame" in text and diff.picture in text
    assert str(diff.findings[0].after.source(diff.after)[0]) in text


def test_all_instructions_are_in_the_table_with_their_figures(pages: dict[str, Path]) -> None:
    module = hloexec.load(EXAMPLES / "attention.hlo")
    rows = _rows(_read(pages["shadow"]))
    assert [row[0] for row in rows] == [each.name for computation in module for each in computation]
    by_name = {row[0]: row for row in rows}
    root = by_name[module.entry.root_name]
    error, largest, runs = root[9:]
    found = hloexec.shadow(module, hloexec.random_inputs(module)).outputs[0]
    # Both are roots of sums of squared errors, relative to the values here and to the exact numbers there.
    assert error == pytest.approx(found.relative_error, rel=1e-4)
    (result,) = [hloexec.run(module, *hloexec.random_inputs(module))]
    assert largest == float(np.abs(result).max()) and runs == 1
    assert root[6].startswith("ROOT %") and [rows[number][0] for number in root[7]] == list(module.entry.root.operands)


def test_errors_of_a_diff_grow_from_the_instruction_to_blame(pages: dict[str, Path]) -> None:
    rows = {row[0]: row for row in _rows(_read(pages["diff"]))}
    blamed = [name for name, row in rows.items() if row[9] == "to blame"]
    assert blamed and all(rows[name][10] == "inf" or rows[name][10] > 1e-3 for name in blamed)
    assert all(row[10] in (0.0, None) for row in rows.values() if row[9] == "the same")


def test_names_of_all_kinds_are_text_in_pages_and_notebooks(tmp_path: Path) -> None:
    module = hostile_module()
    main = module.entry
    renamed = attrs.evolve(
        main,
        name=ATTACK,
        root_name=ATTACK,
        instructions=tuple(attrs.evolve(each, name=ATTACK) if each.name == main.root_name else each for each in main),
    )
    others = tuple(each for each in module if each.name != main.name)
    module = attrs.evolve(module, computations=(*others, renamed), entry_name=ATTACK)
    path = tmp_path / "page.html"
    hloexec.write_html(hloexec.memory_usage(module), path, module=module)
    reader = _read(path)
    assert [tag for tag, _ in reader.elements if tag in ("img", "b")] == []
    assert "onerror=hacked" in reader.text
    assert len([tag for tag, _ in reader.elements if tag == "script"]) == 2
    fragment = _Reader()
    html = hloexec.memory_usage(module)._repr_html_()
    assert html is not None
    fragment.feed(html)
    assert {tag for tag, _ in fragment.elements} & {"img", "b", "script"} == set()


VALUES: dict[str, Any] = {
    "nothing": np.zeros((0, 3), np.float32),
    "a scalar": np.array(-0.0, np.float32),
    "eight dimensions": np.arange(256, dtype=np.float64).reshape((2,) * 8),
    "not finite": np.array([np.nan, np.inf, -np.inf, -0.0, 1e-45, 3e38], np.float32),
    "complex": np.array([[1 + 2j, np.inf + 0j, np.nan * 1j]], np.complex64),
    "four bits": np.array([-8, 7, 0], ml_dtypes.int4),
    "an exponent": np.array([2.0, 4.0], ml_dtypes.float8_e8m0fnu),
    "preds": np.array([[True], [False]]),
    "large integers": np.array([2**64 - 1, 0], np.uint64),
    "smallest": np.full(3, 5e-324),
    "strided": np.arange(24, dtype=np.float32).reshape(4, 6)[::2, ::-3],
}


@pytest.mark.parametrize("name", VALUES)
def test_values_of_every_kind_can_be_drawn(name: str) -> None:
    value = VALUES[name]
    with np.errstate(all="raise"):
        sample = value_sample(value)
        same = error_sample(value, value.copy())
    wide = np.abs(value.astype(np.complex128 if value.dtype.kind == "c" else np.float64)).reshape(-1)
    finite = wide[np.isfinite(wide)]
    assert sample.spectrum.total == value.size == same.spectrum.total
    assert sample.spectrum.infinite == value.size - finite.size
    assert sample.spectrum.zeros == int((finite == 0).sum())
    assert sample.largest == max(finite.tolist(), default=0.0)
    assert same.spectrum.zeros == value.size
    assert largest_of(value) == (max(finite.tolist(), default=None), value.size - finite.size)


def test_a_heat_map_has_the_largest_of_each_block() -> None:
    value = np.zeros((2, 640, 320), np.float32)
    value[1, 639, 319], value[0, 10, 2], value[0, 0, 0] = 3.0, np.nan, -2.0
    cells = value_sample(value).grid.cells
    assert cells.shape == (64, 160)
    assert cells[63, 159] == 3.0 and cells[1, 1] == np.inf and cells[0, 0] == 2.0
    assert np.count_nonzero(cells) == 3


def test_a_hundred_million_elements_are_drawn_without_copies_of_them() -> None:
    value = np.broadcast_to(np.float32(0.5), (100, 1000, 1000))[:, :, ::50]
    sample = value_sample(value)
    assert sample.spectrum.total == 2_000_000 and sample.grid.cells.min() == 0.5


def test_differences_are_in_units_of_the_last_place() -> None:
    values = np.array([1.0, 2.0, 0.0, 1e30], np.float32)
    ulps = np.spacing(np.array([1.0, 2.0, np.finfo(np.float32).tiny, 1e30], np.float32)).astype(np.float64)
    sample = difference_sample(values, ulps * [0.5, 1.0, 4.0, 16.0])
    assert sample.grid.cells.tolist() == [[0.5, 1.0, 4.0, 16.0]]


def test_tuples_and_tokens_break_no_page(tmp_path: Path) -> None:
    module = hloexec.parse("""HloModule m
ENTRY e {
  t = token[] after-all()
  p = (f32[2], (s4[3], c64[])) parameter(0)
  g = f32[2] get-tuple-element(p), index=0
  ROOT r = (token[], f32[2], (f32[2])) tuple(t, g, w)
  w = (f32[2]) tuple(g)
}
""")
    path = tmp_path / "page.html"
    hloexec.write_html(module, path, inputs=hloexec.random_inputs(module))
    assert len(_rows(_read(path))) == 5


@pytest.mark.slow_cases("1.7e+308", "5e-324", "1.0")
@pytest.mark.parametrize("size", [1.7e308, 5e-324, 1.0, 0.0])
def test_the_largest_and_the_smallest_numbers_break_no_page(size: float, tmp_path: Path) -> None:
    module = hloexec.parse("""HloModule m
ENTRY e {
  x = f64[4] parameter(0)
  y = f64[4] negate(x)
  ROOT z = (f64[4], f64[4]) tuple(x, y)
}
""")
    x = np.array([size, -size, np.inf, size / 2])
    hloexec.write_html(module, tmp_path / "run.html", inputs=[x])
    hloexec.write_html(hloexec.compare(x, x * 0.5), tmp_path / "compare.html")
    assert len(_rows(_read(tmp_path / "run.html"))) == 3


def _memory_page(path: Path) -> _Reader:
    module = hloexec.load(EXAMPLES / "rnn_scan.hlo")
    hloexec.write_html(hloexec.memory_usage(module), path, module=module, top=1)
    return _read(path)


@pytest.mark.skipif(shutil.which("dot") is None, reason="Graphviz is not installed")
def test_the_graph_around_an_instruction_links_to_its_neighbours(tmp_path: Path) -> None:
    reader = _memory_page(tmp_path / "page.html")
    labels = [found.get("aria-label") for tag, found in reader.elements if tag == "a" and "aria-label" in found]
    names = {f"%{row[0]}" for row in _rows(reader)}
    assert "The graph around it, up to" in reader.text
    assert len(labels) > 2 and names.issuperset(str(label) for label in labels)


def test_without_graphviz_a_sentence_stands_for_the_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    text = _memory_page(tmp_path / "page.html").text
    assert "There is no graph of what is around it: the program dot of Graphviz is not installed." in text


def test_the_same_result_gives_the_same_page(tmp_path: Path) -> None:
    module = hloexec.load(EXAMPLES / "rnn_scan.hlo")
    for name in ("one", "two"):
        hloexec.write_html(hloexec.memory_usage(module), tmp_path / name, module=module, top=2)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_notebooks_show_tables_and_plots_and_text_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    found = hloexec.compare(np.arange(40, dtype=np.float32), np.arange(40, dtype=np.float32) * 2)
    html = found._repr_html_()
    assert html is not None and "<table" in html and "<svg" in html and "<script" not in html
    monkeypatch.setitem(sys.modules, "jinja2", None)
    html = found._repr_html_()
    assert html is not None and html.startswith("<pre") and "different" in html


@pytest.mark.parametrize("missing", ["jinja2", "matplotlib"])
def test_a_missing_extra_is_named(missing: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    found = hloexec.compare(np.float32(1), np.float32(1))
    with pytest.raises(hloexec.UnsupportedError, match=r"needs (Jinja2|Matplotlib), which .*hloexec\[report\]"):
        hloexec.write_html(found, tmp_path / "page.html")


def test_a_page_that_is_there_stays_if_the_new_one_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "page.html"
    path.write_text("old")

    def fail(*_: object) -> str:
        raise MemoryError

    monkeypatch.setattr("hloexec.report.html.rendering.render", fail)
    with pytest.raises(MemoryError):
        hloexec.write_html(hloexec.compare(np.float32(1), np.float32(1)), path)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"result": 5}, "result must be what compare, diff"),
        ({"path": "missing/page.html"}, "there is no folder"),
        ({"path": "."}, "is a folder"),
        ({"path": ""}, "is empty"),
        ({"path": 3}, "path must be a path"),
        ({"module": "x"}, "module must be a Module"),
        ({"top": -1}, "top must not be negative"),
        ({"inputs": [1]}, "inputs need the module"),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str, empty_folder: Path) -> None:
    given = {"result": hloexec.compare(np.float32(1), np.float32(1)), "path": "page.html", **arguments}
    with pytest.raises(hloexec.InputError, match=re.escape(message)):
        hloexec.write_html(given.pop("result"), given.pop("path"), **given)
    assert list(empty_folder.iterdir()) == []


def test_a_run_that_fails_leaves_a_page_without_values(tmp_path: Path) -> None:
    module = hloexec.load(EXAMPLES / "attention.hlo")
    inputs = hloexec.random_inputs(module)
    found = hloexec.find_nan(module, inputs)
    hloexec.write_html(found, tmp_path / "page.html", module=module, inputs=inputs, memory_limit=1)
    assert "There are no plots of values: the run for them failed" in _read(tmp_path / "page.html").text
