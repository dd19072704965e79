"""Values as XLA writes them, as a LiteralProto or as text: read wherever a file of values is, and told from modules."""

import gzip
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hloexec
from hloexec.cli import main
from hloexec.core.values import TOKEN
from hloexec.language import literals
from tests.command_line import CommandLine

ADD = """HloModule add
ENTRY e { x = f32[2,2] parameter(0)
  y = f32[2] parameter(1)
  z = f32[2,2] broadcast(y), dimensions={1}
  ROOT r = f32[2,2] add(x, z) }
"""
X, Y = np.array([[1, 2], [3, 4]], np.float32), np.array([10, 20], np.float32)
TEXTS: dict[str, Any] = {
    "f32[2,2] {{1,2},{3,4}}\n": X,
    "f32[2,2]{1,0} {\n  { 1, 2 },\n  { 3, 4 }\n}": X,
    "f32[2,2]{0,1} { { 1, 2 }, /*i1=1*/ { 3, 4 } }": X,
    "f32[2]{0} {10, 20}": Y,
    "f32[2]{10, 20}": Y,
    "f32[1]{0}": np.zeros(1, np.float32),
    "f32[] 3.5": np.float32(3.5),
    "// of the reference\npred[2] {true, false}": np.array([True, False]),
    "bf16[2] {0.5, nan}": np.array([0.5, np.nan], ml_dtypes.bfloat16),
    "s4[2] {-8, 7}": np.array([-8, 7]).astype(ml_dtypes.int4),
    "c64[1] {(1, -2)}": np.array([1 - 2j], np.complex64),
    "(\nf32[] 1,\nf32[2] {10, 20}\n)": (np.float32(1), Y),
    "((f32[0] {}), ())": ((np.zeros(0, np.float32),), ()),
    "f32[2,2] {{1,2},{3,4}}\nf32[2] {10, 20}\n": (X, Y),
}


@pytest.fixture(autouse=True)
def _files(empty_folder: Path) -> None:
    Path("add.hlo").write_text(ADD)
    Path("x.txt").write_text("f32[2,2] {{1, 2}, {3, 4}}\n")
    Path("y.pb").write_bytes(proto(Y))
    Path("both.txt").write_text("f32[2,2] {{1, 2}, {3, 4}}\nf32[2]{0} {10, 20}\n")
    Path("both.pb").write_bytes(proto((X, Y)))
    Path("sum.txt").write_text("f32[2,2]{1,0} {{11, 22}, {13, 24}}")
    Path("sum.pb.gz").write_bytes(gzip.compress(proto(X + Y)))
    Path("wrong.txt").write_text("f32[2,2] {{11, 22}, {13, 25}}")
    np.savez("both.npz", X, Y)
    np.savez("sum.npz", X + Y)


def _field(number: int, content: bytes) -> bytes:
    assert len(content) < 128
    return bytes([number << 3 | 2, len(content)]) + content


def proto(value: Any) -> bytes:
    """A LiteralProto of f32 arrays (type 11, elements in field 8) or a tuple of them (type 13, field 10), as
    xla_data.proto defines it."""
    if isinstance(value, tuple):
        return _field(1, bytes([2 << 3, 13])) + b"".join(_field(10, proto(element)) for element in value)
    minor_to_major = bytes(range(value.ndim))[::-1]
    shape = bytes([2 << 3, 11]) + _field(3, bytes(value.shape)) + _field(5, _field(1, minor_to_major))
    return _field(1, shape) + _field(8, struct.pack(f"<{value.size}f", *value.flatten()))


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(theirs, tuple):
        return isinstance(ours, tuple) and len(ours) == len(theirs) and all(map(_same, ours, theirs))
    return (ours.dtype, ours.shape, ours.tobytes()) == (theirs.dtype, theirs.shape, theirs.tobytes())


@pytest.mark.parametrize("text", TEXTS)
def test_text_of_literals_is_a_value(text: str) -> None:
    Path("value.txt").write_text(text)
    assert _same(literals.load("value.txt"), TEXTS[text])
    Path("value.gz").write_bytes(gzip.compress(text.encode()))
    assert _same(literals.load("value.gz"), TEXTS[text])
    Path("value").write_bytes(text.encode("utf-16"))
    assert _same(literals.load("value"), TEXTS[text])


@pytest.mark.parametrize("value", [X, Y, np.float32(2), (X, (Y, ())), np.zeros((0, 3), np.float32)], ids=repr)
def test_a_literal_proto_is_a_value(value: Any) -> None:
    Path("value.pb").write_bytes(proto(value))
    assert _same(literals.load("value.pb"), value)


def test_xla_prints_what_is_read() -> None:
    """XLA prints a literal in its text of a module behind its shape; that is where these texts come from."""
    hlo = pytest.importorskip("jaxlib._hlo")
    text = "HloModule m\nENTRY e { ROOT c = bf16[2,3] constant({{1, 2, 3}, {-inf, nan, 0.1}}) }\n"
    options = hlo.HloPrintOptions()
    options.print_large_constants = True
    printed = hlo.hlo_module_from_text(text).to_string(options)
    shape, _, rest = printed.partition("ROOT %c = ")[2].partition(" constant(")
    Path("value.txt").write_text(f"{shape} {rest.partition(')')[0]}")
    expected = np.array([[1, 2, 3], [-np.inf, np.nan, 0.1]], np.float32).astype(ml_dtypes.bfloat16)
    assert _same(literals.load("value.txt"), expected)


@pytest.mark.parametrize("inputs", ["both.txt", "both.pb", "both.npz"])
@pytest.mark.parametrize("result", ["sum.txt", "sum.pb.gz", "sum.npz"])
def test_every_command_that_reads_values_reads_literals(inputs: str, result: str) -> None:
    given = ["add.hlo", "--inputs", inputs]
    for command, code in (
        (["run", *given, "--against", result], 0),
        (["run", *given, "--against", "wrong.txt"], 1),
        (["run", "add.hlo", "--input", "0=x.txt", "--input", "y=y.pb", "--against", result], 0),
        (["run", "add.hlo", "--global-inputs", inputs, "--against", result], 0),
        (["compare", result, "sum.txt", "--module", "add.hlo", "--inputs", inputs], 0),
        (["compare", "wrong.txt", result], 1),
        (["golden", "record", *given, "--expected", result, "-o", "goldens"], 0),
        (["golden", "check", "goldens"], 0),
        (["explain", *given, "--expected", result], 0),
        (["info", result], 0),
    ):
        assert main(command) == code, command


def test_a_stepper_sets_what_a_file_of_a_literal_holds() -> None:
    with hloexec.step(hloexec.parse(ADD), [X, Y]) as stepper:
        from hloexec.tools.stepping.conditions import value_of_text

        shape = stepper.target("r").shape
        assert _same(value_of_text("x.txt", shape, "r"), X)


def test_what_is_no_leaf_is_kept() -> None:
    Path("value.pb").write_bytes(_field(1, bytes([2 << 3, 13])) + _field(10, _field(1, bytes([2 << 3, 17]))))
    assert literals.load("value.pb") == (TOKEN,)


def test_modules_are_not_literals(cli: CommandLine) -> None:
    hlo = pytest.importorskip("jaxlib._hlo")
    Path("add.pb").write_bytes(hlo.hlo_module_from_text(ADD).as_serialized_hlo_module_proto())
    for module in ("add.hlo", "add.pb"):
        cli("run add.hlo --inputs both.npz --against", module)
        assert "holds no values" in cli.complaint("run add.hlo --inputs", module)
    assert main(["run", "x.txt"]) == main(["run", "y.pb"]) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("f32[2] {1, 2", "1:13: the last dimension of the literal has 2 elements"),
        ("f32[2,2] {{1, 2}, {3}}", "1:21: dimension 1 of the literal has 2 elements, found 1"),
        ("f32[2] {1, x}", "1:12: expected a value of type f32"),
        ("f32[100] {...}", "elements are left out"),
        ("s4[1] {9}", "9 is out of the range of s4"),
        ("f32[99999999999999,99999999] {1}", "value.txt:1:"),
        ("f32[2] {1, 2} and", "1:15: "),
        (proto(X)[:-1], "value.txt' holds no literal"),
        (proto(X).replace(b"\x0b", b"\x0c", 1), "value.txt' holds no literal"),
        (gzip.compress(b"f32[2] {1, 2}", mtime=0)[:-9], "cannot unpack"),
    ],
)
def test_damaged_literals_are_refused_with_the_place(content: str | bytes, message: str, cli: CommandLine) -> None:
    Path("value.txt").write_bytes(content if isinstance(content, bytes) else content.encode())
    for command in (
        "run add.hlo --inputs value.txt --save out.npz".split(),
        ["compare", "value.txt", "x.txt"],
    ):
        printed = cli.ended(*command, code=2)
        assert message in printed.err and printed.err.count("error:") == 1 and "Traceback" not in printed.err
    assert not Path("out.npz").exists()
