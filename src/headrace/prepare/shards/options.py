"""What the caller may choose about preparing shards, and the defaults, in one place."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from headrace.errors import ConfigError
from headrace.prepare.options import ErrorOptions
from headrace.stores.tar.names import sample_part

PartKind = Literal["path", "column", "bytes", "row"]

IMAGE = "image"
"""A part of this name is called by what it holds: ``jpg``, ``png``, ``webp``, ..."""

FORMS = "part=path:COLUMN, part=column:COLUMN, part=bytes:COLUMN or part=row"


class PartSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One part of every sample of a table: its name, and what of a row it holds.

    Attributes:
        part: its name in the shard (``jpg``, ``txt``); ``image`` is named by its content.
        kind: ``path``, the file that a column names; ``column``, its text, or JSON of what is no text; ``bytes``, of a
            binary column, of a Hugging Face image, or in base64; ``row``, JSON of all columns that no other part takes.
        column: name of the column; none for ``row``.
    """

    part: str
    kind: PartKind
    column: str = ""

    @classmethod
    def parse(cls, text: str) -> PartSpec:
        """``jpg=path:image_path`` and the like.

        Raises:
            ConfigError: it is of another form.
        """
        part, equals, source = text.partition("=")
        kind, colon, column = source.partition(":")
        is_row = kind == "row" and not colon
        if not equals or not (is_row or (kind in ("path", "column", "bytes") and column)):
            raise ConfigError(f"--part {text!r}: the forms are {FORMS}")
        return cls(part=part, kind=kind, column=column)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return f"{self.part}={self.kind}:{self.column}" if self.column else f"{self.part}={self.kind}"


class ShardSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What of the inputs becomes which part of which sample."""

    parts: tuple[PartSpec, ...] = ()
    """Of tables, and of captions; none: by the names of the columns, see `inputs.choose_parts`."""

    key_field: str | None = None
    """The column that names a sample; None numbers them through all inputs, with nine digits."""

    key_dots: Literal["error", "replace", "part"] = "error"
    """A dot in a name, besides the one before the extension: an error; ``_`` in its place; or, of files, what follows
    the first dot is the name of the part (``a.seg.png`` is part ``seg.png`` of ``a``), as webdataset reads it."""

    root: str | None = None
    """The folder of the files that a table names; None: the table's own."""

    captions: str | None = None
    """Of a folder of files: a table whose rows name them, and describe them."""

    verify: bool = False
    """Look at the headers of images, and at JSON and text as a whole."""

    duplicates: Literal["error", "drop"] = "error"
    """A key that was there before: an error, or the later sample is left out and counted."""

    max_record_bytes: int = 256 << 20
    """A longer line of a table is a bad record."""


class ShardOutput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is written, and in which order."""

    samples_per_shard: int | None = 10_000
    """The most samples a shard; None: any number."""

    shard_bytes: int | None = 1 << 30
    """A shard ends before the sample that would take it over this many bytes; None: any number. A larger sample is a
    shard of its own."""

    shuffle: int | None = None
    """Seed of a uniform shuffle of all samples; None keeps the order of the input."""

    split_ratio: tuple[float, ...] = ()
    """Shares of train, val and test, as 8, 1, 1: each has shards of its own. None: all is train."""

    sample_type: str | None = None
    """The sample type for ``dataset.yaml``, as ``CaptioningSample``; None: crude samples."""

    field_map: dict[str, str] = {}
    """Its fields, and the part that each comes from."""


class ShardOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `prepare_shards`; the only place that owns their defaults.

    The first two groups decide the bytes of the output. What follows them changes no byte of a run that succeeds.
    """

    source: ShardSource = ShardSource()
    output: ShardOutput = ShardOutput()
    errors: ErrorOptions = ErrorOptions()

    workers: int | None = None
    """Number of worker processes; None takes the number of usable cores."""

    overwrite: bool = False
    """Replace what an earlier run wrote to the same folder, once the new output is complete."""

    restart: bool = False
    """Discard what an unfinished run left in the folder, and begin anew."""


SPLIT_NAMES = ("train", "val", "test")


def check_options(options: ShardOptions) -> None:
    """Refuse options that contradict each other or cannot be.

    Raises:
        ConfigError: with what was found and what is allowed.
    """
    output, errors = options.output, options.errors
    _check_parts(options.source)
    for name in ("samples_per_shard", "shard_bytes"):
        value = getattr(output, name)
        if value is not None and value < 1:
            raise ConfigError(f"{name} is {value}: at least 1 is needed")
    if output.shuffle is not None and not 0 <= output.shuffle < 1 << 63:
        raise ConfigError(f"the seed of --shuffle is {output.shuffle}: allowed are 0 to 2^63 - 1")
    ratio = output.split_ratio
    if ratio and (len(ratio) > len(SPLIT_NAMES) or not all(0 <= share < 1e15 for share in ratio) or not sum(ratio)):
        raise ConfigError(f"split_ratio is {ratio}: write the shares of train, val and test, as 8,1,1")
    if (output.sample_type is None) != (not output.field_map):
        raise ConfigError("a sample type goes with a field map, which says of which part each field is: give both")
    if output.sample_type is not None:
        check_sample_type(output.sample_type, output.field_map)
    if not 0 <= errors.max_errors < (1 if isinstance(errors.max_errors, float) else math.inf):
        raise ConfigError(f"max_errors is {errors.max_errors}: a number of records, or a share below 1 such as 0.001")
    if options.workers is not None and options.workers < 1:
        raise ConfigError(f"workers is {options.workers}: at least 1 is needed")
    if options.source.max_record_bytes < 1 << 20:
        raise ConfigError(f"max_record_bytes is {options.source.max_record_bytes:,}: at least {1 << 20:,} are needed")


def _check_parts(source: ShardSource) -> None:
    names = [spec.part for spec in source.parts]
    for spec in source.parts:
        if sample_part(f"key.{spec.part}") != ("key", spec.part) or not spec.part or not spec.part.isprintable():
            raise ConfigError(
                f"--part {spec}: {spec.part!r} cannot name a part: it is what follows a dot, without slash"
            )
        if names.count(spec.part) > 1:
            raise ConfigError(f"--part: the part {spec.part!r} is named twice")


def check_sample_type(name: str, field_map: dict[str, str]) -> None:
    """Raise ConfigError unless there is such a sample type, and the field map has its fields and no others."""
    import dataclasses
    import difflib

    from headrace.samples.media.registry import SAMPLE_TYPES

    if name not in SAMPLE_TYPES:
        close = difflib.get_close_matches(name, SAMPLE_TYPES, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ConfigError(f"no sample type {name!r}; known are {', '.join(SAMPLE_TYPES)}{hint}")
    fields = [field for field in dataclasses.fields(SAMPLE_TYPES[name]) if not field.name.startswith("__")]
    for field in field_map:
        if field not in [known.name for known in fields]:
            raise ConfigError(f"{name} has no field {field!r}; it has {', '.join(known.name for known in fields)}")
    for known in fields:
        is_needed = known.default is dataclasses.MISSING and known.default_factory is dataclasses.MISSING
        if is_needed and known.name not in field_map:
            raise ConfigError(f"the field map has no {known.name!r}, which {name} needs")
