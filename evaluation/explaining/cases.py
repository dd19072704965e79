"""The cases: a program, what is done to its numerics, and which answer is right.

Those of the reserve half are made in `evaluation.explaining.reserve`, of the fresh and blind ones in
`evaluation.explaining.operations`.

A case counts if what is done shows at all: under the policy that is right, the program gives other bits than under
`reference`. Faults are planted, of the kinds that are not numerics; one counts if XLA:CPU's
result with it differs from its result without by more than rounding explains.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from random import Random
from typing import Any

import attrs
import numpy as np

import hloexec
from evaluation.explaining.operations import cases as operations
from evaluation.explaining.operations.halves import HALVES
from evaluation.explaining.operations.halves import half_of as half_by_operations
from evaluation.explaining.operations.visibility import visibility
from evaluation.explaining.programs import INTEGERS, NAMES, half_of, program
from evaluation.explaining.reserve import cases as reserve
from evaluation.explaining.truths import by_xla, contractions, excess, fast, of_passes, rounded_operands
from evaluation.faults.editing import Draft
from evaluation.faults.kinds import KINDS
from evaluation.faults.planting import plant
from hloexec.core.dtypes import element_type_of
from hloexec.core.ir import Module
from hloexec.core.values import Array
from hloexec.tools.results import result_shapes

_NUMERICS = ("bf16", "inexact", "TF32", "bits", "round", "flush", "sum", "kept", "stored", "precision", "cut")
"""Words in the names of kinds of faults that are a matter of numerics."""
_BITS = {"tf32": 10, "bf16": 7}
_FAULTS = 2
"""Of each program."""
_TRIES = 12
_WHOLE = (
    "reference", "exact", "tf32", "tf32x3", "bf16", "bf16x3", "bf16x6", "excess", "narrow-sums", "fast-functions", "ftz",
    "xla-cpu",
)  # fmt: skip
"""The policies that docs/precision.md names."""
_LIMITS = {"max_iterations": 500, "timeout": 20}


@attrs.frozen
class Case:
    """Which case: all else follows."""

    program: str
    kind: str

    @property
    def name(self) -> str:
        return f"{self.program}/{self.kind}"

    @property
    def half(self) -> str:
        if self.program in reserve.NAMES:
            return "reserve"
        return half_by_operations(self.program) or half_of(self.program)


@attrs.frozen(eq=False)
class Truth:
    """What the other side gave: XLA:CPU, or NumPy."""

    module: Module
    inputs: Sequence[Any]
    """Of one device, or of each."""
    expected: Any
    """As `explain` takes it."""
    policy: str | None
    """The policy that is right; None where none is. Where it is `reference`, so is `xla-cpu`: it was XLA:CPU that ran."""
    note: str = ""
    visibility: float | None = None
    """As `evaluation.explaining.operations.visibility` says: below 1, rounding hides the policy. None where not known."""


_KINDS = (
    "reference", "tf32", "bf16", "bf16x3", "bf16x6", "one tf32", "half bf16", "two different", "fast-functions", "excess",
    "xla excess", "narrow-sums", "ftz", *(f"fault {number}" for number in range(_FAULTS)),
)  # fmt: skip


_INTEGER_KINDS = (
    *_KINDS, "fault 2", "fault 3", "bf16 fault 0", "bf16 fault 1", "tf32 fault 0", "damage 0", "damage 1", "bf16 damage 0",
)  # fmt: skip
"""Faults on top of a policy, too; damage is a result of which a part has moved."""


def cases(half: str = "seen", which: str = "floats") -> list[Case]:
    """All cases of one half of the programs, or of another group of them, whether or not they count; `which` is
    `integers` for those with results of integers and preds alone."""
    if which == "integers":
        return [Case(name, kind) for name in INTEGERS if half_of(name) == half for kind in _INTEGER_KINDS]
    if half in HALVES:
        return [Case(name, kind) for name in HALVES[half] for kind in operations.kinds_of(name)]
    if half == "reserve":
        return [Case(name, kind) for name in reserve.NAMES for kind in reserve.kinds_of(name)]
    return [Case(name, kind) for name in NAMES if half_of(name) == half for kind in _KINDS]


def truth(case: Case) -> Truth | None:
    """What the other side gives in a case; None where the case does not count."""
    if case.half == "reserve":
        return _of_reserve(case)
    if case.half in HALVES:
        return _of_operations(case)
    found = program(case.program)
    if "fault" in case.kind or "damage" in case.kind:
        return _faulty(case)
    module, policy, is_excess = _varied(case, Draft(found.module))
    if module is None:
        return None
    if policy != "reference" and same(found.module, found.inputs, policy):
        return None
    leaves = by_xla(module, found.inputs, excess_precision=is_excess)
    return Truth(found.module, found.inputs, _labelled(found.module, leaves), policy)


def _of_reserve(case: Case) -> Truth | None:
    made = reserve.made(case.program, case.kind)
    if made.policy is None:
        if not _finite(made.expected[0]) or all(
            _agrees(made.module, made.inputs, ours, theirs)
            for ours, theirs in zip(made.expected, made.right, strict=True)
        ):
            return None
    elif made.policy != "reference" and same(made.module, made.inputs, made.policy):
        return None
    if len(made.inputs) == 1:
        return Truth(made.module, made.inputs, _labelled(made.module, made.expected[0]), made.policy, made.note)
    expected = tuple(row[0] if len(row) == 1 else tuple(row) for row in made.expected)
    return Truth(made.module, made.inputs, expected, made.policy, made.note)


def _of_operations(case: Case) -> Truth | None:
    """A case counts if the other side gave other bits than with the numerics of the text, and than with one of several
    operations as it was; and if no policy of the whole module gives what a policy of some instructions gives."""
    made = operations.made(case.program, case.kind)
    if made is None:
        return None
    if made.policy is None:
        if not _finite(made.expected) or _agrees(made.module, [made.inputs], made.expected, made.right):
            return None
    elif made.policy != "reference":
        theirs = [] if made.policy in ("xla-cpu", "ftz") else [made.right, *made.simpler]
        named = _leaves(made.module, made.inputs, made.policy)
        ours = (_leaves(made.module, made.inputs, each) for each in (_WHOLE if "," in made.policy else _WHOLE[:1]))
        if any(_is_equal(made.expected, each) for each in theirs) or any(_is_equal(named, each) for each in ours):
            return None
    expected = _labelled(made.module, made.expected)
    shown = visibility(case.program, case.kind, made)
    return Truth(made.module, [made.inputs], expected, made.policy, made.note, shown)


def _leaves(module: Module, inputs: Sequence[Array], policy: str) -> list[Any]:
    result = hloexec.run(module, *inputs, numerics=policy)
    return list(result) if isinstance(result, tuple) else [result]


def _is_equal(ours: Sequence[Array], theirs: Sequence[Array]) -> bool:
    return all(x.tobytes() == y.tobytes() for x, y in zip(ours, theirs, strict=True))


def _labelled(module: Module, leaves: Sequence[Array]) -> dict[str, Array]:
    """What XLA gives has no tuples within tuples: its leaves by the labels of the module's."""
    return dict(zip(result_shapes(module), leaves, strict=True))


def _varied(case: Case, draft: Draft) -> tuple[Module | None, str, bool]:
    """The module that has the numerics, the policy that says so, and whether XLA:CPU is to use excess precision."""
    kind, found = case.kind, program(case.program)
    dots = contractions(draft, "dot")
    everything = contractions(draft, "dot", "convolution")
    # Those XLA:CPU rounds at each step in any case.
    sums = [e.name for e in draft.instructions() if e.opcode == "reduce" and _is_narrow(e.shape)]
    has_narrow = any(_is_narrow(each.shape) for each in draft.instructions())
    if kind == "reference":
        return (None if has_narrow or case.program.startswith("tiny") else draft.module()), kind, False
    if kind == "ftz":
        return (draft.module() if case.program.startswith("tiny") else None), kind, False
    if kind == "narrow-sums":
        return (draft.module() if sums else None), f"reference{_overrides(draft, sums, kind)}", False
    if kind == "fast-functions":
        if has_narrow:
            return None, kind, False
        fast(draft)
        return (draft.module() if draft.touched else None), kind, False
    if kind == "xla excess":
        names = [e.name for e in draft.instructions() if e.opcode == "convert" and _is_narrow(draft.operand(e).shape)]
        overrides = _overrides(draft, names, kind.split()[1]) + _overrides(draft, sums, "narrow-sums")
        if not names or _has_equal_bits(
            _right(case.program)[1], by_xla(draft.module(), found.inputs, excess_precision=True)
        ):
            # XLA:CPU leaves out no rounding here.
            return None, kind, True
        return draft.module(), f"reference{overrides}", True
    if kind == "excess":
        policy = f"{kind}{_overrides(draft, sums, 'excess+narrow-sums')}"
        return (draft.module() if has_narrow and excess(draft) else None), policy, False
    if kind in _BITS:
        for name in everything:
            rounded_operands(draft, name, _BITS[kind])
        return (draft.module() if everything else None), kind, False
    if kind in ("bf16x3", "bf16x6"):
        if not dots or len(dots) < len(everything):
            return None, kind, False
        for name in dots:
            of_passes(draft, name, 7, int(kind[-1]))
        return draft.module(), kind, False
    few, policy = kind.split()
    if len(dots) < 2:
        return None, kind, False
    if few == "two":
        pair = dict(zip(Random(case.name).sample(dots, 2), _BITS, strict=True))
        for name, each in pair.items():
            rounded_operands(draft, name, _BITS[each])
        return (
            draft.module(),
            "reference" + "".join(_overrides(draft, [name], each) for name, each in pair.items()),
            False,
        )
    chosen = Random(case.name).sample(dots, 1 if few == "one" else len(dots) // 2)
    for name in chosen:
        rounded_operands(draft, name, _BITS[policy])
    return draft.module(), f"reference{_overrides(draft, chosen, policy)}", False


def _overrides(draft: Draft, names: Sequence[str], policy: str) -> str:
    """The policy of instructions, as the names of policies have it."""
    return "".join(f",{draft.home(name)}/{name}={policy}" for name in names)


def _is_narrow(shape: object) -> bool:
    return getattr(getattr(shape, "element_type", None), "name", "") in ("bf16", "f16")


def _has_equal_bits(ours: Sequence[Array], theirs: Sequence[Array]) -> bool:
    return all(np.array_equal(x.view(np.uint8), y.view(np.uint8)) for x, y in zip(ours, theirs, strict=True) if x.ndim)


def same(module: Module, inputs: Sequence[Any], policy: str, other: str = "reference") -> bool:
    """Whether two policies give the same bits."""
    results = [tuple(hloexec.run_devices(module, inputs, numerics=each)) for each in (policy, other)]
    return hloexec.compare(*results, atol=0.0).verdict.value == "equal"


@cache
def _right(name: str, policy: str = "") -> tuple[Module, Sequence[Array]]:
    """A program with operands of products that are rounded, and what XLA:CPU makes of it."""
    found = program(name)
    draft = Draft(found.module)
    for product in contractions(draft, "dot", "convolution") if policy else ():
        rounded_operands(draft, product, _BITS[policy])
    module = draft.module() if draft.touched else found.module
    return module, by_xla(module, found.inputs)


def _faulty(case: Case) -> Truth | None:
    """The first fault that shows, of those that the case's name draws."""
    found, random = program(case.program), Random(case.name)
    policy = case.kind.split()[0] if case.kind.split()[0] in _BITS else ""
    module, right = _right(case.program, policy)
    if policy and module is found.module:
        return None
    for note, expected in _moved(right, random) if "damage" in case.kind else _planted(module, found.inputs, random):
        if not _finite(expected) or _agrees(module, found.inputs, expected, right):
            continue
        if case.program in INTEGERS and any(
            _is_equal(expected, _leaves(found.module, found.inputs, each)) for each in _WHOLE
        ):
            continue
        return Truth(found.module, found.inputs, _labelled(found.module, expected), None, note)
    return None


def _planted(module: Module, inputs: Sequence[Any], random: Random) -> Iterator[tuple[str, list[Array]]]:
    """What XLA:CPU makes of a module with one fault or another."""
    kinds = [kind for kind in KINDS if not kind.wants_nan and not any(word in kind.name for word in _NUMERICS)]
    random.shuffle(kinds)
    tries = 0
    for kind in kinds:
        sites = list(kind.sites(Draft(module)))
        if not sites or tries >= _TRIES:
            continue
        tries += 1
        try:
            planted = plant(module, kind.fault(Draft(module), random.choice(sites), random)).module
            hloexec.verify(planted)
            # XLA:CPU would not end where a loop does not.
            hloexec.run(planted, *inputs, **_LIMITS)
            yield kind.name, by_xla(planted, inputs)
        except (LookupError, AssertionError, hloexec.HloError):
            continue


def _moved(right: Sequence[Array], random: Random) -> Iterator[tuple[str, list[Array]]]:
    """Results of which some elements have the values of their neighbours."""
    for _ in range(_TRIES):
        number = random.randrange(len(right))
        flat = right[number].reshape(-1).copy()
        count = max(1, flat.size // random.choice((16, 64, 256, 1024)))
        start = random.randrange(max(1, flat.size - count))
        flat[start : start + count] = np.roll(flat, 1)[start : start + count]
        moved = flat.reshape(right[number].shape)
        yield f"{count} of {flat.size}", [*right[:number], moved, *right[number + 1 :]]


def _finite(leaves: Sequence[Array]) -> bool:
    """Whether most of what floats there are are numbers: else anybody sees that it is a fault."""
    floats = [leaf.astype(np.float64) for leaf in leaves if element_type_of(leaf.dtype).is_floating]
    return all(np.isfinite(leaf).mean() > 0.5 for leaf in floats if leaf.size)


def _agrees(module: Module, inputs: Sequence[Any], faulty: Sequence[Array], right: Sequence[Array]) -> bool:
    """Whether the fault does not show."""
    sides = (_labelled(module, leaves) for leaves in (faulty, right))
    # Rounding is measured on one device.
    options = {"module": module, "inputs": inputs} if module.replica_count * module.num_partitions == 1 else {}
    return bool(hloexec.compare(*sides, **options).agrees)
