"""Runs the checks of a store for ``headrace check``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from headrace.cli.description import find_manifest, opened_keys, shards_of
from headrace.errors import StoreError
from headrace.io import FileSum
from headrace.stores import MANIFEST_NAME, IndexedOptions, Problem, Store
from headrace.stores.indexed.layout import AS_FOUND
from headrace.stores.written import META_NAME


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a check found and how much it read. Counts are zero where the store does not even open."""

    path: str
    ok: bool
    problems: tuple[Problem, ...]
    files: int
    bytes: int
    documents: int
    tokens: int
    """Of all keys."""

    hashed: bool
    """Whether a manifest vouches for every byte; without one only the structure can be checked."""

    vocab_size: int | None
    """Ids were checked to be below this; None: not checked."""


def check_store(
    path: str,
    *,
    tokenizer: str | None,
    on_shard: Callable[[int, int, str, int], None],
    options: IndexedOptions = AS_FOUND,
) -> Verdict:
    """Read everything at a path and collect what is wrong.

    Args:
        path: as for `headrace.open`.
        tokenizer: its vocabulary is taken, else that of the manifest.
        options: how pairs of .bin and .idx are understood.
        on_shard: called before each shard with its number, the number of shards, its path, and its bytes.

    Raises:
        StoreError: nothing is there.
        ConfigError: the tokeniser cannot be read.
    """
    vocab_size = _vocab_size(tokenizer) if tokenizer is not None else None
    try:
        stores = opened_keys(path, options)
        manifest = find_manifest(path)
    except StoreError as error:
        if not _is_there(path):
            raise
        return _faulty(path, _as_problem(error, path), vocab_size)
    if vocab_size is None and manifest is not None and manifest.tokenizer is not None:
        vocab_size = manifest.tokenizer.vocab_size
    with contextlib.ExitStack() as stack:
        for store in stores.values():
            stack.enter_context(store)
        # A shard of the keyed format checks all its keys, one of the indexed format has one. They are told apart by
        # their files: indexed keys of one shard each all have the folder for their path.
        shards = {frozenset(shard.files): shard for store in stores.values() for shard in shards_of(store)}
        problems: list[Problem] = []
        num_bytes = 0
        for number, shard in enumerate(shards.values()):
            shard_bytes = sum(file.stat().st_size for file in shard.files)
            num_bytes += shard_bytes
            on_shard(number, len(shards), shard.path, shard_bytes)
            problems.extend(_check_shard(shard, vocab_size))
        beside: tuple[FileSum, ...] = ()
        if manifest is not None and (Path(path) / MANIFEST_NAME).exists():
            beside = (*manifest.provenance, *(manifest.beside or ()))
            num_bytes += sum(file.size for file in beside)
            problems.extend(manifest.check_beside(path))
        first = next(iter(stores.values()))
        return Verdict(
            path=path,
            ok=not problems,
            problems=tuple(problems),
            files=sum(len(shard.files) for shard in shards.values()) + len(beside) + (manifest is not None),
            bytes=num_bytes,
            documents=first.num_documents,
            tokens=sum(store.num_tokens for store in stores.values()) if not problems else 0,
            hashed=manifest is not None,
            vocab_size=vocab_size,
        )


def _check_shard(shard: Store, vocab_size: int | None) -> Iterator[Problem]:
    try:
        yield from shard.check(vocab_size=vocab_size)
    except StoreError as error:
        yield _as_problem(error, shard.path)


def _vocab_size(tokenizer: str) -> int:
    from headrace.prepare.tokenizer import load_tokenizer

    return load_tokenizer(tokenizer).vocab_size


def _is_there(path: str) -> bool:
    """Whether something at this path means to be a store; then what is wrong with it is a finding."""
    place = Path(path)
    if place.is_dir():
        names = (MANIFEST_NAME, META_NAME)
        suffixes = (".bin", ".idx", ".jsonl")
        return any(file.name in names or file.suffix in suffixes for file in place.iterdir()) or any(
            file for pattern in (META_NAME, "*.h5", "*.hdf5") for file in place.rglob(pattern)
        )
    return place.is_file() or Path(path + ".bin").exists() or Path(path + ".idx").exists()


def _as_problem(error: StoreError, path: str) -> Problem:
    """The error as a finding; errors of stores begin with the file they speak of."""
    file, _, message = str(error).partition(": ")
    if message and Path(file).exists():
        return Problem(path=file, place="", message=message)
    return Problem(path=path, place="", message=str(error))


def _faulty(path: str, problem: Problem, vocab_size: int | None) -> Verdict:
    return Verdict(
        path=path,
        ok=False,
        problems=(problem,),
        files=0,
        bytes=0,
        documents=0,
        tokens=0,
        hashed=False,
        vocab_size=vocab_size,
    )
