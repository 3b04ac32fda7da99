"""Compares a fast library with the reference tokeniser on the same texts, and finds the first difference.

`ProvedEncoder` encodes in a worker: all texts with the chosen library, and a sample of them with the reference
tokeniser as well.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.preparing.backends.libraries import REFERENCE, load_backend
from headrace.preparing.backends.reference import (
    Backend,
    EncodedTexts,
    RefusedTextError,
    SpecialPolicy,
    TokenizersBackend,
)
from headrace.preparing.backends.special import RoutedBackend
from headrace.samples.tokenizer import TokenizerFile


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


class MismatchError(Exception):
    """The fast library differs from the reference tokeniser; ``index`` is the index of the text in the list."""

    def __init__(self, index: int, message: str) -> None:
        super().__init__(message)
        self.index = index


class ProvedEncoder:
    """One library with one tokeniser, compared with the reference tokeniser.

    The reference tokeniser is loaded when it is first needed: it starts more slowly than the fast libraries, and needs
    60 to 300 MB.
    """

    def __init__(self, name: str, file: TokenizerFile, special: SpecialPolicy) -> None:
        """Load a library of `BACKENDS`.

        Raises:
            UnsuitableError: it lacks a feature that the tokeniser needs.
            ImportError: it is not installed.
        """
        self.num_sampled = 0
        """Texts so far that were compared with the reference tokeniser."""
        self.file = file
        """The tokeniser."""
        self._special: SpecialPolicy = special
        self.backend: Backend = load_backend(name, file, special, lambda: self.reference)

    @property
    def name(self) -> str:
        """The name of the library."""
        return self.backend.name

    @property
    def num_routed(self) -> int:
        """Texts that only the reference tokeniser encoded, since they hold an added token."""
        return self.backend.num_routed if isinstance(self.backend, RoutedBackend) else 0

    @functools.cached_property
    def reference(self) -> Backend:
        """The library `tokenizers` with the same tokeniser, loaded on first use."""
        return TokenizersBackend(self.file, self._special)

    def encode(self, texts: list[str], sampled: NDArray[np.bool_]) -> EncodedTexts:
        """Encode each text by itself; those that are ``sampled`` ((number of texts,) bool) are compared as well.

        Raises:
            RefusedTextError: the reference tokeniser refuses a text.
            MismatchError: the library returns other ids than the reference tokeniser, or fails on a text that the
                reference tokeniser encodes.
        """
        if self.backend.name == REFERENCE:
            return self.backend.encode(texts)
        try:
            encoded = encode_safely(self.backend, texts)
        except (RefusedTextError, BackendFailedError) as error:
            self._explain(texts, error)
            raise MismatchError(
                0, f"{self.name} fails on {len(texts)} texts together, and on none alone: {error}"
            ) from error
        chosen = np.flatnonzero(sampled).tolist()
        if chosen:
            self._check(texts, encoded, chosen)
        self.num_sampled += len(chosen)
        return encoded

    def _check(self, texts: list[str], encoded: EncodedTexts, chosen: list[int]) -> None:
        """Compare what was encoded of some of the texts with what the reference tokeniser makes of them."""
        some, lengths, ends = [texts[index] for index in chosen], encoded.lengths, np.cumsum(encoded.lengths)
        ids = np.concatenate([encoded.ids[ends[index] - lengths[index] : ends[index]] for index in chosen])
        actual = EncodedTexts(ids, lengths[chosen])
        try:
            found = difference(actual, self.reference.encode(some), some)
        except RefusedTextError as error:
            text = some[error.index]
            raise MismatchError(
                chosen[error.index], f"{REFERENCE} refuses {excerpt(text)}, which {self.name} takes: {error}"
            ) from error
        if found is not None:
            raise MismatchError(chosen[found.index], f"{self.name} differs from {REFERENCE}: {found.message}")

    def _explain(self, texts: list[str], error: Exception) -> None:
        """Raise an error for the first text that fails by itself, if there is one."""
        for index, text in enumerate(texts):
            try:
                encode_safely(self.backend, [text])
            except (RefusedTextError, BackendFailedError) as failure:
                found = compare_one(self.backend, self.reference, text)
                if found is not None:
                    raise MismatchError(index, found.message) from failure
                raise RefusedTextError(str(failure), index) from error
