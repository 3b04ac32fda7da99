"""The joins of metadatasets at URLs: the index of the local run beside the file, whatever is at a URL."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from obstore import delete

from energon_made import write_tar
from headrace.cli import main
from headrace.compat.energon import prepare_metadataset as energons
from headrace.datasets.metadataset import prepare_metadataset
from headrace.errors import ConfigError, HeadraceError, InputError, OutputError, StoreError
from headrace.preparing.energon import EnergonOptions, MediaFilter, SplitChoice, plan_energon, prepare_energon
from memory_stores import MemoryBucket, Stopped, sent_files, stop_at, watched

HEADER = "__module__: megatron.energon\n__class__: MetadatasetV2\n"
JOINER = "joiner: {__module__: megatron.energon, __class__: TextSample}"
JOIN = f"{{join: [{{path: a}}, {{path: b, nonmatch: skip}}], {JOINER}}}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "data"
    split = SplitChoice(parts=(("train", "0"), ("val", "1")))
    for name, part, missing in (("a", "jpg", 9), ("b", "txt", 2)):
        for shard in (0, 1):
            members = [(f"k{shard}{at}.{part}", b"x" * (700 * shard + at)) for at in range(4) if at != missing]
            write_tar(root / f"{name}/{shard}.tar", members)
        prepare_energon(root / name, options=EnergonOptions(split=split))
    return root


def write(root: Path, splits: str, name: str = "meta.yaml") -> Path:
    (root / name).write_text(f"{HEADER}splits: {splits}\n")
    return root / name


def indexes(bucket: MemoryBucket) -> dict[str, bytes]:
    return {name: data for name, data in bucket.content("ds").items() if ".cache/" in name}


def made_here(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*.cache/*")}


SPLITS = {
    "two splits": f"{{train: {JOIN}, val: {JOIN}}}",
    "in blends": f"{{train: {{blend: [{{weight: 1, path: a}}, {JOIN}]}}, val: {{blend_epochized: [{JOIN}]}}}}",
    "named": JOIN.replace("join: [{path: a}, {", "join: {one: {path: a}, two: {").replace("skip}]", "skip}}"),
    "nested": "{train: {blend: [{path: inner.yaml, split_part: val}]}}",
    "nothing": "{train: {path: a}}",
}
SPLITS["named"] = f"{{train: {SPLITS['named']}}}"


@pytest.mark.parametrize("splits", SPLITS.values(), ids=SPLITS)
def test_the_index_of_the_local_run(bucket: MemoryBucket, folder: Path, splits: str) -> None:
    write(folder, f"{{train: {JOIN}, val: {JOIN}}}", "inner.yaml")
    path = write(folder, splits)
    url = bucket.upload(folder, "ds")
    here: list[str] = []
    there: list[str] = []
    wanted = prepare_energon(path, on_notice=here.append)
    found = prepare_energon(f"{url}/meta.yaml", on_notice=there.append)
    assert indexes(bucket) == made_here(folder)
    assert [one.replace(url, str(folder)) for one in there] == here
    assert (found.samples, found.kind) == (wanted.samples, "metadataset")
    assert [one.replace(url, str(folder)) for one in found.written] == list(wanted.written)
    # What is there already is not written again, under the eyes of a run.
    with sent_files() as sent:
        assert prepare_energon(f"{url}/meta.yaml") == found
    assert sent == []


@pytest.mark.parametrize("where", ["a URL", "a URL beside local data", "here beside data at URLs"])
@pytest.mark.parametrize("prepare", [prepare_energon, prepare_metadataset, energons])
def test_whatever_is_at_a_url(bucket: MemoryBucket, folder: Path, where: str, prepare: Any) -> None:
    path = write(folder, f"{{train: {JOIN}}}")
    prepare(path)
    wanted = set(made_here(folder).values())
    (old,) = (folder / "meta.yaml.cache").iterdir()
    old.unlink()
    url = bucket.upload(folder, "ds")
    text = path.read_text()
    if where == "here beside data at URLs":
        path.write_text(text.replace("path: ", f"path: {url}/"))
        prepare(path)
        assert (set(made_here(folder).values()), indexes(bucket)) == (wanted, {})
        return
    if where == "a URL beside local data":
        bucket.put(
            "ds/meta.yaml", text.replace("path: a", f"path: {folder}/a").replace("path: b", "path: ../ds/b").encode()
        )
    prepare(f"{url}/meta.yaml")
    assert (set(indexes(bucket).values()), made_here(folder)) == (wanted, {})


def test_the_command(bucket: MemoryBucket, folder: Path) -> None:
    write(folder, f"{{train: {JOIN}}}")
    url = bucket.upload(folder, "ds")
    done = CliRunner().invoke(main, ["prepare", "energon", f"{url}/meta.yaml"])
    assert (done.exit_code, done.stdout) == (0, f"{url}/meta.yaml: 1 join, 3 joined samples\n")
    checked = CliRunner().invoke(main, ["check", f"{url}/meta.yaml"])
    assert (checked.exit_code, "1 join read" in checked.stdout) == (0, True)


def test_indexes_that_no_join_uses_are_removed(bucket: MemoryBucket, folder: Path) -> None:
    """Of two splits, one has the name of Energon's. When both are gone, the next one gets it."""
    path = write(folder, f"{{train: {JOIN}, val: {JOIN}}}")
    url = bucket.upload(folder, "ds")
    bucket.put("ds/meta.yaml.cache/notes.txt", b"mine")
    for splits in (f"{{train: {JOIN}, val: {JOIN}}}", f"{{val: {JOIN}}}", "{train: {path: a}}", f"{{val: {JOIN}}}"):
        bucket.put("ds/meta.yaml", write(folder, splits).read_bytes())
        prepare_energon(path)
        prepare_energon(f"{url}/meta.yaml")
        assert indexes(bucket) == {**made_here(folder), "meta.yaml.cache/notes.txt": b"mine"}


def test_a_run_that_ends_at_any_moment(bucket: MemoryBucket, folder: Path) -> None:
    path = write(folder, f"{{train: {JOIN}, val: {JOIN}}}")
    url = bucket.upload(folder, "ds")
    prepare_energon(path)
    wanted = made_here(folder)
    moments = 0
    while True:
        try:
            with watched(stop_at(moments)):
                prepare_energon(f"{url}/meta.yaml")
            break
        except Stopped:
            moments += 1
        assert set(indexes(bucket).values()) <= set(wanted.values())
        prepare_energon(f"{url}/meta.yaml")
        assert indexes(bucket) == wanted
        delete(bucket.store, [f"ds/{name}" for name in wanted])
    assert moments == len(wanted)


@pytest.mark.parametrize(
    ("splits", "kind"),
    [
        (f"{{train: {{join: [{{path: a}}, {{path: b}}], {JOINER}}}}}", InputError),
        (f"{{train: {{join: [{{path: a}}, {{path: gone}}], {JOINER}}}}}", StoreError),
        (f"{{train: {{join: [{{path: a, split_part: test}}, {{path: b}}], {JOINER}}}}}", StoreError),
        ("{train: {path: meta.yaml}}", StoreError),
        ("{train: {path: none.yaml}}", StoreError),
        ("5", StoreError),
    ],
)
def test_the_errors_of_the_local_run(
    bucket: MemoryBucket, folder: Path, splits: str, kind: type[HeadraceError]
) -> None:
    path = write(folder, splits)
    url = bucket.upload(folder, "ds")
    with pytest.raises(kind) as wanted:
        prepare_energon(path)
    with pytest.raises(kind) as found:
        prepare_energon(f"{url}/meta.yaml")
    assert str(found.value).replace(url, str(folder)) == str(wanted.value)
    assert indexes(bucket) == {}


def test_what_does_not_go(bucket: MemoryBucket, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, f"{{train: {JOIN}}}")
    url = bucket.upload(folder, "ds")
    with pytest.raises(ConfigError, match=r"meta.yaml: a .yaml is not planned for other processes"):
        plan_energon(f"{url}/meta.yaml")
    with pytest.raises(ConfigError, match="not to a web server"):
        prepare_energon("http://127.0.0.1:9/meta.yaml")
    with pytest.raises(ConfigError, match="only be gathered for a folder"):
        prepare_energon(f"{url}/meta.yaml", options=EnergonOptions(media=MediaFilter(strategy="EXTENSION")))
    monkeypatch.setattr("tempfile.tempdir", str(folder / "none"))
    with pytest.raises(OutputError, match="cannot make a folder in"):
        prepare_energon(f"{url}/meta.yaml")
    assert indexes(bucket) == {}
