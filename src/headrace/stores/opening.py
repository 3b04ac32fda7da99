"""Opens whatever store lies at a path: a file, a pair of files, or a folder of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from headrace.errors import ConfigError, StoreError
from headrace.io import Reader, check_local, natural_key
from headrace.stores.combined import CombinedStore, ShardedStore
from headrace.stores.hdf5.store import HDF5_SUFFIXES, DatasetOrder, Hdf5Store, check_order
from headrace.stores.indexed.layout import Dialect, Documents, IndexedOptions
from headrace.stores.indexed.pairs import META_SUFFIX, SUFFIXES, open_pair
from headrace.stores.indexed.store import IndexedStore
from headrace.stores.json.store import JSON_SUFFIXES, JsonlStore, open_json
from headrace.stores.keyed.store import KeyedStore
from headrace.stores.manifest import MANIFEST_NAME, Manifest, load_manifest
from headrace.stores.sample_layouts import WORDS, open_samples, sample_layout
from headrace.stores.segmented import SegmentedStore
from headrace.stores.store import MAIN, Store
from headrace.stores.written import META_NAME, OutputShard


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """How a store is to be opened; see `headrace.open`."""

    key: str | None
    reader: str | Reader
    options: IndexedOptions
    dataset_order: DatasetOrder


def open_folder(name: str, how: Opening) -> Store:
    """Open the store in a folder.

    Raises:
        StoreError: there is no store, there are shards of two formats, or the store is malformed.
        ConfigError: there is no such key.
    """
    folder = Path(name)
    if (folder / MANIFEST_NAME).exists():
        return _listed(folder, name, how)
    if (folder / META_NAME).exists():
        return _joined([_open_keyed(folder, how.key, how)], name)
    shards = _found_pairs(folder, how)
    if not shards:
        keyed, hdf5 = _found_below(folder)
        if keyed and hdf5:
            raise StoreError(
                f"{name}: the folder holds shards of two formats: {keyed[0] / META_NAME} and {hdf5[0]}; name a folder"
                " that holds only one of them"
            )
        if keyed:
            shards = _series([str(place) for place in keyed], how, lambda at, key: _open_keyed(keyed[at], key, how))
        else:
            files = hdf5 or _found_json(folder)
            shards = _series([str(file) for file in files], how, lambda at, key: _open_file(files[at], key, how))
    if not shards:
        raise StoreError(
            f"{name}: a folder without shards; expected pairs of .bin and .idx, a {MANIFEST_NAME}, folders with a"
            f" {META_NAME}, or files .h5 or .jsonl"
        )
    return _joined(shards, name)


def holds_shards(folder: Path) -> bool:
    """Return whether a folder itself, not a folder below it, holds a store or parts of one."""
    return any(file.name in (MANIFEST_NAME, META_NAME) or file.suffix in SUFFIXES for file in folder.iterdir())


def listed_keys(folder: Path) -> tuple[str, ...]:
    """Return the keys that a folder's manifest lists for shards in the indexed format; empty if there are none."""
    if not (folder / MANIFEST_NAME).is_file():
        return ()
    manifest = load_manifest(folder)
    return manifest.keys if all(shard.format == "indexed" for shard in manifest.outputs) else ()


def check_only_key(name: str, key: str | None, *known: str) -> None:
    """Raise ConfigError if a key is not the only key of a store in the indexed format."""
    if key not in (None, MAIN, *known):
        keys = ", ".join(map(repr, known or (MAIN,)))
        raise ConfigError(f"{name}: no key {key!r}; a store in the indexed format has one key, which is {keys} here")


def _joined(shards: Sequence[Store], name: str) -> Store:
    return shards[0] if len(shards) == 1 else ShardedStore(shards, name)


def _listed(folder: Path, name: str, how: Opening) -> Store:
    manifest = load_manifest(folder)
    outputs = manifest.outputs
    if outputs and outputs[0].format != "indexed":  # all shards of a manifest have the same format
        names = [str(folder / entry.prefix) for entry in outputs]
        return _joined(_series(names, how, lambda at, key: _open_listed(folder, outputs[at], key, how)), name)
    if not outputs:
        raise StoreError(f"{name}: a folder without shards: its {MANIFEST_NAME} lists none")
    keys = manifest.keys
    if len(keys) == 1:
        check_only_key(str(folder), how.key, *keys)
        return _joined(_listed_pairs(folder, manifest, keys[0], how), name)
    if how.key is None:
        stores = {key: _joined(_listed_pairs(folder, manifest, key, how), name) for key in keys}
        return CombinedStore(stores, name)
    if how.key not in keys:
        raise ConfigError(f"{folder}: no key {how.key!r}; its keys are {', '.join(map(repr, keys))}")
    return _joined(_listed_pairs(folder, manifest, how.key, how), name)


def _listed_pairs(folder: Path, manifest: Manifest, key: str, how: Opening) -> list[Store]:
    """Open the shards of one key in the indexed format."""
    shards: list[Store] = []
    for entry in manifest.outputs:
        if key not in entry.keys:
            continue
        prefix = folder / entry.prefix
        for suffix in SUFFIXES:
            _check_there(prefix.with_name(prefix.name + suffix), folder)
        shards.append(IndexedStore(prefix, using=how.reader, vouched=entry, options=how.options))
    return shards


def _open_listed(folder: Path, entry: OutputShard, key: str | None, how: Opening) -> Store:
    place = folder / entry.prefix
    if entry.format == "keyed":
        _check_there(place / META_NAME, folder)
        return _open_keyed(place, key, how, entry)
    file = place.with_name(entry.files[0].name)
    _check_there(file, folder)
    if entry.format == "jsonl":
        return JsonlStore(file, key=key, using=how.reader, vouched=entry)
    return Hdf5Store(file, key=key, using=how.reader, order=how.dataset_order, vouched=entry)


def _check_there(file: Path, folder: Path) -> None:
    if not file.is_file():
        raise StoreError(f"{file}: missing, but {folder / MANIFEST_NAME} lists it")


def _series(names: Sequence[str], how: Opening, opened: Callable[[int, str | None], Store]) -> list[Store]:
    """Open shards that may have several keys, all with the same main key."""
    shards: list[Store] = []
    key = how.key
    for at in range(len(names)):
        try:
            shard = opened(at, key)
        except ConfigError as error:
            if not shards:
                raise
            raise StoreError(
                f"{error}; shards of different kinds are not one store: {names[0]} has this key"
            ) from error
        # The order of the keys may differ from shard to shard; the main key of the first shard is that of all.
        key = shard.keys[0]
        shards.append(shard)
    return _agreed(shards)


def _agreed(shards: list[Store]) -> list[Store]:
    """Give all shards the same dtypes, if they can have them: some files, such as those without values, name none."""
    segmented = [shard for shard in shards if isinstance(shard, SegmentedStore)]
    if len(segmented) < 2 or len({frozenset(shard.keys) for shard in segmented}) > 1:
        return shards
    dtypes = {}
    for key in segmented[0].keys:
        for dtype in dict.fromkeys(shard.dtypes[key] for shard in segmented):
            if all(shard.can_be(key, dtype) for shard in segmented):
                dtypes[key] = dtype
    return [shard if dict(shard.dtypes) == dtypes else shard.with_dtypes(dtypes) for shard in segmented]


def _open_keyed(folder: Path, key: str | None, how: Opening, vouched: OutputShard | None = None) -> KeyedStore:
    if any(file.suffix == ".idx" for file in folder.iterdir()):
        raise StoreError(
            f"{folder}: the folder holds both a {META_NAME} and .idx files, so it is unclear whether its format is"
            " keyed or indexed; keep the two in separate folders"
        )
    return KeyedStore(folder, key=key, using=how.reader, vouched=vouched)


def _open_file(file: Path, key: str | None, how: Opening) -> Store:
    if file.suffix in HDF5_SUFFIXES:
        return Hdf5Store(file, key=key, using=how.reader, order=how.dataset_order)
    return open_json(file, key=key, using=how.reader)


def _found_pairs(folder: Path, how: Opening) -> list[Store]:
    files = [file for file in folder.iterdir() if file.suffix in SUFFIXES and not file.name.startswith(".")]
    if files:
        check_only_key(str(folder), how.key)
    stems = sorted({file.stem for file in files}, key=natural_key)
    return [open_pair(folder / stem, using=how.reader, options=how.options) for stem in stems]


def _found_below(folder: Path) -> tuple[list[Path], list[Path]]:
    """Find every folder below that holds a ``meta.json``, and every HDF5 file, in natural order of their paths.

    Symbolic links are followed.
    """
    keyed, hdf5 = [], []
    seen = set()
    for name, folders, files in os.walk(folder, followlinks=True):
        status = Path(name).stat()
        if (status.st_dev, status.st_ino) in seen:  # a link leads back to this folder
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders[:] = [sub for sub in folders if not sub.startswith(".")]
        place = Path(name).relative_to(folder)
        if META_NAME in files:
            keyed.append(place)
        hdf5 += [place / file for file in files if file.endswith(HDF5_SUFFIXES) and not file.startswith(".")]
    return _in_order(folder, keyed), _in_order(folder, hdf5)


def _in_order(folder: Path, found: list[Path]) -> list[Path]:
    return [folder / place for place in sorted(found, key=lambda place: natural_key(place.as_posix()))]


def _found_json(folder: Path) -> list[Path]:
    """Find the ``.jsonl`` files in the folder itself or, if there are none, its ``.json`` files."""
    names = [file for file in folder.iterdir() if file.is_file() and not file.name.startswith(".")]
    for suffix in (".jsonl", ".json"):
        found = [Path(file.name) for file in names if file.suffix == suffix]
        if found:
            return _in_order(folder, found)
    return []


_DEFAULTS: Final = {"key": None, "dialect": None, "documents": "indices", "dataset_order": "number"}
_NOTHING: Final = object()


def open(  # noqa: A001 - headrace.open
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    reader: str | Reader = "mmap",
    split_part: str | None = None,
    **options: Any,
) -> Any:
    """Open the store at a path: a `Store` of documents of tokens, or a `SampleStore` of samples with named parts.

    This costs O(1) a shard: headers and sizes are validated, and nothing else is read. The exception is a tar without
    an index, which is read through once.

    Args:
        path: any path that `open_tokens` accepts, or samples:

            - a folder with a ``.nv-meta``: an Energon dataset, or a folder of files;
            - a ``.tar``, a pattern ``shards-{000..127}.tar``, a list of these, or a folder with tars below: tar shards;
            - a ``.jsonl`` with a ``.jsonl.idx`` beside it, or whose first record does not consist of lists of numbers.
        reader: ``"mmap"`` or ``"pread"``, or a `Reader` of your own.
        split_part: the part of an Energon dataset to open, such as ``"train"``; None opens all shards. For the other
            options of such datasets use `EnergonStore`.
        options: for tokens, the options of `open_tokens`.

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
    check_local(path)
    layout = sample_layout(path, reader)
    if layout is not None:
        unsuitable = [name for name, value in options.items() if value != _DEFAULTS.get(name, _NOTHING)]
        if unsuitable:
            raise ConfigError(f"{path}: {', '.join(unsuitable)} is for stores of tokens; this is {WORDS[layout]}")
        return open_samples(path, layout, split_part=split_part, using=reader)
    if split_part is not None:
        raise ConfigError(f"{path}: split_part={split_part!r} is for Energon datasets; this path has no .nv-meta")
    return open_tokens(path, reader=reader, **options)  # type: ignore[arg-type]  # a list always names tars


def open_tokens(
    path: str | os.PathLike[str],
    *,
    key: str | None = None,
    reader: str | Reader = "mmap",
    dialect: Dialect | None = None,
    documents: Documents = "indices",
    dataset_order: DatasetOrder = "number",
) -> Store:
    """Open a store of documents of tokens.

    This costs O(1) a shard: headers and sizes are validated, documents are not read. HDF5 takes some 40 us a dataset.
    JSON lines take one pass over the file, whose result is kept if the file is large.

    Args:
        path: one of

            - a prefix, ``data/web`` for ``data/web.bin`` and ``data/web.idx``, or one of these two files, written by
              Megatron and its relatives, fairseq, or Aleph Alpha (with ``data/web.meta.json``);
            - a ``.h5``, ``.hdf5``, ``.jsonl`` or ``.json``: one shard of records;
            - a folder with a ``headrace.json``: the shards that it lists, in its order, and no others; keys that have
              shards of their own are combined, see `CombinedStore`;
            - a folder with a ``meta.json``, or that file: one shard of the keyed format;
            - a folder with pairs of ``.bin`` and ``.idx``: all of them, in the order of `headrace.io.natural_key`;
            - any other folder: every folder with a ``meta.json`` below it, or else every ``.h5`` and ``.hdf5`` below
              it, in the same order, without hidden ones;
            - or else every ``.jsonl`` in the folder, or every ``.json``.
        key: the main key, if there are several. If each key has shards of its own, in the indexed format, only this
            key is opened.
        reader: ``"mmap"`` or ``"pread"``, or a `Reader` of your own.
        dialect: which program wrote the pairs, if their bytes do not tell (an error says so): ``"megatron"``,
            ``"deepspeed"``, ``"neox"`` or ``"fairseq"``.
        documents: for pairs, ``"sequences"`` makes each sequence a document, whatever the index says.
        dataset_order: for HDF5, ``"number"``, or ``"name"`` for AstrAI's order, with data_10 before data_2.

    Raises:
        StoreError: nothing is there, a file is missing, or the data are malformed, of an unknown format or of two
            formats, or they are samples.
        ConfigError: there is no such key; an option is unknown, or is for pairs and there are none.
        MissingExtraError: the data are HDF5, and h5py is not installed.
    """
    check_local(path)
    name = os.fspath(path)
    _refuse_samples(name, reader)
    options = IndexedOptions(dialect=dialect, documents=documents)
    check_order(dataset_order)
    how = Opening(key=key, reader=reader, options=options, dataset_order=dataset_order)
    prefix = _prefix(name)
    pair = [suffix for suffix in SUFFIXES if Path(prefix + suffix).is_file()]
    if pair == [".idx"] and name.endswith(JSON_SUFFIXES) and Path(name).is_file():
        pair = []  # x.jsonl.idx is an index of the lines of x.jsonl
    # Megatron keeps its cache in a folder named like the prefix; that folder holds no store, and the pair is meant.
    if Path(name).is_dir() and (not pair or name.endswith("/") or holds_shards(Path(name))):
        if pair and not name.endswith("/"):
            raise StoreError(
                f"{name}: this is both a folder of shards and the prefix of {name}{pair[0]}; write {name}/ for the"
                f" folder, or {name}.idx for the pair"
            )
        store = open_folder(name, how)
    elif Path(name).name == META_NAME and Path(name).is_file():
        store = KeyedStore(Path(name).parent, key=key, using=reader)
    elif pair:
        store = open_pair(prefix, using=reader, options=options)
        check_only_key(name, key)
    elif name.endswith(HDF5_SUFFIXES) and Path(name).is_file():
        store = Hdf5Store(name, key=key, using=reader, order=dataset_order)
    elif name.endswith(JSON_SUFFIXES) and Path(name).is_file() and Path(name).name != MANIFEST_NAME:
        store = open_json(name, key=key, using=reader)
    elif Path(name).exists():
        raise StoreError(
            f"{name}: the format is unknown; expected a pair of .bin and .idx, a {META_NAME}, a .h5 or .jsonl, or a"
            " folder of them"
        )
    else:
        raise StoreError(f"{name}: nothing is there; expected {prefix}.bin and {prefix}.idx, or a folder of such pairs")
    if isinstance(store, SegmentedStore) and options != IndexedOptions():
        raise ConfigError(
            f"{name}: dialect and documents are for pairs of .bin and .idx; this is the {store.format} format"
        )
    return store.with_path(name)


def open_keys(
    path: str | os.PathLike[str],
    *,
    reader: str | Reader = "mmap",
    dialect: Dialect | None = None,
    documents: Documents = "indices",
    dataset_order: DatasetOrder = "number",
) -> dict[str, Store]:
    """Open every key at a path as a store of which it is the main key.

    The arguments are those of `open_tokens`.

    Raises:
        StoreError: as in `open_tokens`.
        ConfigError: as in `open_tokens`.
    """
    check_local(path)

    def opened(key: str | None) -> Store:
        return open_tokens(
            path, key=key, reader=reader, dialect=dialect, documents=documents, dataset_order=dataset_order
        )

    keys = listed_keys(Path(path))
    if len(keys) > 1:
        return {key: opened(key) for key in keys}
    store = opened(None)
    if keys:
        return {keys[0]: store}
    return {store.keys[0]: store, **{key: store.with_main(key) or opened(key) for key in store.keys[1:]}}


def _refuse_samples(name: str, reader: str | Reader) -> None:
    """Raise StoreError for stores of samples; a ``.jsonl`` is left out, since it gets a message of its own later."""
    layout = None if name.endswith(JSON_SUFFIXES) else sample_layout(name, reader)
    if layout is not None:
        raise StoreError(
            f"{name}: holds samples ({WORDS[layout]}), but tokens are needed here; headrace.open opens it, and"
            " headrace.datasets.media makes training samples from it"
        )


def _prefix(name: str) -> str:
    """Return the path without the suffix of a file of a pair."""
    for suffix in SUFFIXES:
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    stem = name.removesuffix(META_SUFFIX)
    return stem if stem != name and Path(stem + ".idx").is_file() else name
