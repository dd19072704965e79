"""Training steps in which rounding chooses: the first step of Adam and of Lion, a clipped norm, routes, fed back tokens.

A case is a step of one network in one type, with a fault or without. Its results come from XLA:CPU, and are those of
the lowered module; a fault is in the program, in the module, or in one element of the results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

import attrs
import numpy as np

import hloexec
from evaluation.faults.editing import Draft
from evaluation.faults.kinds import KINDS
from evaluation.faults.planting import plant, without_calls
from evaluation.programs.program import integers, normal
from evaluation.verdicts.choices import CHOICES
from evaluation.verdicts.models import FEATURES, LIBRARY, ROWS, WRITTEN, Model
from hloexec.core.ir import Module
from hloexec.core.values import Value, arrays_of
from hloexec.tools.counterparts.specs import counterpart

_CLASSES, _EXPERTS, _TOKENS = 8, 6, 12
_RATE = 1e-3
_FACTOR = 1.03
"""What a layer's gradient is multiplied with."""
_KINDS = ("adam", "lion", "clip", "route", "sample")
_MODELS = {"seen": ("perceptron", "convolutions"), "held": ("attention", "recurrence"), "library": tuple(LIBRARY)}
_DTYPES = {"f32": "float32", "bf16": "bfloat16"}
FAULTS = ("scaled", "planted", "element")
_SEEDS = ("1", "2", "3")
"""Of programs that choose."""
_FAULTS = ("scaled", "element")
_CHANGE = 0.2
_LEAST = 64
"""Elements of a layer's weights. Smaller ones are biases, some of whose gradients are rounding and nothing else."""
_MOST_TRIALS = 15
_SHARE, _FAR = 0.05, 5.0
"""A planted fault is seen if so large a share of some result is so many times further off than rounding is."""


@attrs.frozen
class Case:
    """A step: all else follows."""

    half: str
    kind: str
    model: str
    dtype: str
    fault: str = ""

    @classmethod
    def of(cls, name: str) -> Case:
        """The case of a name."""
        *rest, fault = name.split("/")
        return cls(*rest, fault="" if fault == "clean" else fault)

    @property
    def name(self) -> str:
        return "/".join((self.half, self.kind, self.model, self.dtype, self.fault or "clean"))


@attrs.frozen(eq=False)
class Made:
    """A step's lowered module, what it runs on, and what XLA:CPU makes of it, perhaps with a fault."""

    module: Module
    inputs: Sequence[Value]
    theirs: Sequence[Value]
    what: str = ""
    """What is wrong."""


def cases(half: str) -> list[Case]:
    """A clean and a faulty step for each kind, network and type; each network of Flax has a kind of its own."""
    if half in CHOICES:
        kinds = [(kind, seed, dtype) for kind in CHOICES[half] for seed in _SEEDS for dtype in _DTYPES]
        return [Case(half, *each, fault=fault) for n, each in enumerate(kinds) for fault in ("", _FAULTS[n // 2 % 2])]
    if half == "library":
        kinds = [("adam", "lion", "clip", "adam", "lion")[n] for n in range(len(LIBRARY))]
        steps = [(kind, model, dtype) for kind, model in zip(kinds, LIBRARY, strict=True) for dtype in _DTYPES]
    else:
        steps = [(kind, model, dtype) for kind in _KINDS for model in _MODELS[half] for dtype in _DTYPES]
    faults = FAULTS[:1] if half == "library" else FAULTS
    return [
        Case(half, *step, fault=fault)
        for number, step in enumerate(steps)
        for fault in ("", faults[(number + number // 6) % len(faults)])
    ]


def made(case: Case) -> Made:
    """Lower a step, and run it; LookupError where no fault that was tried is seen."""
    import jax

    if case.half in CHOICES:
        return _choice(jax, case)
    step, arguments, names = _step(case, None)

    lowered = jax.jit(step).lower(*arguments)
    inputs = [np.asarray(leaf) for leaf in jax.tree.leaves(arguments)]
    module = hloexec.from_jax(lowered)
    theirs = _leaves(jax, lowered.compile()(*arguments))
    random = Random(case.name)
    if not case.fault:
        return Made(module, inputs, theirs)
    if case.fault == "scaled":
        name = random.choice(names)
        faulty, _, _ = _step(case, name)
        return Made(module, inputs, _leaves(jax, jax.jit(faulty)(*arguments)), f"gradient of {name} × {_FACTOR}")
    if case.fault == "element":
        return _with_element(case, Made(module, inputs, theirs), random)
    with jax.enable_x64(True):
        wide, _, _ = _step(attrs.evolve(case, dtype="float64"), None)
        doubles = jax.tree.map(lambda x: np.asarray(x, np.float64) if x.dtype.kind == "f" else x, arguments)
        exact = _leaves(jax, jax.jit(wide)(*doubles))
    return _planted(Made(module, inputs, theirs), exact, random)


def _choice(jax: Any, case: Case) -> Made:
    """The same of a program that chooses."""
    draw = np.random.default_rng(int(case.model))
    program = CHOICES[case.half][case.kind](jax, draw, _DTYPES[case.dtype])
    lowered = jax.jit(partial(program.function, 1.0)).lower(*program.arguments)
    theirs = _leaves(jax, lowered.compile()(*program.arguments))
    made = Made(hloexec.from_jax(lowered), [np.asarray(leaf) for leaf in jax.tree.leaves(program.arguments)], theirs)
    if not case.fault:
        return made
    if case.fault == "scaled":
        theirs = _leaves(jax, jax.jit(partial(program.function, _FACTOR))(*program.arguments))
        return attrs.evolve(made, theirs=theirs, what=f"a factor of {_FACTOR}")
    random = Random(case.name)
    floats = [n for n, leaf in enumerate(theirs) if leaf.dtype.kind not in "biu" and leaf.size > 1]
    place = random.choice([n for n in floats if np.abs(theirs[n].astype(np.float64)).max() > 0])
    changed = np.array(theirs[place])
    where = np.unravel_index(int(np.abs(changed.astype(np.float64)).argmax()), changed.shape)
    changed[where] *= 1 + _CHANGE
    theirs = [changed if n == place else leaf for n, leaf in enumerate(theirs)]
    return attrs.evolve(made, theirs=theirs, what=f"[{', '.join(map(str, where))}] of {place} is {_CHANGE:.0%} larger")


def _leaves(jax: Any, tree: Any) -> list[Value]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def _step(case: Case, scaled: str | None) -> tuple[Callable[..., Any], tuple[Any, ...], list[str]]:
    """The function, its arguments, and the names of the layers with weights; of one, the gradient may be scaled."""
    import jax
    import optax

    dtype = _DTYPES.get(case.dtype, case.dtype)
    seed = Random(f"{case.kind} {case.model}").randrange(1000)
    model = LIBRARY[case.model](jax, seed, dtype) if case.half == "library" else WRITTEN[case.model](jax, seed)
    model = attrs.evolve(model, features=_in_type(jax, model, dtype))
    head, loss = _head(jax, case.kind, model, dtype, seed)
    parameters = {"body": model.parameters, "head": head}
    optimizer = {
        "adam": optax.adam(_RATE),
        "lion": optax.lion(_RATE),
        "clip": optax.chain(optax.clip_by_global_norm(0.3), optax.sgd(0.1, momentum=0.9)),
        "route": optax.adamw(_RATE),
        "sample": optax.sgd(0.1, momentum=0.9),
    }[case.kind]
    paths = [jax.tree_util.keystr(path) for path, leaf in jax.tree.leaves_with_path(parameters) if leaf.size >= _LEAST]

    def changed(path: Any, gradient: Any) -> Any:
        return gradient * _FACTOR if jax.tree_util.keystr(path) == scaled else gradient

    def step(parameters: Any, state: Any, examples: Any, labels: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(parameters, examples, labels)
        gradients = jax.tree.map_with_path(changed, gradients)
        updates, state = optimizer.update(gradients, state, parameters)
        return value, optax.apply_updates(parameters, updates), state

    state = jax.tree.map(np.asarray, optimizer.init(parameters))
    return step, (parameters, state, model.examples, integers(seed, _CLASSES, ROWS)), paths


def _in_type(jax: Any, model: Model, dtype: Any) -> Callable[[Any, Any], Any]:
    def features(parameters: Any, examples: Any) -> Any:
        return model.features(jax.tree.map(lambda x: x.astype(dtype), parameters), examples.astype(dtype))

    return features


def _head(jax: Any, kind: str, model: Model, dtype: Any, seed: int) -> tuple[Any, Callable[..., Any]]:
    """Parameters behind the features, and the loss of all."""
    jnp = jax.numpy
    head: dict[str, Any] = {"out": normal(seed + 50, FEATURES, _CLASSES)}

    def cross_entropy(logits: Any, labels: Any) -> Any:
        wide = jax.nn.log_softmax(logits.astype(jnp.promote_types(dtype, "float32")))
        return -jnp.take_along_axis(wide, labels[:, None], -1).mean()

    def plain(p: Any, examples: Any, labels: Any) -> Any:
        return cross_entropy(model.features(p["body"], examples) @ p["head"]["out"].astype(dtype), labels)

    def routed(p: Any, examples: Any, labels: Any) -> Any:
        own = jax.tree.map(lambda x: x.astype(dtype), p["head"])
        features = model.features(p["body"], examples)
        weights, chosen = jax.lax.top_k(features @ own["gate"] + own["gate_bias"], 2)
        used = jax.nn.gelu(jnp.einsum("nd,nkde->nke", features, own["experts"][chosen]))
        mixed = (used * jax.nn.softmax(weights)[..., None]).sum(1)
        return cross_entropy((features + mixed) @ own["out"], labels)

    def sampled(p: Any, examples: Any, labels: Any) -> Any:
        own = jax.tree.map(lambda x: x.astype(dtype), p["head"])
        state, total = model.features(p["body"], examples), 0.0
        for _ in range(4):
            token = jnp.argmax(state @ own["words"] + own["words_bias"], -1)
            state = jnp.tanh(state @ own["next"] + own["embedding"][token])
            total = total + cross_entropy(state @ own["out"], labels)
        return total

    if kind == "route":
        head |= {
            "gate": normal(seed + 51, FEATURES, _EXPERTS),
            "experts": normal(seed + 52, _EXPERTS, FEATURES, FEATURES),
        }
        head["gate_bias"] = _tying(jax, model, head["gate"], 1)
        return head, routed
    if kind == "sample":
        head |= {
            "words": normal(seed + 51, FEATURES, _TOKENS),
            "next": normal(seed + 52, FEATURES, FEATURES),
            "embedding": np.random.default_rng(seed).normal(size=(_TOKENS, FEATURES)).astype(np.float32),
        }
        head["words_bias"] = _tying(jax, model, head["words"], 0)
        return head, sampled
    return head, plain


def _tying(jax: Any, model: Model, weights: Any, rank: int) -> Any:
    """A bias that makes the choices of this rank and of the next alike for the first row that it can."""
    logits = np.asarray(jax.jit(model.features)(model.parameters, model.examples), np.float64) @ weights
    order = np.argsort(-logits[0])
    first, second = order[rank], order[rank + 1]
    bias = np.zeros(weights.shape[1], np.float32)
    bias[second] = logits[0, first] - logits[0, second]
    return bias


def _planted(clean: Made, exact: Sequence[Value], random: Random) -> Made:
    """The same with a fault of some kind in the module that XLA:CPU runs."""
    base = without_calls(clean.module)
    fitting = [(kind, sites) for kind in KINDS if (sites := list(kind.sites(Draft(base))))]
    for _ in range(_MOST_TRIALS):
        kind, sites = random.choice(fitting)
        site = random.choice(sites)
        try:
            planted = plant(base, kind.fault(Draft(base), site, random)).module
            hloexec.verify(planted)
            theirs = arrays_of(counterpart("xla-cpu").run(planted, clean.inputs).value())
        except Exception:  # What XLA refuses is no case.
            continue
        if any(map(_is_seen, clean.theirs, theirs, exact)):
            return attrs.evolve(clean, theirs=theirs, what=f"{kind.name} at {site.name}")
    raise LookupError("nothing that was tried is seen")


def _is_seen(clean: Any, faulty: Any, exact: Any) -> bool:
    """Whether a fault moves a result further than rounding does: XLA:CPU's own results are compared with f64's."""
    if clean.dtype.kind in "biu":
        return False
    off, own, wide = (np.asarray(each, np.float64) for each in (faulty, clean, exact))
    moved, rounding = np.abs(off - own), np.abs(own - wide)
    if not np.isfinite(moved).all():
        return True
    last = float(np.finfo(np.float32).eps) * np.abs(own)
    return bool(np.mean(moved > _FAR * (np.quantile(rounding, 0.95) + last)) >= _SHARE)


def _with_element(case: Case, clean: Made, random: Random) -> Made:
    """The same with the update of one element the other way round, that of the largest update of its array: no sign
    that rounding chooses."""
    import jax

    _, (parameters, _, _, _), _ = _step(case, None)
    count = len(jax.tree.leaves(parameters))
    places = [n for n in range(count) if np.size(clean.theirs[1 + n]) >= _LEAST]
    place = random.choice(places)
    before, after = np.asarray(clean.inputs[place]), np.array(clean.theirs[1 + place])
    # The moment of Adam and of Lion says how large a gradient is; updates of the others do so themselves.
    moments = [leaf for leaf in clean.theirs[1 + count :] if np.shape(leaf) == after.shape]
    size = np.abs(moments[0] if moments else after - before)
    where = np.unravel_index(int(size.argmax()), after.shape)
    after[where] = 2 * before[where] - after[where]
    theirs = [after if number == 1 + place else leaf for number, leaf in enumerate(clean.theirs)]
    return attrs.evolve(clean, theirs=theirs, what=f"[{', '.join(map(str, where))}] of parameter {place} moves back")
