"""Locate the text of a message in the rendered conversation by its structure, never by a search.

Two texts define an assistant's turn, both rendered from the messages up to it and from nothing that follows:

    prompt(i)   messages before it and the generation prompt    what a model sees before it writes
    text(i+1)   messages up to and including it                 the same with what it wrote, and its end

The whole text must begin with the first, or the model would be trained after a text that it never sees. It must also
begin with the second, up to the token that ends the turn, or the turn is written differently when more follows. Then
the turn is ``[len(prompt(i)), end of the token)`` of the whole text, and nothing that a later message says can be part
of it. `endings` proves which token ends the turn, and how much of ``text(i+1)`` is already the next header.

Most turns need only the first text: if the whole text continues after ``prompt(i)`` with the message's own content and
the token that ends the template's usual turn, the characters themselves are the proof. And the first text needs no
rendering of its own if the template's source shows that it writes one message after another, whatever follows.

If the whole text and ``prompt(i)`` differ before the end of message ``i - 1``, what was said before is written
differently: that is a fault of history, and no turn can begin there.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

from headrace.errors import InputError
from headrace.samples.conversation import Message
from headrace.samples.masking.endings import Closer, Closers, Ending, same_until
from headrace.samples.masking.renders import REASONING_TAGS, Renders, content_of, opens, thought_of

ASSISTANT = "assistant"
_TAGS = tuple(tag for pair in REASONING_TAGS for tag in pair)


class Turn(NamedTuple):
    """One message's own text in the whole: ``[start, stop)`` in characters, without its header."""

    message: int
    start: int
    """After the header: the first character that the author wrote (for an assistant's turn, the model)."""
    stop: int
    """After everything that the template writes for the turn, but before the header of the next one."""
    exact: bool = False
    """Whether the turn is a generation block that is used as it is."""
    content_end: int = -1
    """The end of the content, where the token that ends the turn begins, if everything before it is content; -1 if
    unknown.
    """
    end: tuple[int, int] | None = None
    """The token that ends the turn, and what comes before it, if that belongs to the end; empty if none is proved; None
    if this was not examined.
    """
    mismatches: bool = False
    """Whether the turn begins where it differs from the generation prompt, as ``on_prompt_mismatch: allow`` asks."""
    is_rewritten: bool = False
    """Whether what was said before is written differently from the turn's prompt."""
    skips_thought: bool = False
    """Whether the turn begins where the generation prompt opens a thought, which the turn does not have."""


class MisplacedTurn(NamedTuple):
    """A turn that cannot be located in a text."""

    message: int
    kind: str
    """``history``: the turn, or what was said before it, is written differently when more follows; ``prompt``: the turn
    does not begin with the generation prompt.
    """
    text: str
    """What was found and what was expected, in words."""


class Comparison(NamedTuple):
    """How the prefixes of a conversation are compared."""

    closers: Closers
    ending: Ending
    declared: frozenset[str]
    """Tokens that are declared to end a turn."""
    lenient: bool
    """Whether a turn that does not begin with the generation prompt may begin where the two differ."""
    ends: bool
    """Whether the token that ends a turn must be the same when more follows."""
    thorough: bool = False
    """Whether every turn is compared with the text of the messages up to it, and not only those that need it."""
    by_itself: bool = False
    """Whether the last turn may follow a history that the template writes differently in its prompt."""
    without_thought: bool = False
    """Whether a turn without a thought may begin where the generation prompt opens one."""

    @property
    def usual_end(self) -> str | None:
        """The token that ends a usual turn of the template."""
        return self.ending.token


def find_turn(renders: Renders, how: Comparison, message: int, count: int) -> Turn | MisplacedTurn:
    """Locate the turn of one message in the text of the first ``count``. Most need one rendering, some up to seven.

    Raises:
        InputError: If the template refuses the messages up to there, or header, content and end cannot be told apart.
    """
    found = check_turn(renders, how, message, count)
    if isinstance(found, MisplacedTurn) or found.start >= 0:
        return found
    start = _behind_header(renders, message, count)
    if start is None or found.stop < start:
        return MisplacedTurn(message, "history", _difference(renders.text(count), renders.text(message + 1)))
    return found._replace(start=start)


def check_turn(renders: Renders, how: Comparison, message: int, count: int) -> Turn | MisplacedTurn:
    """Check whether the text of the first ``count`` messages holds the turn as it was written.

    ``start`` is -1 if there is no generation prompt that shows it.
    """
    turn = _begun(renders, how, message, count)
    if isinstance(turn, MisplacedTurn) or turn.content_end >= 0:
        return turn
    whole, alone = renders.text(count), renders.text(message + 1)
    begin, stop, limit = turn_end(renders, how, message, turn.start)
    if begin == stop and how.ending.stops and begin >= turn.start and whole.startswith(alone):
        # The next message may begin with the token that ends this one.
        behind = whole[len(alone) :].lstrip()
        closer = how.closers.at(behind, 0)
        if closer is not None and closer.of(behind) in how.ending.stops:
            stop = len(whole) - len(behind) + closer.end
            return turn._replace(stop=stop, end=(begin, stop))
    elif begin == stop and how.ends and any(how.ending.behind) and not how.ending.stops and message < count - 1:
        return MisplacedTurn(message, "history", "the template writes no end of a turn, which only the last one gets")
    if not whole.startswith(alone[: stop if how.ends else begin]) or begin < turn.start:
        return MisplacedTurn(message, "history", _difference(whole, alone))
    stop = stop if whole.startswith(alone[:stop]) else begin
    after = same_until(how.closers.trailing(alone, stop, limit), alone, whole, stop)
    return turn._replace(stop=after, end=(begin, stop))


def _begun(renders: Renders, how: Comparison, message: int, count: int) -> Turn | MisplacedTurn:
    """Return where a turn begins: the whole turn if it is a plain one, otherwise without its stop.

    ``start`` is -1 if there is no generation prompt that shows it.
    """
    whole = renders.text(count)
    unknown = Turn(message, -1, 0)
    if not _is_answer(renders, message):
        return unknown
    end = None if how.thorough else how.usual_end
    if end is not None:
        start = renders.prompt_end(count, message, end)
        plain = None if start is None else _plain_turn(renders, end, message, whole, start)
        if plain is not None:
            return plain
    prompt = renders.prompt(message)
    if not how.ending.opening and _adds_nothing(renders, prompt, message):
        return unknown
    if not whole.startswith(prompt):
        return _parted(renders, how, message, count, prompt)
    begun = Turn(message, len(prompt), 0)
    if end is None:
        return begun
    usual = renders.usual(end)
    is_usual = usual.is_plain and prompt.endswith(usual.prompt)
    return (_plain_turn(renders, end, message, whole, len(prompt)) if is_usual else None) or begun


class ContentPlace(NamedTuple):
    """Where the content of a message lies at the end of a stretch of text, before the tokens that close the turn."""

    begin: int
    """-1 if the content does not stand there unchanged."""
    end: int
    special: list[Closer]
    """The special tokens after the content."""

    def end_of_turn(self, text: str, tokens: list[Closer], usual: str | None) -> Closer | None:
        """Return the token that ends the turn: the usual one among these, the first after a content that was found."""
        found = [piece for piece in tokens if piece.of(text) == usual] or tokens
        return None if not found else found[-1] if self.begin < 0 else found[0]


def content_place(text: str, start: int, stop: int, message: Message, closers: Closers) -> ContentPlace:
    """Find the content of a message at the end of ``text[start:stop]``."""
    chain = closers.trailing(text, start, stop)
    end = chain[0].begin if chain else stop
    content = "" if message.get("tool_calls") else content_of(message)
    # The content itself may end in tokens that close a turn: that much of the chain belongs to it.
    own = closers.trailing(content, 0, len(content))
    begin = end - (own[0].begin if own else len(content))
    if content and begin >= start and text.startswith(content, begin) and begin + len(content) <= stop:
        end = begin + len(content)
    else:
        begin = -1
    return ContentPlace(begin, end, [piece for piece in chain if piece.is_special and piece.begin >= end])


def turn_end(renders: Renders, how: Comparison, message: int, start: int) -> tuple[int, int, int]:
    """Return where the last message of ``text(message + 1)`` ends, which begins at ``start``, or -1 if it is not known.

    The result is the begin and end of the token that ends the message, and the end of the text without the header of a
    next message. The token is empty if none is proved to end the message.

    Raises:
        InputError: If it is not known where the message ends and the header of the next one begins.
    """
    ending, text = how.ending, renders.text(message + 1)
    limit = len(text) - len(ending.opening or "")
    if ending.token is not None and text.endswith(ending.token + ending.after):
        stop = len(text) - len(ending.after)
        return stop - len(ending.token), stop, limit
    if ending.opening is None and renders.prompt(message + 1) == text:
        raise InputError(_no_header(renders, message))
    if ending.opening and not text.endswith(ending.opening):
        raise InputError(_unknown_end(renders, message))
    # A content of special tokens must not be found in the header.
    start = len(renders.header(message) or "") if start < 0 else start
    found = content_place(text, min(start, limit), limit, renders.conversation.messages[message], how.closers)
    tokens = [piece for piece in found.special if piece.of(text) not in ending.openers]
    end = found.end_of_turn(text, _proved(renders, how, message, tokens), ending.token)
    return (found.end, found.end, limit) if end is None else (end.begin, end.end, limit)


def _proved(renders: Renders, how: Comparison, message: int, tokens: list[Closer]) -> list[Closer]:
    """Return which of the tokens after a content are proved to belong to the turn: a token that is not ends the row."""
    if tokens and not how.ending.opening and _opens_behind(renders, how, message):
        return tokens
    text, known = renders.text(message + 1), {how.ending.token, *how.declared}

    def is_proved(token: Closer) -> bool:
        return token.of(text) in known or token.of(text) not in how.ending.asked

    return list(itertools.takewhile(is_proved, tokens))


def _no_header(renders: Renders, message: int) -> str:
    role = renders.conversation.messages[message].get("role")
    return (
        f"message {message} ({role}) cannot be told from its header: the template has no generation prompt for "
        "it, and leaves out or repeats its content. Use a template with an add_generation_prompt block or with "
        "generation tags, or do not train this role"
    )


def _unknown_end(renders: Renders, message: int) -> str:
    role, text = renders.conversation.messages[message].get("role"), renders.text(message + 1)
    return (
        f"it is not known where message {message} ({role}) ends and the header of the next message begins, which the "
        f"template writes although no message follows ({text[-60:]!r}): use a template that writes the header with the "
        "message or with add_generation_prompt"
    )


def _opens_behind(renders: Renders, how: Comparison, message: int) -> bool:
    """Return whether the generation prompt opens a message right after this one, so its header cannot begin earlier."""
    text = renders.text(message + 1)
    try:
        prompt = renders.prompt(message + 1)
    except InputError:
        return False
    header = prompt[len(text) :].lstrip() if prompt.startswith(text) else ""
    found = how.closers.at(header, 0)
    return found is not None and found.of(header) in how.ending.openers


def _parted(renders: Renders, how: Comparison, message: int, count: int, prompt: str) -> Turn | MisplacedTurn:
    """Return the beginning of a turn if the text before it differs from its prompt."""
    whole = renders.text(count)
    header = _prompt_header(renders, how, message, prompt)
    history = MisplacedTurn(message, "history", _difference(whole, prompt))
    if how.without_thought and not thought_of(renders.conversation.messages[message]):
        begin = len(prompt) - len(header) + len(_without_tags(header))
        if begin < len(prompt) and whole.startswith(prompt[:begin]) and not whole.startswith(_TAGS, begin):
            return Turn(message, begin, 0, skips_thought=True)
    if header and whole.startswith(prompt[: len(prompt) - len(header)]):
        start = _parting(renders, message, count, prompt) if how.lenient else None
        if start is not None and start >= len(prompt) - len(header):
            return Turn(message, start, 0, mismatches=True)
        alone = renders.text(message + 1)
        return history if alone.startswith(prompt) else MisplacedTurn(message, "prompt", _difference(alone, prompt))
    if not how.by_itself or message != count - 1:
        return history
    return _behind_previous(renders, how, message, prompt, header) or history


def _behind_previous(
    renders: Renders, how: Comparison, message: int, prompt: str, header: str
) -> Turn | MisplacedTurn | None:
    """Return the beginning of the last turn, by the text after the content of the message before it.

    Text and prompt are rendered with a stand-in for that content. What the prompt has after it, the whole text must
    have after it too, whatever was written before.
    """
    count = message + 1
    whole = renders.text(count)
    if renders.placed(count, message - 1) is None:
        return None
    found, asked = renders.around(count, message - 1), renders.around(message, message - 1, prompt=True)
    if found is None or asked is None or not asked[1].endswith(header):
        return None
    behind, wanted = found[1], asked[1]
    place = len(whole) - len(behind)
    if header and behind.startswith(wanted):
        return Turn(message, place + len(wanted), 0, is_rewritten=True)
    if not how.lenient or not header:
        return MisplacedTurn(message, "prompt", _difference(behind, wanted))
    own = renders.around(count, message)
    limit = len(own[0]) if own is not None and whole.startswith(own[0]) else len(whole)
    start = min(place + _agreement(behind, wanted), limit)
    if start < place + len(wanted) - len(header):
        return None
    return Turn(message, start, 0, mismatches=True, is_rewritten=True)


def _without_tags(header: str) -> str:
    """Return a header without the tags at its end that open a thought, or write an empty one."""
    while True:
        bare = header.rstrip()
        tag = next((tag for tag in _TAGS if bare.endswith(tag)), None)
        if tag is None:
            return header
        header = bare.removesuffix(tag)


def _prompt_header(renders: Renders, how: Comparison, message: int, prompt: str) -> str:
    """Return the end of a prompt that opens the answer; empty if it cannot be separated from the message before."""
    usual = how.ending.opening or renders.usual(None).prompt
    if usual.strip() and prompt.endswith(usual):
        return usual
    before = renders.text(message)
    header = prompt[len(before) :] if prompt.startswith(before) else ""
    return header if header.strip() else ""


def _plain_turn(renders: Renders, end: str, message: int, whole: str, start: int) -> Turn | None:
    stop = plain_content_end(renders.conversation.messages[message], whole, start, end)
    return Turn(message, start, stop + len(end), content_end=stop) if stop >= 0 else None


def plain_content_end(said: Message, whole: str, start: int, end: str) -> int:
    """Return where the content of a message that begins at ``start`` ends, if only the content precedes the usual end.

    -1 if other text may come first, such as a thought or a tool call, or if there is no content.
    """
    content = said.get("content")
    # A message of two fields, role and content, has no reasoning.
    if not isinstance(content, str) or (len(said) > 2 and (said.get("tool_calls") or thought_of(said))):
        return -1
    if not whole.startswith(content, start) or not whole.startswith(end, start + len(content)):
        content = content.strip()
        if not whole.startswith(content, start) or not whole.startswith(end, start + len(content)):
            return -1
    bare = content.lstrip()
    return start + len(content) if bare and not opens(bare) else -1


def _is_answer(renders: Renders, message: int) -> bool:
    return message > 0 and renders.conversation.messages[message].get("role") == ASSISTANT


def _adds_nothing(renders: Renders, prompt: str, message: int) -> bool:
    """Return whether the template adds no generation prompt here; a usual one at the end needs no rendering.

    A template without a generation prompt may still write the message before it differently when one is asked for: what
    it then adds is seen behind a stand-in for the content of that message.
    """
    usual, before = renders.usual(None).prompt, renders.text(message)
    if usual.strip() and prompt.endswith(usual):
        return False
    if prompt == before or (usual.strip() and prompt.startswith(before)):
        return prompt == before
    plain, asked = renders.around(message, message - 1), renders.around(message, message - 1, prompt=True)
    return plain is not None and asked is not None and plain[1] == asked[1]


def _parting(renders: Renders, message: int, count: int, prompt: str) -> int | None:
    """Return where the turn differs from the generation prompt, whatever its content begins with."""
    around = renders.around(message + 1, message)
    before = around[0] if around else renders.text(message + 1)
    start = _agreement(before, prompt)
    return start if renders.text(count).startswith(before[:start]) else None


def _agreement(one: str, other: str) -> int:
    """Return how many characters two texts have in common at their beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one[low:middle] == other[low:middle] else (low, middle - 1)
    return low


def _behind_header(renders: Renders, message: int, count: int) -> int | None:
    """Return where a message without a generation prompt begins: after what the template writes before its content.

    If that is only spaces, they belong to the message: a model that sees the text before them has to write them. None
    if the whole text does not have the header.
    """
    header = renders.header(message)
    if header is None:
        raise InputError(_no_header(renders, message))
    bare = header.rstrip(" ")
    if message and bare == renders.text(message):
        header = bare
    return len(header) if renders.text(count).startswith(header) else None


def tagged_turns(renders: Renders, count: int, *, exact: bool, header: str) -> list[Turn]:
    """Return the assistants' turns from the spans of ``{% generation %}``, cut to our convention unless ``exact``.

    Adjacent blocks are joined. If their number is not that of the assistants' messages, the beginnings of the
    conversation are rendered too, to assign the blocks. ``header`` is the generation prompt: if a block begins with it,
    or with its end, that much is cut off.

    Raises:
        InputError: If the blocks cannot be assigned to messages.
    """
    whole = renders.text(count)
    blocks = _joined(renders.rendered(count).generation_spans)
    assistants = [
        number
        for number, message in enumerate(renders.conversation.messages[:count])
        if message.get("role") == ASSISTANT
    ]
    owners = assistants if len(blocks) == len(assistants) else _owners(renders, assistants, count, len(blocks))
    turns = []
    for owner, (begin, end) in zip(owners, blocks, strict=True):
        inside = _header_inside(whole, begin, header) or _header_inside(whole, begin, _without_tags(header))
        start = begin if exact else begin + inside
        turns.append(Turn(owner, min(start, end), end, exact))
    return turns


def within(block: Turn, checked: Turn) -> Turn:
    """Return a generation block, cut to where the comparison shows that its turn lies, with the end that it shows."""
    block = block._replace(start=min(max(block.start, checked.start), block.stop))
    if checked.end is None or block.stop < checked.end[0]:
        return block
    stop = max(block.start, min(block.stop, checked.stop))
    end = checked.end if checked.end[0] >= block.start else None
    return block._replace(stop=stop, end=end, mismatches=checked.mismatches, is_rewritten=checked.is_rewritten)


def _joined(spans: tuple[tuple[int, int], ...]) -> list[tuple[int, int]]:
    blocks: list[tuple[int, int]] = []
    for begin, end in spans:
        if begin == end:
            continue
        if blocks and blocks[-1][1] == begin:
            blocks[-1] = (blocks[-1][0], end)
        else:
            blocks.append((begin, end))
    return blocks


def _owners(renders: Renders, assistants: list[int], count: int, num_blocks: int) -> list[int]:
    owners: list[int] = []
    for message in assistants:
        found = (
            num_blocks if message == assistants[-1] else len(_joined(renders.rendered(message + 1).generation_spans))
        )
        owners += [message] * (found - len(owners))
    if len(owners) != num_blocks:
        raise InputError(
            f"the template rendered {num_blocks} generation blocks for {len(assistants)} assistant messages of "
            f"{count}, and it is not known to which message each belongs: use generation_tags: ignore, or a template "
            "with one block for each message"
        )
    return owners


def _header_inside(whole: str, begin: int, header: str) -> int:
    """Return how many characters at the beginning of a block belong to the header; 0 if it precedes the block."""
    for outside in range(len(header), -1, -1):
        before, inside = header[:outside], header[outside:]
        if whole.endswith(before, 0, begin) and whole.startswith(inside, begin):
            return len(inside)
    return 0


def _difference(found: str, expected: str) -> str:
    place = _agreement(found, expected)
    shown = slice(max(place - 20, 0), place + 30)
    return (
        f"from character {place} on the text has {found[shown]!r}; without what follows it would have "
        f"{expected[shown]!r}"
    )
