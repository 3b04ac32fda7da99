"""The cache between cooking and use: `FileStoreCachePool` on local disk, and the one that a loader hands to cookers.

get_train_dataset(...)                  cookers get a `LoaderCache`, which keeps nothing
get_savable_loader(..., cache_pool=p)   the `LoaderCache` passes everything on to p
"""

from __future__ import annotations

import atexit
import os
import pickle
import shutil
import tempfile
import threading
import weakref
from collections import deque
from concurrent.futures import Future
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final, Literal

from headrace.config import check_choice, whole
from headrace.datasets.media import CachePool, DecodeFileStore, FileStore, Lazy, NoCachePool
from headrace.errors import ConfigError
from headrace.io.threads import end_threads
from headrace.samples.media import SourceInfo


class LoaderCache(CachePool):
    """The cache of the cookers of one dataset. What it does is decided when the loader is made."""

    def __init__(self) -> None:
        self.pool: CachePool = NoCachePool()

    def get(self, ds: FileStore, fname: str, sample: Any = None) -> Any:
        """See `CachePool.get`."""
        return self.pool.get(ds, fname, sample)

    def get_lazy(self, ds: FileStore, fname: str) -> Lazy:
        """See `CachePool.get_lazy`."""
        return self.pool.get_lazy(ds, fname)

    def to_cache(self, data: Any, name: str) -> Lazy:
        """See `CachePool.to_cache`."""
        return self.pool.to_cache(data, name)

    def close(self) -> None:
        """See `CachePool.close`."""
        self.pool.close()


class CacheEntry:
    """A file in a `FileStoreCachePool`, which several `FileCacheLazy` may share.

    Attributes:
        refcount: how many of them have not been read yet.
        data_size: the bytes in the cache; 0 before that is known.
        cache_path: where it lies; None while it is not in the cache.
        send_to_cache_future: done when the file is in the cache, or will not be.
    """

    def __init__(self, store: FileStore, fname: str) -> None:
        self.store = store
        self.fname = fname
        self.refcount = 0
        self.data_size = 0
        self.cache_path: Path | None = None
        self.send_to_cache_future: Future[None] = Future()
        self.info: SourceInfo | None = None
        self.is_raw = False
        """Whether the bytes of the file are kept, and not a pickle of its value."""


class FileCacheLazy(Lazy):
    """A file that a `FileStoreCachePool` brings to local disk before it is asked for."""

    __slots__ = ("_pool", "entry")

    def __init__(self, pool: FileStoreCachePool, entry: CacheEntry) -> None:
        super().__init__(partial(pool.take, entry), entry.fname, entry.store)
        self.entry = entry
        self._pool = pool

    @property
    def cache_path(self) -> Path | None:
        """Where the file lies; None while it is not in the cache."""
        return self.entry.cache_path

    def __del__(self) -> None:
        if self._found is None:
            self._pool.release(self.entry)


class FileStoreCachePool(CachePool):
    """Brings files to local disk between cooking and use, so that samples in buffers hold no large values.

    Files are read by threads of each process that uses the pool, and are removed when all that asked for them have been
    read. While the cache is full the threads wait, and a file that is used before its turn is read directly.

    Args:
        parent_cache_dir: a folder on local disk; each process has one of its own in it. None is the folder for
            temporary files.
        num_workers: the threads of a process.
        max_cache_size_gbytes, max_cache_count: the most that a process keeps.
        method: ``"raw"`` keeps the bytes of a file and decodes it when it is used; ``"pickle"`` keeps the value.

    Raises:
        ConfigError: another method, or a number below 1.
    """

    def __init__(
        self,
        *,
        parent_cache_dir: str | os.PathLike[str] | None = None,
        num_workers: int = 8,
        max_cache_size_gbytes: float = 1024,
        max_cache_count: int = 10_000_000,
        method: Literal["raw", "pickle"] = "raw",
    ) -> None:
        check_choice("method", method, ("raw", "pickle"))
        if max_cache_size_gbytes <= 0:
            raise ConfigError(f"max_cache_size_gbytes is {max_cache_size_gbytes}; it must be above 0")
        self.parent_cache_dir = Path(tempfile.gettempdir() if parent_cache_dir is None else parent_cache_dir)
        self.num_workers = whole(num_workers, "num_workers", least=1)
        self.max_cache_size = int(max_cache_size_gbytes * 1e9)
        self.max_cache_count = whole(max_cache_count, "max_cache_count", least=1)
        self.method = method
        self._begin()

    def _begin(self) -> None:
        """Begin empty, in this process."""
        self._pid = os.getpid()
        self._changed = threading.Condition(threading.RLock())
        self._queue: deque[CacheEntry] = deque()
        self._entries: dict[tuple[int, str], CacheEntry] = {}
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        self._numbers = count()
        self.current_cache_size = self.current_cache_count = 0
        self.parent_cache_dir.mkdir(parents=True, exist_ok=True)
        self.cache_dir = Path(tempfile.mkdtemp(prefix=f"cache-{self._pid}-", dir=self.parent_cache_dir))
        self._remove = weakref.finalize(self, _remove, self.cache_dir, self._pid)
        self._remove.atexit = False
        _LIVING.add(self)

    def _here(self) -> None:
        """Begin anew after a fork: threads and files are those of the parent."""
        if self._pid != os.getpid():
            self._remove.detach()
            self._begin()

    def get(self, ds: FileStore, fname: str, sample: Any = None) -> Any:
        """Read the file directly."""
        return ds.get(fname, sample)

    def get_lazy(self, ds: FileStore, fname: str) -> FileCacheLazy:
        """Return the file, which a thread brings to local disk meanwhile."""
        self._here()
        with self._changed:
            entry = self._entries.get((id(ds), fname))
            if entry is None:
                entry = self._entries[id(ds), fname] = CacheEntry(ds, fname)
                self._queue.append(entry)
                self._changed.notify_all()
            entry.refcount += 1
            while len(self._threads) < self.num_workers:
                thread = threading.Thread(target=_fill, args=(weakref.ref(self), self._changed), daemon=True)
                self._threads.append(thread)
                thread.start()
        return FileCacheLazy(self, entry)

    def to_cache(self, data: Any, name: str) -> FileCacheLazy:
        """Write a value to local disk now."""
        self._here()
        entry = CacheEntry(_Values(), name)
        entry.refcount = 1
        with self._changed:
            self._store(entry, pickle.dumps(data))
        return FileCacheLazy(self, entry)

    def _read(self, entry: CacheEntry) -> tuple[bytes, SourceInfo]:
        """Read what is kept of a file: its bytes, or a pickle of its value."""
        store = entry.store
        is_raw = self.method == "raw" and isinstance(store, DecodeFileStore)
        value, info = store.inner[entry.fname] if is_raw else store[entry.fname]  # type: ignore[attr-defined]
        entry.is_raw = isinstance(value, bytes) and (is_raw or self.method == "raw")
        return (value if entry.is_raw else pickle.dumps(value)), info

    def _value(self, entry: CacheEntry, data: bytes) -> Any:
        if not entry.is_raw:
            return pickle.loads(data)
        store = entry.store
        return store.decoded(entry.fname, data, entry.info) if isinstance(store, DecodeFileStore) else data

    def _has_room(self, size: int) -> bool:
        fits = self.current_cache_size + size <= self.max_cache_size and self.current_cache_count < self.max_cache_count
        return fits or not self.current_cache_count

    def _store(self, entry: CacheEntry, data: bytes) -> None:
        path = self.cache_dir / f"{next(self._numbers):09d}"
        path.write_bytes(data)
        entry.cache_path, entry.data_size = path, len(data)
        self.current_cache_size += len(data)
        self.current_cache_count += 1
        entry.send_to_cache_future.set_result(None)

    def take(self, entry: CacheEntry) -> tuple[Any, SourceInfo | None]:
        """Return the value of an entry for one of those that asked for it."""
        self._here()
        with self._changed:
            if entry.cache_path is not None:
                value = self._value(entry, entry.cache_path.read_bytes())
                self.release(entry)
                return value, entry.info
            self.release(entry)
        return entry.store[entry.fname]

    def release(self, entry: CacheEntry) -> None:
        """One of those that asked for an entry needs it no more."""
        if self._is_closed or self._pid != os.getpid():
            return
        with self._changed:
            entry.refcount -= 1
            if entry.refcount > 0:
                return
            self._entries.pop((id(entry.store), entry.fname), None)
            if entry.cache_path is not None:
                entry.cache_path.unlink(missing_ok=True)
                entry.cache_path = None
                self.current_cache_size -= entry.data_size
                self.current_cache_count -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """End the threads, and remove all files."""
        for thread in self._stopped():
            thread.join()
        self._remove()

    def _stopped(self) -> list[threading.Thread]:
        """Tell the threads of this process to end, and return them."""
        if self._pid != os.getpid():
            return []
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        return self._threads

    def __getstate__(self) -> dict[str, Any]:
        names = ("parent_cache_dir", "num_workers", "max_cache_size", "max_cache_count", "method")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()


_LIVING: Final[weakref.WeakSet[FileStoreCachePool]] = weakref.WeakSet()


@atexit.register
def _end_with_the_program() -> None:
    living = list(_LIVING)
    end_threads([thread for pool in living for thread in pool._stopped()])
    for pool in living:
        pool._remove()


class _Values(FileStore):
    """The place of values that were computed, and lie nowhere else."""

    def __getitem__(self, name: str) -> tuple[Any, SourceInfo]:
        raise KeyError(name)

    def get_path(self) -> str:
        """Return an empty path."""
        return ""


def _fill(pool_of: weakref.ref[FileStoreCachePool], changed: threading.Condition) -> None:
    """Bring files to local disk, one after another, while the pool lives."""
    while True:
        with changed:
            pool = pool_of()
            if pool is None or pool._is_closed:
                return
            if not pool._queue:
                del pool
                changed.wait(timeout=0.5)
                continue
            entry = pool._queue.popleft()
            if not entry.refcount:  # it was used before its turn
                continue
        try:
            data, info = pool._read(entry)
        except Exception:  # whoever uses the file reads it again, and meets the error there
            continue
        with changed:
            entry.info = info
            while not pool._is_closed and entry.refcount and not pool._has_room(len(data)):
                changed.wait(timeout=0.5)
            if not pool._is_closed and entry.refcount:
                pool._store(entry, data)
        del pool


def _remove(folder: Path, pid: int) -> None:
    if os.getpid() == pid:
        shutil.rmtree(folder, ignore_errors=True)
