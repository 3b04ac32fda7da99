"""The three tools `merge`, `convert` and `split`.

Each of them makes a `Request`. `run` opens the sources, makes a plan, and carries it out, or only reports it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from headrace.copying.copier import CopiedStore, Copier, CopyProgress, CopyReport
from headrace.copying.destination import Destination
from headrace.copying.formats import (
    FORMATS,
    CopyKinds,
    CopyOptions,
    FormatName,
    Shards,
    SortBy,
    check_sort_by,
    choose_kinds,
)
from headrace.copying.plan import (
    CopyPlan,
    DocumentRange,
    FolderPlan,
    cut,
    limited,
    named_split,
    part_borders,
    ranges_of,
    shard_borders,
    whole,
)
from headrace.copying.sources import StoreSource, expand, open_sources
from headrace.errors import ConfigError, StoreError
from headrace.io import check_local, safe_relative
from headrace.stores import Manifest, TokenizerInfo
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


def run(request: Request, parts: Parts, *, dry_run: bool, on_progress: OnProgress | None) -> CopyReport:
    """Carry out a request, or report what it would do.

    Args:
        request: what the tool asks for.
        parts: cuts the sources into stores.
        dry_run: whether to write nothing.
        on_progress: called after each chunk.

    Raises:
        HeadraceError: the errors of `headrace.merge`.
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
            manifests, inputs = found
            notes.append(
                "the output is already complete: it was made from the same sources and options, so nothing is done"
                " (--overwrite makes it again)"
            )
        else:
            with destination:
                manifests, inputs = copier.run(destination.output, tool=request.tool, request=kept, tokenizer=tokenizer)
                destination.commit()
        if copier.inner_borders:
            notes.append(
                f"{kinds.format} keeps no sequences within documents: the result lacks {copier.inner_borders:,} inner"
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
        return msgspec.structs.replace(
            report, stores=stores, inputs=tuple(inputs), warnings=tuple(notes), is_dry_run=False
        )


def _kept(request: Request, shards: Shards) -> dict[str, Any]:
    """Return the options that the manifest keeps: all that decide bytes, except those that it keeps for each source."""
    options = msgspec.to_builtins(request.options)
    for name in ("overwrite", "documents", "dialect"):
        options.pop(name)
    return {**request.asked, **options, "shards": shards}


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


def _planned(
    request: Request, plan: CopyPlan, kinds: CopyKinds, sources: Sequence[StoreSource], notes: Sequence[str]
) -> CopyReport:
    """Return the report of what the plan would write."""
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


Place = str | os.PathLike[str]

SPLIT_NAMES = ("train", "valid", "test")


def merge(
    sources: Sequence[Place],
    output: Place,
    *,
    sort_by: SortBy = "given",
    options: CopyOptions | None = None,
    dry_run: bool = False,
    on_progress: OnProgress | None = None,
) -> CopyReport:
    """Join stores: all documents of the first, then all of the second, and so on.

    Pairs of ``.bin`` and ``.idx`` are merged into one pair, byte for byte as Megatron's
    ``IndexedDatasetBuilder.add_index`` and ``tools/merge_datasets.py`` write it.

    Args:
        sources: stores, as for `headrace.open`; a folder of pairs without a manifest stands for all its pairs.
        output: a new or empty folder for shards and ``headrace.json``; it appears whole or not at all.
        sort_by: ``"given"`` keeps the order of the sources (the natural order within a folder of pairs), ``"name"``
            and ``"natural"`` sort their paths.
        options: all other options; None uses their defaults.
        dry_run: only report what would be written.
        on_progress: called after each chunk of about a million tokens.

    Returns:
        What was written, or would be written.

    Raises:
        ConfigError: the sources do not fit together, or the format cannot hold them; the message says what to do.
        InputError: a value does not fit into the dtype that was asked for.
        StoreError: a source is missing or damaged, or does not match its manifest.
        OutputError: the destination is not empty, or a file cannot be written.

    Example:
        >>> report = headrace.merge(["stores/web", "stores/code"], "stores/all")
        >>> report.documents == len(headrace.open("stores/all"))
        True
    """
    check_local(sources, output)
    check_sort_by(sort_by)
    if isinstance(sources, str | os.PathLike) or not sources:
        raise ConfigError("merge needs a list of at least one store")
    paths, notes = expand(sources, sort_by)
    request = Request(
        tool="merge",
        paths=tuple(paths),
        output=os.fspath(output),
        asked={"sort_by": sort_by},
        options=options or CopyOptions(),
        shards="single",
        notes=tuple(notes),
    )
    return run(request, _joined, dry_run=dry_run, on_progress=on_progress)


def convert(
    source: Place,
    output: Place,
    *,
    format: FormatName,  # noqa: A002 - the field's own name
    options: CopyOptions | None = None,
    dry_run: bool = False,
    on_progress: OnProgress | None = None,
) -> CopyReport:
    """Write a store in another format, with another dtype or with other shards. By default the shards are kept.

    Args:
        source: a store, as for `headrace.open`.
        output: as for `merge`.
        format: ``"indexed"`` or ``"keyed"``.
        options: as for `merge`.
        dry_run: as for `merge`.
        on_progress: as for `merge`.

    Returns:
        What was written, or would be written.

    Raises:
        ConfigError: the format cannot hold the store; the message says what to do.
        InputError, StoreError, OutputError: as for `merge`.

    Example:
        >>> report = headrace.convert("stores/web", "stores/keyed", format="keyed")
        >>> report.format, report.documents == len(headrace.open("stores/web"))
        ('keyed', True)
    """
    check_local(source, output)
    given = options or CopyOptions()
    if given.format not in (None, format):
        raise ConfigError(f"format={format!r}, but the options say {given.format!r}")
    request = Request(
        tool="convert",
        paths=(os.fspath(source),),
        output=os.fspath(output),
        asked={},
        options=msgspec.structs.replace(given, format=format),
        shards="source",
    )
    return run(request, _joined, dry_run=dry_run, on_progress=on_progress)


def split(
    source: Place,
    output: Place,
    *,
    into: str | int,
    era: Literal["core", "legacy"] = "core",
    names: Sequence[str] | None = None,
    options: CopyOptions | None = None,
    dry_run: bool = False,
    on_progress: OnProgress | None = None,
) -> CopyReport:
    """Cut a store into several, each in its own folder below the output. No document is cut.

    Args:
        source: a store, as for `headrace.open`.
        output: as for `merge`.
        into: shares of training, validation and test in the form of Megatron's ``--split``, such as ``"969,30,1"``,
            counted in documents; or a number of parts with equal numbers of tokens, as near as whole documents allow.
        era: version of Megatron, which decides how borders are rounded; see `headrace.plan.megatron.split_ranges`.
        names: names of the folders; by default ``train``, ``valid`` and ``test``, or ``part_00000``, ``part_00001``
            and so on.
        options: as for `merge`.
        dry_run: as for `merge`.
        on_progress: as for `merge`.

    Returns:
        What was written, or would be written.

    Raises:
        ConfigError: the split or a name is invalid, or the format cannot hold the store.
        InputError, StoreError, OutputError: as for `merge`.

    Example:
        >>> report = headrace.split("stores/web", "stores/halves", into=2)
        >>> [store.name for store in report.stores]
        ['part_00000', 'part_00001']
    """
    check_local(source, output)
    if isinstance(into, int) and into < 1:
        raise ConfigError(f"{into} parts: at least one is needed")
    if names is None:
        names = [f"part_{part:05d}" for part in range(into)] if isinstance(into, int) else SPLIT_NAMES
    if isinstance(into, int) and len(names) != into:
        raise ConfigError(f"{len(names)} names are given for {into} parts; give one name for each")
    _check_names(names)
    chosen = tuple(names)

    def parts(opened: list[StoreSource]) -> list[tuple[str, list[DocumentRange]]]:
        [store] = opened
        count = store.num_documents
        if isinstance(into, str):
            found = named_split(into, count, era=era, names=chosen)
            return [(name, [DocumentRange(0, first, end - first)]) for name, first, end in found]
        num_tokens = sum(store.num_tokens(0, count).values())
        borders = part_borders(store.lengths(0, count), into, num_documents=count, num_tokens=num_tokens)
        return list(zip(chosen, cut(whole([count]), borders), strict=True))

    request = Request(
        tool="split",
        paths=(os.fspath(source),),
        output=os.fspath(output),
        asked={"into": into, "names": list(chosen), **({"era": era} if isinstance(into, str) else {})},
        options=options or CopyOptions(),
        shards="single",
    )
    return run(request, parts, dry_run=dry_run, on_progress=on_progress)


def _joined(opened: list[StoreSource]) -> list[tuple[str, list[DocumentRange]]]:
    return [("", whole([source.num_documents for source in opened]))]


def _check_names(names: Sequence[str]) -> None:
    for name in names:
        try:
            is_plain = "/" not in safe_relative(name) and not name.startswith(".")
        except StoreError:
            is_plain = False
        if not is_plain:
            raise ConfigError(f"{name!r} cannot name a folder below the output")
    if len(set(names)) < len(names):
        raise ConfigError(f"two parts have the same name: {', '.join(names)}")
