"""Records for preference and reinforcement learning: pairs of answers, prompts, groups of responses with rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.config import check_choice, optional_whole
from headrace.datasets.dataset import CountedDataset, Counts, Fields, Sample, SampleWatch
from headrace.datasets.loss_masks import Labels
from headrace.datasets.records import (
    Collation,
    Grid,
    PaddingSide,
    RecordDataset,
    check_parallel,
    found_key,
)
from headrace.errors import ConfigError, InputError
from headrace.plan import IntArray
from headrace.plan.segments import IGNORED_LABEL
from headrace.stores import Store

ANSWERS = ("chosen", "rejected")
_INT64 = np.dtype(np.int64)


class PreferenceDataset(RecordDataset, CountedDataset):
    """Sample i is record i: the prompt with the chosen answer, and the prompt with the rejected answer.

    An item has arrays of shape (length,) int64, a batch of shape (B, L), where L is the longest of all chosen and
    rejected rows:

    =====================  ========================  ==========================================================
    ``layout="apart"``     ``layout="stacked"``
    =====================  ========================  ==========================================================
    chosen_input_ids       input_ids (2B, L)         tokens; pads are ``padding_idx``. Stacked: chosen ones first
    rejected_input_ids
    chosen_attention_mask  attention_mask (2B, L)    1 at tokens
    rejected_attention_..
    chosen_labels          completion_mask (2B, L)   labels: -100 at the prompt and at pads; the mask: 1 where the
    rejected_labels                                  token itself is trained on, as in the batches of TRL's collator
    =====================  ========================  ==========================================================

    Items have the fields of ``"apart"`` in either layout. A batch also has ``num_supervised_tokens``, an int: the
    number of labels of both answers.

    Args:
        store: an open store with the keys ``chosen``, ``chosen_mask``, ``rejected`` and ``rejected_mask``.
        collation: how records are brought to one length; each answer is cut separately.
        labels: ``"next"`` or ``"same"``, as in `SFTDataset`: a label is the next token, or the token at its place.
        layout: layout of batches, ``"apart"`` or ``"stacked"``.

    Raises:
        ConfigError: as `RecordDataset`; an unknown value.
        InputError: while reading, if a mask has another length than the tokens or other values than 0 and 1, or a
            rejected answer is too long.

    Example:
        >>> dataset = headrace.PreferenceDataset(headrace.open("stores/preferences"), layout="stacked")
        >>> batch = dataset.collate([dataset[0], dataset[1]])
        >>> len(batch["input_ids"]), sorted(batch)
        (4, ['attention_mask', 'completion_mask', 'input_ids', 'num_supervised_tokens'])
    """

    def __init__(
        self,
        store: Store,
        collation: Collation | None = None,
        *,
        labels: Labels = "next",
        layout: Literal["apart", "stacked"] = "apart",
    ) -> None:
        check_choice("labels", labels, get_args(Labels))
        check_choice("layout", layout, ("apart", "stacked"))
        names = [name for answer in ANSWERS for name in (answer, f"{answer}_mask")]
        keys = {name: found_key(store, None, (name,), f"{name} of preferences") for name in names}
        super().__init__(store, Collation() if collation is None else collation, keys)
        self.labels = labels
        self.layout = layout

    @cached_property
    def fields(self) -> Fields:
        """Name -> (shape, dtype). When stacked, a sample has two rows, its chosen one among the first B."""
        if self.layout == "stacked":
            return dict.fromkeys(("input_ids", "attention_mask", "completion_mask"), ((2, -1), _INT64))
        names = ("input_ids", "labels", "attention_mask")
        return {f"{answer}_{name}": ((-1,), _INT64) for answer in ANSWERS for name in names}

    def _options(self) -> dict[str, Any]:
        return {"labels": self.labels, "layout": self.layout}

    def samples(self, addresses: IntArray, watch: SampleWatch | None = None) -> list[dict[str, Any]]:
        """Return records with ``input_ids``, ``labels`` and ``attention_mask`` for each answer."""
        found: list[dict[str, Any]] = [{} for _ in addresses]
        for answer in ANSWERS:
            what, shifted = f"the {answer} answer", self.labels == "next"
            pairs = self._supervised(addresses, answer, f"{answer}_mask", what, shifted=shifted)
            for sample, (ids, labels) in zip(found, pairs, strict=True):
                sample[f"{answer}_input_ids"], sample[f"{answer}_labels"] = ids, labels
                sample[f"{answer}_attention_mask"] = np.ones_like(ids)
        return found

    def collate(self, samples: Sequence[Mapping[str, Any]]) -> Sample:
        """Return samples, each with ``input_ids`` and ``labels`` for both answers, as one batch."""
        rows = {
            name: [sample[f"{answer}_{name}"] for answer in ANSWERS for sample in samples]
            for name in ("input_ids", "labels")
        }
        grid = self._grid(list(map(len, rows["input_ids"])))
        ids = grid.filled(rows["input_ids"], self.collation.padding_idx, np.int64)
        labels = grid.filled(rows["labels"], IGNORED_LABEL, np.int64)
        attention = grid.is_token.astype(np.int64)
        batch: dict[str, Any] = {}
        if self.layout == "stacked":
            batch = {"input_ids": ids, "attention_mask": attention, "completion_mask": self._completions(labels, grid)}
        else:
            for half, answer in ((slice(len(samples)), "chosen"), (slice(len(samples), None), "rejected")):
                batch[f"{answer}_input_ids"] = ids[half]
                batch[f"{answer}_labels"] = labels[half]
                batch[f"{answer}_attention_mask"] = attention[half]
        batch["num_supervised_tokens"] = int(np.count_nonzero(labels != IGNORED_LABEL))
        return batch

    def _completions(self, labels: IntArray, grid: Grid) -> IntArray:
        """(2B, L) int64: 1 at the tokens that are themselves trained on."""
        mask: NDArray[np.bool_] = labels != IGNORED_LABEL
        if self.labels == "next" and mask.shape[1]:
            # The last place of a row has no label, so that rolling loses nothing.
            mask = np.roll(mask, 1, axis=1)
        completions: IntArray = (mask & grid.is_token).astype(np.int64)
        return completions

    def sample_lengths(self, addresses: IntArray) -> IntArray:
        """(n,) int64: number of tokens that are kept of the longer answer."""
        return np.maximum(*self._kept(addresses))

    def _token_counts(self, addresses: IntArray) -> IntArray:
        return np.add(*self._kept(addresses))

    def _kept(self, addresses: IntArray) -> list[IntArray]:
        """Return how many tokens are kept of each chosen answer, and of each rejected one."""
        return [self.collation.kept(self._keys[answer].lengths(addresses)) for answer in ANSWERS]

    def count(self, addresses: IntArray) -> Counts:
        """Count tokens and labels of both answers; the masks are read. Pads belong to batches and are not counted."""
        both = self._kept(addresses)
        marked = [self._marked(f"{one}_mask", addresses, kept) for one, kept in zip(ANSWERS, both, strict=True)]
        kept = np.add(*both)
        return Counts(kept, np.add(*marked), np.zeros_like(kept), np.full_like(kept, len(ANSWERS)))


class PromptDataset(RecordDataset):
    """Sample i is record i: a prompt, and the columns that were stored with it.

    An item has arrays of shape (length,), a batch of shape (B, P), padded on the left:

    - ``input_ids`` int64, pads are ``padding_idx``; ``attention_mask`` int64, 1 at tokens; ``position_ids`` int64, from
      0 on, and from 0 again over the pads;
    - ``columns``: a dict in an item, a list of B dicts in a batch: ``ground_truth``, ``data_source``, or whatever the
      records had.

    Args:
        store: an open store with the key ``prompts`` and optionally ``columns``, a JSON object in UTF-8 for each
            record.
        collation: how prompts are brought to one length.

    Raises:
        ConfigError: as `RecordDataset`.
        InputError: while reading, if columns are not a JSON object; the message names the record.

    Example:
        >>> dataset = headrace.PromptDataset(headrace.open("stores/prompts"))
        >>> batch = dataset.collate([dataset[0], dataset[1]])
        >>> batch["input_ids"].shape == batch["attention_mask"].shape, len(batch["columns"])
        (True, 2)
    """

    padding_side: PaddingSide = "left"

    def __init__(self, store: Store, collation: Collation | None = None) -> None:
        keys = {"prompts": found_key(store, None, ("prompts",), "prompts")}
        if "columns" in store.keys:
            keys["columns"] = "columns"
        super().__init__(store, Collation() if collation is None else collation, keys)

    @cached_property
    def fields(self) -> Fields:
        """Name -> (shape, dtype); ``columns`` are not arrays and have no entry."""
        return dict.fromkeys(("input_ids", "attention_mask", "position_ids"), ((-1,), _INT64))

    def samples(self, addresses: IntArray, watch: SampleWatch | None = None) -> list[dict[str, Any]]:
        """Return prompts with their columns."""
        prompts = self._keys["prompts"].values(addresses)
        columns = self._keys["columns"].values(addresses) if "columns" in self._keys else [None] * len(prompts)
        found = []
        for record, prompt, data in zip(addresses.tolist(), prompts, columns, strict=True):
            ids = self._cut(prompt, record, "the prompt").astype(np.int64)
            found.append(
                {
                    "input_ids": ids,
                    "attention_mask": np.ones_like(ids),
                    "position_ids": np.arange(len(ids)),
                    "columns": self._columns(data, record),
                }
            )
        return found

    def _columns(self, data: Any, record: int) -> dict[str, Any]:
        if data is None or not len(data):
            return {}
        try:
            return msgspec.json.decode(data.tobytes(), type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise InputError(
                f"{self.store.path}: record {record}: its columns are not a JSON object: {error}"
            ) from error

    def collate(self, samples: Sequence[Mapping[str, Any]]) -> Sample:
        """Return samples as one batch, padded on the left."""
        grid = self._grid([len(sample["input_ids"]) for sample in samples])
        batch: dict[str, Any] = {
            "input_ids": grid.filled([s["input_ids"] for s in samples], self.collation.padding_idx, np.int64),
            "attention_mask": grid.is_token.astype(np.int64),
            "position_ids": grid.positions(),
            "columns": [sample["columns"] for sample in samples],
        }
        return batch

    def sample_lengths(self, addresses: IntArray) -> IntArray:
        """(n,) int64: number of tokens that are kept of each prompt."""
        return self.collation.kept(self._keys["prompts"].lengths(addresses))


_BOOL, _FLOAT32 = np.dtype(np.bool_), np.dtype(np.float32)


class GroupDataset(RecordDataset, CountedDataset):
    """Sample i is record i: a prompt, G responses to it, and a reward for each response.

    An item has ``prompts`` (P,) int64, ``responses`` and ``masks``, lists of G arrays, int64 and bool, and ``rewards``
    (G,) float32. A batch has the following, where G is the largest group in it and R the longest response:

    - ``prompts`` (B, P) int64, padded on the left, and ``prompt_mask`` (B, P) bool, true at tokens;
    - ``responses`` (B, G, R) int64, padded on the right, and ``response_mask`` (B, G, R) bool, true at tokens;
    - ``masks`` (B, G, R) bool, true at the tokens to train on, which are a part of ``response_mask``;
    - ``rewards`` (B, G) float32, 0 where a smaller group has no response, and ``group_mask`` (B, G) bool, true where it
      has one: average over a group with this mask;
    - ``num_supervised_tokens``, an int: the sum of ``masks``.

    Args:
        store: an open store with the keys ``prompts``, ``responses`` (those of a record one after another), ``masks``
            parallel to them, and ``response_lengths`` and ``rewards``, one number for each response.
        collation: how prompts are brought to one length; ``over_long`` also applies to responses, which lose their end.
        max_response_length: most tokens of a response; None for any number.

    Raises:
        ConfigError: as `RecordDataset`; ``pad_to="max_length"`` without ``max_response_length``.
        InputError: while reading, if the numbers of a record contradict each other.

    Example:
        >>> dataset = headrace.GroupDataset(headrace.open("stores/rollouts"))
        >>> batch = dataset.collate([dataset[0], dataset[1]])
        >>> batch["responses"].shape[:2] == batch["rewards"].shape == batch["group_mask"].shape
        True
    """

    padding_side: PaddingSide = "left"

    def __init__(
        self, store: Store, collation: Collation | None = None, *, max_response_length: int | None = None
    ) -> None:
        names = ("prompts", "responses", "masks", "rewards")
        keys = {name: found_key(store, None, (name,), f"{name} of groups") for name in names}
        if "response_lengths" in store.keys:
            keys["response_lengths"] = "response_lengths"
        collation = Collation() if collation is None else collation
        super().__init__(store, collation, keys)
        max_response_length = optional_whole(max_response_length, "max_response_length", least=1)
        if collation.pad_to == "max_length" and max_response_length is None:
            raise ConfigError("pad_to='max_length' needs max_response_length, the length that responses are padded to")
        if collation.pad_to == "max_length" and max_response_length and max_response_length % collation.multiple_of:
            raise ConfigError(
                f"max_response_length {max_response_length} is not a multiple of {collation.multiple_of}, and all"
                " responses are padded to it"
            )
        self.max_response_length = max_response_length

    @cached_property
    def fields(self) -> Fields:
        """Name -> (shape, dtype); -1 stands for sizes that differ from batch to batch."""
        return {
            "prompts": ((-1,), _INT64),
            "prompt_mask": ((-1,), _BOOL),
            "responses": ((-1, -1), _INT64),
            "response_mask": ((-1, -1), _BOOL),
            "masks": ((-1, -1), _BOOL),
            "rewards": ((-1,), _FLOAT32),
            "group_mask": ((-1,), _BOOL),
        }

    def _options(self) -> dict[str, Any]:
        return {"max_response_length": self.max_response_length}

    def samples(self, addresses: IntArray, watch: SampleWatch | None = None) -> list[dict[str, Any]]:
        """Return records, with one array for each response."""
        read = {name: self._keys[name].values(addresses) for name in ("prompts", "responses", "masks", "rewards")}
        check_parallel(self.store, addresses, read["responses"], read["masks"], "'masks'")
        found = []
        for row, ends in enumerate(self._ends(addresses)):
            record = int(addresses[row])
            pairs = {name: np.split(read[name][row], ends[:-1]) if len(ends) else [] for name in ("responses", "masks")}
            responses = [self._cut_response(some, record) for some in pairs["responses"]]
            found.append(
                {
                    "prompts": self._cut(read["prompts"][row], record, "the prompt").astype(np.int64),
                    "responses": [some.astype(np.int64) for some in responses],
                    "masks": [
                        marks[: len(some)].astype(bool) for marks, some in zip(pairs["masks"], responses, strict=True)
                    ],
                    "rewards": np.array(read["rewards"][row], dtype=np.float32),
                }
            )
        return found

    def _cut_response(self, values: Any, record: int) -> Any:
        limit = self.max_response_length
        if limit is None or len(values) <= limit:
            return values
        if self.collation.over_long == "error":
            raise InputError(
                f"{self.store.path}: record {record}: a response has {len(values):,} tokens, max_response_length is"
                f" {limit:,}: choose over_long='truncate_right', or a larger max_response_length"
            )
        return values[:limit]

    def _ends(self, records: IntArray) -> list[IntArray]:
        """Return for each record where its responses end, in the tokens of all its responses."""
        totals, groups = self._keys["responses"].lengths(records), self._keys["rewards"].lengths(records)
        sizes: list[Any]
        if "response_lengths" in self._keys:
            sizes = self._keys["response_lengths"].values(records)
        else:
            # AstrAI stores the responses of a group one after another but not where each ends. That is enough to read
            # groups of one response.
            sizes = [np.array([total]) if group == 1 else None for total, group in zip(totals, groups, strict=True)]
        found = []
        for record, total, group, lengths in zip(records.tolist(), totals, groups, sizes, strict=True):
            if lengths is None:
                raise InputError(
                    f"{self.store.path}: record {record} has {group} rewards, and there is no key 'response_lengths'"
                    " that says where its responses end: prepare the store again"
                )
            if len(lengths) != group or int(lengths.sum()) != total or (lengths < 0).any():
                raise InputError(
                    f"{self.store.path}: record {record} has {group} rewards, {len(lengths)} responses of"
                    f" {lengths.sum():,} tokens, and {total:,} tokens of responses: prepare the store again"
                )
            found.append(np.cumsum(lengths, dtype=np.int64))
        return found

    def collate(self, samples: Sequence[Mapping[str, Any]]) -> Sample:
        """Return samples as one batch; groups may have different sizes."""
        prompts = self._grid([len(sample["prompts"]) for sample in samples])
        sizes = np.array([len(sample["rewards"]) for sample in samples], dtype=np.int64)
        groups = Grid.of(sizes, int(sizes.max(initial=0)), "right")
        flat = [response for sample in samples for response in sample["responses"]]
        lengths = np.array(list(map(len, flat)), dtype=np.int64)
        width = self.collation.width(int(lengths.max(initial=0)))
        if self.collation.pad_to == "max_length" and self.max_response_length is not None:
            width = self.max_response_length
        # A smaller group has rows of pads where it has no response.
        every = np.zeros(groups.is_token.size, dtype=np.int64)
        every[groups.is_token.reshape(-1)] = lengths
        grid = Grid.of(every, width, "right")
        shape = (*groups.is_token.shape, width)
        marks = [some for sample in samples for some in sample["masks"]]
        batch: dict[str, Any] = {
            "prompts": prompts.filled([s["prompts"] for s in samples], self.collation.padding_idx, np.int64),
            "prompt_mask": prompts.is_token,
            "responses": grid.filled(flat, self.collation.padding_idx, np.int64).reshape(shape),
            "response_mask": grid.is_token.reshape(shape),
            "masks": grid.filled(marks, 0, np.bool_).reshape(shape),
            "rewards": groups.filled([sample["rewards"] for sample in samples], 0, np.float32),
            "group_mask": groups.is_token,
        }
        batch["num_supervised_tokens"] = int(np.count_nonzero(batch["masks"]))
        return batch

    def sample_lengths(self, addresses: IntArray) -> IntArray:
        """(n,) int64: number of tokens that are kept of the prompt and the longest response."""
        longest = [int(np.diff(ends, prepend=0).max(initial=0)) for ends in self._ends(addresses)]
        return self.collation.kept(self._keys["prompts"].lengths(addresses)) + self._kept(np.array(longest, np.int64))

    def _token_counts(self, addresses: IntArray) -> IntArray:
        kept = [int(self._kept(np.diff(ends, prepend=0)).sum()) for ends in self._ends(addresses)]
        return self.collation.kept(self._keys["prompts"].lengths(addresses)) + np.array(kept, np.int64)

    def _kept(self, lengths: IntArray) -> IntArray:
        return lengths if self.max_response_length is None else np.minimum(lengths, self.max_response_length)

    def count(self, addresses: IntArray) -> Counts:
        """Count tokens of prompts and responses, and the marks of the masks, which are read. Pads are not counted."""
        supervised, num_responses = [], []
        for ends, marks in zip(self._ends(addresses), self._keys["masks"].values(addresses), strict=True):
            parts = np.split(marks, ends[:-1]) if len(ends) else []
            supervised.append(sum(int(np.count_nonzero(part[: self.max_response_length])) for part in parts))
            num_responses.append(len(ends))
        kept = self._token_counts(addresses)
        return Counts(kept, np.array(supervised, np.int64), np.zeros_like(kept), np.array(num_responses, np.int64))
