"""`hx.capture`: what is kept of calls, and that the program is not disturbed. JAX gives the results that are kept."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from hloexec.errors import HloWarning, InputError, UnsupportedError

jax = pytest.importorskip("jax")
jnp = jax.numpy
hx = pytest.importorskip("hloexec.jax")

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def goldens(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.endswith(".golden"))


def numbers(folder: Path) -> list[int]:
    return [json.loads((path / "capture.json").read_text())["call"] for path in goldens(folder)]


def test_every_nth_call_is_kept_and_agrees(tmp_path: Path) -> None:
    @hx.capture(tmp_path, every=3)
    def step(x: Any) -> Any:
        return jnp.tanh(x), x.sum()

    for number in range(7):
        step(X + number)
    assert numbers(tmp_path) == [3, 6]
    for number, golden in zip((3, 6), goldens(tmp_path), strict=True):
        assert hloexec.check_golden(golden)
        assert_array_equal(np.load(golden / "expected.npz")["1"], (X + number - 1).sum())


def test_a_context_keeps_calls_of_all_jitted_functions_and_none_of_jax(tmp_path: Path) -> None:
    once, twice = jax.jit(lambda x: x + 1), jax.jit(lambda x: jnp.stack([x, 2 * x]))
    once(X)  # it is compiled, and C++ calls what is compiled
    with hx.capture(tmp_path / "outer"):
        jnp.stack([X, X])
        once(X)
        with hx.capture(tmp_path / "inner", every=2):
            for _ in range(2):
                twice(X)
        once(X)
        jax.grad(lambda x: once(x).sum())(X)
    once(X)
    assert numbers(tmp_path / "outer") == [1, 2]
    assert numbers(tmp_path / "inner") == [2]  # the innermost keeps them
    assert all(map(hloexec.check_golden, goldens(tmp_path / "outer")))


def test_a_context_ends_as_it_began_after_an_exception(tmp_path: Path) -> None:
    jitted = type(jax.jit(lambda x: x))
    before = jitted.__dict__["__call__"], jitted.__flags__
    with pytest.raises(ZeroDivisionError), hx.capture(tmp_path), hx.capture(tmp_path):
        assert jitted.__dict__["__call__"] is not before[0]
        raise ZeroDivisionError
    assert (jitted.__dict__["__call__"], jitted.__flags__) == before


def test_a_context_keeps_calls_of_its_own_thread(tmp_path: Path) -> None:
    step = jax.jit(lambda x: x + 1)
    with hx.capture(tmp_path):
        thread = threading.Thread(target=step, args=(X,))
        thread.start()
        thread.join()
    assert not tmp_path.exists() or not goldens(tmp_path)


def test_an_unknown_inside_of_jax_is_refused_by_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from hloexec.jax import internals

    internals._Calls.of_jax.cache_clear()
    monkeypatch.setattr(internals, "_FLAGS_AT", 0)  # where CPython counts references
    with pytest.raises(UnsupportedError, match="calls of jitted functions cannot be reached inside JAX"):
        hx.capture(tmp_path).__enter__()


def test_donated_arguments_are_kept_as_they_were(tmp_path: Path) -> None:
    step = hx.capture(tmp_path)(jax.jit(lambda x: x * 2, donate_argnums=0))
    assert_array_equal(step(step(jnp.asarray(X))), 4 * X)
    first, second = goldens(tmp_path)
    assert_array_equal(np.load(first / "inputs.npz")["0"], X)
    assert_array_equal(np.load(second / "inputs.npz")["0"], 2 * X)


def test_a_result_may_decide(tmp_path: Path) -> None:
    step = hx.capture(tmp_path, every=None, when=lambda result: result > 4)(jax.jit(jnp.sum))
    for number in range(8):
        step(jnp.float32(number))
    assert numbers(tmp_path) == [6, 7, 8]
    assert hx.capture(tmp_path / "none", every=None)(jnp.sum)(X) == 15
    assert not (tmp_path / "none").exists()


def test_a_call_that_fails_is_kept_with_its_reason(tmp_path: Path) -> None:
    def fail(_: Any) -> Any:
        raise ValueError("the reader is gone")

    @hx.capture(tmp_path, every=1000)
    def step(x: Any) -> Any:
        return jax.pure_callback(fail, jax.ShapeDtypeStruct((), np.float32), x)

    with pytest.raises(Exception, match="the reader is gone"):
        jax.block_until_ready(step(np.float32(1)))
    failed = [path for path in tmp_path.iterdir() if path.name.endswith(".failed")]
    for folder in failed:  # JAX may tell only when the result is asked for, and then it is not the call that fails
        assert "the reader is gone" in (folder / "error.txt").read_text()
        assert hloexec.load(folder / "module.before.hlo").name == "jit_step"


def test_arguments_of_all_kinds_are_kept(tmp_path: Path) -> None:
    @hx.capture(tmp_path, static_argnames="scale")
    def step(state: dict[str, Any], key: Any, *, scale: int, unused: Any) -> Any:
        return {name: scale * value for name, value in state.items()}, jax.random.split(key)

    state = {"b": jnp.ones(3, jnp.bfloat16), "f": jnp.ones(3, jnp.float8_e4m3fn), "i": np.int8(3), "n": None}
    step({name: value for name, value in state.items() if value is not None}, jax.random.key(3), scale=2, unused=X)
    (golden,) = goldens(tmp_path)
    assert hloexec.check_golden(golden)


def test_neither_module_takes_what_the_function_does_not_use(tmp_path: Path) -> None:
    hx.capture(tmp_path)(jax.jit(lambda x, unused: jnp.tanh(x)))(X, X)
    (golden,) = goldens(tmp_path)
    before, after = (hloexec.load(golden / name) for name in ("module.hlo", "optimized.hlo"))
    assert hloexec.diff(before, after, [X]).verdict != "differ"


def test_each_text_is_kept_once(tmp_path: Path) -> None:
    step = hx.capture(tmp_path)(jnp.cos)
    for number in range(3):
        step(X + number)
    assert len(list((tmp_path / ".modules").iterdir())) == 2
    assert len({os.stat(golden / "module.hlo").st_ino for golden in goldens(tmp_path)}) == 1


def test_what_has_no_room_is_told_and_the_program_goes_on(tmp_path: Path) -> None:
    step = hx.capture(tmp_path, max_bytes="40K")(lambda x: x + 1)
    step(X)
    large = np.zeros(10_000, np.float32)
    with pytest.warns(HloWarning, match=r"call 2 of <lambda> is not kept: its arrays and new modules take about"):
        step(large)
    step(large)
    step(X + 1)
    assert numbers(tmp_path) == [1, 4]
    (notes,) = tmp_path.glob("not-kept-*.txt")
    lines = notes.read_text().splitlines()
    assert [line.partition(":")[0] for line in lines] == ["call 2 of <lambda>", "call 3 of <lambda>"]


def test_what_is_in_the_folder_already_counts(tmp_path: Path) -> None:
    (tmp_path / "other.bin").write_bytes(bytes(40_000))
    with pytest.warns(HloWarning, match=r"call 1 of cos is not kept"):
        hx.capture(tmp_path, max_bytes=40_000)(jnp.cos)(X)


def test_the_module_is_the_one_that_ran_without_arguments_that_nothing_uses(tmp_path: Path) -> None:
    hx.capture(tmp_path)(lambda x, unused, y: (x - y["a"], y["a"]))(X, np.zeros(7), {"a": X + 1})
    (golden,) = goldens(tmp_path)
    record = json.loads((golden / "capture.json").read_text())
    assert record["inputs"] == ["0", "2['a']"]
    assert hloexec.check_golden(golden)
    assert hloexec.check_golden(golden, module=hloexec.load(golden / "optimized.hlo"))


def test_a_decorated_function_is_lowered_as_it_was(tmp_path: Path) -> None:
    step = hx.capture(tmp_path, static_argnames="scale")(lambda x, scale: x * scale)
    assert "stablehlo.multiply" in step.lower(X, scale=3).as_text()
    with pytest.raises(AttributeError, match="colour"):
        step.colour()


def test_inputs_that_a_failed_call_has_overwritten_are_named(tmp_path: Path) -> None:
    calls = []

    def fail_later(x: Any) -> Any:
        calls.append(x)
        if len(calls) > 1:
            raise ValueError("the reader is gone")
        return x

    @hx.capture(tmp_path, every=100, donate_argnums=0)
    def step(x: Any) -> Any:
        return 2 * jax.pure_callback(fail_later, jax.ShapeDtypeStruct(X.shape, X.dtype), x)

    result = step(jnp.asarray(X))
    with pytest.raises(Exception, match="the reader is gone"):
        jax.block_until_ready(step(result))
    for folder in tmp_path.glob("*.failed"):  # JAX may tell only when the result is asked for
        if result.is_deleted():
            assert "Its inputs are not kept" in (folder / "error.txt").read_text()
            assert not (folder / "module.inputs.npz").exists()
        assert hloexec.load(folder / "module.before.hlo").name == "jit_step"


def test_a_call_that_fails_where_it_is_waited_for_is_kept(tmp_path: Path) -> None:
    from hloexec.jax.lowering import Program

    class Late(Program):
        def arrays(self, result: Any) -> Any:
            raise jax.errors.JaxRuntimeError("out of memory")

    step = hx.capture(tmp_path)(lambda x: x + 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Program, "arrays", Late.arrays)
        assert_array_equal(step(X), X + 1)
    (failed,) = tmp_path.glob("*.failed")
    assert "out of memory" in (failed / "error.txt").read_text()
    assert_array_equal(np.load(failed / "module.inputs.npz")["0"], X)


def test_calls_that_are_not_kept_do_not_wait(tmp_path: Path) -> None:
    large = jnp.full((1500, 1500), 1e-4)
    plain = jax.jit(lambda x: jax.lax.fori_loop(0, 8, lambda _, power: power @ x, x))
    kept = hx.capture(tmp_path, every=1000)(plain)
    jax.block_until_ready(plain(large))
    if plain(large).is_ready():
        pytest.skip("this version of JAX returns when the result is there, without hx.capture, too")
    assert not kept(large).is_ready()
    with hx.capture(tmp_path, every=1000):
        jax.block_until_ready(plain(large))
        assert not plain(large).is_ready()


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"every": 0}, InputError, "every"),
        ({"every": 1.5}, InputError, "every"),
        ({"max_bytes": -1}, InputError, "max_bytes"),
        ({"max_bytes": "much"}, InputError, "max_bytes"),
        ({"on_exception": "no"}, InputError, "on_exception"),
        ({"when": 3}, InputError, "when must be a function"),
        ({"colour": 3}, TypeError, "colour"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], error: type[Exception], match: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=match):
        hx.capture(tmp_path, **options)(jnp.cos)


def test_what_is_no_function_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"hx\.capture keeps calls of a function of JAX, not of float"):
        hx.capture(tmp_path)(3.0)


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "captured").touch()
    with pytest.raises(InputError, match="is a file; hx"):
        hx.capture(tmp_path / "captured")


SHARDED = """
import os, sys
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import hloexec.jax as hx
mesh = Mesh(np.array(jax.devices()), "d")
x = jax.device_put(jnp.arange(64.0).reshape(16, 4), NamedSharding(mesh, P("d")))
hx.capture(sys.argv[1])(jax.jit(lambda x: (jnp.tanh(x @ x.T).sum(axis=0), x), donate_argnums=0))(x)
"""


def test_arrays_on_several_devices_are_kept_whole_and_once(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", SHARDED, str(tmp_path)], check=True)
    (golden,) = goldens(tmp_path)
    with np.load(golden / "expected.npz") as expected:
        assert {key: expected[key].shape for key in expected.files} == {"0": (16,), "1": (16, 4)}
    record = json.loads((golden / "golden.json").read_text())
    assert (record["partitions"], record["results_per_device"]) == (8, 1)
    assert hloexec.check_golden(golden)


LOOP = """
import sys
import jax.numpy as jnp, jax
import hloexec.jax as hx
step = jax.jit(lambda x: jnp.tanh(x @ x))
x = jnp.ones((64, 64))
with hx.capture(sys.argv[1]):
    print("ready", flush=True)
    for _ in range(60):
        x = step(x)
    print("done", flush=True)
    sys.stdin.read()
"""

CHECK = """
import sys
sys.modules["jax"] = sys.modules["jaxlib"] = None
import hloexec
checks = [hloexec.check_golden(path) for path in sys.argv[1:]]
print(len(checks), all(checks))
"""


@pytest.mark.slow
def test_of_a_process_that_is_killed_whole_folders_stay(tmp_path: Path) -> None:
    for number in range(3):
        folder = tmp_path / str(number)
        command = [sys.executable, "-c", LOOP, str(folder)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None and process.stdout.readline()
            while process.poll() is None and (not folder.exists() or len(goldens(folder)) < 1 + 2 * number):
                time.sleep(0.003)
            process.send_signal(signal.SIGKILL)
        kept = [str(golden) for golden in goldens(folder)]
        assert all((Path(golden) / name).exists() for golden in kept for name in ("expected.npz", "capture.json"))
        done = subprocess.run([sys.executable, "-c", CHECK, *kept], capture_output=True, text=True, check=True)
        assert done.stdout.split() == [str(len(kept)), "True"]  # without JAX
