"""Twenty wrong uses of counterparts and of what goes through them: each says in a line what is wrong, and what to give."""

from pathlib import Path

import numpy as np
import pytest

from tests.command_line import CommandLine
from tests.text.building import op

CALLS = """
def run(text, inputs): return [inputs[0][0]] * 2
def fails(text, inputs): raise ValueError("the queue is full")
"""


@pytest.fixture(autouse=True)
def _folder(empty_folder: Path) -> None:
    Path("m.hlo").write_text(op("f32[2] negate(x)", x="f32[2]"))
    Path("two.hlo").write_text(
        op("f32[2] negate(x)", x="f32[2]").replace("HloModule m", "HloModule m, replica_count=2")
    )
    Path("calls.py").write_text(CALLS)
    Path("text.txt").write_text("no program")
    np.savez("x.npz", x=np.ones(2, np.float32))
    Path("full").mkdir()
    Path("full/file").write_text("mine")


WRONG = [
    ("run m.hlo --against gpu", "no numerics policy of that name", "xla[:PLATFORM[:COUNT]]"),
    ("run m.hlo --against xla:cpu:0", "'0' is no number of devices", "--against"),
    ("run m.hlo --against xla:12", "'12' is no platform", "--against"),
    ("run m.hlo --against python:nowhere/python", "'nowhere/python' is no program that can be run", "--against"),
    ("run m.hlo --against python:text.txt", "'text.txt' is no program that can be run", "--against"),
    ("run m.hlo --against call:calls", "'calls' is no MODULE:FUNCTION", "--against"),
    ("run m.hlo --against call:nothing:run", "call:nothing:run does not start", "No module named 'nothing'"),
    ("run m.hlo --against call:calls:absent", "call:calls:absent does not start", "absent"),
    ("run m.hlo --against call:calls:run", "gives 2 outputs of", "which has 1"),
    ("run m.hlo --against call:calls:fails", "call:calls:fails cannot run", "the queue is full"),
    ("run m.hlo --against hloexec:fast", "fast", "--against"),
    ("minify m.hlo --against x.npz", "--expected with a file of results", "--against"),
    ("bisect m.hlo", "give --versions or --passes", ""),
    ("bisect m.hlo --versions hloexec,bf16 --passes --against xla:cpu", "not both", ""),
    ("bisect m.hlo --versions hloexec", "--versions must be two counterparts or more", "not 1"),
    ("bisect m.hlo --versions hloexec,bf16,hloexec", "--versions has policy:reference twice", ""),
    (
        "bisect m.hlo --versions hloexec,m.hlo",
        "--versions is 'm.hlo'",
        "a version runs the module, and a file does not",
    ),
    ("bisect m.hlo --versions hloexec,bf16 --against xla:cpu", "--against is about --passes", ""),
    ("bisect m.hlo --passes", "--passes needs --against", "such as xla:cpu"),
    ("bisect m.hlo --passes --against call:calls:run", "has no passes to switch off", "python:PATH[:PLATFORM]"),
    ("bisect m.hlo --passes --against bf16", "has no passes to switch off", "xla[:PLATFORM[:COUNT]]"),
    ("bisect m.hlo --passes --against xla:cpu -o full", "full", "not empty"),
    ("bisect m.hlo --passes --against xla:cpu --all", "--all is about --versions", ""),
]


@pytest.mark.parametrize(("line", "problem", "advice"), WRONG, ids=[line for line, *_ in WRONG])
def test_each_is_refused_with_a_clear_error(cli: CommandLine, line: str, problem: str, advice: str) -> None:
    if "xla:" in line:
        pytest.importorskip("jax")
    said = cli.complaint(line)
    assert problem in said and advice in said, said
    error = next(entry for entry in said.splitlines() if entry.lower().startswith("error"))
    assert "Traceback" not in said and len(error) < 500


def test_a_device_too_few_is_said(cli: CommandLine) -> None:
    pytest.importorskip("jax")
    assert "it is for 2 devices" in cli.complaint("run two.hlo --against xla:cpu:1")
