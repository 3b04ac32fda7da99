"""The facts of some neighbouring samples: the hooks of a task encoder are run, and their results measured and dropped.

Keys of groups are stored as JSON, one text for each key.

`MeasuredFacts`: the folder of facts, memory-mapped arrays and a summary.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.datasets.dataset import Dataset, SampleWatch
from headrace.datasets.encoded.samples import Encoder, Media, SampleEncoder, cooked
from headrace.datasets.exclusions import rising_numbers
from headrace.encoders import AugmentTaskEncoder, EncoderPipeline, Fault, Hook, HookFailure
from headrace.encoders.pipeline import Output
from headrace.encoders.task_encoder import encoder_recipe
from headrace.errors import ConfigError, SkipSample, StoreError
from headrace.io import as_read_back, check_local
from headrace.plan import IntArray
from headrace.plan.measured import Facts, Grouping
from headrace.plan.recipe import contents_hash, differing_parts
from headrace.stores import check_arrays, find_arrays, kept_name


def key_text(key: Any) -> str:
    """Return the key as JSON, with tuples as arrays and NumPy numbers as plain ones.

    Raises:
        ConfigError: the key holds something else than strings, numbers, booleans, None, and tuples of them.
    """
    return msgspec.json.encode(_plain(key, key)).decode()


def key_of(text: str) -> Any:
    """Return the key that `key_text` turned into a text."""
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
        f"batch_group_criterion returned the key {key!r:.80}, in which {value!r:.40} has the type"
        f" {type(value).__name__}. Measured keys are stored as JSON: return strings, numbers of at most 64 bits,"
        " booleans, None, or tuples of them"
    )


def _tuples(value: Any) -> Any:
    return tuple(_tuples(one) for one in value) if isinstance(value, list) else value


FACTS_VERSION: Final = 1
"""Version of what is measured and how it is stored; raise it with any change."""

_READ_SAMPLES: Final = 64
"""Number of samples that are read together."""

MAX_LENGTH: Final = (1 << 32) - 1


class Chunk(NamedTuple):
    """The facts of consecutive samples.

    ``arrays`` holds ``is_good`` (samples,) bool and ``num_outputs`` (samples,) uint32, and for each output, if
    measured, ``lengths`` and ``groups`` uint32. Groups are numbers of ``keys``: (key as JSON, size of its batches or
    None). ``faults`` are those of the samples that are not good.
    """

    arrays: dict[str, NDArray[Any]]
    keys: list[tuple[str, int | None]]
    faults: list[Fault]


class Measuring:
    """Measures samples of one dataset under one task encoder. Can be pickled if these can.

    Args:
        dataset: a dataset of media, as for `EncodedDataset`.
        encoder: the task encoder. If it packs, outputs are the results of ``preencode_sample``.
        settings: whatever else decides the facts, JSON-safe.

    Raises:
        ConfigError: what `SampleEncoder` refuses; a hook to be measured that is not marked ``@stateless``.
    """

    def __init__(self, dataset: Media, encoder: Encoder, settings: Mapping[str, Any] | None = None) -> None:
        self.pipeline = measured_pipeline(encoder)
        self.outputs = SampleEncoder(cooked(dataset, encoder), self.pipeline, seed=0, errors=None, may_skip=True)
        self.dataset = self.outputs.dataset
        self.settings = dict(settings or {})
        self._given = dataset, encoder, self.settings
        # Computed before any hook runs, since a hook may change an attribute.
        self.recipe = facts_recipe(self.pipeline)
        for hook in self._hooks():
            if not hook.stateless:
                raise ConfigError(
                    f"{type(encoder).__name__}.{hook.name} is not marked @stateless: its result may depend on what ran"
                    " before, and then it cannot be measured once for all; mark it"
                )

    def _hooks(self) -> list[Hook]:
        found = [self.pipeline.hooks[name] for name in measured_hooks(self.pipeline)]
        return [*found, *([] if self.outputs.cook is None else [self.outputs.cook])]

    @property
    def name(self) -> str:
        """Hash over everything that decides the facts, but for the contents of files: 128 bits in hex."""
        return facts_name(self.dataset.fingerprint, self.recipe, self.settings)

    @property
    def contents_name(self) -> str:
        """The same with the contents of files."""
        contents = contents_hash(self.dataset.recipe)
        return facts_name(repr((self.dataset.fingerprint, contents)), self.recipe, self.settings)

    def chunk(self, first: int, end: int, on_samples: Callable[[int], None] = lambda number: None) -> Chunk:
        """Return the facts of samples ``first`` to ``end`` - 1.

        Raises:
            Exception: a fault that is not due to a sample, such as a file that cannot be read, or wrong code.
        """
        num_samples = end - first
        counts = np.zeros(num_samples, dtype=np.uint32)
        is_good = np.ones(num_samples, dtype=bool)
        lengths: list[int] = []
        groups: list[int] = []
        keys: dict[tuple[str, int | None], int] = {}
        faults: list[Fault] = []
        watch = SampleWatch()
        with self.pipeline:
            for begin in range(first, end, _READ_SAMPLES):
                some = np.arange(begin, min(begin + _READ_SAMPLES, end), dtype=np.int64)
                for index, make in zip(some.tolist(), self.outputs.makers(some, watch), strict=True):
                    found = self._measured(index, make, watch)
                    for _, fault in watch.take():
                        is_good[index - first] = False
                        faults.append(fault)
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

    def _measured(self, index: int, make: Callable[[], list[Output]], watch: SampleWatch) -> list[_Row]:
        """Return the facts of each output of a sample; none if it has to be left out, and then ``watch`` says why."""
        try:
            return [self._row(one) for one in make()]
        except HookFailure as failure:
            if not isinstance(failure.error, SkipSample):
                self.outputs.fault_of(failure, index, index, watch)
        except Exception:
            # An error that a sample is to blame for has a fault, all others have none.
            if not watch.faults:
                raise
        return []

    def _row(self, one: Output) -> _Row:
        length = group = None
        if self.pipeline.hooks["sample_length"].is_overridden:
            length = self.pipeline.length(one)
            if length > MAX_LENGTH:
                kind = type(self.pipeline.encoder).__name__
                raise ConfigError(f"{kind}.sample_length returned {length:,}; lengths are stored in 32 bits")
        if measures_groups(self.pipeline):
            key, size = self.pipeline.criterion(one)
            group = key_text(key), size
        return _Row(length, group)

    def __reduce__(self) -> tuple[Any, ...]:
        return Measuring, self._given


class _Row(NamedTuple):
    length: int | None
    group: tuple[str, int | None] | None


def measured_pipeline(encoder: Encoder) -> EncoderPipeline:
    """Return the hooks as they run for measured sources: an encoder that packs does so after samples were chosen."""
    found = EncoderPipeline(encoder)
    return EncoderPipeline(encoder, packing=True) if found.hooks["pack_selected_samples"].is_overridden else found


def measures_groups(pipeline: EncoderPipeline) -> bool:
    """Return whether outputs have groups; with an encoder that packs, only its packs do."""
    return pipeline.groups and not pipeline.packing


def measured_hooks(pipeline: EncoderPipeline) -> list[str]:
    """Return the names of the user's hooks that decide the facts."""
    names = ["cook_crude_sample", "encode_sample", "preencode_sample", "sample_length"]
    if not pipeline.packing:
        names += ["postencode_sample", "batch_group_criterion"]
    return sorted(name for name in names if pipeline.hooks[name].is_overridden)


def facts_recipe(pipeline: EncoderPipeline) -> dict[str, Any]:
    """Return what decides the facts of an encoder: names, version and plain attributes; JSON-safe."""
    recipe = {
        **encoder_recipe(pipeline.encoder),
        "hooks": measured_hooks(pipeline),
        "packing": pipeline.packing,
        "attributes": _attributes(pipeline.encoder),
    }
    found: dict[str, Any] = as_read_back(recipe)
    return found


def _attributes(encoder: Encoder) -> dict[str, Any]:
    """Return numbers, texts and booleans that the encoder holds, such as the arguments that it was made with."""
    within = _attributes(encoder._task_encoder) if isinstance(encoder, AugmentTaskEncoder) else {}
    own = {
        name: _as_json(value)
        for name, value in vars(encoder).items()
        if not name.startswith("_") and type(value) in _PLAIN
    }
    return {**own, **({"within": within} if within else {})}


_PLAIN: Final = (str, int, float, bool, type(None))


def _as_json(value: Any) -> Any:
    """Return the value, or a text for what JSON would lose: infinity, numbers beyond 64 bits, lone surrogates."""
    try:
        same = as_read_back(value) == value
    except (OverflowError, UnicodeEncodeError):
        same = False
    return value if same else ascii(value)


def facts_name(dataset: str, recipe: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """Return the name of stored facts: 128 bits over the dataset's fingerprint, the encoder, and this version."""
    return kept_name("facts", FACTS_VERSION, dataset, dict(recipe), dict(settings))


class FaultCount(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Number of samples that failed in a hook with one kind of error."""

    hook: str
    kind: str
    count: int


class GroupFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One group of outputs: its key as JSON, the size of its batches if the hook returns one, and its outputs."""

    key: str
    size: int | None
    outputs: int


class Summary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of the facts in addition to the arrays.

    Attributes:
        kind: identifies this kind of file.
        version: version of the format.
        dataset: fingerprint of the dataset that was measured.
        encoder: name, version and hooks of the task encoder.
        settings: whatever else was given as deciding the facts.
        samples: number of samples in the dataset.
        bad_samples: samples that could not be made; they have no outputs.
        skipped_samples: good samples that have no outputs: filtered out.
        outputs: number of outputs of all good samples.
        tokens: the sum of their lengths; None if these were not measured.
        groups: by their numbers, in the order in which they first occur; empty if they were not measured.
        faults: those of the bad samples, most frequent first.
        xxh3_128: hash of the bytes of all arrays.
        contents: hash of the contents of the dataset's files, see `headrace.plan.recipe.contents_hash`.
    """

    kind: Literal["headrace.facts"] = "headrace.facts"
    version: int = FACTS_VERSION
    dataset: str
    encoder: dict[str, Any]
    settings: dict[str, Any]
    samples: int
    bad_samples: int
    skipped_samples: int
    outputs: int
    tokens: int | None
    groups: tuple[GroupFacts, ...]
    faults: tuple[FaultCount, ...]
    xxh3_128: str
    contents: dict[str, str] = {}


class MeasuredFacts:
    """The result of `measure`, memory-mapped from its folder.

    Arrays by name: ``is_good`` (samples,) bool, ``num_outputs`` (samples,) unsigned; for each output, if measured,
    ``lengths`` and ``groups`` (outputs,) unsigned; ``faults`` (bytes,) uint8, JSON lines.
    """

    def __init__(self, path: Path, summary: Summary, arrays: Mapping[str, NDArray[Any]]) -> None:
        self.path = path
        self.summary = summary
        self.arrays = dict(arrays)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> MeasuredFacts:
        """Open the facts in a folder. All bytes are hashed, 0.15 s a gigabyte: about 0.05 s for 10^8 samples.

        Raises:
            StoreError: there are none, or they are damaged.
        """
        check_local(path)
        found = cls.find(Path(path))
        if found is None:
            raise StoreError(f"{path}: there are no facts; `headrace measure` prints the folder that it writes")
        return found

    def is_of(self, dataset: Dataset) -> bool:
        """Return whether a dataset was measured, with the same contents of files if both know them."""
        summary = self.summary
        return summary.dataset == dataset.fingerprint and not differing_parts(
            summary.contents, contents_hash(dataset.recipe)
        )

    @classmethod
    def find(cls, path: Path) -> MeasuredFacts | None:
        """Open the facts in a folder, or return None if there are none. Raises StoreError if they are damaged."""
        kept = find_arrays(path.parent, path.name)
        if kept is None:
            return None
        arrays, meta = kept
        try:
            summary = msgspec.json.decode(meta, type=Summary)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise StoreError(f"{path}: these are not facts, or facts of another version: {error}") from error
        if summary.version != FACTS_VERSION:
            raise StoreError(
                f"{path}: facts of version {summary.version}, and this Headrace has {FACTS_VERSION}: measure again"
            )
        rows = {"is_good": summary.samples, "num_outputs": summary.samples}
        rows |= dict.fromkeys(("lengths", "groups"), summary.outputs)
        for name in ("is_good", "num_outputs", "faults", *(["groups"] if summary.groups else [])):
            if name not in arrays:
                raise StoreError(f"{path}: the array {name!r} is missing; remove {path}, and measure again")
        for name, array in arrays.items():
            if array.ndim != 1 or array.dtype.kind not in "bu" or len(array) != rows.get(name, len(array)):
                raise StoreError(
                    f"{path / name}.npy: {array.dtype} of shape {array.shape}, and the summary expects"
                    f" {rows.get(name, len(array)):,} values; remove {path}, and measure again"
                )
        return cls(path, summary, arrays)

    def check(self) -> list[str]:
        """Read all bytes and return how they differ from what was written; empty if they do not."""
        return list(map(str, check_arrays(self.path.parent, self.path.name)))

    def __len__(self) -> int:
        return self.summary.samples

    @property
    def name(self) -> str:
        """Name of the folder: 128 bits over what was measured."""
        return self.path.name

    @property
    def keys(self) -> list[Any]:
        """Keys of the groups, by their numbers."""
        return [key_of(group.key) for group in self.summary.groups]

    def faults(self) -> Iterator[Fault]:
        """Yield the fault of each bad sample, in order: which sample it is, and why it failed."""
        for line in self.arrays["faults"].tobytes().splitlines():
            yield msgspec.json.decode(line, type=Fault)

    def facts(self, exclude: Sequence[int] | IntArray = ()) -> Facts:
        """Return the facts for the plan, with some samples left out.

        Raises:
            ConfigError: there is no such sample, or no sample is left.
        """
        counts = self.arrays["num_outputs"]
        return Facts(
            len(self),
            is_good=self._kept(rising_numbers("exclude", exclude)),
            num_outputs=counts if bool((counts != 1).any()) else None,
            lengths=self.arrays.get("lengths"),
            groups=self.arrays.get("groups"),
        )

    def _kept(self, exclude: IntArray) -> NDArray[np.bool_] | None:
        if not len(exclude):
            return None  # bad samples have no outputs, and so need no mask
        if exclude[-1] >= len(self):
            raise ConfigError(
                f"exclude names samples {exclude[0]:,} to {exclude[-1]:,}; there are {len(self):,}, counted from 0"
            )
        kept = np.ones(len(self), dtype=bool)
        kept[exclude] = False
        return kept

    def sized(self, form: Grouping) -> Grouping:
        """Return a form without a size with those that ``batch_group_criterion`` returned.

        Raises:
            ConfigError: it returned none for some groups.
        """
        groups = self.summary.groups
        sizes = {number: group.size for number, group in enumerate(groups) if group.size is not None}
        if len(sizes) < len(groups):
            raise ConfigError(
                f"{len(sizes):,} of {len(groups):,} groups have a size from batch_group_criterion: pass one for all,"
                " form=Grouping(size=...)"
            )
        common = Counter(sizes.values()).most_common(1)[0][0]
        others = {number: size for number, size in sizes.items() if size != common}
        return msgspec.structs.replace(form, size=common, sizes=others)

    def __repr__(self) -> str:
        summary = self.summary
        return (
            f"<MeasuredFacts: {summary.outputs:,} outputs of {summary.samples:,} samples, {summary.bad_samples:,} bad,"
            f" {self.path}>"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return MeasuredFacts.open, (self.path,)
