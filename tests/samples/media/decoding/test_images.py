"""Images come out as webdataset has them, pixel by pixel, whichever codec reads them."""

from __future__ import annotations

import io
import sys
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile, ImageOps, features

import media_made
from headrace.errors import ConfigError, DecodeError, MissingExtraError
from headrace.samples.media import SampleDecoder
from headrace.samples.media.decoding import images
from headrace.samples.media.decoding.images import IMAGE_EXTENSIONS, IMAGE_FORMS, scale_to_cover

FORMS = [kind + mode + bits for kind in ("", "torch", "chw") for mode in ("l", "rgb", "rgba") for bits in ("8", "")]
FORMS += ["torch", "pil", "pill", "pilrgb", "pilrgba"]


def mode_of(option: str) -> str:
    bare = option.removeprefix("torch").removeprefix("chw").removeprefix("pil").removesuffix("8")
    return (bare or "rgb").upper()


def expected(option: str, data: bytes) -> Any:
    """What webdataset's ``imagehandler`` returns, said with Pillow and NumPy (compared with its live output).

    16-bit grey, which is all white there, is the high byte here.
    """
    image: Image.Image = Image.open(io.BytesIO(data))
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    image = image.convert(mode_of(option))
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
@pytest.mark.parametrize("option", FORMS)
def test_every_form_of_every_format(option: str, jpeg: Any) -> None:
    decoder = SampleDecoder(image_decode=option, jpeg=jpeg)
    for part, data in media_made.images().items():
        if jpeg != "auto" and part.lower().rpartition(".")[2] not in ("jpg", "jpeg"):
            continue
        same(decoder.decode(part, data), expected(option, data))


def test_all_forms_are_tested() -> None:
    assert sorted(FORMS) == sorted(IMAGE_FORMS)


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
    with pytest.raises(DecodeError, match=r"53.*37.*1,960") as raised:
        decoder.decode(part, data)
    assert raised.value.part == part


@pytest.mark.parametrize("part", sorted(media_made.images()))
def test_truncated_and_garbled(part: str) -> None:
    data = media_made.images()[part]
    decoder = SampleDecoder(image_decode="rgb8")
    for broken in (b"", data[:7], data[: len(data) // 3], b"\0" * 100, data[:2] + b"\0" * 50):
        with pytest.raises(DecodeError, match=rf"'{part}'") as raised:
            decoder.decode(part, broken)
        assert raised.value.reason


@pytest.mark.parametrize("options", [{"lossless": True}, {}, {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\0"}])
def test_size_of_webp_before_it_is_opened(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    data = media_made.encoded(Image.fromarray(media_made.pixels()), "WEBP", **options)
    decoder = SampleDecoder(image_decode="rgb8", max_pixels=37 * 53)
    assert decoder.decode("webp", data).shape == (37, 53, 3)
    decoder = SampleDecoder(image_decode="rgb8", max_pixels=37 * 53 - 1)
    monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("opened"))
    with pytest.raises(DecodeError, match=r"53.*37.*pixels"):
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
    with pytest.raises(DecodeError, match="identify"):
        SampleDecoder().decode("eps", eps)
    with pytest.raises(DecodeError, match="identify"):
        SampleDecoder().decode("jpg", eps)


def test_extensions_cover_what_pillow_reads() -> None:
    Image.init()
    readable = {name[1:] for name, kind in Image.EXTENSION.items() if kind in Image.OPEN}
    assert {"jpg", "jpeg", "png", "webp", "gif", "tif", "bmp", "jp2"} <= IMAGE_EXTENSIONS
    # Ours is webdataset's list, which is older than some of Pillow's formats.
    assert not readable & {"mpg", "mpeg", "h5", "hdf", "bufr", "grib"} & IMAGE_EXTENSIONS


DEEP = np.linspace(300, 60_000, 48 * 64).astype(np.uint16).reshape(48, 64)


def with_options(option: str, **options: Any) -> SampleDecoder:
    return SampleDecoder(image_decode=option, image_options=options)


def test_sixteen_bits_and_floats_are_scaled() -> None:
    deep = media_made.encoded(Image.fromarray(DEEP), "PNG")
    floats = media_made.encoded(Image.fromarray((DEEP / 65535).astype(np.float32)), "TIFF")
    for part, data in (("png", deep), ("tiff", floats)):
        assert np.array_equal(with_options("l8").decode(part, data), DEEP >> 8)
        assert np.array_equal(with_options("l8", depth=16).decode(part, data), DEEP)
        colour = with_options("chwrgba", depth=16).decode(part, data)
        assert (colour.dtype, colour.shape) == (np.float32, (4, 48, 64))
        assert np.array_equal(colour[2], DEEP / np.float32(65535))
        assert (colour[3] == 1).all()
        assert torch.equal(with_options("torchl8", depth=16).decode(part, data), torch.from_numpy(DEEP))
        assert np.array_equal(np.asarray(with_options("pill", depth=16).decode(part, data)), DEEP)
    plain = media_made.images()["grey.png"]
    assert np.array_equal(with_options("rgb8", depth=16).decode("png", plain) // 257, expected("rgb8", plain))


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (np.array([[0.0, 2.5]], np.float32), r"floats.*0.*2\.5"),
        (np.array([[-1.0, 0.5]], np.float32), r"floats.*-1.*0\.5"),
        (np.array([[np.nan, 0.5]], np.float32), "floats.*nan.*nan"),
        (np.array([[1, 70_000]], np.int32), "32-bit.*1.*70000"),
    ],
)
def test_values_of_no_known_range_are_refused(values: np.ndarray[Any, Any], found: str) -> None:
    data = media_made.encoded(Image.fromarray(values), "TIFF")
    for option in ("rgb8", "pil", "torchl"):
        with pytest.raises(DecodeError, match=f"'tiff'.*{found}"):
            SampleDecoder(image_decode=option).decode("tiff", data)


def test_colour_that_may_be_deeper_is_not_widened() -> None:
    data = media_made.encoded(Image.fromarray(media_made.pixels()), "JPEG2000")
    with pytest.raises(DecodeError, match=r"8.*depth=8"):
        with_options("rgb8", depth=16).decode("jp2", data)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "AVIF"])
def test_orientation_and_profile(form: str) -> None:
    if form == "AVIF" and not features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    exif = Image.Exif()
    exif[0x112] = 6
    image = Image.fromarray(media_made.pixels())
    data = media_made.encoded(image, form, exif=exif, icc_profile=b"a profile")
    for codec in ("auto", "pillow"):
        kept = SampleDecoder(image_decode="pil", jpeg=codec).decode(form.lower(), data)
        assert (kept.getexif().get(0x112), kept.info["icc_profile"], kept.size) == (6, b"a profile", (53, 37))
        assert SampleDecoder(image_decode="rgb8", jpeg=codec).decode(form.lower(), data).shape == (37, 53, 3)
    upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB"))
    assert np.array_equal(with_options("rgb8", orientation="apply").decode(form.lower(), data), upright)
    assert SampleDecoder(image_decode="rgb8", guess_content=True).decode("blob", data).shape == (37, 53, 3)
    assert with_options("pil", orientation="apply").decode(form.lower(), data).getexif().get(0x112) is None
    covering = SampleDecoder(image_decode="rgb8", image_size=(26, 18), image_options={"orientation": "apply"})
    assert covering.decode(form.lower(), data).shape == ((27, 19, 3) if form == "JPEG" else (53, 37, 3))


def test_alpha() -> None:
    pixels = np.zeros((2, 2, 4), np.uint8)
    pixels[:, :, 0], pixels[0, :, 3] = 200, 255
    palette = Image.fromarray(pixels[:, :, :3]).quantize(2)
    for data in (
        media_made.encoded(Image.fromarray(pixels), "PNG"),
        media_made.encoded(palette, "PNG", transparency=0),
    ):
        rgba = np.asarray(Image.open(io.BytesIO(data)).convert("RGBA"))
        assert np.array_equal(with_options("rgb8", alpha="drop").decode("png", data), rgba[:, :, :3])
        assert np.array_equal(with_options("rgb8", alpha="keep").decode("png", data), rgba)
        white = np.where(rgba[:, :, 3:] == 0, 255, rgba[:, :, :3])
        assert np.array_equal(with_options("rgb8", alpha="white").decode("png", data), white)
        assert np.array_equal(np.asarray(with_options("pil", alpha="white").decode("png", data)), white)
    opaque = media_made.images()["s0.JPEG"]
    assert with_options("torchrgb8", alpha="keep").decode("jpg", opaque).shape == (4, 37, 53)


@pytest.mark.parametrize("part", ["s2.JPEG", "s0p.JPEG", "colour.bmp", "alpha.png", "colour.tiff"])
def test_truncated_as_pillow_allows_it(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = media_made.images()[part]
    data = data[: len(data) * 2 // 3]
    with pytest.raises(DecodeError):
        with_options("rgb8", truncated="error").decode(part, data)
    found = media_made.outcome(with_options("rgb8", truncated="allow").decode, part, data)
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    assert np.array_equal(found, np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


@pytest.mark.parametrize(("name", "begin"), [("AVIF", b"\0\0\0\x20ftypavif"), ("JXL", b"\xff\x0a")])
def test_a_pillow_without_the_format(name: str, begin: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_known_formats", ("JPEG", "PNG"))
    with pytest.raises(MissingExtraError, match=rf"{name}"):
        SampleDecoder().decode(name.lower(), begin + bytes(20))


def test_options_are_kept_where_they_matter() -> None:
    assert "image_options" not in SampleDecoder(image_options={"depth": 8}).config()
    decoder = with_options("rgb8", orientation="apply")
    assert decoder.config()["image_options"] == {"orientation": "apply"}
    assert SampleDecoder(**decoder.config()).config() == decoder.config()
    assert SampleDecoder().decode("jpg", media_made.images()["s0.JPEG"]).shape == (3, 37, 53)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"image_decode": "rgb8", "image_options": {"turn": True}}, r"image_options\.turn"),
        ({"image_decode": "rgb8", "image_options": {"orientation": "aply"}}, "orientation"),
        ({"image_decode": "l8", "image_options": {"alpha": "keep"}}, "'keep'.*image_decode.*'l8'"),
        ({"image_decode": "pil", "image_options": {"depth": 16}}, "16.*16-bit"),
        ({"image_decode": "tochrgb"}, "image_decode.*'tochrgb'.*'torchrgb'"),
        ({"image_size": (0, 5)}, "image_size.*0.*5"),
        ({"jpeg": "turbo"}, "'turbo'"),
        ({"max_pixels": 0}, "max_pixels.*0"),
        ({"av_decode": "video"}, "av_decode.*'video'.*AVDecoder"),
        ({"av_options": {"sample_rate": 0}}, "av_options"),
        ({"av_decode": "pyav", "av_options": {"channels": "mono"}}, "av_options.*av_decode.*'pyav'"),
    ],
)
def test_unknown_options(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        SampleDecoder(**options)


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
