"""The sums of a run, and the proof that nothing was lost between a file and the store."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.errors import HeadraceError
from headrace.prepare.inputs import SourceFile
from headrace.prepare.messages import SpanResult, TextDone
from headrace.stores import DocumentLedger, Ledger, TokenLedger, WrittenShard


class RunLedger:
    """Counts what was read and what was kept on two independent ways, and compares them.

    Lines are counted by their newlines, documents by their texts, tokens by their encodings, and all of them again by
    the store that was written.
    """

    def __init__(self, files: Sequence[SourceFile]) -> None:
        self._files = files
        self._reached = [0] * len(files)
        self._lines = [0] * len(files)
        self.hashes: list[str] = [""] * len(files)
        self.blank_lines = 0
        self.documents = 0
        self.empty_documents = 0
        self.text_bytes = 0
        self.text_tokens = 0
        self.eod_tokens = 0

    @property
    def input_bytes(self) -> int:
        """Bytes of input that are done."""
        return sum(self._reached)

    @property
    def tokens(self) -> int:
        """Tokens kept so far, end-of-document tokens included."""
        return self.text_tokens + self.eod_tokens

    def lines_of(self, file: int) -> int:
        """Lines of this file in the tasks that are done."""
        return self._lines[file]

    def add(self, done: TextDone) -> None:
        """Take the next task's counts, in the order of the tasks.

        Raises:
            HeadraceError: bytes of a file were left out or read twice, or lines are not documents plus blank ones.
        """
        for span in done.spans:
            self._add_span(span)
        documents = sum(span.documents for span in done.spans)
        self._equal("documents of a task, and documents encoded", documents, done.num_documents)
        self.empty_documents += done.num_empty
        self.text_tokens += done.num_text_tokens
        self.eod_tokens += done.num_eod_tokens

    def _add_span(self, span: SpanResult) -> None:
        name = self._files[span.file].name
        if span.end > span.begin:
            reached = self._reached[span.file]
            self._equal(f"{name}: byte where one span ends, and where the next begins", reached, span.begin)
            self._reached[span.file] = span.end
        self._equal(f"{name}: lines, and documents plus blank lines", span.lines, span.documents + span.blank_lines)
        self._lines[span.file] += span.lines
        if span.xxh3_128:
            self.hashes[span.file] = span.xxh3_128
        self.blank_lines += span.blank_lines
        self.documents += span.documents
        self.text_bytes += span.text_bytes

    def balance(self, shard: WrittenShard) -> Ledger:
        """The ledger for the manifest.

        Raises:
            HeadraceError: it does not balance with the store that was written.
        """
        for file, reached in zip(self._files, self._reached, strict=True):
            self._equal(f"{file.name}: bytes of the file, and bytes read", file.size_bytes, reached)
        self._equal("documents read, and documents in the store", self.documents, shard.num_documents)
        self._equal("tokens made, and tokens in the store", self.tokens, shard.num_tokens)
        return Ledger(
            documents=DocumentLedger(
                read=self.documents,
                kept=shard.num_documents,
                empty=self.empty_documents,
                blank_lines=self.blank_lines,
                text_bytes=self.text_bytes,
            ),
            tokens=TokenLedger(kept=shard.num_tokens, eod=self.eod_tokens),
        )

    @staticmethod
    def _equal(what: str, left: int, right: int) -> None:
        if left != right:
            raise HeadraceError(
                f"the ledger does not balance: {what}: {left:,} and {right:,}. Nothing was written. This is a defect "
                "of Headrace or of this machine: please report it."
            )
