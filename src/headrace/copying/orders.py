"""What a copy writes, decided before anything is written: from a `Request` to a `CopyOrder`, and its report."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from headrace.copying.formats import FORMATS, CopyKinds, CopyOptions, FormatName, Shards, choose_kinds
from headrace.copying.plan import (
    DocumentRange,
    FolderPlan,
    SourceEntry,
    cut,
    limited,
    ranges_of,
    shard_borders,
)
from headrace.copying.sources import StoreSource
from headrace.errors import ConfigError
from headrace.io import folder_of, path_at
from headrace.stores import InputFile, KeyInfo, Manifest, OutputShard, TokenizerInfo
from headrace.stores.arguments import IntArray


def common_tokenizer(
    paths: Sequence[str], manifests: Sequence[Manifest | None], *, allow_different: bool
) -> tuple[TokenizerInfo | None, list[str]]:
    """Find the tokeniser that all sources share.

    Two tokenisers are the same if their definitions have the same hash. ``eod`` and ``bos`` are kept if the sources
    agree on them.

    Returns:
        The tokeniser, or None if the sources are not known to share one; and notes for the user.

    Raises:
        ConfigError: the tokenisers differ, and that is not allowed.
    """
    known = [
        (path, manifest.tokenizer)
        for path, manifest in zip(paths, manifests, strict=True)
        if manifest is not None and manifest.tokenizer is not None
    ]
    if not known:
        return None, []
    first_path, first = known[0]
    for path, other in known[1:]:
        if (other.xxh3_128, other.vocab_size) != (first.xxh3_128, first.vocab_size):
            found = f"{first_path} has ids of {_named(first)}, {path} of {_named(other)}"
            if not allow_different:
                raise ConfigError(
                    f"different tokenisers: {found}; one model cannot read both: tokenise one of them again, or allow"
                    " this with --any-tokenizer"
                )
            return None, [f"different tokenisers: {found}; the result names no tokeniser"]
    if len(known) < len(paths):
        unnamed = next(path for path in paths if path not in dict(known))
        return None, [f"{unnamed} does not say which tokeniser made its ids, so the result names no tokeniser"]
    notes = []
    for name, text in (("eod", "eod_text"), ("bos", "bos_text")):
        if any(getattr(other, name) != getattr(first, name) for _, other in known):
            notes.append(f"the sources do not all have the same {name} token, so the result names no such token")
            first = msgspec.structs.replace(first, **{name: None, text: ""})
    return first, notes


def _named(info: TokenizerInfo) -> str:
    return f"{info.source} ({info.vocab_size:,} ids, xxh3 {info.xxh3_128[:8]})"


class CopiedStore(msgspec.Struct, frozen=True, kw_only=True):
    """One store that was written."""

    name: str
    """Name of its folder below the destination; empty for the destination itself."""

    path: str
    documents: int
    tokens: int
    """Tokens of all keys."""

    num_shards: int
    bytes: int
    """Size of the shards; in a dry run only that of the tokens."""

    shards: tuple[OutputShard, ...]
    """The shards that were written; empty in a dry run."""


class CopyReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `merge`, `convert` or `split` wrote, or would write."""

    tool: str
    output: str
    is_dry_run: bool
    format: str
    keys: dict[str, str]
    """Dtype of each key on disk."""

    documents: int
    tokens: int
    sources: tuple[str, ...]
    """Paths of the sources, in the order in which they were copied."""

    stores: tuple[CopiedStore, ...]
    inputs: tuple[InputFile, ...]
    """The files of the sources with their hashes; empty in a dry run."""

    warnings: tuple[str, ...]
    """Notes about what was not kept, and about what may be unexpected."""


Parts = Callable[[list[StoreSource]], list[tuple[str, list[DocumentRange]]]]
"""A function from the sources to the stores that are written, with the name and the documents of each."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool asks for.

    Attributes:
        tool: name of the tool.
        paths: paths of the sources, in order.
        output: the destination.
        asked: the tool's own options, for the manifest.
        options: the options that all tools share.
        shards: the default of ``options.shards``.
        notes: notes for the user that the tool has already made.
    """

    tool: str
    paths: tuple[str, ...]
    output: str
    asked: dict[str, Any]
    options: CopyOptions
    shards: Shards
    notes: tuple[str, ...] = ()


class CopyOrder(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides a copy.

    Attributes:
        request: what the tool asks for.
        folder: the folder that relative paths of sources are in; empty if there are none.
        outputs: the stores that are written, each with the documents of its shards.
        kinds: format and dtypes of what is written, and the names of its keys in each source.
        modes: the keys whose sequences are written with modes, sorted.
        tokenizer: the tokeniser of all sources.
        notes: notes for the user.
        shards: how shards are made.
        sources: the sources, as the manifest names them.
        values: the keys that hold no ids of a vocabulary, sorted.
        masks: the keys that are 1 where a token is trained, sorted.
        has_samples: whether a recipe made one of the sources.
    """

    request: Request
    folder: str
    outputs: tuple[FolderPlan, ...]
    kinds: CopyKinds
    modes: tuple[str, ...]
    tokenizer: TokenizerInfo | None
    notes: tuple[str, ...]
    shards: Shards
    sources: tuple[SourceEntry, ...]
    values: tuple[str, ...]
    masks: tuple[str, ...]
    has_samples: bool

    @property
    def kept(self) -> dict[str, Any]:
        """The options that the manifest keeps: all that decide bytes, except those that it keeps for each source."""
        options = msgspec.to_builtins(self.request.options)
        for name in ("overwrite", "documents", "dialect", "bin_dtype", "eod", "bos"):
            options.pop(name)
        return {**self.request.asked, **options, "shards": self.shards}


def ordered(request: Request, sources: list[StoreSource], parts: Parts) -> CopyOrder:
    """Decide what is written.

    Args:
        request: what the tool asks for.
        sources: its sources, opened.
        parts: cuts the sources into stores.

    Raises:
        ConfigError: the sources do not fit together, or the format cannot hold them.
    """
    options = request.options
    kinds = choose_kinds(
        request.paths,
        [source.format for source in sources],
        [{key: store.dtypes[store.keys[0]] for key, store in source.keys.items()} for source in sources],
        options,
    )
    modes, mode_notes = _modes(sources, kinds, options)
    tokenizer, tokenizer_notes = common_tokenizer(
        request.paths,
        [source.manifest for source in sources],
        allow_different=options.allow_different_tokenizers,
    )
    shards = request.shards if options.shards is None else options.shards
    outputs = tuple(_folder(name, pieces, sources, shards, kinds.format) for name, pieces in parts(sources))
    return CopyOrder(
        request=request,
        folder=folder_of(*request.paths),
        outputs=outputs,
        kinds=kinds,
        modes=tuple(sorted(modes)),
        tokenizer=tokenizer,
        notes=(
            *request.notes,
            *kinds.warnings,
            *mode_notes,
            *tokenizer_notes,
            *_plan_notes(request, sources, outputs, kinds.format),
        ),
        shards=shards,
        sources=tuple(SourceEntry.of(source.path, source.num_documents, source.options) for source in sources),
        values=_keys_where(sources, kinds, lambda info: not info.ids),
        masks=_keys_where(sources, kinds, lambda info: info.mask),
        has_samples=any(source.has_samples for source in sources),
    )


def _keys_where(
    sources: Sequence[StoreSource], kinds: CopyKinds, matches: Callable[[KeyInfo], bool]
) -> tuple[str, ...]:
    """Return the keys of the copy of which the manifest of some source says something."""
    named = [(names, source.keys_where(matches)) for source, names in zip(sources, kinds.names, strict=True)]
    return tuple(sorted({key for names, found in named for key, name in names.items() if name in found}))


def _folder(
    name: str, pieces: list[DocumentRange], sources: Sequence[StoreSource], shards: Shards, format_name: FormatName
) -> FolderPlan:
    """Plan the shards of one store. There is at least one, even if the store is empty."""
    borders: list[int] = []
    if shards == "source":
        before = 0
        for piece in pieces:
            inner = [border for border in sources[piece.source].shard_borders if piece.first < border < piece.end]
            borders += [before + border - piece.first for border in inner]
            before += piece.num_documents
            borders.append(before)
        borders = borders[:-1]
    elif shards != "single":

        def lengths() -> Iterator[IntArray]:
            for piece in pieces:
                yield from sources[piece.source].lengths(piece.first, piece.end)

        borders = shard_borders(lengths(), shards)
    most = FORMATS[format_name].max_documents
    found = [part for shard in cut(pieces, borders) for part in limited(shard, most)]
    return FolderPlan(name=name, shards=tuple(map(tuple, found)))


def _modes(sources: Sequence[StoreSource], kinds: CopyKinds, options: CopyOptions) -> tuple[frozenset[str], list[str]]:
    """Return the keys that are written with modes, and notes about the keys that lose them."""
    notes = []
    kept = set()
    for key in kinds.dtypes:
        named = [(source, names[key]) for source, names in zip(sources, kinds.names, strict=True)]
        having, lacking = (
            [source.path for source, name in named if has_modes in source.has_modes(name)]
            for has_modes in (True, False)
        )
        if not having:
            continue
        if not lacking and FORMATS[kinds.format].sequences:
            kept.add(key)
            continue
        why = f"{lacking[0]} has none" if lacking else f"the {kinds.format} format has none"
        if not options.drop_modes:
            raise ConfigError(f"{having[0]} has sequences with modes, but {why}; --drop-modes leaves the modes out")
        notes.append(f"the modes of the sequences in {', '.join(having)} are left out: {why}")
    return frozenset(kept), notes


def _plan_notes(
    request: Request, sources: Sequence[StoreSource], folders: Sequence[FolderPlan], format_name: FormatName
) -> list[str]:
    notes = [f"{folder.name} has no documents" for folder in folders if folder.name and not folder.num_documents]
    most = FORMATS[format_name].max_documents
    if request.options.shards == "single" and any(len(folder.shards) > 1 for folder in folders):
        notes.append(f"a shard of the {format_name} format holds at most {most:,} documents, so there are several")
    if "era" in request.asked and sources[0].has_inner_borders:
        notes.append(
            "borders are counted in documents, and no document is cut; Megatron counts sequences, and here documents"
            " do not have one sequence each, so its borders differ"
        )
    return notes


def reported(order: CopyOrder, manifests: Sequence[Manifest], notes: Sequence[str]) -> CopyReport:
    """Return the report of a copy that is complete, given the manifests of its stores and further notes."""
    stores = [
        _copied(
            order,
            folder,
            tokens=sum(shard.tokens for shard in manifest.outputs),
            num_bytes=sum(file.size for shard in manifest.outputs for file in shard.files),
            shards=manifest.outputs,
        )
        for folder, manifest in zip(order.outputs, manifests, strict=True)
    ]
    return _report(order, stores, inputs=manifests[0].inputs, warnings=(*order.notes, *notes), is_dry_run=False)


def planned(order: CopyOrder, sources: Sequence[StoreSource], notes: Sequence[str] = ()) -> CopyReport:
    """Return the report of what an order would write, with further notes."""
    kinds = order.kinds
    stores = []
    for folder in order.outputs:
        num_tokens = num_bytes = 0
        for piece in ranges_of(folder.shards):
            tokens = sources[piece.source].num_tokens(piece.first, piece.end)
            num_tokens += sum(tokens.values())
            for key, dtype in kinds.dtypes.items():
                num_bytes += tokens[kinds.names[piece.source][key]] * np.dtype(dtype).itemsize
        stores.append(_copied(order, folder, tokens=num_tokens, num_bytes=num_bytes))
    return _report(order, stores, inputs=(), warnings=(*order.notes, *notes), is_dry_run=True)


def _copied(
    order: CopyOrder, folder: FolderPlan, *, tokens: int, num_bytes: int, shards: tuple[OutputShard, ...] = ()
) -> CopiedStore:
    output = order.request.output
    return CopiedStore(
        name=folder.name,
        path=os.fspath(path_at(output) / folder.name) if folder.name else output,
        documents=folder.num_documents,
        tokens=tokens,
        num_shards=len(folder.shards),
        bytes=num_bytes,
        shards=shards,
    )


def _report(order: CopyOrder, stores: Sequence[CopiedStore], **more: Any) -> CopyReport:
    return CopyReport(
        tool=order.request.tool,
        output=order.request.output,
        format=order.kinds.format,
        keys=order.kinds.dtypes,
        documents=sum(store.documents for store in stores),
        tokens=sum(store.tokens for store in stores),
        sources=order.request.paths,
        stores=tuple(stores),
        **more,
    )
