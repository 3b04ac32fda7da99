"""What the system refuses for a moment is tried again, a bounded number of times; and waits within waits."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path
from typing import Any
from urllib.error import URLError

import numpy as np
import pytest
from hypothesis import given, strategies as st

from headrace.errors import ConfigError, StoreError
from headrace.io import FilePool, MmapReader, PreadReader, RetryPolicy, may_pass

AT_ONCE = RetryPolicy(attempts=4, first_delay_s=0.0)


class Refusing:
    """A call of the system that is refused some times."""

    def __init__(self, call: Any, number: int, times: int) -> None:
        self.call, self.number, self.times, self.asked = call, number, times, 0

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.asked += 1
        if self.asked <= self.times:
            raise OSError(self.number, os.strerror(self.number))
        return self.call(*args, **options)


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "a").write_bytes(bytes(range(100)))
    return str(tmp_path / "a")


def read(reader: PreadReader | MmapReader, path: str) -> bytes:
    return reader.read_ranges(path, np.array([10, 50]), np.array([3, 2])).tobytes()


@pytest.mark.parametrize("name", ["EIO", "ESTALE", "ETIMEDOUT", "ECONNRESET"])
@pytest.mark.parametrize("call", ["preadv", "open"])
def test_what_may_pass_is_tried_again(
    path: str, call: str, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reader = PreadReader(pool=FilePool(4), retries=AT_ONCE)
    monkeypatch.setattr(os, call, Refusing(getattr(os, call), getattr(errno, name), 3))
    assert read(reader, path) == bytes([10, 11, 12, 50, 51])
    assert reader.num_retries == len(caplog.records) == 3
    assert all(path in record.message and "trying again" in record.message for record in caplog.records)


def test_a_stale_file_is_opened_anew(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = PreadReader(pool=FilePool(4), retries=AT_ONCE)
    read(reader, path)
    monkeypatch.setattr(os, "open", counted := Refusing(os.open, 0, 0))
    monkeypatch.setattr(os, "preadv", Refusing(os.preadv, errno.ESTALE, 1))
    assert read(reader, path) == bytes([10, 11, 12, 50, 51])
    assert counted.asked == 1


def test_it_is_raised_in_the_end(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = PreadReader(pool=FilePool(4), retries=AT_ONCE)
    monkeypatch.setattr(os, "preadv", refusing := Refusing(os.preadv, errno.EIO, 99))
    with pytest.raises(StoreError, match=r"10.*Input/output.*4"):
        read(reader, path)
    assert refusing.asked == 4
    monkeypatch.setattr(os, "open", refusing := Refusing(os.open, errno.ETIMEDOUT, 99))
    with pytest.raises(StoreError, match=r"Connection.*4"):
        MmapReader(pool=FilePool(4), retries=AT_ONCE).size(path)
    assert refusing.asked == 4


@pytest.mark.parametrize("name", ["EACCES", "EISDIR", "EINVAL"])
def test_what_does_not_pass_is_raised_at_once(path: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = PreadReader(pool=FilePool(4), retries=AT_ONCE)
    monkeypatch.setattr(os, "preadv", refusing := Refusing(os.preadv, getattr(errno, name), 1))
    with pytest.raises(StoreError, match=r"10.*cannot") as found:
        read(reader, path)
    assert "attempts" not in str(found.value)
    assert (refusing.asked, reader.num_retries) == (1, 0)
    with pytest.raises(StoreError, match="opened"):
        reader.size(path + "b")
    assert reader.num_retries == 0


def test_a_file_that_changed_in_between_is_no_mixture(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = PreadReader(pool=FilePool(4), retries=AT_ONCE)
    read(reader, path)

    def changed(*args: Any) -> Any:
        Path(path).write_bytes(bytes(101))
        raise OSError(errno.EIO, "faulty")

    monkeypatch.setattr(os, "preadv", changed)
    with pytest.raises(StoreError, match=r"100.*101"):
        read(reader, path)


def test_readers_take_their_policy_along(path: str) -> None:
    for reader in (MmapReader(retries=AT_ONCE), PreadReader(retries=AT_ONCE)):
        again = pickle.loads(pickle.dumps(reader))
        assert (type(again), again.retries, again.for_pass().retries) == (type(reader), AT_ONCE, AT_ONCE)
    assert pickle.loads(pickle.dumps(PreadReader())).retries == RetryPolicy()


def test_which_errors_may_pass() -> None:
    passing = [TimeoutError(), ConnectionResetError(), OSError(errno.EIO, ""), URLError(TimeoutError())]
    others: list[BaseException | None] = [None, OSError("x"), FileNotFoundError(), PermissionError(), URLError("x")]
    others += [ValueError(), StoreError("x"), KeyboardInterrupt()]
    assert all(map(may_pass, passing))
    assert not any(map(may_pass, others))


@given(st.integers(1, 30), st.floats(0, 10), st.floats(0, 20))
def test_delays_are_bounded(attempts: int, first: float, most: float) -> None:
    delays = list(RetryPolicy(attempts=attempts, first_delay_s=first, most_delay_s=most).delays())
    assert len(delays) == attempts - 1
    assert delays == [min(first * 2**number, most) for number in range(attempts - 1)]


def test_policy_is_checked() -> None:
    assert sum(RetryPolicy().delays()) == pytest.approx(1.5)
    with pytest.raises(ConfigError, match=r"attempts.*0"):
        RetryPolicy(attempts=0)
    for name in ("first_delay_s", "most_delay_s"):
        with pytest.raises(ConfigError, match=rf"{name}.*-1.0.*0"):
            RetryPolicy(**{name: -1.0})
