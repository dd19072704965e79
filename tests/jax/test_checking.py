"""`hx.check`: where the first NaN or infinity of a function of JAX comes from, and what is no alarm."""

import inspect
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.errors import HloWarning, InputError
from hloexec.jax.finiteness import are_finite_in_host_memory
from hloexec.tools.golden import read_golden

jax = pytest.importorskip("jax")
jnp = jax.numpy
hx = pytest.importorskip("hloexec.jax")
X = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
INF, NAN = float("inf"), float("nan")


def with_value(index: Any, value: float) -> Any:
    array = X.copy()
    array[index] = value
    return array


def test_the_error_names_instruction_line_iteration_and_values() -> None:
    def step(x: Any) -> Any:
        def body(total: Any, row: Any) -> Any:
            return total + jnp.log(row).sum(), row  # made here

        return {"loss": jax.lax.scan(body, 0.0, x)[0], "x": x}

    lines, start = inspect.getsourcelines(step)
    line = start + next(number for number, text in enumerate(lines) if "made here" in text)
    checked = hx.check(step)
    checked(X)
    with pytest.raises(hx.NonFiniteError) as caught:
        checked(with_value((1, 2), 0.0))
    error = caught.value
    assert (error.call, error.outputs) == (2, ("['loss']",))
    assert (error.search.finding.opcode, error.search.finding.iteration) == ("log", 1)
    assert (__file__, line) in [(place.file, place.line) for place in error.search.finding.source]
    assert "In call 2, step gave NaN or infinities in ['loss']" in str(error)
    assert "iteration 1" in str(error) and f"{__file__}:{line}" in str(error) and "log[2](0) = -inf" in str(error)
    assert isinstance(error, FloatingPointError)


def test_infinities_of_masks_are_searched_once_and_nan_among_them_later_found(monkeypatch: Any) -> None:
    from hloexec.tools import nan_search

    searches = []
    find = nan_search.find_nan
    monkeypatch.setattr(nan_search, "find_nan", lambda *given, **named: searches.append(1) or find(*given, **named))
    checked = hx.check(lambda x, low: jnp.where(x > low, jnp.sqrt(x), -jnp.inf))
    for _ in range(4):
        checked(X, 3.0)
    assert len(searches) == 1
    with pytest.raises(hx.NonFiniteError, match="sqrt"):
        checked(-X, -3.5)


def test_an_infinity_that_a_loop_overwrites_is_not_blamed_for_a_mask() -> None:
    def body(number: Any, _: Any) -> Any:
        return jnp.log(number.astype(jnp.float32))  # of 0, 1 and 2

    @hx.check
    def step(x: Any) -> Any:
        return jax.lax.fori_loop(0, 3, body, 0.0), jnp.where(x > 0, x, -jnp.inf)

    for _ in range(2):
        assert np.asarray(step(np.zeros(2, np.float32))[1]).tolist() == [-np.inf, -np.inf]


def test_nan_of_arguments_is_warned_of_once() -> None:
    checked = hx.check(lambda x: x * 2)
    with pytest.warns(HloWarning, match="arguments hold NaN"):
        checked(with_value((0, 1), NAN))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = checked(with_value((1, 1), NAN))
    assert np.isnan(result[1, 1])


@pytest.mark.parametrize("bad", [NAN, -NAN, INF, -INF])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "complex64", "float8_e5m2"])
def test_one_bad_number_among_many_is_seen_wherever_it_stands(bad: float, dtype: str) -> None:
    from hloexec.jax.checking import Meant, _reduction

    clean = np.tile(np.array([0, -1, jnp.finfo(dtype).max, jnp.finfo(dtype).min], dtype), 1 << 12)
    is_quiet = _reduction(Meant())
    assert is_quiet([jnp.asarray(clean)])
    for place in (0, 7, 4321, clean.size - 1):
        array = clean.copy()
        array[place] = bad
        assert not is_quiet([jnp.asarray(array)])


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", "complex64", "float8_e5m2"])
def test_a_pass_in_host_memory_is_exact_among_the_largest_numbers(bad: float, dtype: str) -> None:
    largest = np.asarray(jnp.finfo(dtype).max, dtype)
    for shape in ((), (3, 7), (1000,), (0,)):
        array = np.full(shape, largest)
        assert are_finite_in_host_memory([jnp.arange(3), jax.random.key(0), jnp.asarray(array)])
        for place in {0, array.size - 1} if array.size else ():
            damaged = array.copy()
            damaged.reshape(-1)[place] = bad
            assert not are_finite_in_host_memory([jnp.asarray(X), jnp.asarray(damaged)])


def test_donated_arguments_are_there_for_the_search() -> None:
    checked = hx.check(jax.jit(lambda state, g: (state / g, g), donate_argnums=0))
    with pytest.raises(hx.NonFiniteError, match="division by zero"):
        checked(jnp.asarray(X), jnp.asarray(with_value((0, 0), 0.0)))


def test_methods_static_arguments_and_keywords() -> None:
    class Model:
        scale = 2.0

        @hx.check(static_argnums=0, static_argnames="power")
        def loss(self, x: Any, power: int = 1, *, shift: Any = 0.0) -> Any:
            return self.scale * jnp.log(x - shift).sum() ** power

    model = Model()
    # On either side: logarithms, none negative, within 2 ULP, five sums, a square, a product: 2 · (4 + 5) + 2 roundings.
    np.testing.assert_allclose(model.loss(X, power=2), 2.0 * np.log(X).sum() ** 2, rtol=2 * 20 * 2.0**-24)
    with pytest.raises(hx.NonFiniteError, match="In call 2, loss"):
        model.loss(X, power=3, shift=1.0)


def test_within_other_functions_of_jax_nothing_is_checked() -> None:
    checked = hx.check(lambda x: jnp.log(x).sum())
    assert jax.jit(checked)(X * 0) == -INF
    np.testing.assert_array_equal(jax.grad(checked)(X), 1 / X)
    np.testing.assert_array_equal(jax.vmap(checked)(X * 0), [-INF, -INF])


def test_typed_keys_and_integers_are_no_alarm() -> None:
    checked = hx.check(lambda key, count: (jax.random.split(key)[0], count + 1, None))
    assert checked(jax.random.key(1), 2)[1] == 3


def differing() -> tuple[Any, Any]:
    """A checked function of which the device, as if it were broken, gives a NaN; and the error."""
    checked = hx.check(lambda x: (x * 2, x + 1))
    result = (jnp.asarray(X * 2), jnp.asarray(with_value((1, 0), NAN)))
    checked._jitted = lambda x: result
    with pytest.raises(hx.NonFiniteError) as caught:
        checked(X)
    return checked, caught.value


def test_nan_of_the_device_alone_is_told_as_a_difference() -> None:
    _, error = differing()
    assert error.search.finding is None and error.outputs == ("[1]",)
    assert "what the device computed differs" in str(error)


def test_a_saved_call_is_a_golden_with_what_the_device_gave(tmp_path: Path) -> None:
    _, error = differing()
    folder = tmp_path / "call.golden"
    error.save(folder)
    check = hloexec.check_golden(folder)
    assert not check.passed
    assert read_golden(folder).expected_source == "the device that JAX ran on"
    with pytest.raises(InputError):
        error.save(folder)
    error.save(folder, replace=True)
    with pytest.raises(InputError, match="golden"):
        error.save(tmp_path / "call")


def test_what_is_not_a_function_or_an_option_is_refused() -> None:
    with pytest.raises(InputError, match="needs a function of JAX, not int"):
        hx.check(3)
    with pytest.raises(TypeError):
        hx.check(lambda x: x, no_such_option=1)


_DEVICES = """
import numpy as np, jax, jax.numpy as jnp, hloexec, hloexec.jax as hx
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()), ("d",))
over = jax.shard_map(lambda x: jax.lax.psum(x, "d") / x, mesh=mesh, in_specs=P("d"), out_specs=P("d"))
checked = hx.check(jax.jit(over, out_shardings=NamedSharding(mesh, P("d"))))
x = np.arange(1, 17, dtype=np.float32)
assert len(checked(x).sharding.device_set) == 8
x[10] = 0
try:
    checked(x)
except hx.NonFiniteError as error:
    print(error)
    error.save("devices.golden")
    print("passed:", hloexec.check_golden("devices.golden").passed)
"""


def test_a_function_on_eight_devices(tmp_path: Path) -> None:
    program = tmp_path / "devices.py"
    program.write_text(_DEVICES)
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
    run = subprocess.run(
        [sys.executable, program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    assert re.search("on device 5: division by zero, 1 of 2 elements", run.stdout), run.stdout
    assert "passed: True" in run.stdout
