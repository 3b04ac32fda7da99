"""One sample of a run as the model sees it: its tokens in segments with labels and positions, or its parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from headrace.datasets import Run
from headrace.datasets.dataset import Dataset
from headrace.datasets.media.face import SampleDataset
from headrace.datasets.mix import store_of
from headrace.datasets.origins import Origin
from headrace.errors import ConfigError, HeadraceError
from headrace.inspect.answers import Answer
from headrace.inspect.blocks import ShownSequence
from headrace.inspect.figures import as_json
from headrace.inspect.sample_preview import field_map_of
from headrace.inspect.samples import LookedAtSample, PartViewer, ShownParts, look_at
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


class FedSample(Answer, frozen=True, kw_only=True):
    """A sample as the model sees it.

    Attributes:
        position: its position in the run.
        source, epoch, index: the source, its epoch, and the number of the sample in the source's dataset.
        dataset: what the dataset is, in a line.
        places: tokens and pads of the sample; 0 for samples without tokens.
        pads: the pads among them.
        segments: its tokens.
        parts: what is stored of a sample with named parts; None for tokens.
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
    parts: ShownParts | None
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
        return FedSample(**common, places=0, pads=0, segments=(), parts=looked.shown, fields={})
    texts, note = _texts_of(dataset, may_open)
    arrays = _arrays(run, located)
    is_unshifted = dataset.traits.is_unshifted or getattr(dataset, "labels", "next") == "same"
    rows = list(_rows(arrays, origins, is_unshifted=is_unshifted))
    segments: list[FedSegment] = []
    left = MAX_TOKENS
    for row in rows:
        for segment in row.segments(texts, left):
            segments.append(segment)
            left -= segments[-1].shown.num_shown
    used = {row.prefix + name for row in rows for name in _OF_TOKENS}
    return FedSample(
        **common,
        places=sum(len(row.ids) for row in rows),
        pads=sum(len(row.ids) - row.num_tokens for row in rows),
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
    return look_at(raw, number, field_map_of(store), PartViewer(max_chars=_VALUE_CHARS * 4, pictures=False))


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


@dataclasses.dataclass
class _Row:
    """One row of tokens: a window, a pack, a record, or one answer of a pair."""

    prefix: str
    ids: NDArray[Any]
    trained: NDArray[Any] | None
    positions: NDArray[Any]
    documents: NDArray[Any] | None
    is_token: NDArray[Any]
    origins: Sequence[Origin]

    @property
    def num_tokens(self) -> int:
        return int(np.count_nonzero(self.is_token))

    def segments(self, texts: TokenTexts, most: int) -> Iterator[FedSegment]:
        """Yield the segments with the texts of the first ``most`` tokens, without pads.

        A new one begins where the position or the document does.
        """
        places = np.flatnonzero(self.is_token)
        if not len(places):
            return
        begins = np.diff(places) != 1
        begins |= self.positions[places][1:] == 0
        if self.documents is not None:
            begins |= np.diff(self.documents[places]) != 0
        elif len(self.origins) > 1 and sum(one.tokens or 0 for one in self.origins) == len(places):
            borders = np.cumsum([one.tokens or 0 for one in self.origins])[:-1]
            begins[borders[(borders > 0) & (borders <= len(begins))] - 1] = True
        parts = np.split(places, np.flatnonzero(begins) + 1)
        pieces = [one for one in self.origins if one.tokens != 0]
        for number, part in enumerate(parts):
            origin = pieces[number] if len(pieces) == len(parts) else pieces[0] if len(pieces) == 1 else None
            shown = sequence_of(
                texts,
                self.prefix.rstrip("_") or "tokens",
                -1 if origin is None or origin.document is None else origin.document,
                self.ids[part],
                mask=None if self.trained is None else self.trained[part],
                most=most,
                begin=0 if origin is None or origin.begin is None else origin.begin,
                positions=self.positions[part],
            )
            yield FedSegment(origin=origin, shown=shown)
            most -= shown.num_shown


def _rows(arrays: Mapping[str, Any], origins: Sequence[Origin], *, is_unshifted: bool) -> Iterator[_Row]:
    for name, ids in arrays.items():
        if not name.endswith("input_ids") or not isinstance(ids, np.ndarray) or ids.ndim != 1:
            continue
        prefix = name.removesuffix("input_ids")

        def beside(what: str, prefix: str = prefix, ids: NDArray[Any] = ids) -> NDArray[Any] | None:
            found = arrays.get(prefix + what)
            return found if isinstance(found, np.ndarray) and found.shape == ids.shape else None

        documents, attention = beside("document_ids"), beside("attention_mask")
        is_token = np.ones(len(ids), dtype=bool)
        if documents is not None:
            is_token = documents >= 0
        elif attention is not None:
            is_token = attention != 0
        positions = beside("position_ids")
        yield _Row(
            prefix=prefix,
            ids=ids,
            trained=_trained(beside("labels"), is_unshifted=is_unshifted),
            positions=np.arange(len(ids)) if positions is None else positions,
            documents=documents,
            is_token=is_token,
            origins=origins,
        )


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
