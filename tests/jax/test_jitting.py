"""`hx.jit`: functions of JAX that hloexec runs. JAX says what they compute, and what they print."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from hloexec.errors import InputError, UnsupportedError

jax = pytest.importorskip("jax")
jnp = jax.numpy
hx = pytest.importorskip("hloexec.jax")
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def same(actual: Any, expected: Any) -> None:
    """The same structure, types and bits."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for ours, theirs in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert jax.typeof(ours) == jax.typeof(theirs)
        if jnp.issubdtype(ours.dtype, jax.dtypes.prng_key):
            ours, theirs = jax.random.key_data(ours), jax.random.key_data(theirs)
        assert_array_equal(np.asarray(ours), np.asarray(theirs))


def test_arguments_and_results_are_nested_as_those_of_the_function() -> None:
    def step(state: dict[str, Any], pair: tuple[Any, Any], *, scale: Any = 2.0, none: Any = None) -> Any:
        return {"a": state["b"] * scale + pair[0], "none": none, "pair": (pair[1], [state["a"]])}

    arguments = ({"a": X, "b": np.int32(3)}, (1.5, jnp.float16(2)))
    same(hx.jit(step)(*arguments), jax.jit(step)(*arguments))
    same(hx.jit(step)(*arguments, scale=np.float32(3)), jax.jit(step)(*arguments, scale=np.float32(3)))


@pytest.mark.parametrize(
    "options",
    [
        {"static_argnums": (1, 2)},
        {"static_argnames": ("power", "name")},
        {"static_argnums": (1, 2), "static_argnames": "name power".split()},
    ],
)
def test_static_arguments_are_part_of_the_signature(options: dict[str, Any]) -> None:
    def function(x: Any, power: int, name: str) -> Any:
        return x**power if isinstance(power, int) and name == "power" else x

    jitted = hx.jit(function, **options)
    same(jitted(X, 2, "power"), jnp.asarray(X * X))
    same(jitted(X, 3, name="power"), jnp.asarray(X * X * X))
    same(jitted(X, power=3, name="none"), jnp.asarray(X))


def test_what_a_jitted_function_was_jitted_with_holds() -> None:
    function = jax.jit(lambda x, count: x * count, static_argnums=1, donate_argnums=0)
    x = jnp.asarray(X)
    same(hx.jit(function)(x, 3), jnp.asarray(X * 3))
    same(hx.jit(function)(x, 3), jnp.asarray(X * 3))  # nothing was donated


def test_results_have_weak_types_where_those_of_jax_have() -> None:
    for function in (lambda x: (x * 2, -x), lambda x: x + 1.5, lambda x: x * np.float32(2)):
        same(hx.jit(function)(3), jax.jit(function)(3))


def test_typed_keys_come_back_as_keys() -> None:
    same(hx.jit(jax.random.split)(jax.random.key(7)), jax.random.split(jax.random.key(7)))


def test_unused_arguments_and_closed_over_arrays_count() -> None:
    large = jnp.arange(1000.0)
    same(hx.jit(lambda x, unused: large[3] + x)(jnp.float32(1), X), jnp.float32(4))


def test_python_functions_are_called_back_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    from jax.experimental import io_callback

    calls: list[float] = []

    def note(x: Any) -> Any:
        calls.append(float(x))
        return np.float32(len(calls))

    def function(x: Any) -> Any:
        shape = jax.ShapeDtypeStruct((), np.float32)
        doubled = jax.pure_callback(lambda value: value * 2, shape, x)
        jax.debug.print("first {}", doubled, ordered=True)
        counts = [io_callback(note, shape, doubled + number, ordered=True) for number in range(3)]
        jax.debug.print("last", ordered=True)
        return counts

    same(hx.jit(function)(jnp.float32(4)), [jnp.float32(number) for number in (1, 2, 3)])
    assert calls == [8, 9, 10]
    assert capsys.readouterr().out.split("\n") == ["first 8.0", "last", ""]


def test_callbacks_are_called_in_each_iteration_and_for_each_row() -> None:
    shape = jax.ShapeDtypeStruct((), np.float32)

    def body(carry: Any, x: Any) -> Any:
        carry = carry + jax.pure_callback(lambda value: value + 1, shape, x, vmap_method="sequential")
        return carry, carry

    function = partial(jax.lax.scan, body)
    same(hx.jit(function)(jnp.float32(0), X[0]), jax.jit(function)(jnp.float32(0), X[0]))
    same(hx.jit(jax.vmap(function))(X[:, 0], X), jax.jit(jax.vmap(function))(X[:, 0], X))


def test_it_decorates_functions_and_methods() -> None:
    class Model:
        scale = 3

        @partial(hx.jit, static_argnums=0, numerics="exact")
        def apply(self, x: Any) -> Any:
            """Docstring."""
            return x * self.scale

    same(Model().apply(X), jnp.asarray(X * 3))
    assert (Model.apply.__name__, Model.apply.__doc__) == ("apply", "Docstring.")


def test_the_policy_is_that_of_the_run() -> None:
    x = np.full((1, 1), 1 + 2**-12, np.float32)
    product = hx.jit(lambda a, b: a @ b, numerics="tf32")
    same(product(x, x), jnp.ones((1, 1)))  # 1 + 2⁻¹² lies halfway between numbers of ten bits, and goes to the even one
    assert hx.jit(lambda a, b: a @ b)(x, x) == np.float32((1 + 2**-12) ** 2)


def test_it_is_lowered_once_for_each_signature() -> None:
    traced = []
    function = hx.jit(lambda x: traced.append(x) or x + 1)
    for argument in (X, X + 1, X.astype(np.int32), np.int32(3)):
        function(argument)
    assert len(traced) == 3
    assert function.module(X) is function.module(X + 1)
    assert function.module(jax.ShapeDtypeStruct((9,), np.float32)).entry.parameter_shapes[0].dimensions == (9,)


def test_tools_look_at_the_last_call(tmp_path: Path) -> None:
    function = hx.jit(lambda x: jnp.log(x).sum())
    with pytest.raises(InputError, match="has not been called yet"):
        function.nan()
    function(np.float32([1, -1]))
    assert function.nan().finding.opcode == "log"
    function(np.float32([1, 2]))
    assert function.nan().finding is None
    assert function.diff(lambda x: jnp.log(x * 1.5).sum()).verdict == "differ"
    assert function.diff(hx.jit(lambda x: jnp.log(x).sum(), numerics="exact")).verdict != "differ"
    assert function.diff(function.module()).verdict == "agree"
    assert [event for event in function.trace(tmp_path / "trace") if event.opcode == "log"]
    assert function.shadow().outputs


def test_what_a_tool_runs_again_tells_nothing_again(capsys: pytest.CaptureFixture[str]) -> None:
    def tell(x: Any) -> Any:
        jax.debug.print("{}", x)
        jax.debug.print("{}", x, ordered=True)
        return jnp.log(x)

    function = hx.jit(tell)
    function(np.float32(0))
    function.nan()
    assert capsys.readouterr().out.split() == ["0.0", "0.0"]


def test_what_jax_traces_is_not_run() -> None:
    function = hx.jit(lambda x: (x * x).sum())
    for transformed in (jax.grad(function), jax.jit(function), jax.vmap(function)):
        with pytest.raises(InputError, match=r"transform first, as in hx\.jit\(jax\.grad\("):
            transformed(X)
    same(hx.jit(jax.grad(function))(X), jnp.asarray(2 * X))  # part of what hloexec runs


@pytest.mark.parametrize("wrong", [3, "sin", X])
def test_what_is_no_function_is_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match=r"hx\.jit needs a function of JAX, not"):
        hx.jit(wrong)


def test_options_are_those_of_runs_and_of_jit() -> None:
    with pytest.raises(UnsupportedError, match="did you mean tf32"):
        hx.jit(jnp.sin, numerics="tf31")
    with pytest.raises(TypeError, match="colour"):
        hx.jit(jnp.sin, colour="red")
    with pytest.raises(hloexec.ResourceError, match="max_iterations"):
        hx.jit(lambda x: jax.lax.while_loop(lambda c: c < 10, lambda c: c + 1, x), max_iterations=3)(0)


@pytest.mark.skipif(not hasattr(jax, "new_ref"), reason="this JAX has no mutable arrays as arguments")
def test_mutable_arrays_are_written_as_arguments_and_where_a_function_closes_over_them() -> None:
    def written(jit: Any) -> Any:
        closed, total, argument = (jax.new_ref(jnp.zeros(size)) for size in ((3,), (), (2,)))

        def add(x: Any, argument: Any, read: Any) -> Any:
            closed[...] += x
            total[...] = closed[...].sum()
            argument[1] = read[0]
            return closed[0], argument[...]

        calls = [jit(add)(X, argument, jax.new_ref(X)) for X in (jnp.arange(3.0), jnp.ones(3))]
        return jax.tree.map(np.asarray, (calls, closed[...], total[...], argument[...]))

    same(written(hx.jit), written(jax.jit))
