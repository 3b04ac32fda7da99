"""``IndexedDatasetBuilder``: Megatron's bytes, without Megatron's traps."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

import headrace.stores as stores
from counts import cases
from headrace.compat.megatron import indexed_dataset as indexed_builder
from headrace.compat.megatron.indexed_dataset import IndexedDatasetBuilder
from headrace.errors import ConfigError, InputError, OutputError, StoreError
from headrace.io import file_sum
from headrace.stores.indexed.layout import IndexedOptions
from headrace.stores.indexed.store import IndexedStore
from headrace.testing.stores import numbered_documents
from token_shards import write_raw, write_shard

GOLDEN = Path(__file__).parents[2] / "golden"


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here cuts the power."""
    monkeypatch.setattr("os.fsync", lambda fd: None)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def same_bytes(ours: Path, golden: Path) -> None:
    for suffix in (".bin", ".idx"):
        assert ours.with_name(ours.name + suffix).read_bytes() == golden.with_name(golden.name + suffix).read_bytes()


def new(folder: Path, dtype: Any = np.uint16, **options: Any) -> IndexedDatasetBuilder:
    return IndexedDatasetBuilder(str(folder / "x.bin"), dtype=dtype, **options)


def finish(builder: IndexedDatasetBuilder, folder: Path) -> IndexedStore:
    builder.finalize(str(folder / "x.idx"))
    return IndexedStore(folder / "x")


def several(builder: IndexedDatasetBuilder) -> None:
    builder.add_document([1, 2, 3], [3])
    builder.add_document([4, 5, 6, 7], [2, 2])
    builder.add_document([], [0])
    builder.end_document()
    builder.add_document([8, 9], [2])


def two(builder: IndexedDatasetBuilder) -> None:
    builder.add_item(torch.tensor([1, 2, 3]))
    builder.end_document()
    builder.end_document()
    builder.add_document(np.array([4, 5]), [2])


def modes(builder: IndexedDatasetBuilder) -> None:
    builder.add_item(torch.tensor([1, 2]), 0)
    builder.add_item(torch.tensor([3, 4, 5]), 1)
    builder.end_document()


def items(builder: IndexedDatasetBuilder) -> None:
    for sequence in ([1, 2, 3], [4, 5], [], [6]):
        builder.add_item(sequence)


def documents_of_neox(builder: IndexedDatasetBuilder) -> None:
    builder.add_document([1, 2, 3, 4, 5], [3, 2])
    builder.add_document([], [])
    builder.add_document([], [0])
    builder.add_document([6], [1])


OF_DTYPES = ("uint8", "int8", "int16", "int32", "int64", "float32", "float64")
GOLDEN_BYTES: dict[str, tuple[Callable[[IndexedDatasetBuilder], None], dict[str, Any]]] = {
    "indexed/uint16": (several, {}),
    **{f"indexed/{name}": (two, {"dtype": getattr(np, name)}) for name in OF_DTYPES},
    "indexed/multimodal": (modes, {"dtype": np.int32, "multimodal": True}),
    "indexed/empty": (lambda builder: None, {}),
    "indexed_dialects/fairseq-uint32": (items, {"dtype": "uint32", "dialect": "fairseq"}),
    "indexed_dialects/fairseq-uint64": (items, {"dtype": "uint64", "dialect": "fairseq"}),
    "indexed_dialects/neox-float32": (documents_of_neox, {"dtype": np.float32, "dialect": "neox"}),
}


@pytest.mark.parametrize("name", GOLDEN_BYTES)
def test_golden_bytes_of_several_sequences(tmp_path: Path, name: str) -> None:
    fill, options = GOLDEN_BYTES[name]
    builder = new(tmp_path, **options)
    fill(builder)
    written = builder.finalize(str(tmp_path / "x.idx"))
    same_bytes(tmp_path / "x", GOLDEN / name)
    assert written.documents == len(stores.open(tmp_path / "x", dialect=options.get("dialect")))
    assert (written.format, written.prefix, written.contiguous) == ("indexed", str(tmp_path / "x"), True)
    assert written.files == (file_sum(tmp_path / "x.bin"), file_sum(tmp_path / "x.idx"))


documents = st.lists(st.lists(st.lists(st.integers(0, 65535), max_size=6), max_size=4), max_size=10)


@settings(deadline=None, max_examples=cases(12, 1000))
@given(drawn=documents, buffer=st.integers(1, 9), waiting=st.integers(1, 4), by_item=st.booleans())
def test_any_documents_through_small_buffers(
    tmp_path_factory: pytest.TempPathFactory,
    drawn: list[list[list[int]]],
    buffer: int,
    waiting: int,
    by_item: bool,
) -> None:
    folder = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexed_builder, "_WAITING_TOKENS", buffer)
        patch.setattr(indexed_builder, "_MAX_WAITING", waiting)
        patch.setattr(indexed_builder, "CHUNK", waiting)
        patch.setattr("headrace.stores.writer.CHUNK", waiting)
        builder = new(folder, multimodal=True)
        for document in drawn:
            modes = [len(sequence) for sequence in document]
            if by_item:
                for sequence, mode in zip(document, modes, strict=True):
                    builder.add_item(np.array(sequence, np.int64), mode)
                builder.end_document()
            else:
                builder.add_document(list(itertools.chain(*document)), list(map(len, document)), modes)
        store = finish(builder, folder)
        other = IndexedDatasetBuilder(folder / "y.bin", np.uint16, multimodal=True)
        other.add_document([7], [1], [3])
        other.add_index(folder / "x")
        other.add_index(folder / "x")
        other.finalize(folder / "y.idx")
    sequences = [sequence for document in drawn for sequence in document]
    assert [store.sequence(number).tolist() for number in range(len(sequences))] == sequences
    assert [store.document(number).tolist() for number in range(len(store))] == [
        list(itertools.chain(*document)) for document in drawn
    ]
    assert store.document_indices.tolist() == np.cumsum([0, *map(len, drawn)]).tolist()
    assert (store.modes.tolist() if store.modes is not None else []) == [len(sequence) for sequence in sequences]
    assert list(store.check()) == []
    twice = IndexedStore(folder / "y")
    assert [twice.sequence(number).tolist() for number in range(len(twice.index.sizes))] == [[7], *sequences * 2]
    assert twice.lengths.tolist() == [1, *store.lengths.tolist() * 2]
    assert twice.modes is not None
    assert twice.modes.tolist() == [3, *[len(sequence) for sequence in sequences] * 2]
    assert list(twice.check()) == []


TOO_BIG: dict[str, Any] = {
    "a list": [1, 70000],
    "a tensor": torch.tensor([1, 70000]),
    "unsigned": np.array([70000], np.uint32),
    "below 0": torch.tensor([-1, 3]),
    "bits in common": np.array([65535, 65536]),
}


@pytest.mark.parametrize("kind", TOO_BIG)
def test_ids_out_of_range_are_refused_and_nothing_is_added(tmp_path: Path, kind: str) -> None:
    tokens = TOO_BIG[kind]
    builder = new(tmp_path)
    builder.add_document([5], [1])
    for add in (lambda: builder.add_item(tokens), lambda: builder.add_document(tokens, [len(tokens)])):
        with pytest.raises(InputError, match=r"uint16.*0.*65535"):
            add()
    builder.add_document([65535, 0], [2])
    assert finish(builder, tmp_path).fetch(0, 3).tolist() == [5, 65535, 0]


@pytest.mark.parametrize("name", ["int8", "int16", "int32", "int64", "uint8", "uint16"])
def test_the_least_and_the_greatest(tmp_path: Path, name: str) -> None:
    limits = np.iinfo(name)
    builder = new(tmp_path, name)
    for ids in ([limits.min, limits.max], np.array([limits.max]), np.array([limits.min], object).astype(np.int64)):
        builder.add_document(ids, [len(ids)])
    assert finish(builder, tmp_path).fetch(0, 4).tolist() == [limits.min, limits.max, limits.max, limits.min]
    builder = new(tmp_path, name)
    for wrong in (limits.min - 1, limits.max + 1):
        with pytest.raises(InputError, match=f"{name}|integers"):
            builder.add_item([wrong])


JAGGED = [[5, 6], [], [7], [8, 9, 10]]
WRONG: dict[str, tuple[Callable[[IndexedDatasetBuilder], object], type[Exception], str]] = {
    "lengths too few": (lambda b: b.add_document([1, 2, 3], [2]), InputError, "2.*3"),
    "lengths too many": (lambda b: b.add_document([1], [1, 1]), InputError, "2.*1"),
    "negative lengths": (lambda b: b.add_document([1], [2, -1]), InputError, "-1"),
    "fractions": (lambda b: b.add_item([1.5]), InputError, "float64"),
    "truths": (lambda b: b.add_item([True]), InputError, "bool"),
    "words": (lambda b: b.add_item("word"), InputError, "<U4"),
    "ragged": (lambda b: b.add_item([[1], [1, 2]]), InputError, "list"),
    "a tensor with gradient": (lambda b: b.add_item(torch.ones(2, requires_grad=True)), InputError, "Tensor"),  # type: ignore[arg-type]
    "a mode": (lambda b: b.add_item([1], 2), ConfigError, "multimodal=True"),
    "modes": (lambda b: b.add_document([1], [1], [0]), ConfigError, "multimodal=True"),
    "many modes": (lambda b: b.add_documents(JAGGED, modes=[1, 2, 3, 4]), ConfigError, "multimodal=True"),
    "a chunk": (lambda b: b.add_documents(JAGGED, chunk_size=0), ConfigError, "chunk_size.*0"),
    "many, one too big": (lambda b: b.add_documents([[1], [70_000]]), InputError, "70000"),
    "an end that is too big": (lambda b: b.add_documents([[1]], eod_token=70_000), InputError, "70000"),
}
WRONG_MODES: dict[str, tuple[Callable[[IndexedDatasetBuilder], object], str]] = {
    "too few": (lambda b: b.add_document([1, 2], [1, 1], [1]), "1.*2"),
    "too few of many": (lambda b: b.add_documents(JAGGED, modes=[1, 2, 3]), "3.*4"),
    "too big": (lambda b: b.add_document([1, 2], [1, 1], [1, 128]), "128"),
    "too small": (lambda b: b.add_document([1, 2], [1, 1], [-129, 0]), "-129"),
    "of a shard": (lambda b: b.add_index("wide"), "300"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_refused(tmp_path: Path, name: str) -> None:
    add, error, named = WRONG[name]
    builder = new(tmp_path)
    with pytest.raises(error, match=named):
        add(builder)
    if "many" in name or "end" in name:  # the documents before stay
        return
    builder.add_document([1], [1])
    assert finish(builder, tmp_path).lengths.tolist() == [1]


@pytest.mark.parametrize("name", WRONG_MODES)
def test_modes_that_are_refused(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for suffix in (".bin", ".idx"):
        data = bytearray((GOLDEN / "indexed_dialects" / f"modes-int32{suffix}").read_bytes())
        if suffix == ".idx":
            data[-4:] = np.array([300], "<i4").tobytes()
        Path(f"wide{suffix}").write_bytes(data)
    add, named = WRONG_MODES[name]
    builder = new(tmp_path, np.int32, multimodal=True)
    with pytest.raises(InputError, match=named):
        add(builder)
    if name == "of a shard":
        return
    builder.add_document([1, 2], [1, 1])  # which fails in Megatron's
    store = finish(builder, tmp_path)
    assert store.modes is not None
    assert store.modes.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("dtype", "options", "named"),
    [
        *((dtype, {}, f"{dtype}.*uint8") for dtype in ("uint32", "uint64", "float16", "bool", "complex64")),
        ("uint16", {"multimodal": True, "dialect": "fairseq"}, "fairseq's"),
        ("uint16", {"dialect": "nemo"}, "'nemo'"),
        ("float32", {"dialect": "deepspeed"}, "float32"),
        ("words", {}, "dtype"),
    ],
)
def test_options_that_cannot_be(tmp_path: Path, dtype: str, options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        new(tmp_path, dtype, **options)
    assert names(tmp_path) == []


def test_items_without_a_document(tmp_path: Path) -> None:
    write_shard(tmp_path / "y", [np.array([1])])
    builder = new(tmp_path)
    builder.add_item([1])
    builder.add_item([2])
    with pytest.raises(ConfigError, match=r"finalize.*2.*end_document\("):
        builder.finalize(tmp_path / "x.idx")
    with pytest.raises(ConfigError, match=r"add_index.*2.*end_document\("):
        builder.add_index(tmp_path / "y")
    builder.add_document([3], [1])  # as Megatron's, it ends the document of the items before
    assert finish(builder, tmp_path).lengths.tolist() == [3]


def test_nothing_appears_before_the_end(tmp_path: Path) -> None:
    write_shard(tmp_path / "x", [np.array([9])])
    builder = new(tmp_path)
    builder.add_document(np.arange(5000), [5000])
    assert stores.open(tmp_path / "x").lengths.tolist() == [1]
    store = finish(builder, tmp_path)
    assert store.lengths.tolist() == [5000]
    assert names(tmp_path) == ["x.bin", "x.idx"]
    for action in (
        lambda: builder.add_item([1]),
        lambda: builder.add_document([1], [1]),
        builder.end_document,
        lambda: builder.add_index(tmp_path / "x"),
        lambda: builder.finalize(tmp_path / "x.idx"),
    ):
        with pytest.raises(ConfigError, match="discarded"):
            action()
    builder.discard()
    assert names(tmp_path) == ["x.bin", "x.idx"]


def test_a_builder_that_is_let_go_of_leaves_nothing(tmp_path: Path) -> None:
    new(tmp_path).add_document([1], [1])
    gc.collect()
    assert names(tmp_path) == []
    with new(tmp_path) as builder:
        builder.add_document([1], [1])
    assert names(tmp_path) == []
    with pytest.raises(ConfigError):
        builder.end_document()
    path = str(tmp_path / "x.bin")
    code = f"from headrace.compat.megatron import *; b = IndexedDatasetBuilder({path!r})"
    subprocess.run([sys.executable, "-c", f"{code}; b.add_document([1], [1])"], check=True)
    assert names(tmp_path) == []


def test_an_index_in_another_folder(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    builder = new(tmp_path)
    builder.add_document([1, 2], [2])
    builder.finalize(tmp_path / "other" / "x.idx")
    (tmp_path / "x.bin").rename(tmp_path / "other" / "x.bin")
    assert IndexedStore(tmp_path / "other" / "x").lengths.tolist() == [2]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="create"):
        IndexedDatasetBuilder(tmp_path / "no" / "x.bin")
    builder = new(tmp_path)
    builder.add_document([1], [1])
    with pytest.raises(OutputError, match="create"):
        builder.finalize(tmp_path / "no" / "x.idx")
    assert names(tmp_path) == []


def test_a_write_that_fails_ends_the_builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builder = new(tmp_path)
    builder.add_document([1], [1])

    def fail(fd: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("headrace.io.atomic.os.write", fail)
    with pytest.raises(OutputError, match="space"):
        builder.finalize(tmp_path / "x.idx")
    monkeypatch.undo()
    with pytest.raises(ConfigError, match="finalize"):
        builder.finalize(tmp_path / "x.idx")
    assert names(tmp_path) == []


def test_a_kill_leaves_one_temporary_file_at_most(tmp_path: Path) -> None:
    builder = new(tmp_path, multimodal=True)
    builder.add_document([1], [1])
    [left] = names(tmp_path)
    assert left.startswith(".x.bin.")
    builder.discard()


@pytest.mark.parametrize("at", [1, 2])
def test_both_files_appear_or_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    builder = new(tmp_path)
    builder.add_document([1], [1])
    calls = 0
    rename = Path.rename

    def fail(self: Path, target: Path) -> Path:
        nonlocal calls
        calls += 1
        if calls == at:
            assert not (tmp_path / "x.idx").exists()
            raise OSError(5, "Input/output error")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fail)
    with pytest.raises(OutputError, match="Input/output"):
        builder.finalize(tmp_path / "x.idx")
    assert names(tmp_path) == []


def test_the_tokens_are_copied_at_once(tmp_path: Path) -> None:
    tokens = np.array([1, 2, 3], np.uint16)
    builder = new(tmp_path)
    builder.add_document(tokens, [3])
    tokens[:] = 9
    builder.add_document(np.arange(20, dtype="u2")[::2], [10])
    builder.add_document(np.array([[1, 2], [3, 4]], ">i8"), [4])
    store = finish(builder, tmp_path)
    assert [store.document(number).tolist() for number in range(3)] == [[1, 2, 3], [*range(0, 20, 2)], [1, 2, 3, 4]]


def test_merging_permuted_and_padded_shards(tmp_path: Path) -> None:
    """Megatron copies the .bin as it lies, so that tokens and index no longer agree."""
    write_raw(tmp_path / "a", "uint16", [2, 1, 3], [8, 0, 2], [0, 2, 3], np.arange(9, dtype="<u2").tobytes())
    write_shard(tmp_path / "b", numbered_documents([2, 0, 1], "uint16"))
    with (tmp_path / "b.bin").open("ab") as file:
        file.write(b"tail")
    builder = new(tmp_path)
    for name in ("a", "b", "a"):
        builder.add_index(tmp_path / name)
    store = finish(builder, tmp_path)
    first, second = [[4, 5, 0], [1, 2, 3]], [[1, 2], [], [3]]
    assert [store.document(number).tolist() for number in range(len(store))] == [*first, *second, *first]
    assert list(store.check()) == []


def test_merging_what_lost_its_documents(tmp_path: Path) -> None:
    merged = GOLDEN / "indexed_dialects" / "neox-merged"
    builder = new(tmp_path)
    with pytest.raises(StoreError, match="documents='sequences'"):
        builder.add_index(merged)
    with pytest.warns(UserWarning, match="lost"):
        builder.add_index(merged, options=IndexedOptions(documents="sequences"))
    assert finish(builder, tmp_path).lengths.tolist() == [3, 2, 0, 1]


def test_shards_that_do_not_go_together(tmp_path: Path) -> None:
    write_shard(tmp_path / "wide", [np.array([1])], "int32")
    builder = new(tmp_path)
    with pytest.raises(ConfigError, match=r"int32.*x\.bin.*uint16"):
        builder.add_index(tmp_path / "wide")
    with pytest.raises(StoreError, match="nothing"):
        builder.add_index(tmp_path / "nothing")
    modes = new(tmp_path, np.int32, multimodal=True)
    with pytest.raises(ConfigError, match="multimodal=False"):
        modes.add_index(tmp_path / "wide")
    with pytest.raises(ConfigError, match="multimodal=True"):
        new(tmp_path, np.int32).add_index(GOLDEN / "indexed" / "multimodal")
    modes.add_index(GOLDEN / "indexed_dialects" / "modes-int32")
    store = finish(modes, tmp_path)
    assert store.modes is not None
    assert (store.modes.dtype.name, store.modes.tolist()) == ("int8", [0, 1, 0, -1])


def test_a_shard_that_breaks_on_the_way_ends_the_builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_shard(tmp_path / "y", numbered_documents([3, 3], "uint16"))
    builder = new(tmp_path)

    def fail(self: IndexedStore, begin: int, end: int) -> None:
        raise StoreError("torn")

    monkeypatch.setattr(IndexedStore, "fetch", fail)
    with pytest.raises(StoreError, match="torn"):
        builder.add_index(tmp_path / "y")
    with pytest.raises(ConfigError, match="discarded"):
        builder.finalize(tmp_path / "x.idx")
    assert names(tmp_path) == ["y.bin", "y.idx"]


def test_memory_does_not_grow_with_the_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index of these documents alone has 4.8 MB."""
    count = 600_000
    monkeypatch.setattr(indexed_builder, "CHUNK", 1 << 14)
    with new(tmp_path) as builder:
        tracemalloc.start()
        for _ in range(count):
            builder.end_document()
        builder.add_document([1], [1])
        builder.finalize(tmp_path / "x.idx")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 3e6
    with IndexedDatasetBuilder(tmp_path / "copy.bin", np.uint16) as other:
        tracemalloc.start()
        other.add_index(tmp_path / "x")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        other.finalize(tmp_path / "copy.idx")
    assert peak < 3e6
    same_bytes(tmp_path / "copy", tmp_path / "x")


def test_strings_of_digits_are_tokens(tmp_path: Path) -> None:
    """Megatron's builder reads them so, and its tests write them."""
    builder = new(tmp_path)
    builder.add_document(["7", "65535", "0"], [3])
    builder.add_item(["12"])
    builder.end_document()
    for wrong in (["70000"], ["1.5"], ["-1"], ["9" * 30]):
        with pytest.raises(InputError):
            builder.add_item(wrong)
    store = finish(builder, tmp_path)
    assert [store.document(number).tolist() for number in range(2)] == [[7, 65535, 0], [12]]
    floats = new(tmp_path, np.float32)
    floats.add_document(["1.5"], [1])
    assert finish(floats, tmp_path).document(0).tolist() == [1.5]


def test_what_was_added_can_be_asked_for(tmp_path: Path) -> None:
    builder = new(tmp_path, np.int32, multimodal=True)
    assert (builder.sequence_lengths, builder.document_indices, builder.sequence_modes) == ([], [0], [])
    builder.add_document([1, 2, 3, 4, 5], [3, 2])
    builder.add_document([6, 7], [2])
    assert (builder.sequence_lengths, builder.document_indices) == ([3, 2, 2], [0, 2, 3])
    assert builder.sequence_modes == [0, 0, 0]
    builder.add_item([8], mode=4)
    assert (builder.sequence_modes, builder.document_indices) == ([0, 0, 0, 4], [0, 2, 3])
    builder.end_document()
    assert finish(builder, tmp_path).document(2).tolist() == [8]
    with pytest.raises(ConfigError, match="cannot"):
        builder.sequence_lengths  # noqa: B018
    assert new(tmp_path).sequence_modes is None


@pytest.mark.parametrize("eod", [None, 3])
@pytest.mark.parametrize("kind", ["lists", "tensors", "awkward"])
def test_many_documents_at_once(tmp_path: Path, kind: str, eod: int | None) -> None:
    """Each document is a sequence; the end is added to every one, as by Megatron, also to an empty one."""
    documents: Any = JAGGED
    if kind == "tensors":
        documents = map(torch.tensor, [np.array(document, np.int64) for document in JAGGED])
    elif kind == "awkward":
        documents = pytest.importorskip("awkward").Array(JAGGED)
    builder = new(tmp_path)
    builder.add_document([1], [1])
    builder.add_documents(documents, eod_token=eod, chunk_size=3)
    end = [] if eod is None else [eod]
    wanted = [[1], *([*document, *end] for document in JAGGED)]
    assert (builder.num_sequences, builder.document_indices) == (5, [0, 1, 2, 3, 4, 5])
    store = finish(builder, tmp_path)
    assert [store.document(number).tolist() for number in range(len(store))] == wanted
