"""A small module shrunken is, line for line, the module that is written for the smaller sizes, and XLA accepts it."""

from collections.abc import Iterator

import pytest

import hloexec
from tests.shrinking.hand_made import MODULES, HandMade
from tests.shrinking.smallest import assert_valid


def shrunken(module: HandMade) -> hloexec.Shrinkage:
    """The large module with the sizes of the small one's inputs."""
    large, small = (hloexec.parse(module.at(sizes)) for sizes in (module.large, module.small))
    pairs = {*sizes_of(large, small)}
    dims = {before: after for before, after in pairs if before != after}
    keep = {before for before, after in pairs if before == after > 1} - dims.keys()
    return hloexec.shrink(large, dims=dims, keep=keep)


def sizes_of(large: hloexec.Module, small: hloexec.Module) -> Iterator[tuple[int, int]]:
    for ours, theirs in zip(large.entry.parameter_shapes, small.entry.parameter_shapes, strict=True):
        yield from zip(ours.dimensions, theirs.dimensions, strict=True)  # type: ignore[union-attr]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", MODULES)
def test_shrinking_gives_the_module_for_the_smaller_sizes(name: str) -> None:
    module = MODULES[name]
    found = shrunken(module)
    assert_valid(found.module)
    assert hloexec.format(found.module) == hloexec.format(hloexec.parse(module.at(module.small)))


GUESSED = {
    "a_convolution_scaled_by_its_features",
    "a_mask_in_f32",
    "a_mask_of_one_half",
    "a_shift_by_one_half",
    "a_transform_of_a_plane_scaled",
    "frequencies_by_power",
    "nested_state",
}
"""What a reader has to check."""


def test_the_report_marks_what_was_guessed() -> None:
    unsure = {name for name in MODULES if any(not each.is_certain for each in shrunken(MODULES[name]).constants)}
    assert unsure <= GUESSED, unsure - GUESSED
    assert "a_mask_of_one_half" in unsure
