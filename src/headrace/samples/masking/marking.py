"""`Marker`: renders a conversation and marks which characters are trained. It needs no tokeniser.

Most records are plain, and their turns are marked where the rendering shows them. All others get a `_Marking`, which
finds the turns, applies the policies, and checks that no trained turn holds text of another message.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from headrace.errors import HeadraceError, InputError
from headrace.samples.conversation import Conversation
from headrace.samples.masking.endings import Closers, find_ending
from headrace.samples.masking.options import MaskOptions, Policy
from headrace.samples.masking.pieces import (
    Region,
    TextRange,
    TrainedParts,
    TurnBorders,
    Why,
    cut,
    decisions,
    labelled,
    lay_out,
    overlay,
    spans_of,
)
from headrace.samples.masking.renders import ANSWER, PROBE, Renders, Usual, content_of, thought_of
from headrace.samples.masking.results import (
    APPENDED_END,
    EMPTY_TURN,
    OPENED_THOUGHT,
    PROMPT_MISMATCH,
    REWRITTEN_HISTORY,
    SWITCHED,
    UNSTABLE,
    UNTRAINED_END,
    UNWRITTEN_MESSAGE,
    UNWRITTEN_PARTS,
    UNWRITTEN_REASONING,
    UNWRITTEN_TOOL_CALLS,
    UNWRITTEN_TOOLS,
    Counts,
    DroppedError,
    FindingError,
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
from headrace.samples.masking.unwritten import Prefixes, Unwritten, find_unwritten
from headrace.samples.templates.chat_template import ChatTemplate

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
    literal: tuple[int, ...] = ()
    """Where special tokens begin that are ordinary text here."""
    switch: tuple[tuple[str, Any], ...] = ()
    """The argument of the template that was chosen for the record, if it needs one; see `Marker.mark`."""


class Marker:
    """Renders conversations and says which characters are trained, for one template and one set of options.

    ``special`` are the special tokens of the tokeniser; ``ends`` are tokens known to end a text, in addition to the
    template's. ``generation_ends`` end a generated text, and may do so because they open the next message (Phi-3, GLM):
    then they end a turn only if the template has no other end.
    """

    def __init__(
        self,
        template: ChatTemplate,
        options: MaskOptions,
        special: Collection[str],
        ends: Collection[str | None] = (),
        generation_ends: Collection[str] = (),
    ) -> None:
        self._template = template
        self._options = options
        declared = [template.end_of_turn, template.special_tokens.get("eos_token"), *ends]
        self._declared = frozenset(token for token in declared if token and token.strip())
        # The token that is also declared otherwise comes first.
        self._generation_ends = sorted(generation_ends, key=lambda token: token not in self._declared)
        self._closers = Closers([*special, *template.special_tokens.values(), *self._declared])
        self._usuals: dict[tuple[str | None, str], Usual] = {}
        self._comparisons: dict[str, Comparison] = {}
        self._switches: dict[str, list[tuple[str, Any]]] = {}
        self._prefixes: Prefixes = {}
        self._on_unwritten = {
            UNWRITTEN_MESSAGE: options.on_unwritten_message,
            UNWRITTEN_TOOL_CALLS: options.on_unwritten_tool_calls,
            UNWRITTEN_TOOLS: options.on_unwritten_tools,
            UNWRITTEN_PARTS: options.on_unwritten_parts,
        }
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

    def mark(self, conversations: Sequence[Conversation], *, with_all: bool) -> list[list[Marked]]:
        """Return the texts that each conversation of a record becomes: several if an unstable template splits it.

        If the generation prompt is not how the template writes a turn, or a turn has no end, the record is marked with
        the first argument of the template (such as ``enable_thinking``) with which everything is proved; `counts` names
        it. All conversations of a record are rendered with the same arguments, and their own are not changed. If there
        is no such argument, a turn may begin where the prompt opens a thought (``on_opened_thought``).

        ``with_all`` locates the turns of untrained messages too, as far as possible, for the evidence.

        Raises:
            InputError: If the template or a policy refuses a conversation.
            DroppedError: If a policy drops it.
        """
        try:
            return self._all_marked(conversations, with_all=with_all)
        except (DroppedError, FindingError) as error:
            if error.reason not in (PROMPT_MISMATCH, UNTRAINED_END):
                raise
            refused: DroppedError | FindingError = error
        found: list[list[Marked]] = []
        advice = ""
        fewest, counts = self._num_unwritten_thoughts(conversations) + 1, Counter[str]()
        for name, value in self._switches_for(conversations[0]):
            if not fewest:
                break
            switched = [replace(one, template_kwargs={**one.template_kwargs, name: value}) for one in conversations]
            with contextlib.suppress(DroppedError, InputError):
                marked = self._all_marked(switched, with_all=with_all)
                if any(name in one.template_kwargs for one in conversations):
                    advice = f". `template: {{kwargs: {{{name}: {json.dumps(value)}}}}}` takes this record"
                elif (lost := self._num_unwritten_thoughts(switched)) < fewest:
                    fewest = lost
                    counts = self._counts + Counter([f"{SWITCHED}{name}={json.dumps(value)}"])
                    found = [[replace(text, switch=((name, value),)) for text in texts] for texts in marked]
        if found:
            self._counts = counts
            return found
        if refused.reason == PROMPT_MISMATCH:
            with contextlib.suppress(FindingError):
                return self._all_marked(conversations, with_all=with_all, without_thought=True)
        turns = _by_turns(conversations, self._options)
        refused = type(refused)(refused.reason, str(refused) + advice)
        if len(turns) < 2:
            raise refused
        # One turn has a thought and another has none, so each may need an argument of its own.
        counts = Counter(split_records=1)
        samples: list[Marked] = []
        for turn in turns:
            try:
                [texts] = self.mark([turn], with_all=with_all)
            except (DroppedError, InputError):
                raise refused from None
            samples += texts
            counts += self._counts
        self._counts = counts
        return [samples]

    def _num_unwritten_thoughts(self, conversations: Sequence[Conversation]) -> int:
        """Return how many thoughts the template does not write, even where their turns are the last ones."""
        num = 0
        for renders in [Renders(self._template, one) for one in conversations]:
            for number, message in enumerate(renders.conversation.messages):
                thought = thought_of(message)
                with contextlib.suppress(InputError):
                    num += bool(thought) and thought not in renders.text(number + 1)
        return num

    def _all_marked(
        self, conversations: Sequence[Conversation], *, with_all: bool, without_thought: bool = False
    ) -> list[list[Marked]]:
        self._counts.clear()
        return [self._marked(one, with_all=with_all, without_thought=without_thought) for one in conversations]

    def _switches_for(self, conversation: Conversation) -> list[tuple[str, Any]]:
        """Return the arguments of the template that change its generation prompt, or what it writes after an answer."""

        def shown(more: dict[str, Any]) -> tuple[str, str]:
            kwargs = {**conversation.template_kwargs, **more}
            probe = Renders(self._template, Conversation(messages=PROBE, template_kwargs=kwargs))
            try:
                return probe.usual(None).prompt, probe.text(2).rpartition(ANSWER)[2]
            except InputError:
                return usual

        key = Renders(self._template, conversation).arguments
        if key not in self._switches:
            usual = "", ""
            usual = shown({})
            self._switches[key] = [one for one in self._template.arguments if shown(dict([one])) != usual]
        return self._switches[key]

    def _marked(self, conversation: Conversation, *, with_all: bool, without_thought: bool) -> list[Marked]:
        renders = Renders(self._template, conversation, self._usuals)
        how = self._comparison(renders)
        if self._is_usual and not with_all and not conversation.train and not conversation.train_spans:
            plain = self._plain(renders, how)
            if plain is not None:
                self._check_written(renders, proved=True)
                return [plain]
        how = how._replace(thorough=with_all, without_thought=without_thought)
        marking = _Marking(renders, how, self._options, self._counts)
        self._check_written(renders, trained=marking.trained)
        return marking.texts()

    def shows_turns(self, conversation: Conversation) -> bool:
        """Return whether the whole text alone may show where the turns are; see `_plain`."""
        renders = Renders(self._template, conversation, self._usuals)
        try:
            usual = renders.usual(self._comparison(renders).usual_end)
        except HeadraceError:  # `mark` will raise it
            return True
        return usual.is_plain and usual.is_known

    def mark_sampled(self, prompt: str, conversation: Conversation) -> Marked | None:
        """Mark the last message after the text of its prompt: its content as it is, and the end of a usual turn.

        No template rewrites it. None if it is not known how the template ends a turn.
        """
        renders = Renders(self._template, conversation, self._usuals)
        how, number = self._comparison(renders), len(conversation.messages) - 1
        if how.usual_end is None:
            return None
        message, decision = conversation.messages[number], decisions(conversation, self._options)[number]
        text = f"{prompt}{message['content']}{how.usual_end}"
        turn = Turn(number, len(prompt), len(text), end=(len(text) - len(how.usual_end), len(text)))
        parts = TrainedParts(
            reasoning=self._options.reasoning == "train",
            empty=True,  # the model wrote it
            end=self._options.end_of_turn != "mask",
            rest=False,
        )
        pieces = cut(lay_out(text, turn, message, how.closers, how.usual_end), number, decision, parts)
        ends = [turn.end] if turn.end is not None and parts.end and decision.is_trained else []
        return Marked(text, [TextRange(0, len(prompt), *_UNTRAINED), *pieces], ends, is_partly_trained=True)

    def check_written(self, conversation: Conversation) -> None:
        """Look for what the template leaves out of a conversation that needs no mask; see `counts`.

        Raises:
            InputError: If the template refuses the conversation or leaves a message out.
            DroppedError: If a policy drops it.
        """
        self._counts.clear()
        self._check_written(Renders(self._template, conversation, self._usuals))

    def _check_written(self, renders: Renders, *, proved: bool = False, trained: Collection[int] = ()) -> None:
        for one in find_unwritten(renders, self._prefixes, proved=proved):
            # The reasoning of a trained message is looked for in the text that trains it.
            if one.name != UNWRITTEN_REASONING or one.message not in trained:
                policy = self._on_unwritten.get(one.name, "allow")
                decide(
                    "error" if policy is msgspec.UNSET else policy,
                    one.name,
                    _about_unwritten(renders, one),
                    self._counts,
                )

    def _comparison(self, renders: Renders) -> Comparison:
        """Return how this conversation is compared; how the template ends a turn may depend on its arguments."""
        key = renders.arguments
        if key not in self._comparisons:
            kwargs = renders.conversation.template_kwargs
            probe = Renders(self._template, Conversation(messages=PROBE, template_kwargs=kwargs))
            prompt = renders.usual(None).prompt
            declared = self._declared | {token for token in self._generation_ends if token not in prompt}
            is_allowed = self._options.on_untrained_end == "allow"
            self._comparisons[key] = Comparison(
                self._closers,
                find_ending(probe, self._closers, declared, [] if is_allowed else self._generation_ends),
                declared,
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


def _by_turns(conversations: Sequence[Conversation], options: MaskOptions) -> list[Conversation]:
    """Return one conversation for each trained turn, which ends with that turn and trains no other.

    Empty if the record must not be split, or something other than assistants' turns is trained.
    """
    if len(conversations) > 1 or options.unstable != "split" or options.train_on_prompt:
        return []
    [one] = conversations
    found = []
    for number, decision in enumerate(decisions(one, options)):
        if decision.has_trained:
            own = one.train[number] if one.train else None
            train = (*(False,) * number, True if own is None and not decision.spans else own)
            spans = one.train_spans[: number + 1]
            found.append(replace(one, messages=one.messages[: number + 1], train=train, train_spans=spans))
    return found


class _Marking:
    """The marking of one conversation: finds its turns, applies the policies, and divides its texts into pieces.

    If the comparison is thorough, the turns of untrained messages are found too, for the evidence.
    """

    def __init__(self, renders: Renders, how: Comparison, options: MaskOptions, counts: Counts) -> None:
        self._renders = renders
        self._how = how
        self._options = options
        self._counts = counts
        self._decisions = decisions(renders.conversation, options)
        self.trained = {number for number, one in enumerate(self._decisions) if one.has_trained}

    def texts(self) -> list[Marked]:
        """Return the texts that the conversation becomes; see `Marker.mark`."""
        rest = self._options.train_on_prompt
        # Only these turns must be located; all others are treated like the rest of the text.
        wanted = [number for number, one in enumerate(self._decisions) if one.spans or one.is_trained != rest]
        count = len(self._decisions)
        turns, faults = self._find(wanted, count)
        samples = [(count, turns)] if not faults else self._unstable(wanted, faults)
        return [self._marked(number, turns) for number, turns in samples]

    def _find(
        self, wanted: list[int], count: int, *, by_itself: bool = False
    ) -> tuple[list[Turn], list[MisplacedTurn]]:
        """Return the turns of some messages in the text of the first ``count``, and those that cannot be located.

        ``by_itself``: see `Comparison`.
        """
        renders, how = self._renders, self._how._replace(by_itself=by_itself)
        turns: list[Turn] = []
        faults: list[MisplacedTurn] = []
        has_blocks = self._options.generation_tags != "ignore" and renders.rendered(count).has_generation
        # Blocks are assigned to messages once, and only if one of them is needed.
        blocks = functools.cache(functools.partial(self._tagged, count)) if has_blocks else None
        for message in wanted:
            if blocks is None or renders.conversation.messages[message].get("role") != ASSISTANT:
                located: list[Turn] | Turn | MisplacedTurn = find_turn(renders, how, message, count)
            else:
                located = self._in_blocks(how, message, count, blocks)
            if isinstance(located, MisplacedTurn):
                faults.append(located)
            else:
                turns += [located] if isinstance(located, Turn) else located
        return turns, faults

    def _in_blocks(
        self, how: Comparison, message: int, count: int, blocks: Callable[[], dict[int, list[Turn]]]
    ) -> list[Turn] | MisplacedTurn:
        """Return an assistant's turn as its generation blocks show it: one part for each block."""
        checked: Turn | None = None
        if self._options.generation_tags == "checked":
            turn = check_turn(self._renders, how, message, count)
            if isinstance(turn, MisplacedTurn):
                return turn
            if turn.content_end >= 0:
                return [turn]
            checked = turn
        own = blocks().get(message, [])
        if checked is None:
            return own
        if not own and self._decisions[message].has_trained:
            raise InputError(_about_no_block(self._renders, message))
        if len(own) > 1 and checked.start < 0:
            raise InputError(_about_blocks(self._renders, message, len(own)))
        return [within(block, checked) for block in own]

    def _tagged(self, count: int) -> dict[int, list[Turn]]:
        """Return the turns that generation blocks show, by message."""
        exact = self._options.generation_tags == "exact"
        header = "" if exact else self._renders.usual(None).prompt
        tagged: dict[int, list[Turn]] = {}
        for turn in tagged_turns(self._renders, count, exact=exact, header=header):
            tagged.setdefault(turn.message, []).append(turn)
        return tagged

    def _unstable(self, wanted: list[int], faults: list[MisplacedTurn]) -> list[tuple[int, list[Turn]]]:
        """Return the samples of a conversation some of whose turns cannot be located in the whole text.

        Samples are made from the end: the last remaining turn ends the next sample, which also trains all turns that
        its text shows as they were written. So each turn is trained once, after what a model sees when it writes it, or
        after what the template makes of that in a text (`Turn.is_rewritten`, which is counted).
        """
        renders, policy = self._renders, self._options.unstable
        self._judge_prompts(faults)
        if policy in ("error", "drop") or self._options.train_on_prompt:
            self._decide("drop" if policy == "drop" else "error", UNSTABLE, _about_history(renders, faults[0]))
        samples: list[tuple[int, list[Turn]]] = []
        left = [message for message in wanted if self._decisions[message].has_trained]
        while left:
            last = left[-1]
            turns, faults = self._find(left[-1:] if policy == "last_turn" else left, last + 1, by_itself=True)
            self._judge_prompts(faults)
            if not any(turn.message == last for turn in turns):
                self._decide("error", UNSTABLE, _about_history(renders, faults[-1]))
            samples.append((last + 1, turns))
            left = [] if policy == "last_turn" else [fault.message for fault in faults]
        if samples:
            self._counts["last_turn_records" if policy == "last_turn" else "split_records"] += 1
        return samples[::-1] or [(len(self._decisions), [])]

    def _judge_prompts(self, faults: list[MisplacedTurn]) -> None:
        for fault in faults:
            if fault.kind == "prompt":
                self._decide(self._options.on_prompt_mismatch, PROMPT_MISMATCH, _about_prompt(self._renders, fault))

    def _marked(self, count: int, turns: list[Turn]) -> Marked:
        renders, decided = self._renders, self._decisions
        text = renders.text(count)
        if not text:
            raise InputError("the template renders this conversation as an empty text")
        rest = self._options.train_on_prompt
        over: list[TextRange] = []
        ends: list[tuple[int, int]] = []
        final = next((turn.message for turn in reversed(turns) if decided[turn.message].has_trained), -1)
        for number, turn in enumerate(turns):
            pieces, end = self._turn(count, turn, is_final=turn.message == final)
            over += pieces
            is_last_block = number + 1 == len(turns) or turns[number + 1].message != turn.message
            if end is not None and is_last_block:
                appended = self._end_behind(turn) if end[0] == end[1] and turn.message == count - 1 else ""
                if appended:
                    begin = turn.end[0] if turn.end is not None and not self._how.ending.stops else end[0]
                    text = text[:begin] + appended
                    end_piece = TextRange(begin, len(text), _END_OF_TURN, turn.message, True, _BY_ROLE)
                    over = [*(piece for piece in over if piece.end <= begin), end_piece]
                    ends.append((begin, len(text)))
                    self._counts[APPENDED_END] += 1
                elif end[0] == end[1]:
                    self._decide(
                        self._options.on_untrained_end, UNTRAINED_END, _about_untrained_end(renders, turn, text)
                    )
                else:
                    ends.append(end)
        self._check_own(count, turns, over)
        whole = [TextRange(0, len(text), Region.PROMPT, -1, rest, Why.TRAIN_ON_PROMPT if rest else Why.PROMPT)]
        pieces = overlay(whole, over)
        if self._how.thorough:
            pieces = labelled(renders, count, turns, pieces, decided, self._how.closers, self._how.usual_end)
        return Marked(text, pieces, ends, is_partly_trained=not all(one.is_trained for one in decided[:count]))

    def _turn(self, count: int, turn: Turn, *, is_final: bool) -> tuple[list[TextRange], tuple[int, int] | None]:
        """Return the pieces of a turn, and the end that must be trained, which is empty if there is no token for it."""
        options, text, decision = self._options, self._renders.text(count), self._decisions[turn.message]
        message = self._renders.conversation.messages[turn.message]
        layout = lay_out(text, turn, message, self._how.closers, self._how.usual_end)
        if decision.has_trained:
            self._judge_turn(turn, text, layout)
        over = self._placed_spans(count, turn) if decision.spans else []
        # A span that reaches the end of the content also decides about the end of the turn.
        train_end = over[-1].is_trained if over and over[-1].end >= layout.content_end else decision.is_trained
        wants_end = options.end_of_turn == "train" or (options.end_of_turn == "last" and is_final)
        parts = TrainedParts(
            reasoning=options.reasoning == "train",
            empty=options.empty_reasoning == "train",
            end=wants_end,
            rest=options.train_on_prompt,
        )
        pieces = cut(layout, turn.message, decision, parts)
        must_end = train_end and wants_end
        if train_end != decision.is_trained:
            pieces = [
                replace(piece, is_trained=must_end, why=Why.SPAN) if piece.region == Region.END_OF_TURN else piece
                for piece in pieces
            ]
        required = None
        if must_end:
            required = layout.end_of_turn or self._tagged_end(text, turn) or (turn.stop, turn.stop)
        return overlay(pieces, over) if over else pieces, required

    def _judge_turn(self, turn: Turn, text: str, layout: TurnBorders) -> None:
        """Apply the policies to what was found in a trained turn, and count what changes nothing."""
        message = self._renders.conversation.messages[turn.message]
        if turn.skips_thought:
            policy = self._options.on_opened_thought
            allowed: Policy = "allow" if policy is msgspec.UNSET else policy
            self._decide(allowed, OPENED_THOUGHT, _about_opened_thought(self._renders, turn.message))
        if turn.mismatches:
            self._decide("allow", PROMPT_MISMATCH, "")
        if turn.is_rewritten:
            self._counts[REWRITTEN_HISTORY] += 1
        thought = thought_of(message)
        if thought and thought not in text[turn.start : turn.stop]:
            self._counts[UNWRITTEN_REASONING] += 1
        has_content = thought or message.get("tool_calls") or content_of(message)
        begin = layout.reasoning_end if layout.is_empty_reasoning else layout.start
        if not has_content or not text[begin : layout.content_end].strip():
            self._decide(self._options.on_empty_turn, EMPTY_TURN, _about_empty_turn(self._renders, turn.message))

    def _end_behind(self, turn: Turn) -> str:
        """Return what a model writes to end the last turn of a text, if the template does not; see `Ending.behind`."""
        called = bool(self._renders.conversation.messages[turn.message].get("tool_calls"))
        return self._how.ending.behind[called] if turn.end is not None else ""

    def _tagged_end(self, text: str, turn: Turn) -> tuple[int, int] | None:
        if not turn.exact:
            return None
        special = [closer for closer in self._how.closers.trailing(text, turn.start, turn.stop) if closer.is_special]
        return special[-1][:2] if special else None

    def _placed_spans(self, count: int, turn: Turn) -> list[TextRange]:
        """Locate the marked spans of a content in the text.

        Raises:
            InputError: If the content cannot be found in the text.
        """
        renders, text = self._renders, self._renders.text(count)
        content = renders.conversation.messages[turn.message].get("content")
        if not isinstance(content, str):
            raise InputError(_about_spans(renders, turn.message))
        placed = renders.placed(count, turn.message)
        bare = content.strip()
        if placed is None and bare and text.count(bare, turn.start, turn.stop) == 1:
            begin = text.find(bare, turn.start, turn.stop)
            placed = begin, begin + len(bare)
        skipped = content.find(text[placed[0] : placed[1]]) if placed else -1
        if placed is None or skipped < 0 or content[:skipped].strip() or text[slice(*placed)].strip() != bare:
            raise InputError(_about_spans(renders, turn.message))
        pieces = spans_of(self._decisions[turn.message].spans, placed[0] - skipped, turn.message)
        clipped = [replace(piece, begin=max(piece.begin, placed[0]), end=min(piece.end, placed[1])) for piece in pieces]
        return [piece for piece in clipped if piece.end > piece.begin]

    def _check_own(self, count: int, turns: Sequence[Turn], pieces: Sequence[TextRange]) -> None:
        """Check, whatever the options say, that no trained turn holds text of another message.

        Turns must follow one another; none may hold the content of the message before or after it, and the header of
        the next turn must not begin after the content. Turns that consist of content and end, and blocks that are used
        as they are, need no check.

        Raises:
            InputError: If a turn fails the check.
        """
        text = self._renders.text(count)
        trained: dict[int, list[TextRange]] = {}
        for piece in pieces:
            if piece.is_trained:
                trained.setdefault(piece.message, []).append(piece)
        previous_stop = 0
        for turn in turns:
            if turn.start < previous_stop:
                raise _foreign(self._renders, turn, text[turn.start : previous_stop])
            previous_stop = turn.stop
            if turn.exact or turn.content_end >= 0 or turn.message not in trained:
                continue
            begin, end = trained[turn.message][0].begin, trained[turn.message][-1].end
            other = self._text_of_another(count, turn.message, begin, end)
            if other:
                raise _foreign(self._renders, turn, other)

    def _text_of_another(self, count: int, message: int, begin: int, end: int) -> str:
        """Return the content of a message next to a turn, or the next header, if ``text[begin:end]`` has it.

        That is the trained text of the turn. Empty if it has neither.
        """
        messages, text = self._renders.conversation.messages, self._renders.text(count)
        region = text[begin:end]
        own = "\n".join(_strings(messages[message]))
        for other, around in ((message - 1, text[:begin]), (message + 1, text[end:])):
            if not 0 <= other < count or self._decisions[other].has_trained:
                continue
            content = content_of(messages[other])
            if content and content in region and content not in own and content not in around:
                return content
        content = "" if messages[message].get("tool_calls") else content_of(messages[message])
        header = (self._how.ending.opening or self._renders.usual(None).prompt).strip()
        place = region.rfind(content) if content else -1
        return header if place >= 0 and header in region[place + len(content) :] else ""

    def _decide(self, policy: Policy, reason: str, message: str) -> None:
        decide(policy, reason, message, self._counts)


def decide(policy: Policy, reason: str, message: str, counts: Counts) -> None:
    """Apply a policy to a finding: raise an error, drop the record, or count it.

    Raises:
        InputError: If the policy is ``error``.
        DroppedError: If the policy is ``drop``.
    """
    if policy == "error":
        raise FindingError(reason, message)
    if policy == "drop":
        raise DroppedError(reason, message)
    counts[reason] += 1


def _strings(value: Any) -> list[str]:
    """Return all strings in a message."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [text for one in inner for text in _strings(one)]


def _foreign(renders: Renders, turn: Turn, text: str) -> InputError:
    role = renders.conversation.messages[turn.message].get("role")
    return InputError(
        f"message {turn.message} ({role}) would be trained together with text that is not its own ({text[:60]!r}), so "
        "the record is refused: the template does something that Headrace does not know. Please report it, with the "
        "template"
    )


def _named(renders: Renders, message: int) -> str:
    return f"message {message} ({renders.conversation.messages[message].get('role')})"


def _about_history(renders: Renders, fault: MisplacedTurn) -> str:
    """The message for a turn that is written differently when more follows."""
    return (
        f"the template writes {_named(renders, fault.message)} differently when more messages follow, so a model would "
        f"be trained on a text that it never sees when it writes: {fault.text}. The usual reason is reasoning that is "
        "stripped from earlier turns. Choose unstable: split (samples that show each turn as it was written), "
        "last_turn or drop, or a template that keeps what it wrote"
    )


def _about_prompt(renders: Renders, fault: MisplacedTurn) -> str:
    """The message for a turn that does not begin with the generation prompt."""
    return (
        f"the template's generation prompt is not how it writes {_named(renders, fault.message)}: {fault.text}. A "
        "model would be asked to continue a text that it was not trained on. Set template arguments that suit the "
        "reasoning of the records, or add `mask: {on_prompt_mismatch: allow}` to the recipe (`drop` leaves them out)"
    )


def _about_opened_thought(renders: Renders, message: int) -> str:
    """The message for a turn without the thought that the generation prompt opens."""
    return (
        f"the template's generation prompt opens a thought, and it writes none in {_named(renders, message)}: use a "
        "template that writes an empty thought, give the record reasoning, or choose on_opened_thought: allow or drop"
    )


def _about_untrained_end(renders: Renders, turn: Turn, text: str) -> str:
    """The message for a turn without a token that ends it."""
    found = text[max(turn.stop - 30, 0) : turn.stop]
    return (
        f"{_named(renders, turn.message)} ends without a special token ({found!r}), or with one that is not proved to "
        "end the turn, so a model would never learn to stop: use a template or tokeniser that has such a token, name "
        "it (eos_token of the tokeniser, eos_token_id of generation_config.json, `ends: {eos: TOKEN}` of a recipe), or "
        "add `mask: {on_untrained_end: allow}` to the recipe (`drop` leaves them out)"
    )


def _about_empty_turn(renders: Renders, message: int) -> str:
    """The message for a trained turn without content."""
    calls = renders.conversation.messages[message].get("tool_calls")
    what = "says nothing except for tool calls, which the template does not write" if calls else "says nothing"
    return (
        f"{_named(renders, message)} is trained and {what}: a model would learn to stop at once. Use a template that "
        "writes it, remove the message, or choose on_empty_turn: allow or drop"
    )


def _about_unwritten(renders: Renders, one: Unwritten) -> str:
    """The message for what the template leaves out."""
    whose = _named(renders, one.message) if one.message >= 0 else "the record"
    if one.name == UNWRITTEN_MESSAGE:
        what = f"writes nothing of {whose}, which says {str(one.value)[:60]!r}"
        helps = (
            "Give it a role or a form that the template writes (`roles` renames roles, `parts: join` joins parts; "
            "templates of models for pictures may write only contents that are lists of parts)"
        )
    else:
        place = one.field if one.item is None else f"{one.field}[{one.item}]"
        what = f"does not write {place} of {whose}, which is {str(one.value)[:60]}"
        helps = "Remove it from the record"
    return (
        f"the template {what}: the model would never see it. {helps}, use a template that writes it, or choose "
        f"on_{one.name}: allow or drop"
    )


def _about_no_block(renders: Renders, message: int) -> str:
    """The message for a turn without its generation block."""
    return (
        f"the template has generation blocks, but rendered none for {_named(renders, message)}, which should be "
        "trained: choose generation_tags: ignore, or trusted, which leaves such messages untrained"
    )


def _about_blocks(renders: Renders, message: int, num: int) -> str:
    """The message for several blocks of one turn, of which nothing shows where it begins."""
    return (
        f"the template rendered {num} generation blocks for {_named(renders, message)}, and no generation prompt shows "
        "which of them is its turn: add `mask: {generation_tags: ignore}` to the recipe"
    )


def _about_spans(renders: Renders, message: int) -> str:
    """The message for spans of a content that cannot be located."""
    content = renders.conversation.messages[message].get("content")
    return (
        f"{_named(renders, message)} has spans to train, and the template does not write its content unchanged "
        f"({content!r:.60}), so the spans cannot be located: remove them, or use a template that writes the content "
        "unchanged"
    )
