"""Parts that are neither image nor sound nor video: text, numbers, JSON, arrays, and whatever else.

NumPy's ``.npy`` and ``.npz``, webdataset's ``.ten``: what they declare is checked before anything is made.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import zipfile
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import numpy as np
from numpy.lib import format as npy_format

from headrace.errors import DecodeError, MissingExtraError
from headrace.samples.media.decoding.failing import check_bytes

_TEN_MAGIC = b"~TenBin~"
_TEN_DTYPES = {"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"}
_TEN_ALIGN = 64


def read_npy(data: bytes, max_bytes: int) -> np.ndarray[Any, Any]:
    """The array of an ``.npy`` file, writable.

    Raises:
        DecodeError: it holds Python objects (pickle), says more than there is, or is larger than allowed.
    """
    stream = io.BytesIO(data)
    version = npy_format.read_magic(stream)
    if version == (1, 0):
        shape, _, dtype = npy_format.read_array_header_1_0(stream)
        there = len(data) - stream.tell()
    elif version == (2, 0):
        shape, _, dtype = npy_format.read_array_header_2_0(stream)
        there = len(data) - stream.tell()
    else:
        shape, dtype, there = _header_3(data)
    if dtype.hasobject:
        raise DecodeError(None, "the array holds Python objects (pickle), which are refused; store numbers or text")
    wanted = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or wanted > there:
        raise DecodeError(None, f"the array {dtype} {shape} takes {wanted:,} bytes, and there are {there:,}")
    check_bytes(wanted, max_bytes, f"the array {dtype} {shape}")
    stream.seek(0)
    array: np.ndarray[Any, Any] = npy_format.read_array(stream, allow_pickle=False)
    return array


def _header_3(data: bytes) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Shape, dtype and bytes of values of a file of version 3.0, whose reader NumPy keeps to itself.

    It is 2.0 but for names of fields in UTF-8, which become escapes here: the header is a Python literal.
    """
    begin = 8 + 4
    end = begin + int.from_bytes(data[8:begin], "little")
    text = data[begin:end].decode("utf-8").encode("latin1", "backslashreplace")
    shape, _, dtype = npy_format.read_array_header_2_0(io.BytesIO(len(text).to_bytes(4, "little") + text))
    return shape, dtype, len(data) - end


def read_npz(data: bytes, max_bytes: int) -> dict[str, Any]:
    """The arrays of an ``.npz`` file by name; a member that is no ``.npy`` is bytes.

    Raises:
        DecodeError: it would inflate to more than allowed, is encrypted or broken, or as ``read_npy``.
    """
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        # No member yields more than it declares: zipfile stops there.
        check_bytes(sum(member.file_size for member in members), max_bytes, f"the {len(members):,} arrays")
        for member in members:
            # NumPy writes no others, and an LZMA member may ask for gigabytes of dictionary.
            if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise DecodeError(
                    None, f"{member.filename!r} is compressed by method {member.compress_type}; write deflate"
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
    """The arrays of webdataset's tensor format, writable.

    Chunks of magic, size (int64) and content, padded to 64 bytes; two a tensor: dtype, name and shape, then the values.

    Raises:
        DecodeError: not that format, or cut short.
    """
    chunks = _ten_chunks(data)
    if len(chunks) % 2:
        raise DecodeError(
            None, f"{len(chunks)} chunks; each tensor has a header and values, so the last one is missing"
        )
    return [_ten_array(chunks[number], chunks[number + 1]) for number in range(0, len(chunks), 2)]


def _ten_chunks(data: bytes) -> list[bytes]:
    chunks = []
    at = 0
    while at < len(data):
        if data[at : at + 8] != _TEN_MAGIC:
            raise DecodeError(
                None, f"found {data[at : at + 8]!r} at byte {at:,}; a chunk of tensors begins {_TEN_MAGIC!r}"
            )
        size = int.from_bytes(data[at + 8 : at + 16], "little", signed=True)
        at += 16
        if size < 0 or at + size > len(data):
            raise DecodeError(
                None, f"the chunk at byte {at:,} is {size:,} bytes long, and there are {len(data) - at:,}"
            )
        chunks.append(data[at : at + size])
        at += -(-size // _TEN_ALIGN) * _TEN_ALIGN
    return chunks


def _ten_array(header: bytes, values: bytes) -> np.ndarray[Any, Any]:
    words = np.frombuffer(header[: len(header) // 8 * 8], "<i8").tolist()
    code = header[:8].rstrip(b"\0").decode("ascii", "replace")
    if len(words) < 3 or code not in _TEN_DTYPES or not 0 <= words[2] <= len(words) - 3:
        raise DecodeError(None, f"a tensor's header says dtype {code!r} in {len(header)} bytes; it is not sound")
    shape = tuple(words[3 : 3 + words[2]])
    dtype = np.dtype(f"<{code}")
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > len(values):
        raise DecodeError(None, f"the tensor {code} {shape} takes more than the {len(values):,} bytes there are")
    return np.frombuffer(values, dtype, math.prod(shape)).reshape(shape).copy()


Decode = Callable[[bytes], Any]


def basic_decoder(extension: str, *, trust_code: bool, max_bytes: int) -> Decode | None:
    """What decodes parts of an extension, written exactly so; None: they stay bytes.

    ``trust_code`` admits pickles. Raises nothing; the decoders raise ``DecodeError`` and what their libraries raise.
    """
    plain = _PLAIN.get(extension)
    if plain is not None:
        return plain
    if extension == "npy":
        return partial(read_npy, max_bytes=max_bytes)
    if extension == "npz":
        return partial(read_npz, max_bytes=max_bytes)
    if extension in _CODE:
        return _CODE[extension] if trust_code else partial(_refuse, extension)
    return None


def read_json(data: bytes) -> Any:
    """A JSON value. What Python's own reader takes beyond the standard (NaN, other encodings, a BOM), this one takes.

    Raises:
        DecodeError: it is not JSON, or nested too deeply.
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
    """A MessagePack value; a timestamp is a ``datetime``, another extension type a ``msgspec.msgpack.Ext``.

    Raises:
        DecodeError: it is not MessagePack, or nested too deeply.
    """
    try:
        return msgspec.msgpack.decode(data)
    except RecursionError:
        raise DecodeError(None, "the MessagePack is nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise DecodeError(None, f"is not MessagePack: {error}") from error


def read_cbor(data: bytes) -> Any:
    """A CBOR value; needs cbor2."""
    try:
        import cbor2
    except ImportError as error:
        raise MissingExtraError("parts named .cbor need cbor2: pip install 'headrace[cbor]'") from error
    return cbor2.loads(data)


def _read_text(data: bytes) -> str:
    return data.decode("utf-8")


def _read_int(data: bytes) -> int:
    return int(data)


def _read_pth(data: bytes) -> Any:
    try:
        import torch
    except ImportError as error:
        raise MissingExtraError("parts named .pth need torch: pip install 'headrace[torch]'") from error
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        # It holds more than tensors and plain values; this is what the user's trust is for.
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)


def _refuse(extension: str, data: bytes) -> Any:
    raise DecodeError(
        None,
        f".{extension} may run any code when it is read, so it is refused; say trust_code=True if you trust whoever "
        "made it, or leave the part out of the field map",
    )


_PLAIN: dict[str, Decode] = {
    **dict.fromkeys(("txt", "text", "transcript"), _read_text),
    **dict.fromkeys(("cls", "cls2", "index", "inx", "id"), _read_int),
    **dict.fromkeys(("json", "jsn"), read_json),
    **dict.fromkeys(("mp", "msg"), read_msgpack),
    **dict.fromkeys(("ten", "tb"), read_ten),
    "cbor": read_cbor,
}
_CODE: dict[str, Decode] = {**dict.fromkeys(("pkl", "pickle", "pyd"), pickle.loads), "pth": _read_pth}
