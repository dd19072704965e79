"""Programs that JAX shards over eight devices give what they give on XLA:CPU, before and after XLA partitions them.

After: every device gets its shards of the arguments and must give its shards of the result. Before: the module still
speaks of whole arrays (with `xla.sdy.*` or `SPMDFullToShardShape` calls where manual regions begin and end); every
device gets and gives them whole.

The bound is that of `tests.jax_functions.comparing`: the program in f64 is R; moving every argument by a unit of the
last place moves R by s; `ROUNDINGS` roundings after one another move the result by as many (s + u |R|), and what cancels
leaves a few units of the largest element. XLA's own results must keep it too.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from tests.devices.programs import MANUAL, PROGRAMS, jax
from tests.jax_functions import comparing
from tests.jax_functions.cases import Case

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(len(jax.devices()) < 8, reason="JAX was started with fewer than eight devices"),
]

ROUNDINGS = 8
PARTITIONERS = ("shardy", "gspmd")
# Where copies differ from device to device there is no whole result to compare with, only each device's own.
UNLIKE = "unlike_copies"


class Bounds:
    """What a program's results may be: the reference in f64, and how far from it."""

    def __init__(self, name: str) -> None:
        function, arguments, _ = PROGRAMS[name]()
        case = Case(name, function, arguments, roundings=ROUNDINGS)
        self.references, sensitivities = comparing._reference(case, arguments, np.float32)
        unit = 2.0**-24
        self.bounds = [
            ROUNDINGS * (moved + unit * np.abs(reference)) + 4 * unit * np.abs(reference).max(initial=0) + 2.0**-126
            for reference, moved in zip(self.references, sensitivities, strict=True)
        ]

    def assert_close(self, leaf: int, values: Any, place: Any, what: str) -> None:
        """`values` are the part of result number `leaf` at `place` (slices)."""
        reference = np.asarray(self.references[leaf])[place]
        assert values.shape == reference.shape, what
        if values.dtype.kind != "f":
            assert_array_equal(values, reference, err_msg=what)
        else:
            comparing._assert_within(values, reference, self.bounds[leaf][place], what)


class Sharded:
    """One program, lowered for a partitioner."""

    def __init__(self, name: str, partitioner: str) -> None:
        function, self.arguments, self.shardings = PROGRAMS[name]()
        self.partitioner = partitioner
        with _partitioner(partitioner):
            self.lowered = jax.jit(function, in_shardings=self.shardings, keep_unused=True).lower(*self.arguments)
        self.before = hloexec.from_jax(self.lowered)
        self.whole = [np.asarray(leaf) for leaf in jax.tree.leaves(self.arguments)]


class Partitioned(Sharded):
    """One program, compiled and run by XLA on eight devices."""

    def __init__(self, name: str, partitioner: str) -> None:
        super().__init__(name, partitioner)
        with _partitioner(partitioner):
            compiled = self.lowered.compile({"xla_allow_excess_precision": False})
        self.after = hloexec.from_jax(compiled)
        placed = jax.device_put(self.arguments, self.shardings)
        self.shards = _per_device(placed)
        results = compiled(*placed)
        self.results = _per_device(results)
        self.places = [
            {shard.device.id: shard.index for shard in leaf.addressable_shards} for leaf in jax.tree.leaves(results)
        ]


@contextmanager
def _partitioner(name: str) -> Iterator[None]:
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", name == "shardy")
    try:
        yield
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)


def _per_device(tree: Any) -> list[list[Any]]:
    """Each device's shard of each leaf, in the order of the devices' numbers."""
    columns = [
        [np.asarray(shard.data) for shard in sorted(leaf.addressable_shards, key=lambda shard: shard.device.id)]
        for leaf in jax.tree.leaves(tree)
    ]
    return [list(row) for row in zip(*columns, strict=True)]


bounds, sharded, partitioned = cache(Bounds), cache(Sharded), cache(Partitioned)


def _leaves(output: Any) -> list[Any]:
    return list(output) if isinstance(output, tuple) else [output]


@pytest.mark.slow_cases("tensor_parallel-shardy", "convergence-shardy")
@pytest.mark.sampled(10)
@pytest.mark.parametrize(
    ("name", "partitioner"),
    [*((name, "shardy") for name in PROGRAMS), *((name, "gspmd") for name in ("data_parallel", "uneven", "nested"))],
)
def test_partitioned_module_gives_every_devices_shards(name: str, partitioner: str) -> None:
    program = partitioned(name, partitioner)
    outputs = hloexec.run_devices(program.after, program.shards)
    assert len(outputs) == 8
    for device, (ours, theirs) in enumerate(zip(map(_leaves, outputs), program.results, strict=True)):
        for leaf, (got, wanted) in enumerate(zip(ours, theirs, strict=True)):
            where = f"leaf {leaf} on device {device}"
            assert got.dtype == wanted.dtype and got.shape == wanted.shape, where
            if name == UNLIKE:
                # a is doubled or left alone, so that the sum alone is rounded.
                assert_array_equal(got, wanted, err_msg=where)
                continue
            place = program.places[leaf][device]
            bounds(name).assert_close(leaf, wanted, place, f"XLA's {where}")
            bounds(name).assert_close(leaf, got, place, f"hloexec's {where}")


@pytest.mark.slow_cases("ring_attention-shardy", "collectives-shardy", "rearrangements-shardy")
@pytest.mark.sampled(10)
@pytest.mark.parametrize("partitioner", PARTITIONERS)
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != UNLIKE])
def test_module_before_partitioning_gives_the_whole_result_everywhere(name: str, partitioner: str) -> None:
    program = sharded(name, partitioner)
    outputs = hloexec.run_devices(program.before, [program.whole], partitions=8)
    assert len(outputs) == 8
    for device, ours in enumerate(map(_leaves, outputs)):
        for leaf, got in enumerate(ours):
            bounds(name).assert_close(leaf, got, (), f"hloexec's leaf {leaf} on device {device}")


@pytest.mark.parametrize("partitioner", PARTITIONERS)
def test_copies_that_differ_stay_different_before_partitioning(partitioner: str) -> None:
    """As on XLA, where nobody checks that what is called a copy is one. Of a·(1 + x) + y the sum alone is rounded."""
    program = sharded(UNLIKE, partitioner)
    outputs = hloexec.run_devices(program.before, [program.whole], partitions=8)
    a = program.whole[0].astype(np.float64)
    for device, (ours, gathered) in enumerate(outputs):
        x, y = divmod(device, 4)
        assert_array_equal(ours, (a * (1 + x) + y).astype(np.float32))
        # The second result's rows come from the four devices along y.
        rows = [(a * (1 + x) + other)[0].astype(np.float32) for other in range(4)]
        assert_array_equal(gathered, rows)


@pytest.mark.slow_cases("uneven")
@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name not in MANUAL])
def test_module_without_manual_regions_runs_on_one_device(name: str) -> None:
    program = sharded(name, "shardy")
    for leaf, got in enumerate(_leaves(hloexec.run(program.before, *program.whole))):
        bounds(name).assert_close(leaf, got, (), f"hloexec's leaf {leaf}")


@pytest.mark.sampled(9)
@pytest.mark.parametrize("partitioner", PARTITIONERS)
@pytest.mark.parametrize("name", MANUAL)
def test_number_of_devices_is_found_in_the_module(name: str, partitioner: str) -> None:
    """The text that JAX lowers to names no number of partitions; meshes, shardings and collectives do."""
    program = sharded(name, partitioner)
    assert program.before.num_partitions == 1
    assert len(hloexec.run_devices(program.before, [program.whole])) == 8


@pytest.mark.slow_cases(
    "fsdp-shardy",
    "pipeline-shardy",
    "pipeline-gspmd",
    "expert_parallel-shardy",
    "expert_parallel-gspmd",
    "ring_attention-gspmd",
    "transformer-shardy",
    "transformer-gspmd",
)
@pytest.mark.sampled(3)
@pytest.mark.parametrize("partitioner", PARTITIONERS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_text_before_partitioning_round_trips(name: str, partitioner: str) -> None:
    module = sharded(name, partitioner).before
    assert hloexec.parse(hloexec.format(module), strict=True) == module


@pytest.mark.slow
def test_programs_have_the_collectives_that_they_are_there_for() -> None:
    opcodes: set[str] = set()
    for name in PROGRAMS:
        module = partitioned(name, "shardy").after
        assert hloexec.parse(hloexec.format(module), strict=True) == module
        opcodes |= {instruction.opcode for computation in module for instruction in computation}
    assert opcodes >= {
        "all-reduce",
        "all-gather",
        "reduce-scatter",
        "all-to-all",
        "collective-permute",
        "partition-id",
        "while",
    }
