"""The page of JSON: the records that commands print, and their parts, out of the table of keys."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hloexec.report.json.keys import KEYS
from hloexec.report.json.records import RECORDS, printed_records

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

__all__ = ["on_page_markdown", "record_tables"]

_REMARK = "\nOn the site, a table of every record follows.\n"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put the records under what json.md says of all of them."""
    if page.file.src_uri != "json.md":
        return markdown
    return "\n\n".join([markdown.replace(_REMARK, ""), *record_tables()])


def record_tables() -> Iterator[str]:
    """One section per record: those that are printed, then their parts, in the order of their names."""
    yield "## Records"
    for name in printed_records():
        yield _section(name)
    yield "## Parts of records"
    for name in sorted(RECORDS.keys() - {*printed_records()}):
        yield _section(name)


def _section(name: str) -> str:
    rows = ["| key | | |", "| --- | --- | --- |"]
    for word in RECORDS[name].split():
        key = word.removesuffix("?")
        kind, meaning = KEYS[key]
        rows.append(f"| `{key}` | {_type_text(kind)}{' or null' if key != word else ''} | {meaning} |")
    title = f"hloexec.{name}" if name in printed_records() else name
    return f"### {title} {{ #{name} }}\n\n" + "\n".join(rows)


def _type_text(kind: str) -> str:
    """A type in words: `[leaf]` is a list of leaf, and the name of a record leads to it."""
    if kind.startswith("["):
        return f"list of {_type_text(kind[1:-1])}"
    if kind.startswith("{"):
        return f"object of {_type_text(kind[1:-1])}"
    if "|" in kind:
        return ", ".join(f"`{word}`" for word in kind.split("|"))
    return f"[{kind}](#{kind})" if kind in RECORDS else kind
