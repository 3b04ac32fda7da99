"""A copy as a `Job` of one phase, ``copy``: a task for each shard that is written, and others that hash files.

A shard of the output is written whole by one task, which reads it back and compares it with its sources; at the end it
is only moved. One shard is one task, however large. A file of a source is hashed by the task that copies all its
documents; if several tasks copy them, by a task of its own.

Write one shard of a copy and read it back, and say in manifests what all shards hold.
"""

from __future__ import annotations

import bisect
import copy
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import xxhash

from headrace.copying.formats import FORMATS, Target
from headrace.copying.orders import CopyOrder, CopyReport, planned, reported
from headrace.copying.plan import OPTION, CopyEntry, DocumentRange, FolderPlan, ranges_of
from headrace.copying.rows import DocumentRows, cast
from headrace.copying.sources import CHUNK_DOCUMENTS, StoreSource, open_sources
from headrace.engine.job import Do, Phase, Show, TaskResult, Tell
from headrace.engine.tasks import PlannedJob
from headrace.engine.work_folder import WORK_NAME
from headrace.errors import InputError, OutputError, StoreError
from headrace.io import AnyPath, Reader, as_read_back, hash_bytes, output_errors, path_at, path_in
from headrace.io.finding import status_of
from headrace.io.remote import Status
from headrace.preparing.outputs.folder import OutputFolder, output_at, write_manifests
from headrace.stores import (
    MANIFEST_NAME,
    DocumentLedger,
    InputFile,
    Ledger,
    Manifest,
    OutputShard,
    SampleLedger,
    TokenLedger,
    encoded_manifest,
    open_keys,
)
from headrace.stores.arguments import IntArray


class MadeShard(msgspec.Struct, kw_only=True):
    """What is known of one shard that was written."""

    entries: list[OutputShard] = []
    """What the manifest lists: a shard of all keys, or one for each."""

    num_empty: int = 0
    supervised: int = 0
    """Number of ones in the masks, if the sources say which keys are masks."""

    inner_borders: int = 0
    """Number of borders between sequences within documents that the format cannot keep."""


class Copier:
    """Writes shards of a copy.

    Args:
        order: everything that decides the copy.
        sources: its sources, opened.
        tell: called after each chunk.
    """

    def __init__(self, order: CopyOrder, sources: Sequence[StoreSource], tell: Tell) -> None:
        self._order = order
        self._sources = sources
        self._tell = tell
        self._format = FORMATS[order.kinds.format]
        self._dtypes: dict[str, np.dtype[Any]] = {
            key: np.dtype(name).newbyteorder("<") for key, name in order.kinds.dtypes.items()
        }
        self._hashers = {key: xxhash.xxh3_128() for key in self._dtypes}
        """Of the lengths of all documents of each key, as they are read from the sources."""
        self._counts = {"bytes": 0, "documents": 0, "tokens": 0}

    def write(self, place: Path, folder: FolderPlan, number: int) -> tuple[MadeShard, dict[str, int]]:
        """Write one shard of a store into a folder of its own, read all of it, and compare it with its sources.

        Returns:
            What is known of the shard, and its bytes, documents and tokens of all keys.

        Raises:
            InputError: a value does not fit into its dtype.
            StoreError: a source is damaged.
            OutputError: a file cannot be written, or what is read back differs from what was written.
        """
        made = MadeShard()
        target = self._format(place, number, len(folder.shards), self._dtypes, frozenset(self._order.modes))
        try:
            for piece in folder.shards[number]:
                self._copy(piece, target, made)
            made.entries = list(map(self._listed, target.finish(place)))
        except BaseException:
            target.discard()
            raise
        alone = msgspec.structs.replace(folder, shards=(folder.shards[number],))
        manifest = place / MANIFEST_NAME
        with output_errors(manifest, "write"):
            manifest.write_bytes(encoded_manifest(manifest_of(self._order, alone, [made], [])))
        self._check(place, alone)
        with output_errors(place, "clear"):
            manifest.unlink()
        return made, self._counts

    def _copy(self, piece: DocumentRange, target: Target, made: MadeShard) -> None:
        order, source = self._order, self._sources[piece.source]
        names = order.kinds.names[piece.source]
        for first, end, found in source.chunks(piece.first, piece.end):
            rows = {}
            total = np.zeros(end - first, np.int64)
            num_ids = np.zeros(end - first, np.int64)
            for key, dtype in self._dtypes.items():
                rows[key] = self._fitted(found[names[key]], key, dtype, source, first, made)
                self._hashers[key].update(_plain(rows[key].lengths).data)
                total += rows[key].lengths
                self._counts["bytes"] += len(rows[key].tokens) * dtype.itemsize
                if not order.has_samples or key not in order.values:
                    num_ids += rows[key].lengths
                if key in order.masks:
                    made.supervised += int(np.count_nonzero(rows[key].tokens))
            target.add(rows)
            made.num_empty += int(np.count_nonzero(num_ids == 0))
            self._counts["documents"] += end - first
            self._counts["tokens"] += int(total.sum())
            self._tell(dict(self._counts))

    def _fitted(
        self, rows: DocumentRows, key: str, dtype: np.dtype[Any], source: StoreSource, first: int, made: MadeShard
    ) -> DocumentRows:
        rows = cast(rows, dtype, f"{source.path}: key {key!r}", first)
        if not self._format.sequences:
            made.inner_borders += len(rows.sequences) - int(np.count_nonzero(rows.lengths))
        return rows if key in self._order.modes else rows._replace(modes=np.zeros(0, np.int8))

    def _listed(self, shard: OutputShard) -> OutputShard:
        """Return the entry for the manifest, which marks ids and masks as the manifests of the sources do."""
        keys = {
            key: msgspec.structs.replace(info, ids=key not in self._order.values, mask=key in self._order.masks)
            for key, info in shard.keys.items()
        }
        return msgspec.structs.replace(shard, keys=keys)

    def _check(self, place: Path, folder: FolderPlan) -> None:
        """Open the store, read all its bytes, and compare the lengths of its documents with those of the sources."""
        stores = open_keys(place, reader="pread")
        try:
            for number, (key, store) in enumerate(stores.items()):
                # A shard of the keyed format checks all its keys at once.
                if number == 0 or self._order.kinds.format == "indexed":
                    for problem in store.check():
                        raise OutputError(
                            f"what is read back differs from what was written: {problem}; this shard is not kept"
                        )
                hasher = xxhash.xxh3_128()
                for chunk in store.length_chunks(CHUNK_DOCUMENTS):
                    hasher.update(_plain(chunk).data)
                if (hasher.digest(), store.num_documents) != (self._hashers[key].digest(), folder.num_documents):
                    raise OutputError(
                        f"{place}: key {key!r}: the documents that were written differ from those of the sources;"
                        " they are not kept. This is a defect of Headrace or of the memory: please report it"
                    )
        finally:
            for store in stores.values():
                store.close()


def options_of(order: CopyOrder, folder: FolderPlan) -> dict[str, Any]:
    """Return the options that the manifest of a store of the copy has."""
    request = order.kept
    entry = CopyEntry(
        tool=order.request.tool,
        request={**request, "part": folder.name} if folder.name else request,
        sources=order.sources,
        ranges=tuple(map(msgspec.structs.astuple, ranges_of(folder.shards))),
    )
    return {OPTION: as_read_back(entry)}


def manifest_of(
    order: CopyOrder, folder: FolderPlan, shards: Sequence[MadeShard], inputs: Sequence[InputFile]
) -> Manifest:
    """Return the manifest of a store of the copy, given its shards and the files of all sources."""
    return Manifest(
        inputs=tuple(inputs),
        options=options_of(order, folder),
        tokenizer=order.tokenizer,
        outputs=tuple(entry for shard in shards for entry in shard.entries),
        ledger=_ledger(order, folder, shards),
    )


def _ledger(order: CopyOrder, folder: FolderPlan, shards: Sequence[MadeShard]) -> Ledger:
    """Make the ledger. Tokens are all values, or only ids if a recipe made one of the sources."""
    counts = {key: 0 for key in order.kinds.dtypes if not order.has_samples or key not in order.values}
    infos = (item for shard in shards for entry in shard.entries for item in entry.keys.items())
    for key, info in infos:
        if key in counts:
            counts[key] += info.tokens
    total, num_documents = sum(counts.values()), folder.num_documents
    samples = SampleLedger(
        keys={key: TokenLedger(made=count, kept=count) for key, count in counts.items()},
        supervised=sum(shard.supervised for shard in shards),
    )
    return Ledger(
        documents=DocumentLedger(read=num_documents, kept=num_documents, empty=sum(one.num_empty for one in shards)),
        tokens=TokenLedger(made=total, kept=total),
        samples=samples if order.has_samples else None,
    )


def _plain(chunk: IntArray) -> IntArray:
    return np.ascontiguousarray(chunk, np.int64)


KIND: Final = "copy"
COMPLETED: Final = "another process has completed the copy"


class CopiedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of a source, as it was when the copy was planned."""

    source: int
    path: str
    status: Status
    task: int
    """Index of the task that hashes it."""


class CopyTask(msgspec.Struct, frozen=True):
    """Write this shard of the store ``folder``, if there is one, and hash files."""

    task_index: int
    folder: int = 0
    shard: int | None = None

    @property
    def label(self) -> str:
        """What an error calls the task."""
        return "hashes of files" if self.shard is None else f"shard {self.shard} of store {self.folder}"


class CopyJobPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of the job."""

    order: CopyOrder
    files: tuple[CopiedFile, ...]
    total_bytes: int

    @property
    def phase(self) -> Phase:
        """The only phase. Its name tells it from that of another plan."""
        name = f"copy-{hash_bytes(msgspec.json.encode(self))[:8]}"
        return Phase(name=name, num_tasks=len(self.tasks), total_bytes=self.total_bytes)

    @property
    def tasks(self) -> list[CopyTask]:
        """All tasks, see `TaskPlan`: those of the shards, in their order, and then those that only hash files."""
        found: list[CopyTask] = []
        for folder, plan in enumerate(self.order.outputs):
            found += [CopyTask(len(found) + shard, folder, shard) for shard in range(len(plan.shards))]
        return [*found, *(CopyTask(at) for at in sorted({file.task for file in self.files if file.task >= len(found)}))]

    @contextmanager
    def doing(self, given: Any) -> Iterator[Do]:
        """See `TaskPlan`.

        Raises:
            StoreError: a source cannot be read, or has changed.
        """
        order, using = self.order, given or "mmap"
        self.check_files(using)
        hashed: dict[int, list[CopiedFile]] = {}
        for file in self.files:
            hashed.setdefault(file.task, []).append(file)
        with open_sources(order.request.paths, order.request.options, order.folder, using) as sources:

            def do(task: CopyTask, results: Path, tell: Tell) -> TaskResult:
                mine = hashed.get(task.task_index, ())
                made, found = None, TaskResult(counts={"bytes": sum(file.status.size for file in mine)})
                if task.shard is not None:
                    copier, folder = Copier(order, sources, tell), order.outputs[task.folder]
                    found, made = _written(copier, folder, task.shard, results / f"shard-{task.task_index:06d}")
                inputs = tuple(sources[file.source].input(self.path_of(file, using)) for file in mine)
                value = msgspec.to_builtins(ShardResult(made=made, inputs=inputs))
                return msgspec.structs.replace(found, value=value)

            yield do

    def check_files(self, using: str | Reader) -> None:
        """Refuse sources that have changed.

        Raises:
            StoreError: a file is missing here, or is another one than when the copy was planned.
        """
        using = copy.copy(using)  # which has looked up nothing
        for file in self.files:
            path = self.path_of(file, using)
            try:
                found = status_of(path)
            except OSError as error:
                raise StoreError(f"{path}: cannot be read: {error.strerror or error}") from error
            if not found.is_same(file.status):
                output = path_at(self.order.request.output)
                what = output / WORK_NAME if isinstance(output, Path) else f"what is below {output}"
                raise StoreError(f"{path}: the file changed since the copy was planned; remove {what}, and plan again")

    @property
    def described(self) -> dict[str, Any]:
        """What decides the bytes of the copy, see `OutputFolder.begin`."""
        order, request = self.order, self.order.request
        options = msgspec.to_builtins(msgspec.structs.replace(request.options, overwrite=False))
        return {
            "tool": request.tool,
            "folder": order.folder,
            "sources": request.paths,
            **request.asked,
            **options,
            "files": msgspec.to_builtins(self.files),
        }

    def path_of(self, file: CopiedFile, using: str | Reader) -> AnyPath:
        """Return where a file of a source is."""
        return path_in(self.order.folder, file.path, using)


def plan_of(order: CopyOrder, sources: Sequence[StoreSource], output: AnyPath) -> CopyJobPlan:
    """Return the plan of a copy.

    Args:
        order: what is copied.
        sources: the sources, opened.
        output: the destination, by the path that every process of this host would give it.
    """
    order = msgspec.structs.replace(order, request=msgspec.structs.replace(order.request, output=str(output)))
    shards = [shard for folder in order.outputs for shard in folder.shards]
    pieces: dict[int, list[tuple[int, int, int]]] = {}
    for number, shard in enumerate(shards):
        for piece in ranges_of([shard]):
            pieces.setdefault(piece.source, []).append((piece.first, piece.end, number))
    num_tasks, total_bytes = len(shards), sum(store.bytes for store in planned(order, sources).stores)
    files = []
    for number, source in enumerate(sources):
        owners = _owners(source, sorted(pieces.get(number, ())))
        for file in source.files:
            status = status_of(file)
            task = owners.get(file)
            if task is None:
                task, num_tasks, total_bytes = num_tasks, num_tasks + 1, total_bytes + status.size
            files.append(CopiedFile(source=number, path=source.path_of(file), status=status, task=task))
    return CopyJobPlan(order=order, files=tuple(files), total_bytes=total_bytes)


def _owners(source: StoreSource, pieces: Sequence[tuple[int, int, int]]) -> dict[AnyPath, int]:
    """Return for files the task that copies all their documents, if there is one.

    Args:
        source: the source.
        pieces: (first document, end, task) of the ranges that are copied, ascending.
    """
    owners: dict[AnyPath, int] = {}
    for first, end, paths in source.files_by_shard():
        at = bisect.bisect_right(pieces, first, key=lambda piece: piece[0]) - 1
        if first < end and at >= 0 and end <= pieces[at][1]:
            owners |= dict.fromkeys(paths, pieces[at][2])
    return owners


class ShardResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a receipt says of a task."""

    made: MadeShard | None = None
    """The shard; None if the task only hashed files."""

    inputs: tuple[InputFile, ...] = ()
    """The files that were hashed."""


def _written(copier: Copier, folder: FolderPlan, shard: int, place: Path) -> tuple[TaskResult, MadeShard]:
    """Write a shard into a folder of its own, and move its files to their names in the output."""
    results = place.parent
    with output_errors(place, "make the folder"):
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
    made, counts = copier.write(place, folder, shard)
    files = sorted(path for path in place.rglob("*") if path.is_file())
    names = []
    with output_errors(results, "move results to"):
        for path in files:
            name = Path(folder.name, path.relative_to(place)).as_posix()
            (results / name).parent.mkdir(parents=True, exist_ok=True)
            path.rename(results / name)
            names.append(name)
        shutil.rmtree(place)
    return TaskResult(files=tuple(names), counts=counts), made


def place_of(order: CopyOrder, output: str | AnyPath) -> OutputFolder:
    """Return where a copy goes.

    Raises:
        ConfigError: it is at a URL, and what is there is to be replaced, or it is a web server.
    """
    stores = [folder.name for folder in order.outputs]
    return output_at(output, stores, overwrite=order.request.options.overwrite, restart=None)


def check_sources(order: CopyOrder, sources: Sequence[StoreSource]) -> None:
    """Refuse to replace a folder that holds a source; raises OutputError."""
    output = path_at(order.request.output)
    if not isinstance(output, Path) or not order.request.options.overwrite:
        return
    for file in (file for source in sources for file in source.files if isinstance(file, Path)):
        if output.resolve() in file.resolve().parents:
            raise OutputError(f"{output} holds {file}, which is a source; choose another destination")


def is_made(order: CopyOrder, manifests: Sequence[Manifest]) -> bool:
    """Whether these are the manifests of a copy, whatever its sources hold by now."""
    return [one.options for one in manifests] == [options_of(order, folder) for folder in order.outputs]


class CopyJob(PlannedJob):
    """See the module. What is given is the reader of URLs; None goes by the environment."""

    kind = KIND
    plan_type = CopyJobPlan
    delivers = True
    final = (InputError,)
    """Of a value that does not fit into its dtype."""

    plan: CopyJobPlan

    def finish(self, show: Show) -> CopyReport:
        """See `Job`: put the shards together, and move the output into place."""
        order = self.plan.order
        order = msgspec.structs.replace(order, request=msgspec.structs.replace(order.request, output=str(self.output)))
        with place_of(order, self.output) as place:
            if (completed := place.resume()) is not None:
                if not is_made(order, completed):
                    raise OutputError(f"{self.output}: the copy that was planned is not there any more")
                return reported(order, completed, [COMPLETED])
            self.plan.check_files(self.given or "mmap")
            receipts = self.known_receipts()
            if receipts.failed:
                raise InputError(receipts.failed[min(receipts.failed)].error)
            results = [msgspec.convert(receipts.done[task.task_index].value, ShardResult) for task in self.plan.tasks]
            hashed = {file.path: file for result in results for file in result.inputs}
            inputs = [hashed[file.path] for file in self.plan.files]
            shards = iter(result.made for result in results if result.made is not None)
            manifests, sums, inner_borders = {}, dict[str, tuple[int, str]](), 0
            for folder in order.outputs:
                some = [next(shards) for _ in folder.shards]
                manifests[folder.name] = manifest = manifest_of(order, folder, some, inputs)
                for name, found in manifest.files().items():
                    sums[Path(folder.name, name).as_posix()] = found.size, found.xxh3_128
                inner_borders += sum(shard.inner_borders for shard in some)
            place.put(partial(self.gather, [receipts], sums), sums, write_manifests(place.work, manifests)[1])
        notes = []
        if inner_borders:
            notes.append(
                f"{order.kinds.format} keeps no sequences within documents: the result lacks {inner_borders:,} inner"
                " borders, but has all tokens"
            )
        return reported(order, list(manifests.values()), notes)
