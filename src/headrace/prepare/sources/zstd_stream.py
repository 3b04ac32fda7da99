"""What a zstd file holds."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from headrace.errors import MissingExtraError
from headrace.prepare.sources.formats import ZSTD_MAGIC, is_zstd
from headrace.prepare.sources.streams import CHUNK_BYTES, DamagedStreamError, Decompressed, HashedFile

MAX_WINDOW_BYTES = 128 << 20
_HEADER_BYTES = 18
_RLE_BLOCK = 1


class ZstdStream(Decompressed):
    """A zstd file of any number of frames (RFC 8878), skippable ones passed over.

    The blocks of a frame are found here and decompressed one at a time: each gives at most 128 KiB, whatever the
    ratio, and the end of a frame is known to be there.
    """

    def __init__(self, file: HashedFile, name: str) -> None:
        super().__init__(file)
        self._zstandard = load_zstandard(name)
        self._decoder = self._zstandard.ZstdDecompressor()
        self._frame: Any = None
        self._has_checksum = False

    def _decompress(self, limit: int) -> bytes:
        while True:
            frame = self._frame or self._begin_frame()
            if frame is None:
                return b""
            header = self._exactly(3)
            value = int.from_bytes(header, "little")
            is_last, kind, size = value & 1, value >> 1 & 3, value >> 3
            data = header + self._exactly(1 if kind == _RLE_BLOCK else size)
            if is_last and self._has_checksum:
                data += self._exactly(4)
            piece = self._feed(frame, data)
            self._frame = None if is_last else frame
            if piece:
                return piece

    def _begin_frame(self) -> Any:
        head = self._take(_HEADER_BYTES)
        while head[:4] != ZSTD_MAGIC:
            if not head:
                return None
            if not is_zstd(head):
                self._untake(len(head))
                self._end_in_garbage("zstd", head)
                return None
            self._untake(len(head))
            left = int.from_bytes(self._exactly(8)[4:], "little")
            while left:
                left -= len(self._exactly(min(left, CHUNK_BYTES)))
            head = self._take(_HEADER_BYTES)
        try:
            size = self._zstandard.frame_header_size(head)
            parameters = self._zstandard.get_frame_parameters(head)
        except self._zstandard.ZstdError as error:
            raise self._torn("zstd") if len(head) < _HEADER_BYTES else self._broken("zstd", error) from None
        if parameters.window_size > MAX_WINDOW_BYTES:
            raise DamagedStreamError(
                f"the zstd frame needs a window of {parameters.window_size:,} bytes in memory; at most "
                f"{MAX_WINDOW_BYTES:,} are allowed. Compress it again without --long or --ultra."
            )
        self._untake(len(head) - size)
        self._has_checksum = parameters.has_checksum
        frame = self._decoder.decompressobj()
        self._feed(frame, head[:size])
        return frame

    def _exactly(self, size: int) -> bytes:
        data = self._take(size)
        if len(data) < size:
            raise self._torn("zstd")
        return data

    def _feed(self, frame: Any, data: bytes) -> bytes:
        try:
            piece: bytes = frame.decompress(data)
        except self._zstandard.ZstdError as error:
            raise self._broken("zstd", error) from None
        return piece


def load_zstandard(name: str) -> ModuleType:
    """The module ``zstandard``.

    Raises:
        MissingExtraError: it is not installed; names the file that needs it.
    """
    try:
        return importlib.import_module("zstandard")
    except ImportError as error:
        raise MissingExtraError(f"{name}: reading .zst needs zstandard: pip install 'headrace[zstd]'") from error
