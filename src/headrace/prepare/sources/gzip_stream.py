"""What a gzip file holds."""

from __future__ import annotations

import zlib

from headrace.prepare.sources.formats import GZIP_MAGIC
from headrace.prepare.sources.streams import Decompressed, HashedFile

SALVAGE_BYTES = 1 << 10
"""At most a MiB comes out of these, at the best ratio of the format."""


class GzipStream(Decompressed):
    """A gzip file of any number of members (RFC 1952), zero bytes after them allowed."""

    def __init__(self, file: HashedFile) -> None:
        super().__init__(file)
        self._decoder: zlib._Decompress | None = None
        self._members = 0

    def _decompress(self, limit: int) -> bytes:
        while True:
            decoder = self._decoder or self._begin_member()
            if decoder is None:
                return b""
            data = self._take_any()
            before = decoder.copy()
            try:
                piece = decoder.decompress(data, limit)
            except zlib.error as error:
                return self._salvage(before, data, error)
            self._untake(len(decoder.unused_data if decoder.eof else decoder.unconsumed_tail))
            self._decoder = None if decoder.eof else decoder
            if piece:
                return piece
            if not data and not decoder.eof:
                raise self._torn("gzip")

    def _begin_member(self) -> zlib._Decompress | None:
        data = self._take_any()
        while self._members and data:  # zero bytes fill up the last block of a tape
            data = data.lstrip(b"\0")
            if data:
                break
            data = self._take_any()
        self._untake(len(data))
        head = self._take(len(GZIP_MAGIC))
        self._untake(len(head))
        if not head:
            return None
        if head != GZIP_MAGIC:
            self._end_in_garbage("gzip", data)
            return None
        self._members += 1
        return zlib.decompressobj(wbits=31)

    def _salvage(self, decoder: zlib._Decompress, data: bytes, error: zlib.error) -> bytes:
        """A failing call gives nothing: all that could be decompressed before it failed, to the byte."""
        pieces = []
        step = SALVAGE_BYTES
        while step and data:
            attempt = decoder.copy()
            try:
                pieces.append(attempt.decompress(data[:step]))
            except zlib.error:
                step //= 2
                continue
            decoder, data = attempt, data[step:]
        self._untake(len(data))
        self._damage = self._broken("gzip", error)
        return b"".join(pieces)
