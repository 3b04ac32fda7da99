"""What writers of stores say: of a shard that is done, and of one that another process is to continue."""

from __future__ import annotations

from typing import Literal

import msgspec

from headrace.io import FileSum

Format = Literal["indexed", "keyed", "hdf5", "jsonl", "tar"]


class KeyInfo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One key of a shard.

    Attributes:
        dtype: name of the dtype of its tokens.
        tokens: how many there are.
        ids: they are ids of the vocabulary; False for masks, lengths, rewards and the like.
        mask: they are 1 where a token is trained, and 0 elsewhere; a manifest says so where a recipe made them.
    """

    dtype: str
    tokens: int
    ids: bool = True
    mask: bool = False


class WrittenShard(msgspec.Struct, frozen=True, kw_only=True):
    """What was written: everything that a manifest says of a shard.

    Attributes:
        format: name of the layout.
        prefix: path without ``.bin`` and ``.idx``, or without ``.h5`` or ``.jsonl``; of a keyed shard its folder.
        num_documents: documents, empty ones included.
        keys: dtype and tokens of each key; an indexed shard has one, ``"tokens"``.
        contiguous: the documents lie one after another in each ``.bin``, from its first byte to its last.
        files: size and checksums of each ``.bin``, in the order of the keys, and then of ``.idx`` or ``meta.json``;
            or of the ``.h5`` or ``.jsonl``.
    """

    format: Format
    prefix: str
    num_documents: int
    keys: dict[str, KeyInfo]
    contiguous: bool
    files: tuple[FileSum, ...]

    @property
    def num_tokens(self) -> int:
        """Tokens of all keys."""
        return sum(key.tokens for key in self.keys.values())


class FileState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The bytes of one temporary file that are certainly on the disk: how many, and their xxh3_128 in hex."""

    size: int
    xxh3_128: str


class WriterState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a resumable writer can be continued from; some hundred bytes, for msgpack or JSON.

    Attributes:
        format: name of the layout.
        num_documents: documents added.
        keys: dtype and tokens of each key, in the order of the writer.
        files: the temporary files, by the name that the data file gets in the end, or its stem and ``.lengths``.
    """

    format: Format
    num_documents: int
    keys: dict[str, KeyInfo]
    files: dict[str, FileState]

    @property
    def num_tokens(self) -> int:
        """Tokens of all keys."""
        return sum(key.tokens for key in self.keys.values())
