"""A module that was copied out of a log or a page is read; nothing that may be part of a module is dropped."""

import json
import time
import warnings
from contextlib import suppress
from html import escape
from pathlib import Path

import pytest

import hloexec
from hloexec.errors import HloWarning, ParseError
from hloexec.language.text import parse

_MODULE = """HloModule poly, num_partitions=2

%double (x: f32[<=4]) -> f32[<=4] {
  %x = f32[<=4]{0} parameter(0)
  ROOT %y = f32[<=4]{0} add(%x, %x), metadata={op_name="a"}
}

ENTRY %main (a: f32[<=4]) -> f32[<=4] {
  %a = f32[<=4]{0} parameter(0)
  ROOT %r = f32[<=4]{0} call(%a), to_apply=%double
}
"""
_GOES_ON = ", \\\n"
_LOG_LINE = "I0000 00:00:1700000{:03d}.25  77 pass.cc:{}] "


def _prefixed(form: str) -> str:
    return "\n".join(form.format(number, number) + line for number, line in enumerate(_MODULE.split("\n"), 1))


def _in_pieces(module: str, between: str = "\n", prefix: str = "", quote: str = '"') -> str:
    """The source code that has a string for each line of a module."""
    return between.join(f"    {prefix}{quote}{line}\\n{quote}" for line in module.replace('"', '\\"').split("\n"))


def _doubled(module: str) -> str:
    return module.replace("{", "{{").replace("}", "}}")


def _difference(module: str, head: str = "@@ -1,12 +1,12 @@\n") -> str:
    """A diff that ends with a module."""
    body = "".join(f" {line}".rstrip(" ") + "\n" for line in module.rstrip("\n").split("\n"))
    return head + body.replace("   ROOT %y", "-  ROOT %y = f32[<=4]{0} negate(%x)\n+  ROOT %y")


_OTHER = "diff --git a/m.py b/m.py\n--- a/m.py\n+++ b/m.py\n@@ -7,2 +7,2 @@\n y = 1\n-x = 1\n+x = 2\n"
_FILES = "diff --git a/m.hlo b/m.hlo\nindex 1f..2e 100644\n--- a/m.hlo\n+++ b/m.hlo\n"
SURROUNDED = {
    "log lines before": f"2020-01-02 03:04:05.6: I xla/service.cc:9] on HloModule poly\n{_MODULE}",
    "a log prefix on each line": _prefixed(_LOG_LINE),
    "a log prefix and a line that mentions the module": f"{_LOG_LINE.format(0, 1)}on HloModule poly\n{_prefixed(_LOG_LINE)}",
    "line numbers": _prefixed("{:4d}  "),
    "a quotation": _prefixed("> "),
    "a fence": f"Here it is:\n```hlo\n{_MODULE}```\nthanks = all\n".replace("thanks = all", "Thanks!"),
    "banners": f"*** Begin module_0000.poly.txt ***\n{_MODULE}*** End module_0000.poly.txt ***\n",
    "entities": escape(_MODULE),
    "a page": f"<pre>{escape(_MODULE)}</pre>",
    "a string behind one of MLIR": f'auto mlir = R"(\nmodule attributes {{}} {{\n}}\n)";\nauto hlo = R"({_MODULE})";\n',
    "a doctest": f">>> print(f)\n{_MODULE.replace(chr(10) * 2, chr(10) + '<BLANKLINE>' + chr(10))}<BLANKLINE>\n",
    "a signature on lines of its own": f"body:\n{_MODULE.replace('%double (x', '%double' + chr(10) * 7 + '(x')}",
    "colours": f"\x1b[32m{_MODULE}\x1b[0m",
    "a comment behind the name": f"Here it is:\n{_MODULE.replace('poly,', 'poly/* a.txt */,')}Thanks!\n",
    "a string of C++": f'  auto hlo = R"(\n{_MODULE})";\n  EXPECT_TRUE(a == b);\n}}\n',
    "a string of C++ that ends behind a bracket": f'auto hlo = R"(\n{_MODULE.rstrip()})";\n  auto x = 1;\n',
    "a string of C++ with a delimiter": f'TEST_F(A, B) {{\n  auto hlo = R"hlo(\n{_MODULE}  )hlo";\n  auto x = 1;\n}}\n',
    "a string of Rust": f'    poly: r#"{_MODULE}"#,\n    x = 1,\n',
    "a string of Python": f'hlo = """\\\n{_MODULE}"""\nmodule = parse(hlo)\n',
    "a string of Python in single quotes": f"    hlo = f'''\n{_MODULE}    '''\n    x = 1\n",
    "lines of Python that go on": f'hlo = """\\\n{_MODULE.replace(", ", _GOES_ON)}"""\nx = {{1: 2}}\n',
    "lines that go on within a word": f"hlo = '''{_MODULE.replace('metadata', 'meta' + _GOES_ON.strip(' ,') + 'data')}'''\n",
    "lines of a file with CRLF that go on": _MODULE.replace(", ", _GOES_ON).replace("\n", "\r\n"),
    "pieces of C++": f"const char* hlo =\n{_in_pieces(_MODULE)};\nint x = 1;\n",
    "pieces of C++ with comments": f"auto hlo =\n{_in_pieces(_MODULE, '  // a line, {}' + chr(10))};\n",
    "pieces of Python": f"hlo = (\n{_in_pieces(_MODULE, quote=chr(39))}\n)\nx = {{1: 2}}\n",
    "pieces of Python behind backslashes": f"hlo = {_in_pieces(_MODULE, ' ' + chr(92) + chr(10))}\nx = 1\n",
    "pieces that a plus joins": f"String hlo =\n{_in_pieces(_MODULE, ' +' + chr(10))};\n",
    "a piece that ends within a word": f"auto hlo =\n{_in_pieces(_MODULE)};\n".replace("poly", 'po" "ly'),
    "pieces that commas join": f"let hlo = concat!(\n{_in_pieces(_MODULE, ',' + chr(10))});\n",
    "lines of JSON": json.dumps({"cells": [{"source": _MODULE.splitlines(keepends=True)}], "n": ["a", "b"]}, indent=1),
    "lines of a list": f"hlo = '\\n'.join({_MODULE.splitlines()})\nx = {{1: 2}}\n",
    "a template": f'hlo = f"""\n{_doubled(_MODULE)}"""\nx = {{}}\n',
    "a template in pieces": f"hlo = (\n{_in_pieces(_doubled(_MODULE), prefix='f')}\n)\nx = {{}}\n",
    "a diff": _FILES + _difference(_MODULE),
    "a diff with CRLF": (_FILES + _difference(_MODULE)).replace("\n", "\r\n"),
    "a diff of several files": _OTHER + _FILES + _difference(_MODULE) + _OTHER,
    "a diff without its head": _difference(_MODULE, ""),
    "a diff of the header": _difference(_MODULE).replace(" HloModule", "-HloModule old\n+HloModule"),
    "a diff of a new file": "@@ -0,0 +1,11 @@\n" + "".join(f"+{line}\n" for line in _MODULE.rstrip().split("\n")),
    "a diff in a fence": f"See:\n```diff\n{_difference(_MODULE)}```\nThanks!\n",
    "a diff in colours": _difference(_MODULE).replace("\n-", "\n\x1b[31m-").replace("\n+", "\n\x1b[32m+\x1b[m"),
    "what repr gives": repr(_MODULE),
    "a string of bytes": f"text = {_MODULE.encode()!r}\nx = 1\n",
    "JSON": json.dumps({"name": "x = 1", "hlo": _MODULE, "n": 3}),
    "a shell": f"$ cat dump.txt\n{_MODULE}$ ",
    "no header, in a string": f'constexpr auto hlo = R"(\n{_MODULE.partition(chr(10) * 2)[2]})";\n  auto x = 1;\n',
    "no header, in a fence": "```\n" + _MODULE.partition("\n\n")[2] + "```",
}


@pytest.mark.parametrize("name", SURROUNDED)
def test_what_stands_around_a_module_is_ignored_and_said(name: str) -> None:
    with pytest.warns(HloWarning):
        found = parse(SURROUNDED[name])
    expected = parse(_MODULE.partition("\n\n")[2] if name.startswith("no header") else _MODULE)
    assert found == expected
    with pytest.raises(ParseError):
        parse(SURROUNDED[name], strict=True)


def test_computations_with_signatures_need_no_header() -> None:
    text = _MODULE.partition("\n\n")[2]
    assert parse(text).computations == parse(_MODULE).computations
    with pytest.raises(ParseError):
        parse(text, strict=True)


def test_a_byte_order_mark_is_ignored_silently() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert parse("\ufeff" + _MODULE) == parse(_MODULE)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_files_in_utf_16_are_read(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "dump.txt"
    path.write_text("\ufeff" * (encoding == "utf-16-be") + _MODULE.replace("\n", "\r\n"), encoding=encoding)
    assert hloexec.load(path) == parse(_MODULE)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("HloModul poly, num_partitions=4" + _MODULE[31:], 1),
        (_MODULE.partition("\n\n")[2].replace(" {\n", " \n", 1), 1),
        (_MODULE + "\n%cut (x: f32[]) -> f32[] {\n  %x = f32[] parameter(0)\n", 15),
        (_MODULE + "\n  %n = f32[] negate(%a)\n", 13),
        (_MODULE.rpartition("\n}")[0], 10),
        ("```\n" + _MODULE.replace("add(%x, %x)", "add(%x, %z)") + "```\n", 6),
        (_prefixed(_LOG_LINE).replace("add(%x, %x)", "add(%x, %z)"), 5),
        (f'hlo = """\n{_MODULE.replace("add(%x, %x)", "add(%x, %z)")}"""\nx = 1\n', 6),
        (repr(_MODULE.replace("add(%x, %x)", "add(%x, %z)")), 5),
        (f'hlo = """\n{_MODULE}\n  %n = f32[] negate(%a)\n"""\n', 14),
        (f"hlo = (\n{_in_pieces(_MODULE.replace('add(%x, %x)', 'add(%x, %z)'))}\n)\n", 6),
        (_MODULE.replace("[<=4]) -> f", "[<=4]) \\\n -> f").replace("add(%x, %x)", "add(%x, %z)"), 6),
        (_MODULE.replace("  ROOT %r", "  // C:\\\n  %z = f32[] oops\n  ROOT %r"), 11),
        (_FILES + _difference(_MODULE.replace("add(%x, %x)", "add(%x, %z)")), 11),
    ],
    ids=[
        *("header", "computation", "tail", "instruction", "end"),
        *("inside a fence", "behind a prefix", "inside a string", "inside repr", "tail of a string"),
        *("inside pieces", "inside lines that go on", "behind a comment that ends so", "inside a diff"),
    ],
)
def test_damage_to_a_module_is_refused_at_its_line(text: str, line: int) -> None:
    with warnings.catch_warnings(), pytest.raises(ParseError) as caught:
        warnings.simplefilter("ignore", HloWarning)
        parse(text)
    assert caught.value.line == line, str(caught.value)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (_MODULE + _MODULE.replace("poly", "next"), "2 modules, 'poly' on line 1, 'next' on line 12"),
        (f"*** Begin a ***\n{_MODULE}*** Begin b ***\n{_MODULE}", "2 modules"),
        (f"a =\n{_in_pieces(_MODULE)}\nb =\n{_in_pieces(_MODULE)}", "2 modules, 'poly' on line 2, 'poly' on line 15"),
        (f"a =\n{_in_pieces(_MODULE.replace('poly, num_partitions=2', 'm'))}\n" * 2, "2 modules"),
        ("module @m {\n  func.func public @main() {\n  }\n}\n", "MLIR"),
        ('hlo_module {\n  name: "m"\n}\n', "protocol buffer"),
        (f'auto hlo = R"(\n{_MODULE.replace("[<=4]", "[$0]")})";', r"the text is a template: replace '\$0'"),
        (_MODULE.replace("poly", "poly_${n}"), r"the text is a template: replace '\$\{n\}'"),
        ("{ lambda ; a:f32[]. let b:f32[] = sin a in (b,) }", "jaxpr"),
        (_MODULE.replace("  %a = f32[<=4]{0} parameter(0)\n", "  ...\n"), "left out"),
        (_MODULE.rpartition("}")[0], "cut off"),
        *((_MODULE[: _MODULE.index(part) + 4], "cut off") for part in ("num_partitions", "parameter", "metadata")),
        (
            "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n",
            "a pointer of Git LFS: `git lfs pull`",
        ),
        ("<!DOCTYPE html>\n<html><head><title>404</title></head></html>\n", "a page of HTML that holds no module"),
        ("\n<HTML lang='en'>x = 1</HTML>\n", "a page of HTML that holds no module"),
        (_difference(_MODULE, "@@ -7,12 +7,12 @@\n"), "a diff of parts of a file"),
        (_difference(_MODULE) + "@@ -70,2 +70,2 @@\n-a\n+b\n", "a diff of parts of a file"),
    ],
)
def test_errors_say_what_a_text_seems_to_be(text: str, hint: str) -> None:
    with pytest.raises(ParseError, match=hint):
        parse(text)


@pytest.mark.sampled(10)
@pytest.mark.parametrize(
    "text",
    [
        "HloModule a " * 100_000,
        "HloModule a\n" * 100_000,
        '"HloModule a\nENTRY ' * 60_000,
        "x " * 100_000 + _MODULE + "?",
        "f(" * 200_000 + "\n" + _MODULE + "}",
        "HloModule a\n" + "f(->{ " * 120_000,
        "f(" + "->{ " * 120_000,
        "\n" * 120_000 + "module",
        '"' + "HloModule a\\n" * 120_000 + '"',
        "'HloModule " + "\\x" * 120_000,
        '"HloModule ' * 60_000 + "\\n",
        'R"(' * 60_000 + _MODULE + ")?" * 60_000,
        _MODULE + "{ " * 120_000,
        "&lt;" * 120_000,
        "\x1b[1" * 120_000,
        "1 " * 100_000 + "HloModule a\nENTRY e {",
        '"HloModule a"//' * 60_000,
        '"HloModule a" ' * 60_000,
        " HloModule a\n+" * 60_000,
        "@@ -1 +1 @@\n" * 60_000,
    ],
    ids=range(20),
)
def test_long_texts_that_are_no_modules_take_no_long_time(text: str) -> None:
    started = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HloWarning)
        with suppress(ParseError):
            parse(text)
    assert time.process_time() - started < 5


def _wrapped(text: str, width: int) -> str:
    return "\n".join(
        line[start : start + width] for line in text.split("\n") for start in range(0, max(len(line), 1), width)
    )


@pytest.mark.parametrize("width", [*range(51, 56), 64, 80, 92, 99, 100, 120])
@pytest.mark.parametrize("form", ["{}", "log", "> {}"])
def test_lines_that_a_terminal_has_broken_are_joined(form: str, width: int) -> None:
    text = _prefixed(_LOG_LINE) if form == "log" else "\n".join(form.format(line) for line in _MODULE.split("\n"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HloWarning)
        assert parse(_wrapped(text, width)) == parse(_MODULE)


def test_broken_lines_are_said_and_keep_the_numbers_of_others() -> None:
    text = _wrapped(_MODULE, 50)
    assert text != _MODULE
    with pytest.warns(HloWarning, match="lines that are broken at column 50, as by a terminal, are joined"):
        found = parse(text)
    source = found.source
    assert source is not None
    for line in text.split("\n"):
        if line.startswith("ENTRY"):
            assert source.split("\n").index(line) == text.split("\n").index(line)
    with pytest.raises(ParseError, match="doubla") as caught:
        parse(text.replace("to_apply=%double", "to_apply=%doubla"))
    assert caught.value.line == text.split("\n").index("  ROOT %r = f32[<=4]{0} call(%a), to_apply=%double") + 1
    with pytest.raises(ParseError):
        parse(text, strict=True)


@pytest.mark.parametrize("text", ["a " * (1 << 22), "HloModule m" + "x" * (1 << 23)])
def test_a_long_text_without_any_instruction_is_refused_at_once(text: str) -> None:
    def seconds(strict: bool) -> float:
        start = time.process_time()
        with pytest.raises(ParseError):
            parse(text, strict=strict)
        return time.process_time() - start

    assert seconds(strict=False) < 3 * seconds(strict=True) + 0.1  # a search for what stands around takes ten times
