"""Where the text of a message begins and ends in the rendered conversation: from its structure, never from a search.

Two texts say what an assistant's turn is, both made of the messages up to it and of nothing that follows:

    prompt(i)   messages before it and the generation prompt    what a model sees before it writes
    text(i+1)   messages up to it                               the same with what it wrote, and its end

The whole must begin with the first, or the model would be trained behind a text that it never sees, and with the second
up to the token that ends the turn, or the turn was written otherwise when more followed. Then the turn is
``[len(prompt(i)), end of the token)`` of the whole, and nothing that a later message says can stand in it. Which token
that is, and what of ``text(i+1)`` is the next header already, `endings` proves.

Most turns need only the first text: where the whole goes on behind ``prompt(i)`` with the message's own content and the
token that ends the template's usual turn, the characters themselves are the proof. And the first text needs no
rendering of its own where the template's source shows that it writes one message after another, whatever follows.

Where the whole and ``prompt(i)`` part before the end of message ``i - 1``, what is said before was written otherwise:
that is a fault of history, and no place to begin a turn at.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.errors import InputError
from headrace.samples.conversation import Message
from headrace.samples.masking.endings import Closers, Ending
from headrace.samples.masking.renders import Renders, content_text, opens, thought_of

ASSISTANT = "assistant"


class Turn(NamedTuple):
    """One message's own text in the whole: ``[start, stop)`` in characters, what precedes its header not included."""

    message: int
    start: int
    """Behind the header: the first character that the author wrote, the model where it is an assistant's."""
    stop: int
    """Behind all that the template writes for the turn, less the header of the next one."""
    exact: bool = False
    """The template's author said where it is (generation tags as they stand)."""
    content_end: int = -1
    """Behind the content, where the token that ends the turn begins and all before it is content; -1: not looked at."""
    end: tuple[int, int] | None = None
    """The token that ends the turn, without characters where none is proved to; None: not looked at."""
    mismatches: bool = False
    """It begins where it parts from the generation prompt, as ``on_prompt_mismatch: allow`` asks for."""
    is_rewritten: bool = False
    """What is said before it is not written as its prompt has it."""


class MisplacedTurn(NamedTuple):
    """A turn that cannot be placed in a text."""

    message: int
    kind: str
    """``history``: it, or what is said before it, is written otherwise when more follows; ``prompt``: it does not begin
    with the generation prompt."""
    text: str
    """What was found and what should be there."""


class Comparison(NamedTuple):
    """How the prefixes of a conversation are compared."""

    closers: Closers
    ending: Ending
    declared: frozenset[str]
    """Tokens that somebody says end a turn."""
    lenient: bool
    """A turn that does not begin with the generation prompt begins where both part."""
    ends: bool
    """The token that ends a turn must be the same when more follows."""
    thorough: bool = False
    """Every turn is compared with the text of the messages up to it, and not only those that need it."""
    by_itself: bool = False
    """The last turn may stand behind a history that the template writes otherwise in its prompt."""

    @property
    def usual_end(self) -> str | None:
        """The token that ends a usual turn of the template."""
        return self.ending.token


def find_turn(renders: Renders, how: Comparison, message: int, count: int) -> Turn | MisplacedTurn:
    """The turn of one message in the text of the first ``count``: one rendering for most, at most seven.

    Raises:
        InputError: the template refuses the messages up to there, or header, content and end cannot be told apart.
    """
    found = check_turn(renders, how, message, count)
    if isinstance(found, MisplacedTurn) or found.start >= 0:
        return found
    start = _behind_header(renders, message, count)
    if start is None or found.stop < start:
        return MisplacedTurn(message, "history", _difference(renders.text(count), renders.text(message + 1)))
    return found._replace(start=start)


def check_turn(renders: Renders, how: Comparison, message: int, count: int) -> Turn | MisplacedTurn:
    """Whether the text of the first ``count`` messages has the turn as it was written.

    The ``start`` is -1 where there is no generation prompt that tells it.
    """
    whole = renders.text(count)
    if how.usual_end is not None and not how.thorough and _is_answer(renders, message):
        start = renders.prompt_end(count, message, how.usual_end)
        turn = None if start is None else _plain_turn(renders, how.usual_end, message, whole, start)
        if turn is not None:
            return turn
    prompt = _prompt(renders, message)
    turn = Turn(message, -1, 0)
    if prompt is not None and (how.ending.opening or not _adds_nothing(renders, prompt, message)):
        if whole.startswith(prompt):
            turn = turn._replace(start=len(prompt))
            if how.usual_end is not None and not how.thorough:
                usual = renders.usual(how.usual_end)
                if usual.is_plain and prompt.endswith(usual.prompt):
                    plain = _plain_turn(renders, how.usual_end, message, whole, len(prompt))
                    if plain is not None:
                        return plain
        else:
            parted = _parted(renders, how, message, count, prompt)
            if isinstance(parted, MisplacedTurn):
                return parted
            turn = parted
    begin, stop, limit = turn_end(renders, how, message)
    alone = renders.text(message + 1)
    if not whole.startswith(alone[: stop if how.ends else begin]) or begin < turn.start:
        return MisplacedTurn(message, "history", _difference(whole, alone))
    stop = stop if whole.startswith(alone[:stop]) else begin
    after = stop
    for piece in how.closers.trailing(alone, stop, limit):
        if piece.begin != after or not whole.startswith(alone[piece.begin : piece.end], piece.begin):
            break
        after = piece.end
    return turn._replace(stop=after, end=(begin, stop))


def turn_end(renders: Renders, how: Comparison, message: int) -> tuple[int, int, int]:
    """Of the last message of ``text(message + 1)``: where the token that ends it begins and ends, and the text less the
    header of a next message. A token without characters: none is proved to end it.

    Raises:
        InputError: it cannot be told where the message ends and the header of the next one begins.
    """
    ending, text = how.ending, renders.text(message + 1)
    opening = ending.opening
    if ending.token is not None and text.endswith(ending.token + ending.after):
        stop = len(text) - len(ending.after)
        return stop - len(ending.token), stop, len(text) - len(opening or "")
    if opening is None and renders.prompt(message + 1) == text:
        raise InputError(_no_header(renders, message))
    if opening and not text.endswith(opening):
        raise InputError(_unknown_end(renders, message))
    limit = len(text) - len(opening or "")
    chain = how.closers.trailing(text, 0, limit)
    floor = chain[0].begin if chain else limit
    said = renders.conversation.messages[message]
    content = "" if said.get("tool_calls") else (content_text(said) or "").strip()
    own = how.closers.trailing(content, 0, len(content))
    begin = floor - (own[0].begin if own else len(content))
    # The content may itself end in what closes a turn: that much of the chain is its own.
    is_located = bool(content) and begin >= 0 and text.startswith(content, begin) and begin + len(content) <= limit
    floor = begin + len(content) if is_located else floor
    tokens = [
        piece
        for piece in chain
        if piece.is_special and piece.begin >= floor and text[piece.begin : piece.end] not in ending.openers
    ]
    if tokens and not opening and _opens_behind(renders, how, message):
        proved = tokens
    else:
        found = [(piece, text[piece.begin : piece.end]) for piece in tokens]
        known = {ending.token, *how.declared}
        # Behind one of which nothing is known no other is taken.
        is_proved = [token in known or token not in ending.asked for _, token in found]
        proved = tokens[: is_proved.index(False) if False in is_proved else len(tokens)]
    usual = [piece for piece in proved if text[piece.begin : piece.end] == ending.token] or proved
    if not usual:
        return floor, floor, limit
    end = usual[0] if is_located else usual[-1]
    return end.begin, end.end, limit


def _no_header(renders: Renders, message: int) -> str:
    role = renders.conversation.messages[message].get("role")
    return (
        f"message {message} ({role}) cannot be told from its header: the template has no generation prompt for "
        "it, and leaves out or repeats what it says. Use a template with an add_generation_prompt block or with "
        "generation tags, or do not train this role"
    )


def _unknown_end(renders: Renders, message: int) -> str:
    role, text = renders.conversation.messages[message].get("role"), renders.text(message + 1)
    return (
        f"it cannot be told where message {message} ({role}) ends and the header of the next message begins, which the "
        f"template writes behind it although nothing follows ({text[-60:]!r}): use a template that writes the header "
        "with the message or with add_generation_prompt"
    )


def _opens_behind(renders: Renders, how: Comparison, message: int) -> bool:
    """Whether the generation prompt opens a message right behind this one, so that its header does not begin before."""
    text = renders.text(message + 1)
    try:
        prompt = renders.prompt(message + 1)
    except InputError:
        return False
    header = prompt[len(text) :].lstrip() if prompt.startswith(text) else ""
    found = how.closers.at(header, 0)
    return found is not None and header[: found.end] in how.ending.openers


def _parted(renders: Renders, how: Comparison, message: int, count: int, prompt: str) -> Turn | MisplacedTurn:
    """The beginning of a turn before which the whole has something else than its prompt."""
    whole = renders.text(count)
    header = _prompt_header(renders, how, message, prompt)
    history = MisplacedTurn(message, "history", _difference(whole, prompt))
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
    """The beginning of the last turn by what stands behind the content of the message before it.

    Text and prompt are rendered with a stand-in for that content; what the prompt has behind it, the whole must have
    behind it as well, whatever was written before.
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


def _prompt_header(renders: Renders, how: Comparison, message: int, prompt: str) -> str:
    """The end of a prompt that opens the answer; empty where it cannot be told from the message before."""
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
    """Where the content of a message that begins at ``start`` ends, if it is all that stands before the usual end.

    -1 where something else stands there, a thought or a call of a tool may, or there is no content.
    """
    content = said.get("content")
    # Role and content leave no room for a thought of its own.
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


def _prompt(renders: Renders, message: int) -> str | None:
    """What a model sees before it writes this message; None for what no model writes, or without a prompt."""
    return renders.prompt(message) if _is_answer(renders, message) else None


def _adds_nothing(renders: Renders, prompt: str, message: int) -> bool:
    """Whether the template has no generation prompt here. The usual one at its end tells without a rendering."""
    usual = renders.usual(None).prompt
    return not (usual.strip() and prompt.endswith(usual)) and prompt == renders.text(message)


def _parting(renders: Renders, message: int, count: int, prompt: str) -> int | None:
    """Where the turn leaves the generation prompt, whatever its content begins with."""
    around = renders.around(message + 1, message)
    before = around[0] if around else renders.text(message + 1)
    start = _agreement(before, prompt)
    return start if renders.text(count).startswith(before[:start]) else None


def _agreement(one: str, other: str) -> int:
    """How many characters two texts have in common at their beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, pair in pairs if pair[0] != pair[1]), min(len(one), len(other)))


def _behind_header(renders: Renders, message: int, count: int) -> int | None:
    """Where a message that has no generation prompt begins: behind what the template writes before any content of it.

    Spaces at the end of the header are left to the message: tokenisers take them with the word. None where the whole
    does not have the header.
    """
    header = renders.header(message)
    if header is None:
        raise InputError(_no_header(renders, message))
    header = header.rstrip(" ")
    return len(header) if renders.text(count).startswith(header) else None


def tagged_turns(renders: Renders, count: int, *, exact: bool, header: str) -> list[Turn]:
    """The assistants' turns from the spans of ``{% generation %}``, cut to the convention unless ``exact``.

    Blocks that touch are one. Where their number is not that of the assistants, the beginnings of the conversation are
    rendered as well, to know whose each one is. ``header`` is the generation prompt: of a block that holds it, or its
    end, that much is cut off.

    Raises:
        InputError: the blocks cannot be assigned to messages.
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
        start = begin if exact else begin + _header_inside(whole, begin, header)
        turns.append(Turn(owner, min(start, end), end, exact))
    return turns


def within(block: Turn, checked: Turn) -> Turn:
    """A generation block, no further than the comparison shows its turn to go, with the end that it shows."""
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
            f"{count}, and it cannot be told whose each one is: use generation_tags: ignore, or a template with one "
            "block a message"
        )
    return owners


def _header_inside(whole: str, begin: int, header: str) -> int:
    """How many characters at the beginning of a block belong to the header: none, where it stands before the block."""
    for outside in range(len(header), -1, -1):
        before, inside = header[:outside], header[outside:]
        if whole.endswith(before, 0, begin) and whole.startswith(inside, begin):
            return len(inside)
    return 0


def _difference(found: str, expected: str) -> str:
    place = _agreement(found, expected)
    shown = slice(max(place - 20, 0), place + 30)
    return (
        f"from character {place} on there is {found[shown]!r} in the text, and {expected[shown]!r} without what follows"
    )
