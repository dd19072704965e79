"""Values that are computed from different values of the module before, each with a rounding error of its own."""

import attrs
import numpy as np
import pytest

import hloexec
from hloexec.engine.devices.topology import topology_of
from hloexec.engine.options import Options
from hloexec.tools.diffing.bounds import Bounds, InstructionChains, PathBounds
from hloexec.tools.diffing.limits import LIMITS
from hloexec.tools.diffing.matching import Index
from hloexec.tools.diffing.recording.arrays import Arrays
from hloexec.tools.diffing.replaying.evaluation import Evaluator
from hloexec.tools.diffing.replaying.replay import Replay
from hloexec.tools.diffing.running import GraphRecorder
from tests.diffing.texts import diff_texts

_MODULE = """HloModule {name}
plus {{ a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }}
ENTRY e {{
  x = f32[64] parameter(0)
  y = f32[64] parameter(1)
  zero = f32[] constant(0)
  zeros = f32[64] broadcast(zero), dimensions={{}}
  one = f32[] constant(1)
  ones = f32[64] broadcast(one), dimensions={{}}
  most = f32[] constant(0.999)
  mosts = f32[64] broadcast(most), dimensions={{}}
  thousand = f32[] constant(1000)
  thousands = f32[64] broadcast(thousand), dimensions={{}}
  far = f32[] constant(1e4)
  fars = f32[64] broadcast(far), dimensions={{}}
  {common}
  {steps}
  moved = f32[64] add(y, fars)
  noisy = f32[64] subtract(moved, fars)
  sum = f32[64] add(d, noisy)
  ROOT out = (f32[64], f32[64]) tuple(sum, m)
}}"""
"""What `noisy` loses to rounding hides from the results what rounding does to `d`."""


@attrs.frozen
class _Formulas:
    """Two formulas of one value."""

    common: str
    before: str
    after: str
    """From `v`."""
    x: float
    largest: float
    """No number on the way is larger."""
    seeds: tuple[int, ...] = (0, 1, 2)

    def modules(self, factor: float | None = None) -> tuple[hloexec.Module, hloexec.Module]:
        """Both modules; with a `factor` in the second one that should not be there."""
        found = [line.split(" = ")[0] for line in self.common.splitlines()]
        assert "v" in "".join(found)
        steps = f"w = f32[64] copy(v)\n{self.after}"
        if factor is not None:
            lines = (f"factor = f32[] constant({factor})", "factors = f32[64] broadcast(factor), dimensions={}")
            steps = "\n".join((*lines, "w = f32[64] multiply(v, factors)", self.after))
        before = _MODULE.format(name="before", common=self.common, steps=self.before)
        return hloexec.parse(before), hloexec.parse(_MODULE.format(name="after", common=self.common, steps=steps))

    def inputs(self, seed: int) -> list[np.ndarray]:
        random = np.random.default_rng(seed)
        x = (random.standard_normal(64) + self.x).astype(np.float32)
        return [x, random.uniform(0.001, 0.01, 64).astype(np.float32)]


_FORMULAS = {
    # g − g · z for g · (1 − z)
    "product": _Formulas(
        "g = f32[64] cosine(y)\n z = f32[64] logistic(x)\n v = f32[64] multiply(g, z)\n m = f32[64] copy(v)",
        "r = f32[64] subtract(ones, z)\n d = f32[64] multiply(g, r)",
        "d = f32[64] subtract(g, w)",
        x=4,
        largest=1,
    ),
    # 1 − s² for (1 − s) · (1 + s)
    "square": _Formulas(
        "s = f32[64] tanh(x)\n v = f32[64] multiply(s, s)\n m = f32[64] copy(v)",
        "r = f32[64] subtract(ones, s)\n q = f32[64] add(ones, s)\n d = f32[64] multiply(r, q)",
        "d = f32[64] subtract(ones, w)",
        x=3,
        largest=2,
    ),
    # A sum of eight without the sum of the first seven, for the last one.
    "sum": _Formulas(
        "f = f32[8] constant({1.1,1.2,1.3,1.4,1.5,1.6,1.7,0.001})\n fs = f32[64,8] broadcast(f), dimensions={1}\n"
        "xs = f32[64,8] broadcast(x), dimensions={0}\n t = f32[64,8] multiply(xs, fs)\n"
        "v = f32[64] reduce(t, zero), dimensions={1}, to_apply=plus\n first = f32[64,7] slice(t), slice={[0:64], [0:7]}\n"
        "head = f32[64] reduce(first, zero), dimensions={1}, to_apply=plus\n m = f32[64] add(v, head)",
        "last = f32[64,1] slice(t), slice={[0:64], [7:8]}\n k = f32[64] reshape(last)\n d = f32[64] add(k, zeros)",
        "d = f32[64] subtract(w, head)",
        x=0,
        largest=40,
        seeds=(0, 2),
    ),
    # v − c · v for v − c · p, where v is p but for rounding.
    "offset": _Formulas(
        "p = f32[64] sine(x)\n o = f32[64] add(p, thousands)\n v = f32[64] subtract(o, thousands)\n m = f32[64] copy(v)",
        "r = f32[64] multiply(p, mosts)\n d = f32[64] subtract(v, r)",
        "r = f32[64] multiply(w, mosts)\n d = f32[64] subtract(v, r)",
        x=0,
        largest=1001,
    ),
}
_CASES = [(name, seed) for name, formulas in _FORMULAS.items() for seed in formulas.seeds]


def replayed(before, after, inputs):
    """The replay of one module on the values of another, and the start of it."""
    arrays, sides = Arrays(), []
    for module in (before, after):
        recorder = GraphRecorder(module, arrays)
        graph = recorder.finish(hloexec.run_devices(module, [inputs], observers=[recorder]))
        evaluator = Evaluator(module, topology_of(module, None, None), Options(verify=False))
        chains = InstructionChains(module, "reference")
        sides.append((graph, evaluator, chains, Bounds(graph, evaluator, chains)))
    (theirs, _, chains, bounds), (ours, *rest) = sides
    replay = Replay(ours, Index(theirs, chains, PathBounds(theirs, bounds)), *rest)
    return replay, replay.start(lambda: False)


def named(graph, name):
    (found,) = (node for node in graph.nodes if node.instance.instruction.name == name)
    return found


@pytest.mark.parametrize(("name", "seed"), _CASES)
def test_the_bound_covers_what_the_values_lost_that_only_one_side_starts_from(name: str, seed: int) -> None:
    """The bounds from the nearest values that both have fall short, by more than is asked of a proof."""
    formulas = _FORMULAS[name]
    replay, state = replayed(*formulas.modules(), formulas.inputs(seed))
    ours, theirs = named(replay.graph, "d"), named(replay.index.graph, "d")
    distances = np.abs(state.raw[ours.number].astype(np.float64) - theirs.value)
    (*_, nearest) = replay.allowed(state, ours, theirs)
    allowed = replay.allowed_from_common(state, ours, theirs, theirs.value, LIMITS.chain_steps)
    assert nearest is not None and allowed is not None
    assert (distances > LIMITS.proof * nearest).any()
    assert (distances <= allowed).all()
    assert (allowed <= 16 * 2.0**-24 * formulas.largest).all()


@pytest.mark.parametrize(("name", "seed"), _CASES)
def test_another_formula_of_a_value_is_rounding(name: str, seed: int) -> None:
    formulas = _FORMULAS[name]
    found = hloexec.diff(*formulas.modules(), formulas.inputs(seed))
    assert found.outputs.agrees
    assert (found.verdict, found.findings) == ("rounding only", ())


@pytest.mark.parametrize(
    ("name", "seed", "factor"), [("square", 0, 1.000002), ("square", 1, 1.000002), ("sum", 0, 1.0001)]
)
def test_what_is_far_beyond_that_is_found_all_the_same(name: str, seed: int, factor: float) -> None:
    formulas = _FORMULAS[name]
    found = hloexec.diff(*formulas.modules(factor), formulas.inputs(seed))
    assert found.outputs.agrees
    assert found.verdict == "differ"
    assert "w" in {run.instruction for run in (found.findings[0].after, *found.region)}


_LOG = """HloModule m
ENTRY e {
  x = f32[64] parameter(0)
  y = f32[64] parameter(1)
  zero = f32[] constant(0)
  zeros = f32[64] broadcast(zero), dimensions={}
  p = f32[64] cosine(y)
  v = f32[64] exponential(x)
  l = f32[64] log(v)
  STEPS
  ROOT out = (f32[64], f32[64]) tuple(d, l)
}"""
_OFF = """f = f32[] constant(FACTOR)
  fs = f32[64] broadcast(f), dimensions={}
  n = f32[64] multiply(l, fs)
  k = f32[64] multiply(n, p)
  d = f32[64] add(k, zeros)"""


@pytest.mark.parametrize(("steps", "is_certain"), [(_OFF.replace("n, p", "l, p"), False), (_OFF, True)])
def test_what_takes_a_value_that_lost_digits_is_not_to_blame_for_certain(steps: str, is_certain: bool) -> None:
    """log(exp(x)) in place of x: near zero, the results are further apart than a product's rounding explains, but no
    further than `log` and `exp` may be off."""
    before = _LOG.replace("STEPS", "d = f32[64] multiply(x, p)")
    after = _LOG.replace("STEPS", steps.replace("FACTOR", "1.01"))
    random = np.random.default_rng(0)
    inputs = [(0.01 * random.standard_normal(64)).astype(np.float32), random.uniform(1, 2, 64).astype(np.float32)]
    found = diff_texts(before, after, inputs)
    assert not found.outputs.agrees
    assert found.findings[0].after.instruction == "k"
    assert found.findings[0].is_certain is is_certain


_SOFTMAX = """HloModule softmax
larger { a = bf16[] parameter(0)
  b = bf16[] parameter(1)
  ROOT c = bf16[] maximum(a, b) }
plus { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b) }
ENTRY e {
  s = bf16[20,10] parameter(0)
  v = bf16[10,16] parameter(1)
  u = bf16[16,16] parameter(2)
  least = bf16[] constant(-inf)
  zero = f32[] constant(0)
  m = bf16[20] reduce(s, least), dimensions={1}, to_apply=larger
  ms = bf16[20,10] broadcast(m), dimensions={0}
  d = bf16[20,10] subtract(s, ms)
  w = bf16[20,10] exponential(d)
  f = f32[20,10] convert(w)
  t = f32[20] reduce(f, zero), dimensions={1}, to_apply=plus
  n = bf16[20] convert(t)
  ns = bf16[20,10] broadcast(n), dimensions={0}
  p = bf16[20,10] divide(w, ns)
  h = bf16[20,16] dot(p, v), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT o = bf16[20,16] dot(h, u), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}"""


@pytest.mark.parametrize("seed", range(4))
def test_other_values_on_the_way_say_nothing_where_rounding_explains_what_comes_of_them(seed: int) -> None:
    """Weights of a softmax that are all larger by one factor, and so is their sum."""
    after = _SOFTMAX.replace("exponential(d)", "exponential(s)")
    found = diff_texts(_SOFTMAX, after, seed=seed)
    assert found.outputs.agrees
    assert (found.verdict, found.findings, found.notes) == ("rounding only", (), ())
