"""A program of a seed: its parameters, what may come next, its results and its inputs."""

from math import prod
from typing import Any

import numpy as np

from tests.plan.random_programs import (
    arithmetic,
    callees,
    control_flow,
    exchanges,
    fusions,
    indexing,
    layouts,
    libraries,
    movement,
    numbers,
    rarities,
    states,
    windows,
)
from tests.plan.random_programs.writing import (
    INTEGERS,
    SHAPES,
    STORAGE,
    UNSIGNED,
    Body,
    Dims,
    Maker,
    RandomProgram,
    Value,
    Writer,
)

_ANYWHERE: list[Maker] = [
    *[arithmetic.elementwise] * 7, *[movement.transpose] * 3, *[arithmetic.reduce] * 3, *[arithmetic.dot] * 3,
    *[movement.move] * 3, *[arithmetic.turned_sum] * 2, movement.update, movement.select, movement.convert,
    arithmetic.cumulate, arithmetic.by_rows, movement.scatter, movement.gather, movement.sort, arithmetic.convolve,
    arithmetic.draw, arithmetic.mixed, arithmetic.element_by_element, arithmetic.again, *[movement.bitcast] * 2,
]  # fmt: skip
"""What stands here several times comes so much more often."""

_OPTIMIZED: list[Maker] = [
    *[layouts.copy_to_layout] * 2, *[layouts.transpose_as_bitcast] * 2, *[layouts.reinterpret] * 3,
    *[fusions.update_in_fusion] * 3, fusions.copy_pair, windows.pad_any, windows.reduce_windows,
    windows.select_and_scatter, windows.convolve_any, indexing.reduce_pair, indexing.sort_pair, indexing.top,
    indexing.gather_any, indexing.scatter_any, indexing.dot_batches, rarities.empty, rarities.bounded, rarities.clamp,
    rarities.convert_any, rarities.bits_of, rarities.complex_parts, rarities.count_up, rarities.round_to,
    rarities.barrier, *[numbers.edge] * 3, *[numbers.convert_chain] * 2, numbers.complex_chain, *[numbers.rarer_function] * 2,
    *[numbers.indices] * 2, numbers.long_chain, states.mapped, states.reduce_many, states.sort_keys, states.random_bits,
    libraries.gemm, libraries.largest, libraries.library_sort, libraries.annotation, libraries.transform,
    libraries.factors, libraries.normalise, libraries.scan, *[callees.reduce_by] * 2, callees.sort_by,
    callees.dot_as_asked, callees.groups,
]  # fmt: skip
"""What programs have besides that look like optimized dumps."""


def random_program(seed: int, *, length: int = 12, devices: int | None = None) -> RandomProgram:
    """The program of a seed: some `length` steps, for as many devices as asked (else mostly one, at times several)."""
    if devices is None:
        devices = (1, 1, 1, 1, 1, 1, 2, 4)[seed % 8]
    return _written(Writer(seed, devices, _makers), length)


def _written(writer: Writer, length: int) -> RandomProgram:
    main = Body(writer, "main")
    sizes = SHAPES if writer.chance(0.5) else [dims for dims in SHAPES if prod(dims) > 2000]
    shapes = [(writer.pick(writer.kinds), writer.pick(sizes)) for _ in range(writer.number(2, 5))]
    inputs = []
    for number, (kind, dims) in enumerate(shapes):
        main.emit(kind, dims, f"parameter({number})")
        inputs.append(_numbers(writer, kind, dims))
    main.aside("s32", (), f"parameter({len(shapes)})")
    trips = main.lines[-1].split()[0]
    writer.trips = Value(trips, "s32", ())
    inputs.append(np.array(writer.random.integers(0, 40), np.int32))
    writer.fill(main, length)
    found = _results(writer, main)
    shape = f"({', '.join(value.shape for value in found)})"
    text = main.finish(f"tuple({', '.join(value.name for value in found)})", shape)
    partitions = f", num_partitions={writer.devices}" if writer.devices > 1 else ""
    module = f"HloModule random{partitions}\n\n" + "\n".join([*writer.computations, text])
    rows = [list(inputs)]
    kinds = [*(kind for kind, _ in shapes), "s32"]
    for _ in range(1, writer.devices):
        same = writer.chance(0.5)
        rows.append(
            [
                entry if same or not entry.ndim else _numbers(writer, kind, entry.shape)
                for entry, kind in zip(inputs, kinds, strict=True)
            ]
        )
    return RandomProgram(module, rows)


def _makers(writer: Writer) -> list[Maker]:
    """What may come next."""
    found = [*_ANYWHERE]
    if writer.depth < 2:
        found += [control_flow.call, control_flow.loop, control_flow.conditional]
    if writer.depth == 0:
        found += [control_flow.loop, control_flow.loop]
    if writer.is_optimized:
        found += _OPTIMIZED
        if writer.depth < 2:
            found += [*[fusions.several_results] * 3, fusions.asynchronous, *[states.branches] * 2]
            found += [*[states.swaps] * 2, *[states.nested_loops] * 2, *[states.rows_of_a_loop] * 3]
    if writer.devices > 1 and writer.is_in_step:
        found += [exchanges.exchange, exchanges.exchange, exchanges.device_number]
        found += [exchanges.collective] * 3
    return found


def _results(writer: Writer, body: Body) -> list[Value]:
    """Some of a body's values, the last among them."""
    count = min(len(body.values), 10)
    chosen = {len(body.values) - 1, *map(int, writer.random.integers(0, len(body.values), count))}
    return [body.values[number] for number in sorted(chosen)]


def _numbers(writer: Writer, kind: str, dims: Dims) -> np.ndarray[Any, Any]:
    if kind in INTEGERS or kind == "pred":
        low, high = (0, 10 if kind != "pred" else 2) if kind in UNSIGNED or kind == "pred" else (-8, 8)
        return writer.random.integers(low, high, dims).astype(STORAGE[kind])
    values = writer.random.standard_normal(dims)
    if kind == "c64":
        values = values + 1j * writer.random.standard_normal(dims)
    found = np.asarray(values).astype(STORAGE[kind])
    if writer.chance(0.15) and found.size:
        found.reshape(-1)[writer.number(found.size)] = writer.pick([0.0, -0.0, np.inf, 1e-40, 3e4])
    return found
