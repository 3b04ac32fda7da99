"""The output of a run: each shard, which one task joins of the documents of parts; and at the end the manifests.

Which documents make up a shard says an order of the cut, see `cutting`. A shard is written in one go, whatever its
layout.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from headrace.engine.job import TaskResult
from headrace.io import Reader, as_read_back, file_sum, output_errors
from headrace.preparing.backends import REFERENCE
from headrace.preparing.backends.reference import installed_version
from headrace.preparing.columns import Column, Row, Rows, keep_rows, stored
from headrace.preparing.cutting import CutResult
from headrace.preparing.filters import function_fingerprint
from headrace.preparing.ledger import check_counts, unbalanced
from headrace.preparing.outputs.folder import write_manifests
from headrace.preparing.parts import DocumentPart, Range, part_name, read_saved, read_values, values_name
from headrace.preparing.run_plan import JoinTask, RunPlan, Setup
from headrace.stores import (
    BackendInfo,
    DocumentLedger,
    Hdf5Writer,
    IndexedWriter,
    InputFile,
    JsonlWriter,
    KeyedWriter,
    Ledger,
    Manifest,
    OutputShard,
    SampleLedger,
    TokenizerInfo,
    TokenLedger,
)

STEP_BYTES = 16 << 20
"""Values that are in memory at a time."""


class Joined(msgspec.Struct, frozen=True):
    """What a receipt says of a shard."""

    outputs: tuple[OutputShard, ...]
    """As the manifest of its folder lists it: one entry for each key of an indexed shard, else one for all keys."""

    supervised: int
    """Trained tokens: the ones in its masks."""


def join(setup: Setup, task: JoinTask, using: Reader, tell: Callable[[Mapping[str, int]], None]) -> TaskResult:
    """Write a shard, by its name in the output, and return what its receipt says, with a `Joined`.

    Raises:
        OutputError: the system refuses a write, or a part is damaged.
        StoreError: a part cannot be read.
        MissingExtraError: h5py is not installed.
    """
    ranges = read_saved(using, f"{setup.work}/{task.order}", tuple[Range, ...])
    columns = stored(setup.plan.columns)
    folder = Path(setup.results, task.folder)
    with output_errors(folder, "make the folder"):
        folder.mkdir(parents=True, exist_ok=True)
    rows = _numbered(columns, _rows(setup, columns, ranges, using))
    supervised = num_bytes = 0

    def counted(rows: Iterator[Rows]) -> Iterator[Rows]:
        nonlocal supervised, num_bytes
        for some in rows:
            yield some
            for column, (values, _) in zip(columns, some, strict=True):
                supervised += int(np.count_nonzero(values)) if column.kind == "mask" else 0
                num_bytes += values.nbytes
            tell({"bytes": num_bytes})

    outputs = _written(setup.plan.options.output.format, columns, folder, task, counted(rows))
    is_mask = {column.key: column.kind == "mask" for column in columns}
    for number, shard in enumerate(outputs):
        keys = {key: msgspec.structs.replace(info, mask=is_mask[key]) for key, info in shard.keys.items()}
        outputs[number] = msgspec.structs.replace(shard, keys=keys)
    names = tuple(Path(task.folder, name).as_posix() for shard in outputs for name in shard.file_names())
    counts = {"bytes": num_bytes, "documents": outputs[0].documents}
    return TaskResult(files=names, counts=counts, value=msgspec.to_builtins(Joined(tuple(outputs), supervised)))


def _rows(setup: Setup, columns: Sequence[Column], ranges: Sequence[Range], using: Reader) -> Iterator[Rows]:
    """Yield the documents in their order, about `STEP_BYTES` at a time."""
    for one in ranges:
        folder = f"{setup.work}/{one.folder}"
        place = f"{folder}/{part_name(one.task_index)}"
        part = read_saved(using, place, DocumentPart)
        dtypes: list[np.dtype[Any]] = [np.dtype(column.dtype) for column in columns]
        lengths = [part.lengths(number) for number in range(len(columns))]
        ends = [np.concatenate(([0], np.cumsum(some))) for some in lengths]
        sizes = np.sum([some * dtype.itemsize for some, dtype in zip(ends, dtypes, strict=True)], axis=0)
        is_kept = np.ones(part.info.num_documents, np.bool_)
        if one.kept is not None:
            is_kept[:] = False
            is_kept[np.frombuffer(one.kept, "<u4")] = True
        first = one.first
        while first < one.last:
            last = int(np.searchsorted(sizes, sizes[first] + STEP_BYTES, side="right")) - 1
            last = min(max(last, first + 1), one.last)
            rows: list[Row] = []
            for number, (dtype, some, end) in enumerate(zip(dtypes, lengths, ends, strict=True)):
                where = f"{folder}/{values_name(one.task_index, number)}"
                values = read_values(using, where, part.info.hashes[number], dtype, int(end[first]), int(end[last]))
                rows.append((values, some[first:last]))
            keep = is_kept[first:last]
            yield rows if keep.all() else [(keep_rows(*row, keep), row[1][keep]) for row in rows]
            first = last
        for name in (part_name(one.task_index), *(values_name(one.task_index, at) for at in range(len(columns)))):
            using.release(f"{folder}/{name}")  # so that its space is free once it is removed


def _numbered(columns: Sequence[Column], rows: Iterator[Rows]) -> Iterator[Rows]:
    """Number positions through the shard."""
    first = [0] * len(columns)
    for some in rows:
        numbered = list(some)
        for number, (column, (values, lengths)) in enumerate(zip(columns, some, strict=True)):
            if column.kind == "positions":
                numbered[number] = np.arange(first[number], first[number] + len(values), dtype=np.int64), lengths
            first[number] += len(values)
        yield numbered


def _written(
    layout: str, columns: Sequence[Column], folder: Path, task: JoinTask, rows: Iterator[Rows]
) -> list[OutputShard]:
    """Write the documents; return the entries of the shard in the manifest of its folder.

    A single shard of the indexed layout is called ``text_document``, as by Megatron's tool; if there are several, each
    has its number after that.
    """
    if layout == "indexed":
        with contextlib.ExitStack() as stack:
            name = "document" if task.is_single else f"document_{task.number:05d}"
            writers = [
                stack.enter_context(
                    IndexedWriter(folder / f"{column.key}_{name}", dtype=column.dtype, ids=column.kind == "ids")
                )
                for column in columns
            ]
            for some in rows:
                for pair, row in zip(writers, some, strict=True):
                    pair.add_documents(*row)
            shards = [pair.finish() for pair in writers]
        return [OutputShard.of(shard, folder, key=column.key) for shard, column in zip(shards, columns, strict=True)]
    dtypes = {column.key: column.dtype for column in columns}
    values = [column.key for column in columns if column.kind != "ids"]
    made: KeyedWriter | Hdf5Writer | JsonlWriter
    if layout == "keyed":
        made = KeyedWriter(folder / f"shard_{task.number:04d}", dtypes=dtypes, values=values)
    elif layout == "hdf5":
        made = Hdf5Writer(folder / f"data_{task.number:04d}.h5", dtypes=dtypes, values=values)
    else:
        made = JsonlWriter(folder / f"data_{task.number:04d}.jsonl", dtypes=dtypes, values=values)
    with made as writer:
        for some in rows:
            tokens, lengths = (
                {column.key: row[at] for column, row in zip(columns, some, strict=True)} for at in (0, 1)
            )
            writer.add_documents(tokens, lengths)
        return [OutputShard.of(writer.finish(), folder)]


DOMAIN_OPTION = "domain"
"""The key in the ``options`` of a domain's manifest that tells which documents of the whole store it holds."""


def build_manifest(
    plan: RunPlan, cut: CutResult, joined: Sequence[Joined], from_task_by: str, work: Path
) -> tuple[Manifest, dict[str, str]]:
    """Balance the ledger, and write the manifests into the work folder.

    The series of a domain lies in a folder with its name and a manifest of its own. The manifest of the whole store
    lists the hashes of those of the domains.

    Args:
        plan: the plan.
        cut: what all parts add up to.
        joined: the shards, in the order of ``cut``.
        from_task_by: why ``tokenizers`` encodes from some task on; empty if it does not.
        work: the work folder.

    Returns:
        The manifest of the whole store; and the files of the manifests in the work folder, with their names in the
        output, the one of the whole store last.

    Raises:
        HeadraceError: the ledger does not balance: something was lost or added on the way.
    """
    ledger = cut.ledger
    series: list[list[OutputShard]] = [[] for _ in range(cut.num_series)]
    supervised = [0] * cut.num_series
    for shard, made in sorted(zip(cut.shards, joined, strict=True), key=lambda pair: (pair[0].series, pair[0].number)):
        series[shard.series] += made.outputs
        supervised[shard.series] += made.supervised
    below = [f"{name}/" for name in cut.domains] or [""]
    outputs = [
        msgspec.structs.replace(shard, prefix=folder + shard.prefix)
        for folder, shards in zip(below, series, strict=True)
        for shard in shards
    ]
    _check_parallel(plan, outputs)
    choice = plan.choice
    manifest = Manifest(
        inputs=tuple(
            InputFile(path=file.name, format=file.format, size=file.size_bytes, xxh3_128=digest)
            for file, digest in zip(plan.files, ledger.hashes, strict=True)
        ),
        options=described_options(plan),
        tokenizer=TokenizerInfo(
            source=plan.tokenizer.name,
            xxh3_128=plan.tokenizer.fingerprint,
            vocab_size=plan.tokenizer.vocab_size,
            eod=plan.eod,
            bos=plan.bos,
            eod_text=plan.eod_text,
            bos_text=plan.bos_text,
            library_version=installed_version(REFERENCE),
        ),
        backend=BackendInfo(
            name=choice.name,
            version=choice.version,
            why=dict(choice.reasons),
            proved={"first_documents": plan.first_documents, "sampled_documents": ledger.tally.proved},
            routed=ledger.tally.routed,
            routes=choice.routes,
            from_task_by=from_task_by,
        ),
        outputs=tuple(outputs),
        ledger=ledger.balance(plan.files, sum(supervised)),
        errors=tuple(ledger.errors),
        provenance=cut.origins,
    )
    check_counts(manifest, "the store")
    domains, first = dict[str, Manifest](), 0
    for name, shards, trained in zip(cut.domains, series, supervised, strict=False):
        domains[name] = own = _of_domain(plan, manifest, name, first, shards, trained)
        first += own.ledger.documents.kept
    _, of_domains = write_manifests(work, domains)
    if of_domains:
        beside = tuple(msgspec.structs.replace(file_sum(work / path), name=name) for path, name in of_domains.items())
        manifest = msgspec.structs.replace(manifest, beside=beside)
    [manifest], last = write_manifests(work, {"": manifest})
    return manifest, of_domains | last


def _of_domain(
    plan: RunPlan, manifest: Manifest, name: str, first: int, shards: Sequence[OutputShard], supervised: int
) -> Manifest:
    """The manifest in the folder of a domain, so that it opens as a separate store.

    It tells which documents of the whole store the domain holds. The table of origins lies only in the whole store.
    """
    num_documents = sum(shard.documents for shard in shards if plan.keys[0] in shard.keys)
    counts = _check_parallel(plan, shards)
    return msgspec.structs.replace(
        manifest,
        inputs=(),
        options={**manifest.options, DOMAIN_OPTION: {"name": name, "first_document": first}},
        outputs=tuple(shards),
        ledger=Ledger(
            documents=DocumentLedger(read=num_documents, kept=num_documents),
            tokens=TokenLedger(made=sum(counts.values()), kept=sum(counts.values())),
            samples=SampleLedger(
                keys={key: TokenLedger(made=count, kept=count) for key, count in counts.items()},
                supervised=supervised,
            ),
        ),
        errors=(),
        provenance=(),
        xxh3_128="",
    )


def _check_parallel(plan: RunPlan, outputs: Sequence[OutputShard]) -> dict[str, int]:
    """The number of ids in the store for each key.

    Raises:
        HeadraceError: a column does not have one value for each id of the key that it is parallel to.
    """
    values: Counter[str] = Counter()
    for shard in outputs:
        values.update({key: info.tokens for key, info in shard.keys.items()})
    for column in plan.columns:
        if column.parallel_to and values[column.key] != values[column.parallel_to]:
            raise unbalanced(
                f"{column.key!r} has {values[column.key]:,} values, "
                f"{column.parallel_to!r} {values[column.parallel_to]:,}"
            )
    return {column.key: values[column.key] for column in plan.columns if column.kind == "ids"}


def described_options(plan: RunPlan) -> dict[str, Any]:
    """The options of a run as its manifest lists them."""
    options = plan.options
    function = options.filters.function
    # The code of the function may change later.
    code = {} if function is None else {"filter": function_fingerprint(function)}
    names = ("records", "tokens", "filters", "deduplicate", "output", "errors")
    kept = {name: as_read_back(getattr(options, name)) for name in names}
    if plan.recipe is not None:
        del kept["tokens"]  # the recipe says them
        kept = {**plan.described, **kept}
    return {**kept, **code}
