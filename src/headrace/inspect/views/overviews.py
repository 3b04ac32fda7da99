"""What is below some paths: stores, mixes, runs, states of loaders and metrics, each with its size and its health.

Only manifests, headers and the sizes of files are read. What a link leads to outside of the paths is left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from headrace.datasets.metadataset import load_dataset
from headrace.errors import HeadraceError, StoreAwayError
from headrace.inspect.answers import Answer, kind_of
from headrace.inspect.figures import plural
from headrace.inspect.samples import need_samples
from headrace.io import check_kind, check_local
from headrace.plan import Cursor
from headrace.stores import MANIFEST_NAME, Ledger, Manifest, Store, load_manifest, open_tokens
from headrace.stores.energon.config_file import META_FOLDER
from headrace.stores.written import META_NAME
from headrace.tracing import read_run_file, read_state

EntryKind = Literal["tokens", "samples", "mix", "run", "state", "metrics"]
Health = Literal["as recorded", "not recorded", "damaged"]

MAX_FOLDERS: Final = 2000
"""The most folders that are looked into."""

MAX_DEPTH: Final = 5
"""How far below a path folders are looked into."""

OPENED_FILES: Final = 256
"""The most files of a store without a manifest that are opened to count its documents, about a millisecond each."""

_HEAD_BYTES: Final = 1 << 12
SAVED_NAME: Final = "dataset_info.json"
"""A file of every saved folder of the library datasets."""

_WORK: Final = ".headrace"
_RANK: Final = re.compile(r"\d+(?=\.jsonl$)")


class OverviewEntry(Answer, frozen=True, kw_only=True):
    """One store, mix, run, state or file of metrics."""

    path: str
    kind: EntryKind
    format: str = ""
    documents: int | None = None
    """The number of documents or samples; None if it is not known without reading."""

    tokens: int | None = None
    """The number of tokens of all keys; None if it is not known without reading."""

    bytes: int = 0
    files: int = 0
    health: Health = "not recorded"
    """Whether files and sizes are those of the manifest, and its ledger balances; no content is read for it."""

    words: str = ""
    """What a mix, a run, a state or metrics hold, in words."""

    problem: str = ""
    """What is damaged, or cannot be opened."""

    ledger: Ledger | None = None
    is_unfinished: bool = False
    """Whether a run of ``headrace prepare`` has not finished it."""

    changed: str = ""
    """When the newest of its files was changed, in UTC, such as ``2026-03-01 12:30``."""


class Overview(Answer, frozen=True, kw_only=True):
    """What is below some paths."""

    paths: tuple[str, ...]
    entries: tuple[OverviewEntry, ...]
    notes: tuple[str, ...] = ()
    """What was not looked into, and why."""

    def of_kind(self, *kinds: EntryKind) -> list[OverviewEntry]:
        """Return the entries of some kinds, in the order of their paths."""
        return [entry for entry in self.entries if entry.kind in kinds]


def overview(paths: Sequence[str | os.PathLike[str]]) -> Overview:
    """Return what is at some paths, and in the folders below them.

    A folder that is a store is one entry; it is looked into only if it holds loose files. Hidden folders are left out.
    Costs a few milliseconds an entry, however large it is.

    Args:
        paths: stores, metadatasets, files of runs, states as JSON, metrics as JSON Lines, or folders of these.

    Raises:
        ConfigError: a path has a scheme, such as ``s3://``.

    Example:
        >>> from headrace.inspect import views
        >>> found = views.overview(["stores", "shards"])
        >>> [(entry.path, entry.kind) for entry in found.entries][-2:]
        [('stores/web', 'tokens'), ('shards', 'samples')]
        >>> found.entries[-2].documents, found.entries[-2].health
        (400, 'as recorded')
    """
    places, notes = found_places(paths)
    return Overview(
        paths=tuple(os.fspath(path) for path in paths),
        entries=tuple(entry_at(path, kind) for path, kind in places.items()),
        notes=tuple(notes),
    )


def found_places(paths: Sequence[str | os.PathLike[str]]) -> tuple[dict[str, EntryKind], list[str]]:
    """Return what is below some paths, as path -> kind, and notes on what was left out. Opens no store."""
    found: dict[str, EntryKind] = {}
    notes: dict[str, None] = {}
    for given in paths:
        check_local(given)
        path = os.fspath(given)
        if not Path(path).is_dir() and kind_at(path, is_named=True) is None:
            notes[f"{path}: there is nothing that Headrace knows"] = None
        else:
            _walk(path, Path(path).resolve(), 0, found, notes, [0])
    return found, list(notes)


def _walk(
    path: str, root: Path, depth: int, found: dict[str, EntryKind], notes: dict[str, None], num_folders: list[int]
) -> None:
    """Add what is at a path and below it to what was ``found``, and why something was not looked into to the notes."""
    kind = kind_at(path, is_named=depth == 0)
    if kind is not None:
        found[metrics_pattern(path) if kind == "metrics" else path] = kind
    if not Path(path).is_dir() or is_closed(Path(path)):
        return
    if depth >= MAX_DEPTH or num_folders[0] >= MAX_FOLDERS:
        notes[f"folders more than {MAX_DEPTH} deep, and more than {MAX_FOLDERS:,}, are not looked into: name them"] = (
            None
        )
        return
    num_folders[0] += 1
    try:
        names = sorted(child.name for child in Path(path).iterdir() if not child.name.startswith("."))
    except OSError as error:
        notes[f"{path}: cannot be listed: {error.strerror or error}"] = None
        return
    for name in names:
        inner = name if path == "." else f"{path.rstrip('/')}/{name}"
        if Path(inner).resolve().is_relative_to(root):
            _walk(inner, root, depth + 1, found, notes, num_folders)


def kind_at(path: str, *, is_named: bool) -> EntryKind | None:
    """Return what is at a path itself, by the names and first bytes of its files; None if that is nothing known.

    A path that the user named may also be a file that is not told from others by its name, and the prefix of a pair.
    """
    place = Path(path)
    if place.is_dir():
        return _kind_of_folder(place)
    if place.suffix in _MARKS:
        head = _head(place)
        found = next((kind for kind, mark in _MARKS[place.suffix].items() if re.search(mark, head)), None)
        if found is not None or place.suffix in (".yaml", ".yml"):
            return found
    if not is_named:
        return None
    if "{rank}" in path:
        return "metrics"
    is_pair = Path(f"{path}.idx").is_file()
    if not is_pair and not place.is_file():
        return None
    return "samples" if kind_of(path) == "samples" else "tokens"


def is_closed(folder: Path) -> bool:
    """Whether a folder is a store as a whole, so that nothing in it is a thing of its own."""
    return any((folder / name).exists() for name in (MANIFEST_NAME, META_NAME, META_FOLDER, SAVED_NAME, _WORK))


def _kind_of_folder(folder: Path) -> EntryKind | None:
    try:
        names = [child.name for child in folder.iterdir()]
    except OSError:
        return None
    suffixes = {Path(name).suffix for name in names}
    if META_FOLDER in names or ".tar" in suffixes:
        return "samples"
    if {MANIFEST_NAME, META_NAME, SAVED_NAME} & set(names) or {".bin", ".idx"} <= suffixes:
        return "tokens"
    if suffixes & {".h5", ".hdf5", ".parquet"} or _WORK in names:
        return "tokens"
    return None


_MIX: Final[dict[EntryKind, bytes]] = {"mix": rb"(?m)^splits:"}
_MARKS: Final[dict[str, dict[EntryKind, bytes]]] = {
    ".yaml": _MIX,
    ".yml": _MIX,
    ".json": {"run": rb'"headrace\.run"', "state": rb'"headrace\.cursor"'},
    ".jsonl": {"metrics": rb'\A\{(?=.*"step":)(?=.*"position":)(?=.*"rank":)(?=.*"seconds":)'},
}
"""What stands near the beginning of files of each kind, by their suffix."""


def _head(path: Path) -> bytes:
    try:
        check_kind(path)
        with path.open("rb") as file:
            data = file.read(_HEAD_BYTES)
            # The kind stands at the beginning or, where the keys are sorted, in the middle of a small file.
            if path.suffix == ".json" and b'"headrace.' not in data and path.stat().st_size <= 1 << 22:
                data += file.read()
            return data
    except OSError:
        return b""


def metrics_pattern(path: str) -> str:
    """Return the name for the files of all ranks: ``metrics-{rank}.jsonl`` for ``metrics-3.jsonl``."""
    folder, name = os.path.split(path)
    pattern = _RANK.sub("{rank}", name)
    if pattern == name or "{rank}" in name:
        return path
    return f"{folder}/{pattern}" if folder else pattern


def metrics_files(path: str) -> list[str]:
    """Return the files that a name with ``{rank}`` stands for, by their ranks; or the name itself."""
    folder, name = os.path.split(path)
    if "{rank}" not in name:
        return [path]
    wanted = re.compile(r"(\d+)".join(map(re.escape, name.split("{rank}"))))
    try:
        names = [child.name for child in Path(folder or ".").iterdir()]
    except OSError:
        return []
    found = sorted((int(match[1]), one) for one in names if (match := wanted.fullmatch(one)))
    return [f"{folder}/{one}" if folder else one for _, one in found]


def entry_at(path: str, kind: EntryKind) -> OverviewEntry:
    """Return what is known of a path without reading its content. What cannot be opened says why."""
    files = _files(path, kind)
    sizes, newest = 0, 0.0
    for file in files:
        try:
            status = file.stat()
        except OSError:
            continue
        sizes += status.st_size
        newest = max(newest, status.st_mtime)
    facts: dict[str, Any] = {"bytes": sizes, "files": len(files), "changed": moment(newest)}
    is_store = kind in ("tokens", "samples")
    facts["is_unfinished"] = is_store and (Path(path) / _WORK).exists()
    try:
        if not is_store:
            facts["words"] = _in_words(path, kind)
        elif (found := _recorded(path)) is not None:
            facts |= found
        elif len(files) <= OPENED_FILES:
            facts |= _opened(path, kind)
    except StoreAwayError as error:
        facts["problem"] = str(error)
    except (HeadraceError, OSError) as error:
        facts |= {} if facts["is_unfinished"] else {"health": "damaged", "problem": str(error)}
    return OverviewEntry(path=path, kind=kind, **facts)


def _in_words(path: str, kind: EntryKind) -> str:
    """Return what a file holds, in words.

    Raises:
        HeadraceError: it is damaged.
    """
    if kind == "mix":
        return f"splits {', '.join(load_dataset(path).splits)}"
    if kind == "state":
        cursor = Cursor.from_dict(read_state(path))
        return f"step {cursor.step:,}, position {cursor.position:,}"
    if kind == "run":
        runs = read_run_file(path).runs
        last = runs[-1]
        words = [plural(len(runs), "run")] if len(runs) > 1 else []
        words.append(plural(len(last.sources), "source"))
        words += [plural(len(last.edits), "edit")] if last.edits else []
        length = last.stream().length
        words.append("endless" if length is None else plural(length, "sample"))
        return ", ".join(words)
    return plural(len(metrics_files(path)), "rank")


def _files(path: str, kind: EntryKind) -> list[Path]:
    if kind == "metrics":
        return [Path(file) for file in metrics_files(path)]
    place = Path(path)
    if place.is_dir():
        return [Path(folder, name) for folder, _, names in os.walk(place) for name in names]
    pair = [Path(path + suffix) for suffix in (".bin", ".idx")]
    return [place] if place.is_file() else [file for file in pair if file.is_file()]


def moment(since_1970: float, *, seconds: bool = False) -> str:
    """Return a time in UTC, such as ``2026-03-01 12:30``; empty for 0."""
    form = "%Y-%m-%d %H:%M:%S" if seconds else "%Y-%m-%d %H:%M"
    return datetime.fromtimestamp(since_1970, UTC).strftime(form) if since_1970 else ""


def _recorded(path: str) -> dict[str, Any] | None:
    """Return what the manifest in a folder says, compared with its files; None without a manifest.

    Raises:
        HeadraceError: the manifest is damaged.
    """
    if not (Path(path) / MANIFEST_NAME).is_file():
        return None
    manifest = load_manifest(path)
    formats = sorted({shard.format for shard in manifest.outputs})
    found: dict[str, Any] = {
        "format": ", ".join(formats),
        "documents": manifest.ledger.documents.kept,
        "tokens": None if "tar" in formats else manifest.ledger.tokens.kept,
        "ledger": manifest.ledger,
        "health": "as recorded",
    }
    if problem := next(_size_faults(Path(path), manifest), ""):
        found |= {"health": "damaged", "problem": problem}
    return found


def _size_faults(folder: Path, manifest: Manifest) -> Iterator[str]:
    """Yield each file that is missing or has another size than the manifest says."""
    for name, file in manifest.files().items():
        try:
            found = (folder / name).stat().st_size
        except OSError as error:
            yield f"{name}: {error.strerror or error}"
            continue
        if found != file.size:
            yield f"{name}: has {found:,} bytes, and {MANIFEST_NAME} lists {file.size:,}"


def _opened(path: str, kind: EntryKind) -> dict[str, Any]:
    if kind == "samples":
        with need_samples(path) as samples:
            return {"format": samples.format, "documents": len(samples)}
    with open_tokens(path) as store:
        return {"format": store.format, "documents": store.num_documents, "tokens": known_tokens(store)}


CHEAP_DOCUMENTS: Final = 1 << 22
"""The most documents of a store without a manifest whose tokens are counted: the index is read for it."""


def known_tokens(store: Store) -> int | None:
    """Return the tokens of the main key, unless the whole index of a large store would have to be read for it."""
    return store.num_tokens if store.num_documents <= CHEAP_DOCUMENTS else None
