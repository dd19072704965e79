"""Files of values as people write them with `numpy.savez`: results without keys, all arguments of a jitted function,
names of a framework's, and element types that NumPy does not know."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hloexec
from hloexec.cli import main
from hloexec.core.dtypes import element_type
from hloexec.language import literals
from tests.command_line import CommandLine

SUM = "HloModule sum\nENTRY e { x.1 = f32[3] parameter(0)\n  ROOT y = f32[3] add(x.1, x.1) }\n"
STEP = """HloModule step
ENTRY e { params__b__.1 = f32[2] parameter(0)
  params__w__.1 = f32[2,3] parameter(1)
  x.1 = f32[3] parameter(2)
  n = f32[] constant(2)
  ROOT r = (f32[2], (f32[2,3], f32[])) tuple(params__b__.1, inner)
}
""".replace("  ROOT", "  inner = (f32[2,3], f32[]) tuple(params__w__.1, n)\n  ROOT")
X = np.arange(3, dtype=np.float32)
B, W = np.ones(2, np.float32), np.arange(6, dtype=np.float32).reshape(2, 3)
NARROW = "bf16 f8e5m2 f8e4m3fn f8e4m3b11fnuz f8e4m3 f8e3m4 f8e8m0fnu f4e2m1fn s4 u4 s2".split()


@pytest.fixture(autouse=True)
def _files(empty_folder: Path) -> None:
    Path("sum.hlo").write_text(SUM)
    Path("step.hlo").write_text(STEP)
    np.savez("sum.npz", X + X)
    np.savez("near.npz", np.nextafter(X + X, np.float32(9)))
    np.savez("x.npz", X)
    literals.save("ours.npz", X + X)
    literals.save("tuple.npz", (X + X,))
    np.savez("loss.npz", loss=X + X)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("ours", "sum.npz near.npz loss.npz ours.npz tuple.npz".split())
@pytest.mark.parametrize("theirs", "sum.npz loss.npz ours.npz tuple.npz".split())
def test_one_result_is_the_result_whatever_its_key(ours: str, theirs: str) -> None:
    assert main(["compare", ours, theirs, "--module", "sum.hlo", "--inputs", "x.npz"]) == 0
    assert main(["compare", ours, theirs, "--module", "sum.hlo"]) == 0
    assert main(["run", "sum.hlo", "--inputs", "x.npz", "--against", ours]) == 0
    if "loss.npz" not in (ours, theirs):
        assert main(["compare", ours, theirs]) == 0
    arrays = [dict(np.load(name)) for name in (ours, theirs)]
    assert hloexec.compare(*[{key.replace("arr_", ""): value for key, value in each.items()} for each in arrays]).agrees


def test_one_array_is_the_parameter_whatever_its_key() -> None:
    np.savez("named.npz", weights=X)
    for given in ("--inputs", "--input"):
        assert main(["run", "sum.hlo", given, "named.npz" if given == "--inputs" else "0=named.npz"]) == 0


def test_arguments_that_jit_has_dropped_are_said(cli: CommandLine) -> None:
    np.savez("all.npz", B, np.zeros(5, np.int32), W, X, X[:1])
    said = cli.complaint("run step.hlo --inputs all.npz --save out.npz", code=0)
    assert "arr_0 is params__b__.1, arr_2 is params__w__.1, arr_3 is x.1" in said
    assert "arr_1, arr_4 belong to no parameter, as arguments that jit drops since nothing uses them" in said
    with np.load("out.npz") as file:
        assert np.array_equal(file["1.0"], W)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ([B, B, W, X], "arr_0, arr_1, arr_2, arr_3, which fit the parameters in several ways"),
        ([B, W, X, X], "in several ways; key them by number or name"),
        ([B, X, W, B], "key 'arr_1' holds f32[3], but f32[2,3] is expected"),
        ([B, W], "lacks '2'"),
    ],
)
def test_what_may_be_meant_in_several_ways_is_refused(arrays: list[Any], message: str, cli: CommandLine) -> None:
    np.savez("all.npz", *arrays)
    assert message in cli.complaint("run step.hlo --inputs all.npz --save out.npz")
    assert not Path("out.npz").exists()


@pytest.mark.parametrize(
    ("arrays", "warning"),
    [
        ({"x": X, "w": W, "b": B}, ""),
        ({"params__w__": W, "params__b__": B, "x": X}, ""),
        ({"x": X, "w": W, "b": B, "mask": X}, "mask belongs to no parameter"),
        ({"inputs": X, "kernel": W, "bias": B}, "bias is params__b__.1, kernel is params__w__.1, inputs is x.1"),
        ({"x.1": X, "1": W, "bias": B}, "bias is params__b__.1"),
    ],
)
def test_names_of_arguments_are_parameters(arrays: dict[str, Any], warning: str) -> None:
    np.savez("named.npz", **arrays)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = literals.load_inputs("named.npz", hloexec.parse(STEP).entry.parameters)
    for ours, theirs in zip((B, W, X), (found[0], found[1], found[2]), strict=True):
        assert np.array_equal(ours, theirs)  # type: ignore[arg-type]
    assert [each for each in said if warning and warning in str(each.message)] or (not said and not warning)


def test_names_that_are_right_stay_so() -> None:
    text = SUM.replace("ROOT y = f32[3] add(x.1, x.1)", "y = f32[3] parameter(1)\n  ROOT z = f32[3] add(x.1, y)")
    np.savez("two.npz", y=X + 1, a=X)  # by their order, y would be x.1
    with pytest.warns(hloexec.HloWarning, match="a is x.1"):
        found = literals.load_inputs("two.npz", hloexec.parse(text).entry.parameters)
    assert np.array_equal(found[0], X) and np.array_equal(found[1], X + 1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arrays", "warning"),
    [
        ({"arr_0": B, "arr_1": W, "arr_2": np.float32(2)}, ""),
        ({"bias": B, "kernel": W, "loss": np.float32(2)}, "bias is 0, kernel is 1.0, loss is 1.1"),
        ({"loss": np.float32(2), "kernel": W, "bias": B}, "bias is 0, kernel is 1.0, loss is 1.1"),
    ],
)
def test_leaves_of_a_result_are_known_by_their_order_and_shapes(arrays: dict[str, Any], warning: str) -> None:
    np.savez("in.npz", x=X, w=W, b=B)
    np.savez("out.npz", **arrays)
    literals.save("ours.npz", (B, (W, np.float32(2))))
    hloexec.record_golden(hloexec.parse(STEP), [B, W, X], "ours.golden")
    for command in (
        "compare out.npz ours.npz --module step.hlo --inputs in.npz".split(),
        ["compare", "ours.npz", "out.npz"],
        "run step.hlo --inputs in.npz --against out.npz".split(),
        "golden record step.hlo --inputs in.npz --expected out.npz -o g".split(),
        "explain step.hlo --inputs in.npz --expected out.npz".split(),
    ):
        assert main(command) == 0, command
    assert hloexec.compare((B, (W, np.float32(2))), {key.replace("arr_", ""): arrays[key] for key in arrays}).agrees


def test_a_dict_that_a_jitted_function_returns_is_compared_with_the_tuple_of_its_leaves() -> None:
    ours: Any = (np.float32(1), np.float32(2))
    with pytest.warns(hloexec.HloWarning, match="accuracy is 0, loss is 1"):
        assert hloexec.compare(ours, {"accuracy": np.float32(1), "loss": np.float32(2)}).agrees
    # In another order, either may be meant.
    assert not hloexec.compare(ours, {"loss": np.float32(1), "accuracy": np.float32(2)}).agrees
    with pytest.warns(hloexec.HloWarning, match="paired by their shapes"):
        assert hloexec.compare((X, B), {"loss": B, "accuracy": X}).agrees


def test_a_dict_is_what_is_expected_for_every_function(tmp_path: Path) -> None:
    module, inputs = hloexec.parse(STEP), [B, W, X]
    expected: Any = {"loss": np.float32(2), "kernel": W, "bias": B}
    with pytest.warns(hloexec.HloWarning, match="bias is 0, kernel is 1.0, loss is 1.1"):
        golden = hloexec.record_golden(module, inputs, tmp_path / "m.golden", expected=expected)
    assert hloexec.check_golden(golden.folder).passed
    with pytest.warns(hloexec.HloWarning, match="paired by their shapes"):
        assert hloexec.explain(module, inputs, expected).best.policy.name == "reference"
    with pytest.warns(hloexec.HloWarning, match="paired by their shapes"):
        hloexec.minify(module, inputs, expected={**expected, "kernel": W + 1})


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NARROW)
def test_types_that_numpy_does_not_know_are_those_of_the_module(name: str, cli: CommandLine) -> None:
    storage = hloexec.ir.ArrayShape(element_type(name), (2, 2)).element_type.storage
    array = np.array([[0, 1], [1, 0]]).astype(storage)
    # A module of one array, and one of several.
    Path("one.hlo").write_text(f"HloModule one\nENTRY e {{ ROOT x.1 = {name}[2,2] parameter(0) }}\n")
    Path("two.hlo").write_text(
        f"HloModule two\nENTRY e {{ x.1 = {name}[2,2] parameter(0)\n  y.1 = f32[3] parameter(1)\n"
        f"  ROOT r = ({name}[2,2], f32[3]) tuple(x.1, y.1) }}\n"
    )
    np.savez("one.npz", array)
    np.save("one.npy", array)
    np.savez("two.npz", array, X)
    np.savez("named.npz", x=array, y=X)
    for module, file, result in (
        ("one", "one.npz", "one.npz"),
        ("one", "one.npy", "one.npy"),
        ("two", "two.npz", "two.npz"),
        ("two", "named.npz", "named.npz"),
    ):
        run = [f"{module}.hlo", "--inputs", file]
        cli("run", *run, "--against", result, "--save", "ours.npz")
        cli("compare", result, result, "--module", f"{module}.hlo", "--inputs", file)
        assert main(["compare", result, "ours.npz"]) == main(["compare", "ours.npz", result]) == 0
        cli("golden record", *run, "--expected", result, "-o", f"{module}{file}")
    cli("run one.hlo --input 0=one.npy --against one.npz")
    assert "raw bytes (|V" in cli.complaint("compare one.npz one.npz")
    Path("wide.hlo").write_text("HloModule w\nENTRY e { ROOT x = f32[2,2] parameter(0) }\n")
    assert "but f32[2,2] is expected" in cli.complaint("run wide.hlo --inputs one.npz")


@pytest.mark.parametrize("name", ["bf16", "f8e5m2", "s4"])
def test_elided_constants_are_of_the_type_that_the_module_says(name: str, cli: CommandLine) -> None:
    storage = hloexec.ir.ArrayShape(element_type(name), (3,)).element_type.storage
    Path("c.hlo").write_text(f"HloModule m\nENTRY e {{ ROOT c = {name}[3] constant({{...}}) }}\n")
    array = np.array([1, 0, 2]).astype(storage)
    np.savez("c.npz", c=array)
    cli("run c.hlo --elided c.npz --against c.npz --save out.npz")
    assert literals.load("out.npz").tobytes() == array.tobytes()  # type: ignore[union-attr]
    Path("c.hlo").write_text("HloModule m\nENTRY e { ROOT c = f32[3] constant({...}) }\n")
    assert "must be an array f32[3]" in cli.complaint("run c.hlo --elided c.npz")


def test_names_of_tensorflow_end_in_the_number_of_an_output(tmp_path: Path) -> None:
    module = hloexec.parse(
        "HloModule m\nENTRY e {\n  a = f32[2] parameter(0)\n  b = f32[3] parameter(1)\n  ROOT t = (f32[2], f32[3]) tuple(a, b)\n}\n"
    )
    np.savez(tmp_path / "in.npz", **{"a:0": np.ones(2, np.float32), "b:0": np.zeros(3, np.float32)})
    found = hloexec.literals.load_inputs(tmp_path / "in.npz", module.entry.parameters)
    assert [np.shape(found[number]) for number in (0, 1)] == [(2,), (3,)]


def test_equal_arrays_make_equal_files_however_they_lie(tmp_path: Path) -> None:
    array = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    paths = [tmp_path / f"{order}.npz" for order in "CF"]
    for path in paths:
        hloexec.literals.save(path, (np.asarray(array, order=path.stem), array))
    assert paths[0].read_bytes() == paths[1].read_bytes()
