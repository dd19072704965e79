"""The text of NaNs: their signs and payloads survive, and are written as XLA writes them."""

import numpy as np
import pytest

from hloexec.core.dtypes import ELEMENT_TYPES, ElementType
from hloexec.core.ir import ArrayShape, Literal
from hloexec.errors import ParseError
from hloexec.language.text import parse
from hloexec.language.text.shapes import literal_text
from tests.text import oracle

pytest.importorskip("jax", reason="the texts are compared with XLA's")

NARROW = [entry for entry in ELEMENT_TYPES.values() if entry.is_floating and entry.bits in (8, 16)]


@pytest.mark.parametrize("element_type", NARROW, ids=lambda entry: entry.name)
def test_every_nan_of_a_narrow_type_is_written_as_xla_writes_it(element_type: ElementType) -> None:
    numbers = np.dtype(f"u{element_type.storage.itemsize}")
    every = np.arange(1 << element_type.bits, dtype=numbers).view(element_type.storage)
    nans = every[np.isnan(every.astype(np.float32))]
    shape = ArrayShape(element_type, nans.shape)
    words = literal_text(Literal.from_array(nans, shape))
    text = f"HloModule m\n\nENTRY e {{ ROOT c = {shape} constant({words}) }}"
    read = parse(text).entry.root.attributes.literal.value
    np.testing.assert_array_equal(read.view(numbers), nans.view(numbers))
    assert f"constant({words})" in oracle.canonical_text(text)


@pytest.mark.slow_cases("f8e4m3fnuz", "f8e8m0fnu")
@pytest.mark.parametrize("name", ["f8e4m3fn", "f8e4m3fnuz", "f8e8m0fnu"])
def test_types_with_one_nan_for_each_sign_take_no_payload(name: str) -> None:
    text = f"HloModule m\n\nENTRY e {{ ROOT c = {name}[] constant(-nan(0x7)) }}"
    with pytest.raises(RuntimeError, match="does not support payloads"):
        oracle.parse(text)
    with pytest.raises(ParseError, match="cannot have the payload 0x7"):
        parse(text)
