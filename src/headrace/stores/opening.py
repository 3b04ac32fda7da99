"""Opens whatever store lies at a path: a file, a pair of files, or a folder of them.

Samples (as opposed to documents of tokens) lie at a path in one of these layouts, of which the first counts:

- A folder with ``.nv-meta``: an Energon dataset or a folder of files, as its metadata says.
- A list, or a name or pattern that ends in ``.tar`` (or in a suffix of a compressed tar): tar shards.
- Another folder that holds a tar, at any depth: tar shards, unless the folder holds shards of tokens itself, or they
  are found below it before the first tar.
- A ``.jsonl``: samples, if a ``.jsonl.idx`` lies beside it or its first record does not consist of lists of numbers.

Everything else is opened as tokens; see `headrace.stores.token_layouts`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Unpack, overload

from headrace.errors import ConfigError, StoreError
from headrace.io import AnyPath, Reader, can_list, path_at, reader, reader_at, walk
from headrace.stores import energon
from headrace.stores.arguments import check_name
from headrace.stores.energon.config_file import CONFIG_NAMES, META_FOLDER, folder_kind
from headrace.stores.energon.jsonl import JsonlSamplesStore, index_place, is_records_of_text
from headrace.stores.foreign import is_object, is_saved_dataset
from headrace.stores.indexed.pairs import SUFFIXES
from headrace.stores.manifest import MANIFEST_NAME
from headrace.stores.quarantine import quarantined
from headrace.stores.store import SampleStore, Store
from headrace.stores.tar.index import TarPaths
from headrace.stores.tar.members import SUFFIXES as COMPRESSED
from headrace.stores.tar.store import TarStore
from headrace.stores.token_layouts import (
    HDF5,
    JSON,
    PARQUET,
    Opening,
    OpenOptions,
    listed_keys,
    token_store,
)
from headrace.stores.written import META_NAME

if TYPE_CHECKING:
    from headrace.io import ReadCache, Storage

SampleFormat = Literal["energon", "files", "tar", "jsonl samples"]

_TARS: Final = (".tar", *COMPRESSED)
FILES: Final = (*_TARS, *SUFFIXES, *HDF5.suffixes, *JSON.suffixes, *PARQUET.suffixes)
"""What the names of files end in that are opened by themselves; anything else may be a folder, or a prefix."""
UNFINISHED_NAME: Final = ".headrace"
"""Folder in an object store that belongs to a run which has not completed its output there."""


def _holds_tars(name: str, using: str | Reader) -> bool:
    folder = path_at(name, using)
    if name.endswith(_TARS) and (folder.is_file() or not folder.is_dir()):
        return True
    if not folder.is_dir() or (folder / MANIFEST_NAME).is_file():
        return False  # an HTTP server could not list the folder
    if not can_list(folder) and is_saved_dataset(folder, using):
        return False
    for at, (_, files) in enumerate(walk(folder)):
        if any(file in (MANIFEST_NAME, META_NAME) or file.endswith(HDF5.suffixes) for file in files):
            return False
        if at == 0 and any(file.endswith((".idx", ".bin")) and not file.endswith(".tar.idx") for file in files):
            return False
        if any(file.endswith(_TARS) for file in files):
            return True
    return False


def _holds_records(name: str, using: str | Reader) -> bool:
    if not name.endswith(".jsonl") or not path_at(name, using).is_file():
        return False
    using = reader(using)
    return index_place(name, using).is_file() or (not is_object(name, using) and is_records_of_text(name, using))


SAMPLE_LAYOUTS: Final[dict[SampleFormat, str]] = {
    "energon": "an Energon dataset, a folder with .nv-meta",
    "files": "a folder of files with media metadata in .nv-meta",
    "tar": "tar shards",
    "jsonl samples": "a .jsonl whose records are not lists of tokens",
}
"""All layouts of samples, in words for messages."""


def sample_layout(path: TarPaths, using: str | Reader = "mmap") -> SampleFormat | None:
    """Return which layout of samples lies at a path, or None if there are tokens, something else, or nothing."""
    if not isinstance(path, str | os.PathLike):
        return "tar"
    name = os.fspath(path)
    check_name(name)
    using = reader_at(name, using)
    if not isinstance(using, str) and not name.endswith(FILES):
        # It may be a folder, or a prefix.
        using.look_up(*files_around(name))  # at once
        _check_complete(path_at(name, using))
    kind = folder_kind(path_at(name, using))
    if kind is not None:
        return "energon" if kind == "webdataset" else "files"
    if _holds_tars(name, using):
        return "tar"
    return "jsonl samples" if _holds_records(name, using) else None


def files_around(name: str) -> tuple[list[str], list[str]]:
    """Return the files, and the folders, that tell which layout is at a URL."""
    folder = name.rstrip("/")
    beside = [f"{folder.rpartition('/')[0]}/{MANIFEST_NAME}", *(folder + suffix for suffix in SUFFIXES)]
    folders = [folder, f"{folder}/{META_FOLDER}"]
    # A web server cannot list.
    inside = [f"{folders[1]}/{file}" for file in CONFIG_NAMES] if folder.startswith("http") else []
    return [*beside, *inside, f"{folder}/{MANIFEST_NAME}", f"{folder}/{META_NAME}"], folders


def _check_complete(place: AnyPath) -> None:
    """Refuse a folder in an object store to which a run still writes; a local output appears as a whole."""
    if isinstance(place, Path) or not can_list(place):
        return
    folders, files = place.objects.listing(str(place))
    is_begun = f"{place}/{UNFINISHED_NAME}" in folders and f"{place}/{MANIFEST_NAME}" not in files
    if is_begun and (place / UNFINISHED_NAME / "run.json").is_file():  # some stores keep the folder
        raise StoreError(
            f"{place}: a run writes to this place, and has not completed its output: wait for it, or give its command"
            " again if it was interrupted"
        )


def open_samples(path: TarPaths, layout: SampleFormat, *, split_part: str | None, using: str | Reader) -> SampleStore:
    """Open a path with the layout that `sample_layout` found.

    Raises:
        ConfigError: ``split_part`` is set, but the layout has no parts.
        StoreError: the data are missing or malformed.
    """
    if split_part is not None and layout != "energon":
        words = SAMPLE_LAYOUTS[layout]
        raise ConfigError(f"{path}: split_part={split_part!r} is for Energon datasets; this is {words}")
    if isinstance(path, str | os.PathLike):
        if layout == "energon":
            return energon.EnergonStore(path, split_part=split_part, using=using)
        if layout == "files":
            return energon.FilesystemStore(path, using=using)
        if layout == "jsonl samples":
            return quarantined(JsonlSamplesStore(path, using=using))
    return quarantined(TarStore(path, using=using))


@overload
def open(  # noqa: A001 - headrace.open
    path: str | os.PathLike[str],
    *,
    split_part: str,
    reader: str | Reader = "mmap",
    storage: Storage | None = None,
    cache: ReadCache | None = None,
) -> SampleStore: ...
@overload
def open(  # noqa: A001
    path: str | os.PathLike[str],
    *,
    key: str,
    reader: str | Reader = "mmap",
    storage: Storage | None = None,
    cache: ReadCache | None = None,
    **options: Unpack[OpenOptions],
) -> Store: ...
@overload
def open(  # noqa: A001
    path: TarPaths,
    *,
    reader: str | Reader = "mmap",
    split_part: str | None = None,
    key: str | None = None,
    storage: Storage | None = None,
    cache: ReadCache | None = None,
    **options: Unpack[OpenOptions],
) -> Store | SampleStore: ...
def open(  # noqa: A001
    path: TarPaths,
    *,
    reader: str | Reader = "mmap",
    split_part: str | None = None,
    key: str | None = None,
    storage: Storage | None = None,
    cache: ReadCache | None = None,
    **options: Unpack[OpenOptions],
) -> Store | SampleStore:
    """Open the store at a path: a `Store` of documents of tokens, or a `SampleStore` of samples with named parts.

    This costs O(1) a shard: headers and sizes are validated, and nothing else is read. The exception is a tar without
    an index, which is read through once.

    Args:
        path: any path that `open_tokens` accepts, or samples:

            - a folder with a ``.nv-meta``: an Energon dataset, or a folder of files;
            - a ``.tar``, a pattern ``shards-{000..127}.tar``, a list of these, or a folder with tars below: tar shards;
            - a ``.jsonl`` with a ``.jsonl.idx`` beside it, or whose first record does not consist of lists of numbers.

            Each may be the URL of an object or of a folder of them: ``s3://``, ``gs://``, ``az://`` or ``http://``.
        reader: ``"mmap"`` or ``"pread"``, or a `Reader` of your own.
        split_part: the part of an Energon dataset to open, such as ``"train"``; None opens all shards. For the other
            options of such datasets use `EnergonStore`.
        key: for tokens, as in `open_tokens`.
        options: for tokens, as in `open_tokens`: ``dialect``, ``documents``, ``dataset_order``, ``dtype``, ``eod`` and
            ``bos``.
        storage: for a URL, how the object store is reached; None goes by the environment.
        cache: a `headrace.Cache` on a local disk, through which the data are read. A loader of these data finds it, so
            that it need not be given again.

    Raises:
        StoreError: as in `open_tokens`.
        ConfigError: as in `open_tokens`; or an option is for the other kind of store.
        InputError: a tar is malformed or compressed.

    Example:
        >>> store = headrace.open("stores/web")
        >>> tokens = store.document(0)  # a read-only array
        >>> bool(len(tokens) == store.lengths[0])
        True
    """
    reader = reader_at(path, reader, storage, cache)
    how = Opening(key=key, reader=reader, **options)
    layout = sample_layout(path, reader)
    if layout is not None:
        if unsuitable := [*(["key"] if key is not None else []), *how.given]:
            words = SAMPLE_LAYOUTS[layout]
            raise ConfigError(f"{path}: {', '.join(unsuitable)} is for stores of tokens; this is {words}")
        return open_samples(path, layout, split_part=split_part, using=reader)
    if split_part is not None:
        raise ConfigError(f"{path}: split_part={split_part!r} is for Energon datasets; this path has no .nv-meta")
    return token_store(os.fspath(path), how)  # type: ignore[arg-type]  # a list always names tars


def open_tokens(
    path: str | os.PathLike[str],
    *,
    key: str | None = None,
    reader: str | Reader = "mmap",
    storage: Storage | None = None,
    cache: ReadCache | None = None,
    **options: Unpack[OpenOptions],
) -> Store:
    """Open a store of documents of tokens.

    This costs O(1) a shard: headers and sizes are validated, documents are not read. HDF5 takes some 40 us a dataset.
    JSON lines take one pass over the file, whose result is kept if the file is large.

    Args:
        path: one of

            - a prefix, ``data/web`` for ``data/web.bin`` and ``data/web.idx``, or one of these two files, written by
              Megatron and its relatives, fairseq, or Aleph Alpha (with ``data/web.meta.json``);
            - a ``.h5``, ``.hdf5``, ``.jsonl``, ``.json`` or ``.parquet``: one shard of records;
            - a ``.bin`` of nanoGPT or llm.c, without a ``.idx``, or a pattern ``data/train_*.bin`` of several: tokens
              and nothing else, or behind a header, see `RawStore`;
            - a folder with a ``headrace.json``: the shards that it lists, in its order, and no others; keys that have
              shards of their own are combined, see `CombinedStore`;
            - a folder with a ``meta.json``, or that file: one shard of the keyed format;
            - a folder with pairs of ``.bin`` and ``.idx``: all of them, in the order of `headrace.io.natural_key`;
            - any other folder: every folder with a ``meta.json`` below it, or else every ``.h5`` and ``.hdf5`` below
              it, in the same order, without hidden ones;
            - or else every ``.jsonl`` in the folder, or every ``.json``.

            Each may be a URL: ``s3://``, ``gs://``, ``az://`` or ``http://``.
        key: the main key, if there are several. If each key has shards of its own, in the indexed format, only this
            key is opened.
        reader: ``"mmap"`` or ``"pread"``, or a `Reader` of your own.
        storage: for a URL, how the object store is reached; None goes by the environment.
        cache: a `headrace.Cache` on a local disk, through which the data are read. A loader of these data finds it, so
            that it need not be given again.
        options: options for data of one layout; for any other they are an error:

            - ``dialect``: which program wrote the pairs, if their bytes do not tell (an error says so):
              ``"megatron"``, ``"deepspeed"``, ``"neox"`` or ``"fairseq"``;
            - ``documents``: for pairs, ``"sequences"`` makes each sequence a document, whatever the index says;
            - ``dataset_order``: for HDF5, ``"number"``, or ``"name"`` for AstrAI's order, with data_10 before data_2;
            - ``dtype``: for a ``.bin`` without a ``.idx`` and without a header, ``"uint16"`` or ``"uint32"``;
            - ``eod``, ``bos``: for a ``.bin`` without a ``.idx``, the id with which each document ends, or begins.

    Raises:
        StoreError: nothing is there, a file is missing, or the data are malformed, of an unknown format or of two
            formats, or they are samples.
        ConfigError: there is no such key; an option is unknown, or is for pairs and there are none.
        MissingExtraError: the data are HDF5, and h5py is not installed.
    """
    reader = reader_at(path, reader, storage, cache)
    name = os.fspath(path)
    # A .jsonl of samples gets a message of its own when it is opened.
    layout = None if name.endswith(JSON.suffixes) else sample_layout(name, reader)
    if layout is not None:
        raise StoreError(
            f"{name}: holds samples ({SAMPLE_LAYOUTS[layout]}), but tokens are needed here; headrace.open opens"
            " it, and headrace.datasets.media makes training samples from it"
        )
    return token_store(name, Opening(key=key, reader=reader, **options))


def open_keys(
    path: str | os.PathLike[str], *, reader: str | Reader = "mmap", **options: Unpack[OpenOptions]
) -> dict[str, Store]:
    """Open every key at a path as a store of which it is the main key.

    The arguments are those of `open_tokens`.

    Raises:
        StoreError: as in `open_tokens`.
        ConfigError: as in `open_tokens`.
    """
    reader = reader_at(path, reader)

    def opened(key: str | None) -> Store:
        return open_tokens(path, key=key, reader=reader, **options)

    keys = listed_keys(path_at(path, reader))
    if len(keys) > 1:
        return {key: opened(key) for key in keys}
    store = opened(None)
    if keys:
        return {keys[0]: store}
    return {store.keys[0]: store, **{key: store.with_main(key) or opened(key) for key in store.keys[1:]}}
