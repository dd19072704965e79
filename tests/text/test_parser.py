"""The parser and the printer against XLA's own, text by text."""

import warnings
from functools import cache

import numpy as np
import pytest

from hloexec.core import ir
from hloexec.errors import HloWarning, ParseError, VerificationError
from hloexec.language.text import format as format_module
from hloexec.language.text import parse
from hloexec.language.verifier import verify
from hloexec.ops import registry
from tests.text import oracle
from tests.text.accepted_values import NEWER
from tests.text.building import module, op
from tests.text.cases import ACCEPTED, REJECTED, TOLERATED, UNKNOWN, places_of, without_marks
from tests.text.rejected_structure import FORMS


def _named(table: dict[str, str]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("text", table.values(), ids=table.keys())


@cache
def _xla_verdicts() -> dict[str, str | None]:
    texts = [*map(without_marks, REJECTED.values()), *map(without_marks, UNKNOWN.values())]
    return dict(zip(texts, oracle.verdicts(texts), strict=True))


@_named(ACCEPTED)
def test_accepted_text_survives_printing(text: str) -> None:
    for strict in (False, True):
        with warnings.catch_warnings():
            warnings.simplefilter("error", HloWarning)
            module = parse(text, strict=strict)
            printed = format_module(module)
            assert parse(printed, strict=strict) == module


@pytest.mark.sampled(4)
@_named(ACCEPTED)
def test_text_printed_here_and_by_xla_is_the_same_module_to_xla(text: str) -> None:
    canonical = oracle.canonical_text(text)
    assert oracle.canonical_text(format_module(parse(text))) == canonical
    printed = oracle.with_signed_zeros(canonical)
    # Of unreduced shardings, XLA of jaxlib 0.12 prints more whenever it reads what it printed.
    again = oracle.with_signed_zeros(oracle.canonical_text(printed)) if "sdy::reduction_op" in printed else printed
    assert oracle.with_signed_zeros(oracle.canonical_text(format_module(parse(printed)))) == again


@pytest.mark.parametrize("name", REJECTED)
def test_rejected_text_raises_at_its_fault(name: str) -> None:
    text = REJECTED[name]
    assert _xla_verdicts()[without_marks(text)] is not None, "XLA accepts this"
    _assert_rejected_at_its_place(text, strict=True)
    if name not in TOLERATED:
        _assert_rejected_at_its_place(text, strict=False)


def test_async_sugar_with_an_operand_too_few_is_rejected() -> None:
    """XLA is not asked: its parser reads an operand that is not there, and what comes of that varies; at times it hangs."""
    text = op("((f32[2], f32[2]), f32[2], s32[]) §add-start(a)§", a="f32[2]")
    _assert_rejected_at_its_place(text, strict=True)
    _assert_rejected_at_its_place(text, strict=False)


@_named(FORMS)
def test_what_does_not_fit_is_rejected_without_the_verifier_when_strict(text: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse(without_marks(text), strict=True)
    assert (caught.value.line, caught.value.column) in places_of(text), str(caught.value)


@pytest.mark.parametrize("name", sorted({*FORMS} & {*TOLERATED}))
def test_what_is_tolerated_does_not_fit_when_verified_strictly(name: str) -> None:
    module = parse(without_marks(FORMS[name]))
    verify(module)
    with pytest.raises(VerificationError):
        verify(module, strict=True)


@pytest.mark.parametrize("name", TOLERATED)
def test_text_of_other_versions_is_tolerated_by_default(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HloWarning)
        module = parse(without_marks(REJECTED[name]))
        assert parse(format_module(module)) == module


def _assert_rejected_at_its_place(text: str, strict: bool) -> None:
    plain = without_marks(text)
    with warnings.catch_warnings(), pytest.raises((ParseError, VerificationError)) as caught:
        warnings.simplefilter("ignore", HloWarning)
        verify(parse(plain, filename="dump.txt", strict=strict))
    error = caught.value
    if isinstance(error, ParseError):
        assert (error.line, error.column) in places_of(text), str(error)
        assert error.source_line.rstrip("\r") == (plain.split("\n")[error.line - 1]).rstrip("\r")
        assert str(error).startswith(f"dump.txt:{error.line}:{error.column}: {error.message}\n")
    else:
        assert any(f"dump.txt:{line}:" in str(error) for line, _ in places_of(text)), str(error)


@_named(UNKNOWN)
def test_what_a_future_xla_may_write_is_kept_and_warned_about_once(text: str) -> None:
    plain = without_marks(text)
    with pytest.warns(HloWarning) as caught:
        module = parse(plain)
    assert len(caught) == 1
    with pytest.warns(HloWarning):
        assert parse(format_module(module)) == module


def test_unknown_fields_of_metadata_take_nothing_from_those_behind_them() -> None:
    with pytest.warns(HloWarning):
        module = parse(op('f32[2] copy(a), metadata={first={1,2} second=3 op_name="n"}', a="f32[2]"))
    metadata = module.entry.root.metadata
    assert metadata is not None
    assert (metadata.op_name, metadata.unknown) == ("n", (("first", "{1,2}"), ("second", "3")))


def test_operands_of_an_unknown_opcode_end_with_their_bracket() -> None:
    with pytest.raises(ParseError, match="expected an instruction"), pytest.warns(HloWarning):
        parse(op("f32[2] transmogrify(1)2", a="f32[2]"))


@pytest.mark.parametrize(
    "kept",
    [
        "unheard_of=word",
        "unheard_of=12",
        'unheard_of="a, b)\\"\\n"',
        'unheard_of={a={1,2}, b="}"}',
        "unheard_of=[2,2]<=[4]T(1,0)",
        "unheard_of=(a, (b))",
        "unheard_of=f32[2,3]{1,0:T(8,128)}",
        "unheard_of=1x2_3->4x5",
        "unheard_of={ spaces  stay }",
    ],
)
def test_unknown_attributes_are_printed_verbatim(kept: str) -> None:
    carried = f'f32[2] copy(a), {kept}, backend_config="x"'
    for text in (op(carried, a="f32[2]"), ACCEPTED["add"].replace("HloModule m", f"HloModule m, {kept}")):
        with pytest.warns(HloWarning):
            assert kept in format_module(parse(text))


@pytest.mark.parametrize("kept", ['transmogrify(%a, %a), way={1,2}, how="x"', 'transmogrify(3 : {a [b]}, ")"), x=y'])
def test_unknown_opcodes_are_printed_with_what_they_carry(kept: str) -> None:
    with pytest.warns(HloWarning):
        assert kept in format_module(parse(op(f"f32[2] {kept}", a="f32[2]")))


@_named(UNKNOWN)
def test_what_a_future_xla_may_write_is_rejected_when_strict(text: str) -> None:
    plain = without_marks(text)
    assert _xla_verdicts()[plain] is not None, "XLA knows this"
    with pytest.raises(ParseError) as caught:
        parse(plain, strict=True)
    assert (caught.value.line, caught.value.column) in places_of(text), str(caught.value)


@pytest.mark.parametrize(
    "body",
    [
        "ROOT a = ((f32[1]), f32[2], s32[]) custom-call-update(a)",
        "ROOT d = f32[2] custom-call-done(d)",
        "a = ((f32[1]), f32[2], s32[]) async-update(b)\nb = ((f32[1]), f32[2], s32[]) async-update(a)\n"
        "ROOT d = f32[2] async-done(b)",
        "a = ((f32[1]), f32[2], s32[]) custom-call-update(b)\nb = ((f32[1]), f32[2], s32[]) custom-call-update(a)\n"
        "ROOT d = f32[2] custom-call-done(b)",
    ],
)
def test_async_updates_in_a_cycle_are_left_to_the_verifier(body: str) -> None:
    with pytest.raises(VerificationError, match="the value depends on itself"):
        verify(parse(module(body)))


def test_repeated_unknown_attributes_are_one_warning() -> None:
    text = "HloModule m\nENTRY e {\n" + "".join(f" a{i} = f32[] parameter({i}), odd=1\n" for i in range(50)) + "}\n"
    with pytest.warns(HloWarning) as caught:
        parse(text)
    assert len(caught) == 1
    assert "odd" in str(caught[0].message)


def test_every_opcode_is_in_the_table() -> None:
    written = " ".join([*ACCEPTED.values(), *NEWER.values()])
    missing = [name for name in registry.OPCODES if f" {name}(" not in written]
    assert missing == [], "of which tests/text/accepted_opcodes.py, or accepted_values.py, has no text"


def test_minus_zero_keeps_its_sign() -> None:
    """XLA prints it as `-0`, and reads that as the integer 0; what was meant is -0."""
    for text in ("-0", "-0.0"):
        module = parse(f"HloModule m\nENTRY e {{\n ROOT c = f32[2] constant({{{text}, 0}})\n}}\n")
        values = module.entry.root.attributes.literal.value
        assert list(np.signbit(values)) == [True, False]
        assert "-0.0" in format_module(module)


def test_metadata_can_be_left_out_of_the_printed_text() -> None:
    module = parse(ACCEPTED["everything an instruction may carry"])
    printed = format_module(module, metadata=False, backend_config=False)
    assert "metadata=" not in printed
    assert "backend_config=" not in printed
    assert "sharding=" in printed


def test_layouts_can_be_left_out_of_the_printed_text() -> None:
    module = parse(ACCEPTED["shape f32[256,128]{1,0:T(8,128)}"])
    assert "{1,0" not in format_module(module, layouts=False)
    assert "{1,0:T(8,128)}" in format_module(module)


@pytest.mark.parametrize("name", ["nan", "ENTRY", "f32"])
def test_a_module_named_by_a_keyword_or_a_type_survives_printing(name: str) -> None:
    module = parse(f"HloModule %{name}\nENTRY main {{\n  ROOT a = f32[] parameter(0)\n}}\n")
    assert parse(format_module(module)) == module
    assert module.name == name


def test_spans_point_at_the_instruction() -> None:
    text = ACCEPTED["nested instructions in nested instructions"]
    module = parse(text)
    root = module.entry.root
    assert root.span is not None
    written = text[root.span.start : root.span.end].strip()
    assert written.removeprefix("ROOT ").startswith("r = ")
    assert written.endswith("add(a, a))")


def test_module_remembers_its_source_and_file() -> None:
    text = ACCEPTED["add"]
    module = parse(text, filename="some.hlo")
    assert (module.source, module.filename) == (text, "some.hlo")


def test_elided_literals_take_no_memory() -> None:
    module = parse("HloModule m\nENTRY e {\n ROOT c = f32[1000000,1000000] constant({...})\n}\n")
    assert module.entry.root.attributes.literal == ir.Literal(module.entry.root.shape, None)


@pytest.mark.parametrize(
    ("instruction", "column", "message"),
    [
        ("f32[8,8]{1,0:T(8,0)} abs(a)", 24, "a tile dimension is a number from 1 to 9223372036854775807, but is 0"),
        ("f32[8,8]{1,0:S(-1)} abs(a)", 22, "the memory space is a number from 0 to 9223372036854775807, but is -1"),
        ("f32[8,8]{1,0:E(9223372036854775808)} abs(a)", 22, "but is 9223372036854775808"),
        ("f32[<=9223372036854775808] abs(a)", 13, "a dimension is a number from 0 to .*, but is 9223372036854775808"),
        ("f32[8,8]{-1,0} abs(a)", 15, "a layout names every dimension once"),
        ("f32[8,8] ab", 16, "'ab' is not an opcode"),
        ("f32[8,8] a^bs(a)", 16, "'a' is not an opcode"),
        ("f32[2] constant({0, 1 + 2})", 29, r"has 2 elements, found more: '\+'"),
        ("f32[] constant(NaN)", 22, "a number, inf or nan"),
        ("opaque[2] abs(a)", 7, "a shape of type opaque has no dimensions"),
        ('f32[] abs(a), frontend_attributes={k ="v"}', 42, "followed by '=', found 'k ='"),
    ],
)
def test_messages_say_what_would_be_right_at_its_place(instruction: str, column: int, message: str) -> None:
    with pytest.raises(ParseError, match=message) as caught:
        parse(f"ENTRY m {{\n  a = f32[8,8] parameter(0)\n  b = {instruction}\n}}")
    assert (caught.value.line, caught.value.column) == (3, column)
