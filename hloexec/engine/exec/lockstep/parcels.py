"""Arrays on their way between processes over MPI: a short message says what they are, and holds the small ones."""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeAlias, TypeVar

import numpy as np

from hloexec.core.dtypes import ELEMENT_TYPES, DType, element_type_of
from hloexec.core.values import TOKEN, Array
from hloexec.ops.resources import empty

Comm: TypeAlias = Any
"""A communicator of mpi4py's, which is imported by those who make one."""
Row: TypeAlias = "list[int | None]"
"""Which array of a parcel each leaf is; None for a token."""
Placing: TypeAlias = Callable[[int, Sequence[int], DType], Array]
"""Gives where the array of a number, with its sizes and type, shall lie."""

_HEADER_TAG, _FIRST_TAG, _TAGS = 1, 2, 1 << 14
_WITHIN_BYTES = 1 << 13
"""Arrays of up to so many bytes are part of the message that says what they are."""
_PIECE_BYTES = 1 << 30
_HELP_SECONDS = 5e-3
"""MPI lets messages go on where it is called, which a process that computes does so often."""
_LENGTH = struct.Struct("<I")
SHORTEST_SLEEP, LONGEST_SLEEP = 2e-5, 1e-3


class Parcel:
    """Arrays for one process, each of them once."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self._numbers: dict[Any, int] = {}

    def row(self, leaves: Sequence[Any], parts: Sequence[tuple[int, ...]] = ()) -> Row:
        """The numbers of some leaves here; with `parts`, of a range of the elements of each, or of the part along a
        dimension, of so many, with a number."""
        return [
            self._number(leaf, parts[place] if parts else None) if isinstance(leaf, (np.ndarray, np.generic)) else None
            for place, leaf in enumerate(leaves)
        ]

    def _number(self, leaf: Any, part: tuple[int, ...] | None) -> int:
        key = id(leaf), part
        if key not in self._numbers:
            self._numbers[key] = len(self.arrays)
            self.arrays.append(np.asarray(leaf, order="C") if part is None else part_of(leaf, part))
        return self._numbers[key]


class Arriving:
    """A message of another process, and its arrays, the large ones of which come when they are asked for."""

    def __init__(self, comm: Comm, source: int, content: dict[str, Any], small: bytes) -> None:
        self.source = source
        self.content = content
        self.keys: list[Any] = []
        """The meetings that they are for."""
        self.arrays: list[Any] = []
        self._comm = comm
        self._requests: list[Any] = []
        start = 0
        for name, sizes, is_within in content["arrays"]:
            dtype = ELEMENT_TYPES[name].storage
            count = int(np.prod(sizes, dtype=np.int64))
            array = None
            if is_within:
                array = np.frombuffer(small, dtype, count, start).reshape(sizes).copy()
                start += array.nbytes
            self.arrays.append(array)
        self.is_here = all(array is not None for array in self.arrays)

    def ask(self, place: Placing | None = None) -> bool:
        """Ask for the arrays; whether they are now on their way, and were not before."""
        if self.is_here or self._requests:
            return False
        for number, (name, sizes, is_within) in enumerate(self.content["arrays"]):
            if not is_within:
                dtype = ELEMENT_TYPES[name].storage
                array = empty(sizes, dtype) if place is None else place(number, sizes, dtype)
                self.arrays[number] = array
                for piece in pieces(array):
                    self._requests.append(self._comm.Irecv(piece, self.source, self.content["tag"]))
        return True

    def test(self) -> bool:
        """Whether the arrays are here now."""
        if self._requests:
            self._requests = [request for request in self._requests if not request.Test()]
            self.is_here = not self._requests
        return self.is_here

    def leaves(self, row: Row) -> tuple[Any, ...]:
        return tuple(TOKEN if number is None else self.arrays[number] for number in row)


class Post:
    """Sends and receives parcels."""

    def __init__(self, comm: Comm) -> None:
        from mpi4py import MPI

        self.comm = comm
        self.sent = self.received = 0
        """How many messages, so far."""
        self._any_source = MPI.ANY_SOURCE
        self._status = MPI.Status()
        self._bytes = MPI.BYTE
        self._have_left: Callable[[list[Any]], bool] = MPI.Request.Testall
        self._tags = [0] * comm.size
        self._under_way: list[tuple[list[Any], int]] = []
        """The requests of messages, which hold what is sent, and the bytes of their arrays."""
        self._lock = threading.Lock()
        self.may_help = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self._looked = 0.0
        """When this process last asked whether messages have left."""
        self._is_helped = False
        """Whether a thread is at work that lets large arrays leave while this process computes."""

    def send(self, rank: int, content: dict[str, Any], parcel: Parcel | None = None) -> None:
        """Begin to send a message, which JSON can hold, with arrays."""
        arrays = [] if parcel is None else parcel.arrays
        within = [array.nbytes <= _WITHIN_BYTES for array in arrays]
        specifications = [
            [element_type_of(array.dtype).name, list(array.shape), is_within]
            for array, is_within in zip(arrays, within, strict=True)
        ]
        tag = _FIRST_TAG + self._tags[rank] % _TAGS
        self._tags[rank] += 1
        text = json.dumps({**content, "arrays": specifications, "tag": tag}).encode()
        small = [array.tobytes() for array, is_within in zip(arrays, within, strict=True) if is_within]
        header = b"".join((_LENGTH.pack(len(text)), text, *small))
        requests = [self.comm.Isend([header, self._bytes], rank, _HEADER_TAG)]
        for array, is_within in zip(arrays, within, strict=True):
            if not is_within:
                requests += [self.comm.Isend(piece, rank, tag) for piece in pieces(array)]
        self.sent += 1
        with self._lock:
            self._under_way.append((requests, sum(array.nbytes for array in arrays)))
            if self.may_help and not all(within) and not self._is_helped:
                self._is_helped = True
                threading.Thread(target=self._help, daemon=True).start()

    def take(self, rank: int | None = None) -> Arriving | None:
        """The next message that has come, from a rank or any, if there is one."""
        message = self.comm.Improbe(self._any_source if rank is None else rank, _HEADER_TAG, self._status)
        if message is None:
            return None
        source = self._status.source
        buffer = bytearray(self._status.Get_count(self._bytes))
        message.Recv([buffer, self._bytes])
        self.received += 1
        end = _LENGTH.size + _LENGTH.unpack_from(buffer)[0]
        return Arriving(self.comm, source, json.loads(buffer[_LENGTH.size : end]), bytes(buffer[end:]))

    def flush(self) -> bool:
        """Whether all that was sent has left."""
        self._looked = time.monotonic()
        with self._lock:
            return self._flush()

    @property
    def bytes_under_way(self) -> int:
        """How much of what was sent has perhaps not left."""
        return sum(size for _, size in self._under_way)

    def _flush(self) -> bool:
        self._under_way = [message for message in self._under_way if not self._have_left(message[0])]
        return not self._under_way

    def _help(self) -> None:
        while self._is_helped and self.may_help:
            time.sleep(_HELP_SECONDS)
            is_idle = time.monotonic() - self._looked > _HELP_SECONDS
            with self._lock:
                self._is_helped = not self._flush() if is_idle else bool(self._under_way)


_Come = TypeVar("_Come")


def wait_until(look: Callable[[], _Come | None]) -> _Come:
    """What a look gives that gives something true; between two, this process sleeps longer and longer."""
    pause = SHORTEST_SLEEP
    while not (come := look()):
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_SLEEP)
    return come


def handed(comm: Comm, entries: Iterable[tuple[str, Array]]) -> Iterator[tuple[str, Array]]:
    """On rank 0 the named arrays of all ranks, one after the other; nothing on the others."""
    post = Post(comm)
    if not comm.rank:
        yield from entries
        for rank in range(1, comm.size):
            while (arriving := wait_until(partial(post.take, rank))).content["name"]:
                arriving.ask()
                wait_until(arriving.test)
                yield arriving.content["name"], arriving.arrays[0]
        return
    for name, array in chain(entries, [("", None)]):
        parcel = Parcel()
        parcel.row([array])
        post.send(0, {"name": name}, parcel)
        wait_until(post.flush)


def part_of(array: Array, part: tuple[int, ...]) -> Array:
    """A range of an array's elements, or one of its parts along a dimension (see `Parcel.row`), in row-major order."""
    if len(part) == 2:
        return np.asarray(array, order="C").reshape(-1)[slice(*part)]
    dimension, count, number = part
    return np.asarray(np.array_split(array, count, dimension)[number], order="C")


def pieces(array: Array) -> list[Any]:
    """An array in row-major order as bytes, in pieces that MPI can count."""
    data = array.reshape(-1).view(np.uint8)
    return [data[start : start + _PIECE_BYTES] for start in range(0, data.size, _PIECE_BYTES)]
