"""``headrace.json``, the manifest of a folder of shards: its files, its options, and where every token went.

The file is canonical JSON (sorted keys, an indent of two spaces, one newline at the end). It holds a hash of itself and
the hashes of all shards, so that a single flipped bit in it or in a shard is found. Its ledger counts where every
document and every token of a run went, and the sums must balance.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from headrace.errors import StoreAwayError, StoreError
from headrace.io import (
    AnyPath,
    FileSum,
    atomic_write,
    check_local,
    check_readable,
    hash_bytes,
    json_bytes,
    path_at,
    read_small,
    safe_relative,
)
from headrace.stores.checking import check_file
from headrace.stores.store import AnyStore, Problem
from headrace.stores.written import META_NAME, OutputShard, file_faults


class DocumentLedger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Counts of documents: ``read == kept + sum(dropped.values())``.

    Attributes:
        read: documents found in the inputs.
        kept: documents in the outputs.
        dropped: documents left out, by reason.
        empty: kept documents without tokens.
        blank_lines: blank lines in the inputs, which are not documents.
        text_bytes: bytes of UTF-8 text in the documents read.
        with_special_tokens: documents read whose text holds the name of a special token.
    """

    read: int
    kept: int
    dropped: dict[str, int] = {}
    empty: int = 0
    blank_lines: int = 0
    text_bytes: int = 0
    with_special_tokens: int = 0


class TokenLedger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Counts of tokens, over all keys: ``made == kept + sum(dropped.values()) + sum(truncated.values())``.

    Attributes:
        made: tokens made from the texts, including ``eod`` and ``bos``.
        kept: tokens in the outputs.
        eod: tokens that were added to end a document; they are part of ``made``.
        bos: tokens that were added to begin a document; they are part of ``made``.
        dropped: tokens of documents that were left out, by reason.
        truncated: tokens that were cut off documents that were kept, by reason.
    """

    made: int
    kept: int
    eod: int = 0
    bos: int = 0
    dropped: dict[str, int] = {}
    truncated: dict[str, int] = {}


class SampleLedger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Further counts of a run in which a recipe makes the documents.

    Only ids count as tokens here; masks, rewards and the like do not.

    Attributes:
        records: complete records that were read, whether kept or dropped. A record that was split counts once, although
            it became several documents.
        keys: a `TokenLedger` for each key of ids; each must balance.
        supervised: trained tokens in all masks of the store.
        notes: counts that need not balance: ``straddling_tokens``, ``truncated_records`` and the like.
    """

    records: int = 0
    keys: dict[str, TokenLedger] = {}
    supervised: int = 0
    notes: dict[str, int] = {}


class ContentLedger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bytes in the parts of samples in tars, without headers and padding: ``read == kept + sum(dropped.values())``.

    Attributes:
        read: bytes of all parts found in the inputs.
        kept: bytes in the outputs.
        dropped: bytes of samples that were left out, by reason; for a bad sample the parts found before its fault.
    """

    read: int
    kept: int
    dropped: dict[str, int] = {}


class Ledger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Counts of everything that was read, kept and dropped; they must balance.

    ``missing_bos`` counts texts without the BOS that the tokeniser begins texts with; recipes count them in ``notes``.
    """

    documents: DocumentLedger
    tokens: TokenLedger
    samples: SampleLedger | None = None
    contents: ContentLedger | None = None
    missing_bos: int = 0

    def faults(self) -> Iterator[str]:
        """Yield a message for each count that contradicts another."""
        documents, tokens = self.documents, self.tokens
        dropped = sum(documents.dropped.values())
        if documents.read != documents.kept + dropped:
            yield f"no balance: {documents.read} documents read, but {documents.kept} kept and {dropped} dropped"
        yield from _unbalanced(tokens, "tokens")
        if self.samples is not None:
            yield from self._samples_faults(self.samples)
        if self.contents is not None:
            yield from _content_faults(self.contents)
        if min([*_numbers(documents), *documents.dropped.values()]) < 0:
            yield "the ledger has a negative count"
        if documents.empty > documents.kept or documents.with_special_tokens > documents.read:
            yield "the ledger counts more empty documents than it kept, or more with special tokens than it read"
        if tokens.eod + tokens.bos > tokens.made:
            yield f"the ledger counts {tokens.eod + tokens.bos} added tokens, more than the {tokens.made} made"

    def _samples_faults(self, samples: SampleLedger) -> Iterator[str]:
        for key, tokens in samples.keys.items():
            yield from _unbalanced(tokens, f"tokens of {key!r}")
        for name in ("made", "kept", "truncated", "dropped"):
            whole, *parts = (_number(tokens, name) for tokens in (self.tokens, *samples.keys.values()))
            if sum(parts) != whole:
                yield f"no balance: {whole} tokens {name}, but {sum(parts)} in the keys"
        if min([samples.records, samples.supervised, *samples.notes.values()]) < 0:
            yield "the ledger has a negative count"


def _content_faults(contents: ContentLedger) -> Iterator[str]:
    dropped = sum(contents.dropped.values())
    if contents.read != contents.kept + dropped:
        yield f"no balance: {contents.read} bytes read, but {contents.kept} kept and {dropped} dropped"
    if min([*_numbers(contents), *contents.dropped.values()]) < 0:
        yield "the ledger has a negative count"


def _number(tokens: TokenLedger, name: str) -> int:
    found: int | Mapping[str, int] = getattr(tokens, name)
    return found if isinstance(found, int) else sum(found.values())


def _unbalanced(tokens: TokenLedger, what: str) -> Iterator[str]:
    dropped, truncated = sum(tokens.dropped.values()), sum(tokens.truncated.values())
    if tokens.made != tokens.kept + dropped + truncated:
        yield (
            f"no balance: {tokens.made} {what} made, but {tokens.kept} kept, {dropped} dropped and {truncated}"
            " truncated"
        )
    if min([*_numbers(tokens), *tokens.dropped.values(), *tokens.truncated.values()]) < 0:
        yield "the ledger has a negative count"


def _numbers(ledger: msgspec.Struct) -> list[int]:
    return [value for value in msgspec.structs.astuple(ledger) if isinstance(value, int)]


MANIFEST_NAME = "headrace.json"
PROVENANCE_NAME = "provenance"
"""The folder beside the manifest whose files say which input each document comes from."""


class InputFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One input file.

    Attributes:
        path: the path as it was passed to the run.
        format: name of the file's format.
        size: size in bytes.
        xxh3_128: hash of the file, in hex.
    """

    path: str
    format: str = ""
    size: int
    xxh3_128: str


class TokenizerInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The tokeniser that made the ids.

    Attributes:
        source: the file or name from which it was loaded.
        xxh3_128: hash of its definition (the bytes of ``tokenizer.json``); it identifies the tokeniser.
        vocab_size: ids are in ``[0, vocab_size)``.
        eod: id that is added to end a document; None if none is added.
        bos: id that is added to begin a document; None if none is added.
        eod_text: the token with the id ``eod``.
        bos_text: the token with the id ``bos``.
        library_version: version of ``tokenizers`` that defines these ids.
    """

    source: str
    xxh3_128: str
    vocab_size: int
    eod: int | None = None
    bos: int | None = None
    eod_text: str = ""
    bos_text: str = ""
    library_version: str = ""


class BackendInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The package that encoded the texts, and how it was verified.

    Attributes:
        name: name of the package.
        version: version of the package.
        why: for each package by name, why it was used or not.
        proved: how many documents ``tokenizers`` encoded too, with the same ids: ``first_documents`` and
            ``sampled_documents``.
        routed: number of texts that only ``tokenizers`` encoded, since they hold the name of an added token.
        routes: why such texts go to ``tokenizers``; empty if all texts go to the backend.
        from_task_by: the place of a difference, from which ``tokenizers`` encoded the rest; empty if there was none.
    """

    name: str
    version: str
    why: dict[str, str] = {}
    proved: dict[str, int] = {}
    routed: int = 0
    routes: str = ""
    from_task_by: str = ""


class InputOrder(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="input"):
    """Documents have the order of the inputs."""


class ShuffledOrder(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="shuffle"
):
    """Documents have the order of a hash with this seed."""

    seed: int


class ErrorEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A record that was skipped.

    Attributes:
        file: the input file, as in `InputFile.path`.
        unit: what `line` counts: ``line``, ``paragraph`` or ``document`` from 1, or ``row`` from 0.
        line: the place of the record in the file.
        message: what is wrong with the record.
    """

    file: str
    unit: str = "line"
    line: int
    message: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``headrace.json``.

    Attributes:
        version: version of the manifest's own format.
        kind: distinguishes a manifest from other JSON.
        inputs: the input files, in their order.
        options: the options of the run.
        tokenizer: the tokeniser that made the ids.
        backend: the package that encoded the texts.
        order: the order of the documents.
        outputs: the shards of all keys; those of one key are in order.
        ledger: counts of everything that was read, kept and dropped.
        errors: the records that were skipped.
        provenance: the files in the folder ``provenance``, by base name.
        beside: other files that belong to the output and are not meant to be edited, by their path relative to the
            manifest, such as the manifests of domains and Energon's index. Unset if there are none or if they were not
            recorded.
        xxh3_128: hash of the canonical JSON with this field empty.
    """

    version: Literal[1] = 1
    kind: Literal["headrace.manifest"] = "headrace.manifest"
    inputs: tuple[InputFile, ...] = ()
    options: dict[str, Any] = {}
    tokenizer: TokenizerInfo | None = None
    backend: BackendInfo | None = None
    order: InputOrder | ShuffledOrder = InputOrder()
    outputs: tuple[OutputShard, ...]
    ledger: Ledger
    errors: tuple[ErrorEntry, ...] = ()
    provenance: tuple[FileSum, ...] = ()
    beside: tuple[FileSum, ...] | msgspec.UnsetType = msgspec.UNSET
    xxh3_128: str = ""

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys, in the order of the shards; a manifest that was loaded has the keys of one shard sorted by name."""
        return tuple(dict.fromkeys(key for shard in self.outputs for key in shard.keys))

    def files(self) -> dict[str, FileSum]:
        """Return the files of the shards and of ``provenance``, by their paths in the folder."""
        found = {f"{PROVENANCE_NAME}/{file.name}": file for file in self.provenance}
        for shard in self.outputs:
            found |= dict(zip(shard.file_names(), shard.files, strict=True))
        return found

    def is_complete(self, folder: AnyPath) -> bool:
        """Return whether all these files are in the folder and have their sizes. Their content is not read."""
        try:
            return all(
                (folder / safe_relative(name)).stat().st_size == file.size for name, file in self.files().items()
            )
        except OSError:
            return False

    def faults(self) -> Iterator[str]:
        """Yield a message for each contradiction within the manifest.

        Raises:
            StoreError: a name leaves the manifest's folder.
        """
        yield from self.ledger.faults()
        documents = self.ledger.documents
        if self.ledger.contents is not None:
            yield from self._content_faults(self.ledger.contents)
        else:
            yield from self._document_faults()
        if not self.outputs and documents.kept:
            yield f"there are no shards, but the ledger kept {documents.kept} documents"
        if len({shard.format for shard in self.outputs}) > 1:
            yield "the shards have several formats"
        prefixes = [shard.prefix for shard in self.outputs]
        if len(set(prefixes)) != len(prefixes):
            yield "a shard is listed twice"
        for shard in self.outputs:
            yield from shard.faults()
        if len({file.name for file in self.provenance}) != len(self.provenance):
            yield f"a file of {PROVENANCE_NAME} is listed twice"
        for file in self.provenance:
            if "/" in safe_relative(file.name):
                yield f"{PROVENANCE_NAME}: {file.name!r} is not the base name of a file"
            yield from file_faults(PROVENANCE_NAME, file)
        for file in self.beside or ():
            yield from file_faults(safe_relative(file.name), file)

    def check_beside(self, folder: str | os.PathLike[str]) -> Iterator[Problem]:
        """Check sizes and hashes of all files except the shards: those of ``provenance`` and ``beside``. One pass."""
        for file in self.provenance:
            yield from check_file(path_at(folder) / PROVENANCE_NAME / file.name, file)
        for file in self.beside or ():
            yield from check_file(path_at(folder) / file.name, file)

    def _document_faults(self) -> Iterator[str]:
        kept = self.ledger.documents.kept
        for key in self.keys:
            found = sum(shard.documents for shard in self.outputs if key in shard.keys)
            if found != kept:
                yield f"the shards have {found} documents with the key {key!r}, but the ledger kept {kept}"
        yield from self._token_faults()

    def _content_faults(self, contents: ContentLedger) -> Iterator[str]:
        # Keys are parts here, and not every sample has every part: only the sums can be compared.
        found = sum(shard.documents for shard in self.outputs)
        if found != self.ledger.documents.kept:
            yield f"the shards have {found} samples, but the ledger kept {self.ledger.documents.kept}"
        found = sum(shard.tokens for shard in self.outputs)
        if found != contents.kept:
            yield f"the shards have {found} bytes in their parts, but the ledger kept {contents.kept}"

    def _token_faults(self) -> Iterator[str]:
        if self.ledger.samples is None:
            shards_tokens = sum(shard.tokens for shard in self.outputs)
            if shards_tokens != self.ledger.tokens.kept:
                yield f"the shards have {shards_tokens} tokens, but the ledger kept {self.ledger.tokens.kept}"
            return
        found: dict[str, int] = {}
        for shard in self.outputs:
            for key, info in shard.keys.items():
                if info.ids:
                    found[key] = found.get(key, 0) + info.tokens
        kept = {key: tokens.kept for key, tokens in self.ledger.samples.keys.items()}
        for key in sorted(found.keys() | kept.keys()):
            if found.get(key, 0) != kept.get(key, 0):
                yield f"the shards have {found.get(key, 0)} tokens of {key!r}, but the ledger kept {kept.get(key, 0)}"

    def shard(self, prefix: str) -> OutputShard | None:
        """Return the entry of a shard by its prefix relative to the manifest's folder; None if there is none."""
        return next((shard for shard in self.outputs if shard.prefix == prefix), None)


def entry_beside(
    prefix: str | AnyPath, layout: str, vouched: OutputShard | None
) -> tuple[OutputShard | None, list[Problem]]:
    """Return the entry of a shard in the manifest beside it, unless one is known, and what is wrong with the manifest.

    Args:
        prefix: the shard, as a manifest names it.
        layout: the format that the entry must have.
        vouched: the entry, if it is known.
    """
    folder, name = path_at(prefix).parent, path_at(prefix).name
    if vouched is not None or not (folder / MANIFEST_NAME).exists():
        return vouched, []
    try:
        entry = load_manifest(folder).shard(name)
    except StoreError as error:
        return None, [Problem.of(str(folder / MANIFEST_NAME), error)]
    return (entry if entry is not None and entry.format == layout else None), []


def save_manifest(folder: str | os.PathLike[str], manifest: Manifest) -> Manifest:
    """Write ``headrace.json`` into a folder, atomically, and return the manifest with its hash.

    Raises:
        StoreError: the manifest contradicts itself; nothing is written.
        OutputError: the system reports an error.
    """
    check_local(folder)
    complete = _with_hash(manifest)
    atomic_write(Path(folder) / MANIFEST_NAME, encoded_manifest(manifest))
    return complete


def encoded_manifest(manifest: Manifest) -> bytes:
    """Return the content of a ``headrace.json``; raises StoreError if the manifest contradicts itself."""
    for fault in manifest.faults():
        raise StoreError(f"the manifest is not written: {fault}")
    return json_bytes(_with_hash(manifest), order="sorted")


def load_manifest(folder: str | os.PathLike[str] | AnyPath) -> Manifest:
    """Read and verify the ``headrace.json`` of a folder.

    Raises:
        StoreError: the file is missing, is not a manifest of a known version, was changed (even by one bit), or
            contradicts itself.
    """
    check_readable(folder)
    path = path_at(folder) / MANIFEST_NAME
    try:
        data = read_small(path)
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from error
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise StoreError(f"{path}: not a Headrace manifest of version 1: {error}") from error
    if _with_hash(manifest) != manifest:
        raise StoreError(f"{path}: its content does not match its own hash {manifest.xxh3_128!r}; it was changed")
    if json_bytes(manifest, order="sorted") != data:
        raise StoreError(f"{path}: not in the canonical form that Headrace writes; it was changed")
    for fault in manifest.faults():
        raise StoreError(f"{path}: {fault}")
    return manifest


def _with_hash(manifest: Manifest) -> Manifest:
    blank = msgspec.structs.replace(manifest, xxh3_128="")
    return msgspec.structs.replace(manifest, xxh3_128=hash_bytes(json_bytes(blank, order="sorted")))


def manifest_of(store: AnyStore) -> tuple[AnyPath, Manifest] | None:
    """Find the manifest that lists an open store, as `find_manifest` does; an object store is reached as the store is.

    One that is damaged, as `check` reports, counts as none.

    Raises:
        StoreAwayError: the object store gives no answer.
    """
    file = next(iter(store.files), None)
    try:
        return find_manifest(store.path if file is None or isinstance(file, Path) else file.at(store.path))
    except StoreAwayError:
        raise
    except StoreError:
        return None


def find_manifest(path: str | os.PathLike[str]) -> tuple[AnyPath, Manifest] | None:
    """Find the manifest that lists the store at a path, which is a folder of shards or one shard.

    Returns:
        The folder of the manifest and the manifest; None if there is none.

    Raises:
        StoreError: there is a manifest, but it is damaged.
    """
    found = path_at(path)
    if found.is_dir() and (found / MANIFEST_NAME).is_file():
        return found, load_manifest(found)
    if found.name == META_NAME:
        found = found.parent
    if not (found.parent / MANIFEST_NAME).is_file():
        return None
    manifest = load_manifest(found.parent)
    prefix = found.stem if found.suffix in (".bin", ".idx", ".h5", ".hdf5", ".jsonl") else found.name
    entry = manifest.shard(prefix)
    is_listed = entry is not None and (entry.format == "keyed") == found.is_dir()
    return (found.parent, manifest) if is_listed else None
