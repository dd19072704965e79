"""What tests of dumps for several devices share: XLA:CPU in a process of its own, as its devices are set at the start."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

from hloexec.core.values import Value

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import sys
import hloexec
from conformance import xla
from tests.dumps.devices import flat
import numpy as np
dump, count, every, target = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
stirred = sys.argv[5:] == ["stirred"]
module = hloexec.load(dump)
compiled = xla.compile_hlo(xla.equivalent_module(module.source), devices=count)
rng = np.random.default_rng(0)
def given(seed):
    leaves = flat(tuple(hloexec.random_inputs(module, seed=seed)))
    if not stirred:
        return leaves
    up = [np.float32(np.inf) * rng.choice([-1, 1], leaf.shape).astype(np.float32) for leaf in leaves]
    return [np.nextafter(leaf, to) if leaf.dtype == np.float32 else leaf for leaf, to in zip(leaves, up)]
placed = compiled.place([given(seed) for seed in range(count)])
results = compiled.execute(placed)
del placed
np.savez(target, **{
    f"{device}_{number}": np.array(leaf[device]).reshape(-1)[::every]
    for number, leaf in enumerate(results) for device in range(count)
})
"""


def flat(value: Value) -> list[np.ndarray]:
    """The arrays of a value."""
    return [leaf for part in value for leaf in flat(part)] if isinstance(value, tuple) else [np.asarray(value)]


def leaves_by_xla(
    dump: Path, devices: int, every: int, target: Path, *, is_stirred: bool = False
) -> dict[str, np.ndarray]:
    """Every so many elements of each result of the equivalent module, by `device_leaf`.

    Device d has the random inputs of seed d; where they are stirred, each f32 is one of its two neighbours.
    """
    flags = f"--xla_force_host_platform_device_count={devices} --xla_allow_excess_precision=false"
    subprocess.run(
        [sys.executable, "-c", PROGRAM, str(dump), str(devices), str(every), str(target)] + ["stirred"] * is_stirred,
        check=True,
        cwd=ROOT,
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
    )
    with np.load(target) as stored:
        return {name: stored[name] for name in stored.files}
