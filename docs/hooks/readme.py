"""The table of commands in README.md, which has to stand there for those who read it on a code host.

`python -m docs.hooks.readme` (`make format`) writes it anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from hloexec.cli import _hloexec
from hloexec.tools.registration import GROUPS, TOOLS

__all__ = ["README", "command_table", "with_table"]

README = Path(__file__).resolve().parents[2] / "README.md"
_HEADER = "| | command | what it does |\n| --- | --- | --- |"


def command_table() -> str:
    """A row for each command, in the order of the help."""
    return "\n".join([_HEADER, *_rows()])


def _rows() -> Iterator[str]:
    context = click.Context(_hloexec)
    for group, title in GROUPS.items():
        label = f" **{title.split()[0]}**"
        for tool in (tool for tool in TOOLS.values() if tool.group == group):
            command = _hloexec.get_command(context, tool.name)
            assert command is not None
            more = f" ([docs/{tool.guide}.md](docs/{tool.guide}.md))" if tool.guide else ""
            yield f"|{label} | `{tool.name}` | {command.get_short_help_str(1000).removesuffix('.')}{more} |"
            label = ""


def with_table(text: str) -> str:
    """The text of README.md with the table as it is now."""
    before, header, rest = text.partition(_HEADER)
    assert header, f"README.md has no table that begins with {_HEADER}"
    return f"{before}{command_table()}\n\n" + rest.partition("\n\n")[2]


if __name__ == "__main__":
    README.write_text(with_table(README.read_text(encoding="utf-8")), encoding="utf-8")
