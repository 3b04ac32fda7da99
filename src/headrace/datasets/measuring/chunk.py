"""The facts of some neighbouring samples: hooks of a task encoder are run, what they give is looked at, not kept.

Keys of groups as they are kept: JSON, one text for each key.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.datasets.dataset import media_origins
from headrace.datasets.encoded.samples import Encoder, Media, SampleEncoder
from headrace.encoders import AugmentTaskEncoder, EncoderPipeline, Fault, FaultLog, Hook, HookFailure, is_of_sample
from headrace.encoders.hooks import encoder_recipe
from headrace.encoders.pipeline import Output
from headrace.errors import ConfigError, HeadraceError, SkipSample
from headrace.stores import kept_name


def key_text(key: Any) -> str:
    """The key as JSON, tuples as arrays; numbers of NumPy become plain ones.

    Raises:
        ConfigError: it holds something else than strings, numbers, booleans, None, and tuples of them.
    """
    return msgspec.json.encode(_plain(key, key)).decode()


def key_of(text: str) -> Any:
    """The key of a text that `key_text` gave."""
    return _tuples(msgspec.json.decode(text))


def _plain(value: Any, key: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, tuple):
        return [_plain(one, key) for one in value]
    if value is None or type(value) in (str, bool):
        return value
    if type(value) is int and -(1 << 63) <= value < 1 << 64:
        return value
    if type(value) is float and math.isfinite(value):
        return value
    raise ConfigError(
        f"batch_group_criterion gave the key {key!r:.80}, in which {value!r:.40} is of type {type(value).__name__}."
        " Measured keys are stored as JSON: give strings, numbers of at most 64 bits, booleans, None, or tuples of them"
    )


def _tuples(value: Any) -> Any:
    return tuple(_tuples(one) for one in value) if isinstance(value, list) else value


FACTS_VERSION: Final = 1
"""Raised by a change to what is measured or how it is stored."""

_READ_SAMPLES: Final = 64
"""Read together."""

MAX_LENGTH: Final = (1 << 32) - 1


class Chunk(NamedTuple):
    """Of samples one after another.

    ``is_good`` (samples,) bool and ``num_outputs`` (samples,) uint32; of each output of these, where it was measured,
    ``lengths`` and ``groups`` uint32, the groups as numbers of ``keys``: (key as JSON, size of its batches or None).
    ``faults`` are those of the samples that are not good.
    """

    arrays: dict[str, NDArray[Any]]
    keys: list[tuple[str, int | None]]
    faults: list[Fault]


class Measuring:
    """Measures samples of one dataset under one task encoder. Pickles where these do.

    Args:
        dataset: of media, as for `EncodedDataset`.
        encoder: the task encoder. Of one that packs, outputs are what ``preencode_sample`` gives.
        settings: JSON-safe, what else decides the facts.

    Raises:
        ConfigError: what `SampleEncoder` refuses; a hook to be measured that is not marked ``@stateless``.
    """

    def __init__(self, dataset: Media, encoder: Encoder, settings: Mapping[str, Any] | None = None) -> None:
        self.pipeline = measured_pipeline(encoder)
        self.outputs = SampleEncoder(dataset, self.pipeline, seed=0, errors=None, may_skip=True)
        self.dataset = self.outputs.dataset
        self.settings = dict(settings or {})
        self._given = dataset, encoder, self.settings
        # Before any hook is run: one may count in an attribute.
        self.recipe = facts_recipe(self.pipeline)
        for hook in self._hooks():
            if not hook.stateless:
                raise ConfigError(
                    f"{type(encoder).__name__}.{hook.name} is not marked @stateless: what it gives may depend on what"
                    " ran before, and then it cannot be measured once for all; mark it"
                )

    def _hooks(self) -> list[Hook]:
        found = [self.pipeline.hooks[name] for name in measured_hooks(self.pipeline)]
        return [*found, *([] if self.outputs.cook is None else [self.outputs.cook])]

    @property
    def name(self) -> str:
        """128 bits in hex over all that decides the facts."""
        return facts_name(self.dataset.fingerprint, self.recipe, self.settings)

    def chunk(self, first: int, end: int, on_samples: Callable[[int], None] = lambda number: None) -> Chunk:
        """The facts of samples ``first`` to ``end`` - 1.

        Raises:
            Exception: what is no fault of a sample, such as a file that cannot be read, or wrong code.
        """
        num_samples = end - first
        counts = np.zeros(num_samples, dtype=np.uint32)
        is_good = np.ones(num_samples, dtype=bool)
        lengths: list[int] = []
        groups: list[int] = []
        keys: dict[tuple[str, int | None], int] = {}
        faults: list[Fault] = []
        with self.pipeline:
            for begin in range(first, end, _READ_SAMPLES):
                some = np.arange(begin, min(begin + _READ_SAMPLES, end), dtype=np.int64)
                for index, make in zip(some.tolist(), self.outputs.makers(some), strict=True):
                    found = self._measured(index, make)
                    if isinstance(found, Fault):
                        is_good[index - first] = False
                        faults.append(found)
                        continue
                    counts[index - first] = len(found)
                    lengths += [row.length for row in found if row.length is not None]
                    groups += [keys.setdefault(row.group, len(keys)) for row in found if row.group is not None]
                on_samples(int(some[-1]) + 1 - first)
        arrays: dict[str, NDArray[Any]] = {"is_good": is_good, "num_outputs": counts}
        if self.pipeline.hooks["sample_length"].is_overridden:
            arrays["lengths"] = np.array(lengths, dtype=np.uint32)
        if measures_groups(self.pipeline):
            arrays["groups"] = np.array(groups, dtype=np.uint32)
        return Chunk(arrays, list(keys), faults)

    def _measured(self, index: int, make: Callable[[], list[Output]]) -> list[_Row] | Fault:
        """The facts of each output of a sample, or why it has to be left out."""
        try:
            return [self._row(one) for one in make()]
        except HookFailure as failure:
            error, hook = failure.error, failure.hook
            if isinstance(error, SkipSample):
                return []
            if not is_of_sample(error, stateless=hook.stateless):
                error.add_note(f"in {hook.name}: sample {index:,} of {self.dataset.store.path}")
                raise error from error.__cause__
            return self._fault(index, hook, error)
        except Exception:
            # Those of the sample are in the log, all others are not.
            log, self.outputs.faults = self.outputs.faults, FaultLog()
            if not log.total:
                raise
            return log.faults[0]

    def _row(self, one: Output) -> _Row:
        length = group = None
        if self.pipeline.hooks["sample_length"].is_overridden:
            length = self.pipeline.length(one)
            if length > MAX_LENGTH:
                kind = type(self.pipeline.encoder).__name__
                raise ConfigError(f"{kind}.sample_length gave {length:,}; lengths are stored in 32 bits")
        if measures_groups(self.pipeline):
            key, size = self.pipeline.criterion(one)
            group = key_text(key), size
        return _Row(length, group)

    def _fault(self, index: int, hook: Hook, error: Exception) -> Fault:
        store = self.dataset.store
        shard = key = None
        try:
            origin = media_origins(store, np.array([index], dtype=np.int64))[0][0]
            shard, key = origin.shard, origin.key
        except HeadraceError:  # the fault that is told is the one that was met first
            pass
        return Fault(
            source=store.path,
            index=index,
            shard=shard,
            key=key,
            address=index,
            attempt=0,
            hook=hook.name,
            kind=type(error).__name__,
            reason=str(error),
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return Measuring, self._given


class _Row(NamedTuple):
    length: int | None
    group: tuple[str, int | None] | None


def measured_pipeline(encoder: Encoder) -> EncoderPipeline:
    """The hooks as they are run for measured sources: one that packs does so after the samples were chosen."""
    found = EncoderPipeline(encoder)
    return EncoderPipeline(encoder, packing=True) if found.hooks["pack_selected_samples"].is_overridden else found


def measures_groups(pipeline: EncoderPipeline) -> bool:
    """Whether outputs have groups; of an encoder that packs, only its packs have."""
    return pipeline.groups and not pipeline.packing


def measured_hooks(pipeline: EncoderPipeline) -> list[str]:
    """Names of the user's hooks that decide the facts."""
    names = ["cook_crude_sample", "encode_sample", "preencode_sample", "sample_length"]
    if not pipeline.packing:
        names += ["postencode_sample", "batch_group_criterion"]
    return sorted(name for name in names if pipeline.hooks[name].is_overridden)


def facts_recipe(pipeline: EncoderPipeline) -> dict[str, Any]:
    """JSON-safe: what of an encoder decides the facts, by names, version and plain attributes."""
    recipe = {
        **encoder_recipe(pipeline.encoder),
        "hooks": measured_hooks(pipeline),
        "packing": pipeline.packing,
        "attributes": _attributes(pipeline.encoder),
    }
    # As it comes back from a file.
    decoded: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(recipe))
    return decoded


def _attributes(encoder: Encoder) -> dict[str, Any]:
    """Numbers, texts and switches that the encoder itself holds, such as arguments that it was made with."""
    within = _attributes(encoder._task_encoder) if isinstance(encoder, AugmentTaskEncoder) else {}
    own = {
        name: _as_json(value)
        for name, value in vars(encoder).items()
        if not name.startswith("_") and type(value) in _PLAIN
    }
    return {**own, **({"within": within} if within else {})}


_PLAIN: Final = (str, int, float, bool, type(None))


def _as_json(value: Any) -> Any:
    """The value; as text what JSON would lose: infinity, numbers beyond 64 bits, half of a character."""
    try:
        same = msgspec.json.decode(msgspec.json.encode(value)) == value
    except (OverflowError, UnicodeEncodeError):
        same = False
    return value if same else ascii(value)


def facts_name(dataset: str, recipe: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """What facts are kept by: 128 bits over the fingerprint of the dataset, the encoder, and this version."""
    return kept_name("facts", FACTS_VERSION, dataset, dict(recipe), dict(settings))
