"""Names in a ``dataset.yaml`` are looked up, never imported, unless they are trusted."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from headrace.errors import ConfigError
from headrace.samples.media import SAMPLE_TYPES, CaptioningSample, CrudeSample, load_function, resolve_sample_type


@pytest.mark.parametrize("module", ["megatron.energon", "megatron.energon.flavors", "headrace.samples.media"])
@pytest.mark.parametrize("name", [*SAMPLE_TYPES, "CrudeSample"])
def test_types_by_name(module: str, name: str) -> None:
    assert resolve_sample_type(module, name).__name__ == name
    assert "megatron.energon" not in sys.modules


@pytest.mark.parametrize(
    ("name", "wanted"), [("CaptioningWebdataset", CaptioningSample), ("CrudeWebdataset", CrudeSample)]
)
def test_older_dataset_classes(name: str, wanted: type) -> None:
    assert resolve_sample_type("megatron.energon.flavors.captioning", name) is wanted


def test_unknown_name() -> None:
    with pytest.raises(ConfigError, match=r"'CaptionSample'.*VQAOCRSample.*'CaptioningSample'"):
        resolve_sample_type("megatron.energon", "CaptionSample")


def test_other_modules_are_imported_only_if_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_types.py").write_text(
        "from headrace.samples.media import Sample, sample_type\n"
        "@sample_type\nclass Mine(Sample):\n    x: int\n"
        "class Other: pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"their_types\.Mine.*trust_code=True"):
        resolve_sample_type("their_types", "Mine")
    assert "their_types" not in sys.modules
    # A name that only begins like Energon's is another module.
    with pytest.raises(ConfigError, match="imported"):
        resolve_sample_type("megatron.energonize", "CaptioningSample")
    mine = resolve_sample_type("their_types", "Mine", trust_code=True)
    assert mine(__key__="k", __restore_key__=(), x=1).x == 1  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="sample"):
        resolve_sample_type("their_types", "Other", trust_code=True)
    for module, name in (("their_types", "Nothing"), ("no_such_module", "Mine")):
        with pytest.raises(ConfigError, match="imported"):
            resolve_sample_type(module, name, trust_code=True)
    del sys.modules["their_types"]


def test_functions_of_the_dataset() -> None:
    asked: list[str] = []

    def read(file: str) -> str:
        asked.append(file)
        return "LIMIT = 3\ndef sample_loader(sample):\n    return {'text': sample['txt'] + str(LIMIT)}\n"

    with pytest.raises(ConfigError, match=r"sample_loader.*sample_loader\.py"):
        load_function("sample_loader.py:sample_loader", "sample_loader", read, trust_code=False)
    assert asked == []
    function = load_function("sample_loader.py", "sample_loader", read, trust_code=True)
    assert function({"txt": "a"}) == {"text": "a3"}
    assert asked == ["sample_loader.py"]
    with pytest.raises(ConfigError, match=r"'other'.*sample_loader"):
        load_function("sample_loader.py:other", "sample_loader", read, trust_code=True)
    for source in ("def", "import no_such_module", "1 + 'a'", "nothing"):
        with pytest.raises(ConfigError, match=r"a\.py"):
            load_function("a.py", "f", lambda _, source=source: source, trust_code=True)  # type: ignore[misc]
