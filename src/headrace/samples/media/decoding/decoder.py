"""`SampleDecoder` decodes the bytes of a part by the part's name or, on request, by its first bytes."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, Self, get_args

import msgspec

from headrace.config import check_choice, convert, whole
from headrace.errors import ConfigError
from headrace.samples.media.batch import Place
from headrace.samples.media.decoding.av_decoder import AV_EXTENSIONS, av_decoder
from headrace.samples.media.decoding.av_streams import AVOptions
from headrace.samples.media.decoding.basic import MAX_BYTES, MAX_PIXELS, basic_decoder, gunzip, reraise
from headrace.samples.media.decoding.images import (
    IMAGE_EXTENSIONS,
    ImageOptions,
    JpegCodec,
    checked_form,
    image_decoder,
)

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
    (b"OggS", "ogg"),
    (b"\xff\x0a", "jxl"),
    (b"\x00\x00\x00\x0cJXL \r\n\x87\n", "jxl"),
)
_RIFF = {b"WEBP": "webp", b"WAVE": "wav", b"AVI ": "avi"}
_AVIF = (b"avif", b"avis")
_STILLS = (b"heic", b"heix", b"hevc", b"heim", b"mif1", b"msf1")


def guess_extension(data: bytes) -> str | None:
    """Return the extension for the bytes of a known image, video or sound format; None for others."""
    for begins, extension in _BEGINS:
        if data.startswith(begins):
            return extension
    if data[:4] == b"RIFF":
        return _RIFF.get(data[8:12])
    if data[4:8] == b"ftyp":
        brand = data[8:12]
        return "avif" if brand in _AVIF else None if brand in _STILLS else "mov" if brand == b"qt  " else "mp4"
    if data[:4] == b"\x1a\x45\xdf\xa3":
        return "webm" if b"webm" in data[:64] else "mkv"
    return None


Decode = Callable[..., Any]


class PictureDecoder(partial[Any]):
    """Decodes pictures; unlike other decoders it also takes a `Place`, into whose arrays it decodes."""


def _picture(make: Callable[[], Callable[..., Any]], data: bytes, *place: Place) -> Any:
    return make()(data, *place)


class SampleDecoder:
    """Decodes parts by the last component of their name; parts with other names stay bytes.

    A trailing ``.gz`` is removed first. The options decide about the form of images (``jpg``, ``png``, ... in any case)
    and media (``mp4``, ``wav``, ...). ``txt text transcript`` become str, ``cls cls2 index inx id`` int, ``json jsn``,
    ``mp msg`` and ``cbor`` the values that they hold, ``npy``, ``npz`` and ``ten tb`` arrays, ``pth`` what `torch.save`
    wrote. Code (``pkl pickle pyd``, and in ``pth`` whatever is neither tensor nor plain value) is refused unless
    trusted. Decoding functions are made once for each name of a part. Safe in threads; pickles as its options.

    Example:
        >>> from headrace.samples.media import SampleDecoder
        >>> decoder = SampleDecoder(image_decode="rgb8")
        >>> decoder.decode("json", b'{"boxes": [[0, 0, 8, 8]]}')
        {'boxes': [[0, 0, 8, 8]]}
        >>> decoder({"__key__": "a", "cls": b"7", "txt": b"a cat"})
        {'__key__': 'a', 'cls': 7, 'txt': 'a cat'}
    """

    def __init__(
        self,
        *,
        image_decode: str = "torchrgb",
        av_decode: Literal["AVDecoder", "torch", "numpy", "pyav"] = "AVDecoder",
        video_decode_audio: bool = False,
        guess_content: bool = False,
        trust_code: bool = False,
        max_pixels: int = MAX_PIXELS,
        max_bytes: int = MAX_BYTES,
        image_size: tuple[int, int] | None = None,
        jpeg: JpegCodec = "auto",
        image_options: ImageOptions | Mapping[str, Any] = ImageOptions(),  # noqa: B008 (it is frozen)
        av_options: AVOptions | Mapping[str, Any] = AVOptions(),  # noqa: B008
    ) -> None:
        """Check the options; nothing is imported before the first part that needs it.

        Args:
            image_decode: The form of images: ``torchrgb``, ``pil``, ``rgb8``, ``chwrgb`` ...; see ``decoding.images``.
            av_decode: ``AVDecoder`` decodes when asked. ``torch`` and ``numpy`` decode all of it to ``AVData``.
                ``pyav`` is PyAV's own container.
            video_decode_audio: Decode the sound of videos too, for ``torch`` and ``numpy``.
            guess_content: Recognise images and media by their first bytes, and by name only if these say nothing.
            trust_code: Read pickles, also within ``pth``, which may run any code.
            max_pixels: Larger images and frames are refused before they are decoded. Pillow has its own bound, the same
                by default: it warns above ``PIL.Image.MAX_IMAGE_PIXELS`` and refuses twice as much.
            max_bytes: What inflates to more (gz, npz, pth) or declares more (npy) is refused before it is made.
            image_size: The (height, width) that images need to have at least. A JPEG is then decoded at 1/2, 1/4 or 1/8
                if the result is still at least as large, which is several times as fast. Other formats are decoded at
                full size.
            jpeg: The codec for JPEG; ``auto`` is simplejpeg if it is installed. The pixels are the same.
            image_options: What becomes of orientation, alpha, cut files and 16 bits, or a mapping of these.
            av_options: Resampling, mono and rotation, or a mapping of these.

        Raises:
            ConfigError: If an option has an unknown value.
        """
        self._images = convert(image_options, ImageOptions, "image_options")
        self._av = convert(av_options, AVOptions, "av_options")
        checked_form(image_decode, self._images)
        if av_decode == "pyav" and self._av != AVOptions():
            raise ConfigError("av_options are given, but av_decode is 'pyav', which leaves all decoding to you")
        check_choice("av_decode", av_decode, ("AVDecoder", "torch", "numpy", "pyav"))
        check_choice("jpeg", jpeg, get_args(JpegCodec))
        if image_size is not None and (len(image_size) != 2 or min(image_size) < 1):
            raise ConfigError(f"image_size is {image_size!r}; allowed is (height, width) in pixels, both at least 1")
        self._options: dict[str, Any] = {
            "image_decode": image_decode,
            "av_decode": av_decode,
            "video_decode_audio": video_decode_audio,
            "guess_content": guess_content,
            "trust_code": trust_code,
            "max_pixels": whole(max_pixels, "max_pixels", least=1),
            "max_bytes": whole(max_bytes, "max_bytes", least=1),
            "image_size": image_size,
            "jpeg": jpeg,
        }
        for key, given in (("image_options", self._images), ("av_options", self._av)):
            if changed := msgspec.to_builtins(given):
                self._options[key] = changed
        self._decoders: dict[str, Decode] = {}
        self._trusts = trust_code

    @property
    def is_overridden(self) -> bool:
        """Whether a class of the user's decodes whole samples in a way of its own, so that it has to be called."""
        return type(self).__call__ is not SampleDecoder.__call__

    def trusting(self) -> Self:
        """Return the same decoder, which also reads pickles. Its `config` is the same."""
        found = copy.copy(self)
        found._decoders, found._trusts = {}, True
        return found

    def config(self) -> dict[str, Any]:
        """Return the options as they were passed."""
        return dict(self._options)

    def decode(self, part: str, data: bytes) -> Any:
        """Return the value of one part.

        Raises:
            DecodeError: If the part cannot be decoded, is too large, or is not trusted; names the part and the cause.
            MissingExtraError: If the library that decodes it is not installed.
        """
        try:
            return self.decoder_of(part)(data)
        except Exception as error:
            reraise(part, error)

    def decode_file(self, name: str, data: bytes) -> Any:
        """Return the content of a file, decoded by its extension, ``jpg`` or ``json.gz``; else by its name.

        A class that overrides `decode` gets the whole name, as in Energon. Raises as `decode`.
        """
        return self.decode(_extension(name) if type(self).decode is SampleDecoder.decode else name, data)

    def __call__(self, parts: Mapping[str, Any]) -> dict[str, Any]:
        """Decode all parts of a sample; names that begin with two underscores, and values that are not bytes, stay."""
        return {
            part: self.decode(part, data) if isinstance(data, bytes) and part[:2] != "__" else data
            for part, data in parts.items()
        }

    def decoder_of(self, part: str) -> Decode:
        """Return a function that decodes the bytes of parts with this name and raises whatever its codec raises."""
        decode = self._decoders.get(part)
        if decode is None:
            decode = self._decoders[part] = self._make(part)
        return decode

    def _make(self, part: str) -> Decode:
        name = f".{part}"
        max_bytes = self._options["max_bytes"]
        if not name.endswith(".gz"):
            return self._inflated(name)
        inner = self._inflated(name.removesuffix(".gz"))
        return lambda data: inner(gunzip(data, max_bytes))

    def _inflated(self, name: str) -> Decode:
        extension = name.rpartition(".")[2]
        by_name = self._media(extension.lower())
        basic = basic_decoder(extension, trust_code=self._trusts, max_bytes=self._options["max_bytes"])
        if not self._options["guess_content"]:
            return by_name or basic or bytes
        by_content: dict[str, Decode | None] = {}

        def decode(data: bytes) -> Any:
            guessed = guess_extension(data)
            if guessed is None:
                return (by_name or basic or bytes)(data)
            if guessed not in by_content:
                by_content[guessed] = self._media(guessed)
            return (by_content[guessed] or basic or bytes)(data)

        return decode

    def _media(self, extension: str) -> Decode | None:
        """Return a decoder for images or media of an extension; codecs are imported when it is first called."""
        options = self._options
        if extension in IMAGE_EXTENSIONS:
            make = functools.cache(
                partial(
                    image_decoder,
                    options["image_decode"],
                    options=self._images,
                    size=options["image_size"],
                    max_pixels=options["max_pixels"],
                    codec=options["jpeg"],
                )
            )
            return PictureDecoder(_picture, make)
        if extension in AV_EXTENSIONS:
            return av_decoder(
                options["av_decode"],
                with_audio=options["video_decode_audio"],
                max_pixels=options["max_pixels"],
                options=self._av,
            )
        return None

    def __getstate__(self) -> dict[str, Any]:
        # Decoding functions cannot be pickled; they are made again. Attributes of a class of the user's stay.
        return {**self.__dict__, "_decoders": {}}

    def __repr__(self) -> str:
        defaults = SampleDecoder.__init__.__kwdefaults__ or {}
        given = (f"{name}={value!r}" for name, value in self._options.items() if defaults.get(name) != value)
        return f"SampleDecoder({', '.join(given)})"


def _extension(name: str) -> str:
    """Return the extension that a decoder goes by: ``jpg``, ``json.gz``; the whole file name if it has none."""
    stem, _, last = name.rpartition("/")[2].rpartition(".")
    inner = stem.rpartition(".")[2] if last == "gz" and "." in stem else ""
    return f"{inner}.{last}" if inner else last
