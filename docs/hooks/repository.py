"""Pages from files at the root of the repository: README.md becomes the home page, for example.

The files stay where code hosts and packaging tools expect them; their links are converted for the site.
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
_WITHOUT_NAVIGATION = "---\nhide: [navigation]\n---\n\n"
"""Front matter of a page that is the only one of its tab."""
_LINK = re.compile(r"\]\(([\w./-]+)(#[\w-]+)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    root = Path(config.config_file_path).parent
    for page, name in _PAGES.items():
        text = (root / name).read_text(encoding="utf-8")
        content = _LINK.sub(_moved, text) if name.endswith(".md") else f"# Licence\n\n```text\n{text}```\n"
        if page == "index.md":
            content = _WITHOUT_NAVIGATION + content
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Convert links from pages of docs/ to files at the root to links to their pages."""
    for page, name in _PAGES.items():
        markdown = markdown.replace(f"](../{name}", f"]({page}")
    return markdown


def _moved(link: re.Match[str]) -> str:
    """Convert a link in a file at the root to a link in a page of docs/."""
    target = link[1]
    places = {name: page for page, name in _PAGES.items()}
    return f"]({places.get(target) or target.removeprefix('docs/')}{link[2] or ''})"
