"""The shrunken training step for sixteen GPUs as a whole: its inputs, and what XLA:CPU makes of its equivalent.

XLA reads how many devices a host has once, so `results_of_xla` runs this module in a process of its own.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np

import hloexec
from conformance import xla
from hloexec.core.ir import Module
from hloexec.core.values import Value
from tests.dumps.devices import ROOT, flat
from tests.dumps.mixture_of_experts import elided_constants
from tests.dumps.test_mixture_of_experts import DEVICES, whole_inputs

_ELIDED = re.compile(r"(?m)^(\s+%([\w.\-]+) = \S+ constant\()\{\.\.\.\}")
_FLAGS = {"xla_disable_hlo_passes": "reshape-mover"}
"""This pass turns the weights of the embedding and of the logits around, which XLA:CPU then gathers in the wrong order
(docs/differences.md, `all-gather`)."""


def filled(module: Module) -> Module:
    """The module with the tables that the dump elides."""
    tables = elided_constants()

    def table(found: re.Match[str]) -> str:
        return f"{found[1]}{{{', '.join(map(str, tables[found[2]]))}}}"

    return hloexec.parse(_ELIDED.sub(table, hloexec.format(module)))


def first_step_inputs(module: Module) -> list[Value]:
    """Random parameters and data of all devices together, and moments and counts that are 0 as before the first step.

    The new moments are then the gradients, to which random ones would add numbers a thousand times as large.
    """
    inputs = whole_inputs(module)
    for number, parameter in enumerate(module.entry.parameters):
        assert parameter.metadata is not None
        if "opt_state" in parameter.metadata.op_name:
            inputs[number] = np.zeros_like(inputs[number])
    return inputs


def results_of_xla(path: Path, like: tuple[Value, ...]) -> tuple[Value, ...]:
    """What XLA:CPU makes of the first step, with the types of other results."""
    target = path.with_suffix(".npz")
    flags = f"--xla_force_host_platform_device_count={DEVICES} --xla_allow_excess_precision=false"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "tests.shrinking.whole_step", str(path), str(target)]
    subprocess.run(command, check=True, cwd=ROOT, env=environment)
    with np.load(target) as stored:
        return tuple(
            tuple(stored[f"{device}_{number}"].astype(leaf.dtype) for number, leaf in enumerate(flat(value)))
            for device, value in enumerate(like)
        )


def _main(source: str, target: str) -> None:
    module = hloexec.load(source)
    assert module.source is not None
    compiled = xla.compile_hlo(xla.equivalent_module(module.source), DEVICES, xla_flags=_FLAGS)
    shards = hloexec.shard_inputs(module, first_step_inputs(module))
    results = compiled.run_devices([flat(tuple(inputs)) for inputs in shards])
    # NumPy's files have no bf16, and f32 has all of its numbers.
    np.savez(
        target,
        **{
            f"{device}_{number}": leaf if leaf.dtype.isbuiltin == 1 else leaf.astype(np.float32)
            for device, leaves in enumerate(results)
            for number, leaf in enumerate(leaves)
        },
    )


if __name__ == "__main__":
    _main(*sys.argv[1:])
