"""`Marker`: renders a conversation and marks which characters are trained. It needs no tokeniser."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

import msgspec
from msgspec.structs import replace

from headrace.errors import InputError
from headrace.samples.conversation import Conversation
from headrace.samples.masking import evidence
from headrace.samples.masking.decisions import Decision, check_own, decisions
from headrace.samples.masking.endings import Closers, find_ending
from headrace.samples.masking.evidence import labelled
from headrace.samples.masking.options import MaskOptions, Policy, Template
from headrace.samples.masking.pieces import Region, TextRange, Why, cut, lay_out, overlay, spans_of
from headrace.samples.masking.renders import PROBE, Prefixes, Renders, Usual, content_text, find_unwritten, thought_of
from headrace.samples.masking.results import (
    EMPTY_TURN,
    PROMPT_MISMATCH,
    REWRITTEN_HISTORY,
    UNSTABLE,
    UNTRAINED_END,
    UNWRITTEN_CONTENT,
    UNWRITTEN_MESSAGE,
    Counts,
    DroppedError,
)
from headrace.samples.masking.turns import (
    ASSISTANT,
    Comparison,
    MisplacedTurn,
    Turn,
    check_turn,
    find_turn,
    plain_content_end,
    tagged_turns,
    within,
)

# Members of an enum cost as much to look up as a piece costs to make.
_UNTRAINED = (Region.PROMPT, -1, False, Why.PROMPT)
_CONTENT, _END_OF_TURN, _BY_ROLE = Region.CONTENT, Region.END_OF_TURN, Why.ROLE


class Marked(msgspec.Struct, frozen=True, gc=False):
    """A text to be encoded, with its trained pieces."""

    text: str
    pieces: list[TextRange]
    """Ascending, from the first character to the last."""
    ends: list[tuple[int, int]]
    """Ends of turns that must be trained, in characters."""
    is_partly_trained: bool
    """Whether some of its messages must not be trained."""


class Marker:
    """Renders conversations and says which characters are trained, for one template and one set of options.

    ``special`` are the special tokens of the tokeniser; ``ends`` are tokens known to end a text, in addition to the
    template's.
    """

    def __init__(
        self, template: Template, options: MaskOptions, special: Collection[str], ends: Collection[str | None] = ()
    ) -> None:
        self._template = template
        self._options = options
        declared = [template.end_of_turn, template.special_tokens.get("eos_token"), *ends]
        self._declared = frozenset(token for token in declared if token and token.strip())
        self._closers = Closers([*special, *template.special_tokens.values(), *self._declared])
        self._usuals: dict[str | None, Usual] = {}
        self._comparisons: dict[str, Comparison] = {}
        self._prefixes: Prefixes = {}
        # With these options every assistant's turn is trained, and messages without flags need no decisions.
        self._is_usual = (
            options.roles == (ASSISTANT,)
            and options.turns == "all"
            and options.end_of_turn == "train"
            and options.generation_tags in ("checked", "ignore")
            and not options.train_on_prompt
        )
        self._counts: Counter[str] = Counter()

    @property
    def counts(self) -> Counter[str]:
        """What the last call of `mark` or `check_written` counted: splits, and findings that a policy allowed."""
        return self._counts

    def mark(self, conversation: Conversation, *, with_all: bool) -> list[Marked]:
        """Return the texts that a conversation becomes: one, or several if an unstable template splits it.

        ``with_all`` locates the turns of untrained messages too, as far as possible, for the evidence.

        Raises:
            InputError: If the template or a policy refuses the conversation.
            DroppedError: If a policy drops it.
        """
        self._counts.clear()
        renders = Renders(self._template, conversation, self._usuals)
        how = self._comparison(conversation)._replace(thorough=with_all)
        if self._is_usual and not with_all and not conversation.train and not conversation.train_spans:
            plain = self._plain(renders, how)
            if plain is not None:
                self._check_written(renders, proved=True)
                return [plain]
        self._check_written(renders, proved=False)
        found = decisions(conversation, self._options)
        rest = self._options.train_on_prompt
        # Only these turns must be located; all others are treated like the rest of the text.
        wanted = [number for number, one in enumerate(found) if one.spans or one.is_trained != rest]
        count = len(conversation.messages)
        turns, faults = self._find(renders, how, found, wanted, count)
        samples = [(count, turns)] if not faults else self._unstable(renders, how, found, wanted, faults)
        return [self._marked(renders, how, found, number, turns, with_all=with_all) for number, turns in samples]

    def check_written(self, conversation: Conversation) -> None:
        """Look for what the template leaves out of a conversation that needs no mask; see `counts`.

        Raises:
            InputError: If the template refuses the conversation or leaves a message out.
            DroppedError: If a policy drops it.
        """
        self._counts.clear()
        self._check_written(Renders(self._template, conversation, self._usuals), proved=False)

    def _check_written(self, renders: Renders, *, proved: bool) -> None:
        for one in find_unwritten(renders, self._prefixes, proved=proved):
            if one.is_whole:
                text = evidence.unwritten(renders, one.message)
                self._decide(self._options.on_unwritten_message, UNWRITTEN_MESSAGE, text)
            else:
                self._counts[UNWRITTEN_CONTENT] += 1

    def _comparison(self, conversation: Conversation) -> Comparison:
        """Return how this conversation is compared; how the template ends a turn may depend on its arguments."""
        kwargs = conversation.template_kwargs
        key = repr(sorted(kwargs.items())) if kwargs else ""
        if key not in self._comparisons:
            probe = Renders(self._template, Conversation(messages=PROBE, template_kwargs=kwargs))
            self._comparisons[key] = Comparison(
                self._closers,
                find_ending(probe, self._closers, self._declared),
                self._declared,
                lenient=self._options.on_prompt_mismatch == "allow",
                ends=self._options.end_of_turn == "train",
            )
        return self._comparisons[key]

    def _plain(self, renders: Renders, how: Comparison) -> Marked | None:
        """Mark a conversation in which every assistant's turn is plain and the rendering shows its place.

        Most records are of this kind; None for all others. The general way would find the same at a higher cost.
        """
        rendered = renders.rendered(len(renders.conversation.messages))
        end, begins, text = how.usual_end, rendered.message_begins, rendered.text
        if not begins or end is None:
            return None
        usual = renders.usual(end)
        if not usual.is_plain or not usual.is_known:
            return None
        pieces: list[TextRange] = []
        ends: list[tuple[int, int]] = []
        at = 0
        prompt = usual.prompt
        for number, message in enumerate(renders.conversation.messages):
            if message.get("role") != ASSISTANT:
                continue
            if not number or not text.startswith(prompt, begins[number]):
                return None
            start = begins[number] + len(prompt)
            content_end = plain_content_end(message, text, start, end)
            if content_end < 0:
                return None
            stop = content_end + len(end)
            pieces += (
                TextRange(at, start, *_UNTRAINED),
                TextRange(start, content_end, _CONTENT, number, True, _BY_ROLE),
                TextRange(content_end, stop, _END_OF_TURN, number, True, _BY_ROLE),
            )
            ends.append((content_end, stop))
            at = stop
        if at < len(text):
            pieces.append(TextRange(at, len(text), *_UNTRAINED))
        return Marked(text, pieces, ends, len(ends) < len(begins)) if pieces else None

    def _find(
        self, renders: Renders, how: Comparison, found: Sequence[Decision], wanted: list[int], count: int
    ) -> tuple[list[Turn], list[MisplacedTurn]]:
        """Return the turns of some messages in the text of the first ``count``, and those that cannot be located."""
        tags = self._options.generation_tags
        turns: list[Turn] = []
        faults: list[MisplacedTurn] = []
        is_tagged = tags != "ignore" and renders.rendered(count).has_generation
        tagged: dict[int, list[Turn]] | None = None
        for message in wanted:
            if not is_tagged or renders.conversation.messages[message].get("role") != ASSISTANT:
                placed = find_turn(renders, how, message, count)
                turns += [placed] if isinstance(placed, Turn) else []
                faults += [placed] if isinstance(placed, MisplacedTurn) else []
                continue
            checked = check_turn(renders, how, message, count) if tags == "checked" else None
            if isinstance(checked, MisplacedTurn):
                faults.append(checked)
                continue
            if checked is not None and checked.content_end >= 0:
                turns.append(checked)
                continue
            if tagged is None:
                tagged = self._tagged(renders, count)
            if message in tagged:
                blocks = tagged[message]
                turns += blocks if checked is None else [within(block, checked) for block in blocks]
            elif tags == "checked" and found[message].has_trained:
                raise InputError(evidence.no_block(renders, message))
        return turns, faults

    def _tagged(self, renders: Renders, count: int) -> dict[int, list[Turn]]:
        """Return the turns that generation blocks show, by message."""
        exact = self._options.generation_tags == "exact"
        header = "" if exact else renders.usual(None).prompt
        tagged: dict[int, list[Turn]] = {}
        for turn in tagged_turns(renders, count, exact=exact, header=header):
            tagged.setdefault(turn.message, []).append(turn)
        return tagged

    def _unstable(
        self,
        renders: Renders,
        how: Comparison,
        found: Sequence[Decision],
        wanted: list[int],
        faults: list[MisplacedTurn],
    ) -> list[tuple[int, list[Turn]]]:
        """Return the samples of a conversation some of whose turns cannot be located in the whole text.

        Samples are made from the end: the last remaining turn ends the next sample, which also trains all turns that
        its text shows as they were written. So each turn is trained once, after what a model sees when it writes it, or
        after what the template makes of that in a text (`Turn.is_rewritten`, which is counted).
        """
        policy = self._options.unstable
        self._judge_prompts(renders, faults)
        if policy in ("error", "drop") or self._options.train_on_prompt:
            self._decide("drop" if policy == "drop" else "error", UNSTABLE, evidence.history(renders, faults[0]))
        how = how._replace(by_itself=True)
        samples: list[tuple[int, list[Turn]]] = []
        left = [message for message in wanted if found[message].has_trained]
        while left:
            last = left[-1]
            turns, faults = self._find(renders, how, found, left[-1:] if policy == "last_turn" else left, last + 1)
            self._judge_prompts(renders, faults)
            if not any(turn.message == last for turn in turns):
                self._decide("error", UNSTABLE, evidence.history(renders, faults[-1]))
            samples.append((last + 1, turns))
            left = [] if policy == "last_turn" else [fault.message for fault in faults]
        if samples:
            self._counts["last_turn_records" if policy == "last_turn" else "split_records"] += 1
        return samples[::-1] or [(len(found), [])]

    def _judge_prompts(self, renders: Renders, faults: list[MisplacedTurn]) -> None:
        for fault in faults:
            if fault.kind == "prompt":
                self._decide(self._options.on_prompt_mismatch, PROMPT_MISMATCH, evidence.prompt(renders, fault))

    def _marked(
        self,
        renders: Renders,
        how: Comparison,
        found: Sequence[Decision],
        count: int,
        turns: list[Turn],
        *,
        with_all: bool,
    ) -> Marked:
        text = renders.text(count)
        if not text:
            raise InputError("the template renders this conversation as an empty text")
        rest = self._options.train_on_prompt
        over: list[TextRange] = []
        ends: list[tuple[int, int]] = []
        final = next((turn.message for turn in reversed(turns) if found[turn.message].has_trained), -1)
        for number, turn in enumerate(turns):
            pieces, end = self._turn(renders, how, count, turn, found[turn.message], is_final=turn.message == final)
            over += pieces
            is_last_block = number + 1 == len(turns) or turns[number + 1].message != turn.message
            if end is not None and is_last_block:
                if end[0] == end[1]:
                    self._decide(
                        self._options.on_untrained_end, UNTRAINED_END, evidence.untrained_end(renders, turn, text)
                    )
                else:
                    ends.append(end)
        check_own(renders, how, count, turns, over, found)
        whole = [TextRange(0, len(text), Region.PROMPT, -1, rest, Why.TRAIN_ON_PROMPT if rest else Why.PROMPT)]
        pieces = overlay(whole, over)
        if with_all:
            pieces = labelled(renders, count, turns, pieces, found, self._closers, how.usual_end)
        return Marked(text, pieces, ends, is_partly_trained=not all(one.is_trained for one in found[:count]))

    def _turn(
        self, renders: Renders, how: Comparison, count: int, turn: Turn, decision: Decision, *, is_final: bool
    ) -> tuple[list[TextRange], tuple[int, int] | None]:
        """Return the pieces of a turn, and the end that must be trained, which is empty if there is no token for it."""
        options, text = self._options, renders.text(count)
        message = renders.conversation.messages[turn.message]
        layout = lay_out(text, turn, message, self._closers, how.usual_end)
        if decision.has_trained:
            if turn.mismatches:
                self._decide("allow", PROMPT_MISMATCH, "")
            if turn.is_rewritten:
                self._counts[REWRITTEN_HISTORY] += 1
            thought = thought_of(message)
            if thought and thought not in text[turn.start : turn.stop]:
                self._counts["unwritten_reasoning"] += 1
            has_content = thought or message.get("tool_calls") or (content_text(message) or "").strip()
            begin = layout.reasoning_end if layout.is_empty_reasoning else layout.start
            if not has_content or not text[begin : layout.content_end].strip():
                self._decide(options.on_empty_turn, EMPTY_TURN, evidence.empty_turn(renders, turn.message))
        over = self._placed_spans(renders, count, turn, decision) if decision.spans else []
        # A span that reaches the end of the content also decides about the end of the turn.
        train_end = over[-1].is_trained if over and over[-1].end >= layout.content_end else decision.is_trained
        wants_end = options.end_of_turn == "train" or (options.end_of_turn == "last" and is_final)
        pieces = cut(
            layout,
            turn.message,
            train=decision.is_trained,
            why=decision.why,
            reasoning=options.reasoning == "train",
            empty=options.empty_reasoning == "train",
            end=wants_end,
            rest=options.train_on_prompt,
        )
        if train_end != decision.is_trained:
            pieces = [
                replace(piece, is_trained=train_end and wants_end, why=Why.SPAN)
                if piece.region == Region.END_OF_TURN
                else piece
                for piece in pieces
            ]
        required = None
        if train_end and wants_end:
            required = layout.end_of_turn or self._tagged_end(text, turn) or (turn.stop, turn.stop)
        return overlay(pieces, over) if over else pieces, required

    def _tagged_end(self, text: str, turn: Turn) -> tuple[int, int] | None:
        if not turn.exact:
            return None
        special = [closer for closer in self._closers.trailing(text, turn.start, turn.stop) if closer.is_special]
        return special[-1][:2] if special else None

    def _placed_spans(self, renders: Renders, count: int, turn: Turn, decision: Decision) -> list[TextRange]:
        """Locate the marked spans of a content in the text.

        Raises:
            InputError: If the content cannot be found in the text.
        """
        text = renders.text(count)
        content = renders.conversation.messages[turn.message].get("content")
        if not isinstance(content, str):
            raise InputError(evidence.spans(renders, turn.message))
        placed = renders.placed(count, turn.message)
        bare = content.strip()
        if placed is None and bare and text.count(bare, turn.start, turn.stop) == 1:
            begin = text.find(bare, turn.start, turn.stop)
            placed = begin, begin + len(bare)
        skipped = content.find(text[placed[0] : placed[1]]) if placed else -1
        if placed is None or skipped < 0 or content[:skipped].strip() or text[slice(*placed)].strip() != bare:
            raise InputError(evidence.spans(renders, turn.message))
        pieces = spans_of(decision.spans, placed[0] - skipped, turn.message)
        clipped = [replace(piece, begin=max(piece.begin, placed[0]), end=min(piece.end, placed[1])) for piece in pieces]
        return [piece for piece in clipped if piece.end > piece.begin]

    def _decide(self, policy: Policy, reason: str, message: str) -> None:
        decide(policy, reason, message, self._counts)


def decide(policy: Policy, reason: str, message: str, counts: Counts) -> None:
    """Apply a policy to a finding: raise an error, drop the record, or count it.

    Raises:
        InputError: If the policy is ``error``.
        DroppedError: If the policy is ``drop``.
    """
    if policy == "error":
        raise InputError(message)
    if policy == "drop":
        raise DroppedError(reason, message)
    counts[reason] += 1
