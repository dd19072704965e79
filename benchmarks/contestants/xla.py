"""XLA:CPU on StableHLO text, which it takes without a detour, with the flags that JAX's users have.

Inputs are on the device before a run, and results stay there: on a CPU both are memory of this process. A module for
several devices comes as HLO text, and runs as replicas.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.contestants.serving import Stages, peak_growth, per_device, serve, timed_runs


def main(module_path: str, inputs_path: str, devices: int) -> None:
    stages = Stages()
    import_jax(devices)
    import numpy as np

    from benchmarks.arrays import read_arrays, write_arrays

    stages.done("jax")
    place, execute, stated_bytes = prepared(module_path, devices)
    stages.done("compile")
    # Kept, so that the memory of arrays that were read is not there for the first run to use.
    arrays = per_device(read_arrays(inputs_path), devices)
    placed = [place(arrays)]
    stages.done("inputs")

    def run() -> list[Any]:
        return execute(placed[0])

    grown = peak_growth(run)
    stages.done("first run")

    def save(path: str) -> dict[str, Any]:
        results = run()
        write_arrays(Path(path), [np.asarray(leaf[device]) for device in range(devices) for leaf in results])
        return {}

    def take(path: str) -> dict[str, Any]:
        placed[0] = place(per_device(read_arrays(path), devices))
        return {}

    answers = {
        "run": lambda: timed_runs(run),
        "memory": lambda: {"bytes": stated_bytes()},
        "save": save,
        "take": take,
    }
    serve({"stages": stages.seconds, "grown": grown}, answers)


def import_jax(devices: int) -> None:
    """Import JAX and have it find its devices, so many of them."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}" if devices > 1 else ""
    import jax

    jax.config.update("jax_enable_x64", True)
    jax.local_devices()


_Prepared = tuple[Callable[..., Any], Callable[..., list[Any]], Callable[[], int | None]]
"""What places inputs, what executes on them, and what says how many bytes XLA assigns beyond the inputs."""


def prepared(module_path: str, devices: int) -> _Prepared:
    """Compile the module in a file."""
    text = Path(module_path).read_text(encoding="utf-8")
    if "lapack_" in text:
        # Lowering does this where JAX makes the module itself; without it, calls go to null.
        from jaxlib import lapack

        lapack._lapack.initialize()
    return (_stablehlo if module_path.endswith(".mlir") else _hlo)(text, devices)


def _stablehlo(text: str, devices: int) -> _Prepared:
    import jax
    from jaxlib import _jax

    device = jax.local_devices()[0]
    executable = device.client.compile_and_load(text, _jax.DeviceList((device,)), _jax.CompileOptions())

    def place(inputs: list[list[Any]]) -> Any:
        return jax.block_until_ready([jax.device_put(array, device) for array in inputs[0]])

    def execute(placed: Any) -> list[Any]:
        results = executable.execute_sharded(placed).disassemble_into_single_device_arrays()
        jax.block_until_ready([leaf[0] for leaf in results])
        return results  # type: ignore[no-any-return]

    def stated_bytes() -> int:
        stated = executable.get_compiled_memory_stats()
        return int(stated.temp_size_in_bytes + stated.output_size_in_bytes)

    return place, execute, stated_bytes


def _hlo(text: str, devices: int) -> _Prepared:
    from conformance import xla

    compiled = xla.compile_hlo(text, devices, xla_flags={"xla_allow_excess_precision": True})
    return compiled.place, compiled.execute, lambda: None


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
