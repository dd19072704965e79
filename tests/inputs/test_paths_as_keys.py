"""Keys that are the paths of leaves in a function's arguments, as JAX, Flax and others write them."""

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.errors import HloWarning, InputError, LiteralError
from hloexec.language import literals
from tests.command_line import CommandLine

K, Q, B, X, Y = (np.full(2, value, np.float32) for value in range(1, 6))
NAMES = {
    "params__blocks___0___attn____k__": r"params[\'blocks\'][0][\'attn\'][\'k\']",
    "params__blocks___0___attn____q__": r"params[\'blocks\'][0][\'attn\'][\'q\']",
    "params__b_0__": r"params[\'b_0\']",
    "batch__x__": r"batch[\'x\']",
    "state_y": "state.y",
}
WEIGHTS = 1, 10, 100, 1000, 10000


def text(names: dict[str, str], form: str) -> str:
    """The sum of all parameters, each times its weight: a wrong order shows."""
    lines, total = [], ""
    for number, (name, path) in enumerate(names.items()):
        metadata = f', metadata={{op_name="{path}"}}' if form != "names" else ""
        own = f"param.{number}" if form == "op_names" else f"{name}.1"
        lines += [
            f"{own} = f32[2] parameter({number}){metadata}",
            f"w.{number}.0 = f32[] constant({WEIGHTS[number]})",
            f"v.{number}.0 = f32[2] broadcast(w.{number}.0), dimensions={{}}",
            f"t.{number}.0 = f32[2] multiply({own}, v.{number}.0)",
        ]
        if total:
            lines.append(f"s.{number}.0 = f32[2] add({total}, t.{number}.0)")
        total = f"{'s' if total else 't'}.{number}.0"
    lines[-1] = "ROOT " + lines[-1]
    return "HloModule m\nENTRY e {\n  " + "\n  ".join(lines) + "\n}\n"


FORMS = ("names", "op_names", "both")
EXPECTED = np.full(2, 54321, np.float32)
KEYS = {
    "JAX": ("params['blocks'][0]['attn']['k']", "params['blocks'][0]['attn']['q']", "params['b_0']", "batch['x']", "state.y"),
    "without arguments": ("['blocks'][0]['attn']['k']", "['blocks'][0]['attn']['q']", "['b_0']", "batch['x']", "state.y"),
    "slashes": ("params/blocks/0/attn/k", "params/blocks/0/attn/q", "params/b_0", "batch/x", "state/y"),
    "dots": ("params.blocks.0.attn.k", "params.blocks.0.attn.q", "params.b_0", "batch.x", "state.y"),
    "underscores": ("params_blocks_0_attn_k", "params__blocks__0__attn__q", "params_b_0", "batch_x", "state_y"),
    "within": ("blocks/0/attn/k", "blocks.0.attn.q", "b_0", "batch/x", "state.y"),
    "numbers and names": ("0", "params/blocks/0/attn/q", "2", "batch/x", "state.y"),
    "arguments by number": (
        "[0]['blocks'][0]['attn']['k']", "[0]['blocks'][0]['attn']['q']", "[0]['b_0']", "[1]['x']", "[2].y",
    ),
}  # fmt: skip


def read(names: dict[str, str], form: str, arrays: dict[str, Any], given: tuple[int, ...] = ()) -> Any:
    module = hloexec.parse(text(names, form))
    np.savez("in.npz", **arrays)
    found = literals.load_inputs("in.npz", module.entry.parameters, given)
    return found if given else hloexec.run(module, [found[number] for number in range(len(names))])


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize("keys", KEYS)
def test_paths_are_keys_in_any_order(keys: str, form: str, order: int) -> None:
    arrays = dict(list(zip(KEYS[keys], (K, Q, B, X, Y), strict=True))[::order])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.array_equal(read(NAMES, form, arrays), EXPECTED)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("keys", ["JAX", "slashes", "without arguments"])
def test_what_jit_has_dropped_is_said(keys: str, form: str) -> None:
    arrays = {"params/unused": K, "step": np.int32(3), **dict(zip(KEYS[keys], (K, Q, B, X, Y), strict=True))}
    with pytest.warns(HloWarning, match="params/unused, step belong to no parameter"):
        assert np.array_equal(read(NAMES, form, arrays), EXPECTED)


@pytest.mark.parametrize("form", FORMS)
def test_the_rest_may_be_given(form: str) -> None:
    arrays = dict(zip(KEYS["without arguments"][:3], (K, Q, B), strict=True))
    found = read(NAMES, form, arrays, given=(3, 4))
    assert [found[number][0] for number in range(3)] == [1, 2, 3]
    with pytest.warns(HloWarning, match="gone belongs to no parameter"):
        found = read(NAMES, form, {"gone": K, **arrays}, given=(3, 4))
    assert [found[number][0] for number in range(3)] == [1, 2, 3]
    with pytest.raises(LiteralError, match="lacks '3', '4'"):
        read(NAMES, form, arrays)


TWINS = {"p__a____b__": r"p[\'a\'][\'b\']", "p__a_b__": r"p[\'a_b\']"}


@pytest.mark.parametrize("form", FORMS)
def test_what_may_be_two_parameters_is_refused(form: str) -> None:
    first, second = ("param.0", "param.1") if form == "op_names" else ("p__a____b__.1", "p__a_b__.1")
    for key in ("p/a/b", "p.a_b"):
        with pytest.raises(LiteralError, match=rf"'{key}' may mean parameter 0 \({first}\) or 1 \({second}\)"):
            read(TWINS, form, {key: K, "1": Q})
        with pytest.raises(InputError, match=rf"{key}.* may mean parameter 0 \({first}\) or 1 \({second}\)"):
            hloexec.run(hloexec.parse(text(TWINS, form)), {key: K, "1": Q})
    exact = {"p['a_b']": Q, "p['a']['b']": K}
    assert np.array_equal(read(TWINS, form, exact), K + 10 * Q)


@pytest.mark.parametrize("form", FORMS)
def test_two_keys_for_one_parameter_are_refused(form: str) -> None:
    with pytest.raises(LiteralError, match="another entry for the same leaf of parameter 0"):
        read({"p__a____b__": r"p[\'a\'][\'b\']"}, form, {"p/a/b": K, "p/a_b": Q})


@pytest.mark.parametrize("form", FORMS)
def test_parts_of_words_are_no_paths(form: str) -> None:
    names = {"learning_rate": "learning_rate", "params__w_b__": r"params[\'w_b\']"}
    with pytest.raises(LiteralError, match="belongs to no parameter"):
        read(names, form, {"rate": K, "params/w_b": Q, "w": Q})


@pytest.mark.parametrize("form", FORMS)
def test_paths_in_several_arguments_are_said(form: str) -> None:
    """Either argument may have had the other's leaf, which jit has dropped."""
    names = {"params__w__": r"params[\'w\']", "batch__x__": r"batch[\'x\']"}
    with pytest.warns(HloWarning, match=r"\['w'\] is .*, \['x'\] is "):
        assert np.array_equal(read(names, form, {"['w']": K, "['x']": X}), K + 10 * X)


def test_other_libraries_names_are_read() -> None:
    names = {
        "params__mlp____linear_0____w__": r"params[\'mlp/~/linear_0\'][\'w\']",
        "params__mlp____linear_0____b__": r"params[\'mlp/~/linear_0\'][\'b\']",
    }
    for form in FORMS:
        for root in ("params/", ""):
            arrays = {f"{root}mlp/~/linear_0/b": Q, f"{root}mlp/~/linear_0/w": K}
            assert np.array_equal(read(names, form, arrays), K + 10 * Q)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("keys", "JAX slashes dots underscores".split())
def test_options_and_dicts_take_paths(keys: str, form: str, cli: CommandLine) -> None:
    Path("m.hlo").write_text(text(NAMES, form))
    words = []
    for number, (key, array) in enumerate(zip(KEYS[keys], (K, Q, B, X, Y), strict=True)):
        np.save(f"{number}.npy", array)
        words += ["--input", f"{key}={number}.npy"]
    cli("run m.hlo", *words, "--save", "out.npz")
    assert np.array_equal(literals.load("out.npz"), EXPECTED)  # type: ignore[arg-type]
    arrays = dict(zip(KEYS[keys], (K, Q, B, X, Y), strict=True))
    assert np.array_equal(hloexec.run(hloexec.load("m.hlo"), arrays), EXPECTED)  # type: ignore[arg-type]
    cli("run m.hlo --range", f"{KEYS[keys][3]}=3:4")
    assert "parameter 0 is given twice" in cli.complaint(
        "run m.hlo --input", f"{KEYS[keys][0]}=0.npy", "--input", "0=0.npy"
    )


@pytest.mark.parametrize("form", ["names", "both"])
@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("params/blocks/0/attn/kk", "params__blocks___0___attn____k__.1"),
        ("['blocks'][0]['attn']['q']", "params__blocks___0___attn____q__.1"),
        ("attn/q", "params__blocks___0___attn____q__.1"),
        ("batch['z']", "batch__x__.1"),
    ],
)
def test_names_that_come_near_are_suggested(key: str, name: str, form: str) -> None:
    Path("m.hlo").write_text(text(NAMES, form))
    module = hloexec.load("m.hlo")
    with pytest.raises(InputError, match=f"did you mean {name}"):
        hloexec.random_inputs(module, ranges={key: (0, 1)})
    if not key.startswith("["):  # which is the path but for the argument
        with pytest.raises(LiteralError, match=f"did you mean {name}"):
            read(NAMES, form, {"0": K, key: Q, "x": X, "4": Y})


def test_a_file_of_a_functions_arguments_is_read() -> None:
    pytest.importorskip("jax")
    code = """
import jax, jax.numpy as jnp, numpy as np, hloexec
from hloexec.language import literals
params = {"blocks": [{"attn": {"k": jnp.ones((2, 3)), "q": jnp.ones((2, 3), jnp.bfloat16)}, "b_0": jnp.ones(3)}]}
batch = {"x": jnp.ones((4, 2)), "labels": jnp.arange(4)}
def f(params, batch):
    block = params["blocks"][0]
    return batch["x"] @ (block["attn"]["k"] + block["attn"]["q"]) + block["b_0"] + batch["labels"][:, None]
lowered = jax.jit(f).lower(params, batch)
pairs = jax.tree_util.tree_flatten_with_path((params, batch))[0]
for text in (lowered.as_text("hlo"), lowered.as_text("hlo", debug_info=True), lowered.compile().as_text()):
    module = hloexec.parse(text)
    for keys in (
        [jax.tree_util.keystr(path) for path, _ in pairs],
        ["params" * (path[0].idx == 0) + "batch" * path[0].idx + jax.tree_util.keystr(path[1:]) for path, _ in pairs],
        [("params", "batch")[path[0].idx] + "/" + jax.tree_util.keystr(path[1:], simple=True, separator="/")
         for path, _ in pairs],
    ):
        np.savez("in.npz", **{key: leaf for key, (_, leaf) in list(zip(keys, pairs))[::-1]})
        found = literals.load_inputs("in.npz", module.entry.parameters)
        result = hloexec.run(module, [found[number] for number in range(len(found))])
        assert np.array_equal(result, f(params, batch)), keys
"""
    subprocess.run([sys.executable, "-W", "error::hloexec.HloWarning", "-c", code], check=True, timeout=120)
