"""Options of `prepare_shards`, with all their defaults."""

from __future__ import annotations

import importlib.util
from typing import Literal

import msgspec

from headrace.config import Positive, check_fields
from headrace.errors import ConfigError, MissingExtraError
from headrace.preparing.options import ErrorOptions, RunOptions, check_record_bytes, check_run, check_shares
from headrace.samples.media.registry import check_field_map
from headrace.stores.tar.members import sample_part

PartKind = Literal["path", "column", "bytes", "row"]

IMAGE, AUDIO, VIDEO = "image", "audio", "video"
"""Parts of these names are renamed: an image by its content (``jpg``, ``png``, ...), sound and video by the ending of
the file (``wav``, ``mp4``, ...), or else by their content."""

FORMS = "part=path:COLUMN, part=column:COLUMN, part=bytes:COLUMN or part=row"


class PartSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One part of every sample of a table: its name, and where its content comes from.

    Attributes:
        part: name of the part in the shard (``jpg``, ``txt``); ``image``, ``audio`` and ``video`` are renamed by their
            content, or by the ending of a file.
        kind: ``path``, the file that a column names; ``column``, the text of a column, or its JSON if it is not text;
            ``bytes``, the bytes of a binary column, a Hugging Face image or base64; ``row``, JSON of all columns that
            no other part uses.
        column: name of the column; empty for ``row``.

    Example:
        >>> from headrace.preparing.shards import PartSpec
        >>> str(PartSpec(part="txt", kind="column", column="caption"))
        'txt=column:caption'
    """

    part: str
    kind: PartKind
    column: str = ""

    @classmethod
    def parse(cls, text: str) -> PartSpec:
        """Parse the form of the command line, such as ``jpg=path:image_path``.

        Raises:
            ConfigError: the text has another form.
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
    """How the inputs become samples with keys and parts."""

    parts: tuple[PartSpec, ...] = ()
    """Parts of the samples of tables and captions. If it is empty, they are chosen by the names of the columns; see
    `inputs.choose_parts`."""

    key_field: str | None = None
    """The column that holds the key of a sample; None numbers the samples through all inputs, with nine digits."""

    key_dots: Literal["error", "replace", "part"] = "error"
    """What happens to a dot in a key: ``error``; ``replace`` it by ``_``; or ``part``: the name of a file's part begins
    after its first dot (``a.seg.png`` is part ``seg.png`` of ``a``), as webdataset reads it."""

    root: str | None = None
    """The folder of the files that a table names; None means the folder of the table."""

    captions: str | None = None
    """A table whose rows name and describe the files of a folder."""

    verify: bool = False
    """Check the headers of images, and whole texts and JSON."""

    duplicates: Literal["error", "drop"] = "error"
    """What happens to a sample whose key an earlier sample has: it is an error, or it is left out and counted."""

    max_record_bytes: int = 256 << 20
    """Maximum bytes of a line of a table; a longer line is a bad record."""


class ShardOutput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is written: size and order of the shards, split and sample type."""

    samples_per_shard: Positive | None = 10_000
    """Maximum number of samples per shard; None means no limit."""

    shard_bytes: Positive | None = 1 << 30
    """Maximum bytes of a shard; None means no limit. A shard ends before the sample that would exceed it; a larger
    sample gets a shard of its own. The sizes of files that a table names, and of rows that hold the media themselves,
    are estimated, so that shards of tables have about this size."""

    shuffle: int | None = None
    """Seed of a uniform shuffle of all samples; None keeps the order of the input. Rows that hold the media themselves
    are shuffled by spans, and within a shard."""

    split_ratio: tuple[float, ...] = ()
    """Shares of train, val and test, as 8, 1, 1; each part has its own shards. The hash of its key decides to which
    part a sample belongs, so that it stays there when inputs are added; of fewer than 1,000 samples, the rank of the
    hash. Without shares all samples are train."""

    sample_type: str | None = None
    """The sample type in ``dataset.yaml``, as ``CaptioningSample``; None makes the samples crude."""

    field_map: dict[str, str] = {}
    """Fields of the sample type, and the part that each comes from."""


class ShardOptions(RunOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of `prepare_shards`.

    ``source`` and ``output`` decide the bytes of the output. The other options change no byte of a run that
    succeeds.

    Example:
        >>> from headrace.preparing.shards import ShardOptions, ShardOutput
        >>> options = ShardOptions(output=ShardOutput(samples_per_shard=1000, split_ratio=(8, 1, 1)))
        >>> options.output.samples_per_shard
        1000
    """

    source: ShardSource = ShardSource()
    output: ShardOutput = ShardOutput()
    errors: ErrorOptions = ErrorOptions()


def check_options(options: ShardOptions) -> None:
    """Refuse options that are invalid or contradict each other.

    Raises:
        ConfigError: an option is refused; the message says what was found and what is allowed.
        MissingExtraError: images are to be verified, and Pillow is not installed.
    """
    output = options.output
    _check_parts(options.source)
    check_run(options, options.errors)
    check_fields(output)
    check_record_bytes(options.source.max_record_bytes)
    if output.shuffle is not None and not 0 <= output.shuffle < 1 << 63:
        raise ConfigError(f"the seed of --shuffle is {output.shuffle}: allowed are 0 to 2^63 - 1")
    check_shares(output.split_ratio)
    if (output.sample_type is None) != (not output.field_map):
        raise ConfigError(
            "a sample type needs a field map, which says which part each field comes from: give both or neither"
        )
    if output.sample_type is not None:
        check_field_map(output.sample_type, output.field_map)
    if options.source.verify and importlib.util.find_spec("PIL") is None:
        raise MissingExtraError("--verify needs Pillow for images: pip install 'headrace[image]'")


def _check_parts(source: ShardSource) -> None:
    names = [spec.part for spec in source.parts]
    for spec in source.parts:
        if sample_part(f"key.{spec.part}") != ("key", spec.part) or not spec.part or not spec.part.isprintable():
            raise ConfigError(
                f"--part {spec}: {spec.part!r} cannot name a part: write a printable name without slash, as seg.png"
            )
        if names.count(spec.part) > 1:
            raise ConfigError(f"--part: the part {spec.part!r} is named twice")
