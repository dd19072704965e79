"""Mixed float widths, which the verifier notes and tolerates: each result is of the type its instruction declares.

A value that meets a declaration of another width is rounded to it there; expected values are worked out with explicit
rounding, in the order of the text.
"""

import random
import warnings

import attrs
import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from hloexec.core import ir
from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.core.tree import flat
from hloexec.engine.exec import plan_of, run
from hloexec.engine.plan.kernels import Conversion
from hloexec.engine.plan.steps import While
from hloexec.errors import HloError, InputError, ResourceError, UnsupportedError
from hloexec.ops.common import narrow
from tests.drawing import examples
from tests.exec.programs import parsed, run_text
from tests.text.cases import ACCEPTED

BF16 = ml_dtypes.bfloat16
# 1 + 2⁻⁹ lies between two bf16 numbers, 1 + 2⁻⁷ does not.
X = np.array([[1 + 2**-9, 2.0], [-3.03, 1 + 2**-7]], np.float32)

MOVEMENTS = {
    "broadcast": ("[3,2,2] broadcast(x), dimensions={1,2}", lambda x: np.broadcast_to(x, (3, 2, 2))),
    "reshape": ("[4] reshape(x)", lambda x: x.reshape(4)),
    "transpose": ("[2,2] transpose(x), dimensions={1,0}", lambda x: x.T),
    "slice": ("[1,2] slice(x), slice={[1:2],[0:2]}", lambda x: x[1:]),
    "reverse": ("[2,2] reverse(x), dimensions={1}", lambda x: x[:, ::-1]),
    "copy": ("[2,2] copy(x)", lambda x: x),
    "dynamic-slice": ("[1,2] dynamic-slice(x, one, zero), dynamic_slice_sizes={1,2}", lambda x: x[1:]),
    "gather": (
        "[2,2] gather(x, i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, "
        "slice_sizes={1,2}",
        lambda x: x[[1, 1]],
    ),
    "concatenate": ("[4,2] concatenate(x, x), dimensions={0}", lambda x: np.concatenate([x, x])),
    "pad": ("[2,3] pad(x, h), padding=0_0x0_1", lambda x: np.pad(x, ((0, 0), (0, 1)), constant_values=0.5)),
    "opt-barrier": ("[2,2] opt-barrier(x)", lambda x: x),
    "select": ("[2,2] select(p, x, x)", lambda x: x),
}


def rounded(array, name: str):
    return narrow(np.ascontiguousarray(array), ELEMENT_TYPES[name])


@pytest.mark.parametrize("name", MOVEMENTS)
@pytest.mark.parametrize("types", [("f32", "bf16"), ("bf16", "f32"), ("f64", "bf16"), ("f32", "f8e4m3fn")])
def test_movements_round_to_the_declared_type(name, types):
    source, target = types
    text, move = MOVEMENTS[name]
    x = X.astype(ELEMENT_TYPES[source].storage)
    module = f"""HloModule m
ENTRY e {{ x = {source}[2,2] parameter(0)
  one = s32[] constant(1)
  zero = s32[] constant(0)
  h = {source}[] constant(0.5)
  i = s32[2,1] constant({{{{1}}, {{1}}}})
  p = pred[2,2] broadcast(t), dimensions={{}}
  t = pred[] constant(true)
  ROOT r = {target}{text} }}
"""
    actual = run_text(module, x)
    expected = rounded(move(x.astype(np.float64)), target)
    assert actual.dtype == expected.dtype
    assert_array_equal(actual, expected)


CALLED = """HloModule m
called { a = bf16[2,2] parameter(0)
  ROOT s = f32[2,2] add(a, a) }
ENTRY e { x = f32[2,2] parameter(0)
  CALL
  ROOT r = (bf16[2,2]) tuple(c) }
"""


@pytest.mark.parametrize(
    "call",
    [
        "c = bf16[2,2] call(x), to_apply=called",
        "c = bf16[2,2] fusion(x), kind=kLoop, calls=called",
        "p = pred[] constant(true)\n c = bf16[2,2] conditional(p, x, x), true_computation=called, false_computation=called",
        "s = ((f32[2,2]), bf16[2,2], u32[]) async-start(x), calls=called\n c = bf16[2,2] async-done(s)",
    ],
)
@pytest.mark.parametrize("is_planned", [False, True])
def test_parameters_and_results_of_called_computations_round(call, is_planned, monkeypatch):
    if is_planned:
        monkeypatch.setattr("hloexec.engine.plan.planner._INLINED_STEPS", -1)
        call += "\n  d = bf16[2,2] call(x), to_apply=called\n e = bf16[2,2] add(c, d)"
        text = CALLED.replace("CALL", call).replace("tuple(c)", "tuple(e)")
        (result,) = run_text(text, X)
        expected = rounded(2 * rounded(X, "bf16").astype(np.float32), "bf16")
        assert_array_equal(result, rounded(2 * expected.astype(np.float32), "bf16"))
        return
    (result,) = run_text(CALLED.replace("CALL", call), X)
    assert result.dtype == BF16
    assert_array_equal(result, rounded(2 * rounded(X, "bf16").astype(np.float32), "bf16"))


LOOP = """HloModule m
body { s = (s32[], PARAMETER[4]) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  x = PARAMETER[4] get-tuple-element(s), index=1
  third = PARAMETER[] constant(1.34375)
  b = PARAMETER[4] broadcast(third), dimensions={}
  y = RESULT[4] multiply(x, b)
  one = s32[] constant(1)
  m = s32[] add(n, one)
  ROOT r = (s32[], RESULT[4]) tuple(m, y) }
condition { s = (s32[], bf16[4]) parameter(0)
  n = s32[] get-tuple-element(s), index=0
  five = s32[] constant(5)
  ROOT lt = pred[] compare(n, five), direction=LT }
ENTRY e { x = START[4] parameter(0)
  zero = s32[] constant(0)
  s = (s32[], START[4]) tuple(zero, x)
  w = (s32[], STATE[4]) while(s), condition=condition, body=body
  ROOT r = STATE[4] get-tuple-element(w), index=1 }
"""


@pytest.mark.parametrize("start", ["f32", "bf16"])
@pytest.mark.parametrize("parameter", ["f32", "bf16"])
@pytest.mark.parametrize("result", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("state", ["f32", "bf16"])
def test_the_state_of_a_loop_is_of_the_loops_type(start, parameter, result, state):
    text = LOOP.replace("START", start).replace("PARAMETER", parameter).replace("RESULT", result)
    x = np.array([1 + 2**-9, -3.03, 1e-3, 7], ELEMENT_TYPES[start].storage)
    actual = run_text(text.replace("STATE", state), x)
    expected = rounded(x.astype(np.float64), state)
    for _ in range(5):
        seen = rounded(expected.astype(np.float64), parameter)
        product = rounded(seen.astype(np.float64) * 1.34375, result)
        expected = rounded(product.astype(np.float64), state)
    assert actual.dtype == expected.dtype
    assert_array_equal(actual, expected)


def test_a_reducer_of_another_width_gives_the_declared_type():
    text = """HloModule m
add { a = f32[] parameter(0)
  b = f32[] parameter(1)
  t = (f32[]) tuple(a)
  c = bf16[] get-tuple-element(t), index=0
  ROOT r = f32[] add(c, b) }
ENTRY e { x = bf16[4] parameter(0)
  z = bf16[] constant(0)
  ROOT r = bf16[] reduce(x, z), dimensions={0}, to_apply=add }
"""
    assert run_text(text, np.array([1, 2, 3, 4], BF16)) == 10


def test_what_is_sent_is_of_the_type_that_the_send_declares():
    text = """HloModule m
ENTRY e { x = f32[2,2] parameter(0)
  t = token[] after-all()
  s = (bf16[2,2], u32[], token[]) send(x, t), channel_id=1, is_host_transfer=true
  d = token[] send-done(s), channel_id=1, is_host_transfer=true
  ROOT r = () tuple() }
"""
    sent: list[np.ndarray] = []
    run_text(text, X, host_transfers={1: sent})
    assert sent[0].dtype == BF16


def test_observers_see_each_instruction_once_and_as_declared():
    text = LOOP.replace("START", "f32").replace("PARAMETER", "bf16").replace("RESULT", "f32").replace("STATE", "f32")
    seen: list[str] = []

    class Observer:
        def on_instruction(self, event):
            seen.append(event.name)
            for value, (_, shape) in zip(flat(event.value), ir.leaf_shapes(event.instruction.shape), strict=True):
                assert value.dtype == shape.element_type.storage, event.name

    run(parsed(text), np.ones(4, np.float32), observers=[Observer()])
    assert len(seen) == len(set(seen))


def test_equal_widths_cost_nothing():
    text = LOOP
    for name in "START PARAMETER RESULT STATE".split():
        text = text.replace(name, "bf16")
    plan = plan_of(parsed(text))
    (loop,) = (step for step in plan.steps if isinstance(step.flow, While))
    assert not any(isinstance(step.kernel, Conversion) for step in (*plan.steps, *plan.program))
    assert [step.instruction.name for step in loop.flow.body.steps] == ["y", "m"]
    assert [step.instruction.name for step in loop.flow.condition.steps] == ["lt"]


def with_other_widths(shape: ir.Shape, choices: random.Random) -> ir.Shape:
    if isinstance(shape, ir.TupleShape):
        return ir.TupleShape(tuple(with_other_widths(element, choices) for element in shape.elements))
    if isinstance(shape, ir.ArrayShape) and shape.element_type.is_floating and choices.random() < 0.8:
        return shape.with_element_type(ELEMENT_TYPES[choices.choice(("bf16", "f32", "f64", "f16", "f8e5m2"))])
    return shape


def mixed(module: ir.Module, choices: random.Random) -> ir.Module:
    """The module with some instructions' floats declared in other widths."""
    computations = [
        attrs.evolve(
            computation,
            instructions=tuple(
                attrs.evolve(instruction, shape=with_other_widths(instruction.shape, choices))
                if choices.random() < 0.4 and instruction.opcode != "constant"
                else instruction
                for instruction in computation
            ),
        )
        for computation in module
    ]
    return attrs.evolve(module, computations=tuple(computations), entry_computation_layout=None, input_output_alias=())


def test_every_opcode_gives_what_it_declares_whatever_widths_meet():
    choices = random.Random(7)
    ran: set[str] = set()
    for name, text in ACCEPTED.items():
        if "dynamic-reshape" in name:
            # Its extents are values, which random inputs do not know to be bounded.
            continue
        module = hloexec.parse(text)
        for _ in range(examples(2) if module.instruction_count < 200 else 0):
            changed = mixed(module, choices)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    inputs = hloexec.random_inputs(changed)
                except HloError:
                    # Not every mixture is tolerated, and not every parameter has values.
                    continue
                try:
                    # `check` compares each result with its declaration.
                    run(changed, *inputs, check=True, memory_limit=10**8)
                except (UnsupportedError, InputError, ResourceError):
                    continue
            ran |= {instruction.opcode for computation in changed for instruction in computation}
    assert len(ran) > 90


def test_what_a_loop_only_reads_is_of_the_loops_type() -> None:
    text = """HloModule m
body { s = (s32[], bf16[4], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  one = s32[] constant(1)
  n = s32[] add(i, one)
  step = bf16[4] get-tuple-element(s), index=1
  x = f32[4] get-tuple-element(s), index=2
  wide = f32[4] convert(step)
  y = f32[4] add(x, wide)
  ROOT t = (s32[], bf16[4], f32[4]) tuple(n, step, y) }
condition { s = (s32[], bf16[4], f32[4]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  end = s32[] constant(20)
  ROOT less = pred[] compare(i, end), direction=LT }
ENTRY e { step = f32[4] parameter(0)
  x = f32[4] parameter(1)
  z = s32[] constant(0)
  s = (s32[], f32[4], f32[4]) tuple(z, step, x)
  w = (s32[], bf16[4], f32[4]) while(s), condition=condition, body=body
  ROOT r = f32[4] get-tuple-element(w), index=2 }
"""
    step = np.array([1 + 2**-9, 1.3, -2.7, 1e-3], np.float32)
    rounded = step.astype(ml_dtypes.bfloat16).astype(np.float32)
    expected = np.zeros(4, np.float32)
    for _ in range(20):
        expected += rounded
    for planner in (True, False):
        result = hloexec.run(hloexec.parse(text), step, np.zeros(4, np.float32), planner=planner)
        assert_array_equal(result, expected)


def test_each_operand_of_a_collective_has_its_own_type() -> None:
    text = """HloModule m, replica_count=2
sum { a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b) }
ENTRY e { x = f32[3] parameter(0)
  y = bf16[3] parameter(1)
  ROOT r = (bf16[3], f32[3]) all-reduce(y, x), replica_groups={{0,1}}, to_apply=sum }
"""
    wide = [np.array([1 + 2**-20, 1e-3, 3], np.float32), np.array([2**-20, 2e-3, 4], np.float32)]
    narrow = [value.astype(ml_dtypes.bfloat16) for value in wide]
    results = hloexec.run_devices(hloexec.parse(text), [[wide[0], narrow[0]], [wide[1], narrow[1]]])
    total = (narrow[0].astype(np.float32) + narrow[1].astype(np.float32)).astype(ml_dtypes.bfloat16)
    for first, second in results:
        assert_array_equal(first, total, strict=True)
        assert_array_equal(second, wide[0] + wide[1], strict=True)


@pytest.mark.parametrize("numerics", ["reference", "ftz"])
@pytest.mark.parametrize("result", ["f32", "bf16"])
def test_updates_of_other_widths_and_under_policies_that_flush(result: str, numerics: str) -> None:
    text = f"""HloModule m
add {{ a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b) }}
ENTRY e {{ x = f32[4,2] parameter(0)
  u = f32[1,2] parameter(1)
  a = f32[4,2] add(x, x)
  one = s32[] constant(1)
  zero = s32[] constant(0)
  y = {result}[4,2] dynamic-update-slice(a, u, one, zero)
  b = f32[4,2] subtract(x, x)
  place = s32[1] constant({{2}})
  z = {result}[4,2] scatter(b, place, u), update_window_dims={{1}}, inserted_window_dims={{0}}, \
scatter_dims_to_operand_dims={{0}}, index_vector_dim=1, to_apply=add
  ROOT r = ({result}[4,2], {result}[4,2]) tuple(y, z) }}
"""
    storage = np.float32 if result == "f32" else ml_dtypes.bfloat16
    x = np.arange(8, dtype=np.float32).reshape(4, 2) + np.float32(2**-9)
    update = np.array([[1 + 2**-9, -3]], np.float32)
    updated, scattered = 2 * x, np.zeros((4, 2), np.float32)
    updated[1], scattered[2] = update[0], update[0]
    module = hloexec.parse(text)
    for _ in range(20):
        first, second = hloexec.run(module, x, update, numerics=numerics)
        assert_array_equal(first, updated.astype(storage), strict=True)
        assert_array_equal(second, scattered.astype(storage), strict=True)


@pytest.mark.parametrize("how", ["call", "fusion"])
def test_a_computation_gives_each_caller_the_type_that_it_wants(how: str) -> None:
    called = "call(x), to_apply=inner" if how == "call" else "fusion(x), kind=kLoop, calls=inner"
    text = f"""HloModule m
inner {{ x = f32[4] parameter(0)
  ROOT y = f32[4] add(x, x) }}
ENTRY e {{ x = f32[4] parameter(0)
  a = f32[4] {called}
  b = bf16[4] {called}
  c = f32[4] {called}
  d = f16[4] {called}
  ROOT r = (f32[4], bf16[4], f32[4], f16[4]) tuple(a, b, c, d) }}
"""
    x = np.array([1 + 2**-20, 1.3, -2.7, 1e-3], np.float32)
    for planner in (True, False):
        results = hloexec.run(hloexec.parse(text), x, planner=planner)
        for result, dtype in zip(results, (np.float32, ml_dtypes.bfloat16, np.float32, np.float16), strict=True):
            assert_array_equal(result, (x + x).astype(dtype), strict=True)


def test_a_tuple_of_one_element_rounds_to_the_declared_type():
    text = "HloModule m\nENTRY e {\n  x = f32[2,2] parameter(0)\n  ROOT t = (bf16[2,2]) tuple(x)\n}\n"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (result,) = hloexec.run(hloexec.parse(text), X)
    assert_array_equal(result, rounded(X, "bf16"))


@pytest.mark.parametrize("opcode", ["maximum", "minimum"])
def test_extrema_of_zeros_of_other_widths_keep_the_sign(opcode):
    text = f"HloModule m\nENTRY e {{\n  x = f32[3] parameter(0)\n  y = f64[3] parameter(1)\n  ROOT r = f64[3] {opcode}(x, y)\n}}\n"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = hloexec.run(hloexec.parse(text), np.array([-0.0, 1, -0.0], np.float32), np.array([0.0, 1, -0.0]))
    assert list(np.signbit(result)) == [opcode == "minimum", False, True]
