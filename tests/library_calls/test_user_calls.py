"""Library calls that users give a meaning: functions and classes, in every tool that runs a module."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.cli import main
from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.core.ir import ArrayShape, Shape, TupleShape
from hloexec.errors import EvaluationError, InputError, ShapeError, UnsupportedError, VerificationError
from hloexec.language.text import parse
from hloexec.ops.library_calls.user_calls import register_custom_call, unregister_custom_call
from hloexec.ops.registry import find_custom_call
from tests.text.building import op

F32 = ELEMENT_TYPES["f32"]
SHAPE = ArrayShape(F32, (2,))
X = np.array([1, 2], np.float32)
SCALED = op('f32[2] custom-call(x), custom_call_target="my_kernel", backend_config={"factor": 3}', x="f32[2]")


@pytest.fixture
def target() -> Iterator[str]:
    yield "my_kernel"
    unregister_custom_call("my_kernel")


def call(target: str, shape: Shape, *operands: Any) -> Any:
    entry = find_custom_call(target)
    assert entry is not None
    assert entry.evaluate.needs == {"shape"}
    return entry.evaluate(*operands, shape=shape)


def test_a_users_function_is_called_with_the_operands(target: str) -> None:
    register_custom_call(target, lambda a, b: a + 2 * b)
    assert call(target, SHAPE, np.ones(2, np.float32), np.ones(2, np.float32)).tolist() == [3, 3]


def test_a_users_function_wins_over_the_built_in_one_until_it_is_removed() -> None:
    built_in = find_custom_call("__cublas$gemm")
    register_custom_call("__cublas$gemm", lambda *operands: operands[0])
    assert find_custom_call("__cublas$gemm") is not built_in
    unregister_custom_call("__cublas$gemm")
    assert find_custom_call("__cublas$gemm") is built_in


def test_a_users_tuple_may_be_nested(target: str) -> None:
    register_custom_call(target, lambda a: (a, [a + 1]))
    shape = TupleShape((SHAPE, TupleShape((SHAPE,))))
    first, (second,) = call(target, shape, np.zeros(2, np.float32))
    assert (first.tolist(), second.tolist()) == ([0, 0], [1, 1])


@pytest.mark.parametrize(
    ("result", "shape", "message"),
    [
        (np.zeros(2), SHAPE, r"returned f64\[2\]"),
        (np.zeros(3, np.float32), SHAPE, r"returned f32\[3\]"),
        (np.zeros((2, 1), np.float32), SHAPE, r"returned f32\[2,1\]"),
        ((np.zeros(2, np.float32),), SHAPE, "tuple of 1 values"),
        (np.zeros(2, np.float32), TupleShape((SHAPE,)), "must return a tuple of 1"),
        ((), TupleShape((SHAPE,)), "tuple of 0 values"),
        (None, SHAPE, "returned None"),
    ],
)
def test_a_result_that_is_not_as_declared_is_an_error_that_names_the_target(
    target: str, result: Any, shape: Shape, message: str
) -> None:
    register_custom_call(target, lambda: result)
    with pytest.raises(EvaluationError, match=message) as raised:
        call(target, shape)
    assert "my_kernel" in raised.value.message


def test_a_bounded_dimension_may_be_shorter(target: str) -> None:
    register_custom_call(target, lambda: np.zeros(1, np.float32))
    assert call(target, ArrayShape(F32, (2,), dynamic_dimensions=(True,))).shape == (1,)


def test_a_decorated_function_stays_what_it_is_and_gets_what_it_asks_for(target: str) -> None:
    seen: dict[str, Any] = {}

    @hloexec.register_custom_call(target)
    def scale(
        x: Any, *, attributes: Any, backend_config: str, shape: Any, operand_shapes: Any, numerics: Any, unit: int = 1
    ) -> Any:
        """Operand × factor."""
        seen.update(
            target=attributes.custom_call_target,
            shape=shape,
            operands=operand_shapes,
            numerics=numerics.name,
            unit=unit,
        )
        return x * np.float32(json.loads(backend_config)["factor"])

    assert scale.__doc__ == "Operand × factor."
    assert hloexec.run(parse(SCALED), X, numerics="exact").tolist() == [3, 6]
    assert seen["target"] == target and seen["numerics"] == "exact" and seen["unit"] == 1
    assert (str(seen["shape"]), [str(shape) for shape in seen["operands"]]) == ("f32[2]", ["f32[2]"])
    entry = find_custom_call(target)
    assert entry is not None and entry.documentation == "Operand × factor."


def test_all_of_it_is_given_to_a_function_that_takes_any_keyword(target: str) -> None:
    seen: list[str] = []
    register_custom_call(target, lambda x, **given: seen.extend(given) or x)
    hloexec.run(parse(SCALED), X)
    assert sorted(seen) == "attributes backend_config numerics operand_shapes shape".split()


def test_functions_in_c_are_called_with_the_operands(target: str) -> None:
    register_custom_call(target, np.negative)
    assert hloexec.run(parse(SCALED), X).tolist() == [-1, -2]
    register_custom_call(target, np.copy)
    assert hloexec.run(parse(SCALED), X).tolist() == [1, 2]


class Doubled:
    """Operand × 2."""

    @staticmethod
    def evaluate(x: Any) -> Any:
        return x * 2

    @staticmethod
    def infer(x: ArrayShape, *, backend_config: str | None) -> ArrayShape:
        if x.rank != 1:
            raise ShapeError(f"the operand must have one dimension, but has shape {x}")
        return x

    @staticmethod
    def supports(instruction: hloexec.Instruction) -> str | None:
        return "the factor is not 3" if instruction.backend_config != '{"factor": 3}' else None


def test_a_class_brings_a_shape_rule_and_says_what_it_cannot_do(target: str) -> None:
    assert register_custom_call(target)(Doubled) is Doubled
    assert hloexec.run(parse(SCALED), X).tolist() == [2, 4]
    with pytest.raises(VerificationError, match=r"its shape is f32\[3\], but .* f32\[2\]|f32\[2\]"):
        hloexec.verify(parse(SCALED.replace("f32[2] custom", "f32[3] custom")), strict=True)
    with pytest.raises(VerificationError, match="must have one dimension"):
        hloexec.verify(parse(SCALED.replace("f32[2]", "f32[2,2]")), strict=True)
    with pytest.raises(VerificationError, match="takes 1 operand, but has 2"):
        hloexec.verify(parse(SCALED.replace("custom-call(x)", "custom-call(x, x)")), strict=True)
    with pytest.raises(UnsupportedError, match="the factor is not 3"):
        hloexec.run(parse(SCALED.replace(": 3", ": 4")), X)


def test_nan_search_and_diff_look_into_modules_with_a_users_call(target: str) -> None:
    register_custom_call(target, lambda x: np.log(x - 1))
    found = hloexec.find_nan(parse(SCALED), [X * 0]).finding
    assert found is not None and found.opcode == "custom-call"
    other = parse(SCALED.replace('custom_call_target="my_kernel"', 'custom_call_target="my_other_kernel"'))
    register_custom_call("my_other_kernel", lambda x: np.log(x - 1) * np.float32(1.5))
    try:
        verdict = hloexec.diff(parse(SCALED), other, [X * 4])
    finally:
        unregister_custom_call("my_other_kernel")
    assert [finding.after.of(other).opcode for finding in verdict.findings] == ["custom-call"]


def test_every_command_that_runs_a_module_takes_custom_calls(
    empty_folder: Path, target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.path", list(sys.path))
    Path("user_kernels.py").write_text("def halved(x):\n    return x / 2\n")
    Path("m.hlo").write_text(SCALED)
    given = ["--custom-call", "my_kernel=user_kernels:halved"]
    for words in (["run", "m.hlo"], ["nan", "m.hlo"], "trace m.hlo -o t".split(), ["diff", "m.hlo", "m.hlo"]):
        unregister_custom_call(target)
        assert main([*words, *given]) == 0, capsys.readouterr().err


class _WithoutKernel:
    infer = staticmethod(lambda x: x)


class _WithMethod:
    def evaluate(self, x: Any) -> Any:
        return x


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (3, "must be a function or a class, but the Python int 3 was given"),
        (None, "must be a function or a class, but None was given"),
        (_WithoutKernel, "class _WithoutKernel, must have a static method evaluate"),
        (_WithMethod, "evaluate of .* class _WithMethod, must be a static method"),
        (lambda x, *, config: x, "takes the keyword config, but can be given attributes, backend_config, shape"),
        (
            type(
                "RuleOnNumerics", (), {"evaluate": staticmethod(abs), "infer": staticmethod(lambda x, *, numerics: x)}
            ),
            "takes the keyword numerics, but can be given attributes, backend_config, shape, operand_shapes only",
        ),
    ],
)
def test_what_cannot_stand_for_a_call_is_refused(target: str, given: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        register_custom_call(target, given)
    assert find_custom_call(target) is None


def test_a_target_is_a_text() -> None:
    with pytest.raises(InputError, match="target must be the target of a custom call"):
        register_custom_call(abs)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("infer", "message"),
    [
        (lambda x: "f32[2]", "infer of its implementation must return a Shape, but returned the Python str"),
        (lambda x: x.nothing, "infer of its implementation raised AttributeError"),
    ],
)
def test_a_shape_rule_that_fails_is_said_to(target: str, infer: Any, message: str) -> None:
    register_custom_call(target, type("Call", (), {"evaluate": staticmethod(abs), "infer": staticmethod(infer)}))
    with pytest.raises(VerificationError, match=message):
        hloexec.verify(parse(SCALED), strict=True)


def test_a_function_that_raises_ends_the_run_at_its_instruction(target: str) -> None:
    register_custom_call(target, lambda x: 1 / 0)
    with pytest.raises(EvaluationError, match=r"(?s)division by zero.*%|%.*division by zero"):
        hloexec.run(parse(SCALED), X)
