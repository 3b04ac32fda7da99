"""What may stand at the end of a turn: white space and the special tokens of tokeniser and template."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


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
