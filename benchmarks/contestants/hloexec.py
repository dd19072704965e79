"""hloexec on HLO text, for one device or, with inputs for each, for several: as its command line runs it.

Like the command line, it starts over with BLAS kernels that suit the processor where NumPy has misjudged it, which is
part of the cold start, and keeps memory that arrays have freed. `benchmarks.contestants.api` shares what follows.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks.contestants.serving import Answers, Stages, peak_growth, per_device, serve, timed_runs


def main(module_path: str, inputs_path: str, devices: int) -> None:
    from hloexec.cli.process import keep_freed_memory, restart_with_better_kernels

    restart_with_better_kernels()
    keep_freed_memory()
    stages = Stages()
    grown, answers = first_output(stages, module_path, inputs_path, devices)
    serve({"stages": stages.seconds, "grown": grown}, answers)


def first_output(stages: Stages, module_path: str, inputs_path: str, devices: int) -> tuple[int | None, Answers]:
    """Import hloexec and run a module on the inputs in a file; by how many bytes that made the process grow at most,
    and what it can be asked for after that.
    """
    import warnings

    import hloexec
    from benchmarks.arrays import read_arrays, write_arrays

    warnings.simplefilter("ignore")
    stages.done("import")
    inputs = per_device(read_arrays(inputs_path), devices)
    stages.done("inputs")
    module = hloexec.load(module_path)
    stages.done("parse")

    from hloexec.engine.exec.running import plan_of

    plan_of(module)
    stages.done("plan")

    def run(**options: Any) -> Any:
        if devices == 1:
            return hloexec.run(module, *inputs[0], **options)
        return tuple(hloexec.run_devices(module, inputs, **options))

    grown = peak_growth(run)
    stages.done("first run")

    def memory() -> dict[str, Any]:
        from hloexec.engine.exec.statistics import Statistics

        statistics = Statistics()
        run(statistics=statistics)
        return {"bytes": statistics.peak_bytes, "instructions": statistics.steps}

    def save(path: str) -> dict[str, Any]:
        write_arrays(Path(path), _leaves(run()))
        return {}

    def work() -> dict[str, Any]:
        from benchmarks.work import work_of

        return work_of(module, inputs[0]).as_json() if devices == 1 else {}

    return grown, {"run": lambda: timed_runs(run), "memory": memory, "save": save, "work": work}


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, tuple):
        return [leaf for element in value for leaf in _leaves(element)]
    return [value]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
