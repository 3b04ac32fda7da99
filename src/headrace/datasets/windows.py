"""`WindowDataset`: windows of fixed length over the token stream of a store."""

from __future__ import annotations

from functools import cached_property
from os import PathLike
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from headrace.config import check_choice, whole
from headrace.datasets.dataset import CountedDataset, Counts, Fields, FixedDataset, Sample, Traits
from headrace.datasets.exclusions import ExcludedDocuments, Held
from headrace.datasets.loss_masks import AUTO, Labels, check_store, shown_mask, used_mask
from headrace.datasets.mix import tokenizer_of
from headrace.datasets.origins import Origins, window_origins, windows_over
from headrace.errors import ConfigError
from headrace.plan import IntArray, KeyArray, derive_array
from headrace.plan.segments import IGNORED_LABEL
from headrace.stores import Store
from headrace.stores.store import Extents

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.datasets.recipes import Maker
    from headrace.io import ReadCache, Storage

_INT64 = np.dtype(np.int64)


class WindowDataset(FixedDataset, CountedDataset):
    """Sample i is the ``seq_len`` tokens from ``i * stride`` on, with the next token of each as its label.

    Fields, each (seq_len,) int64:

    - ``input_ids``: tokens ``[i * stride, i * stride + seq_len)`` of the stream, documents one after another;
    - ``labels``: the same, one token later, and -100 where the store's loss mask is 0 for the token to be predicted.
      With ``labels="same"`` a label is the token at its own place, for models that shift labels themselves, such as
      those of Hugging Face; the first label of a window is -100, since nothing predicts that token;
    - ``position_ids``: 0 to seq_len - 1, or from 0 again at each document with ``position_ids="restart"``;
    - ``document_ids``: with ``document_ids=True``, the number of the document that each input token belongs to.

    No index is built: every sample is found by arithmetic. The tail of the stream that is too short for a window is not
    read (with ``phase`` it is another tail in each epoch).

    With a loss mask, samples are counted, and the batches of a loader have ``num_supervised_tokens`` and
    ``step_supervised_tokens``.

    Args:
        store: an open store of tokens.
        seq_len: number of tokens in a window.
        stride: distance between the begins of two windows; by default ``seq_len``.
        phase: cut the stream at another offset in each epoch, drawn in [0, stride), so that the borders of the windows
            do not always fall on the same tokens. Every epoch has the same number of samples, at most one less than
            without.
        document_ids: whether samples have the field ``document_ids``.
        position_ids: whether positions continue over the borders of documents or restart there.
        labels: ``"next"`` or ``"same"``, see above.
        loss_mask_key: ``"auto"`` uses the loss mask of the store, if it has one: ``loss_mask``, or ``chosen_mask`` for
            ``chosen``, and so on. Another name is that of a parallel key. None trains on every token.

    Raises:
        ConfigError: a size is below 1, or ``seq_len`` is 1 with ``labels="same"``; the store has fewer than ``seq_len +
            1`` tokens, there is no such key, or a mask does not have one value for each token.

    Example:
        >>> store = headrace.open("stores/web")
        >>> dataset = headrace.WindowDataset(store, seq_len=128)
        >>> sample = dataset[2]
        >>> bool(np.array_equal(sample["labels"][:-1], sample["input_ids"][1:]))
        True
    """

    def __init__(
        self,
        store: Store,
        *,
        seq_len: int,
        stride: int | None = None,
        phase: bool = False,
        document_ids: bool = False,
        position_ids: Literal["continue", "restart"] = "continue",
        labels: Labels = "next",
        loss_mask_key: str | None = AUTO,
    ) -> None:
        check_store(store)
        seq_len = whole(seq_len, "seq_len", least=1)
        stride = seq_len if stride is None else whole(stride, "stride", least=1)
        check_choice("position_ids", position_ids, ("continue", "restart"))
        check_choice("labels", labels, get_args(Labels))
        if labels == "same" and seq_len == 1:
            raise ConfigError(
                "seq_len is 1: with labels='same' the first token of a window has no label: use at least 2"
            )
        slack = store.num_tokens - (seq_len + 1)
        if slack < 0:
            raise ConfigError(
                f"{store.path} has {store.num_tokens:,} tokens; a window of {seq_len:,} and the label of its "
                f"last token need {seq_len + 1:,}: use a shorter window or more data"
            )
        self.store = store
        self.seq_len = seq_len
        self.stride = stride
        self.phase = phase
        self._document_ids = document_ids
        self._restart = position_ids == "restart"
        self.labels = labels
        self.loss_mask_key = used_mask(store, loss_mask_key)
        # Every phase below `stride` must leave room for the last window. If not even one window has that room, there
        # are fewer phases.
        room = slack - (stride - 1) if phase else slack
        self._num_samples: int = max(0, room) // stride + 1
        self._num_phases = min(stride, slack - (self._num_samples - 1) * stride + 1)
        self._positions = np.arange(seq_len, dtype=np.int64)

    @classmethod
    def open(
        cls,
        path: str | PathLike[str],
        *,
        seq_len: int,
        storage: Storage | None = None,
        cache: ReadCache | None = None,
        **options: Any,
    ) -> WindowDataset:
        """Open the store at a path, and cut it into windows.

        Args:
            path, storage, cache: see `headrace.open`.
            seq_len, options: see the class.

        Raises:
            StoreError: the store cannot be opened.
        """
        store = resolve_name("headrace.stores:open")(path, storage=storage, cache=cache)
        return cls(store, seq_len=seq_len, **options)

    def __len__(self) -> int:
        return self._num_samples

    @cached_property
    def fields(self) -> Fields:
        """Name -> (shape, dtype) of the arrays that are read for each sample."""
        names = ["input_ids", "labels"] + ["document_ids"] * self._document_ids + ["position_ids"] * self._restart
        return dict.fromkeys(names, ((self.seq_len,), _INT64))

    @property
    def constants(self) -> Sample:
        """The ``position_ids``, unless they restart at documents."""
        return {} if self._restart else {"position_ids": self._positions}

    @property
    def num_tokens_per_sample(self) -> float:
        """The length of the window: the model predicts from each of its tokens."""
        return float(self.seq_len)

    @property
    def pad_id(self) -> int | None:
        """The id that ends documents, if the manifest of the store names it."""
        info = tokenizer_of(self.store)
        return None if info is None else info.eod

    def without(self, documents: IntArray, pad_id: int) -> ExcludedDocuments:
        """Return the windows with some documents masked out."""
        return ExcludedDocuments(self, _WindowMask(self, documents), documents, pad_id)

    @property
    def traits(self) -> Traits:
        """What has to be known about the samples. Without a loss mask, all windows hold the same number of labels."""
        return Traits(is_counted=self.loss_mask_key is not None, is_unshifted=self.labels == "same")

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """What decides the bytes of the samples. Mask and labels are in it only if they differ from early defaults."""
        recipe: dict[str, Any] = {
            "kind": "windows",
            "store": self.store.fingerprint,
            "num_tokens": self.store.num_tokens,
            "window_tokens": self.seq_len,
            "stride": self.stride,
            "phase": self.phase,
            "document_ids": self._document_ids,
            "position_ids": "restart" if self._restart else "continue",
        }
        if self.loss_mask_key is not None:
            recipe["loss_mask_key"] = self.loss_mask_key
        if self.labels == "same":
            recipe["labels"] = self.labels
        return recipe

    @classmethod
    def from_recipe(cls, recipe: Mapping[str, Any], maker: Maker) -> WindowDataset:
        """Return the windows of a recipe."""
        return cls(
            maker.store(),
            seq_len=recipe["window_tokens"],
            labels=recipe.get("labels", "next"),
            loss_mask_key=recipe.get("loss_mask_key"),
            **{name: recipe[name] for name in ("stride", "phase", "document_ids", "position_ids")},
        )

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """(n,) int64: where each window begins in the token stream."""
        begins = indices * self.stride
        if self.phase and keys is not None:
            draws = derive_array(keys, np.zeros(1, dtype=np.int64))
            begins += (draws % np.uint64(self._num_phases)).astype(np.int64)
        return begins

    def read_into(self, addresses: IntArray, out: Sample, rows: slice | IntArray) -> None:
        """Read the windows that begin at ``addresses`` into ``rows`` of ``out``."""
        tokens = self.store.gather(addresses, self.seq_len + 1)
        out["input_ids"][rows] = tokens[:, :-1]
        if self.labels == "next" and self.loss_mask_key is None:
            out["labels"][rows] = tokens[:, 1:]
        else:
            out["labels"][rows] = self._labels(addresses, tokens)
        if not (self._restart or self._document_ids):
            return
        cuts = self.store.cut_windows(addresses, self.seq_len)
        shape = (len(addresses), self.seq_len)
        if self._restart:
            out["position_ids"][rows] = self._positions - np.repeat(cuts.columns, cuts.lengths).reshape(shape)
        if self._document_ids:
            out["document_ids"][rows] = np.repeat(cuts.parts, cuts.lengths).reshape(shape)

    def _labels(self, addresses: IntArray, tokens: NDArray[Any]) -> IntArray:
        """(n, seq_len) int64: the labels of windows; ``tokens`` has one column more than a window."""
        labels: IntArray = tokens[:, 1:].astype(np.int64)
        if self.loss_mask_key is not None:
            labels = np.where(self.marks(addresses) != 0, labels, IGNORED_LABEL)
        if self.labels == "same":
            labels[:, 1:] = labels[:, :-1].copy()
            labels[:, 0] = IGNORED_LABEL
        return labels

    def marks(self, addresses: IntArray) -> NDArray[Any]:
        """(n, seq_len): the loss mask of the tokens to be predicted, in its stored dtype; the windows need a mask."""
        lengths = np.full_like(addresses, self.seq_len)
        pieces = self.store.pieces(addresses + 1, lengths, self.loss_mask_key)
        return np.concatenate([np.empty(0, np.bool_), *pieces]).reshape(-1, self.seq_len)

    def count(self, addresses: IntArray) -> Counts:
        """Count tokens, labels and documents of each window; there are no pads. Reads the mask, if one is used."""
        last = addresses + (self.seq_len - 1)
        documents = self.store.find_documents(last) - self.store.find_documents(addresses) + 1
        tokens = np.full_like(addresses, self.seq_len)
        # With labels="same" the window does not hold the last label of "next".
        num_labels = self.seq_len - (self.labels == "same")
        if self.loss_mask_key is None:
            supervised = np.full_like(addresses, num_labels)
        else:
            supervised = np.count_nonzero(self.marks(addresses)[:, :num_labels], axis=1).astype(np.int64)
        return Counts(tokens, supervised, np.zeros_like(tokens), documents)

    def origins(self, addresses: IntArray) -> list[Origins]:
        """Return the documents that the input tokens of each window belong to."""
        return window_origins(self.store, addresses, self.seq_len)

    def extents(self, addresses: IntArray) -> list[Extents]:
        """Return the ranges of the tokens, and of the loss mask if one is used."""
        found = [self.store.extents(addresses, np.full_like(addresses, self.seq_len + 1))]
        if self.loss_mask_key is not None:
            found.append(self.store.extents(addresses + 1, np.full_like(addresses, self.seq_len), self.loss_mask_key))
        return found

    def holders(self, documents: IntArray | int, *, as_labels: bool = False) -> IntArray:
        """Return the windows that overlap some documents, in any phase."""
        phases = self._num_phases if self.phase else 1
        size = self.seq_len + (as_labels and self.labels == "next")
        options: dict[str, int] = {"stride": self.stride, "length": size, "phases": phases, "num_samples": len(self)}
        found = [windows_over(self.store, document, **options) for document in np.atleast_1d(documents).tolist()]
        return np.unique(np.concatenate([np.empty(0, dtype=np.int64), *found]))

    def describe(self) -> str:
        """Describe size, stride, labels and mask of the windows in one line."""
        cut = "" if self.stride == self.seq_len else f" every {self.stride:,}"
        phase = ", another phase each epoch" if self.phase else ""
        labels = ", labels not shifted" if self.labels == "same" else ""
        return (
            f"windows of {self.seq_len:,} tokens{cut}{phase} over {self.store.num_tokens:,} tokens{labels}"
            f"{shown_mask(self.store, self.loss_mask_key)}"
        )


class _WindowMask:
    """Finds documents in windows by where they lie in the token stream.

    Neighbours are one span. So no two spans touch, and in a window each place begins or ends one at most:

        documents 1, 2, 4        0 0 1 1 1 2 3 3 4          spans from token 2 to 6, and from 8 to 9
        window of 5 from 3 on          1 1 2 3 3 | 4        begins at columns 0 and 5, ends at 3 and 6
    """

    def __init__(self, dataset: WindowDataset, documents: IntArray) -> None:
        self._dataset = dataset
        self._documents = documents
        begins, ends = (dataset.store.document_begins(documents + i) for i in (0, 1))
        begins, ends = begins[ends > begins], ends[ends > begins]
        apart = begins[1:] != ends[:-1]
        self._begins = begins[np.append(True, apart)[: len(begins)]]
        self._ends = ends[np.append(apart, True)[: len(ends)]]

    def held(self, addresses: IntArray) -> Held:
        """Return where the documents are in the windows that begin at some addresses. O(log spans) each."""
        size = self._dataset.seq_len + 1
        low = np.searchsorted(self._ends, addresses, side="right")
        counts = np.searchsorted(self._begins, addresses + size) - low
        rows = np.flatnonzero(counts)
        counts = counts[rows]
        lines = np.repeat(np.arange(len(rows)), counts)
        spans = np.arange(len(lines)) + np.repeat(low[rows] - (np.cumsum(counts) - counts), counts)
        origins = addresses[rows][lines]
        marks = np.zeros((len(rows), size + 1), dtype=np.int8)
        marks[lines, np.maximum(self._begins[spans] - origins, 0)] = 1
        marks[lines, np.minimum(self._ends[spans] - origins, size)] = -1
        return Held(rows, np.cumsum(marks, axis=1, dtype=np.int8)[:, :-1] != 0)

    def count(self, addresses: IntArray) -> Counts:
        """Count the windows; tokens of the documents count as pads. Reads the loss mask, if one is used."""
        dataset = self._dataset
        counts = dataset.count(addresses)
        held = self.held(addresses)
        rows = held.rows
        lost = held.pairs[:, : dataset.seq_len - (dataset.labels == "same")]
        if dataset.loss_mask_key is not None:
            lost = lost & (dataset.marks(addresses[rows])[:, : lost.shape[1]] != 0)
        counts.supervised_tokens[rows] -= np.count_nonzero(lost, axis=1)
        pads = np.count_nonzero(held.places[:, :-1], axis=1)
        counts.tokens[rows] -= pads
        counts.pads[rows] += pads
        first, last = (dataset.store.find_documents(addresses[rows] + i) for i in (0, dataset.seq_len - 1))
        numbers = self._documents
        counts.documents[rows] -= np.searchsorted(numbers, last, side="right") - np.searchsorted(numbers, first)
        return counts
