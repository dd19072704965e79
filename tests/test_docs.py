"""Pages of the documentation are right, and what runs them notices where one is wrong.

Their commands say the same on a narrow terminal, without colours, and as JSON.
"""

import re
from pathlib import Path

import pytest

import hloexec
from conformance.xla import COMPILED_SOONEST
from docs.hooks.api import shown_names
from tests.docs import (
    PAGES,
    ROOT,
    commands_of,
    hloexec_words,
    require_as_written,
    run_command,
    run_page,
    start_page,
)
from tests.drawing import examples
from tests.here import triaging_here, xla_flags
from tests.otherwise import otherwise


def _page(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "page.md"
    path.write_text(text, encoding="utf-8")
    return path


def _run(tmp_path: Path, text: str) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    run_page(_page(tmp_path, text), folder)


@pytest.mark.parametrize(
    "body",
    [
        "$ echo one; echo two\none\ntwo\n",
        "$ echo one; echo two\n…\ntwo\n",
        "$ echo one; echo two\none\n…\n",
        "$ echo one; echo two\no…\nt…o\n",
        "$ echo took 1.25 ms, then 3s\ntook 80 µs, then 1.5s\n",
        "$ echo silence\n",
        "$ exit 3  # exits with 3\n",
        "$ echo a \\\n    b\na b\n",
        "$ echo x > kept\n$ cat kept\nx\n",
        "$ hloexec info examples/attention.hlo\njit_attention  167 instructions in …\n…\n",
        "$ ls examples/lower.py\nexamples/lower.py\n",
    ],
)
def test_pages_that_are_right(body: str, tmp_path: Path) -> None:
    _run(tmp_path, f"text\n\n```console\n{body}```\n")


@pytest.mark.parametrize(
    "body",
    [
        "$ echo one; echo two\none\n",
        "$ echo one; echo two\none\nthree\n",
        "$ echo one\none\ntwo\n",
        "$ echo 1.25 m\n1.30 m\n",
        "$ exit 3\n",
        "$ true  # exits with 1\n",
        "$ hloexec nonsense\n",
    ],
)
def test_pages_that_are_wrong(body: str, tmp_path: Path) -> None:
    with pytest.raises(pytest.fail.Exception):
        _run(tmp_path, f"```console\n{body}```\n")


def test_files_are_written_in_their_place(tmp_path: Path) -> None:
    text = "```python\n# made.py\nprint(6 * 7)\n```\n\n```python\nnot_a_file()\n```\n\n```console\n$ python made.py\n42\n```\n"
    _run(tmp_path, text)
    assert [command.file for command in commands_of(tmp_path / "page.md")] == ["made.py", None]


def test_files_of_hlo_are_written_too(tmp_path: Path) -> None:
    text = "```hlo\n// m.hlo\nHloModule m\n```\n\n```hlo\n// not a file\n```\n\n```console\n$ cat m.hlo\n// m.hlo\nHloModule m\n```\n"
    _run(tmp_path, text)
    assert [command.file for command in commands_of(tmp_path / "page.md")] == ["m.hlo", None]


def test_a_page_without_commands_is_no_walk_through(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="has no commands"):
        _run(tmp_path, "```python\nx = 1\n```\n")


_LONG_PAGES = [
    f"{page}.md"
    for page in (
        "bug-report",
        "coming-from",
        "debugging",
        "getting-a-dump",
        "html",
        "minifying",
        "pass-changed-a-result",
        "precision",
        "testing",
        "triage",
    )
]


@pytest.mark.slow_cases(*_LONG_PAGES)
@pytest.mark.parametrize("page", [page for page in PAGES if commands_of(page)], ids=lambda page: page.name)
def test_pages_are_right_and_their_commands_say_the_same_otherwise(page: Path, tmp_path: Path) -> None:
    """Where less is drawn, commands run once, as the page has them, and let XLA compile sooner."""
    folder = tmp_path / "work"
    is_quick = examples(100) < 100
    flags = COMPILED_SOONEST if is_quick else {}
    with triaging_here(), xla_flags(flags):
        for command in start_page(page, folder):
            words = hloexec_words(command)
            if is_quick or not words:
                run_command(command, folder, page.name)
                continue
            plain, found = otherwise(words, command.code, folder)
            require_as_written(command, plain, page.name)
            assert not found, "\n".join([command.text, *found])


def test_every_public_name_has_one_place_on_the_site() -> None:
    pages = (ROOT / "docs" / "api").glob("*.md")
    shown = [name for page in pages for name in shown_names(page.name, page.read_text(encoding="utf-8"))]
    assert sorted({*hloexec.__all__} - {"__version__"}) == sorted(shown)


def test_the_index_of_names_leads_to_every_page_of_them() -> None:
    folder = ROOT / "docs" / "api"
    rows = re.findall(
        r"^\| \[[^]]+\]\((\w+\.md)\) \| ", (folder / "index.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert sorted(rows) == sorted(page.name for page in folder.glob("*.md") if page.name != "index.md")
