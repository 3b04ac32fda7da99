"""One run of a tool: sources opened, a plan made of what is asked for, shown or carried out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from headrace.copying.copier import Copier
from headrace.copying.destination import Destination
from headrace.copying.formats import FORMATS, FormatName
from headrace.copying.kinds import CopyKinds, choose_kinds
from headrace.copying.options import CopyOptions, Shards
from headrace.copying.plan import CopyPlan, FolderPlan, Piece, cut, limited, ranges_of, shard_borders
from headrace.copying.report import CopiedStore, CopyProgress, CopyReport
from headrace.copying.sources import Source, open_sources
from headrace.copying.tokenizers import common_tokenizer
from headrace.errors import ConfigError
from headrace.stores.arguments import IntArray

OnProgress = Callable[[CopyProgress], None]
Parts = Callable[[list[Source]], list[tuple[str, list[Piece]]]]
"""From the sources to the stores that are written: name and documents of each."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool asks for.

    Attributes:
        tool: its name.
        paths: of the sources, in order.
        output: the destination.
        asked: the tool's own options, for the manifest.
        options: those that all tools share.
        shards: what ``options.shards`` stands for where it is None.
        notes: what the tool has to say already.
    """

    tool: str
    paths: tuple[str, ...]
    output: str
    asked: dict[str, Any]
    options: CopyOptions
    shards: Shards
    notes: tuple[str, ...] = ()


def run(request: Request, parts: Parts, *, dry_run: bool, on_progress: OnProgress | None) -> CopyReport:
    """Carry a request out, or say what it would do.

    Args:
        request: as said.
        parts: cuts the sources.
        dry_run: write nothing.
        on_progress: called with every chunk.

    Raises:
        HeadraceError: as `headrace.merge`.
    """
    options = request.options
    with open_sources(request.paths, options) as sources:
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
        files = [file for source in sources for file in source.files]
        destination = Destination(request.output, overwrite=options.overwrite, sources=files)
        shards = request.shards if options.shards is None else options.shards
        folders = tuple(_folder(name, pieces, sources, shards, kinds.format) for name, pieces in parts(sources))
        plan = CopyPlan(folders=folders, dtypes=kinds.dtypes, format=kinds.format)
        notes = [*request.notes, *kinds.warnings, *mode_notes, *tokenizer_notes, *_plan_notes(request, sources, plan)]
        report = _planned(request, plan, kinds, sources, notes)
        copier = Copier(plan, kinds, sources, modes=modes, on_progress=on_progress or (lambda progress: None))
        kept = _kept(request, shards)
        found = None
        if not options.overwrite and not dry_run:
            found = copier.find_made(destination.path, tool=request.tool, request=kept)
        if found is None:
            destination.check()
        if dry_run:
            return report
        if found is not None:
            destination.clear()
            made, inputs = found
            notes.append(
                "the output is complete already: the same sources and options made it, and nothing is done (--overwrite"
                " makes it anew)"
            )
        else:
            with destination:
                made, inputs = copier.run(destination.output, tool=request.tool, request=kept, tokenizer=tokenizer)
                destination.commit()
        if copier.inner_borders:
            notes.append(
                f"{kinds.format} keeps no sequences within documents: {copier.inner_borders:,} inner borders are not in"
                " the result, all tokens are"
            )
        stores = tuple(
            msgspec.structs.replace(
                store,
                shards=manifest.outputs,
                bytes=sum(file.size for shard in manifest.outputs for file in shard.files),
            )
            for store, manifest in zip(report.stores, made, strict=True)
        )
        return msgspec.structs.replace(
            report, stores=stores, inputs=tuple(inputs), warnings=tuple(notes), is_dry_run=False
        )


def _kept(request: Request, shards: Shards) -> dict[str, Any]:
    """What the manifest keeps: all that decides bytes, but for what it says of each source."""
    options = msgspec.to_builtins(request.options)
    for name in ("overwrite", "documents", "dialect"):
        options.pop(name)
    return {**request.asked, **options, "shards": shards}


def _folder(
    name: str, pieces: list[Piece], sources: Sequence[Source], shards: Shards, format_name: FormatName
) -> FolderPlan:
    """The shards of one store; there is at least one, be it empty."""
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


def _modes(sources: Sequence[Source], kinds: CopyKinds, options: CopyOptions) -> tuple[frozenset[str], list[str]]:
    """The keys that are written with modes, and what to say of those that lose them."""
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
            raise ConfigError(f"{having[0]}: has sequences with modes, and {why}; --drop-modes leaves them out")
        notes.append(f"the modes of the sequences in {', '.join(having)} are left out: {why}")
    return frozenset(kept), notes


def _plan_notes(request: Request, sources: Sequence[Source], plan: CopyPlan) -> list[str]:
    notes = [f"{folder.name} has no documents" for folder in plan.folders if folder.name and not folder.num_documents]
    most = FORMATS[plan.format].max_documents
    if request.options.shards == "single" and any(len(folder.shards) > 1 for folder in plan.folders):
        notes.append(f"a shard of the {plan.format} format holds at most {most:,} documents, so there are several")
    if "era" in request.asked and sources[0].has_inner_borders:
        notes.append(
            "borders are counted in documents, and no document is cut; Megatron counts sequences, which are not"
            " documents one to one here, so its borders differ"
        )
    return notes


def _planned(
    request: Request, plan: CopyPlan, kinds: CopyKinds, sources: Sequence[Source], notes: Sequence[str]
) -> CopyReport:
    """What would be written."""
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
                path=os.fspath(Path(request.output) / folder.name) if folder.name else request.output,
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
        warnings=tuple(notes),
    )
