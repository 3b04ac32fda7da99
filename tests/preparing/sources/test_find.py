"""Arguments -> files in a defined order."""

from __future__ import annotations

import gzip
import io
import os
import sys
from pathlib import Path

import pytest

import spans
from headrace.errors import ConfigError, InputError, MissingExtraError
from headrace.preparing.sources import RecordSpec, find_inputs, spool_stdin
from headrace.preparing.sources.source_file import format_of


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


def test_a_folder_is_searched_in_natural_order(tree: Path) -> None:
    assert names("data") == ["data/part-9.jsonl", "data/part-10.jsonl", "data/sub/a.jsonl"]
    assert names("data/") == ["data/part-9.jsonl", "data/part-10.jsonl", "data/sub/a.jsonl"]


def test_arguments_keep_their_order(tree: Path) -> None:
    assert names("data/sub", "data/part-10.jsonl") == ["data/sub/a.jsonl", "data/part-10.jsonl"]


def test_globs(tree: Path) -> None:
    assert names("data/part-*.jsonl") == ["data/part-9.jsonl", "data/part-10.jsonl"]
    assert names("data/**/*.jsonl") == names("data")
    assert names("data/s*") == ["data/sub/a.jsonl"]


def test_a_name_with_magic_characters_is_taken_literally_if_it_exists(tree: Path) -> None:
    (tree / "data/[a].jsonl").write_text("{}\n")
    assert names("data/[a].jsonl") == ["data/[a].jsonl"]


def test_size_and_time(tree: Path) -> None:
    status = (tree / "data/part-9.jsonl").stat()
    (file,) = find_inputs([Path("data/part-9.jsonl")], spec=spans.SPEC)
    assert (file.size_bytes, file.mtime_ns) == (status.st_size, status.st_mtime_ns)
    assert file.path == str(tree / "data/part-9.jsonl")


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
        (
            ["mixed"],
            "input 'mixed' holds files that may be data but cannot be read: 'b.jsonl.bz2' (2 such files). Convert them",
        ),
        (["notes"], "input 'notes' holds text files ('README.txt', 1 of them) beside other data ('sub/a.b.jsonl', 1"),
        (["notes"], "Name the files to read, 'notes/**/*.txt' and 'notes/**/*.b.jsonl' for both."),
        (["fifo.jsonl"], "neither a regular file nor a folder"),
    ],
)
def test_refused(tree: Path, inputs: list[str], message: str) -> None:
    for folder in ("empty", "tars", "mixed", "linked"):
        (tree / folder).mkdir()
    (tree / "tars/000.tar").touch()
    make(tree, "mixed/a.jsonl", "mixed/b.jsonl.bz2", "mixed/c.csv", "notes/README.txt", "notes/sub/a.b.jsonl")
    (tree / "linked/a.jsonl").touch()
    (tree / "linked/b.jsonl").symlink_to("a.jsonl")
    os.mkfifo(tree / "fifo.jsonl")
    with pytest.raises(ConfigError) as caught:
        find_inputs(inputs, spec=spans.SPEC)
    assert message in str(caught.value)


def test_a_dangling_link_is_an_error_not_a_gap(tree: Path) -> None:
    (tree / "data/gone.jsonl").symlink_to("nowhere")
    with pytest.raises(InputError, match=r"data/gone\.jsonl: the file cannot be read: No such file"):
        find_inputs(["data"], spec=spans.SPEC)


def test_an_unreadable_file(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real_open = Path.open

    def refuse(self: Path, *args: object, **kwargs: object) -> object:
        if self.name == "a.jsonl":
            raise PermissionError(13, "Permission denied")
        return real_open(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "open", refuse)  # tests may run as root, whom no mode stops
    with pytest.raises(InputError, match=r"data/sub/a\.jsonl: the file cannot be read: Permission denied"):
        find_inputs(["data"], spec=spans.SPEC)


def test_a_name_that_is_not_utf8(tree: Path) -> None:
    Path(os.fsdecode(b"data/\xff.jsonl")).touch()
    with pytest.raises(ConfigError, match="not UTF-8: rename the file"):
        find_inputs(["data"], spec=spans.SPEC)


def test_braces(tree: Path) -> None:
    assert names("data/part-{9..10}.jsonl") == ["data/part-9.jsonl", "data/part-10.jsonl"]
    assert names("data/{sub,part-*.jsonl}") == ["data/sub/a.jsonl", "data/part-9.jsonl", "data/part-10.jsonl"]
    make(tree, "data/{x,y}.jsonl")
    assert names("data/{x,y}.jsonl") == ["data/{x,y}.jsonl"]


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
    with pytest.raises(ConfigError, match=r"files that may be data but cannot be read: 'a\.json'"):
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
    [
        (RecordSpec(fields=("title", "body")), r"a\.txt: a text file has no fields, but 2 are asked for"),
        (RecordSpec(id_field="id"), r"a\.txt: a text file has no fields, but the id field 'id' is asked for"),
    ],
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


def test_empty_plain_files_are_files_without_records(tree: Path) -> None:
    for name in ("e.jsonl", "e.txt"):
        (tree / name).touch()
        found = spans.read(tree / name)
        assert (found.texts, found.num_lines, found.bad) == ([[]], 0, [])
        assert found.xxh3_128 == "99aa06d3014798d86001c324468d497f"


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
    with pytest.raises(ConfigError, match=r"input '-' \(standard input\) is named twice"):
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
        (Terminal(b"a"), ConfigError, "standard input, which is a terminal here: pipe data into it"),
        (io.BytesIO(), InputError, "standard input is empty"),
        (Broken(b"abcdef"), InputError, "standard input cannot be read: Input/output error"),
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
    with pytest.raises(ConfigError, match="a DatasetDict with the splits test, train: name those to read"):
        names("saved")
    assert names("saved/test", "saved/train") == ["saved/test/part.jsonl", "saved/train/part.jsonl"]
    (tree / "saved" / "test" / "state.json").write_text('{"_data_files": 1}')
    with pytest.raises(InputError, match="does not name the data files"):
        names("saved/test")
