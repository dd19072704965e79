"""The documentation site's own parts: how entries become pages, and which differences they tell."""

import re
from pathlib import Path

import pytest

from docs.hooks.known_differences import known_differences
from docs.hooks.prose import as_markdown, escaped, summary
from docs.hooks.records import record_tables
from docs.hooks.type_names import in_words
from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.language.element_types import accepted_element_types
from hloexec.ops.attributes import attribute_fields
from hloexec.ops.contraction.dot import DOT_ALGORITHMS, DotAttributes
from hloexec.ops.registry import OPCODES
from hloexec.report.json.schemas import printed_records

DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.mark.parametrize(
    ("documentation", "markdown"),
    [
        ("lhs + rhs; integers wrap (XLA: Add).", "lhs + rhs; integers wrap (XLA: Add)."),
        ("to_apply(operands...)   (XLA: Call)", "```text\nto_apply(operands...)\n```\n\nXLA: Call."),
        ("out = a[i] * b_c\n\nOver `a_b` and i.\nSource: XLA, X.", "```text\nout = a[i] * b_c\n```\n\nOver `a_b` and i. Source: XLA, X."),
        ("|x|, a*b, <c>, [d]", "\\|x\\|, a\\*b, &lt;c&gt;, \\[d\\]"),
    ],
)  # fmt: skip
def test_docstrings_become_markdown(documentation: str, markdown: str) -> None:
    assert as_markdown(documentation) == markdown


def test_docstrings_are_summed_up_by_their_first_paragraph() -> None:
    assert summary("The larger one\nof two (XLA: Max).\n\nNaN propagates.") == "The larger one of two"
    assert escaped("a_b `c_d` e_f") == "a\\_b `c_d` e\\_f"


def test_element_types_are_named_by_their_kinds() -> None:
    def words(opcode: str) -> str:
        return in_words(accepted_element_types(OPCODES[opcode]))

    assert words("add") == "all"
    assert words("subtract") == "integers, floats, complex numbers"
    assert words("and") == "`pred`, integers"
    assert words("fft") == "`f32`, `f64`, complex numbers"
    assert in_words(each for each in ELEMENT_TYPES.values() if each.name in ("s8", "u8")) == "`s8`, `u8`"


def test_every_record_of_json_has_a_table_and_its_types_lead_to_tables() -> None:
    page = "\n\n".join(record_tables())
    anchors = re.findall(r"^### .* \{ #([\w.-]+) \}$", page, re.MULTILINE)
    assert len({*anchors}) == len(anchors) and {*printed_records()} < {*anchors}
    assert {*re.findall(r"\]\(#([\w.-]+)\)", page)} == {*anchors} - {*printed_records()}
    assert (
        "| `comparison` | [numerics.Comparison](#numerics.Comparison) or null | How far the results are apart" in page
    )


def test_known_differences_are_told_of_each_opcode() -> None:
    found = known_differences(OPCODES)
    assert any("lowest six bits" in difference and "`s16`" in difference for difference in found["power"])
    assert any("counts the sign-extended bits" in difference for difference in found["popcnt"])
    assert "add" not in found


def test_the_table_of_differences_names_opcodes_that_there_are() -> None:
    section = (DOCS / "differences.md").read_text(encoding="utf-8").partition("\n## Values\n")[2].partition("\n## ")[0]
    cases = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| ")]
    named = {name for case in cases for name in re.findall(r"`([^`]+)`", case)}
    known = {*OPCODES, *DOT_ALGORITHMS, *attribute_fields(DotAttributes)}
    assert len(named) > 15
    assert named <= known
