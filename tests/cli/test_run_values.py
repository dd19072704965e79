"""`hloexec run` on what a file or a host gives: snapshots' own inputs and results, values through channels."""

import struct
from pathlib import Path

import numpy as np
import pytest

from hloexec.cli import main
from tests.command_line import CommandLine
from tests.text.building import module, op

ADD = op("f32[3] add(x, y)", x="f32[3]", y="f32[3]")
X, Y = [1.0, 2.0, 3.0], [10.0, 20.0, 30.0]
CHANNELS = """HloModule m

ENTRY e {
  x = f32[2] parameter(0)
  t = token[] after-all()
  s = (f32[2], u32[], token[]) send(x, t), channel_id=1, is_host_transfer=true
  sd = token[] send-done(s), channel_id=1, is_host_transfer=true
  r = (f32[2], u32[], token[]) recv(sd), channel_id=2, is_host_transfer=true
  rd = (f32[2], token[]) recv-done(r), channel_id=2, is_host_transfer=true
  ROOT v = f32[2] get-tuple-element(rd), index=0
}
"""


def _field(number: int, content: bytes) -> bytes:
    """A length-delimited field; lengths here are up to 2^14."""
    length = bytes([len(content)]) if len(content) < 128 else bytes([len(content) & 127 | 128, len(content) >> 7])
    return bytes([number << 3 | 2]) + length + content


def _literal(values: list[float]) -> bytes:
    """A LiteralProto of f32[n]: its shape (element type 11, dimensions, layout) and its elements."""
    shape = bytes([2 << 3, 11]) + _field(3, bytes([len(values)])) + _field(5, _field(1, b"\0"))
    return _field(1, shape) + _field(8, struct.pack(f"<{len(values)}f", *values))


def _snapshot(tmp_path: Path, *inputs: list[float], result: list[float] | None = None, text: str = ADD) -> str:
    hlo = pytest.importorskip("jaxlib._hlo")
    proto = hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    data = _field(1, _field(1, proto)) + b"".join(_field(2, _literal(values)) for values in inputs)
    if result is not None:
        data += _field(3, _literal(result))
    path = tmp_path / "snapshot.pb"
    path.write_bytes(data)
    return str(path)


def test_a_snapshot_runs_on_its_own_inputs(tmp_path: Path, cli: CommandLine) -> None:
    record = cli.record("run", _snapshot(tmp_path, X, Y))
    assert [leaf["mean"] for leaf in record["inputs"]] == [2, 20] and record["result"][0]["mean"] == 22
    assert record["comparison"] is None
    assert "--distribution edges is for random inputs, but a snapshot runs on its own" in cli.complaint(
        "run", _snapshot(tmp_path, X, Y), "--distribution", "edges"
    )
    cli("run", _snapshot(tmp_path, X, Y), "--distribution", "ones", "--random-inputs")


def test_a_snapshots_result_is_compared(tmp_path: Path, cli: CommandLine) -> None:
    same = _snapshot(tmp_path, X, Y, result=[11, 22, 33])
    assert cli.record("run", same)["comparison"]["verdict"] == "equal"
    assert "compared with the snapshot's result: equal" in cli("run", same)
    other = _snapshot(tmp_path, X, Y, result=[11, 22.5, 33])
    (leaf,) = cli.record("run", other, code=1)["comparison"]["leaves"]
    measured = leaf["measured"]
    assert (measured["mismatches"], leaf["count"], measured["max_absolute_error"]) == (1, 3, 0.5)
    assert "value: 1 of 3 elements beyond tolerance, the worst at [1]: 22.0, expected 22.5" in cli("run", other, code=1)


def test_a_result_of_another_shape_is_said_to_be_one(tmp_path: Path, cli: CommandLine) -> None:
    assert "the dimensions differ (actual f32[3], expected f32[2])" in cli(
        "run", _snapshot(tmp_path, X, Y, result=[11, 22]), code=1
    )


def test_other_inputs_win_over_a_snapshots(tmp_path: Path, cli: CommandLine) -> None:
    path = _snapshot(tmp_path, X, Y, result=[11, 22, 33])
    np.save(tmp_path / "y.npy", np.full(3, 5, np.float32))
    record = cli.record("run", path, "--input", f"y={tmp_path / 'y.npy'}")
    assert [leaf["mean"] for leaf in record["inputs"]] == [2, 5] and record["comparison"] is None
    made_up = cli.record("run", path, "--random-inputs")
    (tmp_path / "module.hlo").write_text(ADD)
    plain = cli.record("run", str(tmp_path / "module.hlo"))
    assert [leaf["hash"] for leaf in made_up["inputs"]] == [leaf["hash"] for leaf in plain["inputs"]]
    assert made_up["comparison"] is None


def test_values_go_through_channels(tmp_path: Path, cli: CommandLine) -> None:
    path, given, taken = (str(tmp_path / name) for name in ("module.hlo", "given.npz", "taken.npz"))
    Path(path).write_text(CHANNELS)
    np.savez(given, **{"0": np.array([5, 7], np.float32)})
    record = cli.record("run", path, "--recv", f"2={given}", "--send", f"1={taken}")
    assert record["result"][0]["mean"] == 6
    with np.load(taken) as sent:
        assert list(sent) == ["0"] and sent["0"].shape == (2,)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("short.pb", 2, "the snapshot has 1 inputs, but main has 2 parameters; --random-inputs generates others"),
        ("wrong.pb", 2, "must be f32[3]"),
        ("cut.pb", 2, "cut.pb is neither text nor a whole"),
        ("channels.hlo", 2, "takes values of shape f32[2] from channel 2"),
        ("channels.hlo --recv 2=no.npz", 2, "cannot read 'no.npz'"),
        ("channels.hlo --recv two=given.npz", 2, "'two' is not a channel number"),
        ("channels.hlo --recv given.npz", 2, "is not of the form CHANNEL=FILE.npz"),
        ("channels.hlo --recv 7=given.npz", 2, "channel"),
        ("channels.hlo --recv 2=given.npz --recv 2=given.npz", 2, "channel 2 is given twice"),
        ("channels.hlo --recv 2=given.npz --send 2=out.npz", 2, "channel 2 is given twice"),
        ("channels.hlo --recv 2=given.npz --send 1=out.npy", 2, "must be a .npz file"),
        ("channels.hlo --recv 2=given.npz --send 1=nowhere/out.npz", 2, "there is no folder"),
        ("channels.hlo --recv 2=one.npy", 2, "must hold the values for recvs through channel 2"),
        ("channels.hlo --recv 2=given.npz --send 1=o.npz --outfeed o.npz", 2, "written twice"),
        ("channels.hlo --recv 2=given.npz --save o.npz --save-inputs ./o.npz", 2, "written twice"),
    ],
)
def test_wrong_values_are_refused(
    arguments: str,
    code: int,
    message: str,
    empty_folder: Path,
    cli: CommandLine,
) -> None:
    Path("short.pb").write_bytes(Path(_snapshot(empty_folder, X)).read_bytes())
    Path("wrong.pb").write_bytes(Path(_snapshot(empty_folder, X, [1.0, 2.0])).read_bytes())
    Path("cut.pb").write_bytes(Path("short.pb").read_bytes()[:-3])
    Path("channels.hlo").write_text(CHANNELS)
    np.savez("given.npz", **{"0": np.array([5, 7], np.float32)})
    np.save("one.npy", np.array([5, 7], np.float32))
    assert message in cli.complaint(f"run {arguments}", code=code)


def test_rounding_explains_a_snapshots_result_as_it_does_that_of_a_golden(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """x + y − x is far from y in units of y, where x is large: only a run on the inputs shows how far."""
    text = module(
        "x = f32[3] parameter(0)\ny = f32[3] parameter(1)\ns = f32[3] add(x, y)\nROOT d = f32[3] subtract(s, x)"
    )
    inputs = [1e6, 2e6, 3e6], [0.1, 0.2, 0.3]
    for result, code in (([0.125, 0.25, 0.25], 0), ([0.1, 0.2, 0.3], 0), ([0.1, 0.2, 9.0], 1)):
        assert main(["run", _snapshot(tmp_path, *inputs, result=result, text=text)]) == code
    assert "1 of 3 elements beyond tolerance, the worst at [2]" in capsys.readouterr().out


def test_a_run_of_a_snapshot_that_fails_has_no_verdict(empty_folder: Path) -> None:
    """Exit code 1 would say that the results differ."""
    (empty_folder / "calls.py").write_text("def fail(x, y):\n    raise ValueError('no')\n")
    text = op('f32[3] custom-call(x, y), custom_call_target="failing"', x="f32[3]", y="f32[3]")
    path = _snapshot(empty_folder, X, Y, result=[11, 22, 33], text=text)
    assert main(["run", path, "--custom-call", "failing=calls:fail"]) == 2
    assert main(["run", path, "--random-inputs", "--custom-call", "failing=calls:fail"]) == 1
