"""`MapStyleDataset`: samples of anything that has a length and items, as datasets of torch and Hugging Face have.

    dataset[i]  or  dataset.__getitems__([i, ...])  -->  collate_fn  -->  batch

Nothing looks into a sample. What draws random numbers from the global generators, as augmentation does, finds them
seeded by the position in the run, and the generators of the training loop are left as they were.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property, partial
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import msgspec
import numpy as np
import xxhash
from numpy.typing import ArrayLike

from headrace.config import check_choice, whole
from headrace.datasets.dataset import Dataset, Fields, RaggedDataset, Sample, SampleWatch, Tell, Traits
from headrace.datasets.media.face import PolicedSamples
from headrace.datasets.mix import Mix, wrong_data
from headrace.datasets.origins import Origin, Origins
from headrace.encoders import ErrorPolicy
from headrace.encoders.pipeline import READING, SavedGenerators
from headrace.errors import ConfigError
from headrace.plan import IntArray, KeyArray
from headrace.plan.keys import derive, source_key
from headrace.plan.recipe import recorded_name
from headrace.stores import SampleStore, Store

if TYPE_CHECKING:
    from headrace.datasets.run import Located, Run

Seeded = Literal["batch", "sample", False]

BATCH: Final = "batch"
"""The field of a loader's batch that holds what ``collate_fn`` returned."""

_STREAM: Final = (
    "it is a stream: it has no samples by number, and so no order that a resume could find again. Load it with a"
    " length, as datasets.Dataset.from_parquet(...) or datasets.load_dataset(..., streaming=False) do without copying"
    " it into memory"
)


class MapStyleDataset(RaggedDataset):
    """Samples of any dataset with a length and items: torch's, Hugging Face's, a list, or one of your own.

    A `Run`, a `Blend` and all other mixes make one of such a dataset by themselves. Make it yourself to say how its
    samples become a batch, how long they are, or what happens to bad ones. In a batch of a `Loader`, ``batch["batch"]``
    is what ``collate_fn`` returned; `headrace.DataLoader` yields that alone.

    **Identity.** A saved state belongs to datasets of the same type and length that have the same ``version``, if it is
    given, or else the same ``_fingerprint``, as Hugging Face's have, or ``fingerprint``. Samples are never read for it.
    So it cannot see that a file below, or the code of ``__getitem__`` or ``collate_fn``, was changed: say that by
    another ``version``. The order of a dataset that lists files as the disk does is not seen, either: sort such a list.

    **Random numbers.** With ``seeded="batch"`` the global generators of Python, NumPy and torch are seeded for each
    micro-batch, from the seed of the order and the position of its first sample, which no other epoch has. A resume on
    the same number of ranks then draws the same numbers. ``"sample"`` seeds them for each sample, so that these are the
    same on any number of ranks and for any size of micro-batches; ``__getitems__`` is not used then. With False they
    are left alone, and what a sample draws depends on what ran before it.

    Args:
        dataset: has ``__len__`` and ``__getitem__``. ``__getitems__`` is used if it is there.
        collate_fn: makes a batch of a list of samples; by default torch's ``default_collate``.
        lengths: (len(dataset),) integers: how long each sample is, for bucketing.
        indices: (n,) integers: the samples to use, in their order without shuffling; None is all of them.
        version: a name for the contents, in place of a fingerprint. Pass one for a dataset of Hugging Face that gets
            another fingerprint each time it is prepared, as after a ``map`` with a function that cannot be hashed.
        seeded: what random numbers depend on.
        errors: what happens to samples that raise; by default the error is raised.

    Raises:
        ConfigError: the dataset has no length or no items, or is a stream; ``lengths`` or ``indices`` do not fit it.

    Example:
        >>> words = ["mill", "wheel", "water", "channel"]
        >>> dataset = headrace.MapStyleDataset(words, collate_fn=list)
        >>> run = headrace.Run(dataset, global_batch_size=2, order=headrace.Order(seed=1), epochs=1)
        >>> sorted(word for batch in headrace.Loader(run, micro_batch_size=2) for word in batch["batch"])
        ['channel', 'mill', 'water', 'wheel']
    """

    def __init__(
        self,
        dataset: Any,
        *,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        lengths: ArrayLike | None = None,
        indices: ArrayLike | None = None,
        version: str | int | None = None,
        seeded: Seeded = "batch",
        errors: ErrorPolicy | None = None,
    ) -> None:
        if (why := why_not_map_style(dataset)) is not None:
            raise ConfigError(f"dataset is {dataset!r:.80}; {why}")
        if collate_fn is not None and not callable(collate_fn):
            raise ConfigError(f"collate_fn is {collate_fn!r:.80}; expected a function that makes a batch of samples")
        check_choice("seeded", seeded, get_args(Seeded))
        self.items = dataset
        self.num_items = _length_of(dataset)
        self.indices = None if indices is None else _numbers("indices", indices)
        if self.indices is not None and self.indices.size:
            least, most = int(self.indices.min()), int(self.indices.max())
            if least < 0 or most >= self.num_items:
                raise ConfigError(
                    f"indices go from {least:,} to {most:,}, and the dataset has {self.num_items:,} samples"
                )
        self.lengths = None if lengths is None else _numbers("lengths", lengths)
        if self.lengths is not None and len(self.lengths) != self.num_items:
            raise ConfigError(
                f"there are {len(self.lengths):,} lengths for {self.num_items:,} samples: give one for each sample of"
                " the dataset"
            )
        self.collate_fn = collate_fn
        self.version = version
        self.seeded: Seeded = seeded
        self._policed = _PolicedItems(self, errors)

    def __len__(self) -> int:
        return self.num_items if self.indices is None else len(self.indices)

    @property
    def fields(self) -> Fields:
        """Empty: a sample is whatever the dataset returns."""
        return {}

    @property
    def traits(self) -> Traits:
        """What has to be known about the samples before one is read."""
        return Traits(
            is_ragged=True,
            is_opaque=True,
            is_seeded=self.seeded is not False,
            has_tokens=False,
            holds_interpreter=True,
            may_draw=True,
        )

    @property
    def name(self) -> str:
        """The type of the dataset with its module."""
        return recorded_name(type(self.items))

    @property
    def num_tokens_per_sample(self) -> float:
        """The mean of ``lengths``. Raises ConfigError without them, and so does a blend by tokens."""
        if self.lengths is None:
            raise ConfigError(f"{self.name}: it is not known how long samples are: pass lengths=, or blend by samples")
        return float(self.lengths.mean())

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """The identity of the dataset, and which of its samples are used."""
        recipe: dict[str, Any] = {"kind": "map_style", "type": self.name, "num_samples": self.num_items}
        names = [] if self.version is not None else ["_fingerprint", "fingerprint"]
        found = [getattr(self.items, name, None) for name in names]
        if self.version is not None:
            recipe["version"] = self.version
        elif prints := [one for one in found if isinstance(one, str)]:
            recipe["fingerprint"] = prints[0]
        if self.indices is not None:
            recipe["indices"] = xxhash.xxh3_128_hexdigest(self.indices.tobytes())
        return recipe

    @property
    def collated_by(self) -> dict[str, Any]:
        """The function that makes batches, which sources of a blend share."""
        return {"kind": "map_style", "collate_fn": repr(self.collate_fn)}

    def locate(self, indices: IntArray, keys: KeyArray | None = None) -> IntArray:
        """(n,) int64: numbers of samples in the dataset, the same in every epoch."""
        return indices if self.indices is None else self.indices[indices]

    def sample_lengths(self, addresses: IntArray) -> IntArray:
        """(n,) int64: those that were given. Raises ConfigError without them."""
        if self.lengths is None:
            raise ConfigError(f"{self.name}: it is not known how long samples are: pass lengths= for bucketing")
        return self.lengths[addresses]

    def samples(self, addresses: IntArray, watch: SampleWatch | None = None) -> list[Any]:
        """Return what the dataset returns for some numbers, read together if it can.

        Raises:
            ConfigError: the dataset has another length than it had.
            SampleError: too many samples in a row could not be made.
            Exception: what the dataset raised, with notes that name the sample.
        """
        if len(self.items) != self.num_items:
            found = _length_of(self.items)
            raise ConfigError(
                f"{self.name} had {self.num_items:,} samples when the run was made, and has {found:,} now: the order"
                " follows from the length, so make the run anew for a dataset that was changed"
            )
        watch = watch or SampleWatch()
        if self.seeded != "sample" and len(addresses):
            self._seed(watch)
            try:
                return watch.make_together(addresses, self._read)
            except ConfigError:
                raise
            except Exception:
                # Made one by one, to find the sample, with the random numbers that it has where all goes well.
                self._seed(watch)
        return watch.make(addresses, self._policed.makers(addresses, watch))

    def _read(self, addresses: IntArray, tell: Tell | None) -> list[Any]:
        numbers, items = addresses.tolist(), self.items
        together = getattr(items, "__getitems__", None)
        if together is not None:
            if tell is not None and numbers:
                tell(numbers[0])
            samples = list(together(numbers))
            if len(samples) != len(numbers):
                raise ConfigError(f"__getitems__ returned {len(samples)} samples for {len(numbers)} numbers")
            return samples
        if tell is None:
            return [items[number] for number in numbers]
        samples = []
        for number in numbers:
            tell(number)
            samples.append(items[number])
        return samples

    functions: Final = ()
    """No code of the user but the dataset itself makes samples."""

    def makers(self, addresses: IntArray, watch: SampleWatch | None = None) -> list[Callable[[], Any]]:
        """Return functions, each of which makes one sample."""
        return [partial(self._made, number, watch) for number in addresses.tolist()]

    def _made(self, number: int, watch: SampleWatch | None) -> Any:
        if self.seeded == "sample" and watch is not None:
            self._seed(watch)
        return self.items[number]

    def _seed(self, watch: SampleWatch) -> None:
        if self.seeded and watch.seed is not None and (position := watch.position) is not None:
            GENERATORS.seed(derive(_generators_key(watch.seed), position), ("random", "numpy", "torch"))

    def collate(self, samples: Sequence[Any]) -> Sample:
        """Return what ``collate_fn`` makes of samples, as the field ``batch``; None of no samples."""
        if not samples:
            return {BATCH: None}  # type: ignore[dict-item]
        collate = self.collate_fn
        if collate is None:
            from torch.utils.data import default_collate

            collate = default_collate
        return {BATCH: collate(list(samples))}

    def origins(self, addresses: IntArray) -> list[Origins]:
        """Return the number of each sample in the dataset."""
        return [(Origin(store=self.name, sample=number),) for number in addresses.tolist()]

    def describe(self) -> str:
        """Describe the dataset in one line."""
        return f"map-style dataset {self.name}"


class _PolicedItems(PolicedSamples):
    """Samples of a `MapStyleDataset`, or their substitutes."""

    dataset: MapStyleDataset  # type: ignore[assignment]

    def __init__(self, dataset: MapStyleDataset, errors: ErrorPolicy | None) -> None:
        super().__init__(dataset, errors)  # type: ignore[arg-type]
        # Whatever the dataset raises for a number, it raises again wherever the sample is made.
        self.cook = msgspec.structs.replace(READING, name="__getitem__", stateless=True)

    @property
    def dataset_name(self) -> str:
        """The type of the dataset."""
        return self.dataset.name

    def _where(self, index: int, error: Exception) -> tuple[None, None]:
        return None, None


def map_style(what: str, found: Any) -> MapStyleDataset:
    """Return a dataset of somebody else's as a `MapStyleDataset`.

    Raises:
        ConfigError: it is something else, which is often taken for a dataset.
    """
    first = found[0] if isinstance(found, list | tuple) and found else found
    is_ours = isinstance(first, Dataset | Mix | Store | SampleStore) or isinstance(
        getattr(found, "data", None), Dataset | Mix
    )
    if is_ours or isinstance(found, str | bytes | PathLike | Mapping) or not hasattr(type(found), "__getitem__"):
        raise ConfigError(wrong_data(what, found))
    return MapStyleDataset(found)


def why_not_map_style(found: Any) -> str | None:
    """Return why something cannot be a source as a map-style dataset; None if it can."""
    kind = type(found)
    if any(one.__name__ == "IterableDataset" for one in kind.__mro__):
        return _STREAM
    if isinstance(found, Dataset):
        return None
    if not hasattr(kind, "__getitem__") or isinstance(found, str | bytes | Mapping):
        return "expected a dataset with __len__ and __getitem__"
    if not hasattr(kind, "__len__"):
        return "it has no __len__: the order is a permutation of all samples, whose number has to be known"
    return None


def _length_of(dataset: Any) -> int:
    try:
        return whole(len(dataset), "the length of the dataset")
    except TypeError as error:
        raise ConfigError(
            f"dataset is {dataset!r:.80}, and its length is not known ({error}): the order is a permutation of all"
            " samples, whose number has to be known"
        ) from error


def _numbers(name: str, values: ArrayLike) -> IntArray:
    found = np.asarray(values)
    if found.ndim != 1 or (found.size and found.dtype.kind not in "iu"):
        raise ConfigError(
            f"{name} are an array of {found.dtype} with shape {found.shape}; expected one row of integers"
        )
    return found.astype(np.int64)


def read_seeded(run: Run, located: Located) -> Sample:
    """Read planned samples as one batch; the generators that are seeded for it are left as they were."""
    with GENERATORS:
        return run.collate(run.samples(located, SampleWatch(seed=run.order.seed if run.traits.is_seeded else None)))


@cache
def _generators_key(seed: int) -> int:
    return source_key(seed, "", "generators")


GENERATORS: Final = SavedGenerators()
"""The global generators of this process, which samples are drawn from within a ``with``."""
