"""Decoders for text, numbers, JSON, MessagePack, CBOR and arrays.

`reraise` turns whatever a codec raises into one error that names the part, and `check_bytes` and `check_pixels` check
sizes before anything is allocated; those that NumPy's ``.npy`` and ``.npz`` and webdataset's ``.ten`` declare, too.
gzip is inflated within a bound, since a few kilobytes may hold terabytes.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import pickle
import re
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import msgspec
import numpy as np
from numpy.lib import format as npy_format

from headrace.errors import DecodeError, HeadraceError, load_extra

MAX_PIXELS = 89_478_485
"""The size above which Pillow warns: a quarter of a gibibyte in 8-bit RGB."""
MAX_BYTES = 1 << 30


def reraise(part: str, error: Exception) -> NoReturn:
    """Raise an error of a part as a ``DecodeError`` of that part, unless it is already an error of Headrace.

    Codecs raise errors of any type (``SyntaxError`` for a broken PNG), so every error counts as a fault of the data.
    The exception is a lack of memory, which says nothing about the data, since sizes are checked before anything is
    allocated.
    """
    if isinstance(error, DecodeError) and error.part is None:
        raise DecodeError(part, error.reason) from error.__cause__
    if isinstance(error, HeadraceError) or is_out_of_memory(error):
        raise error
    raise DecodeError(part, f"cannot be decoded: {type(error).__name__}: {error}") from error


def is_out_of_memory(error: Exception) -> bool:
    """Return whether memory ran out here. FFmpeg's error of this type, which has a number, means a broken header."""
    return isinstance(error, MemoryError) and not hasattr(error, "errno")


def check_bytes(size: int, max_bytes: int, what: str) -> None:
    """Refuse data that would take more bytes than allowed, before it is made.

    Raises:
        DecodeError: If ``size`` is above ``max_bytes``.
    """
    if size > max_bytes:
        raise DecodeError(
            None,
            f"{what} would take {size:,} bytes; allowed are {max_bytes:,} (max_bytes); raise it if the data is sound",
        )


def check_pixels(width: int, height: int, max_pixels: int) -> None:
    """Refuse an image that has more pixels than allowed, before it is decoded.

    Raises:
        DecodeError: If it has more than ``max_pixels``.
    """
    if width * height > max_pixels:
        raise DecodeError(
            None,
            f"the image is {width:,} x {height:,} pixels; allowed are {max_pixels:,} in all (max_pixels); raise it if "
            "the data is sound",
        )


def gunzip(data: bytes, max_bytes: int) -> bytes:
    """Return the content of concatenated gzip members; zeros may follow them, as the gzip tool allows.

    Raises:
        DecodeError: If it is larger than ``max_bytes``, is not gzip, is cut short, or fails a checksum.
    """
    if not data:
        raise DecodeError(None, "is empty, not gzip")
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as stream:
            inflated = stream.read(max_bytes + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise DecodeError(None, f"is not sound gzip: {error}") from error
    if len(inflated) > max_bytes:
        raise DecodeError(
            None,
            f"inflates from {len(data):,} bytes to more than the {max_bytes:,} allowed (max_bytes); raise it if the "
            "data is sound",
        )
    return inflated


_TEN_MAGIC = b"~TenBin~"
_TEN_DTYPES = {"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"}
_TEN_ALIGN = 64


def read_npy(data: bytes, max_bytes: int) -> np.ndarray[Any, Any]:
    """Return the array of an ``.npy`` file, writable.

    Raises:
        DecodeError: If it holds Python objects (pickle), declares more bytes than it has, or is larger than allowed.
    """
    stream = io.BytesIO(data)
    version = npy_format.read_magic(stream)
    if version == (1, 0):
        shape, _, dtype = npy_format.read_array_header_1_0(stream)
        num_found = len(data) - stream.tell()
    elif version == (2, 0):
        shape, _, dtype = npy_format.read_array_header_2_0(stream)
        num_found = len(data) - stream.tell()
    else:
        shape, dtype, num_found = _header_3(data)
    if dtype.hasobject:
        raise DecodeError(None, "the array holds Python objects (pickle), which are refused; store numbers or text")
    num_declared = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or num_declared > num_found:
        raise DecodeError(None, f"the array {dtype} {shape} takes {num_declared:,} bytes, but there are {num_found:,}")
    check_bytes(num_declared, max_bytes, f"the array {dtype} {shape}")
    stream.seek(0)
    array: np.ndarray[Any, Any] = npy_format.read_array(stream, allow_pickle=False)
    return array


def _header_3(data: bytes) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Return shape, dtype and the number of bytes of values of a file of version 3.0, which NumPy reads only privately.

    The format is that of 2.0 with names of fields in UTF-8. Here these are escaped: the header is a Python literal.
    """
    begin = 8 + 4
    end = begin + int.from_bytes(data[8:begin], "little")
    text = data[begin:end].decode("utf-8").encode("latin1", "backslashreplace")
    shape, _, dtype = npy_format.read_array_header_2_0(io.BytesIO(len(text).to_bytes(4, "little") + text))
    return shape, dtype, len(data) - end


def read_npz(data: bytes, max_bytes: int) -> dict[str, Any]:
    """Return the arrays of an ``.npz`` file by name; a member that is not an ``.npy`` file is returned as bytes.

    Raises:
        DecodeError: If it would inflate to more than allowed, is encrypted or broken, or for the reasons of
            ``read_npy``.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        # No member yields more than it declares: zipfile stops there.
        check_bytes(sum(member.file_size for member in members), max_bytes, f"the {len(members):,} arrays")
        for member in members:
            # NumPy writes only these, and an LZMA member may need gigabytes for its dictionary.
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise DecodeError(
                    None, f"{member.filename!r} is compressed by method {member.compress_type}; allowed is deflate"
                )
        found: dict[str, Any] = {}
        for member in members:
            content = archive.read(member)
            if content[: len(npy_format.MAGIC_PREFIX)] == npy_format.MAGIC_PREFIX:
                found[member.filename.removesuffix(".npy")] = read_npy(content, max_bytes)
            else:
                found[member.filename] = content
    return found


def read_ten(data: bytes) -> list[np.ndarray[Any, Any]]:
    """Return the arrays of webdataset's tensor format, writable.

    A chunk is magic, size (int64) and content, padded to 64 bytes. Each tensor has two: one with dtype, name and shape,
    one with the values.

    Raises:
        DecodeError: If the data is not of that format, or cut short.
    """
    chunks = _ten_chunks(data)
    if len(chunks) % 2:
        raise DecodeError(
            None, f"there are {len(chunks)} chunks; each tensor has a header and values, so the last one is missing"
        )
    return [_ten_array(chunks[number], chunks[number + 1]) for number in range(0, len(chunks), 2)]


def _ten_chunks(data: bytes) -> list[bytes]:
    chunks = []
    at = 0
    while at < len(data):
        if data[at : at + 8] != _TEN_MAGIC:
            raise DecodeError(
                None, f"found {data[at : at + 8]!r} at byte {at:,}; a chunk of a tensor begins with {_TEN_MAGIC!r}"
            )
        size = int.from_bytes(data[at + 8 : at + 16], "little", signed=True)
        at += 16
        if size < 0 or at + size > len(data):
            raise DecodeError(
                None, f"the chunk at byte {at:,} is {size:,} bytes long, but there are {len(data) - at:,}"
            )
        chunks.append(data[at : at + size])
        at += -(-size // _TEN_ALIGN) * _TEN_ALIGN
    return chunks


def _ten_array(header: bytes, values: bytes) -> np.ndarray[Any, Any]:
    words = np.frombuffer(header[: len(header) // 8 * 8], "<i8").tolist()
    code = header[:8].rstrip(b"\0").decode("ascii", "replace")
    if len(words) < 3 or code not in _TEN_DTYPES or not 0 <= words[2] <= len(words) - 3:
        raise DecodeError(None, f"the header of a tensor is broken: dtype {code!r} in {len(header)} bytes")
    shape = tuple(words[3 : 3 + words[2]])
    dtype = np.dtype(f"<{code}")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > len(values):
        raise DecodeError(None, f"the tensor {code} {shape} takes more than the {len(values):,} bytes there are")
    return np.frombuffer(values, dtype, math.prod(shape)).reshape(shape).copy()


Decode = Callable[[bytes], Any]


def basic_decoder(extension: str, *, trust_code: bool, max_bytes: int) -> Decode | None:
    """Return the decoder for parts with exactly this extension, or None if they stay bytes.

    ``trust_code`` admits pickles, and more than tensors in ``pth``. The decoders raise ``DecodeError`` and whatever
    their libraries raise.
    """
    plain = _PLAIN.get(extension)
    if plain is not None:
        return plain
    if extension == "npy":
        return partial(read_npy, max_bytes=max_bytes)
    if extension == "npz":
        return partial(read_npz, max_bytes=max_bytes)
    if extension == "pth":
        return partial(read_pth, max_bytes=max_bytes, trust_code=trust_code)
    if extension in _CODE:
        return pickle.loads if trust_code else partial(_refuse, extension)
    return None


def read_json(data: bytes) -> Any:
    """Return a JSON value. Like Python's own reader it accepts NaN, other encodings and a BOM.

    Raises:
        DecodeError: If the data is not JSON, or nested too deeply.
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        pass
    except RecursionError:
        raise DecodeError(None, "the JSON is nested too deeply") from None
    try:
        return json.loads(data)
    except RecursionError:
        raise DecodeError(None, "the JSON is nested too deeply") from None
    except ValueError as error:
        raise DecodeError(None, f"is not JSON: {error}") from error


def read_msgpack(data: bytes) -> Any:
    """Return a MessagePack value; a timestamp is a ``datetime``, another extension type a ``msgspec.msgpack.Ext``.

    Raises:
        DecodeError: If the data is not MessagePack, or nested too deeply.
    """
    try:
        return msgspec.msgpack.decode(data)
    except RecursionError:
        raise DecodeError(None, "the MessagePack is nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DecodeError(None, f"is not MessagePack: {error}") from error


def read_cbor(data: bytes) -> Any:
    """Return a CBOR value.

    Raises:
        MissingExtraError: If cbor2 is not installed.
    """
    return load_extra("cbor2", "parts named .cbor need cbor2: pip install 'headrace[cbor]'").loads(data)


def _read_text(data: bytes) -> str:
    return data.decode("utf-8")


def _read_int(data: bytes) -> int:
    return int(data)


_FIRST_SAFE_TORCH = (2, 10)
"""Before, a file can run code in spite of ``weights_only`` (CVE-2025-32434, CVE-2026-24747)."""


def read_pth(data: bytes, max_bytes: int, *, trust_code: bool) -> Any:
    """Return what ``torch.save`` wrote, on the CPU. Without ``trust_code``, only tensors and plain values are read.

    Raises:
        DecodeError: If it holds anything else and is not trusted, torch is too old to refuse that, or it would inflate
            to more than allowed.
        MissingExtraError: If torch is not installed.
    """
    torch = load_extra("torch", "parts named .pth need torch: pip install 'headrace[torch]'")
    if not trust_code and tuple(map(int, torch.__version__.split(".")[:2])) < _FIRST_SAFE_TORCH:
        raise DecodeError(
            None,
            f".pth may run any code when torch {torch.__version__} reads it, so it is refused; install torch 2.10 or"
            " later, or set trust_code=True if you trust whoever made it",
        )
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            check_bytes(sum(member.file_size for member in archive.infolist()), max_bytes, "the tensors")
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if trust_code:
            return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)
        found = re.search(r"GLOBAL (\S+)", str(error))
        raise DecodeError(
            None,
            "only tensors and plain values are read of a .pth, and this one "
            f"{'cannot be read so' if found is None else f'holds a {found[1]}'}; store it as tensors, or set"
            " trust_code=True if you trust whoever made it, since it may run any code",
        ) from error


def _refuse(extension: str, data: bytes) -> Any:
    raise DecodeError(
        None,
        f".{extension} may run any code when it is read, so it is refused; set trust_code=True if you trust whoever "
        "made it, or remove the part from the field map",
    )


_PLAIN: dict[str, Decode] = {
    **dict.fromkeys(("txt", "text", "transcript"), _read_text),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), _read_int),
    **dict.fromkeys(("json", "jsn"), read_json),
    **dict.fromkeys(("mp", "msg"), read_msgpack),
    **dict.fromkeys(("ten", "tb"), read_ten),
    "cbor": read_cbor,
}
_CODE = ("pkl", "pickle", "pyd")
