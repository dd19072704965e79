"""Bad input: whatever the bytes, the parser either reads a module that prints and reads again, or raises an HloError."""

import random
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hloexec.errors import HloError, HloWarning, ParseError
from hloexec.language.text import format as format_module
from hloexec.language.text import parse
from hloexec.language.verifier import verify
from tests.drawing import examples
from tests.text.cases import ACCEPTED
from tests.text.seeds import LARGE_SEEDS, SEEDS, seed_path

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.hlo"))
_SMALL = tuple(text for text in ACCEPTED.values() if len(text) < 1500)
_JUNK = "{}[]()<>=,:;%#*+~?\"'\\/-_. \n\t\0\x01\x7fé≤0123456789abfxTSE"
_WORDS = (
    "f32[2]", "{1,0}", "(", ")", "{", "}", "ROOT ", "ENTRY ", "...", "->", "<=", "/*", "*/", "//", '"', "\\", "nan(0x1)", "-inf",
    "99999999999999999999999", "-1", "s4", "token[]", "%", "=", ", metadata={", "sharding={", "constant(", "to_apply=", "?",
    "dimensions={", "HloModule ", "1e999", "b(", "mesh['", "T(1,0)", "{...}", "replica_groups=[", "\r",
)  # fmt: skip


def check(text: str) -> bool:
    """Parse in both modes; whether the default mode made a module of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HloWarning)
        try:
            parse(text, strict=True)
        except HloError as error:
            str(error)
        try:
            module = parse(text)
        except HloError as error:
            assert error.message
            if isinstance(error, ParseError):
                assert 1 <= error.line <= text.count("\n") + 1
                assert error.column >= 1
            return False
        try:
            verify(module)
        except HloError as error:
            str(error)
        printed = format_module(module)
        assert parse(printed) == module, printed[:2000]
        assert format_module(parse(printed)) == printed
        return True


def _delete(text: str, rng: random.Random) -> str:
    start = rng.randrange(len(text))
    return text[:start] + text[start + _length(rng) :]


def _duplicate(text: str, rng: random.Random) -> str:
    start = rng.randrange(len(text))
    end = start + _length(rng)
    return text[:end] + text[start:end] + text[end:]


def _swap(text: str, rng: random.Random) -> str:
    a, b = sorted(rng.randrange(len(text)) for _ in range(2))
    length = _length(rng)
    return text[:a] + text[b : b + length] + text[a + length : b] + text[a : a + length] + text[b + length :]


def _truncate(text: str, rng: random.Random) -> str:
    return text[: rng.randrange(len(text))]


def _overwrite(text: str, rng: random.Random) -> str:
    start = rng.randrange(len(text))
    junk = "".join(rng.choice(_JUNK) for _ in range(rng.choice((1, 1, 2, 5))))
    return text[:start] + junk + text[start + len(junk) :]


def _insert(text: str, rng: random.Random) -> str:
    start = rng.randrange(len(text))
    return text[:start] + rng.choice(_WORDS) + text[start:]


def _delete_line(text: str, rng: random.Random) -> str:
    lines = text.splitlines(keepends=True)
    del lines[rng.randrange(len(lines))]
    return "".join(lines)


def _length(rng: random.Random) -> int:
    return rng.choice((1, 1, 1, 2, 3, 5, 10, 30, 100))


_CORRUPTIONS: tuple[Callable[[str, random.Random], str], ...] = (
    _delete,
    _duplicate,
    _swap,
    _truncate,
    _overwrite,
    _insert,
    _delete_line,
)


def corrupted(text: str, rng: random.Random) -> str:
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        text = rng.choice(_CORRUPTIONS)(text or " ", rng)
    return text


@pytest.mark.slow_cases("duplicate", "swap", "truncate", "overwrite", "insert", "delete_line")
@pytest.mark.parametrize("corruption", _CORRUPTIONS, ids=lambda function: function.__name__.strip("_"))
def test_corrupted_small_modules_raise_nothing_but_hlo_errors(corruption: Callable[[str, random.Random], str]) -> None:
    rng = random.Random(corruption.__name__)
    for text in _SMALL:
        check(corruption(text, rng) or " ")


def test_much_corrupted_small_modules_raise_nothing_but_hlo_errors() -> None:
    rng = random.Random(1)
    for _ in range(examples(3000)):
        check(corrupted(rng.choice(_SMALL), rng))


def _slices() -> Iterator[str]:
    """Computations out of the dumps, as modules of their own, and pieces cut anywhere."""
    rng = random.Random(2)
    for name in SEEDS:
        path = seed_path(name)
        if path is None:
            continue
        text = path.read_text(encoding="utf-8")
        computations = text.split("\n\n")
        for _ in range(60):
            yield rng.choice(computations)[:20_000]
            start = rng.randrange(len(text))
            yield text[start : start + rng.choice((50, 500, 5000))]


def test_corrupted_pieces_of_dumps_raise_nothing_but_hlo_errors() -> None:
    rng = random.Random(3)
    pieces = list(_slices())
    if not pieces:
        pytest.skip("no dumps are here; HLOEXEC_SEEDS names their folder")
    for piece in rng.sample(pieces, examples(200)):
        check(piece)
        check(corrupted(piece or " ", rng))


@pytest.mark.slow_cases("attention.hlo")
@pytest.mark.sampled(3)
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_corrupted_examples_raise_nothing_but_hlo_errors(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    rng = random.Random(path.name)
    for _ in range(examples(100)):
        check(corrupted(text, rng))


@pytest.mark.slow_cases(*LARGE_SEEDS)
@pytest.mark.parametrize("name", SEEDS)
def test_corrupted_dumps_raise_nothing_but_hlo_errors(name: str) -> None:
    path = seed_path(name)
    if path is None:
        pytest.skip(f"{name} is not here; HLOEXEC_SEEDS names its folder")
    text = path.read_text(encoding="utf-8")
    rng = random.Random(name)
    for _ in range(examples(max(12, 2_000_000 // len(text)))):
        check(corrupted(text, rng))


@pytest.mark.parametrize(
    "name",
    ["dot in batches", "custom-call with an object", "tables", "shape (f32[2], (s32[], (pred[1,1], token[])), ())"],
)
def test_small_module_cut_at_every_byte_raises_nothing_but_hlo_errors(name: str) -> None:
    text = ACCEPTED[name]
    for end in range(len(text)):
        check(text[:end])


def test_binary_junk_raises_a_parse_error() -> None:
    rng = random.Random(4)
    for _ in range(examples(300)):
        junk = rng.randbytes(rng.randrange(1, 400))
        for text in (junk.decode("latin-1"), junk.decode("utf-8", "surrogateescape"), junk.decode("utf-8", "replace")):
            check(text)


def test_empty_text_raises_a_parse_error() -> None:
    for text in ("", " ", "\n", "\0", "\ufeff"):
        with pytest.raises(ParseError):
            parse(text)


_DEPTH = 100_000
_ENTRY = "HloModule m\nENTRY e {{\n ROOT r = {}\n}}\n"
DEEP = {
    "tuple shapes": _ENTRY.format("(" * _DEPTH + "f32[]" + ")" * _DEPTH + " parameter(0)"),
    "tuple shapes left open": _ENTRY.format("(" * _DEPTH),
    "buffers": _ENTRY.format("b(" * _DEPTH),
    "operands": _ENTRY.format("f32[] negate(" * _DEPTH + "x" + ")" * _DEPTH),
    "operands of a parameter": "HloModule m\nENTRY e {\n x = f32[] parameter(0)\n ROOT r = "
    + "f32[] copy(" * _DEPTH
    + "x"
    + ")" * _DEPTH
    + "\n}\n",
    "inline computations": _ENTRY.format("f32[] call(), to_apply={ x = " * _DEPTH),
    "inline computations that end": "HloModule m\nENTRY e {\n ROOT r = "
    + "f32[] call(), to_apply={ r = " * 20_000
    + "f32[] constant(1)"
    + " }" * 20_000
    + "\n}\n",
    "literals": _ENTRY.format("f32[1,1] constant(" + "{" * _DEPTH),
    "literal tuples": _ENTRY.format(
        "(" * _DEPTH + "f32[]" + ")" * _DEPTH + " constant(" + "(" * _DEPTH + "1" + ")" * _DEPTH + ")"
    ),
    "backend configuration": _ENTRY.format(
        'f32[] parameter(0), backend_config={"a":' * 1 + "{" * _DEPTH + "}" * _DEPTH + "}"
    ),
    "backend configuration left open": _ENTRY.format("f32[] parameter(0), backend_config=" + "{" * _DEPTH),
    "shardings": _ENTRY.format("f32[] parameter(0), sharding=" + "{" * _DEPTH),
    "origin": _ENTRY.format("f32[] parameter(0), origin={" + "(" * _DEPTH),
    "origin of tuples": _ENTRY.format("f32[] parameter(0), origin={" + "(" * _DEPTH + '{"x"}' + ")" * _DEPTH + "}"),
    "layouts": _ENTRY.format("f32[1]{0:P(" * _DEPTH),
    "unknown attribute": _ENTRY.format("f32[] parameter(0), odd=" + "{[(" * _DEPTH + ")]}" * _DEPTH),
    "unknown attribute left open": _ENTRY.format("f32[] parameter(0), odd=" + "{[(" * _DEPTH),
    "unknown opcode": _ENTRY.format("f32[] odd" + "(" * _DEPTH + ")" * _DEPTH),
    "comments": _ENTRY.format("/*" * _DEPTH + " f32[] parameter(0)"),
    "comments that end": _ENTRY.format("/* */" * _DEPTH + " f32[] parameter(0)"),
    "line comments": _ENTRY.format("//\n" * _DEPTH + " f32[] parameter(0)"),
    "quotes": _ENTRY.format("f32[] parameter(0), metadata={op_name=" + '"' * _DEPTH + "}"),
    "backslashes": _ENTRY.format('f32[] parameter(0), metadata={op_name="' + "\\" * _DEPTH + "}"),
    "roots": "HloModule m\nENTRY e {\n" + "ROOT " * _DEPTH + "\n}\n",
    "commas": "HloModule m" + "," * _DEPTH,
    "percents": "%" * _DEPTH,
}


@pytest.mark.slow_cases("tuple shapes", "inline computations", "unknown attribute")
@pytest.mark.sampled(5)
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", DEEP)
def test_deep_nesting_raises_nothing_but_hlo_errors(name: str) -> None:
    started = time.monotonic()
    check(DEEP[name])
    assert time.monotonic() - started < 60


_MEGABYTES = 10_000_000
LONG: dict[str, Callable[[], str]] = {
    "one name": lambda: "HloModule " + "a" * _MEGABYTES,
    "one string": lambda: _ENTRY.format('f32[] parameter(0), metadata={op_name="' + "a" * _MEGABYTES + '"}'),
    "one string left open": lambda: _ENTRY.format('f32[] parameter(0), metadata={op_name="' + "a" * _MEGABYTES),
    "one number": lambda: _ENTRY.format("f32[] constant(" + "1" * _MEGABYTES + ")"),
    "one dimension": lambda: _ENTRY.format("f32[" + "1" * _MEGABYTES + "] parameter(0)"),
    "one comment": lambda: _ENTRY.format("/*" + "*" * _MEGABYTES),
    "spaces": lambda: " " * _MEGABYTES,
    "lines": lambda: "\n" * _MEGABYTES + "?",
    "one literal": lambda: _ENTRY.format(f"f32[{_MEGABYTES // 4}] constant({{" + "1, " * (_MEGABYTES // 4) + "})"),
    "too large a literal": lambda: _ENTRY.format("f32[99999999,99999999] constant({" + "1," * 1000),
    "too large an empty literal": lambda: _ENTRY.format("f32[99999999999,0] constant({" + "{}," * 1000),
    "one list": lambda: _ENTRY.format("f32[] parameter(0), sharding={devices=[2]" + "0," * (_MEGABYTES // 4)),
    "junk": lambda: "\x01" * _MEGABYTES,
    "open braces": lambda: "{" * _MEGABYTES,
}


@pytest.mark.slow_cases("one name", "one comment")
@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", LONG)
def test_very_long_lines_raise_nothing_but_hlo_errors(name: str) -> None:
    text = LONG[name]()
    started = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HloWarning)
        try:
            module = parse(text)
        except HloError as error:
            assert len(str(error)) < 2000
        else:
            assert parse(format_module(module)) == module
    assert time.monotonic() - started < 60


def test_errors_in_very_long_lines_are_short() -> None:
    text = "HloModule m, " + "a" * 1_000_000 + "=1\nENTRY e { ROOT a = f32[] §".replace("§", "@" * 1_000_000)
    with pytest.raises(ParseError) as caught, pytest.warns(HloWarning) as warned:
        parse(text)
    assert len(str(caught.value)) < 2000
    assert len(str(warned[0].message)) < 2000
