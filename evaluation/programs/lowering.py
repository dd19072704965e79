"""The modules of a program: as JAX lowers it (and XLA partitions it), and as XLA:CPU optimizes it with its defaults.

The process must have eight devices if a program for several is lowered: see `evaluation.processes.ENVIRONMENT`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import numpy as np

import hloexec
from evaluation.programs import PROGRAMS
from evaluation.programs.devices import mesh
from hloexec.core.ir import Module
from hloexec.core.values import Value


@attrs.frozen(eq=False)
class Lowered:
    """The modules of a program and what they are run on."""

    before: Module
    optimized: Module
    leaves: Sequence[Value]
    """The arguments of the program."""
    shards: Callable[[Sequence[Value]], list[list[Value]]]
    """What each device gets of arguments."""

    @property
    def inputs_per_device(self) -> list[list[Value]]:
        return self.shards(self.leaves)


_WITHOUT_LLVM = {"xla_backend_optimization_level": 0}
"""LLVM's passes come after XLA's, and what they make of a program is not run."""


@cache
def lowered(name: str) -> Lowered:
    """Lower and compile a program; raises ImportError without JAX."""
    import jax

    program = PROGRAMS[name]
    function, arguments = program.make(jax)
    function.__name__ = name
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(arguments)]
    if program.devices == 1:
        jitted = jax.jit(function, keep_unused=True).lower(*arguments)
        optimized = hloexec.from_jax(jitted.compile(_WITHOUT_LLVM))
        return Lowered(hloexec.from_jax(jitted), optimized, leaves, lambda leaves: [list(leaves)])
    spec, named = jax.sharding.PartitionSpec, jax.sharding.NamedSharding
    shardings = tuple(named(mesh(jax), spec(*axes)) for axes in program.specs)
    jitted = jax.jit(function, in_shardings=shardings, keep_unused=True).lower(*arguments)
    before, optimized = _partitioned(jitted)
    devices = mesh(jax).devices.reshape(-1)
    return Lowered(before, optimized, leaves, lambda leaves: _shards(leaves, shardings, devices))


def _partitioned(jitted: Any) -> tuple[Module, Module]:
    """The module after XLA's partitioner, and after all."""
    with tempfile.TemporaryDirectory() as folder:
        options = {
            **_WITHOUT_LLVM,
            "xla_dump_to": folder,
            "xla_dump_hlo_as_text": True,
            "xla_dump_hlo_pass_re": "spmd-partitioning",
            "xla_dump_large_constants": True,
        }
        optimized = hloexec.from_jax(jitted.compile(compiler_options=options))
        (path,) = Path(folder).glob("*after_spmd-partitioning*.txt")
        return hloexec.load(path), optimized


def _shards(leaves: Sequence[Any], shardings: Sequence[Any], devices: Sequence[Any]) -> list[list[Value]]:
    """What each device gets of the arguments."""
    places = [sharding.devices_indices_map(leaf.shape) for leaf, sharding in zip(leaves, shardings, strict=True)]
    return [
        [np.ascontiguousarray(leaf[place[device]]) for leaf, place in zip(leaves, places, strict=True)]
        for device in devices
    ]
