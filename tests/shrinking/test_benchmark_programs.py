"""The benchmark's JAX programs at two sizes: the large one, shrunken, computes what the small one computes.

Only sizes may differ between the two, so scales are those at which a program has as many layers, and strides divide
images as evenly. The table that says so in the documentation is the one that is tested here.
"""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import attrs
import pytest

import hloexec
from hloexec.core.ir import Shape, leaf_shapes
from tests.shrinking.smallest import assert_same_results, assert_valid

jax: Any = pytest.importorskip("jax")
pytest.importorskip("flax")

from benchmarks.programs import PROGRAMS  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::hloexec.HloWarning")


@attrs.frozen
class Sizes:
    """The arguments of a program, a large and a small one; `side` is that of images."""

    large: Mapping[str, Any] = attrs.field(factory=lambda: {"scale": 1})
    small: Mapping[str, Any] = attrs.field(factory=lambda: {"scale": 0.25})
    dims: Mapping[int, int] = attrs.field(factory=dict)
    """What no input or result has."""
    keep: tuple[int, ...] = ()


HALVES = {"scale": 0.5}, {"scale": 0.25}
UNTESTED = {"unet", "mamba", "gru", "kalman", "k-means", "ray-march", "graph", "pinn"}
"""These have constants in which sizes do not show, or their optimized form does (the spacing of the rays of `ray-march`, the
levels of the scan of `mamba`); other programs of their kinds are in `evaluation/shrinking/reserve.py`.
"""
SIZES = {
    **{name: Sizes() for name in PROGRAMS if name not in UNTESTED},
    # At these scales, there are two layers; a width is divided into heads of the same size.
    "transformer": Sizes(*HALVES, keep=(32,)),
    "transformer-bf16": Sizes(*HALVES, keep=(32,)),
    "resnet": Sizes({"scale": 1, "side": 160}, {"scale": 0.5, "side": 96}),
    "mobilenet": Sizes({"scale": 1, "side": 224}, {"scale": 0.5, "side": 64}),
    # The capacity of an expert.
    "experts": Sizes(dims={640: 320}),
}


def table() -> list[str]:
    """What is tested, as the documentation has it."""

    def cell(arguments: Mapping[str, Any]) -> str:
        side = f", images of {arguments['side']}²" if "side" in arguments else ""
        return f"{arguments['scale']:g}{side}"

    def asked(sizes: Sizes) -> str:
        return ", ".join([f"`--dim {a}={b}`" for a, b in sizes.dims.items()] + [f"`--keep {a}`" for a in sizes.keep])

    rows = [f"| {name} | {cell(each.large)} | {cell(each.small)} | {asked(each)} |" for name, each in SIZES.items()]
    return ["| program | large | small | besides |", "| --- | --- | --- | --- |", *rows]


def lowered(name: str, arguments: Mapping[str, Any], *, optimized: bool) -> hloexec.Module:
    found = lowered_by_jax(name, *arguments.items())
    if not optimized:
        return hloexec.from_jax(found)
    # What LLVM makes of it is not run.
    return hloexec.parse(found.compile({"xla_backend_optimization_level": 0}).as_text())


@lru_cache(2)
def lowered_by_jax(name: str, *arguments: tuple[str, Any]) -> Any:
    """Kept for the test that follows, of the same program."""
    function, shapes = PROGRAMS[name](**dict(arguments))
    return jax.jit(function, keep_unused=True).lower(*shapes)


def interface(module: hloexec.Module) -> tuple[list[Shape], list[Shape]]:
    return list(module.entry.parameter_shapes), [leaf for _, leaf in leaf_shapes(module.entry.result_shape)]


def shrunken(large: hloexec.Module, small: hloexec.Module, sizes: Sizes) -> Any:
    """The large module with the sizes of the small one's inputs; and of its results, where no input has such a size."""
    dims = dict(sizes.dims)
    known: set[int] = set()
    for ours, theirs in zip(interface(large), interface(small), strict=True):
        pairs = {
            pair
            for our, their in zip(ours, theirs, strict=True)
            for pair in zip(our.dimensions, their.dimensions, strict=True)
        }
        dims |= {before: after for before, after in sorted(pairs) if before != after and before not in known}
        known |= {before for before, _ in pairs}
    return hloexec.shrink(large, dims=dims, keep=sizes.keep)


@pytest.mark.slow_cases("transformer-False")
@pytest.mark.sampled(24)
@pytest.mark.parametrize("optimized", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SIZES)
def test_a_shrunken_program_of_the_benchmark_computes_what_the_small_one_does(name: str, optimized: bool) -> None:
    """The same bits, or where XLA has optimized both, the same up to rounding."""
    sizes = SIZES[name]
    large, small = (lowered(name, arguments, optimized=optimized) for arguments in (sizes.large, sizes.small))
    found = shrunken(large, small, sizes)
    assert_valid(found.module)
    assert interface(found.module) == interface(small)
    assert_same_results(found.module, small, optimized=optimized)


def test_the_documentation_lists_what_is_tested() -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "shrinking.md"
    assert "\n".join(table()) in page.read_text(encoding="utf-8")
