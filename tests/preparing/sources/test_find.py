"""Arguments -> files in a defined order -> tasks; and what all readers of them share."""

from __future__ import annotations

import gzip
import io
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

import spans
from headrace.errors import ConfigError, InputError, MissingExtraError
from headrace.preparing.sources import (
    RecordSpec,
    SampleBy,
    SourceFile,
    Span,
    choose_task_bytes,
    find_inputs,
    is_hashed_while_read,
    open_span,
    plan_tasks,
    record_noun,
    spool_stdin,
)
from headrace.preparing.sources.source_file import MAX_TASK_BYTES, MIN_TASK_BYTES, Format, format_of


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    make(tmp_path, "data/part-10.jsonl", "data/part-9.jsonl", "data/sub/a.jsonl", "data/README.md", "data/.x.jsonl")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def names(*inputs: str) -> list[str]:
    return [file.name for file in find_inputs(inputs, spec=spans.SPEC)]


def make(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(HEADS.get(path.suffix, b"{}\n"))


GZIPPED = gzip.compress(b"{}", mtime=0)
HEADS = {".gz": gzip.compress(b"{}\n", mtime=0), ".zst": bytes.fromhex("28b52ffd2000010000")}


def test_links_are_followed_and_loops_end(tree: Path) -> None:
    (tree / "more").mkdir()
    (tree / "more/link").symlink_to(tree / "data/sub")
    (tree / "more/link/up").symlink_to(tree / "more")
    assert names("more") == ["more/link/a.jsonl"]


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "no input"),
        (["nowhere.jsonl"], "input 'nowhere.jsonl' does not exist"),
        (["data/*.parquet"], "input 'data/*.parquet' matches no file"),
        (["data/README.md"], "input 'data/README.md': its name has no ending that can be read: .jsonl or .ndjson"),
        (["data/*"], "input 'data/README.md': its name has no ending that can be read"),
        (["{data/sub,more}/a.jsonl"], "input 'more/a.jsonl' (one of '{data/sub,more}/a.jsonl') does not exist"),
        (["data/{x,y}*.jsonl"], "input 'data/x*.jsonl' (one of 'data/{x,y}*.jsonl') matches no file"),
        (["data/{part,part}-9.jsonl"], "reaches the same file twice"),
        (["-"], "input '-': standard input cannot be read here"),
        (["data", "data/part-9.jsonl"], "data/part-9.jsonl: the same file comes from two inputs, 'data' and 'data/pa"),
        (["data/../data/sub", "data/sub/a.jsonl"], "from two inputs, 'data/../data/sub' and 'data/sub/a.jsonl'"),
        (["linked"], "input 'linked' reaches the same file twice (through a link)"),
        (["empty"], "input 'empty': this folder holds nothing to read: .jsonl"),
        (["tars"], "input 'tars' is a folder of tar shards"),
        (["mixed"], "input 'mixed' holds files that may be data but cannot be read: 'b.jsonl.bz2' (2 such files)"),
        (["notes"], "input 'notes' holds text files ('README.txt', 1 of them) beside other data ('sub/a.b.jsonl', 1"),
        (["notes"], "Name the files to read, 'notes/**/*.txt' and 'notes/**/*.b.jsonl' for both."),
        (["fifo.jsonl"], "neither a regular file nor a folder"),
    ],
)
def test_refused(tree: Path, inputs: list[str], message: str) -> None:
    for folder in ("empty", "tars", "mixed", "linked"):
        (tree / folder).mkdir()
    (tree / "tars/000.tar").touch()
    make(tree, "mixed/a.jsonl", "mixed/b.jsonl.bz2", "mixed/c.orc", "notes/README.txt", "notes/sub/a.b.jsonl")
    (tree / "linked/a.jsonl").touch()
    (tree / "linked/b.jsonl").symlink_to("a.jsonl")
    os.mkfifo(tree / "fifo.jsonl")
    with pytest.raises(ConfigError) as caught:
        find_inputs(inputs, spec=spans.SPEC)
    assert message in str(caught.value)


def test_a_dangling_link_is_an_error_not_a_gap(tree: Path) -> None:
    (tree / "data/gone.jsonl").symlink_to("nowhere")
    with pytest.raises(InputError, match=r"data/gone\.jsonl"):
        find_inputs(["data"], spec=spans.SPEC)


def test_a_name_that_is_not_utf8(tree: Path) -> None:
    Path(os.fsdecode(b"data/\xff.jsonl")).touch()
    with pytest.raises(ConfigError, match="UTF-8"):
        find_inputs(["data"], spec=spans.SPEC)


IN_DATA = ["data/part-9.jsonl", "data/part-10.jsonl", "data/sub/a.jsonl"]
"""In natural order."""


@pytest.mark.parametrize(
    ("inputs", "found"),
    [
        (["data"], IN_DATA),
        (["data/"], IN_DATA),
        (["data/sub", "data/part-10.jsonl"], ["data/sub/a.jsonl", "data/part-10.jsonl"]),
        (["data/part-*.jsonl"], IN_DATA[:2]),
        (["data/**/*.jsonl"], IN_DATA),
        (["data/s*"], IN_DATA[2:]),
        (["data/part-{9..10}.jsonl"], IN_DATA[:2]),
        (["data/{sub,part-*.jsonl}"], ["data/sub/a.jsonl", *IN_DATA[:2]]),
    ],
)
def test_folders_globs_and_braces(tree: Path, inputs: list[str], found: list[str]) -> None:
    assert names(*inputs) == found


@pytest.mark.parametrize("name", ["data/[a].jsonl", "data/{x,y}.jsonl"])
def test_a_name_with_magic_characters_is_taken_literally_if_it_exists(tree: Path, name: str) -> None:
    make(tree, name)
    assert names(name) == [name]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.jsonl", "jsonl"),
        ("a.NDJSON", "jsonl"),
        ("c4-train.00000-of-01024.json.gz", "jsonl.gz"),
        ("a.jsonl.gz", "jsonl.gz"),
        ("a.ndjson.zst", "jsonl.zst"),
        ("cc_en_head-0000.json.zst", "jsonl.zst"),
        ("train-00000-of-00001.snappy.parquet", "parquet"),
        ("data-00000-of-00001.arrow", "arrow"),
        ("a.feather", "arrow"),
        ("a.txt", "txt"),
        ("a.txt.gz", "txt.gz"),
        ("a.txt.zst", "txt.zst"),
        ("a.json", None),
        ("jsonl", None),
        ("a.jsonl.bak", None),
    ],
)
def test_formats_by_name(name: str, kind: str | None) -> None:
    assert format_of(name) == kind


def test_a_folder_of_several_formats_is_taken_in_the_order_of_names(tree: Path) -> None:
    make(tree, "mix/c.jsonl.zst", "mix/a.ndjson", "mix/b/x.json.gz")
    make(tree, "mix/dataset_info.json", "mix/state.json", "mix/LICENSE", "mix/x.idx", "mix/make.py")
    files = find_inputs(["mix"], spec=spans.SPEC)
    assert [(file.name, file.format, file.can_split) for file in files] == [
        ("mix/a.ndjson", "jsonl", True),
        ("mix/b/x.json.gz", "jsonl.gz", False),
        ("mix/c.jsonl.zst", "jsonl.zst", False),
    ]


def test_json_is_read_when_it_is_named_and_refused_in_a_folder(tree: Path) -> None:
    make(tree, "json/a.json")
    assert [file.format for file in find_inputs(["json/*.json"], spec=spans.SPEC)] == ["jsonl"]
    with pytest.raises(ConfigError, match=r"'a\.json'"):
        find_inputs(["json"], spec=spans.SPEC)


def test_a_folder_of_texts(tree: Path) -> None:
    make(tree, "books/b.txt", "books/a.txt", "books/more/c.txt.gz")
    files = find_inputs(["books"], spec=spans.SPEC)
    assert [(file.name, file.can_split) for file in files] == [
        ("books/a.txt", False),
        ("books/b.txt", False),
        ("books/more/c.txt.gz", False),
    ]
    files = find_inputs(["books"], spec=RecordSpec(sample_by="line"))
    assert [file.can_split for file in files] == [True, True, False]
    # Named apart, texts and other data go together.
    assert names("books", "data") == [file.name for file in files] + names("data")


@pytest.mark.parametrize(
    ("spec", "message"),
    [(RecordSpec(fields=("title", "body")), r"a\.txt.*2"), (RecordSpec(id_field="id"), r"a\.txt.*'id'")],
)
def test_a_text_file_has_no_fields(tree: Path, spec: RecordSpec, message: str) -> None:
    make(tree, "a.txt")
    with pytest.raises(ConfigError, match=message):
        find_inputs(["a.txt"], spec=spec)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl.gz", b"", "a.jsonl.gz: the file is empty (0 bytes), so it cannot be jsonl.gz"),
        ("a.jsonl.zst", b"", "so it cannot be jsonl.zst"),
        ("a.parquet", b"", "so it cannot be parquet. Was it written whole?"),
        ("a.arrow", b"", "so it cannot be arrow"),
        ("a.jsonl", GZIPPED, "a.jsonl: the file is compressed: give it a name that ends in .jsonl.gz"),
        ("a.txt", HEADS[".zst"], "a.txt: the file is compressed: give it a name that ends in .txt.zst"),
        ("a.jsonl.gz", b"{}\n", "a.jsonl.gz: its name says jsonl.gz, but its first bytes do not: b'{}\\n'"),
        ("a.jsonl.zst", GZIPPED, "its name says jsonl.zst, but its first bytes do not"),
        ("a.parquet", b"ARROW1\0\0", "its name says parquet, but its first bytes do not: b'ARROW1"),
        ("a.arrow", b"FEA1....", "its name says arrow, but its first bytes do not: b'FEA1"),
    ],
)
def test_files_that_are_not_what_their_name_says(tree: Path, name: str, content: bytes, message: str) -> None:
    (tree / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        find_inputs([name], spec=spans.SPEC)
    assert message in str(caught.value)


@pytest.mark.parametrize(("module", "name"), [("zstandard", "a.jsonl.zst"), ("pyarrow", "a.parquet")])
def test_a_missing_package(tree: Path, monkeypatch: pytest.MonkeyPatch, module: str, name: str) -> None:
    (tree / name).write_bytes(b"PAR1" if name.endswith("parquet") else HEADS[".zst"])
    monkeypatch.setitem(sys.modules, module, None)
    extra = {"zstandard": "zstd", "pyarrow": "parquet"}[module]
    with pytest.raises(MissingExtraError) as caught:
        find_inputs([name], spec=spans.SPEC)
    assert str(caught.value).startswith(f"{name}: reading ")
    assert str(caught.value).endswith(f"needs {module}: pip install 'headrace[{extra}]'")


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b'{"text": "a"}\n', "jsonl"),
        (gzip.compress(b'{"text": "a"}\n', mtime=0), "jsonl.gz"),
        (bytes.fromhex("28b52ffd2000010000"), "jsonl.zst"),
        (bytes.fromhex("502a4d1800000000") + bytes.fromhex("28b52ffd2000010000"), "jsonl.zst"),
    ],
)
def test_standard_input(tmp_path: Path, content: bytes, kind: str) -> None:
    path = tmp_path / "stdin"
    assert spool_stdin(io.BytesIO(content), path) == len(content)
    assert path.read_bytes() == content
    (file,) = find_inputs(["-"], spec=spans.SPEC, stdin=path)
    assert (file.name, file.path, file.format, file.size_bytes) == ("-", str(path), kind, len(content))
    with pytest.raises(ConfigError, match="'-'"):
        find_inputs(["-", "-"], spec=spans.SPEC, stdin=path)


class Terminal(io.BytesIO):
    def isatty(self) -> bool:
        return True


class Broken(io.BytesIO):
    def read(self, size: int | None = -1) -> bytes:
        if self.tell() == 0:
            return super().read(3)
        raise OSError(5, "Input/output error")


@pytest.mark.parametrize(
    ("stream", "error", "message"),
    [
        (Terminal(b"a"), ConfigError, "terminal"),
        (io.BytesIO(), InputError, "empty"),
        (Broken(b"abcdef"), InputError, "Input/output"),
    ],
)
def test_standard_input_that_cannot_be(
    tmp_path: Path, stream: io.BytesIO, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        spool_stdin(stream, tmp_path / "stdin")
    assert list(tmp_path.iterdir()) == []


def test_standard_input_is_copied_in_bounded_memory(tmp_path: Path) -> None:
    class Counting(io.BytesIO):
        largest = 0

        def read(self, size: int | None = -1) -> bytes:
            assert size is not None
            self.largest = max(self.largest, size)
            return super().read(size)

    stream = Counting(bytes(5 << 20))
    assert spool_stdin(stream, tmp_path / "stdin") == 5 << 20
    assert stream.largest == 1 << 20


def test_of_a_saved_dataset_only_its_own_files_are_read(tree: Path) -> None:
    for split in ("train", "test"):
        make(tree, f"saved/{split}/part.jsonl", f"saved/{split}/cache-0.jsonl", f"saved/{split}/dataset_info.json")
        (tree / "saved" / split / "state.json").write_text('{"_data_files": [{"filename": "part.jsonl"}]}')
    assert names("saved/train") == ["saved/train/part.jsonl"]
    assert names("saved") == ["saved/test/part.jsonl", "saved/train/part.jsonl"]
    (tree / "saved" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(ConfigError, match="DatasetDict"):
        names("saved")
    assert names("saved/test", "saved/train") == ["saved/test/part.jsonl", "saved/train/part.jsonl"]
    (tree / "saved" / "test" / "state.json").write_text('{"_data_files": 1}')
    with pytest.raises(InputError, match="files"):
        names("saved/test")


# What all readers share: files that cannot be opened or change, and what a person calls a record's place.


def write(path: Path) -> None:
    """A thousand records."""
    table = pa.table({"text": ["a"] * 1000})
    lines = b'{"text": "a"}\n' * 1000
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    elif path.suffix == ".arrow":
        feather.write_feather(table, str(path))
    else:
        path.write_bytes(gzip.compress(lines) if path.suffix == ".gz" else lines)


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.parquet", "a.arrow"])
@pytest.mark.parametrize(("change", "message"), [("grow", "size"), ("touch", "modification"), ("vanish", "such")])
@pytest.mark.parametrize("is_open", [False, True])
def test_files_that_change(tmp_path: Path, name: str, change: str, message: str, is_open: bool) -> None:
    path = tmp_path / name
    write(path)
    (file,) = spans.find(path)
    blocks = open_span(file, Span(0, 0, file.extent), spans.SPEC, block_bytes=1000).blocks()
    if is_open:
        next(blocks)
    if change == "grow":
        with path.open("ab") as stream:
            stream.write(b"x")
    elif change == "touch":
        os.utime(path, ns=(file.mtime_ns, file.mtime_ns + 1))
    else:
        path.unlink()
        if is_open:  # what is open stays
            assert len(list(blocks)) > 5
            return
    with pytest.raises(InputError, match=message) as caught:
        list(blocks)
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("kind", "sample_by", "noun"),
    [
        ("jsonl", "document", "line"),
        ("parquet", "document", "row"),
        ("txt", "document", "document"),
        ("txt.gz", "paragraph", "paragraph"),
        ("txt", "line", "line"),
    ],
)
def test_nouns(kind: Format, sample_by: SampleBy, noun: str) -> None:
    assert record_noun(kind, sample_by) == noun


def test_plain_lines_need_neither_pyarrow_nor_zstandard(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n')
    code = (
        "import sys; from headrace.preparing.sources import *; spec = RecordSpec(); "
        f"file, = find_inputs([{str(path)!r}], spec=spec); "
        "blocks = list(open_span(file, Span(0, 0, file.extent), spec).blocks()); "
        "print(blocks[0].texts, *({'pyarrow', 'zstandard'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[['a']]\n"


# Byte ranges: every byte of every file once, in order.


def plain(size: int, kind: Format = "jsonl", can_split: bool = True) -> SourceFile:
    return SourceFile(name="f", path="/f", format=kind, size_bytes=size, mtime_ns=0, extent=size, can_split=can_split)


def units(*unit_bytes: int) -> SourceFile:
    return SourceFile(
        name="f",
        path="/f",
        format="parquet",
        size_bytes=99,
        mtime_ns=0,
        extent=len(unit_bytes),
        unit_bytes=unit_bytes,
    )


@given(
    sizes=st.lists(st.integers(0, 1 << 42) | st.integers(0, 40), max_size=30),
    task_bytes=st.integers(1, 50) | st.just(1 << 40),
    max_spans=st.integers(1, 5),
)
def test_spans_cover_all_files_in_order(sizes: list[int], task_bytes: int, max_spans: int) -> None:
    sizes = [min(size, task_bytes * 50) for size in sizes]
    tasks = plan_tasks([plain(size) for size in sizes], task_bytes=task_bytes, max_spans=max_spans)
    assert [task.number for task in tasks] == list(range(len(tasks)))
    cut = [span for task in tasks for span in task.spans]
    assert [span.file for span in cut] == sorted(span.file for span in cut)
    for file, size in enumerate(sizes):
        cuts = [(span.begin, span.end) for span in cut if span.file == file]
        assert cuts[0][0] == 0
        assert cuts[-1][1] == size
        assert all(before[1] == after[0] for before, after in itertools.pairwise(cuts))
        assert all(begin < end for begin, end in cuts) or cuts == [(0, 0)]
    for task in tasks:
        assert 1 <= len(task.spans) <= max_spans
        assert sum(span.end - span.begin for span in task.spans) <= task_bytes


def test_a_large_file_is_cut_and_small_ones_share_a_task() -> None:
    tasks = plan_tasks([plain(size) for size in (3, 4, 25, 0, 10, 1)], task_bytes=10, max_spans=100)
    assert [task.spans for task in tasks] == [
        (Span(0, 0, 3), Span(1, 0, 4)),
        (Span(2, 0, 8),),
        (Span(2, 8, 16),),
        (Span(2, 16, 25),),
        (Span(3, 0, 0), Span(4, 0, 10)),
        (Span(5, 0, 1),),
    ]


@pytest.mark.parametrize(
    ("total", "wanted"),
    [
        (0, MIN_TASK_BYTES),
        (2048 * MIN_TASK_BYTES, MIN_TASK_BYTES),
        (2048 * MIN_TASK_BYTES + 2048, MIN_TASK_BYTES + 1),
        (1 << 34, 8 << 20),
        (1 << 45, MAX_TASK_BYTES),
    ],
)
def test_task_bytes(total: int, wanted: int) -> None:
    assert choose_task_bytes(total) == wanted


@given(
    files=st.lists(st.lists(st.integers(0, 40), max_size=12), max_size=8),
    task_bytes=st.integers(1, 60),
    max_spans=st.integers(1, 4),
)
def test_units_are_covered_and_never_cut(files: list[list[int]], task_bytes: int, max_spans: int) -> None:
    tasks = plan_tasks([units(*sizes) for sizes in files], task_bytes=task_bytes, max_spans=max_spans)
    cut = [span for task in tasks for span in task.spans]
    assert [span.file for span in cut] == sorted(span.file for span in cut)
    for number, sizes in enumerate(files):
        cuts = [(span.begin, span.end) for span in cut if span.file == number]
        assert (cuts[0][0], cuts[-1][1]) == (0, len(sizes))
        assert all(before[1] == after[0] for before, after in itertools.pairwise(cuts))
        # A span is as long as it may be: one unit, or what fits, and the next one would not.
        for begin, end in cuts:
            assert end - begin <= 1 or sum(sizes[begin:end]) <= task_bytes or sum(sizes) == 0
            assert end == len(sizes) or sum(sizes[begin : end + 1]) > task_bytes


def test_files_that_are_not_cut() -> None:
    files = [plain(100, "jsonl.gz", False), plain(2, "jsonl.zst", False), plain(1, "txt", False), plain(5)]
    tasks = plan_tasks(files, task_bytes=10, max_spans=9)
    # Compressed bytes count four times.
    assert [task.spans for task in tasks] == [
        (Span(0, 0, 100),),
        (Span(1, 0, 2), Span(2, 0, 1)),
        (Span(3, 0, 5),),
    ]


@pytest.mark.parametrize(
    ("file", "span", "is_hashed"),
    [
        (plain(10), Span(0, 0, 10), True),
        (plain(10), Span(0, 0, 9), False),
        (plain(10), Span(0, 1, 10), False),
        (plain(0), Span(0, 0, 0), True),
        (plain(10, "jsonl.gz", False), Span(0, 0, 10), True),
        (units(1, 2), Span(0, 0, 2), False),
        (plain(10, "arrow", False), Span(0, 0, 10), False),
    ],
)
def test_which_spans_hash_their_file(file: SourceFile, span: Span, is_hashed: bool) -> None:
    assert is_hashed_while_read(file, span) is is_hashed
