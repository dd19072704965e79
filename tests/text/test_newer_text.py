"""Text of XLA versions after that of the installed jaxlib: read, also when strict, as those versions read it.

Where the installed jaxlib reads such a text, it is the judge, too. The expectations are what the parser of jaxlib 0.12
makes of these texts.
"""

import warnings

import numpy as np
import pytest

import hloexec
from conformance.xla import knows_latest_opcodes
from hloexec.errors import HloWarning, ParseError, VerificationError
from hloexec.language.text import format as format_module
from hloexec.language.text import parse
from hloexec.language.verifier import verify
from tests.text import oracle
from tests.text.accepted_values import NEWER
from tests.text.building import ADD, module, op

_PAIR = "p = (f32[2], (s32[], f32[3])) parameter(0)"
_FIRST = "p_0 = f32[2] get-tuple-element(p), index=0"

_ELEMENTS = {
    "an element": ([_PAIR, "ROOT a = f32[2] negate(p#0)"], [_PAIR, _FIRST, "ROOT a = f32[2] negate(p_0)"]),
    "an element of an element": (
        [_PAIR, "ROOT a = s32[] negate(p#1#0)"],
        [
            _PAIR,
            "p_1 = (s32[], f32[3]) get-tuple-element(p), index=1",
            "p_1_0 = s32[] get-tuple-element(p_1), index=0",
            "ROOT a = s32[] negate(p_1_0)",
        ],
    ),
    "an element that is a tuple": (
        [_PAIR, "ROOT a = (s32[], f32[3]) copy(p#1)"],
        [
            _PAIR,
            "p_1 = (s32[], f32[3]) get-tuple-element(p), index=1",
            "ROOT a = (s32[], f32[3]) copy(p_1)",
        ],
    ),
    "operands share an element": (
        [_PAIR, "n = f32[2] negate(p#0)", "ROOT a = f32[2] add(n, p#0)"],
        [_PAIR, _FIRST, "n = f32[2] negate(p_0)", "ROOT a = f32[2] add(n, p_0)"],
    ),
    "the element's shape": (
        [_PAIR, "ROOT a = f32[2] negate(f32[2]{0} %p#0)"],
        [_PAIR, _FIRST, "ROOT a = f32[2] negate(p_0)"],
    ),
    "a tuple's shape": (
        [_PAIR, "ROOT a = (s32[], f32[3]) copy((s32[], f32[3]) p#1)"],
        [
            _PAIR,
            "p_1 = (s32[], f32[3]) get-tuple-element(p), index=1",
            "ROOT a = (s32[], f32[3]) copy(p_1)",
        ],
    ),
    "spaces and comments": (
        [_PAIR, "ROOT a = f32[2] add(/*x*/ %p # 0, /*index=1*/ p# 00 )"],
        [_PAIR, _FIRST, "ROOT a = f32[2] add(p_0, p_0)"],
    ),
    "an explicit element beside it": (
        [_PAIR, "g = f32[2] get-tuple-element(p), index=0", "ROOT a = f32[2] add(g, p#0)"],
        [_PAIR, "g = f32[2] get-tuple-element(p), index=0", _FIRST, "ROOT a = f32[2] add(g, p_0)"],
    ),
    "of an element by its instruction": (
        [_PAIR, "ROOT a = f32[3] get-tuple-element(p#1), index=1"],
        [
            _PAIR,
            "p_1 = (s32[], f32[3]) get-tuple-element(p), index=1",
            "ROOT a = f32[3] get-tuple-element(p_1), index=1",
        ],
    ),
    "in an instruction that is an operand": (
        [_PAIR, "ROOT a = f32[2] negate(f32[2] negate(p#0))"],
        [_PAIR, _FIRST, "negate.anon = f32[2] negate(p_0)", "ROOT a = f32[2] negate(negate.anon)"],
    ),
    "a name that the text has before": (
        [_PAIR, "p_0 = f32[2] constant({1, 2})", "ROOT a = f32[2] add(p_0, p#0)"],
        [
            _PAIR,
            "p_0 = f32[2] constant({1, 2})",
            "p_0.1 = f32[2] get-tuple-element(p), index=0",
            "ROOT a = f32[2] add(p_0, p_0.1)",
        ],
    ),
    "a name that the text has later": (
        [_PAIR, "b = f32[2] negate(p#0)", "p_0=f32[2] constant({1, 2})", "ROOT a = f32[2] add(p_0, b)"],
        [
            _PAIR,
            "p_0.1 = f32[2] get-tuple-element(p), index=0",
            "b = f32[2] negate(p_0.1)",
            "p_0 = f32[2] constant({1, 2})",
            "ROOT a = f32[2] add(p_0, b)",
        ],
    ),
}

_ORDERS = {
    "a total order": ("direction=LT, order=TOTAL", "direction=LT, type=TOTALORDER"),
    "a partial order": ("order=PARTIAL, direction=LT", "direction=LT"),
}


_KNOWN = knows_latest_opcodes()
"""Whether the installed jaxlib reads such texts."""


@pytest.mark.parametrize("name", _ELEMENTS)
def test_operands_may_be_elements_of_tuples(name: str) -> None:
    newer, spelled_out = (module("\n".join(lines)) for lines in _ELEMENTS[name])
    found = parse(newer, strict=True)
    assert found == parse(spelled_out, strict=True)
    assert parse(format_module(found)) == found
    if _KNOWN and "later" not in name:  # where XLA gives the other instruction another name
        assert oracle.canonical_text(newer) == oracle.canonical_text(spelled_out)


@pytest.mark.parametrize(
    ("operand", "message", "column"),
    [
        ("p#2", "index 2 of get-tuple-element is out of range", 24),
        ("p#0#0", "must be a tuple", 24),
        ("q#0", "'q' is not defined before an element of it is used", 24),
        ("p##0", "expected the index of an element", 26),
        ("p#", "expected the index of an element", 26),
        ("p#0.5", "expected the index of an element", 26),
        ("p#{0}", "expected the index of an element", 26),
        ("p#-1", "index -1 of get-tuple-element is out of range", 24),
        ("p#99999999999999999999", "does not fit 64 bits", 26),
        ("f32[3] p#0", "the operand is declared f32[3], but 'p_0' gives f32[2]", 31),
        ("#0", "expected an operand", 24),
    ],
)
def test_an_element_that_there_is_not_has_its_place(operand: str, message: str, column: int) -> None:
    text = f"HloModule m\nENTRY e {{\n{_PAIR}\nROOT a = f32[2] negate({operand})\n}}"
    with pytest.raises(ParseError) as caught:
        parse(text)
    assert message in str(caught.value)
    assert (caught.value.line, caught.value.column) == (4, column)
    pytest.importorskip("jaxlib")
    with pytest.raises(Exception, match="error"):
        oracle.parse(text)


def test_operands_of_unknown_opcodes_may_be_elements() -> None:
    text = module("\n".join([_PAIR, "ROOT a = f32[2] transmogrify(p#0, p#1#1)"]))
    with pytest.warns(match="transmogrify"):
        found = parse(text)
    assert found.entry.root.operands == ("p_0", "p_1_1")


@pytest.mark.parametrize("name", NEWER)
def test_opcodes_and_attributes_are_read_and_printed_without_loss(name: str) -> None:
    found = parse(NEWER[name], strict=True)
    verify(found, strict=True)
    printed = format_module(found)
    assert parse(printed, strict=True) == found
    if _KNOWN:
        assert oracle.canonical_text(printed) == oracle.canonical_text(NEWER[name])


@pytest.mark.parametrize("name", _ORDERS)
def test_comparisons_name_their_order(name: str) -> None:
    newer, today = (op(f"pred[2] compare(a, b), {each}", a="f32[2]", b="f32[2]") for each in _ORDERS[name])
    assert parse(newer, strict=True) == parse(today, strict=True)
    if _KNOWN:
        assert oracle.canonical_text(newer) == oracle.canonical_text(today)


def test_integers_are_in_total_order_as_they_are() -> None:
    text = op("pred[3] compare(a, b), direction=LT, order=TOTAL", a="s32[3]", b="s32[3]")
    assert list(hloexec.run(parse(text), np.int32([-2, 1, 3]), np.int32([-1, -1, 4]))) == [True, False, True]


@pytest.mark.parametrize("attributes", ["order=TOTAL, type=FLOAT", "type=TOTALORDER, order=PARTIAL"])
def test_a_comparison_has_one_order(attributes: str) -> None:
    text = op(f"pred[2] compare(a, b), direction=LT, {attributes}", a="f32[2]", b="f32[2]")
    with pytest.raises(ParseError, match="says what another attribute has said already"):
        parse(text)
    pytest.importorskip("jaxlib")
    with pytest.raises(Exception, match="error"):
        oracle.parse(text)


@pytest.mark.parametrize("is_stable", ["true", "false"])
def test_topk_says_whether_it_is_stable(is_stable: str) -> None:
    text = op(f"(f32[2], s32[2]) topk(a), k=2, largest=true, is_stable={is_stable}", a="f32[5]")
    found = parse(text, strict=True)
    assert parse(format_module(found)) == found
    values, places = hloexec.run(found, np.float32([1, 7, 3, 7, 7]))
    assert (list(values), list(places)) == ([7, 7], [1, 3])


def test_module_attributes_that_mean_nothing_to_a_run_are_kept_verbatim() -> None:
    kept = (
        'backend_config={"a": [1, "}"]}, debug_attributes={ {"c"}:({log_mode=default,callback_id=1,partitioned=true}) }'
    )
    text = module("ROOT a = f32[2] parameter(0)", "", f", {kept}")
    found = parse(text, strict=True)
    assert found.unknown_attributes == (
        ("backend_config", '{"a": [1, "}"]}'),
        ("debug_attributes", '{ {"c"}:({log_mode=default,callback_id=1,partitioned=true}) }'),
    )
    assert parse(format_module(found), strict=True) == found
    if _KNOWN:
        assert "backend_config" in oracle.canonical_text(format_module(found))


def test_a_mesh_of_one_device_is_a_single_device() -> None:
    newer, today = (
        op(f'f32[2] copy(a), sharding={{{mesh}[device_id=3], metadata={{op_name="m"}}}}', a="f32[2]")
        for mesh in ("single_device", "maximal_mesh")
    )
    assert parse(newer, strict=True) == parse(today, strict=True)
    if _KNOWN:
        assert oracle.canonical_text(newer) == oracle.canonical_text(format_module(parse(newer)))
    with pytest.raises(ParseError, match="device_id"):
        parse(newer.replace("device_id", "device"))


@pytest.mark.parametrize("tree", ['{"a"}', '({"a"}, {"b" {0}})', "()", "{}"])
@pytest.mark.parametrize("calls", ["c/d", ""])
def test_origins_say_which_calls_led_to_them(tree: str, calls: str) -> None:
    text = op(f'f32[2] copy(a), origin={{{tree},["{calls}"]}}', a="f32[2]")
    found = parse(text, strict=True)
    assert parse(format_module(found)) == found
    assert str(found.entry.root.original_value.text) == f'{{{tree},["{calls}"]}}'
    if _KNOWN:
        assert oracle.canonical_text(format_module(found)) == oracle.canonical_text(text)


@pytest.mark.parametrize("origin", ['{{"a"},"x"}', '{{"a"},["x","y"]}', '{["x"]}', "{(),[synthetic_call]}"])
def test_the_calls_of_an_origin_are_one_string_behind_it(origin: str) -> None:
    text = op(f"f32[2] copy(a), origin={origin}", a="f32[2]")
    with pytest.raises(ParseError):
        parse(text)
    if _KNOWN:  # that of jaxlib 0.10 ends the process
        with pytest.raises(Exception, match="error"):
            oracle.parse(text)


_NO_AXIS = "f32[2] all-reduce(a), replica_groups=mesh['x'=1,'y'=4]{}, to_apply=add_f32"


@pytest.mark.parametrize("axes", [" {}", " {'x'}", ", {'x'}"])
def test_groups_along_axes_may_be_of_one_device(axes: str) -> None:
    """XLA before jaxlib 0.12 reads a comma in front of the axes, too."""
    found = parse(op(_NO_AXIS.format(axes), ADD, a="f32[2]"), strict=True)
    assert found.entry.root.attributes.replica_groups.expand() == ((0,), (1,), (2,), (3,))
    assert parse(format_module(found)) == found
    if _KNOWN:
        spelled = op(_NO_AXIS.format(axes.lstrip(",")), ADD, a="f32[2]")
        assert oracle.canonical_text(format_module(found)) == oracle.canonical_text(spelled)


def test_two_instructions_may_start_one_computation() -> None:
    text = """HloModule m
inner {
  x = f32[2] parameter(0)
  ROOT n = f32[2] negate(x)
}
ENTRY e {
  a = f32[2] parameter(0)
  s = ((f32[2]), f32[2], s32[]) async-start(a), calls=inner
  t = ((f32[2]), f32[2], s32[]) async-start(a), calls=inner
  d = f32[2] async-done(s)
  e = f32[2] async-done(t)
  ROOT r = f32[2] add(d, e)
}
"""
    found = parse(text, strict=True)
    assert parse(format_module(found)) == found
    assert list(hloexec.run(found, np.float32([1, 2]))) == [-2, -4]
    if _KNOWN:
        assert oracle.verdicts([text]) == [None]


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
        for element_type in "f32 f64 bf16 c64 pred".split():
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
