"""Docstrings of entries as Markdown: formulas become code, everything else stays as it is."""

from __future__ import annotations

import inspect
import re

__all__ = ["as_markdown", "escaped", "summary"]

_SOURCE = re.compile(r"\s+(\((?:XLA|StableHLO)[^()]*\))\.?$|\s+(Source: [^.]*\.?|XLA: \w+\.)$")
_FORMULA = re.compile(r"\w+\[[^=]*\] = .*|\w+\([\w.]*\)|\w+ = (?!.*\b[a-z]{2,} [a-z]{2,} )[^;]*")
_MARKS = str.maketrans({**{mark: f"\\{mark}" for mark in "\\*_[]|"}, "<": "&lt;", ">": "&gt;"})


def escaped(text: str) -> str:
    """Escape text for Markdown, except code between backticks."""
    return "".join(
        part if number % 2 else part.translate(_MARKS) for number, part in enumerate(re.split(r"(`[^`]*`)", text))
    )


def as_markdown(documentation: str) -> str:
    """Convert paragraphs; if the first is a formula, it becomes a code block."""
    blocks = []
    for number, block in enumerate(re.split(r"\n\s*\n", inspect.cleandoc(documentation))):
        text = " ".join(block.split())
        source = _SOURCE.search(text)
        stem = text[: source.start()] if source else text
        if number == 0 and "\n" not in block and re.fullmatch(_FORMULA, stem) and len(stem) <= 120:
            blocks.append(f"```text\n{stem}\n```")
            blocks += [escaped(_sentence(source[1] or source[2]))] if source else []
        else:
            blocks.append(escaped(text))
    return "\n\n".join(blocks)


def summary(documentation: str) -> str:
    """The first paragraph as one line, without its source."""
    text = " ".join(re.split(r"\n\s*\n", inspect.cleandoc(documentation))[0].split())
    return _SOURCE.sub("", text).rstrip(".")


def _sentence(source: str) -> str:
    inner = source.strip("().")
    return f"{inner}."
