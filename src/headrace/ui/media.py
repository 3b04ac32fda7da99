"""The bytes of parts of samples: pictures made anew, video and sound as they are, and anything as a download."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

import numpy as np
from starlette.responses import Response

from headrace.errors import ConfigError
from headrace.inspect.samples import MAX_PIXELS_SIDE, PartViewer, need_samples
from headrace.ui.files import encoded, played_type
from headrace.ui.requests import Query

MAX_PLAYED: Final = 1 << 30
"""The largest video or sound that is sent."""

_RANGE: Final = re.compile(r"bytes=(\d+)-(\d*)")


class Part(NamedTuple):
    """Bytes with the type that they are sent as; a name makes them a download."""

    data: bytes
    media_type: str
    name: str = ""


def part(asked: Query) -> Part:
    """Return a part of a sample: ``as=picture``, ``as=play`` or ``as=file``.

    Raises:
        HeadraceError: there is no such part, or it cannot be decoded.
    """
    path = asked.path("samples")
    name, number = asked.text("part"), asked.number("number", 0)
    with need_samples(path) as store:
        if number >= len(store):
            raise ConfigError(f"{path}: has no sample {number:,}; its {len(store):,} samples are counted from 0")
        found = store.read(np.array([number]))[0].parts
    if name not in found:
        raise ConfigError(f"{path}: sample {number:,} has no part {name!r}; it has {', '.join(found)}")
    data, how = found[name], asked.text("as", "file")
    if how == "picture":
        return _picture(name, data, asked.number("side", MAX_PIXELS_SIDE, low=16, high=MAX_PIXELS_SIDE))
    if how == "play":
        kind = played_type(name)
        if kind is None or len(data) > MAX_PLAYED:
            raise ConfigError(f"{path}: browsers do not play part {name!r} of {len(data):,} bytes; take it as a file")
        return Part(data, kind)
    # Whatever the data are, a browser only saves them.
    return Part(data, "application/octet-stream", re.sub(r"[^A-Za-z0-9._-]", "_", f"{number}.{name}")[-100:])


def _picture(name: str, data: bytes, side: int) -> Part:
    """Return a picture encoded anew, so that the bytes of the data do not reach the browser."""
    looked = PartViewer(max_chars=1).look(name, data)
    if looked.picture is None:
        raise looked.error or ConfigError(f"part {name!r} is no picture")
    picture = looked.picture.convert("RGB")
    picture.thumbnail((side, side))
    return Part(*encoded(picture))


def response(found: Part, wanted: str | None) -> Response:
    """Return the answer with a part, or with the range of its bytes that a player asks for."""
    headers = {"accept-ranges": "bytes"}
    if found.name:
        headers["content-disposition"] = f'attachment; filename="{found.name}"'
    ranged = None if wanted is None else _RANGE.fullmatch(wanted)
    if ranged is None:
        return Response(found.data, media_type=found.media_type, headers=headers)
    size = len(found.data)
    first = int(ranged[1])
    last = min(int(ranged[2]) if ranged[2] else size - 1, size - 1)
    if first > last:
        return Response(status_code=416, headers={"content-range": f"bytes */{size}"})
    headers["content-range"] = f"bytes {first}-{last}/{size}"
    return Response(found.data[first : last + 1], 206, media_type=found.media_type, headers=headers)
