"""What plans look like: order, dead code, lifetimes, inlining."""

import attrs
import numpy as np
import pytest

import hloexec
from hloexec.engine.exec import plan_of, run
from hloexec.engine.options import DEFAULTS
from hloexec.engine.plan.planner import build
from hloexec.engine.plan.steps import Invocation
from hloexec.errors import VerificationError
from tests.exec.programs import COUNTING_LOOP, parsed

X = np.arange(4, dtype=np.float32)


def names(plan) -> list[str]:
    return [step.instruction.name for step in plan.steps]


SCHEDULED = """HloModule m, is_scheduled=true
ENTRY e { x = f32[4] parameter(0)
  a = f32[4] add(x, x)
  dead = f32[4] add(a, a)
  b = f32[4] multiply(x, x)
  c = f32[4] subtract(a, x)
  ROOT r = f32[4] add(c, b) }
"""


def test_scheduled_modules_keep_their_order_and_lose_what_is_dead():
    assert names(plan_of(parsed(SCHEDULED))) == "a b c r".split()


COPIES = """HloModule m
ENTRY e { x = f32[2,3] parameter(0)
  turned = f32[2,3]{0,1} copy(x)
  pair = (f32[2,3]{0,1}, f32[2,3]) tuple(turned, x)
  both = (f32[2,3]{0,1}, f32[2,3]) copy(pair)
  first = f32[2,3]{0,1} get-tuple-element(both), index=0
  zero = s32[] constant(0)
  row = f32[1,3] slice(x), slice={[1:2], [0:3]}
  changed = f32[2,3] dynamic-update-slice(first, row, zero, zero)
  again = f32[2,3] copy(x)
  ROOT r = f32[2,3] add(changed, again) }
"""


@pytest.mark.parametrize("planner", [True, False])
def test_copies_take_no_step_and_stay_apart(planner):
    module = parsed(COPIES)
    assert not [name for name in names(plan_of(module)) if name in ("turned", "both", "again")]
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    seen = {}
    result = run(module, x, planner=planner, observers=[Seen(seen)])
    assert seen["turned"].tolist() == seen["again"].tolist() == x.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert result.tolist() == [[3, 5, 7], [6, 8, 10]]


class Seen:
    def __init__(self, values):
        self.values = values

    def on_instruction(self, event):
        self.values[event.name] = event.value


def test_values_die_with_their_last_user():
    plan = plan_of(parsed(SCHEDULED))
    by_name = {step.instruction.name: step for step in plan.steps}
    x = 0
    assert by_name["a"].dead == ()
    assert by_name["b"].dead == ()
    assert set(by_name["c"].dead) == {by_name["a"].result, x}
    assert set(by_name["r"].dead) == {by_name["b"].result, by_name["c"].result}


def test_unscheduled_modules_run_in_the_order_that_needs_less_memory():
    big = "\n".join(f"  i{k} = f32[40000] iota(), iota_dimension=0\n  b{k} = f32[40000] add(i{k}, x)" for k in range(8))
    small = "\n".join(
        f"  cut{k} = f32[1] slice(b{k}), slice={{[{k}:{k + 1}]}}\n  t{k} = f32[1] add(cut{k}, cut{k})" for k in range(8)
    )
    sums = "  sum0 = f32[1] add(t0, t0)\n" + "\n".join(f"  sum{k} = f32[1] add(sum{k - 1}, t{k})" for k in range(1, 8))
    text = f"HloModule m\nENTRY e {{\n  x = f32[40000] parameter(0)\n{big}\n{small}\n{sums}\n  ROOT r = f32[1] copy(sum7)\n}}\n"
    order = names(plan_of(parsed(text)))
    # In the order of the text all eight large values wait for their slices; depth first, one at a time does.
    assert order.index("t0") < order.index("i1") or order.index("t7") < order.index("i6")


def test_fusions_are_inlined_and_shared_computations_planned_once():
    chain = "\n".join(f"  v{k} = f32[4] add(v{k - 1}, v{k - 1})" for k in range(1, 3000))
    text = f"""HloModule m
small {{ a = f32[4] parameter(0)
  ROOT s = f32[4] add(a, a) }}
big {{ v0 = f32[4] parameter(0)
{chain}
  ROOT r = f32[4] add(v2999, v0) }}
ENTRY e {{ x = f32[4] parameter(0)
  a = f32[4] fusion(x), kind=kLoop, calls=small
  b = f32[4] call(a), to_apply=big
  c = f32[4] call(b), to_apply=big
  ROOT d = f32[4] fusion(c), kind=kLoop, calls=small }}
"""
    plan = plan_of(parsed(text))
    assert names(plan) == "s b c s".split()
    first, second = (step.flow for step in plan.steps[1:3])
    assert isinstance(first, Invocation)
    assert isinstance(second, Invocation)
    assert first.plan is second.plan
    assert len(first.plan.steps) == 3000


@pytest.mark.slow
def test_inlining_cannot_blow_up():
    parts = ["f0 { x = s32[] parameter(0)\n ROOT r = s32[] add(x, x) }"]
    parts += [
        f"f{k} {{ x = s32[] parameter(0)\n y = s32[] call(x), to_apply=f{k - 1}\n"
        f" z = s32[] call(x), to_apply=f{k - 1}\n ROOT r = s32[] add(y, z) }}"
        for k in range(1, 60)
    ]
    parts = [part.replace("f", "g_", 1).replace("to_apply=f", "to_apply=g_") for part in parts]
    text = "HloModule m\n" + "\n".join(parts)
    text += "\nENTRY main { x = s32[] parameter(0)\n ROOT r = s32[] call(x), to_apply=g_59 }"
    plan = plan_of(parsed(text))
    pending, seen, steps = [plan], set(), 0
    while pending:
        current = pending.pop()
        if id(current) not in seen:
            seen.add(id(current))
            steps += len(current.steps)
            pending += [step.flow.plan for step in current.steps if isinstance(step.flow, Invocation)]
    assert steps < 60 * 4096


def test_plans_are_made_once_per_module_and_options():
    module = parsed(COUNTING_LOOP)
    assert plan_of(module) is plan_of(module)
    assert plan_of(module) is not plan_of(module, elided="error")
    assert plan_of(module) is not plan_of(parsed(COUNTING_LOOP))


def test_a_repeated_run_of_a_module_gives_the_same():
    module = parsed(COUNTING_LOOP)
    first = run(module, X)
    second = run(module, X)
    np.testing.assert_array_equal(first[1], second[1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c, i: (c, attrs.evolve(i, operands=("nobody", "x"))), "names %nobody"),
        (lambda c, i: (c, attrs.evolve(i, operands=("r", "x"))), "waits for itself"),
        (lambda c, i: (c, attrs.evolve(i, control_predecessors=("r",))), "waits for itself"),
        (lambda c, i: (attrs.evolve(c, root_name="other"), i), "no instruction other as its root"),
    ],
)
def test_modules_that_are_no_programs_are_refused_without_the_verifier(change, message):
    module = parsed("HloModule m\nENTRY e { x = f32[4] parameter(0)\n ROOT r = f32[4] add(x, x) }")
    entry = module.entry
    entry, instruction = change(entry, entry.root)
    entry = attrs.evolve(entry, instructions=(entry.instructions[0], instruction))
    module = attrs.evolve(module, computations=(entry,))
    with pytest.raises(VerificationError, match=message):
        build(module, entry, DEFAULTS)


TWINS = """HloModule m, is_scheduled=true
one { a = f32[2,3] parameter(0)
  ROOT r = f32[3,2] transpose(a), dimensions={1,0} }
two { other = f32[2,3] parameter(0)
  ROOT s = f32[3,2] transpose(other), dimensions={1,0} }
ENTRY e { x = f32[2,3] parameter(0)
  y = f32[2,3] parameter(1)
  p = f32[3,2] fusion(x), kind=kLoop, calls=one
  q = f32[3,2] fusion(y), kind=kLoop, calls=two
  first = f32[3,3] dot(p, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  second = f32[3,3] dot(q, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  third = f32[2,2] dot(q, y), lhs_contracting_dims={0}, rhs_contracting_dims={1}
  ROOT t = (f32[3,3], f32[3,3], f32[2,2]) tuple(first, second, third) }
"""


def test_instructions_that_are_equal_but_for_names_share_a_kernel():
    kernels = {step.instruction.name: step.kernel for step in plan_of(parsed(TWINS)).program}
    assert kernels["r"] is kernels["s"]
    assert kernels["first"] is kernels["second"]
    assert kernels["second"] is not kernels["third"]


def test_steps_with_one_kernel_keep_their_instructions_and_scopes():
    steps = {step.instruction.name: step for step in plan_of(parsed(TWINS)).program}
    assert [steps[name].scope.computation.name for name in ("r", "s")] == ["one", "two"]
    assert [steps[name].scope.caller.name for name in ("r", "s")] == ["p", "q"]


def test_instructions_under_other_policies_have_kernels_of_their_own():
    x, y = np.full((2, 3), 1 + 2**-9, np.float32), np.full((2, 3), 1 + 2**-9, np.float32)
    text = parsed(TWINS)
    first, second, _ = run(text, x, y, numerics="reference,second=bf16")
    assert first[0, 0] == np.float32(2 * (1 + 2**-9) ** 2)
    assert second[0, 0] == 2


def test_zeros_of_either_sign_in_attributes_are_not_the_same():
    text = """HloModule m
ENTRY e { x = f32[2] parameter(0)
  one = f32[2] parameter(1)
  a = (f32[2], f32[2], f32[2]) batch-norm-training(x, one, one), epsilon=0.0, feature_index=0
  b = (f32[2], f32[2], f32[2]) batch-norm-training(x, one, one), epsilon=-0.0, feature_index=0
  ROOT t = ((f32[2], f32[2], f32[2]), (f32[2], f32[2], f32[2])) tuple(a, b) }
"""
    kernels = {step.instruction.name: step.kernel for step in plan_of(parsed(text)).program}
    assert kernels["a"] is not kernels["b"]


SIZES = (3, 4, 5, 6)


def _order(array: np.ndarray) -> tuple[int, ...]:
    """The dimensions from the one with the longest stride to the one with the shortest."""
    return tuple(int(axis) for axis in np.argsort([-stride for stride in array.strides], kind="stable"))


@pytest.mark.parametrize("planner", [True, False])
@pytest.mark.parametrize("seed", range(40))
def test_views_of_views_lie_as_numpys_do(seed: int, planner: bool) -> None:
    random = np.random.default_rng(seed)
    array = np.zeros(SIZES, np.float32)
    lines = ["  v0 = f32[3,4,5,6] parameter(0)"]
    for number in range(int(random.integers(1, 5))):
        kind = random.choice("transpose transpose slice copy".split())
        if kind == "transpose":
            axes = [int(axis) for axis in random.permutation(4)]
            array = array.transpose(axes)
            call = f"transpose(v{number}), dimensions={{{','.join(map(str, axes))}}}"
        elif kind == "slice":
            array = array[1:]
            rest = "".join(f", [0:{size}]" for size in array.shape[1:])
            call = f"slice(v{number}), slice={{[1:{len(array) + 1}]{rest}}}"
        else:
            call = f"copy(v{number})"
        if not array.size or min(array.shape) < 2:
            break
        lines.append(f"  v{number + 1} = f32[{','.join(map(str, array.shape))}] {call}")
        expected = _order(array)
    lines[-1] = f"  ROOT {lines[-1].strip()}" if len(lines) > 1 else "  ROOT v0 = f32[3,4,5,6] parameter(0)"
    expected = expected if len(lines) > 1 else (0, 1, 2, 3)
    plan = plan_of(hloexec.parse("HloModule m\nENTRY e {\n" + "\n".join(lines) + "\n}\n"), planner=planner)
    assert (plan.result_orders[0] or (0, 1, 2, 3)) == expected
