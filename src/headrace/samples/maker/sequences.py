"""Make sequences of ids and masks from marked texts: encode them together, add end tokens, check and cut each.

The tokens at the ends of a sequence are BOS, EOS, and those that the tokeniser's post-processor adds.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence as Sequenced
from functools import cached_property
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from headrace.config import nearest
from headrace.errors import ConfigError, InputError
from headrace.samples.masking.encoding import check_encoded, encode
from headrace.samples.masking.marking import Marked, decide
from headrace.samples.masking.options import MaskOptions
from headrace.samples.masking.pieces import Region, TextRange, Why
from headrace.samples.masking.results import (
    MISSING_BOS,
    SUPERVISION_CUT,
    TOO_LONG,
    UNREAD_FLAGS,
    DroppedError,
    EncodedText,
)
from headrace.samples.masking.token_spans import SpanEncoder, byte_places
from headrace.samples.recipe.recipe import LengthSpec, OverLong
from headrace.samples.tokenizer import TokenizerFile

EMPTY = "empty"
"""The reason for which a record without text is dropped."""

Ids = NDArray[np.uint32]
Mask = NDArray[np.uint8]
_NONE: Ids = np.zeros(0, np.uint32)

BOS_WORDS = ("auto", "always", "never", "known")
"""The values of ``ends.bos`` that are no token."""


class Ends(NamedTuple):
    """The tokens that one sequence gets at its ends."""

    before: Ids = _NONE
    """Never trained. Not added if the sequence already begins with it."""

    after: Ids = _NONE
    """Not added if the sequence already ends in it."""

    is_trained: bool = False
    """Whether ``after`` is trained."""

    usual: Ids = _NONE
    """The tokens with which the tokeniser itself begins a text, if their absence is to be reported."""

    @property
    def is_empty(self) -> bool:
        """Whether the sequence gets no tokens."""
        return not len(self.before) and not len(self.after)


class EndTokens:
    """The ids of BOS and EOS of one tokeniser, looked up once.

    Args:
        file: The tokeniser.
        special_tokens: ``bos_token`` and ``eos_token``, as the tokeniser's configuration and the chat template name
            them.
        bos: See `EndSpec.bos`.
        eos: The token to use as EOS instead; None uses ``eos_token``.
        before_text: The ids with which the tokeniser begins a text; None: those that its post-processor adds.

    Attributes:
        usual_bos: The ids with which the tokeniser begins a text.

    Raises:
        ConfigError: If ``bos`` or ``eos`` is not in the vocabulary.
    """

    def __init__(
        self,
        file: TokenizerFile,
        special_tokens: Mapping[str, str],
        *,
        bos: str,
        eos: str | None,
        before_text: Sequenced[int] | None,
    ) -> None:
        self._file = file
        self.when = bos if bos in BOS_WORDS else "always"
        self._bos = self._find(None if bos in BOS_WORDS else bos, special_tokens.get("bos_token"), "bos")
        self._eos = self._find(eos, special_tokens.get("eos_token"), "eos")
        before = file.before({}) if before_text is None else before_text
        self.usual_bos: Ids = np.array(before, np.uint32)

    def begin(self, *, is_text: bool) -> Ends:
        """Return what comes before a text, or before what a template wrote, if it is not there already.

        Raises:
            ConfigError: If a token is wanted and not known.
        """
        before = _NONE
        if self.when == "auto":
            before = self.usual_bos if is_text else _NONE
        elif self.when == "always" and self._bos is None and len(self.usual_bos):
            before = self.usual_bos
        elif self.when == "always" or (self.when == "known" and self._bos is not None):
            before = self._known(self._bos, "bos", "begin")
        return Ends(before, usual=_NONE if len(before) else self.usual_bos)

    @property
    def eos(self) -> Ids:
        """(1,) the end-of-sequence token.

        Raises:
            ConfigError: If the token is not known.
        """
        return self._known(self._eos, "eos", "end")

    @cached_property
    def around(self) -> tuple[Ids, Ids]:
        """The tokens that the tokeniser itself adds before and after a text.

        Raises:
            ConfigError: If the post-processor does anything other than add tokens around the text.
        """
        found = self._file.around
        if found is None:
            raise ConfigError(
                "add_special_tokens: the tokeniser's post-processor does more than add tokens around a text; use "
                "add_special_tokens: false, and ends.bos or ends.append_eos"
            )
        before, after = found
        return np.array([] if self.when == "never" else before, np.uint32), np.array(after, np.uint32)

    def _find(self, wanted: str | None, usual: str | None, name: str) -> int | None:
        if wanted is None:
            found: int | None = None if usual is None else self._file.encoder().token_to_id(usual)
            return found
        found = self._file.encoder().token_to_id(wanted)
        if found is None:
            vocabulary = [token.content for token in self._file.encoder().get_added_tokens_decoder().values()]
            raise ConfigError(
                f"ends.{name} is {wanted!r}, which the tokeniser does not have{nearest(wanted, vocabulary)}; its added "
                f"tokens are {', '.join(map(repr, vocabulary[:20])) or 'none'}"
                + ("; other values are auto, always and never" if name == "bos" else "")
            )
        return found

    @staticmethod
    def _known(number: int | None, name: str, end: str) -> Ids:
        if number is None:
            raise ConfigError(
                f"the token for the {end} of a sequence is not known: neither the chat template nor "
                f"tokenizer_config.json names {name}_token. Name it with `ends: {{{name}: TOKEN}}`"
                + (", or use `ends: {append_eos: false}`" if name == "eos" else "")
            )
        return np.array([number], np.uint32)


class Asked(msgspec.Struct, frozen=True, gc=False):
    """One sequence of a record, before it is encoded."""

    key: str
    """The key of ids, by our own name."""

    marked: Marked
    ends: Ends = Ends()
    is_checked: bool = False
    """Whether the policies about masks apply; prompts have no trained token, and need none."""

    begin: int = 0
    """Only the text from this character on is stored. `_within` says what happens to a token across this border."""

    end: int | None = None
    """Only the text before this character is stored."""

    roles: tuple[str, ...] = ()
    """The roles of the messages to which the pieces of the text refer, for the evidence."""

    may_be_empty: bool = False
    """Whether a text without tokens is kept; otherwise the record is dropped as ``empty``."""


class MadeSequence(msgspec.Struct, frozen=True, gc=False):
    """A sequence as it is stored, with the numbers of tokens that were made and cut off."""

    key: str
    ids: Ids
    mask: Mask
    num_supervised: int
    num_made: int
    """Tokens before any cut, including those added at the ends."""

    num_truncated: int = 0
    dropped: str = ""
    """Why it is not stored although other samples of its record are."""


_counts = functools.partial(defaultdict[str, int], int)
"""A `Counter` at a quarter of the cost, which matters because every record has two."""


class RecordCounts(msgspec.Struct):
    """The counts of one record, which are dropped if the record is bad."""

    with_all: bool = False
    """Whether turns that are not trained are located too, for the evidence."""

    has_stand_ins: bool = False
    """Whether special tokens in texts have the stand-ins of `Contents`."""

    notes: defaultdict[str, int] = msgspec.field(default_factory=_counts)
    added: defaultdict[str, int] = msgspec.field(default_factory=_counts)
    special: defaultdict[str, int] = msgspec.field(default_factory=_counts)
    """Special tokens in texts, by token and role. They are kept if the record is bad."""

    def note_unread(self, flags: int) -> None:
        """Count fields that seem to say whether something is trained, and are not followed."""
        if flags:
            self.notes[UNREAD_FLAGS] += flags

    def note(self, counts: Mapping[str, int]) -> None:
        """Add to the notes."""
        for name, number in counts.items():
            self.notes[name] += number


class Sequencer:
    """Makes sequences with one tokeniser, one set of mask options and one limit of length."""

    def __init__(self, spans: SpanEncoder, options: MaskOptions, length: LengthSpec, bos: int | None) -> None:
        self.spans = spans
        self._options = options
        self._bos = bos
        self._length = length
        self._limits: list[tuple[str, int, OverLong]] = []
        if length.first_tokens is not None:
            self._limits.append(("first_tokens", length.first_tokens, "keep_start"))
        if length.max_tokens is not None and not self.by_turns:
            self._limits.append(("max_tokens", length.max_tokens, length.truncate))

    @property
    def by_turns(self) -> bool:
        """Whether over-long conversations lose whole exchanges; `SampleMaker` then removes these."""
        return self._length.truncate in ("keep_first_turns", "keep_last_turns")

    def encode(self, asked: Sequenced[Asked]) -> list[EncodedText]:
        """Encode all texts together, each without its end tokens.

        Raises:
            InputError: If the tokeniser refuses one of them.
        """
        if not asked:
            return []
        needs_places = any(one.begin or one.end is not None for one in asked)
        return encode(
            [one.marked for one in asked],
            self.spans,
            straddling=self._options.straddle == "train",
            bos=self._bos,
            roles=[()] * len(asked) if needs_places else None,
        )

    def explain(self, asked: Asked) -> EncodedText:
        """Encode one text, whole and without its end tokens, with the evidence for each token.

        Raises:
            InputError: If the tokeniser refuses the text.
        """
        most = max((piece.message for piece in asked.marked.pieces), default=-1)
        roles = asked.roles + ("",) * (most + 1 - len(asked.roles))
        straddling = self._options.straddle == "train"
        [row] = encode([asked.marked], self.spans, straddling=straddling, bos=self._bos, roles=[roles])
        return row

    def finish(self, asked: Asked, encoded: EncodedText, tally: RecordCounts) -> MadeSequence:
        """Return one sequence with its end tokens, before any cut.

        Raises:
            InputError: If a policy refuses the sequence.
            DroppedError: If a policy drops it.
        """
        if asked.begin or asked.end is not None:
            encoded = self._within(asked, encoded, tally)
        if not len(encoded.ids) and not asked.may_be_empty:
            raise DroppedError(EMPTY, f"the text of {asked.key!r} is empty")
        if not asked.ends.is_empty:
            encoded = _ended(encoded, asked.ends, tally)
        usual = asked.ends.usual
        if len(usual) and not asked.begin and len(encoded.ids) and not _begins(encoded.ids, usual):
            message = (
                f"it does not begin with BOS (id {', '.join(map(str, usual))}), with which the tokeniser begins texts: "
                "the template or the text has none. `ends: {bos: always}` adds it, `mask: {on_missing_bos: allow}` "
                "accepts it as it is"
            )
            decide(self._options.on_missing_bos, MISSING_BOS, message, tally.notes)
        if asked.is_checked:
            check_encoded(encoded, self._options, tally.notes)
        return whole(asked.key, encoded)

    def cut(self, found: MadeSequence) -> MadeSequence:
        """Return the sequence cut to the limits.

        Raises:
            InputError: If the sequence is too long and the recipe says ``truncate: error``.
            DroppedError: If it is too long and the recipe says ``truncate: drop``, or no trained token is left.
        """
        ids, mask = found.ids, found.mask
        for name, most, how in self._limits:
            if len(ids) > most:
                kept = self._kept(ids, mask, name, most, how)
                ids, mask = ids[kept], mask[kept]
        num_truncated = len(found.ids) - len(ids)
        if not num_truncated:
            return found
        num_supervised = int(np.count_nonzero(mask))
        num_truncated += found.num_truncated
        return replace(found, ids=ids, mask=mask, num_supervised=num_supervised, num_truncated=num_truncated)

    def _kept(self, ids: Ids, mask: Mask, name: str, most: int, how: OverLong) -> slice:
        """Return which tokens of a sequence are kept that is longer than the limit of this name."""
        message = f"the sample has {len(ids):,} tokens, but {name} is {most:,}"
        if how == "error":
            raise InputError(
                f"{message}: raise {name}, or choose truncate: drop, keep_start, keep_last_turns or another"
            )
        if how == "drop":
            raise DroppedError(TOO_LONG, message)
        kept = slice(0, most) if how == "keep_start" else slice(len(ids) - most, len(ids))
        num_supervised = np.count_nonzero(mask)
        if num_supervised and not mask[kept].any():
            message += f"; none of its {num_supervised:,} trained tokens is among those that are kept"
            if self._length.on_supervision_cut == "error":
                raise InputError(f"{message}: raise {name}, choose another truncate, or on_supervision_cut: drop")
            raise DroppedError(SUPERVISION_CUT, message)
        return kept

    def _within(self, asked: Asked, encoded: EncodedText, tally: RecordCounts) -> EncodedText:
        """Return the tokens between two characters of the text.

        If a token crosses the first border, the text after the border is encoded by itself, and counted.
        """
        evidence = encoded.evidence
        if evidence is None:
            raise InputError("the positions of tokens are not known. This is a defect of Headrace: please report it.")
        text = asked.marked.text
        end = len(text) if asked.end is None else asked.end
        places = byte_places(text)
        first = int(np.searchsorted(evidence.begins, places[asked.begin], "left"))
        last = int(np.searchsorted(evidence.ends, places[end], "right"))
        is_clean = first == 0 or int(evidence.ends[first - 1]) <= int(places[asked.begin])
        if is_clean and (last == 0 or int(evidence.ends[last - 1]) == int(places[end])):
            mask = encoded.loss_mask[first:last]
            inside = replace(
                encoded, ids=encoded.ids[first:last], loss_mask=mask, num_supervised=int(np.count_nonzero(mask))
            )
        else:
            tally.notes["straddling_responses"] += 1
            inside = self.encode([Asked(asked.key, part(asked.marked, asked.begin, end))])[0]
        return replace(inside, is_partly_trained=False)


def whole(key: str, encoded: EncodedText) -> MadeSequence:
    """Return a sequence of which nothing is cut."""
    return MadeSequence(key, encoded.ids, encoded.loss_mask, encoded.num_supervised, len(encoded.ids))


def alike(sides: Sequenced[MadeSequence], limit: int | None) -> list[MadeSequence]:
    """Leave out as many first tokens of each side of a pair as the longer one has too many, as far as both share them.

    So both keep the same end of their prompt.
    """
    most = max(len(one.ids) for one in sides) - (limit or max(len(one.ids) for one in sides))
    shortest = min(len(one.ids) for one in sides)
    first = sides[0].ids[:shortest]
    is_prompt = np.logical_and.reduce([(one.ids[:shortest] == first) & (one.mask[:shortest] == 0) for one in sides])
    shared = shortest if is_prompt.all() else int(np.argmin(is_prompt))
    lost = min(max(most, 0), shared)
    return [replace(one, ids=one.ids[lost:], mask=one.mask[lost:], num_truncated=lost) for one in sides]


def _ended(encoded: EncodedText, ends: Ends, tally: RecordCounts) -> EncodedText:
    """Return a sequence with those end tokens that it lacks."""
    before = _NONE if _begins(encoded.ids, ends.before) else ends.before
    after = ends.after if not len(ends.after) or not _begins(encoded.ids[-len(ends.after) :], ends.after) else _NONE
    if not len(before) and not len(after):
        return encoded
    tally.added["bos"] += len(before)
    tally.added["eos"] += len(after)
    return replace(
        encoded,
        ids=np.concatenate((before, encoded.ids, after)),
        loss_mask=np.concatenate(
            (np.zeros(len(before), np.uint8), encoded.loss_mask, np.full(len(after), ends.is_trained, np.uint8))
        ),
        num_supervised=encoded.num_supervised + len(after) * ends.is_trained,
    )


def _begins(ids: Ids, before: Ids) -> bool:
    return np.array_equal(ids[: len(before)], before)


def plain(*texts: tuple[str, bool]) -> Marked:
    """Join texts to one, each trained or not."""
    pieces = []
    begin = 0
    for number, (text, is_trained) in enumerate(texts):
        if text:
            pieces.append(TextRange(begin, begin + len(text), Region.CONTENT, number, is_trained, Why.ROLE))
        begin += len(text)
    is_partly = any(text and not is_trained for text, is_trained in texts)
    return Marked("".join(text for text, _ in texts), pieces, [], is_partly)


def joined(parts: Sequenced[Marked]) -> Marked:
    """Join marked texts to one."""
    pieces: list[TextRange] = []
    ends: list[tuple[int, int]] = []
    begin = 0
    for one in parts:
        pieces += [replace(piece, begin=piece.begin + begin, end=piece.end + begin) for piece in one.pieces]
        ends += [(first + begin, last + begin) for first, last in one.ends]
        begin += len(one.text)
    return Marked("".join(one.text for one in parts), pieces, ends, any(one.is_partly_trained for one in parts))


def part(marked: Marked, begin: int, end: int) -> Marked:
    """Return the characters ``[begin, end)`` of a marked text."""
    pieces = [
        replace(piece, begin=max(piece.begin, begin) - begin, end=min(piece.end, end) - begin)
        for piece in marked.pieces
        if piece.begin < end and piece.end > begin
    ]
    ends = [(first - begin, last - begin) for first, last in marked.ends if begin <= first and last <= end]
    literal = tuple(place - begin for place in marked.literal if begin <= place < end)
    return Marked(marked.text[begin:end], pieces, ends, marked.is_partly_trained, literal)
