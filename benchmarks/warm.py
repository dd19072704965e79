"""Warm runs of the benchmark's programs: hloexec and XLA:CPU take turns in one process."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import side_by_side

__all__ = ["leaves", "rows", "write"]


def rows(names: Iterable[str], *, scale: float = 1.0, turns: int = 7) -> Iterator[dict[str, object]]:
    """One row per program: the least and the median of the times, and the ratio of both.

    Inputs and results of XLA:CPU stay in its buffers, which are memory of this process: nothing is copied.
    """
    import hloexec
    from benchmarks.programs import hlo_text
    from conformance import xla

    for name in names:
        text = hlo_text(name, scale)
        module = hloexec.parse(text, filename=name)
        inputs = hloexec.random_inputs(module)
        compiled = xla.compile_hlo(text)
        placed = compiled.place([leaves(inputs)])

        def on_xla(compiled: Any = compiled, placed: Any = placed) -> object:
            return compiled.execute(placed)

        def on_hloexec(module: Any = module, inputs: Any = inputs) -> object:
            return hloexec.run(module, *inputs)

        timings = side_by_side({"hloexec": on_hloexec, "XLA:CPU": on_xla}, turns=turns, warm_up=2)
        mine, its = timings["hloexec"], timings["XLA:CPU"]
        ratio, low, high = mine.ratio(its)
        yield {
            "program": name,
            "hloexec ms": f"{mine.best * 1e3:.2f}",
            "XLA:CPU ms": f"{its.best * 1e3:.2f}",
            "ratio of least": f"{mine.best / its.best:.2f}",
            "median ratio": f"{ratio:.2f}",
            "spread": f"{low:.2f} to {high:.2f}",
        }


def write(names: Iterable[str], folder: Path, *, scale: float = 1.0) -> list[Path]:
    """Write each program's module as HLO text to `folder`/NAME.hlo."""
    from benchmarks.programs import hlo_text

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name in names:
        path = folder / f"{name}.hlo"
        path.write_text(hlo_text(name, scale))
        paths.append(path)
    return paths


def leaves(value: Any) -> list[np.ndarray[Any, Any]]:
    """The arrays of a value, depth first."""
    if isinstance(value, (tuple, list)):
        return [leaf for element in value for leaf in leaves(element)]
    return [np.asarray(value)]
