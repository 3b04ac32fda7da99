"""Damages files in many ways: one set of mutations to test every reader with.

for what, data in mutants(content, 100, seed=1): ...      flips, splices, truncations, nesting, absurd numbers
faults = endured(path, use, count=100)                    errors of a reader other than `HeadraceError`
"""

from __future__ import annotations

import contextlib
import random
import re
import resource
import signal
import struct
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

from headrace.errors import HeadraceError
from headrace.testing.damage import restored

MEMORY_BYTES: Final = 1 << 30
"""Memory that a reader may use for a damaged file of some kilobytes, in addition to what the process uses."""

SECONDS: Final = 120.0
"""A reader that takes longer counts as hanging."""

_NUMBERS: Final = re.compile(rb"-?\d+(?:\.\d+)?")
_WORDS: Final = re.compile(rb'"[^"\n]*"')
_ABSURD: Final = (
    b"-1", b"0", b"1e999", b"-1e999", b"NaN", b"0.5", b"null", b"true", b'"x"', b"[]", b"{}", b"2147483648",
    b"4294967296", b"9223372036854775807", b"-9223372036854775808", b"18446744073709551615", b"9" * 25, b"9" * 400,
)  # fmt: skip
_INTEGERS: Final = (0, 1, -1, 1 << 31, (1 << 31) - 1, -(1 << 31), 1 << 40, 1 << 62, (1 << 63) - 1, -(1 << 63))
_DEPTHS: Final = (150, 100_000)
_OPENERS: Final = (b"[", b'{"a":', b"(", b"{a: ", b"- ")


def mutants(content: bytes, count: int, *, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """Yield damaged versions of a file, each with a description. The same seed always gives the same versions."""
    rng = random.Random(seed)
    for number in range(count):
        what, damage = _KINDS[number % len(_KINDS)]
        data = damage(rng, content)
        yield f"{what}, number {number} of seed {seed}", data


def endured(
    path: Path, use: Callable[[], Any], *, count: int, seed: int = 0, vouched: bool = False
) -> dict[str, list[str]]:
    """Use damaged versions of a file, and collect the faults of the code that uses them.

    Args:
        path: the file, which is restored at the end.
        use: reads the file and everything that it refers to. It may raise `HeadraceError`, but no other error, and it
            must not warn.
        count: number of damaged versions.
        seed: seed of the damage.
        vouched: whether a hash covers the file. Then ``use`` must raise, or return what it returns for the whole file.

    Returns:
        For each kind and place of a fault the damaged versions that caused it.
    """
    faults: dict[str, list[str]] = {}
    with restored(path) as content:
        wanted = use()
        for what, data in mutants(content, count, seed=seed):
            path.write_bytes(data)
            fault = None
            try:
                with bounded():
                    found = use()
                if vouched and found != wanted:
                    fault = "other data without an error"
            except HeadraceError:
                pass
            except Exception as error:
                fault = _described(error)
            if fault is not None:
                faults.setdefault(fault, []).append(what)
    return faults


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """While the context lasts, refuse more than `MEMORY_BYTES` of memory, and raise `TimeoutError` after `SECONDS`."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not done after {SECONDS:.0f} s")

    pages = int(Path("/proc/self/statm").read_bytes().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGALRM, stop)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY_BYTES, before[1]))
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)


def _described(error: Exception) -> str:
    """Return the kind of an error, and the last place in Headrace that it passed."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/headrace/" in frame.filename]
    frames = [frame for frame in frames if not frame.filename.endswith("testing/damage.py")]
    place = f"{frames[-1].filename.rpartition('/headrace/')[2]}:{frames[-1].lineno}" if frames else "outside"
    return f"{type(error).__name__} at {place}: {str(error)[:100]}"


def _at(rng: random.Random, content: bytes) -> int:
    """Return a position, half of the time among the first 256 bytes, where headers are."""
    return rng.randrange(min(len(content), rng.choice((256, len(content)))) or 1)


def _span(rng: random.Random, content: bytes) -> tuple[int, int]:
    begin = _at(rng, content)
    return begin, min(len(content), begin + rng.choice((1, 2, 4, 8, 40, 300, len(content))))


def _flip(rng: random.Random, content: bytes) -> bytes:
    at = _at(rng, content)
    return content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :] if content else b"\1"


def _byte(rng: random.Random, content: bytes) -> bytes:
    at = _at(rng, content)
    return content[:at] + bytes([rng.choice((0, 0x7F, 0x80, 0xFF, rng.randrange(256)))]) + content[at + 1 :]


def _truncate(rng: random.Random, content: bytes) -> bytes:
    at = _at(rng, content)
    return content[:at] if rng.random() < 0.7 else content[at:]


def _remove(rng: random.Random, content: bytes) -> bytes:
    begin, end = _span(rng, content)
    return content[:begin] + content[end:]


def _splice(rng: random.Random, content: bytes) -> bytes:
    """Copy a span of the file over another place, or insert it there."""
    begin, end = _span(rng, content)
    at = _at(rng, content)
    return content[:at] + content[begin:end] + content[at + rng.choice((0, end - begin)) :]


def _noise(rng: random.Random, content: bytes) -> bytes:
    begin, end = _span(rng, content)
    return content[:begin] + rng.randbytes(min(end - begin, 300)) + content[end:]


def _nest(rng: random.Random, content: bytes) -> bytes:
    """Insert a hundred or a hundred thousand opening brackets: instead of everything, or where a value begins."""
    nested = rng.choice(_OPENERS) * rng.choice(_DEPTHS)
    values = [found.span() for found in _NUMBERS.finditer(content[:20_000])]
    if not values or rng.random() < 0.3:
        return nested + content if rng.random() < 0.5 else nested
    begin, end = rng.choice(values)
    return content[:begin] + nested + content[end:]


def _absurd(rng: random.Random, content: bytes) -> bytes:
    """Replace a number or a word by an absurd value."""
    values = [found.span() for found in (_NUMBERS, _WORDS)[rng.random() < 0.3].finditer(content[:50_000])]
    if not values:
        return _integer(rng, content)
    begin, end = rng.choice(values)
    return content[:begin] + rng.choice(_ABSURD) + content[end:]


def _integer(rng: random.Random, content: bytes) -> bytes:
    """Overwrite 4 or 8 bytes with an extreme integer."""
    at = _at(rng, content) & ~(rng.choice((1, 2, 4)) - 1)
    code, bits = rng.choice((("<I", 32), ("<Q", 64), (">I", 32)))
    packed = struct.pack(code, rng.choice(_INTEGERS) & ((1 << bits) - 1))
    return content[:at] + packed + content[at + len(packed) :]


def _name(rng: random.Random, content: bytes) -> bytes:
    """Replace a word by one of 5,000 letters, one that is not UTF-8, or one that cannot name a file."""
    words = [found.span() for found in _WORDS.finditer(content[:50_000])]
    word = rng.choice((b"x" * 5000, b"\xff\xfe", b"a/" * 2000, b"\\u0000", b"../x", b"\\ud800", b""))
    if not words:
        at = _at(rng, content)
        return content[:at] + word + content[at:]
    begin, end = rng.choice(words)
    return content[:begin] + b'"' + word + b'"' + content[end:]


_KINDS: Final[tuple[tuple[str, Callable[[random.Random, bytes], bytes]], ...]] = (
    ("a flipped bit", _flip),
    ("another byte", _byte),
    ("cut short", _truncate),
    ("a span removed", _remove),
    ("a span from elsewhere", _splice),
    ("noise", _noise),
    ("nested deep", _nest),
    ("an absurd value", _absurd),
    ("an extreme integer", _integer),
    ("an absurd name", _name),
)
