"""Windows of reduce-window against the definition, and how their elements are combined."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hloexec.core.dtypes import ELEMENT_TYPES
from hloexec.core.ir import Window, WindowDimension
from hloexec.ops import resources
from hloexec.ops.reduction import reduce_window
from hloexec.ops.reduction.fast.reduce import rows_of_windows
from hloexec.ops.reduction.reduce_window import reduce_windows_known
from hloexec.ops.reduction.reducers import KNOWN_REDUCERS
from tests.drawing import examples
from tests.ops.against_xla import random_array


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    extent=st.integers(1, 9),
    size=st.integers(1, 40),
    stride=st.integers(1, 4),
    low=st.integers(-3, 45),
    high=st.integers(-3, 45),
    base_dilation=st.integers(1, 4),
    window_dilation=st.integers(1, 3),
    operation=st.sampled_from(["add", "maximum"]),
)
def test_any_window_sees_the_elements_of_the_definition(
    extent, size, stride, low, high, base_dilation, window_dilation, operation
):
    dimension = WindowDimension(size, stride, low, high, base_dilation, window_dilation)
    array = np.arange(1, extent + 1) ** 2 * (-1) ** np.arange(extent)
    padded = (extent - 1) * base_dilation + 1 + low + high
    reach = (size - 1) * window_dilation + 1
    places = (padded - reach) // stride + 1 if padded >= reach else 0
    expected = []
    for place in range(places):
        positions = [place * stride + tap * window_dilation - low for tap in range(size)]
        seen = [
            array[p // base_dilation] for p in positions if p % base_dilation == 0 and 0 <= p // base_dilation < extent
        ]
        expected.append((sum if operation == "add" else max)([0, *seen]))
    arguments = np.zeros((), np.int32), Window((dimension,)), KNOWN_REDUCERS[operation], ELEMENT_TYPES["s32"]
    value = reduce_windows_known(array.astype(np.int32), *arguments)
    assert value.tolist() == expected


@pytest.mark.parametrize("name", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
def test_cumulative_sums_stay_within_the_bound_of_doubled_windows(name, is_reversed, axis):
    """γ_m·Σ|x|, m additions on the longest way to the result: ⌈log2 n⌉, and the initial value."""
    entry, shape = ELEMENT_TYPES[name], (300, 300)
    array = random_array(5, shape, entry.storage)
    padding = {"padding_high" if is_reversed else "padding_low": shape[axis] - 1}
    window = [WindowDimension(1), WindowDimension(1)]
    window[axis] = WindowDimension(shape[axis], **padding)
    init = np.zeros((), entry.storage)
    value = reduce_windows_known(array, init, Window(tuple(window)), KNOWN_REDUCERS["add"], entry)
    places = slice(None, None, -1 if is_reversed else 1)
    turned = np.moveaxis(array, axis, 0)[places].astype(np.longdouble)
    exact, magnitude = np.cumsum(turned, axis=0), np.cumsum(np.abs(turned), axis=0)
    unit = 2.0**-53 if name == "f64" else 2.0**-24
    rounding = 2.0 ** -(entry.mantissa_bits + 1) if entry.is_narrow else 0
    bound = (np.ceil(np.log2(shape[axis])) + 2) * unit * magnitude + rounding * np.abs(exact)
    assert (np.abs(np.moveaxis(value, axis, 0)[places] - exact) <= bound).all()


@pytest.mark.parametrize("name", "s32 f32 f64 bf16".split())
@pytest.mark.parametrize("low", [0, 13])
def test_long_windows_that_share_no_element_are_sums_of_blocks(monkeypatch, name, low):
    """As XLA:CPU splits long sums: exact where integers are, else within γ_m·Σ|x|; in few calls, for any layout."""
    entry, shape = ELEMENT_TYPES[name], (70, 3, 40)
    array = random_array(8, shape, ELEMENT_TYPES["s16"].storage if name == "s32" else entry.storage).astype(
        entry.storage
    )
    padded = WindowDimension(32, stride=32, padding_low=low, padding_high=low and 31)
    window = Window((padded, WindowDimension(1), WindowDimension(20, stride=20)))
    arguments = np.zeros((), entry.storage), window, KNOWN_REDUCERS["add"], entry
    monkeypatch.setattr(reduce_window.Along, "reduced", None)
    value = reduce_windows_known(array, *arguments)
    blocks = np.pad(array.astype(np.longdouble), ((low, low and 31), (0, 0), (0, 0)))
    blocks = blocks[: len(blocks) // 32 * 32].reshape(-1, 32, 3, 2, 20)
    exact, magnitude = blocks.sum(axis=(1, 4)), np.abs(blocks).sum(axis=(1, 4))
    unit = {"s32": 0.0, "f64": 2.0**-53}.get(name, 2.0**-24)
    rounding = 2.0 ** -(entry.mantissa_bits + 1) if entry.is_narrow else 0
    assert value.shape == exact.shape
    assert (np.abs(value - exact) <= (32 + 20) * unit * magnitude + rounding * np.abs(exact)).all()
    turned = np.asfortranarray(array)
    assert reduce_windows_known(turned, *arguments).tobytes() == value.tobytes()


@pytest.mark.parametrize("cores", [1, 2, 5])
@pytest.mark.parametrize("operation", ["add", "maximum"])
@pytest.mark.parametrize(
    "dimension",
    [
        WindowDimension(3, 2, 0, 1),
        WindowDimension(60, padding_low=59),
        WindowDimension(40, padding_low=39, stride=2),
        WindowDimension(20, stride=20),
        WindowDimension(16, 16, 3, 9),
    ],
)
def test_neither_cores_nor_blocks_change_windows(monkeypatch, cores, operation, dimension):
    array = random_array(6, (60, 60, 5), np.float32)
    window = Window((dimension, dimension, WindowDimension(1)))
    arguments = np.zeros((), np.float32), window, KNOWN_REDUCERS[operation], ELEMENT_TYPES["f32"]
    whole = reduce_windows_known(array, *arguments)
    monkeypatch.setattr(resources, "core_count", lambda: cores)
    resources._pool.cache_clear()
    monkeypatch.setattr(reduce_window, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(reduce_window, "_LONG_LOOP", 1)
    assert reduce_windows_known(array, *arguments).tobytes() == whole.tobytes()
    resources._pool.cache_clear()


@pytest.mark.parametrize("operation", ["minimum", "maximum"])
@pytest.mark.parametrize(
    "dimension", [WindowDimension(3, 2, 1, 1), WindowDimension(40, padding_low=39), WindowDimension(8, 8, 3, 5)]
)
def test_windows_with_zeros_of_both_signs_give_the_one_that_wins(operation, dimension):
    array = np.random.default_rng(7).choice(np.array([-0.0, 0.0], np.float32), (9, 40))
    init = np.array(np.inf if operation == "minimum" else -np.inf, np.float32)
    window = Window((WindowDimension(1), dimension))
    value = reduce_windows_known(array, init, window, KNOWN_REDUCERS[operation], ELEMENT_TYPES["f32"])
    signs = reduce_windows_known(
        np.signbit(array), np.array(operation == "maximum"), window,
        KNOWN_REDUCERS["or" if operation == "minimum" else "and"], ELEMENT_TYPES["pred"],
    )  # fmt: skip
    assert (value == 0).all()
    assert (np.signbit(value) == signs).all()


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    "dimension",
    [
        WindowDimension(32, stride=31),
        WindowDimension(9, stride=4, window_dilation=3),
        WindowDimension(8, stride=5, padding_low=2),
        WindowDimension(96),
    ],
)
def test_windows_on_few_elements_are_added_tap_by_tap(dimension, count):
    array = random_array(8, (96, count), np.float32) * np.float32(2.0) ** (random_array(9, (96, count), np.int8) % 8)
    array[40:50] = -0.0
    window = Window((dimension, WindowDimension(1)))
    value = reduce_windows_known(array, np.float32(-0.0), window, KNOWN_REDUCERS["add"], ELEMENT_TYPES["f32"])
    for place in range(len(value)):
        taps = place * dimension.stride + np.arange(dimension.size) * dimension.window_dilation - dimension.padding_low
        total = np.full(count, -0.0, np.float32)
        for tap in taps[taps >= 0]:
            total = total + array[tap]
        assert value[place].tobytes() == total.tobytes()


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    rows=st.integers(1, 3),
    extent=st.integers(8, 80),
    size=st.integers(8, 33),
    low=st.integers(0, 32),
    high=st.integers(0, 32),
    name=st.sampled_from(["add", "maximum", "minimum"]),
    initial=st.sampled_from([0, -5, 7]),
    is_turned=st.booleans(),
)
def test_windows_that_become_rows_see_the_elements_of_the_definition(
    rows, extent, size, low, high, name, initial, is_turned
):
    size = min(size, extent)
    low, high = low % size, high % size
    window = Window((WindowDimension(1), WindowDimension(size, stride=size, padding_low=low, padding_high=high)))
    array = np.random.default_rng(extent).integers(-99, 100, (rows, extent)).astype(np.int32)
    places = (extent + low + high - size) // size + 1
    combine = {"add": sum, "maximum": max, "minimum": min}[name]
    expected = [
        [
            combine([initial, *row[max(0, place * size - low) : max(0, (place + 1) * size - low)]])
            for place in range(places)
        ]
        for row in array.tolist()
    ]
    kernel = rows_of_windows((rows, extent), window, KNOWN_REDUCERS[name], ELEMENT_TYPES["s32"])
    assert kernel is not None
    value = kernel(np.asfortranarray(array) if is_turned else array, np.array(initial, np.int32))
    assert value.tolist() == expected


def test_windows_that_overlap_or_are_short_do_not_become_rows():
    for dimension in (WindowDimension(8, stride=4), WindowDimension(8), WindowDimension(4, stride=4)):
        assert rows_of_windows((64,), Window((dimension,)), KNOWN_REDUCERS["add"], ELEMENT_TYPES["f32"]) is None


@pytest.mark.parametrize("name", ["s32", "f32", "f64"])
@pytest.mark.parametrize(
    "dimension",
    [
        WindowDimension(16, padding_low=15),
        WindowDimension(16, padding_high=15),
        WindowDimension(12, padding_low=3),
        WindowDimension(9, 2, window_dilation=1),
    ],
)
def test_windows_along_short_rows_have_the_bits_of_windows_along_columns(monkeypatch, name, dimension):
    """XLA makes such of cumulative sums; each order of dimensions has loops of its own."""
    seen = []
    moveaxis = np.moveaxis

    def watched(*given):
        seen.append(given)
        return moveaxis(*given)

    monkeypatch.setattr(reduce_window.np, "moveaxis", watched)
    entry = ELEMENT_TYPES[name]
    array = random_array(6, (3000, 16), entry.storage)
    found = []
    one = WindowDimension(1)
    for operand, window in ((array, (one, dimension)), (array.T.copy(), (dimension, one))):
        arguments = np.zeros((), entry.storage), Window(window), KNOWN_REDUCERS["add"], entry
        found.append(reduce_windows_known(operand, *arguments))
        assert bool(seen) is (operand is array)
        seen.clear()
    assert found[0].tobytes() == np.ascontiguousarray(found[1].T).tobytes()
