"""Fetches what many places at URLs need at the same time, before each of them is opened or known.

    read_together             small files and ends of files: a look-up of all, then all of their content
    read_shards               what opening and knowing shards of tokens reads
    read_ahead_of_opening     what opening several places reads, of any layout

This takes as many round trips for many places as for one. It is loaded with the first URL or metadataset.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from headrace.errors import StoreAwayError, StoreError
from headrace.io import AnyPath, Reader, can_list
from headrace.io.readers import NO_ENDS
from headrace.stores.combined import SeveralStores
from headrace.stores.energon import EnergonStore, JoinedStore, JsonlSamplesStore
from headrace.stores.energon.config_file import CONFIG_NAMES, META_FOLDER
from headrace.stores.energon.jsonl import ENDS_BYTES as LINES_ENDS
from headrace.stores.indexed.pairs import SUFFIXES
from headrace.stores.indexed.store import IndexedStore
from headrace.stores.keyed.store import KeyedStore
from headrace.stores.manifest import MANIFEST_NAME, load_manifest
from headrace.stores.opening import FILES, files_around
from headrace.stores.quarantine import QUARANTINE_NAME
from headrace.stores.store import ENDS_BYTES, AnyStore
from headrace.stores.tar.index import beside
from headrace.stores.tar.store import TarStore
from headrace.stores.token_layouts import KEYED, PAIRS, Opening
from headrace.stores.written import META_NAME

_READERS_AT_ONCE: Final = 32


class SmallReads(NamedTuple):
    """What is read of files to open or to know a store: little, but of many files.

    Attributes:
        reader: what reads them.
        looked_at: files whose sizes are asked for.
        kept: files that are read as a whole, as `headrace.io.Reader.keep_all` does.
        ends: the bytes at both ends of other files that are read, by their paths.
    """

    reader: Reader
    looked_at: Sequence[str] = ()
    kept: Sequence[str] = ()
    ends: Mapping[str, int] = NO_ENDS


@contextlib.contextmanager
def _left_to_others() -> Iterator[None]:
    try:
        yield
    except StoreAwayError:
        raise
    except (StoreError, OSError):
        pass


def read_together(reads: Iterable[SmallReads]) -> None:
    """Fetch at the same time what will be read, as far as it is remote: one look-up of all, and then the content.

    What cannot be read is left to those who need it, and have the words for it.

    Raises:
        StoreAwayError: the store gives no answer, so that those would wait for nothing, too.
    """
    by_reader: dict[Reader, list[SmallReads]] = {}
    for one in reads:
        if one.reader.reads_urls and (one.looked_at or one.kept or one.ends):
            by_reader.setdefault(one.reader, []).append(one)

    def read(reader: Reader) -> None:
        mine = by_reader[reader]
        ends = dict(pair for one in mine for pair in one.ends.items())
        kept = list(dict.fromkeys(path for one in mine for path in one.kept))
        with _left_to_others():
            reader.look_up([*(path for one in mine for path in one.looked_at), *kept, *ends])
            reader.keep_all([path for path in kept if reader.path_at(path).is_file()], ends)

    if len(by_reader) == 1:
        read(*by_reader)
    elif by_reader:
        with ThreadPoolExecutor(_READERS_AT_ONCE, thread_name_prefix="headrace-read-together") as threads:
            for _ in threads.map(read, by_reader):
                pass


def read_of_fingerprints(stores: Iterable[AnyStore]) -> None:
    """Fetch at the same time what the fingerprints of stores read; raises as `read_together` does."""
    read_together(one for store in stores for one in _small_reads_of(store))


def _small_reads_of(store: AnyStore) -> list[SmallReads]:
    """Return what the fingerprint of a store reads: the indexes of tars, and the ends of files."""
    if isinstance(store, JoinedStore):  # whose index was read when it was opened
        return [one for column in store.columns for one in _small_reads_of(column.store)]
    if isinstance(store, EnergonStore):
        tars, ends = store.data_files, dict.fromkeys(store.data_files, ENDS_BYTES)
        return [SmallReads(store.readers[0], looked_at=tars, kept=list(map(beside, tars)), ends=ends)]
    if isinstance(store, TarStore | KeyedStore | IndexedStore):
        return [SmallReads(store.readers[0], ends=dict.fromkeys(store.data_files, ENDS_BYTES))]
    if isinstance(store, JsonlSamplesStore):
        return [SmallReads(store.readers[0], ends={store.path: LINES_ENDS})]
    if isinstance(store, SeveralStores):
        return [one for inner in store.parts for one in _small_reads_of(inner)]
    return []


def _reads_of_pairs(pairs: Sequence[AnyPath], using: Reader) -> SmallReads:
    """Return what is read of pairs to open and to know them: the indexes, and the ends of the others."""
    return SmallReads(using, kept=[f"{pair}.idx" for pair in pairs], ends={f"{pair}.bin": ENDS_BYTES for pair in pairs})


def read_shards(pairs: Sequence[AnyPath], keyed: Sequence[AnyPath], using: Reader) -> None:
    """Fetch at the same time what opening and knowing shards reads: pairs, and folders of shards of the keyed format.

    Raises:
        StoreError: the store cannot be reached.
    """
    using.look_up([], list(map(str, keyed)))
    inside = [file for folder in keyed if can_list(folder) and folder.is_dir() for file in folder.iterdir()]
    ends = {str(file): ENDS_BYTES for file in inside if file.suffix == ".bin"}
    metas = [str(folder / META_NAME) for folder in keyed]
    read_together([_reads_of_pairs(pairs, using), SmallReads(using, kept=metas, ends=ends)])


def read_ahead_of_opening(places: Mapping[str, Collection[str]], using: Reader, *, listed: Sequence[str] = ()) -> None:
    """Fetch at the same time what opening several places at URLs reads, so that all take as many round trips as one.

    That is two for Energon datasets and for pairs of ``.bin`` and ``.idx``, and one more for the shards that a manifest
    lists. What cannot be read is left to the opening, which has the words for it.

    Args:
        places: the URLs, and for each the names of files in its ``.nv-meta`` that are read if they are there.
        using: the reader with which they will be opened.
        listed: folders that are listed at the same time.

    Raises:
        StoreAwayError: as `read_together`.
    """
    files: list[str] = []
    folders: list[str] = list(listed)
    for name, configs in places.items():
        if name.endswith(FILES):
            # Opening asks whether it is a folder, too; a web server cannot list.
            meta = f"{name}/{META_FOLDER}"
            files += [f"{meta}/{file}" for file in CONFIG_NAMES] if name.startswith("http") else []
            folders += [meta] if name.endswith(".tar") else [name, meta]
            small = _small_reads(name, configs, using)
            files += [*small.looked_at, *small.kept, *small.ends]
        else:
            around, inside = files_around(name)
            files += [*around, *(f"{inside[1]}/{file}" for file in configs if name.startswith("http"))]
            folders += inside
    with _left_to_others():
        using.look_up(files, folders)
        read_together([_small_reads(name, configs, using) for name, configs in places.items()])
        read_shards(*_shards_in([using.path_at(name) for name in places if not name.endswith(FILES)], using), using)


def _small_reads(name: str, configs: Collection[str], using: Reader) -> SmallReads:
    """Return what opening the place at a URL reads among what was looked up there."""
    place = using.path_at(name)
    if name.endswith(SUFFIXES):
        return _reads_of_pairs([place.with_suffix("")], using)
    if name.endswith(FILES):
        if not name.endswith((".tar", ".jsonl")):
            return SmallReads(using, looked_at=[name])
        return SmallReads(using, looked_at=[name], kept=[f"{name}.idx", str(place.parent / QUARANTINE_NAME)])
    kept = [place / META_FOLDER / file for file in configs]
    if not any(file.is_file() for file in kept):
        kept = [place / MANIFEST_NAME, place / META_NAME]
    pair = _reads_of_pairs([place] if using.path_at(f"{place}.idx").is_file() else [], using)
    return pair._replace(kept=[str(file) for file in kept if file.is_file()] + list(pair.kept))


def _shards_in(folders: Iterable[AnyPath], using: Reader) -> tuple[list[AnyPath], list[AnyPath]]:
    """Return the shards that the manifests of folders list, or the pairs right in a folder: pairs, then keyed ones."""
    pairs: list[AnyPath] = []
    keyed: list[AnyPath] = []
    for folder in folders:
        if (folder / MANIFEST_NAME).is_file():
            outputs = load_manifest(folder).outputs
            pairs += [folder / entry.prefix for entry in outputs if entry.format == PAIRS.format]
            keyed += [folder / entry.prefix for entry in outputs if entry.format == KEYED.format]
        elif can_list(folder) and folder.is_dir():
            # x.tar.idx is that of a tar.
            pairs += [
                pair for pair in PAIRS.find(folder, Opening(reader=using)) if (folder / f"{pair.name}.bin").is_file()
            ]
    return pairs, keyed
