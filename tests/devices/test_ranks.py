"""Which rank holds which devices."""

import pytest

from hloexec.engine.devices.ranks import blocks_of
from hloexec.errors import InputError


@pytest.mark.parametrize("count", [1, 2, 7, 16, 512])
def test_every_device_is_on_the_rank_of_its_share(count: int) -> None:
    for ranks in range(1, count + 1):
        blocks = blocks_of(count, ranks)
        assert len(blocks) == ranks and all(blocks)
        assert [rank for rank, block in enumerate(blocks) for _ in block] == [d * ranks // count for d in range(count)]
        assert [device for block in blocks for device in block] == list(range(count))


@pytest.mark.parametrize(
    ("ranks", "message"),
    [
        (0, "ranks must be at least 1, but is 0"),
        (-2, "ranks must be at least 1, but is -2"),
        (5, "ranks must be at most 4, as there are 4 devices and each rank holds one or more, but is 5"),
        (True, "ranks must be an integer, but the Python bool True was given"),
        (2.0, "ranks must be an integer, but the Python float 2.0 was given"),
        ("2", "ranks must be an integer, but the Python str '2' was given"),
    ],
)
def test_numbers_of_ranks_that_do_not_fit_are_refused(ranks: int, message: str) -> None:
    with pytest.raises(InputError) as error:
        blocks_of(4, ranks)
    assert str(error.value) == message


def test_one_device_is_on_one_rank() -> None:
    assert blocks_of(1, 1) == (range(1),)
    with pytest.raises(InputError, match="at most 1, as there is 1 device"):
        blocks_of(1, 2)
