"""Syntax highlighting of HLO text, for code blocks fenced as `hlo`."""

from __future__ import annotations

from mkdocs.config.defaults import MkDocsConfig
from pygments import lexers
from pygments.lexer import RegexLexer, bygroups
from pygments.token import Comment, Keyword, Literal, Name, Number, Punctuation, Text

__all__ = ["HloLexer", "on_config"]


class HloLexer(RegexLexer):  # type: ignore[misc]
    """HLO text, precisely enough for highlighting."""

    name = "HLO"
    aliases = ("hlo",)
    tokens = {  # noqa: RUF012 - as Pygments has it
        "root": [
            (r"//.*", Comment.Single),
            (r"\b(HloModule|ENTRY|ROOT)\b", Keyword),
            (r"\b(pred|token|opaque|bf16|[sufc]\d+\w*)(?=\[)", Keyword.Type),
            (r"([a-z][a-z0-9-]*)(\()", bygroups(Name.Function, Punctuation)),
            (r"([\w.-]+)(=)", bygroups(Name.Attribute, Punctuation)),
            (r'"[^"]*"', Literal.String),
            (r"%?[A-Za-z_][\w.-]*", Name),
            (r"-?\d[\w.+]*", Number),
            (r"\s+", Text),
            (r".", Punctuation),
        ],
    }


def on_config(config: MkDocsConfig) -> None:
    """Register the lexer with Pygments."""
    lexers.LEXERS[HloLexer.__name__] = (__name__, HloLexer.name, HloLexer.aliases, (), ())
    lexers._lexer_cache[HloLexer.name] = HloLexer
