"""Convolution against XLA:CPU, and its shape rule."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from conformance import xla
from hloexec.core.dtypes import element_type, element_type_of
from hloexec.core.ir import WindowDimension
from hloexec.engine.exec import run
from hloexec.errors import ShapeError
from hloexec.language.text import parse
from hloexec.language.verifier import verify
from hloexec.ops import resources
from hloexec.ops.convolution import algorithms, convolution
from hloexec.ops.policies.policy import POLICIES
from hloexec.ops.relations.parts import output_size
from tests.drawing import examples
from tests.ops.against_xla import needs_xla
from tests.ops.evaluation import evaluate
from tests.text.building import op

DTYPES: dict[str, Any] = {
    "f64": np.float64,
    "f32": np.float32,
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "c64": np.complex64,
    "s32": np.int32,
    "s8": np.int8,
}
UNIT = {"f64": 2.0**-53, "f32": 2.0**-24, "bf16": 2.0**-8, "f16": 2.0**-11, "c64": 2.0**-24}
"""Unit roundoff of each floating-point type."""


def text_of(
    element_type: str,
    lhs: dict[str, int],
    rhs: dict[str, int],
    output: dict[str, int],
    window: tuple[WindowDimension, ...] = (),
    groups: str = "",
) -> str:
    """A module of one convolution; dimensions are given by their labels, in order."""

    def shape(dimensions: dict[str, int]) -> str:
        return f"{element_type}[{','.join(map(str, dimensions.values()))}]"

    def join(*parts: object) -> str:
        return "x".join(map(str, parts))

    text = ""
    if window:
        text = f""", window={{size={join(*(d.size for d in window))} stride={join(*(d.stride for d in window))} pad={
            join(*(f"{d.padding_low}_{d.padding_high}" for d in window))
        } lhs_dilate={join(*(d.base_dilation for d in window))} rhs_dilate={
            join(*(d.window_dilation for d in window))
        } rhs_reversal={join(*(int(d.window_reversal) for d in window))}}}"""
    labels = f"{''.join(lhs)}_{''.join(rhs)}->{''.join(output)}"
    return f"""HloModule m
ENTRY e {{
  a = {shape(lhs)} parameter(0)
  b = {shape(rhs)} parameter(1)
  ROOT r = {shape(output)} convolution(a, b){text}, dim_labels={labels}{groups}
}}"""


def random_array(element_type: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    dtype = np.dtype(DTYPES[element_type])
    if dtype.kind == "i":
        limits = np.iinfo(dtype)
        return generator.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    values = generator.standard_normal(shape)
    if dtype.kind == "c":
        return (values + 1j * generator.standard_normal(shape)).astype(dtype)
    return values.astype(dtype)


@st.composite
def convolutions(draw: st.DrawFn) -> tuple[str, str, int]:
    """(element type, module, number of products per output)"""
    rank = draw(st.integers(0, 3))
    feature_groups = draw(st.sampled_from([1, 1, 2, 3]))
    batch_groups = draw(st.sampled_from([1, 2])) if feature_groups == 1 else 1
    window = []
    extents = []
    for _ in range(rank):
        extent = draw(st.integers(1, 6))
        low, high, base = draw(st.integers(-2, 3)), draw(st.integers(-2, 3)), draw(st.integers(1, 3))
        if (extent - 1) * base + 1 + min(low, 0) + min(high, 0) <= 0:  # XLA rejects cropping everything away
            low, high = abs(low), abs(high)
        extents.append(extent)
        window.append(
            WindowDimension(
                draw(st.integers(1, 3)),
                draw(st.integers(1, 3)),
                low,
                high,
                base,
                draw(st.integers(1, 3)),
                draw(st.booleans()),
            )
        )
    spatial = [str(number) for number in range(rank)]
    features, outputs = draw(st.integers(1, 3)), draw(st.integers(1, 3)) * feature_groups * batch_groups
    batch = draw(st.integers(1, 2))
    lhs = {"b": batch * batch_groups, "f": features * feature_groups, **dict(zip(spatial, extents, strict=True))}
    rhs = {"i": features, "o": outputs, **dict(zip(spatial, (d.size for d in window), strict=True))}
    sizes = map(output_size, extents, window)
    output = {"b": batch, "f": outputs, **dict(zip(spatial, sizes, strict=True))}
    shuffled = [dict(draw(st.permutations(list(dimensions.items())))) for dimensions in (lhs, rhs, output)]
    element_type = draw(st.sampled_from(list(DTYPES)))
    groups = f", feature_group_count={feature_groups}, batch_group_count={batch_groups}"
    products = features * int(np.prod([d.size for d in window], dtype=int))
    return element_type, text_of(element_type, *shuffled, tuple(window), groups), products


def compare(element_type: str, text: str, products: int) -> None:
    """Ours and XLA's result differ by no more than rounding allows.

    A sum of n products in precision u is off by at most n·u times the sum of the products' magnitudes, however it is
    ordered (Higham, Accuracy and Stability, 3.1); complex products count four times. Rounding the result adds u of the
    result's type on either side.
    """
    module = xla.compile_hlo(text)
    shapes = [leaf.shape for leaf in module._parameters]
    inputs = [random_array(element_type, shape, seed) for seed, shape in enumerate(shapes)]
    actual, (expected,) = evaluate(text, *inputs), module.run(*inputs)
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    if actual.dtype.kind == "i":
        assert_array_equal(actual, expected)
        return
    wide = np.complex128 if actual.dtype.kind == "c" else np.float64
    magnitudes = [np.abs(value.astype(wide)).astype(value.dtype) for value in inputs]
    (total,) = module.run(*magnitudes)
    accumulation = min(UNIT[element_type], UNIT["f32"])
    bound = 2 * 4 * (products + 1) * accumulation * np.abs(total.astype(wide))
    bound += 2 * UNIT[element_type] * np.abs(expected.astype(wide))
    error = np.abs(actual.astype(wide) - expected.astype(wide))
    assert np.all(error <= bound), (error - bound).max()


@needs_xla
@settings(max_examples=examples(40), deadline=None)
@given(convolutions())
def test_convolution_agrees_with_xla(convolution: tuple[str, str, int]) -> None:
    compare(*convolution)


IMAGE = {"b": 2, "0": 9, "1": 8, "f": 6}
KERNELS = {
    "patches": ({"0": 3, "1": 3, "i": 6, "o": 5}, 1),
    "depthwise": ({"0": 3, "1": 3, "i": 1, "o": 6}, 6),
    "depthwise with a multiplier": ({"0": 3, "1": 3, "i": 1, "o": 12}, 6),
    "small groups": ({"0": 3, "1": 3, "i": 2, "o": 9}, 3),
}


@needs_xla
@pytest.mark.parametrize("element_type", ["f32", "bf16", "s8"])
@pytest.mark.parametrize("name", KERNELS)
def test_every_way_of_convolving_agrees_with_xla(name: str, element_type: str) -> None:
    kernel, groups = KERNELS[name]
    window = (WindowDimension(3, 2, 1, 1), WindowDimension(3, 1, 1, 1))
    output = {"b": 2, "0": 5, "1": 8, "f": kernel["o"]}
    text = text_of(element_type, IMAGE, kernel, output, window, f", feature_group_count={groups}")
    compare(element_type, text, 9 * kernel["i"])


@needs_xla
def test_large_features_agree_with_xla() -> None:
    lhs, rhs = {"b": 2, "0": 7, "f": 600}, {"0": 3, "i": 600, "o": 4}
    compare("f32", text_of("f32", lhs, rhs, {"b": 2, "0": 7, "f": 4}, (WindowDimension(3, 1, 1, 1),)), 1800)


@needs_xla
def test_a_large_gradient_of_a_kernel_agrees_with_xla() -> None:
    image = {"f": 8, "0": 8, "1": 8, "b": 64}
    kernel = {"i": 8, "0": 8, "1": 8, "o": 64}
    window = (WindowDimension(8, 1, 1, 1),) * 2
    compare("f32", text_of("f32", image, kernel, {"0": 3, "1": 3, "b": 64, "f": 64}, window), 512)


@needs_xla
def test_blocks_of_outputs_agree_with_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hloexec.ops.convolution.convolution._BLOCK_BYTES", 4000)
    kernel = KERNELS["patches"][0]
    window = (WindowDimension(3, 1, 1, 2), WindowDimension(3, 1, 1, 1))
    compare("f32", text_of("f32", IMAGE, kernel, {"b": 2, "0": 10, "1": 8, "f": 5}, window), 54)


def test_a_dilated_batch_dimension_is_a_batched_product() -> None:
    """TPUs write a product per batch element so: each window sees one element of the dilated input."""
    count, rows, depth, columns = 5, 3, 4, 2
    window = (WindowDimension(count, count - 1, 0, 0, count),)
    text = text_of(
        "f64", {"0": count, "b": rows, "f": depth}, {"0": count, "i": depth, "o": columns},
        {"0": count, "b": rows, "f": columns}, window,
    )  # fmt: skip
    lhs, rhs = random_array("f64", (count, rows, depth), 0), random_array("f64", (count, depth, columns), 1)
    assert_allclose(evaluate(text, lhs, rhs), lhs @ rhs, rtol=0, atol=4 * depth * 2.0**-53 * 20)


def test_bf16_accumulates_in_f32_and_rounds_once() -> None:
    text = text_of("bf16", {"b": 1, "f": 4096}, {"i": 4096, "o": 1}, {"b": 1, "f": 1})
    ones = np.ones(4096, ml_dtypes.bfloat16)
    assert evaluate(text, ones.reshape(1, -1), ones.reshape(-1, 1)).item() == 4096


def test_s8_operands_with_an_s32_result_do_not_wrap() -> None:
    text = text_of("s8", {"b": 1, "f": 3}, {"i": 3, "o": 1}, {"b": 1, "f": 1}).replace("ROOT r = s8", "ROOT r = s32")
    most = np.full((1, 3), -128, np.int8)
    assert evaluate(text, most, most.T).item() == 3 * 128 * 128


@pytest.mark.parametrize(
    "planned", ["bf16 s8 bf16", "s8 bf16 f32", "f32 s4 bf16", "u8 s8 s32", "f64 s64 f64", "c64 f32 c64"]
)
def test_operands_may_be_of_different_types(planned: str) -> None:
    """As TPU compilers write products with weights of fewer bits (XLA: InferConvolveShape). Sums are exact, and fit."""
    lhs, rhs, result = planned.split()
    window = "window={size=2}, dim_labels=b0f_0io->b0f"
    text = f"HloModule m\nENTRY e {{\na = {lhs}[2,5,4] parameter(0)\nb = {rhs}[2,4,3] parameter(1)\n"
    text += f"ROOT r = {result}[2,4,3] convolution(a, b), {window}\n}}"
    module = parse(text, strict=True)
    verify(module)
    generator = np.random.default_rng(1)
    a, b = generator.integers(0, 4, (2, 5, 4)), generator.integers(-3, 4, (2, 4, 3))
    expected = sum(a[:, tap : tap + 4] @ b[tap] for tap in range(2))
    operands = [x.astype(element_type(name).storage) for x, name in ((a, lhs), (b, rhs))]
    found = run(module, *operands)
    assert found.dtype == element_type(result).storage
    assert_array_equal(found.astype(np.complex128), expected)
    assert_array_equal(run(module, *operands, planner=False), found)


def test_the_type_of_mixed_operands_is_inferred_as_xla_does() -> None:
    for pair in ("bf16 s8", "s8 bf16", "u8 s8", "pred f32", "c64 f32", "f64 s64", "u32 s8"):
        lhs, rhs = pair.split()
        text = f"HloModule m\nENTRY e {{\na = {lhs}[2,4] parameter(0)\nb = {rhs}[4,3] parameter(1)\n"
        text += "ROOT r = convolution(a, b), dim_labels=bf_io->bf\n}"
        assert f"-> {parse(text).entry.root.shape} {{" in xla.canonical_text(text)


def test_tf32_keeps_ten_bits_of_the_operands() -> None:
    text = text_of("f32", {"b": 1, "f": 1}, {"i": 1, "o": 1}, {"b": 1, "f": 1})
    lhs, one = np.array([[1 + 2**-11 + 2**-20]], np.float32), np.ones((1, 1), np.float32)
    assert evaluate(text, lhs, one, numerics=POLICIES["tf32"]).item() == 1 + 2**-10
    exact = text.replace("->bf", "->bf, operand_precision={highest,highest}")
    assert evaluate(exact, lhs, one, numerics=POLICIES["tf32"]).item() == lhs.item()


def test_a_window_that_never_fits_gives_an_empty_result() -> None:
    window = (WindowDimension(3),)
    text = text_of("f32", {"b": 1, "0": 2, "f": 1}, {"0": 3, "i": 1, "o": 1}, {"b": 1, "0": 0, "f": 1}, window)
    assert evaluate(text, np.ones((1, 2, 1), np.float32), np.ones((3, 1, 1), np.float32)).shape == (1, 0, 1)


GOOD = """HloModule m
ENTRY e {
  a = f32[2,5,4] parameter(0)
  b = f32[3,4,6] parameter(1)
  ROOT r = f32[2,3,6] convolution(a, b), window={size=3}, dim_labels=b0f_0io->b0f
}"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("a = f32[2,5,4]", "a = f32[2,5,3]", "3 input features, but its kernel takes 4"),
        ("a = f32[2,5,4]", "a = f32[2,5]", "are for ranks"),
        ("size=3", "size=2", "has size 2, but the kernel's dimension 0 has size 3"),
        ("size=3", "size=3x3", "has 2 dimensions, but dim_labels name 1"),
        ("size=3", "size=3 stride=0", "stride of window dimension 0 of convolution must be positive"),
        ("->b0f", "->b0f, feature_group_count=2", "4 input features, but its kernel takes 4 in each of 2 groups"),
        ("->b0f", "->b0f, batch_group_count=4", "must be divisible by its 4"),
        ("->b0f", "->b0f, feature_group_count=2, batch_group_count=2", "both feature groups"),
        ("->b0f", "->b0f, feature_group_count=0", "must be positive"),
        ("r = f32[2,3,6]", "r = s32[2,3,6]", "cannot have elements of type s32"),
    ],
)
def test_wrong_convolutions_are_refused(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(ShapeError, match=message):
        evaluate(GOOD.replace(old, new))


@pytest.mark.parametrize("name", "float8_e5m2 float8_e4m3fn float8_e4m3b11fnuz bfloat16 int4".split())
def test_patches_of_types_that_numpy_lacks_sum_up_exactly(name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name))
    element_type = element_type_of(dtype)
    result = "s32" if element_type.is_integral else "f32"
    x = np.array([1, 2, 0, -1, 3, 1, -2, 2], np.int64)
    text = f"""HloModule m
ENTRY e {{
  x = {element_type}[1,8,1] parameter(0)
  k = {element_type}[3,1,5] parameter(1)
  ROOT c = {result}[1,6,5] convolution(x, k), window={{size=3}}, dim_labels=b0f_0io->b0f
}}
"""
    taps = np.array([1, -1, 2], np.int64)
    kernel = np.repeat(taps[:, None, None], 5, axis=2)
    actual = run(parse(text), x.reshape(1, 8, 1).astype(dtype), kernel.astype(dtype))
    expected = np.correlate(x, taps, "valid")
    assert (actual == expected[None, :, None]).all()


@needs_xla
def test_pred_convolutions_say_whether_any_product_is_true() -> None:
    window = (WindowDimension(3, 1, 1, 1),)
    text = text_of("f32", {"b": 2, "0": 6, "f": 3}, {"0": 3, "i": 3, "o": 4}, {"b": 2, "0": 6, "f": 4}, window)
    text = text.replace("f32[", "pred[")
    generator = np.random.default_rng(8)
    lhs, rhs = generator.random((2, 6, 3)) < 0.4, generator.random((3, 3, 4)) < 0.2
    (expected,) = xla.run_hlo(text, lhs, rhs)
    assert_array_equal(evaluate(text, lhs, rhs), expected)
    assert 0 < expected.mean() < 1


BATCH, SIDE, CHANNELS = 3, 12, 8
FORMS = {
    "patches": ("b01f_01io->b01f", {"i": CHANNELS, "o": 10}, (WindowDimension(3, 1, 1, 1),) * 2, ""),
    "patches of neighbours in space": ("bf01_oi01->bf01", {"i": CHANNELS, "o": 10}, (WindowDimension(3, 2, 1, 1),) * 2, ""),
    "one tap": ("b01f_01io->b01f", {"i": CHANNELS, "o": 10}, (WindowDimension(1),) * 2, ""),
    "one tap, neighbours in space": ("bf01_io01->bf01", {"i": CHANNELS, "o": 10}, (WindowDimension(1),) * 2, ""),
    "dilated input": (
        "b01f_01oi->b01f", {"i": CHANNELS, "o": 10}, (WindowDimension(3, 1, 2, 1, 2, 1, True),) * 2, "",
    ),
    "dilated input and window": (
        "b01f_01io->b01f", {"i": CHANNELS, "o": 4}, (WindowDimension(3, 2, 3, 4, 3, 2), WindowDimension(2, 3, 1, 1, 2, 3)), "",
    ),
    "depthwise": ("b01f_01io->b01f", {"i": 1, "o": CHANNELS}, (WindowDimension(3, 1, 1, 1),) * 2, "feature"),
    "depthwise, neighbours in space": (
        "bf01_oi01->bf01", {"i": 1, "o": 2 * CHANNELS}, (WindowDimension(3, 2, 1, 1),) * 2, "feature",
    ),
    "kernel gradient": ("f01b_i01o->01bf", {"i": BATCH, "o": 10}, (WindowDimension(12, 1, 1, 1),) * 2, ""),
    "kernel gradient of a stride": ("f01b_i01o->01bf", {"i": BATCH, "o": 10}, (WindowDimension(6, 1, 0, 1, 1, 2),) * 2, ""),
    "kernel gradient, neighbours in space": ("fb01_io01->bf01", {"i": BATCH, "o": 10}, (WindowDimension(12, 1, 1, 1),) * 2, ""),
    "depthwise kernel gradient": ("f01b_i01o->01bf", {"i": BATCH, "o": CHANNELS}, (WindowDimension(12, 1, 1, 1),) * 2, "batch"),
    "depthwise kernel gradient, neighbours in space": (
        "fb01_io01->bf01", {"i": BATCH, "o": CHANNELS}, (WindowDimension(6, 1, 0, 1, 1, 2),) * 2, "batch",
    ),
}  # fmt: skip
"""Dimension labels, features of the kernel, window, kind of groups: as networks and their gradients have them."""


def form(name: str, element_type: str) -> tuple[str, int]:
    """The module, and the number of products per output."""
    labels, features, window, kind = FORMS[name]
    input_labels, kernel_labels, output_labels = labels.replace("->", "_").split("_")
    batch, feature = (CHANNELS, BATCH) if labels.startswith("f") else (BATCH, CHANNELS)
    sizes = {"b": batch, "f": feature, "0": SIDE, "1": SIDE}
    kernel = {**features, "0": window[0].size, "1": window[1].size}
    output = {"b": 1 if kind == "batch" else batch, "f": features["o"]}
    output |= {str(number): output_size(SIDE, dimension) for number, dimension in enumerate(window)}
    text = text_of(
        element_type,
        {label: sizes[label] for label in input_labels},
        {label: kernel[label] for label in kernel_labels},
        {label: output[label] for label in output_labels},
        window,
        f", {kind}_group_count={CHANNELS}" if kind else "",
    )
    return text, kernel["0"] * kernel["1"] * kernel["i"]


def with_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, names in (
        (convolution, ("_BLOCK_BYTES", "_BLOCK_ROWS", "_BLOCK_COLUMNS", "_STORAGE_BLOCK_BYTES")),
        (algorithms, ("_CHANNEL_BYTES", "_GRADIENT_BYTES", "_BLOCK_TERMS", "_PART_ROWS", "_SMALL_PRODUCTS")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, 7 if name in ("_BLOCK_ROWS", "_BLOCK_COLUMNS", "_PART_ROWS") else 900)


@pytest.mark.sampled(18)
@needs_xla
@pytest.mark.parametrize("partial_bytes", [0, 1 << 20])
@pytest.mark.parametrize("element_type", "f32 bf16 c64 s32".split())
@pytest.mark.parametrize("name", FORMS)
def test_every_form_agrees_with_xla_in_blocks(
    monkeypatch: pytest.MonkeyPatch, name: str, element_type: str, partial_bytes: int
) -> None:
    with_small_blocks(monkeypatch)
    monkeypatch.setattr(algorithms, "_PARTIAL_BYTES", partial_bytes)
    compare(element_type, *form(name, element_type))


@pytest.mark.parametrize("name", FORMS)
def test_cores_do_not_change_convolutions(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with_small_blocks(monkeypatch)
    text, _ = form(name, "f32")
    parameters = parse(text).entry.parameter_shapes
    operands = [random_array("f32", shape.dimensions, seed) for seed, shape in enumerate(parameters)]
    results = []
    for cores in (1, 2, 5):
        monkeypatch.setattr(resources, "core_count", lambda cores=cores: cores)
        resources._pool.cache_clear()
        results.append(evaluate(text, *operands).tobytes())
    resources._pool.cache_clear()
    assert len(set(results)) == 1


LAYOUTS = "b0f_0io->b0f 0bf_oi0->0bf b0f_0io->0bf bf0_oi0->b0f fb0_io0->bf0".split()
"""Those of a dump from a TPU among them; in some, input and result lie in the same order, in others not."""


@pytest.mark.parametrize("numerics", ["reference", "exact", "tf32"])
@pytest.mark.parametrize("element_type", "f32 bf16 c64 s32 s8".split())
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_large_kernel_of_one_tap(
    monkeypatch: pytest.MonkeyPatch, layout: str, element_type: str, numerics: str
) -> None:
    """Sums of 12 products of whole numbers up to 3, all of them exact; as many bits as bf16 has, and s8, hold them."""
    monkeypatch.setattr(convolution, "_LARGE_KERNEL", 1)
    rng = np.random.default_rng(11)
    image = rng.integers(-3, 4, (2, 5, 12))
    kernel = rng.integers(-3, 4, (1, 12, 7))
    labels = {"b": 0, "0": 1, "f": 2}, {"0": 0, "i": 1, "o": 2}, {"b": 0, "0": 1, "f": 2}
    input_label, rest = layout.split("_")
    given = [
        np.ascontiguousarray(array.transpose([axes[letter] for letter in label])).astype(DTYPES[element_type])
        for array, label, axes in zip((image, kernel), (input_label, *rest.split("->")), labels, strict=False)
    ]
    expected = (image @ kernel[0]).transpose([labels[2][letter] for letter in layout.split("->")[1]])
    shapes = [",".join(map(str, array.shape)) for array in (*given, expected)]
    module = parse(
        f"HloModule m\nENTRY e {{\n  x = {element_type}[{shapes[0]}] parameter(0)\n"
        f"  k = {element_type}[{shapes[1]}] parameter(1)\n"
        f"  ROOT r = {element_type}[{shapes[2]}] convolution(x, k), window={{size=1}}, dim_labels={layout}\n}}\n"
    )
    assert_array_equal(run(module, *given, numerics=numerics), expected.astype(DTYPES[element_type]))


@pytest.mark.parametrize("numerics", ["reference", "exact"])
@pytest.mark.parametrize(
    ("inputs", "kernel", "result", "window"),
    [
        ("4,8,3,6", "4,8,6,5", "4,8,3,5", "size=4x8 stride=3x7 lhs_dilate=4x8"),
        ("4,8,3,6", "4,8,6,5", "4,8,3,5", "size=4x8 stride=3x7 lhs_dilate=4x8 rhs_reversal=1x0"),
        ("4,8,3,6", "4,3,6,5", "4,8,3,5", "size=4x3 stride=3x1 pad=0_0x1_1 lhs_dilate=4x1"),
        ("4,8,3,6", "4,3,6,5", "4,3,3,5", "size=4x3 stride=3x2 pad=0_0x0_-1 lhs_dilate=4x1"),
        ("4,1,3,6", "4,7,6,5", "4,7,3,5", "size=4x7 stride=3x1 pad=0_0x6_6 lhs_dilate=4x1 rhs_reversal=0x1"),
        ("1,1,3,6", "4,7,6,5", "4,7,3,5", "size=4x7 pad=3_3x6_6"),
    ],
)
def test_windows_that_are_batches_and_columns_of_a_product(
    inputs: str, kernel: str, result: str, window: str, numerics: str
) -> None:
    """As TPU compilers write products; whole numbers, so that sums are exact."""
    text = op(
        f"f32[{result}] convolution(a, b), window={{{window}}}, dim_labels=01bf_01io->01bf",
        a=f"f32[{inputs}]",
        b=f"f32[{kernel}]",
    )
    generator = np.random.default_rng(7)
    a, b = (generator.integers(-8, 9, [*map(int, sizes.split(","))]).astype(np.float32) for sizes in (inputs, kernel))
    module = parse(text, strict=True)
    (first, second) = module.entry.root.attributes.window.dimensions
    expected = np.zeros([*map(int, result.split(","))], np.float32)
    for x, y, tap, other in np.ndindex(*expected.shape[:2], *b.shape[:2]):
        places = [
            position * dimension.stride + step * dimension.window_dilation - dimension.padding_low
            for position, step, dimension in ((x, tap, first), (y, other, second))
        ]
        elements = [
            divmod(place, dimension.base_dilation) for place, dimension in zip(places, (first, second), strict=True)
        ]
        if all(0 <= element < size and not left for (element, left), size in zip(elements, a.shape, strict=False)):
            taps = [
                size - 1 - step if dimension.window_reversal else step
                for step, size, dimension in zip((tap, other), b.shape, (first, second), strict=False)
            ]
            expected[x, y] += a[elements[0][0], elements[1][0]] @ b[taps[0], taps[1]]
    assert_array_equal(run(module, a, b, numerics=numerics), expected)
