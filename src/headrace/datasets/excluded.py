"""`ExcludedDocuments`: the samples of a dataset of tokens without some documents, as an edit of a run excludes them.

Sets of documents or samples are rising numbers, (n,) int64; they are kept as text with ranges, see `ranges_text`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from hashlib import blake2b
from itertools import chain, pairwise
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.datasets.dataset import CountedDataset, Counts, FixedDataset, FixedWrapper, Sample, Traits
from headrace.errors import ConfigError
from headrace.plan import IntArray, KeyArray
from headrace.plan.segments import IGNORED_LABEL


def ranges_text(numbers: IntArray) -> str:
    """Return rising numbers as text with ranges.

    Example:
        >>> from headrace.datasets.excluded import ranges_text
        >>> ranges_text(np.array([3, 7, 8, 9, 40]))
        '3 7-9 40'
    """
    starts = np.ones(len(numbers), dtype=np.bool_)
    starts[1:] = np.diff(numbers) != 1
    pairs = zip(numbers[starts].tolist(), numbers[np.roll(starts, -1)].tolist(), strict=True)
    return " ".join(str(first) if first == last else f"{first}-{last}" for first, last in pairs)


def range_numbers(text: str) -> IntArray:
    """Return the rising numbers of a text, (n,) int64; undoes `ranges_text`.

    Raises:
        ConfigError: the text is not one that `ranges_text` makes.
    """
    bounds = [part.split("-", 1) for part in text.split()]
    try:
        ends = [(int(bound[0]), int(bound[-1]) + 1) for bound in bounds]
    except ValueError:
        raise ConfigError(f"{text!r:.80} is no list of numbers, such as '3 7-9 40'") from None
    if any(low >= high for low, high in pairwise(chain([-1], *ends))):
        raise ConfigError(f"the numbers of {text!r:.80} do not rise")
    return np.concatenate([np.empty(0, np.int64), *(np.arange(low, high, dtype=np.int64) for low, high in ends)])


def listed(name: str, values: Iterable[Any]) -> list[Any]:
    """Return what was given as a list. Raises ConfigError for a single text, and for what is no list."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise ConfigError(f"{name} is {values!r:.80}; expected a list")
    return list(values)


def rising_numbers(name: str, values: Iterable[int]) -> IntArray:
    """(n,) int64, rising, without repeats. Raises ConfigError for anything but whole numbers from 0 on."""
    found = np.asarray(values if isinstance(values, np.ndarray | range) else listed(name, values))
    if found.ndim != 1 or (found.size and (found.dtype.kind not in "iu" or int(found.min()) < 0)):
        raise ConfigError(f"{name} is {values!r:.80}; expected a list of numbers from 0 on")
    return np.unique(found.astype(np.int64))


def excluded_recipe(recipe: dict[str, Any], documents: IntArray, pad_id: int) -> dict[str, Any]:
    """Return the recipe of a dataset of tokens without some documents."""
    digest = blake2b(documents.astype("<i8").tobytes(), digest_size=16).hexdigest()
    texts = {"documents": ranges_text(documents), "digest": digest}
    return {"kind": "excluded", "dataset": recipe, **texts, "pad_id": pad_id}


class Masks(NamedTuple):
    """What a recipe says of documents that are masked out: the recipe without that, the documents, and the pad id."""

    recipe: dict[str, Any]
    documents: IntArray
    pad_id: int


def masks_of(recipe: Mapping[str, Any]) -> Masks | None:
    """Return what is masked out of a dataset, or out of the one that it maps; None if nothing is."""
    if recipe.get("kind") == "excluded":
        return Masks(recipe["dataset"], range_numbers(recipe["documents"]), recipe["pad_id"])
    if recipe.get("kind") == "mapped" and (inner := masks_of(recipe["dataset"])) is not None:
        own = {name: value for name, value in recipe.items() if name != "drawn_as"}
        return inner._replace(recipe={**own, "dataset": inner.recipe})
    return None


class Held(NamedTuple):
    """Where masked documents are in samples.

    ``rows`` (n,) int64: the samples that hold any of their tokens. ``places`` (n, tokens + 1) bool: which of the input
    tokens of these samples, and of the tokens after their last, belong to the documents.
    """

    rows: IntArray
    places: NDArray[np.bool_]

    @property
    def pairs(self) -> NDArray[np.bool_]:
        """(n, tokens): whether a token or the one after it belongs to the documents."""
        pairs: NDArray[np.bool_] = self.places[:, :-1] | self.places[:, 1:]
        return pairs


class DocumentMask(Protocol):
    """Finds the tokens of some documents in the samples of a dataset."""

    def held(self, addresses: IntArray) -> Held:
        """Return where the documents are in the samples at some addresses. Reads no tokens."""

    def count(self, addresses: IntArray) -> Counts:
        """Count the samples at some addresses; tokens of the documents count as pads."""


class ExcludedDocuments(FixedWrapper, CountedDataset):
    """The samples of a dataset of tokens, without some documents.

    Each token of the documents has ``pad_id`` in place of its id. A label is -100 if its token, or the token that
    predicts it, belongs to the documents. Nothing else is changed. In packs the documents are still segments of their
    own, which no other segment attends to, with their positions and ``document_ids``.

    Args:
        dataset: the dataset.
        mask: finds the documents in its samples.
        documents: (n,) int64, rising: numbers of the documents.
        pad_id: the id that stands for their tokens.
    """

    def __init__(self, dataset: FixedDataset, mask: DocumentMask, documents: IntArray, pad_id: int) -> None:
        self.dataset = dataset
        self.documents = documents
        self._pad_id = pad_id
        self._mask = mask

    @property
    def pad_id(self) -> int:
        """The id that stands for the tokens of the documents."""
        return self._pad_id

    @property
    def traits(self) -> Traits:
        """Those of the dataset, but samples are counted, and any of them may be without a label."""
        return msgspec.structs.replace(self.dataset.traits, is_counted=True)

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """What decides the bytes of the samples: also the numbers of the documents, as text and as a hash."""
        return excluded_recipe(self.dataset.recipe, self.documents, self.pad_id)

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """(n,) int64: addresses in the dataset."""
        return self.dataset.locate(indices, keys)

    def read_into(self, addresses: IntArray, out: Sample, rows: slice | IntArray) -> None:
        """Read samples into ``rows`` of ``out``, and remove the documents there."""
        self.dataset.read_into(addresses, out, rows)
        held = self._mask.held(addresses)
        if not len(held.rows):
            return
        places = np.arange(len(out["input_ids"]))[rows][held.rows]
        unlabelled = held.pairs
        if self.dataset.traits.is_unshifted:
            # The label of the token after this one stands beside that token; the first label of a sample is none.
            unlabelled = np.roll(unlabelled, 1, axis=1)
            unlabelled[:, 0] = True
        changes = (
            ("input_ids", held.places[:, :-1], self.pad_id),
            ("labels", unlabelled, IGNORED_LABEL),
            ("loss_mask", unlabelled, False),
        )
        for name, where, value in changes:
            if name in out:
                found, columns = np.nonzero(where)
                out[name][places[found], columns] = value

    def count(self, addresses: IntArray) -> Counts:
        """Count the samples at some addresses; tokens of the documents count as pads."""
        return self._mask.count(addresses)

    def holders(self, document: int) -> IntArray:
        """Return those of the dataset; nothing for a document that is excluded."""
        found = self.dataset.holders(document)
        return found[:0] if is_in(np.array([document]), self.documents)[0] else found

    def describe(self) -> str:
        """Describe the dataset and the number of excluded documents in one line."""
        return f"{self.dataset.describe()}, {len(self.documents):,} documents excluded"


def is_in(values: IntArray, rising: IntArray) -> NDArray[np.bool_]:
    """(n,): whether each value is one of the rising numbers. O(log numbers) each."""
    if not len(rising):
        return np.zeros(len(values), dtype=np.bool_)
    found: NDArray[np.bool_] = rising[np.minimum(np.searchsorted(rising, values), len(rising) - 1)] == values
    return found
