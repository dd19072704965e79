"""Intermediate values as further outputs: those that the module computes, wherever they are, and nothing else changes."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from hloexec.core.values import arrays_of
from tests.command_line import CommandLine
from tests.text.building import op

ROOT = Path(__file__).parents[2]
NESTED = """HloModule nested

add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT s = f32[] add(a, b) }
squares { p = f32[3] parameter(0)
  q = bf16[3] convert(p)
  c = f32[3] convert(q)
  ROOT m = f32[3] multiply(c, c) }
twice { p = f32[3] parameter(0)
  inner = f32[3] fusion(p), kind=kLoop, calls=squares
  ROOT d = f32[3] add(inner, p) }
less { s = (s32[], f32[3]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(4)
  ROOT r = pred[] compare(i, n), direction=LT }
step { s = (s32[], f32[3]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[3] get-tuple-element(s), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  y = f32[3] call(x), to_apply=twice
  half = f32[] constant(0.25)
  halves = f32[3] broadcast(half), dimensions={}
  z = f32[3] multiply(y, halves)
  ROOT t = (s32[], f32[3]) tuple(j, z) }
one { p = f32[3] parameter(0)  ROOT neg = f32[3] negate(p) }
other { p = f32[3] parameter(0)  ROOT a = f32[3] abs(p) }

ENTRY e {
  x = f32[3] parameter(0)
  q = pred[] parameter(1)
  zero = s32[] constant(0)
  first = f32[3] call(x), to_apply=twice
  init = (s32[], f32[3]) tuple(zero, first)
  loop = (s32[], f32[3]) while(init), condition=less, body=step
  out = f32[3] get-tuple-element(loop), index=1
  chosen = f32[3] conditional(q, out, out), true_computation=one, false_computation=other
  f0 = f32[] constant(0)
  sum = f32[] reduce(chosen, f0), dimensions={0}, to_apply=add
  ROOT r = (f32[], f32[3]) tuple(sum, out)
}
"""
INPUTS = [np.array([0.5, -1.25, 3], np.float32), np.array(True)]


def seen(module: hloexec.Module, inputs: list[np.ndarray]) -> dict[str, np.ndarray]:
    """What each instruction gives in a run, by the calls that lead to it; iterations of loops stacked."""
    values: dict[str, list[np.ndarray]] = {}

    class Watch:
        def on_instruction(self, event: hloexec.Event) -> None:
            if isinstance(event.value, np.ndarray):
                calls = [call.partition(":")[0].partition("[")[0] for call in event.name.split("/")]
                values.setdefault("/".join(calls), []).append(event.value.copy())

    hloexec.run(module, *inputs, observers=[Watch()])
    return {key: np.stack(arrays) if len(arrays) > 1 else arrays[0] for key, arrays in values.items()}


def require_same(module: hloexec.Module, names: str | list[str], inputs: list[np.ndarray]) -> hloexec.ValueOutputs:
    """Values are those of the module as it was, its own results too, also once the text is read again."""
    result = hloexec.add_outputs(module, names)
    again = hloexec.parse(hloexec.format(result.module))
    hloexec.verify(again)
    arrays = arrays_of(hloexec.run(again, *inputs))
    own, known = arrays_of(hloexec.run(module, *inputs)), seen(module, inputs)
    for ours, theirs in zip(arrays, own, strict=False):
        assert ours.tobytes() == theirs.tobytes()
    for output, array in zip(result.outputs, arrays[len(own) :], strict=True):
        assert array.tobytes() == known[output.key].tobytes(), output.key
        assert array.nbytes == output.byte_size
    return result


def test_values_in_loops_calls_and_fusions_are_those_of_the_run() -> None:
    module = hloexec.parse(NESTED)
    keys = {output.key for output in require_same(module, "all", INPUTS).outputs}
    assert {"first", "first/d", "first/inner", "loop/y/d", "loop/z", "chosen", "sum"} <= keys
    assert not any("squares" in key or key.endswith("/m") for key in keys)
    named = require_same(module, ["m", "%out", "y"], INPUTS)
    assert [output.key for output in named.outputs] == ["first/inner/m", "loop/y/inner/m", "loop/y", "out"]
    assert next(output.shape for output in named.outputs if output.key == "loop/y") == "f32[4,3]"
    fusions = require_same(module, "fusions", INPUTS)
    assert [output.key for output in fusions.outputs] == ["first/inner", "loop/y/inner"]


@pytest.mark.parametrize(
    "name", ["attention.optimized", "data_parallel_step", "mlp_train_step", "rnn_scan", "markov_chain"]
)
def test_examples_give_what_they_compute(name: str) -> None:
    module = hloexec.load(ROOT / "examples" / f"{name}.hlo")
    result = hloexec.add_outputs(module, "all")
    inputs = [hloexec.random_inputs(module, 1)]
    pairs = zip(hloexec.run_devices(module, inputs), hloexec.run_devices(result.module, inputs), strict=True)
    for before, after in pairs:
        for ours, theirs in zip(arrays_of(before), arrays_of(after), strict=False):
            assert ours.tobytes() == theirs.tobytes()


def test_what_is_no_output_says_why() -> None:
    module = hloexec.parse(NESTED)
    result = hloexec.add_outputs(module, ["out", "neg"])
    assert [(entry.key, entry.reason) for entry in result.refused] == [
        ("chosen/neg", "it is in a branch, which need not run")
    ]
    small = hloexec.add_outputs(module, ["first", "z"], max_bytes=20)
    assert [output.key for output in small.outputs] == ["first"]
    assert small.refused[0].reason == "it takes 48 B, more than what is left of 20 B"
    unknown = hloexec.parse(NESTED.replace("zero = s32[] constant(0)", "zero = s32[] convert(q)"))
    (refused,) = hloexec.add_outputs(unknown, ["out", "z"]).refused
    assert (refused.key, refused.reason) == ("loop/z", "the text does not say how often the loop runs")


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["nothing"], {}, "no instruction 'nothing'"),
        (["s"], {}, "computations have an instruction 's'"),
        (["q"], {}, "computations have an instruction 'q'"),
        ("all", {"max_bytes": -1}, "max_bytes"),
        ("all", {"max_bytes": 0}, "max_bytes|no value of nested"),
        (3, {}, "names"),
        (["b"], {}, "it is applied to elements"),
        (["less/n"], {}, "it is in the condition of a loop"),
    ],
)
def test_wrong_names_and_limits_are_errors(names: object, options: dict[str, int], message: str) -> None:
    with pytest.raises(hloexec.InputError, match=message):
        hloexec.add_outputs(hloexec.parse(NESTED), names, **options)  # type: ignore[arg-type]


def test_modules_without_fusions_and_undivided_ones_are_refused() -> None:
    plain = hloexec.parse(op("f32[2] negate(x)", x="f32[2]"))
    with pytest.raises(hloexec.InputError, match="has no fusions"):
        hloexec.add_outputs(plain)
    sharded = "HloModule m, num_partitions=2\nENTRY e { x = f32[2] parameter(0), sharding={replicated}\n ROOT y = f32[2] negate(x) }"
    with pytest.raises(hloexec.UnsupportedError, match="has yet to be divided"):
        hloexec.add_outputs(hloexec.parse(sharded), "all")


def test_the_script_fetches_them_and_other_commands_read_them(cli: CommandLine, empty_folder: Path) -> None:
    pytest.importorskip("jax")
    Path("m.hlo").write_text(NESTED)
    np.savez("m.npz", x=INPUTS[0], q=INPUTS[1])
    text = cli("extract m.hlo --inputs m.npz --outputs all -o v")
    assert "as further outputs" in text and "its own results have the same bits" in text
    record = cli.record("extract m.hlo --inputs m.npz --outputs m,out -o w")
    assert [output["key"] for output in record["outputs"]] == ["first/inner/m", "loop/y/inner/m", "out"]
    done = subprocess.run([sys.executable, "v/run.py", "cpu"], capture_output=True, text=True, check=True)
    assert "2 of 2 results of the module have the bits" in done.stdout
    with np.load("v/values.npz") as values, np.load("v/expected.npz") as expected, np.load("v/result.npz") as result:
        assert sorted(values) == sorted(expected) and sorted(result) == ["0", "1"]
        for key in values:
            assert_array_equal(values[key], expected[key])
    cli("explain m.hlo --inputs m.npz --expected v/result.npz --values v/values.npz")
    with np.load("v/values.npz") as values:
        wrong = dict(values)
    wrong["loop/z"][2] += 1
    np.savez("wrong.npz", **wrong)
    text = cli("explain m.hlo --inputs m.npz --expected v/result.npz --values wrong.npz", code=1)
    assert "z" in text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("extract m.hlo -o o", "Missing option '--instruction' or '--outputs'."),
        ("extract m.hlo -o o --instruction z --outputs all", "leave out one of them"),
        ("extract m.hlo -o o --instruction z --max-bytes 1MB", "--max-bytes is about --outputs"),
        ("extract m.hlo -o o --outputs all --depth 1", "are about --instruction"),
        ("extract m.hlo -o o --outputs all --max-bytes much", "--max-bytes'"),
        ("extract m.hlo -o o --outputs out,,z", "no instruction ''"),
    ],
)
def test_wrong_command_lines(cli: CommandLine, empty_folder: Path, line: str, message: str) -> None:
    Path("m.hlo").write_text(NESTED)
    assert message in cli.complaint(line)
