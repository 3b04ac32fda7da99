"""Facts about media files, with attributes and as a mapping: ``facts.width`` and ``facts["width"]``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from headrace.errors import ConfigError


class MediaFacts(Mapping[str, Any]):
    """The base of facts: a dataclass that is also a mapping of the facts that are known, and of their ``type``."""

    type: ClassVar[str]

    def _known(self) -> dict[str, Any]:
        named = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}  # type: ignore[arg-type]
        return {"type": self.type, **{name: value for name, value in named.items() if value is not None}}

    def __getitem__(self, name: str) -> Any:
        return self._known()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._known())

    def __len__(self) -> int:
        return len(self._known())


@dataclasses.dataclass(kw_only=True, eq=False)
class ImageMetadata(MediaFacts):
    """Facts about an image.

    Attributes:
        width: In pixels.
        height: In pixels.
        format: Pillow's name of the format, such as ``JPEG``.
        mode: Pillow's name of the pixels, such as ``RGB``.
    """

    type: ClassVar[str] = "image"

    width: int | None = None
    height: int | None = None
    format: str | None = None
    mode: str | None = None


@dataclasses.dataclass(kw_only=True, eq=False)
class AVMetadata(MediaFacts):
    """Facts about a video or a sound; None for those that do not exist or were not requested.

    Attributes:
        video_duration: In seconds.
        video_num_frames: The number of frames.
        video_fps: The average number of frames per second.
        video_width: In pixels.
        video_height: In pixels.
        audio_duration: In seconds.
        audio_channels: The number of channels.
        audio_sample_rate: Samples per second.
        audio_num_samples: The number of samples of one channel.
    """

    type: ClassVar[str] = "av"

    video_duration: float | None = None
    video_num_frames: int | None = None
    video_fps: float | None = None
    video_width: int | None = None
    video_height: int | None = None
    audio_duration: float | None = None
    audio_channels: int | None = None
    audio_sample_rate: int | None = None
    audio_num_samples: int | None = None


def media_facts(found: Mapping[str, Any]) -> MediaFacts:
    """Return facts as an index holds them, ``{"type": "image", "width": 640}``, as an object.

    Raises:
        ConfigError: facts of another type, or unknown ones.
    """
    kinds: dict[str, type[ImageMetadata | AVMetadata]] = {"image": ImageMetadata, "av": AVMetadata}
    facts = {name: value for name, value in found.items() if name != "type"}
    try:
        return kinds[found["type"]](**facts)
    except (KeyError, TypeError) as error:
        raise ConfigError(
            f"media metadata {dict(found)!r:.200} are not those of an image, a video or a sound"
        ) from error
