"""StableHLO in an issue or a page of Markdown is read where there is one module of it."""

import html
from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.errors import HloWarning, InputError, ParseError
from hloexec.language.interop import load_bytes

jax = pytest.importorskip("jax")


@pytest.fixture(scope="module")
def lowered() -> Any:
    return jax.jit(lambda x: {"y": jax.numpy.sort(x) * 2}).lower(np.ones(4, np.float32))


@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize(
    ("form", "said"),
    [
        ("```mlir\n{}```\n", ["before line", "what follows the module"]),
        ("It fails on {{this}}:\n\n{}", ["before line 3 is"]),
        ("<details>\n<summary>a (b</summary>\n\n```\n{}\n```\n</details>\nThanks }}\n", ["line 5 is", "follows"]),
        ("{}\nThis is what I see.\n", ["what follows the module"]),
    ],
)
def test_what_stands_around_a_module_is_ignored_and_said(form: str, said: list[str], debug: bool, lowered: Any) -> None:
    mlir = lowered.as_text(debug_info=debug)
    with pytest.warns(HloWarning) as warned:
        found = load_bytes(form.format(mlir).encode(), "issue.md")
    # Where a line says no place itself, its number in the text is its place.
    lines = form.partition("{}")[0].count("\n")
    assert found == load_bytes(("\n" * lines + mlir).encode())
    messages = [str(each.message) for each in warned]
    assert len(messages) == len(said) and all(part in message for part, message in zip(said, messages, strict=True))


def test_entities_stand_for_their_characters(lowered: Any) -> None:
    mlir = lowered.as_text()
    with pytest.warns(HloWarning) as warned:
        assert load_bytes(f"<pre>\n{html.escape(mlir)}</pre>".encode()) == load_bytes(f"\n{mlir}".encode())
    assert "entities of HTML" in str(warned[0].message) and len(warned) == 3


def test_a_function_alone_is_a_module() -> None:
    text = """func.func @main(%a: tensor<4xf32> {jax.arg_info = "a{"}) -> tensor<4xf32> {
  %0 = stablehlo.add %a, %a : tensor<4xf32>
  return %0 : tensor<4xf32>
}
"""
    with pytest.warns(HloWarning, match="before line 2 is ignored"):
        module = load_bytes(f"This doubles:\n{text}".encode())
    (result,) = [hloexec.run(module, np.arange(4, dtype=np.float32))]
    np.testing.assert_array_equal(result, np.arange(4, dtype=np.float32) * 2)


def test_several_modules_are_refused_with_their_lines(lowered: Any) -> None:
    mlir = lowered.as_text()
    second = mlir.count("\n") + 3
    with pytest.raises(InputError, match=rf"holds 2 modules of MLIR, '.*' on line 2, '.*' on line {second}"):
        load_bytes(f"One:\n{mlir}Two:\n{mlir}".encode())


def test_a_module_that_is_cut_off_is_refused_without_the_name_of_a_function(lowered: Any) -> None:
    text = f"See:\n{lowered.as_text().rstrip().rstrip('}')}"
    with pytest.raises(ParseError, match="the text is MLIR: give the whole StableHLO module in a file"):
        load_bytes(text.encode())
