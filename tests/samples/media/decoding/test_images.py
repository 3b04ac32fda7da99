"""Images come out as webdataset has them, pixel by pixel, whichever codec reads them."""

from __future__ import annotations

import io
import sys
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile

import media_made
from headrace.errors import ConfigError, DecodeError, MissingExtraError
from headrace.samples.media import SampleDecoder
from headrace.samples.media.decoding.images import IMAGE_EXTENSIONS, IMAGE_FORMS, scale_to_cover

THEIRS = [
    "l8",
    "rgb8",
    "rgba8",
    "l",
    "rgb",
    "rgba",
    "torchl8",
    "torchrgb8",
    "torchrgba8",
    "torchl",
    "torchrgb",
    "torch",
]
THEIRS += ["torchrgba", "pill", "pil", "pilrgb", "pilrgba"]
OURS = ["chwl8", "chwrgb8", "chwrgba8", "chwl", "chwrgb", "chwrgba"]


def mode_of(option: str) -> str:
    bare = option.removeprefix("torch").removeprefix("chw").removeprefix("pil").removesuffix("8")
    return (bare or "rgb").upper()


def expected(option: str, data: bytes) -> Any:
    """What webdataset's ``imagehandler`` returns, said with Pillow and NumPy (compared with its live output)."""
    image = Image.open(io.BytesIO(data)).convert(mode_of(option))
    if option.startswith("pil"):
        return image
    array = np.asarray(image)
    if not option.endswith("8"):
        array = array.astype(np.float32) / 255.0
    if option.startswith(("torch", "chw")) and array.ndim == 3:
        array = array.transpose(2, 0, 1)
    if option.startswith("chw") and array.ndim == 2:
        array = array[None]
    return torch.from_numpy(array.copy()) if option.startswith("torch") else array


def same(found: Any, wanted: Any) -> None:
    if isinstance(wanted, Image.Image):
        assert isinstance(found, Image.Image)
        assert (found.mode, found.size, found.tobytes()) == (wanted.mode, wanted.size, wanted.tobytes())
        return
    assert type(found) is type(wanted)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    if isinstance(wanted, torch.Tensor):
        assert found.is_contiguous()
        assert torch.equal(found, wanted)
    else:
        assert found.flags.c_contiguous
        assert found.flags.writeable
        assert np.array_equal(found, wanted)


@pytest.mark.parametrize("jpeg", ["auto", "simplejpeg", "pillow"])
@pytest.mark.parametrize("option", THEIRS + OURS)
def test_every_form_of_every_format(option: str, jpeg: Any) -> None:
    decoder = SampleDecoder(image_decode=option, jpeg=jpeg)
    for part, data in media_made.images().items():
        if jpeg != "auto" and part.lower().rpartition(".")[2] not in ("jpg", "jpeg"):
            continue
        same(decoder.decode(part, data), expected(option, data))


def test_all_forms_are_tested() -> None:
    assert sorted(THEIRS + OURS) == sorted(IMAGE_FORMS)


def test_ranges_and_shapes() -> None:
    data = media_made.images()["s0.JPEG"]
    image = SampleDecoder().decode("jpg", data)
    assert image.shape == (3, 37, 53)
    assert image.dtype == torch.float32
    assert 0 <= image.min() < image.max() <= 1
    assert SampleDecoder(image_decode="torchl8").decode("jpg", data).shape == (37, 53)
    assert SampleDecoder(image_decode="chwl8").decode("jpg", data).shape == (1, 37, 53)


@pytest.mark.parametrize("form", ["rgb8", "l8"])
@pytest.mark.parametrize("shape", [(480, 641), (199, 200), (37, 53), (8, 8), (1, 1)])
def test_scaled_decoding_covers_and_codecs_agree(shape: tuple[int, int], form: str) -> None:
    data = media_made.encoded(Image.fromarray(media_made.pixels(*shape)), "JPEG")
    for size in [(1, 1), (24, 24), (25, 26), (60, 81), (61, 80), (100, 100), (240, 320), (241, 320), (9999, 1)]:
        found = SampleDecoder(image_decode=form, image_size=size).decode("jpg", data)
        plain = SampleDecoder(image_decode=form, image_size=size, jpeg="pillow").decode("jpg", data)
        assert np.array_equal(found, plain)
        scale = scale_to_cover(shape[1], shape[0], size)
        assert found.shape[:2] == (-(-shape[0] // scale), -(-shape[1] // scale))
        if scale > 1:
            assert found.shape[0] >= size[0]
            assert found.shape[1] >= size[1]


def test_scale_is_the_largest_that_covers() -> None:
    assert scale_to_cover(640, 480, None) == 1
    assert scale_to_cover(640, 480, (60, 80)) == 8
    assert scale_to_cover(640, 480, (61, 80)) == 4
    assert scale_to_cover(640, 480, (240, 320)) == 2
    assert scale_to_cover(640, 480, (241, 320)) == 1
    assert scale_to_cover(641, 480, (60, 81)) == 8


def test_scaled_decoding_leaves_other_formats() -> None:
    found = SampleDecoder(image_decode="rgb8", image_size=(4, 4)).decode("png", media_made.images()["alpha.png"])
    assert found.shape == (37, 53, 3)


@pytest.mark.parametrize("jpeg", ["auto", "pillow"])
@pytest.mark.parametrize("part", ["s2.JPEG", "alpha.png", "colour.bmp", "moving.gif", "alpha.webp", "colour.tiff"])
def test_more_pixels_than_allowed(part: str, jpeg: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    data = media_made.images()[part]
    decoder = SampleDecoder(image_decode="rgb8", max_pixels=37 * 53, jpeg=jpeg)
    assert decoder.decode(part, data).shape == (37, 53, 3)
    decoder = SampleDecoder(image_decode="rgb8", max_pixels=37 * 53 - 1, jpeg=jpeg)
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda _: pytest.fail("pixels were decoded"))
    with pytest.raises(DecodeError, match=r"53 x 37 pixels; allowed are 1,960 in all") as raised:
        decoder.decode(part, data)
    assert raised.value.part == part


@pytest.mark.parametrize("part", ["s0.JPEG", "alpha.png", "moving.gif", "alpha.webp", "colour.tiff", "colour.bmp"])
def test_huge_dimensions_in_a_small_header(part: str) -> None:
    data = bytearray(media_made.images()[part])
    at, code = {
        "s0.JPEG": (data.find(b"\xff\xc0") + 5, b"\xff\xff\xff\xff"),
        "alpha.png": (16, b"\x7f\xff\xff\xff\x7f\xff\xff\xff"),
        "moving.gif": (6, b"\xff\xff\xff\xff"),
        "alpha.webp": (21, b"\xff\xff\xff\xff"),
        "colour.tiff": (_tiff_width(data), b"\x04\0\x01\0\0\0\xff\xff\xff\x0f"),
        "colour.bmp": (18, b"\xff\xff\xff\x0f\xff\xff\xff\x0f"),
    }[part]
    data[at : at + len(code)] = code
    with pytest.raises(DecodeError, match=part.replace(".", r"\.")):
        SampleDecoder(image_decode="rgb8").decode(part, bytes(data))


def _tiff_width(data: bytes) -> int:
    """Where the type of the width's entry is, in a little-endian TIFF."""
    begin = int.from_bytes(data[4:8], "little") + 2
    while data[begin : begin + 2] != b"\x00\x01" and data[:2] == b"II":
        begin += 12
    return begin + 2


@pytest.mark.parametrize("part", sorted(media_made.images()))
def test_truncated_and_garbled(part: str) -> None:
    data = media_made.images()[part]
    decoder = SampleDecoder(image_decode="rgb8")
    for broken in (b"", data[:7], data[: len(data) // 3], b"\0" * 100, data[:2] + b"\0" * 50):
        with pytest.raises(DecodeError, match=f"part '{part}'") as raised:
            decoder.decode(part, broken)
        assert raised.value.reason


@pytest.mark.parametrize("options", [{"lossless": True}, {}, {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0"}])
def test_size_of_webp_before_it_is_opened(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    data = media_made.encoded(Image.fromarray(media_made.pixels()), "WEBP", **options)
    decoder = SampleDecoder(image_decode="rgb8", max_pixels=37 * 53)
    assert decoder.decode("webp", data).shape == (37, 53, 3)
    decoder = SampleDecoder(image_decode="rgb8", max_pixels=37 * 53 - 1)
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("opened"))
    with pytest.raises(DecodeError, match="53 x 37 pixels"):
        decoder.decode("webp", data)


def test_flipped_bits_decode_or_fail_with_the_part() -> None:
    random = np.random.default_rng(5)
    decoder = SampleDecoder(image_decode="rgb8", max_pixels=100_000)
    outcomes = set()
    for part, data in media_made.images().items():
        for _ in range(25):
            broken = bytearray(data)
            for at in random.integers(0, min(len(data), 300), 3):
                broken[at] ^= 1 << int(random.integers(8))
            found = media_made.outcome(decoder.decode, part, bytes(broken))
            assert isinstance(found, np.ndarray) or found.part == part
            outcomes.add(type(found))
    assert outcomes == {np.ndarray, DecodeError}


def test_ghostscript_is_never_run() -> None:
    eps = media_made.encoded(Image.fromarray(media_made.pixels()), "EPS")
    with pytest.raises(DecodeError, match="cannot identify"):
        SampleDecoder().decode("eps", eps)
    with pytest.raises(DecodeError, match="cannot identify"):
        SampleDecoder().decode("jpg", eps)


def test_extensions_cover_what_pillow_reads() -> None:
    Image.init()
    readable = {name[1:] for name, kind in Image.EXTENSION.items() if kind in Image.OPEN}
    assert {"jpg", "jpeg", "png", "webp", "gif", "tif", "bmp", "jp2"} <= IMAGE_EXTENSIONS
    # Ours is webdataset's list, which is older than some of Pillow's formats.
    assert not readable & {"mpg", "mpeg", "h5", "hdf", "bufr", "grib"} & IMAGE_EXTENSIONS


def test_unknown_options() -> None:
    with pytest.raises(ConfigError, match=r"image_decode is 'tochrgb'; known are .*; did you mean 'torchrgb'\?"):
        SampleDecoder(image_decode="tochrgb")
    with pytest.raises(ConfigError, match=r"image_size is \(0, 5\)"):
        SampleDecoder(image_size=(0, 5))
    with pytest.raises(ConfigError, match="jpeg is 'turbo'; known are auto, simplejpeg, pillow"):
        SampleDecoder(jpeg="turbo")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="max_pixels is 0"):
        SampleDecoder(max_pixels=0)


@pytest.mark.parametrize(
    ("module", "options", "install"),
    [
        ("PIL", {}, "headrace[image]"),
        ("torch", {}, "headrace[torch]"),
        ("simplejpeg", {"jpeg": "simplejpeg"}, "headrace[image]"),
    ],
)
def test_missing_packages(module: str, options: dict[str, Any], install: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setitem(sys.modules, f"{module}.Image", None)
    with pytest.raises(MissingExtraError) as raised:
        SampleDecoder(**options).decode("jpg", media_made.images()["s0.JPEG"])
    assert f"pip install '{install}'" in str(raised.value)


def test_without_simplejpeg_pillow_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    data = media_made.images()["s2.JPEG"]
    wanted = SampleDecoder(image_decode="rgb8").decode("jpg", data)
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    assert np.array_equal(SampleDecoder(image_decode="rgb8").decode("jpg", data), wanted)
