"""Equality of what many devices give."""

from typing import Any


def assert_same(actual: Any, expected: Any, text: str) -> None:
    """Bit for bit, device by device, leaf by leaf."""
    assert len(actual) == len(expected), text
    for device, (got, wanted) in enumerate(zip(actual, expected, strict=True)):
        assert len(got) == len(wanted), f"device {device}\n{text}"
        for leaf, (a, b) in enumerate(zip(got, wanted, strict=True)):
            where = f"device {device}, leaf {leaf}\ngot {a!r}\nnot {b!r}\n{text}"
            assert a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes(), where
