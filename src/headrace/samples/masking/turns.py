"""Where the text of a message begins and ends in the rendered conversation: from its structure, never from a search.

Two texts say what an assistant's turn is, both made of the messages up to it and of nothing that follows:

    prompt(i)   messages before it and the generation prompt    what a model sees before it writes
    text(i+1)   messages up to it                               the same with what it wrote

The whole must begin with the first, or the model would be trained behind a text that it never sees, and with the second
up to the tokens that only close a conversation, or the turn was written otherwise when more followed. Then the turn is
``[len(prompt(i)), len(text(i+1)))`` of the whole, and nothing that a later message says can stand in it.

Most turns need only the first text: where the whole goes on behind ``prompt(i)`` with the message's own content and the
token that ends the template's usual turn, the characters themselves are the proof. And the first text needs no
rendering of its own where the template's source shows that it writes one message after another, whatever follows.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.errors import InputError
from headrace.samples.conversation import Message
from headrace.samples.masking.closers import Closers
from headrace.samples.masking.renders import Renders, opens, thought_of

ASSISTANT = "assistant"


class Turn(NamedTuple):
    """One message's own text in the whole: ``[start, stop)`` in characters, what precedes its header not included."""

    message: int
    start: int
    """Behind the header: the first character that the author wrote, the model where it is an assistant's."""
    stop: int
    """Behind all that ends the turn."""
    exact: bool = False
    """The template's author said where it is (generation tags as they stand)."""
    content_end: int = -1
    """Behind the content, where the token that ends the turn begins and all before it is content; -1: not looked at."""


class Fault(NamedTuple):
    """A turn that cannot be placed in a text."""

    message: int
    kind: str
    """``history``: it is written otherwise when more follows; ``prompt``: it does not begin with the prompt."""
    text: str
    """What was found and what should be there."""


class Comparison(NamedTuple):
    """How the prefixes of a conversation are compared."""

    closers: Closers
    usual_end: str | None
    """The token that ends a usual turn of the template."""
    lenient: bool
    """A turn that does not begin with the generation prompt begins where both part."""
    ends: bool
    """The token that ends a turn must be the same when more follows."""
    thorough: bool = False
    """Every turn is compared with the text of the messages up to it, and not only those that need it."""


def find_turn(renders: Renders, how: Comparison, message: int, count: int) -> Turn | Fault:
    """The turn of one message in the text of the first ``count``: one rendering for most, at most four.

    Raises:
        InputError: the template refuses the messages up to there, or the header cannot be told from the content.
    """
    found = check_turn(renders, how, message, count)
    if isinstance(found, Turn | Fault):
        return found
    whole = renders.text(count)
    prompt = _prompt(renders, message)
    if prompt is None or _adds_nothing(renders, prompt, message):
        start = _behind_header(renders, message, count)
    elif whole.startswith(prompt):
        start = len(prompt)
    else:
        start = _parting(renders, message, count, prompt)
    if start is None or found < start:
        return Fault(message, "history", _difference(whole, renders.text(message + 1)))
    return Turn(message, start, found)


def check_turn(renders: Renders, how: Comparison, message: int, count: int) -> Turn | Fault | int:
    """Whether the text of the first ``count`` messages has the turn as it was written.

    The turn where the comparison has found it on its way, else where it stops.
    """
    whole = renders.text(count)
    if how.usual_end is not None and not how.thorough and _is_answer(renders, message):
        start = renders.prompt_end(count, message, how.usual_end)
        turn = None if start is None else _plain_turn(renders, how.usual_end, message, whole, start)
        if turn is not None:
            return turn
    prompt = _prompt(renders, message)
    if prompt is not None:
        if not whole.startswith(prompt):
            alone = renders.text(message + 1)
            if alone.startswith(prompt):
                return Fault(message, "history", _difference(whole, prompt))
            if not how.lenient:
                return Fault(message, "prompt", _difference(alone, prompt))
        elif how.usual_end is not None and not how.thorough:
            usual = renders.usual(how.usual_end)
            if usual.is_plain and prompt.endswith(usual.prompt):
                turn = _plain_turn(renders, how.usual_end, message, whole, len(prompt))
                if turn is not None:
                    return turn
    stop = _stop(renders, how, message, count)
    return Fault(message, "history", _difference(whole, renders.text(message + 1))) if stop is None else stop


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


def _stop(renders: Renders, how: Comparison, message: int, count: int) -> int | None:
    whole = renders.text(count)
    if message == count - 1:
        return len(whole)
    beginning = renders.text(message + 1)
    return how.closers.agreement(beginning, whole, 0, with_end=how.ends, usual_end=how.usual_end)


def _parting(renders: Renders, message: int, count: int, prompt: str) -> int | None:
    """Where the turn leaves the generation prompt, whatever its content begins with."""
    around = renders.around(message + 1, message)
    before = around[0] if around else renders.text(message + 1)
    start = next((place for place, pair in enumerate(zip(before, prompt, strict=False)) if pair[0] != pair[1]), None)
    start = min(len(before), len(prompt)) if start is None else start
    return start if renders.text(count).startswith(before[:start]) else None


def _behind_header(renders: Renders, message: int, count: int) -> int | None:
    """Where a message that has no generation prompt begins: behind what the template writes before any content of it.

    Spaces at the end of the header are left to the message: tokenisers take them with the word. None where the whole
    does not have the header.
    """
    header = renders.header(message)
    if header is None:
        role = renders.conversation.messages[message].get("role")
        raise InputError(
            f"message {message} ({role}) cannot be told from its header: the template has no generation prompt for "
            "it, and leaves out or repeats what it says. Use a template with an add_generation_prompt block or with "
            "generation tags, or do not train this role"
        )
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
    pairs = zip(found, expected, strict=False)
    place = next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(found), len(expected)))
    shown = slice(max(place - 20, 0), place + 30)
    return (
        f"from character {place} on there is {found[shown]!r} in the text, and {expected[shown]!r} without what follows"
    )
