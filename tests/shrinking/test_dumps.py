"""Real dumps, shrunken, compute what XLA:CPU computes on the equivalent of the shrunken module."""

import math
from pathlib import Path

import numpy as np
import pytest

import hloexec
from conformance import xla
from tests.drawing import examples
from tests.dumps.devices import flat, leaves_by_xla
from tests.dumps.test_decoder_block import roundings_of
from tests.text.seeds import seed_path

pytestmark = [
    pytest.mark.skipif(not xla.available(), reason="needs jaxlib"),
    pytest.mark.filterwarnings("ignore::hloexec.HloWarning"),
]


def shrunken(name: str, limit: int, folder: Path) -> Path:
    """The file of a dump made smaller."""
    path = seed_path(name)
    if path is None:
        pytest.skip("the real dumps are not here; HLOEXEC_SEEDS names the folder that holds them")
    small = folder / "small.hlo"
    small.write_text(hloexec.format(hloexec.shrink(hloexec.load(path), max_bytes=limit).module))
    return small


def leaves_by_hloexec(dump: Path, devices: int) -> dict[str, np.ndarray]:
    """Each result, by `device_leaf`, as `leaves_by_xla` has them."""
    module = hloexec.load(dump)
    inputs = [hloexec.random_inputs(module, seed=seed) for seed in range(devices)]
    outputs = hloexec.run_devices(module, inputs, replicas=devices // module.num_partitions)
    return {
        f"{device}_{number}": leaf.reshape(-1)
        for device, each in enumerate(outputs)
        for number, leaf in enumerate(flat(each))
    }


def scale_of(array: np.ndarray) -> float:
    """The root mean square."""
    return math.sqrt(float(np.mean(np.square(array.astype(np.float64)))))


@pytest.mark.slow
def test_a_decoder_block_matches_xla(tmp_path: Path) -> None:
    """Each of the n roundings to bf16 on the way may go either way, one step of 2^-8 relative at most, so that the root
    mean square of the error is at most n · 2^-8 times the tensor's; the largest of N is sqrt(2 ln N) times that."""
    dump = shrunken("002_2b3b731b0feb0bfe.txt", 50_000_000, tmp_path)
    module = hloexec.load(dump)
    inputs = hloexec.random_inputs(module)
    compiled = xla.compile_hlo(xla.equivalent_module(dump.read_text()), xla_flags=xla.COMPILED_SOONEST)
    expected = compiled.execute(compiled.place([flat(tuple(inputs))]))
    step = roundings_of(module) * 2.0**-8
    for leaf, (truth, *_) in zip(flat(hloexec.run(module, *inputs)), expected, strict=True):
        wide = np.asarray(truth).astype(np.float64)
        difference, scale = np.abs(leaf.astype(np.float64) - wide), scale_of(wide)
        assert scale_of(difference) <= step * scale
        assert difference.max() <= step * scale * math.sqrt(2 * math.log(wide.size))


def test_a_gated_mlp_on_four_devices_matches_xla(tmp_path: Path) -> None:
    """Two layers of sums of n products in f32: their rounding errors walk at most √n · 2⁻²⁴ of the scale away, on either
    side, and the largest of N such errors is √(2 ln N) times as large."""
    dump = shrunken("004_915eaf8d7a870eb5.txt", examples(50_000_000), tmp_path)
    actual, module = leaves_by_hloexec(dump, 4), hloexec.load(dump)
    compiled = xla.compile_hlo(xla.equivalent_module(dump.read_text()), devices=4, xla_flags=xla.COMPILED_SOONEST)
    given = [flat(tuple(hloexec.random_inputs(module, seed=seed))) for seed in range(4)]
    expected = {
        f"{device}_{number}": leaf.reshape(-1)
        for device, leaves in enumerate(compiled.run_devices(given))
        for number, leaf in enumerate(leaves)
    }
    assert actual.keys() == expected.keys()
    bound = 2 * (math.sqrt(4096) + math.sqrt(14336)) * 2.0**-24
    for key, truth in expected.items():
        scale, difference = scale_of(truth), np.abs(actual[key] - truth.astype(np.float64))
        assert scale_of(difference) <= bound * scale
        assert difference.max() <= bound * scale * math.sqrt(2 * math.log(truth.size))


@pytest.mark.slow
def test_a_translation_model_on_eight_replicas_matches_xla(tmp_path: Path) -> None:
    """A rounding changes a result as much as changing an input to its neighbour does, and there are fewer than 64 steps ×
    9 layers × 10 roundings on the way, which add up like a random walk: √5760 = 76 times what stirring the inputs
    changes in XLA's own results."""
    dump = shrunken("001_83a80cec1e7cc5e6.txt", 50_000_000, tmp_path)
    actual, expected = leaves_by_hloexec(dump, 8), leaves_by_xla(dump, 8, 1, tmp_path / "expected.npz")
    stirred = leaves_by_xla(dump, 8, 1, tmp_path / "stirred.npz", is_stirred=True)
    assert actual.keys() == expected.keys()
    for key, truth in expected.items():
        if truth.dtype.kind != "f":
            np.testing.assert_array_equal(actual[key], truth)
            continue
        wide, scale = truth.astype(np.float64), scale_of(truth)
        change = scale_of(stirred[key] - wide) / scale
        assert np.isfinite(actual[key]).all()
        assert scale_of(actual[key] - wide) <= 76 * max(change, 2.0**-24) * scale, key
