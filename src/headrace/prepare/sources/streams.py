"""Compressed files as streams of bytes, in bounded memory, with what is wrong about them found and said."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import BinaryIO

import xxhash

CHUNK_BYTES = 1 << 18


class DamagedStreamError(Exception):
    """Nothing can be read of a compressed file from here on; the message says what was found at which byte."""


class HashedFile:
    """A file read from its beginning, with the hash and the number of the bytes that were read."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hasher = xxhash.xxh3_128()
        self.position = 0

    def read(self, size: int, /) -> bytes:
        """Up to ``size`` bytes."""
        data = self._file.read(size)
        self._hasher.update(data)
        self.position += len(data)
        return data

    def seek(self, offset: int, /) -> int:
        """Not offered: the hash needs every byte in order."""
        raise OSError(f"a file that is being hashed cannot go to byte {offset:,}")

    def finish(self) -> str:
        """Read the rest; the hash of the whole file as 32 hexadecimal digits."""
        while self.read(CHUNK_BYTES):
            pass
        return self._hasher.hexdigest()


class Decompressed(ABC):
    """What a compressed file holds, every member or frame of it.

    Memory: ``size`` of the reads, some hundred KiB, and the window of the format (gzip 32 KiB; zstd at most 128 MiB,
    1 to 8 MiB at the usual levels).
    """

    def __init__(self, file: HashedFile) -> None:
        self._file = file
        self._input = b""
        self._used = 0
        self._damage: DamagedStreamError | None = None
        self._trailing = ""

    def read(self, size: int, /) -> bytes:
        """``size`` bytes, fewer only at the end.

        Raises:
            DamagedStreamError: after everything before the damage was given.
        """
        pieces: list[bytes] = []
        held = 0
        while held < size and self._damage is None:
            try:
                piece = self._decompress(size - held)
            except DamagedStreamError as error:
                self._damage = error
                break
            if not piece:
                break
            pieces.append(piece)
            held += len(piece)
        if self._damage is not None and not pieces:
            raise self._damage
        return b"".join(pieces)

    def seek(self, offset: int, /) -> int:
        """Not offered: a compressed file is read from its beginning."""
        raise OSError(f"a compressed file cannot go to byte {offset:,}")

    def finish(self) -> None:
        """Call this after the last read.

        Raises:
            DamagedStreamError: something else follows the compressed data.
        """
        if self._trailing:
            raise DamagedStreamError(self._trailing)

    @abstractmethod
    def _decompress(self, limit: int) -> bytes:
        """Some bytes, about ``limit`` at most; none at the end."""

    def _take(self, size: int) -> bytes:
        """Up to ``size`` bytes of the file, fewer only at its end."""
        while len(self._input) - self._used < size:
            data = self._file.read(max(CHUNK_BYTES, size))
            if not data:
                break
            self._input, self._used = self._input[self._used :] + data, 0
        taken = self._input[self._used : self._used + size]
        self._used += len(taken)
        return taken

    def _take_any(self) -> bytes:
        """What is at hand of the file, at least one byte but at its end."""
        return self._take(len(self._input) - self._used or CHUNK_BYTES)

    def _untake(self, size: int) -> None:
        """The last ``size`` bytes of what was taken last are still to be used."""
        self._used -= size

    @property
    def reached(self) -> int:
        """Byte of the file up to which it was used."""
        return self._file.position - len(self._input) + self._used

    def _end_in_garbage(self, kind: str, found: bytes) -> None:
        self._trailing = (
            f"what follows the compressed data at byte {self.reached:,} of the file is not {kind}: it begins with "
            f"{found[:16]!r}. Was something appended to the file? All of it from there on is lost."
        )

    def _torn(self, kind: str) -> DamagedStreamError:
        return DamagedStreamError(
            f"the {kind} data is torn: the file ends at byte {self._file.position:,}, in the middle of it. Was the "
            "file copied or written whole?"
        )

    def _broken(self, kind: str, error: Exception) -> DamagedStreamError:
        return DamagedStreamError(
            f"the {kind} data is damaged at about byte {self.reached:,} of the file: {error}. What was read before "
            "may be wrong too: fetch or write the file again."
        )
