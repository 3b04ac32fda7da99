"""One sample of a run as the model sees it: its tokens in segments with labels and positions, or its parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.datasets import Dataset, Run
from headrace.datasets.media import SampleDataset
from headrace.datasets.mix import store_of
from headrace.datasets.origins import Origin
from headrace.errors import ConfigError, HeadraceError
from headrace.inspect.blocks import ShownSequence
from headrace.inspect.figures import as_json
from headrace.inspect.sample_preview import field_map_of
from headrace.inspect.samples import LookedAtSample, PartViewer, look_at
from headrace.inspect.token_texts import IdTexts, TokenTexts, find_texts, sequence_of
from headrace.plan.segments import IGNORED_LABEL
from headrace.stores import SampleStore, Store

MAX_TOKENS: Final = 1 << 13
"""The most tokens of a sample that are shown."""

_VALUE_CHARS: Final = 500


class FedSegment(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of a sample that attends only to itself: a document, a piece of one, or a record.

    ``origin`` is the document or record, if it is known; ``shown`` are its tokens, with the labels as training has
    them.
    """

    origin: Origin | None
    shown: ShownSequence


class FedSample(msgspec.Struct, frozen=True, kw_only=True):
    """A sample as the model sees it.

    Attributes:
        position: its position in the run.
        source, epoch, index: the source, its epoch, and the number of the sample in the source's dataset.
        dataset: what the dataset is, in a line.
        places: tokens and pads of the sample; 0 for samples without tokens.
        pads: the pads among them.
        segments: its tokens.
        parts: what is stored of a sample with named parts, with bytes and pictures; None for tokens.
        fields: other fields of the sample, as text.
        origins: what it is made of.
        note: what a reader should know about the texts.
    """

    position: int
    source: str
    epoch: int
    index: int
    dataset: str
    places: int
    pads: int
    segments: tuple[FedSegment, ...]
    parts: LookedAtSample | None
    fields: dict[str, str]
    origins: tuple[Origin, ...]
    note: str = ""


def fed_sample(run: Run, position: int, *, may_open: Callable[[str], bool] | None = None) -> FedSample:
    """Return the sample at a position of a run, read as training reads it; functions of the user do not run.

    Args:
        run: a run over its data.
        position: the position in the run.
        may_open: asked for the path of the store before its manifest and tokeniser are read; by default all are.

    Raises:
        ConfigError: the run has no such position, or needs code to make its samples.
        HeadraceError: the sample cannot be read.

    Example:
        >>> from headrace.inspect import views
        >>> dataset = headrace.PackedSequenceDataset(headrace.open("stores/web"), headrace.Packing(seq_len=512))
        >>> found = views.fed_sample(headrace.Run(dataset, global_batch_size=8), 9)
        >>> found.places, sum(one.shown.num_tokens for one in found.segments) + found.pads
        (512, 512)
    """
    if not 0 <= position < (run.length if run.length is not None else position + 1):
        raise ConfigError(f"there is no position {position:,} in a run of {run.length:,} samples")
    wanted = np.array([position], dtype=np.int64)
    found, located = run.lookup(wanted), run.locate(wanted)
    dataset = run.datasets[int(located.sources[0])]
    (origins,) = dataset.origins(located.addresses)
    common: dict[str, Any] = {
        "position": position,
        "source": run.paths[int(located.sources[0])] or ".",
        "epoch": int(found.epochs[0]),
        "index": int(found.indices[0]),
        "dataset": dataset.describe(),
        "origins": origins,
    }
    looked = _look_at(dataset, origins)
    if looked is not None:
        return FedSample(**common, places=0, pads=0, segments=(), parts=looked, fields={})
    texts, note = _texts_of(dataset, may_open)
    arrays = _arrays(run, located)
    is_unshifted = dataset.traits.is_unshifted or getattr(dataset, "labels", "next") == "same"
    segments: list[FedSegment] = []
    places = pads = 0
    used: set[str] = set()
    left = MAX_TOKENS
    for name, ids in arrays.items():
        if not name.endswith("input_ids") or not isinstance(ids, np.ndarray) or ids.ndim != 1:
            continue
        prefix = name.removesuffix("input_ids")
        used |= {prefix + one for one in _OF_TOKENS}
        beside = {one: arrays[prefix + one] for one in _OF_TOKENS if isinstance(arrays.get(prefix + one), np.ndarray)}
        row = {one: values for one, values in beside.items() if values.shape == ids.shape}
        tokens = np.flatnonzero(_is_token(row))
        places, pads = places + len(ids), pads + len(ids) - len(tokens)
        title = prefix.rstrip("_") or "tokens"
        for segment in _segments(title, row, tokens, origins, texts, left, is_unshifted=is_unshifted):
            segments.append(segment)
            left -= segment.shown.num_shown
    return FedSample(
        **common,
        places=places,
        pads=pads,
        segments=tuple(segments),
        parts=None,
        fields={name: _in_words(value) for name, value in arrays.items() if name not in used},
        note=note,
    )


_OF_TOKENS: Final = ("input_ids", "labels", "loss_mask", "attention_mask", "position_ids", "document_ids")


def _look_at(dataset: Dataset, origins: Sequence[Origin]) -> LookedAtSample | None:
    """Return what is stored of a sample of media, before decoders, cookers and encoders; None for tokens.

    Raises:
        HeadraceError: the sample cannot be read.
    """
    store = dataset.store if isinstance(dataset, SampleDataset) else store_of(dataset)
    if not isinstance(store, SampleStore) or not origins or origins[0].key is None:
        return None
    origin = origins[0]
    number = store.find(str(origin.key))
    if origin.shard is not None and origin.sample is not None:
        number = int(store.shard_bounds[store.shards.index(origin.shard)]) + origin.sample
    raw = store.read(np.array([number]))[0]
    return look_at(raw, number, field_map_of(store), PartViewer(max_chars=_VALUE_CHARS * 4))


def _texts_of(dataset: Dataset, may_open: Callable[[str], bool] | None) -> tuple[TokenTexts, str]:
    store = store_of(dataset)
    if not isinstance(store, Store):
        return IdTexts(), "the samples are not of one store, so ids are shown"
    if may_open is not None and not may_open(store.path):
        return IdTexts(), f"{store.path} is not below the paths that were named, so ids are shown"
    try:
        found = find_texts(store.path)
    except HeadraceError as error:
        return IdTexts(), str(error)
    return found.texts, found.note


def _arrays(run: Run, located: Any) -> dict[str, Any]:
    """Return the fields of one sample; of records as they are before they are padded."""
    if run.traits.is_ragged:
        (sample,) = run.samples(located)
        if dataclasses.is_dataclass(sample) and not isinstance(sample, type):
            return {field.name: getattr(sample, field.name) for field in dataclasses.fields(sample)}
        return dict(sample) if isinstance(sample, Mapping) else {"sample": sample}
    return {name: values[0] for name, values in run.read(located).items()}


def _is_token(row: Mapping[str, Any]) -> NDArray[np.bool_]:
    """(n,) bool: whether each place of a row holds a token, and no pad."""
    if "document_ids" in row:
        return np.asarray(row["document_ids"] >= 0)
    return np.asarray(row["attention_mask"] != 0 if "attention_mask" in row else np.full(len(row["input_ids"]), True))


def _segments(
    name: str,
    row: Mapping[str, Any],
    places: NDArray[np.int64],
    origins: Sequence[Origin],
    texts: TokenTexts,
    most: int,
    *,
    is_unshifted: bool,
) -> Iterator[FedSegment]:
    """Yield the segments of one row (a window, a pack, a record, or one answer of a pair), without pads.

    A new one begins where the position or the document does. They have the texts of the first ``most`` tokens.

    Args:
        name: what the row is called.
        row: the fields of its tokens, all of the length of ``input_ids``.
        places: where tokens are.
        origins: what the sample is made of.
        texts: the vocabulary.
        most: the most tokens that are shown.
        is_unshifted: whether a label is that of its own token.
    """
    if not len(places):
        return
    positions = row.get("position_ids", np.arange(len(row["input_ids"])))
    trained = _trained(row.get("labels"), is_unshifted=is_unshifted)
    begins = np.diff(places) != 1
    begins |= positions[places][1:] == 0
    if "document_ids" in row:
        begins |= np.diff(row["document_ids"][places]) != 0
    elif len(origins) > 1 and sum(one.tokens or 0 for one in origins) == len(places):
        borders = np.cumsum([one.tokens or 0 for one in origins])[:-1]
        begins[borders[(borders > 0) & (borders <= len(begins))] - 1] = True
    parts = np.split(places, np.flatnonzero(begins) + 1)
    pieces = [one for one in origins if one.tokens != 0]
    for number, part in enumerate(parts):
        origin = pieces[number] if len(pieces) == len(parts) else pieces[0] if len(pieces) == 1 else None
        shown = sequence_of(
            texts,
            name,
            -1 if origin is None or origin.document is None else origin.document,
            row["input_ids"][part],
            mask=None if trained is None else trained[part],
            most=most,
            begin=0 if origin is None or origin.begin is None else origin.begin,
            positions=positions[part],
        )
        yield FedSegment(origin=origin, shown=shown)
        most -= shown.num_shown


def _trained(labels: NDArray[Any] | None, *, is_unshifted: bool) -> NDArray[Any] | None:
    """(n,) bool: the tokens that are predicted. A label is that of the next token, unless labels are not shifted."""
    if labels is None:
        return None
    is_label = labels != IGNORED_LABEL
    return is_label if is_unshifted else np.concatenate([[False], is_label[:-1]])


def _in_words(value: Any) -> str:
    if isinstance(value, np.ndarray):
        shown = np.array2string(value, threshold=16, edgeitems=3)
        return shown if value.ndim < 2 else f"{value.dtype} {value.shape}"
    text = value if isinstance(value, str) else as_json(value)
    return text if len(text) <= _VALUE_CHARS else f"{text[:_VALUE_CHARS]} ..."
