"""What all ways to mix datasets share: a tree of named children, of one tokeniser, that becomes nodes of the plan.

How many consecutive samples of a mix come from one source, where a mix promises it.

Whether the sources of a blend hold ids of one tokeniser, as the manifests beside their stores say.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import gcd
from os import PathLike

from headrace.datasets.dataset import Dataset, shown_fields
from headrace.errors import ConfigError, StoreError
from headrace.plan import BatchSchedule, Branch, ConcatNode, Inner, Leaf, LimitNode, Node, Schedule, Shards, Share
from headrace.stores import SampleStore, Store, TokenizerInfo
from headrace.stores.manifest import find_manifest


def check_one_tokenizer(sources: Iterable[tuple[str, Dataset]]) -> None:
    """Raise ConfigError for two sources, given with their names, whose manifests name different tokenisers.

    Stores without a manifest are not compared, nor are those whose manifest is damaged: `headrace check` tells. Each
    manifest is read once.
    """
    known: dict[str, TokenizerInfo | None] = {}
    first: tuple[str, Store, TokenizerInfo] | None = None
    for name, dataset in sources:
        for store in _stores(dataset):
            if store.path not in known:
                known[store.path] = _tokenizer(store)
            info = known[store.path]
            if info is None:
                continue
            if first is None:
                first = name, store, info
            elif (info.xxh3_128, info.vocab_size) != (first[2].xxh3_128, first[2].vocab_size):
                raise ConfigError(
                    f"the sources hold ids of different tokenisers: {_shown(*first)}, {_shown(name, store, info)}; the"
                    " same id means another token in each. Tokenise one of them again, or say"
                    " allow_different_tokenizers=True"
                )


def _stores(dataset: Dataset) -> Iterator[Store]:
    """The stores that a dataset reads, those of datasets within it included."""
    for store in (getattr(dataset, "store", None), *getattr(dataset, "stores", ())):
        if isinstance(store, Store):
            yield store
    for inner in (getattr(dataset, "dataset", None), *getattr(dataset, "datasets", ())):
        if isinstance(inner, Dataset):
            yield from _stores(inner)


def _tokenizer(store: Store) -> TokenizerInfo | None:
    try:
        found = find_manifest(store.path)
    except StoreError:
        return None
    return None if found is None else found[1].tokenizer


def _shown(name: str, store: Store, info: TokenizerInfo) -> str:
    return f"{name!r} ({store.path}) of {info.source}, {info.vocab_size:,} ids, xxh3 {info.xxh3_128}"


class Mix(ABC):
    """Datasets, or other mixes, by name: `Blend`, `Concat`, `Limit` and the like.

    A mix says what comes when; it reads nothing. The names on the way to a dataset are its path, from which its order
    is drawn: one dataset at two paths is gone through in two orders.
    """

    children: dict[str, Dataset | Mix]

    @property
    @abstractmethod
    def num_samples(self) -> int | None:
        """The samples of one pass, None for a mix without an end."""

    @property
    @abstractmethod
    def num_tokens_per_sample(self) -> float:
        """The mean over its samples."""

    @abstractmethod
    def node(self, path: str = "") -> Node:
        """The mix as the plan sees it."""

    def datasets(self) -> Iterator[Dataset]:
        """The datasets below, depth first."""
        for _, dataset in self.named():
            yield dataset

    def named(self, path: str = "") -> Iterator[tuple[str, Dataset]]:
        """The datasets below with their paths, depth first."""
        for name, child in self.children.items():
            place = joined(path, name)
            if isinstance(child, Mix):
                yield from child.named(place)
            else:
                yield place, child

    def __repr__(self) -> str:
        length = "endless" if self.num_samples is None else f"{self.num_samples:,} samples"
        return f"<{type(self).__name__} of {', '.join(self.children)}: {length}>"


def node_of(path: str, data: Dataset | Mix) -> Node:
    """A dataset or a mix as the plan sees it at a path."""
    if isinstance(data, Mix):
        return data.node(path)
    # Stores of samples have shards; tokens are one stream, whatever files they lie in.
    bounds = getattr(data, "shard_bounds", None)
    return Leaf(path, len(data), None if bounds is None else Shards(bounds))


def named_datasets(data: Dataset | Mix) -> dict[str, Dataset]:
    """Path -> dataset; of a single dataset the path is empty."""
    return dict(data.named()) if isinstance(data, Mix) else {"": data}


def length_of(data: Dataset | Mix) -> int | None:
    """Samples of one pass, None for what has no end."""
    return data.num_samples if isinstance(data, Mix) else len(data)


def joined(path: str, name: str) -> str:
    """The path of a child; a child without a name stands for its parent."""
    return f"{path}/{name}" if path and name else path or name


def wrong_data(what: str, found: object) -> str:
    """The words for something in the place of a dataset or a mix; a store is what is given most often."""
    message = f"{what} is {found!r:.80}; expected a dataset, or a mix of them"
    if isinstance(found, Store):
        message += ": cut the store into samples, as headrace.WindowDataset(store, seq_len=2048)"
    elif isinstance(found, SampleStore):
        message += ": make samples of the store, headrace.MediaDataset.of(store)"
    elif isinstance(found, str | PathLike):
        message += ": open what lies at the path, headrace.open(path), and make a dataset of it"
    return message


def check_named(children: object) -> None:
    """Raise ConfigError unless children are given by name."""
    if not isinstance(children, Mapping):
        raise ConfigError(
            f"the sources of a mix are {children!r:.80}; expected a dict of names and datasets, as"
            ' {"web": web, "code": code}: the name is part of the place from which the order of a source is drawn'
        )


def check_children(children: Mapping[str, Dataset | Mix], *, allow_different_tokenizers: bool) -> None:
    """Refuse what cannot be mixed.

    Raises:
        ConfigError: no children, a name that is empty or has a ``/``, something that is no dataset, fields that cannot
            be stacked into one batch, different tokenisers.
    """
    if not children:
        raise ConfigError("a mix needs at least one dataset")
    for name, child in children.items():
        if not name or "/" in name:
            raise ConfigError(f"source name {name!r}: a name is not empty and has no '/', which separates the names")
        if not isinstance(child, Dataset | Mix):
            raise ConfigError(wrong_data(f"source {name!r}", child))
    leaves = list(_named(children))
    first, expected = leaves[0][0], shown_fields(leaves[0][1])
    for name, dataset in leaves[1:]:
        # Samples of all sources go into the same batch arrays, so their fields must be the same.
        if (found := shown_fields(dataset)) != expected:
            _check_kinds(leaves[0], (name, dataset))
            raise ConfigError(
                "the sources of a blend must have the same fields to be stacked into a batch: "
                f"{first!r} has {expected} and {name!r} {found}"
            )
    if not allow_different_tokenizers:
        check_one_tokenizer(leaves)


def _check_kinds(*leaves: tuple[str, Dataset]) -> None:
    """Refuse a source of tokens beside one of media, where to compare fields would tell nothing."""
    of_tokens = [name for name, dataset in leaves if dataset.has_tokens]
    if len(of_tokens) == 1:
        (media,) = (name for name, dataset in leaves if not dataset.has_tokens)
        raise ConfigError(
            f"source {of_tokens[0]!r} gives windows, packs or records of tokens, and {media!r} samples of media: they "
            "make no batch together. Beside media put text as text, in tars or a .jsonl, and cook it into the sample "
            "type of the others (docs/multimodal.md, texts beside images); documents of a store of tokens cannot be "
            "cooked. Or feed two runs"
        )


def _named(children: Mapping[str, Dataset | Mix]) -> Iterator[tuple[str, Dataset]]:
    for name, child in children.items():
        if isinstance(child, Mix):
            yield from child.named(name)
        else:
            yield name, child


def homogeneous_samples(root: Node) -> int | None:
    """The largest B such that positions k B to k B + B - 1 are of one source for every k; None where none was asked.

    It is asked where a blend chooses its source for blocks. Around it may stand what keeps its blocks together:

        blocks of 16 in a blend by blocks of 32     16
        blocks of 16, then others from sample 24    8
        blocks of 16 in a blend sample by sample    1
    """
    if not _asked(root):
        return None
    # 0 stands for any number, as gcd has it: of a single source all samples are its own.
    return _together(root) or None


def _asked(node: Node) -> bool:
    if isinstance(node, Leaf):
        return False
    return (isinstance(node, Branch) and node.block_samples > 1) or any(map(_asked, node.children))


def _together(node: Node) -> int:
    if isinstance(node, Leaf):
        return 0
    return gcd(*_borders(node), *map(_together, node.children))


def _borders(node: Inner) -> list[int]:
    """Numbers of which all places are multiples where another child, or another part of one, begins."""
    if isinstance(node, Branch):
        return [node.block_samples]
    if isinstance(node, ConcatNode):
        return [int(length) for length in node.lengths] if len(node.children) > 1 else []
    if isinstance(node, Schedule):
        return [int(begin) for begin in node.begins]
    if isinstance(node, LimitNode):
        # Of a single source a pass may begin anywhere.
        return [node.num_samples, node.child.num_samples or 0] if _together(node.child) else []
    return []  # a repeat begins where its child does


def check_micro_batches(
    block_samples: int,
    schedule: BatchSchedule,
    length: int | None,
    share: Share,
    position: int = 0,
    places: Sequence[int] = (),
) -> None:
    """Refuse micro-batches of which one would hold samples of two blocks.

    Args:
        block_samples: of the run.
        schedule: of the run.
        length: of the run.
        share: ranks and micro-batch.
        position: where the run goes on.
        places: where else blocks are cut, so that no micro-batch may lie across.

    Raises:
        ConfigError: the micro-batch does not divide the blocks, or is not whole everywhere.
    """
    micro_batch = share.micro_batch_size
    if block_samples % micro_batch:
        allowed = ", ".join(f"{size:,}" for size in range(1, block_samples + 1) if block_samples % size == 0)
        raise ConfigError(
            f"{block_samples:,} consecutive samples are of one source, and micro-batches of {micro_batch:,} would lie "
            f"in two such blocks; allowed are {allowed}"
        )
    if cut := [place for place in (position, *places) if place % micro_batch]:
        raise ConfigError(
            f"the run goes on at sample {position:,}, in a step that is cut at {cut[0]:,}, which is no multiple of "
            f"micro-batches of {micro_batch:,}, so that one would lie in two blocks of {block_samples:,} samples: go "
            "on with a micro-batch that divides it, or from a state between two steps"
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
            f"steps, or what is left of one, of {sorted(sizes - {0})} samples from sample {position:,} on are no "
            f"multiples of {share.world_size} ranks times micro-batches of {micro_batch:,} = {together:,}, and uneven "
            "ones may be of two sources: change one of them, or leave out a short last step with drop_last=True"
        )
