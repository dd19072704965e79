"""SPECs: the word for a counterpart, wherever a command takes one."""

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import hloexec
from hloexec.errors import InputError, UnsupportedError
from hloexec.tools.counterparts.elsewhere import Elsewhere
from hloexec.tools.counterparts.own import OtherModule, Recorded
from hloexec.tools.counterparts.specs import counterpart_of
from tests.command_line import CommandLine
from tests.here import triaging_here
from tests.text.building import op

DOT = op("f32[8,8] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}", x="f32[8,64]", y="f32[64,8]")
FUNCTION = """
import numpy as np

def right(text, inputs):
    assert text.startswith("HloModule")
    (x, y), = inputs
    return x @ y

def wrong(text, inputs):
    return right(text, inputs) * np.float32(1 - 2**-6)
"""
PYTHON = sys.executable


@pytest.fixture
def folder(empty_folder: Path) -> Path:
    Path("dot.hlo").write_text(DOT)
    Path("mine.py").write_text(FUNCTION)
    return empty_folder


def test_each_form_is_read(folder: Path, cli: CommandLine) -> None:
    cli("golden record dot.hlo -o d.golden")
    cli("run dot.hlo --save result.npz --save-inputs inputs.npz")
    policies = {"bf16": "bf16", "hloexec": "reference", "hloexec:xla-cpu": "xla-cpu", "policy:tf32": "tf32"}
    assert {spec: counterpart_of(spec).name.partition(":")[2] for spec in policies} == policies
    files = {"dot.hlo": OtherModule, "result.npz": Recorded, "d.golden": Recorded}
    assert {name: type(counterpart_of(name)) for name in files} == files
    assert hloexec.counterpart(other := counterpart_of("exact")) is other
    fields = [
        (f"python:{PYTHON}", PYTHON, "cpu", None),
        (f"python:{PYTHON}:gpu", PYTHON, "gpu", None),
        ("call:mine:right", None, None, None),
    ]
    if find_spec("jax") is not None:
        fields += [("xla", None, None, None), ("xla-cpu", None, "cpu", None), ("xla:gpu:8", None, "gpu", 8)]
    for spec, path, platform, count in fields:
        read = counterpart_of(spec)
        assert isinstance(read, Elsewhere) and (read.python, read.platform, read.count) == (path, platform, count)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("hloexec:", "unknown numerics policy"),
        ("policy:no", "unknown numerics policy 'no'"),
        ("bf17", "there is no file 'bf17', and no numerics policy of that name"),
        ("no/such.npz", "there is no file 'no/such.npz'"),
        ("xla:", "'' is no platform"),
        ("xla:cpu:0", "'0' is no number of devices"),
        ("xla:cpu:many", "'many' is no number of devices"),
        ("python:", "'' is no program that can be run"),
        ("python:mine.py:cpu", "'mine.py' is no program that can be run"),
        ("call:mine", "'mine' is no MODULE:FUNCTION"),
        ("call:mine:right:", "'mine:right:' is no MODULE:FUNCTION"),
        (5, "the Python int 5 was given"),
    ],
)
def test_a_wrong_spec_is_named_with_the_forms(folder: Path, spec: object, message: str) -> None:
    if str(spec).startswith("xla"):
        pytest.importorskip("jax")
    with pytest.raises(InputError, match="python:PATH") as caught:
        counterpart_of(spec)
    assert message in str(caught.value) and str(caught.value).startswith("against")
    with pytest.raises(InputError) as caught:
        counterpart_of(spec, instead="leave it out")
    assert "FILE" not in str(caught.value) or spec == 5


def test_xla_without_jax_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hloexec.tools.counterparts.specs.find_spec", lambda _: None)
    with pytest.raises(UnsupportedError, match="against xla:cpu needs jax, which is not installed"):
        counterpart_of("xla:cpu")


def test_every_command_takes_it(folder: Path, cli: CommandLine) -> None:
    cli("run dot.hlo --save result.npz --save-inputs inputs.npz")
    assert cli.record("run", "dot.hlo", "--against", "call:mine:right")["comparison"]["verdict"] != "different"
    assert cli.record("run", "dot.hlo", "--against", "call:mine:wrong", code=1)["comparison"]["verdict"] == "different"
    more = ("--module", "dot.hlo", "--inputs", "inputs.npz")
    for spec, code in (("call:mine:right", 0), ("exact", 0), ("bf16", 1)):
        cli.record("compare", "result.npz", spec, *more, code=code)
    assert "bf16 runs a module; give --module and --inputs" in cli.complaint("compare result.npz bf16")
    cli("golden record dot.hlo -o d.golden --from call:mine:right")
    assert hloexec.golden.read_golden("d.golden").expected_source == "call:mine:right"
    assert cli.record("explain", "dot.hlo", "--expected", "hloexec:bf16", "--policy", "bf16")["verdict"] == "explained"


@pytest.mark.slow
def test_what_makes_other_modules_takes_it(folder: Path, cli: CommandLine) -> None:
    record = cli.record("minify", "dot.hlo", "--against", "call:mine:wrong", "-o", "small")
    assert record["instruction_count"] <= 3
    assert "--against call:mine:wrong" in Path("small", "README.md").read_text()
    Path("all").mkdir()
    shutil.copy("dot.hlo", "all")
    with triaging_here():
        triage = hloexec.triage("all", against="call:mine:wrong", minify=False)
    assert [module.outcome for module in triage.modules] == ["differ"]
    assert triage.modules[0].blamed is not None and triage.modules[0].blamed.opcode == "dot"


def test_an_answer_says_what_it_is(folder: Path) -> None:
    module = hloexec.load("dot.hlo")
    inputs = hloexec.random_inputs(module)
    answer = hloexec.counterpart("bf16").run(module, inputs)
    assert answer.outcome is hloexec.Outcome.ANSWERED and str(answer) == "answered" and not answer.reason
    assert np.array_equal(answer.value(), hloexec.run(module, *inputs, numerics="bf16"))
    Path("other.hlo").write_text(op("f32[2] negate(x)", x="f32[2]"))
    refused = hloexec.counterpart("other.hlo").run(module, inputs)
    assert refused.outcome is hloexec.Outcome.REFUSED and "does not take the same inputs" in refused.reason
    with pytest.raises(InputError, match="the same inputs"):
        refused.value()
