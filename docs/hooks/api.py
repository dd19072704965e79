"""The index of the Python reference: for each page, the names that it documents."""

from __future__ import annotations

import re

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

__all__ = ["on_page_markdown"]

_ROW = re.compile(r"^(\| \[[^]]+\]\((\w+\.md)\) \| .+) \|$", re.MULTILINE)
_SHOWN = re.compile(r"^::: hloexec\.(\w+)$", re.MULTILINE)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Add links to the documented names to the rows of api/index.md."""
    if page.file.src_uri != "api/index.md":
        return markdown

    def with_names(row: re.Match[str]) -> str:
        file = files.get_file_from_path(f"api/{row[2]}")
        assert file is not None, row[2]
        names = " · ".join(f"[`{name}`]({row[2]}#hloexec.{name})" for name in _SHOWN.findall(file.content_string))
        return f"{row[1]}<br>{names} |"

    return _ROW.sub(with_names, markdown)
