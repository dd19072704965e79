"""`extract`: an instruction as a module of its own, which runs to the same bits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import hloexec
from hloexec.errors import InputError
from hloexec.tools.extraction import slice_module, slice_of
from tests.exec.programs import COUNTING_LOOP
from tests.text.building import module

X = np.arange(4, dtype=np.float32)
SMALL = module("""
    x = f32[4] parameter(0)
    y = f32[4] parameter(1)
    unused = f32[4] parameter(2)
    a = f32[4] sine(x)
    two = f32[] constant(2)
    twos = f32[4] broadcast(two), dimensions={}
    b = f32[4] multiply(a, twos)
    c = f32[4] add(b, y)
    d = f32[4] negate(c)
    ROOT t = (f32[4], f32[4]) tuple(d, unused)""")


class Collector:
    """What each run of each instruction gave, and the devices."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def on_instruction(self, event: Any) -> None:
        self.events.append(event)


def assert_runs_alone(found: Any) -> None:
    """The new module reads, verifies, prints and runs to the recorded bits."""
    assert hloexec.parse(hloexec.format(found.module)) == found.module
    hloexec.verify(found.module, strict=True)
    assert found.check().has_same_bits


def extracted(text: str, instruction: str, *inputs: Any, **options: Any) -> Any:
    found = hloexec.extract(hloexec.parse(text), [list(inputs)], instruction, **options)
    assert_runs_alone(found)
    return found


def names(found: Any) -> list[str]:
    return [instruction.name for instruction in found.module.entry]


def test_a_slice_holds_what_the_instruction_needs_and_no_more() -> None:
    found = extracted(SMALL, "c", X, X + 1, X)
    assert names(found) == "x y a two twos b c".split()
    assert_array_equal(found.expected[0], np.sin(X) * 2 + (X + 1))
    assert_array_equal(found.inputs[0][1], X + 1)


@pytest.mark.parametrize(
    ("depth", "expected", "given"),
    [
        (1, "b y c", "b y"),
        (2, "y a twos b c", "y a twos"),
        (3, "x y a two twos b c", "x y"),
    ],
)
def test_depth_goes_back_so_many_steps(depth: int, expected: str, given: str) -> None:
    found = extracted(SMALL, "c", X, X + 1, X, depth=depth)
    assert sorted(names(found)) == sorted(expected.split())
    assert sorted(parameter.name for parameter in found.module.entry.parameters) == sorted(given.split())


def test_cuts_are_inputs_with_their_recorded_values() -> None:
    found = extracted(SMALL, "c", X, X + 1, X, cuts=["a"])
    assert [parameter.name for parameter in found.module.entry.parameters] == ["y", "a"]
    assert_array_equal(found.inputs[0][1], np.sin(X))


@pytest.mark.parametrize("iteration", [0, 3, 4])
def test_a_loops_body_is_recorded_in_the_iteration(iteration: int) -> None:
    found = extracted(COUNTING_LOOP, "doubled", X, iteration=iteration)
    assert names(found) == ["x", "doubled"]
    assert_array_equal(found.inputs[0][0], X * 2**iteration)
    assert_array_equal(found.expected[0], X * 2 ** (iteration + 1))
    assert (found.path, found.iteration) == (f"loop[{iteration}]:body/doubled", iteration)


def test_the_path_of_a_run_says_which_is_meant() -> None:
    found = extracted(COUNTING_LOOP, "loop[2]:body/doubled", X)
    assert_array_equal(found.inputs[0][0], X * 4)


def test_only_elements_that_are_used_are_given_of_a_tuple() -> None:
    found = extracted(COUNTING_LOOP, "again", X, iteration=2)
    assert [(entry.name, str(entry.shape)) for entry in found.module.entry.parameters] == [("i", "s32[]")]
    assert found.inputs[0] == [2]
    whole = extracted(COUNTING_LOOP, "i", X, in_computation="body", iteration=1)
    assert [entry.name for entry in whole.module.entry.parameters] == ["state"]


def test_a_whole_loop_takes_its_computations_along() -> None:
    found = extracted(COUNTING_LOOP, "loop", X)
    assert {computation.name for computation in found.module} == {"body", "condition", "main"}
    assert_array_equal(found.expected[0][1], X * 32)


NESTED = """HloModule m
scaled { p = f32[4] parameter(0) q = f32[] parameter(1)
  b = f32[4] broadcast(q), dimensions={}
  ROOT m = f32[4] multiply(p, b) }
twice { p = f32[4] parameter(0) c = f32[] constant(2) ROOT f = f32[4] fusion(p, c), kind=kLoop, calls=scaled }
half { p = f32[4] parameter(0) h = f32[] constant(0.5) ROOT f = f32[4] call(p, h), to_apply=scaled }
ENTRY e { k = pred[] parameter(0) x = f32[4] parameter(1)
  y = f32[4] sine(x)
  ROOT r = f32[4] conditional(k, y, y), true_computation=twice, false_computation=half }
"""


@pytest.mark.parametrize(("choice", "factor"), [(True, 2.0), (False, 0.5)])
def test_from_a_fusion_in_a_branch_with_the_values_it_had_there(choice: bool, factor: float) -> None:
    found = extracted(NESTED, "m", np.bool_(choice), X)
    assert_array_equal(found.inputs[0][0], np.sin(X))
    assert found.inputs[0][1] == factor
    assert found.path == ("r:twice/f/m" if choice else "r:half/f/m")


def test_every_instruction_of_the_examples_can_be_extracted() -> None:
    for name in ("attention.optimized", "rnn_scan"):
        program = hloexec.load(Path(__file__).parents[2] / "examples" / f"{name}.hlo")
        inputs = hloexec.random_inputs(program)
        collector = Collector()
        hloexec.run(program, *inputs, observers=[collector])
        paths = [event for event in collector.events if event.instruction.opcode not in ("parameter", "constant")]
        for event in paths[:: max(1, len(paths) // 25)]:
            found = hloexec.extract(program, [inputs], event.name)
            assert_runs_alone(found)
            assert found.path == event.name


def test_elided_constants_become_inputs() -> None:
    text = module("x = f32[4] parameter(0)\nw = f32[4] constant({...})\nROOT r = f32[4] add(x, w)")
    found = extracted(text, "r", X, elided={"w": X * 3})
    assert [parameter.name for parameter in found.module.entry.parameters] == ["x", "w"]
    assert_array_equal(found.inputs[0][1], X * 3)


def test_random_numbers_become_inputs() -> None:
    text = module("""
        low = f32[] constant(0)
        high = f32[] constant(1)
        u = f32[4] rng(low, high), distribution=rng_uniform
        ROOT r = f32[4] negate(u)""")
    found = extracted(text, "r", seed=5)
    assert_array_equal(found.inputs[0][0], -found.expected[0])


SUMMED = """HloModule m, replica_count=2
plus { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
ENTRY e { x = f32[2] parameter(0)
  h = f32[2] add(x, x)
  s = f32[2] all-reduce(h), replica_groups={{0,1}}, to_apply=plus
  ROOT r = f32[2] subtract(s, h) }"""


def test_a_slice_with_a_collective_is_for_all_devices() -> None:
    inputs = [[np.array([1, 2], np.float32)], [np.array([10, 20], np.float32)]]
    found = hloexec.extract(hloexec.parse(SUMMED), inputs, "r", depth=2)
    assert_runs_alone(found)
    assert found.module.replica_count == 2 and len(found.inputs) == 2
    assert_array_equal(found.expected[1], [2, 4])


def test_a_slice_for_one_device_takes_what_collectives_gave() -> None:
    inputs = [[np.array([1, 2], np.float32)], [np.array([10, 20], np.float32)]]
    found = hloexec.extract(hloexec.parse(SUMMED), inputs, "r", device=1)
    assert_runs_alone(found)
    assert found.module.replica_count == 1
    assert [parameter.name for parameter in found.module.entry.parameters] == ["x", "s"]
    assert_array_equal(found.inputs[0][1], [22, 44])
    # Without a collective in it, a slice is for one device anyway.
    assert len(hloexec.extract(hloexec.parse(SUMMED), inputs, "h", device=1).inputs) == 1
    assert_array_equal(hloexec.extract(hloexec.parse(SUMMED), inputs, "h").expected[0], [2, 4])


def test_asynchronous_pairs_stay_together() -> None:
    text = """HloModule m
ENTRY e { x = f32[4] parameter(0)
  n = f32[4] negate(x)
  s = (f32[4], f32[4], u32[]) copy-start(n)
  d = f32[4] copy-done(s)
  ROOT r = f32[4] sine(d) }"""
    found = extracted(text, "d", X, depth=1)
    assert names(found) == ["n", "s", "d"]
    with pytest.raises(InputError, match="copy-start"):
        extracted(text, "s", X)


def test_a_slice_is_made_without_running() -> None:
    program = hloexec.parse(SMALL)
    cut = slice_of(program.entry, "b", depth=1)
    assert (cut.inside, cut.boundary) == (("b",), ("a", "twos"))
    small = slice_module(program, cut)
    assert_array_equal(hloexec.run(small, X, X), X * X)


def test_what_is_saved_runs_again(tmp_path: Path) -> None:
    from hloexec.language import literals

    extracted(SMALL, "c", X, X + 1, X).save(tmp_path / "s")
    program = hloexec.load(tmp_path / "s" / "module.hlo")
    inputs = literals.load(tmp_path / "s" / "inputs.npz")
    expected = literals.load(tmp_path / "s" / "expected.npz")
    assert hloexec.run(program, *inputs).tobytes() == expected.tobytes()
    with pytest.raises(InputError, match="not empty"):
        extracted(SMALL, "c", X, X + 1, X).save(tmp_path / "s")


def test_mixed_float_widths_give_parameters_of_the_widths_they_have() -> None:
    text = """HloModule m
narrow { p = bf16[4] parameter(0) ROOT r = bf16[4] negate(p) }
ENTRY e { x = f32[4] parameter(0) ROOT f = bf16[4] fusion(x), kind=kLoop, calls=narrow }"""
    program = hloexec.parse(text)
    found = hloexec.extract(program, [[X]], "r")
    (parameter,) = found.module.entry.parameters
    assert parameter.shape.element_type.storage == found.inputs[0][0].dtype
    assert found.check().has_same_bits


@pytest.mark.parametrize(
    ("instruction", "options", "message"),
    [
        ("doubeld", {}, "has no instruction 'doubeld'; did you mean doubled"),
        ("i", {}, "2 computations have an instruction 'i': body, condition"),
        ("i", {"in_computation": "main"}, "computation main has no instruction 'i'"),
        ("i", {"in_computation": "nonsense"}, "no computation 'nonsense'"),
        ("x", {"in_computation": "main"}, "is a parameter"),
        ("doubled", {"iteration": 5}, r"did not run in iteration 5, but in the iterations 0 to 4"),
        ("doubled", {"iteration": -1}, "must not be negative"),
        ("loop[9]:body/doubled", {}, r"did not run as loop\[9\]:body/doubled"),
        ("loop[1]:body/doubled", {"iteration": 1}, "iteration must not be given"),
        ("nowhere[1]:body/doubled", {}, "did not run as"),
        ("doubled", {"depth": 0}, "depth must be at least 1"),
        ("doubled", {"cuts": ["again"]}, "has no instruction 'again'"),
        ("doubled", {"cuts": ["doubled"]}, "cannot be given at once"),
        ("doubled", {"device": 1}, "has no device 1"),
    ],
)
def test_wrong_uses_are_refused(instruction: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        hloexec.extract(hloexec.parse(COUNTING_LOOP), [[X]], instruction, **options)


def test_what_never_runs_and_what_cannot_be_seen_is_refused() -> None:
    dead = module("x = f32[4] parameter(0)\nd = f32[4] sine(x)\nROOT r = f32[4] negate(x)")
    with pytest.raises(InputError, match="did not run: nothing needs it"):
        hloexec.extract(hloexec.parse(dead), [[X]], "d")
    text = """HloModule m
plus { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
ENTRY e { x = f32[4] parameter(0)
  z = f32[] constant(0)
  ROOT s = f32[] reduce(x, z), dimensions={0}, to_apply=plus }"""
    with pytest.raises(InputError, match=r"runs within %s, .* extract %s instead"):
        hloexec.extract(hloexec.parse(text), [[X]], "c")


TEXT = """HloModule m, frontend_attributes={xla.sdy.meshes={mesh = #sdy.mesh<["d"=4]>}}

ENTRY main {
  x = f32[8,4] parameter(0)
  local = (f32[2,4]) custom-call(x), custom_call_target="xla.sdy.GlobalToLocalShape", custom_call_has_side_effect=true, frontend_attributes={xla.sdy.in_shardings="#sdy.sharding_per_value<[<@mesh, [{\\"d\\"}, {}]>]>",xla.sdy.manual_axes="#sdy<manual_axes{\\"d\\"}>"}
  shard = f32[2,4] get-tuple-element(local), index=0
  ROOT y = f32[2,4] negate(shard)
}
"""


@pytest.mark.parametrize(("name", "depth"), [("y", None), ("shard", None), ("y", 1)])
def test_a_part_is_for_as_many_devices_with_the_values_of_each(name: str, depth: int | None) -> None:
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    found = hloexec.extract(hloexec.parse(TEXT), [x], name, depth=depth)
    sign = -1 if name == "y" else 1
    assert_array_equal(np.stack(found.expected), sign * x.reshape(4, 2, 4))
    assert found.check().has_same_bits


def test_a_part_for_one_of_them_begins_behind_what_devices_exchange() -> None:
    x = np.arange(32, dtype=np.float32).reshape(8, 4)
    found = hloexec.extract(hloexec.parse(TEXT), [x], "y", device=1)
    assert_array_equal(found.expected, -x.reshape(4, 1, 2, 4)[1])
    assert found.check().has_same_bits and "mesh" not in hloexec.format(found.module)
