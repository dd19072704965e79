"""The page of JSON: the records that commands print, and their parts, out of the classes of results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hloexec.report.json.deriving import Key, keys_of
from hloexec.report.json.schemas import parts_of, printed_keys, printed_records

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
    parts: dict[str, type] = {}
    yield "## Records"
    for name in printed_records():
        yield _section(name, f"hloexec.{name}", printed_keys(name))
        parts |= parts_of(printed_keys(name))
    yield "## Parts of records"
    for name, cls in sorted(parts.items()):
        yield _section(name, name, keys_of(cls))


def _section(anchor: str, title: str, keys: Sequence[Key]) -> str:
    rows = ["| key | | |", "| --- | --- | --- |"]
    rows += [f"| `{key.name}` | {_type_text(key.schema)} | {key.meaning} |" for key in keys]
    return f"### {title} {{ #{anchor} }}\n\n" + "\n".join(rows)


def _type_text(schema: Mapping[str, Any]) -> str:
    """A type in words; the name of a record leads to it."""
    if "anyOf" in schema:
        kinds = [_type_text(each) for each in schema["anyOf"]]
        return "number" if kinds == ["number", '`"inf"`, `"-inf"`, `"nan"`'] else " or ".join(kinds)
    if "enum" in schema:
        return ", ".join(f'`"{word}"`' for word in schema["enum"])
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name})"
    if "prefixItems" in schema:
        return "pair of numbers"
    if schema["type"] == "array":
        return f"list of {_type_text(schema['items'])}"
    if schema["type"] == "object":
        return f"object of {_type_text(schema['additionalProperties'])}"
    return {"string": "text", "boolean": "flag"}.get(schema["type"], str(schema["type"]))
