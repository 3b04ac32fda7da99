"""`SampleEncoder`: the outputs of one dataset's samples under a task encoder, with the error policy; and batches.

A batch that the hooks make becomes columns, name -> array or list, as a loader needs them. `EncoderDataset` is the base
class of datasets with a known number of outputs.

`RestoreKey` is the restore key of an encoded sample or unit. It holds everything that is needed to make it again.

    fixed output       ("Encoded", address, ...)                 the number of the sample, with bits of its epoch
    measured output    ("Measured", address, number, ...)        that of the unit, and the number of the output in it
    framed output      ("Framed", path, address, number, ...)    the dataset in the mix, the sample, and its output
    framed pack        ("FramedPack", number, key, key, ...)     which of several packs, and the keys of its outputs

The key of an output ends with the key that the encoded sample had before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, NoReturn, TypeAlias

import msgspec
import numpy as np

from headrace.datasets.dataset import SampleWatch, Traits
from headrace.datasets.media import JoinedMediaDataset, MediaDataset, SampleDataset
from headrace.datasets.media.face import PolicedSamples, for_tensor, without_rows
from headrace.encoders import (
    CallKey,
    EncoderPipeline,
    ErrorPolicy,
    Hook,
    HookFailure,
    TaskEncoder,
    bound_cookers,
    hook_of,
)
from headrace.encoders.pipeline import Output
from headrace.encoders.task_encoder import BoundCooker
from headrace.errors import ConfigError, SkipSample
from headrace.plan import IntArray, KeyArray
from headrace.plan.keys import EpochAddresses, source_key
from headrace.samples.media.batch import fields_of
from headrace.samples.media.sample import BASE_FIELDS

Kind = Literal["Encoded", "Measured", "Framed", "FramedPack"]


class RestoreKey(NamedTuple):
    """What a restore key says; parts that the keys of a ``kind`` do not have are 0 or empty.

    ``within`` is the key that the sample had before, or the keys of the outputs of a pack.
    """

    kind: Kind
    within: tuple[Any, ...]
    address: int = 0
    number: int = 0
    path: str = ""

    @property
    def outputs(self) -> tuple[RestoreKey, ...]:
        """The keys of the outputs in a pack; the key itself for an output."""
        return self.within if self.kind == "FramedPack" else (self,)

    def written(self) -> tuple[Any, ...]:
        """Return the key as it stands in ``__restore_key__``."""
        match self.kind:
            case "Encoded":
                return (self.kind, self.address, *self.within)
            case "Measured":
                return (self.kind, self.address, self.number, *self.within)
            case "Framed":
                return (self.kind, self.path, self.address, self.number, *self.within)
        return (self.kind, self.number, *(one.written() for one in self.within))


def parsed(key: Any) -> RestoreKey | None:
    """Return what a restore key says; None if it is not one of an encoded sample or unit."""
    match key:
        case ("Encoded" as kind, int(address), *within):
            return RestoreKey(kind, tuple(within), address)
        case ("Measured" as kind, int(address), int(number), *within):
            return RestoreKey(kind, tuple(within), address, number)
        case ("Framed" as kind, str(path), int(address), int(number), *within):
            return RestoreKey(kind, tuple(within), address, number, path)
        case ("FramedPack" as kind, int(number), *keys):
            outputs = tuple(one for one in map(parsed, keys) if one is not None and one.kind == "Framed")
            return RestoreKey(kind, outputs, number=number) if 0 < len(outputs) == len(keys) else None
    return None


def of_framed(key: Any) -> RestoreKey:
    """Return what the restore key of a framed output or pack says. Raises ConfigError for any other key."""
    found = parsed(key)
    if found is None or found.kind not in ("Framed", "FramedPack"):
        raise ConfigError(f"{key!r:.80} is not a restore key of a framed source")
    return found


def restore_key_of(sample: Any) -> tuple[Any, ...]:
    """Return the restore key of a sample or a dict; empty if it has none."""
    found = sample.get("__restore_key__") if isinstance(sample, Mapping) else getattr(sample, "__restore_key__", None)
    return tuple(found or ())


def keyed(sample: Any, key: RestoreKey, encoder: str) -> Any:
    """Return the sample with a restore key.

    Raises:
        ConfigError: the sample has no place for a restore key.
    """
    written = key.written()
    if isinstance(sample, MutableMapping):
        sample["__restore_key__"] = written
        return sample
    if isinstance(sample, tuple) and "__restore_key__" in getattr(sample, "_fields", ()):
        return sample._replace(__restore_key__=written)  # type: ignore[attr-defined]
    try:
        sample.__restore_key__ = written
    except (AttributeError, TypeError):
        raise ConfigError(
            f"{encoder} returned a {type(sample).__name__} without __restore_key__; derive its type from Sample, and"
            " make it by derive_from(sample, ...), or return a dict"
        ) from None
    return sample


Media: TypeAlias = MediaDataset | JoinedMediaDataset
Encoder: TypeAlias = TaskEncoder[Any, Any, Any, Any]


class SampleEncoder(PolicedSamples):
    """Makes the outputs of samples, none, one or several each. It has no state but the faults that it counts.

    An address is the number of a sample together with bits of the epoch's key, so that a hook draws other random
    numbers in every epoch, but the same ones on any rank or worker and after a resume.

    Args:
        dataset: a dataset of media, see `cooked`.
        pipeline: the hooks.
        seed: seed of the random numbers in hooks, in addition to that of the order.
        errors: what happens when samples cannot be made.
        may_skip: whether a sample may have no output. Then `SkipSample` leaves it out and is not a fault; otherwise it
            is one.
        path: path of the dataset in a mix; a dataset with two paths draws other numbers at each.

    Raises:
        ConfigError: not a policy.
    """

    def __init__(
        self,
        dataset: Media,
        pipeline: EncoderPipeline,
        *,
        seed: int,
        errors: ErrorPolicy | None,
        may_skip: bool,
        path: str = "",
    ) -> None:
        super().__init__(dataset, errors, seed=seed, path=path)
        self.pipeline = pipeline
        self.key = source_key(seed, path, "encoder")
        self._may_skip = may_skip
        self._addresses = EpochAddresses.of(len(dataset))
        self._kind = type(pipeline.encoder).__name__

    @property
    def _used(self) -> Sequence[Hook]:
        return (*self.pipeline.used, *super()._used)

    @property
    def unrestorable(self) -> str | None:
        """The first hook in use that is not marked ``@stateless``, so that nothing can be made again; or None."""
        found = super().unrestorable
        return None if found is None else f"{self._kind}.{found}"

    def addresses(self, indices: IntArray, keys: KeyArray | None) -> IntArray:
        """(n,) int64: addresses of samples, see `EpochAddresses`."""
        return self._addresses.join(indices, keys)

    def indices(self, addresses: IntArray) -> IntArray:
        """(n,) int64: numbers of samples, without the bits of the epoch."""
        return self._addresses.indices(addresses)

    def place(self, address: int) -> CallKey:
        """Return what the random numbers of a sample depend on."""
        return CallKey(self.key, address)

    @property
    def may_draw(self) -> bool:
        """Whether a hook or cooker may draw from the global generators; `check_thread` then refuses threads."""
        return any(hook.may_draw for hook in self._used)

    def makers(self, addresses: IntArray, watch: SampleWatch | None = None) -> list[Callable[[], list[Output]]]:
        """Read samples together; each returned function makes the outputs of one, or of its substitute.

        See `PolicedSamples.makers`; also raises ConfigError in a thread, see `EncoderPipeline.check_thread`.
        """
        self.pipeline.check_thread(*([] if self.cook is None else [self.cook]))
        return super().makers(addresses, watch)

    def left_out(self, failure: HookFailure, address: int, watch: SampleWatch) -> None:
        """Count a sample that failed after its place was settled and is left out there; or raise, as the policy says.

        Raises:
            SampleError, and what hooks raise: the policy is to raise, or the sample is not to blame.
        """
        index = int(self.indices(np.array([address], dtype=np.int64))[0])
        try:
            self._count(failure, address, index, [], watch)
        except Exception as error:
            raise watch.placed(error)  # noqa: B904 -- the same error, which has its cause

    def _attempt(self, address: int, make: Callable[[], Any], watch: SampleWatch) -> list[Output]:
        try:
            return watch.encoding(make, partial(self.pipeline.encode, place=self.place(address), cook=self.cook))
        except HookFailure as failure:
            if self._may_skip and isinstance(failure.error, SkipSample):
                return []
            raise

    def _words(self, hook: str, index: int) -> str:
        return super()._words(f"{hook} of {self._kind}", index)


def cooked(dataset: Any, encoder: Encoder) -> Media:
    """Return a dataset of media whose samples, if they are crude and have no cooker, are cooked by those of an encoder.

    Raises:
        ConfigError: not a dataset of media; no cooker matches; ``cook_crude_sample`` for samples that have a cooker.
    """
    if not isinstance(dataset, MediaDataset | JoinedMediaDataset):
        already = ", which is encoded already" if isinstance(dataset, EncoderDataset) else ""
        raise ConfigError(
            f"a task encoder is for samples of media, of a MediaDataset or a JoinedMediaDataset; found {dataset!r}"
            f"{already}"
        )
    if not isinstance(dataset, MediaDataset) or not dataset.mapper.is_crude:
        return dataset
    cookers = bound_cookers(encoder)
    if dataset.cooker is None:
        return dataset.cooked_by(cookers) if cookers else dataset
    own = hook_of(encoder, "cook_crude_sample").is_overridden
    if own and not isinstance(dataset.cooker.cook, BoundCooker):
        raise ConfigError(
            f"{type(encoder).__name__} overrides cook_crude_sample, and {dataset!r} has a cooker already, which"
            " does not call it; pass a dataset without cookers, or use EncodedDataset.open(path, encoder)"
        )
    return dataset


def columns_of(batch: Any, encoder: str) -> dict[str, Any]:
    """Return the fields of a dict, dataclass or named tuple; arrays that cannot become tensors become lists.

    Raises:
        ConfigError: the batch is none of these.
    """
    try:
        found = fields_of(batch)
    except ConfigError as error:
        raise ConfigError(f"the batch that {encoder} returned has no fields, which a loader needs: {error}") from None
    for name, value in found.items():
        if isinstance(value, np.ndarray):
            column = for_tensor(value)
            found[name] = list(value) if column is None else column
    return found


def one_batch(
    pipeline: EncoderPipeline, samples: Sequence[Any], place: CallKey, key: Any, kind: str, instead: str
) -> Any:
    """Return the batch that begins with a sample at ``place``, with the restore ``key``, as the hooks make it.

    ``kind``, the kind of source, and ``instead``, what to do instead of leaving a batch out, are for messages.

    Raises:
        ConfigError: `SkipSample`; another number of batches than one.
    """
    pipeline.check_thread()
    encoder = type(pipeline.encoder).__name__
    try:
        batches = pipeline.batch(samples, place)
    except HookFailure as failure:
        where = f"the batch that begins with {key!r}"
        raise_failure(failure, encoder, where, skipped=f": {kind} cannot leave a batch out; {instead}")
    if len(batches) != 1:
        raise ConfigError(
            f"{encoder}.encode_batch returned {len(batches)} batches; {kind} needs exactly one: return one, or yield"
            " several outputs of a sample in encode_sample"
        )
    return batches[0]


def packed(
    pipeline: EncoderPipeline,
    outputs: Sequence[Output],
    key: Any,
    instead: str,
    on_failure: Callable[[int, HookFailure], None] | None = None,
) -> list[Output]:
    """Return the packs made of selected outputs, usually one; none if a generator skips them.

    The ``key`` of the first output, and ``instead``, what to do instead of leaving a pack out, are for messages;
    ``on_failure`` is that of `EncoderPipeline.pack`.

    Raises:
        ConfigError: `SkipSample` otherwise, since the pack has its place already; also whatever hooks raise.
    """
    try:
        return pipeline.pack(outputs, on_failure)
    except HookFailure as failure:
        hook = failure.hook
        if isinstance(failure.error, SkipSample) and hook.name == "pack_selected_samples" and hook.is_generator:
            return []
        where = f"the pack that begins with {key!r}, of {len(outputs)} samples"
        skipped = f", has its place already; {instead}"
        raise_failure(failure, type(pipeline.encoder).__name__, where, skipped=skipped)


def raise_failure(failure: HookFailure, encoder: str, where: str, *, skipped: str | None = None) -> NoReturn:
    """Raise the error of a hook, with a note that says where.

    Raises:
        ConfigError: for `SkipSample`, if ``skipped`` says why nothing can be left out there.
    """
    error = failure.error
    place = f"in {failure.hook.name} of {encoder}: {where}"
    if skipped is not None and isinstance(error, SkipSample):
        raise ConfigError(f"SkipSample {place}{skipped}") from error
    error.add_note(place)
    raise error from error.__cause__


def check_restorable(hook: str | None) -> None:
    """Raise ConfigError if ``hook`` names one that is not marked ``@stateless``."""
    if hook is not None:
        raise ConfigError(
            f"{hook} is not marked @stateless: it may depend on what ran before, so that no sample can be made again;"
            " mark it"
        )


class EncoderDataset(SampleDataset):
    """Samples that the hooks of a task encoder make, whose number is known: the base of fixed and measured datasets.

    Attributes:
        key_kind: the kind of the samples' restore keys.
        batch_words: for messages, the kind of source, and what to do instead of leaving a batch out.
    """

    key_kind: ClassVar[Kind]
    batch_words: ClassVar[tuple[str, str]]

    def __init__(
        self, dataset: Media, pipeline: EncoderPipeline, *, seed: int, errors: ErrorPolicy | None, may_skip: bool
    ) -> None:
        self.pipeline = pipeline
        self.dataset = cooked(dataset, pipeline.encoder)
        self.outputs = SampleEncoder(self.dataset, pipeline, seed=seed, errors=errors, may_skip=may_skip)
        self.store = self.dataset.store
        self.encoder = pipeline.encoder
        self.seed = seed
        self.errors = self.outputs.errors
        self.faults = self.outputs.faults

    @property
    def columns(self) -> tuple[str, ...]:
        """Fields that all samples have; others, which hooks add, are known only when samples are read."""
        return BASE_FIELDS

    @property
    def traits(self) -> Traits:
        """What has to be known about the samples. They are unrestorable if a hook is not marked ``@stateless``."""
        outputs = self.outputs
        return msgspec.structs.replace(super().traits, unrestorable=outputs.unrestorable, may_draw=outputs.may_draw)

    def samples(self, addresses: IntArray, watch: SampleWatch | None = None) -> list[Any]:
        """Return samples; see `SampleDataset.samples`. Errors of a hook get a note that names hook and sample."""
        with self.pipeline:
            return super().samples(addresses, watch)

    def collate(self, samples: Sequence[Any]) -> Any:
        """Return samples as one batch, made by ``batch`` and ``encode_batch``, in columns.

        Without samples it is the batch of the first sample without its row, so that a rank that has no samples has the
        same fields. If a sample is a whole batch of one group, there must be one.
        """
        if not samples:
            # Faults of this sample belong to the batch that really holds it, so no reader watches.
            first = self.samples(self.locate(np.zeros(1, dtype=np.int64)))
            return without_rows(self.collate(first), len(first[0]) if self.traits.is_group_batches else 1)
        members = of_one_group(samples) if self.traits.is_group_batches else samples
        key = restore_key_of(members[0])
        found = parsed(key)
        if found is None or found.kind != self.key_kind:
            raise ConfigError(
                f"{members[0]!r:.80} has no restore key of {type(self).__name__}; collate what `samples` returns"
            )
        batch = one_batch(self.pipeline, members, self.outputs.place(found.address), key, *self.batch_words)
        return self.columns_of(batch)

    def columns_of(self, batch: Any) -> dict[str, Any]:
        """Return a batch that the hooks made in columns, see `columns_of`."""
        return columns_of(batch, type(self.encoder).__name__)

    def address_of(self, restore_key: Any) -> int | None:
        """Return the address in a restore key of this dataset; None for other keys."""
        key = parsed(restore_key)
        if key is None or key.kind != self.key_kind or key.address < 0:
            return None
        return key.address if self.indices(np.array([key.address]))[0] < len(self) else None

    def restore_sample(self, restore_key: Any) -> Any:
        """Make the sample of a restore key again, bit for bit; for the list of keys of a batch, the batch.

        Raises:
            ConfigError: not a key of this dataset, its samples are no longer those that it was made of, or a hook is
                not ``@stateless``.
        """
        check_restorable(self.traits.unrestorable)
        if isinstance(restore_key, list):
            made = [self.restore_sample(key) for key in restore_key]
            return self.collate([made] if self.traits.is_group_batches else made)
        unit = super().restore_sample(restore_key)
        members = unit if self.traits.is_group_batches else [unit]
        same = [one for one in members if restore_key_of(one) == restore_key]
        if not same:
            raise ConfigError(
                f"{restore_key!r:.80} now makes {[restore_key_of(one) for one in members]!r:.80}: the data or the"
                " policy has changed, or the facts or the form of measured units"
            )
        return same[0]


def of_one_group(units: Sequence[Any]) -> Sequence[Any]:
    """Return the samples of the only unit, a batch of one group. Raises ConfigError for several units."""
    if len(units) > 1:
        raise ConfigError(
            f"a unit is a whole batch of one group, and {len(units)} units were to make one batch: use"
            " micro_batch_size=1; global batches count units"
        )
    return units[0] if units else ()
