"""The opcode reference: a section per opcode, from its registry entry and its example."""

from __future__ import annotations

from collections.abc import Iterator

from known_differences import known_differences
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page
from opcode_examples import Example, read_examples
from prose import as_markdown, escaped, summary
from type_names import in_words

from hloexec.language.element_types import accepted_element_types
from hloexec.ops.attributes import attribute_fields
from hloexec.ops.registry import OPCODES, Entry, Role
from hloexec.ops.traits import Rounding

__all__ = ["on_page_markdown"]

_ROUNDING = {
    Rounding.NONE: "nothing is rounded",
    Rounding.ONCE: "the exact result, rounded once",
    Rounding.FORMAT: "to a narrower format than the result's type",
    Rounding.FUNCTION: "within a few units in the last place; under `exact` within 0.5 + 2⁻²⁰ of one",
    Rounding.SUM: "partial sums are rounded, in an unspecified order",
    Rounding.UNKNOWN: "in several steps",
}
_WITHOUT_ELEMENTS = (Role.PARTITION_ID, Role.REPLICA_ID, Role.TOKEN)
_DIFFERENCES = known_differences(OPCODES)


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Append the opcodes of a page to its introduction; on the index, append the list of all opcodes."""
    folder, _, name = page.file.src_uri.partition("/")
    if folder != "opcodes":
        return markdown
    if name == "index.md":
        return f"{markdown}\n\n{_index()}"
    sections = map(_section, read_examples(name.removesuffix(".md")))
    return "\n\n".join([markdown, *sections])


def _index() -> str:
    places = {example.opcode: example.page for example in read_examples()}
    rows = [
        f"| [`{name}`]({places[name]}.md#{name}) | {escaped(summary(OPCODES[name].documentation))} |"
        for name in sorted(OPCODES)
    ]
    return "\n".join(["| opcode | what it computes |", "| --- | --- |", *rows])


def _section(example: Example) -> str:
    entry = OPCODES[example.opcode]
    parts = [f"## {entry.name} {{ #{entry.name} }}", as_markdown(entry.documentation), "\n".join(_facts(entry))]
    parts.append(f"**Example.** {example.description}")
    parts.append(f'```hlo title="docs/opcodes/{example.page}/{entry.name}.hlo"\n{example.module.strip()}\n```')
    parts.append(_values(example))
    if entry.name in _DIFFERENCES:
        rows = "\n".join(f"- {difference}" for difference in _DIFFERENCES[entry.name])
        parts.append(f"**Known differences to XLA:CPU**\n\n{rows}")
    return "\n\n".join(parts)


def _facts(entry: Entry) -> Iterator[str]:
    yield f"- Operands: {_operand_count(entry)}"
    fields = attribute_fields(entry.attributes).values()
    if fields:
        required = [f"`{field.name}`" for field in fields if field.is_required]
        optional = [f"`{field.name}`" for field in fields if not field.is_required]
        joined = [", ".join(required)] if required else []
        joined += [f"optional {', '.join(optional)}"] if optional else []
        yield f"- Attributes: {'; '.join(joined)}"
    if entry.role not in _WITHOUT_ELEMENTS:
        yield f"- Element types: {in_words(accepted_element_types(entry))}"
    if entry.rounding is not Rounding.NONE:
        yield f"- Rounding: {_ROUNDING[entry.rounding]}"


def _operand_count(entry: Entry) -> str:
    least, most = entry.minimum_operands, entry.maximum_operands
    if most is None:
        return "any number" if least == 0 else f"{least} or more"
    return str(least) if least == most else f"{least} to {most}"


def _values(example: Example) -> str:
    width = max(len(given.label) for given in example.values)
    lines = [f"{given.label:<{width}} = {given.literal}" for given in example.values]
    return "\n".join(["``` { .text .values }", *lines, "```"])
