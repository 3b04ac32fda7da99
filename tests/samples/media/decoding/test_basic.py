"""Text, numbers, JSON, MessagePack, CBOR, arrays; and everything that is refused."""

from __future__ import annotations

import datetime
import gzip
import io
import json
import math
import pickle
import sys
import tracemalloc
import warnings
import zipfile
from fractions import Fraction
from typing import Any

import cbor2
import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

import media_made
from counts import cases
from headrace.errors import DecodeError, MissingExtraError
from headrace.samples.media import SampleDecoder

DECODER = SampleDecoder(max_bytes=100_000)
MIB = 1 << 20


def gz(data: bytes) -> bytes:
    """Without the time, which would make the names of tests differ between processes."""
    return gzip.compress(data, mtime=0)


def npy(array: Any, **options: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


def npz(compressed: bool = False, **arrays: Any) -> bytes:
    stream = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(stream, **arrays)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("part", "data", "value"),
    [
        ("txt", "häß\n".encode(), "häß\n"),
        ("text", b"", ""),
        ("transcript", b"a", "a"),
        ("caption.en.txt", b"a", "a"),
        ("cls", b" 12\n", 12),
        ("cls2", b"-3", -3),
        ("index", b"1", 1),
        ("inx", b"2", 2),
        ("id", b"7", 7),
        ("json", b'{"a": [1, 2.5, null, "\\u00e9"]}', {"a": [1, 2.5, None, "é"]}),
        ("jsn", b"123456789012345678901234567890", 123456789012345678901234567890),
        ("json", b"\xef\xbb\xbf[]", []),
        ("json", '{"a": "é"}'.encode("utf-16"), {"a": "é"}),
        ("json", b'"\\ud800"', "\ud800"),
        ("json", b"[-Infinity, 1e400]", [-math.inf, math.inf]),
        ("mp", msgspec.msgpack.encode({"a": [1, b"x", "y", 1.5, None]}), {"a": [1, b"x", "y", 1.5, None]}),
        ("msg", b"\x90", []),
        ("cbor", cbor2.dumps({"a": [1, b"x", 1.5, None]}), {"a": [1, b"x", 1.5, None]}),
        ("json.gz", gz(b"[1]"), [1]),
        ("txt.gz", gz(b"a") + gz(b"b") + bytes(9), "ab"),
        ("gz", gz(b"a"), b"a"),
        ("bin.gz", gz(b"a"), b"a"),
        ("json.gz.gz", gz(gz(b"[1]")), gz(b"[1]")),
        ("TXT", b"a", b"a"),
        ("unknown", b"a", b"a"),
        ("", b"a", b"a"),
    ],
)
def test_values(part: str, data: bytes, value: Any) -> None:
    found = DECODER.decode(part, data)
    assert found == value
    assert type(found) is type(value)


def test_json_nan() -> None:
    assert math.isnan(DECODER.decode("json", b"NaN"))


def test_msgpack_timestamps() -> None:
    moment = datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC)
    assert DECODER.decode("mp", msgspec.msgpack.encode(moment)) == moment


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
        max_leaves=12,
    )
)
@settings(max_examples=cases(16, 80))
def test_json_is_what_python_reads(value: Any) -> None:
    data = json.dumps(value).encode()
    assert DECODER.decode("json", data) == json.loads(data)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(12.0).reshape(3, 4),
        np.asfortranarray(np.arange(12).reshape(3, 4)),
        np.array(["a", "bb"]),
        np.zeros(3, [("a", "<i4"), ("b", "<f8")]),
        np.zeros((0, 3)),
        np.float32(3),
        np.arange(3, dtype=">i4"),
    ],
)
def test_npy(array: Any) -> None:
    found = DECODER.decode("npy", npy(array))
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert np.array_equal(found, array)
    assert found.flags.writeable


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_versions(version: tuple[int, int]) -> None:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.arange(3), version=version)
    assert DECODER.decode("npy", stream.getvalue()).tolist() == [0, 1, 2]
    with pytest.raises(DecodeError, match=r"24.*there.*23"):
        DECODER.decode("npy", stream.getvalue()[:-1])


def test_npy_with_names_beyond_latin() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = npy(np.zeros(2, [("数", "<i4"), ("字", "<f8")]))
    assert DECODER.decode("npy", data).dtype.names == ("数", "字")


@pytest.mark.parametrize("compressed", [False, True])
def test_npz(compressed: bool) -> None:
    found = DECODER.decode("a.npz", npz(compressed, a=np.arange(3), b=np.ones((2, 2))))
    assert list(found) == ["a", "b"]
    assert found["a"].tolist() == [0, 1, 2]
    assert found["b"].tolist() == [[1, 1], [1, 1]]


def test_npz_other_members_are_bytes() -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("note.txt", "hi")
    assert DECODER.decode("npz", stream.getvalue()) == {"note.txt": b"hi"}


@pytest.mark.parametrize("code", ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])
@pytest.mark.parametrize("part", ["ten", "tb"])
def test_ten(part: str, code: str) -> None:
    arrays = [np.arange(6).reshape(2, 3).astype(code), np.zeros((0, 2), code), np.ones((), code)]
    found = DECODER.decode(part, media_made.ten(*arrays))
    assert [array.shape for array in found] == [(2, 3), (0, 2), ()]
    for array, wanted in zip(found, arrays, strict=True):
        assert array.dtype == wanted.dtype
        assert np.array_equal(array, wanted)
        assert array.flags.writeable


def saved(value: Any) -> bytes:
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def deflated(data: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as plain, zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for member in plain.infolist():
            archive.writestr(member.filename, plain.read(member))
    return stream.getvalue()


def lzma_npz() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("a.npy", npy(np.zeros(3)))
    return stream.getvalue()


TEN = media_made.ten(np.arange(6.0))
HUGE = npy(np.zeros(4)).replace(b"(4,), }", b"(1000000000000,), }").replace(b" " * 12, b"", 1)
BROKEN = {
    "text that is not UTF-8": ("txt", b"\xff\xfe\xfa", "UnicodeDecodeError"),
    "no number": ("cls", b"cat", "ValueError"),
    "number of thousands of digits": ("id", b"9" * 5000, "ValueError"),
    "no JSON": ("json", b'{"a": 1,}', "JSON"),
    "empty JSON": ("json", b"", "JSON"),
    "deep JSON": ("json", b"[" * MIB, "nested"),
    "deep JSON, not standard": ("json", b"[NaN," + b"[" * MIB, "nested"),
    "deep msgpack": ("mp", b"\x91" * MIB, "nested"),
    "huge msgpack": ("mp", b"\xdd\xff\xff\xff\xff", "MessagePack"),
    "deep cbor": ("cbor", b"\x81" * MIB, "CBOR"),
    "huge cbor": ("cbor", b"\x9b\x00\x00\x00\x00\xff\xff\xff\xff", "CBOR"),
    "no npy": ("npy", b"\x93NUMPY", "ValueError"),
    "npy of objects": ("npy", npy(np.array([{}], object), allow_pickle=True), "objects"),
    "npy cut short": ("npy", npy(np.zeros(100))[:-1], "800.*799"),
    "npy that declares too much": ("npy", HUGE, "8,000,000,000,000"),
    "npy larger than allowed": ("npy", npy(np.zeros(12_501)), "100,008.*100,000.*max_bytes"),
    "npz of objects": ("npz", npz(a=np.array([{}], object)), "objects"),
    "npz bomb": ("npz", npz(True, a=np.zeros(MIB)), "8,388,736.*100,000"),
    "npz cut short": ("npz", npz(a=np.zeros(3))[:-30], "BadZipFile"),
    "npz by LZMA": ("npz", lzma_npz(), "14.*deflate"),
    "no ten": ("ten", b"hello", "b'hello'.*0"),
    "ten cut short": ("ten", TEN[:-70], "long"),
    "ten without values": ("ten", TEN[:80], "1.*chunks"),
    "ten of another dtype": ("ten", TEN.replace(b"f8", b"x8"), "dtype.*'x8'"),
    "ten that declares too much": ("ten", TEN.replace(b"\x06\0\0\0", b"\x07\0\0\0"), r"f8.*\(7,\)"),
    "no gzip": ("txt.gz", b"hello", "gzip"),
    "empty gzip": ("txt.gz", b"", "empty"),
    "gzip cut short": ("txt.gz", gzip.compress(b"hello")[:-3], "gzip"),
    "gzip bomb": ("txt.gz", gzip.compress(bytes(64 * MIB)), "100,000.*max_bytes"),
    "gzip bomb of members": ("txt.gz", gzip.compress(bytes(60_000)) * 2, "100,000"),
    "gzip of a wrong checksum": ("x.gz", gzip.compress(b"hello")[:-8] + bytes(8), "gzip"),
    "pickle": ("pkl", pickle.dumps(1), "code"),
    "pickled": ("pickle", pickle.dumps(1), "trust_code=True"),
    "pyd": ("pyd", pickle.dumps(1), "refused"),
    "pth of objects": ("model.pth", saved(Fraction(1, 3)), r"fractions\.Fraction.*trust_code=True"),
    "pth by pickle alone": ("pth", pickle.dumps(Fraction(1, 3), 2), "trust_code=True"),
    "pth bomb": ("pth", deflated(saved(torch.zeros(MIB))), "100,000"),
    "no pth": ("pth", b"", "EOFError"),
    "pickle in gzip": ("pkl.gz", gzip.compress(pickle.dumps(1)), "refused"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_parts_name_themselves_in_bounded_memory(case: str) -> None:
    part, data, reason = BROKEN[case]
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError, match=reason) as raised:
            DECODER.decode(part, data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert raised.value.part == part
    assert str(raised.value).startswith(f"part {part!r}: ")
    assert peak < 16 * MIB


def test_max_bytes_is_inclusive() -> None:
    data = gzip.compress(b"a" * 1000)
    assert SampleDecoder(max_bytes=1000).decode("gz", data) == b"a" * 1000
    with pytest.raises(DecodeError, match="999"):
        SampleDecoder(max_bytes=999).decode("gz", data)


class Evil:
    def __reduce__(self) -> Any:
        return (eval, ("__import__('sys').__setattr__('evil_ran', True)",))


def test_trusted_pickles_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "evil_ran", False, raising=False)
    with pytest.raises(DecodeError):
        DECODER.decode("pkl", pickle.dumps(Evil()))
    assert not sys.evil_ran  # type: ignore[attr-defined]
    trusting = SampleDecoder(trust_code=True)
    trusting.decode("pkl", pickle.dumps(Evil()))
    assert sys.evil_ran  # type: ignore[attr-defined]
    for part in ("pkl", "pickle", "pyd"):
        assert trusting.decode(part, pickle.dumps({"a": 1})) == {"a": 1}


def test_pth() -> None:
    trusting = SampleDecoder(trust_code=True)
    for value in ({"w": torch.arange(3), "n": [1, "a", None, True]}, torch.ones(2, 3, dtype=torch.bfloat16)):
        found, trusted = DECODER.decode("pth", saved(value)), trusting.decode("a.pth", saved(value))
        assert str(found) == str(trusted) == str(value)
    assert str(trusting.decode("pth", saved({"w": Plain(3)}))) == "{'w': Plain(3)}"
    with pytest.raises(DecodeError, match="'pth'"):
        trusting.decode("pth", b"nothing")


def test_pth_runs_no_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "evil_ran", False, raising=False)
    for data in (saved(Evil()), pickle.dumps(Evil(), 2)):
        with pytest.raises(DecodeError, match="trust_code=True"):
            DECODER.decode("pth", data)
    assert not sys.evil_ran  # type: ignore[attr-defined]
    monkeypatch.setattr(torch, "__version__", "2.9.1+cpu")
    with pytest.raises(DecodeError, match=r"2\.9\.1\+cpu.*2\.10"):
        DECODER.decode("pth", saved(torch.zeros(1)))


class Plain:
    def __init__(self, value: int) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Plain({self.value})"


def test_cbor_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cbor2", None)
    with pytest.raises(MissingExtraError, match=r"'headrace\[cbor\]'"):
        DECODER.decode("cbor", b"\x80")


@given(st.sampled_from(["npy", "npz", "ten", "mp", "cbor", "json", "txt.gz"]), st.data())
@settings(max_examples=cases(15, 150))
def test_flipped_bytes_decode_or_fail_with_the_part(part: str, data: st.DataObject) -> None:
    sound = {
        "npy": npy(np.arange(6)),
        "npz": npz(a=np.arange(6)),
        "ten": TEN,
        "mp": msgspec.msgpack.encode({"a": [1, "b", 2.5]}),
        "cbor": cbor2.dumps({"a": [1, "b", 2.5]}),
        "json": b'{"a": [1, "b", 2.5]}',
        "txt.gz": gzip.compress(b"hello", mtime=0),
    }[part]
    broken = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 3))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    found = media_made.outcome(DECODER.decode, part, bytes(broken))
    assert not isinstance(found, DecodeError) or found.part == part


def test_all_parts_of_a_sample() -> None:
    found = DECODER({"txt": b"a", "cls": b"1", "__key__": b"k", "other": 3})
    assert found == {"txt": "a", "cls": 1, "__key__": b"k", "other": 3}


def test_guessing_by_content() -> None:
    images = media_made.images()
    guessing = SampleDecoder(image_decode="rgb8", guess_content=True)
    for part, data in images.items():
        found = guessing.decode("blob", data)
        assert isinstance(found, np.ndarray), part
        # The bytes count for more than the name.
        assert np.array_equal(guessing.decode("wrong.mp4", data), found)
        assert SampleDecoder().decode("blob", data) == data
    assert np.array_equal(
        guessing.decode("x.gz", gzip.compress(images["alpha.png"])), guessing.decode("x", images["alpha.png"])
    )
    assert guessing.decode("txt", b"hello") == "hello"
    assert guessing.decode("blob", b"hello") == b"hello"
    with pytest.raises(DecodeError, match="'jpg'"):
        guessing.decode("jpg", b"hello")


def test_options_pickle_and_print() -> None:
    decoder = SampleDecoder(image_decode="chwrgb8", guess_content=True, image_size=(8, 8))
    decoder.decode("txt", b"a")
    again = pickle.loads(pickle.dumps(decoder))
    assert again.config() == decoder.config()
    assert again.decode("txt", b"a") == "a"
    assert repr(decoder) == "SampleDecoder(image_decode='chwrgb8', guess_content=True, image_size=(8, 8))"
