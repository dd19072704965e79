"""docs/coming-from.md: each line of its table is among what the page runs."""

import re

from tests.docs import ROOT, commands_of

PAGE = ROOT / "docs" / "coming-from.md"


def test_every_line_of_the_table_is_one_that_the_page_runs() -> None:
    rows = re.findall(r"^\| (\d+) \| .* \| `([^`|]+)` \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert [int(number) for number, _ in rows] == [*range(1, 21)]
    commands = commands_of(PAGE)
    shell = {command.text for command in commands if command.file is None}
    python = "\n".join(command.text for command in commands if command.file is not None)
    assert [line for _, line in rows if line not in shell and line not in python] == []
