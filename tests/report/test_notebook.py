"""What notebooks and prompts show of the values that functions return."""

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloexec
from tests.report.needs import require_report_packages
from tests.text.building import op

ROOT = Path(__file__).parents[2]
BAD = op("f32[3] log(x)", x="f32[3]")
X = np.array([1, -1, 2], np.float32)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One of each type."""
    folder = tmp_path_factory.mktemp("shown")
    module = hloexec.load(ROOT / "examples" / "attention.hlo")
    inputs = hloexec.random_inputs(module)
    golden = hloexec.record_golden(module, inputs, folder / "g.golden")
    bad = hloexec.parse(BAD)
    dumps = folder / "dumps"
    dumps.mkdir()
    for stage in ("before_optimizations", "cpu_after_optimizations"):
        (dumps / f"module_0001.m.{stage}.txt").write_text(BAD)
    return {
        "module": module,
        "computation": module.entry,
        "instruction": module.entry.root,
        "shape": module.entry.root.shape,
        "equal": hloexec.compare(inputs[0], inputs[0]),
        "different": hloexec.compare(np.float32(1), np.float32(2)),
        "nothing bad": hloexec.find_nan(module, inputs),
        "bad": hloexec.find_nan(bad, [X]),
        "NaN given": hloexec.find_nan(bad, [X * np.float32(np.nan)]),
        "no difference": hloexec.diff(module, module, inputs),
        "difference": hloexec.diff(bad, hloexec.parse(BAD.replace("log(", "exponential(")), [X * 0 + 1]),
        "folders": hloexec.diff_folders(dumps),
        "trace": hloexec.trace(bad, [X], folder / "t"),
        "read trace": hloexec.read_trace(folder / "t"),
        "memory": hloexec.memory_usage(module),
        "golden": golden,
        "check": hloexec.check_golden(golden.folder),
        "extraction": hloexec.extract(module, inputs, "dot_general.5"),
    }


def test_prompts_show_a_line(shown: dict[str, Any]) -> None:
    for name, value in shown.items():
        assert len(repr(value)) < 200 and "\n" not in repr(value), name
    assert repr(shown["module"]) == "<Module jit_attention: 167 instructions in 6 computations>"
    assert repr(shown["instruction"]) == "<Instruction %add.7 = f32[16,32] add(%x.1, %dot_general.7)>"
    assert repr(shown["shape"]) == "f32[16,32]{1,0}"
    assert repr(shown["bad"]) == "<NanSearch %root in main: logarithm of a negative number>"
    assert "is to blame" in repr(shown["difference"])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("module", ["jit_attention", "167 instructions", "w_qkv.1"]),
        ("equal", ["equal"]),
        ("different", ["different"]),
        ("nothing bad", ["nothing found"]),
        ("bad", ["log", "hloexec extract MODULE"]),
        ("NaN given", ["NaN"]),
        ("no difference", ["agree"]),
        ("difference", ["is to blame", "hloexec extract MODULE"]),
        ("folders", ["agree"]),
        ("memory", ["33.9 kB"]),
        ("check", ["g"]),
    ],
)
def test_notebooks_show_what_the_command_shows(
    shown: dict[str, Any], name: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    html = shown[name]._repr_html_()
    assert html.startswith("<pre") and html.endswith("</pre>")
    assert all(word in html for word in words)
    monkeypatch.undo()
    require_report_packages()
    html = shown[name]._repr_html_()
    assert html.startswith("<div") and html.rstrip().endswith("</div>")
    assert all(word in re.sub("<[^>]*>", "", html) for word in words)


@pytest.mark.parametrize("name", ["computation", "instruction", "golden", "extraction", "read trace"])
def test_what_has_no_view_is_shown_by_its_line(shown: dict[str, Any], name: str) -> None:
    assert shown[name]._repr_html_() is None


def test_names_from_a_module_are_no_markup_and_steer_no_terminal() -> None:
    text = BAD.replace("log(x)", 'log(x), metadata={op_name="<script>alert(1)</script>\x1b[31m"}')
    html = hloexec.find_nan(hloexec.parse(text), [X])._repr_html_()
    assert html is not None and "alert(1)" in html
    assert "<script" not in html and "\x1b" not in html


def test_a_module_that_is_not_well_formed_is_shown_by_its_line() -> None:
    module = hloexec.parse(BAD.replace("f32[3] log", "f32[4] log"))
    assert module._repr_html_() is None and "instructions in" in repr(module)
