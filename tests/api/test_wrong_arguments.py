"""Arguments that are wrong: whatever a function is given for one of its parameters, it says in a sentence which one is
wrong, what was given and what is wanted.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.cli.options import ByteCount
from hloexec.core.arguments import byte_count
from tests.report.needs import require_report_packages

ADD = """HloModule add
ENTRY e { x = f32[4] parameter(0)
  y = f32[4] parameter(1)
  ROOT z = f32[4] add(x, y) }
"""
ASSIGNMENT = """BufferAssignment:
allocation 0: size 16, maybe-live-out:
 value: <0 z @0> (size=16,offset=0): f32[4]{0}

Total bytes used: 16 (16B)
"""
X = np.arange(4, dtype=np.float32)
MODULE = hloexec.parse(ADD)

WRONG: dict[str, Any] = {
    "None": None,
    "True": True,
    "5": 5,
    "-1": -1,
    "2.5": 2.5,
    "nan": float("nan"),
    "text": "x",
    "1G": "1G",
    "bytes": b"x",
    "texts": ["x"],
    "numbers": [1, 2],
    "empty": {},
    "mapping": {1: 2},
    "object": object(),
    "class": object,
    "path": Path("missing"),
    "array": X,
    "nested": [[X]],
}
RIGHT: dict[str, str] = {
    "actual": "True 5 -1 2.5 nan numbers mapping empty array nested",
    "after": "",
    "against": "None",
    "also": "empty",
    "around": "None text",
    "assignment": "",
    "atol": "None 5 2.5",
    "backend_config": "True",
    "before": "",
    "breakpoints": "texts empty",
    "budget": "None 5 2.5",
    "by": "None",
    "is_closed": "True",
    "runs": "None 5",
    "check": "True",
    "check_error": "",
    "colours": "None",
    "command": "",
    "command_timeout": "5 2.5",
    "comm": "None",
    "computation": "None",
    "contraction_length": "None 5",
    "carry": "None",
    "cuts": "texts empty",
    "depth": "None 5",
    "device": "None",
    "devices": "None",
    "disk_limit": "None 5 1G",
    "distance": "5",
    "distribution": "",
    "elements": "5",
    "elided": "empty",
    "executor": "None",
    "expected": "None array",
    "expected_source": "text 1G",
    "filename": "text 1G",
    "first": "True",
    "folder": "text path 1G",
    "folders": "",
    "function": "class",
    "held_back": "5",
    "host_transfers": "None empty",
    "in_computation": "None",
    "infeed": "None",
    "inputs": "None",
    "inputs_source": "None text 1G",
    "instruction": "",
    "iteration": "None",
    "layouts": "True",
    "differs_from": "None",
    "dims": "None mapping empty",
    "jobs": "5",
    "keep": "numbers empty mapping",
    "kinds": "",
    "margin": "None",
    "max_trials": "5",
    "max_bytes": "None 5 1G",
    "max_iterations": "None 5",
    "memory_limit": "None 5 1G",
    "memory": "5 1G",
    "metadata": "True",
    "minify": "True",
    "module": "",
    "module_timeout": "None 5 2.5",
    "nan": "",
    "network": "None",
    "numerics": "",
    "observers": "None empty",
    "on_step": "None",
    "only_outputs": "None",
    "other": "None",
    "output_tolerances": "None empty",
    "outcome": "",
    "outfeed": "None class texts numbers nested",
    "output": "None text path 1G",
    "outputs": "",
    "partitions": "None 5",
    "path": "text path 1G",
    "planner": "True",
    "policies": "",
    "portable": "True",
    "ranges": "None empty",
    "result": "",
    "replace": "True",
    "ranks": "",
    "replicas": "None 5",
    "rtol": "None 5 2.5",
    "samples": "5",
    "share_runs": "None 5",
    "says": "",
    "same_choices": "True",
    "seed": "5",
    "seeds": "5",
    "select": "texts empty",
    "selects": "None empty",
    "shape": "None",
    "shard": "None",
    "shared": "True",
    "share": "",
    "sharding": "None",
    "spreads": "None empty",
    "statistics": "None",
    "steps": "5",
    "statistics_only": "True",
    "strict": "True",
    "target": "text 1G",
    "text": "",
    "timeout": "None 5 2.5",
    "to_result": "True",
    "tolerance": "5 2.5",
    "top": "5",
    "types": "",
    "ulp": "None 5 2.5",
    "unknown": "",
    "usage": "",
    "values": "None empty",
    "try_all": "True",
    "verify": "True",
}
"""Which of these are right after all, by the name of the parameter, which means the same in all functions."""
MORE = {
    "check_golden-actual": "None",
    "check_golden-module": "None",
    "check_goldens-jobs": "None",
    "check_goldens-memory": "None",
    "check_goldens-module": "None",
    "diff_folders-jobs": "None",
    "diff_folders-memory": "None",
    "compare-elided": "None",
    "compare-expected": "True 5 -1 2.5 nan numbers mapping empty array nested",
    "compare-module": "None",
    "devices_of_rank-count": "5",
    "devices_of_rank-ranks": "5",
    "diff_folders-inputs": "class texts numbers empty mapping nested",
    "diff_folders-on_step": "class",
    "explain-expected": "nested",
    "isolate-iteration": "5",
    "shard_inputs-before": "None",
    "shard_inputs-inputs": "numbers",
    "step-keep": "5 1G",
    "unshard_outputs-before": "None",
    "write_html-module": "None",
}
"""The same for single functions, where more is right, or said only in what they return."""
WORDS = {
    "around": "around|instruction",
    "names": "names|%x|output",
    "devices": "device",
    "actual": "leaf|actual",
    "expected": "leaf|expected|result",
    "in_computation": "computation",
    "instruction": "instruction|%x",
    "inputs": "inputs|parameter",
    "folders": "folders|folder|triage.json",
    "other": "other|cannot read",
    "outputs": "output",
    "path": "path|file|text",
    "ranges": "range",
    "text": "text|expected",
}
"""How messages name what is wrong, where it is not the parameter's name."""


def _write_files(folder: Path) -> None:
    (folder / "m.hlo").write_text(ADD)
    for stage, text in (("before_optimizations", ADD), ("cpu_after_optimizations", ADD.replace("(x, y)", "(y, x)"))):
        (folder / f"module_0001.add.{stage}.txt").write_text(text)


@cache
def _arguments(folder: Path) -> dict[str, Any]:
    """Arguments that are right, by the names of the parameters without defaults."""
    return {
        "actual": X,
        "after": MODULE,
        "assignment": hloexec.parse_buffer_assignment(ASSIGNMENT),
        "before": MODULE,
        "count": 1,
        "expected": X,
        "folder": folder,
        "folders": [folder / "part"],
        "inputs": [X, X],
        "instruction": "z",
        "module": MODULE,
        "outputs": [X],
        "path": folder / "m.hlo",
        "rank": 0,
        "ranks": 1,
        "result": hloexec.compare(X, X),
        "target": "unheard_of",
        "text": ADD,
        "usage": hloexec.memory_usage(MODULE),
    }


@cache
def _arguments_of(folder: Path) -> dict[str, dict[str, Any]]:
    """The same for single functions, where others are right, or more are needed."""
    return {
        "bisect_versions": {"versions": ["reference", "ftz"]},
        "check_golden": {"folder": folder / "missing.golden"},
        "check_goldens": {"folders": [folder / "missing.golden"]},
        "isolate": {"against": "ftz"},
        "minify": {"inputs": [X, X], "command": "test -e"},
        "narrow": {"inputs": None, "tolerance": 0.5},
        "parse_buffer_assignment": {"text": ASSIGNMENT},
        "record_golden": {"folder": folder / "new.golden"},
        "trace": {"folder": folder / "trace"},
        "write_html": {"path": folder / "page.html"},
    }


def _cases() -> Iterator[Any]:
    """Each function with each of its parameters, the options of runs included."""
    options = list(hloexec.RunOptions.__annotations__)
    for name in sorted(hloexec.__all__):
        function = getattr(hloexec, name)
        if not inspect.isfunction(function) or name in ("from_jax", "load_buffer_assignment", "register_custom_call"):
            continue
        for parameter in inspect.signature(function).parameters.values():
            if name == "diff_folders" and parameter.kind is parameter.VAR_KEYWORD:
                continue
            for given in options if parameter.kind is parameter.VAR_KEYWORD else [parameter.name]:
                yield pytest.param(function, given, id=f"{name}-{given}")


_signature = cache(inspect.signature)


def _call(function: Callable[..., Any], parameter: str, value: Any, folder: Path) -> None:
    if function is hloexec.run:
        values = (value,) if parameter == "inputs" else (X, X)
        if parameter == "module":
            hloexec.run(value, *values)
        else:
            hloexec.run(MODULE, *values, **{} if parameter == "inputs" else {parameter: value})
        return
    needed = {entry.name for entry in _signature(function).parameters.values() if entry.default is entry.empty}
    right = {name: argument for name, argument in _arguments(folder).items() if name in needed}
    function(**{**right, **_arguments_of(folder).get(function.__name__, {}), parameter: value})


@pytest.mark.sampled(3)
@pytest.mark.filterwarnings("ignore::hloexec.HloWarning")
@pytest.mark.parametrize(("function", "parameter"), list(_cases()))
def test_a_wrong_argument_is_named(
    function: Callable[..., Any], parameter: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if function is hloexec.write_html:
        require_report_packages()
    monkeypatch.chdir(tmp_path)
    right = f"{RIGHT.get(parameter, '')} {MORE.get(f'{function.__name__}-{parameter}', '')}".split()
    _write_files(tmp_path)
    before = {*tmp_path.iterdir()}
    for name, value in WRONG.items():
        if name in right:
            continue
        with pytest.raises(hloexec.HloError) as caught:
            _call(function, parameter, value, tmp_path)
        assert {*tmp_path.iterdir()} == before, name
        assert re.search(WORDS.get(parameter, parameter), str(caught.value)), (name, str(caught.value))


def _methods(folder: Path) -> dict[str, Callable[[Any], Any]]:
    """Functions of packages, methods, and functions whose arguments have no names, as functions of one argument."""
    trace = hloexec.trace(MODULE, [X, X], folder / "trace")
    extraction = hloexec.extract(MODULE, [X, X], "z")
    return {
        "Extraction.save": extraction.save,
        "Trace.array": trace.array,
        "Trace.find": trace.find,
        "Trace.value": trace.value,
        "find_goldens": lambda path: list(hloexec.golden.find_goldens(path)),
        "from_jax": hloexec.from_jax,
        "literals.load": hloexec.literals.load,
        "literals.load_arrays": hloexec.literals.load_arrays,
        "literals.load_inputs": lambda path: hloexec.literals.load_inputs(path, MODULE.entry.parameters),
        "literals.save": lambda path: hloexec.literals.save(path, X),
        "load_buffer_assignment": hloexec.load_buffer_assignment,
        "read_golden": hloexec.golden.read_golden,
        "update_golden": hloexec.golden.update_golden,
    }


def test_wrong_arguments_of_methods_and_of_functions_in_packages_are_named(tmp_path: Path) -> None:
    for name, function in _methods(tmp_path).items():
        if name == "from_jax" and find_spec("jax") is None:
            continue
        for value in (None, True, 5, 2.5, b"x", ["x"], {1: 2}, object(), X):
            with pytest.raises(hloexec.InputError, match=r"^(path|folder|name|record|event|function) must be "):
                function(value)
                pytest.fail(f"{name} took {value!r}")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: hloexec.run("x"),
            "module must be a Module, but the Python str 'x' was given; hloexec.load(path) reads one from a file, "
            "hloexec.parse(text) from HLO text",
        ),
        (
            lambda: hloexec.parse(Path("m.hlo")),
            f"text must be HLO text, a str, but a pathlib.{type(Path()).__name__} was given; hloexec.load(path) reads "
            "a file",
        ),
        (lambda: hloexec.load(ADD), "path must be that of a file, but a text was given; hloexec.parse(text) reads it"),
        (
            lambda: hloexec.find_nan(MODULE, [X, X], also="overflow"),
            "also must be a list of str, but the Python str 'overflow' was given; write it as [...], even where there "
            "is only one",
        ),
        (
            lambda: hloexec.run(MODULE, X, X, memory_limit="1 potato"),
            "memory_limit must be a number of bytes, such as 500_000_000, '500M' or '8G', but the Python str "
            "'1 potato' was given",
        ),
        (
            lambda: hloexec.run(MODULE, X, X, observers=[dict]),
            "observers must be objects, but the class dict was given",
        ),
        (
            lambda: hloexec.run(MODULE, X, X, numerics=3),
            "numerics must be the name of a policy, such as 'reference' or 'exact', a NumericsPolicy, or a mapping from "
            "the names of instructions to these, but the Python int 3 was given",
        ),
        (
            lambda: hloexec.run(MODULE, {"x": X, "w": X}),
            "e has no parameter 'w', but 2, numbered from 0 and named x, y",
        ),
        (
            lambda: hloexec.run(MODULE, X, [0.0, 1.0, 2.0, 3.0]),
            "parameter 1 (y) must be f32[4], a NumPy array of type float32 and shape [4], but a list of 4 values was "
            "given; numpy.array(…, 'float32') makes an array of it",
        ),
        (
            lambda: hloexec.run(MODULE, X, np.ma.masked_array(X, X > 1)),
            "parameter 1 (y): a numpy.ma.MaskedArray has masked elements; .filled(…) fills them",
        ),
        (lambda: hloexec.run(MODULE, {"x": X}), "inputs give no value for y of e"),
        (lambda: hloexec.run(MODULE, {"x": X, 0: X, 1: X}), "inputs give parameter 0 (x) twice"),
        (lambda: hloexec.compare(X, X, inputs=[X]), "inputs are those of a module; give it as module, too"),
    ],
)
def test_the_sentence_says_what_is_wanted_and_what_to_do(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(hloexec.InputError) as caught:
        call()
    assert str(caught.value) == message


def test_a_path_that_is_parsed_is_told_from_text() -> None:
    with pytest.raises(hloexec.ParseError, match=r"found what looks like a path; hloexec.load\(path\) reads a file"):
        hloexec.parse("examples/attention.hlo")


def test_an_option_that_does_not_exist_is_an_unexpected_keyword(tmp_path: Path) -> None:
    with pytest.raises(
        TypeError, match=r"trace\(\) got an unexpected keyword argument 'numeric'; did you mean numerics?"
    ):
        hloexec.trace(MODULE, [X, X], tmp_path / "trace", numeric="exact")  # type: ignore[call-arg]
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize(
    ("text", "count"),
    [("1500000", 1500000), ("500M", 500 << 20), ("8GiB", 8 << 30), ("1.5 kb", 1536), (" 2T ", 2 << 40), ("0", 0)],
)
def test_sizes_are_read_as_on_the_command_line(text: str, count: int) -> None:
    assert byte_count("memory_limit", text) == count
    assert ByteCount().convert(text, None, None) == count


def test_a_limit_in_words_holds() -> None:
    with pytest.raises(hloexec.ResourceError, match="more than 8 B, the limit that was given"):
        hloexec.run(MODULE, X, X, memory_limit="8B")
    assert hloexec.run(MODULE, X, X, memory_limit="1G").tolist() == [0, 2, 4, 6]


def test_options_of_runs_are_those_that_run_explains_and_how_many_devices_there_are() -> None:
    of_run = inspect.signature(hloexec.run).parameters
    types, of_host = hloexec.RunOptions.__annotations__, ("infeed", "outfeed", "host_transfers")
    names = [name for name in of_run if name not in ("module", "inputs", "observers")]
    assert list(types) == ["replicas", "partitions", *names]
    for name in names:
        assert f"`{name}" in (hloexec.run.__doc__ or "")
        if name not in of_host:
            assert of_run[name].annotation == types[name].__forward_arg__, name


@pytest.mark.filterwarnings("ignore:constants that the text elides:hloexec.HloWarning")
def test_runs_on_devices_have_the_defaults_of_run() -> None:
    module = hloexec.parse(
        "HloModule m\nENTRY e { low = bf16[] constant(-1)\n high = bf16[] constant(1)\n c = bf16[64] constant({...})\n"
        " drawn = bf16[64] rng(low, high), distribution=rng_uniform\n ROOT sum = bf16[64] add(drawn, c) }\n"
    )
    assert hloexec.run_devices(module, [])[0].tobytes() == hloexec.run(module).tobytes()
