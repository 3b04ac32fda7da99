"""Datasets of Megatron's datasets: blends of several, and endless epochs over one.

The greedy rule of Megatron's blends chooses the dataset of each sample, bit for bit. With
``--dataloader-type cyclic``, each epoch is in another order.

Megatron's ``MockGPTDataset``: samples without files, to try out or measure a training run.

`MockStore` computes the documents of Megatron's mock data when they are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from headrace.compat.megatron.gpt import ONE_PART_SPLITS, GPTDataset
from headrace.config import whole
from headrace.datasets import CountedDataset, Counts, Fields, FixedDataset, Sample, Traits
from headrace.datasets.dataset import FixedWrapper, counted
from headrace.datasets.mix import check_one_tokenizer
from headrace.errors import ConfigError
from headrace.plan import KeyArray
from headrace.plan.megatron import (
    SURPLUS,
    CyclicOrder,
    blend_sizes,
    build_blending_indices,
    build_exhaustive_blending_indices,
    check_draws,
    normalised_weights,
    parse_blend,
)
from headrace.stores import Problem, Store
from headrace.stores.arguments import by_keys, check_range, document_number, positions, read_only
from headrace.stores.store import MAIN, IntArray, KeyList, TokenArray

_SEED = 0
"""The seed of the lengths; Megatron has no option for it."""


class MockStore(Store):
    """Documents that count ``1, 2, 3, ...`` modulo ``vocab_size`` and end with ``eod``; their lengths are drawn.

    Lengths, including the ``eod``, are 1 to ``max_length - 1``, drawn from NumPy's ``default_rng(0)`` as in Megatron's
    ``MockGPTLowLevelDataset``. The constructor draws them, which takes about 1 ms for the default of 100,000 documents,
    and keeps 8 bytes for each.

    Raises:
        ConfigError: a number is out of range.

    Example:
        >>> store = headrace.compat.megatron.MockStore(vocab_size=50_257, eod=50_256)
        >>> len(store)
        100000
        >>> store.document(0)[:3].tolist()
        [1, 2, 3]
    """

    format = "mock"

    def __init__(self, *, vocab_size: int, eod: int, num_documents: int = 100_000, max_length: int = 4096) -> None:
        if vocab_size < 1 or num_documents < 0 or max_length < 2 or not 0 <= eod < 1 << 31 or vocab_size > 1 << 31:
            raise ConfigError(
                "vocab_size is 1 to 2^31, num_documents at least 0, max_length at least 2 and eod 0 to 2^31 - 1, "
                f"found {vocab_size}, {num_documents}, {max_length} and {eod}"
            )
        self.path = "mock data"
        self._options = {
            "vocab_size": vocab_size, "eod": eod, "num_documents": num_documents, "max_length": max_length
        }  # fmt: skip
        self._vocab_size, self._eod = vocab_size, eod
        lengths = np.random.default_rng(_SEED).integers(1, max_length, num_documents, dtype=np.int32)
        self._ends = np.zeros(num_documents + 1, dtype=np.int64)
        np.cumsum(lengths, out=self._ends[1:])

    @property
    def keys(self) -> tuple[str, ...]:
        """The one key, that of the tokens."""
        return (MAIN,)

    @property
    def dtypes(self) -> Mapping[str, np.dtype[Any]]:
        """Tokens are int32."""
        return {MAIN: np.dtype(np.int32)}

    @property
    def files(self) -> tuple[Path, ...]:
        """Always empty: the documents are computed."""
        return ()

    @property
    def num_documents(self) -> int:
        """The number that was given to the constructor."""
        return len(self._ends) - 1

    @property
    def num_tokens(self) -> int:
        """About ``num_documents * max_length / 2``."""
        return int(self._ends[-1])

    @property
    def lengths(self) -> IntArray:
        """(num_documents,) int64: the number of tokens of each document, with its ``eod``."""
        return np.diff(self._ends)

    @cached_property
    def fingerprint(self) -> str:
        """The xxh3_128 hash of the vocabulary size, the ``eod`` and the lengths."""
        hasher = xxhash.xxh3_128(repr((self.format, self._vocab_size, self._eod)).encode())
        hasher.update(self._ends.astype("<i8").tobytes())
        return hasher.hexdigest()

    def document(self, index: int, keys: str | KeyList | None = None) -> Any:
        """(length,) int32 tokens of one document."""
        number = document_number(index, self.num_documents)
        begin, end = self._ends[number : number + 2].tolist()
        return self.fetch(begin, end, keys)

    def fetch(self, begin: int, end: int, keys: str | KeyList | None = None) -> Any:
        """(end - begin,) int32 tokens of the stream; costs some microseconds, and 5 ns a token."""
        check_range(begin, end, self.num_tokens)
        return by_keys(lambda _: read_only(self._tokens(begin, end)), keys, self.keys)

    def gather(self, begins: IntArray, length: int) -> TokenArray:
        """(len(begins), length) int32 tokens."""
        begins = positions(begins, max(0, self.num_tokens - length + 1), "begins")
        rows = np.empty((len(begins), length), dtype=np.int32)
        for row, begin in zip(rows, begins.tolist(), strict=True):
            row[:] = self._tokens(begin, begin + length)
        return rows

    def find_documents(self, begins: IntArray) -> IntArray:
        """(n,) int64: the document of each token, by a binary search in the ends of the documents."""
        found: IntArray = np.searchsorted(self._ends, positions(begins, self.num_tokens, "begins"), side="right") - 1
        return found

    def document_begins(self, documents: IntArray) -> IntArray:
        """(n,) int64: the first token of each document; O(1) each."""
        return self._ends[positions(documents, self.num_documents + 1, "documents")]

    def check(self, *, vocab_size: int | None = None) -> Iterator[Problem]:
        """Report the first document with an id outside of ``vocab_size``; nothing else can be wrong."""
        if vocab_size is None or not self.num_documents:
            return
        highest = np.maximum(np.minimum(self.lengths - 1, self._vocab_size - 1), self._eod)
        wrong = np.flatnonzero(highest >= vocab_size)
        if len(wrong):
            message = f"has id {highest[wrong[0]]}, allowed are 0 to {vocab_size - 1}; so have {len(wrong) - 1} others"
            yield Problem(path=self.path, place=f"document {wrong[0]}", message=message)

    def close(self) -> None:
        """Do nothing: there are no open files."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self._options, self.fingerprint)

    def _tokens(self, begin: int, end: int) -> TokenArray:
        """(end - begin,) int32: numbers that count from 1 in each document, and the ``eod`` at its end."""
        if begin == end:
            return np.empty(0, dtype=np.int32)
        first, last = (np.searchsorted(self._ends, [begin, end - 1], side="right") - 1).tolist()
        borders = self._ends[first : last + 2]
        within = np.diff(borders.clip(begin, end))
        tokens = (np.arange(begin + 1, end + 1) - np.repeat(borders[:-1], within)) % self._vocab_size
        ends = borders[1:]
        tokens[ends[ends <= end] - begin - 1] = self._eod
        return tokens.astype(np.int32)


def _again(options: dict[str, int], fingerprint: str) -> MockStore:
    store = MockStore(**options)
    if store.fingerprint != fingerprint:
        raise ConfigError(
            "the mock data differ from those of the process that sent them: the two use different versions of NumPy"
        )
    return store


class MockGPTDataset(GPTDataset):
    """Sample i is sample i of Megatron's ``MockGPTDataset``, a `GPTDataset` over 100,000 made-up documents.

    The documents count 1, 2, 3, ... and end with ``eod`` (`MockStore`). They are computed when they are read.

    Args:
        vocab_size: the size of the vocabulary of Megatron's tokeniser; the count begins again at 0 when it reaches it.
        eod: the id that ends each document.
        split: as for `GPTDataset`. Megatron always uses ``"1,1,1"`` for mock data, whatever its option says.
        **options: all other arguments of `GPTDataset`, such as ``sequence_length``.

    Raises:
        ConfigError: as for `GPTDataset`.

    Example:
        >>> mock = headrace.compat.megatron.MockGPTDataset(vocab_size=50_257, eod=50_256, sequence_length=1_024)
        >>> mock[0]["tokens"][:5].tolist()
        [117, 118, 119, 120, 121]
    """

    def __init__(self, *, vocab_size: int, eod: int, split: str = "1,1,1", **options: Any) -> None:
        super().__init__(MockStore(vocab_size=vocab_size, eod=eod), split=split, **options)

    def describe(self) -> str:
        """One line: the description of the `GPTDataset`, marked as mock data."""
        return f"mock data in {super().describe()}"


Era = Literal["core", "before_2025_02"]


class GPTBlend(FixedDataset):
    """Sample i is sample i of Megatron's ``BlendedDataset``.

    With ``weights`` and ``size``, each of ``size`` samples comes from the dataset that is furthest behind its weight.
    Without them every sample of every dataset comes once, in proportion to the sizes of the datasets. The order is
    fixed, so feed it with ``Order(kind="none")``. The blend keeps 10 bytes a sample.

    Headrace's `Blend` needs no table, keeps its shares at any length, and starts a source again when all its samples
    have been seen.

    Args:
        datasets: datasets with the same fields.
        weights: a positive weight for each dataset; None for every sample once.
        size: the number of samples; only with weights. A blend of 0 samples is an empty dataset.
        allow_different_tokenizers: accept datasets whose manifests name different tokenisers, see `Blend`.

    Raises:
        ConfigError: fields or tokenisers differ, a weight is not positive, or a dataset has fewer samples than the
            blend draws from it. Megatron fails only in the middle of the run in that case.

    Example:
        >>> web = headrace.compat.megatron.GPTDataset("stores/web/text_document", sequence_length=128)
        >>> code = headrace.compat.megatron.GPTDataset("stores/code/text_document", sequence_length=128)
        >>> blend = headrace.compat.megatron.GPTBlend([web, code], weights=[0.7, 0.3], size=100)
        >>> blend.dataset_index[:10].tolist()
        [0, 1, 0, 0, 1, 0, 0, 1, 0, 0]
    """

    def __init__(
        self,
        datasets: Sequence[FixedDataset],
        *,
        weights: Sequence[float] | None = None,
        size: int | None = None,
        allow_different_tokenizers: bool = False,
    ) -> None:
        if not datasets or len(datasets if weights is None else weights) != len(datasets):
            raise ConfigError(
                f"{len(datasets)} datasets and {0 if weights is None else len(weights)} weights; give at least one"
                " dataset, and one weight for each"
            )
        if (weights is None) != (size is None):
            raise ConfigError(
                "weights and size go together; give both, or neither for every sample of every dataset once"
            )
        shown = [dataset.shown_fields for dataset in datasets]
        if others := [fields for fields in shown if fields != shown[0]]:
            raise ConfigError(f"the datasets of a blend must have the same fields, found {shown[0]} and {others[0]}")
        if not allow_different_tokenizers:
            check_one_tokenizer((f"dataset {number}", dataset) for number, dataset in enumerate(datasets))
        self.datasets = tuple(datasets)
        self.weights = None if weights is None else normalised_weights(weights)
        self.dataset_index, self.dataset_sample_index = self._chosen(size)

    def _chosen(self, size: int | None) -> tuple[NDArray[np.int16], IntArray]:
        """Return, for each sample of the blend, the number of its dataset and its number there."""
        lengths = [len(dataset) for dataset in self.datasets]
        if self.weights is None or size is None:
            return build_exhaustive_blending_indices(lengths)
        chosen, samples = build_blending_indices(self.weights, whole(size, "size"))
        names = [one.store.path if isinstance(one, GPTDataset) else one.describe() for one in self.datasets]
        check_draws(chosen, lengths, names)
        return chosen, samples

    @classmethod
    def of(
        cls,
        blend: str | Sequence[str],
        *,
        num_samples: int | None,
        build: Callable[[str, int | None], FixedDataset],
        one_part: bool | None = None,
        era: Era = "core",
        surplus: float = SURPLUS,
        allow_different_tokenizers: bool = False,
    ) -> FixedDataset:
        """The dataset that Megatron's builder makes from ``--data-path``, or from the list of one part.

        The list of one part is that of ``--train-data-path`` and similar options. A single prefix without a weight is
        its dataset, not a blend. A single prefix with a weight is its dataset only in the list of one part:
        ``--data-path 1.0 A`` is a blend of one dataset, which Megatron builds for 0.5 % more samples and caches under
        other names.

        Args:
            blend: ``"0.3 A 0.7 B"``, or prefixes without weights, or a list of these words.
            num_samples: the number of samples wanted; None for each sample once, which needs prefixes without weights.
                0 makes an empty blend, as Megatron's builder does for ``--eval-iters 0``; a single prefix without a
                weight is still its dataset, of one epoch.
            build: a function that makes the dataset of a prefix with at least the given number of samples; None means
                one epoch.
            one_part: whether this is the list of one part. None decides by the dataset: it is if its split is
                ``"1,0,0"``, ``"0,1,0"`` or ``"0,0,1"``. It matters only for a single prefix with a weight.
            era: how many samples each dataset is built for, which decides its order: as in Megatron-LM since 2025-02,
                or before.
            surplus: the share of samples that each dataset is built for beyond those that are drawn, Megatron's
                ``--mid-level-dataset-surplus``. It decides the order of the datasets, too.
            allow_different_tokenizers: as for the class.

        Raises:
            ConfigError: the blend cannot be parsed, weights are given without a number of samples, the surplus is
                below 0, or as for the class.
        """
        prefixes, weights = parse_blend(blend)
        allow = allow_different_tokenizers
        if weights is None:
            if len(prefixes) == 1:
                return build(prefixes[0], num_samples)
            datasets = [build(prefix, None) for prefix in prefixes]
            if num_samples is None:
                return cls(datasets, allow_different_tokenizers=allow)
            lengths = [len(dataset) for dataset in datasets]
            return cls(datasets, weights=lengths, size=min(num_samples, sum(lengths)), allow_different_tokenizers=allow)
        if num_samples is None:
            raise ConfigError(
                f"the blend {blend!r} has weights, but num_samples is None, which means each sample once; give the"
                " number of samples, or leave the weights out (Megatron refuses this too)"
            )
        if len(prefixes) == 1 and one_part is not False:
            dataset = build(prefixes[0], num_samples)
            if one_part or (isinstance(dataset, GPTDataset) and dataset.split == ONE_PART_SPLITS[dataset.split_part]):
                return dataset
        # Megatron's builder normalises the weights, and its blend does so again. The last bit can change the order.
        shares = normalised_weights(weights)
        sizes = blend_sizes(shares, num_samples, surplus=surplus, era=era)
        datasets = [build(prefix, wanted) for prefix, wanted in zip(prefixes, sizes.num_samples, strict=True)]
        return cls(datasets, weights=shares, size=sizes.size, allow_different_tokenizers=allow)

    def __len__(self) -> int:
        return len(self.dataset_index)

    @property
    def fields(self) -> Fields:
        """The fields of the datasets, and ``dataset_id`` () int16, the number of the dataset."""
        return {**self.datasets[0].fields, "dataset_id": ((), np.dtype(np.int16))}

    @property
    def constants(self) -> Sample:
        """The constants of the datasets."""
        return self.datasets[0].constants

    @property
    def num_tokens_per_sample(self) -> float:
        """The mean of the datasets, which all have the same."""
        return self.datasets[0].num_tokens_per_sample

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """Everything that decides the bytes of the samples."""
        return {
            "kind": "gpt_blend",
            "datasets": [dataset.recipe for dataset in self.datasets],
            "weights": self.weights,
            "num_samples": len(self),
        }

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """(n,) int64: the numbers of the samples themselves. ``keys`` are ignored: the order is fixed."""
        return indices

    def read_into(self, addresses: IntArray, out: Sample, rows: slice | IntArray) -> None:
        """Read samples of several datasets into ``rows`` of ``out``."""
        places = np.arange(len(next(iter(out.values()))))[rows] if isinstance(rows, slice) else rows
        chosen = self.dataset_index[addresses]
        out["dataset_id"][rows] = chosen
        samples = self.dataset_sample_index[addresses]
        parts = {name: values for name, values in out.items() if name != "dataset_id"}
        for number in np.unique(chosen).tolist():
            mine = chosen == number
            dataset = self.datasets[number]
            dataset.read_into(dataset.locate(samples[mine]), parts, places[mine])

    def describe(self) -> str:
        """One line: the number of datasets, and the description of the first."""
        return f"Megatron's blend of {len(self.datasets):,} datasets: {self.datasets[0].describe()}, ..."


class CyclicDataset(FixedWrapper, CountedDataset):
    """Sample p is what Megatron's cyclic sampler feeds at position p in a run with these micro-batches and ranks.

    A loader with the same ``micro_batch_size`` and the same number of ranks gives each rank Megatron's micro-batches,
    and its position is ``consumed_samples``. With any other number of ranks every step keeps its samples, even in the
    middle of an epoch, where Megatron stops or continues in another order.

    The dataset is endless, so give the length to the run: ``Run(cyclic, order=Order(kind="none"), samples=...)``. A
    longer run begins with the same samples. Megatron shuffles epoch e with the seed e, whatever the seed of the run.

    The first sample of an epoch costs the shuffle of that epoch, 10 ns a sample with numba and 150 ns without. Two
    shuffles are kept, at 4 bytes for each sample, or with ``data_sharding`` for each sample of one rank.

    Args:
        dataset: any dataset; for Megatron's runs a `GPTDataset` or `GPTBlend`.
        micro_batch_size: samples of a micro-batch on one rank, in the run whose order this is.
        data_parallel_size: the number of ranks of that run.
        data_sharding: Megatron's option: each rank shuffles its own part of the samples.

    Raises:
        ConfigError: a number is below 1, or the dataset has fewer samples than one micro-batch of all ranks.

    Example:
        >>> dataset = headrace.compat.megatron.GPTDataset("stores/web/text_document", sequence_length=128)
        >>> cyclic = headrace.compat.megatron.CyclicDataset(dataset, micro_batch_size=4, data_parallel_size=2)
        >>> run = headrace.Run(cyclic, global_batch_size=16, order=headrace.Order(kind="none"), samples=10_000)
        >>> run.num_steps
        625
    """

    def __init__(
        self, dataset: FixedDataset, *, micro_batch_size: int, data_parallel_size: int, data_sharding: bool = True
    ) -> None:
        if not isinstance(dataset, FixedDataset):
            raise ConfigError(
                f"CyclicDataset is for samples of one shape, and those of {type(dataset).__name__} have different"
                " lengths: pass that dataset to the run itself"
            )
        self.dataset = dataset
        self.order = CyclicOrder(
            len(dataset),
            micro_batch_size=whole(micro_batch_size, "micro_batch_size"),
            data_parallel_size=whole(data_parallel_size, "data_parallel_size"),
            data_sharding=bool(data_sharding),
        )

    def __len__(self) -> int:
        """Samples of 2^32 epochs, since there are seeds for that many."""
        return len(self.order)

    @property
    def traits(self) -> Traits:
        """Those of the inner dataset; the order has no end."""
        return msgspec.structs.replace(self.dataset.traits, is_endless=True)

    def count(self, addresses: IntArray) -> Counts:
        """Count the samples at ``addresses`` in the inner dataset."""
        return counted(self.dataset).count(addresses)

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """Everything that decides the bytes of the samples."""
        return {
            "kind": "megatron_cyclic",
            "dataset": self.dataset.recipe,
            "num_samples": self.order.num_samples,
            "micro_batch_size": self.order.micro_batch_size,
            "data_parallel_size": self.order.data_parallel_size,
            "data_sharding": self.order.data_sharding,
        }

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """(n,) int64: addresses in the inner dataset. ``keys`` are ignored: the order of each epoch is fixed."""
        return self.dataset.locate(self.order.locate(indices))

    def read_into(self, addresses: IntArray, out: Sample, rows: slice | IntArray) -> None:
        """Read samples of the inner dataset into ``rows`` of ``out``."""
        self.dataset.read_into(addresses, out, rows)

    def describe(self) -> str:
        """One line: the order, its ranks and micro-batches, the samples of an epoch, and the inner dataset."""
        order = self.order
        parts = "each with its own part" if order.data_sharding else "samples assigned in turn"
        return (
            f"Megatron's cyclic order for {order.data_parallel_size:,} ranks, {parts}, micro-batches of "
            f"{order.micro_batch_size:,}: {order.num_samples_per_epoch:,} of {order.num_samples:,} samples an epoch, "
            f"{self.dataset.describe()}"
        )
