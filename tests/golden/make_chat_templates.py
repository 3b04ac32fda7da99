"""Writes the golden renderings of our chat templates with Transformers' own code.

    python tests/golden/make_chat_templates.py tests/golden/chat_templates

Needs the extra ``interop``. The README beside says what is in the file.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

from headrace.samples.templates import find, suite_names
from talks import NOW, fixed


class _Fixed(datetime):
    @classmethod
    def now(cls, tz: Any = None) -> datetime:
        return NOW


def renderings(name: str) -> dict[str, str]:
    """Name of the conversation -> the text that Transformers renders with our template."""
    ours = find(name)
    assert ours is not None
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.BPE()), chat_template=ours.text, **ours.special_tokens
    )
    texts = {}
    for talk, arguments in fixed(ours.family).items():
        options = dict(arguments)
        texts[talk] = tokenizer.apply_chat_template(options.pop("messages"), tokenize=False, **options)
    return texts


def main(folder: Path) -> None:
    chat_template_utils.datetime = _Fixed
    golden = {name: renderings(name) for name in suite_names(generation=True)}
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(golden, indent=1, ensure_ascii=False, sort_keys=True)
    (folder / "renderings.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
