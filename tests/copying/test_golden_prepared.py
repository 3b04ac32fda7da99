"""Finished files of every kind are, byte for byte, those of an earlier version."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import prepared_made

GOLDEN = Path(__file__).parents[1] / "golden" / "prepared.json"


def test_finished_files_are_those_of_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found, known = prepared_made.made(), json.loads(GOLDEN.read_text())
    assert sorted(found) == sorted(known)
    for name, files in known.items():
        assert found[name] == files, name
