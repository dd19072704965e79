"""The arrays in a `.npz` or `.npy` file: how element types are stored, and reading with validation of all input.

`hloexec.literals` documents the format, and assembles values from these entries.
"""

from __future__ import annotations

import mmap
import os
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import IO, Any, TypeAlias, cast

import numpy as np

from hloexec.core.arrays import as_array, exact_integers, is_foreign, may_become
from hloexec.core.dtypes import ELEMENT_TYPES, DType, ElementType, element_type_of
from hloexec.core.files import FilePath, opened
from hloexec.core.ir import ArrayShape, TupleShape
from hloexec.core.process import memory_limit_bytes
from hloexec.core.structs import frozen
from hloexec.core.tree import leaves, of_sequence
from hloexec.core.values import TOKEN, WHOLE, Array, Ints, Token, Value, label_of
from hloexec.core.wording import natural_number
from hloexec.errors import InputError, LiteralError
from hloexec.language.interop.content import require_unpackable
from hloexec.ops.resources import owner_of

Expected: TypeAlias = ArrayShape | TupleShape
"""What a leaf should be: an array, a token, or the empty tuple."""

DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, NotImplementedError, RuntimeError),
    *(SyntaxError, tokenize.TokenError),  # of a header: NumPy reads it as Python
)
"""What is raised when bytes are read that are no archive or no array."""

_HEADER_BYTES = 128
_ONE_BYTE_FLOAT, _ONE_BYTE = b"'descr': '<f1'", b"'descr': '|V1'"
_SMALL_BYTES = 1 << 26
_MAPPED_BYTES = 1 << 20
"""Arrays from here on are left in an archive that does not compress them, until their elements are read."""
_ALIGNMENT = 64
_LOCAL_HEADER = struct.Struct("<26xHH")
"""Of a member: the lengths of its name and of what follows that."""
_MEMBER_HEADER_BYTES = _LOCAL_HEADER.size + struct.calcsize("<HHQQ")
"""Before its name, and the sizes behind that."""
_PADDING = struct.Struct("<HH")
_PADDING_KIND = 0xD935
"""As zipalign marks what it fills up with."""
_EPOCH = (1980, 1, 1, 0, 0, 0)


class _Renamed:
    """A stream whose first bytes are others, of the same number."""

    def __init__(self, start: bytes, rest: IO[bytes]) -> None:
        self._start, self._rest = start, rest
        self._position = 0

    def read(self, size: int) -> bytes:
        part = self._start[self._position : self._position + size] or self._rest.read(size)
        self._position += len(part)
        return part

    def tell(self) -> int:
        return self._position

    def __enter__(self) -> _Renamed:
        return self

    def __exit__(self, *_: object) -> None:
        self._rest.close()


class Archive(zipfile.ZipFile):
    """A .npz file, of which arrays that are not compressed are mapped into memory."""

    @cached_property
    def _content(self) -> Array | None:
        """The bytes of the file: written to, they change for this process alone. None where they cannot be mapped."""
        assert self.filename is not None
        with suppress(OSError, ValueError, AttributeError), opened(self.filename) as file:
            flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)
            pages = mmap.mmap(file.fileno(), 0, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
            content = np.ndarray.__new__(np.memmap, (len(pages),), np.uint8, buffer=pages)
            content.filename, content.offset, content.mode = os.path.abspath(self.filename), 0, "c"
            return content
        return None

    def mapped(self, name: str) -> Array | None:
        """The bytes of a member where they lie; None where they do not lie in the file as they are."""
        member = self.getinfo(name)
        if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1 or self._content is None:
            return None
        content = self._content[member.header_offset :]
        lengths = _LOCAL_HEADER.unpack(content[: _LOCAL_HEADER.size].tobytes())
        data = content[_LOCAL_HEADER.size + sum(lengths) :][: member.file_size]
        if zlib.crc32(data.data) != member.CRC:
            raise zipfile.BadZipFile(f"Bad CRC-32 for file {name!r}")
        return data


def mapped_place(array: Array) -> tuple[str, int] | None:
    """The file, and the place in it, that an array shows in one piece; None where it is mapped from no file."""
    owner = owner_of(array)
    if not isinstance(owner, np.memmap) or not array.flags.c_contiguous:
        return None
    return str(owner.filename), owner.offset + array.ctypes.data - owner.ctypes.data


@frozen
class Entry:
    """One stored array: the key without its type, the type the key names, and how to open the bytes."""

    filename: str
    key: str
    archive: Archive | None
    size: int

    @property
    def stem(self) -> str:
        return self.key.partition(":")[0]

    @property
    def number(self) -> str:
        """The stem, and the number alone of a key that `numpy.savez` invents: arr_0, arr_1, …"""
        number = self.stem.removeprefix("arr_")
        return self.stem if natural_number(number) is None else number

    @property
    def type_name(self) -> str:
        """Empty also behind the names of TensorFlow's tensors, which end in the number of an output: `logits:0`."""
        name = self.key.partition(":")[2]
        return name if natural_number(name) is None else ""

    @property
    def where(self) -> str:
        return f"{self.filename!r}, key {self.key!r}" if self.archive is not None else repr(self.filename)

    def header(self) -> tuple[Ints, DType]:
        """Dimensions and stored type."""
        with self._damage_named(), self._open() as stream:
            return self._header(stream)

    def fitting(self, shapes: Iterable[Expected], *, any_integers: bool = False) -> set[Expected]:
        """The shapes of which `read` would take it for a leaf, as far as its header says; with integers of another type
        only if they may be of any."""
        header, fitting = self.header(), set()
        for shape in set(shapes):
            with suppress(LiteralError):
                element_type = self._checked_type(header, shape)
                if any_integers or not isinstance(shape, ArrayShape) or element_type in (None, shape.element_type):
                    fitting.add(shape)
        return fitting

    def read(self, shape: Expected | None) -> Value:
        """The leaf, checked against `shape` where that is known."""
        element_type = self._checked_type(self.header(), shape)
        if element_type is None:
            return () if self.type_name == "tuple" else TOKEN
        return self._exact(decoded(self._array(), element_type, self.where), shape)

    def _exact(self, array: Array, shape: Expected | None) -> Array:
        """An array of the expected type; LiteralError where integers of another one do not fit into it."""
        if not isinstance(shape, ArrayShape) or array.dtype == shape.element_type.storage:
            return array
        try:
            return exact_integers(array, shape.element_type, self.where)
        except InputError as error:
            raise LiteralError(error.message) from None

    def read_untyped(self) -> Value:
        """The leaf; as raw bytes (`|V2`) where nothing says what they are."""
        dtype = self.header()[1]
        return self._array() if dtype.type is np.void and not self.type_name else self.read(None)

    def _array(self) -> Array:
        with self._damage_named(), self._open() as stream:
            mapped = (
                None if self.archive is None or self.size < _MAPPED_BYTES else self.archive.mapped(f"{self.key}.npy")
            )
            if mapped is not None:
                dimensions, is_transposed, dtype = _read_header(stream)
                data = mapped[stream.tell() :].view(np.ndarray)
                if data.ctypes.data % dtype.alignment == 0:
                    return data.view(dtype).reshape(dimensions, order="F" if is_transposed else "C")
                stream.seek(0)
            limit = memory_limit_bytes(None) if self.size > _SMALL_BYTES else None
            if limit is not None and self.size > limit:
                raise MemoryError
            return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))

    def _checked_type(self, header: tuple[Ints, DType], shape: Expected | None) -> ElementType | None:
        """The type of the elements, if `read` takes them; None for a token and the empty tuple."""
        self._check_kind(shape)
        if self.type_name in ("tuple", "token"):
            return None
        dimensions, dtype = header
        array_shape = shape if isinstance(shape, ArrayShape) else None
        element_type = self._element_type(dtype, array_shape)
        if array_shape is not None:
            self._check(element_type, dimensions, array_shape)
        return element_type

    @contextmanager
    def _damage_named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise LiteralError(f"cannot read {self.filename!r}: {error.strerror or error}") from error
        except MemoryError as error:
            raise LiteralError(f"{self.where} does not fit into memory") from error
        except DAMAGE as error:
            raise LiteralError(f"{self.where} is damaged: {error}") from error

    def _open(self) -> IO[bytes]:
        # Callers close what is returned.
        stream = opened(self.filename) if self.archive is None else self.archive.open(f"{self.key}.npy")
        start = stream.read(_HEADER_BYTES)
        if _ONE_BYTE_FLOAT in start:
            # Of eight-bit floats ml_dtypes writes a type that NumPy then does not know.
            return cast("IO[bytes]", _Renamed(start.replace(_ONE_BYTE_FLOAT, _ONE_BYTE), stream))
        stream.seek(0)
        return stream

    def _header(self, stream: IO[bytes]) -> tuple[Ints, DType]:
        """Dimensions and stored type; refuses what is too short before any memory is taken."""
        dimensions, _, dtype = _read_header(stream)
        if dtype.hasobject:
            raise LiteralError(f"{self.where} holds Python objects (pickled), not an array of numbers; it is not read")
        count = 1
        for size in dimensions:
            count *= size
        stored = self.size - stream.tell()
        if count * dtype.itemsize != stored:
            raise LiteralError(
                f"{self.where} is damaged: {dtype.name}{list(dimensions)} needs {count * dtype.itemsize} bytes, but "
                f"the file has {stored} for it"
            )
        return dimensions, dtype

    def _check_kind(self, shape: Expected | None) -> None:
        """Arrays, tokens and empty tuples are not taken for one another."""
        if shape is None:
            return
        expected = "tuple" if isinstance(shape, TupleShape) else "token" if shape.is_token else "array"
        held = self.type_name if self.type_name in ("tuple", "token") else "array"
        if held != expected:
            content = {"token": "a token", "tuple": "an empty tuple", "array": "an array"}[held]
            raise LiteralError(f"{self.where} holds {content}, but {shape} is expected")
        if isinstance(shape, ArrayShape) and not shape.is_array and not shape.is_token:
            raise LiteralError(f"{self.where}: a value of shape {shape} cannot be given in a file")

    def _element_type(self, dtype: DType, shape: ArrayShape | None) -> ElementType:
        """What the stored numbers are: the key says it, else their type does, else (raw bytes) the expected type."""
        if self.type_name:
            named = ELEMENT_TYPES.get(self.type_name)
            if named is None:
                raise LiteralError(f"{self.where}: {self.type_name!r} is not an element type")
            if dtype.newbyteorder("=") != _stored_type(named):
                raise LiteralError(
                    f"{self.where}: {named} values are stored as {_stored_type(named)}, but these are {dtype.name}"
                )
            return named
        if dtype.type is np.void and dtype.names is None:
            return self._element_type_of_bytes(dtype.itemsize, shape)
        try:
            return element_type_of(dtype.newbyteorder("="))
        except KeyError:
            raise LiteralError(f"{self.where} holds {dtype.name} values, which HLO has not") from None

    def _element_type_of_bytes(self, width: int, shape: ArrayShape | None) -> ElementType:
        if shape is None:
            raise LiteralError(
                f"{self.where} holds raw bytes (|V{width}) without a type, which only a module that has such a value "
                f"says; or name it in the key, as in '{self.stem}:bf16', and store the bits as unsigned integers"
            )
        if shape.element_type.storage.itemsize != width or shape.element_type.storage.isbuiltin == 1:
            raise LiteralError(f"{self.where} holds raw bytes (|V{width}), but {shape} is expected")
        return shape.element_type

    def _check(self, element_type: ElementType, dimensions: Ints, shape: ArrayShape) -> None:
        if element_type is not shape.element_type and not may_become(element_type, shape.element_type):
            hint = _conversion_hint(shape, self.stem)
            raise LiteralError(f"{self.where} holds {element_type} values, but {shape} is expected; {hint}")
        bounded = shape.dynamic_dimensions or (False,) * shape.rank
        fits = len(dimensions) == shape.rank and all(
            size == declared or (flag and (declared < 0 or size <= declared))
            for size, declared, flag in zip(dimensions, shape.dimensions, bounded, strict=True)
        )
        if not fits:
            held = f"{element_type}[{','.join(map(str, dimensions))}]"
            raise LiteralError(f"{self.where} holds {held}, but {shape} is expected")


def _read_header(stream: IO[bytes]) -> tuple[Ints, bool, DType]:
    """Dimensions, whether the first is the innermost, and stored type."""
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    header: tuple[Ints, bool, DType] = read(stream)
    return header


def decoded(array: Array, element_type: ElementType, where: str) -> Array:
    """A stored array in its element type's storage type; LiteralError, naming `where`, for what that cannot hold."""
    dtype = array.dtype.newbyteorder("=")
    if dtype not in (_stored_type(element_type), element_type.storage) and dtype.kind != "V":
        raise LiteralError(
            f"{where}: {element_type} values are stored as {_stored_type(element_type)}, but these are {dtype.name}"
        )
    if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and np.little_endian is False):
        array = array.astype(dtype)
    if array.dtype == element_type.storage:
        if array.dtype == np.bool_ and (array.view(np.uint8) > 1).any():
            raise LiteralError(f"{where} is damaged: a pred is neither 0 nor 1")
        return array
    if element_type.is_integral:
        limits = element_type.integer_range
        if array.dtype.kind != "V":
            if array.size and (array.min() < limits[0] or array.max() > limits[1]):
                raise LiteralError(f"{where}: {element_type} values lie between {limits[0]} and {limits[1]}")
            return array.astype(element_type.storage)
    elif element_type.bits < 8 and array.dtype.kind != "V" and array.size and array.max() >> element_type.bits:
        raise LiteralError(f"{where}: the bits of {element_type} values are below {1 << element_type.bits}")
    return array.view(element_type.storage)


def _conversion_hint(shape: ArrayShape, stem: str) -> str:
    """How to make an array of the expected type."""
    expected = shape.element_type
    if expected.storage.isbuiltin == 1:
        return f"convert with array.astype(numpy.{expected.storage.name})"
    return (
        f"convert with array.astype(ml_dtypes.{expected.storage.name}), and write with hloexec.literals.save or as "
        f"{_stored_type(expected).name} under the key '{stem}:{expected}'"
    )


def npz_entries(path: FilePath) -> Iterator[Entry]:
    """The entries of a .npz file, or the one of a .npy file; the content decides which it is."""
    filename = os.fspath(path)
    try:
        with opened(filename) as file:
            magic = file.read(6)
            size = file.seek(0, os.SEEK_END)
    except OSError as error:
        raise LiteralError(f"cannot read {filename!r}: {error.strerror or error}") from error
    if magic == np.lib.format.MAGIC_PREFIX:
        yield Entry(filename, WHOLE, None, size)
        return
    if magic[:2] != b"PK":
        raise LiteralError(f"{filename!r} is neither a .npz nor a .npy file")
    try:
        archive = Archive(filename)
    except (OSError, *DAMAGE) as error:
        raise LiteralError(f"{filename!r} is not a complete .npz file: {error}") from error
    with archive:
        members = archive.infolist()
        require_unpackable(
            filename, sum(each.compress_size for each in members), sum(each.file_size for each in members)
        )
        seen: set[str] = set()
        for member in members:
            key = member.filename.removesuffix(".npy")
            if key == member.filename or key in seen:
                problem = "stands there twice" if key in seen else "is not a .npy entry"
                raise LiteralError(f"{filename!r} is not a .npz file of values: {member.filename!r} {problem}")
            seen.add(key)
            yield Entry(filename, key, archive, member.file_size)


def _stored_type(element_type: ElementType) -> DType:
    """The NumPy type in which values of this type lie in a file."""
    if element_type.storage.isbuiltin == 1:
        return element_type.storage
    if element_type.is_integral:
        return element_type.compute
    return np.dtype(f"u{element_type.storage.itemsize}")


def keyed_leaves(value: object) -> Iterator[tuple[str, Any]]:
    """The leaves of a value behind their keys in a file, depth first, tokens and empty tuples among them."""
    for index, part in leaves(value, lambda node: of_sequence(node) or None):
        kind = ":tuple" if isinstance(part, (tuple, list)) else ":token" if isinstance(part, Token) else ""
        yield label_of(index) + kind, part


def encode(key: str, given: Array) -> tuple[str, Array]:
    """The key and the array that stand in a file for a leaf, which may be an array of any library."""
    array = as_array(given) if is_foreign(given) else given
    try:
        element_type = element_type_of(array.dtype)
    except (AttributeError, KeyError):
        kind = f"{array.dtype} values" if isinstance(array, np.ndarray) else f"a {type(array).__name__}"
        raise LiteralError(f"leaf {key} is not an HLO value: {kind}") from None
    stored = _stored_type(element_type)
    if stored == element_type.storage:
        return key, array
    bits = array.astype(stored) if element_type.is_integral else array.view(stored)
    return f"{key}:{element_type}", bits


def write_npz(file: IO[bytes], entries: Iterable[tuple[str, Array]]) -> None:
    """What numpy.savez writes, but always with the same time stamp, elements in row-major order, and where they can be
    mapped: equal arrays make equal files."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for key, array in entries:
            member = zipfile.ZipInfo(f"{key}.npy", _EPOCH)
            if array.nbytes >= _MAPPED_BYTES:
                member.extra = _padding(file.tell() + _MEMBER_HEADER_BYTES + len(member.filename.encode()))
            with archive.open(member, "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, np.asarray(array, order="C"), allow_pickle=False)


def _padding(position: int) -> bytes:
    """What moves elements, whose header takes a multiple of the alignment, from a position to where it fits."""
    size = -(position + _PADDING.size) % _ALIGNMENT
    return _PADDING.pack(_PADDING_KIND, size) + bytes(size)
