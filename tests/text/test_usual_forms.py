"""What is read as a whole, or looked up by its text, is what reading it token by token gives."""

import contextlib
import gc
import random
import re
import warnings
from pathlib import Path

import pytest

from hloexec.core import ir
from hloexec.errors import HloError, HloWarning, ParseError
from hloexec.language.text import format as format_module
from hloexec.language.text import parse
from tests.text.cases import ACCEPTED
from tests.text.test_fuzz import corrupted

_EXAMPLES = {path.stem: path.read_text() for path in sorted(Path(__file__).parents[2].glob("examples/*.hlo"))}

_VERBATIM = r'"(?:[^"\\]|\\.)*+"|backend_config=\{[^\n]*'
_SEAM = r", (?=[A-Za-z_\-]+=)| = |(?<=\w), (?=[%A-Za-z])"
_VERBATIM_OR_SEAM = re.compile(f"{_VERBATIM}|({_SEAM})")


def _with_comments(text: str) -> str:
    """The text with comments around `=`, before attributes and before operands, where usual forms have none."""
    return _VERBATIM_OR_SEAM.sub(lambda match: f"/**/{match[1]}/**/" if match[1] else match[0], text)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("text", [*ACCEPTED.values(), *_EXAMPLES.values()], ids=[*ACCEPTED, *_EXAMPLES])
def test_comments_between_tokens_change_nothing(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HloWarning)
        assert parse(_with_comments(text)) == parse(text)


def _meaning(text: str) -> str | None:
    """The module as text, without the comments that it keeps of what it does not know; None where it is refused."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HloWarning)
        try:
            return format_module(parse(text)).replace("/**/", "")
        except HloError:
            return None


@pytest.mark.slow
def test_mutants_are_read_or_refused_alike_with_comments_between_tokens() -> None:
    rng = random.Random(5)
    texts = [text for text in (*ACCEPTED.values(), *_EXAMPLES.values()) if len(text) < 4000]
    accepted = 0
    for _ in range(6000):
        mutant = corrupted(rng.choice(texts), rng)
        # Half a string or half a comment moves what is text and what is not.
        if not any(mark in mutant for mark in ("/*", "//", '"')):
            meaning = _meaning(mutant)
            assert _meaning(_with_comments(mutant)) == meaning, mutant
            accepted += meaning is not None
    assert accepted > 200


def _module(*lines: str) -> ir.Module:
    return parse("HloModule m\n\nENTRY main {\n  p = f32[2,3] parameter(0)\n" + "\n".join(lines) + "\n}\n")


def test_an_attribute_text_means_what_the_attribute_makes_of_it() -> None:
    found = _module(
        "  a = f32[3,2] transpose(p), dimensions={1,0}",
        "  b = f32[2,3] transpose(a), dimensions={1,0}",
        "  c = f32[2,3] reverse(b), dimensions={1,0}",
        "  t = (f32[2,3], f32[2,3]) tuple(b, c)",
        "  d = f32[2,3] get-tuple-element(t), index=1",
        "  e = s32[2,3] iota(), iota_dimension=1",
        "  ROOT f = (f32[2,3], s32[2,3]) tuple(d, e)",
    ).entry.by_name
    assert [found[name].attributes.dimensions for name in "abc"] == [(1, 0)] * 3
    assert (found["d"].attributes.index, found["e"].attributes.iota_dimension) == (1, 1)


def test_a_repeated_number_is_of_the_type_that_each_constant_has() -> None:
    found = _module(
        "  a = f32[] constant(1)",
        "  b = bf16[] constant(1)",
        "  c = s8[] constant(1)",
        "  d = f32[] constant(1)",
        "  ROOT t = (f32[], bf16[], s8[], f32[]) tuple(a, b, c, d)",
    ).entry.by_name
    for name in "abcd":
        literal = found[name].attributes.literal
        assert literal.shape == found[name].shape
        assert literal.value == 1 and literal.value.dtype == found[name].shape.element_type.storage


@pytest.mark.parametrize(
    "line, fault",
    [
        ("  ROOT b = f32[3,2] transpose(p), dimensions={1,x}", "x}"),
        ('  ROOT b = f32[2,3] negate(p), metadata={op_name="x" source_line="y"}', '"y"'),
        ("  ROOT b = f32[2,3] add(p, q)", "q)"),
        ("  ROOT b = s8[] constant(300)", "300"),
    ],
)
def test_faults_in_usual_forms_have_their_places(line: str, fault: str) -> None:
    with pytest.raises(ParseError) as raised:
        _module('  a = f32[3,2] transpose(p), dimensions={1,0}, metadata={op_name="x" source_line=3}', line)
    assert (raised.value.line, raised.value.column) == (6, line.index(fault) + 1)


def test_fields_of_metadata_stand_in_any_order() -> None:
    usual = 'metadata={op_type="t" op_name="n" source_file="f" source_line=1 stack_frame_id=2 scheduling_name="s"}'
    other = 'metadata={scheduling_name="s" stack_frame_id=2, source_line=1 op_name="n" source_file="f" op_type="t"}'
    first, second = (_module(f"  ROOT a = f32[2,3] negate(p), {text}").entry.root.metadata for text in (usual, other))
    assert first == second
    assert first == ir.Metadata(
        op_type="t", op_name="n", source_file="f", source_line=1, stack_frame_id=2, scheduling_name="s"
    )


def test_metadata_with_braces_in_strings_is_not_taken_for_another() -> None:
    texts = ['{op_name="a"}', '{op_name="a}b"}', '{op_name="a"}', '{op_name="a}b"}', '{op_name="a} op_type="}']
    body = "\n".join(f"  v{number} = f32[2,3] negate(p), metadata={text}" for number, text in enumerate(texts))
    found = _module(body, "  ROOT a = f32[2,3] negate(p)").entry.by_name
    names = [found[f"v{number}"].op_name for number in range(len(texts))]
    assert names == ["a", "a}b", "a", "a}b", "a} op_type="]


def test_tuples_that_are_read_again_are_what_they_were() -> None:
    shapes = [
        "(f32[2], s8[])",
        "(f32[2], s8[])",
        "(f32[2],s8[])",
        "((f32[2], s8[]), f32[2])",
        "(f32[2], (f32[2], s8[]))",
    ]
    parameters = "\n".join(f"  p{number} = {shape} parameter({number})" for number, shape in enumerate(shapes))
    entry = parse(
        f"HloModule m\n\nENTRY e {{\n{parameters}\n  ROOT r = f32[2] get-tuple-element(p0), index=0\n}}\n"
    ).entry
    assert [str(shape) for shape in entry.parameter_shapes] == [shape.replace(",s", ", s") for shape in shapes]
    assert entry.by_name["p0"].shape is entry.by_name["p1"].shape


@pytest.mark.parametrize(
    ("signature", "fault"),
    [
        ("(a: f32[2]) -> f32[3]", "f32[3]"),
        ("(a: f32[2]) -> f33[2]", "f33[2]"),
        ("(a: f33[2]) -> f32[2]", "f33[2]"),
        ("(a: f32[2], b: f32[2,3]{0}) -> f32[2]", "{0}"),
    ],
)
def test_faults_in_signatures_have_their_places(signature: str, fault: str) -> None:
    line = f"%c {signature} {{"
    with pytest.raises(ParseError) as raised:
        parse(f"HloModule m\n\n{line}\n  a = f32[2] parameter(0)\n  ROOT r = f32[2] negate(a)\n}}\n")
    assert (raised.value.line, raised.value.column) == (3, line.index(fault) + 1)


def test_implied_computations_have_names_of_their_own() -> None:
    start = "((f32[2]), f32[2]) negate-start(p)"
    found = parse(
        "HloModule m\n\nasync_wrapped.1 {\n  ROOT p = f32[2] parameter(0)\n}\n\nENTRY main {\n  p = f32[2] parameter(0)\n"
        f"  a = {start}\n  b = {start}\n  c = {start}\n  ROOT d = f32[2] negate-done(c)\n}}\n"
    )
    called = [found.entry.by_name[name].attributes.calls for name in "abc"]
    assert called == ["async_wrapped", "async_wrapped.2", "async_wrapped.3"]


def test_parameters_of_a_single_instruction_are_numbered_in_the_order_of_the_text() -> None:
    found = parse("f32[2] add(f32[2] negate(f32[2] %a), f32[2] multiply(f32[2] parameter(1), f32[2] %b))").entry
    assert [(p.name, p.attributes.number) for p in found.parameters][::2] == [("a", 0), ("b", 2)]


@pytest.mark.parametrize("text", ["HloModule m\nENTRY e {\n  ROOT a = f32[] parameter(0)\n}\n", "HloModule"])
@pytest.mark.parametrize("is_on", [True, False])
def test_garbage_collection_is_left_as_it_was(text: str, is_on: bool) -> None:
    was_on = gc.isenabled()
    try:
        (gc.enable if is_on else gc.disable)()
        with contextlib.suppress(ParseError):
            parse(text)
        assert gc.isenabled() == is_on
    finally:
        (gc.enable if was_on else gc.disable)()
