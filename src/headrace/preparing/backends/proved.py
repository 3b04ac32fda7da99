"""Encodes in a worker: all texts with the chosen library, and a sample of them with the reference tokeniser as well."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

from headrace.preparing.backends.backend import Backend, EncodedTexts, RefusedTextError, SpecialPolicy
from headrace.preparing.backends.comparison import (
    BackendFailedError,
    compare_one,
    difference,
    encode_safely,
    excerpt,
)
from headrace.preparing.backends.proof import REFERENCE, load_with
from headrace.preparing.backends.reference import TokenizersBackend
from headrace.preparing.backends.special import RoutedBackend


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

    def __init__(self, name: str, tokenizer_json: bytes, special: SpecialPolicy) -> None:
        """Load a library that `choose_backend` named.

        Raises:
            UnsuitableError: it lacks a feature that the tokeniser needs.
            ImportError: it is not installed.
        """
        self.num_texts = 0
        """Texts encoded so far."""
        self.num_sampled = 0
        """Texts among them that were compared with the reference tokeniser."""
        self.json = tokenizer_json
        """The bytes of ``tokenizer.json``."""
        self._special: SpecialPolicy = special
        self.backend: Backend = load_with(name, tokenizer_json, special, lambda: self.reference)

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
        return TokenizersBackend(self.json, self._special)

    def encode(self, texts: list[str], sampled: NDArray[np.bool_]) -> EncodedTexts:
        """Encode each text by itself; those that are ``sampled`` ((number of texts,) bool) are compared as well.

        Raises:
            RefusedTextError: the reference tokeniser refuses a text.
            MismatchError: the library returns other ids than the reference tokeniser, or fails on a text that the
                reference tokeniser encodes.
        """
        if self.backend.name == REFERENCE:
            encoded = self.backend.encode(texts)
            self.num_texts += len(texts)
            return encoded
        try:
            encoded = encode_safely(self.backend, texts)
        except (RefusedTextError, BackendFailedError) as error:
            self._explain(texts, error)
            raise MismatchError(
                0, f"{self.name} fails on {len(texts)} texts together, and on none alone: {error}"
            ) from error
        chosen = np.flatnonzero(sampled)
        if len(chosen):
            self._check(texts, encoded, chosen)
        self.num_texts += len(texts)
        self.num_sampled += len(chosen)
        return encoded

    def _check(self, texts: list[str], encoded: EncodedTexts, chosen: NDArray[np.int64]) -> None:
        ends = np.cumsum(encoded.lengths)
        for index in map(int, chosen):
            end = int(ends[index])
            length = int(encoded.lengths[index])
            actual = EncodedTexts(encoded.ids[end - length : end], encoded.lengths[index : index + 1])
            try:
                expected = self.reference.encode([texts[index]])
            except RefusedTextError as error:
                raise MismatchError(
                    index, f"{REFERENCE} refuses {excerpt(texts[index])}, which {self.name} takes: {error}"
                ) from error
            found = difference(actual, expected, [texts[index]])
            if found is not None:
                raise MismatchError(index, f"{self.name} differs from {REFERENCE}: {found.message}")

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
