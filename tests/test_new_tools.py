"""A tool that one file registers is known to every surface of hloexec."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
from rich.console import Group, RenderableType
from rich.text import Text

import hloexec
from docs.hooks.api import completed, shown_names
from docs.hooks.readme import README, with_table
from docs.hooks.records import record_tables
from hloexec.cli import main
from hloexec.cli.help import examples
from hloexec.cli.options import file_argument, html_option, json_option, top_option
from hloexec.cli.reports import show_report, write_command_page
from hloexec.core.ir import Module
from hloexec.core.structs import frozen, told
from hloexec.core.values import Described
from hloexec.report.json.printed import File
from hloexec.report.layout import plain_table, with_rest
from hloexec.report.registry import Figures, Linker, Report
from hloexec.tools.registration import TOOLS, Tool, register
from hloexec.tools.watching.recording import Ranked
from tests.command_line import CommandLine
from tests.report.needs import require_report_packages
from tests.text.building import op

DOCS = README.with_name("docs")
TEXT = op("f32[2] negate(x)", x="f32[2]")


@frozen
class Longest:
    """An instruction with a long name."""

    computation: str
    instruction: str
    length: int
    """How many letters it has."""


@frozen(eq=False)
class Names(Described):
    """What is known of the names of a module."""

    module: Module
    longest: tuple[Longest, ...]
    """The instructions with the longest names."""

    @property
    @told
    def total(self) -> int:
        """How many letters all of them have."""
        return sum(each.length for each in self.longest)

    def __str__(self) -> str:
        return f"{self.total} letters"


def names(module: Module) -> Names:
    """The names of a module."""
    found = [Longest(each.name, inner.name, len(inner.name)) for each in module for inner in each]
    return Names(module, tuple(sorted(found, key=lambda each: -each.length)))


def _ranking(found: Names, _: Module) -> Iterator[Ranked]:
    for each in found.longest[:1]:
        yield Ranked((each.computation, each.instruction), f"it has {each.length} letters")


def _view(found: Names, top: int, _: object) -> RenderableType:
    table = plain_table(names=("instruction",), figures=("letters",))
    for each in found.longest[: top or None]:
        table.add_row(Text(each.instruction), str(each.length))
    line = f"{found} in all, %{found.longest[0].instruction} has most of them\n"
    return Group(Text(line), with_rest(table, len(found.longest), top))


def _figures(found: Names, link: Linker) -> Figures:
    from hloexec.report.html.plots import bars

    yield bars("Letters of names", [(each.instruction, each.length, "letters") for each in found.longest], "letters")


REPORTS = {Names: Report(_view, _figures, _ranking, module=lambda found: found.module)}


@click.command("names", epilog=examples("hloexec names module.hlo --top 0"))
@file_argument
@top_option(1)
@html_option
@json_option
def command(file: str, top: int, html: str | None, as_json: bool) -> None:
    """Count the letters of names."""
    found = names(hloexec.load(file))
    show_report("names", as_json, lambda: [File(file), found], lambda: _view(found, top, None))
    if html is not None:
        write_command_page(html, found, found.module, lambda top: _view(found, top, None), (("file", file),))


@pytest.fixture(autouse=True)
def _registered(empty_folder: Path) -> Iterator[None]:
    Path("m.hlo").write_text(TEXT)
    records = {"names": f"hloexec.report.json.printed.File {__name__}.Names"}
    public = f"{__name__}.names {__name__}.Names"
    register(
        Tool(
            "names", "inspecting", f"{__name__}.Names", __name__, records, names=public, command=__name__, guide="names"
        )
    )
    yield
    del TOOLS["names"]
    for name in ("names", "Names"):
        vars(hloexec).pop(name, None)


def test_it_is_a_command_in_its_group(cli: CommandLine) -> None:
    lines = cli("names m.hlo").splitlines()
    assert lines[0] == "5 letters in all, %root has most of them" and lines[-1] == "… and 1 more (--top 0 shows all)"
    assert re.search("\n  names +Count the letters of names", cli("--help").partition("Look at modules")[2])


def test_its_record_is_derived_and_is_of_its_schema(cli: CommandLine) -> None:
    record = cli.record("names m.hlo")
    assert (record["file"], record["total"], record["longest"][0]["instruction"]) == ("m.hlo", 5, "root")
    assert "module" not in record
    schema = json.loads(cli("schema names"))
    assert schema["properties"]["total"] == {"type": "integer", "description": "How many letters all of them have."}
    (part,) = schema["$defs"].values()
    assert part["properties"]["length"] == {"type": "integer", "description": "How many letters it has."}


def test_pages_and_notebooks_show_it() -> None:
    require_report_packages()
    assert main("names m.hlo --html command.html".split()) == 0
    hloexec.write_html(names(hloexec.load("m.hlo")), "function.html")
    for page in ("command.html", "function.html"):
        text = Path(page).read_text(encoding="utf-8")
        assert "5 letters in all" in text and "it has 4 letters" in text and "Letters of names" in text
    found = names(hloexec.load("m.hlo"))
    shown = found._repr_html_()
    assert shown is not None and "5 letters in all" in shown and "Letters of names" in shown
    assert repr(found) == "<Names 5 letters>"


def test_what_is_shown_in_a_line_has_to_say_what() -> None:
    with pytest.raises(TypeError, match="Mute is Described, and needs __str__"):
        type("Mute", (Described,), {})


def test_it_is_public_and_in_the_python_reference() -> None:
    assert hloexec.names is names and hloexec.Names is Names  # type: ignore[attr-defined]
    page = (DOCS / "api" / "inspecting.md").read_text(encoding="utf-8")
    assert "names" not in shown_names("explaining.md", page) and "Names" not in page
    assert shown_names("inspecting.md", page)[-2:] == ["names", "Names"]
    section = completed("inspecting.md", page).partition("## names { #names }\n\n")[2]
    assert section.startswith(
        "As [`hloexec names`](../commands.md#names): Count the letters of names.\n\n::: hloexec.names\n"
    )


def test_it_is_among_the_commands_and_records_of_the_site(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS / "hooks")
    from docs.hooks import commands

    page = commands.completed((DOCS / "commands.md").read_text(encoding="utf-8"))
    assert (
        "All but `fmt` and `schema` print" in page
        and "`isolate`, `nan`" in page
        and "and `names` write [a page" in page
    )
    section = page.partition("### names { #names }")[2]
    assert "Count the letters of names.\n\n[More about `names`](names.md)." in section and "--html" in section
    config = SimpleNamespace(nav=[{"Guides": [{"Run": "running.md"}]}, {"Explanations": ["debugging.md"]}])
    commands.on_config(config)
    guides = config.nav[0]["Guides"]
    assert guides[0] == {"Run": "running.md"} and guides[-1] == "names.md"
    assert "running.md" not in guides and "debugging.md" not in guides
    assert "| `total` | integer | How many letters all of them have. |" in "\n".join(record_tables())


def test_the_readme_lists_it() -> None:
    text = README.read_text(encoding="utf-8")
    row = "| | `names` | Count the letters of names ([docs/names.md](docs/names.md)) |"
    before, _, after = with_table(text).partition(f"{row}\n")
    assert before + after == text and before.endswith("|\n") and after.startswith("\n")
