"""What the caller may choose about making a folder of tars an Energon dataset, and the defaults, in one place."""

from __future__ import annotations

import math
import re
from typing import Literal

import msgspec

from headrace.errors import ConfigError, StoreError
from headrace.prepare.options import ErrorOptions
from headrace.prepare.shards.options import SPLIT_NAMES, check_sample_type
from headrace.stores.energon.config_file import DATASET_NAME
from headrace.stores.energon.dataset_yaml import CRUDE
from headrace.stores.energon.splits import expand

MediaStrategy = Literal["EXTENSION", "HEADER", "GLOB"]


class MediaFilter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of which parts size, length and the like are gathered.

    Attributes:
        strategy: ``EXTENSION``, by the end of the name; ``HEADER``, by the first bytes, else by the end of the name;
            ``GLOB``, by the name as a whole.
        patterns: of ``GLOB``: ``*.jpg``; a star stands for slashes too, and case does not count.
    """

    strategy: MediaStrategy
    patterns: tuple[str, ...] = ()


class SplitChoice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which shards are train, val and test. One of the first two is needed where there is no ``split.yaml`` yet."""

    ratio: tuple[float, ...] = ()
    """Shares of train, val and test, as 8, 1, 1, of the shards in their order."""

    parts: tuple[tuple[str, str], ...] = ()
    """Part and regular expression, which must match at the begin of a shard's name; braces are expanded first."""

    shuffle: bool = False
    """Shuffle the shards before the ratio assigns them; always in the same way."""


class DatasetChoice(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is written to ``dataset.yaml``, where there is none yet."""

    name: str = DATASET_NAME
    """Of the file."""

    skip: bool = False
    """Write none."""

    sample_type: str | None = None
    """As ``CaptioningSample``, with a field map; None, or ``CrudeWebdataset``: crude samples."""

    field_map: dict[str, str] = {}
    part_filter: tuple[str, ...] = ()
    """Of crude samples: the parts that are read; none: all."""


class EnergonOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `prepare_energon`; the only place that owns their defaults."""

    split: SplitChoice = SplitChoice()
    dataset: DatasetChoice = DatasetChoice()

    exclude: str | None = None
    """Shards in whose name this regular expression is found are no part of the dataset."""

    media: MediaFilter | None = None
    """None: as the run before, where there was one."""

    media_only: bool = False
    """The folder holds plain files, of which nothing but the metadata of media is gathered."""

    index_only: bool = False
    """Write the ``.tar.idx`` and ``.info.json``, which is all that says where samples lie, and nothing else."""

    errors: ErrorOptions = ErrorOptions()
    """A malformed shard ends the run, or the samples before the fault are kept; ``max_errors`` counts shards."""

    duplicates: Literal["error", "drop", "keep"] = "error"
    """A key that was there before: an error; the later sample is excluded in the split file; or it stays, and
    ``index.sqlite`` leads to the first one."""

    workers: int | None = None
    """Number of worker processes; None takes the number of usable cores."""

    overwrite: bool = False
    """Read all shards again, and write split file and ``dataset.yaml`` anew."""

    restart: bool = False
    """Discard what an unfinished run left, and begin anew."""


def check_options(options: EnergonOptions) -> None:
    """Refuse options that contradict each other or cannot be.

    Raises:
        ConfigError: with what was found and what is allowed.
    """
    split, dataset = options.split, options.dataset
    if split.ratio and split.parts:
        raise ConfigError("a split ratio and split parts are given: shards are assigned by one of them")
    if split.shuffle and not split.ratio:
        raise ConfigError("shuffling the tars goes with a split ratio: it changes which shard is of which part")
    ratio = split.ratio
    if ratio and (len(ratio) > len(SPLIT_NAMES) or not all(0 <= share < 1e15 for share in ratio) or not sum(ratio)):
        raise ConfigError(f"the split ratio is {ratio}: write the shares of train, val and test, as 8,1,1")
    for name, pattern in split.parts:
        if not name:
            raise ConfigError(f"split part {pattern!r} has no name; write NAME:REGEX, as train:shards/0.*")
        part_patterns(name, pattern)
    if options.exclude is not None:
        exclude_pattern(options.exclude)
    _check_dataset(dataset)
    if options.index_only and (options.media is not None or options.media_only):
        raise ConfigError("only the tar index is asked for, which holds no metadata of media: leave out one of them")
    if options.media_only and options.media is None:
        raise ConfigError("of a folder of media, say which files: by extension, by header or by glob")
    if options.media is not None and (options.media.strategy == "GLOB") != bool(options.media.patterns):
        raise ConfigError("patterns of media go with the strategy GLOB, which needs one at least, as *.jpg")
    if not 0 <= options.errors.max_errors < (1 if isinstance(options.errors.max_errors, float) else math.inf):
        raise ConfigError(f"max_errors is {options.errors.max_errors}: a number of shards, or a share below 1")
    if options.workers is not None and options.workers < 1:
        raise ConfigError(f"workers is {options.workers}: at least 1 is needed")


def _check_dataset(dataset: DatasetChoice) -> None:
    if dataset.sample_type in (None, CRUDE, "CrudeSample"):
        if dataset.field_map:
            raise ConfigError("a field map goes with a sample type, whose fields it fills; crude samples have none")
    else:
        check_sample_type(dataset.sample_type, dataset.field_map)
        from headrace.samples.media.field_map import parse_field_map

        parse_field_map(dataset.field_map)
        if dataset.part_filter:
            raise ConfigError("a part filter goes with crude samples; a field map reads the parts that it names")
    if not dataset.name.endswith(".yaml") or "/" in dataset.name:
        raise ConfigError(f"{dataset.name!r}: the file that says what samples are is named something.yaml, no folder")


def part_patterns(name: str, pattern: str) -> list[re.Pattern[str]]:
    """The regular expressions of a split part, braces expanded.

    Energon's expansion takes the backslash of ``\\d`` away; here it stays.

    Raises:
        ConfigError: malformed.
    """
    try:
        expanded = expand(pattern.replace("\\", "\\\\"), f"split part {name}")
        return [re.compile(found) for found in expanded]
    except (re.error, StoreError) as error:
        raise ConfigError(f"split part {name!r}: {pattern!r} is no regular expression: {error}") from error


def exclude_pattern(pattern: str) -> re.Pattern[str]:
    """The regular expression of the shards to leave out.

    Raises:
        ConfigError: malformed.
    """
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"exclude: {pattern!r} is no regular expression: {error}") from error
