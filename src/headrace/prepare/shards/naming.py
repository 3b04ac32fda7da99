"""Keys of samples and names of parts: what may be one, and what is made of a name that may not. Pure."""

from __future__ import annotations

from typing import Literal

from headrace.errors import StoreError
from headrace.io import safe_relative
from headrace.stores.tar.names import sample_part

KeyDots = Literal["error", "replace", "part"]
NUMBER_DIGITS = 9

_MAGIC: tuple[tuple[int, bytes, str], ...] = (
    (0, b"\xff\xd8\xff", "jpg"),
    (0, b"\x89PNG\r\n\x1a\n", "png"),
    (8, b"WEBP", "webp"),
    (0, b"GIF8", "gif"),
    (0, b"II*\0", "tiff"),
    (0, b"MM\0*", "tiff"),
    (0, b"\x00\x00\x00\x0cjP  ", "jp2"),
    (4, b"ftypavif", "avif"),
    (4, b"ftyphei", "heic"),
    (0, b"BM", "bmp"),
)
HEAD_BYTES = 16


class BadNameError(ValueError):
    """A name that cannot be a key; says why, and what to do."""


def image_part(head: bytes) -> str | None:
    """The extension of an image by its first `HEAD_BYTES`; None: no image that is known."""
    return next((name for at, magic, name in _MAGIC if head[at : at + len(magic)] == magic), None)


def numbered(number: int) -> str:
    """The key of a sample without a name."""
    return f"{number:0{NUMBER_DIGITS}d}"


def checked_key(key: str, dots: KeyDots) -> str:
    """The key, or what ``replace`` makes of it.

    Raises:
        BadNameError: it cannot be a key.
    """
    folder, slash, base = key.rpartition("/")
    if "." in base.lstrip(".") or base.startswith("."):
        if dots != "replace":
            raise BadNameError(
                f"the key {key!r} has a dot in its last part, where readers would cut it; --key-dots replace writes _"
            )
        key = folder + slash + base.replace(".", "_")
    try:
        safe_relative(key)
        key.encode()
    except StoreError:
        raise BadNameError(
            f"{key!r} cannot be a key: it is not a plain relative name (empty, absolute, with .. or a backslash)"
        ) from None
    except UnicodeEncodeError:
        raise BadNameError(f"{key!r} cannot be a key: it is not UTF-8") from None
    if sample_part(f"{key}.x") != (key, "x"):
        raise BadNameError(f"{key!r} cannot be a key: readers pass over names that begin with __...__, or break a line")
    return key


def file_sample(name: str, dots: KeyDots) -> tuple[str, str] | None:
    """What groups a file with others, and the name of its part; None: the file belongs to no sample.

    ``cats/01.jpg`` is part ``jpg`` of ``cats/01``. Of ``cats/01.seg.png`` it is ``seg.png`` with ``part``, as
    webdataset reads it, else ``png`` of ``cats/01.seg``, which `checked_key` then refuses or replaces.
    """
    found = sample_part(name, hidden=False)
    if found is None or dots == "part" or "." not in found[1]:
        return found
    key, _, part = name.rpartition(".")
    return key, part
