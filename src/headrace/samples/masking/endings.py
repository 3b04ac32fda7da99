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

If no token is proved, none is known, and the options of masking decide what happens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple

from headrace.errors import InputError
from headrace.samples.masking.renders import ANSWER, NEXT_QUESTION, QUESTION, Renders


class Closer(NamedTuple):
    """A run of white space or one special token, in characters of the text."""

    begin: int
    end: int
    is_special: bool


class Closers:
    """Finds the white space and special tokens of tokeniser and template that may stand at the end of a turn."""

    def __init__(self, special: Iterable[str]) -> None:
        self._special = frozenset(token for token in special if token.strip())
        # The longest first, so that a token whose end is another token is found as a whole.
        self._lengths = sorted({len(token) for token in self._special}, reverse=True)
        self._last_characters = frozenset(token[-1] for token in self._special)

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
        """Return all special tokens in a text."""
        found = []
        at = 0
        while at < len(text):
            closer = self.at(text, at)
            found += [closer] if closer else []
            at = closer.end if closer else at + 1
        return found

    def leading(self, text: str) -> list[str]:
        """Return the special tokens with which a text begins, ignoring white space."""
        found = []
        while closer := self.at(text := text.lstrip(), 0):
            found.append(text[: closer.end])
            text = text[closer.end :]
        return found

    def agreement(self, text: str, whole: str, floor: int, *, with_end: bool, usual_end: str | None) -> int | None:
        """Return how far ``whole`` begins with ``text``, except for tokens that only the end of a conversation has.

        ``text`` is what the template makes of the first messages. Some templates close a conversation with a token of
        its own (``<|end|>\n<|endoftext|>``), which the whole text has only at its end. So everything before the special
        tokens at the end of ``text`` must be equal, and these are compared one by one. None if the texts differ
        earlier. Tokens before ``floor`` are not such an end.

        ``with_end``: the token that ends the last turn must be equal too. It is the last ``usual_end`` among the
        tokens, or the last of all if there is none.
        """
        if whole.startswith(text):
            return len(text)
        pieces = self.trailing(text, floor, len(text))
        agreed = pieces[0].begin if pieces else len(text)
        if not whole.startswith(text[:agreed]):
            return None
        for piece in pieces:
            if not whole.startswith(text[piece.begin : piece.end], piece.begin):
                break
            agreed = piece.end
        if with_end:
            special = [piece for piece in pieces if piece.is_special]
            usual = [piece for piece in special if text[piece.begin : piece.end] == usual_end]
            if any(piece.end > agreed for piece in (usual or special)[-1:]):
                return None
        return agreed


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


def find_ending(renders: Renders, closers: Closers, declared: Collection[str]) -> Ending:
    """Find the ending from renderings of `PROBE`. ``declared`` are tokens that are declared to end a turn."""
    texts = []
    for count in (1, 2, 3):
        try:
            texts.append(renders.text(count))
            if count == 1:
                prompt = renders.prompt(1)
        except InputError:
            break
    if not texts:
        return Ending()
    one = texts[0]
    header = prompt[len(one) :] if prompt.startswith(one) else ""
    asked = prompt
    answer = _place(texts[1], ANSWER) if len(texts) > 1 else -1
    if answer >= 0:
        asked += texts[1][:answer]
        if not header.strip() and texts[1].startswith(one):
            header = texts[1][len(one) : answer]
    openers = frozenset(closers.leading(one)) | frozenset(
        header[piece.begin : piece.end] for piece in closers.inside(header)
    )
    openers -= frozenset(declared)
    if answer < 0:
        # A generation prompt shows at least that the template does not write the next header by itself.
        return Ending(opening="" if prompt != one and header.strip() else None, openers=openers, asked=asked)
    tail = texts[1][answer + len(ANSWER) :]
    joiner = _joiner(texts[2]) if len(texts) > 2 else ""
    question = _place(one, QUESTION)
    first = one[:question] if question >= 0 else one
    is_opened = bool(closers.at(header.lstrip(), 0))
    chain: list[Closer] = []
    for piece in closers.inside(tail):
        if tail[piece.begin : piece.end] in openers:
            break
        chain.append(piece)
    staying = [piece for piece in chain if joiner.startswith(tail[: piece.end])]
    for piece in reversed(staying or chain):
        token = tail[piece.begin : piece.end]
        is_proved = token in declared or is_opened or token not in (first if staying else asked)
        if staying and not is_proved:
            behind = joiner[piece.end :]
            is_proved = any(behind[other.begin : other.end] in openers for other in closers.inside(behind))
        if is_proved:
            return _ending(closers, token, tail[piece.end :], openers, asked)
    return _ending(closers, None, tail, openers, asked)


def _ending(closers: Closers, token: str | None, after: str, openers: frozenset[str], asked: str) -> Ending:
    at = 0
    while at < len(after):
        closer = closers.at(after, at)
        if after[at].isspace():
            at += 1
        elif closer is not None and after[at : closer.end] not in openers:
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
