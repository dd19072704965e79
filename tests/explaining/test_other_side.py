"""Values of instructions that ran in loops and on several devices, and those of folders of literals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.tools.explaining import Explained
from hloexec.tools.explaining.running import read_literals
from tests.command_line import CommandLine

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
LOOP = """HloModule loop

body {
  state = (s32[], f32[6,8], f32[8,8]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  v = f32[6,8] get-tuple-element(state), index=1
  w = f32[8,8] get-tuple-element(state), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  d = f32[6,8] dot(v, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  t = f32[6,8] tanh(d)
  ROOT new = (s32[], f32[6,8], f32[8,8]) tuple(next, t, w)
}

condition {
  state = (s32[], f32[6,8], f32[8,8]) parameter(0)
  i = s32[] get-tuple-element(state), index=0
  n = s32[] constant(5)
  ROOT less = pred[] compare(i, n), direction=LT
}

ENTRY e {
  v = f32[6,8] parameter(0)
  w = f32[8,8] parameter(1)
  zero = s32[] constant(0)
  first = (s32[], f32[6,8], f32[8,8]) tuple(zero, v, w)
  last = (s32[], f32[6,8], f32[8,8]) while(first), condition=condition, body=body
  ROOT result = f32[6,8] get-tuple-element(last), index=1
}
"""


@pytest.mark.slow
def test_instructions_in_loops_are_explained_in_their_iterations(tmp_path: Path) -> None:
    module = hloexec.parse(LOOP)
    wrong = hloexec.parse(LOOP.replace("tanh(d)", "logistic(d)"))
    inputs = hloexec.random_inputs(module, seed=1)
    numerics = "reference,body/d=bf16"
    trace = hloexec.trace(wrong, inputs, tmp_path / "trace", numerics=numerics)
    found = hloexec.explain(module, inputs, hloexec.run(wrong, *inputs, numerics=numerics), values=trace, runs=60)
    assert [(each.name, each.verdict, each.runs) for each in found.instructions] == [
        ("d", Explained.POLICY, 5),
        ("t", Explained.NONE, 5),
    ]
    assert found.instructions[0].best.name == "bf16"


@pytest.mark.slow
def test_instructions_of_several_devices_are_explained_on_all_of_them(tmp_path: Path) -> None:
    """The other side adds up the gradients of two devices each, instead of all four."""
    module = hloexec.load(EXAMPLES / "data_parallel_step.hlo")
    text = hloexec.format(module)
    wrong = hloexec.parse(text.replace("=1, replica_groups={{0,1,2,3}}", "=1, replica_groups={{0,1},{2,3}}"))
    rows = [hloexec.random_inputs(module, seed=seed) for seed in range(4)]
    numerics = "reference,prediction=tf32"
    trace = hloexec.trace(wrong, rows, tmp_path / "trace", numerics=numerics)
    expected = tuple(hloexec.run_devices(wrong, rows, numerics=numerics))
    found = hloexec.explain(module, rows, expected, values=trace, runs=60)
    assert [(each.name, each.verdict, each.runs) for each in found.instructions] == [
        ("prediction", Explained.POLICY, 4),
        ("gradient_sum", Explained.NONE, 4),
    ]


def test_values_by_names_are_those_of_one_device() -> None:
    module = hloexec.load(EXAMPLES / "data_parallel_step.hlo")
    rows = [hloexec.random_inputs(module, seed=seed) for seed in range(4)]
    expected = tuple(hloexec.run_devices(module, rows, numerics="tf32"))
    with pytest.raises(hloexec.InputError, match="give a trace"):
        hloexec.explain(module, rows, expected, values={"rate": np.float32(0.001)})


def _literal(array: Any) -> bytes:
    """A LiteralProto of a small f32 array: shape (element type 11, dimensions, layout), and the elements in field 8."""

    def field(number: int, payload: bytes) -> bytes:
        assert len(payload) < 1 << 14
        size = len(payload)
        return bytes([number << 3 | 2, *([size] if size < 128 else [size & 127 | 128, size >> 7])]) + payload

    dimensions = field(3, bytes(array.shape))
    layout = field(5, field(1, bytes(reversed(range(array.ndim)))))
    return field(1, bytes([2 << 3, 11]) + dimensions + layout) + field(8, array.astype("<f4").tobytes())


TWO = """HloModule two

ENTRY main {
  x = f32[16,8] parameter(0)
  w = f32[8,4] parameter(1)
  d = f32[16,4] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT s = f32[16,4] multiply(d, d)
}
"""


def test_a_folder_of_literals_is_read(empty_folder: Path, cli: CommandLine) -> None:
    module = hloexec.parse(TWO)
    x, w = (np.asarray(each) for each in hloexec.random_inputs(module, seed=0))
    product = (x.astype(np.float64) @ w.astype(np.float64)).astype(np.float32)
    square = (product * product * np.float32(1.01)).astype(np.float32)
    Path("two.hlo").write_text(TWO)
    Path("values").mkdir()
    Path("values/d.pb").write_bytes(_literal(product))
    np.save("values/s.npy", square)
    np.save("other.npy", square)
    said = " ".join(cli("explain two.hlo --expected other.npy --values values", code=1).split())
    assert "%s is the first that no policy explains" in said
    assert "of 2 instructions" in said


def test_folders_that_hold_no_literals_are_refused(tmp_path: Path) -> None:
    with pytest.raises(hloexec.InputError, match="is not a trace, and has no files"):
        read_literals(tmp_path)
    (tmp_path / "d.pb").write_bytes(b"\xff\xff\xff")
    with pytest.raises(hloexec.InputError, match=r"d\.pb' is not a LiteralProto"):
        read_literals(tmp_path)
    np.save(tmp_path / "d.npy", np.zeros(3))
    with pytest.raises(hloexec.InputError, match="two files for %d"):
        read_literals(tmp_path)
    (tmp_path / "d.npy").unlink()
    with pytest.raises(hloexec.InputError, match="cannot read"):
        read_literals(tmp_path / "nowhere")
