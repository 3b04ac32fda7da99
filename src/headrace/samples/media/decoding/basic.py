"""Parts that are neither image nor sound nor video: text, numbers, JSON, arrays, and what may run code."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from headrace.errors import DecodeError, MissingExtraError
from headrace.samples.media.decoding.arrays import read_npy, read_npz, read_ten

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
