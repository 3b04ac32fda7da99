r"""How turns end: what may stand there, and how a template's own ending is proved.

    <|start|>user<|mid|>Is it?<|eot|>\n<|start|>assistant<|mid|>Yes 7   <|eot|>   \n<|start|>assistant<|mid|>
                                                                        token     after, of which `opening` is
                                                                                  the next header, if there is one

Not every special token behind an answer ends it: some templates write the header of the next message there, always. A
token is the end of a turn only if

* it stands behind the answer where nothing follows, and, if the template writes it there at all, where more follows;
* it opens no message: it is neither among the tokens that the text begins with, nor in the generation prompt;
* something says that it belongs to the answer: it is declared (``eos_token``), or stands nowhere before the first
  content, or a token that opens messages stands behind it, so that the next header begins there and not before.

Where none is such a token, none is known, and whoever masks has to say so.

What may stand at the end of a turn: white space and the special tokens of tokeniser and template.
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
    """Finds special tokens at the end of a text, and where two texts part."""

    def __init__(self, special: Iterable[str]) -> None:
        self._special = frozenset(token for token in special if token.strip())
        # The longest first, so that one that ends in another is found whole.
        self._lengths = sorted({len(token) for token in self._special}, reverse=True)
        self._last_characters = frozenset(token[-1] for token in self._special)

    def trailing(self, text: str, floor: int, end: int) -> list[Closer]:
        """The white space and special tokens that ``text[floor:end]`` ends in, from left to right."""
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
        """The special token that begins at ``place``, the longest of several."""
        length = next((n for n in self._lengths if text[place : place + n] in self._special), 0)
        return Closer(place, place + length, True) if length else None

    def inside(self, text: str) -> list[Closer]:
        """The special tokens that stand anywhere in a text."""
        found = []
        at = 0
        while at < len(text):
            closer = self.at(text, at)
            found += [closer] if closer else []
            at = closer.end if closer else at + 1
        return found

    def leading(self, text: str) -> list[str]:
        """The special tokens that a text begins with, white space left out."""
        found = []
        while closer := self.at(text := text.lstrip(), 0):
            found.append(text[: closer.end])
            text = text[closer.end :]
        return found

    def agreement(self, text: str, whole: str, floor: int, *, with_end: bool, usual_end: str | None) -> int | None:
        """How far the whole begins with ``text``, which may end in tokens that only the end of a conversation has.

        ``text`` is what the template makes of the first messages. It ends where the whole goes on, except that some
        templates close a conversation with a token of its own (``<|end|>\n<|endoftext|>``), which the whole has at its
        end only. So all but the special tokens at its end must be equal, and of these as many as are, one by one.
        None where it is not. Tokens before ``floor`` are no such end.

        ``with_end``: the token that ends the last turn must be equal as well: the last ``usual_end`` among them, or the
        last one of all where there is none.
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
    """Of one template with one set of arguments."""

    token: str | None = None
    """That ends an answer; None: none is proved."""
    after: str = ""
    """What the template writes behind it (behind the answer, if there is no token) where nothing follows."""
    opening: str | None = None
    """The end of ``after`` that opens the next message; empty: nothing does; None: the probe shows nothing."""
    openers: frozenset[str] = frozenset()
    """Special tokens that open a message."""
    asked: str = ""
    """What a model sees before it answers; no token of it ends a turn unless it is proved otherwise."""


def find_ending(renders: Renders, closers: Closers, declared: Collection[str]) -> Ending:
    """The ending, from renderings of `PROBE`. ``declared``: tokens that somebody says end a turn."""
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
    """Where the words of the probe stand; the template may write them in other letters."""
    place = text.rfind(words)
    return place if place >= 0 or not text.isascii() else text.lower().rfind(words.lower())


def _joiner(text: str) -> str:
    """What stands between an answer and the question that follows it."""
    begin, end = _place(text, ANSWER), _place(text, NEXT_QUESTION)
    return text[begin + len(ANSWER) : end] if 0 <= begin < end else ""
