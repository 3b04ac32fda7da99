"""Decode images to the form that an option string asks for.

    8 bits             floats [0, 1]        what                                  shape
    torchrgb8 ...      torchrgb, torch      torch tensor, uint8 or float32        (C, H, W); torchl: (H, W)
    rgb8 ...           rgb                  NumPy                                 (H, W, C); l: (H, W)
    chwrgb8 ...        chwrgb               NumPy                                 (C, H, W); chwl: (1, H, W)
    pil, pilrgb ...                         PIL.Image.Image of mode RGB, L, RGBA

The names are webdataset's, except for the chw ones, which are ours. `ImageOptions` says what becomes of orientation,
transparency, cut files and 16 bits.

Pillow converts 16-bit grey and floats to white and black. Here 16 bits become 8 by their high byte, as Pillow does with
16-bit colour, and floats are taken to lie in [0, 1]; pictures of other ranges are refused.

simplejpeg decodes a JPEG if its pixels are equal to Pillow's; Pillow decodes everything else. Both use libjpeg-turbo.
With the slow DCT and the smooth upsampling (their defaults), colour to RGB and grey to grey or RGB are equal in every
byte, at full size and at 1/2, 1/4 and 1/8. Colour to grey differs (luma instead of Pillow's weights of RGB), and so
does CMYK (by one): Pillow decodes these. simplejpeg takes two thirds of Pillow's time.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from headrace.config import nearest
from headrace.errors import ConfigError, DecodeError, MissingExtraError, load_extra
from headrace.samples.media.batch import Place
from headrace.samples.media.decoding.basic import check_pixels


class ImageOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What becomes of pictures that are not plain 8-bit RGB.

    Attributes:
        orientation: ``apply`` turns and mirrors a picture as its EXIF says; ``keep`` leaves the pixels as stored.
        alpha: For forms without alpha. ``drop`` shows the colour that lies below transparent pixels, ``white`` lays the
            picture on white, and ``keep`` adds alpha as a fourth channel to RGB.
        truncated: ``error`` refuses a file that is cut short; ``allow`` takes what there is, as Pillow's
            ``LOAD_TRUNCATED_IMAGES`` does.
        depth: Bits of a channel before it becomes a float: ``8`` gives uint8, ``16`` gives uint16 instead.
    """

    orientation: Literal["keep", "apply"] = "keep"
    alpha: Literal["drop", "white", "keep"] = "drop"
    truncated: Literal["error", "allow"] = "error"
    depth: Literal[8, 16] = 8


JpegCodec = Literal["auto", "simplejpeg", "pillow"]
"""The codec for JPEG; ``auto`` is simplejpeg if it is installed."""

_SOURCES = {"L": ("Gray",), "RGB": ("YCbCr", "Gray"), "RGBA": ("YCbCr", "Gray")}
_TARGETS = {"L": "GRAY", "RGB": "RGB", "RGBA": "RGBA"}
_CHANNELS = {"L": 1, "RGB": 3, "RGBA": 4}


def load_simplejpeg(codec: JpegCodec) -> Any:
    """Return the module, or None if Pillow is to be used.

    Raises:
        MissingExtraError: If the codec is requested by name and not installed.
    """
    if codec == "pillow":
        return None
    try:
        import simplejpeg
    except ImportError as error:
        if codec == "simplejpeg":
            raise MissingExtraError("JPEG by simplejpeg needs it: pip install 'headrace[image]'") from error
        return None
    return simplejpeg


def scale_to_cover(width: int, height: int, size: tuple[int, int] | None) -> int:
    """Return the largest of 8, 4, 2, 1 by which an image can be divided, rounded up, and still cover ``size``.

    ``size`` is (height, width).
    """
    if size is None:
        return 1
    for scale in (8, 4, 2):
        if min(height, width) >= scale and -(-height // scale) >= size[0] and -(-width // scale) >= size[1]:
            return scale
    return 1


def decode_jpeg(
    simplejpeg: Any,
    data: bytes,
    mode: str,
    size: tuple[int, int] | None,
    max_pixels: int,
    place: Place,
) -> np.ndarray[Any, Any] | None:
    """Return pixels (H, W) or (H, W, C) uint8, or None if Pillow has to decode the image or to report what is wrong.

    Args:
        simplejpeg: The module.
        data: The JPEG.
        mode: "L", "RGB" or "RGBA".
        size: See `scale_to_cover`.
        max_pixels: A larger image is refused.
        place: Returns the array to decode into; to let simplejpeg make one takes 10 us more.

    Raises:
        DecodeError: If the image has more than ``max_pixels``.
    """
    try:
        height, width, colorspace, _ = simplejpeg.decode_jpeg_header(data)
    except ValueError:
        return None
    check_pixels(width, height, max_pixels)
    if colorspace not in _SOURCES[mode]:
        return None
    scale = scale_to_cover(width, height, size)
    height, width = -(-height // scale), -(-width // scale)
    options: dict[str, Any] = {} if scale == 1 else {"min_height": height, "min_width": width, "min_factor": scale}
    pixels = place((height, width) if mode == "L" else (height, width, _CHANNELS[mode]), np.uint8)
    try:
        made = simplejpeg.decode_jpeg(data, _TARGETS[mode], buffer=pixels, **options)
    except ValueError:
        # simplejpeg refuses damage that libjpeg can repair; Pillow repairs it or refuses the image.
        return None
    return pixels if made.shape[:2] == (height, width) else None


Pixels = np.ndarray[Any, Any]


class ImageForm(NamedTuple):
    """The form that an option string asks for."""

    kind: Literal["torch", "numpy", "chw", "pil"]
    mode: Literal["L", "RGB", "RGBA"]
    is_float: bool


def _forms() -> dict[str, ImageForm]:
    forms: dict[str, ImageForm] = {}
    modes: tuple[tuple[str, Literal["L", "RGB", "RGBA"]], ...] = (("l", "L"), ("rgb", "RGB"), ("rgba", "RGBA"))
    for name, mode in modes:
        for before, kind in (("torch", "torch"), ("", "numpy"), ("chw", "chw")):
            forms[f"{before}{name}8"] = ImageForm(kind, mode, False)  # type: ignore[arg-type]
            forms[f"{before}{name}"] = ImageForm(kind, mode, True)  # type: ignore[arg-type]
        forms[f"pil{name}"] = ImageForm("pil", mode, False)
    forms["torch"] = forms["torchrgb"]
    forms["pil"] = forms["pilrgb"]
    return forms


IMAGE_FORMS = _forms()
"""The forms by option string."""

IMAGE_EXTENSIONS = frozenset(
    [
        "apng", "avif", "avifs", "blp", "bmp", "bw", "cur", "dcx", "dds", "dib", "emf", "eps", "fit", "fits", "flc",
        "fli", "ftc", "ftu",
        "gbr", "gif", "icb", "icns", "ico", "iim", "im", "j2c", "j2k", "jfif", "jp2", "jpc", "jpe", "jpeg", "jpf",
        "jpg", "jpx", "jxl", "mpo", "msp", "pbm", "pcd", "pcx", "pfm", "pgm", "png", "pnm", "ppm", "ps", "psd", "pxr",
        "qoi", "ras", "rgb", "rgba", "sgi", "tga", "tif", "tiff", "vda", "webp", "wmf", "xbm", "xpm"
    ]
)  # fmt: skip
"""The extensions of images, by the last component of a part's name, in any case. Those of webdataset's list that Pillow
recognises but cannot read (bufr, grib, h5, hdf) are left out, and newer formats are added; mpg and mpeg are videos.
"""

# For EPS, Pillow would run Ghostscript on the data; the others it only recognises.
_REFUSED_FORMATS = frozenset(("EPS", "BUFR", "GRIB", "HDF5", "WMF", "MPEG"))
_COMMON_FORMATS = ("JPEG", "PNG", "WEBP", "GIF")


def image_form(option: str) -> ImageForm:
    """Return the form that an option string asks for.

    Raises:
        ConfigError: If the option is unknown; lists the known ones.
    """
    if option in IMAGE_FORMS:
        return IMAGE_FORMS[option]
    known = ", ".join(sorted(IMAGE_FORMS))
    raise ConfigError(f"image_decode is {option!r}; known are {known}{nearest(str(option), IMAGE_FORMS)}")


def image_decoder(
    option: str,
    *,
    options: ImageOptions,
    size: tuple[int, int] | None,
    max_pixels: int,
    codec: JpegCodec,
) -> Callable[..., Any]:
    """Return a function that decodes the bytes of an image, into memory that a second argument, a `Place`, returns.

    Args:
        option: See ``image_form``.
        options: See ``ImageOptions``.
        size: The (height, width) that a JPEG must have at least; it is decoded at 1/2, 1/4 or 1/8 if that is enough.
        max_pixels: A larger image is refused before it is decoded.
        codec: The codec for JPEG.

    Raises:
        ConfigError: If the option is unknown, or does not go with the others.
        MissingExtraError: If Pillow, torch (for tensors) or the codec is not installed.
    """
    form = checked_form(option, options)
    image_module = _load_pillow()
    simplejpeg = load_simplejpeg(codec)
    finish = _finisher(form)
    is_plain = form.kind != "pil" and options.orientation == "keep" and options.depth == 8
    is_as_decoded = form.kind == "numpy" and not form.is_float

    def decode(data: bytes, place: Place = np.empty) -> Any:
        pixels = None
        if simplejpeg is not None and is_plain and data[:2] == b"\xff\xd8":
            pixels = decode_jpeg(simplejpeg, data, form.mode, size, max_pixels, place if is_as_decoded else np.empty)
            if pixels is not None and is_as_decoded:
                return pixels
        if pixels is None:
            pixels = _through_pillow(image_module, data, form, options, size, max_pixels)
        return pixels if form.kind == "pil" else finish(to_form(pixels, form, place))

    return decode


def checked_form(option: str, options: ImageOptions) -> ImageForm:
    """Return the form of an option string together with options.

    Raises:
        ConfigError: If the option string is unknown, or they contradict each other.
    """
    form = image_form(option)
    if options.alpha == "keep" and form.mode == "L":
        raise ConfigError(
            f"alpha is 'keep', but image_decode {option!r} has one channel; allowed is alpha 'drop', 'white'"
        )
    if options.depth == 16 and form.kind == "pil" and (form.mode, options.alpha) != ("L", "drop"):
        raise ConfigError(
            f"depth is 16, and Pillow has no 16-bit colour: image_decode is {option!r}; allowed are 'pill' and arrays,"
            " such as 'rgb8' or 'torchl'"
        )
    return form._replace(mode="RGBA") if options.alpha == "keep" else form


def to_form(pixels: Pixels, form: ImageForm, place: Place = np.empty) -> Pixels:
    """Return pixels (H, W) or (H, W, C) in the layout and dtype of a form, in an array that ``place`` returns."""
    if form.kind != "numpy":
        pixels = pixels.transpose(2, 0, 1) if pixels.ndim == 3 else pixels[None] if form.kind == "chw" else pixels
    out = place(pixels.shape, np.float32 if form.is_float else pixels.dtype.type)
    if form.is_float:
        # A division that has to gather its numbers takes a quarter longer.
        np.divide(np.ascontiguousarray(pixels), np.float32(np.iinfo(pixels.dtype).max), out=out, dtype=np.float32)
    else:
        np.copyto(out, pixels)
    return out


def _finisher(form: ImageForm) -> Callable[[Pixels], Any]:
    """Return a function that makes tensors of arrays if the form asks for tensors."""
    if form.kind != "torch":
        return lambda pixels: pixels
    torch = load_extra(
        "torch",
        "images as torch tensors need torch: pip install 'headrace[torch]', or use NumPy arrays: "
        f"image_decode='chw{form.mode.lower()}{'' if form.is_float else '8'}'",
    )
    return torch.from_numpy  # type: ignore[no-any-return]


def _through_pillow(
    image_module: Any,
    data: bytes,
    form: ImageForm,
    options: ImageOptions,
    size: tuple[int, int] | None,
    max_pixels: int,
) -> Any:
    """Return pixels (H, W) or (H, W, C), uint8 or uint16, or a Pillow image, as the form asks for."""
    _check_header(data, max_pixels)
    allows = options.truncated == "allow"
    if allows and data[:2] == b"\xff\xd8":
        data += b"\xff\xd9"  # libjpeg fills up the rest once it meets the end of the image
    with _opened(image_module, data) as image:
        check_pixels(image.width, image.height, max_pixels)
        turns = options.orientation == "apply" and image.getexif().get(_ORIENTATION, 1) >= 5
        scale = scale_to_cover(image.width, image.height, size[::-1] if size is not None and turns else size)
        if scale > 1 and image.format in ("JPEG", "MPO"):
            image.draft(None, (image.width // scale, image.height // scale))
        form_on_disk = image.format
        has_deep_colour = image.mode not in ("1", "L", "P") and form_on_disk in _DEEP_COLOUR
        has_deep_colour |= any("16" in tile[0] or ";16" in str(tile[3]) for tile in image.tile)
        try:
            image.load()
        except OSError as error:
            if not allows or "truncated" not in str(error).lower():
                raise
            image.tile = []  # the lines before are decoded; nothing else is loaded
        check_pixels(image.width, image.height, max_pixels)
        if options.orientation == "apply":
            from PIL import ImageOps

            image = ImageOps.exif_transpose(image)
        deep = _deep_pixels(image, form_on_disk)
        if deep is not None and (form.mode == "RGBA" or options.alpha == "white") and "transparency" in image.info:
            raise DecodeError(None, "is 16-bit grey with a transparent value, which is not kept; use alpha='drop'")
        if deep is None and options.depth == 16 and has_deep_colour:
            raise DecodeError(
                None, "may have more than 8 bits of colour, of which Pillow decodes 8; use depth=8, or store an npy"
            )
        if deep is None or options.depth == 8:
            image = image if deep is None else _with_info(image_module.fromarray((deep >> 8).astype(np.uint8)), image)
            image = _on_white(image_module, image) if options.alpha == "white" else image
        if options.depth == 16:
            return _sixteen_bits(image_module, image, deep, form)
        if form.kind == "pil":
            return image.convert(form.mode)
        return np.array(image if image.mode == form.mode else image.convert(form.mode))


_ORIENTATION = 0x0112
_DEEP_COLOUR = ("JPEG2000", "AVIF", "JXL", "PPM", "DDS")
"""Formats whose colour may have more than 8 bits of which Pillow does not tell."""


def _opened(image_module: Any, data: bytes) -> Any:
    formats = _formats(image_module)
    for name, begins in (("AVIF", (b"ftypavif", b"ftypavis")), ("JXL", (b"JXL \r\n\x87\n",))):
        if name not in formats and (data[4:12] in begins or (name == "JXL" and data[:2] == b"\xff\x0a")):
            raise MissingExtraError(
                f"the image is {name}, which this Pillow was built without: install one that reads it"
            )
    return image_module.open(io.BytesIO(data), formats=formats)


def _on_white(image_module: Any, image: Any) -> Any:
    if not image.has_transparency_data:
        return image
    white = image_module.new("RGBA", image.size, "white")
    white.alpha_composite(image.convert("RGBA"))
    white.info = {name: value for name, value in image.info.items() if name != "transparency"}
    return white


def _deep_pixels(image: Any, form_on_disk: str | None) -> Pixels | None:
    """Return the pixels (H, W) uint16 of 16-bit grey or of floats; None for a picture of 8 bits.

    Raises:
        DecodeError: If nothing says what is black and what is white.
    """
    # Pillow scales the integers of a PGM to 16 bits.
    if image.mode.startswith("I;16") or (image.mode == "I" and form_on_disk == "PPM"):
        return np.asarray(image).astype(np.uint16)
    if image.mode not in ("I", "F"):
        return None
    values = np.asarray(image)
    low, high = values.min(), values.max()
    if image.mode == "F" and low >= 0 and high <= 1:
        return np.rint(values * np.float32(65535)).astype(np.uint16)
    kind = "32-bit integers" if image.mode == "I" else "floats"
    raise DecodeError(
        None,
        f"the image has {kind} from {low:g} to {high:g}, and nothing says which of them are black and white; allowed"
        " are 8 and 16 bits and floats from 0 to 1; store other values as npy",
    )


def _sixteen_bits(image_module: Any, image: Any, deep: Pixels | None, form: ImageForm) -> Any:
    if deep is None:
        deep = np.array(image.convert(form.mode)).astype(np.uint16) * np.uint16(257)
    elif form.mode != "L":
        deep = np.repeat(deep[:, :, None], _CHANNELS[form.mode], axis=2)
        deep[:, :, 3:] = 65535
    if form.kind != "pil":
        return deep
    return _with_info(image_module.fromarray(deep), image)


def _with_info(image: Any, other: Any) -> Any:
    image.info = other.info
    return image


def _check_header(data: bytes, max_pixels: int) -> None:
    """Check the sizes of PNG, GIF and WebP before Pillow opens them.

    On opening, Pillow warns of large images and allocates memory for WebP.
    """
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        check_pixels(*_webp_size(data), max_pixels)
    elif data[:8] == b"\x89PNG\r\n\x1a\n" and data[12:16] == b"IHDR" and len(data) >= 24:
        check_pixels(int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big"), max_pixels)
    elif data[:4] == b"GIF8" and len(data) >= 10:
        check_pixels(int.from_bytes(data[6:8], "little"), int.from_bytes(data[8:10], "little"), max_pixels)
    elif not data:
        raise DecodeError(None, "is empty, not an image")


def _webp_size(data: bytes) -> tuple[int, int]:
    """Return width and height from the first chunk; (0, 0) if its kind is unknown. Pillow then refuses the image."""
    kind = data[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 ":
        return int.from_bytes(data[26:28], "little") & 0x3FFF, int.from_bytes(data[28:30], "little") & 0x3FFF
    return 0, 0


def _formats(image_module: Any) -> tuple[str, ...]:
    """Return the formats that Pillow may try, the common ones first."""
    global _known_formats
    if not _known_formats:
        image_module.init()
        rest = [name for name in image_module.OPEN if name not in _REFUSED_FORMATS and name not in _COMMON_FORMATS]
        _known_formats = (*(name for name in _COMMON_FORMATS if name in image_module.OPEN), *rest)
    return _known_formats


_known_formats: tuple[str, ...] = ()


def _load_pillow() -> Any:
    return load_extra("PIL.Image", "decoding images needs Pillow: pip install 'headrace[image]'")
