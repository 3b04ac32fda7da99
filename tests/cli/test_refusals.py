"""What commands refuse: the exit code, the thing that the error names, and that nothing is written."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import previews_made
from copies_made import pair
from headrace.cli import main
from headrace.stores import IndexedWriter
from measured_made import numbers
from shards_made import rows, write_table
from tars_made import write_tar

GOLDEN = Path(__file__).parents[1] / "golden" / "megatron_cache"
EXPORT = "export-cache golden/data/web --samples 3"
OF_THREE = "golden/cache/bcb2920e883e4c70d54391dab1f3d247-GPTDataset-train-description.txt"
REFUSED = [
    (2, "merge -o out", "'SRC...'"),
    (2, "merge a", "'--output'"),
    (2, "convert a out", "--format"),
    (3, "convert a out --format keyed --dtype uint8", "document 1: the value 700"),
    (2, "convert a out --format keyed --shard-tokens many", "write a whole number or none or single or source"),
    (2, "convert a out --format keyed --shard-tokens 0", "at least 1"),
    (2, "convert a out --format keyed --dtype a=int8 --dtype int8", "KEY=NAME"),
    (2, "convert a out --format keyed --dtype int8 --dtype int8", "set twice"),
    (2, "convert a out --format keyed --dialect mega", "'mega' is not one of 'megatron'"),
    (2, "convert a out --format keyed --partitoin x", "--partitoin"),
    (2, "split a out", "--split"),
    (2, "split a out --split 2 --names a", "1 names are given for 2 parts"),
    (6, "split a a.bin --split 2", "a.bin: cannot use as the output folder: Not a directory"),
    (2, "info whole --pack 0", "seq_len is 0"),
    (2, "info whole --pack 8 --pack 1073741824", "seq_len is 1073741824"),
    (2, "info whole --key text", "--pack N"),
    (2, "info plain --split-config x.yaml", "--split-config is only for Energon datasets"),
    (2, "info whole --split-config x.yaml", "--split-config is only for Energon datasets"),
    (2, "info mixed --key x", "--key"),
    (2, "check whole --pack 64", "seq_len=64"),
    (2, "check whole --pack 64,strategy=best", "did you mean 'best_fit'?"),
    (2, "check whole --pack strategy=greedy", "seq_len is missing"),
    (2, "check whole --pack 64,stategy=greedy", "did you mean 'strategy'?"),
    (2, "check whole --pack 64,repack=yes", "repack=yes: write true or false"),
    (2, "check whole --key text", "--pack N"),
    (2, "check whole --pack 64 --key none", "no key 'none'"),
    (2, "check empty --pack 64", "no documents"),
    (2, "check whole --decode", "--decode is for samples"),
    (2, "job plan check ds", "--decode"),
    (2, "check mix.yaml --decode --executor ray", "metadataset"),
    (2, "check mixed --workers 2", "--workers"),
    (2, "check mixed --decode --workers 0", "--workers"),
    (2, "check mixed --pack 100", "--pack"),
    (2, "preview sft --ids --documents 3", "document 3; it has 3, counted from 0"),
    (2, "preview sft --ids --documents 0,x", "0,5,10-12"),
    (2, "preview sft --ids --documents 5-3", "'5-3'"),
    (2, "preview sft --ids --documents 0-1000", "1,000"),
    (2, "preview sft --ids --num 0", "at least 1"),
    (2, "preview sft --ids --limit 0", "at least 1"),
    (2, "preview sft --ids --key none", "'none'"),
    (2, "preview sft --ids --pack 48 --documents 9", "pack 9; it has 2, counted from 0"),
    (2, "preview sft --ids --pack 48,strategy=best", "did you mean 'best_fit'?"),
    (2, "preview sft --ids --pack strategy=greedy", "seq_len is missing"),
    (2, "preview sft --ids --html page.bin", ".html"),
    (2, "preview sft --ids --order random --seed 1 --documents 0", "choose one"),
    (2, "preview sft --images none", "--images is for samples"),
    (2, "preview mixed --images ascii", "blocks"),
    (2, "preview mixed --documents 7", "has no sample 7; it has 7, counted from 0"),
    (2, "preview mixed --documents x", "0,5,10-12"),
    (2, "preview mixed --key none", "has no sample 'none'"),
    (2, "preview mixed --key v/1 --num 2", "--documents and --num"),
    (2, "preview mixed --num 1001", "from 1 to 1,000"),
    (2, "preview mixed --limit 0", "--limit 0"),
    (2, "preview mixed --pack 8", "--pack is for stores of tokens"),
    (2, "preview mixed --split-part vall", "did you mean 'val'?"),
    (2, "ls whole", "headrace preview"),
    (2, "cat whole x", "headrace preview"),
    (4, "ls nothing", "nothing"),
    (2, "cat mixed b/9", "'b/9'; headrace ls lists the keys"),
    (2, "cat mixed b/9.txt", "'b/9'"),
    (2, "cat mixed b/1.txt", "sample 'b/1' has no part 'txt'; it has png, cls, bin"),
    (2, "cat mixed ../x", "has no sample"),
    (2, "measure ds --encoder measured_made", "module:function"),
    (2, "measure ds --encoder measured_made:Pakced", "'Packed'"),
    (2, "measure ds --encoder measured_made:numbers", "arguments"),
    (2, "measure ds --encoder measured_made:Packed --set draw", "write NAME=VALUE"),
    (2, "measure ds --encoder measured_made:Packed --set draw=1 --set draw=2", "draw is set twice"),
    (2, "measure ds --encoder measured_made:Packed --set colour=1", "{'colour': 1}"),
    (2, "measure ds --encoder measured_made:Refusing", "ValueError: no tokenizer"),
    (2, "measure ds --encoder builtins:dict", "headrace.encoders.TaskEncoder"),
    (2, "measure ds --encoder measured_made:Packed --workers 0", "at least 1"),
    (2, "measure ds --encoder measured_made:Packed --split-part nowhere", "nowhere"),
    (2, "job plan measure ds --encoder measured_made:Packed --faults faults.jsonl", "faults.jsonl"),
    (2, "measure mix.yaml --encoder measured_made:Packed", "each of its datasets"),
    (2, "prepare text a --root x", "--root is for media in tar shards (headrace prepare media), not for texts"),
    (2, "prepare --recipe r --filter min_chars=5", "recipe 'r' does not exist"),
    (2, "prepare --recipe r --format tar", "'tar' is not one of 'indexed', 'keyed', 'hdf5', 'jsonl'"),
    (2, "prepare energon a -o out", "--output is for texts (headrace prepare text) and media"),
    (2, "prepare energon a --shufle", "'--shufle'"),
    (2, "prepare tars", "--split-ratio 8,1,1"),
    (2, "prepare tars --split-ratio a", "--split-ratio a"),
    (2, "prepare tars --split-part a", "NAME:REGEX"),
    (2, "prepare tars --split-ratio 1 --dry-run", "not for a folder of .tar shards"),
    (2, "prepare tars --tar-index-only -o out", "--tar-index-only is for a folder of .tar shards"),
    (2, "prepare tars --on-error max_errors=5 --split-ratio 1", "max_errors needs --on-error skip"),
    (2, "prepare tars --split-ratio 1 --sample-type Captioning --field-map {}", "did you mean 'CaptioningSample'"),
    (2, "prepare tars --split-ratio 1 --sample-type CaptioningSample", "'image'"),
    (2, "prepare tars --split-ratio 1 --field-map {", "--field-map"),
    (2, 'prepare tars --split-ratio 1 --field-map {"image":"jpg","image":"png"}', "'image' occurs twice"),
    (2, "prepare tars --shuffle-tars .", "found 2"),
    (2, "prepare t.csv -o out --format tar --tokenizer t", "--tokenizer is for texts (headrace prepare text), not"),
    (2, "prepare t.csv -o out --tokenizer t --root x", "--root is for media"),
    (2, "prepare t.csv -o out --format tar --part a", "--part 'a'"),
    (2, "prepare t.csv -o out --format tar --field-map []", "--field-map"),
    (2, "prepare t.csv -o out --format tar --on-error max_errors=3", "max_errors needs"),
    (2, "prepare t.csv -o out --format tar --shard-size big", "--shard-size big"),
    (2, "prepare in.jsonl --tokenizer t", "--output DIR"),
    (2, "prepare in.jsonl -o out", "--tokenizer is missing. prepare has three forms"),
    (2, "prepare in.jsonl -o out --format zip", "'--format'"),
    (2, "prepare in.jsonl -o out --tokenizer t --format hdf5", "only recipes can write hdf5 and jsonl"),
    (2, "prepare in.jsonl -o out --tokenizer t --now 2026-03-01", "give --recipe FILE as well"),
    (2, "prepare media a -o out --recipe r", "--recipe is for texts (headrace prepare text)"),
    (2, "prepare recipe r.yaml -o out", "with --tokenizer PATH or --recipe FILE"),
    (2, "prepare in.jsonl -o out --tokenizer t --on-error max_errors=5", "max_errors needs --on-error skip"),
    (2, "prepare in.jsonl -o out --tokenizer t --bos w999", "--bos 'w999'"),
    (2, "prepare in.jsonl -o out --tokenizer t --filter min_tokens=9,max_tokens=3", "min_tokens is 9"),
    (2, "prepare in.jsonl -o out --tokenizer t --max-record-bytes 9", "max_record_bytes is 9"),
    (2, "prepare in.jsonl -o out --tokenizer t --append-eod --eod 100", "--eod 100"),
    (2, "prepare in.jsonl in.jsonl -o out --tokenizer t", "the same file"),
    (2, "prepare - --tokenizer t --dry-run", "standard input"),
    *(
        (
            2,
            f"prepare in.jsonl -o out --tokenizer t --on-error skip,max_errors={given}",
            "max_errors",
        )
        for given in ("many", "1.0", "100%", "nan", "-3", "1_000", "%")
    ),
    (4, "info void", "folder without shards"),
    (4, "info odd", "MMIDIDX"),
    (2, "info", "'PATH'"),
    (2, "info --nothing", "'--nothing'"),
    (2, "--nothing", "'--nothing'"),
    (4, "info no.yaml", "no.yaml"),
    (2, "info mix.yaml --steps 3", "--global-batch-size"),
    (2, "info mix.yaml --steps -1 --global-batch-size 3", "--steps -1"),
    (2, "info mix.yaml --global-batch-size 0", "--global-batch-size must be at least 1, found 0"),
    (2, "info ds --steps 3", "metadatasets"),
    (2, "info wrong.yaml", "splits.train.split is unknown; did you mean 'split_part'?"),
    (4, "info gone.yaml", "gone.yaml: splits.train: "),
    (4, "info whol", "did you mean 'whole'?"),
    (4, "where whol 0", "did you mean 'whole'?"),
    (4, "merge whol -o out", "did you mean 'whole'?"),
    (4, "ls no.tr", "did you mean 'no.tar'?"),
    (2, "prepare text in.json -o out --tokenizer t", "did you mean 'in.jsonl'?"),
    (2, "prepare text in.jsonl -o out --tokenizer tokeniser.json", "did you mean 'tokenizer.json'?"),
    (2, "prepare text --recipe typos.yaml -o out", "did you mean 'typo.yaml'?"),
    (3, "prepare energon tar", "did you mean 'tars'?"),
    (5, "run show typos.json", "did you mean 'typo.json'?"),
    (2, "preview mix.yaml --key 000", "one dataset"),
    (2, "preview mix.yaml --dataset-config x.yaml", "--dataset-config"),
    (2, "preview mix.yaml --tokenizer x", "--tokenizer"),
    (2, "preview mix.yaml --order some", "'some' is not one of"),
    (2, "preview mix.yaml --num 0", "from 1 to 1,000"),
    (2, "preview mix.yaml --split-part test", "'test'"),
    (2, "preview ds --seed 3", "--seed"),
    (3, "ls no.tar", "no.tar"),
    (2, "render typo.yaml --record 0", "'sftt'"),
    (3, "prepare energon void", "void"),
    (6, "merge whole -o whole", "--overwrite"),
    (2, "split whole out --split 0,0", "'0,0'"),
    (5, "trace step 3 --run typo.json", "typo.json"),
    (2, "measure no.tar --encoder no:Thing", "'no'"),
    (6, "job finish nowhere", "nowhere"),
    (2, "job task planned --executor ray", "--executor"),
    (2, "job status planned --executor slurm --partition x", "--executor"),
    (2, "job plan prepare in.jsonl --executor ray -o out", "--executor says who"),
    (2, "job plan merge a -o out --executor slurm,partition=x", "--executor says who"),
    (
        2,
        "job plan info a",
        "'info' has no job; the commands that have one are: prepare, merge, convert, split, measure",
    ),
    (2, "job finish planned --executor slurm --workers 3", "cpus_per_job"),
    (2, "job finish planned --executor slurm,address=x", "address is unknown"),
    (2, "job finish planned --executor slurm,time=1,time=2", "time is set twice"),
    (2, "job finish planned --executor slrum", "did you mean 'slurm'?"),
    (2, 'prepare tars --split-ratio 1 --field-map {"image":3}', "whose values are texts"),
    (2, "job finish planned --executor slurm,tasks_per_job=0", "tasks_per_job=0: write a number, at least 1"),
    (2, "job task planned --workers 0", "--workers 0: write a number, at least 1"),
    (2, "job task planned --tasks 1-x", "neither a number nor a range"),
    (2, "job task planned --tasks 99", "task 99"),
    (2, "chek", "no such command 'chek'; did you mean 'check'?"),
    (2, "xyz", "no such command 'xyz'; the commands are: "),
    (2, f"{EXPORT} --tokenizer typo.json", "length"),
    (2, f"{EXPORT} --set sequence_length=8", "tokenizer"),
    (2, f"{EXPORT} --set sequence_length=8 --tokenizer no.json", "no.json"),
    (2, f"{EXPORT} --set sequence_length=8 --tokenizer list.json", "[1]"),
    (2, f"{EXPORT} --like golden/cache/2a1dd87bd19423998541b3bff7f9f2fb-BlendedDataset-train-description.txt", "blend"),
    (
        2,
        f"{EXPORT} --like golden/cache/a6b1a8f46abcd3b07f6dd82020329cc6-GPTDataset-train-description.txt",
        "--split-part",
    ),
    (2, f"{EXPORT} --like {OF_THREE} --split-part train --split 1", "split"),
    (2, f"{EXPORT} --like {OF_THREE} --set era=v9", "'v9'"),
]


FILES = {
    "mix.yaml": "splits: {train: {path: ds}}\n",
    "wrong.yaml": "splits: {train: {path: ds, split: train}}\n",
    "gone.yaml": "splits: {train: {path: gone}}\n",
    "typo.yaml": "type: sftt\n",
    "typo.json": "{}",
    "odd.bin": "1",
    "odd.idx": "2",
    "list.json": "[1]",
    "no.tar": "no tar",
    "in.jsonl": '{"text": "w1"}\n',
}


@pytest.fixture(scope="module")
def place(folder: Path, whole: Path, tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data of every kind; `numbers` leaves some of its samples undecodable."""
    place = tmp_path_factory.mktemp("refusals")
    shutil.copytree(folder, place, dirs_exist_ok=True)
    (place / "whole").symlink_to(whole)
    (place / "golden").symlink_to(GOLDEN)
    pair(place / "a", [[[1]], [[700]]])
    with IndexedWriter(place / "empty", dtype=np.uint16) as writer:
        writer.finish()
    previews_made.store(place / "sft", "sft")
    numbers(place / "ds", 12, (3,))
    write_tar(place / "tars" / "s0.tar", [("k0.txt", b"text")])
    write_table(place / "t.csv", rows(3))
    (place / "void").mkdir()
    for name in ("t", "tokenizer.json"):
        (place / name).symlink_to(tokenizer)
    for name, text in FILES.items():
        (place / name).write_text(text)
    plan = ["job", "plan", "prepare", "in.jsonl", "--tokenizer", "t", "-o", "planned"]
    with contextlib.chdir(place):
        assert CliRunner().invoke(main, plan).exit_code == 0
    return place


@pytest.mark.usefixtures("fresh_cache")
@pytest.mark.parametrize(("code", "command", "named"), REFUSED, ids=[command for _, command, _ in REFUSED])
def test_what_is_refused(
    run: Any, place: Path, monkeypatch: pytest.MonkeyPatch, code: int, command: str, named: str
) -> None:
    monkeypatch.chdir(place)
    before = sorted(place.rglob("*"))
    done = run(*command.split())
    assert (done.exit_code, done.stdout) == (code, ""), done.output
    said = [line for line in done.stderr.splitlines() if not line.startswith("note")]
    assert named in " ".join(done.stderr.split())
    if said[0].startswith("Usage: "):  # click's own form
        assert "Error: " in done.stderr
    else:
        assert [line.partition(":")[0].lower() for line in said] == ["error"], "one line says what to do"
    assert sorted(place.rglob("*")) == before
