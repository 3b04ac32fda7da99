"""Write `chat_masks/*.txt`: the masks of every template of our suite, to be read and checked by eye.

No other tool has masks with our rules, so the files are our own. Each was read against the format of its family: header
out, all that the model writes in, the token that ends the turn in, nothing behind it. Where the template has generation
blocks, `make interop` compares with the mask of Transformers as well.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent)]

import masks_made  # noqa: E402
import talks  # noqa: E402
from headrace.samples import Conversation  # noqa: E402
from headrace.samples.templates.suite import FAMILIES, Family  # noqa: E402

OPTIONS = {
    "unstable": "split",
    "on_prompt_mismatch": "allow",
    "on_untrained_end": "allow",
    "on_unwritten_tools": "allow",
}


def conversations(family: Family) -> dict[str, Conversation]:
    """Those of the tests of templates that end in an answer."""
    found = {}
    for name, arguments in talks.fixed(family).items():
        if "add_generation_prompt" not in arguments and "documents" not in arguments:
            found[name] = Conversation(messages=arguments["messages"], tools=arguments.get("tools"))
    return found


def masks(name: str) -> str:
    """All masks of a template, each sample under the name of its conversation."""
    lines = []
    for talk, conversation in conversations(FAMILIES[name.removesuffix("-generation")]).items():
        for sample in masks_made.masks(name, conversation, **OPTIONS):
            lines.append(f"==== {talk}\n{sample}\n")
    return "".join(lines)


if __name__ == "__main__":
    folder = HERE / "chat_masks"
    folder.mkdir(exist_ok=True)
    for name in FAMILIES:
        (folder / f"{name}.txt").write_text(masks(name), encoding="utf-8", newline="")
