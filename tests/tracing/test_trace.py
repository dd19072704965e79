"""Traces: every instruction's value on disk, in files that plain NumPy reads, in bounded memory."""

import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from hloexec.errors import HloError, HloWarning, InputError, ResourceError
from tests.exec.programs import COUNTING_LOOP
from tests.text.building import module, op

X = np.arange(4, dtype=np.float32)


class Collector:
    def __init__(self) -> None:
        self.events: list[Any] = []

    def on_instruction(self, event: Any) -> None:
        self.events.append(event)


def traced(text: str, folder: Path, *inputs: Any, **options: Any) -> Any:
    return hloexec.trace(hloexec.parse(text), [list(inputs)], folder, **options)


def test_a_trace_holds_what_observers_see(tmp_path: Path) -> None:
    trace = traced(COUNTING_LOOP, tmp_path / "t", X)
    collector = Collector()
    hloexec.run(hloexec.parse(COUNTING_LOOP), X, observers=[collector])
    events = list(trace)
    assert [event.name for event in events] == [event.name for event in collector.events]
    for event, seen in zip(events, collector.events, strict=True):
        leaves = seen.value if isinstance(seen.value, tuple) else (seen.value,)
        for record, leaf in zip(event.arrays, leaves, strict=True):
            stored = trace.array(record)
            assert stored.dtype == leaf.dtype and stored.tobytes() == leaf.tobytes()


def test_each_iteration_of_a_loop_has_its_value_and_statistics(tmp_path: Path) -> None:
    trace = traced(COUNTING_LOOP, tmp_path / "t", X)
    doubled = [event for event in trace if event.instruction == "doubled"]
    assert [event.iteration for event in doubled] == [0, 1, 2, 3, 4]
    for event in doubled:
        assert_array_equal(trace.value(event), X * 2 ** (event.iteration + 1))
        (record,) = event.arrays
        assert (record.minimum, record.maximum) == (0, 3 * 2 ** (event.iteration + 1))
        assert record.mean == 1.5 * 2 ** (event.iteration + 1)
    assert trace.find("loop[3]:body/doubled").number == doubled[3].number


def test_plain_numpy_reads_the_values_at_the_offsets_of_the_index(tmp_path: Path) -> None:
    text = module("x = bf16[3] parameter(0)\nROOT r = bf16[3] negate(x)")
    x = np.array([1, 2.5, -3], ml_dtypes.bfloat16)
    traced(text, tmp_path / "t", x)
    lines = (tmp_path / "t" / "events.jsonl").read_text().splitlines()
    (record,) = json.loads(lines[-1])["arrays"]
    with open(tmp_path / "t" / "values.npy", "rb") as file:
        file.seek(record["offset"])
        bits = np.load(file, allow_pickle=False)
    assert bits.dtype == np.uint16 and record["shape"] == "bf16[3]"
    assert_array_equal(bits.view(ml_dtypes.bfloat16), -x)


@pytest.mark.parametrize("name", "pred s4 u2 s64 f16 bf16 f8e4m3fn f4e2m1fn f64 c64".split())
def test_every_kind_of_element_type_comes_back_as_it_was(name: str, tmp_path: Path) -> None:
    dtype = hloexec.parse(op(f"{name}[4] copy(x)", x=f"{name}[4]")).entry.root.shape.element_type.storage
    x = np.array([0, 1, 1, 0]).astype(dtype)
    trace = traced(op(f"{name}[4] copy(x)", x=f"{name}[4]"), tmp_path / "t", x)
    value = trace.value(trace.find("root"))
    assert value.dtype == dtype and value.tobytes() == x.tobytes()


def test_scalars_empty_arrays_tokens_and_transposed_values_are_kept(tmp_path: Path) -> None:
    text = module("""
        x = f32[2,3] parameter(0)
        s = f32[] constant(7)
        e = f32[0,5] constant({})
        k = token[] after-all()
        t = f32[3,2] transpose(x), dimensions={1,0}
        ROOT r = (f32[3,2], f32[], f32[0,5], token[]) tuple(t, s, e, k)""")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    trace = traced(text, tmp_path / "t", x)
    values = [trace.array(record) for record in trace.find("r").arrays]
    assert_array_equal(values[0], x.T)
    assert values[1].shape == () and values[1] == 7 and values[2].shape == (0, 5) and len(values) == 3


def test_values_that_only_change_their_names_are_stored_once(tmp_path: Path) -> None:
    text = module("""
        x = f32[1000] parameter(0)
        a = (f32[1000]) tuple(x)
        b = f32[1000] get-tuple-element(a), index=0
        c = f32[1000] copy(b)
        ROOT d = f32[1000] negate(c)""")
    x = np.arange(1000, dtype=np.float32)
    trace = traced(text, tmp_path / "t", x)
    assert len({record.offset for event in trace for record in event.arrays}) == 2
    assert (tmp_path / "t" / "values.npy").stat().st_size < 2 * 4000 + 2 * 200


def test_devices_that_disagree_have_events_of_their_own(tmp_path: Path) -> None:
    text = "HloModule m, replica_count=4\nENTRY e { i = u32[] replica-id()\n h = u32[] constant(1)\n"
    text += " ROOT r = u32[] shift-right-logical(i, h) }"
    trace = hloexec.trace(hloexec.parse(text), [[]], tmp_path / "t")
    events = [event for event in trace if event.instruction == "r"]
    held = {device: int(trace.value(event)) for event in events for device in event.devices}
    assert held == {0: 0, 1: 0, 2: 1, 3: 1}
    assert 3 in trace.find("r", device=3).devices


def test_source_lines_and_op_names_are_in_the_index(tmp_path: Path) -> None:
    text = module(
        'x = f32[] parameter(0)\nROOT r = f32[] sine(x), metadata={op_name="jit(f)/sin" source_file="a.py" source_line=3}'
    )
    event = traced(text, tmp_path / "t", np.float32(1)).find("r")
    assert (event.op_name, event.source) == ("jit(f)/sin", "a.py:3")


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("doubled", {"doubled"}),
        ("%doubled", {"doubled"}),
        ("d*", {"doubled"}),
        ("add", {"next", "doubled"}),
        ("opcode:compare", {"again"}),
        ("name:o*", {"one"}),
        ("path:loop[2]:body/*e*", {"state", "one", "next", "doubled", "result"}),
    ],
)
def test_a_selection_is_by_name_opcode_or_path(pattern: str, names: set[str], tmp_path: Path) -> None:
    trace = traced(COUNTING_LOOP, tmp_path / "t", X, select=[pattern])
    assert {event.instruction for event in trace} == names
    if pattern.startswith("path"):
        assert {event.iteration for event in trace} == {2}


def test_a_selection_by_op_name_takes_wildcards(tmp_path: Path) -> None:
    text = module(
        'x = f32[] parameter(0)\na = f32[] sine(x), metadata={op_name="jit(f)/attention/sin"}\nROOT b = f32[] sine(a)'
    )
    trace = traced(text, tmp_path / "t", np.float32(1), select=["*attention*"])
    assert [event.instruction for event in trace] == ["a"]


def test_statistics_only_writes_no_values(tmp_path: Path) -> None:
    trace = traced(COUNTING_LOOP, tmp_path / "t", X, statistics_only=True)
    assert sorted(os.listdir(tmp_path / "t")) == ["events.jsonl", "trace.json"]
    event = trace.find("doubled")
    assert event.arrays[0].maximum == 6
    with pytest.raises(InputError, match="statistics only"):
        trace.value(event)


def test_a_run_that_fails_leaves_what_ran_before(tmp_path: Path) -> None:
    class Failing:
        def on_instruction(self, event: Any) -> None:
            if event.name == "loop[2]:body/doubled":
                raise ValueError("enough")

    with pytest.raises(HloError, match="enough"):
        traced(COUNTING_LOOP, tmp_path / "t", X, observers=[Failing()])
    with pytest.warns(HloWarning, match="did not finish"):
        trace = hloexec.read_trace(tmp_path / "t")
    assert [event.iteration for event in trace if event.instruction == "doubled"] == [0, 1, 2]
    # A line that was cut off does not count either.
    path = tmp_path / "t" / "events.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert [event.iteration for event in trace if event.instruction == "doubled"] == [0, 1]


def test_memory_does_not_grow_with_what_is_written(tmp_path: Path) -> None:
    text = COUNTING_LOOP.replace("f32[4]", "f32[250000]").replace("constant(5)", "constant(30)")
    x = np.random.default_rng(0).normal(size=250000).astype(np.float32)
    tracemalloc.start()
    traced(text, tmp_path / "t", x)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (tmp_path / "t" / "values.npy").stat().st_size > 30e6
    assert peak < 15e6  # two carried values of 1 MB, their results, blocks in f64


# Wrong use


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "note").write_text("mine")
    with pytest.raises(InputError, match="not empty"):
        traced(COUNTING_LOOP, tmp_path, X)
    assert os.listdir(tmp_path) == ["note"]


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("mine")
    for path in (tmp_path / "t", tmp_path / "t" / "below"):
        with pytest.raises(InputError, match=r"is a file|cannot be written to|cannot write"):
            traced(COUNTING_LOOP, path, X)


def test_patterns_that_select_nothing_are_refused_with_what_comes_close(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'doubeld' selects no instruction of counting; did you mean 'doubled'"):
        traced(COUNTING_LOOP, tmp_path / "t", X, select=["doubeld"])
    with pytest.raises(InputError, match="selects nothing"):
        traced(COUNTING_LOOP, tmp_path / "t", X, select=["opcode:"])
    assert not (tmp_path / "t").exists()


def test_values_that_do_not_fit_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    huge = module(
        "x = f32[] parameter(0)\nb = f32[1000000,1000000] broadcast(x), dimensions={}\nROOT r = f32[1000000,1000000] copy(b)"
    )
    with pytest.raises(ResourceError, match=r"about 4\.0 TB .*select=PATTERN"):
        traced(huge, tmp_path / "t", np.float32(1))
    with pytest.raises(ResourceError, match="the limit that was given"):
        traced(op("f32[100] negate(x)", x="f32[100]"), tmp_path / "t", np.ones(100, np.float32), disk_limit=399)
    assert not (tmp_path / "t").exists()


def test_a_loop_of_unknown_length_is_stopped_at_the_limit(tmp_path: Path) -> None:
    unknown = COUNTING_LOOP.replace("direction=LT", "direction=NE")
    with pytest.raises(ResourceError, match="exceeds the limit of 40 bytes"):
        traced(unknown, tmp_path / "t", X, disk_limit=40, select=["doubled"])


def test_a_loop_whose_bounds_are_constants_counts_as_often_as_it_runs(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match=r"about 80 B .*the limit that was given"):
        traced(COUNTING_LOOP, tmp_path / "t", X, disk_limit=40, select=["doubled"])
    assert not (tmp_path / "t").exists()


def test_the_limit_counts_the_index_too(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="exceeds the limit of 1000 bytes; select fewer"):
        traced(COUNTING_LOOP, tmp_path / "t", X, disk_limit=1000, statistics_only=True)
    written = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert written <= 1000


def test_a_module_that_cannot_run_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(HloError, match="custom call"):
        traced(op('f32[2] custom-call(x), custom_call_target="?"', x="f32[2]"), tmp_path / "t", np.ones(2, np.float32))
    assert not (tmp_path / "t").exists()


def test_inputs_that_do_not_fit_leave_no_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        traced(COUNTING_LOOP, tmp_path / "t", X[:3])
    assert not (tmp_path / "t").exists()


def damaged(tmp_path: Path, name: str, old: bytes, new: bytes) -> Any:
    traced(COUNTING_LOOP, tmp_path / "t", X)
    path = tmp_path / "t" / name
    data = path.read_bytes()
    assert old in data
    path.write_bytes(data.replace(old, new))
    return hloexec.read_trace(tmp_path / "t")


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("events.jsonl", b'"number": 3', b'"number": "3"', r"events.jsonl:4: the line is damaged"),
        ("events.jsonl", b'"opcode"', b'"code"', r"events.jsonl:1: the line is damaged"),
        ("events.jsonl", b"f32[4]", b"f33[4]", r"is not a shape"),
        ("events.jsonl", b"{", b"[", r"the line is damaged"),
        ("events.jsonl", b'"devices": [0]', b'"devices": 0', r"the line is damaged"),
        ("values.npy", b"NUMPY", b"NUMPI", r"values.npy.* is damaged"),
        ("values.npy", b"(4,)", b"(5,)", r"is damaged: it has no complete f32\[4\]"),
        ("values.npy", b"(4,)", b"((((", r"is damaged"),
        ("values.npy", b"<f4", b"|O8", r"damaged"),
        ("trace.json", b'"version": 1', b'"version": 9', r"of version 9"),
        ("trace.json", b"{", b"", r"is damaged"),
        ("trace.json", b'"is_complete"', b'"complete"', r"not what"),
    ],
)
def test_damaged_traces_are_refused_with_the_place(
    name: str, old: bytes, new: bytes, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        trace = damaged(tmp_path, name, old, new)
        for event in trace:
            for record in event.arrays:
                trace.array(record)


def test_truncated_values_are_refused(tmp_path: Path) -> None:
    trace = traced(COUNTING_LOOP, tmp_path / "t", X)
    path = tmp_path / "t" / "values.npy"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(InputError, match="damaged"):
        for event in trace:
            for record in event.arrays:
                trace.array(record)


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a trace"):
        hloexec.read_trace(tmp_path)
    trace = traced(COUNTING_LOOP, tmp_path / "t", X)
    with pytest.raises(InputError, match="has no event 'nonsense'"):
        trace.find("nonsense")
    with pytest.raises(InputError, match="gave 2 arrays"):
        trace.value(trace.find("loop"))
