"""Which files hold text, told by their names and by their first bytes."""

from __future__ import annotations

from typing import Literal

from headrace.errors import InputError
from headrace.prepare.sources.block import SampleBy

Format = Literal["jsonl", "jsonl.gz", "jsonl.zst", "json", "parquet", "arrow", "txt", "txt.gz", "txt.zst", "csv", "tsv"]

_ENDINGS: dict[str, Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".jsonl.gz": "jsonl.gz",
    ".ndjson.gz": "jsonl.gz",
    ".json.gz": "jsonl.gz",  # C4 and Dolma name JSON Lines so
    ".jsonl.zst": "jsonl.zst",
    ".ndjson.zst": "jsonl.zst",
    ".json.zst": "jsonl.zst",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".feather": "arrow",
    ".txt": "txt",
    ".txt.gz": "txt.gz",
    ".txt.zst": "txt.zst",
}
FORMATS_IN_WORDS = ".jsonl or .ndjson (plain, .gz or .zst), .json.gz, .json.zst, .parquet, .arrow, .feather, .txt"

# In a folder these are data that would be lost unseen; all other names are passed over.
_UNREAD_ENDINGS = (
    *(".json", ".csv", ".tsv", ".avro", ".orc", ".tar", ".tgz", ".gz", ".zst", ".zstd", ".bz2", ".xz", ".lz4", ".zip"),
    ".7z",
)
_DESCRIPTIONS = frozenset(
    (
        *("config.json", "dataset_dict.json", "dataset_info.json", "dataset_infos.json", "headrace.json"),
        *("index.json", "manifest.json", "meta.json", "metadata.json", "state.json"),
        *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.json"),
    )
)

GZIP_MAGIC = b"\x1f\x8b"
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
ZSTD_SKIPPABLE = b"\x2a\x4d\x18"
"""Bytes 1 to 3 of a frame that decoders pass over; byte 0 is 0x50 to 0x5f."""
PARQUET_MAGIC = b"PAR1"
ARROW_FILE_MAGIC = b"ARROW1"
ARROW_STREAM_MAGIC = b"\xff\xff\xff\xff"
HEAD_BYTES = 8


def format_of(name: str) -> Format | None:
    """The format that a name promises, in any case of letters, or None."""
    lower = name.lower()
    return next((_ENDINGS[ending] for ending in _ENDINGS if lower.endswith(ending)), None)


def is_unread_data(name: str) -> bool:
    """Whether a file of this name, met in a folder, may be data that no reader here takes."""
    base = name.rpartition("/")[2].lower()
    return base not in _DESCRIPTIONS and format_of(base) is None and base.endswith(_UNREAD_ENDINGS)


def sniff(head: bytes) -> Format:
    """The format of a stream without a name, by its first `HEAD_BYTES`; what nothing betrays is JSON Lines."""
    if head.startswith(GZIP_MAGIC):
        return "jsonl.gz"
    if is_zstd(head):
        return "jsonl.zst"
    if head.startswith(PARQUET_MAGIC):
        return "parquet"
    if head.startswith((ARROW_FILE_MAGIC, ARROW_STREAM_MAGIC)):
        return "arrow"
    return "jsonl"


def is_zstd(head: bytes) -> bool:
    """Whether a zstd frame begins here."""
    return head.startswith(ZSTD_MAGIC) or (head[1:4] == ZSTD_SKIPPABLE and head[0] >> 4 == 5)


def check_head(name: str, kind: Format, head: bytes) -> None:
    """Hold what a file is called against its first `HEAD_BYTES`.

    Raises:
        InputError: an archive without content, or a file that holds something else than its name says.
    """
    if not head:
        if kind not in ("jsonl", "json", "txt"):
            raise InputError(f"{name}: the file is empty (0 bytes), and so no {kind} file. Was it written whole?")
        return
    is_gzip, is_compressed_zstd = head.startswith(GZIP_MAGIC), is_zstd(head)
    if kind in ("jsonl", "json", "txt"):
        if is_gzip or head.startswith(ZSTD_MAGIC):
            ending = "gz" if is_gzip else "zst"
            raise InputError(f"{name}: the file is compressed: give it a name that ends in .{kind}.{ending}")
        return
    good = {
        "gz": is_gzip,
        "zst": is_compressed_zstd,
        "parquet": head.startswith(PARQUET_MAGIC),
        "arrow": not head.startswith((b"FEA1", PARQUET_MAGIC, GZIP_MAGIC, ZSTD_MAGIC)),
    }
    if not good[kind.rpartition(".")[2]]:
        raise InputError(
            f"{name}: its name says {kind}, its first bytes do not: {head!r}. Give it the name of what it is, or "
            "write it again."
        )


def record_noun(kind: str, sample_by: SampleBy) -> str:
    """What one place of `Block.lines` is in a file of this `Format`: ``line``, ``row``, ``record``, ``paragraph``
    or ``document``.

    People count rows of Parquet and Arrow from 0, all others from 1.
    """
    if kind in ("parquet", "arrow"):
        return "row"
    if kind in ("json", "csv", "tsv"):
        return "record"
    return sample_by if kind.startswith("txt") else "line"


def counted_from(noun: str) -> int:
    """The number that people give to the first of these."""
    return 0 if noun == "row" else 1
