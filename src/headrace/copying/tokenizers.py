"""The tokeniser that a copy names: that of its sources, if it is one. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from headrace.errors import ConfigError
from headrace.stores import Manifest, TokenizerInfo


def common_tokenizer(
    paths: Sequence[str], manifests: Sequence[Manifest | None], *, allow_different: bool
) -> tuple[TokenizerInfo | None, list[str]]:
    """The tokeniser of all sources, None where it is not known to be one; and what a user should know.

    Two are the same if their definitions have the same hash; ``eod`` and ``bos`` are kept where the sources agree.

    Raises:
        ConfigError: they differ, and that is not allowed.
    """
    known = [
        (path, manifest.tokenizer)
        for path, manifest in zip(paths, manifests, strict=True)
        if manifest is not None and manifest.tokenizer is not None
    ]
    if not known:
        return None, []
    first_path, first = known[0]
    for path, other in known[1:]:
        if (other.xxh3_128, other.vocab_size) != (first.xxh3_128, first.vocab_size):
            found = f"{first_path} has ids of {_named(first)}, {path} of {_named(other)}"
            if not allow_different:
                raise ConfigError(
                    f"different tokenisers: {found}; one model cannot read both: tokenise one of them again, or say"
                    " --allow-different-tokenizers"
                )
            return None, [f"different tokenisers: {found}; the result names none"]
    if len(known) < len(paths):
        silent = next(path for path in paths if path not in dict(known))
        return None, [f"{silent} does not say which tokeniser made its ids, so the result names none"]
    notes = []
    for name, text in (("eod", "eod_text"), ("bos", "bos_text")):
        if any(getattr(other, name) != getattr(first, name) for _, other in known):
            notes.append(f"the sources do not have the same {name} token, or not all have one: the result names none")
            first = msgspec.structs.replace(first, **{name: None, text: ""})
    return first, notes


def _named(info: TokenizerInfo) -> str:
    return f"{info.source} ({info.vocab_size:,} ids, xxh3 {info.xxh3_128[:8]})"
