"""Our own templates in the manner of the public families: what each wants and how it behaves.

Markers and line ends are those of the family; the Jinja and the prose around lists of tools are ours. Each comes twice:
``chatml`` without and ``chatml-generation`` with ``{% generation %}`` blocks, the same text from both. To train a model
that exists, take its own template from its tokeniser's folder; where that has no blocks, ours of the family often fits.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

import msgspec

from headrace.samples.templates.families import FAMILIES, Family

_GENERATION = "-generation"
_BLOCK = re.compile(r"\{%(-?)\s*((?:end)?generation)\s*(-?)%\}")


class SuiteTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """One template of the suite: its name and text, whether it has ``{% generation %}`` blocks, and its family."""

    name: str
    text: str
    has_generation: bool
    family: Family

    @property
    def special_tokens(self) -> dict[str, str]:
        """What the template sees where no tokeniser says otherwise."""
        return self.family.special_tokens

    def ends_turn(self, special_tokens: dict[str, str]) -> str | None:
        """The text that ends an assistant's turn with these special tokens; None where only the next header does."""
        end = self.family.end_of_turn
        return special_tokens.get(end) if end == "eos_token" else end


def suite_names(*, generation: bool | None = None) -> list[str]:
    """The names of all templates, sorted; of those with (or without) ``{% generation %}`` blocks only, if asked."""
    names = [] if generation is True else list(FAMILIES)
    if generation is not False:
        names += [name + _GENERATION for name in FAMILIES]
    return sorted(names)


@cache
def find(name: str) -> SuiteTemplate | None:
    """The template of that name, or None."""
    has_generation = name.endswith(_GENERATION)
    plain_name = name.removesuffix(_GENERATION)
    family = FAMILIES.get(plain_name)
    if family is None:
        return None
    file = files("headrace.samples.templates") / "suite" / f"{family.file or plain_name}.jinja"
    text = file.read_text(encoding="utf-8")
    if not has_generation:
        # A comment trims the same spaces as the block it replaces, and so the text is the same.
        text = _BLOCK.sub(r"{#\1 \2 \3#}", text)
    return SuiteTemplate(name=name, text=text, has_generation=has_generation, family=family)
