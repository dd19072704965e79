"""`hloexec run --against`: a result beside that of XLA:CPU, a policy, a module, a golden or a file."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from hloexec.cli import main
from hloexec.errors import UnsupportedError
from hloexec.language import literals
from tests.command_line import CommandLine
from tests.here import on_xla
from tests.records import read_record
from tests.text.building import op

DOT = op("f32[8,8] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}", x="f32[8,64]", y="f32[64,8]")
TUPLE = """HloModule m
ENTRY e {
  p = (bf16[3], (s4[5], pred[])) parameter(0)
  z = f64[2,2] parameter(1)
  a = bf16[3] get-tuple-element(p), index=0
  q = (s4[5], pred[]) get-tuple-element(p), index=1
  b = s4[5] get-tuple-element(q), index=0
  t = token[] after-all()
  c = pred[] get-tuple-element(q), index=1
  d = bf16[3] add(a, a)
  n = s4[5] negate(b)
  m = f64[2,2] multiply(z, z)
  i = (f64[2,2], token[]) tuple(m, t)
  ROOT r = (bf16[3], (f64[2,2], token[]), s4[5], pred[]) tuple(d, i, n, c)
}
"""
REPLICAS = DOT.replace("HloModule main", "HloModule main, replica_count=2")


@pytest.fixture
def folder(empty_folder: Path) -> Path:
    Path("dot.hlo").write_text(DOT)
    return empty_folder


def against(cli: CommandLine, *words: str, code: int = 0) -> Any:
    return cli.record("run", *words, code=code)["comparison"]


@pytest.mark.slow
def test_xla_cpu_takes_and_gives_every_kind_of_value() -> None:
    pytest.importorskip("jax")
    module = hloexec.parse(TUPLE)
    inputs = hloexec.random_inputs(module)
    found = on_xla(module, inputs)
    d, (m, t), n, c = hloexec.run(module, inputs)
    assert [getattr(leaf, "dtype", None) for leaf in found] == [d.dtype, m.dtype, None, n.dtype, c.dtype]
    for ours, theirs in zip((d, m, n, c), (found[0], found[1], found[3], found[4]), strict=True):
        assert_array_equal(np.asarray(ours, np.float64), np.asarray(theirs, np.float64))
    assert repr(t) == repr(found[2]) == "token"


@pytest.mark.slow
def test_xla_cpu_runs_what_calls_lapack() -> None:
    pytest.importorskip("jax")
    pytest.importorskip("scipy", reason="scipy is not installed: jaxlib needs it to call LAPACK")
    call = 'custom-call(x), custom_call_target="lapack_dpotrf_ffi", operand_layout_constraints={f64[2,2]{0,1}}'
    options = "api_version=API_VERSION_TYPED_FFI, backend_config={uplo = 76 : ui8}"
    text = op(f"(f64[2,2]{{0,1}}, s32[]) {call}, {options}", x="f64[2,2]")
    factor, info = on_xla(hloexec.parse(text), [np.array([[4.0, 2.0], [2.0, 5.0]])])
    assert_array_equal(np.tril(np.asarray(factor)), [[2.0, 0.0], [1.0, 2.0]])
    assert info == 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (op("f32[2] unheard-of(x)", x="f32[2]"), "XLA:CPU cannot run"),
        (op('f32[2] custom-call(x), custom_call_target="nobody"', x="f32[2]"), "XLA:CPU cannot run"),
        ("HloModule m\nENTRY e { ROOT x = f32[<=2] parameter(0) }", "known only at run time"),
        ("HloModule m\nENTRY e { ROOT x = token[] parameter(0) }", "it takes tokens"),
    ],
)
def test_what_xla_cpu_does_not_run_is_said(text: str, message: str) -> None:
    pytest.importorskip("jax")
    module = hloexec.parse(text)
    inputs = [np.zeros(2, np.float32)] * len(module.entry.parameters)
    with pytest.raises(UnsupportedError, match=message):
        on_xla(module, inputs)


@pytest.mark.usefixtures("folder")
def test_a_result_is_compared_with_xla_cpus(cli: CommandLine, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("jax")
    record = against(cli, "dot.hlo", "--against", "xla-cpu")
    assert record["verdict"] in ("equal", "rounding only")
    assert main("run dot.hlo --against xla-cpu".split()) == 0
    assert "compared with xla-cpu\n" in capsys.readouterr().out


@pytest.mark.usefixtures("folder")
def test_policies_explain_or_do_not(cli: CommandLine) -> None:
    assert against(cli, "dot.hlo", "--against", "exact")["verdict"] in ("equal", "rounding only")
    assert against(cli, "dot.hlo", "--against", "policy:xla-cpu")["verdict"] in ("equal", "rounding only")
    assert against(cli, "dot.hlo", "--against", "bf16", code=1)["verdict"] == "different"
    assert against(cli, "dot.hlo", "--against", "bf16", "--numerics", "bf16")["verdict"] == "equal"


@pytest.mark.usefixtures("folder")
def test_another_module_runs_on_the_same_inputs(cli: CommandLine) -> None:
    Path("same.hlo").write_text(DOT)
    other = DOT.replace("ROOT root =", "q =").replace("\n}", "\n  ROOT n = f32[8,8] negate(q)\n}")
    Path("other.hlo").write_text(other)
    assert against(cli, "dot.hlo", "--against", "same.hlo", "--seed", "7")["verdict"] == "equal"
    assert against(cli, "dot.hlo", "--against", "other.hlo", code=1)["verdict"] == "different"


@pytest.mark.usefixtures("folder")
def test_files_and_goldens_hold_what_is_expected(cli: CommandLine) -> None:
    cli("run dot.hlo --save result.npz")
    cli("golden record dot.hlo -o d.golden --seed 3")
    assert against(cli, "dot.hlo", "--against", "result.npz")["verdict"] == "equal"
    assert against(cli, "dot.hlo", "--against", "result.npz", "--seed", "1", code=1)["verdict"] == "different"
    assert against(cli, "dot.hlo", "--against", "d.golden")["verdict"] == "equal"


@pytest.mark.usefixtures("folder")
def test_every_device_is_compared_and_so_is_one_computation(cli: CommandLine) -> None:
    Path("two.hlo").write_text(REPLICAS)
    record = against(cli, "two.hlo", "--against", "exact", "--different-inputs", "--replicas", "2")
    assert record["verdict"] in ("equal", "rounding only") and len(record["leaves"]) == 2
    name = hloexec.load("dot.hlo").entry_name
    assert against(cli, "dot.hlo", "--against", "exact", "--computation", name)["verdict"] != "different"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("what", ["two.hlo", "interrupt"])
def test_a_result_that_cannot_be_compared_is_not_lost(
    what: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("two.hlo").write_text(op("f32[2] negate(x)", x="f32[2]"))
    if what == "interrupt":

        def interrupted(*_: object, **__: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(hloexec, "compare", interrupted)
    other = "exact" if what == "interrupt" else what
    assert main(["run", "dot.hlo", "--save", "kept.npz", "--against", other]) == (130 if what == "interrupt" else 2)
    assert "\nvalue  f32[8,8]" in capsys.readouterr().out
    module = hloexec.load("dot.hlo")
    assert_array_equal(literals.load("kept.npz"), hloexec.run(module, hloexec.random_inputs(module)))
    Path("kept.npz").unlink()
    assert main(["run", "dot.hlo", "--save", "kept.npz", "--against", other, "--json"]) != 0
    assert "error" in read_record(capsys.readouterr().out) and Path("kept.npz").exists()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("other", ["bad.hlo", "bad.npz", "bad.golden"])
def test_a_file_is_read_before_anything_runs(other: str, cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("golden record dot.hlo -o bad.golden")
    for path in ("bad.hlo", "bad.npz", "bad.golden/expected.npz"):
        Path(path).write_text("nothing")
    monkeypatch.setattr("hloexec.cli.running.execute", lambda *_: pytest.fail("it has run"))
    assert "bad." in cli.complaint("run dot.hlo --against", other)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--against nonsense", "there is no file 'nonsense', and no numerics policy of that name"),
        ("--against policy:nonsense", "unknown numerics policy 'nonsense'"),
        ("--against absent.golden", "there is no file 'absent.golden'"),
        ("--against empty.golden", "golden.json"),
        ("--against bad.hlo", "bad.hlo:1:8"),
        ("--against short.hlo", "takes 1 inputs"),
        ("--against part.hlo", "part.hlo' does not take the same inputs: parameter 0 (x) must be f32[4,64]"),
        ("--against part.hlo --partitions 2", "for each device, hloexec diff part.hlo dot.hlo compares"),
        ("--against part.hlo", "for each device, hloexec diff dot.hlo part.hlo compares them\n"),
        ("--against bad.npz", "neither a .npz nor a .npy file"),
        ("--against exact --infeed x.npz", "--against compares results only"),
    ],
)
def test_wrong_uses_are_named_and_no_verdict(words: str, message: str, cli: CommandLine) -> None:
    Path("bad.hlo").write_text("nothing")
    Path("bad.npz").write_text("nothing")
    Path("empty.golden").mkdir()
    Path("part.hlo").write_text(DOT.replace("[8,", "[4,"))
    Path("short.hlo").write_text(op("f32[2] negate(x)", x="f32[2]"))
    assert message in cli.complaint(f"run dot.hlo {words}")


def test_a_computation_is_not_held_to_what_the_header_says_of_the_entry(cli: CommandLine, folder: Path) -> None:
    text = """HloModule m, input_output_alias={ {}: (1, {}, may-alias) }
inner { a = f32[4] parameter(0)
  ROOT b = f32[4] negate(a) }
ENTRY e { x = f32[4] parameter(0)
  y = f32[4] parameter(1)
  c = f32[4] call(x), to_apply=inner
  ROOT r = f32[4] add(c, y) }
"""
    Path("alias.hlo").write_text(text)
    assert against(cli, "alias.hlo", "--computation", "inner", "--against", "exact")["verdict"] == "equal"
