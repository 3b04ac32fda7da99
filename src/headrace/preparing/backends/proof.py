"""Chooses the library that encodes a run: each candidate is checked against the tokeniser, and probed on fixed texts.

A fast library must encode the texts of the probe as the reference tokeniser does before it is used at all. The outcome
is kept in the cache folder, since the texts are fixed and the same libraries need not be probed again.

Each library and tokeniser has a small file there. Its name is a hash of everything that decides the outcome: the
tokeniser, the policy for special tokens, the versions of both libraries and of Python, and the code of this package. A
file that is damaged, or that is of another probe, is ignored and written again. If there is no place to keep files,
every run repeats the probe.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import platform
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from headrace.engine.forking import apart
from headrace.engine.serving import load, save
from headrace.errors import ConfigError, MissingExtraError, OutputError
from headrace.io import cache_folder, hash_bytes
from headrace.preparing.backends.comparison import OnCompared, ProvedEncoder, compare, silence
from headrace.preparing.backends.libraries import BACKENDS, CANDIDATES, MAX_ADDED, REFERENCE, routes
from headrace.preparing.backends.reference import SpecialPolicy, installed_version
from headrace.preparing.backends.tokenizer import UnsuitableError, byte_characters
from headrace.samples import tokenizer
from headrace.samples.tokenizer import TokenizerFile, TokenizerParts

T = TypeVar("T")


def probe_key(file: TokenizerFile, special: SpecialPolicy, name: str, kind: type | object) -> str:
    """A hash of everything that decides the outcome of a library's probe; ``kind`` is the class that runs it."""
    parts = (
        hash_bytes(file.content),
        special,
        f"{name} {installed_version(name)}",
        f"tokenizers {installed_version('tokenizers')}",
        f"python {platform.python_version()}",
        f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', kind)}",
        _hash_of_code(Path(__file__).parent),
    )
    return hash_bytes("\n".join(parts).encode())


@functools.cache
def _hash_of_code(folder: Path) -> str:
    files = [*sorted(folder.glob("*.py")), Path(tokenizer.__file__)]
    return hash_bytes(b"".join(file.read_bytes() for file in files))


def find_outcome(key: str) -> str | None:
    """The outcome of the probe with this key: the difference, "" if there is none, or None if it is not known."""
    folder = cache_folder("probes")
    if folder is None:
        return None
    with contextlib.suppress(OutputError):
        of, difference = load(folder / key, tuple[str, str]) or ("", "")
        return difference if of == key else None
    return None


def keep_outcome(key: str, difference: str) -> None:
    """Keep the outcome of a probe, if there is a cache folder that can be written."""
    folder = cache_folder("probes")
    if folder is None:
        return
    with contextlib.suppress(OSError, OutputError):
        folder.mkdir(parents=True, exist_ok=True)
        save(folder / key, (key, difference), sync=True)


LARGE_BLOCKS = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3), (0x17000, 0x18CFF), (0x20000, 0x323AF))
"""Ideographs, Hangul and Tangut, of which every 61st character is probed."""

SPACES = (" ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", " \n", "\n ", "\t ", "\u00a0", "\u2003", "\u3000", "\u2028",
          "\x0b", "\x0c", "\x1c", "\x85", " \n \n ", "\r", "\u200b", "\ufeff")  # fmt: skip
WORDS = ("word", "Word", "WORD", "wordWord", "1", "12", "123", "1234", "12345678", "\u0661\u0662", "\u00b2", "\u2163",
         "'s", "'S", "'ll", "'LL", "'re", "\u2019t", "'", "''d", ".", "...", "?!", "==", "->", "//", "/\n", "_", "__x",
         "a_b", "\u00e9", "e\u0301", "\u4e2d\u6587", "\u65e5\u672c\u8a9e", "\ud55c\uae00",
         "\u0440\u0443\u0441", "\u0627\u0644", "\u05e9\u05dc",
         "\u0939\u093f\u0928\u094d\u0926\u0940", "\u0e44\u0e17\u0e22", "\U0001f600",
         "\U0001f468\u200d\U0001f469\u200d\U0001f467",
         "\U0001f1e9\U0001f1ea", "\u2764\ufe0f", "\ufffd", "\ufffd\ufffd", "\u01c5", "\ufb01", "\u0130", "\u00df",
         "\u1e9e", "\u212a", "\u00b5", "\u0345", "\U0001d400", "$9.99", "50%", "#x", "@y", "\x00", "\x07", "\x7f",
         "\u0640", "\u30fc", "\u3005", "\u02bc", "\ua78c")  # fmt: skip
CODE = '''def f(x, *args):\n    """Doc."""\n    return {"a": x[0], 'b': lambda y: y**2}  # note\n\n\nclass A:\n\tpass\n
for (int i = 0; i < n; ++i) { s += a[i]->b.c("%d\\n", 0xFFul); }\n<div class="x">&amp;</div>\nSELECT * FROM t WHERE a<>'b';
https://example.org/a/b?c=d&e=%20f#g  me@example.org  2024-01-31T12:00:00Z  1,234.56  $x^{2}_{i}$  \\begin{align}\n
|a|b|\n|--|--|\n\n- [ ] item\n  * item\n\t1. item\n```\ncode\n```\n-----\n=====\n~~~~\n////\n\\\\\\\\\n'''  # noqa: E501


def probe_texts(layout: TokenizerParts, *, is_byte_level: bool) -> list[str]:
    """Texts of every script, with all kinds of spaces, numbers, words and marks; added tokens; the whole vocabulary.

    The texts depend only on the tokeniser and the version of Python. They have about 330,000 characters, and those of
    the vocabulary.
    """
    return [*_fixed(), *_added(layout), *_vocabulary(layout, is_byte_level=is_byte_level)]


@functools.cache
def _fixed() -> tuple[str, ...]:
    return ("", *_scripts(), *_unassigned(), *_sequences(), CODE, CODE.replace("\n", "\r\n"), *_long())


def _scripts() -> list[str]:
    """Every assigned character, in a run of its neighbours; and some between characters of other kinds.

    Regexes know characters by ranges of a category. So of neighbours of the same category the first, the last and every
    eighth stand between others.
    """
    characters = [one for one in map(chr, _codes()) if unicodedata.category(one) not in ("Cn", "Co", "Cs")]
    kinds = itertools.groupby(characters, unicodedata.category)
    tried = [one for _, some in kinds for one in _some(list(some), most=2)]
    texts = ["".join(characters[at : at + 64]) for at in range(0, len(characters), 64)]
    for at in range(0, len(tried), 64):
        run = tried[at : at + 64]
        # A following "'s" shows letters best: after a letter it is a separate word, after a mark the quote joins the
        # mark.
        texts.append("".join(f"{one}'s {one}a{one}" for one in run))
        texts.append("".join(f"{one} 1{one}\n" for one in run[::4]))
    return texts


def _some(neighbours: Sequence[T], most: int) -> Iterable[T]:
    """All neighbours if there are at most ``most``, else the first, the last and every eighth."""
    return neighbours if len(neighbours) <= most else (*neighbours[:-1:8], neighbours[-1])


def _codes() -> Iterator[int]:
    begin = 0
    for low, high in LARGE_BLOCKS:
        yield from range(begin, low)
        yield from range(low, high + 1, 61)
        begin = high + 1
    yield from (*range(begin, 0x32400), 0xE0001, 0xE01EF)


def _unassigned() -> list[str]:
    """Characters that this version of Python does not know, in some surroundings.

    Libraries contain different versions of Unicode. A new letter is a letter to one of them and unassigned to another,
    and then they split the text around it differently. Scripts are new as a whole, so of more than 512 neighbours every
    eighth shows them.
    """
    shapes = ("a{0}b", " {0}{0}", "1{0}", ".{0}a", "{0} {0}", "{0}s", "-{0}", "\n{0}a{0}")
    codes = [code for code in range(0x33480) if unicodedata.category(chr(code)) == "Cn"]
    gaps = itertools.groupby(enumerate(codes), lambda pair: pair[1] - pair[0])
    tried = [chr(code) for _, gap in gaps for _, code in _some(list(gap), most=512)]
    shown = [f"{one}'s {shape.format(one)}" for one, shape in zip(tried, itertools.cycle(shapes), strict=False)]
    return ["".join(shown[at : at + 64]) for at in range(0, len(shown), 64)]


def _sequences() -> list[str]:
    """All pairs of the words and spaces."""
    return [
        *("".join(f"{space}{word}" for word in WORDS) for space in SPACES),
        *("".join(first + second for second in WORDS) for first in WORDS),
        *(
            f"{first}{second}{last}"
            for first in ("", "a", ".", "1")
            for second in SPACES
            for last in ("", "b", "!", "2")
        ),
        *("x" + first + second + "y" for first in SPACES for second in SPACES),
        *("a" + " " * count + "b" + "\n" * count + "c" + "\t" * count for count in range(1, 90)),
        *("=" * count + "-" * count + "!" * count + "9" * count + "e" * count for count in range(1, 90)),
    ]


def _long() -> list[str]:
    """Texts and words above the sizes at which libraries change their algorithm, and texts with the same beginning."""
    prose = "".join(
        f"Line {number}: it's {number * 7919 % 10007} of them, \u00e9t\u00e9 \u4e2d.\n" for number in range(600)
    )
    word = "".join(chr(97 + number * number % 26) for number in range(3_000))
    return [
        prose,
        prose[:-300] + " and another end",
        prose[:900] + word + " " + prose[:900],
        prose[:500] + " " * 2_500 + prose[:500] + "\n" * 2_500 + prose[:900],
        prose[:700] + "-" * 2_500 + prose[:700] + "7" * 2_500 + prose[:700],
        "\u4e2d\u6587" * 4_000 + prose[:300],
        word * 2,
    ]


def _added(layout: TokenizerParts) -> list[str]:
    """Added tokens alone, between words, between spaces, repeated, and next to one another."""
    contents = [token.content for token in layout.added[:MAX_ADDED]]
    alone = [f"{one}a{one} b {one} {one}{one}\n{one}\n\n.{one}!{one[:-1]}" for one in contents]
    beside = [f"{one}{other}x {other} {one}" for one, other in itertools.pairwise(contents)]
    return [*("".join(alone[at : at + 20]) for at in range(0, len(alone), 20)), *beside, *contents[:200]]


def _vocabulary(layout: TokenizerParts, *, is_byte_level: bool) -> list[str]:
    """Every token of the model that is text, on a line of its own. A changed merge or id shows in one of them."""
    if not is_byte_level:
        words = [token.replace("\u2581", " ") for token in layout.vocabulary()]
    else:
        words = [content.decode("utf-8", "ignore") for content in _contents(layout.vocabulary())]
    return ["\n".join(words[at : at + 500]) for at in range(0, len(words), 500)]


def _contents(vocabulary: Iterable[str]) -> Iterator[bytes]:
    """The bytes of each token of a byte-level vocabulary, except those with a line end and those that are no bytes."""
    to_byte = dict.fromkeys(range(0x100), "\ufffd") | {ord(one): chr(byte) for one, byte in byte_characters().items()}
    for token in vocabulary:
        try:
            content = token.translate(to_byte).encode("latin-1")
        except UnicodeEncodeError:
            continue
        if b"\n" not in content:
            yield content


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """The library that encodes a run, and why other libraries do not."""

    name: str
    version: str
    reasons: dict[str, str]
    """For each candidate that was tried before this one, or asked for, why it is not used."""

    routes: str = ""
    """Why texts with an added token go to the reference tokeniser nevertheless; "" if they do not."""


def choose_backend(
    file: TokenizerFile,
    *,
    wanted: str,
    special: SpecialPolicy,
    on_compared: OnCompared = lambda done, total: None,
) -> tuple[Choice, ProvedEncoder]:
    """Find the library that encodes a run, and load it.

    A probe takes about half a second for each candidate, most of it in the reference tokeniser; see `keep_outcome`.

    Args:
        file: the tokeniser.
        wanted: ``auto``, or the name of a library. It is used if it passes its probe, else the reference tokeniser is.
        special: what becomes of special tokens in a text.
        on_compared: called during a probe.

    Raises:
        ValueError: ``wanted`` is not the name of a library.
        MissingExtraError: the wanted library is not installed.
    """
    if wanted not in BACKENDS:
        raise ValueError(f"unknown tokeniser library {wanted!r}; known are {', '.join(BACKENDS)}")
    reasons: dict[str, str] = {}
    names = [] if wanted == REFERENCE else list(CANDIDATES) if wanted == "auto" else [wanted]
    for name in names:
        if importlib.util.find_spec(name) is None:
            if wanted == name:
                raise MissingExtraError(f"{name} is not installed: pip install 'headrace[fast]'")
            reasons[name] = "not installed"
            continue
        found = _try(name, file, special, on_compared)
        if isinstance(found, ProvedEncoder):
            why = routes(file.parts, special)
            return Choice(name=name, version=installed_version(name), reasons=reasons, routes=why), found
        reasons[name] = found
    choice = Choice(name=REFERENCE, version=installed_version(REFERENCE), reasons=reasons)
    return choice, ProvedEncoder(REFERENCE, file, special)


def _try(name: str, file: TokenizerFile, special: SpecialPolicy, on_compared: OnCompared) -> ProvedEncoder | str:
    """Load this library, or tell why it cannot be used. The texts of the probe are encoded in a fork."""
    try:
        with silence():
            key = probe_key(file, special, name, CANDIDATES[name])
            difference = find_outcome(key)
            if difference:
                return f"differs on the probe: {difference}"
            encoder = ProvedEncoder(name, file, special)
            if difference is None:
                encoder.reference  # noqa: B018 - loaded here, so that the fork need not load it for itself alone
                difference = apart(lambda report: _probed(encoder, report), lambda progress: on_compared(*progress))
                keep_outcome(key, difference)
    except (UnsuitableError, ConfigError) as error:
        return f"unsuitable: {error}"
    except ImportError as error:
        return f"cannot be imported: {error}"
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:  # a panic in Rust is not an Exception
        return f"fails: {type(error).__name__}: {error}"
    return f"differs on the probe: {difference}" if difference else encoder


def _probed(encoder: ProvedEncoder, report: Callable[[tuple[int, int]], None]) -> str:
    """The first difference between the library and the reference tokeniser on the texts of the probe; "" if none."""
    parts = encoder.file.parts
    texts = probe_texts(parts, is_byte_level=not parts.model.get("byte_fallback"))
    found = compare(encoder.backend, encoder.reference, texts, on_compared=lambda done, total: report((done, total)))
    return "" if found is None else found.message
