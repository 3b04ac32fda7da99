"""`EnergonStore`, which reads a dataset of Energon: the tars below a folder with a ``.nv-meta``."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator
from functools import cached_property
from typing import Any, Final

import numpy as np
import xxhash

from headrace.errors import ConfigError, StoreError
from headrace.io import AnyPath, Reader, RemotePath, can_list, reader, reader_at
from headrace.stores.arguments import IntArray
from headrace.stores.energon.config_file import (
    DATASET_NAME,
    INDEX_NAME,
    INFO_NAME,
    META_FOLDER,
    OLD_INFO_NAME,
    SPLIT_NAME,
    read_info,
)
from headrace.stores.energon.dataset_yaml import DatasetConfig, read_dataset
from headrace.stores.energon.splits import read_splits, split_part as part_of, whole
from headrace.stores.energon.sqlite_index import KeyLookup, check_index
from headrace.stores.kept_arrays import with_ends
from headrace.stores.store import (
    ENDS_BYTES,
    Numbering,
    PartPlace,
    Problem,
    RawSample,
    read_ahead_of_fingerprints,
)
from headrace.stores.tar.index import SUFFIX
from headrace.stores.tar.members import check_uncompressed, sample_part
from headrace.stores.tar.store import TarSamples, TarShards, find_repeated_keys

_log = logging.getLogger("headrace")

_FEW_INDEXES: Final = 24


def _keep_configs(root: AnyPath, split_config: str | None, dataset_config: str | None, using: Reader) -> None:
    """Ask for the files of ``.nv-meta`` at the same time, and fetch them so, if they are objects.

    A few indexes of tars right in the folder come with them, and the ends of these tars: most likely they will be asked
    for next.
    """
    if isinstance(root, RemotePath):
        meta, can_be_listed = root / META_FOLDER, can_list(root)
        names = [INFO_NAME, OLD_INFO_NAME, split_config or SPLIT_NAME, dataset_config or DATASET_NAME]
        using.look_up([str(meta / name) for name in names], [str(meta), *([str(root)] if can_be_listed else [])])
        listed = root.iterdir() if can_be_listed and root.is_dir() else ()
        indexes = [one for one in listed if one.name.endswith(SUFFIX)]
        kept = [one for one in (meta / name for name in names) if one.is_file()]
        if len(indexes) > _FEW_INDEXES:
            indexes = []
        ends = dict.fromkeys((str(index).removesuffix(".idx") for index in indexes), ENDS_BYTES)
        using.keep_all(list(map(str, kept + indexes)), ends)


class EnergonStore(TarSamples):
    """One part of the shards of a folder with ``.nv-meta``, or all of them.

    Opening it costs O(1) a shard; a shard is opened when it is first read.

    Args:
        path: the folder.
        split_part: a part of the split file, such as ``"train"``, without what the file excludes; None uses all shards
            of the info file in its order, and reads no split file.
        split_config: name of another split file in ``.nv-meta``.
        dataset_config: name of another ``dataset.yaml`` in ``.nv-meta``.
        using: ``"mmap"`` or ``"pread"``, or a `Reader`.

    Attributes:
        info: all shards of the dataset, and their numbers of samples.
        part_shards: the shards of this part, and what is left out of them.
        split_part: the part that was opened; None for all shards.
        split_config: the name of the split file; None for the default one.
        dataset: the content of the ``dataset.yaml``; None if there is none.

    Raises:
        StoreError: a file is missing or malformed; the message names it and says what to do.
        ConfigError: there is no such part.

    Example:
        >>> store = headrace.stores.EnergonStore("shards", split_part="train")
        >>> sorted(store[0].parts)
        ['jpg', 'txt']
    """

    format = "energon"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        split_part: str | None = None,
        split_config: str | None = None,
        dataset_config: str | None = None,
        using: str | Reader = "mmap",
    ) -> None:
        using = reader(reader_at(path, using))
        self.path = os.fspath(path)
        self.root = using.path_at(os.fspath(path))
        self._options = {"split_part": split_part, "split_config": split_config, "dataset_config": dataset_config}
        self._reader = reader(using)
        _keep_configs(self.root, split_config, dataset_config, using)
        self.split_part, self.split_config = split_part, split_config
        if split_part is None and split_config is not None:
            raise ConfigError(f"{self.root}: split_config={split_config!r} needs a split_part, such as 'train'")
        self.info = read_info(self.root)
        self._listed_in: tuple[AnyPath, ...] = (self.info.path,)
        if split_part is None:
            self.part_shards = whole(self.info)
        else:
            splits = read_splits(self.root, split_config)
            self.part_shards = part_of(splits, split_part, self.info)
            self._listed_in += (splits.path,)
        self.dataset: DatasetConfig | None = read_dataset(self.root, dataset_config)
        names = self.part_shards.shards
        self._distinct = tuple(dict.fromkeys(names))
        self._distinct_places = {name: at for at, name in enumerate(self._distinct)}
        self._which: IntArray = np.array([self._distinct_places[name] for name in names], np.int64)
        counts = np.array([self.info.shard_counts[name] for name in self._distinct], np.int64)
        for name in self._distinct:
            check_uncompressed(str(self.root / name))  # Energon's prepare accepts such shards, but its reader does not
            if not name.endswith(".tar"):
                raise StoreError(f"{self.info.path}: shard {name!r} is no tar; Energon reads only tars")
        self._shards = TarShards(self.root, self._distinct, counts, using=self._reader)
        self._lookup = KeyLookup(self.root, tuple(self.info.shard_counts), self._shards)
        self.index = self._lookup.index
        self._numbering = Numbering(counts[self._which], self._left_out(counts))

    @property
    def subflavors(self) -> dict[str, Any]:
        """The subflavors of the ``dataset.yaml``, which every sample gets."""
        return {} if self.dataset is None else dict(self.dataset.subflavors)

    @property
    def shards(self) -> tuple[str, ...]:
        """Names of the shards of the part, in its order."""
        return self.part_shards.shards

    @property
    def files(self) -> tuple[AnyPath, ...]:
        """The configuration files, the shards, and their indices."""
        index = () if self.index is None else (self.index.path,)
        dataset = () if self.dataset is None else (self.dataset.path,)
        return (*self._listed_in, *dataset, *index, *self._shards.files)

    @cached_property
    def fingerprint(self) -> str:
        """xxh3_128 of ``layout_fingerprint``, and of the first and last 4 KiB of each tar. O(shards) at first."""
        return with_ends(self, self.data_files, self._reader)

    @cached_property
    def layout_fingerprint(self) -> str:
        """xxh3_128 of names, counts, sizes and index entries of the shards, and of what is left out."""
        read_ahead_of_fingerprints([self])
        facts = []
        for shard, place in enumerate(map(self._reader.path_at, self.data_files)):
            offsets = self._shards.offsets(shard)
            entries = (int(offsets[at]) for at in (0, len(offsets) // 2, -1))
            facts.append((place.stat().st_size, len(offsets), *entries))
        return xxhash.xxh3_128_hexdigest(repr((self._identity(), facts)).encode())

    def find(self, key: str) -> int:
        """Return the number of the sample with a key.

        It is found in ``index.sqlite``. If there is no such file, the first call reads the headers of all shards.
        """
        numbers = (self._number(at, index) for at, index in self._lookup.places(key))
        found = next((number for number in numbers if number is not None), None)
        if found is None:
            raise KeyError(
                f"{self.path}: no sample {key!r}{'' if self.split_part is None else f' in {self.split_part}'}"
            )
        return found

    def part(self, name: str) -> bytes:
        """Return the bytes of a member by its full name, ``"cats/0017.jpg"``.

        With an ``index.sqlite`` that lists parts, the member may be in any shard of the dataset, also one of another
        part of the split.

        Raises:
            KeyError: there is no such member.
        """
        split = sample_part(name)
        if split is None:
            raise KeyError(
                f"{self.path}: {name!r} is not the name of a member: expected KEY.PART, such as cats/0017.jpg"
            )
        key, part = split
        names = list(self.info.shard_counts)
        if self.index is not None and self.index.has_parts:
            row = self.index.part(key, part)
            if row is None:
                raise KeyError(f"{self.path}: no part {name!r} in {self.index.path}")
            if not 0 <= row.shard < len(names):
                raise self._lookup.stale(f"names shard {row.shard}, which does not exist")
            place = str(self.root / names[row.shard])
            return self._reader.read(place, row.offset, row.size).tobytes()
        sample = self.read(np.array([self.find(key)]), (part,))[0]
        if part not in sample.parts:
            raise KeyError(f"{self.path}: sample {key!r} has no part {part!r}")
        return sample.parts[part]

    def media_metadata(self, name: str) -> dict[str, Any] | None:
        """Return the metadata of a media file by its full name, None if it has none; see `SqliteIndex.media_metadata`.

        Raises:
            StoreError: the dataset has no metadata of media.
        """
        if self.index is None:
            raise StoreError(
                f"{self.root / META_FOLDER / INDEX_NAME}: missing; gather media metadata with energon prepare"
            )
        return self.index.media_metadata(name)

    def place_of(self, shard: int, offset: int, size: int) -> tuple[int, int] | None:
        """Return shard and index of the sample that a row of a join index names; None if no sample lies exactly there.

        Args:
            shard: number of the shard in the list of the split, which includes excluded shards.
            offset: byte of the shard where the sample begins.
            size: number of bytes of the sample.
        """
        name = self.part_shards.listed[shard]
        if name not in self._distinct_places:
            return None
        at = self._distinct_places[name]
        offsets = self._shards.offsets(at)
        index = int(np.searchsorted(offsets, offset))
        if index + 1 >= len(offsets) or offsets[index] != offset or offsets[index + 1] - offset != size:
            return None
        return at, index

    @property
    def numbers_of_listed(self) -> IntArray:
        """(listed,) int64: for each shard in the list of the split, its number in ``data_files``; -1 if excluded."""
        return np.array([self._distinct_places.get(name, -1) for name in self.part_shards.listed], np.int64)

    def start_of(self, index: int) -> tuple[int, int]:
        """Return where a sample begins: the (first) number of its shard in the list of the split, and the byte."""
        shard, local = self._locate(index)
        listed = self.part_shards.listed.index(self._distinct[shard])
        return listed, int(self._shards.offsets(shard)[local])

    def part_places(self, place: tuple[int, int]) -> dict[str, PartPlace]:
        """Return where each part lies of the sample at a place that ``place_of`` returned."""
        return self._shards.places(*place)

    def read_places(self, places: list[tuple[int, int]], parts: Collection[str] | None = None) -> list[RawSample]:
        """Return the samples at places that ``place_of`` returned."""
        pairs = np.array(places, np.int64).reshape(-1, 2)
        return self._shards.read(pairs[:, 0], pairs[:, 1], parts)

    def check(self) -> Iterator[Problem]:
        """Compare all headers of all shards with index, info file and ``index.sqlite``, and look for repeated keys."""
        for shard in range(len(self._distinct)):
            yield from self._shards.check(shard)
        if self.index is not None:
            yield from check_index(self.index, self.info, self._shards)
        yield from find_repeated_keys(self.path, self._shards, "key")

    def close(self) -> None:
        """Close all files."""
        super().close()
        if self.index is not None:
            self.index.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduced(path=self.path, using=self._reader, **self._options)

    def _identity(self) -> str:
        """Return a hash of everything that identifies the opened samples without reading the shards."""
        counts = [(name, self.info.shard_counts[name]) for name in self.shards]
        left_out = self._numbering.left_out.tobytes()
        return xxhash.xxh3_128_hexdigest(repr((self.format, counts, left_out)).encode())

    def _located(self, numbers: IntArray) -> tuple[IntArray, IntArray]:
        """Return the same as other stores, with the number of the shard among those that differ."""
        shards, indices = super()._located(numbers)
        return self._which[shards], indices

    def _number(self, at: int, index: int) -> int | None:
        """Return the number of a sample, in the first place of its shard in the part; None if it is left out."""
        return self._numbering.number(int(np.flatnonzero(self._which == at)[0]), index)

    def _left_out(self, counts: IntArray) -> IntArray:
        """Return the raw numbers of the samples that are excluded, (n,) int64, ascending."""
        keys = self.part_shards.keys
        if not keys:
            return np.empty(0, np.int64)
        found = {}
        for shard, wanted in keys.items():
            indices = self._lookup.indices(self._distinct_places[shard], wanted)
            found[self._distinct_places[shard]] = indices
            for key in sorted(wanted - set(indices.values())):
                _log.warning("%s: excludes %s/%s, but there is no such sample", self._listed_in[-1], shard, key)
        begins = np.concatenate(([0], np.cumsum(counts[self._which])))
        raw = [
            int(begins[at]) + index for at, shard in enumerate(self._which.tolist()) for index in found.get(shard, ())
        ]
        return np.array(sorted(raw), np.int64)
