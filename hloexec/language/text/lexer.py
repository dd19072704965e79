"""Tokens of HLO text.

One compiled regular expression, matched on demand: the lexer holds one token (its kind, text and span) and moves on
when told to. A whole array shape with its layout is one token, because most of a dump is shapes and most shapes repeat.
Where an attribute has a grammar of its own (`3x3`, `b01f_01io->b01f`), the parser asks for the current token to be
lexed again with that pattern.
"""

from __future__ import annotations

import re
from typing import NoReturn

from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.core.wording import truncated
from hloexec.errors import ParseError

# Token kinds are the numbers of the groups in the pattern below.
SHAPE, NAME, NUMBER, STRING, PUNCTUATION, END, BAD = range(1, 8)

NAME_PATTERN = r"[A-Za-z_][A-Za-z0-9_.\-]*+"

_TYPE_NAMES = "|".join(sorted(ELEMENT_TYPES, key=len, reverse=True))

SKIPPED = r"(?:[ \t\n\r]++|//[^\n\r\0]*+|/\*(?:[^*\0]|\*(?!/))*+\*/)*+"

_TOKEN = re.compile(
    SKIPPED + r"(?:"
    # SHAPE: an element type, its dimensions and, where the brace that follows can be one, its layout.
    rf"((?=[a-z][a-z0-9]*+\[)(?:{_TYPE_NAMES})\[[^\[\](){{}}\"/]*+\](?:\{{[0-9:][^{{}}\"/]*+\}})?)"
    rf"|(%?{NAME_PATTERN})"  # NAME
    r"|(-?[0-9]++(?:\.[0-9]*+)?(?:[eE][+-]?[0-9]++)?|-\.[0-9]++(?:[eE][+-]?[0-9]++)?|-inf|-nan)"  # NUMBER
    r"|(\"(?:[^\"\\]|\\.)*+\"|'(?:[^'\\]|\\.)*+')"  # STRING
    r"|(->|<=|\.\.\.|[=,:*#+~\[\]{}()?])"  # PUNCTUATION
    r"|(\Z)"  # END
    r"|((?s:.))"  # BAD
    r")"
)

_LONGEST_MESSAGE = 600

STACK_FRAME_TABLES = ("FileNames", "FunctionNames", "FileLocations", "StackFrames")
"""What the tables of a module's stack frames begin with, in their order."""
RESERVED = frozenset(
    "true false inf nan HloModule ENTRY ROOT FileNames FunctionNames FileLocations StackFrames maximal replicated "
    "manual last_tile_dim_replicate shard_as shard_like unknown unreduced".split()
)
"""The words that are no names unless a `%` stands before them."""

_UNESCAPE = re.compile(
    r"\\(?:([abfnrtv\\'\"?])|([0-7]{1,3})|[xX]([0-9a-fA-F]+)|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.?))"
)
_SIMPLE_ESCAPES = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92, "'": 39, '"': 34, "?": 63}
_STRING_BODY = re.compile(r'"(?:[^"\\]|\\.)*+"')
_BRACE_OR_QUOTE = re.compile(r'[^{}"]*+([{}"])')


class Lexer:
    """A text and the current token in it.

    `kind` is one of the constants of this module, `value` the token's text, `start` and `end` its span. Lines are
    counted where a message needs them, from the last such place on.
    """

    __slots__ = ("_counted", "end", "filename", "kind", "start", "strict", "text", "value")

    def __init__(self, text: str, filename: str = "<string>", *, strict: bool = False) -> None:
        self.text = text
        self.filename = filename
        self.strict = strict
        self.kind = BAD
        self.value = ""
        self.start = 0
        self.end = 0
        self._counted = (0, 1)
        self.advance()

    def advance(self) -> None:
        """Move to the next token."""
        match = _TOKEN.match(self.text, self.end)
        assert match is not None
        kind = match.lastindex
        assert kind is not None
        self.kind = kind
        self.start, self.end = match.span(kind)
        self.value = match[kind]

    def move_to(self, position: int) -> None:
        """Make the token that begins at or after `position` the current one."""
        if position != self.start:
            self.end = position
            self.advance()

    def following(self) -> str:
        """The text of the token after the current one."""
        match = _TOKEN.match(self.text, self.end)
        assert match is not None
        return match[match.lastindex or 0]

    def take(self, punctuation: str) -> bool:
        """Move past `punctuation` if it is the current token."""
        if self.value == punctuation and self.kind == PUNCTUATION:
            self.advance()
            return True
        return False

    def expect(self, punctuation: str, context: str) -> None:
        """Move past `punctuation`, which must be the current token; `context` ends the sentence "expected … …"."""
        self.require(punctuation, context)
        self.advance()

    def require(self, punctuation: str, context: str) -> None:
        """As `expect`, but stay there."""
        if self.value != punctuation or self.kind != PUNCTUATION:
            self.fail(f"expected '{punctuation}' {context}, found {self.describe()}")

    def at(self, punctuation: str) -> bool:
        """Whether the current token is `punctuation`."""
        return self.value == punctuation and self.kind == PUNCTUATION

    def at_word(self, word: str) -> bool:
        """Whether the current token is the bare word `word`."""
        return self.value == word and self.kind == NAME

    def name(self, subject: str) -> str:
        """A name, with or without its `%`, or with a trailing colon; `subject` says whose name is expected."""
        if self.kind != NAME:
            self.fail(f"expected {subject}, found {self.describe()}")
        value = self.value
        if value[0] == "%":
            self.advance()
            return value[1:]
        if self.text.startswith(":", self.end):
            self.move_to(self.end + 1)
            return value
        if value in RESERVED or value in ELEMENT_TYPES:
            self.fail(f"expected {subject}, found the reserved word '{value}'")
        self.advance()
        return value

    def word(self, subject: str) -> str:
        """A bare word, without `%`."""
        if self.kind != NAME or self.value[0] == "%":
            self.fail(f"expected {subject}, found {self.describe()}")
        value = self.value
        self.advance()
        return value

    def attribute_name(self, subject: str) -> str:
        """`name=`, without space between; moves past both."""
        if self.kind != NAME or self.value[0] == "%" or not self.text.startswith("=", self.end):
            description = f"'{self.value} ='" if self.kind == NAME and self.following() == "=" else self.describe()
            self.fail(f"expected the name of {subject} followed by '=', found {description}")
        value = self.value
        self.move_to(self.end + 1)
        return value

    def integer(self, subject: str) -> int:
        """An integer that fits 64 bits; one beyond the signed range wraps, as in XLA."""
        if self.kind == NUMBER:
            try:
                value = int(self.value)
            except ValueError:
                self.fail(f"expected {subject} (an integer), found {self.describe()}")
            if not -(1 << 63) <= value < 1 << 64:
                self.fail(f"{subject} {self.value[:40]} does not fit 64 bits")
            self.advance()
            return value if value < 1 << 63 else value - (1 << 64)
        raise self.error(f"expected {subject} (an integer), found {self.describe()}")

    def number(self, subject: str) -> float:
        """A finite or infinite number as a double."""
        if self.kind == NUMBER and self.value[-1] in "0123456789.":
            value = float(self.value)
            if value in (float("inf"), float("-inf")):
                self.fail(f"{subject} {self.value[:40]} is out of the range of a double")
        elif self.kind in (NAME, NUMBER) and self.value in ("inf", "-inf", "nan", "-nan"):
            value = float(self.value)
        else:
            self.fail(f"expected {subject} (a number, inf or nan), found {self.describe()}")
        self.advance()
        return value

    def boolean(self, subject: str) -> bool:
        """`true` or `false`."""
        if self.kind != NAME or self.value not in ("true", "false"):
            self.fail(f"expected {subject} (true or false), found {self.describe()}")
        value = self.value == "true"
        self.advance()
        return value

    def string(self, subject: str) -> str:
        """A quoted string, unescaped."""
        if self.kind != STRING:
            self.fail(f"expected {subject} (a quoted string), found {self.describe()}")
        start = self.start
        value = unescape(self.value[1:-1])
        if value is None:
            self.fail(f"{subject} has an escape sequence that is not one of C's", start)
        self.advance()
        return value

    def string_or_dictionary(self, subject: str) -> str:
        """A quoted string, unescaped, or the verbatim text of a brace-enclosed dictionary."""
        if self.at("{"):
            end = dictionary_end(self.text, self.start)
            if end is None:
                self.fail(f"the '{{' that opens {subject} is never closed")
            value = self.text[self.start : end]
            self.move_to(end)
            return value
        return self.string(subject)

    def pattern(self, pattern: re.Pattern[str], subject: str) -> re.Match[str]:
        """Lex the current token again with a grammar of its own."""
        match = pattern.match(self.text, self.start)
        if match is None:
            self.fail(f"expected {subject}, found {self.describe()}")
        self.move_to(match.end())
        return match

    def describe(self) -> str:
        """The current token in words, for "found …"."""
        if self.kind == END:
            return "the end of the text, which may have been cut off"
        if self.value == "...":
            return "'...', where something may have been left out"
        if self.kind == BAD:
            if self.value == "\0":
                return "a NUL byte"
            if self.value in "\"'":
                return "a string without its closing quote"
            if self.text.startswith("/*", self.start):
                return "a comment without its closing '*/'"
            return f"the character {self.value!r}"
        return f"'{truncated(self.value, 60)}'"

    def end_of(self, subject: str) -> None:
        """Fail unless nothing follows; `subject` says of what this is the end."""
        if self.kind != END:
            self.fail(f"expected the end of {subject}, found {self.describe()}")

    def fail(self, message: str, position: int | None = None) -> NoReturn:
        """Raise a ParseError at `position`, or at the current token."""
        raise self.error(message, position)

    def error(self, message: str, position: int | None = None) -> ParseError:
        """The ParseError of a message at `position`, or at the current token."""
        offset = min(self.start if position is None else position, len(self.text))
        if len(message) > _LONGEST_MESSAGE:
            message = f"{message[: _LONGEST_MESSAGE // 2]} … {message[-_LONGEST_MESSAGE // 2 :]}"
        line_start = self.text.rfind("\n", 0, offset) + 1
        line_end = self.text.find("\n", offset)
        counted, line = self._counted
        if offset < counted:
            counted, line = 0, 1
        line += self.text.count("\n", counted, offset)
        self._counted = (offset, line)
        return ParseError(
            message,
            line=line,
            column=offset - line_start + 1,
            source_line=self.text[line_start : len(self.text) if line_end < 0 else line_end].rstrip("\r"),
            filename=self.filename,
        )


def dictionary_end(text: str, start: int) -> int | None:
    """The offset after the brace that closes the one at `start`; braces inside double quotes do not count."""
    return end_of_braces(text, start, _BRACE_OR_QUOTE, _STRING_BODY)


def end_of_braces(text: str, start: int, sign: re.Pattern[str], apart: re.Pattern[str]) -> int | None:
    """The offset after the brace that closes the one at `start`, None where none does.

    `sign` finds the next brace, as its only group, or the beginning of what `apart` matches, whose braces do not count.
    """
    depth, position = 0, start
    while match := sign.match(text, position):
        position = match.end()
        if match[1] == "{":
            depth += 1
        elif match[1] == "}":
            depth -= 1
            if depth == 0:
                return position
        elif (whole := apart.match(text, match.start(1))) is not None:
            position = whole.end()
        else:
            return None
    return None


def is_dictionary(text: str) -> bool:
    """Whether a string can be written without quotes, as a brace-enclosed dictionary."""
    return text.startswith("{") and dictionary_end(text, 0) == len(text)


def unescape(text: str) -> str | None:
    """Undo C escapes; None where one is malformed. Escaped bytes are read as UTF-8."""
    if "\\" not in text:
        return text
    pieces: list[bytes] = []
    position = 0
    for match in _UNESCAPE.finditer(text):
        pieces.append(text[position : match.start()].encode("utf-8", "surrogateescape"))
        position = match.end()
        simple, octal, hexadecimal, short, long, _ = match.groups()
        if simple:
            pieces.append(bytes((_SIMPLE_ESCAPES[simple],)))
        elif octal or hexadecimal:
            value = int(octal, 8) if octal else int(hexadecimal, 16)
            if value > 255:
                return None
            pieces.append(bytes((value,)))
        elif short or long:
            value = int(short or long, 16)
            if value > 0x10FFFF or 0xD800 <= value < 0xE000:
                return None
            pieces.append(chr(value).encode())
        else:
            return None
    pieces.append(text[position:].encode("utf-8", "surrogateescape"))
    return b"".join(pieces).decode("utf-8", "surrogateescape")


def escape(text: str) -> str:
    """The C escapes under which `unescape` gives `text` back; the result is printable ASCII."""
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text and "'" not in text:
        return text
    return "".join(_escaped_byte(byte) for byte in text.encode("utf-8", "surrogateescape"))


def _escaped_byte(byte: int) -> str:
    if byte in _ESCAPED:
        return _ESCAPED[byte]
    return chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}"


_ESCAPED = {10: "\\n", 13: "\\r", 9: "\\t", 34: '\\"', 39: "\\'", 92: "\\\\"}
