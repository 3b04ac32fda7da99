"""Samples with keys and named parts: what each part holds, and its picture.

Stores and metadatasets are opened as they are on disk. Looking at them changes nothing, and runs no code that a
``dataset.yaml`` names.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final, Literal, NamedTuple, Self

import msgspec
import numpy as np

from headrace.datasets import Dataset
from headrace.datasets.media import JoinedMediaDataset, MediaDataset
from headrace.datasets.metadataset import JoinedSource, NamedSource, SourceColumn, SourceOptions
from headrace.datasets.metadataset.opening import join_store
from headrace.errors import ConfigError, HeadraceError
from headrace.inspect.blocks import Block, Media, Pairs, Titled, Verbatim
from headrace.inspect.figures import as_json, count, duration, plural, size
from headrace.inspect.terminal import Picture
from headrace.io import Reader
from headrace.samples.media import AVDecoder, SampleDecoder
from headrace.samples.media.decoding.av_decoder import AUDIO_EXTENSIONS, AV_EXTENSIONS
from headrace.samples.media.decoding.basic import reraise
from headrace.samples.media.decoding.images import IMAGE_EXTENSIONS
from headrace.samples.media.mapper import META_PARTS, FieldMap, first_that_works
from headrace.stores import RawSample, SampleStore, open_tokens
from headrace.stores.energon import DatasetConfig, EnergonStore
from headrace.stores.opening import SAMPLE_LAYOUTS, open_samples, sample_layout
from headrace.stores.quarantine import quarantined
from headrace.stores.tar.members import sample_part
from headrace.stores.tar.store import TarStore


class SampleOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Which split part of an Energon dataset is opened, and by which of its files."""

    split_part: str | None = None
    split_config: str | None = None
    dataset_config: str | None = None

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Return those of the options that say which dataset is opened."""
        return cls(**{name: options.get(name) for name in cls.__struct_fields__})

    def named(self) -> list[str]:
        """Return the names of the options that were given."""
        return [f"`{name}`" for name in self.__struct_fields__ if getattr(self, name) is not None]


WHOLE = SampleOptions()


def open_sample_store(
    path: str, options: SampleOptions = WHOLE, *, using: str | Reader = "mmap", faulty: bool = False
) -> SampleStore | None:
    """Open the samples at a path; None if there are none, because it holds tokens, something else, or nothing.

    It works like `headrace.open`, except that the index of a tar without one is kept in the cache, never beside the
    tar.

    Args:
        path: the path, as the user wrote it.
        options: options for Energon datasets.
        using: how to read.
        faulty: also open damaged tars, as far as they can be read.

    Raises:
        StoreError: the store is missing or malformed.
        InputError: a tar is compressed, or damaged.
        ConfigError: there is no such split part, or the options are given for something other than an Energon dataset.
    """
    layout = sample_layout(path, using)
    if layout == "energon":
        return EnergonStore(
            path,
            split_part=options.split_part,
            split_config=options.split_config,
            dataset_config=options.dataset_config,
            using=using,
        )
    if options != WHOLE:
        what = "this has no .nv-meta" if layout is None else f"this is {SAMPLE_LAYOUTS[layout]}"
        raise ConfigError(f"{path}: {', '.join(options.named())} is only for Energon datasets; {what}")
    if layout == "tar":
        return quarantined(TarStore(path, using=using, index="cache", faulty="skip" if faulty else "error"))
    return None if layout is None else open_samples(path, layout, split_part=None, using=using)


def need_samples(path: str, options: SampleOptions = WHOLE) -> SampleStore:
    """Open the samples at a path like `open_sample_store`; anything else is an error.

    Raises:
        ConfigError: the path holds documents of tokens.
        StoreError: the path does not exist, or the store is malformed.
    """
    store = open_sample_store(path, options)
    if store is not None:
        return store
    with open_tokens(path) as tokens:
        raise ConfigError(
            f"{path}: holds {len(tokens):,} documents of tokens, which have numbers and no keys; headrace preview shows"
            " them as text. Samples are in tar shards, Energon datasets, .jsonl, and folders of files"
        )


def find_sample(store: SampleStore, key: str) -> int:
    """Return the number of the sample with a key.

    Raises:
        ConfigError: no sample has the key.
    """
    try:
        return store.find(key)
    except KeyError:
        raise ConfigError(f"{store.path}: has no sample {key!r}; headrace ls lists the keys") from None


def find_part(store: SampleStore, name: str) -> tuple[int, str | None]:
    """Find the sample and the part that ``KEY.PART`` names, or the sample that ``KEY`` names.

    Raises:
        ConfigError: there is no such sample, or it has no such part; the message names the parts that it has.
    """
    split = sample_part(name)
    # Keys may contain dots, so the whole name is looked up first.
    try:
        return store.find(name), None
    except KeyError:
        if split is None:
            return find_sample(store, name), None
    key, part = split
    number = find_sample(store, key)
    parts = list(part_sizes(store, number))
    if part not in parts:
        raise ConfigError(f"{store.path}: sample {key!r} has no part {part!r}; it has {', '.join(parts)}")
    return number, part


def read_part(store: SampleStore, number: int, part: str) -> bytes:
    """Return the bytes of one part of a sample."""
    return store.read(np.array([number]), (part,))[0].parts[part]


def part_sizes(store: SampleStore, number: int) -> dict[str, int]:
    """Return the bytes of each part of a sample, in the order of the file. Parts without a place in a file are read."""
    places = store.places(number)
    if places:
        return {name: place.size for name, place in places.items()}
    return {name: len(data) for name, data in store.read(np.array([number]))[0].parts.items()}


def dataset_of(store: SampleStore) -> DatasetConfig | None:
    """Return the ``dataset.yaml`` of an Energon dataset, if it has one."""
    return store.dataset if isinstance(store, EnergonStore) else None


class PlainSources(SourceOptions, frozen=True, kw_only=True):
    """Opens the samples of sources, neither decoded nor cooked, and tokens as usual."""

    def dataset(self, source: NamedSource | JoinedSource) -> Dataset:
        """Open a dataset; see `SourceOptions.dataset`."""
        opening = msgspec.structs.replace(self, open=partial(_plain_dataset, using=self.reader))
        return SourceOptions.dataset(opening, source)


def _plain_dataset(source: NamedSource | JoinedSource, *, using: str | Reader) -> Dataset | None:
    """Open the samples of a source, neither decoded nor cooked; None for tokens.

    Raises:
        StoreError: the path does not exist, or the store is malformed.
        ConfigError: there is no such split part.
    """
    if isinstance(source, JoinedSource):
        store = join_store(source, using)
        columns = [MediaDataset(column.store, decoder=None) for column in store.columns]
        return JoinedMediaDataset(store, lambda *given, **named: {"columns": given or named}, columns=columns)
    if source.windows is not None or source.packs is not None:
        return None
    layout = sample_layout(source.path, using)
    if layout in (None, "files"):
        return None
    options = msgspec.structs.replace(options_of(source), split_part=source.split_part)
    opened = open_sample_store(source.path, options if layout == "energon" else WHOLE, using=using)
    return None if opened is None else MediaDataset(opened, decoder=None)


def options_of(source: NamedSource | SourceColumn) -> SampleOptions:
    """Return the options that open the Energon dataset of a source, with all its split parts."""
    return SampleOptions(split_config=source.split_config, dataset_config=source.dataset_config)


def closed(dataset: Dataset) -> None:
    """Close the files of a dataset."""
    getattr(dataset, "close", getattr(getattr(dataset, "store", None), "close", lambda: None))()


Kind = Literal["image", "video", "audio", "text", "number", "json", "array", "bytes"]
Facts = dict[str, int | float | str]
MAX_PIXELS_SIDE: Final = 1024
"""The longest side of a picture; larger pictures are scaled down."""

_TEXT_BYTES: Final = 1 << 20
_HEAD_BYTES: Final = 32
_LINE_CHARS: Final = 100
_LIST_OF_NUMBERS: Final = re.compile(r"\[\n\s+([-+.\deE]+(?:,\n\s+[-+.\deE]+)*)\n\s*\]")
"""A list of numbers over several lines. Strings of JSON have no line breaks, so this matches no text."""


class ShownPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a preview shows of one part of a sample."""

    name: str
    size: int
    kind: Kind
    text: str = ""
    """Text, number, JSON on several lines, or values of an array; for unknown bytes, the first ones in hexadecimal."""

    left_out: int = 0
    """The number of characters of the text that are not shown."""

    facts: Facts = {}
    """For pictures, video and sound: width, height, seconds, ...; for arrays: dtype and shape."""

    error: str = ""
    """Why the part cannot be decoded."""


class LookedAt(NamedTuple):
    """A part, its decoded value, and its picture, scaled down; for a video, the picture is its first frame."""

    shown: ShownPart
    value: Any = None
    picture: Picture | None = None
    error: HeadraceError | None = None


class PartViewer:
    """Decodes parts for previews as training decodes them, by their names. Pickles are not read.

    Args:
        max_chars: the most characters that are kept of each text.
        pictures: whether pictures of images and videos are made.
    """

    def __init__(self, *, max_chars: int, pictures: bool = True) -> None:
        self._decoder = SampleDecoder(image_decode="pil")
        self.max_chars = max_chars
        self._pictures = pictures

    def look(self, name: str, data: bytes) -> LookedAt:
        """Decode one part. If that fails, the result says why, and nothing is raised."""
        known, text = _kind_of(name), ""
        picture: Picture | None = None
        shown = partial(ShownPart, name=name, size=len(data))
        try:
            value = self._decoder.decode(name, data)
            if isinstance(value, AVDecoder):
                value, kind, facts, picture = self._opened(name, value.data)
            elif known == "image":
                kind, facts, picture = known, {"width": value.width, "height": value.height}, value
            else:
                kind, text, facts = _described(value)
        except HeadraceError as error:
            reason = getattr(error, "reason", None) or str(error)
            return LookedAt(shown(kind=known or "bytes", error=reason), error=error)
        left_out = max(0, len(text) - self.max_chars)
        picture = _smaller(picture) if picture is not None and self._pictures else None
        return LookedAt(shown(kind=kind, text=text[: self.max_chars], left_out=left_out, facts=facts), value, picture)

    def _opened(self, name: str, data: bytes) -> tuple[AVDecoder, Kind, Facts, Picture | None]:
        """Open video or sound, which is done only now, and return its kind, its facts, and the first frame.

        Raises:
            HeadraceError: the data are broken.
        """
        try:
            media = AVDecoder(data, arrays="numpy")
            metadata = dataclasses.asdict(media.get_metadata())
            facts = {name: value for name, value in metadata.items() if value is not None}
            if not media.has_video_stream():
                return media, "audio", facts, None
            clips = media.get_video_clips([(0, 0)], "frames")[0] if self._pictures else []
            if not clips or not len(clips[0]):
                return media, "video", facts, None
            import PIL.Image

            return media, "video", facts, PIL.Image.fromarray(np.ascontiguousarray(clips[0][0].transpose(1, 2, 0)))
        except Exception as error:  # PyAV raises errors of many types for broken data
            reraise(name, error)


def _kind_of(name: str) -> Kind | None:
    """Return the kind of a picture, video or sound by its name; None for other parts."""
    extension = name.removesuffix(".gz").rpartition(".")[2].lower()
    if extension in IMAGE_EXTENSIONS:
        return "image"
    return None if extension not in AV_EXTENSIONS else "audio" if extension in AUDIO_EXTENSIONS else "video"


def _described(value: Any) -> tuple[Kind, str, Facts]:
    if isinstance(value, str):
        return "text", value, {}
    if isinstance(value, bytes):
        text = _as_text(value)
        return ("text", text, {}) if text is not None else ("bytes", value[:_HEAD_BYTES].hex(" "), {})
    if isinstance(value, np.ndarray):
        facts: Facts = {"dtype": value.dtype.name, "shape": str(value.shape)}
        return "array", np.array2string(value, threshold=40, edgeitems=3), facts
    if isinstance(value, int | float) and not isinstance(value, bool):
        return "number", str(value), {}
    text = as_json(value, default=_in_words)
    if len(text) > _LINE_CHARS:
        long = as_json(value, indent=2, default=_in_words)
        text = _LIST_OF_NUMBERS.sub(lambda found: "[" + " ".join(found[1].split()) + "]", long)
    return "json", text, {}


def _in_words(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape}"
    return f"{len(value)} bytes" if isinstance(value, bytes) else str(value)


def _as_text(data: bytes) -> str | None:
    """Return bytes that no decoder knows as text, if they are text."""
    if len(data) > _TEXT_BYTES or b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _smaller(image: Picture) -> Picture:
    if max(image.size) > MAX_PIXELS_SIDE:
        image = image.copy()
        image.thumbnail((MAX_PIXELS_SIDE, MAX_PIXELS_SIDE))
    return image


_FIELD_CHARS: Final = 200


class MixPlace(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a sample in a mix."""

    position: int
    source: str
    """The path of the source in the mix."""

    epoch: int
    path: str
    """The path of the dataset."""


class ShownParts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a preview shows of one sample."""

    number: int
    key: str
    shard: str
    index: int
    parts: tuple[ShownPart, ...]
    fields: dict[str, str]
    """Field of the sample type -> its value in one line, or why it has none."""

    place: MixPlace | None = None
    """The place in a mix, if the sample is shown as a part of one."""


class LookedAtSample(msgspec.Struct, frozen=True):
    """What a preview shows of a sample, with its bytes and pictures."""

    shown: ShownParts
    raw: RawSample
    pictures: dict[str, Picture]
    """Name of the part -> its picture, scaled down."""

    def section(self) -> Titled:
        """Return the sample as blocks: its parts, with their bytes and pictures, and its fields."""
        blocks: list[Block] = list(map(self._media, self.shown.parts))
        if self.shown.fields:
            blocks.append(Pairs(list(self.shown.fields.items())))
        return Titled(_heading(self.shown), blocks, is_card=True)

    def _media(self, part: ShownPart) -> Media:
        words = f": {part.text} ..." if part.kind == "bytes" and part.text else ""
        facts = "".join(f", {fact}" for fact in _facts_of(part))
        return Media(
            name=part.name,
            kind=part.kind,
            title=f"{part.name or '(no name)'}: {part.kind}{facts}, {size(part.size)}{words}",
            number=self.shown.number,
            text=Verbatim("" if part.kind == "bytes" else part.text, more=part.left_out, is_made=part.kind != "text"),
            picture=self.pictures.get(part.name),
            data=self.raw.parts.get(part.name, b""),
            error=part.error,
        )


def _heading(shown: ShownParts) -> str:
    """Return the number, key and place of a sample; in a mix also its position, source and epoch."""
    if (place := shown.place) is not None:
        shard = f", {shown.shard}, {count(shown.index)}" if shown.shard else ""
        at = f"position {count(place.position)}: {place.source or '.'}, epoch {count(place.epoch)}"
        return f"{at}, sample {count(shown.number)}: {shown.key}  ({place.path}{shard})"
    return f"sample {count(shown.number)}: {shown.key}  ({shown.shard}, {count(shown.index)})"


def _facts_of(part: ShownPart) -> list[str]:
    """Return the facts of a part in words: ``640 x 480``, ``2.0 s``, ``25 frames/s``."""
    facts = part.facts
    words = [
        f"{facts[f'{begin}width']} x {facts[f'{begin}height']}" for begin in ("", "video_") if f"{begin}width" in facts
    ]
    seconds = facts.get("video_duration", facts.get("audio_duration"))
    if isinstance(seconds, int | float):
        words.append(duration(seconds))
    if "video_fps" in facts:
        words.append(f"{facts['video_fps']:.4g} frames/s")
    if "audio_sample_rate" in facts:
        channels = plural(int(facts.get("audio_channels", 1)), "channel")
        words.append(f"sound {facts['audio_sample_rate']} Hz, {channels}")
    if "dtype" in facts:
        words.append(f"{facts['dtype']} {facts['shape']}")
    return words


def look_at(
    raw: RawSample, number: int, fields: FieldMap | None, viewer: PartViewer, place: MixPlace | None = None
) -> LookedAtSample:
    """Decode a sample for a preview. A part that cannot be decoded says so itself.

    Args:
        raw: the sample.
        number: the number of the sample in its store.
        fields: the field map of its ``dataset.yaml``, if it has one.
        viewer: decodes the parts.
        place: the place in a mix, if the sample is shown as a part of one.
    """
    looked = {name: viewer.look(name, data) for name, data in raw.parts.items()}
    errors = {name: one.error for name, one in looked.items() if one.error is not None}
    decoded = {name: one.value for name, one in looked.items()}
    values = dict(fields_of(fields or {}, raw, decoded, errors))
    shown = ShownParts(
        number=number,
        key=raw.key,
        shard=raw.shard,
        index=raw.index,
        parts=tuple(one.shown for one in looked.values()),
        fields={field: _in_a_line(field, value, fields or {}, looked) for field, value in values.items()},
        place=place,
    )
    pictures = {name: one.picture for name, one in looked.items() if one.picture is not None}
    return LookedAtSample(shown, raw, pictures)


def fields_of(
    fields: FieldMap, raw: RawSample, values: Mapping[str, Any], errors: Mapping[str, HeadraceError]
) -> Iterator[tuple[str, Any]]:
    """Yield each field with its value, or with the error that prevents it.

    Args:
        fields: the field map.
        raw: the sample.
        values: the decoded value of each part.
        errors: why others could not be decoded.
    """
    meta = {**dict.fromkeys(META_PARTS), "__key__": raw.key, "__shard__": raw.shard, "__restore_key__": ()}

    def part(name: str) -> Any:
        if name in errors:
            raise errors[name]
        if name not in meta and name not in values:
            raise KeyError(name, tuple(values))
        return meta[name] if name in meta else values[name]

    for field, options in fields.items():
        try:
            yield field, first_that_works(options, field, part)
        except HeadraceError as error:
            yield field, error


def _in_a_line(field: str, value: Any, fields: FieldMap, looked: dict[str, LookedAt]) -> str:
    if isinstance(value, HeadraceError):
        return f"error: {value}"
    part = next((option.part for option in fields[field] if option.part in looked and not option.steps), None)
    if part is not None and looked[part].shown.kind in ("image", "video", "audio"):
        return f"the {looked[part].shown.kind} in {part}"
    text = value if isinstance(value, str) else as_json(value, default=_in_words)
    return text if len(text) <= _FIELD_CHARS else text[:_FIELD_CHARS] + " ..."
