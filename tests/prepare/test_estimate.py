"""A dry run beside the run that it speaks of."""

from __future__ import annotations

import contextlib
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import ConfigError, InputError
from headrace.prepare import (
    ErrorOptions,
    Estimate,
    FilterSpec,
    OutputOptions,
    RecordOptions,
    TextOptions,
    TokenOptions,
    documents,
    estimate_text,
    prepare_text,
    sample,
)
from headrace.prepare.backends import MismatchError, ProvedEncoder
from headrace.prepare.forecast import Tasks, forecast_seconds
from headrace.stores import Manifest

pytestmark = pytest.mark.usefixtures("warm_workers")
TRUTH = TokenOptions(backend="tokenizers")


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


def both(kit: Any, path: Path, options: TextOptions, out: Path) -> tuple[Estimate, Manifest, int]:
    """Estimate, result, and the most that was seen in the output folder."""
    before = sorted(path.parent.rglob("*"))
    estimate = estimate_text([path], tokenizer=kit.tokenizer, options=options)
    assert sorted(path.parent.rglob("*")) == before
    seen = [0]

    def look(progress: Any) -> None:
        with contextlib.suppress(FileNotFoundError):  # deleted while we looked
            seen.append(size_of(out))

    manifest = prepare_text([path], out, tokenizer=kit.tokenizer, options=options, on_progress=look)
    return estimate, manifest, max(*seen, size_of(out))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("jsonl", TextOptions(tokens=TRUTH)),
        ("jsonl.gz", TextOptions(tokens=TokenOptions(append_eod=True, prepend_bos=True, bos=1))),
        ("jsonl.zst", TextOptions(tokens=TRUTH, output=OutputOptions(shuffle=1))),
        ("parquet", TextOptions(tokens=TRUTH, output=OutputOptions(format="keyed"))),
        ("arrow", TextOptions(tokens=TRUTH, filters=FilterSpec(min_tokens=100, max_chars=1500))),
        ("txt", TextOptions(tokens=TRUTH, records=RecordOptions(sample_by="paragraph"))),
    ],
)
@pytest.mark.sampled(1)
def test_a_small_input_is_read_whole(
    kit: Any, texts: list[str], tmp_path: Path, kind: str, options: TextOptions
) -> None:
    path = write(tmp_path, kind, texts[:300])
    estimate, manifest, _ = both(kit, path, options, tmp_path / "out")
    documents, tokens = manifest.ledger.documents, manifest.ledger.tokens
    assert estimate.is_exact
    assert (estimate.documents, estimate.sampled_documents) == (documents.kept, documents.kept)
    assert estimate.tokens == estimate.tokens_low == estimate.tokens_high == tokens.kept
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


@pytest.mark.parametrize("shuffle", [None, 3])
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
    kit: Any, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, sample_by: Any, shuffle: Any
) -> None:
    monkeypatch.setattr(sample, "PLACE_BYTES", 8 << 10)
    path = write(tmp_path, kind, texts)
    options = TextOptions(
        tokens=TRUTH,
        records=RecordOptions(sample_by=sample_by),
        output=OutputOptions(shuffle=shuffle),
        workers=1,
        task_bytes=100_000,
    )
    estimate, manifest, peak = both(kit, path, options, tmp_path / "out")
    assert not estimate.is_exact
    assert 0.1 < estimate.sampled_bytes / estimate.input_bytes < 0.5
    assert estimate.sampled_documents < 0.5 * estimate.documents
    documents, tokens = manifest.ledger.documents.kept, manifest.ledger.tokens.kept
    assert estimate.tokens == pytest.approx(tokens, rel=0.15)
    assert estimate.documents == pytest.approx(documents, rel=0.2)
    assert estimate.tokens_low <= tokens <= estimate.tokens_high
    assert estimate.tokens_high - estimate.tokens_low < 0.5 * tokens
    output_bytes = size_of(tmp_path / "out")
    assert estimate.output_bytes == pytest.approx(output_bytes, rel=0.15)
    assert 0.85 * peak < estimate.peak_disk_bytes < 2.5 * output_bytes


@pytest.mark.soak
def test_files_of_all_kinds_together(
    kit: Any, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each counts by what it holds: compressed bytes hold more, and a thousand tiny files less than one large one."""
    monkeypatch.setattr(sample, "PLACE_BYTES", 4 << 10)
    inputs = [write(tmp_path, kind, part) for kind, part in (("jsonl", texts[:900]), ("jsonl.gz", texts[900:1500]))]
    (tmp_path / "tiny").mkdir()
    for number, text in enumerate(texts[1500:1700]):
        (tmp_path / f"tiny/{number}.jsonl").write_text(json.dumps({"text": text}) + "\n")
    options = TextOptions(tokens=TRUTH, workers=1)
    estimate = estimate_text([*inputs, tmp_path / "tiny"], tokenizer=kit.tokenizer, options=options)
    manifest = prepare_text([*inputs, tmp_path / "tiny"], tmp_path / "out", tokenizer=kit.tokenizer, options=options)
    assert estimate.inputs == 202
    assert estimate.tokens == pytest.approx(manifest.ledger.tokens.kept, rel=0.15)
    assert estimate.documents == pytest.approx(manifest.ledger.documents.kept, rel=0.2)


def test_bytes_of_a_compressed_file_count_where_they_are_used(
    kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader takes 256 KiB of a file at a time, and of these 100 MB of text may come."""
    monkeypatch.setattr(sample, "PLACE_BYTES", 2 << 10)
    monkeypatch.setattr(sample, "NUM_PLACES", 16)
    lines = b"".join(json.dumps({"text": f"same text {number}" * 30}).encode() + b"\n" for number in range(8000))
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress(lines))
    assert len(lines) > 30 * (tmp_path / "in.jsonl.gz").stat().st_size
    estimate = estimate_text(
        [tmp_path / "in.jsonl.gz"], tokenizer=kit.tokenizer, options=TextOptions(tokens=TRUTH, workers=1)
    )
    assert not estimate.is_exact
    assert estimate.documents == pytest.approx(8000, rel=0.1)


def test_long_lines_count_where_they_begin(kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the bytes are in lines far longer than a place."""
    monkeypatch.setattr(sample, "PLACE_BYTES", 2 << 10)
    monkeypatch.setattr(sample, "NUM_PLACES", 256)
    lines = [{"text": "a b " * 25} for _ in range(10_000)] + [{"text": "a b " * 5_000} for _ in range(50)]
    kit.write(tmp_path / "in.jsonl", lines)
    estimate = estimate_text([tmp_path / "in.jsonl"], tokenizer=kit.tokenizer, options=TextOptions(tokens=TRUTH))
    assert estimate.documents == pytest.approx(10_050, rel=0.3)
    assert estimate.tokens == pytest.approx(2 * 10_000 * 50, rel=0.02)


def test_bad_records_are_counted(kit: Any, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n{}\n\n{"text": 1}\n')
    estimate = estimate_text([tmp_path / "in.jsonl"], tokenizer=kit.tokenizer)
    assert (estimate.documents, estimate.bad_records) == (1, 2)
    assert (
        estimate.first_error
        == f"{tmp_path / 'in.jsonl'}: no field 'text'; its fields are: none (choose with --text-field)"
    )


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_no_records(kit: Any, tmp_path: Path, content: str) -> None:
    (tmp_path / "in.jsonl").write_text(content)
    with pytest.raises(InputError, match="no records in a sample of 1 files: is this the right data"):
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

    monkeypatch.setattr(sample, "ProvedEncoder", Differs)
    kit.write(tmp_path / "in.jsonl", [{"text": "some text"}])
    options = TextOptions(tokens=TokenOptions(backend="gigatoken"))
    estimate = estimate_text([tmp_path / "in.jsonl"], tokenizer=kit.tokenizer, options=options)
    assert (estimate.backend, estimate.fallback) == ("tokenizers", "gigatoken differs from tokenizers: 'a'")
    assert estimate.documents == 1


@pytest.mark.soak
def test_one_compressed_file_keeps_one_worker_busy(kit: Any, texts: list[str], tmp_path: Path) -> None:
    path = write(tmp_path, "jsonl.gz", texts)
    options = TextOptions(tokens=TRUTH, workers=64, task_bytes=50_000)
    assert estimate_text([path], tokenizer=kit.tokenizer, options=options).workers == 1


def test_tasks_and_time(kit: Any, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[Any] = []
    monkeypatch.setattr("headrace.prepare.estimate.Sample", lambda plan, backend: plans.append(plan) or _stop())
    for kind in ("jsonl", "parquet"):
        with pytest.raises(InputError, match="enough"):
            estimate_text(
                [write(tmp_path, kind, texts[:500])],
                tokenizer=kit.tokenizer,
                options=TextOptions(tokens=TRUTH, task_bytes=50_000),
            )
    for plan in plans:
        tasks = Tasks.of(plan)
        assert 4 < tasks.count < 30
        assert 1 / tasks.count <= tasks.largest < 3 / tasks.count
    plan = plans[0]
    common = {"plan": plan, "truth_s": 0.0, "record_characters": 100.0}
    start = forecast_seconds(tasks=Tasks(1000, 0.001), workers=1, cpu_s=0.0, **common)
    alone = forecast_seconds(tasks=Tasks(1000, 0.001), workers=1, cpu_s=100.0, **common) - start
    assert forecast_seconds(tasks=Tasks(1000, 0.001), workers=4, cpu_s=100.0, **common) - start == alone / 4
    assert forecast_seconds(tasks=Tasks(2, 0.9), workers=4, cpu_s=100.0, **common) - start == alone * 0.9
    proof = {"plan": plan, "workers": 1, "cpu_s": 0.0, "tasks": Tasks(1, 1.0), "truth_s": 1e-6}
    # The first 1,000 documents, of at most 65,536 characters together where the inputs are small.
    assert forecast_seconds(record_characters=20.0, **proof) - start == pytest.approx(0.02)
    assert forecast_seconds(record_characters=2000.0, **proof) - start == pytest.approx(0.065536)


def _stop() -> None:
    raise InputError("enough")


@pytest.mark.parametrize("backend", ["gigatoken", "tokenizers"])
def test_the_proof_takes_the_time_of_the_truth(
    kit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: Any
) -> None:
    if backend != "tokenizers":
        pytest.importorskip(backend)
    given: list[float] = []
    monkeypatch.setattr(
        "headrace.prepare.estimate.forecast_seconds",
        lambda plan, tasks, *, truth_s, record_characters, **rest: given.extend([truth_s, record_characters]) or 0.0,
    )
    kit.write(tmp_path / "in.jsonl", [{"text": "some text " * 100}] * 1000)
    options = TextOptions(tokens=TokenOptions(backend=backend))
    assert estimate_text([tmp_path / "in.jsonl"], tokenizer=kit.tokenizer, options=options).backend == backend
    truth_s, record_characters = given
    assert record_characters == 1001
    assert 1e-8 < truth_s < 1e-4 if backend == "gigatoken" else truth_s == 0


def test_seconds_are_those_of_reading_and_encoding(
    kit: Any, texts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that counts encoded blocks, so that nothing else is counted, and all of it once."""
    path = write(tmp_path, "jsonl", texts)
    monkeypatch.setattr(sample, "PLACE_BYTES", 8 << 10)
    clock = [0.0]
    monkeypatch.setattr(sample.time, "process_time", lambda: clock[0])
    encode = documents.BlockEncoder.encode

    def slow(self: Any, block: Any, number: int) -> Any:
        # What is loaded with the first text is loaded once in a run, however large that is.
        clock[0] += block.input_bytes / 1000 if clock[0] else 10**6
        return encode(self, block, number)

    monkeypatch.setattr(documents.BlockEncoder, "encode", slow)
    estimate = estimate_text([path], tokenizer=kit.tokenizer, options=TextOptions(tokens=TRUTH, workers=1))
    expected = 1.2 * path.stat().st_size / 1000
    assert expected < estimate.seconds < expected + 60


def test_a_file_that_cannot_be_read_is_counted_where_it_is_skipped(kit: Any, tmp_path: Path) -> None:
    kit.write(tmp_path / "a.jsonl", [{"text": "some words"}] * 50)
    (tmp_path / "b.jsonl.gz").touch()
    options = TextOptions(tokens=TokenOptions(backend="tokenizers"))
    with pytest.raises(InputError, match=r"b\.jsonl\.gz"):
        estimate_text([tmp_path], tokenizer=kit.tokenizer, options=options)
    options = TextOptions(tokens=TokenOptions(backend="tokenizers"), errors=ErrorOptions(on_error="skip"))
    found = estimate_text([tmp_path], tokenizer=kit.tokenizer, options=options)
    assert found.documents == 50
