"""Control flow, calls and tuples, against XLA:CPU."""

import sys
import weakref

import attrs
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from hloexec.core.tree import flat
from hloexec.engine.devices.topology import Topology
from hloexec.engine.exec import plan_of, run
from hloexec.engine.exec.machine import Machine
from hloexec.engine.options import DEFAULTS
from hloexec.engine.plan.planner import build
from hloexec.errors import EvaluationError, HloWarning, UnsupportedError, VerificationError
from hloexec.ops import registry
from hloexec.ops.library_calls.user_calls import register_custom_call, unregister_custom_call
from tests.exec.programs import COUNTING_LOOP, agree_with_xla, parsed, run_text

X = np.arange(4, dtype=np.float32)


def test_while_runs_its_body_as_long_as_its_condition_holds():
    count, x = agree_with_xla(COUNTING_LOOP, X)
    assert count == 5
    assert_array_equal(x, X * 32)


def test_while_whose_condition_is_false_at_once_gives_its_operand():
    text = COUNTING_LOOP.replace("zero = s32[] constant(0)", "zero = s32[] constant(7)")
    count, x = agree_with_xla(text, X)
    assert count == 7
    assert_array_equal(x, X)


PREDICATED = """HloModule choice
yes { p = (f32[4], s32[]) parameter(0)
  x = f32[4] get-tuple-element(p), index=0
  ROOT r = f32[4] add(x, x) }
no { ROOT x = f32[4] parameter(0) }
ENTRY main {
  p = pred[] parameter(0)
  x = f32[4] parameter(1)
  y = f32[4] parameter(2)
  i = s32[] constant(3)
  t = (f32[4], s32[]) tuple(x, i)
  ROOT c = f32[4] conditional(p, t, y), true_computation=yes, false_computation=no }
"""


@pytest.mark.parametrize("predicate", [True, False])
def test_conditional_takes_the_first_branch_where_its_predicate_is_true(predicate):
    agree_with_xla(PREDICATED, np.bool_(predicate), X, -X)


INDEXED = """HloModule choice
zero { ROOT x = f32[4] parameter(0) }
one { x = f32[4] parameter(0)
  ROOT r = f32[4] add(x, x) }
two { x = f32[4] parameter(0)
  ROOT r = f32[4] multiply(x, x) }
ENTRY main {
  i = s32[] parameter(0)
  x = f32[4] parameter(1)
  ROOT c = f32[4] conditional(i, x, x, x), branch_computations={zero, one, two} }
"""


@pytest.mark.slow_cases("-1", "2147483647")
@pytest.mark.parametrize("index", [-5, -1, 0, 1, 2, 3, 2**31 - 1])
def test_conditional_takes_the_last_branch_where_its_index_is_out_of_range(index):
    agree_with_xla(INDEXED, np.int32(index), X + 3)


def test_loops_nest_within_conditionals_within_loops():
    text = """HloModule nested
inner_body { s = (s32[], s32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  acc = s32[] get-tuple-element(s), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  sum = s32[] add(acc, i)
  ROOT r = (s32[], s32[]) tuple(j, sum) }
inner_condition { s = (s32[], s32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  three = s32[] constant(3)
  ROOT lt = pred[] compare(i, three), direction=LT }
loops { s = (s32[], s32[]) parameter(0)
  ROOT w = (s32[], s32[]) while(s), condition=inner_condition, body=inner_body }
stays { ROOT s = (s32[], s32[]) parameter(0) }
outer_body { s = (s32[], s32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  acc = s32[] get-tuple-element(s), index=1
  one = s32[] constant(1)
  two = s32[] constant(2)
  zero = s32[] constant(0)
  j = s32[] add(i, one)
  p = pred[] compare(i, two), direction=GE
  start = (s32[], s32[]) tuple(zero, acc)
  c = (s32[], s32[]) conditional(p, start, start), true_computation=loops, false_computation=stays
  sum = s32[] get-tuple-element(c), index=1
  ROOT r = (s32[], s32[]) tuple(j, sum) }
outer_condition { s = (s32[], s32[]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  five = s32[] constant(5)
  ROOT lt = pred[] compare(i, five), direction=LT }
ENTRY main { a = s32[] parameter(0)
  zero = s32[] constant(0)
  s = (s32[], s32[]) tuple(zero, a)
  ROOT w = (s32[], s32[]) while(s), condition=outer_condition, body=outer_body }
"""
    _, total = agree_with_xla(text, np.int32(100))
    assert total == 100 + 3 * 3


def test_nested_tuples_travel_through_calls_and_barriers():
    text = """HloModule tuples
swap { a = f32[4] parameter(0)
  b = (s32[2], f32[4]) parameter(1)
  n = s32[2] get-tuple-element(b), index=0
  f = f32[4] get-tuple-element(b), index=1
  inner = (f32[4], f32[4]) tuple(f, a)
  ROOT t = ((f32[4], f32[4]), s32[2]) tuple(inner, n) }
ENTRY main { x = f32[4] parameter(0)
  n = s32[2] parameter(1)
  y = f32[4] add(x, x)
  pair = (s32[2], f32[4]) tuple(n, y)
  c = ((f32[4], f32[4]), s32[2]) call(x, pair), to_apply=swap
  b = ((f32[4], f32[4]), s32[2]) opt-barrier(c)
  inner = (f32[4], f32[4]) get-tuple-element(b), index=0
  left = f32[4] get-tuple-element(inner), index=0
  right = f32[4] get-tuple-element(inner), index=1
  d = f32[4] subtract(left, right)
  m = s32[2] get-tuple-element(b), index=1
  ROOT r = (f32[4], (f32[4], f32[4]), s32[2]) tuple(d, inner, m) }
"""
    result = run_text(text, X, np.array([3, 4], np.int32))
    difference, (left, right), numbers = result
    assert_array_equal(difference, X)
    assert_array_equal(left, 2 * X)
    assert_array_equal(right, X)
    assert_array_equal(numbers, [3, 4])


def test_an_empty_tuple_is_a_result():
    assert run_text("HloModule m\nENTRY e { ROOT t = () tuple() }") == ()


def test_results_that_are_parameters_or_constants_are_copies():
    text = """HloModule m
ENTRY e { x = f32[4] parameter(0)
  c = f32[2] constant({1, 2})
  r = f32[2,2] reshape(x)
  ROOT t = (f32[4], f32[4], f32[2,2], f32[2], f32[2]) tuple(x, x, r, c, c) }
"""
    x = X.copy()
    module = parsed(text)
    leaves = flat(run(module, x))
    for k, leaf in enumerate(leaves):
        assert leaf.flags.writeable
        assert not np.shares_memory(leaf, x)
        assert not any(np.shares_memory(leaf, other) for other in leaves[:k])
        leaf[...] = 77
    assert_array_equal(x, X)
    assert_array_equal(flat(run(module, x))[3], [1, 2])


def test_a_broadcast_result_is_writeable_memory_of_its_own():
    text = "HloModule m\nENTRY e { x = f32[4] parameter(0)\n y = f32[4] add(x, x)\n ROOT b = f32[3,4] broadcast(y), dimensions={1} }"
    result = run_text(text, X)
    result[0, 0] = 9
    assert result[1, 0] == 0


def test_asynchronous_pairs_run_on_one_device():
    text = """HloModule pairs
wrapped { a = f32[4] parameter(0)
  b = f32[4] parameter(1)
  ROOT s = f32[4] add(a, b) }
ENTRY main { x = f32[4] parameter(0)
  start = ((f32[4], f32[4]), f32[4], u32[]) async-start(x, x), calls=wrapped
  update = ((f32[4], f32[4]), f32[4], u32[]) async-update(start)
  copying = (f32[4], f32[4], u32[]) copy-start(x)
  sum = f32[4] async-done(update)
  copied = f32[4] copy-done(copying)
  ROOT r = f32[4] multiply(sum, copied) }
"""
    assert_array_equal(run_text(text, X), 2 * X * X)


def test_one_device_is_replica_and_partition_0():
    text = "HloModule m\nENTRY e { p = u32[] partition-id()\n r = u32[] replica-id()\n ROOT t = (u32[], u32[]) tuple(p, r) }"
    assert flat(run_text(text)) == [0, 0]


@pytest.mark.slow
def test_a_chain_of_a_hundred_thousand_instructions_runs():
    count = 100_000
    module = parsed("HloModule long\nENTRY main { v0 = s32[] parameter(0)\n v1 = s32[] add(v0, v0) }")
    start, step = module.entry.instructions
    chain = [attrs.evolve(step, name=f"v{k}", operands=(f"v{k - 1}", "v0")) for k in range(1, count)]
    # The last instruction stands first, so that an order by recursion would have to go all the way down.
    entry = attrs.evolve(module.entry, instructions=(start, *reversed(chain)), root_name=f"v{count - 1}")
    plan = build(attrs.evolve(module, computations=(entry,)), entry, DEFAULTS)
    assert Machine(Topology()).run(plan, [np.array(1, np.int32)]) == [count]


@pytest.mark.parametrize(
    ("level", "value"),
    [
        ("one = s32[] constant(1)\n y = s32[] add(x, one)\n ROOT r = s32[] call(y), to_apply=level_", "depth"),
        ("i = s32[] constant(0)\n ROOT r = s32[] conditional(i, x), branch_computations={level_", ""),
    ],
    ids=["calls", "conditionals"],
)
def test_computations_nest_deeper_than_the_interpreter_recurses(level, value):
    depth = sys.getrecursionlimit() + 50
    end = "" if value else "}"
    parts = ["level_0 { x = s32[] parameter(0)\n ROOT r = s32[] add(x, x) }"]
    parts += [f"level_{k} {{ x = s32[] parameter(0)\n {level}{k - 1}{end} }}" for k in range(1, depth)]
    text = "HloModule deep\n" + "\n".join(parts)
    text += f"\nENTRY main {{ x = s32[] parameter(0)\n ROOT r = s32[] call(x), to_apply=level_{depth - 1} }}"
    assert run(parsed(text), np.int32(21)) == 2 * (21 + (depth - 1 if value else 0))


@pytest.mark.slow
def test_tuples_nest_deeper_than_the_interpreter_recurses():
    depth = sys.getrecursionlimit() + 50
    shape, lines = "f32[4]", ["  t0 = f32[4] parameter(0)"]
    for k in range(1, depth):
        shape = f"({shape})"
        lines.append(f"  t{k} = {shape} tuple(t{k - 1})")
    text = (
        "HloModule deep\nENTRY main {\n"
        + "\n".join(lines).replace(f"  t{depth - 1} =", f"  ROOT t{depth - 1} =")
        + "\n}"
    )
    value = run(parsed(text), X)
    for _ in range(1, depth):
        (value,) = value
    assert_array_equal(value, X)


def test_control_predecessors_run_first():
    text = """HloModule m
ENTRY e { x = f32[4] parameter(0)
  a = f32[4] add(x, x), control-predecessors={b}
  b = f32[4] multiply(x, x)
  ROOT r = f32[4] subtract(a, b) }
"""
    seen = []

    class Order:
        def on_instruction(self, event):
            seen.append(event.instruction.name)

    run(parsed(text), X, observers=[Order()])
    assert seen.index("b") < seen.index("a")


@pytest.mark.parametrize(
    "line", ['custom-call(x), custom_call_target="nobody_knows"', "fusion(x), kind=kLoop, calls=unsupported"]
)
def test_dead_instructions_do_not_run_even_if_unsupported(line):
    text = f"""HloModule m
unsupported {{ x = f32[4] parameter(0)
  ROOT r = f32[4] custom-call(x), custom_call_target="nobody_knows" }}
ENTRY e {{ x = f32[4] parameter(0)
  dead = f32[4] {line}
  ROOT r = f32[4] add(x, x) }}
"""
    assert_array_equal(run_text(text, X), 2 * X)


def test_a_computation_that_is_not_the_entry_can_be_run_alone():
    count, x = run_text(COUNTING_LOOP, (np.int32(3), X), computation="body")
    assert count == 4
    assert_array_equal(x, 2 * X)


def test_everything_that_is_missing_is_listed_at_once():
    text = """HloModule m
ENTRY e { x = f32[4] parameter(0)
  a = f32[4] custom-call(x), custom_call_target="nobody_knows"
  b = f32[4] custom-call(a), custom_call_target="nobody_knows"
  c = f32[4] custom-call(b), custom_call_target="neither_this"
  tok = token[] after-all()
  s = (f32[4], u32[], token[]) send(x, tok), is_host_transfer=true
  ROOT r = f32[4] add(x, c) }
"""
    with pytest.raises(UnsupportedError) as caught:
        run_text(text, X)
    message = str(caught.value)
    assert '"nobody_knows" (2 times; first: %a in computation e)' in message
    assert '"neither_this" (once; first: %c in computation e)' in message
    assert "opcode send (once; first: %s in computation e), where it has no channel_id" in message


GUARDED = """HloModule m
fine { x = f32[4] parameter(0)
  ROOT y = f32[4] add(x, x) }
inner { x = f32[4] parameter(0)
  ROOT c = f32[4] custom-call(x), custom_call_target="raises", custom_call_has_side_effect=true }
failing { x = f32[4] parameter(0)
  ROOT c = f32[4] call(x), to_apply=inner }
body { s = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[4] get-tuple-element(s), index=1
  bad = pred[] compare(i, two), direction=GT
  two = s32[] constant(2)
  one = s32[] constant(1)
  j = s32[] add(i, one)
  y = f32[4] conditional(bad, x, x), true_computation=failing, false_computation=fine
  ROOT t = (s32[], f32[4]) tuple(j, y) }
condition { s = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(5)
  ROOT r = pred[] compare(i, n), direction=LT }
ENTRY e { i = s32[] parameter(0)
  x = f32[4] parameter(1)
  s = (s32[], f32[4]) tuple(i, x)
  w = (s32[], f32[4]) while(s), condition=condition, body=body
  ROOT r = f32[4] get-tuple-element(w), index=1 }
"""
"""A loop with a branch that fails, as checks of errors have it; it is taken in iteration 3, from 0 on."""


@pytest.mark.parametrize("options", [{}, {"planner": False}, {"timeout": 100.0}], ids=["planned", "plain", "watched"])
def test_what_only_a_branch_lacks_fails_where_the_branch_is_taken(options):
    assert_array_equal(run_text(GUARDED, (np.int32(5), X), **options), X)
    short = GUARDED.replace("constant(5)", "constant(3)")
    assert_array_equal(run_text(short, (np.int32(0), X), **options), 8 * X)
    with pytest.raises(UnsupportedError, match=r'%c in computation inner.*does not run custom call "raises"') as caught:
        run_text(GUARDED, (np.int32(0), X), **options)
    assert "w[3]:body / y:failing" in str(caught.value)
    assert "register_custom_call" in str(caught.value)


@pytest.mark.parametrize("target", "raises xla_ffi_python_cpu_callback HostExecute tpu_custom_call".split())
def test_refusals_say_once_what_to_do(target):
    text = GUARDED.replace('"raises"', f'"{target}"')
    for refused in (text, text.replace("get-tuple-element(w), index=1", "call(x), to_apply=inner")):
        with pytest.raises(UnsupportedError, match=target) as caught:
            run_text(refused, (np.int32(0), X))
        assert str(caught.value).count("register_custom_call") == 1


def test_what_a_branch_and_other_places_lack_is_refused_before_the_run():
    text = GUARDED.replace("get-tuple-element(w), index=1", "call(x), to_apply=inner")
    with pytest.raises(UnsupportedError, match="once; first: %c in computation inner"):
        run_text(text, (np.int32(5), X))
    with pytest.raises(UnsupportedError, match="needs what hloexec does not run"):
        run_text(GUARDED, X, computation="inner")


@pytest.mark.parametrize("unknown", ["zeros", "random"])
def test_unknown_custom_calls_can_be_given_results(unknown):
    text = """HloModule m
ENTRY e { x = f32[4] parameter(0)
  c = (f32[4], s32[2]) custom-call(x), custom_call_target="nobody_knows"
  a = f32[4] get-tuple-element(c), index=0
  ROOT r = f32[4] add(x, a) }
"""
    with pytest.warns(HloWarning, match="nobody_knows"):
        result = run_text(text, X, unknown=unknown)
    assert np.array_equal(result, X) == (unknown == "zeros")


def test_registered_custom_calls_are_used_at_once_even_by_modules_that_ran_before():
    text = """HloModule m
ENTRY e { x = f32[4] parameter(0)
  ROOT c = f32[4] custom-call(x), custom_call_target="my_call" }
"""
    module = parsed(text)
    with pytest.warns(HloWarning, match="my_call"):
        assert not run(module, X, unknown="zeros").any()
    try:
        register_custom_call("my_call", lambda x: x * 3)
        assert_array_equal(run(module, X, unknown="zeros"), 3 * X)
        register_custom_call("my_call", lambda x: x * 5)
        assert_array_equal(run(module, X, unknown="zeros"), 5 * X)
    finally:
        unregister_custom_call("my_call")
    with pytest.raises(UnsupportedError, match="my_call"):
        run(module, X)


def replace_kernel(monkeypatch, name, evaluate):
    entry = attrs.evolve(registry.OPCODES[name], evaluate=registry.Rule(evaluate), fast_in=None)
    monkeypatch.setitem(registry.OPCODES, name, entry)


def test_kernel_errors_name_the_way_the_instruction_and_the_source(monkeypatch):
    text = """HloModule m
fused { a = f32[4] parameter(0)
  ROOT s = f32[4] add(a, a), metadata={source_file="model.py" source_line=12} }
body { s = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  x = f32[4] get-tuple-element(s), index=1
  y = f32[4] fusion(x), kind=kLoop, calls=fused
  ROOT t = (s32[], f32[4]) tuple(i, y) }
condition { s = (s32[], f32[4]) parameter(0)
  ROOT always = pred[] constant(true) }
ENTRY e { x = f32[4] parameter(0)
  z = s32[] constant(0)
  t = (s32[], f32[4]) tuple(z, x)
  ROOT w = (s32[], f32[4]) while(t), condition=condition, body=body }
"""

    def fails(*operands):
        raise ValueError("boom")

    replace_kernel(monkeypatch, "add", fails)
    with pytest.raises(EvaluationError) as caught:
        run(parsed(text), X)
    message = str(caught.value)
    assert "%s in computation fused" in message
    assert "w[0]:body / y" in message
    assert "ValueError: boom" in message
    assert "%s = f32[4] add(f32[4] %a, f32[4] %a)" in message
    assert "model.py:12" in message


def test_check_mode_finds_kernels_that_return_another_type(monkeypatch):
    replace_kernel(monkeypatch, "add", lambda a, b: (a + b).astype(np.float64))
    text = "HloModule m\nENTRY e { x = f32[4] parameter(0)\n ROOT r = f32[4] add(x, x) }"
    with pytest.raises(EvaluationError, match=r"returned float64\[4\].*shape is f32\[4\]"):
        run_text(text, X)


def test_a_computation_that_calls_itself_is_refused():
    text = """HloModule m
a { x = f32[4] parameter(0)
  ROOT r = f32[4] call(x), to_apply=b }
b { x = f32[4] parameter(0)
  ROOT r = f32[4] call(x), to_apply=a }
ENTRY e { x = f32[4] parameter(0)
  ROOT r = f32[4] call(x), to_apply=a }
"""
    with pytest.raises(VerificationError):
        run_text(text, X)


def test_plans_are_forgotten_with_their_module(garbage_of_this_test):
    module = parsed(COUNTING_LOOP)
    run(module, X)
    plan = weakref.ref(plan_of(module))
    assert plan_of(module) is plan()
    del module
    garbage_of_this_test()
    assert plan() is None


TURNS = """HloModule m, replica_count=4
special {
  x = f32[99] parameter(0)
  id = u32[] replica-id()
  f = f32[] convert(id)
  fs = f32[99] broadcast(f), dimensions={}
  z = f32[99] add(x, fs)
  ROOT y = f32[99] custom-call(z), custom_call_target="kept"
}
usual {
  x = f32[99] parameter(0)
  ROOT y = f32[99] custom-call(x), custom_call_target="kept"
}
body {
  s = (u32[], f32[99]) parameter(0)
  i = u32[] get-tuple-element(s), index=0
  x = f32[99] get-tuple-element(s), index=1
  one = u32[] constant(1)
  j = u32[] add(i, one)
  four = u32[] constant(4)
  turn = u32[] remainder(i, four)
  id = u32[] replica-id()
  is_turn = pred[] compare(id, turn), direction=EQ
  y = f32[99] conditional(is_turn, x, x), true_computation=special, false_computation=usual
  z = f32[99] collective-permute(y), source_target_pairs={{0,1},{1,2},{2,3},{3,0}}
  ROOT t = (u32[], f32[99]) tuple(j, z)
}
condition {
  s = (u32[], f32[99]) parameter(0)
  i = u32[] get-tuple-element(s), index=0
  n = u32[] constant(ROUNDS)
  ROOT more = pred[] compare(i, n), direction=LT
}
ENTRY e {
  x = f32[99] parameter(0)
  i = u32[] constant(0)
  s = (u32[], f32[99]) tuple(i, x)
  w = (u32[], f32[99]) while(s), condition=condition, body=body
  ROOT y = f32[99] get-tuple-element(w), index=1
}
"""


def test_tasks_that_split_and_join_in_each_round_keep_no_values() -> None:
    """What devices had when they took turns is freed once they have joined, however many rounds there are."""
    known: list[weakref.ref[np.ndarray]] = []
    alive: list[int] = []

    def kept(x: np.ndarray) -> np.ndarray:
        made = np.array(x)
        known.append(weakref.ref(made))
        alive.append(sum(ref() is not None for ref in known))
        return made

    most = []
    register_custom_call("kept", kept)
    try:
        for rounds in (8, 32):
            known.clear()
            alive.clear()
            inputs = [[np.full(99, device, np.float32)] for device in range(4)]
            hloexec.run_devices(parsed(TURNS.replace("ROUNDS", str(rounds))), inputs)
            most.append(max(alive))
    finally:
        unregister_custom_call("kept")
    assert most[0] == most[1]
