"""Pages that are files at the root of the repository: the home page is README.md, and so on.

They stay where a code forge and package tools look for them, and their links are made to fit the site.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

__all__ = ["on_files", "on_page_markdown"]

_PAGES = {
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "license.md": "LICENSE",
}
_LINK = re.compile(r"\]\(([\w./-]+)(#[\w-]+)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    root = Path(config.config_file_path).parent
    for page, name in _PAGES.items():
        text = (root / name).read_text(encoding="utf-8")
        content = _LINK.sub(_moved, text) if name.endswith(".md") else f"# Licence\n\n```text\n{text}```\n"
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """The text of a page of docs/ with its links to files at the root as links to their pages."""
    for page, name in _PAGES.items():
        markdown = markdown.replace(f"](../{name}", f"]({page}")
    return markdown


def _moved(link: re.Match[str]) -> str:
    """A link of a file at the root, as one of a page of docs/."""
    target = link[1]
    places = {name: page for page, name in _PAGES.items()}
    return f"]({places.get(target) or target.removeprefix('docs/')}{link[2] or ''})"
