"""How messages word sizes, devices, and names that may have been meant."""

import pytest

from hloexec.core.wording import (
    byte_text,
    first_line,
    listing,
    natural_number,
    on_devices,
    quoted,
    suggestion,
    truncated,
)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1500, "1.5 kB"),
        (2885767252, "2.9 GB"),
        (10**18, "1.0 EB"),
        (1 << 128, "3.4e+20 EB"),
    ],
)
def test_sizes_are_written_for_people(size: int, text: str) -> None:
    assert byte_text(size) == text


def test_devices_are_listed_up_to_a_number_and_none_where_there_are_none() -> None:
    listed = [on_devices([]), on_devices([2]), on_devices([0, 1]), on_devices(range(9)), on_devices(range(0, 18, 2))]
    assert listed == [
        "",
        " on device 2",
        " on devices 0–1",
        " on devices 0–8",
        " on devices 0, 2, 4, 6, 8, 10, 12, 14, …",
    ]
    assert on_devices([0, 1, 2, 5, 7, 8]) == " on devices 0–2, 5, 7–8"


def test_only_names_that_come_near_are_suggested() -> None:
    assert suggestion("dot.4", ["dot.3", "add"]) == "; did you mean dot.3?"
    assert suggestion("dot.4", ["dot.3", "dot.2", "add"], 2, repr) == "; did you mean 'dot.3' or 'dot.2'?"
    assert suggestion("dot", ["add", "dot_general.4", "dot_general.5"]) == "; did you mean dot_general.4?"
    assert suggestion("x", ["dot.3"]) == suggestion("x", []) == suggestion("", ["dot.3"]) == ""


def test_natural_numbers_are_decimal_digits_that_64_bits_hold() -> None:
    assert [natural_number(text) for text in ("0", "007", "9" * 18)] == [0, 7, 10**18 - 1]
    assert not any(map(natural_number, ("", "-1", "+1", "1.0", " 1", "1_0", "²", "٣", "9" * 20, "9" * 5000)))


def test_what_is_long_is_cut_and_shows_it() -> None:
    assert [truncated("dot.3", 5), truncated("dot.34", 5)] == ["dot.3", "dot.…"]
    assert [quoted("x" * 80), quoted("x" * 81)] == [f"'{'x' * 80}'", f"'{'x' * 79}…'"]
    assert [quoted(12), quoted([1] * 100, 9)] == ["12", "[1, 1, 1…"]


def test_lists_have_their_first_items_and_show_that_there_are_more() -> None:
    assert [listing([], 2), listing("ab", 2), listing(iter("abc"), 2)] == ["", "a, b", "a, b, …"]


def test_the_first_line_of_a_message_has_the_first_item_of_its_list() -> None:
    assert first_line("it is so\nbecause") == "it is so"
    assert first_line("m needs:\n  custom call f\n  custom call g\nOr else.") == "m needs: custom call f"
    assert first_line("it ends with a colon:") == "it ends with a colon:"
