"""hloexec through its API in a process that has imported JAX, as JAX's users have it; XLA:CPU runs there, too.

Nothing is chosen for hloexec: no BLAS kernels, no settings of the allocator, and the threads of JAX are beside its own.
JAX comes first, so that NumPy is loaded before hloexec is imported. XLA:CPU compiles its module when it is asked to,
after hloexec's first output.
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.contestants.hloexec import first_output
from benchmarks.contestants.serving import Stages, per_device, serve, timed_runs
from benchmarks.contestants.xla import import_jax, prepared


def main(module_path: str, inputs_path: str, devices: int) -> None:
    stages = Stages()
    import_jax(devices)
    stages.done("jax")
    grown, answers = first_output(stages, module_path, inputs_path, devices)

    def compile_peer(path: str) -> dict[str, Any]:
        from benchmarks.arrays import read_arrays

        place, execute, _ = prepared(path, devices)
        placed = place(per_device(read_arrays(inputs_path), devices))
        answers["run xla"] = lambda: timed_runs(lambda: execute(placed))
        return {}

    answers["compile xla"] = compile_peer
    serve({"stages": stages.seconds, "grown": grown}, answers)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
