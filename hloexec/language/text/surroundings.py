"""What stands around a module where its text was copied: log prefixes, banners, fences of Markdown, entities of HTML,
the margin of a diff, the code that a string of C++ or Python is in.

It is looked for only after a text was refused as it stands. What is removed is replaced by spaces, so that places in
messages are those of the text that was given; entities and a terminal's colours change columns, but no lines. A string
on one line, as Python's `repr` and JSON write it, is read as the text that it stands for, and places are those in that;
where source code has it in pieces, a line each, lines are those of the code.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_right
from collections.abc import Iterable
from itertools import islice

from hloexec.core.wording import listing, truncated
from hloexec.language.text.lexer import NAME_PATTERN

_HEADER = re.compile(rf"\bHloModule[ \t]+(%?{NAME_PATTERN})(?=[,:\s]|\\n|/[*/]|\Z)")
_HEADER_FIELD = re.compile(r",[ \t]*[a-z_]+=")
"""What no log has behind the name of a module that it mentions."""
_BEGINS = re.compile(rf"\bENTRY\b|\bFileNames\b|{NAME_PATTERN}[ \t]*(?:\([^\n]*->|\{{[ \t\r]*$)")
"""On a line on which tables or a computation begin."""
_COMPUTATION = re.compile(rf"^[ \t]*(?:ENTRY[ \t]+)?%?{NAME_PATTERN}[ \t]*(?:\([^\n]*)?\{{[ \t\r]*$", re.MULTILINE)
_END = re.compile(r'^[ \t]*\}(?:,[ \t]*execution_thread="[^"\n]*")?', re.MULTILINE)
_ENDS = re.compile(r"[ \t\r]*(?:[\n<]|//|/\*|\Z)")
"""What may follow a module on its last line: nothing, a comment, or a tag of a page."""
_HLO_LINE = re.compile(
    rf"\A[\s(){{}}\[\],:=]*\Z|^[ \t]*(?:ENTRY\b|(?:ROOT[ \t]+)?%?{NAME_PATTERN}(?:[ \t]|/\*[^*]*\*/)*=)|\{{[ \t\r]*$",
    re.MULTILINE,
)
_PART_OF_MODULE = re.compile(r"^[ \t]*[\w%}]|=", re.MULTILINE)
"""In what may be a damaged header or computation."""
_ENTRY = re.compile(r"^[ \t]*ENTRY\b", re.MULTILINE)
_COMMENT = re.compile(r"(?:\s++|//[^\n]*+|/\*(?:[^*]|\*(?!/))*+\*/)*+")
_ENTITY = re.compile(r"&(?:lt|gt|amp|quot|#\d+);")
_STRING = re.compile(r"""(?<!["'])(["'])((?:\s|\\[nrt])*+HloModule (?:[^\n"'\\]|\\.|(?!\1)["'])*+)\1""")
"""A string on one line that a module begins in."""
_BETWEEN_PIECES = re.compile(r"(?:[\s+]|(,)|\\\n|(?://|#)[^\n]*+)*+")
_NEXT_PIECE = re.compile(r"""\w{0,2}(["'])((?:[^\n"'\\]|\\.|(?!\1)["'])*+)\1""")
"""What goes on with it: compilers join strings that follow one another, or that a `+` joins; lists have lines."""
_ESCAPED = re.compile(r"\\(u[0-9a-fA-F]{4}|.)")
_MEANINGS = {"n": "\n", "t": "\t", "r": "\r"}
_OPENS = re.compile(r"""(?:R"([^\s()\\"]*)\(|("{3}|'{3})\\?|r(#+)")\s*\Z""")
"""What a string of C++, Python or Rust begins with that has many lines, right in front of a module."""
_BLANK_LINE = re.compile(r"^[ \t]*<BLANKLINE>[ \t\r]*$", re.MULTILINE)
"""How doctests of Python write an empty line."""
_GOES_ON = re.compile(r"""(?<!"{3})(?<!'{3})\\\r?\Z""")
"""How a line ends that goes on in the next, as in a string of Python, but for the line that opens the string."""
_ESCAPE_SEQUENCE = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_LONE_BRACE = re.compile(r"(?<!\{)(?:\{\{)*+\{(?!\{)|(?<!\})(?:\}\})*+\}(?!\})")
_HUNK = re.compile(r"^@@ -\d+(?:,\d+)? \+(\d+)(?:,\d+)? @@[^\n]*\n", re.MULTILINE)
_FILE = re.compile(r"^diff ", re.MULTILINE)
_IN_MARGIN = re.compile(r"^(?=[ +]HloModule[ \t])", re.MULTILINE)
_DIFF = re.compile(r"(?:(?:[ +\\-][^\n]*+|\r)?\n)*+(?:[ +\\-][^\n]*+\Z)?")
"""Lines with the margin of a diff."""
_VISIBLE = re.compile(r"[^\s]")
_DIGITS_OR_SPACE = re.compile(r"\d+|[ \t]+")
_MLIR = re.compile(
    r"^[ \t]*(?:module\b[^=\n]*\{|func\.func\b|#loc\b|%\S+ = \"?(?:stablehlo|mhlo|vhlo|chlo)\.)", re.MULTILINE
)
_PROTO_TEXT = re.compile(r"\s*(?:(?:hlo_module|hlo|computations)\s*\{|name:\s*\")")
_PAGE = re.compile(r"\s*<(?:!doctype[ \t]+)?html\b", re.IGNORECASE)
_TEMPLATE_HEADER = re.compile(r"^[ \t]*(?:HloModule|ENTRY)\b", re.MULTILINE)
_QUOTED = re.compile(r'"[^"\n]*"')
_PLACEHOLDER = re.compile(r"\$(?:\w+|\{\w+\})")
"""No name of HLO has a dollar sign."""
_MOST_HEADERS = 1000
_LINES_BEHIND_HEADER = 6
_LONGEST_LINE = 4096
"""Of what is looked at of a line behind a header."""
_LONGEST_PREFIX = 200
_NARROWEST_TERMINAL = 40


def without_surroundings(text: str) -> tuple[str, list[str]] | None:
    """A text reduced to its module, and what was done to it, as sentences; None where nothing stands around one.

    Nothing is removed that could be part of a module: what follows the last computation is only where an ENTRY comes
    before and none of its lines looks like HLO, and nothing at all where there are several modules.
    """
    if "\0" in text or not _may_hold_instructions(text):
        return None
    plain, done = _spelled_out(text)
    start = _start(plain)
    if start is None:
        return None
    cut = _end_of_string(plain, start)
    if cut is not None:
        line = plain.count("\n", 0, cut) + 1
        done.append(f"what follows the string that the module is in, from line {line} on, is ignored")
        plain = plain[:start] + _without_doubled_braces(plain[start:cut]) + _VISIBLE.sub(" ", plain[cut:])
    if len(_headers(plain)) > 1:
        return None
    line_start = plain.rfind("\n", 0, start) + 1
    before, prefix, module = plain[:line_start], plain[line_start:start], plain[start:]
    if cut is None and not module.startswith("HloModule") and _PART_OF_MODULE.search(before):
        return None
    if _VISIBLE.search(before, _end_of_comments(before)):
        done.append(f"what stands before line {plain.count(chr(10), 0, start) + 1} is ignored")
    module, unprefixed = _without_prefix(prefix, module)
    done += unprefixed
    last = max((match.end() for match in _END.finditer(module)), default=0)
    tail = module[last:]
    if _ENTRY.search(module, 0, last) and not _HLO_LINE.search(tail) and _ENDS.match(tail):
        ignored = _end_of_comments(tail)
        if ignored < len(tail):
            line = plain.count("\n", 0, start) + module.count("\n", 0, last + ignored) + 1
            done.append(f"what follows the module, from line {line} on, is ignored")
            module = module[: last + ignored] + _VISIBLE.sub(" ", tail[ignored:])
    bare_text = _VISIBLE.sub(" ", before + prefix) + module
    return None if bare_text == text else (bare_text, done)


def _spelled_out(text: str) -> tuple[str, list[str]]:
    """A text as it was before a terminal, a page, source code or a diff had it, and what was done to it."""
    done = []
    plain = text.replace("\ufeff", " ", 1) if text.startswith("\ufeff") else text
    if _ESCAPE_SEQUENCE.search(plain):
        plain = _ESCAPE_SEQUENCE.sub("", plain)
        done.append("escape sequences of a terminal are ignored")
    if _BLANK_LINE.search(plain):
        plain = _BLANK_LINE.sub("", plain)
        done.append("<BLANKLINE> is an empty line")
    if (whole := _continued(plain)) is not None:
        plain = whole
        done.append("a line that ends with a backslash goes on in the next")
    if _ENTITY.search(plain):
        plain = html.unescape(plain)
        done.append("entities of HTML stand for their characters")
    if (string := _string(plain)) is not None:
        plain = string
        done.append("the string that holds a module is read as what it stands for, and all else is ignored")
    elif (side := _new_side(plain)) is not None:
        plain = side
        done.append("of a diff, the new side is read: the lines that begin with '-' are ignored")
    return plain, done


def unwrapped(text: str) -> str | None:
    """A text with the lines joined that are as long as the longest; None where that is short.

    Terminals break lines wherever they end. A line that is so long by itself may as well be joined with the next, as
    lines mean nothing in HLO. Lines keep their numbers, but for what is joined to one before.
    """
    if not _may_hold_instructions(text):
        return None
    lines = [line.rstrip("\r") for line in text.split("\n")]
    width = max(map(len, lines))
    if width < _NARROWEST_TERMINAL:
        return None
    header = _HEADER.search(text)
    prefix = text[text.rfind("\n", 0, header.start()) + 1 : header.start()].rstrip() if header else ""
    begins = _like(prefix) if 0 < len(prefix) <= _LONGEST_PREFIX else None
    # With a log prefix, what ends at the width of the terminal shows by that of the next line.
    broken = (
        len(line) == width and not (begins and begins.match("".join(lines[number + 1 : number + 2])))
        for number, line in enumerate(lines)
    )
    return _joined(lines, broken)


def _continued(text: str) -> str | None:
    """A text with each line that ends with a backslash joined with the next; None where none does.

    A comment that ends so is left alone, as it would swallow the next line.
    """
    if "\\\n" not in text and "\\\r\n" not in text:
        return None
    lines = text.split("\n")
    broken = ["//" not in line and _GOES_ON.search(line, max(0, len(line) - 5)) is not None for line in lines]
    if not any(broken):
        return None
    whole = [_GOES_ON.sub("", line) if is_broken else line for line, is_broken in zip(lines, broken, strict=True)]
    return _joined(whole, broken)


def _joined(lines: Iterable[str], broken: Iterable[bool]) -> str:
    """The lines with the broken ones joined with those behind them, which keep their numbers otherwise."""
    joined, missing = [], 0
    for line, is_broken in zip(lines, broken, strict=True):
        joined.append(line if is_broken else line + "\n" * (missing + 1))
        missing = missing + 1 if is_broken else 0
    return "".join(joined)


def advice(text: str) -> str | None:
    """What to do with a text that is no HLO module as it stands, where that is evident."""
    if text.startswith("version https://git-lfs.github.com/spec/"):
        return "the file is a pointer of Git LFS: `git lfs pull` gets the file that it stands for"
    headers = _headers(text) if _may_hold_instructions(text) else []
    if not headers and _PAGE.match(text):
        return "the text is a page of HTML that holds no module"
    if len(headers) > 1:
        breaks = [match.start() for match in re.finditer("\n", text)]
        places = (f"'{match[1]}' on line {bisect_right(breaks, match.start()) + 1}" for match in headers)
        return f"the text holds {len(headers)} modules, {listing(places, 4)}: give each a text of its own"
    if text.lstrip().startswith("{ lambda"):
        return "the text is a jaxpr: jax.jit(f).lower(…).as_text('hlo') gives HLO"
    if not headers and _MLIR.search(text[:20_000]):
        return "the text is MLIR: give the whole StableHLO module in a file"
    hunks = _HUNK.findall(_by_file(text)[1]) if "@@ -" in text else []
    if len(hunks) > 1 or (hunks and int(hunks[0]) > 1):
        return (
            "the text is a diff of parts of a file: give the module, or a diff with all its lines (git diff -U999999)"
        )
    placeholder = _PLACEHOLDER.search(_QUOTED.sub("", text)) if "$" in text else None
    if placeholder is not None and _TEMPLATE_HEADER.search(text):
        return f"the text is a template: replace '{placeholder[0]}' and the like"
    if _PROTO_TEXT.match(text):
        return "the text is a protocol buffer written as text: hloexec.load reads the binary form"
    return None


def _may_hold_instructions(text: str) -> bool:
    """Whether a text has a sign that no instruction or computation does without: it is found at once in long ones."""
    return "=" in text or "{" in text


def _headers(text: str) -> list[re.Match[str]]:
    """The places at which modules begin: where one is named, outside of strings, with a computation close behind."""
    headers: list[re.Match[str]] = []
    counted = quotes = 0
    for match in islice(_HEADER.finditer(text), _MOST_HEADERS):
        quotes = quotes + text.count('"', counted, match.start()) if headers else 0
        counted = match.start()
        if quotes % 2 == 0 and _is_header(text, match.end()):
            headers.append(match)
    return headers


def _is_header(text: str, position: int) -> bool:
    if _HEADER_FIELD.match(text, position):
        return True
    for _ in range(_LINES_BEHIND_HEADER):
        position = text.find("\n", position) + 1
        if not position:
            break
        line = text[position : position + _LONGEST_LINE].partition("\n")[0]
        if _HEADER.search(line):
            return False
        if _BEGINS.search(line):
            return True
    return False


def _start(text: str) -> int | None:
    """Where the module begins: at its header or, without one, at its first computation."""
    headers = _headers(text)
    if headers:
        return headers[0].start()
    computation = _COMPUTATION.search(text)
    return None if computation is None else computation.start()


def _string(text: str) -> str | None:
    """What the one string that holds a module, on one line or in pieces one after the other, stands for."""
    modules, position = [], 0
    while (piece := _STRING.search(text, position)) is not None:
        start, pieces = piece.start(), []
        while piece is not None:
            pieces.append(_ESCAPED.sub(_meant, piece[2]))
            between = _BETWEEN_PIECES.match(text, piece.end())
            assert between is not None
            position = between.end()
            piece = _NEXT_PIECE.match(text, position)
            if between[1] and "\n" in pieces[-1][:-1]:
                break
            if between[1] and not pieces[-1].endswith("\n"):
                pieces.append("\n")
        content = _without_doubled_braces("".join(pieces))
        if _headers(content):
            modules.append("\n" * text.count("\n", 0, start if len(pieces) > 1 else 0) + content)
    return modules[0] if len(modules) == 1 else None


def _without_doubled_braces(text: str) -> str:
    """One brace for two, where all of them are doubled, as in a template of Python."""
    return text if _LONE_BRACE.search(text) else text.replace("{{", "{").replace("}}", "}")


def _new_side(text: str) -> str | None:
    """A text with the new side of the diff that it holds of a module; None where it holds none."""
    before, part, behind = _by_file(text)
    begin = _HUNK.search(part) or _IN_MARGIN.search(part)
    diff_match = begin and _DIFF.match(part, begin.end())
    lines = diff_match[0].split("\n") if diff_match else []
    if diff_match is None or not {"+", "-"} & {line[:1] for line in lines}:
        return None
    side = "\n".join(f" {line[1:]}" if line[:1] in ("+", " ") else "" for line in lines)
    others = (_VISIBLE.sub(" ", surrounding) for surrounding in (before, behind))
    return f"{part[: diff_match.start()]}{side}{part[diff_match.end() :]}".join(others)


def _by_file(text: str) -> tuple[str, str, str]:
    """What a diff of several files has before the part that a module is in, that part, and what is behind it."""
    module = _IN_MARGIN.search(text)
    if module is None:
        return "", text, ""
    starts = [0, *(match.start() for match in _FILE.finditer(text)), len(text)]
    end = bisect_right(starts, module.start())
    return text[: starts[end - 1]], text[starts[end - 1] : starts[end]], text[starts[end] :]


def _end_of_string(text: str, start: int) -> int | None:
    """Where a string of many lines ends in which a module is; None where it is in none."""
    opening = _OPENS.search(text, max(0, start - _LONGEST_PREFIX), start)
    if opening is None:
        return None
    delimiter, quotes, marks = opening.groups()
    closing = quotes or (f'"{marks}' if marks else f'){delimiter}"')
    match = re.compile(rf"^[ \t}}]*{re.escape(closing)}", re.MULTILINE).search(text, start)
    return None if match is None else match.end() - len(closing)


def _meant(match: re.Match[str]) -> str:
    """The character that an escape stands for."""
    escape = match[1]
    return chr(int(escape[1:], 16)) if len(escape) > 1 else _MEANINGS.get(escape, escape)


def _without_prefix(prefix: str, module: str) -> tuple[str, list[str]]:
    """The module without what its lines begin with: `prefix` on the first, alike but for numbers on the others."""
    stem = prefix.rstrip()
    if not stem.strip():
        return module, []
    shown = truncated(stem, 60)
    if len(stem) > _LONGEST_PREFIX:
        return module, [f"what stands before the word HloModule on its line, '{shown}', is ignored"]
    pattern = _like(stem)
    first, *others = module.split("\n")
    matches = [pattern.match(line) for line in others]
    if sum(match is not None for match in matches) < sum(bool(line.strip()) for line in others) / 2:
        return module, [f"what stands before the word HloModule on its line, '{shown}', is ignored"]
    lines = [
        line if match is None else " " * match.end() + line[match.end() :]
        for line, match in zip(others, matches, strict=True)
    ]
    return "\n".join([first, *lines]), [f"what lines begin with, '{shown}' and the like, is ignored"]


def _end_of_comments(text: str) -> int:
    match = _COMMENT.match(text)
    return 0 if match is None else match.end()


def _like(stem: str) -> re.Pattern[str]:
    """What is alike but for numbers and space."""
    pieces: list[str] = []
    position = 0
    for match in _DIGITS_OR_SPACE.finditer(stem):
        pieces.append(re.escape(stem[position : match.start()]))
        pieces.append(r"\d+" if match[0].isdigit() else r"[ \t]+")
        position = match.end()
    return re.compile("".join(pieces) + re.escape(stem[position:]))
