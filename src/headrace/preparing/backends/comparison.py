"""Compares a fast library with the reference tokeniser on the same texts, and finds the first difference."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.preparing.backends.backend import Backend, EncodedTexts, RefusedTextError


@contextmanager
def silence() -> Iterator[None]:
    """Discard what is written to the standard error stream of the process, within the context.

    A panic in Rust prints a message there before it becomes an exception with the same message. Cost: some
    microseconds. The output of other threads is discarded as well.
    """
    try:
        kept = os.dup(2)
    except OSError:  # the process has no such stream
        yield
        return
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, 2)
        finally:
            os.close(nowhere)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


BATCH_CHARACTERS = 1 << 20
SHOWN_TOKENS = 6
SHOWN_CHARACTERS = 60


class Difference(msgspec.Struct, frozen=True):
    """The first text for which two backends return different ids."""

    index: int
    """Index of the text in the list."""

    message: str
    """The text and the ids around the first difference, in words."""


OnCompared = Callable[[int, int], None]
"""Called before each batch of texts, with the number of characters that were compared and the number of all."""


def compare(
    fast: Backend, reference: Backend, texts: list[str], *, on_compared: OnCompared = lambda done, total: None
) -> Difference | None:
    """The first text that the two encode differently, or that only one of them refuses; None if they agree.

    Memory: the ids of one MiB of text, or of a single longer text.
    """
    begin = done = 0
    total = sum(map(len, texts))
    while begin < len(texts):
        on_compared(done, total)
        end, size = begin, 0
        while end < len(texts) and (end == begin or size + len(texts[end]) <= BATCH_CHARACTERS):
            size += len(texts[end])
            end += 1
        found = _compare_batch(fast, reference, texts[begin:end])
        if found is not None:
            return msgspec.structs.replace(found, index=found.index + begin)
        begin, done = end, done + size
    return None


def _compare_batch(fast: Backend, reference: Backend, texts: list[str]) -> Difference | None:
    try:
        expected = reference.encode(texts)
        return difference(encode_safely(fast, texts), expected, texts)
    except (RefusedTextError, BackendFailedError):
        pass  # one of them refuses some of the texts: encoding them one by one shows which, and whether both do
    for index, text in enumerate(texts):
        found = compare_one(fast, reference, text)
        if found is not None:
            return msgspec.structs.replace(found, index=index)
    if len(texts) > 1:
        # It fails on these texts together, or not every time, so it is not reliable.
        try:
            encode_safely(fast, [text for text in texts if not is_refused(reference, text)])
        except (RefusedTextError, BackendFailedError) as error:
            return Difference(0, f"{fast.name} fails on {len(texts)} texts together, and on none alone: {error}")
    return None


def compare_one(fast: Backend, reference: Backend, text: str) -> Difference | None:
    """Compare the two on one text; the index of a difference is 0."""
    refusal = failure = ""
    expected = actual = EncodedTexts(np.empty(0, np.uint32), np.zeros(1, np.int64))
    try:
        expected = reference.encode([text])
    except RefusedTextError as error:
        refusal = str(error) or "refused"
    try:
        actual = encode_safely(fast, [text])
    except (RefusedTextError, BackendFailedError) as error:
        failure = str(error) or "failed"
    if refusal and failure:
        return None
    if failure:
        return Difference(0, f"{fast.name} fails on {excerpt(text)}, which {reference.name} takes: {failure}")
    if refusal:
        return Difference(0, f"{reference.name} refuses {excerpt(text)}, which {fast.name} takes: {refusal}")
    return difference(actual, expected, [text])


def is_refused(reference: Backend, text: str) -> bool:
    """Whether the reference tokeniser refuses a text."""
    try:
        reference.encode([text])
    except RefusedTextError:
        return True
    return False


class BackendFailedError(Exception):
    """A fast library raised, panicked, or returned an impossible result."""


def encode_safely(fast: Backend, texts: list[str]) -> EncodedTexts:
    """Encode with a library that may fail in any way.

    Raises:
        RefusedTextError: it refuses a text.
        BackendFailedError: it failed in any other way.
    """
    try:
        with silence():
            encoded = fast.encode(texts)
    except (RefusedTextError, KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:  # a panic in Rust is not an Exception
        raise BackendFailedError(f"{type(error).__name__}: {error}") from error
    if len(encoded.lengths) != len(texts) or int(encoded.lengths.sum()) != len(encoded.ids):
        raise BackendFailedError(
            f"it returned {len(encoded.lengths)} lengths of {int(encoded.lengths.sum())} tokens together, "
            f"and {len(encoded.ids)} ids, for {len(texts)} texts"
        )
    return encoded


def difference(actual: EncodedTexts, expected: EncodedTexts, texts: list[str]) -> Difference | None:
    """The first difference between two encodings of the same texts; None if they are equal."""
    if np.array_equal(actual.lengths, expected.lengths) and np.array_equal(actual.ids, expected.ids):
        return None
    ends = np.cumsum(actual.lengths), np.cumsum(expected.lengths)
    for index, text in enumerate(texts):
        ours, theirs = (
            encoded.ids[int(end[index] - encoded.lengths[index]) : int(end[index])]
            for encoded, end in zip((actual, expected), ends, strict=True)
        )
        if not np.array_equal(ours, theirs):
            return Difference(index, _describe(ours, theirs, text))
    raise AssertionError("encodings that differ have a text that differs")


def _describe(ours: NDArray[np.uint32], theirs: NDArray[np.uint32], text: str) -> str:
    shorter = min(len(ours), len(theirs))
    unequal = np.flatnonzero(ours[:shorter] != theirs[:shorter])
    at = int(unequal[0]) if len(unequal) else shorter
    # The share of tokens before the difference tells roughly where in the text it is.
    near = len(text) * at // max(len(theirs), 1)
    begin = max(0, near - SHOWN_CHARACTERS // 2)
    shown = slice(max(0, at - 1), at + SHOWN_TOKENS)
    return (
        f"token {at:,} of a text of {len(text):,} characters, near {text[begin : begin + SHOWN_CHARACTERS]!r}: "
        f"ids {ours[shown].tolist()} in place of {theirs[shown].tolist()}"
    )


def excerpt(text: str) -> str:
    """The beginning of a text, for messages."""
    return repr(text[:SHOWN_CHARACTERS]) + ("..." if len(text) > SHOWN_CHARACTERS else "")
