"""`Mix`, the base of all ways to mix datasets: a tree of named children that becomes nodes of the plan.

This module also checks what may be mixed: sources with the same fields, made with one tokeniser, and micro-batches that
stay within one source if the mix promises that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from os import PathLike
from pkgutil import resolve_name
from typing import Any, ClassVar, Final

from headrace.config import nearest_or_known
from headrace.datasets.dataset import Dataset
from headrace.errors import ConfigError
from headrace.io import Reader
from headrace.plan import BatchSchedule, Leaf, Node, Order, Shards, Share
from headrace.stores import SampleStore, Store, TokenizerInfo
from headrace.stores.manifest import manifest_of

MAP_STYLE: Final = "headrace.datasets.map_style:map_style"
"""Named here, and imported when such a dataset comes."""


def check_one_tokenizer(sources: Iterable[tuple[str, Dataset]]) -> None:
    """Raise ConfigError if the manifests of two sources, given with their names, name different tokenisers.

    Stores without a manifest or with a damaged one are not compared; `headrace check` reports these. Each manifest is
    read once.
    """
    known: dict[str, TokenizerInfo | None] = {}
    first: tuple[str, Store, TokenizerInfo] | None = None
    for name, dataset in sources:
        for store in stores_of(dataset):
            if not isinstance(store, Store):
                continue
            if store.path not in known:
                known[store.path] = tokenizer_of(store)
            info = known[store.path]
            if info is None:
                continue
            if first is None:
                first = name, store, info
            elif (info.xxh3_128, info.vocab_size) != (first[2].xxh3_128, first[2].vocab_size):
                raise ConfigError(
                    f"the sources hold ids of different tokenisers: {_shown(*first)}, {_shown(name, store, info)}; the"
                    " same id means another token in each. Tokenise one of them again, or pass"
                    " allow_different_tokenizers=True"
                )


def stores_of(dataset: Dataset) -> Iterator[Store | SampleStore]:
    """Yield the stores that a dataset reads, including those of datasets within it."""
    for store in (getattr(dataset, "store", None), *getattr(dataset, "stores", ())):
        if isinstance(store, Store | SampleStore):
            yield store
    for inner in (getattr(dataset, "dataset", None), *getattr(dataset, "datasets", ())):
        if isinstance(inner, Dataset):
            yield from stores_of(inner)


def readers_of(datasets: Iterable[Dataset]) -> tuple[Reader, ...]:
    """Return what reads the files of datasets, each once. O(stores)."""
    stores = (store for dataset in datasets for store in stores_of(dataset))
    return tuple(dict.fromkeys(reader for store in stores for reader in store.readers))


def cache_of(datasets: Iterable[Dataset], order: Order) -> Any:
    """Return the `headrace.Cache` through which datasets are read; None without one. O(stores).

    Their readers are told of the order in which they are going to read.

    Raises:
        ConfigError: they are read through several.
    """
    readers = [one for one in readers_of(datasets) if one.cache is not None]
    for one in readers:
        one.blocks_pass = order.passes_blocks
    found = {one.cache.folder.absolute(): one.cache for one in readers}
    if len(found) > 1:
        raise ConfigError(
            f"these data are read through {len(found)} caches, {', '.join(map(str, sorted(found)))}: open all of them"
            " through the same one, which then counts all reads, and keeps what this node is the home of"
        )
    return next(iter(found.values()), None)


def store_of(dataset: Dataset) -> Store | SampleStore | None:
    """Return the store behind a dataset, through datasets around it; None if there is not exactly one."""
    inner: Any = dataset
    while not hasattr(inner, "store") and isinstance(getattr(inner, "dataset", None), Dataset):
        inner = inner.dataset
    store = getattr(inner, "store", None)
    return store if isinstance(store, Store | SampleStore) else None


def tokenizer_of(store: Store) -> TokenizerInfo | None:
    """Return the tokeniser that the manifest of a store names; None without a manifest, or with a damaged one."""
    found = manifest_of(store)
    return None if found is None else found[1].tokenizer


def _shown(name: str, store: Store, info: TokenizerInfo) -> str:
    return f"{name!r} ({store.path}) of {info.source}, {info.vocab_size:,} ids, xxh3 {info.xxh3_128}"


class Mix(ABC):
    """Datasets or other mixes by name: the base class of `Blend`, `Concat`, `Limit` and others.

    A mix says what comes when and reads nothing. The names on the way to a dataset form its path, from which its order
    is drawn: one dataset at two paths is read in two orders.
    """

    kind: ClassVar[str] = ""
    """Its name in `headrace.datasets.recipes.MIXES`; mixes of a class without one are not written down."""

    children: dict[str, Dataset | Mix]

    @property
    def recipe(self) -> dict[str, Any]:
        """What the mix is made of beside its children, JSON-safe; ``from_recipe`` makes it again."""
        return {}

    @classmethod
    def from_recipe(cls, recipe: Mapping[str, Any], children: dict[str, Dataset | Mix]) -> Mix:
        """Return the mix of a recipe, which is arguments of the class, and of its children."""
        made: Any = cls
        found: Mix = made(children, **recipe, allow_different_tokenizers=True)
        return found

    @property
    @abstractmethod
    def num_samples(self) -> int | None:
        """Number of samples in one pass; None for a mix without an end."""

    @property
    @abstractmethod
    def num_tokens_per_sample(self) -> float:
        """The mean number of tokens over the samples of the mix."""

    @abstractmethod
    def node(self, path: str = "") -> Node:
        """Return the node of the plan that stands for the mix at a path."""

    def datasets(self) -> Iterator[Dataset]:
        """Yield the datasets below, depth first."""
        for _, dataset in self.named():
            yield dataset

    def named(self, path: str = "") -> Iterator[tuple[str, Dataset]]:
        """Yield the datasets below with their paths, depth first."""
        return _named(self.children, path)

    def around(self, wrap: Callable[[Dataset], Dataset]) -> Mix:
        """Return the same mix of other datasets: ``wrap`` of each one, which must have as many samples."""
        # A mix holds children and numbers; these depend on the lengths of the children alone.
        found = copy(self)
        found.children = {
            name: child.around(wrap) if isinstance(child, Mix) else wrap(child) for name, child in self.children.items()
        }
        return found

    def __repr__(self) -> str:
        length = "endless" if self.num_samples is None else f"{self.num_samples:,} samples"
        return f"<{type(self).__name__} of {', '.join(self.children)}: {length}>"


def node_of(path: str, data: Dataset | Mix) -> Node:
    """Return the node of the plan that stands for a dataset or a mix at a path."""
    return data.node(path) if isinstance(data, Mix) else leaf_of(path, data)


def leaf_of(path: str, data: Dataset) -> Leaf:
    """Return the node of the plan that stands for a dataset at a path."""
    bounds = data.shard_bounds
    return Leaf(path, len(data), None if bounds is None else Shards(bounds))


def named_datasets(data: Dataset | Mix) -> dict[str, Dataset]:
    """Return path -> dataset; the path of a single dataset is empty."""
    return dict(data.named()) if isinstance(data, Mix) else {"": data}


def named_path(name: str, paths: Iterable[str]) -> str:
    """Return the path of a source by itself or its last part; a run over a single dataset has the path ``"."``.

    Raises:
        ConfigError: there is no such source, or more than one.
    """
    known = [path or "." for path in paths]
    found = [path for path in known if path == name] or [path for path in known if path.rpartition("/")[2] == name]
    if len(found) > 1:
        raise ConfigError(f"{name!r} is the name of several sources, {found}: use the path")
    if not found:
        raise ConfigError(f"there is no source {name!r}{nearest_or_known(name, known)}")
    return "" if found == ["."] else found[0]


def length_of(data: Dataset | Mix) -> int | None:
    """Return the number of samples in one pass; None for a mix without an end."""
    return data.num_samples if isinstance(data, Mix) else len(data)


def joined(path: str, name: str) -> str:
    """Return the path of a child; a child without a name has the path of its parent."""
    return f"{path}/{name}" if path and name else path or name


def wrong_data(what: str, found: object) -> str:
    """Return the message for a value that is not a dataset or a mix, with advice for what is often taken for one."""
    message = f"{what} is {found!r:.80}; expected a dataset, or a mix of them"
    if isinstance(found, Store):
        message += ": cut the store into samples, for example headrace.WindowDataset(store, seq_len=2048)"
    elif isinstance(found, SampleStore):
        message += ": make samples of the store with headrace.MediaDataset.of(store)"
    elif isinstance(found, str | PathLike):
        message += ": open the path with headrace.open(path), and make a dataset of the store"
    elif isinstance(found, Mapping | list | tuple):
        message += ': mix several datasets by name, for example headrace.Blend({"web": web, "code": code}, weights=...)'
    elif isinstance(getattr(found, "data", None), Dataset | Mix):
        message += f": this {type(found).__name__} is made of one; pass its data"
    return message


def as_data(what: str, found: Any) -> Dataset | Mix:
    """Return a dataset or a mix as it is, and anybody's map-style dataset as a `MapStyleDataset`.

    Raises:
        ConfigError: it is neither.
    """
    if isinstance(found, Dataset | Mix):
        return found
    made: Dataset = resolve_name(MAP_STYLE)(what, found)
    return made


def named_children(children: object) -> dict[str, Dataset | Mix]:
    """Return children as datasets and mixes, see `as_data`. Raises ConfigError unless they are given by name."""
    if not isinstance(children, Mapping):
        raise ConfigError(
            f"the sources of a mix are {children!r:.80}; expected a dict of names and datasets, such as"
            ' {"web": web, "code": code}: the name is part of the path from which the order of a source is drawn'
        )
    return {name: as_data(f"source {name!r}", child) for name, child in children.items()}


def check_children(children: Mapping[str, Dataset | Mix], *, allow_different_tokenizers: bool) -> None:
    """Check that children can be mixed.

    Raises:
        ConfigError: no children; a name that is empty or holds a ``/``; fields that cannot be stacked into one batch;
            different tokenisers.
    """
    if not children:
        raise ConfigError("a mix needs at least one dataset")
    for name in children:
        if not name or "/" in name:
            raise ConfigError(
                f"source name {name!r}: a name must not be empty or hold '/', which separates names in paths"
            )
    leaves = list(_named(children))
    first, expected = leaves[0][0], leaves[0][1].shown_fields
    for name, dataset in leaves[1:]:
        # Samples of all sources go into the same batch arrays, so their fields must be the same.
        if (found := dataset.shown_fields) != expected:
            _check_kinds(leaves[0], (name, dataset))
            raise ConfigError(
                "the sources of a blend must have the same fields to be stacked into a batch: "
                f"{first!r} has {expected}, and {name!r} has {found}"
            )
    if not allow_different_tokenizers:
        check_one_tokenizer(leaves)


def _check_kinds(*leaves: tuple[str, Dataset]) -> None:
    """Refuse a source of tokens beside a source of media, with more advice than a comparison of fields gives."""
    of_tokens = [name for name, dataset in leaves if dataset.traits.has_tokens]
    if len(of_tokens) == 1:
        (media,) = (name for name, dataset in leaves if not dataset.traits.has_tokens)
        raise ConfigError(
            f"source {of_tokens[0]!r} has windows, packs or records of tokens, and {media!r} has samples of media: "
            "they cannot share a batch. Store text to be mixed with media as text, in tars or a .jsonl, and cook it "
            "into the sample type of the others (docs/multimodal.md, texts beside images); documents of a store of "
            "tokens cannot be cooked. Or use two runs"
        )


def _named(children: Mapping[str, Dataset | Mix], path: str = "") -> Iterator[tuple[str, Dataset]]:
    for name, child in children.items():
        place = joined(path, name)
        if isinstance(child, Mix):
            yield from child.named(place)
        else:
            yield place, child


def check_micro_batches(
    block_samples: int,
    schedule: BatchSchedule,
    length: int | None,
    share: Share,
    position: int = 0,
    places: Sequence[int] = (),
) -> None:
    """Refuse micro-batches if one of them would hold samples of two blocks.

    Args:
        block_samples: size of the run's blocks.
        schedule: global batches of the run.
        length: length of the run in samples.
        share: ranks and micro-batch size.
        position: where the run begins or resumes.
        places: other places where blocks are cut, which must not lie within a micro-batch.

    Raises:
        ConfigError: the micro-batch size does not divide the blocks, or steps are not whole micro-batches.
    """
    micro_batch = share.micro_batch_size
    if block_samples % micro_batch:
        allowed = ", ".join(f"{size:,}" for size in range(1, block_samples + 1) if block_samples % size == 0)
        raise ConfigError(
            f"{block_samples:,} consecutive samples come from one source, and micro-batches of {micro_batch:,} would "
            f"lie in two such blocks; allowed are {allowed}"
        )
    if cut := [place for place in (position, *places) if place % micro_batch]:
        raise ConfigError(
            f"the run goes on at sample {position:,}, in a step that is cut at {cut[0]:,}, which is not a multiple of "
            f"the micro-batch size {micro_batch:,}, so that a micro-batch would lie in two blocks of "
            f"{block_samples:,} samples: use a micro-batch size that divides it, or a state between two steps"
        )
    together = share.world_size * micro_batch
    ends = [*(schedule.begin(first) for first, _ in schedule.pieces[1:]), None]
    sizes = {size for (_, size), end in zip(schedule.pieces, ends, strict=True) if end is None or end > position}
    _, begin, size, _ = schedule.locate(position)
    if position > begin:
        sizes.add(begin + size - position)
    if length is not None:
        sizes.add(length - schedule.begin(schedule.step_of(length)))
    if any(size % together for size in sizes):
        raise ConfigError(
            f"steps from sample {position:,} on, or the rest of one, have {sorted(sizes - {0})} samples, which are not "
            f"multiples of {share.world_size} ranks times micro-batches of {micro_batch:,} = {together:,}; uneven "
            "micro-batches may have two sources: change a size, or leave out a short last step with drop_last=True"
        )
