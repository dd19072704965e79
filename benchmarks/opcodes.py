"""Every opcode, and how its cost grows: hloexec beside XLA:CPU in the same process, turn by turn.

A row says nanoseconds per element of the program's square arrays at some 10⁴, 10⁶ and 10⁷ elements, and for
contractions the rate of their multiplications and additions. What is timed is a run of a module of one instruction,
after planning and compiling; XLA's inputs are in place, and its results are not copied.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from benchmarks.opcode_programs import Program, programs
from benchmarks.timing import Timing, side_by_side

_SIDES = {"10⁴": 96, "10⁶": 1024, "10⁷": 3168}


def rows(names: Collection[str] = (), turns: int = 5) -> Iterator[dict[str, object]]:
    """One row per program, slowest beside XLA:CPU last; XLA's columns are empty where it cannot run the opcode."""
    # One device, and XLA's own choice of precision: what its users have. It reads its flags once, at its first use.
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=1 --xla_allow_excess_precision=true"
    measured = [_measured(name, turns) for name in programs() if not names or name in names]
    for _, row in sorted(measured, key=lambda pair: pair[0]):
        yield row


def _measured(name: str, turns: int) -> tuple[float, dict[str, object]]:
    row: dict[str, object] = {"opcode": name}
    ratios = {}
    for label, side in _SIDES.items():
        program = programs(side)[name]
        ours, theirs = _timed(name, program, side, turns)
        row[f"ns/element at {label}"] = f"{ours.median * 1e9 / side**2:.2f}"
        row[f"XLA:CPU at {label}"] = f"{theirs.median * 1e9 / side**2:.2f}" if theirs else ""
        row[f"ratio at {label}"] = f"{ours.ratio(theirs)[0]:.2f}" if theirs else ""
        ratios[label] = ours.ratio(theirs)[0] if theirs else 0.0
        if label == "10⁶":
            row["GFLOP/s"] = f"{program.flops / ours.median / 1e9:.0f}" if program.flops else ""
            row["XLA:CPU GFLOP/s"] = f"{program.flops / theirs.median / 1e9:.0f}" if program.flops and theirs else ""
    return ratios["10⁶"], row


def _timed(name: str, program: Program, side: int, turns: int) -> tuple[Timing, Timing | None]:
    import hloexec
    from conformance import xla

    module = hloexec.parse(program.text)
    inputs = _inputs(name, program, side)
    contestants: dict[str, Any] = {"hloexec": lambda: hloexec.run(module, *inputs, verify=False)}
    try:
        compiled = xla.compile_hlo(program.text, 1)
        placed = compiled.place([inputs])
        contestants["XLA:CPU"] = lambda: compiled.execute(placed)
    except xla.XlaError:
        pass
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        timings = side_by_side(contestants, turns=turns, warm_up=1)
    return timings["hloexec"], timings.get("XLA:CPU")


def _inputs(name: str, program: Program, side: int) -> list[np.ndarray[Any, Any]]:
    """Numbers between 0.1 and 0.9, in the domain of every function; indices within range; matrices well-conditioned."""
    import hloexec

    generator = np.random.default_rng(0)
    inputs = []
    for parameter in hloexec.parse(program.text).entry.parameter_shapes:
        entry, shape = parameter.element_type, parameter.dimensions
        if entry.is_floating or entry.is_complex:
            values = np.asarray(generator.uniform(0.1, 0.9, shape))
            if name in ("cholesky", "triangular-solve"):
                values = values @ values.swapaxes(-1, -2) + shape[-1] * np.eye(shape[-1])
            if name == "acosh":
                values += 1
        elif name == "ragged-dot":
            values = np.full(shape, side // 4)
        elif entry.name == "pred":
            values = generator.integers(0, 2, shape)
        else:
            values = generator.integers(0, 24 if not shape or name.startswith("shift") else side, shape)
        inputs.append(np.asarray(values).astype(entry.storage))
    return inputs
