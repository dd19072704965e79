"""Words of another XLA where an attribute names one of a few: what no value depends on runs, all else is refused by name.

What an opcode computes under a word that nobody knows is unknown, and not the same as what it computes by default.
"""

import numpy as np
import pytest

import hloexec
from hloexec import parse
from hloexec.core.ir import AxisRef, DimensionSharding, Mesh, NamedSharding
from hloexec.errors import HloWarning, ParseError, UnsupportedError, VerificationError
from hloexec.language.text.attributes.annotations import meshes_of, parse_manual_axes, parse_meshes, parse_shardings
from tests.text.building import op
from tests.text.cases import UNKNOWN, without_marks

_DECIDING = {
    "direction": "opcode compare .*where direction is XX, which hloexec does not know",
    "comparison type": "opcode compare .*where type is PARTIAL",
    "fft type": "opcode fft .*where fft_type is DCT",
    "distribution": "opcode rng .*where distribution is rng_odd",
    "random algorithm": "opcode rng-bit-generator .*where algorithm is rng_odd",
    "transposition": "opcode triangular-solve .*where transpose_a is ODD",
    "precision": "opcode dot .*where operand_precision is odd",
    "precision beside another": "opcode dot .*where operand_precision is odd",
    "dot algorithm": "opcode dot .*where algorithm is dot_odd",
}

_X = np.float32([3, -1])


def _read(name: str) -> hloexec.Module:
    with pytest.warns(HloWarning, match="is not known; it is kept verbatim"):
        return hloexec.parse(without_marks(UNKNOWN[name]))


@pytest.mark.parametrize("name", _DECIDING)
def test_what_values_depend_on_is_refused_by_name(name: str) -> None:
    module = _read(name)
    hloexec.verify(module)
    with pytest.raises(UnsupportedError, match=_DECIDING[name]):
        hloexec.run(module)
    with pytest.raises(VerificationError, match="must be one of"):
        hloexec.verify(module, strict=True)


def test_what_no_value_depends_on_runs() -> None:
    assert hloexec.run(_read("collective mode"), _X).tolist() == [3, -1]
    text = op('f32[2] custom-call(a), custom_call_target="Sharding", api_version=API_VERSION_UNSPECIFIED', a="f32[2]")
    with pytest.warns(HloWarning, match="'API_VERSION_UNSPECIFIED' of the attribute 'api_version'"):
        assert hloexec.run(hloexec.parse(text), _X).tolist() == [3, -1]


def test_the_order_of_a_newer_comparison_is_kept() -> None:
    text = op("pred[2] compare(a, b), direction=LT, order=SOME", a="f32[2]", b="f32[2]")
    with (
        pytest.warns(HloWarning, match="'SOME' of the attribute 'order'"),
        pytest.raises(UnsupportedError, match="SOME"),
    ):
        hloexec.run(hloexec.parse(text))


def test_a_shape_that_an_unknown_word_decides_has_to_be_given() -> None:
    text = op("fft(a), fft_type=DCT, fft_length={2}", a="c64[2]")
    with pytest.warns(HloWarning), pytest.raises(ParseError, match="must be given, as its fft_type 'DCT' is not known"):
        hloexec.parse(text)


MESH = Mesh((("x", 2), ("y", 4)))
MESHES = {"mesh": MESH, "my mesh": Mesh((("z", 8),))}
X, Y = AxisRef("x"), AxisRef("y")


def dimensions(*axes: tuple[AxisRef, ...]) -> tuple[DimensionSharding, ...]:
    return tuple(DimensionSharding(entry) for entry in axes)


@pytest.mark.parametrize(
    ("text", "meshes"),
    [
        ("{}", {}),
        ('{mesh = #sdy.mesh<["x"=2, "y"=4]>}', {"mesh": MESH}),
        (
            '{a = #sdy.mesh<["x"=2], device_ids=[1, 0]>, "b c" = #sdy.mesh<["z"=8]>}',
            {"a": Mesh((("x", 2),), (1, 0)), "b c": Mesh((("z", 8),))},
        ),
        ("{one = #sdy.mesh<[], device_ids=[3]>}", {"one": Mesh(maximal_device=3)}),
        ("{none = #sdy.mesh<[]>}", {"none": Mesh()}),
    ],
)
def test_meshes_have_names_axes_and_an_order(text: str, meshes: dict[str, Mesh]) -> None:
    assert parse_meshes(text) == meshes


@pytest.mark.parametrize(
    ("text", "sharding"),
    [
        ("<@mesh, []>", NamedSharding(MESH)),
        ('<@mesh, [{"x"}, {}]>', NamedSharding(MESH, dimensions=dimensions((X,), ()))),
        ('<@mesh, [{"y", "x"}]>', NamedSharding(MESH, dimensions=dimensions((Y, X)))),
        (
            '<@mesh, [{"x", ?}, {?}]>',
            NamedSharding(MESH, dimensions=(DimensionSharding((X,), False), DimensionSharding((), False))),
        ),
        ('<@mesh, [{"x"}p0, {}p12]>', NamedSharding(MESH, dimensions=dimensions((X,), ()))),
        ('<@mesh, [{"y":(2)2}]>', NamedSharding(MESH, dimensions=dimensions((AxisRef("y", (2, 2)),)))),
        (
            '<@mesh, [{}], replicated={"x"}, unreduced={"y"}>',
            NamedSharding(MESH, dimensions=dimensions(()), replicated=(X,), unreduced=(Y,)),
        ),
        ('<@"my mesh", []>', NamedSharding(MESHES["my mesh"])),
        ('<mesh<["x"=2, "y"=4]>, []>', NamedSharding(MESH)),
    ],
)
def test_shardings_come_alone_or_one_per_value(text: str, sharding: NamedSharding) -> None:
    assert parse_shardings(f"#sdy.sharding{text}", MESHES) == (sharding,)
    assert parse_shardings(f"#sdy.sharding_per_value<[{text}, {text}]>", MESHES) == (sharding, sharding)


def test_manual_axes_are_names() -> None:
    assert parse_manual_axes('#sdy<manual_axes{"x", "y"}>') == ("x", "y")
    assert parse_manual_axes("#sdy<manual_axes{}>") == ()


@pytest.mark.parametrize("value", ['{m = #sdy.mesh<["x"=2]>}', '"{m = #sdy.mesh<[\\"x\\"=2]>}"'])
def test_a_module_has_its_meshes_bare_or_quoted(value: str) -> None:
    text = (
        f"HloModule m, frontend_attributes={{xla.sdy.meshes={value}}}\n\nENTRY e {{\n  ROOT r = s32[] constant(0)\n}}\n"
    )
    assert meshes_of(parse(text)) == {"m": Mesh((("x", 2),))}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected '#'"),
        ("#sdy.mesh<[]>", "expected '#sdy.sharding_per_value' or '#sdy.sharding'"),
        ("#sdy.sharding<@nowhere, []>", "no mesh 'nowhere'"),
        ("#sdy.sharding<@mesh, [{x}]>", "quoted string"),
        ('#sdy.sharding<@mesh, [{?, "x"}]>', "'\\?' is the last"),
        ('#sdy.sharding<@mesh, [{"x"}]', "expected '>', found the end"),
        ("#sdy.sharding<@mesh, []> more", "expected the end of the attribute"),
        ("#sdy.sharding<@mesh, [], open={}>", "expected 'replicated' or 'unreduced'"),
        ('#sdy.sharding<@mesh, [{"x":2}]>', "expected '\\('"),
        ('#sdy.sharding<mesh<["x"=0]>, []>', "at least 1"),
        ('#sdy.sharding<mesh<["x"=2], device_ids=[0,0]>, []>', "each of them once"),
        ('#sdy.sharding<mesh<["x"=99999999999], device_ids=[0]>, []>', "each of them once"),
    ],
)
def test_errors_say_what_was_expected_and_where(text: str, message: str) -> None:
    with pytest.raises(ParseError, match=message) as caught:
        parse_shardings(text, MESHES)
    assert caught.value.line == 1 and 1 <= caught.value.column <= len(text) + 1
