"""The files of a pair while it is written sequence by sequence: what `IndexedDatasetBuilder` stands on.

    <name>.bin         the tokens; gets its name when the index does
    <name>.lengths     (sequences,) int32   tokens of each sequence   } beside the .bin, without a name:
    <name>.bounds      (documents,) int64   sequences up to its end   } what of the index is not yet in its place
    <name>.modes       (sequences,) int8    modes, if multimodal      }

Memory does not depend on the number of sequences.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.errors import OutputError
from headrace.io import AtomicFile, commit
from headrace.stores.indexed_layout import Layout
from headrace.stores.token_file import TokenFile
from headrace.stores.written import KeyInfo, WrittenShard

_PIECE_BYTES = 1 << 20


class SequenceFiles:
    """The ``.bin`` of one pair on its way to disk, and what its index will say.

    Args:
        path: of the ``.bin`` in the end.
        layout: dtype code, dialect and mode bytes; its counts do not matter.

    Raises:
        OutputError: the system refuses a file.
    """

    def __init__(self, path: Path, layout: Layout) -> None:
        self._layout = layout
        self._tokens = TokenFile(path, layout.dtype)
        self._kept: list[AtomicFile] = []
        try:
            self._bounds = self._keep(path, "bounds")
            self._modes = self._keep(path, "modes")
        except BaseException:
            self.discard()
            raise

    @property
    def num_sequences(self) -> int:
        """Sequences so far."""
        return self._tokens.num_documents

    def add(
        self, tokens: NDArray[Any], lengths: NDArray[np.int64], bounds: NDArray[np.int64], modes: NDArray[np.int8]
    ) -> None:
        """Append what was checked.

        Args:
            tokens: (sum of lengths,) in the dtype of the layout, contiguous.
            lengths: (n,) tokens of each sequence.
            bounds: (m,) of each document that ends here, the number of sequences up to its end, of the whole file.
            modes: (n,) of each sequence, or (0,) where the layout has none.
        """
        self._tokens.add(tokens, lengths)
        self._bounds.write(bounds.astype("<i8").data)
        self._modes.write(modes.data)

    def finish(self, idx_path: Path) -> WrittenShard:
        """Write the index, and give both files their names, the index last.

        Raises:
            OutputError: the system refuses; neither file is there then.
        """
        num_sequences = self.num_sequences
        num_documents = self._bounds.size // 8 if self._layout.has_documents else num_sequences
        num_bounds = num_documents + 1 if self._layout.has_documents else 0
        layout = Layout(
            self._layout.dtype_code, num_sequences, num_bounds, self._layout.dialect, self._layout.mode_bytes
        )
        try:
            index = AtomicFile(idx_path)
            try:
                self._write_index(index, layout)
            except BaseException:
                index.discard()
                raise
            files = (self._tokens.data.sum, index.sum)
            commit([self._tokens.data, index])
        finally:
            self.discard()  # what has its name stays
        return WrittenShard(
            format="indexed",
            prefix=str(idx_path).removesuffix(".idx"),
            num_documents=num_documents,
            keys={"tokens": KeyInfo(dtype=layout.dtype.name, tokens=self._tokens.num_tokens)},
            contiguous=True,
            files=files,
        )

    def discard(self) -> None:
        """Remove all temporary files."""
        self._tokens.discard()
        for file in self._kept:
            file.discard()

    def _write_index(self, index: AtomicFile, layout: Layout) -> None:
        index.write(layout.header())
        for lengths in self._tokens.chunks():
            index.write(lengths.data)
        begin = 0
        for lengths in self._tokens.chunks():
            ends = np.cumsum(lengths, dtype=np.int64) * layout.dtype.itemsize + begin
            index.write(np.concatenate(([begin], ends[:-1])).astype("<i8").data)
            begin = int(ends[-1])
        if layout.has_documents:
            index.write(bytes(8))
            for piece in self._bounds.pieces(_PIECE_BYTES):
                index.write(piece)
        for piece in self._modes.pieces(_PIECE_BYTES):
            index.write(piece)
        if index.size != layout.end:
            raise OutputError(f"{index.path}: {index.size} bytes were written, {layout.end} were due")

    def _keep(self, path: Path, name: str) -> AtomicFile:
        """A file that only this process needs, and that no kill leaves behind."""
        file = AtomicFile(path.with_name(f"{path.name.removesuffix('.bin')}.{name}"))
        self._kept.append(file)
        with contextlib.suppress(OSError):
            file.temporary.unlink()
        return file
