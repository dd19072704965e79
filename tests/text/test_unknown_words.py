"""Words of another XLA where an attribute names one of a few: what no value depends on runs, all else is refused by name.

What an opcode computes under a word that nobody knows is unknown, and not the same as what it computes by default.
"""

from __future__ import annotations

import numpy as np
import pytest

import hloexec
from hloexec.errors import HloWarning, ParseError, UnsupportedError, VerificationError
from tests.text.building import op
from tests.text.cases import UNKNOWN, without_marks

_DECIDING = {
    "direction": "opcode compare .*where direction is XX, which hloexec does not know",
    "comparison type": "opcode compare .*where type is PARTIAL",
    "fft type": "opcode fft .*where fft_type is DCT",
    "distribution": "opcode rng .*where distribution is rng_odd",
    "random algorithm": "opcode rng-bit-generator .*where algorithm is rng_odd",
    "transposition": "opcode triangular-solve .*where transpose_a is ODD",
    "precision": "opcode dot .*where operand_precision is odd",
    "precision beside another": "opcode dot .*where operand_precision is odd",
    "dot algorithm": "opcode dot .*where algorithm is dot_odd",
}

_X = np.float32([3, -1])


def _read(name: str) -> hloexec.Module:
    with pytest.warns(HloWarning, match="is not known; it is kept verbatim"):
        return hloexec.parse(without_marks(UNKNOWN[name]))


@pytest.mark.parametrize("name", _DECIDING)
def test_what_values_depend_on_is_refused_by_name(name: str) -> None:
    module = _read(name)
    hloexec.verify(module)
    with pytest.raises(UnsupportedError, match=_DECIDING[name]):
        hloexec.run(module)
    with pytest.raises(VerificationError, match="must be one of"):
        hloexec.verify(module, strict=True)


def test_what_no_value_depends_on_runs() -> None:
    assert hloexec.run(_read("collective mode"), _X).tolist() == [3, -1]
    text = op('f32[2] custom-call(a), custom_call_target="Sharding", api_version=API_VERSION_UNSPECIFIED', a="f32[2]")
    with pytest.warns(HloWarning, match="'API_VERSION_UNSPECIFIED' of the attribute 'api_version'"):
        assert hloexec.run(hloexec.parse(text), _X).tolist() == [3, -1]


def test_the_order_of_a_newer_comparison_is_kept() -> None:
    text = op("pred[2] compare(a, b), direction=LT, order=SOME", a="f32[2]", b="f32[2]")
    with (
        pytest.warns(HloWarning, match="'SOME' of the attribute 'order'"),
        pytest.raises(UnsupportedError, match="SOME"),
    ):
        hloexec.run(hloexec.parse(text))


def test_a_shape_that_an_unknown_word_decides_has_to_be_given() -> None:
    text = op("fft(a), fft_type=DCT, fft_length={2}", a="c64[2]")
    with pytest.warns(HloWarning), pytest.raises(ParseError, match="must be given, as its fft_type 'DCT' is not known"):
        hloexec.parse(text)
