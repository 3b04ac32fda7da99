"""The base class of task encoders: hooks to override. Which are overridden decides what is done."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from headrace.encoders.context import current
from headrace.encoders.mapping import batched
from headrace.encoders.stateless import stateless
from headrace.errors import ConfigError
from headrace.samples.media import Cooker, SampleDecoder

T_sample = TypeVar("T_sample")
T_encoded_sample = TypeVar("T_encoded_sample")
T_raw_batch = TypeVar("T_raw_batch")
T_batch = TypeVar("T_batch")


class TaskEncoder(Generic[T_sample, T_encoded_sample, T_raw_batch, T_batch]):
    """What makes samples of a dataset into batches for one task. Names and meaning of the hooks are Energon's.

    Override what is needed: ``encode_sample``, or ``preencode_sample`` before packing and ``postencode_sample`` after.
    Hooks are marked with ``@stateless``; one that is not may hold state, and then no sample can be made again.

    Attributes:
        cookers: for crude samples; the first that matches the subflavors of a dataset is used.
        decoder: how parts become values; None hands out bytes.
        version: of what the hooks do. They are known by their names alone: write another one here whenever their
            results change.
    """

    cookers: Sequence[Cooker] = ()
    decoder: SampleDecoder | None = SampleDecoder()
    version: str = ""
    __default_failure_tolerance__: ClassVar[int] = 100

    @stateless(restore_seeds=())
    def cook_crude_sample(self, sample: Any, cooker: Cooker, aux: Mapping[str, Any]) -> Any:
        """A sample of a crude one.

        Args:
            sample: the parts, in a dict.
            cooker: the one that was chosen for the dataset.
            aux: the auxiliary stores by name, and ``primary`` and ``cache`` where the cooker wants them.
        """
        others = {name: store for name, store in aux.items() if name not in ("primary", "cache")}
        return cooker(sample, primary=aux.get("primary"), cache=aux.get("cache"), aux=others)

    @stateless(restore_seeds=())
    def encode_sample(self, sample: T_sample) -> Any:
        """An encoded sample; a generator gives none, one or several."""
        return sample

    @stateless(restore_seeds=())
    def preencode_sample(self, sample: T_sample) -> Any:
        """The first half of encoding, before samples are chosen for packs; may be a generator."""
        return sample

    @stateless(restore_seeds=())
    def postencode_sample(self, sample: Any) -> Any:
        """The second half, for each sample of a pack; one for one."""
        return sample

    @stateless(restore_seeds=())
    def sample_length(self, sample: Any) -> int:
        """How long an encoded sample is, in tokens or what else fills a pack: for `headrace measure` and `BestFit`."""
        raise ConfigError(f"{type(self).__name__}: sample_length must be overridden to know how long samples are")

    @stateless(restore_seeds=())
    def select_samples_to_pack(self, samples: list[Any]) -> list[list[Any]]:
        """Which of some samples go into packs together; each at most once. What is left waits for more."""
        raise ConfigError(f"{type(self).__name__}: select_samples_to_pack must be overridden to pack")

    @stateless(restore_seeds=())
    def pack_selected_samples(self, samples: list[Any]) -> Any:
        """One sample of some; a generator gives several."""
        raise ConfigError(f"{type(self).__name__}: pack_selected_samples must be overridden to pack")

    @stateless(restore_seeds=())
    def batch_group_criterion(self, sample: Any) -> tuple[Hashable, int | None]:
        """Samples of one key are batched together: (key, batch size), the size None where it is given elsewhere."""
        raise ConfigError(f"{type(self).__name__}: batch_group_criterion must be overridden to group")

    @stateless(restore_seeds=())
    def batch(self, samples: list[Any]) -> Any:
        """Samples as one, of the type that they have: arrays padded with zeros and stacked, all else in lists."""
        return batched(samples, type(samples[0]))

    @stateless(restore_seeds=())
    def encode_batch(self, batch: T_raw_batch) -> Any:
        """A batch as the model wants it."""
        return batch

    @property
    def current_sample_index(self) -> int:
        """A number for the sample in hand, no other has it; the same on any number of workers. In a batch, its first.

        Raises:
            ConfigError: no hook is running.
        """
        return current("current_sample_index").sample_index

    @property
    def current_batch_index(self) -> int:
        """A number for the batch in hand. Raises ConfigError: this is not a hook for batches."""
        found = current("current_batch_index").batch_index
        if found is None:
            raise ConfigError(
                "current_batch_index is known in batch and encode_batch: which batch a sample comes into is decided"
                " after it is encoded; use current_sample_index"
            )
        return found

    @property
    def current_seed(self) -> int:
        """64 bits for a generator of the hook's own, ``numpy.random.default_rng(self.current_seed)``: safe in threads.

        Raises:
            ConfigError: no hook is running.
        """
        return current("current_seed").seed
