"""Arguments as users of JAX have them: nested containers, whose leaves are the parameters."""

import subprocess
import sys
from collections import OrderedDict, namedtuple
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.errors import HloError, HloWarning, InputError

Layer = namedtuple("Layer", "w b")
W, B, X, Y = (
    np.arange(6, dtype=np.float32).reshape(2, 3),
    np.array([[1], [2]], np.float32),
    np.arange(12, dtype=np.float32).reshape(3, 4),
    np.arange(4, dtype=np.int32),
)
EXPECTED = W @ X + B + Y
"""Small integers: exact in any order."""

NAMED = """HloModule m
ENTRY e {
  params__l1___w.1 = f32[2,3] parameter(0)
  params__l1___b.1 = f32[2,1] parameter(1)
  batch__x__.1 = f32[3,4] parameter(2)
  batch__y__.1 = s32[4] parameter(3)
  d = f32[2,4] dot(params__l1___w.1, batch__x__.1), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  r = f32[2] reshape(params__l1___b.1)
  b = f32[2,4] broadcast(r), dimensions={0}
  s = f32[2,4] add(d, b)
  c = f32[4] convert(batch__y__.1)
  y = f32[2,4] broadcast(c), dimensions={1}
  ROOT z = f32[2,4] add(s, y)
}"""
UNNAMED = NAMED.replace("params__l1___w.1", "Arg_0.1").replace("params__l1___b.1", "Arg_1.2")
UNNAMED = UNNAMED.replace("batch__x__.1", "Arg_2.3").replace("batch__y__.1", "Arg_3.4")
WITH_OP_NAMES = UNNAMED
for number, path in enumerate((r"params[\'l1\'].w", r"params[\'l1\'].b", r"batch[\'x\']", r"batch[\'y\']")):
    WITH_OP_NAMES = WITH_OP_NAMES.replace(f"parameter({number})", f'parameter({number}), metadata={{op_name="{path}"}}')
PARAMS, BATCH = {"l1": Layer(W, B), "none": None}, {"y": Y, "x": X}
DROPPED = {"l0": [X, X], "l1": Layer(W, B), "z": W}, {"y": Y, "x": X, "a": X}, np.float32(3)

TEXTS = {"names": NAMED, "numbers": UNNAMED, "op_names": WITH_OP_NAMES}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    "inputs",
    [
        (PARAMS, BATCH),
        ((PARAMS, BATCH),),
        ([PARAMS, BATCH],),
        ((W, [B, (X, {"k": Y})]),),
        (W, [B], (X, Y)),
        ([W, B], [X, Y]),
        (PARAMS, X, OrderedDict(y=Y)),
        (PARAMS, None, BATCH, {}),
    ],
)
@pytest.mark.filterwarnings("ignore:the module names")
def test_leaves_in_order_are_the_parameters(text: str, inputs: Any) -> None:
    assert np.array_equal(hloexec.run(hloexec.parse(TEXTS[text]), *inputs), EXPECTED)  # type: ignore[arg-type]


def test_a_tree_is_taken_by_every_function(tmp_path: Path) -> None:
    module, trees = hloexec.parse(NAMED), (PARAMS, BATCH)
    hloexec.record_golden(module, trees, tmp_path / "m.golden", expected={"out": EXPECTED})
    assert hloexec.check_golden(tmp_path / "m.golden").passed
    assert hloexec.compare(EXPECTED, EXPECTED, module=module, inputs=trees).agrees
    assert hloexec.explain(module, trees, EXPECTED).best.policy.name == "reference"
    assert hloexec.diff(module, hloexec.parse(UNNAMED), trees).agrees
    assert hloexec.find_nan(module, trees).finding is None
    (one, other) = hloexec.run_devices(module, [trees, [PARAMS, {"x": X, "y": Y + 1}]], partitions=2)
    assert np.array_equal(one, EXPECTED) and np.array_equal(other, EXPECTED + 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["names", "op_names"])
@pytest.mark.parametrize("given", [DROPPED, (DROPPED,), ({"params": DROPPED[0], "batch": DROPPED[1], "step": 3},)])
def test_arguments_that_jit_has_dropped_are_known_by_their_paths(text: str, given: Any) -> None:
    with pytest.warns(HloWarning, match=r"belong to no parameter, as arguments that jit drops") as said:
        assert np.array_equal(hloexec.run(hloexec.parse(TEXTS[text]), *given), EXPECTED)
    (message,) = {str(each.message) for each in said}
    assert "['l0'][0]" in message and "['z']" in message and "['a']" in message and ".w" not in message


def test_names_of_arguments_may_come_in_any_order() -> None:
    """JAX's order is that of the function's parameters, which a dict does not tell."""
    for text in (NAMED, WITH_OP_NAMES):
        assert np.array_equal(hloexec.run(hloexec.parse(text), {"batch": BATCH, "params": PARAMS}), EXPECTED)


def twins(first: str, second: str) -> hloexec.Module:
    text = f" {first} = f32[2] parameter(0)\n {second} = f32[2] parameter(1)\n"
    return hloexec.parse(f"HloModule m\nENTRY e {{\n{text} ROOT r = f32[2] subtract({first}, {second}) }}")


ONE, TWO = np.ones(2, np.float32), np.full(2, 2, np.float32)


@pytest.mark.parametrize(
    ("module", "given", "message"),
    [
        (hloexec.parse(NAMED), (PARAMS,), r"hold 2 arrays, but computation e takes 4 inputs"),
        (
            hloexec.parse(UNNAMED),
            DROPPED,
            r"hold 9 arrays, but computation e takes 4 inputs.*several ways|several ways",
        ),
        (hloexec.parse(NAMED), ({"l2": W, "l3": [B, X, Y, Y]}, 3), r"hold 6 arrays, but computation e takes 4 inputs"),
        (twins("Arg_0.1", "Arg_1.2"), ({"y": ONE, "x": TWO},), "several ways"),
        (twins("x.1", "y.1"), ({"x": ONE, "z": TWO},), "has no parameter 'x', but 2|has no parameter 'z'"),
        (twins("m__a__.1", "v__b__.1"), ({"a": ONE, "b": ONE}, {"b": TWO}, {"b": ONE}), "several ways"),
        (twins("p", "q"), ({1: ONE, "x": TWO},), "p, q"),
        (twins("p", "q"), ([{1: ONE, "x": TWO}, ONE],), "cannot be sorted"),
    ],
)
def test_what_does_not_fit_is_said_with_both_counts(module: Any, given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        hloexec.run(module, *given)


def test_a_leaf_of_another_shape_is_named() -> None:
    with pytest.raises(InputError, match=r"parameter 1 \(Arg_1.2\) must be f32\[2,1\]"):
        hloexec.run(hloexec.parse(UNNAMED), {"l1": Layer(W, W)}, BATCH)


def test_a_tree_that_holds_itself_is_an_error() -> None:
    loop: list[Any] = [W]
    loop.append(loop)
    with pytest.raises(HloError, match="deep"):
        hloexec.run(hloexec.parse(NAMED), {"a": loop})


def test_names_that_contradict_the_order_are_said() -> None:
    with pytest.warns(HloWarning, match=r"the module names .*\['b'\] is x\.1"):
        assert hloexec.run(twins("x.1", "y.1"), {"b": ONE}, TWO)[0] == -1  # type: ignore[index]


def test_a_device_that_lacks_an_array_gets_none_of_another() -> None:
    module = hloexec.parse(NAMED)
    with pytest.raises(InputError, match=r"device 1: .*takes 4 inputs .*3 were given"):
        hloexec.run_devices(module, [[W, B, X, Y], [W, B, X]], partitions=2)


def test_lists_of_arrays_are_those_of_devices_but_where_there_is_one_device() -> None:
    module = twins("Arg_0.1", "Arg_1.2")
    assert hloexec.run(module, ([ONE], [TWO]))[0] == -1  # type: ignore[index]
    with pytest.raises(InputError, match=r"device 0: .*takes 2 inputs .*1 were given"):
        hloexec.run_devices(module, [[ONE], [TWO]], partitions=2)
    with pytest.raises(InputError, match=r"takes 2 inputs|one list of inputs per device"):
        hloexec.find_nan(module, [[ONE], [TWO]])


def test_tuple_parameters_stay_tuples() -> None:
    text = """HloModule m
ENTRY e { p = (f32[2], f32[2]) parameter(0)
  a = f32[2] get-tuple-element(p), index=0
  b = f32[2] get-tuple-element(p), index=1
  ROOT r = f32[2] subtract(a, b) }"""
    for given in (((ONE, TWO),), ([(ONE, TWO)],), ({"p": [ONE, TWO]},), (Layer(ONE, TWO),)):
        assert hloexec.run(hloexec.parse(text), *given)[0] == -1  # type: ignore[index]


def test_results_are_expected_as_trees() -> None:
    module = hloexec.parse(
        "HloModule m\nENTRY e { p = f32[2] parameter(0)\n q = f32[3] parameter(1)\n l = f32[] constant(1)\n"
        " ROOT t = (f32[2], f32[3], f32[]) tuple(p, q, l) }"
    )
    out: Any = hloexec.run(module, ONE, np.ones(3, np.float32))
    for expected in (
        ({"a": out[0], "b": out[1]}, out[2]),
        ({"b": out[1], "a": out[0]}, None, Layer(out[2], None)),
        (Layer(*out[:2]), {"loss": out[2]}),
    ):
        with pytest.warns(HloWarning, match="paired by their shapes"):
            assert hloexec.compare(out, expected).agrees
            assert not hloexec.compare((out[0] + 1, *out[1:]), expected).agrees


def test_goldens_and_explain_take_results_as_trees(tmp_path: Path) -> None:
    text = "HloModule m\nENTRY e { p = f32[2] parameter(0)\n q = f32[3] parameter(1)\n ROOT t = (f32[2], f32[3]) tuple(p, q) }"
    module, inputs = hloexec.parse(text), (ONE, np.ones(3, np.float32))
    trees: list[Any] = [
        {"s": {"b": inputs[0]}, "t": inputs[1]},
        (None, inputs[0], [inputs[1]]),
        ({"a": inputs[0]}, inputs[1]),
    ]
    for number, tree in enumerate(trees):
        with pytest.warns(HloWarning, match="paired by their shapes") if number != 1 else nullcontext():
            golden = hloexec.record_golden(module, inputs, tmp_path / f"{number}.golden", expected=tree)
            assert hloexec.explain(module, inputs, tree).best.policy.name == "reference"
            assert hloexec.compare(inputs, tree).agrees and hloexec.compare(tree, inputs).agrees
        assert hloexec.check_golden(golden.folder).passed


def test_classes_that_jax_knows_are_trees() -> None:
    pytest.importorskip("jax")
    code = """
import dataclasses, jax, numpy as np, hloexec
@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    w: np.ndarray
    rest: dict
    name: str = dataclasses.field(default="s", metadata={"static": True})
@jax.jit
def f(state, batch, unused):
    return {"y": state.w @ batch["x"], "n": State(state.rest["b"], {})}
state = State(np.ones((2, 3), np.float32), {"b": np.ones(2, np.float32), "c": np.ones(7, np.float32)})
batch = {"x": np.ones((3, 2), np.float32)}
for staged in (f.lower(state, batch, 3.0), jax.jit(f, keep_unused=True).lower(state, batch, 3.0)):
    module = hloexec.from_jax(staged)
    ours = hloexec.run(module, state, batch, 3.0)
    assert hloexec.compare(ours, f(state, batch, 3.0), module=module, inputs=(state, batch, 3.0)).agrees
alone = hloexec.from_jax(lambda state: state.w + 1, state)
assert np.array_equal(hloexec.run(alone, state), state.w + 1)
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=120)


def test_typed_keys_of_random_numbers_are_their_integers() -> None:
    pytest.importorskip("jax")
    code = """
import jax, numpy as np, hloexec
@jax.jit
def f(state, keys, unused):
    noise = jax.random.bits(state["key"], (3,))
    return {"bits": noise + jax.vmap(lambda key: jax.random.bits(key, (3,)))(keys).sum(0), "next": state["key"]}
for implementation in ("threefry2x32", "rbg"):
    key = jax.random.key(3, impl=implementation)
    state, keys, unused = {"key": key, "unused": 1.0}, jax.random.split(key, 4), jax.random.key(5)
    expected = jax.device_get(f(state, keys, unused)["bits"]), jax.random.key_data(key)
    module = hloexec.from_jax(f.lower(state, keys, unused))
    words = jax.random.key_data(key), jax.random.key_data(keys)
    for given in ((state, keys, unused), words, (key, keys), {0: key, 1: keys}):
        result = hloexec.run(module, *(given if isinstance(given, tuple) else [given]))
        assert all(map(np.array_equal, result, expected)), (implementation, given)
    assert hloexec.diff(module, module, [key, keys]).agrees
    assert hloexec.compare(result, [expected[0], key]).agrees
    try:
        hloexec.run(module, keys, key)
        raise SystemExit("the wrong shape was taken")
    except hloexec.InputError as error:
        assert "must be u32[" in str(error), error
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=120)
