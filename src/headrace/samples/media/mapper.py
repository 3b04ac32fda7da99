"""`SampleMapper` makes samples from raw parts: which parts are read, how each is decoded, and which field it becomes.

mapper = SampleMapper(CaptioningSample, {"image": "jpg", "caption": "txt"})
mapper.parts                                                  # ("jpg", "txt"): what the store must read
mapper.make({"jpg": b"...", "txt": b"a cat"}, "cats/0017")    # CaptioningSample

A field map says which part of a sample, and what within it, becomes which field:

image: jpg                          the part
caption: detail.json[captions][0]   within it: a key of an object, then an element of a list; parts may have dots
text: txt,json[text]                options: the first that works
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

from headrace.config import nearest
from headrace.errors import ConfigError, FieldAccessError, HeadraceError, SampleError
from headrace.samples.media.batch import Room, arguments_of
from headrace.samples.media.decoding.basic import reraise
from headrace.samples.media.decoding.decoder import PictureDecoder, SampleDecoder
from headrace.samples.media.sample import BASE_FIELDS, CrudeSample, SourceInfo

_OPTION = re.compile(r"(?P<part>[^\[\],]+)(?P<steps>(?:\[[^\[\]]+\])*)")

META_PARTS = ("__key__", "__shard__", "__restore_key__", "__subflavors__", "__sources__")
"""Names that a field map may use in addition to the parts; these facts about the sample need no reading."""


class Option(NamedTuple):
    """One way to a value: a part, and the steps into its decoded value."""

    part: str
    steps: tuple[str, ...]

    def __str__(self) -> str:
        return self.part + "".join(f"[{step}]" for step in self.steps)


FieldMap = dict[str, tuple[Option, ...]]
"""The options for each field, tried in order."""


def parse_field(description: str, field: str = "a field") -> tuple[Option, ...]:
    """Parse a description such as ``"jpg,detail.json[x][0]"`` into options.

    Raises:
        ConfigError: If brackets do not match, or a part or step is empty; names the column.
    """
    options = []
    at = 0
    for text in description.split(","):
        match = _OPTION.fullmatch(text.strip())
        if match is None:
            raise ConfigError(
                f"field map: {field}: {description!r} cannot be read at column {at + 1}, {text!r}; write part or "
                "part[key][0], with commas between options"
            )
        steps = tuple(match["steps"][1:-1].split("][")) if match["steps"] else ()
        options.append(Option(match["part"], steps))
        at += len(text) + 1
    return tuple(options)


def parse_field_map(field_map: Mapping[str, str]) -> FieldMap:
    """Parse the field map of a ``dataset.yaml``.

    Raises:
        ConfigError: If a value is not text or cannot be parsed.
    """
    parsed = {}
    for field, description in field_map.items():
        if not isinstance(description, str):
            raise ConfigError(f"field map: {field}: found {description!r:.80}; write the name of a part, such as jpg")
        parsed[field] = parse_field(description, field)
    return parsed


def parts_of(field_map: FieldMap) -> tuple[str, ...]:
    """Return the parts that must be read, each once, in the order of the map."""
    return tuple(dict.fromkeys(part for parts in sources_of(field_map).values() for part in parts))


def sources_of(field_map: FieldMap) -> dict[str, tuple[str, ...]]:
    """Return, for each field, the parts from which it may be made, in the order in which they are tried."""
    return {
        field: tuple(dict.fromkeys(option.part for option in options if option.part not in META_PARTS))
        for field, options in field_map.items()
    }


def access(value: Any, option: Option, field: str) -> Any:
    """Follow the steps of an option into the decoded value of its part.

    An object is entered by key, a list by number (negative ones count from the end); other values cannot be entered.

    Raises:
        FieldAccessError: If there is no such key or element, or the value cannot be entered.
    """
    for depth, step in enumerate(option.steps):
        try:
            if isinstance(value, dict):
                value = value[step]
            elif isinstance(value, list):
                value = value[int(step)]
            else:
                raise _no_access(field, option, depth, f"a {type(value).__name__}, which cannot be entered")
        except KeyError:
            found = ", ".join(repr(key) for key in list(value)[:8]) or "none"
            raise _no_access(field, option, depth, f"an object with the keys {found:.200}") from None
        except IndexError:
            raise _no_access(field, option, depth, f"a list of {len(value):,} elements") from None
        except ValueError as error:
            if isinstance(error, FieldAccessError):
                raise
            raise _no_access(field, option, depth, "a list, which is entered by number") from None
    return value


def first_that_works(options: tuple[Option, ...], field: str, part: Callable[[str], Any]) -> Any:
    """Return the value of a field: that of the first option that leads to one.

    Args:
        options: At least one.
        field: The field's name, for messages.
        part: Returns the decoded value of a part, or raises KeyError if the sample lacks it.

    Raises:
        FieldAccessError: If no option works; says why each does not.
    """
    failed: list[FieldAccessError] = []
    for option in options:
        try:
            value = part(option.part)
        except KeyError as error:
            found = _names(error.args[1]) if len(error.args) > 1 else ""
            failed.append(
                FieldAccessError(option.part, f"field {field!r}: the sample has no part {option.part!r}{found}")
            )
            continue
        try:
            return access(value, option, field) if option.steps else value
        except FieldAccessError as error:
            failed.append(error)
    if len(failed) == 1:
        raise failed[0]
    written = ",".join(map(str, options))
    reasons = "; ".join(error.reason.removeprefix(f"field {field!r}: ") for error in failed)
    raise FieldAccessError(None, f"field {field!r}: none of {written!r} works: {reasons}")


def _no_access(field: str, option: Option, depth: int, found: str) -> FieldAccessError:
    before = Option(option.part, option.steps[:depth])
    return FieldAccessError(option.part, f"field {field!r}: no [{option.steps[depth]}] in {before}: it is {found}")


def _names(parts: Iterable[str]) -> str:
    return f"; it has {', '.join(parts) or 'none'}"


def check_fields_of(kind: type[Any], field_map: Mapping[str, str]) -> None:
    """Check that a field map has the fields that a sample type needs, and no unknown ones.

    Raises:
        ConfigError: If a field is unknown or missing.
    """
    fields, name = arguments_of(kind) or {}, kind.__name__
    for wanted in field_map:
        if wanted != "__key__" and (wanted not in fields or wanted in BASE_FIELDS):
            names = [known for known in fields if known not in BASE_FIELDS]
            raise ConfigError(
                f"field map: {name} has no field {wanted!r}; its fields are {', '.join(names)}{nearest(wanted, names)}"
            )
    for known, is_needed in fields.items():
        if is_needed and known not in field_map and known not in BASE_FIELDS:
            raise ConfigError(f"field map: {name} needs the field {known!r}, which the map lacks; add its part")


Loader = Callable[[dict[str, Any]], Mapping[str, Any]]


class SampleMapper:
    """Makes samples of one type from raw parts.

    Either ``field_map`` or ``sample_loader`` says how fields are made; a ``CrudeSample`` needs neither. The options are
    resolved once, in the constructor. Each sample costs some 4 us in addition to the decoders. Safe in threads.

    Example:
        >>> from headrace.samples.media import SampleDecoder, SampleMapper, TextSample
        >>> mapper = SampleMapper(TextSample, {"text": "json[text]"}, decoder=SampleDecoder())
        >>> mapper.parts
        ('json',)
        >>> mapper.make({"json": b'{"text": "a cat"}'}, "cats/0017").text
        'a cat'
    """

    def __init__(
        self,
        sample_type: type[Any] = CrudeSample,
        field_map: Mapping[str, str] | None = None,
        *,
        decoder: SampleDecoder | None = None,
        sample_loader: Loader | None = None,
        part_filter: Collection[str] | Callable[[str], bool] | None = None,
    ) -> None:
        """Check the arguments and resolve how each field is made.

        Args:
            sample_type: A sample type, or ``CrudeSample``.
            field_map: The part for each field; see ``field_map``. Parts that it does not name are neither read nor
                decoded.
            decoder: Decodes parts to values; None keeps their bytes.
            sample_loader: A function from decoded parts (with ``__key__`` and so on) to the fields of the sample,
                instead of a field map.
            part_filter: Names of parts to read, or a function that decides for each name; only without a field map.

        Raises:
            ConfigError: If the map names a field that the type lacks, or omits one without a default; if both or
                neither of field map and sample loader are passed; or if a filter is passed with a field map.
        """
        self.sample_type = sample_type
        self.decoder = decoder
        self._is_whole = decoder is not None and decoder.is_overridden
        self.is_crude = isinstance(sample_type, type) and issubclass(sample_type, CrudeSample)
        self._loader = sample_loader
        self._wanted = part_filter
        self._check(field_map)
        self.field_map: FieldMap = parse_field_map(field_map or {})
        if field_map is not None:
            self.parts: tuple[str, ...] | None = parts_of(self.field_map)
            """The parts to read; None: all for which ``wants`` returns true."""
        elif part_filter is None or callable(part_filter):
            self.parts = None
        else:
            self.parts = tuple(part_filter)
        self.takes_all = self.parts is None and part_filter is None
        """Whether ``wants`` returns true for every part."""

    def wants(self, part: str) -> bool:
        """Return whether a part is read."""
        if self.parts is not None:
            return part in self.parts
        return bool(self._wanted(part)) if callable(self._wanted) else True

    def make(
        self,
        raw_parts: Mapping[str, bytes],
        key: str,
        *,
        restore_key: tuple[Any, ...] = (),
        subflavors: dict[str, Any] | None = None,
        sources: tuple[SourceInfo, ...] | None = None,
        shard: str = "",
        room: Room | None = None,
    ) -> Any:
        """Make one sample.

        Args:
            raw_parts: The bytes of each part, by name; it may hold parts that are not needed.
            key: ``__key__`` of the sample.
            restore_key: ``__restore_key__``; see ``Sample``.
            subflavors: ``__subflavors__``; see ``Sample``.
            sources: ``__sources__``; see ``Sample``.
            shard: ``__shard__`` of crude samples.
            room: Where pictures are decoded; None is memory of their own.

        Raises:
            DecodeError: If a needed part cannot be decoded; names the part.
            FieldAccessError: If a part, key or element is missing.
            SampleError: If the sample loader fails.
        """
        known = dict(zip(META_PARTS, (key, shard, restore_key, subflavors, sources), strict=True))
        if self._loader is not None or self.is_crude:
            return self._from_decoded(self._all_decoded(raw_parts, known, room), known, raw_parts)
        decoded = self._all_decoded(raw_parts, known, room) if self._is_whole else dict(known)

        def part_value(part: str) -> Any:
            if part not in decoded:
                if self._is_whole or part not in raw_parts:
                    raise KeyError(part, raw_parts)
                decoded[part] = self._decode(part, raw_parts[part], room)
            return decoded[part]

        values = {field: first_that_works(options, field, part_value) for field, options in self.field_map.items()}
        return self.sample_type(**{**{name: known[name] for name in BASE_FIELDS}, **values})

    def _all_decoded(self, raw_parts: Mapping[str, bytes], known: dict[str, Any], room: Room | None) -> CrudeSample:
        """Decode all parts that are read, by a decoder of the user's or each by itself."""
        parts = raw_parts if self.takes_all else {name: data for name, data in raw_parts.items() if self.wants(name)}
        if not self._is_whole or self.decoder is None:
            return CrudeSample({**known, **{name: self._decode(name, data, room) for name, data in parts.items()}})
        try:
            return CrudeSample({**known, **self.decoder({**known, **parts})})
        except HeadraceError:
            raise
        except (LookupError, ValueError, TypeError) as error:
            reason = f"{type(self.decoder).__name__} fails: {type(error).__name__}: {error}"
            raise SampleError(None, reason) from error

    def _from_decoded(self, crude: CrudeSample, known: dict[str, Any], raw_parts: Mapping[str, bytes]) -> Any:
        if self._loader is None:
            return crude if self.sample_type is CrudeSample else self.sample_type(crude)
        try:
            found = self._loader(crude)
            if found is None:
                raise ValueError("it returned None")
            fields = dict(found)
        except HeadraceError:
            raise
        except (LookupError, ValueError, TypeError) as error:
            parts = ", ".join(raw_parts) or "none"
            reason = f"the sample loader fails: {type(error).__name__}: {error}; the sample has the parts {parts}"
            raise SampleError(None, reason) from error
        if self.is_crude:
            return self.sample_type({**known, **fields})
        base = {name: known[name] for name in BASE_FIELDS}
        # As in Energon, a loader may set the key of its samples, but no other base field.
        base["__key__"] = fields.pop("__key__", base["__key__"])
        given, needed = {**fields, **base}, arguments_of(self.sample_type) or {}
        missing = [name for name, is_needed in needed.items() if is_needed and name not in given]
        if missing or given.keys() - needed.keys():
            raise SampleError(
                None,
                f"the sample loader returned the fields {', '.join(fields) or 'none'}, and {self.sample_type.__name__}"
                f" has {', '.join(name for name in needed if name not in BASE_FIELDS)}, of which"
                f" {', '.join(missing) or 'none'} is missing; fields of other names are not allowed",
            )
        return self.sample_type(**given)

    def _decode(self, part: str, data: bytes, room: Room | None) -> Any:
        try:
            decode = bytes if self.decoder is None else self.decoder.decoder_of(part)
            into = [partial(room.place, part)] if room is not None and isinstance(decode, PictureDecoder) else []
            return decode(data, *into)
        except Exception as error:
            reraise(part, error)

    def _check(self, field_map: Mapping[str, str] | None) -> None:
        name = getattr(self.sample_type, "__name__", repr(self.sample_type))
        if field_map is not None and self._loader is not None:
            raise ConfigError(f"{name}: both a field map and a sample loader are given; pass only one of them")
        if field_map is not None and self._wanted is not None:
            raise ConfigError(
                f"{name}: a part filter beside a field map, which already says what is read; remove the filter"
            )
        if self.is_crude:
            if field_map is not None:
                raise ConfigError(f"{name} has no fields for a field map; remove it, or pass a sample type")
            return
        if not dataclasses.is_dataclass(self.sample_type):
            raise ConfigError(f"{name} is not a sample type (a dataclass that derives from Sample)")
        if self._loader is not None:
            return
        if field_map is None:
            raise ConfigError(
                f"{name}: neither a field map nor a sample loader is given; pass field_map={{field: part}}"
            )
        check_fields_of(self.sample_type, field_map)
