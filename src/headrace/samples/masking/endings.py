r"""How turns end: what may stand there, and how a template's own ending is proved.

    <|start|>user<|mid|>Is it?<|eot|>\n<|start|>assistant<|mid|>Yes 7   <|eot|>   \n<|start|>assistant<|mid|>
                                                                        token     after, of which `opening` is
                                                                                  the next header, if there is one

Not every special token after an answer ends it: some templates always write the header of the next message there. A
token ends the turn only if all of this holds:

* it follows the answer when no message follows, and, if the template writes it there at all, also when more follow;
* it opens no message: it is neither among the tokens with which the text begins, nor in the generation prompt;
* something shows that it belongs to the answer: it is declared (``eos_token``), or never occurs before the first
  content, or is followed by a token that opens messages, so that the next header begins there and not before.

A declared token that follows the answer in both cases is the end whatever stands before it, and the last one if there
are several: Kimi-K3 closes its tags with tokens that open messages before it ends a turn.

If no token is proved, a token that ends generated texts (``generation_config.json``) ends the turn:

* one with which the next message begins: GLM's models stop where they open it. The last turn of a text gets it too;
* if the template writes none at all (Falcon), each turn is the last one of a text of its own, and gets it there.

Otherwise no end is known, and the options of masking decide what happens.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from headrace.errors import InputError
from headrace.samples.conversation import Message
from headrace.samples.masking.renders import ANSWER, CALLS, NEXT_QUESTION, PROBE, QUESTION, Renders


class Closer(NamedTuple):
    """A run of white space or one special token, in characters of the text."""

    begin: int
    end: int
    is_special: bool

    def of(self, text: str) -> str:
        """Return the characters themselves."""
        return text[self.begin : self.end]


class Closers:
    """Finds the white space and special tokens of tokeniser and template that may stand at the end of a turn."""

    def __init__(self, special: Iterable[str]) -> None:
        self._special = frozenset(token for token in special if token.strip())
        # The longest first, so that a token whose end is another token is found as a whole.
        self._lengths = sorted({len(token) for token in self._special}, reverse=True)
        self._last_characters = frozenset(token[-1] for token in self._special)
        # A tokeniser may have thousands of special tokens, which begin in few ways.
        begins = sorted({re.escape(token[:3]) for token in self._special})
        self._begin = re.compile("|".join(begins) or "(?!)")

    def trailing(self, text: str, floor: int, end: int) -> list[Closer]:
        """Return the white space and special tokens at the end of ``text[floor:end]``, from left to right."""
        closers: list[Closer] = []
        while end > floor:
            begin = end
            while begin > floor and text[begin - 1].isspace():
                begin -= 1
            is_special = begin == end
            if is_special:
                if text[end - 1] not in self._last_characters:
                    break
                length = next(
                    (n for n in self._lengths if n <= end - floor and text[end - n : end] in self._special), 0
                )
                if not length:
                    break
                begin -= length
            closers.append(Closer(begin, end, is_special))
            end = begin
        closers.reverse()
        return closers

    def at(self, text: str, place: int) -> Closer | None:
        """Return the special token that begins at ``place``, the longest if there are several."""
        length = next((n for n in self._lengths if text[place : place + n] in self._special), 0)
        return Closer(place, place + length, True) if length else None

    def inside(self, text: str) -> list[Closer]:
        """Return all special tokens in a text, from left to right."""
        found = []
        at = 0
        while begun := self._begin.search(text, at):
            closer = self.at(text, begun.start())
            found += [closer] if closer else []
            at = closer.end if closer else begun.start() + 1
        return found

    def leading(self, text: str) -> list[str]:
        """Return the special tokens with which a text begins, ignoring white space."""
        found = []
        while closer := self.at(text := text.lstrip(), 0):
            found.append(text[: closer.end])
            text = text[closer.end :]
        return found

    def agreement(self, text: str, whole: str) -> int | None:
        """Return how far ``whole`` begins with ``text``, except for tokens that only the end of a conversation has.

        ``text`` is what the template makes of the first messages. Some templates close a conversation with a token of
        its own (``<|end|>\n<|endoftext|>``), which the whole text has only at its end. So everything before the special
        tokens at the end of ``text`` must be equal, and these are compared one by one. None if the texts differ
        earlier.
        """
        pieces = self.trailing(text, 0, len(text))
        begin = pieces[0].begin if pieces else len(text)
        return same_until(pieces, text, whole, begin) if whole.startswith(text[:begin]) else None


def same_until(pieces: Iterable[Closer], text: str, whole: str, begin: int) -> int:
    """Return where the first ``pieces`` of ``text`` end, in a row from ``begin`` on, that ``whole`` has there too."""
    for piece in pieces:
        if piece.begin != begin or not whole.startswith(piece.of(text), begin):
            break
        begin = piece.end
    return begin


class Ending(NamedTuple):
    """How one template with one set of arguments ends a turn."""

    token: str | None = None
    """The token that ends an answer; None if none is proved."""
    after: str = ""
    """What the template writes after the token (or after the answer, if there is none) when no message follows."""
    opening: str | None = None
    """The end of ``after`` that opens the next message; empty if nothing does; None if the probe does not show it."""
    openers: frozenset[str] = frozenset()
    """Special tokens that open a message."""
    asked: str = ""
    """What a model sees before it answers; none of its tokens ends a turn unless that is proved in another way."""
    behind: tuple[str, str] = ("", "")
    """What ends an answer, or a call of a tool, that is the last message; empty if ``token`` does, or if unknown."""
    stops: frozenset[str] = frozenset()
    """Tokens with which a message begins and that end the turn before it; empty if the template writes none there."""


class _Probe(NamedTuple):
    """What a template makes of `PROBE`, as far as it renders it."""

    before_question: str
    """What it writes before the question, or before anything else if the question does not stand there."""
    openers: frozenset[str]
    """Special tokens that open a message, declared or not."""
    header: str
    """The header of an answer, from the generation prompt or, if that adds nothing, from an answer."""
    adds_prompt: bool
    """Whether it has a generation prompt."""
    asked: str
    """Everything that it writes before an answer: in the generation prompt, and in a text with the answer."""
    tail: str | None
    """What it writes after an answer that ends the text; None if the answer does not stand there."""
    joiner: str
    """What it writes between an answer and the next question."""


def _probed(renders: Renders, closers: Closers) -> _Probe | None:
    """Render `PROBE` and divide the texts at its words; None if the template refuses a question."""
    answered = continued = ""
    try:
        asking, prompt = renders.text(1), renders.prompt(1)
    except InputError:
        return None
    with contextlib.suppress(InputError):
        answered = renders.text(2)
        continued = renders.text(3)
    question, answer = _place(asking, QUESTION), _place(answered, ANSWER)
    header = prompt[len(asking) :] if prompt.startswith(asking) else ""
    adds_prompt = prompt != asking and bool(header.strip())
    if answer >= 0 and not header.strip() and answered.startswith(asking):
        header = answered[len(asking) : answer]
    return _Probe(
        before_question=asking[:question] if question >= 0 else asking,
        openers=frozenset((*closers.leading(asking), *(piece.of(header) for piece in closers.inside(header)))),
        header=header,
        adds_prompt=adds_prompt,
        asked=prompt + answered[: max(answer, 0)],
        tail=answered[answer + len(ANSWER) :] if answer >= 0 else None,
        joiner=_joiner(continued),
    )


def find_ending(
    renders: Renders, closers: Closers, declared: Collection[str], generation_ends: Sequence[str] = ()
) -> Ending:
    """Find the ending from renderings of `PROBE`.

    ``declared`` are tokens that are declared to end a turn; ``generation_ends`` end a generated text, the usual one
    first.
    """
    probe = _probed(renders, closers)
    if probe is None:
        return Ending()
    openers, tail = probe.openers - frozenset(declared), probe.tail
    if tail is None:
        # A generation prompt shows at least that the template does not write the next header by itself.
        return Ending(opening="" if probe.adds_prompt else None, openers=openers, asked=probe.asked)

    def opens_inside(text: str) -> bool:
        return any(piece.of(text) in openers for piece in closers.inside(text))

    every = closers.inside(tail)
    for piece in reversed(every):
        if piece.of(tail) in declared and probe.joiner.startswith(tail[: piece.end]):
            return _ending(closers, piece.of(tail), tail[piece.end :], openers, probe.asked)
    chain = list(itertools.takewhile(lambda piece: piece.of(tail) not in openers, every))
    staying = [piece for piece in chain if probe.joiner.startswith(tail[: piece.end])]
    is_opened = closers.at(probe.header.lstrip(), 0) is not None
    seen = probe.before_question if staying else probe.asked
    for piece in reversed(staying or chain):
        token = piece.of(tail)
        is_proved = is_opened or token in declared or token not in seen
        if is_proved or (staying and opens_inside(probe.joiner[piece.end :])):
            return _ending(closers, token, tail[piece.end :], openers, probe.asked)
    ending = _ending(closers, None, tail, openers, probe.asked)
    stops = frozenset((*declared, *generation_ends))

    def behind(messages: list[Message]) -> str:
        """Return the text up to a stop that the last message adds right after those before it; empty if none."""
        with contextlib.suppress(InputError):
            text, whole = renders.render(messages[:-1]).text, renders.render(messages).text
            added = whole[len(text) :] if whole.startswith(text) else ""
            stop = closers.at(added.lstrip(), 0)
            if stop is not None and stop.of(added.lstrip()) in stops:
                return added[: len(added) - len(added.lstrip()) + stop.end]
        return ""

    if tail.strip() or not generation_ends:
        return ending
    with_next = behind(PROBE), behind(CALLS[:3])
    if any(with_next):
        return ending._replace(behind=with_next, stops=stops)
    never_written = next((token for token in generation_ends if token not in probe.asked), "")
    return ending._replace(behind=(never_written, never_written))


def _ending(closers: Closers, token: str | None, after: str, openers: frozenset[str], asked: str) -> Ending:
    at = 0
    while at < len(after):
        closer = closers.at(after, at)
        if after[at].isspace():
            at += 1
        elif closer is not None and closer.of(after) not in openers:
            at = closer.end
        else:
            break
    return Ending(token, after, after[at:], openers, asked)


def _place(text: str, words: str) -> int:
    """Return where the words of the probe are; the template may have changed their case."""
    place = text.rfind(words)
    return place if place >= 0 or not text.isascii() else text.lower().rfind(words.lower())


def _joiner(text: str) -> str:
    """Return the text between an answer and the question that follows it."""
    begin, end = _place(text, ANSWER), _place(text, NEXT_QUESTION)
    return text[begin + len(ANSWER) : end] if 0 <= begin < end else ""
