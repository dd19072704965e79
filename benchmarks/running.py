"""Running: hloexec against XLA:CPU in the same process, on the same inputs, after loading and compiling."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import side_by_side

__all__ = ["rows"]


def rows(paths: list[Path]) -> Iterator[dict[str, object]]:
    """One row per module: warm times, their ratio, the peak of live bytes beyond the inputs."""
    import hloexec
    from conformance import xla

    for path in paths:
        text = path.read_text()
        module = hloexec.parse(text, filename=path.name)
        inputs = hloexec.random_inputs(module)
        compiled = xla.compile_hlo(xla.equivalent_module(text))
        placed = compiled.place([_leaves(inputs)])

        def on_xla(compiled: Any = compiled, placed: Any = placed) -> object:
            return compiled.fetch(compiled.execute(placed))

        def on_hloexec(module: Any = module, inputs: Any = inputs) -> object:
            return hloexec.run(module, *inputs)

        timings = side_by_side({"hloexec": on_hloexec, "XLA:CPU": on_xla}, turns=7, warm_up=2)
        ratio, low, high = timings["hloexec"].ratio(timings["XLA:CPU"])
        yield {
            "module": path.name,
            "inputs MB": f"{sum(leaf.nbytes for leaf in _leaves(inputs)) / 1e6:.1f}",
            "hloexec ms": f"{timings['hloexec'].median * 1e3:.2f}",
            "XLA:CPU ms": f"{timings['XLA:CPU'].median * 1e3:.2f}",
            "ratio": f"{ratio:.2f}",
            "spread": f"{low:.2f} to {high:.2f}",
        }


def _leaves(value: Any) -> list[np.ndarray[Any, Any]]:
    """The arrays of a value, depth first."""
    if isinstance(value, (tuple, list)):
        return [leaf for element in value for leaf in _leaves(element)]
    return [np.asarray(value)]
