"""What is shown, as a list of blocks: `terminal` makes lines of them, and ``headrace.ui`` makes pages.

    structs of inspect -- shown() --> Title, Pairs, Tabular, Titled, ... --> lines of a terminal, or a page

Blocks hold text as it is. Those who draw them make it harmless.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from headrace.inspect.figures import as_json, count, plural


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive tokens that are alike: all trained or none, of one role, and of one segment."""

    begin: int
    """The number of the first token in its sequence."""

    position: int
    """The position id of the first token; the ids of the others follow it."""

    ids: tuple[int, ...]

    texts: tuple[str, ...]
    """The text of each token. If several tokens make one character, the first has the character, and the others are
    empty; if the tokens of a character are not alike, each has its bytes, as in ``\\xf0``."""

    is_trained: bool | None = None
    """None if there is no loss mask."""

    is_special: bool = False
    role: str = ""
    """The role of the turn, as special tokens name it; empty if they do not."""

    is_kept: bool = True
    """Whether the tokens are stored; those that a limit cuts off are not."""

    @property
    def text(self) -> str:
        """The text of all tokens."""
        return "".join(self.texts)

    @property
    def end(self) -> int:
        """The number, in the sequence, of the token after the last one."""
        return self.begin + len(self.ids)


class ShownSequence(msgspec.Struct, frozen=True, kw_only=True):
    """One sequence of tokens: a key of a document, a response, a piece of a pack."""

    name: str
    document: int
    begin: int = 0
    """For a piece of a pack, the number of its first token in the document."""

    num_tokens: int
    num_trained: int | None = None
    """None if there is no loss mask."""

    stretches: tuple[Stretch, ...]
    """The tokens; only the first ones of a long sequence."""

    reward: float | None = None

    source: str = ""
    """The input file and the line that the document comes from, if the store keeps them."""

    @property
    def num_shown(self) -> int:
        """The number of tokens in ``stretches``."""
        return sum(len(stretch.ids) for stretch in self.stretches)

    @property
    def words(self) -> str:
        """The number of tokens, how many of them are trained, and the reward."""
        trained = "" if self.num_trained is None else trained_share(self.num_trained, self.num_tokens)
        reward = "" if self.reward is None else f", reward {self.reward:g}"
        return f"{plural(self.num_tokens, 'token')}{trained}{reward}"

    @property
    def turns(self) -> list[list[Stretch]]:
        """The stretches of each turn. A turn begins with a new role, or where positions begin anew."""
        found: list[list[Stretch]] = []
        for stretch in self.stretches:
            last = found[-1][-1] if found else None
            if last is None or stretch.role != last.role or stretch.position != last.position + len(last.ids):
                found.append([])
            found[-1].append(stretch)
        return found


def trained_share(trained: int, num_tokens: int) -> str:
    """Return words for the trained share of a number of tokens."""
    return f", {count(trained)} trained ({trained / max(num_tokens, 1):.1%})"


class Title(msgspec.Struct, frozen=True):
    """What is shown, usually a path, and a few words about it."""

    text: str
    words: str = ""


class Pairs(msgspec.Struct, frozen=True):
    """Pairs of name and value."""

    pairs: Sequence[tuple[str, str]]

    @classmethod
    def of(cls, values: dict[str, Any]) -> Pairs:
        """Return values as facts, those that are no text as JSON."""
        return cls([(name, value if isinstance(value, str) else as_json(value)) for name, value in values.items()])


class Tabular(msgspec.Struct, frozen=True):
    """Rows of cells below their headings.

    Attributes:
        heads: the headings.
        rows: the cells of each row.
        left: the columns of text; others hold numbers.
        bars: a number for each row, if the rows are a histogram; pages draw it.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: Sequence[int] = ()
    bars: Sequence[float] = ()

    @classmethod
    def used(cls, heads: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[str]) -> Tabular:
        """Return a table without empty columns, if there are rows; ``left`` are the headings of the columns of text."""
        kept = [at for at in range(len(heads)) if not rows or any(row[at] for row in rows)]
        lefts = [at for at, old in enumerate(kept) if heads[old] in left]
        return cls([heads[at] for at in kept], [[row[at] for at in kept] for row in rows], lefts)


class Note(msgspec.Struct, frozen=True):
    """What a reader should know."""

    text: str


class Legend(msgspec.Struct, frozen=True):
    """How trained tokens are marked."""


class Tokens(msgspec.Struct, frozen=True):
    """The text of a sequence, by turns; what is trained is marked."""

    sequence: ShownSequence
    title: str = ""


class Verbatim(msgspec.Struct, frozen=True):
    """A text as it is.

    Attributes:
        text: the text.
        title: a line about it.
        more: the characters that are left out.
        is_made: whether its line breaks are not of the data, as in JSON; then they are not marked.
    """

    text: str
    title: str = ""
    more: int = 0
    is_made: bool = False


class Media(msgspec.Struct, frozen=True):
    """A part of a sample.

    Attributes:
        name: the name of the part.
        kind: ``image``, ``video``, ``audio``, or what else it is.
        title: its name, kind and facts in words.
        number: the number of the sample in its store.
        text: its text; empty for pictures and the like.
        picture: its picture, scaled down, if one was made; of a video the first frame.
        data: its bytes, if they are at hand.
        error: why it cannot be shown.
    """

    name: str
    kind: str
    title: str
    number: int
    text: Verbatim = Verbatim("")
    picture: Any = None
    data: bytes = b""
    error: str = ""


class Titled(msgspec.Struct, frozen=True):
    """Blocks that belong together.

    Attributes:
        title: their heading.
        blocks: the blocks.
        is_card: whether they are about one document or sample.
        is_pair: whether sequences stand side by side where there is room.
        link: the URL of a page about it.
    """

    title: str
    blocks: Sequence[Block]
    is_card: bool = False
    is_pair: bool = False
    link: str = ""


Block = str | Title | Pairs | Tabular | Note | Legend | Tokens | Verbatim | Media | Titled
