"""What a part is by its first bytes, where its name does not say it."""

from __future__ import annotations

_BEGINS = (
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"BM", "bmp"),
    (b"II*\x00", "tif"),
    (b"MM\x00*", "tif"),
    (b"8BPS", "psd"),
    (b"\x00\x00\x01\x00", "ico"),
    (b"\x00\x00\x00\x0cjP  \r\n\x87\n", "jp2"),
    (b"fLaC", "flac"),
    (b"ID3", "mp3"),
    (b"\xff\xfb", "mp3"),
    (b"\xff\xf3", "mp3"),
    (b"\xff\xf2", "mp3"),
    (b"FLV\x01", "flv"),
)
_RIFF = {b"WEBP": "webp", b"WAVE": "wav", b"AVI ": "avi"}
_STILLS = (b"avif", b"avis", b"heic", b"heix", b"hevc", b"heim", b"mif1", b"msf1")


def guess_extension(data: bytes) -> str | None:
    """The extension that the bytes deserve, where they are an image, a video or sound that is known; else None."""
    for begins, extension in _BEGINS:
        if data.startswith(begins):
            return extension
    if data[:4] == b"RIFF":
        return _RIFF.get(data[8:12])
    if data[4:8] == b"ftyp":
        brand = data[8:12]
        return None if brand in _STILLS else "mov" if brand == b"qt  " else "mp4"
    if data[:4] == b"\x1a\x45\xdf\xa3":
        return "webm" if b"webm" in data[:64] else "mkv"
    return None
