"""What came of a probe is kept, and believed only where it is surely of the same libraries and tokeniser."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.preparing.backends import proof
from headrace.preparing.backends import proof as kept_probes
from headrace.preparing.backends.comparison import Difference
from headrace.preparing.backends.proof import find_outcome, keep_outcome

WANTED = "fastokens"


@pytest.fixture
def folder() -> Path:
    return Path(os.environ["HEADRACE_CACHE"]) / "probes"


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The probes that were made, of a few texts each."""
    made: list[str] = []

    def compare(fast: Any, reference: Any, texts: list[str], **rest: Any) -> Difference | None:
        made.append(fast.name)
        return proof_compare(fast, reference, texts, **rest)

    proof_compare = proof.compare
    monkeypatch.setattr(proof, "probe_texts", lambda layout, is_byte_level: ["some words", "and 123"])
    monkeypatch.setattr(proof, "compare", compare)
    return made


def choose(content: bytes, special: Any = "literal") -> proof.Choice:
    return proof.choose_backend(content, wanted=WANTED, special=special)


def test_a_probe_is_made_once(family: Any, probes: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = family.make("gpt2")
    first = choose(content)
    assert (first.name, probes) == (WANTED, [WANTED])
    assert [path.suffix for path in folder.iterdir()] == [".json"]
    # The second time neither of the two libraries is loaded.
    with monkeypatch.context() as patch:
        for name in ("load_with", "TokenizersBackend"):
            patch.setattr(proof, name, None)
        assert choose(content) == first
    # Whatever decides about it is another probe.
    choose(content, "encode")
    choose(content.replace(b'"version"', b'"version" ', 1))
    assert len(probes) == 3
    other_code = str(folder / "kept_probes.py")
    for name, value in (("__file__", other_code), ("installed_version", lambda library: "99")):
        with monkeypatch.context() as patch:
            patch.setattr(kept_probes, name, value)
            choose(content)
            choose(content)
    assert len(probes) == 5


def test_a_difference_is_kept_too(family: Any, probes: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "compare", lambda *args, **rest: probes.append("") or Difference(0, "other ids"))
    found = [choose(family.make("gpt2")) for _ in range(2)]
    assert len(probes) == 1
    assert found[0] == found[1]
    assert (found[0].name, found[0].reasons) == ("tokenizers", {WANTED: "differs on the probe: other ids"})


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "cut": lambda data: data[:-9],
    "a difference that nobody found": lambda data: data.replace(b'"difference":""', b'"difference":"x"'),
    "another hash": lambda data: data.replace(b'"xxh3_128":"', b'"xxh3_128":"0'),
    "another field": lambda data: data.replace(b"{", b'{"a":1,', 1),
    "nested": lambda data: b"[" * 100_000,
    "not UTF-8": lambda data: data.replace(b'"difference":""', b'"difference":"\xff"'),
    "of another probe": lambda data: data.replace(data[7:39], b"0" * 32, 1),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_file_counts_for_nothing(family: Any, probes: list[str], folder: Path, kind: str) -> None:
    content = family.make("gpt2")
    choose(content)
    [path] = folder.iterdir()
    whole = path.read_bytes()
    path.write_bytes(DAMAGE[kind](whole))
    assert path.read_bytes() != whole
    choose(content)
    assert len(probes) == 2
    assert [path.read_bytes() for path in folder.iterdir()] == [whole]


def test_without_a_place(family: Any, probes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file where the folder should be, and a user without a home: every run makes its probe."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "file"))
    content = family.make("gpt2")
    assert choose(content) == choose(content)
    assert len(probes) == 2
    monkeypatch.setattr(kept_probes, "cache_folder", lambda kind: None)
    keep_outcome("key", "")
    assert find_outcome("key") is None
