"""What all ways to mix datasets share: a tree of named children that becomes nodes of the plan."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from os import PathLike

from headrace.datasets.dataset import Dataset, shown_fields
from headrace.datasets.tokenizers import check_one_tokenizer
from headrace.errors import ConfigError
from headrace.plan import Leaf, Node, Shards
from headrace.stores import SampleStore, Store


class Mix(ABC):
    """Datasets, or other mixes, by name: `Blend`, `ConcatDataset`, `LimitDataset` and the like.

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
        message += ": cut the store into samples, as headrace.WindowDataset(store, window_tokens=2048)"
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
