"""Parquet files by row groups: what pyarrow's own `to_pylist` gives, and every row that is none."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spans
from headrace.errors import ConfigError, InputError
from headrace.preparing.sources import RecordSpec, Span, open_span

SPEC = RecordSpec(fields=("text", "title"), id_field="id")
TEXT_TYPES = [
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.dictionary(pa.int8(), pa.string()),
    pa.dictionary(pa.int32(), pa.large_string()),
    pa.binary(),
    pa.large_binary(),
    pa.binary_view(),
]


def column(values: list[str | None], kind: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode().cast(kind)
    if "binary" in str(kind):
        return pa.array([None if value is None else value.encode() for value in values], kind)
    return pa.array(values, kind)


rows = st.lists(
    st.tuples(st.none() | st.text(max_size=9), st.text(max_size=3), st.none() | st.integers(-9, 1 << 40)), max_size=20
)


@given(
    rows=rows,
    group_rows=st.integers(1, 7),
    task_bytes=st.integers(1, 300),
    block_bytes=st.integers(1, 40),
    kind=st.sampled_from(TEXT_TYPES),
)
def test_any_cut_gives_the_rows_of_pyarrow(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[Any, ...]],
    group_rows: int,
    task_bytes: int,
    block_bytes: int,
    kind: pa.DataType,
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.parquet"
    texts, titles, ids = ([row[at] for row in rows] for at in range(3))
    table = pa.table({"more": ids, "text": column(texts, kind), "id": pa.array(ids, pa.int64()), "title": titles})
    table = table.set_column(3, "title", pa.array(titles, pa.string()))
    pq.write_table(table, path, row_group_size=group_rows)
    model = [(row["text"], row["title"], row["id"]) for row in pq.read_table(path).to_pylist()]
    wanted = [
        (text if isinstance(text, str) else text.decode(), title, str(number), at, at)
        for at, (text, title, number) in enumerate(model)
        if text is not None and number is not None
    ]
    for size in (task_bytes, 1 << 40):
        found = spans.read(path, SPEC, task_bytes=size, block_bytes=block_bytes)
        assert list(zip(*found.texts, found.ids, found.lines, found.places, strict=True)) == wanted
        assert [(record.place, record.message) for record in found.bad] == [
            (at, "column 'text' is null" if text is None else "column 'id' is null")
            for at, (text, _, number) in enumerate(model)
            if text is None or number is None
        ]
        assert found.input_bytes == (path.stat().st_size if rows else 0)
        assert found.xxh3_128 == ""


def write(path: Path, texts: list[str], **options: Any) -> Path:
    pq.write_table(pa.table({"text": texts}), path, **options)
    return path


def test_whole_records(tmp_path: Path) -> None:
    table = pa.table({"text": ["a", None, "b"], "meta": [{"n": 1}, None, {"n": 2}], "tags": [["x"], [], None]})
    pq.write_table(table, tmp_path / "a.parquet")
    found = spans.read(tmp_path / "a.parquet", RecordSpec(whole=True))
    assert found.records == [row for row in table.to_pylist() if row["text"]]
    assert found.texts == [["a", "b"]]


def test_string_ids_and_unsigned_ones(tmp_path: Path) -> None:
    ids = pa.array([1, 2**64 - 1], pa.uint64())
    pq.write_table(pa.table({"text": ["a", "b"], "id": ids, "name": ["x", "ü"]}), tmp_path / "a.parquet")
    assert spans.read(tmp_path / "a.parquet", RecordSpec(id_field="id")).ids == ["1", "18446744073709551615"]
    assert spans.read(tmp_path / "a.parquet", RecordSpec(id_field="name")).ids == ["x", "ü"]


def test_extension_types_are_what_they_store(tmp_path: Path) -> None:
    table = pa.table({"text": pa.ExtensionArray.from_storage(pa.json_(pa.string()), pa.array(['{"a": 1}', "2"]))})
    pq.write_table(table, tmp_path / "a.parquet")
    assert spans.read(tmp_path / "a.parquet").texts == [['{"a": 1}', "2"]]


def test_an_empty_string_is_a_record(tmp_path: Path) -> None:
    found = spans.read(write(tmp_path / "a.parquet", ["", " ", "a"]))
    assert (found.texts, found.blank) == ([["", " ", "a"]], [])


def test_no_rows_and_no_row_groups(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "a.parquet")
    pq.ParquetWriter(tmp_path / "b.parquet", pa.schema({"text": pa.string()})).close()
    for path in (tmp_path / "a.parquet", tmp_path / "b.parquet"):
        found = spans.read(path)
        assert (found.num_lines, found.texts) == (0, [[]])
        (file,) = spans.find(path)
        assert file.text_bytes < 100


def test_row_groups_are_planned_by_the_columns_that_are_needed(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    noise = random.Random(1)
    table = pa.table({"text": [noise.randbytes(50).hex() for _ in range(400)], "image": [noise.randbytes(9000)] * 400})
    pq.write_table(table, path, row_group_size=100, use_dictionary=False, compression="zstd")
    (file,) = spans.find(path)
    assert file.extent == 4
    assert not file.can_split
    assert all(10_000 < size < 11_000 for size in file.unit_bytes)
    (file,) = spans.find(path, RecordSpec(whole=True))
    assert all(900_000 < size < 920_000 for size in file.unit_bytes)


def test_blocks_are_bounded_whatever_the_rows(tmp_path: Path) -> None:
    # Sorted by length, as corpora often are: the mean says nothing of the last rows.
    texts = ["x" * length for length in sorted([1] * 3000 + [5000] * 20)]
    path = write(tmp_path / "a.parquet", texts)
    found = spans.read(path, block_bytes=20_000)
    assert found.texts == [texts]
    assert max(found.block_sizes) <= 40_000
    assert len(found.block_sizes) < 12


def test_empty_rows_fill_blocks_too(tmp_path: Path) -> None:
    found = spans.read(write(tmp_path / "a.parquet", [""] * 5000), block_bytes=16_000)
    assert found.texts == [[""] * 5000]
    assert len(found.block_sizes) == 5


def test_wide_columns_that_are_not_needed_do_not_make_small_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noise = random.Random(1)
    table = pa.table({"text": ["x" * 50] * 500, "text_image": [noise.randbytes(9000) for _ in range(500)]})
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False, compression="none")
    sizes = []
    iterate = pq.ParquetFile.iter_batches

    def watch(self: Any, **options: Any) -> Any:
        sizes.append((options["batch_size"], options["use_threads"]))
        return iterate(self, **options)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", watch)
    spans.read(tmp_path / "a.parquet", block_bytes=40_000)
    ((batch_rows, use_threads),) = sizes
    assert 150 < batch_rows < 200
    assert use_threads is False


@pytest.mark.parametrize(
    ("table", "spec", "message"),
    [
        (
            pa.table({"body": ["a"], "n": [1]}),
            RecordSpec(),
            "a.parquet: no column 'text'; its columns are: 'body' (string), 'n' (int64) (choose with --text-field)",
        ),
        (pa.table({"text": ["a"]}), SPEC, "no column 'title'; its columns are: 'text' (string) (choose with --field)"),
        (
            pa.table({"text": ["a"]}),
            RecordSpec(id_field="id"),
            "no column 'id'; its columns are: 'text' (string) (choose with --id-field)",
        ),
        (pa.table({"text": [1]}), RecordSpec(), "column 'text' is int64, not text; its columns are: 'text' (int64)"),
        (pa.table({"text": [["a"]]}), RecordSpec(), "column 'text' is list<"),
        (pa.table({"text": [None]}), RecordSpec(), "column 'text' is null, not text"),
        (
            pa.table({"text": ["a"], "id": [1.5]}),
            RecordSpec(id_field="id"),
            "id column 'id' is double, neither text nor an integer",
        ),
        (
            pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], ["text", "text"]),
            RecordSpec(),
            "2 columns are called 'text': rename all but one",
        ),
        (pa.table({f"c{at}": [1] for at in range(20)}), RecordSpec(), "'c11' (int64) and 8 more (choose"),
    ],
)
def test_columns_are_checked_before_the_run(tmp_path: Path, table: pa.Table, spec: RecordSpec, message: str) -> None:
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(ConfigError) as caught:
        spans.find(tmp_path / "a.parquet", spec)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path}/a.parquet: ")


@pytest.mark.parametrize("cut", [6, 100, -1, -8])
def test_truncated_files(tmp_path: Path, cut: int) -> None:
    path = write(tmp_path / "a.parquet", ["a" * 100] * 100)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(InputError, match=r"a\.parquet: not a whole Parquet file: .* Was it copied or written whole\?"):
        spans.find(path)


def test_a_row_that_is_not_utf8(tmp_path: Path) -> None:
    binary = pa.array([b"good", b"caf\xe9", None, b"\xed\xa0\x80", "é".encode()], pa.binary())
    for number, values in enumerate([binary, binary.view(pa.string()), binary.cast(pa.large_binary())]):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({"text": values}), path)
        found = spans.read(path)
        assert found.texts == [["good", "é"]]
        assert [(record.line, record.message) for record in found.bad] == [
            (1, "not UTF-8: byte 0xe9 at byte 3 of the column 'text'; found near it 'caf�'"),
            (2, "column 'text' is null"),
            (3, "not UTF-8: byte 0xed at byte 0 of the column 'text'; found near it '���'"),
        ]


def test_whole_records_of_which_one_is_not_utf8(tmp_path: Path) -> None:
    other = pa.array([b"x", b"\xff", b"y"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": ["a", "b", "c"], "other": other}), tmp_path / "a.parquet")
    found = spans.read(tmp_path / "a.parquet", RecordSpec(whole=True))
    assert found.texts == [["a", "c"]]
    assert found.records == [{"text": "a", "other": "x"}, {"text": "c", "other": "y"}]
    assert found.messages[0].startswith("the row cannot be turned into Python objects: 'utf-8' codec can't decode")


@pytest.mark.parametrize("block_bytes", [500, 1 << 20])
def test_a_damaged_page_costs_the_rest_of_its_row_group(tmp_path: Path, block_bytes: int) -> None:
    noise = random.Random(2)
    texts = [noise.randbytes(100).hex() for _ in range(900)]
    path = write(
        tmp_path / "a.parquet",
        texts,
        row_group_size=300,
        data_page_size=4000,
        write_batch_size=10,
        use_dictionary=False,
        compression="none",
        write_page_checksum=True,
    )
    content = bytearray(path.read_bytes())
    at = content.index(texts[450].encode())
    content[at] ^= 1
    path.write_bytes(content)
    for task_bytes in (1, 1 << 40):
        found = spans.read(path, task_bytes=task_bytes, block_bytes=block_bytes)
        # Pages before the damaged one are delivered, as far as batches reach.
        lost = [record.place for record in found.bad]
        assert lost == list(range(lost[0], 600))
        assert 300 <= lost[0] <= 450
        assert block_bytes > 500 or lost[0] > 400
        assert found.texts == [[text for row, text in enumerate(texts) if row not in lost]]
        assert [record.line for record in found.bad] == lost
        assert not any(record.fatal for record in found.bad)
        assert found.messages[0].startswith(f"row group 1 is damaged from row {lost[0]:,} of the file on: ")
        assert "CRC" in found.messages[0]


def test_files_that_vanish_or_change(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", ["a"])
    (file,) = spans.find(path)
    write(path, ["a", "b"])
    with pytest.raises(InputError, match=r"a\.parquet: the file changed during the run: its size went from"):
        list(open_span(file, Span(0, 0, 1), spans.SPEC).blocks())
    path.unlink()
    with pytest.raises(InputError, match=r"a\.parquet: the file cannot be read: No such file"):
        list(open_span(file, Span(0, 0, 1), spans.SPEC).blocks())


def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", ["a" * 100] * 100)
    (file,) = spans.find(path)
    blocks = open_span(file, Span(0, 0, 1), spans.SPEC, block_bytes=1000).blocks()
    next(blocks)
    with path.open("ab") as stream:
        stream.write(b"x")
    with pytest.raises(InputError, match="the file changed during the run"):
        list(itertools.islice(blocks, 1000))
