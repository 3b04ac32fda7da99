"""Arrow files by record batches, streams as a whole: what pyarrow's own reader gives."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spans
from headrace.errors import ConfigError, InputError
from headrace.preparing.sources import RecordSpec, Span, open_span
from headrace.preparing.sources.arrow import read_batch_places

SPEC = RecordSpec(fields=("text",), id_field="id")
TYPES = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
COMPRESSIONS = [None, "lz4", "zstd"]


def write(
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


@given(
    batches=st.lists(st.lists(st.none() | st.text(max_size=20), max_size=8), max_size=6),
    kind=st.sampled_from(TYPES),
    compression=st.sampled_from(COMPRESSIONS),
    is_stream=st.booleans(),
    task_bytes=st.integers(1, 2000),
    block_bytes=st.integers(1, 60),
)
def test_any_cut_gives_the_rows_of_pyarrow(
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
    write(path, batches, kind=kind, new=new, compression=compression)
    model = [text for texts in batches for text in texts]
    kept = [(text, str(row), row, row) for row, text in enumerate(model) if text is not None]
    (file,) = spans.find(path, SPEC)
    assert file.extent == (path.stat().st_size if is_stream else len(batches))
    assert len(file.unit_bytes) == (0 if is_stream else len(batches))
    for size in (task_bytes, 1 << 40):
        found = spans.read(path, SPEC, task_bytes=size, block_bytes=block_bytes)
        assert list(zip(found.texts[0], found.ids, found.lines, found.places, strict=True)) == kept
        assert [record.place for record in found.bad] == [row for row, text in enumerate(model) if text is None]
        if model and not is_stream:
            assert found.input_bytes == path.stat().st_size
        assert found.input_bytes <= path.stat().st_size


@given(rows=st.lists(st.integers(0, 9), max_size=12), compression=st.sampled_from(COMPRESSIONS))
def test_the_footer_tells_the_rows_without_reading_them(
    tmp_path_factory: pytest.TempPathFactory, rows: list[int], compression: str | None
) -> None:
    path = tmp_path_factory.getbasetemp() / "footer.arrow"
    write(path, [["text"] * count for count in rows], compression=compression)
    places = read_batch_places(path.read_bytes())
    assert [place.num_rows for place in places] == rows
    assert all(after.offset == before.offset + before.num_bytes for before, after in zip(places, places[1:]))  # noqa: B905, RUF007


@pytest.mark.parametrize("damage", [b"", b"ARROW1", b"\xff\xff\xff\x7fARROW1", b"\x00\x00\x00\x80ARROW1"])
def test_footers_that_make_no_sense(damage: bytes) -> None:
    for before in (b"", b"ARROW1\0\0" + bytes(50)):
        with pytest.raises(ValueError, match="its footer is not valid: "):
            read_batch_places(before + damage)


def test_footers_with_any_byte_changed_never_fail_otherwise(tmp_path: Path) -> None:
    content = write(tmp_path / "a.arrow", [["a"], ["b", "c"]]).read_bytes()
    size = int.from_bytes(content[-10:-6], "little")
    noise = random.Random(4)
    for at in range(len(content) - size - 10, len(content)):
        damaged = bytearray(content)
        damaged[at] = noise.randrange(256)
        with contextlib.suppress(ValueError):
            assert read_batch_places(bytes(damaged)) is not None


def test_feather_and_the_ending_of_streams(tmp_path: Path) -> None:
    feather.write_feather(pa.table({"text": ["a", "b"]}), str(tmp_path / "a.feather"))
    assert spans.read(tmp_path / "a.feather").texts == [["a", "b"]]
    write(tmp_path / "a.arrows", [["c"]], new=pa.ipc.new_stream)
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


def test_whole_records(tmp_path: Path) -> None:
    found = spans.read(write(tmp_path / "a.arrow", [["a", None], ["b"]]), RecordSpec(whole=True))
    assert found.records == [{"other": 1, "text": "a", "id": 0}, {"other": 1, "text": "b", "id": 2}]


def test_a_large_batch_comes_in_blocks(tmp_path: Path) -> None:
    texts: list[str | None] = ["x" * (number % 7) * 10 for number in range(5000)]
    found = spans.read(write(tmp_path / "a.arrow", [texts]), block_bytes=5000)
    assert found.texts == [texts]
    assert max(found.block_sizes) < 10_000
    assert len(found.block_sizes) > 15


def test_rows_longer_than_a_block_come_one_by_one(tmp_path: Path) -> None:
    found = spans.read(write(tmp_path / "a.arrow", [["x" * 1000] * 5]), block_bytes=500)
    assert found.block_sizes == [1000] * 5


@pytest.mark.parametrize("new", [pa.ipc.new_file, pa.ipc.new_stream])
def test_columns_are_checked_before_the_run(tmp_path: Path, new: Callable[..., Any]) -> None:
    path = write(tmp_path / "a.arrow", [["a"]], new=new)
    with pytest.raises(ConfigError, match=r"no column 'body'; its columns are: 'other' \(int8\), 'text' \(string\)"):
        spans.find(path, RecordSpec(fields=("body",)))
    with pytest.raises(ConfigError, match="column 'other' is int8, not text"):
        spans.find(path, RecordSpec(fields=("other",)))


@pytest.mark.parametrize("keep", [0.3, 0.7, 0.98])
def test_a_truncated_file(tmp_path: Path, keep: float) -> None:
    path = write(tmp_path / "a.arrow", [["a" * 1000] * 10] * 4)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep)])
    with pytest.raises(InputError, match=r"not a whole Arrow file: .* Was it copied or written whole\?"):
        spans.find(path)


def test_what_is_no_arrow_at_all(tmp_path: Path) -> None:
    (tmp_path / "a.arrow").write_bytes(b'{"text": "a"}')
    with pytest.raises(InputError, match=r"not a whole Arrow stream: .* Was it copied or written whole"):
        spans.find(tmp_path / "a.arrow")


def test_a_torn_stream_is_a_fatal_record(tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", [["a" * 1000] * 10] * 4, new=pa.ipc.new_stream)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * 0.6)])
    found = spans.read(path)
    assert found.texts == [["a" * 1000] * 20]
    (record,) = found.bad
    assert (record.line, record.place, record.fatal) == (20, 20, True)
    assert record.message.startswith("the Arrow stream is incomplete or damaged at about byte ")
    assert record.message.endswith("All rows from here on are lost: fetch or write the file again.")
    assert found.input_bytes == path.stat().st_size


@pytest.mark.parametrize("new", [pa.ipc.new_file, pa.ipc.new_stream])
def test_offsets_that_point_outside(tmp_path: Path, new: Callable[..., Any]) -> None:
    path = write(tmp_path / "a.arrow", [["abcdefgh"] * 8, ["ABCDEFGH"] * 8, ["12345678"] * 8], new=new)
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
    assert found.messages[0].startswith("record batch 1 (from row 8 of the file on) is damaged: ")


def test_compressed_batches_that_are_damaged(tmp_path: Path) -> None:
    texts = [random.Random(number).randbytes(200).hex() for number in range(30)]
    batches: list[list[str | None]] = [list(texts[:10]), list(texts[10:20]), list(texts[20:])]
    path = write(tmp_path / "a.arrow", batches, compression="zstd")
    place = read_batch_places(path.read_bytes())[1]
    content = path.read_bytes()
    batch = slice(place.offset, place.offset + place.num_bytes)
    content = content[: batch.start] + content[batch].replace(b"\x28\xb5\x2f\xfd", b"zero") + content[batch.stop :]
    path.write_bytes(content)
    found = spans.read(path, task_bytes=1)
    assert found.texts == [texts[:10] + texts[20:]]
    assert [record.place for record in found.bad] == list(range(10, 20))
    assert len(set(found.messages)) == 1


def test_a_row_that_is_not_utf8_is_one_bad_record(tmp_path: Path) -> None:
    for new, kind in itertools.product((pa.ipc.new_file, pa.ipc.new_stream), TYPES):
        path = write(tmp_path / "a.arrow", [["good", "cafe", "fine"]], new=new, kind=kind)
        path.write_bytes(path.read_bytes().replace(b"cafe", b"caf\xe9"))
        for spec in (spans.SPEC, RecordSpec(whole=True)):
            found = spans.read(path, spec)
            assert found.texts == [["good", "fine"]]
            assert found.messages == ["not UTF-8: byte 0xe9 at byte 3 of the column 'text'; found near it 'caf�'"]


def test_files_that_vanish_or_change(tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", [["a"]])
    (file,) = spans.find(path)
    spans.touch_like(path, path.read_bytes())
    write(path, [["a"] * 100])
    with pytest.raises(InputError, match=r"a\.arrow: the file changed during the run"):
        list(open_span(file, Span(0, 0, 1), spans.SPEC).blocks())
    path.unlink()
    with pytest.raises(InputError, match=r"a\.arrow: the file cannot be read: No such file"):
        list(open_span(file, Span(0, 0, 1), spans.SPEC).blocks())


def test_a_batch_that_claims_too_many_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", [["abcdefgh"] * 77])
    content = path.read_bytes()
    at = content.index((77).to_bytes(8, "little"))
    for claimed in (1 << 40, -1):
        path.write_bytes(content[:at] + claimed.to_bytes(8, "little", signed=True) + content[at + 8 :])
        with pytest.raises(InputError, match=f"record batch 0 claims to have {claimed:,} rows: the file is damaged"):
            spans.find(path)


def test_a_column_name_that_is_not_utf8(tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", [["a"]])
    path.write_bytes(path.read_bytes().replace(b"other", b"oth\xe9r"))
    with pytest.raises(InputError, match=r"a\.arrow: the name of a column is not UTF-8"):
        spans.find(path)
