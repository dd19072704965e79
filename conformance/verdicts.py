"""How often a verdict is wrong: faults that `compare` calls rounding, and rounding that it calls a fault.

The programs are those that are recorded on GPUs, on drawn arguments; in a third of the draws one row of an argument is
10⁴ to 10³⁰ times as large. What rounding really does to an element is taken from `_TRUTH` runs that round at random,
with seeds that no comparison uses. A *fault* moves elements by a multiple of that: one of them, a row, or a leaf; or an
instruction is replaced by another, and what it changes is as far off somewhere. A *clean pair* is the result of the
module as JAX lowers it, and what XLA:CPU gives, or hloexec for the module that XLA:CPU made of it, or hloexec under the
`exact` and `xla-cpu` policies.
"""

from __future__ import annotations

import re
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

import hloexec
from conformance.cell import Array
from hloexec.dtypes import element_type_of
from hloexec.numerics.comparison import Comparison
from hloexec.numerics.leaves import leaves_of
from hloexec.numerics.sampling import measured_spreads
from hloexec.numerics.spread import SAMPLES, Spread
from hloexec.numerics.ulps import wide
from hloexec.ops.common import narrow

__all__ = ["SIZES", "Study", "Tally", "studied", "studies"]

SIZES = (3.0, 10.0, 30.0, 100.0)
"""Of faults, in units of what rounding really does to the element."""
_TRUTH = 40
_OTHER_SEEDS = 1000
_OUTLIERS = 3
"""In one of so many draws there is one."""
_SWAPS = (("add", "subtract"), ("subtract", "add"), ("multiply", "add"), ("maximum", "minimum"), ("divide", "multiply"))


@attrs.define
class Tally:
    """Verdicts of one kind."""

    count: int = 0
    wrong: int = 0
    examples: list[str] = attrs.Factory(list)

    def add(self, is_wrong: bool, example: str) -> None:
        self.count += 1
        self.wrong += is_wrong
        if is_wrong and len(self.examples) < 20:
            self.examples.append(example)


@attrs.define
class Study:
    """What was counted, by kind: faults by (what was moved, by how much, with how many samples), pairs by what they are
    of."""

    faults: dict[tuple[str, float, int], Tally] = attrs.Factory(lambda: defaultdict(Tally))
    pairs: dict[tuple[str, int], Tally] = attrs.Factory(lambda: defaultdict(Tally))
    by_program: dict[str, Tally] = attrs.Factory(lambda: defaultdict(Tally))


def studies(names: Sequence[str], draws: Sequence[int]) -> Iterator[tuple[str, int]]:
    """The programs to look at, and the draws of their arguments."""
    from conformance.gpu_programs import PROGRAMS

    chosen = [name for name, program in PROGRAMS.items() if program.rule == "rounded" and not program.precision]
    for draw in draws:
        for name in names or chosen:
            yield name, draw


def studied(study: Study, name: str, draw: int, faults: int) -> str | None:
    """Take one program into account, with so many faults of each kind and size; what hindered it, if anything did."""
    import jax

    from conformance.gpu_programs import PROGRAMS

    program = PROGRAMS[name]
    rng = np.random.default_rng([draw, len(name), *name.encode()])
    arguments = program.arguments(draw)
    flat, tree = jax.tree.flatten(arguments)
    is_outlying = draw % _OUTLIERS == 0
    if is_outlying:
        flat = _with_outlier(flat, rng)
    arguments = jax.tree.unflatten(tree, flat)
    where = f"{name}, draw {draw}"
    try:
        with warnings.catch_warnings(), jax.default_matmul_precision("highest"):
            warnings.simplefilter("ignore")
            lowered = jax.jit(program.function, keep_unused=True).lower(*arguments)
            module = hloexec.from_jax(jax.jit(program.function, keep_unused=True), *arguments)
            compiled = lowered.compile()
            theirs = [np.asarray(leaf) for leaf in jax.tree.leaves(compiled(*arguments))]
            ours = hloexec.run(module, *flat)
            optimized = hloexec.run(hloexec.parse(compiled.as_text()), *flat)
    except (hloexec.HloError, RuntimeError, NotImplementedError) as error:
        return f"{where}: {type(error).__name__} {str(error)[:120]}"
    expected = dict(leaves_of(ours, "expected"))
    if len(theirs) != len(expected):
        return f"{where}: XLA gives {len(theirs)} leaves, not {len(expected)}"
    truth = _truth(module, flat)
    found: Mapping[int, Mapping[str, Spread]] = {
        samples: measured_spreads(module, [list(flat)], samples=samples) for samples in (SAMPLES, 16)
    }
    sides: dict[str, Any] = {
        "XLA:CPU": dict(zip(expected, theirs, strict=True)),
        "XLA:CPU's module": dict(zip(expected, dict(leaves_of(optimized, "")).values(), strict=True)),
        "exact": dict(leaves_of(hloexec.run(module, *flat, numerics="exact"), "")),
        "xla-cpu": dict(leaves_of(hloexec.run(module, *flat, numerics="xla-cpu"), "")),
    }
    for samples, spreads in found.items():
        for kind, actual in sides.items():
            verdict = _compared(actual, expected, module, spreads)
            study.pairs[kind, samples].add(not verdict.agrees, f"{where}: {verdict}")
    for kind, size, actual in _faulty(expected, truth, rng, faults):
        for samples, spreads in found.items():
            verdict = _compared(actual, expected, module, spreads)
            study.faults[kind, size, samples].add(verdict.agrees, where)
            if (size, samples) == (SIZES[1], SAMPLES):
                study.by_program[name].add(verdict.agrees, where)
    for actual in _mutated(module, flat, expected, truth, rng, faults):
        for samples, spreads in found.items():
            verdict = _compared(actual, expected, module, spreads)
            study.faults["instruction", SIZES[1], samples].add(verdict.agrees, where)
    return None


def _compared(
    actual: Mapping[str, Array], expected: Mapping[str, Array], module: hloexec.Module, spreads: Mapping[str, Spread]
) -> Comparison:
    return hloexec.compare(actual, expected, module=module, spreads=spreads)


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
