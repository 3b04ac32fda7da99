"""``headrace.json``: what a folder of shards is made of, byte for byte, and where every document went.

The file is canonical JSON (sorted keys, two spaces, one newline at the end) and holds its own hash, so that any
flipped bit of it is found; it holds the hashes of all shards, so that any flipped bit of those is found too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec

from headrace.errors import StoreError
from headrace.io import FileSum, atomic_write, hash_bytes, safe_relative
from headrace.stores.indexed_writer import WrittenShard

MANIFEST_NAME = "headrace.json"


class InputFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One input: its path as the run was given it, bytes, and xxh3_128 in hex."""

    path: str
    size: int
    xxh3_128: str


class TokenizerInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tokeniser that made the ids.

    Attributes:
        source: file or name it was loaded from.
        xxh3_128: hash of its definition (the bytes of ``tokenizer.json``); tells one tokeniser from another.
        vocab_size: ids are in ``[0, vocab_size)``.
        eod: id that ends a document, where one is added.
    """

    source: str
    xxh3_128: str
    vocab_size: int
    eod: int | None = None


class OutputShard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One shard.

    Attributes:
        prefix: path without extension, relative to the manifest's folder, with ``/`` on every system.
        format: name of the layout.
        dtype: name of the dtype of the tokens.
        documents: number of documents, empty ones included.
        tokens: number of tokens.
        contiguous: the documents lie one after another in the ``.bin``; a store then need not look.
        files: the ``.bin`` and the ``.idx``, by base name.
    """

    prefix: str
    format: Literal["indexed"] = "indexed"
    dtype: str
    documents: int
    tokens: int
    contiguous: bool
    files: tuple[FileSum, ...]

    @classmethod
    def of(cls, written: WrittenShard, folder: str | os.PathLike[str]) -> OutputShard:
        """The entry of a shard that was just written below the manifest's folder."""
        return cls(
            prefix=Path(written.prefix).relative_to(Path(folder)).as_posix(),
            dtype=written.dtype,
            documents=written.num_documents,
            tokens=written.num_tokens,
            contiguous=written.contiguous,
            files=written.files,
        )


class DocumentLedger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Documents: ``read == kept + sum(dropped.values())``.

    Attributes:
        read: documents found in the inputs.
        kept: those in the outputs.
        dropped: those left out, by reason.
        empty: those of the kept that have no tokens.
        blank_lines: lines of the inputs that hold nothing, and so no document.
        text_bytes: bytes of UTF-8 text in the documents read.
    """

    read: int
    kept: int
    dropped: dict[str, int] = {}
    empty: int = 0
    blank_lines: int = 0
    text_bytes: int = 0


class TokenLedger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tokens in the outputs, ``eod`` of them end-of-document tokens that were added; and those cut, by reason."""

    kept: int
    eod: int = 0
    truncated: dict[str, int] = {}


class Ledger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where everything went; it must balance."""

    documents: DocumentLedger
    tokens: TokenLedger


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file. ``xxh3_128`` is the hash of the canonical JSON with this field empty."""

    version: Literal[1] = 1
    kind: Literal["headrace.manifest"] = "headrace.manifest"
    inputs: tuple[InputFile, ...] = ()
    options: dict[str, Any] = {}
    tokenizer: TokenizerInfo | None = None
    outputs: tuple[OutputShard, ...]
    ledger: Ledger
    xxh3_128: str = ""

    def faults(self) -> Iterator[str]:
        """What does not add up within the manifest, in words."""
        documents, tokens = self.ledger.documents, self.ledger.tokens
        dropped = sum(documents.dropped.values())
        if documents.read != documents.kept + dropped:
            yield f"no balance: {documents.read} documents read, but {documents.kept} kept and {dropped} dropped"
        counts = [*_numbers(documents), *_numbers(tokens), *documents.dropped.values(), *tokens.truncated.values()]
        if min(counts) < 0:
            yield "the ledger has a negative count"
        if documents.empty > documents.kept or tokens.eod > tokens.kept:
            yield "the ledger counts more empty documents or added tokens than it kept documents or tokens"
        shards_documents = sum(shard.documents for shard in self.outputs)
        if shards_documents != documents.kept:
            yield f"the shards have {shards_documents} documents, the ledger kept {documents.kept}"
        shards_tokens = sum(shard.tokens for shard in self.outputs)
        if shards_tokens != tokens.kept:
            yield f"the shards have {shards_tokens} tokens, the ledger kept {tokens.kept}"
        prefixes = [shard.prefix for shard in self.outputs]
        if len(set(prefixes)) != len(prefixes):
            yield "a shard is listed twice"
        for shard in self.outputs:
            name = safe_relative(shard.prefix).rpartition("/")[2]
            if [file.name for file in shard.files] != [name + ".bin", name + ".idx"]:
                yield f"shard {shard.prefix!r} must list the files {name}.bin and {name}.idx, in this order"
            for file in shard.files:
                if file.block_bytes < 1 or len(file.xxh3_64) != -(-file.size // file.block_bytes):
                    yield f"{shard.prefix}: {file.name} of {file.size} bytes has {len(file.xxh3_64)} blocks"

    def shard(self, prefix: str) -> OutputShard | None:
        """The entry of this prefix, relative to the manifest's folder."""
        return next((shard for shard in self.outputs if shard.prefix == prefix), None)


def save_manifest(folder: str | os.PathLike[str], manifest: Manifest) -> Manifest:
    """Write ``headrace.json`` into a folder, atomically, and return the manifest with its hash.

    Raises:
        StoreError: the manifest does not add up; nothing is written.
        OutputError: the system refuses.
    """
    for fault in manifest.faults():
        raise StoreError(f"the manifest for {os.fspath(folder)} is not written: {fault}")
    complete = _with_hash(manifest)
    atomic_write(Path(folder) / MANIFEST_NAME, _canonical(complete))
    return complete


def load_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """Read and verify the ``headrace.json`` of a folder.

    Raises:
        StoreError: missing, not a manifest of a known version, changed by so much as a bit, or it does not add up.
    """
    path = Path(folder) / MANIFEST_NAME
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreError(f"{path}: not a Headrace manifest of version 1: {error}") from error
    if _with_hash(manifest) != manifest:
        raise StoreError(f"{path}: its own hash {manifest.xxh3_128!r} is not that of its content; it was changed")
    if _canonical(manifest) != data:
        raise StoreError(f"{path}: not in the canonical form that Headrace writes; it was changed")
    for fault in manifest.faults():
        raise StoreError(f"{path}: {fault}")
    return manifest


def _numbers(ledger: msgspec.Struct) -> list[int]:
    return [value for value in msgspec.structs.astuple(ledger) if isinstance(value, int)]


def _with_hash(manifest: Manifest) -> Manifest:
    blank = msgspec.structs.replace(manifest, xxh3_128="")
    return msgspec.structs.replace(manifest, xxh3_128=hash_bytes(_canonical(blank)))


def _canonical(manifest: Manifest) -> bytes:
    return msgspec.json.format(msgspec.json.encode(manifest, order="sorted"), indent=2) + b"\n"
