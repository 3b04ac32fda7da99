"""Windows and packs of tokens in a mix, as people look at them: the text, and the documents that it is of."""

from __future__ import annotations

import numpy as np

from headrace.cli.description import find_manifest
from headrace.cli.figures import count
from headrace.cli.media.parts import ShownPart
from headrace.cli.media.samples import LookedAtSample, Place, ShownSample
from headrace.cli.views.token_texts import TokenTexts
from headrace.cli.views.tokenizer import find_texts
from headrace.datasets import Run
from headrace.datasets.dataset import Origin
from headrace.stores import RawSample

_FIELD = "input_ids"


class TokenViewer:
    """Looks at the samples of a run that are of tokens; each store is read by the tokeniser that made it.

    Args:
        run: with one sample a step.
        max_chars: of each text so many characters are kept.
    """

    def __init__(self, run: Run, *, max_chars: int) -> None:
        self._run = run
        self._max_chars = max_chars
        self._texts: dict[str, TokenTexts] = {}

    def look(self, position: int, number: int, place: Place) -> LookedAtSample:
        """The sample of a position.

        Args:
            position: in the run.
            number: of the sample in its dataset.
            place: in the mix.

        Raises:
            StoreError: the tokeniser of the store is not there, or was changed.
        """
        located = self._run.locate(np.array([position]))
        (origins,) = self._run.datasets[int(located.sources[0])].origins(located.addresses)
        # What follows the documents of a pack is pads.
        ids = self._run.read(located)[_FIELD][0][: sum(origin.tokens or 0 for origin in origins)]
        text = "".join(group.text for group in self._texts_of(place.path).groups(ids.tolist()))
        part = ShownPart(
            name=_FIELD,
            size=ids.nbytes,
            kind="text",
            text=text[: self._max_chars],
            left_out=max(0, len(text) - self._max_chars),
            facts={"dtype": str(ids.dtype), "shape": str(ids.shape)},
        )
        shown = ShownSample(
            number=number,
            key=_documents(origins),
            shard="",
            index=number,
            parts=(part,),
            fields={},
            boxes=(),
            place=place,
        )
        raw = RawSample(key=shown.key, shard="", index=number, parts={_FIELD: ids.tobytes()})
        return LookedAtSample(shown, raw, {})

    def _texts_of(self, path: str) -> TokenTexts:
        if path not in self._texts:
            manifest = find_manifest(path)
            made_by = None if manifest is None else manifest.tokenizer
            self._texts[path] = find_texts(made_by, given=None, is_any=False, path=path).texts
        return self._texts[path]


def _documents(origins: tuple[Origin, ...]) -> str:
    """``document 12 from token 30, document 13``."""
    found = []
    for origin in origins:
        begin = f" from token {count(origin.begin)}" if origin.begin else ""
        found.append(f"document {count(origin.document or 0)}{begin}")
    return ", ".join(found)
