"""Malformed tars, keys that are there twice, and folders that cannot be prepared."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

from energon_made import PNG, write_tar
from headrace.errors import ConfigError, InputError, OutputError, StoreError
from headrace.io import claim_folder
from headrace.preparing.energon import (
    EnergonOptions,
    EnergonReport,
    MediaFilter,
    SplitChoice,
    plan_energon,
    prepare_energon,
)
from headrace.preparing.options import ErrorOptions
from headrace.stores.energon import EnergonStore, read_splits

SKIP = ErrorOptions(on_error="skip")


def prepare(root: Path, **options: Any) -> tuple[EnergonReport, list[str]]:
    notices: list[str] = []
    given = EnergonOptions(**{"split": SplitChoice(ratio=(1,)), "workers": 1, **options})
    return prepare_energon(root, options=given, on_notice=notices.append), notices


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for shard in range(3):
        write_tar(tmp_path / f"s{shard}.tar", [(f"k{shard}{number}.txt", b"t" * 600) for number in range(4)])
    return tmp_path


def keys(root: Path) -> list[str]:
    store = EnergonStore(root, split_part="train")
    assert [sample.key for sample in store.read(range(len(store)))] == [store.key(at) for at in range(len(store))]
    return [store.key(at) for at in range(len(store))]


def test_a_shard_that_is_cut_short(root: Path) -> None:
    data = (root / "s1.tar").read_bytes()
    (root / "s1.tar").write_bytes(data[: 1536 * 2 + 700])
    with pytest.raises(InputError, match=r"s1.tar.*1.*3072"):
        prepare(root)
    assert not (root / ".nv-meta/.info.json").exists()
    with pytest.raises(InputError, match=r"1.*max_errors.*0"):
        prepare(root, errors=ErrorOptions(on_error="skip", max_errors=0))
    report, _ = prepare(root, errors=SKIP)
    assert keys(root) == ["k00", "k01", "k02", "k03", "k10", "k20", "k21", "k22", "k23"]  # k11 may lack parts
    assert [(name, faults[0].sample) for name, faults in report.faults.items()] == [("s1.tar", 1)]
    assert prepare(root, errors=SKIP)[0].faults == report.faults
    with pytest.raises(InputError, match="short"):
        prepare(root)
    (root / "s1.tar").write_bytes(data)
    assert prepare(root)[0].samples == len(keys(root)) == 12


def test_a_shard_that_is_none(root: Path) -> None:
    (root / "s1.tar").write_bytes(b"something else " * 100)
    report, notices = prepare(root, errors=SKIP)
    assert (report.shards, report.samples, report.empty) == (2, 8, ("s1.tar",))
    assert any("1 tars hold no sample and are left out: s1.tar" in notice for notice in notices)
    assert len(keys(root)) == 8


def test_a_shard_without_samples(root: Path) -> None:
    write_tar(root / "e.tar", [("noext", b"1")])
    report, notices = prepare(root)
    assert report.empty == ("e.tar",)
    assert any("e.tar" in notice for notice in notices)
    assert not (root / "e.tar.idx").exists()
    assert prepare(root)[0].read == 0


def test_nothing_to_prepare(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="folder"):
        prepare(tmp_path)
    write_tar(tmp_path / "e.tar", [("noext", b"1")])
    with pytest.raises(InputError, match=r"1.*sample"):
        prepare(tmp_path)
    with pytest.raises(InputError, match="excluded"):
        prepare(tmp_path, exclude="e")
    with pytest.raises(InputError, match="expected"):
        prepare(tmp_path / "none")


def test_a_tar_whose_ending_is_in_upper_case(root: Path) -> None:
    (root / "Z.TAR").write_bytes((root / "s0.tar").read_bytes())
    with pytest.raises(StoreError, match=r"'Z\.TAR'"):
        prepare(root)
    assert prepare(root, exclude="Z")[0].samples == 12


def test_compressed_tars(root: Path) -> None:
    (root / "z.tgz").write_bytes(gzip.compress((root / "s0.tar").read_bytes()))
    with pytest.raises(InputError, match=r"z.tgz"):
        prepare(root)
    assert prepare(root, exclude=r"\.tgz$")[0].samples == 12
    _, notices = prepare(root, errors=SKIP)
    assert any("compressed tars are left out, the first is z.tgz" in notice for notice in notices)
    (root / "s0.tar").write_bytes(gzip.compress((root / "s0.tar").read_bytes(), compresslevel=0))
    with pytest.raises(InputError, match=r"s0.tar"):
        prepare(root, exclude=r"\.tgz$")


def test_a_key_in_two_shards(root: Path) -> None:
    write_tar(root / "s2.tar", [("k20.txt", b"1"), ("k11.txt", b"again"), ("k21.txt", b"2")])
    with pytest.raises(InputError, match=r"'k11'.*1.*s1.tar"):
        prepare(root)
    report, _ = prepare(root, duplicates="drop")
    assert [(found.key, found.shard, found.first_shard) for found in report.duplicates] == [("k11", "s2.tar", "s1.tar")]
    assert read_splits(root).exclude == {"s2.tar/k11"}
    assert keys(root) == ["k00", "k01", "k02", "k03", "k10", "k11", "k12", "k13", "k20", "k21"]
    assert EnergonStore(root, split_part="train").find("k11") == 5
    assert prepare(root, duplicates="drop")[0].read == 0
    # Another rule, another dataset: what was left out is read again.
    prepare(root, duplicates="keep")
    assert read_splits(root).exclude == frozenset()
    assert keys(root).count("k11") == 2
    with pytest.raises(InputError, match="twice"):
        prepare(root)
    # The first one is gone: the other is no duplicate any more.
    prepare(root, duplicates="drop")
    (root / "s1.tar").unlink()
    report, _ = prepare(root, duplicates="drop")
    assert report.duplicates == ()
    assert read_splits(root).exclude == frozenset()
    assert keys(root) == ["k00", "k01", "k02", "k03", "k20", "k11", "k21"]


def test_a_new_shard_before_the_others_has_their_key(root: Path) -> None:
    prepare(root)
    write_tar(root / "a.tar", [("k12.txt", b"first now")])
    with pytest.raises(InputError, match=r"'k12'.*0.*a.tar"):
        prepare(root)
    report, _ = prepare(root, duplicates="drop")
    assert report.read == 1
    assert read_splits(root).exclude == {"s1.tar/k12"}
    assert EnergonStore(root).part("k12.txt") == b"first now"


def test_a_key_twice_in_a_shard(root: Path) -> None:
    write_tar(root / "s1.tar", [("a.txt", b"1"), ("b.txt", b"2"), ("a.jpg", b"3")])
    with pytest.raises(InputError, match="'a'"):
        prepare(root, duplicates="drop")
    report, _ = prepare(root, duplicates="keep")
    assert report.samples == 11
    assert EnergonStore(root).part("a.txt") == b"1"


def test_media_that_are_none(root: Path) -> None:
    write_tar(root / "m.tar", [("m0.png", PNG), ("m1.png", b"no image"), ("m2.mp4", b"no video"), ("m3.jpg", b"")])
    report, _ = prepare(root, media=MediaFilter(strategy="EXTENSION"))
    assert report.media == 1


def test_two_runs_at_once(root: Path) -> None:
    (root / ".nv-meta").mkdir()
    lock = claim_folder(root / ".nv-meta/.headrace")
    with pytest.raises(OutputError, match="headrace"):
        prepare(root)
    lock.close()
    assert prepare(root)[0].samples == 12


def test_links_that_lead_back(root: Path) -> None:
    (root / "sub").mkdir()
    (root / "sub/up").symlink_to(root)
    (root / "sub/s9.tar").symlink_to(root / "s0.tar")
    (root / ".hidden").mkdir()
    write_tar(root / ".hidden/x.tar", [("x.txt", b"")])
    with pytest.raises(InputError, match=r"0.*s0.tar.*sub/s9.tar"):
        prepare(root)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": SplitChoice(ratio=(1,), parts=(("a", "b"),))}, "assign"),
        ({"split": SplitChoice(ratio=(0, 0, 0))}, "shares"),
        ({"split": SplitChoice(ratio=(1, 1, 1, 1))}, "shares"),
        ({"split": SplitChoice(parts=(("a", "("),))}, r"'\('"),
        ({"split": SplitChoice(parts=(("a", "b"),), shuffle=True)}, "ratio"),
        ({"exclude": "["}, r"'\['"),
        ({"index_only": True, "media": MediaFilter(strategy="HEADER")}, "index_only"),
        ({"media": MediaFilter(strategy="GLOB")}, "GLOB"),
        ({"media_only": True}, "media_only"),
        ({"workers": 0}, "workers"),
    ],
)
def test_options_that_cannot_be(root: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        prepare(root, **options)
    assert not (root / ".nv-meta").exists()


def test_a_metadataset_is_not_prepared_here(tmp_path: Path) -> None:
    path = tmp_path / "mix.yaml"
    path.write_text("splits: {train: {path: a}}")
    with pytest.raises(ConfigError, match=rf"headrace prepare energon {path}.*load_dataset\(path\)\.prepare\(\)"):
        prepare(path)
    with pytest.raises(ConfigError, match="one step"):
        plan_energon(path)
