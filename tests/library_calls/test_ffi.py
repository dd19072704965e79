"""The dictionaries of typed calls, as MLIR prints them."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hloexec.errors import UnsupportedError
from hloexec.ops.library_calls.configs import checked_attributes, ffi_attributes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, {}),
        ("", {}),
        ("{}", {}),
        ("{ }", {}),
        ("{uplo = 76 : ui8}", {"uplo": 76}),
        ("{left = true, transpose = false}", {"left": True, "transpose": False}),
        ("{high = 7 : i32, low = -1 : i64}", {"high": 7, "low": -1}),
        ("{recall = 9.500000e-01 : f32, one = 1.0}", {"recall": 0.95, "one": 1.0}),
        ('{"a b" = "x, {y} = \\" z", k = 3}', {"a b": 'x, {y} = \\" z', "k": 3}),
    ],
)
def test_attributes_are_read(text, expected):
    found = ffi_attributes(text)
    assert found == expected
    assert [type(value) for value in found.values()] == [type(value) for value in expected.values()]


@pytest.mark.parametrize(
    "text", ["uplo = 76", "{uplo}", "{uplo = }", "{uplo = 76", "{= 3}", "{a = [1]}", "{a = 1 b = 2}", "{a = 1, , b = 2}", "{a = 0x7FC00000 : f32}", "{" * 100_000]
)  # fmt: skip
def test_other_texts_are_refused(text):
    with pytest.raises(UnsupportedError, match="its backend_config"):
        ffi_attributes(text)


@given(st.text('{}=:," -.0123456789abtruefalsi8\\\n', max_size=40))
def test_whatever_the_text_nothing_else_is_raised(text):
    with suppress(UnsupportedError):
        ffi_attributes("{" + text + "}")


def test_each_attribute_must_be_there_known_and_permitted():
    permitted = {"mode": (1, 2)}
    assert checked_attributes("{mode = 2 : i8}", permitted) == {"mode": 2}
    for text, message in (("{}", "lacks"), ("{mode = 3}", "is 3"), ("{mode = 1, more = 2}", "more")):
        with pytest.raises(UnsupportedError, match=message):
            checked_attributes(text, permitted)
