"""A dry run beside the run that it speaks of."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError, InputError
from headrace.preparing import (
    ErrorOptions,
    Estimate,
    FilterSpec,
    OutputOptions,
    RecordOptions,
    TextOptions,
    TokenOptions,
    estimate_text,
    prepare_text,
)
from headrace.preparing.backends import MismatchError, ProvedEncoder
from headrace.stores import Manifest

pytestmark = pytest.mark.usefixtures("warm_workers")
REFERENCE = TokenOptions(backend="tokenizers")


@pytest.fixture(scope="module")
def texts(sources: list[str]) -> list[str]:
    """Of 0 to 2,000 characters, 3 MB in all."""
    return [text[at : at + at // 2 % 2000] for text in sources for at in range(0, len(text), 1500)]


def write(folder: Path, kind: str, texts: list[str]) -> Path:
    """The texts as one file of this kind; what ends in .txt holds the same words as lines."""
    path = folder / f"in.{kind}"
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    if kind == "txt":
        path.write_text("".join(" ".join(text.split()) + "\n\n" for text in texts if text.strip()))
    elif kind == "jsonl.gz":
        path.write_bytes(gzip.compress(lines))
    elif kind == "jsonl.zst":
        path.write_bytes(pytest.importorskip("zstandard").compress(lines))
    elif kind == "parquet":
        pa = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pa.table({"text": texts}), path, row_group_size=40)
    elif kind == "arrow":
        pa = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.feather").write_feather(pa.table({"text": texts}), path, chunksize=40)
    else:
        path.write_bytes(lines)
    return path


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def both(kit: Any, path: Path, options: TextOptions, out: Path) -> tuple[Estimate, Manifest]:
    before = sorted(path.parent.rglob("*"))
    estimate = estimate_text([path], tokenizer=kit.tokenizer, options=options)
    assert sorted(path.parent.rglob("*")) == before
    return estimate, prepare_text([path], out, tokenizer=kit.tokenizer, options=options)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("jsonl", TextOptions(tokens=REFERENCE)),
        ("jsonl.gz", TextOptions(tokens=TokenOptions(append_eod=True, bos=1))),
        ("jsonl.zst", TextOptions(tokens=REFERENCE, output=OutputOptions(shard_tokens=9000))),
        ("parquet", TextOptions(tokens=REFERENCE, output=OutputOptions(format="keyed"))),
        ("arrow", TextOptions(tokens=REFERENCE, filters=FilterSpec(min_tokens=100, max_chars=1500))),
        ("txt", TextOptions(tokens=REFERENCE, records=RecordOptions(sample_by="paragraph"))),
    ],
)
@pytest.mark.sampled(1)
def test_a_small_input_is_read_whole(
    kit: Any, texts: list[str], tmp_path: Path, kind: str, options: TextOptions
) -> None:
    path = write(tmp_path, kind, texts[:300])
    estimate, manifest = both(kit, path, options, tmp_path / "out")
    documents, tokens = manifest.ledger.documents, manifest.ledger.tokens
    assert estimate.is_exact
    assert (estimate.documents, estimate.sampled_documents) == (documents.kept, documents.kept)
    assert estimate.tokens == tokens.kept
    assert estimate.dropped == documents.dropped
    assert estimate.dtype == "uint16"
    assert manifest.backend is not None
    assert (estimate.backend, estimate.fallback) == (manifest.backend.name, "")
    assert estimate.sampled_bytes == pytest.approx(estimate.input_bytes, rel=0.01)
    # All but the manifest and some headers grows with the documents.
    growing = (".bin", ".idx", "meta.json", "order.npy")
    output_bytes = sum(path.stat().st_size for path in (tmp_path / "out").rglob("*") if path.name.endswith(growing))
    # Empty documents take 12 bytes less; numbers as text are longer and shorter.
    slack = 4 * documents.kept if options.output.format == "keyed" else 12 * documents.empty
    assert abs(estimate.output_bytes - output_bytes) <= 200 + slack


@pytest.mark.parametrize(
    ("kind", "sample_by"),
    [
        ("jsonl", "document"),
        ("jsonl.gz", "document"),
        ("jsonl.zst", "document"),
        ("parquet", "document"),
        ("arrow", "document"),
        ("txt", "line"),
        ("txt", "paragraph"),
    ],
)
@pytest.mark.sampled(1)
def test_a_sample_tells_of_the_whole(
    kit: Any, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, sample_by: Any
) -> None:
    monkeypatch.setattr("headrace.preparing.estimate.SAMPLE_BYTES", 800_000)
    path = write(tmp_path, kind, texts)
    options = TextOptions(
        tokens=REFERENCE,
        records=RecordOptions(sample_by=sample_by),
        workers=1,
        task_bytes=100_000,
    )
    estimate, manifest = both(kit, path, options, tmp_path / "out")
    assert not estimate.is_exact
    assert 0.1 < estimate.sampled_bytes / estimate.input_bytes < 0.5
    assert estimate.sampled_documents < 0.5 * estimate.documents
    documents, tokens = manifest.ledger.documents.kept, manifest.ledger.tokens.kept
    assert estimate.tokens == pytest.approx(tokens, rel=0.15)
    assert estimate.documents == pytest.approx(documents, rel=0.2)
    assert estimate.output_bytes == pytest.approx(size_of(tmp_path / "out"), rel=0.15)


def test_files_are_read_in_their_order(kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Documents of the first file are what is seen; a file that was read whole counts with all of its bytes."""
    monkeypatch.setattr("headrace.preparing.estimate.SAMPLE_BYTES", 300_000)
    paths = [tmp_path / f"{number}.jsonl" for number in range(4)]
    for path in paths:
        kit.write(path, [{"text": "a b " * 25}] * 2000)
    estimate = estimate_text(paths, tokenizer=kit.tokenizer, options=TextOptions(tokens=REFERENCE))
    assert not estimate.is_exact
    assert paths[0].stat().st_size < estimate.sampled_bytes < sum(path.stat().st_size for path in paths[:3])
    assert estimate.documents == pytest.approx(8000, rel=0.01)


def test_bytes_of_a_compressed_file_count_where_they_are_used(
    kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader takes 256 KiB of a file at a time, and of these 100 MB of text may come."""
    monkeypatch.setattr("headrace.preparing.estimate.SAMPLE_BYTES", 1 << 20)
    lines = b"".join(json.dumps({"text": f"same text {number}" * 30}).encode() + b"\n" for number in range(8000))
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress(lines))
    assert len(lines) > 30 * (tmp_path / "in.jsonl.gz").stat().st_size
    estimate = estimate_text(
        [tmp_path / "in.jsonl.gz"], tokenizer=kit.tokenizer, options=TextOptions(tokens=REFERENCE, workers=1)
    )
    assert not estimate.is_exact
    assert estimate.documents == pytest.approx(8000, rel=0.1)


def test_bad_records_are_counted(kit: Any, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n{}\n\n{"text": 1}\n')
    estimate = estimate_text([tmp_path / "in.jsonl"], tokenizer=kit.tokenizer)
    assert (estimate.documents, estimate.bad_records) == (1, 2)
    assert (
        estimate.first_error
        == f"{tmp_path / 'in.jsonl'}, line 2: no field 'text'; its fields are: none (choose with --text-field)."
    )


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_no_records(kit: Any, tmp_path: Path, content: str) -> None:
    (tmp_path / "in.jsonl").write_text(content)
    with pytest.raises(InputError, match="a sample of 1 files holds no records: is this the right data"):
        estimate_text([tmp_path / "in.jsonl"], tokenizer=kit.tokenizer)


def test_bad_arguments(kit: Any, tmp_path: Path) -> None:
    kit.write(tmp_path / "in.jsonl", [{"text": "a"}])
    with pytest.raises(ConfigError, match="standard input cannot be sampled"):
        estimate_text([tmp_path / "in.jsonl", "-"], tokenizer=kit.tokenizer)
    with pytest.raises(ConfigError, match="workers is 0"):
        estimate_text([tmp_path / "in.jsonl"], tokenizer=kit.tokenizer, options=TextOptions(workers=0))
    with pytest.raises(ConfigError, match="does not exist"):
        estimate_text([tmp_path / "in.jsonl"], tokenizer=tmp_path / "none")


def test_a_library_that_differs_in_the_sample(kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gigatoken")

    class Differs(ProvedEncoder):
        def encode(self, texts: Any, sampled: Any) -> Any:
            if self.name != "tokenizers":
                raise MismatchError(0, "gigatoken differs from tokenizers: 'a'")
            return super().encode(texts, sampled)

    monkeypatch.setattr("headrace.preparing.estimate.ProvedEncoder", Differs)
    kit.write(tmp_path / "in.jsonl", [{"text": "some text"}])
    options = TextOptions(tokens=TokenOptions(backend="gigatoken"))
    estimate = estimate_text([tmp_path / "in.jsonl"], tokenizer=kit.tokenizer, options=options)
    assert (estimate.backend, estimate.fallback) == ("tokenizers", "gigatoken differs from tokenizers: 'a'")
    assert estimate.documents == 1


def test_a_file_that_cannot_be_read_is_counted_where_it_is_skipped(kit: Any, tmp_path: Path) -> None:
    kit.write(tmp_path / "a.jsonl", [{"text": "some words"}] * 50)
    (tmp_path / "b.jsonl.gz").touch()
    options = TextOptions(tokens=TokenOptions(backend="tokenizers"))
    with pytest.raises(InputError, match=r"b\.jsonl\.gz"):
        estimate_text([tmp_path], tokenizer=kit.tokenizer, options=options)
    options = TextOptions(tokens=TokenOptions(backend="tokenizers"), errors=ErrorOptions(on_error="skip"))
    found = estimate_text([tmp_path], tokenizer=kit.tokenizer, options=options)
    assert found.documents == 50
