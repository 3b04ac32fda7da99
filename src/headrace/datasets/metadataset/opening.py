"""Opens the datasets at the leaves of a metadataset."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.config import check_keys, convert, nearest_path
from headrace.datasets.dataset import Dataset
from headrace.datasets.media import JoinedMediaDataset, MediaDataset
from headrace.datasets.media.dataset import DEFAULT_DECODER, OfCrude, imported
from headrace.datasets.media.file_stores import CachePool
from headrace.datasets.metadataset.reading import JoinedSource, NamedSource, SourceColumn, named_place
from headrace.datasets.packed_sequences import PackedSequenceDataset
from headrace.datasets.windows import WindowDataset
from headrace.errors import ConfigError, StoreAwayError, StoreError
from headrace.io import AnyPath, Reader, path_at, reader as reader_called, reader_at
from headrace.io.finding import remote_among
from headrace.plan.packing import Packing
from headrace.samples.media import Cooker, SampleDecoder, resolve_sample_type
from headrace.stores import open_tokens
from headrace.stores.energon import EnergonStore, JoinColumn, JoinedStore, Reference
from headrace.stores.energon.config_file import DATASET_NAME, INFO_NAME, OLD_INFO_NAME, SPLIT_NAME, UUID_NAME
from headrace.stores.opening import sample_layout
from headrace.stores.reading_ahead import read_ahead_of_opening

if TYPE_CHECKING:
    from headrace.io import ReadCache

Open = Callable[[NamedSource | JoinedSource], Dataset | None]

_LABELS = ("labels", "loss_mask_key")
_WINDOWS = ("window_tokens", "stride", "phase", "document_ids", "position_ids", *_LABELS)


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How the datasets of a metadataset are opened.

    Attributes:
        decoder: decoder for media, see `MediaDataset`.
        cookers: cookers for crude samples; each dataset uses the first one that matches its subflavors.
        cache_pool: for cookers that want a cache.
        trust_code: run code that the metadataset, or the ``dataset.yaml`` of a dataset, names: joiners, sample loaders.
        reader: ``"mmap"`` or ``"pread"``, or a reader of your own.
        cache: a `headrace.Cache` on a local disk, through which the data are read; see `headrace.open`.
        open: a function that is called first for every dataset. The dataset it returns is used; if it returns None, the
            rest of the options apply. Use it for records, and for anything that a file cannot say.
    """

    decoder: SampleDecoder | None = DEFAULT_DECODER
    cookers: Sequence[Cooker] = ()
    cache_pool: CachePool | None = None
    trust_code: bool = False
    reader: str | Reader = "mmap"
    cache: ReadCache | None = None
    open: Open | None = None

    def dataset(self, source: NamedSource | JoinedSource) -> Dataset:
        """Return the dataset at a leaf.

        Raises:
            StoreError: nothing is there, or it is malformed; names the place in the metadataset.
            StoreAwayError: the object store gives no answer; names the place, too.
            ConfigError: what the metadataset says does not fit what is there; names the place.
        """
        with named_place(source.where):
            found = None if self.open is None else self.open(source)
            if found is None:
                found = self._source(source) if isinstance(source, NamedSource) else self._joined(source)
        if not isinstance(found, Dataset):
            raise ConfigError(f"{source.where}: open returned {found!r:.80}; expected a dataset, or None")
        return found

    def _source(self, source: NamedSource) -> Dataset:
        if source.windows is not None or source.packs is not None:
            return self._tokens(source)
        layout = sample_layout(source.path, self.reader)
        if layout is None:
            if not any(path_at(source.path + suffix, self.reader).exists() for suffix in ("", ".bin", ".idx")):
                raise StoreError(f"{source.path}: nothing is there{nearest_path(source.path)}")
            raise ConfigError(
                f"{source.path}: holds no samples; for tokens, say how they are cut: windows: {{window_tokens: 4096}} "
                "or packs: {max_seq_len: 4096}"
            )
        if layout == "files":
            raise ConfigError(f"{source.path}: is a folder of plain files, which only aux can name")
        energon = _of_energon(source) if layout == "energon" else {"split_part": None}
        for key in ("split_config", "dataset_config"):
            if layout != "energon" and getattr(source, key) is not None:
                raise ConfigError(f"{source.path}: {key} is for a dataset with a .nv-meta, and this one has none")
        return MediaDataset.open(
            source.path,
            **energon,
            reader=self.reader,
            cache=self.cache,
            aux=source.aux or None,
            **self._media(source.subflavors),
        )

    def _media(self, subflavors: dict[str, Any] | None) -> dict[str, Any]:
        return {
            "subflavors": subflavors,
            "decoder": self.decoder,
            "cookers": OfCrude(self.cookers),
            "cache_pool": self.cache_pool,
            "trust_code": self.trust_code,
        }

    def _tokens(self, source: NamedSource) -> Dataset:
        if source.aux or source.dataset_config is not None or source.split_config is not None:
            raise ConfigError(f"{source.path}: aux, dataset_config and split_config are for media, not for tokens")
        store = open_tokens(source.path, reader=self.reader, cache=self.cache)
        if source.windows is not None:
            check_keys(source.windows, _WINDOWS, "windows")
            if "window_tokens" not in source.windows:
                raise ConfigError("windows: window_tokens is missing, the length of a window")
            try:
                options = dict(source.windows)
                return WindowDataset(store, seq_len=options.pop("window_tokens"), **options)
            except TypeError as error:
                raise ConfigError(f"windows: {error}; found {source.windows}") from error
        labels = {name: value for name, value in (source.packs or {}).items() if name in _LABELS}
        options = {name: value for name, value in (source.packs or {}).items() if name not in _LABELS}
        check_keys(options, (*Packing.__struct_encode_fields__, *_LABELS), "packs")
        return PackedSequenceDataset(store, convert(options, Packing, "packs"), **labels)

    def _joined(self, source: JoinedSource) -> Dataset:
        store = join_store(source, self.reader, self.cache)
        joiner = _joiner(source.joiner, self.trust_code)
        columns = [
            MediaDataset.of(
                column.store,
                subflavors=one.subflavors,
                decoder=self.decoder,
                cache_pool=self.cache_pool,
                trust_code=self.trust_code,
            )
            for column, one in zip(store.columns, source.columns, strict=True)
        ]
        return JoinedMediaDataset(store, joiner, columns=columns)


Opener = Callable[[NamedSource | JoinedSource], Dataset]


def opener_of(options: SourceOptions, found: Iterable[NamedSource | JoinedSource]) -> Opener:
    """Return what opens the sources of a metadataset. Those at URLs have one reader, which reads ahead for all of them.

    What opening and joining them reads of small files is fetched at the same time, in two or three round trips.

    Raises:
        StoreAwayError: the store of a URL gives no answer.
    """
    found = list(found)
    remote = set(remote_among([one.path for source in found for one in _named(source)]))
    places: dict[str, dict[str, None]] = {}
    for source in found:
        more = (UUID_NAME,) if isinstance(source, JoinedSource) else ()
        for one in _named(source):
            if one.path in remote:
                names = (INFO_NAME, OLD_INFO_NAME, one.split_config or SPLIT_NAME, one.dataset_config or DATASET_NAME)
                places.setdefault(one.path, {}).update(dict.fromkeys((*names, *more)))
    if not places:
        return options.dataset
    joins = {str(source.folder) for source in found if isinstance(source, JoinedSource) and source.folder}
    try:
        made = reader_called(reader_at(next(iter(places)), options.reader, None, options.cache))
    except ConfigError:  # each source says so, with its place
        return options.dataset
    try:
        read_ahead_of_opening(places, made, listed=sorted(joins))
    except StoreAwayError:
        if options.open is None:  # which may know another way to some of them
            raise
    shared = msgspec.structs.replace(options, reader=made, cache=None)

    def open_source(source: NamedSource | JoinedSource) -> Dataset:
        return (shared if all(one.path in remote for one in _named(source)) else options).dataset(source)

    return open_source


def _named(source: NamedSource | JoinedSource) -> Sequence[NamedSource | SourceColumn]:
    """Return what names the datasets of a source."""
    return source.columns if isinstance(source, JoinedSource) else (source,)


def join_store(source: JoinedSource, reader: str | Reader = "mmap", cache: ReadCache | None = None) -> JoinedStore:
    """Open the join of a metadataset by its index.

    Raises:
        StoreError: the join was not prepared, or a dataset is missing.
        ConfigError: as `join_folder`; the datasets cannot be joined.
    """
    folder = join_folder(source)
    return JoinedStore(join_columns(source, reader, cache), folder, using=reader)


def join_folder(source: JoinedSource) -> AnyPath:
    """Return the folder in which the index of a join lies.

    Raises:
        ConfigError: the metadataset is not in a file, so that there is no place for an index.
    """
    if source.folder is None:
        raise ConfigError(
            "a join has an index beside the file of its metadataset, and this metadataset was given as a dict: pass the"
            " path of the file that it stands for, load_dataset({...}, path='mix.yaml')"
        )
    return source.folder


def join_columns(
    source: JoinedSource, reader: str | Reader = "mmap", cache: ReadCache | None = None
) -> list[JoinColumn]:
    """Open the datasets of a join."""
    return [
        JoinColumn(
            store=_column_store(one, reader_at(one.path, reader, None, cache)), nonmatch=one.nonmatch, name=one.name
        )
        for one in source.columns
    ]


def _column_store(column: SourceColumn, reader: str | Reader) -> EnergonStore:
    if sample_layout(column.path, reader) != "energon":
        raise ConfigError(f"{column.where}: {column.path} is not a dataset with a .nv-meta; only these can be joined")
    return EnergonStore(column.path, using=reader, **_of_energon(column))


def _of_energon(source: NamedSource | SourceColumn) -> dict[str, Any]:
    """Return what says which files and samples of an Energon dataset are read."""
    return {name: getattr(source, name) for name in ("split_part", "split_config", "dataset_config")}


def _joiner(named: Reference, trust_code: bool) -> Any:
    if not named.is_function:
        return resolve_sample_type(named.module, named.name, trust_code=trust_code)
    return imported(named, "joiner", trust_code=trust_code)
