"""How often a verdict is wrong: faults that `compare` calls rounding, and rounding that it calls a fault.

The programs are those that are recorded on GPUs, on drawn arguments; in a third of the draws one row of an argument is
10⁴ to 10³⁰ times as large. What rounding really does to an element is taken from `_TRUTH` runs that round at random,
with seeds that no comparison uses. A *fault* moves elements by a multiple of that: one of them, a row, or a leaf; or an
instruction is replaced by another, and what it changes is as far off somewhere. A *clean pair* is the result of the
module as JAX lowers it, and what XLA:CPU gives, or hloexec for the module that XLA:CPU made of it, or hloexec with
OpenBLAS's kernels for another processor, or under the `exact` and `xla-cpu` policies.
"""

from __future__ import annotations

import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from functools import cache, partial
from itertools import groupby
from multiprocessing import get_context
from typing import Any
from unittest.mock import patch

import attrs
import numpy as np

import hloexec
from conformance.cell import Array
from hloexec.analysis.numerics.leaves import leaves_of
from hloexec.analysis.numerics.measuring import wide
from hloexec.analysis.numerics.sampling.decided import settled
from hloexec.analysis.numerics.sampling.runs import Sampled, sampled
from hloexec.analysis.numerics.sampling.spread import SAMPLES, STAGES
from hloexec.analysis.numerics.tolerances import leaf_chains
from hloexec.core.dtypes import element_type_of
from hloexec.ops.common import narrow
from hloexec.tools.golden.recording import RECORDED_SAMPLES

SIZES = (3.0, 10.0, 30.0, 100.0)
"""Of faults, in units of what rounding really does to the element."""
WAYS: Mapping[str, Sequence[int]] = {
    f"{SAMPLES} samples": (SAMPLES,),
    f"{SAMPLES} to {STAGES[-1]} samples": STAGES,
    f"{RECORDED_SAMPLES} samples": (RECORDED_SAMPLES,),
}
"""How a verdict may come about: from few samples; from more where these leave it open, as in a comparison; and from
those of a golden. After how many runs in all it is given."""
_TRUTH = 40
_OTHER_SEEDS = 1000
_OUTLIERS = 3
"""In one of so many draws there is one."""
_OTHER_KERNELS = "Nehalem"
_SWAPS = (("add", "subtract"), ("subtract", "add"), ("multiply", "add"), ("maximum", "minimum"), ("divide", "multiply"))


@attrs.frozen
class Case:
    """One verdict."""

    where: str
    """The program, and the draw of its arguments."""
    kind: str
    """Of a fault, what was moved; of a clean pair, what the other side is."""
    size: float
    """Of a fault, in units of what rounding does; 0: a clean pair."""
    way: str
    """What it was judged by, one of `WAYS`."""
    samples: int
    """How many runs that round at random were taken."""
    type_name: str
    """The program's element type."""
    roundings: float
    """One after the other on the longest way to the result."""
    is_wrong: bool
    said: str = ""


def studies(names: Sequence[str], draws: Sequence[int]) -> Iterator[tuple[str, int]]:
    """The programs to look at, and the draws of their arguments; KeyError where there is no such program."""
    from conformance.gpu_programs import PROGRAMS

    chosen = [name for name, program in PROGRAMS.items() if program.rule == "rounded" and not program.precision]
    unknown = [name for name in names if name not in chosen]
    if unknown:
        raise KeyError(", ".join(unknown))
    for draw in draws:
        for name in names or chosen:
            yield name, draw


def studied(name: str, draw: int, faults: int) -> Iterator[Case]:
    """The verdicts on one program, with so many faults of each kind and size.

    Raises RuntimeError or NotImplementedError, as JAX does, where it has no kernels for the program on this machine.
    """
    import jax

    from conformance.gpu_programs import PROGRAMS

    program = PROGRAMS[name]
    rng = np.random.default_rng([draw, len(name), *name.encode()])
    arguments = program.arguments(draw)
    flat, tree = jax.tree.flatten(arguments)
    if draw % _OUTLIERS == 0:
        flat = _with_outlier(flat, rng)
    arguments = jax.tree.unflatten(tree, flat)
    where = f"{name}, draw {draw}"
    with warnings.catch_warnings(), jax.default_matmul_precision("highest"):
        warnings.simplefilter("ignore")
        jitted = jax.jit(program.function, keep_unused=True)
        module = hloexec.from_jax(jitted, *arguments)
        compiled = jitted.lower(*arguments).compile()
        theirs = [np.asarray(leaf) for leaf in jax.tree.leaves(compiled(*arguments))]
    expected = dict(leaves_of(hloexec.run(module, *flat), "expected"))
    optimized = dict(leaves_of(hloexec.run(hloexec.parse(compiled.as_text()), *flat), "optimized"))
    sides: dict[str, Any] = {
        "XLA:CPU": dict(zip(expected, theirs, strict=True)),
        "XLA:CPU's optimized module": dict(zip(expected, optimized.values(), strict=True)),
        "other BLAS kernels": _elsewhere().submit(_leaves, hloexec.format(module), flat).result(),
        "exact": dict(leaves_of(hloexec.run(module, *flat, numerics="exact"), "exact")),
        "xla-cpu": dict(leaves_of(hloexec.run(module, *flat, numerics="xla-cpu"), "xla-cpu")),
    }
    truth = _truth(module, flat)
    trials = [(kind, 0.0, actual) for kind, actual in sides.items()]
    trials += _faulty(expected, truth, rng, faults)
    trials += [("instruction", SIZES[1], actual) for actual in _mutated(module, flat, expected, truth, rng, faults)]
    depth = max(chain.roundings for chain in leaf_chains(module).values())

    @cache
    def runs(count: int, has_means: bool) -> Sampled:
        return sampled(module, [list(flat)], samples=count, has_means=has_means)

    for way, counts in WAYS.items():
        for kind, size, actual in trials:
            # A golden keeps no means.
            stages = (runs(count, counts != (RECORDED_SAMPLES,)) for count in counts)
            found = settled(stages, partial(_compared, actual, expected, module))
            samples = max(leaf.tolerance.samples for leaf in found.leaves)
            is_wrong = found.agrees if size else not found.agrees
            yield Case(where, kind, size, way, samples, program.type_name, depth, is_wrong, str(found))


def _compared(
    actual: Mapping[str, Array], expected: Mapping[str, Array], module: hloexec.Module, runs: Sampled
) -> hloexec.Comparison:
    return hloexec.compare(actual, expected, module=module, spreads=runs.spreads)


@cache
def _elsewhere() -> Executor:
    """A process whose OpenBLAS takes the kernels of a processor without fused multiply-adds, where it has them."""
    with patch.dict(os.environ, OPENBLAS_CORETYPE=_OTHER_KERNELS):
        executor = ProcessPoolExecutor(1, get_context("spawn"))
        executor.submit(os.getpid).result()
    return executor


def _leaves(text: str, inputs: Sequence[Array]) -> dict[str, Array]:
    return dict(leaves_of(hloexec.run(hloexec.parse(text), *inputs), ""))


def _with_outlier(flat: Sequence[Array], rng: np.random.Generator) -> list[Array]:
    """Arguments with one row of one of them so much larger."""
    changed = [np.array(array) for array in flat]
    places = [number for number, array in enumerate(changed) if element_type_of(array.dtype).is_floating and array.ndim]
    if places:
        array = changed[int(rng.choice(places))]
        most = 30 if element_type_of(array.dtype).exponent_bits >= 8 else 4
        row = int(rng.integers(len(array)))
        array[row] = narrow(
            wide(array[row : row + 1])[0] * 10.0 ** rng.integers(4, most + 1), element_type_of(array.dtype)
        )
    return changed


def _truth(module: hloexec.Module, inputs: Sequence[Array]) -> dict[str, Array]:
    """The standard deviation of each element of the result's leaves of floats."""
    samples = [
        dict(leaves_of(hloexec.run(module, *inputs, numerics=f"random-rounding:{_OTHER_SEEDS + number}"), ""))
        for number in range(_TRUTH)
    ]
    found = {}
    for label, first in samples[0].items():
        if element_type_of(first.dtype).is_floating:
            with np.errstate(all="ignore"):
                found[label] = np.std([wide(sample[label]) for sample in samples], axis=0, ddof=1)
    return found


def _faulty(
    expected: Mapping[str, Array], truth: Mapping[str, Array], rng: np.random.Generator, count: int
) -> Iterator[tuple[str, float, dict[str, Array]]]:
    """The result with elements moved by a multiple of what rounding does to them."""
    usable = {label: _movable(expected[label], scales) for label, scales in truth.items()}
    labels = [label for label, mask in usable.items() if mask.any()]
    for _ in range(count if labels else 0):
        for size in SIZES:
            for kind in ("element", "row", "leaf"):
                label = str(rng.choice(labels))
                mask = usable[label].copy()
                place = np.unravel_index(int(rng.choice(np.flatnonzero(mask))), mask.shape)
                chosen = np.zeros_like(mask)
                chosen[place if kind == "element" else place[:-1] if kind == "row" else ...] = True
                signs = rng.integers(0, 2, mask.shape) * 2 - 1
                entry = element_type_of(expected[label].dtype)
                moves = np.where(mask & chosen, size * truth[label] * signs, 0.0)
                with np.errstate(all="ignore"):
                    moved = narrow(wide(expected[label]) + moves, entry)
                yield kind, size, {**expected, label: moved}


def _movable(expected: Array, scales: Array) -> Array:
    """The elements that rounding moves, by so much that ten times as much is more than one last place."""
    with np.errstate(all="ignore"):
        values = wide(expected)
        step = np.abs(values) * 2.0 ** -element_type_of(expected.dtype).mantissa_bits
        return np.asarray(np.isfinite(values) & np.isfinite(scales) & (scales > 0) & (10 * scales > 4 * step))


def _mutated(
    module: hloexec.Module,
    inputs: Sequence[Array],
    expected: Mapping[str, Array],
    truth: Mapping[str, Array],
    rng: np.random.Generator,
    count: int,
) -> Iterator[dict[str, Array]]:
    """Results of the module with one instruction replaced, where that moves some element by ten of its scales."""
    text = hloexec.format(module)
    places = [
        (match.start(1), match.end(1), new)
        for old, new in _SWAPS
        for match in re.finditer(rf"= (?:f32|bf16|f16)\[\S*? ({old})\(", text)
    ]
    rng.shuffle(places)
    found = 0
    for start, end, new in places[: 3 * count]:
        changed = text[: int(start)] + new + text[int(end) :]
        try:
            actual = dict(leaves_of(hloexec.run(hloexec.parse(changed), *inputs), ""))
        except hloexec.HloError:
            continue
        with np.errstate(all="ignore"):
            is_fault = any(
                bool(
                    (np.abs(wide(actual[label]) - wide(expected[label])) > 10 * scales)[
                        _movable(expected[label], scales)
                    ].any()
                )
                for label, scales in truth.items()
            )
        if is_fault:
            yield actual
            found += 1
            if found == count:
                return


def markdown(cases: Sequence[Case]) -> str:
    """The tables of the page."""
    parts = []
    faults = [case for case in cases if case.size]
    pairs = [case for case in cases if not case.size]
    at_ten = [case for case in faults if case.size == SIZES[1]]
    for title, chosen, key in (
        ("Missed faults by size", faults, lambda case: f"{case.size:g}"),
        ("Missed faults of size 10 by location", at_ten, lambda case: case.kind),
        ("Missed faults of size 10 by element type", at_ten, lambda case: case.type_name),
        ("Missed faults of size 10 by number of successive roundings", at_ten, _depth),
        ("False alarms by source of the other result", pairs, lambda case: case.kind),
        ("False alarms by element type", pairs, lambda case: case.type_name),
        ("False alarms by number of successive roundings", pairs, _depth),
    ):
        parts.append(_table(title, chosen, key))
    parts.append(_runs_table([case for case in cases if len(WAYS[case.way]) > 1]))
    return "\n\n".join(parts) + "\n"


def _depth(case: Case) -> str:
    low = next(limit for limit in (1000, 100, 30, 10, 0) if case.roundings >= limit)
    return f"{low} or more"


def _table(title: str, cases: Sequence[Case], key: Callable[[Case], str]) -> str:
    lines = [f"| {title} | {' | '.join(WAYS)} |", "| --- |" + " ---: |" * len(WAYS)]
    groups = list(dict.fromkeys(map(key, cases)))
    if all(group.split()[0].replace(".", "").isdecimal() for group in groups):
        groups.sort(key=lambda group: float(group.split()[0]))
    for group in [*groups, "all"]:
        row = []
        for way in WAYS:
            own = [case for case in cases if case.way == way and (group == "all" or key(case) == group)]
            wrong = sum(case.is_wrong for case in own)
            row.append(f"{wrong} of {len(own)} ({100 * wrong / max(1, len(own)):.2g} %)")
        lines.append(f"| {group} | {' | '.join(row)} |")
    return "\n".join(lines)


def _runs_table(cases: Sequence[Case]) -> str:
    """How many runs the verdicts took, by what they are on."""
    lines = [f"| Samples taken | {' | '.join(map(str, STAGES))} |", "| --- |" + " ---: |" * len(STAGES)]
    for group, own in groupby(sorted(cases, key=_group), _group):
        counts = Counter(case.samples for case in own)
        lines.append(f"| {_group_name(*group)} | {' | '.join(str(counts[stage]) for stage in STAGES)} |")
    return "\n".join(lines)


def _group(case: Case) -> tuple[float, str]:
    return case.size, case.kind if case.size else ""


def _group_name(size: float, kind: str) -> str:
    return f"faults of size {size:g}: {kind}" if size else "correct pairs"
