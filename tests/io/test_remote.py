"""Objects without a server: URLs as paths, what ranges become, words without secrets. The rest is in tests/remote."""

from __future__ import annotations

import itertools
import pickle
import sys
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from headrace.errors import ConfigError, MissingExtraError, StoreError
from headrace.io import FetchPolicy, MmapReader, ObjectReader, RemotePath, Storage, path_at, reader_at
from headrace.io.objects.lookups import BLOCK_BYTES, Objects
from headrace.io.objects.reader import merged, scatter
from headrace.io.remote import Status, bucket_of
from headrace.io.storage import Secrets, connect, options_of

ranges = st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 400)), max_size=30)


@given(ranges)
def test_merged_ranges_hold_what_is_asked_for(wanted: list[tuple[int, int]]) -> None:
    content = np.random.default_rng(1).integers(0, 256, 3400, dtype=np.uint8)
    offsets = np.array([offset for offset, _ in wanted], np.int64)
    lengths = np.array([length for _, length in wanted], np.int64)
    pieces = merged(offsets, lengths)
    assert all(begin < end for begin, end in pieces)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(pieces))
    out = np.zeros(int(lengths.sum()), np.uint8)
    scatter(pieces, [content[begin:end].tobytes() for begin, end in pieces], offsets, lengths, out)
    assert out.tobytes() == b"".join(content[offset : offset + length].tobytes() for offset, length in wanted)
    used = len({byte for offset, length in wanted for byte in range(offset, offset + length)})
    assert sum(end - begin for begin, end in pieces) * 20 <= used * 21


def test_long_ranges_are_fetched_in_blocks_and_neighbours_at_once() -> None:
    pieces = merged(np.array([0, 100, 205]), np.array([100, 100, 195]))
    assert pieces == [(0, 400)]
    assert merged(np.array([0, 1000]), np.array([10, 10])) == [(0, 10), (1000, 1010)]
    long = merged(np.array([5]), np.array([2 * BLOCK_BYTES + 1]))
    assert long == [
        (5, 5 + BLOCK_BYTES),
        (5 + BLOCK_BYTES, 5 + 2 * BLOCK_BYTES),
        (5 + 2 * BLOCK_BYTES, 6 + 2 * BLOCK_BYTES),
    ]
    assert merged(np.array([7]), np.array([0])) == []


names = st.lists(
    st.text(st.sampled_from("ab.-ä "), min_size=1, max_size=5).filter(lambda name: name not in (".", ".."))
)


@given(names)
def test_a_remote_path_is_like_a_path(parts: list[str]) -> None:
    key = "/".join(parts)
    path, plain = RemotePath(f"S3://bucket/{key}", Objects()), PurePosixPath("/", key)
    assert str(path) == f"s3://bucket/{key}".rstrip("/")
    assert (path.name, path.stem, path.suffix) == (plain.name, plain.stem, plain.suffix)
    assert str(path.parent) == f"s3://bucket{plain.parent}".rstrip("/")
    assert str(path / "x" / "../y") == f"s3://bucket{plain / 'y'}"
    assert str((path / "x.tar").with_suffix(".idx")) == f"s3://bucket{plain / 'x.idx'}"
    assert str((path / "x.tar").with_name("z")) == f"s3://bucket{plain / 'z'}"
    assert (path / "x" / "y").relative_to(path) == PurePosixPath("x/y")
    assert (path / "x").is_relative_to(path)
    assert not path.is_relative_to(path / "x")
    assert [str(one) for one in (path / "x").parents][-1] == "s3://bucket"
    assert pickle.loads(pickle.dumps(path)) == path
    assert path_at(path) is path
    assert str(path / f"{'../' * (len(parts) + 1)}y") == "s3://bucket/y", "the folder above a bucket is the bucket"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s3://", "bucket"),
        ("https://me:word@host/x", "credentials"),
        ("https://host/x.bin?X-Signature=word", r"https://host/x\.bin\?\.\.\."),
    ],
)
def test_urls_that_are_refused(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        bucket_of(url)
    assert "word" not in str(caught.value)


def test_a_status_is_the_same_by_size_and_etag() -> None:
    one = Status(5, "a", 7)
    assert one.is_same(Status(5, "a", 8))
    assert not one.is_same(Status(6, "a", 7))
    assert not one.is_same(Status(5, "b", 7))
    assert Status(5, "", 7).is_same(Status(5, "b", 7))
    assert not Status(5, "", 7).is_same(Status(5, "", 8))
    assert Status(5, "", 0).is_same(Status(5, "", 8))


def test_words_without_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(
        options={"access_key_id": "planted-key", "secret_access_key": "planted-secret", "token": "planted-token"}
    )
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-around")
    words = "planted-key\n planted-secret, planted-around at http://host/x?sig=planted-token"
    assert Secrets([storage]).hidden(words) == "*** ***, *** at http://host/x?..."
    assert "planted" not in repr(storage)
    assert len(Secrets([]).hidden("x" * 1000)) < 400


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: Storage(endpoint="127.0.0.1:80"), "http"),
        (lambda: Storage(profile="me", anonymous=True), "profile"),
        (lambda: FetchPolicy(deadline_s=0), "deadline_s.*0"),
        (lambda: FetchPolicy(attempt_s=float("inf")), "attempt_s.*inf"),
        (lambda: connect("gs://b", "gs", Storage(region="x")), "region='x'.*s3://"),
        (lambda: connect("http://h", "http", Storage(options={"access_key_id": "x"})), "object.*http"),
        (lambda: connect("s3://b", "s3", Storage(options={"kye": "hidden"})), "'kye'"),
        (lambda: reader_at("x", "mmap", Storage()), "local"),
        (lambda: reader_at("s3://b/x", MmapReader()), "local"),
        (lambda: reader_at("s3://b/x", ObjectReader(), Storage()), "own"),
        (lambda: reader_at("s3://b/x", "map"), "'map'"),
    ],
)
def test_what_is_refused(made: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        made()  # type: ignore[operator]
    assert "hidden" not in str(caught.value)


def test_waits_grow_and_disperse() -> None:
    policy = FetchPolicy(first_delay_s=1, most_delay_s=5)
    for attempt, longest in ((1, 1), (2, 2), (3, 4), (4, 5), (1000, 5)):
        drawn = {policy.delay(attempt) for _ in range(20)}
        assert len(drawn) > 1
        assert all(longest / 2 <= delay <= longest for delay in drawn)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(MissingExtraError, match=r"'headrace\[remote\]'"):
        connect("s3://b", "s3", Storage())


def test_an_object_reader_reads_local_files_too() -> None:
    reader = ObjectReader()
    assert reader.read(__file__, 0, 3).tobytes() == b'"""'
    reader.keep(__file__)
    assert reader.view(__file__) is not None
    reader.release(__file__)
    assert pickle.loads(pickle.dumps(reader)).size(__file__) == reader.size(__file__)
    assert reader.identity(__file__) == MmapReader().identity(__file__)
    with pytest.raises(StoreError, match="nothing"):
        reader.size("nothing")


HTTP = {"allow_http": True}
MEANT: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("s3", {"access_key_id": "k", "secret_access_key": "s", "session_token": "t"}, {}),
    ("s3", {"skip_signature": True, "request_payer": True, "virtual_hosted_style_request": True}, {}),
    ("s3", {"endpoint": "http://h:1"}, HTTP),
    ("s3", {"endpoint_url": "http://h:1"}, HTTP),
    ("s3", {"endpoint": "https://h:1"}, {}),
    ("s3", {"default_region": "r", "proxy_url": "http://p"}, {"proxy_url": "http://p"}),
    ("s3", {"allow_invalid_certificates": True}, {"allow_invalid_certificates": True}),
    ("gs", {"base_url": "http://h:1"}, HTTP),
    ("gs", {"bearer_token": "planted"}, {}),
    ("az", {"account_name": "me", "account_key": "a2V5"}, {}),
    ("az", {"account_name": "me", "sas_token": "sv=1&sig=x"}, {}),
    ("az", {"account_name": "me", "tenant_id": "t", "client_id": "c", "client_secret": "s"}, {}),
]
"""A scheme, options, and what of them the HTTP client is told."""

UNKNOWN: list[tuple[str, dict[str, Any]]] = [
    ("s3", {"key": "planted", "secret": "planted"}),
    ("s3", {"client_kwargs": {"verify": False}}),
    ("gs", {"token": "planted"}),
    ("az", {"connection_string": "planted"}),
]
"""Options as fsspec names them."""


@pytest.mark.parametrize(("scheme", "options", "client"), MEANT)
def test_options_are_obstores_own(scheme: str, options: dict[str, Any], client: dict[str, Any]) -> None:
    storage = Storage(options=options)
    found = options_of(f"{scheme}://b", scheme, storage)
    assert found[0] == {name: value for name, value in options.items() if name not in client}
    assert found[1] == {"timeout": "600s", "connect_timeout": "10s", **client}
    assert connect(f"{scheme}://b", scheme, storage)
    assert storage.options == options


@pytest.mark.parametrize(("scheme", "options"), UNKNOWN)
def test_other_options_are_refused_by_name(scheme: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))) as caught:
        connect(f"{scheme}://b", scheme, Storage(options=options))
    assert "planted" not in str(caught.value)


def test_a_profile_has_credentials() -> None:
    with pytest.raises(ConfigError, match="skip_signature"):
        options_of("s3://b", "s3", Storage(profile="me", options={"skip_signature": True}))


def test_secrets_within_options() -> None:
    options = {
        "service_account_key": "planted-1",
        "default_headers": {"x-api-key": "planted-2", "x-other": "not-planted"},
        "account_key": {"more": {"of it": "planted-3"}},
    }
    words = "planted-1 planted-2 planted-3 not-planted"
    assert Secrets([Storage(options=options)]).hidden(words) == "*** *** *** not-planted"
