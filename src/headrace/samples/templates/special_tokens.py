"""The special tokens that a tokeniser's folder gives its chat template: ``bos_token``, ``eos_token``, ..."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.samples.templates.files import read_json

CONFIG = "tokenizer_config.json"
_MAP = "special_tokens_map.json"


def special_tokens(folder: Path) -> dict[str, str]:
    """Names and texts of the special tokens in ``folder``; empty where its files name none.

    Every ``*_token`` of ``tokenizer_config.json`` and of its ``extra_special_tokens``. Where the file has no
    ``added_tokens_decoder`` it is an old one, and ``special_tokens_map.json`` wins, as in transformers 5. The object
    ``special_tokens`` is AstrAI's and stands in for names that are not found otherwise.

    What a tokeniser's class in Python would add on its own (a default ``<s>``) is not known here; such folders are
    rare, since saving a tokeniser writes all of them out.
    """
    config = read_json(folder / CONFIG)
    values = dict(config)
    if "added_tokens_decoder" not in config:
        values |= read_json(folder / _MAP)
    extra = values.get("extra_special_tokens")
    found = _texts(config.get("special_tokens"))
    found |= {name: text for name, text in _texts(values).items() if name.endswith("_token")}
    return found | _texts(extra)


def _texts(values: Any) -> dict[str, str]:
    if not isinstance(values, dict):
        return {}
    # A token is its text, or a dict that says how it is matched besides.
    contents = {name: value.get("content") if isinstance(value, dict) else value for name, value in values.items()}
    return {name: content for name, content in contents.items() if isinstance(content, str)}
