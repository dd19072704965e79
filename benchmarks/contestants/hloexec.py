"""hloexec on HLO text, for one device or, with inputs for each, for several.

Like the command line, it starts over with BLAS kernels that suit the processor where NumPy has misjudged it, which is
part of the cold start, and keeps memory that arrays have freed.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks.contestants.serving import Stages, peak_growth, per_device, serve, timed_runs


def main(module_path: str, inputs_path: str, devices: int) -> None:
    from hloexec.cli.allocator import keep_freed_memory
    from hloexec.cli.kernels import restart_with_better_kernels

    restart_with_better_kernels()
    keep_freed_memory()
    stages = Stages()
    import warnings

    import hloexec
    from benchmarks.arrays import read_arrays, write_arrays

    warnings.simplefilter("ignore")
    stages.done("import")
    inputs = per_device(read_arrays(inputs_path), devices)
    stages.done("inputs")
    module = hloexec.load(module_path)
    stages.done("parse")

    from hloexec.exec.running import plan_of

    plan_of(module)
    stages.done("plan")

    def run(**options: Any) -> Any:
        if devices == 1:
            return hloexec.run(module, *inputs[0], **options)
        return tuple(hloexec.run_devices(module, inputs, **options))

    grown = peak_growth(run)
    stages.done("first run")

    def memory() -> dict[str, Any]:
        from hloexec.exec.statistics import Statistics

        statistics = Statistics()
        run(statistics=statistics)
        return {"bytes": statistics.peak_bytes, "instructions": statistics.steps}

    def save(path: str) -> dict[str, Any]:
        write_arrays(Path(path), _leaves(run()))
        return {}

    answers = {"run": lambda: timed_runs(run), "memory": memory, "save": save}
    serve({"stages": stages.seconds, "grown": grown}, answers)


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, tuple):
        return [leaf for element in value for leaf in _leaves(element)]
    return [value]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
