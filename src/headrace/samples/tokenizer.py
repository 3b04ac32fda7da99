"""A ``tokenizer.json`` in memory: the features that it asks for, and the library's tokeniser, which is loaded once.

Imports nothing else of this room.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
from tokenizers import Tokenizer

from headrace.errors import ConfigError

Json = dict[str, Any]


class Added(msgspec.Struct, frozen=True):
    """An added token, which the tokeniser searches for in the text before anything else."""

    content: str
    id: int
    special: bool = False
    normalized: bool | None = None
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False

    def __post_init__(self) -> None:
        if self.normalized is None:
            msgspec.structs.force_setattr(self, "normalized", not self.special)

    @property
    def takes_more(self) -> bool:
        """Whether the text beside it decides whether it is found, or becomes part of it."""
        return self.single_word or self.lstrip or self.rstrip


class TokenizerParts(NamedTuple):
    """The parts of a tokeniser; nested sequences are flattened."""

    json: dict[str, msgspec.Raw]
    """The parts of the whole file as they are written: most readers need no vocabulary, which is nearly all of it."""

    model: Json
    """The model without its vocabulary and its merges."""

    normalizers: list[Json]
    pre_tokenizers: list[Json]
    added: list[Added]

    def vocabulary(self) -> Any:
        """Read the vocabulary of the model: the id of each token for byte-pair encoding."""
        return msgspec.json.decode(msgspec.json.decode(self.json["model"], type=dict[str, msgspec.Raw])["vocab"])

    def for_texts(self) -> bytes:
        """The file for another library, without truncation, padding and post-processor.

        Merges are written as in older files, as texts such as ``"t h"`` in place of pairs, which are read in less time.
        """
        model = msgspec.json.decode(self.json["model"], type=dict[str, msgspec.Raw])
        with contextlib.suppress(msgspec.ValidationError, KeyError):
            merges = list(map(" ".join, msgspec.json.decode(model["merges"], type=list[tuple[str, str]])))
            if "".join(merges).count(" ") == len(merges):
                model["merges"] = msgspec.Raw(msgspec.json.encode(merges))
        without = {"truncation": None, "padding": None, "post_processor": None}
        return msgspec.json.encode({**self.json, "model": model, **without})


class TokenizerFile:
    """The bytes of a ``tokenizer.json``, which a process parses once, for all who use them.

    Args:
        content: The bytes.
        name: What messages call it.
    """

    def __init__(self, content: bytes, name: str = "this") -> None:
        self.content = content
        self._name = name

    @classmethod
    def of(cls, tokenizer: TokenizerFile | bytes) -> TokenizerFile:
        """Return a file as it is, and make one of bytes."""
        return cls(tokenizer) if isinstance(tokenizer, bytes) else tokenizer

    def encoder(self, *, literal: bool = False) -> Tokenizer:
        """Return the library's tokeniser, without truncation, padding and post-processor.

        It is the same object each time, so it must not be changed, and is to be asked for again before each use:
        ``literal`` says whether the text of a special token is ordinary text from now on.

        Raises:
            ConfigError: If the library cannot read the file.
        """
        encoder, _ = self._loaded
        encoder.encode_special_tokens = literal
        return encoder

    @cached_property
    def num_ids(self) -> int:
        """The largest id + 1."""
        return max(self.encoder().get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @property
    def around(self) -> tuple[list[int], list[int]] | None:
        """The ids that the post-processor adds before and after a text; None if it does anything else."""
        return self._loaded[1]

    def before(self, config: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the ids with which the tokeniser begins a text, mostly BOS alone; GLM has two.

        They are those of the post-processor. ``config`` is the content of ``tokenizer_config.json``: ``add_bos_token``
        false means none, and true means ``bos_token`` if the post-processor adds nothing, as in Hugging Face.
        """
        adds = config.get("add_bos_token")
        if adds is False:
            return ()
        before, _ = self.around or ([], [])
        bos = config.get("bos_token")
        bos = bos.get("content") if isinstance(bos, Mapping) else bos
        if adds is True and not before and isinstance(bos, str):
            number = self.encoder().token_to_id(bos)
            before = [] if number is None else [number]
        return tuple(before)

    @cached_property
    def parts(self) -> TokenizerParts:
        """What the file says.

        Raises:
            ConfigError: If it does not have the expected structure.
        """
        try:
            json = msgspec.json.decode(self.content, type=dict[str, msgspec.Raw])
            parts = msgspec.json.decode(json["model"], type=dict[str, msgspec.Raw])
            model = {name: msgspec.json.decode(part) for name, part in parts.items() if name not in ("vocab", "merges")}
            # Files from before 2020 do not name their model; those with merges are byte-pair encoding.
            if "type" not in model and "merges" in parts:
                model["type"] = "BPE"
            added = _decoded(json, "added_tokens", list[Added] | None) or []
            return TokenizerParts(
                json=json,
                model=model,
                normalizers=list(_unrolled(_decoded(json, "normalizer"), "normalizers")),
                pre_tokenizers=list(_unrolled(_decoded(json, "pre_tokenizer"), "pretokenizers")),
                added=[token for token in added if token.content],
            )
        except (msgspec.DecodeError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"its tokenizer.json cannot be taken apart: {error!r}") from error

    @cached_property
    def _loaded(self) -> tuple[Tokenizer, tuple[list[int], list[int]] | None]:
        try:
            encoder = Tokenizer.from_str(self.content.decode("utf-8"))
        except Exception as error:  # the library raises bare Exception
            raise ConfigError(f"{self._name} is not a tokenizer.json of the library tokenizers: {error}") from error
        encoder.no_truncation()
        encoder.no_padding()
        around = _tokens_around(encoder)
        # It would also remove white space from the offsets of tokens.
        encoder.post_processor = None
        return encoder, around


def _tokens_around(tokenizer: Tokenizer) -> tuple[list[int], list[int]] | None:
    if tokenizer.post_processor is None:
        return [], []  # nothing is encoded: a vocabulary of a few words refuses all others
    text = "a"
    plain = tokenizer.encode(text, add_special_tokens=False).ids
    full = tokenizer.encode(text, add_special_tokens=True).ids
    places = [at for at in range(len(full) - len(plain) + 1) if full[at : at + len(plain)] == plain]
    return (full[: places[0]], full[places[0] + len(plain) :]) if len(places) == 1 else None


def _decoded(json: Mapping[str, msgspec.Raw], name: str, kind: Any = Any) -> Any:
    """A part of the file; None if it is not there or null."""
    return msgspec.json.decode(json[name], type=kind) if name in json else None


def _unrolled(step: Any, children: str) -> Iterator[Json]:
    if step is None:
        return
    if step["type"] == "Sequence":
        for child in step[children]:
            yield from _unrolled(child, children)
    else:
        yield step
