"""Checks that the built site loads nothing from other hosts: no fonts, scripts, styles or images."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError

__all__ = ["on_post_build"]

_LOADING = {"script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data"}
_LOADING_LINKS = {"stylesheet", "icon", "preload", "preconnect", "dns-prefetch", "modulepreload"}
_IN_STYLES = re.compile(r"(?:@import\s+|url\()[\"']?((?:https?:)?//[^\"')]+)")


class _Loaded(HTMLParser):
    """Collects the addresses that a browser loads when it opens a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "link" and not _LOADING_LINKS.isdisjoint((given.get("rel") or "").split()):
            self.addresses.append(given.get("href") or "")
        elif tag in _LOADING:
            self.addresses.append(given.get(_LOADING[tag]) or "")


def on_post_build(config: MkDocsConfig) -> None:
    """Fail if a page or a style sheet loads something from another host."""
    found = []
    for path in sorted(Path(config.site_dir).rglob("*")):
        if path.suffix == ".html":
            page = _Loaded()
            page.feed(path.read_text(encoding="utf-8"))
            addresses = page.addresses
        elif path.suffix == ".css":
            addresses = _IN_STYLES.findall(path.read_text(encoding="utf-8"))
        else:
            continue
        found += [f"{path.name}: {each}" for each in addresses if each.startswith(("http:", "https:", "//"))]
    if found:
        raise PluginError("pages load files from other hosts:\n" + "\n".join(found))
