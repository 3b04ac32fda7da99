"""The data of a run as they stand in ``run.json``: blends with their weights, other mixes as trees, and the sources.

    Dataset | Mix -- saved_mix --> SavedMix, SavedSource -- loaded_mix --> Dataset | Mix

A mix can be built again over other datasets: over those that hold the data, or over `RecordedDataset`, of which only
the recipe and the length are known. The plan, the recipe and the past of a run need no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import msgspec
import xxhash
from msgspec import UNSET, UnsetType

from headrace.datasets import Blend, Dataset, RaggedDataset, ScheduledBlend, Stage, Traits
from headrace.datasets.dataset import Fields, Sample, SampleWatch
from headrace.datasets.excluded import excluded_recipe
from headrace.datasets.mix import Mix, joined, leaf_of, node_of
from headrace.errors import ConfigError, StateError
from headrace.plan import IntArray, KeyArray, Leaf, Node, leaves
from headrace.plan.recipe import without_contents
from headrace.stores import SampleStore, Store
from headrace.tracing.saved_plan import AnyNode, loaded_node, loaded_shards, saved_node, saved_shards


class SavedStore(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a store lies: the path as it was opened, and the fingerprint of its content.

    ``key`` is the main key of a store with several. ``contents`` is its ``contents_fingerprint``, if ``fingerprint``
    sees the layout only. ``options`` are those of `headrace.open` without which its documents would be others.
    """

    path: str
    format: str
    fingerprint: str
    split_part: str | None = None
    key: str | UnsetType = UNSET
    contents: str | UnsetType = UNSET
    options: tuple[tuple[str, Any], ...] | UnsetType = UNSET


class SavedSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One source: its path in the blend, its samples, and the recipe of its dataset.

    ``tokens`` is the mean number of tokens of a sample, of a blend by tokens.
    """

    path: str
    num_samples: int
    first_sample: int = 0
    shards: str | None = None
    store: SavedStore | None = None
    recipe: dict[str, Any]
    is_endless: bool | UnsetType = UNSET
    tokens: float | UnsetType = UNSET

    @property
    def leaf(self) -> Leaf:
        """The source as a leaf of the plan."""
        return Leaf(self.path, self.num_samples, loaded_shards(self.shards), self.first_sample)


class SavedMix(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="mix"):
    """A mix, or a part of one; children stand under their names."""


class MixedSource(SavedMix, frozen=True, kw_only=True, tag="source"):
    """A dataset, by the number of its source."""

    source: int


class MixedBlend(SavedMix, frozen=True, kw_only=True, tag="blend"):
    """See `headrace.Blend`. ``numbers`` are its weights, or its repeats if ``end`` says so."""

    children: dict[str, AnyMix]
    numbers: dict[str, int | float | str]
    unit: str
    end: str
    num_samples: int | None
    block_samples: int


class MixedStages(SavedMix, frozen=True, kw_only=True, tag="stages"):
    """See `headrace.ScheduledBlend`."""

    children: dict[str, AnyMix]
    stages: tuple[Stage, ...]
    block_samples: int


class MixedPlan(SavedMix, frozen=True, kw_only=True, tag="plan"):
    """Any other mix, as its tree; ``tokens`` as in a `SavedSource`."""

    path: str
    plan: AnyNode
    tokens: float | UnsetType = UNSET


AnyMix = MixedSource | MixedBlend | MixedStages | MixedPlan


class RecordedDataset(RaggedDataset):
    """A dataset of which only the recipe and the length are known. It cannot be read."""

    def __init__(self, source: SavedSource) -> None:
        self.source = source

    def __len__(self) -> int:
        return self.source.first_sample + self.source.num_samples

    @property
    def fields(self) -> Fields:
        """None are known."""
        return {}

    @property
    def collated_by(self) -> dict[str, Any]:
        """The same for all, since they stood in one batch."""
        return {}

    @property
    def traits(self) -> Traits:
        """Whether the dataset is endless, and whether the number of its tokens was saved; nothing else is known."""
        has_tokens = self.source.tokens is not UNSET
        return Traits(is_ragged=True, is_endless=self.source.is_endless is True, has_tokens=has_tokens)

    @property
    def shard_bounds(self) -> IntArray | None:
        """As they were saved."""
        shards = None if self.source.first_sample else loaded_shards(self.source.shards)
        return None if shards is None else shards.bounds

    @property
    def num_tokens_per_sample(self) -> float:
        """As it was saved. Raises ConfigError if it was not, since no blend by tokens needed it."""
        if self.source.tokens is UNSET:
            raise ConfigError(f"the file does not say how many tokens a sample of {self.source.path!r} has")
        return self.source.tokens

    @property
    def recipe(self) -> dict[str, Any]:
        """As it was saved."""
        return self.source.recipe

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """Return the numbers of samples."""
        return indices

    def samples(self, addresses: IntArray, watch: SampleWatch | None = None) -> list[Any]:
        """Raise ConfigError."""
        raise self._unread()

    def collate(self, samples: Sequence[Any]) -> Sample:
        """Raise ConfigError."""
        raise self._unread()

    def sample_lengths(self, addresses: IntArray) -> IntArray:
        """Raise ConfigError."""
        raise self._unread()

    def without(self, documents: IntArray, pad_id: int) -> RecordedDataset:
        """Return the dataset with the recipe that it has without some documents."""
        recipe = _masked(self.recipe, documents, pad_id, self.fingerprint)
        return RecordedDataset(msgspec.structs.replace(self.source, recipe=recipe))

    def _unread(self) -> ConfigError:
        return ConfigError(f"{self.source.path or 'the dataset'!r} is known by its recipe only, and cannot be read")

    def describe(self) -> str:
        """Describe the kind of the dataset, and the place of its store."""
        store = self.source.store
        return f"{self.source.recipe.get('kind')}" + ("" if store is None else f" of {store.path}")


def _masked(recipe: dict[str, Any], documents: IntArray, pad_id: int, fingerprint: str) -> dict[str, Any]:
    """Return a recipe with documents masked out, as the datasets themselves do it; see `MapDataset.without`."""
    if recipe.get("kind") != "mapped":
        return excluded_recipe(recipe, documents, pad_id)
    inner = recipe["dataset"]
    hashed = xxhash.xxh3_128_hexdigest(msgspec.json.encode(without_contents(inner), order="sorted"))
    found = {**recipe, "dataset": _masked(inner, documents, pad_id, hashed)}
    if recipe.get("seeded"):
        found["drawn_as"] = recipe.get("drawn_as", fingerprint)
    return found


class PlannedMix(Mix):
    """A mix by its tree, whatever class made that tree.

    Args:
        root: the tree; it holds the paths of all nodes, so that the mix stays where it is.
        datasets: those of its leaves, by path.
        tokens: the mean number of tokens of a sample; None if it is not known.
    """

    def __init__(self, root: Node, datasets: Mapping[str, Dataset], tokens: float | None = None) -> None:
        self.root = root
        self.children = dict(datasets)
        self._tokens = tokens

    @property
    def num_samples(self) -> int | None:
        """Number of samples in one pass; None for a mix without an end."""
        return self.root.num_samples

    @property
    def num_tokens_per_sample(self) -> float:
        """As it was saved."""
        if self._tokens is None:
            raise ConfigError(f"the file does not say how many tokens a sample of {self.root.path!r} has")
        return self._tokens

    def node(self, path: str = "") -> Node:
        """Return the tree. Raises ConfigError for another path than it was saved with."""
        if path != self.root.path:
            raise ConfigError(
                f"the mix {self.root.path!r} was loaded from the file of a run as the tree of its plan, and cannot"
                f" stand at {path!r}: build the data anew, of the same datasets"
            )
        return self.root

    def named(self, path: str = "") -> Iterator[tuple[str, Dataset]]:
        """Yield the datasets with the paths of their leaves."""
        yield from ((place, child) for place, child in self.children.items() if isinstance(child, Dataset))


class SourceTable:
    """The sources of a run, each written once, however many edits name it.

    Args:
        with_tokens: whether to write how many tokens the samples of each have.
    """

    def __init__(self, *, with_tokens: bool) -> None:
        self.sources: list[SavedSource] = []
        self.with_tokens = with_tokens
        self._numbers: dict[tuple[Any, ...], int] = {}

    def number(self, leaf: Leaf, dataset: Dataset, recipe: dict[str, Any] | None = None) -> int:
        """Return the number of a source, which is written if it is new; by default with the recipe of its dataset."""
        store = saved_store(dataset)
        key = leaf.path, leaf.num_samples, leaf.first_sample, dataset.fingerprint, store
        if key not in self._numbers:
            self._numbers[key] = len(self.sources)
            self.sources.append(
                SavedSource(
                    path=leaf.path,
                    num_samples=leaf.num_samples,
                    first_sample=leaf.first_sample,
                    shards=saved_shards(leaf.shards),
                    store=store,
                    recipe=dataset.recipe if recipe is None else recipe,
                    is_endless=True if dataset.traits.is_endless else UNSET,
                    tokens=dataset.num_tokens_per_sample if self.with_tokens else UNSET,
                )
            )
        return self._numbers[key]


def saved_store(dataset: Dataset) -> SavedStore | None:
    """Return where the store behind a dataset lies; None if there is not exactly one."""
    inner: Any = dataset
    while not hasattr(inner, "store") and isinstance(getattr(inner, "dataset", None), Dataset):
        inner = inner.dataset
    if isinstance(inner, RecordedDataset):
        return inner.source.store
    store = getattr(inner, "store", None)
    if not isinstance(store, Store | SampleStore):
        return None
    key = store.keys[0] if isinstance(store, Store) and len(store.keys) > 1 else UNSET
    layout = store.layout_fingerprint
    return SavedStore(
        path=store.path,
        format=store.format,
        fingerprint=layout,
        split_part=getattr(store, "split_part", None),
        key=key,
        contents=UNSET if store.contents_fingerprint == layout else store.contents_fingerprint,
        options=(isinstance(store, Store) and tuple(store.opening.items())) or UNSET,
    )


def is_by_tokens(data: Dataset | Mix) -> bool:
    """Whether any part of a mix is weighed by tokens."""
    if not isinstance(data, Mix):
        return False
    return getattr(data, "unit", None) == "tokens" or any(map(is_by_tokens, data.children.values()))


def saved_mix(data: Dataset | Mix, table: SourceTable, path: str = "") -> AnyMix:
    """Return data in the form that is written."""
    if isinstance(data, Dataset):
        return MixedSource(source=table.number(leaf_of(path, data), data))
    if isinstance(data, Blend) and type(data).node is Blend.node:
        return MixedBlend(
            children=_children(data, table, path),
            numbers={name: _plain(number) for name, number in data.numbers.items()},
            unit=data.unit,
            end=data.end,
            num_samples=data.wanted,
            block_samples=data.block_samples,
        )
    if type(data) is ScheduledBlend:
        return MixedStages(children=_children(data, table, path), stages=data.stages, block_samples=data.block_samples)
    node, datasets = data.node(path), dict(data.named(path))
    numbers = {leaf.path: table.number(leaf, datasets[leaf.path]) for leaf in leaves(node)}
    tokens = data.num_tokens_per_sample if table.with_tokens else UNSET
    return MixedPlan(path=path, plan=saved_node(node, numbers), tokens=tokens)


def _children(data: Mix, table: SourceTable, path: str) -> dict[str, AnyMix]:
    return {name: saved_mix(child, table, joined(path, name)) for name, child in data.children.items()}


def _plain(number: Any) -> int | float | str:
    """Return a weight as JSON has it; fractions and large numbers as texts."""
    if isinstance(number, Fraction) or (isinstance(number, int) and abs(number) >= 1 << 53):
        return str(Fraction(number))
    return int(number) if isinstance(number, int) else float(number)


def loaded_mix(saved: AnyMix, sources: Sequence[SavedSource], datasets: Sequence[Dataset]) -> Dataset | Mix:
    """Return data over the datasets of the sources.

    Raises:
        StateError: a number is that of no source.
        ConfigError: the data contradict themselves.
    """
    if isinstance(saved, MixedSource):
        if not 0 <= saved.source < len(datasets):
            raise StateError(f"the data name source {saved.source}, and there are {len(datasets):,} sources")
        return datasets[saved.source]
    if isinstance(saved, MixedPlan):
        node = loaded_node(saved.plan, [source.leaf for source in sources])
        return planned(node, saved.plan, datasets, sources, None if saved.tokens is UNSET else saved.tokens)
    children = {name: loaded_mix(child, sources, datasets) for name, child in saved.children.items()}
    options: dict[str, Any] = {"block_samples": saved.block_samples, "allow_different_tokenizers": True}
    if isinstance(saved, MixedStages):
        return ScheduledBlend(children, saved.stages, **options)
    numbers = {name: Fraction(number) if isinstance(number, str) else number for name, number in saved.numbers.items()}
    if saved.end == "repeats":
        return Blend(children, repeats=numbers, **options)
    options |= {"unit": saved.unit, "end": saved.end, "num_samples": saved.num_samples}
    return Blend(children, weights=numbers, **options)


def planned(
    node: Node, saved: AnyNode, datasets: Sequence[Dataset], sources: Sequence[SavedSource], tokens: float | None = None
) -> Dataset | Mix:
    """Return a tree over the datasets of its leaves; a tree that is one whole dataset is that dataset."""
    numbers = sorted(_numbers(saved))
    by_path = {sources[number].path: datasets[number] for number in numbers}
    if isinstance(node, Leaf) and node_of("", datasets[numbers[0]]) == node:
        return datasets[numbers[0]]
    return PlannedMix(node, {leaf.path: by_path[leaf.path] for leaf in leaves(node)}, tokens)


def _numbers(saved: Any) -> set[int]:
    """Return the numbers of the sources in a tree."""
    if hasattr(saved, "source"):
        return {saved.source}
    children = saved.children if hasattr(saved, "children") else (saved.child,)
    return set().union(*map(_numbers, children))
