"""Counterparts in processes of their own: what goes wrong there is one sentence, and the next module runs."""

import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from hloexec.tools.counterparts import workers

FAULTY = """
import os, signal, sys, time
import numpy as np

def run(text, inputs):
    name = text.split()[1].rstrip(",")
    (x,) = inputs[0]
    if name == "aborts":
        print("Check failed: x == y", file=sys.stderr, flush=True)
        os.abort()
    if name == "exits":
        os._exit(7)
    if name == "hangs":
        time.sleep(60)
    if name == "refuses":
        raise ValueError("there is no such unit")
    if name == "takes_all":
        np.ones(1 << 30)
    if name == "prints":
        print("rubbish" * 1000, flush=True)
        os.write(1, bytes(1000))
    return {
        "shape": lambda: (-x, x[:1]),
        "type": lambda: (-x, x.astype(np.float64)),
        "text": lambda: (-x, np.array(["a", "b"])),
        "count": lambda: (-x,),
        "no_numbers": lambda: (-x, x * np.float32("nan")),
    }.get(name, lambda: (-x, x))()
"""
SUBJECT = "call:faulty:run"
X = np.arange(2, dtype=np.float32)
PARTITIONED = """HloModule m, num_partitions=4

sum { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b) }

ENTRY e {
  x = f32[2] parameter(0), sharding={devices=[4]<=[4]}
  p = u32[] partition-id()
  q = f32[] convert(p)
  qs = f32[2] broadcast(q), dimensions={}
  y = f32[2] add(x, qs)
  r = f32[2] all-reduce(y), channel_id=1, replica_groups={{0,1},{2,3}}, use_global_device_ids=true, to_apply=sum
  ROOT t = (f32[2], f32[2]) tuple(r, y)
}
"""


def module_named(name: str) -> hloexec.Module:
    return hloexec.parse(
        f"HloModule {name}\nENTRY e {{ x = f32[2] parameter(0)\n n = f32[2] negate(x)\n"
        " ROOT r = (f32[2], f32[2]) tuple(n, x) }"
    )


@pytest.fixture
def faulty(empty_folder: Path) -> hloexec.Counterpart:
    Path("faulty.py").write_text(FAULTY)
    return hloexec.counterpart(SUBJECT)


@pytest.mark.parametrize(
    ("name", "outcome", "reason"),
    [
        ("aborts", "crashed", "crashes on aborts: it was ended by SIGABRT: Check failed: x == y"),
        ("exits", "crashed", "crashes on exits: it exited with 7"),
        ("hangs", "timed out", "takes more than 0.5 s for hangs"),
        ("refuses", "refused", "cannot run refuses: there is no such unit"),
        ("takes_all", "out of memory", "lacks the memory for takes_all: Unable to allocate 8.00 GiB for an array"),
        ("shape", "mismatched", "gives f32[1] as output 1 of shape, which is f32[2]"),
        ("type", "mismatched", "gives f64[2] as output 1 of type, which is f32[2]"),
        ("text", "mismatched", "gives str32[2] as output 1 of text, which is f32[2]"),
        ("count", "mismatched", "gives 1 output of count, which has 2"),
    ],
)
def test_what_goes_wrong_is_one_sentence_and_the_next_module_runs(
    faulty: hloexec.Counterpart, name: str, outcome: str, reason: str
) -> None:
    if name == "takes_all" and sys.platform != "linux":
        pytest.skip("memory is not limited there")
    seconds = 0.5 if name == "hangs" else None
    answer = faulty.run(module_named(name), [X], timeout=seconds, memory_limit=1 << 28)
    assert answer.outcome.value == outcome and answer.reason.startswith(f"{SUBJECT} {reason}")
    assert "\n" not in answer.reason and answer.result is None
    with pytest.raises(hloexec.HloError):
        answer.value()
    assert_array_equal(faulty.run(module_named("next"), [X]).value(), [-X, X])


@pytest.mark.parametrize("name", ["prints", "no_numbers"])
def test_what_is_printed_and_nan_are_no_failures(faulty: hloexec.Counterpart, name: str) -> None:
    assert_array_equal(faulty.run(module_named(name), [X]).value(), [-X, X * np.nan if name == "no_numbers" else X])


def test_a_process_stays_for_the_next_module(faulty: hloexec.Counterpart) -> None:
    Path("faulty.py").write_text("import os\nimport numpy as np\ndef run(text, inputs): return np.int32(os.getpid())")
    module = hloexec.parse("HloModule m\nENTRY e { ROOT c = s32[] constant(1) }")
    first, second = (int(hloexec.counterpart(SUBJECT).run(module, []).value()) for _ in range(2))
    assert first == second
    workers.worker_for(None, {"function": "faulty:run", "platform": None, "count": 1}).close()
    assert int(faulty.run(module, []).value()) != first


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("echo rubbish", "prints what is no answer: 'rubbish"),
        ("exit 3", "it exited with 3"),
        ("echo sorry >&2; kill -9 $$", "it was ended by SIGKILL: sorry"),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="there are no scripts of a shell")
def test_what_is_no_python_is_said(empty_folder: Path, text: str, reason: str) -> None:
    program = empty_folder / "program"
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    answer = hloexec.counterpart(f"python:{program}").run(module_named("m"), [X])
    assert answer.outcome is hloexec.Outcome.CRASHED
    assert answer.reason.startswith(f"python:{program} does not start: ") and reason in answer.reason


def test_xla_runs_partitions_and_replicas_with_inputs_of_each() -> None:
    pytest.importorskip("jax")
    inputs = [[np.array([device, 10 * device], np.float32)] for device in range(4)]
    replicas = PARTITIONED.replace("num_partitions=4", "replica_count=4").replace("partition-id", "replica-id")
    for text in (PARTITIONED, replicas.replace("channel_id=1, ", "").replace("use_global_device_ids=true, ", "")):
        module = hloexec.parse(text)
        answer = hloexec.counterpart("xla:cpu:4").run(module, inputs)
        for ours, theirs in zip(hloexec.run_devices(module, inputs), answer.value(), strict=True):
            assert_array_equal(ours, theirs)
    refused = hloexec.counterpart("xla:cpu:2").run(hloexec.parse(PARTITIONED), inputs)
    assert refused.reason == "m cannot be run on XLA:CPU: it is for 4 devices"


@pytest.mark.slow
def test_xla_of_another_environment_runs_modules() -> None:
    pytest.importorskip("jax")
    answer = hloexec.counterpart(f"python:{sys.executable}").run(module_named("m"), [X])
    assert_array_equal(answer.value(), [-X, X])
    answer = hloexec.counterpart(f"python:{sys.executable}:abacus").run(module_named("m"), [X])
    assert answer.outcome is hloexec.Outcome.REFUSED and "does not start: " in answer.reason


OPTIMIZED = """HloModule m, is_scheduled=true, num_partitions=4

add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }
squares { p = f32[2] parameter(0)  ROOT q = f32[2] multiply(p, p) }

ENTRY e {
  x = f32[2]{0} parameter(0)
  y = f32[2]{0} fusion(x), kind=kLoop, calls=squares
  begun = f32[2]{0} all-reduce-start(y), channel_id=1, use_global_device_ids=true, replica_groups=[2,2]<=[4], to_apply=add
  done = f32[2]{0} all-reduce-done(begun)
  ROOT z = f32[2,1]{0,1} bitcast(done)
}
"""


def test_xla_runs_what_it_has_optimized_and_divided() -> None:
    pytest.importorskip("jax")
    module, inputs = hloexec.parse(OPTIMIZED), [[np.array([device, 3], np.float32)] for device in range(4)]
    answer = hloexec.counterpart("xla:cpu").run(module, inputs)
    for ours, theirs in zip(hloexec.run_devices(module, inputs), answer.value(), strict=True):
        assert_array_equal(ours, theirs)


def test_what_has_no_equivalent_is_named() -> None:
    pytest.importorskip("jax")
    text = 'ENTRY e { x = f32[2] parameter(0)  ROOT y = f32[2] custom-call(x), custom_call_target="abacus" }'
    answer = hloexec.counterpart("xla:cpu").run(hloexec.parse("HloModule m, is_scheduled=true\n" + text), [X])
    assert answer.outcome is hloexec.Outcome.REFUSED and "abacus" in answer.reason


MANUAL = """HloModule m, num_partitions=4, frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["a"=2, "b"=2]>}}
ENTRY e {
  x = f32[4,6]{1,0} parameter(0)
  l = f32[2,6]{1,0} custom-call(x), custom_call_target="xla.sdy.GlobalToLocalShape", frontend_attributes={
    xla.sdy.in_shardings="#sdy.sharding_per_value<[<@mesh, [{\\"b\\"}, {}]>]>",xla.sdy.manual_axes="#sdy<manual_axes{\\"a\\",\\"b\\"}>"}
  p = u32[] partition-id()
  f = f32[] convert(p)
  s = f32[2,6]{1,0} broadcast(f), dimensions={}
  y = f32[2,6]{1,0} add(l, s)
  ROOT g = f32[4,12]{1,0} custom-call(y), custom_call_target="xla.sdy.LocalToGlobalShape", frontend_attributes={
    xla.sdy.out_shardings="#sdy.sharding_per_value<[<@mesh, [{\\"b\\"}, {\\"a\\"}]>]>",xla.sdy.manual_axes="#sdy<manual_axes{\\"a\\",\\"b\\"}>"}
}
"""


def test_xla_takes_shards_where_manual_regions_begin_and_assembles_them_where_they_end() -> None:
    pytest.importorskip("jax")
    module, whole = hloexec.parse(MANUAL), np.arange(24, dtype=np.float32).reshape(4, 6)
    inputs = [[whole + 100 * device] for device in range(4)]
    expected = hloexec.run_devices(module, inputs)
    assert expected[0][2, 6] == 400 - 100 + 12 + 3
    for ours, theirs in zip(expected, hloexec.counterpart("xla:cpu").run(module, inputs).value(), strict=True):
        assert_array_equal(ours, theirs)


def test_xla_computes_with_the_same_values_of_elided_constants() -> None:
    pytest.importorskip("jax")
    module = hloexec.parse(
        "HloModule m\nENTRY e { x = c64[20] parameter(0)\n c = c64[20] constant({...})\n ROOT y = c64[20] add(x, c) }"
    )
    x = np.arange(20, dtype=np.complex64)
    for elided in ("zeros", "random", {"c": x}):
        answer = hloexec.counterpart("xla:cpu").run(module, [x], elided=elided)
        with pytest.warns(hloexec.HloWarning) if isinstance(elided, str) else nullcontext():
            expected = hloexec.run(module, x, elided=elided)
        assert_array_equal(answer.value(), expected)
        assert answer.comparing == {"elided": None}
    answer = hloexec.counterpart("xla:cpu").run(module, [x], elided="error")
    assert answer.reason.startswith("the value of constant %c is elided in the text")
