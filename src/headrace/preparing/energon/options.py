"""Options of `prepare_energon`, with all their defaults."""

from __future__ import annotations

import os
import re
from typing import Literal

import msgspec

from headrace.errors import ConfigError, StoreError
from headrace.preparing.options import ErrorOptions, RunOptions, check_run, check_shares
from headrace.samples.media.mapper import parse_field_map
from headrace.samples.media.registry import check_field_map
from headrace.stores.energon.config_file import DATASET_NAME
from headrace.stores.energon.dataset_yaml import CRUDE
from headrace.stores.energon.splits import expand

MediaStrategy = Literal["EXTENSION", "HEADER", "GLOB"]


class MediaFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Chooses the parts whose metadata (size, length and so on) are gathered.

    Attributes:
        strategy: ``EXTENSION`` chooses by the extension; ``HEADER`` by the first bytes, or by the extension if these
            are not recognised; ``GLOB`` by the whole name.
        patterns: patterns of ``GLOB``, as ``*.jpg``. A star matches slashes too, and case is ignored.
    """

    strategy: MediaStrategy
    patterns: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> MediaFilter:
        """Return what the command line calls ``extension``, ``header``, or by patterns with commas: ``*.jpg,*.mp4``."""
        if text in ("extension", "header"):
            return cls(strategy="EXTENSION" if text == "extension" else "HEADER")
        return cls(strategy="GLOB", patterns=tuple(pattern.strip() for pattern in text.split(",")))


class SplitChoice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which shards are train, val and test. ``ratio`` or ``parts`` is needed if there is no ``split.yaml`` yet."""

    ratio: tuple[float, ...] = ()
    """Shares of train, val and test, as 8, 1, 1; the shards are assigned in their order."""

    parts: tuple[tuple[str, str], ...] = ()
    """Pairs of a part and a regular expression, which must match the beginning of a shard's name. Braces are expanded
    first."""

    shuffle: bool = False
    """Shuffle the shards before the ratio assigns them. The shuffle is always the same."""


class DatasetChoice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is written to ``dataset.yaml``, if there is none yet."""

    name: str = DATASET_NAME
    """Name of the dataset file in ``.nv-meta``."""

    skip: bool = False
    """Do not write the dataset file."""

    sample_type: str | None = None
    """A sample type such as ``CaptioningSample``, which needs a field map. With None or ``CrudeWebdataset`` the samples
    are crude."""

    field_map: dict[str, str] = {}
    """For each field of the sample type the part that it comes from, as ``image=jpg``."""

    part_filter: tuple[str, ...] = ()
    """Parts of crude samples that are read; if it is empty, all parts."""


class EnergonOptions(RunOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `prepare_energon`. ``overwrite`` reads all shards again, and replaces split file and ``dataset.yaml``.

    Example:
        >>> from headrace.preparing.energon import EnergonOptions, SplitChoice
        >>> EnergonOptions(split=SplitChoice(ratio=(8, 1, 1)), exclude="test").split.ratio
        (8, 1, 1)
    """

    split: SplitChoice = SplitChoice()
    dataset: DatasetChoice = DatasetChoice()

    exclude: str | None = None
    """Regular expression; shards in whose name it is found are left out of the dataset."""

    media: MediaFilter | None = None
    """Media whose metadata are gathered; None keeps the choice of the run before, if there was one."""

    media_only: bool = False
    """Treat the folder as plain files, and gather only the metadata of their media."""

    index_only: bool = False
    """Write only the ``.tar.idx`` and ``.info.json``, which say where the samples lie."""

    errors: ErrorOptions = ErrorOptions()
    """Whether a malformed shard ends the run, or only its samples after the fault are lost. ``max_errors`` counts
    shards."""

    duplicates: Literal["error", "drop", "keep"] = "error"
    """What happens to a sample whose key an earlier sample has: it is an error; or it is excluded in the split file; or
    it is kept, and ``index.sqlite`` finds the first one."""

    @property
    def lasting(self) -> EnergonOptions:
        """The options that a plan keeps: those that are not of one process alone."""
        return msgspec.structs.replace(self, workers=None, restart=False)


def check_options(options: EnergonOptions) -> None:
    """Refuse options that are invalid or contradict each other.

    Raises:
        ConfigError: an option is refused; the message says what was found and what is allowed.
    """
    split, dataset = options.split, options.dataset
    if split.ratio and split.parts:
        raise ConfigError(
            "a split ratio and split parts are both given: leave out one, since only one can assign the shards"
        )
    if split.shuffle and not split.ratio:
        raise ConfigError("shuffling the tars needs a split ratio: it changes which shards the ratio assigns to a part")
    check_shares(split.ratio)
    for name, pattern in split.parts:
        if not name:
            raise ConfigError(f"split part {pattern!r} has no name; write NAME:REGEX, as train:shards/0.*")
        part_patterns(name, pattern)
    if options.exclude is not None:
        exclude_pattern(options.exclude)
    _check_dataset(dataset)
    if options.index_only and (options.media is not None or options.media_only):
        raise ConfigError("index_only writes no metadata of media: leave out either it or the options of media")
    if options.media_only and options.media is None:
        raise ConfigError("media_only needs a choice of files: by extension, by header or by glob")
    if options.media is not None and (options.media.strategy == "GLOB") != bool(options.media.patterns):
        raise ConfigError("patterns of media belong to the strategy GLOB, which needs at least one, as *.jpg")
    check_run(options, options.errors, what="shards")


def check_plain(path: str | os.PathLike[str], options: EnergonOptions) -> None:
    """Refuse options that are only for folders, for a ``.jsonl`` or the ``.yaml`` of a metadataset.

    Raises:
        ConfigError: metadata of media or a split are asked for.
    """
    if options.media is not None or options.media_only:
        raise ConfigError(f"{path}: metadata of media can only be gathered for a folder of tars or of files")
    if options.split.ratio or options.split.parts:
        raise ConfigError(f"{path}: only a folder of tars can be split; take shares of such a dataset where it is used")


def _check_dataset(dataset: DatasetChoice) -> None:
    if dataset.sample_type in (None, CRUDE, "CrudeSample"):
        if dataset.field_map:
            raise ConfigError("a field map needs a sample type, whose fields it fills; crude samples have no fields")
    else:
        check_field_map(dataset.sample_type, dataset.field_map)
        parse_field_map(dataset.field_map)
        if dataset.part_filter:
            raise ConfigError("a part filter is for crude samples; a field map already names the parts that are read")
    if not dataset.name.endswith(".yaml") or "/" in dataset.name:
        raise ConfigError(f"{dataset.name!r}: the name of the dataset file must end in .yaml and hold no slash")


def part_patterns(name: str, pattern: str) -> list[re.Pattern[str]]:
    """Compile the regular expressions of a split part after its braces are expanded.

    Energon's expansion removes the backslash of ``\\d``; here it stays.

    Raises:
        ConfigError: the pattern is malformed.
    """
    try:
        expanded = expand(pattern.replace("\\", "\\\\"), f"split part {name}")
        return [re.compile(found) for found in expanded]
    except (re.error, StoreError) as error:
        raise ConfigError(f"split part {name!r}: {pattern!r} is not a regular expression: {error}") from error


def exclude_pattern(pattern: str) -> re.Pattern[str]:
    """Compile the regular expression of the shards that are left out.

    Raises:
        ConfigError: the pattern is malformed.
    """
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"exclude: {pattern!r} is not a regular expression: {error}") from error
