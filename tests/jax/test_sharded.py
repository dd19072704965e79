"""`hx.compare_sharded` names what makes many devices compute something else than one; eight are forced on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hloexec import from_jax
from hloexec.engine.devices.topology import device_counts
from hloexec.errors import InputError
from tests.command_line import CommandLine
from tests.devices.programs import P, jax, mesh, numbers

import hloexec.jax as hx  # isort: skip

pytestmark = pytest.mark.skipif(len(jax.devices()) < 8, reason="JAX was started with fewer than eight devices")

jnp, lax = jax.numpy, jax.lax


def _mapped(function: Any, over: Any, ins: Any, outs: Any) -> Any:
    if hasattr(jax, "shard_map"):
        return jax.shard_map(function, mesh=over, in_specs=ins, out_specs=outs, check_vma=False)
    from jax.experimental.shard_map import shard_map

    return shard_map(function, mesh=over, in_specs=ins, out_specs=outs, check_rep=False)


def _line_of(function: Any) -> str:
    """The line after that of the function's `def`, as findings name it."""
    return f"test_sharded.py:{function.__code__.co_firstlineno + 1} in "


def _layer(function: Any) -> tuple[Any, Any, list[Any]]:
    """A layer whose hidden units are divided among `m`."""
    over = mesh(d=2, m=4)
    step = _mapped(function, over, (P("d"), P(None, "m"), P("m")), P("d"))
    return step, over, [numbers(0, 4, 8), numbers(1, 8, 16), numbers(2, 16, 8)]


def _right(x: Any, up: Any, down: Any) -> Any:
    return lax.psum(jnp.tanh(x @ up) @ down, "m")


def test_a_layer_that_is_right_on_many_devices_agrees() -> None:
    step, over, arguments = _layer(_right)
    found = hx.compare_sharded(step, over, *arguments)
    assert found.agrees
    assert (found.cause, found.hlo) == (None, None)


def test_a_sum_over_the_wrong_axis_is_named() -> None:
    def layer(x: Any, up: Any, down: Any) -> Any:
        return lax.psum(jnp.tanh(x @ up) @ down, "d")

    step, over, arguments = _layer(layer)
    found = hx.compare_sharded(step, over, *arguments)
    assert (found.verdict, found.cause) == ("differ", "program")
    assert "all-reduce" in found.hlo
    assert _line_of(layer) in found.source[0]
    assert "the program is wrong" in str(found)


def test_a_sum_that_is_left_out_is_named_with_its_devices() -> None:
    def layer(x: Any, up: Any, down: Any) -> Any:
        return jnp.tanh(x @ up) @ down

    step, over, arguments = _layer(layer)
    found = hx.compare_sharded(step, over, *arguments)
    assert _line_of(layer) in found.source[0]
    assert "an all-reduce over them is missing" in found.reason


def test_a_neighbour_that_is_not_asked_is_named() -> None:
    def smoothed(x: Any) -> Any:
        before = x[-1:]  # not that of the device before
        return jnp.sin(jnp.concatenate([before, x])[:-1] + x)

    over = mesh(d=8)
    found = hx.compare_sharded(_mapped(smoothed, over, P("d"), P("d")), over, numbers(0, 32, 3))
    assert found.verdict == "differ"
    assert _line_of(smoothed) in found.source[0]
    assert "collective-permute" in found.reason


def test_a_function_stays_over_its_own_mesh() -> None:
    step, over, arguments = _layer(_right)
    jitted = jax.jit(step)
    hx.compare_sharded(jitted, over, *arguments)
    for function in (jax.jit(step), jitted):
        assert device_counts(from_jax(function.lower(*arguments))) == (1, 8)


def _trained(total: Any) -> tuple[Any, Any, list[Any]]:
    """A step whose gradients, of a mean over each device's shard, `total` adds up."""

    def step(w: Any, x: Any, y: Any) -> Any:
        gradient = jax.grad(lambda w: ((jnp.tanh(x @ w) - y) ** 2).mean())(w)
        return w - 0.1 * total(gradient), lax.pmean(gradient.sum(), "d")

    over = mesh(d=8)
    mapped = _mapped(step, over, (P(), P("d"), P("d")), (P(), P()))
    return mapped, over, [numbers(0, 6, 4), numbers(1, 16, 6), numbers(2, 16, 4)]


def test_a_mean_over_shards_is_no_fault() -> None:
    step, over, arguments = _trained(lambda gradient: lax.pmean(gradient, "d"))
    assert hx.compare_sharded(step, over, *arguments).agrees


def test_a_sum_of_means_that_nothing_divides_is_named_with_the_number_of_devices() -> None:
    def total(gradient: Any) -> Any:
        return lax.psum(gradient, "d")

    step, over, arguments = _trained(total)
    found = hx.compare_sharded(step, over, *arguments)
    assert (found.verdict, found.cause) == ("differ", "program")
    assert _line_of(total) in found.source[0]
    assert found.reason == "the results are right if it is divided by 8, as a mean over devices is"


def test_means_that_nothing_adds_up_are_named_where_they_are_computed() -> None:
    step, over, arguments = _trained(lambda gradient: gradient)
    found = hx.compare_sharded(step, over, *arguments)
    assert "parts of a sum that nothing adds up" in found.reason
    assert "in _trained.<locals>.step.<locals>.<lambda>" in found.source[0]


def test_a_sum_that_is_divided_as_a_mean_is_named() -> None:
    def layer(x: Any, up: Any, down: Any) -> Any:
        return lax.pmean(jnp.tanh(x @ up) @ down, "m")

    step, over, arguments = _layer(layer)
    found = hx.compare_sharded(step, over, *arguments)
    assert _line_of(layer) in found.source[0]
    assert "it uses 4" in found.reason


def test_a_halo_from_the_wrong_row_is_named() -> None:
    def smoothed(x: Any) -> Any:
        before = lax.ppermute(x[-2:-1], "d", [(place, (place + 1) % 8) for place in range(8)])
        return jnp.sin(jnp.concatenate([before, x])[:-1] + x)

    def reference(x: Any) -> Any:
        return jnp.sin(jnp.concatenate([x[-1:], x])[:-1] + x)

    over = mesh(d=8)
    step = _mapped(smoothed, over, P("d"), P("d"))
    found = hx.compare_sharded(step, over, numbers(0, 32, 3), reference=reference)
    assert _line_of(smoothed) in found.source[0]


def _staged(around: int, last: int) -> tuple[Any, Any]:
    """A pipeline of eight stages that is unrolled, and its reference."""

    def pipeline(w: Any, x: Any) -> Any:
        stage, state, results = lax.axis_index("p"), jnp.zeros_like(x[0]), jnp.zeros_like(x)
        for tick in range(len(x) + 7):
            state = jnp.tanh(jnp.where(stage == 0, x[min(tick, len(x) - 1)], state) @ w[0])
            if tick >= 7:
                results = results.at[tick - 7].set(jnp.where(stage == last, state, 0))
            state = lax.ppermute(state, "p", [(place, (place + around) % 8) for place in range(8)])
        return lax.psum(results, "p")

    def reference(w: Any, x: Any) -> Any:
        for matrix in w:
            x = jnp.tanh(x @ matrix)
        return x

    return pipeline, reference


@pytest.mark.slow
@pytest.mark.parametrize(
    ("around", "last", "reason"),
    [(3, 7, "{0,1},{1,2},{2,3},{3,4},{4,5},{5,6},{6,7},{7,0}"), (1, 6, "the results are right if it uses 7")],
)
def test_what_is_wrong_in_each_step_of_a_pipeline_is_named(around: int, last: int, reason: str) -> None:
    pipeline, reference = _staged(around, last)
    over = mesh(p=8)
    step = _mapped(pipeline, over, (P("p"), P()), P())
    found = hx.compare_sharded(step, over, numbers(0, 8, 4, 4), numbers(1, 2, 3, 4), reference=reference)
    assert reason in found.reason


def test_a_pipeline_is_compared_with_a_reference() -> None:
    pipeline, reference = _staged(1, 7)
    over = mesh(p=8)
    step = _mapped(pipeline, over, (P("p"), P()), P())
    found = hx.compare_sharded(step, over, numbers(0, 8, 4, 4), numbers(1, 2, 3, 4), reference=reference)
    assert found.agrees
    with pytest.raises(InputError, match="reference="):
        hx.compare_sharded(step, over, numbers(0, 8, 4, 4), numbers(1, 2, 3, 4))


def _constrained() -> tuple[Any, Any, list[Any]]:
    over = mesh(d=2, m=4)
    sharding = jax.sharding.NamedSharding

    def step(x: Any, w: Any) -> Any:
        hidden = lax.with_sharding_constraint(jnp.tanh(x @ w), sharding(over, P("d", "m")))
        return hidden @ w.T

    shardings = sharding(over, P("d")), sharding(over, P(None, "m"))
    return jax.jit(step, in_shardings=shardings), over, [numbers(0, 4, 8), numbers(1, 8, 16)]


def test_what_shardings_divide_agrees_with_the_whole() -> None:
    step, over, arguments = _constrained()
    assert hx.compare_sharded(step, over, *arguments).agrees


def test_a_wrong_group_of_the_partitioner_is_its_own_fault() -> None:
    import hloexec
    from hloexec.jax.sharded import lower_sharded
    from hloexec.tools.diffing.sharded import ShardedModules, compare_on_devices

    step, over, arguments = _constrained()
    modules, inputs = lower_sharded(step, over, arguments, {})
    text = hloexec.format(modules.after)
    groups = next(line for line in text.splitlines() if " all-reduce(" in line)
    stated = groups[groups.index("replica_groups=") :].split(", ", 1)[0]
    wrong = groups.replace(stated, "replica_groups={{0,1,2,7},{4,5,6,3}}")
    after = hloexec.parse(text.replace(groups, wrong))
    found = compare_on_devices(ShardedModules(None, modules.before, after), inputs)
    assert found.cause == "partitioner"
    assert "{{0,1,2,7},{4,5,6,3}}" in found.hlo


@pytest.mark.parametrize(
    ("given", "message"),
    [((len, "mesh"), "mesh must be a jax.sharding.Mesh"), ((3, None), "step must be a function of JAX")],
)
def test_what_is_no_function_or_mesh_is_refused(given: tuple[Any, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        hx.compare_sharded(*given)


def test_a_mesh_of_one_device_is_refused() -> None:
    over = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("d",))
    with pytest.raises(InputError, match="the mesh has one device"):
        hx.compare_sharded(jnp.sin, over, np.ones(2))


_FILE = """
import jax
import numpy as np
from tests.devices.programs import mesh

def step():
    over = mesh(d=8)
    P = jax.sharding.PartitionSpec
    kept = dict(mesh=over, in_specs=P("d"), out_specs=P())
    try:
        from jax import shard_map
        kept["check_vma"] = False
    except ImportError:
        from jax.experimental.shard_map import shard_map
        kept["check_rep"] = False
    return shard_map(lambda x: x.sum(0), **kept), over, np.arange(16, dtype=np.float32).reshape(8, 2)

def nothing():
    return None
"""


def test_the_command_line_says_the_same(cli: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "steps.py"
    file.write_text(_FILE)
    record = cli.record("diff --sharded", f"{file}:step", code=1)
    assert (record["verdict"], record["cause"]) == ("differ", "program")
    assert record["source"][0].startswith(f"{file}:16")
    assert "the program is wrong" in cli("diff --sharded", f"{file}:step", code=1)
    assert "must return (step, mesh, *arguments)" in cli.complaint("diff --sharded", f"{file}:nothing")
    assert "expects FILE.py:FUNCTION" in cli.complaint("diff --sharded", file)
    assert "cannot be given, too" in cli.complaint("diff --sharded", f"{file}:step", file)
    assert "give the modules BEFORE and AFTER" in cli.complaint("diff")
