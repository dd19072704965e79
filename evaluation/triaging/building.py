"""A folder of modules of which some are faulty: everything follows from a seed.

Clean ones are programs of `evaluation.programs`, as JAX lowers them and disguised or optimized by XLA:CPU (pairs);
networks of random sizes, with what XLA:CPU gives for them (recorded results); and functions of JAX, as HLO and StableHLO.
Faulty ones have one of six causes. What is true of a faulty one is told by XLA:CPU, which runs the program with and
without the fault.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import attrs
import numpy as np

import hloexec
from evaluation.explaining.truths import by_xla, contractions, rounded_operands
from evaluation.faults.disguise import disguise
from evaluation.faults.editing import Draft
from evaluation.faults.kinds import KINDS
from evaluation.faults.planting import plant, without_calls
from evaluation.pairs.drawing import Pair, draw
from evaluation.programs import HELD, LATER, PROGRAMS
from evaluation.programs.lowering import lowered
from hloexec.core.ir import Module
from hloexec.core.values import Array, Value
from hloexec.language import literals
from hloexec.tools.results import result_shapes

_SHOWS = 1e-3
"""A fault shows if XLA:CPU's results differ by so much of their largest element."""
_LIMITS: dict[str, Any] = {"max_iterations": 500, "timeout": 20}


@attrs.frozen
class Mixture:
    """What a folder has: which causes of faults, each so many times, and how many modules without."""

    half: str
    """Of the programs: `seen` or `held`."""
    causes: tuple[str, ...]
    seed: int
    faults_per_cause: int = 5
    pairs: int = 100
    recorded: int = 60
    functions: int = 110


CAUSES = {
    "seen": ("wrong constant", "operands exchanged", "TF32", "flushed denormals", "bf16 operands", "NaN by overflow"),
    "held": ("wrong dimension", "operands exchanged", "TF32", "flushed denormals", "bf16 operands", "NaN by overflow"),
}
_PLANTED = {
    ("seen", "wrong constant"): ("constant scaled", ("multiply",)),
    ("seen", "operands exchanged"): ("operands exchanged", ("subtract",)),
    ("held", "wrong dimension"): ("broadcast along another dimension", ("broadcast",)),
    ("held", "operands exchanged"): ("operands exchanged", ("divide",)),
}
"""Kinds of planted faults: a compiler's fault is in what it does to one opcode."""
_BITS = {"TF32": 10, "bf16 operands": 7}


def build(mixture: Mixture, folder: Path) -> dict[str, str]:
    """Write the modules, and return the cause of each faulty one by its name; the cause of clean ones is ""."""
    folder.mkdir(parents=True)
    truth: dict[str, str] = {}
    for cause in mixture.causes:
        maker = _MAKERS.get(cause) or _planted
        made = 0
        for save in maker(mixture, cause):
            name = f"{mixture.half}/{cause.replace(' ', '_').lower()}_{made}"
            # The name must not tell it.
            name = f"m{Random(f'{mixture.seed} {name}').randrange(10**6):06d}"
            save(folder / name)
            truth[name] = cause
            made += 1
            if made == mixture.faults_per_cause:
                break
        assert made == mixture.faults_per_cause, f"only {made} of {cause}"
    for number, save in enumerate(_clean(mixture)):
        name = f"c{Random(f'{mixture.seed} clean {number}').randrange(10**6):06d}"
        name = f"{('a', 'b/c', 'd')[number % 3]}/{name}"
        save(folder / name)
        truth[name] = ""
    return truth


Save = Callable[[Path], None]


def _saving(
    module: Module, inputs: Sequence[Value] | None, expected: Sequence[Array] | None = None, *, packed: bool = False
) -> Save:
    """Writes a module with what lies beside it."""

    def save(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, ".hlo", hloexec.format(module), packed=packed)
        if inputs is not None:
            literals.save(f"{path}.inputs.npz", tuple(inputs))
        if expected is not None:
            labels = result_shapes(module)
            np.savez(f"{path}.expected.npz", **dict(zip(labels, expected, strict=True)))  # type: ignore[arg-type]

    return save


def _write(path: Path, suffix: str, text: str, *, packed: bool = False) -> None:
    if packed:
        with gzip.open(f"{path}{suffix}.gz", "wt") as file:
            file.write(text)
    else:
        Path(f"{path}{suffix}").write_text(text)


def _saving_pair(before: Module, after: Module, inputs: Sequence[Value] | None) -> Save:
    def save(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, ".before.hlo", hloexec.format(before))
        _write(path, ".after.hlo", hloexec.format(after))
        if inputs is not None:
            literals.save(f"{path}.inputs.npz", tuple(inputs))

    return save


def _programs(half: str) -> list[str]:
    return [
        name
        for name, each in PROGRAMS.items()
        if each.devices == 1 and not each.is_bf16 and name not in LATER and (name in HELD) == (half == "held")
    ]


# Clean ones


def _clean(mixture: Mixture) -> Iterator[Save]:
    yield from _clean_pairs(mixture)
    yield from _clean_recorded(mixture)
    yield from _functions(mixture)


def _clean_pairs(mixture: Mixture) -> Iterator[Save]:
    count, number = 0, 0
    while True:
        for name in _programs(mixture.half):
            if count == mixture.pairs:
                return
            drawn = draw(Pair(name, number, is_clean=True))
            yield _saving_pair(drawn.before, drawn.after.module, drawn.inputs_per_device[0])
            count += 1
        number += 1


def _clean_recorded(mixture: Mixture) -> Iterator[Save]:
    for number in range(mixture.recorded):
        module, inputs = _network(Random(f"{mixture.seed} network {number}"))
        yield _saving(module, inputs, by_xla(module, inputs), packed=number % 3 == 0)


def _network(random: Random) -> tuple[Module, list[Value]]:
    """A network of random sizes, forward or with its gradient."""
    import jax

    jnp = jax.numpy
    sizes = [random.choice((4, 8, 12, 17, 32)) for _ in range(random.randint(2, 4))]
    rows = random.choice((1, 3, 8, 16))
    activation = random.choice((jnp.tanh, jax.nn.relu, jax.nn.gelu, jax.nn.silu, jax.nn.softmax, jnp.sin))
    has_norm, reduces = random.random() < 0.5, random.choice(("mean", "logsumexp", "none", "gradient"))

    def network(x: Any, *weights: Any) -> Any:
        for weight in weights:
            if has_norm:
                x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(((x - x.mean(-1, keepdims=True)) ** 2).mean() + 1e-3)
            x = activation(x @ weight)
        return x if reduces == "none" else jax.nn.logsumexp(x) if reduces == "logsumexp" else x.mean()

    function = jax.grad(network, argnums=1) if reduces == "gradient" else network
    draw_numbers = np.random.default_rng(random.randrange(2**30)).normal
    arguments = [draw_numbers(size=(rows, sizes[0])).astype(np.float32)]
    arguments += [(draw_numbers(size=shape) / np.sqrt(shape[0])).astype(np.float32) for shape in pairwise(sizes)]
    function.__name__ = "network"
    module = hloexec.from_jax(jax.jit(function, keep_unused=True).lower(*arguments))
    return without_calls(module), list(arguments)


def _functions(mixture: Mixture) -> Iterator[Save]:
    """Functions of JAX, compared with XLA:CPU on arguments of their own: three of four as HLO, one as StableHLO."""
    if not mixture.functions:
        return
    import jax

    from tests.jax_functions import lax_table, numpy_table, science_table

    cases = [case for table in (lax_table, numpy_table, science_table) for case in table.CASES]
    cases = [case for case in cases if case.invariants is None and "f32" in case.types]
    chosen = [case for number, case in enumerate(cases) if number % 2 == (mixture.half == "held")]
    Random(f"{mixture.seed} functions").shuffle(chosen)
    assert len(chosen) >= mixture.functions, len(chosen)
    for number, case in enumerate(chosen[: mixture.functions]):
        lowering = jax.jit(case.function, keep_unused=True).lower(*case.arguments)
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(case.arguments)]
        if number % 4 == 3:
            yield _saving_stablehlo(lowering.as_text(), leaves)
        else:
            yield _saving(hloexec.from_jax(lowering), leaves, packed=number % 4 == 2)


def _saving_stablehlo(text: str, inputs: Sequence[Value]) -> Save:
    def save(path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, ".mlir", text)
        literals.save(f"{path}.inputs.npz", tuple(inputs))

    return save


# Faulty ones


def _planted(mixture: Mixture, cause: str) -> Iterator[Save]:
    """Pairs with a fault in the module after, in as many programs as have a place for it."""
    name, opcodes = _PLANTED[mixture.half, cause]
    (kind,) = (each for each in KINDS if each.name == name)
    random = Random(f"{mixture.seed} {cause}")
    programs = _programs(mixture.half)
    random.shuffle(programs)
    tried = set[tuple[str, str]]()
    for program in programs * mixture.faults_per_cause:
        base, found = _base(program), lowered(program)
        sites = [site for site in kind.sites(Draft(base)) if site.opcode in opcodes]
        for site in [site for site in sites if (program, site.name) not in tried][:6]:
            tried.add((program, site.name))
            try:
                planted = plant(base, kind.fault(Draft(base), site, random)).module
                hloexec.verify(planted)
                hloexec.run(planted, *found.leaves, **_LIMITS)
                shows = _differ(by_xla(planted, found.leaves), by_xla(base, found.leaves))
            except (LookupError, AssertionError, hloexec.HloError):
                continue
            if shows:
                after = disguise(planted, random.randrange(2**30)).module
                yield _saving_pair(found.before, after, found.leaves)
                break


def _differ(ours: Sequence[Array], theirs: Sequence[Array]) -> bool:
    """Whether what XLA:CPU gives differs by much, and is finite on both sides."""
    is_different = False
    for first, second in zip(ours, theirs, strict=True):
        x, y = first.astype(np.float64), second.astype(np.float64)
        if not (np.isfinite(x).all() and np.isfinite(y).all()):
            return False
        is_different |= bool(x.size) and bool(abs(x - y).max() > _SHOWS * max(abs(y).max(), 1e-30))
    return is_different


def _rounded(mixture: Mixture, cause: str) -> Iterator[Save]:
    """Modules with the results of a backend that rounds the operands of contractions."""
    random = Random(f"{mixture.seed} {cause}")
    programs = _programs(mixture.half) if mixture.pairs else []
    random.shuffle(programs)
    for number in range(100):
        if number % 2 and programs:
            name = programs.pop()
            module, inputs = _base(name), list(lowered(name).leaves)
        else:
            module, inputs = _network(random)
        draft = Draft(module)
        if not contractions(draft, "dot", "convolution"):
            continue
        for each in contractions(draft, "dot", "convolution"):
            rounded_operands(draft, each, _BITS[cause])
        try:
            expected = by_xla(draft.module(), inputs)
        except hloexec.HloError:
            continue
        if any(_is_off(x, y) for x, y in zip(expected, by_xla(module, inputs), strict=True)):
            yield _saving(module, inputs, expected)


def _base(program: str) -> Module:
    return without_calls(lowered(program).before)


def _is_off(x: Array, y: Array) -> bool:
    """Whether most elements are off by more than f32's rounding leaves, so that the operands' rounding shows."""
    if x.dtype != np.float32 or not x.size:
        return False
    with np.errstate(all="ignore"):
        return bool(np.median(abs(x - y) / np.maximum(abs(y), 1e-30)) > 2.0**-15)


def _flushed(mixture: Mixture, cause: str) -> Iterator[Save]:
    """Programs whose numbers are denormal on the way: XLA:CPU flushes them, as it is asked in the triage."""
    random = Random(f"{mixture.seed} {cause}")
    while True:
        shape = ",".join(str(random.choice((4, 7, 16, 33))) for _ in range(random.randint(1, 3)))
        size, power = random.choice(("1e-20", "3e-20", "1e-21")), random.choice(("1e38", "1e37", "3e37"))
        step = random.choice(("multiply(a, b)", "divide(a, big)", "multiply(b, a)"))
        function = random.choice(("tanh", "negate", "abs", "sine"))
        text = f"""HloModule tiny
ENTRY e {{ x = f32[{shape}] parameter(0)
  y = f32[{shape}] parameter(1)
  z = f32[{shape}] {function}(y)
  c = f32[] constant({size})
  s = f32[{shape}] broadcast(c), dimensions={{}}
  a = f32[{shape}] multiply(x, s)
  b = f32[{shape}] multiply(z, s)
  l = f32[] constant(1e20)
  big = f32[{shape}] broadcast(l), dimensions={{}}
  p = f32[{shape}] {step}
  k = f32[] constant({power})
  t = f32[{shape}] broadcast(k), dimensions={{}}
  ROOT r = f32[{shape}] multiply(p, t) }}
"""
        module = hloexec.parse(text)
        inputs = hloexec.random_inputs(module)
        if _differ(by_xla(module, inputs), [_flushed_truth(module, inputs)]):
            yield _saving(module, None)


def _flushed_truth(module: Module, inputs: Sequence[Value]) -> Array:
    """What IEEE 754 gives: NumPy's own arithmetic in f64, where none of these numbers is denormal."""
    entry = module.entry
    values: dict[str, Any] = {
        parameter.name: np.asarray(value).astype(np.float64)
        for parameter, value in zip(entry.parameters, inputs, strict=True)
    }
    functions = {"multiply": np.multiply, "divide": np.divide, "tanh": np.tanh, "negate": np.negative, "abs": np.abs}
    functions |= {"sine": np.sin}
    for each in entry:
        if each.opcode == "constant":
            values[each.name] = np.asarray(each.attributes.literal.value).astype(np.float64)
        elif each.opcode == "broadcast":
            values[each.name] = values[each.operands[0]]
        elif each.opcode != "parameter":
            values[each.name] = functions[each.opcode](*(values[name] for name in each.operands))
    return np.asarray(values[entry.root_name])


def _overflow(mixture: Mixture, cause: str) -> Iterator[Save]:
    """Pairs in which a softmax no longer subtracts the largest logit."""
    random = Random(f"{mixture.seed} {cause}")
    while True:
        rows, columns, depth = (random.choice((3, 8, 16, 20)) for _ in range(3))
        scale, function = random.choice((300, 500, 900)), random.choice(("tanh", "sine", "cosine", "logistic"))
        shape = f"f32[{rows},{columns}]"
        text = f"""HloModule attention
sum {{ p = f32[] parameter(0)
  q = f32[] parameter(1)
  ROOT s = f32[] add(p, q) }}
largest {{ p = f32[] parameter(0)
  q = f32[] parameter(1)
  ROOT m = f32[] maximum(p, q) }}
ENTRY e {{ x = {shape} parameter(0)
  v = f32[{columns},{depth}] parameter(1)
  c = f32[] constant({scale})
  b = {shape} broadcast(c), dimensions={{}}
  f = {shape} {function}(x)
  logits = {shape} multiply(f, b)
  low = f32[] constant(-inf)
  zero = f32[] constant(0)
  m = f32[{rows}] reduce(logits, low), dimensions={{1}}, to_apply=largest
  bm = {shape} broadcast(m), dimensions={{0}}
  d = {shape} subtract(logits, bm)
  w = {shape} exponential(d)
  t = f32[{rows}] reduce(w, zero), dimensions={{1}}, to_apply=sum
  bt = {shape} broadcast(t), dimensions={{0}}
  p = {shape} divide(w, bt)
  ROOT o = f32[{rows},{depth}] dot(p, v), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}} }}
"""
        before = hloexec.parse(text)
        after = hloexec.parse(text.replace("exponential(d)", "exponential(logits)"))
        inputs = hloexec.random_inputs(before)
        ours, theirs = by_xla(after, inputs)[0], by_xla(before, inputs)[0]
        if np.isnan(ours).any() and np.isfinite(theirs).all():
            yield _saving_pair(before, disguise(after, random.randrange(2**30)).module, None)


_MAKERS: dict[str, Callable[[Mixture, str], Iterator[Save]]] = {
    "TF32": _rounded,
    "bf16 operands": _rounded,
    "flushed denormals": _flushed,
    "NaN by overflow": _overflow,
}
