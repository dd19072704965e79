"""Cheap values are computed again by the regions that need them, with the same bits, and are seen once."""

import numpy as np

import hloexec
from hloexec.engine.exec import plan_of
from hloexec.engine.exec.statistics import Statistics
from tests.plan.test_random_graphs import INPUT_COUNT, random_graph
from tests.plan.ways import Values, bits, regions_of

SIDE = 512


def _layer(number: int, source: str) -> str:
    """A product, its tanh and the derivative's factor, which only the backward pass reads."""
    return f"""
  sum{number} = f32[{SIDE},{SIDE}] dot({source}, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  t{number} = f32[{SIDE},{SIDE}] tanh(sum{number})
  square{number} = f32[{SIDE},{SIDE}] multiply(t{number}, t{number})
  factor{number} = f32[{SIDE},{SIDE}] subtract(ones, square{number})"""


def _backward(number: int, source: str) -> str:
    """The weights' gradient reads t, so that this is there until then."""
    return f"""
  d{number} = f32[{SIDE},{SIDE}] multiply({source}, factor{number})
  gradient{number} = f32[{SIDE},{SIDE}] dot(t{number}, d{number}), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
  back{number} = f32[{SIDE},{SIDE}] dot(d{number}, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}"""


LAYERS = 6
_FORWARD = "".join(_layer(n, f"t{n - 1}" if n else "x") for n in range(LAYERS))
_BACKWARD = "".join(_backward(n, f"back{n + 1}" if n + 1 < LAYERS else "x") for n in reversed(range(LAYERS)))
_SHAPE = ", ".join([f"f32[{SIDE},{SIDE}]"] * LAYERS)
TRAINING = f"""HloModule training

ENTRY main {{
  x = f32[{SIDE},{SIDE}] parameter(0)
  w = f32[{SIDE},{SIDE}] parameter(1)
  one = f32[] constant(1)
  ones = f32[{SIDE},{SIDE}] broadcast(one), dimensions={{}}{_FORWARD}{_BACKWARD}
  ROOT gradients = ({_SHAPE}) tuple({", ".join(f"gradient{n}" for n in range(LAYERS))})
}}
"""


def _inputs() -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.standard_normal((SIDE, SIDE), np.float32) / 16 for _ in range(2)]


def test_factors_of_derivatives_are_not_kept_beside_what_they_are_made_of() -> None:
    module, counted = hloexec.parse(TRAINING), Statistics()
    found = hloexec.run(module, *_inputs(), statistics=counted)
    assert bits(found) == bits(hloexec.run(module, *_inputs(), planner=False))
    matrix = 4 * SIDE * SIDE
    # The tanh of each layer, the gradient that comes back, its product with a factor, and a gradient of weights.
    assert counted.peak_bytes < (LAYERS + 3.1) * matrix
    makers = [
        region for region in regions_of(module) for part in region.parts if part.step.instruction.name == "factor2"
    ]
    assert len(makers) == 1
    assert "d2" in {part.step.instruction.name for part in makers[0].parts}


def test_what_is_read_outside_of_regions_is_computed_once() -> None:
    module = hloexec.parse(TRAINING.replace("dot(t2, d2)", "dot(factor2, d2)"))
    names = [part.step.instruction.name for region in regions_of(module) for part in region.parts]
    assert names.count("factor2") == 1
    assert bits(hloexec.run(module, *_inputs())) == bits(hloexec.run(module, *_inputs(), planner=False))


def test_observers_see_each_value_once() -> None:
    module = hloexec.parse(TRAINING)
    plain, watched = Values(module), Values(module)
    hloexec.run(module, *_inputs(), planner=False, observers=[plain])
    counted = Statistics()
    hloexec.run(module, *_inputs(), observers=[watched], statistics=counted)
    assert watched.seen == plain.seen
    assert counted.live_bytes == 0


def test_graphs_in_which_much_is_recomputed_have_the_same_bits() -> None:
    recomputed = 0
    for seed in range(4):
        module = hloexec.parse(random_graph(seed, 150, 192))
        random = np.random.default_rng(seed)
        inputs = [random.standard_normal((192, 192), dtype=np.float32) for _ in range(INPUT_COUNT)]
        assert bits(hloexec.run(module, *inputs)) == bits(hloexec.run(module, *inputs, planner=False))
        names = [part.step.result for region in regions_of(module) for part in region.parts]
        recomputed += len(names) - len(set(names))
    assert recomputed


def test_an_operand_lives_on_in_the_place_of_what_is_made_of_it() -> None:
    """`kept` is read last; `product`, of which it is made, is needed until shortly before."""
    square = f"f32[{SIDE},{SIDE}]"
    module = hloexec.parse(f"""HloModule m

ENTRY main {{
  x = {square} parameter(0)
  w = {square} parameter(1)
  product = {square} dot(x, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  kept = {square} negate(product)
  one = {square} sine(kept)
  next = {square} dot(one, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  two = {square} multiply(next, product)
  last = {square} dot(two, w), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT result = {square} divide(last, kept)
}}
""")
    counted = Statistics()
    found = hloexec.run(module, *_inputs(), statistics=counted)
    assert bits(found) == bits(hloexec.run(module, *_inputs(), planner=False))
    makers = [
        region for region in regions_of(module) if "kept" in {part.step.instruction.name for part in region.parts}
    ]
    assert len(makers) == 2
    assert not any("kept" in step.instruction.name for step in plan_of(module).steps)
    assert counted.peak_bytes < 3.1 * 4 * SIDE * SIDE
