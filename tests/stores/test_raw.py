"""Tokens and nothing else, as nanoGPT and llm.c write them: what their scripts write is read back, in place."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

import headrace
from counts import cases
from headrace.copying import CopyOptions
from headrace.errors import ConfigError, StoreError
from headrace.io import ObjectReader
from headrace.stores import (
    KeyedWriter,
    RawStore,
    ShardedStore,
    Store,
    kept_arrays,
    open_keys,
    open_tokens,
)
from headrace.tracing import save_run
from memory_stores import MemoryBucket

END = 50256
"""``<|endoftext|>`` of GPT-2."""

Documents = list[list[int]]
TEXTS: Documents = [[5, 6, 7], [8], [9, 10, 11, 12], [13, 14], list(range(100, 160))]


def nanogpt(path: Path, texts: Documents, dtype: str = "uint16") -> Path:
    """As the scripts of nanoGPT do it: the ids of a text, then the end, one after another."""
    ids = [one for text in texts for one in (*text, END)]
    array = np.memmap(path, dtype=dtype, mode="w+", shape=(len(ids),))
    array[:] = ids
    array.flush()
    return path


def llmc(path: Path, texts: Documents, magic: int = 20240520, version: int = 1, dtype: str = "uint16") -> Path:
    """As the scripts of llm.c do it: a header of 256 int32; each text begins with the end of the one before it."""
    tokens = np.array([one for text in texts for one in (END, *text)], dtype)
    header = np.zeros(256, np.int32)
    header[:3] = magic, version, len(tokens)
    with path.open("wb") as file:
        file.write(header.tobytes())
        file.write(tokens.tobytes())
    return path


def llama3(path: Path, texts: Documents) -> Path:
    return llmc(path, texts, 20240801, 7, "uint32")


WRITTEN: dict[str, tuple[Callable[[Path, Documents], Path], dict[str, Any], str]] = {
    "nanogpt": (nanogpt, {"dtype": "uint16", "eod": END}, "uint16"),
    "llm.c": (llmc, {"bos": END}, "uint16"),
    "llama3": (llama3, {"bos": END, "dtype": "uint32"}, "uint32"),
}
EVERY = pytest.mark.parametrize("program", WRITTEN)


def documents_of(texts: Documents, options: dict[str, Any]) -> Documents:
    return [[*text, END] if "eod" in options else [END, *text] for text in texts]


def as_keyed(prefix: Path, documents: Documents, dtype: str) -> Store:
    """The same documents in another format."""
    prefix.mkdir()
    with KeyedWriter(prefix, dtypes={"tokens": dtype}) as writer:
        lengths = np.array([len(one) for one in documents])
        tokens = np.array([one for document in documents for one in document], dtype)
        writer.add_documents({"tokens": tokens}, {"tokens": lengths})
        writer.finish()
    return open_tokens(prefix)


def assert_same(store: Store, wanted: Store) -> None:
    """That two stores hold the same documents, through each method that reads."""
    rng = np.random.default_rng(1)
    assert store.keys == ("tokens",)
    assert dict(store.dtypes) == dict(wanted.dtypes)
    assert store.lengths.tolist() == wanted.lengths.tolist()
    total = wanted.num_tokens
    assert store.num_tokens == total
    assert store.fetch(0, total).tobytes() == wanted.fetch(0, total).tobytes()
    for number in range(len(wanted)):
        found = store.document(number)
        assert not found.flags.writeable
        assert found.tolist() == wanted.document(number).tolist()
    for length in (1, 3, total):
        begins = rng.integers(0, total - length + 1, 7)
        assert store.gather(begins, length).tolist() == wanted.gather(begins, length).tolist()
    begins = rng.integers(0, total + 1, 9)
    lengths = np.minimum(rng.integers(0, 9, 9), total - begins)
    pieces = [piece.tolist() for piece in wanted.pieces(begins, lengths)]
    assert [piece.tolist() for piece in store.pieces(begins, lengths)] == pieces
    with pytest.raises(IndexError):
        store.pieces(np.array([total]), np.array([1]))
    with pytest.raises(IndexError):
        store.gather(np.array([total]), 1)
    every = np.arange(total)
    assert store.find_documents(every).tolist() == wanted.find_documents(every).tolist()
    extents = store.extents(begins, lengths)
    for row, begin, end in zip(extents.rows.tolist(), extents.begins.tolist(), extents.ends.tolist(), strict=True):
        reader, path = store.data_file(int(extents.files[row]))
        assert reader.read(path, begin, end - begin).view(store.dtypes["tokens"]).tolist() == pieces[row]
    assert int(extents.ends.max()) <= int(store.data_sizes()[0])
    assert list(store.check(vocab_size=END + 1)) == []
    assert next(store.check(vocab_size=END)).message.startswith(f"id {END} is outside")


@EVERY
@pytest.mark.parametrize("reader", ["mmap", "pread"])
def test_what_their_scripts_write(tmp_path: Path, program: str, reader: str) -> None:
    write, options, dtype = WRITTEN[program]
    path = write(tmp_path / "train.bin", TEXTS)
    wanted = as_keyed(tmp_path / "keyed", documents_of(TEXTS, options), dtype)
    store = open_tokens(path, reader=reader, **options)
    assert isinstance(store, RawStore)
    assert store.files == (path,)
    assert "raw store" in repr(store)
    assert (store.stream_view() is None) == (reader == "pread")
    assert_same(store, wanted)
    again = pickle.loads(pickle.dumps(store))
    assert again.fingerprint == store.fingerprint
    assert_same(again, wanted)
    store.close()
    assert store.document(1).tolist() == wanted.document(1).tolist()


@EVERY
def test_without_an_id_all_tokens_are_one_document(tmp_path: Path, program: str) -> None:
    write, options, dtype = WRITTEN[program]
    path = write(tmp_path / "train.bin", TEXTS)
    documents = documents_of(TEXTS, options)
    store = open_tokens(path, **({"dtype": dtype} if program == "nanogpt" else {}))
    assert store.lengths.tolist() == [sum(map(len, documents))]
    assert store.document(0).tolist() == [one for document in documents for one in document]
    assert store.fingerprint != open_tokens(path, **options).fingerprint


def test_a_document_that_nothing_ends_or_begins(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(np.array([1, 9, 2, 9, 9, 3], "<u2").tobytes())
    assert open_tokens(path, dtype="uint16", eod=9).lengths.tolist() == [2, 2, 1, 1]
    assert open_tokens(path, dtype="uint16", bos=9).lengths.tolist() == [1, 2, 1, 2]


def test_no_tokens(tmp_path: Path) -> None:
    (tmp_path / "empty.bin").touch()
    empty = open_tokens(tmp_path / "empty.bin", dtype="uint16", eod=3)
    header = open_tokens(llmc(tmp_path / "header.bin", []))
    for store in (empty, header):
        assert (len(store), store.num_tokens, store.fetch(0, 0).tolist()) == (0, 0, [])
        assert store.gather(np.zeros(0, np.int64), 3).shape == (0, 3)
        assert list(store.check()) == []
        assert [len(view) for view in [store.stream_view()] if view is not None] == [0]


@settings(max_examples=cases(10, 50), deadline=None)
@given(texts=st.lists(st.lists(st.integers(0, END - 1), max_size=5), min_size=1, max_size=9), at_once=st.integers(1, 7))
def test_any_texts(tmp_path_factory: pytest.TempPathFactory, texts: Documents, at_once: int) -> None:
    folder = tmp_path_factory.mktemp("raw")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.stores.foreign_ranges._TOKENS_AT_ONCE", at_once)
        for write, options, _ in WRITTEN.values():
            path = write(folder / "x.bin", texts)
            store = open_tokens(path, **options)
            found = [store.document(number).tolist() for number in range(len(store))]
            assert found == documents_of(texts, options)


def test_nothing_is_guessed(tmp_path: Path) -> None:
    path = nanogpt(tmp_path / "train.bin", TEXTS)
    for place in (path, tmp_path, tmp_path / "train"):
        with pytest.raises(StoreError, match=r"nanoGPT.*dtype"):
            headrace.open(place)
    with pytest.raises(ConfigError, match=r"no header.*uint16.*uint32.*eod"):
        RawStore(path)
    # A pair of which the index is lost is no raw file, unless one says so.
    path.rename(tmp_path / "web.bin")
    with pytest.raises(StoreError, match=r"web\.idx"):
        headrace.open(tmp_path / "web.bin")
    assert open_tokens(tmp_path / "web.bin", dtype="uint16").num_tokens == sum(map(len, TEXTS)) + len(TEXTS)


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "another dtype than the header's": ({"dtype": "uint32"}, ConfigError, r"'uint32'.*header.*uint16"),
    "an unknown dtype": ({"dtype": "int8"}, ConfigError, r"'int8'|header"),
    "two kinds of borders": ({"eod": 1, "bos": 1}, ConfigError, "both"),
    "an id beyond the dtype": ({"eod": 65536}, ConfigError, r"eod=65536.*uint16.*65535"),
    "an id below 0": ({"bos": -1}, ConfigError, r"bos=-1.*uint16"),
    "a fraction": ({"bos": 0.5}, ConfigError, r"bos.*0\.5"),
    "an id that does not occur": ({"eod": 77}, StoreError, r"none of its 75 tokens is 77"),
    "another key": ({"key": "mask"}, ConfigError, r"'mask'.*'tokens'"),
    "an option of pairs": ({"dialect": "fairseq"}, ConfigError, r"dialect is for pairs.*raw"),
    "an option of HDF5": ({"dataset_order": "name"}, ConfigError, r"dataset_order is for HDF5.*raw"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(tmp_path: Path, name: str) -> None:
    options, kind, message = REFUSED[name]
    path = llmc(tmp_path / "train.bin", TEXTS)
    with pytest.raises(kind, match=message):
        open_tokens(path, **options)


def test_options_of_raw_files_are_refused_by_others(tmp_path: Path) -> None:
    as_keyed(tmp_path / "keyed", TEXTS, "uint16")
    (tmp_path / "x.jsonl").write_text('{"tokens": [1]}\n')
    for name in ("keyed", "x.jsonl"):
        for options in ({"dtype": "uint16"}, {"eod": 3}, {"bos": 3}):
            with pytest.raises(ConfigError, match=rf"{next(iter(options))} is for a \.bin without a \.idx"):
                headrace.open(tmp_path / name, **options)  # type: ignore[call-overload]


@pytest.mark.parametrize("write", [llmc, llama3])
def test_bad_headers(tmp_path: Path, write: Callable[[Path, Documents], Path]) -> None:
    path = write(tmp_path / "x.bin", TEXTS)
    content = path.read_bytes()
    numbers = np.frombuffer(content[:1024], "<i4").copy()

    def refused(message: str, data: bytes) -> None:
        path.write_bytes(data)
        with pytest.raises(StoreError, match=message):
            headrace.open(path)

    refused(r"75 tokens follow", content[:-4])
    refused(r"75 tokens follow", content + b"\0\0\0\0")
    refused(r"75 tokens follow", content[:1024])
    refused(r"75 tokens follow", content[:900])
    refused(r"version", content[:4])
    refused(r"75 tokens", content[:-1])
    for count in (0, -1, 74, 2**31 - 1):
        numbers[2] = count
        refused(rf"{count:,} tokens follow", numbers.tobytes() + content[1024:])
    numbers[1:3] = 3, 75
    refused(r"version 3", numbers.tobytes() + content[1024:])
    nanogpt(path, TEXTS, "uint32")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(StoreError, match=r"299 bytes.*whole number.*uint32 takes 4"):
        open_tokens(path, dtype="uint32")


def test_shards_of_a_folder_or_a_pattern(tmp_path: Path) -> None:
    for number, texts in ((10, TEXTS[2:]), (9, TEXTS[:2])):
        llmc(tmp_path / f"fineweb_train_{number}.bin", texts)
    wanted = documents_of(TEXTS, {})
    for place in (tmp_path, tmp_path / "fineweb_train_*.bin"):
        store = open_tokens(place, bos=END)
        assert isinstance(store, ShardedStore)
        assert [store.document(number).tolist() for number in range(len(store))] == wanted
        with pytest.raises(ConfigError, match="dialect is for pairs"):
            open_tokens(place, dialect="fairseq")
    llmc(tmp_path / "fineweb_val_000000.bin", TEXTS)
    with pytest.raises(StoreError, match=r"train and val.*\*train\*\.bin"):
        open_tokens(tmp_path, bos=END)
    assert len(open_tokens(tmp_path / "fineweb_train_*.bin", bos=END)) == len(TEXTS)
    with pytest.raises(StoreError, match=r"no file matches"):
        open_tokens(tmp_path / "fineweb_test_*.bin")
    llama3(tmp_path / "fineweb_train_11.bin", TEXTS)
    with pytest.raises(StoreError, match=r"uint16.*uint32"):
        open_tokens(tmp_path / "fineweb_train_*.bin", bos=END)


def test_windows_and_packs(tmp_path: Path) -> None:
    """A run over the file is that over the same documents in another format."""
    path = llmc(tmp_path / "train.bin", TEXTS)
    stores = [open_tokens(path, bos=END), as_keyed(tmp_path / "keyed", documents_of(TEXTS, {}), "uint16")]
    packing = headrace.Packing(seq_len=32, strategy="best_fit", over_long="split")
    for make in (
        lambda store: headrace.WindowDataset(store, seq_len=8),
        lambda store: headrace.PackedSequenceDataset(store, packing),
    ):
        runs = [headrace.Run(make(store), global_batch_size=2) for store in stores]
        for step in range(2):
            found, wanted = (run.step(step) for run in runs)
            assert found.keys() == wanted.keys()
            for key, values in found.items():
                assert np.array_equal(values, wanted[key]), key
    assert len(headrace.WindowDataset.open(path, seq_len=8)) == len(headrace.WindowDataset(stores[0], seq_len=8))


@EVERY
def test_a_run_file_knows_how_they_were_opened(tmp_path: Path, program: str) -> None:
    write, options, _ = WRITTEN[program]
    write(tmp_path / "train_1.bin", TEXTS[:2])
    write(tmp_path / "train_2.bin", TEXTS[2:])
    store = open_tokens(tmp_path / "train_*.bin", **options)
    assert store.opening == options
    run = headrace.Run(headrace.WindowDataset(store, seq_len=8), global_batch_size=2)
    save_run(run, tmp_path / "run.json")
    again = headrace.Run.load(tmp_path / "run.json")
    assert again.step(1)["input_ids"].tolist() == run.step(1)["input_ids"].tolist()


def test_describe_and_convert(tmp_path: Path) -> None:
    path = llmc(tmp_path / "train.bin", TEXTS)
    found = headrace.inspect.describe(path)
    assert (found.format, found.documents, found.tokens) == ("raw", 1, 75)
    headrace.convert(path, tmp_path / "out", format="indexed")
    assert open_tokens(tmp_path / "out").document(0).tolist() == open_tokens(path).document(0).tolist()
    bare = nanogpt(tmp_path / "bare.bin", TEXTS)
    found = headrace.inspect.describe(bare, dtype="uint16", eod=END)
    assert (found.documents, found.tokens) == (len(TEXTS), 75)
    assert headrace.inspect.check(bare, dtype="uint16", eod=END).ok
    headrace.convert(bare, tmp_path / "copied", format="keyed", options=CopyOptions(bin_dtype="uint16", eod=END))
    assert (
        open_tokens(tmp_path / "copied").lengths.tolist() == open_tokens(bare, dtype="uint16", eod=END).lengths.tolist()
    )


def test_an_index_of_documents_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_arrays, "_KEPT_BYTES", 0)
    path = llmc(tmp_path / "train.bin", TEXTS)
    first = open_tokens(path, bos=END)
    ended = open_tokens(path, eod=END)
    assert ended.lengths.tolist() != first.lengths.tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RawStore, "_find", None)
        assert open_tokens(path, bos=END).lengths.tolist() == first.lengths.tolist()
        assert open_tokens(path, bos=END).fingerprint == first.fingerprint
        assert open_tokens(path, eod=END).lengths.tolist() == ended.lengths.tolist()
    data = pickle.dumps(first)
    path.write_bytes(path.read_bytes()[:-6])
    assert ["75 tokens follow" in problem.message for problem in first.check()] == [True]
    path.write_bytes(b"")
    assert ["no header" in problem.message for problem in first.check()] == [True]
    llmc(path, TEXTS[::-1])
    assert ["changed since" in problem.message for problem in first.check()] == [True]
    with pytest.raises(StoreError, match="changed"):
        pickle.loads(data)


def test_a_fork_reads_too(tmp_path: Path) -> None:
    store = open_tokens(llmc(tmp_path / "train.bin", TEXTS), bos=END)
    store.document(0)
    child = os.fork()
    if child == 0:
        os._exit(42 if store.document(4).tolist() == [END, *TEXTS[4]] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42


def test_at_a_url(bucket: MemoryBucket, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    for number, texts in enumerate((TEXTS[:2], TEXTS[2:])):
        llmc(tmp_path / f"x/train_{number}.bin", texts)
    url = bucket.upload(tmp_path / "x", "x")
    local = open_tokens(tmp_path / "x", bos=END)
    for place in (url, f"{url}/train_*.bin"):
        store = open_tokens(place, bos=END, reader=ObjectReader())
        assert store.fingerprint == local.fingerprint
        assert [store.document(at).tolist() for at in range(len(store))] == documents_of(TEXTS, {})
        begins, lengths = np.array([0, 9, 30]), np.array([4, 8, 0])
        assert [one.tolist() for one in store.pieces(begins, lengths)] == [
            one.tolist() for one in local.pieces(begins, lengths)
        ]
    assert {key: one.num_tokens for key, one in open_keys(f"{url}/train_0.bin").items()} == {"tokens": 6}
