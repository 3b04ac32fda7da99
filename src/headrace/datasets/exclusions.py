"""What an edit of a run excludes of a source: as a user asks for it, and as plain numbers.

Exclude --exclusions--> Exclusion, in the edit --mask--> ExcludedDocuments, a dataset around that of the source
                                               --drop--> samples that are left out of its epochs

These samples keep their numbers, and an account of the run counts them. What else leaves samples out:

    Subset, Limit                          how much of a source is used, from the first step on: a range, chosen before
    lists of bad samples beside the files  the store has no number for them: `headrace.stores.quarantine`
    exclude= of a MeasuredDataset          no unit has them: `headrace.datasets.encoded.measured`
    Run.skip                               steps, whose samples are dropped or come later; they are counted, too

All but the ranges and steps are rising numbers of samples, (n,) int64, from here to the plan and the numbering of a
store; `ranges_text` writes them. Each list is part of the fingerprint or recipe of what it is left out of.

`ExcludedDocuments`: the samples of a dataset of tokens without some documents, as an edit of a run excludes them.

Sets of documents or samples are rising numbers, (n,) int64; they are kept as text with ranges, see `ranges_text`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from itertools import chain, pairwise
from typing import Any, Literal, NamedTuple, Protocol, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.config import check_choice, nearest_or_known, whole
from headrace.datasets.dataset import CountedDataset, Counts, Dataset, FixedDataset, FixedWrapper, Sample, Traits
from headrace.datasets.mix import Mix, named_datasets, named_path, node_of, store_of
from headrace.datasets.origins import checked
from headrace.errors import ConfigError
from headrace.plan import IntArray, KeyArray, Leaf, leaves
from headrace.plan.segments import IGNORED_LABEL
from headrace.stores import CombinedStore, SampleStore, ShardedStore, Store


def ranges_text(numbers: IntArray) -> str:
    """Return rising numbers as text with ranges.

    Example:
        >>> from headrace.datasets.exclusions import ranges_text
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

    def holders(self, documents: IntArray | int, *, as_labels: bool = False) -> IntArray:
        """Return those of the dataset; none of documents that are excluded."""
        asked = np.atleast_1d(documents)
        return self.dataset.holders(asked[~is_in(asked, self.documents)], as_labels=as_labels)

    def describe(self) -> str:
        """Describe the dataset and the number of excluded documents in one line."""
        return f"{self.dataset.describe()}, {len(self.documents):,} documents excluded"


def is_in(values: IntArray, rising: IntArray) -> NDArray[np.bool_]:
    """(n,): whether each value is one of the rising numbers. O(log numbers) each."""
    if not len(rising):
        return np.zeros(len(values), dtype=np.bool_)
    found: NDArray[np.bool_] = rising[np.minimum(np.searchsorted(rising, values), len(rising) - 1)] == values
    return found


How = Literal["mask", "drop"]


@dataclass(frozen=True, kw_only=True)
class Exclude:
    """What of a source is never trained on from the step of an edit on; see `Run.edit`.

    With ``how="mask"`` samples keep their places, and documents are removed within them: their ids are replaced by the
    pad id, and no label is one of their tokens or is predicted by one. Segments of packs stay as they are, so that no
    other document attends to them. The function of a `MapDataset` gets samples that are masked already.

    With ``how="drop"`` samples that may hold any of it are left out whole, and the epochs of the source are shorter.
    Where samples are others in each epoch (windows with ``phase``, packs with ``repack``), these are all samples that
    hold it in any epoch.

    Args:
        documents: numbers of documents of the store. A record is a document.
        keys: keys of media samples.
        shards: names of shards, as the store has them, or their last parts; or numbers of shards. Of a store of tokens
            they stand for their documents.
        samples: numbers of samples of the dataset; these can only be dropped.
        how: ``"mask"`` or ``"drop"``. By default windows and packs are masked; records and media are dropped, since
            they cannot be masked.
        pad_id: the id that stands for a masked token. By default that of the packs, or the id that ends documents
            according to the manifest of the store.

    Example:
        >>> headrace.Exclude(documents=[3, 17], how="drop").how
        'drop'
    """

    documents: Iterable[int] = ()
    keys: Iterable[str] = ()
    shards: Iterable[str | int] = ()
    samples: Iterable[int] = ()
    how: How | None = None
    pad_id: int | None = None


class Exclusion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an edit excludes of one source, as plain numbers; lists are text, see `ranges_text`.

    Attributes:
        how: whether documents are masked, or samples dropped.
        documents: the documents.
        samples: the samples that were named by their numbers, or by keys and shards of media.
        left_out: all samples that are dropped, those of ``documents`` included.
        pad_id: the id that stands for a masked token; None if samples are dropped.
    """

    how: How
    documents: str = ""
    samples: str = ""
    left_out: str = ""
    pad_id: int | None = None

    def describe(self) -> str:
        """Describe in a few words how much is excluded."""
        count, what = (self.documents, "documents") if self.how == "mask" else (self.left_out, "samples")
        done = "masked" if self.how == "mask" else "dropped"
        return f"{len(range_numbers(count)):,} {what} {done}"


def exclusions(exclude: Mapping[str, Exclude | Iterable[Any]], data: Dataset | Mix) -> dict[str, Exclusion]:
    """Return what is to be excluded as plain numbers, by the path of each source.

    Raises:
        ConfigError: a source, document, key, shard or sample does not exist, all of a source would be excluded, or a
            source cannot be masked.
    """
    if not isinstance(exclude, Mapping):
        raise ConfigError(
            f"exclude is {exclude!r:.80}; expected a dict of the names of sources, such as "
            '{"web": headrace.Exclude(documents=[3])}'
        )
    by_path = named_datasets(data)
    places = {leaf.path: leaf for leaf in leaves(node_of("", data))}
    found: dict[str, Exclusion] = {}
    for name, asked in exclude.items():
        try:
            path = named_path(name or ".", by_path)
            if path in found:
                raise ConfigError("it is named twice, by its name and by its path")
            found[path] = _resolved(_asked(asked, by_path[path]), by_path[path], places[path])
        except ConfigError as error:
            raise ConfigError(f"exclude, source {name!r}: {error}") from error
    return found


def _asked(asked: Exclude | Iterable[Any], dataset: Dataset) -> Exclude:
    """Return a plain list of documents or keys as an `Exclude`."""
    if isinstance(asked, Exclude):
        return asked
    if not isinstance(asked, Iterable) or isinstance(asked, str | bytes | Mapping):
        raise ConfigError(f"found {asked!r:.80}; expected headrace.Exclude(...), or a list of documents or keys")
    named = list(asked)
    if named and all(isinstance(one, str) for one in named):
        return Exclude(keys=named)
    if isinstance(store_of(dataset), SampleStore):
        raise ConfigError("media have no documents: say what the numbers are, as headrace.Exclude(samples=...)")
    return Exclude(documents=named)


def _resolved(asked: Exclude, dataset: Dataset, leaf: Leaf) -> Exclusion:
    how = asked.how or ("mask" if isinstance(dataset, FixedDataset) else "drop")
    check_choice("how", how, get_args(How))
    shards = listed("shards", asked.shards)
    documents = _documents(asked.documents, shards, dataset)
    samples = _samples(asked, shards, dataset, leaf)
    if not len(documents) and not len(samples):
        raise ConfigError("nothing is named: pass documents, keys, shards or samples")
    if how == "mask":
        if len(samples):
            raise ConfigError("only documents can be masked: pass how='drop' to leave out the samples that are named")
        return Exclusion(how=how, documents=ranges_text(documents), pad_id=_pad_id(asked.pad_id, dataset))
    if asked.pad_id is not None:
        raise ConfigError("pad_id stands for masked tokens, and samples are dropped here: leave it out")
    left_out = np.union1d(samples, dropped(documents, dataset, leaf))
    if len(left_out) >= leaf.num_samples:
        raise ConfigError(f"all {leaf.num_samples:,} samples are excluded: remove the source instead")
    return Exclusion(
        how=how, documents=ranges_text(documents), samples=ranges_text(samples), left_out=ranges_text(left_out)
    )


def _pad_id(asked: int | None, dataset: Dataset) -> int:
    """Return the id that stands for masked tokens. Raises ConfigError if the dataset cannot be masked."""
    if not isinstance(dataset, FixedDataset):
        raise ConfigError(f"samples of {type(dataset).__name__} cannot be masked: pass how='drop' to leave them out")
    found = dataset.pad_id if asked is None else whole(asked, "pad_id", least=0)
    if found is None:
        raise ConfigError(
            "no manifest says which id ends documents: pass the id that shall stand for masked tokens, as "
            "headrace.Exclude(..., pad_id=0)"
        )
    return found


def check_not_all(documents: IntArray, dataset: Dataset) -> None:
    """Raise ConfigError if no token of a dataset of tokens is left without some documents."""
    store = _token_store(dataset)
    if int((store.document_begins(documents + 1) - store.document_begins(documents)).sum()) >= store.num_tokens:
        raise ConfigError(f"all documents of {store.path} are excluded: remove the source instead")


def dropped(documents: IntArray, dataset: Dataset, leaf: Leaf) -> IntArray:
    """(n,) int64, rising: the samples of a source that may hold any of some documents."""
    found = dataset.holders(documents, as_labels=True) if len(documents) else documents
    return found[(found >= leaf.first_sample) & (found < leaf.first_sample + leaf.num_samples)]


def _documents(wanted: Iterable[int], shards: Sequence[str | int], dataset: Dataset) -> IntArray:
    """(n,) int64, rising: the documents that are named, and those of shards of tokens."""
    documents = rising_numbers("documents", wanted)
    if not len(documents) and (not shards or isinstance(store_of(dataset), SampleStore)):
        return documents
    store = _token_store(dataset)
    for document in documents[[0, -1]].tolist() if len(documents) else ():
        checked(store, document)
    parts = _token_shards(store)
    bounds = np.cumsum([0, *(part.num_documents for part in parts)])
    return np.union1d(documents, _of_shards(shards, [part.path for part in parts], bounds))


def _samples(asked: Exclude, shards: Sequence[str | int], dataset: Dataset, leaf: Leaf) -> IntArray:
    """(n,) int64, rising: the samples that are named by number or key, and those of shards of media."""
    samples = rising_numbers("samples", asked.samples)
    begin, end = leaf.first_sample, leaf.first_sample + leaf.num_samples
    if len(samples) and not begin <= int(samples[0]) <= int(samples[-1]) < end:
        wrong = int(samples[0] if samples[0] < begin else samples[-1])
        raise ConfigError(f"there is no sample {wrong:,}; allowed are {begin:,} to {end - 1:,}")
    by_key = [number for key in listed("keys", asked.keys) for number in dataset.find_keys(key)]
    store, bounds = store_of(dataset), dataset.shard_bounds
    by_shard = samples[:0]
    if shards and isinstance(store, SampleStore):
        if bounds is None or not np.array_equal(bounds, store.shard_bounds):
            raise ConfigError(
                f"samples of {type(dataset).__name__} are not those of the shards of {store.path}: name their keys"
            )
        by_shard = _of_shards(shards, store.shards, bounds)
    found = np.union1d(np.array(by_key, dtype=np.int64), by_shard)
    return np.union1d(samples, found[(found >= begin) & (found < end)])


def _token_store(dataset: Dataset) -> Store:
    store = store_of(dataset)
    if not isinstance(store, Store):
        raise ConfigError(f"{type(dataset).__name__} has no documents of a store of tokens: name keys or samples")
    return store


def _token_shards(store: Store) -> tuple[Store, ...]:
    """Return the shards of a store of tokens; a store without shards is its own."""
    while isinstance(store, CombinedStore):
        store = store.stores[store.keys[0]]
    return store.shards if isinstance(store, ShardedStore) else (store,)


def _of_shards(wanted: Sequence[str | int], names: Sequence[str], bounds: IntArray) -> IntArray:
    """(n,) int64, rising: the numbers in shards that are named by number, by name, or by the last parts of it."""
    found = []
    for shard in wanted:
        if isinstance(shard, str):
            numbers = [i for i, name in enumerate(names) if name == shard or name.endswith(f"/{shard}")]
            if not numbers:
                raise ConfigError(f"there is no shard {shard!r}{nearest_or_known(shard, names)}")
        else:
            numbers = [whole(shard, "shard")]
            if not 0 <= numbers[0] < len(names):
                raise ConfigError(f"there is no shard {shard:,}; allowed are 0 to {len(names) - 1:,}")
        found += [np.arange(bounds[number], bounds[number + 1], dtype=np.int64) for number in numbers]
    return np.unique(np.concatenate([np.empty(0, np.int64), *found]))
