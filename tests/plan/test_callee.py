"""Called computations on whole arrays: the same as element by element."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from hloexec.core.dtypes import element_type
from hloexec.engine.exec.running import plan_of
from hloexec.engine.plan.callee import PlanCallee
from hloexec.errors import UnsupportedError
from tests.drawing import examples
from tests.exec.programs import parsed, run_text


def callee(text: str, name: str = "f") -> PlanCallee:
    module = parsed("HloModule m\n" + text + "\nENTRY main { ROOT unused = () tuple() }\n")
    return PlanCallee(plan_of(module, computation=name))


def elementwise(text: str, *arrays):
    """Runs computation `f` as a program of its own, once per element."""
    module_text = "HloModule m\n" + text + "\nENTRY main { ROOT unused = () tuple() }\n"
    results = [
        run_text(module_text, *(np.asarray(a[index]) for a in arrays), computation="f")
        for index in np.ndindex(arrays[0].shape)
    ]
    if isinstance(results[0], tuple):
        return tuple(np.array(leaf).reshape(arrays[0].shape) for leaf in zip(*results, strict=True))
    return np.array(results).reshape(arrays[0].shape)


ADD = "f { x = f32[] parameter(0)\n y = f32[] parameter(1)\n ROOT r = f32[] add(x, y) }"


def test_scalar_parameters_may_be_arrays_of_a_common_shape():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    result = callee(ADD)(x, 2 * x)
    assert_array_equal(result, 3 * x)
    assert callee(ADD).computation.name == "f"


def test_scalars_and_arrays_may_be_mixed():
    x = np.arange(3, dtype=np.float32)
    assert_array_equal(callee(ADD)(x, np.array(1, np.float32)), x + 1)


ROUNDED = """f {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  s = f32[] add(x, y)
  n = bf16[] convert(s)
  ROOT r = f32[] convert(n)
}"""


def test_arrays_of_one_shape_are_not_broadcast(monkeypatch: pytest.MonkeyPatch):
    """XLA:CPU makes such reducers of sums in bf16, which are called for each term."""
    rounded, x = callee(ROUNDED), np.array([256, 1, 3], np.float32)
    monkeypatch.delattr(np, "broadcast_shapes")
    assert_array_equal(rounded(x, np.ones(3, np.float32)), [256, 2, 4])


def test_without_arrays_the_result_is_a_scalar():
    result = callee(ADD)(np.array(1, np.float32), np.array(2, np.float32))
    assert result.shape == ()
    assert result == 3


def test_an_empty_batch_gives_an_empty_result():
    empty = np.zeros((0, 2), np.float32)
    assert callee(ADD)(empty, empty).shape == (0, 2)


def test_results_that_do_not_depend_on_the_parameters_have_the_batch_too():
    text = "f { x = f32[] parameter(0)\n c = s32[] constant(7)\n ROOT t = (s32[], f32[]) tuple(c, x) }"
    number, same = callee(text)(np.ones((2, 2), np.float32))
    assert_array_equal(number, np.full((2, 2), 7, np.int32))
    assert same.shape == (2, 2)


NESTED = """g { a = f32[] parameter(0)
  c = f32[] constant(3)
  ROOT r = f32[] multiply(a, c) }
f { x = f32[] parameter(0)
  y = f32[] parameter(1)
  u = f32[] fusion(x), kind=kLoop, calls=g
  v = f32[] call(y), to_apply=g
  b = f32[] broadcast(u), dimensions={}
  s = f32[] reshape(b)
  k = f32[] copy(s)
  p = pred[] compare(k, v), direction=LT
  m = f32[] select(p, u, v)
  bits = s32[] bitcast-convert(m)
  one = s32[] constant(1)
  next = s32[] add(bits, one)
  ROOT r = f32[] bitcast-convert(next) }
"""


def test_calls_fusions_selects_and_bit_tricks_work_within_a_reducer():
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 4, 5)).astype(np.float32)
    assert_array_equal(callee(NESTED)(x, y), elementwise(NESTED, x, y))


CONDITIONAL = """neg { a = f32[] parameter(0)
  ROOT r = f32[] negate(a) }
twice { a = f32[] parameter(0)
  ROOT r = f32[] add(a, a) }
fixed { a = f32[] parameter(0)
  ROOT c = f32[] constant(9) }
f { i = s32[] parameter(0)
  x = f32[] parameter(1)
  ROOT r = f32[] conditional(i, x, x, x), branch_computations={neg, twice, fixed} }
"""


def test_conditionals_choose_for_each_element():
    i = np.array([[-2, 0, 1], [2, 3, 0]], np.int32)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    result = callee(CONDITIONAL)(i, x)
    assert_array_equal(result, [[9, -1, 4], [9, 9, -5]])
    assert_array_equal(result, elementwise(CONDITIONAL, i, x))


COLLATZ = """body { s = (s32[], s32[]) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  count = s32[] get-tuple-element(s), index=1
  one = s32[] constant(1)
  two = s32[] constant(2)
  three = s32[] constant(3)
  bit = s32[] and(n, one)
  odd = pred[] compare(bit, one), direction=EQ
  tripled = s32[] multiply(n, three)
  up = s32[] add(tripled, one)
  down = s32[] divide(n, two)
  next = s32[] select(odd, up, down)
  more = s32[] add(count, one)
  ROOT t = (s32[], s32[]) tuple(next, more) }
condition { s = (s32[], s32[]) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  one = s32[] constant(1)
  ROOT p = pred[] compare(n, one), direction=GT }
f { n = s32[] parameter(0)
  zero = s32[] constant(0)
  s = (s32[], s32[]) tuple(n, zero)
  w = (s32[], s32[]) while(s), condition=condition, body=body
  ROOT r = s32[] get-tuple-element(w), index=1 }
"""


def collatz(n: int) -> int:
    return next(k for k, v in enumerate(iterate(n)) if v <= 1)


def iterate(n: int):
    while True:
        yield n
        n = 3 * n + 1 if n % 2 else n // 2


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(st.integers(1, 1000), min_size=1, max_size=20))
def test_loops_turn_as_often_as_each_element_wants(numbers):
    result = callee(COLLATZ)(np.array(numbers, np.int32))
    assert result.tolist() == [collatz(n) for n in numbers]


def test_leaves_of_a_loop_may_not_depend_on_what_it_is_given():
    text = """body { s = (s32[], s32[], s32[2]) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  one = s32[] constant(1)
  less = s32[] subtract(n, one)
  seven = s32[] constant(7)
  pair = s32[2] constant({8, 9})
  ROOT t = (s32[], s32[], s32[2]) tuple(less, seven, pair) }
condition { s = (s32[], s32[], s32[2]) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  zero = s32[] constant(0)
  ROOT p = pred[] compare(n, zero), direction=GT }
f { n = s32[] parameter(0)
  zeros = s32[2] constant({0, 0})
  s = (s32[], s32[], s32[2]) tuple(n, n, zeros)
  w = (s32[], s32[], s32[2]) while(s), condition=condition, body=body
  last = s32[] get-tuple-element(w), index=1
  pair = s32[2] get-tuple-element(w), index=2
  part = s32[1] slice(pair), slice={[1:2]}
  nine = s32[] reshape(part)
  ROOT r = s32[] add(last, nine) }
"""
    numbers = np.array([[3, 0, -5], [1, 2, 4]], np.int32)
    assert_array_equal(callee(text)(numbers), np.where(numbers > 0, 16, numbers))


def test_what_has_dimensions_within_a_scalar_program_is_done_one_by_one():
    text = """g { a = s32[] parameter(0)
  b = s32[] parameter(1)
  ROOT r = s32[] add(a, b) }
f { x = s32[] parameter(0)
  w = s32[4] broadcast(x), dimensions={}
  i = s32[4] iota(), iota_dimension=0
  s = s32[4] add(w, i)
  t = s32[2] slice(s), slice={[1:3]}
  lo = s32[1] slice(t), slice={[0:1]}
  hi = s32[1] slice(t), slice={[1:2]}
  a = s32[] reshape(lo)
  b = s32[] reshape(hi)
  ROOT r = s32[] multiply(a, b) }
"""
    x = np.arange(6, dtype=np.int32).reshape(3, 2)
    assert_array_equal(callee(text)(x), (x + 1) * (x + 2))


@pytest.mark.parametrize("batch", [(), (1,), (3,), (2, 1, 3)])
def test_the_batch_may_have_any_rank(batch):
    x = np.ones(batch, np.float32)
    assert callee(ADD)(x, x).shape == batch


def test_the_wrong_number_of_arrays_is_an_error():
    from hloexec.errors import EvaluationError

    with pytest.raises(EvaluationError, match="takes 2 arrays, but a kernel gave it 1"):
        callee(ADD)(np.ones(3, np.float32))


def test_nothing_given_is_modified():
    arrays = [np.arange(3, dtype=np.float32) for _ in range(2)]
    callee(NESTED)(*arrays)
    assert all(np.array_equal(a, b) for a, b in itertools.pairwise(arrays))


def test_a_refusal_names_the_computation_in_which_the_instruction_stands():
    """Though it was written into its caller's plan."""
    inner = (
        "g { x = f32[] parameter(0)\n t = token[] after-all()\n o = token[] outfeed(x, t)\n ROOT y = f32[] negate(x) }"
    )
    outer = "f { x = f32[] parameter(0)\n ROOT r = f32[] call(x), to_apply=g }"
    text = (
        f"HloModule m\n{inner}\n{outer}\n"
        "ENTRY e { x = f32[3] parameter(0)\n ROOT r = f32[3] map(x), dimensions={0}, to_apply=f }"
    )
    with pytest.raises(
        UnsupportedError, match="%o in computation g has to do with other devices or the host, but f is"
    ):
        run_text(text, np.zeros(3, np.float32))


@pytest.mark.parametrize("kind", "s64 u64 s8 bf16 c64".split())
def test_branches_that_some_elements_take_keep_the_type(kind):
    """Large numbers, which no f64 holds."""
    text = (
        f"yes {{ x = {kind}[] parameter(0)\n ROOT y = {kind}[] copy(x) }}\n"
        f"no {{ x = {kind}[] parameter(0)\n ROOT y = {kind}[] add(x, x) }}\n"
        f"f {{ c = pred[] parameter(0)\n x = {kind}[] parameter(1)\n"
        f" ROOT r = {kind}[] conditional(c, x, x), true_computation=yes, false_computation=no }}"
    )
    dtype = element_type(kind).storage
    x = (np.arange(12).reshape(3, 4) + (2**55 + 1 if kind.endswith("64") and kind != "c64" else 1)).astype(dtype)
    chosen = np.arange(12).reshape(3, 4) % 3 == 0
    found = callee(text)(chosen, x)
    assert found.dtype == dtype
    assert_array_equal(found, np.where(chosen, x, (x + x).astype(dtype)))


@pytest.mark.parametrize("movement", ["copy(x)", "reshape(x)"])
def test_movements_within_a_reducer_round_to_their_type(movement: str) -> None:
    """1 + 2⁻⁹ lies between two bf16 numbers."""
    text = (
        "f { x = f32[] parameter(0)\n y = f32[] parameter(1)\n"
        f" c = bf16[] {movement}\n d = f32[] convert(c)\n ROOT r = f32[] add(d, y) }}"
    )
    x = np.array([1 + 2**-9, -3.03, 1 / 3], np.float32)
    y = np.zeros(3, np.float32)
    expected = elementwise(text, x, y)
    assert (expected != x).all()
    assert_array_equal(callee(text)(x, y), expected)
