"""The wire format of protocol buffers, as far as HLO's files need it.

A message is a sequence of fields; each has a number, a wire type and a payload (protobuf.dev, "Encoding"). `read`
splits a message into its fields and leaves nested messages as bytes; callers know what each number means. All input is
validated: damaged data raise InputError with the offset.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from hloexec.core.structs import frozen
from hloexec.errors import InputError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_SIZE = {_FIXED64: 8, _FIXED32: 4}
_LONGEST_VARINT = 10
_SHORT = 100
"""Bytes of a packed field whose numbers are read one by one: NumPy would take longer to begin."""

_Payload: TypeAlias = int | memoryview


@frozen
class Message:
    """The fields of one message: every number with its payloads in the order of the bytes.

    A varint is an `int` (as unsigned 64 bits), anything else a view of its bytes.
    """

    fields: dict[int, list[_Payload]]

    def __contains__(self, number: int) -> bool:
        return number in self.fields

    def blobs(self, number: int) -> list[memoryview]:
        """The payloads of a field of bytes, strings or messages; raises InputError where one is a number."""
        payloads = self.fields.get(number)
        if payloads is None:
            return []
        blobs = [payload for payload in payloads if isinstance(payload, memoryview)]
        if len(blobs) != len(payloads):
            raise InputError(f"field {number} should hold bytes, it holds a number")
        return blobs

    def blob(self, number: int) -> memoryview:
        """The last payload of a field of bytes, empty where the field is missing; messages are not merged."""
        return (self.blobs(number) or [memoryview(b"")])[-1]

    def messages(self, number: int) -> list[Message]:
        """The messages of a repeated field."""
        return [read(blob) for blob in self.blobs(number)]

    def message(self, number: int) -> Message:
        """The last message of a field, one without fields where it is missing."""
        return read(self.blob(number)) if number in self.fields else _EMPTY

    def texts(self, number: int) -> tuple[str, ...]:
        """The strings of a repeated field; bytes that are no UTF-8 are kept, as the parser of texts keeps them."""
        return tuple(str(blob, "utf-8", "surrogateescape") for blob in self.blobs(number))

    def text(self, number: int) -> str:
        """A string, empty where the field is missing."""
        return (self.texts(number) or ("",))[-1]

    def integer(self, number: int) -> int:
        """A signed integer, the last where there are several, 0 where the field is missing."""
        payloads = self.fields.get(number)
        if payloads is None:
            return 0
        last = payloads[-1]
        if not isinstance(last, int):
            raise InputError(f"field {number} should hold a number, it holds bytes")
        return last - (1 << 64) if last >> 63 else last

    def natural(self, number: int, subject: str) -> int:
        """An integer that counts something or says a place, 0 where the field is missing; InputError, which calls it
        `subject`, where it is negative."""
        value = self.integer(number)
        if value < 0:
            raise InputError(f"{subject} is {value}, but must not be negative")
        return value

    def integers(self, number: int) -> tuple[int, ...]:
        """The signed integers of a repeated field."""
        payloads = self.fields.get(number, ())
        if any(isinstance(payload, memoryview) and len(payload) > _SHORT for payload in payloads):
            return tuple(self.varints(number).view(np.int64).tolist())
        integers = []
        for payload in payloads:
            if isinstance(payload, int):
                integers.append(payload)
                continue
            position = 0
            while position < len(payload):
                value, position = read_varint(payload, position)
                integers.append(value)
        return tuple([value - (1 << 64) if value >> 63 else value for value in integers])

    def float(self, number: int) -> float:
        """A number of 32 or 64 bits, 0 where the field is missing."""
        raw = bytes(self.blob(number)) or bytes(8)
        if len(raw) not in (4, 8):
            raise InputError(f"field {number} should hold a float, it has {len(raw)} bytes")
        # Of the doubles that round to an f32, its text means the one with the fewest digits.
        return float(str(np.frombuffer(raw, f"<f{len(raw)}")[0]))

    def varints(self, number: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """A repeated integer field, packed or not, as unsigned 64 bits (negative numbers in two's complement)."""
        parts = [
            np.array([payload], np.uint64) if isinstance(payload, int) else _packed_varints(payload)
            for payload in self.fields.get(number, [])
        ]
        return np.concatenate(parts) if parts else np.empty(0, np.uint64)

    def bytes(self, number: int) -> memoryview:
        """All payloads of a field of bytes or of fixed-width numbers in one, packed or not."""
        parts = self.blobs(number)
        return parts[0] if len(parts) == 1 else memoryview(b"".join(parts))


_EMPTY = Message({})


def read(data: memoryview | bytes) -> Message:
    """Split a message into its fields; raises InputError where the bytes are not a message."""
    view = memoryview(data)
    fields: dict[int, list[_Payload]] = {}
    position = 0
    while position < len(view):
        start = position
        key, position = read_varint(view, position)
        number, wire_type = key >> 3, key & 7
        payload: _Payload
        if wire_type == _VARINT:
            payload, position = read_varint(view, position)
        elif wire_type == _BYTES or wire_type in _FIXED_SIZE:
            size = _FIXED_SIZE.get(wire_type, 0)
            if wire_type == _BYTES:
                size, position = read_varint(view, position)
            if size > len(view) - position:
                raise InputError(
                    f"field {number} at byte {start} should have {size} bytes, {len(view) - position} are left"
                )
            payload = view[position : position + size]
            position += size
        else:
            raise InputError(f"the field at byte {start} has the wire type {wire_type}, which does not exist")
        if number == 0:
            raise InputError(f"the field at byte {start} has the number 0, which does not exist")
        fields.setdefault(number, []).append(payload)
    return Message(fields)


def read_varint(view: memoryview, position: int) -> tuple[int, int]:
    """The number at `position` and the position behind it: seven bits a byte, lowest first."""
    if position < len(view) and view[position] < 0x80:
        return view[position], position + 1
    value = 0
    for index, byte in enumerate(view[position : position + _LONGEST_VARINT]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, position + index + 1
    raise InputError(f"the number at byte {position} does not end within {_LONGEST_VARINT} bytes")


def _packed_varints(payload: memoryview) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """All numbers of a packed field at once."""
    data = np.frombuffer(payload, np.uint8)
    ends = np.flatnonzero(data < 0x80)
    if len(data) and (not len(ends) or ends[-1] != len(data) - 1):
        raise InputError("the last number of a packed field does not end")
    starts = np.concatenate([np.zeros(1, np.intp), ends[:-1] + 1])[: len(ends)]
    lengths = ends - starts + 1
    longest = int(lengths.max(initial=0))
    if longest > _LONGEST_VARINT:
        raise InputError(f"a number of a packed field takes more than {_LONGEST_VARINT} bytes")
    values = np.zeros(len(ends), np.uint64)
    for index in range(longest):
        long_enough = lengths > index
        septets = (data[starts[long_enough] + index] & 0x7F).astype(np.uint64)
        values[long_enough] |= septets << np.uint64(7 * index)
    return values
