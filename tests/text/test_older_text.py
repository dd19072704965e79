"""Text that earlier and other versions of XLA wrote is read by default, and refused when strict, as XLA refuses it."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import hloexec
from hloexec.errors import HloWarning, ParseError, VerificationError
from hloexec.language.text import format as format_module
from hloexec.language.text import parse
from tests.text import oracle
from tests.text.building import module, op

_F2 = "f32[2]"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("f32[2,2] constant(f32[2,2] { { 1, 2 }, { 3, 4 } })", "f32[2,2] constant({ { 1, 2 }, { 3, 4 } })"),
        ("s8[2]{0} constant(s8[2]{0} {1, 2})", "s8[2]{0} constant({1, 2})"),
        ("(f32[2], s32[]) constant((f32[2], s32[]) (f32[2] {1, 2}, 3))", "(f32[2], s32[]) constant(({1, 2}, 3))"),
        ("((c64[]), f32[]) constant(((c64[]), f32[]) (((1, 2)), 3))", "((c64[]), f32[]) constant((((1, 2)), 3))"),
    ],
)
def test_literals_may_state_their_shape(old: str, new: str) -> None:
    assert parse(module(f"ROOT c = {old}")) == parse(module(f"ROOT c = {new}"))
    with pytest.raises(ParseError):
        parse(module(f"ROOT c = {old}"), strict=True)


def test_positions_that_a_table_of_source_lines_leaves_out_are_zero() -> None:
    whole = "line=3 end_line=0 column=0 end_column=0"
    text = f"""HloModule m

FileNames
1 "model.py"

FunctionNames
1 "layer"

FileLocations
1 {{file_name_id=1 function_name_id=1 {whole}}}

StackFrames
1 {{file_location_id=1 parent_frame_id=0}}

ENTRY e {{ ROOT x = f32[] parameter(0) }}
"""
    assert oracle.parse(text) is not None
    assert parse(text.replace(whole, "line=3")) == parse(text, strict=True)
    with pytest.raises(ParseError, match="lacks the field 'end_line'"):
        parse(text.replace(whole, "line=3"), strict=True)
    with pytest.raises(ParseError, match="lacks the field 'function_name_id'"):
        parse(text.replace("function_name_id=1 ", ""))


@pytest.mark.parametrize("literal", ["s8[3] {1, 2}", "u8[2] {1, 2}", "(s8[2]) ({1, 2})"])
def test_the_shape_of_a_literal_is_that_of_its_constant(literal: str) -> None:
    with pytest.raises(ParseError, match="is given the shape"):
        parse(module(f"ROOT c = s8[2] constant({literal})"))


def test_gather_is_read_by_its_earlier_names() -> None:
    new = "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,3}"
    old = "output_window_dims={1}, elided_window_dims={0}, gather_dims_to_operand_dims={0}, index_vector_dim=1, "
    old += "window_bounds={1,3}"
    texts = [op(f"f32[5,3] gather(a, i), {names}", a="f32[4,3]", i="s32[5]") for names in (old, new)]
    assert parse(texts[0]) == parse(texts[1])
    assert format_module(parse(texts[0])) == format_module(parse(texts[1]))
    with pytest.raises(ParseError):
        parse(texts[0], strict=True)
    with pytest.raises(
        ParseError, match="'window_bounds' says what another attribute has said already: the attribute 'slice_sizes'"
    ):
        parse(texts[1].replace("{1,3}", "{1,3}, window_bounds={1,3}"))


_SCAN = "p = f32[2] parameter(0) q = f32[2] parameter(1) s = f32[2] add(p, q) ROOT t = (f32[2], f32[2]) tuple(s, s)"
_ADD = "p = f32[] parameter(0) q = f32[] parameter(1) ROOT s = f32[] add(p, q)"


@pytest.mark.parametrize(
    "text",
    [
        op(
            f"f32[1,2] reduce-scatter(a), dimensions={{0}}, replica_groups={{{{0,1,2,3}}}}, to_apply={{ {_ADD} }}",
            a="f32[4,2]",
        ),
        op(
            f"(f32[4,2], f32[2]) scan(a, b), dimensions={{0}}, num_carries=1, to_apply={{ {_SCAN} }}",
            a="f32[4,2]",
            b=_F2,
        ),
    ],
    ids=["reduce-scatter", "scan"],
)
def test_bodies_in_canonical_text_may_be_calls(text: str) -> None:
    """XLA writes so, and does not read it."""
    hlo = pytest.importorskip("jaxlib._hlo")
    options = hlo.HloPrintOptions.canonical()
    canonical = hlo.hlo_module_from_text(text).to_string(options)
    assert "calls=\n" in canonical
    found = parse(canonical)
    again = hlo.hlo_module_from_text(format_module(found)).to_string(options)
    assert again[again.index("ENTRY") :] == canonical[canonical.index("ENTRY") :]
    with pytest.raises(ParseError, match="calls"):
        parse(canonical, strict=True)


def test_kinds_of_fusion_that_are_not_known_are_kept_with_a_warning() -> None:
    text = op("f32[2] fusion(a), kind=kSomething, calls={ p = f32[2] parameter(0) ROOT n = f32[2] negate(p) }", a=_F2)
    with pytest.warns(HloWarning, match="kSomething"):
        found = parse(text)
    with pytest.warns(HloWarning):
        assert parse(format_module(found)) == found
    assert list(hloexec.run(found, np.float32([1, -2]))) == [-1, 2]
    with pytest.raises(ParseError, match="kSomething"):
        parse(text, strict=True)


def test_after_all_takes_any_values() -> None:
    text = op("f32[2] add-dependency(a, t)", a=_F2).replace("ROOT", "t = token[] after-all(a)\nROOT")
    oracle.parse(text)
    found = parse(text, strict=True)
    hloexec.verify(found, strict=True)
    assert list(hloexec.run(found, np.float32([1, -2]))) == [1, -2]


def test_integers_beyond_64_bits_are_refused_when_strict() -> None:
    texts = []
    for value in (1 << 64, -(1 << 63) - 1):
        for element_type in ("f32", "f64", "bf16", "c64", "pred"):
            literal = f"({value}, 0)" if element_type == "c64" else value
            texts.append(module(f"ROOT c = {element_type}[] constant({literal})"))
            texts.append(module(f"ROOT c = {element_type}[2] constant({{{literal}, {literal}}})"))
    for text in texts:
        with pytest.raises(RuntimeError, match="INVALID_ARGUMENT"):
            oracle.parse(text)
        with pytest.raises(ParseError, match="64 bits"):
            parse(text, strict=True)
        if "pred" not in text:
            parse(text)


def test_an_element_type_is_no_opcode() -> None:
    with warnings.catch_warnings(), pytest.raises(ParseError, match="'f32' is not an opcode"):
        warnings.simplefilter("error")
        parse(module("ROOT b = f32[] f32(0)"))


def test_the_operand_of_add_dependency_that_orders_it_is_still_a_token() -> None:
    with pytest.raises(VerificationError, match="token"):
        hloexec.verify(parse(op("f32[2] add-dependency(a, a)", a=_F2)))


@pytest.mark.parametrize(
    ("old", "direction"),
    [("equal-to", "EQ"), ("not-equal-to", "NE"), ("greater-than", "GT"), ("greater-than-or-equal-to", "GE"),
     ("less-than", "LT"), ("less-than-or-equal-to", "LE")],
)  # fmt: skip
def test_comparisons_that_were_opcodes_of_their_own_are_read_as_compare(old: str, direction: str) -> None:
    text = op(f'pred[2] {old}(a, b), metadata={{op_name="n"}}', a=_F2, b=_F2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = parse(text)
    assert found == parse(op(f'pred[2] compare(a, b), direction={direction}, metadata={{op_name="n"}}', a=_F2, b=_F2))
    with pytest.raises(ParseError, match=f"'{old}'"):
        parse(text, strict=True)


def test_generate_token_is_read_as_after_all() -> None:
    text = op("f32[2] add-dependency(a, t)", a=_F2).replace("ROOT", "t = token[] {}()\nROOT")
    assert parse(text.replace("{}", "generate-token")) == parse(text.replace("{}", "after-all"))
