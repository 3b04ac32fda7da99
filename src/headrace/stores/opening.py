"""Opens a store at a path, whatever its layout: a file, a pair, or a folder of them.

Finds out what lies in a folder, and opens it.
"""

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
    """The store in a folder.

    Raises:
        StoreError: there is none, or two of different formats, or it is malformed.
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
                f"{name}: shards of two formats below: {keyed[0] / META_NAME} and {hdf5[0]}; name a folder that holds"
                " one of them"
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
    """Whether a folder holds a store, or parts of one, at its own level."""
    return any(file.name in (MANIFEST_NAME, META_NAME) or file.suffix in SUFFIXES for file in folder.iterdir())


def listed_keys(folder: Path) -> tuple[str, ...]:
    """The keys of shards in the indexed format, which only a manifest can name."""
    if not (folder / MANIFEST_NAME).is_file():
        return ()
    manifest = load_manifest(folder)
    return manifest.keys if all(shard.format == "indexed" for shard in manifest.outputs) else ()


def check_only_key(name: str, key: str | None, *known: str) -> None:
    """Raise ConfigError for another key than the only one of a store in the indexed format."""
    if key not in (None, MAIN, *known):
        keys = ", ".join(map(repr, known or (MAIN,)))
        raise ConfigError(f"{name}: no key {key!r}; a store in the indexed format has one key, here {keys}")


def _joined(shards: Sequence[Store], name: str) -> Store:
    return shards[0] if len(shards) == 1 else ShardedStore(shards, name)


def _listed(folder: Path, name: str, how: Opening) -> Store:
    """What a manifest lists."""
    manifest = load_manifest(folder)
    outputs = manifest.outputs
    if outputs and outputs[0].format != "indexed":  # one manifest, one format
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
    """The shards of one key in the indexed format."""
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
    """Shards of several keys, all with the same main one."""
    shards: list[Store] = []
    key = how.key
    for at in range(len(names)):
        try:
            shard = opened(at, key)
        except ConfigError as error:
            if not shards:
                raise
            raise StoreError(f"{error}; shards of different kinds are not one store: {names[0]} has it") from error
        # The order of the keys may differ from shard to shard: what the first one's main key is, is that of all.
        key = shard.keys[0]
        shards.append(shard)
    return _agreed(shards)


def _agreed(shards: list[Store]) -> list[Store]:
    """The shards with the dtypes that all of them can have, where a file does not say which: one without values."""
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
            f"{folder}: both a {META_NAME} and files named .idx: a shard of the keyed format or of the indexed one?"
            " Keep them in folders of their own"
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
    """Every folder that holds a ``meta.json``, and every HDF5 file, links followed, in natural order of the paths."""
    keyed, hdf5 = [], []
    seen = set()
    for name, folders, files in os.walk(folder, followlinks=True):
        status = Path(name).stat()
        if (status.st_dev, status.st_ino) in seen:  # a link that leads back
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
    """The files ``.jsonl`` in the folder itself, or where there are none its files ``.json``."""
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
    """Open what lies at a path: documents of tokens, a `Store`, or samples with named parts, a `SampleStore`.

    O(1) a shard: headers and sizes are validated, nothing else is read, but that a tar without an index is gone through
    once.

    Args:
        path: what `open_tokens` takes; or samples:

            - a folder with a ``.nv-meta``: a dataset of Energon's, or a folder of files;
            - a ``.tar``, a pattern ``shards-{000..127}.tar``, a list of these, or a folder with such below: tar shards;
            - a ``.jsonl`` with a ``.jsonl.idx`` beside it, or whose first record is not lists of numbers.
        reader: ``"mmap"`` or ``"pread"``, or a reader of your own.
        split_part: of a dataset of Energon's the part (``"train"``); without, all shards. Its other options are
            those of `EnergonStore`.
        options: of tokens, those of `open_tokens`.

    Raises:
        StoreError: as `open_tokens`.
        ConfigError: as `open_tokens`; or an option is of the other kind of store.
        InputError: a tar is faulty or compressed.
    """
    check_local(path)
    layout = sample_layout(path, reader)
    if layout is not None:
        given = [name for name, value in options.items() if value != _DEFAULTS.get(name, _NOTHING)]
        if given:
            raise ConfigError(f"{path}: {', '.join(given)} is for stores of tokens; this is {WORDS[layout]}")
        return open_samples(path, layout, split_part=split_part, using=reader)
    if split_part is not None:
        raise ConfigError(f"{path}: split_part={split_part!r} is for datasets of Energon; this has no .nv-meta")
    return open_tokens(path, reader=reader, **options)  # type: ignore[arg-type]  # a list is of tars


def open_tokens(
    path: str | os.PathLike[str],
    *,
    key: str | None = None,
    reader: str | Reader = "mmap",
    dialect: Dialect | None = None,
    documents: Documents = "indices",
    dataset_order: DatasetOrder = "number",
) -> Store:
    """Open documents of tokens. O(1) a shard: headers and sizes are validated, documents are not read.

    HDF5 costs some 40 us a dataset, and JSON lines a pass over the file, which is kept if the file is large.

    Args:
        path: one of

            - a prefix, ``data/web`` for ``data/web.bin`` and ``data/web.idx``; or one of these two files; of Megatron
              and its relatives, fairseq, or Aleph Alpha (with ``data/web.meta.json``);
            - a ``.h5``, ``.hdf5``, ``.jsonl`` or ``.json``: one shard of records;
            - a folder with a ``headrace.json``: the shards that it lists, in its order, and no others; keys with shards
              of their own are combined, see `CombinedStore`;
            - a folder with a ``meta.json``, or that file: one shard of the keyed format;
            - a folder with pairs of ``.bin`` and ``.idx``: all of them, in the order of `headrace.io.natural_key`;
            - any other folder: every folder with a ``meta.json`` below it, or else every ``.h5`` and ``.hdf5`` below
              it, in that order; hidden ones are left out;
            - or else every ``.jsonl`` in it, or every ``.json``.
        key: of several keys the main one. Of keys with shards of their own, in the indexed format, it opens that one
            alone.
        reader: ``"mmap"`` or ``"pread"``, or a reader of your own.
        dialect: of pairs, who wrote them, where their bytes do not tell (an error says so): ``"megatron"``,
            ``"deepspeed"``, ``"neox"`` or ``"fairseq"``.
        documents: of pairs, ``"sequences"`` takes each sequence as a document, whatever the index says.
        dataset_order: of HDF5, ``"number"``, or ``"name"`` as AstrAI read it: data_10 before data_2.

    Raises:
        StoreError: nothing is there, a file is missing, or what is there is malformed, unknown or of two formats, or
            holds samples.
        ConfigError: there is no such key, or the option is unknown, or is for pairs and there are none.
        MissingExtraError: it is HDF5, and h5py is not installed.
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
    # Megatron keeps its cache in a folder named like the prefix; that one holds no store, and the pair is meant.
    if Path(name).is_dir() and (not pair or name.endswith("/") or holds_shards(Path(name))):
        if pair and not name.endswith("/"):
            raise StoreError(
                f"{name}: both a folder of shards and the prefix of {name}{pair[0]}; write {name}/ for the folder, or"
                f" {name}.idx for the pair"
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
    if isinstance(store, KeyedStore | SegmentedStore) and options != IndexedOptions():
        raise ConfigError(
            f"{name}: dialect and documents are for pairs of .bin and .idx; this is the {store.format} format"
        )
    store.path = name
    return store


def open_keys(
    path: str | os.PathLike[str],
    *,
    reader: str | Reader = "mmap",
    dialect: Dialect | None = None,
    documents: Documents = "indices",
    dataset_order: DatasetOrder = "number",
) -> dict[str, Store]:
    """Every key of what lies at a path, each with a store whose main key it is.

    Raises:
        StoreError: as `open`.
        ConfigError: as `open`.
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
    return {store.keys[0]: store, **{key: _with_main(store, key) or opened(key) for key in store.keys[1:]}}


def _refuse_samples(name: str, reader: str | Reader) -> None:
    """What is no store of tokens, and plainly something else; a ``.jsonl`` of text has a message of its own."""
    layout = None if name.endswith(JSON_SUFFIXES) else sample_layout(name, reader)
    if layout is not None:
        raise StoreError(
            f"{name}: holds samples ({WORDS[layout]}), and tokens are needed; headrace.open opens it, and"
            " headrace.datasets.media makes samples for training of it"
        )


def _with_main(store: Store, key: str) -> Store | None:
    """The same store with another main key, where that is cheaper than to open it again."""
    if isinstance(store, KeyedStore | SegmentedStore):
        return store.with_main(key)
    shards = store.shards if isinstance(store, ShardedStore) else ()
    same = [shard.with_main(key) for shard in shards if isinstance(shard, KeyedStore | SegmentedStore)]
    return ShardedStore(same, store.path) if same and len(same) == len(shards) else None


def _prefix(name: str) -> str:
    """The path without the suffix of one of a store's files."""
    for suffix in SUFFIXES:
        if name.endswith(suffix):
            return name.removesuffix(suffix)
    stem = name.removesuffix(META_SUFFIX)
    return stem if stem != name and Path(stem + ".idx").is_file() else name
