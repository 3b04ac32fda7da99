"""One copy, from a request to its report: what is written is decided first, as a `CopyOrder`, then carried out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import numpy as np

from headrace.copying.copier import CopiedStore, Copier, CopyProgress, CopyReport, MadeShard
from headrace.copying.destination import Destination
from headrace.copying.formats import FORMATS, CopyKinds, CopyOptions, FormatName, Shards, choose_kinds
from headrace.copying.plan import CopyPlan, DocumentRange, FolderPlan, cut, limited, ranges_of, shard_borders
from headrace.copying.sources import StoreSource
from headrace.errors import ConfigError
from headrace.io import Storage, hash_bytes, is_url, path_at
from headrace.stores import InputFile, Manifest, TokenizerInfo
from headrace.stores.arguments import IntArray

if TYPE_CHECKING:
    from headrace.copying.uploaded import UploadedDestination


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
                    " this with --allow-different-tokenizers"
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


OnProgress = Callable[[CopyProgress], None]
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
        plan: which documents are written where.
        kinds: the names of the keys in each source.
        modes: the keys whose sequences are written with modes, sorted.
        tokenizer: the tokeniser of all sources.
        notes: notes for the user.
        shards: how shards are made.
    """

    request: Request
    folder: str
    plan: CopyPlan
    kinds: CopyKinds
    modes: tuple[str, ...]
    tokenizer: TokenizerInfo | None
    notes: tuple[str, ...]
    shards: Shards

    @property
    def kept(self) -> dict[str, Any]:
        """The options that the manifest keeps: all that decide bytes, except those that it keeps for each source."""
        options = msgspec.to_builtins(self.request.options)
        for name in ("overwrite", "documents", "dialect"):
            options.pop(name)
        return {**self.request.asked, **options, "shards": self.shards}

    def copier(self, sources: Sequence[StoreSource], on_progress: OnProgress) -> Copier:
        """Return what copies the documents."""
        return Copier(self.plan, self.kinds, sources, modes=frozenset(self.modes), on_progress=on_progress)

    def uploaded(self, sources: Sequence[StoreSource], storage: Storage | None) -> UploadedDestination:
        """Return the destination at a URL, not claimed yet.

        Raises:
            ConfigError: what is there is to be replaced.
        """
        output = self.request.output
        if output.lower().startswith("http"):
            raise ConfigError(f"{output}: objects are written to s3://, gs:// and az://, not to a web server")
        if self.request.options.overwrite:
            raise ConfigError(
                f"{output}: overwrite is for local outputs: objects may be in use, and are not replaced; name another"
                " place, or remove what is there"
            )
        parts = [(source.path, source.documents, source.dialect, source.num_documents) for source in sources]
        decided = (self.plan, self.kinds, self.modes, self.tokenizer)
        made: UploadedDestination = _of_uploads("UploadedDestination")(
            output,
            _of_uploads("described_copy")(
                self.request.tool,
                self.kept,
                parts,
                [source.identity(file) for source in sources for file in source.files],
                hash_bytes(msgspec.json.encode(decided, order="sorted")),
            ),
            storage,
        )
        return made

    def destination(self, sources: Sequence[StoreSource]) -> Destination:
        """Return the local destination, not claimed yet."""
        files = [file for source in sources for file in source.files if isinstance(file, Path)]
        return Destination(self.request.output, overwrite=self.request.options.overwrite, sources=files)


def _of_uploads(name: str) -> Any:
    """Import what only destinations at URLs need."""
    return resolve_name(f"headrace.copying.uploaded:{name}")


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
    folders = tuple(_folder(name, pieces, sources, shards, kinds.format) for name, pieces in parts(sources))
    plan = CopyPlan(folders=folders, dtypes=kinds.dtypes, format=kinds.format)
    return CopyOrder(
        request=request,
        folder="" if all(is_url(path) or Path(path).is_absolute() for path in request.paths) else str(Path.cwd()),
        plan=plan,
        kinds=kinds,
        modes=tuple(sorted(modes)),
        tokenizer=tokenizer,
        notes=(*request.notes, *kinds.warnings, *mode_notes, *tokenizer_notes, *_plan_notes(request, sources, plan)),
        shards=shards,
    )


class CopiedElsewhere(Protocol):
    """What other processes have done of a copy."""

    def find(self, number: int, place: Path) -> MadeShard:
        """Put a shard, by its number among those of all folders, into a folder."""

    @property
    def inputs(self) -> Mapping[str, InputFile]:
        """The files of the sources that they have hashed, by their paths."""


def carry_out(
    order: CopyOrder, sources: Sequence[StoreSource], on_progress: OnProgress, elsewhere: CopiedElsewhere | None
) -> CopyReport:
    """Copy, and put the output into place.

    Args:
        order: what is copied.
        sources: the sources, opened and not yet read.
        on_progress: called after each chunk.
        elsewhere: what other processes have done, if the copy was planned.

    Raises:
        HeadraceError: as documented for the tools.
    """
    destination = order.destination(sources)
    copier = order.copier(sources, on_progress)
    tool, kept, find, known = order.request.tool, order.kept, None, dict[str, InputFile]()
    may_be_made = not order.request.options.overwrite
    if elsewhere is not None:
        find, known = elsewhere.find, dict(elsewhere.inputs)
        may_be_made = may_be_made or destination.was_committed
    found = copier.find_made(destination.path, tool=tool, request=kept, known=known) if may_be_made else None
    if found is not None:
        destination.clear()
        return _reported(order, sources, copier, *found, [_IS_MADE + " (--overwrite makes it again)"])
    destination.check()
    with destination:
        manifests, inputs = copier.run(
            destination.output, tool=tool, request=kept, tokenizer=order.tokenizer, find=find, known=known
        )
        destination.commit()
    return _reported(order, sources, copier, manifests, inputs, [])


def carry_out_at(
    order: CopyOrder,
    sources: Sequence[StoreSource],
    on_progress: OnProgress,
    destination: UploadedDestination,
    known: Mapping[str, InputFile],
) -> CopyReport:
    """Copy to a destination at a URL, where there may be shards already; see `carry_out`.

    Args:
        order: what is copied.
        sources: the sources, opened and not yet read.
        on_progress: called after each chunk.
        destination: the destination.
        known: the files of the sources that other processes have hashed, by their paths.
    """
    copier = order.copier(sources, on_progress)
    tool, kept = order.request.tool, order.kept
    found = copier.find_made(destination.path, tool=tool, request=kept, known=known)
    if found is not None:
        destination.clear()
        return _reported(order, sources, copier, *found, [_IS_MADE])
    destination.check()
    with destination:
        manifests, inputs = copier.run_uploaded(
            destination, tool=tool, request=kept, tokenizer=order.tokenizer, known=known
        )
    return _reported(order, sources, copier, manifests, inputs, [])


_IS_MADE: Final = "the output is already complete: it was made from the same sources and options, so nothing is done"


def _reported(
    order: CopyOrder,
    sources: Sequence[StoreSource],
    copier: Copier,
    manifests: Sequence[Manifest],
    inputs: Sequence[InputFile],
    more: Sequence[str],
) -> CopyReport:
    report, notes = planned(order, sources), [*order.notes, *more]
    if copier.inner_borders:
        notes.append(
            f"{order.plan.format} keeps no sequences within documents: the result lacks {copier.inner_borders:,} inner"
            " borders, but has all tokens"
        )
    stores = tuple(
        msgspec.structs.replace(
            store,
            shards=manifest.outputs,
            bytes=sum(file.size for shard in manifest.outputs for file in shard.files),
        )
        for store, manifest in zip(report.stores, manifests, strict=True)
    )
    return msgspec.structs.replace(report, stores=stores, inputs=tuple(inputs), warnings=tuple(notes), is_dry_run=False)


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
        having = [source.path for source, name in named if name in source.keys_with_modes]
        lacking = [source.path for source, name in named if name in source.keys_without_modes]
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


def _plan_notes(request: Request, sources: Sequence[StoreSource], plan: CopyPlan) -> list[str]:
    notes = [f"{folder.name} has no documents" for folder in plan.folders if folder.name and not folder.num_documents]
    most = FORMATS[plan.format].max_documents
    if request.options.shards == "single" and any(len(folder.shards) > 1 for folder in plan.folders):
        notes.append(f"a shard of the {plan.format} format holds at most {most:,} documents, so there are several")
    if "era" in request.asked and sources[0].has_inner_borders:
        notes.append(
            "borders are counted in documents, and no document is cut; Megatron counts sequences, and here documents"
            " do not have one sequence each, so its borders differ"
        )
    return notes


def planned(order: CopyOrder, sources: Sequence[StoreSource]) -> CopyReport:
    """Return the report of what an order would write."""
    request, plan, kinds = order.request, order.plan, order.kinds
    stores = []
    for folder in plan.folders:
        num_tokens = num_bytes = 0
        for piece in ranges_of(folder.shards):
            tokens = sources[piece.source].num_tokens(piece.first, piece.end)
            num_tokens += sum(tokens.values())
            for key, dtype in kinds.dtypes.items():
                num_bytes += tokens[kinds.names[piece.source][key]] * np.dtype(dtype).itemsize
        stores.append(
            CopiedStore(
                name=folder.name,
                path=os.fspath(path_at(request.output) / folder.name) if folder.name else request.output,
                documents=folder.num_documents,
                tokens=num_tokens,
                num_shards=len(folder.shards),
                bytes=num_bytes,
                shards=(),
            )
        )
    return CopyReport(
        tool=request.tool,
        output=request.output,
        is_dry_run=True,
        format=plan.format,
        keys=plan.dtypes,
        documents=sum(store.documents for store in stores),
        tokens=sum(store.tokens for store in stores),
        sources=request.paths,
        stores=tuple(stores),
        inputs=(),
        warnings=order.notes,
    )
