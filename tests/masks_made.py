"""Tokenisers for the tests of masks, trained on the spot, and masks as text: `<s>Hi⟦Hello</s>⟧`.

`Masker` marks, encodes and checks conversations, as `SampleMaker` does with those of records, and nothing else.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, trainers

import talks
from headrace.errors import InputError
from headrace.samples import Conversation
from headrace.samples.masking import Dropped, DroppedError, EncodedText, MaskOptions, Refused, SpanEncoder, TextEncoder
from headrace.samples.masking.encoding import check_encoded, encode
from headrace.samples.masking.marking import Marked, Marker
from headrace.samples.templates import ChatTemplate, TemplateSetup, find
from headrace.samples.templates.suite import FAMILIES

__all__ = ["ChatTemplate", "TemplateSetup"]
OPEN, CLOSE = "⟦", "⟧"
TEXTS = [
    "the quick brown fox asks the user and the assistant whether it is system or tool 7 no hello world\n\n" * 5,
    "naïve café größer 敏捷的狐狸 素早い狐 быстрая лиса 😀 👨‍👩‍👧 é <think> </think> it's\n" * 5,
]
LENIENT: dict[str, Any] = {
    "unstable": "split",
    "on_prompt_mismatch": "allow",
    "on_untrained_end": "allow",
    "on_empty_turn": "allow",
    "on_unwritten_message": "allow",
    "on_unwritten_tool_calls": "allow",
    "on_unwritten_tools": "allow",
    "on_unwritten_parts": "allow",
    "on_no_supervised": "allow",
}
"""For conversations drawn at random: what a policy would refuse is looked at all the same."""


@functools.cache
def special_tokens() -> list[str]:
    """All that the templates of the suite write in angle brackets and the like, and the tokens they name."""
    found = {"<unk>"}
    for name, family in FAMILIES.items():
        suite = find(name)
        assert suite is not None
        found |= {*family.special_tokens.values(), suite.ends_turn(suite.special_tokens) or "<unk>"}
        pattern = r"<\|[a-zA-Z_▁]+\|>|<｜[^｜]*｜>|<start_of_turn>|\[/?INST\]|\[\|[a-z]+\|\]"  # noqa: RUF001
        found |= set(re.findall(pattern, suite.text))
    return sorted(found)


def _trained(kind: str) -> Tokenizer:
    special = [AddedToken(token, special=True, normalized=False) for token in special_tokens()]
    tokenizer: Any
    if kind in ("bytes", "nfc"):
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        if kind == "nfc":
            tokenizer.normalizer = normalizers.NFC()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer: Any = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    elif kind == "unigram":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.NFKC()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=300, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
        )
    elif kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=["<unk>"], show_progress=False)
    else:
        return _sentencepiece(special)
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_special_tokens(special)
    return tokenizer


def _sentencepiece(special: list[AddedToken]) -> Tokenizer:
    """As Llama-2's: a space is put before every text, and what the vocabulary lacks becomes bytes."""
    tokens = [
        "<unk>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *"▁abcdefghijklmnopqrstuvwxyz.\n",
        "▁t",
        "he",
        "▁the",
    ]
    tokenizer: Any = Tokenizer(
        models.BPE(
            vocab={token: number for number, token in enumerate(tokens)},
            merges=[("▁", "t"), ("h", "e"), ("▁t", "he")],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.add_special_tokens(special)
    return tokenizer


KINDS = ["bytes", "nfc", "sentencepiece", "unigram", "wordpiece"]


@functools.cache
def tokenizer_json(kind: str = "bytes") -> bytes:
    return _trained(kind).to_str().encode()


@functools.cache
def template(name: str) -> ChatTemplate:
    return ChatTemplate.load(name, now=talks.NOW)


@dataclasses.dataclass
class MaskedBatch:
    """The samples of some conversations, and what became of the others, by their numbers."""

    samples: list[EncodedText] = dataclasses.field(default_factory=list)
    records: list[int] = dataclasses.field(default_factory=list)
    dropped: list[Dropped] = dataclasses.field(default_factory=list)
    refused: list[Refused] = dataclasses.field(default_factory=list)
    counts: Counter[str] = dataclasses.field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def ids(self) -> list[int]:
        return [token for sample in self.samples for token in sample.ids.tolist()]

    @property
    def loss_mask(self) -> list[int]:
        return [mark for sample in self.samples for mark in sample.loss_mask.tolist()]


class Masker:
    def __init__(
        self,
        template: ChatTemplate,
        tokenizer: bytes,
        *,
        options: MaskOptions | None = None,
        encoder: TextEncoder | None = None,
    ) -> None:
        self.options = options or MaskOptions()
        self.spans = SpanEncoder(tokenizer, encoder)
        self._marker = Marker(template, self.options, self.spans.special_texts)
        bos = template.special_tokens.get("bos_token")
        self._bos = self.spans.tokenizer.token_to_id(bos) if bos else None

    def mask(self, conversation: Conversation, *, evidence: bool = False) -> list[EncodedText]:
        batch = self.mask_batch([conversation], evidence=evidence)
        if batch.refused:
            raise InputError(batch.refused[0].message)
        if batch.dropped:
            raise DroppedError(batch.dropped[0].reason, batch.dropped[0].message)
        return batch.samples

    def mask_batch(self, conversations: Sequence[Conversation], *, evidence: bool = False) -> MaskedBatch:
        batch = MaskedBatch()
        marked: list[Marked] = []
        owners: list[int] = []
        for number, conversation in enumerate(conversations):
            try:
                [texts] = self._marker.mark([conversation], with_all=evidence)
            except (DroppedError, InputError) as error:
                self._reject(batch, number, error, 0)
                continue
            batch.counts.update(self._marker.counts)
            marked += texts
            owners += [number] * len(texts)
        roles = [tuple(str(one.get("role", "")) for one in conversations[owner].messages) for owner in owners]
        straddling = self.options.straddle == "train"
        encoded = (
            encode(marked, self.spans, straddling=straddling, bos=self._bos, roles=roles if evidence else None)
            if marked
            else []
        )
        for number in dict.fromkeys(owners):
            own = [row for row, owner in zip(encoded, owners, strict=True) if owner == number]
            counts: Counter[str] = Counter()
            try:
                for row in own:
                    check_encoded(row, self.options, counts)
            except (DroppedError, InputError) as error:
                self._reject(batch, number, error, sum(len(row.ids) for row in own))
                continue
            batch.counts.update(counts)
            batch.samples += own
            batch.records += [number] * len(own)
            assert [row.num_supervised for row in own] == [np.count_nonzero(row.loss_mask) for row in own]
        batch.counts = +batch.counts
        return batch

    @staticmethod
    def _reject(batch: MaskedBatch, number: int, error: DroppedError | InputError, num_tokens: int) -> None:
        if isinstance(error, DroppedError):
            batch.dropped.append(Dropped(number, error.reason, str(error), num_tokens))
        else:
            batch.refused.append(Refused(number, str(error)))


def masker(text_or_name: str, kind: str = "bytes", **options: Any) -> Masker:
    """Of a template of the suite by name, or of one given as text; such texts hold a brace."""
    made = template(text_or_name) if "{" not in text_or_name else ChatTemplate.from_text(text_or_name)
    return Masker(made, tokenizer_json(kind), options=MaskOptions(**options))


def shown(sample: EncodedText) -> str:
    """The text of a sample with its trained stretches in brackets. Only of samples with evidence."""
    assert sample.evidence is not None
    text = sample.evidence.text.encode()
    pieces: list[bytes] = []
    begin = 0
    trained = False
    for token in sample.evidence.tokens(sample):
        if token.is_trained != trained:
            pieces += [text[begin : token.begin_bytes], (OPEN if token.is_trained else CLOSE).encode()]
            begin = token.begin_bytes
            trained = token.is_trained
    return b"".join([*pieces, text[begin:], CLOSE.encode() if trained else b""]).decode()


def masks(text_or_name: str, messages: talks.Talk | Conversation, kind: str = "bytes", **options: Any) -> list[str]:
    """The samples of a conversation as `shown`."""
    conversation = messages if isinstance(messages, Conversation) else Conversation(messages=messages)
    made = masker(text_or_name, kind, **options)
    samples = made.mask(conversation, evidence=True)
    # Evidence takes the thorough way; the quick one gives the same.
    quick = made.mask(conversation)
    assert [sample.ids.tolist() for sample in quick] == [sample.ids.tolist() for sample in samples]
    assert [sample.loss_mask.tolist() for sample in quick] == [sample.loss_mask.tolist() for sample in samples]
    return [shown(sample) for sample in samples]
