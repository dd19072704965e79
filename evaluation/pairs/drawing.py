"""Pairs drawn by a seed: a program, a fault planted somewhere in it, and a disguise; and pairs without a fault.

A fault counts if it changes the results by more than rounding explains. Where it does not, another place is tried, and
then another kind: everything follows from the name of the pair. Those of the table have names, too: `table/07`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from random import Random

import attrs

import hloexec
from evaluation.faults.disguise import Disguised, disguise, shuffle_names
from evaluation.faults.editing import Draft
from evaluation.faults.kinds import KINDS, Kind, flow, places
from evaluation.faults.planting import Planted, plant, without_calls
from evaluation.pairs.table import CLEAN, FAULTY, Case
from evaluation.programs import FRESH, HELD, MOVING, ORDINARY, PROGRAMS, RESERVE
from evaluation.programs.lowering import lowered
from evaluation.programs.outliers import VARIANTS, Reference, reference
from hloexec.core.ir import Instruction, Module
from hloexec.core.values import Value

TABLE = "table"
"""What stands for the program in the names of the table's pairs."""
NUMBERS = range(10)
"""Those of the pairs of a program, where no others are asked for."""
_ORDINARY_TOO = frozenset(("layer_norm_mlp", "decoder_training", "diffusion_step"))
"""Programs of the seen half that are as large."""
_SITES = 4
_MOST_KINDS = 8
_LIMITS = {"max_iterations": 500, "timeout": 20}
_FIRST = frozenset(kind.name for kind in (*flow.KINDS, *places.KINDS))
"""Kinds that some programs have no place for."""
_SCARCE = frozenset(
    (
        "another combiner, another comparator, another device, another rounding, bound of a clamp, branches exchanged, "
        "convolution dilated otherwise, convolution padded otherwise, denormals flushed, integer in fewer bits, "
        "kernel reversed, limit of a loop, not exchanged, other groups, other routes, "
        "padded on the other side, rounded instead of cut, the other transform"
    ).split(", ")
)
"""Kinds that few have a place for, so that those try them first."""


@attrs.frozen
class Pair:
    """Which pair: all else follows."""

    program: str
    number: int
    is_clean: bool = False

    @classmethod
    def of(cls, name: str) -> Pair:
        """The pair of a name; ValueError if it is none, KeyError if there is no such program."""
        program, _, number = name.partition("/")
        if program not in (*PROGRAMS, TABLE):
            raise KeyError(program)
        return cls(program, int(number.removeprefix("clean")), number.startswith("clean"))

    @property
    def name(self) -> str:
        return f"{self.program}/{'clean' if self.is_clean else ''}{self.number:02d}"

    @property
    def half(self) -> str:
        """`seen`, `held`, one of the later sets, `reserve`, `fresh` and `moving`, `ordinary`, or `table`."""
        if self.program == TABLE:
            return TABLE
        if self.program in ORDINARY:
            return "ordinary"
        if self.program in FRESH:
            return "fresh"
        if self.program in RESERVE:
            return "reserve"
        if self.program in MOVING:
            return "moving"
        return "held" if self.program in HELD else "seen"

    @property
    def form(self) -> str:
        """What was done to the module after: `optimized` by XLA:CPU, `disguised`, or also `reordered`."""
        if self.program == TABLE:
            return "reordered" if _case(self).reorders else "disguised"
        if self.is_clean:
            return ("optimized", "reordered", "disguised")[self.number % 3]
        if self.number % 2 or PROGRAMS[self.program].is_bf16:
            return "optimized"
        return ("disguised", "reordered")[self.number // 2 % 2]

    @property
    def variant(self) -> str:
        """Which inputs; a third holds outliers."""
        return VARIANTS[1 + self.number % 2] if self.number % 3 == (0 if self.is_clean else 2) else VARIANTS[0]


@attrs.frozen(eq=False)
class Drawn:
    """A pair of modules."""

    kind: str
    """The kind of fault, or what the table says; empty for a clean pair that is drawn."""
    variant: str
    before: Module
    after: Disguised
    planted: frozenset[str]
    """The instructions of `after` that are new or altered, and those that call a reducer that is."""
    elements: dict[str, set[int]]
    """Of those that are tuples, which elements."""
    inputs_per_device: Sequence[Sequence[Value]]
    agrees: bool
    """Whether results differ by no more than rounding explains, by `compare`."""


def pairs(numbers: range = NUMBERS) -> list[Pair]:
    """The pairs of all programs that have these numbers; the first half of the numbers has clean ones too."""
    clean = numbers[: (len(numbers) + 1) // 2]
    return [
        Pair(program, number, is_clean)
        for program in PROGRAMS
        for is_clean, of_them in ((False, numbers), (True, clean))
        for number in of_them
    ]


def pairs_of_ordinary() -> list[Pair]:
    """A fault and none in each ordinary program, both disguised."""
    programs = [name for name in PROGRAMS if name in ORDINARY or name in _ORDINARY_TOO]
    return [Pair(name, number, bool(number)) for name in programs for number in (0, 2)]


def pairs_of_table() -> list[Pair]:
    """Those that are not drawn, but written."""
    tables = ((False, FAULTY), (True, CLEAN))
    return [Pair(TABLE, number, is_clean) for is_clean, table in tables for number in range(len(table))]


def draw(pair: Pair) -> Drawn:
    """Make a pair; LookupError where no fault that was tried changes the results, or a model is not here."""
    if pair.program == TABLE:
        return _of_table(pair)
    if pair.is_clean:
        return _clean(pair)
    random = Random(pair.name)
    base = _base(pair.program, pair.form == "optimized")
    for kind in _kinds(pair):
        sites = list(kind.sites(Draft(base)))
        for site in random.sample(sites, min(len(sites), _SITES)):
            variant = VARIANTS[3] if kind.wants_nan else pair.variant
            planted = _planted(pair, base, kind, site, variant, random)
            if planted is not None:
                after = _after(pair, planted.module)
                names = frozenset(new for new, old in after.origins.items() if old in planted.names)
                if names:
                    inputs = reference(pair.program, variant).inputs_per_device
                    elements = _elements(base, planted, after)
                    before = lowered(pair.program).before
                    return Drawn(kind.name, variant, before, after, names, elements, inputs, agrees=False)
    raise LookupError(f"{pair.name}: nothing that was tried changes the results")


def _case(pair: Pair) -> Case:
    return (CLEAN if pair.is_clean else FAULTY)[pair.number]


def _of_table(pair: Pair) -> Drawn:
    case = _case(pair)
    before, inputs, after = case.before, case.inputs_per_device, case.after
    planted = frozenset(new for new, old in after.origins.items() if old in case.blamed)
    elements = _elements(without_calls(before), case.planted, after) if case.is_fault else {}
    given = Reference(inputs, hloexec.run_devices(before, inputs), is_finite=True)
    agrees = _agrees(before, given, hloexec.run_devices(after.module, inputs))
    return Drawn(case.name, VARIANTS[0], before, after, planted, elements, inputs, agrees)


def _clean(pair: Pair) -> Drawn:
    program = lowered(pair.program)
    after = _after(pair, program.optimized if pair.form == "optimized" else program.before)
    given = reference(pair.program, pair.variant)
    results = hloexec.run_devices(after.module, given.inputs_per_device)
    agrees = _agrees(program.before, given, results)
    return Drawn("", pair.variant, program.before, after, frozenset(), {}, given.inputs_per_device, agrees)


@cache
def _base(program: str, is_optimized: bool) -> Module:
    found = lowered(program)
    return without_calls(found.optimized if is_optimized else found.before)


def _kinds(pair: Pair) -> Iterator[Kind]:
    """The kinds to try, in turn: each of ten pairs of a program has its own, so that all are met.

    The next ten share them anew, each beginning with another of its own.
    """
    is_optimized = pair.form == "optimized"
    draft = Draft(_base(pair.program, is_optimized))
    fitting = [kind for kind in KINDS if any(True for _ in kind.sites(draft))]
    Random(f"{pair.program} {is_optimized}").shuffle(fitting)
    fitting.sort(key=lambda kind: kind.name not in _SCARCE)
    rare = [kind for kind in fitting if kind.name in _FIRST | _SCARCE]
    common = [kind for kind in fitting if kind.name not in _FIRST | _SCARCE]
    stride = len(NUMBERS) // (1 if PROGRAMS[pair.program].is_bf16 else 2)
    slot = pair.number if stride == len(NUMBERS) else pair.number // 2
    groups = (rare, common) if slot % 2 else (common, rare)
    turn, first = divmod(slot, stride)
    yield from [kind for group in groups for kind in _rotated(group[first::stride], turn)][:_MOST_KINDS]


def _rotated(kinds: Sequence[Kind], count: int) -> Sequence[Kind]:
    """Kinds in turn from another of them on."""
    start = count % max(len(kinds), 1)
    return [*kinds[start:], *kinds[:start]]


def _planted(pair: Pair, base: Module, kind: Kind, site: Instruction, variant: str, random: Random) -> Planted | None:
    """The module with the fault, if that changes the results."""
    given = reference(pair.program, variant)
    before = lowered(pair.program).before
    if pair.form == "optimized" and not _optimized_agrees(pair.program, variant):
        return None
    try:
        planted = plant(base, kind.fault(Draft(base), site, random))
        hloexec.verify(planted.module)
        results = hloexec.run_devices(planted.module, given.inputs_per_device, **_LIMITS)
    except (LookupError, AssertionError, hloexec.HloError):
        return None
    return None if _agrees(before, given, results) else planted


@cache
def _optimized_agrees(program: str, variant: str) -> bool:
    """Whether XLA's optimizations change no more than roundings."""
    given = reference(program, variant)
    results = hloexec.run_devices(lowered(program).optimized, given.inputs_per_device)
    return _agrees(lowered(program).before, given, results)


def _agrees(before: Module, given: Reference, results: Sequence[Value]) -> bool:
    actual, expected, inputs = tuple(results), tuple(given.results), given.inputs_per_device
    if len(results) == 1:
        return bool(hloexec.compare(actual[0], expected[0], module=before, inputs=inputs[0]).agrees)
    return bool(hloexec.compare(actual, expected, module=before, inputs=inputs).agrees)


def _after(pair: Pair, module: Module) -> Disguised:
    seed = Random(f"{pair.name} disguise").randrange(2**30)
    if pair.form == "optimized":
        return shuffle_names(module, seed)
    return disguise(module, seed, reorders=pair.form == "reordered", unrolls=seed % 5 == 0)


def _elements(base: Module, planted: Planted, after: Disguised) -> dict[str, set[int]]:
    """Which elements of tuples are others than before."""
    old, new = Draft(base), Draft(planted.module)
    changed: dict[str, set[int]] = {}
    for name in planted.names:
        if name in old and name in new and new[name].opcode == "tuple":
            both = zip(old[name].operands, new[name].operands, strict=True)
            changed[name] = {number for number, (one, other) in enumerate(both) if one != other}
    return {name: changed[origin] for name, origin in after.origins.items() if origin in changed}
