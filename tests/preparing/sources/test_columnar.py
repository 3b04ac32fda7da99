"""Parquet files by row groups, Arrow files by record batches: what pyarrow itself gives, and every row that is none."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, strategies as st

import spans
from counts import cases
from headrace.errors import ConfigError, InputError
from headrace.preparing.sources import RecordSpec

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
@example(rows=[("", "", 1), (" ", "", 2)], group_rows=1, task_bytes=1, block_bytes=1, kind=pa.string())
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
        assert found.blank == []


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
        (pa.table({"body": ["a"], "n": [1]}), RecordSpec(), "no column 'text'; its columns are: 'body' (string), 'n'"),
        (pa.table({"text": ["a"]}), SPEC, "'title'; its columns are: 'text' (string) (choose with --field)"),
        (pa.table({"text": ["a"]}), RecordSpec(id_field="id"), "'id'; its columns are: 'text' (string)"),
        (pa.table({"text": [1]}), RecordSpec(), "column 'text' is int64"),
        (pa.table({"text": [["a"]]}), RecordSpec(), "column 'text' is list<"),
        (pa.table({"text": [None]}), RecordSpec(), "column 'text' is null"),
        (pa.table({"text": ["a"], "id": [1.5]}), RecordSpec(id_field="id"), "id column 'id' is double"),
        (pa.Table.from_arrays([pa.array(["a"])] * 2, ["text", "text"]), RecordSpec(), "2 columns are called 'text'"),
        (pa.table({f"c{at}": [1] for at in range(20)}), RecordSpec(), "'c11' (int64) and 8 more"),
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
    with pytest.raises(InputError, match=r"a\.parquet"):
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


# Arrow files by record batches, streams as a whole: what pyarrow's own reader gives.


ARROW_SPEC = RecordSpec(fields=("text",), id_field="id")
TYPES = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
COMPRESSIONS = [None, "lz4", "zstd"]


def write_batches(
    path: Path,
    batches: list[list[str | None]],
    *,
    kind: Any = None,
    new: Callable[..., Any] = pa.ipc.new_file,
    compression: str | None = None,
) -> Path:
    kind = kind or pa.string()
    schema = pa.schema({"other": pa.int8(), "text": kind, "id": pa.int64()})
    options = pa.ipc.IpcWriteOptions(compression=compression, emit_dictionary_deltas=False)
    if pa.types.is_dictionary(kind):
        words = pa.array(sorted({text for texts in batches for text in texts if text is not None}), pa.string())
        index = {text: at for at, text in enumerate(words.to_pylist())}
        columns = [
            pa.DictionaryArray.from_arrays(
                pa.array([None if text is None else index[text] for text in texts], pa.int8()), words
            )
            for texts in batches
        ]
    else:
        columns = [pa.array(texts, kind) for texts in batches]
    with new(str(path), schema, options=options) as writer:
        at = 0
        for texts, text_column in zip(batches, columns, strict=True):
            ids = pa.array(range(at, at + len(texts)), pa.int64())
            others = pa.array([1] * len(texts), pa.int8())
            writer.write_batch(pa.record_batch([others, text_column, ids], schema=schema))
            at += len(texts)
    return path


def place_of_batch(content: bytes, number: int) -> tuple[int, int]:
    """Where a record batch of a file begins and ends."""
    source = pa.BufferReader(content)
    source.seek(8)
    messages = pa.ipc.MessageReader.open_stream(source)
    for _ in range(1 + number):  # the schema comes first
        messages.read_next_message()
    begin = source.tell()
    messages.read_next_message()
    return begin, source.tell()


@given(
    batches=st.lists(st.lists(st.none() | st.text(max_size=20), max_size=8), max_size=6),
    kind=st.sampled_from(TYPES),
    compression=st.sampled_from(COMPRESSIONS),
    is_stream=st.booleans(),
    task_bytes=st.integers(1, 2000),
    block_bytes=st.integers(1, 60),
)
def test_any_cut_of_batches_gives_the_rows_of_pyarrow(
    tmp_path_factory: pytest.TempPathFactory,
    batches: list[list[str | None]],
    kind: pa.DataType,
    compression: str | None,
    is_stream: bool,
    task_bytes: int,
    block_bytes: int,
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.arrow"
    new = pa.ipc.new_stream if is_stream else pa.ipc.new_file
    write_batches(path, batches, kind=kind, new=new, compression=compression)
    model = [text for texts in batches for text in texts]
    kept = [(text, str(row), row, row) for row, text in enumerate(model) if text is not None]
    (file,) = spans.find(path, ARROW_SPEC)
    assert file.extent == (path.stat().st_size if is_stream else len(batches))
    assert len(file.unit_bytes) == (0 if is_stream else len(batches))
    for size in (task_bytes, 1 << 40):
        found = spans.read(path, ARROW_SPEC, task_bytes=size, block_bytes=block_bytes)
        assert list(zip(found.texts[0], found.ids, found.lines, found.places, strict=True)) == kept
        assert [record.place for record in found.bad] == [row for row, text in enumerate(model) if text is None]
        if model and not is_stream:
            assert found.input_bytes == path.stat().st_size
        assert found.input_bytes <= path.stat().st_size


@pytest.mark.parametrize("damage", [b"", b"ARROW1", b"\xff\xff\xff\x7fARROW1", b"\x00\x00\x00\x80ARROW1"])
def test_footers_that_make_no_sense(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "a.arrow"
    path.write_bytes(b"ARROW1\0\0" + bytes(50) + damage)
    with pytest.raises(InputError, match=r"a\.arrow: not a whole Arrow file: .+ Was it copied or written whole"):
        spans.find(path)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_files_with_any_byte_changed_never_fail_otherwise(tmp_path: Path, compression: str | None) -> None:
    path = write_batches(tmp_path / "a.arrow", [["a"], ["b", "c"]], compression=compression)
    content = path.read_bytes()
    noise = random.Random(4)
    for at in range(8, len(content), cases(3, 1)):
        damaged = bytearray(content)
        damaged[at] = noise.randrange(256)
        path.write_bytes(damaged)
        with contextlib.suppress(InputError, ConfigError):
            spans.find(path)


def test_a_file_with_fewer_batches_than_its_footer_says(tmp_path: Path) -> None:
    path = write_batches(tmp_path / "a.arrow", [["a"], ["b", "c"]])
    content = bytearray(path.read_bytes())
    _, end = place_of_batch(bytes(content), 0)
    content[end : end + 8] = b"\xff\xff\xff\xff\0\0\0\0"  # the end of a stream
    path.write_bytes(content)
    with pytest.raises(InputError, match="fewer record batches than its footer"):
        spans.find(path)


def test_feather_and_the_ending_of_streams(tmp_path: Path) -> None:
    feather.write_feather(pa.table({"text": ["a", "b"]}), str(tmp_path / "a.feather"))
    assert spans.read(tmp_path / "a.feather").texts == [["a", "b"]]
    write_batches(tmp_path / "a.arrows", [["c"]], new=pa.ipc.new_stream)
    assert spans.read(tmp_path / "a.arrows").texts == [["c"]]


def test_files_of_before_arrow_0_15(tmp_path: Path) -> None:
    table = pa.table({"text": ["a", "b", "c"]})
    options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4, use_legacy_format=True)
    for name, new in (("a.arrow", pa.ipc.new_file), ("b.arrow", pa.ipc.new_stream)):
        with new(str(tmp_path / name), table.schema, options=options) as writer:
            writer.write_table(table, max_chunksize=2)
        assert spans.read(tmp_path / name, task_bytes=1).texts == [["a", "b", "c"]]


def test_dictionaries_that_are_replaced_in_a_stream(tmp_path: Path) -> None:
    kind = pa.dictionary(pa.int8(), pa.string())
    schema = pa.schema({"text": kind})
    with pa.ipc.new_stream(str(tmp_path / "a.arrow"), schema) as writer:
        for words in (["x", "y"], ["z"]):
            writer.write_batch(pa.record_batch([pa.array(words).dictionary_encode().cast(kind)], schema=schema))
    assert spans.read(tmp_path / "a.arrow").texts == [["x", "y", "z"]]


def test_a_large_batch_comes_in_blocks(tmp_path: Path) -> None:
    texts: list[str | None] = ["x" * (number % 7) * 10 for number in range(5000)]
    found = spans.read(write_batches(tmp_path / "a.arrow", [texts]), block_bytes=5000)
    assert found.texts == [texts]
    assert max(found.block_sizes) < 10_000
    assert len(found.block_sizes) > 15


@pytest.mark.parametrize("new", [pa.ipc.new_file, pa.ipc.new_stream])
def test_columns_of_batches_are_checked_before_the_run(tmp_path: Path, new: Callable[..., Any]) -> None:
    path = write_batches(tmp_path / "a.arrow", [["a"]], new=new)
    with pytest.raises(ConfigError, match=r"'body'.*'other'.*int8"):
        spans.find(path, RecordSpec(fields=("body",)))
    with pytest.raises(ConfigError, match=r"'other'.*int8"):
        spans.find(path, RecordSpec(fields=("other",)))


@pytest.mark.parametrize("keep", [0.3, 0.7, 0.98])
def test_a_truncated_file(tmp_path: Path, keep: float) -> None:
    path = write_batches(tmp_path / "a.arrow", [["a" * 1000] * 10] * 4)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(InputError, match="written"):
        spans.find(path)


def test_a_torn_stream_is_a_fatal_record(tmp_path: Path) -> None:
    path = write_batches(tmp_path / "a.arrow", [["a" * 1000] * 10] * 4, new=pa.ipc.new_stream)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * 0.6)])
    found = spans.read(path)
    assert found.texts == [["a" * 1000] * 20]
    (record,) = found.bad
    assert (record.line, record.place, record.fatal) == (20, 20, True)
    assert record.message.startswith("the Arrow stream is incomplete or damaged at about byte ")
    assert found.input_bytes == path.stat().st_size


@pytest.mark.parametrize("new", [pa.ipc.new_file, pa.ipc.new_stream])
def test_offsets_that_point_outside(tmp_path: Path, new: Callable[..., Any]) -> None:
    path = write_batches(tmp_path / "a.arrow", [["abcdefgh"] * 8, ["ABCDEFGH"] * 8, ["12345678"] * 8], new=new)
    content = bytearray(path.read_bytes())
    # The offsets 0, 8, 16, ... stand before the text of the second batch.
    at = content.index((8).to_bytes(4, "little") + (16).to_bytes(4, "little"), content.index(b"abcdefgh"))
    content[at : at + 4] = (1 << 30).to_bytes(4, "little")
    path.write_bytes(content)
    found = spans.read(path)
    if new is pa.ipc.new_stream:
        assert found.texts == [["abcdefgh"] * 8]
        assert [(record.line, record.fatal) for record in found.bad] == [(8, True)]
        return
    assert found.texts == [["abcdefgh"] * 8 + ["12345678"] * 8]
    assert [(record.line, record.place, record.fatal) for record in found.bad] == [
        (row, row, False) for row in range(8, 16)
    ]
    assert found.messages[0].startswith("record batch 1 is damaged from row 8 of the file on: ")


def test_compressed_batches_that_are_damaged(tmp_path: Path) -> None:
    texts = [random.Random(number).randbytes(200).hex() for number in range(30)]
    batches: list[list[str | None]] = [list(texts[:10]), list(texts[10:20]), list(texts[20:])]
    path = write_batches(tmp_path / "a.arrow", batches, compression="zstd")
    content = path.read_bytes()
    batch = slice(*place_of_batch(content, 1))
    content = content[: batch.start] + content[batch].replace(b"\x28\xb5\x2f\xfd", b"zero") + content[batch.stop :]
    path.write_bytes(content)
    found = spans.read(path, task_bytes=1)
    assert found.texts == [texts[:10] + texts[20:]]
    assert [record.place for record in found.bad] == list(range(10, 20))
    assert len(set(found.messages)) == 1


def test_a_row_that_is_not_utf8_is_one_bad_record(tmp_path: Path) -> None:
    for new, kind in itertools.product((pa.ipc.new_file, pa.ipc.new_stream), TYPES):
        path = write_batches(tmp_path / "a.arrow", [["good", "cafe", "fine"]], new=new, kind=kind)
        path.write_bytes(path.read_bytes().replace(b"cafe", b"caf\xe9"))
        for spec in (spans.SPEC, RecordSpec(whole=True)):
            found = spans.read(path, spec)
            assert found.texts == [["good", "fine"]]
            whole = [{"other": 1, "text": "good", "id": 0}, {"other": 1, "text": "fine", "id": 2}]
            assert found.records == (whole if spec.whole else [])
            assert found.messages == ["not UTF-8: byte 0xe9 at byte 3 of the column 'text'; found near it 'caf�'"]


def test_a_batch_that_claims_too_many_rows(tmp_path: Path) -> None:
    path = write_batches(tmp_path / "a.arrow", [["abcdefgh"] * 77])
    content = path.read_bytes()
    at = content.index((77).to_bytes(8, "little"))
    for claimed in (1 << 40, -1):
        path.write_bytes(content[:at] + claimed.to_bytes(8, "little", signed=True) + content[at + 8 :])
        with pytest.raises(InputError, match=rf"0.*{claimed:,}"):
            spans.find(path)


def test_a_column_name_that_is_not_utf8(tmp_path: Path) -> None:
    path = write_batches(tmp_path / "a.arrow", [["a"]])
    path.write_bytes(path.read_bytes().replace(b"other", b"oth\xe9r"))
    with pytest.raises(InputError, match=r"a\.arrow.*UTF-8"):
        spans.find(path)
