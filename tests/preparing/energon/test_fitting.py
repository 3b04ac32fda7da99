"""What is said of a field map that does not fit the samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from energon_made import PNG, write_tar
from headrace.preparing.energon import DatasetChoice, EnergonOptions, EnergonReport, SplitChoice, prepare_energon
from headrace.preparing.energon.report import LOOKED_AT


def prepared(root: Path, **field_map: str) -> tuple[EnergonReport, list[str]]:
    notices: list[str] = []
    options = EnergonOptions(
        split=SplitChoice(ratio=(1, 0, 0)),
        dataset=DatasetChoice(sample_type="CaptioningSample", field_map=field_map),
        workers=1,
        overwrite=True,
    )
    report = prepare_energon(root, options=options, on_notice=notices.append)
    return report, [notice for notice in notices if "field map" in notice]


def write(root: Path, count: int, parts: Any) -> Path:
    for shard in range(2):
        members = [
            (f"{shard}_{number:04d}.{part}", data)
            for number in range(count)
            for part, data in parts(shard * count + number).items()
        ]
        write_tar(root / f"{shard}.tar", members)
    return root


@pytest.mark.parametrize("caption", ["txt", "json[text]", "txt,json[text]", "json[text],txt", "meta.json[a][0]"])
def test_one_that_fits(tmp_path: Path, caption: str) -> None:
    parts = {"png": PNG, "txt": b"x", "json": b'{"text": "x"}', "meta.json": b'{"a": ["x"]}'}
    root = write(tmp_path, 3, lambda number: parts)
    report, notices = prepared(root, image="png", caption=caption)
    assert (report.misfit, notices) == (None, [])


def test_the_share_is_said(tmp_path: Path) -> None:
    root = write(tmp_path, 5, lambda number: {"png": PNG, "txt": b"x"} if number == 7 else {"png": PNG, "cls": b"1"})
    report, [notice] = prepared(root, image="png", caption="txt")
    assert report.misfit is not None
    assert (report.misfit.samples, report.misfit.looked_at, report.misfit.shard) == (9, 10, "0.tar")
    assert notice == (
        "dataset.yaml: the field map does not fit 9 of the 10 samples that were checked (90.0%), the first '0_0000' in"
        " 0.tar: field 'caption': the sample has no part 'txt'; it has png, cls"
    )


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"caption": "x"}, "field 'caption': no [text] in json: it is an object with the keys 'caption'"),
        (["x"], "field 'caption': no [text] in json: it is a list"),
        (None, "field 'caption': is not JSON"),
    ],
)
def test_what_json_holds_is_looked_at(tmp_path: Path, content: Any, said: str) -> None:
    data = b"{" if content is None else json.dumps(content).encode()
    root = write(tmp_path, 2, lambda number: {"png": PNG, "json": data})
    report, [notice] = prepared(root, image="png", caption="json[text]")
    assert report.misfit is not None
    assert report.misfit.samples == 4
    assert said in notice


def test_of_many_some_are_looked_at(tmp_path: Path) -> None:
    root = write(tmp_path, 300, lambda number: {"png": PNG, **({"txt": b"x"} if number < 300 else {})})
    report, _ = prepared(root, image="png", caption="txt")
    assert report.misfit is not None
    assert (report.misfit.samples, report.misfit.looked_at) == (LOOKED_AT // 2, LOOKED_AT)
    assert report.misfit.shard == "1.tar"
