"""Two dumps for several devices at their full size: a translation model on eight GPUs, a gated MLP on four TPUs.

The truth is XLA:CPU with as many devices on the equivalent module (fusions as calls, library calls as the HLO they stand
for). Each test takes minutes and up to 16 GB, so they run only where HLOEXEC_LARGE is set.
"""

import math
import os
from pathlib import Path

import numpy as np
import pytest

import hloexec
from conformance import xla
from hloexec.engine.exec.statistics import Statistics
from tests.dumps.devices import flat, leaves_by_xla
from tests.text.seeds import seed_path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not xla.available(), reason="needs jaxlib"),
    pytest.mark.skipif(
        "HLOEXEC_LARGE" not in os.environ, reason="takes minutes and 16 GB; set HLOEXEC_LARGE to run it"
    ),
    pytest.mark.timeout(1800),
]


def run_and_compare(
    name: str, devices: int, every: int, tmp_path: Path
) -> tuple[Statistics, dict[str, tuple[float, float]]]:
    """Run a dump on both; gives what it took, and for each device and float leaf its errors as parts of the leaf's scale.

    Of both the root mean square and the largest; integers and predicates must be equal.
    """
    dump = seed_path(name)
    if dump is None:
        pytest.skip(f"the dump {name} is not here")
    module = hloexec.load(dump)
    statistics = Statistics()
    inputs = [hloexec.random_inputs(module, seed=seed) for seed in range(devices)]
    outputs = hloexec.run_devices(module, inputs, replicas=devices // module.num_partitions, statistics=statistics)
    actual = {
        f"{device}_{number}": leaf.reshape(-1)[::every].copy()
        for device, output in enumerate(outputs)
        for number, leaf in enumerate(flat(output))
    }
    del outputs, inputs
    expected = leaves_by_xla(dump, devices, every, tmp_path / "expected.npz")
    assert expected.keys() == actual.keys()
    errors = {}
    for key, truth in expected.items():
        if truth.dtype.kind != "f":
            np.testing.assert_array_equal(actual[key], truth)
            continue
        wide = truth.astype(np.float64)
        assert np.isfinite(actual[key]).all()
        difference = np.abs(actual[key] - wide)
        scale = math.sqrt(float(np.mean(wide**2)))
        errors[key] = (math.sqrt(float(np.mean(difference**2))) / scale, float(difference.max()) / scale)
    return statistics, errors


def test_a_gated_mlp_on_four_devices_matches_xla(tmp_path: Path) -> None:
    """Two layers of sums over 4096 and 14336 products in f32: the rounding errors of a sum of n walk at most √n · 2⁻²⁴
    of its scale away from it, on either side; the largest of N such errors is √(2 ln N) times as large.
    """
    statistics, errors = run_and_compare("004_915eaf8d7a870eb5.txt", 4, 7, tmp_path)
    assert statistics.peak_bytes <= 10e9
    bound = 2 * (math.sqrt(4096) + math.sqrt(14336)) * 2.0**-24
    elements = 32 * 512 * 4096 / 7
    for root_mean_square, largest in errors.values():
        assert root_mean_square <= bound
        assert largest <= bound * math.sqrt(2 * math.log(elements))


def test_a_translation_model_on_eight_replicas_matches_xla(tmp_path: Path) -> None:
    """A rounding changes a result as much as changing an input to its neighbour does, and there are about 64 steps × 9
    layers × 10 roundings on the way, which add up like a random walk: √5760 = 76 times what stirring the inputs changes
    in XLA's own results. Some results are nothing but that: a gradient that is zero but for rounding.
    """
    name, devices, every = "001_83a80cec1e7cc5e6.txt", 8, 7
    _, errors = run_and_compare(name, devices, every, tmp_path)
    dump = seed_path(name)
    assert dump is not None
    with np.load(tmp_path / "expected.npz") as plain:
        stirred = leaves_by_xla(dump, devices, every, tmp_path / "stirred.npz", is_stirred=True)
        for key, (root_mean_square, _) in errors.items():
            truth = plain[key].astype(np.float64)
            scale = math.sqrt(float(np.mean(truth**2)))
            change = math.sqrt(float(np.mean((stirred[key] - truth) ** 2))) / scale
            assert root_mean_square <= 76 * max(change, 2.0**-24), key
