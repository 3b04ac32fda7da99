"""Which tokens begin and end a sequence: as the tokeniser's folder says, or else the only usual ones it has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from headrace.prepare.tokenizer import USUAL_BOSES, USUAL_EODS, TextTokenizer
from headrace.samples.maker.ends import BEGIN_TOKEN
from headrace.samples.masking.results import MISSING_BOS
from headrace.samples.templates import TemplateSetup, special_tokens
from headrace.samples.templates.load import CONFIG, read_json

_USUAL = {"eos_token": USUAL_EODS, "bos_token": USUAL_BOSES}
_USED = {
    "eos_token": ("eos", "ends", "`ends: {eos: TOKEN}` says another, `ends: {append_eos: false}` none"),
    "bos_token": ("bos", "begins", "`ends: {bos: TOKEN}` says another, `ends: {prepend_bos: false}` none"),
}


class EndNames(NamedTuple):
    """What was found."""

    tokens: dict[str, str]
    """``eos_token``, ``bos_token`` and what else the folder names; `BEGIN_TOKEN` if it begins every text with one."""

    by_vocabulary: frozenset[str]
    """Names of those that nothing but the vocabulary says."""


def find_end_names(loaded: TextTokenizer, folder: Path, template: TemplateSetup | None) -> EndNames:
    """The names of the tokens at the ends, for a `SampleMaker`, which takes those of its template before them.

    What neither the template nor a file of the folder names is the only one of the usual tokens that the vocabulary
    has. Where the configuration says that there is none (``"bos_token": null``), there is none.
    """
    config: dict[str, Any] = read_json(folder / CONFIG)
    said = special_tokens(folder) | (dict(template.special_tokens) if template is not None else {})
    found = {}
    for name, usual in _USUAL.items():
        if name in said or name in config:
            continue
        known = [token for token in usual if token in loaded.known_tokens]
        if len(known) == 1:
            found[name] = known[0]
    tokens = {**found, **said}
    if config.get("add_bos_token") is True and "bos_token" in tokens:
        tokens[BEGIN_TOKEN] = tokens["bos_token"]
    return EndNames(tokens, frozenset(found))


def end_notices(names: EndNames, counts: Mapping[str, int], num_records: int) -> Iterator[str]:
    """What a user should know of the ends, from what was made of the first records.

    Args:
        names: as found.
        counts: ``eos`` and ``bos`` that were added, and `MISSING_BOS`.
        num_records: the first records.
    """
    for name, (short, verb, options) in _USED.items():
        if name in names.by_vocabulary and counts.get(short):
            yield (
                f"{names.tokens[name]!r} {verb} a sequence: no chat template or tokenizer_config.json says {name}, and "
                f"it is the only usual one of the vocabulary. {options}"
            )
    if counts.get(MISSING_BOS):
        yield (
            f"{counts[MISSING_BOS]:,} sequences of the first {num_records:,} records do not begin with BOS, with which "
            "the tokeniser begins texts: the chat template writes none. `ends: {prepend_bos: true}` adds it; all are "
            "counted as missing_bos, and `mask: {on_missing_bos: error}` refuses them"
        )
