"""`Masker`: encodes conversations to ids and loss masks, a batch at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from headrace.errors import InputError
from headrace.samples.conversation import Conversation
from headrace.samples.masking.encoding import EncodedText, encode
from headrace.samples.masking.marking import Marked, Marker, decide
from headrace.samples.masking.options import MaskOptions, RendersAhead, Template, TextEncoder
from headrace.samples.masking.results import (
    ALL_SUPERVISED,
    DOUBLED_BOS,
    NO_SUPERVISED,
    TOO_LONG,
    UNTRAINED_END,
    Counts,
    DroppedError,
    Masked,
    MaskedBatch,
    Rejects,
)
from headrace.samples.masking.token_spans import SpanEncoder
from headrace.samples.masking.truncation import Truncation, most_exchanges, truncate
from headrace.samples.tokenizer import TokenizerFile


class Masker:
    """Masks conversations with one template, one tokeniser and one set of options.

    A conversation's text is encoded as a whole, and no token is added to it.

    Args:
        template: The chat template.
        tokenizer: A ``tokenizer.json``, or its bytes.
        options: Which tokens are trained; None uses the defaults.
        encoder: A faster encoder that returns the same ids as `tokenizers`. It is used if the positions of tokens need
            no offsets; see `token_spans`.

    Raises:
        ConfigError: If the tokeniser cannot be read.

    Example:
        >>> from pathlib import Path
        >>> from headrace.samples import Conversation
        >>> from headrace.samples.masking import Masker
        >>> from headrace.samples.templates import ChatTemplate
        >>> masker = Masker(ChatTemplate.load("chatml"), Path("chat-tokenizer/tokenizer.json").read_bytes())
        >>> messages = [{"role": "user", "content": "word1"}, {"role": "assistant", "content": "word2 word3"}]
        >>> [sample] = masker.mask(Conversation(messages=messages))
        >>> len(sample.ids), sample.num_supervised  # two words of the answer, and the end of the turn
        (9, 3)
    """

    def __init__(
        self,
        template: Template,
        tokenizer: TokenizerFile | bytes,
        *,
        options: MaskOptions | None = None,
        encoder: TextEncoder | None = None,
    ) -> None:
        self.options = options or MaskOptions()
        self.spans = SpanEncoder(tokenizer, encoder)
        self._template = template
        self._marker = Marker(template, self.options, self.spans.special_texts)
        bos = template.special_tokens.get("bos_token")
        self._bos: int | None = self.spans.tokenizer.token_to_id(bos) if bos else None

    def mask(
        self, conversation: Conversation, *, truncation: Truncation | None = None, evidence: bool = False
    ) -> list[Masked]:
        """Return the samples of one conversation: one, or several if an unstable template splits it.

        Raises:
            InputError: If the conversation cannot be rendered, or a policy refuses it.
            DroppedError: If a policy drops it.
        """
        batch = self.mask_batch([conversation], truncation=truncation, evidence=evidence)
        if batch.refused:
            raise InputError(batch.refused[0].message)
        if batch.dropped:
            raise DroppedError(batch.dropped[0].reason, batch.dropped[0].message)
        return list(batch.samples())

    def mask_batch(
        self, conversations: Sequence[Conversation], *, truncation: Truncation | None = None, evidence: bool = False
    ) -> MaskedBatch:
        """Return the samples of all conversations, and the reasons why others have none.

        One conversation never changes the samples of another, so the division into batches does not matter.
        """
        work = _Batch(self, conversations, truncation, evidence)
        if isinstance(self._template, RendersAhead):
            self._template.render_ahead(conversations)
        marked: list[Marked] = []
        owners: list[int] = []
        for number, conversation in enumerate(conversations):
            try:
                [texts] = self._marker.mark([conversation], with_all=evidence)
            except (DroppedError, InputError) as error:
                work.rejects.add(number, error, 0)
                continue
            work.counts.update(self._marker.counts)
            marked += texts
            owners += [number] * len(texts)
        encoded = self._encode(conversations, marked, owners, evidence=evidence) if marked else []
        for number, rows in _grouped(owners):
            own = [encoded[row] for row in rows]
            try:
                work.take(number, own)
            except (DroppedError, InputError) as error:
                work.rejects.add(number, error, _num_tokens(own))
        return work.result()

    def _encode(
        self, conversations: Sequence[Conversation], marked: list[Marked], owners: Sequence[int], *, evidence: bool
    ) -> list[EncodedText]:
        roles = [_roles(conversations[owner]) for owner in owners] if evidence else None
        return encode(marked, self.spans, straddling=self.options.straddle == "train", bos=self._bos, roles=roles)

    def _exactly(self, conversation: Conversation, *, evidence: bool) -> list[EncodedText]:
        """Encode the texts of one conversation by themselves."""
        [marked] = self._marker.mark([conversation], with_all=evidence)
        return self._encode([conversation], marked, [0] * len(marked), evidence=evidence)


class _Batch:
    """Collects what became of the records of a batch."""

    def __init__(
        self, masker: Masker, conversations: Sequence[Conversation], truncation: Truncation | None, evidence: bool
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.rejects = Rejects()
        self._masker = masker
        self._conversations = conversations
        self._truncation = truncation
        self._with_evidence = evidence
        self._samples: list[Masked] = []
        self._num_supervised: list[int] = []

    def take(self, record: int, encoded: list[EncodedText]) -> None:
        """Check, truncate and keep the samples of a record: all of them, or none."""
        counts: Counter[str] = Counter()
        truncation = self._truncation
        for row in encoded:
            check_encoded(row, self._masker.options, counts)
        if (
            truncation is not None
            and truncation.by_turns
            and any(len(row.ids) > truncation.max_tokens for row in encoded)
        ):
            num_tokens = _num_tokens(encoded)
            shorter = self._shorten(record, truncation, num_tokens)
            if _num_supervised(encoded) and not _num_supervised(shorter):
                truncation.refuse_cut(num_tokens, _num_supervised(encoded))
            counts.clear()
            for row in shorter:
                check_encoded(row, self._masker.options, counts)
            counts["shortened_records"] += 1
            counts["truncated_tokens"] += num_tokens - _num_tokens(shorter)
            encoded = shorter
        samples = [
            Masked(record=record, ids=row.ids, loss_mask=row.loss_mask, evidence=row.evidence) for row in encoded
        ]
        if truncation is not None:
            cut = [truncate(sample, truncation) for sample in samples]
            counts["truncated_tokens"] += sum(
                len(before.ids) - len(after.ids) for before, after in zip(samples, cut, strict=True)
            )
            samples = cut
        self._samples += samples
        self._num_supervised += [sample.num_supervised for sample in samples]
        self.counts.update(counts)

    def _shorten(self, record: int, truncation: Truncation, num_tokens: int) -> list[EncodedText]:
        """Keep the most exchanges that fit and render them again."""

        def made(shorter: Conversation) -> list[EncodedText] | None:
            found = self._masker._exactly(shorter, evidence=self._with_evidence)
            return found if all(len(row.ids) <= truncation.max_tokens for row in found) else None

        first = truncation.over_long == "keep_first_turns"
        fitting = most_exchanges(self._conversations[record], made, first=first)
        if not fitting:
            raise DroppedError(
                TOO_LONG,
                f"the sample has {num_tokens:,} tokens, max_tokens is {truncation.max_tokens:,}, and not even one of "
                "its exchanges fits",
            )
        return fitting

    def result(self) -> MaskedBatch:
        """Return the arrays of everything that was kept."""
        samples = self._samples
        return MaskedBatch(
            ids=np.concatenate([sample.ids for sample in samples] or [np.zeros(0, np.uint32)]),
            loss_mask=np.concatenate([sample.loss_mask for sample in samples] or [np.zeros(0, np.uint8)]),
            lengths=np.array([len(sample.ids) for sample in samples], np.int64),
            records=np.array([sample.record for sample in samples], np.int64),
            num_supervised=np.array(self._num_supervised, np.int32),
            dropped=sorted(self.rejects.dropped),
            refused=sorted(self.rejects.refused),
            counts=+self.counts,
            evidence=[sample.evidence for sample in samples if sample.evidence is not None]
            if self._with_evidence
            else None,
        )


def check_encoded(row: EncodedText, options: MaskOptions, counts: Counts) -> None:
    """Apply the policies to one encoded text, which lead to nothing, a count, a drop or an error.

    Raises:
        InputError: If a policy refuses the text.
        DroppedError: If a policy drops it.
    """
    num_supervised = row.num_supervised
    if not num_supervised:
        if row.num_straddling:
            why = (
                f"{row.num_straddling:,} lie across a border, as of a prompt and its answer, and have trained and "
                f"untrained bytes, such as {row.straddling!r}. `mask: {{straddle: train}}` trains them as a whole"
            )
        else:
            why = (
                f"no message has one of the roles {', '.join(options.roles)}, flags exclude all of these, or the "
                "template does not write their content"
            )
        message = f"none of its {len(row.ids):,} tokens is trained: {why}"
        decide(options.on_no_supervised, NO_SUPERVISED, message, counts)
    elif num_supervised == len(row.ids) and row.is_partly_trained:
        message = f"all of its {len(row.ids):,} tokens are trained, though some of its messages should not be"
        decide(options.on_all_supervised, ALL_SUPERVISED, message, counts)
    if row.has_doubled_bos:
        message = (
            f"it begins with two BOS (id {int(row.ids[0])}): the template writes one, and the text of the first "
            "message begins with another. Remove one of them"
        )
        decide(options.on_doubled_bos, DOUBLED_BOS, message, counts)
    if row.has_untrained_end:
        message = (
            "the token that ends a turn is not trained: the tokeniser joins it with text that is not trained, so it is "
            "not a special token there. Use the tokeniser that belongs to the template; `straddle: train` trains such "
            "tokens as a whole, `on_untrained_end: allow` leaves them untrained"
        )
        decide(options.on_untrained_end, UNTRAINED_END, message, counts)
    if row.num_straddling:
        counts["straddling_tokens"] += row.num_straddling


def _roles(conversation: Conversation) -> tuple[str, ...]:
    return tuple(str(message.get("role", "")) for message in conversation.messages)


def _grouped(owners: Sequence[int]) -> Iterator[tuple[int, range]]:
    """Yield each owner with its rows, which are adjacent."""
    begin = 0
    for row in range(1, len(owners) + 1):
        if row == len(owners) or owners[row] != owners[begin]:
            yield owners[begin], range(begin, row)
            begin = row


def _num_tokens(encoded: list[EncodedText]) -> int:
    return sum(len(row.ids) for row in encoded)


def _num_supervised(encoded: list[EncodedText]) -> int:
    return sum(row.num_supervised for row in encoded)
